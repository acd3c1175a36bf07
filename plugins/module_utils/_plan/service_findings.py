# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings about planned services besides launch and memory: moving names, missing checksums, rights of containers, access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .._cluster import clustering, sockets
from .._common.findings import Finding
from .._content import bundle
from .._host import containers
from .._vllm.versions import parse_version
from . import kv_tiers, lock_findings, recipes, speeds
from .container_argv import given_docker_args
from .planned import PlannedService
from .service import Host, ServiceSpec, Sources
from .service_files import CONTAINER_HF_HOME, mounts
from .service_keys import HASHED
from .variables import RDMA_CAPABILITY


def check(host: Host, sources: Sources, planned: PlannedService, placed: ServiceSpec) -> list[Finding]:
    """Return the findings about one service of a host."""
    settings = host.settings
    findings = [
        *_image_findings(planned, placed),
        *_unpinned(planned),
        *_container_findings(settings, placed),
        *_impossible_rates(sources, planned, placed),
        *kv_tiers.findings(planned, planned.args),
    ]
    if settings["spark_bundle_dir"]:
        findings += bundle.findings(planned.name, planned.pip)
    if not sources.pin:
        return findings
    name, described = planned.name, planned.lock
    findings += lock_findings.other_image(planned.image.ref, host.images, name, settings["spark_bundle_dir"])
    snapshots = (host.measured or {}).get("snapshots") or {}
    refs = {repo: snapshot.get("refs") or {} for repo, snapshot in snapshots.items()}
    # An image that no registry knows has its own error if the host has another one.
    reported = {ref: image for ref, image in host.reported_images.items() if not host.images[ref].get("other_id")}
    findings += lock_findings.moved(sources.lock, described, reported, refs, name, sources.upstream)
    if not planned.rank:
        findings += lock_findings.findings(sources.lock, described, name, sources.sparks, settings)
    return findings


def _impossible_rates(sources: Sources, planned: PlannedService, placed: ServiceSpec) -> Iterator[Finding]:
    """Yield a finding for each published rate of the recipe that needs more than the memory bus carries."""
    recipe = sources.recipes.get(planned.recipe or "") or {}
    sparks = planned.cluster.size if planned.cluster else 1
    for entry in recipes.published_rates(recipe, planned.variant) if not planned.rank else ():
        reason = "" if entry.get("sparks", 1) != sparks else speeds.refused_rate(entry, placed, planned)
        if reason:
            message = f"recipe {planned.recipe}, expect: {reason} ({entry['what']}, {entry['source']})."
            fix = "Name the build, checkpoint or drafter of the figure in its other_launch, or remove the figure."
            yield Finding("speed.impossible", "warning", message, fix, planned.name)


def _image_findings(service: PlannedService, placed: ServiceSpec) -> Iterator[Finding]:
    """Yield findings about an image that is not the first of the recipe, is too old or built on the host, and about omitted parts of a recipe."""
    first, ref = placed.alternatives[0], service.image.ref
    if ref != first:
        message = f"served from {ref}, which the host has; the recipe's first choice is {first}."
        fix = f"Set image: {first} to pull and serve that one instead."
        yield Finding("image.alternative", "info", message, fix, service.name, basis="probed")
    version, least = parse_version(service.vllm_version or ""), parse_version(placed.least_vllm)
    if version and least and version < least and "image.too_old" not in placed.ignore:
        message = f"{ref} has vLLM {service.vllm_version}; recipe {placed.recipe} is for {placed.least_vllm} and newer."
        fix = "Remove image, or name an image with a newer vLLM; the recipe lists images that have served it."
        yield Finding("image.too_old", "warning", message, fix, service.name)
    if built := service.built_image:
        steps = " | ".join(line for line in built.dockerfile.splitlines()[1:-1] if line.strip())
        message = f"{built.tag} is built on the host of {ref}: {steps}"
        fix = "An image that you built and pushed yourself is the same on all hosts; name it by digest instead."
        yield Finding("image.built", "info", message, fix, service.name)
    if placed.left_out and not placed.rank:
        message = f"recipe {placed.recipe} has settings that are not supported here: {'; '.join(placed.left_out)}."
        fix = "If the engine needs them, put them into 'dockerfile' of the service's image, or build an image with them and name it."
        yield Finding("recipe.not_taken_over", "warning", message, fix, service.name)


def _unpinned(service: PlannedService) -> Iterator[Finding]:
    """Yield findings about models of a service at a branch, which moves, and about packages that are installed without checksums."""
    fix = (  # one for all models, so that reports group them
        "Set model.revision, for further models 'revision' below model.extra, to a commit; refs/main of each model below HF_HOME has the "
        "downloaded commit."
    )
    for model in service.model.parts:
        if model.repo and model.revision == "main":
            further = "" if model is service.model else f", which {service.name} is served with,"
            message = f"{model.repo}{further} is used at the branch 'main', which can change; a host keeps the commit that it has."
            yield Finding("model.moving_revision", "info", message, fix, service.name)

    if service.ray_image and service.ray_image.version != clustering.RAY_VERSION:
        message = (
            f"Ray {service.ray_image.version} is installed without a checksum: the collection has checksums of "
            f"{clustering.RAY_VERSION} alone."
        )
        fix = "Remove ray_version, or name an image with that Ray."
        yield Finding("ray.unhashed", "warning", message, fix, service.name)
    bare = [package for package in service.pip if not HASHED.fullmatch(package)]
    if bare:
        message = (
            f"{', '.join(bare)} of 'pip' {'is' if len(bare) == 1 else 'are'} not pinned, so the index decides at every start which "
            "version is installed: unverified code runs in the engine."
        )
        fix = (
            "Name each package with its version and checksums, NAME==VERSION --hash=sha256:..., as scripts/lock_packages.py NAME==VERSION "
            "of a clone or pip hash of the downloaded file prints them; or build an image with them."
        )
        yield Finding("pip.unhashed", "warning", message, fix, service.name)


