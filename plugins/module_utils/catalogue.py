# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of vLLM versions and of container images, and the lookups that the rest of the engine uses."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from ansible_collections.dgxspark.vllm.plugins.module_utils import catalogue_data

FAMILIES = ("serve", "passthrough")
"""Entrypoint families: C(serve) runs C(vllm serve) itself, C(passthrough) runs the command that it is given."""


# --- versions -----------------------------------------------------------------------------------------------------


class Version(NamedTuple):
    """A vLLM version, ordered: a development build comes before the release that it is named after."""

    release: tuple[int, ...]
    final: bool

    def __str__(self) -> str:
        return ".".join(map(str, self.release)) + ("" if self.final else " (development build)")


def parse_version(text: str) -> Version | None:
    """Read C(0.19.0), C(v0.20.2rc1.dev49+g9b4e839) or C(0.19.0+ab12.nv26.04); C(None) if it is no version.

    What stands behind C(+) says who built it, not what it can do, and is ignored.
    """
    match = re.fullmatch(r"v?(\d+(?:\.\d+)+)((?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d*)?)(?:\+.*)?", text.strip())
    if not match:
        return None
    release = tuple(int(part) for part in match.group(1).split("."))
    return Version((*release, 0, 0)[: max(3, len(release))], not re.search(r"a|b|rc|dev", match.group(2)))


def version(text: str) -> Version:
    """Like C(parse_version) for a text that is known to be a version; raises C(ValueError) otherwise."""
    found = parse_version(text)
    if found is None:
        raise ValueError(f"{text!r} is not a version of vLLM")
    return found


def compare(left: str, right: str) -> int:
    """Return -1, 0 or 1 as C(left) is older than, the same as or newer than C(right)."""
    one, two = version(left), version(right)
    return (one > two) - (one < two)


def at_most(of: Version) -> Version:
    """Return the newest release whose features C(of) can have: itself, or the next minor for a development build."""
    return of if of.final else Version((of.release[0], of.release[1] + 1, 0), True)


@dataclass(frozen=True)
class Span:
    """Versions that have something. C(None) stands for no bound; between the two bounds of an end nothing is known.

    not_in / since: newest version known without it, oldest known with it.
    until / gone: newest version known with it, oldest known without it again.
    """

    not_in: Version | None = None
    since: Version | None = None
    until: Version | None = None
    gone: Version | None = None

    def has(self, wanted: Version) -> bool | None:
        """Tell whether C(wanted) has it; C(None) if that is not known.

        A development build may already have what the next minor release brings, so near such a bound it is not known.
        """
        near = at_most(wanted)
        if self.gone is not None and near >= self.gone:
            return False if wanted >= self.gone else None
        if self.until is not None and near > self.until:
            return None
        if self.since is None:
            return True if wanted >= version(catalogue_data.READ_FROM[0]) or self.gone else None
        if wanted >= self.since:
            return True
        if near >= self.since or (self.not_in is not None and near > self.not_in):
            return None
        return False

    def text(self) -> str:
        """Say the span in words, for a message."""
        parts = []
        if self.since:
            parts.append(
                f"since {self.since}" if not self.not_in else f"in {self.since} and newer, not in {self.not_in}"
            )
        if self.gone:
            parts.append(f"gone in {self.gone}" if self.until else f"removed in {self.gone}")
        return ", ".join(parts) or "in every version known"


def parse_span(text: str) -> Span:
    """Read a span as C(catalogue_data) writes it."""
    start, _colon, end = text.partition(":")
    not_in, less, since = start.rpartition("<")
    until, _more, gone = end.partition(">")

    def bound(value: str) -> Version | None:
        return version(value) if value else None

    return Span(bound(not_in) if less else None, bound(since), bound(until), bound(gone))


# --- names and options --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """One option of C(vllm serve). C(kind) is one of flag, switch, int, float, size, size-auto, json, text."""

    name: str
    aliases: tuple[str, ...]
    kind: str
    values: str
    span: Span
    choices: tuple[str, ...]

    @property
    def takes_value(self) -> bool:
        """Whether it is followed by a value at all."""
        return self.kind not in ("flag", "switch")


