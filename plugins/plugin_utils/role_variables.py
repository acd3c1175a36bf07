# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables of roles: their defaults, and those that are set for a host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import load_yaml
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

ROLES = Path(__file__).resolve().parents[2] / "roles"


def defaults(role: str) -> dict[str, Any]:
    """Return the variables of a role and their defaults."""
    return dict(_load(ROLES / role / "defaults" / "main.yml"))


def arguments(role: str) -> tuple[str, ...]:
    """Return the names of the variables of a role, with those that have no default."""
    return tuple(_load(ROLES / role / "meta" / "argument_specs.yml")["argument_specs"]["main"]["options"])


def own_variables(variables: Mapping[str, Any], resolve: Callable[[Any], Any] | None = None) -> dict[str, Any]:
    """Return the variables of roles that are set for a host.

    variables: all variables of the host. resolve: returns the value of a template; without it, values stay unchanged.
    """
    roles = [path.parts[-3] for path in ROLES.glob("*/defaults/main.yml")]
    described = [path.parts[-3] for path in ROLES.glob("*/templates/state.yml.j2")]
    # The firewall lets Ansible in.
    names = {
        "ansible_port",
        *(name for role in roles for name in defaults(role)),
        *(name for role in described for name in arguments(role)),
    }
    return {
        name: plain(resolve(variables[name]) if resolve else variables[name])
        for name in sorted(names)
        if name in variables
    }


def _load(path: Path) -> dict[str, Any]:
    return _read(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _read(path: Path, _changed: int) -> dict[str, Any]:
    return dict(load_yaml(path.read_text(encoding="utf-8")) or {})
