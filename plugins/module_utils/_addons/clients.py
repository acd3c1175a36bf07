# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients of the gateway: C(spark_clients), and the settings, keys and units of Open WebUI and the Hermes agent."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from .._cluster import endpoints as fleet
from .._cluster.endpoints import Endpoint
from .._common import component_versions, plain_data, plain_secrets, schema, validation
from .._common.findings import Finding
from .._common.schema import Keys
from .._host import containers, host_paths
from . import timeouts
from .descriptions import DESCRIPTIONS, Lazy, finding, options
from .servers import (
    CONTAINER_SECRETS,
    ETC,
    SECRETS,
    VOLUME,
    check_container,
    check_words,
    docker_run,
    environment,
    local_url,
)

KEYS = options("spark_clients")
OPEN_WEBUI_KEYS = options("spark_clients.open_webui")
HERMES_KEYS = options("spark_clients.hermes")
OPEN_WEBUI: Mapping[str, Any] = Lazy(lambda: DESCRIPTIONS["clients"]["open_webui"])

CONTAINER_DATA = "/app/backend/data"
STOP_SECONDS = 20
HERMES_USER = "spark-hermes"
HERMES_LOCKED = component_versions.HERMES.version
"""The version whose list of packages the role contains."""
VERSION = re.compile(r"[0-9][\w.+!-]{0,40}", re.ASCII)
"""It names a folder of the host and a file of the collection."""
SHARED = ("/var/lib/dgxspark", "/var/cache/dgxspark", "/opt/dgxspark")
HERMES_MODEL = "hermes-agent"
"""Model name of the agent's API server."""
HERMES_CONTEXT = 64000
"""The agent refuses models with less (MINIMUM_CONTEXT_LENGTH of its agent/model_metadata.py)."""
GATEWAY_KEY = "DGXSPARK_GATEWAY_KEY"
NO_KEY = "none"
"""The key that clients send to servers without keys: OpenAI's libraries require a text."""


class Waits(TypedDict):
    """How long a gateway waits for a model, seconds: for an answer without streaming, and for the next part of a stream."""

    answer: int
    silent: int


class Gateway(TypedDict):
    """A gateway, as its clients see it.

    C(models): the names that it offers, with the longest context, C(None) if unknown. C(waits): its timeouts for each name.
    C(clients): its keys with limited access: name to C({key_file, models}).
    """

    host: str
    address: str
    port: int
    listen: str
    keyed: bool
    models: dict[str, int | None]
    waits: dict[str, Waits]
    clients: dict[str, dict[str, Any]]


