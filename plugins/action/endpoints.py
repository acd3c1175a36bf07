# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show the endpoints of planned services; documented in plugins/modules/endpoints.py."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import key_files
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import parse_json
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import reach
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import ControllerAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.events import EventLog
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.plan_input import address_of, resolve
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()


class ActionModule(ControllerAction):
    """Print the endpoints of the hosts of the play."""

    def act(self) -> dict[str, Any]:
        """Return the endpoints after printing them."""
        args, variables = self.args, self.variables
        planned = variables.get(args["planned_from"]) or {}
        addons = _bodies(planned.get("addons") or {}, planned.get("for_all") or [])
        gateways = [host for host, body in addons.items() if body.get("gateway")]
        # One host more than fits: a fleet need not be read whole.
        names = [str(host) for host in variables.get("ansible_play_hosts") or []][: reach.MOST + 1]
        hosts = _bodies(planned.get("hosts") or {}, names)
        ways = {host: way_to(host, variables["hostvars"][host]) for host in dict.fromkeys([*gateways, *names])}
        listed = reach.endpoints(hosts, addons, ways, args["services"])
        if listed:
            vaults = filter(_is_vault, {entry.key_file for entry in listed})
            display.display(reach.text(listed, str(Path.home()), sorted(vaults)))
        keys = ("models", "host", "controller_url", "lan", "key_file")
        rows = [{key: getattr(entry, key) for key in keys} for entry in listed]
        for row in rows:
            EventLog.write("endpoint", **row)
        return {"changed": False, "endpoints": rows, "_ansible_verbose_override": True}


def _is_vault(path: str) -> bool:
    """Tell whether a key file is an Ansible vault; an unreadable one counts as none."""
    with contextlib.suppress(OSError, ValueError), Path(path).open("rb") as file:
        return file.read(len(key_files.VAULT)) == key_files.VAULT
    return False


def _bodies(planned: Mapping[str, Any], hosts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return a part of a plan for some hosts. planned: of the module plan, whose bodies may be texts."""
    bodies = {str(host): planned[host] for host in hosts if host in planned}
    return {
        host: parse_json(body, host, exact=True) if isinstance(body, str) else plain(body)
        for host, body in bodies.items()
    }


def way_to(host: str, hostvars: Mapping[str, Any]) -> reach.Way:
    """Return how the controller reaches a host."""
    address = address_of(host, hostvars)
    if hostvars.get("ansible_connection") == "local":
        return reach.Way(address, (), "")
    user, port = hostvars.get("ansible_user") or "", int(hostvars.get("ansible_port") or 22)
    login = [*(["-p", str(port)] if port != 22 else []), f"{user}@{address}" if user else address]
    return reach.Way(address, login, own_address(address, port))


def own_address(address: str, port: int) -> str:
    """Return the controller's own address on the way to another one; empty if unknown. Nothing is sent."""
    for resolved in resolve(address):
        family = socket.AF_INET6 if ":" in resolved else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((resolved, port))
            return str(probe.getsockname()[0])
    return ""
