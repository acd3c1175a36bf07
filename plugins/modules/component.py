#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: component
short_description: Install or remove the folders, files and systemd units of one component
version_added: 0.1.0
description:
  - Does what a chain of M(ansible.builtin.file), M(ansible.builtin.copy) and M(ansible.builtin.systemd_service) tasks does for
    one component of a host, in one task. On a host where nothing has changed that is a single round trip, in which no content
    travels but only checksums.
  - Everything is checked before anything is written. If O(files[].validate) fails, an owner does not exist or a folder is in the place of
    a file, the host is not changed.
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
  name:
    description:
      - What the component is called in messages.
    type: str
    required: true
  state:
    description:
      - V(absent) stops and disables the units, and removes their files, the O(files) and what O(removed) names. Folders that
        are only listed in O(folders) stay; others may use them too.
    type: str
    choices: [present, absent]
    default: present
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
  removed:
    description:
      - Files and folders that must not be there, such as those of earlier versions. Folders go with all that is in them.
      - A folder that this collection neither made nor named stays, with a warning.
    type: list
    elements: path
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
          - Files whose change the unit has to be restarted for. All of O(files) unless given.
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
      wait:
        description: Wait until systemd has carried the job out.
        type: bool
        default: true
notes:
  - Needs root, and systemd where O(units) are given.
"""

EXAMPLES = r"""
- name: Watch the model servers
  dgxspark.vllm.component:
    name: watchdog
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
  dgxspark.vllm.component:
    name: watchdog
    state: absent
    removed: [/etc/dgxspark/watchdog, /usr/local/libexec/dgxspark/spark_watchdog.py]
    units:
      - name: spark-watchdog.service
  become: true
"""

RETURN = r"""
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

import base64
import contextlib
import grp
import hashlib
import os
import pwd
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_lock, made, staging
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.component import (
    Seen,
    Steps,
    read_units,
    show_command,
    steps,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.file_times import stamp_written, written_at
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command

SYSTEM = Path("/etc/systemd")
LOG_LINES = 15  # of a unit that does not start
SHOWN_BYTES = 100_000  # of a file, in a diff

OWNER = {
    "owner": {"type": "str", "default": "root"},
    "group": {"type": "str", "default": "root"},
}
FILE = {
    "path": {"type": "path", "required": True},
    "content": {"type": "str"},
    "source": {"type": "str"},
    **OWNER,
    "mode": {"type": "str", "default": "0644"},
    "secret": {"type": "bool", "default": False, "no_log": False},
    "device": {"type": "path"},
    "validate": {"type": "str"},
    "digest": {"type": "str"},
    "data": {"type": "str", "no_log": True},
}
UNIT = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["started", "stopped", "triggered", "absent"], "default": "started"},
    "enabled": {"type": "bool"},
    "restart_on": {"type": "list", "elements": "path"},
    "outdated": {"type": "bool", "default": False},
    "defer": {"type": "bool", "default": False},
    "wait": {"type": "bool", "default": True},
}
ARGUMENTS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "folders": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "path", "required": True},
            "holds": {"type": "str", "choices": list(made.KINDS), "default": "shared"},
            **OWNER,
            "mode": {"type": "str", "default": "0755"},
        },
    },
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": FILE,
        "mutually_exclusive": [("content", "source")],
    },
    "removed": {"type": "list", "elements": "path", "default": []},
    "purge": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "folder": {"type": "path", "required": True},
            "pattern": {"type": "str", "default": "*"},
        },
    },
    "instances": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "marker": {"type": "str", "required": True},
            "keep": {"type": "list", "elements": "str", "default": []},
            "units": {"type": "list", "elements": "str", "default": []},
            "paths": {"type": "list", "elements": "str", "default": []},
        },
    },
    "controller": {"type": "str", "default": ""},
    "units": {"type": "list", "elements": "dict", "default": [], "options": UNIT},
}


