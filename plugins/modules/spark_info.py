#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_info
short_description: Report what a DGX Spark is and what runs on it
version_added: 0.1.0
description:
  - Reports machine, DGX OS, GPU, unified memory, QSFP ports, Docker, containers, units of services and listening ports of
    an NVIDIA DGX Spark (GB10) or one of its siblings, in one pass.
  - Memory comes from C(/proc/meminfo), because C(nvidia-smi) answers C([N/A]) on GB10.
  - What is absent gives V(null) or an empty list. A Spark without a QSFP cable has no ConnectX-7 on its bus, for example.
  - No serial numbers are read.
author:
  - dgxspark.vllm contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
options:
  root:
    description:
      - Where C(/proc), C(/sys), C(/etc/dgx-release) and C(/etc/os-release) are read. Simulated Sparks show their own there.
    type: path
    default: /
  disk_paths:
    description:
      - Paths whose file systems are measured. One that does not exist yet is judged by its nearest parent.
    type: list
    elements: path
    default: []
  hf_home:
    description:
      - Folder in the layout of C(HF_HOME) that is looked through for models.
    type: path
    default: /srv/huggingface
  facts:
    description:
      - Report RV(spark). Otherwise O(images) alone are looked for.
    type: bool
    default: true
  images:
    description:
      - References of images that are looked for too, by tag, digest or id, as M(dgxspark.vllm.image_info) does. No image is asked for its contents;
        what images said before is returned.
    type: list
    elements: str
    default: []
notes:
  - Run it as root to see the processes behind listening ports and all containers.
seealso:
  - module: dgxspark.vllm.image_info
  - module: dgxspark.vllm.endpoint_ready
"""

EXAMPLES = r"""
- name: Gather facts of the host
  dgxspark.vllm.spark_info:
    disk_paths:
      - /srv/huggingface
  become: true
  register: host

- name: Show the memory that is free for models
  ansible.builtin.debug:
    msg: "{{ host.spark.memory.available_gib }} GiB of {{ host.spark.memory.total_gib }} GiB available"

- name: Refuse a host that is no Spark
  ansible.builtin.assert:
    that: host.spark.machine.is_spark
