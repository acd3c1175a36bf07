# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of upstream.py: a small server plays registry and hub."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from module_calls import call_module

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import upstream
from ansible_collections.dgxspark.vllm.plugins.modules import spark_info

DIGEST, COMMIT = f"sha256:{'e' * 64}", "0123456789abcdef0123456789abcdef01234567"


class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        answers = {
            "/v2/own/engine/manifests/main": (200, {"Docker-Content-Digest": DIGEST}),
            "/v2/own/locked/manifests/main": (401, {"WWW-Authenticate": 'Basic realm="x"'}),
            "/Org/Model/resolve/main/config.json": (302, {"X-Repo-Commit": COMMIT, "Location": "http://127.0.0.1:1/x"}),
            "/Org/Gated/resolve/main/config.json": (401, {"X-Error-Code": "GatedRepo"}),
        }
        # Who asks for one platform alone is given another digest than Docker has.
        lists = "manifest.list" in self.headers.get("Accept", "")
        status, headers = answers.get(self.path, (404, {}))
        self.send_response(status if lists or "/v2/" not in self.path else 406)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Stay quiet."""


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def call(capsys: Any, **args: Any) -> dict[str, Any]:
    result = call_module(spark_info, {"gather": ["upstream"], "upstream": args}, capsys)
    return result if result.get("failed") else {"changed": result["changed"], **result["upstream"]}


def test_tags_and_branches_are_asked_for_and_refusals_are_told(address: str, capsys: Any) -> None:
    result = call(
        capsys,
        images=[f"{address}/own/engine:main", f"{address}/own/locked:main", f"{address}/gone:1"],
        models=[{"repo": "Org/Model"}, {"repo": "Org/Gated", "revision": "main"}],
        endpoint=f"http://{address}",
    )
    assert result["images"] == {f"{address}/own/engine:main": DIGEST}
    assert result["models"] == {"Org/Model@main": COMMIT}
    assert result["unknown"] == [
        f"{address}/own/locked:main: {address} answered 401",
        f"{address}/gone:1: {address} answered 404",
        f"Org/Gated@main: {address} answered 401",
    ]


def test_nobody_there_is_no_failure(capsys: Any) -> None:
    result = call(
        capsys, images=["127.0.0.1:1/x:main"], models=[{"repo": "O/M"}], endpoint="http://127.0.0.1:1", timeout=2
    )
    assert (result["changed"], result["images"], result["models"]) == (False, {}, {})
    assert [line.split(": ")[0] for line in result["unknown"]] == ["127.0.0.1:1/x:main", "O/M@main"]
    assert "needs 'repo'" in call(capsys, models=[{"revision": "main"}])["msg"]


@pytest.mark.parametrize(
    ("ref", "url"),
    [
        ("ubuntu", "https://registry-1.docker.io/v2/library/ubuntu/manifests/latest"),
        ("docker.io/ubuntu:24.04", "https://registry-1.docker.io/v2/library/ubuntu/manifests/24.04"),
        ("vllm/vllm-openai:nightly", "https://registry-1.docker.io/v2/vllm/vllm-openai/manifests/nightly"),
        ("nvcr.io/nvidia/vllm:26.04-py3", "https://nvcr.io/v2/nvidia/vllm/manifests/26.04-py3"),
        ("localhost:5000/own:main", "http://localhost:5000/v2/own/manifests/main"),
        ("10.0.0.1:5000/a/b/own", "https://10.0.0.1:5000/v2/a/b/own/manifests/latest"),
    ],
)
def test_where_a_tag_is_asked_for(ref: str, url: str) -> None:
    assert upstream.manifest_url(ref) == url


def test_a_registry_says_where_its_tokens_are() -> None:
    challenge = 'Bearer realm="https://auth.example.org/token",service="example.org",scope="repository:a/b:pull"'
    assert upstream.token_url(challenge, "example.org/a/b:main") == (
        "https://auth.example.org/token?scope=repository%3Aa%2Fb%3Apull&service=example.org"
    )
    assert upstream.token_url('Bearer realm="https://x/t?a=1"', "x/a:main") == (
        "https://x/t?a=1&scope=repository%3Ax%2Fa%3Apull"
    )
    # A token is not asked for in the clear, and a password is nobody's to send.
    assert upstream.token_url('Bearer realm="http://x/t"', "x/a") is None
    assert upstream.token_url('Basic realm="x"', "x/a") is None
    assert upstream.named({"Docker-Content-Digest": "no"}, "docker-content-digest", upstream.DIGEST) is None
