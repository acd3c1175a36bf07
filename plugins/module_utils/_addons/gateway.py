# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gateway: one address before all models of the fleet. What C(spark_gateway) says, and the configuration of LiteLLM that follows.

A name that clients send is an alias of C(spark_gateway), or a name that an engine itself serves. Behind each stand backends in an
order of levels: the gateway gives a request to one of the first level that is well and not drained, then to the next level. Aliases
that an alias falls back on are further levels, so there is one mechanism for all of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .._cluster import endpoints
from .._cluster.endpoints import Endpoint
from .._common import component_versions, plain_data, schema, validation
from .._common.findings import Finding
from .._common.schema import NUMBER, Key
from . import timeouts
from .timeouts import Limits

IMAGE = component_versions.LITELLM.ref
"""A release of LiteLLM's line with long support; the hooks of the role are written against its code."""
SERVICE = "gateway"
UNIT = "spark-gateway.service"

MOST = 10**7
"""Largest value of a number: seconds, requests, MiB."""
MIB = 2**20
BODIES_SHARE = 1 / 12
"""Share of C(memory_gib) for the bodies of all requests; LiteLLM needs several times the size of a body to work on it."""

KEYS: dict[str, Key] = {
    "port": Key(int, 4000, "TCP port; 4000 is NoMachine's on some DGX systems", least=1, most=65535),
    "listen": Key(str, None, "address to listen on; 0.0.0.0 with a master key, 127.0.0.1 without one"),
    "image": Key(str, IMAGE, "image with LiteLLM, by a fixed tag or digest"),
    "master_key_file": Key(str, None, "file on the controller with the master key, which may use every model name"),
    "metrics_key_file": Key(
        str,
        None,
        "file on the controller with a key for /metrics only; without it /metrics needs no key",
    ),
    "clients": Key(list, [], "keys with limited access: a list of name, key_file and aliases (all when left out)"),
    "aliases": Key(
        dict,
        {},
        "model names for clients: each a backend, a list of backends, or a mapping of backends, routing and fallback",
    ),
    "serve": Key(
        (str, list), "all", "endpoints offered under their own served model names: all, none, or a list of keys"
    ),
    "timeout": Key(
        int,
        None,
        "seconds that an answer without streaming may take; from the context length of each engine when left out, 1800 or more",
        least=1,
        most=MOST,
    ),
    "stream_timeout": Key(
        int,
        None,
        "seconds between two chunks of a stream, and until the first one; from the context length of each engine when left out, 600 or more",
        least=1,
        most=MOST,
    ),
    "prefill_rates": Key(
        dict,
        {},
        "endpoints to the prompt tokens a second that were measured at long prompts, for the two above; 750 is assumed for others",
    ),
    "keepalive_seconds": Key(
        int,
        15,
        "seconds of silence after which a stream gets a comment, so that nobody takes it for dead; 0 for none",
        least=0,
        most=300,
    ),
    "retries": Key(
        int,
        2,
        "retries of a request that failed before its first token, each on another backend if there is one",
        least=0,
        most=MOST,
    ),
    "cooldown": Key(
        int,
        30,
        "seconds for which LiteLLM skips a backend that keeps failing while others do not",
        least=0,
        most=MOST,
    ),
    "queue_seconds": Key(
        int,
        1200,
        "seconds that a request waits while all of its backends are drained; 0 rejects it at once",
        least=0,
        most=MOST,
    ),
    "max_parallel": Key(int, 1000, "concurrent requests; further ones are rejected (429)", least=1, most=MOST),
    "body_limit_mib": Key(int, 64, "largest request in MiB; larger ones are rejected (413)", least=1, most=MOST),
    "health_interval": Key(
        int,
        60,
        "seconds between two health checks of a backend, each a completion of one token; 0 for none",
        least=0,
        most=MOST,
    ),
    "health_timeout": Key(
        int,
        120,
        "timeout of a health check in seconds; two timeouts in a row make the backend unhealthy",
        least=1,
        most=MOST,
    ),
    "memory_gib": Key(
        NUMBER,
        3.0,
        "memory limit of the container, which the plan reserves; a reload needs twice the memory",
        least=0.5,
        most=MOST,
    ),
    "stop_seconds": Key(
        int, 60, "seconds that running requests have to finish when the unit is stopped", least=0, most=MOST
    ),
    "log_level": Key(
        str,
        "warning",
        "debug, info, warning or error; debug logs the text of prompts",
        choices=("debug", "info", "warning", "error"),
    ),
}
"""Keys of C(spark_gateway)."""
CLIENT_KEYS = ("name", "key_file", "aliases")
ALIAS_KEYS = ("backends", "routing", "fallback")
BACKEND_KEYS = ("endpoint", "model", "url", "api_key_file", "name")
ROUTINGS = ("order", "balance")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
"""No asterisk, which LiteLLM takes for any name."""
CLIENT_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,38}[a-z0-9])?")
MOVING_TAGS = ("latest", "main", "main-latest", "main-stable", "lts", "stable", "nightly")

