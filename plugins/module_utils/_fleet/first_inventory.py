# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The first inventory of Sparks that were found, and what is said of them. Pure functions.

What a host says of itself stands in comments, in one printable line each; names that stand in YAML are checked in C(discovery.py).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .._common import tables
from .._common.foreign_text import printable
from .._plan.picture import names_text, natural
from .._plan.recommend import Pick
from .discovery import Cables, Machine

OTHERS = "spark_found"
"""The group of Sparks that have no services: every one of C(sparks) has some."""
HOSTS, VARIABLES = "hosts.yml", "group_vars/sparks.yml"
"""Files of the folder, as in the examples."""
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[.-][A-Za-z0-9]+)+|\d{1,3}(?:\.\d{1,3}){3}")


def serves(machine: Machine) -> list[str]:
    """Return what serves models on a host already: launches of others, and services of this collection."""
    found = [
        f"{launch.get('container') or launch.get('unit') or launch.get('name')} (vLLM, not of this collection)"
        for launch in machine.launches or []
    ]
    return [_line(each) for each in [*found, *(f"{name} (service)" for name in machine.facts.get("services") or [])]]


def variables(machine: Machine, pick: Pick | None) -> dict[str, Any]:
    """Return the variables of a host: how it is reached, and the service that is recommended, where there is one."""
    target = machine.target
    found: dict[str, Any] = {}
    if target.local:
        found["ansible_connection"] = "local"
        found["ansible_python_interpreter"] = "{{ ansible_playbook_python }}"
    elif target.address != machine.name:
        found["ansible_host"] = target.address
    found.update({"ansible_user": target.user} if target.user else {})
    found.update({"ansible_port": target.port} if target.port else {})
    found.update({"spark_services": [pick.service]} if pick else {})
    return found


def files(
    machines: Sequence[Machine], picks: Mapping[str, Pick], cables: Cables, user: str, spans: Mapping[int, Pick]
) -> dict[str, str]:
    """Return the files of the folder by their names.

    machines: Sparks with names. picks: by name. user: whom ssh logs in as, empty to leave it to ssh. spans: the recommended recipe for
    a model over so many Sparks.
    """
    lines = [
        "---",
        "# Written by dgxspark.vllm.discover, from what the Sparks said. It is yours to edit: it is never overwritten.",
        "# ansible-playbook -i FOLDER dgxspark.vllm.plan shows what would run, dgxspark.vllm.site deploys it.",
        *_span_lines(cables, spans),
    ]
    ordered = sorted(machines, key=lambda each: natural(each.name))
    serving = [machine for machine in ordered if picks.get(machine.name)]
    lines += ["sparks:", *_group_lines(serving, picks, cables)]
    rest = [machine for machine in ordered if machine not in serving]
    if rest:
        lines += [
            "",
            "# Found, and no service is recommended: one of sparks has services. Move a host there when it has some.",
        ]
        lines += [f"{OTHERS}:", *_group_lines(rest, picks, cables)]
        lines += ["  vars:", f"    ansible_user: {_scalar(user)}"] if user else []
    group = ["---"]
    group += (
        [f"ansible_user: {_scalar(user)}"]
        if user
        else ["# Whom ssh logs in as: ansible_user: NAME. Left to your ssh settings here."]
    )
    group += [
        "# Without passwordless sudo: run with -K, which asks once.",
        "",
        "# The engines listen on loopback. For hosts that spark_allow_from names they listen on the Spark's own address, with a key:",
        "# spark_defaults:",
        "#   api_key_file: .secrets/api_key",
    ]
    return {HOSTS: "\n".join(lines) + "\n", VARIABLES: "\n".join(group) + "\n"}


def _group_lines(machines: Sequence[Machine], picks: Mapping[str, Pick], cables: Cables) -> list[str]:
    if not machines:
        return ["  hosts: {}"]
    return [
        "  hosts:",
        *(line for machine in machines for line in _host_lines(machine, picks.get(machine.name), cables)),
    ]


def _host_lines(machine: Machine, pick: Pick | None, cables: Cables) -> list[str]:
    lines = [f"    {_scalar(machine.name)}:"]
    lines += [f"      # {_line(said)}" for said in describe(machine, cables)]
    found = variables(machine, pick)
    services = found.pop("spark_services", None)
    lines += [f"      {key}: {_scalar(value)}" for key, value in found.items()]
    if services:
        lines.append("      spark_services:")
        for service in services:
            lines += [
                f"        - name: {_scalar(service['name'])}",
                f"          recipe: {_scalar(service['recipe'])}",
                f"          port: {service['port']}",
            ]
    elif serves(machine):
        lines += [
            "      # To take over what serves here, describe it with dgxspark.vllm.import, and run dgxspark.vllm.adopt.",
        ]
    elif not found:
        lines[0] += " {}"
    return lines


