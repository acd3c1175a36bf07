#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_info
short_description: Report what is in container images that are on a host
version_added: 0.1.0
description:
  - Reports for each image whether it is there, what it is (id, digests, architecture) and how an engine in it is started
    (entrypoint family, version of vLLM as far as the image says it).
  - Asks the Docker engine once for all images. Nothing is pulled and no container is started.
  - Of the environment only names of vLLM, CUDA and NVIDIA are returned, without anything that looks like a secret.
author:
  - dgxspark.vllm contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
options:
  images:
    description:
      - References of images, by tag, digest or id.
    type: list
    elements: str
    required: true
seealso:
  - module: dgxspark.vllm.image_compat
"""

EXAMPLES = r"""
- name: Look at the images of the services
  dgxspark.vllm.image_info:
    images:
      - nvcr.io/nvidia/vllm:26.04-py3
      - vllm/vllm-openai:v0.23.0
  become: true
  register: found

- name: Name those that are still to be pulled
  ansible.builtin.debug:
    msg: "{{ found.images | dict2items | rejectattr('value.present') | map(attribute='key') }}"
"""

RETURN = r"""
images:
  description: One entry per reference.
  returned: success
  type: dict
  contains:
    present:
      description: Whether the host has the image. All the rest is V(null), empty or V(unknown) if not.
      type: bool
      returned: success
    id:
      description: Id of the image.
      type: str
      returned: success
    repo_digests:
      description: Digests under which registries know it.
      type: list
      elements: str
      returned: success
    architecture:
      description: Architecture in Docker's terms.
      type: str
      returned: success
      sample: arm64
    os:
      description: Operating system.
      type: str
      returned: success
    entrypoint:
      description: Entrypoint.
      type: list
      elements: str
      returned: success
    cmd:
      description: Default command.
      type: list
      elements: str
      returned: success
    env:
      description: Environment, only names of vLLM, CUDA and NVIDIA.
      type: dict
      returned: success
    labels:
      description: Labels of this collection (C(dgxspark.*)) and of OCI (C(org.opencontainers.*)).
      type: dict
      returned: success
    size_gib:
      description: Unpacked size.
      type: float
      returned: success
    entrypoint_family:
      description:
        - V(serve) when the entrypoint is vLLM's server and takes its arguments, V(passthrough) when it runs what it is
          given, V(unknown) otherwise.
      type: str
      returned: success
    vllm_version:
      description: Version of vLLM, where a label or the environment has it.
      type: str
      returned: success
    vllm_version_source:
      description: Where RV(images.vllm_version) is written.
      type: str
      returned: success
  sample:
    "vllm/vllm-openai:v0.23.0":
      present: true
      architecture: arm64
      entrypoint: [vllm, serve]
      entrypoint_family: serve
      vllm_version: null
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils import docker_facts
from ansible_collections.dgxspark.vllm.plugins.module_utils.command import runner


def main() -> None:
    module = AnsibleModule(
        argument_spec={"images": {"type": "list", "elements": "str", "required": True}},
        supports_check_mode=True,
    )
    refs = list(dict.fromkeys(module.params["images"]))
    bad = [ref for ref in refs if not ref.strip() or any(sign.isspace() for sign in ref)]
    if bad:
        module.fail_json(msg=f"not references of images: {', '.join(repr(ref) for ref in bad)}")
    run = runner(module)
    found = inspect(module, run, refs) if refs else {}
    module.exit_json(changed=False, images={ref: image or docker_facts.absent_image() for ref, image in found.items()})


def inspect(module: AnsibleModule, run: Any, refs: list[str]) -> dict[str, Any]:
    """Ask for all references at once; one by one where the answer cannot be told apart."""
    rc, out, err = run(docker_facts.image_command(refs))
    if rc == 127:
        module.fail_json(msg="there is no docker on this host; install the Docker engine (DGX OS ships it)")
    found = docker_facts.parse_images(refs, out, err)
    if found is None and len(refs) > 1:
        found = {}
        for ref in refs:
            found.update(inspect(module, run, [ref]))
    if found is None:
        detail = err.strip() or f"exit code {rc}"
        module.fail_json(msg=f"docker image inspect failed for {', '.join(refs)}: {detail}")
    return found or {}


if __name__ == "__main__":
    main()
