#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: memory_budget
short_description: Plan the memory of a node before anything is started on it
description:
  - Works out whether vLLM services fit on a node together, from the configs of their models alone, and what vLLM would print if they do not. Chooses
    C(gpu-memory-utilization), C(max-model-len) and C(max-num-seqs) where they are open.
  - KV cache planning is that of the vLLM versions in tests/oracle/memory_tables.md, to the byte. Other versions from 0.15 follow the releases in which
    changes were first seen, and the answer says so.
  - Every engine must find its memory free at its turn, and at every later restart with all others resident.
  - Terms that are known only as a range have a low, a typical and a high value. What fails even at low overheads is an error;
    what depends on them makes the verdict C(tight).
  - Runs anywhere, usually delegated to the controller. Only malformed input fails the task; everything else is a finding.
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
options:
  total_gib:
    description: Memory that CUDA reports, in GiB. On a DGX Spark 119.56 to 121.69, depending on the driver.
    type: float
    default: 119.67
  os_reserve_gib:
    description: Memory in GiB that everything else takes before the first service starts, including what a container takes before vLLM
      looks. Not used when O(measured.mem_available_gib) is given.
    type: float
    default: 5.2
  measured:
    description: What the host says now.
    type: dict
    suboptions:
      mem_available_gib:
        description: C(MemAvailable) of C(/proc/meminfo), in GiB. vLLM compares with it on GB10.
        type: float
      mem_free_gib:
        description: C(MemFree) of C(/proc/meminfo), in GiB. The driver allocates from it.
        type: float
      resident:
        description: Services that run now and what each holds. A restart of such a service sees C(mem_available_gib) plus its own part.
        type: list
        elements: dict
        suboptions:
          name:
            description: Name of the service, or any name for what is not in O(services).
            type: str
            required: true
          gib:
            description: What it holds, in GiB.
            type: float
            required: true
  overheads:
    description:
      - Overrides of the terms that cannot be derived, each a number or a mapping of V(low), V(typical) and V(high), for all services.
      - C(inside_base_gib), C(inside_weights_share), C(inside_vision_gib), C(inside_drafter_gib) and C(inside_peak_share) add up to what an engine uses
        inside its requested memory besides weights and KV cache; C(inside_gib) replaces their sum. C(kept_share) of it stays allocated after the start.
      - C(graphs_share) is that of CUDA graphs. C(load_gib) is what quantised weights take over their own size while they load, or C(load_share) of the
        experts of one layer if that is more. C(outside_gib) is what an engine holds beside its requested memory, graphs and host memory apart.
      - C(process_gib) is the host memory of a process of vLLM beyond one API server and one engine core, C(ray_gib) that of Ray's own, C(snapshot_gib) what
        a container takes between the host's C(MemAvailable) and vLLM's first look at it.
      - C(arguments_seconds), C(device_seconds), C(profile_seconds), C(graphs_seconds) and C(load_gib_per_second) only date vLLM's errors in RV(findings).
    type: dict
    default: {}
  safety_margin_gib:
    description: Memory in GiB that is to stay free when everything runs.
    type: float
    default: 2.0
  services:
    description: The services of the node, in any order.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the service.
        type: str
        required: true
      config:
        description: Content of the model's C(config.json). Needed for vLLM engines.
        type: dict
      quant_config:
        description: Content of C(hf_quant_config.json), where the repository has one.
        type: dict
      weights_gib:
        description: Size of the weights of the whole model in GiB, without a drafter, best the sum over the safetensors headers. Computed from
          O(services[].config) when it is not given. With quantisation at load time, the size of the files or that of what was loaded; which of the two
          shows.
        type: float
      tensors:
        description: What the headers of all safetensors files list, each with C(name), C(dtype) and C(shape), or with C(name) and C(bytes). Wins over
          O(services[].weights_gib). A list that cannot be the whole model, or that has an entry twice or of an unknown dtype, is refused by name.
        type: list
        elements: dict
      draft_config:
        description: Content of C(config.json) of a separate draft model.
        type: dict
      draft_weights_gib:
        description: Size of the drafter in GiB, without the embedding and the head that it shares; V(0) when O(services[].weights_gib) has it in already.
        type: float
      memory_gib:
        description: What a service that is no vLLM engine holds, in GiB. With O(services[].config), what an engine asks for whose memory cannot be worked
          out; C(gpu-memory-utilization) follows from it where it is open.
        type: float
      memory:
        description: As O(services[].memory_gib) of an engine, in GiB of parts on one rank - C(weights_gib), C(kv_gib) (may be left out beside
          C(gpu-memory-utilization)) and C(other_gib) (estimated where left out). Other sizes beside it are refused.
        type: dict
      image_plan:
        description: C(answer), and C(reason) where there is none, of M(dgxspark.vllm.image_plan) about this very service. It is used if the calculation
          does not know the model, or was not compared with this version of vLLM. Elsewhere the two are compared.
        type: dict
      starts:
        description: Measured starts of the same launch, or of one that differs in its lengths or its batch alone. Each has C(exact) (of this host, image
          and driver), C(max_model_len), C(max_num_batched_tokens), C(max_num_seqs), C(weights_gib), and the least and the most of C(inside_gib) and, if
          known, C(outside_gib), in GiB. They replace what is assumed, or narrow it.
        type: list
        elements: dict
        default: []
      vllm_version:
        description: Version of vLLM in the image. When it is not known (left out, or V(nightly) and the like), the compared version that
          needs most is taken. One before 0.15 is refused, one after 0.33 is planned as 0.33 with a warning.
        type: str
      args:
        description:
          - Arguments of vLLM by their long names with dashes and native values; other spellings of its command line are understood. Those that do not
            concern memory are ignored; one that no vLLM has and that looks like one that does is a warning.
          - C(gpu-memory-utilization) and C(max-model-len) are worked out when they are left out or V(auto). The utilisation is the least that passes vLLM's
            own checks, grown toward C(max-num-seqs) requests of C(max-model-len) as far as the node allows; the length is the longest that is safe at high
            overheads.
          - C(max-num-seqs) is worked out when it is V(auto), to the number of requests of full length that the KV cache holds, from 1 to 256. Left out, it
            is vLLM's own default of 256, or the largest number that vLLM accepts for a model with recurrent state.
        type: dict
        default: {}
      env:
        description: Environment variables of the engine. Those that concern memory count, such as E(VLLM_USE_V2_MODEL_RUNNER),
          E(VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS), E(VLLM_USE_SIMPLE_KV_OFFLOAD) and E(LMCACHE_MAX_LOCAL_CPU_SIZE).
        type: dict
        default: {}
      available_kv_bytes:
        description: Plan with exactly this much memory for the KV cache, in bytes, for example what a log reports.
        type: int
      overheads:
        description: As O(overheads), for this service alone.
        type: dict
        default: {}
      share:
        description: Weight by which services whose utilisation is worked out share what is left when each has its least. With V(0) a service keeps to
          the least.
        type: float
        default: 1.0
      last:
        description: V(0) starts by size, the largest first. Higher numbers start after those, in their order, as a rank that waits for other hosts.
        type: int
        default: 0
      rank:
        description: Which rank of a cluster runs on this node. Ranks behind V(0) have no API server, and no engine core unless they are replicas.
        type: int
        default: 0
      exclusive:
        description: Name of a set of services of which one runs at a time. Memory is planned for the largest of the set.
        type: str
        default: ''
