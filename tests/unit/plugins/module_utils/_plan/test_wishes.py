# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models for given jobs: the search against all placements of small fleets, and proposals with the recipes and the planner."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from planned_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import list_causes
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import proposal, wishes
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.picture import free_gib
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.plan import make_plan, plan_findings
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.wish_fleet import Figures, Fleet, Offer
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.wish_search import Search

GIB = 100.0
"""Of a Spark of the played planner."""
CODER = {"name": "coder", "jobs": ["code"], "features": ["tools"], "tokens_per_second": 30, "context": 100000}
SEARCH = {"name": "search", "jobs": ["embed"], "context": 8192}
FAST = {"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": 8001}


def played(hosts: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A planner of services whose recipe is C(GIB-RATE): its memory over all Sparks, and its rate on one."""
    bodies = {}
    for name, host in hosts.items():
        entries = [(entry, 0, (name,)) for entry in host["vars"].get("spark_services") or []]
        cluster = host["vars"].get("spark_cluster") or {}
        for entry in cluster.get("services", ()):
            span = tuple(entry.get("hosts") or groups[cluster["name"]])
            entries += [(entry, span.index(name), span)] if name in span else []
        services = [service(entry, rank, span, cluster.get("name")) for entry, rank, span in entries]
        held = [engine["memory"]["residency_gib"]["typical"] for engine in services if engine["state"] == "started"]
        waiting = [
            engine["memory"]["residency_gib"]["typical"] for engine in services if engine["state"] == "on_demand"
        ]
        free = GIB - sum(held) - max(waiting, default=0.0)
        over = {"rule": "memory.node", "severity": "error", "message": "too much", "service": ""}
        memory_map = [{"kind": "free", "gib": max(free, 0.0), "service": None}]
        bodies[name] = {
            "services": services,
            "findings": [over] if free < 0 else [],
            "verdict": "fits",
            "memory_map": memory_map,
        }
    clusters = {name: {"hosts": list(members)} for name, members in groups.items() if name.startswith("cluster")}
    return {"hosts": bodies, "clusters": clusters, "addons": {}}


def service(entry: Mapping[str, Any], rank: int, span: Sequence[str], cluster: str | None) -> dict[str, Any]:
    gib, rate = map(float, entry["recipe"].split("-"))
    args, streams = entry["args"], entry["args"]["max-num-seqs"]
    return {
        "name": entry["name"], "rank": rank, "recipe": entry["recipe"], "variant": [], "args": args, "port": entry["port"],
        "state": "on_demand" if entry.get("on_demand") else "started",
        "cluster": {"name": cluster, "hosts": list(span)} if len(span) > 1 else None,
        "memory": {"residency_gib": {"typical": gib / len(span)}, "max_concurrency": streams, "weights_bytes": gib * 2**30 / len(span)},
        "speed": {"streams": streams, "all_streams": {"typical": rate * len(span) * streams}, "unknown": {}, "first_token_8k": None, "first_token_full": None},
    }  # fmt: skip


def fleet_of(count: int) -> Fleet:
    hosts = {f"s{number}": {"vars": {}} for number in range(count)}
    return Fleet(hosts, {}, played)


def wish(name: str, **keys: Any) -> wishes.Wish:
    return wishes.read([{"name": name, **keys}], {})[0]


def offer(gib: int, ranks: int = 1, replicas: int = 1) -> Offer:
    return Offer(f"{gib}-50", "", "tensor" if ranks > 1 else "own", ranks, replicas, 1, 32768)


def best_of_all(count: int, jobs: Sequence[wishes.Wish], offers: Mapping[str, Sequence[Offer]]) -> tuple[int, int, int]:
    """The best score of all placements of engines of one Spark."""
    best = (0, 0, 0)
    options = []
    for job in jobs:
        places = itertools.product(
            range(count), enumerate(offers[job.name]), (False, True) if job.on_demand else (False,)
        )
        options.append([None, *places])
    for choice in itertools.product(*options):
        held, waiting = [0.0] * count, [0.0] * count
        weight = permanent = rank = 0
        for job, option in zip(jobs, choice):
            if option is None:
                continue
            host, (position, chosen), on_demand = option
            gib = float(chosen.recipe.split("-")[0])
            held[host] += 0 if on_demand else gib
            waiting[host] = max(waiting[host], gib if on_demand else 0)
            weight, rank = weight + job.importance, rank + position
            permanent += 0 if on_demand else job.importance
        if all(first + second <= GIB for first, second in zip(held, waiting)):
            best = max(best, (weight, permanent, -rank))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_a_complete_search_finds_the_best_of_all_placements(seed: int) -> None:
    dice = random.Random(seed)
    count = dice.choice((1, 2))
    jobs = [wish(f"j{number}", importance=dice.randint(1, 9), on_demand=dice.random() < 0.5) for number in range(4)]
    jobs.sort(key=lambda job: -job.importance)
    offers = {job.name: [offer(gib) for gib in sorted(dice.sample(range(10, 100, 5), 2), reverse=True)] for job in jobs}
    placed = Search(fleet_of(count), jobs, offers).best()
    assert placed.complete
    assert placed.score == best_of_all(count, jobs, offers)
    again = Search(fleet_of(count), jobs, offers).best()
    assert (again.chosen, again.layout) == (placed.chosen, placed.layout)


def test_replicas_stand_on_different_sparks_and_ranks_on_a_new_cluster() -> None:
    jobs = [wish("twice", importance=9), wish("wide", importance=8)]
    offers = {"twice": [offer(60, replicas=2)], "wide": [offer(120, ranks=2)]}
    placed = Search(fleet_of(4), jobs, offers).best()
    places = {job.name: [piece.hosts for piece in placed.layout.of(job.name)] for job in jobs}
    assert placed.complete and placed.score[:2] == (17, 17)
    assert len({host for (host,) in places["twice"]}) == 2
    ((first, second),) = places["wide"]
    assert first != second and placed.layout.cluster_of[first] == placed.layout.cluster_of[second]
    assert not {first, second} & {host for (host,) in places["twice"]}


def test_a_job_that_shares_its_bus_moves_to_an_unused_spark() -> None:
    jobs = [wish("one", tokens_per_second=40), wish("two", tokens_per_second=40), wish("three", tokens_per_second=20)]
    offers = {job.name: [offer(30)] for job in jobs}
    crowded = Search(fleet_of(1), jobs, offers).best()
    assert len(crowded.layout.pieces["s0"]) == 3
    spread = Search(fleet_of(3), jobs, offers).best()
    assert sorted(host for job in jobs for piece in spread.layout.of(job.name) for host in piece.hosts) == [
        "s0",
        "s1",
        "s2",
    ]
    assert spread.score == crowded.score


def test_another_job_moves_to_a_used_spark_if_that_helps() -> None:
    existing = {"name": "old", "recipe": "20-50", "port": 8001, "args": {"max-num-seqs": 1, "max-model-len": 32768}}
    jobs = [wish("fast", tokens_per_second=40, importance=8), wish("any")]
    offers = {"fast": [offer(85)], "any": [offer(10)]}
    hosts = {
        "s0": {"vars": {"spark_services": [existing]}},
        "s1": {"vars": {"spark_services": [existing]}},
        "s2": {"vars": {}},
    }
    placed = Search(Fleet(hosts, {}, played), jobs, offers).best()
    # Both are on the unused Spark first, which has the least room for the other job; the fast one fits no other.
    places = {job.name: placed.layout.of(job.name)[0].hosts for job in jobs}
    assert places["fast"] == ("s2",) and places["any"] != ("s2",)
    # Where nothing helps, nothing moves.
    alone = Search(Fleet({"s2": hosts["s2"]}, {}, played), jobs, offers).best()
    assert {piece.wish for piece in alone.layout.pieces["s2"]} == {"fast", "any"}


def test_a_search_that_ends_early_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [wish(f"j{number}", on_demand=False) for number in range(6)]
    offers = {job.name: [offer(70), offer(55)] for job in jobs}
    assert Search(fleet_of(4), jobs, offers).best().score[0] == 4 * 5
    monkeypatch.setattr("ansible_collections.dgxspark.vllm.plugins.module_utils._plan.wish_search.WORK", 10)
    cut = Search(fleet_of(4), jobs, offers).best()
    assert not cut.complete and cut.score[0] == 4 * 5


def test_a_search_counts_each_different_spark_that_it_looks_at_once() -> None:
    """One Spark of each kind stands for all of its kind; without room for the wish nothing else is worked on."""
    existing = {"name": "old", "recipe": "20-50", "port": 8001, "args": {"max-num-seqs": 1, "max-model-len": 32768}}
    small = {**existing, "recipe": "15-50"}
    hosts = {
        name: {"vars": {"spark_services": services}}
        for name, services in {"s0": [existing], "s1": [existing], "s2": [small]}.items()
    }
    search = Search(Fleet(hosts, {}, played), [wish("large", on_demand=False)], {"large": [offer(99)]})
    placed = search.best()
    assert placed.complete and not placed.chosen
    assert search.work == 2


def test_a_combination_that_is_planned_anew_counts_more() -> None:
    """A look at the Spark, one at it with the wish, and 50 for its plan, which a second search has already."""
    fleet, jobs = fleet_of(1), [wish("one", on_demand=False)]
    for work in (1 + 1 + 50, 1 + 1):
        search = Search(fleet, jobs, {"one": [offer(60)]})
        assert search.best().complete and search.work == work
    # With more than eight Sparks a search may take half the work.
    assert Search(fleet_of(8), [], {}).limit == 2 * Search(fleet_of(9), [], {}).limit


def test_of_many_sparks_a_wish_without_a_place_comes_before_larger_models() -> None:
    jobs = [wish(f"j{number}", on_demand=False) for number in range(9)] + [wish("late", on_demand=False)]
    fleet, smaller, larger = fleet_of(9), [offer(60)], [offer(100), offer(60)]
    earlier = Search(fleet, jobs, {job.name: smaller for job in jobs[:9]}).best()
    assert set(earlier.chosen) == {job.name for job in jobs[:9]}
    offers = {job.name: larger for job in jobs[:9]} | {"late": [offer(40)]}
    placed = Search(fleet, jobs, offers).best(earlier)
    ((host,),) = [piece.hosts for piece in placed.layout.of("late")]
    assert len(placed.layout.on(host)) == 2
    assert sorted(option.recipe for option, _waiting in placed.chosen.values()) == ["100-50"] * 8 + ["40-50", "60-50"]


# With the recipes and the planner -------------------------------------------------------------------------------------------


def make(hosts: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    return make_plan(hosts, RECIPES, groups=groups)


def propose(hosts: Mapping[str, Any], *jobs: Any, groups: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    given = {name: {"vars": values, "address": ""} for name, values in hosts.items()}
    return proposal.propose(list(jobs), given, {}, {"sparks": list(hosts), **(groups or {})}, RECIPES, make)


def planned(proposed: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of a proposed inventory, read as Ansible reads groups."""
    sparks = proposed["inventory"]["sparks"]
    children = sparks.get("children", {})
    hosts = {name: {**sparks.get("vars", {}), **values} for name, values in sparks["hosts"].items()}
    for child in children.values():
        for name in child["hosts"]:
            hosts[name].update(child.get("vars", {}))
    groups = {"sparks": list(hosts), **{name: list(child["hosts"]) for name, child in children.items()}}
    return make({name: {"vars": values} for name, values in hosts.items()}, groups)


def answers(proposed: Mapping[str, Any]) -> dict[str, str]:
    return {row["name"]: row["state"] for row in proposed["wishes"]}


def test_a_proposed_inventory_is_accepted_and_serves_the_jobs() -> None:
    proposed = propose({"s1": {}}, CODER, {**SEARCH, "importance": 2})
    assert answers(proposed) == {"coder": "proposed", "search": "proposed"}
    assert proposed["complete"] and not proposed["errors"]
    plan = planned(proposed)
    assert not list_causes(plan_findings(plan))
    by_name = {service["name"]: service for service in plan["hosts"]["s1"]["services"]}
    coder = by_name["coder"]
    assert coder["checks"]["tools"] and coder["memory"]["max_model_len"] == 100000
    assert coder["memory"]["max_concurrency"] >= 1
    assert coder["speed"]["all_streams"]["typical"] >= 30
    row = proposed["wishes"][0]
    assert row["tokens_per_second"]["typical"] == pytest.approx(coder["speed"]["all_streams"]["typical"], abs=0.01)
    assert row["tokens_per_second_together"] == pytest.approx(row["tokens_per_second"]["typical"] / 2, abs=0.01)
    text = proposal.text(proposed, "/x.yml")
    assert "2 of 2 are served" in text and "/x.yml" in text and "while all other services of its Spark are busy" in text


def test_memory_of_a_gateway_is_kept_though_its_engines_are_elsewhere() -> None:
    """A Spark is judged alone, without the variables that name other hosts."""
    gateway = {"aliases": {"chat": "s2/fast"}, "memory_gib": 3.5}
    other = {"name": "other", "memory_gib": 2}
    hosts = {
        "s1": {"vars": {"spark_gateway": gateway, "spark_sidecars": [other]}, "address": "192.0.2.1"},
        "s2": {"vars": {"spark_services": [{**FAST, "api_key_file": "/keys/fast"}]}, "address": "192.0.2.2"},
    }
    fleet = Fleet(hosts, {"sparks": list(hosts)}, make)
    assert "spark_gateway" not in fleet.vars["s1"]
    assert fleet.vars["s1"]["spark_sidecars"] == [other, {"name": "add-ons", "memory_gib": 3.5}]
    for name in hosts:
        assert fleet.free(fleet.empty, name) == pytest.approx(free_gib(fleet.base["hosts"][name]), abs=0.02)
    # The memory of an engine on the same Spark is not that of an add-on.
    services = [{**FAST, "memory_gib": 20}]
    beside = {"s2": {"vars": {"spark_services": services, "spark_gateway": gateway}, "address": "192.0.2.2"}}
    assert Fleet(beside, {"sparks": ["s2"]}, make).vars["s2"]["spark_sidecars"] == [
        {"name": "add-ons", "memory_gib": 3.5}
    ]


def test_the_address_of_a_spark_is_proposed_unless_it_is_its_name() -> None:
    addresses = {"s1": "192.0.2.1", "s2": "s2", "s3": ""}
    given = {name: {"vars": {}, "address": address} for name, address in addresses.items()}
    proposed = proposal.propose([SEARCH], given, {}, {"sparks": list(given)}, RECIPES, make)
    hosts = proposed["inventory"]["sparks"]["hosts"]
    assert {name: values.get("ansible_host") for name, values in hosts.items()} == {
        "s1": "192.0.2.1",
        "s2": None,
        "s3": None,
    }


def test_services_of_the_inventory_stay_and_serve_jobs_themselves() -> None:
    heavy = {
        "name": "heavy",
        "recipe": "gpt-oss-120b",
        "port": 8101,
        "args": {"max-model-len": 65536, "max-num-seqs": 4},
    }
    big = {"name": "big", "model": "openai/gpt-oss-120b", "context": 65536, "users": 4}
    proposed = propose({"s1": {"spark_services": [heavy]}}, big, {**SEARCH, "name": "heavy"})
    assert answers(proposed) == {"big": "present", "heavy": "proposed"}
    services = proposed["inventory"]["sparks"]["hosts"]["s1"]["spark_services"]
    assert services[0] == heavy
    # Neither name nor port is taken twice.
    assert (services[1]["name"], services[1]["port"]) == ("heavy-2", 8102)
    assert not list_causes(plan_findings(planned(proposed)))


def test_a_model_for_two_sparks_makes_a_cluster_and_uses_one_that_is_there() -> None:
    large = {"name": "large", "recipe": "qwen3-235b-a22b-gptq-int4", "context": 32768}
    proposed = propose({"s1": {}, "s2": {}}, large)
    assert answers(proposed) == {"large": "proposed"}
    ((name, child),) = proposed["inventory"]["sparks"]["children"].items()
    assert child["vars"]["spark_cluster"]["name"] == name and set(child["hosts"]) == {"s1", "s2"}
    assert any("join them by QSFP" in note for note in proposed["notes"])
    assert not list_causes(plan_findings(planned(proposed)))
    pair = {"name": "pair", "services": []}
    filled = {"spark_cluster": pair, "spark_services": [FAST]}
    present = propose({"s1": filled, "s2": filled}, large, groups={"pair": ["s2", "s1"]})
    assert list(present["inventory"]["sparks"]["children"]) == ["pair"]
    assert present["inventory"]["sparks"]["children"]["pair"]["vars"]["spark_cluster"]["services"][0]["name"] == "large"
    assert not present["notes"] and not present["errors"]
    (row,) = propose({"s1": {}}, {**large, "recipe": "", "model": "nvidia/Kimi-K2.6-NVFP4"})["wishes"]
    assert row["reason"].startswith("its recipes need more Sparks than the 1")


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({"features": ["vision"], "jobs": ["embed"]}, "no recipe is able to do all of vision, embed"),
        ({"recipe": "gpt-oss-20b", "tokens_per_second": 900}, "the fastest is gpt-oss-20b"),
        ({"recipe": "qwen3-8b", "context": 900000}, "SPK403"),
        ({"recipe": "qwen3-8b", "features": ["vision"]}, "qwen3-8b is not able to do all of vision"),
        ({"model": "nobody/nothing"}, "no recipe that can be planned serves nobody/nothing"),
        ({"recipe": "qwen3-8b", "tokens_per_second": 1, "first_token_seconds": 0.001}, "to the first token of 4096"),
    ],
)
def test_a_job_that_nothing_serves_has_its_reason(job: dict[str, Any], reason: str) -> None:
    (row,) = propose({"s1": {}}, {"name": "x", **job})["wishes"]
    assert row["state"] == "unserved" and reason in row["reason"]


