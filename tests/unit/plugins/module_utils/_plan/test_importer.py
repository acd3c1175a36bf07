# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launches that people have, turned into services: importer, import_service, import_command, import_tables,
import_sources, import_units, import_compose and import_config.

The units and docker commands below fixtures/imports are copied from the documents "dual DGX Spark stack" and "Running
vLLM on the DGX Spark"; the recipes are written for these tests in the formats of their projects.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.action.import_recipe import document_of, env_files
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import importer, recipes

FOLDER = Path(__file__).parents[2] / "fixtures" / "imports"
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}


def load(name: str, **options: Any) -> dict[str, Any]:
    text = (FOLDER / name).read_text()
    return importer.import_launch(text, document_of(text), **{"files": env_files(text, FOLDER), **options})


def docker(text: str, **options: Any) -> dict[str, Any]:
    return importer.import_launch(f"docker run {text}", **options)


def omissions(launch: dict[str, Any]) -> dict[str, str]:
    return {entry["item"]: entry["reason"] for entry in launch["left_out"]}


def rules(launch: dict[str, Any]) -> set[str]:
    return {finding["rule"] for finding in launch["findings"]}


# --- the documents' own -------------------------------------------------------------------------------------------


def test_the_unit_of_qwen36() -> None:
    launch = load("vllm-qwen36.service")
    assert launch["form"] == "systemd"
    assert launch["service"] == {
        "name": "vllm-qwen36",
        "model": {
            "repo": "RedHatAI/Qwen3.6-35B-A3B-NVFP4",
            "extra": [{"repo": "Qwen/Qwen3.6-35B-A3B", "only": ["*.jinja", "*.json", "*.model", "*.txt"]}],
        },
        "image": "nvcr.io/nvidia/vllm:26.04-py3",
        "port": 8001,
        "served_model_name": "RedHatAI/Qwen3.6-35B-A3B-NVFP4",
        "args": {
            "enable-auto-tool-choice": True,
            "enable-prefix-caching": True,
            "gpu-memory-utilization": 0.55,
            "kv-cache-dtype": "fp8",
            "max-model-len": 131072,
            "max-num-batched-tokens": 8192,
            "quantization": "compressed-tensors",
            "reasoning-parser": "qwen3",
            "speculative-config": {"method": "mtp", "num_speculative_tokens": 2},
            "tokenizer": "Qwen/Qwen3.6-35B-A3B",
            "tool-call-parser": "qwen3_coder",
            "trust-remote-code": True,
        },
        "env": {"VLLM_FLASHINFER_MOE_BACKEND": "latency", "VLLM_USE_V1": "1"},
        "checks": {"tools": True, "reasoning": True},
    }
    assert launch["host_vars"] == {"spark_hf_home": "/home/milo/.cache/huggingface"}
    assert {"SPK201", "SPK202"} <= rules(launch)
    items = omissions(launch)
    for item in (
        "Restart=on-failure",
        "User=milo",
        "--gpus all",
        "--ipc host",
        "--ulimit memlock=-1",
        "--host 0.0.0.0",
    ):
        assert items[item]
    assert "page cache" in items["ExecStartPre=/bin/bash -c 'sync && echo 3 > /proc/sys/vm/drop_caches'"]
    assert "api_key_file" in items["open port"]


def test_the_unit_of_gemma4() -> None:
    service = load("vllm-gemma4.service")["service"]
    assert (service["name"], service["port"]) == ("vllm-gemma4", 8001)
    assert service["model"]["extra"] == [{"repo": "google/gemma-4-26B-A4B-it-assistant"}]
    assert service["args"]["speculative-config"]["num_speculative_tokens"] == 4


