# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A planned service and a planned host. Ansible gets them as mappings, of C(reader.to_dict)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._common.reader import OPTIONAL
from .._speed.service_speed import ServiceSpeed


@dataclass(frozen=True)
class ExtraModel:
    """A further repository of a service. only: patterns of its files, empty for all. link: like the link of a model."""

    repo: str
    revision: str
    only: Sequence[str]
    link: str | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class PlannedModel:
    """The checkpoint of a service: a repository at a revision, or a folder of the controller.

    source: the folder on the controller; path: the folder on the host. link: below HF_HOME, to the snapshot. argument: of vllm serve.
    """

    repo: str | None
    revision: str | None
    source: str | None
    path: str | None
    link: str | None
    argument: str
    extra: Sequence[ExtraModel]

    @property
    def parts(self) -> list[PlannedModel | ExtraModel]:
        """The model and its further repositories."""
        return [self, *self.extra]


@dataclass(frozen=True)
class PlannedImage:
    """An image. id, digest: on the host, if known. run: the name for docker run."""

    ref: str
    id: str | None
    digest: str | None
    run: str


@dataclass(frozen=True)
class BuiltImage:
    """An image that the host builds from C(base) by C(dockerfile), which refers to C(base_tag)."""

    base: str
    base_tag: str
    tag: str
    dockerfile: str


@dataclass(frozen=True)
class RayImage:
    """An image that the host builds from C(base) with Ray. version: of Ray."""

    base: str
    version: str
    tag: str


@dataclass(frozen=True)
class Secret:
    """A secret of an engine. name: of the variable. source: file on the controller. path: on the host."""

    name: str
    source: str
    path: str


@dataclass(frozen=True)
class File:
    """A file in the container of an engine. path: in the container.

    source: on the controller; None for a file of the checkpoint, which has no C(sha256) either, and for a file with C(content). host: path
    on the host, empty until the service is placed.
    """

    source: str | None
    path: str
    sha256: str | None = None
    host: str = ""
    content: str | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class ClusterOf:
    """The cluster that a service spans."""

    name: str
    size: int
    head: str
    hosts: Sequence[str]
    executor: str


@dataclass(frozen=True)
class Limits:
    """Bounds of a unit, in seconds and starts."""

    starts: int
    restart_seconds: int
    stop_seconds: int
    start_interval: int


@dataclass(frozen=True)
class Container:
    """A container of a service with its C(docker run). after: conditions of its start, by kind."""

    container: str
    argv: Sequence[str]
    after: Mapping[str, Mapping[str, str | int]] | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class Probe:
    """The address of a service for probes. url: None for ranks that answer no requests."""

    name: str
    url: str | None
    model: str
    api_key_file: str | None


@dataclass(frozen=True)
class RankSettings:
    """Settings of the supervisor of a rank.

    peers: C(rank), C(host) and C(address) of the other ranks. fingerprint: of the containers of all ranks, empty until all are planned.
    image: the same on all hosts. model: C(repo), C(revision) and C(hub), the folder of its snapshot. links: interfaces to its neighbours in
    a ring, C(netdev) and C(host).
    """

    cluster: str
    rank: int
    size: int
    executor: str
    address: str
    port: int
    peers: Sequence[Mapping[str, str | int]]
    fingerprint: str
    image: str
    model: Mapping[str, str | None]
    peer_timeout_seconds: float
    starts: int
    start_interval: int
    parts: Sequence[Container]
    links: Sequence[Mapping[str, str]] | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class KvTiers:
    """The tiers of a KV cache behind the GPU.

    prompt_tokens: that the buffer restores of a prompt at most. disk_tokens: that the files keep. written_gib: to disk by a million new
    tokens. worth: C(tokens), C(gib), C(read_seconds) and C(prefill_seconds) of long prompts. Unknown figures are None.
    """

    folder: str
    host_gib: float
    disk_gib: float
    prompt_tokens: int | None
    disk_tokens: int | None
    written_gib: float | None
    worth: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class UnitSettings:
    """Settings of the helper of a service's unit: the probe, and the conditions of its start. kv_files: of C(kv_tiers.files_of)."""

    name: str
    url: str | None
    model: str
    api_key_file: str | None
    unit: str
    container: str
    start_deadline_seconds: int
    memory_gib: float
    memory_wait_seconds: int
    sysroot: str
    image: str | None = field(default=None, metadata=OPTIONAL)
    cache_dir: str | None = field(default=None, metadata=OPTIONAL)
    exclusive: str | None = field(default=None, metadata=OPTIONAL)
    load_guard: Mapping[str, Any] | None = field(default=None, metadata=OPTIONAL)
    rank: RankSettings | None = field(default=None, metadata=OPTIONAL)
    on_demand: bool | None = field(default=None, metadata=OPTIONAL)
    kv_files: Mapping[str, Any] | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class OnDemand:
    """Settings of the proxy for an engine on demand.

    engine: its URL. set: engines that share its memory. keep: most engines of the set that run, None for all that fit. combinations: the
    largest combinations of the set that fit. while_loading: C(wait), C(comments) or C(reject).
    """

    engine: str
    set: str | None
    keep: int | None
    combinations: Sequence[Sequence[str]]
    idle_seconds: int
    minimum_seconds: int
    priority: int
    hold_seconds: int
    while_loading: str
    retry_seconds: int


