# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers that a host has already, and how archives name them."""

from __future__ import annotations

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import image_layers

A, B, C, D = (f"sha256:{sign * 64}" for sign in "abcd")


@pytest.mark.parametrize(
    ("present_images", "left_out"),
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
def test_a_layer_is_there_with_all_that_lies_below_it(present_images: list[list[str]], left_out: list[str]) -> None:
    assert image_layers.shared([A, B, C], present_images) == left_out


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


def test_members_of_both_layouts_hold_layers() -> None:
    assert image_layers.members(["a" * 64]) == {f"blobs/sha256/{'a' * 64}", f"{'a' * 64}/layer.tar"}