@pytest.mark.parametrize(
    ("name", "model", "served"),
    [
        ("qwen36-35b", "nvidia/Qwen3.6-35B-A3B-NVFP4", None),
        ("qwen36-27b", "unsloth/Qwen3.6-27B-NVFP4", None),
        ("qwen3-coder-next", "Qwen/Qwen3-Coder-Next-FP8", "qwen3-coder-next"),
        ("qwen35-122b", "RedHatAI/Qwen3.5-122B-A10B-NVFP4", "qwen3.5-122b"),
        ("gemma4-31b", "nvidia/Gemma-4-31B-IT-NVFP4", None),
        ("nemotron-nano", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "nemotron-3-nano"),
        ("nemotron-omni", "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-NVFP4", "nemotron-omni"),
        ("mtp", "nvidia/Qwen3.6-35B-A3B-NVFP4", None),
        ("laguna", "poolside/Laguna-XS.2", None),
    ],
)
def test_the_commands_of_the_guide(name: str, model: str, served: str | None) -> None:
    launch = load(f"{name}.txt", config=CONFIG)
    service = launch["service"]
    assert (service["name"], service["port"], service["model"]["repo"]) == (name, 8000, model)
    assert service["served_model_name"] == (served or model)  # what clients sent goes on working
    assert launch["missing"] == []  # spark_services accepts it
    assert "~/vllm:/models" in str(omissions(launch)) and "HF_HOME" not in service.get("env", {})


def test_a_script_in_front_of_the_engine() -> None:
    launch = load("nemotron-omni.txt")
    args = launch["service"]["args"]
    assert args["limit-mm-per-prompt"] == {"video": 1, "image": 1, "audio": 1}
    assert args["media-io-kwargs"] == {"video": {"fps": 2, "num_frames": 256}}
    assert args["allowed-local-media-path"] == "/" and args["tool-call-parser"] == "qwen3_coder"
    assert launch["service"]["pip"] == ["vllm[audio]"]
    assert launch["service"]["shm_size"] == "16g"


def test_files_of_the_old_container_move_with_the_weights() -> None:
    launch = load("nemotron-nano.txt")
    assert (
        launch["service"]["args"]["reasoning-parser-plugin"] == "/root/.cache/huggingface/nano_v3_reasoning_parser.py"
    )
    assert "new place" in omissions(launch)["--reasoning-parser-plugin"]


def test_a_model_in_a_folder() -> None:
    launch = load("gemma4-26b.txt")
    assert launch["service"]["model"] == {"path": "~/vllm/gemma4-26b-a4b-nvfp4"}
    assert launch["service"]["served_model_name"] == "gemma-4-26b"
    # A file of that folder, mounted over the image, is shipped with the checkpoint.
    assert launch["service"]["files"] == [
        {
            "source": "{model}/gemma4_patched.py",
            "path": "/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/gemma4.py",
        }
    ]


@pytest.mark.parametrize(
    ("command", "packages"),
    [
        ("pip install vllm[audio]", ["vllm[audio]"]),
        ("pip3 install -q --root-user-action=ignore ray==2.51.0 librosa", ["ray==2.51.0", "librosa"]),
        ("python3 -m pip install --upgrade librosa", ["librosa"]),
        ("uv pip install --system librosa", ["librosa"]),
        ("pip install -r requirements.txt", None),
        ("pip install git+https://example.org/x", None),
        ("apt-get install -y ffmpeg", None),
    ],
)
def test_packages_that_were_installed_before_the_engine(command: str, packages: list[str] | None) -> None:
    launch = docker(f"--entrypoint bash x/y:1 -c '{command} && vllm serve a/b'")
    assert launch["service"].get("pip") == packages
    assert (command in omissions(launch)) is (packages is None)


def test_a_template_is_not_taken_for_a_launch() -> None:
    with pytest.raises(importer.Unreadable, match="waits for HF_MODEL_HANDLE"):
        load("vllm.txt")
    filled = load("vllm.txt", variables={"HF_MODEL_HANDLE": "Qwen/Qwen3-8B"})["service"]
    assert filled["model"] == {"repo": "Qwen/Qwen3-8B"} and filled["args"]["max-num-seqs"] == 4


