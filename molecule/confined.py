"""The kernel's record of a container's rights, which tests of several scenarios compare with the intended ones."""

from __future__ import annotations

import json

CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
WEIGHTS = "/root/.cache/huggingface"


def confined(run, container, capabilities=0):
    """See that an engine's container has no more than it is given. C(run) runs words as root on its node and returns what they print."""
    shown = json.loads(run("docker", "inspect", container))[0]
    assert shown["HostConfig"]["CapDrop"] == ["ALL"]
    assert shown["HostConfig"]["SecurityOpt"] == ["no-new-privileges"]
    assert shown["HostConfig"]["PidsLimit"] == 16384
    assert not shown["HostConfig"]["Privileged"]
    pid = str(shown["State"]["Pid"])
    status = dict(line.split(":", 1) for line in run("cat", f"/proc/{pid}/status").splitlines())
    assert {name: int(status[name], 16) & ~capabilities for name in CAPABILITIES} == dict.fromkeys(CAPABILITIES, 0)
    assert int(status["NoNewPrivs"]) == 1
    assert int(status["Uid"].split()[0]) == 0  # the image's user; without capabilities it is one like any other
    mounts = {
        fields[4]: fields[5].split(",") for fields in map(str.split, run("cat", f"/proc/{pid}/mountinfo").splitlines())
    }
    assert "ro" in mounts[WEIGHTS] and "rw" in mounts["/root/.cache/dgxspark"]
    assert all(
        "ro" in options for target, options in mounts.items() if target.startswith(("/etc/dgxspark/", "/run/dgxspark/"))
    )
