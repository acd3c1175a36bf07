# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparing a host with a document and with its current generation: differences, and the proof in the same round trip."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from generation_fixture import COMMITS, ENV, KEY, NEW, OLD, TABLE, Call, Spark, spark
from module_calls import call_module
from paced_engine import PacedEngine
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import Finding
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import file_sums
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import compare_programs
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import generations as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import deploy_fill, host_lock
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState, merge
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import host_proof
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer
from ansible_collections.dgxspark.vllm.plugins.modules import compare, generation

__all__ = ["spark"]
HEAVY = {"name": "heavy", "unit": "spark-heavy.service", "model": {"repo": "Org/M", "revision": "main"}}
MODEL = {"repo": "Org/M", "revision": "main", "only": [], "files": {}}
UNIT_PATH = "/etc/systemd/system/spark-heavy.service"


def run(module: Any, capsys: Any, args: dict[str, Any]) -> dict[str, Any]:
    return call_module(module, args, capsys)


@pytest.fixture
def call(spark: Spark, capsys: Any) -> Call:
    """Run the module compare."""

    def call(**args: Any) -> dict[str, Any]:
        spark.calls.clear()
        return run(compare, capsys, {"root": str(spark.root), **args})

    return call


@pytest.fixture
def record(spark: Spark, capsys: Any) -> Call:
    """Record a generation, as a complete run does that has proved the services."""

    def call(**args: Any) -> dict[str, Any]:
        more = {"action": "record", "proven": True, "services": [HEAVY], **args}
        return run(generation, capsys, {"root": str(spark.root), **more})

    return call


def sent(state: HostState) -> dict[str, Any]:
    """Return a document as the controller sends it: contents only for rows with values of the host."""
    document = state.to_dict()
    for row in document["files"]:
        data = row.pop("data", None)
        if row.get("fill"):
            row["content"] = base64.b64decode(data).decode()
    return document


def vocabulary_of(spark: Spark) -> tuple[str, bytes]:
    """Return path and content of a vocabulary that lies on the host."""
    content = b"IQ== 0\n"
    path = f"/srv/huggingface/downloads/{hashlib.sha256(content).hexdigest()[:12]}-o200k_base.tiktoken"
    spark.write(path, content.decode())
    return path, content


def test_models_are_compared_by_names_and_sizes(spark: Spark, call: Call) -> None:
    spark.deploy()
    model = {"repo": "Org/M", "revision": "main", "only": [], "locked": "main", "files": {}}
    local = {"source": "/models/mine", "path": "/srv/huggingface/local/mine"}

    def models(*planned_models: dict[str, Any]) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = call(models=list(planned_models))["differences"]["models"]
        return answer

    present, missing = models(model, local)
    assert (present["there"], present["wrong"], present["commit"]) == (True, [], COMMITS["old"])
    assert (missing["there"], missing["path"]) == (False, local["path"])
    spark.write("/srv/huggingface/local/mine/config.json", "{}")
    assert models(local)[0]["there"] is True
    # The lock file lists it by commit with a larger size; a shard that the index names is missing, too.
    locked = {"config.json": {"size": 9, "sha256": "f" * 64}, "README.md": {"size": 1, "sha256": "f" * 64}}
    shards = json.dumps({"weight_map": {"a": "model-1.safetensors"}})
    spark.write(f"/srv/huggingface/hub/models--Org--M/snapshots/{COMMITS['old']}/model.safetensors.index.json", shards)
    [cut] = models({**model, "revision": COMMITS["old"], "files": locked})
    assert cut["there"] is True
    assert cut["wrong"] == [
        "model-1.safetensors is missing",
        "README.md is missing",
        "config.json has 2 bytes instead of 9",
        "model.safetensors.index.json is not in the lock file",
    ]
    [gone] = models({**model, "revision": COMMITS["new"], "locked": COMMITS["new"], "files": locked})
    assert (gone["there"], gone["wrong"]) == (False, [])


def test_vocabularies_are_compared_by_their_checksum(spark: Spark, call: Call) -> None:
    spark.deploy()
    path, _content = vocabulary_of(spark)
    row = {"url": "https://example.org/o200k_base.tiktoken", "sha256": "x", "bytes": 7, "path": path}

    def compared() -> tuple[bool, list[str]]:
        [answer] = call(models=[row])["differences"]["models"]
        assert answer["is_vocabulary"] and answer["path"] == path
        return answer["there"], answer["wrong"]

    assert compared() == (True, [])
    spark.write(path, "IQ==")
    assert compared() == (True, ["its checksum is another"])
    (spark.root / path.lstrip("/")).unlink()
    assert compared() == (False, [])


