# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the first inventory of discovered Sparks, and a table of all machines. Pure functions.

Answers of hosts only appear in comments, as printable lines; C(discovery.py) checks the names in YAML.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._common import tables
from .._plan.model_choice import Pick
from .._plan.picture import names_text, natural
from .discovery import Cables, Machine

OTHERS = "spark_found"
"""The group of Sparks without services: every host of C(sparks) has some."""
HOSTS, VARIABLES, SETTINGS = "hosts.yml", "group_vars/sparks.yml", "ansible.cfg"
"""Files of the folder, named like those of the examples."""
SETTINGS_TEXT = """\
# Written by dgxspark.vllm.discover; edit it as you like. Ansible reads it in this folder, and from elsewhere by
# export ANSIBLE_CONFIG=FOLDER/ansible.cfg
[defaults]
inventory = .
forks = 20
interpreter_python = auto_silent
inject_facts_as_vars = false
# Changes, errors and reports, each once; -v shows all tasks.
stdout_callback = dgxspark.vllm.brief
callback_result_format = yaml
display_skipped_hosts = false
# One line a host for slow tasks.
callbacks_enabled = dgxspark.vllm.progress

[ssh_connection]
pipelining = true
"""
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[.-][A-Za-z0-9]+)+|\d{1,3}(?:\.\d{1,3}){3}")


def serves(machine: Machine) -> list[str]:
    """Return the model servers of a host: unmanaged launches, and services of the collection."""
    launches = [
        f"{launch.get('container') or launch.get('unit') or launch.get('name')} (vLLM, not of this collection)"
        for launch in machine.launches or []
    ]
    services = [f"{name} (service)" for name in machine.facts.get("services") or []]
    return [_line(server) for server in [*launches, *services]]


def variables(machine: Machine, pick: Pick | None) -> dict[str, Any]:
    """Return the variables of a host: its connection, and the recommended service, if any."""
    target = machine.target
    values: dict[str, Any] = {}
    if target.local:
        values["ansible_connection"] = "local"
        values["ansible_python_interpreter"] = "{{ ansible_playbook_python }}"
    elif target.address != machine.name:
        values["ansible_host"] = target.address
    values.update({"ansible_user": target.user} if target.user else {})
    values.update({"ansible_port": target.port} if target.port else {})
    values.update({"spark_services": [pick.service]} if pick else {})
    return values


def files(
    machines: Sequence[Machine], picks: Mapping[str, Pick], cables: Cables, user: str, spans: Mapping[int, Pick]
) -> dict[str, str]:
    """Return the texts of the folder's files, by name.

    :param spans: recommended recipe for one model over several Sparks, by their number
    """
    lines = [
        "---",
        "# Written by dgxspark.vllm.discover; edit it as you like, it is never overwritten.",
        "# ansible-playbook -i FOLDER dgxspark.vllm.plan shows what would run, dgxspark.vllm.site deploys it.",
    ]
    for members in cables.groups():
        lines.append(f"# Joined by QSFP: {', '.join(members)}. One model over all of them: docs/cluster.md.")
        pick = spans.get(len(members))
        if pick:
            variant = f" ({pick.variant})" if pick.variant else ""
            lines.append(f"# For {len(members)} Sparks the recipes have {pick.recipe}{variant}, {pick.rate}.")
    ordered = sorted(machines, key=lambda machine: natural(machine.name))
    serving = [machine for machine in ordered if picks.get(machine.name)]
    lines += ["sparks:", *_group_lines(serving, picks, cables)]
    idle = [machine for machine in ordered if machine not in serving]
    if idle:
        lines += ["", "# Sparks without services. Add spark_services to a host and move it to the group sparks."]
        lines += [f"{OTHERS}:", *_group_lines(idle, picks, cables)]
        lines += ["  vars:", f"    ansible_user: {_scalar(user)}"] if user else []
    without_user = "# Whom ssh logs in as: ansible_user: NAME. Left to your ssh settings here."
    group = [
        "---",
        f"ansible_user: {_scalar(user)}" if user else without_user,
        "# Without passwordless sudo: run with -K, which asks once.",
        "",
        "# The engines listen on loopback. For hosts that spark_allow_from names they listen on the Spark's own address, with a key:",
        "# spark_defaults:",
        "#   api_key_file: .secrets/api_key",
    ]
    return {HOSTS: "\n".join(lines) + "\n", VARIABLES: "\n".join(group) + "\n", SETTINGS: SETTINGS_TEXT}


def _group_lines(machines: Sequence[Machine], picks: Mapping[str, Pick], cables: Cables) -> list[str]:
    if not machines:
        return ["  hosts: {}"]
    hosts = (_host_lines(machine, picks.get(machine.name), cables) for machine in machines)
    return ["  hosts:", *itertools.chain.from_iterable(hosts)]


