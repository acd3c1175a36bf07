#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_compat
short_description: Check whether a vLLM launch can run on a DGX Spark
description:
  - Reads one vLLM launch as vLLM would (image, options, environment, model) and says what fails, what gives wrong output and what costs speed on GB10,
    each with the fix and the source of the knowledge. Returns the options in normal form and the command behind the image name, as given and repaired.
  - Nothing is started and nothing is fetched. The module runs anywhere, usually on the controller.
  - Findings do not fail the task, only malformed input does. Every rule is described in C(docs/rules.md). A rule that lacks a fact keeps silent.
options:
  image:
    description: Image reference, with a tag, a digest or both.
    type: str
    required: true
  vllm_version:
    description: Version of vLLM inside the image, for example C(0.19.0). Left out, it is looked up in the catalogue of images. Where that does not know it
      either, the rules that need it are not judged, and one finding names them.
    type: str
  version_source:
    description: Where O(vllm_version) comes from; only repeated in the result.
    type: str
    choices: [given, probed]
    default: given
  model:
    description: The model that is served.
    type: dict
    suboptions:
      repo:
        description: Hugging Face repository or path, the first argument of C(vllm serve).
        type: str
      config:
        description: The model's C(config.json). Rules about the model keep silent without it.
        type: dict
      quant_config:
        description: The model's C(hf_quant_config.json), where it has one.
        type: dict
  args:
    description: Options of C(vllm serve), native values by long names with dashes, or by any other spelling that vLLM accepts. V(true) is the bare flag,
      V(false) its C(--no-) form, null takes an option out.
    type: dict
  argv:
    description: The launch as a person would type it, one word an item, with or without C(vllm serve) in front. Excludes O(args).
    type: list
    elements: str
  env:
    description: Environment of the engine.
    type: dict
  gpu:
    description: The GPU that the launch is judged for.
    type: str
    choices: [gb10]
    default: gb10
  driver_version:
    description: NVIDIA driver of the host. Rules about the driver keep silent without it.
    type: str
  nodes:
    description: Number of Sparks that serve the model together.
    type: int
    default: 1
  executor:
    description: How several Sparks are joined, V(mp), V(ray) or V(auto), which leaves the choice to the plan, as null does.
    type: str
  entrypoint:
    description: What the image's entrypoint does with its arguments. V(serve) hands them to C(vllm serve), V(passthrough) runs them as a command. Comes
      from the catalogue when left out or null.
    type: str
  docker_args:
    description: Options of C(docker run), one word an item. Rules about mounts, ports and networks keep silent without them. C(--entrypoint) goes before
      the catalogue.
    type: list
    elements: str
    default: []
  packages:
    description: Python packages that are installed on top of the image, as pip takes them.
    type: list
    elements: str
    default: []
  ignore:
    description: Ids of rules that are not wanted. They are not repaired either.
    type: list
    elements: str
    default: []
  catalogue:
    description: Further entries of the image catalogue. They go before the built-in ones.
    type: list
    elements: dict
    default: []
    suboptions:
      image:
        description: Repository and tag, with C(*) and C(?) as in a shell. Without a tag it stands for all of them.
        type: str
        required: true
      vllm_version:
        description: Version of vLLM inside.
        type: str
      cuda:
        description: CUDA release inside, for example C(13.0).
        type: str
      native_driver:
        description: Oldest driver that runs this CUDA without forward compatibility.
        type: str
      arm64:
        description: Whether there is an arm64 build.
        type: bool
      ray:
        description: Whether Ray is inside.
        type: bool
      moving:
        description: Whether the tag is pushed again and again.
        type: bool
      entrypoint:
        description: What the entrypoint does with its arguments.
        type: str
        choices: [serve, passthrough]
      defects:
        description: What is wrong with the image as shipped, as mappings of C(text), C(fix) and C(when).
        type: list
        elements: dict
      features:
        description: Names that this build has although its version number does not say so.
        type: list
        elements: str
      options:
        description: All options that its C(vllm serve) takes, without dashes, where the image was asked.
        type: list
        elements: str
      source:
        description: Where this is known from.
        type: str
      note:
        description: Anything else.
        type: str
  refuse_service_keys:
    description: Complain about C(host), C(port), C(served-model-name), C(model) and C(name) among O(args).
    type: bool
    default: false
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
seealso:
  - module: dgxspark.vllm.memory_budget
  - module: dgxspark.vllm.plan
