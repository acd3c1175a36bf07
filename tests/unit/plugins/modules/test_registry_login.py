# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts at registries: logged in once, never as an argument, logged out by a reset; a script plays docker and keeps its configuration file."""

from __future__ import annotations

import base64
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import registries

pytestmark = pytest.mark.slow

DOCKER = """#!/usr/bin/env python3
import base64, json, os, pathlib, sys
folder = pathlib.Path(os.environ["PLAYED"])
with (folder / "calls").open("a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
path, words = pathlib.Path(sys.argv[2]) / "config.json", sys.argv[3:]
config = json.loads(path.read_text()) if path.exists() else {"auths": {}}
if words[0] == "login":
    password = sys.stdin.read().rstrip("\\n")
    if password == "wrong":
        sys.exit(f"Error response from daemon: unauthorized: {password} is no password")
    config["auths"][words[-1]] = {"auth": base64.b64encode(f"{words[2]}:{password}".encode()).decode()}
else:
    config["auths"].pop(words[-1], None)
path.parent.mkdir(exist_ok=True)
path.write_text(json.dumps(config))
path.chmod(0o644)
"""
SECRET = "nvapi-do-not-show-me"


class Host:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "bin/docker").write_text(DOCKER)
        (folder / "bin/docker").chmod(0o755)
        (folder / ".secrets").mkdir()
        self.password(SECRET)
        (folder / "hosts").write_text("spark-1 ansible_connection=local\n")

    def password(self, text: str) -> None:
        (self.folder / ".secrets/ngc").write_text(f"{text}\n")

    def play(self, *options: str, **args: Any) -> tuple[int, str]:
        task = {"dgxspark.vllm.registry_login": {"config_dir": str(self.folder / "docker"), **args}}
        (self.folder / "play.yml").write_text(
            yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [task]}])
        )
        env = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PLAYED": str(self.folder),
            "DGXSPARK_STATE_DIR": str(self.folder / "state"),
            "DGXSPARK_RUN_DIR": str(self.folder / "run"),
        }
        done = ansible_playbook("-i", "hosts", "play.yml", "-vvv", "--diff", *options, cwd=self.folder, env=env)
        return done.returncode, done.stdout + done.stderr

    def log_in(self, *options: str, user: str = "$oauthtoken") -> tuple[int, str]:
        return self.play(*options, registries=[{"registry": "nvcr.io", "user": user, "password_file": ".secrets/ngc"}])

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def auths(self) -> dict[str, Any]:
        return json.loads((self.folder / "docker/config.json").read_text())["auths"]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_once_and_then_never_again_until_the_password_is_another(host: Host) -> None:
    code, text = host.log_in("--check")
    assert code == 0 and "changed=1" in text and host.calls() == []
    code, text = host.log_in()
    assert code == 0 and "changed=1" in text, text
    assert host.calls() == [f"--config {host.folder}/docker login --username $oauthtoken --password-stdin nvcr.io"]
    assert SECRET not in text and SECRET not in "".join(host.calls())
    assert stat.S_IMODE((host.folder / "docker/config.json").stat().st_mode) == 0o600
    note = host.folder / "state/registries.json"
    assert stat.S_IMODE(note.stat().st_mode) == 0o600 and SECRET not in note.read_text()
    code, text = host.log_in()
    assert code == 0 and "changed=0" in text and len(host.calls()) == 1
    host.password("another-secret")
    code, text = host.log_in()
    assert code == 0 and "changed=1" in text and len(host.calls()) == 2 and "another-secret" not in text


def test_a_reset_logs_out_of_what_was_logged_in_to(host: Host) -> None:
    host.log_in()
    code, text = host.play("--check", state="absent")
    assert code == 0 and "changed=1" in text and "nvcr.io" in host.auths()
    code, text = host.play(state="absent")
    assert code == 0 and "changed=1" in text and host.auths() == {}
    assert not (host.folder / "state/registries.json").exists()
    code, text = host.play(state="absent")
    assert code == 0 and "changed=0" in text


def test_what_a_person_logged_in_to_stays(host: Host) -> None:
    host.log_in()
    owners_auth = base64.b64encode(b"ada:hers").decode()
    (host.folder / "docker/config.json").write_text(json.dumps({"auths": {"nvcr.io": {"auth": owners_auth}}}))
    code, _text = host.play(state="absent")
    assert code == 0 and host.auths()["nvcr.io"]["auth"] == owners_auth


def test_a_refusal_names_the_registry_and_hides_the_password(host: Host) -> None:
    host.password("wrong")
    code, text = host.log_in()
    assert code != 0 and "Docker could not log in to nvcr.io as $oauthtoken" in text
    assert "wrong is no password" not in text


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "is empty. Put the password in it"), (None, "cannot be read on the controller")],
)
def test_a_file_without_a_password_is_named(host: Host, content: str | None, message: str) -> None:
    path = host.folder / ".secrets/ngc"
    path.write_text(content) if content is not None else path.unlink()
    code, text = host.log_in()
    assert code != 0 and message in " ".join(text.split()) and host.calls() == []


@pytest.mark.parametrize(
    ("entries", "expected_message"),
    [
        ([{"registry": "nvcr.io", "password": "x"}], "did you mean 'password_file'?"),
        ([{"registry": "https://nvcr.io/v2", "password_file": "f"}], "write nvcr.io or registry.lan:5000"),
        ([{"registry": "nvcr.io"}], "has no 'password_file'"),
        ([{"registry": "a.b", "user": "x y", "password_file": "f"}], "one word without a colon"),
        ([{"registry": "a.b", "password_file": "f"}, {"registry": "a.b", "password_file": "g"}], "names a.b twice"),
    ],
)
def test_wrong_entries_are_named(entries: Any, expected_message: str) -> None:
    _entries, messages = registries.read("host spark-1", entries)
    assert any(expected_message in message for message in messages), messages


def test_docker_hub_is_kept_by_its_old_name() -> None:
    auth = base64.b64encode(b"ada:x").decode()
    config = {"auths": {"https://index.docker.io/v1/": {"auth": auth}}}
    assert (
        registries.stored_account(config, "docker.io") == ("ada", "x")
        and registries.stored_account(config, "nvcr.io") is None
    )
    assert registries.stored_account({"auths": {"nvcr.io": {}}}, "nvcr.io") == ("", "")