def test_an_image_that_is_started_by_variables_is_given_them_as_options() -> None:
    launch = load("vllm-dflash.txt")
    service = launch["service"]
    assert service["model"] == {
        "path": "~/vllm/DFlash-Qwen3.5-27B-Uncensored-NVFP4",
        "extra": [{"repo": "z-lab/Qwen3.5-27B-DFlash"}],
    }
    assert service["image"] == {"ref": "ghcr.io/aeon-7/vllm-dflash:latest", "entrypoint": "passthrough"}
    assert service["docker_args"] == ["--entrypoint", ""]
    assert service["args"]["speculative-config"]["num_speculative_tokens"] == 15
    assert (service["args"]["max-num-seqs"], service["args"]["attention-backend"]) == (16, "triton_attn")
    assert service["env"] == {"VLLM_USE_DEEP_GEMM": "0"}
    assert service["served_model_name"] == "dflash-qwen3.5-27b" and service["api_key_file"]
    assert "are not known" in omissions(launch)["the image's own start script"]


def test_without_a_drafter_such_an_image_serves_the_model_alone() -> None:
    launch = docker("-e MODEL_PATH=a/b -e DFLASH_DRAFTER= -e MAX_MODEL_LEN=4096 ghcr.io/aeon-7/vllm-dflash:1")
    assert launch["service"]["model"] == {"repo": "a/b"} and launch["service"]["args"] == {"max-model-len": 4096}
    assert "env" not in launch["service"]


def test_an_image_that_is_started_by_variables_that_nobody_knows_cannot_be_read() -> None:
    with pytest.raises(importer.Unreadable, match="its own variables"):
        docker("-e MODEL_PATH=a/b example.org/vllm:1")


# --- other forms --------------------------------------------------------------------------------------------------


