# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients of the fleet: what C(spark_clients) says, and how Open WebUI and the Hermes agent are wired to a gateway."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from .._cluster import endpoints as fleet
from .._cluster.endpoints import Endpoint
from .._common import component_versions, plain_data, plain_secrets, schema, validation
from .._common.findings import Finding
from .._common.schema import NUMBER, Key
from .._host import containers, host_paths
from . import speech, timeouts

KEYS: dict[str, Key] = {
    "open_webui": Key(dict, {}, "Open WebUI, a chat page in the browser"),
    "hermes": Key(dict, {}, "the Hermes agent with its API server"),
}
"""Keys of C(spark_clients)."""

ADMIN_KEYS: dict[str, Key] = {
    "email": Key(str, None, "e-mail address by which it signs in", required=True, form=lambda text: "@" in text and plain_data.is_line(text),
                 like="an e-mail address"),
    "name": Key(str, None, "name that is shown", form=plain_data.is_line, like="one line of text"),
    "password_file": Key(str, None, "file on the controller that holds the password and nothing else", required=True),
}  # fmt: skip
"""Keys of C(spark_clients.open_webui.admin)."""

OPEN_WEBUI_KEYS: dict[str, Key] = {
    "gateway": Key(str, "", "host of the inventory that has spark_gateway; the only one when left out"),
    "key_file": Key(str, "", "file on the controller with its key for the gateway; that of the gateway's client open-webui when left out"),
    "port": Key(int, 3000, "TCP port of the page", least=1, most=65535),
    "listen": Key(str, "", "address to listen on; 0.0.0.0 when left out, 127.0.0.1 with auth: false"),
    "auth": Key(bool, True, "users have to sign in; with false everybody is the administrator"),
    "admin": Key(dict, {}, "administrator account, created at the first start: email, name, password_file (on the controller)", of=ADMIN_KEYS),
    "signup": Key(bool, None, "users may sign up; when left out, only until there is an administrator"),
    "secret_key_file": Key(str, "", "file on the controller with the key that signs sessions; generated on the host when left out"),
    "persistent_config": Key(
        bool,
        False,
        "settings of the admin panel take precedence over these variables from the second start on; with false the inventory takes precedence at every start",
    ),
    "speech": Key(bool, True, "use the speech servers of the fleet for dictation and reading aloud"),
    "voice": Key(str, "alloy", "voice of the text-to-speech server"),
    "agents": Key(bool, True, "list the Hermes agent of the same host beside the models"),
    "tools": Key(bool, True, "chats offer Open WebUI's own tools to the model; false for engines without tool calling, which would answer 400"),
    "ollama": Key(bool, False, "also connect to an Ollama directly, as set in env"),
    "model_list_timeout": Key(
        int, 30, "timeout of the model list in seconds; Open WebUI's own default is 10",
        least=1, most=validation.LONGEST_START, unit="seconds",
    ),
    "request_timeout": Key(
        int, None, "seconds that a whole answer may take; what the gateway allows its models when left out, 1800 or more; Open WebUI's own default is 300",
        least=1, most=validation.LONGEST_START, unit="seconds",
    ),
    "image": Key(
        str, component_versions.OPEN_WEBUI.ref, "image; the same tag with -slim contains no local models"
    ),
    "command": Key(list, ["bash", "start.sh"], "program of the image, started by the wrapper that reads keys from files"),
    "data_dir": Key(str, "/var/lib/dgxspark/open-webui", "folder on the host with accounts and chats"),
    "env": Key(dict, {}, "further variables of Open WebUI; no secrets"),
    "memory_gib": Key(NUMBER, 4.0, "memory limit of the container, which the plan of a Spark reserves"),
    "start_timeout": Key(int, 300, "seconds that a start may take", least=60, most=validation.LONGEST_START, unit="seconds"),
    "docker_args": Key(list, [], "further options of docker run"),
}  # fmt: skip
"""Keys of C(spark_clients.open_webui)."""

