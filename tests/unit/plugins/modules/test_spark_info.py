from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from module_calls import call_module
from programs_fixture import play
from returned_fixture import named

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import cable_probe
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import image_looks
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import host_report, host_sections
from ansible_collections.dgxspark.vllm.plugins.modules import spark_info

INSPECT = [
    {
        "Id": "1" * 64,
        "Name": "/spark-heavy",
        "Image": "sha256:aa",
        "Config": {"Image": "nvcr.io/nvidia/vllm:26.04-py3", "Labels": {"dgxspark.managed": "true"}},
        "State": {"Status": "running", "Pid": 77},
        "HostConfig": {"PortBindings": {}},
    },
    {
        "Id": "2" * 64,
        "Name": "/webui",
        "Image": "sha256:bb",
        "Config": {"Image": "webui:1", "Labels": None},
        "State": {"Status": "exited", "Pid": 0},
        "HostConfig": {"PortBindings": {"8080/tcp": [{"HostIp": "", "HostPort": "3000"}]}},
    },
]


def run_module(monkeypatch: pytest.MonkeyPatch, capsys: Any, run: Callable[..., Any], **args: Any) -> dict[str, Any]:
    play(monkeypatch, run)
    return call_module(spark_info, args, capsys)


def test_a_spark_in_service(monkeypatch: pytest.MonkeyPatch, capsys: Any, tree: Any, fake_run: Any) -> None:
    tree.qsfp()
    tree.write("proc/77/cgroup", f"0::/system.slice/docker-{'1' * 64}.scope\n")
    fake_run.on("docker info", '{"ServerVersion": "29.2.1", "CgroupVersion": "2", "Runtimes": {"nvidia": {}}}')
    fake_run.on("docker ps", f"{'1' * 64}\n{'2' * 64}\n").on("docker container inspect", json.dumps(INSPECT))
    fake_run.on("nvidia-smi --query-gpu", "0, NVIDIA GB10, GPU-1, 580.159.03, 12.1, 44, 11.1, 2405, 0\n")
    fake_run.on("nvidia-smi --query-compute-apps", "77, VLLM::EngineCore, 97280\n")
    fake_run.on("nvidia-smi", "CUDA Version: 13.0")
    fake_run.on("ip -j addr", "[]").on("ss", 'LISTEN 0 1 127.0.0.1:8001 0.0.0.0:* users:(("vllm",pid=77,fd=3))\n')
    fake_run.on(
        "systemctl show", "Id=spark-heavy.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n"
    )
    result = run_module(monkeypatch, capsys, fake_run, root=str(tree), disk_paths=["/srv/huggingface"])
    assert result["changed"] is False
    spark = result["spark"]
    assert spark["machine"]["is_spark"] is True and spark["machine"]["vendor"] == "nvidia"
    assert spark["dgx_os"]["version"] == "7.5.0" and spark["kernel"] == "6.17.0-1014-nvidia"
    assert spark["gpu"]["cuda_version"] == "13.0" and spark["gpu"]["compute_capability"] == "12.1"
    assert spark["fabric"]["connectx"] is True and len(spark["fabric"]["ports"]) == 2
    assert spark["docker"]["runtimes"] == ["nvidia"]
    heavy, webui = spark["containers"]
    assert (heavy["name"], heavy["managed"], heavy["service"], heavy["image_id"]) == (
        "spark-heavy",
        True,
        "heavy",
        "sha256:aa",
    )
    assert (webui["managed"], webui["service"], webui["state"]) == (False, None, "exited")
    assert spark["units"][0]["active_state"] == "active" and spark["units"][0]["enabled"] is True
    assert spark["listening"][0]["container"] == "spark-heavy"
    assert spark["resident"] == [{"name": "heavy", "gib": 95.0}]
    assert spark["disks"]["/srv/huggingface"]["free_gib"] > 0
    programs = [" ".join(call[:2]) for call in fake_run.calls]
    assert len(programs) <= 10, programs


def test_a_bare_machine(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Any, fake_run: Any) -> None:
    result = run_module(monkeypatch, capsys, fake_run, root=str(tmp_path), _ansible_check_mode=True)
    spark = result["spark"]
    assert spark["gpu"] is None and spark["docker"] is None and spark["memory"] is None
    assert spark["fabric"]["connectx"] is False and spark["containers"] == [] and spark["disks"] == {}


