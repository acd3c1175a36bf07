# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hand-made containers and units that serve what a service is to serve: found, read as a launch, compared. Pure functions.

Only what is recognised is ever touched: a running container that nobody of this collection made, or a unit that runs vLLM without one,
whose command is that of vLLM's server, and which serves the model of a planned service or answers on its port.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils.docker_facts import MANAGED_LABEL
from ansible_collections.dgxspark.vllm.plugins.module_utils.launch import SERVICE_KEYS, long_name

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW", re.IGNORECASE)
OWN_ARGS = {*SERVICE_KEYS, "model", "revision", "api-key"}
"""Options that are keys of a service, so that they are compared as such."""
ENGINE = re.compile(r"vllm\.entrypoints|(?:^|[/ ])vllm serve\b")
SERVER = re.compile(r"vllm\.entrypoints\.\S+")
"""The server as a module of Python's."""
SECRET_OPTIONS = ("--api-key", "--hf-token")
CLIENTS = ("docker", "podman", "nerdctl", "sudo", "ssh", "systemd-run")
"""Programs that have a server's command behind their own, and are none."""


def launch_of(box: Mapping[str, Any], image: Mapping[str, Any]) -> list[str]:
    """Write a container of C(docker inspect) as the C(docker run) that it came from, as far as a launch goes by it.

    image: that of C(docker image inspect): what the container has from it was not asked for. Values of secrets are left out.
    """
    config, host = box.get("Config") or {}, box.get("HostConfig") or {}
    own = image.get("Config") or {}
    argv = ["docker", "run", "--name", str(box.get("Name") or "").lstrip("/")]
    network = str(host.get("NetworkMode") or "")
    if network == "host":
        argv += ["--network", "host"]
    if host.get("IpcMode") == "host":
        argv += ["--ipc", "host"]
    for port, entries in sorted((host.get("PortBindings") or {}).items()):
        for entry in entries or []:
            argv += ["-p", f"{entry.get('HostPort') or ''}:{port.partition('/')[0]}"]
    for bind in host.get("Binds") or []:
        argv += ["-v", str(bind)]
    inherited = set(own.get("Env") or [])
    for entry in config.get("Env") or []:
        if entry not in inherited and not SECRET.search(entry.partition("=")[0]):
            argv += ["-e", str(entry)]
    entrypoint, command = list(config.get("Entrypoint") or []), list(config.get("Cmd") or [])
    if entrypoint and entrypoint != list(own.get("Entrypoint") or []):
        argv += ["--entrypoint", entrypoint[0]]
        command = [*entrypoint[1:], *command]
    return [*argv, str(config.get("Image") or box.get("Image") or ""), *without_secrets(command)]


def without_secrets(words: Sequence[Any]) -> list[str]:
    """Return a command without the values of options that are secrets: it is shown, and sent to the controller."""
    found: list[str] = []
    for word in map(str, words):
        name, equals, _value = word.partition("=")
        if found and found[-1] in SECRET_OPTIONS and not word.startswith("--"):
            found.append("hidden")
        else:
            found.append(f"{name}=hidden" if equals and name in SECRET_OPTIONS else word)
    return found


def engine_words(words: Sequence[str]) -> list[str]:
    """Return the command of vLLM's server in that of a program, empty for any other program.

    A program that has it in one word, as C(bash -c) does, is not the server but what has started it.
    """
    if not words or words[0].rpartition("/")[2] in CLIENTS:
        return []
    for position, word in enumerate(words[:4]):
        if word.rpartition("/")[2] == "vllm" and words[position + 1 : position + 2] == ["serve"]:
            return ["vllm", *words[position + 1 :]]
        if word == "-m" and SERVER.fullmatch(words[position + 1] if len(words) > position + 1 else ""):
            return ["python3", *words[position:]]
    return []


def unit_of(cgroup: str) -> tuple[str, str]:
    """Return the unit of the system that a program belongs to, by the text of C(/proc/PID/cgroup), or why there is none."""
    lines = [line.split(":", 2) for line in cgroup.splitlines() if line.count(":") >= 2]
    # v2's line and systemd's own hierarchy know the unit; the other hierarchies of v1 may lack it.
    paths = [path for _number, controllers, path in lines if controllers in ("", "name=systemd")]
    parts = [part for path in paths for part in path.split("/") if part]
    if any(part.startswith("user@") for part in parts):
        return "", "a unit of a user runs it, which is left to its user"
    unit = next((part for part in reversed(parts) if part.endswith(".service")), "")
    return (unit, "") if unit else ("", "no unit runs it: it was started in a session, and could not come back")


