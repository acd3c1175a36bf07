# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests that the verbs refuse before they contact a host."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
FAST = {"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": 8002}
BIG = {"name": "big", "recipe": "qwen3-235b-a22b-gptq-int4", "port": 8001}


class Fleet:
    """A single Spark and a pair that nobody can reach: what contacts one of them fails by its own words."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ssh = folder / "ssh"
        ssh.write_text("#!/bin/sh\necho CONTACTED >&2\nexit 255\n")
        ssh.chmod(0o755)
        pair = {
            "hosts": {"spark-2": None, "spark-3": None},
            "vars": {"spark_cluster": {"name": "pair", "services": [BIG]}},
        }
        single = {"spark-1": {"spark_services": [FAST, {**FAST, "name": "other", "port": 8003}]}}
        inventory = {
            "sparks": {"hosts": single, "children": {"pair": pair}, "vars": {"ansible_ssh_executable": str(ssh)}}
        }
        (folder / "hosts.yml").write_text(yaml.safe_dump(inventory, sort_keys=False))

    def run(self, playbook: str, *options: str) -> tuple[int, str]:
        ran = ansible_playbook("-i", self.folder / "hosts.yml", playbook, *options, cwd=self.folder)
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split())


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


@pytest.mark.parametrize("verb", ["stop", pytest.param("restart", marks=pytest.mark.nightly)])
def test_wrong_names_are_refused_before_any_host_is_contacted(fleet: Fleet, verb: str) -> None:
    code, text = fleet.run(f"dgxspark.vllm.{verb}", "-e", "services=fats,big", "--limit", "spark-1,spark-2")
    assert code != 0 and "CONTACTED" not in text
    assert "did you mean 'fast'?" in text and "--limit spark-1,spark-2,spark-3" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-e", "out=fast"], "name the service: -e in=NAME"),
        pytest.param(["-e", "in=fast"], "name the service: -e out=NAME", marks=pytest.mark.nightly),
        pytest.param(["-e", "out=fast", "-e", "in=fast"], "fast is named as out and as in", marks=pytest.mark.nightly),
        (["-e", "out=fast", "-e", "in=bigg"], "did you mean 'big'?"),
    ],
)
def test_a_swap_needs_both_and_two_of_them(fleet: Fleet, options: list[str], message: str) -> None:
    code, text = fleet.run("dgxspark.vllm.swap", *options)
    assert code != 0 and message in text and "CONTACTED" not in text


@pytest.mark.parametrize(
    "verb", ["start", *(pytest.param(verb, marks=pytest.mark.nightly) for verb in ("restart", "adopt", "update_host"))]
)
def test_a_check_of_a_verb_contacts_the_hosts_of_its_limit_alone(fleet: Fleet, verb: str) -> None:
    code, text = fleet.run(f"dgxspark.vllm.{verb}", "--check", "--diff", "--limit", "spark-1")
    assert code == 4, text  # unreachable, and nothing else is wrong
    assert "[spark-1]: UNREACHABLE!" in text and "CONTACTED" in text
    assert "[spark-2]" not in text and "[spark-3]" not in text


@pytest.mark.nightly
def test_verbs_have_no_tags(fleet: Fleet) -> None:
    verbs = [f"dgxspark.vllm.{verb}" for verb in ("stop", "start", "restart", "swap", "adopt", "clean")]
    code, text = fleet.run(*verbs, "--tags", "service", "-e", "out=fast", "-e", "in=other")
    assert code == 1 and "CONTACTED" not in text and "--tags: unknown 'service'; stop, start" in text, text


def test_half_a_cluster_is_not_updated(fleet: Fleet) -> None:
    code, text = fleet.run("dgxspark.vllm.update_host", "--limit", "spark-1,spark-3", "-e", "spark_update_confirm=true")
    assert code != 0 and "CONTACTED" not in text
    assert "cluster pair: this run leaves out spark-2" in text


def test_what_is_to_be_cleaned_is_read_before_any_host_is_contacted(fleet: Fleet) -> None:
    code, text = fleet.run("dgxspark.vllm.clean", "-e", "spark_clean_remove=image,models", "--limit", "spark-1")
    assert code != 0 and "CONTACTED" not in text
    assert "did you mean 'images'?" in text and "spark_clean_weights=true" in text


SCRIPTS = {
    "apt-get": """\
case "$*" in
*--simulate*) test -e "$SPARK_TEST/done" || echo 'Inst curl [7.0-1] (7.0-2 Debian:12 [arm64])' ;;
*--assume-yes*) touch "$SPARK_TEST/done" ;;
esac
""",
    "fwupdmgr": """\