@dataclass(frozen=True)
class PlannedService:
    """A planned service on its host; C(hosts.services) of M(dgxspark.vllm.plan) has the meaning of most fields.

    memory: its part of the memory budget. fast_path: of C(expected_path). speed: alone on its Sparks. lock: of C(lock.describe). parts: its
    containers, made from the fields before. fingerprint: of the containers. stale: the running container has another fingerprint.
    gateway: C(host) of the gateway and C(backend), the key of the service there; set after all hosts are planned.
    """

    name: str
    unit: str
    container: str
    rank: int
    cluster: ClusterOf | None
    order: int
    after: Sequence[str]
    recipe: str | None
    variant: Sequence[str]
    lock: Mapping[str, Any]
    served_model_name: str
    host: str
    port: int
    url: str | None
    model: PlannedModel
    image: PlannedImage
    built_image: BuiltImage | None
    ray_image: RayImage | None
    vllm_version: str | None
    version_source: str
    entrypoint: str
    args: Mapping[str, Any]
    env: Mapping[str, str]
    env_file: str
    secrets: Sequence[Secret]
    files: Sequence[File]
    pip: Sequence[str]
    checks: Mapping[str, Any]
    exclusive: str
    state: str
    start_timeout: int
    limits: Limits
    cache_dir: str
    linked: bool
    folders: Sequence[Mapping[str, str]]
    memory: Mapping[str, Any]
    fast_path: Mapping[str, Any]
    speed: ServiceSpeed
    command: Sequence[str]
    probe: Probe
    settings: UnitSettings
    fingerprint: str = ""
    parts: Sequence[Container] = ()
    stale: bool = False
    argv: Sequence[str] = ()
    gateway: Mapping[str, str] | None = None
    on_demand: OnDemand | None = field(default=None, metadata=OPTIONAL)
    kv_tiers: KvTiers | None = field(default=None, metadata=OPTIONAL)

    @property
    def api_key(self) -> Secret | None:
        """The API key of the service, None without one."""
        return next((secret for secret in self.secrets if secret.name == "VLLM_API_KEY"), None)

    def key(self, host: str) -> str:
        """Return the name of the service in the fleet: host, or cluster, and service."""
        return f"{self.cluster.name if self.cluster else host}/{self.name}"


@dataclass
class PlannedHost:
    """A planned host, completed by the steps of the plan; C(hosts) of M(dgxspark.vllm.plan) has the meaning of the fields.

    The steps add to findings and image_questions in place. sets: the largest combinations of services on demand. speech: the speech
    servers on demand, for status reports.
    """

    services: list[PlannedService]
    verdict: str
    start_order: list[str]
    utilization_sum: float
    total_gib: float
    findings: list[dict[str, Any]]
    autofix: list[dict[str, Any]]
    memory_map: Mapping[str, Any]
    image_questions: list[dict[str, Any]]
    image_answers: dict[str, str]
    basis: str
    images: list[str]
    image_candidates: list[str]
    models: list[dict[str, Any]]
    missing: Mapping[str, list[str]]
    images_locked: dict[str, dict[str, Any]]
    built_images: list[BuiltImage]
    ray_images: list[RayImage]
    settings: Mapping[str, Any]
    measurements: list[dict[str, Any]] | None = field(default=None, metadata=OPTIONAL)
    sets: Mapping[str, Sequence[Sequence[str]]] | None = field(default=None, metadata=OPTIONAL)
    speech: list[dict[str, Any]] | None = field(default=None, metadata=OPTIONAL)
    cluster: Mapping[str, Any] | None = None
    firewall: Mapping[str, Any] | None = None
    images_beside: list[str] = field(default_factory=list)
    addon_images: Mapping[str, str] = field(default_factory=dict)
