# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet monitor: what C(spark_fleet_monitor) says, and what the monitor on the host is given to check.

What it remembers and tells is in fleet_state.py.
"""

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

SECRETS = "/etc/dgxspark/secrets/fleet_monitor"

KEYS: dict[str, Key] = {
    # With two failures an endpoint that fails is told within 15 minutes: 2 x (7 min + 20 s) and the timeout of a check.
    "every_minutes": Key(int, 7, "minutes between two runs", least=1, most=1440),
    "delay_seconds": Key(
        int,
        20,
        "random delay of a run in seconds, so that several monitors do not run at once",
        least=0,
        most=3600,
    ),
    "completion_every": Key(
        int,
        None,
        "every n-th run requests a completion of one token; 0 for never; hourly when left out",
        least=0,
        most=10000,
    ),
    "timeout_seconds": Key(NUMBER, 10, "timeout of a check in seconds", least=1, most=120),
    "completion_seconds": Key(
        NUMBER,
        60,
        "timeout of a completion in seconds; an engine that generates tokens for other requests meanwhile is busy, not down",
        least=10,
        most=600,
    ),
    "failures": Key(int, 2, "failed checks in a row after which an endpoint is down", least=1, most=100),
    "notify": Key((dict, list), [], "a notifier, or a list of notifiers, see below"),
    "heartbeat": Key(str, "off", "time of a daily heartbeat message, HH:MM, or off"),
    "quiet": Key((str, list), [], "quiet hours HH:MM-HH:MM; changes in them are reported afterwards"),
    "extra": Key(list, [], "further endpoints: a list of name, url, kind and further keys"),
    "leave_out": Key(list, [], "hosts, services, or keys such as spark-1/heavy that are not monitored"),
    "page_port": Key(
        int,
        0,
        "port of the [status page](#the-status-page), which each run makes anew; 0 for none",
        least=0,
        most=65535,
    ),
    "page_listen": Key(str, "127.0.0.1", "address that the status page listens on; it asks for no password"),
}
"""Keys of C(spark_fleet_monitor)."""
NOTIFIERS: dict[str, dict[str, tuple[tuple[type, ...], bool, str]]] = {
    "telegram": {
        "token_file": ((str,), True, "file on the controller with the token of the bot"),
        "chat_id": ((str, int), True, "ID of the chat"),
        "url": ((str,), False, "URL of a self-hosted Bot API server"),
    },
    "ntfy": {
        "url": ((str,), True, "URL of the topic"),
        "token_file": ((str,), False, "file on the controller with an access token"),
    },
    "webhook": {
        "url": ((str,), False, "URL that JSON is posted to"),
        "url_file": (
            (str,),
            False,
            "file on the controller with the URL, if it is secret (Slack, Discord)",
        ),
        "headers_file": ((str,), False, "file on the controller with headers, one `Name: value` a line"),
        "text_key": (
            (str,),
            False,
            "JSON key of the message text: text by default (Slack, Mattermost), content for Discord",
        ),
    },
    "mail": {
        "smtp": ((str,), True, "mail server, HOST or HOST:PORT"),
        "from": ((str,), True, "sender"),
        "to": ((str, list), True, "recipients"),
        "user": ((str,), False, "account at the server; the sender when left out"),
        "password_file": ((str,), False, "file on the controller with its password"),
        "tls": (
            (str,),
            False,
            "starttls, tls or none; depends on the port when left out: tls for 465, none for 25 on loopback, otherwise starttls",
        ),
    },
    "command": {
        "argv": ((list,), True, "program on the host and its arguments; it reads the message from standard input"),
    },
}
"""What each kind of notifier is told: types, whether it must be there, meaning."""
EXTRA_KEYS = ("name", "url", "kind", "api_key_file", "models", "completion")
KINDS = {
    "openai": "/v1/models",
    "vllm": "/v1/models",
    "external": "/v1/models",
    "asr": "/health",
    "tts": "/health",
    "ollama": "/api/tags",
    "http": "",
}
"""Kinds of further endpoints, and what they are asked; C(http) is asked for the very address that is given."""
TLS = ("starttls", "tls", "none")


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_fleet_monitor) as a person wrote it; return the settings with every default, and what is wrong."""
    problems = validation.Problems(f"host {host}, spark_fleet_monitor")
    given = value
    if not isinstance(given, Mapping):
        problems.add(f"must be a mapping, not {plain_data.kind(value)}. Known keys: {', '.join(KEYS)}.")
        given = {}
    settings = schema.filled(problems, given, KEYS)
    if settings["completion_every"] is None:
        settings["completion_every"] = max(round(60 / settings["every_minutes"]), 1)
    _read_times(problems, settings)
    settings["notify"] = _read_notifiers(problems, settings["notify"])
    settings["extra"] = _read_extra(problems, settings["extra"])
    for name in settings["leave_out"]:
        if not isinstance(name, str):
            problems.add(f"leave_out: {name!r} is neither a host, nor a service, nor a key like spark-1/heavy.")
    if not plain_data.is_address(settings["page_listen"]):
        problems.add(
            f"page_listen: is {plain_data.shown(settings['page_listen'])}; it must be an address of the host, or 0.0.0.0."
        )
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