class Component:
    """One run of the module: looks first, then writes, then brings the units along."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module, self.params, self.check = module, module.params, module.check_mode
        self.run = command.runner(module)
        self.changed, self.diffs = False, []  # type: bool, list[dict[str, Any]]
        self.removed: list[str] = []
        self.staged: dict[str, Path] = {}
        self.reload = False

    def fail(self, text: str, **more: Any) -> None:
        self.module.fail_json(msg=f"{self.params['name']}: {text}", **more)

    # --- looking

    def differing(self) -> list[dict[str, Any]]:
        """Return the entries of C(files) whose content on the disk is another."""
        found = []
        for entry in self.params["files"]:
            if is_folder(Path(entry["path"])):
                self.fail(f"{entry['path']} is a folder, a file belongs there; move it away")
            if digest_of(Path(entry["path"])) != entry["digest"]:
                found.append(entry)
        return found

    def leave_out(self) -> None:
        """Have files be gone whose device this host has not."""
        lacking = [each for each in self.params["files"] if each["device"] and not Path(each["device"]).exists()]
        self.params["files"] = [each for each in self.params["files"] if not any(each is other for other in lacking)]
        self.params["removed"] = [*self.params["removed"], *(each["path"] for each in lacking)]

    def check_owners(self) -> None:
        """Refuse owners and groups that do not exist; in check mode another role may be about to make them."""
        if self.check:
            return
        unknown = []
        for entry in [*self.params["folders"], *self.params["files"]]:
            for kind, known in (("owner", user_exists), ("group", group_exists)):
                if not known(entry[kind]):
                    unknown.append(f"{kind} {entry[kind]} of {entry['path']}")
        if unknown:
            self.fail(
                f"{', '.join(unknown)}: no such account on this host. Run site.yml without tags once, which makes it"
            )

    def validate(self, entries: list[dict[str, Any]]) -> None:
        """Ask the programs of C(validate) about what is to be written. All refusals are told at once."""
        asked = [entry for entry in entries if entry["validate"]]
        refused = []
        with self.own_folder() as folder:
            for number, entry in enumerate(asked):
                # By the same name, which some programs read the kind of a file from.
                path = Path(folder, str(number), Path(entry["path"]).name)
                path.parent.mkdir(0o700)
                write_new(path, content_of(entry))
                rc, out, err = self.run([part.replace("%s", str(path)) for part in shlex.split(entry["validate"])])
                if rc:
                    said = (err or out).strip().replace(str(path), entry["path"])
                    refused.append(
                        f"{entry['path']} is not valid: {entry['validate'].split(maxsplit=1)[0]} says: {said}"
                    )
        if refused:
            self.fail("; ".join(refused) + ". Nothing was changed")

    @contextlib.contextmanager
    def own_folder(self) -> Iterator[str]:
        """Make a folder for a moment where the next run finds what a killed one has left, and a boot does."""
        parent = str(host_lock.run_dir()) if os.access(host_lock.run_dir(), os.W_OK) else self.module.tmpdir
        with tempfile.TemporaryDirectory(prefix=staging.PREFIX, dir=parent) as folder:
            yield folder

    # --- writing

    def attributes(self, entry: dict[str, Any], exists: bool, shown: bool = True) -> None:
        """Set owner, group and mode where they differ.

        :param entry: the file or folder as the component has it
        :param exists: whether it is there, which check mode may only pretend
        :param shown: whether that is a difference worth a line
        """
        if self.check and not (exists and user_exists(entry["owner"]) and group_exists(entry["group"])):
            self.changed = True
            return
        wanted = self.module.load_file_common_arguments(
            {key: entry[key] for key in ("path", "owner", "group", "mode")}, path=entry["path"]
        )
        difference: dict[str, Any] = {}
        if self.module.set_fs_attributes_if_different(wanted, False, diff=difference):
            self.changed = True
            if difference and shown:
                self.diffs.append({**difference, "before_header": entry["path"], "after_header": entry["path"]})

    def folders(self) -> None:
        """Make what is missing, and set owner, group and mode of what is ours."""
        for entry in self.params["folders"]:
            path = Path(entry["path"])
            exists = path.is_dir()
            if not exists:
                if present(path):
                    self.fail(f"{path} is not a folder, but one belongs there; move it away")
                self.changed = True
                self.note(path, "state: absent\n", "state: directory\n")
                if not self.check:
                    made.make_folder(path, entry["holds"])
            elif not made.is_own(entry["path"]):
                continue
            elif not self.check:
                made.adopt_folder(entry["path"], entry["holds"])
            self.attributes(entry, exists or not self.check, shown=exists)

    def stage(self, differing: list[dict[str, Any]]) -> None:
        """Write what differs beside its place. What does not go well here leaves every file as it was."""
        for entry in differing:
            path = Path(entry["path"])
            if not path.parent.is_dir():
                self.fail(f"the folder of {path} does not exist; list it in folders")
            try:
                self.staged[entry["path"]] = staging.beside(
                    path, content_of(entry), int(entry["mode"], 8), entry["owner"], entry["group"]
                )
            except PermissionError:
                raise
            except OSError as error:
                self.fail(
                    f"{path} cannot be written: {error.strerror}. All files are as they were. Mend that (df -h {path.parent}, "
                    f"df -i {path.parent}) and run again"
                )

    def unstage(self) -> None:
        """Remove what was not put in place."""
        for beside in self.staged.values():
            beside.unlink(missing_ok=True)

    def files(self, differing: list[dict[str, Any]]) -> list[str]:
        """Put what differs in place, each by a rename; returns the paths."""
        for entry in self.params["files"]:
            exists = present(Path(entry["path"]))
            if any(entry is other for other in differing):
                self.changed = True
                self.reload = self.reload or SYSTEM in Path(entry["path"]).parents
                self.show(entry, content_of(entry))
                if not self.check:
                    # Dated by when it counts: a unit that began since it was written beside its place ran from the old one.
                    os.utime(self.staged[entry["path"]])
                    stamp_written(self.staged[entry["path"]])
                    self.staged.pop(entry["path"]).replace(entry["path"])
                    exists = True
            self.attributes(entry, exists)
        return [entry["path"] for entry in differing]

    def show(self, entry: dict[str, Any], new: bytes) -> None:
        """Note the difference for C(--diff)."""
        path = Path(entry["path"])
        if entry["secret"]:
            self.note(path, "a secret\n" if present(path) else "", "a new secret\n")
            return
        old = path.read_bytes() if path.is_file() else b""
        if max(len(old), len(new)) > SHOWN_BYTES:
            self.note(path, f"{len(old)} bytes\n", f"{len(new)} other bytes\n")
        else:
            self.note(path, old.decode("utf-8", "replace"), new.decode("utf-8", "replace"))

    def note(self, path: Path, before: str, after: str) -> None:
        """Keep one difference for C(--diff).

        :param path: of the file
        :param before: its text
        :param after: its text
        """
        self.diffs.append({"before": before, "after": after, "before_header": str(path), "after_header": str(path)})

    # --- removing

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder of ours with all that is in it; links are not followed."""
        if not present(path):
            return
        noted = made.folders().get(os.path.realpath(path)) if is_folder(path) else None
        if is_folder(path) and (not made.is_own(str(path)) or (noted == "shared" and any(path.iterdir()))):
            self.module.warn(
                f"{self.params['name']}: {path} stays, since this collection did not make what is in it; remove it by hand if it is not "
                "needed"
            )
            return
        # The lock that this very run has taken is nothing that somebody put there.
        if path != host_lock.run_dir() or {each.name for each in path.iterdir()} - set(host_lock.FILES):
            self.changed = True
            self.removed.append(str(path))
            self.note(path, "state: present\n", "state: absent\n")
        self.reload = self.reload or SYSTEM in path.parents
        if self.check:
            return
        if noted is not None:
            made.remove_folder(os.path.realpath(path))
        elif is_folder(path):
            shutil.rmtree(path)
        else:
            path.unlink()

    def purge(self) -> None:
        """Remove the files that are not in C(files), and folders that were left empty by that."""
        kept = {entry["path"] for entry in self.params["files"]}
        for rule in self.params["purge"]:
            folder = Path(rule["folder"])
            strangers = [
                path for path in sorted(folder.rglob(rule["pattern"])) if not is_folder(path) and str(path) not in kept
            ]
            for path in strangers:
                self.remove(path)
                while not self.check and path.parent != folder and not any(path.parent.iterdir()):
                    path = path.parent
                    path.rmdir()

    def take_units_away(self, names: list[str]) -> list[str]:
        """Stop and disable units and remove their files; returns those that ran."""
        if not names:
            return []
        seen = self.ask(names)
        running = [name for name in reversed(names) if seen[name].active not in ("inactive", "failed")]
        self.systemctl("stop", running)
        self.systemctl("disable", [name for name in names if seen[name].enabled])
        for name in names:
            self.remove(SYSTEM / "system" / name)
        failed = [name for name in names if seen[name].active == "failed"]
        if failed and not self.check:
            self.run(["systemctl", "reset-failed", *failed])
        return running

    def instances(self) -> tuple[list[str], list[str]]:
        """Remove the instances that are not kept; returns their names and the units that ran."""
        found: tuple[list[str], list[str]] = ([], [])
        for rule in self.params["instances"]:
            for known, more in zip(found, self.instances_of(rule)):
                known += more
        return found

    def instances_of(self, rule: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Do the same for one pattern."""
        head, tail = Path(rule["marker"]).name.split("*", 1)
        folder, pattern = Path(rule["marker"]).parent, Path(rule["marker"]).name
        there = {path.name[len(head) : len(path.name) - len(tail)]: path for path in folder.glob(pattern)}
        gone = sorted(set(there) - set(rule["keep"]))
        stopped = self.take_units_away([unit.replace("{name}", name) for name in gone for unit in rule["units"]])
        for name in gone:
            for path in rule["paths"]:
                self.remove(Path(path.replace("{name}", name)))
            # Last, so that a run that is cut off is finished by the next one.
            self.remove(there[name])
        return gone, stopped

    # --- units

    def ask(self, names: list[str]) -> dict[str, Seen]:
        rc, out, err = self.run(show_command(names))
        if rc:
            self.fail(f"systemd cannot be asked about {', '.join(names)}: {(err or out).strip()}")
        with command.failing(self.module):
            return read_units(names, out, time.clock_gettime(time.CLOCK_MONOTONIC), time.time())

    def systemctl(self, verb: str, names: list[str], wait: bool = True) -> None:
        """Run systemctl; fail with what the journal says.

        :param verb: C(start), C(stop) and their like
        :param names: of units
        :param wait: whether it waits until that is done
        """
        if not names:
            return
        self.changed = True
        if self.check:
            return
        seconds = command.WORK_SECONDS if wait else command.QUERY_SECONDS
        rc, out, err = self.run(["systemctl", verb, *([] if wait else ["--no-block"]), "--", *names], seconds)
        if rc:
            self.explain(verb, names, (err or out).strip())

    def explain(self, verb: str, names: list[str], said: str) -> None:
        """Fail with what the journal says about those of the units that do not run.

        :param verb: that failed
        :param names: of the units
        :param said: by systemctl
        """
        seen = self.ask(names)
        bad = [name for name in names if seen[name].active == "failed"] or names
        logs = []
        for name in bad:
            out = self.run(
                ["journalctl", "--no-pager", "--quiet", "--output=cat", f"--lines={LOG_LINES}", f"--unit={name}"]
            )[1]
            logs += [f"{name}: {line}" for line in out.splitlines()]
        self.fail(f"systemctl {verb} {' '.join(names)} failed: {said}\n" + "\n".join(logs), log=logs)

    def bring_units(self, written: list[str]) -> Steps:
        """Enable, start and restart units as far as that is needed."""
        units = self.params["units"]
        names = [unit["name"] for unit in units]
        seen = self.ask(names) if names else {}
        if (self.reload or any(unit.needs_reload for unit in seen.values())) and not self.check:
            rc, out, err = self.run(["systemctl", "daemon-reload"])
            if rc:
                self.fail(f"systemctl daemon-reload failed: {(err or out).strip()}")
        if not units:
            return Steps()
        everything = [entry["path"] for entry in self.params["files"]]
        for unit in units:
            unit["restart_on"] = everything if unit["restart_on"] is None else unit["restart_on"]
        watched = {path for unit in units for path in unit["restart_on"]}
        clocks = time.clock_gettime(time.CLOCK_MONOTONIC), time.time()
        changed = {path: written_at(path, *clocks) for path in watched if Path(path).exists()}
        # In check mode they have not been written.
        changed.update({path: time.time() for path in written})
        todo = steps(units, seen, changed)
        wait = {unit["name"]: unit["wait"] for unit in units}
        self.systemctl("stop", todo.stop[::-1])
        self.systemctl("disable", todo.disable)
        self.systemctl("enable", todo.enable)
        if todo.forget and not self.check:
            self.run(["systemctl", "reset-failed", *todo.forget])
        for verb, which in (("start", todo.start), ("restart", todo.restart)):
            for waiting in (False, True):
                self.systemctl(verb, [name for name in which if wait[name] is waiting], waiting)
        return todo

    # --- the two states

    def present(self) -> dict[str, Any]:
        unwanted = [unit["name"] for unit in self.params["units"] if unit["state"] == "absent"]
        self.params["units"] = [unit for unit in self.params["units"] if unit["state"] != "absent"]
        self.leave_out()
        self.check_owners()
        differing = self.differing()
        missing = [entry["path"] for entry in differing if entry["data"] is None]
        if missing:
            # Nothing has been done yet; the action plugin sends these, and asks again.
            self.module.exit_json(changed=False, wanted=missing)
        if not self.check:
            self.validate(differing)
            if differing and self.params["units"]:
                # What systemd does not answer, it does not answer later either: then nothing has been written yet.
                self.ask([unit["name"] for unit in self.params["units"]])
        self.folders()
        try:
            if not self.check:
                self.stage(differing)
            gone, ended = self.instances()
            ended += self.take_units_away(unwanted)
            written = self.files(differing)
        finally:
            self.unstage()
        self.purge()
        for path in self.params["removed"]:
            self.remove(Path(path))
        todo = self.bring_units(written)
        return {
            "written": written,
            "instances_removed": gone,
            "started": todo.start,
            "restarted": todo.restart,
            "stopped": [*ended, *todo.stop],
            "restart_due": todo.due,
            "starting": todo.starting,
        }

    def absent(self) -> dict[str, Any]:
        gone, ended = self.instances()
        stopped = self.take_units_away([unit["name"] for unit in self.params["units"]])
        for path in [*(entry["path"] for entry in self.params["files"]), *self.params["removed"]]:
            self.remove(Path(path))
        if self.reload and not self.check:
            self.run(["systemctl", "daemon-reload"])
        return {
            "written": [],
            "instances_removed": gone,
            "started": [],
            "restarted": [],
            "stopped": [*ended, *stopped],
            "restart_due": [],
            "starting": [],
        }


def present(path: Path) -> bool:
    """Whether there is anything by this name; a link that leads nowhere counts."""
    return path.exists() or path.is_symlink()


def is_folder(path: Path) -> bool:
    """Whether this is a folder itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def digest_of(path: Path) -> str | None:
    """SHA-256 of a regular file, None for anything else."""
    if path.is_symlink() or not path.is_file():
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()


def content_of(entry: dict[str, Any]) -> bytes:
    return base64.b64decode(entry["data"])


def write_new(path: Path, content: bytes) -> None:
    """Write a file that only root can read."""
    path.touch(0o600, exist_ok=False)
    path.write_bytes(content)


def user_exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def group_exists(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    component = Component(module)
    paths = [entry["path"] for entry in module.params["files"]]
    for entry in module.params["files"]:
        if module.params["state"] == "present" and entry["digest"] is None:
            component.fail(f"{entry['path']} has neither content nor source; give one of them")
        if paths.count(entry["path"]) > 1:
            component.fail(f"{entry['path']} is listed twice; a file has one content")
    for rule in module.params["instances"]:
        if (rule["marker"].count("*"), Path(rule["marker"]).name.count("*")) == (1, 1):
            continue
        component.fail(f"instances.marker is {rule['marker']}; its last part needs exactly one *, for the name")
    try:
        with host_lock.held(module) as locked, host_lock.noted(module.params["controller"], locked) as run:
            try:
                if locked:
                    staging.sweep(more={Path(path).parent for path in paths})
                result = component.present() if module.params["state"] == "present" else component.absent()
            finally:
                run["changed"] = component.changed
    except PermissionError as error:
        component.fail(f"{error.filename}: permission denied; this needs root (become: true)")
    except OSError as error:
        component.fail(
            f"{error.filename}: {error.strerror}. Run again once that is mended; what is done already is not done twice"
        )
    module.exit_json(changed=component.changed, removed=component.removed, diff=component.diffs, **result)


if __name__ == "__main__":
    main()
