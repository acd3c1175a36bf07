#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: memory_budget
short_description: Plan the memory of a node before anything is started on it
version_added: 0.1.0
description:
  - Works out whether vLLM services fit on a node together, from the configs of their models alone, and what vLLM would print
    if they do not.
  - KV cache planning is that of the vLLM versions that it was compared with to the byte, tests/oracle/memory_tables.md lists them. Other versions
    from 0.15 follow the releases in which changes were first seen, and the answer says so.
  - Chooses C(gpu-memory-utilization), C(max-model-len) and C(max-num-seqs) where they are open.
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
      - Overrides of the terms that cannot be derived, each a number or a mapping of V(low), V(typical) and V(high), for all
        services.
      - C(inside_base_gib), C(inside_weights_share), C(inside_vision_gib), C(inside_drafter_gib) and C(inside_peak_share) (of what
        activations, sampling and compilation take by the widths of the model) add up to what an engine uses inside its requested
        memory besides weights and KV cache, with those CUDA graphs that vLLM takes off the cache; C(inside_gib) replaces their sum.
      - C(graphs_share) is that of what CUDA graphs take by layers and sizes of batches; what is not taken off the cache comes beside.
      - C(load_gib) is what quantised weights take over their own size while they load, or C(load_share) of the experts of one layer
        if that is more.
      - C(kept_share) is the part of what is used inside that stays allocated after the start.
      - C(outside_gib) is what an engine holds beside its requested memory, CUDA graphs and C(host_memory) of RV(services) apart.
      - C(process_gib) is the host memory of a process of vLLM beyond one API server and one engine core, C(ray_gib) that of Ray's own.
      - C(snapshot_gib) is what a container takes between the host's C(MemAvailable) and vLLM's first look at it.
      - C(arguments_seconds), C(device_seconds), C(profile_seconds), C(graphs_seconds) and C(load_gib_per_second) are how long a
        start takes to come to each of vLLM's checks. They decide nothing, they only date vLLM's errors in RV(findings).
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
        description:
          - Size of the weights in GiB, of the whole model without a drafter, best the sum over the safetensors headers. It is
            divided over the ranks. Computed from O(services[].config) when it is not given.
          - With quantisation at load time, the size of the files or that of what was loaded; which of the two it is shows.
        type: float
      tensors:
        description:
          - What the headers of all safetensors files of the checkpoint list, each with C(name), C(dtype) and C(shape), or with
            C(name) and C(bytes). Every tensor is divided over the ranks as vLLM divides it. Wins over
            O(services[].weights_gib).
          - A list that cannot be the whole model, or that has an entry twice or of an unknown dtype, is refused by name.
        type: list
        elements: dict
      draft_config:
        description: Content of C(config.json) of a separate draft model.
        type: dict
      draft_weights_gib:
        description: Size of the drafter in GiB, without the embedding and the head that it shares. Set it to V(0) when
          O(services[].weights_gib) has it in already.
        type: float
      memory_gib:
        description:
          - What a service that is no vLLM engine holds, in GiB.
          - With O(services[].config), what an engine asks for whose memory cannot be worked out; C(gpu-memory-utilization) follows from it where
            it is open, and nothing else is calculated.
        type: float
      memory:
        description:
          - As O(services[].memory_gib) of an engine, in parts, in GiB on one rank - C(weights_gib), C(kv_gib) and C(other_gib). The last is
            estimated where it is left out, the second may be left out beside C(gpu-memory-utilization).
          - Other sizes of O(services[]) beside it (C(weights_gib), C(draft_weights_gib), C(tensors), C(available_kv_bytes)) are refused.
        type: dict
      image_plan:
        description:
          - What M(dgxspark.vllm.image_plan) returned for the image, O(services[].config) and O(services[].args) of this very service -
            C(answer), and C(reason) where there is none.
          - It is used if the calculation does not know the model, or was not compared with this version of vLLM. Elsewhere the two are
            compared.
        type: dict
      starts:
        description:
          - What earlier starts of the same launch, or of one that differs in its lengths or its batch alone, were measured to take. Each has
            C(exact) (of this host, image and driver), C(max_model_len), C(max_num_batched_tokens), C(max_num_seqs), C(weights_gib),
            and the least and the most of C(inside_gib) and, if known, C(outside_gib), in GiB.
          - They take the place of what is assumed, or narrow it; what was left open is worked out without them.
        type: list
        elements: dict
        default: []
      vllm_version:
        description: Version of vLLM in the image. When it is not known (left out, or V(nightly) and the like), the compared version that
          needs most is taken. One before 0.15 is refused, one after 0.33 is planned as 0.33 with a warning.
        type: str
      args:
        description:
          - Arguments of vLLM by their long names with dashes and native values. Other spellings that its command line takes are
            understood as well, C(--max_model_len), C(no-enable-prefix-caching), V(64k) (64000) and V(64K) (65536) among them.
          - Those that do not concern memory are ignored; one that no vLLM has and that looks like one that does is a warning.
          - C(gpu-memory-utilization) and C(max-model-len) are worked out when they are left out or V(auto). The utilisation
            is the least that passes vLLM's own checks, grown toward C(max-num-seqs) requests of C(max-model-len) as far as the
            node allows. The length is the longest that is safe at high overheads.
          - C(max-num-seqs) is worked out when it is V(auto), to the number of requests of full length that the KV cache holds,
            from 1 to 256. Left out, it is vLLM's own default of 256; only where vLLM would refuse that default, because a
            model with recurrent state needs a block for each request, is the largest number chosen that it accepts.
        type: dict
        default: {}
      env:
        description: Environment variables of the engine. Looked at are E(VLLM_USE_V2_MODEL_RUNNER), which decides which of vLLM's model runners serves,
          where it is set, E(VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS), which decides whether CUDA graphs are subtracted from the KV cache,
          E(VLLM_PLE_TABLE_MEMORY), by which forks leave tables of n-grams on disk, and those of host memory -
          E(VLLM_USE_SIMPLE_KV_OFFLOAD), E(LMCACHE_MAX_LOCAL_CPU_SIZE), E(VLLM_XGRAMMAR_CACHE_MB) and
          E(VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY).
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
        description: The weight by which services whose utilisation is worked out share what is left when each has the least that it needs.
          With V(0) a service keeps to the least.
        type: float
        default: 1.0
      last:
        description: V(0) for a service that starts by its size, the largest first. Services with a higher number start after those, in the
          order of their numbers; a rank of a cluster does, because it has to wait for other hosts.
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
  sample: fits
