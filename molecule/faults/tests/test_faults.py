"""Runs of site.yml and rollout.yml that are hurt in the middle: killed, a host cut off, disks full, docker restarted.

Each test changes all that can differ of a service (image, environment, argument, key) and hurts the run at a point that is chosen by
chance. No host may then serve, or be about to serve, a mixture; and the same command again ends in the wanted state. The points
follow from FAULTS_SEED, which is shown at the top; with the same number they are the same.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path.insert(0, str(ROOT / "molecule"))

from nodes import NODES, node

SCENARIO = ROOT / "molecule" / "faults"
HOSTS = list(NODES)
IMAGES = {"old": "nvcr.io/nvidia/vllm:26.04-py3", "new": "vllm/vllm-openai:v0.24.0-ubuntu2404"}
SEQUENCES = {"4": "old", "8": "new"}
LAN = "enP7s7"
OTHER = {"old": "new", "new": "old"}
GENERATIONS = "/var/lib/dgxspark/generations"
UNIT = "spark-chat.service"
FULL = "No space left on device"


def wait(condition, seconds, description):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {description}"
        time.sleep(0.1)


# --- the state of a host


@lru_cache
def names_of_image(host, state):
    """All that the image of a state is called by on a host: its id, its name, its digests."""
    shown = json.loads(node(host, "docker", "image", "inspect", IMAGES[state]))[0]
    return [shown["Id"], IMAGES[state], *(shown["RepoDigests"] or [])]


def facets_of_launch(host, words):
    """Return the state that image and argument of a launch belong to, or that they belong to neither."""
    images = [state for state in IMAGES if any(name in words for name in names_of_image(host, state))]
    number = re.search(r"--max-num-seqs[=\s\\\"]+(\d+)", words)
    return {
        "image": "+".join(images) or "neither",
        "argument": SEQUENCES.get(number[1], number[1]) if number else "neither",
    }


def facets_of_files(host):
    """Which state environment and key of the next start are of."""
    env = re.search(r"^FAULTS_STATE=(.*)$", node(host, "cat", "/etc/dgxspark/env/chat.env"), re.MULTILINE)
    keys = node(host, "sh", "-c", "cat /etc/dgxspark/secrets/chat/*")
    return {
        "environment": env[1] if env else "neither",
        "key": "+".join(re.findall(r"molecule-key-(\w+)", keys)) or "neither",
    }


def on_disk(host):
    """What a boot would start."""
    text = node(host, "cat", f"/etc/systemd/system/{UNIT}")
    return {**facets_of_launch(host, text), **facets_of_files(host)}


def loaded(host):
    """What systemd would start if the engine died now."""
    text = node(host, "systemctl", "show", "--property=ExecStart", "--value", UNIT)
    return {**facets_of_launch(host, text), **facets_of_files(host)}


def status_with(host, key):
    """The answer of the engine to a key: 200, 401, or 000 when nothing answers."""
    url = "http://127.0.0.1:8001/v1/models"
    header = f"Authorization: Bearer molecule-key-{key}"
    return node(
        host,
        "curl",
        "--silent",
        "--max-time",
        "5",
        "--output",
        "/dev/null",
        "-w",
        "%{http_code}",
        "-H",
        header,
        url,
        check=False,
    )


def container(host):
    """Docker's answer about the running container, None without one."""
    shown = json.loads(node(host, "docker", "container", "inspect", "spark-chat", check=False) or "[]")
    return shown[0] if shown and shown[0]["State"]["Running"] else None


def serving(host):
    """Which state each facet of the engine that runs is of; nothing when none runs."""
    deadline = time.monotonic() + 60
    while True:
        shown = container(host)
        if shown is None:
            return {}
        keys = [state for state in IMAGES if status_with(host, state) == "200"]
        second = container(host)
        # Another container has taken its place meanwhile: it may have answered.
        if second is not None and second["Id"] == shown["Id"]:
            break
        assert time.monotonic() < deadline, f"{host}: containers come and go"
    words = " ".join([shown["Image"], *(shown["Config"]["Entrypoint"] or []), *(shown["Config"]["Cmd"] or [])])
    env = dict(word.split("=", 1) for word in shown["Config"]["Env"])
    facets = {**facets_of_launch(host, words), "environment": env.get("FAULTS_STATE", "neither")}
    return {**facets, "key": "+".join(keys)} if keys else facets


