# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show how the services of all hosts are; documented in plugins/modules/status.py."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text, reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import (
    answers,
    day_page,
    fleet_status,
    status_page,
    status_rows,
)
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import inventory_names
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.progress import Channel
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.reports import ReportAction

display = Display()
CLEAR = "\x1b[H\x1b[2J"
"""Moves to the upper left corner and clears a terminal (ECMA-48)."""


class ActionModule(ReportAction):
    """Report the planned services with the answers of the hosts of the play."""

    def act(self) -> dict[str, Any]:
        """Print the status; fails in one line for a silent host or a service that is not ready."""
        args, inventory = self.args, inventory_names(self.variables)
        rows: list[status_rows.Row] = []
        hosts: dict[str, fleet_status.HostState] = {}
        days: dict[str, Any] = {}
        for host, variables in self.hostvars().items():
            result_of_host = variables.get(args["asked_from"]) or {}
            days[host] = last_day(result_of_host, args["answer"])
            asked = joined(result_of_host, args["answer"])
            planned = args["planned"].get(host) or {}
            try:
                # Tested alone: a malformed answer of one host must not hide the others.
                answers.judged(_text_of, host, asked, planned, args["answer"])
            except foreign_text.Untrusted as error:
                asked = {"reached": True, "answers": {args["answer"]: {"failed": True, "msg": str(error)}}}
            of_host, states = judge(host, asked, planned, args["answer"])
            rows += of_host
            hosts.update(states)
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        status = fleet_status.report(rows, hosts, at, args["fail_on"])
        if args["page"]:
            self.write(args["page"], status_page.page(status, args["planned"], inventory), "page")
        if args["timeline"]:
            self.write(args["timeline"], day_page.page(days, args["planned"], at, inventory), "page")
        if args["show"] != "none":
            if args["watch"] > 0 and Channel.is_terminal:
                display.display(CLEAR, screen_only=True)
            display.display(fleet_status.text(status, args["show"]))
        is_repeated = args["watch"] > 0 and (not args["looks"] or args["look"] < args["looks"])
        if is_repeated:
            args["fail_on"] = "never"
        concluded = self.conclude("status", status.to_dict(), "healthy", "reason", "hosts", "services")
        if not concluded["failed"]:
            concluded.update(again=is_repeated, look=args["look"])
        if is_repeated:
            time.sleep(args["watch"])
        return concluded


def joined(result: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the answers of a host, with C(spark) and C(starts) merged into C(host)."""
    answer = (result.get("answers") or {}).get(name) or {}
    if answer.get("failed") or not isinstance(answer.get("spark"), dict):
        return result
    unknown = answer.get("unknown") or {}
    if answer.get("services") is None:
        merged: dict[str, Any] = {"failed": True, "msg": unknown.get("services")}
    else:
        facts, starts = answer["spark"], answer.get("starts") or {}
        host = {**facts, **starts, "unknown": {**(facts.get("unknown") or {}), **unknown}}
        merged = {"host": host, "services": answer["services"]}
    return {**result, "answers": {**result["answers"], name: merged}}


def last_day(result: dict[str, Any], name: str) -> dict[str, Any] | str:
    """Return the section C(history) of a host's answer, or the reason for a missing or malformed one."""
    try:
        return answers.judged(_history, result, name)
    except foreign_text.Untrusted as error:
        return fleet_status.short(error)


def _history(result: dict[str, Any], name: str) -> Any:
    answer = (result.get("answers") or {}).get(name) or {}
    if not result.get("reached") or answer.get("history") is None:
        why = result.get("why") or answer.get("msg") or (answer.get("unknown") or {}).get("history")
        raise foreign_text.Untrusted(str(why or "it was not asked"))
    return reader.read(answers.HISTORY, answer["history"], "history")


def judge(
    host: str, result: dict[str, Any], planned: dict[str, Any], answer: str
) -> tuple[list[status_rows.Row], dict[str, fleet_status.HostState]]:
    """Return the rows of a host's services, and its state by name."""
    sections = (result.get("answers") or {}).get(answer) or {}
    rows = status_rows.status_rows(host, planned, sections.get("host"), sections.get("services"))
    return rows, {host: fleet_status.judge_host(result, answer)}


def _text_of(host: str, result: dict[str, Any], planned: dict[str, Any], answer: str) -> str:
    """Return all forms of the status of one host."""
    status = fleet_status.report(*judge(host, result, planned, answer), "")
    return "\n".join(fleet_status.text(status, show) for show in ("table", "groups"))
