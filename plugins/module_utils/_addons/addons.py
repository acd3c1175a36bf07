# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add-on services: speech, Ollama, gateway, clients, exporters, monitoring, watchers. Read and planned for a fleet.

Each subject has a file of its own; this one knows in which order they need one another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .._cluster import endpoints as fleet
from .._cluster import sockets
from .._cluster.endpoints import Endpoint
from .._common import variables
from .._common.findings import Finding
from . import clients, fleet_monitor, gateway, guard, load_guard, monitoring, ollama, speech, watchdog

SUBJECTS = (
    "speech",
    "ollama",
    "gateway",
    "clients",
    "exporters",
    "monitoring",
    "fleet_monitor",
    "watchdog",
    "load_guard",
    "guard",
    "host_protection",
    "gpu_clocks",
)
VARIABLES = {f"spark_{subject}": variables.VARIABLES[f"spark_{subject}"] for subject in SUBJECTS}
"""Variables that a person writes. What may stand below them is checked by the file of each subject."""
ANYWHERE = ("spark_gateway", "spark_clients", "spark_monitoring", "spark_fleet_monitor")
"""Those that make sense on a host that is no Spark."""


def read(
    host: str, given: Mapping[str, Any], names: Sequence[str], is_spark: bool = True
) -> tuple[dict[str, Any], list[str]]:
    """Read what a host's variables say about add-on services.

    :param host: name of the host, for messages
    :param given: all variables of the host, by name
    :param names: of the host's services
    :param is_spark: whether the host is one of the group C(sparks); others have no speech, Ollama, exporters and
        watchdogs
    :returns: C({speech, ollama, gateway, ...}) with every default, None for what is not wanted, and messages
        about what is malformed
    """
    messages: list[str] = []
    settings: dict[str, Any] = dict.fromkeys(SUBJECTS)
    readers: dict[str, Any] = {
        "gateway": gateway.read,
        "clients": clients.read,
        "monitoring": monitoring.read_monitoring,
        "fleet_monitor": fleet_monitor.read,
    }
    if is_spark:
        readers |= {
            "speech": lambda where, value: speech.read(where, value, names),
            "ollama": ollama.read,
            "exporters": monitoring.read_exporters,
        }
        # These are on unless they are switched off.
        for subject, reader in (
            ("watchdog", watchdog.read),
            ("load_guard", load_guard.read),
            ("guard", guard.read),
            ("host_protection", guard.read_protection),
            ("gpu_clocks", guard.read_clocks),
        ):
            settings[subject], wrong = reader(host, given.get(f"spark_{subject}"))
            messages += wrong
    for subject, reader in readers.items():
        value = given.get(f"spark_{subject}")
        if value is not None:
            settings[subject], wrong = reader(host, value)
            messages += wrong
    return settings, messages


