# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a host that runs services already: checks beside those of the plan and of the proof. Pure functions.

What a plan can say of a host (C(preflight.py), memory, fabric, rules) and what a proof can (C(residency.py), C(fast_path.py)) is said
there. Here is what shows only while a host runs: units, answers, receipts, kernel log, disks, clock, swap, images, caches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._common.findings import SEVERITIES, Finding
from .._host import guard_account
from .._runtime import guard as memory_guard
from .._vllm import versions

MEMORY_LOW_GIB, MEMORY_CRITICAL_GIB = 4.0, 2.0
SWAP_GIB = 1.0
SHM_GIB = 1.0
DISK_LOW_GIB, DISK_FULL_GIB = 10.0, 1.0
CACHE_GIB = 8.0
"""Page cache that is worth a word while an engine is about to load."""
CLOCK_SECONDS = 30.0
OLD_RECEIPT_DAYS = 90.0
WENT_OFF_DAYS = 14.0
DAY_SECONDS = 86400.0
UNUSED_IMAGES_GIB = 20.0
PROCESS_MIB = 1024
BUSY_PERCENT, STUCK_MHZ, STUCK_WATTS = 90.0, 1000.0, 40.0
FAN = "doctor.fan"
"""A sign that says something of a host that is warm while nothing runs; see C(check_heat)."""
IDLE_PERCENT, WARM_C = 10.0, 55.0
PINNED, PINNED_BEFORE = "doctor.memory_pinned", "0.24.0"
"""A sign that says something of vLLM before that version."""
MANY_REQUESTS = 8
"""Requests at once from which drafts are reported to cost more than they bring."""


@dataclass(frozen=True)
class Sign:
    """A line of a log that means something: what it is called, how bad, what it says and what to do."""

    rule: str
    severity: str
    pattern: str
    message: str
    fix: str


KERNEL_SIGNS = (
    Sign(
        "doctor.gpu_memory_refused",
        "error",
        r"NVRM: .*NV_ERR_NO_MEMORY",
        "the driver was refused memory; whole hosts froze after that line",
        "Lower gpu-memory-utilization of the largest service, or spread the services; reboot if the GPU does not answer.",
    ),
    Sign(
        "doctor.gpu_fault",
        "error",
        r"NVRM: Xid",
        "the GPU reported a fault (Xid)",
        "Look the number up in NVIDIA's list of Xid errors; restart the service, and reboot if it comes again.",
    ),
    Sign(
        "doctor.driver_mismatch",
        "error",
        r"NVRM: API mismatch",
        "kernel module and libraries of the driver are of different versions",
        "Reboot: the driver was updated while it was in use.",
    ),
    Sign(
        "doctor.pcie_fault",
        "error",
        r"AER: (?:Multiple )?Uncorrect(?:able|ed).*Fatal|mlx5_pci_slot_reset",
        "the bus of the ConnectX-7 had a fatal error; the network of the cluster hangs after it",
        "Reboot; if it comes again bring the firmware up to date (fwupdmgr update) and take the power off for a minute.",
    ),
    Sign(
        "doctor.oom_killed",
        "error",
        r"Out of memory: Killed process",
        "the kernel killed a process because memory was used up",
        "See which in `journalctl -k -b -g 'Killed process'`; plan with a larger spark_reserve_gib, or take a service off the host.",
    ),
    Sign(
        "doctor.disk_fault",
        "error",
        r"I/O error, dev |EXT4-fs error|nvme\S* .*(?:timeout, aborting|controller is down)",
        "a disk reported errors",
        "Look at it (nvme smart-log /dev/nvme0; journalctl -k -b), and keep what is only there.",
    ),
    Sign(
        "doctor.heat",
        "warning",
        r"thermal.*(?:critical|throttl)|CPU clock throttled",
        "the host became too hot",
        "Give it air; a lower clock was reported to take 10 degrees and more off: spark_gpu_clocks: {max_mhz: 2200}, then site.yml.",
    ),
    Sign(
        FAN,
        "warning",
        r"cx7-pcie-hotplug .*Cable removal",
        "the host is warm while nothing runs, and its ConnectX-7 was taken off the bus for want of a cable; two owners reported a fan that "
        "stands still then, for reasons that are not known",
        "See whether the fan turns. Plug in a QSFP cable or a display, and shut the host down if it gets hotter.",
    ),
)
"""Of the kernel's log since the boot."""

