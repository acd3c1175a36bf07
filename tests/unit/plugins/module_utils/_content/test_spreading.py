# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who sends what to whom: on any site everyone gets everything, no source is asked twice at once, the LAN is crossed seldom."""

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


def entry(number: int, known: str = "yes", size: int | None = SHARD) -> dict[str, Any]:
    name = f"model-{number}.safetensors"
    return {
        "path": name,
        "store": f"models--Org--Model/blobs/{number:064x}",
        "link": f"../../blobs/{number:064x}",
        "size": size,
        "sha256": f"sha256:{number:064x}" if known != "no" else None,
        "known": known,
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


def look(index: int, there: dict[str, Any] | None = None, fabric: str = "", **more: Any) -> dict[str, Any]:
    return {
        "images": {},
        "models": {KEY: there or model()},
        "address": f"192.0.2.{index}",
        "fabric": fabric,
        # The same subnets everywhere, as pairs have them.
        "interfaces": [
            {"interface": f"rail{rail}", "address": f"10.0.{rail}.{index}", "network": f"10.0.{rail}.0/24"}
            for rail in range(2)
        ],
        "disks": {kind: {"path": f"/{kind}", "device": "1", "free": 10**12} for kind in ("images", "models")},
        "tools_missing": [],
        **more,
    }


WHOLE = [entry(1), entry(2)]


def site(fabrics: list[str], holders: int = 1) -> dict[str, dict[str, Any]]:
    return {
        f"spark-{index}": look(index, model(WHOLE) if index <= holders else None, fabric)
        for index, fabric in enumerate(fabrics, start=1)
    }


def play(looks: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """Run all rounds as they go when nothing fails."""
    state, rounds = spreading.begin(spreading.survey(looks)["things"]), []
    while True:
        state = spreading.next_round(state, looks, looks)
        if not state["planned"]:
            return state, rounds
        rounds.append(state["planned"])
        results = {send["host"]: {} for send in state["planned"]}
        for send in state["planned"]:
            results[send["host"]][send["key"]] = {
                "ok": True,
                "why": "",
                "bytes": 1,
                "seconds": 1.0,
                "link": send["kind"],
            }
        state = spreading.fold(state, results)


# --- rounds


@given(
    fabrics=st.lists(st.sampled_from(["", "a", "b", "c", "d"]), min_size=1, max_size=24),
    holders=st.integers(min_value=1, max_value=4),
)
def test_everyone_gets_everything_and_no_source_is_asked_twice_at_once(fabrics: list[str], holders: int) -> None:
    looks = site(fabrics, holders)
    state, rounds = play(looks)
    assert state["lacking"][KEY] == [] and sorted(state["holders"][KEY]) == sorted(looks)
    have = {f"spark-{index}" for index in range(1, min(holders, len(fabrics)) + 1)}
    for sends in rounds:
        assert max(Counter(send["source"] for send in sends).values()) == 1
        assert {send["source"] for send in sends} <= have, "a source has what it sends before the round"
        assert not {send["host"] for send in sends} & have
        have |= {send["host"] for send in sends}
    # An island is reached over the LAN once; a host without a fabric is an island of its own.
    names = [name or f"alone-{index}" for index, name in enumerate(fabrics)]
    bare = set(names[holders:]) - set(names[:holders])
    assert sum(send["kind"] == "lan" for sends in rounds for send in sends) == len(bare)


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 50, 100])
def test_sources_double_from_round_to_round(count: int) -> None:
    _state, rounds = play(site([""] * count))
    assert len(rounds) == math.ceil(math.log2(count))
    assert [len(sends) for sends in rounds[:-1]] == [2**number for number in range(len(rounds) - 1)]


