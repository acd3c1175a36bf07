# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the stages of a service's last start took, and what would make the next one shorter. Pure functions.

Each piece of advice has the figures of the service itself, and those that others reported, with their source. What nobody reported
figures of is not advised: C(runai_streamer), for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._common.findings import Finding
from .._common.sizes import GIB
from .._runtime import start_stages
from .._vllm import catalogue, versions

LEAST_SECONDS = 30.0
"""A stage below it is not worth advice."""
SLOWER = 3.0
"""By how much a load takes longer than the shortest known one of its launch before it is worth a warning; a bound of our own. The report of memory
without large blocks has it more than five times as long (106 s, over 10 min)."""
COMPILED_AGAIN = 0.5
"""Share of what compiling took before, above which a start compiled anew."""
USUAL_LOADERS = ("", "auto", "safetensors")
NO_DRAFT_OVER_HOSTS = "instanttensor"
"""Its worker died on two hosts with a drafter: eugr/spark-vllm-docker#377, tonyd2wild."""

CACHES = "FujitsuPolycom/sparkring: Qwen3.8-Flash-Next on four hosts, 476.9 s cold, 202.7 s warm; on two, 546.8 s and 244.3 s"
LOADERS = "NVIDIA's playbooks and recipes for DGX Spark have fastsafetensors; eugr/spark-vllm-docker#377: 50 s with instanttensor, 10 min without"
BLOCKS = "FujitsuPolycom/sparkring#173, MiaAI V4.1#23: a load of 106 s took over 10 min after a week of serving; only a reboot gave blocks back"
EAGER = "own measurement, vLLM 0.26.0 on an H100: of 157 s a 4B compiled for 38 s and captured graphs for 7 s; a 30B MoE 56 s and 21 s"


