# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets go, whatever they are written as; what helps to find a fault stays."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils import redaction

VALUE = 'kq7/W+zz"1 x9&Lö'


@pytest.mark.parametrize(
    "text",
    [
        f"key is {VALUE}.",
        json.dumps({"a": [VALUE]}),
        json.dumps({"a": json.dumps(VALUE)}),
        f"http://h/?x={quote(VALUE, safe='')}",
        base64.b64encode(VALUE.encode()).decode(),
        base64.b64encode(f"user:{VALUE}:more".encode()).decode(),
        base64.b64encode(f"u:{VALUE}".encode()).decode(),
        base64.urlsafe_b64encode(f"us:{VALUE}".encode()).decode(),
    ],
)
def test_a_known_value_goes_in_every_spelling(text: str) -> None:
    cleaned = redaction.Redactor([VALUE + "\n"]).clean(text)
    assert redaction.MARK in cleaned
    for spelling in redaction.spellings(VALUE):
        assert spelling not in cleaned


def test_each_line_of_a_file_of_several_is_a_secret() -> None:
    redactor = redaction.Redactor(["first-part\nsecond-part\nab\n"])
    assert redactor.clean("x second-part y first-part ab") == "x <redacted> y <redacted> ab"
    assert redactor.taken == 2


def test_the_longer_one_goes_first() -> None:
    assert redaction.Redactor(["abcd", "abcdefgh"]).clean("abcdefgh") == "<redacted>"


SECRETS = [
    "Authorization: Bearer abc.def-123",
    '{"Authorization": "Bearer abcdef123"}',
    "authorization: Basic dXNlcjpwYXNz",
    "curl -H 'Authorization: Bearer abcdef123'",
    "token hf_AbCdEfGhIjKlMnOpQr in a text",
    "using sk-proj-abcDEF123456",
    "nvapi-abcDEF123456_xyz",
    "VLLM_API_KEY=abcdef123",
    'export HF_TOKEN="abcdef123"',
    '{"api_key": "abcdef123", "x": 1}',
    "{'api_key': 'abcdef123'}",
    '{\\"api_key\\": \\"abcdef123\\"}',
    "apiKey: abcdef123",
    "password = abcdef123",
    '"text": "a line\\napi_key=abcdef123\\nanother"',
    "--api-key abcdef123 --port 8000",
    "--api-key=abcdef123",
    '["--api-key", "abcdef123", "--port"]',
    "['--hf-token', 'abcdef123']",
    "http://user:abcdef123@proxy:3128/",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.abcdef123xyz",
    "bot 123456789:AAabcdefghijklmnopqrstuvwxyz-123456",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nabcdef123\n-----END OPENSSH PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----\nabcdef123 cut off",
    '"auth": "dXNlcjphYmNkZWYxMjM="',
    "Set-Cookie: session=abcdef123; Path=/",
]
PARTS = ("abcdef123", "abc.def-123", "dXNlcjpwYXNz", "AbCdEfGh", "abcDEF123456", "eyJhbGci", "AAabcdef", "dXNlcjphYm")


@pytest.mark.parametrize("text", SECRETS)
def test_what_looks_like_a_secret_goes(text: str) -> None:
    cleaned = redaction.Redactor([]).clean(text)
    assert not [part for part in PARTS if part in cleaned], cleaned
    assert redaction.MARK in cleaned


@pytest.mark.parametrize(
    "text",
    [
        "prompt_tokens=12, max_tokens: 4096, generation_tokens_total 7",
        "tokenizer: Qwen/Qwen3-8B --tokenizer Qwen/Qwen3-8B",
        '"api_key_file": "/etc/dgxspark/secrets/heavy/VLLM_API_KEY"',
        "HF_TOKEN_PATH=/run/dgxspark/token",
        "--max-num-batched-tokens 8192 --enable-prefix-caching",
        "token: null, password: false, auth=none",
        "INFO 11-20 12:00:01 [core.py:58] Initializing a V1 LLM engine (v0.19.0) with config: model='x', seed=0",
        "keyboard: us, key_cache: 7, num_key_value_heads=8",
        "http://127.0.0.1:8001/v1/models at spark@host",
        "sha256:9c7af9bceb1e954e9c7af9bceb1e954e",
        "ExecStart=/usr/bin/docker run --env-file /etc/dgxspark/env/x.env --mount type=bind,src=/etc/dgxspark/secrets/x",
    ],
)
def test_what_helps_stays(text: str) -> None:
    assert redaction.Redactor([]).clean(text) == text


def test_an_environment_keeps_what_is_no_secret() -> None:
    lines = [
        "VLLM_API_KEY=abc",
        "PATH=/bin",
        "HF_TOKEN_PATH=/run/x",
        "NGC_CLI_API_KEY=def",
        "MY_KEY=ghi",
        "EMPTY_TOKEN=",
    ]
    assert redaction.clean_environment(lines) == [
        "VLLM_API_KEY=<redacted>", "PATH=/bin", "HF_TOKEN_PATH=/run/x", "NGC_CLI_API_KEY=<redacted>", "MY_KEY=<redacted>",
        "EMPTY_TOKEN=",
    ]  # fmt: skip
    assert redaction.secrets_of_environment(lines) == ["abc", "def", "ghi"]


def test_inspect_keeps_everything_else() -> None:
    given = [{"Name": "/a", "Config": {"Env": ["A_SECRET=x1y2", "B=2"], "Labels": {}}, "State": {"Status": "running"}}]
    cleaned = json.loads(redaction.clean_inspect(json.dumps(given)))
    assert cleaned[0]["Config"]["Env"] == ["A_SECRET=<redacted>", "B=2"] and cleaned[0]["State"] == {
        "Status": "running"
    }
    assert redaction.clean_inspect("no json") == ""


@pytest.mark.parametrize(
    ("name", "secret"),
    [("HF_TOKEN", True), ("hfToken", True), ("api-key", True), ("masterKey", True), ("x.password", True), ("client_secret", True),
     ("max_tokens", False), ("tokenizer_mode", False), ("api_key_file", False), ("key", False), ("secret_name", False), ("", False)],
)  # fmt: skip
def test_names(name: str, secret: bool) -> None:
    assert redaction.is_secret_name(name) is secret


@pytest.mark.parametrize(
    "text", ["a" * 300000, "a.b-" * 75000, "--" + "a" * 300000, '"' + "\\" * 300000, "token=" * 50000, "a=" * 50000]
)
def test_lines_without_an_end_are_no_matter(text: str) -> None:
    """Each takes minutes where an expression goes back over what it has read."""
    assert redaction.Redactor([]).clean(text)
