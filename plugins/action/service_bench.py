# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the services of hosts and print each measurement; documented in plugins/modules/service_bench.py."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text, validation
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import (
    bench_compare,
    bench_pairs,
    benchmark,
    offline,
    workloads,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import launch
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import check_replaceable, write
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_action import HostAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES, load_recipes
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
MODULE = "dgxspark.vllm.service_bench"
WITH_SECRETS = "/usr/local/libexec/dgxspark/with-secrets"
BODY_KEYS = ("schema", "services", "not_measured")
"""Of the file of figures."""
IDLE_POLL = 5


class Refused(Exception):
    """Why a service is not measured."""


class ActionModule(HostAction):
    """Make one measurement a call, so that a long run shows how far it is."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Measure what the host answers for; return C(results) and C(refused)."""
        result = super().run(tmp, task_vars)
        self.variables = task_vars or {}
        _spec, args = self.validate_argument_spec(
            {
                "planned": {"type": "dict"},
                "settings": {"type": "dict", "default": {}},
                "only": {"type": "raw", "default": []},
                "receipts": {"type": "path", "default": "/var/lib/dgxspark/receipts"},
                "report_from": {"type": "str", "default": ""},
                "against": {"type": "str", "default": ""},
                "hosts": {"type": "list", "elements": "str", "default": []},
                "offline": {"type": "bool", "default": False},
                "dest": {"type": "str", "default": ""},
            },
            required_one_of=[("planned", "report_from")],
        )
        host = str(self.variables.get("inventory_hostname") or "")
        if args["dest"]:  # before minutes of measuring
            try:
                check_replaceable(Path(of_fleet(args["dest"], self.variables)), BODY_KEYS)
            except OSError as error:
                raise AnsibleActionFail(f"nothing was measured: spark_bench_dest: {error}") from error
        if self._task.check_mode:
            result.update(
                changed=False, skipped=True, msg="measuring is making requests: nothing is measured in check mode"
            )
            return result
        if args["report_from"]:
            self.hosts = args["hosts"] or self.variables.get("ansible_play_hosts_all") or []
            return {**result, "changed": False, **self.report(args["report_from"], args["against"], args["dest"])}
        settings, messages = benchmark.read(f"host {host}", plain(args["settings"]))
        if messages:
            raise AnsibleActionFail("nothing was measured:\n- " + "\n- ".join(messages))
        self.settings, self.receipts = settings, str(args["receipts"])
        planned = plain(args["planned"])
        wanted = benchmark.names(args["only"]) or benchmark.names(settings["services"])
        services = self._services(planned, host, wanted)
        known = self.recipes(host) if services else {}
        results: list[dict[str, Any]] = []
        refused: list[dict[str, str]] = []
        for service in services:
            cluster = service["cluster"]
            where = f"{cluster['name'] if cluster else host}/{service['name']}"
            try:
                if args["offline"]:
                    results.append(self._offline(where, service))
                    continue
                results.append(self._measure(where, service, beside(planned, host, service), known, planned[host]))
            except Refused as reason:
                display.display(f"  {where}: not measured: {reason}")
                refused.append({"where": where, "reason": str(reason)})
        result.update(changed=False, results=results, refused=refused)
        return result

    def _services(self, planned: dict[str, Any], host: str, wanted: list[str]) -> list[dict[str, Any]]:
        """Return the services of a host that are to be measured. wanted: their names, empty for all."""
        everywhere = {service["name"] for body in planned.values() for service in body["services"]}
        unknown = [name for name in wanted if name not in everywhere]
        if unknown:
            hint = validation.nearest(unknown[0], everywhere)
            raise AnsibleActionFail(
                f"nothing was measured: no host of the inventory has a service '{unknown[0]}'{hint} "
                f"Known: {', '.join(sorted(everywhere))}."
            )
        return [
            service
            for service in (planned.get(host) or {}).get("services") or []
            if service["url"] and not service["rank"] and (not wanted or service["name"] in wanted)
        ]

    def report(self, name: str, against: str, dest: str) -> dict[str, Any]:
        """Print tables and charts of what the hosts of the play measured, write JSON where asked to.

        :param name: the variable that holds each host's result of this action
        :param against: another one, whose results are shown beside those, or empty
        :param dest: a file on the controller, or empty
        :returns: the result of the action
        """
        results, refused = self._of_hosts(name)
        others, more = self._of_hosts(against) if against else ([], [])
        refused += [entry for entry in more if entry not in refused]
        pairs = [(a, b) for a in results for b in others if a["where"].split("/")[0] == b["where"].split("/")[0]]
        display.display(bench_compare.report([*results, *others], refused))
        if pairs:
            display.display("\n" + bench_pairs.report(pairs))
        results += others
        if dest:
            body = dict(zip(BODY_KEYS, (bench_compare.SCHEMA, results, refused)))
            if against:
                body["pairs"] = [{"a": a["where"], "b": b["where"], "rows": bench_pairs.rows(a, b)} for a, b in pairs]
            write(Path(of_fleet(dest, self.variables)), json.dumps(body, indent=2, sort_keys=True) + "\n")
        found = {"results": results, "refused": refused, "failed": bool(refused), "_ansible_verbose_override": True}
        if refused:
            found["msg"] = f"not measured: {', '.join(entry['where'] for entry in refused)}; the reasons stand above"
        return found

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
        return {
            "where": where,
            "service": service["name"],
            "offline": row,
            "findings": [],
            "published": [],
            "left_out": [],
        }

    def recipes(self, host: str) -> dict[str, Any]:
        """Return the recipes that the inventory knows, for what is published; one that cannot be read is left out."""
        folders = [Path(str(entry)) for entry in self.variables.get("spark_recipe_dirs") or []]
        known, _wrong = load_recipes([RECIPES, *[folder for folder in folders if folder.is_dir()]])
        return known

    def step(self, step: str, **task: Any) -> dict[str, Any]:
        """Run one step on the host. Raises Refused with what went wrong."""
        answer: dict[str, Any] = self._execute_module(
            module_name=MODULE,
            module_args={"step": step, "task": {**self.service, **task}},
            task_vars=self.variables,
        )
        if answer.get("failed"):
            raise Refused(foreign_text.printable(str(answer.get("msg") or "it failed without a word")))
        answer = checked_answer(
            answer, answers.SERVICE_BENCH[step], str(self.variables.get("inventory_hostname") or ""), MODULE
        )
        if answer.get("problem"):
            raise Refused(". ".join(text for text in (answer["problem"], answer.get("fix")) if text))
        return answer

    def idle(self) -> dict[str, Any]:
        """Wait until nobody else is served; return what the service is."""
        began = time.monotonic()
        while True:
            found = self.step("look")
            if not found["busy"] or self.settings["disturb"]:
                return found
            if time.monotonic() - began >= self.settings["idle_seconds"]:
                raise Refused(
                    f"others are being served: {', '.join(found['busy'])}. A measurement would slow them and be wrong itself. "
                    "Run it when the host is idle, or anyway with spark_bench: {disturb: true}"
                )
            time.sleep(min(IDLE_POLL, max(1, self.settings["idle_seconds"])))

    def _measure(
        self,
        where: str,
        service: dict[str, Any],
        others: list[dict[str, str]],
        known: dict[str, Any],
        host_plan: dict[str, Any],
    ) -> dict[str, Any]:
        """Measure one service, write its receipt, and return its section with what is published beside it."""
        settings = self.settings
        self.service = {
            **{name: service["probe"].get(name) for name in ("name", "url", "model", "api_key_file")},
            "container": service["container"],
            "receipts": self.receipts,
            "beside": others,
            "api": "chat",
            "extras": 0,
            "thinking": settings["thinking"],
            "output_tokens": settings["output_tokens"],
            "sysroot": (host_plan.get("settings") or {}).get("sysroot") or "/",
        }
        found = self.idle()
        self.until = time.monotonic() + settings["seconds"]
        new = self._workload(where, service, found)
        previous = (found["receipt"] or {}).get("benchmark")
        section, findings = bench_compare.compare(previous, new, service["name"], settings)
        if found["receipt"] is None:
            section["left_out"] = [
                *new["left_out"],
                "the receipt: there is none yet, site.yml --tags prove writes it; the figures were not kept",
            ]
        else:
            self.keep(service, section)
        base = of_recipe(known, service)
        sparks = (service["cluster"] or {}).get("size", 1)
        rows, more = bench_compare.published(base.get("expect") or [], section, service, base, sparks)
        return {
            "where": where,
            "service": service["name"],
            **section,
            "published": rows,
            "findings": [*findings, *more],
        }

    def _workload(self, where: str, service: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
        """Measure single requests, then several at once; found: what the service is. Returns C(new) of C(bench_compare.compare)."""
        settings = self.settings
        fitting, left = benchmark.lengths(settings, found["max_model_len"])
        if not fitting:
            raise Refused(
                f"its context of {found['max_model_len']} tokens has no room for an answer of {settings['output_tokens']}: set "
                "output_tokens of spark_bench lower"
            )
        left_out = [f"prompts of {length} tokens: the context is {found['max_model_len']}" for length in left]
        self.done, self.total = 0, len(fitting) * (settings["warmup"] + settings["repeats"])
        contents, prefix_tokens, more = workloads.fitting(settings, found["max_model_len"])
        left_out += more
        self.total += (len(contents) + bool(prefix_tokens)) * (1 + settings["repeats"])
        self.total += len(settings["concurrency"]) + len(settings["request_rates"])
        single, gpu, sizes = self._singles(where, fitting, bool(found["conditions"]["gpu"]), left_out)
        longest = max(sizes)
        content_rows = self._contents(where, contents, left_out)
        prefix = self._prefix(where, prefix_tokens, sizes[longest] / longest, left_out)
        shortest = single[0]["prompt_tokens"]
        paces = [{"level": level} for level in settings["concurrency"]]
        loads = self._loads(where, service, paces, shortest, sizes[shortest], left_out)
        paces = [{"rate": rate, "requests": settings["rate_requests"]} for rate in settings["request_rates"]]
        rates = self._loads(where, service, paces, shortest, sizes[shortest], left_out)
        return {
            "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "conditions": {**found["conditions"], **benchmark.gpu_under_load(gpu)},
            "workload": {
                "prompt_tokens": single[0]["prompt_tokens"],
                "output_tokens": settings["output_tokens"],
                "api": self.service["api"],
                "thinking": settings["thinking"],
                "forced": benchmark.EXTRAS[self.service["extras"]] != (),
                "counted_by": single[0]["counted_by"],
                "prompts": benchmark.PROMPTS,
            },
            "single": single,
            "contents": content_rows,
            "prefix_cache": prefix,
            "concurrency": loads,
            "request_rates": rates,
            "max_num_seqs": (service.get("args") or {}).get("max-num-seqs"),
            "left_out": left_out,
        }

    def _singles(
        self, where: str, fitting: list[int], gpu: bool, left_out: list[str]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[int, int]]:
        """Measure one request at a time; return rows, samples of the GPU, and how many characters each length took."""
        settings = self.settings
        rows: list[dict[str, Any]] = []
        samples: list[dict[str, Any]] = []
        sizes: dict[int, int] = {}
        size = benchmark.characters(fitting[0])
        seen: tuple[int, int] | None = None
        for length in fitting:
            runs: list[dict[str, Any]] = []
            spare = settings["repeats"]  # what others disturbed is measured again, up to so many times
            size = benchmark.characters(length, *(seen or (None, None)))
            number = 0
            warm = settings["warmup"]
            while len(runs) < settings["repeats"]:
                seconds = self.until - time.monotonic()
                if seconds < 1:
                    break
                if not rows and not runs and number == 0:
                    found = self.step("stream", find_out=True, characters=size, seed=f"{length}/warm", seconds=seconds)
                    self.service.update(api=found["api"], extras=found["extras"])
                else:
                    found = self.step(
                        "stream", characters=size, seed=f"{length}/{number - warm}", seconds=seconds, gpu=gpu
                    )
                figures = found["figures"]
                if figures["prompt_tokens"]:
                    seen = (figures["characters"], figures["prompt_tokens"])
                number += 1
                if number <= warm:
                    size = benchmark.characters(length, *(seen or (None, None)))
                    self._tell(where, f"prompt {length}, warm-up", figures)
                    continue
                if figures["seen"]["disturbed"] and spare and not settings["disturb"]:
                    spare -= 1
                    self.total += 1
                    self._tell(where, f"prompt {length}, disturbed by other requests, once more", figures)
                    continue
                runs.append(figures)
                samples += found["gpu"]
                self._tell(where, f"prompt {length}, {len(runs)} of {settings['repeats']}", figures)
            if not runs:
                left_out.append(f"prompts of {length} tokens: the {settings['seconds']} seconds were used up")
                continue
            if len(runs) < settings["repeats"]:
                left_out.append(
                    f"{settings['repeats'] - len(runs)} repeats at {length} tokens: the {settings['seconds']} seconds were used up"
                )
            rows.append(benchmark.single_row(length, runs))
            sizes[length] = size
        if not rows:
            raise Refused(f"not one answer came within {settings['seconds']} seconds; give spark_bench more seconds")
        return rows, samples, sizes

    def _stream(self, where: str, what: str, **task: Any) -> dict[str, Any] | None:
        """Make one request and print how fast it was; None when the time is used up."""
        seconds = self.until - time.monotonic()
        if seconds < 1:
            return None
        figures: dict[str, Any] = self.step("stream", seconds=seconds, **task)["figures"]
        self._tell(where, what, figures)
        return figures

    def _contents(self, where: str, contents: list[str], left_out: list[str]) -> list[dict[str, Any]]:
        """Measure one request at a time by what its answer consists of."""
        rows, repeats = [], self.settings["repeats"]
        for content in contents:
            asked, runs = workloads.CONTENTS[content][0], []
            for number in range(1 + repeats):
                what = f"content {content}, {f'{number} of {repeats}' if number else 'warm-up'}"
                task = {"content": content, "output_tokens": asked, "characters": 0, "seed": content}
                found = self._stream(where, what, **task)
                if found and number:
                    runs.append(found)
            if len(runs) < repeats:
                left_out.append(
                    f"{repeats - len(runs)} repeats of content {content}: the {self.settings['seconds']} seconds were used up"
                )
            if runs:
                rows.append(workloads.content_row(content, runs))
        return rows

    def _prefix(self, where: str, wanted: int, per_token: float, left_out: list[str]) -> dict[str, Any] | None:
        """Measure requests that share a system prompt. per_token: characters a token of this model's prompts."""
        if not wanted:
            return None
        repeats, runs, prefix = self.settings["repeats"], [], f"{time.time_ns():x}"
        for number in range(1 + repeats):
            what = f"shared prompt of {wanted}, {f'{number} of {repeats}' if number else 'first'}"
            task = {"prefix": prefix, "number": number, "characters": round(wanted * per_token), "seed": "prefix"}
            found = self._stream(where, what, output_tokens=workloads.PREFIX_TOKENS, **task)
            if found:
                runs.append(found)
        if len(runs) < 2:
            left_out.append(f"a shared system prompt: the {self.settings['seconds']} seconds were used up")
            return None
        return workloads.prefix_row(runs[0], runs[1:])

    def _loads(
        self,
        where: str,
        service: dict[str, Any],
        paces: list[dict[str, Any]],
        prompt_tokens: int,
        size: int,
        left_out: list[str],
    ) -> list[dict[str, Any]]:
        """Measure several requests. paces: C(level) of them at once each, or C(rate) a second and how many C(requests)."""
        settings = self.settings
        rows: list[dict[str, Any]] = []
        client, told = settings["client"], ""
        for pace in paces:
            what = f"{pace['level']} at once" if "level" in pace else f"{pace['rate']:g} a second"
            seconds = self.until - time.monotonic()
            if seconds < 10:
                left_out.append(f"{what}: the {settings['seconds']} seconds were used up")
                continue
            if "rate" in pace:
                pace = {**pace, "requests": workloads.in_steps(pace["rate"], pace["requests"], seconds)}
            try:
                found = self.step(
                    "load",
                    **pace,
                    client=client,
                    prompt_tokens=prompt_tokens,
                    characters=size,
                    seed=f"load/{pace.get('level') or pace['rate']}",
                    seconds=seconds,
                    args=service.get("args") or {},
                    tokenizer=benchmark.tokenizer(service["model"], service.get("args") or {}),
                    wrapper=WITH_SECRETS if service.get("secrets") else "",
                )
            except Refused as reason:
                left_out.append(f"{what}: {reason}")
                self._tell(where, f"{what}: {reason}", None)
                continue
            row = found["row"]
            rows.append(row)
            if found["reason"] and not told:
                told, client = found["reason"], "own"
                left_out.append(f"vLLM's own client: {told}; this collection's made the requests")
            self._tell(
                where,
                f"{what} ({row['client']}): {row['output_tokens_per_second'] or 0:,.1f} tokens/s together",
                None,
            )
        return rows

    def _tell(self, where: str, what: str, figures: dict[str, Any] | None) -> None:
        """Print how far it is."""
        self.done += 1
        text = ""
        if figures:
            prefill, decode = figures["prefill_tokens_per_second"], figures["decode_tokens_per_second"]
            parts = [f"prefill {prefill:,.0f}" if prefill else "", f"decode {decode:,.1f} tokens/s" if decode else ""]
            text = ": " + ", ".join(part for part in parts if part)
        display.display(f"  {where}: {self.done}/{self.total}: {what}{text}")

    def keep(self, service: dict[str, Any], section: dict[str, Any]) -> None:
        """Put the section into the receipt of the service."""
        answer = self._execute_module(
            module_name=MODULE,
            module_args={
                "step": "keep",
                "task": {"receipts": self.receipts, "name": service["name"], "benchmark": section},
            },
            task_vars=self.variables,
        )
        if answer.get("failed"):
            said = foreign_text.printable(str(answer.get("msg") or "it failed without a word"))
            display.warning(f"{service['name']}: the figures were not kept: {said}")


def beside(planned: dict[str, Any], host: str, service: dict[str, Any]) -> list[dict[str, str]]:
    """Return the services that share a GPU with this one, as far as they can be asked from its host.

    :param planned: the plan, by host
    :param host: of the service
    :param service: of the plan
    :returns: C([{name, url}])
    """
    cluster = service["cluster"]
    found = []
    for name in cluster["hosts"] if cluster else [host]:
        for other in (planned.get(name) or {}).get("services") or []:
            local = name == host or not str(other.get("url") or "").startswith(("http://127.", "http://localhost"))
            if other["name"] != service["name"] and other.get("url") and not other["rank"] and local:
                found.append(
                    {"name": other["name"] if name == host else f"{name}/{other['name']}", "url": other["url"]}
                )
    return found


def of_recipe(known: dict[str, Any], service: dict[str, Any]) -> dict[str, Any]:
    """Return C(images), C(args) and C(expect) of a service's recipe with its variants; a variant's figures replace the recipe's."""
    recipe = known.get(service.get("recipe") or "") or {}
    merged: dict[str, Any] = {
        "images": recipe.get("images"),
        "args": dict(recipe.get("args") or {}),
        "expect": recipe.get("expect"),
    }
    for name in service.get("variant") or []:
        body = (recipe.get("variants") or {}).get(name) or {}
        merged["args"].update(body.get("args") or {})
        merged["expect"] = body.get("expect") or []
        merged["images"] = body.get("images") or merged["images"]
    return merged
