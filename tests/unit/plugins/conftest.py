# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of several tests: the tree of a Spark's /proc and /sys, and a small real HTTP server that plays an engine."""

from __future__ import annotations

import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("role_files")

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import unit_files
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer

REPO = Path(__file__).resolve().parents[3]

MEMINFO = """MemTotal:       127535224 kB
MemFree:         4510768 kB
MemAvailable:   23135528 kB
Buffers:           77328 kB
Cached:         20448480 kB
Shmem:            755460 kB
SReclaimable:     231480 kB
SwapTotal:      16777212 kB
SwapFree:       16723228 kB
CmaTotal:         131072 kB
HugePages_Total:       0
"""

FOUNDERS_RELEASE = """DGX_NAME="DGX Spark"
DGX_PRETTY_NAME="NVIDIA DGX Spark"
DGX_SWBUILD_DATE="2025-09-10-13-50-03"
DGX_SWBUILD_VERSION="7.2.3"
DGX_COMMIT_ID="833b4a7"
DGX_PLATFORM="DGX Server for KVM"
DGX_SERIAL_NUMBER="1981825000123"

DGX_OTA_VERSION="7.5.0"
DGX_OTA_DATE="Wed Aug 19 21:36:16 MSK 2026"
"""

OS_RELEASE = 'PRETTY_NAME="Ubuntu 24.04.4 LTS"\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\nID=ubuntu\n'

QSFP = (
    ("enp1s0f0np0", "rocep1s0f0", "0000:01:00.0"),
    ("enp1s0f1np1", "rocep1s0f1", "0000:01:00.1"),
    ("enP2p1s0f0np0", "roceP2p1s0f0", "0002:01:00.0"),
    ("enP2p1s0f1np1", "roceP2p1s0f1", "0002:01:00.1"),
)


