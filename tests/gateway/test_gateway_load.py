# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real LiteLLM under load: a backend is drained, restarted and admitted, and the configuration changed, and no request fails.

GATEWAY_PYTHON names a Python that has the packages of tests/sim/gateway/requirements.txt; without it these tests are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import gateway
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints

HERE = Path(__file__).resolve().parent
FILES = HERE.parent.parent / "roles" / "gateway" / "files"
PYTHON = os.environ.get("GATEWAY_PYTHON", "")
PATIENCE = 240.0
pytestmark = pytest.mark.skipif(not PYTHON, reason="GATEWAY_PYTHON names no Python with LiteLLM")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(what: Callable[[], Any], why: str) -> Any:
    """Wait for something that has to come."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{why} did not come within {PATIENCE:.0f} s")


class Site:
    """One gateway with two backends of its own, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config, self.secrets, self.run = folder / "config", folder / "secrets", folder / "run"
        for path in (self.config, self.secrets, self.run / "state"):
            path.mkdir(parents=True)
        self.port = free_port()
        self.ports = {"heavy": free_port(), "fast": free_port()}
        self.url = f"http://127.0.0.1:{self.port}"
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self.logs: dict[str, Any] = {}

    def write(self, **more: Any) -> None:
        """Put in place what the role would, from what a person would write."""
        written: dict[str, Any] = {
            "listen": "127.0.0.1",
            "port": self.port,
            "master_key_file": "keys/master",
            "clients": [{"name": "hermes", "key_file": "keys/hermes", "aliases": ["only"]}],
            "aliases": {
                "both": {"backends": ["spark-1/heavy", "spark-2/fast"], "routing": "balance"},
                "ordered": ["spark-1/heavy", "spark-2/fast"],
                "only": "spark-1/heavy",
            },
            "health_interval": 5,
            **more,
        }
        settings, messages = gateway.read("forge", written)
        fleet = [
            endpoints.make(
                "spark-1", "127.0.0.1", "heavy", "vllm", self.ports["heavy"], "0.0.0.0", api_key_file="keys/heavy"
            ),
            endpoints.make("spark-2", "127.0.0.1", "fast", "vllm", self.ports["fast"], "0.0.0.0"),
        ]
        planned, findings = gateway.plan("forge", settings, fleet)
        assert not messages and not findings
        contents = {"keys/master": "key of master", "keys/hermes": "key of hermes", "keys/heavy": "key-of-heavy"}
        for entry in planned["secrets"]:
            (self.secrets / entry["name"]).write_text(contents[entry["source"]] + "\n", encoding="utf-8")
        (self.config / "gateway.json").write_text(json.dumps(planned["settings"]), encoding="utf-8")
        (self.config / "litellm.yaml").write_text(json.dumps(planned["config"]), encoding="utf-8")

    def start(self, name: str, *command: str) -> None:
        self.logs[name] = (self.folder / f"{name}.log").open("ab")
        self.programs[name] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.logs[name], stderr=self.logs[name]
        )

    def start_backend(self, name: str) -> None:
        key = "key-of-heavy" if name == "heavy" else ""
        self.start(
            name, sys.executable, str(HERE / "standin.py"), str(self.ports[name]), name, "--pace", "0.3", "--key", key
        )
        until(lambda: self.get(f"http://127.0.0.1:{self.ports[name]}/metrics")[0] == 200, f"backend {name}")

    def stop(self, name: str) -> None:
        program = self.programs.pop(name)
        program.terminate()
        program.wait(timeout=60)

    def serve(self) -> None:
        folders = ["--config", self.config, "--secrets", self.secrets, "--run", self.run]
        options = ["--listen", "127.0.0.1", "--port", self.port, "--stop-seconds", 10, *folders]
        self.start("gateway", PYTHON, str(FILES / "container" / "serve.py"), *map(str, options))
        assert self.helper("ready", self.url, "--timeout", str(PATIENCE))["names"]

    def helper(self, *words: str, fails: bool = False) -> Any:
        folders = ["--config", self.config, "--run", self.run, "--secrets", self.secrets, "--code", FILES / "container"]
        done = subprocess.run(
            [sys.executable, str(FILES / "spark_gateway.py"), *map(str, folders), "--json", *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(FILES.parents[2] / "collections")},
        )
        assert (done.returncode != 0) == fails, done.stderr + done.stdout + self.log("gateway")
        return done.stderr if fails else json.loads(done.stdout.splitlines()[-1])

    def reload(self, fails: bool = False) -> Any:
        return self.helper(
            "reload", "--timeout", str(PATIENCE), "--pid", str(self.programs["gateway"].pid), fails=fails
        )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-4000:]

    def get(self, url: str, key: str = "", body: Any = None) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers={**headers, "content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def ask(
        self, model: str, key: str = "key of master", path: str = "chat/completions", **more: Any
    ) -> tuple[int, str]:
        body = {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}], **more}
        return self.get(f"{self.url}/v1/{path}", key, body)

    def stream(self, model: str, content: str) -> list[tuple[float, str]]:
        """The lines of a stream, each with the seconds after which it came."""
        body = {"model": model, "max_tokens": 2, "stream": True, "messages": [{"role": "user", "content": content}]}
        headers = {"authorization": "Bearer key of master", "content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        began, lines = time.monotonic(), []
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                for line in answer:
                    lines.append((time.monotonic() - began, line.decode().strip()))
        except urllib.error.HTTPError as error:
            lines.append((time.monotonic() - began, f"HTTP {error.code}: {error.read().decode()[:500]}"))
        return [(at, line) for at, line in lines if line]

    def count(self, name: str) -> int:
        """Requests that a backend has served."""
        text = self.get(f"http://127.0.0.1:{self.ports[name]}/metrics")[1]
        return int(next(line.split()[-1] for line in text.splitlines() if line.startswith("standin_served")))

    def waited(self) -> int:
        """Requests that have waited for a backend to be admitted."""
        lines = self.get(f"{self.url}/metrics/")[1].splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("dgxspark_gateway_queue_total{"))

    @contextlib.contextmanager
    def load(self, *models: str, clients: int = 200) -> Iterator[list[dict[str, Any]]]:
        """Keep requests under way while the block runs; what became of them is in the list afterwards."""
        end = self.folder / f"end-{time.monotonic_ns()}"
        key = self.folder / "master"
        key.write_text("key of master\n", encoding="utf-8")
        words = [word for model in models for word in ("--model", model)]
        result: list[dict[str, Any]] = []
        with subprocess.Popen(
            [sys.executable, str(HERE / "load.py"), self.url, *words, "--key-file", str(key), "--clients", str(clients),
             "--tokens", "8", "--seconds", "600", "--until", str(end)],
            stdout=subprocess.PIPE, text=True,
        ) as program:  # fmt: skip
            assert program.stdout is not None
            program.stdout.readline()
            try:
                yield result
            finally:
                end.touch()
                result.append(json.loads(program.stdout.read().splitlines()[-1]))

    def end(self) -> None:
        for name in list(self.programs):
            program = self.programs[name]
            program.terminate()
            try:
                program.wait(timeout=30)
            except subprocess.TimeoutExpired:
                program.send_signal(signal.SIGKILL)
        for log in self.logs.values():
            log.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        site.write()
        for name in ("heavy", "fast"):
            site.start_backend(name)
        site.serve()
        yield site
    finally:
        site.end()


