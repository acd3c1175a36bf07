#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop deployed services and wait for their memory, or start them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_state
short_description: Stop deployed services and wait for their memory, or start them
version_added: 0.1.0
description:
  - Goes by what is deployed on the host, in C(/etc/dgxspark/services); other units are not touched, except the one of O(unmanaged).
  - After a stop it waits until the memory is really back. A container is gone long before the driver has let go of what it
    held, and an engine that is started meanwhile fails.
  - A start is queued and not waited for; M(dgxspark.vllm.endpoint_ready) does that. Of an exclusive set one service runs at a
    time, and a start beside another one of its set is refused.
options:
  services:
    description: Names of the services. Nothing is done for an empty list. Required without O(unmanaged).
    type: list
    elements: str
  unmanaged:
    description:
      - A container or unit of vLLM that this collection did not create, in place of O(services).
      - O(state=stopped) stops it, through its unit if it has one, disables its automatic start, and waits for its memory. Its former state is
        recorded on the host, in C(/var/lib/dgxspark/adopted); container and unit stay there.
      - O(state=started) starts it with its former restart policy or unit, and removes the record. A running one without a record is
        not changed.
      - Containers and units of this collection, and those that do not run vLLM, are refused.
    type: dict
    suboptions:
      container:
        description: Name of the container; empty where the unit runs vLLM without one.
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
        description: Where it answers, for the record.
        type: str
        default: ''
  state:
    description: What is wanted of them.
    type: str
    choices: [started, stopped]
    required: true
  boot:
    description: Whether their units start at boot. Left as it is when left out.
    type: bool
  pin:
    description:
      - Keep services that requests start up after O(state=started), and down after O(state=stopped), whatever is asked of them, until
        the next boot or a call with V(false), which leaves them to their requests again.
      - Of one that spans hosts this is said to the first rank. The others follow it; a start does nothing to them.
    type: bool
    default: true
  leaving:
    description:
      - With O(state=started), services of the same exclusive set that are known to be stopped by then. In check mode they still
        run.
    type: list
    elements: str
    default: []
  timeout:
    description:
      - Seconds that memory is waited for, after a stop as before a start.
    type: float
    default: 240
  poll:
    description: Seconds between two looks.
    type: float
    default: 2
  root:
    description: Where C(/proc) is read. Simulated Sparks show their own there.
    type: path
    default: /
  run_dir:
    description: Folder of what lasts until the next boot.
    type: path
    default: /run/dgxspark
  etc:
    description: Folder of what is deployed.
    type: path
    default: /etc/dgxspark
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  diff_mode:
    support: none
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Stop a service until the next boot
  dgxspark.vllm.service_state:
    services: [heavy]
    state: stopped
  become: true

- name: Start it
  dgxspark.vllm.service_state:
    services: [heavy]
    state: started
    boot: true
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
  description: One entry a service, in the order asked.
  returned: with O(services)
  type: list
  elements: dict
  contains:
    name:
      description: Name of the service.
      type: str
      sample: heavy
    unit:
      description: Its unit.
      type: str
      sample: spark-heavy.service
    container:
      description: Its container.
      type: str
      sample: spark-heavy
    deployed:
      description: Whether it is on the host.
      type: bool
      sample: true
    before:
      description: State of its unit before, empty when it is not on the host.
      type: str
      sample: active
    changed:
      description: Whether it was stopped or started.
      type: bool
      sample: true
    url:
      description: URL of the server, null for a rank that answers no requests.
      type: str
      sample: http://127.0.0.1:8001
    on_demand:
      description: Whether requests start it.
      type: bool
      sample: false
    follows:
      description: Whether it is a rank behind the first one of a service on demand, which that one starts on its host and answers for.
      type: bool
      sample: false
    model:
      description: Name of the model that is served.
      type: str
      sample: heavy
    api_key_file:
      description: File on the host with the API key, null without one.
      type: str
      sample: /etc/dgxspark/secrets/heavy/VLLM_API_KEY
    start_seconds:
      description: Seconds that its start may take.
      type: int
      sample: 2970
freed_gib:
  description: By how much the available memory grew.
  returned: success
  type: float
  sample: 95.21
waited_seconds:
  description: How long memory was waited for.
  returned: with O(services)
  type: float
  sample: 12.4
