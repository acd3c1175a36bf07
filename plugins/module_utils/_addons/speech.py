# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Speech beside the engines: what C(spark_speech) says, and the containers, units and endpoints that follow from it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from .._cluster import endpoints as fleet
from .._cluster.endpoints import Endpoint
from .._common import component_versions, on_demand_keys, plain_data, plain_secrets, schema, validation
from .._common.findings import Finding
from .._common.schema import NUMBER, Key
from .._host import containers

KEYS: dict[str, Key] = {
    "name": Key(str, None, "name of the server: the unit is spark-<name>.service, the container spark-<name>"),
    "kind": Key(str, None, "asr (speech to text) or tts (text to speech)"),
    "image": Key(str, None, "image; any server with OpenAI's speech API can replace the default of the kind"),
    "port": Key(int, None, "TCP port of the host; 8765 for asr, 8882 for tts", least=1, most=65535),
    "listen": Key(
        str,
        "",
        "address to listen on; loopback, or the management address with a key or for a gateway on another host",
    ),
    "memory_gib": Key(NUMBER, None, "memory that the plan reserves; with device cpu also the limit of the container"),
    "device": Key(str, "cpu", "cpu, or gpu for an image with CUDA for the host's architecture", choices=("cpu", "gpu")),
    "model": Key(str, None, "model name that clients send"),
    "command": Key(list, None, "program that replaces the image's entrypoint; required for a key with your own image"),
    "args": Key(list, None, "arguments of the image's entrypoint or of command"),
    "env": Key(dict, {}, "environment variables in addition to those of the kind; no secrets"),
    "container_port": Key(int, None, "port inside the container; the same as port for your own image", least=1, most=65535),
    "health": Key(str, "/health", "path that returns 200 when the server is ready"),
    "start_timeout": Key(
        int, None, "seconds that a start may take; the first one may download a model",
        least=60, most=validation.LONGEST_START, unit="seconds",
    ),
    "api_key_file": Key(str, "", "file on the controller with the API key of the server"),
    "key_env": Key(str, None, "environment variable from which the server reads its key"),
    "volumes": Key(list, [], "additional mounts, HOST_PATH:CONTAINER_PATH, optionally with :ro"),
    "docker_args": Key(list, [], "further options of docker run"),
    "unload": Key(
        str, "", "request that makes the server give its model back until it is asked again, DELETE /api/ps/NAME for example; for the guard of the memory"
    ),
    "voice": Key(str, "alloy", "voice that the proof requests from a tts server"),
    "on_demand": Key(
        dict,
        None,
        "start the server with its first request and stop it when nobody asks, as an engine: idle_minutes, exclusive and others; {} for their defaults",
        page="on_demand.md#speech",
    ),
}  # fmt: skip
"""Keys of one entry of C(spark_speech); a default of C(None) is the kind's."""

KINDS: dict[str, dict[str, Any]] = {
    "asr": {
        "image": component_versions.PARAKEET.ref,
        "port": 8765,
        "memory_gib": 4.0,
        "model": "parakeet-tdt-0.6b",
        "command": ["/app/parakeet"],
        "args": ["-port", "5092", "-models", "/models"],
        # Each further worker is a further copy of the model, about 0.7 GiB.
        "env": {"PARAKEET_WORKERS": "2"},
        "container_port": 5092,
        "start_timeout": 300,
        "key_env": "PARAKEET_API_KEY",
        "state": None,
    },
    "tts": {
        "image": component_versions.CHATTERBOX.ref,
        "port": 8882,
        "memory_gib": 8.0,
        "model": "chatterbox-tts-1",
        "command": [],
        "args": [],
        "env": {"HOST": "0.0.0.0", "PORT": "5123", "DEVICE": "cpu", "MODEL_CACHE_DIR": "/cache"},
        "container_port": 5123,
        # The first start fetches about 3 GB.
        "start_timeout": 1800,
        "key_env": "",
        "state": "/cache",
    },
}
"""What a kind is when nothing else is said: the server, where it listens, what it holds. docs/speech.md has the sources."""

OWN_IMAGE: dict[str, Any] = {
    "command": [],
    "args": [],
    "env": {},
    "start_timeout": 900,
    "key_env": "",
    "state": None,
}
"""What holds for an image that is not the kind's own: nothing is known of it."""