def test_engine_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Any, fake_run: Any
) -> None:
    fake_run.on("docker info", '{"ServerVersion": ""}', rc=1, err="permission denied while trying to connect\n")
    spark = run_module(monkeypatch, capsys, fake_run, root=str(tmp_path))["spark"]
    assert spark["docker"]["version"] is None and "permission denied" in spark["docker"]["error"]
    assert not any(call[:2] == ["docker", "ps"] for call in fake_run.calls)


def test_missing_programs_are_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Any) -> None:
    def run(argv: list[str], **options: Any) -> Any:
        raise FileNotFoundError(2, "No such file", argv[0])

    assert run_module(monkeypatch, capsys, run, root=str(tmp_path))["spark"]["docker"] is None


@pytest.fixture
def spark(tree: Any, fake_run: Any) -> Any:
    """A Spark whose programs all answer."""
    tree.qsfp()
    fake_run.on("docker info", '{"ServerVersion": "29.2.1"}').on("docker ps", "").on("systemctl show", "")
    fake_run.on("nvidia-smi --query-gpu", "0, NVIDIA GB10, GPU-1, 580.159.03, 12.1, 44, 11.1, 2405, 0\n")
    fake_run.on("nvidia-smi", "").on("ip", "[]").on("ss", "")
    return tree


@pytest.mark.parametrize("tool", ["docker", "nvidia-smi", "systemctl", "ip"])
def test_a_tool_that_hangs_holds_nobody_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, spark: Any, fake_run: Any, tool: str
) -> None:
    for start in [start for start in fake_run.answers if start.split()[0] == tool]:
        fake_run.silent(start)
    spark_facts = run_module(monkeypatch, capsys, fake_run, root=str(spark))["spark"]
    assert spark_facts["unknown"] == {tool: f"{tool} did not answer in 30 s"}
    assert spark_facts["memory"]["total_gib"] > 100 and spark_facts["fabric"]["connectx"] is True
    if tool == "docker":
        assert (
            spark_facts["docker"]["version"] is None
            and spark_facts["docker"]["error"] == "docker did not answer in 30 s"
        )


def test_a_tool_that_fails_is_no_answer_either(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, spark: Any, fake_run: Any
) -> None:
    fake_run.on("systemctl show", "", 1, "Failed to connect to bus: Connection timed out")
    spark_facts = run_module(monkeypatch, capsys, fake_run, root=str(spark))["spark"]
    assert spark_facts["unknown"] == {"systemctl": "systemctl failed: Failed to connect to bus: Connection timed out"}


IMAGE = {"Id": "sha256:aa", "Architecture": "arm64", "Os": "linux", "Config": {"Entrypoint": ["vllm", "serve"]}}
FREE = {"gather": ["images"]}


@pytest.mark.parametrize("more", [FREE, {}])
def test_images_are_looked_for_in_the_same_run_and_no_image_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, spark: Any, fake_run: Any, tmp_path: Any, more: dict[str, Any]
) -> None:
    fake_run.on("docker image inspect", json.dumps([IMAGE]), rc=1, err="Error: No such image: gone:1\n")
    result = run_module(
        monkeypatch, capsys, fake_run, root=str(spark), images=["up:1", "gone:1"], state_dir=str(tmp_path), **more
    )
    up, gone = result["images"]["up:1"], result["images"]["gone:1"]
    assert (up["present"], up["id"], up["probe_from"], gone["present"]) == (True, "sha256:aa", "none", False)
    assert ("spark" in result) is not bool(more) and "msg" not in result
    assert sum(call[:3] == ["docker", "image", "inspect"] for call in fake_run.calls) == 1
    # An earlier answer of the image is read from the cache.
    (tmp_path / "images").mkdir()
    cached_answer = {"schema": image_looks.SCHEMA, "answer": {"packages": {"vllm": "0.24.0"}}}
    (tmp_path / "images" / "aa.json").write_text(json.dumps(cached_answer))
    up = run_module(
        monkeypatch, capsys, fake_run, root=str(spark), images=["up:1", "gone:1"], state_dir=str(tmp_path), **more
    )["images"]["up:1"]
    assert (up["probe_from"], up["vllm_version"]) == ("cache", "0.24.0")