HERMES_KEYS: dict[str, Key] = {
    "gateway": Key(str, "", "host of the inventory that has spark_gateway; the only one when left out"),
    "key_file": Key(str, "", "file on the controller with its key for the gateway; that of the gateway's client hermes when left out"),
    "model": Key(str, "", "alias of the gateway that the agent uses as its model; the only one when left out"),
    "context_length": Key(int, None, "context length in tokens; that of the alias when left out", least=1, most=10**9),
    "port": Key(int, 8642, "TCP port of its API server", least=1, most=65535),
    "listen": Key(str, "127.0.0.1", "address that the API server listens on; whoever has access and the key can run commands"),
    "api_key_file": Key(str, "", "file on the controller with the key of the API server, at least 16 characters; generated on the host when left out"),
    "toolsets": Key(list, [], "tool sets that requests to the API server may use, such as web and file; the agent's default when left out"),
    "version": Key(str, component_versions.HERMES.version, "version of the package hermes-agent"),
    "requirements_file": Key(str, "", "requirements file on the controller with all packages and versions; required for another version"),
    "python": Key(str, "/usr/bin/python3", "Python 3.11 to 3.13 on the host, with the module venv"),
    "install_dir": Key(str, "/opt/dgxspark/hermes", "folder on the host with the virtual environments, one per version"),
    "data_dir": Key(str, "/var/lib/dgxspark/hermes", "home folder of the agent: memory, skills, sessions, files"),
    "request_timeout": Key(
        int, None, "timeout of requests to the gateway in seconds; what the gateway allows the model when left out, 1800 or more",
        least=1, most=validation.LONGEST_START, unit="seconds",
    ),
    "config": Key(dict, {}, "further settings of the agent's config.yaml, which take precedence over changes in its home folder"),
    "memory_gib": Key(NUMBER, 4.0, "memory limit of the unit, which the plan of a Spark reserves"),
    "start_timeout": Key(int, 180, "seconds that a start may take", least=60, most=validation.LONGEST_START, unit="seconds"),
}  # fmt: skip
"""Keys of C(spark_clients.hermes)."""

ETC = "/etc/dgxspark"
SECRETS = "/etc/dgxspark/secrets"
WITH_SECRETS = "/usr/local/libexec/dgxspark/with-secrets"
CONTAINER_SECRETS = "/run/dgxspark/secrets"
CONTAINER_DATA = "/app/backend/data"
STOP_SECONDS = 20
HERMES_USER = "spark-hermes"
HERMES_LOCKED = component_versions.HERMES.version
"""The version whose packages the role has a list of."""
VERSION = re.compile(r"[0-9][\w.+!-]{0,40}", re.ASCII)
"""It names a folder of the host and a file of the collection."""
SHARED = ("/var/lib/dgxspark", "/var/cache/dgxspark", "/opt/dgxspark")
HERMES_MODEL = "hermes-agent"
"""What the agent's API server calls itself."""
HERMES_CONTEXT = 64000
"""The agent refuses models with less (MINIMUM_CONTEXT_LENGTH of its agent/model_metadata.py)."""
GATEWAY_KEY = "DGXSPARK_GATEWAY_KEY"
NO_KEY = "none"
"""What a client sends where no key is asked for: OpenAI's libraries want some text."""
OWNED_ENV = {
    "OPENAI_API_BASE_URL": "gateway",
    "OPENAI_API_BASE_URLS": "gateway",
    "WEBUI_AUTH": "auth",
    "ENABLE_SIGNUP": "signup",
    "ENABLE_PERSISTENT_CONFIG": "persistent_config",
    "ENABLE_OLLAMA_API": "ollama",
    "AIOHTTP_CLIENT_TIMEOUT": "request_timeout",
    "AIOHTTP_CLIENT_TIMEOUT_MODEL_LIST": "model_list_timeout",
    "HOST": "listen",
    "PORT": "port",
    "WEBUI_ADMIN_EMAIL": "admin",
    "WEBUI_ADMIN_NAME": "admin",
}
"""Variables of Open WebUI that a key of its own sets."""


class Waits(TypedDict):
    """How long a gateway waits for a model, seconds: for an answer without streaming, and for the next part of a stream."""

    whole: int
    silent: int