RESERVED = validation.RESERVED_NAMES
"""Names that units of other parts of this collection have."""
CONTAINER_SECRETS = "/run/dgxspark/secrets"
WITH_SECRETS = "/usr/local/libexec/dgxspark/with-secrets"
ETC = "/etc/dgxspark/speech"
STATE = "/var/lib/dgxspark/speech"
SECRETS = "/etc/dgxspark/secrets/speech"
STOP_SECONDS = 30
STARTS = 3
RESTART_SECONDS = 10
TURN_SECONDS, GATE_SECONDS = 3000, 120
"""How long a start on demand waits while an engine starts, and for memory."""
URL_PATH = re.compile(r"/[\w./?=&%-]*")
REQUEST = re.compile(r"(GET|POST|DELETE) (/[\w./?=&%:@+-]*)")
LEAST_GIB, MOST_GIB = 0.01, 10**6
"""Docker takes no bound below 6 MiB, and 0 for none at all."""
VOLUME = re.compile(r"/[\w.+@/-]*:/[\w.+@/-]*(?::(?:ro|rw))?")


# --- reading ------------------------------------------------------------------------------------------------------


def read(host: str, value: Any, taken: Collection[str] = ()) -> tuple[list[dict[str, Any]], list[str]]:
    """Read C(spark_speech) of one host.

    :param host: its name, for messages
    :param value: as the inventory has it
    :param taken: names of the host's services and sidecars, which name units and shares of memory as well
    :returns: its servers with every default filled in, and all that is wrong
    """
    if not isinstance(value, list):
        return [], [
            f"host {host}, spark_speech: must be a list of servers, not {plain_data.kind(value)}. Write '- name: ...'."
        ]
    found, messages = [], []
    names: dict[str, int] = {}
    ports: dict[int, int] = {}
    for index, entry in enumerate(value):
        problems = validation.Problems(f"host {host}, spark_speech[{index}]")
        server = _read_server(problems, entry)
        name, port = server.get("name"), server.get("port")
        if name in RESERVED:
            problems.add(f"'name' is '{name}', which is a unit of this collection already. Take another one.")
        elif name in taken:
            problems.add(f"the name '{name}' is that of a service or sidecar of this host. Take another one.")
        for what, seen, item in (("name", names, name), ("port", ports, port)):
            if item is not None and item in seen:
                problems.add(f"{what} {item!r} is used twice on this host, first by spark_speech[{seen[item]}].")
            elif item is not None:
                seen[item] = index
        messages += problems.messages
        found.append(server)
    return found, messages


def _read_server(problems: validation.Problems, entry: Any) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        problems.add(f"must be a mapping with at least name and kind, not {plain_data.kind(entry)}.")
        return {}
    own = {str(key).replace("-", "_"): item for key, item in entry.items() if item is not None}
    if isinstance(own.get("name"), str) and validation.SERVICE_NAME.fullmatch(own["name"]):
        problems.where += f" ({own['name']})"
    own = schema.read(problems, own, KEYS)
    kind = own.get("kind")
    if kind not in KINDS:
        problems.add(f"'kind' is {kind!r}; it must be asr (speech to text) or tts (text to speech).")
        return {"name": own.get("name")}
    usual = KINDS[kind]
    replaced = own.get("image", usual["image"]) != usual["image"]
    if replaced:
        usual = {**{key: usual[key] for key in ("port", "model")}, **OWN_IMAGE}
        if "memory_gib" not in own:
            problems.add(
                f"'memory_gib' is missing: what {own.get('image')} holds is not known, and the plan keeps that much for it. "
                "Measure it (docker stats) and write it down, in GiB."
            )
    server: dict[str, Any] = {}
    for name, key in KEYS.items():
        server[name] = own.get(name, usual.get(name) if key.default is None else key.default)
    server["container_port"] = server["container_port"] or server["port"]
    server["on_demand"] = _on_demand(problems, {**server, "on_demand": own.get("on_demand")})
    server["replaced"] = replaced
    server["state"] = usual["state"]
    server["env"] = {**usual["env"], **environment(problems, own.get("env") or {})}
    if kind == "tts" and not replaced and "DEVICE" not in (own.get("env") or {}):
        server["env"]["DEVICE"] = "cuda" if server["device"] == "gpu" else "cpu"
    _check_server(problems, server, own)
    return server


