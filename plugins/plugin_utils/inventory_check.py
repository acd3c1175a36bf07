# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventories that Ansible skips with a warning and exit code 0: missing, unreadable or mis-indented files, no group C(sparks).

Ansible itself decides what a file means; this only finds the mistakes after which hosts or variables would be left out silently.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import redaction, validation
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import printable
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import KEYS, Sources

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
MOST_BYTES = 8192
"""A file with one key is smaller."""

_RANDOM_FORMS = (
    re.compile(r"(?=.*\d)(?=.*[A-Fa-f])[0-9A-Fa-f]{32,}"),
    re.compile(r"(?=.*\d)(?=.*[a-z])(?=.*[A-Z])(?=.*[A-Za-z0-9]{12})[A-Za-z0-9+/_-]{24,}={0,2}"),
    re.compile(r"[a-z0-9]{32,}"),
)
_CHANGE = re.compile(r"\d(?=[A-Za-z])|[A-Za-z](?=\d)|[a-z](?=[A-Z])|[A-Z](?=[a-z])")
_ABOUT_SECRETS = re.compile(
    r"(?<![A-Za-z])(?:secrets?|tokens?|pass(?:w[a-z]*)?|credentials?|apikeys?|keys?|psk)(?![A-Za-z])", re.IGNORECASE
)


def find_problems(groups: Mapping[str, Sequence[str]], sources: Sources) -> list[str]:
    """Return why the inventory cannot be used, a sentence each; empty when it can."""
    problems = [
        f"the inventory '{printable(path)}' does not exist; correct the path after -i ({WRITE_ONE})."
        for path in sources.missing
        if not path.startswith(_SYSTEM_DEFAULT)
    ]
    for path in sources.inventory_files():
        problems += _file_problems(path, _hosts_problems)
    for path in sources.variable_files():
        problems += _file_problems(path, _key_problems)
    if problems or groups.get(GROUP):
        return problems
    return [_without_sparks(groups, sources)]


def _other_groups(names: Sequence[str]) -> str:
    """Return the groups of an inventory without Sparks, and the fix."""
    shown = ", ".join(f"'{printable(name)}'" for name in names[:5]) + (" and more" if len(names) > 5 else "")
    near = validation.nearest_word(GROUP, names) or (names[0] if len(names) == 1 else "")
    fix = f"rename the group '{printable(near)}' to '{GROUP}'" if near else f"add '{GROUP}' with the DGX Sparks"
    return f"{shown}; {fix}"


def _without_sparks(groups: Mapping[str, Sequence[str]], sources: Sources) -> str:
    """Return the message that the inventory has no Sparks, with a visible reason."""
    if not sources.given or (sources.missing and all(path.startswith(_SYSTEM_DEFAULT) for path in sources.missing)):
        return f"no inventory was given; name one with -i, such as -i ~/my-sparks ({WRITE_ONE})."
    inventory = "the inventory " + ", ".join(f"'{printable(path)}'" for path in sources.given)
    if GROUP in groups:
        return f"the group '{GROUP}' of {inventory} has no hosts; list the DGX Sparks there: {SHORTEST}"
    names = sorted(name for name in groups if name not in ("all", "ungrouped"))
    if names:
        return f"{inventory} has no group '{GROUP}' but {_other_groups(names)}."
    if groups.get("all"):
        return f"{inventory} has no group '{GROUP}'; put the DGX Sparks into it: {SHORTEST}"
    for path in sources.inventory_files():
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
        if any(line.strip() and not line.lstrip().startswith(("#", ";", "---")) for line in lines):
            return f"{inventory} could not be read; Ansible's warning above has the reason."
    return f"{inventory} is empty; list the DGX Sparks in the group '{GROUP}': {SHORTEST}"


def _file_problems(path: str, find: Callable[[yaml.MappingNode], Iterator[tuple[int, str]]]) -> list[str]:
    """Return the mistakes of one file; empty for scripts and configurations of inventory plugins.

    find: yields the line and the text of each mistake in valid YAML.
    """
    inventory, lists_hosts = f"the inventory '{printable(path)}'", find is _hosts_problems
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        return [f"{inventory} cannot be read: {error.strerror or error}; see its owner and mode."]
    except UnicodeDecodeError as error:  # an executable file is a script, which may be binary
        return [] if os.access(path, os.X_OK) else [f"{inventory} is not UTF-8 text: {error.reason}."]
    if text.startswith("$ANSIBLE_VAULT") or (lists_hosts and not path.endswith(YAML_SUFFIXES)):
        return []
    try:
        root = yaml.compose(text, Loader=_LOADER)
    except (yaml.YAMLError, RecursionError) as error:
        return [f"{inventory}{_yaml_problem(error, text)}"]
    if not isinstance(root, yaml.MappingNode):
        is_wrong = lists_hosts and root is not None
        return [f"{inventory} has no groups; the shortest one is {SHORTEST}"] if is_wrong else []
    return [f"{inventory}, line {line}: {problem}." for line, problem in find(root)]