def test_keys_open_what_they_are_for(site: Site) -> None:
    assert site.get(f"{site.url}/health/readiness")[0] == 200
    assert site.get(f"{site.url}/v1/models")[0] == 401
    assert site.get(f"{site.url}/v1/models", "key of hermez")[0] == 401
    names = {entry["id"] for entry in json.loads(site.get(f"{site.url}/v1/models", "key of master")[1])["data"]}
    assert names == {"both", "ordered", "only", "heavy", "fast"}
    names = {entry["id"] for entry in json.loads(site.get(f"{site.url}/v1/models", "key of hermes")[1])["data"]}
    assert names == {"only"}
    assert site.ask("only", "key of hermes")[0] == 200
    for path in ("chat/completions", "messages"):
        assert site.ask("both", "key of hermes", path)[0] == 403
        assert site.ask("both", "key of master", path)[0] == 200
    status, text = site.ask("nothing")
    assert status in (400, 404) and "nothing" in text
    # LiteLLM's management wants a database that is not there; nothing of it is in reach.
    for path in ("key/generate", "model/new", "config/yaml", "ui", "routes", "health", "v1/files", ""):
        assert site.get(f"{site.url}/{path}", "key of master")[0] == 404, path
    size = 65 * 1024 * 1024
    status, text = site.get(f"{site.url}/v1/chat/completions", "key of master", "x" * size)
    assert status in (0, 413), text