ENGINE_SIGNS = (
    Sign(
        "doctor.local_media",
        "warning",
        r"allowed[-_]local[-_]media[-_]path",
        "a request named a picture or video by a path of the host, and was refused",
        "Set allowed-local-media-path in args and mount the folder by docker_args, or have clients send URLs or data.",
    ),
    Sign(
        "doctor.chat_template",
        "warning",
        r"jinja2\.exceptions\.|Error in applying chat template|chat template .*(?:failed|invalid)",
        "the chat template could not be applied to a request",
        "Mount a corrected template by files, with chat-template in args; the checkpoint's own may not know tools or roles.",
    ),
    Sign(
        "doctor.cuda_memory",
        "error",
        r"CUDA error: out of memory|torch\.OutOfMemoryError|CUDA out of memory",
        "the GPU had no memory left for the engine",
        "Lower gpu-memory-utilization or max-num-seqs of it, and plan again with spark_plan_facts=auto.",
    ),
    Sign(
        "doctor.ptx",
        "error",
        r"cudaErrorUnsupportedPtxVersion|unsupported toolchain",
        "the image's CUDA is newer than the driver of the host",
        "Take an image of the driver's CUDA (rule SPK308), or bring the host to the next DGX OS release.",
    ),
    Sign(
        "doctor.no_space",
        "error",
        r"No space left on device",
        "there was no room on a disk, or in /dev/shm",
        "See the disks in this report; spark_shm_size is what the container has as /dev/shm.",
    ),
    Sign(
        "doctor.rdma_memory",
        "error",
        r"ibv_reg_mr\S* failed|Call to ibv_reg_mr",
        "NCCL could not register memory with the ConnectX-7",
        "Set no memlock limit (--ulimit memlock=-1); a kernel 7.0 needs kho=off on its command line.",
    ),
    Sign(
        PINNED,
        "warning",
        r"Failed core proc\(s\): \{\}",
        "the engine's process ended while it started; by one report vLLM before 0.24.0 leaves memory taken then, until a reboot",
        "Compare free -g with what the host had after its boot; reboot it if memory is missing, and use vLLM 0.24.0 or newer.",
    ),
    Sign(
        "doctor.compile_cache",
        "warning",
        r"(?:torch_compile_cache|inductor|triton/cache|deep_gemm|flashinfer/\S*cached_ops)\S*.*"
        r"(?:No such file|corrupt|Failed to load|EOFError|UnpicklingError|undefined symbol)",
        "an entry of the compile cache could not be used",
        "Stop the service, empty its folder below spark_cache_dir, start it; the first start compiles for minutes.",
    ),
)
"""Of the last lines of an engine, or of its unit where no container runs."""


def signs(found: Mapping[str, Any], known: Sequence[Sign], service: str = "") -> list[Finding]:
    """Return a finding for each sign that a log has. found: C({rule: {count, last}}) as the module doctor_info counts them."""
    findings = []
    for sign in known:
        seen = found.get(sign.rule)
        if seen:
            times = f"{seen['count']} times, last: " if seen["count"] > 1 else ""
            findings.append(
                Finding(
                    sign.rule,
                    sign.severity,
                    f"{sign.message} ({times}{seen['last']}).",
                    sign.fix,
                    service,
                    basis="measured",
                )
            )
    return findings


