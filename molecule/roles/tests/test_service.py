"""Units as systemd sees them, engines as clients see them, and keys as nobody should see them."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule"))

from confined import confined

KEY = "molecule-secret-key"


def services(host):
    return ["heavy", "fast"] if host.backend.get_hostname() == "spark-1" else ["gemma4"]


def show(host, unit, *properties):
    text = host.check_output("systemctl show %s %s", unit, "--property=" + ",".join(properties))
    return dict(line.split("=", 1) for line in text.splitlines())


def test_every_unit_is_active_enabled_and_bounded(host):
    for name in services(host):
        unit = host.service(f"spark-{name}")
        assert unit.is_running
        assert unit.is_enabled
        shown = show(
            host, f"spark-{name}", "Restart", "StartLimitBurst", "TimeoutStartUSec", "RequiresMountsFor", "User"
        )
        assert shown["Restart"] == "always"
        assert shown["StartLimitBurst"] == "3"
        assert shown["TimeoutStartUSec"] == "5min"
        assert "/srv/huggingface" in shown["RequiresMountsFor"]
        assert shown["User"] == "dgxspark"


def test_units_start_one_after_another_when_ready(host):
    if host.backend.get_hostname() != "spark-1":
        return
    assert "spark-heavy.service" in show(host, "spark-fast", "After")["After"]
    first = show(host, "spark-heavy", "ActiveEnterTimestampMonotonic")["ActiveEnterTimestampMonotonic"]
    second = show(host, "spark-fast", "ExecMainStartTimestampMonotonic")["ExecMainStartTimestampMonotonic"]
    assert int(second) >= int(first)


def test_containers_are_ours_and_have_no_supervisor_but_systemd(host):
    with host.sudo():
        for name in services(host):
            shown = json.loads(host.check_output("docker inspect spark-%s", name))[0]
            assert shown["Config"]["Labels"]["dgxspark.managed"] == "true"
            assert shown["HostConfig"]["RestartPolicy"]["Name"] in ("", "no")
            assert shown["HostConfig"]["IpcMode"] == "private"
            assert shown["HostConfig"]["ShmSize"] == 2**30


def test_an_engine_may_do_nothing_to_its_host(host):
    with host.sudo():
        for name in services(host):
            confined(lambda *words: host.check_output(" ".join(words)), f"spark-{name}")


def test_a_file_of_the_controller_is_in_the_container_and_cannot_be_changed_there(host):
    if host.backend.get_hostname() != "spark-2":
        return
    with host.sudo():
        shipped = host.check_output("ls /etc/dgxspark/files/gemma4")
        content = host.file(f"/etc/dgxspark/files/gemma4/{shipped}").content
        assert shipped == f"{hashlib.sha256(content).hexdigest()[:12]}-LICENSE"
        seen = host.check_output("docker exec spark-gemma4 cat /etc/dgxspark/shipped/LICENSE")
        assert seen == content.decode().rstrip("\n")
        assert host.run("docker exec spark-gemma4 sh -c 'echo > /etc/dgxspark/shipped/LICENSE'").rc != 0


def test_an_engine_with_a_key_refuses_clients_without(host):
    if host.backend.get_hostname() != "spark-1":
        return
    url = "http://127.0.0.1:8001/v1/models"
    ask = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], headers={'Authorization': sys.argv[2]}))"
    refused = host.run("python3 -c %s %s %s", ask, url, "Bearer wrong")
    assert "401" in refused.stderr
    assert host.run("python3 -c %s %s %s", ask, url, f"Bearer {KEY}").rc == 0


def test_an_engine_without_a_key_is_on_loopback_only(host):
    if host.backend.get_hostname() != "spark-2":
        return
    listening = host.check_output("ss -H -tln sport = :8001")
    assert "127.0.0.1:8001" in listening
    assert "0.0.0.0" not in listening.split()[3]


def test_the_key_is_in_one_file_and_nowhere_else(host):
    if host.backend.get_hostname() != "spark-1":
        return
    with host.sudo():
        files = host.check_output(
            "grep -rlF %s /etc/systemd /etc/dgxspark /var/lib/dgxspark /usr/local /run/systemd || true", KEY
        )
        assert sorted(files.split()) == [
            "/etc/dgxspark/secrets/fast/VLLM_API_KEY",
            "/etc/dgxspark/secrets/heavy/VLLM_API_KEY",
        ]
        for name in services(host):
            assert host.file(f"/etc/dgxspark/secrets/{name}/VLLM_API_KEY").mode == 0o600
            assert host.file(f"/etc/dgxspark/env/{name}.env").mode == 0o600
            assert KEY not in host.check_output("docker inspect spark-%s", name)
        assert KEY not in host.check_output("journalctl --no-pager --unit 'spark-*.service'")
        assert KEY not in host.check_output("ps -eww -o args | grep -v grep")