def test_images_that_are_not_known_are_no_absent_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, spark: Any, fake_run: Any, tmp_path: Any
) -> None:
    fake_run.on("docker image inspect", "[]", rc=1, err="Cannot connect to the Docker daemon\n")
    result = run_module(monkeypatch, capsys, fake_run, root=str(spark), images=["a:1"])
    assert result["images"] is None and "Cannot connect" in result["msg"] and result["spark"]["docker"]["version"]
    fake_run.silent("docker image inspect")
    result = run_module(monkeypatch, capsys, fake_run, root=str(spark), images=["a:1"], **FREE)
    assert result["images"] is None and "docker did not answer in 30 s" in result["msg"] and "failed" not in result
    # Docker never answers: the other facts are still returned.
    fake_run.silent("docker info")
    result = run_module(monkeypatch, capsys, fake_run, root=str(spark), images=["a:1"])
    assert result["images"] is None and "docker did not answer" in result["msg"]
    assert result["spark"]["memory"]["total_gib"] > 100 and "docker" in result["spark"]["unknown"]
    # An empty list of images is a valid request.
    assert run_module(monkeypatch, capsys, fake_run, root=str(spark))["images"] == {}


def test_a_section_without_an_answer_fails_the_task_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, spark: Any, fake_run: Any
) -> None:
    fake_run.on("docker image inspect", "[]", rc=1, err="Cannot connect to the Docker daemon\n")
    result = run_module(
        monkeypatch, capsys, fake_run, root=str(spark), images=["a:1"], fail_on_unknown=True, gather=["images"]
    )
    assert result["failed"] and "Cannot connect to the Docker daemon" in result["msg"]


def test_the_default_is_what_the_documentation_says() -> None:
    options = yaml.safe_load(spark_info.DOCUMENTATION)["options"]
    assert options["gather"]["default"] == list(host_report.DEFAULT)
    assert options["gather"]["choices"] == [*host_report.FACTS, *host_sections.SECTIONS]


def test_an_engine_that_is_down_is_a_fact_of_the_host(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, spark: Any, fake_run: Any
) -> None:
    fake_run.on("docker info", '{"ServerVersion": ""}', rc=1, err="permission denied\n")
    fake_run.on("docker image inspect", "[]", rc=1, err="permission denied\n")
    result = run_module(monkeypatch, capsys, fake_run, root=str(spark), images=["a:1"], fail_on_unknown=True)
    assert result["images"] is None and "permission denied" in result["spark"]["docker"]["error"]
    fake_run.silent("docker info")
    result = run_module(monkeypatch, capsys, fake_run, root=str(spark), images=["a:1"], fail_on_unknown=True)
    assert result["images"] is None and "docker" in result["spark"]["unknown"]


def test_options_have_the_types_and_defaults_that_the_documentation_names() -> None:
    def check(arguments: dict[str, Any], documented: dict[str, Any]) -> None:
        assert set(arguments) == set(documented)
        for name, argument in arguments.items():
            option = documented[name]
            assert argument["type"] == option["type"] and argument.get("elements") == option.get("elements"), name
            assert argument.get("default") == option.get("default"), name
            assert argument.get("required", False) == option.get("required", False), name
            check(argument.get("options", {}), option.get("suboptions", {}))

    options = yaml.safe_load(spark_info.DOCUMENTATION)["options"]
    check(host_sections.ARGUMENTS, options)


def test_a_service_without_a_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, spark: Any, fake_run: Any
) -> None:
    options = {"gather": ["services"], "services": [{"probe": {}}]}
    result = run_module(monkeypatch, capsys, fake_run, root=str(spark), **options)
    assert result["failed"] and result["msg"] == "services: one of them has no name"


def test_every_section_is_a_documented_result(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, spark: Any, fake_run: Any, tmp_path: Any
) -> None:
    fake_run.on("systemctl show", "Id=docker.service\nLoadState=loaded\nActiveState=active\n")
    fake_run.on("ip", "[]").on("timedatectl", "yes").on("journalctl", "").on("dpkg-query", "")
    sections = [*host_report.FACTS, *host_sections.SECTIONS]
    ray = {"container": "spark-x-ray", "address": "127.0.0.1:6379"}
    monkeypatch.setattr(cable_probe, "attach", lambda netdev: socket.socket())
    options = {"ray": ray, "cabling": {"name": "spark-1", "seconds": 0}, "state_dir": str(tmp_path)}
    result = run_module(monkeypatch, capsys, fake_run, root=str(spark), gather=sections, **options)
    documented = yaml.safe_load(spark_info.RETURN)
    assert result["unknown"] == {}
    assert set(result) - {"changed", "invocation", "warnings"} == set(documented) - {"msg"}
    for name in ("adoption", "distribution", "engines", "ray", "spark", "starts"):
        assert set(result[name]) - {"hf_home"} - named(spark_info.RETURN, name) == set(), name
