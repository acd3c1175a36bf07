# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/security.md: its listeners and the paths that vLLM serves without a key agree with the plan and the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import clients, gateway, live, monitoring, speech
from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import ollama as ollama_engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import sockets
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import catalogue, versions

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
NAME = "qwen3-4b-instruct-2507"
RECIPES = {NAME: yaml.safe_load((ROOT / f"playbooks/recipes/{NAME}.yml").read_text(encoding="utf-8"))}


def server_rows() -> dict[str, list[str]]:
    """Return the cells of the page's table of servers, by kind."""
    kinds = {kind.title: name for name, kind in sockets.KINDS.items()}
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return {kinds[cells[0]]: cells for cells in rows if len(cells) == 7 and cells[0] in kinds}


def path_rows() -> str:
    """Return a row for each run of versions that leave the same paths open, the newest first; older rows have the differences from the row above."""
    rows: list[tuple[str, str, list[list[str]]]] = []
    for version in map(str, reversed(catalogue.versions())):
        free = [path for path in sockets.open_paths(version, {}, {}) or () if path not in sockets.HARMLESS]
        dev = sockets.open_paths(version, {"VLLM_SERVER_DEV_MODE": "1"}, {}) or []
        parsed = versions.parse_version(version)
        assert parsed is not None
        prefixes = [name for name, span in catalogue.names("guarded_prefixes").items() if span.has(parsed)]
        cells = [prefixes, free, [path for path in dev if path not in free and path not in sockets.HARMLESS]]
        if rows and rows[-1][2] == cells:
            rows[-1] = (version, *rows[-1][1:])
        else:
            rows.append((version, version, cells))
    lines, above = [], rows[0][2]
    for first, last, cells in rows:
        shown = [
            named(cell) if cell is newer else changed(cell, newer) for cell, newer in zip(cells, above, strict=True)
        ]
        lines.append(
            f"| {first if first == last else f'{first} to {last}'} | {named(cells[0])} | {' | '.join(shown[1:])} |"
        )
        above = cells
    return "\n".join(lines)


def named(paths: list[str]) -> str:
    return " ".join(f"`{path}`" for path in paths)


def changed(paths: list[str], newer: list[str]) -> str:
    """Return how the paths of a version differ from those of the newer one."""
    less, more = ([path for path in one if path not in other] for one, other in ((newer, paths), (paths, newer)))
    return (
        ", ".join([*([f"without {named(less)}"] if less else []), *([f"also {named(more)}"] if more else [])]) or "same"
    )


def test_the_page_has_every_server() -> None:
    rows = server_rows()
    assert list(rows) == list(sockets.KINDS)
    for kind, (_title, unit, account, _port, address, key, reached_by) in rows.items():
        assert unit == f"`{sockets.KINDS[kind].unit}`" and account and address and key
        assert reached_by == ("named hosts" if sockets.KINDS[kind].closed else "everybody")


def test_the_page_has_the_paths_of_every_version() -> None:
    assert path_rows() in PAGE


def test_the_ports_are_those_of_the_settings() -> None:
    defaults = {
        "asr": speech.KINDS["asr"]["port"],
        "tts": speech.KINDS["tts"]["port"],
        "ollama": ollama_engine.KEYS["port"][1],
        "node-exporter": monitoring.EXPORTERS_KEYS["node_port"][1],
        "gpu-exporter": monitoring.EXPORTERS_KEYS["gpu_port"][1],
        "prometheus": monitoring.MONITORING_KEYS["prometheus_port"][1],
        "alertmanager": monitoring.MONITORING_KEYS["alertmanager_port"][1],
        "grafana": monitoring.MONITORING_KEYS["grafana_port"][1],
        "gateway": gateway.KEYS["port"][1],
        "open-webui": clients.OPEN_WEBUI_KEYS["port"][1],
        "hermes": clients.HERMES_KEYS["port"][1],
        "live-page": live.KEYS["port"][1],
    }
    without_port = ("engine", "status-page")  # kinds without a fixed port
    assert {kind: cells[3] for kind, cells in server_rows().items() if kind not in without_port} == {
        kind: str(port) for kind, port in defaults.items()
    }


def fleet(keyed: bool) -> dict[str, Any]:
    """A Spark with everything that a Spark can have, and every other part on that Spark or on another host."""
    key = {"api_key_file": "/keys/engine"} if keyed else {}
    return {
        "spark_services": [{"name": "fast", "recipe": NAME, "port": 8002, "args": {"max-model-len": 65536}, **key}],
        "spark_speech": [
            {"name": "asr", "kind": "asr", **({"api_key_file": "/keys/asr"} if keyed else {})},
            {"name": "tts", "kind": "tts"},
        ],
        "spark_ollama": {"models": []},
        "spark_exporters": {},
        "spark_live": {"api_key_file": "/keys/live"} if keyed else {},
    }


AROUND = {
    "spark_gateway": {"master_key_file": "/keys/master", "clients": [{"name": "hermes", "key_file": "/keys/hermes"}]},
    "spark_clients": {
        "hermes": {"model": "fast"},
        "open_webui": {
            "port": 3001,
            "key_file": "/keys/page",
            "admin": {"email": "a@b.c", "password_file": "/keys/ada"},
        },
    },
    "spark_monitoring": {"grafana_password_file": "/keys/grafana"},
    "spark_fleet_monitor": {"page_port": 8090},
}


def listening(plan: dict[str, Any]) -> dict[tuple[str, str], tuple[str, bool, list[str]]]:
    return {
        (host, listener["kind"]): (listener["address"], listener["key"], listener["callers"])
        for host, body in plan["addons"].items()
        for listener in body["sockets"]
    }


@pytest.mark.parametrize("keyed", [False, True])
def test_on_one_spark_only_what_is_meant_for_people_leaves_loopback(keyed: bool) -> None:
    plan = engine.make_plan({"spark-1": {"vars": {**fleet(keyed), **AROUND}, "address": "192.168.1.11"}}, RECIPES)
    listeners = listening(plan)
    assert {kind for _host, kind in listeners} == set(sockets.KINDS)
    exposed = {kind for (_host, kind), (address, _key, _who) in listeners.items() if sockets.is_exposed(address)}
    assert exposed == {"gateway", "open-webui", *(["live-page"] if keyed else [])}
    assert all(listeners["spark-1", kind][1] for kind in exposed), "each asks for a key or a password"
    wall = plan["hosts"]["spark-1"]["firewall"]
    assert wall["closed"] == [8095] if keyed else wall is None


def test_with_the_rest_on_another_host_each_server_admits_its_callers() -> None:
    plan = engine.make_plan(
        {"spark-1": {"vars": fleet(True), "address": "192.168.1.11"}},
        RECIPES,
        other_hosts={"forge": {"vars": AROUND, "address": "192.168.1.20"}},
    )
    listeners = listening(plan)
    on_spark = {kind: about for (host, kind), about in listeners.items() if host == "spark-1"}
    assert set(on_spark) == {"engine", "asr", "tts", "ollama", "node-exporter", "gpu-exporter", "live-page"}
    assert all(address == "192.168.1.11" and who == ["forge"] for address, _key, who in on_spark.values())
    wall = plan["hosts"]["spark-1"]["firewall"]
    assert wall["closed"] == [8002, 8095, 8765, 8882, 9100, 9835, 11434]
    assert wall["admitted"] == [{"ports": wall["closed"], "from": ["192.168.1.20"]}]
    on_forge = {
        kind for (host, kind), (address, _k, _w) in listeners.items() if host == "forge" and sockets.is_exposed(address)
    }
    assert on_forge == {"gateway", "open-webui"}