start_order:
  description: Names of the services in the order in which they should start, largest first.
  returned: success
  type: list
  sample: [heavy, fast]
utilization_sum:
  description: Sum of all C(gpu-memory-utilization).
  returned: success
  type: float
  sample: 0.89
utilization_bound:
  description: The sum that leaves room for the system and for what engines hold beside their request; at most 0.95.
  returned: success
  type: float
  sample: 0.926
total_gib:
  description: The memory that was divided up, in GiB.
  returned: success
  type: float
  sample: 119.67
services:
  description:
    - Each service, by name. One that cannot be planned has only C(verdict). Values C(low), C(typical) and C(high) are those at such overheads,
      single values those at typical ones. C(..._gib) are GiB, C(..._bytes) bytes of one rank.
    - Of every service, C(verdict), C(order) (its place in the start order, from 0), C(residency_gib) (what it holds once it runs), C(headroom_gib)
      (what is free beyond its request when it restarts beside all others), C(solved) (the arguments that were worked out) and
      C(gpu_memory_utilization) (null for a service that is no engine).
    - C(requested_bytes) is what vLLM asks for when it starts, ceil(total x utilization).
    - C(sources) names what C(weights) and C(kv_cache) rest on, C(calculated (compared with vLLM)) (with this version), C(calculated (not compared)),
      C(image) (O(services[].image_plan)) or C(given). With O(services[].starts), C(weights) and C(overheads) are C(measured here) or
      C(narrowed by a measured start).
    - C(stated_gib) is the sum of O(services[].memory), or O(services[].memory_gib) of an engine. Such an engine has C(weights_bytes),
      C(overhead_gib) and C(available_kv_bytes) where parts are stated, and nothing else of what follows.
    - C(vllm_version) is the given one; C(exact) tells whether its planner was compared, or has planned it itself.
    - C(weights_bytes) are the weights with the room for LoRA adapters (C(adapters_bytes)), the vision tower (C(vision_bytes)), what vLLM keeps in
      pinned host memory by default (C(host_bytes), tables of n-grams) and what C(cpu-offload-gb) or C(offload-group-size) moves there
      (C(offloaded_bytes)). C(draft_bytes) are those of the drafter. C(load_peak_bytes) is what both take at most while they load.
    - C(overhead_gib) is what the engine uses inside its request besides weights and KV cache, C(beside_gib) what it holds beside it apart from
      C(outside_gib) and C(host_memory), the latter each with C(at_start) (allocated at the start, else filled by requests) and the C(option) that
      sets its size.
    - C(model_runner) is V(1) or V(2), which of vLLM's serves this launch. C(kv_cache_dtype), C(mamba_cache_mode), C(block_size) (tokens),
      C(page_size_bytes) (of a block in one layer), C(bytes_per_block) (over all layers of the largest group), C(kv_groups) and C(num_blocks)
      describe the KV cache; C(available_kv_bytes) is its memory. C(gpu_kv_cache_size_tokens) is the number that this version prints.
    - C(max_model_len), C(max_num_seqs) and C(max_num_batched_tokens) are as given, worked out or vLLM's defaults. C(max_concurrency) requests of
      C(max_model_len) tokens fit at once; one needs C(needed_bytes_one_request), a further token of context C(marginal_bytes_per_token).
      C(largest_safe_max_model_len) is the longest context that vLLM accepts even at high overheads.
  returned: success
  type: dict
  sample:
    heavy:
      {verdict: fits, order: 0, gpu_memory_utilization: 0.7, requested_bytes: 89946278855, residency_gib: {low: 81.31, typical: 84.77, high: 86.27},
       solved: [gpu-memory-utilization], weights_bytes: 80372549376, available_kv_bytes: {low: 5650000000, typical: 7790000000, high: 9100000000},
       kv_groups: [{kind: gdn, layers: 12, block_size: 65536}, {kind: full, layers: 12, block_size: 544}], max_concurrency: 4.69,
       host_memory: [{name: media cache, gib: {low: 0.0, typical: 4.0, high: 4.0}, at_start: false, option: mm-processor-cache-gb}]}