class Gateway(TypedDict):
    """What a client has to know of a gateway.

    C(models): the names that it offers, with the longest context, None where it is not known. C(waits): how long it waits for each.
    C(clients): its keys for less than everything: name to C({key_file, models}).
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
    """Read C(spark_clients) of one host; return its clients with every default filled in, and all that is wrong.

    A client that is not wanted is an empty mapping. C({}) and null after a client's name mean: with its defaults.
    """
    nothing: dict[str, Any] = {"open_webui": {}, "hermes": {}}
    if not isinstance(value, Mapping):
        return nothing, [
            f"host {host}, spark_clients: must be a mapping with open_webui or hermes, not {plain_data.kind(value)}."
        ]
    top = validation.Problems(f"host {host}, spark_clients")
    top.unknown([str(key) for key in value], tuple(KEYS))
    messages = top.messages
    result = dict(nothing)
    for name, keys, check in (
        ("open_webui", OPEN_WEBUI_KEYS, _check_open_webui),
        ("hermes", HERMES_KEYS, _check_hermes),
    ):
        if name not in value or value[name] is False:
            continue
        problems = validation.Problems(f"host {host}, spark_clients.{name}")
        body = {} if value[name] is True else problems.mapping(value[name], name)
        settings = schema.filled(problems, body, keys)
        check(problems, settings)
        result[name] = settings
        messages += problems.messages
    return result, messages


def _check_common(problems: validation.Problems, settings: Mapping[str, Any]) -> None:
    speech.check_listen(problems, settings["listen"])
    speech.check_size(problems, "memory_gib", settings["memory_gib"])
    for key in ("data_dir", "install_dir", "python"):
        path = settings.get(key)
        if path is None:
            continue
        if not path.startswith("/") or not speech.VOLUME.fullmatch(f"{path}:/x") or path != posixpath.normpath(path):
            problems.add(
                f"'{key}' is '{path}'; it must be an absolute path without blanks, '..' and a slash at its end."
            )
        # Its owner becomes the client's account, and nobody else may look into it.
        elif key == "data_dir" and path in SHARED:
            problems.add(f"'{key}' is '{path}', where others of the collection have their folders; name one below it.")
        elif key != "python" and host_paths.problem(path):
            problems.add(
                f"'{key}' is '{path}', which is no folder of its own: {host_paths.problem(path).partition('; ')[0]}. Name one "
                f"such as {(OPEN_WEBUI_KEYS | HERMES_KEYS)[key].default}."
            )


def _check_open_webui(problems: validation.Problems, settings: dict[str, Any]) -> None:
    _check_common(problems, settings)
    speech.check_image(problems, settings["image"])
    for key in ("command", "docker_args"):
        speech.check_texts(problems, key, settings[key])
        speech.check_secrets(
            problems, key, settings[key], "Open WebUI's own keys are files: key_file, secret_key_file, admin."
        )
    if not settings["command"]:
        problems.add(
            "'command' is empty; the image's own program has to be named, because keys are read before it starts."
        )
    if plain_data.CONTROL.search(settings["voice"]) or not settings["voice"].strip():
        problems.add(f"'voice' is {settings['voice']!r}; it must be one line of text.")
    settings["env"] = speech.environment(problems, settings["env"])
    for name in settings["env"]:
        if name in OWNED_ENV:
            problems.add(f"'env' sets {name}, which '{OWNED_ENV[name]}' is there for. Use that.")
    settings["admin"] = {key: item for key, item in settings["admin"].items() if item is not None}
    if settings["admin"] and not settings["auth"]:
        problems.add("'admin' is set with auth: false, which has no accounts. Remove one of them.")


def _check_hermes(problems: validation.Problems, settings: dict[str, Any]) -> None:
    _check_common(problems, settings)
    speech.check_texts(problems, "toolsets", settings["toolsets"])
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
            problems.add(f"'config' has '{key}', which gateway, model and key_file are there for. Take it out.")
    for message in plain_data.unfit(settings["config"], "'config'"):
        problems.add(message)
    secrets = [place for place, _secret in plain_secrets.in_settings(settings["config"])]
    if secrets:
        problems.add(
            f"'config' has {', '.join(secrets)}, which look like secrets: the file can be read by the "
            "agent itself. The agent takes keys from its environment only; put them into its home by hand (.env)."
        )


# --- planning -----------------------------------------------------------------------------------------------------


def sidecars(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the memory that the clients hold, for the plan of a Spark to keep before engines are sized."""
    return [
        {"name": name.replace("_", "-"), "memory_gib": float(settings[name]["memory_gib"])}
        for name in KEYS
        if settings[name]
    ]


