# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory budget of one node: the verdict, the settings of its services, and vLLM's error if a check fails.

A DGX Spark has one pool of memory for everything. vLLM asks for C(ceil(total x gpu-memory-utilization)) of it when it
starts, refuses when less is free at that moment, loads its weights, and cuts the remaining part of its request into the
KV cache. Several engines share the pool, so each must find its memory free at its turn B(and) at every later restart,
when all others are resident.

Some terms are known only as a range (C(_vllm/overheads.py)). A check that fails even when everything else is small
is an error; a check that depends on the range makes the verdict C(tight).

Every fix that a finding names was planned here before it is named: the same engine ran on the changed input, the finding
was gone and no new error had come.

C(memory_budget) is the only entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from .._common.findings import Finding, to_sentence
from . import learned
from .answered import ImageRefusal
from .budget_notes import (
    describe_minors,
    note_arguments,
    note_solved,
    note_source,
    note_unknown_version,
    note_version,
    report_refusal,
)
from .budget_result import judge_findings, memory_map, service_result, to_gib
from .causes import Judge, merge_causes
from .checks import (
    check_cache,
    check_free,
    check_node,
    find_oversized_buffer,
    note_buffers,
    report_oversized,
    without_buffer,
)
from .engine import NOT_COMPARED, Engine
from .fixes import Draft, FixCandidate, Report, describe_fix
from .host_memory import KV_BUFFER
from .kv_plan import PlanFailure
from .layers import Refusal
from .node_memory import Node, Service, count_at_once, solve
from .releases import parse_release
from .service_input import ANSWERED_ARGS, DEFAULT_SEQS, HOST_ARGS, Host, ServiceInput, read_params
from .service_memory import resolve


def _settle_service(node: Node, item: ServiceInput, service: Service) -> None:
    """Resolve a service with the numbers that were found for it: further defaults of vLLM follow them."""
    before, lowest = service.engine, service.sequences

    def settled() -> Engine:
        solution = {"max-model-len": service.length, "max-num-seqs": service.sequences}
        solved_args = {key: value for key, value in solution.items() if key in service.solved}
        return resolve(replace(item, starts=(), args={**item.args, **solved_args}))

    if not set(service.solved) & {"max-model-len", "max-num-seqs"}:
        return
    if before.sequences_auto and lowest:
        # Sampling for fewer takes less, so that the cache may hold some more than were found with vLLM's default.
        highest = DEFAULT_SEQS
        while lowest < highest:
            service.sequences = (lowest + highest + 1) // 2
            enough = count_at_once(node, service, settled())[0] >= service.sequences
            lowest, highest = (service.sequences, highest) if enough else (lowest, service.sequences - 1)
        service.sequences = lowest
    service.engine = replace(settled(), length_auto=before.length_auto, sequences_auto=before.sequences_auto)


def _judge_node(
    host: Host, items: Sequence[ServiceInput], unbuffered: frozenset[str] = frozenset()
) -> tuple[Node, Report]:
    """Solve open settings and check everything; findings have no fixes yet.

    A buffer of offloaded KV blocks that does not fit is one finding; everything else is solved and checked without it.

    :param unbuffered: services whose buffers of that kind are left out
    """
    report = Report()
    services = _resolve_services(items, report, unbuffered)
    node = Node(host, services)
    solve(node)
    oversized = find_oversized_buffer(node)
    if oversized:
        buffers = {service.name: service.engine.buffers for service in services}
        node, report = _judge_node(host, items, unbuffered | {oversized})
        service = next(candidate for candidate in node.services if candidate.name == oversized)
        buffer = next(candidate for candidate in buffers[oversized] if candidate.name == KV_BUFFER)
        report_oversized(report, node, service, buffer)
        service.engine = replace(service.engine, buffers=(*service.engine.buffers, buffer))
        return node, report
    by_name = {item.name: item for item in items}
    for service in services:
        _settle_service(node, by_name[service.name], service)
    for service in services:
        item = by_name[service.name]
        engine = learned.apply_starts(service.engine, item, service.length or 0, service.max_sequences, resolve)
        service.engine = without_buffer(engine) if item.name in unbuffered else engine
    # Largest first: the check compares with a share of all memory, so a large engine passes only while little is taken.
    services.sort(
        key=lambda service: (
            service.engine.last,
            -(node.requested(service) or node.held(service, "typical")),
            service.name,
        )
    )
    _check_services(report, node)
    return node, report


