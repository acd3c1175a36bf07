# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings and catalogue entries from the contents of an image (C(image_probe))."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from .._common.findings import Finding
from .._compat.compat import RULES
from .._vllm import image_catalogue, versions

# ptxas knows sm_121 since CUDA 12.9; triton-lang/triton issues 8539 and 9181 show the errors of older ones.
PTXAS_SINCE = (12, 9)


# Built from a clone without tags, vLLM reports 0.1.dev1; older versions than this do not run on GB10.
OLDEST_CREDIBLE = "0.8.0"


def credible(text: Any) -> str | None:
    """Return the version that an image reports, or None if it cannot be right."""
    version = versions.parse_version(str(text or ""))
    return str(text) if version is not None and version >= versions.version(OLDEST_CREDIBLE) else None


def catalogue_entry(ref: str, probe: Mapping[str, Any], extra: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the catalogue entry of an image, in which probed facts take precedence. extra: entries of C(spark_image_catalogue)."""
    by_name = image_catalogue.lookup(ref, [entry for entry in extra if isinstance(entry, Mapping)]) or {}
    entry = {key: by_name[key] for key in image_catalogue.EXTRA_KEYS if by_name.get(key) is not None}
    entry.update({key: probe[key] for key in ("cuda", "nccl", "caches", "options") if probe.get(key)})
    packages = probe.get("packages")
    if packages:  # otherwise the probe could not read them, and Ray is unknown
        entry["ray"] = bool(probe.get("ray"))
        if "defects" in entry:
            entry["defects"] = [defect for defect in entry["defects"] if not _mended(defect, packages)]
    # The catalogue keeps environment variables without their VLLM_.
    names = [name.removeprefix("VLLM_") for name in probe.get("names") or []]
    return {**entry, "image": ref, "features": sorted({*(by_name.get("features") or []), *names})}


def _mended(defect: Mapping[str, Any], packages: Mapping[str, str]) -> bool:
    """Tell whether the image has another version of the package that causes a defect, after a new push or build."""
    name, _equals, version = str(defect.get("package") or "").partition("==")
    return bool(name) and packages.get(name) not in (None, version)


@cache
def rests_on_image(rule: str) -> bool:
    """Tell whether a rule of C(compat) depends on the image or its version."""
    return rule.startswith("SPK3") or rule == "SPK827" or any(row.id == rule for row in RULES if row.needs_version)


def findings(
    ref: str, image: Mapping[str, Any], measured: Mapping[str, Any], stated_version: str | None, env: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield the findings about an image on this host.

    :param image: its entry in C(images) of M(dgxspark.vllm.spark_info)
    :param measured: C(spark) of M(dgxspark.vllm.spark_info)
    """
    probe = image.get("probe") or {}
    yield from _other_architecture(ref, image.get("architecture"), measured)
    yield from _other_version(ref, probe, stated_version)
    yield from _old_ptxas(ref, image, probe.get("ptxas") or {}, env)
    yield from _new_ptxas(ref, image, probe.get("ptxas") or {}, measured)


def _other_architecture(ref: str, architecture: str | None, measured: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding if an image is for another architecture than the host's."""
    of_host = {"aarch64": "arm64", "x86_64": "amd64"}.get(str(measured.get("architecture")))
    if architecture and of_host and architecture != of_host:
        message = f"image {ref} is built for {architecture}, the host is {of_host}."
        fix = f"Name an image that has a {of_host} build."
        yield Finding("image.architecture", "error", message, fix, basis="probed")


def _other_version(ref: str, probe: Mapping[str, Any], stated_version: str | None) -> Iterator[Finding]:
    """Yield a finding if an image has another version of vLLM than the stated one."""
    probed, stated = (
        versions.parse_version(text or "") for text in (credible(probe.get("vllm_version")), stated_version)
    )
    if probed and stated and probed != stated:
        message = f"image.vllm_version says {stated_version} for {ref}, but vLLM {probe['vllm_version']} is in the image, and the plan uses it."
        fix = "Remove image.vllm_version, or correct the image."
        yield Finding("image.version", "warning", message, fix, basis="probed")


def _old_ptxas(
    ref: str, image: Mapping[str, Any], ptxas: Mapping[str, Any], env: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield a finding if Triton would compile with a ptxas that is too old for sm_121."""
    # Triton uses its own ptxas unless a variable names another.
    package, variable = "triton", "TRITON_PTXAS_PATH"
    if "triton-blackwell" in ptxas:
        package, variable = "triton-blackwell", "TRITON_PTXAS_BLACKWELL_PATH"
    replaced = variable in {**(image.get("env") or {}), **env}
    if package in ptxas and _release(ptxas[package]) < PTXAS_SINCE and not replaced:
        better = _release(ptxas.get("toolkit")) >= PTXAS_SINCE
        yield Finding(
            "image.ptxas_old",
            "warning",
            f"Triton in {ref} compiles with ptxas {ptxas[package]}, which does not support GB10: kernels compiled at run time fail.",
            f"Set env {variable}: /usr/local/cuda/bin/ptxas."
            if better
            else "Use an image built with CUDA 12.9 or newer.",
            basis="probed",
            vllm_error="ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
            source="triton-lang/triton issues 8539 and 9181",
        )


def _new_ptxas(
    ref: str, image: Mapping[str, Any], ptxas: Mapping[str, Any], measured: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield a finding if an image compiles with a ptxas newer than the host's driver."""
    # Kernels of such a ptxas do not load, unless NVIDIA's entrypoint adds forward compatibility.
    driver, newest = (measured.get("gpu") or {}).get("cuda_version"), max(ptxas.values(), key=_release, default=None)
    is_compatible = "nvidia_entrypoint.sh" in str((image.get("entrypoint") or [""])[0])
    if driver and newest is not None and _release(newest) > _release(driver) and not is_compatible:
        message = (
            f"{ref} compiles kernels at run time with ptxas {newest}, the host's driver is for CUDA {driver}; such "
            "kernels may fail with cudaErrorUnsupportedPtxVersion, sometimes only at the first token."
        )
        fix = f"Use an image with CUDA {driver}, or update driver and firmware together."
        source = "reports on images newer than the driver of DGX OS"
        yield Finding("image.ptxas_new", "warning", message, fix, basis="probed", source=source)


def _release(text: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(text or ""))[:2])
