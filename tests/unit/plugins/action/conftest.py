# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks that tests run take few processes a task, as with the ansible.cfg of this repository."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def pipelining(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules go to the interpreter by its standard input; ansible.cfg is not read in the folders of tests."""
    monkeypatch.setenv("ANSIBLE_PIPELINING", "1")
