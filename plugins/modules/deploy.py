#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: deploy
short_description: Make a host equal to a state document - accounts, folders, files and systemd units
version_added: 0.1.0
description:
  - Deploys the rows of a state document - accounts, folders, files, units, and what must not exist. Each row belongs to a part, which is
    what one role puts on a host; one task deploys several parts. On a host where nothing has changed that is a single round trip, in which
    no content travels but only checksums.
  - Everything is checked before anything is written. If O(files[].validate) fails, an owner does not exist or a folder is in the place of
    a file, the host is not changed.
  - "The order is: accounts, folders, contents beside their places, removal of O(instances) and of units with the state V(absent), contents
    to their places, O(purge), O(removed), units."
  - All contents are on the disk before the first of the O(files) is replaced. So a full disk leaves all old files in place, and a unit
    that restarts by itself never finds a mixture.
  - A unit is restarted when a file of O(units[].restart_on) was written after the unit was started. So the next run completes a play
    that was interrupted between the two.
  - Only one run at a time changes a host. The task waits two minutes for another one, then fails and names it. Temporary files of killed
    runs are removed first.
author:
  - dgxspark.vllm contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  diff_mode:
    support: full
    details:
      - Files with O(files[].secret) are named, never shown.
options:
  part:
    description:
      - The part that rows belong to which name none. Messages begin with it.
    type: str
    default: ''
  documents:
    description:
      - Further documents, mappings with O(part) and the kinds of rows of this module. P(dgxspark.vllm.unit_files#lookup) returns one for a
        part.
    type: list
    elements: dict
    default: []
  accounts:
    description:
      - Users that belong to the group docker.
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
      part:
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
        description:
          - What comes to lie in it. V(cache) and V(weights) are made by what runs there, and may be removed with the folder where this
            module made it. A V(shared) one is removed when it is empty.
        type: str
        choices: [shared, cache, weights]
        default: shared
      owner:
        description: Its owner.
        type: str
        default: root
      group:
        description: Its group.
        type: str
        default: root
      mode:
        description: Its mode, octal in quotes.
        type: str
        default: "0755"
      part:
        description: The part that the row belongs to.
        type: str
        default: ''
  files:
    description:
      - Files that have to be there, with their whole content.
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
        description:
          - A file of the controller whose bytes are taken as they are; relative ones are looked for in the role's C(files).
            One that ansible-vault encrypted is decrypted.
        type: str
      bundled:
        description: A file of this collection, by its path below the collection's folder, in place of O(files[].source).
        type: str
      owner:
        description: Its owner.
        type: str
        default: root
      group:
        description: Its group.
        type: str
        default: root
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
      port_range:
        description:
          - A text in the content that stands for the range of ports that the kernel gives to outgoing connections. The host replaces it
            by C(FIRST-LAST).
        type: str
      validate:
        description:
          - A program and its arguments, separated by spaces, that has to accept the file before it is put in place; C(%s) is a
            copy of it by the same name. Files that have not changed are not asked about; in check mode none is.
        type: str
      digest:
        description: Set by the action plugin; SHA-256 of the content.
        type: str
      data:
        description: Set by the action plugin; the content in base64, once it is known that it is needed.
        type: str
      part:
        description: The part that the row belongs to.
        type: str
        default: ''
  removed:
    description:
      - Files and folders that must not be there, such as those of earlier versions. Folders go with all that is in them.
      - A folder that this collection neither made nor named stays, with a warning.
      - Each is a path, or a mapping of C(path) and C(part).
    type: list
    elements: raw
    default: []
  purge:
    description:
      - Folders in which nothing but O(files) may lie.
    type: list
    elements: dict
    default: []
    suboptions:
      folder:
        description: The folder. Folders below it are looked through as well.
        type: path
        required: true
      pattern:
        description: Only files whose names match this are meant.
        type: str
        default: "*"
      part:
        description: The part that the row belongs to.
        type: str
        default: ''
  instances:
    description:
      - For components of which a host has several by the same pattern. Those that are there and not in O(instances[].keep) are
        stopped and removed before anything else happens. Each entry is one such pattern.
    type: list
    elements: dict
    default: []
    suboptions:
      marker:
        description: A pattern of files, one for each instance; the part that C(*) stands for is its name.
        type: str
        required: true
      keep:
        description: Names that stay.
        type: list
        elements: str
        default: []
      units:
        description: The units of an instance, with C({name}) in them.
        type: list
        elements: str
        default: []
      paths:
        description: What belongs to an instance beside its marker and the files of its units, with C({name}) in it.
        type: list
        elements: str
        default: []
      part:
        description: The part that the row belongs to.
        type: str
        default: ''
  controller:
    description: Set by the action plugin; who runs this, for those who have to wait.
    type: str
    default: ''
  units:
    description:
      - Units of systemd, in the order in which they are started. They are stopped in the opposite order.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The unit with its suffix.
        type: str
        required: true
      state:
        description:
          - Whether it runs. V(triggered) leaves that to what starts it, as sockets do, and stops it where it runs from older files than those
            on the disk. V(absent) stops and disables it, and removes its file.
        type: str
        choices: [started, stopped, triggered, absent]
        default: started
      enabled:
        description: Whether it starts at boot. Left out, that stays as it is.
        type: bool
      restart_on:
        description:
          - Files whose change the unit has to be restarted for. All of O(files) of its part unless given.
        type: list
        elements: path
      outdated:
        description: The unit is known to run from older files, whatever their times say.
        type: bool
        default: false
      defer:
        description:
          - Do not restart the unit but name it in RV(restart_due), for a play that has to do something first.
        type: bool
        default: false
      reload:
        description: Reload the unit where it would be restarted.
        type: bool
        default: false
      reload_on:
        description:
          - Files whose change a running unit takes over by a reload. The next run completes a reload that failed or that was interrupted.
        type: list
        elements: path
        default: []
      prints:
        description:
          - A program of the host with its arguments. A running unit is restarted or reloaded if this prints something else than after the
            last start, such as a table of the kernel that somebody has changed.
        type: list
        elements: str
        default: []
      printed:
        description: The file of the host in which the output of O(units[].prints) is kept.
        type: path
      wait:
        description: Wait until systemd has carried the job out.
        type: bool
        default: true
      part:
        description: The part that the row belongs to.
        type: str
        default: ''
notes:
  - Needs root, and systemd where O(units) are given.
"""

EXAMPLES = r"""
- name: Watch the model servers
  dgxspark.vllm.deploy:
    part: watchdog
    folders:
      - path: /etc/dgxspark/watchdog
    files:
      - path: /etc/dgxspark/watchdog/settings.json
        content: "{{ settings | to_nice_json }}\n"
      - path: /usr/local/libexec/dgxspark/spark_watchdog.py
        source: spark_watchdog.py
      - path: /etc/systemd/system/spark-watchdog.service
        content: "{{ lookup('ansible.builtin.template', 'spark-watchdog.service.j2') }}"
        validate: systemd-analyze verify %s
    units:
      - name: spark-watchdog.service
        enabled: true
  become: true

- name: Remove the watchdog
  dgxspark.vllm.deploy:
    part: watchdog
    removed: [/etc/dgxspark/watchdog, /usr/local/libexec/dgxspark/spark_watchdog.py]
    units:
      - name: spark-watchdog.service
        state: absent
  become: true

- name: Deploy two parts in one task
  dgxspark.vllm.deploy:
    documents:
      - "{{ lookup('dgxspark.vllm.unit_files', 'watchdog', planned=watchdog_settings) }}"
      - "{{ lookup('dgxspark.vllm.unit_files', 'guard', planned=guard_settings) }}"
  become: true
"""

RETURN = r"""
joined:
  description: People who were added to the group docker, or would be. Their sessions have the group from the next login on.
  returned: success
  type: list
  elements: str
  sample: []
written:
  description: Files whose content was written, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [/etc/dgxspark/watchdog/settings.json]
removed:
  description: What was removed, or would be.
  returned: success
  type: list
  elements: str
  sample: []
instances_removed:
  description: Names of the O(instances) that were removed, or would be.
  returned: success
  type: list
  elements: str
  sample: []
started:
  description: Units that were started, or would be.
  returned: success
  type: list
  elements: str
  sample: [spark-watchdog.service]
restarted:
  description: Units that were restarted, or would be.
  returned: success
  type: list
  elements: str
  sample: []
reloaded:
  description: Units that were reloaded, or would be.
  returned: success
  type: list
  elements: str
  sample: []
stopped:
  description: Units that were stopped, or would be.
  returned: success
  type: list
  elements: str
  sample: []
restart_due:
  description: Units with O(units[].defer) that run from older files than those on the disk.
  returned: success
  type: list
  elements: str
  sample: []
starting:
  description: Units that were starting already, from the files that are on the disk; whoever wants them has to wait.
  returned: success
  type: list
  elements: str
  sample: []
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import deploy, host_lock, made, staging
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.deployment import Deployment, Refused, Tools
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command

OWNER = {
    "owner": {"type": "str", "default": "root"},
    "group": {"type": "str", "default": "root"},
}
PART = {"part": {"type": "str", "default": ""}}
ACCOUNT = {"name": {"type": "str", "required": True}, "home": {"type": "path"}, "shell": {"type": "path"}, **PART}
FOLDER = {
    "path": {"type": "path", "required": True},
    "holds": {"type": "str", "choices": list(made.KINDS), "default": "shared"},
    **OWNER,
    "mode": {"type": "str", "default": "0755"},
    **PART,
}
FILE = {
    "path": {"type": "path", "required": True},
    "content": {"type": "str"},
    "source": {"type": "str"},
    "bundled": {"type": "str"},
    **OWNER,
    "mode": {"type": "str", "default": "0644"},
    "secret": {"type": "bool", "default": False, "no_log": False},
    "device": {"type": "path"},
    "port_range": {"type": "str"},
    "validate": {"type": "str"},
    "digest": {"type": "str"},
    "data": {"type": "str", "no_log": True},
    **PART,
}
UNIT = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["started", "stopped", "triggered", "absent"], "default": "started"},
    "enabled": {"type": "bool"},
    "restart_on": {"type": "list", "elements": "path"},
    "outdated": {"type": "bool", "default": False},
    "defer": {"type": "bool", "default": False},
    "wait": {"type": "bool", "default": True},
    "reload": {"type": "bool", "default": False},
    "reload_on": {"type": "list", "elements": "path", "default": []},
    "prints": {"type": "list", "elements": "str", "default": []},
    "printed": {"type": "path"},
    **PART,
}
PURGE = {"folder": {"type": "path", "required": True}, "pattern": {"type": "str", "default": "*"}, **PART}
INSTANCES = {
    "marker": {"type": "str", "required": True},
    "keep": {"type": "list", "elements": "str", "default": []},
    "units": {"type": "list", "elements": "str", "default": []},
    "paths": {"type": "list", "elements": "str", "default": []},
    **PART,
}


