# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gateway, one address for all models of the fleet: C(spark_gateway) and the configuration of LiteLLM.

Clients send the name of an alias of C(spark_gateway), or a name that an engine serves itself. Each name has backends in an order of
levels: the gateway sends a request to a healthy backend of the first level that is not drained, else to the next level. The backends of
the aliases in C(fallback) are further levels, so that routing and fallback are one mechanism.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._cluster import endpoints
from .._cluster.endpoints import Endpoint
from .._common import component_versions, plain_data, schema, validation
from .._common.findings import Finding
from . import timeouts
from .clients import Gateway, Waits
from .descriptions import DESCRIPTIONS, finding, options
from .servers import is_moving, local_url
from .timeouts import Limits

KEYS = options("spark_gateway")
DESCRIPTION = DESCRIPTIONS["gateway"]
CLIENT_KEYS = ("name", "key_file", "aliases")
ALIAS_KEYS = ("backends", "routing", "fallback")
BACKEND_KEYS = ("endpoint", "model", "url", "api_key_file", "name")
IMAGE = component_versions.LITELLM.ref
"""A release of LiteLLM's line with long support; the hooks of the role are written against its code."""
SERVICE = "gateway"

MOST_RATE = 10**7
MIB = 2**20
BODIES_SHARE = 1 / 12
"""Share of C(memory_gib) for the bodies of all requests; LiteLLM needs several times the size of a body to process it."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
"""Without an asterisk, which LiteLLM treats as a pattern."""
CLIENT_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,38}[a-z0-9])?")


# --- reading ------------------------------------------------------------------------------------------------------


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_gateway) of a host; returns its settings with every default, and messages about wrong values."""
    problems = validation.Problems(f"host {host}, spark_gateway")
    settings = schema.filled(problems, problems.mapping(value, "spark_gateway"), KEYS)
    if is_moving(settings["image"], DESCRIPTION["moving_tags"]):
        problems.add(f"'image' is {settings['image']}, which moves. Name a version: {IMAGE}.")
    clients: list[dict[str, Any]] = []
    for place, entry in enumerate(problems.mappings(settings["clients"], "clients"), start=1):
        clients.append(_read_client(problems, entry, place, [client["name"] for client in clients]))
    settings["clients"] = clients
    settings["aliases"] = {name: _read_alias(problems, name, body) for name, body in settings["aliases"].items()}
    serve = settings["serve"]
    is_list = isinstance(serve, list) and all(isinstance(entry, str) for entry in serve)
    if not is_list and serve not in ("all", "none"):
        problems.add(f"'serve' is {serve!r}; it must be all, none, or a list of endpoints (host/service).")
        settings["serve"] = "none"
    for key, rate in settings["prefill_rates"].items():
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate <= MOST_RATE:
            problems.add(
                f"'prefill_rates' has {plain_data.shown(rate)} for {key}; it must be prompt tokens a second, such as 1800."
            )
    if settings["listen"] is None:
        settings["listen"] = "0.0.0.0" if settings["master_key_file"] else "127.0.0.1"
    return settings, problems.messages


def _read_client(
    problems: validation.Problems, entry: Mapping[str, Any], place: int, names: Sequence[str]
) -> dict[str, Any]:
    """Return an entry of C(clients). place: of the entry in the list, from 1. names: of the entries before."""
    problems_here = validation.Problems(f"{problems.where}, clients {entry.get('name') or place}")
    problems_here.unknown(entry, CLIENT_KEYS)
    name, file, aliases = entry.get("name"), entry.get("key_file"), entry.get("aliases")
    if not isinstance(name, str) or not CLIENT_NAME.fullmatch(name):
        problems_here.add(f"'name' is {name!r}; it must be of lower-case letters, digits, '-' and '_', 40 at most.")
    elif name in names:
        problems_here.add("the name is there twice.")
    if not plain_data.is_line(file):
        problems_here.add("'key_file' is missing: the file on the controller with this client's key.")
    is_list = isinstance(aliases, list) and aliases and all(plain_data.is_line(alias) for alias in aliases)
    if aliases is not None and not is_list:
        problems_here.add("'aliases' must be a list of names that the client may use; leave it out for all.")
    problems.messages += problems_here.messages
    return {"name": str(name), "key_file": file, "aliases": list(aliases) if is_list and aliases else None}


