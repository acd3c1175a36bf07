# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Speech servers: refused settings, defaults, the container, unit and endpoint of each server, and findings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import servers, speech
from ansible_collections.dgxspark.vllm.plugins.module_utils._addons.servers import ServerHost
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster.endpoints import Endpoint
from ansible_collections.dgxspark.vllm.plugins.module_utils._common import validation

ASR = {"name": "parakeet", "kind": "asr"}
TTS = {"name": "chatterbox", "kind": "tts"}
OWN = {"name": "ears", "kind": "asr", "image": "example/whisper:1", "memory_gib": 6, "port": 9000}
ENGINE = endpoints.make("spark-1", "192.168.1.11", "heavy", "vllm", 8001, "127.0.0.1")
ROLES = Path(__file__).resolve().parents[5] / "roles"
DOCS = Path(__file__).resolve().parents[5] / "docs/speech.md"


def test_how_a_server_gives_its_model_back() -> None:
    mine = {
        "kind": "asr",
        "image": "registry.example.org/ears:1",
        "memory_gib": 6,
        "command": ["/ears"],
        "key_env": "EARS_KEY",
    }
    entries = [
        {"name": "ears", **mine, "unload": "DELETE /api/ps/whisper", "port": 8770, "api_key_file": "/keys/ears"},
        {"name": "tts", "kind": "tts"},
    ]
    read = settings(*entries)
    outcome, _added, _findings = speech.plan(ServerHost("spark-1", "192.168.1.11"), read, [])
    assert speech.unloading(read, outcome["services"]) == [
        {
            "name": "ears",
            "container": "spark-ears",
            "method": "DELETE",
            "url": "http://127.0.0.1:8770/api/ps/whisper",
            "key_file": "/etc/dgxspark/secrets/speech/ears/EARS_KEY",
        }
    ]
    for wrong in ("unload", "PATCH /a", "DELETE a", "GET http://h/"):
        _servers, messages = speech.read("h", [{"name": "a", "kind": "asr", "unload": wrong}])
        assert len(messages) == 1 and "'unload'" in messages[0]


def settings(*entries: dict[str, Any]) -> list[dict[str, Any]]:
    result, messages = speech.read("spark-1", list(entries))
    assert messages == []
    return result


def planned(*entries: dict[str, Any], endpoints: tuple[Endpoint, ...] = (), **more: Any) -> tuple[Any, Any, Any]:
    outcome, added, findings = speech.plan(ServerHost("spark-1", "192.168.1.11", **more), settings(*entries), endpoints)
    return outcome["services"], added, {finding.rule: finding for finding in findings}


def message_of(*entries: Any, names: tuple[str, ...] = ()) -> str:
    _servers, messages = speech.read("spark-1", list(entries), names)
    return "\n".join(messages)


def pairs(argv: list[str]) -> list[tuple[str, str]]:
    return list(zip(argv, argv[1:], strict=False))


def test_a_server_on_demand_is_behind_its_port() -> None:
    on_demand = {"idle_minutes": 5, "exclusive": "big", "hold_minutes": 2}
    entry = {**ASR, "on_demand": on_demand, "listen": "192.168.1.11", "unload": "DELETE /model"}
    (server,), (endpoint,), _findings = planned(entry, endpoints=(ENGINE,), sets={"big": [["heavy", "parakeet"]]})
    assert ("--publish", "127.0.0.1:18765:5092") in pairs(server["argv"]) and "8765" not in str(server["argv"]).replace(
        "18765", ""
    )
    assert (server["url"], server["before"]) == ("http://192.168.1.11:8765", [])
    # What waits for it and what unloads it starts nothing; the proof does.
    helper = server["settings"]
    assert (helper["url"], helper["asked_url"]) == ("http://127.0.0.1:18765", "http://192.168.1.11:8765")
    assert speech.unloading(settings(entry), [server])[0]["url"] == "http://127.0.0.1:18765/model"
    assert server["on_demand"]["combinations"] == [["heavy", "parakeet"]] and server["on_demand"]["idle_seconds"] == 300
    assert (endpoint["port"], endpoint["on_demand"], endpoint["hold_seconds"]) == (8765, True, 120)
    (other,), (endpoint,), _findings = planned({**entry, "on_demand": {"while_loading": "reject", "engine_port": 9001}})
    assert ("--publish", "127.0.0.1:9001:5092") in pairs(other["argv"]) and endpoint["hold_seconds"] == 0
    # A new proof is due if and only if the launch has changed.
    assert other["settings"]["fingerprint"] != helper["fingerprint"]
    assert (
        planned({**entry, "on_demand": {"idle_minutes": 9}})[0][0]["settings"]["fingerprint"] == helper["fingerprint"]
    )