def _container_findings(settings: Mapping[str, Any], service: ServiceSpec) -> list[Finding]:
    """Return findings about options of docker run in the inventory that give an engine's container more than it needs."""
    words = [*settings["spark_gpu_args"], *given_docker_args(settings, service)]
    expected = [*containers.for_port(service.on_demand["engine_port"] if service.on_demand else service.port)]
    if service.cluster:
        words += settings["spark_fabric_args"]
        expected.append(RDMA_CAPABILITY)
    findings = containers.findings(service.name, words, expected, [CONTAINER_HF_HOME])
    findings += containers.findings(service.name, mounts(service.files), (), [CONTAINER_HF_HOME], "files")
    if CONTAINER_HF_HOME not in containers.mounted(words):
        findings += _writes_weights(service)
    return [finding for finding in findings if finding.rule not in service.ignore]


def _writes_weights(service: ServiceSpec) -> Iterator[Finding]:
    """Yield findings about options of a service that would write below HF_HOME, which is read-only."""
    folder, offline = str(service.args.get("download-dir") or ""), str(service.env.get("HF_HUB_OFFLINE", "1"))
    state = "HF_HOME is read-only in the container"
    fix = f"weights are downloaded before the engine starts. Or mount your own folder at {CONTAINER_HF_HOME} in docker_args."
    if f"{folder}/".startswith(f"{CONTAINER_HF_HOME}/"):
        message = f"download-dir is {folder}, and {state}: vLLM creates a lock file in it before it looks for weights."
        yield Finding("container.read_only", "error", message, f"Leave download-dir out: {fix}", service.name)
    if offline.lower() in ("0", "false", "no", "off"):
        message = f"HF_HUB_OFFLINE is {offline}, and {state}: vLLM cannot store its downloads."
        yield Finding("container.read_only", "warning", message, f"Name it in model.extra: {fix}", service.name)


LISTENING = ("gateway", "speech", "ollama", "exporters", "monitoring")
"""Add-on services that C(spark_allow_from) may be meant for."""


def reached(service: PlannedService, settings: Mapping[str, Any], filtered: bool) -> Iterator[Finding]:
    """Yield findings about who reaches an engine, and about paths that it answers without its key.

    :param filtered: whether a firewall of this collection closes its port
    """
    if service.rank:
        return
    if not sockets.is_exposed(service.host):
        yield from _local(service, settings)
        return
    if service.api_key is None:
        message = f"the engine listens on {service.host} without an API key: everybody who reaches that address can use the model."
        fix = (
            "Set api_key_file, or remove 'host' and spark_listen to keep it on loopback. If this is intended: "
            "ignore: [service.open]."
        )
        yield Finding("service.open", "error", message, fix, service.name)
        return
    paths = sockets.open_paths(service.vllm_version, service.env, service.args)
    use = [path for path in paths or () if path not in sockets.HARMLESS]
    shown = f"vLLM {service.vllm_version} answers {', '.join(use)} without it"
    if paths is None:
        shown = "the open paths of this version are not known"
    severity, who = "warning", "every host that reaches that address"
    fix = "Remove spark_firewall: false, or let clients use a gateway on this host"
    if filtered:
        severity, who = "info", "the hosts that the firewall admits"
        fix = "Name few hosts in spark_allow_from, and let clients use the gateway"
    message = f"its key protects only some paths: {shown}, on {service.host}:{service.port} for {who}."
    fix += "; docs/security.md has the paths of every version."
    yield Finding("service.paths", severity, message, fix, service.name)


def _local(service: PlannedService, settings: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding about an engine on loopback that other hosts may need."""
    keyed, allowed = service.api_key is not None, settings["spark_allow_from"]
    if not keyed and allowed and not any(settings["addons"].get(addon) for addon in LISTENING):
        message = (
            f"spark_allow_from admits {', '.join(map(str, allowed))}, but the engine listens on {service.host} only, since it "
            "has no API key."
        )
        fix = (
            "Set api_key_file (in spark_defaults for all services: api_key_file: .secrets/api_key) and run dgxspark.vllm.keys; "
            "or remove spark_allow_from."
        )
        yield Finding("service.local", "warning", message, fix, service.name)
    elif keyed and not settings["spark_listen"]:
        message = (
            f"answers on {service.host} only, because no other host needs it: no gateway or monitor uses it, and "
            "spark_allow_from is empty."
        )
        fix = "Name the hosts that need it: spark_allow_from: [192.168.1.0/24], or a host of the inventory."
        yield Finding("service.local", "info", message, fix, service.name)
