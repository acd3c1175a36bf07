# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of docker.py and systemctl.py: a missing object is an answer, a failure of the program is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import docker, docker_commands, systemctl, units
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer, Unknown

GONE = "Error: No such container: a"
DOWN = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."
QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "inspect": lambda run: docker.inspect(run, "container", ["a"]),
    "container_state": lambda run: docker.container_state(run, "a"),
    "containers": lambda run: docker.containers(run, ["a"]),
    "inspect_all": lambda run: docker.inspect_all(run, "container"),
    "running_names": lambda run: docker.running_names(run, "x"),
    "image_names": docker.image_names,
    "image_sizes": lambda run: docker.image_sizes(run, ["sha256:1"]),
    "image_layers": lambda run: docker.image_layers(run, "sha256:1"),
    "present_layers": docker.present_layers,
    "has_image": lambda run: docker.has_image(run, "sha256:1"),
    "data_folder": docker.data_folder,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_engine_that_is_down_gives_no_answer(question: str) -> None:
    with pytest.raises(NoAnswer, match="Cannot connect"):
        QUESTIONS[question](lambda _argv, **_options: (1, "", DOWN))


@pytest.mark.parametrize(
    ("question", "answer"), [("inspect", []), ("container_state", None), ("containers", []), ("has_image", False)]
)
def test_a_missing_object_is_an_answer(question: str, answer: Any) -> None:
    assert QUESTIONS[question](lambda _argv, **_options: (1, "", GONE)) == answer


@pytest.mark.parametrize("question", ["container_state", "data_folder", "inspect_all"])
def test_another_text_gives_no_answer(question: str) -> None:
    with pytest.raises(NoAnswer):
        QUESTIONS[question](lambda _argv, **_options: (0, "<html>" if question != "data_folder" else "", ""))


def test_all_objects_are_inspected_by_one_call(fake_run: Any) -> None:
    ids = ["a" * 64, "b" * 64]
    fake_run.on("docker ps", "\n".join(ids)).on("docker container inspect", json.dumps([{"Id": ids[0]}]))
    assert docker.inspect_all(fake_run, "container") == [{"Id": ids[0]}]
    assert [argv[:3] for argv in fake_run.calls if "inspect" in argv] == [["docker", "container", "inspect"]]
    assert docker.inspect(fake_run, "image", []) == []


def test_images_are_matched_with_their_references() -> None:
    def run(argv: list[str], **_options: Any) -> tuple[int, str, str]:
        if argv[4:] == ["a:1", "b", "c:3"]:  # docker completes the tag of b in its message
            return 1, json.dumps([{"Id": "1"}, {"Id": "3"}]), "Error: No such image: b:latest"
        name = argv[4]
        return (1, "[]", "Error: No such image: b:latest") if name == "b" else (0, json.dumps([{"Id": name}]), "")

    assert docker.images(run, ["a:1", "b", "c:3"]) == {"a:1": {"Id": "a:1"}, "b": None, "c:3": {"Id": "c:3"}}
    with pytest.raises(Unknown, match="there is no docker on this host"):
        docker.images(lambda _argv: (127, "", "not found"), ["a:1"])
    with pytest.raises(Unknown, match="docker image inspect failed for a:1: Cannot connect"):
        docker.images(lambda _argv: (1, "", DOWN), ["a:1"])


def test_names_and_sizes_of_images(fake_run: Any) -> None:
    first, two = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
    fake_run.on("docker image ls", f"{first} a:1\n{first} a:2\n{two} <none>:<none>\n")
    fake_run.on("docker image inspect", f"{first} 5\n{two} x\n", 1, "No such image: c")
    assert docker.image_names(fake_run) == {first: "a:1", two: "<none>:<none>"}
    assert docker.image_sizes(fake_run, [first, two]) == {first: 5}


