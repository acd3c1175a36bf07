# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of a module of this collection for another Python; the module may come from a folder, an archive or Ansible."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def source(module: ModuleType) -> str:
    """Return the text of the file of a module. Ansible's own loader, which a controller has, returns bytes."""
    loader: Any = module.__loader__
    text = loader.get_source(module.__name__)
    return text.decode("utf-8") if isinstance(text, bytes) else str(text)


def program(module: ModuleType, *imported: ModuleType) -> str:
    """Return the text of a program in one piece, which ends with a call of its C(main).

    :param module: the program; imports from modules of its package are one line each
    :param imported: these modules, whose text comes first, each after its own imports
    """
    first, *further = [source(part) for part in (*imported, module)]
    lines = [
        line for text in further for line in text.splitlines() if not line.startswith(("from __future__ ", "from ."))
    ]
    return "\n".join((first, *lines, "main()", ""))
