# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which host takes what from which: on any site all hosts get everything, and each fabric takes one copy over the LAN."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import spread_names, spreading

KEY = "Org/Model@main"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARD = 1_000_000_000


def entry(number: int, mark: str = "yes", size: int | None = SHARD) -> dict[str, Any]:
    name = f"model-{number}.safetensors"
    return {
        "path": name,
        "store": f"models--Org--Model/blobs/{number:064x}",
        "link": f"../../blobs/{number:064x}",
        "size": size,
        "sha256": f"{number:064x}" if mark != "no" else None,
        "known": mark,
    }


def model(files: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "repo": "Org/Model",
        "revision": "main",
        "only": [],
        "folder": "models--Org--Model",
        "commit": COMMIT if files else None,
        "complete": bool(files),
        "files": files or [],
        "staged": {},
        **more,
    }


def look(index: int, state: dict[str, Any] | None = None, fabric: str = "", **more: Any) -> dict[str, Any]:
    return {
        "images": {},
        "models": {KEY: state or model()},
        "address": f"192.0.2.{index}",
        "fabric": fabric,
        # The same subnets everywhere, as pairs have them.
        "interfaces": [
            {"interface": f"rail{rail}", "address": f"10.0.{rail}.{index}", "network": f"10.0.{rail}.0/24"}
            for rail in range(2)
        ],
        "disks": {kind: {"path": f"/{kind}", "device": "1", "free": 10**12} for kind in ("images", "models", "saved")},
        "tools_missing": [],
        **more,
    }


WHOLE = [entry(1), entry(2)]


def site(fabrics: list[str], holders: int = 1) -> dict[str, dict[str, Any]]:
    return {
        f"spark-{index}": look(index, model(WHOLE) if index <= holders else None, fabric)
        for index, fabric in enumerate(fabrics, start=1)
    }


