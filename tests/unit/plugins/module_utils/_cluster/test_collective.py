# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The all-reduce before an engine starts: its program runs anywhere, its result is read, and silence is no verdict."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import collective, collective_program

GOOD = {"backend": "nccl", "nccl": "2.28.9", "ranks": 4, "bytes": 268435456, "seconds": 0.03, "gbps": 107.4}


def run_program(*paths: Path, **env: str) -> dict[str, Any]:
    """Run the program as a container would, with these folders as all that it finds beside the standard library."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", collective.program()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, paths)), **env},
    )
    return collective.read(done.returncode, done.stdout, done.stderr)


def test_an_image_without_torch_says_so(tmp_path: Path) -> None:
    assert run_program(tmp_path, PATH=str(tmp_path)) == {"lacks": "torch"}


FAKE = """
class cuda:
    is_available = staticmethod(lambda: False)
float32 = 0
class ones:
    def __init__(self, size, dtype, device):
        assert (size, device) == (4194304, "cpu")
        self.value = 1.0
    def __getitem__(self, at):
        return self
    def item(self):
        return self.value
    def fill_(self, value):
        self.value = value
"""
DIST = """
import time
def init_process_group(backend, timeout):
    print("a library prints")
    if {fails!r}:
        raise RuntimeError({fails!r})
    assert backend == "gloo"
def get_world_size():
    return 4
def all_reduce(numbers):
    time.sleep(0.01)
    numbers.value *= {sum}
def destroy_process_group():
    pass
"""


def torch_in(folder: Path, fails: str = "", total: int = 4) -> Path:
    """A torch of which all ranks hold the same."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(FAKE, encoding="utf-8")
    text = DIST.replace("{fails!r}", repr(fails)).replace("{sum}", str(total))
    (folder / "torch" / "distributed.py").write_text(text, encoding="utf-8")
    return folder


def test_ranks_that_add_up_are_measured(tmp_path: Path) -> None:
    found = run_program(torch_in(tmp_path))
    assert (found["backend"], found["ranks"], found["bytes"]) == ("gloo", 4, 16 * 2**20)
    assert found["seconds"] >= 0.01
    assert found["gbps"] == pytest.approx(collective_program.bus_gbps(found["bytes"], 4, found["seconds"]), rel=0.01)


def test_a_wrong_sum_is_an_error_and_not_a_speed(tmp_path: Path) -> None:
    assert run_program(torch_in(tmp_path, total=3)) == {"error": "ValueError: 4 ones add up to 3"}


def test_what_torch_says_is_told_in_one_line(tmp_path: Path) -> None:
    found = run_program(torch_in(tmp_path, fails="NCCL error\n  ibv_modify_qp failed with 110"))
    assert found == {"error": "RuntimeError: NCCL error ibv_modify_qp failed with 110"}


def test_the_bus_bandwidth_of_a_ring() -> None:
    # Each of four hosts sends 1.5 times what is added up: 1 GB in 0.12 s is 100 Gb/s on each cable.
    assert collective_program.bus_gbps(10**9, 4, 0.12) == pytest.approx(100)
    assert collective_program.bus_gbps(10**9, 2, 0.08) == pytest.approx(100)


def test_the_version_of_nccl_is_told_where_torch_has_it() -> None:
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(nccl=types.SimpleNamespace(version=lambda: (2, 28, 9))))
    assert collective_program.version_of_nccl(torch) == "2.28.9"
    assert collective_program.version_of_nccl(types.SimpleNamespace()) == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((124, "", ""), "did not end within 180 s"),
        ((137, "", "Killed"), "did not end within 180 s"),
        ((125, "", "docker: Error response from daemon: no such image\n"), "no such image"),
        ((1, "line of a library\n", ""), "line of a library"),
        ((0, "dgxspark-collective: {broken", ""), "dgxspark-collective: {broken"),
        ((3, "", ""), "exit code 3"),
    ],
)
def test_silence_is_not_known(given: tuple[int, str, str], said: str) -> None:
    result = collective.read(*given)
    assert list(result) == ["unknown"] and said in result["unknown"]
    found = collective.judge("spark-3", "glm", result, {"all_reduce": 80})
    assert [(each.rule, each.severity) for each in found] == [("fabric.collective_unknown", "warning")]
    assert "spark-3" in found[0].message and said in found[0].message


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (GOOD, []),
        ({**GOOD, "gbps": 12.1}, [("fabric.collective_slow", "warning")]),
        # How fast a processor adds says nothing about the cables.
        ({**GOOD, "backend": "gloo", "gbps": 0.5}, []),
        ({"error": "DistBackendError: NCCL error"}, [("fabric.collective", "error")]),
        ({"lacks": "torch"}, [("fabric.collective_unknown", "info")]),
        ({"gbps": None}, [("fabric.collective_unknown", "warning")]),
    ],
)
def test_the_verdict(result: dict[str, Any], verdict: list[tuple[str, str]]) -> None:
    found = collective.judge("spark-1", "glm", result, {"all_reduce": 80})
    assert [(each.rule, each.severity) for each in found] == verdict
    assert all("spark-1" in each.message and "glm" in each.message and each.fix for each in found)


def test_a_rank_talks_over_what_its_engine_talks_over() -> None:
    env = {
        "NCCL_IB_HCA": "rocep1s0f0",
        "GLOO_SOCKET_IFNAME": "enP7s7",
        "HF_HOME": "/x",
        "NCCL_ALGO": "Ring",
        "SECRET": "s",
    }
    found = collective.environment(env, 2, 4, "10.0.0.1", 29501)
    assert {key: found[key] for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NCCL_ALGO")} == {
        "RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29501", "NCCL_ALGO": "Ring",
    }  # fmt: skip
    assert found["NCCL_IB_HCA"] == "rocep1s0f0" and not {"HF_HOME", "SECRET"} & set(found)


@pytest.mark.parametrize(
    ("services", "chosen"),
    [
        ([("big", "1234", "started"), ("left", "12", "stopped")], ["big"]),
        ([("big", "1234", "stopped"), ("left", "12", "started"), ("right", "34", "started")], ["left", "right"]),
        # Both have the second host: a rank that is elsewhere would be waited for.
        ([("left", "12", "started"), ("middle", "23", "started")], ["left"]),
        ([("big", "1234", "stopped")], []),
        # One that requests start is measured before its first one.
        ([("asked", "12", "on_demand"), ("left", "12", "started")], ["asked"]),
    ],
)
def test_no_host_is_in_two_tests(services: list[tuple[str, str, str]], chosen: list[str]) -> None:
    given = [{"name": name, "hosts": list(hosts), "state": state} for name, hosts, state in services]
    assert collective.choose(given) == chosen