def plan(
    host: str,
    settings: Mapping[str, Any],
    endpoints: Sequence[Endpoint],
    gateways: Mapping[str, Gateway],
) -> tuple[dict[str, Any], list[Finding]]:
    """Plan the clients of one host.

    :param host: name of the host
    :param settings: of C(read)
    :param endpoints: those of the whole fleet
    :param gateways: host to its gateway, of all hosts
    :returns: the variables of the role clients without their prefix, and findings
    """
    findings: list[Finding] = []
    hermes = _plan_hermes(host, dict(settings["hermes"]), gateways, findings) if settings["hermes"] else {}
    page = (
        _plan_open_webui(host, dict(settings["open_webui"]), hermes, endpoints, gateways, findings)
        if settings["open_webui"]
        else {}
    )
    findings += _ports(host, settings, endpoints, gateways)
    return {"open_webui": page, "hermes": hermes}, findings


def _plan_open_webui(
    host: str,
    settings: dict[str, Any],
    hermes: Mapping[str, Any],
    endpoints: Sequence[Endpoint],
    gateways: Mapping[str, Gateway],
    findings: list[Finding],
) -> dict[str, Any]:
    gateway = _gateway(host, "open_webui", settings, gateways, findings)
    listen = settings["listen"] or ("0.0.0.0" if settings["auth"] else "127.0.0.1")
    admin = settings["admin"]
    urls = [f"{url_of(host, gateway)}/v1"] if gateway else []
    keys = [_file(settings["key_file"])] if gateway else []
    agent = bool(hermes) and settings["agents"]
    if agent:
        urls.append(f"{hermes['url']}/v1")
        keys.append({"host": f"{SECRETS}/hermes/API_SERVER_KEY"})
    secrets = [
        _secret("open-webui", "WEBUI_SECRET_KEY", settings["secret_key_file"]),
        {"name": "OPENAI_API_KEYS", "path": f"{SECRETS}/open-webui/OPENAI_API_KEYS", "parts": keys},
    ]
    env = _page_env(settings, listen, urls, waits_of(gateway))
    if admin:
        env |= {"WEBUI_ADMIN_EMAIL": admin["email"], "WEBUI_ADMIN_NAME": admin.get("name", "Admin")}
        secrets.append(_secret("open-webui", "WEBUI_ADMIN_PASSWORD", admin.get("password_file", "")))
    if settings["speech"]:
        wired, keyed, found = _speech(host, settings, endpoints, gateway)
        env |= wired
        secrets += keyed
        findings += found
    if not settings["tools"]:
        env["DEFAULT_MODEL_PARAMS"] = '{"function_calling": "legacy"}'
    env |= settings["env"]
    findings += _page_findings(host, settings, listen)
    findings += containers.findings("open-webui", settings["docker_args"], read_only=[CONTAINER_SECRETS])
    planned = {
        **_page_service(settings, listen),
        "env": env,
        "secrets": secrets,
        "gateway_url": url_of(host, gateway) if gateway else "",
        "models": sorted(gateway["models"] if gateway else []) + ([HERMES_MODEL] if agent else []),
        "after": [*_local_units(host, gateway), *([hermes["unit"]] if agent else [])],
    }
    planned["argv"] = _argv(settings, planned)
    return planned


def waits_of(gateway: Gateway | None, names: Iterable[str] | None = None) -> Waits:
    """Return how long a gateway waits for the slowest of some models.

    :param gateway: as a client's key sees it, None where there is none
    :param names: of models; all that the client may use when left out
    :returns: seconds, at least what a gateway without long contexts waits
    """
    found = (
        [gateway["waits"][name] for name in (names or gateway["models"]) if name in gateway["waits"]] if gateway else []
    )
    return {
        "whole": max([timeouts.WHOLE_SECONDS, *(each["whole"] for each in found)]),
        "silent": max([timeouts.SILENT_SECONDS, *(each["silent"] for each in found)]),
    }


