# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add-on services of a fleet: speech, Ollama, gateway, clients, exporters, monitoring, watchdogs. Read and planned together.

Each subject has a file for its own rules; this file plans them in the order of their dependencies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .._cluster import sockets
from .._cluster.endpoints import Endpoint
from .._common import variables
from .._common.findings import Finding
from . import clients, fleet_monitor, gateway, guard, live, monitoring, ollama, power, speech, watchdog
from .descriptions import finding
from .servers import ServerHost

ROLES = ("speech", "ollama", "gateway", "clients", "exporters", "monitoring", "fleet_monitor", "watchdog", "guard")
"""Roles of add-on services, in the order in which they run."""
Reader = Callable[[str, Any], tuple[Any, list[str]]]
READERS: dict[str, Reader] = {
    "gateway": gateway.read,
    "clients": clients.read,
    "monitoring": monitoring.read_monitoring,
    "fleet_monitor": fleet_monitor.read,
}
"""Subjects that any host may have."""
ANYWHERE = tuple(f"spark_{subject}" for subject in READERS)
SPARK_READERS: dict[str, Reader] = {
    "speech": speech.read,
    "ollama": ollama.read,
    "exporters": monitoring.read_exporters,
}
"""Subjects that only Sparks may have."""
DEFAULT_READERS: dict[str, Reader] = {
    "watchdog": watchdog.read,
    "load_guard": guard.read_load_guard,
    "guard": guard.read,
    "live": live.read,
    "host_protection": guard.read_protection,
    "gpu_clocks": guard.read_clocks,
    "power": power.read,
}
"""Subjects that each Spark has unless they are switched off."""
SUBJECTS = (*SPARK_READERS, *READERS, *DEFAULT_READERS)
VARIABLES = {f"spark_{subject}": variables.VARIABLES[f"spark_{subject}"] for subject in SUBJECTS}
"""Variables of the inventory. The file of each subject reads the keys below its variable."""
ON_DEMAND = "spark-on-demand.service"
"""Unit of the program that holds the ports of services on demand; systemd passes it their sockets."""
PORTS_CHECKED_HERE = {
    "live-page",
    "node-exporter",
    "gpu-exporter",
    "prometheus",
    "alertmanager",
    "grafana",
    "status-page",
}
"""Kinds of sockets without a finding of their own about shared ports."""


# --- reading ------------------------------------------------------------------------------------------------------


def read(
    host: str, host_variables: Mapping[str, Any], names: Sequence[str], is_spark: bool = True
) -> tuple[dict[str, Any], list[str]]:
    """Read the variables of a host about add-on services.

    :param is_spark: whether the host is in the group C(sparks); others have no speech, Ollama, exporters and watchdogs
    :returns: the settings of each subject with every default, C(None) for a subject that is left out, and messages about wrong values
    """
    messages: list[str] = []
    settings: dict[str, Any] = dict.fromkeys(SUBJECTS)
    for subject, reader in {
        **(DEFAULT_READERS if is_spark else {}),
        **READERS,
        **(SPARK_READERS if is_spark else {}),
    }.items():
        value = host_variables.get(f"spark_{subject}")
        if value is None and subject not in DEFAULT_READERS:
            continue
        settings[subject], wrong = speech.read(host, value, names) if subject == "speech" else reader(host, value)
        messages += wrong
    return settings, messages


