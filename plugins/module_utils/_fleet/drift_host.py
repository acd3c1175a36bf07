# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host for the drift report: its present state, its recorded generation, and its plan. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .._common.reader import from_dict
from .._plan.planned import PlannedService
from . import generations

UP = (*generations.RUNNING, "queued")
FILE_KINDS = ("changed", "missing", "added", "attributes")
"""Kinds of differences between files and the deployed document."""


@dataclass(frozen=True)
class Unit:
    """A unit of systemd. active: its state; C(queued) if its start waits for another one."""

    active: str | None = None
    enabled: bool | None = None
    masked: bool = False

    @classmethod
    def of_facts(cls, unit: Mapping[str, Any]) -> Unit:
        """Return an entry of C(units) of M(dgxspark.vllm.spark_info)."""
        active = "queued" if unit.get("queued") else str(unit.get("active_state"))
        return cls(active, unit.get("enabled"), unit.get("load_state") == "masked")

    @property
    def is_up(self) -> bool:
        """Whether it runs or starts."""
        return self.active in UP


@dataclass(frozen=True)
class Container:
    """A running container. managed: started by its unit. fingerprint: of its planned launch."""

    image_id: str | None = None
    managed: bool = False
    fingerprint: str | None = None


@dataclass(frozen=True)
class Spark:
    """The present state of a host. stopped: why the memory guard stopped services. relays: it forwards packets of a ring. versions: of
    C(generations.facts_of)."""

    services: Sequence[str] = ()
    units: Mapping[str, Unit] = field(default_factory=dict)
    containers: Mapping[str, Container] = field(default_factory=dict)
    stopped: Mapping[str, str] = field(default_factory=dict)
    relays: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, spark: Mapping[str, Any]) -> Spark:
        """Return the host of C(spark) of M(dgxspark.vllm.spark_info)."""
        containers = spark.get("containers") or []
        return cls(
            services=spark.get("services") or [],
            units={unit["name"]: Unit.of_facts(unit) for unit in spark.get("units") or []},
            containers={box["name"]: from_dict(Container, box) for box in containers if box.get("state") == "running"},
            stopped=(spark.get("guard") or {}).get("stopped") or {},
            relays=bool((spark.get("fabric") or {}).get("relay")),
            versions=generations.facts_of(spark),
        )


@dataclass(frozen=True)
class Model:
    """A planned model or vocabulary on a host: a repository at a revision, or a path. wrong: faults of its files."""

    there: bool
    wrong: Sequence[str]
    repo: str | None = None
    revision: str | None = None
    path: str | None = None
    is_vocabulary: bool = False

    def is_used_by(self, service: PlannedService) -> bool:
        """Tell whether a service uses it."""
        if not self.repo:
            return service.model.path == self.path
        return any((part.repo, part.revision) == (self.repo, self.revision) for part in service.model.parts)


@dataclass(frozen=True)
class Launch:
    """The launch of a service, by its receipt."""

    argv: Sequence[str] = ()
    env: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Differences:
    """Paths of files by kind of difference; moved models by service, each C({repo, revision, was, is}); and planned models."""

    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    moved: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    models: Sequence[Model] = ()

    @classmethod
    def from_dict(cls, differences: Mapping[str, Any]) -> Differences:
        """Return C(differences) of M(dgxspark.vllm.compare)."""
        return cls(
            files={kind: differences.get(kind) or [] for kind in FILE_KINDS},
            moved=differences.get("moved") or {},
            models=[from_dict(Model, model) for model in differences.get("models") or []],
        )


@dataclass(frozen=True)
class Recorded:
    """The current generation. checksums: of the deployed parts. units: at that time. images: ids by unit."""

    number: int | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    came_from: int | None = None
    restoring: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, Unit] = field(default_factory=dict)
    images: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, recorded: Mapping[str, Any]) -> Recorded:
        """Return C(recorded) of M(dgxspark.vllm.compare)."""
        return cls(
            number=recorded.get("number"),
            checksums=recorded.get("checksums") or {},
            came_from=recorded.get("from"),
            restoring=recorded.get("restoring"),
            facts=recorded.get("facts") or {},
            units={name: from_dict(Unit, unit) for name, unit in (recorded.get("units") or {}).items()},
            images={name: image.get("id") for name, image in (recorded.get("images") or {}).items()},
        )


@dataclass(frozen=True)
class Compared:
    """The answer of M(dgxspark.vllm.compare) without a document, empty without an answer. recorded: None without a generation."""

    differences: Differences = field(default_factory=Differences)
    recorded: Recorded | None = field(default_factory=Recorded)
    units: Mapping[str, Unit] = field(default_factory=dict)
    launches: Mapping[str, Launch] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, answer: Mapping[str, Any]) -> Compared:
        """Return the answer of the module."""
        recorded = answer.get("recorded")
        return cls(
            differences=Differences.from_dict(answer.get("differences") or {}),
            recorded=Recorded.from_dict(recorded) if recorded else None,
            units={name: from_dict(Unit, unit) for name, unit in (answer.get("units") or {}).items()},
            launches={name: from_dict(Launch, launch) for name, launch in (answer.get("launches") or {}).items()},
        )


@dataclass(frozen=True)
class LockedImage:
    """An image of the lock file: its name there, and the ids that count as this image."""

    name: str
    ids: Sequence[str]


@dataclass(frozen=True)
class Host:
    """Everything that is known of one host; unknown parts are empty.

    services, locked, addon_images, relay: of its plan; locked by reference; relay: it should forward packets of a ring. images: ids by reference,
    None if unknown. checksums: of the parts of its planned document, empty if the plan lacks answers of hosts. has_ranks: the plan
    of its clusters has the answers of all ranks.
    """

    services: Sequence[PlannedService]
    locked: Mapping[str, LockedImage] = field(default_factory=dict)
    addon_images: Mapping[str, str] = field(default_factory=dict)
    relay: bool = False
    checksums: Mapping[str, str] = field(default_factory=dict)
    has_ranks: bool = True
    now: Spark = field(default_factory=Spark)
    images: Mapping[str, str | None] | None = None
    compared: Compared = field(default_factory=Compared)

    @classmethod
    def planned(
        cls, planned: Mapping[str, Any], checksums: Mapping[str, str] | None = None, has_ranks: bool = True
    ) -> Host:
        """Return a host by its part of the plan; C(with_answers) adds the rest."""
        return cls(
            services=[from_dict(PlannedService, service) for service in planned.get("services") or []],
            locked={ref: from_dict(LockedImage, image) for ref, image in (planned.get("images_locked") or {}).items()},
            addon_images=planned.get("addon_images") or {},
            relay=bool(((planned.get("cluster") or {}).get("fabric") or {}).get("relay")),
            checksums=checksums or {},
            has_ranks=has_ranks,
        )

    def with_answers(
        self,
        spark: Mapping[str, Any],
        images: Mapping[str, Any] | None = None,
        compared: Mapping[str, Any] | None = None,
    ) -> Host:
        """Return the host with its answers.

        :param images: of M(dgxspark.vllm.spark_info), None if unknown
        :param compared: of M(dgxspark.vllm.compare), None without an answer
        """
        return replace(
            self,
            now=Spark.from_dict(spark),
            images=None if images is None else {ref: (image or {}).get("id") for ref, image in images.items()},
            compared=Compared() if compared is None else Compared.from_dict(compared),
        )

    def container(self, service: PlannedService) -> Container | None:
        """Return the running container of a service, None without one."""
        return self.now.containers.get(service.container)

    @property
    def recorded(self) -> Recorded:
        """The current generation, empty without one."""
        return self.compared.recorded or Recorded()