def _read_alias(problems: validation.Problems, name: str, body: Any) -> dict[str, Any]:
    """Return an alias with its backends, routing and fallback."""
    problems_here = validation.Problems(f"{problems.where}, alias {name}")
    if not NAME.fullmatch(name):
        problems_here.add("the name must be of letters, digits and . _ : / @ + -, and must not begin with a sign.")
    if isinstance(body, (str, list)):
        body = {"backends": body}
    body = problems_here.mapping(body, name)
    # A mapping with the keys of a backend is the only backend.
    if body and not set(body) & set(ALIAS_KEYS) and set(body) & set(BACKEND_KEYS):
        body = {"backends": [body]}
    problems_here.unknown(body, ALIAS_KEYS)
    routing = body.get("routing") or "order"
    if routing not in DESCRIPTION["routings"]:
        problems_here.add(f"'routing' is {routing!r}; it must be one of {', '.join(DESCRIPTION['routings'])}.")
    backends = body.get("backends")
    backends = [backends] if isinstance(backends, (str, Mapping)) else backends
    if not isinstance(backends, list) or not backends:
        problems_here.add("'backends' must name at least one endpoint (host/service), or an external one (url, model).")
        backends = []
    read_backends = [_read_backend(problems_here, entry) for entry in backends]
    fallback = _read_fallback(problems_here, body.get("fallback") or [])
    problems.messages += problems_here.messages
    return {"backends": [backend for backend in read_backends if backend], "routing": routing, "fallback": fallback}


def _read_fallback(problems: validation.Problems, fallback: Any) -> list[str]:
    """Return the aliases of C(fallback), which is one alias or a list of them."""
    names = [fallback] if isinstance(fallback, str) else fallback
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return names
    problems.add("'fallback' must be an alias or a list of them.")
    return []


def _read_backend(problems: validation.Problems, entry: Any) -> dict[str, Any] | None:
    """Return a backend of an alias: C(endpoint), or C(url) with C(model) and C(name); C(None) if it is wrong."""
    if isinstance(entry, str):
        return {"endpoint": entry}
    if not isinstance(entry, Mapping):
        problems.add(f"a backend is the key of an endpoint, or a mapping, not {plain_data.kind(entry)}.")
        return None
    body = {str(key): value for key, value in entry.items() if value is not None}
    problems.unknown(body, BACKEND_KEYS, "key of a backend:")
    wrong = [key for key, value in body.items() if key in BACKEND_KEYS and not plain_data.is_line(value)]
    for key in wrong:
        problems.add(f"a backend's '{key}' is {plain_data.shown(body[key])}; it must be one line of text.")
    if wrong:
        return None
    if ("endpoint" in body) == ("url" in body):
        problems.add("a backend has either 'endpoint' (host/service of the fleet) or 'url' (another server).")
        return None
    if "url" in body:  # a server outside of the fleet
        parts = plain_data.web_address(body["url"])
        if parts is None:
            problems.add(f"'url' is {body['url']!r}; it must be http://HOST:PORT or https://HOST.")
            return None
        if not body.get("model"):
            problems.add(f"backend {body['url']}: 'model' is missing, the name that it serves.")
            return None
        body["url"] = re.sub(r"/+(v1/*)?$", "", body["url"])
        body.setdefault("name", f"external/{parts.netloc}")
    elif "api_key_file" in body:
        problems.add(f"backend {body['endpoint']}: its key is known from its own host; take 'api_key_file' out.")
    return body


