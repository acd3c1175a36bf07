"""The module on a folder that plays a host; Docker is played by a function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import made
from ansible_collections.dgxspark.vllm.plugins.modules import cleanup

OLD = {"Id": "sha256:" + "1" * 64, "RepoTags": ["vllm/vllm-openai:v0.23.0"], "RepoDigests": [], "Size": 2**30}


class Docker:
    """A Docker engine with containers and images."""

    def __init__(self) -> None:
        self.containers: list[dict[str, Any]] = []
        self.images: list[dict[str, Any]] = [OLD]
        self.down = False
        self.removed: list[str] = []
        self.inspected: tuple[int, str, str] | None = None

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        if self.down:
            return 1, "", "Cannot connect to the Docker daemon"
        if argv[:2] == ["docker", "ps"]:
            return 0, "\n".join(f"{number:064x}" for number in range(len(self.containers))), ""
        if argv[:3] == ["docker", "container", "inspect"] and self.inspected:
            return self.inspected
        if argv[:3] == ["docker", "container", "inspect"]:
            return 0, json.dumps(self.containers), ""
        if argv[:3] == ["docker", "image", "ls"]:
            return 0, "\n".join(image["Id"] for image in self.images), ""
        if argv[:3] == ["docker", "image", "inspect"]:
            return 0, json.dumps(self.images), ""
        assert argv[:3] == ["docker", "image", "rm"]
        self.removed.append(argv[-1])
        return 0, "", ""


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Docker:
    played = Docker()
    play(monkeypatch, played)
    for name in ("ETC", "STATE", "UNITS", "PROC"):
        monkeypatch.setattr(cleanup, name, tmp_path / name.lower())
    made.begin_fetch(tmp_path / "hf", "Org/Old")
    blobs = tmp_path / "hf/hub/models--Org--Old/blobs"
    blobs.mkdir(parents=True)
    (blobs / "a").write_text("x" * 100)
    made.end_fetch(tmp_path / "hf", "Org/Old")
    made.make_folder(tmp_path / "cache/gone", "cache")
    made.note_images([OLD["Id"]])
    return played


@pytest.fixture
def call(tmp_path: Path, capsys: Any) -> Any:
    def call(**args: Any) -> dict[str, Any]:
        with (
            patch_module_args({"hf_home": str(tmp_path / "hf"), "cache_dir": str(tmp_path / "cache"), **args}),
            pytest.raises(SystemExit),
        ):
            cleanup.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return call


def titles(result: dict[str, Any]) -> list[str]:
    return [entry["kind"] for entry in result["entries"]]


def test_a_look_removes_nothing(docker: Docker, call: Any, tmp_path: Path) -> None:
    result = call()
    assert result["changed"] is False and titles(result) == ["images", "caches", "models"]
    assert docker.removed == [] and (tmp_path / "cache/gone").exists()


def test_kinds_that_are_asked_for_go_and_others_stay(docker: Docker, call: Any, tmp_path: Path) -> None:
    result = call(remove="images,caches")
    assert result["changed"] is True and result["freed_bytes"] == 2**30
    assert docker.removed == ["vllm/vllm-openai:v0.23.0"]
    assert not (tmp_path / "cache/gone").exists() and (tmp_path / "hf/hub/models--Org--Old").exists()


def test_check_mode_says_what_would_go(docker: Docker, call: Any, tmp_path: Path) -> None:
    result = call(remove="images,caches", _ansible_check_mode=True)
    assert result["changed"] is True and docker.removed == [] and (tmp_path / "cache/gone").exists()
    assert "images: 1.00 GiB, would be removed" in result["lines"]


def test_weights_need_their_own_word(docker: Docker, call: Any, tmp_path: Path) -> None:
    assert call(remove="models")["failed"] is True
    assert (tmp_path / "hf/hub/models--Org--Old").exists()
    assert call(remove="models", weights=True)["changed"] is True
    assert not (tmp_path / "hf/hub/models--Org--Old").exists()


def test_without_docker_nothing_can_be_told_and_nothing_is_removed(docker: Docker, call: Any, tmp_path: Path) -> None:
    docker.down = True
    result = call(remove="caches")
    assert result["failed"] is True and "cannot be told" in result["msg"] and (tmp_path / "cache/gone").exists()


@pytest.mark.parametrize(
    "inspected",
    [
        (1, "[]", "Error response from daemon: a]x: context deadline exceeded"),
        (1, "", "Cannot connect to the Docker daemon"),
        (125, "[]", ""),
        (0, "", ""),
    ],
)
def test_containers_that_cannot_be_looked_at_are_not_taken_for_none(
    docker: Docker, call: Any, tmp_path: Path, inspected: tuple[int, str, str]
) -> None:
    docker.containers = [{"Name": "/mine"}]
    docker.inspected = inspected
    result = call(remove="images,caches,models", weights=True)
    assert result["failed"] is True and "so nothing is removed; containers: docker" in result["msg"]
    assert docker.removed == [] and (tmp_path / "cache/gone").exists()
    # "No such container" is a valid answer: the container ended after it was listed.
    docker.inspected = (1, "[]", "Error response from daemon: No such container: 0")
    assert call(remove="caches")["changed"] is True


def test_a_container_that_sees_the_weights_and_does_not_say_which_keeps_them_all(
    docker: Docker, call: Any, tmp_path: Path
) -> None:
    box = {
        "Name": "/mine",
        "State": {"Running": True},
        "Mounts": [{"Source": str(tmp_path / "hf")}],
        "Config": {"Cmd": ["serve", "x"]},
    }
    docker.containers = [box]
    assert "models" not in titles(call())
    box["Config"] = {"Cmd": ["vllm", "serve", "Org/New"]}
    (tmp_path / "hf/hub/models--Org--New/blobs").mkdir(parents=True)
    assert [entry["what"] for entry in call()["entries"] if entry["kind"] == "models"] == ["Org/Old"]


def test_nothing_of_the_weights_is_judged_while_a_download_is_under_way(docker: Docker, call: Any) -> None:
    docker.containers = [{"Name": "/f", "State": {"Running": True}, "Config": {"Labels": {"dgxspark.fetch": "true"}}}]
    result = call()
    assert "models" not in titles(result)
    assert any("weights were not judged: a download is under way" in line for line in result["lines"])


def test_nor_while_somebody_serves_what_cannot_be_told(docker: Docker, call: Any, tmp_path: Path) -> None:
    mounts = [{"Source": str(tmp_path / "hf")}]
    docker.containers = [{"Name": "/theirs", "State": {"Running": True}, "Config": {"Labels": {}}, "Mounts": mounts}]
    result = call()
    assert "models" not in titles(result)
    assert "the container theirs has" in result["unjudged"] and any(
        result["unjudged"] in line for line in result["lines"]
    )


def test_a_program_that_serves_a_model_without_a_container_keeps_it(docker: Docker, call: Any, tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cmdline").write_bytes(b"vllm\0serve\0Org/Old\0")
    assert "models" not in titles(call())


def test_hostile_what_the_owner_brought_is_listed_and_stays(docker: Docker, call: Any, tmp_path: Path) -> None:
    theirs = {**OLD, "Id": "sha256:" + "2" * 64, "RepoTags": ["vllm/vllm-openai:v0.22.0"]}
    docker.images = [OLD, theirs]
    (tmp_path / "cache/photos").mkdir()
    (tmp_path / "hf/hub/models--Org--Theirs/blobs").mkdir(parents=True)
    (tmp_path / "hf/hub/models--Org--Theirs/blobs/a").write_text("x")
    (tmp_path / "hf/hub/models--Org--Old/blobs/theirs").write_text("x")
    (tmp_path / "hf/local/mine").mkdir(parents=True)
    result = call(remove="images,caches,models,revisions,downloads", weights=True)
    assert docker.removed == ["vllm/vllm-openai:v0.23.0"]
    assert sorted(entry["what"].rpartition("/")[2] for entry in result["entries"] if not entry["ours"]) == [
        "Theirs",
        "mine",
        "photos",
        "vllm-openai:v0.22.0",
    ]
    assert any(line.startswith("not recorded as installed by this collection") for line in result["lines"])
    assert (tmp_path / "cache/photos").is_dir() and (tmp_path / "hf/local/mine").is_dir()
    remaining = sorted(path.name for path in (tmp_path / "hf/hub").rglob("*") if path.is_file())
    assert remaining == ["a", "theirs"], "the owner's model, and the owner's file beside ours"
    assert result["freed_bytes"] == 2**30 + 100