def test_an_unknown_first_token_serves_no_job_that_limits_it() -> None:
    job = wish("x", first_token_seconds=5)
    service_speed = {"streams": 1, "all_streams": {"typical": 50.0}, "first_token_8k": None, "first_token_full": None}
    body = {"memory": {"max_model_len": 32768, "max_concurrency": 4}, "args": {"max-num-seqs": 1}}
    unknown = Figures.of_service({**body, "speed": {**service_speed, "unknown": {"prefill": "sparse attention"}}})
    assert job.missed(unknown, 1) == "its time to the first token is unknown: sparse attention"
    assert not wish("x").missed(unknown, 1)
    # Of a context below 8192 tokens the longest prompt counts.
    short = {**service_speed, "first_token_full": {"typical": 6.0}, "unknown": {}}
    figures = Figures.of_service({**body, "memory": {**body["memory"], "max_model_len": 4096}, "speed": short})
    assert job.too_slow(figures, 1) == "6 s to the first token of 4096" and figures.first_token == 6.0


def test_the_limit_of_requests_is_no_limit_of_the_cache() -> None:
    body = {"memory": {"max_model_len": 32768, "max_concurrency": 20.0}, "args": {"max-num-seqs": 4}}
    speed = {"streams": 4, "all_streams": {"typical": 50.0}, "first_token_8k": None, "unknown": {}}
    figures = Figures.of_service({**body, "speed": speed})
    assert wish("x").missed(figures, 8) == "it serves 4 requests at the same time (max-num-seqs)"
    assert "holds 20.0 requests" in wish("x").missed(replace(figures, requests=32), 24)


