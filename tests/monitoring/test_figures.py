"""Nothing is asked for that nobody tells: every metric of every panel and rule exists on a GB10."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import generate_docs
import monitoring_lab
import panels
import promql
import pytest
from common import ROOT

from ansible_collections.dgxspark.vllm.plugins.module_utils._agent import figures

FIXTURES = Path(__file__).resolve().parent / "fixtures"
RULES = [rule for group in generate_docs.alert_rules()["groups"] for rule in group["rules"]]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
BUILT_IN = {"up", "ALERTS"}
QUERIES = [(f"{dashboard}: {panel}", query) for dashboard, panel, query in panels.queries()]
QUERIES += [(rule.get("alert") or rule["record"], rule["expr"]) for rule in RULES]
DASHBOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(panels.FOLDER.glob("*.json"))}
VARIABLES = {
    name: {variable["name"]: variable["query"] for variable in dashboard["templating"]["list"]}
    for name, dashboard in DASHBOARDS.items()
}
QUERIES += [
    (f"{dashboard}: variable {name}", query)
    for dashboard, variables in VARIABLES.items()
    for name, query in variables.items()
]
GRID_COLUMNS = 24


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What the collector tells on a Spark that has everything."""
    folder = tmp_path_factory.mktemp("spark")
    argv = [*monitoring_lab.spark(folder), "--once=exporters"]
    done = subprocess.run(argv, env=monitoring_lab.environment(folder), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return promql.metric_names(done.stdout)


@pytest.fixture(scope="module")
def existing_metrics(collector: set[str]) -> set[str]:
    fixture_metrics = {
        name for path in FIXTURES.glob("*.txt") for name in promql.metric_names(path.read_text(encoding="utf-8"))
    }
    return fixture_metrics | collector | RECORDED | BUILT_IN


def test_the_collector_tells_what_it_says_it_does(collector: set[str]) -> None:
    assert collector == set(figures.METRICS)


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _query in QUERIES])
def test_what_is_asked_for_exists(where: str, query: str, existing_metrics: set[str]) -> None:
    requested = promql.names(query) - {"host", "service"}
    assert requested, f"{where}: no metric found in {query}"
    assert requested - existing_metrics == set(), f"{where} asks for what nobody tells"


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _query in QUERIES])
def test_what_a_gb10_lacks_is_not_asked_for(where: str, query: str) -> None:
    assert not promql.ABSENT.search(query), where


def test_fixtures_hold_nothing_that_a_gb10_lacks() -> None:
    assert [
        path.name
        for path in FIXTURES.glob("*.txt")
        if promql.ABSENT.search("\n".join(sorted(promql.metric_names(path.read_text()))))
    ] == []


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ('sum by (host) (rate(a_total{job="b"}[5m])) / on (c) group_left () d', {"a_total", "d"}),
        ("min_over_time(x:y[5m]) > 0 and z offset 1h unless on (host) w", {"x:y", "z", "w"}),
        ('count(ALERTS{alertstate="firing"}) or vector(0)', {"ALERTS"}),
        ("time() - t < 1e9", {"t"}),
        ("nvidia_smi_memory_used_bytes > 1", {"nvidia_smi_memory_used_bytes"}),
    ],
)
def test_names_are_found(query: str, names: set[str]) -> None:
    assert promql.names(query) == names


@pytest.mark.parametrize(
    "name", ["nvidia_smi_memory_used_bytes", "DCGM_FI_DEV_FB_USED", "nvidia_smi_power_limit_watts"]
)
def test_the_ban_works(name: str) -> None:
    assert promql.ABSENT.search(name)


def test_the_page_is_what_its_generator_writes() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/generate_docs.py"), "alerts", "metrics", "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT / "collections"), "PATH": str(Path(sys.executable).parent)},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("dashboard", "query"),
    [(dashboard, query) for dashboard, _panel, query in panels.queries()],
)
def test_queries_use_variables_of_their_dashboard(dashboard: str, query: str) -> None:
    assert set(re.findall(r"\$(\w+)", query)) <= {*VARIABLES[dashboard], "__rate_interval"}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_has_the_identifier_and_data_source_of_the_role(name: str) -> None:
    assert DASHBOARDS[name]["uid"] == f"dgxspark-{name}"
    sources = [panel["datasource"] for panel in DASHBOARDS[name]["panels"] if panel["type"] != "row"]
    sources += [variable["datasource"] for variable in DASHBOARDS[name]["templating"]["list"]]
    assert sources == [{"type": "prometheus", "uid": "dgxspark"}] * len(sources)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panel_titles_of_a_dashboard_are_unique(name: str) -> None:
    titles = [panel["title"] for panel in DASHBOARDS[name]["panels"] if panel["type"] != "row"]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_fill_the_grid(name: str) -> None:
    """Every line of panels is as wide as the grid, and begins where the line above ends."""
    lines: dict[int, list[dict[str, int]]] = {}
    for panel in DASHBOARDS[name]["panels"]:
        lines.setdefault(panel["gridPos"]["y"], []).append(panel["gridPos"])
    bottom = 0
    for top, positions in lines.items():
        assert top == bottom
        right = 0
        for position in positions:
            assert (position["x"], position["h"]) == (right, positions[0]["h"]), top
            right += position["w"]
        assert right == GRID_COLUMNS, top
        bottom += positions[0]["h"]
