#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: generation
short_description: Keep the states of a host as numbered generations, and restore one
description:
  - A generation is the state of a host at the end of a run, with its settings, programs, units, receipts, the ids of its images and the
    commits of its models. The files are stored beside it by checksum, readable by root only.
  - Keys are not part of it. A rollback keeps the key files as they are and names those that changed since.
  - Only one run at a time changes a host, and a state that two controllers made together is not recorded. Nothing is downloaded. Images of generations
    get an additional name, so that C(docker image prune) keeps them.
options:
  action:
    description: V(record) makes a new generation when the host is not what the current one says. V(confirm) notes O(facts) in the current generation, where
      it is proven and the host still is what it says. V(look) says what there is, whether the host still is what its generation says, and what going back
      would do. V(restore) brings a generation back, once it is known that its images and weights are there. V(forget) removes all generations and the names
      that they gave to images.
    type: str
    choices: [record, confirm, look, restore, forget]
    required: true
  proven:
    description: With O(action=record), whether the services were proved in this run. Left out, they were not tried; a generation that is
      proven already stays so as long as the host is the same.
    type: bool
  reason:
    description: With O(action=record), why it was not proven.
    type: str
    default: ''
  plan:
    description: With O(action=record), the host's part of RV(dgxspark.vllm.plan#module:hosts). A restored generation is proved by its services.
      Left out, they are what the receipts say.
    type: dict
  addons:
    description: With O(action=record), the host's part of RV(dgxspark.vllm.plan#module:addons).
    type: dict
  facts:
    description: With O(action=record) and O(action=confirm), RV(dgxspark.vllm.spark_info#module:spark), of which kernel, driver and DGX OS are sent.
    type: dict
    default: {}
  gather:
    description: With O(action=record), options of M(dgxspark.vllm.spark_info). The facts are gathered after the record, and kept on the controller for the
      next run. Left out, none are gathered.
    type: dict
    default: {}
  services:
    description: Set by the action plugin; of the planned services what is kept.
    type: list
    elements: dict
  settings:
    description: Set by the action plugin; the settings of the host's plan.
    type: dict
    default: {}
  wanted:
    description: Set by the action plugin; a mark of all that the host was to be, by which M(dgxspark.vllm.rollout) sees whom it can leave out.
    type: str
    default: ''
  baseline:
    description: With O(action=look), record what runs when the host has services but no generation yet. It counts as proven when every
      service has a receipt and its unit is active.
    type: bool
    default: false
  keep:
    description: How many generations are kept, the current one and the proven one before it in any case. Images that this collection brought and that only
      removed generations name go with them; weights never do.
    type: int
    default: 5
  generation:
    description: The generation that is meant; the last proven one before the present state when 0.
    type: int
    default: 0
  hf_home:
    description: Folder of weights.
    type: path
    default: /srv/huggingface
  root:
    description: Where the host's files are; for tests.
    type: path
    default: /
  controller:
    description: Set by the action plugin; who runs this, for those who have to wait.
    type: str
    default: ''
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  diff_mode:
    support: partial
    details:
      - RV(steps) names what would change; contents are never shown, secrets are among them.
notes:
  - Needs root.
"""

EXAMPLES = r"""
- name: Show what a rollback would change
  dgxspark.vllm.generation:
    action: look
  become: true
  register: before

- name: Go back
  dgxspark.vllm.generation:
    action: restore
    generation: "{{ before.target }}"
  become: true
"""

RETURN = r"""
current:
  description: The generation that the host is, or was last; null without one. With what runs of each service.
  returned: success
  type: dict
  sample: {"number": 3, "parent": 2, "proven": true, "services": {"heavy": {"image": "vllm/vllm-openai:v0.24.0", "commit": "0123abc"}}}
same:
  description: Whether the host still is what the current generation says.
  returned: success
  type: bool
running:
  description: Whether all units of the current generation that start at boot are active.
  returned: when O(action=look)
  type: bool
generations:
  description: All generations that are kept, by number.
  returned: success
  type: list
  elements: dict
safe:
  description: The nearest proven generation, the current one first; what a run that fails goes back to. Null without one.
  returned: when O(action=look)
  type: int
target:
  description: The generation that O(generation) means; null without one.
  returned: when O(action=look) or O(action=restore)
  type: int
problems:
  description: Why it cannot be restored. Images and weights that are missing are named.
  returned: when O(action=look)
  type: list
  elements: str
key_changes:
  description: Which key files are others than at the time of the target; they stay as they are.
  returned: when O(action=look) or O(action=restore)
  type: list
  sample: ["/etc/dgxspark/secrets/heavy/VLLM_API_KEY changed since generation 2; it stays unchanged"]
steps:
  description: What restoring it changes, or changed.
  returned: when O(action=look) or O(action=restore)
  type: list
  sample: ["writes /etc/dgxspark/env/heavy.env", "restarts spark-heavy.service"]
touched:
  description: Units that restoring it starts, restarts or stops.
  returned: when O(action=look) or O(action=restore)
  type: list
  sample: [spark-heavy.service]
gateways:
  description: The gateways' names of the services that restoring it touches, each with C(name), C(host) and C(backend).
  returned: when O(action=look)
  type: list
  elements: dict
clusters:
  description: The hosts of each cluster that the present and the target generation have a part of.
  returned: when O(action=look)
  type: dict
plan:
  description: What the services of the target are proved by, C(services) and C(settings).
  returned: when O(action=look) or O(action=restore)
  type: dict
receipts:
  description: Model and measurement of each service, by the receipts on the host.
  returned: when O(action=look)
  type: dict
recorded:
  description: Whether a new generation was made.
  returned: when O(action=record)
  type: bool
removed:
  description: Numbers of generations that were removed, and names of images.
  returned: when O(action=record)
  type: list
  elements: str
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import (
    generation_records,
    generation_restore,
    generations,
    host_report,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.generation_host import Host, Refused
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_lock, staging
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import BadRequest
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.module_tools import tools_of
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import Unknown

CHANGING = ("record", "confirm", "restore", "forget")
ARGUMENTS: dict[str, Any] = {
    "action": {"type": "str", "choices": ["record", "confirm", "look", "restore", "forget"], "required": True},
    "proven": {"type": "bool"},
    "reason": {"type": "str", "default": ""},
    "plan": {"type": "dict"},
    "addons": {"type": "dict"},
    "facts": {"type": "dict", "default": {}},
    "gather": {"type": "dict", "default": {}},
    "services": {"type": "list", "elements": "dict"},
    "settings": {"type": "dict", "default": {}},
    "wanted": {"type": "str", "default": ""},
    "baseline": {"type": "bool", "default": False},
    "keep": {"type": "int", "default": generations.KEEP},
    "generation": {"type": "int", "default": 0},
    "hf_home": {"type": "path", "default": "/srv/huggingface"},
    "root": {"type": "path", "default": "/"},
    "controller": {"type": "str", "default": ""},
}


def read_host(module: AnsibleModule) -> Host:
    """Return the host that the module runs on. Raises Refused where systemd does not say what runs."""
    host = Host(module.params, command.runner(module), module.check_mode, module.warn)
    if host.systemd_silent:
        raise Refused(host.systemd_silent)
    return host


def carry_out(module: AnsibleModule, host: Host) -> dict[str, Any]:
    """Return the result of the action."""
    action = module.params["action"]
    if action == "record":
        return generation_restore.report(host, **generation_records.record(host, host.params["proven"]))
    if action == "confirm":
        return generation_restore.report(host, changed=generation_records.confirm(host))
    if action == "look":
        if host.params["baseline"]:
            generation_records.baseline(host)
        return generation_restore.report(host, changed=False, **generation_restore.look(host))
    if action == "restore":
        result = generation_restore.restore(host, tools_of(module))
        return generation_restore.report(read_host(module), **result)
    return {"changed": generation_records.forget(host)}


def act(module: AnsibleModule) -> dict[str, Any]:
    """Carry out the action and return the result; a changing action locks the host."""
    action = module.params["action"]
    changing = action in CHANGING or (action == "look" and module.params["baseline"])
    if not changing:
        return carry_out(module, read_host(module))
    with host_lock.held(module) as locked, host_lock.noted(module.params["controller"], locked) as run:
        if locked:
            staging.sweep(Path(module.params["root"]))
        host = read_host(module)
        # A failed action may have changed the host.
        run["changed"] = locked and action in ("restore", "forget")
        result = carry_out(module, host)
        run["changed"] = action in ("restore", "forget") and result["changed"]
    return result


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = act(module)
        if module.params["gather"]:
            # Another run need not wait for these.
            result.update(
                host_report.report_host(module, host_report.options_of(module, ArgumentSpecValidator, "gather"))
            )
    except (BadRequest, Unknown, Refused) as refused:
        module.fail_json(msg=str(refused))
    except PermissionError as error:
        module.fail_json(msg=f"{error.filename}: permission denied; this needs root (become: true)")
    except OSError as error:
        module.fail_json(
            msg=f"{error.filename}: {error.strerror}. Run again once that is mended; what is done already is not done twice"
        )
    else:
        module.exit_json(**result)


if __name__ == "__main__":
    main()
