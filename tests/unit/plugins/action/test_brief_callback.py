# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The callback C(brief), with the settings that discover.yml writes."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest
from playbook_runs import ROOT, ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import first_inventory

PLAY = """\
- name: Quiet
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Change nothing
      ansible.builtin.command: "true"
      changed_when: false
    - name: Skip
      ansible.builtin.command: "true"
      when: false
    - name: Include
      ansible.builtin.include_tasks: more.yml
- name: Empty
  hosts: localhost:!localhost
  gather_facts: false
- name: Loud
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Change
      ansible.builtin.command: "true"
    - name: Report
      ansible.builtin.debug:
        msg: a report
    - name: Fail
      ansible.builtin.fail:
        msg: "the disk: it's full"
"""


def settings(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read_string(text)
    return parser


@pytest.mark.slow
def test_changes_reports_and_errors_are_printed_once_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "more.yml").write_text("- name: Change nothing either\n  ansible.builtin.meta: noop\n")
    (tmp_path / "ansible.cfg").write_text(first_inventory.SETTINGS_TEXT)
    environment = {"DGXSPARK_PROGRESS_STYLE": "none", "ANSIBLE_INVENTORY": "localhost,"}
    ran = ansible_playbook("-c", "local", "play.yml", cwd=tmp_path, env=environment)
    text = ran.stdout + ran.stderr
    assert ran.returncode == 2
    assert text.count("the disk: it's full") == 1 and "[ERROR]" not in text, text
    assert "ok: [localhost] => a report" in text and "changed: [localhost]" in text
    assert not [
        word for word in ("Quiet", "Change nothing", "Skip", "included:", "no hosts matched") if word in text
    ], text
    assert "PLAY [Loud]" in text and "PLAY RECAP" in text
    ran = ansible_playbook("-v", "-c", "local", "play.yml", cwd=tmp_path, env=environment)
    assert "TASK [Change nothing]" in ran.stdout and "PLAY [Quiet]" in ran.stdout
    assert "no hosts matched" in ran.stdout


def test_a_clone_has_the_same_settings() -> None:
    written, clone = settings(first_inventory.SETTINGS_TEXT), settings((ROOT / "ansible.cfg").read_text())
    others = {"inventory", "collections_path", "internal_poll_interval"}
    for section in written.sections():
        assert dict(written[section]).items() - {("inventory", ".")} <= dict(clone[section]).items()
        assert clone[section].keys() - written[section].keys() <= others
