# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find faults of a running host that neither its plan nor the proof reports. Pure functions.

The plan judges versions, memory and fabric (C(preflight.py)); the proof judges memory and kernels (C(residency.py), C(fast_path.py)). The checks
here need a running host: units, answers, receipts, kernel log, disks, clock, swap, images, caches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .._common import tables
from .._common.findings import SEVERITIES, Finding
from .._common.reader import from_dict
from .._host import guard_account, host_update, quality_account
from .._plan.planned import PlannedService
from .._proof.explain import Explanation
from .doctor_signs import FAN, KERNEL_SIGNS, Sign
from .generations import brief

MEMORY_LOW_GIB, MEMORY_CRITICAL_GIB = 4.0, 2.0
SWAP_GIB = 1.0
SHM_GIB = 1.0
DISK_LOW_GIB, DISK_FULL_GIB = 10.0, 1.0
CACHE_GIB = 8.0
"""Page cache that a loading engine may miss."""
CLOCK_SECONDS = 30.0
OLD_RECEIPT_DAYS = 90.0
WENT_OFF_DAYS = 14.0
DAY_SECONDS = 86400.0
UNUSED_IMAGES_GIB = 20.0
PROCESS_GIB = 1.0
UNPLANNED_RESETS = ("KERNEL_PANIC_OR_OOPS", "WATCHDOG_RESET_SUSPECTED", "POWER_LOSS_OR_HARD_RESET_SUSPECTED")
"""Codes of NVIDIA's reset_reason_reporter 1.1.0 for a reset that nobody asked for."""
BUSY_PERCENT, STUCK_MHZ, STUCK_WATTS = 90.0, 1000.0, 40.0
IDLE_PERCENT, WARM_C = 10.0, 55.0
MANY_REQUESTS = 8
"""Parallel requests from which drafts are reported to cost more than they save."""
RUNNING = ("active", "activating", "reloading")
LARGEST_IMAGES = 3


NOTHING: Mapping[str, Any] = {
    **{key: {} for key in ("clock", "disks", "docker_proxies", "driver_packages", "gpu_load", "helpers", "kernel_log")},
    **{key: {} for key in ("last_boot", "nvidia_tools", "services", "no_initrd", "reboot_packages", "unused_images")},
    **{key: {} for key in ("containers", "gpu", "guard", "memory", "quality", "units", "unknown")},
    **dict.fromkeys(("gpu_error", "reboot_required", "shm_gib", "soc_c", "registries", "receipts"), None),
}
"""Parts of C(spark) and C(health) without an answer."""


class HostReport:
    """Everything that is known of one host."""

    def __init__(
        self,
        planned: Mapping[str, Any],
        facts: Mapping[str, Any],
        health: Mapping[str, Any],
        answers: Mapping[str, Mapping[str, Any]],
        images: Mapping[str, Any],
        times: Mapping[str, float],
    ) -> None:
        """Set its part of the plan, and C(spark), C(health), C(services) by name and C(images) of M(dgxspark.vllm.spark_info), empty if unknown.

        times: C({began, ended}) of the task for C(health), by the controller's clock.
        """
        self.services = [from_dict(PlannedService, service) for service in planned.get("services") or []]
        self.has_facts = bool(facts)
        self.facts, self.health = (
            {**NOTHING, **{name: answer for name, answer in known.items() if answer is not None}}
            for known in (facts, health)
        )
        self.answers, self.images, self.times = answers, images, times
        self.units: dict[str, Mapping[str, Any]] = {unit["name"]: unit for unit in self.facts["units"]}

    def is_within(self, at: float | None, seconds: float) -> bool:
        """Tell whether something happened lately by the host's clock; False if a time is unknown."""
        now = self.health["clock"].get("now")
        return bool(now) and at is not None and 0 <= now - at <= seconds

    def active_state(self, service: PlannedService) -> str | None:
        """Return the state of a service's unit, None if unknown."""
        return (self.units.get(service.unit) or {}).get("active_state")


def signs(log: Mapping[str, Any], table: Sequence[Sign]) -> Iterator[Finding]:
    """Yield a finding for each sign in a log. log: C({rule: {count, last}}) of C(host_health.py)."""
    for sign in table:
        entry = log.get(sign.rule)
        if entry:
            times = f"{entry['count']} times, last: " if entry["count"] > 1 else ""
            yield Finding(
                sign.rule, sign.severity, f"{sign.message} ({times}{entry['last']}).", sign.fix, basis="measured"
            )


