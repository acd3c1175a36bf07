# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The supervisor of one rank of a model that spans hosts: the main process of its unit (Type=notify).

spark-rank NAME           NAME is a file /etc/dgxspark/services/NAME.json with a rank in it

It meets the supervisors of the other hosts by UDP datagrams over the fabric, takes the start lock and the memory of its
host, runs the rank's containers as children, and tells systemd that the unit is active when the model has answered. When
one rank of the model is lost it stops its own and exits; systemd starts it again, and the ranks meet anew. Requests start
the first rank of a model on demand, and its datagrams the others: systemd hands over their sockets.

ranks.py has its decisions, this file its actions. One thread holds the sockets and the state; slow work
(Docker, the gate, the wait for an answer) runs in threads that report back, so that nothing delays a heartbeat.

Exit codes: 0 stopped on purpose, 1 start again (on demand: it failed), 78 do not start again (settings that cannot work, or too many failures).
Needs Python's standard library and the files in its folder alone.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import queue
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # as in spark_unit.py, which also finds the libraries

import spark_unit
from spark_unit import Stop, say

from dgxspark_vllm._common.foreign_text import parse_json
from dgxspark_vllm._runtime import command, endpoint, hostmem, kv_files, pins, ranks, start_stages, state_file
from dgxspark_vllm._runtime.systemd import handed_over, notify

RAY_NODES = Path(endpoint.__file__).with_name("ray_nodes.py")

DOCKER_SECONDS = 30.0  # for questions that Docker answers at once
MAX_DATAGRAM = 4096
GOODBYES = 3  # a last word may get lost
RECEIVES = 256  # datagrams at a time, so that no flood of them delays other work

NO_LINK = ("down", "lowerlayerdown", "notpresent")  # operstate of an interface


def docker(*words: str, seconds: float = DOCKER_SECONDS) -> tuple[bool, str]:
    """Run docker and return whether it worked, with its output or the reason."""
    answer = command.run(["docker", *words], seconds)
    if answer.state != command.FINISHED:
        return False, f"{answer.why} (docker {words[0]})"
    return answer.rc == 0, " ".join((answer.err if answer.rc else answer.out).split())


def look_for_facts(image: str, model: dict[str, Any] | None) -> ranks.Facts:
    """Return the image and the weights that this host would run."""
    template = "{{.Id}} {{json .RootFS.Layers}} {{json .Config.Env}} {{json .Config.Entrypoint}} {{json .Config.Cmd}}"
    is_present, text = docker("image", "inspect", "--format", template, "--", image)
    if not is_present and "no such" not in text.lower():
        return ranks.Facts(problem=f"whether the image {image} is there is not known: {text[:200]}")
    if not is_present:
        return ranks.Facts(problem=f"the image {image} is not there ({text[:120]}); run site.yml or docker pull there")
    number, _space, content = text.partition(" ")
    facts = ranks.Facts(image=number, content=hashlib.sha256(content.encode()).hexdigest()[:16])
    if not model or not model.get("repo"):
        return facts
    revision = str(model.get("revision") or "main")
    hub, repo = Path(str(model["hub"])), str(model["repo"])
    try:
        commit = kv_files.commit_of(hub, repo, revision)
    except OSError:
        return facts
    folder = hub / f"models--{repo.replace('/', '--')}" / "snapshots" / revision
    return replace(facts, commit=commit) if commit != revision or folder.is_dir() else facts


def links_out(links: tuple[ranks.Link, ...], sys_net: Path) -> list[ranks.Link]:
    """Return the broken links. An unreadable state counts as unbroken; a missing interface is broken, as a card without a cable leaves the bus."""
    out = []
    for link in links:
        try:
            state = (sys_net / link.netdev / "operstate").read_text().strip()
        except FileNotFoundError:
            state = "notpresent"
        except OSError:
            continue
        if state in NO_LINK:
            out.append(link)
    return out


# --- containers -----------------------------------------------------------------------------------------------------


