"""Hand-made containers: which are recognised, the service entry made for them, and their replacement by a service."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import redaction
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import adopt, unmanaged
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import container_launch
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.importer import import_launch

IMAGE: dict[str, Any] = {"Config": {"Env": ["PATH=/bin", "VLLM_VERSION=0.24.0"], "Entrypoint": ["vllm", "serve"]}}


def container(*command: str, **changes: Any) -> dict[str, Any]:
    config = {
        "Image": "vllm/vllm-openai:v0.24.0-ubuntu2404",
        "Env": ["PATH=/bin", "VLLM_VERSION=0.24.0", "HF_TOKEN=hf_secret", "VLLM_LOGGING_LEVEL=DEBUG"],
        "Entrypoint": ["vllm", "serve"],
        "Cmd": list(command),
        **changes,
    }
    return {
        "Name": "/mine",
        "Image": "sha256:1",
        "Config": config,
        "State": {"Running": True},
        "HostConfig": {
            "NetworkMode": "bridge",
            "IpcMode": "host",
            "PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": "8001"}]},
            "Binds": ["/data/hf:/root/.cache/huggingface"],
        },
    }


BOX = container("Qwen/Qwen3-4B-Instruct-2507", "--max-model-len", "32768", "--served-model-name", "qwen")


def service(**changes: Any) -> dict[str, Any]:
    return {
        "name": "fast",
        "port": 8002,
        "model": {"repo": "Qwen/Qwen3-4B-Instruct-2507", "path": None},
        "served_model_name": "fast",
        "image": {"ref": "vllm/vllm-openai:v0.24.0-ubuntu2404"},
        "args": {"max-model-len": 16384, "gpu-memory-utilization": 0.1},
        "settings": {"memory_gib": 12.0},
        "container": "spark-fast",
        "unit": "spark-fast.service",
        "cluster": None,
        **changes,
    }


def read(box: dict[str, Any]) -> dict[str, Any]:
    imported: dict[str, Any] = import_launch(shlex.join(container_launch.launch_of(box, IMAGE)), form="docker")[
        "service"
    ]
    return imported


def test_a_container_is_read_as_the_command_that_it_came_from() -> None:
    argv = container_launch.launch_of(BOX, IMAGE)
    text = " ".join(argv)
    assert "-p 8001:8000" in text and "--ipc host" in text and "-v /data/hf:/root/.cache/huggingface" in text
    assert "VLLM_LOGGING_LEVEL=DEBUG" in text
    assert "hf_secret" not in text and "PATH" not in text and "VLLM_VERSION" not in text
    assert argv[-5:] == ["Qwen/Qwen3-4B-Instruct-2507", "--max-model-len", "32768", "--served-model-name", "qwen"]


def test_the_importer_makes_a_service_of_it() -> None:
    imported = read(BOX)
    assert imported["model"]["repo"] == "Qwen/Qwen3-4B-Instruct-2507" and imported["port"] == 8001
    assert imported["served_model_name"] == "qwen" and imported["args"]["max-model-len"] == 32768


@pytest.mark.parametrize(
    ("box", "engine"),
    [
        (BOX, True),
        (container("python3", "-m", "vllm.entrypoints.openai.api_server", Entrypoint=[]), True),
        (container("-c", "vllm serve x --port 1", Entrypoint=["bash"]), True),
        (container("postgres", Entrypoint=["docker-entrypoint.sh"]), False),
        (container("vllm-metrics", Entrypoint=[]), False),
    ],
)
def test_only_servers_of_vllm_are_recognised(box: dict[str, Any], engine: bool) -> None:
    assert unmanaged.is_engine(box) is engine


def test_our_own_and_what_does_not_run_is_not_foreign() -> None:
    assert unmanaged.is_unmanaged(BOX) is True
    assert unmanaged.is_unmanaged(container(Labels={"dgxspark.managed": "true"})) is False
    assert unmanaged.is_unmanaged({**BOX, "State": {"Running": False}}) is False


def test_the_unit_that_runs_a_container() -> None:
    units = {
        "mine.service": "[Service]\nExecStart=/usr/bin/docker run --name mine img\n",
        "other.service": "[Service]\nExecStart=/usr/bin/docker run --name mine-too img\n",
        "note.service": "[Service]\n# docker mine\nExecStart=/bin/true\n",
    }
    assert unmanaged.owner_of(BOX, units) == "mine.service"
    assert unmanaged.owner_of(BOX, {**units, "twice.service": units["mine.service"]}) == ""


def pairs(
    box: dict[str, Any], *services: dict[str, Any], available: float | None = 50.0, **launch: Any
) -> list[dict[str, Any]]:
    name = box["Name"].lstrip("/")
    described = {"name": name, "container": name, "unit": "", "removed": False, **launch}
    return adopt.pairs(list(services), [described], {name: read(box)}, available)


def test_the_same_model_on_another_port_is_replaced_beside_it() -> None:
    (imported,) = pairs(BOX, service())
    assert (imported["service"], imported["by"], imported["way"], imported["refused"]) == (
        "fast",
        "model",
        "beside",
        "",
    )
    assert (
        "port: 8001 -> 8002" in imported["differences"] and "--max-model-len: 32768 -> 16384" in imported["differences"]
    )
    assert "served as: qwen -> fast" in imported["differences"]


@pytest.mark.parametrize(
    ("planned_service", "available", "why"),
    [
        (service(port=8001), 50.0, "both want port 8001"),
        (service(), 5.0, "12.0 GiB are needed, 5.0"),
        (service(), None, "unknown"),
    ],
)
def test_else_instead_of_it(planned_service: dict[str, Any], available: float | None, why: str) -> None:
    (imported,) = pairs(BOX, planned_service, available=available)
    assert imported["way"] == "instead" and why in imported["why"]


def test_the_same_model_goes_before_the_same_port() -> None:
    other = service(name="heavy", port=8001, model={"repo": "Org/Other", "path": None})
    assert pairs(BOX, other, service())[0]["service"] == "fast"
    (imported,) = pairs(BOX, other)
    assert (imported["service"], imported["by"]) == ("heavy", "port")
    assert "model: Qwen/Qwen3-4B-Instruct-2507 -> Org/Other" in imported["differences"]


def test_what_nobody_wants_is_left_alone_and_said() -> None:
    other = service(model={"repo": "Org/Other", "path": None})
    assert pairs(BOX, other) == []
    assert pairs(BOX, service(cluster={"name": "pair"})) == []
    text = adopt.lines_of([], [{"name": "mine", "container": "mine"}])
    assert text == ["mine: left alone: no service of this host has its model or its port"]


@pytest.mark.parametrize(
    ("launch", "changes", "reason"),
    [
        ({"removed": True}, {}, "started with --rm"),
        ({"removed": True, "unit": "mine.service"}, {}, ""),
        ({}, {"container": "mine"}, "docker rename mine"),
        ({"unit": "spark-fast.service"}, {}, "its unit has the name"),
        ({"alone": "no unit runs it"}, {}, "no unit runs it"),
        ({}, {"state": "stopped"}, "the inventory has it stopped"),
        ({}, {"state": "stopped", "exclusive": "large"}, "of its exclusive set large another service should run"),
        ({}, {"state": "started", "exclusive": "large"}, ""),
    ],
)
def test_what_could_not_be_brought_back_is_not_touched(
    launch: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    (imported,) = pairs(BOX, service(**changes), **launch)
    assert (reason in imported["refused"]) if reason else imported["refused"] == ""


@pytest.mark.parametrize(
    ("words", "imported"),
    [
        (["/opt/bin/python3", "/opt/bin/vllm", "serve", "M"], ["vllm", "serve", "M"]),
        (["vllm", "serve", "M"], ["vllm", "serve", "M"]),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "M"], None),
        (["docker", "run", "img", "vllm", "serve"], []),
        (["sudo", "vllm", "serve"], []),
        (["bash", "-c", "vllm serve M"], []),
        (["vim", "vllm"], []),
        (["vllm", "bench"], []),
        ([], []),
    ],
)
def test_a_program_that_is_the_server(words: list[str], imported: list[str] | None) -> None:
    assert unmanaged.engine_words(words) == (words if imported is None else imported)


def test_the_importer_reads_the_command_of_a_program() -> None:
    words = ["vllm", "serve", "Qwen/Qwen3-4B-Instruct-2507", "--port", "8001", "--max-model-len", "8192"]
    words += ["--override-generation-config", '{"top_p": 0.9, "note": "100% $HOME"}']
    imported = import_launch(adopt.unit_text(words), form="systemd")["service"]
    assert (imported["model"]["repo"], imported["port"]) == ("Qwen/Qwen3-4B-Instruct-2507", 8001)
    assert imported["args"]["max-model-len"] == 8192
    module = ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "Org/M", "--port", "8003"]
    assert import_launch(adopt.unit_text(module), form="systemd")["service"]["model"]["repo"] == "Org/M"


@pytest.mark.parametrize(
    ("cgroup", "unit", "why"),
    [
        ("0::/system.slice/mine.service\n", "mine.service", ""),
        ("12:memory:/system.slice/mine.service\n1:name=systemd:/system.slice/mine.service\n", "mine.service", ""),
        ("0::/user.slice/user-1000.slice/session-2.scope\n", "", "no unit runs it"),
        # v1, where only systemd's own hierarchy has the unit, and both at once.
        ("12:memory:/docker/abc\n1:name=systemd:/docker/abc/system.slice/mine.service\n0::/\n", "mine.service", ""),
        ("12:memory:/system.slice/other.service\n1:name=systemd:/user.slice/session-2.scope\n", "", "no unit runs it"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/mine.service\n", "", "a unit of a user"),
        ("", "", "no unit runs it"),
    ],
)
def test_the_unit_of_a_program(cgroup: str, unit: str, why: str) -> None:
    imported = unmanaged.unit_of(cgroup)
    assert imported[0] == unit and imported[1].startswith(why) and bool(imported[1]) is not bool(unit)


def test_values_of_secrets_are_left_out_of_a_command() -> None:
    words = ["vllm", "serve", "M", "--api-key", "sk-1", "--hf-token=hf_1", "--tokenizer", "T"]
    assert redaction.without_secrets(words) == [*words[:4], "<redacted>", "--hf-token=<redacted>", "--tokenizer", "T"]
    assert "sk-1" not in " ".join(container_launch.launch_of(container("M", "--api-key", "sk-1"), IMAGE))


def test_what_was_taken_over_before_is_told_with_the_way_back() -> None:
    stopped = [
        {"name": "mine", "service": "fast", "there": True},
        {"name": "old.service", "service": "heavy", "there": False},
    ]
    lines = adopt.lines_of([], [], stopped)
    assert lines[1] == "mine: fast has taken its place; it can come back: -e spark_adopt_undo=true"
    assert "is not there any more" in lines[2]


@pytest.mark.parametrize(
    ("like", "url"),
    [
        ({"port": 8001}, "http://127.0.0.1:8001"),
        ({"port": 8001, "host": "0.0.0.0"}, "http://127.0.0.1:8001"),
        ({"port": 8001, "host": "192.168.1.11"}, "http://192.168.1.11:8001"),
        ({}, ""),
    ],
)
def test_where_a_launch_answers(like: dict[str, Any], url: str) -> None:
    assert adopt.url_of(like) == url
