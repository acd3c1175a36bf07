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
from dataclasses import dataclass
from typing import Any

from .._common.findings import SEVERITIES, Finding
from .._common.plain_data import view
from .._host import guard_account, host_update
from .._plan.planned import PlannedService
from .._proof.explain import Explanation
from .._runtime import guard as memory_guard
from .doctor_signs import FAN, KERNEL_SIGNS, Sign

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
PROCESS_GIB = 1.0
BUSY_PERCENT, STUCK_MHZ, STUCK_WATTS = 90.0, 1000.0, 40.0
IDLE_PERCENT, WARM_C = 10.0, 55.0
MANY_REQUESTS = 8
"""Requests at once from which drafts are reported to cost more than they bring."""


def signs(found: Mapping[str, Any], known: Sequence[Sign], service: str = "") -> list[Finding]:
    """Return a finding for each sign that a log has. found: C({rule: {count, last}}) as C(host_health.py) counts them."""
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


# --- what an engine answers -----------------------------------------------------------------------------------------

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


@dataclass(frozen=True)
class Unit:
    """A unit as systemd has it."""

    active_state: str | None = None
    enabled: bool | None = None
    queued: bool = False
    managed: bool = False
    result: str | None = None
    n_restarts: int | None = None
    type: str | None = None


@dataclass(frozen=True)
class Answer:
    """One of C(services) of M(dgxspark.vllm.spark_info)."""

    ready: bool | None = None
    stage: str | None = None
    error: str | None = None
    requests_running: int | None = None


@dataclass(frozen=True)
class Image:
    """An image of the plan on the host."""

    present: bool = False
    id: str | None = None


@dataclass(frozen=True)
class Memory:
    """Memory of the host, GiB."""

    available_gib: float | None = None
    swap_total_gib: float | None = None
    swap_free_gib: float | None = None
    page_cache_gib: float | None = None


@dataclass(frozen=True)
class Process:
    """A process that holds GPU memory; container: None for one outside of any."""

    pid: int
    name: str | None = None
    container: str | None = None
    used_mib: float | None = None


@dataclass(frozen=True)
class GpuLoad:
    """What the GPU does: percent, MHz, W."""

    utilization: float | None = None
    sm_mhz: float | None = None
    power_w: float | None = None


@dataclass(frozen=True)
class Receipt:
    """What is known of a receipt; error: why it cannot be read."""

    path: str
    age_days: float = 0.0
    image: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Engine:
    """What was looked up of a service: what its log says, its answer, the folder of its compile cache with the oldest entry, and when its unit
    was changed, both in seconds."""

    log: Explanation | None
    answer: str
    cache_path: str | None
    oldest: float | None
    unit_changed: float | None

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Engine:
        """Return one of C(health.services) of M(dgxspark.vllm.spark_info)."""
        cache, answer = said.get("cache") or {}, (said.get("answer") or {}).get("text") or ""
        log = said.get("log")
        return cls(
            view(Explanation, log) if log else None,
            answer,
            cache.get("path"),
            cache.get("oldest"),
            said.get("unit_changed"),
        )