def test_a_job_that_is_slower_beside_others_is_named() -> None:
    one = propose({"s1": {}}, {**CODER, "tokens_per_second": 30}, {**SEARCH, "importance": 2})
    row = next(row for row in one["wishes"] if row["name"] == "coder")
    together = row["tokens_per_second_together"]
    assert together < 30 <= row["tokens_per_second"]["typical"]
    text = proposal.text(one, "")
    assert "2 of 2 are served (coder while other services of the Spark are idle)" in text
    assert f"{together:.3g}, less than the 30 asked for, while all other services of its Spark are busy" in text
    slow = propose({"s1": {}}, {**CODER, "tokens_per_second": 1}, SEARCH)
    assert "2 of 2 are served, " in proposal.text(slow, "") and "less than" not in proposal.text(slow, "")


def test_a_second_service_has_its_reason() -> None:
    chat = {**FAST, "name": "chat", "args": {"max-model-len": 8192, "max-num-seqs": 2}}
    job = {"name": "chat", "recipe": FAST["recipe"], "context": 8192, "users": 4}
    proposed = propose({"s1": {"spark_services": [chat]}}, job)
    (note,) = proposed["notes"]
    assert note.startswith("chat-2: the service chat of the inventory stays") and "it serves 2 requests" in note
    other = propose({"s1": {"spark_services": [chat]}}, {**job, "recipe": "qwen3-8b"})
    assert "its recipe lacks what the wish asks for" in other["notes"][0]
    assert not propose({"s1": {"spark_services": [chat]}}, {**job, "users": 2})["notes"]


