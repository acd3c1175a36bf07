# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command lines of the containers of a service: C(docker run), and the command after the name of the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._cluster import collective, ray_cluster, ray_names
from .._host import containers
from .._vllm import shared_memory
from .._vllm.launch import render
from . import kv_tiers
from .planned import Container, PlannedService
from .service import ServiceSpec
from .service_files import CONTAINER_CACHE, CONTAINER_HF_HOME, CONTAINER_SECRETS, REQUIREMENTS, mounts, profile_option
from .service_keys import HASHED

WITH_SECRETS = "/usr/local/libexec/dgxspark/with-secrets"
STOP_SECONDS = 60


def render_command(
    entrypoint: str, model: str, args: Mapping[str, Any], with_secrets: bool, pip: Sequence[str] = ()
) -> list[str]:
    """Return what follows the image name: as short as the image's entrypoint, C(serve) or C(passthrough), allows.

    Behind a shell that installs packages first, or behind the secrets' wrapper, the command is whole. NVIDIA's own
    entrypoint stays in either case: it is what makes a newer CUDA run on an older driver.
    """
    serve = ["vllm", "serve"] if with_secrets or pip or entrypoint == "passthrough" else []
    command = [*serve, model, *render(dict(args))]
    if pip:
        shell = ["/bin/sh"] if entrypoint == "passthrough" else []
        wrapper = [WITH_SECRETS] if with_secrets else []
        run = f"pip install --no-input --cache-dir {CONTAINER_CACHE}/pip"
        bare = [f"'{name}'" for name in pip if not HASHED.fullmatch(name)]
        steps = [f"{run} --require-hashes --requirement {REQUIREMENTS}"] if len(bare) < len(pip) else []
        steps += [" ".join([run, *bare])] if bare else []
        return [*shell, "-c", " && ".join([*steps, 'exec "$@"']), "vllm", *wrapper, *command]
    return [WITH_SECRETS, *command] if with_secrets and entrypoint == "passthrough" else command


def own_docker_args(settings: Mapping[str, Any], service: ServiceSpec, ipc: str = "private") -> list[str]:
    """Return what every container gets that rules look at."""
    shared = ipc.startswith("container:")  # its /dev/shm is that container's
    # Buffers of the engine may need more than the host's size.
    size = service.shm_size or shared_memory.shm_size(settings["spark_shm_size"], service.args, service.env)
    shm = [] if shared else ["--shm-size", size]
    rdma = [str(arg) for arg in settings["spark_fabric_args"]] if service.cluster else []
    return ["--network", "host", "--ipc", ipc, *shm, *rdma, *profile_option(service.files)]


def parts_of(settings: Mapping[str, Any], service: ServiceSpec, planned: PlannedService) -> list[Container]:
    """Return the containers of a service on this host, in the order of their start, each with its C(docker run)."""
    span, container = service.cluster, planned.container
    if span is None or span.executor != "ray":
        return [Container(container, docker_argv(settings, service, planned))]
    address, head, slot = span.address, span.addresses[span.head], span.position
    ray = ray_names.container_name(container)
    argv = [
        *_docker_run(settings, service, planned, ray, ray_cluster.IPC),
        *ray_cluster.mounts(service.name),
        *(["--entrypoint", "ray"] if planned.entrypoint == "serve" else []),
        planned.image.run,
        *([] if planned.entrypoint == "serve" else ["ray"]),
        *ray_cluster.start_argv(service.rank == 0, address, head, slot),
    ]
    if service.rank:
        return [Container(ray, argv)]
    more = ray_cluster.engine_args(service.name, container, head, slot)
    engine = docker_argv(settings, service, planned, f"container:{ray}", more)
    wait: dict[str, str | int] = {
        "address": f"{head}:{ray_cluster.gcs_port(slot)}",
        "nodes": span.size,
        "gpus": span.size,
    }
    return [Container(ray, argv), Container(container, engine, {"ray": wait})]


