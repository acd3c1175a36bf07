# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Helper of spark-gateway.service on the host.

    spark_gateway.py drain KEY [--timeout SECONDS]   stop new requests for a backend; wait for the end of its requests
                           [--hold]                  and prevent runs of site.yml from admitting it
                           [--spare-last]            unless a name would be left without a backend
    spark_gateway.py admit KEY                       send requests to the backend again
    spark_gateway.py status                          list backends with their requests and drained backends
    spark_gateway.py reload                          load the current files without losing a request
    spark_gateway.py prepare | ready                 for the unit: create folders before a start, wait for the first answer
    spark_gateway.py ready URL --admit               for the role: also admit drained backends that answer

KEY is host/service, as `status` lists it. The last line of standard output is the result as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fcntl
import hashlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # it runs as root from /usr/local/lib, where only installed files belong

from dgxspark_vllm._common import reader
from dgxspark_vllm._common.foreign_text import Untrusted, parse_json
from dgxspark_vllm._common.reader import SIZE
from dgxspark_vllm._runtime import command, endpoint, engine_client, http_client, state_file

CONTAINER = "spark-gateway"
POLL_SECONDS = 0.5
RUNNING = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)
SEEN_SECONDS = 15.0
"""A process of the gateway reads the list of drained backends twice a second; a process that does not has ended."""
MOST_BYTES = 2**20
ODD = "Start the gateway anew: systemctl restart spark-gateway"
SUPERVISOR = {
    "generation": SIZE,
    "fingerprint": str,
    "pid": SIZE,
    "starting": SIZE,
    "last": SIZE,
    "code": str,
    "error": str,
    Any: Any,
}
CHILD = {
    "pid": SIZE,
    "leaving": bool,
    "drained": [str],
    "running": {str: SIZE},
    "queued": SIZE,
    "unhealthy": {str: str},
}
TOOLS = {"fingerprint": str, "proved": [str]}
DRAINED = {"since": {str: str}, "held": [str]}


class GatewayError(Exception):
    """An error for a person; ends the program without a traceback."""


def read(path: Path) -> Any:
    """Return the contents of a JSON file, C(None) for a missing file and while the file is replaced.

    The processes of the gateway write some of these files, so their contents are untrusted: this reads only regular files of a limited
    size, without waiting and without following links.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise GatewayError(f"{path} cannot be read: {error.strerror}. {ODD}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise GatewayError(f"{path} is no regular file. {ODD}")
    with os.fdopen(descriptor, "rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise GatewayError(f"{path} has more than {MOST_BYTES} bytes. {ODD}")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def shaped(path: Path, form: dict[Any, Any]) -> dict[str, Any] | None:
    """Return a JSON file of a form of C(reader.py), C(None) for a missing file."""
    content = read(path)
    if content is None:
        return None
    try:
        return dict(reader.read(form, content, "it"))
    except Untrusted as error:
        raise GatewayError(f"{path} is not what the gateway writes: {error}. {ODD}") from error


def plain(text: str) -> str:
    """Return a foreign text for a terminal, with control characters escaped."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def fetch(url: str, key: str = "", timeout: float = 5.0, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """Return the status and the body of a request; 0 and the reason without an answer."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    data = None if body is None else json.dumps(body).encode()
    headers.update({"content-type": "application/json"} if data else {})
    try:
        answer = http_client.fetch(url, "POST" if data else "GET", headers, data, timeout)
    except OSError as error:
        return 0, str(error)
    return answer.status, answer.body.decode(errors="replace")


