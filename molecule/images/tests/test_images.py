"""What the role images leaves behind."""

from __future__ import annotations


def test_the_image_came_and_the_other_stayed(host):
    with host.sudo():
        images = host.check_output("docker images --format '{{.Repository}}:{{.Tag}}'").splitlines()
    assert "127.0.0.1:5000/sim/tiny:1" in images
    assert "nvcr.io/nvidia/vllm:26.04-py3" in images