# --- planning -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backend:
    """A server behind a name.

    check: the health check, C(completion) or a path. key_variable: the variable of its key inside LiteLLM, empty without a key. length: the
    context length in tokens. hold_seconds: how long a request may wait while the server loads. level: its place in the order of a name.
    """

    key: str
    url: str
    kind: str
    model: str
    check: str
    key_variable: str
    length: int | None = None
    tools: bool = False
    on_demand: bool = False
    hold_seconds: int = 0
    level: int = 0


class _Planner:
    """One gateway while it is planned: the backends of each name, and the findings."""

    def __init__(self, host: str, settings: Mapping[str, Any], fleet: Sequence[Endpoint]) -> None:
        self.host, self.settings = host, settings
        self.where = f"spark_gateway of {host}"
        self.fleet = {endpoint["key"]: endpoint for endpoint in fleet}
        self.findings: list[Finding] = []
        self.key_variables: dict[str, str] = {}
        self.backends: dict[str, Backend] = {}
        self.names: dict[str, list[Backend]] = {}
        self.backends_of_alias: dict[str, list[Backend]] = {}

    def add(self, rule: str, like: str = "", severity: str = "", where: str = "", **values: Any) -> None:
        """Add a finding. rule, like: without C(gateway.); like, severity, values: see C(descriptions.finding)."""
        place = {"where": where or self.where, "host": self.host}
        self.findings.append(
            finding(f"gateway.{rule}", SERVICE, f"gateway.{like or rule}", severity, **place, **values)
        )

    def key_variable(self, file: str | None) -> str:
        """Return the variable of a backend's key inside LiteLLM; empty without a key."""
        if not file:
            return ""
        return self.key_variables.setdefault(file, f"DGXSPARK_BACKEND_KEY_{len(self.key_variables)}")

    def fleet_backend(self, endpoint: Endpoint, model: str) -> Backend:
        """Return an endpoint of the fleet as the backend for one of its models."""
        on_demand = endpoint["on_demand"]
        backend = Backend(
            key=endpoint["key"],
            url=endpoint["url"],
            kind=endpoint["kind"],
            model=model,
            # A completion would start an engine on demand.
            check="completion" if endpoint["kind"] == "vllm" and not on_demand else endpoint["health"],
            key_variable=self.key_variable(endpoint["api_key_file"]),
            length=endpoint["max_model_len"],
            tools=endpoint["tools"] and not on_demand,
            on_demand=on_demand,
            hold_seconds=endpoint["hold_seconds"],
        )
        self.backends.setdefault(backend.key, backend)
        return backend

    def resolve(self, alias: str, entry: Mapping[str, Any]) -> Backend | None:
        """Return a backend of an alias; C(None), with a finding, if the gateway cannot use it."""
        where = f"{self.where}, alias {alias}"
        if "url" in entry:
            variable = self.key_variable(entry.get("api_key_file"))
            external = Backend(entry["name"], entry["url"], "external", entry["model"], "completion", variable)
            self.backends.setdefault(external.key, external)
            return external
        key = str(entry["endpoint"])
        endpoint = self.fleet.get(key)
        if endpoint is None:
            self.add_unknown_endpoint(where, key)
            return None
        if not endpoints.reachable(endpoint, self.host):
            self.add_unreachable(endpoint, where, "error")
            return None
        models, model = endpoint["models"], entry.get("model")
        if model is None:
            model = models[0] if models else endpoint["service"]
            if len(models) > 1 and endpoint["kind"] == "ollama":
                self.add("several_models", where=where, key=key, model=model, models=", ".join(models))
        elif models and model not in models:
            nearest = validation.nearest(model, models)
            self.add("unknown_model", where=where, key=key, model=model, nearest=nearest, models=", ".join(models))
            return None
        return self.fleet_backend(endpoint, model)

    def add_unknown_endpoint(self, where: str, key: str) -> None:
        """Add a finding about an endpoint that the fleet does not have. where: that names it."""
        keys = ", ".join(sorted(self.fleet)) or "none"
        nearest = validation.nearest(key, self.fleet)
        self.add("unknown_endpoint", where=where, key=key, nearest=nearest, known=keys)

    def add_unreachable(self, endpoint: Endpoint, where: str, severity: str) -> None:
        """Add a finding about an endpoint on loopback of another host. where: that names it."""
        values = {"backend": endpoint["service"], "backend_host": endpoint["host"], "listen": endpoint["listen"]}
        self.add("backend_on_loopback", where=where, severity=severity, key=endpoint["key"], **values)

    def resolve_alias(self, alias: str) -> list[Backend]:
        """Return the backends of an alias itself."""
        if alias not in self.backends_of_alias:
            resolved = [self.resolve(alias, entry) for entry in self.settings["aliases"][alias]["backends"]]
            self.backends_of_alias[alias] = [backend for backend in resolved if backend]
        return self.backends_of_alias[alias]

    def levels_of(self, alias: str, chain: tuple[str, ...] = ()) -> list[list[Backend]]:
        """Return the levels of an alias: its backends, then the backends of its fallbacks. chain: the aliases that fall back on it."""
        settings = self.settings["aliases"][alias]
        if alias in chain:
            self.add("fallback_loop", chain=" -> ".join([*chain, alias]), alias=alias, last=chain[-1])
            return []
        backends = self.resolve_alias(alias)
        levels = [list(backends)] if settings["routing"] == "balance" else [[backend] for backend in backends]
        for other in settings["fallback"]:
            if other in self.settings["aliases"]:
                levels += self.levels_of(other, (*chain, alias))
            elif not chain:
                aliases = ", ".join(sorted(self.settings["aliases"]))
                nearest = validation.nearest(other, self.settings["aliases"])
                self.add("unknown_alias", alias=alias, other=other, nearest=nearest, known=aliases)
        return levels

    def add_name(self, name: str, levels: Sequence[Sequence[Backend]]) -> None:
        """Add a name with its backends; a backend on several levels is only on the first."""
        rows: dict[tuple[str, str], Backend] = {}
        for level, backends in enumerate(levels):
            for backend in backends:
                rows.setdefault((backend.key, backend.model), replace(backend, level=level))
        if rows:
            self.names[name] = list(rows.values())

    def add_aliases(self) -> None:
        """Add the names of all aliases."""
        for alias in self.settings["aliases"]:
            levels = self.levels_of(alias)
            self.add_name(alias, levels)
            backends = [backend for level in levels for backend in level]
            for endpoint in self.fleet.values():
                is_backend = endpoint["key"] in {backend.key for backend in backends}
                if alias in endpoint["models"] and not is_backend and self.settings["serve"] != "none":
                    self.add("alias_shadows", alias=alias, key=endpoint["key"])
            lengths = {backend.length: backend.key for backend in backends if backend.length}
            if len(lengths) > 1:
                texts = ", ".join(f"{key} takes {length}" for length, key in lengths.items())
                self.add("lengths_differ", alias=alias, lengths=texts)

    def add_served(self) -> None:
        """Add the names that endpoints serve themselves; endpoints with one name share its requests."""
        serve = self.settings["serve"]
        where = f"{self.where}, serve"
        served = list(self.fleet.values()) if serve == "all" else []
        for key in serve if isinstance(serve, list) else []:
            if key in self.fleet:
                served.append(self.fleet[key])
            else:
                self.add_unknown_endpoint(where, key)
        rows: dict[str, list[Backend]] = {}
        for endpoint in served:
            if not endpoints.reachable(endpoint, self.host):
                self.add_unreachable(endpoint, where, "warning" if serve == "all" else "error")
                continue
            for model in endpoint["models"]:
                if model not in self.settings["aliases"]:
                    rows.setdefault(model, []).append(self.fleet_backend(endpoint, model))
        for name, backends in rows.items():
            self.add_name(name, [backends])

    def limits(self) -> dict[str, Limits]:
        """Return how long requests of each backend may take; adds findings about timeouts that are too short or assumed."""
        rates = self.settings["prefill_rates"]
        for key in rates:
            if key not in self.backends:
                keys = ", ".join(sorted(self.backends)) or "none"
                nearest = validation.nearest(key, self.backends)
                self.add("unknown_endpoint", "unknown_endpoint.rates", key=key, nearest=nearest, known=keys)
        limits = {
            key: timeouts.limits(backend.length, rates.get(key), backend.hold_seconds)
            for key, backend in self.backends.items()
        }
        for key, limit in limits.items():
            self.find_timeout_risks(key, limit)
        return limits

    def find_timeout_risks(self, key: str, limit: Limits) -> None:
        """Add findings about timeouts that are too short for a backend, and about an assumed prefill rate."""
        first = f"an answer of {key} may take {limit.reading} s"  # a speech server has no context length
        if limit.length:
            first = f"the first token of {key} may take {limit.reading} s at its {limit.length} tokens, at {limit.rate:g} a second"
        loads = f", and {limit.hold} s before that while {key} loads" if limit.hold else ""
        causes = (("on_demand.hold_minutes", limit.hold), ("max-model-len", limit.length))
        lower = " or ".join(option for option, value in causes if value)
        assumed = ", which is assumed" if limit.assumed and limit.length else ""
        for option in ("stream_timeout", "timeout"):
            seconds = self.settings[option]
            if seconds and limit.silent > timeouts.SILENT_SECONDS and seconds < limit.silent:
                values = {"first": first + assumed, "loads": loads, "lower": lower}
                self.add("timeout_short", option=option, seconds=seconds, key=key, **values)
        if limit.assumed and limit.reading > timeouts.SILENT_SECONDS and not self.settings["stream_timeout"]:
            self.add("prefill_assumed", first=first, loads=loads, key=key)

    def find_conflicts(self) -> None:
        """Add findings about a missing master key, the port, and a gateway without names. All names have to be added before."""
        settings = self.settings
        if not settings["master_key_file"] and not endpoints.is_loopback(settings["listen"]):
            self.add("no_master_key", listen=settings["listen"])
        if settings["clients"] and not settings["master_key_file"]:
            self.add("no_master_key", "no_master_key.clients")
        for endpoint in self.fleet.values():
            is_same = endpoint["host"] == self.host and endpoint["port"] == settings["port"]
            if is_same and endpoint["kind"] != "external":
                self.add("port_taken", port=settings["port"], other=endpoint["service"])
        if not self.names and not self.findings:
            self.add("nothing_to_serve")

    def find_client_conflicts(self) -> None:
        """Add findings about keys that two clients share, and about unknown names of clients. All names have to be added before."""
        owners: dict[str, str] = {}
        for owner, file in self.key_files():
            if file and owners.setdefault(file, owner) != owner:
                self.add("same_key", first=owners[file], second=owner, file=file)
        for client in self.settings["clients"]:
            for alias in client["aliases"] or []:
                if alias not in self.names and alias not in self.settings["aliases"]:
                    values = {
                        "client": client["name"],
                        "alias": alias,
                        "nearest": validation.nearest(alias, self.names),
                    }
                    served = ", ".join(sorted(self.names)) or "nothing"
                    self.add("unknown_alias", "unknown_alias.client", known=served, **values)

    def key_files(self) -> Iterator[tuple[str, str | None]]:
        """Yield the owners of keys with their files on the controller."""
        for key in ("master_key_file", "metrics_key_file"):
            yield key, self.settings[key]
        for client in self.settings["clients"]:
            yield f"client {client['name']}", client["key_file"]

    def allowed_names(self, client: Mapping[str, Any]) -> list[str]:
        """Return the names that a client may use."""
        aliases = client["aliases"]
        return sorted(name for name in self.names if aliases is None or name in aliases)


