#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: compare
short_description: Compare a host with a state document, and report and prove it in the same round trip
description:
  - Compares folders, files, accounts and units of a host with a state document, as M(dgxspark.vllm.deploy) does in check mode, and the host with
    its current generation. Images, models, the network of a cluster and servers are compared if they are given.
  - RV(up_to_date) tells whether a run of site.yml would find nothing to do. A program without an answer is a reason in RV(why), not a "no".
  - The facts of O(gather) and the proof of O(proof) come with the answer, so that one round trip is enough for a host without changes. Nothing is
    changed, except for checksums of weights and receipts of O(proof). Files are named; their contents are not returned.
options:
  plan:
    description:
      - The host's part of RV(dgxspark.vllm.plan#module:hosts), as a mapping or as a text in JSON. The action plugin makes O(document), O(parts), O(models),
        O(bundled), O(images), O(network), O(servers), O(settings), O(hf_home) and O(proof) of it, for the tags of the run; all of these options
        stay on the controller.
      - With O(gather) and without O(facts_checksum), the host is only asked for its facts, and RV(up_to_date) is V(false).
    type: raw
  addons:
    description: With O(plan), the host's part of RV(dgxspark.vllm.plan#module:addons).
    type: raw
  clusters:
    description: With O(plan), RV(dgxspark.vllm.plan#module:clusters), for the network of the host's cluster.
    type: dict
  lacking:
    description: With O(plan), RV(dgxspark.vllm.plan#module:lacking). A host that has what others of the run lack may have to hand it on, so that no host is up
      to date then.
    type: dict
  prove:
    description: With O(plan), prove the services of a host that is up to date, unless the tags of the run leave out the proof.
    type: bool
    default: false
  earlier:
    description: With O(plan), the result of an earlier task of this run. If it was about the same document, or shows that nothing was recorded on the
      host yet, it is returned again, and the host is not asked.
    type: dict
  document:
    description: The state document, with the SHA-256 of each file; rows with C(fill) have their content. Left out, the host is compared with the document
      of its current generation, and O(models) by names and sizes of their files.
    type: dict
  contents:
    description: Contents of key files with C(fill), by their paths.
    type: dict
    default: {}
  parts:
    description: The parts that the run deploys; everything if left out. Rows of other parts, in the record of the host too, are left out. V(models),
      V(images) and V(prove) are parts too; the facts of the last proof are compared for V(prove).
    type: list
    elements: str
  models:
    description: Models of the host, as RV(dgxspark.vllm.plan#module:hosts) has them; one that is copied from the controller has C(path) and C(copied), the
      size and time of its files there. Files that were touched since they were last read are hashed, as M(dgxspark.vllm.model_snapshot) does.
    type: list
    elements: dict
    default: []
  bundled:
    description: Models of the bundle, each with C(repo), C(commit), C(revisions) and C(files).
    type: list
    elements: dict
    default: []
  images:
    description: Images that have to exist, each as the list of names by any of which it may be found.
    type: list
    elements: list
    default: []
  network:
    description: The network of the cluster. C(file) is the netplan file, with C(path) and C(sha256). C(routes), C(relay), C(ufw) with C(netdevs) and
      C(peers), and C(pings) are questions to programs of the host.
    type: dict
    default: {}
  servers:
    description: Speech servers and Ollama, each with C(name), C(settings), its file on the host, and C(seconds). Each has to give a real answer.
      They are not asked in check mode.
    type: list
    elements: dict
    default: []
  settings:
    description: Settings of the host's plan. C(verify) says how files of weights are read.
    type: dict
    default: {}
  gather:
    description: Options of M(dgxspark.vllm.spark_info). Its results are returned as well. Empty, no facts are gathered.
    type: dict
    default: {}
  facts_checksum:
    description: Checksum of the facts of the host that change only by updates and repairs. Another one is a reason to plan anew. Empty, it is not compared.
    type: str
    default: ''
  proof:
    description: Options of M(dgxspark.vllm.service_proof), by which the services of an up-to-date host are proved; a service that does not answer soon, an
      error, and a service on demand that would have to be started leave RV(proved) V(false). Never in check mode.
    type: dict
  hf_home:
    description: Folder of weights.
    type: path
    default: /srv/huggingface
  root:
    description: Where the host's files are; for tests.
    type: path
    default: /
  controller:
    description: Set by the action plugin; who runs this. The comparison then waits for other runs that change the host, and is noted as this run's
      beginning.
    type: str
    default: ''
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  diff_mode:
    support: partial
    details:
      - Receipts of O(proof) are shown.
notes:
  - Needs root.
"""

EXAMPLES = r"""
- name: Compare the host with its plan
  dgxspark.vllm.compare:
    plan: "{{ spark_planned.hosts[inventory_hostname] }}"
    addons: "{{ spark_planned.addons[inventory_hostname] }}"
    clusters: "{{ spark_planned.clusters }}"
    prove: true
  become: true
  register: spark_compared

- name: Compare the host with what was deployed
  dgxspark.vllm.compare:
    models: "{{ spark_planned.hosts[inventory_hostname].models }}"
    gather:
      images: "{{ spark_planned.hosts[inventory_hostname].image_candidates }}"
  become: true
  register: compared
"""

RETURN = r"""
up_to_date:
  description: Whether there is nothing to apply.
  returned: success
  type: bool
why:
  description: Why it is not.
  returned: success
  type: list
  sample: ["generation 3 is not proven"]
unanswered:
  description: Programs that did not answer, each with its reason. What they were asked is not known, and not compared.
  returned: success
  type: list
  elements: str
differences:
  description: How the host differs. C(changed), C(missing), C(added) (files below the folders of the collection that nothing has deployed, which stay) and
    C(attributes) are paths; C(removed) are paths of rows that the document no longer has. C(units) is the step that each unit needs, by name. C(moved) are
    models whose revision stands for another commit than at the time of the current generation, by service. C(models) is what is wrong with O(models),
    where O(document) is left out.
  returned: success
  type: dict
  sample: {changed: [/etc/dgxspark/env/heavy.env], missing: [], added: [], units: {spark-heavy.service: restart}, moved: {}}
recorded:
  description: The current generation with C(number), C(at), C(proven), C(wanted), C(checksums), C(facts), C(units), C(images), C(restoring) and C(from);
    V(null) without one. C(checksums) are those of the parts that are deployed, which may be newer than the generation.
  returned: success
  type: dict
  sample: {number: 3, proven: true, restoring: null, from: null}
units:
  description: Whether each deployed unit starts at boot, and its state.
  returned: success
  type: dict
  sample: {spark-heavy.service: {enabled: true, active: active}}
launches:
  description: What each service was started with, by its receipt.
  returned: success
  type: dict
proved:
  description: Whether all services of an up-to-date host answered, were found as they are to be, and have their receipts.
  returned: success
  type: bool
unproved:
  description: Why they were not proved.
  returned: with O(proof), when RV(up_to_date) and not RV(proved)
  type: str
  sample: "heavy at http://127.0.0.1:8001 is not ready"
compared_with:
  description: Checksum of what the host was compared with, by which O(earlier) is judged; empty if the facts of the host ask for another plan.
  returned: with O(plan)
  type: str
answers:
  description: As RV(dgxspark.vllm.service_proof#module:answers).
  returned: when RV(proved)
  type: dict
  sample: {heavy: {ready: true, stage: completion, decode_tokens_per_second: 41.5}}
receipts:
  description: As RV(dgxspark.vllm.service_proof#module:receipts).
  returned: when RV(proved)
  type: dict
spark:
  description: As RV(dgxspark.vllm.spark_info#module:spark).
  returned: with O(gather)
  type: dict
images:
  description: As RV(dgxspark.vllm.spark_info#module:images).
  returned: with O(gather)
  type: dict
host_architecture:
  description: As RV(dgxspark.vllm.spark_info#module:host_architecture).
  returned: with O(gather)
  type: str
unknown:
  description: As RV(dgxspark.vllm.spark_info#module:unknown).
  returned: with O(gather)
  type: dict
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import compare, compare_programs, host_report
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.generation_host import Refused
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_lock, staging
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import BadRequest
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import host_proof
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import Unknown

ARGUMENTS: dict[str, Any] = {
    # Read by the action plugin.
    "plan": {"type": "raw"},
    "addons": {"type": "raw"},
    "clusters": {"type": "dict"},
    "lacking": {"type": "dict"},
    "prove": {"type": "bool", "default": False},
    "earlier": {"type": "dict"},
    "document": {"type": "dict"},
    "contents": {"type": "dict", "default": {}, "no_log": True},
    "parts": {"type": "list", "elements": "str"},
    "models": {"type": "list", "elements": "dict", "default": []},
    "bundled": {"type": "list", "elements": "dict", "default": []},
    "images": {"type": "list", "elements": "list", "default": []},
    "network": {"type": "dict", "default": {}},
    "servers": {"type": "list", "elements": "dict", "default": []},
    "settings": {"type": "dict", "default": {}},
    "gather": {"type": "dict", "default": {}},
    "facts_checksum": {"type": "str", "default": ""},
    "proof": {"type": "dict"},
    "hf_home": {"type": "path", "default": "/srv/huggingface"},
    "root": {"type": "path", "default": "/"},
    "controller": {"type": "str", "default": ""},
}


def compared(module: AnsibleModule, facts: dict[str, Any]) -> dict[str, Any]:
    """Compare the host with the document, alone on it in a run that may change it; facts: of C(gather), empty without."""

    def compare_host() -> dict[str, Any]:
        return compare.compare(module.params, command.reader(), module.check_mode, module.warn, facts)

    controller = module.params["controller"]
    if not controller:
        return compare_host()
    with host_lock.held(module) as locked, host_lock.noted(controller, locked):
        if locked:
            staging.sweep(Path(module.params["root"]))
        return compare_host()


def run(module: AnsibleModule) -> dict[str, Any]:
    """Report, compare, ask and prove the host; each step only where those before it left something to find out."""
    facts: dict[str, Any] = {}
    if module.params["gather"]:
        facts = host_report.report_host(module, host_report.options_of(module, ArgumentSpecValidator, "gather"))
    result = {"changed": False, "proved": False, **facts, **compared(module, facts)}
    if result["up_to_date"]:
        # What no file shows; another run need not wait for these.
        why = compare_programs.failures(command.reader(), Path(module.params["root"]), module.params, module.check_mode)
        result.update(up_to_date=not why, why=why)
    if result["up_to_date"] and module.params["proof"] and not module.check_mode:
        task = host_proof.Task.read(
            host_report.options_of(module, ArgumentSpecValidator, "proof", host_proof.ARGUMENTS)
        )
        result.update(host_proof.prove_at_once(module, task))
    return result


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = run(module)
    except (BadRequest, Unknown, Refused) as error:
        module.fail_json(msg=str(error))
    except ValueError as error:
        module.fail_json(msg=f"document: {error}")
    except PermissionError as error:
        module.fail_json(msg=f"{error.filename}: permission denied; this needs root (become: true)")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
