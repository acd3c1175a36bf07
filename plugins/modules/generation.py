#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: generation
short_description: Keep the states of a host as numbered generations, and restore one
version_added: 0.1.0
description:
  - A generation is the state of a host at the end of a run, with its settings, programs, units, receipts, the ids of its images and the
    commits of its models. The files are stored beside it by checksum, readable by root only.
  - Keys are not part of it. A rollback keeps the key files as they are and names those that changed since. Those of a removed service are
    removed when the state without it is recorded as proven.
  - Only one run at a time changes a host, and a state that two controllers made together is not recorded.
  - Nothing is downloaded. Images of generations get an additional name, so that C(docker image prune) keeps them.
options:
  action:
    description:
      - V(record) makes a new generation when the host is not what the current one says, and nothing else when it is.
      - V(confirm) notes O(facts) in the current generation, with which it was proved again, where it is proven and the host still is what
        it says. No generation is made, and none becomes proven.
      - V(look) says what there is, whether the host still is what its generation says, and what going back would do.
      - V(compare) says in what the host differs from its current generation, file by file, and which files of O(models) are not
        as they should be. M(dgxspark.vllm.drift) judges it. Nothing is written, and no content of a file is returned.
      - V(up_to_date) says whether site.yml would find nothing to do - the host was proved as what O(plan) and O(addons) want, and still is
        that, file by file, with its units active, its images and folders there, and its weights whole. Files of weights that were
        touched are hashed, as M(dgxspark.vllm.model_snapshot) does. With O(prove) the services of such a host are proved too. In a run with
        tags only what these apply is compared; tags that are not judged leave RV(up_to_date) V(false), and the host is not asked.
      - V(restore) brings a generation back, once it is known that its images and weights are there.
      - V(forget) removes all generations and the names that they gave to images.
    type: str
    choices: [record, confirm, look, compare, up_to_date, restore, forget]
    required: true
  proven:
    description:
      - With O(action=record), whether the services were proved in this run. Left out, they were not tried; a generation that is
        proven already stays so as long as the host is the same.
    type: bool
  reason:
    description:
      - With O(action=record), why it was not proven.
    type: str
    default: ''
  plan:
    description:
      - With O(action=record) and O(action=up_to_date), the host's part of RV(dgxspark.vllm.plan#module:hosts). A restored generation is proved by its services.
        Left out, they are what the receipts say.
    type: dict
  addons:
    description:
      - With O(action=record) and O(action=up_to_date), the host's part of RV(dgxspark.vllm.plan#module:addons).
    type: dict
  facts:
    description:
      - With O(action=record), O(action=confirm) and O(action=up_to_date), RV(dgxspark.vllm.spark_info#module:spark), of which the action plugin
        sends kernel, driver and DGX OS.
    type: dict
    default: {}
  prove:
    description:
      - With O(action=up_to_date), prove the services of O(plan) right away where there is nothing to apply, as M(dgxspark.vllm.service_proof)
        does, with their receipts. One that does not answer soon, a finding that is an error, and a service on demand that would have
        to be started leave RV(proved) V(false), and nothing else - the whole proof says why. Never in check mode.
    type: bool
    default: false
  proof:
    description:
      - Set by the action plugin; the options of M(dgxspark.vllm.service_proof), with O(prove).
    type: dict
  models:
    description:
      - With O(action=compare), the models of the host's part of RV(dgxspark.vllm.plan#module:hosts). Sizes of files are compared, none is
        read. With O(action=up_to_date) the action plugin sets it; one that comes from the controller has the size and time of its files there.
    type: list
    elements: dict
    default: []
  services:
    description:
      - Set by the action plugin; of the planned services what is kept.
    type: list
    elements: dict
  settings:
    description:
      - Set by the action plugin; the settings of the host's plan.
    type: dict
    default: {}
  wanted:
    description:
      - Set by the action plugin; a mark of all that the host was to be, by which M(dgxspark.vllm.rollout) sees whom it can leave out.
    type: str
    default: ''
  parts:
    description:
      - Set by the action plugin. With O(action=record), sums of what the tags of this run have put on the host. With O(action=up_to_date) in a run
        with tags, of all that they apply, by tag; nothing else is compared then.
    type: dict
  others:
    description:
      - Set by the action plugin; with O(action=up_to_date) in a run with tags, files and folders that these have nothing to do with.
    type: list
    elements: str
    default: []
  lacking:
    description:
      - With O(action=up_to_date), RV(dgxspark.vllm.plan#module:lacking). A host that has what others of the run lack may have to hand it on, so that
        none is up to date then. Read on the controller.
    type: dict
    default: {}
  looked:
    description:
      - With O(action=up_to_date), RV(dgxspark.vllm.spark_info#module:images). Read on the controller.
    type: dict
    default: {}
  files:
    description:
      - Set by the action plugin; with O(action=up_to_date), files that lie outside of what a generation keeps, with their sums, owners and
        modes.
    type: list
    elements: dict
    default: []
  folders:
    description:
      - Set by the action plugin; with O(action=up_to_date), folders that have to be there.
    type: list
    elements: dict
    default: []
  differs:
    description:
      - Set by the action plugin; with O(action=up_to_date), why there is something to apply, as far as the controller knows.
    type: list
    elements: str
    default: []
  images:
    description:
      - Set by the action plugin; with O(action=up_to_date), images that are made on the host or come from a bundle, each with the names by
        any of which it may be there.
    type: list
    elements: list
    default: []
  bundled:
    description:
      - Set by the action plugin; with O(action=up_to_date), what the bundle has of the models of the host.
    type: list
    elements: dict
    default: []
  network:
    description:
      - With O(action=up_to_date), for a host of a cluster, C(fabric) of its cluster in RV(dgxspark.vllm.plan#module:clusters). The file of the
        role fabric is compared, ufw is asked, and packets that fill the MTU are sent on each rail. The action plugin sends what concerns the host.
    type: dict
    default: {}
  servers:
    description:
      - Set by the action plugin; with O(action=up_to_date), speech servers and Ollama, of which each has to give a real answer.
        They are not asked in check mode.
    type: list
    elements: dict
    default: []
  firewall:
    description:
      - Set by the action plugin; with O(action=up_to_date), V(absent) where nothing may be left of the role firewall.
    type: str
    default: ''
  ephemeral:
    description:
      - Set by the action plugin; with O(action=up_to_date), whether the table of the firewall closes the ephemeral ports of the kernel.
    type: bool
    default: false
  baseline:
    description:
      - With O(action=look), record what runs when the host has services but no generation yet. It counts as proven when every
        service has a receipt and its unit is active.
    type: bool
    default: false
  keep:
    description:
      - How many generations are kept. The current one and the proven one before it are kept in any case. Images that this collection
        brought and that only removed generations name go with them; weights never do.
    type: int
    default: 5
  generation:
    description:
      - The generation that is meant; the last proven one before the present state when 0.
    type: int
    default: 0
  hf_home:
    description:
      - Folder of weights.
    type: path
    default: /srv/huggingface
  root:
    description:
      - Where the host's files are; for tests.
    type: path
    default: /
  controller:
    description:
      - Set by the action plugin; who runs this, for those who have to wait.
    type: str
    default: ''
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  diff_mode:
    support: partial
    details:
      - Receipts of O(prove) are shown. RV(steps) names what would change; contents are never shown, secrets are among them.
notes:
  - Needs root.
seealso:
  - module: dgxspark.vllm.rollout
  - module: dgxspark.vllm.drift
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Record the generation
  dgxspark.vllm.generation:
    action: record
    proven: true
    plan: "{{ spark_plan }}"
  become: true

- name: Record the proof with the current kernel and driver
  dgxspark.vllm.generation:
    action: confirm
    facts: "{{ spark_measured.spark }}"
  become: true

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
  sample: true
running:
  description: Whether all units of the current generation that start at boot are active.
  returned: when O(action=look)
  type: bool
  sample: true
up_to_date:
  description: Whether there is nothing to apply.
  returned: when O(action=up_to_date)
  type: bool
  sample: true
why:
  description: Why it is not.
  returned: when O(action=up_to_date)
  type: list
  elements: str
  sample: ["generation 3 is not proven"]
proved:
  description: Whether all services of an up-to-date host answered, were found as they are to be, and have their receipts.
  returned: when O(action=up_to_date)
  type: bool
  sample: true
unproved:
  description: Why they were not proved.
  returned: with O(prove), when RV(up_to_date) and not RV(proved)
  type: str
  sample: "heavy at http://127.0.0.1:8001 is not ready"
answers:
  description: As RV(dgxspark.vllm.service_proof#module:answers).
  returned: when RV(proved)
  type: dict
  sample: {"heavy": {"ready": true, "stage": "completion", "decode_tokens_per_second": 41.5}}
generations:
  description: All generations that are kept, by number.
  returned: success
  type: list
  elements: dict
safe:
  description: The nearest proven generation, the current one first; what a run that fails goes back to. Null without one.
  returned: when O(action=look)
  type: int
  sample: 3
target:
  description: The generation that O(generation) means; null without one.
  returned: when O(action=look) or O(action=restore)
  type: int
  sample: 2
problems:
  description: Why it cannot be restored. Images and weights that are missing are named.
  returned: when O(action=look)
  type: list
  elements: str
  sample: []
key_changes:
  description: Which key files are others than at the time of the target; they stay as they are.
  returned: when O(action=look) or O(action=restore)
  type: list
  elements: str
  sample: ["/etc/dgxspark/secrets/heavy/VLLM_API_KEY changed since generation 2; it stays as it is now"]
steps:
  description: What restoring it changes, or changed.
  returned: when O(action=look) or O(action=restore)
  type: list
  elements: str
  sample: ["writes /etc/dgxspark/env/heavy.env", "restarts spark-heavy.service"]
touched:
  description: Units that restoring it starts, restarts or stops.
  returned: when O(action=look) or O(action=restore)
  type: list
  elements: str
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
  description: Model and measurement of each service, by the receipts on the host; with O(action=compare) what is deployed.
  returned: when O(action=look) or O(action=compare)
  type: dict
recorded:
  description:
    - With O(action=record), whether a new generation was made.
    - With O(action=compare), what the current generation says beside its files, null without one.
  returned: when O(action=record) or O(action=compare)
  type: raw
  sample: false
files:
  description: The files that are not what the current generation has, by what is different. Names alone, secrets are among them.
  returned: when O(action=compare)
  type: dict
  sample: {"changed": ["/etc/dgxspark/env/heavy.env"], "missing": [], "added": [], "attributes": []}
units:
  description: Whether each unit starts at boot, and its state.
  returned: when O(action=compare)
  type: dict
  sample: {"spark-heavy.service": {"enabled": true, "active": "active"}}
moved:
  description: Models whose revision stands for another commit by now, with C(repo), C(revision), C(was) and C(is), by service.
  returned: when O(action=compare)
  type: dict
  sample: {}
models:
  description:
    - What is wrong with O(models), with C(repo), C(revision), C(commit), C(there) and C(wrong).
    - A vocabulary has C(path) and C(is_vocabulary) instead of C(repo).
  returned: when O(action=compare)
  type: list
  elements: dict
  sample: [{"repo": "Qwen/Qwen3-8B", "revision": "main", "commit": "0123abc", "there": true, "wrong": ["config.json is missing"]}]
removed:
  description: Numbers of generations that were removed, and names of images.
  returned: when O(action=record)
  type: list
  elements: str
  sample: []
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import (
    generation_asks,
    generation_looks,
    generation_records,
    generation_restore,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import generations as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.generation_host import Host, Refused
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_lock, staging
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import host_proof
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command

CHANGING = ("record", "confirm", "restore", "forget")


def carry_out(host: Host, action: str) -> dict[str, Any]:
    """Return the result of an action."""
    if action == "record":
        return host.answer(**generation_records.record(host, host.params["proven"]))
    if action == "confirm":
        return host.answer(changed=generation_records.confirm(host))
    if action == "look":
        if host.params["baseline"]:
            generation_records.baseline(host)
        return host.answer(changed=False, **generation_looks.look(host))
    if action == "compare":
        return {"changed": False, **generation_looks.compare(host)}
    if action == "up_to_date":
        why = generation_looks.up_to_date(host)
        return {"changed": False, "up_to_date": not why, "why": why, "proved": False}
    if action == "restore":
        found = generation_restore.restore(host)
        host.state = host.state if host.check else host.read_state()
        return host.answer(**found)
    return {"changed": generation_records.forget(host)}


def act(module: AnsibleModule) -> dict[str, Any]:
    """Carry out what is asked for, alone on the host where it changes something; returns the result."""

    def found() -> Host:
        return Host(module.params, command.runner(module), module.check_mode, module.warn)

    action = module.params["action"]
    changing = action in CHANGING or (action == "look" and module.params["baseline"])
    if not changing and action != "up_to_date":
        return carry_out(found(), action)
    with host_lock.held(module) as locked, host_lock.noted(module.params["controller"], locked) as run:
        if locked:
            staging.sweep(Path(module.params["root"]))
        host = found()
        if changing and locked:
            generation_records.scrub(host)
        # One that fails half-way has changed something too.
        run["changed"] = locked and action in ("restore", "forget")
        result = carry_out(host, action)
        run["changed"] = action in ("restore", "forget") and result["changed"]
    return result


def ask(module: AnsibleModule) -> dict[str, Any]:
    """Ask what no file shows of a host that is up to date by its files; who waits for the host need not wait for that."""
    why = generation_asks.answers(command.reader(), Path(module.params["root"]), module.params, module.check_mode)
    return {"up_to_date": not why, "why": why}


def prove(module: AnsibleModule) -> dict[str, Any]:
    """Prove the services of a host that is up to date, as the action plugin says it; who waits for the host need not wait for that."""
    checked = ArgumentSpecValidator(host_proof.ARGUMENTS).validate(module.params["proof"])
    if checked.error_messages:
        module.fail_json(msg=f"proof: {'; '.join(checked.error_messages)}")
    return host_proof.prove_at_once(module, host_proof.Task.read(checked.validated_parameters))


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "action": {
                "type": "str",
                "choices": ["record", "confirm", "look", "compare", "up_to_date", "restore", "forget"],
                "required": True,
            },
            "proven": {"type": "bool"},
            "reason": {"type": "str", "default": ""},
            "plan": {"type": "dict"},
            "addons": {"type": "dict"},
            "facts": {"type": "dict", "default": {}},
            "prove": {"type": "bool", "default": False},
            "proof": {"type": "dict"},
            "models": {"type": "list", "elements": "dict", "default": []},
            "services": {"type": "list", "elements": "dict"},
            "settings": {"type": "dict", "default": {}},
            "wanted": {"type": "str", "default": ""},
            "parts": {"type": "dict"},
            "others": {"type": "list", "elements": "str", "default": []},
            "lacking": {"type": "dict", "default": {}},
            "looked": {"type": "dict", "default": {}},
            "files": {"type": "list", "elements": "dict", "default": []},
            "folders": {"type": "list", "elements": "dict", "default": []},
            "differs": {"type": "list", "elements": "str", "default": []},
            "images": {"type": "list", "elements": "list", "default": []},
            "bundled": {"type": "list", "elements": "dict", "default": []},
            "network": {"type": "dict", "default": {}},
            "servers": {"type": "list", "elements": "dict", "default": []},
            "firewall": {"type": "str", "default": ""},
            "ephemeral": {"type": "bool", "default": False},
            "baseline": {"type": "bool", "default": False},
            "keep": {"type": "int", "default": engine.KEEP},
            "generation": {"type": "int", "default": 0},
            "hf_home": {"type": "path", "default": "/srv/huggingface"},
            "root": {"type": "path", "default": "/"},
            "controller": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    try:
        result = act(module)
        if result.get("up_to_date"):
            result.update(ask(module))
        if result.get("up_to_date") and module.params["prove"] and module.params["proof"] and not module.check_mode:
            result.update(prove(module))
    except Refused as refused:
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
