# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A planned service, from a placed service, its launch and its memory."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._cluster import ray_cluster
from .._cluster.clustering import PORTS
from .._cluster.endpoints import bracketed
from .._common import plain_data
from .._common.sizes import GIB
from .._content import built_image
from .._host.docker_facts import FINGERPRINT_LABEL
from .._vllm import versions
from . import expected_path, kv_tiers, on_demand, service_files, speeds
from .container_argv import STOP_SECONDS, parts_of, render_command
from .judging import is_open, solved_args
from .planned import (
    BuiltImage,
    ClusterOf,
    Container,
    Limits,
    PlannedImage,
    PlannedModel,
    PlannedService,
    Probe,
    RankSettings,
    RayImage,
    Secret,
    UnitSettings,
)
from .service import Host, JudgedLaunch, ServiceSpec
from .service_files import CONTAINER_CACHE, CONTAINER_HF_HOME

MEMORY_WAIT_SECONDS = 240
STARTS = 3
RESTART_SECONDS = 10
_AS_IN_THE_INVENTORY = (
    # Stopped services stay deployed; C(verbs.choose_states) chooses the running service of an exclusive set.
    *("name", "rank", "recipe", "variant", "lock", "served_model_name", "port", "exclusive", "state"),
    *("files", "pip", "checks", "start_timeout", "linked"),
)
"""Fields of a service that do not change."""


# Long: one line for each field of a service.
def plan_service(
    host: Host, service: ServiceSpec, launch: JudgedLaunch, memory: Mapping[str, Any], earlier: Sequence[str]
) -> PlannedService:
    """Return a planned service. earlier: names of the services that start before it."""
    settings, name, span = host.settings, service.name, service.cluster
    args = {**launch.args, **solved_args(memory)}
    if is_open("max-model-len", service.args.get("max-model-len")):
        args.setdefault("max-model-len", "auto")  # unsolved; vLLM knows this value
    ref, cache_dir = service.image["ref"], f"{settings['spark_cache_dir']}/{name}"
    image, built, ray_image = _images(service, service_files.image_of(ref, host.images.get(ref) or {}))
    # All starts at their longest; otherwise starts that time out would never reach the limit.
    interval = STARTS * (service.start_timeout + STOP_SECONDS + RESTART_SECONDS) + 60
    model, listen = service_files.model_of(settings, service), _listen(host, service)
    # Behind a socket the engine listens on loopback, at another port.
    engine_host, port = ("127.0.0.1", service.on_demand["engine_port"]) if service.on_demand else (listen, service.port)
    secrets = [
        Secret(variable, source, f"/etc/dgxspark/secrets/{name}/{variable}")
        for variable, source in service.secrets.items()
    ]
    # Of the engine itself, so that a probe starts no engine on demand; only the first rank answers.
    url = None if service.rank else f"http://{_probe_address(engine_host)}:{port}"
    keys = (secret.path for secret in secrets if secret.name == "VLLM_API_KEY")
    probe = Probe(name, url, service.served_model_name, next(keys, None))
    options = {**args, "host": engine_host, "port": port, "served-model-name": service.served_model_name}
    if model.revision and model.repo:
        options.setdefault("revision", model.revision)
    planned = PlannedService(
        **{field: getattr(service, field) for field in _AS_IN_THE_INVENTORY},
        unit=f"spark-{name}.service",
        container=f"spark-{name}",
        cluster=ClusterOf(span.name, span.size, span.head, span.hosts, span.executor) if span else None,
        order=len(earlier) + 1,
        after=[f"spark-{other}.service" for other in earlier],
        host=listen,
        url=probe.url and f"http://{_probe_address(listen)}:{service.port}",
        model=model,
        image=image,
        built_image=built,
        ray_image=ray_image,
        vllm_version=launch.vllm_version,
        version_source=launch.version_source,
        entrypoint=launch.entrypoint,
        args=args,
        env=_environment(service, launch.env, launch.vllm_version),
        env_file=f"/etc/dgxspark/env/{name}.env",
        secrets=secrets,
        limits=Limits(STARTS, RESTART_SECONDS, STOP_SECONDS, interval),
        cache_dir=cache_dir,
        folders=service_files.folders_of(settings, service, cache_dir),
        memory=dict(memory),
        fast_path=expected_path.of_service(service, args, launch),
        speed=speeds.of_service(service, args, launch, memory),
        command=render_command(launch.entrypoint, model.argument, options, bool(service.secrets), service.pip),
        probe=probe,
        settings=_unit_settings(settings, service, probe, image, model, memory.get("requested_bytes")),
        on_demand=on_demand.planned(service, engine_host),
        kv_tiers=kv_tiers.planned(kv_tiers.folder_of(settings, service), service, args, launch, memory),
    )
    return _with_containers(host, service, planned)