def test_a_compose_service() -> None:
    launch = load("compose.txt")
    assert launch["form"] == "compose"
    assert launch["service"] == {
        "name": "coder-1",
        "model": {"repo": "Qwen/Qwen3-Coder-Next-FP8"},
        "image": "vllm/vllm-openai:v0.24.0-ubuntu2404",
        "port": 9000,
        "served_model_name": "coder",
        "api_key_file": ".secrets/coder-1_api_key",
        "secrets": {"WANDB_API_KEY": ".secrets/coder-1_wandb_api_key"},
        "args": {"chat-template": "/templates/coder.jinja", "enable-prefix-caching": True, "max-model-len": 131072},
        "env": {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_SLEEP_WHEN_IDLE": "1", "VLLM_USE_DEEP_GEMM": "0"},
        "pip": ["fastsafetensors"],
        "shm_size": "16g",
        "docker_args": ["--init", "--ulimit", "nofile=1048576:1048576", "--volume", "/data/templates:/templates:ro"],
    }
    assert launch["host_vars"] == {
        "spark_hf_home": "/data/hf",
        "spark_hf_token_file": ".secrets/hf_token",
    }
    items = omissions(launch)
    for item in ("service web", "healthcheck", "deploy", "--privileged", "--restart unless-stopped", "ENGINE_KEY"):
        assert items[item]
    assert "open port" not in items  # it has a key
    assert load("compose.txt", variables={"MAX_LEN": "4096"})["service"]["args"]["max-model-len"] == 4096


def test_several_compose_services_are_told_apart() -> None:
    document = {"services": {name: {"image": "vllm/vllm-openai:v0.24.0", "command": "--model a/b"} for name in "xy"}}
    text = yaml.safe_dump(document)
    with pytest.raises(importer.Unreadable, match=r"2 services that run vLLM in here \(x, y\)"):
        importer.import_launch(text, document)
    assert importer.import_launch(text, document, select="y")["service"]["name"] == "y"
    with pytest.raises(importer.Unreadable, match="there is no 'z'"):
        importer.import_launch(text, document, select="z")


def test_a_recipe_of_eugr() -> None:
    launch = load("eugr.txt", variables={"tensor_parallel": "1"})
    service = launch["service"]
    assert launch["form"] == "eugr"
    assert service["args"]["speculative-config"] == {
        "method": "mtp",
        "model": "google/gemma-4-26B-A4B-it-assistant",
        "num_speculative_tokens": 4,
    }
    assert service["args"]["tensor-parallel-size"] == 1 and service["image"] == "vllm-node"
    items = omissions(launch)
    assert (
        items["mods mods/gemma4-tool-parser"]
        and items["container vllm-node"]
        and items["build_args --with-fastsafetensors"]
    )
    assert "several Sparks" in omissions(load("eugr.txt")) and "several Sparks" not in items


def test_a_recipe_of_sparkrun() -> None:
    launch = load("sparkrun.txt")
    service = launch["service"]
    assert launch["form"] == "sparkrun"
    assert service["model"] == {
        "repo": "Qwen/Qwen3.6-27B-FP8",
        "revision": "0123456789abcdef0123456789abcdef01234567",
        "extra": [{"repo": "z-lab/Qwen3.6-27B-DFlash"}],
    }
    assert (service["name"], service["port"], service["served_model_name"]) == ("qwen3-6-27b-fp8", 8010, "qwen-27b")
    assert service["args"]["compilation-config"]["pass_config"] == {"fuse_norm_quant": True}
    assert service["args"]["speculative-config"]["num_speculative_tokens"] == 15
    assert "mods mods/fix-chat-template" in omissions(launch)


def test_a_recipe_of_sparkrun_without_a_command() -> None:
    launch = load("sparkrun-plain.txt")
    assert launch["service"]["args"] == {"tensor-parallel-size": 2, "trust-remote-code": True}
    assert launch["nodes"] == 2 and launch["spark_cluster"]["services"] == [launch["service"]]
    assert "spark_cluster of 2 hosts" in omissions(launch)["several Sparks"] and not rules(launch) & {
        "SPK801",
        "SPK805",
    }


def test_a_recipe_for_another_engine() -> None:
    document = {"model": "a/b", "runtime": "sglang", "container": "x"}
    with pytest.raises(importer.Unreadable, match="runtime sglang, not for vLLM"):
        importer.import_launch("", document)


def test_a_recipe_of_vllm() -> None:
    launch = load("vllm_recipe.txt", variant="nvfp4")
    service = launch["service"]
    assert launch["form"] == "vllm_recipe"
    assert (service["name"], service["image"]) == ("qwen3-6-35b-a3b", "vllm/vllm-openai:v0.28.0")
    assert service["model"] == {"repo": "nvidia/Qwen3.6-35B-A3B-NVFP4"}
    assert service["args"] == {
        "async-scheduling": True,
        "enable-auto-tool-choice": True,
        "kv-cache-dtype": "fp8",
        "max-num-seqs": 8,  # options for the DGX Spark come last
        "reasoning-parser": "qwen3",
        "tool-call-parser": "qwen3_xml",
        "trust-remote-code": True,
    }
    assert service["env"] == {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert "feature spec_decoding" in omissions(launch) and "dependency: audio needs more packages" in omissions(launch)


def test_features_and_variants_of_a_recipe_of_vllm() -> None:
    launch = load("vllm_recipe.txt", features=["spec_decoding"], variant="default")
    assert launch["service"]["args"]["speculative-config"]["moe_backend"] == "triton"
    assert "reasoning-parser" not in launch["service"]["args"]
    assert launch["service"]["image"] == "vllm/vllm-openai:v0.17.0" and "oldest" in omissions(launch)["image"]
    assert "variant fp8" in omissions(load("vllm_recipe.txt", variant="fp8"))
    with pytest.raises(importer.Unreadable, match="no variant 'int4'; it has default, nvfp4, fp8"):
        load("vllm_recipe.txt", variant="int4")
    with pytest.raises(importer.Unreadable, match="no feature 'x'"):
        load("vllm_recipe.txt", features=["x"])


def test_a_unit_without_a_container() -> None:
    launch = load("native.service")
    service = launch["service"]
    assert service["model"] == {"repo": "Qwen/Qwen3-8B"} and service["port"] == 8005
    assert service["args"] == {"max-model-len": 32000} and "image" not in service
    assert any("'image' is missing" in message for message in launch["missing"])
    assert load("native.service", image="vllm/vllm-openai:v0.24.0", config=CONFIG)["missing"] == []


def test_a_command_inside_tmux() -> None:
    launch = load("tmux.txt")
    service, items = launch["service"], omissions(launch)
    assert service["name"] == "fast" and service["model"] == {"repo": "Qwen/Qwen3-4B"}
    assert items["tmux"] and items["vllm serve"] == "stands there twice"
    assert service["args"] == {"enforce-eager": True, "no-such-thing": "3"}
    assert "takes no value" in items["--enforce-eager"]
    assert "SPK101" in rules(launch)  # an unknown option is reported


# --- secrets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_no_secret_of_any_text_is_returned(path: Path) -> None:
    try:
        launch = load(path.name, image="vllm/vllm-openai:v0.24.0")
    except importer.Unreadable as error:
        launch = {"error": str(error)}
    text = json.dumps(launch)
    for secret in (
        "hf_abcdefghijklmnop",
        "sk-abcdefghijklmnop",
        "correct-horse-battery",
        '0123456789abcdef"',
        "hf_xxx",
    ):
        assert secret not in text


@pytest.mark.parametrize(
    "words",
    [
        "-e MY_PASSWORD=swordfish9 x/y:1 --model a/b",
        "-e PLAIN=hf_abcdefghijklmnop x/y:1 --model a/b",
        "-e HTTPS_PROXY=http://me:swordfish9@proxy:1 x/y:1 --model a/b",
        "x/y:1 --model a/b --api-key swordfish9",
        "x/y:1 --model a/b --api-key swordfish9 swordfish8",
        "x/y:1 --model a/b --hf-token swordfish9",
        "--label note=sk-abcdefghijklmnop x/y:1 --model a/b",
        "x/y:1 --model a/b --ssl-keyfile-password swordfish9",
        """x/y:1 --model a/b --kv-transfer-config '{"kv_connector_extra_config":{"password":"swordfish9"}}'""",
        "-e HOOK=https://hooks.slack.com/services/T0/B0/swordfish9 x/y:1 --model a/b",
        "-e A_KEY=swordfish9 --entrypoint bash x/y:1 -c 'echo $A_KEY; login $A_KEY; vllm serve a/b'",
    ],
)
def test_secrets_are_named_and_never_returned(words: str) -> None:
    text = json.dumps(docker(words))
    assert "swordfish" not in text and "abcdefghijklmnop" not in text


@pytest.mark.parametrize(
    "text", ["docker run -e A_TOKEN='swordfish9 x", "[Service]\nhf_abcdefghijklmnop\n", 'docker run -e "A=swordfish9 x']
)
def test_no_secret_is_in_a_complaint(text: str) -> None:
    with pytest.raises(importer.Unreadable) as caught:
        importer.import_launch(text)
    assert "swordfish" not in str(caught.value) and "abcdefgh" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_a_variable_that_is_only_handed_on() -> None:
    launch = docker("-e MY_TOKEN -e PLAIN x/y:1 --model a/b")
    assert list(launch["service"]["secrets"]) == ["MY_TOKEN"]
    assert "caller's environment" in omissions(launch)["--env PLAIN"]
    assert docker("-e PLAIN x/y:1 --model a/b", variables={"PLAIN": "5"})["service"]["env"] == {"PLAIN": "5"}


# --- details of docker --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "port", "open_port"),
    [
        ("-p 8001:8000", 8001, True),
        ("-p 127.0.0.1:8001:8000", 8001, False),
        ("-p [::1]:8001:8000", 8001, False),
        ("-p 0.0.0.0:8001:8000/tcp", 8001, True),
        ("-p 8000", 8000, True),
        ("", 8000, False),
        ("-p 9000:9000", 8000, False),
        ("--network host", 8000, True),
        ("--net=host", 8000, True),
    ],
)
def test_the_port_that_clients_used(words: str, port: int, open_port: bool) -> None:
    launch = docker(f"{words} x/y:1 --model a/b")
    assert launch["service"]["port"] == port
    assert ("open port" in omissions(launch)) is open_port


def test_the_port_may_be_given() -> None:
    launch = docker("-p 8001:9999 x/y:1 --model a/b --port 9999", port=8123, name="mine")
    assert (launch["service"]["port"], launch["service"]["name"]) == (8123, "mine")


@pytest.mark.parametrize(
    ("image", "words", "expected"),
    [
        ("example/x:1", "vllm serve a/b", {"ref": "example/x:1", "entrypoint": "passthrough"}),
        ("example/x:1", "a/b", {"ref": "example/x:1", "entrypoint": "serve"}),
        ("example/x:1", "--model a/b", {"ref": "example/x:1", "entrypoint": "serve"}),
        ("vllm/vllm-openai:v0.24.0", "a/b", "vllm/vllm-openai:v0.24.0"),
        ("example/x:1", "python3 -m vllm.entrypoints.openai.api_server --model a/b", {"ref": "example/x:1", "entrypoint": "passthrough"}),
    ],
)  # fmt: skip
def test_what_an_unknown_entrypoint_does_is_learned_from_the_command(image: str, words: str, expected: Any) -> None:
    service = docker(f"{image} {words}")["service"]
    assert service["image"] == expected and service["model"] == {"repo": "a/b"}


def test_vllm_serve_where_the_image_runs_it_already() -> None:
    launch = docker("vllm/vllm-openai:v0.24.0 vllm serve a/b")
    assert "entrypoint of this image" in omissions(launch)["vllm serve"]
    assert launch["service"]["model"] == {"repo": "a/b"}
    assert "vllm serve" not in omissions(docker("nvcr.io/nvidia/vllm:26.04-py3 vllm serve a/b"))


@pytest.mark.parametrize(
    "words",
    [
        "x/y:1 bash -lc 'exec nohup vllm serve a/b --seed 1'",
        "--entrypoint '' x/y:1 /usr/local/bin/vllm serve a/b --seed 1",
        '--entrypoint=/bin/sh x/y:1 -c "cd /x && A=1 vllm serve a/b --seed 1 | tee log"',
        "--entrypoint vllm x/y:1 serve a/b --seed 1",
        "--entrypoint python3 x/y:1 -m vllm.entrypoints.openai.api_server --model a/b --seed 1",
        "x/y:1 env A=1 vllm serve a/b --seed=1",
    ],
)
def test_wrappers_of_the_engine(words: str) -> None:
    service = docker(words)["service"]
    assert service["model"] == {"repo": "a/b"} and service["args"] == {"seed": 1}


def test_options_of_docker_that_mean_the_same_are_kept() -> None:
    launch = docker(
        "--memory 100g --add-host a:1.2.3.4 --ulimit nofile=9 -v /data/x:/x:ro --mount type=bind,src=/a,dst=/b "
        "-v cache:/root/.cache/vllm -v ./here:/h -v /anonymous --shm-size=16GB --no-such 5 x/y:1 --model a/b"
    )
    assert launch["service"]["docker_args"] == [
        *("--memory", "100g", "--add-host", "a:1.2.3.4", "--ulimit", "nofile=9"),
        *("--volume", "/data/x:/x:ro", "--mount", "type=bind,src=/a,dst=/b"),
    ]
    assert launch["service"]["shm_size"] == "16g"
    items = omissions(launch)
    assert "spark_cache_dir" in items["--volume cache:/root/.cache/vllm"]
    assert "absolute path" in items["--volume ./here:/h"] and "anonymous" in items["--volume /anonymous"]
    assert "nothing here is known" in items["--no-such 5"]


def test_an_option_that_waits_for_a_value_is_left_out() -> None:
    launch = docker("x/y:1 --model a/b --max-model-len $LEN --seed 1")
    assert launch["service"]["args"] == {"seed": 1}
    assert "LEN" in omissions(launch)["--max-model-len"]


def test_an_env_file_that_cannot_be_read() -> None:
    assert "cannot be read" in omissions(docker("--env-file ./gone.env x/y:1 --model a/b"))["--env-file ./gone.env"]


def test_several_names_of_one_model() -> None:
    launch = docker("x/y:1 --model a/b --served-model-name one two")
    assert launch["service"]["served_model_name"] == "one" and "--served-model-name two" in omissions(launch)


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("echo hello", "found none of the docker run commands"),
        ("docker run --name a x vllm serve m/n\ndocker run --name b x vllm serve m/n", "2 docker run commands in here"),
        ("docker run x/y:1 sleep infinity", "the container runs sleep, not vllm serve"),
        ("docker run x/y:1 bash -c 'ray start --head'", "the container runs bash, not vllm serve"),
        ("docker run 'x", "never closed"),
        ("docker run -p 80:80 nginx:1.27", "the container runs nginx:1.27, which does not look like vLLM"),
        ("docker run ghcr.io/ggml-org/llama.cpp:server -m /q.gguf --port 80", "does not look like vLLM"),
        ("[Service]\nExecStart=/usr/bin/ollama serve\n", "the unit runs /usr/bin/ollama, not vllm serve"),
        ("[Service]\nType=simple\n", "no ExecStart"),
        ("[Service]\nnot a setting\n", "which no systemd unit has"),
    ],
)
def test_what_is_no_launch_is_said(text: str, needle: str) -> None:
    with pytest.raises(importer.Unreadable, match=needle.replace("(", r"\(")):
        importer.import_launch(text)


