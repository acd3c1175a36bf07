"""The logic of the runners in scripts/."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import demo_summary
import pytest
import suite

PLAN: dict[str, Any] = {
    "schema": 1,
    "hosts": {
        "spark-1": {
            "services": [
                {
                    "name": "heavy",
                    "unit": "spark-heavy.service",
                    "url": "http://10.87.0.11:8001",
                    "served_model_name": "heavy",
                    "image": {"ref": "example/vllm:1"},
                }
            ],
            "total_gib": 119.67,
            "memory_map": [
                {"label": "system", "gib": 5.2, "kind": "system", "service": None},
                {"label": "heavy weights", "gib": 74.85, "kind": "weights", "service": "heavy"},
                {"label": "heavy overhead", "gib": 0.05, "kind": "overhead", "service": "heavy"},
                {"label": "nothing", "gib": 0.0, "kind": "plain", "service": "nothing"},
                {"label": "free", "gib": 39.57, "kind": "free", "service": None},
            ],
        }
    },
}


def test_served_tells_stand_ins_from_real_engines() -> None:
    assert "stand-in" in demo_summary.served(PLAN, set())
    row = demo_summary.served(PLAN, {"example/vllm:1"}).splitlines()[-1]
    assert row.split()[:4] == ["spark-1", "heavy", "http://10.87.0.11:8001", "heavy"]
    assert "real vLLM" in row


def test_the_memory_of_each_node_is_drawn_with_its_sizes() -> None:
    text = demo_summary.memory_maps(PLAN, width=60, color=False)
    drawn = next(line for line in text.splitlines() if line.startswith("["))
    assert len(drawn) == 60
    assert drawn.count("█") == pytest.approx(74.85 / 119.67 * 58, abs=2)
    assert "spark-1, 119.67 GiB of unified memory as planned" in text
    assert "system 5.2, heavy weights 74.9, heavy overhead 0.1, free 39.6" in " ".join(text.split())
    assert "\033" in demo_summary.memory_maps(PLAN, width=60, color=True)


class Chat(BaseHTTPRequestHandler):
    """Answers one model with the key it was sent; refuses others."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = body["model"] == "heavy"
        asked = body["messages"][0]["content"]
        text = "" if asked == "nothing" else f"{self.headers['Authorization']} says {asked}"
        message = {"content": None, "reasoning": text} if "thoughts" in text else {"content": text}
        answer = {"choices": [{"message": message}]} if known else {"error": {"message": "no such model"}}
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def server() -> Iterator[str]:
    """URL of a chat server."""
    http = HTTPServer(("127.0.0.1", 0), Chat)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()


def test_ask_gives_the_answer_or_the_reason(server: str) -> None:
    good = demo_summary.ask(server, "heavy", "secret", "Hello")
    assert (good.text, good.ok) == ("Bearer secret says Hello", True)
    assert demo_summary.ask(server, "heavy", "secret", "thoughts").text == "Bearer secret says thoughts"
    assert not demo_summary.ask(server, "heavy", "secret", "nothing").ok
    wrong = demo_summary.ask(server, "other", "secret", "Hello")
    assert not wrong.ok and "404" in wrong.text and "no such model" in wrong.text
    assert "FAILED" in demo_summary.conversation("Hello", {"other": wrong})


def test_ask_survives_a_closed_port() -> None:
    assert not demo_summary.ask("http://127.0.0.1:9", "heavy", "", "Hello").ok


@pytest.mark.parametrize(
    ("output", "ok", "passed", "failed"),
    [
        ("......\n6 passed in 1.2s\n", True, 6, 0),
        ("= 2 failed, 5 passed, 1 skipped in 3.00s =\n", False, 5, 2),
        ("1 passed in 0.1s\nmore\n3 passed, 1 warning in 0.2s\n", True, 4, 0),
        ("lint is clean\n", True, 1, 0),
        ("lint is not clean\n", False, 0, 1),
        ("4 passed in 0.1s\n", False, 4, 1),
    ],
)
def test_counting(output: str, ok: bool, passed: int, failed: int) -> None:
    result = suite.Result("x", ok, 0.0, output)
    suite.count_tests(result)
    assert (result.passed, result.failed) == (passed, failed)


def test_artifact_check_finds_what_is_too_much_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        "README.md",
        "plugins/modules/a.py",
        "tests/unit/x.py",
        "roles/host/molecule/x.yml",
        "plugins/modules/a.pyc",
    ]
    manifest = {"files": [{"name": name, "ftype": "file"} for name in names]}
    (tmp_path / "FILES.json").write_text(json.dumps(manifest), encoding="utf-8")
    monkeypatch.setattr(suite, "tracked_files", lambda *_: ["plugins/modules/a.py", "plugins/modules/b.py"])
    assert suite.shipped_files(tmp_path).output.splitlines() == [
        "should not be shipped: plugins/modules/a.pyc",
        "should not be shipped: roles/host/molecule/x.yml",
        "should not be shipped: tests/unit/x.py",
        "not shipped: plugins/modules/b.py",
    ]