def _yaml_problem(error: Exception, text: str) -> str:
    """Return the end of a sentence about invalid YAML."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return f" is not valid YAML: {printable(str(error))}."
    mark = error.problem_mark or error.context_mark
    line = min(mark.line + 1 if mark else 1, text.count("\n") + 1)  # the mark of an open bracket is after the last line
    check = "the commas and brackets" if text.lstrip()[:1] in ("{", "[") else "the indentation, with spaces only,"
    return (
        f", line {line}: not valid YAML ({printable(str(error.problem or error.context))}); "
        f"check {check} of this line and of the line above."
    )


def _hosts_problems(root: yaml.MappingNode) -> Iterator[tuple[int, str]]:
    """Yield line and text of each mistake, by keys and by groups; none of the configuration of an inventory plugin."""
    if any(key.value == "plugin" for key, _value in root.value):
        return
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
        yield from _section_problems(name, section, value)


def _section_problems(group: str, section: yaml.Node, value: yaml.Node) -> Iterator[tuple[int, str]]:
    part, line = printable(str(section.value)), section.start_mark.line + 1
    if part not in SECTIONS:
        if group == GROUP or _VARIABLE.fullmatch(part):
            below = "vars:" if _VARIABLE.fullmatch(part) else "hosts:"
            yield line, f"'{part}' stands directly below the group '{group}'; indent it below '{below}'"
    elif isinstance(value, yaml.SequenceNode):
        yield line, f"'{part}' of the group '{group}' is a list; write each entry as 'NAME:' without a dash"
    elif isinstance(value, yaml.MappingNode) and part != "vars":
        for entry, content in value.value:
            name, line = printable(str(entry.value)), entry.start_mark.line + 1
            if part == "children":
                yield from _group_problems(entry, content)
            elif _VARIABLE.fullmatch(name):
                yield line, f"the variable '{name}' stands where a host is expected; indent it below its host"
            elif not (_is_empty(content) or isinstance(content, yaml.MappingNode)):
                yield line, f"the host '{name}' has a value; write its variables below it, each as 'NAME: VALUE'"


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


# --- keys among the hosts: Ansible reads every file in an inventory folder as a list of hosts


def looks_like_key(name: str) -> bool:
    """Tell whether a name has the form of a key: of a known issuer, or long and random, unlike names of machines."""
    if redaction.holds_secret(name) or _RANDOM_FORMS[0].fullmatch(name):
        return True
    # Random text changes between letters, digits and capitals far more often than joined words.
    is_long = any(form.fullmatch(name) for form in _RANDOM_FORMS[1:])
    return is_long and 4 * len(_CHANGE.findall(name)) >= len(name)


def find_keys(groups: Mapping[str, Iterable[str]], sources: Sources) -> str:
    """Return the message about hosts that are keys, empty without any; it has no secrets."""
    names = {str(name) for group, hosts in groups.items() for name in (group, *hosts)}
    keys = {name for name in names if looks_like_key(name)}
    files: dict[str, str] = {}  # with the source that reads each
    for path in sources.files():
        words = _words(path)
        hosts = {word for word in words if word in names}
        if keys & hosts or (hosts and len(words) == 1 and _is_about_secrets(path, sources)):
            keys |= hosts
            files[path] = sources.reads(path) or str(Path(path).parent)
    return _message_about_keys(len(keys), files) if keys else ""


def _is_about_secrets(path: str, sources: Sources) -> bool:
    """Tell whether a file has the name of one with a key; YAML files with such a name hold none."""
    source = next((folder for folder in sources.folders if path.startswith(f"{folder}/")), "")
    return not path.endswith((".yml", ".yaml")) and bool(_ABOUT_SECRETS.search(path[len(source) :]))


def _message_about_keys(number: int, files: Mapping[str, str]) -> str:
    """Return the message about hosts that are keys. number: of these hosts. files: with them, and the source that reads each."""
    are_keys = "is a key or password" if number == 1 else "are keys or passwords"
    sentences = [
        f"{number} of the inventory's hosts {are_keys} by the looks of it. "
        "Ansible reads each file of an inventory folder as a list of hosts."
    ]
    sentences += [
        f"Move '{path}' to '{Path(source, KEYS, Path(path).name)}', which Ansible does not read, and name it so in the inventory."
        for path, source in sorted(files.items())
    ]
    if not files:
        sentences.append(
            f"Move the file with it out of the inventory: into {KEYS} in the inventory folder, which Ansible does not read."
        )
    return " ".join(sentences)


def _words(path: str) -> Sequence[str]:
    """Return the first word of each line of a small file, which Ansible's INI reader takes for a host."""
    try:
        if Path(path).stat().st_size > MOST_BYTES:
            return ()
        with Path(path).open(encoding="utf-8", errors="replace") as stream:
            lines = stream.read(MOST_BYTES).splitlines()
    except OSError:
        return ()
    return [line.split()[0] for line in lines if line.strip()]