def _waits(limits: Limits, settings: Mapping[str, Any]) -> dict[str, int]:
    """Return the timeouts for one backend, seconds: from the settings, else from the backend."""
    return {
        "timeout": settings["timeout"] or limits.answer,
        "stream_timeout": settings["stream_timeout"] or limits.silent,
    }


def _longest_waits(rows: Sequence[Mapping[str, int]]) -> Waits:
    """Return the longest timeouts of some backends, seconds. rows: of C(_waits)."""
    return {"answer": max(row["timeout"] for row in rows), "silent": max(row["stream_timeout"] for row in rows)}


def _retry_policies(names: Mapping[str, Sequence[Backend]], retries: int) -> dict[str, Any]:
    """Return the retries of requests to an engine on demand that does not load: one for each other backend of the name.

    A retry on the same engine would repeat the failed start, after the pause that its answer requires.
    """
    policies = {
        name: {"ServiceUnavailableErrorRetries": min(retries, len({backend.key for backend in backends}) - 1)}
        for name, backends in names.items()
        if any(backend.on_demand for backend in backends)
    }
    return {"model_group_retry_policy": policies} if policies else {}


def _deployment(name: str, backend: Backend, waits: Mapping[str, int]) -> dict[str, Any]:
    """Return one backend of a name for the configuration of LiteLLM. waits: its timeouts, if they differ from the common ones."""
    info: dict[str, Any] = {"id": f"{name}@{backend.key}", "backend": backend.key, "level": backend.level}
    if backend.kind in DESCRIPTION["modes"]:
        info["mode"] = DESCRIPTION["modes"][backend.kind]
    if backend.length:
        info["max_input_tokens"] = backend.length
    return {
        "model_name": name,
        "litellm_params": {
            "model": f"{DESCRIPTION['providers'][backend.kind]}/{backend.model}",
            "api_base": f"{backend.url}/v1",
            "api_key": f"os.environ/{backend.key_variable}" if backend.key_variable else "none",
            **waits,
        },
        "model_info": info,
    }


