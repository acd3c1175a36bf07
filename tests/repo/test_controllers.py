"""Execution environment, job templates and rulebook name existing playbooks and variables."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import release
import tree
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.variables import PLAYBOOKS, VARIABLES
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import arguments

JOBS = {job["name"]: job for job in tree.load("extensions/awx/controller.yml")["controller_templates"]}
RULES = tree.load("extensions/eda/rulebooks/alerts.yml")[0]
BUILDER = Path(sys.executable).with_name("ansible-builder")


def questions() -> list[tuple[str, dict[str, Any]]]:
    """The playbook and each question of each survey."""
    return [
        (Path(job["playbook"]).stem, question)
        for job in JOBS.values()
        for question in job.get("survey_spec", {}).get("spec", [])
    ]


@pytest.mark.parametrize("name", JOBS)
def test_a_job_runs_a_playbook(name: str) -> None:
    assert JOBS[name]["playbook"] in tree.PLAYBOOKS
    assert bool(JOBS[name].get("survey_enabled")) == ("survey_spec" in JOBS[name])


@pytest.mark.parametrize(
    ("playbook", "question"), questions(), ids=lambda value: value if isinstance(value, str) else value["variable"]
)
def test_a_question_is_one_that_the_playbook_takes(playbook: str, question: dict[str, Any]) -> None:
    """Its variable, and every answer that can be chosen."""
    name = question["variable"]
    variables = {**VARIABLES, **PLAYBOOKS.get(playbook, {})}
    assert name in variables
    assert set(question) - {"choices"} == {
        "question_name",
        "question_description",
        "variable",
        "required",
        "type",
        "default",
    }
    answers = question.get("choices", [question["default"]])
    assert question["default"] in answers
    assert arguments.check({"spark_plan_show": "loud"}, playbook) != []
    extra_vars = [{name: answer} for answer in answers if answer != "" or not question["required"]]
    assert [arguments.check(values, playbook) for values in extra_vars] == [[]] * len(extra_vars)
    choices = variables[name].choices
    assert not choices or (question["type"] == "multiplechoice" and set(answers) <= set(choices))
    assert bool not in variables[name].listed or list in variables[name].listed or set(answers) == {"true", "false"}


def runs(rule: dict[str, Any]) -> list[dict[str, Any]]:
    """The playbooks of a rule with their arguments."""
    return [action["run_playbook"] for action in rule.get("actions", [rule.get("action")])]


@pytest.mark.parametrize("rule", RULES["rules"], ids=lambda rule: rule["name"])
def test_a_rule_is_bounded_and_runs_what_there_is(rule: dict[str, Any]) -> None:
    assert rule["throttle"]["once_within"] and rule["throttle"]["group_by_attributes"][0] == "event.labels.host"
    for run in runs(rule):
        name = run["name"].removeprefix("dgxspark.vllm.")
        assert f"playbooks/{name}.yml" in tree.PLAYBOOKS
        assert set(run["extra_vars"]) <= set(VARIABLES) | set(PLAYBOOKS.get(name, {}))
    # ansible-rulebook copies a playbook of a collection alone, without its neighbours.
    for run in runs(rule):
        text = tree.read(f"playbooks/{run['name'].rpartition('.')[2]}.yml")
        assert not re.search(r"_tasks: (tasks/|\.)", text), run["name"]


def test_alerts_of_rules_are_alerts_of_monitoring() -> None:
    fires = set(re.findall(r"alert: (\w+)", tree.read("roles/monitoring/templates/rules.yml.j2")))
    conditions = [rule["condition"] for rule in RULES["rules"]]
    named = {name for condition in conditions for name in re.findall(r'"(Spark\w+)"', condition)}
    assert named and named - fires == set()
    # An alert is of one rule: what others name, the last leaves out.
    alerts = {name for condition in conditions[:-1] for name in re.findall(r'"(Spark\w+)"', condition)}
    assert alerts == set(re.findall(r'"(Spark\w+)"', conditions[-1].partition("not in")[2]))


def test_variables_of_the_rulebook_are_shipped() -> None:
    text = tree.read("extensions/eda/rulebooks/alerts.yml")
    used = set(re.findall(r"\b(spark_eda_\w+)", text))
    assert used == set(tree.load("extensions/eda/rulebooks/vars.yml"))
    assert tree.load("extensions/eda/rulebooks/vars.yml")["spark_eda_restart"] is False


def test_the_environment_installs_this_version() -> None:
    assert tree.read("execution-environment.yml").count(f"dgxspark-vllm-{release.current()}.tar.gz") == 2


@pytest.mark.nightly
@pytest.mark.slow
def test_ansible_builder_takes_the_definition(tmp_path: Path) -> None:
    """A dry run of the build, and what it finds that the collection asks for."""
    tarball, *_further = release.build(tmp_path)
    definition = tree.load("execution-environment.yml")
    definition["additional_build_files"][0]["src"] = str(tarball)
    (tmp_path / "ee.yml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    argv: list[str | Path] = [
        BUILDER,
        "create",
        "--file",
        tmp_path / "ee.yml",
        "--context",
        tmp_path / "context",
        "--output-filename",
        "Containerfile",
    ]
    subprocess.run(argv, check=True, capture_output=True, text=True)
    assert (tmp_path / "context/_build/collection" / tarball.name).is_file()
    assert tarball.name in (tmp_path / "context/_build/requirements.yml").read_text(encoding="utf-8")
    assert "quay.io/centos/centos:stream10" in (tmp_path / "context/Containerfile").read_text(encoding="utf-8")
    place = tmp_path / "collections"
    with tarfile.open(tarball) as archive:
        archive.extractall(place / "ansible_collections/dgxspark/vllm", filter="data")
    introspected = subprocess.run([BUILDER, "introspect", place], check=True, capture_output=True, text=True)
    assert yaml.safe_load(introspected.stdout)["python"] == []
    assert re.search(r"openssh-clients \[platform:rpm\] +# from collection dgxspark.vllm", introspected.stdout)
