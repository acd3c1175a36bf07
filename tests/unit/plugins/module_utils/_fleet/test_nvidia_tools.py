# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's management tools on a host: absent, answering, slow, and printing anything else. The programs here are real processes."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import host_health
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command

RESET = {
    "last_reset": {"reason_code": "KERNEL_PANIC_OR_OOPS", "confidence": 95, "summary": "Kernel panic", "evidence": []}
}


def install(root: Path, name: str, program: str) -> Path:
    path = root / "opt/dgx_spark_management/bin" / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(program))
    path.chmod(0o755)
    return path


def look(root: Path, monkeypatch: pytest.MonkeyPatch, seconds: float = 20.0) -> tuple[dict[str, Any], dict[str, str]]:
    monkeypatch.setattr(host_health, "TOOL_SECONDS", seconds)
    monkeypatch.setattr(host_health, "_is_roots_own", lambda _path: True)
    unknown: dict[str, str] = {}
    return host_health.ask_nvidia_tools(command.reader(), root, unknown), unknown


def printing(value: Any) -> str:
    return f"print({json.dumps(json.dumps(value))})"


def test_absent_tools_are_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(tmp_path, monkeypatch) == ({}, {})


def test_answers_are_read_without_their_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "reset_reason_reporter", printing({"ok": True, "data": RESET, "errors": [], "meta": {}}))
    pending = {"pending_reboot": {"pending": True, "indicators": ["/run/reboot-required exists"]}, "kernel": {}}
    install(tmp_path, "spark_updatectl", printing({"ok": True, "data": pending}))
    dumps = {"crash_dumps_found": [{"path": "/var/crash/a", "size_bytes": None}], "kdump": {}}
    install(tmp_path, "spark_diagctl", printing({"ok": True, "data": dumps}))
    answers, unknown = look(tmp_path, monkeypatch)
    assert unknown == {}
    assert answers["reset_reason_reporter"] == {
        "last_reset": {"reason_code": "KERNEL_PANIC_OR_OOPS", "confidence": 95, "summary": "Kernel panic"}
    }
    assert answers["spark_updatectl"] == {"pending_reboot": pending["pending_reboot"]}
    assert answers["spark_diagctl"] == {"crash_dumps_found": [{"path": "/var/crash/a"}]}


def test_only_reading_commands_are_used_and_the_log_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
        import json, pathlib, sys
        words = sys.argv[1:]
        config = json.loads(pathlib.Path(words[words.index("--config") + 1]).read_text())
        name = pathlib.Path(sys.argv[0]).stem
        (pathlib.Path(sys.argv[0]).parent / f"{name}.seen").write_text(json.dumps([words, config]))
    """
    for name in host_health.TOOLS:
        install(tmp_path, name, program)
    look(tmp_path, monkeypatch)
    seen = {path.stem: json.loads(path.read_text()) for path in tmp_path.rglob("*.seen")}
    assert {name: entry[0][2:] for name, entry in seen.items()} == {
        "reset_reason_reporter": [],
        "spark_updatectl": ["status"],
        "spark_diagctl": ["crash", "status"],
    }
    assert all(entry[1] == {"log_path": None} for entry in seen.values())


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import time; time.sleep(30)", "did not answer"),
        ("print('no JSON')", "JSON"),
        ("pass", ""),
        ("raise SystemExit(3)", ""),
        ("print('[' * 100000)", ""),
        ("print('x' * (2 << 20))", ""),
        (printing([]), "not"),
        (printing({"ok": "yes", "data": RESET}), "ok"),
        (printing({"ok": False, "errors": ["no"]}), "failed by its own report"),
        (printing({"ok": True, "data": None}), "data"),
        (printing({"ok": True, "data": {"last_reset": None}}), "last_reset"),
        (printing({"ok": True, "data": {"last_reset": {**RESET["last_reset"], "confidence": "high"}}}), "confidence"),
        (printing({"ok": True, "data": {"last_reset": {**RESET["last_reset"], "summary": "a\nb"}}}), "summary"),
    ],
)
def test_slow_and_broken_answers_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    install(tmp_path, "reset_reason_reporter", program)
    answers, unknown = look(tmp_path, monkeypatch, 1.0 if "sleep" in program else 20.0)
    assert answers == {} and list(unknown) == ["reset_reason_reporter"]
    assert words in unknown["reset_reason_reporter"] and unknown["reset_reason_reporter"].startswith(
        "reset_reason_reporter"
    )


def test_steering_texts_are_made_printable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"last_reset": {**RESET["last_reset"], "summary": "red \x1b[31mtext"}}
    install(tmp_path, "reset_reason_reporter", printing({"ok": True, "data": data}))
    answers, unknown = look(tmp_path, monkeypatch)
    assert "\x1b" not in json.dumps([answers, unknown])


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_tool_that_others_may_change_is_not_run(tmp_path: Path, mode: int) -> None:
    path = install(tmp_path, "spark_updatectl", printing({"ok": True, "data": {"pending_reboot": {"pending": False}}}))
    path.chmod(mode)
    unknown: dict[str, str] = {}
    assert host_health.ask_nvidia_tools(command.reader(), tmp_path, unknown) == {}
    assert "was not run" in unknown["spark_updatectl"]


def test_a_module_beside_the_tool_that_others_may_change_keeps_it_from_being_run(tmp_path: Path) -> None:
    path = install(tmp_path, "spark_updatectl", printing({"ok": True, "data": {"pending_reboot": {"pending": False}}}))
    (path.parent / "common").mkdir()
    module = path.parent / "common/cli_base.py"
    module.write_text("")
    unknown: dict[str, str] = {}
    assert host_health.ask_nvidia_tools(command.reader(), tmp_path, unknown) and not unknown
    module.chmod(0o666)
    assert host_health.ask_nvidia_tools(command.reader(), tmp_path, unknown) == {} and "cli" not in json.dumps(unknown)


@pytest.mark.parametrize("place", ["", "common", "common/deep"])
@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_a_folder_where_others_may_add_a_module_keeps_it_from_being_run(tmp_path: Path, place: str, mode: int) -> None:
    path = install(tmp_path, "spark_updatectl", printing({"ok": True, "data": {"pending_reboot": {"pending": False}}}))
    (path.parent / "common/deep").mkdir(parents=True)
    (path.parent / place).chmod(mode)
    unknown: dict[str, str] = {}
    assert (
        host_health.ask_nvidia_tools(command.reader(), tmp_path, unknown) == {}
        and "was not run" in unknown["spark_updatectl"]
    )


def test_every_module_is_looked_at_and_a_broken_link_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = install(tmp_path, "spark_updatectl", printing({"ok": True, "data": {"pending_reboot": {"pending": False}}}))
    for number in range(250):
        (path.parent / f"m{number}.py").write_text("")
    unknown: dict[str, str] = {}
    assert host_health.ask_nvidia_tools(command.reader(), tmp_path, unknown) and not unknown
    monkeypatch.setattr(host_health, "MOST_BESIDE", 100)
    assert (
        host_health.ask_nvidia_tools(command.reader(), tmp_path, unknown) == {}
        and "was not run" in unknown["spark_updatectl"]
    )
    (path.parent / "gone.py").symlink_to("nothing")
    assert (
        host_health.ask_nvidia_tools(command.reader(), tmp_path, unknown) == {}
        and "gone.py" in unknown["spark_updatectl"]
    )
