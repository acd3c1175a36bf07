# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits of a container on its host: the options of docker run that every container of the collection gets, and options of
a person that take them back.

Processes run as the image's user, usually root, without any capability, so they cannot read a file of another user whose mode
does not open it to all. Folders that they write to belong to root, so a usual server loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from .._common.docker_run import DockerRun, read_options
from .._common.findings import Finding
from .docker_facts import MANAGED_LABEL, SERVICE_LABEL

ENGINE_PIDS = 16384
"""Processes and threads of an engine: its workers, Ray's, and compilers, which start one for each of the 20 cores and threads in each."""
SERVER_PIDS = 2048
"""Processes and threads of any other server."""
HELPER_PIDS = 512
"""Processes and threads of a container that does one thing and ends."""
OWNERS_FILES = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
"""Capabilities of root that writes into a folder of another user."""
LOW_PORTS = 1024
"""Only root may listen on lower ports of the host's network; Docker opens them to all in a container's own network alone."""
# A container that sees a socket, or writes below these folders, is as good as root on the host.
SOCKETS = ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock")
SYSTEM = ("/", "/boot", "/dev", "/etc", "/lib", "/proc", "/root", "/run", "/sys", "/usr", "/var")
OWN_STATE = ("/etc/dgxspark", "/var/lib/dgxspark", "/usr/local/libexec/dgxspark", "/usr/local/lib/dgxspark")


def restricted(pids: int, capabilities: Iterable[str] = ()) -> list[str]:
    """Return the options of docker run that every container gets. pids: most processes and threads. capabilities: without C(CAP_)."""
    added = [word for name in capabilities for word in ("--cap-add", name)]
    limits = ["--security-opt", "no-new-privileges", "--pids-limit", str(pids)]
    return ["--cap-drop", "ALL", *added, *limits, "--ulimit", "core=0"]  # a core dump holds keys


def run_argv(container: str, service: str, pids: int, capabilities: Iterable[str] = ()) -> list[str]:
    """Return the beginning of the C(docker run) of a container that a unit runs; the other options, the image and its words follow.

    :param service: that it belongs to, empty for a container that does one thing and ends
    """
    labels = ["--label", f"{MANAGED_LABEL}=true", "--label", f"{SERVICE_LABEL}={service}"] if service else []
    argv = ["/usr/bin/docker", "run", "--rm", "--name", container, "--pull", "never", *labels]
    return argv + restricted(pids, capabilities)


def python_helper(
    image: str,
    name: str,
    program: Sequence[str],
    options: Sequence[str] = (),
    capabilities: Iterable[str] = (),
) -> list[str]:
    """Return the docker run of a container that runs a Python program of the collection and ends."""
    limits = restricted(HELPER_PIDS, capabilities)
    return ["docker", "run", "--name", name, *limits, *options, "--entrypoint", "python3", image, "-c", *program]


def image_question(image: str, name: str, program: str, seconds: int, options: Sequence[str] = ()) -> list[str]:
    """Return the command that asks an image by a Python program, without GPU and network; nothing is written.

    C(void) keeps a default runtime of NVIDIA from putting the GPU into the container.

    :param seconds: after which it ends
    """
    isolated = ["--rm", "--pull", "never", "--network", "none", "--read-only", "--log-driver", "none"]
    isolated += ["--env", "NVIDIA_VISIBLE_DEVICES=void", *options]
    return ["timeout", "--kill-after=5", str(seconds), *python_helper(image, name, [program], isolated)]


def for_port(port: int) -> tuple[str, ...]:
    """Return the capabilities that a server on the host's network needs for its port."""
    return ("NET_BIND_SERVICE",) if port < LOW_PORTS else ()


def restricted_server(port: int) -> list[str]:
    """Return the options of docker run for a server that listens on a port of the host."""
    return restricted(SERVER_PIDS, for_port(int(port)))


def mounted(words: Iterable[object]) -> set[str]:
    """Return the targets of the mounts among options of docker run."""
    return {target.rstrip("/") or "/" for _source, target, _readonly in _mounts(_read(words))}


LOOSENING: dict[str, Callable[[str, Collection[str]], bool]] = {
    "--privileged": lambda value, _expected: value != "false",
    "--cap-add": lambda value, expected: value.upper().removeprefix("CAP_") not in expected,
    "--security-opt": lambda value, _expected: _loosens(value),
    "--pids-limit": lambda value, _expected: value.lstrip("-").isdigit() and int(value) <= 0,
    "--ulimit": lambda value, _expected: value.startswith("core=") and value.strip("0:") != "core=",
    **dict.fromkeys(("--pid", "--userns", "--cgroupns", "--uts"), lambda value, _expected: value == "host"),
}
"""Options that may give a container more than C(restricted) leaves it: whether a value does, given its expected capabilities."""


