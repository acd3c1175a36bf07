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
was gone and no new error had come. Errors of the same cause are one error for people: a model that is too large for a Spark fails up to
seven checks. One of them gets a fix after which every check passes; the others are marked as its consequences.

C(memory_budget) is the only entry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from .checks import (
    check_cache,
    check_free,
    check_remaining,
    check_utilization_sum,
    find_oversized_buffer,
    note_buffers,
    report_oversized,
    without_buffer,
)
from .engine import NOT_COMPARED, STAGES, Engine
from .fixes import Change, Draft, FixCandidate, Report, describe_fix
from .host_memory import KV_BUFFER
from .kv_plan import PlanFailure
from .layers import Refusal
from .node_memory import Node, Service, count_at_once, one_at_a_time, solve
from .releases import parse_release
from .service_input import ANSWERED_ARGS, DEFAULT_SEQS, HOST_ARGS, Host, ServiceInput, read_params
from .service_memory import resolve

ROOM_RULES = tuple(
    f"memory.{rule}"
    for rule in (
        "no_cache_memory",
        "auto_fit",
        "one_request",
        "state_blocks",
        "load",
        "node",
        "free_at_start",
        "free_at_restart",
        "utilization_sum",
    )
)
"""Rules that fail for lack of memory. Of one service the first that fails explains it best."""
MOST_CHANGES = 4
"""Changes of arguments in one fix; a fix with more of them is another deployment."""


# A node ---------------------------------------------------------------------------------------------------------------


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
    for order, service in enumerate(node.services):
        note_version(report, service)
        note_source(report, node, service)
        check_free(report, node, service, node.services[:order])
        check_cache(report, node, service)
        note_solved(report, node, service)
    if node.services:
        check_utilization_sum(report, node)
        check_remaining(report, node)
    note_buffers(report, node)
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


# Fixes ----------------------------------------------------------------------------------------------------------------


def _apply_changes(items: Sequence[ServiceInput], candidate: FixCandidate) -> tuple[ServiceInput, ...]:
    """Return the input with the changes of a candidate; what an image said of other arguments does not hold for it."""
    changes = {change["service"]: change["args"] for change in candidate}
    return tuple(
        replace(
            item,
            args={k: v for k, v in {**item.args, **changes[item.name]}.items() if v is not None},
            answer=item.answer if set(changes[item.name]) <= {*ANSWERED_ARGS, *HOST_ARGS} else None,
        )
        if item.name in changes
        else item
        for item in items
    )


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