def generation(host):
    """The current generation in its file."""
    current = json.loads(node(host, "cat", f"{GENERATIONS}/current.json"))
    return {
        **json.loads(node(host, "cat", f"{GENERATIONS}/{current['number']}.json")),
        "restoring": current["restoring"],
    }


def leftovers(host):
    """Files that were being written, or whose task was never finished."""
    paths = node(
        host,
        "find",
        "/etc/dgxspark",
        "/etc/systemd/system",
        "/var/lib/dgxspark",
        "-name",
        ".dgxspark-*",
        "-o",
        "-name",
        ".receipt-*",
    )
    return paths.split()


def active_state(host):
    return node(host, "systemctl", "show", "--property=ActiveState", "--value", UNIT).strip()


def one_key(host, facets):
    """Remove the key from the facets: it is no part of a generation, so a rollback keeps the present key."""
    assert facets.get("key", "new") in IMAGES, (host, facets)
    return {facet: value for facet, value in facets.items() if facet != "key"}


def assert_no_mixture(hosts=HOSTS, went_back=False):
    """The running service, and the one after a crash or a boot, belong wholly to one of the two states."""
    for host in hosts:
        # Modules of a run that was killed go on to their end: nobody takes them by the hand, and nobody should.
        wait(
            lambda host=host: not node(host, "pgrep", "-f", "BECOME-SUCCESS", check=False),
            60,
            f"{host}: no module runs",
        )
        for read_facets in (serving, loaded, on_disk):
            facets = one_key(host, read_facets(host)) if went_back else read_facets(host)
            assert len(set(facets.values()) - {"neither"}) <= 1 and "neither" not in facets.values(), (
                host,
                read_facets.__name__,
                facets,
            )


def assert_is(state, hosts=HOSTS, went_back=False):
    """The host has the expected state: it serves it, will serve it after a boot, and has recorded it as proved."""
    expected = dict.fromkeys(("image", "argument", "environment", *([] if went_back else ["key"])), state)
    for host in hosts:
        facets_by_place = {"serving": serving(host), "loaded": loaded(host), "disk": on_disk(host)}
        if went_back:
            # The engine answers to the key in the present file.
            assert facets_by_place["serving"]["key"] == facets_by_place["disk"]["key"], (host, facets_by_place)
            facets_by_place = {place: one_key(host, facets) for place, facets in facets_by_place.items()}
        assert facets_by_place == {
            "serving": expected,
            "loaded": expected,
            "disk": expected,
        }, host
        shown = node(host, "systemctl", "show", "--property=ActiveState,NeedDaemonReload", "--value", UNIT)
        assert shown.split() == ["no", "active"] or shown.split() == ["active", "no"], (host, shown)
        recorded = generation(host)
        assert recorded["proven"] is True and recorded["restoring"] is None, host
        image = names_of_image(host, state)[0]
        assert recorded["images"][UNIT]["id"] == image, host
        # By the name that keeps it from being pruned.
        name = f"dgxspark/generation:{image.removeprefix('sha256:')[:24]}"
        assert node(host, "docker", "image", "inspect", "--format", "{{.Id}}", name).strip() == image, host
        assert leftovers(host) == [], host


# --- runs, and the points of their faults


