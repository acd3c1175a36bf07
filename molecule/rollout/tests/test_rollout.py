"""A good change, a bad one, a controller that dies in between, and the way back; while clients go on asking.

The tests run in order on the shared nodes: spark-1 has the gateway. On each change there are two, at night four.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path.insert(0, str(ROOT / "molecule"))

from nodes import AT_NIGHT, FLEET, NODES, SUBNET, node

GATEWAY = f"http://{SUBNET}.0.11:4000"
KEY = ROOT / ".cache" / "molecule" / "rollout" / "gateway"
FIRST = "nvcr.io/nvidia/vllm:26.04-py3"
SECOND = "vllm/vllm-openai:v0.24.0-ubuntu2404"
BROKEN = "vllm/vllm-openai:v0.24.0-broken"
HOSTS = list(FLEET if AT_NIGHT else NODES)
INVENTORIES = (
    "inventory",
    *(("rollout/inventory", "rollout/nightly/inventory") if AT_NIGHT else ("rollout/inventory",)),
)


def command(playbook, *options, **variables):
    """Return the command that a person would type."""
    inventories = [word for name in INVENTORIES for word in ("-i", str(ROOT / "molecule" / f"{name}.yml"))]
    return ["ansible-playbook", *inventories, f"dgxspark.vllm.{playbook}", *options, "-e", json.dumps(variables)]


ENVIRONMENT = {**os.environ, "ANSIBLE_NOCOLOR": "1"}


def play(playbook, *options, **variables):
    """Run a playbook; returns its exit code and all that it printed."""
    ran = subprocess.run(
        command(playbook, *options, **variables),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env=ENVIRONMENT,
    )
    return ran.returncode, ran.stdout + ran.stderr


def image_id(host, ref):
    return node(host, "docker", "image", "inspect", "--format", "{{.Id}}", ref).strip()


def runs(host):
    """Id of the image that the container of the service runs."""
    return node(host, "docker", "container", "inspect", "--format", "{{.Image}}", "spark-chat", check=False).strip()


def container(host):
    return node(host, "docker", "container", "inspect", "--format", "{{.Id}}", "spark-chat", check=False).strip()


def generation(host):
    """Number of the current generation, and whether it is proven."""
    folder = "/var/lib/dgxspark/generations"
    number = json.loads(node(host, "cat", f"{folder}/current.json"))["number"]
    return number, json.loads(node(host, "cat", f"{folder}/{number}.json"))["proven"]


def drained():
    status = node("spark-1", "python3", "/usr/local/libexec/dgxspark/spark_gateway.py", "--json", "status")
    return [name for name, backend in json.loads(status)["backends"].items() if backend["drained_since"]]


def table(text):
    """The rows of the last summary, by host."""
    rows = text.split("generation  proven")[-1].split("PLAY RECAP")[0].splitlines()
    return {row.split()[0]: row for row in rows if row.split() and row.split()[0] in FLEET}


def tasks_of(text, host):
    match = re.search(rf"^{host}\s*: ok=(\d+)", text.split("PLAY RECAP")[1], re.MULTILINE)
    return int(match[1]) if match else 0


def chat():
    body = json.dumps({"model": "chat", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY.read_text().strip()}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{GATEWAY}/v1/chat/completions", body, headers), timeout=150
    ) as reply:
        return json.loads(reply.read())["choices"][0]["message"]["content"]


@contextmanager
def clients():
    """Two clients that ask the gateway one request after another, all the while."""
    over, answers, refused = threading.Event(), [], []

    def ask():
        while not over.is_set():
            try:
                answers.append(chat())
            except (OSError, urllib.error.URLError, ValueError, KeyError) as error:
                refused.append(repr(error))
            over.wait(0.3)

    threads = [threading.Thread(target=ask) for _number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield answers, refused
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_site_recorded_a_proven_generation():
    for host in HOSTS:
        assert generation(host) == (1, True)
        assert node(host, "docker", "image", "ls", "--quiet", "dgxspark/generation").strip()
        assert node(host, "stat", "--format", "%a", "/var/lib/dgxspark/generations").strip() == "700"


def test_a_good_change_goes_through_while_clients_are_served():
    with clients() as (answers, refused):
        code, text = play("rollout", rollout_image=SECOND, spark_rollout_canary="spark-2", spark_rollout_batch=2)
    assert code == 0, text
    assert refused == [] and len(answers) > 10, (refused, len(answers))
    batches = "2. spark-1, spark-3\n3. spark-4" if AT_NIGHT else "2. spark-1"
    assert f"1. spark-2 (canary)\n{batches}" in text, text
    for host in HOSTS:
        assert runs(host) == image_id(host, SECOND)
        assert generation(host) == (2, True)
        assert SECOND in table(text)[host] and " yes" in table(text)[host]
    assert drained() == []


@pytest.mark.nightly
def test_run_again_it_costs_a_look():
    before = {host: container(host) for host in HOSTS}
    code, text = play("rollout", rollout_image=SECOND)
    assert code == 0, text
    assert f"already there: {', '.join(HOSTS)}" in text
    assert {host: container(host) for host in HOSTS} == before
    # Host, images, generation; the others keep facts on the controller, or run once.
    assert all(tasks_of(text, host) <= 10 for host in HOSTS), text
    assert all(generation(host) == (2, True) for host in HOSTS)


@pytest.mark.nightly
def test_a_bad_image_stops_at_the_canary_and_goes_back_by_itself():
    before = {host: container(host) for host in HOSTS}
    with clients() as (answers, refused):
        code, text = play("rollout", rollout_image=BROKEN, spark_rollout_canary="spark-2")
    assert code != 0
    assert refused == [] and answers, refused
    assert "The rollout stops; hosts of later batches were not changed" in text
    assert "failed, back at 2" in table(text)["spark-2"], text
    assert runs("spark-2") == image_id("spark-2", SECOND)
    assert generation("spark-2") == (2, True)
    untouched = [host for host in HOSTS if host != "spark-2"]
    assert {host: container(host) for host in untouched} == {host: before[host] for host in untouched}
    assert drained() == []
    # The failed generation is kept under its number, for a look at it.
    assert json.loads(node("spark-2", "cat", "/var/lib/dgxspark/generations/3.json"))["proven"] is False


def kill_when(condition, playbook, *options, **variables):
    """Run a playbook, and kill all that its controller has of it as soon as a condition holds."""
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), *command(playbook, *options, **variables)[1:]]
    with subprocess.Popen(
        argv,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=ENVIRONMENT,
    ) as dying:
        deadline = time.monotonic() + 480
        while not condition():
            assert dying.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        os.killpg(dying.pid, signal.SIGKILL)
    # A module that is under way on a host goes on; runs at the same time refuse each other.
    while any(node(host, "pgrep", "-f", "BECOME-SUCCESS", check=False) for host in HOSTS):
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.nightly
def test_a_controller_that_dies_in_between_is_no_loss():
    options = {"rollout_image": FIRST, "spark_rollout_canary": "spark-3", "spark_rollout_batch": 3}
    before = {host: container(host) for host in HOSTS}
    with clients() as (answers, refused):
        # The canary is through, and a host of the next batch is in the middle.
        kill_when(lambda: container("spark-1") != before["spark-1"], "rollout", **options)
        code, text = play("rollout", **options)
    assert code == 0, text
    assert refused == [] and answers, refused
    assert "already there: spark-3" in text
    for host in HOSTS:
        assert runs(host) == image_id(host, FIRST)
        assert generation(host)[1] is True
    assert drained() == []


def other():
    """The proven generation that the fleet is not at, and its image."""
    return (1, FIRST) if generation("spark-1")[0] == 2 else (2, SECOND)


def report_of(number):
    """Return the command that asks for a generation. Without a number a host that a rollout has put back stays unchanged."""
    return {} if number == 2 else {"generation": number}


@pytest.mark.nightly
def test_a_check_of_the_way_back_touches_nobody():
    number, image = other()
    before = {host: runs(host) for host in HOSTS}
    code, text = play("rollback", "--check", **report_of(number))
    assert code == 0, text
    assert "restarts spark-chat.service" in text
    assert {host: runs(host) for host in HOSTS} == before
    assert all(before[host] != image_id(host, image) for host in HOSTS)


def test_the_fleet_goes_back_while_clients_are_served():
    number, image = other()
    assert all(runs(host) != image_id(host, image) for host in HOSTS)
    with clients() as (answers, refused):
        code, text = play("rollback", spark_rollback_batch=len(HOSTS) // 2, **report_of(number))
    assert code == 0, text
    assert refused == [] and answers, refused
    for host in HOSTS:
        assert runs(host) == image_id(host, image)
        assert generation(host) == (number, True)
        assert image in table(text)[host]


@pytest.mark.nightly
def test_back_already_the_same_command_changes_nothing():
    before = {host: container(host) for host in HOSTS}
    code, text = play("rollback", **report_of(generation("spark-1")[0]))
    assert code == 0 and re.search(r"changed=[1-9]", text) is None, text
    assert {host: container(host) for host in HOSTS} == before


@pytest.mark.nightly
def test_what_is_gone_is_named_and_nobody_is_touched():
    number, image = other()
    # An image stays as long as another one is made from it.
    refs = [SECOND, BROKEN] if image == SECOND else [image]
    names = node("spark-1", "docker", "image", "inspect", "--format", '{{join .RepoTags " "}}', *refs).split()
    before = {host: container(host) for host in HOSTS}
    node("spark-1", "docker", "save", "--output", "/root/gone.tar", *names)
    try:
        node("spark-1", "docker", "image", "rm", "--force", *names)
        code, text = play("rollback", generation=number)
        assert code != 0
        assert "no host was touched" in text and "is not on this host any more" in text
        assert {host: container(host) for host in HOSTS} == before
    finally:
        node("spark-1", "docker", "load", "--input", "/root/gone.tar")
        node("spark-1", "rm", "/root/gone.tar")


TUNE = {
    "service": "chat",
    "spark_bench": {"prompt_tokens": [64], "output_tokens": 32, "repeats": 1, "concurrency": [4], "ceiling": False},
    "spark_tune": {
        "levers": ["no-drafts"],
        "goal": "together",
        "variants": {"few": {"max-num-seqs": 3}},
    },
}


def streams():
    """C(max-num-seqs) of the engine of spark-2, empty without one."""
    shown = node("spark-2", "docker", "container", "inspect", "--format", "{{.Args}}", "spark-chat", check=False)
    match = re.search(r"--max-num-seqs (\d+)", shown)
    return match[1] if match else ""


@pytest.mark.nightly
def test_tuning_drains_its_service_and_a_controller_that_dies_leaves_nothing_behind():
    image = {"rollout_image": FIRST if other()[1] == SECOND else SECOND}
    tune, options, unit = ("tune", "--limit", "spark-2"), {**TUNE, **image}, "/etc/systemd/system/spark-chat.service"
    before, seen, over = node("spark-2", "cat", unit), [], threading.Event()
    (ROOT / "molecule" / ".spark" / "tune" / "spark-2.chat.json").unlink(missing_ok=True)  # of an earlier run

    def watch():
        while not over.wait(0.5):
            seen.append((streams(), drained()))

    with clients() as (answers, refused):
        # While the service is measured as it is, and while a variant of it is.
        for number in (streams(), "3"):
            kill_when(lambda number=number: (streams(), drained()) == (number, ["spark-2/chat"]), *tune, **options)
            code, text = play("site", **image)
            assert code == 0, text
            assert node("spark-2", "cat", unit) == before and drained() == []
        kill_when(lambda: streams() == "3" and drained(), *tune, **options)
        watching = threading.Thread(target=watch)
        watching.start()
        try:
            code, text = play(*tune, **options)
        finally:
            over.set()
            watching.join()
    assert code == 0, text
    assert "chat stays as the inventory has it" in text, text
    assert node("spark-2", "cat", unit) == before and drained() == []
    # The variant was measured alone, and no request of a client failed.
    assert {name for _number, names in seen for name in names} == {"spark-2/chat"}
    assert "3" in {number for number, names in seen if names}
    assert refused == [] and len(answers) > 20, refused
