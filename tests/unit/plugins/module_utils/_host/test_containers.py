# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits of containers on their host, options that loosen them, and packages that are installed with their sums."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import clustering
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.docker_run import (
    DockerRun,
    read_docker_run,
    read_options,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import containers
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import service_files
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError

ROOT = Path(__file__).resolve().parents[5]
HOME = "/root/.cache/huggingface"
RECIPE = yaml.safe_load((ROOT / "playbooks/recipes/qwen3-4b-instruct-2507.yml").read_text(encoding="utf-8"))
HASHED = f"arctic-inference==0.1.1 --hash=sha256:{'a' * 64}"


def planned(addons: dict[str, Any] | None = None, **service: Any) -> dict[str, Any]:
    """The plan of a host with one service."""
    variables = {"spark_services": [{"name": "m", "recipe": RECIPE["name"], "port": 8001, **service}], **(addons or {})}
    arguments = {"h": {"vars": variables, "address": "192.168.1.11"}}
    made: dict[str, Any] = engine.make_plan(arguments, {RECIPE["name"]: RECIPE}, digest=lambda _path: "0" * 64)
    return made


def engine_of(**service: Any) -> dict[str, Any]:
    services: dict[str, Any] = planned(**service)["hosts"]["h"]["services"][0]
    return services


def installed(service: dict[str, Any]) -> list[str]:
    """The commands that are run before the engine."""
    shell = next(word for word in service["command"] if word.startswith("pip install"))
    return shell.split(" && ")[:-1]


def findings_of_rule(made: dict[str, Any], rule: str) -> list[dict[str, Any]]:
    return [finding for finding in engine.plan_findings(made) if finding["rule"] == rule]


def run_of(argv: list[str]) -> DockerRun:
    run = read_docker_run(argv)
    assert run is not None
    return run


def is_restricted(run: DockerRun, capabilities: tuple[str, ...] = ()) -> bool:
    limits = [int(value) for value in run.values("--pids-limit")]
    return (
        run.values("--cap-drop") == ["ALL"]
        and run.values("--cap-add") == list(capabilities)
        and run.values("--security-opt") == ["no-new-privileges"]
        and "core=0" in run.values("--ulimit")
        and len(limits) == 1
        and limits[0] > 0
    )


def test_an_engine_has_no_capability_and_cannot_write_its_weights() -> None:
    service = engine_of()
    run = run_of(service["argv"])
    assert is_restricted(run)
    assert f"/srv/huggingface:{HOME}:ro" in run.values("--volume")
    assert "/var/cache/dgxspark/m:/root/.cache/dgxspark" in run.values("--volume")


def test_what_libraries_write_below_hf_home_goes_to_the_cache() -> None:
    env = engine_of()["env"]
    for name in ("HF_MODULES_CACHE", "HF_ASSETS_CACHE", "HF_XET_CACHE"):
        assert env[name].startswith("/root/.cache/dgxspark/"), name
    assert env["HF_HOME"] == HOME


def test_a_low_port_takes_the_one_capability_that_it_needs() -> None:
    assert is_restricted(run_of(engine_of(port=443)["argv"]), ("NET_BIND_SERVICE",))
    assert not findings_of_rule(planned(port=443, docker_args=["--cap-add", "NET_BIND_SERVICE"]), "container.weaker")


def test_every_container_of_the_collection_is_restricted() -> None:
    beside = {
        "spark_speech": [{"name": "asr", "kind": "asr"}, {"name": "tts", "kind": "tts"}],
        "spark_ollama": {"models": ["qwen3:8b"]},
        "spark_gateway": {"aliases": {"m": {"backends": ["h/m"]}}},
        "spark_clients": {"open_webui": {"listen": "127.0.0.1"}},
    }
    made = planned(beside)["addons"]["h"]
    runs = [server["argv"] for server in made["speech"]["services"]]
    runs += [made["ollama"]["argv"], made["clients"]["open_webui"]["argv"]]
    assert all(is_restricted(run_of(argv)) for argv in runs)
    probe = containers.image_question("sha256:1", "p", "pass", 5)
    assert is_restricted(run_of(probe[probe.index("docker") :]))
    fetch = snapshots.fetch_argv("c", "i", "/srv/hf", {"repo": "a/b"}, None)
    # It alone writes weights, into a folder that may be a person's.
    assert is_restricted(run_of(fetch), containers.OWNERS_FILES)
    assert is_restricted(read_options(containers.restricted_server(4000))[0])
    for path in ("gateway/templates/spark-gateway.service.j2", "monitoring/templates/spark-grafana.service.j2"):
        assert "_port | restricted_container" in (ROOT / "roles" / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--privileged"], "--privileged in docker_args"),
        (["--cap-add", "SYS_ADMIN"], "--cap-add SYS_ADMIN in"),
        (["--cap-add=CAP_SYS_PTRACE"], "--cap-add CAP_SYS_PTRACE in"),
        (["--security-opt", "seccomp=unconfined"], "seccomp=unconfined in"),
        (["--security-opt", "apparmor:unconfined"], "apparmor:unconfined in"),
        (["--security-opt", "no-new-privileges:false"], "no-new-privileges:false in"),
        (["--pids-limit", "-1"], "--pids-limit -1 in"),
        (["--pid", "host"], "--pid host in"),
        (["--ulimit", "core=-1"], "--ulimit core=-1 in"),
        (["--ulimit=core=0:1000000"], "--ulimit core=0:1000000 in"),
        (["-v", "/var/run/docker.sock:/var/run/docker.sock:ro"], "a mount of /var/run/docker.sock at"),
        (["-v", f"/srv/huggingface:{HOME}"], f"a mount of /srv/huggingface at {HOME}, writable"),
        (["--mount", "type=bind,src=/etc,dst=/host/etc"], "a mount of /etc at /host/etc, writable"),
        (["-v", "/var/lib/dgxspark/receipts:/r"], "a mount of /var/lib/dgxspark/receipts at /r, writable"),
    ],
)
def test_what_gives_a_container_more_is_said(words: list[str], message: str) -> None:
    made = planned(docker_args=words)
    result = findings_of_rule(made, "container.weaker")
    assert len(result) == 1 and result[0]["severity"] == "warning"
    assert message in result[0]["message"]
    assert not findings_of_rule(planned(docker_args=words, ignore=["container.weaker"]), "container.weaker")
    # The option still counts behind the removed ones: docker uses the last value.
    argv = made["hosts"]["h"]["services"][0]["argv"]
    assert argv.index("--cap-drop") < argv.index(words[0])