class Run:
    """A playbook under way, which may be held at a task."""

    def __init__(self, playbook, folder, at=None, trace=None, **variables):
        self.mark = f"FAULTS_RUN={uuid.uuid4()}"
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        inventories = [word for path in (SCENARIO.parent, SCENARIO) for word in ("-i", str(path / "inventory.yml"))]
        # Not the connections that others keep open: they know nothing of a host that is gone.
        env = {
            **os.environ,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_CALLBACK_PLUGINS": str(SCENARIO / "callback"),
            "ANSIBLE_CALLBACKS_ENABLED": "faults_point",
            "SPARKSIM_SSH": str(folder),
            "FAULTS_FOLDER": str(self.folder),
            "FAULTS_AT": json.dumps(at or {}),
            "FAULTS_TRACE": str(trace or ""),
            self.mark.split("=", maxsplit=1)[0]: self.mark.split("=", maxsplit=1)[1],
        }
        with (self.folder / "out").open("w", encoding="utf-8") as out:
            self.process = subprocess.Popen(
                ["ansible-playbook", *inventories, f"dgxspark.vllm.{playbook}", "-e", json.dumps(variables)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
            )
        if at:
            wait(lambda: (self.folder / "held").exists() or self.process.poll() is not None, 240, f"the run is at {at}")
            assert (self.folder / "held").exists(), f"the run never came to {at}:\n{self.text()}"

    def text(self):
        return (self.folder / "out").read_text(encoding="utf-8")

    def go(self):
        (self.folder / "go").touch()

    def end(self):
        """Let it go on to its end; returns its exit code and all that it printed."""
        self.go()
        return self.process.wait(timeout=300), self.text()

    def relatives(self):
        """Processes of the run: workers and ssh are in separate sessions, so their environment tells them apart."""
        processes = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if self.mark.encode() in path.read_bytes():
                    processes.append(int(path.parent.name))
        return processes

    def kill(self):
        """What a controller that loses its power does to the run: nothing of it is left, and nobody is told."""
        deadline = time.monotonic() + 30
        while True:
            self.process.poll()
            remaining = self.relatives()
            if not remaining:
                break
            assert time.monotonic() < deadline, remaining
            for pid in remaining:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        self.process.wait()


@pytest.fixture(scope="session")
def folder():
    """Short, because of what a socket may be called."""
    with tempfile.TemporaryDirectory(prefix="faults-", dir="/tmp") as name:
        yield Path(name)


def state_now():
    """The state that all hosts are wholly, none otherwise."""
    states = {state for host in HOSTS for state in [*on_disk(host).values(), *serving(host).values()]}
    return states.pop() if len(states) == 1 else None


def mended(folder):
    """The state of both hosts; remains of an earlier failed test are mended first."""
    state = state_now()
    if state is None:
        code, text = Run("site", folder, faults="old").end()
        assert code == 0, text
    return state or "old"


@pytest.fixture
def before(folder):
    return mended(folder)


@pytest.fixture(scope="session")
def tasks(folder):
    """The tasks of a run of site.yml that changes everything, in order, with the hosts that each of them reached."""
    # There and back: questions that an image is asked once are no tasks of later runs.
    for traced in ({}, {"trace": folder / "trace"}):
        target = OTHER[mended(folder)]
        code, text = Run("site", folder, faults=target, **traced).end()
        assert code == 0, text
        assert_is(target)
    by_host = {}
    for line in (folder / "trace").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        by_host.setdefault((entry["task"], entry["occurrence"]), []).append(entry["host"])
    assert len(by_host) > 8, by_host
    return [{"task": task, "occurrence": number, "hosts": hosts} for (task, number), hosts in by_host.items()]


@pytest.fixture
def chance(request):
    """Its own for each test, so that a test alone chooses what it chose among the others."""
    return random.Random(f"{os.environ['FAULTS_SEED']} {request.node.name}")


def position(tasks, needle):
    return next(number for number, entry in enumerate(tasks) if needle in entry["task"])


def write_entry(entry, **more):
    """Print the chosen point for the report of a failed test; returns it."""
    print(f"FAULTS_SEED={os.environ['FAULTS_SEED']}: {entry['task']!r}, occurrence {entry['occurrence']}", more or "")
    return {"task": entry["task"], "occurrence": entry["occurrence"]}


def assert_healed(playbook, folder, state, **variables):
    """The same command again, unhurt."""
    code, text = Run(playbook, folder, faults=state, **variables).end()
    assert code == 0, text
    assert_is(state)


PARTS = re.compile(r"^(?=fatal: |failed: |TASK |ok: |changed: |skipping: |PLAY )", re.MULTILINE)
"""Before what Ansible prints of a task or a host."""
PLACED = "Install the unit files and start the services"


@pytest.mark.parametrize("part", ["before anything is restarted", "from the restart on"])
def test_a_run_of_site_that_is_killed(folder, tasks, before, chance, part):
    placed = position(tasks, PLACED)
    entry = chance.choice(tasks[: placed + 1] if part.startswith("before") else tasks[placed + 1 :])
    delay = chance.uniform(0, 1.5)
    run = Run("site", folder, at=write_entry(entry, delay=delay), faults=OTHER[before])
    run.go()
    # No wait for anything: wherever in its task, or in the next ones, it is by then.
    time.sleep(delay)
    run.kill()
    assert_no_mixture()
    assert_healed("site", folder, OTHER[before])


def test_a_run_of_site_that_is_killed_while_engines_start(folder, tasks, before):
    """They take longer than the proof waits for what answers already, as real ones do."""
    entry = tasks[position(tasks, "Wait until started services answer")]
    slow = {"faults_start_seconds": "30", "prove_timeout": 10}
    run = Run("site", folder, at=write_entry(entry), faults=OTHER[before], **slow)
    run.kill()
    # The earlier container has gone by then.
    wait(lambda: {active_state(host) for host in HOSTS} == {"activating"}, 20, "both engines are starting")
    assert_healed("site", folder, OTHER[before], **slow)


@contextmanager
def cut_off(host):
    """A host that the controller does not reach; its running tasks go on."""
    rules = [[chain, way, LAN, "-j", "DROP"] for chain, way in (("INPUT", "-i"), ("OUTPUT", "-o"))]
    for rule in rules:
        node(host, "iptables", "-I", *rule)
    try:
        yield
    finally:
        for rule in rules:
            node(host, "iptables", "-D", *rule)


def test_a_host_that_site_loses(folder, tasks, before, chance):
    entry = chance.choice(tasks)
    host = chance.choice(entry["hosts"])
    run = Run("site", folder, at=write_entry(entry, host=host), faults=OTHER[before])
    with cut_off(host):
        code, text = run.end()
        assert code != 0 and re.search(rf"{host} .*unreachable=1", text), text
    assert_no_mixture()
    # Nobody waits for it.
    assert_is(OTHER[before], [other for other in HOSTS if other != host])
    assert_healed("site", folder, OTHER[before])


OWN_FILE_SYSTEM = """
mkdir -p $aside; cp -a $place/. $aside/
mount -t tmpfs -o size=4m,mode=0755 faults $place
cp -a $aside/. $place/; rm -r $aside
"""
AS_IT_WAS = """
mkdir -p $aside; cp -a $place/. $aside/
umount $place; find $place -mindepth 1 -delete
cp -a $aside/. $place/; rm -r $aside
"""


@contextmanager
def small(host, place):
    """A folder of a host as a separate file system with little room; its files are kept."""
    head = f"place={place}; aside=/run/faults{place}\n"
    node(host, "sh", "-ec", head + OWN_FILE_SYSTEM)
    try:
        yield
    finally:
        node(host, "sh", "-ec", head + AS_IT_WAS)


@contextmanager
def full(host, place):
    """The same without any room, by a file that has taken it."""
    filler = f"{place}/filler"
    text = node(host, "sh", "-c", f"dd if=/dev/zero of={filler} bs=4k 2>&1", check=False)
    assert FULL in text, text
    try:
        yield
    finally:
        node(host, "rm", filler)


@pytest.mark.parametrize(
    ("places", "last"),
    [
        (("/etc/dgxspark", "/etc/systemd/system"), PLACED),
        (("/var/lib/dgxspark",), "Prove the services"),
    ],
)
def test_disks_that_are_full(folder, tasks, before, chance, places, last):
    """From some task on before the first that writes there; two places on two hosts at once."""
    entry = chance.choice([entry for entry in tasks[: position(tasks, last) + 1] if set(entry["hosts"]) == set(HOSTS)])
    hosts = dict(zip(chance.sample(HOSTS, len(places)), places))
    with ExitStack() as mounts, ExitStack() as fillers:
        for host, place in hosts.items():
            mounts.enter_context(small(host, place))
        run = Run("site", folder, at=write_entry(entry, hosts=hosts), faults=OTHER[before])
        for host, place in hosts.items():
            fillers.enter_context(full(host, place))
        code, text = run.end()
        assert code != 0, text
        for host in HOSTS:
            # Long messages are broken into lines.
            said_by = [" ".join(part.split()) for part in PARTS.split(text)]
            failed = [part for part in said_by if re.match(rf"(fatal|failed): \[{host}\]", part)]
            assert bool(failed) == (host in hosts) and all(FULL in part for part in failed), (host, text)
        assert_no_mixture()
        fillers.close()
        assert_healed("site", folder, OTHER[before])
    assert_is(OTHER[before])


TOOLS = ("systemctl", "docker", "nvidia-smi", "journalctl")


@contextmanager
def hanging(host):
    """Programs that never answer, and do not end when they are asked to; those that units call by their full path are not meant."""
    places = [f"/usr/local/bin/{tool}" for tool in TOOLS]
    for place in places:
        script = "#!/bin/sh\\ntrap : TERM INT HUP\\nwhile :; do sleep 60; done\\n"
        node(host, "sh", "-c", f"test ! -e {place} && printf '{script}' > {place} && chmod 755 {place}")
    try:
        yield
    finally:
        node(host, "rm", *places)


def test_tools_that_never_answer(folder, before):
    """Status asks all of a host that is asked, ends in time and calls nothing broken that serves; the next run is clean."""
    with hanging("spark-1"):
        began = time.monotonic()
        _code, text = Run("status", folder, faults=before).end()
        said_by = " ".join(text.split())
        assert time.monotonic() - began < 50, text
        assert "systemctl did not answer in 10 s" in said_by and "docker did not answer in" in said_by, text
        assert "does not exist" not in said_by and "absent" not in said_by, text
        # The hanging program ended with the question.
        assert node("spark-1", "pgrep", "-f", "^/bin/sh /usr/local/bin/systemctl", check=False).split()[1:] == []
    code, text = Run("status", folder, faults=before).end()
    assert code == 0 and "did not answer" not in text, text


def docker_pid(host):
    return node(host, "systemctl", "show", "--property=MainPID", "--value", "docker.service").strip()


def test_docker_is_restarted_under_a_run_of_site(folder, tasks, before, chance):
    entry = chance.choice(tasks)
    host = chance.choice(entry["hosts"])
    pid = docker_pid(host)
    run = Run("site", folder, at=write_entry(entry, host=host), faults=OTHER[before])
    with ThreadPoolExecutor(1) as pool:
        restart = pool.submit(node, host, "systemctl", "restart", "docker.service")
        code, _text = run.end()
        restart.result(timeout=120)
    assert docker_pid(host) != pid
    assert_no_mixture()
    # It may have come through; then that has to be true, once systemd has brought back what Docker took down.
    if code == 0:
        wait(lambda: active_state(host) == "active", 60, f"{host} serves again by itself")
        assert_is(OTHER[before])
    assert_healed("site", folder, OTHER[before])


@pytest.fixture
def rollout_tasks(tasks):
    """Names of tasks that a rollout comes to once for each batch."""
    batch = tasks[position(tasks, "Prepare the host") :]
    return [entry["task"] for entry in batch if entry["occurrence"] == 1] + ["Benchmark the services"]


CANARY = {"spark_rollout_canary": "spark-1", "spark_rollout_batch": 1}
TOGETHER = {"spark_rollout_canary": "none", "spark_rollout_batch": 2}


def test_a_rollout_that_is_killed(folder, before, chance, rollout_tasks):
    """At the canary, or after it."""
    entry = {"task": chance.choice(rollout_tasks), "occurrence": chance.choice([1, 2])}
    delay = chance.uniform(0, 1.5)
    run = Run("rollout", folder, at=write_entry(entry, delay=delay), faults=OTHER[before], **CANARY)
    run.go()
    time.sleep(delay)
    run.kill()
    assert_no_mixture()
    assert_healed("rollout", folder, OTHER[before], **CANARY)


def test_a_host_that_a_rollout_loses(folder, before, chance, rollout_tasks):
    """The other one of its batch goes back by itself."""
    host, other = chance.sample(HOSTS, 2)
    entry = {"task": chance.choice(rollout_tasks), "occurrence": 1}
    run = Run("rollout", folder, at=write_entry(entry, host=host), faults=OTHER[before], **TOGETHER)
    with cut_off(host):
        code, text = run.end()
        assert code != 0 and re.search(rf"{host} .*unreachable=1", text), text
    assert_no_mixture(went_back=True)
    assert_is(before, [other], went_back=True)
    assert_healed("rollout", folder, OTHER[before], **TOGETHER)


def test_a_third_run_changes_nothing(folder, before):
    containers = {host: container(host)["Id"] for host in HOSTS}
    code, text = Run("site", folder, faults=before).end()
    assert code == 0, text
    assert set(re.findall(r"changed=(\d+)", text.split("PLAY RECAP")[1])) == {"0"}, text
    code, text = Run("rollout", folder, faults=before, **CANARY).end()
    assert code == 0, text
    assert "already there: spark-1, spark-2" in text, text
    assert {host: container(host)["Id"] for host in HOSTS} == containers
