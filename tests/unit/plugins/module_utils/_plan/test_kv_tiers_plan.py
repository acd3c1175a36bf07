# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans of services whose KV cache is kept in files."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import kv_tiers, plan, unit_files
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError

GIB = 1 << 30
TIERS = {"host_gib": 8, "disk_gib": 200}
HEAVY = {
    "name": "heavy",
    "recipe": "qwen3-next-80b-a3b-instruct-fp8",
    "port": 8001,
    "image": "vllm/vllm-openai:v0.33.0",
    "kv_tiers": TIERS,
}
FOLDER = "/var/cache/dgxspark/heavy/kv"


def planned(
    measured: dict[str, Any] | None = None, variables: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    service = {**HEAVY, **more}
    host = {"vars": {"spark_services": [service], **(variables or {})}, "address": "192.168.1.11", "measured": measured}
    body: dict[str, Any] = plan.make_plan({"spark-1": host}, RECIPES)["hosts"]["spark-1"]
    return body


def rows(body: dict[str, Any], start: str = "kv_tiers") -> dict[str, dict[str, Any]]:
    return {row["rule"]: row for row in body["findings"] if row["rule"].startswith(start)}


def transfer(body: dict[str, Any]) -> dict[str, Any]:
    command = body["services"][0]["command"]
    text: dict[str, Any] = json.loads(command[command.index("--kv-transfer-config") + 1])
    return text


def wrong(tiers: Any, **more: Any) -> str:
    with pytest.raises(InventoryError) as caught:
        planned(kv_tiers=tiers, **more)
    return str(caught.value)


def test_nothing_is_set_without_the_key() -> None:
    body = planned(kv_tiers=None)
    service = body["services"][0]
    assert "kv-transfer-config" not in service["args"] and "PYTHONHASHSEED" not in service["env"]
    assert "kv_tiers" not in service and "kv_files" not in service["settings"] and not rows(body)
    assert not body["settings"]["kv_folders"]


def test_the_engine_gets_its_options_its_folder_and_its_memory() -> None:
    body = planned()
    service = body["services"][0]
    assert transfer(body) == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 8 * GIB,
            "secondary_tiers": [{"type": "fs", "root_dir": "/root/.cache/dgxspark/kv"}],
        },
    }
    assert service["env"]["PYTHONHASHSEED"] == "0"
    assert {"path": FOLDER, "mode": "0700", "holds": "cache", "remove": "whole"} in service["folders"]
    assert "/var/cache/dgxspark/heavy:/root/.cache/dgxspark" in service["argv"]
    assert service["argv"][service["argv"].index("--shm-size") + 1] == "9g"
    (buffer,) = (row for row in body["memory_map"] if row["label"] == "heavy KV offload buffer")
    blocks = 8 * GIB // service["memory"]["bytes_per_block"]
    assert buffer["gib"] == pytest.approx(blocks * service["memory"]["bytes_per_block"] / GIB, abs=0.01)
    assert body["settings"]["kv_folders"] == [FOLDER]
    # A layout of several groups is planned as without a connector.
    assert service["memory"]["block_size"] == planned(kv_tiers=None)["services"][0]["memory"]["block_size"]


def test_the_plan_says_what_it_is_worth() -> None:
    body = planned(recipe="gpt-oss-20b")
    tiers = body["services"][0]["kv_tiers"]
    assert [row["tokens"] for row in tiers["worth"]] == [32768, 131072]
    long = tiers["worth"][1]
    size = long["gib"] * GIB
    assert long["read_seconds"]["low"] == pytest.approx(size / 5.1e9, rel=0.01)
    assert long["read_seconds"]["high"] == pytest.approx(size / 0.2e9, rel=0.01)
    assert long["prefill_seconds"]["typical"] > 4 * tiers["worth"][0]["prefill_seconds"]["typical"]
    saved = long["prefill_seconds"]["typical"] - long["read_seconds"]["typical"]
    row = rows(body)["kv_tiers.worth"]
    assert row["severity"] == "info" and f"{saved:.3g} s saved" in row["message"]
    assert "8 GiB is memory of the GPU" in row["message"]
    # Windows are written, and only the last one is read back.
    memory = body["services"][0]["memory"]
    assert tiers["written_gib"] == pytest.approx(2 * memory["marginal_bytes_per_token"] * 1e6 / GIB, rel=0.01)
    assert tiers["disk_tokens"] == int(200 * GIB / (2 * memory["marginal_bytes_per_token"]))