def _unit_settings(
    settings: Mapping[str, Any],
    service: ServiceSpec,
    probe: Probe,
    image: PlannedImage,
    model: PlannedModel,
    requested_bytes: float | None,
) -> UnitSettings:
    """Return the settings of the supervisor of a service. requested_bytes: the memory that its engine requests, None if unknown."""
    name, timeout = service.name, service.start_timeout
    return UnitSettings(
        name=name,
        url=probe.url,
        model=probe.model,
        api_key_file=probe.api_key_file,
        unit=f"spark-{name}.service",
        container=f"spark-{name}",
        # The probes end before the timeout of systemd, so that the journal has the reason.
        start_deadline_seconds=timeout - 30,
        memory_gib=round(requested_bytes / GIB, 2) if requested_bytes else 0.0,
        memory_wait_seconds=min(MEMORY_WAIT_SECONDS, timeout // 2),
        sysroot=settings["spark_sysroot"],
        # Requests choose the running service of a set on demand.
        exclusive=None if service.on_demand else service.exclusive or None,
        on_demand=True if service.on_demand else None,
        load_guard=settings["addons"]["load_guard"] if "addons" in settings else None,
        # Compile caches of another image are removed before the start.
        image=image.run,
        cache_dir=f"{settings['spark_cache_dir']}/{name}",
        kv_files=kv_tiers.files_of(settings, service, model),
    )


def _images(service: ServiceSpec, image: PlannedImage) -> tuple[PlannedImage, BuiltImage | None, RayImage | None]:
    """Return the image of a service, and the images to build for it: by its Dockerfile, and with Ray."""
    span, steps, base = service.cluster, service.image.get("dockerfile"), image.id or image.run
    built = BuiltImage(**built_image.planned(image.ref, image.run, steps)) if steps else None
    if built:
        base = built.tag
        image = replace(image, run=base)
    if not span or not service.needs_ray:
        return image, built, None
    ray_image = RayImage(image.run, span.ray_version, ray_cluster.derived_tag(base, span.ray_version))
    return replace(image, run=ray_image.tag), built, ray_image


def _environment(service: ServiceSpec, env: Mapping[str, str], version: str | None) -> dict[str, str]:
    """Return the environment of an engine. env: of its launch; takes precedence."""
    span = service.cluster
    # With the autotune cache of FlashInfer vLLM 0.31 hangs at the second start over several hosts (rule SPK828).
    parsed = versions.parse_version(version or "")
    first, bound = map(versions.version, versions.AUTOTUNE_CACHE_HANGS)
    hangs = parsed is None or first <= parsed < bound
    tuned = {versions.AUTOTUNE_CACHE: versions.AUTOTUNE_FOLDER} if span and hangs else {}
    return {
        "HF_HOME": CONTAINER_HF_HOME,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": f"{CONTAINER_CACHE}/vllm",
        "TRITON_CACHE_DIR": f"{CONTAINER_CACHE}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{CONTAINER_CACHE}/inductor",
        "FLASHINFER_WORKSPACE_BASE": CONTAINER_CACHE,
        **tuned,
        # HF_HOME is read-only, so its libraries write to the service's cache.
        "HF_ASSETS_CACHE": f"{CONTAINER_CACHE}/hf_assets",
        "HF_MODULES_CACHE": f"{CONTAINER_CACHE}/hf_modules",
        "HF_XET_CACHE": f"{CONTAINER_CACHE}/hf_xet",
        **(ray_cluster.environment(span.position) if span and span.executor == "ray" else {}),
        **env,
    }


def _with_containers(host: Host, service: ServiceSpec, planned: PlannedService) -> PlannedService:
    bare = parts_of(host.settings, service, planned)
    words = [word for part in bare for word in part.argv]
    mark = hashlib.sha256(json.dumps([words, planned.env], sort_keys=True).encode()).hexdigest()[:16]
    # After `docker run`; the next run compares it.
    label = ["--label", f"{FINGERPRINT_LABEL}={mark}"]
    parts = [replace(part, argv=[*part.argv[:2], *label, *part.argv[2:]]) for part in bare]
    # Another mark, if an earlier run wrote new files and was interrupted before the restart.
    containers = (host.measured or {}).get("containers") or []
    marks = {
        row.get("service"): row.get("fingerprint") for row in reversed(containers) if row.get("state") == "running"
    }
    return replace(
        planned,
        settings=replace(planned.settings, rank=_rank_settings(host, service, planned, parts)),
        fingerprint=mark,
        parts=parts,
        argv=parts[-1].argv,
        stale=marks.get(planned.name) not in (None, mark),
    )


def _rank_settings(
    host: Host, service: ServiceSpec, planned: PlannedService, parts: Sequence[Container]
) -> RankSettings | None:
    """Return the settings of the supervisor of a rank, None for a service of one host."""
    span, model = service.cluster, planned.model
    if span is None:
        return None
    return RankSettings(
        cluster=span.name,
        rank=service.rank,
        size=span.size,
        executor=span.executor,
        address=span.address,
        port=PORTS + span.position,
        peers=[
            {"rank": number, "host": host, "address": span.addresses[host]}
            for number, host in enumerate(span.hosts)
            if number != service.rank
        ],
        links=list(span.links) or None,
        fingerprint="",
        # Each host builds its image with Ray from the same base.
        image=planned.ray_image.base if planned.ray_image else planned.image.run,
        model={"repo": model.repo, "revision": model.revision, "hub": f"{host.settings['spark_hf_home']}/hub"},
        peer_timeout_seconds=span.peer_timeout,
        starts=planned.limits.starts,
        start_interval=planned.limits.start_interval,
        parts=parts,
    )


def _listen(host: Host, service: ServiceSpec) -> str:
    """Return the address of a service: C(spark_listen) or its own, the management address if it has a key and callers, or loopback."""
    settings = host.settings
    if service.rank:
        return "127.0.0.1"
    if settings["spark_listen"] or service.host:
        return str(settings["spark_listen"] or service.host)
    callers = service.callers or settings["spark_allow_from"]
    if "VLLM_API_KEY" not in service.secrets or not callers:
        return "127.0.0.1"
    if settings["spark_management_address"]:
        return str(settings["spark_management_address"])
    try:
        ipaddress.ip_address(plain_data.strict_address(host.address))
    except ValueError:
        measured = (host.measured or {}).get("management_address")
        return str(measured or host.address or "0.0.0.0")
    return host.address


def _probe_address(listen: str) -> str:
    """Return the address of the engine for its own host."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(listen, bracketed(listen))