def _resolve_services(items: Sequence[ServiceInput], report: Report, unbuffered: frozenset[str]) -> list[Service]:
    """Return the services that can be planned, and report the others."""
    services = []
    for item in items:
        note_arguments(report, item)
        try:
            # Open settings follow from assumed overheads, so that a proof restarts no engine.
            engine = resolve(replace(item, starts=()) if item.starts else item)
        except (Refusal, PlanFailure) as error:
            report_refusal(report, item, error)
            if item.minors and not isinstance(error, ImageRefusal):
                start, end = ("none of", "can be planned with.")
                if isinstance(error, PlanFailure):
                    start, end = ("all of", "would refuse it.")
                note_unknown_version(report, item.name, f"{start} {describe_minors(item.minors)} {end}")
        else:
            engine = without_buffer(engine) if item.name in unbuffered else engine
            services.append(Service(engine, engine.utilization, engine.length, engine.sequences))
    return services


def _check_services(report: Report, node: Node) -> None:
    """Check services in the order of their start, then the node."""
    for order, service in enumerate(node.services):
        note_version(report, service)
        note_source(report, node, service)
        check_free(report, node, service, node.services[:order])
        check_cache(report, node, service)
        note_solved(report, node, service)
    if node.services:
        check_node(report, node)
    note_buffers(report, node)


def _apply_changes(items: Sequence[ServiceInput], candidate: FixCandidate) -> list[ServiceInput]:
    """Return the input with the changes of a candidate; what an image said of other arguments does not hold for it."""
    changes = {change["service"]: change["args"] for change in candidate}
    return [
        replace(
            item,
            args={k: v for k, v in {**item.args, **changes[item.name]}.items() if v is not None},
            answer=item.answer if set(changes[item.name]) <= {*ANSWERED_ARGS, *HOST_ARGS} else None,
        )
        if item.name in changes
        else item
        for item in items
    ]


def _rank_findings(drafts: Sequence[Draft]) -> dict[tuple[str, str], int]:
    """Return the severity of each rule for each service: 2 for an error, 1 for a warning, 0 for information."""
    ranks: dict[tuple[str, str], int] = {}
    for draft in drafts:
        key = (draft.finding.service, draft.finding.rule)
        ranks[key] = max(ranks.get(key, 0), ("info", "warning", "error").index(draft.finding.severity))
    return ranks


def _try_changes(host: Host, items: Sequence[ServiceInput], changes: FixCandidate) -> dict[tuple[str, str], int]:
    """Return the severity of each rule for each service after the changes of a fix."""
    return _rank_findings(_judge_node(host, _apply_changes(items, changes))[1].drafts)


def _is_solved(
    key: tuple[str, str], before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int]
) -> bool:
    """Tell whether the finding of a service and rule is gone or less severe, and no new error appeared."""
    has_new_error = any(level == 2 and before.get(other, 0) < 2 for other, level in after.items())
    return after.get(key, -1) < before[key] and not has_new_error


def _changed_keys(candidate: FixCandidate) -> list[tuple[str, str]]:
    return [(change["service"], key) for change in candidate for key in change["args"]]


def _add_fix(host: Host, items: Sequence[ServiceInput], drafts: list[Draft], draft: Draft) -> Finding:
    """Give a finding its fix: the candidates that were planned and found good."""
    before = _rank_findings(drafts)
    key_of_draft = (draft.finding.service, draft.finding.rule)
    clean: list[FixCandidate] = []
    better: list[FixCandidate] = []
    tried: list[FixCandidate] = []
    for candidate in draft.candidates():
        if candidate in tried or _changed_keys(candidate) in map(_changed_keys, clean):
            continue
        tried.append(candidate)
        after = _try_changes(host, items, candidate)
        if not _is_solved(key_of_draft, before, after):
            continue
        worse = [key for key, level in after.items() if level > before.get(key, 0)]
        # Fewer requests at once are a price that a fix may have, any other warning is not.
        paid = all(rule == "memory.concurrency" for _service, rule in worse)
        (clean if paid and after.get(key_of_draft, 0) == 0 else better).append(candidate)
        if len(clean) == draft.most:
            break
    good = clean or better[:1]
    if not good:
        return replace(draft.finding, fix=draft.advice)
    return replace(draft.finding, fix=to_sentence(", or ".join(map(describe_fix, good))), changes=good[0])


