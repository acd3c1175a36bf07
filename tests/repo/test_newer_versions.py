"""The program that lists outdated versions asks every possible source and does not take silence for an answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import newer_versions
import pytest
import tree

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import component_versions
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.component_versions import COMPONENTS, Component
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import upstream


@pytest.mark.parametrize(
    ("ours", "versions", "newest"),
    [
        ("v1.9.0", ["v1.9.0", "v1.10.0", "v1.2.0"], "v1.10.0"),
        ("v1.9.0", ["1.10.0", "v1.10.0-rc1", "v1.10.0-slim", "latest", "main"], ""),
        ("0.8.0-int8", ["0.9.0", "0.9.0-int8"], "0.9.0-int8"),
        ("1.2.3", ["2024.1.0", "1.2.3.4", "1.2.2"], ""),
        ("main", ["v2.0.0"], ""),
    ],
)
def test_newer_is_what_is_written_alike(ours: str, versions: list[str], newest: str) -> None:
    assert newer_versions.newest(ours, versions) == newest


class Registry(BaseHTTPRequestHandler):
    """A registry that wants a token, and gives its tags on two pages."""

    def do_GET(self) -> None:
        origin = f"http://{self.headers['Host']}"
        if self.path.startswith("/token"):
            self.answer(200, {"token": "t"})
        elif self.headers.get("Authorization") != "Bearer t":
            self.answer(401, {}, ("WWW-Authenticate", f'Bearer realm="{origin}/token",service="r"'))
        elif "last" in self.path:
            self.answer(200, {"tags": ["v1.3.0"]})
        else:
            assert self.path == "/v2/a/b/tags/list?n=1000"
            self.answer(200, {"tags": ["v1.0.0", "latest"]}, ("Link", '</v2/a/b/tags/list?n=1000&last=x>; rel="next"'))

    def answer(self, code: int, body: object, *headers: tuple[str, str]) -> None:
        self.send_response(code)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def registry() -> Iterator[str]:
    """Host and port of a registry."""
    http = HTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()


def test_a_registry_is_asked_for_all_of_its_tags(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tokens are given out by https alone; this one stands in for such a place.
    token = f"http://{registry}/token"
    monkeypatch.setattr(upstream, "token_url", lambda challenge, ref: token if challenge else None)
    row = newer_versions.ask(Component("It", "v1.0.0", image=f"{registry}/a/b"))
    assert row == ("It", "v1.0.0", "v1.3.0", "")


def test_where_no_registry_answers_its_package_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    component = Component("It", "v1.0.0", image="127.0.0.1:9/a/b", package="it")
    monkeypatch.setattr(newer_versions, "packages", lambda name: ["1.0.0", "1.0.1", f"{name} 9"])
    assert newer_versions.ask(component).newest == "1.0.1"
    row = newer_versions.ask(component._replace(package=""))
    assert not row.newest and "refused" in row.unknown


def test_silence_is_not_the_newest() -> None:
    rows = [newer_versions.Row("a", "1.0"), newer_versions.Row("b", "1.0", "1.1")]
    assert newer_versions.report(rows[:1])[1] == 0
    text, code = newer_versions.report(rows)
    assert code == 1 and "1.1 is newer" in text
    text, code = newer_versions.report([*rows, newer_versions.Row("c", "1.0", unknown="no answer")])
    assert code == 2 and "not known: no answer" in text


def test_versions_stand_in_one_place() -> None:
    """Apart from generated files and stand-ins, no other file of the product names the version of a component."""
    file = "plugins/module_utils/_common/component_versions.py"
    code = [name for name in tree.below("plugins/", "scripts/", suffix=".py") if name != file]
    refs = [component.ref for component in COMPONENTS if component.image] + [
        f"{component.package}=={component.version}" for component in COMPONENTS
    ]
    assert [(name, ref) for name in code for ref in refs if ref in tree.read(name)] == []
    assert {component.name for component in COMPONENTS} == {
        component.name for component in vars(component_versions).values() if isinstance(component, Component)
    }


@pytest.mark.parametrize("name", ["tests/sim/simlib/standins.py", "tests/sim/gateway/requirements.txt"])
def test_stand_ins_have_these_versions(name: str) -> None:
    text = tree.read(name)
    images = {
        "tests/sim/simlib/standins.py": ["PARAKEET", "CHATTERBOX", "OLLAMA", "OPEN_WEBUI"],
        "tests/sim/gateway/requirements.txt": ["LITELLM"],
    }[name]
    for image in images:
        component: Component = getattr(component_versions, image)
        expected = component.ref if name.endswith(".py") else f"litellm=={component.version.removeprefix('v')}"
        assert expected in text