class Tree:
    """A root with the files of a Spark; by default a Founders Edition with a cable in the left cage."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", MEMINFO)
        self.write("proc/sys/vm/drop_caches", "0\n")
        self.write("proc/sys/kernel/osrelease", "6.17.0-1014-nvidia\n")
        self.write("etc/dgx-release", FOUNDERS_RELEASE)
        self.write("etc/os-release", OS_RELEASE)
        self.dmi(sys_vendor="NVIDIA", product_name="NVIDIA_DGX_Spark", product_family="DGX Spark", board_name="P4242")

    def __str__(self) -> str:
        return str(self.root)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(text)
        fresh.replace(path)  # the kernel shows no half files either

    def dmi(self, **values: str) -> None:
        for name, value in values.items():
            self.write(f"sys/class/dmi/id/{name}", value + "\n")

    def link(self, name: str, target: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(self.root / target)

    def qsfp(self, up: tuple[str, ...] = ("enp1s0f0np0", "enP2p1s0f0np0")) -> None:
        """Put a ConnectX-7 on the bus, laid out as sysfs does it."""
        for netdev, roce, address in QSFP:
            device = f"sys/devices/pci{address[:7]}/{address}"
            is_up = netdev in up
            for name, text in {
                "vendor": "0x15b3",
                "device": "0x1021",
                "current_link_speed": "32.0 GT/s PCIe",
                "current_link_width": "4",
                f"net/{netdev}/operstate": "up" if is_up else "down",
                f"net/{netdev}/speed": "200000" if is_up else "-1",
                f"net/{netdev}/mtu": "9000" if is_up else "1500",
                f"net/{netdev}/address": "3c:6d:66:cc:b3:b7",
                f"infiniband/{roce}/ports/1/state": "4: ACTIVE" if is_up else "1: DOWN",
                f"infiniband/{roce}/ports/1/phys_state": "5: LinkUp",
                f"infiniband/{roce}/ports/1/rate": "200 Gb/sec (2X NDR)" if is_up else "40 Gb/sec (4X QDR)",
                f"infiniband/{roce}/ports/1/gid_attrs/ndevs/0": netdev,
            }.items():
                self.write(f"{device}/{name}", text + "\n")
            self.link(f"sys/bus/pci/devices/{address}", device)
            self.link(f"sys/class/net/{netdev}", f"{device}/net/{netdev}")
            self.link(f"sys/class/infiniband/{roce}", f"{device}/infiniband/{roce}")
            self.link(f"{device}/net/{netdev}/device", device)


@pytest.fixture
def installed(tmp_path: Path) -> Any:
    """Put the library of a component and one of its programs where a host has them; returns their folder."""

    def install(component: str, program: Path) -> Path:
        libexec = tmp_path / unit_files.LIBEXEC.lstrip("/")
        for file in unit_files.library(component)["files"]:
            target = tmp_path / file["path"].lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / file["bundled"], target)
        shutil.copy(program, libexec)
        return libexec

    return install


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root")


class FakeEngine:
    """An OpenAI-compatible server whose every answer can be bent; C(set) changes behaviour while it runs."""

    def __init__(self) -> None:
        self.behaviour: dict[str, Any] = {
            "health": 200,
            "models": ["heavy"],
            "max_model_len": 65536,
            "key": None,
            "chat": "stream",  # stream wedged cut broken error no-template empty midstream
            "tools": "good",  # good text refused bad-json finish thinking slow, or the content of an answer in a conversation
            "agent_turn": 1,  # of the conversation in which the latter comes
            "thinks": 0,  # tokens that it takes before it calls a tool
            "reasoning": "reasoning",  # reasoning reasoning_content inside none mistral
            "tokens": 8,
            "pools": None,  # embed rank; the paths for chats then answer 404
            "vectors": [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]],
            "scores": {0: 0.1, 1: 0.9},
            "says": None,  # the texts of the tokens, instead of t0 t1 t2
            "delay": 0.0,
            "loading_until": 0.0,
        }
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.closing = threading.Event()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                engine.get(self)

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                engine.post(self, json.loads(self.rfile.read(length)))

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def set(self, **behaviour: Any) -> FakeEngine:
        unknown = set(behaviour) - set(self.behaviour)
        assert not unknown, unknown
        self.behaviour.update(behaviour)
        return self

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler: Any, status: int, body: Any) -> None:
        raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)

    def refused(self, handler: Any) -> bool:
        key = self.behaviour["key"]
        if key and handler.headers.get("Authorization") != f"Bearer {key}":
            self.answer(handler, 401, {"error": f"Unauthorized: wanted {key}"})
            return True
        return False

    def get(self, handler: Any) -> None:
        if handler.path == "/health":
            loading = time.monotonic() < self.behaviour["loading_until"]
            self.answer(handler, 503 if loading else self.behaviour["health"], "")
        elif self.refused(handler):
            pass
        elif handler.path == "/v1/models":
            names = self.behaviour["models"]
            self.answer(
                handler,
                200,
                {"data": [{"id": name, "max_model_len": self.behaviour["max_model_len"]} for name in names]},
            )
        elif handler.path == "/version":
            self.answer(handler, 200, {"version": "0.19.0"})
        else:
            self.answer(handler, 404, {"detail": "Not Found"})

    def post(self, handler: Any, body: dict[str, Any]) -> None:
        self.requests.append((handler.path, body))
        if self.refused(handler):
            return
        if self.behaviour["pools"]:
            self.pool(handler)
        elif body.get("tools"):
            self.tools(handler, body)
        elif not body.get("stream"):
            self.reasoning(handler, body)
        else:
            self.stream(handler, body)

    def pool(self, handler: Any) -> None:
        """Answer as vLLM with a model that pools: it has no other paths then."""
        if handler.path == {"embed": "/v1/embeddings", "rank": "/v1/rerank"}[self.behaviour["pools"]]:
            vectors = [{"index": index, "embedding": entry} for index, entry in enumerate(self.behaviour["vectors"])]
            scores = [{"index": index, "relevance_score": score} for index, score in self.behaviour["scores"].items()]
            self.answer(handler, 200, {"data": vectors, "results": sorted(scores, key=lambda entry: -entry["index"])})
        else:
            self.answer(handler, 404, {"detail": "Not Found"})

    def stream(self, handler: Any, body: dict[str, Any]) -> None:
        mode = self.behaviour["chat"]
        chat = handler.path == "/v1/chat/completions"
        if mode == "wedged":
            self.closing.wait(20)
            return
        if mode == "error":
            self.answer(handler, 500, {"error": {"message": "EngineCore encountered an issue"}})
            return
        if mode == "no-template" and chat:
            text = "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template"
            self.answer(handler, 400, {"object": "error", "message": text})
            return
        if mode == "broken":
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        handler.close_connection = True
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()

        def event(data: Any) -> None:
            text = data if isinstance(data, str) else json.dumps(data)
            handler.wfile.write(f"data: {text}\n\n".encode())
            handler.wfile.flush()

        handler.wfile.write(b": ping\n\n")
        if chat:
            event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        says = self.behaviour["says"] or [f"t{number} " for number in range(self.behaviour["tokens"])]
        tokens = 0 if mode == "empty" else len(says)
        for number in range(tokens):
            time.sleep(self.behaviour["delay"])
            piece = {"delta": {"content": says[number]}} if chat else {"text": says[number]}
            event({"choices": [piece]})
            if number == 2 and mode == "cut":
                return
            if number == 2 and mode == "midstream":
                event({"error": {"message": "EngineDeadError: the engine died", "code": 500}})
                return
        event({"choices": [], "usage": {"completion_tokens": tokens}})
        event("[DONE]")

    def tools(self, handler: Any, body: dict[str, Any]) -> None:
        mode = self.behaviour["tools"]
        if body["max_tokens"] + 500 > self.behaviour["max_model_len"]:
            text = "This model's maximum context length is shorter than prompt and max_tokens together"
            self.answer(handler, 400, {"error": {"message": text}})
            return
        if body["max_tokens"] < self.behaviour["thinks"]:
            message: dict[str, Any] = {"content": None, "reasoning": "The user wants", "tool_calls": []}
            self.answer(handler, 200, {"choices": [{"message": message, "finish_reason": "length"}]})
            return
        if mode == "refused":
            text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            self.answer(handler, 400, {"error": {"message": text}})
            return
        if mode == "text":
            message = {"content": '<tool_call>{"name": "get_weather"}</tool_call>'}
            self.answer(handler, 200, {"choices": [{"message": message, "finish_reason": "stop"}]})
            return
        if len(body["tools"]) > 1:
            self.agent(handler, body)
            return
        arguments = '{"city": ' if mode == "bad-json" else '{"city": "Paris"}'
        message = {"content": None, "tool_calls": [{"function": {"name": "get_weather", "arguments": arguments}}]}
        finish = "stop" if mode == "finish" else "tool_calls"
        self.answer(handler, 200, {"choices": [{"message": message, "finish_reason": finish}]})

    def agent(self, handler: Any, body: dict[str, Any]) -> None:
        """Take part in a conversation with many tools: call those that the task names, one after another."""
        mode, turn = self.behaviour["tools"], sum(message["role"] == "tool" for message in body["messages"])
        named = re.findall("search_code|read_file|run_tests", body["messages"][0]["content"])
        if turn == self.behaviour["agent_turn"] and mode not in ("good", "slow"):
            message: dict[str, Any] = {"role": "assistant", "tool_calls": [], "content": mode}
            self.answer(handler, 200, {"choices": [{"message": message, "finish_reason": "stop"}]})
            return
        if turn and mode == "slow":
            time.sleep(2)
        call = {"id": f"c{turn}", "type": "function", "function": {"name": named[turn], "arguments": "{}"}}
        message = {"content": None, "tool_calls": [call]}
        self.answer(handler, 200, {"choices": [{"message": message, "finish_reason": "tool_calls"}]})

    def reasoning(self, handler: Any, body: dict[str, Any]) -> None:
        mode = self.behaviour["reasoning"]
        if mode == "mistral" and "chat_template_kwargs" in body:
            self.answer(handler, 400, {"error": {"message": "chat_template is not supported for Mistral tokenizers."}})
            return
        message: dict[str, Any] = {"content": "42"}
        if mode == "inside":
            message = {"content": "<think>17 + 25</think>42"}
        elif mode == "mistral":
            message["reasoning"] = "17 + 25"
        elif mode != "none":
            message[mode] = "17 + 25"
        self.answer(handler, 200, {"choices": [{"message": message, "finish_reason": "stop"}]})


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    server = FakeEngine()
    yield server
    server.close()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nothing listens; it stays bound, so that no parallel test gets it."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield int(sock.getsockname()[1])


Run = Callable[[list[str]], "tuple[int, str, str]"]


class FakeRun:
    """Plays programs: C(answers) maps the start of a command line to (rc, stdout, stderr); unknown ones are missing."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str, str]] = {}
        self.calls: list[list[str]] = []
        self.hung: set[str] = set()

    def on(self, start: str, out: str = "", rc: int = 0, err: str = "") -> FakeRun:
        self.answers[start] = (rc, out, err)
        self.hung.discard(start)
        return self

    def silent(self, start: str) -> FakeRun:
        """Have commands that begin so give no answer."""
        self.answers[start] = (124, "", "")
        self.hung.add(start)
        return self

    def __call__(self, argv: list[str], **_: Any) -> tuple[int, str, str]:
        self.calls.append(argv)
        line = " ".join(argv)
        for start in sorted(self.answers, key=len, reverse=True):
            if line.startswith(start):
                if start in self.hung:
                    raise NoAnswer(argv[0], f"{argv[0]} did not answer in 30 s")
                return self.answers[start]
        return 127, "", f"{argv[0]}: not found"


@pytest.fixture
def fake_run() -> FakeRun:
    return FakeRun()


@pytest.fixture(autouse=True)
def own_notes(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lock and notes of modules that run on this machine lie in folders of the test's own."""
    folder = tmp_path_factory.mktemp("notes")
    monkeypatch.setenv("DGXSPARK_RUN_DIR", str(folder / "run"))
    monkeypatch.setenv("DGXSPARK_STATE_DIR", str(folder / "state"))
