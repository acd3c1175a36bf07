"""An engine that gives garbage after a while is found, drained, told and, once it answers well again, admitted; the agent restarts nothing.

The tests run in order on one node.
"""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest

STATE = "/var/lib/dgxspark/watchdog/quality.json"
ASK = (
    "curl --silent --max-time 60 http://127.0.0.1:%d/v1/chat/completions --header 'Content-Type: application/json' "
    """--data '{"model": "twin", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}'"""
)
TIRED, GATEWAY = 8002, 4000


def note(host):
    with host.sudo():
        return json.loads(host.file(STATE).content_string)["services"]["tired"]


def wait_for(condition, seconds=300):
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if condition():
            return
        time.sleep(1)
    pytest.fail("it did not come to that")


def answers(host, port):
    return "simulated" in host.run(ASK % port).stdout


def invocation(host):
    return host.check_output("systemctl show --property=InvocationID --value spark-tired")


def drained(host):
    with host.sudo():
        status = host.check_output("python3 /usr/local/libexec/dgxspark/spark_gateway.py --json status")
    return bool(json.loads(status.splitlines()[-1])["backends"]["spark-1/tired"]["drained_since"])


def playbook(name, *words):
    """Type a playbook as an owner does; returns its exit code and output."""
    project = os.environ["MOLECULE_PROJECT_DIRECTORY"]
    inventories = [f"--inventory={project}/molecule/{path}" for path in ("inventory.yml", "quality/inventory.yml")]
    argv = ["ansible-playbook", *inventories, "--limit=spark-1", f"{project}/playbooks/{name}.yml", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_good_answers_of_each_kind(host):
    wait_for(lambda: {"retrieval good", "long_answer good"} <= set(note(host)["counts"]))
    assert note(host)["state"] == "good" and not drained(host)


def test_an_engine_that_degenerates_is_found_and_drained_but_not_restarted(host):
    before = invocation(host)
    assert host.run(f"seq 400 | xargs -P 4 -I@ {ASK % TIRED} --output /dev/null").rc == 0
    wait_for(lambda: note(host)["state"] == "degenerate")
    wait_for(lambda: drained(host))
    found = note(host)
    assert "times in a row" in found["text"] and found["drained"] == "spark-1/tired"
    with host.sudo():
        assert host.file(found["evidence"]).mode == 0o700
        why = json.loads(host.file(f"{found['evidence']}/why.json").content_string)
        assert set(why["answers"][-1]["answer"]) == {"!"}
        assert "vllm:generation_tokens_total" in host.file(f"{found['evidence']}/metrics.txt").content_string
    # Short requests and its health stay good; the other replica serves on.
    assert (
        answers(host, TIRED)
        and answers(host, GATEWAY)
        and host.run(f"curl -fs http://127.0.0.1:{TIRED}/health").rc == 0
    )
    assert invocation(host) == before


def test_status_and_doctor_tell_it(host):
    code, output = playbook("status", "-e", "spark_status_show=table")
    assert code != 0 and "degenerate" in output.lower() and "drained at the gateway" in output, output
    _code, output = playbook("doctor")
    assert "doctor.degenerate" in output and "systemctl restart spark-tired.service" in output, output


def test_good_answers_after_a_restart_admit_it_again(host):
    with host.sudo():
        host.check_output("systemctl restart spark-tired")
    wait_for(lambda: note(host)["state"] == "good")
    wait_for(lambda: not drained(host))