@pytest.mark.parametrize(
    ("document", "needle"),
    [
        (
            {"services": {"v": {"image": "vllm/x", "command": {"a": 1}}}},
            "'command' of the service v must be a text or a list",
        ),
        ({"services": {"v": {"image": "vllm/x", "ports": 8000}}}, "'ports' of the service v must be a list"),
        (
            {"services": {"v": {"image": "vllm/x", "environment": "A"}}},
            "'environment' of the service v must be a list or a",
        ),
        ({"services": {"v": {"image": ["vllm/x"]}}}, "'image' of the service v must be a text"),
        ({"container": "x", "command": "vllm serve a/b", "env": 3}, "is not written as the form eugr is"),
        ({"model": {"model_id": "a/b"}, "variants": ["x"]}, "is not written as the form vllm_recipe is|has no variant"),
    ],
)
def test_shapes_that_no_form_has(document: dict[str, Any], needle: str) -> None:
    with pytest.raises(importer.Unreadable, match=needle):
        importer.import_launch("", document)


@pytest.mark.parametrize("document", [{"a": 1}, {"model": {"x": 1}}])
def test_yaml_that_is_nothing_known(document: dict[str, Any]) -> None:
    with pytest.raises(importer.Unreadable, match="neither a compose file, a manifest of Kubernetes nor a recipe"):
        importer.import_launch("", document)