@cache
def options() -> dict[str, Option]:
    """Return every known option by its long name without dashes."""
    lines: list[str] = []
    for line in catalogue_data.OPTIONS.splitlines():
        if line.startswith(" "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    found = {}
    for line in lines:
        head, kind, span, choices = (*line.split("|"), "", "", "")[:4]
        name, *aliases = head.split()
        values = kind[-1] if kind[-1] in "+*?" else ""
        found[name] = Option(name, tuple(aliases), kind.rstrip("+*?"), values, parse_span(span), tuple(choices.split()))
    return found


@cache
def _names(table: str) -> tuple[Version, dict[str, Span]]:
    newest, text = catalogue_data.NAMES[table]
    found = {}
    for token in text.split():
        name, _at, span = token.partition("@")
        found[name] = parse_span(span)
    return version(newest), found


def names(table: str) -> dict[str, Span]:
    """Return the names of one table of C(catalogue_data.NAMES) with their spans."""
    return _names(table)[1]


def has(table: str, name: str, wanted: Version | None) -> bool | None:
    """Tell whether C(wanted) knows C(name); C(None) if that cannot be known (newer or older than what was read)."""
    newest, known = _names(table)
    if wanted is None:
        return None
    if name in known:
        return known[name].has(wanted)
    covered = wanted >= version(catalogue_data.READ_FROM[0]) and at_most(wanted) <= newest
    return False if covered else None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that C(word) was most likely meant to be."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


# --- images -------------------------------------------------------------------------------------------------------

# image: pattern of repository:tag as in a shell. vllm_version: what is inside. cuda: toolkit release inside.
# native_driver: driver branch that this CUDA needs when there is no forward compatibility. ray: whether it ships Ray.
# moving: the tag is pushed again and again. defects: what is wrong with it as shipped; `when` limits that to launches
# that offer tools (tools) or load an NVFP4 Gemma 4 MoE (gemma4_nvfp4_moe). features: names that a development build
# has although its version number does not say so. Anything left out is not known.
_NGC = "NVIDIA's release notes and start-up logs of these images"
_HUB = "Docker Hub tags of vllm/vllm-openai as seen in use, in reports and logs"

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
        "image": "vllm/vllm-openai:gemma4-0505-cu130",
        "vllm_version": "0.20.2rc1.dev49",
        "cuda": "13.0",
        "ray": False,
        "features": ["gemma4_mtp"],
    },
    {
        "image": "vllm/vllm-openai:gemma4-0505-arm64-cu130",
        "vllm_version": "0.20.2rc1.dev49",
        "cuda": "13.0",
        "ray": False,
        "features": ["gemma4_mtp"],
    },
    {"image": "vllm/vllm-openai:v0.28.0rc2", "vllm_version": "0.28.0rc2", "arm64": False},
    {"image": "vllm/vllm-openai:latest", "moving": True},
    {"image": "vllm/vllm-openai:latest-cu130", "moving": True, "cuda": "13.0"},
    {"image": "vllm/vllm-openai:cu130-nightly", "moving": True, "cuda": "13.0"},
    {"image": "vllm/vllm-openai:nightly-*"},
    {"image": "vllm/vllm-openai:nightly", "moving": True},
    {"image": "vllm/vllm-openai:*"},
    {"image": "scitrera/dgx-spark-vllm:0.17.0-t5", "vllm_version": "0.17.0"},
    {"image": "ghcr.io/z-lab/vllm-openai:*", "entrypoint": "serve"},
)

_PUBLISHERS: dict[str, dict[str, Any]] = {
    "nvcr.io/nvidia/vllm": {"entrypoint": "passthrough", "arm64": True, "source": _NGC},
    "vllm/vllm-openai": {"entrypoint": "serve", "source": _HUB},
}
EXTRA_KEYS = (
    "image",
    "vllm_version",
    "cuda",
    "native_driver",
    "arm64",
    "ray",
    "moving",
    "entrypoint",
    "defects",
    "features",
    "source",
    "note",
)
"""Keys of a catalogue entry; users' own entries take the same."""


def split_image(image: str) -> tuple[str, str | None, str | None]:
    """Split an image reference into repository, tag and digest; Docker Hub's own name is taken off."""
    rest, _at, digest = image.strip().partition("@")
    head, slash, leaf = rest.rpartition("/")
    leaf, _colon, tag = leaf.partition(":")
    repository = re.sub(r"^(?:index\.)?docker\.io/", "", f"{head}{slash}{leaf}")
    return repository, tag or None, digest or None


def lookup(image: str, extra: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any] | None:
    """Return what is known of an image, or C(None) for a repository nobody has described.

    extra: entries of the same form that go before the built-in ones; C(image) is a pattern.
    The result always has C(repository), C(tag), C(digest), C(vllm_version), C(cuda), C(native_driver), C(arm64),
    C(ray), C(moving), C(entrypoint), C(defects), C(features), C(source) and C(note); what is not known is C(None).
    An image named by digest alone keeps what its repository says (the entrypoint), nothing of a tag.
    """
    repository, tag, digest = split_image(image)
    if tag is None and digest is None:
        tag = "latest"
    name = f"{repository}:{tag or ''}"
    found = next(
        (candidate for candidate in (*extra, *IMAGES) if _matches(str(candidate.get("image", "")), name)), None
    )
    if found is None:
        return None
    match = {key: value for key, value in found.items() if value is not None}
    if repository == "vllm/vllm-openai" and tag and set(match) == {"image"}:
        match.update(_read_hub_tag(tag))
    entry: dict[str, Any] = {**dict.fromkeys(EXTRA_KEYS), **_PUBLISHERS.get(repository, {}), **match}
    entry.update(
        repository=repository,
        tag=tag,
        digest=digest,
        defects=list(entry["defects"] or []),
        features=list(entry["features"] or []),
        moving=bool(entry["moving"]) and digest is None,
    )
    if entry["ray"] is None and entry["vllm_version"] and repository == "vllm/vllm-openai":
        entry["ray"] = version(entry["vllm_version"]) < version("0.18.0")  # Ray left the requirements with 0.18.0
    return entry


def _matches(pattern: str, name: str) -> bool:
    repository, tag, _digest = split_image(pattern)
    return fnmatch.fnmatchcase(name, f"{repository}:{tag or '*'}")


def _read_hub_tag(tag: str) -> dict[str, Any]:
    """Read a release tag of C(vllm/vllm-openai): C(v0.19.0-aarch64-cu130-ubuntu2404)."""
    match = re.fullmatch(r"v(\d+\.\d+\.\d+(?:\.\d+)?(?:rc\d+|\.post\d+)?)((?:-[a-z0-9_]+)*)", tag)
    parts = (match.group(2) if match else f"-{tag}").split("-")
    found: dict[str, Any] = {}
    cuda = next((part for part in parts if re.fullmatch(r"cu1\d\d", part)), None)
    if cuda:
        found["cuda"] = f"{cuda[2:4]}.{cuda[4:]}"
    if match:
        found["vllm_version"] = match.group(1)
        if not cuda:  # the default build went from CUDA 12 to CUDA 13 with 0.20.0
            found["cuda"] = "13.0" if version(match.group(1)) >= version("0.20.0") else "12"
        if "x86_64" in parts:
            found["arm64"] = False
    return found