def count_signs(lines: Sequence[str], known: Sequence[Sign]) -> dict[str, dict[str, Any]]:
    """Count the signs in lines of a log: C({rule: {count, last}}); C(last) is bounded, for it may be quoted."""
    patterns = [(sign.rule, re.compile(sign.pattern)) for sign in known]
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        for rule, pattern in patterns:
            if pattern.search(line):
                entry = found.setdefault(rule, {"count": 0, "last": ""})
                entry["count"] += 1
                entry["last"] = " ".join(line.split())[:200]
    return found


# --- what an engine answers -----------------------------------------------------------------------------------------

QUESTION = "Write three sentences about the sea."
ANSWER_TOKENS = 64
_SHORTEST = 24


def repeats(text: str) -> str:
    """Say what an answer repeats, or nothing: one sign, or one piece again and again up to its end, as broken kernels do."""
    line = " ".join(text.split())
    if len(line) < _SHORTEST:
        return ""
    sign = max(set(line), key=line.count)
    if sign != " " and line.count(sign) > 0.6 * len(line):
        return sign * 5
    for length in range(1, len(line) // 4 + 1):
        piece, times = line[-length:], 1
        while line[-length * (times + 1) :][:length] == piece and length * (times + 1) <= len(line):
            times += 1
        # A piece that is cut off at the end shifts what is repeated, not that it is.
        if times >= 4 and length * times >= 0.6 * len(line):
            return piece.strip() or piece
    return ""


# --- one host -------------------------------------------------------------------------------------------------------


@dataclass
class HostReport:
    """Everything that is known of one host; parts that nobody could tell are empty.

    planned: the host's plan. facts: C(spark) of spark_info. looked: C(doctor) of doctor_info. answers: C(services) of
    service_info by name. images: of image_info. asked: C({began, ended}) of the task that brought C(looked).
    """

    planned: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    looked: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    images: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, float] = field(default_factory=dict)


def check(report: HostReport) -> list[Finding]:
    """Run all checks of a host; errors first, each kind in the order of the checks."""
    findings: list[Finding] = []
    for one in CHECKS:
        findings += one(report)
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _found(rule: str, severity: str, message: str, fix: str, service: str = "", source: str = "") -> Finding:
    return Finding(f"doctor.{rule}", severity, message, fix, service, source=source, basis="measured")


def check_units(report: HostReport) -> list[Finding]:
    """Units of planned services: there, enabled, running, quiet."""
    findings: list[Finding] = []
    if not report.facts:
        return findings
    units = {unit["name"]: unit for unit in report.facts.get("units") or []}
    running = {
        name for name, unit in units.items() if unit.get("active_state") in ("active", "activating", "reloading")
    }
    services = report.planned.get("services") or []
    taken = {
        service.get("exclusive") for service in services if service["unit"] in running and service.get("exclusive")
    }
    for service in services:
        name, unit = service["name"], units.get(service["unit"])
        if unit is None:
            text = f"{service['unit']} is not on this host."
            findings.append(_found("unit_absent", "error", text, "Run site.yml on it.", name))
            continue
        state = unit.get("active_state")
        log = f"journalctl -u {service['unit']} -n 100"
        beside = service["unit"] not in running and service.get("exclusive") in taken
        meant = service.get("state", "started") == "started" and not beside
        if state == "failed":
            text = f"{service['unit']} has failed ({unit.get('result')}, {unit.get('n_restarts')} restarts)."
            fix = f"See why: {log}; then systemctl reset-failed and systemctl start, or site.yml."
            findings.append(_found("unit_failed", "error", text, fix, name))
        elif state == "inactive" and meant and not unit.get("queued"):
            why = ((report.facts.get("guard") or {}).get("stopped") or {}).get(name)
            text = f"{service['unit']} is stopped, and the inventory wants it to run."
            if why is not None:
                text = f"{service['unit']} was stopped by the guard of the memory: {why or 'it does not say why'}."
            findings.append(_found("unit_stopped", "error", text, "systemctl start it, or run site.yml.", name))
        elif unit.get("n_restarts") and unit.get("type") != "notify":
            text = f"{service['unit']} was restarted {unit['n_restarts']} times since it was started."
            findings.append(_found("unit_restarts", "warning", text, f"See why: {log}.", name))
        if unit.get("enabled") is False and meant:
            text = f"{service['unit']} is not enabled: it does not come back after a reboot."
            findings.append(_found("unit_disabled", "warning", text, "systemctl enable it, or run site.yml.", name))
    known = {service["name"] for service in services}
    for name in sorted(set(report.facts.get("services") or []) - known):
        text = f"the service {name} is still deployed here, and the inventory has it no more."
        findings.append(_found("service_left", "warning", text, "Run site.yml, which removes it.", name))
    return findings