def test_a_form_that_does_not_fit() -> None:
    with pytest.raises(importer.Unreadable, match="is a YAML mapping, this is not"):
        importer.import_launch("docker run x", None, form="compose")
    with pytest.raises(importer.Unreadable, match="expected auto or one of"):
        importer.import_launch("docker run x", None, form="helm")


def test_lines_that_end_as_in_windows() -> None:
    plain = docker("--gpus all \\\n -p 8001:8000 vllm/vllm-openai:v0.24.0 \\\n a/b --max-model-len 16k\n")
    for end in ("\\\r\n", "^\r\n"):
        launch = docker(f"--gpus all {end} -p 8001:8000 vllm/vllm-openai:v0.24.0 {end} a/b --max-model-len 16k\r\n")
        assert launch["service"] == plain["service"]


def test_an_env_file_of_compose_is_read_as_compose_does() -> None:
    compose = {
        "services": {"v": {"image": "vllm/vllm-openai:v0.24.0", "command": "a/b", "env_file": ["e"], "ports": None}}
    }
    launch = importer.import_launch("", compose, files={"e": "export A='1'\n# B=2\nC=\n"})
    assert launch["service"]["env"] == {"A": "1", "C": ""}


# --- findings of the rules ----------------------------------------------------------------------------------------


def test_what_is_wrong_with_the_unit_itself_is_said_apart() -> None:
    launch = load("vllm-qwen36.service")
    before = {finding["rule"] for finding in launch["before"]}
    assert {"SPKU01", "SPKU08", "SPKU12"} <= before
    assert not {rule for rule in rules(launch) if rule.startswith("SPKU")}
    assert all(finding["fix"] and finding["source"] for finding in launch["before"])
    assert "SPKU02" in {finding["rule"] for finding in load("gemma4-31b.txt")["before"]}
    assert load("compose.txt")["before"] == []


