"""The answer of Ray about its nodes, and the report without an answer."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from module_calls import call_module
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.modules import spark_info

NODE = {
    "address": "192.168.100.10",
    "id": "a",
    "alive": True,
    "resources": {"CPU": 2.0, "GPU": 1.0},
    "used": {"GPU": 1.0},
}
ANSWER = {"ready": True, "nodes": [NODE], "gpus": 1, "ray": "2.60.0", "error": ""}


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: Any, fake_run: Any) -> Any:
    play(monkeypatch, fake_run)

    def call(address: str = "192.168.100.10:6379") -> dict[str, Any]:
        ray = {"container": "spark-x-ray", "address": address}
        arguments = {"gather": ["ray"], "ray": ray, "_ansible_check_mode": True}
        result = call_module(spark_info, arguments, capsys)
        return {**result, **result.pop("ray", {})}

    return call


def test_what_ray_says(call: Any, fake_run: Any) -> None:
    fake_run.on("timeout", json.dumps(ANSWER) + "\n")
    result = call()
    assert (result["answered"], result["changed"], result["error"]) == (True, False, "")
    assert (result["nodes"], result["gpus"], result["ray"]) == ([NODE], 1, "2.60.0")
    argv = fake_run.calls[0]
    assert argv[3:7] == ["docker", "exec", "spark-x-ray", "python3"]
    assert argv[-4:] == ["192.168.100.10:6379", "0", "0", "0"]


def test_the_program_that_is_sent_runs(call: Any, fake_run: Any, closed_port: int) -> None:
    """As the container's Python would run it: nobody listens there, which it says in its own words."""
    fake_run.on("timeout", "")
    call(f"127.0.0.1:{closed_port}")
    argv = fake_run.calls[0]
    words = [sys.executable, *argv[argv.index("python3") + 1 :]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    fake_run.on("timeout", done.stdout, rc=done.returncode, err=done.stderr)
    result = call(f"127.0.0.1:{closed_port}")
    assert result["answered"] is False
    assert result["error"].startswith(f"nothing answers at 127.0.0.1:{closed_port}")
    assert result["ray"] is None


@pytest.mark.parametrize(
    ("rc", "err", "message"),
    [
        (1, "Error: No such container: spark-x-ray", "the container spark-x-ray does not run"),
        (1, "Error response from daemon: container 12ab is not running", "the container spark-x-ray does not run"),
        (124, "", "the container spark-x-ray gave no answer in time"),
        (127, "timeout: failed to run command 'docker': No such file or directory", "there is no docker on this host"),
        (
            127,
            'OCI runtime exec failed: exec: "python3": executable file not found',
            "Ray cannot be asked in the container",
        ),
        (139, "", "Ray cannot be asked in the container spark-x-ray: exit code 139"),
    ],
)
def test_why_there_is_no_answer(call: Any, fake_run: Any, rc: int, err: str, message: str) -> None:
    fake_run.on("timeout", "Ray printed this\n", rc=rc, err=err)
    result = call()
    assert (result["answered"], result["nodes"], result["gpus"]) == (False, [], 0)
    assert message in result["error"]


def test_an_address_without_port_is_refused(call: Any, fake_run: Any) -> None:
    result = call("192.168.100.10")
    assert result["failed"] is True
    assert "host:port is expected" in result["msg"]
    assert fake_run.calls == []