def _host_lines(machine: Machine, pick: Pick | None, cables: Cables) -> list[str]:
    lines = [f"    {_scalar(machine.name)}:"]
    lines += [f"      # {_line(text)}" for text in describe(machine, cables)]
    values = variables(machine, pick)
    services = values.pop("spark_services", None)
    lines += [f"      {key}: {_scalar(value)}" for key, value in values.items()]
    if services:
        lines.append("      spark_services:")
        for service in services:
            lines += [
                f"        - name: {_scalar(service['name'])}",
                f"          recipe: {_scalar(service['recipe'])}",
                f"          port: {service['port']}",
                *(f"          {key}: {json.dumps(service[key])}" for key in ("variant", "args") if key in service),
            ]
    elif serves(machine):
        lines.append(
            "      # To take over what serves here, describe it with dgxspark.vllm.import, and run dgxspark.vllm.adopt."
        )
    elif not values:
        lines[0] += " {}"
    return lines


def _scalar(value: Any) -> str:
    """Return a value as YAML, quoted if another reading is possible."""
    text = str(value)
    return text if isinstance(value, int) or _PLAIN.fullmatch(text) or text in ("local",) else json.dumps(text)


def _line(text: Any) -> str:
    return tables.one_line(text, 150)


def _gpu_processes(gpu: Mapping[str, Any]) -> list[str]:
    """Return the processes on the GPU with their memory."""
    return [
        f"{process.get('name')} ({process['used_mib'] / 1024:.1f} GiB)"
        for process in gpu.get("processes") or []
        if isinstance(process, dict) and _are_numbers(process.get("used_mib"))
    ]


def describe(machine: Machine, cables: Cables) -> list[str]:
    """Return lines about a Spark: hardware and versions, cables, model servers, missing answers."""
    facts = machine.facts
    gpu, memory, dgx_os, docker = (facts.get(name) or {} for name in ("gpu", "memory", "dgx_os", "docker"))
    total_gib, free_gib = memory.get("total_gib"), memory.get("available_gib")
    hardware = [
        str(facts["machine"].get("product_name") or "DGX Spark"),
        f"driver {gpu.get('driver_version') or 'not known'}",
        *([f"DGX OS {dgx_os['version']}"] if dgx_os.get("version") else []),
        f"{free_gib:.1f} of {total_gib:.1f} GiB free" if _are_numbers(total_gib, free_gib) else "memory not known",
        f"Docker {docker.get('version') or 'not known'}",
    ]
    lines = [", ".join(hardware)]
    connections = cables.of_host(machine.name)
    if connections:
        lines.append("QSFP " + ", ".join(connections))
    elif machine.heard is not None:
        lines.append("QSFP: no cable to another Spark of this list")
    servers = serves(machine)
    processes = _gpu_processes(gpu)
    if processes and not servers:
        lines.append(f"on the GPU: {', '.join(processes)}")
    return [*lines, *(f"runs {server}" for server in servers), *machine.notes]


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def differences(path: str, old: str, new: str) -> str:
    """Return the unified diff between an existing file and its new version."""
    before, after = (text.splitlines(keepends=True) for text in (old, new))
    return "".join(difflib.unified_diff(before, after, f"{path} (yours, kept)", f"{path} (found now)"))


HEADER = ("name", "reached by", "found by", "driver", "memory", "serves", "recommended")


def table(machines: Sequence[Machine], cables: Cables, picks: Mapping[str, Pick]) -> str:
    """Return a table of the Sparks, then their cables, and other and unknown machines with the reasons."""
    sparks = [machine for machine in machines if machine.state == "spark"]
    sparks.sort(key=lambda machine: natural(machine.name))
    lines = []
    if sparks:
        rows = [[_line(cell) for cell in _cells(spark, picks.get(spark.name))] for spark in sparks]
        lines += [tables.table(HEADER, rows), ""]
        lines += [f"{spark.name}: {_line(note)}" for spark in sparks for note in spark.notes]
        lines += [f"{spark.name}: QSFP {connection}" for spark in sparks for connection in cables.of_host(spark.name)]
        lines += [f"{spark.name}: the same as {', '.join(spark.also)}" for spark in sparks if spark.also]
        lines += cables.strangers
    return "\n".join([*lines, *_other_machines(machines)])


def _other_machines(machines: Sequence[Machine]) -> Iterator[str]:
    """Yield the lines about other and unknown machines."""
    groups: dict[tuple[str, str], list[str]] = {}
    for machine in machines:
        if machine.state != "spark":
            groups.setdefault((machine.state, machine.why), []).append(machine.target.address)
    words = {"other": "no Spark", "unknown": "not known"}
    for (state, why), addresses in sorted(groups.items()):
        count = f" ({len(addresses)})" if len(addresses) > 1 else ""
        yield f"{words[state]}: {names_text(addresses)}{count}: {tables.one_line(why, 400)}"


def _cells(spark: Machine, pick: Pick | None) -> tuple[str, ...]:
    free_gib = (spark.facts.get("memory") or {}).get("available_gib")
    return (
        spark.name,
        spark.target.address,
        spark.target.by,
        str((spark.facts.get("gpu") or {}).get("driver_version") or "not known"),
        f"{free_gib:.1f} GiB free" if _are_numbers(free_gib) else "not known",
        ", ".join(serves(spark)) or ("-" if spark.launches is not None else "not known"),
        f"{pick.recipe}, {pick.rate}" if pick else "-",
    )