def given_back(words: Sequence[object], expected: Sequence[str] = (), read_only: Sequence[str] = ()) -> list[str]:
    """Return the options that give a container more than C(restricted) leaves it, as they were written."""
    run = _read(words)
    loose = [
        name if value is None else f"{name} {value}"
        for name, value in run.options
        if name in LOOSENING and LOOSENING[name](str(value or "").lower(), expected)
    ]
    for source, target, readonly in _mounts(run):
        writes = not readonly and (target.rstrip("/") in read_only or _is_sensitive(source))
        if source.rstrip("/") in SOCKETS or writes:
            loose.append(f"a mount of {source} at {target}{'' if readonly else ', writable'}")
    return loose


def findings(
    service: str,
    words: Sequence[object],
    expected: Sequence[str] = (),
    read_only: Sequence[str] = (),
    where: str = "docker_args",
) -> list[Finding]:
    """Return the findings about a person's own options of docker run for one service."""
    loose = given_back(words, expected, read_only)
    problems = []
    if loose:
        text = (
            f"{', '.join(loose)} in {where} {'gives' if len(loose) == 1 else 'give'} the container more of the host than it has by "
            "default: no capabilities, no new privileges, a limit on processes, no core dumps, read-only weights."
        )
        fix = f"Take it out of {where} if the server runs without; else add container.weaker to 'ignore' or spark_ignore_rules."
        problems.append(Finding("container.weaker", "warning", text, fix, service))
    networks = [
        name if value is None else f"{name} {value}"
        for name, value in _read(words).options
        if name in ("--publish", "--publish-all") or (name == "--network" and value != "host")
    ]
    if networks:
        text = (
            f"{', '.join(networks)} in {where}: the server should use the network of its host. In a container network, neither the host nor a "
            "gateway reaches it on the planned address, and ufw does not see a published port."
        )
        fix = f"Take it out of {where}: 'port' is the port, and 'host', spark_listen and spark_allow_from say who reaches it."
        problems.append(Finding("container.network", "warning", text, fix, service))
    targets = mounted(words)
    for folder in read_only:
        below = sorted(target for target in targets if target.startswith(f"{folder}/"))
        if below and folder not in targets:
            text = (
                f"{', '.join(below)} in {where} would be mounted below {folder}, which is read-only in the container: Docker cannot create the "
                "mount point, and the container would not start."
            )
            fix = f"Mount it elsewhere in the container, and name that path in the arguments; or mount a folder of your own at {folder}."
            problems.append(Finding("container.mount", "error", text, fix, service))
    return problems


def _read(words: Iterable[object]) -> DockerRun:
    return read_options([str(word) for word in words])[0]


def _loosens(option: str) -> bool:
    """Tell whether a value of --security-opt removes a limit; another profile may be as strict as Docker's."""
    name, _sign, value = option.replace(":", "=", 1).partition("=")
    return value in ("unconfined", "disable") or (name == "no-new-privileges" and value == "false")


def _mounts(run: DockerRun) -> list[tuple[str, str, bool]]:
    """Return source, target and whether it is read-only of every bind mount."""
    mounts = []
    for item in run.values("--volume"):
        source, _colon, place = item.partition(":")
        target, _colon, options = place.partition(":")
        if target:
            mounts.append((source, target, "ro" in options.split(",")))
    for item in run.values("--mount"):
        parts = dict(part.partition("=")[::2] for part in item.split(","))
        source = parts.get("source") or parts.get("src") or ""
        target = parts.get("target") or parts.get("dst") or parts.get("destination") or ""
        readonly = any(parts.get(name, "false") in ("", "true", "1") for name in ("readonly", "ro"))
        if target:
            mounts.append((source, target, readonly))
    return mounts


def _is_sensitive(source: str) -> bool:
    """Tell whether a folder of the host belongs to the system or the collection, so that a writer may become root."""
    path = source.rstrip("/") or "/"
    return source.startswith("/") and (
        path in SYSTEM
        or path.startswith(("/etc/", "/proc/", "/sys/", "/boot/", "/usr/", "/lib/"))
        or any(path == own or path.startswith(f"{own}/") for own in OWN_STATE)
    )