# Causes ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Causes:
    """The errors of a node for lack of memory by their causes. before: the severity of each rule for each service."""

    host: Host
    items: tuple[ServiceInput, ...]
    before: Mapping[tuple[str, str], int]

    def _list_room_drafts(self, items: tuple[ServiceInput, ...], severities: tuple[str, ...]) -> list[Draft]:
        """Return what a node with these services lacks memory for, without fixes."""
        drafts = _judge_node(self.host, items)[1].drafts
        return [draft for draft in drafts if draft.finding.rule in ROOM_RULES and draft.finding.severity in severities]

    def _has_errors(self, *items: ServiceInput) -> bool:
        return bool(self._list_room_drafts(items, ("error",)))

    def _find_joint_fix(self, items: tuple[ServiceInput, ...], first: FixCandidate) -> FixCandidate:
        """Return changes after which no check fails for lack of memory, C(first) among them; empty if none were found."""
        changes, items = first, _apply_changes(items, first)
        for _round in range(MOST_CHANGES):
            drafts = _judge_node(self.host, items)[1].drafts
            errors = (draft for draft in drafts if _is_room_error(draft.finding))
            offered = [
                fixed.changes
                for fixed in (_add_fix(self.host, items, drafts, draft) for draft in errors)
                if fixed.changes
            ]
            if not offered:
                return []
            changed = [_apply_changes(items, change) for change in offered]
            solved = [place for place, others in enumerate(changed) if not self._has_errors(*others)]
            if solved:
                quiet = (place for place in solved if not self._list_room_drafts(changed[place], ("warning",)))
                return _merge_changes(changes, offered[next(quiet, solved[0])])
            items, changes = changed[0], _merge_changes(changes, offered[0])
        return []

    def _extend_fix(self, changes: FixCandidate, cause: Finding) -> FixCandidate:
        """Return changes that remove C(cause) on the whole node: C(changes), or these and others; empty if none were found.

        :param changes: a fix for some services; the others may take the memory that it frees
        """

        def solves(candidate: FixCandidate) -> bool:
            after = _try_changes(self.host, self.items, candidate)
            return _is_solved((cause.service, cause.rule), self.before, after)

        if not changes or solves(changes):
            return changes
        extended = self._find_joint_fix(self.items, changes)
        return extended if extended and solves(extended) else []

    def merge(self, errors: Sequence[Finding]) -> dict[int, Finding]:
        """Return the changed errors by the id of the original: causes with their fix, and consequences."""
        too_large = [item for item in self.items if self._has_errors(item)]
        remaining = tuple(item for item in self.items if item not in too_large)
        merged: dict[int, Finding] = {}
        for item in too_large:
            item_errors = [finding for finding in errors if finding.service == item.name]
            _merge(item_errors, partial(self._fix_alone, item), merged, several=False)
        if len(remaining) > 1 and self._has_errors(*remaining):
            names = {"", *(item.name for item in remaining)}  # an empty name stands for the node
            shared = [finding for finding in errors if finding.service in names]
            _merge(shared, partial(self._fix_together, remaining), merged, several=True)
        elif merged:
            _blame_cause(errors, merged)
        elif len(self.items) == 1:
            _merge(errors, partial(self._fix_alone, self.items[0]), merged, several=False)
        else:
            _merge(errors, partial(self._fix_together, self.items), merged, several=True)
        return merged

    def _fix_alone(self, item: ServiceInput, cause: Finding) -> tuple[str, FixCandidate]:
        """Return how a service that is too large by itself fits: beside the others, or else at another time or place."""
        alone = self._find_joint_fix((item,), [])
        changes = self._extend_fix(alone, cause)
        if changes or not alone:
            return to_sentence(describe_fix(changes)) if changes else "", changes
        return to_sentence(f"{describe_fix(alone)}; then {_describe_separation(self.items, item.name)}"), []

    def _fix_together(self, sharing: tuple[ServiceInput, ...], cause: Finding) -> tuple[str, FixCandidate]:
        """Return how services that fit one by one fit together: smaller ones, or at different times."""
        changes = self._extend_fix(self._find_joint_fix(sharing, []), cause)
        separation = _describe_separation(sharing, "one of them")
        return to_sentence(f"{describe_fix(changes)}, or {separation}" if changes else separation), changes


def _is_room_error(finding: Finding) -> bool:
    return finding.severity == "error" and finding.rule in ROOM_RULES


def _describe_separation(items: Sequence[ServiceInput], moved: str) -> str:
    """Return how services share no memory: at different times, unless some do so already, or with C(moved) on another Spark."""
    move = f"move {moved} to another Spark"
    if any(item.exclusive for item in items):
        return move
    names = " and ".join(item.name for item in items)
    return f"run {names} one at a time, each started by its first request (on_demand: {{exclusive: big}}), or {move}"


def _merge(
    errors: Sequence[Finding],
    make_fix: Callable[[Finding], tuple[str, FixCandidate]],
    merged: dict[int, Finding],
    several: bool,
) -> None:
    """Choose the error that explains best, give it the fix and vLLM's first words, and mark the others.

    :param merged: receives the changed findings by the id of the original
    :param several: services fit one by one: the sum of the node explains best
    """
    if not errors:
        return
    cause = min(errors, key=lambda finding: (several and finding.rule != "memory.node", ROOM_RULES.index(finding.rule)))
    spoken = [finding for finding in errors if finding.vllm_error and several]
    first = min(spoken, key=lambda finding: STAGES.index(finding.stage), default=cause)
    for finding in errors:
        if finding is not cause:
            merged[id(finding)] = replace(finding, consequence_of=cause.rule)
    fix, changes = make_fix(cause)
    merged[id(cause)] = replace(
        cause,
        fix=fix or cause.fix,
        changes=changes if fix else cause.changes,
        vllm_error=first.vllm_error,
        stage=first.stage,
        seconds=first.seconds,
    )


