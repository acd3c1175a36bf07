# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of a module of this collection for another Python; the module may come from a folder, an archive or Ansible."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

IMPORTS = re.compile(r"^from (?:__future__|\.[\w.]*) import (?:\([^)]*\)|[^(\n]*)\n", re.MULTILINE)
"""Imports that a joined text does not need."""


def source(module: ModuleType) -> str:
    """Return the text of the file of a module. Ansible's own loader, which a controller has, returns bytes."""
    loader: Any = module.__loader__
    text = loader.get_source(module.__name__)
    return text.decode("utf-8") if isinstance(text, bytes) else str(text)


def program(module: ModuleType, *imported: ModuleType) -> str:
    """Return the text of a program in one piece, which ends with a call of its C(main).

    :param imported: modules of its package that it imports; their texts come first, each after its own imports
    """
    first, *more = [source(part) for part in (*imported, module)]
    return "".join((first, *(IMPORTS.sub("", text) for text in more), "main()\n"))
