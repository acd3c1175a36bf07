# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys are no hosts; names of machines are."""

from __future__ import annotations

import base64
import random
import string
from pathlib import Path

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader

from ansible_collections.dgxspark.vllm.plugins.filter import checked_hosts
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import inventory_check

MACHINES = [
    "spark-1",
    "spark-[a]",
    "localhost",
    "sk-1",
    "sk-bratislava-spark-01",
    "sk-rack12-node3",
    "192.168.1.11",
    "fe80::4abc:ffff:fe12:3456",
    "ip-10-0-0-1.eu-central-1.compute.internal",
    "i-0abcdef1234567890",
    "123e4567-e89b-12d3-a456-426614174000",
    "DESKTOP-A1B2C3D",
    "node001.cluster.example.org",
    "promaxgb10-f3a1.lan",
    "a-very-long-name-of-a-machine-in-rack-12-of-hall-3.example.org",
    "hf_cache",
    "hf_downloaders",
    "hf_mirrors_eu",
    "npm_registry",
    "xai-research-sparks",
    "ghs_runners_eu",
    "ASIA-southeast1-spark",
    "InferenceCluster_Frankfurt_01",
    "DGXSpark-InferenceNode-Rack01",
    "ProductionInferenceHosts2024",
    "sk-spark-8f3a2b1c",
    "gx10-8f3a2b1c",
    "all",
    "ungrouped",
]


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_is_none(name: str) -> None:
    assert not inventory_check.looks_like_key(name)


@pytest.mark.parametrize("seed", range(20))
def test_a_key_is_one_and_is_masked(seed: int) -> None:
    chance = random.Random(seed)
    letters = string.ascii_letters + string.digits
    text = "".join(chance.choices(letters, k=40))
    raw = bytes(chance.randrange(256) for _byte in range(24))
    for key in (
        f"sk-{text}",
        f"sk-proj-{text}",
        f"hf_{text[:34]}",
        f"nvapi-{text}",
        f"ghp_{text[:36]}",
        f"AKIA{text[:16].upper()}",
        f"12345678:{text[:35]}",
        raw.hex(),
        raw.hex().upper(),
        base64.b64encode(raw).decode(),
    ):
        assert inventory_check.looks_like_key(key), key


def write(folder: Path, **files: str) -> None:
    (folder / "hosts.yml").write_text("sparks: {hosts: {spark-1: {}, spark-2: {}}}\n")
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def check(folder: Path) -> str:
    """Return the message about a folder that Ansible reads as an inventory."""
    manager = InventoryManager(DataLoader(), [str(folder)])
    return " ".join(checked_hosts.find_problems(manager.get_groups_dict(), [str(folder)], "", True))


def test_keys_in_a_folder_are_named_by_their_files_alone(tmp_path: Path) -> None:
    keys = {f"secrets__k{number}": f"sk-{number}abcdefghijklmnopqrstuvwxyz0123456789" for number in range(5)}
    write(tmp_path, **{name: f"{key}\n" for name, key in keys.items()})
    message = check(tmp_path)
    assert "5 of the inventory's hosts are keys or passwords" in message
    assert f"Move '{tmp_path}/secrets/k3' to '{tmp_path}/.secrets/k3'" in message
    assert not any(key in message or key[3:12] in message for key in keys.values())


def test_a_password_is_known_by_its_file(tmp_path: Path) -> None:
    write(tmp_path, secrets__grafana="hunter2\n")
    message = check(tmp_path)
    assert f"Move '{tmp_path}/secrets/grafana' to '{tmp_path}/.secrets/grafana'" in message and "hunter2" not in message


def test_a_key_of_no_known_file_stops_as_well() -> None:
    (message,) = checked_hosts.find_problems({"all": ["spark-1", "hf_abcdefgh12345678"]}, None, "", True)
    assert "Move the file with it out of the inventory" in message and "abcdefgh" not in message


def test_inventories_as_people_keep_them_go_through(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            "more": "[rack_a]\nnode[001:020]\nspark-key ansible_host=192.168.1.5\n",
            "keys": "[keyservers]\nkeys-1\nkeys-2\n",
            ".secrets__key": "sk-abcdefghijklmnopqrstuvwxyz0123456789\n",
            "README.md": "hunter2\n",
            "group_vars__sparks.yml": "x: sk-abcdefghijklmnopqrstuvwxyz0123456789\n",
        },
    )
    assert check(tmp_path) == ""
