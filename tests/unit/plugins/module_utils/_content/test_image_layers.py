# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers that a host has already, and how archives name them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import image_layers

A, B, C, D = (f"sha256:{sign * 64}" for sign in "abcd")


@pytest.mark.parametrize(
    ("others", "left_out"),
    [
        ([], []),
        ([[A]], [A]),
        ([[B], [A, B]], [A, B]),
        ([[A, C, B]], [A]),  # B lies on something else there
        ([[B, C]], []),
        ([[A, B, C], [A]], [A, B, C]),
        ([[A, B, C, D]], [A, B, C]),
    ],
)
def test_a_layer_is_there_with_all_that_lies_below_it(others: list[list[str]], left_out: list[str]) -> None:
    assert image_layers.shared([A, B, C], others) == left_out


def test_a_layer_that_comes_again_higher_up_is_sent() -> None:
    assert image_layers.shared([A, B, A, C], [[A, B]]) == [B]
    assert image_layers.shared([A, B, A, C], [[A, B, A]]) == [A, B]


def test_names_in_archives_are_those_of_docker() -> None:
    """Of an image of four layers, built and saved by Docker 20.10.24; 26.1.5 names the same layers by their digests."""
    layers = [
        "sha256:101fc7cb15ba0025dee50277c826c26884b49495a3e03fbb5c136400e0860f37",
        "sha256:575457b57835745f776061f4bbc73462c54cad94215daa09435d3d690dfc3101",
        "sha256:101fc7cb15ba0025dee50277c826c26884b49495a3e03fbb5c136400e0860f37",
        "sha256:0ce41a311680e3555a3cbb8ec8babfbaaf3a5bc3b25629156b3b94ae27b24a27",
    ]
    assert image_layers.stored_as(layers, layers[:2]) == [
        "101fc7cb15ba0025dee50277c826c26884b49495a3e03fbb5c136400e0860f37",
        "575457b57835745f776061f4bbc73462c54cad94215daa09435d3d690dfc3101",
        "7d72f068bfe6d6e132c242540a2db04781415781eb8c02b2bfb3560eea337d5c",
        "7fd4abc09b6faba1bb229414d2a4c6433a3f79dd36cbe6a4dbd64afeb211b5e4",
        "8c7f675deeb800c39b624644c48b7d38b191717aec7cbfba6a5bcba462ec252b",
    ]
    assert image_layers.stored_as(layers, []) == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", '["sha256:abc"]', json.dumps([f"{A}\n"])])
def test_what_is_no_list_of_layers_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        image_layers.read(text)


class Engine:
    """Docker in the words that it prints, by command; one that is not here fails."""

    def __init__(self, **said: str) -> None:
        self.said = said
        self.asked: list[list[str]] = []

    def __call__(self, argv: Sequence[str]) -> str:
        self.asked.append(list(argv))
        word = argv[1] if argv[1] == "info" else argv[2]
        if word not in self.said:
            raise LookupError(argv[0])
        return self.said[word]


def test_layers_of_an_engine_are_those_of_all_its_images() -> None:
    engine = Engine(info="[]", ls="sha256:2\nsha256:1\nsha256:2\n", inspect=f"{json.dumps([A, B])}\nnull\n")
    assert image_layers.of_engine(engine) == [[A, B], []]
    assert engine.asked[-1][-2:] == ["sha256:1", "sha256:2"]
    assert image_layers.of_engine(Engine(info="[]", ls="\n")) == []


def test_the_containerd_store_is_not_asked() -> None:
    engine = Engine(info='[["driver-type","io.containerd.snapshotter.v1"]]')
    assert image_layers.of_engine(engine) == []
    assert len(engine.asked) == 1


@pytest.mark.parametrize("said", [{}, {"info": "[]"}, {"info": "[]", "ls": "sha256:1"}])
def test_an_engine_that_does_not_answer_has_not_said_none(said: dict[str, str]) -> None:
    with pytest.raises(LookupError):
        image_layers.of_engine(Engine(**said))


def test_an_image_may_have_no_layers() -> None:
    assert image_layers.read("null") == []
    assert image_layers.read(json.dumps([A, B])) == [A, B]