@lru_cache(maxsize=512)
def _judge_once(host: Host, items: tuple[ServiceInput, ...]) -> tuple[Node, tuple[Finding, ...], frozenset[str]]:
    """Return a node, its findings with fixes, and the services whose verdict depends on overheads.

    Equal nodes are judged once; callers must not change the result.

    """
    node, report = _judge_node(host, items)
    findings = tuple(_add_fix(host, items, report.drafts, draft) for draft in report.drafts)
    temporary = [finding for finding, draft in zip(findings, report.drafts) if draft.is_temporary]
    before = _rank_findings(report.drafts)
    judge = Judge(
        find_problems=partial(_find_problems, host),
        solves=lambda changes, finding: _is_solved(
            (finding.service, finding.rule), before, _try_changes(host, items, changes)
        ),
        change=lambda services, changes: tuple(_apply_changes(services, changes)),
        name=lambda item: item.name,
        is_exclusive=lambda item: bool(item.exclusive),
        is_temporary=lambda finding: any(finding is other for other in temporary),
    )
    findings = merge_causes(findings, items, judge, describe_fix)
    return node, findings, frozenset(report.tight)


def _find_problems(host: Host, items: tuple[ServiceInput, ...]) -> list[Finding]:
    """Return errors, each with its own fix, and warnings of a node with these services."""
    drafts = _judge_node(host, items)[1].drafts
    return [
        _add_fix(host, items, drafts, draft) if draft.finding.severity == "error" else draft.finding
        for draft in drafts
        if draft.finding.severity != "info"
    ]


class AtOnce:
    """Tells which services of a node may run at once. It plans the services once, so that many combinations can be checked.

    params: of C(memory_budget), of services of which nothing is open any more.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        host, items = read_params(params)
        self._node = _judge_node(host, items)[0]
        self._by_name = {service.name: service for service in self._node.services}
        self._alone = {item.name: not _has_error(_judge_node(host, [item])[1]) for item in items}

    def alone(self, name: str) -> bool:
        """Tell whether a service can be planned and passes its checks as the only service."""
        return self._alone.get(name, False)

    def fit(self, sets: Mapping[str, Sequence[Iterable[str]]]) -> bool:
        """Tell whether the node holds any combination of each set, with all that is in none of them.

        :param sets: of exclusive sets the combinations that may run at once, none of whose services is unknown; of others one service runs
        :returns: whether each mixture passes at low overheads; C(memory_budget) gives the verdict "fails" to the others
        """
        slots = [
            [tuple(self._by_name[name] for name in combination) for combination in combinations]
            for combinations in sets.values()
            if combinations
        ]
        slots += [slot for slot in self._node.one_at_a_time() if slot[0][0].engine.exclusive not in sets]
        return self._node.fits_at_once(slots, "low")


def _unplanned_result(item: ServiceInput) -> dict[str, Any]:
    """Return the result of a service that cannot be planned; its image may know better unless this very version was compared."""
    try:
        compared = parse_release(item.vllm_version).exact
    except Refusal:
        compared = False
    return {"verdict": "fails", **({} if compared else {"sources": {"kv_cache": NOT_COMPARED}})}


def _has_error(report: Report) -> bool:
    return any(draft.finding.severity == "error" for draft in report.drafts)


def memory_budget(params: Mapping[str, Any]) -> dict[str, Any]:
    """Plan the memory of one node.

    params: the options of the module C(memory_budget), as documented there: C(total_gib), C(os_reserve_gib), C(measured),
    C(overheads), C(safety_margin_gib), C(services).

    Returns a plain dict: C(verdict), C(start_order), C(utilization_sum), C(utilization_bound), C(total_gib), C(services)
    by name, C(findings), C(memory_map); as documented at the module. A service that cannot be planned (an unknown layer kind, for
    example) is an error finding, and only its verdict is in C(services). Raises C(InputError) for malformed input, and nothing else.
    """
    host, items = read_params(params)
    items.sort(key=lambda item: item.name)  # the order in which services are written is no matter, to the last digit
    node, findings, hanging = _judge_once(host, tuple(items))
    planned: dict[str, Any] = {item.name: _unplanned_result(item) for item in items}
    for order, service in enumerate(node.services):
        service_findings = [finding for finding in findings if finding.service == service.name]
        planned[service.name] = service_result(
            node, service, order, judge_findings(service_findings, service.name in hanging)
        )
    tight = bool(hanging) or any(finding.rule in ("memory.node", "memory.utilization_bound") for finding in findings)
    return {
        "verdict": judge_findings(findings, tight),
        "start_order": [service.name for service in node.services],
        "utilization_sum": node.utilization_sum(),
        "utilization_bound": round(node.utilization_bound(), 3),
        "total_gib": to_gib(host.total),
        "services": planned,
        "findings": [finding.to_dict() for finding in findings],
        "memory_map": memory_map(node),
    }
