#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the status of all model servers of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_info
short_description: Report the status of all model servers of a host
version_added: 0.1.0
description:
  - Asks every service for a short completion and for its metrics, all at the same time, and never fails because one of
    them does not answer.
  - A service without O(services[].url), as the ranks behind the first one of an engine that spans hosts, is not asked.
  - Of the receipt of each service it reads whether its kernels were the expected ones at the last proof.
  - With O(host) it says what a table of a fleet needs of the host, too, so that one task is enough for it.
options:
  services:
    description: The services, as M(dgxspark.vllm.plan) returns them; only the listed keys are read.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the service.
        type: str
        required: true
      url:
        description: URL of the server. Left out or null for a rank that answers no requests.
        type: str
      model:
        description: Name of the model that has to be served.
        type: str
      api_key_file:
        description: File on the managed host with the API key.
        type: path
  timeout:
    description: Seconds that a service has for its answer.
    type: float
    default: 10
  receipts:
    description: Folder of the receipts.
    type: path
    default: /var/lib/dgxspark/receipts
  host:
    description: Whether to look at the units, the memory, the GPU memory of services and the guard of the host as well.
    type: bool
    default: false
    version_added: 0.1.0
  run_dir:
    description: Where the helper of the units keeps its records of starts, which are read for O(host).
    type: path
    default: /run/dgxspark
    version_added: 0.1.0
  settings:
    description: Folder with the settings of what is deployed, of which that of the guard is read for O(host).
    type: path
    default: /etc/dgxspark
    version_added: 0.1.0
  starts:
    description: Folder with what the last starts of services took, which is read for O(host).
    type: path
    default: /var/lib/dgxspark/starts
    version_added: 0.1.0
  root:
    description: Where C(/proc) is read for O(host). Simulated Sparks show their own there.
    type: path
    default: /
    version_added: 0.1.0
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
seealso:
  - module: dgxspark.vllm.endpoint_ready
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Query the services
  dgxspark.vllm.service_info:
    services:
      - name: heavy
        url: http://127.0.0.1:8001
        model: heavy
  become: true
  register: answers
"""

RETURN = r"""
services:
  description: One entry a service, in the order asked.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the service.
      type: str
      sample: heavy
    ready:
      description: Whether it gave a completion, null when it was not asked.
      type: bool
      sample: true
    stage:
      description: The last stage passed, or the one it is stuck in. V(unit) when it was not asked.
      type: str
      sample: completion
    error:
      description: What is wrong, empty when nothing is.
      type: str
      sample: ''
    kv_cache_usage:
      description: Share of the KV cache in use, 0 to 1, null when unknown.
      type: float
      sample: 0.03
    requests_running:
      description: Requests being served, null when unknown.
      type: int
      sample: 1
    requests_waiting:
      description: Requests in the queue, null when unknown.
      type: int
      sample: 0
    decode_tokens_per_second:
      description: What bench.yml measured last of what is deployed, null when it never did.
      type: float
      sample: 41.5
    decode_ratio:
      description: That by its baseline, null when the two are not comparable.
      type: float
      sample: 0.97
    fast_path:
      description: What the receipt says of its kernels, V(ok), V(N off) or V(-). Null without a receipt that says it.
      type: str
      sample: ok
host:
  description:
    - C(units), C(memory), C(resident) and C(guard) as M(dgxspark.vllm.spark_info) has them.
    - C(on_demand), of each service that requests start, what the program says that starts it, its C(state), C(idle_seconds) (V(null) while it works or
      does not run), C(waiting) (requests), C(pin) (V(warm), V(cold) or empty), C(why) (it is kept so, or a start failed).
    - C(starting), of each service whose unit starts, the C(stage) of the start, the C(percent) of it where the engine says it, the
      C(seconds) since the start began, and C(left_seconds) by its last starts; V(null) for what is not known.
    - C(causes), of each service whose unit failed or restarts again and again, the cause and the fix by its journal, where known.
  returned: with O(host)
  type: dict
  sample: {"units": [], "starting": {}, "causes": {}, "on_demand": {}, "memory": {"total_gib": 121.628, "available_gib": 22.064}, "resident": [], "guard": null}
