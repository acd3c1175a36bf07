# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What listens where, who has to reach it, and what the firewall of a Spark makes of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import addons
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints, sockets
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError

FOLDER = Path(__file__).resolve().parents[5] / "playbooks" / "recipes"
NAME = "qwen3-4b-instruct-2507"
RECIPES = {NAME: yaml.safe_load((FOLDER / f"{NAME}.yml").read_text(encoding="utf-8"))}
FAST = {"name": "fast", "recipe": NAME, "port": 8002, "args": {"gpu-memory-utilization": 0.1, "max-model-len": 8192}}
KEYED = {**FAST, "api_key_file": "/keys/engine"}
GATEWAY = {"master_key_file": "/keys/master"}
NAMES = {"forge.lan": ("192.168.1.20", "fd00::20"), "here.lan": ("127.0.1.1",)}


def made(
    hosts: dict[str, Any] | None = None, host: dict[str, Any] | None = None, resolve: Any = None, **variables: Any
) -> dict[str, Any]:
    spark = {"vars": {"spark_services": [KEYED], **variables}, "address": "192.168.1.11", **(host or {})}
    return engine.make_plan(
        {"spark-1": spark}, RECIPES, other_hosts=hosts, resolve=resolve or (lambda name: NAMES.get(name, ()))
    )


def forge(address: str = "192.168.1.20", **variables: Any) -> dict[str, Any]:
    return {"forge": {"vars": variables or {"spark_gateway": GATEWAY}, "address": address}}


def wall(plan: dict[str, Any]) -> dict[str, Any]:
    return dict(plan["hosts"]["spark-1"]["firewall"] or {})


def rules(plan: dict[str, Any]) -> dict[str, str]:
    return {plan_finding["rule"]: plan_finding["severity"] for plan_finding in engine.plan_findings(plan)}


def listens(plan: dict[str, Any]) -> str:
    return str(plan["hosts"]["spark-1"]["services"][0]["host"])


# --- one Spark


def test_what_nobody_has_to_reach_stays_on_loopback_and_needs_no_firewall() -> None:
    plan = made()
    assert listens(plan) == "127.0.0.1" and plan["hosts"]["spark-1"]["firewall"] is None
    assert rules(plan)["service.local"] == "info"


def test_one_that_was_closed_before_is_opened_again() -> None:
    measured = {"firewall": True, "resident": [], "listening": [], "containers": [], "services": [], "disks": {}}
    assert wall(made(host={"measured": measured}))["state"] == "absent"


@pytest.mark.parametrize(
    "subject",
    [
        {"spark_gateway": GATEWAY},
        {"spark_monitoring": {"grafana": "none"}},
        {"spark_fleet_monitor": {"notify": [{"webhook": {"url": "http://192.168.1.20:9/"}}]}},
    ],
)
def test_a_host_that_has_to_reach_an_engine_is_admitted_and_nobody_else(subject: dict[str, Any]) -> None:
    plan = made(forge(**subject))
    assert listens(plan) == "192.168.1.11"
    assert wall(plan) == {
        "state": "present",
        "fabric": [],
        "peers": [],
        "allowed": [],
        "allowed_udp": [],
        "ranges": False,
        "closed": [8002],
        "admitted": [{"ports": [8002], "from": ["192.168.1.20"]}],
    }


@pytest.mark.parametrize(
    "subject",
    [
        {"spark_gateway": {**GATEWAY, "serve": "none", "aliases": {"big": {"url": "http://192.168.1.9:1", "model": "m"}}}},
        {"spark_gateway": {**GATEWAY, "serve": ["spark-1/other"]}},
        {"spark_fleet_monitor": {"leave_out": ["spark-1/fast"], "notify": [{"webhook": {"url": "http://192.168.1.20:9/"}}]}},
        {"spark_clients": {"hermes": {"model": "fast"}}},
    ],
)  # fmt: skip
def test_a_host_that_has_no_business_with_an_engine_opens_nothing(subject: dict[str, Any]) -> None:
    plan = made(forge(**subject))
    assert listens(plan) == "127.0.0.1" and wall(plan) == {}


def test_what_runs_on_the_same_host_comes_by_loopback() -> None:
    plan = made(spark_gateway=GATEWAY, spark_monitoring={"grafana": "none"}, spark_exporters={})
    assert listens(plan) == "127.0.0.1" and wall(plan) == {}
    assert plan["addons"]["spark-1"]["exporters"]["listen"] == "127.0.0.1"