@dataclass(frozen=True)
class HostReport:
    """Everything that is known of one host; parts that nobody could tell are empty.

    services: of its plan. told: whether it said anything of itself. deployed: names of services. containers: ids of images by container.
    guard: of C(guard_account.account). unknown: what its programs did not say. now, synchronized: of its clock; began, ended: of the task that
    read it, by the controller's. receipts, registries: None where nobody could tell. went_off: when it ended without a shutdown.
    """

    services: Sequence[PlannedService]
    told: bool
    deployed: Sequence[str]
    units: Mapping[str, Unit]
    containers: Mapping[str, str | None]
    guard: Mapping[str, Any] | None
    unknown: bool
    memory: Memory
    processes: Sequence[Process]
    answers: Mapping[str, Answer]
    images: Mapping[str, Image]
    now: float | None
    synchronized: bool | None
    began: float | None
    ended: float | None
    disks: Mapping[str, Mapping[str, float]]
    docker_proxies: Mapping[str, Sequence[str]]
    driver_packages: Mapping[str, Sequence[str]]
    gpu_error: str
    gpu_load: GpuLoad
    soc_c: float | None
    helpers: Mapping[str, Mapping[str, bool]]
    kernel_log: Mapping[str, Mapping[str, Any]]
    no_initrd: Sequence[str]
    went_off: float | None
    reboot_required: bool
    reboot_packages: Sequence[str]
    receipts: Mapping[str, Receipt] | None
    registries: Sequence[str] | None
    shm_gib: float
    unused_images: Sequence[Mapping[str, Any]]
    engines: Mapping[str, Engine]

    @classmethod
    def read(
        cls,
        planned: Mapping[str, Any],
        facts: Mapping[str, Any],
        looked: Mapping[str, Any],
        answers: Mapping[str, Mapping[str, Any]],
        images: Mapping[str, Any],
        asked: Mapping[str, float],
    ) -> HostReport:
        """Return a host of what Ansible passes on.

        :param planned: its part of the plan
        :param facts: C(spark) of M(dgxspark.vllm.spark_info)
        :param looked: C(health) of M(dgxspark.vllm.spark_info)
        :param answers: C(services) of M(dgxspark.vllm.spark_info) by name
        :param images: C(images) of M(dgxspark.vllm.spark_info)
        :param asked: C({began, ended}) of the task that brought C(looked)
        :returns: the host
        """
        clock, last, receipts = looked.get("clock") or {}, looked.get("last_boot") or {}, looked.get("receipts")
        return cls(
            services=[PlannedService.read(service) for service in planned.get("services") or []],
            told=bool(facts),
            deployed=facts.get("services") or [],
            units={unit["name"]: view(Unit, unit) for unit in facts.get("units") or []},
            containers={each["name"]: each.get("image_id") for each in facts.get("containers") or []},
            guard=facts.get("guard"),
            unknown=bool(facts.get("unknown")),
            memory=view(Memory, facts.get("memory") or {}),
            processes=[view(Process, each) for each in (facts.get("gpu") or {}).get("processes") or []],
            answers={name: view(Answer, answer) for name, answer in answers.items()},
            images={ref: view(Image, image or {}) for ref, image in images.items()},
            now=clock.get("now"),
            synchronized=clock.get("synchronized"),
            began=asked.get("began"),
            ended=asked.get("ended"),
            disks=looked.get("disks") or {},
            docker_proxies=looked.get("docker_proxies") or {},
            driver_packages=looked.get("driver_packages") or {},
            gpu_error=looked.get("gpu_error") or "",
            gpu_load=view(GpuLoad, looked.get("gpu_load") or {}),
            soc_c=looked.get("soc_c"),
            helpers=looked.get("helpers") or {},
            kernel_log=looked.get("kernel_log") or {},
            no_initrd=looked.get("no_initrd") or [],
            went_off=last.get("ended") if last.get("shut_down") is False else None,
            reboot_required=bool(looked.get("reboot_required")),
            reboot_packages=looked.get("reboot_packages") or [],
            receipts=None if receipts is None else {name: view(Receipt, each) for name, each in receipts.items()},
            registries=looked.get("registries"),
            shm_gib=looked.get("shm_gib") or 0.0,
            unused_images=looked.get("unused_images") or [],
            engines={name: Engine.read(said) for name, said in (looked.get("services") or {}).items()},
        )

    def active_state(self, service: PlannedService) -> str | None:
        """Return the state of a service's unit, None where nobody told it."""
        return self.units.get(service.unit, Unit()).active_state


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
    if not report.told:
        return findings
    up = ("active", "activating", "reloading")
    taken = {each.exclusive for each in report.services if each.exclusive and report.active_state(each) in up}
    for service in report.services:
        name, unit = service.name, report.units.get(service.unit)
        if unit is None:
            text = f"{service.unit} is not on this host."
            findings.append(_found("unit_absent", "error", text, "Run site.yml on it.", name))
            continue
        state = unit.active_state
        log = f"journalctl -u {service.unit} -n 100"
        meant = service.state == "started" and (state in up or service.exclusive not in taken)
        if state == "failed":
            text = f"{service.unit} has failed ({unit.result}, {unit.n_restarts} restarts)."
            fix = f"See why: {log}; then systemctl reset-failed and systemctl start, or site.yml."
            findings.append(_found("unit_failed", "error", text, fix, name))
        elif state == "inactive" and meant and not unit.queued:
            why = ((report.guard or {}).get("stopped") or {}).get(name)
            text = f"{service.unit} is stopped, and the inventory wants it to run."
            if why is not None:
                text = f"{service.unit} was stopped by the guard of the memory: {why or 'it does not say why'}."
            findings.append(_found("unit_stopped", "error", text, "systemctl start it, or run site.yml.", name))
        elif unit.n_restarts and unit.type != "notify":
            text = f"{service.unit} was restarted {unit.n_restarts} times since it was started."
            findings.append(_found("unit_restarts", "warning", text, f"See why: {log}.", name))
        if unit.enabled is False and meant:
            text = f"{service.unit} is not enabled: it does not come back after a reboot."
            findings.append(_found("unit_disabled", "warning", text, "systemctl enable it, or run site.yml.", name))
    for name in sorted(set(report.deployed) - {service.name for service in report.services}):
        text = f"the service {name} is still deployed here, and the inventory has it no more."
        findings.append(_found("service_left", "warning", text, "Run site.yml, which removes it.", name))
    return findings