Backend = dict[str, Any]


# ---------------------------------------------------------------- what a person writes


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_gateway) of a host: every key with its default filled in, and everything that is wrong with it."""
    problems = validation.Problems(f"host {host}, spark_gateway")
    given = problems.mapping(value, "spark_gateway")
    settings = schema.filled(problems, given, KEYS)
    for name, key in KEYS.items():
        if key.types is str and settings[name] is not None and not plain_data.is_line(settings[name]):
            problems.add(f"'{name}' is {plain_data.shown(settings[name])}; it must be one line of text.")
    if settings["listen"] is not None and not plain_data.is_address(settings["listen"]):
        problems.add(f"'listen' is {plain_data.shown(settings['listen'])}; it must be an address of the host.")
    if not validation.IMAGE_REF.fullmatch(str(settings["image"])):
        problems.add(f"'image' is {plain_data.shown(settings['image'])}; it must be a reference like {IMAGE}.")
    tag = str(settings["image"]).rpartition(":")[2]
    untagged = "/" in tag or ":" not in str(settings["image"])
    if "@" not in str(settings["image"]) and (untagged or tag in MOVING_TAGS):
        problems.add(f"'image' is {settings['image']}, which moves. Name a version: {IMAGE}.")
    settings["clients"] = _read_clients(problems, settings["clients"])
    settings["aliases"] = {name: _read_alias(problems, name, body) for name, body in settings["aliases"].items()}
    settings["serve"] = _read_serve(problems, settings["serve"])
    for key, rate in settings["prefill_rates"].items():
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate <= MOST:
            problems.add(
                f"'prefill_rates' has {plain_data.shown(rate)} for {key}; it must be prompt tokens a second, such as 1800."
            )
    if settings["listen"] is None:
        settings["listen"] = "0.0.0.0" if settings["master_key_file"] else "127.0.0.1"
    return settings, problems.messages


def _read_clients(problems: validation.Problems, value: Any) -> list[dict[str, Any]]:
    clients: list[dict[str, Any]] = []
    for place, entry in enumerate(problems.mappings(value, "clients"), start=1):
        inner = validation.Problems(f"{problems.where}, clients {entry.get('name') or place}")
        inner.unknown(entry, CLIENT_KEYS)
        name, file, aliases = entry.get("name"), entry.get("key_file"), entry.get("aliases")
        if not isinstance(name, str) or not CLIENT_NAME.fullmatch(name):
            inner.add(f"'name' is {name!r}; it must be of lower-case letters, digits, '-' and '_', 40 at most.")
        elif name in [client["name"] for client in clients]:
            inner.add("the name is there twice.")
        if not plain_data.is_line(file):
            inner.add("'key_file' is missing: the file on the controller that holds this client's key.")
        if aliases is not None and not (
            isinstance(aliases, list) and aliases and all(plain_data.is_line(alias) for alias in aliases)
        ):
            inner.add("'aliases' must be a list of names that the client may use; leave it out for all.")
            aliases = None
        problems.messages += inner.messages
        clients.append(
            {"name": str(name), "key_file": file, "aliases": None if aliases is None else [str(a) for a in aliases]}
        )
    return clients


def _read_alias(problems: validation.Problems, name: str, body: Any) -> dict[str, Any]:
    inner = validation.Problems(f"{problems.where}, alias {name}")
    if not NAME.fullmatch(name):
        inner.add("the name must be of letters, digits and . _ : / @ + -, and must not begin with a sign.")
    if isinstance(body, (str, list)):
        body = {"backends": body}
    body = inner.mapping(body, name)
    # A mapping that names one backend itself is a backend.
    if body and not set(body) & set(ALIAS_KEYS) and set(body) & set(BACKEND_KEYS):
        body = {"backends": [body]}
    inner.unknown(body, ALIAS_KEYS)
    routing = body.get("routing") or "order"
    if routing not in ROUTINGS:
        inner.add(f"'routing' is {routing!r}; it must be one of {', '.join(ROUTINGS)}.")
    listed = body.get("backends")
    listed = [listed] if isinstance(listed, (str, Mapping)) else listed
    if not isinstance(listed, list) or not listed:
        inner.add("'backends' must name at least one endpoint (host/service), or an external one (url, model).")
        listed = []
    fallback = body.get("fallback") or []
    fallback = [fallback] if isinstance(fallback, str) else fallback
    if not isinstance(fallback, list) or not all(isinstance(entry, str) for entry in fallback):
        inner.add("'fallback' must be an alias or a list of them.")
        fallback = []
    read_backends = [_read_backend(inner, entry) for entry in listed]
    problems.messages += inner.messages
    return {"backends": [entry for entry in read_backends if entry], "routing": routing, "fallback": list(fallback)}


def _read_backend(problems: validation.Problems, entry: Any) -> Backend | None:
    if isinstance(entry, str):
        return {"endpoint": entry}
    if not isinstance(entry, Mapping):
        problems.add(f"a backend is the key of an endpoint, or a mapping, not {plain_data.kind(entry)}.")
        return None
    body = {str(key): value for key, value in entry.items() if value is not None}
    problems.unknown(body, BACKEND_KEYS, "key of a backend:")
    wrong = [key for key, item in body.items() if key in BACKEND_KEYS and not plain_data.is_line(item)]
    for key in wrong:
        problems.add(f"a backend's '{key}' is {plain_data.shown(body[key])}; it must be one line of text.")
    if wrong:
        return None
    if ("endpoint" in body) == ("url" in body):
        problems.add("a backend has either 'endpoint' (host/service of the fleet) or 'url' (another server).")
        return None
    if "url" in body:
        parts = plain_data.web_address(body["url"])
        if parts is None:
            problems.add(f"'url' is {body['url']!r}; it must be http://HOST:PORT or https://HOST.")
            return None
        if not body.get("model"):
            problems.add(f"backend {body['url']}: 'model' is missing, the name that it serves.")
            return None
        body["url"] = re.sub(r"/+(v1/*)?$", "", str(body["url"]))
        body.setdefault("name", f"external/{parts.netloc}")
    elif "api_key_file" in body:
        problems.add(f"backend {body['endpoint']}: its key is known from its own host; take 'api_key_file' out.")
    return body


def _read_serve(problems: validation.Problems, value: Any) -> str | list[str]:
    if value in ("all", "none"):
        return str(value)
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return list(value)
    problems.add(f"'serve' is {value!r}; it must be all, none, or a list of endpoints (host/service).")
    return "none"


# ---------------------------------------------------------------- what follows


class Plan:
    """One gateway being planned: which name leads to which backends, and what is wrong."""

    def __init__(self, host: str, settings: Mapping[str, Any], fleet: Sequence[Endpoint]) -> None:
        self.host, self.settings = host, settings
        self.fleet = {entry["key"]: entry for entry in fleet}
        self.findings: list[Finding] = []
        self.keys: dict[str, str] = {}
        self.backends: dict[str, Backend] = {}
        self.names: dict[str, list[Backend]] = {}

    def say(self, rule: str, message: str, fix: str, severity: str = "error") -> None:
        """Note a finding.

        :param rule: its id without C(gateway.)
        :param message: what is wrong, where and why
        :param fix: what to change
        :param severity: C(error), C(warning) or C(info)
        """
        self.findings.append(Finding(f"gateway.{rule}", severity, message, fix, service=SERVICE))

    def key_name(self, file: str | None) -> str:
        """Name of the variable that holds a backend's key inside LiteLLM; empty without one."""
        if not file:
            return ""
        return self.keys.setdefault(file, f"DGXSPARK_BACKEND_KEY_{len(self.keys)}")

    def of_endpoint(self, entry: Endpoint, model: str) -> Backend:
        kind = entry["kind"]
        # A question would start an engine on demand.
        check = "completion" if kind == "vllm" and not entry["on_demand"] else entry["health"]
        found = {
            "key": entry["key"],
            "url": entry["url"],
            "kind": kind,
            "model": model,
            "check": check,
            "env": self.key_name(entry["api_key_file"]),
            "length": entry["max_model_len"],
            "tools": entry["tools"] and not entry["on_demand"],
            "on_demand": entry["on_demand"],
            "hold": entry["hold_seconds"],
        }
        self.backends.setdefault(entry["key"], found)
        return found

    def resolve(self, name: str, written: Backend) -> Backend | None:
        """The backend that an alias names, or nothing and a finding."""
        where = f"spark_gateway of {self.host}, alias {name}"
        if "url" in written:
            found = {
                "key": str(written["name"]),
                "url": written["url"],
                "kind": "external",
                "model": str(written["model"]),
                "check": "completion",
                "env": self.key_name(written.get("api_key_file")),
                "length": None,
            }
            self.backends.setdefault(found["key"], found)
            return found
        key = str(written["endpoint"])
        entry = self.fleet.get(key)
        if entry is None:
            known = ", ".join(sorted(self.fleet)) or "none"
            self.say(
                "unknown_endpoint",
                f"{where}: there is no endpoint {key}{validation.nearest(key, self.fleet)}",
                f"Name one of the fleet: {known}.",
            )
            return None
        if not endpoints.reachable(entry, self.host):
            self.unreachable(entry, f"{where}: ", "error")
            return None
        models = entry["models"]
        model = written.get("model")
        if model is None:
            if len(models) > 1 and entry["kind"] == "ollama":
                self.say(
                    "several_models",
                    f"{where}: {key} serves {', '.join(models)}; the alias takes {models[0]}.",
                    f"Say which: {{endpoint: {key}, model: {models[0]}}}.",
                    "warning",
                )
            model = models[0] if models else entry["service"]
        elif models and model not in models:
            self.say(
                "unknown_model",
                f"{where}: {key} does not serve {model}{validation.nearest(str(model), models)}",
                f"It serves {', '.join(models)}.",
            )
            return None
        return self.of_endpoint(entry, str(model))

    def unreachable(self, entry: Endpoint, where: str, severity: str) -> None:
        """Note that the gateway cannot reach an endpoint.

        :param entry: the endpoint, on loopback of another host
        :param where: which alias wants it, to begin the message with
        :param severity: C(error) where an alias is left without it
        """
        extra = "api_key_file (it then listens on the host's address), or its host option"
        self.say(
            "backend_on_loopback",
            f"{where}{entry['key']} listens on {entry['listen']} of {entry['host']}, where the gateway on {self.host} cannot reach it.",
            f"Give service {entry['service']} of {entry['host']} {extra}, or run the gateway on {entry['host']}.",
            severity,
        )

    def alias_levels(self, name: str, chain: tuple[str, ...] = ()) -> list[list[Backend]]:
        """The levels of an alias: its own backends, then those of the aliases that it falls back on."""
        alias = self.settings["aliases"][name]
        if name in chain:
            self.say(
                "fallback_loop",
                f"spark_gateway of {self.host}: aliases {' -> '.join([*chain, name])} fall back on each other.",
                f"Take '{name}' out of the fallback of '{chain[-1]}'.",
            )
            return []
        # Said once, where the alias itself is looked at.
        own = [self.resolve(name, written) for written in alias["backends"]] if not chain else self.backends_of(name)
        found = [backend for backend in own if backend]
        levels = [found] if alias["routing"] == "balance" else [[backend] for backend in found]
        for other in alias["fallback"]:
            if other in self.settings["aliases"]:
                levels += self.alias_levels(other, (*chain, name))
            elif not chain:
                self.say(
                    "unknown_alias",
                    f"spark_gateway of {self.host}, alias {name}: falls back on '{other}', which is no alias"
                    f"{validation.nearest(other, self.settings['aliases'])}",
                    f"Name one of: {', '.join(sorted(self.settings['aliases']))}.",
                )
        return levels

    def backends_of(self, name: str) -> list[Backend | None]:
        kept = len(self.findings)
        found = [self.resolve(name, written) for written in self.settings["aliases"][name]["backends"]]
        del self.findings[kept:]
        return found

    def lead(self, name: str, levels: Sequence[Sequence[Backend]]) -> None:
        """Have a name lead to backends; one that comes up again at a later level is not asked twice."""
        seen: set[tuple[str, str]] = set()
        rows = []
        for level, row in enumerate(levels):
            for backend in row:
                mark = (backend["key"], backend["model"])
                if mark not in seen:
                    seen.add(mark)
                    rows.append({**backend, "level": level})
        if rows:
            self.names[name] = rows

    def aliases(self) -> None:
        for name in self.settings["aliases"]:
            levels = self.alias_levels(name)
            self.lead(name, levels)
            own = {backend["key"] for row in levels for backend in row}
            for entry in self.fleet.values():
                if name in entry["models"] and entry["key"] not in own and self.settings["serve"] != "none":
                    self.say(
                        "alias_shadows",
                        f"spark_gateway of {self.host}: alias {name} has the name that {entry['key']} serves its model by, but does "
                        "not lead there.",
                        f"Call the alias something else, or add {entry['key']} to its backends.",
                    )
            lengths = {str(b["length"]): b["key"] for row in levels for b in row if b["length"]}
            if len(lengths) > 1:
                pairs = ", ".join(f"{key} takes {length}" for length, key in lengths.items())
                self.say(
                    "lengths_differ",
                    f"spark_gateway of {self.host}, alias {name}: its backends take prompts of different length ({pairs} tokens); what "
                    "fits one may be refused by the next.",
                    "Give them the same max-model-len, or tell clients the smallest.",
                    "warning",
                )

    def served(self) -> None:
        """Names that engines serve themselves; those of the same name share the work."""
        wanted = self.settings["serve"]
        if wanted == "none":
            return
        chosen = list(self.fleet.values()) if wanted == "all" else []
        for key in wanted if isinstance(wanted, list) else []:
            if key in self.fleet:
                chosen.append(self.fleet[key])
                continue
            self.say(
                "unknown_endpoint",
                f"spark_gateway of {self.host}, serve: there is no endpoint {key}{validation.nearest(key, self.fleet)}",
                f"Name one of the fleet: {', '.join(sorted(self.fleet)) or 'none'}.",
            )
        rows: dict[str, list[Backend]] = {}
        for entry in chosen:
            if not endpoints.reachable(entry, self.host):
                self.unreachable(
                    entry, f"spark_gateway of {self.host}, serve: ", "warning" if wanted == "all" else "error"
                )
                continue
            for model in entry["models"]:
                if model not in self.settings["aliases"]:
                    rows.setdefault(model, []).append(self.of_endpoint(entry, model))
        for name, backends in rows.items():
            self.lead(name, [backends])

    def waits(self) -> dict[str, Limits]:
        """How long requests of each backend may take, and what is to be said of it."""
        settings, where = self.settings, f"spark_gateway of {self.host}"
        rates = settings["prefill_rates"]
        for key in rates:
            if key not in self.backends:
                self.say(
                    "unknown_endpoint",
                    f"{where}, prefill_rates: there is no endpoint {key}{validation.nearest(key, self.backends)}",
                    f"Name one that it offers: {', '.join(sorted(self.backends)) or 'none'}.",
                )
        found = timeouts.of_backends(
            {key: backend["length"] for key, backend in self.backends.items()},
            rates,
            {key: backend.get("hold", 0) for key, backend in self.backends.items()},
        )
        for key, each in found.items():
            first = f"the first token of {key} may take {each.reading} s at its {each.length} tokens, at {each.rate:g} a second"
            if not each.length:  # a speech server
                first = f"an answer of {key} may take {each.reading} s"
            lower = " or ".join(
                [*(["on_demand.hold_minutes"] if each.hold else []), *(["max-model-len"] if each.length else [])]
            )
            loads = f", and {each.hold} s before that while {key} loads" if each.hold else ""
            for name, given in (("stream_timeout", settings["stream_timeout"]), ("timeout", settings["timeout"])):
                if given and each.silent > timeouts.SILENT_SECONDS and given < each.silent:
                    self.say(
                        "timeout_short",
                        f"{where}: {name} is {given} s, but {first}{', which is assumed' if each.assumed and each.length else ''}{loads}: what takes longer is "
                        "cut off.",
                        f"Take {name} out, which derives it; or lower {lower} of {key}.",
                        "warning",
                    )
            if each.assumed and each.reading > timeouts.SILENT_SECONDS and not settings["stream_timeout"]:
                self.say(
                    "prefill_assumed",
                    f"{where}: {first}, which is assumed and not measured{loads}; streams of it may be silent for so long.",
                    f"Measure it with bench.yml at long prompts, and set prefill_rates: {{{key}: RATE}}.",
                    "info",
                )
        return found

    def rest(self) -> None:
        """What can be said once all names are known."""
        settings, where = self.settings, f"spark_gateway of {self.host}"
        if not settings["master_key_file"] and not endpoints.is_loopback(settings["listen"]):
            self.say(
                "no_master_key",
                f"{where} listens on {settings['listen']} without a master key: whoever reaches the host uses every model.",
                "Set master_key_file, or listen: 127.0.0.1.",
            )
        if settings["clients"] and not settings["master_key_file"]:
            self.say(
                "no_master_key",
                f"{where} has keys for clients but no master key, so everybody may use everything and the keys do nothing.",
                "Set master_key_file.",
            )
        for entry in self.fleet.values():
            if entry["host"] == self.host and entry["port"] == settings["port"] and entry["kind"] != "external":
                self.say(
                    "port_taken",
                    f"{where} listens on port {settings['port']}, which is that of {entry['service']} on the same host.",
                    "Set another port, for example port: 4001.",
                )
        if not self.names and not self.findings:
            self.say(
                "nothing_to_serve",
                f"{where} has no alias and no endpoint to offer.",
                "Add aliases, or have Sparks serve something (serve: all).",
            )
        owners: dict[str, str] = {}
        keys = {"master_key_file": settings["master_key_file"], "metrics_key_file": settings["metrics_key_file"]}
        keys.update({f"client {client['name']}": client["key_file"] for client in settings["clients"]})
        for owner, file in keys.items():
            if file and owners.setdefault(file, owner) != owner:
                self.say(
                    "same_key",
                    f"{where}: {owners[file]} and {owner} have the same key, {file}, so neither can be told from the other.",
                    f"Give {owner} a file of its own.",
                )
        for client in settings["clients"]:
            for name in client["aliases"] or []:
                if name not in self.names and name not in settings["aliases"]:
                    self.say(
                        "unknown_alias",
                        f"{where}, client {client['name']}: '{name}' is nothing that the gateway serves"
                        f"{validation.nearest(name, self.names)}",
                        f"It serves {', '.join(sorted(self.names)) or 'nothing'}.",
                    )


