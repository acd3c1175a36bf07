# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Speech servers: C(spark_speech) with the defaults of each kind, and their containers, units and endpoints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .._cluster import endpoints as fleet
from .._cluster.endpoints import Endpoint
from .._common import on_demand_keys, plain_data, schema, validation
from .._common.findings import Finding
from .descriptions import DESCRIPTIONS, Lazy, component, finding, options
from .servers import (
    ServerHost,
    check_container,
    container_findings,
    docker_run,
    endpoint_findings,
    environment,
    limits,
    local_url,
    published,
)

KEYS = options("spark_speech")
KINDS: Mapping[str, dict[str, Any]] = Lazy(
    lambda: {
        name: {**kind, "image": component(kind["component"])} for name, kind in DESCRIPTIONS["speech"]["kinds"].items()
    }
)
"""The server of each kind, with its port, memory and environment."""
ETC = "/etc/dgxspark/speech"
STATE = "/var/lib/dgxspark/speech"
SECRETS = "/etc/dgxspark/secrets/speech"
TURN_SECONDS, GATE_SECONDS = 3000, 120
"""Longest time that a start on demand waits while an engine starts, and for free memory."""


# --- reading ------------------------------------------------------------------------------------------------------


def read(host: str, value: Any, names: Collection[str] = ()) -> tuple[list[dict[str, Any]], list[str]]:
    """Read C(spark_speech) of one host.

    :param names: of the host's services and sidecars, which name units and shares of memory as well
    :returns: its servers with every default, and messages about wrong values
    """
    if not isinstance(value, list):
        return [], [
            f"host {host}, spark_speech: must be a list of servers, not {plain_data.kind(value)}. Write '- name: ...'."
        ]
    servers: list[dict[str, Any]] = []
    messages: list[str] = []
    for index, entry in enumerate(value):
        problems = validation.Problems(f"host {host}, spark_speech[{index}]")
        server = _read_server(problems, entry)
        if server.get("name") in validation.RESERVED_NAMES:
            problems.add(f"'name' is '{server['name']}', which is a unit of this collection already. Take another one.")
        elif server.get("name") in names:
            problems.add(
                f"the name '{server['name']}' is already the name of a service or sidecar of this host. Choose another."
            )
        for key in ("name", "port"):
            item = server.get(key)
            same = [number for number, other in enumerate(servers) if other.get(key) == item]
            if item is not None and same:
                problems.add(f"{key} {item!r} is used twice on this host, first by spark_speech[{same[0]}].")
        messages += problems.messages
        servers.append(server)
    return servers, messages


def _read_server(problems: validation.Problems, entry: Any) -> dict[str, Any]:
    """Return one server with every default; only its name if its kind is wrong."""
    if not isinstance(entry, Mapping):
        problems.add(f"must be a mapping with at least name and kind, not {plain_data.kind(entry)}.")
        return {}
    values = {str(key).replace("-", "_"): item for key, item in entry.items() if item is not None}
    if isinstance(values.get("name"), str) and validation.SERVICE_NAME.fullmatch(values["name"]):
        problems.where += f" ({values['name']})"
    values = schema.read(problems, values, KEYS)
    name, kind = values.get("name"), values.get("kind")
    if kind is None or kind not in KINDS:
        problems.add(f"'kind' is {kind!r}; it must be asr (speech to text) or tts (text to speech).")
        return {"name": name}
    usual = KINDS[kind]
    is_replaced = values.get("image", usual["image"]) != usual["image"]
    if is_replaced:
        usual = {"port": usual["port"], "model": usual["model"], **DESCRIPTIONS["speech"]["replaced_image"]}
    server: dict[str, Any] = {
        option: values.get(option, usual.get(option) if key.default is None else key.default)
        for option, key in KEYS.items()
    }
    server["container_port"] = server["container_port"] or server["port"]
    server["on_demand"] = _read_on_demand(problems, server) if "on_demand" in values else None
    server["replaced"] = is_replaced
    server["state"] = usual["state"]
    device = {"DEVICE": "cuda" if server["device"] == "gpu" else "cpu"} if "DEVICE" in usual["env"] else {}
    server["env"] = {**usual["env"], **device, **environment(problems, server["env"])}
    _check_server(problems, server)
    _check_key(problems, server, "key_env" in values)
    return server


def _read_on_demand(problems: validation.Problems, server: Mapping[str, Any]) -> dict[str, Any]:
    """Return C(on_demand) of a server with every default."""
    on_demand = on_demand_keys.read(problems, server)
    if on_demand["while_loading"] == "comments":
        problems.add(
            "'on_demand.while_loading' is comments, which are for answers that are a stream of events, and a speech server sends none. Use wait, "
            "which delays requests, or reject."
        )
    return on_demand


