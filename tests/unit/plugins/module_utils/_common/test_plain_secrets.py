# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets in plain text are refused wherever an inventory may hold them, and nothing that only looks like one by its name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import plain_secrets, redaction, secret_names
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import container_launch
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import recipes, variables
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import catalogue_data

VALUE = "correct-Horse7battery"


def refused(service: dict[str, Any]) -> list[str]:
    recipe = {"name": "base", "model": {"repo": "Org/M"}, "images": [{"ref": "vllm/vllm-openai:v0.24.0"}]}
    entry = {"name": "a", "port": 8001, "recipe": "base", **service}
    _merged, problems = recipes.resolve_service(entry, "host spark-1, spark_services[0]", {"base": recipe}, None)
    return [problem for problem in problems if "secret" in problem]


@pytest.mark.parametrize(
    ("service", "named"),
    [
        ({"args": {"hf-token": VALUE}}, "under 'secrets': {HF_TOKEN: FILE}"),
        ({"args": {"hf_token": VALUE}}, "hf-token"),
        ({"args": {"kv-transfer-config": {"extra": {"auth_token": VALUE}}}}, "kv-transfer-config.extra.auth_token"),
        ({"args": {"otlp-traces-endpoint": f"http://me:{VALUE}@10.0.0.1:4317"}}, "otlp-traces-endpoint"),
        ({"args": {"middleware": ["nvapi-0123456789abcdef"]}}, "middleware[0]"),
        ({"env": {"OPENAI_KEY": VALUE}}, "OPENAI_KEY"),
        ({"env": {"AWS_ACCESS_KEY_ID": "AKIA0123456789ABCDEF"}}, "AWS_ACCESS_KEY_ID"),
        ({"env": {"MY_PAT": VALUE}}, "MY_PAT"),
        ({"env": {"DB_PASSWORD": "12345678"}}, "DB_PASSWORD"),
        ({"env": {"PROXY": f"http://me:{VALUE}@proxy:3128"}}, "PROXY"),
        ({"docker_args": ["-e", f"NGC_API_KEY={VALUE}"]}, "NGC_API_KEY"),
        ({"docker_args": [f"-eNGC_API_KEY={VALUE}"]}, "NGC_API_KEY"),
        ({"docker_args": [f"--env=NGC_API_KEY={VALUE}"]}, "NGC_API_KEY"),
        ({"docker_args": ["--label", "x=hf_0123456789ABCDEFGH"]}, "(x)"),
        ({"docker_args": ["--label", f"token={VALUE}"]}, "(token)"),
        ({"docker_args": [f"--label=com.example.token={VALUE}"]}, "(com.example.token)"),
        ({"docker_args": ["-l", f"api_key={VALUE}"]}, "(api_key)"),
        ({"docker_args": [f"-lpassword={VALUE}"]}, "(password)"),
        ({"docker_args": [f"--annotation=secret={VALUE}"]}, "(secret)"),
        ({"docker_args": ["--log-opt", f"splunk-token={VALUE}"]}, "(splunk-token)"),
        ({"docker_args": [f"--some-secret={VALUE}"]}, "--some-secret"),
        ({"docker_args": ["--add-host", f"https://x.example/?token={VALUE}"]}, "word 2"),
        ({"env": {"SIGNATURE": VALUE}}, "SIGNATURE"),
        ({"env": {"REQUEST_SIGNATURE": VALUE}}, "REQUEST_SIGNATURE"),
        ({"env": {"MYKEYPHRASE": VALUE}}, "MYKEYPHRASE"),
        ({"env": {"SEED_PHRASE": "twelve plain words"}}, "SEED_PHRASE"),
        ({"env": {"MYPRIVATEKEY": VALUE}}, "MYPRIVATEKEY"),
        ({"env": {"S3_ACCESS": "AKIA0123456789ABCDEF"}}, "S3_ACCESS"),
        ({"env": {"MINIO_ACCESS": "minio0123456789"}}, "MINIO_ACCESS"),
        ({"env": {"CALLBACK": f"https://x.example/a?b=1&access_token={VALUE}"}}, "CALLBACK"),
        ({"env": {"BLOB": f"https://x.example/a?sv=1&sig={VALUE}"}}, "BLOB"),
        ({"args": {"otlp-traces-endpoint": f"http://10.0.0.1:4317/?api-key={VALUE}"}}, "otlp-traces-endpoint"),
    ],
)
def test_a_secret_in_plain_text_is_refused_by_its_name_and_never_repeated(service: dict[str, Any], named: str) -> None:
    problems = refused(service)
    assert len(problems) == 1 and named in problems[0], problems
    value = str(next(iter(service.values())))
    assert VALUE not in problems[0] and not any(
        part in problems[0] for part in ("AKIA0", "hf_0123", "nvapi-0", "12345678")
    ), value


