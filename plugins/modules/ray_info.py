#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the nodes of a Ray cluster."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ray_info
short_description: Report the nodes of a Ray cluster
version_added: 0.1.0
description:
  - Asks the Ray of an engine that spans hosts which nodes and resources it has, by Ray's own Python API, from inside one of
    its containers. Never fails because Ray does not answer.
options:
  container:
    description: Container on this host in which that Ray runs. The unit of a service keeps it as C(spark-NAME-ray).
    type: str
    required: true
  address:
    description: Where the head of that Ray is found, as C(host:port).
    type: str
    required: true
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
seealso:
  - module: dgxspark.vllm.service_info
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: List the nodes of Ray
  dgxspark.vllm.ray_info:
    container: spark-qwen235-ray
    address: 192.168.100.10:6379
  become: true
  register: ray
"""

RETURN = r"""
answered:
  description: Whether Ray gave an answer.
  returned: success
  type: bool
  sample: true
ray:
  description: Version of Ray in the container, V(null) when unknown.
  returned: success
  type: str
  sample: 2.60.0
gpus:
  description: GPUs of the nodes that are alive.
  returned: success
  type: int
  sample: 2
nodes:
  description: All nodes that the head knows, those that are alive first.
  returned: success
  type: list
  elements: dict
  contains:
    address:
      description: Address that the node registered with.
      type: str
      sample: 192.168.100.10
    id:
      description: Its id in Ray.
      type: str
      sample: 262398d4079c836663598225ab06048ca3d9b7019fcdec700ca16c85
    alive:
      description: Whether Ray takes it for alive. It drops a node that went silent after half a minute and more.
      type: bool
      sample: true
    resources:
      description: What the node has, by Ray's names.
      type: dict
      sample: {CPU: 2.0, GPU: 1.0, object_store_memory: 1073741824.0}
    used:
      description: What of that is given away; resources that are free are left out.
      type: dict
      sample: {GPU: 1.0}
error:
  description: What is wrong, empty when nothing is.
  returned: success
  type: str
  sample: ''
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import ray_cluster
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import ray_nodes
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import runner

ASK_SECONDS = 120.0  # a program with Ray starts in the container


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"container": {"type": "str", "required": True}, "address": {"type": "str", "required": True}},
        supports_check_mode=True,
    )
    container, address = module.params["container"], module.params["address"]
    try:
        ray_nodes.split_address(address)
    except ValueError as error:
        module.fail_json(msg=f"address: {error}")
    rc, out, err = runner(module, ASK_SECONDS)(ray_cluster.ask_argv(container, address))
    module.exit_json(changed=False, **ray_cluster.read_answer(container, rc, out, err))


if __name__ == "__main__":
    main()
