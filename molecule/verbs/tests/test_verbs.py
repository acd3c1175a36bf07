"""The owner's verbs as an owner types them, and what they leave on the nodes.

The tests run in order on the shared nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
UNITS = {"spark-1": ["heavy", "spare"], "spark-2": ["fast"]}


def name(host):
    return host.backend.get_hostname()


def run(verbs, *options, code=0):
    """Type a verb, or several one after another; return the output."""
    argv = ["ansible-playbook", *(f"dgxspark.vllm.{verb}" for verb in verbs.split())]
    argv += [f"--inventory={ROOT}/molecule/inventory.yml", f"--inventory={ROOT}/molecule/verbs/inventory.yml", *options]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    text = ran.stdout + ran.stderr
    assert ran.returncode == code, text
    return text


def active(host):
    return [unit for unit in UNITS[name(host)] if host.service(f"spark-{unit}").is_running]


def enabled(host):
    return [unit for unit in UNITS[name(host)] if host.service(f"spark-{unit}").is_enabled]


def available_gib(host):
    text = host.check_output("grep MemAvailable /run/spark-sim/root/proc/meminfo")
    return int(text.split()[1]) / 1024 / 1024


def asks(host, port):
    return host.run("curl --fail --silent --max-time 5 http://127.0.0.1:%s/v1/models", str(port)).rc == 0


@pytest.fixture
def first(host):
    """The node that the tests are about; the other one is only looked at."""
    if name(host) != "spark-1":
        pytest.skip("the verbs are typed once")
    return host


def test_a_stop_ends_when_the_memory_is_back(first):
    run("stop", "-e", "services=spare")
    # Of the set one runs, now as after a boot.
    assert active(first) == enabled(first) == ["heavy"]
    before = available_gib(first)
    text = run("stop", "-e", "services=heavy", "-e", "spark_stop_permanent=true")
    # 0.40 of 119.67 GiB and an engine's memory outside of it, minus the unused part of its request.
    assert available_gib(first) - before > 40
    assert "heavy stopped" in text
    assert active(first) == []
    assert "heavy" not in enabled(first)


def test_a_second_stop_changes_nothing(first):
    assert "changed=0" in run("stop", "-e", "services=all", "--limit", "spark-1")


def test_a_start_proves_and_enables(first):
    run("start", "-e", "services=heavy")
    assert active(first) == ["heavy"]
    assert "heavy" in enabled(first)
    assert asks(first, 8001)


def test_one_of_a_set_is_not_started_beside_another(first):
    text = run("start", "-e", "services=spare", code=2)
    assert "-e out=heavy -e in=spare" in text
    assert active(first) == ["heavy"]


def test_a_swap_changes_what_runs_now_and_after_a_boot(first):
    run("swap", "-e", "out=heavy", "-e", "in=spare")
    assert active(first) == enabled(first) == ["spare"]
    assert asks(first, 8002)
    assert not asks(first, 8001)


def test_what_does_not_prove_goes_and_the_old_one_comes_back(first):
    with first.sudo():
        first.check_output("echo SPARK_SIM_FAULT=fail >> /etc/dgxspark/env/heavy.env")
        text = run("swap", "-e", "out=spare", "-e", "in=heavy", code=2)
        first.check_output("sed -i /SPARK_SIM_FAULT/d /etc/dgxspark/env/heavy.env")
    assert "spare is back as it was" in text
    assert active(first) == enabled(first) == ["spare"]
    assert asks(first, 8002)


def test_without_names_all_that_is_meant_to_run_is_stopped_and_started(first):
    run("stop", "-e", "services=all")
    assert active(first) == []
    run("start")
    # The first of the set, since none of it ran.
    assert active(first) == ["heavy"]


def test_the_other_node_followed(host):
    if name(host) == "spark-2":
        assert active(host) == ["fast"]
        assert asks(host, 8001)


APT = """\
#!/bin/sh
echo "$*" >> /run/molecule-apt.log
case "$*" in
*--simulate*)
  test -e /run/molecule-updated || echo 'Inst curl [7.0-1] (7.0-2 Debian:12 [arm64])'
  test ! -e /run/molecule-kernel || echo 'Inst linux-image-7.0.0-1019-nvidia (7.0.0-1019.19 DGX:noble [arm64])' ;;