def _page_env(settings: Mapping[str, Any], listen: str, urls: Sequence[str], waits: Waits) -> dict[str, str]:
    """Return the environment of Open WebUI that does not depend on who logs in; urls: of the servers that it asks."""
    signup = (not settings["admin"]) if settings["signup"] is None else settings["signup"]
    return {
        "HOST": listen,
        "PORT": str(settings["port"]),
        "OPENAI_API_BASE_URLS": ";".join(urls),
        "WEBUI_AUTH": _flag(settings["auth"]),
        "ENABLE_SIGNUP": _flag(signup),
        "ENABLE_PERSISTENT_CONFIG": _flag(settings["persistent_config"]),
        "ENABLE_OLLAMA_API": _flag(settings["ollama"]),
        "AIOHTTP_CLIENT_TIMEOUT": str(settings["request_timeout"] or waits["whole"]),
        "AIOHTTP_CLIENT_TIMEOUT_MODEL_LIST": str(settings["model_list_timeout"]),
        # Nothing of the host is told to anybody, and the version is the inventory's to choose.
        "ENABLE_VERSION_UPDATE_CHECK": "false",
        "ENABLE_COMMUNITY_SHARING": "false",
        "ANONYMIZED_TELEMETRY": "false",
        "DO_NOT_TRACK": "true",
        "SCARF_NO_ANALYTICS": "true",
    }


def _page_service(settings: Mapping[str, Any], listen: str) -> dict[str, Any]:
    """Return what the unit, the folders and the probe of Open WebUI take from its settings."""
    return {
        "name": "open-webui",
        "unit": "spark-open-webui.service",
        "container": "spark-open-webui",
        "image": settings["image"],
        "port": settings["port"],
        "listen": listen,
        "url": f"http://{fleet.bracketed(speech.probe_address(listen))}:{settings['port']}",
        "env_file": f"{ETC}/open-webui/open-webui.env",
        "folders": [
            {"path": f"{ETC}/open-webui", "mode": "0755"},
            {"path": f"{SECRETS}/open-webui", "mode": "0700"},
            {"path": settings["data_dir"], "mode": "0700"},
        ],
        "data_dir": settings["data_dir"],
        "auth": settings["auth"],
        "admin_email": settings["admin"].get("email"),
        "memory_gib": float(settings["memory_gib"]),
        "start_timeout": settings["start_timeout"],
        "stop_seconds": STOP_SECONDS,
    }


def _argv(settings: Mapping[str, Any], planned: Mapping[str, Any]) -> list[str]:
    """Return the whole C(docker run), one argument per list item.

    With the host's network: a gateway on 127.0.0.1 is what it says, and ufw sees the port, which Docker would open behind it.
    """
    return [
        *["/usr/bin/docker", "run", "--rm", "--name", planned["container"], "--pull", "never"],
        *["--label", "dgxspark.managed=true", "--label", f"dgxspark.service={planned['name']}"],
        *containers.restricted(containers.SERVER_PIDS, containers.for_port(settings["port"])),
        *["--network", "host", "--init"],
        *["--memory", f"{int(planned['memory_gib'] * 1024)}m", "--stop-timeout", str(STOP_SECONDS)],
        *["--log-driver", "local", "--env-file", planned["env_file"]],
        *["--volume", f"{planned['data_dir']}:{CONTAINER_DATA}"],
        *["--mount", f"type=bind,src={SECRETS}/open-webui,dst={CONTAINER_SECRETS},readonly"],
        *["--mount", f"type=bind,src={WITH_SECRETS},dst={WITH_SECRETS},readonly"],
        *[str(arg) for arg in settings["docker_args"]],
        *["--entrypoint", WITH_SECRETS, planned["image"], *[str(arg) for arg in settings["command"]]],
    ]