@pytest.mark.parametrize(
    "fabrics", [["", "", "", ""], ["a", "a", "b", "b"], ["a", "a", "a", "a"], ["a", "a", "a", "b"]]
)
def test_with_four_nodes_the_first_source_sends_at_most_twice(fabrics: list[str]) -> None:
    state, _rounds = play(site(fabrics))
    assert Counter(send["source"] for send in state["sent"])["spark-1"] <= 2


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
def test_a_ring_hands_on_from_neighbour_to_neighbour_by_both_rails_and_never_over_the_lan(count: int) -> None:
    looks = ring(count)
    state, rounds = play(looks)
    sends = [send for planned in rounds for send in planned]
    assert state["lacking"][KEY] == [] and len(sends) == count - 1
    assert {send["kind"] for send in sends} == {"fabric"}
    for send in sends:
        kinds = [link["kind"] for link in spreading.links(looks[send["host"]], looks[send["source"]])]
        assert kinds == ["fabric", "fabric", "lan"]
    # Both ways round from the first source.
    assert len(rounds) <= count // 2 + 1


def test_a_host_of_a_ring_whose_neighbours_do_not_answer_gets_it_over_the_lan() -> None:
    looks = ring(4)
    state = spreading.begin(spreading.survey(looks)["things"])
    planned = spreading.next_round(state, looks, ["spark-1", "spark-3"])["planned"]
    assert [(send["source"], send["host"], send["kind"]) for send in planned] == [("spark-1", "spark-3", "lan")]


def test_two_pairs_cross_the_lan_once_and_go_on_over_their_fabrics() -> None:
    _state, rounds = play(site(["a", "a", "b", "b"]))
    told = [sorted((send["source"], send["host"], send["kind"]) for send in sends) for sends in rounds]
    assert told == [
        [("spark-1", "spark-3", "lan")],
        [("spark-1", "spark-2", "fabric"), ("spark-3", "spark-4", "fabric")],
    ]


def test_the_same_subnet_on_two_pairs_is_no_cable_between_them() -> None:
    looks = site(["a", "a", "b", ""])
    kinds = [link["kind"] for link in spreading.links(looks["spark-1"], looks["spark-2"])]
    assert kinds == ["fabric", "fabric", "lan"]
    assert [link["kind"] for link in spreading.links(looks["spark-3"], looks["spark-1"])] == ["lan"]
    assert [link["kind"] for link in spreading.links(looks["spark-4"], looks["spark-1"])] == ["lan"]


def test_several_things_come_from_several_sources() -> None:
    looks = site(["", "", ""], 2)
    other = "Org/Other@main"
    for name, said in looks.items():
        said["models"][other] = model(WHOLE if name != "spark-3" else None)
    _state, rounds = play(looks)
    assert len(rounds) == 1 and {send["source"] for send in rounds[0]} == {"spark-1", "spark-2"}


def failing(state: dict[str, Any], why: str = "the connection broke") -> dict[str, Any]:
    results: dict[str, dict[str, Any]] = {}
    for send in state["planned"]:
        results.setdefault(send["host"], {})[send["key"]] = {"ok": False, "why": why}
    return spreading.fold(state, results)


def test_what_failed_is_tried_from_another_source() -> None:
    looks = site(["", "", ""], 2)
    first = spreading.next_round(spreading.begin(spreading.survey(looks)["things"]), looks, looks)
    second = spreading.next_round(failing(first), looks, looks)
    assert [send["source"] for send in first["planned"]] == ["spark-1"]
    assert [send["source"] for send in second["planned"]] == ["spark-2"]


def test_a_host_gives_up_after_some_tries_and_says_why() -> None:
    looks = site(["", ""])
    state = spreading.begin(spreading.survey(looks)["things"])
    for _attempt in range(spreading.MOST_TRIES):
        state = spreading.next_round(state, looks, looks)
        assert [send["host"] for send in state["planned"]] == ["spark-2"]
        state = failing(state)
    state = spreading.next_round(state, looks, looks)
    assert state["planned"] == []
    assert state["given_up"]["spark-2"] == f"spark-2 did not get {KEY}: the connection broke"