def test_tokens_of_a_prompt_that_the_buffer_holds() -> None:
    """The 4B has 144 KiB a token and no windows, so that a GiB holds 7,281 tokens."""
    dense = {"recipe": "qwen3-4b-instruct-2507", "args": {"max-model-len": 65536}}

    def tiers(host_gib: float, **service: Any) -> dict[str, Any]:
        body = planned(kv_tiers={"host_gib": host_gib, "disk_gib": 10}, **service)
        return dict(body["services"][0]["kv_tiers"])

    assert tiers(1, **dense)["prompt_tokens"] == GIB // (144 * 1024)
    assert tiers(32, **dense)["prompt_tokens"] == 65536
    # A million tokens take 137.3 GiB.
    assert tiers(1, **dense)["written_gib"] == 137.3
    assert tiers(1, **dense)["disk_tokens"] == 10 * GIB // (144 * 1024)
    # States of a hybrid model alone are larger than this buffer.
    assert tiers(0.001)["prompt_tokens"] == 0


def test_reading_that_takes_as_long_as_computing_is_a_warning() -> None:
    row = rows(planned(recipe="qwen3-4b-instruct-2507", args={"max-model-len": 65536}))["kv_tiers.worth"]
    assert row["severity"] == "warning" and " s lost" in row["message"]


@pytest.mark.parametrize(("host_gib", "severity"), [(0.001, "error"), (0.5, "warning")])
def test_a_buffer_that_holds_little_is_named(host_gib: float, severity: str) -> None:
    row = rows(planned(recipe="qwen3-4b-instruct-2507", kv_tiers={"host_gib": host_gib, "disk_gib": 10}))[
        "kv_tiers.host"
    ]
    assert row["severity"] == severity and "host_gib" in row["fix"]


def test_a_buffer_that_the_host_does_not_have_is_an_error_with_its_key() -> None:
    row = rows(planned(kv_tiers={"host_gib": 110, "disk_gib": 200}), "memory.host_buffer")["memory.host_buffer"]
    assert row["severity"] == "error" and "kv_tiers" in row["message"] and "host_gib" in row["fix"]
    assert not rows(planned(), "memory.host_buffer")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"image": "vllm/vllm-openai:v0.27.1"}, "older than 0.28.0"),
        ({"image": "vllm/vllm-openai:v0.19.0"}, "lost with the engine"),
        ({"args": {"enable-prefix-caching": False}}, "prefix caching is off"),
        ({"args": {"tensor-parallel-size": 2}}, "spans 2 ranks"),
    ],
)
def test_what_vllm_cannot_do_is_refused(more: dict[str, Any], text: str) -> None:
    row = rows(planned(**more))["kv_tiers.refused"]
    assert row["severity"] == "error" and text in row["message"]


def test_an_unknown_version_is_a_warning() -> None:
    rows_of = rows(planned(image="example.org/vllm:mine"))
    assert rows_of["kv_tiers.refused"]["severity"] == "warning" and "unknown" in rows_of["kv_tiers.refused"]["message"]


def test_a_cluster_is_refused() -> None:
    service = {"name": "big", "recipe": "qwen3-235b-a22b-gptq-int4", "port": 8000, "kv_tiers": TIERS}
    cluster = {"name": "pair", "executor": "mp", "services": [service]}
    hosts = {
        name: {"vars": {"spark_cluster": cluster}, "address": f"192.168.1.{number}"}
        for number, name in enumerate("ab", 1)
    }
    body = plan.make_plan(hosts, RECIPES, groups={"pair": ["a", "b"]})
    messages = [
        row["message"]
        for host in body["hosts"].values()
        for row in host["findings"]
        if row["rule"] == "kv_tiers.refused"
    ]
    assert len(messages) == 1 and "wrong ones without an error" in messages[0]


