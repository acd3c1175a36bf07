# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Contents of a bundle, its manifest, and finding images and models in it."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import bundle

REF = "vllm/vllm-openai:v0.24.0-ubuntu2404"
ID, OTHER = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": {"size": 2, "sha256": "a" * 64, "blob": ""}}


def image(image_id: str = ID, **more: Any) -> dict[str, Any]:
    return {"present": True, "id": image_id, "repo_digests": [], "size_gib": 1.0, **more}


def model(repo: str, commit: str | None = COMMIT, **more: Any) -> dict[str, Any]:
    return {"repo": repo, "revision": "main", "commit": commit, "path": "/p", "files": FILES, "problems": [], **more}


def host(*repos: str, ref: str = REF) -> dict[str, Any]:
    service = {"name": "x", "image": {"ref": ref, "id": ID}, "ray_image": None}
    return {"services": [service], "models": [{"repo": repo, "revision": "main"} for repo in repos]}


def test_each_thing_is_handed_over_once_and_the_work_is_spread() -> None:
    plan = {"a": host("O/1", "O/2"), "b": host("O/1", "O/2")}
    models = [model("O/1"), model("O/2")]
    work, refusals = bundle.survey(
        plan, ["a", "b"], {"a": {REF: image()}, "b": {REF: image()}}, {"a": models, "b": models}
    )
    assert refusals == []
    items = [item for host_items in work.values() for item in host_items]
    assert sorted(item.get("ref") or item["repo"] for item in items) == ["O/1", "O/2", REF]
    # The image is by far the largest, so the other host has the models.
    assert [item["kind"] for item in work["a"]] == ["image"]
    assert [item["kind"] for item in work["b"]] == ["model", "model"]


@pytest.mark.parametrize(
    ("images", "models", "needle"),
    [
        ({"a": {}, "b": {}}, None, f"image {REF}: none of a, b has it"),
        (
            {"a": {REF: image()}, "b": {REF: image(OTHER)}},
            None,
            "different builds of it (a: 111111111111; b: 222222222222)",
        ),
        (None, {"a": [], "b": [model("O/1", None)]}, "model O/1@main: none of a, b has it; run"),
        (None, {"a": [model("O/1", problems=["x is missing"])], "b": []}, "has it whole (a: x is missing)"),
        (None, {"a": [model("O/1")], "b": [model("O/1", "f" * 40)]}, "a: 0123456789ab; b: ffffffffffff"),
    ],
)
def test_what_cannot_be_packed_is_said(images: Any, models: Any, needle: str) -> None:
    images = images or {"a": {REF: image()}, "b": {REF: image()}}
    models = models or {"a": [model("O/1")], "b": [model("O/1")]}
    _work, refusals = bundle.survey({"a": host("O/1"), "b": host("O/1")}, ["a", "b"], images, models)
    assert len(refusals) == 1
    assert needle in refusals[0]


def test_what_stands_around_the_engines_is_packed_too() -> None:
    plan = {"a": {**host("O/1"), "images_beside": ["litellm:1"]}, "b": host("O/1")}
    images = {"a": {REF: image(), "litellm:1": image(OTHER)}, "b": {REF: image()}}
    work, refusals = bundle.survey(plan, ["a", "b"], images, {"a": [model("O/1")], "b": [model("O/1")]})
    assert refusals == []
    assert sorted(item["ref"] for host_items in work.values() for item in host_items if item["kind"] == "image") == [
        "litellm:1",
        REF,
    ]
    images["a"].pop("litellm:1")
    _work, refusals = bundle.survey(plan, ["a"], images, {"a": [model("O/1")]})
    assert refusals == ["image litellm:1: none of a has it; run site.yml there first."]


def test_packages_are_in_no_bundle() -> None:
    assert bundle.findings("x", []) == []
    (finding,) = bundle.findings("x", ["a==1", "b==2"])
    assert (finding.rule, finding.severity, finding.service) == ("bundle.pip", "warning", "x")
    assert finding.message.startswith("a==1, b==2 of 'pip' are installed over the network")


def test_a_whole_copy_beside_a_broken_one_is_packed() -> None:
    models = {"a": [model("O/1", problems=["x is missing"])], "b": [model("O/1")]}
    images = {"a": {REF: image()}, "b": {REF: image()}}
    work, refusals = bundle.survey({"a": host("O/1"), "b": host("O/1")}, ["a", "b"], images, models)
    assert refusals == []
    assert [item["kind"] for item in work["b"]] == ["model"]


