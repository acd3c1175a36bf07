# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What listens where on each host, as whom and behind which key, and which other hosts have to reach it. Pure functions."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from .._vllm import catalogue, versions
from . import endpoints
from .endpoints import Endpoint

HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9_])?")


class Kind(NamedTuple):
    """One kind of server: its name for people, its unit, and whether it is closed to strangers.

    C(closed): the firewall of a Spark admits named hosts alone; servers for people are open and ask for a key or a password.
    """

    title: str
    unit: str
    closed: bool


KINDS: dict[str, Kind] = {
    "engine": Kind("vLLM", "spark-SERVICE", True),
    "asr": Kind("speech to text", "spark-SERVICE", True),
    "tts": Kind("text to speech", "spark-SERVICE", True),
    "ollama": Kind("Ollama", "spark-ollama", True),
    "node-exporter": Kind("node_exporter", "spark-node-exporter", True),
    "gpu-exporter": Kind("nvidia_gpu_exporter", "spark-gpu-exporter", True),
    "prometheus": Kind("Prometheus", "spark-prometheus", True),
    "alertmanager": Kind("Alertmanager", "spark-alertmanager", True),
    "grafana": Kind("Grafana", "spark-grafana", False),
    "gateway": Kind("LiteLLM", "spark-gateway", False),
    "open-webui": Kind("Open WebUI", "spark-open-webui", False),
    "hermes": Kind("Hermes agent", "spark-hermes", False),
    "status-page": Kind("live page of the fleet", "spark-status-page", True),
    "live-page": Kind("live page of a Spark", "spark-agent", True),
}
"""Every kind of server that the collection starts. docs/security.md has accounts, addresses and keys too."""


SYSTEM_PORTS = {22: "the SSH server", 11000: "the DGX Dashboard"}
"""Ports of DGX OS's own servers; dgx-dashboard.service listens on 127.0.0.1:11000 in 7.5 and 7.6. Others are seen on the host itself."""


class Socket(TypedDict):
    """A TCP port that a server of the plan listens on.

    C(address): as it binds it. C(callers): other hosts of the inventory that have to reach it. C(key): whether it asks for one.
    """

    service: str
    kind: str
    unit: str
    address: str
    port: int
    key: bool
    callers: list[str]


# --- who has to reach what ----------------------------------------------------------------------------------------


ASKERS = ("gateway", "monitoring", "fleet_monitor", "clients")