# --- reading ------------------------------------------------------------------------------------------------------


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_clients) of one host; returns its clients with every default, and messages about wrong values.

    A client that is left out is an empty mapping. C({}) and null after the name of a client stand for its defaults.
    """
    clients: dict[str, Any] = {"open_webui": {}, "hermes": {}}
    if not isinstance(value, Mapping):
        return clients, [
            f"host {host}, spark_clients: must be a mapping with open_webui or hermes, not {plain_data.kind(value)}."
        ]
    top = validation.Problems(f"host {host}, spark_clients")
    top.unknown([str(key) for key in value], tuple(KEYS))
    messages = top.messages
    for name, keys, check in (
        ("open_webui", OPEN_WEBUI_KEYS, _check_open_webui),
        ("hermes", HERMES_KEYS, _check_hermes),
    ):
        if name not in value or value[name] is False:
            continue
        problems = validation.Problems(f"host {host}, spark_clients.{name}")
        body = {} if value[name] is True else problems.mapping(value[name], name)
        clients[name] = schema.filled(problems, body, keys)
        for key in ("data_dir", "install_dir", "python"):
            if key in keys:
                _check_path(problems, key, clients[name][key], keys)
        check(problems, clients[name])
        messages += problems.messages
    return clients, messages


def _check_path(problems: validation.Problems, key: str, path: str, keys: Keys) -> None:
    if not path.startswith("/") or not VOLUME.fullmatch(f"{path}:/x") or path != posixpath.normpath(path):
        problems.add(f"'{key}' is '{path}'; it must be an absolute path without blanks, '..' and a slash at its end.")
    # The client's account becomes the owner of the folder, and other accounts lose access.
    elif key == "data_dir" and path in SHARED:
        problems.add(f"'{key}' is '{path}', where others of the collection have their folders; name one below it.")
    elif key != "python" and host_paths.problem(path):
        problems.add(
            f"'{key}' is '{path}', which is not a separate folder: {host_paths.problem(path).partition('; ')[0]}. Name one such as "
            f"{keys[key].default}."
        )


def _check_open_webui(problems: validation.Problems, settings: dict[str, Any]) -> None:
    check_container(problems, settings, "Open WebUI's own keys are files: key_file, secret_key_file, admin.")
    if not settings["command"]:
        problems.add(
            "'command' is empty; the image's own program has to be named, because keys are read before it starts."
        )
    settings["env"] = environment(problems, settings["env"])
    for name in settings["env"]:
        if option := OPEN_WEBUI["option_of_variable"].get(name):
            problems.add(f"'env' sets {name}, which '{option}' is there for. Use that.")
    settings["admin"] = {key: value for key, value in settings["admin"].items() if value is not None}
    if settings["admin"] and not settings["auth"]:
        problems.add("'admin' is set with auth: false, which has no accounts. Remove one of them.")


def _check_hermes(problems: validation.Problems, settings: dict[str, Any]) -> None:
    check_words(problems, "toolsets", settings["toolsets"])
    if not VERSION.fullmatch(settings["version"]):
        problems.add(
            f"'version' is {settings['version']!r}; it must be a release of hermes-agent, such as {HERMES_LOCKED}."
        )
    elif settings["version"] != HERMES_LOCKED and not settings["requirements_file"]:
        problems.add(
            f"'version' is {settings['version']}, but the collection has the list of packages of {HERMES_LOCKED}. Make one "
            "(docs/clients.md has the command) and name it as requirements_file."
        )
    for key in ("model", "providers"):
        if key in settings["config"]:
            problems.add(f"'config' has '{key}', which gateway, model and key_file are there for. Remove it.")
    for message in plain_data.unfit(settings["config"], "'config'"):
        problems.add(message)
    secrets = [place for place, _secret in plain_secrets.in_settings(settings["config"])]
    if secrets:
        problems.add(
            f"'config' has {', '.join(secrets)}, which look like secrets: the file can be read by the "
            "agent itself. The agent takes keys from its environment only; put them into its home by hand (.env)."
        )


# --- planning -----------------------------------------------------------------------------------------------------


def plan(
    host: str,
    settings: Mapping[str, Any],
    endpoints: Sequence[Endpoint],
    gateways: Mapping[str, Gateway],
) -> tuple[dict[str, Any], list[Finding]]:
    """Plan the clients of one host. Returns the variables of the role clients without their prefix, and findings."""
    planner = _Planner(host, endpoints, gateways)
    hermes = planner.hermes(dict(settings["hermes"])) if settings["hermes"] else {}
    page = planner.open_webui(dict(settings["open_webui"]), hermes) if settings["open_webui"] else {}
    units = {endpoint["port"]: endpoint["unit"] for endpoint in endpoints if endpoint["host"] == host}
    if host in gateways:
        units[gateways[host]["port"]] = "spark-gateway.service"
    for client in KEYS:
        if settings[client]:
            name, port = client.replace("_", "-"), settings[client]["port"]
            if port in units:
                planner.add("port", name, client=client, port=port, host=host, unit=units[port])
            units[port] = f"spark-{name}.service"
    return {"open_webui": page, "hermes": hermes}, planner.findings


class _Planner:
    """The clients of one host while they are planned, and the findings about them."""

    def __init__(self, host: str, endpoints: Sequence[Endpoint], gateways: Mapping[str, Gateway]) -> None:
        self.host, self.endpoints, self.gateways = host, endpoints, gateways
        self.findings: list[Finding] = []

    def add(self, rule: str, service: str, like: str = "", **values: Any) -> None:
        """Add a finding; see C(descriptions.finding) for the arguments."""
        self.findings.append(finding(f"clients.{rule}", service, f"clients.{like or rule}", **values))

    def open_webui(self, settings: dict[str, Any], hermes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the variables of Open WebUI. hermes: the variables of the agent on the same host, or empty."""
        gateway = self.gateway_of("open_webui", settings)
        listen = settings["listen"] or ("0.0.0.0" if settings["auth"] else "127.0.0.1")
        admin = settings["admin"]
        urls = [f"{url_of(self.host, gateway)}/v1"] if gateway else []
        keys = [_file(settings["key_file"])] if gateway else []
        has_agent = bool(hermes) and settings["agents"]
        if has_agent:
            urls.append(f"{hermes['url']}/v1")
            keys.append({"host": f"{SECRETS}/hermes/API_SERVER_KEY"})
        secrets = [
            _secret("open-webui", "WEBUI_SECRET_KEY", [_generated(settings["secret_key_file"])]),
            _secret("open-webui", "OPENAI_API_KEYS", keys),
        ]
        env = _page_environment(settings, listen, urls, waits_of(gateway))
        if admin:
            env |= {"WEBUI_ADMIN_EMAIL": admin["email"], "WEBUI_ADMIN_NAME": admin.get("name", "Admin")}
            password = _generated(admin.get("password_file", ""))
            secrets.append(_secret("open-webui", "WEBUI_ADMIN_PASSWORD", [password]))
        if settings["speech"]:
            self.add_speech(settings, gateway, env, secrets)
        if not settings["tools"]:
            env["DEFAULT_MODEL_PARAMS"] = '{"function_calling": "legacy"}'
        env |= settings["env"]
        self.find_page_risks(settings, listen)
        self.findings += containers.findings("open-webui", settings["docker_args"], read_only=[CONTAINER_SECRETS])
        return {
            "name": "open-webui",
            "unit": "spark-open-webui.service",
            "container": "spark-open-webui",
            "image": settings["image"],
            "port": settings["port"],
            "listen": listen,
            "url": local_url(listen, settings["port"]),
            "env_file": f"{ETC}/open-webui/open-webui.env",
            "folders": [*_folders("open-webui"), {"path": settings["data_dir"], "mode": "0700"}],
            "data_dir": settings["data_dir"],
            "auth": settings["auth"],
            "admin_email": settings["admin"].get("email"),
            "memory_gib": float(settings["memory_gib"]),
            "start_timeout": settings["start_timeout"],
            "stop_seconds": STOP_SECONDS,
            "env": env,
            "secrets": secrets,
            "gateway_url": url_of(self.host, gateway) if gateway else "",
            "models": sorted(gateway["models"] if gateway else []) + ([HERMES_MODEL] if has_agent else []),
            "after": [*self.local_units(gateway), *([hermes["unit"]] if has_agent else [])],
            # On the host's network it reaches a gateway on 127.0.0.1, and ufw filters its port.
            "argv": docker_run(
                "open-webui",
                settings,
                ["--network", "host", "--init", "--memory", f"{int(float(settings['memory_gib']) * 1024)}m"],
                f"{ETC}/open-webui/open-webui.env",
                ["--volume", f"{settings['data_dir']}:{CONTAINER_DATA}"],
                f"{SECRETS}/open-webui",
                STOP_SECONDS,
                containers.for_port(settings["port"]),
            ),
        }

    def hermes(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the variables of the Hermes agent."""
        gateway = self.gateway_of("hermes", settings)
        models = gateway["models"] if gateway else {}
        model = settings["model"] or (next(iter(models)) if len(models) == 1 else "")
        length = settings["context_length"] or models.get(model)
        self.find_agent_risks(settings, gateway, model, length)
        base_url = f"{url_of(self.host, gateway)}/v1" if gateway else ""
        options = ("version", "requirements_file", "python", "install_dir", "data_dir", "port", "listen")
        return {
            "name": "hermes",
            "unit": "spark-hermes.service",
            "user": HERMES_USER,
            **{option: settings[option] for option in options},
            "url": local_url(settings["listen"], settings["port"]),
            "model": model,
            "config": _hermes_config(settings, base_url, model, length, waits_of(gateway, [model])),
            "env": {
                "API_SERVER_ENABLED": "true",
                "API_SERVER_HOST": settings["listen"],
                "API_SERVER_PORT": str(settings["port"]),
                "API_SERVER_MODEL_NAME": HERMES_MODEL,
            },
            "secrets": [
                _secret("hermes", GATEWAY_KEY, [_file(settings["key_file"])]),
                _secret("hermes", "API_SERVER_KEY", [_generated(settings["api_key_file"])]),
            ],
            "folders": _folders("hermes"),
            "gateway_url": url_of(self.host, gateway) if gateway else "",
            "memory_gib": float(settings["memory_gib"]),
            "start_timeout": settings["start_timeout"],
            "stop_seconds": STOP_SECONDS,
            "after": self.local_units(gateway),
        }

    def gateway_of(self, client: str, settings: dict[str, Any]) -> Gateway | None:
        """Return the gateway of a client, with the models of the client's key; add findings about a client that cannot use it.

        Sets C(key_file) in C(settings) if the gateway has a key for this client's name.
        """
        where, service = f"spark_clients.{client}", client.replace("_", "-")
        name = settings["gateway"] or (next(iter(self.gateways)) if len(self.gateways) == 1 else "")
        if name not in self.gateways:
            case = "none" if not self.gateways else "unknown" if name else "several"
            values = {"nearest": validation.nearest(name, self.gateways), "known": ", ".join(sorted(self.gateways))}
            count = len(self.gateways)
            self.add("gateway", service, f"gateway.{case}", where=where, gateway=name, count=count, **values)
            return None
        gateway = self.gateways[name]
        client_key = gateway["clients"].get(service)
        if client_key and settings["key_file"] in ("", client_key["key_file"]):
            settings["key_file"] = client_key["key_file"]
            models = {model: length for model, length in gateway["models"].items() if model in client_key["models"]}
            gateway = {**gateway, "models": models}
        if gateway["host"] != self.host and fleet.is_loopback(gateway["listen"]):
            values = {"listen": gateway["listen"], "address": gateway["address"]}
            self.add("gateway_loopback", service, where=where, gateway=name, host=self.host, **values)
        if gateway["keyed"] and not settings["key_file"]:
            self.add("gateway_key", service, where=where, gateway=name, service_name=service)
        return gateway

    def add_speech(
        self, settings: Mapping[str, Any], gateway: Gateway | None, env: dict[str, str], secrets: list[dict[str, Any]]
    ) -> None:
        """Add the variables and keys for dictation and reading aloud, by the gateway if it offers the model, else by the server itself."""
        for kind, prefix, use in (("asr", "AUDIO_STT", "dictation"), ("tts", "AUDIO_TTS", "reading aloud")):
            server = self.speech_server(kind, use, gateway)
            if not server:
                continue
            base, key = server["url"], server["api_key_file"] or ""
            if gateway and _offers(gateway, server):
                base, key = url_of(self.host, gateway), settings["key_file"]
            elif server["host"] == self.host and fleet.is_any(server["listen"]):
                base = f"http://127.0.0.1:{server['port']}"
            env[f"{prefix}_ENGINE"] = "openai"
            env[f"{prefix}_MODEL"] = server["models"][0]
            env[f"{prefix}_OPENAI_API_BASE_URL"] = f"{base}/v1"
            if kind == "tts":
                env["AUDIO_TTS_VOICE"] = settings["voice"]
            secrets.append(_secret("open-webui", f"{prefix}_OPENAI_API_KEY", [_file(key)]))

    def speech_server(self, kind: str, use: str, gateway: Gateway | None) -> Endpoint | None:
        """Return the speech server for a client, preferably on the same host; adds a finding if none can be reached.

        :param kind: C(asr) or C(tts)
        """
        servers = [server for server in self.endpoints if server["kind"] == kind]
        servers.sort(key=lambda server: server["host"] != self.host)
        for server in servers:
            if _offers(gateway, server) or fleet.reachable(server, self.host):
                return server
        if servers:
            names = ", ".join(server["key"] for server in servers)
            self.add("speech_loopback", "open-webui", servers=names, host=self.host, use=use)
        return None

    def local_units(self, gateway: Gateway | None) -> list[str]:
        """Return the unit of the gateway if it runs on the same host."""
        return ["spark-gateway.service"] if gateway and gateway["host"] == self.host else []

    def find_page_risks(self, settings: Mapping[str, Any], listen: str) -> None:
        """Add findings about a page without accounts, and about settings that the inventory does not control."""
        if not fleet.is_loopback(listen):
            if not settings["auth"]:
                self.add("open_door", "open-webui", listen=listen, host=self.host)
            elif not settings["admin"]:
                self.add("first_account", "open-webui", listen=listen)
        if settings["persistent_config"]:
            self.add("persistent_config", "open-webui")

    def find_agent_risks(
        self, settings: Mapping[str, Any], gateway: Gateway | None, model: str, length: int | None
    ) -> None:
        """Add findings about the agent's model, its context length in tokens, and the address of its API server."""
        if gateway and model not in gateway["models"]:
            aliases = ", ".join(sorted(gateway["models"])) or "none"
            values = {"model": model, "gateway": gateway["host"], "count": len(gateway["models"]), "known": aliases}
            self.add("model", "hermes", "model.unknown" if model else "model.several", **values)
        if length is not None and length < HERMES_CONTEXT:
            self.add("context", "hermes", model=model, length=length, least=HERMES_CONTEXT)
        if not fleet.is_loopback(settings["listen"]):
            self.add("agent_exposed", "hermes", listen=settings["listen"], host=self.host, user=HERMES_USER)


def waits_of(gateway: Gateway | None, names: Iterable[str] | None = None) -> Waits:
    """Return the timeouts of a gateway for the slowest of some models, seconds; at least the timeouts of a gateway without long contexts."""
    models = (names or gateway["models"]) if gateway else ()
    waits = [gateway["waits"][name] for name in models if name in gateway["waits"]] if gateway else []
    return {
        "answer": max([timeouts.WHOLE_SECONDS, *(wait["answer"] for wait in waits)]),
        "silent": max([timeouts.SILENT_SECONDS, *(wait["silent"] for wait in waits)]),
    }


def _page_environment(settings: Mapping[str, Any], listen: str, urls: Sequence[str], waits: Waits) -> dict[str, str]:
    """Return the environment of Open WebUI without accounts and speech. urls: of the gateway and the agent."""
    values = {
        **settings,
        "listen": listen,
        "urls": ";".join(urls),
        "signup": not settings["admin"] if settings["signup"] is None else settings["signup"],
        "request_timeout": settings["request_timeout"] or waits["answer"],
    }
    texts = {key: str(value).lower() if isinstance(value, bool) else value for key, value in values.items()}
    return {name: text.format(**texts) for name, text in OPEN_WEBUI["environment"].items()}


def _hermes_config(
    settings: Mapping[str, Any], base_url: str, model: str, length: int | None, waits: Waits
) -> dict[str, Any]:
    """Return the agent's configuration file, with C(config) of the settings on top. base_url: of the gateway."""
    config: dict[str, Any] = {
        "model": {"default": model, "provider": "custom:dgxspark"},
        "providers": {
            "dgxspark": {
                "name": "dgxspark",
                "base_url": base_url,
                "key_env": GATEWAY_KEY,
                "default_model": model,
                "request_timeout_seconds": settings["request_timeout"] or waits["answer"],
                # The agent cancels a request after 900 s without a token by default (0.19.0, agent/chat_completion_helpers.py).
                "stale_timeout_seconds": waits["silent"],
                "discover_models": False,
            }
        },
        # The collection installs the packages of the agent; the agent must not download others.
        "security": {"allow_lazy_installs": False, "tirith_enabled": False},
    }
    if length:
        config["model"]["context_length"] = length
    if settings["toolsets"]:
        config["platform_toolsets"] = {"api_server": [str(name) for name in settings["toolsets"]]}
    return merged(config, settings["config"])


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two trees of settings; the second wins leaf by leaf."""
    result = dict(first)
    for key, value in second.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def url_of(host: str, gateway: Gateway) -> str:
    """Return the URL of a gateway for programs on C(host)."""
    address = gateway["listen"]
    if fleet.is_any(address):
        address = "127.0.0.1" if gateway["host"] == host else gateway["address"]
    return f"http://{fleet.bracketed(address)}:{gateway['port']}"


def _offers(gateway: Gateway | None, endpoint: Endpoint) -> bool:
    """Tell whether a gateway offers the model of a speech server."""
    return gateway is not None and endpoint["models"][0] in gateway["models"]


def _folders(client: str) -> list[dict[str, str]]:
    return [{"path": f"{ETC}/{client}", "mode": "0755"}, {"path": f"{SECRETS}/{client}", "mode": "0700"}]


def _secret(client: str, name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a key file of a client. parts: as C(client_keys) joins them."""
    return {"name": name, "path": f"{SECRETS}/{client}/{name}", "parts": parts}


def _file(path: str) -> dict[str, Any]:
    """Return the part of a key that is a file of the controller, or the text for servers without keys."""
    return {"controller": path} if path else {"text": NO_KEY}


def _generated(path: str) -> dict[str, Any]:
    """Return the part of a key that is a file of the controller; without a file the host generates the key once."""
    return {"controller": path} if path else {"generated": True}
