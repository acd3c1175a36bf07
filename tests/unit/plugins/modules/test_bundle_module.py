# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module bundle on a host whose Docker does not answer; programs are played by a function."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.modules import bundle

ITEM = {
    "ref": "an/image:1",
    "id": "sha256:" + "a" * 64,
    "bytes": 10,
    "compression": "gzip",
    "folder": "images/x",
    "layers": [],
    "diff_ids": [],
    "pieces": [{"name": "000", "size": 3, "sha256": "0" * 64}],
}
DOWN = "Cannot connect to the Docker daemon"


class Failed(Exception):
    pass


class Module:
    check_mode = False

    def fail_json(self, msg: str) -> None:
        raise Failed(msg)

    def get_bin_path(self, name: str) -> str:
        return f"/usr/bin/{name}"


def test_where_images_lie_is_not_guessed(fake_run: Any, tmp_path: Path) -> None:
    fake_run.on("docker info", "", 1, DOWN)
    with pytest.raises(Failed, match=DOWN):
        bundle.stage(Module(), fake_run, ITEM, tmp_path / "pieces")
    assert not (tmp_path / "pieces").exists()


@pytest.mark.parametrize(
    ("errors", "why"),
    [(DOWN, DOWN), ("Error response from daemon: No such image: sha256:a", "another kind of store")],
)
def test_an_image_of_which_docker_does_not_say_is_not_of_another_store(
    fake_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, errors: str, why: str
) -> None:
    (tmp_path / "000").write_text("abc")
    monkeypatch.setattr(bundle.snapshots, "sha256_of", lambda path: "0" * 64)
    monkeypatch.setattr(bundle.image_archive, "load", lambda members, name: "Loaded image ID: sha256:1")
    monkeypatch.setattr(bundle.image_archive, "output_of", lambda *commands: contextlib.nullcontext())
    fake_run.on("docker image inspect", "", 1, errors)
    with pytest.raises(Failed, match=why):
        bundle.load(Module(), fake_run, ITEM, tmp_path)
    assert (tmp_path / "000").exists()


A, B = "a" * 64, "b" * 64
LAYERED = {
    **ITEM,
    "bytes": 10**6,
    "diff_ids": [f"sha256:{A}", f"sha256:{B}"],
    "layers": [
        {"name": name, "size": 500_000, "pieces": [{"name": "0000", "size": 3, "sha256": "0" * 64}]} for name in (A, B)
    ],
}


def engine(fake_run: Any, driver: str = "[]", layers: str = json.dumps([f"sha256:{A}"]), rc: int = 0) -> Any:
    fake_run.on("docker info --format {{json .DriverStatus}}", driver)
    fake_run.on("docker info", "/")
    fake_run.on("docker image ls", f"sha256:{A}")
    return fake_run.on("docker image inspect", layers, rc, DOWN if rc else "")


def test_layers_that_are_there_need_no_room_and_do_not_come(
    fake_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle.incoming, "free_bytes", lambda path: 500_010)
    assert bundle.stage(Module(), engine(fake_run), LAYERED, tmp_path / "x") == {"staged": {}, "known": [A]}
    with pytest.raises(Failed, match="Make room there"):
        bundle.stage(Module(), fake_run, {**LAYERED, "whole": True}, tmp_path / "x")


def test_layers_of_docker_before_25_are_known_by_the_digest_beside_their_name(fake_run: Any) -> None:
    named = [{**layer, "name": "e" * 64, "diff_id": layer["name"]} for layer in LAYERED["layers"]]
    assert bundle.known_layers(engine(fake_run), {**LAYERED, "layers": named}) == ["e" * 64]


@pytest.mark.parametrize(
    ("docker", "item"),
    [
        ({"driver": '[["driver-type","io.containerd.snapshotter.v1"]]'}, LAYERED),
        ({"layers": "no list"}, LAYERED),
        ({"rc": 1}, LAYERED),
        ({}, {**LAYERED, "whole": True}),
        ({}, {**LAYERED, "diff_ids": []}),
        ({}, ITEM),
    ],
)
def test_where_layers_are_not_known_all_of_the_image_comes(
    fake_run: Any, tmp_path: Path, docker: dict[str, Any], item: dict[str, Any]
) -> None:
    assert bundle.stage(Module(), engine(fake_run, **docker), item, tmp_path / "x")["known"] == []


def test_a_part_that_docker_refuses_is_no_failure_and_the_pieces_stay(
    fake_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded_files: list[list[str]] = []

    def refuses(join: list[str], unpack: list[str]) -> Any:
        loaded_files.append([Path(path).name for path in join[1:]])
        raise bundle.image_archive.UnexpectedContent("no such file")

    for name in (f"{A}-0000", f"{B}-0000", "000"):
        (tmp_path / name).write_text("abc")
    monkeypatch.setattr(bundle.snapshots, "sha256_of", lambda path: "0" * 64)
    monkeypatch.setattr(bundle.image_archive, "output_of", refuses)
    answer = bundle.load(Module(), fake_run, {**LAYERED, "left_out": [A]}, tmp_path)
    assert answer == {"bad": [], "refused": "no such file"}
    with pytest.raises(Failed, match="docker load of an/image:1 failed: no such file"):
        bundle.load(Module(), fake_run, LAYERED, tmp_path)
    assert loaded_files == [[f"{B}-0000", "000"], [f"{A}-0000", f"{B}-0000", "000"]]


def test_what_a_cut_off_run_packed_is_taken_unless_the_bundle_has_lost_a_layer(
    fake_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Module()
    module.params = {"piece_bytes": 10**6}  # type: ignore[attr-defined]
    saved: list[list[str]] = []

    def pack(image_id: str, folder: Path, compress: Any, known: list[str], *_more: Any) -> list[dict[str, Any]]:
        saved.append(known)
        (folder / "0000").write_text("rest")
        if not known:
            (folder / f"{A}-0000").write_text("layer")
        return [{"name": A, "size": 500_000}]

    monkeypatch.setattr(bundle.image_archive, "pack", pack)
    engine(fake_run)
    folder = tmp_path / "x"
    first = bundle.save(module, fake_run, {**ITEM, "known": {"zstd": [A], "gzip": []}}, folder)
    assert [len(layer["pieces"]) for layer in first["layers"]] == [0]
    assert bundle.save(module, fake_run, {**ITEM, "known": {"zstd": [A], "gzip": []}}, folder) == first
    second_result = bundle.save(module, fake_run, {**ITEM, "known": {"zstd": [], "gzip": []}}, folder)
    assert [[piece["name"] for piece in layer["pieces"]] for layer in second_result["layers"]] == [["0000"]]
    assert saved == [[A], []]
