"""What programs read of a run: exit code, C(spark_result) and C(spark_events), of every playbook and of each kind of end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import LOST_SSH, ansible_playbook, python
from test_refused_input import EACH_CHANGE, NEEDING_SPARKS

from ansible_collections.dgxspark.vllm.plugins.action.status import CLEAR
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import events

CALLBACK = {"ANSIBLE_CALLBACKS_ENABLED": "dgxspark.vllm.progress"}
ARGUMENTS = {
    "stop": "services=all",
    "swap": "out=a in=b",
    "bench_ab": "a=a b=b",
    "bench_offline": "services=a",
    "bundle": "spark_bundle_dir=bundle",
    "reset": "spark_reset_confirm=true",
    "tune": "service=a",
}
"""Arguments that a playbook cannot do without."""
SERVICES = [
    {"name": name, "recipe": "qwen3-4b-instruct-2507", "port": port} for name, port in (("a", 8001), ("b", 8002))
]
UNREACHABLE = 4
WITHOUT_PLAN = {"export_measurements", "reset", "rollback"}
JUDGING = {
    "plan": 0,
    "export": 0,
    "export_measurements": 0,
    "keys": 0,
    "drift": 0,
    "status": 2,
    "doctor": 2,
    "support_bundle": 2,
}
"""Exit codes of playbooks that judge a silent host themselves, or contact none."""


def run(folder: Path, playbook: str, *words: str | Path) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """Run a playbook; return its exit code, its outcome and its events."""
    files = {"spark_events": folder / "events.jsonl", "spark_result": folder / "result.json"}
    options = [word for name, path in files.items() for word in ("-e", f"{name}={path}")]
    ran = ansible_playbook(playbook, *words, *options, cwd=folder, env=CALLBACK)
    outcome = json.loads(files["spark_result"].read_text())
    lines = [json.loads(line) for line in files["spark_events"].read_text().splitlines()]
    assert "WARNING" not in ran.stderr, ran.stderr
    return ran.returncode, outcome, lines


@pytest.mark.slow
@pytest.mark.parametrize(
    "playbook",
    [pytest.param(name, marks=[] if name in EACH_CHANGE else [pytest.mark.nightly]) for name in NEEDING_SPARKS],
)
def test_every_playbook_ends_with_the_documented_code_when_no_host_answers(tmp_path: Path, playbook: str) -> None:
    inventory = written(tmp_path)
    (tmp_path / "ssh").write_text(LOST_SSH)
    (tmp_path / "ssh").chmod(0o755)
    words = ["-i", inventory, "-e", f"ansible_ssh_executable={tmp_path / 'ssh'}", "-e", ARGUMENTS.get(playbook, "x=1")]
    code, outcome, lines = run(tmp_path, f"dgxspark.vllm.{playbook}", *words)
    assert code == outcome["exit_code"] == JUDGING.get(playbook, UNREACHABLE), outcome
    # Files of an export are written without an answer of the host.
    assert (outcome["verb"], outcome["schema"], outcome["changed"]) == (playbook, 1, playbook == "export")
    assert outcome["outcome"] == {0: "done", 2: "failed", 4: "unreachable"}[code]
    assert bool(outcome["errors"]) == bool(code) and all(error["message"] for error in outcome["errors"])
    assert lines[0]["event"] == "run" and lines[-1]["event"] == "stats"
    if playbook not in WITHOUT_PLAN:
        assert [service["name"] for service in outcome["plan"]["services"]] == ["a", "b"]
    page = inventory.parent / ".spark/timeline.html"
    assert page.exists() == (playbook in ("rollout", "rollback"))
    if page.exists():
        assert "spark-1" in page.read_text() and "No route to host" in page.read_text()
    if playbook in ("status", "doctor", "drift"):
        assert [report["kind"] for report in outcome["reports"]] == [playbook]


def written(folder: Path) -> Path:
    """Write an inventory with a Spark; return its path. Output of a run must not lie beside it."""
    inventory = folder / "sparks" / "hosts.yml"
    inventory.parent.mkdir()
    host = {"ansible_host": "192.0.2.1", "spark_services": SERVICES}
    inventory.write_text(yaml.safe_dump({"sparks": {"hosts": {"spark-1": host}}}))
    return inventory


@pytest.mark.slow
def test_a_refused_run_says_why_and_names_the_same_code(tmp_path: Path) -> None:
    code, outcome, _events = run(tmp_path, "dgxspark.vllm.plan", "-i", written(tmp_path), "-e", "spark_plan_sho=x")
    assert code == outcome["exit_code"] == 1 and outcome["outcome"] == "refused"
    assert "did you mean 'spark_plan_show'" in outcome["errors"][0]["message"] and "plan" not in outcome


@pytest.mark.slow
def test_output_that_ansible_would_read_as_inventory_is_refused(tmp_path: Path) -> None:
    inventory = written(tmp_path)
    words = ["dgxspark.vllm.plan", "-i", inventory.parent, "-e", "spark_result=result.json"]
    ran = ansible_playbook(*words, cwd=tmp_path, env=CALLBACK)
    assert ran.returncode == 1 and f"Move it to '{inventory.parent}/.spark/result.json'" in ran.stderr
    assert [path.name for path in inventory.parent.iterdir()] == ["hosts.yml"]
    words[-1] = "spark_result=.spark/result.json"
    assert ansible_playbook(*words, cwd=tmp_path, env=CALLBACK).returncode == 0
    assert json.loads((inventory.parent / ".spark/result.json").read_text())["outcome"] == "done"


@pytest.mark.slow
def test_files_for_programs_need_the_callback_that_writes_them(tmp_path: Path) -> None:
    ran = ansible_playbook("dgxspark.vllm.plan", "-i", written(tmp_path), "-e", "spark_result=/x/y.json", cwd=tmp_path)
    assert ran.returncode == 1 and "export ANSIBLE_CALLBACKS_ENABLED=dgxspark.vllm.progress" in ran.stderr


@pytest.mark.slow
def test_errors_are_those_that_were_not_rescued(tmp_path: Path) -> None:
    local = {"ansible_connection": "local", "ansible_python_interpreter": python()}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"a": local, "b": local}}}))
    fail = {"name": "Break", "ansible.builtin.fail": {"msg": "broken\nhere"}}
    rescued = {"name": "Try", "block": [fail], "rescue": [{"name": "Mend", "ansible.builtin.debug": {"msg": "x"}}]}
    last = {"name": "End", "ansible.builtin.fail": {"msg": "no {{ item }}"}, "loop": ["room", "disk"]}
    last["when"] = "inventory_hostname == 'b' and item == 'disk'"
    tasks = [rescued, {**fail, "ignore_errors": True}, last]
    play = {"name": "Play", "hosts": "all", "gather_facts": False, "tasks": tasks}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    code, outcome, _events = run(tmp_path, "play.yml", "-i", "hosts.yml")
    assert code == outcome["exit_code"] == 2 and outcome["verb"] == "play"
    assert {(error["host"], error["task"]) for error in outcome["errors"]} == {("b", "Break"), ("b", "End")}
    assert outcome["errors"][-1]["message"].endswith("no disk")  # of the item of a loop
    assert outcome["hosts"]["a"]["rescued"] == 1


@pytest.mark.slow
def test_failures_that_others_outlived_are_listed_at_the_end_and_the_last_one_is_not_printed_twice(
    tmp_path: Path,
) -> None:
    local = {"ansible_connection": "local", "ansible_python_interpreter": python()}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"a": local, "b": local}}}))
    fail = {"name": "Break", "ansible.builtin.fail": {"msg": "no disk"}, "when": "inventory_hostname == 'b'"}
    more = {"name": "Go on", "ansible.builtin.debug": {"msg": "x"}}
    for tasks, count in (([fail, more], 2), ([more, fail], 1)):
        play = {"name": "Play", "hosts": "all", "gather_facts": False, "tasks": tasks}
        (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
        callbacks = {**CALLBACK, "ANSIBLE_STDOUT_CALLBACK": "dgxspark.vllm.brief"}
        text = ansible_playbook("play.yml", "-i", "hosts.yml", cwd=tmp_path, env=callbacks).stdout
        assert text.count("no disk") == count and text.count("failed: b: Break: no disk\n") == count - 1, text


@pytest.mark.slow
def test_a_watched_status_redraws_a_terminal(tmp_path: Path) -> None:
    words = ["-i", written(tmp_path), "-e", f"ansible_ssh_executable={tmp_path / 'ssh'}"]
    (tmp_path / "ssh").write_text(LOST_SSH)
    (tmp_path / "ssh").chmod(0o755)
    watch = ["-e", "spark_status_watch=0.1", "-e", "spark_status_looks=2"]
    for style, count in (("terminal", 2), ("lines", 0)):
        environment = {**CALLBACK, "DGXSPARK_PROGRESS_STYLE": style}
        ran = ansible_playbook("dgxspark.vllm.status", *words, *watch, cwd=tmp_path, env=environment)
        assert ran.stdout.count(CLEAR) == count and ran.stdout.count("unreachable") >= 2, ran.stdout


def test_a_run_without_an_end_was_interrupted() -> None:
    begun = {"time": "2026-11-29T00:00:00+00:00", "event": "run", "schema": 1, "verb": "site"}
    error = {"time": "2026-11-29T00:00:01+00:00", "event": "error", "host": "a", "task": "x", "message": "m"}
    outcome = events.outcome([begun, error])
    assert (outcome["outcome"], outcome["exit_code"], outcome["verb"]) == ("interrupted", None, "site")
    assert outcome["errors"] == [{"host": "a", "task": "x", "message": "m"}]


def test_events_of_other_runs_and_broken_lines_in_the_same_file_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events.EventLog, "descriptor", -1)
    monkeypatch.setattr(events.EventLog, "run", "")
    path = tmp_path / "events.jsonl"
    start = events.EventLog.open(str(path))
    events.EventLog.write("error", host="a", task="t", message="mine")
    other = {"time": "2026-11-29T00:00:00+00:00", "run": "0" * 16, "event": "error", "host": "b", "message": "theirs"}
    with path.open("a") as file:
        file.write(json.dumps(other) + "\n[]\n7\n" + "[" * 100_000 + '\n{"time": "x", "ev')  # a full disk
    events.EventLog.write("error", host="a", task="t", message="lost behind the broken line")
    events.EventLog.write("stats", hosts={})
    mine = events.EventLog.read(start)
    assert [event["event"] for event in mine] == ["error", "stats"] and mine[0]["message"] == "mine"
    os.close(events.EventLog.descriptor)


def test_a_torn_line_of_another_writer_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "earlier"}\n')
    monkeypatch.setattr(events.EventLog, "descriptor", -1)
    start = events.EventLog.open(str(path))
    events.EventLog.write("error", host="a", task="t", message="x" * 70_000)
    with path.open("a") as file:
        file.write('{"event": "st')
    assert [len(event["message"]) for event in events.EventLog.read(start)] == [70_000]
    os.close(events.EventLog.descriptor)