def plan(looks: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the sources of the model for each host that lacks it."""
    tasks = spreading.pull_tasks(spreading.survey(looks)["things"], looks)
    return {host: task["sources"] for host, own_tasks in tasks.items() for task in own_tasks if task["key"] == KEY}


def play(looks: dict[str, dict[str, Any]]) -> list[list[tuple[str, str, str]]]:
    """Have all hosts take the model as the worker does, when each copy takes one step; returns source, host and kind of each copy."""
    waiting = plan(looks)
    have = set(looks) - set(waiting)
    steps = []
    while waiting:
        copies: list[tuple[str, str, str]] = []
        for host, sources in waiting.items():
            near = [source for source in sources if source["links"][0]["kind"] == "fabric"] or sources
            busy = {(name, kind) for name, _host, kind in copies}
            for source in near:
                kind = source["links"][0]["kind"]
                if source["name"] in have and (source["name"], kind) not in busy:
                    copies.append((source["name"], host, kind))
                    break
        assert copies, f"{list(waiting)} wait for each other"
        have |= {host for _source, host, _kind in copies}
        for _source, host, _kind in copies:
            del waiting[host]
        steps.append(copies)
    return steps


# --- pulling


@given(
    fabrics=st.lists(st.sampled_from(["", "a", "b", "c", "d"]), min_size=1, max_size=24),
    holders=st.integers(min_value=1, max_value=4),
)
def test_everyone_gets_everything_and_crosses_the_lan_once_per_island(fabrics: list[str], holders: int) -> None:
    looks = site(fabrics, holders)
    steps = play(looks)
    # An island is reached over the LAN once; a host without a fabric is a separate island.
    names = [name or f"alone-{index}" for index, name in enumerate(fabrics)]
    bare = set(names[holders:]) - set(names[:holders])
    assert sum(kind == "lan" for copies in steps for _source, _host, kind in copies) == len(bare)


@given(fabrics=st.lists(st.sampled_from(["", "a", "b"]), min_size=2, max_size=16))
def test_no_hosts_wait_for_each_other(fabrics: list[str]) -> None:
    sources = {host: {source["name"] for source in own_sources} for host, own_sources in plan(site(fabrics)).items()}
    done = {"spark-1"}
    while sources:
        ready = [host for host, names in sources.items() if names <= done]
        assert ready
        done |= set(ready)
        for host in ready:
            del sources[host]


@pytest.mark.parametrize("fabric", ["", "switch"])
@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 50, 100])
def test_sources_double_with_each_copy(count: int, fabric: str) -> None:
    steps = play(site([fabric] * count))
    assert len(steps) == math.ceil(math.log2(count))
    assert [len(copies) for copies in steps[:-1]] == [2**number for number in range(len(steps) - 1)]


@pytest.mark.parametrize(
    "fabrics", [["", "", "", ""], ["a", "a", "b", "b"], ["a", "a", "a", "a"], ["a", "a", "a", "b"]]
)
def test_with_four_nodes_the_first_source_sends_at_most_twice_over_each_network(fabrics: list[str]) -> None:
    copies = [copy for step in play(site(fabrics)) for copy in step]
    assert max(Counter((source, kind) for source, _host, kind in copies).values()) <= 2


def test_a_host_asks_a_limited_number_of_sources_and_one_that_has_it() -> None:
    sources = plan(site([""] * 100))
    assert max(len(own_sources) for own_sources in sources.values()) == spreading.MOST_SOURCES
    assert all("spark-1" in {source["name"] for source in own_sources} for own_sources in sources.values())


def ring(count: int) -> dict[str, dict[str, Any]]:
    """Hosts of which each shares two networks with each of its two neighbours, as the cables of a ring have them."""

    def rails(index: int) -> list[dict[str, str]]:
        cables = (((index - 1) % count, 1), ((index - 2) % count, 2))
        return [
            {"interface": f"p{end}r{rail}", "address": f"10.{cable}.{rail}.{end}", "network": f"10.{cable}.{rail}.0/24"}
            for cable, end in cables
            for rail in range(2)
        ]

    return {
        f"spark-{index}": look(index, model(WHOLE) if index == 1 else None, "quad", interfaces=rails(index))
        for index in range(1, count + 1)
    }


@pytest.mark.parametrize("count", range(3, 9))
def test_a_ring_uses_both_rails_of_its_cables_and_never_the_lan(count: int) -> None:
    looks = ring(count)
    steps = play(looks)
    copies = [copy for step in steps for copy in step]
    assert len(copies) == count - 1 and {kind for _source, _host, kind in copies} == {"fabric"}
    for source, host, _kind in copies:
        kinds = [link["kind"] for link in spreading.links(looks[host], looks[source])]
        assert kinds == ["fabric", "fabric", "lan"]
    # Both ways round from the first source.
    assert len(steps) <= count // 2 + 1


def test_two_pairs_cross_the_lan_once_and_go_on_over_their_fabrics() -> None:
    assert [sorted(copies) for copies in play(site(["a", "a", "b", "b"]))] == [
        [("spark-1", "spark-2", "fabric"), ("spark-1", "spark-3", "lan")],
        [("spark-3", "spark-4", "fabric")],
    ]


def test_the_lan_comes_after_the_sources_on_the_fabric() -> None:
    sources = plan(site(["a", "a", "b", "b"]))
    assert [source["links"][0]["kind"] for source in sources["spark-4"]] == ["fabric", "lan", "lan"]


def test_the_same_subnet_on_two_pairs_is_no_cable_between_them() -> None:
    looks = site(["a", "a", "b", ""])
    kinds = [link["kind"] for link in spreading.links(looks["spark-1"], looks["spark-2"])]
    assert kinds == ["fabric", "fabric", "lan"]
    assert [link["kind"] for link in spreading.links(looks["spark-3"], looks["spark-1"])] == ["lan"]
    assert [link["kind"] for link in spreading.links(looks["spark-4"], looks["spark-1"])] == ["lan"]


def test_all_hosts_have_their_tasks_in_the_same_order() -> None:
    looks = site(["", "", ""], 1)
    for name, report in looks.items():
        report["models"]["Org/Other@main"] = model(WHOLE if name == "spark-1" else None)
    tasks = spreading.pull_tasks(spreading.survey(looks)["things"], looks)
    assert [task["key"] for task in tasks["spark-2"]] == [task["key"] for task in tasks["spark-3"]]
    assert tasks["spark-1"] == []


# --- sources with wrong digests


def test_a_source_with_wrong_digests_verifies_its_files() -> None:
    failure = {"source": "spark-1", "why": "another SHA-256", "wrong": True}
    results = {
        "spark-2": {KEY: {"ok": False, "why": "x", "failed": [failure, failure]}},
        "spark-3": {KEY: {"ok": True, "failed": [{**failure, "source": "spark-2", "wrong": False}]}},
    }
    doubted = spreading.doubted_sources(results)
    assert doubted == {"spark-1": [KEY]}
    looks = site(["", "", ""], 2)
    surveyed = spreading.survey(looks, "moved", doubted)
    assert surveyed["verify"] == {"spark-1": [KEY]} and surveyed["things"][KEY]["holders"] == ["spark-2"]
    # If it is the only one, it is read before anything is downloaded.
    alone = spreading.survey(site(["", ""]), "moved", doubted)
    assert (alone["verify"], alone["fetch"]) == ({"spark-1": [KEY]}, {})


# --- who has what


def test_nothing_moves_where_all_have_it() -> None:
    surveyed = spreading.survey(site(["", ""], 2))
    assert (surveyed["fetch"], surveyed["verify"], spreading.participants(surveyed["things"])) == ({}, {}, [])


def test_one_host_brings_what_nobody_has_and_several_things_come_by_several_hosts() -> None:
    looks = site(["", "", ""], 0)
    for report in looks.values():
        report["models"]["Org/Other@main"] = model()
    assert spreading.survey(looks)["fetch"] == {"spark-1": [KEY], "spark-2": ["Org/Other@main"]}


def test_a_source_is_read_before_it_sends_and_no_more_than_are_needed() -> None:
    looks = site(["", "", "", ""], 3)
    for name in ("spark-1", "spark-2", "spark-3"):
        looks[name]["models"][KEY]["files"] = [entry(1, "no"), entry(2)]
    assert spreading.survey(looks)["verify"] == {"spark-1": [KEY]}
    assert spreading.survey(looks)["things"][KEY]["holders"] == []


def test_nobody_reads_anything_where_nothing_is_to_be_sent() -> None:
    looks = {name: look(index, model([entry(1, "no")])) for index, name in enumerate(("a", "b"))}
    assert spreading.survey(looks)["verify"] == {}
    assert spreading.survey(looks, "all")["verify"] == {"a": [KEY], "b": [KEY]}


def test_a_file_that_changed_since_is_read_again() -> None:
    looks = site(["", ""], 2)
    looks["spark-2"]["models"][KEY]["files"] = [entry(1, "changed"), entry(2)]
    surveyed = spreading.survey(looks)
    assert surveyed["verify"] == {"spark-2": [KEY]}
    (task,) = spreading.verify_tasks(surveyed, looks, "spark-2")
    assert [(file["sha256"], file["whole_size"]) for file in task["files"]] == [
        (f"{number:064x}", SHARD) for number in (1, 2)
    ]


def test_files_of_another_size_are_told_apart_without_being_read() -> None:
    looks = site(["", ""], 2)
    looks["spark-2"]["models"][KEY]["files"] = [entry(1, "no", SHARD - 1), entry(2, "no")]
    assert spreading.survey(looks)["verify"] == {"spark-2": [KEY]}
    looks["spark-1"]["models"][KEY]["files"] = [entry(1, "no"), entry(2, "no")]
    assert spreading.survey(looks)["verify"] == {"spark-1": [KEY], "spark-2": [KEY]}


def test_a_link_that_leads_nowhere_is_no_whole_snapshot() -> None:
    looks = site(["", ""], 2)
    looks["spark-2"]["models"][KEY]["files"] = [entry(1), entry(2, "no", None)]
    assert spreading.survey(looks)["things"][KEY]["lacking"] == ["spark-2"]


def test_selected_files_count_when_each_pattern_has_one() -> None:
    looks = site(["", ""], 2)
    looks["spark-2"]["models"][KEY].update(only=["*.safetensors", "*.jinja"])
    assert spreading.survey(looks)["things"][KEY]["lacking"] == ["spark-2"]


def test_another_commit_is_left_alone_and_told() -> None:
    looks = site(["", "", "", ""], 3)
    looks["spark-2"]["models"][KEY]["commit"] = "f" * 40
    surveyed = spreading.survey(looks)
    assert surveyed["things"][KEY]["holders"] == ["spark-1", "spark-3"]
    assert f"{KEY} is another commit on spark-2 than {COMMIT}" in surveyed["notes"][0]


IMAGE = {"id": "sha256:1", "content": "one", "layers": 3, "size": 20_000_000_000}


def images(*state: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    return {
        f"spark-{index}": look(index, images={"an/image:1": image}, models={})
        for index, image in enumerate(state, start=1)
    }


def test_an_image_has_other_ids_in_other_stores_and_is_the_same() -> None:
    surveyed = spreading.survey(images(IMAGE, {**IMAGE, "id": "sha256:2"}, None))
    assert surveyed["things"]["an/image:1"]["holders"] == ["spark-1", "spark-2"] and not surveyed["notes"]


def test_another_image_under_the_same_name_is_told() -> None:
    surveyed = spreading.survey(images(IMAGE, {**IMAGE, "content": "two"}, None))
    assert surveyed["things"]["an/image:1"]["holders"] == ["spark-1"]
    assert "another image on spark-2 than on spark-1" in surveyed["notes"][0]


@pytest.mark.parametrize(
    ("ref", "alias"),
    [
        ("host:5000/a/b@sha256:" + "ab" * 32, "host:5000/a/b:sha256-" + "ab" * 16),
        ("a/b:1@sha256:" + "cd" * 32, "a/b:sha256-" + "cd" * 16),
        ("a/b:1", ""),
        ("sha256:" + "ab" * 32, ""),
    ],
)
def test_an_image_named_by_digest_gets_a_tag(ref: str, alias: str) -> None:
    assert spread_names.local_alias(ref) == alias


def test_an_image_is_saved_by_the_name_that_it_has_on_the_host() -> None:
    ref, tag = "an/image@sha256:" + "ab" * 32, "an/image:sha256-" + "ab" * 16
    assert spread_names.names_of(ref, ["sha256:1"]) == [ref, tag, "sha256:1"]
    assert spreading.name_at(look(1, images={ref: {**IMAGE, "name": ref}}), ref) == ref
    assert spreading.name_at(look(1, images={ref: {**IMAGE, "name": "sha256:1"}}), ref) == "sha256:1"
    # A host that got it from another host has it under its tag.
    assert spreading.name_at(look(1, images={ref: None}), ref) == tag
    assert spreading.name_at(look(1, images={"a:1": None}), "a:1") == "a:1"


# --- room and programs


def test_room_is_counted_with_what_came_already() -> None:
    looks = site(["", ""])
    model_state = looks["spark-2"]["models"][KEY]
    thing = spreading.survey(looks)["things"][KEY]
    assert spreading.needed_bytes(looks["spark-2"], thing, KEY) == {"models": 2 * SHARD}
    model_state["staged"] = {WHOLE[0]["store"]: SHARD // 4}
    model_state["files"] = [entry(2)]
    assert spreading.needed_bytes(looks["spark-2"], thing, KEY) == {"models": SHARD * 3 // 4}


def test_a_host_without_room_is_left_out_with_the_figures_and_the_others_get_it() -> None:
    looks = site(["", "", ""])
    looks["spark-2"]["disks"]["models"]["free"] = 3_500_000_000
    surveyed = spreading.survey(looks)
    assert spreading.without_room(surveyed, looks, 1e9) == {}
    refused = spreading.without_room(surveyed, looks, 10e9)
    assert list(refused) == ["spark-2"]
    assert "/models has 3.50 GB free; 2.00 GB are to come (2.00 GB for Org/Model@main)" in refused["spark-2"]
    assert "Make 8.50 GB of room there" in refused["spark-2"]
    spreading.remove_receivers(surveyed, refused)
    assert spreading.participants(surveyed["things"]) == ["spark-1", "spark-3"]


def test_an_image_takes_three_times_its_size_while_it_is_loaded() -> None:
    """Twice on Docker's disk, as an archive and as layers, and once as received files."""
    looks = images(IMAGE, None)
    disks = looks["spark-2"]["disks"]
    for disk in disks.values():
        disk["free"] = 65_000_000_000
    assert (
        "60.00 GB are to come (60.00 GB for" in spreading.without_room(spreading.survey(looks), looks, 10e9)["spark-2"]
    )
    disks["images"]["device"] = "2"
    assert spreading.without_room(spreading.survey(looks), looks, 10e9) == {}
    disks["saved"]["free"] = 25_000_000_000
    assert (
        "/saved has 25.00 GB free; 20.00 GB are to come"
        in spreading.without_room(spreading.survey(looks), looks, 10e9)["spark-2"]
    )


def test_what_lacks_is_named_with_its_package_where_something_moves() -> None:
    looks = site(["", ""])
    looks["spark-2"]["tools_missing"] = ["sshd"]
    assert spreading.unable(spreading.survey(looks), looks) == {
        "spark-2": "spark-2 lacks sshd: apt-get install openssh-server"
    }
    complete_site = site(["", ""], 2)
    complete_site["spark-2"]["tools_missing"] = ["sshd"]
    assert spreading.unable(spreading.survey(complete_site), complete_site) == {}
    looks["spark-2"].update(tools_missing=[], address=None)
    assert "set spread_address" in spreading.unable(spreading.survey(looks), looks)["spark-2"]


def test_a_source_that_cannot_send_is_no_source_and_no_failure() -> None:
    looks = site(["", "", ""], 2)
    looks["spark-1"]["tools_missing"] = ["sshd"]
    surveyed = spreading.survey(looks)
    why = spreading.unable(surveyed, looks)
    assert spreading.remove_sources(surveyed, why) == {}
    assert surveyed["things"][KEY]["holders"] == ["spark-2"]
    alone = site(["", ""])
    alone["spark-1"]["tools_missing"] = ["sshd"]
    surveyed = spreading.survey(alone)
    assert spreading.remove_sources(surveyed, spreading.unable(surveyed, alone)) == {
        "spark-2": f"spark-2: {KEY} is on spark-1 alone, and spark-1 lacks sshd: apt-get install openssh-server"
    }


def test_whoever_has_a_part_brings_it_into_the_site() -> None:
    looks = site(["", "", ""], 0)
    looks["spark-3"]["models"][KEY] = model([entry(1), entry(2, size=None)])
    assert spreading.survey(looks)["fetch"] == {"spark-3": [KEY]}


# --- for a person


def test_the_planned_copies_are_listed() -> None:
    looks = site(["a", "a", "b", "b"])
    assert spreading.plan_lines(spreading.survey(looks), looks) == [
        f"spark-1 to spark-2 (fabric): {KEY}, 2.00 GB",
        f"spark-1 to spark-3 (lan): {KEY}, 2.00 GB",
        f"spark-3 to spark-4 (fabric): {KEY}, 2.00 GB",
    ]
    none = site(["", ""], 0)
    assert spreading.plan_lines(spreading.survey(none), none) == [
        f"{KEY}: spark-1 brings it into the site; 1 more take it from there"
    ]


def test_results_are_listed_with_their_rates() -> None:
    pulled = {"ok": True, "why": "", "source": "a", "link": "fabric", "bytes": 5e9, "seconds": 2.5}
    failed = {"ok": False, "why": "broken", "failed": [{"source": "a", "why": "broken", "wrong": False}]}
    damaged = {"ok": True, "why": "", "damaged": ["model-1.safetensors"]}
    assert spreading.result_lines("b", {KEY: pulled, "image": failed, "other": damaged}) == [
        "not: a to b: broken",
        f"a to b (fabric): {KEY}, 5.00 GB in 2.5 s, 2000 MB/s",
        "b: other is damaged there (model-1.safetensors); these files were taken out of use",
    ]
    assert spreading.result_lines("b", {KEY: {"ok": True, "why": "", "bytes": 5, "source": ""}}) == []


def test_no_repository_has_every_kind_of_file_of_a_tokenizer() -> None:
    looks = site(["", ""], 2)
    for look in looks.values():
        look["models"][KEY].update(only=["*.jinja", "*.json", "*.model", "*.safetensors", "*.txt"])
    assert spreading.survey(looks)["things"][KEY]["lacking"] == []
