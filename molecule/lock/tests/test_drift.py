"""drift.yml on unchanged nodes, and on nodes that somebody changed by hand. Each test restores the nodes.

Unchanged nodes may have findings about images that the lock file lacks or whose tag moved since: both are left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path.insert(0, str(ROOT / "molecule"))

from nodes import NODES, SUBNET, node

LOCK = yaml.safe_load((ROOT / ".cache" / "molecule" / SUBNET / "spark.lock.yml").read_text(encoding="utf-8"))
REF, IMAGE = next(iter(LOCK["images"].items()))
LOCKED = [platform["id"] for platform in IMAGE["platforms"].values()]
UNIT, ENV = "/etc/systemd/system/spark-fast.service", "/etc/dgxspark/env/fast.env"
MOVED, UNLISTED = "lock.moved", "lock.unlisted"
SECRET = "nobody-is-to-read-this"
# All that a look could change: files with their times (the watchdog writes its own all the while), what runs, images and their names.
STATE = """
find /etc/dgxspark /etc/systemd/system /usr/local/lib/dgxspark /usr/local/libexec/dgxspark /var/lib/dgxspark /srv/huggingface \
  -not -type d -not -path '/var/lib/dgxspark/watchdog/*' -not -path /var/lib/dgxspark/guard/state.json -printf '%p %m %u %s %T@ %l\\n' | sort
