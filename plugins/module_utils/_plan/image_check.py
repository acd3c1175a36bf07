# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image that was asked (C(image_probe)) means for a launch on a host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from .._common.findings import Finding
from .._compat.compat import RULES
from .._vllm import image_catalogue, versions

# ptxas knows sm_121 since CUDA 12.9; triton-lang/triton issues 8539 and 9181 show what an older one says of it.
PTXAS_SINCE = (12, 9)


# Built from a clone without tags, vLLM calls itself 0.1.dev1; nothing older than this runs on GB10.
OLDEST_CREDIBLE = "0.8.0"


def credible(text: Any) -> str | None:
    """Return a version that an image says of itself, or None where it cannot be believed."""
    found = versions.parse_version(str(text or ""))
    return str(text) if found is not None and found >= versions.version(OLDEST_CREDIBLE) else None


def catalogue_entry(ref: str, probe: Mapping[str, Any], known: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a catalogue entry for one image in which what was probed goes before what was known.

    :param ref: reference of the image
    :param probe: what the image itself said
    :param known: entries of C(spark_image_catalogue)
    :returns: the entry
    """
    found = image_catalogue.lookup(ref, [entry for entry in known if isinstance(entry, Mapping)]) or {}
    entry = {key: found[key] for key in image_catalogue.EXTRA_KEYS if found.get(key) is not None}
    entry["image"] = ref
    if probe.get("cuda"):
        entry["cuda"] = probe["cuda"]
    if probe.get("packages"):  # else nothing could be read, which says nothing about Ray either
        entry["ray"] = bool(probe.get("ray"))
    # The catalogue keeps environment variables without their VLLM_.
    names = [name[5:] if name.startswith("VLLM_") else name for name in probe.get("names") or []]
    entry["features"] = sorted({*(found.get("features") or []), *names})
    if probe.get("packages") and entry.get("defects"):
        entry["defects"] = [defect for defect in entry["defects"] if not _mended(defect, probe["packages"])]
    for name in ("nccl", "caches"):
        if probe.get(name):
            entry[name] = dict(probe[name])
    if probe.get("options"):
        entry["options"] = list(probe["options"])
    return entry


def _mended(defect: Mapping[str, Any], packages: Mapping[str, str]) -> bool:
    """Tell whether the package that causes a defect is there in another version: the image was pushed again, or built upon."""
    name, _equals, version = str(defect.get("package") or "").partition("==")
    return bool(name) and packages.get(name) not in (None, version)


def rests_on_image(rule: str) -> bool:
    """Tell whether a rule of C(compat) judges by the image: its version or what else it is."""
    return rule.startswith("SPK3") or rule == "SPK827" or rule in _version_rules()


@cache
def _version_rules() -> frozenset[str]:
    return frozenset(rule.id for rule in RULES if rule.needs_version)


def findings(
    ref: str, image: Mapping[str, Any], measured: Mapping[str, Any], stated_version: str | None, env: Mapping[str, str]
) -> list[Finding]:
    """Say what the image itself tells against a start on this host.

    :param ref: reference of the image
    :param image: its entry in C(images) of M(dgxspark.vllm.spark_info)
    :param measured: C(spark) of M(dgxspark.vllm.spark_info)
    :param stated_version: what the inventory or the recipe says about its vLLM
    :param env: of the service
    :returns: findings
    """
    probe = image.get("probe") or {}
    found = [_architecture(ref, image, measured), _stated(ref, probe, stated_version)]
    found += [_old_ptxas(ref, image, probe, env), _new_ptxas(ref, image, probe, measured)]
    return [finding for finding in found if finding is not None]


def _architecture(ref: str, image: Mapping[str, Any], measured: Mapping[str, Any]) -> Finding | None:
    has = image.get("architecture")
    wanted = {"aarch64": "arm64", "x86_64": "amd64"}.get(str(measured.get("architecture")))
    if not has or not wanted or has == wanted:
        return None
    return Finding(
        rule="image.architecture",
        severity="error",
        basis="probed",
        message=f"image {ref} is built for {has}, the host is {wanted}.",
        fix=f"Name an image that has a {wanted} build.",
    )


def _stated(ref: str, probe: Mapping[str, Any], stated: str | None) -> Finding | None:
    has = versions.parse_version(credible(probe.get("vllm_version")) or "")
    said = versions.parse_version(stated or "")
    if has is None or said is None or has == said:
        return None
    return Finding(
        rule="image.version",
        severity="warning",
        basis="probed",
        message=f"image.vllm_version says {stated} for {ref}, but vLLM {probe['vllm_version']} is in it; planned with that.",
        fix="Take image.vllm_version out, or correct the image.",
    )


def _release(text: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(text or ""))[:2])


def _old_ptxas(ref: str, image: Mapping[str, Any], probe: Mapping[str, Any], env: Mapping[str, str]) -> Finding | None:
    """Triton's own ptxas may be too old for sm_121, and is used unless a variable names another."""
    ptxas: Mapping[str, Any] = probe.get("ptxas") or {}
    own = "triton-blackwell" if "triton-blackwell" in ptxas else "triton"
    variable = "TRITON_PTXAS_BLACKWELL_PATH" if own == "triton-blackwell" else "TRITON_PTXAS_PATH"
    if own not in ptxas or _release(ptxas[own]) >= PTXAS_SINCE or variable in {**(image.get("env") or {}), **env}:
        return None
    better = _release(ptxas.get("toolkit")) >= PTXAS_SINCE
    return Finding(
        rule="image.ptxas_old",
        severity="warning",
        basis="probed",
        message=f"Triton in {ref} compiles with ptxas {ptxas[own]}, which does not know GB10: kernels that are compiled at "
        "run time fail.",
        fix=f"Set env {variable}: /usr/local/cuda/bin/ptxas."
        if better
        else "Use an image built with CUDA 12.9 or newer.",
        vllm_error="ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
        source="triton-lang/triton issues 8539 and 9181",
    )


def _new_ptxas(
    ref: str, image: Mapping[str, Any], probe: Mapping[str, Any], measured: Mapping[str, Any]
) -> Finding | None:
    """What a ptxas newer than the driver compiles does not load, unless NVIDIA's entrypoint adds forward compatibility."""
    driver = (measured.get("gpu") or {}).get("cuda_version")
    ptxas: Mapping[str, Any] = probe.get("ptxas") or {}
    newest = max(ptxas.values(), key=_release, default=None)
    if not driver or newest is None or _release(newest) <= _release(driver):
        return None
    if "nvidia_entrypoint.sh" in str((image.get("entrypoint") or [""])[0]):
        return None
    return Finding(
        rule="image.ptxas_new",
        severity="warning",
        basis="probed",
        message=f"{ref} compiles kernels at run time with ptxas {newest}, the host's driver is for CUDA {driver}; such "
        "kernels may fail with cudaErrorUnsupportedPtxVersion, sometimes only at the first token.",
        fix=f"Use an image with CUDA {driver}, or update driver and firmware together.",
        source="reports on images newer than the driver of DGX OS",
    )