# --- up to date -------------------------------------------------------------------------------------------------------


@pytest.fixture
def up_to_date(spark: Spark, call: Call, record: Call) -> Call:
    """Deploy and prove a host; returns a call that asks whether the host still matches its plan."""
    spark.deploy()
    header = json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    weights = spark.root / "srv/huggingface/hub/models--Org--M/snapshots" / COMMITS["old"] / "model.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header + b"abcd")
    assert record()["recorded"] is True
    planned = sent(merge([spark.host(), spark.service()]))

    def ask(**more: Any) -> dict[str, Any]:
        settings = {"verify": "changed"}
        return call(**{"document": planned, "models": [MODEL], "settings": settings, "controller": "me", **more})

    return ask


def test_a_host_without_a_vocabulary_is_not_up_to_date(spark: Spark, up_to_date: Callable[..., dict[str, Any]]) -> None:
    path, _content = vocabulary_of(spark)
    row = {"url": "https://example.org/o200k_base.tiktoken", "path": path}
    assert up_to_date(models=[MODEL, row])["up_to_date"] is True
    (spark.root / path.lstrip("/")).unlink()
    assert up_to_date(models=[MODEL, row])["why"] == [f"the vocabulary {path} is gone"]


def test_a_model_from_the_controller_is_compared_by_size_and_time(
    spark: Spark, up_to_date: Callable[..., dict[str, Any]]
) -> None:
    spark.write("/srv/huggingface/own/config.json", "{}")
    file = spark.root / "srv/huggingface/own/config.json"
    os.utime(file, (1000, 1000))
    copied = {"path": "/srv/huggingface/own", "copied": {"config.json": {"size": 2, "mtime": 1000}}}
    assert up_to_date(models=[MODEL, copied])["up_to_date"] is True
    verified = up_to_date(models=[MODEL, copied], settings={"verify": "all"})
    assert verified["why"] == ["/srv/huggingface/own needs a full read to compare it with the controller's"]
    wrong = ["/srv/huggingface/own: config.json not as on the controller"]
    os.utime(file, (1000, 1001))
    assert up_to_date(models=[MODEL, copied])["why"] == wrong
    spark.write("/srv/huggingface/own/config.json", "{} ")
    os.utime(file, (1000, 1000))
    assert up_to_date(models=[MODEL, copied])["why"] == wrong
    file.unlink()
    assert up_to_date(models=[MODEL, copied])["why"] == wrong
    file.symlink_to("/etc/hostname")
    assert up_to_date(models=[MODEL, copied])["why"] == wrong


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Any:
    """A server that answers."""
    return request.getfixturevalue("engine")


