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

TEST = {"service": "glm", "hosts": ["a", "b", "c", "d"], "topology": "ring"}
GOOD = {"backend": "nccl", "nccl": "2.28.9", "ranks": 4, "bytes": 268435456, "seconds": 0.03, "gbps": 107.4}


def run_program(*paths: Path, **env: str) -> dict[str, Any]:
    """Run the program as a container would, with these folders and the standard library alone."""
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
import os
import time
def init_process_group(backend, timeout):
    print("a library prints")
    if {fails!r}:
        raise RuntimeError({fails!r})
    assert backend == "gloo"
def get_world_size():
    return 4
def get_rank():
    return int(os.environ.get("RANK", "0"))
def new_group(ranks):
    assert len(ranks) == 2
    return ranks
def all_reduce(numbers, group=None):
    if group == {dead!r}:
        raise RuntimeError("Connection closed by peer")
    time.sleep(0.01)
    numbers.value *= len(group) if group else {sum}
def destroy_process_group():
    pass
"""


def torch_in(folder: Path, fails: str = "", total: int = 4, dead: list[int] | None = None) -> Path:
    """A torch of which all ranks hold the same. dead: two ranks that do not reach each other."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(FAKE, encoding="utf-8")
    text = DIST.replace("{fails!r}", repr(fails)).replace("{sum}", str(total)).replace("{dead!r}", repr(dead or [9, 9]))
    (folder / "torch" / "distributed.py").write_text(text, encoding="utf-8")
    return folder


def test_ranks_that_add_up_are_measured(tmp_path: Path) -> None:
    program = run_program(torch_in(tmp_path))
    assert (program["backend"], program["ranks"], program["bytes"]) == ("gloo", 4, 16 * 2**20)
    assert program["seconds"] >= 0.01
    assert program["gbps"] == pytest.approx(
        collective_program.bus_gbps(program["bytes"], 4, program["seconds"]), rel=0.01
    )


def test_each_cable_is_measured_by_the_two_at_its_ends(tmp_path: Path) -> None:
    """Rank 2 of a ring of four is at the ends of two."""
    torch_in(tmp_path)
    pairs = ",".join(f"{first}-{other}" for first, other in collective.cables("ring", 4))
    program = run_program(tmp_path, RANK="2", DGXSPARK_CABLES=pairs)
    assert set(program["cables"]) == {"1-2", "2-3"} and program["gbps"] > 0
    # 16 MiB to and fro in 10 ms and more.
    assert all(0 < gbps < collective_program.bus_gbps(program["bytes"], 2, 0.01) for gbps in program["cables"].values())
    assert run_program(tmp_path)["cables"] == {}


def test_a_cable_that_does_not_carry_is_named_by_its_ends(tmp_path: Path) -> None:
    torch_in(tmp_path, dead=[2, 3])
    arguments = {"DGXSPARK_CABLES": "0-1,1-2,2-3,0-3"}
    assert run_program(tmp_path, RANK="1", **arguments)["cables"].keys() == {"0-1", "1-2"}
    program = run_program(tmp_path, RANK="3", **arguments)
    assert program == {"error": "RuntimeError: Connection closed by peer", "between": [2, 3]}
    (message,) = collective.judge("d", TEST, program, {})
    assert "the ranks of glm cannot add up a number together, already c and d alone: RuntimeError" in message.message


@pytest.mark.parametrize(
    ("topology", "size", "pairs"),
    [
        ("ring", 4, [(0, 1), (1, 2), (2, 3), (0, 3)]),
        ("ring", 3, [(0, 1), (1, 2), (0, 2)]),
        ("switch", 4, [(0, 1), (1, 2), (2, 3)]),
        ("direct", 2, []),
        ("switch", 2, []),
        ("", 4, []),
    ],
)
def test_the_pairs_that_are_measured(topology: str, size: int, pairs: list[tuple[int, int]]) -> None:
    assert collective.cables(topology, size) == pairs


def test_the_nccl_that_an_engine_is_told_to_take_is_loaded_before_torch(tmp_path: Path) -> None:
    torch_in(tmp_path)
    program = run_program(tmp_path, VLLM_NCCL_SO_PATH="/nowhere/libnccl.so.2")
    assert program["error"].startswith("OSError: /nowhere/libnccl.so.2: cannot open shared object file")
    arguments = {
        "LD_PRELOAD": "/opt/n.so",
        "VLLM_NCCL_SO_PATH": "/opt/n.so",
        "TORCH_USE_RTLD_GLOBAL": "1",
        "NCCL_NET": "IB",
    }
    assert arguments.items() <= collective.environment({**arguments, "VLLM_USE_V1": "1"}, 0, 2, "10.0.0.1", 1).items()


def test_a_wrong_sum_is_an_error_and_not_a_speed(tmp_path: Path) -> None:
    assert run_program(torch_in(tmp_path, total=3)) == {"error": "ValueError: 4 ones add up to 3"}


