from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from cluster_fixture import PING
from module_calls import call_module
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.action import fabric_plan
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView
from ansible_collections.dgxspark.vllm.plugins.modules import fabric_check
from ansible_collections.dgxspark.vllm.plugins.modules.fabric_plan import DOCUMENTATION
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.arguments import documented

TEST = {
    "rail": "rail0",
    "topology": "switch",
    "tool": "iperf3",
    "server": "a",
    "client": "b",
    "listen": ["timeout", "60", "iperf3", "-s"],
    "send": ["timeout", "60", "iperf3", "-c", "192.168.100.10"],
}


def run_module(module: Any, capsys: Any, **args: Any) -> dict[str, Any]:
    return call_module(module, args, capsys)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, fake_run: Any) -> Any:
    play(monkeypatch, fake_run)
    return fake_run


@pytest.fixture
def host(tree: Any, fake_run: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        return {"fabric": HostView(fake_run, str(tree), config_root=str(tree)).fabric()}

    return make


# --- fabric_plan


def plan_network(hosts: dict[str, Any], **settings: Any) -> dict[str, Any]:
    defaults = {name: option.get("default") for name, option in documented(DOCUMENTATION).items()}
    return fabric_plan.plan_network({**defaults, "hosts": hosts, **settings})


def test_plan(tree: Any, host: Any) -> None:
    tree.qsfp()
    result = plan_network({"a": host(), "b": host()}, mtu=9000)
    assert result["topology"] == "direct"
    assert result["hosts"]["b"]["rails"][0]["address"] == "192.168.100.11/24"
    assert result["report"][0].startswith("info fabric.assumed: ") and result["bandwidth_tests"] == []


def test_plan_of_hosts_without_facts_or_with_bad_settings(host: Any) -> None:
    with pytest.raises(AnsibleActionFail, match=r"^hosts without the facts of spark_info: a, c$"):
        plan_network({"a": {}, "b": host(), "c": None})
    with pytest.raises(AnsibleActionFail, match="network: "):
        plan_network({"a": host(), "b": host()}, network="10.0.0.1/24")


# --- fabric_check


def test_check_that_finds_nothing(capsys: Any, programs: Any) -> None:
    programs.on("ping", "3 packets transmitted, 3 received, 0% packet loss, time 602ms\n")
    result = run_module(fabric_check, capsys, pings=[PING])
    assert result["findings"] == [] and result["changed"] is False and len(programs.calls) == 1
    assert "8972" in programs.calls[0] and "do" in programs.calls[0]


def test_check_tells_a_wrong_mtu_from_a_dead_link(capsys: Any, programs: Any) -> None:
    programs.on("ping", "3 packets transmitted, 0 received, 100% packet loss, time 602ms\n")
    assert run_module(fabric_check, capsys, pings=[PING])["findings"][0]["rule"] == "fabric.ping"
    programs.on(
        "ping -n -c 3 -i 0.3 -W 1 -M do -s 56", "3 packets transmitted, 3 received, 0% packet loss, time 602ms\n"
    )
    result = run_module(fabric_check, capsys, pings=[PING])
    assert result["findings"][0]["rule"] == "fabric.ping_mtu" and "error fabric.ping_mtu" in result["report"][0]


def test_check_measures(capsys: Any, programs: Any) -> None:
    programs.on("timeout 60 iperf3", '{"end": {"sum_received": {"bits_per_second": 13230000000.0}}}')
    result = run_module(fabric_check, capsys, bandwidth=[TEST], min_gbps={"iperf3": 20})
    assert result["bandwidth"] == [
        {
            **{"rail": "rail0", "topology": "switch", "tool": "iperf3", "server": "a", "client": "b"},
            **{"gbps": 13.23, "error": ""},
        }
    ]
    assert [finding["rule"] for finding in result["findings"]] == ["fabric.slow"]
    assert "one bridge" in result["findings"][0]["fix"]


def test_check_that_cannot_measure(capsys: Any, programs: Any) -> None:
    programs.on("timeout 60 iperf3", "", rc=1, err="iperf3: error - unable to connect\n")
    result = run_module(fabric_check, capsys, bandwidth=[TEST], attempts=1)
    assert result["findings"][0]["rule"] == "fabric.probe_failed" and "unable to connect" in result["report"][0]
    assert run_module(fabric_check, capsys, bandwidth=[])["findings"][0]["rule"] == "fabric.no_probe"
    assert run_module(fabric_check, capsys)["findings"] == []


def test_check_says_what_is_gone_of_a_relay(capsys: Any, programs: Any) -> None:
    programs.on("ip -4 route show", "default via 10.0.0.1 dev enP7s7\n")
    programs.on("systemctl show", "Id=dgxspark-fabric-relay.service\nActiveState=active\nUnitFileState=enabled\n")
    programs.on("/usr/sbin/sysctl", "0\n")
    programs.on("/usr/sbin/iptables", "")
    routes = {
        "network": {"ethernets": {"enp1s0f0np0": {"routes": [{"to": "192.168.102.0/24", "via": "192.168.100.11"}]}}}
    }
    result = run_module(fabric_check, capsys, routes=routes, relay=[{"from": "enp1s0f0np0", "to": "enp1s0f1np1"}])
    assert result["routes"] == ["there is no route to 192.168.102.0/24 via 192.168.100.11 on enp1s0f0np0"]
    assert result["relay"] == ["net.ipv4.ip_forward is not 1: 0"] and result["changed"] is False
    assert run_module(fabric_check, capsys)["relay"] == [] == run_module(fabric_check, capsys)["routes"]
    programs.on("/usr/sbin/iptables", "", rc=4, err="Another app is currently holding the xtables lock\n")
    result = run_module(fabric_check, capsys, relay=[{"from": "enp1s0f0np0", "to": "enp1s0f1np1"}])
    assert result["failed"] and "iptables failed: Another app is currently holding" in result["msg"]


ADD_UP = {
    "service": "glm",
    "host": "a",
    "hosts": ["a", "b"],
    "topology": "direct",
    "argv": ["/usr/bin/docker", "run", "--rm", "image"],
}


def test_check_adds_up_and_leaves_no_container(capsys: Any, programs: Any) -> None:
    programs.on(
        "/usr/bin/docker run", 'a line\ndgxspark-collective: {"backend": "nccl", "nccl": "2.28.9", "gbps": 9.5}\n'
    )
    programs.on("/usr/bin/docker rm", "")
    result = run_module(fabric_check, capsys, collective=ADD_UP, min_gbps={"all_reduce": 80})
    assert result["collective"]["gbps"] == 9.5
    assert [(finding["rule"], finding["service"]) for finding in result["findings"]] == [
        ("fabric.collective_slow", "glm")
    ]
    assert [call[1] for call in programs.calls] == ["rm", "run", "rm"]
    assert programs.calls[1][-2] == "-c" and "def add_up" in programs.calls[1][-1]


def test_check_that_nobody_answers_is_not_known(capsys: Any, programs: Any) -> None:
    programs.on("/usr/bin/docker run", "", rc=125, err="docker: Cannot connect to the Docker daemon\n")
    programs.on("/usr/bin/docker rm", "", rc=1)
    result = run_module(fabric_check, capsys, collective=ADD_UP)
    assert [finding["rule"] for finding in result["findings"]] == ["fabric.collective_unknown"]
    assert "Cannot connect to the Docker daemon" in result["report"][0]


def test_check_mode_adds_nothing_up(capsys: Any, programs: Any) -> None:
    result = run_module(fabric_check, capsys, collective=ADD_UP, _ansible_check_mode=True)
    assert "collective" not in result and programs.calls == []


def test_plugs_in_wrong_ports_are_told_apart_from_what_the_role_repairs(tree: Any, host: Any) -> None:
    tree.qsfp()
    heard = [{"netdev": "enp1s0f0np0", "host": "a", "peer": "enp1s0f0np0"}]
    result = plan_network({"a": {**host(), "heard": []}, "b": {**host(), "heard": heard}})
    assert result["misplugged"] == []
    result = plan_network({name: {**host(), "heard": []} for name in "ab"})
    assert [line.partition(":")[0] for line in result["misplugged"]] == ["error fabric.not_joined"]
    assert set(result["misplugged"]) <= set(result["report"])
