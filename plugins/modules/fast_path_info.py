#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the kernels that running services use with those that were meant."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fast_path_info
short_description: Compare the kernels that running services use with those that were meant
version_added: 0.1.0
description:
  - Reads what vLLM printed when each service started (attention, MoE and linear kernels, CUDA graphs, drafting, prefix
    caching, async scheduling) and what C(/metrics) counts (accepted drafts).
  - Compares that with what the plan expects. What is off is a finding that says what runs instead, and what to do.
  - The lines are those of the container that runs now, up to the moment when its unit became active.
  - Findings are returned and never fail the task. What cannot be read is V(unknown), with a reason; engines on a CPU have
    no kernels to compare.
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
        description: Its container. V(spark-NAME) unless given. Other containers of the service by their label belong to it.
        type: str
      rank:
        description: Its rank on this host, for a service that spans hosts. Only the first one counts drafts.
        type: int
        default: 0
      cluster:
        description: How it spans hosts. Only C(executor) is read. V(null) for a service of this host alone.
        type: dict
      fast_path:
        description: What it is expected to run. Nothing is compared unless given; what runs is returned all the same.
        type: dict
        default: {}
      probe:
        description: Where its C(/metrics) are. Only C(url) and C(api_key_file) are read.
        type: dict
        default: {}
  timeout:
    description: Seconds that C(/metrics) of a service may take.
    type: float
    default: 10
  run_dir:
    description: Where Ray keeps its sessions.
    type: path
    default: /run/dgxspark
seealso:
  - module: dgxspark.vllm.residency_info
  - module: dgxspark.vllm.receipt
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Compare the kernels with the plan
  dgxspark.vllm.fast_path_info:
    services:
      - name: heavy
        probe:
          url: http://127.0.0.1:8001
        fast_path:
          moe_backend:
            any_of: [marlin]
            why: moe-backend asks for it
  become: true
  register: fast_path
"""

RETURN = r"""
services:
  description: One entry a service, by name.
  returned: success
  type: dict
  contains:
    checks:
      description:
        - Every check with C(expected), C(found), C(verdict) and C(reason).
        - C(verdict) is V(ok), V(off), V(not_asked) (nothing was expected) or V(unknown), which has a C(reason).
      returned: always
      type: dict
      sample:
        moe_backend: {expected: [marlin], found: [flashinfer_cutlass], verdict: "off", reason: ''}
    runs:
      description: What the start-up lines say.
      returned: always
      type: dict
    counted:
      description: What C(/metrics) counts since the start of the engine.
      returned: always
      type: dict
      sample: {drafts: 105, drafted: 630, accepted: 149, acceptance: 0.237, accepted_length: 2.42}
    record:
      description: What a receipt keeps of it. C(mark) is V(ok), V(N off), or V(-) where next to nothing is known.
      returned: always
      type: dict
    findings:
      description: The findings of this service.
      returned: always
      type: list
      elements: dict
findings:
  description:
    - All findings. Errors and warnings among them are shown as warnings of the task. A finding is an error only where the recipe
      requires what is missing.
  returned: success
  type: list
  elements: dict
  sample:
    - rule: fast_path.moe_backend
      severity: warning
      service: heavy
      message: heavy runs its experts (MoE) on flashinfer_cutlass, not on marlin; moe-backend asks for it.
      fix: >-
        See that the option is in the running command (docker inspect), and run site.yml if it is not; take moe-backend out if vLLM
        overrules it for this model on purpose.
      basis: measured
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils import endpoint, engine_logs, fast_path, gb10
from ansible_collections.dgxspark.vllm.plugins.module_utils.command import runner


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "services": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "unit": {"type": "str"},
                    "container": {"type": "str"},
                    "rank": {"type": "int", "default": 0},
                    "cluster": {"type": "dict"},
                    "fast_path": {"type": "dict", "default": {}},
                    "probe": {"type": "dict", "default": {}},
                },
            },
            "timeout": {"type": "float", "default": 10},
            "run_dir": {"type": "path", "default": "/run/dgxspark"},
        },
        supports_check_mode=True,
    )
    run = runner(module)
    services = [
        {
            **service,
            "unit": service["unit"] or f"spark-{service['name']}.service",
            "container": service["container"] or f"spark-{service['name']}",
        }
        for service in module.params["services"]
    ]
    active_since = engine_logs.read_units(run, [service["unit"] for service in services])
    containers = gb10.read_containers(run)
    run_dir = Path(module.params["run_dir"])

    results, found = {}, []
    for service in services:
        names = engine_logs.containers_of(service, containers)
        lines, reason = engine_logs.read_logs(run, names, active_since.get(service["unit"]))
        if not names:
            reason = f"the container {engine_logs.main_container(service)} is not running"
        if engine_logs.under_ray(service) and names:
            workers, missing = engine_logs.read_session(run_dir, service["name"])
            lines, reason = workers + lines, reason or missing
        runs = fast_path.parse_log(lines)
        counted, silent = read_metrics(service["probe"], module.params["timeout"])
        checks, own = fast_path.compare(service["name"], service["fast_path"], runs, counted, service["rank"])
        for name, check in checks.items():
            if check.verdict == "unknown" and check.reason == fast_path.NOT_SAID and reason:
                check.reason = reason
            if check.verdict == "unknown" and name == "acceptance" and silent and not service["rank"]:
                check.reason = silent
        results[service["name"]] = {
            "checks": {name: asdict(check) for name, check in checks.items()},
            "runs": runs.to_dict(),
            "counted": counted.to_dict(),
            "record": fast_path.record(checks, runs, counted, own),
            "findings": [finding.to_dict() for finding in own],
        }
        found += [finding.to_dict() for finding in own]
    for finding in found:
        if finding["severity"] != "info":
            module.warn(f"{finding['message']} {finding['fix']}")
    module.exit_json(changed=False, services=results, findings=found)


def read_metrics(probe: dict[str, Any], timeout: float) -> tuple[fast_path.Counted, str]:
    """What a service counts, or a reason why that is not known."""
    if not probe.get("url"):
        return fast_path.Counted(), "it answers no requests"
    try:
        key = endpoint.read_api_key(probe.get("api_key_file"))
        client = endpoint.Client(probe["url"], key, probe.get("api_key_file") or "")
        status, body = client.call("GET", "/metrics", timeout=timeout)
    except endpoint.Problem as problem:
        return fast_path.Counted(), f"/metrics: {problem.message}"
    if status != 200:
        return fast_path.Counted(), f"/metrics answers HTTP {status}"
    return fast_path.parse_metrics(body.decode("utf-8", "replace")), ""


if __name__ == "__main__":
    main()