def _blame_cause(errors: Sequence[Finding], merged: dict[int, Finding]) -> None:
    """Mark the other errors as consequences: the service that is too large by itself causes the failures of the whole node."""
    cause = next(finding for finding in merged.values() if not finding.consequence_of)
    for finding in errors:
        merged.setdefault(id(finding), replace(finding, consequence_of=cause.rule))


def _merge_changes(changes: FixCandidate, further: FixCandidate) -> FixCandidate:
    """Return changes with further ones: one entry a service, the later value of an argument counts."""
    by_service: dict[str, Change] = {}
    for change in (*changes, *further):
        by_service.setdefault(change["service"], {}).update(change["args"])
    return [{"service": service, "args": args} for service, args in by_service.items()]


@lru_cache(maxsize=512)
def _judge_once(host: Host, items: tuple[ServiceInput, ...]) -> tuple[Node, tuple[Finding, ...], frozenset[str]]:
    """Return a node, its findings with fixes, and the services whose verdict depends on overheads.

    Of errors that have the same cause, one has the fix for all of them; consequences name its rule. Equal nodes are judged once; callers
    must not change the result.
    """
    node, report = _judge_node(host, items)
    findings = tuple(_add_fix(host, items, report.drafts, draft) for draft in report.drafts)
    errors = [finding for finding in findings if _is_room_error(finding)]
    # This error ends when another service is restarted first, as its fix says.
    temporary = next((f for f, draft in zip(findings, report.drafts) if draft.is_temporary and _is_room_error(f)), None)
    merged: dict[int, Finding] = {}
    if len(errors) > 1 and temporary:
        affected = ("", temporary.service)
        consequences = (finding for finding in errors if finding is not temporary and finding.service in affected)
        merged = {id(finding): replace(finding, consequence_of=temporary.rule) for finding in consequences}
    elif len(errors) > 1:
        merged = _Causes(host, items, _rank_findings(report.drafts)).merge(errors)
    return node, tuple(merged.get(id(finding), finding) for finding in findings), frozenset(report.tight)


# Results --------------------------------------------------------------------------------------------------------------


class AtOnce:
    """Tells which services of a node may run at once. It plans the services once, so that many combinations can be checked.

    params: of C(memory_budget), of services of which nothing is open any more.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        host, items = read_params(params)
        self._node = _judge_node(host, items)[0]
        self._by_name = {service.name: service for service in self._node.services}
        drafts = {item.name: _judge_node(host, [item])[1].drafts for item in items}
        self._alone = {name: all(d.finding.severity != "error" for d in of_item) for name, of_item in drafts.items()}

    def alone(self, name: str) -> bool:
        """Tell whether a service can be planned and passes its checks as the only service."""
        return self._alone.get(name, False)

    def fit(self, sets: Mapping[str, Sequence[Iterable[str]]]) -> bool:
        """Tell whether the node holds any combination of each set, with all that is in none of them.

        :param sets: of exclusive sets the combinations that may run at once, none of whose services is unknown; of others one service runs
        :returns: whether each mixture passes at low overheads; C(memory_budget) gives the verdict "fails" to the others
        """
        slots: list[Sequence[tuple[Service, ...]]] = [
            [tuple(self._by_name[name] for name in combination) for combination in combinations]
            for combinations in sets.values()
            if combinations
        ]
        slots += [slot for slot in one_at_a_time(self._node.services) if slot[0][0].engine.exclusive not in sets]
        return self._node.fits_at_once(slots, "low")


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
    planned: dict[str, Any] = {}
    for item in items:
        # The image of a service that cannot be planned may know better unless this very version was compared.
        planned[item.name] = {"verdict": "fails", "sources": {"kv_cache": NOT_COMPARED}}
        with contextlib.suppress(Refusal):
            if parse_release(item.vllm_version).exact:
                del planned[item.name]["sources"]
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