def _plan_hermes(
    host: str, settings: dict[str, Any], gateways: Mapping[str, Gateway], findings: list[Finding]
) -> dict[str, Any]:
    gateway = _gateway(host, "hermes", settings, gateways, findings)
    models = gateway["models"] if gateway else {}
    model = settings["model"] or (next(iter(models)) if len(models) == 1 else "")
    length = settings["context_length"] or models.get(model)
    findings += _hermes_findings(host, settings, gateway, model, length)
    return {
        "name": "hermes",
        "unit": "spark-hermes.service",
        "user": HERMES_USER,
        "version": settings["version"],
        "requirements_file": settings["requirements_file"],
        "python": settings["python"],
        "install_dir": settings["install_dir"],
        "data_dir": settings["data_dir"],
        "port": settings["port"],
        "listen": settings["listen"],
        "url": f"http://{fleet.bracketed(speech.probe_address(settings['listen']))}:{settings['port']}",
        "model": model,
        "config": _hermes_config(
            settings, f"{url_of(host, gateway)}/v1" if gateway else "", model, length, waits_of(gateway, [model])
        ),
        "env": {
            "API_SERVER_ENABLED": "true",
            "API_SERVER_HOST": settings["listen"],
            "API_SERVER_PORT": str(settings["port"]),
            "API_SERVER_MODEL_NAME": HERMES_MODEL,
        },
        "secrets": [
            {"name": GATEWAY_KEY, "path": f"{SECRETS}/hermes/{GATEWAY_KEY}", "parts": [_file(settings["key_file"])]},
            _secret("hermes", "API_SERVER_KEY", settings["api_key_file"]),
        ],
        "folders": [{"path": f"{ETC}/hermes", "mode": "0755"}, {"path": f"{SECRETS}/hermes", "mode": "0700"}],
        "gateway_url": url_of(host, gateway) if gateway else "",
        "memory_gib": float(settings["memory_gib"]),
        "start_timeout": settings["start_timeout"],
        "stop_seconds": STOP_SECONDS,
        "after": _local_units(host, gateway),
    }


def _hermes_findings(
    host: str, settings: Mapping[str, Any], gateway: Gateway | None, model: str, length: int | None
) -> list[Finding]:
    """Judge the agent's model (an alias of the gateway), its context length in tokens, and where its API server listens."""
    findings = []
    models = gateway["models"] if gateway else {}
    if gateway and model not in models:
        known = ", ".join(sorted(models)) or "none"
        findings.append(
            Finding(
                "clients.model",
                "error",
                f"spark_clients.hermes: model '{model}' is no alias of the gateway on {gateway['host']}."
                if model
                else f"spark_clients.hermes: no model is named, and the gateway on {gateway['host']} has {len(models)}.",
                f"Set model to one of its aliases: {known}.",
                service="hermes",
            )
        )
    if length is not None and length < HERMES_CONTEXT:
        findings.append(
            Finding(
                "clients.context",
                "error",
                f"spark_clients.hermes: '{model}' has a context of {length} tokens; the agent refuses models with less than "
                f"{HERMES_CONTEXT}.",
                f"Raise max-model-len of the engine to {HERMES_CONTEXT} or more, or name another alias.",
                service="hermes",
                source="hermes-agent 0.19.0, agent/model_metadata.py",
            )
        )
    if not fleet.is_loopback(settings["listen"]):
        findings.append(
            Finding(
                "clients.agent_exposed",
                "warning",
                f"spark_clients.hermes: its API server answers on {settings['listen']}. Whoever has its key runs commands on "
                f"{host} as {HERMES_USER}, over plain HTTP.",
                "Let it listen on 127.0.0.1; Open WebUI of the same host reaches it there. Else let a firewall choose who comes.",
                service="hermes",
            )
        )
    return findings


