from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from module_calls import call_module
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import image_probe_program
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import docker_facts, made
from ansible_collections.dgxspark.vllm.plugins.modules import spark_info

UPSTREAM = {
    "Id": "sha256:aa",
    "RepoDigests": ["vllm/vllm-openai@sha256:dd"],
    "Architecture": "arm64",
    "Os": "linux",
    "Size": 21474836480,
    "Config": {
        "Entrypoint": ["vllm", "serve"],
        "Cmd": None,
        "Env": [
            "PATH=/usr/bin",
            "VLLM_USAGE_SOURCE=production-docker-image",
            "VLLM_API_KEY=sk-1",
            "CUDA_VERSION=13.0.2",
        ],
        "Labels": {"dgxspark.vllm.version": "0.23.0", "maintainer": "x", "org.opencontainers.image.source": "s"},
    },
}
NGC = {
    "Id": "sha256:bb",
    "Config": {
        "Entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"],
        "Env": ["NVIDIA_VLLM_VERSION=26.04", "NVIDIA_PRODUCT_NAME=vLLM"],
    },
}


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: Any, fake_run: Any, tmp_path: Path) -> Any:
    play(monkeypatch, fake_run)

    def call(*refs: str, **options: Any) -> dict[str, Any]:
        arguments = {"gather": ["images"], "images": list(refs), "state_dir": str(tmp_path), "fail_on_unknown": True}
        return call_module(spark_info, {**arguments, **options}, capsys)

    return call


def test_one_call_for_present_and_missing_images(call: Any, fake_run: Any) -> None:
    fake_run.on("docker image inspect", json.dumps([UPSTREAM, NGC]), rc=1, err="Error: No such image: gone:1\n")
    images = call("up:1", "gone:1", "ngc:1")["images"]
    assert len(fake_run.calls) == 1
    assert {ref: image["present"] for ref, image in images.items()} == {"up:1": True, "gone:1": False, "ngc:1": True}
    up = images["up:1"]
    assert (up["id"], up["architecture"], up["size_gib"]) == ("sha256:aa", "arm64", 20.0)
    assert up["repo_digests"] == ["vllm/vllm-openai@sha256:dd"]
    assert (up["entrypoint_family"], up["vllm_version"]) == ("serve", "0.23.0")
    assert up["env"] == {"CUDA_VERSION": "13.0.2", "VLLM_USAGE_SOURCE": "production-docker-image"}  # no key, no PATH
    assert "maintainer" not in up["labels"]
    ngc = images["ngc:1"]
    assert (ngc["id"], ngc["entrypoint_family"], ngc["vllm_version"]) == ("sha256:bb", "passthrough", None)
    gone = images["gone:1"]
    assert gone["id"] is None and gone["entrypoint_family"] == "unknown" and gone["env"] == {}


def test_messages_of_newer_engines(call: Any, fake_run: Any) -> None:
    fake_run.on("docker image inspect", "[]", rc=1, err="Error response from daemon: No such image: gone:1\n")
    assert call("gone:1")["images"]["gone:1"]["present"] is False


def test_an_image_that_another_host_sent_is_known_by_its_tag(call: Any, fake_run: Any) -> None:
    ref = "an/image@sha256:" + "ab" * 32
    fake_run.on("docker image inspect -- an/image:sha256-", json.dumps([UPSTREAM]))
    fake_run.on("docker image inspect", "[]", rc=1, err=f"Error: No such image: {ref}\n")
    assert call(images=[ref])["images"][ref]["present"] is True


def test_answer_that_does_not_add_up_is_asked_for_one_by_one(call: Any, fake_run: Any) -> None:
    fake_run.on("docker image inspect -- a b", json.dumps([UPSTREAM]), rc=1, err="something else\n")
    fake_run.on("docker image inspect -- a", json.dumps([UPSTREAM]))
    fake_run.on("docker image inspect -- b", "[]", rc=1, err="Error: No such image: b\n")
    images = call("a", "b")["images"]
    assert images["a"]["present"] is True and images["b"]["present"] is False


def test_engine_that_does_not_answer_fails(call: Any, fake_run: Any) -> None:
    fake_run.on("docker image inspect", "[]", rc=1, err="Cannot connect to the Docker daemon\n")
    result = call("a")
    assert result["failed"] is True and "Cannot connect" in result["msg"]


def test_no_docker(call: Any) -> None:
    assert "no docker on this host" in call("a")["msg"]


def test_no_images_no_call(call: Any, fake_run: Any) -> None:
    assert call()["images"] == {} and fake_run.calls == []


def test_text_that_is_no_reference(call: Any) -> None:
    assert "not references of images: 'a b'" in call("a b")["msg"]


PROBE = "timeout --kill-after=5 120 docker run"
SAID = {
    "python": "3.12.3",
    "packages": {"vllm": "0.24.0+cu130", "torch": "2.11.0+cu130", "ray": "2.51.0"},
    "ptxas": {"toolkit": "13.0"},
    "options": [f"option-{number}" for number in range(150)],
    "names": ["VLLM_OF_A_FORK"],
}


@pytest.fixture
def image(fake_run: Any) -> Any:
    """One image under two references that answers."""
    fake_run.on("docker image inspect", json.dumps([UPSTREAM, UPSTREAM]))
    return fake_run.on(PROBE, f"{image_probe_program.MARK}{json.dumps(SAID)}\n")


def probes(fake_run: Any) -> int:
    return sum(argv[0] == "timeout" for argv in fake_run.calls)


