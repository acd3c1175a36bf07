#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Benchmark the services of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_bench
short_description: Benchmark the services of a host
description:
  - Runs C(vllm bench serve) of the service's image in its container, and compares prefill and decode of single requests at several prompt lengths, a shared
    prefix, several requests at once and, if set, contents of answers and rates of requests with the baseline in the receipt of the service.
  - Lengths of answers are forced, no two prompts begin alike, and the engine counts the tokens, including reasoning. For an engine over several hosts, the
    requests go to the first rank. Refuses to measure while other requests run on the host, unless C(disturb) is set.
  - With O(report_from) it prints tables, charts and findings of all hosts of the play, with predictions of the plan and published figures
    of the recipes, and fails if a service could not be measured. A lower figure is a finding and does not fail.
  - Reading a file with an API key requires root.
options:
  planned:
    description: RV(dgxspark.vllm.plan#module:hosts). Needed to measure.
    type: dict
  settings:
    description: Settings, the keys of C(spark_bench) in C(docs/benchmarks.md).
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
    description: Name of the variable with the result of this module on each host of the play. It is shown, and nothing is measured.
    type: str
    default: ''
  against:
    description: With O(report_from), another such variable. Both results are compared host by host.
    type: str
    default: ''
  hosts:
    description: With O(report_from), the hosts that should have measured; all of the play when empty.
    type: list
    elements: str
    default: []
  offline:
    description: Measure the models without their servers, by C(vllm bench throughput) in a container like the service's. It needs the memory of
      the service, so stop the service first. Receipts are not changed.
    type: bool
    default: false
  dest:
    description: With O(report_from), a file on the controller for the results as JSON. Another existing file is never replaced; the task fails before
      it measures.
    type: str
    default: ''
  step:
    description: For the action plugin. V(look) reads the service and its other requests, V(measure) runs C(vllm bench serve) once, V(offline)
      runs C(vllm bench throughput) once, V(keep) writes the results into the receipt.
    type: str
    choices: [look, measure, offline, keep]
  task:
    description: For the action plugin. Input of the step.
    type: dict
    default: {}
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    support: none
    details:
      - In check mode nothing is measured.
  idempotent:
    details:
      - Only the results in the receipts are written, which is not reported as a change.
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
  description: One entry per measured service, as in its receipt, with C(where), C(published), C(predicted) and C(findings).
  returned: when not skipped
  type: list
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

import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import docker, nvidia_smi
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import (
    benchmark,
    offline,
    receipt_file,
    receipts,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command, engine_client, hostmem

SAMPLE_SECONDS = 2.0
"""Between two looks at the GPU: one takes a quarter of a second of one of the host's cores."""
REQUEST_SECONDS = 10.0


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
        """Return the context length, the conditions, the busy services and the receipt."""
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
        """Return the present conditions that decide whether two measurements can be compared."""
        containers = command.noted({}, [], docker.containers, self.run, [str(self.task["container"])])
        container = containers[0] if containers else {}
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
        """Return which services have requests: this one and its neighbours on the GPU."""
        busy = []
        for name, url in [(self.task["name"], None), *[(entry["name"], entry["url"]) for entry in self.task["beside"]]]:
            counted = self.counters(url)
            running, waiting = int(counted["running"] or 0), int(counted["waiting"] or 0)
            if running or waiting:
                busy.append(f"{name} ({running} running, {waiting} waiting)")
        return busy

    def receipt(self) -> dict[str, Any] | None:
        """Return the receipt of the service, None if it is missing or cannot be read."""
        path = Path(self.task["receipts"]) / f"{self.task['name']}.json"
        try:
            return receipts.load(path.read_text(encoding="utf-8")).to_dict()
        except (OSError, ValueError):
            return None

    def measure(self) -> dict[str, Any]:
        """Run C(vllm bench serve) once, with what the engine counted and how the GPU was meanwhile."""
        workload = benchmark.Workload(**self.task["workload"])
        self.check_memory()
        api, args = str(self.task["api"]), self.task["args"]
        # The same seed gives the same prose; random prompts of an earlier run would be in the prefix cache.
        seed = 0 if workload.part in ("single", "contents") else uuid.uuid4().int % 2**31
        text, dataset = benchmark.dataset(workload, uuid.uuid4().hex[:4])
        options = benchmark.serve_options(workload, self.url, self.model, api, self.task["thinking"], seed, args)
        argv = benchmark.serve_command(
            str(self.task["container"]),
            str(self.task["wrapper"]),
            self.task["tokenizer"],
            int(self.task["seconds"]),
            text,
            [*options, *dataset],
        )
        before = self.counters()
        output, samples = self.run_watched(argv)
        after = self.counters()
        try:
            result = benchmark.parse_output(*output, "vllm bench serve")
            prompt_tokens, generated = benchmark.tokens(workload, result, api)
            seen = benchmark.compare_counters(before, after, prompt_tokens, generated)
            return {"row": benchmark.row(workload, result, seen), "gpu": samples}
        except ValueError as error:
            raise engine_client.Problem(self.client.redact(str(error))) from None

    def check_memory(self) -> None:
        """Raise a Problem if the host has no memory for a second copy of vLLM's libraries."""
        try:
            free = hostmem.mem_available_gib(hostmem.read_meminfo(str(self.task["sysroot"])))
        except OSError:
            return
        if free is not None and free < benchmark.CLIENT_GIB:
            raise engine_client.Problem(
                f"vllm bench serve needs {benchmark.CLIENT_GIB:g} GiB for vLLM's libraries; {free:.1f} GiB are free",
                "give a service on the host less memory, or stop one",
            )

    def run_watched(self, argv: list[str]) -> tuple[tuple[int, str, str], list[dict[str, Any]]]:
        """Run a program, and sample the GPU while the engine answers requests; return both."""
        samples = []
        with ThreadPoolExecutor(max_workers=1) as pool:
            answer = pool.submit(self.run, argv, float(self.task["seconds"]) + command.WORK_SECONDS)
            while wait([answer], timeout=SAMPLE_SECONDS).not_done:
                if self.task["gpu"] and self.counters()["running"]:
                    sample = nvidia_smi.load(self.run)
                    if sample:
                        samples.append(sample)
        return answer.result(), samples

    def offline(self) -> dict[str, Any]:
        """Run C(vllm bench throughput) in the place of the service."""
        containers = docker.containers(self.run, [str(self.task["container"])])
        if any(entry.get("state") == "running" for entry in containers):
            raise engine_client.Problem(f"{self.task['container']} runs, and has the memory", "stop the service first")
        seconds = float(self.task["seconds"]) + command.WORK_SECONDS
        output = self.run(list(self.task["argv"]), seconds)
        try:
            result = benchmark.parse_output(*output, "vllm bench throughput")
            return {"row": offline.row(result, self.task["settings"])}
        except ValueError as error:
            raise engine_client.Problem(
                str(error), "see what it says; the options of the service are those that it was given"
            ) from None


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
            "step": {"type": "str", "choices": ["look", "measure", "offline", "keep"]},
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
