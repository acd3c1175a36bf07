# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find DGX Sparks and write their first inventory; documented in plugins/modules/discover.py."""

from __future__ import annotations

import functools
import socket
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import discovery, first_inventory
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.discovery import Machine, Target
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import machine
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import model_choice
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.parallel import run_jobs
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import ControllerAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import write
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES, load_recipes
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
AT_ONCE = 64
"""Parallel attempts."""
MDNS = ["avahi-browse", "--parsable", "--resolve", "--terminate", "_ssh._tcp"]
"""As NVIDIA's playbooks for several Sparks search."""
MDNS_SECONDS = 10.0
MOST_BYTES = 1024  # of a greeting
SSH_CONFIG_SECONDS = 10.0
"""ssh reads its configuration in milliseconds, unless that runs a program (Match exec)."""


class ActionModule(ControllerAction):
    """Search for machines, or write an inventory of their answers."""

    def act(self) -> dict[str, Any]:
        """Return the machines or the inventory; fails for malformed input, and without any Spark."""
        return find(self.args) if self.args["action"] == "find" else self._write(self.args)

    def _write(self, args: Mapping[str, Any]) -> dict[str, Any]:
        machines = read_machines(plain(args["found"]), args, self.variables["hostvars"])
        sparks = [machine for machine in machines if machine.state == "spark"]
        discovery.give_names(sparks)
        cables = discovery.find_cables(machines)
        recipes, _wrong = load_recipes([RECIPES])
        try:
            wish = model_choice.read_wish(args["pick"])
        except ValueError as error:
            raise AnsibleActionFail(f"nothing was written:\n- {error}") from error
        free = [machine.name for machine in sparks if not first_inventory.serves(machine)]
        picks = model_choice.recommend(model_choice.picks(recipes, 1, wish), free) if free else {}
        if wish != model_choice.ANY and not picks:
            display.display(
                f"No recipe for one Spark has {wish}; plan.yml --tags models with the same spark_pick counts the reasons."
            )
        display.display(first_inventory.table(machines, cables, picks))
        refuse_missing(machines, args["whole"])
        texts = first_inventory.files(sparks, picks, cables, args["user"], _spans(recipes, cables, wish))
        folder = Path(args["dest"]).expanduser()
        states, diffs = write_missing(folder, texts, self._task.check_mode)
        if folder.is_dir() and folder.stat().st_mode & stat.S_IWOTH:
            display.display(
                f"Every account of this machine can write to {folder}, so Ansible ignores its ansible.cfg, and keys there are readable by all. "
                f"Run chmod o-w {folder}. In WSL this has no effect below /mnt: use a folder in your Linux home, such as ~/my-sparks."
            )
        return {
            "changed": "written" in states.values(),
            "files": states,
            "diff": diffs,
            "folder": str(folder),
            "_ansible_verbose_override": True,
            "sparks": [host_entry(machine, picks.get(machine.name), args["user"]) for machine in sparks],
        }


def _spans(
    recipes: Mapping[str, Any], cables: discovery.Cables, wish: model_choice.Wish
) -> dict[int, model_choice.Pick]:
    """Return the best recipe for each number of Sparks that cables join."""
    sizes = {len(group) for group in cables.groups()}
    fitting = [size for size in sizes if not wish.sparks or size <= wish.sparks]
    return {size: pick for size in fitting for pick in model_choice.picks(recipes, size, wish)[:1]}


def refuse_missing(machines: Sequence[Machine], whole: bool) -> None:
    """Fail without any Spark, and with C(whole) if a named machine is no known Spark."""
    named = [machine for machine in machines if machine.target.by == discovery.GIVEN]
    if not any(machine.state == "spark" for machine in machines):
        fix = "Mend the reasons above, or name other machines" if named else "See the reasons above, or name machines"
        raise AnsibleActionFail(
            f"no Spark was found; nothing was written. {fix} with -e discover_hosts=ADDRESS,ADDRESS (or 192.168.1.10-20)."
        )
    missing = [machine.target.address for machine in named if machine.state != "spark"]
    if missing and whole:
        raise AnsibleActionFail(
            f"{', '.join(missing)} cannot be served yet, see the reasons above; nothing was written. Run it again when that is "
            "mended, or leave them out of discover_hosts."
        )


def host_entry(machine: Machine, pick: model_choice.Pick | None, user: str) -> dict[str, Any]:
    """Return a Spark as a host of the play. user: the account of C(group_vars), for a host without another account."""
    variables = first_inventory.variables(machine, pick)
    if user and not machine.target.user:
        variables = {**variables, "ansible_user": user}
    return {"name": machine.name, "variables": variables, "measured": {"spark": machine.facts}}


