# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Redaction removes secrets in any notation and keeps the text that explains a fault."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import redaction, secret_names

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
    # URLs
    "https://h/x?token=abcdef123&a=1",
    "https://h/x?a=1&sig=abcdef123",
    "https://h/x?X-Amz-Signature=abcdef123",
    "https://h/x?key=abcdef123",
    "https://abcdef123@github.com/x",
    "https://user:p/abcdef123@host/x",
    "redis://:abcdef123@h:6379/0",
    "https://hooks.slack.com/services/T000/B000/abcdef123",
    "https://discord.com/api/webhooks/1234/abcdef123",
    # environments and commands
    "docker run -e VLLM_API_KEY=abcdef123 x",
    "docker run -e MY_KEY=abcdef123 x",
    "docker run -eMY_KEY=abcdef123 x",
    "docker run -e 'HF_TOKEN=abcdef123' x",
    '["--env", "MY_KEY=abcdef123"]',
    'Environment="A=1" "VLLM_API_KEY=abcdef123"',
    '{"env": {"LITELLM_SALT_KEY": "abcdef123"}}',
    '{"name": "HF_TOKEN", "value": "abcdef123"}',
    "PGPASSWORD=abcdef123 psql",
    "SMTP_PASS=abcdef123",
    "curl -u user:abcdef123 http://x",
    '--api-key "abcdef123"',
    "--api-key '-_/abcdef123'",
    "--api-key first1 abcdef123 --port 8000",
    '["--api-key", "first1", "abcdef123", "--port"]',
    "  --api-key \\\n  abcdef123 \\\n  --port 8000",
    "args:\n  - --api-key\n  - abcdef123",
    "password=abc'abcdef123'",
    "password='a b'\"abcdef123\"",
    "password=x;abcdef123",
    "password=x,abcdef123",
    "password=/abcdef123+x=",
    # lines of vLLM's log
    "non-default args: {'api_key': ['x', 'abcdef123'], 'port': 8000}",
    "Namespace(port=1, api_key=['abcdef123'], hf_token='abcdef123')",
    "SecretStr('abcdef123')",
    "(b'x-api-key', b'abcdef123')",
    "('Cookie', 'sid=abcdef123')",
    "Incorrect API key provided: abcdef123",
    "the password is abcdef123",
    # headers
    "Authorization: ApiKey abcdef123",
    'Authorization: Digest username="u", response="abcdef123"',
    "Cookie: a=1; b=abcdef123",
    "Bearer\tabcdef123",
    "Bearer%20abcdef123",
    "X-Auth-Token: abcdef123",
    # YAML
    "api_key:\n  - abcdef123\n  - abcdef123\nport: 1",
    "a:\n  - password: |\n      abcdef123\n      abcdef123\n",
    "password: >-\n  x\n\n  abcdef123",
    "password: !vault |\n  abcdef123",
    "password: correct abcdef123 battery",
    "password: 'a''abcdef123'",
    'password: "a\\"abcdef123"',
    "auth: {user: x, value: abcdef123}",
    # JSON in JSON, cut off, in HTML, in URLs, in XML
    json.dumps(json.dumps(json.dumps({"api_key": "abcdef123"}))),
    '{"api_key": "abcdef123',
    '{"password": {"value": "abcdef123"}}',
    '{"api_key": [\n  "x1",\n  "abcdef123"\n ]}',
    "HF_TOKEN%3Dabcdef123",
    "%22api_key%22%3A%20%22abcdef123%22",
    "api_key\\u003dabcdef123",
    "&quot;api_key&quot;: &quot;abcdef123&quot;",
    "<password>abcdef123</password>",
    "AccountKey=abcdef123==;Suffix=x",
    # keys of several lines
    json.dumps("-----BEGIN EC PRIVATE KEY-----\nabcdef123\n-----END EC PRIVATE KEY-----"),
    "Nov 21 h x[1]: -----BEGIN PRIVATE KEY-----\nNov 21 h x[1]: abcdef123\nNov 21 h x[1]: -----END PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\nabcdef123\n-----END PGP PRIVATE KEY BLOCK-----",
    "password=<redacted>abcdef123",
    "a line\\nhf_AbCdEfGhIjKl",
    "password: 12345678901",
]
PARTS = (
    "abcdef123",
    "abc.def-123",
    "dXNlcjpwYXNz",
    "AbCdEfGh",
    "abcDEF123456",
    "eyJhbGci",
    "AAabcdef",
    "dXNlcjphYm",
    "12345678901",
)


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
        '"hf_endpoint": "", "hf_home": "/srv/huggingface"',
        '{"secrets": [{"name": "VLLM_API_KEY", "path": "/etc/dgxspark/secrets/x", "source": "/work/x/secrets/api_key"}]}',
        '"api_key": "os.environ/DGXSPARK_BACKEND_KEY_0"',
        '"inter_token_latency": 0.012345678901, "time_to_first_token_seconds": 12.345678901',
        '["VLLM_API_KEY", "HF_TOKEN"]',
        "agent --with-auth-token\n[kthreadd]\n/usr/bin/x",
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
    containers = [
        {"Name": "/a", "Config": {"Env": ["A_SECRET=x1y2", "B=2"], "Labels": {}}, "State": {"Status": "running"}}
    ]
    cleaned = json.loads(redaction.clean_inspect(json.dumps(containers)))
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
    assert secret_names.is_secret_name(name) is secret


@pytest.mark.parametrize(
    "text",
    [
        "a" * 300000,
        "a.b-" * 75000,
        "--" + "a" * 300000,
        '"' + "\\" * 300000,
        "token=" * 50000,
        "a=" * 50000,
        'token="' * 40000,
        "token=[" * 40000,
        "token=[\n" * 40000,
        "token: [\n " * 30000,
        "://a:b" * 50000,
        "curl -u " * 40000,
        "token='" + "''" * 150000,
        "api_key:\n  - x\n" * 20000,
    ],
)
def test_lines_without_an_end_are_no_matter(text: str) -> None:
    """An expression that backtracks would take minutes for each of these texts."""
    assert redaction.Redactor([]).clean(text)


def test_json_stays_json() -> None:
    document = {
        "api_key": "abcdef123",
        "a": [{"name": "HF_TOKEN", "value": 'x"y'}],
        "auth": {"keys": ["q1", "q2"], "n": 3},
    }
    for indent in (None, 1):
        assert json.loads(redaction.Redactor([]).clean(json.dumps(document, indent=indent))) == {
            "api_key": "<redacted>",
            "a": [{"name": "HF_TOKEN", "value": "<redacted>"}],
            "auth": {"keys": ["<redacted>", "<redacted>"], "n": 3},
        }


def test_cleaning_twice_takes_nothing_more() -> None:
    for text in SECRETS:
        redactor = redaction.Redactor([])
        once, count = redactor.clean(text), redactor.taken
        assert (redactor.clean(once), redactor.taken) == (once, count)


def test_accounts_of_docker() -> None:
    auth = base64.b64encode(b"user:plain-word").decode()
    account = {"auth": auth, "email": "a@b", "identitytoken": "tok-1"}
    assert redaction.secrets_of_account(account) == [auth, "tok-1", "plain-word"]
    assert redaction.secrets_of_account({"auth": "no base64!"}) == ["no base64!"]