PROVIDERS = {"vllm": "hosted_vllm", "asr": "openai", "tts": "openai", "ollama": "openai", "external": "openai"}
"""What LiteLLM calls a server that speaks like OpenAI's, by kind; its own word for vLLM knows the options vLLM has beyond that."""
MODES = {"asr": "audio_transcription", "tts": "audio_speech"}


def _own_waits(own: Limits | None, settings: Mapping[str, Any], waits: Mapping[str, int]) -> dict[str, int]:
    """Return the timeouts of one backend, where they are not those of all: for the slowest engine the others would fail late."""
    found = own or timeouts.limits(None)
    own_waits = {"timeout": found.whole, "stream_timeout": found.silent}
    return {key: value for key, value in own_waits.items() if not settings[key] and value != waits[key]}


def _own_retries(names: Mapping[str, Sequence[Backend]], retries: int) -> dict[str, Any]:
    """Return how often a request is tried again that met an engine on demand which does not load: once for each other backend of its name.

    Asking the same one again would only start again what has just failed, after as long a pause as it asked for.
    """
    policies = {
        name: {"ServiceUnavailableErrorRetries": min(retries, len({backend["key"] for backend in backends}) - 1)}
        for name, backends in names.items()
        if any(backend.get("on_demand") for backend in backends)
    }
    return {"model_group_retry_policy": policies} if policies else {}


