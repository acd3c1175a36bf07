#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_info
short_description: Report the contents of container images on a host
version_added: 0.1.0
description:
  - Reports for each image whether it is there, what it is (id, digests, architecture) and how an engine in it is started
    (entrypoint family, version of vLLM as far as the image says it).
  - Asks the Docker engine once for all images. Nothing is pulled.
  - With O(probe) the image itself is asked, once per image id. One short container without GPU and network runs its
    C(python3), which reads the metadata of its packages and the sources of vLLM without importing them. The answer is
    kept below O(cache_dir) on the host and used from then on, with or without O(probe).
  - Of the environment only names of vLLM, CUDA, Triton and NVIDIA are returned, without anything that looks like a secret.
author:
  - dgxspark.vllm contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    details:
      - In check mode no container is started and nothing is written; what is not in O(cache_dir) yet stays unknown, and
        RV(images.probe_from) says so.
  diff_mode:
    support: N/A
    details:
      - This module changes nothing but its own cache.
options:
  images:
    description:
      - References of images, by tag, digest or id.
    type: list
    elements: str
    required: true
  probe:
    description:
      - Ask the images that have not been asked yet.
    type: bool
    default: false
  probe_timeout:
    description:
      - Seconds after which a container that was started to ask is ended.
    type: int
    default: 120
  brought:
    description:
      - Those of O(images) that this run has brought, or that were missing when it began. What of them is there by now is noted as this
        collection's, which may remove it again when nothing uses it any more. Nothing is noted in check mode.
    type: list
    elements: str
    default: []
  cache_dir:
    description:
      - Folder on the host for the answers, a file per image id.
    type: path
    default: /var/lib/dgxspark/images
seealso:
  - module: dgxspark.vllm.image_compat
"""

EXAMPLES = r"""
- name: List the images of the services
  dgxspark.vllm.image_info:
    images:
      - nvcr.io/nvidia/vllm:26.04-py3
      - vllm/vllm-openai:v0.23.0
  become: true
  register: found

- name: Inspect the contents of new images
  dgxspark.vllm.image_info:
    images: [ghcr.io/example/spark-vllm:2026-10]
    probe: true
  become: true
  register: asked

- name: Name those that are still to be pulled
  ansible.builtin.debug:
    msg: "{{ found.images | dict2items | rejectattr('value.present') | map(attribute='key') }}"
"""

RETURN = r"""
host_architecture:
  description: Architecture of the host in Docker's terms, to compare those of the images with.
  returned: success
  type: str
  sample: arm64
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
      description: Environment, only names of vLLM, CUDA, Triton and NVIDIA.
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
      description: Version of vLLM, as its installed package says, else where a label or the environment has it.
      type: str
      returned: success
    vllm_version_source:
      description: Where RV(images.vllm_version) is written.
      type: str
      returned: success
    probe_from:
      description:
        - V(image) when it was asked just now, V(cache) when it was asked before, V(none) when it was not asked.
      type: str
      returned: success
    probe:
      description: What the image said of itself, V(null) if it was not asked.
      type: dict
      returned: success
      contains:
        error:
          description: Why it could not say anything, else V(null).
          type: str
        python:
          description: Version of its Python.
          type: str
        vllm_version:
          description: Version of the installed vLLM.
          type: str
        ray:
          description: Version of the installed Ray, V(null) without it.
          type: str
        cuda:
          description: CUDA release that its torch was built for, else that of its toolkit.
          type: str
        ptxas:
          description: Releases of the PTX assemblers inside, by owner.
          type: dict
        nccl:
          description: The NCCL that torch loads, its C(library) (V(pip), V(replaced), V(named) or V(system)) and its C(version).
          type: dict
        caches:
          description: Compile caches that the image brings along, environment variable to folder.
          type: dict
        packages:
          description: Versions of the packages that matter to vLLM.
          type: dict
        options:
          description: Options that its C(vllm serve) takes. Empty where the sources could not be read.
          type: list
          elements: str
        names:
          description: Environment variables, architectures and parsers that its vLLM knows.
          type: list
          elements: str
  sample:
    "vllm/vllm-openai:v0.23.0":
      present: true
      architecture: arm64
      entrypoint: [vllm, serve]
      entrypoint_family: serve
      vllm_version: 0.23.0
      vllm_version_source: package
      probe_from: cache
      probe:
        error: null
        python: 3.12.3
        vllm_version: 0.23.0
        ray: null
        cuda: "13.0"
        ptxas: {toolkit: "13.0", triton: "12.8"}
        nccl: {library: pip, version: 2.28.9}
        caches: {}
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import image_looks, image_probe
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_lock, made
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import Unknown
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import runner

ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
"""What Docker calls those that the kernel names otherwise."""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "images": {"type": "list", "elements": "str", "required": True},
            "probe": {"type": "bool", "default": False},
            "probe_timeout": {"type": "int", "default": 120},
            "brought": {"type": "list", "elements": "str", "default": []},
            "cache_dir": {"type": "path", "default": image_probe.CACHE_DIR},
        },
        supports_check_mode=True,
    )
    params, run = module.params, runner(module)
    if params["probe_timeout"] < 1:
        module.fail_json(msg=f"probe_timeout is {params['probe_timeout']}; it must be 1 or more")
    try:
        images = image_looks.found(run, params["images"])
    except Unknown as unknown:
        module.fail_json(msg=str(unknown))
        raise
    came = {str(images[ref]["id"]) for ref in params["brought"] if (images.get(ref) or {}).get("present")}
    if came and not module.check_mode:
        with host_lock.held(module) as locked:
            if locked:
                made.note_images(came)
    asks = params["probe"] and not module.check_mode
    ask = image_looks.asker(run, params["cache_dir"], params["probe_timeout"], module.warn) if asks else None
    image_looks.add_contents(images, params["cache_dir"], ask)
    machine = os.uname().machine
    module.exit_json(changed=False, images=images, host_architecture=ARCHITECTURES.get(machine, machine))


if __name__ == "__main__":
    main()
