# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The endpoints of planned services as clients reach them: URLs, key files and a request to try. Pure functions."""

from __future__ import annotations

import ipaddress
import json
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .._cluster.endpoints import bracketed, is_any, is_loopback
from .._common import tables

MOST = 12
"""Rows of the table; a fleet has more endpoints than fit on a screen."""
HEADER = ("model", "host", "from here", "from the LAN", "key file")


@dataclass(frozen=True)
class Way:
    """How the controller reaches a host: its address, the words for ssh (none for the controller itself), and the controller's own address."""

    address: str
    login: Sequence[str]
    source: str


@dataclass(frozen=True)
class Endpoint:
    """A server of a host. tunnel: the options of ssh that forward it to the controller, empty if it is reached directly. fronted: a gateway answers for it."""

    host: str
    login: Sequence[str]
    local_url: str
    controller_url: str
    lan: str
    tunnel: Sequence[str]
    models: Sequence[str]
    key_file: str
    chat: bool
    fronted: bool


def endpoints(
    hosts: Mapping[str, Mapping[str, Any]],
    addons: Mapping[str, Mapping[str, Any]],
    ways: Mapping[str, Way],
    names: Sequence[str] = (),
) -> list[Endpoint]:
    """Return the endpoints of the hosts in C(ways), gateways first. names: of the services; empty for all that are not stopped."""
    used: set[int] = set()
    gateways = [
        _endpoint(host, way, _gateway(gateway), used)
        for host, way in ways.items()
        if (gateway := (addons.get(host) or {}).get("gateway"))
    ]
    engines = [
        _endpoint(host, way, _engine(hosts[host], service), used)
        for host, way in ways.items()
        for service in (hosts.get(host) or {}).get("services", ())
        if service["url"] and (service["name"] in names if names else service["state"] != "stopped")
    ]
    return [*([] if names else gateways), *engines]


def _gateway(gateway: Mapping[str, Any]) -> dict[str, Any]:
    """Return models, key file and so on of a gateway, as C(_endpoint) takes them."""
    keys = sorted(gateway["settings"]["keys"], key=lambda key: key["role"] != "client")
    files = {secret["name"]: secret["source"] for secret in gateway["secrets"]}
    key = keys[0] if keys else {}
    models, key_file = key.get("aliases") or gateway["settings"]["names"], files.get(key.get("file", ""), "")
    about = {"models": models, "key_file": key_file, "chat": True, "fronted": False}
    return {"listen": gateway["listen"], "port": gateway["port"], "admitted": None, "about": about}


def _engine(body: Mapping[str, Any], service: Mapping[str, Any]) -> dict[str, Any]:
    """Return models, key file and so on of an engine, as C(_endpoint) takes them. admitted: clients by the firewall, None for all."""
    key = next((secret["source"] for secret in service["secrets"] if secret["name"] == "VLLM_API_KEY"), "")
    chat = not (service["args"].get("runner") == "pooling" or service["args"].get("convert"))
    firewall, port, admitted = body.get("firewall") or {}, service["port"], None
    if port in firewall.get("closed", ()):
        admitted = [client for row in firewall["admitted"] if port in row["ports"] for client in row["from"]]
    models, fronted = [service["served_model_name"]], bool(service["gateway"])
    about = {"models": models, "key_file": key, "chat": chat, "fronted": fronted}
    return {"listen": service["host"], "port": port, "admitted": admitted, "about": about}


