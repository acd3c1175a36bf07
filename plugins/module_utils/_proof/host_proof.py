# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof of a host's services: each is asked, what it took is compared with its plan, both are kept in its receipt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .._host import units
from .._runtime import command
from . import engines, readiness, receipt_file, receipts

MEASURED = ("ttft_seconds", "decode_tokens_per_second", "server_version", "max_model_len")
METRICS_TIMEOUT = 10.0  # s
AT_ONCE_SECONDS = 30.0  # for one that runs and was proved before; the whole proof gives a slower one all its time


def question(service: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Return what M(dgxspark.vllm.endpoint_ready) is to be asked of a service."""
    if service["on_demand"]:
        timeout = max(timeout, float(service["settings"].get("start_deadline_seconds") or 0))
    return {
        **readiness.DEFAULTS,
        "on_demand": bool(service["on_demand"]),
        "url": service["url"] or None,
        "model": service["served_model_name"],
        "api_key_file": service["settings"].get("api_key_file") or None,
        "timeout": timeout,
        "unit": service["unit"],
        "container": service["container"],
        "checks": service["checks"],
    }


def deployed(service: dict[str, Any]) -> dict[str, Any]:
    """Return what a receipt says of what is deployed."""
    found = {key: service[key] for key in ("image", "model", "vllm_version", "argv", "env")}
    if len(service["parts"]) > 1:
        found["ray_argv"] = service["parts"][0]["argv"]
    return found


def rests(module: Any, receipts_dir: str, asks: command.Run, service: dict[str, Any]) -> bool:
    """Tell whether a service on demand does not run, and was proved as what is deployed; a rank behind the first one goes with that one.

    :param module: the Ansible module
    :param receipts_dir: folder of the receipts, empty for none
    :param asks: runs a program that only looks
    :param service: as C(ARGUMENTS) has it
    :returns: whether it is left alone
    """
    if not service["on_demand"] or not (receipts_dir or service["rank"]):
        return False
    with command.failing(module):
        shown = units.ask(asks, [service["unit"]])
    # One whose last start failed, or whose unit is gone, is not well for having been proved before.
    if not shown or (shown[0]["load_state"], shown[0]["active_state"]) != ("loaded", "inactive"):
        return False
    if service["rank"]:
        return True  # no question to this host starts it; the first rank answers for all
    previous, _text = receipt_file.read_previous(module, f"{receipts_dir}/{service['name']}.json")
    return previous is not None and previous["deployed"] == deployed(service)


def measured(service: dict[str, Any], answer: dict[str, Any], engine: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a receipt; a rank behind the first one has answered nothing.

    :param service: as C(ARGUMENTS) has it
    :param answer: of C(readiness.wait)
    :param engine: of C(engines.look)
    :returns: figures by name, as C(receipts.FIGURES) has their units
    """
    if not service["url"]:
        return dict(engine["measured"])
    return {
        **engine["measured"],
        **{key: answer.get(key) for key in MEASURED},
        "checks": answer.get("checks") or {},
    }


def new_receipt(
    service: dict[str, Any], figures: dict[str, Any], looked: dict[str, Any], previous: dict[str, Any] | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the receipt after the one before, and what got worse.

    :param service: as C(ARGUMENTS) has it
    :param figures: of C(measured)
    :param looked: of C(engines.look), with the receipt's part of the fast path and what the start took
    :param previous: the receipt before, None for the first
    :returns: receipt, and findings as plain dicts
    """
    receipt = receipts.build(
        service["name"],
        deployed(service),
        figures,
        previous,
        service["cluster"] or None,
        service["rank"],
        looked["fast_path"],
        looked["start"],
    )
    return receipt, receipts.compare(previous, receipt)


ARGUMENTS: dict[str, Any] = {
    "services": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            **engines.SERVICE,
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


class Silent(Exception):
    """Services did not answer; C(answers) are of all, the text is about those."""

    def __init__(self, text: str, answers: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.answers = answers


def look(module: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the services and compare what they took and run with their plan; no receipt is written.

    :param module: the Ansible module, which fails where a program gives no answer
    :param params: as C(ARGUMENTS) has them
    :returns: C({asked, answers, services, system, findings}); asked: those that C(answers) are of
    :raises Silent: where one did not answer, after the others were asked
    """
    asks = command.reader(together=math.inf)
    services = [_named(service) for service in params["services"]]
    services = [service for service in services if not rests(module, params["receipts_dir"], asks, service)]
    answers, failures = {}, []
    for service in services:
        answers[service["name"]], why = readiness.wait(asks, question(service, params["timeout"]), module.check_mode)
        failures += [why] if why else []
    if failures:
        raise Silent("\n".join(failures), answers)

    # Beside one on demand others may run that are not asked about here; the system does not hold their memory.
    reserve = None if any(service["on_demand"] for service in services) else params["os_reserve_gib"]
    with command.failing(module):
        looked, system, findings = engines.look(
            command.runner(module), services, reserve, METRICS_TIMEOUT, params["root"], Path(params["run_dir"])
        )
    return {"asked": services, "answers": answers, "services": looked, "system": system, "findings": findings}


def keep(module: Any, params: Mapping[str, Any], proof: Mapping[str, Any]) -> dict[str, Any]:
    """Write the receipts, and say as warnings what was found.

    :param module: the Ansible module, which may be in check mode
    :param params: as C(ARGUMENTS) has them
    :param proof: of C(look)
    :returns: the result of M(dgxspark.vllm.service_proof)
    """
    kept: dict[str, dict[str, Any]] = {}
    for service in proof["asked"] if params["receipts_dir"] else []:
        name = service["name"]
        figures = measured(service, proof["answers"][name], proof["services"][name])
        make = partial(new_receipt, service, figures, proof["services"][name])
        kept[name] = receipt_file.keep(module, f"{params['receipts_dir']}/{name}.json", make)
    for finding in proof["findings"]:
        if finding["severity"] != "info":
            module.warn(f"{finding['message']} {finding['fix']}")
    result: dict[str, Any] = {
        "changed": any(entry["changed"] for entry in kept.values()),
        **{key: proof[key] for key in ("answers", "services", "system", "findings")},
        "receipts": kept,
    }
    if module._diff:
        result["diff"] = [entry.pop("diff") for entry in kept.values()]
    return result


def _named(service: Mapping[str, Any]) -> dict[str, Any]:
    """Return a service with its unit and its container."""
    return {
        **service,
        "unit": service["unit"] or f"spark-{service['name']}.service",
        "container": service["container"] or f"spark-{service['name']}",
    }


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


def prove_at_once(module: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Prove services that are believed to be well, in little time; who is not is left to the whole proof, which tells why.

    Those that run are proved together, those that requests start only where they rest. No receipt is written where anything is wrong.

    :param module: the Ansible module
    :param params: as C(ARGUMENTS) has them
    :returns: C({proved, changed}), with C(answers), C(receipts) and, of a diff run, C(diff) where they were proved, else C(unproved), why not
    """
    quietly = _Quietly(module)
    params = {**params, "timeout": min(params["timeout"], AT_ONCE_SECONDS)}
    try:
        awake = waking(quietly, params["receipts_dir"], params["services"])
        if awake:
            return {"proved": False, "changed": False, "unproved": f"{', '.join(awake)}: requests start it"}
        running = {**params, "services": [service for service in params["services"] if not service["on_demand"]]}
        proof = look(quietly, running)
        wrong = [finding["message"] for finding in proof["findings"] if finding["severity"] == "error"]
        if wrong:
            return {"proved": False, "changed": False, "unproved": "; ".join(wrong)}
        kept = keep(quietly, running, proof)
    except (_Failed, Silent) as failure:
        return {"proved": False, "changed": False, "unproved": str(failure)}
    for text in quietly.warnings:
        module.warn(text)
    return {"proved": True, **{key: kept[key] for key in ("changed", "answers", "receipts", "diff") if key in kept}}


def waking(module: Any, receipts_dir: str, services: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the services on demand that a proof would ask, and perhaps start.

    :param module: the Ansible module
    :param receipts_dir: folder of the receipts, empty for none
    :param services: as C(ARGUMENTS) has them
    :returns: their names
    """
    asks = command.reader(together=math.inf)
    named = [_named(service) for service in services if service["on_demand"]]
    return [service["name"] for service in named if not rests(module, receipts_dir, asks, service)]
