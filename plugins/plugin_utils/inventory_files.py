# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A YAML inventory as Ansible reads it, without Ansible: hosts, groups and variables of hosts.yml, group_vars and host_vars.

What only Ansible can work out (templates, vault, plugins, scripts, settings that change which variable wins) is refused by name, never guessed.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import load_yaml

EXTENSIONS = (".yml", ".yaml", ".json")
IGNORED = re.compile(
    r"^\.|^(?:host_vars|group_vars|vars_plugins)$|\.(?:pyc|pyo|swp|bak|rpm|md|txt|rst|orig|cfg|retry)$|~$"
)
"""What Ansible leaves out of a folder that is an inventory, as it comes."""
TEMPLATE = re.compile(r"\{\{|\{%|\{#")
ASKED = re.compile(r"spark_\w+|ansible_host")
"""Variables that a plan is made from; templates in any other are nobody's business here."""
ALL, UNGROUPED = "all", "ungrouped"


class Unreadable(Exception):
    """An inventory that cannot be read without Ansible; the messages name all that is wrong."""

    def __init__(self, messages: Sequence[str]) -> None:
        """:param messages: a sentence each"""
        super().__init__("\n- ".join(["this inventory cannot be read without Ansible:", *messages]))
        self.messages = list(messages)


@dataclass
class Group:
    """A group: its hosts and the groups below it, in the order of the file, and its variables there."""

    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)


