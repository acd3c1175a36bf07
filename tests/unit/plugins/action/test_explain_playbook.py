# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook explain.yml as a person runs it: on a file without an inventory, and on the journal of a service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from playbook_runs import ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.action import explain

LOG = """\
(APIServer pid=1) INFO 11-20 09:25:02 [api_utils.py:273] non-default args: {'port': 8001}
(EngineCore pid=9) ERROR 11-20 09:25:09 [core.py:1128] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-20 09:25:09 [core.py:1128] ValueError: No available memory for the cache blocks.
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
JOURNALCTL = '#!/bin/sh\ncase "$*" in *spark-heavy.service*) cat "$PLAYED/journal" ;; *) exit 1 ;; esac\n'


def labels(text: str) -> dict[str, str]:
    """The labelled lines of an output."""
    pairs = (line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return {name: value for name, value in pairs if name in ("Log", "Stage", "Error", "Cause", "Fix", "Source")}


@pytest.mark.slow
def test_a_file_is_explained_without_an_inventory(tmp_path: Path) -> None:
    (tmp_path / "vllm.log").write_text(LOG)
    ran = ansible_playbook("-i", "localhost,", "dgxspark.vllm.explain", "-e", "explain_log=vllm.log", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    explanation = labels(ran.stdout)
    assert explanation["Log"] == "vllm.log" and explanation["Stage"] == "arguments"
    assert explanation["Error"] == "ValueError: No available memory for the cache blocks."
    assert "KV cache" in explanation["Cause"] and "gpu-memory-utilization" in explanation["Fix"]
    assert "no_cache_memory" in explanation["Source"] and "memory.no_cache_memory" in explanation["Source"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "words"), [("explain_log=gone.log", "no file on the controller"), ("x=1", "give -e explain_log=FILE")]
)
def test_without_a_log_the_run_fails_and_says_what_to_give(tmp_path: Path, argument: str, words: str) -> None:
    ran = ansible_playbook("-i", "localhost,", "dgxspark.vllm.explain", "-e", argument, cwd=tmp_path)
    assert ran.returncode == 2 and words in " ".join((ran.stdout + ran.stderr).split())


@pytest.mark.slow
def test_the_journal_of_a_service_is_explained(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/journalctl").write_text(JOURNALCTL)
    (tmp_path / "bin/journalctl").chmod(0o755)
    (tmp_path / "journal").write_text(LOG)
    services = [
        {"name": name, "recipe": "qwen3-4b-instruct-2507", "port": port}
        for name, port in (("heavy", 8001), ("fast", 8002))
    ]
    host: dict[str, Any] = {"ansible_connection": "local", "spark_services": services}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": {"spark-1": host}}}))
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PLAYED": str(tmp_path)}
    options = ["-e", "services=heavy", "-e", "ansible_become=false"]
    ran = ansible_playbook("-i", "hosts.yml", "dgxspark.vllm.explain", *options, cwd=tmp_path, env=env)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    explanation = labels(ran.stdout)
    assert (
        explanation["Log"] == "spark-1/heavy"
        and explanation["Error"].startswith("ValueError: No available memory")
        and "fast" not in ran.stdout
    )


def test_of_a_long_file_the_begin_and_the_end_are_read(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    with path.open("wb") as stream:
        stream.write(b"first line\n")
        stream.seek(100 * 2**20)  # a hole: a file of 100 MB that takes no room
        stream.write(LOG.encode())
    text = explain.read_log(str(path))
    assert len(text) < 3 * 2**20 and text.startswith("first line") and text.endswith("Failed core proc(s): {}\n")
    assert explain.explain.explain(text.splitlines()).id == "no_cache_memory"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-8"])
def test_encodings_of_other_shells_are_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "log").write_bytes(LOG.encode(encoding))
    assert explain.read_log(str(tmp_path / "log")) == LOG


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "gone"):
        with pytest.raises(AnsibleActionFail, match="no file on the controller"):
            explain.read_log(str(tmp_path / name))