@pytest.mark.parametrize(
    "service",
    [
        {"args": {"long-prefill-token-threshold": 2048, "max-num-batched-tokens": 8192}},
        {"args": {"speculative-config": {"method": "eagle", "speculative_token_tree": "[(0,), (0, 0)]"}}},
        {"args": {"allow-credentials": True, "ssl-keyfile": "/etc/ssl/private/engine.pem"}},
        {"args": {"hf-token": True}},
        {"env": {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "TOKENIZERS_PARALLELISM": "false"}},
        {"env": {"GOOGLE_APPLICATION_CREDENTIALS_FILE": "/run/dgxspark/secrets/google"}},
        {
            "args": {
                "tokenizer": "perplexity-ai/pplx-embed-v1-4b",
                "hf-overrides": {"eos_token": "<|im_end|>", "image_token": "<img>"},
            }
        },
        {"args": {"chat-template": "You answer basic questions. A bearer carries."}},
        {"env": {"S3_ACCESS": "public-read", "PEER_ACCESS": "1", "SIGNATURE": "true", "DATA_ACCESS": "read_only_file"}},
        {"env": {"CALLBACK": "https://x.example/?limit=10&page=token&key="}},
        {"docker_args": ["--label", "role=engine", "-l", "token_limit=8192", "--sysctl", "net.core.somaxconn=1024"]},
        {"env": {"KEY_PREFIX": "vllm", "LMCACHE_KEY_PREFIX": "a"}},
        {"docker_args": ["--volume", "/mnt/hf_weights2:/w", "-v", "/data/hf_models01:/m"]},
        {"docker_args": ["-e", "NGC_API_KEY", "--env-file", "/etc/engine.env", "-v", "/srv/tokens:/tokens:ro"]},
    ],
)
def test_what_only_has_the_name_of_one_is_taken(service: dict[str, Any]) -> None:
    assert refused(service) == []


def test_no_option_and_no_variable_of_vllm_is_taken_for_a_secret_with_the_values_that_it_has() -> None:
    text = "\n".join(str(value).replace("\\n", "\n") for name, value in vars(catalogue_data).items() if name.isupper())
    options = set(re.findall(r"\b[a-z][a-z0-9]+(?:-[a-z0-9]+)+\b", text))
    assert len(options) > 200
    named = {option for option in options if secret_names.is_secret_option(option)}
    assert named <= {"api-key", "hf-token", "allow-credentials"}, named


def test_the_words_of_a_command_line_are_named_by_variable_option_or_place() -> None:
    words = [
        "-e",
        f"A_KEY={VALUE}",
        "--token",
        VALUE,
        f"--secret={VALUE}",
        "-e",
        "B_KEY",
        "hf_0123456789ABCDEFGH",
        "--token",
        "--x",
    ]
    assert plain_secrets.in_words(words) == ["A_KEY", "--token", "--secret", "word 8"]


