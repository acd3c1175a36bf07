# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Import the collection's own modules with their bytecode, as Python imports any package.

Ansible's loader of collections keeps none (C(get_code) in ansible/utils/collection_loader/_collection_finder.py): it compiles each file anew
in each run, which takes more than a second for the 230 files of a plan.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader

COLLECTION = "ansible_collections.dgxspark.vllm.plugins."


class _Finder:
    """Finds modules of the collection for C(sys.meta_path)."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the specification of a module, None for what belongs to others."""
        if not name.startswith(COLLECTION) or not path:
            return None
        specs = (_folder_finder(folder).find_spec(name) for folder in path)
        return next((spec for spec in specs if spec and spec.loader), None)  # a folder without code is Ansible's


@cache
def _folder_finder(folder: str) -> FileFinder:
    return FileFinder(folder, (SourceFileLoader, [".py"]))


def keep_bytecode() -> None:
    """Let Python keep and use the bytecode of all modules of the collection that are imported from now on.

    Only in the place of Ansible's own finder: a program that puts another one before it, as ansible-test does, goes by that.
    """
    if sys.meta_path and type(sys.meta_path[0]).__module__.startswith("ansible.utils.collection_loader"):
        sys.meta_path.insert(0, _Finder)