def _deployment(name: str, backend: Backend, waits: Mapping[str, int]) -> dict[str, Any]:
    """Return what LiteLLM is told of one backend behind a name."""
    info: dict[str, Any] = {"id": f"{name}@{backend['key']}", "backend": backend["key"], "level": backend["level"]}
    if backend["kind"] in MODES:
        info["mode"] = MODES[backend["kind"]]
    if backend["length"]:
        info["max_input_tokens"] = backend["length"]
    return {
        "model_name": name,
        "litellm_params": {
            "model": f"{PROVIDERS[backend['kind']]}/{backend['model']}",
            "api_base": f"{backend['url']}/v1",
            "api_key": f"os.environ/{backend['env']}" if backend["env"] else "none",
            **waits,
        },
        "model_info": info,
    }


def litellm_config(
    names: Mapping[str, Sequence[Backend]], settings: Mapping[str, Any], allowed: Mapping[str, Limits]
) -> dict[str, Any]:
    """The configuration of LiteLLM. There is no key in it, only names of variables that hold them.

    :param names: names for clients to the backends behind them
    :param settings: as C(read) returns them
    :param allowed: backend to how long its requests may take
    :returns: what its configuration file holds
    """
    most = timeouts.longest(allowed.values())
    whole, silent = settings["timeout"] or most.whole, settings["stream_timeout"] or most.silent
    waits = {"timeout": whole, "stream_timeout": silent}
    models = [
        _deployment(name, backend, _own_waits(allowed.get(backend["key"]), settings, waits))
        for name, backends in names.items()
        for backend in backends
    ]
    return {
        "model_list": models,
        "litellm_settings": {
            "drop_params": True,
            "callbacks": ["prometheus", "hooks.chooser"],
            "enable_post_custom_auth_checks": True,
            "require_auth_for_metrics_endpoint": bool(settings["metrics_key_file"]),
            "telemetry": False,
            # Streams of /v1/messages and /v1/responses go by this one.
            "request_timeout": max(whole, silent),
            **(
                {"sse_keepalive_ping_interval_seconds": settings["keepalive_seconds"]}
                if settings["keepalive_seconds"]
                else {}
            ),
        },
        "router_settings": {
            "num_retries": settings["retries"],
            **_own_retries(names, settings["retries"]),
            **waits,
            "cooldown_time": settings["cooldown"],
        },
        "general_settings": {
            "custom_auth": "hooks.authorise",
            "custom_auth_run_common_checks": True,
            "disable_spend_logs": True,
            "disable_error_logs": True,
        },
    }


