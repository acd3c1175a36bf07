# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tags of the collection's playbooks. Ansible runs nothing for an unknown tag, and ends with exit code 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import validation
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import printable

COLLECTION = Path(__file__).resolve().parents[2]
PLAYBOOKS = COLLECTION / "playbooks"
PREFIX = "dgxspark.vllm."
ANSIBLES_OWN = frozenset(("all", "tagged", "untagged", "always", "never"))
PARTS = "parts_by_tag"
"""Variable of a task: the parts that it deploys, each for the tag of its name."""
_IMPORT = "ansible.builtin.import_playbook"
_TASK_FILES = ("ansible.builtin.import_tasks", "ansible.builtin.include_tasks")
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def find_problems(tags: Sequence[str], playbooks: Sequence[str]) -> list[str]:
    """Return a sentence for tags that no task of the playbooks has; empty where another's playbook is run, whose tags are unknown here."""
    names = [playbook_name(playbook) for playbook in playbooks]
    wanted_tags = sorted(set(tags) - ANSIBLES_OWN)
    if not wanted_tags or not all(names):
        return []
    known_tags = {tag for name in names for tag in playbook_tags(PLAYBOOKS / f"{name}.yml")} - ANSIBLES_OWN
    unknown = [tag for tag in wanted_tags if tag not in known_tags]
    if not unknown:
        return []
    quoted = ", ".join(f"'{printable(tag)}'" for tag in unknown)
    choice = f"has {', '.join(sorted(known_tags))}" if known_tags else "has no tags; leave --tags out"
    near = validation.nearest_word(unknown[0], known_tags)
    hint = f"; did you mean '{near}'?" if near else ";"
    return [f"--tags: unknown {quoted}{hint} {', '.join(names)} {choice}."]


def playbook_name(playbook: str) -> str:
    """Return the name of a playbook of the collection, without C(.yml); empty for any other."""
    if playbook.startswith(PREFIX):
        return playbook[len(PREFIX) :]
    path = Path(playbook).resolve()
    if path == COLLECTION / "site.yml":
        return path.stem
    return path.stem if path.parent == PLAYBOOKS else ""


def playbook_tags(path: Path) -> set[str]:
    """Return the tags of a playbook and of the files that it imports or includes. Roles have no other tags than their include."""
    tags: set[str] = set()
    pending, seen = [path], set()
    while pending:
        file = pending.pop()
        if file in seen:  # status.yml repeats its tasks by including them
            continue
        seen.add(file)
        for entry in plays_and_tasks(yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER)):
            entry_tags = entry.get("tags") or []
            tags.update([entry_tags] if isinstance(entry_tags, str) else entry_tags)
            # A task that deploys several parts runs always, and takes those whose tags are given.
            tags.update((entry.get("vars") or {}).get(PARTS) or [])
            if _IMPORT in entry:
                pending.append(PLAYBOOKS / f"{playbook_name(entry[_IMPORT])}.yml")
            for included in filter(None, map(entry.get, _TASK_FILES)):
                name = included["file"] if isinstance(included, dict) else included
                pending.append(PLAYBOOKS / "tasks" / Path(name).name)
    return tags


def plays_and_tasks(entries: Any) -> Iterator[dict[str, Any]]:
    """Yield the plays, tasks and blocks of a file, each before those inside it."""
    for entry in entries or ():
        yield entry
        for key in ("pre_tasks", "tasks", "post_tasks", "handlers", "block", "rescue", "always"):
            yield from plays_and_tasks(entry.get(key))
