# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the services of hosts and print each measurement; documented in plugins/modules/service_bench.py."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text, validation
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import (
    bench_compare,
    bench_report,
    benchmark,
    offline,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import launch
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction, checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import check_replaceable, write
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES, load_recipes
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
WITH_SECRETS = "/usr/local/libexec/dgxspark/with-secrets"
BODY_KEYS = ("schema", "services", "not_measured")
"""Of the file of figures."""
IDLE_POLL = 5
LEAST_SECONDS = 5
"""Least time that is left for a run of the program."""


class Refused(Exception):
    """Why a service is not measured."""


class ActionModule(HostAction):
    """Make one measurement a call, so that a long run shows how far it is."""

    MODULE = "dgxspark.vllm.service_bench"
    VALIDATED = True
    RULES: Mapping[str, Any] = {"required_one_of": [("planned", "report_from")]}

    def act(self) -> dict[str, Any]:
        """Measure what the host answers for; return C(results) and C(refused)."""
        args = self.args
        if args["dest"]:  # before minutes of measuring
            try:
                check_replaceable(Path(of_fleet(args["dest"], self.variables)), BODY_KEYS)
            except OSError as error:
                raise AnsibleActionFail(f"nothing was measured: spark_bench_dest: {error}") from error
        if self._task.check_mode:
            message = "measuring is making requests: nothing is measured in check mode"
            return {"changed": False, "skipped": True, "msg": message}
        if args["report_from"]:
            self.hosts = args["hosts"] or self.variables.get("ansible_play_hosts_all") or []
            return {"changed": False, **self.report(args["report_from"], args["against"], args["dest"])}
        return {"changed": False, **self._measure_services(args)}

    def _measure_services(self, args: dict[str, Any]) -> dict[str, Any]:
        """Measure the services of the host; return C(results) and C(refused)."""
        host = self.host
        settings, messages = benchmark.read(f"host {host}", plain(args["settings"]))
        if messages:
            raise AnsibleActionFail("nothing was measured:\n- " + "\n- ".join(messages))
        self.settings, self.receipts, self.planned = settings, str(args["receipts"]), plain(args["planned"])
        services = self._services(benchmark.names(args["only"]) or benchmark.names(settings["services"]))
        folders = [Path(str(entry)) for entry in self.variables.get("spark_recipe_dirs") or []] if services else []
        # For published figures; unreadable recipes are left out.
        self.recipes, _wrong = load_recipes([RECIPES, *filter(Path.is_dir, folders)] if services else [])
        results: list[dict[str, Any]] = []
        refused: list[dict[str, str]] = []
        for service in services:
            cluster = service["cluster"]
            where = f"{cluster['name'] if cluster else host}/{service['name']}"
            try:
                results.append((self._offline if args["offline"] else self._measure)(where, service))
            except Refused as reason:
                display.display(f"  {where}: not measured: {reason}")
                refused.append({"where": where, "reason": str(reason)})
        return {"results": results, "refused": refused}

    def _services(self, names: list[str]) -> list[dict[str, Any]]:
        """Return the services of the host to measure. names: which of them, all when empty."""
        everywhere = {service["name"] for body in self.planned.values() for service in body["services"]}
        unknown = [name for name in names if name not in everywhere]
        if unknown:
            hint = validation.nearest(unknown[0], everywhere)
            raise AnsibleActionFail(
                f"nothing was measured: no host of the inventory has a service '{unknown[0]}'{hint} "
                f"Known: {', '.join(sorted(everywhere))}."
            )
        return [
            service
            for service in (self.planned.get(self.host) or {}).get("services") or []
            if service["url"] and not service["rank"] and (not names or service["name"] in names)
        ]

    def report(self, name: str, against: str, dest: str) -> dict[str, Any]:
        """Print tables and charts of what the hosts of the play measured, write JSON where asked to.

        name, against: variables that hold each host's result. dest: a file on the controller, or empty.
        """
        results, refused = self._of_hosts(name)
        compared, refused_of_compared = self._of_hosts(against) if against else ([], [])
        refused += [entry for entry in refused_of_compared if entry not in refused]
        pairs = [(a, b) for a in results for b in compared if a["where"].split("/")[0] == b["where"].split("/")[0]]
        display.display(bench_report.report([*results, *compared], refused))
        if pairs:
            display.display("\n" + bench_report.pair_report(pairs))
        results += compared
        if dest:
            body = dict(zip(BODY_KEYS, (bench_compare.SCHEMA, results, refused)))
            if against:
                body["pairs"] = [
                    {"a": a["where"], "b": b["where"], "rows": bench_report.pair_rows(a, b)} for a, b in pairs
                ]
            write(Path(of_fleet(dest, self.variables)), json.dumps(body, indent=2, sort_keys=True) + "\n")
        report = {"results": results, "refused": refused, "failed": bool(refused), "_ansible_verbose_override": True}
        if refused:
            report["msg"] = f"not measured: {', '.join(entry['where'] for entry in refused)}; the reasons stand above"
        return report

    def _of_hosts(self, name: str) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
        """Return what the hosts of the play measured, and what they did not. name: the variable of their results."""
        results: list[dict[str, Any]] = []
        refused: list[dict[str, str]] = []
        for host in self.hosts:
            try:
                measured = foreign_text.received(plain(self.variables["hostvars"][host].get(name)) or {})
            except foreign_text.Untrusted as error:
                measured = {"msg": f"its answer is invalid: {error}", "failed": True}
            if not measured or measured.get("unreachable") or measured.get("failed"):
                refused.append({"where": str(host), "reason": str(measured.get("msg") or "the host did not answer")})
            results += measured.get("results") or []
            refused += measured.get("refused") or []
        return results, refused

    def _offline(self, where: str, service: dict[str, Any]) -> dict[str, Any]:
        """Measure the model of a stopped service without its server."""
        why = offline.refusal(service)
        if why:
            raise Refused(why)
        self.service = {name: service["probe"].get(name) for name in ("name", "url", "model", "api_key_file")}
        self.service.update(container=service["container"], receipts=self.receipts, beside=[])
        seconds = int(self.settings["seconds"])
        argv = offline.command(service, launch.render(offline.engine_args(service)), self.settings, seconds)
        display.display(f"  {where}: loads the model without its server, up to {seconds} s")
        row = self.step("offline", argv=argv, seconds=seconds, settings=self.settings)["row"]
        display.display(f"  {where}: {row['tokens_per_second']:,.1f} tokens/s, prompts and answers")
        lists: dict[str, list[Any]] = {"findings": [], "published": [], "left_out": []}
        return {"where": where, "service": service["name"], "offline": row, **lists}

    def step(self, step: str, **task: Any) -> dict[str, Any]:
        """Run one step on the host. Raises Refused with what went wrong."""
        answer = self.execute({"step": step, "task": {**self.service, **task}})
        if answer.get("failed"):
            raise Refused(foreign_text.printable(str(answer.get("msg") or "it failed without a word")))
        part = task["workload"]["part"] if step == "measure" else step
        answer = checked_answer(answer, answers.SERVICE_BENCH.get(part, Any), self.host, self.MODULE)
        if answer.get("problem"):
            raise Refused(". ".join(text for text in (answer["problem"], answer.get("fix")) if text))
        return answer

    def idle(self) -> dict[str, Any]:
        """Wait until the engines serve no other requests; return the answer of the step look."""
        began = time.monotonic()
        while True:
            answer = self.step("look")
            if not answer["busy"] or self.settings["disturb"]:
                return answer
            if time.monotonic() - began >= self.settings["idle_seconds"]:
                raise Refused(
                    f"others are being served: {', '.join(answer['busy'])}. A measurement would slow them and be wrong itself. "
                    "Run it when the host is idle, or anyway with spark_bench: {disturb: true}"
                )
            time.sleep(min(IDLE_POLL, max(1, self.settings["idle_seconds"])))

    def _measure(self, where: str, service: dict[str, Any]) -> dict[str, Any]:
        """Measure one service, write its receipt, and return its section with the published figures."""
        settings = self.settings
        args = service.get("args") or {}
        self.service = {
            **{name: service["probe"].get(name) for name in ("name", "url", "model", "api_key_file")},
            "container": service["container"],
            "receipts": self.receipts,
            "beside": neighbours(self.planned, self.host, service),
            "api": "chat",
            "thinking": settings["thinking"],
            "args": args,
            "tokenizer": benchmark.tokenizer(service["model"], args),
            "wrapper": WITH_SECRETS if service.get("secrets") else "",
            "sysroot": (self.planned[self.host].get("settings") or {}).get("sysroot") or "/",
        }
        deployed = self.idle()
        self.until = time.monotonic() + settings["seconds"]
        new = self._measured(where, args.get("max-num-seqs"), deployed)
        previous = (deployed["receipt"] or {}).get("benchmark")
        # Rates of a simulated host mean nothing.
        speed = service.get("speed") or {} if self.service["sysroot"] == "/" else {}
        section, findings = bench_compare.compare(previous, new, service["name"], settings, speed)
        if deployed["receipt"] is None:
            section["left_out"] = [
                *new["left_out"],
                "the receipt does not exist yet, site.yml --tags prove writes it; the figures were not kept",
            ]
        elif not any(finding["rule"] == "bench.impossible" for finding in findings):
            try:
                self.step("keep", name=service["name"], benchmark=section)
            except Refused as reason:
                display.warning(f"{service['name']}: the figures were not kept: {reason}")
        base = of_recipe(self.recipes, service)
        sparks = (service["cluster"] or {}).get("size", 1)
        rows, published_findings = bench_compare.published(base.get("expect") or [], section, service, base, sparks)
        return {
            "where": where,
            "service": service["name"],
            **section,
            "published": rows,
            "predicted": bench_compare.predicted(speed, section),
            "findings": [*findings, *published_findings],
        }

    def _measured(self, where: str, max_num_seqs: Any, deployed: dict[str, Any]) -> dict[str, Any]:
        """Run all workloads of a service; return C(new) of C(bench_compare.compare). deployed: answer of the step look."""
        settings = self.settings
        runs, left_out = benchmark.workloads(settings, deployed["max_model_len"])
        if not runs:
            raise Refused(
                f"its context of {deployed['max_model_len']} tokens has no room for an answer of {settings['output_tokens']}: set "
                "output_tokens of spark_bench lower"
            )
        rows: dict[str, list[dict[str, Any]]] = {part: [] for part in bench_compare.PARTS}
        samples: list[dict[str, Any]] = []
        gpu = bool(deployed["conditions"]["gpu"])
        for number, workload in enumerate(runs, 1):
            progress = f"{where}: {number}/{len(runs)}: {workload.label}"
            try:
                measured = self._run(workload, gpu and workload.part == "single")
            except Refused as reason:
                if number == 1:
                    raise
                left_out.append(f"{workload.label}: {reason}")
                display.display(f"  {progress}: {reason}")
                continue
            rows[workload.part].append(measured["row"])
            samples += measured["gpu"]
            display.display(f"  {progress}: {bench_compare.row_summary(measured['row'])}")
        return {
            "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "conditions": {**deployed["conditions"], **benchmark.gpu_under_load(samples)},
            "workload": {
                "prompt_tokens": rows["single"][0]["prompt_tokens"],
                "output_tokens": settings["output_tokens"],
                "api": self.service["api"],
                "thinking": settings["thinking"],
                "prompts": benchmark.PROMPTS,
            },
            **rows,
            "prefix_cache": next(iter(rows["prefix_cache"]), None),
            "max_num_seqs": max_num_seqs,
            "left_out": left_out,
        }

    def _run(self, workload: benchmark.Workload, gpu: bool) -> dict[str, Any]:
        """Run one workload, once more if other requests disturbed it. Raises Refused with the reason."""
        for last in (self.settings["disturb"], True):
            seconds = self.until - time.monotonic()
            if seconds < LEAST_SECONDS:
                raise Refused(f"the {self.settings['seconds']} seconds were used up")
            if workload.rate:
                requests = benchmark.requests_in(workload.rate, workload.requests, seconds)
                workload = replace(workload, requests=requests)
            try:
                measured = self.step("measure", workload=asdict(workload), seconds=seconds, gpu=gpu)
            except Refused as reason:
                if self.service["api"] == "completions" or "chat_template" not in str(reason):
                    raise
                self.service["api"] = "completions"  # a model without a chat template
                measured = self.step("measure", workload=asdict(workload), seconds=seconds, gpu=gpu)
            if last or not measured["row"]["disturbed"]:
                break
        return measured


def neighbours(planned: dict[str, Any], host: str, service: dict[str, Any]) -> list[dict[str, str]]:
    """Return the services that share a GPU with this one, as far as they can be asked from its host."""
    cluster = service["cluster"]
    services = [
        (name, other)
        for name in (cluster["hosts"] if cluster else [host])
        for other in (planned.get(name) or {}).get("services") or []
        if other["name"] != service["name"] and other.get("url") and not other["rank"]
    ]
    return [
        {"name": other["name"] if name == host else f"{name}/{other['name']}", "url": other["url"]}
        for name, other in services
        if name == host or not str(other["url"]).startswith(("http://127.", "http://localhost"))
    ]


def of_recipe(recipes: dict[str, Any], service: dict[str, Any]) -> dict[str, Any]:
    """Return C(images), C(args) and C(expect) of a service's recipe with its variants; a variant's figures replace the recipe's."""
    recipe = recipes.get(service.get("recipe") or "") or {}
    args = dict(recipe.get("args") or {})
    merged: dict[str, Any] = {"images": recipe.get("images"), "args": args, "expect": recipe.get("expect")}
    for name in service.get("variant") or []:
        body = (recipe.get("variants") or {}).get(name) or {}
        merged["args"].update(body.get("args") or {})
        merged["expect"] = body.get("expect") or []
        merged["images"] = body.get("images") or merged["images"]
    return merged
