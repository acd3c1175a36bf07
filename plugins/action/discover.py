# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find DGX Sparks and write their first inventory; documented in plugins/modules/discover.py."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import discovery, first_inventory
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.discovery import Machine, Target
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import machine
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import recommend
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command
from ansible_collections.dgxspark.vllm.plugins.modules.discover import DOCUMENTATION
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.arguments import documented
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import write
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES, load_recipes
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
AT_ONCE = 64
"""Machines that are tried at the same time."""
MDNS = ["avahi-browse", "--parsable", "--resolve", "--terminate", "_ssh._tcp"]
"""How NVIDIA's playbooks for several Sparks find them, too."""
MDNS_SECONDS = 10.0
SSH_CONFIG_SECONDS = 10.0
"""Reading its configuration takes ssh milliseconds, unless that asks a program (Match exec)."""


class ActionModule(ActionBase):
    """Look around the controller, or put together what machines answered."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what was found; fail on malformed input, and where no Spark is among all that was tried."""
        result = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(documented(DOCUMENTATION))
        if args["action"] == "find":
            return {**result, **find(args)}
        found = self._write(args, task_vars or {})
        return {**result, **found, "_ansible_verbose_override": True}

    def _write(self, args: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        machines = read_machines(plain(args["found"]), args, task_vars["hostvars"])
        sparks = [machine for machine in machines if machine.state == "spark"]
        discovery.give_names(sparks)
        cables = discovery.find_cables(machines)
        recipes, _wrong = load_recipes([RECIPES])
        picks = choose(recipes, sparks)
        display.display(first_inventory.table(machines, cables, picks))
        if not sparks:
            raise AnsibleActionFail(
                "no Spark was found; nothing was written. Name them with -e discover_hosts=ADDRESS,ADDRESS (or a range, "
                "192.168.1.10-20), and see the reasons above."
            )
        lost = [
            machine.target.address
            for machine in machines
            if machine.state != "spark" and machine.target.by == discovery.GIVEN
        ]
        if lost and args["whole"]:
            raise AnsibleActionFail(
                f"{', '.join(lost)} cannot be served yet, see the reasons above; nothing was written. Run it again when that is "
                "mended, or leave them out of discover_hosts."
            )
        spans = {size: recommend.ranked(recipes, size)[:1] for size in {len(group) for group in cables.groups()}}
        texts = first_inventory.files(
            sparks, picks, cables, args["user"], {size: found[0] for size, found in spans.items() if found}
        )
        folder = Path(args["dest"]).expanduser()
        done, diffs = keep(folder, texts, self._task.check_mode)
        return {
            "changed": "written" in done.values(),
            "files": done,
            "diff": diffs,
            "folder": str(folder),
            "sparks": [
                {
                    "name": machine.name,
                    "variables": {
                        **first_inventory.variables(machine, picks.get(machine.name)),
                        **_account(args, machine),
                    },
                    "measured": {"spark": machine.facts},
                }
                for machine in sparks
            ],
        }


def _account(args: Mapping[str, Any], machine: Machine) -> dict[str, str]:
    """The account of C(group_vars), for a host that has none of its own."""
    return {"ansible_user": args["user"]} if args["user"] and not machine.target.user else {}


def choose(recipes: Mapping[str, Mapping[str, Any]], sparks: Sequence[Machine]) -> dict[str, recommend.Pick]:
    """Return the recommended recipe of each Spark that serves nothing yet; one whose launches are not known gets one too."""
    free = [machine.name for machine in sparks if not first_inventory.serves(machine)]
    return recommend.recommend(recommend.ranked(recipes, 1), free) if free else {}


def keep(folder: Path, texts: Mapping[str, str], check: bool) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Write the files that are not there yet, show how the others differ; return what became of each, and the diffs for Ansible.

    folder: of the inventory. texts: by name. check: whether nothing is written.
    """
    done: dict[str, str] = {}
    diffs: list[dict[str, str]] = []
    for name, text in texts.items():
        path = folder / name
        try:
            old = path.read_text(encoding="utf-8") if path.exists() else None
            if old is None and not check:
                write(path, text)
        except (OSError, UnicodeDecodeError) as error:
            raise AnsibleActionFail(
                f"{path} cannot be written: {error}. Name another folder: -e discover_dest=FOLDER"
            ) from error
        done[name] = "written" if old is None else "unchanged" if old == text else "kept"
        if old is None:
            diffs.append({"before": "", "after": text, "before_header": "", "after_header": str(path)})
            display.display(f"{'would be ' if check else ''}written: {path}")
        elif old != text:
            display.display(f"{path} is there and was left as it is. It differs from what was found now:")
            display.display(first_inventory.differences(str(path), old, text))
    return done, diffs


def read_machines(found: Mapping[str, Any], args: Mapping[str, Any], hostvars: Any) -> list[Machine]:
    """Return all machines of C(found), each once, with what those said that were asked.

    hostvars: of all hosts, in which the variables that C(args) name are.
    """

    def said(address: str, name: str) -> dict[str, Any]:
        known = hostvars[address] if name and address in hostvars else {}
        answer = plain(known.get(name) or {})
        return answer if isinstance(answer, dict) else {}

    machines = []
    for entry in found.get("candidates") or []:
        target = target_of(entry)
        answers = [said(target.address, args[key]) for key in ("asked_from", "plain_from", "cables_from")]
        machines.append(discovery.read_machine(target, *answers))
    machines += [
        Machine(target_of(entry), "unknown", discovery.with_advice(str(entry["why"])))
        for entry in found.get("silent") or []
    ]
    return discovery.join_same(machines)


def target_of(entry: Mapping[str, Any]) -> Target:
    """Return the target that C(find) returned as a mapping."""
    return Target(str(entry["address"]), str(entry["by"]), str(entry.get("user") or ""), int(entry.get("port") or 0))


def find(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return C(candidates) and C(silent); raise AnsibleActionFail for what is no address."""
    targets, problems = discovery.read_targets(args["hosts"])
    if problems:
        raise AnsibleActionFail("no host was contacted:\n- " + "\n- ".join(problems))
    found, notes = around(args["root"]) if args["search"] else ([], [])
    for note in notes:
        display.display(note)
    known = {target.address for target in targets}
    targets += [target for target in found if target.address not in known]
    remote = [target for target in targets if not target.local]
    greetings = greet(remote, args["timeout"])
    candidates, silent = [], []
    for target in targets:
        greeting, why = ("", "") if target.local else greetings[target]
        entry = asdict(target)
        if why:
            silent.append({**entry, "why": why})
        elif target.by == discovery.GIVEN or discovery.may_be_spark(greeting):
            candidates.append({**entry, "local": target.local})
        else:
            silent.append({**entry, "why": f"not asked: its ssh server is not that of DGX OS ({greeting})"})
    return {"changed": False, "candidates": candidates, "silent": silent}


def around(root: str) -> tuple[list[Target], list[str]]:
    """Return who announces ssh by mDNS, who answered on QSFP ports of this machine, and this machine where it is a Spark; and notes.

    root: where C(/sys) is read.
    """
    found, notes = [], []
    answer = command.run(MDNS, MDNS_SECONDS)
    if answer.state == command.FINISHED and answer.rc == 0:
        found += discovery.read_mdns(answer.out)
    else:
        said = [line for line in answer.err.splitlines() if line.strip()]
        why = answer.why or (said[-1].strip() if said else f"exit code {answer.rc}")
        notes.append(f"mDNS was not asked: {foreign_text.printable(why)}")
    if machine.is_spark(None, machine.read_pci(root).values(), machine.read_dmi(root)["product_family"], None):
        found.append(Target(discovery.LOCAL[0]))
        try:
            found += discovery.read_neighbours(HostView(command.reader(), root).fabric())
        except command.NoAnswer as nothing:
            notes.append(f"neighbours on the QSFP ports are not known: {nothing}")
    return found, notes


def greet(targets: Sequence[Target], timeout: float) -> dict[Target, tuple[str, str]]:
    """Return the greeting of each ssh server, and why there is none.

    targets: to try, C(AT_ONCE) at a time. timeout: seconds of each. A name that is not resolved in time has no greeting either: the
    whole has a deadline, since resolving has none of its own.
    """
    waiting: queue.SimpleQueue[Target] = queue.SimpleQueue()
    for target in targets:
        waiting.put(target)
    answers: dict[Target, tuple[str, str]] = {}

    def work() -> None:
        while True:
            try:
                target = waiting.get_nowait()
            except queue.Empty:
                return
            answers[target] = greeting_of(target, timeout)

    threads = [threading.Thread(target=work, daemon=True) for _number in range(min(AT_ONCE, len(targets)))]
    deadline = time.monotonic() + (2 * timeout + 1) * (1 + len(targets) // AT_ONCE)
    for thread in threads:
        thread.start()
    _join(threads, deadline)
    there = dict(answers)
    return {target: there.get(target, ("", f"did not answer in {timeout:g} s")) for target in targets}


def _join(threads: Iterable[threading.Thread], deadline: float) -> None:
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))


