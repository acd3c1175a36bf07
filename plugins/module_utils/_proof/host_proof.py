# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof of a host's services: ask each one, compare its memory and kernels with the plan, write its receipt."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from .._common.findings import Finding
from .._host import nvidia_smi, units
from .._host.host_view import HostView
from .._runtime import command, engine_client, start_stages, state_file
from .._speed.judge import read_expected
from . import (
    engines,
    fast_path,
    kv_probe,
    readiness,
    receipt_file,
    receipts,
    residency,
    service_arguments,
    speed_probe,
    speed_proof,
)

MEASURED = ("ttft_seconds", "decode_tokens_per_second", "server_version", "max_model_len", "tool_turns")
METRICS_TIMEOUT = 10.0  # s
AT_ONCE_SECONDS = 30.0  # for running services that were proved before; slower ones are left to the whole proof
INTERVAL = 2.0  # s
START_ROUNDING = 1.0  # s; the stages of a start are rounded before they are added up

ARGUMENTS: dict[str, Any] = {
    "services": {"type": "list", "elements": "dict", "required": True},
    "timeout": {"type": "float", "default": 120},
    "receipts_dir": {"type": "path", "default": ""},
    "os_reserve_gib": {"type": "float"},
    "root": {"type": "path", "default": "/"},
    "run_dir": {"type": "path", "default": "/run/dgxspark"},
    "state_dir": {"type": "path", "default": "/var/lib/dgxspark"},
}
"""The arguments of M(dgxspark.vllm.service_proof) in Ansible's form; C(Task.read) reads them."""