def check_guard(report: HostReport) -> list[Finding]:
    """The guard of the memory, where one is deployed: it runs, memory is not short, and what it restarted within a day."""
    guard = report.facts.get("guard")
    if not guard:
        return []
    unit = guard_account.runs(report.facts.get("units") or [])
    if unit is None or unit != "active":
        if unit is None and report.facts.get("unknown"):
            return []  # not known
        text = f"the guard of the memory does not run: {guard_account.UNIT} is {unit or 'not there'}."
        return [_found("guard_off", "error", text, f"systemctl start {guard_account.UNIT}, or run site.yml.")]
    findings = []
    why = "journalctl -u spark-guard -p warning -n 50 says what it did and why"
    if guard["level"] in (memory_guard.SHORT, memory_guard.CRITICAL):
        who = f" {guard['who']} hold most of it beside the services." if guard["who"] else ""
        text = f"the guard finds memory {guard['level']}: {guard['available_gib'] or 0.0:.2f} GiB available.{who}"
        findings.append(_found("guard_short", "warning", text, f"End what took the memory, or stop a service; {why}."))
    last, now = guard["last"], (report.looked.get("clock") or {}).get("now")
    recent = bool(last and now and last["at"] is not None and 0 <= now - last["at"] < DAY_SECONDS)
    if recent and last["what"] in (memory_guard.RESTART, memory_guard.NAME):
        text = f"the guard acted within a day; {guard_account.did(last)}."
        fix = f"{why}. Plan an engine that grows with a larger spark_safety_margin_gib, or a smaller gpu-memory-utilization."
        findings.append(_found("guard_acted", "warning", text, fix))
    return findings


def check_answers(report: HostReport) -> list[Finding]:
    """Engines: they answer, what they say is no garbage, and they do not stand in one another's way."""
    findings = []
    units = {unit["name"]: unit for unit in report.facts.get("units") or []}
    said = report.looked.get("services") or {}
    busy = []
    for service in report.planned.get("services") or []:
        name = service["name"]
        answer = report.answers.get(name) or {}
        state = (units.get(service["unit"]) or {}).get("active_state")
        if answer.get("ready") is False and state == "active":
            text = f"its unit is active, but it is stuck in stage {answer.get('stage')}: {answer.get('error')}"
            fix = f"journalctl -u {service['unit']} -n 100; a wedged engine wants systemctl restart {service['unit']}."
            findings.append(_found("no_answer", "error", text, fix, name))
        running = answer.get("requests_running") or 0
        if running:
            busy.append((name, running))
        if running >= MANY_REQUESTS and (service.get("args") or {}).get("speculative-config"):
            text = f"{running} requests are served at once, and each step of theirs is shared with drafts."
            fix = "bench.yml with and without speculative-config at this concurrency says which is faster."
            findings.append(_found("drafts_under_load", "info", text, fix, name))
        text = ((said.get(name) or {}).get("answer") or {}).get("text") or ""
        piece = repeats(text)
        if piece:
            message = f"its answer repeats {piece[:40]!r}: {text[:80]!r}"
            fix = (
                "FP4 experts: moe-backend: marlin. An FP8 KV cache: kv-cache-dtype: auto. MTP: without speculative-config. One at a "
                "time; the same question has to come out well."
            )
            findings.append(_found("answer_repeats", "error", message, fix, name))
    if len(busy) > 1:
        names = ", ".join(f"{name} ({count})" for name, count in busy)
        text = f"several engines serve requests at this moment and share one GPU: {names}."
        fix = "bench.yml with and without the neighbour says what it costs; stop or move the one that is not worth it."
        findings.append(_found("gpu_shared", "info", text, fix))
    return findings


