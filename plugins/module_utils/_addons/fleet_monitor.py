# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads C(spark_fleet_monitor), and plans the role fleet_monitor. C(_runtime/fleet_state.py) has its state and messages."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from .._cluster import endpoints
from .._cluster.endpoints import Endpoint
from .._common import plain_data, schema, validation
from .._common.findings import Finding
from .._common.schema import Key
from .._runtime import fleet_state
from . import live
from .descriptions import DESCRIPTIONS, Lazy, finding, options

SECRETS = "/etc/dgxspark/secrets/fleet_monitor"
KEYS = options("spark_fleet_monitor")
NOTIFY = options("spark_fleet_monitor.notify")
NOTIFIERS: Mapping[str, Key] = Lazy(lambda: {kind: key for kind, key in NOTIFY.items() if kind != "name"})
"""Keys of each kind of notifier."""


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_fleet_monitor) as a person wrote it; return the settings with all defaults, and the problems."""
    problems = validation.Problems(f"host {host}, spark_fleet_monitor")
    written = value
    if not isinstance(written, Mapping):
        problems.add(f"must be a mapping, not {plain_data.kind(value)}. Known keys: {', '.join(KEYS)}.")
        written = {}
    if isinstance(written.get("notify"), Mapping):
        written = {**written, "notify": [written["notify"]]}
    settings = schema.filled(problems, written, KEYS)
    if settings["completion_every"] is None:
        settings["completion_every"] = max(round(60 / settings["every_minutes"]), 1)
    _read_times(problems, settings)
    settings["notify"] = _read_notifiers(problems, settings["notify"])
    if settings["page_port"] and not settings["page_key_file"]:
        if not endpoints.is_loopback(settings["page_listen"]):
            problems.add(
                f"page_listen: {settings['page_listen']} is reached from other hosts, so it needs page_key_file; dgxspark.vllm.keys makes it."
            )
        if settings["page_actions"]:
            problems.add("page_actions: needs page_key_file, since anybody on the host could stop services otherwise.")
    for where, url, fix in [
        *((f"extra ({entry['name']})", entry["url"], "Use api_key_file.") for entry in settings["extra"]),
        ("page_prometheus", settings["page_prometheus"], "Use a Prometheus without one."),
    ]:
        if url and (urlsplit(url).username or urlsplit(url).password):
            problems.add(f"{where}: the address contains a password, which messages would show. {fix}")
    return settings, problems.messages


def _read_times(problems: validation.Problems, settings: dict[str, Any]) -> None:
    if settings["heartbeat"] != "off":
        try:
            fleet_state.minute(settings["heartbeat"])
        except ValueError:
            problems.add(f"heartbeat: is {settings['heartbeat']!r}; it must be off, or a time like '08:30', in quotes.")
    spans = [settings["quiet"]] if isinstance(settings["quiet"], str) else settings["quiet"]
    settings["quiet"] = [str(span) for span in spans]
    for span in settings["quiet"]:
        first, dash, last = span.partition("-")
        try:
            fleet_state.minute(first.strip())
            fleet_state.minute(last.strip() if dash else "")
        except ValueError:
            problems.add(f"quiet: {span!r} is no span of time like '22:00-07:00'.")


def _read_notifiers(problems: validation.Problems, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the notifiers, each C({name, kind, ...}); names tell their outboxes apart, so they stay when a key changes."""
    notifiers: list[dict[str, Any]] = []
    for index, entry in enumerate(entries):
        kinds = [kind for kind in NOTIFIERS if entry[kind] is not None]
        if problems.named(f"notify[{index}]"):
            continue
        if len(kinds) != 1:
            problems.add(f"notify[{index}]: must name one of {', '.join(NOTIFIERS)}, like `telegram: {{...}}`.")
            continue
        kind = kinds[0]
        _check_notifier(problems, f"notify[{index}].{kind}", kind, entry[kind])
        number = sum(other["kind"] == kind for other in notifiers) + 1
        name = entry["name"] or (kind if number == 1 else f"{kind}-{number}")
        if any(other["name"] == name for other in notifiers):
            problems.add(f"notify[{index}]: the name '{name}' is used twice.")
        notifiers.append({"name": name, "kind": kind, **entry[kind]})
    return notifiers


def _check_notifier(problems: validation.Problems, where: str, kind: str, notifier: Mapping[str, Any]) -> None:
    if kind == "webhook" and bool(notifier["url"]) == bool(notifier["url_file"]):
        problems.add(f"{where}: needs either 'url' or 'url_file'.")
    if kind == "command" and notifier["argv"] and not notifier["argv"][0].startswith("/"):
        problems.add(f"{where}.argv: must be a list of texts, the first of them the path of a program.")
    if kind == "mail" and notifier["smtp"]:
        server, port = mail_server(notifier["smtp"])
        if port is None:
            problems.add(f"{where}.smtp: {notifier['smtp']!r} is neither HOST nor HOST:PORT.")
        elif (
            notifier["password_file"]
            and mail_tls(notifier, server, port) == "none"
            and not endpoints.is_loopback(server)
        ):
            problems.add(f"{where}: the password would go to {server} in the clear. Set tls to starttls or tls.")