def test_groups_of_sparks_stay() -> None:
    hosts = {"s1": {"spark_os_reserve_gib": 7}, "s2": {"spark_os_reserve_gib": 7}, "s3": {}}
    groups = {"lab": ["s1", "s2"], "one": ["s3"], "mixed": ["s1", "gateway"], "all": ["s1", "s2", "s3", "gateway"]}
    proposed = propose(hosts, SEARCH, groups=groups)
    sparks = proposed["inventory"]["sparks"]
    assert sparks["children"] == {
        "lab": {"hosts": {"s1": {}, "s2": {}}, "vars": {"spark_os_reserve_gib": 7}},
        "one": {"hosts": {"s3": {}}},
    }
    assert not any("spark_os_reserve_gib" in values for values in sparks["hosts"].values())
    assert not list_causes(plan_findings(planned(proposed)))


def test_less_important_jobs_make_room_and_hear_for_whom() -> None:
    big = {"model": "openai/gpt-oss-120b", "context": 65536, "users": 4, "on_demand": False}
    proposed = propose({"s1": {}}, {"name": "low", "importance": 2, **big}, {"name": "high", "importance": 3, **big})
    assert answers(proposed) == {"high": "proposed", "low": "unserved"}
    assert "which other wishes take (high)" in proposed["wishes"][1]["reason"]
    shared = propose({"s1": {}}, *({"name": name, **big, "on_demand": True} for name in ("one", "two")))
    assert set(answers(shared).values()) == {"on_demand"}
    assert planned(shared)["hosts"]["s1"]["sets"] == {"wishes": [["one"], ["two"]]}
    full = propose({"s1": {"spark_sidecars": [{"name": "other", "memory_gib": 100}]}}, {"name": "x", **big})
    assert "Take a service out, or add a Spark" in full["wishes"][0]["reason"]


def test_hosts_with_errors_get_nothing() -> None:
    broken = {"spark_services": [{**FAST, "args": {"max-model-len": 9_000_000}}]}
    proposed = propose({"s1": broken, "s2": {}}, SEARCH)
    assert proposed["wishes"][0]["hosts"] == [["s2"]]
    assert any(note.startswith("s1 gets nothing") for note in proposed["notes"])


def test_all_mistakes_in_wishes_are_named_at_once() -> None:
    jobs = [
        {"name": "a", "importence": 3},
        {"name": "A b"},
        {"name": "c", "features": ["sight"], "users": 0},
        {"name": "d", "recipe": "qwen3-4"},
    ]
    with pytest.raises(InputError) as caught:
        propose({"s1": {}}, *jobs)
    text = "\n".join(caught.value.messages)
    for part in ("importence", "spark_wishes[1].name", "sight", "users", "unknown recipe 'qwen3-4'"):
        assert part in text
    with pytest.raises(InputError, match="it is empty"):
        propose({"s1": {}})