def litellm_config(
    names: Mapping[str, Sequence[Backend]], settings: Mapping[str, Any], limits: Mapping[str, Limits]
) -> dict[str, Any]:
    """Return the configuration of LiteLLM. It contains no keys, only the names of variables with keys."""
    waits_of = {key: _waits(limit, settings) for key, limit in limits.items()}
    rows = list(waits_of.values()) or [_waits(timeouts.limits(None), settings)]
    waits = {key: max(row[key] for row in rows) for key in rows[0]}
    keepalive = settings["keepalive_seconds"]
    return {
        "model_list": [
            # The timeouts of the slowest engine would make the others fail late.
            _deployment(name, backend, {key: own for key, own in waits_of[backend.key].items() if own != waits[key]})
            for name, backends in names.items()
            for backend in backends
        ],
        "litellm_settings": {
            **DESCRIPTION["config"]["litellm_settings"],
            "require_auth_for_metrics_endpoint": bool(settings["metrics_key_file"]),
            # Streams of /v1/messages and /v1/responses use this timeout.
            "request_timeout": max(waits.values()),
            **({"sse_keepalive_ping_interval_seconds": keepalive} if keepalive else {}),
        },
        "router_settings": {
            "num_retries": settings["retries"],
            **_retry_policies(names, settings["retries"]),
            **waits,
            "cooldown_time": settings["cooldown"],
        },
        "general_settings": dict(DESCRIPTION["config"]["general_settings"]),
    }


