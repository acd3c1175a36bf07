# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module bundle says of a host whose Docker does not answer; programs are played by a function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.modules import bundle

ITEM = {
    "ref": "an/image:1",
    "id": "sha256:" + "a" * 64,
    "bytes": 10,
    "compression": "gzip",
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
    ("said", "why"),
    [(DOWN, DOWN), ("Error response from daemon: No such image: sha256:a", "another kind of store")],
)
def test_an_image_of_which_docker_does_not_say_is_not_of_another_store(
    fake_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, why: str
) -> None:
    (tmp_path / "000").write_text("abc")
    monkeypatch.setattr(bundle.snapshots, "sha256_of", lambda path: "0" * 64)
    monkeypatch.setattr(bundle.image_stream, "load", lambda files, program, names: "Loaded image: an/image:1")
    fake_run.on("docker image inspect", "", 1, said)
    with pytest.raises(Failed, match=why):
        bundle.load(Module(), fake_run, ITEM, tmp_path)
    assert (tmp_path / "000").exists()
