#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove the services of a host in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_proof
short_description: Prove the services of a host, and write receipts
description:
  - Does in one round trip for all services of a host what M(dgxspark.vllm.endpoint_ready) and M(dgxspark.vllm.spark_info) with V(engines) do, one after
    the other. Memory and kernels are compared with the plan, and kept in the receipt of the service.
  - A receipt has what was deployed and how it measured. The measurements of the first proof of a deployment are its baseline; figures that got worse, and
    another deployment, are findings. Only what was deployed counts as a change and is part of the diff.
  - Then the speed of each service is measured for up to a minute - one stream, as many streams as it serves, and the prefill of one long prompt. It is
    compared with the first measurement of the same deployment and with the prediction of the plan; a slow service is a warning with its most likely causes.
    Not in check mode, while other requests run, and for models that make no tokens. For a service with C(kv_tiers), the first token of a long prompt is
    measured cold, after its eviction if that takes less than 90 s, and by the first proof after a restart of its engine.
  - What an engine took at its start is kept in its receipt, and on the controller in C(.spark/measured) of the inventory folder of the first
    Spark, for plans of the same launch; not in check mode.
  - One that does not answer fails the task, after the others were asked; then nothing is compared and no receipt is written. Findings never fail it.
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
    description: The services, as M(dgxspark.vllm.plan) returns them. C(name) is needed. Without C(unit) and C(container) they are C(spark-NAME.service) and
      C(spark-NAME); without C(url), the unit is waited for. C(settings) names the file of the API key on the host, C(checks) are further stages; C(memory),
      C(fast_path), C(probe), C(speed) and C(kv_tiers) are what the plan expects, C(fingerprint) is the plan that the engine has to run from. A service with
      C(on_demand) is started by the question, unless its receipt is of what is deployed.
    type: list
    elements: dict
    required: true
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
  state_dir:
    description: Folder of the collection's state on the host; C(starts) below it has the stages of the last starts.
    type: path
    default: /var/lib/dgxspark
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
  description: As C(services) of RV(dgxspark.vllm.spark_info#module:engines).
  returned: success
  type: dict
system:
  description: As C(system) of RV(dgxspark.vllm.spark_info#module:engines).
  returned: success
  type: dict
findings:
  description: As C(findings) of RV(dgxspark.vllm.spark_info#module:engines). Errors and warnings among them are shown as warnings of the task.
  returned: success
  type: list
  elements: dict
speeds:
  description: The measured speed of each service that was measured. C(verdict) is V(fine), V(slow) (below 0.8 of the low end of its range), V(wrong)
    (below 0.6) or V(unknown) with its C(reason). C(measured) has the rates of one stream alone (C(single)) and among C(streams) (C(several)) in
    tokens per second, C(prefill) of C(prompt_tokens), and with a drafter C(tokens_per_step). C(figures) has each rate beside its range. C(causes) has the
    most likely cause first, C(first) is the first measurement of this deployment, C(line) a summary.
  returned: success
  type: dict
  sample: {heavy: {verdict: slow, measured: {single: 18.2, several: 9.1, streams: 8, prefill: 2100.0}, causes: [eager, kernel]}}
kv_tiers:
  description: The first tokens of a long prompt in one line, by service with C(kv_tiers); its figures are in the receipt.
  returned: success
  type: dict
  sample: {"heavy": "first token of a prompt of 32,768 tokens: cold 12.31 s, after eviction 1.82 s (32,768 tokens restored)"}
starts:
  description: The last start by service, where the host has kept it, with C(seconds) of each of its C(stages), parts of them that the engine reports
    (C(said)), and C(age_seconds) since its end.
  returned: success
  type: dict
  sample: {"heavy": {"seconds": 92.4, "stages": {"gate": 1.2, "load": 70.2, "profile": 21.0}, "said": {"compile_seconds": 12.1}, "age_seconds": 30.5}}
receipts:
  description: The receipts by service, each with C(receipt), C(previous), C(changed) and C(findings). Empty without O(receipts_dir).
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import BadRequest
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import explain, host_proof


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=host_proof.ARGUMENTS, supports_check_mode=True)
    try:
        task = host_proof.Task.read(module.params)
        proof = host_proof.measure_speeds(module, task, host_proof.look(module, task, explain.explain))
        proof = host_proof.measure_kv_tiers(module, task, proof)
    except host_proof.Silent as silent:
        module.fail_json(msg=str(silent), answers={name: answer.to_dict() for name, answer in silent.answers.items()})
        raise
    except BadRequest as error:
        module.fail_json(msg=str(error))
        raise
    module.exit_json(**host_proof.keep(module, task, proof))


if __name__ == "__main__":
    main()