"""

RETURN = r"""
images:
  description: As RV(dgxspark.vllm.image_info#module:images), V(null) where Docker does not say which images there are.
  returned: always
  type: dict
msg:
  description: Why RV(images) is V(null).
  returned: when it is
  type: str
  sample: "docker image inspect failed for vllm/vllm-openai:v0.23.0: Cannot connect to the Docker daemon"
spark:
  description: All that was found.
  returned: with O(facts)
  type: dict
  contains:
    machine:
      description:
        - Whether this is a GB10 machine (C(is_spark)), the short name of its maker (C(vendor)) and the texts of DMI.
      returned: always
      type: dict
      sample: {"is_spark": true, "vendor": "lenovo", "sys_vendor": "LENOVO", "product_name": "30KL0004FC"}
    dgx_os:
      description: Contents of C(/etc/dgx-release) without serial number; C(version) is that of the last update.
      returned: always
      type: dict
      sample: {"name": "DGX Spark", "platform": "GX10", "version": "7.5.0", "image_version": "7.2.3", "ota_version": "7.5.0"}
    os:
      description: Distribution.
      returned: always
      type: dict
      sample: {"id": "ubuntu", "version_id": "24.04", "codename": "noble", "pretty_name": "Ubuntu 24.04.4 LTS"}
    kernel:
      description: Release of the kernel.
      returned: always
      type: str
      sample: 6.17.0-1014-nvidia
    architecture:
      description: Architecture as the kernel names it.
      returned: always
      type: str
      sample: aarch64
    gpu:
      description:
        - The GPU with C(processes) and the container each belongs to. V(null) when C(nvidia-smi) is missing or finds none.
      returned: always
      type: dict
      sample:
        name: NVIDIA GB10
        driver_version: 580.159.03
        cuda_version: "13.0"
        compute_capability: "12.1"
        processes: [{"pid": 624869, "name": "VLLM::EngineCore", "used_mib": 31958, "container": "spark-heavy"}]
    memory:
      description: The unified pool in GiB.
      returned: always
      type: dict
      sample: {"total_gib": 121.628, "available_gib": 22.064, "free_gib": 4.302, "cached_gib": 19.501}
    fabric:
      description:
        - C(connectx) is V(false) without a ConnectX-7 on the bus; C(pci_functions) are its PCI addresses; C(ports) has one
          entry per QSFP cage with the two network interfaces of each; C(networks) are the addresses of all other interfaces, C(mtus) their MTUs;
          C(relay) is V(true) where the unit of a relay is installed (role fabric).
        - A netdev has its C(speed_mbps), C(mtu), C(addresses), C(master) (a bond), PCIe link, RoCE device with state and
          GIDs, C(neighbours) that have answered on it, and C(stored), the files that its network is written down in with
          C(persistent), which is V(false) for what NetworkManager keeps in C(/run).
      returned: always
      type: dict
      sample: {"connectx": false, "pci_functions": [], "ports": [], "networks": {}, "mtus": {}, "relay": false}
    docker:
      description: The Docker engine. V(null) when there is no C(docker); C(version) is V(null) when no engine answers.
      returned: always
      type: dict
      sample: {"version": "29.2.1", "reachable": true, "cgroup_version": "2", "runtimes": ["nvidia", "runc"]}
    containers:
      description: All containers, running or not. C(managed) ones were started by this collection.
      returned: always
      type: list
      elements: dict
    services:
      description: Names of the services that this collection has put on the host.
      returned: always
      type: list
      elements: str
    units:
      description:
        - Units whose name is C(spark-*.service), with their states and number of restarts. C(managed) ones belong to RV(spark.services).
        - C(status_text) is what a unit says of itself, as those of ranks do while they wait for another one.
      returned: always
      type: list
      elements: dict
    listening:
      description: Listening TCP sockets with process, unit and container where they are known.
      returned: always
      type: list
      elements: dict
    disks:
      description: C(total_gib), C(free_gib) and C(exists) by path of O(disk_paths).
      returned: always
      type: dict
    management_address:
      description: Address that the default route starts from.
      returned: always
      type: str
      sample: 192.168.1.11
    models:
      description: Models that are whole on the host, ORG/NAME.
      returned: always
      type: list
      elements: str
      sample: [Qwen/Qwen3-8B]
    snapshots:
      description:
        - The same models, each with the C(commits) that are whole, and C(refs), which commit a branch or tag stands for here.
        - Those of which only the files of a tokenizer are there have the commits as C(selected).
      returned: always
      type: dict
      sample:
        Qwen/Qwen3-8B:
          commits: [0123456789abcdef0123456789abcdef01234567]
          refs: {main: 0123456789abcdef0123456789abcdef01234567}
    hf_home:
      description:
        - Whether O(hf_home) is there, its owner and mode, and what of it engines cannot read (C(closed)), by model, and by an empty name
          for what holds all models.
      returned: always
      type: dict
      sample: {"exists": true, "owner": "me", "mode": "0700", "closed": {"": ["/home/me/.cache/huggingface"]}}
    docker_users:
      description: Accounts of the group C(docker), with C(home) and C(shell).
      returned: always
      type: dict
      sample: {"dgxspark": {"home": /nonexistent, "shell": /usr/sbin/nologin}}
    nft:
      description: Whether the program C(nft) is there, which the role firewall closes ports with.
      returned: always
      type: bool
      sample: true
    firewall:
      description: Whether the role firewall has been here.
      returned: always
      type: bool
      sample: false
    hostname:
      description: What the host calls itself.
      returned: always
      type: str
      sample: spark-1
    resident:
      description: GPU memory that the running containers of services hold, by service.
      returned: always
      type: list
      elements: dict
      sample: [{"name": "heavy", "gib": 95.412}]
    guard:
      description:
        - What the guard of the memory is set to and what it did last. V(null) where none is deployed; single values are V(null) where
          they are not known.
      returned: always
      type: dict
      sample:
        act: true
        floor_gib: 3.0
        start_floor_gib: 5.0
        free_floor_gib: 3.0
        contiguous_floor_gib: 0.375
        last_gib: 1.0
        level: calm
        available_gib: 22.064
        lowest_gib: 2.731
        at: 1790000000.2
        last: {at: 1789990000.1, what: restart, whom: heavy, why: 4.1 GiB above its plan}
        stopped: {}
        refused: []
        who: ''
"""

import grp
import pwd
import socket
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import image_looks, image_probe, snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import engine_access, guard_account
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.gb10 import collect
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import ADVICE, NoAnswer, Run, reader


def docker_users() -> dict[str, dict[str, str]]:
    """Accounts that are in the group C(docker)."""
    try:
        members = grp.getgrnam("docker").gr_mem
    except KeyError:
        return {}
    found = {}
    for name in members:
        try:
            account = pwd.getpwnam(name)
        except KeyError:  # a name that was left behind
            continue
        found[name] = {"home": account.pw_dir, "shell": account.pw_shell}
    return found


def spark_facts(module: AnsibleModule, run: Run) -> dict[str, Any]:
    """Return all that is reported of the host but its images."""
    spark = collect(run, root=module.params["root"], disk_paths=module.params["disk_paths"])
    there, unreadable = snapshots.present(Path(module.params["hf_home"]))
    spark["unknown"] = {**(spark.get("unknown") or {}), **unreadable}
    spark["models"], spark["snapshots"] = sorted(repo for repo, own in there.items() if own["commits"]), there
    spark["hf_home"] = engine_access.look(Path(module.params["hf_home"]))
    spark["firewall"] = Path("/etc/dgxspark/firewall.nft").exists()
    spark["guard"] = guard_account.account(
        state_file.read(Path("/etc/dgxspark", guard_account.SETTINGS)), state_file.read(Path(guard_account.STATE))
    )
    spark["docker_users"] = docker_users()
    spark["hostname"] = socket.gethostname()
    spark["nft"] = module.get_bin_path("nft") is not None
    return spark


def known_images(run: Run, refs: list[str]) -> dict[str, Any]:
    """Return C(images), and C(msg) where they are not known.

    run: of the facts, so that a Docker that was silent for them holds nobody again. refs: whom it is asked about.
    """
    try:
        images = image_looks.found(run, refs)
    except image_looks.Unknown as unknown:
        return {"images": None, "msg": str(unknown)}
    except NoAnswer as nothing:
        return {"images": None, "msg": f"{nothing}. {ADVICE}"}
    image_looks.add_contents(images, image_probe.CACHE_DIR)
    return {"images": images}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "disk_paths": {"type": "list", "elements": "path", "default": []},
            "hf_home": {"type": "path", "default": "/srv/huggingface"},
            "facts": {"type": "bool", "default": True},
            "images": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    run = reader()
    spark = spark_facts(module, run) if module.params["facts"] else {}
    found = known_images(run, module.params["images"])
    module.exit_json(changed=False, **found, **({"spark": spark} if spark else {}))


if __name__ == "__main__":
    main()