def _check_server(problems: validation.Problems, server: Mapping[str, Any]) -> None:
    name = server["name"]
    if name is None or not validation.SERVICE_NAME.fullmatch(name):
        problems.add(
            f"'name' is {name!r}; it must be lower-case letters, digits and inner dashes, at most 40 characters, because it "
            "names the unit and the container."
        )
    if server["memory_gib"] is None:
        problems.add(
            f"'memory_gib' is missing: what {server['image']} uses is not known, and the plan reserves that much for it. Measure it (docker stats) "
            "and set it, in GiB."
        )
    if server["device"] == "gpu" and not server["replaced"]:
        problems.add(
            f"'device' is gpu, but {server['image']} has no CUDA build for arm64. Name an image that has one, with its "
            "memory_gib, or leave 'device' out."
        )
    check_container(problems, server, "Name a file with it as api_key_file.")


def _check_key(problems: validation.Problems, server: Mapping[str, Any], names_variable: bool) -> None:
    """Report a key that the server would not get. names_variable: whether the inventory sets C(key_env)."""
    if server["key_env"] and not validation.ENV_NAME.fullmatch(server["key_env"]):
        problems.add(f"'key_env' is {server['key_env']!r}, which is no environment variable.")
    if server["api_key_file"] and not server["key_env"]:
        problems.add(
            f"'api_key_file' is set, but {server['image']} is not known to support a key. If it does, set the variable for the key (key_env) and "
            "its program (command); else remove the key and let the gateway require one."
        )
    elif server["api_key_file"] and not server["command"]:
        problems.add(
            "'api_key_file' needs 'command', the program of the image (docker image inspect shows Entrypoint and Cmd): it is "
            "started behind a wrapper that reads the key from a file, so that docker inspect does not show it."
        )
    if names_variable and server["key_env"] and not server["api_key_file"]:
        problems.add("'key_env' is set without 'api_key_file'. Name the file with the key, or take it out.")


# --- planning -----------------------------------------------------------------------------------------------------


