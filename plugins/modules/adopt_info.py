#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find unmanaged containers and units of vLLM that a service would replace."""

from __future__ import annotations

DOCUMENTATION = r"""
module: adopt_info
short_description: Find unmanaged containers and units of vLLM that a service would replace
version_added: 0.1.0
description:
  - Searches the running containers of a host, and programs without a container, for unmanaged launches of vLLM, reads them as
    M(dgxspark.vllm.import_recipe) does, and compares those that serve the model of a planned service, or use its port, with that service.
  - Reports how the service could replace it, beside it without downtime or instead of it. Nothing is changed.
  - A companion action plugin reads the services from the plan and parses the launches.
options:
  services:
    description: The planned services of the host, as M(dgxspark.vllm.plan) returns them.
    type: list
    elements: dict
    default: []
  root:
    description: Where C(/proc) is read. Simulated Sparks show their own there.
    type: path
    default: /
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
seealso:
  - module: dgxspark.vllm.unmanaged_state
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Find unmanaged services
  dgxspark.vllm.adopt_info:
    services: "{{ spark_plan.services }}"
  become: true
  register: found
"""

RETURN = r"""
adopted:
  description: The launches that a service can take the place of.
  returned: success
  type: list
  elements: dict
  contains:
    service:
      description: Name of the service.
      type: str
      sample: heavy
    name:
      description: Name of the container, of the unit where there is no container.
      type: str
      sample: vllm
    container:
      description: Name of the container, empty where the unit runs vLLM without one.
      type: str
      sample: vllm
    unit:
      description: The unit that runs it, empty where none does.
      type: str
      sample: vllm.service
    by:
      description: What is the same, V(model) or V(port).
      type: str
      sample: model
    way:
      description: How it is replaced, V(beside) or V(instead).
      type: str
      sample: instead
    why:
      description: Why so.
      type: str
      sample: both want port 8000
    differences:
      description: What clients will see another way.
      type: list
      elements: str
      sample: ["--max-model-len: 32768 -> 65536"]
    url:
      description: Where the launch answers on its host, empty where that is not known.
      type: str
      sample: http://127.0.0.1:8000
    service_like:
      description: The launch as a service.
      type: dict
    refused:
      description: Why it is left alone all the same, empty when it is not.
      type: str
      sample: ''
launches:
  description: Containers and units of vLLM that were found, whether or not a service matches.
  returned: success
  type: list
  elements: dict
taken:
  description: What a service has taken the place of before, as M(dgxspark.vllm.unmanaged_state) noted it.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the container or unit.
      type: str
      sample: vllm
    container:
      description: Name of the container, empty where the unit runs vLLM without one.
      type: str
      sample: vllm
    unit:
      description: The unit that ran it, empty where none did.
      type: str
      sample: ''
    path:
      description: File of that unit.
      type: str
      sample: ''
    service:
      description: The service that took its place.
      type: str
      sample: heavy
    url:
      description: Where it answered.
      type: str
      sample: http://127.0.0.1:8000
    there:
      description: Whether it is still on the host, so that it could come back.
      type: bool
      sample: true
available_gib:
  description: What is available now.
  returned: success
  type: float
  sample: 22.1
lines:
  description: The same for people.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import unmanaged
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import docker_facts, machine
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import hostmem, state_file
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import failing, runner, says_missing

UNITS = Path("/etc/systemd/system")
NOTES = Path("/var/lib/dgxspark/adopted")
ETC = "/etc/dgxspark"
PROC_ROOT = "/"


def unit_files() -> dict[str, str]:
    """Return the text of the units that people have written; those of this collection are theirs alone."""
    found = {}
    for file in UNITS.glob("*.service"):
        try:
            if file.is_file() and not file.is_symlink():
                found[file.name] = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
    return found


def notes() -> list[dict[str, Any]]:
    """Return what unmanaged_state has noted of each launch that it stopped."""
    found = []
    for file in sorted(NOTES.glob("*.json")):
        note = state_file.read(file)
        if note is None:
            continue
        kept = {key: str(note.get(key) or "") for key in ("container", "unit", "path", "service", "url")}
        found.append({"name": kept["container"] or kept["unit"], **kept})
    return [note for note in found if note["name"]]


class Host:
    """What runs on the host, as systemctl and docker say; fails the module where they do not."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module, self.run = module, runner(module)

    def containers(self) -> list[str]:
        """Return the ids of the containers that run."""
        rc, out, err = self.run(["docker", "ps", "--quiet", "--no-trunc"])
        if rc != 0:
            self.module.fail_json(msg=f"what runs cannot be told: docker ps: {err.strip()}")
        with failing(self.module):
            return docker_facts.read_ids(out)

    def inspect(self, what: str, names: list[str]) -> list[dict[str, Any]]:
        """Return C(docker inspect) of containers or images, without those that are not there."""
        if not names:
            return []
        rc, text, err = self.run(["docker", what, "inspect", "--", *names])
        if rc not in (0, 127) and not says_missing(err):
            self.module.fail_json(msg=f"what runs cannot be told: docker {what} inspect: {err.strip()}")
        with failing(self.module):
            return docker_facts.read_inspected(text, err) if rc != 127 else []

    def is_there(self, note: dict[str, Any]) -> bool:
        """Tell whether a launch that was stopped could come back."""
        if not note["unit"]:
            return bool(self.inspect("container", [note["container"]]))
        # A unit makes its container anew.
        rc, text, err = self.run(["systemctl", "show", "--property=LoadState", "--value", "--", note["unit"]])
        if rc != 0:
            self.module.fail_json(
                msg=f"what was taken over cannot be told: systemctl show {note['unit']}: {err.strip()}"
            )
        return str(text).strip() == "loaded" or bool(note["path"] and Path(note["path"]).is_file())


def launches_of(host: Host) -> list[dict[str, Any]]:
    """Return the launches of vLLM that this collection did not make: of containers, and of units without one."""
    ids = host.containers()
    boxes = [box for box in host.inspect("container", ids) if unmanaged.is_unmanaged(box) and unmanaged.is_engine(box)]
    images = {
        image.get("Id"): image for image in host.inspect("image", sorted({str(box.get("Image")) for box in boxes}))
    }
    units = unit_files()
    launches = [
        {
            "name": str(box.get("Name") or "").lstrip("/"),
            "container": str(box.get("Name") or "").lstrip("/"),
            "argv": unmanaged.launch_of(box, images.get(box.get("Image")) or {}),
            "unit": unmanaged.owner_of(box, units),
            "project": unmanaged.compose_project(box),
            "restart": str(((box.get("HostConfig") or {}).get("RestartPolicy") or {}).get("Name") or "no"),
            "removed": bool((box.get("HostConfig") or {}).get("AutoRemove")),
        }
        for box in boxes
    ]
    services = machine.read_services(ETC)
    return launches + [
        program
        for program in unmanaged.programs_of(machine.read_processes(PROC_ROOT), ids)
        if not unmanaged.is_own(program["unit"], services)
    ]


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "services": {"type": "list", "elements": "dict", "default": []},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    host = Host(module)
    launches = launches_of(host)
    try:
        available = round(hostmem.mem_available_gib(hostmem.read_meminfo(module.params["root"])), 3)
    except OSError:
        available = None
    taken = [{**note, "there": host.is_there(note)} for note in notes()]
    module.exit_json(changed=False, launches=launches, available_gib=available, taken=taken, adopted=[], lines=[])


if __name__ == "__main__":
    main()
