# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents of parts whose files are templates of their roles: the firewall, and the network of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import firewall as planning
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import relay
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.render import render_template

SYSTEM = "/etc/systemd/system"
NFT = "/usr/sbin/nft"
TABLE_FILE = "/etc/dgxspark/firewall.nft"
TABLE_COMMAND = [NFT, "--stateless", "list", "table", "inet", "dgxspark"]
LISTING = "/var/lib/dgxspark/firewall"
"""The table as the kernel printed it after the last load."""
FIREWALL_UNIT = "spark-firewall.service"
NETWORK_FILE = "/etc/netplan/40-cx7.yaml"  # __fabric_netplan of the role


def firewall(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of the firewall. planned: of C(firewall.plan). Raises ValueError for values that are no ports, addresses or interfaces."""
    problems = planning.problems(planned)
    if problems:
        raise ValueError("; ".join(problems))
    values = {
        "__firewall_sets": planning.sets(planned),
        "firewall_admitted": planned["admitted"],
        "firewall_ranges": planned["ranges"],
    }
    table = render_template("firewall/firewall.nft.j2", values)
    values = {"__firewall_nft": NFT, "__firewall_file": TABLE_FILE}
    unit = render_template(f"firewall/{FIREWALL_UNIT}.j2", values)
    ports = {"fill": ["port_range"]} if planned["ranges"] else {}
    return {
        "folders": [{"path": "/etc/dgxspark"}, {"path": "/var/lib/dgxspark"}],
        "files": [
            {"path": TABLE_FILE, "content": table, "validate": f"{NFT} -c -f %s", **ports},
            {"path": f"{SYSTEM}/{FIREWALL_UNIT}", "content": unit},
        ],
        "units": [
            {
                "name": FIREWALL_UNIT,
                "enabled": True,
                # The table is replaced in one transaction: a restart would leave a moment without it.
                "reload": True,
                "restart_on": [TABLE_FILE],
                "prints": TABLE_COMMAND,
                "printed": LISTING,
                # A stop of the unit deletes the table; a unit that stopped or failed earlier may have left it.
                "clean_up": [NFT, "delete", "table", "inet", "dgxspark"],
            }
        ],
        "created": [LISTING],
    }


def relay_text(ways: Sequence[Mapping[str, str]]) -> str:
    """Return the unit of a host that passes on packets for others. ways: C(relay) of the host's part of the network."""
    return render_template("fabric/relay.service.j2", {"__fabric_own": {"relay": ways}})


def relay_unit(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a host that passes on packets for others.

    planned: C(ways), C(relay) of the host's part of the network, and C(outdated), whether the settings of the unit were changed.
    """
    return {
        "folders": [],
        "files": [{"path": RELAY_FILE, "content": relay_text(planned["ways"])}],
        "units": [{"name": relay.UNIT, "enabled": True, "outdated": planned["outdated"]}],
    }


def network_text(document: Mapping[str, Any]) -> str:
    """Return the netplan file of the role fabric. document: C(netplan) of the host's part of the network."""
    return render_template("fabric/netplan.yaml.j2", {"__fabric_own": {"netplan": document}})


RELAY_FILE = f"{SYSTEM}/{relay.UNIT}"