def askers(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the hosts that ask others for something, of all of them: few of a fleet."""
    return {
        host: variables for host, variables in sorted(settings.items()) if any(variables.get(name) for name in ASKERS)
    }


def callers(key: str, kind: str, host: str, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the other hosts that have to reach an endpoint: name to why, C(gateway), C(monitoring) or another subject.

    :param key: C(host/service), or C(cluster/service) for a model over several hosts
    :param settings: of C(askers)
    """
    sources: dict[str, str] = {}
    for other, variables in settings.items():
        if other == host:
            continue
        if variables.get("clients") and kind in ("asr", "tts"):
            page = variables["clients"].get("open_webui") or {}
            if page.get("speech"):
                sources[other] = "clients"
        monitor = variables.get("fleet_monitor")
        if monitor and not {key, key.rpartition("/")[2], host} & set(monitor.get("leave_out") or ()):
            sources[other] = "fleet_monitor"
        if variables.get("monitoring") and kind == "engine":
            sources[other] = "monitoring"
        if variables.get("gateway") and _serves(variables["gateway"], key):
            sources[other] = "gateway"
    return sources


def _serves(gateway: Mapping[str, Any], key: str) -> bool:
    """Tell whether a gateway gives an endpoint requests."""
    named = [
        backend.get("endpoint") for alias in gateway["aliases"].values() for backend in alias.get("backends") or ()
    ]
    return gateway["serve"] == "all" or key in named or (gateway["serve"] != "none" and key in gateway["serve"])


def watchers(host: str, settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the other hosts whose Prometheus asks the exporters of C(host)."""
    return sorted(other for other, variables in settings.items() if other != host and variables.get("monitoring"))


# --- what listens -------------------------------------------------------------------------------------------------


def of_host(
    host: str,
    made: Mapping[str, Any],
    endpoints: Sequence[Endpoint],
    settings: Mapping[str, Mapping[str, Any]],
) -> list[Socket]:
    """Return the sockets of a host once the plan is carried out. made: by role, as C(addons.plan) returns it. settings: of C(askers)."""
    return [
        *_of_endpoints(host, endpoints, settings),
        *_of_agents(host, made, settings),
        *_of_front_ends(made),
    ]


def _socket(service: str, kind: str, address: str, port: int, key: bool, who: Iterable[str] = ()) -> Socket:
    return {
        "service": service,
        "kind": kind,
        "unit": f"{KINDS[kind].unit.replace('SERVICE', service)}.service",
        "address": address,
        "port": port,
        "key": key,
        "callers": sorted(who),
    }


def _of_endpoints(
    host: str, endpoints: Sequence[Endpoint], settings: Mapping[str, Mapping[str, Any]]
) -> Iterator[Socket]:
    """Engines, speech servers and Ollama of a host."""
    for endpoint in endpoints:
        if endpoint["kind"] != "external":
            kind = "engine" if endpoint["kind"] == "vllm" else endpoint["kind"]
            who = callers(endpoint["key"], kind, host, settings)
            yield _socket(
                endpoint["service"], kind, endpoint["listen"], endpoint["port"], bool(endpoint["api_key_file"]), who
            )


def _of_agents(host: str, made: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> Iterator[Socket]:
    """Exporters, which the Prometheus of other hosts asks, and the live page, which their fleet monitor reads."""
    exporters = made.get("exporters") or {}
    for kind, runs, port in (
        ("node-exporter", exporters.get("node_exporter") == "managed", "node_port"),
        ("gpu-exporter", exporters.get("gpu_exporter"), "gpu_port"),
    ):
        if runs:
            yield _socket(kind, kind, exporters["listen"], exporters[port], False, watchers(host, settings))
    page = (made.get("guard") or {}).get("live")
    if page:
        readers = [
            other
            for other, variables in settings.items()
            if other != host and (variables.get("fleet_monitor") or {}).get("page_port")
        ]
        yield _socket("live-page", "live-page", page["listen"], page["port"], bool(page["key"]), readers)


def _of_front_ends(made: Mapping[str, Any]) -> Iterator[Socket]:
    """Gateway, monitoring, the status page and clients; made: see C(of_host)."""
    front = made.get("gateway")
    if front:
        yield _socket("gateway", "gateway", front["listen"], front["port"], not front["settings"]["open"])
    watching = made.get("monitoring")
    if watching:
        runs = {
            "prometheus": True,
            "alertmanager": watching["alertmanager"],
            "grafana": watching["grafana"] != "none",
        }
        for kind, front_end in runs.items():
            if front_end:
                yield _socket(kind, kind, watching["listen"], watching[f"{kind}_port"], kind == "grafana")
    page = (made.get("fleet_monitor") or {}).get("page")
    if page:
        yield _socket("status-page", "status-page", page["listen"], page["port"], bool(page["key_file"]))
    for name, kind in (("open_webui", "open-webui"), ("hermes", "hermes")):
        client = (made.get("clients") or {}).get(name)
        if client:
            yield _socket(kind, kind, client["listen"], client["port"], client.get("auth", True))


# --- addresses ----------------------------------------------------------------------------------------------------


def addresses(entry: str, hosts: Mapping[str, Sequence[str]], resolve: Callable[[str], Sequence[str]]) -> list[str]:
    """Return the addresses or networks that an entry of C(spark_allow_from), or a host of the inventory, stands for.

    Loopback is left out, since nobody comes from there over a network; so is any text that is neither address nor name.

    :param entry: an address, a network, a host of the inventory or a name
    :param hosts: addresses or names of the inventory's hosts, the best first
    :param resolve: returns the addresses of a name, none for an unknown name
    """
    for name in hosts.get(entry) or [entry]:
        try:
            network = as_network(name.rstrip("."))
        except ValueError:
            continue  # what Ansible connects to may be more than an address, as user@host is
        networks = [network] if network else [resolved for resolved in map(as_network, resolve(name)) if resolved]
        usable = [resolved for resolved in networks if not ipaddress.ip_network(resolved).is_loopback]
        if usable:
            return sorted(set(usable))
    return []


def as_network(text: str) -> str | None:
    """Return an address or network in one spelling, None for a name. Raises ValueError for what cannot be either."""
    try:
        network = ipaddress.ip_network(text, strict=False)
        if "%" in text:  # an address of one link, which no other host has
            raise ValueError(text)
    except ValueError:
        if not HOST_NAME.fullmatch(text) or re.fullmatch(r"[0-9.]+", text):
            raise ValueError(f"{text!r} is no address, network or host") from None
        return None
    return str(network.network_address) if network.num_addresses == 1 else str(network)


def collapsed(networks: Iterable[str]) -> list[str]:
    """Return networks without those that lie in others, as nftables wants them; IPv4 first."""
    parsed = {ipaddress.ip_network(network) for network in networks}
    outer = [
        network
        for network in parsed
        if not any(
            network != other and network.version == other.version and network.subnet_of(other)  # type: ignore[arg-type]
            for other in parsed
        )
    ]
    outer.sort(key=lambda network: (network.version, int(network.network_address)))
    return [str(as_network(str(network))) for network in outer]


# --- what vLLM answers without its key ----------------------------------------------------------------------------

BUILT_IN = ("/docs", "/openapi.json", "/redoc")
"""Of FastAPI itself, unless disable-fastapi-docs takes them away."""
HARMLESS = ("/health", "/ping", "/version", "/ready", "/readyz", "/load", "/metrics", *BUILT_IN, "/static")
"""Paths that report the state of a server, and neither use the model nor change the server."""


def open_paths(version: str | None, env: Mapping[str, Any], args: Mapping[str, Any]) -> list[str] | None:
    """Return the paths that a version of vLLM answers without its key; None where the version is not known.

    Paths of an option are left out if the arguments do not tell whether it is set.
    """
    parsed_version = versions.parse_version(version) if version else None
    if parsed_version is None:
        return None
    spans = catalogue.names("guarded_prefixes")
    prefixes = tuple(name for name, span in spans.items() if span.has(parsed_version) is True)
    if not prefixes:
        return None
    dev = str(env.get("VLLM_SERVER_DEV_MODE") or "0") not in ("", "0")
    paths = [] if args.get("disable-fastapi-docs") else list(BUILT_IN)
    for path, item in catalogue.items("http_paths").items():
        if item.span.has(parsed_version) is False or path.startswith(prefixes):
            continue
        present = {"always": True, "dev": dev, "option": args.get(OPTIONS.get(path, ""))}
        if any(present.get(kind) for kind, span in item.kinds if span.has(parsed_version) is not False):
            paths.append(path)
    return sorted(set(paths))


OPTIONS = {
    "/tokenizer_info": "enable-tokenizer-info-endpoint",
    "/start_profile": "profiler-config",
    "/stop_profile": "profiler-config",
    "/abort_requests": "tokens-only",
    "/fault_tolerance/apply": "enable-fault-tolerance",
    "/fault_tolerance/status": "enable-fault-tolerance",
}
"""Paths that an option adds."""


def is_exposed(address: str) -> bool:
    """Tell whether a server that listens there can be reached from other hosts."""
    return not endpoints.is_loopback(address)