def _docker_run(
    settings: Mapping[str, Any], service: ServiceSpec, planned: PlannedService, container: str, ipc: str
) -> list[str]:
    """Return the part of C(docker run) that all containers of a service have in common."""
    own_port = int(service.on_demand["engine_port"]) if service.on_demand else service.port
    capabilities = containers.for_port(own_port)
    argv = containers.run_argv(container, planned.name, containers.ENGINE_PIDS, capabilities)
    argv += [*own_docker_args(settings, service, ipc), "--stop-timeout", str(STOP_SECONDS)]
    argv += ["--log-driver", "local", "--env-file", planned.env_file]
    theirs = containers.mounted(given_docker_args(settings, service))
    own = [f"{settings['spark_hf_home']}:{CONTAINER_HF_HOME}:ro", f"{planned.cache_dir}:{CONTAINER_CACHE}"]
    for mount in (*own, *filter(None, [kv_tiers.mount(settings, service)])):
        # A folder of one's own at the same place takes its place: Docker refuses two.
        if mount.split(":")[1] not in theirs:
            argv += ["--volume", mount]
    for ulimit in settings["spark_ulimits"]:
        argv += ["--ulimit", str(ulimit)]
    argv += [str(arg) for arg in settings["spark_gpu_args"]]
    argv += mounts(planned.files)
    return [*argv, *given_docker_args(settings, service)]


def collective_argv(
    settings: Mapping[str, Any],
    service: ServiceSpec,
    planned: PlannedService,
    rank: int,
    port: int,
    pairs: Sequence[tuple[int, int]],
) -> list[str]:
    """Return the C(docker run) of a rank's test of the network, as of the engine; C(-c) and the text of the program follow."""
    span = service.cluster
    if span is None:
        return []
    ulimits = [word for ulimit in settings["spark_ulimits"] for word in ("--ulimit", str(ulimit))]
    env = collective.environment(planned.env, rank, span.size, span.addresses[span.head], port, pairs)
    passes = planned.entrypoint == "passthrough"  # it makes a newer CUDA run on an older driver
    return [
        *containers.run_argv(collective.CONTAINER, "", containers.ENGINE_PIDS, containers.for_port(port)),
        "--log-driver",
        "none",
        *own_docker_args(settings, service),
        *(word for name, value in sorted(env.items()) for word in ("--env", f"{name}={value}")),
        *ulimits,
        *(str(arg) for arg in settings["spark_gpu_args"]),
        # An NCCL of the owner among them; files in the folder of the weights may not be there yet.
        *mounts([entry for entry in planned.files if entry.sha256]),
        *given_docker_args(settings, service),
        *([] if passes else ["--entrypoint", "python3"]),
        planned.image.run,
        *(["python3"] if passes else []),
    ]


def given_docker_args(settings: Mapping[str, Any], service: ServiceSpec) -> list[str]:
    """Return the options of docker run that a person gave."""
    return [str(arg) for arg in settings["spark_docker_args"]] + list(service.docker_args)


def docker_argv(
    settings: Mapping[str, Any],
    service: ServiceSpec,
    planned: PlannedService,
    ipc: str = "private",
    more: Sequence[str] = (),
) -> list[str]:
    """Return the whole C(docker run) of a planned engine, one argument per list item."""
    argv = [*_docker_run(settings, service, planned, planned.container, ipc), *more]
    if planned.secrets:
        argv += [
            "--mount",
            f"type=bind,src=/etc/dgxspark/secrets/{planned.name},dst={CONTAINER_SECRETS},readonly",
            "--mount",
            f"type=bind,src={WITH_SECRETS},dst={WITH_SECRETS},readonly",
        ]
    if planned.entrypoint == "serve" and (planned.pip or planned.secrets):
        argv += ["--entrypoint", "/bin/sh" if planned.pip else WITH_SECRETS]
    return [*argv, planned.image.run, *planned.command]
