# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the state document of a host from its plan; parts that are planned as absent have no rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .._host.host_state import HostState, merge
from . import unit_files

PARTS = {"services": "service", "live": "guard", "protection": "guard", "gpu_clocks": "guard", "power": "guard"}
"""Parts that parts of C(unit_files.render) belong to, where the name is another."""


def planned_state(
    planned: Mapping[str, Any],
    addons: Mapping[str, Any] | None = None,
    variables: Mapping[str, Any] | None = None,
    render: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> HostState:
    """Return the state document of a host.

    :param variables: variables of roles that somebody has set, by their names; the others have the roles' defaults
    :returns: rows with the part that owns each; files hold a text, or name a file of the controller or of this collection
    :raises ValueError: for a text that no unit can hold
    """
    parts = unit_files.render(planned, addons, variables)
    return merge(HostState.from_dict(render(document), PARTS.get(name, name)) for name, document in parts.items())