def _hermes_config(
    settings: Mapping[str, Any], base_url: str, model: str, length: int | None, waits: Waits
) -> dict[str, Any]:
    """Return the agent's configuration file: how it asks the gateway, with what C(config) of the settings says on top."""
    config: dict[str, Any] = {
        "model": {"default": model, "provider": "custom:dgxspark"},
        "providers": {
            "dgxspark": {
                "name": "dgxspark",
                "base_url": base_url,
                "key_env": GATEWAY_KEY,
                "default_model": model,
                "request_timeout_seconds": settings["request_timeout"] or waits["whole"],
                # Else the agent gives a request up after 900 s without a token (0.19.0, agent/chat_completion_helpers.py).
                "stale_timeout_seconds": waits["silent"],
                "discover_models": False,
            }
        },
        # What the agent's environment holds is this collection's to choose, not to be fetched by the agent as it goes.
        "security": {"allow_lazy_installs": False, "tirith_enabled": False},
    }
    if length:
        config["model"]["context_length"] = length
    if settings["toolsets"]:
        config["platform_toolsets"] = {"api_server": [str(name) for name in settings["toolsets"]]}
    return merged(config, settings["config"])


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two trees of settings, the second wins leaf by leaf."""
    result = dict(first)
    for key, item in second.items():
        below = result.get(key)
        result[key] = merged(below, item) if isinstance(below, Mapping) and isinstance(item, Mapping) else item
    return result


def url_of(host: str, gateway: Gateway) -> str:
    """Return the URL of a gateway as a program on C(host) says it."""
    address = gateway["listen"]
    if fleet.is_any(address):
        address = "127.0.0.1" if gateway["host"] == host else gateway["address"]
    return f"http://{fleet.bracketed(address)}:{gateway['port']}"


def _local_units(host: str, gateway: Gateway | None) -> list[str]:
    return ["spark-gateway.service"] if gateway and gateway["host"] == host else []


def _file(path: str) -> dict[str, str]:
    """Return one part of a secret: a file on the controller, or what is sent where no key is asked for."""
    return {"controller": path} if path else {"text": NO_KEY}


def _secret(client: str, name: str, path: str) -> dict[str, Any]:
    """Return a secret of one part; without a file on the controller the role makes it on the host, once."""
    return {
        "name": name,
        "path": f"{SECRETS}/{client}/{name}",
        "parts": [{"controller": path}] if path else [{"generated": True}],
    }


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _gateway(
    host: str,
    client: str,
    settings: dict[str, Any],
    gateways: Mapping[str, Gateway],
    findings: list[Finding],
) -> Gateway | None:
    """Return the gateway that a client is meant for, as its key sees it, and add what keeps the client from it.

    Puts the key's file into C(settings) where the gateway knows this client by name.
    """
    where = f"spark_clients.{client}"
    service = client.replace("_", "-")
    wanted = settings["gateway"]
    if not wanted and len(gateways) == 1:
        wanted = next(iter(gateways))
    if wanted not in gateways:
        known = ", ".join(sorted(gateways))
        if not gateways:
            message = f"{where}: no host of the inventory has a gateway, and this client speaks to a gateway alone."
            fix = "Set spark_gateway on a host (docs/gateway.md), or take the client out."
        elif wanted:
            message = f"{where}: gateway '{wanted}' is no host with spark_gateway{validation.nearest(wanted, gateways)}"
            fix = f"Hosts with a gateway: {known}."
        else:
            message = f"{where}: {len(gateways)} hosts have a gateway, and none is named."
            fix = f"Set gateway to one of {known}."
        findings.append(Finding("clients.gateway", "error", message, fix, service=service))
        return None
    gateway = gateways[wanted]
    known_key = gateway["clients"].get(service)
    if known_key and settings["key_file"] in ("", known_key["key_file"]):
        settings["key_file"] = known_key["key_file"]
        seen = {name: length for name, length in gateway["models"].items() if name in known_key["models"]}
        gateway = {**gateway, "models": seen}
    if gateway["host"] != host and fleet.is_loopback(gateway["listen"]):
        findings.append(
            Finding(
                "clients.gateway_loopback",
                "error",
                f"{where}: the gateway listens on {gateway['listen']} of {wanted}, where {host} cannot reach it.",
                f"Set spark_gateway.listen of {wanted} to its address ({gateway['address']}) with a key, or run the client on {wanted}.",
                service=service,
            )
        )
    if gateway["keyed"] and not settings["key_file"]:
        findings.append(
            Finding(
                "clients.gateway_key",
                "error",
                f"{where}: the gateway on {wanted} asks for a key and the client has none: it would show no model, and every "
                "request would end with 401.",
                f"Add a client named {service} to spark_gateway.clients of {wanted}, with a key_file of its own; or set key_file here.",
                service=service,
            )
        )
    return gateway


def _speech(
    host: str, settings: Mapping[str, Any], endpoints: Sequence[Endpoint], gateway: Gateway | None
) -> tuple[dict[str, str], list[dict[str, Any]], list[Finding]]:
    """Wire dictation and reading aloud: by the gateway where it has the model, else to the server itself."""
    env: dict[str, str] = {}
    secrets: list[dict[str, Any]] = []
    findings: list[Finding] = []
    for kind, prefix in (("asr", "AUDIO_STT"), ("tts", "AUDIO_TTS")):
        found = [each for each in endpoints if each["kind"] == kind]
        # One of the own host before those of others; the order of the inventory otherwise.
        found.sort(key=lambda each: each["host"] != host)
        usable = [each for each in found if _carried(each, gateway) or fleet.reachable(each, host)]
        if found and not usable:
            names = ", ".join(each["key"] for each in found)
            findings.append(
                Finding(
                    "clients.speech_loopback",
                    "warning",
                    f"spark_clients.open_webui: {names} listens on loopback of another host, so {host} cannot reach it; "
                    f"{'dictation' if kind == 'asr' else 'reading aloud'} is left out.",
                    "Give it to the gateway, set its listen to an address of its host, or set speech: false.",
                    service="open-webui",
                )
            )
        if not usable:
            continue
        chosen = usable[0]
        model = chosen["models"][0]
        carried = gateway is not None and _carried(chosen, gateway)
        env[f"{prefix}_ENGINE"] = "openai"
        env[f"{prefix}_MODEL"] = model
        if carried and gateway:
            base, key = url_of(host, gateway), settings["key_file"]
        else:
            local = chosen["host"] == host and fleet.is_any(chosen["listen"])
            base = f"http://127.0.0.1:{chosen['port']}" if local else chosen["url"]
            key = chosen["api_key_file"] or ""
        env[f"{prefix}_OPENAI_API_BASE_URL"] = f"{base}/v1"
        if kind == "tts":
            env["AUDIO_TTS_VOICE"] = settings["voice"]
        name = f"{prefix}_OPENAI_API_KEY"
        secrets.append({"name": name, "path": f"{SECRETS}/open-webui/{name}", "parts": [_file(key)]})
    return env, secrets, findings


def _carried(endpoint: Endpoint, gateway: Gateway | None) -> bool:
    return gateway is not None and endpoint["models"][0] in gateway["models"]


def _page_findings(host: str, settings: Mapping[str, Any], listen: str) -> list[Finding]:
    findings = []
    if not fleet.is_loopback(listen):
        if not settings["auth"]:
            findings.append(
                Finding(
                    "clients.open_door",
                    "error",
                    f"spark_clients.open_webui: auth is false and the page answers on {listen}: everybody who reaches {host} "
                    "is its administrator, and reads all chats.",
                    "Take auth out, or set listen to 127.0.0.1.",
                    service="open-webui",
                )
            )
        elif not settings["admin"]:
            findings.append(
                Finding(
                    "clients.first_account",
                    "error",
                    f"spark_clients.open_webui: the page answers on {listen} and has no administrator: whoever opens it first becomes "
                    "that, and its settings hold the gateway's key.",
                    "Set admin (email, password_file), and the account is made before the page answers; or set listen to 127.0.0.1 "
                    "and come by SSH. Where the page has an administrator by now: spark_ignore_rules: [clients.first_account].",
                    service="open-webui",
                )
            )
    if settings["persistent_config"]:
        findings.append(
            Finding(
                "clients.persistent_config",
                "info",
                "spark_clients.open_webui: with persistent_config Open WebUI takes its connections from its database after "
                "the first start; a new gateway, key or speech server of the inventory has no effect then.",
                "Take persistent_config out, or change connections in the admin panel as well.",
                service="open-webui",
            )
        )
    return findings


def _ports(
    host: str,
    settings: Mapping[str, Any],
    endpoints: Sequence[Endpoint],
    gateways: Mapping[str, Gateway],
) -> list[Finding]:
    """Two servers of one host cannot have one port."""
    taken = {each["port"]: each["unit"] for each in endpoints if each["host"] == host}
    if host in gateways:
        taken[gateways[host]["port"]] = "spark-gateway.service"
    findings = []
    for client in KEYS:
        if not settings[client]:
            continue
        port = settings[client]["port"]
        if port in taken:
            findings.append(
                Finding(
                    "clients.port",
                    "error",
                    f"spark_clients.{client}: port {port} of {host} is that of {taken[port]} already.",
                    f"Set port of {client} to another one.",
                    service=client.replace("_", "-"),
                )
            )
        taken[port] = f"spark-{client.replace('_', '-')}.service"
    return findings