def check_guard(report: HostReport) -> list[Finding]:
    """The guard of the memory, where one is deployed: it runs, memory is not short, and what it restarted within a day."""
    guard = report.guard
    if not guard:
        return []
    unit = report.units.get(guard_account.UNIT, Unit()).active_state or None
    if unit is None or unit != "active":
        if unit is None and report.unknown:
            return []  # not known
        text = f"the guard of the memory does not run: {guard_account.UNIT} is {unit or 'not there'}."
        return [_found("guard_off", "error", text, f"systemctl start {guard_account.UNIT}, or run site.yml.")]
    findings = []
    why = "journalctl -u spark-agent -p warning -n 50 says what it did and why"
    if guard["level"] in (memory_guard.SHORT, memory_guard.CRITICAL):
        who = f" {guard['who']} hold most of it beside the services." if guard["who"] else ""
        text = f"the guard finds memory {guard['level']}: {guard['available_gib'] or 0.0:.2f} GiB available.{who}"
        findings.append(_found("guard_short", "warning", text, f"End what took the memory, or stop a service; {why}."))
    last, now = guard["last"], report.now
    recent = bool(last and now and last["at"] is not None and 0 <= now - last["at"] < DAY_SECONDS)
    if recent and last["what"] in (memory_guard.RESTART, memory_guard.NAME):
        text = f"the guard acted within a day; {guard_account.did(last)}."
        fix = f"{why}. Plan an engine that grows with a larger spark_safety_margin_gib, or a smaller gpu-memory-utilization."
        findings.append(_found("guard_acted", "warning", text, fix))
    return findings


def check_answers(report: HostReport) -> list[Finding]:
    """Engines: they answer, what they say is no garbage, and they do not stand in one another's way."""
    findings = []
    busy = []
    for service in report.services:
        name, answer, engine = (
            service.name,
            report.answers.get(service.name, Answer()),
            report.engines.get(service.name),
        )
        if answer.ready is False and report.active_state(service) == "active":
            text = f"its unit is active, but it is stuck in stage {answer.stage}: {answer.error}"
            fix = f"journalctl -u {service.unit} -n 100; a wedged engine wants systemctl restart {service.unit}."
            findings.append(_found("no_answer", "error", text, fix, name))
        running = answer.requests_running or 0
        if running:
            busy.append((name, running))
        if running >= MANY_REQUESTS and service.args.get("speculative-config"):
            text = f"{running} requests are served at once, and each step of theirs is shared with drafts."
            fix = "bench.yml with and without speculative-config at this concurrency says which is faster."
            findings.append(_found("drafts_under_load", "info", text, fix, name))
        text = engine.answer if engine else ""
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
    findings = signs(report.kernel_log, [sign for sign in KERNEL_SIGNS if sign.rule != FAN])
    for name, engine in report.engines.items():
        log = engine.log
        if log is None or not log.is_known:
            continue
        said = f" ({log.error.splitlines()[0][:200]})" if log.error else ""
        severity = "warning" if log.stage == "serving" else "error"
        findings.append(
            _found(
                "engine_log", severity, f"its log has a failure: {log.cause}{said}.", f"{log.fix}.", name, log.source
            )
        )
    return findings


def check_heat(report: HostReport) -> list[Finding]:
    """A host that is warm while its GPU rests."""
    busy, warmth = report.gpu_load.utilization, report.soc_c
    if busy is None or warmth is None or busy >= IDLE_PERCENT or warmth < WARM_C:
        return []
    return signs(report.kernel_log, [sign for sign in KERNEL_SIGNS if sign.rule == FAN])


def check_receipts(report: HostReport) -> list[Finding]:
    """Receipts: there, readable, not too old, of what is deployed."""
    findings = []
    for service in report.services if report.receipts is not None else ():
        name, receipt, ref = service.name, (report.receipts or {}).get(service.name), service.image.ref
        prove = "Run site.yml --tags prove."
        if receipt is None:
            if report.active_state(service) == "active":
                text = "it runs without a receipt: it was never proved on this host."
                findings.append(_found("no_receipt", "warning", text, prove, name))
            continue
        if receipt.error:
            text = f"its receipt cannot be read: {receipt.error}"
            findings.append(_found("receipt_broken", "warning", text, f"Remove {receipt.path}, then: {prove}", name))
            continue
        if receipt.age_days > OLD_RECEIPT_DAYS:
            text = f"its last proof was {receipt.age_days:.0f} days ago."
            findings.append(_found("receipt_old", "info", text, prove, name))
        if receipt.image and ref and receipt.image != ref:
            text = f"it was proved with image {receipt.image}, and the inventory has {ref}."
            findings.append(_found("receipt_image", "warning", text, "Run site.yml, which brings and proves it.", name))
    return findings