def test_variables_of_a_unit_stay_variables_for_its_rules() -> None:
    unit = (
        "[Service]\nEnvironment=NAME=heavy HF_TOKEN=hf_abcdefghijklmnop\nExecStartPre=-/usr/bin/docker rm -f ${NAME}\n"
        "ExecStart=/usr/bin/docker run --name ${NAME} -e HF_TOKEN=${HF_TOKEN} vllm/vllm-openai:v0.24.0 a/b\n"
    )
    launch = importer.import_launch(unit)
    before = {finding["rule"] for finding in launch["before"]}
    assert launch["service"]["name"] == "heavy" and not before & {"SPKU14", "SPKU21"} and "SPKU11" in before


def test_packages_and_files_count_for_the_rules() -> None:
    assert "SPK411" not in rules(load("nemotron-omni.txt"))
    assert "SPKH02" in rules(load("gemma4-26b.txt"))
    late = load(
        "gemma4-26b.txt", image="vllm/vllm-openai:v0.24.0", config={"architectures": ["Gemma4ForConditionalGeneration"]}
    )
    assert "SPKH01" in rules(late) and not late["compatible"]


# --- the result ---------------------------------------------------------------------------------------------------


def test_the_config_of_a_recipe_of_this_collection_is_taken() -> None:
    recipe = {"model": {"repo": "a/b"}, "config": CONFIG, "weights_gib": 5.0, "args": {"seed": 1}}
    launch = docker("x/y:1 --model a/b", known_recipes={"mine": recipe})
    assert launch["service"]["config"] == CONFIG and launch["service"]["weights_gib"] == 5.0
    assert launch["service"]["args"] == {} and "recipe mine" in omissions(launch) and launch["missing"] == []
    assert "config" not in docker("x/y:1 --model a/other", known_recipes={"mine": recipe})["service"]


UNREADABLE = ("vllm.txt",)


@pytest.mark.parametrize("name", sorted(p.name for p in FOLDER.glob("*.txt") if p.name not in UNREADABLE))
def test_every_service_is_taken_by_the_plan(name: str) -> None:
    launch = load(name, config=CONFIG)
    _resolved, problems = recipes.resolve_service(launch["service"], "service", {}, {})
    assert problems == [] == launch["missing"]