def test_a_change_says_why_it_failed() -> None:
    assert docker.act(lambda _argv: (0, "x", ""), "stop", "a") == ""
    assert docker.act(lambda _argv: (1, "", f"{DOWN}\n"), "stop", "a") == DOWN
    assert docker.act(lambda _argv: (3, "", ""), "stop", "a") == "exit code 3"
    assert docker.act(lambda _argv: (1, "", GONE), "stop", "a") == GONE
    assert docker.remove_container(lambda _argv: (1, "", GONE), "a") == ""


def test_a_log_that_docker_has_not_is_none() -> None:
    calls: list[list[str]] = []

    def run(argv: list[str], **options: Any) -> tuple[int, str, str]:
        calls.append([*argv, *options])
        return (0, "out", "err") if argv[-1] == "a" else (1, "", GONE)

    assert docker.log(run, "a", 5, tail=True) == ("out", "err") and docker.log(run, "b") is None
    assert calls == [["docker", "logs", "--tail=5", "a", "tail"], ["docker", "logs", "b"]]


@pytest.mark.parametrize(("rc", "why"), [(0, ""), (5, ""), (127, ""), (1, "Connection refused")])
def test_a_transient_unit_has_ended_when_it_is_missing(rc: int, why: str) -> None:
    calls = []

    def run(argv: list[str]) -> tuple[int, str, str]:
        calls.append(argv)
        return rc, "", "Connection refused" if rc else ""

    assert systemctl.end(run, "x.service") == why
    assert [argv[1] for argv in calls] == ["stop", "reset-failed"]


@pytest.mark.parametrize(("rc", "answer"), [(0, True), (3, False), (4, False), (1, None)])
def test_whether_a_unit_is_active(rc: int, answer: bool | None) -> None:
    assert systemctl.is_active(lambda _argv: (rc, "", ""), "x.service") is answer


def test_silence_does_not_say_whether_a_unit_is_active() -> None:
    def silent(_argv: list[str]) -> tuple[int, str, str]:
        raise NoAnswer("systemctl", "systemctl did not answer in 30 s")

    assert systemctl.is_active(silent, "x.service") is None


def test_no_units_need_no_systemctl() -> None:
    def never(argv: list[str]) -> tuple[int, str, str]:
        raise AssertionError(argv)

    assert systemctl.act(never, "stop", []) == ""


def test_the_last_words_of_a_unit_are_one_line() -> None:
    assert (
        units.last_words(lambda _argv: (0, "bind: \nAddress already in use\n", ""), "x")
        == "bind: Address already in use"
    )


A, B = (f"sha256:{sign * 64}" for sign in "ab")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '["sha256:abc"]', json.dumps([f"{A}\n"])])
def test_any_other_content_is_no_list_of_layers(text: str) -> None:
    with pytest.raises(NoAnswer):
        docker.image_layers(lambda _argv, **_options: (0, text, ""), "sha256:1")


def test_present_layers_are_those_of_all_images(fake_run: Any) -> None:
    ids = ["2" * 64, "1" * 64]
    fake_run.on("docker info", "[]").on("docker image ls", "\n".join([*ids, ids[0]]))
    fake_run.on("docker image inspect", f"{json.dumps([A, B])}\nnull\n")
    assert docker.present_layers(fake_run) == [[A, B], []]
    assert fake_run.calls[-1][-2:] == sorted(ids)


def test_the_containerd_store_is_not_asked_for_layers(fake_run: Any) -> None:
    fake_run.on("docker info", '[["driver-type","io.containerd.snapshotter.v1"]]')
    assert docker.present_layers(fake_run) == [] and len(fake_run.calls) == 1


def test_a_host_without_images_has_no_layers(fake_run: Any) -> None:
    fake_run.on("docker info", "[]").on("docker image ls", "\n")
    assert docker.present_layers(fake_run) == []


def test_names_of_images_are_no_options() -> None:
    for command in (docker_commands.save("--output=/etc/passwd"), docker_commands.layers("--format=x")):
        assert command[-2] == "--" and command[0] == "docker"
