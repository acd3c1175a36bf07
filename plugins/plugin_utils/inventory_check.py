# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventories that Ansible skips with a warning and exit code 0: missing, unreadable or mis-indented files, no group C(sparks).

Ansible itself decides what a file means; this only finds the mistakes after which hosts or variables would be left out silently.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import validation
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import printable
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import Sources

GROUP = "sparks"
YAML_SUFFIXES = (".yml", ".yaml", ".json")
"""Files that Ansible's C(yaml) inventory plugin reads; other names may hold INI, where C(key:) is no mistake of indentation."""
SECTIONS = ("hosts", "children", "vars")
"""What a group may hold (ansible/plugins/inventory/yaml.py)."""
SHORTEST = "sparks: {hosts: {spark-1: {ansible_host: 192.168.1.11}}}"
WRITE_ONE = "dgxspark.vllm.discover writes an inventory, docs/inventory.md describes it"
_VARIABLE = re.compile(r"(?:ansible|spark)_\w+")
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SYSTEM_DEFAULT = "/etc/ansible/"


def find_problems(groups: Mapping[str, Sequence[str]], sources: Sources) -> list[str]:
    """Return why the inventory cannot be used, a sentence each; empty when it can.

    :param groups: names of hosts by group, as Ansible has them
    :param sources: of the inventory
    """
    problems = [_missing(path) for path in sources.missing if not path.startswith(_SYSTEM_DEFAULT)]
    for path in sources.inventory_files():
        problems += _file_problems(path, _hosts_problems)
    for path in sources.variable_files():
        problems += _file_problems(path, _key_problems)
    if problems or groups.get(GROUP):
        return problems
    return [_without_sparks(groups, sources)]


def _missing(path: str) -> str:
    return f"the inventory '{printable(path)}' does not exist; correct the path after -i ({WRITE_ONE})."


def _without_sparks(groups: Mapping[str, Sequence[str]], sources: Sources) -> str:
    """Say that no Spark is in the inventory, and why as far as that is known."""
    if not sources.given or (sources.missing and all(path.startswith(_SYSTEM_DEFAULT) for path in sources.missing)):
        return f"no inventory was given; name one with -i, such as -i my-sparks ({WRITE_ONE})."
    named = ", ".join(f"'{printable(path)}'" for path in sources.given)
    if GROUP in groups:
        return f"the group '{GROUP}' of the inventory {named} has no hosts; list the DGX Sparks there: {SHORTEST}"
    group_names = sorted(name for name in groups if name not in ("all", "ungrouped"))
    if not group_names and not groups.get("all") and any(map(_has_content, sources.inventory_files())):
        return f"the inventory {named} could not be read; Ansible's warning above has the reason."
    if not group_names and not groups.get("all"):
        return f"the inventory {named} is empty; list the DGX Sparks in the group '{GROUP}': {SHORTEST}"
    if not group_names:
        return f"the inventory {named} has no group '{GROUP}'; put the DGX Sparks into it: {SHORTEST}"
    shown_names = ", ".join(f"'{printable(name)}'" for name in group_names[:5])
    near = validation.nearest_word(GROUP, group_names) or (group_names[0] if len(group_names) == 1 else "")
    rename = f"rename the group '{printable(near)}' to '{GROUP}'" if near else f"add '{GROUP}' with the DGX Sparks"
    return f"the inventory {named} has no group '{GROUP}' but {shown_names}{' and more' if len(group_names) > 5 else ''}; {rename}."


def _has_content(path: str) -> bool:
    """Whether a file has a line that is neither empty nor a comment."""
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    return any(line.strip() and not line.lstrip().startswith(("#", ";", "---")) for line in lines)