notes:
  - Needs nothing but Python on the machine that it runs on.
"""

EXAMPLES = r"""
- name: Plan two models on one Spark
  dgxspark.vllm.memory_budget:
    services:
      - name: heavy
        config: "{{ lookup('ansible.builtin.file', 'qwen3-next-80b-fp8/config.json') | from_json }}"
        vllm_version: 0.23.0
        args: {max-model-len: 65536, max-num-seqs: 4}
      - name: fast
        config: "{{ lookup('ansible.builtin.file', 'qwen3-4b/config.json') | from_json }}"
        vllm_version: 0.23.0
        args: {max-model-len: 16384, max-num-seqs: 8}
  register: budget
  delegate_to: localhost

- name: Stop before anything starts that will not fit
  ansible.builtin.assert:
    that: budget.verdict != 'fails'
    fail_msg: "{{ budget.findings | selectattr('severity', 'eq', 'error') | map(attribute='message') | join(' ') }}"
"""

RETURN = r"""
verdict:
  description: C(fits), C(tight) (it depends on overheads that are known only as a range) or C(fails).
  returned: success
  type: str
start_order:
  description: Names of the services in the order in which they should start, largest first.
  returned: success
  type: list
  sample: [heavy, fast]
utilization_sum:
  description: Sum of all C(gpu-memory-utilization).
  returned: success
  type: float
utilization_bound:
  description: The sum that leaves room for the system and for what engines hold beside their request; at most 0.95.
  returned: success
  type: float
total_gib:
  description: The memory that was divided up, in GiB.
  returned: success
  type: float
