# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue of container images with vLLM, and the look-up by reference."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._common import reader
from .image_names import split_image
from .versions import parse_version, version

FAMILIES = ("serve", "passthrough")
"""Entrypoint families: C(serve) runs C(vllm serve) itself, C(passthrough) runs the command that it is given."""

# image: pattern of repository:tag as in a shell, or repository@digest. vllm_version, cuda: the versions of vLLM and of the CUDA toolkit.
# native_driver: driver branch that this CUDA needs when there is no forward compatibility. ray: whether it ships Ray.
# moving: the tag is pushed again and again. defects: errors of the shipped image; `when` limits an error to launches
# that offer tools (tools), load an NVFP4 Gemma 4 MoE (gemma4_nvfp4_moe) or cache prefixes of a model with state-space or linear
# attention (hybrid_prefixes), `package` names the cause.
# nccl: the library that torch loads, with library and version as in C(nccl_data). caches: compile caches that the image brings
# along, variable to folder.
# features: names that a development build has in addition to its version number. options: all options of its vllm
# serve, if it was asked. Missing keys are unknown.
_NGC = "NVIDIA's release notes and start-up logs of these images"
_HUB = "Docker Hub tags of vllm/vllm-openai as seen in use, in reports and logs"
_COMMUNITY = "recipes and documents that use the image"
_MOVING_TAGS = ("latest", "nightly", "main", "master", "dev", "edge", "stable", "head", "rolling")