available_gib:
  description: What is available at the end.
  returned: with O(services)
  type: float
  sample: 113.9
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
    """Return the memory that is available now, GiB; fails the module where it cannot be read."""
    try:
        return hostmem.mem_available_gib(hostmem.read_meminfo(module.params["root"]))
    except OSError as error:
        module.fail_json(msg=f"the memory of this host cannot be read: {error}")
        return 0.0


def wait_for_memory_back(module: AnsibleModule, ask: Run, need: float, pids: list[int]) -> dict[str, Any]:
    """Wait until memory is available and processes are gone.

    :param module: with O(timeout), O(poll) and O(root)
    :param ask: runs a program that reports
    :param need: GiB that have to be available
    :param pids: of the processes that held it
    :returns: the answer of C(verbs.wait_until_back)
    """
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
        """Who holds most GPU memory."""
        try:
            return nvidia_smi.name_holders(HostView(self.ask).compute_apps())
        except NoAnswer as nothing:
            return f"{nothing}, so who holds it is not known"

    def state_of(self, name: str) -> str:
        """State of a service's unit, empty when it is not on the host."""
        return str(self.units[name]["active_state"]) if name in self.settings and name in self.units else ""

    def describe(self, changed: list[str]) -> list[dict[str, Any]]:
        """Return the entries of RV(services)."""
        found = []
        for name in self.names:
            own = self.settings.get(name) or {}
            found.append(
                {
                    "name": name,
                    "unit": f"spark-{name}.service",
                    "container": own.get("container") or f"spark-{name}",
                    "deployed": name in self.settings,
                    "before": self.state_of(name),
                    "changed": name in changed,
                    "url": own.get("url"),
                    "on_demand": bool(own.get("on_demand")),
                    "follows": name in self.settings and self.follows(name),
                    "model": own.get("model"),
                    "api_key_file": own.get("api_key_file"),
                    "start_seconds": int(own.get("start_deadline_seconds") or 3000),
                }
            )
        return found

    def systemctl(self, verb: str, names: list[str], *options: str, allowed: tuple[int, ...] = (0,)) -> None:
        """Run systemctl on units of services; fail with its own words.

        :param verb: C(start), C(stop) and their like
        :param names: of services
        :param allowed: exit codes that are no failure
        :param options: of systemctl
        """
        if not names or self.module.check_mode:
            return
        chosen = [f"spark-{name}.service" for name in names]
        why = systemctl.act(self.run, verb, chosen, *options, allowed=allowed)
        if why:
            self.module.fail_json(msg=f"systemctl {verb} {' '.join(chosen)} failed: {why}")

    def on_demand(self, name: str) -> bool:
        """Whether requests start a service."""
        return bool(self.settings[name].get("on_demand"))

    def follows(self, name: str) -> bool:
        """Whether it is a rank of a service on demand that the first rank starts, on another host."""
        return self.on_demand(name) and bool((self.settings[name].get("rank") or {}).get("rank"))

    def pin(self, word: str) -> bool:
        """Keep services on demand up (warm) or down (cold), or leave that to their requests (auto); returns whether that is new."""
        folder, new = Path(self.params["run_dir"]) / pins.FOLDER, False
        for name in self.names:
            if name not in self.settings or not self.on_demand(name):
                continue
            # The host of the first rank decides; here the guard may have kept it cold, which a start takes back.
            follows = self.follows(name)
            before, wanted = pins.read(folder, name), "" if follows or word == "auto" else word
            if before == pins.Pin(wanted) or (follows and word == pins.COLD):
                continue
            new = True
            if not self.module.check_mode:
                pins.write(folder, name, wanted)
        return new

    def set_boot(self) -> bool:
        """Have the units start at boot, or not; returns whether any differed. What requests start is never started at boot."""
        boot = self.params["boot"]
        if boot is None:
            return False
        other = [name for name in self.names if name in self.units and self.units[name]["enabled"] is not boot]
        other = [name for name in other if name in self.settings and not self.on_demand(name)]
        self.systemctl("enable" if boot else "disable", other)
        return bool(other)

    def stop(self) -> None:
        """Stop and wait for the memory."""
        # One that is being stopped by somebody else is waited for, too.
        up = [name for name in self.names if self.state_of(name) in (*verbs.RUNNING, "deactivating")]
        before = available(self.module)
        with failing(self.module):
            view = HostView(self.ask, self.params["root"])
            listed = view.gpu(view.containers()) if up else None
        # What an engine took in between is held by what was listed, so it is not available before.
        before = min(before, available(self.module))
        processes = (listed or {}).get("processes") or []
        held, pids = verbs.held_by([box for name in up for box in containers_of(self.settings[name])], processes)
        # First, so that no request starts it anew.
        changed = self.pin("cold" if self.params["pin"] else "auto")
        changed = self.set_boot() or changed
        self.systemctl("stop", up)
        # Of the ranks that are stopped one after another, the later ones have failed by then; 1: it has nothing to forget.
        here = [name for name in self.names if name in self.settings and self.on_demand(name)]
        self.systemctl("reset-failed", here, allowed=(0, 1))
        waited, after = 0.0, before
        if up and not self.module.check_mode:
            need = verbs.expected_gib(before, held)
            found = wait_for_memory_back(self.module, self.ask, need, pids)
            if not found["ok"]:
                self.module.fail_json(msg=verbs.not_back(found, need, up, self.holders()), services=self.describe(up))
            waited, after = found["waited_seconds"], found["available_gib"]
        self.finish(up, changed, before, after, waited)

    def start(self) -> None:
        """Queue the starts, once there is memory for the largest of them."""
        missing = [name for name in self.names if name not in self.settings]
        problems = [
            f"{name} is not on this host yet: run dgxspark.vllm.site, which puts it there and starts it."
            for name in missing
        ]
        active = [name for name in self.settings if self.state_of(name) in verbs.RUNNING]
        active = [name for name in active if name not in self.params["leaving"]]
        problems += verbs.excluded(self.settings, active, self.names)
        if problems:
            self.module.fail_json(msg="nothing was started:\n- " + "\n- ".join(problems))
        down = [name for name in self.names if name not in active and not self.follows(name)]
        # What is pinned is started by the program that makes room for it.
        woken = [name for name in down if self.params["pin"] and self.on_demand(name)]
        down = [name for name in down if name not in woken]
        before = available(self.module)
        waited = 0.0
        if down and not self.module.check_mode:
            # The largest starts first; what the others need is waited for by their own gates.
            need = max(float(self.settings[name].get("memory_gib") or 0.0) for name in down)
            root, limit = self.params["root"], self.params["timeout"]
            found = hostmem.wait_for_memory(need, root, limit, self.params["poll"], free_grace_seconds=0)
            if not found["ok"]:
                self.module.fail_json(
                    msg=f"{', '.join(down)}: not started: {need:.2f} GiB are needed, {found['available_gib']:.2f} GiB are "
                    f"available after {limit:.0f} s; {self.holders()}. Stop what holds it (dgxspark.vllm.stop, or swap)."
                )
            waited = found["waited_seconds"]
        changed = self.pin("warm" if self.params["pin"] else "auto")
        changed = self.set_boot() or changed
        # systemd refuses a start when earlier failures have used up the bound, and so does the program that starts what is pinned;
        # 1: it has nothing to forget.
        self.systemctl("reset-failed", [*down, *woken], allowed=(0, 1))
        self.systemctl("start", down, "--no-block")
        self.finish([*down, *woken], changed, before, before, waited)

    def finish(self, touched: list[str], changed: bool, before: float, after: float, waited: float) -> None:
        """Leave the module.

        :param touched: services that were started or stopped
        :param changed: whether anything was
        :param before: GiB that were available
        :param after: GiB that are available
        :param waited: seconds
        """
        self.module.exit_json(
            changed=bool(touched) or changed,
            services=self.describe(touched),
            freed_gib=round(max(after - before, 0.0), 3),
            waited_seconds=round(waited, 1),
            available_gib=round(after, 3),
        )


def set_unmanaged(module: AnsibleModule) -> None:
    """Stop or start the launch of O(unmanaged), and leave the module."""
    params, asked = module.params, module.params["unmanaged"]
    freed = None
    if not asked["container"] and not asked["unit"]:
        module.fail_json(msg="unmanaged: name the container, or the unit that runs vLLM without one")
    try:
        with failing(module):
            launch = unmanaged_state.find(
                runner(module, WORK_SECONDS), asked["container"], asked["unit"], params["etc"]
            )
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
    params, asked, ask = module.params, module.params["unmanaged"], reader()
    if module.check_mode:
        return 0.0
    before = available(module)
    held, pids = launch.held(ask, params["root"])
    launch.stop(asked["service"], asked["url"])
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