def check_images(report: HostReport) -> list[Finding]:
    """Images: moved tags, registries without an account, what lies about."""
    findings = []
    for service in report.services:
        ref = service.image.ref
        here, runs = report.images.get(ref, Image()), report.containers.get(service.container)
        if here.id and runs and runs != here.id and not service.ray_image and not service.built_image:
            text = f"it runs image {_brief(runs)}, and {ref} is {_brief(here.id)} on this host now."
            fix = "The next site.yml restarts it with that one. Name the image by digest where that is not meant."
            findings.append(_found("image_moved", "warning", text, fix, service.name))
        registry = ref.partition("/")[0]
        missing, accounts = bool(report.images) and not here.present, report.registries
        if missing and registry == "nvcr.io" and accounts is not None and registry not in accounts:
            text = f"image {ref} is not on this host, and root's Docker has no account at {registry}."
            fix = f"docker login {registry} on the host as root (user $oauthtoken, an NGC key); some images there need it."
            findings.append(_found("registry_login", "warning", text, fix, service.name))
    unused = report.unused_images
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
    memory, available = report.memory, report.memory.available_gib
    if isinstance(available, (int, float)) and available < MEMORY_LOW_GIB:
        severity = "error" if available < MEMORY_CRITICAL_GIB else "warning"
        text = f"{available:.1f} GiB of memory are available; below {MEMORY_CRITICAL_GIB:.0f} hosts froze without a log entry."
        fix = "Lower gpu-memory-utilization of a service, or raise spark_reserve_gib and plan again."
        findings.append(_found("memory_low", severity, text, fix))
    swap = (memory.swap_total_gib or 0) - (memory.swap_free_gib or 0)
    if swap > SWAP_GIB:
        text = f"{swap:.1f} GiB of swap are in use; reports say half the decode rate with 7 GiB, a tenth with 13."
        fix = "Free memory first, then: swapoff -a && swapon -a. vm.swappiness 10 or less keeps it from coming back."
        findings.append(_found("swap", "warning", text, fix))
    down = ("activating", "failed")
    waiting = [name for name, unit in report.units.items() if unit.managed and unit.active_state in down]
    cache = memory.page_cache_gib or 0
    if waiting and cache > CACHE_GIB:
        text = f"the page cache holds {cache:.1f} GiB while {waiting[0]} is not up; the driver allocates from free memory, not from available memory."
        fix = "The gate of the unit drops it at its next start; by hand: sync; echo 3 > /proc/sys/vm/drop_caches."
        findings.append(_found("page_cache", "info", text, fix))
    if report.shm_gib > SHM_GIB:
        text = f"/dev/shm of the host holds {report.shm_gib:.1f} GiB; containers with --ipc host leave segments there."
        fix = "ls -l /dev/shm, and remove what no process has open (fuser)."
        findings.append(_found("shm_left", "warning", text, fix))
    for process in report.processes:
        held = (process.used_mib or 0) / 1024
        if not process.container and held >= PROCESS_GIB:
            text = (
                f"process {process.pid} ({process.name}) holds {held:.1f} GiB of GPU memory outside of any container."
            )
            fix = "End it if it is left over (an engine whose parent was killed stays), or leave room for it by spark_reserve_gib."
            findings.append(_found("gpu_process", "warning", text, fix))
    return findings


def check_disks(report: HostReport) -> list[Finding]:
    """Disks: room for logs, images, caches."""
    findings = []
    seen = set()
    for path, disk in report.disks.items():
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
    began, ended, now = report.began, report.ended, report.now
    if now and began and ended:
        off = now - ended if now > ended else now - began if now < began else 0.0
        if abs(off) > CLOCK_SECONDS:
            text = f"the clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the controller's."
            fix = "timedatectl set-ntp true; then compare with timedatectl timesync-status."
            findings.append(_found("clock", "warning", text, fix))
    if report.synchronized is False:
        text = "the clock is not synchronised; certificates and the logs of a cluster need it."
        findings.append(_found("clock_free", "warning", text, "timedatectl set-ntp true, and let port 123/udp out."))
    return findings