@pytest.fixture
def proved(
    spark: Spark, up_to_date: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Return the same call with the proof of a service; the receipt of the service has its own folder."""
    (tmp_path / "receipts").mkdir()
    monkeypatch.setattr(host_proof, "INTERVAL", 999.0)

    def ask(url: str, service: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        entry = {"name": "heavy", "url": url, "served_model_name": "heavy", "argv": ["docker"], **(service or {})}
        proof = {
            **{"services": [entry], "timeout": 2, "receipts_dir": str(tmp_path / "receipts"), "root": str(spark.root)},
            **{"run_dir": str(tmp_path / "run")},
        }
        return up_to_date(**{"proof": proof, **more})

    return ask


def receipts(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "receipts").iterdir())


def test_a_host_that_is_unchanged_is_proved_in_the_same_look(
    proved: Callable[..., dict[str, Any]], served: Any, tmp_path: Path
) -> None:
    answer = proved(served.url)
    assert (answer["up_to_date"], answer["proved"], answer["changed"]) == (True, True, True), answer
    assert answer["answers"]["heavy"]["ready"] is True and answer["receipts"]["heavy"]["receipt"]["service"] == "heavy"
    assert receipts(tmp_path) == ["heavy.json"] and "unproved" not in answer
    assert host_lock.lock_file().exists()
    # The receipts stay on the host and the action plugin removes them from the result, which is registered for each host.
    assert (
        len(json.dumps({name: value for name, value in answer.items() if name not in ("receipts", "invocation")}))
        < 2000
    )
    # Again: the second call does not count as another deployment.
    assert (proved(served.url)["proved"], proved(served.url)["changed"]) == (True, False)


def test_an_unchanged_host_measures_no_speed_and_keeps_the_measured_one(
    proved: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    engine = PacedEngine()
    try:
        assert proved(engine.url)["proved"] is True
        path = tmp_path / "receipts" / "heavy.json"
        receipt = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**receipt, "speed": {"line": "fine"}}), encoding="utf-8")
        answer = proved(engine.url)
    finally:
        engine.close()
    # Every request was one of the readiness checks, which are chats.
    assert answer["proved"] is True and engine.bodies and not any("prompt" in body for body in engine.bodies)
    assert "speed" not in receipt and json.loads(path.read_text(encoding="utf-8"))["speed"] == {"line": "fine"}


def test_what_is_not_settled_or_not_asked_for_is_not_proved(
    spark: Spark, proved: Callable[..., dict[str, Any]], served: Any, tmp_path: Path
) -> None:
    other = proved(served.url, document=sent(spark.service(env="A=2\n")))
    assert (other["up_to_date"], other["proved"]) == (False, False)
    assert proved(served.url, proof=None)["proved"] is False
    checked = proved(served.url, _ansible_check_mode=True)
    assert (checked["up_to_date"], checked["proved"]) == (True, False)
    assert served.requests == [] and receipts(tmp_path) == []


def test_who_does_not_answer_soon_is_left_to_the_whole_proof(
    proved: Callable[..., dict[str, Any]], closed_port: int, tmp_path: Path
) -> None:
    answer = proved(f"http://127.0.0.1:{closed_port}")
    assert "failed" not in answer and (answer["up_to_date"], answer["proved"]) == (True, False)
    assert "heavy at http://127.0.0.1" in answer["unproved"] and receipts(tmp_path) == []


def test_a_finding_that_is_an_error_leaves_no_receipt(
    proved: Callable[..., dict[str, Any]], served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Finding("fast_path.moe_backend", "error", "heavy runs another kernel.", "Do.")
    monkeypatch.setattr(host_proof.engines, "look", lambda *_args: ({}, {}, [wrong]))
    answer = proved(served.url)
    assert (answer["proved"], answer["unproved"]) == (False, "heavy runs another kernel.")
    assert receipts(tmp_path) == []


def test_a_tool_that_is_silent_is_no_failure_of_the_look(
    proved: Callable[..., dict[str, Any]], served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_args: Any) -> Any:
        raise NoAnswer("docker", "docker did not answer in 30 s")

    monkeypatch.setattr(host_proof.engines, "look", silent)
    answer = proved(served.url)
    assert "failed" not in answer and "docker did not answer in 30 s" in answer["unproved"]


def test_what_a_request_starts_is_not_started_by_a_look(
    spark: Spark, proved: Callable[..., dict[str, Any]], served: Any
) -> None:
    asleep = {"name": "cold", "unit": "spark-cold.service", "on_demand": {"set": None}}
    answer = proved(served.url, asleep)
    assert (answer["proved"], answer["unproved"]) == (False, "cold: requests start it")
    assert served.requests == []


def test_what_no_file_shows_is_asked_before_the_proof_and_leaves_it_out(
    spark: Spark, proved: Callable[..., dict[str, Any]], served: Any
) -> None:
    server = {"name": "hear", "settings": "/etc/dgxspark/speech/hear.json", "seconds": 5}
    assert proved(served.url, servers=[server])["proved"] is True
    served.requests.clear()
    for wrong, why in (
        ({"servers": [server]}, f"hear: {compare_programs.HELPER} does not work"),
        ({"images": [["dgxspark/ray:1"]]}, "the image dgxspark/ray:1 is not there"),
        (
            {"network": {"file": {"path": "/etc/netplan/40-cx7.yaml", "sha256": "0"}}},
            "/etc/netplan/40-cx7.yaml is not as it has to be",
        ),
    ):
        spark.refuse = {compare_programs.HELPER} if "servers" in wrong else set()
        answer = proved(served.url, **wrong)
        assert (answer["up_to_date"], answer["proved"], len(answer["why"])) == (False, False, 1), answer
        assert answer["why"] == [why] and served.requests == []


def test_a_proof_that_makes_no_sense_is_refused(up_to_date: Callable[..., dict[str, Any]]) -> None:
    assert "services" in up_to_date(proof={"timeout": 3})["msg"]


def test_a_host_that_was_proved_as_what_is_wanted_is_unchanged(
    spark: Spark, up_to_date: Callable[..., dict[str, Any]]
) -> None:
    before = spark.files()
    answer = up_to_date()
    assert (answer["up_to_date"], answer["why"], answer["changed"]) == (True, [], False)
    assert not [call for call in spark.calls if call[:2] in (["systemctl", "restart"], ["docker", "tag"])]
    after = spark.files()
    assert {path: after[path] for path in before} == before


FIREWALL = "/etc/dgxspark/firewall.nft"


def firewall(spark: Spark, ports: str = "@host:port_range@") -> HostState:
    """The document of the firewall: its table closes the ephemeral ports, and the kernel must still have the loaded table."""
    file = {"content": f"set ranges {{ elements = {{ {ports}, 29500-29599 }} }}", "fill": ["port_range"]}
    unit = {"name": "spark-firewall.service", "prints": list(TABLE), "printed": spark.at("/var/lib/dgxspark/firewall")}
    return spark.document("firewall", {FIREWALL: file}, [unit])


@pytest.fixture
def closed(spark: Spark, record: Call, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], HostState]:
    """A host with a firewall, and a function that sets the ephemeral ports of its kernel."""
    ports = spark.root / "proc_ports"
    monkeypatch.setattr(deploy_fill, "PORT_RANGE", ports)

    def kernel(text: str) -> HostState:
        ports.write_text(text, encoding="ascii")
        return merge([spark.host(), spark.service(), firewall(spark)])

    spark.table = "table inet dgxspark {\n}\n"
    spark.apply(kernel("32768\t60999\n"))
    spark.weights("old")
    spark.receipt()
    assert record()["recorded"] is True
    return kernel


@pytest.mark.parametrize(
    "table", ["table inet dgxspark {\n}\n", "table inet dgxspark {\n\tchain input {\n\t}\n}\n", None]
)
def test_a_firewall_that_somebody_changed_is_something_to_apply(
    spark: Spark, call: Call, closed: Callable[[str], HostState], table: str | None
) -> None:
    is_same, spark.table = table == spark.table, table
    answer = call(document=sent(closed("32768\t60999\n")))
    assert answer["up_to_date"] is is_same
    assert answer["why"] == ([] if is_same else ["restarts spark-firewall.service"])


@pytest.mark.parametrize("ports", ["32768\t60999\n", "10000\t60999\n", "2768\t60999\n"])
def test_ephemeral_ports_that_somebody_changed_are_something_to_apply(
    spark: Spark, call: Call, closed: Callable[[str], HostState], ports: str
) -> None:
    document = sent(closed(ports))
    answer = call(document=document)
    is_same = ports.startswith("32768")
    assert answer["up_to_date"] is is_same and answer["differences"]["changed"] == [spark.at(FIREWALL)] * (not is_same)
    # Tags that do not deploy the firewall leave it alone.
    assert call(document=document, parts=["host"])["why"] == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"gather": {"gather": ["host"]}}, "kernel, driver or DGX OS are others"),
        ({"models": [{**MODEL, "revision": "other"}]}, "Org/M@other is not whole"),
        ({"models": [{**MODEL, "repo": "Org/More"}]}, "Org/More@main is not whole"),
        ({"models": [{**MODEL, "link": "snapshots/Org--M@main"}]}, "does not lead to Org/M@main"),
        (
            {"models": [{**MODEL, "files": {"config.json": {"size": 2, "sha256": "0" * 64}}}]},
            "config.json has the sha256 44136fa355b3",
        ),
        (
            {"bundled": [{"repo": "Org/M", "commit": COMMITS["new"], "revisions": [], "files": {"a": {"size": 1}}}]},
            "Org/M: a",
        ),
        ({"images": [["dgxspark/ray:1", "sha256:0"]]}, "the image dgxspark/ray:1 is not there"),
        (
            {"network": {"file": {"path": "/etc/dgxspark/none", "sha256": "0"}}},
            "/etc/dgxspark/none is not as it has to be",
        ),
        (
            {"facts_checksum": "0", "gather": {"gather": ["host"]}},
            "facts of the host differ from the plan",
        ),
    ],
)
def test_another_wish_is_something_to_apply(up_to_date: Call, more: dict[str, Any], why: str) -> None:
    answer = up_to_date(**more)
    assert answer["up_to_date"] is False and any(why in text for text in answer["why"]), answer


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"env": "A=2\n"}, "writes ENV"),
        ({"secret": "key-2"}, "writes KEY"),
        (
            {"files": {"/etc/dgxspark/files/heavy/template.jinja": "{{ x }}"}},
            "writes DIR/files/heavy, DIR/files/heavy/template.jinja",
        ),
        ({"enabled": False}, "disables spark-heavy.service"),
        ({"state": "stopped"}, "stops spark-heavy.service"),
        ({"outdated": True}, "restarts spark-heavy.service"),
    ],
)
def test_another_document_is_something_to_apply(
    spark: Spark, up_to_date: Call, change: dict[str, Any], why: str
) -> None:
    before = spark.files()
    answer = up_to_date(document=sent(merge([spark.host(), spark.service(**change)])))
    names = {"ENV": spark.at(ENV), "KEY": spark.at(KEY), "DIR": spark.at("/etc/dgxspark")}
    for name, path in names.items():
        why = why.replace(name, path)
    assert why in answer["why"] and spark.files() == before


def test_rows_that_the_document_no_longer_has_are_something_to_apply(spark: Spark, up_to_date: Call) -> None:
    answer = up_to_date(document=sent(spark.host()))
    assert answer["up_to_date"] is False and "stops spark-heavy.service" in answer["why"]
    assert spark.at(ENV) in answer["differences"]["removed"]
    # They belong to a part that this run does not deploy.
    assert up_to_date(document=sent(spark.host()), parts=["host"])["why"] == []


def spoil_file(spark: Spark) -> None:
    spark.write(ENV, "A=3\n", 0o600)


def spoil_mode(spark: Spark) -> None:
    (spark.root / ENV.lstrip("/")).chmod(0o644)


def spoil_key_mode(spark: Spark) -> None:
    (spark.root / KEY.lstrip("/")).chmod(0o644)


def spoil_folder(spark: Spark) -> None:
    (spark.root / "etc/dgxspark/secrets/heavy").chmod(0o777)


def spoil_gone(spark: Spark) -> None:
    (spark.root / "usr/local/libexec/dgxspark/spark_unit.py").unlink()


def spoil_link(spark: Spark) -> None:
    place = spark.root / ENV.lstrip("/")
    place.rename(place.with_name("other"))
    place.symlink_to(place.with_name("other"))


def spoil_obstacle(spark: Spark) -> None:
    place = spark.root / ENV.lstrip("/")
    place.unlink()
    place.mkdir()


def spoil_failed(spark: Spark) -> None:
    spark.active["spark-heavy.service"] = "failed"


def spoil_starting(spark: Spark) -> None:
    spark.active["spark-heavy.service"] = "activating"


def spoil_disabled(spark: Spark) -> None:
    spark.enabled.clear()


def spoil_image(spark: Spark) -> None:
    spark.images[NEW] |= {f"repo/engine@{OLD}"}
    del spark.images[OLD]


def spoil_commit(spark: Spark) -> None:
    spark.weights("new")


def spoil_weights(spark: Spark) -> None:
    weights = spark.root / "srv/huggingface/hub/models--Org--M/snapshots" / COMMITS["old"] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def spoil_name(spark: Spark) -> None:
    spark.images[OLD].discard(engine.tag_of(OLD))


def spoil_restoring(spark: Spark) -> None:
    place = spark.root / engine.FOLDER.lstrip("/") / "current.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "restoring": 1}))


SPOILED = [
    (spoil_file, "writes ", True),
    (spoil_mode, "sets owner and mode of ", True),
    (spoil_key_mode, "sets owner and mode of ", True),
    (spoil_folder, "sets owner and mode of ", True),
    (spoil_gone, "spark_unit.py", False),
    (spoil_link, "writes ", True),
    (spoil_obstacle, "is a folder, a file belongs there", True),
    (spoil_failed, "starts spark-heavy.service", True),
    (spoil_starting, "spark-heavy.service is activating", True),
    (spoil_disabled, "enables spark-heavy.service", True),
    (spoil_image, "differs from generation 1", True),
    (spoil_commit, "Org/M@main is another commit", True),
    (spoil_weights, "in its header", True),
    (spoil_name, "has no name", True),
    (spoil_restoring, "generation 1 is not proven", False),
]


@pytest.mark.parametrize(("spoil", "why", "of_service"), SPOILED)
def test_another_state_is_something_to_apply(
    spark: Spark, up_to_date: Call, spoil: Callable[[Spark], None], why: str, of_service: bool
) -> None:
    spoil(spark)
    answer = up_to_date()
    assert answer["up_to_date"] is False and any(why in text for text in answer["why"]), answer["why"]
    # A run with tags ignores differences of the parts that it does not deploy.
    of_parts = up_to_date(document=sent(spark.host()), models=[], parts=["host"])
    assert of_parts["up_to_date"] is of_service, of_parts["why"]


def test_a_document_that_is_none_is_refused(up_to_date: Call) -> None:
    assert "document: /a has neither content nor source" in up_to_date(document={"files": [{"path": "/a"}]})["msg"]
    assert "document: files: unknown keys pth" in up_to_date(document={"files": [{"pth": "/a"}]})["msg"]


def test_a_generated_key_has_to_exist_whatever_it_is(spark: Spark, call: Call, record: Call) -> None:
    key = spark.document(
        "gateway", {"/etc/dgxspark/secrets/gateway/master": {"generate": 32, "secret": True, "mode": "0600"}}
    )
    document = merge([spark.host(), key])
    spark.apply(document)
    record()
    assert call(document=sent(document))["why"] == [] == call()["why"]
    path = spark.root / "etc/dgxspark/secrets/gateway/master"
    path.unlink()
    assert call(document=sent(document))["differences"]["missing"] == [str(path)] == call()["differences"]["missing"]


def test_a_stranger_is_named_and_is_nothing_to_apply(spark: Spark, up_to_date: Call) -> None:
    spark.write("/etc/dgxspark/services/other.json", "{}")
    spark.write(f"{UNIT_PATH}.d/override.conf", "[Service]\n")
    answer = up_to_date()
    assert answer["up_to_date"] is True
    assert answer["differences"]["added"] == [
        spark.at("/etc/dgxspark/services/other.json"),
        spark.at(f"{UNIT_PATH}.d/override.conf"),
    ]


def test_an_engine_that_began_before_a_repair_or_before_its_files_is_not_settled(
    spark: Spark, up_to_date: Call
) -> None:
    now = time.time()
    assert up_to_date()["up_to_date"] is True
    mark = file_sums.repair_stamp(spark.root / file_sums.SUMS_DIR.lstrip("/"), "Org/M")
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    os.utime(mark, (now - 1000,) * 2)
    assert up_to_date()["up_to_date"] is True
    spark.began["spark-heavy.service"] -= 100
    os.utime(mark, (now - 50,) * 2)
    assert "spark-heavy.service runs with a file of Org/M that was damaged" in up_to_date()["why"]
    mark.unlink()
    assert up_to_date()["why"] == ["restarts spark-heavy.service"]
    spark.began["spark-heavy.service"] += 100
    assert up_to_date()["up_to_date"] is True
    # A modification time in the future is ignored; it would restart the engine in every run.
    os.utime(spark.root / ENV.lstrip("/"), (now + 36000,) * 2)
    assert up_to_date()["up_to_date"] is True


def test_kernel_and_driver_are_compared_by_whoever_proves(
    spark: Spark, up_to_date: Call, record: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"kernel": "6.17"}
    record(facts=facts)
    monkeypatch.setattr(
        compare.host_report, "report_host", lambda *_args: {"spark": facts, "images": {}, "unknown": {}}
    )
    gather = {"gather": ["host"]}
    answer = up_to_date(gather=gather)
    assert answer["up_to_date"] is True and answer["spark"] == facts
    facts["kernel"] = "6.18"
    assert up_to_date(gather=gather)["why"] == ["kernel, driver or DGX OS are others than at the last proof"]
    parts = ["service", "host"]
    assert up_to_date(gather=gather, parts=parts)["why"] == []
    assert up_to_date(gather=gather, parts=[*parts, "prove"])["up_to_date"] is False
    checksum = compare.compare.stable_facts.stable_checksum(facts, {})
    assert up_to_date(gather=gather, parts=parts, facts_checksum=checksum)["why"] == []
    assert up_to_date(gather=gather, parts=parts, facts_checksum="other")["up_to_date"] is False


def test_what_was_never_proved_or_recorded_is_not_settled(spark: Spark, call: Call, record: Call) -> None:
    spark.deploy()
    document = sent(merge([spark.host(), spark.service()]))
    assert call(document=document)["why"] == ["nothing was recorded yet"]
    record(proven=False)
    assert call(document=document)["why"] == ["generation 1 is not proven"]
    record()
    assert call(document=document)["why"] == []
    # Deployed by a run that ended before it recorded the generation.
    spark.apply(spark.host(), spark.service(env="A=2\n"))
    repeated = call(document=sent(merge([spark.host(), spark.service(env="A=2\n")])))
    assert repeated["why"] == ["more was deployed than generation 1, and is not recorded"]


def test_programs_without_an_answer_are_reasons(
    spark: Spark, up_to_date: Call, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = spark.__call__
    for program in ("docker", "systemctl"):

        def silent(argv: list[str], program: str = program, **_options: Any) -> tuple[int, str, str]:
            if argv[0] == program:
                raise NoAnswer(program, f"{program} did not answer in 30 s")
            return played(argv)

        play(monkeypatch, silent)
        answer = up_to_date()
        assert answer["up_to_date"] is False and "failed" not in answer
        assert any(f"{program} did not answer in 30 s" in text for text in answer["why"])
        assert any(f"{program} did not answer" in text for text in call()["unanswered"])
    play(monkeypatch, lambda argv, **_options: (1, "[]", "Cannot connect") if argv[0] == "docker" else played(argv))
    assert "Docker does not say which images run: docker failed: Cannot connect" in up_to_date()["why"]


# --- deployed states --------------------------------------------------------------------------------------------------


def test_a_host_without_a_generation_has_nothing_to_compare(spark: Spark, call: Call) -> None:
    answer = call()
    assert (answer["recorded"], answer["changed"]) == (None, False)
    spark.deploy()
    answer = call()
    assert answer["recorded"] is None
    assert not any(answer["differences"][kind] for kind in ("changed", "missing", "added", "attributes"))
    assert answer["units"] == {"spark-heavy.service": {"enabled": True, "active": "active"}}


def test_what_is_different_is_named_and_nothing_of_it_shown_or_written(spark: Spark, call: Call, record: Call) -> None:
    template = "/etc/dgxspark/files/heavy/template.jinja"
    spark.deploy(secret="first-secret", files={template: "{{ old }}"})
    record(wanted="w")
    assert call()["up_to_date"] is True
    spark.write(KEY, "second-secret", 0o600)
    spark.write(ENV, "A=1\n", 0o644)
    spark.write(f"{UNIT_PATH}.d/override.conf", "[Service]\nEnvironment=TOKEN=third-secret\n")
    (spark.root / template.lstrip("/")).unlink()
    spark.write("/srv/huggingface/hub/models--Org--M/refs/main", COMMITS["new"])
    spark.enabled.clear()
    before = spark.files()
    answer = call()
    differences = answer["differences"]
    assert answer["changed"] is False and answer["up_to_date"] is False
    assert {kind: differences[kind] for kind in ("changed", "missing", "added", "attributes")} == {
        "changed": [spark.at(KEY)],
        "missing": [spark.at(template)],
        "added": [spark.at(f"{UNIT_PATH}.d/override.conf")],
        "attributes": [spark.at(ENV)],
    }
    assert differences["moved"] == {
        "heavy": {"repo": "Org/M", "revision": "main", "was": COMMITS["old"], "is": COMMITS["new"]}
    }
    assert answer["units"]["spark-heavy.service"]["enabled"] is False
    recorded = answer["recorded"]
    assert recorded["units"]["spark-heavy.service"]["enabled"] is True
    assert (recorded["number"], recorded["wanted"], recorded["proven"]) == (1, "w", True)
    assert recorded["images"]["spark-heavy.service"]["id"] == OLD and set(recorded["checksums"]) == {"host", "service"}
    assert answer["launches"] == {"heavy": {"model": {"repo": "Org/M", "revision": "main"}}}
    assert 'secret"' not in json.dumps(answer) and "third-secret" not in json.dumps(answer)
    assert spark.files() == before
    assert not [argv for argv in spark.calls if argv[1] not in ("show", "image")]


def test_a_key_that_is_another_than_at_the_last_record_is_named(spark: Spark, call: Call, record: Call) -> None:
    spark.deploy()
    record()
    spark.deploy(secret="key-2")
    assert call()["differences"]["changed"] == [spark.at(KEY)]
    assert "key files differ from the current generation" in call()["why"]
    record()
    assert call()["why"] == []
