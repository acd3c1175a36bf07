#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: speed_estimate
short_description: Predict how fast services will be before anything is started
description:
  - Predicts tokens per second and the time to the first token of vLLM services on DGX Sparks, each alone on its hosts, from the configs
    of their models and their arguments.
  - A decode step on a GB10 mostly reads memory. The bytes that it reads are those that M(dgxspark.vllm.memory_budget) counts; the constants that
    turn them into seconds were fitted to published rates. docs/speed.md has the formulas, the constants and the errors by class of launch.
  - Every figure is a range that holds at least 80 % of the published rates of its class. A figure that is not known is left out, and RV(services) says why.
  - Runs anywhere, usually delegated to the controller. Only malformed input fails the task.
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
options:
  services:
    description: The services, each a mapping as in O(dgxspark.vllm.memory_budget#module:services), of which C(name), C(config), C(quant_config),
      C(draft_config), C(draft_weights_gib), C(vllm_version), C(args) and C(env) count. C(nodes) may state the number of Sparks of a service, which
      otherwise follows from the sizes of its parallel groups.
    type: list
    elements: dict
    required: true
  workload:
    description: The requests of the services.
    type: dict
    suboptions:
      concurrency:
        description: Numbers of streams at once.
        type: list
        elements: int
        default: [1, 4, 16, 64]
      prompt_tokens:
        description: Lengths of prompts, in tokens. The decode rates are at the longest.
        type: list
        elements: int
        default: [1024]
      output_tokens:
        description: Length of an answer, in tokens.
        type: int
        default: 128
    default: {}
  acceptance:
    description:
      - Mean tokens of a decode step with speculative decoding, from 1 to one more than the drafted tokens. It depends on the content.
      - Without it the range that published rates imply counts; for methods and numbers of tokens of which none is published, decode is unknown.
    type: float
"""

EXAMPLES = r"""
- name: Predict the speed of two services
  dgxspark.vllm.speed_estimate:
    services:
      - name: fast
        config: "{{ lookup('ansible.builtin.file', 'qwen3-8b/config.json') | from_json }}"
        vllm_version: 0.33.0
        args: {max-model-len: 32768, max-num-seqs: 8}
      - name: large
        config: "{{ lookup('ansible.builtin.file', 'qwen3-235b/config.json') | from_json }}"
        vllm_version: 0.33.0
        args: {tensor-parallel-size: 2, kv-cache-dtype: fp8}
        nodes: 2
    workload: {concurrency: [1, 8], prompt_tokens: [1024, 8192]}
  delegate_to: localhost
  become: false
  register: speed
"""

RETURN = r"""
services:
  description:
    - By the name of a service. Ranges have C(low), C(typical) and C(high).
    - C(decode) has tokens per second of one stream by the number of streams, C(aggregate) of all streams together. C(prefill) has prompt tokens per
      second, C(ttft) the seconds to the first token of one prompt on an idle engine, by length of the prompt.
    - C(bytes_per_token) has what a decode step of one stream reads on one rank of each pipeline stage. C(ceiling) is the rate of one stream that takes the
      whole bandwidth of the memory, 273 GB/s, at the longest prompt and half of the answer.
    - C(bound_by) names what takes most of a decode step, C(memory), C(compute), C(all-reduce) or C(launch overhead). C(load_seconds) has the seconds from
      the start of the engine until it is ready, C(sparks) the number of hosts. C(unknown) has a reason for each figure that is left out.
  returned: success
  type: dict
  sample:
    fast:
      bytes_per_token: {weights: 14000000000, quantised: 0, head: 1244659712, experts: 0, cache: 160000000, state: 0, total: 15400000000}
      decode: {"1": {low: 11.9, typical: 13.3, high: 14.9}}
      prefill: {"1024": {low: 2550.0, typical: 3190.0, high: 3990.0}}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.estimate import speed_estimate


def main() -> None:
    numbers = {"type": "list", "elements": "int"}
    workload = {
        "concurrency": {**numbers, "default": [1, 4, 16, 64]},
        # These tokens are counts; no_log=False keeps their names from looking like secrets to Ansible.
        "prompt_tokens": {**numbers, "default": [1024], "no_log": False},
        "output_tokens": {"type": "int", "default": 128, "no_log": False},
    }
    module = AnsibleModule(
        argument_spec={
            "services": {"type": "list", "elements": "dict", "required": True},
            "workload": {"type": "dict", "options": workload, "default": {}},
            "acceptance": {"type": "float"},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(changed=False, **speed_estimate(module.params))
    except InputError as error:
        module.fail_json(msg=f"The input is wrong in {len(error.messages)} place(s): {error}", errors=error.messages)


if __name__ == "__main__":
    main()
