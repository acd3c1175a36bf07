# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The endpoints that a run ends with."""

from __future__ import annotations

import json
import shlex
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import reach

KEY = {"name": "VLLM_API_KEY", "source": "/home/me/my-sparks/.secrets/api_key"}
WAY = reach.Way("192.168.1.11", ("me@192.168.1.11",), "192.168.1.5")
LOCAL = reach.Way("192.168.1.11", (), "")


def service(name: str = "small", host: str = "127.0.0.1", port: int = 8001, **more: Any) -> dict[str, Any]:
    fields = {"secrets": [], "args": {}, "state": "started", "gateway": None, "url": f"http://{host}:{port}"}
    return {"name": name, "served_model_name": name, "host": host, "port": port, **fields, **more}


def listed(*services: dict[str, Any], way: reach.Way = WAY, **more: Any) -> list[reach.Endpoint]:
    return reach.endpoints({"spark-1": {"services": services, **more}}, {}, {"spark-1": way})


def shown(*services: dict[str, Any], way: reach.Way = WAY, **more: Any) -> str:
    return reach.text(listed(*services, way=way, **more), "/home/me")


def test_an_engine_on_loopback_is_asked_on_its_spark_and_says_how_it_is_opened() -> None:
    text = shown(service())
    assert "| ssh me@192.168.1.11 curl -sS --json @- http://127.0.0.1:8001/v1/chat/completions" in text
    assert "ssh -N -L 8001:127.0.0.1:8001 me@192.168.1.11" in text
    assert "Only on its own Spark: small." in text and "docs/gateway.md" in text


def test_a_key_is_read_from_its_file() -> None:
    (entry,) = listed(service(host="192.168.1.11", secrets=[KEY]))
    assert (entry.controller_url, entry.lan, entry.tunnel) == (*["http://192.168.1.11:8001/v1"] * 2, [])
    command = reach.request(entry, "/home/me")
    assert '-H "Authorization: Bearer $(cat ~/my-sparks/.secrets/api_key)"' in command
    assert json.loads(shlex.split(command)[-1])["model"] == "small"
    vault = reach.request(entry, "/home/me", [KEY["source"]])
    assert "$(ansible-vault view ~/my-sparks/.secrets/api_key)" in vault
    assert '$(cat /home/me/my-sparks/.secrets/api_key)"' in reach.request(entry, "/root")


def test_a_firewall_that_does_not_admit_the_controller_is_passed_by_ssh() -> None:
    firewall = {"closed": [8001], "admitted": [{"ports": [8001], "from": ["192.168.1.0/24"]}]}
    engine = service(host="192.168.1.11", secrets=[KEY])
    (entry,) = listed(engine, firewall=firewall)
    assert not entry.tunnel and entry.lan == "http://192.168.1.11:8001/v1 (for 192.168.1.0/24)"
    (entry,) = listed(engine, firewall=firewall, way=reach.Way("192.168.1.11", ("spark-1",), "10.0.0.5"))
    assert (entry.controller_url, entry.tunnel) == ("http://127.0.0.1:8001/v1", ["-L", "8001:192.168.1.11:8001"])
    (entry,) = listed(engine, firewall={"closed": [8001], "admitted": []})
    assert entry.lan == "-"


def test_on_the_spark_itself_no_ssh_is_needed() -> None:
    (entry,) = listed(service(), way=LOCAL)
    assert entry.controller_url == "http://127.0.0.1:8001/v1" and "ssh" not in reach.request(entry, "")


def test_two_tunnels_have_two_ports() -> None:
    hosts = {name: {"services": [service()]} for name in ("spark-1", "spark-2")}
    ways = {name: reach.Way(name, (name,), "") for name in hosts}
    ports = [entry.controller_url for entry in reach.endpoints(hosts, {}, ways)]
    assert ports == ["http://127.0.0.1:8001/v1", "http://127.0.0.1:8002/v1"]


def test_a_gateway_comes_first_with_the_key_of_a_client() -> None:
    keys = [{"name": "master", "role": "master", "file": "master"}]
    keys.append({"name": "desk", "role": "client", "file": "client-desk", "aliases": ["writer"]})
    secrets = [{"name": "master", "source": "/m"}, {"name": "client-desk", "source": "/home/me/desk key"}]
    gateway = {"listen": "0.0.0.0", "port": 4000, "settings": {"keys": keys, "names": ["small"]}, "secrets": secrets}
    hosts = {"spark-1": {"services": [service(gateway={"host": "spark-1", "backend": "spark-1/small"})]}}
    both = reach.endpoints(hosts, {"spark-1": {"gateway": gateway}}, {"spark-1": WAY})
    text = reach.text(both, "/home/me")
    assert [list(entry.models) for entry in both] == [["writer"], ["small"]]
    assert "curl -sS http://192.168.1.11:4000/v1/chat/completions" in text and "$(cat ~/'desk key')" in text
    assert "Only on its own Spark" not in text


def test_stopped_services_and_ranks_are_left_out_and_vectors_are_not_chatted_with() -> None:
    rank, stopped = service("rank", url=None), service("stopped", state="stopped")
    vectors = service("vectors", args={"runner": "pooling"})
    assert [entry.models[0] for entry in listed(rank, stopped, vectors)] == ["vectors"]
    assert "Try" not in shown(vectors)
    hosts = {"spark-1": {"services": [stopped, vectors]}}
    assert [entry.models for entry in reach.endpoints(hosts, {}, {"spark-1": WAY}, ["stopped"])] == [["stopped"]]
    assert reach.text([], "/home/me") == ""


def test_a_fleet_fits_on_a_screen() -> None:
    text = shown(*(service(f"s{number}", "192.168.1.11", 8001 + number) for number in range(40)))
    assert len(text.splitlines()) < 24 and "... and more" in text