def ssh_way(target: Target) -> discovery.SshWay:
    """Return where ssh connects to for a machine that a person named: HostName, Port and ProxyJump of C(~/.ssh/config) hold for it."""
    if target.by != discovery.GIVEN:
        return discovery.read_ssh_way(target, "")
    port = ["-p", str(target.port)] if target.port else []
    answer = command.run(["ssh", "-G", *port, f"{target.user}@{target.address}".lstrip("@")], SSH_CONFIG_SECONDS)
    return discovery.read_ssh_way(target, answer.out if answer.state == command.FINISHED and answer.rc == 0 else "")


def greeting_of(target: Target, timeout: float) -> tuple[str, str]:
    """Return the greeting of one ssh server and an empty text, or an empty one and why there is none.

    A machine behind another host has no greeting here and no reason: ssh itself says whether it can be logged in to.
    """
    way = ssh_way(target)
    if way.jumps:
        return "", ""
    give_up = time.monotonic() + timeout
    said = b""
    try:
        with socket.create_connection((way.host, way.port), timeout=timeout) as connection:
            while b"\n" not in said and len(said) < 1024:
                connection.settimeout(max(give_up - time.monotonic(), 0.01))
                more = connection.recv(256)
                if not more:
                    break
                said += more
    except socket.gaierror as error:
        return "", f"its name cannot be resolved: {error.strerror or error}"
    except TimeoutError:
        return "", f"did not answer in {timeout:g} s"
    except OSError as error:
        return "", f"port {way.port}: {error.strerror or error}"
    greeting = discovery.GREETING.search(said.decode("ascii", "replace"))
    return (greeting[0], "") if greeting else ("", f"port {way.port} is open, and what answers there is no ssh server")