*--assume-yes*) touch /run/molecule-updated ;;
esac
"""


@pytest.fixture
def updates(first):
    """The node with an apt-get that has something to bring, and without a way out."""
    with first.sudo():
        first.run("printf %s > /usr/local/sbin/apt-get && chmod 0755 /usr/local/sbin/apt-get", APT)
        first.check_output("rm -f /run/molecule-apt.log /run/molecule-updated /run/molecule-kernel")
        yield first
        first.check_output(
            "rm -f /usr/local/sbin/apt-get /run/molecule-apt.log /run/molecule-updated /run/molecule-kernel"
        )


def started_at(host, unit):
    return host.check_output("systemctl show --property=ActiveEnterTimestampMonotonic --value spark-%s", unit)


UPDATE = ("--limit", "spark-1", "-e", "spark_update_reboot=never")


def test_an_update_is_shown_before_it_is_confirmed(updates):
    text = run("update_host", *UPDATE)
    assert "1 package, 0 to be removed" in text
    assert "--assume-yes" not in updates.file("/run/molecule-apt.log").content_string


def test_a_known_bad_kernel_keeps_everything_as_it_is(updates):
    before = started_at(updates, "heavy")
    updates.check_output("touch /run/molecule-kernel")
    text = run("update_host", *UPDATE, "-e", "spark_update_confirm=true", code=2)
    assert "7.0.0-1019-nvidia" in text
    assert started_at(updates, "heavy") == before
    assert "--assume-yes" not in updates.file("/run/molecule-apt.log").content_string


def test_an_update_has_the_service_stopped_meanwhile_and_proved_again(updates):
    before = started_at(updates, "heavy")
    run("update_host", *UPDATE, "-e", "spark_update_confirm=true")
    assert "--assume-yes" in updates.file("/run/molecule-apt.log").content_string
    assert active(updates) == ["heavy"]
    assert int(started_at(updates, "heavy")) > int(before)
    assert asks(updates, 8001)


@pytest.mark.nightly
def test_a_second_update_passes_the_host_over(updates):
    updates.check_output("touch /run/molecule-updated")
    before = started_at(updates, "heavy")
    run("update_host", *UPDATE, "-e", "spark_update_confirm=true")
    assert started_at(updates, "heavy") == before


CHECKED = {
    "services": "heavy",
    "out": "heavy",
    "in": "spare",
    "spark_adopt_confirm": True,
    "spark_clean_remove": "caches,downloads",
    "spark_update_confirm": True,
}


@pytest.mark.nightly
def test_a_check_of_every_verb_changes_nothing(updates):
    def state():
        listed = updates.check_output("docker ps --all --no-trunc --format '{{.ID}} {{.Status}}' | cut -c -67")
        return active(updates), enabled(updates), started_at(updates, "heavy"), sorted(listed.split("\n"))

    updates.check_output("mkdir -p /var/cache/dgxspark/gone")
    before = state()
    text = run(
        "stop start swap adopt clean update_host", "--check", "--diff", "--limit", "spark-1", "-e", json.dumps(CHECKED)
    )
    assert state() == before
    assert "/var/cache/dgxspark/gone" in text
    assert updates.file("/var/cache/dgxspark/gone").exists
    assert "1 package, 0 to be removed" in text
    assert "--assume-yes" not in updates.file("/run/molecule-apt.log").content_string
    assert "spark-2" not in text


WEIGHTS = "/srv/huggingface/hub/models--Qwen--Qwen3-4B-Instruct-2507"
OLD = "0" * 40
# Notes as after a run, which claim hand-made files for this collection; the other files stay the owner's.
NOTE = """
import json, pathlib, sys
state, image, weights, old = pathlib.Path("/var/lib/dgxspark"), *sys.argv[1:]
made = json.loads((state / "made").read_text())
made["images"] = sorted({*made.get("images", []), image})
made.setdefault("folders", {})["/var/cache/dgxspark/gone"] = "cache"
(state / "made").write_text(json.dumps(made))
model = pathlib.Path(weights).relative_to("/srv/huggingface")
note = state / "models" / (model.name[len("models--"):] + ".made")
note.parent.mkdir(exist_ok=True)
names = [f"{model}/{name}" for name in (f"snapshots/{old}", f"snapshots/{old}/config.json", "blobs/old")]
note.write_text(json.dumps({"homes": {"/srv/huggingface": sorted(names)}}))
"""


@pytest.fixture
def leftovers(first):
    """What a host gathers over time, of every kind."""
    with first.sudo():
        # Without those that have no name, which other scenarios may have left: nothing uses them.
        images = first.check_output(
            "docker image ls --filter dangling=false --format '{{.Repository}}:{{.Tag}}'"
        ).split()
        first.check_output("tar -cf - --files-from /dev/null | docker import - vllm/vllm-openai:v0.0.1")
        first.check_output("mkdir -p /var/cache/dgxspark/gone && touch /var/cache/dgxspark/gone/kernel")
        folder = "/srv/huggingface/hub/models--Org--Forgotten"
        first.check_output("mkdir -p %s/blobs && echo weights > %s/blobs/a", folder, folder)
        first.check_output("mkdir -p %s/snapshots/%s && echo old > %s/blobs/old", WEIGHTS, OLD, WEIGHTS)
        first.check_output("ln -s ../../blobs/old %s/snapshots/%s/config.json", WEIGHTS, OLD)
        image = first.check_output("docker image inspect --format '{{.Id}}' vllm/vllm-openai:v0.0.1")
        first.check_output("python3 -c %s %s %s %s", NOTE, image, WEIGHTS, OLD)
        yield first, images, folder
        first.check_output("rm -rf %s %s/snapshots/%s %s/blobs/old", folder, WEIGHTS, OLD, WEIGHTS)
        first.run("docker image rm vllm/vllm-openai:v0.0.1")


def test_what_nothing_uses_is_listed_and_removed_on_request(leftovers):
    first, images, folder = leftovers
    # Images of other scenarios lie here, too.
    extra_vars = json.dumps({"spark_clean_keep": images})
    text = run("clean", "--limit", "spark-1", "-e", extra_vars)
    for named in ("/var/cache/dgxspark/gone", "Org/Forgotten", "vllm/vllm-openai:v0.0.1", f"2507@{OLD[:12]}"):
        assert named in text
    assert text.count("Qwen3-4B-Instruct-2507") == 1  # the old revision alone
    kinds = ("-e", "spark_clean_remove=caches,downloads,images,revisions")
    assert "spark_clean_weights=true" in run("clean", "--limit", "spark-1", "-e", extra_vars, *kinds, code=2)
    assert first.file(f"{WEIGHTS}/snapshots/{OLD}").exists
    run("clean", "--limit", "spark-1", "-e", extra_vars, *kinds, "-e", "spark_clean_weights=true")
    for gone in ("/var/cache/dgxspark/gone", f"{WEIGHTS}/snapshots/{OLD}", f"{WEIGHTS}/blobs/old"):
        assert not first.file(gone).exists
    assert first.run("docker image inspect vllm/vllm-openai:v0.0.1").rc != 0
    # Used, or not asked for.
    assert first.file("/var/cache/dgxspark/heavy").exists
    assert first.file(folder).exists
    assert set(images) <= set(first.check_output("docker image ls --format '{{.Repository}}:{{.Tag}}'").split())
    assert asks(first, 8001)


@pytest.fixture
def second(host):
    """The node that somebody has started a container on by hand."""
    if name(host) != "spark-2":
        pytest.skip("adopting is tried on the other node")
    return host


IMAGE = "vllm/vllm-openai:v0.24.0-ubuntu2404"
SERVE = "Qwen/Qwen3-4B-Instruct-2507 --gpu-memory-utilization 0.2 --max-model-len 8192 --served-model-name mine"
MOUNTS = "--network host --volume /srv/huggingface:/root/.cache/huggingface --env HF_HUB_OFFLINE=1 --volume /run/spark-sim:/run/spark-sim"
CONFIRM = ("--limit", "spark-2", "-e", "spark_adopt_confirm=true")
UNDO = ("--limit", "spark-2", "-e", "spark_adopt_undo=true")


def until(condition, why, seconds=60):
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            pytest.fail(why())
        time.sleep(0.5)


def serves(host, port):
    """The name of the model that is served on a port, empty when nobody answers."""
    shown = host.run("curl --fail --silent --max-time 5 http://127.0.0.1:%s/v1/models", str(port))
    return json.loads(shown.stdout)["data"][0]["id"] if shown.rc == 0 else ""


def state_of(host, container):
    shown = host.check_output(
        "docker inspect --format '{{.State.Running}} {{.HostConfig.RestartPolicy.Name}}' %s", container
    )
    return shown.split()


def flat(text):
    return " ".join(text.split())


def stop_fast(host):
    """`fast` is not there while somebody serves its model by hand."""
    if active(host) or enabled(host):
        run("stop", "-e", "services=fast", "-e", "spark_stop_permanent=true", "--limit", "spark-2")


@pytest.fixture
def container(second):
    """A container of `docker run` on the port of `fast`."""
    with second.sudo():
        stop_fast(second)
        second.check_output(
            f"docker run --detach --name mine --restart unless-stopped {MOUNTS} {IMAGE} {SERVE} --port 8001"
        )
        until(lambda: asks(second, 8001), lambda: second.run("docker logs mine").stdout[-2000:])
        yield second
        stop_fast(second)
        second.check_output("docker rm --force mine")


UNITS_BY_HAND = {
    "docker": f"/usr/bin/docker run --rm --name mine {MOUNTS} {IMAGE} {SERVE} --port 8011",
    "venv": f"/opt/molecule/bin/vllm serve {SERVE} --port 8011",
}
# A foreign vLLM without a container: in /proc an interpreter stands before a script, as for the real one.
VENV = """\
#!/usr/bin/python3
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"data": [{"id": "mine"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""
ASK = """\
#!/bin/sh
# Asks as a client does that knows both addresses, twenty times a second: a gap is a moment when none of them answers.
while :; do
  for port in 8011 8001; do
    curl --fail --silent --max-time 5 --output /dev/null http://127.0.0.1:$port/v1/models && echo $port && sleep 0.05 && continue 2
  done
  echo gap
done
"""


@pytest.fixture(params=["venv", pytest.param("docker", marks=pytest.mark.nightly)])
def unit(request, second):
    """A unit that somebody wrote, on another port than `fast`, with and without a container."""
    text = (
        f"[Service]\nExecStart={UNITS_BY_HAND[request.param]}\nRestart=always\n[Install]\nWantedBy=multi-user.target\n"
    )
    with second.sudo():
        stop_fast(second)
        second.check_output("mkdir -p /opt/molecule/bin")
        for path, content in (("/opt/molecule/bin/vllm", VENV), ("/opt/molecule/bin/ask", ASK)):
            second.check_output("printf %%s %s > %s && chmod 0755 %s", content, path, path)
        second.check_output("printf %%s %s > /etc/systemd/system/mine.service", text)
        second.check_output("systemctl daemon-reload && systemctl enable --now mine.service")
        until(lambda: asks(second, 8011), lambda: second.run("journalctl -u mine -n 50").stdout)
        second.check_output(
            "systemd-run --collect --unit molecule-ask sh -c '/opt/molecule/bin/ask > /run/molecule-asked'"
        )
        yield second
        second.run("systemctl stop molecule-ask.service")
        stop_fast(second)
        second.run("systemctl disable --now mine.service")
        second.check_output("rm -rf /etc/systemd/system/mine.service /opt/molecule && systemctl daemon-reload")


@pytest.mark.nightly
def test_a_container_that_cannot_be_replaced_stays(container):
    text = flat(run("adopt", *CONFIRM, "--check", "--diff"))
    assert "mine: service fast can take its place (same model), instead it: both want port 8001" in text
    assert state_of(container, "mine") == ["true", "unless-stopped"]
    fault = '{"spark_defaults": {"env": {"SPARK_SIM_FAULT": "fail"}}}'
    assert "mine is back as it was:" in flat(run("adopt", *CONFIRM, "-e", fault, code=2))
    assert state_of(container, "mine") == ["true", "unless-stopped"]
    assert serves(container, 8001) == "mine"
    assert active(container) == []


def test_a_container_made_by_hand_is_adopted_and_can_have_its_place_back(container):
    run("adopt", *CONFIRM)
    assert state_of(container, "mine") == ["false", "no"]
    assert active(container) == enabled(container) == ["fast"]
    assert serves(container, 8001) == "fast"
    text = run("adopt", *CONFIRM)
    assert "changed=0" in text
    assert "mine: fast has taken its place; it can come back" in flat(text)
    run("adopt", *UNDO)
    assert state_of(container, "mine") == ["true", "unless-stopped"]
    assert active(container) == enabled(container) == []
    assert serves(container, 8001) == "mine"
    assert "changed=0" in run("adopt", *UNDO)


@pytest.mark.nightly
def test_a_unit_made_by_hand_is_adopted_without_a_gap_and_can_have_its_place_back(unit):
    assert "service fast can take its place (same model), beside it: ports differ" in flat(run("adopt", *CONFIRM))
    until(lambda: "8001" in unit.file("/run/molecule-asked").content_string, lambda: "nobody asked the service")
    unit.check_output("systemctl stop molecule-ask.service")
    answered = unit.file("/run/molecule-asked").content_string.split()
    assert "gap" not in answered
    assert set(answered) == {"8001", "8011"}
    assert not unit.service("mine").is_running
    assert not unit.service("mine").is_enabled
    assert active(unit) == enabled(unit) == ["fast"]
    run("adopt", *UNDO)
    assert unit.service("mine").is_running
    assert unit.service("mine").is_enabled
    assert serves(unit, 8011) == "mine"
    assert active(unit) == enabled(unit) == []