def _span_lines(cables: Cables, spans: Mapping[int, Pick]) -> list[str]:
    lines = []
    for group in cables.groups():
        lines.append(
            f"# Joined by QSFP: {', '.join(group)}. One model over all of them: docs/pair.md and docs/cluster.md."
        )
        pick = spans.get(len(group))
        if pick:
            lines.append(
                f"# For {len(group)} Sparks the recipes have {pick.recipe}, published with {pick.rate:g} tokens/s."
            )
    return lines


def _scalar(value: Any) -> str:
    """A text as YAML, quoted where it could be read as something else."""
    text = str(value)
    return text if isinstance(value, int) or _PLAIN.fullmatch(text) or text in ("local",) else json.dumps(text)


def _line(text: Any, most: int = 150) -> str:
    line = " ".join(printable(str(text)).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def describe(machine: Machine, cables: Cables) -> list[str]:
    """Say what a Spark is, in a few lines: hardware and versions, cables, what runs, what is not known."""
    facts = machine.facts
    gpu, memory, dgx = facts.get("gpu") or {}, facts.get("memory") or {}, facts.get("dgx_os") or {}
    total, free = memory.get("total_gib"), memory.get("available_gib")
    parts = [
        str(facts["machine"].get("product_name") or "DGX Spark"),
        f"driver {gpu['driver_version']}" if gpu.get("driver_version") else "driver not known",
        f"DGX OS {dgx['version']}" if dgx.get("version") else "",
        f"{free:.1f} of {total:.1f} GiB free" if _figures(total, free) else "memory not known",
        f"Docker {(facts.get('docker') or {}).get('version')}"
        if (facts.get("docker") or {}).get("version")
        else "Docker not known",
    ]
    lines = [", ".join(part for part in parts if part)]
    joined = cables.of(machine.name)
    if joined:
        lines.append("QSFP " + ", ".join(joined))
    elif machine.heard is not None:
        lines.append("QSFP: no cable to another Spark of this list")
    running = serves(machine)
    lines += [f"runs {each}" for each in running]
    used = [
        f"{entry.get('name')} ({(entry.get('used_mib') or 0) / 1024:.1f} GiB)"
        for entry in gpu.get("processes") or []
        if isinstance(entry, dict) and isinstance(entry.get("used_mib"), (int, float))
    ]
    if used and not running:
        lines.append(f"on the GPU: {', '.join(used)}")
    return [*lines, *machine.notes]


def _figures(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def differences(path: str, old: str, new: str) -> str:
    """Return the unified diff of a file that is there and what would be written."""
    return "".join(
        difflib.unified_diff(
            old.splitlines(keepends=True), new.splitlines(keepends=True), f"{path} (yours, kept)", f"{path} (found now)"
        )
    )


def table(machines: Sequence[Machine], cables: Cables, picks: Mapping[str, Pick]) -> str:
    """Return what was found: Sparks in a table, then cables, other machines, and what is not known with the reason."""
    sparks = sorted((each for each in machines if each.state == "spark"), key=lambda each: natural(each.name))
    lines = []
    if sparks:
        header = ("name", "reached by", "found by", "driver", "memory", "serves", "recommended")
        rows = []
        for each in sparks:
            pick = picks.get(each.name)
            memory = (each.facts.get("memory") or {}).get("available_gib")
            rows.append(
                (
                    each.name,
                    each.target.address,
                    each.target.by,
                    str((each.facts.get("gpu") or {}).get("driver_version") or "not known"),
                    f"{memory:.1f} GiB free" if _figures(memory) else "not known",
                    ", ".join(serves(each)) or ("-" if each.launches is not None else "not known"),
                    f"{pick.recipe}, {pick.rate:g} tokens/s published" if pick else "-",
                )
            )
        lines += [tables.table(header, [[_line(cell) for cell in row] for row in rows]), ""]
        lines += [f"{each.name}: {_line(note)}" for each in sparks for note in each.notes]
        lines += [f"{each.name}: QSFP {said}" for each in sparks for said in cables.of(each.name)]
        lines += [f"{each.name}: the same as {', '.join(each.also)}" for each in sparks if each.also]
        lines += list(cables.strangers)
    lines += _others(machines)
    return "\n".join(lines)


def _others(machines: Sequence[Machine]) -> list[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for each in machines:
        if each.state != "spark":
            groups.setdefault((each.state, each.why), []).append(each.target.address)
    words = {"other": "no Spark", "unknown": "not known"}
    return [
        f"{words[state]}: {names_text(addresses)}{f' ({len(addresses)})' if len(addresses) > 1 else ''}: {_line(why, 400)}"
        for (state, why), addresses in sorted(groups.items())
    ]