IMAGES: tuple[dict[str, Any], ...] = (
    {"image": "nvcr.io/nvidia/vllm:25.09-py3", "vllm_version": "0.10.1.1", "cuda": "13.0"},
    {"image": "nvcr.io/nvidia/vllm:25.10-py3", "vllm_version": "0.10.2", "cuda": "13.0"},
    {"image": "nvcr.io/nvidia/vllm:25.11-py3", "vllm_version": "0.11.0", "ray": True},
    {"image": "nvcr.io/nvidia/vllm:25.12-py3", "vllm_version": "0.11.1"},
    {
        "image": "nvcr.io/nvidia/vllm:25.12.post1-py3",
        "vllm_version": "0.12.0",
        "cuda": "13.1",
        "native_driver": "590.44",
    },
    {
        "image": "nvcr.io/nvidia/vllm:26.01-py3",
        "vllm_version": "0.13.0",
        "cuda": "13.1",
        "note": "NVIDIA's release notes say vLLM 0.11.1; the images' own logs say 0.13.0.",
    },
    {"image": "nvcr.io/nvidia/vllm:26.02-py3", "vllm_version": "0.15.1", "ray": True},
    {"image": "nvcr.io/nvidia/vllm:26.03-py3", "vllm_version": "0.17.1", "cuda": "13.2"},
    {"image": "nvcr.io/nvidia/vllm:26.04-py3", "vllm_version": "0.19.0", "cuda": "13.2", "ray": False},
    {"image": "nvcr.io/nvidia/vllm:26.05-py3", "vllm_version": "0.20.1", "cuda": "13.2", "ray": False},
    {"image": "nvcr.io/nvidia/vllm:26.05.post1-py3", "vllm_version": "0.21.0", "ray": False},
    {
        "image": "nvcr.io/nvidia/vllm:26.06-py3",
        "vllm_version": "0.22.1",
        "ray": False,
        "defects": [
            {
                "text": "every request is answered with HTTP 500 ('_IncludedRouter' object has no attribute 'path'): the image "
                "ships prometheus-fastapi-instrumentator 8.0.0",
                "package": "prometheus-fastapi-instrumentator==8.0.0",
                "fix": "Use 26.05.post1-py3 or 26.08-py3, or an image of your own with prometheus-fastapi-instrumentator 8.0.2.",
            }
        ],
    },
    {
        "image": "nvcr.io/nvidia/vllm:26.07-py3",
        "vllm_version": "0.24.0",
        "cuda": "13.3",
        "ray": False,
        "defects": [
            {
                "text": "requests with tools are answered with HTTP 500 (cannot import normalize_tool_choice): the image ships "
                "xgrammar 0.2.0",
                "when": "tools",
                "package": "xgrammar==0.2.0",
                "fix": "Use 26.08-py3 or vllm/vllm-openai:v0.24.0-ubuntu2404 for a service that offers tools.",
            }
        ],
    },
    {
        "image": "nvcr.io/nvidia/vllm:26.08-py3",
        "vllm_version": "0.27.1",
        "cuda": "13.4",
        "native_driver": "615.65",
        "ray": False,
    },
    {
        "image": "nvcr.io/nvidia/vllm:26.09-py3",
        "vllm_version": "0.29.0",
        "cuda": "13.4",
        "native_driver": "615.65",
        "ray": False,
    },
    {
        "image": "nvcr.io/nvidia/vllm:26.10-py3",
        "vllm_version": "0.31.0",
        "cuda": "13.4",
        "native_driver": "615.65",
        "ray": False,
    },
    {"image": "nvcr.io/nvidia/vllm:*"},
    {
        "image": "vllm/vllm-openai:gemma",
        "cuda": "13.0",
        "arm64": True,
        "note": "A build with the diffusion model of the Gemma family, from before releases had it (0.24.0).",
    },
    {"image": "vllm/vllm-openai:gemma4", "vllm_version": "0.18.2rc1.dev73", "cuda": "12.9"},
    {
        "image": "vllm/vllm-openai:gemma4-cu130",
        "vllm_version": "0.19.1.dev6",
        "cuda": "13.0",
        "ray": False,
        "defects": [
            {
                "text": "its loader cannot map the per-expert scales of an NVFP4 Gemma 4 MoE",
                "when": "gemma4_nvfp4_moe",
                "fix": "Use vllm/vllm-openai:v0.24.0-ubuntu2404, or serve the BF16 checkpoint with --quantization fp8.",
            }
        ],
    },
    {
        "image": "vllm/vllm-openai:gemma4-0505-cu129",
        "vllm_version": "0.20.2rc1.dev49",
        "cuda": "12.9",
        "features": ["gemma4_mtp"],
    },
    {
        "image": "vllm/vllm-openai:gemma4-0505-*cu130",
        "vllm_version": "0.20.2rc1.dev49",
        "cuda": "13.0",
        "ray": False,
        "features": ["gemma4_mtp"],
    },
    {
        "image": "vllm/vllm-openai:qwen38-flash-next",
        "arm64": True,
        "ray": False,
        "note": "A preview of one model family; releases have it from 0.29.0 on.",
        "defects": [
            {
                "text": "prefixes that are found in the cache come back with a state of zeros: wrong answers",
                "when": "hybrid_prefixes",
                "fix": "Set enable-prefix-caching to false, or use vLLM 0.32.0 or newer (vllm-project/vllm#55601 reads like the fix).",
            }
        ],
    },
    {"image": "vllm/vllm-openai:v0.28.0rc2", "vllm_version": "0.28.0rc2", "arm64": False},
    {
        "image": "vllm/vllm-openai@sha256:61fc8a896b0a4fbbbdc063bc4b0dbc25ce98e02b5050c24aeb7830ac02039b14",
        "vllm_version": "0.28.0",
        "source": "v0.28.0 in September 2026: NVIDIA/local-ai-inference-recipes 12b25c6, sumner-harris/gb10-llm-docker-recipes",
    },
    {
        "image": "vllm/vllm-openai@sha256:7d5128a92db05e6d70661a18f10e40c17cd2d8fcaad9226e170a0d69f822b795",
        "vllm_version": "0.28.1rc1.dev337+g27a94d1ce",
        "source": "nightly in September 2026: NVIDIA/local-ai-inference-recipes 12b25c6",
    },
    {
        "image": "vllm/vllm-openai@sha256:f8fe15a8039343336945db10494eaad80ef941fe2b2a5fa6649fa38636051a65",
        "vllm_version": "0.28.0",
        "source": "v0.28.0-ubuntu2404 in September 2026: sumner-harris/gb10-llm-docker-recipes",
    },
    {"image": "vllm/vllm-openai:*"},
    # Builds for the Spark with forks of vLLM: tables by version number do not hold for them, so the image is asked.
    {
        "image": "eugr/spark-vllm:*",
        "entrypoint": "passthrough",
        "arm64": True,
        "source": _COMMUNITY,
        "note": "Nightly tags may be removed again.",
    },
    {
        "image": "eugr/spark-vllm-b12x:*",
        "entrypoint": "serve",
        "arm64": True,
        "features": ["b12x"],
        "options": ["gdn-decode-kernel"],
        "source": _COMMUNITY,
        "note": "A fork with its own kernels and VLLM_USE_B12X_* variables. Nightly tags may be removed again.",
    },
    {"image": "ghcr.io/spark-arena/dgx-vllm-eugr-nightly*:*", "arm64": True, "source": _COMMUNITY},
    {"image": "ghcr.io/aeon-7/*:*", "source": _COMMUNITY, "note": "Started by environment variables, not by options."},
    {"image": "scitrera/dgx-spark-vllm:0.17.0-t5", "vllm_version": "0.17.0", "arm64": True, "source": _COMMUNITY},
    {"image": "scitrera/dgx-spark-vllm:*", "arm64": True, "source": _COMMUNITY},
    {"image": "ghcr.io/z-lab/vllm-openai:*", "entrypoint": "serve", "source": _COMMUNITY},
)

_PUBLISHERS: dict[str, dict[str, Any]] = {
    "nvcr.io/nvidia/vllm": {"entrypoint": "passthrough", "arm64": True, "source": _NGC},
    "vllm/vllm-openai": {"entrypoint": "serve", "source": _HUB},
}
_ENTRY = reader.facts(
    {
        "image!": str,
        **dict.fromkeys(("vllm_version", "cuda", "native_driver"), str),
        **dict.fromkeys(("arm64", "ray", "moving"), bool),
        "entrypoint": str,
        "defects": [reader.facts({"text!": str, "when": str, "fix": str, "package": str})],
        **{key: [str] for key in ("features", "options")},
        "nccl": reader.facts({"library": str, "version": str}),
        "caches": {str: str},
        **dict.fromkeys(("source", "note"), str),
    }
)
EXTRA_KEYS = tuple(name.rstrip("?") for name in _ENTRY)
"""Keys of a catalogue entry; users' own entries take the same."""


