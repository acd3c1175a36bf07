# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What add-on servers in containers share: checks of their options, the command line of docker run, and findings about their ports."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._cluster import endpoints as fleet
from .._cluster.endpoints import Endpoint
from .._common import plain_data, plain_secrets, validation
from .._common.findings import Finding
from .._host import containers
from .descriptions import finding

ETC = "/etc/dgxspark"
SECRETS = "/etc/dgxspark/secrets"
CONTAINER_SECRETS = "/run/dgxspark/secrets"
WITH_SECRETS = "/usr/local/libexec/dgxspark/with-secrets"
STARTS, RESTART_SECONDS, STOP_SECONDS = 3, 10, 30
VOLUME = re.compile(r"/[\w.+@/-]*:/[\w.+@/-]*(?::(?:ro|rw))?")


@dataclass(frozen=True)
class ServerHost:
    """A host that servers are planned for.

    address: its management address, empty if unknown. gateway: the host of the gateway, empty without one. gpu_args: options of docker run
    for the GPU. listening: sockets that M(dgxspark.vllm.spark_info) found. callers: returns, for the name and the kind of a server, the other
    hosts that use it with their purpose, as C(sockets.callers) does; only the gateway by default. admitted: whether the inventory admits
    further clients. exposed_to: who reaches a server that listens on more than loopback, in words; empty for nobody. images: C(images) of
    M(dgxspark.vllm.spark_info). sets: the combinations of services on demand by exclusive set. sysroot: the folder of C(/proc).
    """

    name: str
    address: str = ""
    gateway: str = ""
    gpu_args: Sequence[Any] = ("--gpus", "all")
    listening: Sequence[Mapping[str, Any]] = ()
    callers: Callable[[str, str], Mapping[str, str]] | None = None
    admitted: bool = False
    exposed_to: str = "every host that reaches that address"
    images: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sets: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    sysroot: str = "/"

    def choose_listen(self, name: str, kind: str, listen: str, has_key: bool) -> str:
        """Return the address for a server: loopback, unless a gateway on another host uses it, or clients with a key do.

        It is 0.0.0.0 if the address of the host is needed and unknown.
        """
        if listen:
            return listen
        gateway = {self.gateway: "gateway"} if self.gateway not in ("", self.name) else {}
        callers = self.callers(name, kind) if self.callers else gateway
        if "gateway" in callers.values() or (has_key and (callers or self.admitted)):
            return self.address or "0.0.0.0"
        return "127.0.0.1"


# --- checks of options --------------------------------------------------------------------------------------------


def check_container(problems: validation.Problems, settings: Mapping[str, Any], secrets_fix: str) -> None:
    """Report wrong words, mounts and secrets among the options of a container.

    :param secrets_fix: a sentence about the right place of secrets
    """
    for key in ("command", "args", "docker_args", "volumes"):
        if key in settings:
            check_words(problems, key, settings[key])
            for message in plain_secrets.sentences(key, plain_secrets.in_words(settings[key]), secrets_fix):
                problems.add(message)
    for volume in settings.get("volumes", ()):
        if not VOLUME.fullmatch(str(volume)) or ".." in re.split(r"[/:]", str(volume)):
            problems.add(
                f"'volumes' names {volume!r}; write HOST_PATH:CONTAINER_PATH, both absolute, with :ro if it only reads."
            )


def check_words(problems: validation.Problems, key: str, words: Sequence[Any]) -> None:
    """Report entries of a list that are neither texts nor numbers."""
    if any(isinstance(word, bool) or not isinstance(word, (str, int, float)) for word in words):
        problems.add(f"'{key}' must be a list of texts.")
    elif any(plain_data.CONTROL.search(str(word)) for word in words):
        problems.add(f"'{key}' contains a control character or a line break.")


def environment(problems: validation.Problems, env: Mapping[str, Any]) -> dict[str, str]:
    """Return an environment for a file of Docker, and report names and values that it cannot hold, and secrets."""
    variables = {}
    secrets = set(plain_secrets.in_environment(env))
    for name, value in sorted((str(key), value) for key, value in env.items()):
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
            text = str(int(value)) if isinstance(value, bool) else str(value)
            if plain_data.CONTROL.search(text):
                problems.add(f"'env' sets {name} to a text with a line break or control character.")
            variables[name] = text
    return variables


# --- containers and units -----------------------------------------------------------------------------------------


def docker_run(
    name: str,
    settings: Mapping[str, Any],
    network: Sequence[str],
    env_file: str,
    options: Sequence[str] = (),
    secrets: str = "",
    stop_seconds: int = STOP_SECONDS,
    capabilities: Iterable[str] = (),
) -> list[str]:
    """Return the command line of a server's container.

    :param settings: of the server: image, command, args, volumes and docker_args
    :param secrets: folder of the host with its keys; the program is then started by a wrapper that reads them
    """
    argv = containers.run_argv(f"spark-{name}", name, containers.SERVER_PIDS, capabilities)
    argv += [*network, "--stop-timeout", str(stop_seconds), "--log-driver", "local", "--env-file", env_file, *options]
    for volume in settings.get("volumes", ()):
        argv += ["--volume", str(volume)]
    program = [str(word) for word in settings.get("command", ())]
    if secrets:
        argv += ["--mount", f"type=bind,src={secrets},dst={CONTAINER_SECRETS},readonly"]
        argv += ["--mount", f"type=bind,src={WITH_SECRETS},dst={WITH_SECRETS},readonly"]
        program = [WITH_SECRETS, *program]
    argv += [str(word) for word in settings["docker_args"]]
    argv += ["--entrypoint", program[0]] if program else []
    return [*argv, settings["image"], *program[1:], *(str(word) for word in settings.get("args", ()))]


