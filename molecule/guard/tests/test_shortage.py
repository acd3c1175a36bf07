"""Something else eats the memory of a host while two engines serve. The tests run in order on the shared nodes.

The same happens on a node without the guard: there it costs the largest engine, without a word before.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path.insert(0, str(ROOT / "molecule"))

from nodes import NODES, SUBNET, container, node, write

INVENTORY = ["-i", str(ROOT / "molecule" / "inventory.yml"), "-i", str(ROOT / "molecule" / "guard" / "inventory.yml")]
GUARDED, BARE = "spark-1", "spark-2"
ADDRESS = {GUARDED: f"{SUBNET}.0.11", BARE: f"{SUBNET}.0.12"}
PORTS = {"heavy": 8001, "fast": 8002}
MODEL = "qwen3:8b"
STATE = "/var/lib/dgxspark/guard/state.json"
SETTINGS = "/etc/dgxspark/agent/guard.json"
REACH_SECONDS = 2.0
NUMBERS = itertools.count(1)


def available(host):
    """GiB that the pool has left."""
    return float(re.search(r"available ([0-9.]+)", node(host, "spark-sim", "status"))[1])


def guard():
    """The last report of the guard."""
    return json.loads(node(GUARDED, "cat", STATE))


def active(host, name):
    return node(host, "systemctl", "is-active", f"spark-{name}.service", check=False).strip()


def wait(condition, seconds, description):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(1)
    pytest.fail(
        f"not within {seconds} s: {description}; guard: {node(GUARDED, 'journalctl', '-u', 'spark-agent', '-n', '20', '-o', 'cat')}"
    )


def since(host, unit, moment):
    """The log lines of a unit since a moment."""
    return node(host, "journalctl", "-u", unit, "--since", f"@{int(moment)}", "-o", "cat", "--no-pager").splitlines()


class Eater:
    """Takes memory of a node that belongs to none of its services, until it is stopped."""

    def __init__(self, host):
        self.host, self.units = host, []

    def eat(self, gib):
        unit = f"eater-{next(NUMBERS)}"
        node(self.host, "systemd-run", f"--unit={unit}", "--collect", "spark-sim", "hold", "notebook", f"{gib:.2f}")
        self.units.append(unit)
        wait(
            lambda: "holding" in node(self.host, "journalctl", "-u", unit, "-o", "cat", check=False),
            20,
            "the memory is taken",
        )

    def eat_until(self, remaining_gib):
        """Take all at once, but for so many GiB."""
        self.eat(available(self.host) - remaining_gib)

    def stop(self):
        if self.units:
            node(self.host, "systemctl", "stop", *self.units)
        self.units = []


@pytest.fixture
def eaters():
    made = {host: Eater(host) for host in NODES}
    yield made
    for eater in made.values():
        eater.stop()


@contextlib.contextmanager
def clients(host, *names):
    """Ask engines all the time; the mapping has the answers afterwards."""
    end = f"/run/asker-{next(NUMBERS)}"
    servers = [f"{name}={PORTS[name]}" for name in names]
    answers = {}
    with ThreadPoolExecutor(1) as pool:
        printed = pool.submit(node, host, "python3", "/run/asker.py", end, *servers)
        try:
            yield answers
        finally:
            node(host, "touch", end)
            answers.update(json.loads(printed.result(timeout=60)))


def relay(near, far):
    """Pass on what comes at either of two connections until one of them ends."""
    with selectors.DefaultSelector() as selector:
        for sock, other in ((near, far), (far, near)):
            selector.register(sock, selectors.EVENT_READ, other)
        while True:
            for key, _events in selector.select():
                data = key.fileobj.recv(65536)
                if not data:
                    return
                key.data.sendall(data)


def log_in(host):
    """The seconds from the connection to the end of a login's first command; None after a failure.

    The connection goes through a separate relay, whose clock starts when ssh connects: how long this machine takes to start a client
    is nothing that the host answers for.
    """
    options = [
        *("ControlMaster=no", "ControlPath=none", "IdentitiesOnly=yes", f"HostKeyAlias={ADDRESS[host]}"),
        f"UserKnownHostsFile={ROOT / '.cache/sim/known_hosts'}",
    ]
    with contextlib.ExitStack() as stack:
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        door.settimeout(60)
        # What ssh shares with others it may leave in a state that Ansible refuses.
        argv = ["ssh", "-p", str(door.getsockname()[1]), "-i", str(ROOT / ".cache/sim/id_ed25519")]
        program = stack.enter_context(
            subprocess.Popen(
                [*argv, *(f"-o{option}" for option in options), "spark@127.0.0.1", "true"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip
        try:
            near = stack.enter_context(door.accept()[0])
            began = time.monotonic()
            far = stack.enter_context(socket.create_connection((ADDRESS[host], 22), timeout=60))
            relay(near, far)
            took = round(time.monotonic() - began, 2)
            near.close()
            return took if program.wait(60) == 0 else None
        except (OSError, subprocess.TimeoutExpired):
            program.kill()
            return None


@contextlib.contextmanager
def knocking(capsys):
    """Log in to the guarded node again and again; none may fail, nor take longer than the host has to answer in."""
    took, over = [], threading.Event()

    def knock():
        # Its threads share this machine's cores with all that the nodes run.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -15)
        while not over.wait(1.0):
            took.append(log_in(GUARDED))

    thread = threading.Thread(target=knock)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    slowest = max((seconds for seconds in took if seconds is not None), default=None)
    with capsys.disabled():
        print(f"\n{len(took)} logins to {GUARDED}, the slowest took {slowest} s")
    assert len(took) >= 3 and not [seconds for seconds in took if seconds is None or seconds > REACH_SECONDS], took


@pytest.fixture(autouse=True, scope="module")
def first_come_nodes():
    """Give the nodes their turn on a shared machine: the wait of a login for a core is not measured."""
    for host in NODES:
        container(host).update(cpu_shares=20480)
        node(
            host,
            "renice",
            "-n",
            "-15",
            "-p",
            node(host, "systemctl", "show", "--property=MainPID", "--value", "ssh").strip(),
        )


def set_guard(**changes):
    """Change settings of the guard on its node, as the role would."""
    settings = {**json.loads(node(GUARDED, "cat", SETTINGS)), **changes}
    write(GUARDED, SETTINGS, json.dumps(settings))
    node(GUARDED, "systemctl", "restart", "spark-agent")


def load_ollama():
    body = json.dumps({"model": MODEL, "prompt": "", "stream": False, "keep_alive": "1h"})
    node(GUARDED, "curl", "-sS", "-m", "60", "http://127.0.0.1:11434/api/generate", "-d", body)
    assert MODEL in node(GUARDED, "curl", "-sS", "http://127.0.0.1:11434/api/ps")


def steps():
    """How often each step was taken so far."""
    return dict(guard()["steps"])


def play(name, *options):
    done = subprocess.run(
        ["ansible-playbook", *INVENTORY, f"dgxspark.vllm.{name}", *options],
        cwd=ROOT,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def places(lines, *texts):
    """Where each text first comes in some lines, in one list."""
    return [next((number for number, line in enumerate(lines) if text in line), None) for text in texts]


def test_status_has_a_line_of_the_guard():
    assert available(GUARDED) > 6 and available(BARE) > 6
    code, text = play("status")
    lines = [line for line in text.splitlines() if "guard runs" in line]
    assert code == 0 and len(lines) == 1, text
    assert "spark-1: memory guard runs, acts below 3.0 GiB, 5.0 GiB at a start; memory calm" in lines[0]


def test_what_others_take_in_steps_costs_no_engine(eaters, capsys):
    """The cache goes, then Ollama's model; then it says who took the memory, and no engine is touched."""
    load_ollama()
    before, began = steps(), time.time()
    with clients(GUARDED, "heavy", "fast") as answers, knocking(capsys):
        while available(GUARDED) > 2.5:
            eaters[GUARDED].eat(min(2.0, available(GUARDED) - 2.2))
            time.sleep(2)
        wait(lambda: MODEL not in node(GUARDED, "curl", "-sS", "http://127.0.0.1:11434/api/ps"), 60, "Ollama lets go")
        # The memory that Ollama gave back is eaten, too: now there is nothing milder left.
        eaters[GUARDED].eat_until(0.7)
        wait(lambda: guard()["steps"]["name"] > before["name"], 60, "it says who took the memory")
        time.sleep(10)
        after = guard()
        code, shown = play("status", "-e", "spark_status_fail_on=never", "-l", GUARDED)
    assert {name: active(GUARDED, name) for name in PORTS} == {"heavy": "active", "fast": "active"}
    assert answers["heavy"]["failed"] == [] == answers["fast"]["failed"] and answers["heavy"]["good"] > 10
    assert after["steps"]["stop"] == before["stop"] and after["steps"]["restart"] == before["restart"]
    assert after["level"] == "critical" and "eater-" in after["who"], after
    lines = since(GUARDED, "spark-agent", began)
    drop, unload, name = places(
        lines,
        "gives the page cache back",
        "asks ollama to unload",
        "used by processes that are no service of this host",
    )
    assert drop < unload and name is not None, lines
    assert code == 0 and "memory is critical" in shown and "eater-" in shown, shown
    eaters[GUARDED].stop()
    wait(lambda: guard()["level"] == "calm", 60, "memory is back")


