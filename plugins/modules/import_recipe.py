#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: import_recipe
short_description: Turn an existing launch of vLLM into a service
description:
  - Reads a C(docker run) command or a script around it, a compose file, a manifest of Kubernetes, a systemd unit, or a recipe of eugr's spark-vllm-docker,
    of sparkrun, of vLLM's own collection or of NVIDIA's, and returns an entry of C(spark_services) that serves the same, or a C(spark_cluster) for a launch
    that spans several Sparks. Gives a reason for everything that is not carried over, and judges the result by the rules of M(dgxspark.vllm.image_compat).
  - Secrets are named and never returned. Each becomes a file on the controller, with its path in the service. Nothing is started, fetched or written.
options:
  src:
    description: File on the controller. Its env files are read too, relative to its folder, and scripts in that folder that its container runs. Exactly one
      of O(src) and O(content) is needed.
    type: path
  content:
    description: The text itself.
    type: str
  form:
    description: Form of the text. V(auto) detects it.
    type: str
    choices: [auto, docker, compose, kubernetes, systemd, eugr, sparkrun, vllm_recipe, nvidia]
    default: auto
  name:
    description: Name of the service. By default, the name of the container, unit or model.
    type: str
  port:
    description: Port of the service. By default, the port that clients used.
    type: int
  image:
    description: Image of the service, instead of the text's.
    type: str
  select:
    description: Selects one of several containers, by its name, its workload (C(NAME) or C(KIND/NAME)) or its compose service.
    type: str
  variables:
    description: Values of shell variables and of placeholders of a recipe.
    type: dict
    default: {}
  variant:
    description: Variant of a recipe of vLLM's own collection. By default, a fitting one; variants for this machine come first, then the default.
    type: str
  features:
    description: Features of a recipe of vLLM's own collection. By default, the features that the recipe enables.
    type: list
    elements: str
  config:
    description: The model's C(config.json), without which a service cannot be planned. By default, that of a recipe of this collection for the same model.
    type: dict
  catalogue:
    description: Further entries of the image catalogue, see O(dgxspark.vllm.image_compat#module:catalogue).
    type: list
    elements: dict
    default: []
  show:
    description: Print the service as YAML, with everything else as comments above it.
    type: bool
    default: false
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
seealso:
  - module: dgxspark.vllm.image_compat
  - module: dgxspark.vllm.plan
"""

EXAMPLES = r"""
- name: Import a unit
  dgxspark.vllm.import_recipe:
    src: /etc/systemd/system/vllm-qwen36.service
  register: taken

- name: Import a recipe of vLLM's own, in the variant for Blackwell and with speculative decoding
  dgxspark.vllm.import_recipe:
    src: models/Qwen/Qwen3.6-35B-A3B.yaml
    variant: nvfp4
    features: [tool_calling, reasoning, spec_decoding]
"""

RETURN = r"""
form:
  description: Form of the text.
  returned: success
  type: str
service:
  description: An entry of C(spark_services).
  returned: success
  type: dict
  sample: {name: vllm-qwen36, model: {repo: RedHatAI/Qwen3.6-35B-A3B-NVFP4}, image: "nvcr.io/nvidia/vllm:26.04-py3", port: 8001}
nodes:
  description: Number of Sparks that the launch spans.
  returned: success
  type: int
spark_cluster:
  description: The cluster with RV(service) in it, for the group of hosts; none for a launch on one Spark.
  returned: success
  type: dict
  sample: {name: glm_5_3_flash, services: [{name: glm-5-3-flash}]}
host_vars:
  description: Variables of the host for the service.
  returned: success
  type: dict
  sample: {spark_hf_home: /home/me/.cache/huggingface}
yaml:
  description: RV(host_vars) and RV(service) as text for a host of the inventory, or RV(spark_cluster) for a group.
  returned: success
  type: str
  sample: "spark_services:\n- name: vllm-qwen36\n"
left_out:
  description: Parts of the launch that are not carried over, each with the reason and what to do instead. A secret is named without its value.
  returned: success
  type: list
  sample: [{item: --restart unless-stopped, reason: systemd supervises the engines here}]
report:
  description: RV(missing), RV(left_out), RV(findings) and RV(before) as lines for people.
  returned: success
  type: list
  sample: ["left out: --restart unless-stopped: systemd supervises the engines here"]
missing:
  description: Keys that the service still needs before it can be planned.
  returned: success
  type: list
  elements: str
findings:
  description: Findings of the rules about the service, errors first. See M(dgxspark.vllm.image_compat).
  returned: success
  type: list
  elements: dict
before:
  description: Findings of the rules about the original systemd unit or docker command, errors first; they do not apply to RV(service).
  returned: success
  type: list
changes:
  description: Repairs that keep the meaning of the launch, see M(dgxspark.vllm.image_compat).
  returned: success
  type: list
  elements: dict
compatible:
  description: Whether no finding is an error.
  returned: success
  type: bool
"""
