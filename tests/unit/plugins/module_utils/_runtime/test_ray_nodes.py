"""The program that asks Ray for its nodes, run as in the container, with a stand-in for the package ray."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import ray_nodes

PROGRAM = Path(str(ray_nodes.__file__))
SDK = '''
"""The part of Ray's Python API that the program uses; classes as in ray/autoscaler/v2/schema.py of Ray 2.48 to 2.60."""
import os
from types import SimpleNamespace as Row

print("Ray prints what it likes")


def node(address, gpus, used=0.0):
    usage = [Row(resource_name="CPU", total=20.0, used=0.0), Row(resource_name="GPU", total=float(gpus), used=used)]
    return Row(ip_address=address, node_id="id-" + address, resource_usage=Row(usage=usage))


def get_cluster_status(gcs_address, timeout):
    asked = os.environ["ASKED"]
    with open(asked, "a") as stream:
        stream.write("x")
    times = os.path.getsize(asked)
    idle = [node("192.168.100.11", 1)] if times >= int(os.environ["SECOND_NODE_AT"]) else []
    if times <= int(os.environ.get("FAILS", "0")):
        raise RuntimeError("GCS is starting")
    dead = Row(ip_address="192.168.100.12", node_id="id-dead", resource_usage=None)
    return Row(active_nodes=[node("192.168.100.10", 1, 1.0)], idle_nodes=idle, failed_nodes=[dead])
'''


@pytest.fixture
def head() -> Iterator[str]:
    """Return the address of a listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def run(folder: Path, *argv: str, ray: bool = True, **env: str) -> tuple[int, dict[str, Any], str]:
    """Pass the program to Python's standard input; return its exit code, its answer and its error output."""
    if ray:
        package = folder / "ray" / "autoscaler" / "v2"
        package.mkdir(parents=True)
        for place in (package, package.parent):
            (place / "__init__.py").write_text("")
        (folder / "ray" / "__init__.py").write_text('__version__ = "2.55.1"\n')
        (package / "sdk.py").write_text(SDK)
    done = subprocess.run(
        [sys.executable, "-", *argv],
        input=PROGRAM.read_text(),
        env={"PYTHONPATH": str(folder), "ASKED": str(folder / "asked"), "SECOND_NODE_AT": "1", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.count("\n") == 1, done
    return done.returncode, json.loads(done.stdout), done.stderr


def test_it_waits_for_the_second_node(tmp_path: Path, head: str) -> None:
    code, answer, message = run(tmp_path, head, "2", "2", "50", SECOND_NODE_AT="4", FAILS="2")
    assert code == 0
    assert (answer["ready"], answer["gpus"], answer["error"], answer["ray"]) == (True, 2, "", "2.55.1")
    assert [(row["address"], row["alive"]) for row in answer["nodes"]] == [
        ("192.168.100.10", True),
        ("192.168.100.11", True),
        ("192.168.100.12", False),
    ]
    assert answer["nodes"][0]["resources"] == {"CPU": 20.0, "GPU": 1.0}
    assert answer["nodes"][0]["used"] == {"GPU": 1.0}
    assert (tmp_path / "asked").read_text() == "xxxx"
    assert "Ray prints what it likes" in message, "what Ray prints must not spoil the answer"


def test_without_seconds_it_asks_once(tmp_path: Path, head: str) -> None:
    code, answer, _stderr = run(tmp_path, head, "2", "2", "0", SECOND_NODE_AT="2")
    assert code == 1
    assert answer["ready"] is False
    assert answer["error"] == "Ray has 1 of 2 nodes (192.168.100.10) and 1 of 2 GPUs"
    assert (tmp_path / "asked").read_text() == "x"


def test_a_status_that_fails_is_told(tmp_path: Path, head: str) -> None:
    code, answer, _stderr = run(tmp_path, head, "2", "2", "0", FAILS="9")
    assert code == 1
    assert answer["error"] == f"Ray at {head} gives no status: RuntimeError: GCS is starting"
    assert answer["nodes"] == []


def test_a_container_without_ray_is_not_waited_for(tmp_path: Path, head: str) -> None:
    code, answer, _stderr = run(tmp_path, head, "2", "2", "50", ray=False)
    assert code == 1
    assert "has no Ray that can be asked" in answer["error"]
    assert sys.executable in answer["error"]


def test_nobody_listens(tmp_path: Path, closed_port: int) -> None:
    code, answer, _stderr = run(tmp_path, f"127.0.0.1:{closed_port}", "2", "2", "0")
    assert code == 1
    assert answer["error"].startswith(f"nothing answers at 127.0.0.1:{closed_port} (Ray's head): ")


@pytest.mark.parametrize(
    "argv", [[], ["192.168.100.10", "2", "2", "1"], ["a:6379", "two", "2", "1"], ["a:6379", "2", "2"]]
)
def test_wrong_arguments(tmp_path: Path, argv: list[str]) -> None:
    code, answer, _stderr = run(tmp_path, *argv)
    assert code == 2
    assert answer["error"].startswith("wrong arguments")


def node(address: str, gpus: int = 1, alive: bool = True, identity: str = "a") -> dict[str, Any]:
    return {"address": address, "id": identity, "alive": alive, "resources": {"GPU": float(gpus)}, "used": {}}


@pytest.mark.parametrize(
    ("result", "ready", "error"),
    [
        ([node("a"), node("b")], True, ""),
        ([node("a"), node("b"), node("c")], True, ""),
        ([node("a"), node("b", alive=False)], False, "Ray has 1 of 2 nodes (a) and 1 of 2 GPUs"),
        ([node("a"), node("b", gpus=0)], False, "Ray has 2 of 2 nodes (a, b) and 1 of 2 GPUs"),
        ([], False, "Ray has 0 of 2 nodes and 0 of 2 GPUs"),
        (
            [node("a"), node("b"), node("b", identity="b")],
            False,
            "Ray counts b twice: it has not noticed yet that an earlier node there is gone",
        ),
        ([node("a"), node("b"), node("b", alive=False, identity="b")], True, ""),
    ],
)
def test_judgement(result: list[dict[str, Any]], ready: bool, error: str) -> None:
    answer = ray_nodes.judge(result, 2, 2)
    assert (answer["ready"], answer["error"]) == (ready, error)


def test_a_ray_that_hangs_does_not_hold_up_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_nodes, "ANSWER_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # a call that never comes back

        def ask(address: str) -> list[dict[str, Any]]:
            server.accept()
            return []

        written: list[str] = []
        assert ray_nodes.main(["a:6379", "2", "2", "0"], written.append, ask) == 1
        with socket.create_connection(server.getsockname()):  # lets the thread go
            pass
    assert "did not answer within" in json.loads(written[0])["error"]


@pytest.mark.parametrize(
    ("address", "parts"), [("10.0.0.1:6379", ("10.0.0.1", 6379)), ("[fd00::1]:6379", ("fd00::1", 6379))]
)
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    assert ray_nodes.split_address(address) == parts
