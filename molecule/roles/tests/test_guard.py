"""The guard runs unless it is switched off, with the protection of the host; the clocks are limited on request."""

from __future__ import annotations

import json

STATE = "/var/lib/dgxspark/guard/state.json"


def is_guarded(host):
    return host.backend.get_hostname() == "spark-1"


def test_it_runs_unless_it_is_switched_off(host):
    agent = host.service("spark-agent")
    with host.sudo():
        assert host.file(STATE).exists is host.file("/etc/dgxspark/agent/guard.json").exists is is_guarded(host)
        if is_guarded(host):
            assert agent.is_running and agent.is_enabled
            assert json.loads(host.file(STATE).content_string)["level"] in ("calm", "short")


def test_sshd_keeps_its_memory_and_the_clock_its_limit(host):
    assert host.service("spark-gpu-clocks").is_running is is_guarded(host)
    shown = host.check_output("systemctl cat ssh.service")
    assert ("MemoryMin=" in shown) is is_guarded(host)
