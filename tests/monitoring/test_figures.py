"""Nothing is asked for that nobody tells: every metric of every panel and rule exists on a GB10."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import generate_dashboards as generator
import monitoring_lab
import panels
import promql
import pytest

FIXTURES = Path(__file__).resolve().parent / "fixtures"
RULES = [rule for group in generator.rules()["groups"] for rule in group["rules"]]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
BUILT_IN = {"up", "ALERTS"}
QUERIES = [(f"{dashboard}: {panel}", query) for dashboard, panel, query in panels.queries()]
QUERIES += [(rule.get("alert") or rule["record"], rule["expr"]) for rule in RULES]
QUERIES += [(f"variable {name}", query) for name, query in generator.VARIABLES.items()]


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What the collector tells on a Spark that has everything."""
    folder = tmp_path_factory.mktemp("spark")
    argv = monitoring_lab.spark(folder)
    done = subprocess.run(argv, env=monitoring_lab.environment(folder), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return promql.told(done.stdout)


@pytest.fixture(scope="module")
def known(collector: set[str]) -> set[str]:
    told = {name for path in FIXTURES.glob("*.txt") for name in promql.told(path.read_text(encoding="utf-8"))}
    return told | collector | RECORDED | BUILT_IN


def test_the_collector_tells_what_it_says_it_does(collector: set[str]) -> None:
    assert collector == set(generator.metrics())


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _query in QUERIES])
def test_what_is_asked_for_exists(where: str, query: str, known: set[str]) -> None:
    asked = promql.names(query) - {"host", "service"}
    assert asked, f"{where}: no metric found in {query}"
    assert asked - known == set(), f"{where} asks for what nobody tells"


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _query in QUERIES])
def test_what_a_gb10_lacks_is_not_asked_for(where: str, query: str) -> None:
    assert not promql.ABSENT.search(query), where


def test_fixtures_hold_nothing_that_a_gb10_lacks() -> None:
    assert [
        path.name
        for path in FIXTURES.glob("*.txt")
        if promql.ABSENT.search("\n".join(sorted(promql.told(path.read_text()))))
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


def test_dashboards_and_page_are_what_the_generator_writes() -> None:
    root = generator.ROOT
    done = subprocess.run(
        [sys.executable, str(root / "scripts/generate_dashboards.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(root / "collections"), "PATH": str(Path(sys.executable).parent)},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_two_panels_of_a_dashboard_have_one_title() -> None:
    for _title, _variables, rows in generator.DASHBOARDS.values():
        titles = [panel[0] for _row, row in rows for panel in row]
        assert len(titles) == len(set(titles))


def test_rows_are_full() -> None:
    """Panels of a row add up to whole lines, or the dashboard has holes."""
    for name, (_title, _variables, rows) in generator.DASHBOARDS.items():
        for row, row_panels in rows:
            assert sum(panel[3] for panel in row_panels) % generator.WIDTH == 0, f"{name}: {row}"