def check_platform(report: HostReport) -> list[Finding]:
    """GPU, pending reboots and helpers of the host; what speaks against its kernel and driver says its plan."""
    findings: list[Finding] = []
    if report.gpu_error and "doctor.module_key" not in report.kernel_log:
        text = f"nvidia-smi says: {report.gpu_error}"
        fix = "Reboot after an update of the driver; without an update, the firmware of the same DGX OS release may be missing."
        findings.append(_found("gpu_silent", "error", text, fix))
    busy, clock, watts = report.gpu_load.utilization, report.gpu_load.sm_mhz, report.gpu_load.power_w
    if busy is None or clock is None or watts is None:
        busy, clock, watts = 0.0, 0.0, 0.0  # nobody can tell
    if busy >= BUSY_PERCENT and clock < STUCK_MHZ and watts < STUCK_WATTS:
        text = f"the GPU is {busy:.0f} % busy at {clock:.0f} MHz and {watts:.0f} W: its power supply limits it, also after a reboot."
        fix = "Switch the host off, pull the power from the wall for one to five minutes, and start it again; a reboot or nvidia-smi -lgc does not help."
        source = "NVIDIA developer forum t/361294, t/361296, t/376039, t/376239: 500 to 720 MHz; healthy is 1400 MHz and 40 W or more"
        findings.append(_found("power_stuck", "error", text, fix, source=source))
    went, now = report.went_off, report.now
    if went is not None and now and 0 <= now - went <= WENT_OFF_DAYS * DAY_SECONDS:
        text = f"it went off or froze without a shutdown, {(now - went) / 3600:.0f} h ago; its log does not say why."
        fix = (
            "Where nobody pulled the plug: long prefills at full clock and heat have powered hosts off (spark_gpu_clocks: {max_mhz: 2200}, "
            "a lower max-num-batched-tokens, cooling), and hosts without memory freeze (spark_guard; journalctl -b -1 -u spark-agent)."
        )
        findings.append(_found("went_off", "warning", text, fix))
    if report.reboot_required:
        names = ", ".join(report.reboot_packages) or "an update"
        text = f"the host needs a reboot after the update of {names}."
        findings.append(
            _found("reboot", "warning", text, "Reboot it when its services may be down for the time of a start.")
        )
    if report.no_initrd:
        text = f"/boot has no initrd.img for kernel {', '.join(report.no_initrd)}: a boot into it does not find the root file system."
        findings.append(_found("initrd", "error", text, host_update.initrd_fix(report.no_initrd)))
    for branch, packages in report.driver_packages.items():
        text = f"packages of driver branch {branch} are installed, and another branch is loaded: {', '.join(packages)}."
        fix = f"Remove them (apt purge {' '.join(packages)}), or install the whole driver of one branch, before the next reboot."
        findings.append(_found("driver_mixed", "warning", text, fix))
    for path, variables in report.docker_proxies.items():
        text = (
            f"{path} has proxies: docker run of the units sets {', '.join(variables)} in every container. Requests of an engine to "
            "other hosts, of Ray (gRPC) too, then go by the proxy."
        )
        fix = (
            "Remove 'proxies' there; pulls use the daemon's own (systemctl edit docker: Environment=HTTPS_PROXY=...). A service that needs "
            "a proxy has it in env."
        )
        findings.append(_found("docker_proxy", "warning", text, fix))
    if (report.helpers.get("docker.service") or {}).get("enabled") is False:
        text = "docker.service is not enabled: after a reboot Docker does not start, and units wait for it."
        findings.append(_found("docker_disabled", "warning", text, "systemctl enable docker."))
    earlyoom = (report.helpers.get("earlyoom.service") or {}).get("active")
    if earlyoom and any(service.cluster for service in report.services):
        text = "earlyoom runs; it was reported to kill ranks while they load."
        findings.append(_found("earlyoom", "warning", text, "systemctl disable --now earlyoom on hosts of a cluster."))
    return findings


def check_caches(report: HostReport) -> list[Finding]:
    """Compile caches that are older than the image, of services that do not get up: the known cause of hangs after updates."""
    findings = []
    for service in report.services:
        engine = report.engines.get(service.name)
        if report.active_state(service) not in ("failed", "activating") or not engine or not engine.oldest:
            continue
        if engine.unit_changed and engine.oldest < engine.unit_changed:
            text = f"it does not start, and its compile cache {engine.cache_path} is older than the last change of its unit."
            fix = f"systemctl stop {service.unit}, empty that folder, start it; the start compiles for minutes."
            findings.append(_found("cache_stale", "info", text, fix, service.name))
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