"""

EXAMPLES = r"""
- name: Judge a launch before anything is started
  dgxspark.vllm.image_compat:
    image: nvcr.io/nvidia/vllm:26.04-py3
    model:
      repo: Qwen/Qwen3-4B-Instruct-2507
    args:
      max-model-len: 16384
      gpu-memory-utilization: 0.10
      enable-auto-tool-choice: true
      tool-call-parser: hermes
    env:
      VLLM_USE_V1: "1"
  delegate_to: localhost
  register: launch

- name: Stop here if it cannot run
  ansible.builtin.assert:
    that: launch.compatible
    fail_msg: "{{ launch.findings | map(attribute='message') | join('\n') }}"
"""

RETURN = r"""
compatible:
  description: Whether no finding is an error.
  returned: success
  type: bool
vllm_version:
  description: The version that the launch was judged for, null when it is not known.
  returned: success
  type: str
version_source:
  description: Where the version comes from, one of C(given), C(probed), C(catalogue) and C(unknown).
  returned: success
  type: str
entrypoint:
  description: Entrypoint family, C(serve) or C(passthrough).
  returned: success
  type: str
command:
  description: The exact arguments behind the image name, in a fixed order.
  returned: success
  type: list
  sample: [vllm, serve, Qwen/Qwen3-4B-Instruct-2507, --max-model-len, "16384"]
args:
  description: The options in normal form, long names with dashes and native values.
  returned: success
  type: dict
  sample: {max-model-len: 16384}
findings:
  description: What the rules say, errors first. C(rule) is the id, see C(docs/rules.md). With C(severity) C(error) the launch fails or gives wrong output,
    C(warning) costs speed or is fragile. C(service) is empty here. C(message) and C(fix) say what is wrong, why, and what to change; C(vllm_error), what
    vLLM itself would print, C(details), C(source), and C(basis), C(inventory) or C(probed), are there where they apply.
  returned: success
  type: list
  sample: [{rule: SPK201, severity: warning, service: "", message: VLLM_USE_V1 does nothing in vLLM 0.19.0, fix: Remove VLLM_USE_V1., basis: inventory}]
fixed:
  description: The launch (C(args), C(env), C(command)) with every repair that cannot change what was meant - a name is spelled right or replaced by the new
    one, an option or variable without effect is gone. A repair after which something else would be wrong is left out. C(findings) are what is left.
  returned: success
  type: dict
  sample: {args: {max-model-len: 16384}, env: {}, changes: [{rule: SPK201, where: env, key: VLLM_USE_V1, before: VLLM_USE_V1=1, after: ""}], findings: []}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import check_launch
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.image_catalogue import FAMILIES


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "vllm_version": {"type": "str"},
            "version_source": {"type": "str", "choices": ["given", "probed"], "default": "given"},
            "model": {
                "type": "dict",
                "options": {"repo": {"type": "str"}, "config": {"type": "dict"}, "quant_config": {"type": "dict"}},
            },
            "args": {"type": "dict"},
            "argv": {"type": "list", "elements": "str"},
            "env": {"type": "dict"},
            "gpu": {"type": "str", "choices": ["gb10"], "default": "gb10"},
            "driver_version": {"type": "str"},
            "nodes": {"type": "int", "default": 1},
            # Without choices, and args and argv not exclusive here: Ansible would count null. The engine judges both.
            "executor": {"type": "str"},
            "entrypoint": {"type": "str"},
            "docker_args": {"type": "list", "elements": "str", "default": []},
            "packages": {"type": "list", "elements": "str", "default": []},
            "ignore": {"type": "list", "elements": "str", "default": []},
            "catalogue": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "image": {"type": "str", "required": True},
                    "vllm_version": {"type": "str"},
                    "cuda": {"type": "str"},
                    "native_driver": {"type": "str"},
                    "arm64": {"type": "bool"},
                    "ray": {"type": "bool"},
                    "moving": {"type": "bool"},
                    "entrypoint": {"type": "str", "choices": list(FAMILIES)},
                    "defects": {"type": "list", "elements": "dict"},
                    "features": {"type": "list", "elements": "str"},
                    "options": {"type": "list", "elements": "str"},
                    "source": {"type": "str"},
                    "note": {"type": "str"},
                },
            },
            "refuse_service_keys": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        result = check_launch(module.params)
    except ValueError as error:
        module.fail_json(msg=f"image_compat: {error}")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