def mail_server(text: str) -> tuple[str, int | None]:
    """Return host and port of C(smtp); the port is None if it is invalid."""
    host, _colon, port = text.rpartition(":") if ":" in text and not text.endswith("]") else (text, "", "")
    host = host.strip("[]")
    if not port:
        return host, 25 if endpoints.is_loopback(host) else 587
    is_port = re.fullmatch("[0-9]{1,5}", port) is not None and 0 < int(port) < 65536
    return host, int(port) if is_port and plain_data.is_address(host) else None


def mail_tls(notifier: Mapping[str, Any], server: str, port: int) -> str:
    """Return how a mail server is spoken to: C(tls) (from the first byte), C(starttls) or C(none) (a server of this host)."""
    if notifier.get("tls"):
        return str(notifier["tls"])
    if port == 465:
        return "tls"
    return "none" if endpoints.is_loopback(server) and port != 587 else "starttls"


class _Secrets:
    """Keys and tokens that are copied to the monitor's host, each below a unique name."""

    def __init__(self) -> None:
        self.files: list[dict[str, str]] = []

    def add(self, name: str, source: str | None) -> str | None:
        """Add a file of the controller; returns its path on the host, None without a file."""
        if not source:
            return None
        plain = re.sub(r"[^A-Za-z0-9_-]+", ".", name).strip(".")
        used = {entry["name"] for entry in self.files}
        unique = next(path for path in [plain, *(f"{plain}.{n}" for n in range(2, 1000))] if path not in used)
        self.files.append({"name": unique, "source": source})
        return f"{SECRETS}/{unique}"

    def shared(self, name: str, source: str | None) -> str | None:
        """Add a file that several servers share once; see C(add)."""
        added = next((entry["name"] for entry in self.files if source and entry["source"] == source), None)
        return f"{SECRETS}/{added}" if added else self.add(name, source)