def _endpoint(host: str, way: Way, server: Mapping[str, Any], used: set[int]) -> Endpoint:
    """Return an endpoint. server: of C(_gateway) or C(_engine). used: forwarded ports."""
    listen, port, admitted = server["listen"], server["port"], server["admitted"]
    loopback, every = is_loopback(listen), is_any(listen)
    target = "127.0.0.1" if loopback or every else bracketed(listen)
    outside = f"http://{bracketed(way.address if every else listen)}:{port}/v1"
    tunnel: list[str] = []
    local_url = controller_url = f"http://{target}:{port}/v1"
    if way.login:
        controller_url = outside
        if loopback or not _is_admitted(way.source, admitted):
            forwarded = next(number for number in range(port, port + 1000) if number not in used)
            used.add(forwarded)
            controller_url, tunnel = f"http://127.0.0.1:{forwarded}/v1", ["-L", f"{forwarded}:{target}:{port}"]
    lan = "-" if loopback else outside
    if admitted is not None and not loopback:
        lan = f"{outside} (for {', '.join(admitted)})" if admitted else "-"
    return Endpoint(host, way.login, local_url, controller_url, lan, tunnel, **server["about"])


def _is_admitted(source: str, admitted: Sequence[str] | None) -> bool:
    """Tell whether the firewall admits the controller. source: its address; an unknown one counts as admitted."""
    if admitted is None or not source:
        return True
    address = ipaddress.ip_address(source)
    for client in admitted:
        with suppress(ValueError):  # a range or a name
            if address in ipaddress.ip_network(client, strict=False):
                return True
    return False


def text(listed: Sequence[Endpoint], home: str, vaults: Sequence[str] = ()) -> str:
    """Return a table of endpoints, a request, and how to open endpoints on loopback. home: shown as C(~). vaults: encrypted key files."""
    if not listed:
        return ""
    rows = [
        (", ".join(entry.models), entry.host, entry.controller_url, entry.lan, _short(entry.key_file, home) or "none")
        for entry in listed[:MOST]
    ]
    lines = ["", "Endpoints", tables.table(HEADER, rows)]
    if len(listed) > MOST:
        lines.append("... and more; dgxspark.vllm.status lists all services.")
    example = next((entry for entry in listed if entry.chat), None)
    if example:
        lines += ["", f"Try {example.models[0]}:", f"  {request(example, home, vaults)}"]
    lines += _tunnels(listed[:MOST])
    local = [entry.models[0] for entry in listed[:MOST] if entry.lan == "-" and not entry.fronted]
    if local:
        lines.append(
            f"Only on its own Spark: {', '.join(local)}. For other machines set api_key_file and spark_allow_from (docs/security.md), "
            "or add a gateway (docs/gateway.md)."
        )
    return "\n".join(lines)


def _tunnels(listed: Sequence[Endpoint]) -> list[str]:
    """Return for each host the command that forwards its endpoints on loopback to the controller."""
    tunnels: dict[tuple[str, ...], list[Endpoint]] = {}
    for entry in listed:
        if entry.tunnel:
            tunnels.setdefault(tuple(entry.login), []).append(entry)
    return [
        f"{', '.join(entry.models[0] for entry in hidden)}: the URL from here works while this runs: "
        f"ssh -N {' '.join(word for entry in hidden for word in entry.tunnel)} {shlex.join(login)}"
        for login, hidden in tunnels.items()
    ]


def request(entry: Endpoint, home: str, vaults: Sequence[str] = ()) -> str:
    """Return a shell command that asks for a chat completion. It reads the key from its file."""
    body = json.dumps({"model": entry.models[0], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64})
    if entry.tunnel and not entry.key_file:
        # Without a key the request can be sent on the Spark itself.
        curl = f"curl -sS --json @- {entry.local_url}/chat/completions"
        return f"echo {shlex.quote(body)} | ssh {shlex.join(entry.login)} {curl}"
    key = ""
    if entry.key_file:
        show = "ansible-vault view" if entry.key_file in vaults else "cat"
        key = f' -H "Authorization: Bearer $({show} {_short(entry.key_file, home)})"'
    return f"curl -sS {entry.controller_url}/chat/completions{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}"


def _short(path: str, home: str) -> str:
    """Return a path for a shell, below the home folder with C(~)."""
    path = posixpath.normpath(path) if path else ""
    below = path.removeprefix(f"{home.rstrip('/')}/")
    return f"~/{shlex.quote(below)}" if home and below != path else shlex.quote(path) if path else ""