def _file_problems(path: str, find: Callable[[yaml.MappingNode], Iterator[tuple[int, str]]]) -> list[str]:
    """Return the mistakes of one file; a script or the configuration of an inventory plugin has none here.

    :param path: of the file
    :param find: yields the line and the text of each mistake in valid YAML
    """
    shown = printable(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        return [] if os.access(path, os.X_OK) else [f"the inventory '{shown}' is not UTF-8 text: {error.reason}."]
    except OSError as error:
        return [f"the inventory '{shown}' cannot be read: {error.strerror or error}; see its owner and mode."]
    of_hosts = find is _hosts_problems
    if text.startswith("$ANSIBLE_VAULT") or (of_hosts and not path.endswith(YAML_SUFFIXES)):
        return []
    try:
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = min(mark.line + 1 if mark else 1, text.count("\n") + 1)  # behind the end where something is not closed
        return [
            f"the inventory '{shown}', line {line}: not valid YAML ({printable(str(error.problem or error.context))}); "
            "check the indentation of this line and of the line above, with spaces only."
        ]
    except (yaml.YAMLError, RecursionError) as error:
        return [f"the inventory '{shown}' is not valid YAML: {printable(str(error))}."]
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        return [f"the inventory '{shown}' holds no groups; the shortest one is {SHORTEST}"] if of_hosts else []
    if of_hosts and any(key.value == "plugin" for key, _value in root.value):
        return []
    return [f"the inventory '{shown}', line {line}: {text}." for line, text in find(root)]


def _hosts_problems(root: yaml.MappingNode) -> Iterator[tuple[int, str]]:
    """Yield line and text of each mistake, by keys and by groups."""
    yield from _key_problems(root)
    for key, body in root.value:
        yield from _group_problems(key, body)


def _key_problems(root: yaml.Node) -> Iterator[tuple[int, str]]:
    """Yield keys that stand twice in a mapping, of which Ansible takes the last, and templates that YAML takes for mappings."""
    pending, seen = [root], set()
    while pending:
        node = pending.pop()
        if id(node) in seen or isinstance(node, yaml.ScalarNode):  # anchors are reached several times
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending += node.value
            continue
        lines: dict[str, int] = {}
        for key, value in node.value:
            pending.append(value)
            if not isinstance(key, yaml.ScalarNode):
                yield key.start_mark.line + 1, "a value that begins with '{{' has to stand in quotes"
                continue
            if key.value == "<<":
                continue
            if key.value in lines:
                yield (
                    key.start_mark.line + 1,
                    f"'{printable(key.value)}' stands here and in line {lines[key.value]}, and Ansible would take only the last; "
                    "merge them or rename one",
                )
            lines.setdefault(key.value, key.start_mark.line + 1)


def _group_problems(key: yaml.Node, body: yaml.Node) -> Iterator[tuple[int, str]]:
    """Yield the mistakes of a group and of the groups below it, by the rules of Ansible's C(yaml) plugin."""
    name, line = printable(str(key.value)), key.start_mark.line + 1
    if name in SECTIONS:
        yield line, f"'{name}' stands where a group is expected; indent it below its group"
        return
    if _is_empty(body):
        return
    if not isinstance(body, yaml.MappingNode):
        yield line, f"the group '{name}' is no mapping; write its hosts below '{name}:' and 'hosts:', each as 'NAME:'"
        return
    for section, value in body.value:
        part, line = printable(str(section.value)), section.start_mark.line + 1
        if part not in SECTIONS:
            if name == GROUP or _VARIABLE.fullmatch(part):
                below = "vars:" if _VARIABLE.fullmatch(part) else "hosts:"
                yield line, f"'{part}' stands directly below the group '{name}'; indent it below '{below}'"
            continue
        if not (_is_empty(value) or isinstance(value, yaml.MappingNode) or _is_text(value)):
            yield line, f"'{part}' of the group '{name}' is a list; write each entry as 'NAME:' without a dash"
            continue
        for entry, content in value.value if isinstance(value, yaml.MappingNode) else ():
            if part == "children":
                yield from _group_problems(entry, content)
            elif part == "hosts":
                yield from _host_problems(entry, content)


def _host_problems(key: yaml.Node, body: yaml.Node) -> Iterator[tuple[int, str]]:
    name, line = printable(str(key.value)), key.start_mark.line + 1
    if _VARIABLE.fullmatch(name):
        yield line, f"the variable '{name}' stands where a host is expected; indent it below its host"
    elif not (_is_empty(body) or isinstance(body, yaml.MappingNode)):
        yield line, f"the host '{name}' has a value; write its variables below it, each as 'NAME: VALUE'"


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _is_text(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode)