def test_a_name_and_a_kind_are_enough() -> None:
    asr, tts = settings(ASR, TTS)
    assert (asr["port"], asr["health"], asr["memory_gib"], asr["device"]) == (8765, "/health", 4.0, "cpu")
    assert (tts["port"], tts["health"], tts["memory_gib"], tts["start_timeout"]) == (8882, "/health", 8.0, 1800)
    assert tts["env"]["DEVICE"] == "cpu"
    assert set(asr) - {"replaced", "state"} == set(speech.KEYS)


@pytest.mark.parametrize("kind", sorted(speech.KINDS))
def test_the_image_of_each_kind_is_pinned_and_known_by_the_simulator(kind: str) -> None:
    image = speech.KINDS[kind]["image"]
    assert re.search(r":v?\d+\.\d+\.\d+", image)
    assert image in (DOCS.parents[1] / "tests/sim/simlib/standins.py").read_text(encoding="utf-8")
    assert not servers.is_moving(image)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("parakeet", "must be a mapping with at least name and kind, not a text"),
        ({"name": "a"}, "'kind' is None; it must be asr"),
        ({**ASR, "kind": "stt"}, "'kind' is 'stt'"),
        ({**ASR, "nam": "x"}, "unknown key 'nam'; did you mean 'name'?"),
        ({**ASR, "name": "Para keet"}, "'name' is 'Para keet'; it must be lower-case"),
        ({**ASR, "name": "ollama"}, "'name' is 'ollama', which is a unit of this collection already"),
        ({**ASR, "port": "8765"}, "'port' is a text; it must be a whole number"),
        ({**ASR, "port": True}, "'port' is a boolean; it must be a whole number"),
        ({**ASR, "port": 70000}, "'port' is 70000; it must be a whole number from 1 to 65535"),
        ({**ASR, "image": "x/y:1"}, "'memory_gib' is missing: what x/y:1 uses is not known"),
        ({**ASR, "memory_gib": 0}, "'memory_gib' is 0; it must be a size in GiB, from 0.01 to 1000000"),
        ({**ASR, "device": "cuda"}, "'device' is 'cuda'; it must be cpu or gpu"),
        ({**ASR, "device": "gpu"}, "has no CUDA build for arm64. Name an image that has one"),
        (
            {**ASR, "on_demand": {"while_loading": "comments"}},
            "'on_demand.while_loading' is comments, which are for answers",
        ),
        ({**ASR, "on_demand": {"idle": 5}}, "unknown key of on_demand: 'idle'; did you mean 'idle_minutes'?"),
        ({**ASR, "on_demand": {"idle_minutes": 0}}, "'on_demand.idle_minutes' is 0; it must be a number"),
        ({**ASR, "on_demand": {"engine_port": 8765}}, "'on_demand.engine_port' is the port of the service"),
        ({**ASR, "on_demand": {"keep": 1}}, "'on_demand.keep' counts engines of a set"),
        ({**ASR, "on_demand": True}, "'on_demand' is a boolean; it must be a mapping"),
        ({**ASR, "health": "health"}, "'health' is 'health'; it must be a path"),
        ({**ASR, "start_timeout": 5}, "'start_timeout' is 5"),
        ({**ASR, "listen": "all of them"}, "'listen' is 'all of them'"),
        ({**ASR, "env": {"HF_TOKEN": "x"}}, "'env' sets HF_TOKEN, which looks like a secret"),
        ({**ASR, "env": {"A-B": "x"}}, "'env' names 'A-B', which is no environment variable"),
        ({**ASR, "env": {"A": "x\ny"}}, "'env' sets A to a text with a line break"),
        ({**ASR, "volumes": ["cache:/cache"]}, "'volumes' names 'cache:/cache'; write HOST_PATH:CONTAINER_PATH"),
        ({**ASR, "volumes": ["/a/../etc:/b"]}, "'volumes' names '/a/../etc:/b'"),
        ({**TTS, "api_key_file": "key"}, "is not known to support a key"),
        ({**OWN, "api_key_file": "key", "key_env": "SERVER_KEY"}, "'api_key_file' needs 'command'"),
        ({**OWN, "key_env": "SERVER_KEY"}, "'key_env' is set without 'api_key_file'"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(entry: Any, message: str) -> None:
    text = message_of(entry)
    assert message in text
    assert text.startswith("host spark-1, spark_speech[0]")


def test_the_names_of_our_own_units_are_refused() -> None:
    """Each unit with a fixed name: by its template, or by the variable of its role."""
    units = {path.name.partition(".")[0] for path in ROLES.glob("*/templates/spark-*.j2")}
    for path in ROLES.glob("*/vars/main.yml"):
        units |= {
            unit.partition(".")[0] for unit in re.findall(r"\bspark-[a-z-]+\.(?:service|timer)", path.read_text())
        }
    assert {"spark-hermes", "spark-open-webui", "spark-ollama", "spark-firewall"} <= units
    assert {unit[len("spark-") :] for unit in units} - set(validation.RESERVED_NAMES) == set()
    for name in validation.RESERVED_NAMES:
        assert f"'name' is '{name}', which is a unit of this collection already" in message_of({**ASR, "name": name})


def test_two_of_one_name_or_port_and_names_of_services_are_refused() -> None:
    assert "name 'parakeet' is used twice on this host, first by spark_speech[0]" in message_of(
        ASR, {**TTS, "name": "parakeet"}
    )
    assert "port 8765 is used twice" in message_of(ASR, {**ASR, "name": "other"})
    assert "the name 'parakeet' is already the name of a service" in message_of(ASR, names=("heavy", "parakeet"))
    assert "spark_speech: must be a list" in speech.read("spark-1", {"name": "x"})[1][0]


def test_cpu_servers_are_bound_and_published_on_loopback() -> None:
    (asr, tts), _added, _findings = planned(ASR, TTS)
    assert ("--publish", "127.0.0.1:8765:5092") in pairs(asr["argv"])
    assert ("--memory", "4096m") in pairs(asr["argv"]) and ("--memory-swap", "4096m") in pairs(asr["argv"])
    assert "--gpus" not in asr["argv"]
    image = asr["argv"].index(asr["image"])
    assert asr["argv"][image - 2 :] == [
        "--entrypoint",
        "/app/parakeet",
        asr["image"],
        "-port",
        "5092",
        "-models",
        "/models",
    ]
    assert ("--volume", "/var/lib/dgxspark/speech/chatterbox:/cache") in pairs(tts["argv"])
    assert tts["folders"] == [{"path": "/var/lib/dgxspark/speech/chatterbox", "mode": "0755"}]
    assert tts["argv"][-1] == tts["image"]
    assert tts["env"]["PORT"] == "5123" and "127.0.0.1:8882:5123" in tts["argv"]


def test_an_image_of_your_own_brings_nothing_of_the_kind_along() -> None:
    (server,), (endpoint,), _findings = planned({**OWN, "args": ["--model", "large"], "env": {"A": True}})
    assert server["env"] == {"A": "1"}
    assert server["argv"][-3:] == ["example/whisper:1", "--model", "large"]
    assert "127.0.0.1:9000:9000" in server["argv"]
    assert server["folders"] == [] and endpoint["port"] == 9000


def test_gpu_servers_get_the_gpu_and_no_bound_that_would_not_hold() -> None:
    (server,), _added, findings = planned(
        {**OWN, "device": "gpu"}, endpoints=(ENGINE,), gpu_args=["--runtime", "nvidia"]
    )
    assert ("--runtime", "nvidia") in pairs(server["argv"])
    assert "--memory" not in server["argv"]
    assert findings["speech.gpu"].severity == "warning"
    assert "next to heavy: 6 GiB are reserved" in findings["speech.gpu"].message
    assert "speech.gpu" not in planned({**OWN, "device": "gpu"})[2]


def test_a_key_is_a_file_and_stands_in_no_argument_and_no_variable() -> None:
    (asr,), (endpoint,), findings = planned({**ASR, "api_key_file": "keys/asr"})
    path = "/etc/dgxspark/secrets/speech/parakeet/PARAKEET_API_KEY"
    assert asr["secrets"] == [{"name": "PARAKEET_API_KEY", "source": "keys/asr", "path": path}]
    assert {"path": "/etc/dgxspark/secrets/speech/parakeet", "mode": "0700"} in asr["folders"]
    assert "PARAKEET_API_KEY" not in asr["env"] and "keys/asr" not in asr["argv"]
    assert asr["settings"]["api_key_file"] == path
    image = asr["argv"].index(asr["image"])
    assert asr["argv"][image - 2 : image + 2] == ["--entrypoint", servers.WITH_SECRETS, asr["image"], "/app/parakeet"]
    assert endpoint["api_key_file"] == "keys/asr"
    # A server with a key may listen on the management address if another host needs it.
    assert asr["listen"] == "127.0.0.1" and "speech.open" not in findings
    outcome, _added, findings = speech.plan(
        ServerHost("spark-1", "192.168.1.11", admitted=True), settings({**ASR, "api_key_file": "keys/asr"}), []
    )
    assert outcome["services"][0]["listen"] == "192.168.1.11" and findings == []


def test_who_has_to_reach_it_decides_where_it_listens() -> None:
    def listen(callers: dict[str, str], **more: Any) -> str:
        outcome, _added, _findings = speech.plan(
            ServerHost("spark-1", "192.168.1.11", callers=lambda _name, _kind: callers), settings({**ASR, **more}), []
        )
        return str(outcome["services"][0]["listen"])

    assert listen({"forge": "gateway"}) == "192.168.1.11"
    # Without a key it is for a gateway alone.
    assert listen({"forge": "fleet_monitor"}) == "127.0.0.1"
    assert listen({"forge": "fleet_monitor"}, api_key_file="k") == "192.168.1.11"


def test_a_server_that_only_the_gateway_reaches_is_not_open() -> None:
    _outcome, _added, findings = speech.plan(
        ServerHost("spark-1", "192.168.1.11", "forge", exposed_to=""), settings(ASR), []
    )
    assert [finding.rule for finding in findings] == []


@pytest.mark.parametrize(
    ("entry", "gateway", "listen", "rules"),
    [
        ({}, "", "127.0.0.1", set()),
        ({}, "spark-1", "127.0.0.1", set()),
        ({}, "forge", "192.168.1.11", {"speech.open"}),
        ({"listen": "127.0.0.1"}, "forge", "127.0.0.1", {"speech.unreachable"}),
        ({"listen": "0.0.0.0"}, "", "0.0.0.0", {"speech.open"}),
        ({"api_key_file": "k"}, "forge", "192.168.1.11", set()),
    ],
)
def test_where_it_listens_and_what_is_said_of_it(
    entry: dict[str, Any], gateway: str, listen: str, rules: set[str]
) -> None:
    (asr,), (endpoint,), findings = planned({**ASR, **entry}, gateway=gateway)
    assert (asr["listen"], endpoint["listen"]) == (listen, listen)
    assert set(findings) == rules
    # The host itself asks an address that is one.
    assert asr["url"] == f"http://{'127.0.0.1' if listen == '0.0.0.0' else listen}:8765"


def test_an_open_server_without_a_known_address_listens_everywhere_and_ipv6_is_bracketed() -> None:
    outcome, _added, _findings = speech.plan(ServerHost("spark-1", gateway="forge"), settings(ASR), [])
    assert "0.0.0.0:8765:5092" in outcome["services"][0]["argv"]
    (asr,), _added, _findings = planned({**ASR, "listen": "fd00::1"})
    assert "[fd00::1]:8765:5092" in asr["argv"] and asr["url"] == "http://[fd00::1]:8765"


def test_engines_of_the_host_come_after_it_and_its_memory_is_kept() -> None:
    span = endpoints.make("spark-2", "", "large", "vllm", 8000, "0.0.0.0", hosts=["spark-2", "spark-1"])
    other = endpoints.make("spark-2", "", "fast", "vllm", 8001, "0.0.0.0")
    (asr,), (endpoint,), _findings = planned(ASR, endpoints=(ENGINE, span, other))
    assert asr["before"] == ["spark-heavy.service", "spark-large.service"]
    assert [(row["name"], row["memory_gib"], row["on_demand"]) for row in map(speech.sidecar, settings(ASR, TTS))] == [
        ("parakeet", 4.0, None),
        ("chatterbox", 8.0, None),
    ]
    assert endpoint["kind"] == "asr" and endpoint["models"] == ["parakeet-tdt-0.6b"] and endpoint["memory_gib"] == 4.0
    assert endpoint["unit"] == asr["unit"] == "spark-parakeet.service"


def test_ports_and_names_that_are_taken() -> None:
    same_port = endpoints.make("spark-1", "", "heavy", "vllm", 8765, "127.0.0.1")
    same_name = endpoints.make("spark-1", "", "parakeet", "vllm", 8001, "127.0.0.1")
    elsewhere = endpoints.make("spark-2", "", "parakeet", "vllm", 8765, "127.0.0.1")
    assert (
        "port 8765 of spark-1 is that of heavy (vllm)" in planned(ASR, endpoints=(same_port,))[2]["speech.port"].message
    )
    assert planned(ASR, endpoints=(same_name,))[2]["speech.name"].severity == "error"
    assert planned(ASR, endpoints=(elsewhere,))[2] == {}


@pytest.mark.parametrize(
    ("socket", "refused"),
    [
        ({"port": 8765, "address": "0.0.0.0", "container": "riva"}, True),
        ({"port": 8765, "address": "127.0.0.1", "process": "python3"}, True),
        ({"port": 8765, "address": "192.168.1.11", "process": "python3"}, False),
        ({"port": 8765, "address": "127.0.0.1", "container": "spark-parakeet"}, False),  # it runs already
        ({"port": 8766, "address": "0.0.0.0", "container": "riva"}, False),
    ],
)
def test_ports_that_somebody_else_has_on_the_host(socket: dict[str, Any], refused: bool) -> None:
    findings = planned(ASR, listening=[socket])[2]
    assert ("speech.port_taken" in findings) is refused


@pytest.mark.parametrize(
    ("image", "moves"),
    [
        ("a/b", True),
        ("a/b:latest", True),
        ("reg:5000/a/b", True),
        ("a/b:1.2", False),
        (f"a/b@sha256:{'0' * 64}", False),
    ],
)
def test_images_that_move_are_named(image: str, moves: bool) -> None:
    assert servers.is_moving(image) is moves


def test_a_first_start_that_fetches_is_announced_when_the_image_is_new() -> None:
    image = speech.KINDS["tts"]["image"]
    assert "speech.download" in planned(TTS, images={image: {"present": False}})[2]
    assert "speech.download" not in planned(TTS, images={image: {"present": True}})[2]


def test_a_unit_has_time_for_all_of_its_starts() -> None:
    (tts,), _added, _findings = planned(TTS)
    bounds = tts["limits"]
    assert bounds["start_interval"] >= bounds["starts"] * (
        tts["start_timeout"] + bounds["stop_seconds"] + bounds["restart_seconds"]
    )
    assert tts["settings"]["deadline_seconds"] < tts["start_timeout"]


@pytest.mark.parametrize("kind", sorted(speech.KINDS))
def test_the_page_has_what_the_kinds_are(kind: str) -> None:
    text, usual = DOCS.read_text(encoding="utf-8"), speech.KINDS[kind]
    assert f"`{usual['image']}`" in text
    assert re.search(rf"^\| memory .*\b{usual['memory_gib']:g} GiB", text, re.MULTILINE)