def write_missing(folder: Path, texts: Mapping[str, str], check: bool) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Write missing files, and show the differences of existing ones; return the state of each, and the diffs for Ansible."""
    states: dict[str, str] = {}
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
        states[name] = "written" if old is None else "unchanged" if old == text else "kept"
        if old is None:
            diffs.append({"before": "", "after": text, "before_header": "", "after_header": str(path)})
            display.display(f"{'would be ' if check else ''}written: {path}")
        elif old != text:
            display.display(f"{path} exists and was not changed. It differs from the present result:")
            display.display(first_inventory.differences(str(path), old, text))
    return states, diffs


def read_machines(targets: Mapping[str, Any], args: Mapping[str, Any], hostvars: Any) -> list[Machine]:
    """Return all machines, each once, with their answers. targets: of C(find). args: of the task, with the names of variables."""

    def answer_of(address: str, name: str) -> dict[str, Any]:
        variables = hostvars[address] if name and address in hostvars else {}
        answer = plain(variables.get(name) or {})
        return answer if isinstance(answer, dict) else {}

    machines = []
    for entry in targets.get("candidates") or []:
        target = target_of(entry)
        answers = [answer_of(target.address, args[key]) for key in ("asked_from", "plain_from", "cables_from")]
        machines.append(discovery.read_machine(target, *answers))
    machines += [
        Machine(target_of(entry), "unknown", discovery.with_advice(str(entry["why"])))
        for entry in targets.get("silent") or []
    ]
    return discovery.join_same(machines)


def target_of(entry: Mapping[str, Any]) -> Target:
    """Return a target of the mapping of C(find)."""
    return Target(str(entry["address"]), str(entry["by"]), str(entry.get("user") or ""), int(entry.get("port") or 0))


def find(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return C(candidates) and C(silent); raises AnsibleActionFail for a malformed address."""
    targets, problems = discovery.read_targets(args["hosts"])
    if problems:
        raise AnsibleActionFail("no host was contacted:\n- " + "\n- ".join(problems))
    nearby, notes = search(args["root"]) if args["search"] else ([], [])
    for note in notes:
        display.display(note)
    addresses = {target.address for target in targets}
    targets += [target for target in nearby if target.address not in addresses]
    greetings = read_greetings([target for target in targets if not target.local], args["timeout"])
    candidates, silent = [], []
    for target in targets:
        greeting, why = ("", "") if target.local else greetings[target]
        entry = asdict(target)
        if why:
            silent.append({**entry, "why": why})
        elif target.by == discovery.GIVEN or discovery.may_be_spark(greeting):
            candidates.append({**entry, "local": target.local})
        else:
            silent.append({**entry, "why": f"not asked: its ssh server is not DGX OS's ({greeting})"})
    return {"changed": False, "candidates": candidates, "silent": silent}


def search(root: str) -> tuple[list[Target], list[str]]:
    """Return the machines that announce ssh by mDNS, the neighbours on QSFP ports, and this machine if it is a Spark; and notes.

    root: where C(/sys) is read.
    """
    targets, notes = [], []
    answer = command.run(MDNS, MDNS_SECONDS)
    if answer.state == command.FINISHED and answer.rc == 0:
        targets += discovery.read_mdns(answer.out)
    else:
        lines = [line for line in answer.err.splitlines() if line.strip()]
        why = answer.why or (lines[-1].strip() if lines else f"exit code {answer.rc}")
        notes.append(f"mDNS was not asked: {foreign_text.printable(why)}")
    if machine.is_spark(None, machine.read_pci(root).values(), machine.read_dmi(root)["product_family"], None):
        targets.append(Target(discovery.LOCAL[0]))
        try:
            targets += discovery.read_neighbours(HostView(command.reader(), root).fabric())
        except command.NoAnswer as silence:
            notes.append(f"neighbours on the QSFP ports are not known: {silence}")
    return targets, notes


def read_greetings(targets: Sequence[Target], timeout: float) -> dict[Target, tuple[str, str]]:
    """Return the greeting of each ssh server, or the reason without one.

    There is a deadline for all of them, because name resolution has no timeout. timeout: seconds for each.
    """
    jobs = {target: functools.partial(read_greeting, target, timeout) for target in targets}
    seconds = (2 * timeout + 1) * (1 + len(targets) // AT_ONCE)
    in_time = run_jobs(jobs, seconds, lambda why: ("", why), at_once=AT_ONCE)
    return {target: in_time.get(target, ("", f"did not answer in {timeout:g} s")) for target in targets}


def ssh_way(target: Target) -> tuple[str, int, bool]:
    """Return C(discovery.read_ssh_way); C(~/.ssh/config) applies to machines that a person named."""
    if target.by != discovery.GIVEN:
        return discovery.read_ssh_way(target, "")
    port = ["-p", str(target.port)] if target.port else []
    answer = command.run(["ssh", "-G", *port, f"{target.user}@{target.address}".lstrip("@")], SSH_CONFIG_SECONDS)
    return discovery.read_ssh_way(target, answer.out if answer.state == command.FINISHED and answer.rc == 0 else "")


def read_greeting(target: Target, timeout: float) -> tuple[str, str]:
    """Return the greeting of one ssh server and an empty text, or an empty one and the reason.

    A machine behind another host has neither: ssh itself finds out whether it can log in.
    """
    host, port, jumps = ssh_way(target)
    if jumps:
        return "", ""
    deadline, received = time.monotonic() + timeout, b""
    try:
        with socket.create_connection((host, port), timeout=timeout) as connection:
            while b"\n" not in received and len(received) < MOST_BYTES:
                connection.settimeout(max(deadline - time.monotonic(), 0.01))
                chunk = connection.recv(256)
                if not chunk:
                    break
                received += chunk
    except socket.gaierror as error:
        return "", f"its name cannot be resolved: {error.strerror or error}"
    except TimeoutError:
        return "", f"did not answer in {timeout:g} s"
    except OSError as error:
        return "", f"port {port}: {error.strerror or error}"
    greeting = discovery.GREETING.search(received.decode("ascii", "replace"))
    return (greeting[0], "") if greeting else ("", f"port {port} is open, but no ssh server answers there")