def _servers(settings: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the servers of a host: name, settings and the option that names the image, empty without an image. settings: of C(read)."""
    for server in settings["speech"] or ():
        yield server["name"], server, "image"
    for subject in ("ollama", "gateway"):
        if settings[subject]:
            yield subject, settings[subject], "image"
    for client, image_option in (("open_webui", "image"), ("hermes", "")):
        client_settings = (settings["clients"] or {}).get(client)
        if client_settings:
            yield client.replace("_", "-"), client_settings, image_option
    if settings["monitoring"] and settings["monitoring"]["grafana"] == "image":
        yield "grafana", settings["monitoring"], "grafana_image"


def sidecars(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the servers that take memory of a Spark: C([{name, memory_gib, unit, idle}]), with further keys for speech servers.

    C(idle): it has no memory without requests, and unloads its models before an engine starts.
    """
    speech_servers = {server["name"]: speech.sidecar(server) for server in settings["speech"] or ()}
    rows = []
    for name, server, _image_option in _servers(settings):
        if "memory_gib" in server:
            row = speech_servers.get(name, {"name": name, "memory_gib": float(server["memory_gib"])})
            rows.append({**row, "unit": f"spark-{name}.service", "idle": name == ollama.NAME})
    return rows


def images(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the images of a host's add-on services by the name of the server. settings: of C(read)."""
    return dict(sorted((name, server[option]) for name, server, option in _servers(settings) if option))


def with_images(settings: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """Return the settings with other images. change: returns the new image for the name of a server and its image."""
    result = copy.deepcopy(dict(settings))
    for name, server, option in _servers(result):
        if option:
            server[option] = change(name, server[option])
    return result


# --- planning -----------------------------------------------------------------------------------------------------


def plan(hosts: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, dict[str, Any]], dict[str, list[Finding]]]:
    """Plan the add-on services of all hosts.

    :param hosts: host to C({address, settings, engines, engine_facts, planned_gib, service_keys, reserve_gib, left_gib, sets, measured, images,
        gpu_args, sysroot, rails, allow_from, firewall}): C(address) is the address in the inventory, C(settings) the result of C(read),
        C(engines) the endpoints of its engines (C(None) for a host that is no Spark), C(engine_facts) their facts for C(watchdog.plan),
        C(planned_gib) the planned memory of each engine, C(service_keys) the key of each service in the fleet (empty for ranks other than the
        head), C(reserve_gib) the memory in use otherwise, C(left_gib) the free memory with all services running, C(sets) the combinations
        of each exclusive set, C(measured) and C(images) the answers of M(dgxspark.vllm.spark_info), C(gpu_args) options of docker run,
        C(sysroot) the root of /proc and /sys, C(rails) the MTU of each interface of the cluster, C(live_services) the services of its
        live page, C(allow_from) the clients that the firewall admits, C(firewall) whether it has a firewall
    :returns: by host, the variables of each role without their prefix, C(None) for a role that is left out, with the C(sockets) of the
        host; and the findings by host
    """
    planner = _Planner(hosts)
    planner.plan_servers()
    planner.plan_gateways()
    planner.plan_watchdogs()
    planner.plan_observers()
    planner.plan_sockets()
    return planner.outcome, planner.findings


class _Planner:
    """The add-on services of a fleet while they are planned."""

    def __init__(self, hosts: Mapping[str, Mapping[str, Any]]) -> None:
        self.hosts = dict(sorted(hosts.items()))
        self.outcome: dict[str, dict[str, Any]] = {host: dict.fromkeys(ROLES) for host in hosts}
        self.findings: dict[str, list[Finding]] = {host: [] for host in hosts}
        self.gateway_hosts = [host for host, entry in hosts.items() if entry["settings"]["gateway"]]
        self.askers = sockets.askers({host: entry["settings"] for host, entry in hosts.items()})
        self.endpoints: list[Endpoint] = [
            endpoint for entry in self.hosts.values() for endpoint in entry["engines"] or []
        ]
        self.gateways: dict[str, clients.Gateway] = {}
        self.gateway_endpoints: list[Endpoint] = []

    def keep(self, host: str, role: str, planned: tuple[dict[str, Any], list[Finding]]) -> dict[str, Any]:
        """Add the variables of a role and its findings; returns the variables."""
        self.outcome[host][role], findings = planned
        self.findings[host] += findings
        return planned[0]

    def plan_servers(self) -> None:
        """Plan speech and Ollama, and add their endpoints."""
        for host, entry in self.hosts.items():
            endpoints = list(self.endpoints)
            for subject, planner in (("speech", speech.plan), ("ollama", ollama.plan)):
                settings = entry["settings"][subject]
                if settings is not None:
                    outcome, servers, findings = planner(self.server_host(host, entry), settings, endpoints)
                    self.keep(host, subject, (outcome, findings))
                    endpoints += servers
            self.endpoints = endpoints

    def server_host(self, host: str, entry: Mapping[str, Any]) -> ServerHost:
        """Return a host for the planners of servers."""
        measured = entry["measured"] or {}
        has_on_demand = any(unit["name"] == ON_DEMAND for unit in measured.get("units") or ())
        # Sockets of servers on demand, at present or in the plan before.
        held = ("init.scope", ON_DEMAND) if has_on_demand else ()
        exposed_to = "every host in spark_allow_from" if entry["allow_from"] else ""
        return ServerHost(
            host,
            address=entry["address"],
            gateway=self.gateway_hosts[0] if self.gateway_hosts else "",
            gpu_args=entry["gpu_args"],
            listening=[socket for socket in measured.get("listening") or () if socket.get("unit") not in held],
            callers=lambda name, kind: sockets.callers(f"{host}/{name}", kind, host, self.askers),
            admitted=bool(entry["allow_from"]),
            exposed_to=exposed_to if entry["firewall"] else "every host that reaches that address",
            images=entry["images"] or {},
            sets=entry["sets"],
            sysroot=entry["sysroot"],
        )

    def plan_gateways(self) -> None:
        """Plan the gateways."""
        for host in self.gateway_hosts:
            entry = self.hosts[host]
            planned = gateway.plan(host, entry["address"], entry["settings"]["gateway"], self.endpoints)
            outcome, self.gateways[host], endpoint, findings = planned
            self.keep(host, "gateway", (outcome, findings))
            self.gateway_endpoints.append(endpoint)

    def plan_watchdogs(self) -> None:
        """Plan watchdog, guard and exporters of the Sparks."""
        for host, entry in self.hosts.items():
            settings = entry["settings"]
            if entry["engines"] is None:
                continue
            # With the backends of its servers at a gateway on this host.
            keys, backends = entry["service_keys"], self.gateway_backends(host)
            engine_facts = {
                name: {**facts, **({"backend": keys[name]} if keys.get(name) in backends else {})}
                for name, facts in entry["engine_facts"].items()
            }
            self.keep(host, "watchdog", watchdog.plan(host, settings["watchdog"], self.endpoints, engine_facts))
            variables = self.keep(host, "guard", self.plan_guard(host, entry))
            variables["live"] = live.plan(
                host, settings["live"], entry["address"], entry["live_services"], list(entry["rails"]), entry["sysroot"]
            )
            if settings["exporters"] is not None:
                is_asked = entry["allow_from"] or sockets.watchers(host, self.askers)
                address = entry["address"] if is_asked else "127.0.0.1"
                values = (entry["planned_gib"], entry["rails"], entry["sysroot"])
                exporters = monitoring.plan_exporters(host, settings["exporters"], address, *values)
                self.keep(host, "exporters", exporters)

    def gateway_backends(self, host: str) -> Mapping[str, Any]:
        """Return the backends of a gateway on a host by their keys, empty without one."""
        planned = self.outcome[host]["gateway"]
        return planned["settings"]["backends"] if planned else {}

    def plan_guard(self, host: str, entry: Mapping[str, Any]) -> tuple[dict[str, Any], list[Finding]]:
        """Plan the guard, which treats a speech server on demand as an engine on demand."""
        settings, outcome = entry["settings"], self.outcome[host]
        backends = self.gateway_backends(host)
        servers = settings["speech"] or []
        on_demand = [server for server in servers if server["on_demand"]]
        keys = {**entry["service_keys"], **{server["name"]: f"{host}/{server['name']}" for server in on_demand}}
        planned_gib = {**entry["planned_gib"], **{row["name"]: float(row["memory_gib"]) for row in on_demand}}
        return guard.plan(
            host,
            settings["guard"],
            settings["host_protection"],
            settings["gpu_clocks"],
            {name: planned_gib.get(name) for name in keys},
            {name: key for name, key in keys.items() if key in backends},
            [f"spark-{row['name']}" for row in sidecars(settings)],
            entry["reserve_gib"],
            entry["sysroot"],
            speech.unloading(servers, outcome["speech"]["services"]) if outcome["speech"] else [],
            entry["left_gib"],
            (settings["power"]["idle"], (entry["measured"] or {}).get("power"), bool(entry["rails"])),
        )

    def plan_observers(self) -> None:
        """Plan clients, monitoring and the fleet monitor, which use the endpoints of all hosts."""
        exporters = {host: roles["exporters"] for host, roles in self.outcome.items() if roles["exporters"]}
        agents = {
            host: {**roles["guard"]["live"], "address": self.hosts[host]["address"]}
            for host, roles in self.outcome.items()
            if (roles["guard"] or {}).get("live")
        }
        front, scraped = next(iter(self.gateways), None), None
        if front is not None:
            token_file = self.hosts[front]["settings"]["gateway"]["metrics_key_file"]
            scraped = {**self.gateways[front], "path": "/metrics/", "token_file": token_file}
        guarded = [host for host, roles in self.outcome.items() if (roles["guard"] or {}).get("state") == "present"]
        for host, entry in self.hosts.items():
            settings = entry["settings"]
            if settings["clients"]:
                self.keep(host, "clients", clients.plan(host, settings["clients"], self.endpoints, self.gateways))
            if settings["monitoring"]:
                outcome = monitoring.plan_monitoring(host, settings["monitoring"], self.endpoints, exporters, scraped)
                self.keep(host, "monitoring", outcome)
            if settings["fleet_monitor"]:
                monitor = settings["fleet_monitor"]
                fronts = self.gateway_endpoints
                prometheus = monitoring.prometheus_url(settings["monitoring"])
                outcome = fleet_monitor.plan(host, monitor, self.endpoints, fronts, guarded, agents, prometheus)
                self.keep(host, "fleet_monitor", outcome)

    def plan_sockets(self) -> None:
        """Add the sockets of each host, and findings about shared ports."""
        for host, roles in self.outcome.items():
            endpoints = [endpoint for endpoint in self.endpoints if endpoint["host"] == host]
            roles["sockets"] = sockets.of_host(host, roles, endpoints, self.askers)
            self.findings[host] += _port_findings(host, roles["sockets"])


def _port_findings(host: str, listening: Sequence[sockets.Socket]) -> list[Finding]:
    """Return findings about servers whose port DGX OS or another server of the plan has.

    Speech servers, Ollama, the gateway and its clients have their own findings about each other's ports and the ports of engines.
    """
    findings = []
    for index, server in enumerate(listening):
        owner = sockets.SYSTEM_PORTS.get(server["port"], "")
        for earlier in listening[:index]:
            if earlier["port"] == server["port"] and {server["kind"], earlier["kind"]} & PORTS_CHECKED_HERE:
                owner = owner or earlier["service"]
        if owner:
            values: dict[str, Any] = {"port": server["port"], "host": host, "other": owner, "name": server["service"]}
            findings.append(finding("host.port_used", server["service"], **values))
    return findings


def exposure(host: str, listening: Sequence[sockets.Socket], firewall: Mapping[str, Any] | None) -> list[Finding]:
    """Return findings about servers without keys that other hosts reach.

    :param firewall: as C(firewall.plan) returns it, C(None) without one
    """
    if firewall:
        return []
    exposed = [socket for socket in listening if sockets.is_exposed(socket["address"])]
    monitors = [socket for socket in exposed if socket["kind"] in ("prometheus", "alertmanager")]
    findings = []
    if monitors:
        names = " and ".join(f"{sockets.KINDS[socket['kind']].title} on port {socket['port']}" for socket in monitors)
        findings.append(finding("monitoring.open", host=host, servers=names, address=monitors[0]["address"]))
    return findings


class Secret(NamedTuple):
    """A secret that comes from the controller; C(own): only the fleet checks it, so that any value is right."""

    service: str
    name: str
    source: str
    own: bool


def secrets(outcome: Mapping[str, Any]) -> list[Secret]:
    """Return the secrets of a host that come from the controller, each once. outcome: by role, of C(plan)."""
    clients_and_services = [*_service_secrets(outcome), *_client_secrets(outcome["clients"] or {})]
    return list(dict.fromkeys([*clients_and_services, *_monitoring_secrets(outcome["monitoring"] or {})]))


def _service_secrets(outcome: Mapping[str, Any]) -> Iterator[Secret]:
    """Yield the secrets of speech servers, the gateway, the fleet monitor and the live page."""
    for server in (outcome["speech"] or {}).get("services", ()):
        for secret in server["secrets"]:
            yield Secret(server["name"], secret["name"], secret["source"], True)
    for secret in (outcome["gateway"] or {}).get("secrets", ()):
        # A backend may be outside of the fleet; the keys of the fleet's servers are listed with the servers.
        yield Secret("gateway", secret["name"], secret["source"], not secret["name"].startswith("backend-"))
    for secret in (outcome["fleet_monitor"] or {}).get("secrets", ()):
        yield Secret("fleet-monitor", secret["name"], secret["source"], secret["name"] == "page")
    live_key = ((outcome["guard"] or {}).get("live") or {}).get("key")
    if live_key:
        yield Secret("live-page", "key", live_key, True)


def _client_secrets(planned: Mapping[str, Any]) -> Iterator[Secret]:
    """Yield the secrets of Open WebUI and Hermes. planned: the variables of the role clients, or empty."""
    for client in ("open_webui", "hermes"):
        for secret in (planned.get(client) or {}).get("secrets", ()):
            for part in secret["parts"]:
                if part.get("controller"):
                    yield Secret(client.replace("_", "-"), secret["name"], part["controller"], True)


def _monitoring_secrets(monitor: Mapping[str, Any]) -> Iterator[Secret]:
    """Yield the secrets of Prometheus, Alertmanager and Grafana. monitor: the variables of the role, or empty."""
    for job in monitor.get("jobs", ()):
        if job.get("token_file"):
            yield Secret("monitoring", f"key of {job['name']}", job["token_file"], True)
    for receiver in monitor.get("receivers", ()):
        for key, value in sorted(receiver.items()):
            if key.endswith("_file") and value:
                yield Secret("monitoring", f"{key} of receiver {receiver['name']}", value, False)
    if monitor.get("grafana_password_file"):
        yield Secret("monitoring", "Grafana's password", monitor["grafana_password_file"], True)