@pytest.mark.parametrize(
    ("tiers", "text"),
    [
        ({"disk_gib": 5}, "host_gib"),
        ({"host_gib": 0, "disk_gib": 5}, "host_gib"),
        ({"host_gib": "8", "disk_gib": 5}, "host_gib"),
        ({"host_gib": 8, "disk_gib": float("inf")}, "disk_gib"),
        ({**TIERS, "pth": "/data"}, "path"),
        ({**TIERS, "path": "/"}, "kv_tiers.path"),
        ({**TIERS, "path": "data"}, "kv_tiers.path"),
        ({**TIERS, "path": "/proc/kv"}, "kv_tiers.path"),
        ({**TIERS, "path": "/data/../etc/kv"}, "kv_tiers.path"),
        ({**TIERS, "path": "/data/a:b"}, "kv_tiers.path"),
        ("8g", "kv_tiers"),
    ],
)
def test_wrong_input_is_named(tiers: Any, text: str) -> None:
    assert text in wrong(tiers)


@pytest.mark.parametrize("args", [{"kv-transfer-config": {"kv_connector": "NixlConnector"}}, {"kv_offloading_size": 4}])
def test_an_option_beside_the_key_is_refused(args: dict[str, Any]) -> None:
    assert "which 'kv_tiers' sets itself" in wrong(TIERS, args=args)


def test_another_folder_is_mounted() -> None:
    body = planned(kv_tiers={**TIERS, "path": "/data/kv/"})
    service = body["services"][0]
    assert service["kv_tiers"]["folder"] == "/data/kv/heavy"
    assert "/data/kv/heavy:/root/.cache/dgxspark/kv" in service["argv"]


def key(**more: Any) -> str:
    text: str = planned(**more)["services"][0]["settings"]["kv_files"]["key"]
    return text


def test_files_stay_valid_as_long_as_the_cache_is_the_same() -> None:
    same = key()
    assert (
        same
        == key(args={"gpu-memory-utilization": 0.8, "max-num-seqs": 2})
        == key(kv_tiers={"host_gib": 2, "disk_gib": 9})
    )
    others = [
        key(args={"kv-cache-dtype": "fp8"}),
        key(env={"VLLM_KV_CACHE_LAYOUT": "HND"}),
        key(args={"block-size": 64}),
    ]
    assert len({same, *others}) == 4
    files = planned()["services"][0]["settings"]["kv_files"]
    assert files["models"] == [{"repo": "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", "revision": "main"}]
    assert files["hub"] == "/srv/huggingface/hub" and files["folder"] == FOLDER and files["disk_gib"] == 200


DISKS = {"/srv/huggingface": {"free_gib": 900.0, "total_gib": 3700.0}}


@pytest.mark.parametrize(
    ("disk", "is_error"),
    [
        ({"free_gib": 300.0, "total_gib": 900.0, "exists": False}, False),
        ({"free_gib": 204.0, "total_gib": 900.0, "exists": False}, True),
        # Its own files take the space.
        ({"free_gib": 30.0, "total_gib": 900.0, "exists": True}, False),
        ({"free_gib": 30.0, "total_gib": 100.0, "exists": True}, True),
        (None, False),
    ],
)
def test_the_disk_has_room(disk: dict[str, Any] | None, is_error: bool) -> None:
    disks = {**DISKS, **({FOLDER: disk} if disk else {})}
    body = planned({"machine": {"is_spark": True}, "disks": disks, "models": ["Qwen/Qwen3-Next-80B-A3B-Instruct-FP8"]})
    messages = [row["message"] for row in rows(body, "host.disk").values()]
    assert bool(messages) == is_error and all("kv_tiers.disk_gib" in message for message in messages)


def test_a_unit_keeps_the_files_in_bounds() -> None:
    part = unit_files.render(planned())["services"]
    (file,) = (row for row in part["files"] if row["path"].endswith(unit_files.KEEPER))
    assert file["values"]["folders"] == [FOLDER]
    (unit,) = (row for row in part["units"] if row["name"] == unit_files.KEEPER)
    assert "/etc/dgxspark/services/heavy.json" in unit["restart_on"]
    assert "/var/lib/dgxspark/kv_files/heavy.json" in part["created"]
    without = unit_files.render(planned(kv_tiers=None))["services"]
    assert not [row for row in (*without["files"], *without["units"]) if unit_files.KEEPER in str(row)]


def test_every_key_has_a_meaning() -> None:
    assert set(kv_tiers.KEYS) == {"host_gib", "disk_gib", "path"}


def test_stated_memory_has_a_buffer_but_no_known_worth() -> None:
    body = planned(memory_gib=50)
    row = rows(body)["kv_tiers.worth"]
    assert row["severity"] == "info" and "unknown" in row["message"]
    assert any(row["label"] == "heavy KV offload buffer" for row in body["memory_map"])