def test_each_port_admits_those_who_have_to_reach_it() -> None:
    hosts = {
        "forge": {"vars": {"spark_gateway": GATEWAY}, "address": "192.168.1.20"},
        "watch": {"vars": {"spark_monitoring": {"grafana": "none"}}, "address": "192.168.1.21"},
    }
    plan = made(
        hosts,
        spark_exporters={"gpu_port": 9836},
        spark_speech=[{"name": "asr", "kind": "asr"}],
        spark_ollama={"models": []},
        spark_firewall_allowed=[4000, "51820/udp"],
    )
    result = wall(plan)
    assert result["admitted"] == [
        {"ports": [8765, 11434], "from": ["192.168.1.20"]},
        {"ports": [8002], "from": ["192.168.1.20", "192.168.1.21"]},
        {"ports": [9100, 9836], "from": ["192.168.1.21"]},
    ]
    assert result["closed"] == [8002, 8765, 9100, 9836, 11434]
    assert (result["allowed"], result["allowed_udp"]) == ([4000], [51820])
    # Behind the firewall, a server without a key is not open to everybody.
    assert not {"speech.open", "ollama.open", "firewall.off"} & set(rules(plan))


def test_the_inventory_names_further_ones_by_address_network_host_or_name() -> None:
    hosts = {"watch": {"vars": {"spark_monitoring": {"grafana": "none"}}, "address": "192.168.1.21"}}
    plan = made(hosts, spark_allow_from=["10.0.0.0/8", "10.1.2.3", "watch", "forge.lan", "fd00::/64"])
    assert wall(plan)["admitted"] == [
        {"ports": [8002], "from": ["10.0.0.0/8", "192.168.1.20", "192.168.1.21", "fd00::/64"]}
    ]


@pytest.mark.parametrize(
    ("entry", "shown"), [("1.2.3.4.5", "'1.2.3.4.5'"), ("10.0.0.0/99", "'10.0.0.0/99'"), ("a b", "'a b'")]
)
def test_what_is_no_address_is_refused(entry: str, shown: str) -> None:
    with pytest.raises(InventoryError, match=shown):
        made(spark_allow_from=[entry])


def test_a_name_that_nobody_knows_is_an_error_and_so_is_one_that_leads_to_loopback() -> None:
    for name in ("nowhere.lan", "here.lan"):
        assert rules(made(spark_allow_from=[name]))["firewall.address"] == "error"
        plan = made(forge(name))
        assert rules(plan)["firewall.address"] == "error"
        assert "forge has to reach fast" in str(engine.plan_findings(plan))
    assert "firewall.address" not in rules(made(forge("forge.lan")))
    named = forge("nowhere.lan", spark_gateway=GATEWAY, spark_management_address="192.168.1.20")
    assert "firewall.address" not in rules(made(named))


def test_everybody_is_warned_about() -> None:
    assert rules(made(spark_allow_from=["0.0.0.0/0"]))["firewall.everybody"] == "warning"


def test_a_firewall_that_is_switched_off_is_a_finding_where_something_is_reached() -> None:
    assert "firewall.off" not in rules(made(spark_firewall=False))
    plan = made(forge(), spark_firewall=False, spark_ollama={"models": []})
    result = rules(plan)
    assert result["firewall.off"] == result["ollama.open"] == result["service.paths"] == "warning"
    assert wall(plan) == {}
    (message,) = [f["message"] for f in engine.plan_findings(plan) if f["rule"] == "firewall.off"]
    assert "fast on 192.168.1.11:8002" in message and "ollama on 192.168.1.11:11434" in message


def test_who_is_named_uses_servers_without_a_key() -> None:
    plan = made(spark_allow_from=["192.168.1.0/24"], spark_ollama={"models": [], "listen": "0.0.0.0"})
    assert "every host in spark_allow_from" in str(engine.plan_findings(plan))


@pytest.mark.parametrize(
    ("listen", "where", "fires"),
    [
        ("0.0.0.0", "forge", True),
        ("192.168.1.20", "forge", True),
        ("127.0.0.1", "forge", False),
        # There the firewall closes both.
        ("0.0.0.0", "spark-1", False),
    ],
)
def test_prometheus_and_alertmanager_that_anybody_reaches(listen: str, where: str, fires: bool) -> None:
    watching = {"spark_monitoring": {"grafana": "none", "listen": listen}}
    plan = made(forge(**watching)) if where == "forge" else made(**watching)
    assert ("monitoring.open" in rules(plan)) == fires
    if where == "spark-1":
        assert {9090, 9093} <= set(wall(plan)["closed"])