@dataclass(frozen=True)
class ProvedService(engines.Engine):
    """A service to prove: its engine, the questions to it, and its deployment for the receipt.

    url: None for ranks other than the first, which answer no requests. checks: of M(dgxspark.vllm.endpoint_ready). speed: as the plan
    predicts it. kv_tiers: as the plan has them, None without. parts: containers of a rank.
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
    speed: Mapping[str, Any]
    on_demand: Mapping[str, Any] | None
    kv_tiers: Mapping[str, Any] | None
    parts: Sequence[Mapping[str, Any]]

    @property
    def deployed(self) -> dict[str, Any]:
        """The deployment as a receipt records it."""
        deployed = {key: getattr(self, key) for key in ("image", "model", "vllm_version", "argv", "env")}
        if len(self.parts) > 1:
            deployed["ray_argv"] = self.parts[0]["argv"]
        return deployed

    def question(self, timeout: float) -> readiness.Question:
        """Return the question to the service; timeout in seconds, longer for a service on demand, which has to start first."""
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
    """The services to prove on a host, and its folders; receipts_dir: empty for no receipts."""

    services: Sequence[ProvedService]
    timeout: float  # s
    receipts_dir: str
    os_reserve_gib: float | None
    root: str
    run_dir: str
    state_dir: str

    @classmethod
    def read(cls, params: Mapping[str, Any]) -> Task:
        """Return the task of the arguments of a module."""
        values = {option.name: params[option.name] for option in fields(cls)}
        services = service_arguments.complete(params["services"])
        return cls(**{**values, "services": [ProvedService.read(service) for service in services]})


@dataclass(frozen=True)
class Proof:
    """The results of a proof: answers and engines by service name, the memory term of everything else, and all findings.

    speeds: records of C(speed_proof.prove) by the name of a measured service. kv_tiers: records of C(kv_probe.Probe) likewise.
    """

    services: Sequence[ProvedService]
    answers: Mapping[str, readiness.Answer]
    engines: Mapping[str, engines.Looked]
    system: residency.Term
    findings: Sequence[Finding]
    speeds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    kv_tiers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Silent(Exception):
    """Services did not answer; the text names them. C(answers) has the answers of all services, as in C(Proof)."""

    def __init__(self, text: str, answers: Mapping[str, readiness.Answer]) -> None:
        super().__init__(text)
        self.answers = answers


def rests(module: Any, receipts_dir: str, asks: command.Run, service: ProvedService) -> bool:
    """Tell whether a service on demand is stopped and its present deployment was proved; other ranks follow the first one."""
    if not service.on_demand or not (receipts_dir or service.rank):
        return False
    with command.failing(module):
        shown = units.ask(asks, [service.unit])
    # An earlier proof does not excuse a failed start or a missing unit.
    if not shown or (shown[0]["load_state"], shown[0]["active_state"]) != ("loaded", "inactive"):
        return False
    if service.rank:
        return True  # no question to this host starts it; the first rank answers for all
    previous, _text = receipt_file.read_previous(module, f"{receipts_dir}/{service.name}.json")
    return previous is not None and previous.deployed == service.deployed


def new_receipt(
    service: ProvedService,
    answer: readiness.Answer,
    looked: engines.Looked,
    speed: Mapping[str, Any] | None,
    kv_tiers: Mapping[str, Any] | None,
    previous: receipts.Receipt | None,
) -> tuple[receipts.Receipt, list[Finding]]:
    """Return the receipt that follows the previous one, and findings about worse figures. speed, kv_tiers: None if not measured."""
    figures = dict(looked.measured)
    if service.url:
        figures.update({key: answer.figures.get(key) for key in MEASURED}, checks=answer.figures.get("checks") or {})
    cluster = service.cluster or None
    receipt = receipts.build(
        *(service.name, service.deployed, figures, previous, cluster, service.rank),
        *(looked.record, looked.start, speed, kv_tiers),
    )
    return receipt, receipts.compare(previous, receipt)


def look(module: Any, task: Task, explain: readiness.Explain | None = None) -> Proof:
    """Ask the services, compare memory and kernels with the plan; no receipt is written. Raises Silent if one did not answer."""
    asks = command.reader(together=math.inf)
    services = [service for service in task.services if not rests(module, task.receipts_dir, asks, service)]
    answers, failures = {}, []
    for service in services:
        answers[service.name], why = readiness.wait(asks, service.question(task.timeout), module.check_mode, explain)
        failures += [why] if why else []
    if failures:
        raise Silent("\n".join(failures), answers)

    # With a service on demand, unlisted services may run; their memory would count as memory of the system.
    reserve = None if any(service.on_demand for service in services) else task.os_reserve_gib
    with command.failing(module):
        looked, system, findings = engines.look(
            HostView(command.runner(module), task.root), services, reserve, METRICS_TIMEOUT, Path(task.run_dir)
        )
    return Proof(services, answers, looked, system, findings)


def measure_speeds(module: Any, task: Task, proof: Proof) -> Proof:
    """Measure the speed of proved services one after the other, and judge it; not in check mode.

    Only a whole proof does that: it takes seconds for each service, and an unchanged host is proved in one.
    """
    speeds: dict[str, Mapping[str, Any]] = {}
    findings = list(proof.findings)
    for service in _measurable(module, proof):
        record, more = _measure_speed(module, task, proof, service)
        speeds.update({service.name: record} if record else {})
        findings += more
    return replace(proof, speeds=speeds, findings=findings)


def _measurable(module: Any, proof: Proof) -> list[ProvedService]:
    """Return the ready services that answer with tokens; none in check mode."""
    if module.check_mode:
        return []
    tokens = {name for name, answer in proof.answers.items() if answer.figures.get("api") in speed_proof.TOKEN_APIS}
    return [item for item in proof.services if item.name in tokens and item.url and proof.answers[item.name].ready]


def _previous_receipt(module: Any, task: Task, service: ProvedService) -> receipts.Receipt | None:
    """Return the receipt of an earlier proof of the same deployment of a service, None without one."""
    path = f"{task.receipts_dir}/{service.name}.json"
    previous = receipt_file.read_previous(module, path)[0] if task.receipts_dir else None
    return previous if previous and previous.deployed == service.deployed else None


def _client(service: ProvedService) -> engine_client.Client:
    key_file = service.settings.get("api_key_file")
    return engine_client.Client(str(service.url), engine_client.read_api_key(key_file), key_file or "")


def _measure_speed(
    module: Any, task: Task, proof: Proof, service: ProvedService
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Measure and judge one service; arguments as C(measure_speeds), results as C(speed_proof.prove)."""
    answer, looked = proof.answers[service.name], proof.engines[service.name]
    expected = read_expected(service.speed.get("proof") or {})
    # /metrics asks for no key; asking a stopped service on demand would start it.
    neighbours = [other for other in proof.services if other.name != service.name and not other.on_demand]
    probe = speed_probe.Probe(
        _client(service),
        str(answer.figures["model"]),
        expected.streams,
        answer.figures.get("max_model_len"),
        [engine_client.Client(other.metrics_url) for other in neighbours if other.metrics_url],
        partial(_clock, command.reader(together=math.inf)),
        expected.prefill_tokens,
    )
    not_judged = fast_path.ON_CPU if looked.runs.device == "cpu" else ""
    if task.root != "/":
        not_judged = f"the host is simulated (its /proc is below {task.root}), so its rates mean nothing"
    previous, signs = _previous_receipt(module, task, service), speed_proof.signs_of(looked.runs, looked.checks)
    earlier = previous.speed if previous else None
    return speed_proof.prove(service.name, expected, probe.measure, earlier, signs, not_judged)