docker container ls --all --no-trunc --format '{{.ID}} {{.Names}} {{.Image}}' | sort
docker image ls --all --no-trunc --format '{{.ID}} {{.Repository}}:{{.Tag}} {{.Digest}}' | sort
systemctl show --property=Id,ActiveState,UnitFileState,ActiveEnterTimestampMonotonic 'spark-*' | awk 'BEGIN { RS = "" } { gsub("\\n", " "); print }'
"""


def looks():
    return {f"{host}: {line}" for host in NODES for line in node(host, "sh", "-ec", STATE).splitlines()}


@pytest.fixture
def drift(tmp_path):
    """Look, see that looking changed nothing, and return report and output."""
    report = tmp_path / "drift.json"

    def look(*options, code=0, ignore=(MOVED, UNLISTED)):
        before = looks()
        argv = ["ansible-playbook", "dgxspark.vllm.drift"]
        argv += [f"--inventory={ROOT}/molecule/inventory.yml", f"--inventory={ROOT}/molecule/lock/inventory.yml"]
        argv += ["-e", json.dumps({"spark_drift_file": str(report), "spark_ignore_rules": list(ignore)}), *options]
        ran = subprocess.run(
            argv, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "ANSIBLE_NOCOLOR": "1"}
        )
        text = ran.stdout + ran.stderr
        assert ran.returncode == code, text
        assert text.count("changed=0") == len(NODES), text
        assert sorted(looks() ^ before) == []
        return json.loads(report.read_text()), text

    return look


def rules(report):
    return [(finding["host"], finding["rule"]) for finding in report["findings"]]


def until(expected, *argv, host, seconds=180):
    """Wait until a command on a node says something, for a bounded time."""
    end = time.monotonic() + seconds
    while (output := node(host, *argv, check=False).strip()) != expected:
        assert time.monotonic() < end, f"{host}: {' '.join(argv)} says {output!r} instead of {expected!r}"
        time.sleep(0.5)


def serves(host):
    until("active", "systemctl", "is-active", "spark-fast.service", host=host)


@contextmanager
def restored(host, *paths):
    """Restore files afterwards, with their times."""
    node(host, "mkdir", "/run/kept")
    node(host, "cp", "--archive", "--parents", *paths, "/run/kept")
    try:
        yield
    finally:
        for path in paths:
            node(host, "cp", "--archive", f"/run/kept{path}", path)
        node(host, "rm", "-r", "/run/kept")


@pytest.mark.parametrize("options", [(), pytest.param(("--check",), marks=pytest.mark.nightly)])
def test_nodes_that_are_as_they_were_deployed_are_one_line(drift, options):
    report, text = drift("-e", "spark_drift_fail_on=info", *options)
    assert report["findings"] == [], text
    assert "2 hosts, 2 services: nothing has drifted." in text
    assert {host: body["state"] for host, body in report["hosts"].items()} == dict.fromkeys(NODES, "same")
    assert all(body["generation"] >= 1 and body["proven"] for body in report["hosts"].values())


@pytest.mark.nightly
def test_a_tag_that_moved_since_it_was_locked_is_said(drift):
    """On the second node by hand, on the first one where the scenario has moved it."""
    was = node("spark-2", "docker", "image", "inspect", "--format", "{{.Id}}", REF).strip()
    assert was in LOCKED
    newer = node("spark-2", "docker", "commit", "spark-fast", REF).strip()
    try:
        image_ids = {
            host: node(host, "docker", "image", "inspect", "--format", "{{.Id}}", REF).strip() for host in NODES
        }
        report, text = drift("-e", "spark_drift_fail_on=warning", code=2, ignore=(UNLISTED,))
    finally:
        node("spark-2", "docker", "tag", was, REF)
        node("spark-2", "docker", "image", "rm", newer)
    assert rules(report) == [(host, MOVED) for host in NODES if image_ids[host] not in LOCKED]
    assert ("spark-2", MOVED) in rules(report)
    assert f"{REF} is {newer[7:19]} on this host now; " in text


def test_files_changed_by_hand_are_named_and_not_shown(drift):
    dropin = f"{UNIT}.d/override.conf"
    with restored("spark-1", UNIT, ENV):
        node("spark-1", "mkdir", f"{UNIT}.d")
        try:
            node("spark-1", "sh", "-ec", f"echo '# by hand' >> {UNIT}; echo TOKEN={SECRET} | tee -a {ENV} > {dropin}")
            report, text = drift("-e", "spark_drift_fail_on=warning", code=2)
        finally:
            node("spark-1", "rm", "-r", f"{UNIT}.d")
    assert rules(report) == [("spark-1", f"drift.file_{kind}") for kind in ("changed", "changed", "added")]
    assert [finding["service"] for finding in report["findings"]] == ["fast"] * 3
    for path, change in ((UNIT, "was changed"), (ENV, "was changed"), (dropin, "is new")):
        assert f"spark-1/fast: {path} {change} " in text
    assert "3 differences on 1 of 2 hosts (spark-1): drift.file_changed, drift.file_added" in text
    assert SECRET not in text and SECRET not in json.dumps(report)


@pytest.mark.nightly
def test_a_container_that_was_recreated_from_another_image(drift):
    deployed = node("spark-2", "docker", "container", "inspect", "--format", "{{.Image}}", "spark-fast").strip()
    other = node("spark-2", "docker", "commit", "spark-fast", "sim/by-hand:1").strip()
    assert other != deployed
    try:
        node("spark-2", "systemctl", "stop", "spark-fast.service")
        node("spark-2", "docker", "run", "--detach", "--name=spark-fast", "--entrypoint=sleep", "sim/by-hand:1", "900")
        report, text = drift()
    finally:
        node("spark-2", "docker", "rm", "--force", "spark-fast")
        node("spark-2", "systemctl", "start", "spark-fast.service")
        node("spark-2", "docker", "image", "rm", "sim/by-hand:1")
        serves("spark-2")
    assert rules(report) == [("spark-2", "drift.by_hand"), ("spark-2", "drift.image")]
    assert f"it runs image {other[7:19]}, and {deployed[7:19]} was deployed" in text
    assert "its container spark-fast runs, and its unit is inactive: it was started by hand" in text


@pytest.mark.nightly
def test_an_image_that_its_unit_was_made_to_name(drift):
    """Restarted since, so it serves: nothing but a comparison tells."""
    deployed = node("spark-2", "docker", "container", "inspect", "--format", "{{.Image}}", "spark-fast").strip()
    named = node("spark-2", "docker", "container", "inspect", "--format", "{{.Config.Image}}", "spark-fast").strip()
    node("spark-2", "docker", "commit", "spark-fast", "sim/by-hand:2")
    try:
        with restored("spark-2", UNIT):
            node("spark-2", "sed", "-i", f"s|{named}|sim/by-hand:2|", UNIT)
            node("spark-2", "systemctl", "daemon-reload")
            node("spark-2", "systemctl", "restart", "spark-fast.service")
            serves("spark-2")
            report, _text = drift()
    finally:
        node("spark-2", "systemctl", "daemon-reload")
        node("spark-2", "systemctl", "restart", "spark-fast.service")
        node("spark-2", "docker", "image", "rm", "sim/by-hand:2")
        serves("spark-2")
    assert ("spark-2", "drift.image") in rules(report)
    assert [finding["message"] for finding in report["findings"] if finding["rule"] == "drift.file_changed"] == [
        f"{UNIT} was changed after it was deployed."
    ]
    assert {host for host, _rule in rules(report)} == {"spark-2"}
    assert node("spark-2", "docker", "container", "inspect", "--format", "{{.Image}}", "spark-fast").strip() == deployed


def test_a_service_that_was_stopped_by_hand(drift):
    try:
        node("spark-1", "systemctl", "disable", "--now", "spark-fast.service")
        report, text = drift("-e", "spark_drift_fail_on=error", "-e", "spark_drift_show=lines", code=2)
    finally:
        node("spark-1", "systemctl", "enable", "--now", "spark-fast.service")
        serves("spark-1")
    assert rules(report) == [("spark-1", "drift.stopped"), ("spark-1", "drift.boot")]
    assert "ERROR   spark-1/fast: it should run, but spark-fast.service is inactive. [drift.stopped]" in text
    assert report["hosts"]["spark-2"]["state"] == "same"


@pytest.mark.nightly
def test_a_model_that_lacks_a_file_and_one_that_is_cut_short(drift):
    folder = node("spark-1", "sh", "-c", "echo /srv/huggingface/hub/models--*/snapshots/*").split()[0]
    first, second = (
        node("spark-1", "readlink", "--canonicalize", f"{folder}/{name}").strip()
        for name in ("config.json", "README.md")
    )
    with restored("spark-1", first, second):
        node("spark-1", "truncate", "--size=10", first)
        node("spark-1", "rm", second)
        report, text = drift()
    assert rules(report) == [("spark-1", "drift.model_files")]
    assert "config.json has 10 bytes instead of " in text and "README.md is missing" in text


@pytest.mark.nightly
def test_a_service_that_the_inventory_names_otherwise_is_said_once(drift):
    service = {"name": "quick", "recipe": "qwen3-4b-instruct-2507", "image": REF, "port": 8001}
    report, text = drift("-e", json.dumps({"spark_services": [service]}), ignore=(MOVED,))
    rule_names = sorted(rules(report))
    assert [rule for host, rule in rule_names if host == "spark-1"] == [
        rule for host, rule in rule_names if host == "spark-2"
    ]
    assert {"drift.not_deployed", "drift.unplanned", "lock.unlisted"} <= {rule for _host, rule in rule_names}
    assert text.count("[drift.unplanned]") == text.count("[drift.not_deployed]") == text.count("[lock.unlisted]") == 1
    assert (
        "fast on spark-1..2: it is deployed on this host, but not in the inventory any more; its unit is active."
        in text
    )


@pytest.mark.nightly
def test_the_nodes_are_as_they_were_found(drift):
    assert drift()[0]["findings"] == []
