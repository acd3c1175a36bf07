# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docker_facts.py with answers of an unexpected shape: unreadable parts count as unknown, and raise nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import docker_facts
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer

CONTAINER: dict[str, Any] = {
    "Id": "1" * 64,
    "Name": "/spark-heavy",
    "Image": "sha256:2",
    "Config": {"Image": "vllm:1", "Labels": {"dgxspark.managed": "true", "dgxspark.service": "heavy"}},
    "State": {"Status": "running", "Pid": 7},
    "HostConfig": {"PortBindings": {"8000/tcp": [{"HostPort": "8001"}]}},
}
IMAGE: dict[str, Any] = {
    "Id": "sha256:2",
    "RepoDigests": ["vllm@sha256:3"],
    "Architecture": "arm64",
    "Os": "linux",
    "Size": 2**30,
    "Config": {"Env": ["VLLM_VERSION=0.24.0"], "Labels": {"org.opencontainers.image.version": "1"}, "Entrypoint": ["a"], "Cmd": ["b"]},
}  # fmt: skip
ODD = [None, True, 7, 1.5, "x", "٣", "9" * 5000, [], [None], [7], [[]], ["x"], {}, {"x": None}, {"x": [7]}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in items:
        yield (*path, key)
        yield from places(entry, (*path, key))


def changed(answer: Any, path: tuple[Any, ...], odd: Any) -> Any:
    made = at = copy.deepcopy(answer)
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = odd
    return made


@pytest.mark.parametrize("path", [*places(CONTAINER)], ids=str)
def test_a_container_of_another_shape(path: tuple[Any, ...]) -> None:
    for odd in ODD:
        good, other = docker_facts.parse_containers(json.dumps([CONTAINER, changed(CONTAINER, path, odd)]))
        assert {"running"} <= {good["state"], other["state"]} and 8001 in good["ports"] + other["ports"]


@pytest.mark.parametrize("path", [*places(IMAGE)], ids=str)
def test_an_image_of_another_shape(path: tuple[Any, ...]) -> None:
    for odd in ODD:
        image = docker_facts.describe_image(changed(IMAGE, path, odd))
        assert image["present"] is True
        json.dumps(image, allow_nan=False)


@pytest.mark.parametrize(
    "text", ["", "null", "{}", "[[]]", "[" * 100_000, "\x00", '{"ServerErrors": 7}', '{"ServerErrors": [null]}']
)
def test_what_is_no_list_of_containers(text: str) -> None:
    with pytest.raises(NoAnswer, match="docker printed"):
        docker_facts.parse_containers(text)


@pytest.mark.parametrize("text", ["", "{}", '{"ServerErrors": 7}', '{"ServerErrors": [null]}'])
def test_a_client_without_an_engine(text: str) -> None:
    assert docker_facts.parse_info(text)["reachable"] is False


@pytest.mark.parametrize("text", ["null", "[[]]", "[" * 100_000, "\x00", "hello"])
def test_what_says_nothing_of_an_engine(text: str) -> None:
    with pytest.raises(NoAnswer, match="docker printed"):
        docker_facts.parse_info(text)


def test_a_client_that_prints_no_list_for_what_is_missing() -> None:
    assert docker_facts.read_inspected("", "Error: No such container: x\n") == []
    with pytest.raises(NoAnswer, match="docker printed nothing"):
        docker_facts.read_inspected("", "context deadline exceeded")


def test_ids() -> None:
    assert docker_facts.read_ids("") == []
    assert docker_facts.read_ids("0123456789ab\nsha256:" + "f" * 64 + "\n") == ["0123456789ab", "sha256:" + "f" * 64]
    with pytest.raises(NoAnswer, match="docker printed 'usage: docker"):
        docker_facts.read_ids("usage: docker COMMAND\n")