def test_engines_that_have_to_give_way_go_in_their_order(eaters, capsys):
    """The least important one first, after its requests; the other one only when that was not enough, and each is stopped cleanly."""
    set_guard(stop_for_others=True)
    before, began = steps(), time.time()
    with clients(GUARDED, "heavy", "fast") as answers, knocking(capsys):
        time.sleep(5)
        eaters[GUARDED].eat_until(0.8)  # at once
        wait(lambda: active(GUARDED, "fast") == "inactive", 90, "fast gives way")
        assert active(GUARDED, "heavy") == "active"
        wait(lambda: available(GUARDED) > 8, 60, "its memory is back")
        time.sleep(25)  # the next step would come now
        assert active(GUARDED, "heavy") == "active"
    assert answers["heavy"]["failed"] == [] and answers["heavy"]["good"] > 10 and answers["fast"]["failed"]
    lines = since(GUARDED, "spark-agent", began)
    refuse, stop = places(lines, "lets the gateway give fast no new requests", "stops fast")
    assert refuse is not None and refuse < stop, lines
    assert steps()["stop"] == before["stop"] + 1 and list(guard()["stopped"]) == ["fast"]
    code, shown = play("status", "-e", "spark_status_fail_on=never", "-l", GUARDED)
    assert code == 0 and "the memory guard stopped it" in shown, shown
    eaters[GUARDED].eat_until(0.8)
    wait(lambda: active(GUARDED, "heavy") == "inactive", 120, "heavy gives way, too")
    assert steps()["stop"] == before["stop"] + 2
    assert not [line for line in since(GUARDED, "last-resort", began) if "killed" in line]
    eaters[GUARDED].stop()
    node(GUARDED, "systemctl", "start", "spark-heavy", "spark-fast")
    wait(lambda: guard()["stopped"] == {}, 150, "what runs again is forgotten")


def test_memory_that_goes_away_slowly_loses_an_engine_only_without_the_guard(eaters, capsys):
    """Step by step more than there is: with the guard the least important one is stopped before; without, the largest one is killed."""
    began, ends = time.time(), {}
    with contextlib.ExitStack() as stack:
        answers = {host: stack.enter_context(clients(host, "heavy")) for host in NODES}
        stack.enter_context(knocking(capsys))
        for host in NODES:
            eaters[host].eat_until(2.0)
        for _step in range(8):
            for host in NODES:
                eaters[host].eat(0.4)
            time.sleep(5)
        time.sleep(5)
        ends = {host: active(host, "fast") for host in NODES}
    killed = {host: [line for line in since(host, "last-resort", began) if "killed" in line] for host in NODES}
    assert killed[BARE][:1] == ["out of memory: killed heavy"], killed
    assert answers[BARE]["heavy"]["failed"], "nothing was lost without the guard"
    assert killed[GUARDED] == [] and answers[GUARDED]["heavy"]["failed"] == [], (killed, answers[GUARDED])
    assert ends == {GUARDED: "inactive", BARE: "active"}
