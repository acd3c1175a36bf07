"""Cables between simulated Sparks: which devices are made, kept and removed for requested cables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sim"))

from simlib import cables
from simlib.config import PORTS
from simlib.engine import SimError

RUNS = {1: 101, 2: 102, 3: 103, 4: 104}


def interfaces(cables_laid: list[cables.Cable]) -> dict[str, str]:
    """Return the interfaces that exist once these cables are laid."""
    return {
        f"{node}/{device}": cables.alias(cable)
        for cable in cables_laid
        for node, port in cable.ends
        for device in PORTS[port]
    }


@pytest.mark.parametrize(("count", "last"), [(3, "3.0-1.1"), (4, "4.0-1.1"), (8, "8.0-1.1")])
def test_a_ring_leads_from_port_0_to_port_1_and_round(count: int, last: str) -> None:
    names = [str(cable) for cable in cables.ring(count)]
    assert names[0] == "1.0-2.1" and names[-1] == last and len(names) == count
    assert [str(cables.parse(text)) for text in names] == names


def test_a_cable_is_two_links_in_two_namespaces() -> None:
    lines = cables.script({}, RUNS, [cables.parse("1.0-2.1")])
    made = [line for line in lines if " add " in line]
    assert made == [
        "nsenter -t 101 -n ip link add enp1s0f0np0 mtu 1500 type veth peer name enp1s0f1np1 mtu 1500 netns 102",
        "nsenter -t 101 -n ip link add enP2p1s0f0np0 mtu 1500 type veth peer name enP2p1s0f1np1 mtu 1500 netns 102",
    ]
    assert sum(" up" in line for line in lines) == 4


def test_what_is_cabled_so_already_stays() -> None:
    assert cables.script(interfaces(cables.ring(4)), RUNS, cables.ring(4)) == []


def test_a_cable_that_is_moved_goes_before_the_new_one_comes() -> None:
    moved = [*cables.ring(4)[:3], cables.parse("4.0-4.1")]
    with pytest.raises(SimError, match="port 1 of node 4 has a cable already"):
        cables.script({}, RUNS, moved)
    lines = cables.script(interfaces(cables.ring(4)), RUNS, cables.ring(4)[:3])
    assert len(lines) == 4 and all(" del " in line for line in lines)


@pytest.mark.parametrize("text", ["1.0", "1.2-2.1", "spark-1.0-2.1", "1.0-2.1 "])
def test_what_is_no_cable_is_refused(text: str) -> None:
    with pytest.raises(SimError, match="is no cable"):
        cables.parse(text)


def test_a_node_that_does_not_run_is_refused() -> None:
    with pytest.raises(SimError, match="node 5 does not run"):
        cables.script({}, RUNS, [cables.parse("1.0-5.1")])
