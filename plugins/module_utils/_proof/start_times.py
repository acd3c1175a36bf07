# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Durations of the stages of a service's last start, and advice for a shorter one. Pure functions.

Each piece of advice has the figures of the service, and reported figures with their source. Measures without reported figures are
not advised, such as C(runai_streamer).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._common.findings import Finding
from .._common.sizes import GIB
from .._runtime import start_stages
from .._vllm import catalogue, versions

LEAST_SECONDS = 30.0
"""Shorter stages get no advice."""
SLOWER = 3.0
"""A load that takes this many times the shortest known load of its launch gets a warning; our own bound. The report of fragmented
memory has a factor above five (106 s, over 10 min)."""
COMPILED_AGAIN = 0.5
"""Share of an earlier compile time above which a start compiled again."""
USUAL_LOADERS = ("", "auto", "safetensors")
NO_DRAFT_OVER_HOSTS = "instanttensor"
"""Its worker died on two hosts with a drafter: eugr/spark-vllm-docker#377, tonyd2wild."""

CACHES = "FujitsuPolycom/sparkring: Qwen3.8-Flash-Next on four hosts, 476.9 s cold, 202.7 s warm; on two, 546.8 s and 244.3 s"
LOADERS = "NVIDIA's playbooks and recipes for DGX Spark have fastsafetensors; eugr/spark-vllm-docker#377: 50 s with instanttensor, 10 min without"
BLOCKS = "FujitsuPolycom/sparkring#173, MiaAI V4.1#23: a load of 106 s took over 10 min after a week of serving; only a reboot gave blocks back"
EAGER = "own measurement, vLLM 0.26.0 on an H100: of 157 s a 4B compiled for 38 s and captured graphs for 7 s; a 30B MoE 56 s and 21 s"


def findings(service: Mapping[str, Any], starts: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return findings about the duration of a service's last start, with advice. service: of the plan. starts: of C(start_stages.checked)."""
    same = start_stages.alike(starts)
    if not same:
        return []
    last, before = same[-1], same[:-1]
    slow_load = [*_slower(service, last, before), *_loader(service, last)]
    return [*_took(service, last, bool(before)), *slow_load, *_compiled(service, last, before), *_graphs(service, last)]


def of_host(services: Sequence[Mapping[str, Any]], recorded_starts: Any) -> list[Finding]:
    """Return the findings of a host's services. recorded_starts: by service, C(health.starts) of M(dgxspark.vllm.spark_info)."""
    starts = recorded_starts if isinstance(recorded_starts, Mapping) else {}
    return [
        finding
        for service in services
        for finding in findings(service, start_stages.checked({"starts": starts.get(service["name"])}))
    ]


def _finding(rule: str, severity: str, service: Mapping[str, Any], message: str, fix: str, source: str = "") -> Finding:
    name = str(service.get("name") or "")
    return Finding(f"start.{rule}", severity, message, fix, name, source=source, basis="measured")


def _took(service: Mapping[str, Any], last: Mapping[str, Any], is_restart: bool) -> Iterator[Finding]:
    """Yield a finding with the duration of each stage, and one about a start that waited for its turn or for memory."""
    text = f"its last start took {last['seconds']:.0f} s: {start_stages.text(last['stages'])}."
    compiled, fix, source = last["said"].get("compile_seconds"), "", ""
    if compiled:
        text += f" It compiled for {compiled:.0f} s."
    if compiled and not is_restart:
        fix = "It is the first known start of this launch. The next one finds what this one compiled, and took less than half in two reports."
        source = CACHES
    yield _finding("took", "info", service, text, fix, source)
    waited = last["stages"].get(start_stages.GATE, 0.0)
    if waited >= LEAST_SECONDS:
        text = f"its last start waited for {waited:.0f} s of {last['seconds']:.0f} s before the engine was started: for its turn, or for memory."
        fix = f"journalctl -u spark-{service.get('name')} -g spark-unit says for what. Engines of one host load one after the other."
        yield _finding("waited", "info", service, text, fix)


def _slower(service: Mapping[str, Any], last: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return a finding about weights that loaded much slower than before; each load starts with an empty page cache."""
    took = last["stages"].get("load", 0.0)
    usual_seconds = [start["stages"]["load"] for start in before if "load" in start["stages"]]
    if took < LEAST_SECONDS or not usual_seconds or took < SLOWER * max(min(usual_seconds), 1.0):
        return []
    text = f"its weights took {took:.0f} s to load; the same launch did it in {min(usual_seconds):.0f} s before."
    fix = (
        "See `cat /proc/buddyinfo`: with no free blocks in the last columns reboot the host. Else see what reads from the disk at the time, "
        "and its health (nvme smart-log /dev/nvme0)."
    )
    return [_finding("load_slower", "warning", service, text, fix, BLOCKS)]


def _loader(service: Mapping[str, Any], last: Mapping[str, Any]) -> list[Finding]:
    """Return a finding about weights that vLLM loads in its usual way."""
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
        f"Try load-format: {' or '.join(names)}, and compare this figure. They use extra memory (instanttensor 4.4 GiB in one report), and hanging "
        "loads were reported for both."
    )
    return [_finding("load_format", "info", service, text, fix, LOADERS)]


def _compiled(
    service: Mapping[str, Any], last: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> list[Finding]:
    """Return a finding about a launch that compiles again at each start."""
    took = last["said"].get("compile_seconds", 0.0)
    compile_seconds = [start["said"]["compile_seconds"] for start in before if start["said"].get("compile_seconds")]
    if took < LEAST_SECONDS or not compile_seconds or took < COMPILED_AGAIN * max(compile_seconds):
        return []
    text = f"its last start compiled for {took:.0f} s, although the same launch had compiled before ({max(compile_seconds):.0f} s)."
    fix = (
        "See whether its folder below spark_cache_dir is kept and has room, and whether its env turns compile caches off; an image of another "
        "id empties it once."
    )
    return [_finding("compiled_again", "warning", service, text, fix, CACHES)]


def _graphs(service: Mapping[str, Any], last: Mapping[str, Any]) -> list[Finding]:
    """Return a finding about a service on demand that compiles and captures graphs while users wait."""
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
        "If requests are rare, enforce-eager: true skips both. Answers get slower; measure it with bench.yml. Later starts compile less if compile "
        "caches are kept: see the next start first."
    )
    return [_finding("graphs", "info", service, text, fix, EAGER)]