def test_what_torch_says_is_told_in_one_line(tmp_path: Path) -> None:
    program = run_program(torch_in(tmp_path, fails="NCCL error\n  ibv_modify_qp failed with 110"))
    assert program == {"error": "RuntimeError: NCCL error ibv_modify_qp failed with 110"}


def test_the_bus_bandwidth_of_a_ring() -> None:
    # Each of four hosts sends 1.5 times the sum: 1 GB in 0.12 s is 100 Gb/s on each cable.
    assert collective_program.bus_gbps(10**9, 4, 0.12) == pytest.approx(100)
    assert collective_program.bus_gbps(10**9, 2, 0.08) == pytest.approx(100)


def test_the_version_of_nccl_is_told_where_torch_has_it() -> None:
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(nccl=types.SimpleNamespace(version=lambda: (2, 28, 9))))
    assert collective_program.version_of_nccl(torch) == "2.28.9"
    assert collective_program.version_of_nccl(types.SimpleNamespace()) == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((124, "", ""), "did not end within 180 s"),
        ((137, "", "Killed"), "did not end within 180 s"),
        ((125, "", "docker: Error response from daemon: no such image\n"), "no such image"),
        ((1, "line of a library\n", ""), "line of a library"),
        ((0, "dgxspark-collective: {broken", ""), "dgxspark-collective: {broken"),
        ((3, "", ""), "exit code 3"),
    ],
)
def test_silence_is_not_known(arguments: tuple[int, str, str], message: str) -> None:
    result = collective.read(*arguments)
    assert list(result) == ["unknown"] and message in result["unknown"]
    findings = list(collective.judge("spark-3", TEST, result, {"all_reduce": 80}))
    assert [(entry.rule, entry.severity) for entry in findings] == [("fabric.collective_unknown", "warning")]
    assert "spark-3" in findings[0].message and message in findings[0].message


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
        ({**GOOD, "cables": {"0-1": 184.2, "0-3": 183.9}}, []),
        # Each cable is judged where its first rank is.
        ({**GOOD, "cables": {"0-1": 24.6, "0-3": 183.9, "2-3": 1}}, [("fabric.cable_slow", "warning")]),
        ({**GOOD, "backend": "gloo", "cables": {"0-1": 1.5}}, []),
    ],
)
def test_the_verdict(result: dict[str, Any], verdict: list[tuple[str, str]]) -> None:
    findings = list(collective.judge("a", TEST, result, {"all_reduce": 80}))
    assert [(entry.rule, entry.severity) for entry in findings] == verdict
    assert all(entry.message.startswith("a") and entry.service == "glm" and entry.fix for entry in findings)


def test_a_slow_cable_is_named_by_its_hosts_and_a_slow_switch_by_what_slows_it() -> None:
    result = {**GOOD, "gbps": 4.1, "cables": {"0-1": 4.9}}
    for topology, named in (("ring", False), ("switch", True)):
        cable, complete = collective.judge("a", {**TEST, "topology": topology}, result, {"all_reduce": 80})
        assert cable.message == "a and b alone add up at 4.9 Gb/s by NCCL 2.28.9, less than 80."
        assert ("RSTP" in cable.fix) is named and "degraded" in cable.fix
        assert complete.rule == "fabric.collective_slow"
    assert collective.measured(TEST["hosts"], result) == [{"hosts": ["a", "b"], "gbps": 4.9, "tool": "nccl"}]


def test_a_rank_talks_over_what_its_engine_talks_over() -> None:
    env = {
        "NCCL_IB_HCA": "rocep1s0f0",
        "GLOO_SOCKET_IFNAME": "enP7s7",
        "HF_HOME": "/x",
        "NCCL_ALGO": "Ring",
        "SECRET": "s",
    }
    result = collective.environment(env, 2, 4, "10.0.0.1", 29501)
    assert {key: result[key] for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NCCL_ALGO")} == {
        "RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29501", "NCCL_ALGO": "Ring",
    }  # fmt: skip
    assert result["NCCL_IB_HCA"] == "rocep1s0f0" and not {"HF_HOME", "SECRET"} & set(result)


@pytest.mark.parametrize(
    ("services", "chosen"),
    [
        ([("big", "1234", "started"), ("left", "12", "stopped")], ["big"]),
        ([("big", "1234", "stopped"), ("left", "12", "started"), ("right", "34", "started")], ["left", "right"]),
        # Both have the second host: a rank that is elsewhere would be waited for.
        ([("left", "12", "started"), ("middle", "23", "started")], ["left"]),
        ([("big", "1234", "stopped")], []),
        # A service on demand is measured before its first start.
        ([("asked", "12", "on_demand"), ("left", "12", "started")], ["asked"]),
    ],
)
def test_no_host_is_in_two_tests(services: list[tuple[str, str, str]], chosen: list[str]) -> None:
    arguments = [{"name": name, "hosts": list(hosts), "state": state} for name, hosts, state in services]
    assert collective.choose(arguments) == chosen