def plan(
    host: str,
    settings: Mapping[str, Any],
    fleet: Sequence[Endpoint],
    gateways: Sequence[Endpoint] = (),
    guarded: Collection[str] = (),
    agents: Mapping[str, Mapping[str, Any]] | None = None,
    prometheus: str = "",
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the variables of the role fleet_monitor, and findings.

    :param gateways: those before them, with the names that they offer; models are asked for a token through them
        too
    :param guarded: hosts whose memory is guarded: there an engine that is gone may have been stopped on purpose
    :param agents: of C(live.plan) by Spark, with its C(address); the live page reads them
    :param prometheus: address of the Prometheus on the host, empty without one; the live page shows its alarms
    :returns: the variables, with C(secrets), files of the controller that are copied, and findings
    """
    secrets = _Secrets()
    left_out = set(settings["leave_out"])
    gateway_keys = {gateway["key"] for gateway in gateways}
    of_fleet = {endpoint["key"] for endpoint in fleet}
    watched, findings = _reachable(
        host, [*fleet, *(gateway for gateway in gateways if gateway["key"] not in of_fleet)], left_out
    )
    checks = [_endpoint_check(endpoint, endpoint["key"] in gateway_keys, secrets, guarded) for endpoint in watched]
    checks += [_extra_check(extra, secrets.add) for extra in settings["extra"] if extra["name"] not in left_out]
    notifiers = [_plan_notifier(notifier, secrets) for notifier in settings["notify"]]
    findings += _findings(host, settings, [*fleet, *gateways], checks, notifiers)
    page, unread = _plan_page(host, settings, agents or {}, secrets) if settings["page_port"] else ({}, [])
    page |= {"prometheus": (settings["page_prometheus"] or prometheus).rstrip("/")} if page else {}
    findings += unread
    passed_on = ("completion_every", "timeout_seconds", "completion_seconds", "failures", "heartbeat", "quiet")
    outcome = {
        "state": "present",
        "every_minutes": settings["every_minutes"],
        "delay_seconds": settings["delay_seconds"],
        "secrets": secrets.files,
        "page": page,
        "settings": {
            "host": host,
            **{key: settings[key] for key in passed_on},
            "endpoints": checks,
            "notify": notifiers,
        },
    }
    return outcome, findings


def _reachable(
    host: str, candidates: Sequence[Endpoint], left_out: Collection[str]
) -> tuple[list[Endpoint], list[Finding]]:
    """Return the endpoints that the monitor on C(host) reaches, and findings about the others; without those that are left out."""
    watched, findings = [], []
    for endpoint in candidates:
        if {endpoint["key"], endpoint["service"], endpoint["host"]}.intersection(left_out):
            continue
        if endpoints.reachable(endpoint, host):
            watched.append(endpoint)
        else:
            values = {"key": endpoint["key"], "listen": endpoint["listen"], "endpoint_host": endpoint["host"]}
            service = endpoint["service"] if endpoint["host"] == host else ""
            findings.append(finding("fleet_monitor.unreachable", service, host=host, **values))
    return watched, findings


def _plan_page(
    host: str, settings: Mapping[str, Any], agents: Mapping[str, Mapping[str, Any]], secrets: _Secrets
) -> tuple[dict[str, Any], list[Finding]]:
    """Return address, keys and agents of the live page, and findings about agents that the monitor on C(host) cannot read."""
    rows, findings = [], []
    for spark, made in sorted(agents.items()):
        url = live.url(spark, host, made, str(made["address"]))
        if url is None:
            findings.append(finding("fleet_monitor.no_agent", host=host, spark=spark))
        else:
            rows.append({"host": spark, "url": url, "key_file": secrets.shared("agent", made["key"])})
    page = {
        "listen": settings["page_listen"],
        "port": settings["page_port"],
        "key_file": secrets.add("page", settings["page_key_file"]),
        "actions": settings["page_actions"],
        "agents": rows,
    }
    return page, findings


def _endpoint_check(
    endpoint: Endpoint, is_gateway: bool, secrets: _Secrets, guarded: Collection[str]
) -> dict[str, Any]:
    """Return what the monitor asks of an endpoint of the fleet."""
    look = f"journalctl -u {endpoint['unit']} on {endpoint['host']}"
    watched = [host for host in endpoint["hosts"] if host in guarded]
    if endpoint["kind"] == "vllm" and watched:
        look += (
            f"; whether the memory guard stopped it: journalctl -u spark-agent -p warning on {' and '.join(watched)}"
        )
    return {
        "key": endpoint["key"],
        "url": endpoint["url"],
        "health": endpoint["health"],
        "models": list(endpoint["models"]) if endpoint["kind"] in ("vllm", "external", "ollama") else [],
        "complete": (endpoint["kind"] == "vllm" and not endpoint["on_demand"]) or is_gateway,
        "vllm": endpoint["kind"] == "vllm",
        "api_key_file": secrets.add(f"endpoint.{endpoint['key']}", endpoint["api_key_file"]),
        "look": look,
    }


def _plan_notifier(notifier: Mapping[str, Any], secrets: _Secrets) -> dict[str, Any]:
    """Return a notifier as the monitor reads it: with files of its host, and a mail server as host, port and TLS."""
    entry = {key: value for key, value in notifier.items() if value is not None}
    for key in [key for key in entry if key.endswith("_file")]:
        entry[key] = secrets.add(f"{notifier['name']}.{key.removesuffix('_file')}", entry[key])
    if entry["kind"] == "mail":
        server, port = mail_server(str(entry.pop("smtp")))
        entry.update(server=server, port=port, tls=mail_tls(notifier, server, port or 587))
        entry["to"] = [entry["to"]] if isinstance(entry["to"], str) else entry["to"]
    return entry


def _extra_check(extra: Mapping[str, Any], secret: Any) -> dict[str, Any]:
    url, health = str(extra["url"]).rstrip("/"), DESCRIPTIONS["fleet_monitor"]["checks"][extra["kind"]]
    if health and url.endswith(health):  # written with the path that is asked
        url = url[: -len(health)]
    if not health:
        parts = urlsplit(url)
        health = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        url = f"{parts.scheme}://{parts.netloc}"
    return {
        "key": extra["name"],
        "url": url,
        "health": health,
        "models": list(extra["models"]),
        "complete": extra["completion"],
        "vllm": extra["kind"] == "vllm",
        "api_key_file": secret(f"endpoint.{extra['name']}", extra["api_key_file"]),
        "look": "",
    }


def _findings(
    host: str,
    settings: Mapping[str, Any],
    fleet: Sequence[Endpoint],
    checks: Sequence[Mapping[str, Any]],
    notifiers: Sequence[Mapping[str, Any]],
) -> list[Finding]:
    """Return the findings about wrong names, and about endpoints that the monitor does not watch, and messages that reach nobody."""
    names = sorted({name for item in fleet for name in (item["key"], item["service"], item["host"])})
    names += [extra["name"] for extra in settings["extra"]]
    rows: list[tuple[str, dict[str, str]]] = [
        ("unknown", {"name": name, "nearest": validation.nearest(str(name), names)})
        for name in settings["leave_out"]
        if name not in names
    ]
    if not checks:
        rows.append(("nothing", {}))
    if not notifiers:
        rows.append(("notify", {}))
    for notifier in notifiers:
        server = _server_without_tls(notifier)
        if server:
            rows.append(("plain", {"name": notifier["name"], "server": server}))
    if any(endpoint["host"] == host and endpoint["kind"] == "vllm" for endpoint in fleet):
        rows.append(("own_host", {}))
    return [finding(f"fleet_monitor.{rule}", host=host, **values) for rule, values in rows]


def _server_without_tls(notifier: Mapping[str, Any]) -> str:
    """Return the server to which a notifier sends its token over http, else an empty text."""
    parts = urlsplit(str(notifier.get("url") or ""))
    has_token = any(key.endswith("_file") for key in notifier)
    is_readable = parts.scheme == "http" and has_token and not endpoints.is_loopback(str(parts.hostname))
    return str(parts.hostname) if is_readable else ""