def _on_demand(problems: validation.Problems, server: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what C(on_demand) of a server says with every default, None for one that is always there."""
    if server["on_demand"] is None:
        return None
    values = on_demand_keys.read(problems, server)
    if values["while_loading"] == "comments":
        problems.add(
            "'on_demand.while_loading' is comments, which are for answers that are a stream of events, and a speech server sends none. Take "
            "wait, which holds requests, or reject."
        )
    return values


def _check_server(problems: validation.Problems, server: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    name = server["name"]
    if not isinstance(name, str) or not validation.SERVICE_NAME.fullmatch(name):
        problems.add(
            f"'name' is {name!r}; it must be lower-case letters, digits and inner dashes, at most 40 characters, because it "
            "names the unit and the container."
        )
    check_image(problems, server["image"])
    check_listen(problems, server["listen"])
    if server["device"] == "gpu" and not server["replaced"]:
        problems.add(
            f"'device' is gpu, but {server['image']} has no CUDA build for arm64. Name an image that has one, with its "
            "memory_gib, or leave 'device' out."
        )
    check_size(problems, "memory_gib", server["memory_gib"])
    if not URL_PATH.fullmatch(str(server["health"])):
        problems.add(f"'health' is {server['health']!r}; it must be a path that begins with a slash, such as /health.")
    if server["unload"] and not REQUEST.fullmatch(str(server["unload"])):
        problems.add(f"'unload' is {server['unload']!r}; it must be a method and a path, such as DELETE /api/ps/NAME.")
    for key in ("model", "voice"):
        if not str(server[key] or "").strip() or plain_data.CONTROL.search(str(server[key])):
            problems.add(f"'{key}' is {server[key]!r}; it must be one line of text.")
    for key in ("command", "args", "docker_args", "volumes"):
        check_texts(problems, key, server[key])
        check_secrets(problems, key, server[key])
    check_volumes(problems, server["volumes"])
    if server["key_env"] and not validation.ENV_NAME.fullmatch(server["key_env"]):
        problems.add(f"'key_env' is {server['key_env']!r}, which is no environment variable.")
    if server["api_key_file"] and not server["key_env"]:
        problems.add(
            f"'api_key_file' is set, but {server['image']} is not known to ask for a key. Where it does, say in which "
            "variable it takes it (key_env) and what its program is (command); else leave the key out and let the gateway ask for one."
        )
    elif server["api_key_file"] and not server["command"]:
        problems.add(
            "'api_key_file' needs 'command', the program of the image (docker image inspect shows Entrypoint and Cmd): it is "
            "started behind a wrapper that reads the key from a file, so that docker inspect does not show it."
        )
    if own.get("key_env") and not server["api_key_file"]:
        problems.add("'key_env' is set without 'api_key_file'. Name the file with the key, or take it out.")


# --- checks that ollama.py shares ---------------------------------------------------------------------------------


def check_secrets(
    problems: validation.Problems, key: str, words: Sequence[Any], fix: str = "Name a file with it as api_key_file."
) -> None:
    """Complain about secrets in the words of a command line.

    :param problems: takes the complaints
    :param key: that the words stand below
    :param words: of the command line
    :param fix: where the secret belongs
    """
    for text in plain_secrets.sentences(key, plain_secrets.in_words(words), fix):
        problems.add(text)


def environment(problems: validation.Problems, env: Mapping[str, Any]) -> dict[str, str]:
    """Return an environment as Docker's file of variables can hold it; secrets have no place there."""
    result = {}
    secrets = set(plain_secrets.in_environment(env))
    for name, value in sorted((str(key), item) for key, item in env.items()):
        if not validation.ENV_NAME.fullmatch(name):
            problems.add(f"'env' names '{name}', which is no environment variable.")
        elif name in secrets:
            problems.add(
                f"'env' sets {name}, which looks like a secret: everybody who may run docker inspect would see it. "
                "Put it into a file and name that as api_key_file."
            )
        elif isinstance(value, (dict, list)) or value is None:
            problems.add(f"'env' sets {name} to {plain_data.kind(value)}; it must be a text or a number.")
        else:
            text = ("1" if value else "0") if isinstance(value, bool) else str(value)
            if plain_data.CONTROL.search(text):
                problems.add(f"'env' sets {name} to a text with a line break or control character.")
            result[name] = text
    return result


def check_image(problems: validation.Problems, image: Any) -> None:
    """Complain about what is no image reference, and about a tag that moves."""
    if not isinstance(image, str) or not validation.IMAGE_REF.fullmatch(image):
        problems.add(f"'image' is {image!r}; it must be a reference like NAME:TAG or NAME@sha256:DIGEST.")


def check_listen(problems: validation.Problems, listen: Any) -> None:
    """Complain about what is no address; empty leaves it to the plan."""
    if listen and not plain_data.is_address(listen):
        problems.add(f"'listen' is {listen!r}; it must be an address of the host, 127.0.0.1 or 0.0.0.0.")


def check_size(problems: validation.Problems, key: str, size: Any) -> None:
    """Complain about what is no size in GiB.

    :param problems: takes the complaint
    :param key: that the size stands below
    :param size: in GiB, C(LEAST_GIB) to C(MOST_GIB); None is left to others
    """
    if size is not None and (
        isinstance(size, bool) or not isinstance(size, (int, float)) or not LEAST_GIB <= size <= MOST_GIB
    ):
        problems.add(f"'{key}' is {size!r}; it must be a size in GiB, from {LEAST_GIB} to {MOST_GIB}.")


def check_texts(problems: validation.Problems, key: str, value: Any) -> None:
    """Complain about a list that holds other than texts and numbers.

    :param problems: takes the complaint
    :param key: that the list stands below
    :param value: the list
    """
    if any(isinstance(item, bool) or not isinstance(item, (str, int, float)) for item in value):
        problems.add(f"'{key}' must be a list of texts.")
    elif any(plain_data.CONTROL.search(str(item)) for item in value):
        problems.add(f"'{key}' holds a control character or a line break.")


def check_volumes(problems: validation.Problems, volumes: Sequence[Any]) -> None:
    """Complain about mounts that Docker would take for a volume of its own, or not at all."""
    for volume in volumes:
        if not VOLUME.fullmatch(str(volume)) or ".." in re.split(r"[/:]", str(volume)):
            problems.add(
                f"'volumes' names {volume!r}; write HOST_PATH:CONTAINER_PATH, both absolute, with :ro where it may be."
            )


# --- planning -----------------------------------------------------------------------------------------------------


def sidecars(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the memory that the servers hold, for the plan to keep before engines are sized; and what starts them, where requests do."""
    return [
        {
            "name": server["name"],
            "memory_gib": float(server["memory_gib"]),
            "port": server["port"],
            "on_demand": server["on_demand"],
            "exclusive": (server["on_demand"] or {}).get("exclusive", ""),
        }
        for server in settings
    ]


def plan(
    host: str,
    settings: Sequence[Mapping[str, Any]],
    endpoints: Sequence[Endpoint],
    address: str = "",
    gateway: str = "",
    gpu_args: Sequence[Any] = ("--gpus", "all"),
    listening: Sequence[Mapping[str, Any]] = (),
    callers: Callable[[str, str], Mapping[str, str]] | None = None,
    admitted: bool = False,
    exposed_to: str = "every host that reaches that address",
    images: Mapping[str, Mapping[str, Any]] | None = None,
    sets: Mapping[str, Sequence[Sequence[str]]] | None = None,
    sysroot: str = "/",
) -> tuple[dict[str, Any], list[Endpoint], list[Finding]]:
    """Plan the speech servers of one host.

    :param host: name of the host
    :param settings: of C(read)
    :param endpoints: those of the fleet that are known already, the host's engines among them
    :param address: the host's management address, empty where it is not known
    :param gateway: the host that runs the gateway, if one does
    :param gpu_args: how docker run is given the GPU
    :param listening: of M(dgxspark.vllm.spark_info), where the host was asked
    :param callers: by name and kind of a server, the other hosts that have to reach it, as C(sockets.callers)
        returns them; the gateway alone when left out
    :param admitted: whether the inventory names others who may come
    :param exposed_to: who else reaches a server that listens on more than loopback, in words; nobody when empty
    :param images: C(images) of M(dgxspark.vllm.spark_info), where the host was asked
    :param sets: of services on demand, what of each may run at once
    :param sysroot: where C(/proc) is read
    :returns: the variables of the role speech without their prefix, the endpoints that come to the fleet, and
        findings
    """
    engines = [each for each in endpoints if each["kind"] == "vllm" and host in each["hosts"]]
    planned, added, findings = [], [], []
    asked_by = callers or by_gateway(host, gateway)
    for server in settings:
        where = choose_listen(
            server["listen"],
            address,
            asked_by(server["name"], server["kind"]),
            bool(server["api_key_file"]),
            admitted,
        )
        planned.append(_plan_server(server, where, engines, gpu_args, sets or {}, sysroot))
        said = planned[-1].get("on_demand")
        endpoint = fleet.make(
            host,
            address,
            server["name"],
            server["kind"],
            server["port"],
            where,
            models=[server["model"]],
            api_key_file=server["api_key_file"] or None,
            health=server["health"],
            memory_gib=float(server["memory_gib"]),
            on_demand=said is not None,
            hold_seconds=0 if said is None or said["while_loading"] == "reject" else said["hold_seconds"],
        )
        findings += check_endpoint(
            "speech", endpoint, endpoints, listening, gateway, bool(server["key_env"]), exposed_to
        )
        findings += _findings(server, engines, (images or {}).get(server["image"]) or {})
        added.append(endpoint)
    return {"services": planned}, added, findings


def unloading(settings: Sequence[Mapping[str, Any]], planned: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return how servers are asked to give their models back, for the guard of the memory.

    :param settings: of C(read)
    :param planned: the servers as the role has them
    :returns: C({name, container, method, url, key_file}) of each server that can be asked
    """
    found = []
    for server, made in zip(settings, planned):
        request = REQUEST.fullmatch(server["unload"] or "")
        if request:
            key_file = made["secrets"][0]["path"] if made["secrets"] else None
            asked = {"method": request[1], "url": made["settings"]["url"] + request[2], "key_file": key_file}
            found.append({"name": made["name"], "container": made["container"], **asked})
    return found


def by_gateway(host: str, gateway: str) -> Callable[[str, str], Mapping[str, str]]:
    """Return who has to reach a server of C(host) where nobody but the gateway is known."""
    return lambda _name, _kind: {gateway: "gateway"} if gateway and gateway != host else {}


def choose_listen(wanted: str, address: str, callers: Mapping[str, str], keyed: bool, admitted: bool) -> str:
    """Choose the address that a server listens on: loopback, unless another host has to come, a gateway, or with a key whoever asks or is admitted.

    :param wanted: what the inventory says, which comes first
    :param address: the host's management address, empty where it is not known
    :param callers: other hosts that have to reach it, with what they are
    :param keyed: whether it asks for a key
    :param admitted: whether the inventory names others who may come
    :returns: the address, 0.0.0.0 where that of the host is needed and not known
    """
    if wanted:
        return wanted
    if "gateway" in callers.values() or (keyed and (callers or admitted)):
        return address or "0.0.0.0"
    return "127.0.0.1"


def _plan_server(
    server: Mapping[str, Any],
    listen: str,
    engines: Sequence[Endpoint],
    gpu_args: Sequence[Any],
    sets: Mapping[str, Sequence[Sequence[str]]],
    sysroot: str,
) -> dict[str, Any]:
    name, timeout, said = server["name"], server["start_timeout"], server["on_demand"]
    url = f"http://{fleet.bracketed(probe_address(listen))}:{server['port']}"
    # Behind a socket the server is for the host alone, at a port of its own.
    own, port = ("127.0.0.1", said["engine_port"]) if said else (listen, server["port"])
    own_url = f"http://{own}:{port}" if said else url
    secrets = []
    if server["api_key_file"]:
        path = f"{SECRETS}/{name}/{server['key_env']}"
        secrets.append({"name": server["key_env"], "source": server["api_key_file"], "path": path})
    folders = [{"path": f"{STATE}/{name}", "mode": "0755"}] if server["state"] else []
    folders += [{"path": f"{SECRETS}/{name}", "mode": "0700"}] if secrets else []
    result = {
        "name": name,
        "kind": server["kind"],
        "unit": f"spark-{name}.service",
        "container": f"spark-{name}",
        "image": server["image"],
        "device": server["device"],
        "port": server["port"],
        "listen": listen,
        "url": url,
        "memory_gib": float(server["memory_gib"]),
        "env": dict(server["env"]),
        "env_file": f"{ETC}/{name}.env",
        "secrets": secrets,
        "folders": folders,
        # Engines come after it: what it takes while it loads would be charged to an engine that measures itself meanwhile.
        # One on demand takes the start lock instead, as engines do.
        "before": [] if said else sorted({engine["unit"] for engine in engines}),
        "start_timeout": timeout,
        "limits": limits(timeout),
        "settings": {
            **{key: server[key] for key in ("name", "kind", "health", "model", "voice")},
            "unit": f"spark-{name}.service",
            "container": f"spark-{name}",
            "url": own_url,
            "api_key_file": secrets[0]["path"] if secrets else None,
            # It gives up a little before systemd would, so that the journal says why.
            "deadline_seconds": timeout - 20,
        },
    }
    result["argv"] = _argv(server, result, gpu_args, own, port)
    if said:
        result["on_demand"] = {
            "engine": own_url,
            "set": said["exclusive"] or None,
            "keep": said["keep"],
            "combinations": [list(one) for one in sets.get(said["exclusive"], ())],
            **on_demand_keys.seconds(said),
        }
        result["settings"] |= _asked_for(server, result, sysroot)
    return result


def _asked_for(server: Mapping[str, Any], planned: Mapping[str, Any], sysroot: str) -> dict[str, Any]:
    """Return what the helpers of a server that requests start go by beside the rest.

    C(asked_url), where the proof asks, whose port starts it; C(proved), where it is kept that the server was proved, as C(fingerprint);
    C(told), where the program says what it does; and what the gate of the start waits for.
    """
    launch = json.dumps([planned[key] for key in ("argv", "env", "port", "listen")], sort_keys=True)
    return {
        "on_demand": True,
        "device": server["device"],
        "sysroot": sysroot,
        "room_seconds": planned["on_demand"]["hold_seconds"]
        if planned["on_demand"]["while_loading"] == "reject"
        else 0,
        "asked_url": planned["url"],
        "proved": f"{STATE}/{server['name']}.proved.json",
        "told": "/run/dgxspark/on_demand/state.json",
        "fingerprint": hashlib.sha256(launch.encode()).hexdigest()[:16],
        "memory_gib": planned["memory_gib"],
        "memory_wait_seconds": GATE_SECONDS,
        "start_deadline_seconds": TURN_SECONDS,
        "start_seconds": TURN_SECONDS + GATE_SECONDS + server["start_timeout"],
    }


def limits(timeout: int) -> dict[str, int]:
    """Return the bounds of a unit; the interval spans all starts at their longest, or a start would be tried for ever."""
    return {
        "starts": STARTS,
        "restart_seconds": RESTART_SECONDS,
        "stop_seconds": STOP_SECONDS,
        "start_interval": STARTS * (timeout + STOP_SECONDS + RESTART_SECONDS) + 60,
    }


def probe_address(listen: str) -> str:
    """The address that the host itself reaches a server by."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen, listen)


def _argv(
    server: Mapping[str, Any], planned: Mapping[str, Any], gpu_args: Sequence[Any], listen: str, port: int
) -> list[str]:
    """Return the whole C(docker run). listen, port: of the host, where the server itself is published.

    The port is published rather than the host's network shared: not every speech server can be told which address to take.
    """
    name = server["name"]
    argv = run_argv(name, listen, port, server["container_port"], planned["env_file"])
    if server["device"] == "gpu":
        argv += [str(arg) for arg in gpu_args]
    else:
        # Without the same figure for swap, Docker allows as much again there.
        bound = f"{round(float(server['memory_gib']) * 1024)}m"
        argv += ["--memory", bound, "--memory-swap", bound]
    if server["state"]:
        argv += ["--volume", f"{STATE}/{name}:{server['state']}"]
    for volume in server["volumes"]:
        argv += ["--volume", str(volume)]
    command = [str(word) for word in server["command"]]
    entrypoint = command[0] if command else ""
    rest = [*command[1:], *(str(word) for word in server["args"])]
    if planned["secrets"]:
        argv += ["--mount", f"type=bind,src={SECRETS}/{name},dst={CONTAINER_SECRETS},readonly"]
        argv += ["--mount", f"type=bind,src={WITH_SECRETS},dst={WITH_SECRETS},readonly"]
        entrypoint, rest = WITH_SECRETS, [*command, *(str(word) for word in server["args"])]
    argv += [str(arg) for arg in server["docker_args"]]
    return [*argv, *(["--entrypoint", entrypoint] if entrypoint else []), server["image"], *rest]


def run_argv(name: str, listen: str, port: int, inside: int, env_file: str) -> list[str]:
    """Return the part of C(docker run) that speech and Ollama have in common.

    :param name: of the server
    :param listen: address of the host that it listens on
    :param port: of the host
    :param inside: port inside the container
    :param env_file: file of the host with its environment
    :returns: the words up to the image, without mounts and bounds of memory
    """
    return [
        "/usr/bin/docker",
        "run",
        "--rm",
        "--name",
        f"spark-{name}",
        "--pull",
        "never",
        "--label",
        "dgxspark.managed=true",
        "--label",
        f"dgxspark.service={name}",
        *containers.restricted(containers.SERVER_PIDS),
        "--publish",
        f"{fleet.bracketed(listen)}:{port}:{inside}",
        "--stop-timeout",
        str(STOP_SECONDS),
        "--log-driver",
        "local",
        "--env-file",
        env_file,
    ]


# --- findings -----------------------------------------------------------------------------------------------------


def check_endpoint(
    subject: str,
    endpoint: Endpoint,
    endpoints: Sequence[Endpoint],
    listening: Sequence[Mapping[str, Any]],
    gateway: str,
    can_be_keyed: bool,
    exposed_to: str = "every host that reaches that address",
) -> list[Finding]:
    """Find what is wrong with where a server of this host listens.

    :param subject: C(speech) or C(ollama), which begins the ids of findings and ends the name of the variable
    :param endpoint: of the server
    :param endpoints: those of the fleet, with or without it
    :param listening: what listens on the host, of M(dgxspark.vllm.spark_info)
    :param gateway: the host that runs the gateway, if one does
    :param can_be_keyed: whether the server has keys
    :param exposed_to: see C(plan)
    :returns: findings
    """
    return [
        *_same_port_or_name(subject, endpoint, endpoints),
        *_port_taken(subject, endpoint, listening),
        *_exposure(subject, endpoint, gateway, can_be_keyed, exposed_to),
    ]


def _same_port_or_name(subject: str, endpoint: Endpoint, endpoints: Sequence[Endpoint]) -> list[Finding]:
    """Find other servers of the host that have the server's port or its name."""
    findings = []
    host, name, port = endpoint["host"], endpoint["service"], endpoint["port"]
    for other in endpoints:
        if other["host"] == host and other["port"] == port and other["key"] != endpoint["key"]:
            findings.append(
                Finding(
                    rule=f"{subject}.port",
                    severity="error",
                    service=name,
                    message=f"port {port} of {host} is that of {other['service']} ({other['kind']}) already.",
                    fix=f"Give {name} another port in spark_{subject}.",
                )
            )
        if other["host"] == host and other["service"] == name:
            findings.append(
                Finding(
                    rule=f"{subject}.name",
                    severity="error",
                    service=name,
                    message=f"{host} has a service {name} already ({other['kind']}); both would be spark-{name}.service.",
                    fix=f"Give one of them another name in spark_{subject}.",
                )
            )
    return findings


def _port_taken(subject: str, endpoint: Endpoint, listening: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Find a program of the host that listens where the server is to."""
    host, name, port = endpoint["host"], endpoint["service"], endpoint["port"]
    for socket in listening:
        owner = str(socket.get("container") or socket.get("unit") or socket.get("process") or "somebody else")
        ours = owner in (endpoint["container"], endpoint["unit"])
        if int(socket["port"]) == port and not ours and _overlap(str(socket["address"]), endpoint["listen"]):
            return [
                Finding(
                    rule=f"{subject}.port_taken",
                    severity="error",
                    service=name,
                    message=f"port {port} of {host} is taken by {owner} (on {socket['address']}).",
                    fix=f"Stop {owner}, or give {name} another port in spark_{subject}.",
                    basis="measured",
                )
            ]
    return []


def _exposure(subject: str, endpoint: Endpoint, gateway: str, can_be_keyed: bool, exposed_to: str) -> list[Finding]:
    """Find a server that everybody can use, and one that the gateway cannot reach."""
    findings = []
    host, name, listen = endpoint["host"], endpoint["service"], endpoint["listen"]
    if exposed_to and not fleet.is_loopback(listen) and not endpoint["api_key_file"]:
        keyed = "Set api_key_file" if can_be_keyed else "It has no keys of its own: let clients come by the gateway"
        why = f", because the gateway runs on {gateway}" if gateway and gateway != host else ""
        findings.append(
            Finding(
                rule=f"{subject}.open",
                severity="warning",
                service=name,
                message=f"answers on {listen}:{endpoint['port']} without a key{why}: {exposed_to} can use it."
                + ("" if endpoint["on_demand"] else " Docker publishes the port past ufw."),
                fix=f"{keyed}, run the gateway on {host}, or set listen: 127.0.0.1 to keep it to this host.",
            )
        )
    if fleet.is_loopback(listen) and gateway and gateway != host:
        findings.append(
            Finding(
                rule=f"{subject}.unreachable",
                severity="warning",
                service=name,
                message=f"listens on {listen} of {host} alone, so the gateway on {gateway} cannot reach it.",
                fix="Leave 'listen' out, or set it to the host's management address.",
            )
        )
    return findings


def _overlap(one: str, other: str) -> bool:
    return one == other or fleet.is_any(one) or fleet.is_any(other)


def _findings(server: Mapping[str, Any], engines: Sequence[Endpoint], image: Mapping[str, Any]) -> list[Finding]:
    name = server["name"]
    findings = moving_tag("speech", name, server["image"]) + own_options(name, server)
    if server["device"] == "gpu" and engines:
        beside = ", ".join(engine["service"] for engine in engines)
        findings.append(
            Finding(
                rule="speech.gpu",
                severity="warning",
                service=name,
                message=f"computes on the GPU beside {beside}: {float(server['memory_gib']):g} GiB are kept for it, and nothing "
                "bounds what it takes there (Docker's --memory does not see CUDA). Tokens of the engines slow down while it works.",
                fix="Leave 'device' out where its CPU build is fast enough; Parakeet's is.",
            )
        )
    if not server["replaced"] and server["kind"] == "tts" and image.get("present") is False:
        findings.append(
            Finding(
                rule="speech.download",
                severity="info",
                service=name,
                message="its first start fetches Chatterbox from the internet, about 3 GB, and answers after that.",
                fix=f"Put a copy into {STATE}/{name} on a host without internet.",
                basis="measured",
            )
        )
    return findings


def own_options(name: str, settings: Mapping[str, Any]) -> list[Finding]:
    """Find what a person's own options of docker run and mounts give a server beyond what it needs."""
    volumes = [word for volume in settings["volumes"] for word in ("--volume", volume)]
    found = containers.findings(name, volumes, where="volumes")
    return [*found, *containers.findings(name, settings["docker_args"])]


def moving_tag(subject: str, name: str, image: str) -> list[Finding]:
    """Find an image that is another one after the next pull.

    :param subject: see C(check_endpoint)
    :param name: of the server
    :param image: its reference
    :returns: one finding, or none
    """
    _path, _slash, leaf = image.rpartition("/")
    _name, colon, tag = leaf.partition(":")
    if "@" in image or (colon and tag != "latest"):
        return []
    return [
        Finding(
            rule=f"{subject}.moving_tag",
            severity="warning",
            service=name,
            message=f"image {image} moves: two hosts may run different servers by one name.",
            fix="Name a version, or a digest (docker image inspect shows RepoDigests).",
        )
    ]