def measure_kv_tiers(module: Any, task: Task, proof: Proof) -> Proof:
    """Measure what the KV cache files of proved services are worth; not in check mode."""
    records: dict[str, Mapping[str, Any]] = {}
    findings = list(proof.findings)
    for service in _measurable(module, proof):
        if not service.kv_tiers:
            continue
        answer, previous = proof.answers[service.name], _previous_receipt(module, task, service)
        start = state_file.read(Path(task.run_dir, "starts", f"{service.unit}.json")) or {}
        probe = kv_probe.Probe(
            _client(service),
            str(answer.figures["model"]),
            answer.figures.get("max_model_len"),
            service.kv_tiers.get("prompt_tokens"),
            proof.engines[service.name].measured.get("kv_cache_tokens"),
            str(start.get("invocation") or ""),
        )
        records[service.name] = record = probe.measure(previous.kv_tiers if previous else None)
        findings += kv_probe.findings(service.name, record)
    return replace(proof, kv_tiers=records, findings=findings)


def _clock(asks: command.Run) -> float | None:
    """Return the present clock of the GPU in MHz, None if it is not known."""
    try:
        return (nvidia_smi.load(asks) or {}).get("sm_clock_mhz")
    except command.NoAnswer:
        return None


def keep(module: Any, task: Task, proof: Proof) -> dict[str, Any]:
    """Write the receipts, and report the findings as warnings."""
    receipts_kept = _keep_receipts(module, task, proof)
    for finding in proof.findings:
        if finding.severity != "info":
            module.warn(f"{finding.message} {finding.fix}")
    starts = {service.name: last_start(task, service) for service in proof.services}
    result: dict[str, Any] = {
        "changed": any(entry["changed"] for entry in receipts_kept.values()),
        "answers": {name: answer.to_dict() for name, answer in proof.answers.items()},
        "services": {name: engine.to_dict() for name, engine in proof.engines.items()},
        "system": asdict(proof.system),
        "findings": [finding.to_dict() for finding in proof.findings],
        "speeds": {name: dict(record) for name, record in proof.speeds.items()},
        "kv_tiers": {name: kv_probe.describe(record) for name, record in proof.kv_tiers.items()},
        "receipts": receipts_kept,
        "starts": {name: start for name, start in starts.items() if start is not None},
    }
    if module._diff:
        result["diff"] = [entry.pop("diff") for entry in receipts_kept.values()]
    return result


def _keep_receipts(module: Any, task: Task, proof: Proof) -> dict[str, dict[str, Any]]:
    """Write the receipts if the task has a folder for them; returns the results by service."""
    receipts_kept: dict[str, dict[str, Any]] = {}
    for service in proof.services if task.receipts_dir else []:
        name = service.name
        measured = (proof.speeds.get(name), proof.kv_tiers.get(name))
        make = partial(new_receipt, service, proof.answers[name], proof.engines[name], *measured)
        receipts_kept[name] = receipt_file.keep(module, f"{task.receipts_dir}/{name}.json", make)
    return receipts_kept


def last_start(task: Task, service: ProvedService) -> dict[str, Any] | None:
    """Return C(seconds), C(stages), C(said) and C(age_seconds) of a running service's last start, None if its record is not of it."""
    record = state_file.read(Path(task.run_dir, "starts", f"{service.unit}.json"))
    starts = start_stages.checked(state_file.read(Path(task.state_dir, "starts", f"{service.name}.json")))
    try:
        began, ready = float((record or {})["began"]), float((record or {})["ready"]["clock"])
    except (KeyError, TypeError, ValueError):
        return None
    if not starts or abs(ready - began - starts[-1]["seconds"]) > START_ROUNDING:
        return None
    last = {key: starts[-1][key] for key in ("seconds", "stages", "said")}
    return {**last, "age_seconds": round(max(time.monotonic() - ready, 0.0), 1)}


class _Failed(Exception):
    """The message with which the module would have failed."""


class _Quietly:
    """A module that raises instead of failing and collects its warnings; the whole proof repeats and reports failures."""

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
    """Prove services that are probably healthy, in little time; the whole proof explains failures.

    Running services are proved together; services on demand count as proved only if C(rests) is true. Any problem prevents all receipts.

    :returns: C({proved, changed}); after a proof with C(answers), C(receipts) and, in diff mode, C(diff); else with C(unproved), the reason
    """
    quietly, asks = _Quietly(module), command.reader(together=math.inf)
    try:
        on_demand = [service for service in task.services if service.on_demand]
        awake = [service.name for service in on_demand if not rests(quietly, task.receipts_dir, asks, service)]
        if awake:  # a proof would ask it, and perhaps start it
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