class Inventory:
    """What the files of one source say. C(groups) and C(hostvars) are as an action plugin has them, C(sources) what Ansible was given."""

    def __init__(self, source: str) -> None:
        """Read everything.

        :param source: a file, or a folder with files, as C(-i) of ansible-playbook takes them
        :raises Unreadable: with all that is wrong
        """
        self.messages: list[str] = []
        self.sources = [controller_paths.whole(source)]
        self._groups = {ALL: Group(), UNGROUPED: Group()}
        self._own: dict[str, dict[str, Any]] = {}
        self._folders: dict[str, str] = {}
        for path in self._files(Path(self.sources[0])):
            self._read(path)
        self._join()
        self.groups = {name: self._hosts_of(name) for name in self._groups}
        self.hostvars = {name: self._variables(name) for name in self._own}
        if self.messages:
            raise Unreadable(self.messages)

    # --- files ----------------------------------------------------------------------------------------------------

    def _files(self, source: Path) -> Iterator[Path]:
        """Yield the files of the source that hold hosts."""
        if source.is_file():
            yield source
        elif source.is_dir():
            for path in sorted(each for each in source.iterdir() if not IGNORED.search(each.name)):
                if path.is_dir():
                    self._wrong(path, "a folder inside an inventory folder is an inventory of its own to Ansible")
                else:
                    yield path
        else:
            self._wrong(source, "there is no such file or folder")

    def _wrong(self, place: object, why: str) -> None:
        self.messages.append(f"{place}: {why}.")

    def _load(self, path: Path) -> dict[str, Any]:
        """Return what a file says, nothing where it cannot be read."""
        try:
            text = path.read_text(encoding="utf-8")
            if text.startswith("$ANSIBLE_VAULT"):
                raise ValueError("it is encrypted by ansible-vault")
            content = load_yaml(text)
        except yaml.constructor.ConstructorError as error:
            tag = re.search(r"tag '(\S+)'", str(error))
            self._wrong(path, f"only Ansible knows what '{tag[1]}' means" if tag else str(error))
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            self._wrong(path, f"it is no YAML that can be read: {error}")
        else:
            if content is None or isinstance(content, dict):
                return content or {}
            self._wrong(path, "it is no mapping; an inventory in INI form is for Ansible")
        return {}

    def _variable_files(self, kind: str, name: str) -> Iterator[Path]:
        """Yield the files with variables of a group or host: the first of NAME, NAME.yml ... that is there, a folder with all below it."""
        base = Path(self.sources[0])
        place = (base if base.is_dir() else base.parent) / kind
        for path in (place / f"{name}{extension}" for extension in ("", *EXTENSIONS)):
            if path.is_dir():
                yield from self._below(path)
                return
            if path.exists():
                yield path
                return

    def _below(self, folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or path.name.endswith("~"):
                continue
            if path.is_dir() and not path.suffix:
                yield from self._below(path)
            elif path.is_file() and path.suffix in ("", *EXTENSIONS):
                yield path

    # --- hosts and groups -----------------------------------------------------------------------------------------

    def _read(self, path: Path) -> None:
        """Take in a file with hosts."""
        if os.access(path, os.X_OK):
            self._wrong(path, "an executable file is an inventory script, which is not run here")
            return
        if path.suffix not in ("", *EXTENSIONS):
            self._wrong(path, f"an inventory here is YAML ({', '.join(EXTENSIONS)})")
            return
        content = self._load(path)
        if content.get("plugin"):
            self._wrong(path, f"it asks the inventory plugin '{content['plugin']}', which Ansible runs")
            return
        for name, body in content.items():
            self._read_group(path, name, body)

    def _read_group(self, path: Path, name: Any, body: Any) -> None:
        if not isinstance(name, str) or not (body is None or isinstance(body, dict)):
            self._wrong(path, f"group {name}: a group has a name and a mapping")
            return
        group = self._groups.setdefault(name, Group())
        for key, part in (body or {}).items():
            entries = {part: None} if isinstance(part, str) else part
            if key not in ("hosts", "children", "vars") or not (entries is None or isinstance(entries, dict)):
                self._wrong(path, f"group {name}: '{key}' is none of hosts, children and vars, or no mapping")
                continue
            for entry, content in (entries or {}).items():
                if key == "vars":
                    group.variables[entry] = content
                elif key == "children":
                    self._read_group(path, entry, content)
                    group.children[str(entry)] = None
                else:
                    self._read_host(path, group, entry, content)

    def _read_host(self, path: Path, group: Group, pattern: Any, content: Any) -> None:
        if not isinstance(pattern, str) or ":" in re.sub(r"\[[^]]*\]", "", pattern):
            self._wrong(path, f"host {pattern}: a name is text, without a port (ansible_port)")
            return
        if not (content is None or isinstance(content, dict)):
            self._wrong(path, f"host {pattern}: its variables are no mapping")
            return
        try:
            names = list(expand(pattern))
        except ValueError as error:
            self._wrong(path, f"host {pattern}: {error}")
            return
        for name in names:
            group.hosts[name] = None
            self._folders.setdefault(name, str(path.parent))
            self._own.setdefault(name, {}).update(content or {})

    def _join(self) -> None:
        """Put groups without a parent below C(all), and hosts without a group into C(ungrouped)."""
        have = {child for group in self._groups.values() for child in group.children}
        top = {name: None for name in self._groups if name not in (ALL, UNGROUPED) and name not in have}
        self._groups[ALL].children = {UNGROUPED: None, **self._groups[ALL].children, **top}
        grouped = {host for name, group in self._groups.items() if name != ALL for host in group.hosts}
        self._groups[UNGROUPED].hosts.update({name: None for name in self._own if name not in grouped})

    def _descendants(self, name: str) -> list[str]:
        """Return a group and those below it, level by level."""
        found = {name: None}
        for each in (pending := [name]):
            new = [child for child in self._groups[each].children if child not in found]
            found.update(dict.fromkeys(new))
            pending += new
        return list(found)

    def _hosts_of(self, name: str) -> list[str]:
        return list(dict.fromkeys(host for each in self._descendants(name) for host in self._groups[each].hosts))

    def _depth(self, name: str, seen: tuple[str, ...] = ()) -> int:
        """Return how far below C(all) a group is, by its longest way there."""
        parents = [each for each, group in self._groups.items() if name in group.children]
        if name in seen:
            self._wrong(f"group {name}", "it is below itself")
            return 0
        return max((self._depth(each, (*seen, name)) + 1 for each in parents), default=0)

    # --- variables ------------------------------------------------------------------------------------------------

    def _variables(self, host: str) -> dict[str, Any]:
        """Return the variables of a host. Later ones win, in Ansible's order: of groups by their depth and name, then of the host."""
        inside = [name for name in self._groups if name != ALL and host in self.groups[name]]
        groups = [ALL, *sorted(inside, key=lambda name: (self._depth(name), name))]
        found: dict[str, Any] = {}
        for name in groups:
            found.update(self._checked(f"group {name}", self._groups[name].variables))
        for name in groups:
            found.update(self._of_files("group_vars", name))
        found.update(self._checked(f"host {host}", self._own[host]))
        found.update(self._of_files("host_vars", host))
        return {**found, "inventory_hostname": host, "inventory_dir": self._folders[host]}

    def _of_files(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in self._variable_files(kind, name):
            found.update(self._checked(str(path), self._load(path)))
        return found

    def _checked(self, place: str, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return variables; complain, once, about what only Ansible can work out."""
        wrong = [
            f"{place}: {where} is a template ({text.strip()[:60]}), which Ansible fills in."
            for name, value in variables.items()
            if ASKED.fullmatch(str(name))
            for where, text in templates(value, str(name))
        ]
        if "ansible_group_priority" in variables:
            wrong.append(f"{place}: ansible_group_priority changes which variable wins.")
        self.messages += [each for each in wrong if each not in self.messages]
        return variables


def templates(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield the texts below a value that are templates, with where they stand.

    :param value: of a variable
    :param where: its name
    """
    if isinstance(value, str) and TEMPLATE.search(value):
        yield where, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from templates(each, f"{where}.{key}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from templates(each, f"{where}[{number}]")


def expand(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern with ranges stands for: C(spark-[001:004]), C(rack-[a:c]), C([1:9:2]).

    :raises ValueError: where a range is none
    """
    match = re.match(r"([^[\]]*)\[([^[\]]*)\](.*)", pattern, re.DOTALL)
    if match is None:
        yield pattern
        return
    first, last, step = [*match[2].split(":"), "1"][:3] if match[2].count(":") in (1, 2) else ("", "", "")
    first = first or "0"
    letters = string.ascii_letters
    width = len(first) if first.startswith("0") else 0
    if first in letters and last in letters and len(first) == len(last) == 1 and step.isdigit() and int(step):
        names = list(letters[letters.index(first) : letters.index(last) + 1 : int(step)])
    elif first.isdigit() and last.isdigit() and step.isdigit() and int(step) and (width < 2 or width == len(last)):
        names = [str(number).zfill(width) for number in range(int(first), int(last) + 1, int(step))]
    else:
        raise ValueError(f"'[{match[2]}]' is no range such as [1:9], [01:16] or [a:c]")
    for name in names:
        yield from expand(f"{match[1]}{name}{match[3]}")