def programs_of(processes: Sequence[Mapping[str, Any]], containers: Sequence[str]) -> list[dict[str, Any]]:
    """Find the servers of vLLM among the programs of a host that are in no container, one of each unit.

    processes: C([{pid, words, cgroup}]). containers: ids of all containers. Returns launches as M(dgxspark.vllm.adopt_info) names them.
    """
    found: dict[str, dict[str, Any]] = {}
    for process in sorted(processes, key=lambda each: int(each["pid"])):
        words = engine_words(process["words"])
        if not words or any(box in process["cgroup"] for box in containers):
            continue
        unit, why = unit_of(process["cgroup"])
        # Servers that are asked to be several, and what they fork, have the same command.
        found.setdefault(
            unit or " ".join(words),
            {
                "name": unit or f"process {process['pid']}",
                "container": "",
                "unit": unit,
                "argv": without_secrets(words),
                "alone": why,
                "project": "",
                "restart": "",
                "removed": False,
            },
        )
    return list(found.values())


def is_own(unit: str, services: Sequence[str]) -> bool:
    """Tell whether a unit is that of a service which this collection has put on the host."""
    return unit.startswith("spark-") and unit[len("spark-") : -len(".service")] in services


def is_engine(box: Mapping[str, Any]) -> bool:
    """Tell whether a container's command is that of vLLM's server."""
    config = box.get("Config") or {}
    words = [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]
    return bool(ENGINE.search(" ".join(str(word) for word in words)))


def foreign(box: Mapping[str, Any]) -> bool:
    """Tell whether a running container was made by somebody else."""
    labels = (box.get("Config") or {}).get("Labels") or {}
    ours = str(labels.get(MANAGED_LABEL, "")).lower() == "true" or labels.get("dgxspark.fetch")
    return bool((box.get("State") or {}).get("Running")) and not ours


def owner_of(box: Mapping[str, Any], units: Mapping[str, str]) -> str:
    """Name the unit that runs a container: the one file that names it in a C(docker run), C(start) or C(compose).

    units: text of unit files by name. Empty where there is none.
    """
    name = str(box.get("Name") or "").lstrip("/")
    word = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])")
    found = [
        unit
        for unit, text in sorted(units.items())
        if any("docker" in line and word.search(line) for line in text.splitlines() if line.startswith("Exec"))
    ]
    return found[0] if len(found) == 1 else ""


def compose_project(box: Mapping[str, Any]) -> str:
    """Name the compose project that a container belongs to, which would start it again."""
    labels = (box.get("Config") or {}).get("Labels") or {}
    return str(labels.get("com.docker.compose.project") or "")


