"""Findings of a launch from the contents of its image."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import image_check

NGC = "nvcr.io/nvidia/vllm:26.04-py3"
FORK = "ghcr.io/example/spark-vllm:2026-10"


def probe(**values: Any) -> dict[str, Any]:
    return {"error": None, "ptxas": {}, "packages": {"vllm": "0.24.0"}, "options": [], "names": [], **values}


def rules(image: dict[str, Any], measured: dict[str, Any] | None = None, **other: Any) -> list[str]:
    findings = list(image_check.findings(FORK, image, measured or {}, other.get("stated"), other.get("env") or {}))
    assert all(finding.basis == "probed" and finding.message and finding.fix for finding in findings)
    return [finding.rule for finding in findings]


@pytest.mark.parametrize(
    ("text", "believed"),
    [
        ("0.19.0+35a9f223.nv26.04", True),
        ("0.20.2rc1.dev49+g9b4e83934", True),
        ("0.1.dev1+g0123456", False),
        ("dev", False),
        ("", False),
        (None, False),
    ],
)
def test_versions_that_can_be_believed(text: str | None, believed: bool) -> None:
    assert image_check.credible(text) == (text if believed else None)


def test_what_was_probed_goes_before_the_catalogue_and_the_rest_stays() -> None:
    entry = image_check.catalogue_entry(
        NGC, probe(ray="2.51.0", cuda="13.4", names=["VLLM_OF_A_FORK"], options=["a-fork"]), []
    )
    assert (entry["image"], entry["ray"], entry["cuda"]) == (NGC, True, "13.4")
    assert entry["features"] == ["OF_A_FORK"] and entry["options"] == ["a-fork"]
    assert entry["entrypoint"] == "passthrough" and entry["arm64"] is True


def test_own_entries_are_kept_below_what_was_probed() -> None:
    mine = {"image": "ghcr.io/example/*", "entrypoint": "serve", "features": ["x"], "ray": True}
    entry = image_check.catalogue_entry(FORK, probe(names=["y"]), [mine])
    assert (entry["entrypoint"], entry["features"], entry["ray"]) == ("serve", ["x", "y"], False)


def test_an_image_that_could_not_be_asked_says_nothing_about_ray() -> None:
    assert "ray" not in image_check.catalogue_entry(FORK, probe(packages={}, error="the image has no python3"), [])


def test_a_defect_goes_with_the_package_that_causes_it() -> None:
    def defects(version: str | None) -> int:
        packages = {"vllm": "0.22.1", **({"prometheus-fastapi-instrumentator": version} if version else {})}
        return len(
            image_check.catalogue_entry("nvcr.io/nvidia/vllm:26.06-py3", probe(packages=packages), []).get(
                "defects", []
            )
        )

    assert (defects("8.0.0"), defects(None), defects("8.0.2")) == (1, 1, 0)


def test_another_architecture() -> None:
    assert rules({"architecture": "amd64"}, {"architecture": "aarch64"}) == ["image.architecture"]
    assert rules({"architecture": "arm64"}, {"architecture": "aarch64"}) == []
    assert rules({"architecture": "amd64"}) == []


def test_a_stated_version_that_is_not_inside() -> None:
    image = {"probe": probe(vllm_version="0.24.0+cu130")}
    assert rules(image, stated="0.23.0") == ["image.version"]
    assert rules(image, stated="0.24.0") == []
    assert rules(image) == []
    assert rules({}, stated="0.23.0") == []


@pytest.mark.parametrize(
    ("ptxas", "env", "image_env", "fires"),
    [
        ({"triton": "12.8", "toolkit": "13.0"}, {}, {}, True),
        ({"triton": "12.8", "toolkit": "13.0"}, {"TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas"}, {}, False),
        ({"triton": "12.8", "toolkit": "13.0"}, {}, {"TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas"}, False),
        ({"triton": "12.9"}, {}, {}, False),
        ({"triton": "12.8", "triton-blackwell": "13.0"}, {}, {}, False),
        ({"toolkit": "12.8"}, {}, {}, False),
    ],
)
def test_a_ptxas_that_does_not_know_gb10(ptxas: dict[str, str], env: Any, image_env: Any, fires: bool) -> None:
    image = {"probe": probe(ptxas=ptxas), "env": image_env}
    assert rules(image, env=env) == (["image.ptxas_old"] if fires else [])


def test_the_fix_for_an_old_ptxas_is_one_that_the_image_has() -> None:
    findings = list(
        image_check.findings(FORK, {"probe": probe(ptxas={"triton": "12.8", "toolkit": "13.0"})}, {}, None, {})
    )
    assert findings[0].fix == "Set env TRITON_PTXAS_PATH: /usr/local/cuda/bin/ptxas."
    findings = list(image_check.findings(FORK, {"probe": probe(ptxas={"triton": "12.8"})}, {}, None, {}))
    assert "Use an image" in findings[0].fix


def test_a_ptxas_newer_than_the_driver() -> None:
    image = {"probe": probe(ptxas={"toolkit": "13.2"}), "entrypoint": ["vllm", "serve"]}
    assert rules(image, {"gpu": {"cuda_version": "13.0"}}) == ["image.ptxas_new"]
    assert rules(image, {"gpu": {"cuda_version": "13.2"}}) == []
    assert rules(image) == []
    ngc = {**image, "entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"]}
    assert rules(ngc, {"gpu": {"cuda_version": "13.0"}}) == []


def test_rules_that_judge_by_the_image() -> None:
    assert image_check.rests_on_image("SPK301") and image_check.rests_on_image("SPK101")
    assert not image_check.rests_on_image("SPK102") and not image_check.rests_on_image("memory.free_at_start")


def test_the_nccl_and_the_caches_of_an_image_are_judged_as_told() -> None:
    parts = {"nccl": {"library": "pip", "version": "2.28.9"}, "caches": {"TRITON_CACHE_DIR": "/opt/t"}}
    entry = image_check.catalogue_entry(FORK, probe(**parts), [])
    assert entry["nccl"] == parts["nccl"] and entry["caches"] == parts["caches"]
    assert not {"nccl", "caches"} & set(image_check.catalogue_entry(FORK, probe(nccl={}, caches={}), []))
