#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop an unmanaged container or unit of vLLM for good, or restore it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: unmanaged_state
short_description: Stop an unmanaged container or unit of vLLM for good, or restore it
version_added: 0.1.0
description:
  - V(stopped) stops the container, through its unit if it has one, disables its automatic start, and waits until its memory is free. Its
    former state is recorded on the host, in C(/var/lib/dgxspark/adopted); container and unit stay there. A unit may also run vLLM without
    a container.
  - V(started) starts it again with its former restart policy or unit, and removes the record. A running one without a record is not
    changed.
  - Containers and units of this collection, and those that do not run vLLM, are refused.
options:
  container:
    description: Name of the container; empty where the unit runs vLLM without one.
    type: str
    default: ''
  unit:
    description: The unit that runs it, as C(adoption) of M(dgxspark.vllm.spark_info) names it.
    type: str
    default: ''
  service:
    description: The service that takes its place, for the note.
    type: str
    default: ''
  url:
    description: Where it answers, for the note.
    type: str
    default: ''
  state:
    description: What is wanted of it.
    type: str
    choices: [started, stopped]
    required: true
  timeout:
    description: Seconds that memory is waited for after a stop.
    type: float
    default: 240
  root:
    description: Where C(/proc) is read. Simulated Sparks show their own there.
    type: path
    default: /
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  diff_mode:
    support: none
seealso:
  - module: dgxspark.vllm.spark_info
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Stop a container that somebody started by hand
  dgxspark.vllm.unmanaged_state:
    container: vllm
    state: stopped
  become: true

- name: Start it again
  dgxspark.vllm.unmanaged_state:
    container: vllm
    state: started
  become: true
"""

RETURN = r"""
freed_gib:
  description: By how much the available memory grew.
  returned: success
  type: float
  sample: 95.21
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import unmanaged
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import docker_facts, host_lock, machine
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView, still_listed
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import verbs
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import hostmem, state_file
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import (
    WORK_SECONDS,
    failing,
    reader,
    runner,
    says_missing,
)

NOTES = Path("/var/lib/dgxspark/adopted")
ETC = "/etc/dgxspark"
PROC_ROOT = "/"