def matches(service: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Say by what an imported launch is that of a planned service: C(model), C(port), or nothing.

    A port alone is enough for a launch of vLLM: the service cannot have it while the other one does.
    """
    model, wanted = found.get("model") or {}, service["model"]
    same = wanted.get("repo") and str(model.get("repo") or "").lower() == str(wanted["repo"]).lower()
    leaf = str(wanted.get("path") or "").rstrip("/").rsplit("/", 1)[-1]
    if same or (leaf and str(model.get("path") or "").rstrip("/").rsplit("/", 1)[-1] == leaf):
        return "model"
    return "port" if found.get("port") == service["port"] else ""


def differences(service: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Say in which a launch differs from the service that is to take its place: what clients see first."""
    lines = []

    def told(what: str, was: Any, now: Any) -> None:
        if was != now:
            lines.append(f"{what}: {_short(was)} -> {_short(now)}")

    told("port", found.get("port"), service["port"])
    told(
        "model",
        (found.get("model") or {}).get("repo") or (found.get("model") or {}).get("path"),
        service["model"].get("repo") or service["model"].get("path"),
    )
    told("served as", found.get("served_model_name"), service["served_model_name"])
    image = found.get("image")
    told("image", image.get("ref") if isinstance(image, Mapping) else image, service["image"]["ref"])
    before = {long_name(str(key)): value for key, value in (found.get("args") or {}).items()}
    after = service["args"]
    for key in sorted({*before, *after} - OWN_ARGS):
        if str(before.get(key, "")).lower() != str(after.get(key, "")).lower():
            told(f"--{key}", before.get(key), after.get(key))
    return lines


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def way_of(service: Mapping[str, Any], found: Mapping[str, Any], available_gib: float | None) -> tuple[str, str]:
    """Say how a service takes the place of a launch: C(beside) it first, without downtime, or C(instead) of it; and why."""
    if found.get("port") == service["port"]:
        return "instead", f"both want port {service['port']}"
    need = float(service["settings"].get("memory_gib") or 0.0)
    if available_gib is None or available_gib < need:
        have = "unknown" if available_gib is None else f"{available_gib:.1f} GiB"
        return "instead", f"{need:.1f} GiB are needed, {have} are available beside it"
    return "beside", f"ports differ and {available_gib:.1f} GiB are available, {need:.1f} GiB are needed"


def command_of(argv: Sequence[str]) -> str:
    """Write the launch of a container as the line that the importer reads."""
    return shlex.join(argv)


def unit_text(argv: Sequence[str]) -> str:
    """Write the launch of a program as the unit that the importer reads."""
    return f"[Service]\nExecStart={shlex.join(argv).replace('%', '%%')}\n"


def pairs(
    services: Sequence[Mapping[str, Any]],
    launches: Sequence[Mapping[str, Any]],
    read: Mapping[str, Mapping[str, Any]],
    available_gib: float | None,
) -> list[dict[str, Any]]:
    """Put each launch to the service that is to take its place; the same model goes before the same port.

    launches: as M(dgxspark.vllm.adopt_info) names them. read: the launches as services, by name. A service of a cluster takes
    no place of a single container.
    """
    found: list[dict[str, Any]] = []
    taken: set[str] = set()
    for wanted in ("model", "port"):
        for launch in launches:
            like = read.get(launch["name"])
            if like is None or any(each["name"] == launch["name"] for each in found):
                continue
            # With the same model twice, the one with the same port.
            fitting = sorted(
                (each for each in services if not each.get("cluster") and each["name"] not in taken),
                key=lambda each: each["port"] != like.get("port"),
            )
            service = next((each for each in fitting if matches(each, like) == wanted), None)
            if service is None:
                continue
            taken.add(service["name"])
            way, why = way_of(service, like, available_gib)
            found.append(
                {
                    "service": service["name"],
                    "name": launch["name"],
                    "container": launch["container"],
                    "unit": launch["unit"],
                    "by": wanted,
                    "way": way,
                    "why": why,
                    "differences": differences(service, like),
                    "url": url_of(like),
                    "service_like": dict(like),
                    "refused": refusal(launch, service),
                }
            )
    return found


def url_of(like: Mapping[str, Any]) -> str:
    """Return where a launch answers on its host, empty where that is not known."""
    host = str(like.get("host") or "")
    address = "127.0.0.1" if host in ("", "0.0.0.0", "::", "localhost") else host
    return f"http://{f'[{address}]' if ':' in address else address}:{like['port']}" if like.get("port") else ""


def refusal(launch: Mapping[str, Any], service: Mapping[str, Any]) -> str:
    """Say why a launch is left alone: it could not be brought back as it was."""
    if launch.get("alone"):
        return f"{launch['alone']}. Stop it yourself, then run dgxspark.vllm.site."
    if service.get("state") == "stopped":
        why = "the inventory has it stopped"
        if service.get("exclusive"):
            why = f"of its exclusive set {service['exclusive']} another one is to run, or {why}"
        return f"{service['name']} would not be started: {why}. Change that first, or swap afterwards."
    if launch["container"] == service["container"]:
        return f"its name is that of the service's own container. Give it another one: docker rename {launch['container']} {launch['container']}-old"
    if launch.get("unit") == service["unit"]:
        return f"its unit has the name of the service's own, {service['unit']}. Rename one of them."
    if launch.get("removed") and not launch.get("unit"):
        return (
            "it was started with --rm and no unit runs it: once it is stopped it is gone, and could not come back. "
            "Stop it yourself, then run dgxspark.vllm.site."
        )
    return ""


def lines_of(
    adopted: Sequence[Mapping[str, Any]],
    launches: Sequence[Mapping[str, Any]],
    taken: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    """Write for people what was found, and what was taken over before."""
    lines = []
    for each in adopted:
        by = f", run by {each['unit']}" if each["unit"] and each["container"] else ""
        lines.append(
            f"{each['name']}{by}: service {each['service']} can take its place (same {each['by']}), {each['way']} it: {each['why']}"
        )
        lines += [f"  {line}" for line in each["differences"]]
        if each["refused"]:
            lines.append(f"  left alone: {each['refused']}")
    matched = {each["name"] for each in adopted}
    for launch in launches:
        if launch["name"] not in matched:
            why = launch.get("unreadable") or "no service of this host has its model or its port"
            lines.append(f"{launch['name']}: left alone: {why}")
    lines = lines or ["no container and no unit runs vLLM here that this collection did not make"]
    for each in taken:
        fate = "can come back: -e spark_adopt_undo=true" if each["there"] else "is not there any more"
        lines.append(f"{each['name']}: {each['service'] or 'a service'} has taken its place; it {fate}")
    return lines