def check_logs(report: HostReport) -> list[Finding]:
    """Logs of the kernel and of engines."""
    findings = signs(report.looked.get("kernel_log") or {}, [sign for sign in KERNEL_SIGNS if sign.rule != FAN])
    old = {service["name"] for service in report.planned.get("services") or [] if _before(service, PINNED_BEFORE)}
    for name, said in (report.looked.get("services") or {}).items():
        known = [sign for sign in ENGINE_SIGNS if sign.rule != PINNED or name in old]
        findings += signs(said.get("log") or {}, known, name)
    return findings


def _before(service: Mapping[str, Any], bound: str) -> bool:
    """Whether a service is known to run a vLLM before C(bound)."""
    found = versions.parse_version(str(service.get("vllm_version") or ""))
    return found is not None and versions.at_most(found) < versions.version(bound)


def check_heat(report: HostReport) -> list[Finding]:
    """A host that is warm while its GPU rests."""
    busy, warmth = (report.looked.get("gpu_load") or {}).get("utilization"), report.looked.get("soc_c")
    if busy is None or warmth is None or busy >= IDLE_PERCENT or warmth < WARM_C:
        return []
    return signs(report.looked.get("kernel_log") or {}, [sign for sign in KERNEL_SIGNS if sign.rule == FAN])


def check_receipts(report: HostReport) -> list[Finding]:
    """Receipts: there, readable, not too old, of what is deployed."""
    findings = []
    receipts = report.looked.get("receipts")
    units = {unit["name"]: unit for unit in report.facts.get("units") or []}
    for service in report.planned.get("services") or [] if receipts is not None else []:
        name, receipt = service["name"], (receipts or {}).get(service["name"])
        active = (units.get(service["unit"]) or {}).get("active_state") == "active"
        prove = "Run site.yml --tags prove."
        if receipt is None:
            if active:
                text = "it runs without a receipt: it was never proved on this host."
                findings.append(_found("no_receipt", "warning", text, prove, name))
            continue
        if receipt.get("error"):
            text = f"its receipt cannot be read: {receipt['error']}"
            findings.append(_found("receipt_broken", "warning", text, f"Remove {receipt['path']}, then: {prove}", name))
            continue
        if receipt.get("age_days", 0) > OLD_RECEIPT_DAYS:
            text = f"its last proof was {receipt['age_days']:.0f} days ago."
            findings.append(_found("receipt_old", "info", text, prove, name))
        if receipt.get("image") and service["image"].get("ref") and receipt["image"] != service["image"]["ref"]:
            text = f"it was proved with image {receipt['image']}, and the inventory has {service['image']['ref']}."
            findings.append(_found("receipt_image", "warning", text, "Run site.yml, which brings and proves it.", name))
    return findings


