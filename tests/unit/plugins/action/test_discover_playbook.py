# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks discover.yml and quickstart.yml as a person runs them, on machines that this one plays.

Each is an address of the loopback network with its own ssh greeting. A script in place of ssh runs the given commands on this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible, ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import first_inventory

pytestmark = pytest.mark.slow

UBUNTU = b"SSH-2.0-OpenSSH_9.6p1 Ubuntu-3ubuntu13.5\r\n"
ROUTER = b"SSH-2.0-dropbear_2022.83\r\n"
# Only what discover.yml asks gets through: nothing that would change a host may run on this machine.
SSH = """\
#!/bin/sh
if [ "$1" = -G ]; then exec REAL_SSH -F "$SPARK_TEST/ssh_config" "$@"; fi
case "$*" in
*StrictHostKeyChecking=*) ;;
*)
    timeout 5 cat >/dev/null
    echo 'ssh: connect to host 192.0.2.7 port 22: No route to host' >&2
    exit 255
    ;;
esac
for word; do
    last=$word
    case $word in 127.*) address=$word ;; esac
done
if [ -e "$SPARK_TEST/refused-$address" ]; then
    timeout 5 cat >/dev/null
    cat "$SPARK_TEST/refused-$address" >&2
    exit 255
fi
while [ -e "$SPARK_TEST/hangs-$address" ]; do sleep 1; done
exec sh -c "$last"
"""
NVIDIA_SMI = """\
#!/bin/sh
case "$*" in
*--query-gpu*) echo '0, NVIDIA GB10, GPU-1, 580.159.03, 12.1, 44, 11.1, 2405, 0' ;;
*--query-compute*) ;;
*) echo 'CUDA Version: 13.0' ;;
esac
"""
# Docker does not list containers here: they would be engines that other tests run on this machine.
DOCKER = """\
#!/bin/sh
case "$*" in
"image inspect"*) echo "Error: No such image: $4" >&2; exit 1 ;;
"ps --all --quiet --no-trunc") echo 'Cannot connect to the Docker daemon' >&2; exit 1 ;;
info*) echo '{"ServerVersion": "29.2.1", "CgroupVersion": "2", "Runtimes": {"nvidia": {}, "runc": {}}}' ;;
esac
"""
IDLE = "MemTotal: 127535224 kB\nMemFree: 120000000 kB\nMemAvailable: 123000000 kB\nCached: 1000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"


