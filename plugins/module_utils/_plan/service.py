# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The objects that the steps of a plan pass on: hosts, services of the inventory and services placed on a host; C(planned.py) has planned ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._cluster.clustering import Span
from .planned import File

if TYPE_CHECKING:
    from .measured_starts import KnownStarts


@dataclass(frozen=True)
class Sources:
    """The input of a plan besides the inventory.

    recipes: name to recipe. digest: returns the SHA-256 of a file on the controller, None for a missing file. lock: the lock file. pin:
    deploy locked images and models by digest and commit. upstream: C(upstream) of M(dgxspark.vllm.spark_info). sparks: number of planned
    Sparks. image_answer: returns the answer of an image to the question of a name, see C(image_questions). starts: measured starts of
    engines, None without any. measurements: include the measured starts in the plan.
    """

    recipes: Mapping[str, Mapping[str, Any]]
    digest: Callable[[str], str | None]
    lock: Mapping[str, Any] | None
    pin: bool
    upstream: Mapping[str, Any] | None
    sparks: int
    image_answer: Callable[[str], Mapping[str, Any] | None] = lambda _key: None
    starts: KnownStarts | None = None
    measurements: bool = False

    @property
    def applied_lock(self) -> Mapping[str, Any] | None:
        """The lock file, None if the plan does not use it."""
        return self.lock if self.pin else None


@dataclass(frozen=True)
class ServiceSpec:
    """A service of the inventory, merged with its recipe; C(SERVICE) of C(service_keys.py) has the meaning of most fields.

    variant: the chosen variants of the recipe. image: with the facts of the recipe; alternatives: references of all suitable images, the
    preferred one first. secrets: environment variable to file on the controller. nodes: number of Sparks. least_vllm: the oldest vLLM of
    its recipe, empty if not stated. lora: of C(lora.read). expect: kernels and drafts, by the recipe. weights_gib, draft_weights_gib: GiB
    on one rank, None to calculate them. memory, memory_gib: stated memory of an engine, instead of calculated memory. start_timeout:
    seconds. left_out: settings of a recipe by reference that this collection does not apply. lock: its entry in the lock file, of
    C(lock.describe). hosts: the hosts of its cluster that it spans, empty for all. on_demand: of C(on_demand.read), None for a permanent
    service. kv_tiers: of C(kv_tiers.read).

    The rest is set on its host, where it may be a rank of a cluster. rank: 0 answers requests. cluster: None for a service of one host.
    needs_ray: Ray is added to its image. solved: options that are solved once for all ranks. callers: hosts that send it requests. linked:
    it names files of its model, so its snapshot needs a link.
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
    kv_tiers: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 0
    cluster: Span | None = None
    needs_ray: bool = False
    solved: Mapping[str, Any] = field(default_factory=dict)
    callers: Sequence[str] = ()
    linked: bool = False


@dataclass(frozen=True)
class JudgedLaunch:
    """The verdict of the rules on a launch, with repaired options; see C(judging.check_launch).

    args, env: of the engine. version_source: source of the version. entrypoint: C(serve) or C(passthrough). autofix: changes of
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
    """A host of the inventory, with its facts.

    variables: of the inventory. address: C(ansible_host), may be empty. measured: C(spark) of M(dgxspark.vllm.spark_info), None if unknown.
    reported_images: C(images) of M(dgxspark.vllm.spark_info) by reference; images: the same, with locked images under their names in the plan. fabric:
    the network that the role fabric planned in this run, or None. settings: the variables with their defaults; add-on services are
    under C(addons). services: of a Spark, merged with their recipes, in the order of the inventory.
    """

    name: str
    variables: Mapping[str, Any]
    address: str
    measured: Mapping[str, Any] | None
    reported_images: Mapping[str, Any]
    images: Mapping[str, Any]
    fabric: Mapping[str, Any] | None
    settings: Mapping[str, Any]
    services: Sequence[ServiceSpec] = ()

    @property
    def present_images(self) -> set[str]:
        """The references of the images that the host has."""
        return {ref for ref, image in self.images.items() if image.get("present")}

    @property
    def machine(self) -> str | None:
        """The architecture of the host, None if unknown."""
        architecture = (self.measured or {}).get("architecture")
        return None if architecture is None else str(architecture)

    @property
    def ignored(self) -> frozenset[str]:
        """The ids of ignored rules, by the variables of the host."""
        rules = self.variables.get("spark_ignore_rules")
        return frozenset(rule for rule in rules if isinstance(rule, str)) if isinstance(rules, list) else frozenset()