def test_hosts_that_are_gone_are_not_waited_for() -> None:
    looks = site(["", "", ""])
    state = spreading.next_round(spreading.begin(spreading.survey(looks)["things"]), looks, looks)
    assert [send["host"] for send in state["planned"]] == ["spark-2"]
    # It never answers again; the round has no result of it.
    alive = ["spark-1", "spark-3"]
    state = spreading.next_round(spreading.fold(state, {}), looks, alive)
    assert [(send["source"], send["host"]) for send in state["planned"]] == [("spark-1", "spark-3")]


def test_without_a_source_left_the_host_says_so() -> None:
    looks = site(["", ""])
    state = spreading.next_round(spreading.begin(spreading.survey(looks)["things"]), looks, ["spark-2"])
    assert state["planned"] == [] and "no host that has it, whole, is left" in state["given_up"]["spark-2"]


# --- sources that send something else than they said


def wrong(state: dict[str, Any], looks: dict[str, Any], reads: dict[str, Any], bad: set[str]) -> dict[str, Any]:
    """Go on by one round, in which what comes from some hosts is wrong."""
    results: dict[str, Any] = {}
    for send in state["planned"]:
        said = {"ok": send["source"] not in bad, "wrong": send["source"] in bad, "why": "another SHA-256"}
        results.setdefault(send["host"], {})[send["key"]] = said
    return spreading.next_round(spreading.fold(state, results, reads), looks, looks)


def test_a_source_that_is_damaged_sends_no_more_and_gets_it_from_another() -> None:
    looks = site(["", "", ""], 2)
    state = spreading.next_round(spreading.begin(spreading.survey(looks)["things"]), looks, looks)
    assert [send["source"] for send in state["planned"]] == ["spark-1"]
    state = wrong(state, looks, {}, {"spark-1"})
    # While it reads, the other one sends.
    assert spreading.read_tasks(state, "spark-1") == [{"kind": "verify", "key": KEY}]
    assert spreading.read_tasks(state, "spark-2") == []
    assert [(send["source"], send["host"]) for send in state["planned"]] == [("spark-2", "spark-3")]
    read = {"spark-1": {KEY: {"ok": True, "damaged": ["model-1.safetensors"]}}}
    state = wrong(state, looks, read, {"spark-1"})
    assert state["damaged"] == [{"host": "spark-1", "key": KEY, "files": ["model-1.safetensors"]}]
    assert [send["host"] for send in state["planned"]] == ["spark-1"]
    state = wrong(state, looks, {}, set())
    assert (state["planned"], state["lacking"][KEY], state["given_up"]) == ([], [], {})


def test_the_only_source_is_read_before_hosts_give_up() -> None:
    looks = site(["", ""])
    state = spreading.next_round(spreading.begin(spreading.survey(looks)["things"]), looks, looks)
    state = wrong(state, looks, {}, {"spark-1"})
    assert state["planned"] == [] and state["given_up"] == {} and spreading.read_tasks(state, "spark-1")
    state = wrong(state, looks, {"spark-1": {KEY: {"ok": True, "damaged": ["a"]}}}, set())
    assert sorted(state["given_up"]) == ["spark-1", "spark-2"]
    assert "another SHA-256" in state["given_up"]["spark-2"]


def test_a_source_that_is_whole_goes_on_and_the_receiver_gives_up_after_some_tries() -> None:
    looks = site(["", ""])
    state = spreading.next_round(spreading.begin(spreading.survey(looks)["things"]), looks, looks)
    for _round in range(2 * spreading.MOST_TRIES):
        state = wrong(state, looks, {"spark-1": {KEY: {"ok": True, "damaged": []}}}, {"spark-1"})
    assert state["holders"][KEY] == ["spark-1"] and state["damaged"] == []
    assert len(state["failed"]) == spreading.MOST_TRIES and list(state["given_up"]) == ["spark-2"]


# --- who has what


