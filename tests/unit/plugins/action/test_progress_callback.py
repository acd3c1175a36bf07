"""The callback C(progress) in runs of ansible-playbook, and what workers tell it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.plugins.action import ActionBase
from playbook_runs import ansible_playbook, python

from ansible_collections.dgxspark.vllm.plugins.action import endpoint_ready
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import progress


def play(folder: Path, seconds: float, style: str, file: str = "") -> str:
    """Run a slow task on two hosts; return the output."""
    hosts = {
        name: {"ansible_connection": "local", "ansible_python_interpreter": python()} for name in ("spark-1", "spark-2")
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    task: dict[str, Any] = {"name": "Take a while", "ansible.builtin.command": f"sleep {seconds}"}
    body = {"name": "Play", "hosts": "all", "gather_facts": False, "tasks": [task]}
    (folder / "play.yml").write_text(yaml.safe_dump([body]))
    environment = {
        "ANSIBLE_CALLBACKS_ENABLED": "dgxspark.vllm.progress",
        "DGXSPARK_PROGRESS_STYLE": style,
        **({"DGXSPARK_PROGRESS_FILE": file} if file else {}),
    }
    ran = ansible_playbook("-i", "hosts.yml", "play.yml", cwd=folder, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "WARNING" not in ran.stderr, ran.stderr
    return ran.stdout


@pytest.mark.nightly
@pytest.mark.slow
def test_a_log_has_a_line_a_host_when_a_task_is_silent_for_long(tmp_path: Path) -> None:
    text = play(tmp_path, 12, "lines")
    # Hosts begin one after the other: on a busy machine the second one is some seconds behind.
    assert re.findall(r"^  (spark-\d): Take a while, \d+ s$", text, re.MULTILINE) == ["spark-1", "spark-2"]


@pytest.mark.slow
def test_a_terminal_has_lines_that_go_before_the_next_output(tmp_path: Path) -> None:
    text = play(tmp_path, 8, "terminal")
    drawn = re.search(r"spark-1: Take a while, \d s\nspark-2: Take a while, \d s\n", text)
    assert drawn and "\x1b[2A\x1b[J" in text[drawn.end() :]
    # In the end a terminal shows the same text as a run without the callback.
    shown: list[str] = []
    for part in re.split(r"(\x1b\[\d+A\x1b\[J)", text):
        if up := re.fullmatch(r"\x1b\[(\d+)A\x1b\[J", part):
            del shown[-int(up[1]) :]
        else:
            shown += part.splitlines(keepends=True)
    assert "Take a while, " not in "".join(shown)
    assert "".join(shown).count("changed: [spark-") == 2 and "PLAY RECAP" in "".join(shown)


@pytest.mark.slow
def test_every_event_is_a_line_of_json_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    assert "Take a while, " not in play(tmp_path, 0, "none", str(file))
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(event["event"], event.get("host")) for event in events[:3]] == [
        ("run", None),
        ("begin", "spark-1"),
        ("begin", "spark-2"),
    ]
    assert sorted(event["host"] for event in events if event["event"] == "end" and event["result"] == "ok") == [
        "spark-1",
        "spark-2",
    ]
    assert events[-1]["event"] == "stats" and events[-1]["hosts"]["spark-1"]["ok"] == 1
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", event["time"]) for event in events)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The events that were sent since the last call."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    monkeypatch.setattr(progress.Channel, "descriptor", writer)

    def events() -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in os.read(reader, 1 << 16).splitlines()]
        except BlockingIOError:
            return []

    yield events
    os.close(reader)
    os.close(writer)


class Waiting(endpoint_ready.ActionModule):  # type: ignore[misc]  # Ansible has no types
    """The action, on a host with the answers of a test."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._task = SimpleNamespace(args={"model": "tiny", "unit": "spark-tiny.service", "timeout": 600})
        self.said, self.asked = list(answers), list[dict[str, Any]]()

    def _execute_module(self, **call: Any) -> dict[str, Any]:
        self.asked.append(call["module_args"])
        return self.said.pop(0)


def starting(stage: str | None, percent: int | None) -> dict[str, Any]:
    return {"waiting": True, "restarts_before": 3, "log_stage": stage, "log_percent": percent, "ready": False}


def test_a_wait_for_an_engine_tells_how_far_it_is_and_goes_on(
    heard: Callable[[], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda *_args: {})
    waiting = Waiting(starting(None, None), starting("load", 43), {"ready": True})
    assert waiting.run(None, {"inventory_hostname": "spark-1"}) == {"ready": True}
    events = [(event["host"], event["stage"], event["what"], event["done"]) for event in heard()]
    assert events == [
        ("spark-1", "load", "tiny", None), ("spark-1", "load", "tiny", None), ("spark-1", "load", "tiny (load)", 43)
    ]  # fmt: skip
    assert [looked.get("restarts_before") for looked in waiting.asked] == [None, 3, 3]
    looks = [looked["look_seconds"] for looked in waiting.asked]
    assert looks == sorted(looks) and looks[0] == progress.HEARD_EVERY < looks[-1] <= endpoint_ready.LONGEST_LOOK


def test_nobody_comes_back_early_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda *_args: {})
    waiting = Waiting({"ready": True})
    assert waiting.run(None, {"inventory_hostname": "spark-1"}) == {"ready": True}
    assert waiting.asked == [{"model": "tiny", "unit": "spark-tiny.service", "timeout": 600}]


def test_a_pipe_that_nobody_empties_holds_no_worker_up(heard: Callable[[], list[dict[str, Any]]]) -> None:
    assert progress.Channel.descriptor is not None
    os.set_blocking(progress.Channel.descriptor, False)
    for number in range(2000):
        progress.bytes_moved("spark-1", "fetch", "x" * 100, number, 2000, 1.0)
    assert heard()[0]["done"] == 0


def test_a_poll_is_as_often_as_a_log_is_told_something(heard: Callable[[], list[dict[str, Any]]]) -> None:
    assert progress.poll_seconds(15) == 10 and progress.poll_seconds(2) == 2
    progress.Channel.descriptor = None
    assert progress.poll_seconds(15) == 15 and heard() == []