def check_images(report: HostReport) -> list[Finding]:
    """Images: moved tags, registries without an account, what lies about."""
    findings = []
    containers = {container["name"]: container for container in report.facts.get("containers") or []}
    registries = report.looked.get("registries")
    for service in report.planned.get("services") or []:
        ref = service["image"]["ref"]
        here = report.images.get(ref) or {}
        container = containers.get(service["container"]) or {}
        if (
            here.get("id")
            and container.get("image_id")
            and container["image_id"] != here["id"]
            and not service.get("ray_image")
            and not service.get("built_image")
        ):
            text = f"it runs image {_brief(container['image_id'])}, and {ref} is {_brief(here['id'])} on this host now."
            fix = "The next site.yml restarts it with that one. Name the image by digest where that is not meant."
            findings.append(_found("image_moved", "warning", text, fix, service["name"]))
        registry = ref.partition("/")[0]
        missing = bool(report.images) and not here.get("present")
        if missing and registry == "nvcr.io" and registries is not None and registry not in registries:
            text = f"image {ref} is not on this host, and root's Docker has no account at {registry}."
            fix = f"docker login {registry} on the host as root (user $oauthtoken, an NGC key); some images there need it."
            findings.append(_found("registry_login", "warning", text, fix, service["name"]))
    unused = report.looked.get("unused_images") or []
    size = sum(image["gib"] for image in unused)
    if size > UNUSED_IMAGES_GIB:
        largest = sorted(unused, key=lambda image: -image["gib"])[:3]
        names = ", ".join(f"{image['ref']} ({image['gib']:.1f})" for image in largest)
        text = f"{len(unused)} images that no container uses take {size:.1f} GiB, the largest: {names}."
        fix = "docker image rm them by that name on the host, except what a later rollback is to find there."
        findings.append(_found("images_unused", "info", text, fix))
    return findings


def _brief(image_id: str) -> str:
    return image_id.rpartition(":")[2][:12]


def check_memory(report: HostReport) -> list[Finding]:
    """Memory: what is left, swap, the page cache, shared memory, processes of others."""
    findings: list[Finding] = []
    memory = report.facts.get("memory") or {}
    available = memory.get("available_gib")
    if isinstance(available, (int, float)) and available < MEMORY_LOW_GIB:
        severity = "error" if available < MEMORY_CRITICAL_GIB else "warning"
        text = f"{available:.1f} GiB of memory are available; below {MEMORY_CRITICAL_GIB:.0f} hosts froze without a log entry."
        fix = "Lower gpu-memory-utilization of a service, or raise spark_reserve_gib and plan again."
        findings.append(_found("memory_low", severity, text, fix))
    swap = (memory.get("swap_total_gib") or 0) - (memory.get("swap_free_gib") or 0)
    if swap > SWAP_GIB:
        text = f"{swap:.1f} GiB of swap are in use; reports say half the decode rate with 7 GiB, a tenth with 13."
        fix = "Free memory first, then: swapoff -a && swapon -a. vm.swappiness 10 or less keeps it from coming back."
        findings.append(_found("swap", "warning", text, fix))
    waiting = [
        unit["name"]
        for unit in report.facts.get("units") or []
        if unit.get("managed") and unit.get("active_state") in ("activating", "failed")
    ]
    cache = memory.get("page_cache_gib") or 0
    if waiting and cache > CACHE_GIB:
        text = f"the page cache holds {cache:.1f} GiB while {waiting[0]} is not up; the driver allocates from free memory, not from available memory."
        fix = "The gate of the unit drops it at its next start; by hand: sync; echo 3 > /proc/sys/vm/drop_caches."
        findings.append(_found("page_cache", "info", text, fix))
    shm = report.looked.get("shm_gib") or 0
    if shm > SHM_GIB:
        text = f"/dev/shm of the host holds {shm:.1f} GiB; containers with --ipc host leave segments there."
        fix = "ls -l /dev/shm, and remove what no process has open (fuser)."
        findings.append(_found("shm_left", "warning", text, fix))
    for process in (report.facts.get("gpu") or {}).get("processes") or []:
        if not process.get("container") and (process.get("used_mib") or 0) >= PROCESS_MIB:
            held = process["used_mib"] / 1024
            text = f"process {process['pid']} ({process.get('name')}) holds {held:.1f} GiB of GPU memory outside of any container."
            fix = "End it if it is left over (an engine whose parent was killed stays), or leave room for it by spark_reserve_gib."
            findings.append(_found("gpu_process", "warning", text, fix))
    return findings