class Unmanaged:
    """The container or the unit, and what is noted of it."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.run, self.ask = runner(module, WORK_SECONDS), reader()
        self.container, self.unit = str(self.params["container"]), str(self.params["unit"])
        self.name = self.container or self.unit
        self.note = NOTES / f"{self.name.replace('/', '_')}.json"
        self.box: dict[str, Any] | None = None
        if self.container:
            rc, out, err = self.run(["docker", "container", "inspect", "--", self.container])
            if rc not in (0, 127) and not says_missing(err):
                module.fail_json(msg=f"{self.name}: docker does not say whether it is there: {err.strip()}")
            with failing(module):
                self.box = next(iter(docker_facts.read_inspected(out)), None) if rc == 0 else None
            if self.box is None and not self.unit:
                module.fail_json(
                    msg=f"{self.name}: there is no such container on this host: {err.strip()}. One that was removed cannot come "
                    f"back; take its note away: {self.note}"
                )
        self.refuse_others()

    def refuse_others(self) -> None:
        """Fail for what is none of a launch that somebody made by hand."""
        ours = unmanaged.is_own(self.unit, machine.read_services(ETC))
        if self.box is not None:
            labels = (self.box.get("Config") or {}).get("Labels") or {}
            ours = (
                ours or str(labels.get("dgxspark.managed", "")).lower() == "true" or not unmanaged.is_engine(self.box)
            )
        elif not self.container and self.active():
            ours = ours or not any(unmanaged.engine_words(process["words"]) for process in self.processes())
        if ours:
            self.module.fail_json(msg=f"{self.name} is left alone: it is of this collection, or no launch of vLLM.")

    def active(self) -> bool:
        """Whether the unit runs; fails where systemd does not say, so that nothing is taken for stopped that may run."""
        rc, out, err = self.run(["systemctl", "show", "--property=ActiveState", "--value", "--", self.unit])
        if rc != 0 or not out.strip():
            self.module.fail_json(
                msg=f"{self.name}: systemd does not say whether it runs: {err.strip() or f'exit code {rc}'}"
            )
        return out.strip() in verbs.RUNNING

    def processes(self) -> list[dict[str, Any]]:
        """The programs of the unit."""
        return [each for each in machine.read_processes(PROC_ROOT) if unmanaged.unit_of(each["cgroup"])[0] == self.unit]

    def runs(self) -> bool:
        """Whether the launch runs."""
        if self.container:
            return self.box is not None and bool((self.box.get("State") or {}).get("Running"))
        return self.active()

    def held(self) -> tuple[float, list[int]]:
        """GPU memory that it holds, GiB, and the ids of the processes that hold it."""
        with failing(self.module):
            view = HostView(self.ask, self.params["root"])
            gpu = view.gpu(view.containers()) or {}
        listed = gpu.get("processes") or []
        if self.container:
            return verbs.held_by([self.container], listed)
        own = {process["pid"] for process in self.processes()}
        return verbs.held_by([self.unit], [{**each, "container": self.unit} for each in listed if each["pid"] in own])

    def must(self, *argv: str) -> str:
        """Run a program that has to succeed; returns what it printed."""
        rc, out, err = self.run(list(argv))
        if rc != 0:
            self.module.fail_json(msg=f"{self.name}: {' '.join(argv)} ended with {rc}: {err.strip() or out.strip()}")
        return str(out)

    def available(self) -> float:
        """What is available now, GiB."""
        return hostmem.mem_available_gib(hostmem.read_meminfo(self.params["root"]))

    def stop(self) -> None:
        """Stop it and wait for its memory."""
        if not self.runs():
            self.module.exit_json(changed=False, freed_gib=0.0)
        if self.module.check_mode:
            self.module.exit_json(changed=True, freed_gib=0.0)
        before = self.available()
        held, pids = self.held()
        enabled, path = False, ""
        if self.unit:
            # It is ended by 1 for one that is not enabled too: what it prints is the answer.
            rc, out, err = self.run(["systemctl", "is-enabled", "--", self.unit])
            if not out.strip():
                self.module.fail_json(
                    msg=f"{self.name}: systemd does not say whether it starts at boot, so it could not be brought back as it "
                    f"was, and was not stopped: {err.strip() or f'exit code {rc}'}"
                )
            enabled = out.strip().startswith("enabled")
            out = self.must("systemctl", "show", "--property=FragmentPath", "--value", "--", self.unit)
            # A file of elsewhere that was linked is unlinked with it.
            path = str(Path(out.strip()).resolve()) if out.strip() else ""
        noted = {
            "container": self.container,
            "unit": self.unit,
            "enabled": enabled,
            "path": path,
            "restart": ((self.box or {}).get("HostConfig") or {}).get("RestartPolicy") or {},
            "service": self.params["service"],
            "url": self.params["url"],
        }
        # Before anything is touched: a run that is cut off can still be undone.
        state_file.write(self.note, noted)
        if self.unit:
            if enabled:
                self.must("systemctl", "disable", "--", self.unit)
            self.must("systemctl", "stop", "--", self.unit)
        else:
            self.must("docker", "update", "--restart=no", "--", self.container)
            self.must("docker", "stop", "--time", "60", "--", self.container)
        need = verbs.expected_gib(before, held)
        found = verbs.wait_until_back(
            lambda: (self.available(), still_listed(self.ask, pids)),
            need,
            pids,
            timeout=self.params["timeout"],
            interval=2,
            clock=time.monotonic,
            sleep=time.sleep,
        )
        if not found["ok"]:
            self.module.fail_json(msg=verbs.not_back(found, need, [self.name], "see nvidia-smi"))
        self.module.exit_json(changed=True, freed_gib=round(max(found["available_gib"] - before, 0.0), 3))

    def start(self) -> None:
        """Bring it back as it was."""
        running = self.runs()
        noted = state_file.read(self.note)
        if noted is None:
            if running:
                self.module.exit_json(changed=False, freed_gib=0.0)
            self.module.fail_json(
                msg=f"{self.name}: what it was is not noted on this host ({self.note}), so it is not brought back. Start it yourself."
            )
            return
        if self.module.check_mode:
            self.module.exit_json(changed=True, freed_gib=0.0)
        if noted["unit"]:
            # What was noted before units were told apart was enabled.
            if noted.get("enabled", True):
                self.must("systemctl", "enable", "--", noted.get("path") or noted["unit"])
            self.must("systemctl", "start", "--no-block", "--", noted["unit"])
        else:
            policy = noted["restart"]
            retries = policy.get("MaximumRetryCount") or 0
            kind = str(policy.get("Name") or "no")
            self.must(
                "docker",
                "update",
                f"--restart={kind}:{retries}" if kind == "on-failure" and retries else f"--restart={kind}",
                "--",
                self.container,
            )
            self.must("docker", "start", "--", self.container)
        self.note.unlink(missing_ok=True)
        self.module.exit_json(changed=True, freed_gib=0.0)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "default": ""},
            "unit": {"type": "str", "default": ""},
            "service": {"type": "str", "default": ""},
            "url": {"type": "str", "default": ""},
            "state": {"type": "str", "choices": ["started", "stopped"], "required": True},
            "timeout": {"type": "float", "default": 240},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    if not module.params["container"] and not module.params["unit"]:
        module.fail_json(msg="name the container, or the unit that runs vLLM without one")
    with host_lock.held(module):
        launch = Unmanaged(module)
        if module.params["state"] == "stopped":
            launch.stop()
        else:
            launch.start()


if __name__ == "__main__":
    main()
