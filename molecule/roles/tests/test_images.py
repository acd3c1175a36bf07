"""What the role images leaves behind."""

from __future__ import annotations

import json


def test_the_image_came_and_the_other_stayed(host):
    with host.sudo():
        images = host.check_output("docker images --format '{{.Repository}}:{{.Tag}}'").splitlines()
    assert "127.0.0.1:5000/sim/tiny:1" in images
    assert "nvcr.io/nvidia/vllm:26.04-py3" in images


def test_what_the_images_said_is_kept(host):
    with host.sudo():
        image_id = host.check_output("docker image inspect --format '{{.Id}}' dgxspark/vllm-cpu:0.32.0")
        record = host.file(f"/var/lib/dgxspark/images/{image_id.partition(':')[2]}.json")
        assert record.mode == 0o644 and record.user == "root"
        answer = json.loads(record.content_string)["answer"]
        names = host.check_output("ls -A /var/lib/dgxspark/images").splitlines()
    assert answer["packages"]["vllm"].startswith("0.32.0")
    assert len(names) == 3


def test_each_image_was_asked_once_in_all_runs(host):
    """Converge ran twice; the second run had the answers."""
    with host.sudo():
        began = host.check_output("cat /run/sim-images-began")
        events = host.check_output(
            "docker events --since %s --until $(date +%%s) --filter type=container --filter event=create "
            "--format '{{.Actor.Attributes.name}}'",
            began,
        )
        containers = host.check_output("docker ps --all --format '{{.Names}}'").splitlines()
    probes = [name for name in events.splitlines() if name.startswith("dgxspark-probe-")]
    assert len(probes) == 3
    assert not [name for name in containers if name.startswith("dgxspark-probe-")]