def published(listen: str, port: int, container_port: int) -> list[str]:
    """Return options of docker run for a server with one published port: not every server can be given an address to listen on."""
    address = f"{fleet.bracketed(listen)}:{port}:{container_port}"
    return ["--publish", address]


def limits(timeout: int) -> dict[str, int]:
    """Return the limits of a unit; the interval spans all starts at their longest, or systemd would try for ever."""
    return {
        "starts": STARTS,
        "restart_seconds": RESTART_SECONDS,
        "stop_seconds": STOP_SECONDS,
        "start_interval": STARTS * (timeout + STOP_SECONDS + RESTART_SECONDS) + 60,
    }


def local_url(listen: str, port: int) -> str:
    """Return the URL of a server for programs of its host."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen, listen)
    return f"http://{fleet.bracketed(address)}:{port}"


# --- findings -----------------------------------------------------------------------------------------------------


def endpoint_findings(
    subject: str, endpoint: Endpoint, endpoints: Sequence[Endpoint], host: ServerHost, can_have_key: bool
) -> list[Finding]:
    """Return the findings about the port, the name and the address of a server.

    :param subject: C(speech) or C(ollama), the first part of the rules and the last part of the variable
    """
    name, port = endpoint["service"], endpoint["port"]
    rows: list[tuple[str, dict[str, Any]]] = []
    for other in endpoints:
        if other["host"] == host.name and other["port"] == port and other["key"] != endpoint["key"]:
            rows.append(("port", {"other": other["service"], "kind": other["kind"]}))
        if other["host"] == host.name and other["service"] == name:
            rows.append(("name", {"kind": other["kind"]}))
    rows += _port_taken(endpoint, host.listening)
    rows += _exposure(endpoint, host, can_have_key)
    common = {"subject": subject, "host": host.name, "name": name, "port": port, "listen": endpoint["listen"]}
    return [finding(f"{subject}.{rule}", name, f"speech.{rule}", **{**common, **values}) for rule, values in rows]


def _port_taken(endpoint: Endpoint, listening: Sequence[Mapping[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the rule, with the values of its text, for the first other program of the host on the server's port, if any."""
    for socket in listening:
        owner = str(socket.get("container") or socket.get("unit") or socket.get("process") or "somebody else")
        address = str(socket["address"])
        overlaps = address == endpoint["listen"] or fleet.is_any(address) or fleet.is_any(endpoint["listen"])
        is_own = owner in (endpoint["container"], endpoint["unit"])
        if int(socket["port"]) == endpoint["port"] and overlaps and not is_own:
            return [("port_taken", {"owner": owner, "address": address})]
    return []


def _exposure(endpoint: Endpoint, host: ServerHost, can_have_key: bool) -> list[tuple[str, dict[str, Any]]]:
    """Return the rules, with the values of their texts, for a server without a key, and for a server that the gateway cannot reach."""
    rows: list[tuple[str, dict[str, Any]]] = []
    is_local = fleet.is_loopback(endpoint["listen"])
    is_remote_gateway = host.gateway not in ("", host.name)
    if host.exposed_to and not is_local and not endpoint["api_key_file"]:
        no_key = "It has no keys: let clients use the gateway"
        values = {
            "why": f", because the gateway runs on {host.gateway}" if is_remote_gateway else "",
            "exposed_to": host.exposed_to,
            "docker": "" if endpoint["on_demand"] else " Docker publishes the port past ufw.",
            "keyed": "Set api_key_file" if can_have_key else no_key,
        }
        rows.append(("open", values))
    if is_local and is_remote_gateway:
        rows.append(("unreachable", {"gateway": host.gateway}))
    return rows


def container_findings(subject: str, name: str, settings: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about a moving tag, and about options and mounts that weaken the container."""
    findings = []
    if is_moving(settings["image"]):
        findings.append(finding(f"{subject}.moving_tag", name, "speech.moving_tag", image=settings["image"]))
    mounts = [word for volume in settings["volumes"] for word in ("--volume", volume)]
    findings += containers.findings(name, mounts, where="volumes")
    return findings + containers.findings(name, settings["docker_args"])


def is_moving(image: str, tags: Sequence[str] = ("latest",)) -> bool:
    """Tell whether the reference of an image may be another image after the next pull. tags: those that a project moves."""
    _name, colon, tag = image.rpartition("/")[2].partition(":")
    return "@" not in image and (not colon or tag in tags)