case "$*" in get-updates*) echo '{"Devices": [{"Name": "EC", "Version": "1", "Releases": [{"Version": "2"}]}]}' ;; esac
""",
    "dpkg": "",
    "dpkg-query": "echo 'curl 7.0-1 installed'",
    "apt-mark": "",
    # An engine that has no images.
    "docker": 'case "$1" in ps) exit 0;; esac; for last; do :; done; echo "[]"; echo "Error response from daemon: No such image: $last" >&2; exit 1',
}


def play_programs(fleet: Fleet, monkeypatch: Any, scripts: dict[str, str]) -> None:
    """Put scripts before the programs of this machine; all that they are called with is in the file C(log)."""
    bin_dir = fleet.folder / "bin"
    bin_dir.mkdir()
    for name, text in scripts.items():
        script = bin_dir / name
        script.write_text(f'#!/bin/sh\necho "{name} $*" >> "$SPARK_TEST/log"\n{text}\n')
        script.chmod(0o755)
    monkeypatch.setenv("SPARK_TEST", str(fleet.folder))
    monkeypatch.setenv("PATH", f"{bin_dir}:{os.environ['PATH']}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at the locks of dpkg")
def test_a_cluster_of_which_one_does_not_answer_is_not_updated(fleet: Fleet, monkeypatch: Any) -> None:
    play_programs(fleet, monkeypatch, SCRIPTS)
    inventory = yaml.safe_load((fleet.folder / "hosts.yml").read_text())
    answering_host = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": "{{ ansible_playbook_python }}",
    }
    inventory["sparks"]["children"]["pair"]["hosts"]["spark-2"] = answering_host
    (fleet.folder / "hosts.yml").write_text(yaml.safe_dump(inventory, sort_keys=False))
    code, text = fleet.run("dgxspark.vllm.update_host", "--limit", "pair", "-e", "spark_update_confirm=true")
    assert code != 0
    assert "no host was changed: cluster pair: spark-3 did not answer or failed above" in text
    assert "PLAY [Update the hosts]" not in text and "--assume-yes" not in (fleet.folder / "log").read_text()


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at the locks of dpkg")
def test_an_update_brings_packages_and_firmware_once_and_says_what_is_left(fleet: Fleet, monkeypatch: Any) -> None:
    """The host is this machine; scripts play the programs that install packages."""
    play_programs(fleet, monkeypatch, SCRIPTS)
    local = ["-e", "ansible_connection=local", "-e", "ansible_become=false", "--limit", "spark-1"]
    local += ["-e", "ansible_python_interpreter={{ ansible_playbook_python }}"]
    code, text = fleet.run("dgxspark.vllm.update_host", *local)
    assert code == 0 and "1 package, 0 to be removed" in text and "firmware: EC 1 -> 2" in text
    assert "--assume-yes" not in (fleet.folder / "log").read_text()
    code, text = fleet.run("dgxspark.vllm.update_host", *local, "-e", "spark_update_confirm=true")
    assert code == 0, text
    done = [line for line in (fleet.folder / "log").read_text().splitlines() if "--assume-yes" in line]
    assert [line.split()[0] for line in done] == ["apt-get", "fwupdmgr"]
    assert "a reboot is due and left to you: firmware is written at the next boot" in text
    # Offered again: told, and left.
    assert text.count("firmware: EC 1 -> 2") == 2


BOX = {
    "Name": "/mine",
    "Id": "a" * 64,
    "Image": "sha256:" + "1" * 64,
    "Config": {
        "Image": "vllm/vllm-openai:v0.24.0-ubuntu2404",
        "Entrypoint": ["vllm", "serve"],
        "Cmd": ["Qwen/Qwen3-4B-Instruct-2507", "--port", "8002", "--max-model-len", "32768"],
        "Env": ["HF_TOKEN=hf_secret"],
    },
    "State": {"Running": True, "Status": "running"},
    "HostConfig": {"NetworkMode": "host", "RestartPolicy": {"Name": "always"}},
}
DOCKER = """\
case "$*" in
info*) echo '{"ServerVersion": "29.2.1"}' ;;
ps*) echo aaaaaaaaaaaa ;;
"container inspect"*) cat "$SPARK_TEST/box.json" ;;
"image inspect"*) shift 3; for ref; do echo "Error: No such image: $ref" >&2; done; exit 1 ;;
*) exit 1 ;;
esac
"""


def test_adopting_shows_what_it_would_do_and_does_nothing(fleet: Fleet, monkeypatch: Any) -> None:
    """The host is this machine, its Docker a script."""
    (fleet.folder / "box.json").write_text(json.dumps([BOX]))
    play_programs(fleet, monkeypatch, {"docker": DOCKER})
    local = ["-e", "ansible_connection=local", "-e", "ansible_become=false", "--limit", "spark-1"]
    code, text = fleet.run(
        "dgxspark.vllm.adopt", *local, "-e", "ansible_python_interpreter={{ ansible_playbook_python }}"
    )
    assert code == 0, text
    assert "mine: service fast can take its place (same model), instead it: both want port 8002" in text
    assert "--max-model-len: 32768 ->" in text and "hf_secret" not in text
    commands = (fleet.folder / "log").read_text()
    assert "docker stop" not in commands and "docker update" not in commands