def _key_files(
    made: Plan, settings: Mapping[str, Any]
) -> tuple[list[dict[str, str]], list[dict[str, Any]], dict[str, str]]:
    """Return files that are copied to the host, the keys that clients have, and files by variable of keys of backends."""
    sources: list[dict[str, str]] = []
    keys: list[dict[str, Any]] = []
    for role, file in (("master", settings["master_key_file"]), ("metrics", settings["metrics_key_file"])):
        if file:
            sources.append({"name": role, "source": file})
            keys.append({"name": role, "role": role, "file": role})
    for client in settings["clients"]:
        file = f"client-{client['name']}"
        sources.append({"name": file, "source": client["key_file"]})
        allowed = (
            made.names if client["aliases"] is None else [name for name in client["aliases"] if name in made.names]
        )
        keys.append({"name": client["name"], "role": "client", "file": file, "aliases": sorted(allowed)})
    variables: dict[str, str] = {}
    for place, (source, variable) in enumerate(made.keys.items()):
        sources.append({"name": f"backend-{place}", "source": source})
        variables[variable] = f"backend-{place}"
    return sources, keys, variables


def plan(host: str, settings: Mapping[str, Any], fleet: Sequence[Endpoint]) -> tuple[dict[str, Any], list[Finding]]:
    """Plan the gateway of a host.

    :param host: its name
    :param settings: as C(read) returns them
    :param fleet: the endpoints of all hosts
    :returns: the variables of the role gateway without their prefix, and findings
    """
    made = Plan(host, settings, fleet)
    made.aliases()
    made.served()
    allowed = made.waits()
    made.rest()
    sources, keys, variables = _key_files(made, settings)
    names = dict(sorted(made.names.items()))
    used = {backend["key"] for rows in names.values() for backend in rows}
    listen = settings["listen"]
    local = "127.0.0.1" if endpoints.is_any(listen) else listen
    outcome = {
        "image": settings["image"],
        "listen": listen,
        "port": settings["port"],
        "memory_gib": settings["memory_gib"],
        "stop_seconds": settings["stop_seconds"],
        "url": f"http://{endpoints.bracketed(local)}:{settings['port']}",
        "config": litellm_config(names, settings, {key: allowed[key] for key in used}),
        "settings": {
            "names": list(names),
            # Whichever backend gets the request, it has to call tools.
            "tools": [
                name for name in settings["aliases"] if names.get(name) and all(row.get("tools") for row in names[name])
            ],
            "open": not settings["master_key_file"],
            "open_metrics": not settings["metrics_key_file"],
            "keys": keys,
            "backend_keys": variables,
            "backends": {
                key: {**{part: entry[part] for part in ("url", "kind", "model", "check")}, "key": entry["env"]}
                for key, entry in sorted(made.backends.items())
                if key in used
            },
            "queue_seconds": settings["queue_seconds"],
            "max_parallel": settings["max_parallel"],
            "body_limit": settings["body_limit_mib"] * MIB,
            "bodies_limit": max(
                int(settings["memory_gib"] * 1024 * MIB * BODIES_SHARE), 2 * settings["body_limit_mib"] * MIB
            ),
            "health_interval": settings["health_interval"],
            "health_timeout": settings["health_timeout"],
            "log_level": settings["log_level"],
        },
        "secrets": sources,
    }
    return outcome, made.findings