def rows(options: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the option of one kind of rows."""
    return {"type": "list", "elements": "dict", "default": [], "options": options, **more}


ARGUMENTS: dict[str, Any] = {
    "part": {"type": "str", "default": ""},
    "documents": {"type": "list", "elements": "dict", "default": []},
    "accounts": rows(ACCOUNT),
    "folders": rows(FOLDER),
    "files": rows(FILE, mutually_exclusive=[("content", "source", "bundled")]),
    "removed": {"type": "list", "elements": "raw", "default": []},
    "purge": rows(PURGE),
    "instances": rows(INSTANCES),
    "controller": {"type": "str", "default": ""},
    "units": rows(UNIT),
}


def tools_of(module: AnsibleModule) -> Tools:
    """Return the tools that the module gives to a deployment."""

    def attributes(path: str, owner: str, group: str, mode: str, difference: dict[str, Any]) -> bool:
        wanted = {"path": path, "owner": owner, "group": group, "mode": mode}
        arguments = module.load_file_common_arguments(wanted, path=path)
        return bool(module.set_fs_attributes_if_different(arguments, False, diff=difference))

    return Tools(command.runner(module), attributes, module.warn, module.check_mode, module.tmpdir)


def run(module: AnsibleModule) -> dict[str, Any]:
    """Deploy the document while the host is locked; returns the results."""
    state = HostState.from_dict(module.params, module.params["part"]).distinct()
    deploy.check(state)
    job = Deployment(state, tools_of(module))
    with host_lock.held(module) as locked, host_lock.noted(module.params["controller"], locked) as noted:
        try:
            if locked:
                staging.sweep(more={Path(file.path).parent for file in state.files})
            result = deploy.deploy(job)
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
