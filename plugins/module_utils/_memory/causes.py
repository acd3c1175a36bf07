# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merging errors of a node that have the same cause, with one fix that removes all of them.

A model that is too large for a Spark fails up to seven checks. People need one of these errors, with a fix after which
every check passes; the others are marked as its consequences. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from .._common.findings import Finding, to_sentence

Item = TypeVar("Item")
"""A service as the caller judges it; opaque here."""

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

STAGES = ("arguments", "device", "load", "profile", "kv_cache", "graphs")
"""Stages of a start, the earliest first: vLLM prints the error of the first one."""

MOST_CHANGES = 4
"""Changes of arguments in one fix; a fix with more of them is another deployment."""


@dataclass(frozen=True)
class Judge(Generic[Item]):
    """The caller's functions to judge services.

    find_problems: returns errors and warnings of a node with these services; errors have their own fix.
    solves: plans the whole node with the changes of a fix; tells whether the finding improves and no new error appears.
    change: returns services with the changes of a fix.
    name: returns the name of a service.
    is_exclusive: tells whether a service already runs at other times than others.
    is_temporary: tells whether an error ends when another service is restarted first, as its fix says.
    """

    find_problems: Callable[[tuple[Item, ...]], Sequence[Finding]]
    solves: Callable[[list[dict[str, Any]], Finding], bool]
    change: Callable[[tuple[Item, ...], list[dict[str, Any]]], tuple[Item, ...]]
    name: Callable[[Item], str]
    is_exclusive: Callable[[Item], bool]
    is_temporary: Callable[[Finding], bool]

    def find_room_errors(self, items: tuple[Item, ...]) -> list[Finding]:
        """Return the errors for lack of memory."""
        return [finding for finding in self.find_problems(items) if _is_room_error(finding)]

    def _rank(self, items: tuple[Item, ...]) -> int:
        """Return how bad the lack of memory is: 2 for an error, 1 for a warning, 0 for none."""
        severities = {finding.severity for finding in self.find_problems(items) if finding.rule in ROOM_RULES}
        return 2 if "error" in severities else 1 if severities else 0

    def find_joint_fix(self, items: tuple[Item, ...], first: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Return changes after which no check fails for lack of memory; empty if none were found."""
        changes = list(first)
        items = self.change(items, changes)
        for _round in range(MOST_CHANGES):
            offered = [finding.changes for finding in self.find_room_errors(items) if finding.changes]
            if not offered:
                return []
            ranks = [self._rank(self.change(items, change)) for change in offered]
            if min(ranks) < 2:
                return _merge_changes(changes, offered[ranks.index(min(ranks))])
            items = self.change(items, offered[0])
            changes = _merge_changes(changes, offered[0])
        return []

    def extend_fix(
        self, items: tuple[Item, ...], changes: list[dict[str, Any]], cause: Finding
    ) -> list[dict[str, Any]]:
        """Return changes that remove C(cause) on the whole node: C(changes), or these and others; empty if none were found.

        :param changes: a fix for some of them; the others may take the memory that it frees
        """
        if not changes or self.solves(changes, cause):
            return changes
        extended = self.find_joint_fix(items, changes)
        return extended if extended and self.solves(extended, cause) else []


def merge_causes(
    findings: Sequence[Finding],
    items: tuple[Item, ...],
    judge: Judge[Item],
    describe: Callable[[list[dict[str, Any]]], str],
) -> tuple[Finding, ...]:
    """Mark the errors that have the same cause as another one, and give that one the fix for all of them.

    :param findings: of a node, each with its own fix
    :returns: the findings in their order; consequences name the rule of their cause
    """
    errors = [finding for finding in findings if _is_room_error(finding)]
    if len(errors) < 2:
        return tuple(findings)
    temporary = next((finding for finding in errors if judge.is_temporary(finding)), None)
    if temporary:
        return _mark_consequences(findings, temporary)
    merged = _merge_errors(errors, items, judge, describe)
    return tuple(merged.get(id(finding), finding) for finding in findings)


def _mark_consequences(findings: Sequence[Finding], cause: Finding) -> tuple[Finding, ...]:
    """Return the findings; errors for lack of memory of the same service and of the node are consequences of C(cause)."""
    return tuple(
        replace(finding, consequence_of=cause.rule)
        if finding is not cause and finding.service in ("", cause.service) and _is_room_error(finding)
        else finding
        for finding in findings
    )


def _merge_errors(
    errors: Sequence[Finding],
    items: tuple[Item, ...],
    judge: Judge[Item],
    describe: Callable[[list[dict[str, Any]]], str],
) -> dict[int, Finding]:
    """Return the changed errors by the id of the original: causes with their fix, and consequences."""
    too_large = [item for item in items if judge.find_room_errors((item,))]
    remaining = tuple(item for item in items if item not in too_large)
    merged: dict[int, Finding] = {}
    for item in too_large:
        item_errors = _select_errors(errors, {judge.name(item)})
        _merge(item_errors, partial(_fix_alone, judge, items, item, describe), merged, several=False)
    if len(remaining) > 1 and judge.find_room_errors(remaining):
        shared = _select_errors(errors, {"", *(judge.name(item) for item in remaining)})
        _merge(shared, partial(_fix_together, judge, items, remaining, describe), merged, several=True)
    elif merged:
        # The service that is too large by itself also causes the failures of the whole node.
        cause = next(finding for finding in merged.values() if not finding.consequence_of)
        for finding in errors:
            merged.setdefault(id(finding), replace(finding, consequence_of=cause.rule))
    elif len(items) == 1:
        _merge(errors, partial(_fix_alone, judge, items, items[0], describe), merged, several=False)
    else:
        _merge(errors, partial(_fix_together, judge, items, items, describe), merged, several=True)
    return merged


def _select_errors(errors: Sequence[Finding], services: set[str]) -> list[Finding]:
    """Return the errors of these services; an empty name selects the node's errors."""
    return [finding for finding in errors if finding.service in services]


def _is_room_error(finding: Finding) -> bool:
    return finding.severity == "error" and finding.rule in ROOM_RULES


@dataclass(frozen=True)
class _Fix:
    text: str
    changes: list[dict[str, Any]]


def _fix_alone(
    judge: Judge[Item],
    items: tuple[Item, ...],
    item: Item,
    describe: Callable[[list[dict[str, Any]]], str],
    cause: Finding,
) -> _Fix:
    """Return how a service that is too large by itself fits: beside the others, or else at another time or place."""
    alone = judge.find_joint_fix((item,))
    changes = judge.extend_fix(items, alone, cause)
    if changes or not alone:
        return _Fix(to_sentence(describe(changes)) if changes else "", changes)
    return _Fix(to_sentence(f"{describe(alone)}; then {_describe_separation(judge, items, judge.name(item))}"), [])


def _fix_together(
    judge: Judge[Item],
    items: tuple[Item, ...],
    sharing: tuple[Item, ...],
    describe: Callable[[list[dict[str, Any]]], str],
    cause: Finding,
) -> _Fix:
    """Return how services that fit one by one fit together: smaller ones, or at different times."""
    changes = judge.extend_fix(items, judge.find_joint_fix(sharing), cause)
    separation = _describe_separation(judge, sharing, "one of them")
    return _Fix(to_sentence(f"{describe(changes)}, or {separation}" if changes else separation), changes)


def _describe_separation(judge: Judge[Item], items: tuple[Item, ...], moved: str) -> str:
    """Return how services share no memory: at different times, unless some do so already, or with C(moved) on another Spark."""
    move = f"move {moved} to another Spark"
    if any(judge.is_exclusive(item) for item in items):
        return move
    names = " and ".join(judge.name(item) for item in items)
    return f"run {names} one at a time, each started by its first request (on_demand: {{exclusive: big}}), or {move}"


def _merge(
    errors: Sequence[Finding], make_fix: Callable[[Finding], _Fix], merged: dict[int, Finding], several: bool
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
    fix = make_fix(cause)
    merged[id(cause)] = replace(
        cause,
        fix=fix.text or cause.fix,
        changes=fix.changes if fix.text else cause.changes,
        vllm_error=first.vllm_error,
        stage=first.stage,
        seconds=first.seconds,
    )


def _merge_changes(changes: list[dict[str, Any]], further: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return changes with further ones: one entry a service, the later value of an argument counts."""
    by_service: dict[str, dict[str, Any]] = {}
    for change in (*changes, *further):
        by_service.setdefault(change["service"], {}).update(change["args"])
    return [{"service": service, "args": args} for service, args in by_service.items()]
