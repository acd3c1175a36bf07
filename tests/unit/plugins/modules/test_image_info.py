from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args

from ansible_collections.dgxspark.vllm.plugins.module_utils import docker_facts
from ansible_collections.dgxspark.vllm.plugins.modules import image_info

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
def call(monkeypatch: pytest.MonkeyPatch, capsys: Any, fake_run: Any) -> Any:
    monkeypatch.setattr(AnsibleModule, "run_command", lambda self, argv, **options: fake_run(argv))

    def call(*refs: str) -> dict[str, Any]:
        with patch_module_args({"images": list(refs)}), pytest.raises(SystemExit):
            image_info.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

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
        ({}, {"org.opencontainers.image.version": "24.04"}, None),  # that of Ubuntu
        ({}, {"org.opencontainers.image.version": "0.33.0", "org.opencontainers.image.title": "vLLM"}, "0.33.0"),
    ],
)
def test_versions_that_an_image_tells(env: dict[str, str], labels: dict[str, str], version: str | None) -> None:
    assert docker_facts.vllm_version(env, labels)[0] == version