def sidecar(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return the memory that a server takes, and its settings for starts on demand."""
    return {
        "name": server["name"],
        "memory_gib": float(server["memory_gib"]),
        "port": server["port"],
        "on_demand": server["on_demand"],
        "exclusive": (server["on_demand"] or {}).get("exclusive", ""),
    }


def plan(
    host: ServerHost, settings: Sequence[Mapping[str, Any]], endpoints: Sequence[Endpoint]
) -> tuple[dict[str, Any], list[Endpoint], list[Finding]]:
    """Plan the speech servers of one host.

    :returns: the variables of the role speech without their prefix, the servers' endpoints, and findings
    """
    engines = [endpoint for endpoint in endpoints if endpoint["kind"] == "vllm" and host.name in endpoint["hosts"]]
    services, servers, findings = [], [], []
    for server in settings:
        listen = host.choose_listen(server["name"], server["kind"], server["listen"], bool(server["api_key_file"]))
        service = _plan_server(server, listen, engines, host)
        on_demand = service.get("on_demand")
        endpoint = fleet.make(
            host.name,
            host.address,
            server["name"],
            server["kind"],
            server["port"],
            listen,
            models=[server["model"]],
            api_key_file=server["api_key_file"] or None,
            health=server["health"],
            memory_gib=float(server["memory_gib"]),
            on_demand=on_demand is not None,
            hold_seconds=on_demand["hold_seconds"] if on_demand and on_demand["while_loading"] != "reject" else 0,
        )
        findings += endpoint_findings("speech", endpoint, endpoints, host, bool(server["key_env"]))
        findings += _findings(server, engines, host.images.get(server["image"]) or {})
        services.append(service)
        servers.append(endpoint)
    return {"services": services}, servers, findings


def unloading(settings: Sequence[Mapping[str, Any]], services: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the requests that make servers unload their models, for the memory guard: C({name, container, method, url, key_file})."""
    requests = []
    for server, service in zip(settings, services):
        method, _blank, path = server["unload"].partition(" ")
        if method:
            key_file = service["secrets"][0]["path"] if service["secrets"] else None
            request = {"method": method, "url": service["settings"]["url"] + path, "key_file": key_file}
            requests.append({"name": service["name"], "container": service["container"], **request})
    return requests


def _plan_server(
    server: Mapping[str, Any], listen: str, engines: Sequence[Endpoint], host: ServerHost
) -> dict[str, Any]:
    """Return one server in the variables of the role."""
    name, timeout, on_demand = server["name"], server["start_timeout"], server["on_demand"]
    # Behind a socket the server listens on loopback only, on another port.
    address, port = ("127.0.0.1", on_demand["engine_port"]) if on_demand else (listen, server["port"])
    secrets = []
    if server["api_key_file"]:
        path = f"{SECRETS}/{name}/{server['key_env']}"
        secrets.append({"name": server["key_env"], "source": server["api_key_file"], "path": path})
    folders = [{"path": f"{STATE}/{name}", "mode": "0755"}] if server["state"] else []
    folders += [{"path": f"{SECRETS}/{name}", "mode": "0700"}] if secrets else []
    mounts = ["--volume", f"{STATE}/{name}:{server['state']}"] if server["state"] else []
    service: dict[str, Any] = {
        "name": name,
        "kind": server["kind"],
        "unit": f"spark-{name}.service",
        "container": f"spark-{name}",
        "image": server["image"],
        "device": server["device"],
        "port": server["port"],
        "listen": listen,
        "url": local_url(listen, server["port"]),
        "memory_gib": float(server["memory_gib"]),
        "env": dict(server["env"]),
        "env_file": f"{ETC}/{name}.env",
        "secrets": secrets,
        "folders": folders,
        # Engines start after it: an engine would count the memory that a loading server takes as its own.
        # A server on demand takes the start lock instead, as engines do.
        "before": [] if on_demand else sorted({engine["unit"] for engine in engines}),
        "start_timeout": timeout,
        "limits": limits(timeout),
        "settings": {
            **{key: server[key] for key in ("name", "kind", "health", "model", "voice")},
            "unit": f"spark-{name}.service",
            "container": f"spark-{name}",
            "url": local_url(address, port),
            "api_key_file": secrets[0]["path"] if secrets else None,
            # It ends before systemd's timeout, so that the journal has the reason.
            "deadline_seconds": timeout - 20,
        },
    }
    network = published(address, port, server["container_port"])
    options = [*_device(server, host), *mounts]
    key_folder = f"{SECRETS}/{name}" if secrets else ""
    service["argv"] = docker_run(name, server, network, service["env_file"], options, key_folder)
    if on_demand:
        _add_on_demand(server, service, host)
    return service


def _add_on_demand(server: Mapping[str, Any], service: dict[str, Any], host: ServerHost) -> None:
    """Add the settings of the program that starts a server on demand, and of the server's helpers.

    C(asked_url) is the URL of the proof, whose request starts the server; C(proved) is the record of a proof, with C(fingerprint);
    C(told) is the state of the program that starts it; the others limit the wait for its turn and for memory.
    """
    on_demand = server["on_demand"]
    launch = json.dumps([service[key] for key in ("argv", "env", "port", "listen")], sort_keys=True)
    service["on_demand"] = {
        "engine": service["settings"]["url"],
        "set": on_demand["exclusive"] or None,
        "keep": on_demand["keep"],
        "combinations": [list(names) for names in host.sets.get(on_demand["exclusive"], ())],
        **on_demand_keys.seconds(on_demand),
    }
    planned = service["on_demand"]
    service["settings"] |= {
        "on_demand": True,
        "device": server["device"],
        "sysroot": host.sysroot,
        "room_seconds": planned["hold_seconds"] if planned["while_loading"] == "reject" else 0,
        "asked_url": service["url"],
        "proved": f"{STATE}/{server['name']}.proved.json",
        "told": "/run/dgxspark/on_demand/state.json",
        "fingerprint": hashlib.sha256(launch.encode()).hexdigest()[:16],
        "memory_gib": service["memory_gib"],
        "memory_wait_seconds": GATE_SECONDS,
        "start_deadline_seconds": TURN_SECONDS,
        "start_seconds": TURN_SECONDS + GATE_SECONDS + server["start_timeout"],
    }


def _device(server: Mapping[str, Any], host: ServerHost) -> list[str]:
    """Return options of docker run for the GPU, or for the limit of memory."""
    if server["device"] == "gpu":
        return [str(arg) for arg in host.gpu_args]
    # With the same limit for swap: Docker allows as much swap in addition otherwise.
    limit = f"{round(float(server['memory_gib']) * 1024)}m"
    return ["--memory", limit, "--memory-swap", limit]


def _findings(server: Mapping[str, Any], engines: Sequence[Endpoint], image: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about the container of a server. image: of M(dgxspark.vllm.spark_info), empty if unknown."""
    name = server["name"]
    findings = container_findings("speech", name, server)
    if server["device"] == "gpu" and engines:
        names = ", ".join(engine["service"] for engine in engines)
        findings.append(finding("speech.gpu", name, engines=names, memory_gib=float(server["memory_gib"])))
    if not server["replaced"] and server["kind"] == "tts" and image.get("present") is False:
        findings.append(finding("speech.download", name, folder=f"{STATE}/{name}"))
    return findings