@pytest.mark.parametrize(
    "words",
    [
        ["--init"],
        ["--privileged=false"],
        ["--security-opt", "seccomp=/etc/docker/seccomp.json"],
        ["--pids-limit", "4096"],
        ["--ulimit", "core=0:0"],
        ["--ulimit", "nofile=1048576:1048576"],
        ["-v", "/data/adapters:/adapters"],
        ["-v", "/etc/localtime:/etc/localtime:ro"],
        ["--mount", "type=bind,src=/etc/ssl,dst=/etc/ssl,readonly"],
    ],
)
def test_what_gives_it_nothing_is_let_be(words: list[str]) -> None:
    assert not findings_of_rule(planned(docker_args=words), "container.weaker")


def test_a_folder_of_ones_own_at_the_same_place_takes_the_place_of_ours() -> None:
    run = run_of(engine_of(docker_args=["-v", f"/data/hf:{HOME}:ro"])["argv"])
    assert [value for value in run.values("--volume") if f":{HOME}" in value] == [f"/data/hf:{HOME}:ro"]


@pytest.mark.parametrize(
    "service",
    [
        {"docker_args": ["-v", f"/data/x:{HOME}/hub/x"]},
        {"files": [{"source": "/data/parser.py", "path": f"{HOME}/parser.py"}]},
    ],
)
def test_a_mount_below_the_weights_is_refused_since_docker_could_not_make_its_place(service: dict[str, Any]) -> None:
    result = findings_of_rule(planned(**service), "container.mount")
    assert [finding["severity"] for finding in result] == ["error"]
    assert HOME in result[0]["message"]


