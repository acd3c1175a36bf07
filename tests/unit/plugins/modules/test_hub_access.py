"""A small server plays the hub: refusals are reported at once, before any weights are downloaded."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from module_calls import call_module

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import hub_access as rules
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import snapshots
from ansible_collections.dgxspark.vllm.plugins.modules import hub_access

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Public, gated and private models; C(good) is a token with all licences, C(plain) one without."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
                hub.asked.append((self.path, token))
                status, headers = hub.answer(self.path, token)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                """Stay quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str, token: str) -> tuple[int, dict[str, str]]:
        org, name, _resolve, revision, file = path.strip("/").split("/", 4)
        if token == "wrong":
            return 401, {"X-Error-Message": "Invalid credentials in Authorization header"}
        if org == "gated" and token != "good":
            return (403 if token else 401), {"X-Error-Code": "GatedRepo"}
        if org == "private" and token != "good":
            return (404 if token else 401), {"X-Error-Code": "RepoNotFound"}
        if revision not in ("main", COMMIT):
            return 404, {"X-Error-Code": "RevisionNotFound"}
        if file != "config.json":
            return 404, {"X-Error-Code": "EntryNotFound"}
        # Following this redirect would fail: no server listens there.
        return 302, {"Location": f"http://127.0.0.1:1/{name}"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    played = Hub()
    yield played
    played.server.shutdown()
    played.server.server_close()


@pytest.fixture
def call(hub: Hub, tmp_path: Path, capsys: Any) -> Any:
    def call(*repos: str, **args: Any) -> dict[str, Any]:
        models = [dict(zip(("repo", "revision"), (*repo.split("@"), "main"))) for repo in repos]
        settings = {"models": models, "hf_home": str(tmp_path), "endpoint": hub.url, **args}
        return call_module(hub_access, settings, capsys)

    return call


def test_what_may_be_had_is_not_fetched(hub: Hub, call: Any) -> None:
    result = call("open/Model", f"gated/Model@{COMMIT}", token="good")
    assert result["changed"] is False and [answer["meaning"] for answer in result["asked"]] == ["ok", "ok"]
    assert [path for path, _token in sorted(hub.asked)] == [
        f"/gated/Model/resolve/{COMMIT}/config.json",
        "/open/Model/resolve/main/config.json",
    ]


def test_all_refusals_are_told_at_once_with_page_and_fix(call: Any) -> None:
    result = call("open/Model", "gated/One", "gated/Two", "private/Three", "open/Four@v9")
    assert result["failed"] is True
    lines = result["msg"].splitlines()
    assert len(lines) == 5
    assert "Accept it on https://huggingface.co/gated/One" in lines[1] and "spark_hf_token_file" in lines[1]
    assert "gated/Two" in lines[2] and "private/Three@main: the hub has no such model" in lines[3]
    assert "open/Four@v9: it has no revision v9" in lines[4]


def test_a_token_without_the_licence_is_another_matter_than_none(call: Any) -> None:
    result = call("gated/One", token="plain", token_file="/keys/hf")
    assert (
        "the token of /keys/hf may not read it" in result["msg"] and "https://huggingface.co/gated/One" in result["msg"]
    )
    assert "plain" not in json.dumps(result["asked"])


def test_a_token_that_is_not_accepted(call: Any) -> None:
    assert "does not accept the token of /keys/hf" in call("open/Model", token="wrong", token_file="/keys/hf")["msg"]


def test_what_is_whole_on_the_host_is_not_asked_for(hub: Hub, call: Any, tmp_path: Path) -> None:
    folder = snapshots.repo_folder(tmp_path, "gated/One")
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "snapshots" / COMMIT / "model.safetensors").write_text("weights")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    assert call("gated/One")["asked"] == [] and hub.asked == []


def test_entries_without_a_repo_are_passed_over(hub: Hub, call: Any) -> None:
    assert call(models=[{"source": "/x", "path": "/y"}])["asked"] == []


def test_a_file_that_the_model_does_not_have_still_says_that_it_may_be_read(call: Any) -> None:
    models = [{"repo": "gated/One", "revision": "main", "only": ["parser.py", "*.json"]}]
    assert call(models=models, token="good")["asked"][0]["meaning"] == "ok"
    assert call(models=models)["failed"] is True


def test_a_hub_that_cannot_be_reached_is_a_warning(
    call: Any, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _self, text: warnings.append(text))
    result = call("open/Model", endpoint=f"http://127.0.0.1:{closed_port}")
    assert "failed" not in result and result["asked"][0]["meaning"] == "unreachable"
    assert len(warnings) == 1 and "cannot be reached" in warnings[0] and "open/Model" in warnings[0]


@pytest.mark.parametrize(
    ("status", "headers", "token", "meaning"),
    [
        (200, {}, False, "ok"),
        (404, {"x-error-code": "EntryNotFound"}, False, "ok"),
        (403, {}, True, "licence"),
        (401, {}, True, "token"),
        (401, {}, False, "gated"),
        (404, {}, True, "missing"),
        (503, {}, True, "other"),
    ],
)
def test_answers_of_mirrors_that_name_no_error(status: int, headers: dict[str, str], token: bool, meaning: str) -> None:
    assert rules.judge(status, headers, token) == meaning


def test_a_revision_with_a_slash_is_one_part_of_the_address() -> None:
    assert rules.url_of("", "O/M", "refs/pr/1") == "https://huggingface.co/O/M/resolve/refs%2Fpr%2F1/config.json"