def test_metrics_name_backends_and_clients_and_no_key(site: Site) -> None:
    assert site.ask("only", "key of hermes")[0] == 200
    wanted = ['dgxspark_gateway_backend_healthy{backend="spark-1/heavy"} 1.0', 'api_key_alias="hermes"']
    text = until(
        lambda: next((t for t in [site.get(f"{site.url}/metrics")[1]] if all(w in t for w in wanted)), ""), "metrics"
    )
    assert "key of" not in text and "key-of" not in text
    assert "litellm_deployment_success_responses_total{" in text
    environment = Path(f"/proc/{site.programs['gateway'].pid}/environ").read_bytes()
    assert b"key of" not in environment and b"key-of" not in environment


def test_what_a_run_left_drained_is_admitted_by_the_next(site: Site) -> None:
    """A start took longer than the run waited for: the backend came up, and nobody had it admitted."""
    site.helper("drain", "spark-1/heavy")
    site.stop("heavy")
    settled = site.helper("ready", site.url, "--admit")
    assert not settled["changed"] and settled["left"]["spark-1/heavy"].startswith("it does not answer: ")
    assert site.helper("status")["backends"]["spark-1/heavy"]["drained_since"]
    site.start_backend("heavy")
    settled = site.helper("ready", site.url, "--admit")
    assert settled["changed"] and settled["admitted"] == ["spark-1/heavy"] and settled["left"] == {}
    assert site.ask("only")[0] == 200
    assert not site.helper("ready", site.url, "--admit")["changed"]


def test_with_two_backends_one_is_restarted_and_no_request_fails_or_waits(site: Site) -> None:
    waited = site.waited()
    with site.load("both", "ordered") as result:
        until(lambda: site.helper("status")["backends"]["spark-1/heavy"]["running"] >= 50, "work for both")
        drained = site.helper("drain", "spark-1/heavy")
        assert drained["changed"] and drained["drained"] == ["spark-1/heavy"]
        before = site.count("fast")
        site.stop("heavy")
        # As many as there are clients.
        until(lambda: site.count("fast") >= before + 200, "work for the other backend")
        site.start_backend("heavy")
        assert site.count("heavy") == 0
        assert site.helper("admit", "spark-1/heavy")["changed"]
        until(lambda: site.count("heavy") > 50, "work for the backend that is back")
    assert result[0]["failed"] == 0, result
    assert result[0]["most_under_way"] == 200
    assert site.waited() == waited


def test_with_one_backend_all_requests_wait_while_it_is_restarted_and_none_fails(site: Site) -> None:
    waited = site.waited()
    with site.load("only") as result:
        until(lambda: site.helper("status")["backends"]["spark-1/heavy"]["running"] >= 50, "work")
        assert site.helper("drain", "spark-1/heavy")["changed"]
        site.stop("heavy")
        until(lambda: site.helper("status")["queued"] == 200, "the queue")
        assert site.helper("drain", "spark-1/heavy")["changed"] is False
        site.start_backend("heavy")
        assert site.count("heavy") == 0
        assert site.helper("admit", "spark-1/heavy")["changed"]
        until(lambda: site.count("heavy") >= 200, "answers to those that waited")
    assert result[0]["failed"] == 0, result
    assert result[0]["most_under_way"] == 200
    assert site.waited() >= waited + 200
    assert site.helper("status")["queued"] == 0