def fingerprint(*folders: Path) -> str:
    """Return the checksum of the names and contents of all files, as serve.py does."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if path.is_file() and not path.name.startswith("."):
                digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


class Gateway:
    """The gateway of this host, with its files."""

    def __init__(self, config: Path, run: Path, secrets: Path, code: Path) -> None:
        self.config, self.run, self.secrets, self.code = config, run, secrets, code
        self.drained_file = run / "drained.json"

    def settings(self) -> dict[str, Any]:
        settings = read(self.config / "gateway.json")
        if not isinstance(settings, dict):
            raise GatewayError(
                f"{self.config / 'gateway.json'} is missing or cannot be read: is this the host of the gateway?"
            )
        return settings

    def key(self, file: str | None) -> str:
        """Return the key in a file of the folder of secrets, empty without a file."""
        return (self.secrets / file).read_text(encoding="utf-8").strip() if file else ""

    def master(self) -> str:
        """Return the master key, empty for a gateway without keys."""
        return self.key(next((key["file"] for key in self.settings()["keys"] if key["role"] == "master"), None))

    def backend(self, key: str) -> dict[str, Any]:
        backends = self.settings()["backends"]
        if key not in backends:
            near = difflib.get_close_matches(key, backends, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise GatewayError(f"the gateway has no backend {key}{hint} It has: {', '.join(sorted(backends))}.")
        return dict(backends[key])

    def drained(self) -> dict[str, str]:
        """Return the drained backends with the time of their drain."""
        return dict((shaped(self.drained_file, DRAINED) or {}).get("since") or {})

    def held(self) -> set[str]:
        """Return the backends that a person keeps drained beyond a run of site.yml."""
        return set((shaped(self.drained_file, DRAINED) or {}).get("held") or [])

    @contextlib.contextmanager
    def draining(self, key: str) -> Iterator[bool]:
        """Lock a backend; yields false while another helper drains it."""
        self.run.mkdir(parents=True, exist_ok=True)
        with (self.run / f"draining-{hashlib.sha256(key.encode()).hexdigest()[:16]}").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True

    @contextlib.contextmanager
    def changing(self, hold: str = "") -> Iterator[dict[str, str]]:
        """Change the list of drained backends, with a lock against other helpers. hold: a backend to keep drained."""
        self.run.mkdir(parents=True, exist_ok=True)
        with (self.run / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            since = self.drained()
            before, held = dict(since), self.held()
            yield since
            new_held = (held | {hold}) & set(since)
            if since != before or new_held != held or not self.drained_file.exists():
                text = json.dumps({"drained": sorted(since), "since": since, "held": sorted(new_held)}, indent=1)
                state_file.write_text(self.drained_file, text + "\n")

    def children(self) -> list[dict[str, Any]]:
        """Return the states of all serving processes, and of processes that finish their last requests."""
        states = [shaped(path, CHILD) for path in sorted((self.run / "state").glob("child-*.json"))]
        return [state for state in states if state is not None]

    def stale(self) -> str:
        """Return the action that makes the gateway use the current files: C(reload), C(restart), or an empty text."""
        supervisor = self.supervisor()
        code = self.code / "serve.py"
        if not self.runs() or not code.exists():
            return ""
        if supervisor["code"] != hashlib.sha256(code.read_bytes()).hexdigest()[:16]:
            return "restart"
        return "" if supervisor["fingerprint"] == fingerprint(self.config, self.secrets, self.code) else "reload"

    def supervisor(self) -> dict[str, Any]:
        return shaped(self.run / "state" / "supervisor.json", SUPERVISOR) or {}

    def runs(self) -> bool:
        return bool(self.supervisor().get("pid")) and bool(self.children())

    def running(self, key: str) -> int:
        return sum(int(child["running"].get(key, 0)) for child in self.children())


def engine_requests(backend: dict[str, Any]) -> int | None:
    """Return the number of all requests in an engine, C(None) for a server without that metric and without an answer."""
    if backend["kind"] != "vllm":
        return None
    status, text = fetch(f"{backend['url']}/metrics")
    numbers = RUNNING.findall(text) if status == 200 else []
    try:
        return int(sum(float(number) for number in numbers)) if numbers else None
    except (ValueError, OverflowError):
        return None


def drain(gateway: Gateway, key: str, timeout: float, hold: bool = False, spare: bool = False) -> dict[str, Any]:
    """Give a backend no new requests, and wait for the end of its requests.

    timeout: seconds. hold: no run of site.yml admits it. spare: refuse if a name would be left without a backend.
    """
    backend = gateway.backend(key)
    if spare:
        unhealthy = {name for child in gateway.children() if not child["leaving"] for name in child["unhealthy"]}
        gone = {key, *gateway.drained(), *unhealthy}
        routes = gateway.settings()["routes"]
        alone = sorted(name for name, keys in routes.items() if key in keys and not set(keys) - gone)
        if alone:
            raise GatewayError(f"{key} is the last backend of {', '.join(alone)}, so it is not drained.")
    with gateway.draining(key):
        with gateway.changing(key if hold else "") as since:
            changed = key not in since
            since.setdefault(key, time.strftime("%Y-%m-%dT%H:%M:%S%z"))
        return until_quiet(gateway, key, backend, timeout, changed)


def until_quiet(gateway: Gateway, key: str, backend: dict[str, Any], timeout: float, changed: bool) -> dict[str, Any]:
    """Wait until a drained backend has finished its requests."""
    begin = time.monotonic()
    quiet = 0
    while True:
        waited = time.monotonic() - begin
        unseen = [child for child in gateway.children() if key not in child["drained"]]
        if unseen and waited > SEEN_SECONDS:
            pids = ", ".join(str(child["pid"]) for child in unseen)
            raise GatewayError(
                f"{key} is drained, but process {pids} of the gateway does not notice: journalctl -u {CONTAINER}"
            )
        gateway_count, engine_count = gateway.running(key), engine_requests(backend)
        quiet = 0 if unseen or gateway_count or engine_count else quiet + 1
        # Twice in a row: the counts include a request from a moment before only then.
        if quiet >= 2:
            return {
                "changed": changed,
                "key": key,
                "drained": sorted(gateway.drained()),
                "waited_seconds": round(waited, 1),
            }
        if waited > timeout:
            engine = "does not say" if engine_count is None else f"counts {engine_count}"
            raise GatewayError(
                f"{key} still works after {timeout:.0f} s: {gateway_count} requests of the gateway, the engine {engine}. It stays drained; "
                "wait on, end the requests, or admit it again."
            )
        time.sleep(POLL_SECONDS)


def admit(gateway: Gateway, key: str) -> dict[str, Any]:
    if key not in gateway.drained():  # a backend that has left the gateway may still be drained
        gateway.backend(key)
    with gateway.changing() as since:
        changed = since.pop(key, None) is not None
    begin = time.monotonic()
    while any(key in child["drained"] for child in gateway.children()):
        if time.monotonic() - begin > SEEN_SECONDS:
            raise GatewayError(f"{key} is admitted, but the gateway does not notice: journalctl -u {CONTAINER}")
        time.sleep(POLL_SECONDS)
    return {"changed": changed, "key": key, "drained": sorted(gateway.drained())}


def wrong_with(gateway: Gateway, backend: dict[str, Any]) -> str:
    """Return why a backend does not answer, empty if it does; with a request for one token or for its health, like the gateway's check."""
    settings = gateway.settings()
    key = gateway.key(settings["backend_keys"].get(backend["key"] or ""))
    limit = float(settings["health_timeout"])
    if backend["check"] == "completion":
        body = {"model": backend["model"], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        code, text = fetch(f"{backend['url']}/v1/chat/completions", key, limit, body)
        good = code in (
            200,
            400,
            405,
            422,
            501,
        )  # a model without a chat template rejects the request, which is an answer
    else:
        code, text = fetch(backend["url"] + backend["check"], key, limit)
        good = code == 200
    return "" if good else f"HTTP {code}" if code else text


def settle(gateway: Gateway) -> dict[str, Any]:
    """Admit backends that answer and that an interrupted run has left drained."""
    admitted, still_drained = [], {}
    backends = gateway.settings()["backends"]
    for key in sorted(gateway.drained()):
        with gateway.draining(key) as free:
            if not free:
                still_drained[key] = "it is being drained"
            elif key in gateway.held():
                still_drained[key] = "it is held: admit it by hand"
            else:
                wrong = wrong_with(gateway, backends[key]) if key in backends else ""
                if wrong:
                    still_drained[key] = f"it does not answer: {wrong}"
                else:
                    admit(gateway, key)
                    admitted.append(key)
    return {"changed": bool(admitted), "admitted": admitted, "left": still_drained}


def status(gateway: Gateway) -> dict[str, Any]:
    settings, drained, held, children = gateway.settings(), gateway.drained(), gateway.held(), gateway.children()
    unhealthy = {key: text for child in children if not child["leaving"] for key, text in child["unhealthy"].items()}
    backends = {
        key: {
            "url": backend["url"],
            "running": gateway.running(key),
            "drained_since": drained.get(key, ""),
            "held": key in held,
            "wrong": unhealthy.get(key, ""),
        }
        for key, backend in settings["backends"].items()
    }
    queued = sum(int(child["queued"]) for child in children)
    return {
        "changed": False,
        "runs": gateway.runs(),
        "stale": gateway.stale(),
        "queued": queued,
        "backends": backends,
        "supervisor": gateway.supervisor(),
    }


def show(result: dict[str, Any]) -> None:
    """Print the result of C(status)."""
    supervisor = result["supervisor"]
    print(
        f"gateway {'serves' if result['runs'] else 'does not run'}, configuration {supervisor.get('generation', 0)} since its start"
    )
    if supervisor.get("error"):
        print(f"  the last one was not taken over: {plain(supervisor['error'])}")
    if result["stale"]:
        print(f"  its files have changed since: systemctl {result['stale']} {CONTAINER}")
    print(f"  {result['queued']} requests wait for a backend")
    for key, backend in sorted(result["backends"].items()):
        state = (
            f"drained since {backend['drained_since']}{', held' if backend['held'] else ''}"
            if backend["drained_since"]
            else backend["wrong"] or "serves"
        )
        print(f"  {key:32} {backend['running']:4} requests  {backend['url']:32} {plain(state)}")


def reload(gateway: Gateway, timeout: float, signal: list[str]) -> dict[str, Any]:
    """Make the gateway load its files, and wait until it uses or rejects them."""
    before = gateway.supervisor()
    if not before:
        raise GatewayError("the gateway does not run: there is nothing to reload (systemctl start spark-gateway)")
    begin = time.monotonic()
    outcome = command.run(signal, timeout)
    if outcome.rc:
        raise GatewayError(
            f"the gateway cannot be told to reload: {outcome.why or outcome.err.strip() or f'exit code {outcome.rc}'}"
        )
    while time.monotonic() - begin < timeout:
        now = gateway.supervisor()
        if now.get("last", 0) > before["last"] and not now["starting"]:
            if now["generation"] == now["last"]:
                return {"changed": True, "generation": now["generation"], "seconds": round(time.monotonic() - begin, 1)}
            raise GatewayError(
                f"the new configuration was not taken over, the gateway goes on with the one before: {now['error']}"
            )
        time.sleep(POLL_SECONDS)
    raise GatewayError(f"the gateway did not answer to the reload within {timeout:.0f} s: journalctl -u {CONTAINER}")


def prepare(gateway: Gateway, owner: int) -> dict[str, Any]:
    """Create the folders in /run, which a boot empties. Drained backends stay drained over a restart; a boot admits them."""
    state = gateway.run / "state"
    state.mkdir(parents=True, exist_ok=True)
    gateway.run.chmod(0o755)
    for old in state.glob("*.json"):
        with contextlib.suppress(OSError):  # the processes of the gateway may have created a folder of that name
            old.unlink()
    os.chown(state, owner, owner)
    state.chmod(0o755)
    return {"changed": False}


def ready(gateway: Gateway, url: str, timeout: float) -> dict[str, Any]:
    """Wait until the gateway lists all of its names."""
    settings, key = gateway.settings(), gateway.master()
    begin = time.monotonic()
    main = os.environ.get("MAINPID")
    last = "nothing answered"
    while time.monotonic() - begin < timeout:
        if main and not Path(f"/proc/{main}").exists():
            raise GatewayError(f"the gateway ended before it answered: journalctl -u {CONTAINER}")
        code, text = fetch(f"{url}/v1/models", key)
        if code == 200:
            try:
                names = {str(entry["id"]) for entry in parse_json(text, url)["data"]}
            except (ValueError, KeyError, TypeError):
                names = set()
            missing = sorted(set(settings["names"]) - names)
            if not missing:
                return {"changed": False, "names": sorted(names), "seconds": round(time.monotonic() - begin, 1)}
            last = f"it does not list {', '.join(missing)}"
        else:
            last = f"HTTP {code}" if code else text
        time.sleep(POLL_SECONDS)
    raise GatewayError(f"the gateway did not answer at {url} within {timeout:.0f} s: {last}")


def prove_tools(gateway: Gateway, url: str, timeout: float) -> dict[str, Any]:
    """Request a tool call through the gateway from each name whose engines support tools, once per configuration.

    The gateway may break tool calls of an engine: by a parameter that it drops, or by an alias of another model. A missing answer proves
    nothing about tools.
    """
    settings = gateway.settings()
    names = settings.get("tools") or []
    mark, note = fingerprint(gateway.config, gateway.secrets, gateway.code), gateway.run / "tools.json"
    before = shaped(note, TOOLS) if note.exists() else None
    proved = list(before["proved"]) if before and before["fingerprint"] == mark else []
    client = engine_client.Client(url, gateway.master())
    unknown: dict[str, str] = {}
    for name in sorted(set(names) - set(proved)):
        try:
            endpoint.call_a_tool(client, name, timeout)
        except engine_client.Problem as problem:
            if problem.kind == "length" or (problem.kind != "answer" and problem.status not in (400, 422)):
                unknown[name] = plain(problem.message)
                continue
            raise GatewayError(
                f"the alias {name} does not call tools: {problem.message}. Its engines were proved to do so: name one whose recipe "
                f"promises tools as its backend, or correct what stands between ({problem.fix})"
            ) from problem
        proved.append(name)
    text = json.dumps({"fingerprint": mark, "proved": sorted(set(proved) & set(names))})
    state_file.write_text(note, text)
    return {"tools": sorted(set(proved) & set(names)), "tools_unknown": unknown}


def run_verb(gateway: Gateway, options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb of the command line; returns its result."""
    if options.verb == "drain":
        return drain(gateway, options.key, options.timeout, options.hold, options.spare_last)
    if options.verb == "admit":
        return admit(gateway, options.key)
    if options.verb == "reload":
        signal = ["kill", "-HUP", str(options.pid)] if options.pid else []
        return reload(gateway, options.timeout, signal or ["docker", "kill", "--signal", "HUP", CONTAINER])
    if options.verb == "prepare":
        return prepare(gateway, options.owner)
    if options.verb == "status":
        return status(gateway)
    result = ready(gateway, options.url, options.timeout)
    if options.admit:
        result.update(settle(gateway))
        result.update(prove_tools(gateway, options.url, options.timeout))
    return result


def main(values: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="spark_gateway.py", description="Helper of spark-gateway.service.")
    parser.add_argument("--config", type=Path, default=Path("/etc/dgxspark/gateway"))
    parser.add_argument("--run", type=Path, default=Path("/run/dgxspark/gateway"))
    parser.add_argument("--secrets", type=Path, default=Path("/etc/dgxspark/secrets/gateway"))
    parser.add_argument("--code", type=Path, default=Path("/usr/local/lib/dgxspark/gateway"))
    parser.add_argument("--json", action="store_true", help="nothing but the JSON")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("drain", "admit"):
        verb = verbs.add_parser(name)
        verb.add_argument("key")
        if name == "drain":
            verb.add_argument("--timeout", type=float, default=1800)
            verb.add_argument("--hold", action="store_true", help="no run of site.yml is to admit it")
            verb.add_argument("--spare-last", action="store_true", help="not if a name would be left without a backend")
    verbs.add_parser("status")
    verb = verbs.add_parser("reload")
    verb.add_argument("--timeout", type=float, default=300)
    verb.add_argument("--pid", type=int, help="process to signal instead of the container's")
    verb = verbs.add_parser("prepare")
    verb.add_argument("--owner", type=int, required=True)
    verb = verbs.add_parser("ready")
    verb.add_argument("url")
    verb.add_argument("--timeout", type=float, default=240)
    verb.add_argument("--admit", action="store_true", help="admit what was left drained and answers")
    options = parser.parse_args(values)
    gateway = Gateway(options.config, options.run, options.secrets, options.code)
    try:
        result = run_verb(gateway, options)
    except GatewayError as error:
        print(f"spark_gateway: {plain(str(error))}", file=sys.stderr)
        return 1
    if options.verb == "status" and not options.json:
        show(result)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
