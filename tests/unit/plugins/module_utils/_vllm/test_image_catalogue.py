"""Images: the catalogue and the lookup by reference."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.image_catalogue import (
    EXTRA_KEYS,
    IMAGES,
    lookup,
    split_image,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.versions import parse_version


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("vllm/vllm-openai:v0.24.0", ("vllm/vllm-openai", "v0.24.0", None)),
        ("docker.io/vllm/vllm-openai", ("vllm/vllm-openai", None, None)),
        ("localhost:5000/a/b", ("localhost:5000/a/b", None, None)),
        ("nvcr.io/nvidia/vllm:26.04-py3@sha256:ab", ("nvcr.io/nvidia/vllm", "26.04-py3", "sha256:ab")),
        ("a/b@sha256:ab", ("a/b", None, "sha256:ab")),
    ],
)
def test_split_image(image: str, parts: tuple[str, str | None, str | None]) -> None:
    assert split_image(image) == parts


@pytest.mark.parametrize(
    ("image", "facts"),
    [
        (
            "nvcr.io/nvidia/vllm:26.04-py3",
            {
                "vllm_version": "0.19.0",
                "entrypoint": "passthrough",
                "ray": False,
                "cuda": "13.2",
                "arm64": True,
                "moving": False,
            },
        ),
        ("nvcr.io/nvidia/vllm:25.12.post1-py3", {"vllm_version": "0.12.0", "native_driver": "590.44", "ray": None}),
        ("nvcr.io/nvidia/vllm:27.01-py3", {"vllm_version": None, "entrypoint": "passthrough"}),
        (
            "vllm/vllm-openai:v0.24.0-ubuntu2404",
            {"vllm_version": "0.24.0", "entrypoint": "serve", "cuda": "13.0", "ray": False},
        ),
        ("vllm/vllm-openai:v0.19.0-aarch64-cu130-ubuntu2404", {"vllm_version": "0.19.0", "cuda": "13.0"}),
        ("vllm/vllm-openai:v0.17.0", {"vllm_version": "0.17.0", "cuda": "12", "ray": True}),
        ("vllm/vllm-openai:v0.20.0-cu129", {"vllm_version": "0.20.0", "cuda": "12.9"}),
        ("vllm/vllm-openai:v0.20.0-x86_64", {"arm64": False}),
        ("vllm/vllm-openai:gemma4-0505-arm64-cu130", {"vllm_version": "0.20.2rc1.dev49", "features": ["gemma4_mtp"]}),
        ("vllm/vllm-openai:glm51-cu130", {"vllm_version": None, "cuda": "13.0", "entrypoint": "serve"}),
        ("vllm/vllm-openai", {"moving": True, "tag": "latest"}),
        ("vllm/vllm-openai:nightly", {"moving": True}),
        ("vllm/vllm-openai:nightly-0123456789", {"moving": False, "vllm_version": None}),
        ("vllm/vllm-openai:latest@sha256:ab", {"moving": False, "digest": "sha256:ab"}),
        ("vllm/vllm-openai@sha256:ab", {"vllm_version": None, "entrypoint": "serve", "moving": False}),
        (
            "vllm/vllm-openai:nightly@sha256:7d5128a92db05e6d70661a18f10e40c17cd2d8fcaad9226e170a0d69f822b795",
            {"vllm_version": "0.28.1rc1.dev337+g27a94d1ce", "entrypoint": "serve", "moving": False, "tag": "nightly"},
        ),
        ("docker.io/vllm/vllm-openai:v0.31.0", {"vllm_version": "0.31.0"}),
        ("vllm/vllm-openai:latest-cu129", {"moving": True, "cuda": "12.9"}),
        ("eugr/spark-vllm", {"moving": True, "arm64": True, "entrypoint": "passthrough"}),
        ("eugr/spark-vllm:nightly-20261015", {"moving": False}),
        ("ghcr.io/spark-arena/dgx-vllm-eugr-nightly-tf5:latest", {"moving": True, "vllm_version": None}),
        ("ghcr.io/aeon-7/vllm-dflash:latest", {"moving": True}),
    ],
)
def test_lookup(image: str, facts: dict[str, Any]) -> None:
    entry = lookup(image)
    assert entry is not None
    assert {key: entry[key] for key in facts} == facts


def test_lookup_of_a_stranger() -> None:
    assert lookup("example.org/x:1") is None


def test_own_entries_go_first_and_keep_what_the_publisher_says() -> None:
    mine = {"image": "nvcr.io/nvidia/vllm:26.11-py3", "vllm_version": "0.32.0", "entrypoint": None}
    entry = lookup("nvcr.io/nvidia/vllm:26.11-py3", [mine])
    assert entry is not None
    assert (entry["vllm_version"], entry["entrypoint"]) == ("0.32.0", "passthrough")
    other_entry = lookup("example.org/x:anything", [{"image": "example.org/x", "entrypoint": "serve"}])
    assert other_entry is not None and other_entry["entrypoint"] == "serve"


def test_a_moving_tag_of_an_own_entry_is_still_one() -> None:
    entry = lookup("example.org/x:latest", [{"image": "example.org/x", "entrypoint": "serve"}])
    assert entry is not None and entry["moving"] is True
    fixed = lookup("example.org/x:latest", [{"image": "example.org/x", "moving": False}])
    assert fixed is not None and fixed["moving"] is False


def test_a_lookup_may_be_changed_without_changing_the_catalogue() -> None:
    first = lookup("vllm/vllm-openai:gemma4-0505-arm64-cu130")
    assert first is not None
    first["features"].append("x")
    second = lookup("vllm/vllm-openai:gemma4-0505-arm64-cu130")
    assert second is not None
    assert second["features"] == ["gemma4_mtp"]


def test_catalogue_is_well_formed() -> None:
    for entry in IMAGES:
        assert set(entry) <= set(EXTRA_KEYS)
        assert not entry.get("vllm_version") or parse_version(entry["vllm_version"])
        image_entry = lookup(entry["image"].replace("*", "x"))
        assert image_entry is not None and image_entry["source"]
        for defect in entry.get("defects", ()):
            assert set(defect) <= {"text", "fix", "when", "package"} and defect.get("when") in (
                None,
                "tools",
                "gemma4_nvfp4_moe",
                "hybrid_prefixes",
            )


@pytest.mark.parametrize(
    ("tag", "moves"),
    [("latest", True), ("latest-cu128", True), ("cu129-nightly", True), ("nightly-0a1b2c3", False), ("v0.24.0", False)],
)
def test_a_tag_that_moves_is_known_by_its_name(tag: str, moves: bool) -> None:
    for repository in ("vllm/vllm-openai", "example.org/vllm"):
        entry = lookup(f"{repository}:{tag}", [{"image": "example.org/vllm:*"}])
        assert entry is not None and entry["moving"] is moves
