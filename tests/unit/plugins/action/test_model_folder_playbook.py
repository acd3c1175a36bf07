# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A folder of the controller as playbooks bring it, over a connection to this machine: real files, real runs."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]


class Bringing:
    """A folder with weights, and runs that bring it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source, self.path = folder / "ours", folder / "host" / "local" / "ours"
        self.contents = {"config.json": b"{}", "sub/README.md": b"hello", "model.safetensors": os.urandom(300_000)}
        for name, content in self.contents.items():
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            (self.source / name).write_bytes(content)

    def play(self, *options: str, **more: Any) -> tuple[dict[str, Any], str]:
        """Run it; returns the result of the task and all that was printed."""
        arguments = {"source": str(self.source), "path": str(self.path), **more}
        arguments.update(hf_home=str(self.folder / "host"), staging=str(self.folder / "staging"))
        tasks = [
            {"name": "Bring", "dgxspark.vllm.model_folder": arguments, "register": "came"},
            {
                "name": "Show",
                "ansible.builtin.copy": {"content": "{{ came | to_json }}", "dest": str(self.folder / "came.json")},
                "check_mode": False,
            },
        ]
        book = self.folder / "play.yml"
        book.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}], sort_keys=False))
        host = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
        inventory = self.folder / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"all": {"hosts": {"spark-1": host}}}))
        (self.folder / "came.json").unlink(missing_ok=True)
        ran = ansible_playbook("-i", inventory, book, *options, cwd=self.folder)
        output = " ".join((ran.stdout + ran.stderr).split())
        came = self.folder / "came.json"
        return (json.loads(came.read_text()) if came.exists() else {"failed": True}), output

    def files(self) -> dict[str, bytes]:
        return {str(f.relative_to(self.path)): f.read_bytes() for f in self.path.rglob("*") if f.is_file()}


@pytest.fixture
def bringing(tmp_path: Path) -> Bringing:
    return Bringing(tmp_path)


def test_all_of_it_comes_and_then_nothing(bringing: Bringing) -> None:
    came, output = bringing.play()
    assert came["brought"] == sorted(bringing.contents) and came["bytes"] == 300_007, output
    assert bringing.files() == bringing.contents
    for folder in (bringing.path, bringing.path / "sub"):
        assert folder.stat().st_mode & 0o777 == 0o755
    for name in bringing.contents:
        assert (bringing.path / name).stat().st_mode & 0o777 == 0o644
    assert not list(bringing.path.parent.glob(".*"))
    came, output = bringing.play()
    assert came["changed"] is False and came["brought"] == [] and came["bytes"] == 0, output


def test_only_what_differs_travels(bringing: Bringing) -> None:
    bringing.play()
    (bringing.source / "config.json").write_bytes(b"{ }")
    (bringing.source / "new.bin").write_bytes(b"new")
    (bringing.path / "of_the_host").write_bytes(b"stays")
    came, output = bringing.play()
    assert came["brought"] == ["config.json", "new.bin"] and came["bytes"] == 6, output
    assert bringing.files() == {**bringing.contents, "config.json": b"{ }", "new.bin": b"new", "of_the_host": b"stays"}


@pytest.mark.nightly
def test_the_same_content_of_another_time_does_not_travel(bringing: Bringing) -> None:
    bringing.play()
    os.utime(bringing.source / "model.safetensors", (1, 1))
    came, output = bringing.play()
    assert came["changed"] is False and came["bytes"] == 0, output
    assert int((bringing.path / "model.safetensors").stat().st_mtime) == 1


def test_other_content_of_the_same_size_is_found_by_its_time(bringing: Bringing) -> None:
    bringing.play()
    weights = bringing.path / "model.safetensors"
    weights.write_bytes(os.urandom(300_000))
    later = weights.stat().st_mtime + 2  # times are compared in whole seconds
    os.utime(weights, (later, later))
    came, output = bringing.play()
    assert came["brought"] == ["model.safetensors"], output
    assert bringing.files() == bringing.contents


@pytest.mark.nightly
def test_decay_that_leaves_size_and_time_is_found_by_a_full_look(bringing: Bringing) -> None:
    bringing.play()
    weights = bringing.path / "model.safetensors"
    time = weights.stat().st_mtime
    weights.write_bytes(os.urandom(300_000))
    os.utime(weights, (time, time))
    assert bringing.play()[0]["changed"] is False
    came, output = bringing.play(verify="all")
    assert came["brought"] == ["model.safetensors"], output
    assert bringing.files() == bringing.contents
    assert bringing.play(verify="all")[0]["changed"] is False


def test_modes_are_mended(bringing: Bringing) -> None:
    bringing.play()
    (bringing.path / "config.json").chmod(0o600)
    came, output = bringing.play()
    assert came["changed"] is True and came["brought"] == [], output
    assert (bringing.path / "config.json").stat().st_mode & 0o777 == 0o644


def test_check_mode_says_what_would_come_and_brings_nothing(bringing: Bringing) -> None:
    came, output = bringing.play("--check", "--diff")
    assert came["changed"] is True and came["brought"] == sorted(bringing.contents), output
    assert "+ model.safetensors" in output and not bringing.path.parent.exists()


@pytest.mark.nightly
def test_what_a_run_that_was_cut_off_has_brought_is_not_sent_again(bringing: Bringing) -> None:
    bringing.play()
    # The state after a run was killed between sending and placing the last file.
    waiting = bringing.folder / "staging" / f"ours-{hashlib.sha256(str(bringing.path).encode()).hexdigest()[:12]}"
    waiting.mkdir(parents=True)
    (bringing.path / "model.safetensors").unlink()
    digest = hashlib.sha256(bringing.contents["model.safetensors"]).hexdigest()
    part = waiting / hashlib.sha256(f"model.safetensors\n{digest}".encode()).hexdigest()
    part.write_bytes(bringing.contents["model.safetensors"])
    came, output = bringing.play()
    assert came["brought"] == ["model.safetensors"] and came["bytes"] == 0, output
    assert bringing.files() == bringing.contents and not waiting.exists()

    # Of the right size, and damaged: sent once more.
    (bringing.path / "model.safetensors").unlink()
    waiting.mkdir()
    part.write_bytes(os.urandom(300_000))
    came, output = bringing.play()
    assert came["bytes"] == 300_000, output
    assert bringing.files() == bringing.contents


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("gone", "is no folder of the controller"),
        ("empty", "has no files"),
        ("link", "is no file that can be read"),
        ("file", "is no folder, but the files of"),
    ],
)
def test_what_cannot_be_is_refused_in_words(bringing: Bringing, spoil: str, message: str) -> None:
    if spoil == "gone":
        bringing.source = bringing.folder / "nowhere"
    elif spoil == "empty":
        bringing.source = bringing.folder / "empty"
        bringing.source.mkdir()
    elif spoil == "link":
        (bringing.source / "lost").symlink_to("nowhere")
    else:
        bringing.path.parent.mkdir(parents=True)
        bringing.path.write_text("a file")
    came, output = bringing.play()
    assert came == {"failed": True} and message in output, output