def test_a_host_without_nft_is_named() -> None:
    measured = {"nft": False, "resident": [], "listening": [], "containers": [], "services": [], "disks": {}}
    assert "host.nft" in rules(made(forge(), host={"measured": measured}))
    assert "host.nft" not in rules(made(host={"measured": measured}))


# --- addresses


@pytest.mark.parametrize(
    ("address", "loopback", "every"),
    [
        ("127.0.0.1", True, False),
        ("127.9.9.9", True, False),
        ("::1", True, False),
        ("[::1]", True, False),
        ("0:0:0:0:0:0:0:1", True, False),
        ("::ffff:127.0.0.1", True, False),
        ("localhost", True, False),
        ("127.0.0.1.example.org", False, False),
        ("localhost.example.org", False, False),
        ("192.168.1.11", False, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("0:0:0:0:0:0:0:0", False, True),
        ("0", False, True),
        ("", False, True),
    ],
)
def test_which_addresses_are_loopback_and_which_are_all(address: str, loopback: bool, every: bool) -> None:
    assert (endpoints.is_loopback(address), endpoints.is_any(address)) == (loopback, every)
    assert sockets.is_exposed(address) is not loopback


# --- paths without a key


@pytest.mark.parametrize(
    ("version", "env", "args", "free", "guarded"),
    [
        ("0.10.2", {}, {}, {"/v2/rerank", "/score", "/invocations"}, {"/v1/models", "/pause", "/tokenizer_info"}),
        ("0.15.0", {}, {}, {"/pause", "/inference/v1/generate"}, {"/sleep", "/v1/completions"}),
        ("0.19.0", {}, {}, {"/inference/v1/generate", "/v2/embed"}, {"/pause", "/server_info"}),
        ("0.26.0", {}, {}, {"/generative_scoring", "/tokenize"}, {"/inference/v1/generate", "/v2/rerank"}),
        ("0.32.0", {}, {}, {"/invocations", "/docs"}, {"/pause", "/cohere/v2/chat", "/fault_tolerance/apply"}),
        ("0.32.0", {"VLLM_SERVER_DEV_MODE": "1"}, {}, {"/pause", "/collective_rpc", "/update_weights"}, {"/v1/models"}),
        ("0.26.0", {}, {"enable-tokenizer-info-endpoint": True}, {"/tokenizer_info"}, set()),
        ("0.26.0", {}, {"disable-fastapi-docs": True}, {"/health"}, {"/openapi.json"}),
    ],
)
def test_the_paths_of_a_version(
    version: str, env: dict[str, str], args: dict[str, Any], free: set[str], guarded: set[str]
) -> None:
    result = set(sockets.open_paths(version, env, args) or ())
    assert free <= result and not guarded & result


def test_a_version_that_is_not_known_leaves_it_open() -> None:
    assert sockets.open_paths(None, {}, {}) is None
    assert sockets.open_paths("unknown", {}, {}) is None


def test_every_kind_of_server_is_in_the_table() -> None:
    kinds = {kind for kind in endpoints.KINDS if kind not in ("vllm", "external")} | {"engine"}
    assert kinds <= set(sockets.KINDS)
    assert set(addons.ROLES) >= {"gateway", "exporters"}


def test_the_host_of_the_page_of_the_fleet_reads_the_agents() -> None:
    page = {"page_port": 8090, "leave_out": ["spark-1/fast"], "extra": [{"name": "x", "url": "http://192.168.1.9:1"}]}
    plan = made(forge(spark_fleet_monitor=page), spark_live={"api_key_file": "/keys/live"})
    assert {"ports": [8095], "from": ["192.168.1.20"]} in wall(plan)["admitted"]
    planned = plan["addons"]["forge"]["fleet_monitor"]
    assert planned["page"]["agents"] == [
        {"host": "spark-1", "url": "http://192.168.1.11:8095", "key_file": "/etc/dgxspark/secrets/fleet_monitor/agent"}
    ]
    assert {"name": "agent", "source": "/keys/live"} in planned["secrets"]
    (socket,) = plan["addons"]["forge"]["sockets"]
    assert (socket["kind"], socket["address"], socket["port"]) == ("status-page", "127.0.0.1", 8090)
