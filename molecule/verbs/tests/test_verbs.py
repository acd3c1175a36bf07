"""The owner's verbs as an owner types them, and what they leave on the nodes.

The tests run in order on the shared nodes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
UNITS = {"spark-1": ["heavy", "spare"], "spark-2": ["fast"]}


def name(host):
    return host.backend.get_hostname()


def run(verb, *options, code=0):
    """Type a verb; return what it printed."""
    argv = [Path(sys.executable).with_name("ansible-playbook"), f"dgxspark.vllm.{verb}"]
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
    assert active(first) == ["heavy"]
    assert "spare" in enabled(first)
    before = available_gib(first)
    text = run("stop", "-e", "services=heavy", "-e", "spark_stop_permanent=true")
    # 0.40 of 119.67 GiB and what an engine takes beside it, minus what it leaves of its request.
    assert available_gib(first) - before > 40
    assert "heavy stopped" in text
    assert active(first) == []
    assert "heavy" not in enabled(first)


def test_a_second_stop_changes_nothing(first):
    assert "changed=0" in run("stop", "--limit", "spark-1")


def test_names_that_are_wrong_are_told_at_once_and_touch_nothing(first):
    text = run("stop", "-e", "services=heavi,fast", "--limit", "spark-1", code=2)
    assert "did you mean 'heavy'?" in text
    assert "is on spark-2, which this run leaves out" in text
    assert "PLAY [Stop]" not in text


def test_a_start_proves_and_enables(first):
    run("start", "-e", "services=heavy")
    assert active(first) == ["heavy"]
    assert "heavy" in enabled(first)
    assert asks(first, 8001)


def test_one_of_a_set_is_not_started_beside_another(first):
    text = run("start", "-e", "services=spare", code=2)
    assert "-e out=heavy -e in=spare" in text
    assert active(first) == ["heavy"]


def test_a_swap_in_check_mode_changes_nothing(first):
    run("swap", "-e", "out=heavy", "-e", "in=spare", "--check")
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
    run("stop")
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


def test_a_second_update_passes_the_host_over(updates):
    updates.check_output("touch /run/molecule-updated")
    before = started_at(updates, "heavy")
    run("update_host", *UPDATE, "-e", "spark_update_confirm=true")
    assert started_at(updates, "heavy") == before


def test_what_nothing_uses_is_listed_and_removed_on_request(first):
    with first.sudo():
        first.check_output("mkdir -p /var/cache/dgxspark/gone && touch /var/cache/dgxspark/gone/kernel")
        folder = "/srv/huggingface/hub/models--Org--Forgotten"
        first.check_output("mkdir -p %s/blobs && echo weights > %s/blobs/a", folder, folder)
        text = run("clean", "--limit", "spark-1")
        assert "/var/cache/dgxspark/gone" in text
        assert "Org/Forgotten" in text
        assert "qwen3-4b" not in text.lower()  # in use
        run("clean", "--limit", "spark-1", "-e", "spark_clean_remove=caches,downloads")
        assert not first.file("/var/cache/dgxspark/gone").exists
        assert first.file("/var/cache/dgxspark/heavy").exists
        assert first.file(folder).exists
        first.check_output("rm -r %s", folder)


@pytest.fixture
def second(host):
    """The node that somebody has started a container on by hand."""
    if name(host) != "spark-2":
        pytest.skip("adopting is tried on the other node")
    return host


def by_hand(host):
    """What runs the model of `fast` on its port, without this collection."""
    run("stop", "-e", "services=fast", "--limit", "spark-2")
    image = host.check_output(
        "sed -n 's/.* \\(sha256:[0-9a-f]*\\|[^ ]*vllm[^ ]*\\) vllm serve .*/\\1/p' /etc/systemd/system/spark-fast.service"
    ).split()[0]
    host.check_output(
        "docker run --detach --name mine --restart unless-stopped --network host --volume /srv/huggingface:/root/.cache/huggingface "
        "--env HF_HUB_OFFLINE=1 --volume /run/spark-sim:/run/spark-sim %s vllm serve Qwen/Qwen3-4B-Instruct-2507 --port 8001 "
        "--gpu-memory-utilization 0.2 --max-model-len 8192 --served-model-name mine",
        image,
    )
    for _try in range(60):
        if asks(host, 8001):
            return
        time.sleep(1)
    pytest.fail(host.run("docker logs mine").stdout[-2000:])


def state_of(host, container):
    shown = host.check_output(
        "docker inspect --format '{{.State.Running}} {{.HostConfig.RestartPolicy.Name}}' %s", container
    )
    return shown.split()


def test_a_container_that_cannot_be_replaced_stays(second):
    with second.sudo():
        by_hand(second)
        text = run("adopt", "--limit", "spark-2")
        assert "mine: service fast can take its place (same model), instead it: both want port 8001" in " ".join(
            text.split()
        )
        assert state_of(second, "mine") == ["true", "unless-stopped"]
        fault = '{"spark_adopt_confirm": true, "spark_defaults": {"env": {"SPARK_SIM_FAULT": "fail"}}}'
        text = run("adopt", "--limit", "spark-2", "-e", fault, code=2)
        assert "is back as it was" in " ".join(text.split())
        assert state_of(second, "mine") == ["true", "unless-stopped"]
        assert active(second) == []


def test_a_container_made_by_hand_is_adopted(second):
    with second.sudo():
        run("adopt", "--limit", "spark-2", "-e", "spark_adopt_confirm=true")
        assert state_of(second, "mine") == ["false", "no"]
        assert active(second) == ["fast"]
        assert asks(second, 8001)
        assert "changed=0" in run("adopt", "--limit", "spark-2", "-e", "spark_adopt_confirm=true")
        second.check_output("docker rm mine")