def test_a_configuration_is_taken_over_under_load(site: Site) -> None:
    before = site.helper("status")["supervisor"]
    with site.load("both", "only") as result:
        time.sleep(2)
        aliases = {"both": "spark-2/fast", "ordered": ["spark-1/heavy", "spark-2/fast"], "only": "spark-1/heavy"}
        assert site.helper("status")["stale"] == ""
        site.write(serve="none", aliases={**aliases, "new": "spark-2/fast"}, queue_seconds=3)
        assert site.helper("status")["stale"] == "reload"
        done = site.reload()
        assert site.helper("status")["stale"] == ""
        assert done["generation"] > before["generation"]
        # The one before goes once its last stream has ended; the load goes on until then.
        until(lambda: not site.helper("status")["supervisor"]["leaving"], "the end of the process before")
    assert result[0]["failed"] == 0, result
    assert result[0]["most_under_way"] == 200
    names = {entry["id"] for entry in json.loads(site.get(f"{site.url}/v1/models", "key of master")[1])["data"]}
    assert names == {"both", "ordered", "only", "new"}


def test_a_configuration_that_litellm_refuses_changes_nothing(site: Site) -> None:
    (site.config / "gateway.json").write_text("{", encoding="utf-8")
    said = site.reload(fails=True)
    assert "was not taken over" in said and "did not start" in said
    assert site.ask("new")[0] == 200
    site.write()  # for the helper; the gateway goes on with what it has


def test_a_stream_that_is_silent_gets_comments_before_its_first_token(site: Site) -> None:
    """An engine that reads a long prompt sends nothing; what counts the bytes of a connection must not take it for dead."""
    site.write(keepalive_seconds=1)
    site.reload()
    lines = site.stream("only", "prefill 5")
    first = next(at for at, line in lines if line.startswith("data: "))
    comments = [at for at, line in lines if line.startswith(":") and at < first]
    assert first >= 5 and len(comments) >= 3 and comments[0] < 3, lines
    assert lines[-1][1] == "data: [DONE]" and "heavy1" in str(lines)
    # One that is not silent has none.
    assert not [line for _at, line in site.stream("only", "Hello") if line.startswith(":")]


def test_each_model_has_a_limit_of_its_own(site: Site) -> None:
    """A short one of one backend leaves the others as they are: so long prompts of a long context are waited for."""
    site.write(keepalive_seconds=0, retries=0)
    path = site.config / "litellm.yaml"
    config = json.loads(path.read_text(encoding="utf-8"))
    for entry in config["model_list"]:
        if entry["model_info"]["backend"] == "spark-2/fast":
            entry["litellm_params"].update(timeout=2, stream_timeout=2)
    path.write_text(json.dumps(config), encoding="utf-8")
    site.reload()
    at, line = site.stream("fast", "prefill 15")[-1]
    assert line.startswith("HTTP 408") and at < 10, (at, line)  # LiteLLM tries it more than once
    assert site.stream("heavy", "prefill 10")[-1][1] == "data: [DONE]"
    site.write()
    site.reload()


def test_a_backend_that_is_gone_costs_no_request(site: Site) -> None:
    """Nobody has drained it: requests go elsewhere before their first token, and later ones are not sent there at all."""
    until(lambda: not site.helper("status")["backends"]["spark-1/heavy"]["wrong"], "a healthy backend")
    site.stop("heavy")
    with site.load("ordered", clients=20) as result:
        until(lambda: site.helper("status")["backends"]["spark-1/heavy"]["wrong"], "the backend put aside")
        site.start_backend("heavy")
        until(lambda: not site.helper("status")["backends"]["spark-1/heavy"]["wrong"], "the backend back")
        until(lambda: site.count("heavy") > 20, "work for it")
    assert result[0]["failed"] == 0, result


def test_who_waits_for_ever_is_told_and_who_has_gone_is_forgotten(site: Site) -> None:
    site.write(queue_seconds=3)
    site.reload()
    site.helper("drain", "spark-1/heavy")
    status, text = site.ask("only")
    assert status == 503 and "drained" in text and "spark-1/heavy" in text
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        body = json.dumps({"model": "only", "messages": [{"role": "user", "content": "Hello"}]})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer key of master\r\ncontent-length: {len(body)}"
        client.sendall(f"{head}\r\ncontent-type: application/json\r\n\r\n{body}".encode())
        until(lambda: site.helper("status")["queued"] == 1, "the one that waits")
    until(lambda: site.helper("status")["queued"] == 0, "the end of its waiting")
    said = site.helper("drain", "spark-1/hevy", fails=True)
    assert "did you mean spark-1/heavy?" in said
    site.helper("admit", "spark-1/heavy")
    assert site.ask("only")[0] == 200
