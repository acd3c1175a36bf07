# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that packs a bundle cannot send more than it announced, or more than the controller has room for."""

from __future__ import annotations

import hashlib
import resource
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleError

from ansible_collections.dgxspark.vllm.plugins.action import bundle

MIB = 2**20
CONTENT = b"weights"
SUM = hashlib.sha256(CONTENT).hexdigest()


class Connection:
    """A connection whose transfers a test decides; C(methods) are those that were asked for."""

    def __init__(self, send: Callable[[Path], None], transport: str = "ssh", method: str = "smart") -> None:
        self.send, self.transport, self.method, self.methods = send, transport, method, list[str]()

    def get_option(self, _name: str) -> str:
        return self.method

    def set_option(self, _name: str, value: str) -> None:
        self.method = value

    def fetch_file(self, _remote: str, local: str) -> None:
        self.methods.append(self.method)
        self.send(Path(local))


def action(folder: Path, connection: Connection) -> Any:
    """The action plugin, as far as transfers need it."""
    made = object.__new__(bundle.ActionModule)
    made.dir, made._connection = folder, connection
    made.variables = {"inventory_hostname": "spark-1"}
    return made


def fetch(folder: Path, connection: Connection, size: int = len(CONTENT)) -> int:
    return int(action(folder, connection)._fetch_all("Org/Model", [("/hub/a", "models/a", size, SUM)]))


def child(size: int) -> Callable[[Path], None]:
    """A program like sftp that writes so many bytes and fails where the kernel does not let it."""

    def send(path: Path) -> None:
        code = "import sys\nwith open(sys.argv[1], 'wb') as file:\n for _ in range(int(sys.argv[2])): file.write(b'x' * 2**20)"
        done = subprocess.run(
            [sys.executable, "-c", code, str(path), str(size // MIB)], capture_output=True, check=False
        )
        if done.returncode:
            raise AnsibleError("failed to transfer file \x1b[2J")

    return send


def writes_itself(size: int) -> Callable[[Path], None]:
    """A connection that writes by itself, as paramiko's."""
    return lambda path: path.write_bytes(b"x" * size) and None


@pytest.mark.parametrize("send", [child(200 * MIB), writes_itself(200 * MIB)], ids=["a program", "this process"])
def test_a_host_that_sends_more_than_it_announced_is_stopped(tmp_path: Path, send: Callable[[Path], None]) -> None:
    largest = 0

    def watched(path: Path) -> None:
        nonlocal largest
        try:
            send(path)
        finally:
            largest = path.stat().st_size

    connection = Connection(watched)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(AnsibleActionFail, match="more than the 7 bytes that the host announced"):
        fetch(tmp_path, connection)
    assert largest <= len(CONTENT) + bundle.SLACK_BYTES
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before and connection.methods == ["sftp"]
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["models"]  # no draft is left


def test_what_is_whole_gets_its_name_and_what_is_not_is_named(tmp_path: Path) -> None:
    good = Connection(lambda path: path.write_bytes(CONTENT) and None)
    assert fetch(tmp_path, good) == len(CONTENT)
    assert (tmp_path / "models/a").read_bytes() == CONTENT and good.method == "smart"
    assert fetch(tmp_path, good) == 0
    (tmp_path / "models/a").unlink()
    with pytest.raises(AnsibleActionFail, match="came from spark-1 with the sha256"):
        fetch(tmp_path, Connection(lambda path: path.write_bytes(b"weight5") and None))


def test_ssh_tries_sftp_and_scp_and_never_a_pipe_into_memory(tmp_path: Path) -> None:
    def fail(_path: Path) -> None:
        raise AnsibleError("no \x1b[2J such method")

    connection = Connection(fail)
    with pytest.raises(AnsibleActionFail, match=r"no \\x1b\[2J such method") as caught:
        fetch(tmp_path, connection)
    assert connection.methods == ["sftp", "scp"] and "\x1b" not in str(caught.value)
    chosen = Connection(fail, method="piped")
    with pytest.raises(AnsibleActionFail):
        fetch(tmp_path, chosen)
    assert chosen.methods == ["piped"]
    local = Connection(fail, transport="local")
    with pytest.raises(AnsibleActionFail):
        fetch(tmp_path, local)
    assert local.methods == ["smart"]


def test_what_has_no_room_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(100, 95, 5))
    connection = Connection(lambda path: path.write_bytes(CONTENT) and None)
    with pytest.raises(AnsibleActionFail, match="Make room"):
        fetch(tmp_path, connection)
    assert connection.methods == []
