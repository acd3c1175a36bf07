"""The picture of a network shows every cable with its ports, and is safe with any name."""

from __future__ import annotations

import math
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import fabric_picture

HOSTILE = "<script>\"'&"


def ring(names: list[str], topology: str = "ring") -> dict[str, Any]:
    following = [*names[1:], names[0]]
    rails = [
        {"subnet": f"10.{number}.{position}.0/24", "ends": {one: {"cage": 0}, other: {"cage": 1}}}
        for number, (one, other) in enumerate(zip(names, following))
        for position in (0, 1)
    ]
    return {"topology": topology, "ready": True, "hosts": {name: {} for name in names}, "rails": rails, "findings": []}


def drawn(fabric: dict[str, Any], name: str = "four") -> ElementTree.Element:
    """The picture, read as XML: it has to be well-formed."""
    return ElementTree.fromstring(fabric_picture.network(name, fabric))


@pytest.mark.parametrize("size", range(3, 9))
def test_a_ring_has_a_line_for_each_cable(size: int) -> None:
    names = [f"spark-{number}" for number in range(size)]
    found = drawn(ring(names))
    assert len(found.findall(".//line")) == size
    assert [text.text for text in found.findall(".//text") if text.get("class") is None] == names
    assert [text.text for text in found.findall(".//text[@class='port']")] == ["0", "1"] * size
    assert found.find(".//line/title").text == "10.0.0.0/24, 10.0.1.0/24"  # type: ignore[union-attr]
    for point in found.iter("text"):
        assert (
            0 < float(point.get("x", "")) < fabric_picture.WIDTH
            and 0 < float(point.get("y", "")) < fabric_picture.HEIGHT
        )


@pytest.mark.parametrize("size", range(2, 9))
def test_a_port_is_written_beside_its_cable(size: int) -> None:
    for cable in drawn(ring([f"s{number}" for number in range(size)])).findall(".//g/line/.."):
        line = cable.find("line")
        assert line is not None
        x1, y1, x2, y2 = (float(line.get(name, "")) for name in ("x1", "y1", "x2", "y2"))
        for text in cable.findall("text"):
            # The middle of a figure of 11 px is some 4 px above its foot.
            x, y = float(text.get("x", "")), float(text.get("y", "")) - 4
            aside = abs((x2 - x1) * (y1 - y) - (x1 - x) * (y2 - y1)) / math.hypot(x2 - x1, y2 - y1)
            assert 10 < aside < 12


def test_a_switch_stands_in_the_middle() -> None:
    fabric = ring(["a", "b", "c", "d"], "switch")
    fabric["rails"] = [{"subnet": "10.0.0.0/24", "ends": {name: {"cage": 0} for name in "abcd"}}]
    found = drawn(fabric)
    assert len(found.findall(".//line")) == 4 and "switch" in [text.text for text in found.findall(".//text")]
    assert "a port 0 to switch, 10.0.0.0/24" in str(found.find(".//svg").get("aria-label"))  # type: ignore[union-attr]


def test_what_was_measured_is_said_beside_the_cables() -> None:
    fabric = ring(["a", "b", "c"])
    probe = {"rail": f"rail0{HOSTILE}", "tool": "ib_write_bw", "server": "a", "client": "b", "gbps": 97.28, "error": ""}
    fabric["measured"] = [probe, {**probe, "rail": "rail1", "gbps": None}]
    found = drawn(fabric)
    told = [text for text in ("".join(each.itertext()) for each in found.iter("p")) if "Gb/s" in text]
    assert told == [f"rail0{HOSTILE}, b to a: 97.28 Gb/s (ib_write_bw)"]


def test_what_is_wrong_is_drawn_and_said() -> None:
    fabric = {**ring(["a", "b", "c"], "none"), "rails": [], "ready": False, "cables": [[["a", 0], ["b", 0]]]}
    fabric["findings"] = [
        {"rule": "fabric.miscabled", "severity": "error", "message": f"{HOSTILE} port 0 belongs into"},
        {"rule": "fabric.others", "severity": "info", "message": "left out"},
    ]
    found = drawn(fabric, HOSTILE)
    assert len(found.findall(".//g[@class='wrong']/line")) == 1
    said = "".join(found.itertext())
    assert f"{HOSTILE} port 0 belongs into" in said and "not ready" in said and "left out" not in said


def test_only_networks_that_were_looked_at_are_shown() -> None:
    assert fabric_picture.networks({"hosts": {}}) == ""
    assert fabric_picture.networks({"clusters": {"a": {"fabric": None}}}) == ""
    text = fabric_picture.networks({"clusters": {"a": {"fabric": ring([HOSTILE, "b", "c"])}}})
    assert "<script>" not in text and re.search("<h2>Networks</h2>", text)
