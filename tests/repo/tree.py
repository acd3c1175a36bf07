"""What the tests of this folder look at: the files of the repository as git sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from common import ROOT as ROOT
from common import tracked_files


class AnsibleLoader(yaml.SafeLoader):
    """Reads Ansible's YAML; a tagged value such as !vault comes out as its text."""


AnsibleLoader.add_multi_constructor("!", lambda loader, _suffix, node: getattr(node, "value", None))


@cache
def tracked() -> tuple[str, ...]:
    """Files that git tracks or would track, if they exist on disk."""
    return tuple(tracked_files())


def below(*prefixes: str, suffix: str = "") -> list[str]:
    """Tracked files below the folders, with the suffix."""
    return [name for name in tracked() if name.startswith(prefixes) and name.endswith(suffix)]


def read(name: str) -> str:
    """Text of a file of the repository; empty for a missing file."""
    path = ROOT / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def load(name: str) -> Any:
    """Content of a YAML file of the repository."""
    return yaml.load(read(name), AnsibleLoader)


def packed(names: Iterable[str]) -> set[str]:
    """Return the files of C(names) that ansible-galaxy packs into the collection."""
    patterns = ["galaxy.yml", *load("galaxy.yml")["build_ignore"]]

    def is_ignored(name: str) -> bool:
        folders = [str(folder) for folder in PurePosixPath(name).parents[:-1]]
        return any(fnmatchcase(path, pattern) for path in (name, *folders) for pattern in patterns)

    return {name for name in names if not is_ignored(name)}


def each(names: Iterable[str]) -> Callable[[Callable[[str], None]], Callable[[], None]]:
    """Make one test of a check that holds for each of many files; it fails with all for which it does not.

    :param names: arguments of the check, one after the other
    """
    checked_names = tuple(names)

    def one_test(check: Callable[[str], None]) -> Callable[[], None]:
        def test() -> None:
            wrong = {}
            for name in checked_names:
                try:
                    check(name)
                except AssertionError as error:
                    wrong[name] = str(error)
            assert checked_names and not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return one_test


ROLES = sorted(path.name for path in ROOT.glob("roles/*") if (path / "tasks").is_dir())
MODULES = sorted(Path(name).stem for name in below("plugins/modules/", suffix=".py"))
PLAYBOOKS = [name for name in below("playbooks/", suffix=".yml") if name.count("/") == 1]
INVENTORIES = sorted(path.name for path in ROOT.glob("inventories/*") if path.is_dir())
TASK_FILES = [
    *PLAYBOOKS,
    *below("playbooks/tasks/", suffix=".yml"),
    *[name for name in below("roles/", suffix=".yml") if name.split("/")[2] in ("tasks", "handlers")],
    *[
        name
        for name in below("molecule/", suffix=".yml")
        if name.count("/") == 2 and not name.endswith(("/molecule.yml", "/inventory.yml"))
    ],
]
BLOCKS = ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always")


def tasks(name: str) -> Iterator[dict[str, Any]]:
    """Every play, block and task of a file, from the outside in."""
    pending = list(load(name) or [])
    while pending:
        item = pending.pop(0)
        yield item
        for key in BLOCKS:
            pending.extend(item.get(key) or [])