def check_disks(report: HostReport) -> list[Finding]:
    """Disks: room for logs, images, caches."""
    findings = []
    seen = set()
    for path, disk in (report.looked.get("disks") or {}).items():
        free, total = disk["free_gib"], disk["total_gib"]
        low = min(DISK_LOW_GIB, 0.05 * total)
        if free >= low or (free, total) in seen:  # the same disk under another path
            continue
        seen.add((free, total))
        severity = "error" if free < min(DISK_FULL_GIB, 0.01 * total) else "warning"
        text = f"{path} has {free:.1f} of {total:.0f} GiB free."
        fix = "Remove unused images (docker image ls) and old weights; journalctl --vacuum-size=500M for logs."
        findings.append(_found("disk", severity, text, fix))
    return findings


def check_clock(report: HostReport) -> list[Finding]:
    """The clock: kept by somebody, and near the controller's."""
    findings = []
    clock = report.looked.get("clock") or {}
    began, ended, now = report.asked.get("began"), report.asked.get("ended"), clock.get("now")
    if now and began and ended:
        off = now - ended if now > ended else now - began if now < began else 0.0
        if abs(off) > CLOCK_SECONDS:
            text = f"the clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the controller's."
            fix = "timedatectl set-ntp true; then compare with timedatectl timesync-status."
            findings.append(_found("clock", "warning", text, fix))
    if clock.get("synchronized") is False:
        text = "the clock is not synchronised; certificates and the logs of a cluster need it."
        findings.append(_found("clock_free", "warning", text, "timedatectl set-ntp true, and let port 123/udp out."))
    return findings


def check_platform(report: HostReport) -> list[Finding]:
    """GPU, pending reboots and helpers of the host; what speaks against its kernel and driver says its plan."""
    findings: list[Finding] = []
    looked = report.looked
    if looked.get("gpu_error"):
        text = f"nvidia-smi says: {looked['gpu_error']}"
        fix = "Reboot after an update of the driver; without an update, the firmware of the same DGX OS release may be missing."
        findings.append(_found("gpu_silent", "error", text, fix))
    load = looked.get("gpu_load") or {}
    busy, clock, watts = load.get("utilization"), load.get("sm_mhz"), load.get("power_w")
    if busy is None or clock is None or watts is None:
        busy, clock, watts = 0.0, 0.0, 0.0  # nobody can tell
    if busy >= BUSY_PERCENT and clock < STUCK_MHZ and watts < STUCK_WATTS:
        text = f"the GPU is {busy:.0f} % busy at {clock:.0f} MHz and {watts:.0f} W: its power supply limits it, also after a reboot."
        fix = "Switch the host off, pull the power from the wall for one to five minutes, and start it again; a reboot or nvidia-smi -lgc does not help."
        source = "NVIDIA developer forum t/361294, t/361296, t/376039, t/376239: 500 to 720 MHz; healthy is 1400 MHz and 40 W or more"
        findings.append(_found("power_stuck", "error", text, fix, source=source))
    last, now = looked.get("last_boot") or {}, (looked.get("clock") or {}).get("now")
    if last.get("shut_down") is False and now and 0 <= now - last["ended"] <= WENT_OFF_DAYS * DAY_SECONDS:
        text = f"it went off or froze without a shutdown, {(now - last['ended']) / 3600:.0f} h ago; its log does not say why."
        fix = (
            "Where nobody pulled the plug: long prefills at full clock and heat have powered hosts off (spark_gpu_clocks: {max_mhz: 2200}, "
            "a lower max-num-batched-tokens, cooling), and hosts without memory freeze (spark_guard; journalctl -b -1 -u spark-guard)."
        )
        findings.append(_found("went_off", "warning", text, fix))
    if looked.get("reboot_required"):
        names = ", ".join(looked.get("reboot_packages") or []) or "an update"
        text = f"the host needs a reboot after the update of {names}."
        findings.append(
            _found("reboot", "warning", text, "Reboot it when its services may be down for the time of a start.")
        )
    helpers = looked.get("helpers") or {}
    if (helpers.get("docker.service") or {}).get("enabled") is False:
        text = "docker.service is not enabled: after a reboot Docker does not start, and units wait for it."
        findings.append(_found("docker_disabled", "warning", text, "systemctl enable docker."))
    if (helpers.get("earlyoom.service") or {}).get("active") and any(
        service.get("cluster") for service in report.planned.get("services") or []
    ):
        text = "earlyoom runs; it was reported to kill ranks while they load."
        findings.append(_found("earlyoom", "warning", text, "systemctl disable --now earlyoom on hosts of a cluster."))
    return findings


