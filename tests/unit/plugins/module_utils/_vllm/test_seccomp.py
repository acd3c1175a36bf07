# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The seccomp profile of engines that read by io_uring: what it allows, and who gets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.docker_run import read_docker_run, read_options
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import unit_files
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import seccomp

ROOT = Path(__file__).resolve().parents[5]
NAMES = ("qwen3.8-flash-next-nvfp4", "qwen3-4b-instruct-2507", "deepseek-v4.1-flash")
RECIPES = {name: yaml.safe_load((ROOT / f"playbooks/recipes/{name}.yml").read_text(encoding="utf-8")) for name in NAMES}


def planned(recipe: str, **more: Any) -> dict[str, Any]:
    """The part of its host in the plan of one service."""
    variables = {"spark_services": [{"name": "m", "recipe": recipe, "port": 8001}], **more}
    made: dict[str, Any] = engine.make_plan({"h": {"vars": variables, "address": "192.168.1.11"}}, RECIPES)
    host: dict[str, Any] = made["hosts"]["h"]
    return host


def options(service: dict[str, Any]) -> list[str]:
    """The security options of a service's container."""
    run = read_docker_run(service["argv"])
    assert run is not None
    return run.values("--security-opt")


def calls(action: str = "SCMP_ACT_ALLOW", **where: Any) -> set[str]:
    """Names of the calls that the profile has a rule for, without condition unless one is given."""
    return {
        name
        for rule in json.loads(seccomp.profile())["syscalls"]
        if rule["action"] == action
        and {key: rule.get(key) for key in ("args", "includes")} == {"args": None, "includes": None, **where}
        for name in rule["names"]
    }


def test_the_profile_allows_what_a_server_needs_and_denies_what_docker_denies() -> None:
    always = calls()
    assert {
        "read",
        "openat",
        "mmap",
        "futex",
        "epoll_wait",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
    } <= always
    denied = "mount umount2 unshare setns bpf keyctl add_key request_key kexec_load init_module reboot swapon userfaultfd open_by_handle_at"
    assert not set(denied.split()) & always
    assert json.loads(seccomp.profile())["defaultAction"] == "SCMP_ACT_ERRNO"


def test_namespaces_and_address_families_are_conditions() -> None:
    rules = json.loads(seccomp.profile())["syscalls"]
    families = {rule["args"][0]["value"] for rule in rules if rule["names"] == ["socket"]}
    assert not {38, 40} & families  # AF_ALG, AF_VSOCK
    assert {16, 44} <= families  # AF_NETLINK, AF_XDP
    clone = next(rule for rule in rules if rule["names"] == ["clone"])
    assert clone["args"] == [{"index": 0, "value": 0x7E020000, "op": "SCMP_CMP_MASKED_EQ"}]
    assert calls("SCMP_ACT_ERRNO") == {"clone3"}
    assert calls(includes={"arches": ["amd64"]}) == {"arch_prctl", "modify_ldt"}
    assert "mbind" in calls(includes={"caps": ["CAP_SYS_NICE"]})


@pytest.mark.parametrize(
    ("args", "env", "reader"),
    [
        ({"load-format": "b12x"}, {}, "--load-format b12x"),
        ({"engram-config": {"table_memory": "disk"}}, {}, "a table on disk (--engram-config)"),
        ({"engram-config": {"table_memory": "ram"}}, {}, ""),
        ({}, {"VLLM_PLE_TABLE_MEMORY": "disk"}, "VLLM_PLE_TABLE_MEMORY=disk"),
        ({}, {"VLLM_PLE_TABLE_MEMORY": "ram"}, ""),
        ({}, {"B12X_DISK_BACKEND": "io_uring"}, "B12X_DISK_BACKEND=io_uring"),
        ({"load-format": "safetensors"}, {}, ""),
    ],
)
def test_what_reads_by_io_uring_is_named(args: dict[str, Any], env: dict[str, str], reader: str) -> None:
    assert seccomp.needed_for(args, env) == reader


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["--security-opt", "seccomp=unconfined"], True),
        (["--security-opt=seccomp:/p.json"], True),
        (["--privileged"], True),
        (["--privileged=false", "--security-opt", "apparmor=unconfined"], False),
        ([], False),
    ],
)
def test_a_profile_of_ones_own_is_seen(words: list[str], chosen: bool) -> None:
    assert seccomp.chosen(read_options(words)[0]) is chosen


def test_a_service_that_reads_by_io_uring_is_given_the_profile_as_a_file_of_its_host() -> None:
    host = planned("qwen3.8-flash-next-nvfp4")
    (service,) = host["services"]
    (entry,) = service["files"]
    assert options(service) == ["no-new-privileges", f"seccomp={entry['host']}"]
    assert entry["host"].startswith("/etc/dgxspark/files/m/")
    run = read_docker_run(service["argv"])
    assert run and entry["host"] not in [source for source, _target in run.mounts]
    services = unit_files.render(host)["services"]
    (file,) = [file for file in services["files"] if file["path"] == entry["host"]]
    assert file["content"] == seccomp.profile()
    assert {"path": "/etc/dgxspark/files/m", "mode": "0755"} in services["folders"]
    assert "SPKH08" not in {finding["rule"] for finding in host["findings"]}


def test_others_keep_the_profile_of_docker() -> None:
    (service,) = planned("qwen3-4b-instruct-2507")["services"]
    assert options(service) == ["no-new-privileges"]
    assert not service["files"]


@pytest.mark.parametrize("word", ["seccomp=unconfined", "seccomp=/etc/docker/mine.json"])
def test_a_profile_of_ones_own_goes_before_it(word: str) -> None:
    host = planned("qwen3.8-flash-next-nvfp4", spark_docker_args=["--security-opt", word])
    (service,) = host["services"]
    assert options(service) == ["no-new-privileges", word]
    assert not service["files"]


def test_every_container_of_a_rank_has_it() -> None:
    """Workers of Ray are what reads then, and they run in Ray's container."""
    cluster = {
        "name": "c",
        "executor": "ray",
        "services": [{"name": "m", "recipe": "deepseek-v4.1-flash", "port": 8000}],
    }
    hosts = {
        f"s{number}": {"vars": {"spark_cluster": cluster}, "address": f"192.168.1.{number}"} for number in (1, 2, 3)
    }
    made = engine.make_plan(hosts, RECIPES, groups={"c": list(hosts)})
    for host in made["hosts"].values():
        (service,) = host["services"]
        for part in service["parts"]:
            assert any(value.startswith("seccomp=/etc/dgxspark/files/m/") for value in options(part))
