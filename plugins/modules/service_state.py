#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop deployed services and wait for their memory, or start them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_state
short_description: Stop deployed services and wait for their memory, or start them
description:
  - Uses the services in C(/etc/dgxspark/services) of the host; other units are not touched, except the one of O(unmanaged).
  - After a stop it waits until the memory is available again, which the driver frees long after the end of a container. A start is queued and not waited
    for. One service of an exclusive set runs at a time, and a second start is refused.
options:
  services:
    description: Names of the services. Nothing is done for an empty list. Required without O(unmanaged).
    type: list
    elements: str
  unmanaged:
    description: A container or unit of vLLM that this collection did not create, in place of O(services). O(state=stopped) stops it, disables its automatic
      start, waits for its memory, and records its former state in C(/var/lib/dgxspark/adopted). O(state=started) starts it with its former restart policy
      or unit, and removes the record; a running one without a record is not changed. Containers and units of this collection, and those that do not run
      vLLM, are refused.
    type: dict
    suboptions:
      container:
        description: Name of the container; empty for a unit that runs vLLM without one.
        type: str
        default: ''
      unit:
        description: The unit that runs it, as C(adoption) of M(dgxspark.vllm.spark_info) names it.
        type: str
        default: ''
      service:
        description: The service that takes its place, for the record.
        type: str
        default: ''
      url:
        description: URL of its server, for the record.
        type: str
        default: ''
  state:
    description: The desired state.
    type: str
    choices: [started, stopped]
    required: true
  boot:
    description: Whether their units start at boot. Unchanged by default.
    type: bool
  pin:
    description: Keep services that requests start up after O(state=started), and down after O(state=stopped), until the next boot or a call with V(false).
      Of a service over several hosts only the first rank is pinned; the others follow it.
    type: bool
    default: true
  leaving:
    description: With O(state=started), services of the same exclusive set that the caller has stopped by then. In check mode they still run.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds to wait for memory, after a stop and before a start.
    type: float
    default: 240
  poll:
    description: Seconds between two looks.
    type: float
    default: 2
  root:
    description: Root of C(/proc). Simulated Sparks have a C(/proc) elsewhere.
    type: path
    default: /
  run_dir:
    description: Folder of files that last until the next boot.
    type: path
    default: /run/dgxspark
  etc:
    description: Folder of the deployed settings.
    type: path
    default: /etc/dgxspark
extends_documentation_fragment:
  - dgxspark.vllm.attributes
"""

EXAMPLES = r"""
- name: Stop a service until the next boot
  dgxspark.vllm.service_state:
    services: [heavy]
    state: stopped
  become: true

- name: Stop a container that somebody started by hand
  dgxspark.vllm.service_state:
    unmanaged:
      container: vllm
    state: stopped
  become: true
"""

RETURN = r"""
services:
  description: One entry a service, in the order asked. C(deployed) tells whether it is on the host, C(before) the former state of its unit (empty if it is
    not), C(changed) whether it was stopped or started, C(on_demand) whether requests start it, C(follows) whether it is a rank that the first rank starts,
    from another host. C(url) and C(api_key_file) (on the host) are V(null) where there is none. C(start_seconds) is what its start may take.
  returned: with O(services)
  type: list
  sample: [{name: heavy, unit: spark-heavy.service, deployed: true, before: active, changed: true, url: "http://127.0.0.1:8001", start_seconds: 2970}]
freed_gib:
  description: Growth of the available memory.
  returned: success
  type: float
waited_seconds:
  description: Seconds of waiting for memory.
  returned: with O(services)
  type: float