def test_nothing_moves_where_all_have_it() -> None:
    found = spreading.survey(site(["", ""], 2))
    assert (found["fetch"], found["verify"], spreading.taking_part(found["things"])) == ({}, {}, [])


def test_one_host_brings_what_nobody_has_and_several_things_come_by_several_hosts() -> None:
    looks = site(["", "", ""], 0)
    for said in looks.values():
        said["models"]["Org/Other@main"] = model()
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
    found = spreading.survey(looks)
    assert found["verify"] == {"spark-2": [KEY]}
    (task,) = spreading.verify_tasks(found, looks, "spark-2")
    assert [(file["sha256"], file["whole_size"]) for file in task["files"]] == [
        (f"sha256:{number:064x}", SHARD) for number in (1, 2)
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
    found = spreading.survey(looks)
    assert found["things"][KEY]["holders"] == ["spark-1", "spark-3"]
    assert f"{KEY} is another commit on spark-2 than {COMMIT}" in found["notes"][0]


IMAGE = {"id": "sha256:1", "content": "one", "layers": 3, "size": 20_000_000_000}


def images(*there: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    return {
        f"spark-{index}": look(index, images={"an/image:1": image}, models={})
        for index, image in enumerate(there, start=1)
    }


def test_an_image_has_other_ids_in_other_stores_and_is_the_same() -> None:
    found = spreading.survey(images(IMAGE, {**IMAGE, "id": "sha256:2"}, None))
    assert found["things"]["an/image:1"]["holders"] == ["spark-1", "spark-2"] and not found["notes"]


def test_another_image_under_the_same_name_is_told() -> None:
    found = spreading.survey(images(IMAGE, {**IMAGE, "content": "two"}, None))
    assert found["things"]["an/image:1"]["holders"] == ["spark-1"]
    assert "another image on spark-2 than on spark-1" in found["notes"][0]


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


def test_an_image_is_asked_of_a_source_by_the_name_that_it_has_there() -> None:
    ref, tag = "an/image@sha256:" + "ab" * 32, "an/image:sha256-" + "ab" * 16
    assert spread_names.names_of(ref, ["sha256:1"]) == [ref, tag, "sha256:1"]
    assert spreading.name_at(look(1, images={ref: {**IMAGE, "name": ref}}), ref) == ref
    assert spreading.name_at(look(1, images={ref: {**IMAGE, "name": "sha256:1"}}), ref) == "sha256:1"
    # Whoever got it from another host has it by its tag.
    assert spreading.name_at(look(1, images={ref: None}), ref) == tag
    assert spreading.name_at(look(1, images={"a:1": None}), "a:1") == "a:1"
    looks = images(IMAGE, None)
    state = spreading.next_round(spreading.begin(spreading.survey(looks)["things"]), looks, looks)
    assert spreading.get_tasks(state, looks, "spark-2")[0]["name"] == "an/image:1"


# --- room and programs


def test_room_is_counted_with_what_came_already() -> None:
    looks = site(["", ""])
    own = looks["spark-2"]["models"][KEY]
    thing = spreading.survey(looks)["things"][KEY]
    assert spreading.to_come(looks["spark-2"], thing, KEY) == 2 * SHARD
    own["staged"] = {WHOLE[0]["store"]: SHARD // 4}
    own["files"] = [entry(2)]
    assert spreading.to_come(looks["spark-2"], thing, KEY) == SHARD * 3 // 4


def test_a_host_without_room_is_left_out_with_the_figures_and_the_others_get_it() -> None:
    looks = site(["", "", ""])
    looks["spark-2"]["disks"]["models"]["free"] = 3_500_000_000
    found = spreading.survey(looks)
    assert spreading.room(found, looks, 1e9) == {}
    refused = spreading.room(found, looks, 10e9)
    assert list(refused) == ["spark-2"]
    assert "/models has 3.50 GB free; 2.00 GB are to come (2.00 GB for Org/Model@main)" in refused["spark-2"]
    assert "Make 8.50 GB of room there" in refused["spark-2"]
    spreading.leave_out(found, refused)
    assert spreading.taking_part(found["things"]) == ["spark-1", "spark-3"]


def test_an_image_takes_twice_its_size_while_it_is_loaded() -> None:
    looks = images(IMAGE, None)
    looks["spark-2"]["disks"]["images"]["free"] = 45_000_000_000
    assert "40.00 GB are to come" in spreading.room(spreading.survey(looks), looks, 10e9)["spark-2"]


def test_what_lacks_is_named_with_its_package_where_something_moves() -> None:
    looks = site(["", ""])
    looks["spark-2"]["tools_missing"] = ["rsync"]
    assert spreading.unable(spreading.survey(looks), looks) == {"spark-2": "spark-2 lacks rsync: apt-get install rsync"}
    whole = site(["", ""], 2)
    whole["spark-2"]["tools_missing"] = ["rsync"]
    assert spreading.unable(spreading.survey(whole), whole) == {}
    looks["spark-2"].update(tools_missing=[], address=None)
    assert "set spread_address" in spreading.unable(spreading.survey(looks), looks)["spark-2"]


def test_a_source_that_cannot_send_is_no_source_and_no_failure() -> None:
    looks = site(["", "", ""], 2)
    looks["spark-1"]["tools_missing"] = ["sshd"]
    found = spreading.survey(looks)
    why = spreading.unable(found, looks)
    assert spreading.silence(found, why) == {}
    assert found["things"][KEY]["holders"] == ["spark-2"]
    alone = site(["", ""])
    alone["spark-1"]["tools_missing"] = ["sshd"]
    found = spreading.survey(alone)
    assert spreading.silence(found, spreading.unable(found, alone)) == {
        "spark-2": f"spark-2: {KEY} is on spark-1 alone, and spark-1 lacks sshd: apt-get install openssh-server"
    }


def test_whoever_has_a_part_brings_it_into_the_site() -> None:
    looks = site(["", "", ""], 0)
    looks["spark-3"]["models"][KEY] = model([entry(1), entry(2, size=None)])
    assert spreading.survey(looks)["fetch"] == {"spark-3": [KEY]}


# --- for a person


def test_what_would_be_done_is_told_by_rounds() -> None:
    looks = site(["a", "a", "b", "b"])
    lines = spreading.plan_lines(spreading.survey(looks), looks)
    assert lines[0] == f"round 1: spark-1 to spark-3 (lan): {KEY}, 2.00 GB"
    assert len(lines) == 3
    none = site(["", ""], 0)
    assert spreading.plan_lines(spreading.survey(none), none) == [
        f"{KEY}: spark-1 brings it into the site; 1 more take it from there"
    ]


def test_what_was_done_is_told_with_its_rate() -> None:
    sent = {
        "round": 1,
        "source": "a",
        "host": "b",
        "kind": "lan",
        "link": "fabric",
        "key": KEY,
        "bytes": 5e9,
        "seconds": 2.5,
    }
    failed = {"source": "a", "host": "c", "why": "broken"}
    damaged = {"host": "a", "key": KEY, "files": ["model-1.safetensors"]}
    assert spreading.report_lines({"sent": [sent], "failed": [failed], "damaged": [damaged]}) == [
        f"round 1: a to b (fabric): {KEY}, 5.00 GB in 2.5 s, 2000 MB/s",
        "not: a to c: broken",
        f"a: {KEY} is damaged there without a trace (model-1.safetensors); that was taken out of use",
    ]


def test_no_repository_has_every_kind_of_file_of_a_tokenizer() -> None:
    looks = site(["", ""], 2)
    for look in looks.values():
        look["models"][KEY].update(only=["*.jinja", "*.json", "*.model", "*.safetensors", "*.txt"])
    assert spreading.survey(looks)["things"][KEY]["lacking"] == []
