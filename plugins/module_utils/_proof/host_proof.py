# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof of a host's services: each is asked, what it took is compared with its plan, both are kept in its receipt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from .._common.findings import Finding
from .._host import units
from .._host.host_view import HostView
from .._runtime import command
from . import engines, readiness, receipt_file, receipts, residency, service_arguments

MEASURED = ("ttft_seconds", "decode_tokens_per_second", "server_version", "max_model_len", "tool_turns")
METRICS_TIMEOUT = 10.0  # s
AT_ONCE_SECONDS = 30.0  # for one that runs and was proved before; the whole proof gives a slower one all its time
INTERVAL = 2.0  # s

ARGUMENTS: dict[str, Any] = {
    "services": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            **service_arguments.SERVICE,
            "url": {"type": "str"},
            "served_model_name": {"type": "str"},
            "settings": {"type": "dict", "default": {}},
            "checks": {"type": "dict", "default": {}},
            "image": {"type": "raw"},
            "model": {"type": "raw"},
            "vllm_version": {"type": "str"},
            "argv": {"type": "list", "elements": "str", "default": []},
            "env": {"type": "raw"},
            "fingerprint": {"type": "str"},
            "on_demand": {"type": "dict"},
            "parts": {"type": "list", "elements": "dict", "default": []},
        },
    },
    "timeout": {"type": "float", "default": 120},
    "receipts_dir": {"type": "path", "default": ""},
    "os_reserve_gib": {"type": "float"},
    "root": {"type": "path", "default": "/"},
    "run_dir": {"type": "path", "default": "/run/dgxspark"},
}
"""What M(dgxspark.vllm.service_proof) is told, as Ansible has arguments; C(Task.read) reads it."""


@dataclass(frozen=True)
class ProvedService(engines.Engine):
    """A service to prove: its engine, what is asked of it, and what a receipt says that is deployed.

    url: None for a rank behind the first one, which answers no requests. checks: of M(dgxspark.vllm.endpoint_ready). parts: containers of a rank.
    """

    url: str | None
    served_model_name: str | None
    settings: Mapping[str, Any]
    checks: Mapping[str, Any]
    image: Any
    model: Any
    vllm_version: str | None
    argv: Sequence[str]
    env: Any
    on_demand: Mapping[str, Any] | None
    parts: Sequence[Mapping[str, Any]]

    @property
    def deployed(self) -> dict[str, Any]:
        """What a receipt says of what is deployed."""
        deployed = {key: getattr(self, key) for key in ("image", "model", "vllm_version", "argv", "env")}
        if len(self.parts) > 1:
            deployed["ray_argv"] = self.parts[0]["argv"]
        return deployed

    def question(self, timeout: float) -> readiness.Question:
        """Return what it is asked, for so many seconds; what requests start has the time of its start."""
        if self.on_demand:
            timeout = max(timeout, float(self.settings.get("start_deadline_seconds") or 0))
        return readiness.Question(
            url=self.url or None,
            model=self.served_model_name,
            api_key_file=self.settings.get("api_key_file") or None,
            unit=self.unit,
            container=self.container,
            on_demand=bool(self.on_demand),
            timeout=timeout,
            interval=INTERVAL,
            requests=readiness.requests_of(self.checks),
        )


@dataclass(frozen=True)
class Task:
    """What is to be proved of a host, and where; receipts_dir: empty for no receipts."""

    services: Sequence[ProvedService]
    timeout: float  # s
    receipts_dir: str
    os_reserve_gib: float | None
    root: str
    run_dir: str

    @classmethod
    def read(cls, params: Mapping[str, Any]) -> Task:
        """Return the task of the arguments of a module."""
        values = {field.name: params[field.name] for field in fields(cls)}
        return cls(**{**values, "services": [ProvedService.read(service) for service in params["services"]]})


@dataclass(frozen=True)
class Proof:
    """What was found of the services that were C(asked): their answers and engines by name, the term of everything else, and all findings."""

    asked: Sequence[ProvedService]
    answers: Mapping[str, readiness.Answer]
    engines: Mapping[str, engines.Looked]
    system: residency.Term
    findings: Sequence[Finding]


class Silent(Exception):
    """Services did not answer; C(answers) are of all, as C(Proof) has them, the text is about those."""

    def __init__(self, text: str, answers: Mapping[str, readiness.Answer]) -> None:
        super().__init__(text)
        self.answers = answers


def rests(module: Any, receipts_dir: str, asks: command.Run, service: ProvedService) -> bool:
    """Tell whether a service on demand does not run, and was proved as what is deployed; a rank behind the first one goes with that one.

    :param module: the Ansible module
    :param receipts_dir: folder of the receipts, empty for none
    :param asks: runs a program that only looks
    :param service: to be proved
    :returns: whether it is left alone
    """
    if not service.on_demand or not (receipts_dir or service.rank):
        return False
    with command.failing(module):
        shown = units.ask(asks, [service.unit])
    # One whose last start failed, or whose unit is gone, is not well for having been proved before.
    if not shown or (shown[0]["load_state"], shown[0]["active_state"]) != ("loaded", "inactive"):
        return False
    if service.rank:
        return True  # no question to this host starts it; the first rank answers for all
    previous, _text = receipt_file.read_previous(module, f"{receipts_dir}/{service.name}.json")
    return previous is not None and previous.deployed == service.deployed


