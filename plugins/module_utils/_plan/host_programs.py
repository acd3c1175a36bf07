# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the files of the engine that programs on hosts import; each part copies them to the folder of its programs."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

COLLECTION = Path(__file__).resolve().parents[3]
ENGINE = "plugins/module_utils"
PACKAGE = "dgxspark_vllm"
"""Name of the engine on a host."""
DEMAND_PROGRAMS = tuple(f"roles/service/files/spark_on_demand{name}.py" for name in ("", "_client", "_slot"))
PROGRAMS: dict[str, tuple[str, ...]] = {
    "agent": ("roles/guard/files/spark_agent.py",),
    "fleet_monitor": tuple(f"roles/fleet_monitor/files/spark_{name}.py" for name in ("fleet_monitor", "status_page")),
    "gateway": ("roles/gateway/files/spark_gateway.py",),
    # ray_nodes.py runs inside a container, as a file.
    "host": ("roles/host/files/spark_unit.py", "roles/host/files/spark_rank.py", f"{ENGINE}/_runtime/ray_nodes.py"),
    "on_demand": DEMAND_PROGRAMS,
    "power": ("roles/guard/files/spark_power.py",),
    "unit_helper": ("roles/host/files/spark_unit.py",),
}
"""Programs of each part that import files of the engine, by their paths in the collection."""
IMPORT = re.compile(r"^[ \t]*((?:from[ \t]+[\w.]+[ \t]+)?import[ \t]+(?:\([^)]*\)|[^\n]*))", re.MULTILINE)
"""An import statement. The rest of a file is not parsed: that would take each host of a play half a second."""


@functools.cache
def library_files(part: str) -> tuple[str, ...]:
    """Return PACKAGE/MODULE of the files that the programs of a part import, directly or through others of them, in alphabetical order.

    Raises ValueError for a part that is not in C(PROGRAMS).
    """
    if part not in PROGRAMS:
        raise ValueError(f"{part} has no programs that import the engine; known are {', '.join(PROGRAMS)}")
    waiting = list(PROGRAMS[part])
    files: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path.startswith(ENGINE):
            files.add(path)
        waiting += [name for name in _imports_of(path) if name not in files]
    return tuple(sorted(path[len(ENGINE) + 1 : -len(".py")] for path in files))


@functools.cache
def _imports_of(path: str) -> tuple[str, ...]:
    """Return the files of the engine that a file imports itself. path: in the collection."""
    modules: list[list[str]] = []
    for statement in IMPORT.findall((COLLECTION / path).read_text(encoding="utf-8")):
        try:
            modules += _modules_of(ast.parse(statement).body[0], path)
        except SyntaxError:  # a sentence of a docstring
            continue
    files = (f"{ENGINE}/{'/'.join(module)}.py" for module in modules)
    return tuple(sorted({file for file in files if (COLLECTION / file).is_file()}))


def _modules_of(node: ast.stmt, path: str) -> Iterator[list[str]]:
    """Yield the modules of the engine that a statement may import, each as the parts of its name below the engine."""
    if isinstance(node, ast.Import):
        names = [alias.name.split(".") for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        module = node.module.split(".") if node.module else []
        if node.level:
            folder = path.split("/")[: -node.level]
            module = [PACKAGE, *folder[len(ENGINE.split("/")) :], *module]
        # The name behind C(import) is a module of a package, or a name of a module.
        names = [module, *([*module, alias.name] for alias in node.names)]
    else:
        return
    for name in names:
        if name[0] == PACKAGE and len(name) > 1:
            yield name[1:]
