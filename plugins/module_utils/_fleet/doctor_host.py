# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host for doctor: its plan, facts, answers, and the section C(health). No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .._common.reader import from_dict
from .._plan.planned import PlannedService
from .._proof.explain import Explanation


@dataclass(frozen=True)
class Unit:
    """A unit of systemd."""

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
    """A planned image on the host."""

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
    """A process with GPU memory; container: None outside of containers."""

    pid: int
    name: str | None = None
    container: str | None = None
    used_mib: float | None = None


@dataclass(frozen=True)
class GpuLoad:
    """Load of the GPU: percent, MHz, W."""

    utilization: float | None = None
    sm_mhz: float | None = None
    power_w: float | None = None


@dataclass(frozen=True)
class Receipt:
    """A receipt; error: why it cannot be read. speed: C(message) and C(fix) of its finding about a slow service."""

    path: str
    age_days: float = 0.0
    image: str | None = None
    error: str | None = None
    speed: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Engine:
    """Log and answer of a service, its folder of compile caches with the time of the oldest entry, and the time of its unit's last change (s)."""

    log: Explanation | None
    answer: str
    cache_path: str | None
    oldest: float | None
    unit_changed: float | None

    @classmethod
    def from_dict(cls, service: Mapping[str, Any]) -> Engine:
        """Return one of C(health.services) of M(dgxspark.vllm.spark_info)."""
        cache, log = service.get("cache") or {}, service.get("log")
        return cls(
            log=from_dict(Explanation, log) if log else None,
            answer=(service.get("answer") or {}).get("text") or "",
            cache_path=cache.get("path"),
            oldest=cache.get("oldest"),
            unit_changed=service.get("unit_changed"),
        )


@dataclass(frozen=True)
class Facts:
    """The facts of a host. has_answered: it gave some. services: deployed ones. containers: ids of images by container. guard: of
    C(guard_account.account). quality: of C(quality_account.account). unknown: some programs gave no answer."""

    has_answered: bool
    services: Sequence[str]
    units: Mapping[str, Unit]
    containers: Mapping[str, str | None]
    guard: Mapping[str, Any] | None
    quality: Mapping[str, Mapping[str, Any]]
    unknown: bool
    memory: Memory
    processes: Sequence[Process]

    @classmethod
    def from_dict(cls, spark: Mapping[str, Any]) -> Facts:
        """Return C(spark) of M(dgxspark.vllm.spark_info)."""
        return cls(
            has_answered=bool(spark),
            services=spark.get("services") or [],
            units={unit["name"]: from_dict(Unit, unit) for unit in spark.get("units") or []},
            containers={container["name"]: container.get("image_id") for container in spark.get("containers") or []},
            guard=spark.get("guard"),
            quality=spark.get("quality") or {},
            unknown=bool(spark.get("unknown")),
            memory=from_dict(Memory, spark.get("memory") or {}),
            processes=[from_dict(Process, process) for process in (spark.get("gpu") or {}).get("processes") or []],
        )


@dataclass(frozen=True)
class Health:
    """C(health) of M(dgxspark.vllm.spark_info). now, synchronized: of its clock. went_off: end of a boot without a shutdown. receipts, registries: None
    if unknown."""

    disks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    docker_proxies: Mapping[str, Sequence[str]] = field(default_factory=dict)
    driver_packages: Mapping[str, Sequence[str]] = field(default_factory=dict)
    gpu_error: str = ""
    soc_c: float | None = None
    helpers: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    kernel_log: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    no_initrd: Sequence[str] = ()
    nvidia_tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reboot_required: bool = False
    reboot_packages: Sequence[str] = ()
    registries: Sequence[str] | None = None
    shm_gib: float = 0.0
    unused_images: Sequence[Mapping[str, Any]] = ()
    now: float | None = None
    synchronized: bool | None = None
    went_off: float | None = None
    gpu_load: GpuLoad = field(default_factory=GpuLoad)
    receipts: Mapping[str, Receipt] | None = None
    engines: Mapping[str, Engine] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, health: Mapping[str, Any]) -> Health:
        """Return the section; missing answers have the defaults."""
        clock, last_boot, receipts = health.get("clock") or {}, health.get("last_boot") or {}, health.get("receipts")
        values = {option.name: health[option.name] for option in fields(cls) if health.get(option.name) is not None}
        values.update(
            now=clock.get("now"),
            synchronized=clock.get("synchronized"),
            went_off=last_boot.get("ended") if last_boot.get("shut_down") is False else None,
            gpu_load=from_dict(GpuLoad, health.get("gpu_load") or {}),
            receipts=None
            if receipts is None
            else {name: from_dict(Receipt, entry) for name, entry in receipts.items()},
            engines={name: Engine.from_dict(service) for name, service in (health.get("services") or {}).items()},
        )
        return cls(**values)


@dataclass(frozen=True)
class HostReport:
    """Everything that is known of one host; unknown parts are empty. began, ended: of the task for C(health), by the controller's clock."""

    services: Sequence[PlannedService]
    facts: Facts
    health: Health
    answers: Mapping[str, Answer]
    images: Mapping[str, Image]
    began: float | None
    ended: float | None

    @classmethod
    def from_dicts(
        cls,
        planned: Mapping[str, Any],
        facts: Mapping[str, Any],
        looked: Mapping[str, Any],
        answers: Mapping[str, Mapping[str, Any]],
        images: Mapping[str, Any],
        times: Mapping[str, float],
    ) -> HostReport:
        """Return a host.

        :param facts: C(spark) of M(dgxspark.vllm.spark_info)
        :param looked: C(health) of the same
        :param answers: C(services) of the same, by name
        :param images: C(images) of the same
        :param times: C({began, ended}) of the task for C(looked)
        """
        return cls(
            services=[from_dict(PlannedService, service) for service in planned.get("services") or []],
            facts=Facts.from_dict(facts),
            health=Health.from_dict(looked),
            answers={name: from_dict(Answer, answer) for name, answer in answers.items()},
            images={ref: from_dict(Image, image or {}) for ref, image in images.items()},
            began=times.get("began"),
            ended=times.get("ended"),
        )

    def active_state(self, service: PlannedService) -> str | None:
        """Return the state of a service's unit, None if unknown."""
        return self.facts.units.get(service.unit, Unit()).active_state