def lookup(image: str, extra: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any] | None:
    """Return the catalogue entry of an image, or C(None) for an unknown repository.

    extra: entries of the same form that take precedence over the built-in ones; C(image) is a pattern.
    The result always has C(repository), C(tag), C(digest), C(vllm_version), C(cuda), C(native_driver), C(arm64),
    C(ray), C(moving), C(entrypoint), C(defects), C(features), C(source) and C(note); unknown values are C(None).
    An image with a digest gets the entry of that digest, else only the fields of its repository (the entrypoint).
    """
    repository, tag, digest = split_image(image)
    if tag is None and digest is None:
        tag = "latest"
    match = _find_entry(repository, tag, digest, (*extra, *IMAGES))
    if match is None:
        return None
    if repository == "vllm/vllm-openai" and tag and set(match) == {"image"}:
        match.update(_read_hub_tag(tag))
    entry: dict[str, Any] = {**dict.fromkeys(EXTRA_KEYS), **_PUBLISHERS.get(repository, {}), **match}
    moving = tag is not None and tag_moves(tag) if entry["moving"] is None else entry["moving"]
    entry.update(
        repository=repository,
        tag=tag,
        digest=digest,
        defects=list(entry["defects"] or []),
        features=list(entry["features"] or []),
        moving=bool(moving) and digest is None,
    )
    if entry["ray"] is None and entry["vllm_version"] and repository == "vllm/vllm-openai":
        entry["ray"] = version(entry["vllm_version"]) < version("0.18.0")  # Ray left the requirements with 0.18.0
    return entry


def _find_entry(
    repository: str, tag: str | None, digest: str | None, entries: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the known fields of the first entry that matches the digest, else the tag."""
    names = [*([f"{repository}@{digest}"] if digest else []), f"{repository}:{tag or ''}"]
    found = next((entry for name in names for entry in entries if _matches(str(entry.get("image", "")), name)), None)
    return None if found is None else {key: value for key, value in found.items() if value is not None}


def wrong_entries(entries: Any, where: str) -> list[str]:
    """Return the errors of a user's entries. where: their name in messages."""
    if entries is not None and not isinstance(entries, (list, tuple)):
        return [f"'{where}' must be a list of mappings"]
    wrong = reader.problems(reader.Maybe([_ENTRY]), entries, where)
    for index, entry in enumerate([] if wrong else entries or []):
        for key in entry:
            if key not in EXTRA_KEYS:
                wrong.append(f"{where}[{index}] has the unknown key '{key}'; known: {', '.join(EXTRA_KEYS)}")
        if entry.get("entrypoint") not in (None, *FAMILIES):
            wrong.append(f"{where}[{index}]: entrypoint must be one of {', '.join(FAMILIES)}")
        if entry.get("vllm_version") and parse_version(entry["vllm_version"]) is None:
            wrong.append(f"{where}[{index}]: vllm_version {entry['vllm_version']!r} is no version of vLLM")
    return wrong


def tag_moves(tag: str | None) -> bool:
    """Tell whether a tag is pushed again and again by its name; C(nightly-<commit>) is not. Without a tag, latest is meant."""
    return tag is None or tag in _MOVING_TAGS or tag.endswith(("-nightly", "-latest")) or tag.startswith("latest-")


def _matches(pattern: str, name: str) -> bool:
    repository, tag, digest = split_image(pattern)
    return fnmatch.fnmatchcase(name, f"{repository}@{digest}" if digest else f"{repository}:{tag or '*'}")


def _read_hub_tag(tag: str) -> dict[str, Any]:
    """Read a release tag of C(vllm/vllm-openai): C(v0.19.0-aarch64-cu130-ubuntu2404)."""
    match = re.fullmatch(r"v(\d+\.\d+\.\d+(?:\.\d+)?(?:rc\d+|\.post\d+)?)((?:-[a-z0-9_]+)*)", tag)
    parts = (match.group(2) if match else f"-{tag}").split("-")
    fields: dict[str, Any] = {}
    cuda = next((part for part in parts if re.fullmatch(r"cu1\d\d", part)), None)
    if cuda:
        fields["cuda"] = f"{cuda[2:4]}.{cuda[4:]}"
    if match:
        fields["vllm_version"] = match.group(1)
        if not cuda:  # the default build went from CUDA 12 to CUDA 13 with 0.20.0
            fields["cuda"] = "13.0" if version(match.group(1)) >= version("0.20.0") else "12"
        if "x86_64" in parts:
            fields["arm64"] = False
    return fields
