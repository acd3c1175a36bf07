"""Every playbook checks the variables of -e before it names or contacts a host: whole playbooks, as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playbook_runs import ROOT, ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.variables import PLAYBOOKS, VARIABLES
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import arguments

NAMES = sorted(path.stem for path in (ROOT / "playbooks").glob("*.yml"))
EACH_CHANGE = {"adopt", "bundle", "plan", "quickstart", "rollout", "site", "status", "support_bundle"}
"""Those that are run not at night alone. That each playbook begins with the check is read in test_inventories.py."""


def run(folder: Path, playbook: str, *words: str) -> tuple[int, str]:
    """Run a playbook for a host that nobody reaches; returns its exit code, and what it said on one line."""
    (folder / "hosts.yml").write_text("sparks: {hosts: {node-7: {ansible_host: 192.0.2.7}}}\n")
    ran = ansible_playbook("-i", folder / "hosts.yml", f"dgxspark.vllm.{playbook}", *words, cwd=folder)
    return ran.returncode, " ".join((ran.stdout + ran.stderr).split())


@pytest.mark.parametrize(
    "playbook", [pytest.param(name, marks=[] if name in EACH_CHANGE else [pytest.mark.nightly]) for name in NAMES]
)
def test_an_unknown_variable_and_a_wrong_value_are_refused(tmp_path: Path, playbook: str) -> None:
    code, text = run(tmp_path, playbook, "-e", "spark_hf_hom=/srv/models", "-e", "spark_autofix=perhaps")
    assert code != 0
    assert "no host was contacted: -e: 'spark_autofix' is a text; it must be a boolean." in text
    assert "-e: unknown variable 'spark_hf_hom'; did you mean 'spark_hf_home'?" in text
    assert "PLAY [" not in text and "TASK [" not in text and "node-7" not in text


@pytest.mark.parametrize(
    ("playbook", "argument", "message"),
    [
        ("stop", "service=heavy", "unknown variable 'service'; did you mean 'services'?"),
        ("start", "servces=heavy", "unknown variable 'servces'; did you mean 'services'?"),
        ("import", "import_scr=unit.service", "unknown variable 'import_scr'; did you mean 'import_src'?"),
        ("import", "import_form=yaml", "'import_form' is 'yaml'; it must be auto, docker, compose,"),
        ("rollback", "generation=last", "'generation' is a text; it must be a whole number or a mapping."),
        ("rollback", "generatoin=3", "unknown variable 'generatoin'; did you mean 'generation'?"),
        (
            "status",
            "spark_status_show=tabel",
            "'spark_status_show' is 'tabel'; did you mean 'table'? It must be auto, table,",
        ),
    ],
)
def test_arguments_of_one_playbook(tmp_path: Path, playbook: str, argument: str, message: str) -> None:
    code, text = run(tmp_path, playbook, "-e", argument)
    assert code != 0 and message in text
    assert "PLAY [" not in text


def test_a_file_of_variables_is_checked_as_well(tmp_path: Path) -> None:
    (tmp_path / "more.yml").write_text("spark_lock_fiel: lock.yml\n")
    code, text = run(tmp_path, "plan", "-e", f"@{tmp_path}/more.yml")
    assert code != 0 and "did you mean 'spark_lock_file'?" in text


def test_names_of_variables_that_are_no_text_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "more.yml").write_text("7: x\n1.5: x\ntrue: x\n2026-01-01: x\nspark_lock_fiel: lock.yml\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text("7: x\n1.5: x\ntrue: x\n2026-01-01: x\n")
    code, text = run(tmp_path, "plan", "-e", f"@{tmp_path}/more.yml")
    assert code != 0 and "did you mean 'spark_lock_file'?" in text and "has no attribute" not in text
    code, text = run(tmp_path, "plan")
    assert code == 0, text


def test_what_is_right_goes_through(tmp_path: Path) -> None:
    arguments = json.dumps({"spark_autofix": "{{ 1 == 1 }}", "rack": 3, "service_user": "x", "spark_total_gib": 119})
    code, text = run(tmp_path, "plan", "-e", arguments, "-e", "spark_moving_hosts=3", "-e", "spark_lock_ask=off")
    assert "TASK [" in text and "unknown variable" not in text, text
    assert code in (0, 2)


@pytest.mark.parametrize(
    ("playbook", "values"),
    [
        ("", {"spark_bench_services": ["heavy"], "spark_rollout_batch": "25%", "spark_watchdog": False}),
        ("", {"spark_os_reserve_gib": "6.5", "spark_update_batch": "2", "spark_stop_permanent": "yes"}),
        ("", {"spark_hf_token_file": None, "services": 3, "import_form": "x", "ansible_user": "me"}),
        ("stop", {"services": "heavy,fast", "service_user": "x", "serve": 1}),
        ("rollback", {"generation": {"spark-1": 3}, "generations": None}),
    ],
)
def test_what_may_be_given(playbook: str, values: dict[str, Any]) -> None:
    wrong = arguments.check(values, playbook)
    assert wrong == (
        ["-e: unknown variable 'generations'; did you mean 'generation'?"] if "generations" in values else []
    )


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_arguments_are_read_by_their_playbook(playbook: str) -> None:
    tasks = "".join(path.read_text() for path in sorted((ROOT / "playbooks/tasks").glob("*.yml")))
    text = (ROOT / f"playbooks/{playbook}.yml").read_text() + tasks
    assert [name for name in PLAYBOOKS[playbook] if name not in text] == []


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        (
            ["chat", "code"],
            ["-e: 'spark_wishes[0]' is a text; it must be a mapping", "-e: 'spark_wishes[1]' is a text"],
        ),
        ([{"users": 2}], ["'spark_wishes[0].name' is missing"]),
        ("chat", ["-e: 'spark_wishes' is a text; it must be a list"]),
        ([{"name": "chat", "users": 2}], []),
        (["{{ jobs }}"], []),
        (None, []),
    ],
)
def test_jobs_are_checked_to_their_keys(value: Any, messages: list[str]) -> None:
    problems = arguments.check({"spark_wishes": value}, "plan")
    assert len(problems) == len(messages)
    assert all(problem.startswith(message) or message in problem for problem, message in zip(problems, messages))


def test_all_that_is_wrong_is_said_at_once() -> None:
    values = {f"{name}x": 1 for name in VARIABLES}
    assert len(arguments.check(values)) == len(VARIABLES)
