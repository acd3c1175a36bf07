#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: deploy
short_description: Make a host equal to a state document - accounts, folders, files and systemd units
description:
  - Deploys the rows of a state document - accounts, folders, files, units, and what must not exist. Each row belongs to a part, which is what one role
    puts on a host; one task deploys several parts. Where nothing has changed that is a single round trip of checksums.
  - The host keeps a record of the deployed rows, C(/var/lib/dgxspark/deployed.json). The module removes the rows of O(parts) that the record
    has and the new document has not; a row that another part still lists stays. A host without a record has that of its current generation.
  - Everything is checked before anything is written. If O(files[].validate) fails, an owner does not exist or a folder is in the place of
    a file, the host is not changed. All contents are on the disk before the first file is replaced, so a full disk leaves all old files.
  - "The order is: accounts, folders, contents beside their places, stop of units that leave, contents to their places, removal of files,
    O(created) paths and folders that leave, O(removed), units, removal of accounts that leave."
  - An interrupted run is completed by the next one, removals included. A unit is restarted when a file of O(units[].restart_on) was written after it
    was started.
  - Only one run at a time changes a host. The task waits two minutes for another one, then fails and names it.
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  diff_mode:
    support: full
    details:
      - Files with O(files[].secret) are named, never shown.
options:
  part:
    description: The part that rows belong to which name none. Messages begin with it.
    type: str
    default: ''
  parts:
    description: The parts that the task deploys entirely. Their rows of earlier runs that it does not list are removed. By default O(part), the parts of
      O(documents) and those of all rows, except rows without a part, for which V("") stands. An empty list removes nothing, for a task with some rows
      of a part.
    type: list
    elements: str
  state:
    description: V(absent) removes everything that the collection put on the host - all recorded rows, units and programs of earlier versions, caches and the
      records in C(/var/lib/dgxspark). Data of people, the QSFP network, images and weights stay. No rows are given then.
    type: str
    choices: [present, absent]
    default: present
  weights:
    description: With O(state=absent), remove the weights that were downloaded, too. Otherwise they stay with their records, so that a later run can remove
      them.
    type: bool
    default: false
  fabric:
    description: With O(state=absent), remove the relay of the QSFP network and the copies of replaced network files. Not while that network is in place.
    type: bool
    default: false
  documents:
    description: Further documents, mappings with O(part), O(parts) and the kinds of rows of this module. P(dgxspark.vllm.unit_files#lookup) returns one
      for a part.
    type: list
    elements: dict
    default: []
  accounts:
    description: Users and their groups.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The name. A missing user is created, with a group of the same name.
        type: str
        required: true
      home:
        description: The home folder of a system account, which is not created.
        type: path
      shell:
        description: The shell of a system account. Without it, a missing user is a person's, with a home folder.
        type: path
      groups:
        description: Groups that the user belongs to besides the own one.
        type: list
        elements: str
        default: [docker]
      remove:
        description: Remove the account once no part lists it any more and no file or folder of the document belongs to it. Only for system accounts.
        type: bool
        default: false
      part: &part
        description: The part that the row belongs to.
        type: str
        default: ''
  folders:
    description:
      - Folders that have to be there, parents before children.
      - One that is there already keeps its owner, group and mode, unless this module made it or it bears the name of the collection,
        as C(/etc/dgxspark) and all that is in it does.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The folder.
        type: path
        required: true
      holds:
        description: What comes to lie in it. V(cache) and V(weights) are made by what runs there, and may be removed with the folder. A V(shared) one is
          removed when it is empty.
        type: str
        choices: [shared, cache, weights]
        default: shared
      remove:
        description: What happens to the folder once no part lists it any more. V(empty) removes it if it is empty, V(whole) with everything in it, V(never)
          leaves it. A folder that this collection neither made nor named stays in any case.
        type: str
        choices: [empty, whole, never]
        default: empty
      owner: &owner
        description: Its owner.
        type: str
        default: root
      group: &group
        description: Its group.
        type: str
        default: root
      mode:
        description: Its mode, octal in quotes.
        type: str
        default: "0755"
      part: *part
  files:
    description: Files that have to be there, with their whole content.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The file on the host.
        type: path
        required: true
      content:
        description: What is in it. Excludes O(files[].source).
        type: str
      source:
        description: A file of the controller whose bytes are taken; relative ones are looked for in the role's C(files), one of ansible-vault is decrypted.
        type: str
      bundled:
        description: A file of this collection, by its path below the collection's folder, in place of O(files[].source).
        type: str
      owner: *owner
      group: *group
      mode:
        description: Its mode, octal in quotes.
        type: str
        default: "0644"
      secret:
        description: Keep the content out of logs, diffs and results.
        type: bool
        default: false
      device:
        description: A device without which the file must not be there, such as that of a watchdog.
        type: path
      fill:
        description: Values that only the host knows, each in the place of its mark, C(@host:VALUE@). V(port_range) is the range of ports that the kernel
          gives to outgoing connections, as C(FIRST-LAST). V(uid:ACCOUNT) and V(gid:GROUP) are numbers of accounts, V(file:PATH) is the stripped text of
          another file, for O(files[].secret) alone. In check mode, a file counts as changed if the host does not have a value yet.
        type: list
        elements: str
        default: []
      generate:
        description: Length of a random text of letters and digits that the host writes if the file is missing, in place of O(files[].content).
        type: int
        default: 0
      validate:
        description: A program and its arguments, separated by spaces, that has to accept a copy of the file, C(%s), before it is put in place. Not in
          check mode.
        type: str
      digest:
        description: Set by the action plugin; SHA-256 of the content.
        type: str
      data:
        description: Set by the action plugin; the content in base64, once it is known that it is needed.
        type: str
      part: *part
  removed:
    description: Files and folders that must not be there, such as those of earlier versions that no record lists, with all that is in them. A folder that
      this collection neither made nor named stays, with a warning. Each is a path, or a mapping of C(path) and C(part).
    type: list
    elements: raw
    default: []
  created:
    description: Paths that programs of a part create at run time, such as receipts, as in O(removed). They are removed once no part lists them any more.
    type: list
    elements: raw
    default: []
  controller:
    description: Set by the action plugin; who runs this, for those who have to wait.
    type: str
    default: ''
  units:
    description: Units of systemd, in the order in which they are started. They are stopped in the opposite order. A unit that leaves the document is
      stopped and disabled. A service that stays and holds the port of a socket that leaves is restarted first.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The unit with its suffix.
        type: str
        required: true
      state:
        description: Whether it runs. V(triggered) leaves that to what starts it, as sockets do, and stops it where it runs from older files than those
          on the disk.
        type: str
        choices: [started, stopped, triggered]
        default: started
      enabled:
        description: Whether it starts at boot. Left out, that stays as it is.
        type: bool
      restart_on:
        description: Files whose change the unit has to be restarted for. All of O(files) of its part unless given.
        type: list
        elements: path
      outdated:
        description: The unit is known to run from older files, whatever their times say.
        type: bool
        default: false
      defer:
        description: Do not restart the unit but name it in RV(restart_due), for a play that has to do something first.
        type: bool
        default: false
      reload:
        description: Reload the unit where it would be restarted.
        type: bool
        default: false
      reload_on:
        description: Files whose change a running unit takes over by a reload. The next run completes a reload that failed or that was interrupted.
        type: list
        elements: path
        default: []
      prints:
        description: A program of the host with its arguments. A running unit is restarted or reloaded if this prints something else than after the
          last start.
        type: list
        elements: str
        default: []
      printed:
        description: The file of the host in which the output of O(units[].prints) is kept.
        type: path
      clean_up:
        description: A program of the host with its arguments that runs after the unit was stopped because no part lists it any more. It may fail.
        type: list
        elements: str
        default: []
      wait:
        description: Wait until systemd has carried the job out.
        type: bool
        default: true
      part: *part
notes:
  - Needs root, and systemd where O(units) are given.
"""

EXAMPLES = r"""
- name: Watch the model servers
  dgxspark.vllm.deploy:
    part: watchdog
    folders:
      - path: /etc/dgxspark/agent
    files:
      - path: /etc/dgxspark/agent/watchdog.json
        content: "{{ settings | to_nice_json }}\n"
      - path: /usr/local/libexec/dgxspark/spark_agent.py
        source: spark_agent.py
      - path: /etc/systemd/system/spark-agent.service
        content: "{{ lookup('ansible.builtin.template', 'spark-agent.service.j2') }}"
        validate: systemd-analyze verify %s
    units:
      - name: spark-agent.service
        enabled: true
  become: true

- name: Remove the watchdog
  dgxspark.vllm.deploy:
    parts: [watchdog]
  become: true
"""

RETURN = r"""
joined:
  description: People who were added to the group docker, or would be. Their sessions have the group from the next login on.
  returned: success
  type: list
  elements: str
written:
  description: Files whose content was written, or would be in check mode.
  returned: success
  type: list
  sample: [/etc/dgxspark/agent/watchdog.json]
removed:
  description: What was removed, or would be.
  returned: success
  type: list
  elements: str
left:
  description: Paths that stay with O(state=absent), each with C(path) and C(why).
  returned: with O(state=absent)
  type: list
  sample: [{"path": "/srv/huggingface", "why": "not empty: mine"}]
freed_bytes:
  description: Bytes of the weights that were removed, or would be.
  returned: with O(state=absent)
  type: int
started:
  description: Units that were started, or would be.
  returned: success
  type: list
  sample: [spark-agent.service]
restarted:
  description: Units that were restarted, or would be.
  returned: success
  type: list
  elements: str
reloaded:
  description: Units that were reloaded, or would be.
  returned: success
  type: list
  elements: str
stopped:
  description: Units that were stopped, or would be.
  returned: success
  type: list
  elements: str
restart_due:
  description: Units with O(units[].defer) that run from older files than those on the disk.
  returned: success
  type: list
  elements: str
enabled:
  description: Units that were enabled, or would be.
  returned: success
  type: list
  elements: str
disabled:
  description: Units that were disabled, or would be.
  returned: success
  type: list
  elements: str
starting:
  description: Units that were starting already, from the files that are on the disk; whoever wants them has to wait.
  returned: success
  type: list
  elements: str
"""

from dataclasses import MISSING, fields
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import (
    deploy,
    deployed,
    host_lock,
    made,
    reset,
    staging,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.deployment import Deployment, Refused
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import (
    Account,
    Folder,
    HostFile,
    HostState,
    Unit,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.module_tools import tools_of
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command

PATHS = ("path", "home", "shell", "device", "restart_on", "reload_on", "printed")
CHOICES = {
    (Folder, "holds"): list(made.KINDS),
    (Folder, "remove"): ["empty", "whole", "never"],
    (Unit, "state"): ["started", "stopped", "triggered"],
}
NO_LOG = {"secret": False, "data": True}


def rows(kind: type[Any], **more: Any) -> dict[str, Any]:
    """Return the option of one kind of rows, by the fields of its class."""
    options = {}
    for field in fields(kind):
        base, is_list = str(field.type).partition(" ")[0], str(field.type).startswith("tuple")
        name = "path" if field.name in PATHS else "str" if is_list else base
        option: dict[str, Any] = {"type": "list", "elements": name} if is_list else {"type": name}
        if field.default is MISSING:
            option["required"] = True
        elif field.default is not None:
            option["default"] = list(field.default) if is_list else field.default
        if (kind, field.name) in CHOICES:
            option["choices"] = CHOICES[kind, field.name]
        if field.name in NO_LOG:
            option["no_log"] = NO_LOG[field.name]
        options[field.name] = option
    return {"type": "list", "elements": "dict", "default": [], "options": options, **more}


ARGUMENTS: dict[str, Any] = {
    "part": {"type": "str", "default": ""},
    "parts": {"type": "list", "elements": "str"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "weights": {"type": "bool", "default": False},
    "fabric": {"type": "bool", "default": False},
    "documents": {"type": "list", "elements": "dict", "default": []},
    "accounts": rows(Account),
    "folders": rows(Folder),
    "files": rows(HostFile, mutually_exclusive=[("content", "source", "bundled")]),
    "created": {"type": "list", "elements": "raw", "default": []},
    "removed": {"type": "list", "elements": "raw", "default": []},
    "controller": {"type": "str", "default": ""},
    "units": rows(Unit),
}


def run(module: AnsibleModule) -> dict[str, Any]:
    """Deploy the document while the host is locked; returns the results."""
    params = module.params
    state = HostState.from_dict(params, params["part"])
    parts = params["parts"]
    if parts is None:
        parts = sorted({params["part"], *state.parts()} - {""})
    deploy.check(state)
    with host_lock.held(module) as locked, host_lock.noted(params["controller"], locked) as noted:
        before = deployed.load(warn=module.warn)
        if params["state"] == "absent":
            job = reset.everything(before, tools_of(module), params["fabric"])
        else:
            job = Deployment(state, tools_of(module), parts, before)
        try:
            if locked:
                staging.sweep(more=job.file_folders())
            result = deploy.deploy(job)
            if params["state"] == "absent":
                result |= reset.remove_rest(job, params["weights"], params["fabric"])
        finally:
            noted["changed"] = job.changed
    return {"changed": job.changed, "removed": job.removed, "diff": job.diffs, **result}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    part = f"{module.params['part']}: " if module.params["part"] else ""
    try:
        with command.failing(module):
            result = run(module)
    except Refused as refused:
        module.fail_json(msg=str(refused), log=refused.log)
    except ValueError as error:
        module.fail_json(msg=f"{part}{error}")
    except PermissionError as error:
        module.fail_json(msg=f"{part}{error.filename}: permission denied; this needs root (become: true)")
    except OSError as error:
        module.fail_json(
            msg=f"{part}{error.filename}: {error.strerror}. Run again once that is mended; what is done already is not done twice"
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