@pytest.mark.parametrize(
    ("service", "severity"),
    [({"args": {"download-dir": f"{HOME}/hub"}}, "error"), ({"env": {"HF_HUB_OFFLINE": 0}}, "warning")],
)
def test_what_would_write_weights_is_told(service: dict[str, Any], severity: str) -> None:
    assert [finding["severity"] for finding in findings_of_rule(planned(**service), "container.read_only")] == [
        severity
    ]
    args = ["-v", f"/data/hf:{HOME}"]
    assert not findings_of_rule(planned(docker_args=args, **service), "container.read_only")


def test_options_of_what_stands_around_are_looked_at_too() -> None:
    beside = {
        "spark_speech": [{"name": "asr", "kind": "asr", "docker_args": ["--privileged"], "volumes": ["/etc:/host"]}],
        "spark_ollama": {"docker_args": ["--cap-add", "SYS_ADMIN"]},
    }
    result = findings_of_rule(planned(beside), "container.weaker")
    assert [finding["service"] for finding in result] == ["asr", "asr", "ollama"]


# --- packages


def test_packages_with_sums_are_installed_from_a_file_that_pip_checks() -> None:
    service = engine_of(pip=[HASHED])
    listed = next(file for file in service["files"] if file["path"] == service_files.REQUIREMENTS)
    assert listed["content"] == f"{HASHED}\n"
    assert [
        command.endswith(f" --require-hashes --requirement {service_files.REQUIREMENTS}")
        for command in installed(service)
    ] == [True]
    assert "--hash" not in " ".join(service["argv"])
    assert not findings_of_rule(planned(pip=[HASHED]), "pip.unhashed")
    other = engine_of(pip=[HASHED.replace("a" * 64, "b" * 64)])
    assert other["fingerprint"] != service["fingerprint"]


def test_packages_without_sums_are_warned_of_and_installed_apart() -> None:
    result = findings_of_rule(planned(pip=[HASHED, "vllm[audio]"]), "pip.unhashed")
    assert [(finding["severity"], finding["message"].partition(" ")[0]) for finding in result] == [
        ("warning", "vllm[audio]")
    ]
    first, second = installed(engine_of(pip=[HASHED, "vllm[audio]"]))
    assert "--require-hashes" in first and second.endswith("'vllm[audio]'")


@pytest.mark.parametrize(
    "entry", ["a==1 --hash=sha256:abc", "a --hash=sha256:" + "a" * 64, HASHED + "; rm -rf /", "a==1 --pre"]
)
def test_what_is_no_requirement_is_refused(entry: str) -> None:
    with pytest.raises(InventoryError, match=r"'pip\[0\]' is"):
        planned(pip=[entry])


def test_no_recipe_installs_what_nobody_has_compared() -> None:
    for path in sorted((ROOT / "playbooks/recipes").glob("*.yml")):
        text = path.read_text(encoding="utf-8")
        recipe = yaml.safe_load(text)
        layers = [recipe, *recipe.get("images", ()), *(recipe.get("variants") or {}).values()]
        entries = [entry for layer in layers if isinstance(layer, dict) for entry in layer.get("pip") or []]
        assert all("--hash=sha256:" in entry for entry in entries), path.name


@pytest.mark.parametrize(
    "path", [f"roles/ray/files/ray-{clustering.RAY_VERSION}.txt", "roles/clients/files/hermes-0.19.0.txt"]
)
def test_lists_name_every_package_with_sums(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8").replace(" \\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) > 10
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==[\w.+!-]+(?: ; [^\"$`\\]+?)?(?: +--hash=sha256:[0-9a-f]{64})+", line), line


@pytest.mark.parametrize(
    "words",
    [
        ["--network=bridge", "--publish", "8001:8001"],
        ["--net", "bridge"],
        ["-p", "127.0.0.1:8001:8001"],
        ["-P"],
        ["--network", "none"],
        ["--network", "container:other"],
    ],
)
def test_a_network_of_its_own_and_published_ports_are_told(words: list[str]) -> None:
    (finding,) = findings_of_rule(planned(docker_args=words), "container.network")
    assert finding["severity"] == "warning" and "ufw does not see a published port" in finding["message"]
    assert not findings_of_rule(planned(docker_args=words, ignore=["container.network"]), "container.network")


def test_the_network_of_the_host_is_as_it_should_be() -> None:
    assert not findings_of_rule(planned(docker_args=["--network", "host"]), "container.network")
    assert not findings_of_rule(planned(), "container.network")