"""

import calendar
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import parse_json
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import guard_account, machine, nvidia_smi
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import explain, readiness, receipts
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import (
    endpoint,
    metrics,
    pins,
    start_stages,
    state_file,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer, Run, noted, reader

SILENT_SECONDS = 60.0  # the program on demand writes four times as often
JOURNAL_LINES = 500
LOOK_SECONDS = 10.0  # that systemctl, docker or nvidia-smi may take
STARTED = "InvocationID,InactiveExitTimestampMonotonic"


def ask(service: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Ask one service for a token and for its figures."""
    if not service.get("url"):
        return {"name": service["name"], "ready": None, "stage": "unit", "error": "", **metrics.parse("")}
    answer = endpoint.wait_ready(
        service["url"],
        service.get("model"),
        endpoint.Requests(timeout=timeout, completion_timeout=timeout, max_tokens=1, measure=False),
        api_key_file=service.get("api_key_file"),
        timeout=timeout,
        interval=1,
    )
    try:
        # /metrics asks for no key.
        reply = endpoint.fetch(service["url"] + "/metrics", timeout=timeout)
        figures = metrics.parse(reply.body.decode("utf-8", "replace") if reply.status == 200 else "")
    except (OSError, ValueError):
        figures = metrics.parse("")
    return {
        "name": service["name"],
        "ready": bool(answer["ready"]),
        "stage": answer["stage"],
        "error": answer.get("error") or "",
        **figures,
    }


