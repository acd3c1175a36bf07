# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The services of a run, by names of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import verbs

DOCUMENTATION = r"""
name: service_select
short_description: Select the services of a run
description:
  - Takes names of services as a person gives them and returns which of them are on which host of the play.
  - Reports names that the inventory does not have, services of hosts outside the play, and engines that span hosts of which the
    play has not all; all problems are reported at once.
options:
  _input:
    description: C(hosts) of what M(dgxspark.vllm.plan) returned.
    type: dict
    required: true
  play:
    description: The hosts of the run, C(ansible_play_hosts_all).
    type: list
    elements: str
    required: true
  names:
    description: Names, as a list or as a text with commas; all services of the play's hosts when empty or V(all).
    type: raw
    default: ''
  required_as:
    description: Name of the variable that O(names) came from, where empty names are a problem too.
    type: str
    default: ''
  addons:
    description: C(addons) of what M(dgxspark.vllm.plan) returned. With it, speech servers on demand may be named, too.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Find the services
  ansible.builtin.set_fact:
    chosen: "{{ spark_planned.hosts | dgxspark.vllm.service_select(ansible_play_hosts_all, 'heavy,fast') }}"
  run_once: true
"""

RETURN = r"""
_value:
  description:
    - C(hosts) has the names of the selected services by host, in start order.
    - C(problems) has what is wrong with the names, a line each.
  type: dict
  sample: {"hosts": {"spark-1": ["heavy", "fast"]}, "problems": []}
"""


def service_select(
    planned: Mapping[str, Mapping[str, Any]],
    play: Sequence[str],
    names: Any = "",
    required_as: str = "",
    addons: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the services of a run."""
    selected = [name for name in verbs.names_of(names) if name != "all"]
    speech_servers = {
        host: [server["name"] for server in (body.get("speech") or {}).get("services", ()) if server.get("on_demand")]
        for host, body in (addons or {}).items()
    }
    hosts, problems = verbs.select(planned, list(map(str, play)), selected, speech_servers)
    if required_as and not selected:
        problems = [f"name the service: -e {required_as}=NAME"]
    return {"hosts": hosts, "problems": problems}


class FilterModule:
    """Filters for the services of a run."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {"service_select": service_select}
