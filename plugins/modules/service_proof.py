#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove the services of a host in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_proof
short_description: Prove the services of a host, and write receipts
version_added: 0.1.0
description:
  - Does for all services of a host what M(dgxspark.vllm.endpoint_ready), M(dgxspark.vllm.engine_info) and M(dgxspark.vllm.receipt) do for
    one, in one round trip - each is asked for a real completion, what it took and what it runs is compared with its plan, and both
    are kept in its receipt.
  - Services are asked one after the other, so that the figures of one are not those of two at a time.
  - What an engine took at its start is kept in its receipt, and on the controller in C(.spark/measured) of the inventory folder of the first
    Spark, for plans of the same launch; not in check mode.
  - One that does not answer fails the task, after the others were asked; then nothing is compared and no receipt is written.
    Findings never fail it.
author:
  - dgxspark.vllm contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    details:
      - A server that does not run is not waited for, since a check run has not started it; C(ready) is V(null) then.
  diff_mode:
    support: full
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
        description: Its container. V(spark-NAME) unless given.
        type: str
      url:
        description: URL of its server. Without it, as ranks behind the first one have none, its unit is waited for.
        type: str
      served_model_name:
        description: Name of the model that has to be served.
        type: str
      settings:
        description: Its settings, of which C(api_key_file) is read, a file on the host.
        type: dict
        default: {}
      checks:
        description: Further stages, the C(checks) of M(dgxspark.vllm.endpoint_ready).
        type: dict
        default: {}
      rank:
        description: Its rank on this host, for a service that spans hosts.
        type: int
        default: 0
      cluster:
        description: How it spans hosts. V(null) for a service of this host alone.
        type: dict
      memory:
        description: The plan of its memory.
        type: dict
        default: {}
      fast_path:
        description: What it is expected to run.
        type: dict
        default: {}
      probe:
        description: Where its C(/metrics) are.
        type: dict
        default: {}
      image:
        description: Its image, for the receipt.
        type: raw
      model:
        description: Its model, for the receipt.
        type: raw
      vllm_version:
        description: Its version of vLLM, for the receipt.
        type: str
      argv:
        description: How it is started, for the receipt.
        type: list
        elements: str
        default: []
      env:
        description: The names of its variables, for the receipt.
        type: raw
      fingerprint:
        description: Which of its plans it has to run from, for what it took to be kept. Not compared unless given.
        type: str
      on_demand:
        description:
          - That requests start it, as the plan says it. The question starts it then, and the answer is waited for as long as its start may take.
          - One that does not run is not started where its receipt is of what is deployed, see O(receipts_dir).
        type: dict
      parts:
        description: The containers of a rank, for the receipt; the first of two is Ray's.
        type: list
        elements: dict
        default: []
  timeout:
    description: Seconds that each service may take to answer.
    type: float
    default: 120
  receipts_dir:
    description: Folder of the receipts. Empty keeps none.
    type: path
    default: ''
  os_reserve_gib:
    description: What the plan leaves to everything but services. Not compared unless given.
    type: float
  root:
    description: Where the host's C(/proc) is read, to find the container of a process.
    type: path
    default: /
  run_dir:
    description: Where the helper of the units keeps its records, and Ray its sessions.
    type: path
    default: /run/dgxspark
seealso:
  - module: dgxspark.vllm.endpoint_ready
  - module: dgxspark.vllm.engine_info
  - module: dgxspark.vllm.receipt
"""

EXAMPLES = r"""
- name: Prove the running services
  dgxspark.vllm.service_proof:
    services: "{{ spark_plan.services | selectattr('state', 'eq', 'started') }}"
    receipts_dir: /var/lib/dgxspark/receipts
    os_reserve_gib: 5.2
  become: true
  register: proof
"""

RETURN = r"""
answers:
  description: What M(dgxspark.vllm.endpoint_ready) returns, by service; not of a service on demand that was not started for this.
  returned: always
  type: dict
  sample: {"heavy": {"ready": true, "stage": "completion", "decode_tokens_per_second": 41.5}}