def _keys(
    planner: _Planner, settings: Mapping[str, Any]
) -> tuple[list[dict[str, str]], list[dict[str, Any]], dict[str, str]]:
    """Return the key files for the host, the keys of clients, and the file of each variable with a backend's key."""
    secrets: list[dict[str, str]] = []
    keys: list[dict[str, Any]] = []
    for role in ("master", "metrics"):
        if file := settings[f"{role}_key_file"]:
            secrets.append({"name": role, "source": file})
            keys.append({"name": role, "role": role, "file": role})
    for client in settings["clients"]:
        name, aliases = f"client-{client['name']}", planner.allowed_names(client)
        secrets.append({"name": name, "source": client["key_file"]})
        keys.append({"name": client["name"], "role": "client", "file": name, "aliases": aliases})
    secrets += [{"name": f"backend-{place}", "source": file} for place, file in enumerate(planner.key_variables)]
    files = {variable: f"backend-{place}" for place, variable in enumerate(planner.key_variables.values())}
    return secrets, keys, files


def plan(
    host: str, address: str, settings: Mapping[str, Any], fleet: Sequence[Endpoint]
) -> tuple[dict[str, Any], Gateway, Endpoint, list[Finding]]:
    """Plan the gateway of a host.

    :param address: of the host in the inventory
    :returns: the variables of the role gateway without their prefix, the gateway as its clients see it, its endpoint for the fleet
        monitor, and findings
    """
    planner = _Planner(host, settings, fleet)
    planner.add_aliases()
    planner.add_served()
    limits = planner.limits()
    planner.find_conflicts()
    planner.find_client_conflicts()
    names = dict(sorted(planner.names.items()))
    used = {backend.key for backends in names.values() for backend in backends}
    secrets, keys, backend_keys = _keys(planner, settings)
    body_limit = settings["body_limit_mib"] * MIB
    outcome = {
        **{option: settings[option] for option in ("image", "listen", "port", "memory_gib", "stop_seconds")},
        "url": local_url("127.0.0.1" if endpoints.is_any(settings["listen"]) else settings["listen"], settings["port"]),
        "config": litellm_config(names, settings, {key: limits[key] for key in used}),
        "settings": {
            "names": list(names),
            "routes": {name: sorted({backend.key for backend in backends}) for name, backends in names.items()},
            # Any backend may get the request, so each must support tool calls.
            "tools": [name for name in settings["aliases"] if name in names and all(row.tools for row in names[name])],
            "open": not settings["master_key_file"],
            "open_metrics": not settings["metrics_key_file"],
            "keys": keys,
            "backend_keys": backend_keys,
            "backends": {
                key: {
                    **{option: getattr(planner.backends[key], option) for option in ("url", "kind", "model", "check")},
                    "key": planner.backends[key].key_variable,
                }
                for key in sorted(used)
            },
            "queue_seconds": settings["queue_seconds"],
            "prefix_lead": settings["prefix_lead"],
            "max_parallel": settings["max_parallel"],
            "body_limit": body_limit,
            "bodies_limit": max(int(settings["memory_gib"] * 1024 * MIB * BODIES_SHARE), 2 * body_limit),
            **{option: settings[option] for option in ("health_interval", "health_timeout", "log_level")},
        },
        "secrets": secrets,
    }
    gateway, endpoint = _front(planner, address, names, limits)
    return outcome, gateway, endpoint, planner.findings


