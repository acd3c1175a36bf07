# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs LiteLLM inside the container of the gateway, and loads a new configuration without losing a request.

The supervisor only holds the listening socket; a child serves. SIGHUP starts a second child on the same socket with the current files. Once
it answers, the first child stops accepting, finishes its requests and ends. If the second child does not start, the first stays: a
configuration that LiteLLM rejects costs no request.

    serve.py --listen ADDRESS --port PORT [--config FOLDER] [--secrets FOLDER] [--run FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import resource
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

BACKLOG = 2048
START_SECONDS = 240
"""A start that takes longer has failed; importing LiteLLM takes 5 to 30 s."""
KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections, so that clients close them and no request meets a closing connection."""
LEAVE_SECONDS = 7200
"""A replaced child is killed after this time, even with running streams."""
LINGER_SECONDS = 20
"""Idle connections of a leaving child are closed after this time; busy connections close with their next answer."""
OFFLINE = {
    # No downloads and no telemetry.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_LOCAL_AUTOROUTER_PRESETS": "True",
    "LITELLM_TELEMETRY": "False",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    # No web pages: the configuration is in files only.
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
    "NO_REDOC": "True",
    "NO_OPENAPI": "True",
    # No .env file of the working directory.
    "LITELLM_MODE": "PRODUCTION",
}


def say(text: str) -> None:
    print(f"gateway: {text}", file=sys.stderr, flush=True)


def fingerprint(*folders: Path) -> str:
    """Return the checksum of the names and contents of all files, to detect changes since the start."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if path.is_file() and not path.name.startswith("."):
                digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


# ---------------------------------------------------------------- the first process


class Child:
    """A child that serves or starts."""

    def __init__(self, command: list[str], listener: socket.socket, generation: int, mark: str) -> None:
        self.ready_fd, ready = os.pipe()
        self.generation, self.fingerprint, self.started = generation, mark, time.monotonic()
        self.process = subprocess.Popen(
            [*command, "--child", str(listener.fileno()), str(ready), str(generation)],
            pass_fds=(listener.fileno(), ready),
            stdin=subprocess.DEVNULL,
        )
        os.close(ready)

    def says_ready(self) -> bool | None:
        """Return true once it answers, false if it failed, C(None) while it starts."""
        if select.select([self.ready_fd], [], [], 0)[0]:
            return os.read(self.ready_fd, 1) == b"1"
        return False if time.monotonic() - self.started > START_SECONDS else None


class Supervisor:
    """Holds the socket; starts, replaces and ends the children."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.state = Path(options.run) / "state"
        self.serving: Child | None = None
        self.coming: Child | None = None
        self.leaving: list[Child] = []
        self.generation = 0
        self.error = ""
        # The code of the supervisor, which only a restart changes.
        self.code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
        self.reload = self.stop = False
        self.wake, self.poke = os.pipe()
        os.set_blocking(self.poke, False)

    def heard(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            self.reload = True
        elif number in (signal.SIGTERM, signal.SIGINT):
            self.stop = True
        with contextlib.suppress(BlockingIOError):
            os.write(self.poke, b"!")

    def begin(self, listener: socket.socket) -> None:
        self.generation += 1
        mark = fingerprint(Path(self.options.config), Path(self.options.secrets), Path(__file__).parent)
        self.coming = Child([sys.executable, *sys.argv], listener, self.generation, mark)

    def tell(self) -> None:
        """Write the state file for the helper on the host."""
        serving = self.serving
        state = {
            "generation": serving.generation if serving else 0,
            "fingerprint": serving.fingerprint if serving else "",
            "pid": serving.process.pid if serving else 0,
            "starting": self.coming.generation if self.coming else 0,
            "leaving": [child.process.pid for child in self.leaving],
            "last": self.generation,
            "code": self.code,
            "error": self.error,
        }
        draft = self.state / f".supervisor.json.{os.getpid()}"
        draft.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        draft.replace(self.state / "supervisor.json")

    def forget(self, child: Child) -> None:
        os.close(child.ready_fd)
        (self.state / f"child-{child.process.pid}.json").unlink(missing_ok=True)

    def look(self) -> int | None:
        """Act on changes of the children; an exit code ends the gateway."""
        if self.coming is not None:
            ready = self.coming.says_ready()
            if ready is False or (ready is None and self.coming.process.poll() is not None):
                code = self.give_up(self.coming)
                if code is not None:
                    return code
            elif ready:
                self.replace(self.coming)
        for child in list(self.leaving):
            if child.process.poll() is None:
                if time.monotonic() - child.started > LEAVE_SECONDS:
                    child.process.kill()
                continue
            self.leaving.remove(child)
            self.forget(child)
            self.tell()
        if self.serving is not None and self.serving.process.poll() is not None:
            code = self.serving.process.returncode
            say(f"generation {self.serving.generation} ended by itself (exit code {code})")
            return code or 1
        return None

    def give_up(self, child: Child) -> int | None:
        """Remove a child that did not start; returns an exit code if no other child serves."""
        if child.process.poll() is None:
            child.process.kill()
        code = child.process.wait()
        self.error = f"generation {child.generation} did not start (exit code {code}); the log says why"
        say(self.error)
        self.forget(child)
        self.coming = None
        if self.serving is None:
            return code or 1
        say(f"generation {self.serving.generation} goes on")
        self.tell()
        return None

    def replace(self, child: Child) -> None:
        """Make a child the serving one, and end the child that served before."""
        if self.serving is not None:
            self.serving.process.send_signal(signal.SIGTERM)
            self.serving.started = time.monotonic()
            self.leaving.append(self.serving)
        self.serving, self.coming, self.error = child, None, ""
        say(f"generation {child.generation} serves")
        self.tell()

    def run(self) -> int:
        """Listen, serve until a signal or a failure, and end all children; returns the exit code."""
        family = socket.AF_INET6 if ":" in self.options.listen else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.options.listen, self.options.port))
        except OSError as error:
            say(f"cannot listen on {self.options.listen} port {self.options.port}: {error.strerror}")
            return 1
        self.state.mkdir(parents=True, exist_ok=True)
        self.remove_states()
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, self.heard)
        self.begin(listener)
        # The kernel accepts connections from now on, and they wait for the child.
        self.tell()
        while True:
            code = self.look()
            if code is not None or self.stop:
                break
            if self.reload and self.coming is None:
                self.reload = False
                say("starting a child with the files as they are now")
                self.begin(listener)
                self.tell()
            waiting = [self.wake] + ([self.coming.ready_fd] if self.coming else [])
            select.select(waiting, [], [], 1.0)
            while select.select([self.wake], [], [], 0)[0]:
                os.read(self.wake, 64)
        listener.close()
        self.end_children()
        self.remove_states()
        return code or 0

    def remove_states(self) -> None:
        """Remove the state files of all processes."""
        for path in self.state.glob("*.json"):
            path.unlink()

    def end_children(self) -> None:
        """End all children; their requests have the time of C(--stop-seconds)."""
        children = [child for child in (self.serving, self.coming, *self.leaving) if child is not None]
        for child in children:
            child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self.options.stop_seconds
        for child in children:
            try:
                child.process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                say(
                    f"generation {child.generation} still has requests after {self.options.stop_seconds} s; they are cut off"
                )
                child.process.kill()
                child.process.wait()


# ---------------------------------------------------------------- the child


def serve_child(options: argparse.Namespace, listener_fd: int, ready_fd: int, generation: int) -> int:
    config, keys, run = Path(options.config), Path(options.secrets), Path(options.run)
    settings = json.loads((config / "gateway.json").read_text(encoding="utf-8"))
    os.environ.update(OFFLINE)
    os.environ["LITELLM_LOG"] = str(settings["log_level"]).upper()
    os.environ["CONFIG_FILE_PATH"] = str(config / "litellm.yaml")
    os.environ.setdefault("HOME", "/tmp")
    # Keys of backends are set inside this process, so that they are not in its environment at start.
    for name, file in settings["backend_keys"].items():
        os.environ[name] = (keys / file).read_text(encoding="utf-8").strip()
    # LiteLLM requires a master key. hooks.py checks all access, so this key is random and secret.
    os.environ["LITELLM_MASTER_KEY"] = "sk-" + secrets.token_urlsafe(32)
    # Docker may start containers with a limit of 1024 open files; each request takes two.
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))

    import asyncio

    import hooks
    import uvicorn

    hooks.prepare(settings, keys, run, generation)
    from litellm.proxy.proxy_server import app

    access = hooks.AccessControl(app)

    class Server(uvicorn.Server):
        """Reports when it answers; ends without breaking a busy connection."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            hooks.begin()
            os.write(ready_fd, b"1")

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for server in self.servers:
                server.close()
            access.leaving = True
            since = time.monotonic()
            while self.server_state.connections and (access.is_busy() or time.monotonic() - since < LINGER_SECONDS):
                await asyncio.sleep(0.1)
            await super().shutdown(sockets=sockets)

    server = Server(
        uvicorn.Config(
            access,
            http=hooks.Connection,
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=5,
            proxy_headers=False,
            server_header=False,
        )
    )
    server.run(sockets=[socket.socket(fileno=listener_fd)])
    return 0 if server.started else 1


def arguments(values: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="LiteLLM behind a socket that outlives its configuration")
    parser.add_argument("--listen", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--stop-seconds", type=float, default=60)
    parser.add_argument("--config", default="/etc/dgxspark/gateway")
    parser.add_argument("--secrets", default="/run/dgxspark/secrets")
    parser.add_argument("--run", default="/run/dgxspark/gateway")
    parser.add_argument("--child", nargs=3, type=int, help=argparse.SUPPRESS)
    return parser.parse_args(values)


def main() -> int:
    options = arguments(sys.argv[1:])
    if options.child:
        return serve_child(options, *options.child)
    return Supervisor(options).run()


if __name__ == "__main__":
    sys.exit(main())