services:
  description: As RV(dgxspark.vllm.engine_info#module:services).
  returned: success
  type: dict
system:
  description: As RV(dgxspark.vllm.engine_info#module:system).
  returned: success
  type: dict
findings:
  description: As RV(dgxspark.vllm.engine_info#module:findings). Errors and warnings among them are shown as warnings of the task.
  returned: success
  type: list
  elements: dict
receipts:
  description: What M(dgxspark.vllm.receipt) returns, by service. Empty without O(receipts_dir).
  returned: success
  type: dict
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import units
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import engines, readiness, receipt_file, receipts
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command

MEASURED = ("ttft_seconds", "decode_tokens_per_second", "server_version", "max_model_len")
METRICS_TIMEOUT = 10.0  # s


def question(service: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Return what M(dgxspark.vllm.endpoint_ready) is to be asked of a service."""
    if service["on_demand"]:
        timeout = max(timeout, float(service["settings"].get("start_deadline_seconds") or 0))
    return {
        **readiness.DEFAULTS,
        "on_demand": bool(service["on_demand"]),
        "url": service["url"] or None,
        "model": service["served_model_name"],
        "api_key_file": service["settings"].get("api_key_file") or None,
        "timeout": timeout,
        "unit": service["unit"],
        "container": service["container"],
        "checks": service["checks"],
    }


def deployed(service: dict[str, Any]) -> dict[str, Any]:
    """Return what a receipt says of what is deployed."""
    found = {key: service[key] for key in ("image", "model", "vllm_version", "argv", "env")}
    if len(service["parts"]) > 1:
        found["ray_argv"] = service["parts"][0]["argv"]
    return found


def rests(module: AnsibleModule, asks: command.Run, service: dict[str, Any]) -> bool:
    """Tell whether a service on demand does not run, and was proved as what is deployed.

    :param module: with C(receipts_dir)
    :param asks: runs a program that only looks
    :param service: of the module's arguments
    :returns: whether it is left alone
    """
    if not service["on_demand"] or not module.params["receipts_dir"]:
        return False
    with command.failing(module):
        shown = units.ask(asks, [service["unit"]])
    # One whose last start failed, or whose unit is gone, is not well for having been proved before.
    if not shown or (shown[0]["load_state"], shown[0]["active_state"]) != ("loaded", "inactive"):
        return False
    previous, _text = receipt_file.read_previous(module, f"{module.params['receipts_dir']}/{service['name']}.json")
    return previous is not None and previous["deployed"] == deployed(service)


def measured(service: dict[str, Any], answer: dict[str, Any], engine: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a receipt; a rank behind the first one has answered nothing.

    :param service: of the module's arguments
    :param answer: of C(readiness.wait)
    :param engine: of C(engines.look)
    :returns: figures by name, as C(receipts.FIGURES) has their units
    """
    if not service["url"]:
        return dict(engine["measured"])
    return {
        **engine["measured"],
        **{key: answer.get(key) for key in MEASURED},
        "checks": answer.get("checks") or {},
    }


def new_receipt(
    service: dict[str, Any], figures: dict[str, Any], looked: dict[str, Any], previous: dict[str, Any] | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the receipt after the one before, and what got worse.

    :param service: of the module's arguments
    :param figures: of C(measured)
    :param looked: of C(engines.look), with the receipt's part of the fast path and what the start took
    :param previous: the receipt before, None for the first
    :returns: receipt, and findings as plain dicts
    """
    receipt = receipts.build(
        service["name"],
        deployed(service),
        figures,
        previous,
        service["cluster"] or None,
        service["rank"],
        looked["fast_path"],
        looked["start"],
    )
    return receipt, receipts.compare(previous, receipt)


ARGUMENTS: dict[str, Any] = {
    "services": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            **engines.SERVICE,
            "url": {"type": "str"},
            "served_model_name": {"type": "str"},
            "settings": {"type": "dict", "default": {}},
            "checks": {"type": "dict", "default": {}},
            "image": {"type": "raw"},
            "model": {"type": "raw"},
            "vllm_version": {"type": "str"},
            "argv": {"type": "list", "elements": "str", "default": []},
            "env": {"type": "raw"},
            "fingerprint": {"type": "str"},
            "on_demand": {"type": "dict"},
            "parts": {"type": "list", "elements": "dict", "default": []},
        },
    },
    "timeout": {"type": "float", "default": 120},
    "receipts_dir": {"type": "path", "default": ""},
    "os_reserve_gib": {"type": "float"},
    "root": {"type": "path", "default": "/"},
    "run_dir": {"type": "path", "default": "/run/dgxspark"},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params, run = module.params, command.runner(module)
    asks = command.reader(together=math.inf)
    services = [
        {
            **service,
            "unit": service["unit"] or f"spark-{service['name']}.service",
            "container": service["container"] or f"spark-{service['name']}",
        }
        for service in params["services"]
    ]
    services = [service for service in services if not rests(module, asks, service)]
    answers, failures = {}, []
    for service in services:
        answers[service["name"]], why = readiness.wait(asks, question(service, params["timeout"]), module.check_mode)
        failures += [why] if why else []
    if failures:
        module.fail_json(msg="\n".join(failures), answers=answers)

    # Beside one on demand others may run that are not asked about here; the system does not hold their memory.
    reserve = None if any(service["on_demand"] for service in services) else params["os_reserve_gib"]
    with command.failing(module):
        looked, system, findings = engines.look(
            run, services, reserve, METRICS_TIMEOUT, params["root"], Path(params["run_dir"])
        )
    kept: dict[str, dict[str, Any]] = {}
    for service in services if params["receipts_dir"] else []:
        name = service["name"]
        figures = measured(service, answers[name], looked[name])
        make = partial(new_receipt, service, figures, looked[name])
        kept[name] = receipt_file.keep(module, f"{params['receipts_dir']}/{name}.json", make)
    for finding in findings:
        if finding["severity"] != "info":
            module.warn(f"{finding['message']} {finding['fix']}")
    result: dict[str, Any] = {
        "changed": any(entry["changed"] for entry in kept.values()),
        "answers": answers,
        "services": looked,
        "system": system,
        "findings": findings,
        "receipts": kept,
    }
    if module._diff:
        result["diff"] = [entry.pop("diff") for entry in kept.values()]
    module.exit_json(**result)


if __name__ == "__main__":
    main()
