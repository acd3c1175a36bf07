"""Hand-made containers: which are recognised, what they are as a service, how one takes their place."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils import adopt
from ansible_collections.dgxspark.vllm.plugins.module_utils.importer import import_launch

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
    found: dict[str, Any] = import_launch(adopt.command_of(adopt.launch_of(box, IMAGE)), form="docker")["service"]
    return found


def test_a_container_is_read_as_the_command_that_it_came_from() -> None:
    argv = adopt.launch_of(BOX, IMAGE)
    text = " ".join(argv)
    assert "-p 8001:8000" in text and "--ipc host" in text and "-v /data/hf:/root/.cache/huggingface" in text
    assert "VLLM_LOGGING_LEVEL=DEBUG" in text
    assert "hf_secret" not in text and "PATH" not in text and "VLLM_VERSION" not in text
    assert argv[-5:] == ["Qwen/Qwen3-4B-Instruct-2507", "--max-model-len", "32768", "--served-model-name", "qwen"]


def test_the_importer_makes_a_service_of_it() -> None:
    found = read(BOX)
    assert found["model"]["repo"] == "Qwen/Qwen3-4B-Instruct-2507" and found["port"] == 8001
    assert found["served_model_name"] == "qwen" and found["args"]["max-model-len"] == 32768


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
    assert adopt.is_engine(box) is engine


def test_our_own_and_what_does_not_run_is_not_foreign() -> None:
    assert adopt.foreign(BOX) is True
    assert adopt.foreign(container(Labels={"dgxspark.managed": "true"})) is False
    assert adopt.foreign({**BOX, "State": {"Running": False}}) is False


def test_the_unit_that_runs_a_container() -> None:
    units = {
        "mine.service": "[Service]\nExecStart=/usr/bin/docker run --name mine img\n",
        "other.service": "[Service]\nExecStart=/usr/bin/docker run --name mine-too img\n",
        "note.service": "[Service]\n# docker mine\nExecStart=/bin/true\n",
    }
    assert adopt.owner_of(BOX, units) == "mine.service"
    assert adopt.owner_of(BOX, {**units, "twice.service": units["mine.service"]}) == ""


def pairs(
    box: dict[str, Any], *services: dict[str, Any], available: float | None = 50.0, **launch: Any
) -> list[dict[str, Any]]:
    name = box["Name"].lstrip("/")
    described = {"container": name, "unit": "", "removed": False, **launch}
    return adopt.pairs(list(services), [described], {name: read(box)}, available)


def test_the_same_model_on_another_port_is_replaced_beside_it() -> None:
    (found,) = pairs(BOX, service())
    assert (found["service"], found["by"], found["way"], found["refused"]) == ("fast", "model", "beside", "")
    assert "port: 8001 -> 8002" in found["differences"] and "--max-model-len: 32768 -> 16384" in found["differences"]
    assert "served as: qwen -> fast" in found["differences"]


@pytest.mark.parametrize(
    ("wanted", "available", "why"),
    [
        (service(port=8001), 50.0, "both want port 8001"),
        (service(), 5.0, "12.0 GiB are needed, 5.0"),
        (service(), None, "unknown"),
    ],
)
def test_else_instead_of_it(wanted: dict[str, Any], available: float | None, why: str) -> None:
    (found,) = pairs(BOX, wanted, available=available)
    assert found["way"] == "instead" and why in found["why"]


def test_the_same_model_goes_before_the_same_port() -> None:
    other = service(name="heavy", port=8001, model={"repo": "Org/Other", "path": None})
    assert pairs(BOX, other, service())[0]["service"] == "fast"
    (found,) = pairs(BOX, other)
    assert (found["service"], found["by"]) == ("heavy", "port")
    assert "model: Qwen/Qwen3-4B-Instruct-2507 -> Org/Other" in found["differences"]


def test_what_nobody_wants_is_left_alone_and_said() -> None:
    other = service(model={"repo": "Org/Other", "path": None})
    assert pairs(BOX, other) == []
    assert pairs(BOX, service(cluster={"name": "pair"})) == []
    text = adopt.lines_of([], [{"container": "mine"}])
    assert text == ["mine: left alone: no service of this host has its model or its port"]


@pytest.mark.parametrize(
    ("launch", "changes", "said"),
    [
        ({"removed": True}, {}, "started with --rm"),
        ({"removed": True, "unit": "mine.service"}, {}, ""),
        ({}, {"container": "mine"}, "docker rename mine"),
        ({"unit": "spark-fast.service"}, {}, "its unit has the name"),
    ],
)
def test_what_could_not_be_brought_back_is_not_touched(
    launch: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    (found,) = pairs(BOX, service(**changes), **launch)
    assert (said in found["refused"]) if said else found["refused"] == ""
