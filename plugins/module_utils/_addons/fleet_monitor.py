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
from .._common.schema import NUMBER, Key
from .._runtime import fleet_state
from . import live

SECRETS = "/etc/dgxspark/secrets/fleet_monitor"

TLS = ("starttls", "tls", "none")
_URL: Any = {"form": plain_data.web_address, "like": "an address like https://host/path"}
NOTIFIERS: dict[str, Key] = {
    "telegram": Key(dict, None, "a bot of Telegram", of={
        "token_file": Key(str, None, "file on the controller with the bot's token", required=True),
        "chat_id": Key((str, int), None, "ID of the chat", required=True),
        "url": Key(str, None, "self-hosted Bot API server", **_URL),
    }),
    "ntfy": Key(dict, None, "a topic of ntfy", of={
        "url": Key(str, None, "URL of the topic", required=True, **_URL),
        "token_file": Key(str, None, "file on the controller with an access token"),
    }),
    "webhook": Key(dict, None, "an address that JSON is posted to", of={
        "url": Key(str, None, "URL for JSON by POST", **_URL),
        "url_file": Key(str, None, "file on the controller with a secret URL (Slack, Discord)"),
        "headers_file": Key(str, None, "file on the controller with headers, one `Name: value` a line"),
        "text_key": Key(str, None, "JSON key of the message: text (default; Slack, Mattermost), content (Discord)"),
    }),
    "mail": Key(dict, None, "a mail server", of={
        "smtp": Key(str, None, "mail server, HOST or HOST:PORT", required=True),
        "from": Key(str, None, "sender", required=True),
        "to": Key((str, list), None, "recipients", required=True),
        "user": Key(str, None, "account; by default the sender"),
        "password_file": Key(str, None, "file on the controller with its password"),
        "tls": Key(
            str,
            None,
            "starttls, tls or none; by default tls for port 465, none for 25 on loopback, else starttls",
            choices=TLS,
        ),
    }),
    "command": Key(dict, None, "a program on the host", of={
        "argv": Key(list, None, "program on the host with arguments; reads the message from standard input", required=True,
                    of=Key(str, None, "a word", form=bool, like="a text")),
    }),
}  # fmt: skip
"""Keys of each kind of notifier."""
NOTIFY: dict[str, Key] = {
    "name": Key(
        str,
        None,
        "unique name, if there are several of a kind",
        form=re.compile(r"[a-z0-9][a-z0-9_-]{0,39}").fullmatch,
        like="lower-case letters, digits, - and _",
    ),
    **NOTIFIERS,
}
"""Keys of an entry of C(notify)."""
KINDS = {
    "openai": "/v1/models",
    "vllm": "/v1/models",
    "external": "/v1/models",
    "asr": "/health",
    "tts": "/health",
    "ollama": "/api/tags",
    "http": "",
}
"""Kinds of further endpoints, and the path of their check; C(http) is checked at its own URL."""
EXTRA: dict[str, Key] = {
    "name": Key(str, None, "name in messages", required=True, form=plain_data.is_line, like="one line of text"),
    "url": Key(
        str,
        None,
        "its address",
        required=True,
        form=plain_data.web_address,
        like="an address like http://192.168.1.10:8009",
    ),
    "kind": Key(str, "openai", f"{schema.one_of(KINDS)}: the [request](#checks)", choices=tuple(KINDS)),
    "api_key_file": Key(
        str, None, "file on the controller with its key", form=plain_data.is_line, like="a file on the controller"
    ),
    "models": Key(
        list,
        [],
        "models that it must list",
        of=Key(str, None, "name that clients send", form=bool, like="a name that clients send"),
    ),
    "completion": Key(bool, False, "also request a completion"),
}
"""Keys of an entry of C(extra)."""
KEYS: dict[str, Key] = {
    # With two failures an endpoint that fails is told within 15 minutes: 2 x (7 min + 20 s) and the timeout of a check.
    "every_minutes": Key(int, 7, "minutes between two runs", least=1, most=1440),
    "delay_seconds": Key(
        int,
        20,
        "random delay of a run in seconds",
        least=0,
        most=3600,
    ),
    "completion_every": Key(
        int,
        None,
        "every n-th run requests a completion of one token; 0: never; by default hourly",
        least=0,
        most=10000,
    ),
    "timeout_seconds": Key(NUMBER, 10, "timeout of a check in seconds", least=1, most=120),
    "completion_seconds": Key(
        NUMBER,
        60,
        "timeout of a completion in seconds",
        least=10,
        most=600,
    ),
    "failures": Key(int, 2, "failed checks in a row until an endpoint is down", least=1, most=100),
    "notify": Key((dict, list), [], "a [notifier](#notifiers), or a list of them", of=NOTIFY),
    "heartbeat": Key(str, "off", "time of a daily heartbeat message, HH:MM, or off"),
    "quiet": Key((str, list), [], "quiet hours HH:MM-HH:MM; their changes are sent afterwards"),
    "extra": Key(list, [], "[further endpoints](#further-endpoints)", of=EXTRA),
    "leave_out": Key(
        list,
        [],
        "hosts, services, or keys such as spark-1/heavy that are not monitored",
        of=Key(
            str,
            None,
            "a host, a service, or a key like spark-1/heavy",
            form=bool,
            like="a host, a service, or a key like spark-1/heavy",
        ),
    ),
    "page_port": Key(
        int,
        0,
        "port of the [live page](#the-live-page) of the fleet; 0 for none",
        least=0,
        most=65535,
    ),
    "page_listen": Key(
        str,
        "127.0.0.1",
        "address of the live page; beyond loopback it needs `page_key_file`",
        form=plain_data.is_address,
        like="an address of the host, or 0.0.0.0",
    ),
    "page_key_file": Key(
        str,
        None,
        "file on the controller with the key of the page",
        form=plain_data.is_line,
        like="a file on the controller",
    ),
    "page_actions": Key(
        bool,
        False,
        "let the page start, stop, pin and drain services of Sparks with `spark_live.actions`; needs `page_key_file`",
    ),
    "page_prometheus": Key(
        str,
        None,
        "Prometheus whose alarms the page shows; default: the one of `spark_monitoring` on the same host",
        form=plain_data.web_address,
        like="an address like http://192.168.1.10:9090",
    ),
}
"""Keys of C(spark_fleet_monitor)."""


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
    findings: list[Finding] = []
    secrets = _Secrets()
    checks: list[dict[str, Any]] = []
    left_out = set(settings["leave_out"])
    gateway_keys = {gateway["key"] for gateway in gateways}
    of_fleet = {endpoint["key"] for endpoint in fleet}
    for endpoint in [*fleet, *(gateway for gateway in gateways if gateway["key"] not in of_fleet)]:
        if {endpoint["key"], endpoint["service"], endpoint["host"]} & left_out:
            continue
        if endpoints.reachable(endpoint, host):
            checks.append(_endpoint_check(endpoint, endpoint["key"] in gateway_keys, secrets, guarded))
        else:
            findings.append(_unreachable(host, endpoint))
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