class Lan:
    """Machines, each with its ssh greeting and its hardware."""

    def __init__(self, folder: Path, tree: Any) -> None:
        self.folder, self.tree = folder, type(tree)
        self.sockets: list[socket.socket] = []
        self.port = 0
        (folder / "bin").mkdir()
        (folder / "ssh_config").touch()
        for name, text in (
            ("ssh", SSH.replace("REAL_SSH", str(shutil.which("ssh")))),
            ("nvidia-smi", NVIDIA_SMI),
            ("docker", DOCKER),
            ("systemctl", "#!/bin/sh\n"),
            ("ss", "#!/bin/sh\n"),
            ("avahi-browse", "#!/bin/sh\necho 'Failed to create client object: Daemon not running' >&2\nexit 1\n"),
        ):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)

    def machine(self, address: str, greeting: bytes | None = UBUNTU, memory: str = IDLE) -> Any:
        """Put a machine on the network; without a greeting its port is open and silent."""
        server = socket.create_server((address, self.port))
        self.port = server.getsockname()[1]
        self.sockets.append(server)

        def serve() -> None:
            existing = []
            while True:
                try:
                    connection, _peer = server.accept()
                except OSError:
                    return
                existing.append(connection)
                if greeting is not None:
                    connection.sendall(greeting)

        threading.Thread(target=serve, daemon=True).start()
        tree = self.tree(self.folder / "roots" / address)
        tree.write("proc/meminfo", memory)
        return tree

    def run(self, *options: str, playbook: str = "discover", **values: Any) -> tuple[int, str]:
        arguments = {
            "spark_sysroot": f"{self.folder}/roots/{{{{ inventory_hostname }}}}",
            "ansible_become": False,
            "ansible_ssh_executable": str(self.folder / "bin" / "ssh"),
            "ansible_remote_tmp": str(self.folder / "remote"),
            "discover_timeout": 20,
            **values,
        }
        ran = ansible_playbook(
            f"dgxspark.vllm.{playbook}",
            *options,
            "-e",
            json.dumps({name: value for name, value in arguments.items() if value is not None}),
            cwd=self.folder,
            env={"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "SPARK_TEST": str(self.folder)},
        )
        return ran.returncode, ran.stdout + ran.stderr

    def close(self) -> None:
        for server in self.sockets:
            server.close()


@pytest.fixture
def lan(tmp_path: Path, tree: Any) -> Iterator[Lan]:
    made = Lan(tmp_path, tree)
    yield made
    made.close()


def test_a_spark_is_found_and_planned(lan: Lan) -> None:
    lan.machine("127.0.0.11")
    lan.machine("127.0.0.12", None)
    lan.machine("127.0.0.13", ROUTER)
    port = lan.port
    code, text = lan.run(discover_hosts=f"127.0.0.11:{port},127.0.0.12:{port},127.0.0.14:{port}", discover_timeout=4)
    assert code == 0, text
    inventory = yaml.safe_load((lan.folder / "my-sparks" / "hosts.yml").read_text())
    (host,) = inventory["sparks"]["hosts"].values()
    assert host["ansible_host"] == "127.0.0.11" and host["ansible_port"] == port
    flat = " ".join(text.split())
    # Facts outside the tree, such as the disk, come from this machine, so the plan may have findings.
    assert host["spark_services"][0]["recipe"] in text and "GiB free of 121.63" in flat and "1 host: 1 " in flat
    assert "not known: 127.0.0.12: did not answer in 4 s; it may be off or slow" in flat
    assert f"not known: 127.0.0.14: port {port}: Connection refused" in flat
    assert "580.159.03" in text and "what runs not known: docker failed: Cannot connect" in flat


def test_who_cannot_be_logged_in_to_is_not_known(lan: Lan) -> None:
    """A machine of a range is only asked if it could be a Spark; a refused login is reported with its fix."""
    for last in (21, 22):
        lan.machine(f"127.0.0.{last}")
    lan.machine("127.0.0.23", ROUTER)
    (lan.folder / "refused-127.0.0.21").write_text("spark@127.0.0.21: Permission denied (publickey,password).\n")
    (lan.folder / "refused-127.0.0.22").write_text("Host key verification failed.\n")
    port = lan.port
    code, text = lan.run(discover_hosts=[f"127.0.0.{last}:{port}" for last in (21, 22)])
    flat = " ".join(text.split())
    assert code == 2 and "no Spark was found; nothing was written. Mend the reasons above, or name other" in flat
    assert (
        "127.0.0.21: spark@127.0.0.21: Permission denied (publickey,password); copy your key there with ssh-copy-id"
        in flat
    )
    assert "127.0.0.22: Host key verification failed; log in once with ssh, compare the fingerprint" in flat
    assert not (lan.folder / "my-sparks").exists()


@pytest.mark.nightly
def test_a_machine_that_hangs_is_given_up(lan: Lan) -> None:
    """The machine sends its greeting and then does not answer. It does not delay the others."""
    lan.machine("127.0.0.25")
    lan.machine("127.0.0.26")
    (lan.folder / "hangs-127.0.0.26").touch()
    port = lan.port
    code, text = lan.run(discover_hosts=[f"127.0.0.{last}:{port}" for last in (25, 26)], discover_patience=45)
    (lan.folder / "hangs-127.0.0.26").unlink()
    flat = " ".join(text.split())
    assert code == 0, text
    assert (
        "not known: 127.0.0.26: Timed out after 45 second(s)" in flat and "it hangs or is overloaded; run again" in flat
    )
    assert "127.0.0.25" in (lan.folder / "my-sparks" / "hosts.yml").read_text()


@pytest.mark.nightly
def test_what_is_there_is_never_overwritten(lan: Lan) -> None:
    lan.machine("127.0.0.31")
    hosts = f"me@127.0.0.31:{lan.port}"
    code, text = lan.run("--check", discover_hosts=hosts)
    assert code == 0 and "would be written: my-sparks/hosts.yml" in text, text
    assert not (lan.folder / "my-sparks").exists()
    assert lan.run(discover_hosts=hosts)[0] == 0
    path = lan.folder / "my-sparks" / "hosts.yml"
    path.write_text(f"{path.read_text()}# mine\n")
    code, text = lan.run(discover_hosts=hosts)
    assert code == 0 and "my-sparks/hosts.yml exists and was not changed" in text, text
    assert "\n-# mine\n" in text and path.read_text().endswith("# mine\n")
    assert 'ansible_user: "me"' in path.read_text()
    assert "localhost : ok=5 changed=0" in " ".join(text.split())


def test_malformed_targets_stop_before_anything_is_contacted(lan: Lan) -> None:
    code, text = lan.run(discover_hosts=["192.168.1.20-10", "10.0.0.0/8", "a b", "1.2.3.4.5"])
    flat = " ".join(text.split())
    assert code == 2 and "no host was contacted" in flat
    assert "'192.168.1.20-10' ends before 20" in flat and "'10.0.0.0/8' has 16777216 addresses" in flat
    assert "'a b' is no address, name or range" in flat and "'1.2.3.4.5' is no address" in flat
    code, text = lan.run(discover_host="x")
    assert code != 0 and "did you mean 'discover_hosts'" in " ".join(text.split())


def test_without_sudo_the_rest_is_still_known(lan: Lan) -> None:
    lan.machine("127.0.0.41")
    sudo = lan.folder / "bin" / "sudo"
    sudo.write_text("#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    sudo.chmod(0o755)
    code, text = lan.run(discover_hosts=f"127.0.0.41:{lan.port}", ansible_become=None)
    flat = " ".join(text.split())
    assert code == 0, text
    assert "asked without root (" in flat and "add -K, which asks for the sudo password once" in flat
    assert "580.159.03" in text and "what runs not known: " in flat


def test_quickstart_writes_the_inventory_and_goes_on_to_the_site(lan: Lan) -> None:
    """site.yml reaches nobody here, so that no host is changed."""
    lan.machine("127.0.0.51")
    hosts = f"127.0.0.51:{lan.port}"
    # Without -i it would be the inventory of the whole machine.
    code, text = lan.run("--check", playbook="quickstart", discover_hosts=hosts)
    assert code != 0 and "no host was contacted: name the folder" in " ".join(text.split()), text
    options = ("-i", "mine")
    lost = f"{hosts},127.0.0.52:{lan.port}"
    code, text = lan.run(*options, playbook="quickstart", discover_hosts=lost)
    assert code != 0 and "127.0.0.52 cannot be served yet" in " ".join(text.split()), text
    assert not (lan.folder / "mine").exists()
    code, text = lan.run(*options, playbook="quickstart", discover_hosts=hosts, discover_user="me")
    site = text.partition("PLAY [Compare the hosts with the plan]")[2]
    assert f"written: {lan.folder}/mine/hosts.yml" in text and "can write to" not in text, text
    assert (lan.folder / "mine" / "ansible.cfg").read_text() == first_inventory.SETTINGS_TEXT
    assert "No route to host" in site and "unreachable=1" in site, text
    # group_vars of the folder that was not there when the run began are read.
    variables = ansible("ansible-inventory", "-i", "mine", "--list", "--playbook-dir", ".", cwd=lan.folder)
    assert '"ansible_user": "me"' in variables.stdout
    # Resumed: nothing is looked for again, and nobody else than the Spark of the inventory is in the plays.
    code, text = lan.run(*options, playbook="quickstart", discover_hosts=hosts)
    assert "written:" not in text and "No route to host" in text, text
    assert "127.0.0.51 " not in text.partition("PLAY RECAP")[2]
    assert code != 0


def test_a_folder_in_which_every_account_writes_is_named_and_its_settings_stay(lan: Lan) -> None:
    """As below /mnt in WSL, where Ansible ignores ansible.cfg."""
    lan.machine("127.0.0.71")
    folder = lan.folder / "open"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "ansible.cfg").write_text("[defaults]\n")
    code, text = lan.run(discover_hosts=f"127.0.0.71:{lan.port}", discover_dest=str(folder))
    flat = " ".join(text.split())
    assert code == 0 and "Ansible ignores its ansible.cfg" in flat and "chmod o-w" in flat, text
    assert (folder / "ansible.cfg").read_text() == "[defaults]\n"
    assert f"written: {folder}/hosts.yml" in text and f"written: {folder}/ansible.cfg" not in text


def test_names_of_the_ssh_configuration_are_found_and_kept(lan: Lan) -> None:
    """HostName and Port hold for the greeting, a machine behind another host is asked without one, and neither is written down."""
    lan.machine("127.0.0.61")
    for name in ("rack-a", "rack-b"):
        lan.tree(lan.folder / "roots" / name).write("proc/meminfo", IDLE)
    (lan.folder / "ssh_config").write_text(
        f"Host rack-a\n  HostName 127.0.0.61\n  Port {lan.port}\n  User me\n"
        "Host rack-b\n  HostName 192.0.2.9\n  ProxyJump bastion\n"
    )
    code, text = lan.run(discover_hosts="rack-a,rack-b,rack-c.invalid")
    assert code == 0, text
    hosts = yaml.safe_load((lan.folder / "my-sparks" / "hosts.yml").read_text())
    inventory_hosts = {**hosts["sparks"]["hosts"], **(hosts.get("spark_found") or {"hosts": {}})["hosts"]}
    # Both are this machine, so that they may be taken for one.
    assert "rack-a" in inventory_hosts and not {"ansible_host", "ansible_port", "ansible_user"} & set(
        inventory_hosts["rack-a"] or {}
    )
    flat = " ".join(text.split())
    assert "not known: rack-c.invalid: its name cannot be resolved" in flat and "not known: rack-b" not in flat
    assert "ansible_host: 192.0.2.9" not in text