def _front(
    planner: _Planner, address: str, names: Mapping[str, Sequence[Backend]], limits: Mapping[str, Limits]
) -> tuple[Gateway, Endpoint]:
    """Return the gateway as its clients see it, and its endpoint for the fleet monitor."""
    host, settings, listen = planner.host, planner.settings, planner.settings["listen"]
    key_files = {client["name"]: client["key_file"] for client in settings["clients"]}
    gateway: Gateway = {
        "host": host,
        "address": address if endpoints.is_any(listen) else listen,
        "port": settings["port"],
        "listen": listen,
        "keyed": bool(settings["master_key_file"]),
        "models": {
            name: max((backend.length or 0 for backend in backends), default=0) or None
            for name, backends in names.items()
        },
        "waits": {
            name: _longest_waits([_waits(limits[backend.key], settings) for backend in backends])
            for name, backends in names.items()
        },
        "clients": {
            client["name"]: {"key_file": client["key_file"], "models": planner.allowed_names(client)}
            for client in settings["clients"]
        },
    }
    # The fleet monitor may request a token of these: a speech server generates none; Ollama and engines on demand would load a model.
    checked = [name for name, backends in names.items() if all(backend.check == "completion" for backend in backends)]
    key_file = key_files.get("fleet-monitor") or settings["master_key_file"] or None
    endpoint = endpoints.make(
        host, address, SERVICE, "external", settings["port"], listen, models=checked, api_key_file=key_file
    )
    return gateway, endpoint