LINES = (
    (["bash", "-c", f"vllm serve m --api-key {VALUE} --hf-token=nvapi-0123456789abcdef"], [VALUE, "nvapi-0"]),
    (["vllm", "serve", "m", "--api-key", VALUE, "second-Key9", "--port", "8000"], [VALUE, "second-Key9"]),
    (["vllm", "serve", "m", "--api-key", "a", "--api-key", VALUE], [VALUE]),
    (["vllm", "serve", f"http://me:{VALUE}@host/m"], [VALUE]),
    (["env", f"NGC_API_KEY={VALUE}", "vllm", "serve", "m"], [VALUE]),
    (["sh", "-c", f"export OPENAI_KEY={VALUE}; exec vllm serve m"], [VALUE]),
)


@pytest.mark.parametrize(("words", "secrets"), LINES)
def test_command_lines_of_others_leave_the_host_without_their_secrets(words: list[str], secrets: list[str]) -> None:
    box = {"Name": "/x", "Config": {"Cmd": words, "Image": "img"}, "HostConfig": {}}
    for shown in (redaction.without_secrets(words), container_launch.launch_of(box, {})):
        assert not any(secret in word for secret in secrets for word in shown), shown
        assert [word for word in words if word in ("--port", "8000", "serve", "m", "vllm")] == [
            word for word in shown if word in ("--port", "8000", "serve", "m", "vllm")
        ]


def test_what_the_environment_keeps_secret_is_taken_out_of_the_command_too() -> None:
    box = {
        "Name": "/x",
        "Config": {
            "Env": [f"VLLM_API_KEY={VALUE}", "A=b"],
            "Cmd": ["bash", "-c", f"serve --with {VALUE}"],
            "Image": "img",
        },
        "HostConfig": {},
    }
    shown = container_launch.launch_of(box, {})
    assert VALUE not in json.dumps(shown) and "A=b" in shown and shown[-1].startswith("serve --with ")


@pytest.mark.parametrize(
    "text",
    [
        "url: https://chat.example.org/hooks/8b1c3d5e7f9a",
        'webhook_url = "https://example.org/in/8b1c3d5e7f9a"',
        "posting to https://example.org/api/webhook/8b1c3d5e7f9a failed",
        '{"discord_url": "https://example.org/x/8b1c3d5e7f9a?thread=1"}',
    ],
)
def test_a_webhook_whose_path_is_the_secret_leaves_no_bundle(text: str) -> None:
    cleaned = redaction.Redactor([]).clean(text)
    assert "8b1c3d5e7f9a" not in cleaned and "example.org" in cleaned


def test_of_a_known_address_the_path_is_taken_out_where_it_stands_alone() -> None:
    redactor = redaction.Redactor(["https://example.org/a1b2c3d4e5/f6"])
    assert "a1b2c3d4e5" not in redactor.clean("POST /a1b2c3d4e5/f6 502") and "POST /" in redactor.clean(
        "POST /a1b2c3d4e5/f6 502"
    )
    assert redactor.clean("GET https://example.org/other") == "GET https://example.org/other"


@pytest.mark.parametrize(
    "mirror",
    [
        "file:///srv/hub",
        "ftp://mirror.lan",
        "mirror.lan",
        f"https://mirror.lan/?token={VALUE}",
        f"https://me:{VALUE}@mirror.lan",
        f"https://{VALUE}@mirror.lan",
        f"https://mirror.lan/#{VALUE}",
        "https://mirror.lan:99999",
        "https://a b/",
    ],
)
def test_a_mirror_of_the_hub_is_an_address_without_secrets(mirror: str) -> None:
    _settings, wrong = variables.read("spark-1", {"spark_hf_endpoint": mirror})
    assert len(wrong) == 1 and "'spark_hf_endpoint' must be the address of a mirror" in wrong[0], wrong
    assert VALUE not in wrong[0]


@pytest.mark.parametrize(
    "mirror", ["", "https://mirror.lan", "http://192.168.1.5:8090/hub", "https://hf-mirror.example/"]
)
def test_a_mirror_of_the_hub(mirror: str) -> None:
    assert variables.read("spark-1", {"spark_hf_endpoint": mirror})[1] == []