def _read_notifiers(problems: validation.Problems, given: Any) -> list[dict[str, Any]]:
    """Return the notifiers, each C({name, kind, ...}); names tell their outboxes apart, so they stay when a key changes."""
    found: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    for index, entry in enumerate([given] if isinstance(given, Mapping) else given):
        where = "notify" if isinstance(given, Mapping) else f"notify[{index}]"
        kinds = [key for key in entry if key != "name"] if isinstance(entry, Mapping) else []
        if len(kinds) != 1 or kinds[0] not in NOTIFIERS:
            near = validation.nearest(str(kinds[0]), NOTIFIERS) if len(kinds) == 1 else "."
            problems.add(f"{where}: must name one of {', '.join(NOTIFIERS)}, like `telegram: {{...}}`{near}")
            continue
        kind = str(kinds[0])
        body = problems.mapping(entry[kind], f"{where}.{kind}")
        known = NOTIFIERS[kind]
        problems.unknown(body, tuple(known), f"key of {where}.{kind}:")
        notifier: dict[str, Any] = {"kind": kind}
        for key, (types, required, meaning) in known.items():
            value = body.get(key)
            if value is None:
                if required:
                    problems.add(f"{where}.{kind}: '{key}' is missing: {meaning}.")
                notifier[key] = None
            elif not isinstance(value, types) or isinstance(value, bool):
                problems.add(
                    f"{where}.{kind}.{key}: is {plain_data.kind(value)}; it must be {plain_data.kind(types[0]())}."
                )
            else:
                notifier[key] = value
        _check_notifier(problems, f"{where}.{kind}", notifier)
        counts[kind] = counts.get(kind, 0) + 1
        name = entry.get("name") or (kind if counts[kind] == 1 else f"{kind}-{counts[kind]}")
        if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,39}", name):
            problems.add(f"{where}: name {name!r} must be small letters, digits, - and _.")
        elif any(other["name"] == name for other in found):
            problems.add(f"{where}: the name {name!r} is used twice.")
        found.append({"name": str(name), **notifier})
    return found


def _check_notifier(problems: validation.Problems, where: str, notifier: Mapping[str, Any]) -> None:
    kind = notifier["kind"]
    if notifier.get("url") and not _is_url(notifier["url"]):
        problems.add(f"{where}.url: {notifier['url']!r} is no address like https://host/path.")
    if kind == "webhook" and bool(notifier.get("url")) == bool(notifier.get("url_file")):
        problems.add(f"{where}: needs either 'url' or 'url_file'.")
    if kind == "command":
        argv = notifier.get("argv") or []
        if not argv or not all(isinstance(word, str) for word in argv) or not str(argv[0]).startswith("/"):
            problems.add(f"{where}.argv: must be a list of texts, the first of them the path of a program.")
    if kind == "mail" and notifier.get("smtp"):
        if notifier.get("tls") not in (None, *TLS):
            problems.add(f"{where}.tls: is {notifier['tls']!r}; it must be one of {', '.join(TLS)}.")
        server, port = mail_server(str(notifier["smtp"]))
        if port is None:
            problems.add(f"{where}.smtp: {notifier['smtp']!r} is neither HOST nor HOST:PORT.")
        elif (
            notifier.get("password_file")
            and mail_tls(notifier, server, port) == "none"
            and not endpoints.is_loopback(server)
        ):
            problems.add(f"{where}: the password would go to {server} in the clear. Set tls to starttls or tls.")


def _is_url(text: Any) -> bool:
    return plain_data.web_address(text) is not None


def mail_server(text: str) -> tuple[str, int | None]:
    """Return host and port of C(smtp); port None where it is none."""
    host, _colon, port = text.rpartition(":") if ":" in text and not text.endswith("]") else (text, "", "")
    host = host.strip("[]")
    if not port:
        return host, 25 if endpoints.is_loopback(host) else 587
    whole = re.fullmatch("[0-9]{1,5}", port) is not None and 0 < int(port) < 65536
    return host, int(port) if whole and plain_data.is_address(host) else None


