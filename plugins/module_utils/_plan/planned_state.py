# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the state document of a host from its plan; parts that are planned as absent are rows that remove their files and units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .._cluster import relay
from .._host.host_state import HostState, merge
from . import unit_files

PARTS = {"services": "service", "protection": "guard", "gpu_clocks": "guard"}
"""Parts that components of C(unit_files.render) belong to, where the name is another."""
ABSENT: dict[str, dict[str, Any]] = {
    "ollama": {
        "units": [{"name": "spark-ollama.service", "state": "absent"}],
        "removed": ["/etc/dgxspark/ollama.json", unit_files.OLLAMA_ETC],
    },
    # Other files that these programs import belong to other parts too.
    "watchdog": {
        "units": [{"name": "spark-watchdog.service", "state": "absent"}],
        "removed": [
            "/etc/dgxspark/watchdog",
            f"{unit_files.LIBRARY}/_runtime/wedge.py",
            unit_files.PYTHON_STACKS,
            f"{unit_files.LIBEXEC}/spark_watchdog.py",
            "/var/lib/dgxspark/watchdog",
        ],
    },
    "guard": {
        "units": [{"name": "spark-guard.service", "state": "absent"}],
        "removed": ["/etc/dgxspark/guard", f"{unit_files.LIBEXEC}/spark_guard.py", "/var/lib/dgxspark/guard"],
    },
    # A stop of the limit gives the driver its own clocks back.
    "gpu_clocks": {"units": [{"name": "spark-gpu-clocks.service", "state": "absent"}]},
    "relay": {"units": [{"name": relay.UNIT, "state": "absent"}]},
}
"""Documents that remove a component."""


def absent(component: str) -> dict[str, Any]:
    """Return the document that removes a component. Raises ValueError for other components."""
    if component not in ABSENT:
        raise ValueError(f"{component}: only {', '.join(ABSENT)} can be absent")
    return {"folders": [], "files": [], "removed": [], **ABSENT[component]}


def planned_state(
    planned: Mapping[str, Any],
    addons: Mapping[str, Any] | None = None,
    variables: Mapping[str, Any] | None = None,
    render: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> HostState:
    """Return the state document of a host.

    :param planned: the host's part of a plan
    :param addons: its part of the plan of add-on services
    :param variables: variables of roles that somebody has set, by their names; the others have the roles' defaults
    :param render: returns a component of C(unit_files.render) with texts in place of its templates
    :returns: rows with the part that owns each; files hold a text, or name a file of the controller or of this collection
    :raises ValueError: for a text that no unit can hold
    """
    made = unit_files.render(planned, addons, variables)
    for component in _absent(addons or {}):
        made[component] = absent(component)
    guard = (addons or {}).get("guard")
    if guard and not guard.get("protection"):
        made["protection"] = unit_files.protection({})
    return merge(HostState.from_dict(render(document), PARTS.get(name, name)) for name, document in made.items())


def _absent(addons: Mapping[str, Any]) -> list[str]:
    """Return the components that are planned as absent."""
    names = [
        name for name in ("ollama", "watchdog", "guard") if addons.get(name) and addons[name].get("state") == "absent"
    ]
    guard = addons.get("guard")
    return [*names, "gpu_clocks"] if guard and not guard.get("clocks") else names
