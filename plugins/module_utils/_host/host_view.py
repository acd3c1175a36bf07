# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One view of a host: runs systemctl, docker, nvidia-smi, ip, ss and journalctl for reports, once for all objects.

It changes nothing. Output is parsed in C(docker_facts.py), C(units.py), C(nvidia_smi.py) and C(network.py); files
below /proc and /sys are read in C(machine.py) and C(network.py).
"""

from __future__ import annotations

import fnmatch
import functools
import math
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from .._runtime.command import QUERY_SECONDS, NoAnswer, Run, Unknown, answered, noted, reader, says_missing
from . import docker_facts, machine, network, nvidia_smi, units

Question = TypeVar("Question", bound=Callable[..., Any])


class Explained(Unknown):
    """C(Unknown), with the reason as a fact of the host in another section of the report: a Docker engine that is down."""


class BadRequest(Exception):
    """A parameter of a question is malformed; the text names it."""


@dataclass
class Request:
    """The parameters of M(dgxspark.vllm.spark_info), and the warnings of its sections. Check mode writes and starts nothing on the host."""

    params: Mapping[str, Any]
    check_mode: bool = False
    warnings: list[str] = field(default_factory=list)


def _once(question: Question) -> Question:
    """Have a method of a view answer once for each text among its arguments; C(NoAnswer) is kept like an answer."""

    @functools.wraps(question)
    def ask(view: HostView, *args: Any) -> Any:
        key = (question.__name__, *(arg for arg in args if isinstance(arg, str)))
        if key not in view._answers:
            try:
                view._answers[key] = question(view, *args)
            except NoAnswer as nothing:
                view._answers[key] = nothing
        answer = view._answers[key]
        if isinstance(answer, NoAnswer):
            raise answer
        return answer

    return cast(Question, ask)


class HostView:
    """The answers of one host. Each question is asked at most once; a later one gets the same answer.

    A method returns the objects, C(None) or an empty list if the host has none, and raises C(NoAnswer) if the program failed,
    was silent until its deadline, or printed something else: the answer is unknown then. C(noted) turns that into a default
    and keeps the reason in C(unknown), by program.

    :param root: where /proc, /sys and the release files are read
    :param config_root: where /etc and /run of the host itself are read
    :param settings: folder with the settings of services
    :param unit_dir: folder of unit files; files that systemd has not loaded are named to it
    :param other_units: names of further units, which the call for the units of services asks about too; see C(others)
    """

    def __init__(
        self,
        run: Run,
        root: str = "/",
        *,
        config_root: str = "/",
        settings: str = "/etc/dgxspark",
        unit_dir: str = "/etc/systemd/system",
        other_units: Iterable[str] = (),
    ) -> None:
        self.run, self.root, self.config_root = run, root, config_root
        self.settings, self.unit_dir, self.other_units = settings, unit_dir, list(other_units)
        self.unknown: dict[str, str] = {}
        self._answers: dict[tuple[str, ...], Any] = {}

    def noted(self, default: Any, question: Callable[..., Any], *args: Any) -> Any:
        """Return the answer to a question, or a default with the reason in C(unknown)."""
        return noted(self.unknown, default, question, *args)

    def long_question(self, argv: list[str], seconds: float = QUERY_SECONDS) -> tuple[int, str, str]:
        """Run a program that may take so many seconds, however long other programs were silent; raises C(NoAnswer)."""
        return reader(seconds, math.inf)(argv)

    # --- Docker ---

    @_once
    def docker(self) -> dict[str, Any] | None:
        """Return the Docker engine as C(docker_facts.parse_info) has it, None without C(docker). One that is silent has the reason in C(error)."""
        rc, text, error = self.noted((124, "", ""), self.run, docker_facts.INFO_COMMAND)
        if rc == 127:
            return None
        engine: dict[str, Any] = self.noted(None, docker_facts.parse_info, text) or docker_facts.parse_info("")
        if not engine["reachable"] and "docker" in self.unknown:
            engine["error"] = self.unknown["docker"]
        elif not engine["reachable"] and error.strip():
            engine["error"] = error.strip().splitlines()[-1]
        return engine

    def containers(self) -> list[dict[str, Any]]:
        """Return all containers, running or not, as C(docker_facts.parse_containers) has them.

        [] if C(docker) was asked before and found no engine that answers.
        """
        return [] if self.docker_is_down() else docker_facts.parse_containers(*self._inspected())

    def inspected_containers(self) -> list[dict[str, Any]]:
        """Return C(docker container inspect) of all containers."""
        return docker_facts.read_inspected(*self._inspected())

    @_once
    def _inspected(self) -> tuple[str, str]:
        """Return output and messages of C(docker container inspect) for all containers."""
        rc, out, err = self.run(docker_facts.LIST_COMMAND)
        answered("docker", rc, err)
        ids = docker_facts.read_ids(out) if rc == 0 else []
        if not ids:
            return "[]", ""
        # A container that ends between the two calls makes inspect fail, but it still prints the others.
        rc, text, err = self.run(["docker", "container", "inspect", "--", *ids])
        answered("docker", 0 if says_missing(err) else rc, err)
        return text, err

    def docker_is_down(self) -> bool:
        """Whether C(docker) was asked before and found no engine that answers."""
        key = ("docker",)
        return key in self._answers and not (self._answers[key] or {}).get("reachable")

    # --- systemd ---

    def units(self) -> list[dict[str, Any]]:
        """Return the units of services, loaded or only on the disk, as C(units.parse_show) has them."""
        return [unit for unit in self._shown() if unit["name"] not in self.other_units]

    def others(self) -> list[dict[str, Any]]:
        """Return the units of C(other_units) that exist."""
        return [unit for unit in self._shown() if unit["name"] in self.other_units]

    def named_units(self, names: list[str]) -> list[dict[str, Any]]:
        """Return units by their names; missing units are left out, or have C(load_state=not-found)."""
        if not names:
            return []
        if all(fnmatch.fnmatch(name, units.UNIT_GLOB) for name in names):
            return [unit for unit in self.units() if unit["name"] in names]
        return self._named(*names)

    @_once
    def _named(self, *names: str) -> list[dict[str, Any]]:
        return units.ask(self.run, list(names))

    @_once
    def _shown(self) -> list[dict[str, Any]]:
        names = machine.names_in(self.unit_dir, "")
        on_disk = [name for name in names if name.startswith("spark-") and name.endswith(".service")]
        shown = units.ask(self.run, [*on_disk, units.UNIT_GLOB, *self.other_units])
        return [unit for unit in shown if unit["load_state"] != "not-found"]

    # --- logs ---

    def journal(self, *options: str) -> tuple[int, str, str]:
        """Run journalctl with options; returns exit code, output and messages."""
        return self.run(["journalctl", "--no-pager", "--quiet", *options])

    def container_log(self, container: str, *options: str) -> tuple[int, str, str]:
        """Return exit code of docker logs, and the two outputs of a container."""
        return self.run(["docker", "logs", *options, container])

    # --- nvidia-smi ---

    @_once
    def gpu(self, containers: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the first GPU with C(processes [{pid, name, used_mib, container}]).

        None without nvidia-smi or a device (exit 6 on GB10 after a driver update without its firmware).
        containers: of C(containers); a process may belong to one of them.
        """
        rc, out, err = self.gpu_query()
        answered("nvidia-smi", 0 if rc in nvidia_smi.NO_GPU else rc, err or out)
        gpus = nvidia_smi.parse_gpu_query(out) if rc == 0 else []
        if not gpus:
            return None
        names = {container["id"]: container["name"] for container in containers}
        processes = []
        for app in self.compute_apps():
            container = machine.read_cgroup(app["pid"], self.root, names)["container"]
            processes.append({**app, "container": names.get(container or "")})
        return {**gpus[0], "count": len(gpus), "processes": processes}

    @_once
    def gpu_query(self) -> tuple[int, str, str]:
        """Return exit code, output and messages of nvidia-smi, asked for its GPUs."""
        return self.run(nvidia_smi.GPU_QUERY)

    @_once
    def compute_apps(self) -> list[dict[str, Any]]:
        """Return the processes that hold GPU memory, C([{pid, name, used_mib}])."""
        rc, out, err = self.run(nvidia_smi.COMPUTE_APPS_QUERY)
        answered("nvidia-smi", rc, err or out)
        return nvidia_smi.parse_compute_apps(out) if rc == 0 else []

    def cuda_version(self) -> str | None:
        """Return the CUDA version of the driver, which only the table of nvidia-smi prints, None without one."""
        _rc, table, _err = self.run(["nvidia-smi"])
        match = re.search(r"CUDA Version\s*:\s*(\d+\.\d+)", table)
        return match.group(1) if match else None

    # --- ip and ss ---

    @_once
    def ip_json(self, subject: str) -> str:
        """Return the output of C(ip -j SUBJECT), empty without the program C(ip). subject: C(addr) or C(neigh)."""
        rc, text, err = self.run(["ip", "-j", subject])
        answered("ip", rc, err)
        return text if rc == 0 else ""

    def ipv4_addresses(self) -> tuple[int, str, str]:
        """Return exit code, output and messages of C(ip), asked for the IPv4 addresses of interfaces that are up, as JSON."""
        return self.run(network.IPV4_COMMAND)

    def fabric(self) -> dict[str, Any]:
        """Return the QSFP side, as C(network.describe_fabric) has it. C(ip) is asked only where a ConnectX-7 is found."""
        has_card = bool(network.connectx_names(self.root))
        texts = [self.ip_json(subject) if has_card else "" for subject in ("addr", "neigh")]
        return self.fabric_of(*texts)

    def fabric_of(self, addresses: str = "", neighbours: str = "") -> dict[str, Any]:
        """Return the QSFP side from the output of C(ip), and from files alone without it."""
        return network.describe_fabric(self.root, machine.read_pci(self.root), addresses, neighbours, self.config_root)

    def listening(self, containers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the listening TCP sockets, as C(network.describe_listening) has them. containers: of C(containers)."""
        rc, out, _err = noted({}, (1, "", ""), self.run, ["ss", "-H", "-tlnp"])
        if rc == 0:
            sockets = network.parse_ss(out)
        else:  # the kernel lists them too, without the processes
            texts = [machine.read_text("/", f"proc/net/{name}") or "" for name in ("tcp", "tcp6")]
            sockets = [entry for text in texts for entry in network.parse_proc_tcp(text)]
        return network.describe_listening(sockets, self.root, containers)

    # --- files ---

    def text(self, path: str) -> str:
        """Return the text of a file below C(root), empty for an unreadable one."""
        return machine.read_text(self.root, path) or ""

    def kernel(self) -> str:
        """Return the release of the kernel."""
        return self.text("proc/sys/kernel/osrelease") or platform.release()


def still_listed(run: Run, pids: list[int]) -> set[int]:
    """Return the processes that hold GPU memory. Without an answer of nvidia-smi these are C(pids), so that silence ends no wait for them."""
    try:
        return {app["pid"] for app in HostView(run).compute_apps()}
    except NoAnswer:
        return set(pids)
