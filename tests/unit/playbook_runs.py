# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How tests run whole playbooks: ansible-playbook itself, in a process that need not import it first.

Importing ansible-core takes a second, and what every module imports of it takes most of a module's time. Both are imported once, by
servers that fork a process for each run (C(warm.py)). The command line, environment, working directory, output, and the script that
a module is sent as are the real ones; C(ansible_playbook(cold=True)) does without.
"""

from __future__ import annotations

import atexit
import marshal
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

import warm

ROOT = Path(__file__).parents[2]
COLLECTIONS = ROOT / "collections"
SERVER = Path(warm.__file__)

# An ssh without a route. Ansible shows the error text only if ssh has read its standard input.
LOST_SSH = """#!/bin/sh
timeout 5 cat >/dev/null
echo 'ssh: connect to host 192.0.2.7 port 22: No route to host' >&2
exit 255
"""
# How names of variables begin that ansible-core or Python may read at their start.
SETTINGS = ("ANSIBLE_", "PYTHON", "LC_", "LANG", "NO_COLOR", "TMPDIR", "TZ")
# Settings that many runs have, for which a server is worth its start.
SHARED = {"ANSIBLE_COLLECTIONS_PATH", "ANSIBLE_CALLBACKS_ENABLED", "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED"}


class Server:
    """A process of C(warm.py), which ends with this one."""

    def __init__(self, kind: str, environment: Mapping[str, str]) -> None:
        self.path = str(folder() / f"{kind}-{os.getpid()}-{len(list(folder().iterdir()))}")
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), kind, self.path],
            cwd=folder(),
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None and self.process.stdout.readline() == b"ready\n"
        atexit.register(self.close)

    def close(self) -> None:
        self.process.communicate()

    def run(
        self, argv: list[str], environment: Mapping[str, str], cwd: Path, output: IO[bytes], errors: IO[bytes]
    ) -> int:
        """Have a process of the server run this, and return its exit code."""
        mask = os.umask(0)
        os.umask(mask)
        data = marshal.dumps((argv, dict(environment), str(cwd), mask))
        with socket.socket(socket.AF_UNIX) as server, Path(os.devnull).open("rb") as nothing:
            server.connect(self.path)
            streams = [nothing.fileno(), output.fileno(), errors.fileno()]
            socket.send_fds(server, [len(data).to_bytes(8, "big")], streams)
            server.sendall(data)
            code = server.recv(1)
        assert code, "the process that ran the playbook was killed"
        return code[0]


@cache
def folder() -> Path:
    """A short path, because a path of a Unix socket has 107 characters at most."""
    made = Path(tempfile.mkdtemp(prefix="warm-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@cache
def python() -> str:
    """An interpreter for hosts that this machine plays. In a run it is C(ansible_playbook_python) and the default interpreter of hosts."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTHON"))}
    server = Server("modules", outside)
    path = folder() / "python"
    path.write_text(warm.CLIENT.format(python=sys.executable, path=server.path))
    path.chmod(0o755)
    return str(path)


@cache
def playbooks(settings: tuple[tuple[str, str], ...]) -> Server:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder()), "WARM_PYTHON": python()}
    return Server("playbooks", {**dict(settings), **environment})


def ansible_playbook(*words: str | Path, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run C(ansible-playbook WORDS), see C(ansible)."""
    return ansible("ansible-playbook", *words, cwd=cwd, **options)


def ansible(
    program: str, *words: str | Path, cwd: Path, env: Mapping[str, str | None] | None = None, cold: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a program of Ansible on this collection, without colours.

    :param program: C(ansible-playbook) or C(ansible-inventory)
    :param words: its arguments
    :param cwd: the working directory
    :param env: variables on top of this process's, None to leave one out
    :param cold: start the program as a shell does; this is also done for settings that other runs do not have
    """
    argv = [str(Path(sys.executable).with_name(program)), *map(str, words)]
    variables = dict(env or {})
    merged = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), **variables}
    environment = {name: value for name, value in merged.items() if value is not None}
    if cold or (cwd / "ansible.cfg").exists() or any(map(is_setting, variables.keys() - SHARED)):
        return subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    environment = {"ANSIBLE_PIPELINING": "1", "ANSIBLE_PYTHON_INTERPRETER": python(), **environment}
    settings = {name: value for name, value in environment.items() if is_setting(name)}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        code = playbooks(tuple(sorted(settings.items()))).run(argv, environment, cwd, output, errors)
        texts = []
        for stream in (output, errors):
            stream.seek(0)
            texts.append(stream.read().decode())
    return subprocess.CompletedProcess(argv, code, *texts)


def is_setting(name: str) -> bool:
    """Whether ansible-core may read a variable during its import: a server runs only playbooks with the same values of these."""
    return name.startswith(SETTINGS)
