"""The rulebook in the real ansible-rulebook: Alertmanager's webhook in, playbooks out; and the settings of ansible-navigator.

EDA_PYTHON is the Python of an environment with requirements.txt, which `make programs` makes; ansible-rulebook needs a Java, too.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RULEBOOK = ROOT / "extensions/eda/rulebooks/alerts.yml"
SHIPPED = ROOT / "extensions/eda/rulebooks/vars.yml"
TOKEN = "a-token"
START, RUN = 300, 600
"""Seconds for Java to start, and for playbooks to end: while one runs, an alert that comes waits for its answer."""
PROGRAMS = Path(os.environ.get("EDA_PYTHON", sys.executable)).parent
INVENTORY = """\
sparks:
  hosts:
    spark-1: {ansible_host: 127.0.0.1, ansible_port: %d, ansible_connection: ssh}
    spark-2: {ansible_host: 127.0.0.1, ansible_port: %d, ansible_connection: ssh}
  vars:
    ansible_ssh_common_args: -o ConnectTimeout=2 -o StrictHostKeyChecking=no
    spark_services:
      - {name: fast, recipe: qwen3-4b-instruct-2507, port: 8002}
pair_a:
  hosts:
    spark-2:
"""


class Running:
    """A running rulebook: its port, its output, and the files of its playbooks."""

    def __init__(self, place: Path, port: int, log: Path) -> None:
        self.place, self.port, self.log = place, port, log

    def post(self, *alerts: dict[str, Any], token: str = TOKEN) -> int:
        """Send alerts as Alertmanager does; returns the status."""
        body = json.dumps({"version": "4", "status": "firing", "receiver": "eda", "alerts": list(alerts)}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/alerts", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=RUN) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def text(self) -> str:
        """What it printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def until(self, done: Callable[[], Any]) -> None:
        """Wait until something is so."""
        end = time.monotonic() + RUN
        while not done():
            assert time.monotonic() < end, self.text()[-4000:]
            time.sleep(0.5)


def alert(name: str, host: str = "spark-1", **labels: str) -> dict[str, Any]:
    """An alert of the monitoring role."""
    return {
        "status": "firing",
        "labels": {"alertname": name, "host": host, "severity": "critical", **labels},
        "annotations": {"summary": f"{name} on {host}"},
        "startsAt": f"2026-11-01T00:00:{time.monotonic_ns() % 60:02d}Z",
    }


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """The rulebook with the shipped variables, but another port, another folder and restarts."""
    port, closed, other = free_port(), free_port(), free_port()
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet/hosts.yml").write_text(INVENTORY % (closed, other), encoding="utf-8")
    variables = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    variables |= {"spark_eda_port": port, "spark_eda_dir": str(tmp_path / "out"), "spark_eda_restart": True}
    (tmp_path / "out").mkdir()
    (tmp_path / "vars.yml").write_text(yaml.safe_dump(variables), encoding="utf-8")
    env = {**os.environ, "SPARK_EDA_TOKEN": TOKEN, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections")}
    env["PATH"] = f"{PROGRAMS}{os.pathsep}{env['PATH']}"
    env["LC_ALL"] = "C.UTF-8"
    env.pop("PYTHONPATH", None)  # the collection imports itself; tools of another Python are not wanted
    env["ANSIBLE_LOG_PATH"] = str(tmp_path / "ansible.log")
    argv = [PROGRAMS / "ansible-rulebook", "--rulebook", RULEBOOK, "--vars", tmp_path / "vars.yml"]
    argv += ["--env-vars", "SPARK_EDA_TOKEN", "--inventory", tmp_path / "fleet", "--verbose"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([str(part) for part in argv], cwd=tmp_path, env=env, stdout=output, stderr=output)
    it = Running(tmp_path, port, log)
    try:
        end = time.monotonic() + START
        while True:
            with socket.socket() as connection:
                if connection.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None and time.monotonic() < end, it.text()[-4000:]
            time.sleep(0.3)
        yield it
    finally:
        process.terminate()
        process.wait(30)


def test_alerts_become_runs_within_bounds(running: Running) -> None:
    assert running.post(alert("SparkTargetDown"), token="another") == 401
    # Ignored: a word that is no host name, a resolved alert, and a mere warning.
    assert running.post(alert("SparkTargetDown", "x;y"), alert("SparkTargetDown", "{{ 1 }}")) == 200
    assert running.post({**alert("SparkTargetDown"), "status": "resolved"}) == 200
    # Neither a host nor a cluster may be a group of the whole inventory: it would widen the limit.
    wide = [alert("SparkTargetDown", host) for host in ("all", "sparks")]
    wide += [
        alert("SparkTargetDown", cluster=cluster) for cluster in ("all", "pair_a,sparks", "*", "!spark-2", "ungrouped")
    ]
    assert running.post(*wide) == 200
    assert running.post(alert("SparkGpuHot", severity="warning")) == 200
    # A wedged engine, told twice.
    assert running.post(alert("SparkEngineWedged", service="fast")) == 200
    assert running.post(alert("SparkEngineWedged", service="fast")) == 200
    assert running.post(alert("SparkTargetDown"), alert("SparkServiceNotUp")) == 200
    assert running.post(alert("SparkUnitFailed", "spark-2", cluster="pair_a")) == 200
    index, doctor = running.place / "out/support/index.json", running.place / "out/doctor-spark-1.json"
    running.until((running.place / "out/doctor-spark-2.json").exists)
    assert doctor.exists()
    text = (running.place / "ansible.log").read_text(encoding="utf-8")
    # The host does not answer, and both say so rather than fail without a word.
    assert "spark-2" in index.read_text(encoding="utf-8")
    assert any(
        finding["rule"].startswith("doctor") for finding in json.loads(doctor.read_text(encoding="utf-8"))["findings"]
    )
    # One restart, with one bundle before it; a bundle and a look for the other host; one look for two more alerts of the first.
    assert len(re.findall(r"PLAY \[Stop services\]", text)) == 1
    assert len(re.findall(r"PLAY \[Collect diagnostics\]", text)) == 2
    assert len(re.findall(r"PLAY \[Examine the hosts\]", text)) == 2
    assert sorted(path.name for path in (running.place / "out").glob("doctor*")) == [
        "doctor-spark-1.json",
        "doctor-spark-2.json",
    ]


def test_navigator_takes_its_settings(tmp_path: Path) -> None:
    argv = [PROGRAMS / "ansible-navigator", "settings", "--effective", "--mode", "stdout"]
    argv += ["--execution-environment", "false"]
    env = {**os.environ, "ANSIBLE_NAVIGATOR_CONFIG": str(ROOT / "ansible-navigator.yml"), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        argv, cwd=tmp_path, env=env, text=True, capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    effective = yaml.safe_load(done.stdout)["ansible-navigator"]
    ours = yaml.safe_load((ROOT / "ansible-navigator.yml").read_text(encoding="utf-8"))["ansible-navigator"]
    assert effective["execution-environment"]["image"] == ours["execution-environment"]["image"]
    assert effective["mode"] == "stdout"
