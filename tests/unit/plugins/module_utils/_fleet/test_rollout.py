"""Who is first, how many at once, when it stops, who goes back, and what counts as slower."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import rollout

HOSTS = [f"spark-{number}" for number in range(1, 9)]
PAIRS = {"left": ["spark-2", "spark-5"], "right": ["spark-3", "spark-4"]}


def test_the_canary_is_alone_and_clusters_stay_together() -> None:
    result = rollout.order(HOSTS, PAIRS, batch=3)
    assert result["batches"] == [
        ["spark-1"],
        ["spark-2", "spark-5"],
        ["spark-3", "spark-4", "spark-6"],
        ["spark-7", "spark-8"],
    ]
    assert result["serial"] == [1, 2, 3, 2] and result["canary"] == ["spark-1"]
    assert result["hosts"] == [host for batch in result["batches"] for host in batch]


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8, 99, "1%", "25%", "60 %", "100%"])
@pytest.mark.parametrize("canary", ["", "none", "left", "spark-4,spark-7"])
def test_every_host_comes_once_and_no_cluster_is_ever_split(batch: Any, canary: str) -> None:
    for hosts in list(permutations(HOSTS))[:: 40320 // 7]:
        result = rollout.order(hosts, PAIRS, canary, batch, done=["spark-8", "spark-2"])
        # Of a cluster of which one host has it the other still has to go through the gate with it.
        assert sorted(result["hosts"]) == sorted(set(HOSTS) - {"spark-8"}) and result["done"] == ["spark-8"]
        for group in result["batches"]:
            for members in PAIRS.values():
                assert set(members) <= set(group) or not set(members) & set(group)
            largest = rollout.size_of(batch, 7)
            assert len(group) <= max(largest, 2)


def test_a_canary_is_named_by_host_or_cluster() -> None:
    assert rollout.order(HOSTS, PAIRS, "spark-4, spark-7", 8)["batches"][:2] == [["spark-3", "spark-4"], ["spark-7"]]
    assert rollout.order(HOSTS, PAIRS, ["left"], 8)["batches"][0] == ["spark-2", "spark-5"]
    assert rollout.order(HOSTS, PAIRS, "none", "100%")["batches"] == [
        ["spark-1", "spark-2", "spark-5", "spark-3", "spark-4", "spark-6", "spark-7", "spark-8"]
    ]
    with pytest.raises(ValueError, match="'lefd', which is no host or cluster of this run; did you mean 'left'"):
        rollout.order(HOSTS, PAIRS, "lefd", 1)


@pytest.mark.parametrize("batch", ["0", 0, "-1", "half", "120%", "0%", "", "1.5"])
def test_sizes_that_are_none_are_refused(batch: Any) -> None:
    with pytest.raises(ValueError, match="no size of a batch"):
        rollout.order(HOSTS, {}, "", batch)


def test_hosts_that_are_silent_are_left_out_with_their_clusters() -> None:
    result = rollout.order(HOSTS, PAIRS, silent=["spark-3"])
    assert result["left_out"] == ["spark-3", "spark-4"] and "spark-4" not in result["hosts"]
    assert "left out, not all of it can be reached: spark-3, spark-4" in rollout.order_text(result)


def test_with_nothing_to_do_there_is_no_batch() -> None:
    result = rollout.order(HOSTS, PAIRS, done=HOSTS)
    assert (result["batches"], result["hosts"], result["serial"], result["done"]) == (
        [],
        [],
        [],
        [*HOSTS[:2], "spark-5", "spark-3", "spark-4", *HOSTS[5:]],
    )


LOOK = {"current": {"proven": True, "wanted": "m"}, "same": True, "running": True, "restoring": None}


@pytest.mark.parametrize(
    "change",
    [
        {"same": False},
        {"running": False},
        {"restoring": 2},
        {"current": {"proven": False, "wanted": "m"}},
        {"current": {"proven": True, "wanted": "n"}},
        {"current": None},
    ],
)
def test_who_runs_what_is_wanted_is_proved_unchanged_and_up(change: dict[str, Any]) -> None:
    assert rollout.is_up_to_date(LOOK, "m") is True
    assert rollout.is_up_to_date({**LOOK, **change}, "m") is False
    assert rollout.is_up_to_date(None, "m") is False


def test_more_failures_than_allowed_take_the_batch_back() -> None:
    batch = ["spark-1", "spark-2", "spark-5"]
    good = rollout.judge(batch, PAIRS, batch, {}, batch, 0)
    assert good == {"reasons": {}, "back": [], "stop": False}
    bad = rollout.judge(batch, PAIRS, ["spark-1", "spark-5"], {"spark-2": "no answer"}, batch, 0)
    assert bad == {"reasons": {"spark-2": "no answer"}, "back": batch, "stop": True}


def test_failures_that_are_allowed_go_back_alone_but_for_their_cluster() -> None:
    batch = ["spark-1", "spark-2", "spark-5", "spark-6"]
    result = rollout.judge(batch, PAIRS, ["spark-1", "spark-5", "spark-6"], {"spark-2": "no answer"}, batch, 25)
    assert (result["back"], result["stop"]) == (["spark-2", "spark-5"], False)
    assert rollout.judge(batch, PAIRS, ["spark-1"], {}, batch, 25)["stop"] is True


def test_a_host_that_went_silent_counts_and_its_peer_goes_back_without_it() -> None:
    batch = ["spark-2", "spark-5"]
    result = rollout.judge(batch, PAIRS, batch, {}, ["spark-2"], 0)
    assert result["reasons"] == {"spark-5": "it could not be reached any more"} and result["back"] == ["spark-2"]


def section(rate: float, **more: Any) -> dict[str, Any]:
    row = {"prompt_tokens": 512, "decode_tokens_per_second": {"median": rate, "low": rate, "high": rate}}
    return {
        "where": "spark-1/heavy",
        "service": "heavy",
        "conditions": {"image_id": "a", "driver": "580", **more.pop("conditions", {})},
        "workload": {"prompt_tokens": 512, "output_tokens": 64, **more.pop("workload", {})},
        "single": [row],
        **more,
    }


MODEL = {"heavy": {"repo": "Org/M"}}


def slower(new: dict[str, Any], old: dict[str, Any] | None, repo: str = "Org/M") -> tuple[list[str], list[str]]:
    return rollout.slower([new], {"heavy": {"model": {"repo": repo}, "benchmark": old}}, MODEL, 20)


def test_another_image_may_not_be_slower() -> None:
    failed, notes = slower(section(30, conditions={"image_id": "b"}), section(40))
    assert notes == [] and "spark-1/heavy decodes 30 tokens/s, it was 40 before the change (25% lower" in failed[0]
    assert slower(section(33, conditions={"image_id": "b"}), section(40)) == ([], [])


@pytest.mark.parametrize(
    ("new", "old", "repo", "why"),
    [
        (section(1), None, "Org/M", "no measurement from before"),
        (section(1, workload={"output_tokens": 8}), section(40), "Org/M", "answer length 64 then, 8 now"),
        (section(1, conditions={"driver": "590"}), section(40), "Org/M", "driver 580 then, 590 now"),
        (section(1), section(40), "Org/Other", "another model"),
        (section(1, disturbed=True), section(40), "Org/M", "others were served"),
    ],
)
def test_what_cannot_be_compared_fails_nothing_and_is_said(new: Any, old: Any, repo: str, why: str) -> None:
    failed, notes = slower(new, old, repo)
    assert failed == [] and why in notes[0]


def look(target: int, fingerprint: str, problems: list[str] | None = None) -> dict[str, Any]:
    cluster = {"name": "right", "hosts": PAIRS["right"]}
    service = {"name": "tiny", "cluster": cluster, "settings": {"rank": {"fingerprint": fingerprint}}}
    return {
        "target": target,
        "problems": problems or [],
        "clusters": {"right": PAIRS["right"]},
        "plan": {"services": [service]},
    }


def test_ranks_go_back_to_one_deployment_or_not_at_all() -> None:
    same = {"spark-3": look(2, "a"), "spark-4": look(3, "a")}
    assert rollout.mixtures(same, PAIRS["right"]) == []
    assert "spark-4 cannot be reached or is not part" in rollout.mixtures({"spark-3": look(2, "a")}, ["spark-3"])[0]
    text = rollout.mixtures({"spark-3": look(2, "a"), "spark-4": look(3, "b")}, PAIRS["right"])[0]
    assert "different deployments (spark-3 to 2, spark-4 to 3)" in text


def test_a_host_that_leaves_a_cluster_leaves_it_with_the_others() -> None:
    now = {"target": 1, "clusters": {"right": PAIRS["right"]}, "plan": {"services": []}}
    assert "cluster right: spark-4 cannot be reached" in rollout.mixtures({"spark-3": now}, ["spark-3"])[0]
    assert rollout.mixtures({"spark-3": now, "spark-4": now}, PAIRS["right"]) == []


def test_the_summary_has_everybody_also_those_that_were_not_reached() -> None:
    current = {
        "number": 3,
        "proven": True,
        "services": {
            "heavy": {"image": "repo/engine:1", "image_id": "sha256:" + "a" * 64, "model": "Org/M", "commit": "1" * 40}
        },
    }
    rows = rollout.rows(
        ["spark-1", "spark-2", "spark-3"],
        {"spark-1": {"current": current, "same": True}, "spark-2": {"current": None, "same": False}},
        {"spark-1": "back at 3"},
    )
    text = rollout.summary_text(rows).splitlines()
    assert text[2].split() == [
        "spark-1",
        "heavy",
        "repo/engine:1",
        "a" * 12,
        "Org/M@111111111111",
        "3",
        "yes",
        "back",
        "at",
        "3",
    ]
    assert text[3].split() == ["spark-2", "-", "-", "-", "-", "-", "-"]
    assert text[4].endswith("not reached")