def check_caches(report: HostReport) -> list[Finding]:
    """Compile caches that are older than the image, of services that do not get up: the known cause of hangs after updates."""
    findings = []
    units = {unit["name"]: unit for unit in report.facts.get("units") or []}
    said = report.looked.get("services") or {}
    for service in report.planned.get("services") or []:
        cache, unit = (said.get(service["name"]) or {}).get("cache") or {}, units.get(service["unit"]) or {}
        if unit.get("active_state") not in ("failed", "activating") or not cache.get("oldest"):
            continue
        changed = (said.get(service["name"]) or {}).get("unit_changed")
        if changed and cache["oldest"] < changed:
            text = (
                f"it does not start, and its compile cache {cache['path']} is older than the last change of its unit."
            )
            fix = f"systemctl stop {service['unit']}, empty that folder, start it; the start compiles for minutes."
            findings.append(_found("cache_stale", "info", text, fix, service["name"]))
    return findings


CHECKS: tuple[Callable[[HostReport], list[Finding]], ...] = (
    check_units,
    check_guard,
    check_answers,
    check_logs,
    check_memory,
    check_disks,
    check_platform,
    check_heat,
    check_clock,
    check_receipts,
    check_images,
    check_caches,
)


# --- the fleet ------------------------------------------------------------------------------------------------------


def unreachable(why: str) -> Finding:
    """The finding about a host that did not answer."""
    text = f"the host is unreachable: {why}."
    fix = "Try ssh; a frozen host needs its power taken off. Its part of this report rests on the inventory alone."
    return _found("unreachable", "error", text, fix)


def not_asked(what: str, why: str) -> Finding:
    """The finding about a check that could not be made."""
    text = f"{what} could not be read: {why}"
    return _found("not_asked", "warning", text, "Correct that and run doctor.yml again; its checks were left out.")


def token(path: str, exists: bool, content: str, fetches: bool) -> list[Finding]:
    """Judge the file of the controller with the token of the hub. fetches: whether a model has still to come."""
    if not path:
        return []
    severity = "error" if fetches else "warning"
    if not exists or not content.strip():
        text = f"spark_hf_token_file names '{path}', which is not a file with content on the controller."
        fix = "Write a token into it that may read the models, or take the variable out."
        return [_found("hub_token", severity, text, fix)]
    if content.startswith("$ANSIBLE_VAULT"):
        return []
    if not re.fullmatch(r"hf_[A-Za-z0-9]{20,}", content.strip()):
        text = f"what is in '{path}' does not look like a token of Hugging Face (hf_ and letters)."
        return [
            _found("hub_token", "warning", text, "Put the token alone into it, without quotes or a name before it.")
        ]
    return []


def verdict(findings: Sequence[Mapping[str, Any]], fail_on: str) -> str:
    """Return why a run is to fail, in one line, or nothing."""
    counts = {severity: sum(finding["severity"] == severity for finding in findings) for severity in SEVERITIES}
    bad = {"never": (), "error": ("error",), "warning": ("error", "warning")}[fail_on]
    found = [finding for finding in findings if finding["severity"] in bad]
    if not found:
        return ""
    parts = [f"{counts[severity]} {severity}{'s'[: counts[severity] != 1]}" for severity in bad if counts[severity]]
    rules = list(dict.fromkeys(finding["rule"] for finding in found))
    return f"{' and '.join(parts)}: {', '.join(rules[:6])}{f' and {len(rules) - 6} more' if len(rules) > 6 else ''}"
