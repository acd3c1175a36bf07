#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare memory and kernels of running engines with their plan."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_info
short_description: Compare memory and kernels of running engines with their plan
version_added: 0.1.0
description:
  - Of the memory it reads what vLLM printed when each service started (weights, KV cache, tokens, concurrency, graphs), the GPU
    memory of its processes, and what the host had before the start and when the model had answered. It compares that with the plan term
    by term. A term that is off by more than a tenth is a finding that names the term and the override that makes the next plan right.
  - Of the fast path it reads what vLLM printed (attention, MoE and linear kernels, CUDA graphs, drafting, prefix caching, async
    scheduling) and what C(/metrics) counts (accepted drafts). What is not as the plan expects is a finding that says what runs instead,
    and what to do. Engines on a CPU have no kernels to compare.
  - The lines are those of the container that runs now, up to the moment when its unit became active. The two readings of the
    host are kept by the helper of the units from the gate to the stop of a service.
  - Of a service that spans hosts it compares the rank of this host. Tokens, concurrency and drafts are counted by the first rank
    alone. Under Ray the workers of a rank write into Ray's session, which is read under O(run_dir); what Ray brings of it into
    the log of the engine serves where that cannot be read.
  - Findings are returned and never fail the task. What cannot be read is V(null) or V(unknown), with a reason.
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
options:
  services:
    description: The services, as M(dgxspark.vllm.plan) returns them; only the listed keys are read.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the service.
        type: str
        required: true
      unit:
        description: Its unit. V(spark-NAME.service) unless given.
        type: str
      container:
        description:
          - Its container. V(spark-NAME) unless given. Other containers of the service by their label, as Ray's, belong to it.
        type: str
      rank:
        description: Its rank on this host, for a service that spans hosts.
        type: int
        default: 0
      cluster:
        description: How it spans hosts. Only C(executor) is read. V(null) for a service of this host alone.
        type: dict
      memory:
        description: The plan of its memory, one of C(services) that M(dgxspark.vllm.memory_budget) returns.
        type: dict
        default: {}
      fast_path:
        description: What it is expected to run. Nothing is compared unless given; what runs is returned all the same.
        type: dict
        default: {}
      probe:
        description: Where its C(/metrics) are. Only C(url) and C(api_key_file) are read.
        type: dict
        default: {}
  os_reserve_gib:
    description: What the plan leaves to everything but services. Not compared unless given.
    type: float
  timeout:
    description: Seconds that C(/metrics) of a service may take.
    type: float
    default: 10
  root:
    description: Where the host's C(/proc) is read, to find the container of a process.
    type: path
    default: /
  run_dir:
    description: Where the helper of the units keeps its records, and Ray its sessions.
    type: path
    default: /run/dgxspark
seealso:
  - module: dgxspark.vllm.memory_budget
  - module: dgxspark.vllm.receipt
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Plan the memory
  dgxspark.vllm.memory_budget:
    services: "{{ services }}"
  delegate_to: localhost
  register: budget

- name: Compare memory and kernels of the engine with the plan
  dgxspark.vllm.engine_info:
    services:
      - name: heavy
        memory: "{{ budget.services.heavy }}"
        probe:
          url: http://127.0.0.1:8001
        fast_path:
          moe_backend:
            any_of: [marlin]
            why: moe-backend asks for it
    os_reserve_gib: 5.2
  become: true
  register: engines

- name: Show the measured overhead
  ansible.builtin.debug:
    var: engines.services.heavy.override