def fast_path_summary(folder: str, service: str) -> str | None:
    """What the receipt of a service says of its kernels, in a word."""
    try:
        receipt = parse_json(
            (Path(folder) / f"{service}.json").read_text(encoding="utf-8"), f"the receipt of {service}"
        )
        found = receipt["fast_path"]["summary"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return found if isinstance(found, str) else None


def benched(folder: str, name: str) -> dict[str, Any]:
    """Return what was measured last of a service, as its receipt has it."""
    try:
        found = receipts.load((Path(folder) / f"{name}.json").read_text(encoding="utf-8")).benchmark or {}
    except (OSError, ValueError):
        found = {}
    figure = None if found.get("stale") else found.get("decode_tokens_per_second")
    return {"decode_tokens_per_second": figure, "decode_ratio": found.get("ratio")}


def starting(run: Run, units: list[dict[str, Any]], names: list[str], run_dir: str, kept: str) -> dict[str, Any]:
    """Return how far each service is whose unit starts; one whose start cannot be looked at is left out.

    :param run: runs systemctl and journalctl
    :param units: of C(HostView.units)
    :param names: of the services that are asked about
    :param run_dir: where the helper of the units keeps its records
    :param kept: folder with what the last starts took
    :returns: how far each is, by name
    """
    wanted = {f"spark-{name}.service": name for name in names}
    found = {}
    for unit in units:
        name = wanted.get(unit["name"])
        if name is None or unit["active_state"] != "activating":
            continue
        try:
            rc, out, _err = run(["systemctl", "show", f"--property={STARTED}", "--", unit["name"]])
            said = dict(line.split("=", 1) for line in out.splitlines() if "=" in line) if rc == 0 else {}
            invocation, began = said.get("InvocationID", ""), said.get("InactiveExitTimestampMonotonic", "")
            if not invocation or not began.isdigit():
                continue
            rc, out, _err = run(start_stages.journal_argv(invocation))
        except NoAnswer:
            continue
        lines, _cursor = start_stages.read_journal(out if rc == 0 else "")
        record = state_file.read(Path(run_dir, "starts", f"{unit['name']}.json"))
        starts = start_stages.checked(state_file.read(Path(kept, f"{name}.json")))
        since = int(began) / 1e6
        found[name] = start_stages.under_way(record, invocation, since, starts, lines, time.monotonic())
    return found


def causes(run: Run, units: list[dict[str, Any]], names: list[str]) -> dict[str, str]:
    """Return why units failed, or restart again and again, by the journal.

    :param run: runs journalctl
    :param units: of C(HostView.units)
    :param names: of the services that are asked about
    :returns: cause and fix by the name of the service, for those whose cause is known
    """
    wanted = {f"spark-{name}.service": name for name in names}
    found = {}
    for unit in units:
        name = wanted.get(unit["name"])
        restarts = unit["active_state"] == "activating" and unit["n_restarts"]
        if name is None or not (restarts or unit["active_state"] == "failed"):
            continue
        answer = explain.explain(readiness.read_log(run, unit["name"], None, JOURNAL_LINES))
        if answer.is_known:
            found[name] = f"{answer.cause}. Fix: {answer.fix}"
    return found


def on_demand(told: dict[str, Any] | None, names: list[str], now: float) -> dict[str, Any]:
    """Return what the program that starts services on demand says of them; nothing where it has not said anything for a while.

    :param told: its state file
    :param names: of the services that are asked about
    :param now: seconds since 1970
    :returns: of each service that it names: C(state), C(idle_seconds) and C(waiting) (C(None) where it does not know), C(pin) and C(why)
    """
    try:
        fresh = (
            abs(now - calendar.timegm(time.strptime(str((told or {})["at"]), "%Y-%m-%dT%H:%M:%SZ"))) < SILENT_SECONDS
        )
        services = dict((told or {})["services"]) if fresh else {}
    except (KeyError, TypeError, ValueError):
        return {}
    found = {}
    for name in names:
        own = services.get(name)
        if not isinstance(own, dict):
            continue
        numbers = {key: own[key] if isinstance(own.get(key), int) else None for key in ("idle_seconds", "waiting")}
        pin = own.get("pin") if own.get("pin") in (pins.WARM, pins.COLD) else ""
        why = str(own.get("pin_why" if pin else "reason") or "")[: pins.MOST_TEXT]
        found[name] = {"state": str(own.get("state"))[:20], **numbers, "pin": pin, "why": " ".join(why.split())}
    return found


def look(run: Run, params: dict[str, Any]) -> dict[str, Any]:
    """Return the units, the memory, the GPU memory of services, the guard of this host, how far starts are, and who is idle."""
    unknown: dict[str, str] = {}
    root, etc, names = params["root"], params["settings"], [service["name"] for service in params["services"]]
    units = noted(unknown, [], HostView(run).units)
    found = {
        "units": units,
        "starting": starting(run, units, names, params["run_dir"], params["starts"]),
        "causes": causes(run, units, names),
        "on_demand": on_demand(state_file.read(Path(params["run_dir"], "on_demand/state.json")), names, time.time()),
        "memory": machine.read_memory(root),
        "resident": noted(unknown, [], resident, run, root),
        "guard": guard_account.account(
            state_file.read(Path(etc, guard_account.SETTINGS)), state_file.read(Path(guard_account.STATE))
        ),
    }
    return {**found, "unknown": unknown}


def resident(run: Run, root: str) -> list[dict[str, Any]]:
    """Return the GPU memory that services hold."""
    view = HostView(run, root)
    return nvidia_smi.resident(view.gpu(view.containers()), view.containers())


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "services": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "url": {"type": "str"},
                    "model": {"type": "str"},
                    "api_key_file": {"type": "path", "no_log": False},
                },
            },
            "timeout": {"type": "float", "default": 10},
            "receipts": {"type": "path", "default": "/var/lib/dgxspark/receipts"},
            "host": {"type": "bool", "default": False},
            "run_dir": {"type": "path", "default": "/run/dgxspark"},
            "settings": {"type": "path", "default": "/etc/dgxspark"},
            "starts": {"type": "path", "default": "/var/lib/dgxspark/starts"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    services = module.params["services"]
    with ThreadPoolExecutor(max_workers=max(len(services), 1)) as pool:
        answers = list(pool.map(lambda service: ask(service, module.params["timeout"]), services))
    for answer in answers:
        answer["fast_path"] = fast_path_summary(module.params["receipts"], answer["name"])
        answer.update(benched(module.params["receipts"], answer["name"]))
    host = {}
    if module.params["host"]:
        host = {"host": look(reader(LOOK_SECONDS, 2 * LOOK_SECONDS), module.params)}
    module.exit_json(changed=False, services=answers, **host)


if __name__ == "__main__":
    main()