def _plan_page(
    host: str, settings: Mapping[str, Any], agents: Mapping[str, Mapping[str, Any]], secrets: _Secrets
) -> tuple[dict[str, Any], list[Finding]]:
    """Return address, keys and agents of the live page, and findings about agents that the monitor on C(host) cannot read."""
    rows, findings = [], []
    for spark, made in sorted(agents.items()):
        url = live.url(spark, host, made, str(made["address"]))
        if url is None:
            findings.append(live.unreachable(host, spark))
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


def _finding(rule: str, severity: str, message: str, fix: str, service: str = "") -> Finding:
    return Finding(f"fleet_monitor.{rule}", severity, message, fix, service)


def _unreachable(host: str, endpoint: Endpoint) -> Finding:
    place = f"{endpoint['key']} listens on {endpoint['listen']} of {endpoint['host']}"
    text = f"{place}, so the fleet monitor on {host} cannot ask it, and leaves it out."
    fix = f"Give it an api_key_file, so that it listens on an address of {endpoint['host']}; or name it in spark_fleet_monitor.leave_out."
    return _finding("unreachable", "warning", text, fix, endpoint["service"] if endpoint["host"] == host else "")


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
    url, health = str(extra["url"]).rstrip("/"), KINDS[extra["kind"]]
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
    names = sorted({name for item in fleet for name in (item["key"], item["service"], item["host"])})
    names += [extra["name"] for extra in settings["extra"]]
    findings = []
    for name in settings["leave_out"]:
        if name not in names:
            text = f"spark_fleet_monitor.leave_out of {host} names '{name}', which nothing in the fleet is called"
            text += validation.nearest(str(name), names)
            findings.append(_finding("unknown", "warning", text, "Take it out, or correct it."))
    if not checks:
        text = f"the fleet monitor on {host} has nothing to watch."
        fix = (
            "Add endpoints to spark_fleet_monitor.extra, take names out of leave_out, or take spark_fleet_monitor away."
        )
        findings.append(_finding("nothing", "error", text, fix))
    findings += _notifier_findings(host, notifiers)
    if any(endpoint["host"] == host and endpoint["kind"] == "vllm" for endpoint in fleet):
        text = f"{host} monitors itself: while it is off, or its memory is full, no notification is sent."
        fix = "Put spark_fleet_monitor on a host that serves no model, or have a second monitor watch this one."
        findings.append(_finding("own_host", "info", text, fix))
    return findings


def _notifier_findings(host: str, notifiers: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Say that nobody is told, and which notifier sends a token in the clear."""
    if not notifiers:
        text = f"the fleet monitor on {host} sends no notifications: changes are in its journal and state only."
        return [_finding("notify", "warning", text, "Set spark_fleet_monitor.notify.")]
    findings = []
    for notifier in notifiers:
        parts = urlsplit(str(notifier.get("url") or ""))
        secret = any(key.endswith("_file") for key in notifier)
        if parts.scheme == "http" and secret and not endpoints.is_loopback(str(parts.hostname)):
            text = f"the notifier {notifier['name']} of {host} sends its token to {parts.hostname} in the clear."
            findings.append(_finding("plain", "warning", text, "Use https:// there."))
    return findings