findings:
  description: What a person should know, each a dict of C(rule), C(severity) (C(error), C(warning) or C(info)), C(service)
    (empty for the whole node), C(message), C(basis) (C(inventory) or C(measured)), and where they apply C(fix), C(changes)
    (what C(fix) names first, as a list of C(service) and C(args); null takes an argument out), C(vllm_error), the text that vLLM
    itself would print, C(stage), how far its start would come (C(arguments), C(device), C(load), C(profile), C(kv_cache) or
    C(graphs)), and C(seconds), C(low), C(typical) and C(high), into the start. Every fix with C(changes) was planned
    before it is named. Of errors with one cause, one has the fix that satisfies every check; the others name its rule in C(consequence_of).
  returned: success
  type: list
  sample:
    - rule: memory.free_at_restart
      severity: error
      service: heavy
      message: heavy requests 101.72 GiB (gpu-memory-utilization 0.85 of 119.67 GiB), but 101.22 GiB are free when it restarts while all others run (with fast).
      fix: Set gpu-memory-utilization of heavy to 0.80.
      changes: [{service: heavy, args: {gpu-memory-utilization: 0.8}}]
      vllm_error: "ValueError: Free memory on device cuda:0 (101.22/119.67 GiB) on startup is less than desired GPU memory
        utilization (0.85, 101.72 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
      stage: device
      seconds: {low: 8, typical: 30, high: 60}
      basis: inventory
memory_map:
  description: The parts of the node's memory in the order of a stacked bar, at typical overheads. Each has C(label), C(gib), C(kind)
    (C(system), C(weights), C(kv_cache), C(host), C(overhead), C(plain) for what only states its need, or C(free)) and C(service),
    the name or null. They add up to O(total_gib); when it does not fit, nothing is free and they add up to more.
  returned: success
  type: list
  sample:
    - {label: system, gib: 5.2, kind: system, service: null}
    - {label: fast weights, gib: 7.49, kind: weights, service: fast}
    - {label: free, gib: 101.16, kind: free, service: null}
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