def findings(service: Mapping[str, Any], starts: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Say what the last start of a service took, and what would shorten it.

    :param service: as it is planned, of which C(name), C(args), C(on_demand), C(vllm_version), C(memory) and C(cluster) are read
    :param starts: the last ones, the oldest first, of C(start_stages.checked)
    :returns: findings; none where no start is known
    """
    same = start_stages.alike(starts)
    if not same:
        return []
    last, before = same[-1], same[:-1]
    all_findings = [_took(service, last, bool(before)), *_waited(service, last), *_slower(service, last, before)]
    return [*all_findings, *_loader(service, last), *_compiled(service, last, before), *_graphs(service, last)]


def of_host(services: Sequence[Mapping[str, Any]], recorded_starts: Any) -> list[Finding]:
    """Say what the last starts of a host's services took, and what would shorten the next ones.

    :param services: of its plan
    :param recorded_starts: the last starts by service, as C(health.starts) of M(dgxspark.vllm.spark_info) has them; anything else counts as none
    :returns: findings, those of a service together
    """
    starts = recorded_starts if isinstance(recorded_starts, Mapping) else {}
    return [
        finding
        for service in services
        for finding in findings(service, start_stages.checked({"starts": starts.get(service["name"])}))
    ]


def _found(rule: str, severity: str, service: Mapping[str, Any], message: str, fix: str, source: str = "") -> Finding:
    name = str(service.get("name") or "")
    return Finding(f"start.{rule}", severity, message, fix, name, source=source, basis="measured")


def _took(service: Mapping[str, Any], last: Mapping[str, Any], is_restart: bool) -> Finding:
    """What each stage took."""
    text = f"its last start took {last['seconds']:.0f} s: {start_stages.text(last['stages'])}."
    compiled = last["said"].get("compile_seconds")
    if compiled:
        text += f" It compiled for {compiled:.0f} s."
    if is_restart or not compiled:
        return _found("took", "info", service, text, "")
    fix = "It is the first known start of this launch. The next one finds what this one compiled, and took less than half in two reports."
    return _found("took", "info", service, text, fix, CACHES)


def _waited(service: Mapping[str, Any], last: Mapping[str, Any]) -> list[Finding]:
    """A start that waited for its turn or for memory."""
    waited = last["stages"].get(start_stages.GATE, 0.0)
    if waited < LEAST_SECONDS:
        return []
    text = f"its last start waited for {waited:.0f} s of {last['seconds']:.0f} s before the engine was started: for its turn, or for memory."
    fix = f"journalctl -u spark-{service.get('name')} -g spark-unit says for what. Engines of one host load one after the other."
    return [_found("waited", "info", service, text, fix)]


def _slower(service: Mapping[str, Any], last: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Weights that took much longer to load than they did before: the page cache is emptied before each load, so loads are alike."""
    took, usual_seconds = (
        last["stages"].get("load", 0.0),
        [start["stages"]["load"] for start in before if "load" in start["stages"]],
    )
    if took < LEAST_SECONDS or not usual_seconds or took < SLOWER * max(min(usual_seconds), 1.0):
        return []
    text = f"its weights took {took:.0f} s to load; the same launch did it in {min(usual_seconds):.0f} s before."
    fix = (
        "See `cat /proc/buddyinfo`: with no free blocks in the last columns reboot the host. Else see what reads from the disk at the time, "
        "and its health (nvme smart-log /dev/nvme0)."
    )
    return [_found("load_slower", "warning", service, text, fix, BLOCKS)]


def _loader(service: Mapping[str, Any], last: Mapping[str, Any]) -> list[Finding]:
    """Weights that are loaded in vLLM's usual way."""
    took, args = last["stages"].get("load", 0.0), service.get("args") or {}
    if took < LEAST_SECONDS or str(args.get("load-format") or "") not in USUAL_LOADERS:
        return []
    release = versions.parse_version(str(service.get("vllm_version") or ""))
    spans = bool(service.get("cluster"))
    names = [
        name
        for name in ("fastsafetensors", "instanttensor")
        if catalogue.has("load_formats", name, release) is not False
        and not (name == NO_DRAFT_OVER_HOSTS and spans and args.get("speculative-config"))
    ]
    if not names:
        return []
    weights = (service.get("memory") or {}).get("weights_bytes")
    rate = ""
    if isinstance(weights, (int, float)) and weights > 0:
        rate = f", {weights / GIB:.1f} GiB at {weights / GIB / took:.2f} GiB/s"
    text = f"its weights took {took:.0f} s of the {last['seconds']:.0f} s of its last start{rate}."
    fix = (
        f"Try load-format: {' or '.join(names)}, and compare this figure. They take memory of their own (instanttensor 4.4 GiB in one report), "
        "and loads with either were reported that hung."
    )
    return [_found("load_format", "info", service, text, fix, LOADERS)]


def _compiled(
    service: Mapping[str, Any], last: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> list[Finding]:
    """A launch that compiles at each start what it could keep."""
    took = last["said"].get("compile_seconds", 0.0)
    compile_seconds = [start["said"]["compile_seconds"] for start in before if start["said"].get("compile_seconds")]
    if took < LEAST_SECONDS or not compile_seconds or took < COMPILED_AGAIN * max(compile_seconds):
        return []
    text = f"its last start compiled for {took:.0f} s, although the same launch had compiled before ({max(compile_seconds):.0f} s)."
    fix = (
        "See whether its folder below spark_cache_dir is kept and has room, and whether its env turns compile caches off; an image of another "
        "id empties it once."
    )
    return [_found("compiled_again", "warning", service, text, fix, CACHES)]


def _graphs(service: Mapping[str, Any], last: Mapping[str, Any]) -> list[Finding]:
    """A service on demand, whose start people wait for, that compiles and captures graphs."""
    args = service.get("args") or {}
    if not service.get("on_demand") or args.get("enforce-eager"):
        return []
    compiled, captured = last["said"].get("compile_seconds", 0.0), last["stages"].get("graphs", 0.0)
    if compiled + captured < LEAST_SECONDS:
        return []
    text = (
        f"its requests wait for its start, of whose {last['seconds']:.0f} s it compiled for {compiled:.0f} s and captured CUDA graphs for "
        f"{captured:.0f} s."
    )
    fix = (
        "Where it is asked rarely, enforce-eager: true leaves both out. Its answers get slower then; bench.yml with and without says by how "
        "much. With compile caches kept, later starts compile less: see the next one first."
    )
    return [_found("graphs", "info", service, text, fix, EAGER)]