"""

RETURN = r"""
services:
  description: One entry a service, by name.
  returned: success
  type: dict
  contains:
    terms:
      description:
        - Every term with C(planned) (low, typical, high), C(measured), C(off_percent) (against typical), C(unit), C(verdict),
          C(reason) and C(override).
        - C(verdict) is V(as_planned) (within a tenth, or what the figures scatter by themselves), V(within_range) (between
          low and high), V(over), V(under), V(not_planned), V(not_comparable) or V(unknown); the last two have a C(reason).
        - C(inside) is the requested memory less weights and KV cache; C(outside) is the residency less the requested memory.
      returned: always
      type: dict
      sample:
        inside:
          planned: {low: 0.8, typical: 2.5, high: 4.0}
          measured: 4.5
          off_percent: 80.0
          unit: GiB
          verdict: over
          reason: ''
          override: {overheads: {inside_gib: 4.5}}
    override:
      description: The overrides of all its terms together, as keys of the service.
      returned: always
      type: dict
      sample: {overheads: {inside_gib: 4.5}}
    measured:
      description: The measured figures for a receipt.
      returned: always
      type: dict
      sample: {weights_gib: 74.85, kv_cache_gib: 18.4, kv_cache_tokens: 1657493, start_seconds: 412.0}
    start:
      description:
        - What its start took, term by term, with what tells its launch from others; plans to come go by it.
        - V(null) where the plan or the start-up lines do not say enough, and where it runs from another plan.
      returned: always
      type: dict
      sample: {weights_gib: 7.64, inside_gib: 0.97, kv_cache_gib: 30.98, max_num_batched_tokens: 2048, driver: 580.159.03}
    log:
      description:
        - What the start-up lines say of memory. C(tokens_count) is V(blocks) where C(kv_cache_tokens) counts the tokens of all blocks
          (vLLM up to 0.20.0) and V(requests) where it is the concurrency times the length.
      returned: always
      type: dict
    checks:
      description:
        - Every check of the fast path with C(expected), C(found), C(verdict) and C(reason).
        - C(verdict) is V(ok), V(off), V(not_asked) (nothing was expected) or V(unknown), which has a C(reason).
      returned: always
      type: dict
      sample:
        moe_backend: {expected: [marlin], found: [flashinfer_cutlass], verdict: "off", reason: ''}
    runs:
      description: What the start-up lines say of kernels, graphs and drafts.
      returned: always
      type: dict
    counted:
      description: What C(/metrics) counts since the start of the engine.
      returned: always
      type: dict
      sample: {drafts: 105, drafted: 630, accepted: 149, acceptance: 0.237, accepted_length: 2.42}
    fast_path:
      description: What a receipt keeps of the fast path. C(mark) is V(ok), V(N off), or V(-) where next to nothing is known.
      returned: always
      type: dict
    findings:
      description: The findings of this service, of memory and then of the fast path.
      returned: always
      type: list
      elements: dict
system:
  description: The term of everything but services, in the shape of C(terms).
  returned: success
  type: dict
findings:
  description:
    - All findings, those of the host included. Errors and warnings among them are shown as warnings of the task. A finding is an error
      only where the recipe requires what is missing.
  returned: success
  type: list
  elements: dict
  sample:
    - rule: residency.inside
      severity: warning
      service: heavy
      message: >-
        heavy uses 4.50 GiB inside the memory that it asks for, beside weights and KV cache; the plan has 2.50 (from 0.80 to 4.00) GiB
        (+80 %), and the KV cache is that much smaller.
      fix: "Plan again with this in the service heavy: overheads: {inside_gib: 4.5}"
      basis: measured
"""

from dataclasses import asdict
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import engines
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import failing, runner


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "services": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": engines.SERVICE,
            },
            "os_reserve_gib": {"type": "float"},
            "timeout": {"type": "float", "default": 10},
            "root": {"type": "path", "default": "/"},
            "run_dir": {"type": "path", "default": "/run/dgxspark"},
        },
        supports_check_mode=True,
    )
    params = module.params
    with failing(module):
        looked, system, findings = engines.look(
            runner(module),
            [engines.Engine.read(service) for service in params["services"]],
            params["os_reserve_gib"],
            params["timeout"],
            params["root"],
            Path(params["run_dir"]),
        )
    for finding in findings:
        if finding.severity != "info":
            module.warn(f"{finding.message} {finding.fix}")
    module.exit_json(
        changed=False,
        services={name: found.plain() for name, found in looked.items()},
        system=asdict(system),
        findings=[finding.to_dict() for finding in findings],
    )


if __name__ == "__main__":
    main()
