#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop a hand-made container of vLLM for good, or bring it back as it was."""

from __future__ import annotations

DOCUMENTATION = r"""
module: foreign_state
short_description: Stop a hand-made container of vLLM for good, or bring it back as it was
version_added: 0.1.0
description:
  - V(stopped) stops the container, by its unit where one runs it, keeps it from coming back by itself, and waits until its memory is
    back. What it was is noted on the host; the container stays there.
  - V(started) brings it back with the restart policy and the unit that were noted.
  - Containers of this collection, and those that are no launch of vLLM, are refused.
options:
  container:
    description: Name of the container.
    type: str
    required: true
  unit:
    description: The unit that runs it, as M(dgxspark.vllm.adopt_info) names it.
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
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
seealso:
  - module: dgxspark.vllm.adopt_info
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Stop a container that somebody started by hand
  dgxspark.vllm.foreign_state:
    container: vllm
    state: stopped
  become: true
"""

RETURN = r"""
freed_gib:
  description: By how much the available memory grew.
  returned: success
  type: float
  sample: 95.21
"""

import json
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils import adopt, gb10, hostmem, verbs
from ansible_collections.dgxspark.vllm.plugins.module_utils.command import runner

NOTES = Path("/var/lib/dgxspark/adopted")


class Foreign:
    """The container, and what is noted of it."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.run = runner(module)
        self.name = self.params["container"]
        self.note = NOTES / f"{self.name.replace('/', '_')}.json"
        rc, out, err = self.run(["docker", "container", "inspect", "--", self.name])
        found = json.loads(out) if rc == 0 else []
        self.box: dict[str, Any] | None = found[0] if found else None
        if self.box is None and not self.params["unit"]:
            module.fail_json(msg=f"{self.name}: there is no such container: {err.strip()}")
        if self.box is not None:
            labels = (self.box.get("Config") or {}).get("Labels") or {}
            if str(labels.get("dgxspark.managed", "")).lower() == "true" or not adopt.is_engine(self.box):
                module.fail_json(msg=f"{self.name} is left alone: it is of this collection, or no launch of vLLM.")

    def must(self, *argv: str) -> None:
        """Run a program that has to succeed."""
        rc, out, err = self.run(list(argv))
        if rc != 0:
            self.module.fail_json(msg=f"{self.name}: {' '.join(argv)} ended with {rc}: {err.strip() or out.strip()}")

    def available(self) -> float:
        """What is available now, GiB."""
        return hostmem.mem_available_gib(hostmem.read_meminfo(self.params["root"]))

    def apps(self) -> list[dict[str, Any]]:
        """What nvidia-smi lists."""
        rc, out, _err = self.run(hostmem.COMPUTE_APPS_QUERY)
        return hostmem.parse_compute_apps(out) if rc == 0 else []

    def stop(self) -> None:
        """Stop it and wait for its memory."""
        if self.box is None or not (self.box.get("State") or {}).get("Running"):
            self.module.exit_json(changed=False, freed_gib=0.0)
        if self.module.check_mode:
            self.module.exit_json(changed=True, freed_gib=0.0)
        before = self.available()
        gpu = gb10.read_gpu(self.run, self.params["root"], gb10.read_containers(self.run)) or {}
        held, pids = verbs.held_by([self.name], gpu.get("processes") or [])
        policy = ((self.box or {}).get("HostConfig") or {}).get("RestartPolicy") or {}
        NOTES.mkdir(parents=True, exist_ok=True)
        # Before anything is touched: a run that is cut off can still be undone.
        self.note.write_text(json.dumps({"restart": policy, "unit": self.params["unit"]}) + "\n", encoding="utf-8")
        if self.params["unit"]:
            self.must("systemctl", "disable", "--now", "--", self.params["unit"])
        else:
            self.must("docker", "update", "--restart=no", "--", self.name)
            self.must("docker", "stop", "--time", "60", "--", self.name)
        need = verbs.expected_gib(before, held)
        found = verbs.wait_until_back(
            lambda: (self.available(), {app["pid"] for app in self.apps()}),
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
        try:
            noted = json.loads(self.note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.module.fail_json(msg=f"{self.name}: what it was is not noted on this host, so it is not brought back.")
            return
        running = self.box is not None and bool((self.box.get("State") or {}).get("Running"))
        if self.module.check_mode:
            self.module.exit_json(changed=not running, freed_gib=0.0)
        if noted["unit"]:
            self.must("systemctl", "enable", "--now", "--no-block", "--", noted["unit"])
        else:
            policy = noted["restart"]
            retries = policy.get("MaximumRetryCount") or 0
            kind = str(policy.get("Name") or "no")
            self.must(
                "docker",
                "update",
                f"--restart={kind}:{retries}" if kind == "on-failure" and retries else f"--restart={kind}",
                "--",
                self.name,
            )
            self.must("docker", "start", "--", self.name)
        self.note.unlink(missing_ok=True)
        self.module.exit_json(changed=not running, freed_gib=0.0)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "required": True},
            "unit": {"type": "str", "default": ""},
            "state": {"type": "str", "choices": ["started", "stopped"], "required": True},
            "timeout": {"type": "float", "default": 240},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    foreign = Foreign(module)
    if module.params["state"] == "stopped":
        foreign.stop()
    else:
        foreign.start()


if __name__ == "__main__":
    main()