services:
  description:
    - Each service, by name. One that cannot be planned has only C(verdict). Values C(low), C(typical) and C(high) are those at such overheads,
      single values those at typical ones. C(..._gib) are GiB, C(..._bytes) bytes of one rank.
    - Of every service, C(verdict), C(order) (its place in the start order, from 0), C(residency_gib) (what it holds once it runs), C(headroom_gib)
      (what is free beyond its request when it restarts beside all others), C(solved) (the arguments that were worked out) and
      C(gpu_memory_utilization) (null for a service that is no engine). C(requested_bytes) is what vLLM asks for when it starts.
    - C(sources) names what C(weights), C(kv_cache) and C(overheads) rest on, such as V(calculated (compared with vLLM)), V(image), V(given) or
      V(measured here); C(exact) tells whether the planner of C(vllm_version) was compared. An engine with stated memory has C(stated_gib), and little else.
    - C(weights_bytes) (with C(adapters_bytes) and C(vision_bytes)), C(host_bytes), C(offloaded_bytes), C(draft_bytes), C(load_peak_bytes),
      C(overhead_gib) (inside the request), C(beside_gib), C(outside_gib) and C(host_memory) (each with C(at_start) and its C(option)) are its terms.
    - C(model_runner), C(kv_cache_dtype), C(mamba_cache_mode), C(block_size) (tokens), C(page_size_bytes), C(bytes_per_block), C(kv_groups) and
      C(num_blocks) describe the KV cache; C(available_kv_bytes) is its memory, C(gpu_kv_cache_size_tokens) the number that this version prints.
    - C(max_model_len), C(max_num_seqs) and C(max_num_batched_tokens) are as given, worked out or vLLM's defaults. C(max_concurrency) requests of
      C(max_model_len) tokens fit at once; one needs C(needed_bytes_one_request), a further token C(marginal_bytes_per_token).
      C(largest_safe_max_model_len) is the longest context that vLLM accepts even at high overheads.
  returned: success
  type: dict
  sample:
    heavy: {verdict: fits, order: 0, gpu_memory_utilization: 0.7, residency_gib: {low: 81.31, typical: 84.77, high: 86.27}, max_concurrency: 4.69}
findings:
  description: What a person should know, each a dict of C(rule), C(severity) (C(error), C(warning) or C(info)), C(service)
    (empty for the whole node), C(message), C(basis) (C(inventory) or C(measured)), and where they apply C(fix), C(changes)
    (what C(fix) names first, as a list of C(service) and C(args); null takes an argument out), C(vllm_error) (what vLLM itself would print),
    C(stage), how far its start would come, and C(seconds) into the start. Every fix with C(changes) was planned before it is named. Of errors with
    one cause, one has the fix that satisfies every check; the others name its rule in C(consequence_of).
  returned: success
  type: list
  sample:
    - rule: memory.free_at_restart
      severity: error
      service: heavy
      message: heavy requests 101.72 GiB (gpu-memory-utilization 0.85 of 119.67 GiB), but 101.22 GiB are free when it restarts while all others run
        (with fast).
      fix: Set gpu-memory-utilization of heavy to 0.80.
      changes: [{service: heavy, args: {gpu-memory-utilization: 0.8}}]
      stage: device
      seconds: {low: 8, typical: 30, high: 60}
      basis: inventory
memory_map:
  description: The parts of the node's memory in the order of a stacked bar, at typical overheads. Each has C(label), C(gib), C(kind)
    (C(system), C(weights), C(kv_cache), C(host), C(overhead), C(plain) for what only states its need, or C(free)) and C(service).
    They add up to O(total_gib); when it does not fit, nothing is free and they add up to more.
  returned: success
  type: list
  sample: [{label: system, gib: 5.2, kind: system, service: null}, {label: fast weights, gib: 7.49, kind: weights, service: fast}]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget


def main() -> None:
    resident = {"name": {"type": "str", "required": True}, "gib": {"type": "float", "required": True}}
    measured = {
        "mem_available_gib": {"type": "float"},
        "mem_free_gib": {"type": "float"},
        "resident": {"type": "list", "elements": "dict", "options": resident},
    }
    service = {
        "name": {"type": "str", "required": True},
        "config": {"type": "dict"},
        "quant_config": {"type": "dict"},
        "weights_gib": {"type": "float"},
        "tensors": {"type": "list", "elements": "dict"},
        "draft_config": {"type": "dict"},
        "draft_weights_gib": {"type": "float"},
        "memory_gib": {"type": "float"},
        "memory": {"type": "dict"},
        "image_plan": {"type": "dict"},
        "starts": {"type": "list", "elements": "dict", "default": []},
        "vllm_version": {"type": "str"},
        "args": {"type": "dict", "default": {}},
        "env": {"type": "dict", "default": {}},
        "available_kv_bytes": {"type": "int"},
        "overheads": {"type": "dict", "default": {}},
        "share": {"type": "float", "default": 1.0},
        "last": {"type": "int", "default": 0},
        "rank": {"type": "int", "default": 0},
        "exclusive": {"type": "str", "default": ""},
    }
    module = AnsibleModule(
        argument_spec={
            "total_gib": {"type": "float", "default": 119.67},
            "os_reserve_gib": {"type": "float", "default": 5.2},
            "measured": {"type": "dict", "options": measured},
            "overheads": {"type": "dict", "default": {}},
            "safety_margin_gib": {"type": "float", "default": 2.0},
            "services": {"type": "list", "elements": "dict", "required": True, "options": service},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(changed=False, **memory_budget(module.params))
    except InputError as error:
        module.fail_json(msg=f"The input is wrong in {len(error.messages)} place(s): {error}", errors=error.messages)


if __name__ == "__main__":
    main()
