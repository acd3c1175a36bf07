"""What the role ray leaves behind."""

from __future__ import annotations

import json

TAG = "dgxspark/ray:0123456789ab"


def inspect(host, image):
    with host.sudo():
        return json.loads(host.check_output("docker image inspect %s", image))[0]


def test_ray_is_in_it_and_the_rest_is_as_before(host):
    base, made = inspect(host, "sim/with-pip:1"), inspect(host, TAG)
    assert made["Config"]["Labels"]["dgxspark.base"] == base["Id"]
    assert made["Config"]["Labels"]["dgxspark.ray"] == "9.9.9"
    for key in ("Entrypoint", "Cmd", "Env", "User"):
        assert made["Config"][key] == base["Config"][key]
    assert base["Config"]["User"] == "1000:1000"
    layers = base["RootFS"]["Layers"]
    assert made["RootFS"]["Layers"][: len(layers)] == layers
    with host.sudo():
        version = host.check_output("docker run --rm --entrypoint ray %s --version", TAG)
        files = host.check_output("docker run --rm --entrypoint ls %s -A /opt", TAG)
    assert version == "ray, version 9.9.9"
    assert "dgxspark-wheels" not in files


def test_the_index_is_in_no_history(host):
    with host.sudo():
        history = host.check_output("docker history --no-trunc %s", TAG)
    assert "ray==9.9.9" in history
    assert ":5001" not in history and "PIP_INDEX_URL" not in history


def test_it_was_built_once_in_all_runs(host):
    """Each build would have been a fetch from the index; check mode and the second run fetched nothing."""
    with host.sudo():
        fetched = host.check_output("journalctl --unit sim-ray-index --output cat").count("ray-9.9.9-py3-none-any.whl")
        names = host.check_output("docker image ls --format '{{.Repository}}:{{.Tag}}'").splitlines()
    assert fetched == 1
    assert TAG in names and "dgxspark/ray:never" not in names
