"""The tables of a network list every cable with its ports and state, and are safe with any name."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from cluster_fixture import bare, network

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import fabric
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import fabric_figures, fabric_tables

HOSTILE = "<script>\"'&"
AT = "2026-11-24T16:02:11+00:00"


def names(size: int) -> list[str]:
    return [f"spark-{number}" for number in range(1, size + 1)]


def table(html: str, number: int = 0) -> list[list[str]]:
    """Return the texts of the cells of a table, by its number. The HTML is read as XML: it has to be well-formed."""
    body = ElementTree.fromstring(html).findall(".//tbody")[number]
    return [["".join(cell.itertext()) for cell in row] for row in body]


def shown(html: str) -> str:
    """Return the text that a browser shows."""
    return " ".join("".join(ElementTree.fromstring(html).itertext()).split())


def cabled(size: int, change: Any) -> dict[str, Any]:
    """Return a ring with changed neighbours of hosts."""
    entries = bare("ring", names(size))
    change(entries)
    return fabric.plan(entries)


def unplug(entries: dict[str, Any]) -> None:
    """Take the last cable out."""
    last = f"spark-{len(entries)}"
    for host, cage in (("spark-1", 1), (last, 0)):
        for netdev in entries[host]["fabric"]["ports"][cage]["netdevs"]:
            netdev["up"] = False
    entries["spark-1"]["heard"] = [neighbour for neighbour in entries["spark-1"]["heard"] if neighbour["host"] != last]
    entries[last]["heard"] = [neighbour for neighbour in entries[last]["heard"] if neighbour["host"] != "spark-1"]


def exchange(entries: dict[str, Any]) -> None:
    """Exchange the plugs of spark-2."""
    turned = {"f0np0": "f1np1", "f1np1": "f0np0"}
    for name, entry in entries.items():
        for neighbour in entry["heard"]:
            key = "netdev" if name == "spark-2" else "peer" if neighbour["host"] == "spark-2" else ""
            if key:
                neighbour[key] = neighbour[key][:-5] + turned[neighbour[key][-5:]]


@pytest.mark.parametrize("size", range(3, 9))
def test_a_ring_has_a_row_for_each_cable_from_port_to_port(size: int) -> None:
    plan = network("ring", names(size))
    rows = table(fabric_tables.render_network("ring", plan))
    assert len(rows) == size and {row[4] for row in rows} == {"right"}
    ports = [end for row in rows for end in row[:2]]
    assert sorted(ports) == [f"{name} port {port}" for name in names(size) for port in (0, 1)]
    subnets = f"{plan['rails'][0]['subnet']}, {plan['rails'][1]['subnet']}"
    assert rows[0] == ["spark-1 port 0", "spark-2 port 1", subnets, "", "right"]


def test_each_host_of_a_switch_has_a_row() -> None:
    rows = table(fabric_tables.render_network("four", network("switch", names(4))))
    subnets = "192.168.100.0/24, 192.168.101.0/24"
    cables = [[f"{name} port 0", "switch", subnets, "", "right"] for name in names(4)]
    assert rows == [*cables, *([f"{name} port 1", "", "", "", "has no link"] for name in names(4))]
    # One of them is on another switch: the others still hear each other.
    entries = bare("switch", names(4))
    for name, entry in entries.items():
        entry["heard"] = [neighbour for neighbour in entry["heard"] if "spark-4" not in (name, neighbour["host"])]
    html = fabric_tables.render_network("four", fabric.plan(entries))
    assert [row[0] for row in table(html) if row[1] == "switch"] == [f"{name} port 0" for name in names(3)]
    assert ["spark-4 port 0", "", "", "", "has a link and hears nobody"] in table(html)
    assert '<span class="word fails">has a link and hears nobody</span>' in html
    assert "not all joined of 4" in shown(html)


def test_the_missing_cable_is_listed_with_the_ports_that_it_belongs_into() -> None:
    html = fabric_tables.render_network("four", cabled(4, unplug))
    rows = table(html)
    assert [row[4] for row in rows].count("right") == 3
    assert ["spark-1 port 1", "spark-4 port 0", "", "", "belongs here and is missing"] in rows
    assert [row[0] for row in rows if row[4] == "has no link"] == ["spark-1 port 1", "spark-4 port 0"]
    assert "fabric.line" in html and "not ready" in html
    assert "Fix: spark-4 port 0 belongs into spark-1 port 1" in shown(html)


def test_cables_in_wrong_ports_are_listed_with_where_they_belong() -> None:
    rows = table(fabric_tables.render_network("four", cabled(4, exchange)))
    states = [row[4] for row in rows]
    assert [states.count(text) for text in ("right", "in a wrong port", "belongs here and is missing")] == [2, 2, 2]
    assert ["spark-1 port 0", "spark-2 port 0", "192.168.100.0/25, 192.168.100.128/25", "", "in a wrong port"] in rows


def test_a_cable_back_into_its_own_host_is_listed() -> None:
    plan = {**network("ring", names(3)), "rails": [], "topology": "none"}
    plan["wrong"] = {"cables": [[["spark-1", 0], ["spark-1", 1]]], "missing": [], "ends": []}
    rows = table(fabric_tables.render_network("three", plan))
    assert rows == [["spark-1 port 0", "spark-1 port 1", "", "", "in a wrong port"]]


RESULT = {"backend": "nccl", "nccl": "2.28.9", "gbps": 98.1, "cables": {"0-1": 24.2, "0-3": 184.0}}


def measured(error: bool = False) -> dict[str, Any]:
    """Return the kept figures of a ring of four Sparks."""
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


def test_figures_stand_with_their_cables_and_with_their_times() -> None:
    entry = measured()["clusters"]["quad"]
    html = fabric_tables.render_network("quad", entry["fabric"], entry["figures"])
    cables, rows = table(html), table(html, 1)
    subnets = "192.168.100.0/25, 192.168.100.128/25"
    assert ["spark-1 port 0", "spark-2 port 1", subnets, "24.2", "slower than required"] in cables
    assert sorted(row[3] for row in cables if row[4] == "right") == ["", "183.7", "184"]
    assert rows[0] == ["all hosts, glm", "spark-1, spark-2, spark-3, spark-4", "98.1", "nccl 2.28.9", AT]
    assert [f"rail0{HOSTILE}", "spark-2, spark-1", "97.28", "ib_write_bw", AT] in rows and len(rows) == 5


def test_ranks_that_could_not_add_up_are_told_and_their_cable_marked() -> None:
    entry = measured(error=True)["clusters"]["quad"]
    html = fabric_tables.render_network("quad", entry["fabric"], entry["figures"])
    assert [row[4] for row in table(html)].count("carries nothing") == 1
    assert f"failed spark-3: NCCL error{HOSTILE}" in shown(html)


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
    return fabric_tables.page(state)


def test_the_page_of_all_networks_is_the_same_for_the_same_state_and_holds_no_markup_of_hosts() -> None:
    state = measured()
    state = fabric_figures.with_plan(state, HOSTILE, cabled(3, unplug), AT)
    text = fabric_tables.page(state)
    assert text == fabric_tables.page(fabric_figures.read(json.dumps(state)))
    assert "<script>" not in text + whole_page() and "default-src 'none'" in text
    assert '<b class="word fails">1</b> wrong cable<' in text and f"as of {AT}" in text
    assert '<b class="word fails">0 of 2</b> ready' in text  # both are still to get their addresses


def test_only_networks_that_were_looked_at_are_on_the_page_of_a_plan() -> None:
    assert fabric_tables.render_networks({"hosts": {}}, {}) == ""
    assert fabric_tables.render_networks({"clusters": {"a": {"fabric": None}}}, {}) == ""
    plan = {"clusters": {"quad": {"fabric": network("ring", names(4))}}}
    text = fabric_tables.render_networks(plan, fabric_figures.of_clusters(measured()))
    assert "<h2>Networks</h2>" in text and "24.2" in text and AT in text