def sidecars(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what of it takes memory of a Spark: C([{name, memory_gib, unit, idle}]), of speech servers more (C(speech.sidecars)).

    idle: it holds nothing while nobody asks, and is emptied before an engine starts.
    """
    found: list[dict[str, Any]] = []
    if settings["speech"]:
        found += speech.sidecars(settings["speech"])
    if settings["ollama"]:
        found += ollama.sidecars(settings["ollama"])
    if settings["gateway"]:
        found.append({"name": "gateway", "memory_gib": float(settings["gateway"]["memory_gib"])})
    if settings["clients"]:
        found += clients.sidecars(settings["clients"])
    return [{**each, "unit": f"spark-{each['name']}.service", "idle": each["name"] == ollama.NAME} for each in found]


def plan(hosts: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, dict[str, Any]], dict[str, list[Finding]]]:
    """Plan add-on services, for all hosts.

    hosts: host to C({address, settings, engines, planned_gib, service_keys, reserve_gib, left_gib, sets, measured, images, gpu_args,
    sysroot, rails, allow_from, firewall}): its address in the inventory, what C(read) returned, the endpoints of its engines (None for a host that
    is no Spark), what each is planned to hold in GiB, the key of each service in the fleet (empty for ranks behind a head), what is in use
    beside them, what is left with all that may run (C(left_gib)), what of each set on demand runs at most (C(sets)), what
    M(dgxspark.vllm.spark_info) said or
    None, how docker run is given the GPU, where /proc and /sys are read, the interfaces of its cluster's network to their MTU, whom the
    firewall admits beside hosts of the fleet, and whether there is one. Returns, by host, the variables of each role without their prefix,
    None for a role that is not wanted, with what listens there as C(sockets); and findings by host.
    """
    findings: dict[str, list[Finding]] = {host: [] for host in hosts}
    outcome: dict[str, dict[str, Any]] = {host: dict.fromkeys(ROLES) for host in hosts}
    front = [host for host, entry in hosts.items() if entry["settings"]["gateway"]]
    wanted = sockets.askers({host: entry["settings"] for host, entry in hosts.items()})
    known: list[Endpoint] = [each for _host, entry in sorted(hosts.items()) for each in entry["engines"] or []]
    for host, entry in sorted(hosts.items()):
        known += _beside(host, entry, known, front[0] if front else "", wanted, outcome[host], findings[host])
    fronts: dict[str, clients.Gateway] = {}
    doors: list[Endpoint] = []
    for host in front:
        entry = hosts[host]
        settings = entry["settings"]["gateway"]
        outcome[host]["gateway"], found = gateway.plan(host, settings, known)
        findings[host] += found
        fronts[host], door = _front(host, entry["address"], settings, outcome[host]["gateway"], known)
        doors.append(door)
    for host, entry in sorted(hosts.items()):
        if entry["engines"] is not None:
            _watch_spark(host, entry, known, wanted, outcome[host], findings[host])
    exporters = {host: made["exporters"] for host, made in outcome.items() if made["exporters"]}
    for host, entry in sorted(hosts.items()):
        settings = entry["settings"]
        if settings["clients"]:
            outcome[host]["clients"], found = clients.plan(host, settings["clients"], known, fronts)
            findings[host] += found
        if settings["monitoring"]:
            told = [
                {**each, "path": "/metrics/", "token_file": hosts[name]["settings"]["gateway"]["metrics_key_file"]}
                for name, each in fronts.items()
            ]
            outcome[host]["monitoring"], found = monitoring.plan_monitoring(
                host, settings["monitoring"], known, exporters, told[0] if told else None
            )
            findings[host] += found
        if settings["fleet_monitor"]:
            guarded = [name for name, parts in outcome.items() if (parts.get("guard") or {}).get("state") == "present"]
            read = {name: {**made, "address": hosts[name]["address"]} for name, made in exporters.items()}
            outcome[host]["fleet_monitor"], found = fleet_monitor.plan(
                host, settings["fleet_monitor"], known, doors, guarded, read
            )
            findings[host] += found
    own: dict[str, list[Endpoint]] = {host: [] for host in hosts}
    for each in known:
        own[each["host"]].append(each)
    for host in hosts:
        outcome[host]["sockets"] = sockets.of_host(host, outcome[host], own[host], wanted)
        findings[host] += _port_findings(host, outcome[host]["sockets"])
    return outcome, findings


def _port_findings(host: str, listening: Sequence[sockets.Socket]) -> list[Finding]:
    """Return the servers of a host whose port DGX OS or another server of the plan has.

    Speech servers, Ollama, the gateway and its clients have findings of their own about ports of each other and of engines.
    """
    findings = []
    for number, each in enumerate(listening):
        other = sockets.SYSTEM_PORTS.get(each["port"], "")
        for earlier in listening[:number]:
            if earlier["port"] == each["port"] and {each["kind"], earlier["kind"]} & PORTS_CHECKED_HERE:
                other = other or earlier["service"]
        if other:
            findings.append(
                Finding(
                    "host.port_used",
                    "error",
                    f"port {each['port']} of {host} is that of {other}, and cannot be the port of {each['service']}.",
                    fix=f"Give {each['service']} another port.",
                    service=each["service"],
                )
            )
    return findings


PORTS_CHECKED_HERE = {"node-exporter", "gpu-exporter", "prometheus", "alertmanager", "grafana", "status-page"}
ROLES = ("speech", "ollama", "gateway", "clients", "exporters", "monitoring", "fleet_monitor", "watchdog", "guard")
"""Roles that a host may be given, in the order in which they run."""


ON_DEMAND = "spark-on-demand.service"
"""Unit of the program that holds the ports of services on demand; systemd itself hands them to it."""


def _beside(
    host: str,
    entry: Mapping[str, Any],
    known: Sequence[Endpoint],
    front: str,
    wanted: Mapping[str, Mapping[str, Any]],
    outcome: dict[str, Any],
    findings: list[Finding],
) -> list[Endpoint]:
    """Plan speech and Ollama of one host; return the endpoints that they add."""
    added: list[Endpoint] = []
    measured = entry["measured"] or {}
    # What systemd listens on for servers on demand, or did until now.
    held = ("init.scope", ON_DEMAND) if any(unit["name"] == ON_DEMAND for unit in measured.get("units") or []) else ()
    listening = [each for each in measured.get("listening") or [] if each.get("unit") not in held]
    exposed_to = "every host in spark_allow_from" if entry["allow_from"] else ""
    if not entry["firewall"]:
        exposed_to = "every host that reaches that address"
    for subject, engine in (("speech", speech), ("ollama", ollama)):
        settings = entry["settings"][subject]
        if settings is not None:
            outcome[subject], more, found = engine.plan(
                host,
                settings,
                [*known, *added],
                address=entry["address"],
                gateway=front,
                callers=lambda name, kind: sockets.callers(f"{host}/{name}", kind, host, wanted),
                admitted=bool(entry["allow_from"]),
                exposed_to=exposed_to,
                gpu_args=entry["gpu_args"],
                listening=listening,
                **(
                    {"images": entry["images"] or {}, "sets": entry["sets"], "sysroot": entry["sysroot"]}
                    if subject == "speech"
                    else {}
                ),
            )
            added += more
            findings += found
    return added


def _front(
    host: str, address: str, settings: Mapping[str, Any], made: Mapping[str, Any], known: Sequence[Endpoint]
) -> tuple[clients.Gateway, Endpoint]:
    """Return what clients have to know of a gateway, and the endpoint that it is for those who watch."""
    lengths = {each["key"]: each["max_model_len"] for each in known}
    by_name: dict[str, int | None] = {}
    for entry in made["config"]["model_list"]:
        length = lengths.get(str(entry["model_info"]["id"]).removeprefix(f"{entry['model_name']}@"))
        by_name[entry["model_name"]] = max(by_name.get(entry["model_name"]) or 0, length or 0) or None
    router = made["config"]["router_settings"]
    waits: dict[str, clients.Waits] = {}
    for entry in made["config"]["model_list"]:
        own, before = entry["litellm_params"], waits.get(entry["model_name"], {"whole": 0, "silent": 0})
        waits[entry["model_name"]] = {
            "whole": max(before["whole"], own.get("timeout", router["timeout"])),
            "silent": max(before["silent"], own.get("stream_timeout", router["stream_timeout"])),
        }
    allowed = {key["name"]: key.get("aliases") for key in made["settings"]["keys"] if key["role"] == "client"}
    files = {client["name"]: client["key_file"] for client in settings["clients"]}
    front: clients.Gateway = {
        "host": host,
        "address": address if fleet.is_any(made["listen"]) else made["listen"],
        "port": made["port"],
        "listen": made["listen"],
        "keyed": bool(settings["master_key_file"]),
        "models": by_name,
        "waits": waits,
        "clients": {
            name: {"key_file": files[name], "models": list(names if names is not None else by_name)}
            for name, names in allowed.items()
        },
    }
    # With a key of its own for the monitor where it has one.
    key = files.get("fleet-monitor") or settings["master_key_file"] or None
    # Those that the monitor may ask for a token: speech has none, Ollama would load a model for it, and so would an engine on demand.
    checks = {name: backend["check"] for name, backend in made["settings"]["backends"].items()}
    behind: dict[str, list[str | None]] = {}
    for entry in made["config"]["model_list"]:
        backend = str(entry["model_info"]["id"]).removeprefix(f"{entry['model_name']}@")
        behind.setdefault(entry["model_name"], []).append(checks.get(backend))
    asked = [name for name, found in behind.items() if set(found) == {"completion"}]
    door = fleet.make(
        host, address, "gateway", "external", made["port"], made["listen"], models=asked, api_key_file=key
    )
    return front, door


def _watch_spark(
    host: str,
    entry: Mapping[str, Any],
    known: Sequence[Endpoint],
    wanted: Mapping[str, Mapping[str, Any]],
    outcome: dict[str, Any],
    findings: list[Finding],
) -> None:
    """Plan what looks at one Spark from the inside."""
    settings = entry["settings"]
    outcome["watchdog"], found = watchdog.plan(host, settings["watchdog"], known)
    findings += found
    doors = ((outcome["gateway"] or {}).get("settings") or {}).get("backends") or {}
    # A speech server on demand is to the guard what an engine on demand is.
    woken = [each for each in settings["speech"] or [] if each["on_demand"]]
    keys = {**entry["service_keys"], **{each["name"]: f"{host}/{each['name']}" for each in woken}}
    held = {**entry["planned_gib"], **{each["name"]: float(each["memory_gib"]) for each in woken}}
    outcome["guard"], found = guard.plan(
        host,
        settings["guard"],
        settings["host_protection"],
        settings["gpu_clocks"],
        {name: held.get(name) for name in keys},
        {name: key for name, key in keys.items() if key in doors},
        [f"spark-{each['name']}" for each in sidecars(settings)],
        entry["reserve_gib"],
        entry["sysroot"],
        speech.unloading(settings["speech"] or [], (outcome["speech"] or {}).get("services") or []),
        entry["left_gib"],
    )
    findings += found
    if settings["exporters"] is not None:
        asked = entry["allow_from"] or sockets.watchers(host, wanted)
        outcome["exporters"], found = monitoring.plan_exporters(
            host,
            settings["exporters"],
            entry["address"] if asked else "127.0.0.1",
            entry["planned_gib"],
            entry["rails"],
            entry["sysroot"],
        )
        findings += found


def exposure(host: str, listening: Sequence[sockets.Socket], wall: Mapping[str, Any] | None) -> list[Finding]:
    """Return what anybody reaches on a host that asks for no key.

    :param host: its name
    :param listening: what its servers listen on
    :param wall: its firewall as C(firewall.plan) returns it, None where there is none
    :returns: one finding, or none
    """
    exposed = [each for each in listening if sockets.is_exposed(each["address"])]
    watching = [each for each in exposed if each["kind"] in ("prometheus", "alertmanager")]
    findings = [_open_page(host, each) for each in exposed if each["kind"] == "status-page" and not wall]
    if not watching or wall:
        return findings
    names = " and ".join(f"{sockets.KINDS[each['kind']].title} on port {each['port']}" for each in watching)
    return [
        Finding(
            "monitoring.open",
            "warning",
            f"spark_monitoring of {host}: {names} answer on {watching[0]['address']} and ask for no key: whoever reaches the host "
            "reads all figures and silences alerts.",
            fix="Leave spark_monitoring.listen out and come by SSH (ssh -L 3000:127.0.0.1:3000), put a proxy that asks for a "
            "password before them, or let a firewall choose who comes.",
        ),
        *findings,
    ]


def _open_page(host: str, page: sockets.Socket) -> Finding:
    return Finding(
        "fleet_monitor.page_open",
        "warning",
        f"the status page of {host} answers on {page['address']}, port {page['port']}, and asks for no password: whoever reaches the "
        "host reads the names of hosts and models, and what they said.",
        fix=f"Leave spark_fleet_monitor.page_listen out and come by SSH (ssh -L {page['port']}:127.0.0.1:{page['port']} {host}), or let a "
        "firewall choose who comes.",
    )


def images(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the containers of a host that serve add-ons: name of each server to its image, as the inventory has it.

    settings: as C(read) returns them. The container of a server is called C(spark-) and its name.
    """
    found: dict[str, str] = {}

    def keep(name: str, image: str) -> str:
        found[name] = image
        return image

    with_images(settings, keep)
    return dict(sorted(found.items()))


def with_images(settings: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """Return what C(read) returned with each image replaced by what C(change) says of the server's name and its image."""
    result = dict(settings)
    if settings["speech"]:
        result["speech"] = [{**each, "image": change(each["name"], each["image"])} for each in settings["speech"]]
    for subject in ("ollama", "gateway"):
        if settings[subject]:
            result[subject] = {**settings[subject], "image": change(subject, settings[subject]["image"])}
    page = (settings["clients"] or {}).get("open_webui")
    if page:
        page = {**page, "image": change("open-webui", page["image"])}
        result["clients"] = {**settings["clients"], "open_webui": page}
    watching = settings["monitoring"]
    if watching and watching["grafana"] == "image":
        result["monitoring"] = {**watching, "grafana_image": change("grafana", watching["grafana_image"])}
    return result


class Secret(NamedTuple):
    """A secret that comes from the controller; C(own): the fleet itself is what checks it, so that any value will do."""

    service: str
    name: str
    source: str
    own: bool


def secrets(outcome: Mapping[str, Any]) -> list[Secret]:
    """Return the secrets of a host's part that come from the controller, each once.

    outcome: by role, as C(plan) returns it for one host.
    """
    found: list[Secret] = []
    for server in (outcome["speech"] or {}).get("services", ()):
        found += [Secret(server["name"], each["name"], each["source"], True) for each in server["secrets"]]
    for each in (outcome["gateway"] or {}).get("secrets", ()):
        # Backends may be somebody else's; the keys of our own are those of their services.
        found.append(Secret("gateway", each["name"], each["source"], not each["name"].startswith("backend-")))
    for each in (outcome["fleet_monitor"] or {}).get("secrets", ()):
        found.append(Secret("fleet-monitor", each["name"], each["source"], False))
    for client in ("open_webui", "hermes"):
        for secret in ((outcome["clients"] or {}).get(client) or {}).get("secrets", ()):
            for part in secret["parts"]:
                if part.get("controller"):
                    found.append(Secret(client.replace("_", "-"), secret["name"], part["controller"], True))
    watching = outcome["monitoring"] or {}
    for job in watching.get("jobs", ()):
        if job.get("token_file"):
            found.append(Secret("monitoring", f"key of {job['name']}", job["token_file"], True))
    for receiver in watching.get("receivers", ()):
        for key, value in sorted(receiver.items()):
            if key.endswith("_file") and value:
                found.append(Secret("monitoring", f"{key} of receiver {receiver['name']}", value, False))
    if watching.get("grafana_password_file"):
        found.append(Secret("monitoring", "Grafana's password", watching["grafana_password_file"], True))
    return list(dict.fromkeys(found))