available_gib:
  description: Available memory at the end.
  returned: with O(services)
  type: float
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import unmanaged_state
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import (
    host_lock,
    machine,
    nvidia_smi,
    systemctl,
    units,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView, still_listed
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import verbs
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import hostmem, pins, state_file
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import (
    WORK_SECONDS,
    NoAnswer,
    Run,
    failing,
    reader,
    runner,
)


def deployed(etc: str) -> dict[str, dict[str, Any]]:
    """Return the settings of the services that are on the host, and of its speech servers on demand, by name."""
    services = {}
    speech = sorted((Path(etc) / "speech").glob("*.json"))
    for path in [*(Path(etc) / "services" / f"{name}.json" for name in machine.read_services(etc)), *speech]:
        settings = state_file.read(path) or {}
        is_deployed = path not in speech or settings.get("on_demand")
        if is_deployed and settings.get("unit") == f"spark-{path.stem}.service":
            # The unit of a speech server is active once it answers; it does not know the questions of engines.
            services[path.stem] = {**settings, "url": None} if path in speech else settings
    return services


def unit_states(run: Run, names: list[str]) -> dict[str, dict[str, Any]]:
    """Ask systemd for the units of the named services, by name of the service."""
    shown = units.ask(run, [f"spark-{name}.service" for name in names])
    return {unit["name"][len("spark-") : -len(".service")]: unit for unit in shown}


def containers_of(settings: dict[str, Any]) -> list[str]:
    """Return the containers of a service; with Ray there are two."""
    parts = (settings.get("rank") or {}).get("parts") or []
    return [settings["container"], *(part["container"] for part in parts)]


def available(module: AnsibleModule) -> float:
    """Return the available memory in GiB; fails the module if it cannot be read."""
    try:
        return hostmem.mem_available_gib(hostmem.read_meminfo(module.params["root"]))
    except OSError as error:
        module.fail_json(msg=f"the memory of this host cannot be read: {error}")
        return 0.0


def wait_for_memory_back(module: AnsibleModule, ask: Run, need: float, pids: list[int]) -> dict[str, Any]:
    """Wait until memory (need, GiB) is available and processes are gone; returns the answer of C(verbs.wait_until_back)."""
    return verbs.wait_until_back(
        lambda: (available(module), still_listed(ask, pids)),
        need,
        pids,
        timeout=module.params["timeout"],
        interval=module.params["poll"],
        clock=time.monotonic,
        sleep=time.sleep,
    )


class Host:
    """The host that the module runs on."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.run, self.ask = runner(module, WORK_SECONDS), reader()
        self.settings = deployed(self.params["etc"])
        with failing(module):
            self.units = unit_states(self.run, sorted(self.settings))
        self.names: list[str] = self.params["services"]

    def holders(self) -> str:
        """Return the processes that hold most GPU memory, as a text."""
        try:
            return nvidia_smi.name_holders(HostView(self.ask).compute_apps())
        except NoAnswer as nothing:
            return f"{nothing}, so who holds it is not known"

    def state_of(self, name: str) -> str:
        """Return the state of a service's unit, empty for a service that is not on the host."""
        return str(self.units[name]["active_state"]) if name in self.settings and name in self.units else ""

    def describe(self, changed: list[str]) -> list[dict[str, Any]]:
        """Return the entries of RV(services)."""
        rows = []
        for name in self.names:
            settings = self.settings.get(name) or {}
            rows.append(
                {
                    "name": name,
                    "unit": f"spark-{name}.service",
                    "container": settings.get("container") or f"spark-{name}",
                    "deployed": name in self.settings,
                    "before": self.state_of(name),
                    "changed": name in changed,
                    "url": settings.get("url"),
                    "on_demand": self.on_demand(name),
                    "follows": self.follows(name),
                    "model": settings.get("model"),
                    "api_key_file": settings.get("api_key_file"),
                    "start_seconds": int(settings.get("start_deadline_seconds") or 3000),
                }
            )
        return rows

    def systemctl(self, verb: str, names: list[str], *options: str, allowed: tuple[int, ...] = (0,)) -> None:
        """Run systemctl on units of services; fails with its message. allowed: exit codes that are no failure."""
        if not names or self.module.check_mode:
            return
        chosen = [f"spark-{name}.service" for name in names]
        why = systemctl.act(self.run, verb, chosen, *options, allowed=allowed)
        if why:
            self.module.fail_json(msg=f"systemctl {verb} {' '.join(chosen)} failed: {why}")

    def on_demand(self, name: str) -> bool:
        """Whether requests start a service."""
        return bool((self.settings.get(name) or {}).get("on_demand"))

    def follows(self, name: str) -> bool:
        """Whether a service is a rank that the first rank of a service on demand starts, from another host."""
        return self.on_demand(name) and bool((self.settings[name].get("rank") or {}).get("rank"))

    def pin(self, word: str) -> bool:
        """Keep services on demand up (warm) or down (cold), or leave them to their requests (auto); returns whether anything changed."""
        folder, new = Path(self.params["run_dir"]) / pins.FOLDER, False
        for name in self.names:
            if not self.on_demand(name):
                continue
            # The host of the first rank decides; on this host a start only removes a pin of the guard.
            follows = self.follows(name)
            pin = pins.Pin("" if follows or word == "auto" else word)
            if pins.read(folder, name) == pin or (follows and word == pins.COLD):
                continue
            new = True
            if not self.module.check_mode:
                pins.write(folder, name, pin.word)
        return new

    def set_boot(self) -> bool:
        """Enable or disable the units as O(boot) says; returns whether any differed. Services on demand never start at boot."""
        boot = self.params["boot"]
        if boot is None:
            return False
        other = [name for name in self.names if name in self.units and self.units[name]["enabled"] is not boot]
        other = [name for name in other if name in self.settings and not self.on_demand(name)]
        self.systemctl("enable" if boot else "disable", other)
        return bool(other)

    def stop(self) -> None:
        """Stop and wait for the memory."""
        # A unit that another program is stopping is waited for, too.
        up = [name for name in self.names if self.state_of(name) in (*verbs.RUNNING, "deactivating")]
        before = available(self.module)
        with failing(self.module):
            view = HostView(self.ask, self.params["root"])
            listed = view.gpu(view.containers()) if up else None
        # An engine may have taken more until it was listed.
        before = min(before, available(self.module))
        processes = (listed or {}).get("processes") or []
        boxes = [box for name in up for box in containers_of(self.settings[name])]
        held, pids = verbs.held_by(boxes, processes)
        # First, so that no request starts it anew.
        changed = self.pin("cold" if self.params["pin"] else "auto")
        changed = self.set_boot() or changed
        self.systemctl("stop", up)
        # Ranks that are stopped one after another have failed by then; 1: there is no failure to forget.
        self.systemctl("reset-failed", list(filter(self.on_demand, self.names)), allowed=(0, 1))
        waited, after = 0.0, before
        if up and not self.module.check_mode:
            need = verbs.expected_gib(before, held)
            memory = wait_for_memory_back(self.module, self.ask, need, pids)
            if not memory["ok"]:
                message = verbs.not_back(memory, need, up, self.holders())
                self.module.fail_json(msg=message, services=self.describe(up))
            waited, after = memory["waited_seconds"], memory["available_gib"]
        self.finish(up, changed, before, after, waited)

    def start(self) -> None:
        """Queue the starts, once there is memory for the largest of them."""
        active = self.active()
        self.refuse_impossible(active)
        down = [name for name in self.names if name not in active and not self.follows(name)]
        # The program that makes room for a pinned service starts it.
        woken = [name for name in down if self.params["pin"] and self.on_demand(name)]
        down = [name for name in down if name not in woken]
        before = available(self.module)
        waited = self.wait_for_largest(down) if down and not self.module.check_mode else 0.0
        changed = self.pin("warm" if self.params["pin"] else "auto")
        changed = self.set_boot() or changed
        # systemd refuses a start after too many failures, and so does the program that starts pinned services;
        # 1: there is no failure to forget.
        self.systemctl("reset-failed", [*down, *woken], allowed=(0, 1))
        self.systemctl("start", down, "--no-block")
        self.finish([*down, *woken], changed, before, before, waited)

    def refuse_impossible(self, active: list[str]) -> None:
        """Fail for services that are not deployed, or that another one of their set excludes. active: running services."""
        problems = [
            f"{name} is not on this host yet: run dgxspark.vllm.site, which puts it there and starts it."
            for name in self.names
            if name not in self.settings
        ]
        problems += verbs.excluded(self.settings, active, self.names)
        if problems:
            self.module.fail_json(msg="nothing was started:\n- " + "\n- ".join(problems))

    def active(self) -> list[str]:
        """Return the running services, without O(leaving)."""
        running = [name for name in self.settings if self.state_of(name) in verbs.RUNNING]
        return [name for name in running if name not in self.params["leaving"]]

    def wait_for_largest(self, down: list[str]) -> float:
        """Wait for the memory of the largest service, which starts first; the gates of the others wait for theirs. Returns the seconds."""
        need = max(float(self.settings[name].get("memory_gib") or 0.0) for name in down)
        limit = self.params["timeout"]
        memory = hostmem.wait_for_memory(need, self.params["root"], limit, self.params["poll"], free_grace_seconds=0)
        if not memory["ok"]:
            self.module.fail_json(
                msg=f"{', '.join(down)}: not started: {need:.2f} GiB are needed, {memory['available_gib']:.2f} GiB are "
                f"available after {limit:.0f} s; {self.holders()}. Stop what holds it (dgxspark.vllm.stop, or swap)."
            )
        waited: float = memory["waited_seconds"]
        return waited

    def finish(self, touched: list[str], changed: bool, before: float, after: float, waited: float) -> None:
        """Leave the module. before, after: GiB that are available. waited: seconds."""
        self.module.exit_json(
            changed=bool(touched) or changed,
            services=self.describe(touched),
            freed_gib=round(max(after - before, 0.0), 3),
            waited_seconds=round(waited, 1),
            available_gib=round(after, 3),
        )


def set_unmanaged(module: AnsibleModule) -> None:
    """Stop or start the launch of O(unmanaged), and leave the module."""
    params, options = module.params, module.params["unmanaged"]
    freed = None
    if not options["container"] and not options["unit"]:
        module.fail_json(msg="unmanaged: name the container, or the unit that runs vLLM without one")
    try:
        with failing(module):
            run = runner(module, WORK_SECONDS)
            launch = unmanaged_state.find(run, options["container"], options["unit"], params["etc"])
            if params["state"] == "stopped":
                freed = stop_unmanaged(module, launch) if launch.is_running() else None
            else:
                note = launch.former_state()
                if note and not module.check_mode:
                    launch.restore(note)
                freed = 0.0 if note else None
    except unmanaged_state.Refused as why:
        module.fail_json(msg=str(why))
    module.exit_json(changed=freed is not None, freed_gib=freed or 0.0)


def stop_unmanaged(module: AnsibleModule, launch: unmanaged_state.Launch) -> float:
    """Stop a launch and wait for its memory; returns by how many GiB the available memory grew."""
    params, options, ask = module.params, module.params["unmanaged"], reader()
    if module.check_mode:
        return 0.0
    before = available(module)
    held, pids = launch.held(ask, params["root"])
    launch.stop(options["service"], options["url"])
    need = verbs.expected_gib(before, held)
    memory = wait_for_memory_back(module, ask, need, pids)
    if not memory["ok"]:
        module.fail_json(msg=verbs.not_back(memory, need, [launch.name], "see nvidia-smi"))
    freed: float = round(max(memory["available_gib"] - before, 0.0), 3)
    return freed


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "services": {"type": "list", "elements": "str"},
            "unmanaged": {
                "type": "dict",
                "options": {name: {"type": "str", "default": ""} for name in ("container", "unit", "service", "url")},
            },
            "state": {"type": "str", "choices": ["started", "stopped"], "required": True},
            "boot": {"type": "bool"},
            "pin": {"type": "bool", "default": True},
            "run_dir": {"type": "path", "default": "/run/dgxspark"},
            "leaving": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "float", "default": 240},
            "poll": {"type": "float", "default": 2},
            "root": {"type": "path", "default": "/"},
            "etc": {"type": "path", "default": "/etc/dgxspark"},
        },
        mutually_exclusive=[("services", "unmanaged")],
        required_one_of=[("services", "unmanaged")],
        supports_check_mode=True,
    )
    with host_lock.held(module):
        if module.params["unmanaged"]:
            set_unmanaged(module)
            return
        host = Host(module)
        if module.params["state"] == "stopped":
            host.stop()
        else:
            host.start()


if __name__ == "__main__":
    main()
