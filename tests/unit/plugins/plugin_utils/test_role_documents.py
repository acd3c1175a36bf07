# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The documents of firewall and network have the files that tasks make of the same templates."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_fixture import settled_ring
from playbook_runs import ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import fabric, fabric_layout, firewall, relay
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import role_documents

ROLES = Path(__file__).parents[4] / "roles"
RELAY = fabric_layout.Settings(relay=True)
SETTINGS: dict[str, Any] = {
    "fabric": ["enp1s0f0np0", "enP2p1s0f0np0"],
    "peers": ["192.168.100.0/24", "fe80::1"],
    "allowed": [22, 443],
    "allowed_udp": [51820],
    "closed": ["8000-8010"],
    "ranges": True,
    "admitted": [{"ports": [8000, 8001], "from": ["10.0.0.0/8", "fd00::/8"]}],
}


def templated(folder: Path, role: str, template: str, variables: dict[str, Any]) -> str:
    """What a task makes of a template of a role."""
    content = f"{{{{ lookup('dgxspark.vllm.rendered', '{role}/{template}') }}}}"
    task = {"ansible.builtin.copy": {"content": content, "dest": str(folder / "made"), "mode": "0600"}}
    play = {"hosts": "localhost", "gather_facts": False, "vars": variables, "tasks": [task]}
    (folder / "play.yml").write_text(yaml.safe_dump([play]))
    ran = ansible_playbook("-i", "localhost,", "-c", "local", "play.yml", cwd=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return (folder / "made").read_text()


@pytest.mark.slow
def test_the_table_and_its_unit_are_those_of_the_templates(tmp_path: Path) -> None:
    table, unit = role_documents.firewall(SETTINGS)["files"]
    variables = {
        "__firewall_sets": firewall.sets(SETTINGS),
        "firewall_admitted": SETTINGS["admitted"],
        "firewall_ranges": True,
        "__firewall_nft": role_documents.NFT,
        "__firewall_file": role_documents.TABLE_FILE,
    }
    assert table["content"] == templated(tmp_path, "firewall", "firewall.nft.j2", variables)
    assert unit["content"] == templated(tmp_path, "firewall", "spark-firewall.service.j2", variables)
    assert table["fill"] == ["port_range"] and firewall.HOST_RANGE in table["content"]


@pytest.mark.skipif(not shutil.which("nft") or not shutil.which("unshare"), reason="asks nft")
@pytest.mark.parametrize("ranges", [True, False])
def test_nft_takes_the_table(tmp_path: Path, ranges: bool) -> None:
    table = role_documents.firewall({**SETTINGS, "ranges": ranges})["files"][0]
    assert ("fill" in table) is ranges
    (tmp_path / "table.nft").write_text(table["content"].replace(firewall.HOST_RANGE, "32768-60999"))
    namespace = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*namespace, "nft", "list", "tables"], check=False, capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    done = subprocess.run([*namespace, "nft", "-c", "-f", "table.nft"], cwd=tmp_path, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_settings_that_no_table_can_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="x of firewall_closed is no port and no FIRST-LAST"):
        role_documents.firewall({**SETTINGS, "closed": ["x"]})


@pytest.mark.slow
def test_the_files_of_the_network_are_those_of_the_templates(tmp_path: Path) -> None:
    network = fabric.plan(settled_ring(["s1", "s2", "s3", "s4"], RELAY), RELAY)["hosts"]["s1"]
    assert "routes:" in role_documents.network_text(network["netplan"])
    variables = {"__fabric_own": network}
    assert role_documents.network_text(network["netplan"]) == templated(
        tmp_path, "fabric", "netplan.yaml.j2", variables
    )
    assert role_documents.relay_text(network["relay"]) == templated(tmp_path, "fabric", "relay.service.j2", variables)
    places = yaml.safe_load((ROLES / "fabric" / "vars" / "main.yml").read_text())
    assert places["__fabric_netplan"] == role_documents.NETWORK_FILE
    document = role_documents.relay_unit({"ways": network["relay"], "outdated": True})
    assert document["files"] == [
        {"path": f"/etc/systemd/system/{relay.UNIT}", "content": role_documents.relay_text(network["relay"])}
    ]
    assert document["units"] == [{"name": relay.UNIT, "enabled": True, "outdated": True}]