def test_names_in_the_bundle() -> None:
    assert bundle.image_folder(REF, ID) == "images/vllm--vllm-openai--v0.24.0-ubuntu2404-111111111111"
    pinned = bundle.image_item(f"{REF}@sha256:{'d' * 64}", image())
    assert pinned["ref"] == REF
    assert bundle.image_item(f"a.b:5000/c@sha256:{'d' * 64}", image())["ref"] == f"a.b:5000/c@sha256:{'d' * 64}"
    assert bundle.model_file("O/1", COMMIT, "a/b") == f"hub/models--O--1/snapshots/{COMMIT}/a/b"


def made() -> dict[str, Any]:
    piece = {"name": "0000", "size": 3, "sha256": "c" * 64}
    layers = [{"name": "e" * 64, "size": 9, "pieces": [piece]}]
    packed = {
        **bundle.image_item(REF, image()),
        "pieces": [piece],
        "compression": "gzip",
        "layers": layers,
        "diff_ids": [ID],
    }
    files = {"config.json": {"size": 2, "sha256": "a" * 64}}
    return bundle.make_manifest([packed], [{"repo": "O/1", "commit": COMMIT, "revisions": ["main"], "files": files}])


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["models"][0]["files"].update({"../../etc/x": {"size": 1, "sha256": "a" * 64}}),
        lambda data: data["models"][0]["files"]["config.json"].update(sha256="short"),
        lambda data: data["models"][0]["files"]["config.json"].update(blob="../x"),
        lambda data: data["models"][0].update(commit="main"),
        lambda data: data["images"][0].update(folder="/etc"),
        lambda data: data["images"][0]["pieces"][0].update(name="../0000"),
        lambda data: data["images"][0]["layers"][0].update(name="../" + "e" * 61),
        lambda data: data["images"][0]["layers"][0]["pieces"][0].update(name="../0000"),
        lambda data: data["images"][0].update(diff_ids=["sha256:short"]),
    ],
)
def test_a_manifest_that_leads_elsewhere_is_refused(change: Any) -> None:
    """Even if its own sum fits: a bundle comes from outside."""
    good, messages = bundle.read_manifest(made(), "m")
    assert (good["schema"], messages) == (2, [])
    data = copy.deepcopy(made())
    change(data)
    assert "its checksum differs" in bundle.read_manifest(data, "m")[1][0]
    data["sha256"] = bundle.own_sum(data)
    assert re.match(
        r"(a name in )?m\.(images|models)\[0\]\.\S+ is .*, not .*Copy the bundle again",
        bundle.read_manifest(data, "m")[1][0],
    )


def test_layers_come_before_what_names_the_image() -> None:
    piece = {"name": "0000", "size": 3, "sha256": "c" * 64}
    layers = [{"name": sign * 64, "size": 9, "pieces": [piece, {**piece, "name": "0001"}]} for sign in "ab"]
    image = {"folder": "images/x", "compression": "zstd", "pieces": [piece], "layers": layers}
    a, b = "a" * 64, "b" * 64
    assert [(part["name"], part["path"]) for part in bundle.parts(image, [a])] == [
        (f"{b}-0000", f"layers/{b}.zst/0000"),
        (f"{b}-0001", f"layers/{b}.zst/0001"),
        ("0000", "images/x/0000"),
    ]
    assert len(bundle.parts(image)) == 5


@pytest.mark.parametrize("data", [None, [], {}, {"schema": 3}])
def test_what_is_no_manifest(data: Any) -> None:
    assert "is no manifest" in bundle.read_manifest(data, "m")[1][0]


def test_images_are_found_by_name_or_by_the_locked_id() -> None:
    manifest = made()
    assert bundle.find_image(manifest, REF, None, "/b")[0]
    assert bundle.find_image(manifest, f"{REF}@sha256:{'d' * 64}", {"name": REF, "ids": [ID]}, "/b")[0]
    match, why = bundle.find_image(manifest, REF, {"name": REF, "ids": [OTHER]}, "/b")
    assert match is None
    assert "as 111111111111, the lock file says 222222222222" in why
    assert "has no image x:1; it has vllm" in bundle.find_image(manifest, "x:1", None, "/b")[1]


def test_models_are_found_by_commit_or_revision() -> None:
    manifest = made()
    assert bundle.find_model(manifest, "O/1", "main", "/b")[0] == bundle.find_model(manifest, "O/1", COMMIT, "/b")[0]
    assert "has no O/1@v2; it has O/1@0123456789ab" in bundle.find_model(manifest, "O/1", "v2", "/b")[1]


def test_room() -> None:
    assert bundle.no_room(1, 1, "x", "y") == ""
    text = bundle.no_room(3_000_000_000, 1_000_000_000, "the disk", "it")
    assert text == "the disk has 1.00 GB free, and it needs 3.00 GB: 2.00 GB are missing."
