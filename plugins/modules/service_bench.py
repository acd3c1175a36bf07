#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Benchmark the services of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_bench
short_description: Benchmark the services of a host
version_added: 0.1.0
description:
  - Measures prefill and decode of single requests at several prompt lengths, then several requests at once, and on request answers
    of a certain content, a shared system prompt and a rate of requests; compares with the last measurement of the service, which its receipt keeps.
  - Lengths of answers are forced, no two prompts begin alike, and tokens are counted by the engine, those of the reasoning too.
  - Refuses to measure while other requests run on the host, unless told otherwise.
  - Of an engine that spans hosts only the first rank is measured, together with all the others.
  - A companion action plugin makes one measurement a call and prints it, so that a long run shows how far it is.
  - With O(report_from) it prints tables and charts of what all hosts of the play measured, with what is published for the recipes,
    and findings, and fails when a service could not be measured. A figure that got worse is a finding and fails nothing.
  - With the file of the API key the module needs to be root.
options:
  planned:
    description: RV(dgxspark.vllm.plan#module:hosts). Needed to measure.
    type: dict
  settings:
    description: What to measure; the keys of C(spark_bench), which C(docs/benchmarks.md) lists.
    type: dict
    default: {}
  only:
    description: Names of the services to measure, as a list or separated by commas; all of them when empty.
    type: raw
    default: []
  receipts:
    description: Folder of the receipts.
    type: path
    default: /var/lib/dgxspark/receipts
  report_from:
    description: Name of a variable that holds a result of this module on the hosts of the play, which is then shown and nothing is measured.
    type: str
    default: ''
  against:
    description: With O(report_from), another such variable. Both are shown beside each other, host by host.
    type: str
    default: ''
  hosts:
    description: With O(report_from), the hosts that were to measure; all of the play when empty.
    type: list
    elements: str
    default: []
  offline:
    description:
      - Measure the models without their servers, by C(vllm bench throughput) in a container like that of the service. It takes
        the memory of the service, which has to be stopped. Nothing is written to receipts.
    type: bool
    default: false
  dest:
    description:
      - With O(report_from), a file on the controller that gets all of it as JSON; none unless given. A file that is no such report is
        not replaced; the task fails, also without O(report_from), before anything is measured.
    type: str
    default: ''
  step:
    description:
      - For the action plugin. V(look) asks what the service is and whether others use it, V(stream) measures one answer,
        V(load) several at once, V(offline) the model without its server. V(keep) writes the figures into the receipt.
    type: str
    choices: [look, stream, load, offline, keep]
  task:
    description: For the action plugin. What the step needs.
    type: dict
    default: {}
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    support: none
    details:
      - Measuring is making requests. In check mode nothing is measured.
  diff_mode:
    support: none
  idempotent:
    details:
      - Nothing but the figures in the receipts is changed, which count as no change.
seealso:
  - module: dgxspark.vllm.service_proof
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Benchmark the services
  dgxspark.vllm.service_bench:
    planned: "{{ spark_planned.hosts }}"
    settings:
      prompt_tokens: [512, 8192]
      repeats: 5
  become: true
  register: benched

- name: Show the results
  dgxspark.vllm.service_bench:
    report_from: benched
    dest: /tmp/bench.json
  run_once: true
"""

RETURN = r"""
results:
  description: One entry a measured service, as its receipt keeps it, with C(where), C(published) and C(findings).
  returned: when not skipped
  type: list
  elements: dict
  sample:
    - where: spark-1/heavy
      service: heavy
      decode_tokens_per_second: 41.5
      baseline_decode_tokens_per_second: 43.0
      ratio: 0.9651
      comparable: true
refused:
  description: Services that were not measured, and with O(report_from) hosts, each with C(where) and C(reason).
  returned: when not skipped
  type: list
  elements: dict
"""

import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import docker, nvidia_smi
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import (
    benchmark,
    offline,
    receipt_file,
    receipts,
    workloads,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command, engine_client, hostmem

SAMPLE_SECONDS = 2.0
"""Between two looks at the GPU: one takes a quarter of a second of one of the host's cores."""
REQUEST_SECONDS = 10.0
WARM_TOKENS = 16


class Bench:
    """One service, measured from its own host."""

    def __init__(self, module: AnsibleModule, task: dict[str, Any]) -> None:
        self.module, self.task = module, task
        self.run = command.runner(module)
        self.url, self.model = str(task["url"]), str(task["model"])
        key_file = task.get("api_key_file") or ""
        self.client = engine_client.Client(self.url, engine_client.read_api_key(key_file), key_file)

    def counters(self, url: str | None = None) -> dict[str, float | None]:
        """Return what the engine counts; all None for one without /metrics."""
        try:
            client = self.client if url is None else engine_client.Client(url)
            status, text = client.metrics(REQUEST_SECONDS)
        except engine_client.Problem:
            return benchmark.counters("")
        return benchmark.counters(text if status == 200 else "")

    def look(self) -> dict[str, Any]:
        """Say what the service is, under which conditions it runs, what runs beside it, and what its receipt has."""
        answer = self.client.request_json("GET", "/v1/models", timeout=REQUEST_SECONDS)
        served = {str(entry.get("id")): entry for entry in answer.get("data") or [] if isinstance(entry, dict)}
        if self.model not in served:
            raise engine_client.Problem(
                f"{self.url} serves {', '.join(sorted(served)) or 'no model'}, not {self.model}",
                "run site.yml, so that what runs is what is planned",
            )
        length = served[self.model].get("max_model_len")
        return {
            "max_model_len": length if isinstance(length, int) else None,
            "conditions": self.conditions(),
            "busy": self.busy(),
            "receipt": self.receipt(),
        }

    def conditions(self) -> dict[str, Any]:
        """Return what decides whether two measurements can be compared, as it is on the host now."""
        known = command.noted({}, [], docker.containers, self.run, [str(self.task["container"])])
        container = known[0] if known else {}
        gpu = nvidia_smi.load(self.run) or {}
        try:
            version = self.client.request_json("GET", "/version", timeout=REQUEST_SECONDS).get("version")
        except engine_client.Problem:
            version = None
        return {
            "image_id": container.get("image_id") or None,
            "fingerprint": container.get("fingerprint"),
            "vllm_version": version if isinstance(version, str) else None,
            "gpu": bool(gpu),
            "driver": gpu.get("driver"),
            "power_limit_watts": gpu.get("power_limit_watts"),
        }

    def busy(self) -> list[str]:
        """Return who is being served: this service and those beside it."""
        found = []
        for name, url in [(self.task["name"], None), *[(entry["name"], entry["url"]) for entry in self.task["beside"]]]:
            counted = self.counters(url)
            running, waiting = int(counted["running"] or 0), int(counted["waiting"] or 0)
            if running or waiting:
                found.append(f"{name} ({running} running, {waiting} waiting)")
        return found

    def receipt(self) -> dict[str, Any] | None:
        """Return the receipt of the service, None when there is none that can be read."""
        path = Path(self.task["receipts"]) / f"{self.task['name']}.json"
        try:
            return receipts.load(path.read_text(encoding="utf-8")).plain()
        except (OSError, ValueError):
            return None

    def answer(self, characters: int, seed: str, deadline: float, tokens: int = 0) -> dict[str, Any]:
        """Make one request and return its figures.

        :param characters: of the prompt
        :param seed: that the prompt begins with
        :param deadline: on the clock of C(time.monotonic)
        :param tokens: of the answer, where it is not to be as long as the others
        :returns: the figures
        """
        asked_for = workloads.messages({**self.task, "characters": characters, "seed": seed}, uuid.uuid4().hex)
        asked = tokens or int(self.task["output_tokens"])
        body = benchmark.body(
            self.model, self.task["api"], asked_for, asked, int(self.task["extras"]), self.task.get("thinking")
        )
        path = "/v1/chat/completions" if self.task["api"] == "chat" else "/v1/completions"
        arrivals, usage = [], {}
        sent = time.monotonic()
        for event in self.client.events(path, body, max(deadline - sent, 1.0)):
            now = time.monotonic()
            arrivals.append(benchmark.arrival(now, event))
            if isinstance(event.get("usage"), dict):
                usage = event["usage"]
            if now > deadline:
                raise engine_client.Problem(
                    f"the time was up {now - sent:.0f} s into an answer",
                    "give spark_bench more seconds, or fewer output_tokens",
                    kind="time",
                )
        figures = benchmark.stream_figures(sent, arrivals, usage, asked)
        if figures["ttft_seconds"] is None:
            raise engine_client.Problem(f"{path} ended without a token", "see the unit's log")
        return {**figures, "sent": sent, "characters": sum(len(message["content"]) for message in asked_for)}

    def first_answer(self, deadline: float) -> dict[str, Any]:
        """Find out what the server takes: chat or plain completions, and which of the extra options. Warms up, too."""
        text = str(self.task["seed"])
        while True:
            try:
                return self.answer(int(self.task["characters"]), text, deadline)
            except engine_client.Problem as problem:
                refused = problem.kind == "http" and problem.status in (400, 404, 405, 422, 501)
                if refused and self.task["api"] == "chat" and engine_client.path_unsupported(problem):
                    self.task["api"] = "completions"
                elif refused and problem.status in (400, 422) and int(self.task["extras"]) + 1 < len(benchmark.EXTRAS):
                    self.task["extras"] = int(self.task["extras"]) + 1
                else:
                    raise

    def stream(self) -> dict[str, Any]:
        """Measure one answer, with what the engine counted and how the GPU was meanwhile."""
        deadline = time.monotonic() + float(self.task["seconds"])
        before = self.counters()
        samples: list[dict[str, Any]] = []
        with ThreadPoolExecutor(max_workers=1) as pool:
            if self.task.get("find_out"):
                future = pool.submit(self.first_answer, deadline)
            else:
                future = pool.submit(self.answer, int(self.task["characters"]), str(self.task["seed"]), deadline)
            self.watch_gpu([future], samples)
            figures = future.result()
        figures.pop("sent")
        own = benchmark.seen(before, self.counters(), figures["prompt_tokens"] or 0, figures["completion_tokens"] or 0)
        return {
            "figures": {**figures, "seen": own},
            "gpu": samples,
            "api": self.task["api"],
            "extras": int(self.task["extras"]),
        }

    def watch_gpu(self, futures: Sequence[Future[Any]], samples: list[dict[str, Any]]) -> None:
        """Look at the GPU until the answers are there; programs are run by this thread alone."""
        pause = SAMPLE_SECONDS / 4  # early enough for an answer that does not take long
        while wait(futures, timeout=pause).not_done:
            pause = SAMPLE_SECONDS
            if self.task.get("gpu"):
                sample = nvidia_smi.load(self.run)
                if sample and not all(future.done() for future in futures):
                    samples.append(sample)

    def load(self) -> dict[str, Any]:
        """Measure several answers at once: by vLLM's own client in the service's container, else by this one."""
        self.warm_up()
        before = self.counters()
        reason = ""
        row: dict[str, Any] | None = None
        if self.task["client"] != "own":
            row, reason = self.load_by_vllm()
        if row is None:
            if self.task["client"] == "vllm":
                raise engine_client.Problem(
                    reason,
                    "set client of spark_bench to own, or to auto, which takes the own one where vLLM's cannot be had",
                )
            row = self.load_by_own()
        own = row.pop("tokens", None) or row["requests"] * ((row["prompt_tokens"] or 0) + (row["output_tokens"] or 0))
        judged = benchmark.seen(before, self.counters(), 0, int(own))
        return {
            "row": {**row, "disturbed": judged["disturbed"], "preemptions": judged["preemptions"]},
            "reason": reason,
        }

    def warm_up(self) -> None:
        """Let the engine meet so many requests once before they count: kernels for a batch are made when it first comes."""
        level = int(self.task.get("level") or workloads.WARM_AT_ONCE)
        deadline = time.monotonic() + float(self.task["seconds"])
        with ThreadPoolExecutor(max_workers=level) as pool:
            for number in range(level):
                pool.submit(self.answer, int(self.task["characters"]), f"warm/{number}", deadline, WARM_TOKENS)
        # What fails here fails again where it counts, and is told there.

    def load_by_vllm(self) -> tuple[dict[str, Any] | None, str]:
        """Run C(vllm bench serve); return its row, or why it cannot be had."""
        try:
            free = hostmem.mem_available_gib(hostmem.read_meminfo(str(self.task.get("sysroot") or "/")))
        except OSError:
            free = None
        if free is not None and free < benchmark.LOADER_GIB:
            return None, (
                f"vllm bench serve would load its libraries into the {free:.1f} GiB that are left; "
                f"it is given {benchmark.LOADER_GIB:g}"
            )
        seed = uuid.uuid4().int % 2**31
        options = benchmark.load_options(self.url, self.model, self.task, seed, self.task["args"])
        argv = benchmark.load_command(
            str(self.task["container"]),
            str(self.task.get("wrapper") or ""),
            self.task["tokenizer"],
            max(10, int(float(self.task["seconds"]))),
            options,
        )
        done = self.run(argv, float(self.task["seconds"]) + command.WORK_SECONDS)
        row, reason = benchmark.parse_load(*done, *self.pace())
        if row and row["failed"] and self.task["client"] == "auto":
            return None, f"vllm bench serve: {row['failed']} of {row['requests']} requests failed"
        return row, self.client.redact(reason)

    def offline(self) -> dict[str, Any]:
        """Run C(vllm bench throughput) in the place of the service."""
        known = docker.containers(self.run, [str(self.task["container"])])
        if any(entry.get("state") == "running" for entry in known):
            raise engine_client.Problem(f"{self.task['container']} runs, and has the memory", "stop the service first")
        seconds = float(self.task["seconds"]) + command.WORK_SECONDS
        row, reason = offline.parse(*self.run(list(self.task["argv"]), seconds), self.task["settings"])
        if row is None:
            raise engine_client.Problem(
                reason, "see what it says; the options of the service are those that it was given"
            )
        return {"row": row}

    def pace(self) -> tuple[float, str]:
        """Return how requests come, and what that number is: at once, or a second."""
        rate = self.task.get("rate")
        return (float(rate), "request_rate") if rate else (int(self.task["level"]), "concurrency")

    def load_by_own(self) -> dict[str, Any]:
        """Keep so many requests under way until all are answered, or begin them at the moments of their rate."""
        level, kind = self.pace()
        deadline = time.monotonic() + float(self.task["seconds"])
        size, seed = int(self.task["characters"]), str(self.task["seed"])
        runs, failed, first_problem = [], 0, None
        if kind == "concurrency":
            moments, workers = [0.0] * (int(level) * benchmark.ROUNDS), int(level)
        else:
            moments = workloads.arrivals(level, int(self.task["requests"]), seed)
            workers = min(workloads.MOST_AT_ONCE, len(moments))
        started = time.monotonic()
        with ThreadPoolExecutor(max_workers=workers) as pool:
            futures = []
            for number, moment in enumerate(moments):
                time.sleep(max(0.0, started + moment - time.monotonic()))
                futures.append(pool.submit(self.answer, size, f"{seed}/{number}", deadline))
            for future in futures:
                try:
                    runs.append(future.result())
                except engine_client.Problem as problem:
                    failed, first_problem = failed + 1, first_problem or problem
        if not runs and first_problem is not None:
            raise first_problem
        began = min(run["sent"] for run in runs)
        ended = max(run["sent"] + run["seconds"] for run in runs)
        tokens = sum((run["prompt_tokens"] or 0) + (run["completion_tokens"] or 0) for run in runs)
        return {**benchmark.load_row(level, runs, ended - began, failed, kind), "tokens": tokens}


def main() -> None:
    """Run one step."""
    module = AnsibleModule(
        argument_spec={
            "planned": {"type": "dict"},
            "settings": {"type": "dict", "default": {}},
            "only": {"type": "raw", "default": []},
            "receipts": {"type": "path", "default": "/var/lib/dgxspark/receipts"},
            "report_from": {"type": "str", "default": ""},
            "against": {"type": "str", "default": ""},
            "hosts": {"type": "list", "elements": "str", "default": []},
            "offline": {"type": "bool", "default": False},
            "dest": {"type": "str", "default": ""},
            "step": {"type": "str", "choices": ["look", "stream", "load", "offline", "keep"]},
            "task": {"type": "dict", "default": {}},
        },
    )
    step, task = module.params["step"], dict(module.params["task"])
    if not step:
        module.fail_json(msg="service_bench is started by its action plugin; call it as dgxspark.vllm.service_bench")
    if step == "keep":
        path = f"{task['receipts']}/{task['name']}.json"
        module.exit_json(**receipt_file.keep_benchmark(module, path, task["benchmark"]))
    result: dict[str, Any] = {"changed": False, "problem": "", "fix": ""}
    try:
        with command.failing(module):
            result.update(getattr(Bench(module, task), step)())
    except engine_client.Problem as problem:
        result.update(problem=problem.message, fix=problem.fix, kind=problem.kind)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
