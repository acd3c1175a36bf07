"""The plan in a terminal."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import picture

COLORS = re.compile(r"\033\[[0-9;]*m")


def part(label: str, gib: float, kind: str, service: str | None = None) -> dict[str, Any]:
    return {"label": label, "gib": gib, "kind": kind, "service": service}


def service(name: str, **memory: Any) -> dict[str, Any]:
    return {
        "name": name,
        "image": {"ref": "nvcr.io/nvidia/vllm:26.04-py3"},
        "vllm_version": "0.19.0",
        "port": 8001,
        "recipe": "r",
        "model": {"repo": "Org/Model", "source": None},
        "args": {"gpu-memory-utilization": 0.8, "max-model-len": 65536},
        "memory": {"weights_bytes": 2**30, "max_concurrency": 2.0, **memory},
    }


def host(*parts: dict[str, Any], verdict: str = "fits", services: Any = (), total: float = 120.0) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "basis": "inventory",
        "total_gib": total,
        "utilization_sum": 0.8,
        "memory_map": list(parts),
        "services": list(services),
        "findings": [],
    }


HEAVY = host(
    part("system", 5.2, "system"),
    part("heavy weights", 75.0, "weights", "heavy"),
    part("heavy KV cache", 20.0, "kv_cache", "heavy"),
    part("heavy overhead", 0.1, "overhead", "heavy"),
    part("asr", 4.0, "plain", "asr"),
    part("free", 15.7, "free"),
    services=[service("heavy")],
)
OVER = host(
    part("system", 5.0, "system"),
    part("heavy weights", 145.0, "weights", "heavy"),
    part("free", 0.0, "free"),
    verdict="fails",
    services=[service("heavy")],
)


@pytest.mark.parametrize(
    "sizes", [[1.0, 1.0, 1.0], [119.0, 0.1, 0.1, 0.1], [5.0], [0.0, 2.0], [33.3] * 3, [0.4] * 19 + [90.0]]
)
@pytest.mark.parametrize("width", [20, 24, 77, 100])
def test_shares_fill_the_width(sizes: list[float], width: int) -> None:
    columns = picture.shares(sizes, width)
    assert sum(columns) == width
    assert [size > 0 for size in sizes] == [column > 0 for column in columns]


@pytest.mark.parametrize("width", [24, 40, 77, 100])
@pytest.mark.parametrize("body", [HEAVY, OVER], ids=["fits", "over"])
@pytest.mark.parametrize("color", [False, True])
def test_a_bar_is_exactly_as_wide_as_it_is_told(body: dict[str, Any], width: int, color: bool) -> None:
    drawn = picture.memory_bar(body, width, color)
    assert len(COLORS.sub("", drawn)) == width
    assert ("\033" in drawn) == color
    assert all(len(line) <= width for line in COLORS.sub("", picture.bar_names(body, width, color)).splitlines())


def test_a_bar_is_in_proportion_and_small_parts_are_seen() -> None:
    drawn = picture.memory_bar(HEAVY, 60, color=False)
    assert drawn.count("█") == pytest.approx(75 / 120 * 60, abs=2)
    assert drawn.count("░") == 1
    assert drawn.startswith("▚") and drawn.endswith("·······")


def test_what_is_beyond_the_memory_is_crossed_out() -> None:
    drawn = picture.memory_bar(OVER, 50, color=False)
    assert drawn.count(picture.OVER) == 50 * 30 // 150
    assert picture.room_text(OVER) == "30.0 GiB over"
    assert picture.OVER not in picture.memory_bar(HEAVY, 50, color=False)
    # The parts are rounded to hundredths, which is no lack of memory.
    assert picture.over_gib(host(part("system", 120.04, "system"))) == 0.0


def test_services_keep_their_colour_in_bar_and_names() -> None:
    drawn, names = picture.memory_bar(HEAVY, 60, color=True), picture.bar_names(HEAVY, 60, color=True)
    for hue, name in ((picture.HUES[0], "heavy"), (picture.HUES[1], "asr")):
        assert f"\033[{hue}m" in drawn
        assert f"\033[{hue}m{name}" in names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["spark-1"], "spark-1"),
        (["spark-2", "spark-1"], "spark-1..2"),
        ([f"spark-{number}" for number in range(1, 13)], "spark-1..12"),
        (["spark-1", "spark-3", "spark-4", "other"], "other, spark-1, spark-3..4"),
        (["a1", "b2", "1", "2"], "1..2, a1, b2"),
        ([f"s{number}" for number in range(1, 20, 2)], "s1, s3, s5, s7, s9, s11 and 4 more"),
    ],
)
def test_names_of_hosts_in_few_words(names: list[str], text: str) -> None:
    assert picture.names_text(names) == text


def test_hosts_that_are_planned_alike_are_one() -> None:
    plan = {"hosts": {"spark-10": HEAVY, "spark-9": HEAVY, "spark-2": OVER}}
    groups = picture.host_groups(plan)
    assert [group.title for group in groups] == ["spark-2", "spark-9..10 (2 alike)"]
    assert picture.worst_first(groups)[0].title == "spark-2"
    text = picture.plan_text(plan, [])
    assert text.count("[▚") == 2
    assert "spark-9..10 (2 alike): fits, 15.7 GiB free of 120.00" in text
    assert "3 hosts: 2 fit, 1 fails; no errors, no warnings." in text


def test_an_error_that_is_not_of_memory_fails_the_host_too() -> None:
    body = {**HEAVY, "findings": [{"severity": "error", "rule": "secret.missing", "message": "no"}]}
    assert picture.standing(HEAVY) == "fits"
    assert picture.standing(body) == "fails"
    assert len(picture.host_groups({"hosts": {"a": body, "b": HEAVY}})) == 2


def test_a_fleet_takes_a_line_a_host_and_the_worst_is_first() -> None:
    hosts = {f"spark-{number:03}": host(part("free", 100 + number, "free"), total=100 + number) for number in range(99)}
    hosts["spark-050"] = OVER
    lines = picture.plan_text({"hosts": hosts}, [], width=79).splitlines()
    assert lines[2].startswith("spark-050  fails  [")
    rows = [line for line in lines if "[" in line]
    assert len(rows) == picture.MOST_LINES
    assert {len(row) for row in rows} == {79}
    assert lines[lines.index(rows[-1]) + 1] == "and 49 hosts more: 49 fit"
    assert lines[-1].startswith("99 hosts: 98 fit, 1 fails")


def test_what_was_worked_out_has_an_asterisk() -> None:
    cells = picture.service_cells(service("a", solved=["max-model-len"]))
    assert cells[4] == "0.80"
    assert cells[7] == "2.0 x 65536*"
    # As in docs/models.md, the weights include the drafter's.
    assert cells[5] == "1.0 GiB" and picture.service_cells(service("a", draft_bytes=2**29))[5] == "1.5 GiB"
    # A service that could not be planned has no figures.
    failed = {**service("a"), "memory": {"verdict": "fails"}, "args": {}}
    assert picture.service_cells(failed)[4:] == ["-", "-", "-", "-"]


def finding(number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "host": f"spark-{number}",
        "service": "heavy",
        "severity": "error",
        "rule": "memory.x",
        "message": "Too much.",
        "fix": "Less.",
        **more,
    }


def test_a_finding_says_what_where_in_vllms_words_and_how_to_mend_it() -> None:
    seconds = {"low": 60, "typical": 240, "high": 600}
    timed = finding(vllm_error="ValueError: no", stage="load", seconds=seconds)
    assert picture.findings_text([timed]).splitlines() == [
        "ERROR   spark-1/heavy: Too much. [memory.x]",
        "        vLLM would say, about 4 min into the start (60 s to 10 min), while it loads the weights: ValueError: no",
        "        Fix: Less.",
    ]
    assert "vLLM would say: ValueError" in picture.findings_text([finding(vllm_error="ValueError: no")])


def test_a_finding_of_many_hosts_is_told_once() -> None:
    same = picture.same_findings([finding(1), finding(2), finding(3, severity="warning"), finding(4)])
    assert [(group.where, group.figures) for group in same] == [
        ("heavy on spark-1..2, spark-4", False),
        ("spark-3/heavy", False),
    ]


def test_findings_with_one_id_and_one_fix_are_one_paragraph() -> None:
    moving = [finding(number, message=f"{'ab'[number]} can change.", severity="info") for number in (0, 1)]
    other = finding(1, message="c can change.", severity="info", fix="Another.")
    assert picture.findings_text([*moving, other]).splitlines() == [
        "INFO    spark-0/heavy: a can change. [memory.x]",
        "        spark-1/heavy: b can change.",
        "        Fix: Less.",
        "INFO    spark-1/heavy: c can change. [memory.x]",
        "        Fix: Another.",
    ]
    # vLLM's own words belong to the finding before them.
    findings = [{**moving_finding, "vllm_error": "ValueError: no"} for moving_finding in moving]
    assert picture.findings_text(findings).count("Fix: Less.") == 2
    unfixed = [{**moving_finding, "fix": ""} for moving_finding in moving]
    assert picture.findings_text(unfixed).splitlines()[1:] == ["        spark-1/heavy: b can change."]


def test_notes_are_counted_where_they_are_not_printed() -> None:
    notes = [finding(1, severity="info"), finding(2, severity="info"), finding(1, severity="info", rule="SPK1", fix="")]
    notes += [finding(3, severity="info", message="More."), finding(1, severity="warning")]
    text = picture.plan_text({"hosts": {"spark-1": HEAVY}}, notes, notes=False)
    assert "INFO" not in text and "WARNING spark-1/heavy" in text
    lines = text.splitlines()
    assert lines[-5:-1] == [
        "3 notes, in full with -v or -e spark_plan_show=full:",
        "- heavy on spark-1..2: Too much and 1 more [memory.x]",
        "- spark-1/heavy: Too much [SPK1]",
        "",
    ]
    full = picture.plan_text({"hosts": {"spark-1": HEAVY}}, notes)
    assert "INFO    heavy on spark-1..2: Too much. [memory.x]" in full and "notes, in full" not in full
    assert "notes" not in picture.plan_text({"hosts": {"spark-1": HEAVY}}, notes[-1:], notes=False)
    # A key that is still to be made is no error of a plan, and not left out either.
    key = picture.plan_text({"hosts": {}}, [finding(severity="info", rule="secret.missing")], notes=False)
    assert "INFO    spark-1/heavy: Too much. [secret.missing]" in key and "notes" not in key


def test_a_line_about_notes_has_the_begin_of_the_message_and_many_ids_are_bounded() -> None:
    ids = [f"SPK{number}" for number in range(9)]
    message = "org/image:v1.2 is old: " + "very " * 90
    lines = picture.notes_text([finding(severity="info", rule=rule, message=message) for rule in ids]).splitlines()
    assert lines[1] == "- spark-1/heavy: org/image:v1.2 is old [SPK0]"
    assert lines[picture.MOST_NOTES + 1 :] == ["- and SPK6, SPK7, SPK8"]
    assert picture.notes_text([]) == ""


def test_findings_that_differ_in_figures_are_merged_only_when_they_are_many() -> None:
    few = [finding(number, message=f"{number}.5 GiB are missing.") for number in range(1, 4)]
    assert len(picture.same_findings(few)) == 3
    many = picture.same_findings([*few, finding(7, message="7 GiB are missing.")])
    assert [(group.where, group.figures) for group in many] == [("heavy on spark-1..3, spark-7", True)]
    assert "The figures are for spark-1/heavy" in picture.findings_text(
        [*few, finding(7, message="7 GiB are missing.")]
    )
    # Their fixes differ in more than figures: not the same.
    other = [finding(number, message=f"{number} GiB", fix=f"Remove {'abcdef'[number]}.") for number in range(1, 6)]
    assert len(picture.same_findings(other)) == 5


def test_ranks_of_a_cluster_have_one_cause_whatever_their_figures() -> None:
    ranks = [finding(number, message=f"{number}.5 GiB are missing.", cluster="duo") for number in (1, 2)]
    assert [(group.where, group.figures) for group in picture.same_findings(ranks)] == [("heavy on spark-1..2", True)]
    different = [finding(3, message="3.5 GiB are missing."), finding(4, message="4.5 GiB are missing.", cluster="trio")]
    assert len(picture.same_findings([*ranks, *different])) == 1  # many
    assert len(picture.same_findings([*ranks, different[0]])) == 2
    assert picture.count_causes([*ranks, *different]) == 3
    assert picture.count_severities([*ranks, finding(5, severity="warning")]) == {"error": 1, "warning": 1}
    assert "1 error, no" not in picture.summary_text({"hosts": {}}, ranks)
    assert "; 1 error." in picture.summary_text({"hosts": {}}, ranks)


def test_what_a_group_says_wrongly_is_one_message() -> None:
    findings = [
        "host spark-1: unknown variable 'x'",
        "host spark-1, spark_cluster: 'name' is missing",
        "host spark-2: unknown variable 'x'",
        "spark_lock: no such file",
        "host spark-2: another",
    ]
    assert picture.same_messages(findings) == [
        "hosts spark-1..2: unknown variable 'x'",
        "host spark-1, spark_cluster: 'name' is missing",
        "spark_lock: no such file",
        "host spark-2: another",
    ]


def test_a_set_and_what_is_stopped_are_told_and_explained() -> None:
    heavy = {**service("heavy"), "exclusive": "large", "state": "started"}
    coder = {**service("coder"), "exclusive": "large", "state": "stopped"}
    spare = {**service("spare"), "exclusive": "", "state": "stopped"}
    text = picture.plan_text({"hosts": {"spark-1": host(*HEAVY["memory_map"], services=[heavy, coder, spare])}}, [])
    lines = [line.strip() for line in text.splitlines()]
    for named in ("heavy [set large] ", "coder [set large, stopped] ", "spare [stopped] "):
        assert any(line.startswith(named) for line in lines), named
    assert any(line.startswith("[set NAME] one of the set runs at a time") for line in lines)
    assert any(line.startswith("[stopped] deployed, but stopped") for line in lines)


def test_a_replica_is_told_and_explained() -> None:
    """Of four ranks two make a replica each."""
    rank = {**service("heavy"), "cluster": {"size": 4}, "rank": 3, "exclusive": "", "state": "started"}
    several = {**rank, "args": {**rank["args"], "data-parallel-size": 2}}
    assert picture.label(several) == "heavy, rank 3 of 4 [replica 1 of 2]"
    assert picture.label(rank) == "heavy, rank 3 of 4"
    assert picture.label(several, [0, 1, 2, 3]) == "heavy, 4 ranks [2 replicas]"
    assert picture.label(several, [0, 1]) == "heavy, ranks 0..1 of 4 [replica 0 of 2]"
    text = picture.plan_text({"hosts": {"spark-4": host(*HEAVY["memory_map"], services=[several])}}, [])
    assert "[replica] one of several of its engine; requests and KV cache are its own" in text
    assert "[replica" not in picture.plan_text({"hosts": {"spark-4": HEAVY}}, [])


def ranks(
    count: int, free: float = 68.5, size: int = 0, cluster: str = "ring", first: int = 0
) -> dict[str, dict[str, Any]]:
    """Hosts with a rank each; the first has half a GiB less."""
    return {
        f"spark-{first + rank + 1}": host(
            part("big weights", 28.9, "weights", "big"),
            part("free", free - 0.5 * (rank == 0), "free"),
            services=[
                {
                    **service("big"),
                    "rank": rank,
                    "cluster": {"name": cluster, "size": size or count},
                    "speed": {"one_stream": {"low": 18, "high": 28}},
                }
            ],
        )
        for rank in range(count)
    }


def test_a_cluster_is_one_block_with_one_row_and_one_speed() -> None:
    plan = {"hosts": ranks(4)}
    text = picture.plan_text(plan, [])
    assert (
        "spark-1..4: fit, 68.0 to 68.5 GiB free of 120.00, utilisation 0.80, planned from the inventory, over 4 Sparks"
        in text
    )
    assert text.count("[█") == 1 and text.count("18 to 28") == 1
    (row,) = [line for line in text.splitlines() if "vllm:26.04-py3" in line]
    assert row.strip().startswith("big, 4 ranks ") and " 1.0 GiB each " in row
    (group,) = picture.host_groups(plan)
    assert picture.free_gib(group.body) == 68.0  # the bar is that of the fullest
    assert "4 hosts: 4 fit" in text


def test_ranks_with_other_memory_have_their_own_block_and_no_second_speed() -> None:
    hosts = ranks(4)
    hosts["spark-1"]["memory_map"][-1]["gib"] = 60.0
    text = picture.plan_text({"hosts": hosts}, [])
    assert (
        "spark-1: fits, 60.0 GiB free" in text
        and "spark-2..4: fit, 68.5 GiB free" in text
        and "over" not in text.split("\n", 1)[1]
    )
    assert "big, rank 0 of 4 " in text and "big, ranks 1..3 of 4 " in text and text.count("18 to 28") == 1
    # A chain of small steps is no equality.
    steps = ranks(3)
    for number, body in enumerate(steps.values()):
        body["memory_map"][-1]["gib"] = 60.0 + 0.7 * number
    assert [group.hosts for group in picture.host_groups({"hosts": steps})] == [["spark-1", "spark-2"], ["spark-3"]]


def test_equal_clusters_are_one_block_too() -> None:
    hosts = {**ranks(2, cluster="a"), **ranks(2, cluster="b", first=2)}
    (group,) = picture.host_groups({"hosts": hosts})
    assert (group.title, group.span) == ("spark-1..4", "2 clusters over 2 Sparks each")
    hosts = {**ranks(1, size=2, cluster="a"), **ranks(1, size=2, cluster="b", first=2)}
    (group,) = picture.host_groups({"hosts": hosts})
    assert group.span == "" and "big, rank 0 of 2 " in picture.plan_text({"hosts": hosts}, [])
    worse = ranks(2)
    worse["spark-2"]["verdict"] = worse["spark-1"]["verdict"] = "tight"
    assert "spark-1..2: tight, 68.0 to 68.5 GiB free" in picture.plan_text({"hosts": worse}, [])


def test_hosts_of_which_another_one_runs_are_not_alike() -> None:
    hosts = {
        name: host(*HEAVY["memory_map"], services=[{**service("heavy"), "state": state}])
        for name, state in (("spark-1", "started"), ("spark-2", "stopped"))
    }
    assert [group.hosts for group in picture.host_groups({"hosts": hosts})] == [["spark-1"], ["spark-2"]]


def test_a_plan_without_sets_explains_none() -> None:
    text = picture.plan_text({"hosts": {"spark-1": HEAVY}}, [])
    assert "[set" not in text and "[stopped]" not in text


def test_findings_of_one_id_stand_together_the_worst_first() -> None:
    findings = [
        finding(rule="image.tag", severity="info", message="a is a tag.", fix="Pin it."),
        finding(rule="model.moves", severity="info", message="b moves.", fix="Set it."),
        finding(rule="image.tag", severity="info", message="c is a tag.", fix="Pin it."),
        finding(rule="memory.node", severity="error", message="Too much.", fix="Less."),
        finding(rule="image.tag", severity="info", message="d is a tag.", fix="Build it."),
        finding(rule="image.tag", severity="info", message="e is a tag.", fix="Pin it."),
        finding(rule="memory.node", severity="error", message="Too much.", fix="Less."),
    ]
    lines = picture.findings_text(findings).splitlines()
    assert [line.split(":", 1)[1].strip() for line in lines] == [
        "Too much. [memory.node]",
        "Less.",
        "a is a tag. [image.tag]",
        "c is a tag.",
        "e is a tag.",
        "Pin it.",
        "d is a tag. [image.tag]",
        "Build it.",
        "b moves. [model.moves]",
        "Set it.",
    ]


def test_details_are_for_who_asks() -> None:
    findings = [finding(message="Two rules were not checked.", details="Not checked: SPK101, SPK102.", fix="Set it.")]
    assert "Not checked" not in picture.findings_text(findings, notes=False)
    assert picture.findings_text(findings).splitlines()[1:] == [
        "        Not checked: SPK101, SPK102.",
        "        Fix: Set it.",
    ]


def test_a_service_without_figures_of_weights_has_its_other_sources_named() -> None:
    services = [{"name": "a", "memory": {"verdict": "fails", "sources": {"kv_cache": "not compared"}}}]
    assert picture.source_notes(services) == ["a: KV cache not compared"]