_SHORTEST = 24


def repeats(text: str) -> str:
    """Return the part that an answer repeats up to its end, as broken kernels do; empty for a normal answer."""
    line = " ".join(text.split())
    if len(line) < _SHORTEST:
        return ""
    character = max(set(line), key=line.count)
    if character != " " and line.count(character) > 0.6 * len(line):
        return character * 5
    for length in range(1, len(line) // 4 + 1):
        piece, times = line[-length:], 1
        while line[-length * (times + 1) :][:length] == piece and length * (times + 1) <= len(line):
            times += 1
        # The end may cut a piece; the repetition is found all the same, shifted.
        if times >= 4 and length * times >= 0.6 * len(line):
            return piece.strip() or piece
    return ""


def check(report: HostReport) -> list[Finding]:
    """Return the findings of all checks of a host, worst first."""
    findings = [finding for find in CHECKS for finding in find(report)]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _finding(rule: str, severity: str, message: str, fix: str, service: str = "", source: str = "") -> Finding:
    return Finding(f"doctor.{rule}", severity, message, fix, service, source=source, basis="measured")


def check_units(report: HostReport) -> Iterator[Finding]:
    """Find missing, failed, stopped, restarting and disabled units of planned services, and left-over services."""
    if not report.has_facts:
        return
    services, guard = report.services, report.facts["guard"]
    running = [service for service in services if report.active_state(service) in RUNNING]
    running_sets = {service.exclusive for service in running if service.exclusive}
    for service in services:
        unit = report.units.get(service.unit)
        if unit is None:
            text = f"{service.unit} is not on this host."
            yield _finding("unit_absent", "error", text, "Run site.yml on it.", service.name)
            continue
        is_needed = unit.get("active_state") in RUNNING or service.exclusive not in running_sets
        should_run = service.state == "started" and is_needed
        yield from _check_unit(service, unit, should_run, guard)
    for name in sorted(set(report.facts["services"]) - {service.name for service in services}):
        text = f"the service {name} is still deployed here, but not in the inventory any more."
        yield _finding("service_left", "warning", text, "Run site.yml, which removes it.", name)


def _check_unit(
    service: PlannedService, unit: Mapping[str, Any], should_run: bool, guard: Mapping[str, Any]
) -> Iterator[Finding]:
    name, state = service.name, unit.get("active_state")
    restarts = unit.get("n_restarts")
    log = f"journalctl -u {service.unit} -n 100"
    if state == "failed":
        text = f"{service.unit} has failed ({unit.get('result')}, {restarts} restarts)."
        fix = f"Read the reason: {log}; then systemctl reset-failed and systemctl start, or site.yml."
        yield _finding("unit_failed", "error", text, fix, name)
    elif state == "inactive" and should_run and not unit.get("queued"):
        why = (guard.get("stopped") or {}).get(name)
        text = f"{service.unit} is stopped, but should run by the inventory."
        if why is not None:
            text = f"{service.unit} was stopped by the memory guard: {why or 'it does not say why'}."
        yield _finding("unit_stopped", "error", text, "systemctl start it, or run site.yml.", name)
    elif restarts and unit.get("type") != "notify":
        text = f"{service.unit} was restarted {restarts} times since it was started."
        yield _finding("unit_restarts", "warning", text, f"Read the reason: {log}.", name)
    if unit.get("enabled") is False and should_run:
        text = f"{service.unit} is not enabled: it does not start after a reboot."
        yield _finding("unit_disabled", "warning", text, "systemctl enable it, or run site.yml.", name)


def check_guard(report: HostReport) -> Iterator[Finding]:
    """Find a stopped memory guard, a shortage of memory, and restarts by the guard within a day."""
    guard = report.facts["guard"]
    if not guard:
        return
    state = (report.units.get(guard_account.UNIT) or {}).get("active_state") or None
    if state != "active":
        if state is not None or not report.facts["unknown"]:
            text = f"the memory guard does not run: {guard_account.UNIT} is {state or 'not there'}."
            yield _finding("guard_off", "error", text, f"systemctl start {guard_account.UNIT}, or run site.yml.")
        return
    advice = "journalctl -u spark-agent -p warning -n 50 shows what it did and why"
    if guard["level"] in guard_account.SHORTAGES:
        holders = f" {guard['who']} use most of it, in addition to the services." if guard["who"] else ""
        text = f"the guard finds memory {guard['level']}: {guard['available_gib'] or 0.0:.2f} GiB available.{holders}"
        fix = f"End the processes that took the memory, or stop a service; {advice}."
        yield _finding("guard_short", "warning", text, fix)
    last = guard["last"]
    if last and last["what"] in ("restart", "name") and report.is_within(last["at"], DAY_SECONDS):
        text = f"the guard acted within a day; {guard_account.did(last)}."
        fix = f"{advice}. Plan an engine that grows with a larger spark_safety_margin_gib, or a smaller gpu-memory-utilization."
        yield _finding("guard_acted", "warning", text, fix)


def check_quality(report: HostReport) -> Iterator[Finding]:
    """Find services whose answers to the questions of the watchdog are bad."""
    units = {service.name: service.unit for service in report.services}
    for name, note in report.facts["quality"].items():
        if name not in units:
            continue
        drained = " The gateway gives it no new requests." if note["drained"] else ""
        text = f"its answers are {note['state']}: {note['text']}.{drained}"
        severity = "error" if note["state"] == "degenerate" else "warning"
        yield _finding("degenerate", severity, text, quality_account.fix(note, units[name]), name)


def check_answers(report: HostReport) -> Iterator[Finding]:
    """Find engines without an answer, with a broken answer, and with load that slows them down."""
    requests = {}
    for service in report.services:
        name, answer = service.name, report.answers.get(service.name) or {}
        if answer.get("ready") is False and report.active_state(service) == "active":
            text = f"its unit is active, but it is stuck in stage {answer.get('stage')}: {answer.get('error')}"
            fix = f"journalctl -u {service.unit} -n 100; if the engine hangs, run systemctl restart {service.unit}."
            yield _finding("no_answer", "error", text, fix, name)
        if answer.get("requests_running"):
            requests[name] = answer["requests_running"]
        if requests.get(name, 0) >= MANY_REQUESTS and service.args.get("speculative-config"):
            text = f"{requests[name]} requests run at once, and each of their steps also computes drafts."
            fix = "bench.yml with and without speculative-config at this concurrency shows which is faster."
            yield _finding("drafts_under_load", "info", text, fix, name)
        engine = report.health["services"].get(name) or {}
        reply = (engine.get("answer") or {}).get("text") or ""
        piece = repeats(reply)
        if piece:
            text = f"its answer repeats {piece[:40]!r}: {reply[:80]!r}"
            fix = (
                "FP4 experts: moe-backend: marlin. An FP8 KV cache: kv-cache-dtype: auto. MTP: without speculative-config. One at a time; the same "
                "question should get a correct answer."
            )
            yield _finding("answer_repeats", "error", text, fix, name)
    if len(requests) > 1:
        names = ", ".join(f"{name} ({count})" for name, count in requests.items())
        text = f"several engines serve requests at this moment and share one GPU: {names}."
        fix = "Run bench.yml with and without the other engine to measure the cost; then stop or move one."
        yield _finding("gpu_shared", "info", text, fix)


def check_logs(report: HostReport) -> Iterator[Finding]:
    """Find known failures in the logs of the kernel and of engines; a stopped fan counts on a host that is warm and idle."""
    load, warmth = report.health["gpu_load"].get("utilization"), report.health["soc_c"]
    is_warm = None not in (load, warmth) and load < IDLE_PERCENT and warmth >= WARM_C
    yield from signs(report.health["kernel_log"], [sign for sign in KERNEL_SIGNS if is_warm or sign.rule != FAN])
    for name, engine in report.health["services"].items():
        log = from_dict(Explanation, engine["log"]) if engine.get("log") else None
        if log is not None and log.is_known:
            error = f" ({log.error.splitlines()[0][:200]})" if log.error else ""
            severity = "warning" if log.stage == "serving" else "error"
            text = f"its log shows a failure: {log.cause}{error}."
            yield _finding("engine_log", severity, text, f"{log.fix}.", name, log.source)


def check_receipts(report: HostReport) -> Iterator[Finding]:
    """Find missing, unreadable, old and outdated receipts."""
    receipts = report.health["receipts"]
    prove = "Run site.yml --tags prove."
    for service in report.services if receipts is not None else ():
        name, receipt, ref = service.name, (receipts or {}).get(service.name), service.image.ref
        if receipt is None:
            if report.active_state(service) == "active":
                text = "it has no receipt: it was never proved on this host."
                yield _finding("no_receipt", "warning", text, prove, name)
        elif receipt.get("error"):
            text = f"its receipt cannot be read: {receipt['error']}"
            yield _finding("receipt_broken", "warning", text, f"Remove {receipt['path']}, then: {prove}", name)
        else:
            if receipt.get("age_days", 0) > OLD_RECEIPT_DAYS:
                text = f"its last proof was {receipt['age_days']:.0f} days ago."
                yield _finding("receipt_old", "info", text, prove, name)
            image, speed = receipt.get("image"), receipt.get("speed")
            if image and ref and image != ref:
                text = f"it was proved with image {image}, but the inventory has {ref}."
                yield _finding("receipt_image", "warning", text, "Run site.yml, which deploys and proves it.", name)
            if speed:
                text = f"its last measured speed: {speed['message']}"
                yield _finding("speed", "warning", text, speed["fix"], name)


def _check_unused_images(report: HostReport) -> Iterator[Finding]:
    """Find unused images that fill the disk."""
    unused = report.health["unused_images"]
    size_gib = sum(image["gib"] for image in unused)
    if size_gib > UNUSED_IMAGES_GIB:
        largest = sorted(unused, key=lambda image: -image["gib"])[:LARGEST_IMAGES]
        names = ", ".join(f"{image['ref']} ({image['gib']:.1f})" for image in largest)
        text = f"{len(unused)} images that no container uses take {size_gib:.1f} GiB, the largest: {names}."
        fix = "Remove them with docker image rm on the host, except images that a rollback needs."
        yield _finding("images_unused", "info", text, fix)


def check_images(report: HostReport) -> Iterator[Finding]:
    """Find moved tags, registries without an account, and unused images that fill the disk."""
    registries = report.health["registries"]
    containers = {container["name"]: container.get("image_id") for container in report.facts["containers"]}
    for service in report.services:
        ref = service.image.ref
        image, running = report.images.get(ref) or {}, containers.get(service.container)
        is_derived = service.ray_image or service.built_image
        if image.get("id") and running and running != image["id"] and not is_derived:
            text = f"it runs image {brief(running)}, and {ref} is {brief(image['id'])} on this host now."
            fix = "The next site.yml restarts it with that image. Name the image by digest to prevent that."
            yield _finding("image_moved", "warning", text, fix, service.name)
        registry = ref.partition("/")[0]
        is_missing = bool(report.images) and not image.get("present")
        if is_missing and registry == "nvcr.io" and registries is not None and registry not in registries:
            text = f"image {ref} is not on this host, and root's Docker has no account at {registry}."
            fix = f"docker login {registry} on the host as root (user $oauthtoken, an NGC key); some images there need it."
            yield _finding("registry_login", "warning", text, fix, service.name)
    yield from _check_unused_images(report)


def _check_gpu_processes(report: HostReport) -> Iterator[Finding]:
    """Find processes outside of containers that hold GPU memory."""
    for process in report.facts["gpu"].get("processes") or []:
        held_gib = (process.get("used_mib") or 0) / 1024
        if not process.get("container") and held_gib >= PROCESS_GIB:
            title = f"process {process['pid']} ({process.get('name')})"
            text = f"{title} uses {held_gib:.1f} GiB of GPU memory outside of containers."
            fix = "End it if it is left over (an engine whose parent was killed stays), or reserve memory for it with spark_os_reserve_gib."
            yield _finding("gpu_process", "warning", text, fix)


def check_memory(report: HostReport) -> Iterator[Finding]:
    """Find a shortage of memory and its causes: swap, page cache, shared memory, processes outside of containers."""
    memory = report.facts["memory"]
    available, shm_gib = memory.get("available_gib"), report.health["shm_gib"] or 0.0
    if isinstance(available, (int, float)) and available < MEMORY_LOW_GIB:
        severity = "error" if available < MEMORY_CRITICAL_GIB else "warning"
        text = f"{available:.1f} GiB of memory are available; below {MEMORY_CRITICAL_GIB:.0f} hosts froze without a log entry."
        fix = "Lower gpu-memory-utilization of a service, or raise spark_os_reserve_gib and plan again."
        yield _finding("memory_low", severity, text, fix)
    total, free, cache = (memory.get(name) or 0 for name in ("swap_total_gib", "swap_free_gib", "page_cache_gib"))
    swap = total - free
    if swap > SWAP_GIB:
        text = f"{swap:.1f} GiB of swap are in use; reports say half the decode rate with 7 GiB, a tenth with 13."
        fix = "Free memory first, then: swapoff -a && swapon -a. vm.swappiness 10 or less keeps it from coming back."
        yield _finding("swap", "warning", text, fix)
    states = ("activating", "failed")
    down = [name for name, unit in report.units.items() if unit.get("managed") and unit.get("active_state") in states]
    if down and cache > CACHE_GIB:
        text = f"the page cache uses {cache:.1f} GiB while {down[0]} is not up; the driver allocates from free memory, not from available memory."
        fix = "The gate of the unit drops it at its next start; by hand: sync; echo 3 > /proc/sys/vm/drop_caches."
        yield _finding("page_cache", "info", text, fix)
    if shm_gib > SHM_GIB:
        text = f"/dev/shm of the host uses {shm_gib:.1f} GiB; containers with --ipc host leave segments there."
        fix = "See ls -l /dev/shm, and remove files that no process has open (fuser)."
        yield _finding("shm_left", "warning", text, fix)
    yield from _check_gpu_processes(report)


def check_disks(report: HostReport) -> Iterator[Finding]:
    """Find full disks."""
    reported = set()
    for path, disk in report.health["disks"].items():
        free, total = disk["free_gib"], disk["total_gib"]
        if free >= min(DISK_LOW_GIB, 0.05 * total) or (free, total) in reported:  # one disk may have several paths
            continue
        reported.add((free, total))
        severity = "error" if free < min(DISK_FULL_GIB, 0.01 * total) else "warning"
        text = f"{path} has {free:.1f} of {total:.0f} GiB free."
        fix = "Remove unused images (docker image ls) and old weights; journalctl --vacuum-size=500M for logs."
        yield _finding("disk", severity, text, fix)


def check_clock(report: HostReport) -> Iterator[Finding]:
    """Find a clock that is wrong or not synchronized."""
    clock, began, ended = report.health["clock"], report.times.get("began"), report.times.get("ended")
    now = clock.get("now")
    if now and began and ended:
        offset = now - ended if now > ended else now - began if now < began else 0.0
        if abs(offset) > CLOCK_SECONDS:
            text = f"the clock is {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} the controller's."
            fix = "timedatectl set-ntp true; then compare with timedatectl timesync-status."
            yield _finding("clock", "warning", text, fix)
    if clock.get("synchronized") is False:
        text = "the clock is not synchronised; certificates and the logs of a cluster need it."
        yield _finding("clock_free", "warning", text, "timedatectl set-ntp true, and allow outgoing port 123/udp.")


def check_gpu(report: HostReport) -> Iterator[Finding]:
    """Find a GPU without an answer, and a GPU that its power supply limits."""
    health, load = report.health, report.health["gpu_load"]
    percent, mhz, watts = (load.get(name) for name in ("utilization", "sm_mhz", "power_w"))
    if health["gpu_error"] and "doctor.module_key" not in health["kernel_log"]:
        text = f"nvidia-smi says: {health['gpu_error']}"
        fix = "Reboot after an update of the driver; without an update, the firmware of the same DGX OS release may be missing."
        yield _finding("gpu_silent", "error", text, fix)
    if percent is None or mhz is None or watts is None:
        return
    if percent >= BUSY_PERCENT and mhz < STUCK_MHZ and watts < STUCK_WATTS:
        text = f"the GPU is {percent:.0f} % busy at {mhz:.0f} MHz and {watts:.0f} W: its power supply limits it, also after a reboot."
        fix = "Switch the host off, unplug it for one to five minutes, and start it again; a reboot or nvidia-smi -lgc does not help."
        source = "NVIDIA developer forum t/361294, t/361296, t/376039, t/376239: 500 to 720 MHz; healthy is 1400 MHz and 40 W or more"
        yield _finding("power_stuck", "error", text, fix, source=source)


def check_boot(report: HostReport) -> Iterator[Finding]:
    """Find crashes, pending reboots, and faults of the next boot. The plan judges kernel and driver."""
    health, now, went_off = report.health, report.health["clock"].get("now"), _went_off(report)
    reset = _reset_reason(report)
    if went_off is not None and report.is_within(went_off, WENT_OFF_DAYS * DAY_SECONDS):
        text = f"it went off or froze without a shutdown, {(now - went_off) / 3600:.0f} h ago; its log shows no reason."
        if reset:
            text = f"{text[:-1]}, NVIDIA's reset_reason_reporter says: {reset}."
        fix = (
            "If the power supply was not cut: long prefills at full clock and heat have powered hosts off "
            "(spark_gpu_clocks: {max_mhz: 2200}, "
            "a lower max-num-batched-tokens, cooling), and hosts without memory freeze (spark_guard; journalctl -b -1 -u spark-agent)."
        )
        yield _finding("went_off", "warning", text, fix)
    yield from _check_nvidia_tools(report)
    if health["reboot_required"]:
        names = ", ".join(health["reboot_packages"]) or "an update"
        text = f"the host needs a reboot after the update of {names}."
        yield _finding("reboot", "warning", text, "Reboot it when its services may be down for the time of a start.")
    if health["no_initrd"]:
        text = f"/boot has no initrd.img for kernel {', '.join(health['no_initrd'])}: a boot into it does not find the root file system."
        yield _finding("initrd", "error", text, host_update.initrd_fix(health["no_initrd"]))
    for branch, packages in health["driver_packages"].items():
        text = f"packages of driver branch {branch} are installed, but another branch is loaded: {', '.join(packages)}."
        fix = f"Remove them (apt purge {' '.join(packages)}), or install the whole driver of one branch, before the next reboot."
        yield _finding("driver_mixed", "warning", text, fix)


def _went_off(report: HostReport) -> float | None:
    """Return the end of the boot before this one if that was no shutdown, else None."""
    last_boot = report.health["last_boot"]
    ended: float | None = last_boot.get("ended") if last_boot.get("shut_down") is False else None
    return ended


def _reset_reason(report: HostReport) -> str:
    """Return an unplanned reset within C(WENT_OFF_DAYS) by NVIDIA's tool, empty without one."""
    answer = report.health["nvidia_tools"].get("reset_reason_reporter") or {}
    last, uptime = answer.get("last_reset"), (answer.get("current_boot") or {}).get("uptime_seconds")
    if not last or last["reason_code"] not in UNPLANNED_RESETS or (uptime or 0) > WENT_OFF_DAYS * DAY_SECONDS:
        return ""
    return f"{last['summary']} ({last['reason_code']}, confidence {last['confidence']:g} %)"


def _check_nvidia_tools(report: HostReport) -> Iterator[Finding]:
    """Find what NVIDIA's management tools report and the other checks do not."""
    health, tools = report.health, report.health["nvidia_tools"]
    reset = _reset_reason(report)
    if reset and _went_off(report) is None:
        text = f"NVIDIA's reset_reason_reporter explains the last reset: {reset}."
        fix = "journalctl -b -1 -p warning shows the end of the boot before; reset_reason_reporter --human shows the evidence."
        yield _finding("reset_reason", "warning", text, fix)
    pending = (tools.get("spark_updatectl") or {}).get("pending_reboot") or {}
    if pending.get("pending") and not health["reboot_required"]:
        why = "; ".join(pending.get("indicators") or []) or "no reason given"
        fix = "Reboot it when its services may be down for the time of a start."
        yield _finding("reboot", "warning", f"NVIDIA's spark_updatectl reports a pending reboot: {why}.", fix)
    dumps = [dump["path"] for dump in (tools.get("spark_diagctl") or {}).get("crash_dumps_found") or []]
    if dumps:
        text = f"NVIDIA's spark_diagctl found {len(dumps)} crash dumps, such as {dumps[0]}."
        yield _finding("crash_dumps", "info", text, "Look at them (coredumpctl list; apport), then remove them.")


def check_helpers(report: HostReport) -> Iterator[Finding]:
    """Find settings of Docker and earlyoom that harm engines."""
    health = report.health
    for path, variables in health["docker_proxies"].items():
        text = (
            f"{path} has proxies: docker run of the units sets {', '.join(variables)} in every container. Requests of "
            "an engine to other hosts, of "
            "Ray (gRPC) too, then use the proxy."
        )
        fix = (
            "Remove 'proxies' there; pulls use the daemon's own (systemctl edit docker: Environment=HTTPS_PROXY=...). A service that needs "
            "a proxy has it in env."
        )
        yield _finding("docker_proxy", "warning", text, fix)
    if (health["helpers"].get("docker.service") or {}).get("enabled") is False:
        text = "docker.service is not enabled: after a reboot Docker does not start, and units wait for it."
        yield _finding("docker_disabled", "warning", text, "systemctl enable docker.")
    earlyoom = (health["helpers"].get("earlyoom.service") or {}).get("active")
    if earlyoom and any(service.cluster for service in report.services):
        text = "earlyoom runs; it was reported to kill ranks while they load."
        yield _finding("earlyoom", "warning", text, "systemctl disable --now earlyoom on hosts of a cluster.")


def check_caches(report: HostReport) -> Iterator[Finding]:
    """Find outdated compile caches of services that do not start, a known cause of hangs after updates."""
    for service in report.services:
        engine = report.health["services"].get(service.name) or {}
        cache, changed = engine.get("cache") or {}, engine.get("unit_changed")
        if report.active_state(service) not in ("failed", "activating") or not cache.get("oldest"):
            continue
        if changed and cache["oldest"] < changed:
            text = f"it does not start, and its compile cache {cache.get('path')} is older than the last change of its unit."
            fix = f"systemctl stop {service.unit}, empty that folder, start it; the start compiles for minutes."
            yield _finding("cache_stale", "info", text, fix, service.name)


CHECKS: tuple[Callable[[HostReport], Iterator[Finding]], ...] = (
    check_units,
    check_guard,
    check_quality,
    check_answers,
    check_logs,
    check_memory,
    check_disks,
    check_gpu,
    check_boot,
    check_helpers,
    check_clock,
    check_receipts,
    check_images,
    check_caches,
)


# --- the fleet


def unreachable(why: str) -> Finding:
    """Return the finding about a host without an answer."""
    text = f"the host is unreachable: {why}."
    fix = "Try ssh; power-cycle a frozen host. Its part of this report is based on the inventory."
    return _finding("unreachable", "error", text, fix)


def not_asked(title: str, why: str) -> Finding:
    """Return the finding about a check without data."""
    text = f"{title} could not be read: {why}"
    return _finding("not_asked", "warning", text, "Correct that and run doctor.yml again; its checks were left out.")


def token(path: str, content: str, fetches: bool) -> list[Finding]:
    """Judge the controller's file with the token of the hub. content: empty without a file. fetches: a model is still missing on the host."""
    if not path:
        return []
    severity = "error" if fetches else "warning"
    if not content.strip():
        text = f"spark_hf_token_file names '{path}', which is not a file with content on the controller."
        fix = "Write a token into it that may read the models, or remove the variable."
        return [_finding("hub_token", severity, text, fix)]
    if content.startswith("$ANSIBLE_VAULT") or re.fullmatch(r"hf_[A-Za-z0-9]{20,}", content.strip()):
        return []
    text = f"the content of '{path}' does not look like a token of Hugging Face (hf_ and letters)."
    fix = "Put only the token into it, without quotes or a name."
    return [_finding("hub_token", "warning", text, fix)]


def verdict(findings: Sequence[Mapping[str, Any]], fail_on: str) -> str:
    """Return why a run fails in one line, empty if it does not."""
    severities = {"never": (), "error": ("error",), "warning": ("error", "warning")}[fail_on]
    bad = [finding for finding in findings if finding["severity"] in severities]
    if not bad:
        return ""
    counts = {severity: sum(finding["severity"] == severity for finding in bad) for severity in severities}
    parts = [f"{count} {severity}{'s'[: count != 1]}" for severity, count in counts.items() if count]
    rules = list(dict.fromkeys(finding["rule"] for finding in bad))
    return f"{' and '.join(parts)}: {tables.some_of(rules, 6)}"