def new_receipt(
    service: ProvedService, answer: readiness.Answer, looked: engines.Looked, previous: receipts.Receipt | None
) -> tuple[receipts.Receipt, list[Finding]]:
    """Return the receipt after the one before, and what got worse.

    :param service: that was proved; a rank behind the first one has answered nothing
    :param answer: of C(readiness.wait)
    :param looked: of C(engines.look)
    :param previous: the receipt before, None for the first
    :returns: receipt, and findings
    """
    figures = dict(looked.measured)
    if service.url:
        figures.update({key: answer.figures.get(key) for key in MEASURED}, checks=answer.figures.get("checks") or {})
    cluster = service.cluster or None
    receipt = receipts.build(
        service.name, service.deployed, figures, previous, cluster, service.rank, looked.record, looked.start
    )
    return receipt, receipts.compare(previous, receipt)


def look(module: Any, task: Task) -> Proof:
    """Ask the services and compare what they took and run with their plan; no receipt is written.

    :param module: the Ansible module, which fails where a program gives no answer
    :param task: what is to be proved
    :returns: what was found
    :raises Silent: where one did not answer, after the others were asked
    """
    asks = command.reader(together=math.inf)
    services = [service for service in task.services if not rests(module, task.receipts_dir, asks, service)]
    answers, failures = {}, []
    for service in services:
        answers[service.name], why = readiness.wait(asks, service.question(task.timeout), module.check_mode)
        failures += [why] if why else []
    if failures:
        raise Silent("\n".join(failures), answers)

    # Beside one on demand others may run that are not asked about here; the system does not hold their memory.
    reserve = None if any(service.on_demand for service in services) else task.os_reserve_gib
    with command.failing(module):
        looked, system, findings = engines.look(
            HostView(command.runner(module), task.root), services, reserve, METRICS_TIMEOUT, Path(task.run_dir)
        )
    return Proof(services, answers, looked, system, findings)


def keep(module: Any, task: Task, proof: Proof) -> dict[str, Any]:
    """Write the receipts, and say as warnings what was found.

    :param module: the Ansible module, which may be in check mode
    :param task: what was to be proved
    :param proof: of C(look)
    :returns: the result of M(dgxspark.vllm.service_proof)
    """
    receipts_kept: dict[str, dict[str, Any]] = {}
    for service in proof.asked if task.receipts_dir else []:
        make = partial(new_receipt, service, proof.answers[service.name], proof.engines[service.name])
        receipts_kept[service.name] = receipt_file.keep(module, f"{task.receipts_dir}/{service.name}.json", make)
    for finding in proof.findings:
        if finding.severity != "info":
            module.warn(f"{finding.message} {finding.fix}")
    result: dict[str, Any] = {
        "changed": any(entry["changed"] for entry in receipts_kept.values()),
        "answers": plain(proof.answers),
        "services": plain(proof.engines),
        "system": asdict(proof.system),
        "findings": [finding.to_dict() for finding in proof.findings],
        "receipts": receipts_kept,
    }
    if module._diff:
        result["diff"] = [entry.pop("diff") for entry in receipts_kept.values()]
    return result


def plain(results: Mapping[str, readiness.Answer | engines.Looked]) -> dict[str, dict[str, Any]]:
    """Return what was found of services as modules return it, by name."""
    return {name: result.plain() for name, result in results.items()}


class _Failed(Exception):
    """What would have failed the module."""


class _Quietly:
    """A module whose failure is an exception, and whose warnings wait: what it cannot do is done, and told, by another one."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.warnings: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def fail_json(self, msg: str, **_more: Any) -> None:
        raise _Failed(msg)


def prove_at_once(module: Any, task: Task) -> dict[str, Any]:
    """Prove services that are believed to be well, in little time; who is not is left to the whole proof, which tells why.

    Those that run are proved together, those that requests start only where they rest. No receipt is written where anything is wrong.

    :param module: the Ansible module
    :param task: what is to be proved
    :returns: C({proved, changed}), with C(answers), C(receipts) and, of a diff run, C(diff) where they were proved, else C(unproved), why not
    """
    quietly = _Quietly(module)
    try:
        awake = waking(quietly, task)
        if awake:
            return {"proved": False, "changed": False, "unproved": f"{', '.join(awake)}: requests start it"}
        running = [service for service in task.services if not service.on_demand]
        task = replace(task, services=running, timeout=min(task.timeout, AT_ONCE_SECONDS))
        proof = look(quietly, task)
        wrong = [finding.message for finding in proof.findings if finding.severity == "error"]
        if wrong:
            return {"proved": False, "changed": False, "unproved": "; ".join(wrong)}
        saved = keep(quietly, task, proof)
    except (_Failed, Silent) as failure:
        return {"proved": False, "changed": False, "unproved": str(failure)}
    for text in quietly.warnings:
        module.warn(text)
    return {"proved": True, **{key: saved[key] for key in ("changed", "answers", "receipts", "diff") if key in saved}}


def waking(module: Any, task: Task) -> list[str]:
    """Return the names of the services on demand that a proof would ask, and perhaps start.

    :param module: the Ansible module
    :param task: what is to be proved
    :returns: their names
    """
    asks, cold = command.reader(together=math.inf), [service for service in task.services if service.on_demand]
    return [service.name for service in cold if not rests(module, task.receipts_dir, asks, service)]