def mail_tls(notifier: Mapping[str, Any], server: str, port: int) -> str:
    """Return how a mail server is spoken to.

    :param notifier: one of C(spark_fleet_monitor.notify), whose C(tls) comes first
    :param server: name or address of the mail server
    :param port: its port
    :returns: C(tls) (from the first byte), C(starttls) or C(none) (a server of this host)
    """
    if notifier.get("tls"):
        return str(notifier["tls"])
    if port == 465:
        return "tls"
    return "none" if endpoints.is_loopback(server) and port != 587 else "starttls"


def _read_extra(problems: validation.Problems, given: list[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for index, entry in enumerate(given):
        where = f"extra[{index}]"
        body = problems.mapping(entry, where)
        problems.unknown(body, EXTRA_KEYS, f"key of {where}:")
        name, url, kind = body.get("name"), body.get("url"), body.get("kind", "openai")
        if not isinstance(name, str) or not name.strip() or plain_data.CONTROL.search(name):
            problems.add(f"{where}: 'name' is {name!r}; it must be a text that messages call it by.")
        elif any(other["name"] == name for other in found):
            problems.add(f"{where}: the name {name!r} is used twice.")
        if not _is_url(url):
            problems.add(f"{where} ({name}): 'url' is {url!r}; it must be an address like http://192.168.1.10:8009.")
        elif urlsplit(str(url)).username or urlsplit(str(url)).password:
            problems.add(
                f"{where} ({name}): the address holds a password, which messages would show. Use api_key_file."
            )
        if not isinstance(kind, str) or kind not in KINDS:
            problems.add(f"{where} ({name}): 'kind' is {kind!r}; it must be one of {', '.join(KINDS)}.")
        models = body.get("models") or []
        if not isinstance(models, list) or not all(isinstance(model, str) for model in models):
            problems.add(f"{where} ({name}): 'models' must be a list of names that clients send.")
            models = []
        completion = body.get("completion", False)
        if not isinstance(completion, bool):
            problems.add(f"{where} ({name}): 'completion' is {plain_data.kind(completion)}; it must be true or false.")
        key_file = body.get("api_key_file")
        if key_file is not None and not plain_data.is_line(key_file):
            problems.add(f"{where} ({name}): 'api_key_file' must be a file on the controller.")
        found.append(
            {
                "name": name,
                "url": url,
                "kind": kind,
                "models": models,
                "completion": completion,
                "api_key_file": key_file,
            }
        )
    return found


class _Secrets:
    """Keys and tokens that are copied to the monitor's host, each below a name of its own."""

    def __init__(self) -> None:
        self.files: list[dict[str, str]] = []

    def add(self, name: str, source: str | None) -> str | None:
        """Take up a file of the controller; returns its path on the host, None where there is no file."""
        if not source:
            return None
        plain = re.sub(r"[^A-Za-z0-9_-]+", ".", name).strip(".")
        taken = {entry["name"] for entry in self.files}
        unique = next(each for each in [plain, *(f"{plain}.{n}" for n in range(2, 1000))] if each not in taken)
        self.files.append({"name": unique, "source": source})
        return f"{SECRETS}/{unique}"


def plan(
    host: str,
    settings: Mapping[str, Any],
    fleet: Sequence[Endpoint],
    gateways: Sequence[Endpoint] = (),
    guarded: Collection[str] = (),
    exporters: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the variables of the role fleet_monitor, and findings.

    :param host: the host of the monitor
    :param settings: of C(read)
    :param fleet: the endpoints of the inventory
    :param gateways: those before them, with the names that they offer; models are asked for a token through them
        too
    :param guarded: hosts whose memory is guarded: there an engine that is gone may have been stopped on purpose
    :param exporters: variables of the role exporters by Spark, with its C(address); the status page reads them
    :returns: the variables, with C(secrets), files of the controller that are copied, and findings
    """
    findings: list[Finding] = []
    secrets = _Secrets()
    checks: list[dict[str, Any]] = []
    left_out = set(settings["leave_out"])
    gateway_keys = {gateway["key"] for gateway in gateways}
    of_fleet = {each["key"] for each in fleet}
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
    passed_on = ("completion_every", "timeout_seconds", "completion_seconds", "failures", "heartbeat", "quiet")
    outcome = {
        "state": "present",
        "every_minutes": settings["every_minutes"],
        "delay_seconds": settings["delay_seconds"],
        "secrets": secrets.files,
        "page": {"listen": settings["page_listen"], "port": settings["page_port"]} if settings["page_port"] else {},
        "settings": {
            "host": host,
            **{key: settings[key] for key in passed_on},
            "endpoints": checks,
            "notify": notifiers,
            "page": {"exporters": _exporter_urls(host, exporters or {})} if settings["page_port"] else None,
        },
    }
    return outcome, findings


def _exporter_urls(host: str, exporters: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return where the monitor on C(host) reads the figures of each Spark; those that it cannot reach are left out."""
    found = {}
    for spark, made in sorted(exporters.items()):
        listen = str(made["listen"])
        if made["node_exporter"] == "none" or (spark != host and endpoints.is_loopback(listen)):
            continue
        if endpoints.is_any(listen):
            listen = "127.0.0.1" if spark == host else str(made["address"])
        found[spark] = f"http://{endpoints.bracketed(listen)}:{made['node_port']}"
    return found


def _endpoint_check(
    endpoint: Endpoint, is_gateway: bool, secrets: _Secrets, guarded: Collection[str]
) -> dict[str, Any]:
    """Return what the monitor asks of an endpoint of the fleet."""
    look = f"journalctl -u {endpoint['unit']} on {endpoint['host']}"
    watched = [host for host in endpoint["hosts"] if host in guarded]
    if endpoint["kind"] == "vllm" and watched:
        look += f"; whether the guard of the memory stopped it: journalctl -u spark-guard -p warning on {' and '.join(watched)}"
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


def _unreachable(host: str, endpoint: Endpoint) -> Finding:
    return Finding(
        "fleet_monitor.unreachable",
        "warning",
        f"{endpoint['key']} listens on {endpoint['listen']} of {endpoint['host']}, so the fleet monitor on {host} "
        "cannot ask it, and leaves it out.",
        fix=f"Give it an api_key_file, so that it listens on an address of {endpoint['host']}; or name it in "
        "spark_fleet_monitor.leave_out.",
        service=endpoint["service"] if endpoint["host"] == host else "",
    )


def _plan_notifier(notifier: Mapping[str, Any], secrets: _Secrets) -> dict[str, Any]:
    """Return a notifier as the monitor takes it: files are those of its host, a mail server is host, port and TLS."""
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
    known = sorted({name for each in fleet for name in (each["key"], each["service"], each["host"])})
    known += [extra["name"] for extra in settings["extra"]]
    findings = [
        Finding(
            "fleet_monitor.unknown",
            "warning",
            f"spark_fleet_monitor.leave_out of {host} names '{name}', which nothing in the fleet is called"
            f"{validation.nearest(str(name), known)}",
            fix="Take it out, or correct it.",
        )
        for name in settings["leave_out"]
        if name not in known
    ]
    if not checks:
        findings.append(
            Finding(
                "fleet_monitor.nothing",
                "error",
                f"the fleet monitor on {host} has nothing to watch.",
                fix="Add endpoints to spark_fleet_monitor.extra, take names out of leave_out, or take spark_fleet_monitor away.",
            )
        )
    findings += _notifier_findings(host, notifiers)
    if any(endpoint["host"] == host and endpoint["kind"] == "vllm" for endpoint in fleet):
        findings.append(
            Finding(
                "fleet_monitor.own_host",
                "info",
                f"{host} monitors itself: while it is off, or its memory is full, no notification is sent.",
                fix="Put spark_fleet_monitor on a host that serves no model, or have a second monitor watch this one.",
            )
        )
    return findings


def _notifier_findings(host: str, notifiers: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Say that nobody is told, and which notifier sends a token in the clear."""
    if not notifiers:
        return [
            Finding(
                "fleet_monitor.notify",
                "warning",
                f"the fleet monitor on {host} sends no notifications: changes are in its journal and state only.",
                fix="Set spark_fleet_monitor.notify.",
            )
        ]
    findings = []
    for notifier in notifiers:
        parts = urlsplit(str(notifier.get("url") or ""))
        secret = any(key.endswith("_file") for key in notifier)
        if parts.scheme == "http" and secret and not endpoints.is_loopback(str(parts.hostname)):
            findings.append(
                Finding(
                    "fleet_monitor.plain",
                    "warning",
                    f"the notifier {notifier['name']} of {host} sends its token to {parts.hostname} in the clear.",
                    fix="Use https:// there.",
                )
            )
    return findings