class Part:
    """One container of the rank: `docker run` in the foreground, which lives exactly as long as the container."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.container: str = settings["container"]
        self.argv: list[str] = settings["argv"]
        self.child: subprocess.Popen[bytes] | None = None
        self.began = 0.0

    def start(self) -> None:
        self.began = time.monotonic()
        self.child = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, start_new_session=True)

    def why_ended(self) -> str | None:
        code = None if self.child is None else self.child.poll()
        if code is None:
            return None
        how = f"exit code {code}" if code >= 0 else f"signal {abs(code)}"
        return f"the container {self.container} ended by itself with {how} after {time.monotonic() - self.began:.0f} s"

    def stop(self, seconds: int) -> str | None:
        """End the container and its docker client in bounded time; returns an error if the container remains, or None."""
        child = self.child
        if child is None:
            return None
        docker("stop", "--time", str(seconds), self.container, seconds=seconds + 15)
        # A client may make its container after the stop, so wait for the end of the client.
        for _attempt in range(5):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1)
                break
            docker("kill", self.container, seconds=5)
            docker("rm", "--force", self.container, seconds=5)
        else:
            child.kill()
        docker("rm", "--force", self.container)
        is_there, text = True, ""
        for _attempt in range(10):  # Docker may still be removing it
            is_there, text = docker("container", "inspect", "--format", "{{.State.Status}}", self.container, seconds=5)
            if not is_there:
                break
            time.sleep(0.5)
        if not is_there and "no such" in text.lower():
            return None
        return f"the container {self.container} {'is' if is_there else 'may be'} still there ({text})"


# --- supervisor -----------------------------------------------------------------------------------------------------


class Supervisor:
    def __init__(self, service: dict[str, Any], config: ranks.Config, args: argparse.Namespace) -> None:
        self.service, self.config, self.args = service, config, args
        self.parts = [Part(part) for part in service["rank"]["parts"]]
        self.after = [part.get("after") or {} for part in service["rank"]["parts"]]
        self.record = args.run / "attempts" / f"{config.service}.json"
        self.freed = args.run / "freed" / f"{config.service}.json"
        now = time.monotonic()
        attempts = ranks.Attempts.read(state_file.read(self.record) or {}, config.fingerprint, now)
        self.saved = asdict(attempts)
        self.rank = ranks.Rank(config, secrets.token_hex(8), attempts, now)
        self.peers = {(peer.address, config.port): peer.rank for peer in config.peers}
        self.socket: socket.socket | None = None
        self.unbound, self.strange = "not bound yet", False
        self.reports: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.bell, self.ring = socket.socketpair()
        self.selector = selectors.DefaultSelector()
        self.phase = self.status = ""
        self.told: tuple[str, ...] = ()  # the causes of a wait that the journal knows
        self.since = self.reminded = now
        self.looking, self.looked = False, now - args.look
        # systemd looks at it once the unit is active; four times as often as needed is enough.
        self.watchdog = int(os.environ.get("WATCHDOG_USEC") or 0) / 4e6
        self.watched = now
        self.done = False
        self.cables = 0.0  # when the links were looked at
        self.root = str(service.get("sysroot") or "/")
        self.sys_net = Path(self.root) / "sys/class/net"
        self.guard = spark_unit.LoadGuard(
            service, args.run, goes_on=lambda: self.rank.phase == ranks.STARTING, tell=lambda _text: None
        )

    # --- the loop ---

    def run(self) -> int:
        self.bell.setblocking(False)
        self.ring.setblocking(False)
        self.selector.register(self.bell, selectors.EVENT_READ)
        signal.set_wakeup_fd(self.ring.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self.reports.put(self.rank.terminate))
        config = self.config
        others = ", ".join(str(peer) for peer in config.peers)
        self.say(
            f"rank {config.rank} of {len(config.peers) + 1} ({config.executor}) on {config.address}; others: {others}"
        )
        # The record is of an earlier start.
        self.freed.unlink(missing_ok=True)
        beat, last = 0.0, None
        while not self.done:
            self.receive()
            self.step()
            now = time.monotonic()
            message = self.rank.message(now)
            if message != last or now >= beat:
                self.send()
                beat, last = now + self.args.interval, replace(message, seq=message.seq + 1)
            if self.watchdog and now - self.watched >= self.watchdog:
                self.watched = now
                notify("WATCHDOG=1")
            if not self.done:
                self.selector.select(max(beat - time.monotonic(), 0.01))
        return self.rank.code if self.rank.code is not None else ranks.EXIT_AGAIN

    def step(self) -> None:
        """Take in events, decide, act, and report."""
        while not self.reports.empty():
            self.reports.get()()
        for part in self.parts:
            ended = part.why_ended()
            if ended is not None:
                self.rank.failed(ended, time.monotonic())
        now = time.monotonic()
        if self.config.links and now - self.cables >= self.args.interval:
            self.cables = now
            self.rank.links(links_out(self.config.links, self.sys_net), now)
        if self.rank.phase == ranks.WAITING and not self.looking and now - self.looked >= self.args.look:
            self.looking = True
            self.thread(self.look)
        self.rank.unheard = "" if self.socket is not None else self.unbound
        todo = self.rank.tick(now)
        self.save()  # before any start, so that the start counts even if this process is killed
        self.tell(now)
        for action in todo:
            self.act(action)

    def act(self, action: str) -> None:
        if action == ranks.EXIT:
            for _goodbye in range(GOODBYES):
                self.send()
                time.sleep(self.args.interval / 10)
            self.account()
            self.done = True
        elif action in (ranks.START_FIRST, ranks.START_ENGINE):
            if action == ranks.START_FIRST:
                self.guard.begin()
            self.start(self.parts[action == ranks.START_ENGINE])
        else:
            works: dict[str, Callable[[], None]] = {
                ranks.GATE: self.gate,
                ranks.AWAIT_NODES: self.await_nodes,
                ranks.AWAIT_ANSWER: self.await_answer,
                ranks.ACTIVE: self.become_active,
                ranks.STOP: self.stop,
            }
            self.thread(works[action])

    def thread(self, work: Callable[[], None]) -> None:
        """Run slow work in a thread; its failure is reported to this rank."""

        def run() -> None:
            try:
                work()
            except Stop as reason:
                self.report(self.failed, str(reason).removeprefix(f"{self.config.unit}: "))
            except Exception as error:  # without the report the rank would wait for ever
                self.report(self.failed, f"{work.__name__}: {error!r}")

        threading.Thread(target=run, name=work.__name__, daemon=True).start()

    def report(self, event: Callable[..., None], *args: Any) -> None:
        self.reports.put(lambda: event(*args))
        with contextlib.suppress(BlockingIOError):  # rung already
            self.ring.send(b"!")

    def failed(self, text: str) -> None:
        self.rank.failed(text, time.monotonic())

    # --- datagrams ---

    def bind(self) -> socket.socket | None:
        """Listen on the address of the fabric, as soon as this host has it."""
        if self.socket is not None:
            return self.socket
        address = (self.config.address, self.config.port)
        for _name, sock in handed_over():
            if sock.getsockname()[:2] == address:
                break
            if not self.strange:
                self.strange = True
                name = sock.getsockname()
                other = f"{name[0]}, port {name[1]}" if isinstance(name, tuple) else repr(name)
                self.say(
                    f"warning: systemd hands over a socket at {other}, not at {address[0]}, UDP port {address[1]}: "
                    f"the socket unit is older than the settings; run site.yml again"
                )
        else:
            sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_DGRAM)
            try:
                sock.setblocking(False)
                sock.bind(address)
            except OSError as error:
                sock.close()
                self.unbound = f"cannot listen on {address[0]}, UDP port {address[1]}: {error.strerror}"
                return None
        self.selector.register(sock, selectors.EVENT_READ)
        self.socket = sock
        return sock

    def receive(self) -> None:
        with contextlib.suppress(OSError):
            while self.bell.recv(4096):
                pass
        stream = self.bind()
        if stream is None:
            return
        for _datagram in range(RECEIVES):
            try:
                data, source = stream.recvfrom(MAX_DATAGRAM)
            except OSError:  # no more datagrams; a missing link counts as silence
                return
            rank = self.peers.get((source[0], source[1]))
            message = None if rank is None else ranks.decode(data)
            if message is not None and message.rank == rank:
                self.rank.receive(message, time.monotonic())

    def send(self) -> None:
        if self.socket is None:
            return
        now = time.monotonic()
        data = self.rank.next_datagram(now)
        for address, rank in self.peers.items():
            if not self.rank.speaks_to(rank, now):
                continue
            with contextlib.suppress(OSError):  # the others notice the silence
                self.socket.sendto(data, address)

    # --- slow work, in threads ---

    def look(self) -> None:
        facts = look_for_facts(self.service["rank"]["image"], self.service["rank"].get("model"))
        # spark-on-demand reads the pin on the host of the first rank.
        pin = pins.read(self.args.run / pins.FOLDER, self.config.service) if self.config.rank else pins.Pin()
        if pin.word == pins.COLD and pin.why:
            facts = ranks.Facts(problem=f"{ranks.KEPT_COLD} {pin.why}")

        def take() -> None:
            self.looking, self.looked = False, time.monotonic()
            self.rank.note_facts(facts, self.looked)

        self.report(take)

    def gate(self) -> None:
        spark_unit.gate(self.service, self.args.etc, self.args.run, self.args.poll)
        self.look()  # a tag may have moved since
        self.report(self.rank.gated)

    def start(self, part: Part) -> None:
        try:
            part.start()
        except OSError as error:
            self.failed(f"the container {part.container} cannot be started: {error}")
            self.report(lambda: None)  # come back at once

    def await_nodes(self) -> None:
        cluster = self.after[1]["ray"]
        give_up = time.monotonic() + self.args.nodes_seconds
        program = RAY_NODES.read_bytes()
        error = "not asked yet"
        while time.monotonic() < give_up and self.rank.phase == ranks.STARTING:
            seconds = max(int(give_up - time.monotonic()), 1)
            words = [*(str(cluster[key]) for key in ("address", "nodes", "gpus")), str(seconds)]
            is_complete, error = ask_ray(self.parts[0].container, program, words, seconds + 30)
            if is_complete:
                self.say(error)
                self.report(self.rank.nodes_there)
                return
            time.sleep(self.args.poll)
        raise Stop(f"Ray did not get its {cluster['nodes']} nodes within {self.args.nodes_seconds:.0f} s: {error}")

    def await_answer(self) -> None:
        def why_dead() -> str | None:
            return None if self.rank.phase == ranks.STARTING else self.rank.reason or "the start is over"

        spark_unit.await_answer(self.service, self.args.poll, why_dead)
        self.report(self.rank.answered)

    def become_active(self) -> None:
        self.guard.close()
        try:
            spark_unit.record_ready(self.service, self.args.run)
            spark_unit.release_lock(self.args.run, self.config.unit)
        except OSError as error:  # the model serves all the same, and ExecStopPost gives the lock back
            self.say(f"warning: the start lock is not given back: {error}")
        if self.rank.phase == ranks.SERVING:
            notify("READY=1")
        spark_unit.keep_start(self.service, self.args.run)

    def stop(self) -> None:
        self.guard.close()
        held = any(part.child is not None for part in self.parts)
        before = hostmem.available_gib(self.root)
        for part in reversed(self.parts):
            error = part.stop(self.args.stop_seconds)
            if error:
                self.say(f"warning: {error}")
        # spark-on-demand waits for the memory on the host of the first rank.
        waits = self.config.on_demand and self.config.rank > 0 and held
        self.report(self.rank.stopped, self.memory_back(before) if waits else None)

    def memory_back(self, before: float | None) -> float | None:
        """Wait until the memory of the engine is available again; returns the growth in GiB. before: available memory while it ran."""
        if before is None:
            return None
        expected = start_stages.taken_gib(state_file.read(spark_unit.start_record(self.args.run, self.config.unit)))
        try:
            memory = hostmem.wait_until_back(before, expected, self.root, interval_seconds=self.args.poll / 2)
        except OSError:
            return None
        level, late = "" if memory["ok"] else "warning: ", ""
        if expected is not None and not memory["ok"]:
            late = f", {expected:.1f} GiB were expected"
        self.say(f"{level}{memory['freed_gib']:.1f} GiB are back after {memory['waited_seconds']:.0f} s{late}")
        return float(memory["freed_gib"])

    def account(self) -> None:
        """Report, at the end of the first rank of a model on demand, the memory that came back on the other hosts."""
        if not self.config.on_demand or self.config.rank or self.rank.members is None:
            return
        freed = self.rank.freed()
        texts = [f"{host} {'does not say' if gib is None else f'{gib:.1f} GiB'}" for host, gib in freed.items()]
        self.say(f"memory that is back on the other hosts: {', '.join(texts)}")
        try:
            state_file.write(self.freed, {"hosts": freed})
        except OSError as error:
            self.say(f"warning: what is back on the other hosts is not recorded: {error}")

    # --- reports ---

    def say(self, text: str) -> None:
        say(f"{self.config.unit}: {text}")

    def tell(self, now: float) -> None:
        """Update `systemctl status`, and write changes to the journal."""
        rank = self.rank
        status = rank.status(now)
        if rank.phase == ranks.STARTING and self.guard.status():
            status += f"; {self.guard.status()}"
        status = " ".join(status.split())  # a second line would be another message to systemd
        if status != self.status:
            self.status = status
            notify(f"STATUS={status}")
        if rank.phase != self.phase:
            self.phase = rank.phase
            if rank.phase in (ranks.STOPPING, ranks.DOWN):
                notify("STOPPING=1")
                self.say(self.exit_reason())
            elif rank.phase != ranks.WAITING:
                self.say(status)
        if rank.phase == ranks.WAITING:
            causes = tuple(key for key, _text in rank.waits(now))
            if causes != self.told:
                self.told, self.since, self.reminded = causes, now, 0.0
            waited = now - self.since
            # A moment of silence is part of every start; later the lines get rarer.
            if waited >= self.config.fresh and now - self.reminded >= max(spark_unit.REMIND_SECONDS, waited / 10):
                self.reminded = now
                self.say(status)

    def exit_reason(self) -> str:
        text = self.rank.reason
        if self.config.on_demand:
            return text
        if self.rank.final:
            return f"{text}. When the cause is gone: systemctl start {self.config.unit}"
        return text if self.rank.phase == ranks.STOPPING else f"{text}; stops this rank and meets the others anew"

    def save(self) -> None:
        attempts = self.rank.attempts
        if self.rank.final:
            attempts = ranks.Attempts(self.config.fingerprint, words=attempts.words)
        record = asdict(attempts)
        if record == self.saved:
            return
        self.saved = record  # also after a failure, which is reported once
        try:
            state_file.write(self.record, record)
        except OSError as error:
            self.say(f"warning: {self.record} cannot be written: {error}")


def ask_ray(container: str, program: bytes, words: list[str], seconds: float) -> tuple[bool, str]:
    """Run ray_nodes.py inside the container; returns whether the nodes are complete, and the nodes or the error as text."""
    argv = ["docker", "exec", "--interactive", container, "python3", "-", *words]
    done = command.run(argv, seconds, data=program)
    if done.state != command.FINISHED:
        return False, f"no word of Ray within {seconds:.0f} s" if done.state == command.SILENT else done.why
    lines = done.out.strip().splitlines()
    try:
        answer = parse_json(lines[-1], "the answer of Ray")
        nodes = ", ".join(node["address"] for node in answer["nodes"] if node["alive"]) or "none"
        seen = f"Ray has the nodes {nodes} and {answer['gpus']} GPUs"
        ready = done.rc == 0 and answer["ready"] is True
        return ready, seen if ready else f"{seen}; {answer['error']}"
    except (ValueError, LookupError, TypeError):
        text = done.err.strip().splitlines()
        return False, text[-1] if text else f"exit code {done.rc} and no answer"


def protect() -> None:
    """Have the kernel spare this process when memory runs out: it cleans up after the engine."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-500", encoding="ascii")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="spark-rank", description="Supervisor of one rank of a model that spans hosts."
    )
    parser.add_argument("name", help="name of the service")
    parser.add_argument("--etc", type=Path, default=Path("/etc/dgxspark"), help="settings (default: %(default)s)")
    parser.add_argument(
        "--run", type=Path, default=Path("/run/dgxspark"), help="start lock and records (default: %(default)s)"
    )
    seconds = {
        "--interval": (1.0, "between two signs of life"),
        "--fresh": (5.0, "that a peer counts as there after a sign of life"),
        "--poll": (2.0, "between two looks at memory, lock and endpoint"),
        "--look": (15.0, "between two looks at the image, while it waits"),
        "--nodes-seconds": (300.0, "that Ray may take to gather its nodes"),
    }
    for name, (default, text) in seconds.items():
        parser.add_argument(name, type=float, default=default, help=f"seconds {text} (default: %(default)s)")
    parser.add_argument("--stop-seconds", type=int, default=60, help="seconds for a container (default: %(default)s)")
    args = parser.parse_args()
    spark_unit.PROGRAM = "spark-rank"
    try:
        service = spark_unit.load_service(args.etc, args.name)
        config = ranks.read_config(service)
        let_go = ranks.stop_seconds(config.parts, args.stop_seconds) + hostmem.BACK_SECONDS
        config = replace(config, fresh=args.fresh, let_go=let_go)
    except (Stop, ValueError) as reason:
        say(f"{args.name}: {reason}; run site.yml again")
        notify(f"STATUS={reason}")
        return ranks.EXIT_FOR_GOOD
    protect()
    code = Supervisor(service, config, args).run()
    sys.stdout.flush()
    os._exit(code)  # without waiting for its threads


if __name__ == "__main__":
    sys.exit(main())
