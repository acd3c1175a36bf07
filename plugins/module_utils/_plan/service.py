# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the steps of a plan hand on to each other: hosts, and a service as it is written and as it is placed on a host. C(planned.py) has it planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .._cluster.clustering import Span
from .known_starts import KnownStarts
from .planned import File


@dataclass(frozen=True)
class Sources:
    """What the plan of all hosts is made from beside the inventory.

    recipes: name to recipe. digest: the SHA-256 of a file on the controller, None where there is none. lock: the lock file. pin: whether
    what it has is deployed by digest and commit. upstream: C(upstream) of M(dgxspark.vllm.spark_info). sparks: how
    many Sparks are planned. known: what an image said to the question of a name, see C(image_questions). starts: what engines were
    measured to take, None where nothing is known, see C(measured_starts). measurements: whether the plan of a host has
    them, with what they are of.
    """

    recipes: Mapping[str, Mapping[str, Any]]
    digest: Callable[[str], str | None]
    lock: Mapping[str, Any] | None
    pin: bool
    upstream: Mapping[str, Any] | None
    sparks: int
    known: Callable[[str], Mapping[str, Any] | None] = lambda _key: None
    starts: KnownStarts | None = None
    measurements: bool = False

    @property
    def applied_lock(self) -> Mapping[str, Any] | None:
        """The lock where it is deployed by, None where it is not."""
        return self.lock if self.pin else None


@dataclass(frozen=True)
class ServiceSpec:
    """A service as the inventory has it, merged with its recipe; C(SERVICE) of C(service_keys.py) has the meaning of most fields.

    variant: the chosen variants of the recipe. image: what is served from, with what the recipe knows of it; alternatives: references
    of all images that would do, the first choice first. secrets: environment variable to file on the controller. nodes: how many
    Sparks it needs. least_vllm: the oldest vLLM that its recipe is for, empty where it says none. lora: its adapters, of C(lora.read).
    expect: what the recipe says of kernels and drafts. weights_gib, draft_weights_gib: GiB on one rank, None where they are worked
    out. memory, memory_gib: what a person says that an engine takes on a Spark, in place of all that. start_timeout: seconds.
    left_out: what a recipe by reference does and this collection does not. lock: what the lock file keeps of it, see C(lock.describe).
    hosts: those of its cluster that it spans, empty for all. on_demand: of C(on_demand.read), None for one that is always there.
    """

    name: str
    recipe: str | None
    variant: Sequence[str]
    port: int
    host: str | None
    served_model_name: str
    model: Mapping[str, Any]
    image: Mapping[str, Any]
    alternatives: Sequence[str]
    args: Mapping[str, Any]
    env: Mapping[str, str]
    secrets: Mapping[str, str]
    checks: Mapping[str, Any]
    files: Sequence[File]
    pip: Sequence[str]
    nodes: int
    config: Mapping[str, Any]
    quant_config: Mapping[str, Any] | None
    draft_config: Mapping[str, Any] | None
    weights_gib: float | None
    draft_weights_gib: float | None
    memory: Mapping[str, Any] | None
    memory_gib: float | None
    expect: Sequence[Mapping[str, Any]]
    memory_share: float
    state: str
    exclusive: str
    overheads: Mapping[str, Any]
    start_timeout: int
    shm_size: str | None
    docker_args: Sequence[str]
    ignore: Sequence[str]
    left_out: Sequence[str] = ()
    lock: Mapping[str, Any] = field(default_factory=dict)
    least_vllm: str = ""
    lora: Mapping[str, Any] = field(default_factory=dict)
    hosts: Sequence[str] = ()
    on_demand: Mapping[str, Any] | None = None

    def placed(self, **more: Any) -> PlacedService:
        """Return the service as a host runs it; more: fields that are others there."""
        return PlacedService(**{**{each.name: getattr(self, each.name) for each in fields(ServiceSpec)}, **more})


@dataclass(frozen=True)
class PlacedService(ServiceSpec):
    """A service as one host runs it, alone or as a rank of a cluster.

    rank: 0 for what answers requests. cluster: None for a service of one host. needs_ray: its image has no Ray and is built with it.
    solved: options that were worked out once for all ranks. callers: hosts that have to reach it. linked: the snapshot of its model is
    reached by a link, since files of it are named.
    """

    rank: int = 0
    cluster: Span | None = None
    needs_ray: bool = False
    solved: Mapping[str, Any] = field(default_factory=dict)
    callers: Sequence[str] = ()
    linked: bool = False


@dataclass(frozen=True)
class JudgedLaunch:
    """A launch as the rules judge it, with what they repaired; see C(judging.check_launch).

    args, env: of the engine. version_source: where the version is from. entrypoint: C(serve) or C(passthrough). autofix: changes, of
    C(compat.check_launch).
    """

    args: Mapping[str, Any]
    env: Mapping[str, str]
    vllm_version: str | None
    version_source: str
    entrypoint: str
    findings: Sequence[dict[str, Any]]
    autofix: Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Host:
    """A host of the inventory, with what it said of itself.

    variables: as a person wrote them. address: C(ansible_host), empty where there is none. measured: C(spark) of
    M(dgxspark.vllm.spark_info), None where it was not asked. said: C(images) of M(dgxspark.vllm.spark_info) by reference; images: the same, with locked
    ones under the names that the plan uses. fabric: what the role fabric has planned in this run, if it has. settings: the
    variables with their defaults; those of add-on services under C(addons). services: of a Spark, merged with their recipes, in the
    inventory's order.
    """

    name: str
    variables: Mapping[str, Any]
    address: str
    measured: Mapping[str, Any] | None
    said: Mapping[str, Any]
    images: Mapping[str, Any]
    fabric: Mapping[str, Any] | None
    settings: Mapping[str, Any]
    services: Sequence[PlacedService] = ()

    @property
    def machine(self) -> str | None:
        """The architecture that the host says it has, None where it was not asked."""
        found = (self.measured or {}).get("architecture")
        return None if found is None else str(found)

    @property
    def ignored(self) -> frozenset[str]:
        """The findings that the host does without, by its variables."""
        rules = self.variables.get("spark_ignore_rules")
        return frozenset(rule for rule in rules if isinstance(rule, str)) if isinstance(rules, list) else frozenset()