def test_an_image_is_asked_once_per_id_and_kept(call: Any, image: Any, tmp_path: Path) -> None:
    first = call("a:1", "a:2", probe_images=True)["images"]
    assert probes(image) == 1
    for ref in ("a:1", "a:2"):
        assert first[ref]["probe_from"] == "image"
        assert (first[ref]["vllm_version"], first[ref]["vllm_version_source"]) == ("0.24.0+cu130", "package")
        probe = first[ref]["probe"]
        assert (probe["ray"], probe["cuda"], probe["python"], len(probe["options"])) == (
            "2.51.0",
            "13.0",
            "3.12.3",
            150,
        )
    cached = tmp_path / "images" / "aa.json"
    assert cached.stat().st_mode & 0o777 == 0o644 and list(cached.parent.iterdir()) == [cached]
    second = call("a:1", "a:2", probe_images=True)["images"]
    assert probes(image) == 1
    assert second["a:1"]["probe_from"] == "cache" and second["a:1"]["probe"] == first["a:1"]["probe"]
    assert call("a:1", "a:2")["images"]["a:2"]["vllm_version"] == "0.24.0+cu130"


def test_without_probe_no_container_is_started(call: Any, image: Any) -> None:
    described = call("a:1", "a:2")["images"]["a:1"]
    assert probes(image) == 0
    assert (described["probe"], described["probe_from"], described["vllm_version"]) == (None, "none", "0.23.0")


def test_check_mode_uses_what_was_kept_and_starts_nothing(call: Any, image: Any, tmp_path: Path) -> None:
    described = call("a:1", "a:2", probe_images=True, _ansible_check_mode=True)["images"]["a:1"]
    assert (described["probe"], described["probe_from"]) == (None, "none")
    assert probes(image) == 0 and not (tmp_path / "images").exists()
    call("a:1", "a:2", probe_images=True)
    described = call("a:1", "a:2", probe_images=True, _ansible_check_mode=True)["images"]["a:1"]
    assert described["probe_from"] == "cache" and probes(image) == 1


def test_an_answer_of_another_release_is_asked_for_again(call: Any, image: Any, tmp_path: Path) -> None:
    for content in ("{broken", '{"schema": 0, "answer": {}}', '{"schema": 1, "answer": 5}', "[]"):
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "images" / "aa.json").write_text(content)
        assert call("a:1", "a:2", probe_images=True)["images"]["a:1"]["probe_from"] == "image"
    assert probes(image) == 4


def test_an_image_that_hangs_is_ended_and_asked_again_next_time(call: Any, image: Any, tmp_path: Path) -> None:
    image.on(PROBE, rc=137)
    described = call("a:1", "a:2", probe_images=True)["images"]["a:1"]
    assert described["probe"]["error"] == "no answer within 120 seconds" and described["vllm_version"] == "0.23.0"
    started = next(argv for argv in image.calls if argv[0] == "timeout")
    assert image.calls[-1] == ["docker", "rm", "--force", started[started.index("--name") + 1]]
    assert not (tmp_path / "images").exists()


def test_a_cache_that_cannot_be_written_is_only_warned_about(
    call: Any, image: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: warnings.append(text))
    (tmp_path / "images").write_text("a file")
    assert call("a:1", "a:2", probe_images=True)["images"]["a:1"]["probe_from"] == "image"
    assert [text for text in warnings if "could not be kept" in text]


def test_a_timeout_of_nothing(call: Any) -> None:
    assert "probe_timeout is 0" in call("a", probe_timeout=0)["msg"]


@pytest.mark.parametrize(
    ("entrypoint", "family"),
    [
        (["vllm", "serve"], "serve"),
        (["/usr/bin/vllm", "serve"], "serve"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], "serve"),
        (["/opt/nvidia/nvidia_entrypoint.sh"], "passthrough"),
        (["/usr/bin/tini", "--"], "passthrough"),
        ([], "passthrough"),
        (["/bin/bash", "-c"], "unknown"),
        (["vllm"], "unknown"),
    ],
)
def test_entrypoint_families(entrypoint: list[str], family: str) -> None:
    assert docker_facts.entrypoint_family(entrypoint) == family


@pytest.mark.parametrize(
    ("env", "labels", "version"),
    [
        ({"VLLM_VERSION": "v0.19.0"}, {}, "0.19.0"),
        ({"VLLM_VERSION": "nightly"}, {}, None),
        ({"VLLM_VERSION": "0.24.0rc1+cu130"}, {}, "0.24.0rc1+cu130"),
        ({"NVIDIA_VLLM_VERSION": "26.04"}, {}, None),
        ({}, {"org.opencontainers.image.version": "24.04"}, None),  # the version of Ubuntu
        ({}, {"org.opencontainers.image.version": "0.33.0", "org.opencontainers.image.title": "vLLM"}, "0.33.0"),
    ],
)
def test_versions_that_an_image_tells(env: dict[str, str], labels: dict[str, str], version: str | None) -> None:
    assert docker_facts.vllm_version(env, labels)[0] == version


def test_what_a_run_has_brought_is_noted(call: Any, fake_run: Any) -> None:
    fake_run.on("docker image inspect", json.dumps([UPSTREAM, NGC]), rc=1, err="Error: No such image: gone:1\n")
    call("up:1", "gone:1", "ngc:1", brought_images=["up:1", "gone:1"], _ansible_check_mode=True)
    assert made.images() == set()
    call("up:1", "gone:1", "ngc:1", brought_images=["up:1", "gone:1"])
    assert made.images() == {"sha256:aa"}
