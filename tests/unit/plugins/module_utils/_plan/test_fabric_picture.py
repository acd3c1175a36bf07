"""The picture of a network shows every cable with its ports, marks what is wrong with them, and is safe with any name."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from cluster_fixture import bare, network

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import fabric
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import fabric_figures, fabric_picture

HOSTILE = "<script>\"'&"
AT = "2026-11-24T16:02:11+00:00"


def names(size: int) -> list[str]:
    return [f"spark-{number}" for number in range(1, size + 1)]


def drawn(
    found: dict[str, Any], name: str = "four", figures: list[dict[str, Any]] | None = None
) -> ElementTree.Element:
    """The picture, read as XML: it has to be well-formed."""
    return ElementTree.fromstring(fabric_picture.network(name, found, figures or []))


def ports(found: ElementTree.Element, kind: str = "") -> list[str]:
    """The ports of a picture, by their class."""
    return [
        str(each.get("class")) for each in found.iter("g") if str(each.get("class") or "").startswith(f"port {kind}")
    ]


def lines(found: ElementTree.Element, state: str) -> list[ElementTree.Element]:
    return found.findall(f".//g[@class='{state}']/path")


def label(found: ElementTree.Element) -> str:
    return str(found.find(".//svg").get("aria-label"))  # type: ignore[union-attr]


def cabled(size: int, change: Any) -> dict[str, Any]:
    """A ring of which what hosts hear is changed."""
    entries = bare("ring", names(size))
    change(entries)
    return fabric.plan(entries)


def unplug(entries: dict[str, Any]) -> None:
    """Take the last cable out."""
    last = f"spark-{len(entries)}"
    for host, cage in (("spark-1", 1), (last, 0)):
        for netdev in entries[host]["fabric"]["ports"][cage]["netdevs"]:
            netdev["up"] = False
    entries["spark-1"]["heard"] = [each for each in entries["spark-1"]["heard"] if each["host"] != last]
    entries[last]["heard"] = [each for each in entries[last]["heard"] if each["host"] != "spark-1"]


def exchange(entries: dict[str, Any]) -> None:
    """Exchange the plugs of spark-2."""
    turned = {"f0np0": "f1np1", "f1np1": "f0np0"}
    for name, entry in entries.items():
        for each in entry["heard"]:
            key = "netdev" if name == "spark-2" else "peer" if each["host"] == "spark-2" else ""
            if key:
                each[key] = each[key][:-5] + turned[each[key][-5:]]


@pytest.mark.parametrize("size", range(3, 9))
def test_a_ring_has_a_line_for_each_cable_from_port_to_port(size: int) -> None:
    plan = network("ring", names(size))
    found = drawn(plan)
    assert len(lines(found, "right")) == size and len(ports(found, "joined")) == 2 * size
    boxes = [text.text for text in found.findall(".//g/rect/../text")]
    assert boxes == names(size)
    title = lines(found, "right")[0].find("title").text  # type: ignore[union-attr]
    assert title == f"{plan['rails'][0]['subnet']}, {plan['rails'][1]['subnet']}"
    for point in [*found.iter("text"), *found.iter("circle")]:
        left, top = (float(point.get(one) or point.get(f"c{one}") or 0) for one in "xy")
        assert 0 < left < fabric_picture.WIDTH and 0 < top < fabric_picture.HEIGHT
    # Port 0 leads on clockwise: no cable crosses another.
    ends = [tuple(map(float, re.findall(r"[\d.]+", str(each.get("d"))))) for each in lines(found, "right")]
    assert all(abs(one[0] - one[4]) + abs(one[1] - one[5]) < 500 for one in ends)


def test_a_switch_stands_in_the_middle() -> None:
    plan = network("switch", names(4))
    found = drawn(plan)
    assert len(lines(found, "right")) == 4 and "switch" in [text.text for text in found.findall(".//text")]
    assert label(found).startswith("spark-1 port 0 to switch, 192.168.100.0/24 and 192.168.101.0/24; ")
    # One of them is on another switch: those that hear each other still hang on one.
    entries = bare("switch", names(4))
    for name, entry in entries.items():
        entry["heard"] = [each for each in entry["heard"] if "spark-4" not in (name, each["host"])]
    found = drawn(fabric.plan(entries))
    assert len(lines(found, "right")) == 3 and ports(found, "silent") == ["port silent wrong"]
    assert "spark-4 port 0 has a link and hears nobody" in label(found) and "not all joined of 4" in "".join(
        found.itertext()
    )


def test_the_cable_that_is_missing_is_drawn_where_it_belongs() -> None:
    found = drawn(cabled(4, unplug))
    assert (len(lines(found, "right")), len(lines(found, "missing"))) == (3, 1)
    assert ports(found, "dark") == ["port dark wrong"] * 2
    assert "spark-1 port 1 to spark-4 port 0, belongs here and is not" in label(found)
    said = "".join(found.itertext())
    assert "fabric.line" in said and "Fix: spark-4 port 0 belongs into spark-1 port 1" in said and "not ready" in said


def test_cables_in_wrong_ports_are_marked_with_where_they_belong() -> None:
    found = drawn(cabled(4, exchange))
    assert [len(lines(found, state)) for state in ("right", "wrong", "missing")] == [2, 2, 2]
    assert ports(found).count("port joined wrong") == 4
    assert "spark-1 port 0 to spark-2 port 0, 192.168.100.0/25 and 192.168.100.128/25, in a wrong port" in label(found)


def test_a_cable_back_into_its_own_host_is_drawn() -> None:
    plan = {**network("ring", names(3)), "rails": [], "topology": "none"}
    plan["wrong"] = {"cables": [[["spark-1", 0], ["spark-1", 1]]], "missing": [], "ends": []}
    (path,) = lines(drawn(plan), "wrong")
    start, bent, end = (path.get("d") or "")[1:].replace("Q", " ").split(" ")[::2]
    assert start != end and bent not in (start, end)


RESULT = {"backend": "nccl", "nccl": "2.28.9", "gbps": 98.1, "cables": {"0-1": 24.2, "0-3": 184.0}}


def measured(error: bool = False) -> dict[str, Any]:
    """What is kept of a ring of four that was measured."""
    state = fabric_figures.with_plan(fabric_figures.read(""), "quad", network("ring", names(4)), AT)
    probe = {"rail": f"rail0{HOSTILE}", "tool": "ib_write_bw", "server": "spark-1", "client": "spark-2", "gbps": 97.28}
    state["clusters"]["quad"]["fabric"]["rails"][0]["name"] = probe["rail"]
    state = fabric_figures.with_rails(state, "quad", [probe, {**probe, "gbps": None}], {"ib_write_bw": 80}, AT)
    results: dict[str, Any] = {"spark-1": RESULT, "spark-2": {**RESULT, "cables": {"0-1": 24.2, "1-2": 183.7}}}
    if error:
        results = {"spark-1": {"error": "timed out"}, "spark-3": {"error": f"NCCL error{HOSTILE}", "between": [2, 3]}}
    return fabric_figures.with_test(
        state, "quad", {"service": "glm", "hosts": names(4)}, results, {"all_reduce": 80}, AT
    )


def test_figures_stand_on_their_cables_and_with_their_times() -> None:
    state = measured()
    entry = state["clusters"]["quad"]
    found = drawn(entry["fabric"], "quad", entry["figures"])
    assert (len(lines(found, "slow")), len(lines(found, "right"))) == (1, 3)
    assert sorted(str(each.text) for each in found.findall(".//text[@class='figure']")) == [
        "183.7 Gb/s",
        "184 Gb/s",
        "24.2 Gb/s",
    ]
    rows = [[" ".join("".join(cell.itertext()).split()) for cell in row] for row in found.findall(".//tbody/tr")]
    assert rows[0] == ["all hosts, glm", "spark-1, spark-2, spark-3, spark-4", "98.1", "nccl 2.28.9", AT]
    assert [f"rail0{HOSTILE}", "spark-2, spark-1", "97.28", "ib_write_bw", AT] in rows and len(rows) == 5
    assert (
        "spark-1 port 0 to spark-2 port 1, 192.168.100.0/25 and 192.168.100.128/25, 24.2 Gb/s, slower than it has to be"
        in label(found)
    )


def test_ranks_that_could_not_add_up_are_told_and_their_cable_marked() -> None:
    entry = measured(error=True)["clusters"]["quad"]
    found = drawn(entry["fabric"], "quad", entry["figures"])
    assert len(lines(found, "dead")) == 1 and "carries nothing" in label(found)
    assert f"failed spark-3: NCCL error{HOSTILE}" in "".join(found.itertext())


def whole_page() -> str:
    """A page with all that there may be: figures, slow and dead cables, wrong plugs, a switch, names of any kind."""
    state = measured()
    state["clusters"]["dead"] = measured(error=True)["clusters"]["quad"]
    for name, plan in {
        HOSTILE: cabled(3, unplug),
        "exchanged": cabled(5, exchange),
        "switch": network("switch", names(8)),
        "pair": network("switch", names(2)),
    }.items():
        state = fabric_figures.with_plan(state, name, plan, AT)
    return fabric_picture.page(state)


def test_the_page_of_all_networks_is_the_same_for_the_same_state_and_holds_no_markup_of_hosts() -> None:
    state = measured()
    state = fabric_figures.with_plan(state, HOSTILE, cabled(3, unplug), AT)
    text = fabric_picture.page(state)
    assert text == fabric_picture.page(fabric_figures.read(json.dumps(state)))
    assert "<script>" not in text + whole_page() and "default-src 'none'" in text
    assert '<b class="word fails">1</b> wrong cable<' in text and f"as of {AT}" in text
    assert '<b class="word fails">0 of 2</b> ready' in text  # both are still to get their addresses


def test_only_networks_that_were_looked_at_are_on_the_page_of_a_plan() -> None:
    assert fabric_picture.networks({"hosts": {}}, {}) == ""
    assert fabric_picture.networks({"clusters": {"a": {"fabric": None}}}, {}) == ""
    plan = {"clusters": {"quad": {"fabric": network("ring", names(4))}}}
    text = fabric_picture.networks(plan, fabric_figures.of_clusters(measured()))
    assert "<h2>Networks</h2>" in text and "24.2 Gb/s" in text and AT in text
