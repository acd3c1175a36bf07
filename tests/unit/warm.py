# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that import slow modules once and fork a process for each request: C(warm.py playbooks|modules|host|client SOCKET).

C(playbooks) runs the C(main) of ansible-playbook or ansible-inventory in the new process, C(modules) the script that Ansible sends to a host's interpreter.
A request has the three standard streams, the arguments, the environment and the working directory of who asks; the answer is
the exit code. C(tests/unit/playbook_runs.py) starts the servers, and is what tests use. A server ends with the process that started it.

C(host) is the same on a simulated Spark, for all of its accounts: it knows the standard library alone and the process becomes who asked.
C(client) prints the interpreter that asks a server.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import hashlib
import importlib
import importlib.machinery
import io
import marshal
import os
import pkgutil
import pwd
import secrets
import select
import socket
import struct
import sys
import tempfile
import threading
import traceback
import types
import warnings
import zipimport
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

Request = tuple[list[str], dict[str, str], str, int]  # arguments, environment, working directory, umask

# What modules of Ansible and of this collection import of the standard library.
LIBRARY = """
    argparse ast base64 concurrent.futures ctypes dataclasses datetime difflib email.message email.parser fcntl functools glob grp hashlib
    http.client http.server ipaddress json locale logging math multiprocessing platform pty pwd queue random runpy select selectors shlex
    shutil signal socket socketserver sqlite3 ssl stat statistics string struct subprocess tarfile tempfile textwrap threading typing
    unicodedata urllib.error urllib.parse urllib.request uuid zipfile
"""
COLLECTION = "ansible_collections.dgxspark.vllm.plugins"
# The interpreter of hosts. It starts quickly: for a script on its standard input it asks the server. Without a server it runs Python.
CLIENT = """#!{python} -IS
import _socket
import marshal
import os
import sys

asked = _socket.socket(_socket.AF_UNIX)
if len(sys.argv) > 1 or asked.connect_ex({path!r}):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
mask = os.umask(0)
os.umask(mask)
data = marshal.dumps(([], dict(os.environ), os.getcwd(), mask))
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
asked.sendmsg([len(data).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
asked.sendall(data)
code = asked.recv(1)
os._exit(code[0] if code else 137)
"""
# Plugins that nearly every run loads, with the names under which Ansible imports them.
PLUGINS = """
    ansible.plugins.action.assert ansible.plugins.action.copy ansible.plugins.action.debug ansible.plugins.action.set_fact
    ansible.plugins.callback.default ansible.plugins.connection.local ansible.plugins.filter.core ansible.plugins.filter.encryption
    ansible.plugins.filter.mathstuff ansible.plugins.filter.urls ansible.plugins.filter.urlsplit ansible.plugins.inventory.auto
    ansible.plugins.inventory.yaml ansible.plugins.shell.sh ansible.plugins.strategy.free ansible.plugins.strategy.linear
    ansible.plugins.test.core ansible.plugins.test.files ansible.plugins.test.mathstuff ansible.plugins.test.uri
    ansible.plugins.vars.host_group_vars
"""


def serve(path: str, run: Callable[[Request], None], for_all: bool = False) -> None:
    """Fork a process for each request until standard input ends.

    :param path: of the socket
    :param run: the function that the process calls
    :param for_all: serve all accounts of the machine, without an end
    """
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        if for_all:
            Path(path).chmod(0o666)
        listener.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        watched: list[socket.socket | int] = [listener] if for_all else [listener, 0]
        while True:
            readable, _writable, _broken = select.select(watched, [], [])
            if 0 in readable:
                break
            connection, _peer = listener.accept()
            with connection:
                length, streams, _flags, _sender = socket.recv_fds(connection, 8, 3)
                if len(streams) == 3:  # it was not killed meanwhile
                    size = int.from_bytes(length, "big")
                    with connection.makefile("rb") as stream:
                        request = marshal.loads(stream.read(size))
                    if not os.fork():
                        listener.close()
                        answer(connection, streams, request, run)
                for number in streams:
                    os.close(number)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    with contextlib.suppress(ChildProcessError):  # so that their resource usage is counted
        while True:
            os.waitpid(-1, 0)


def answer(connection: socket.socket, streams: list[int], request: Request, run: Callable[[Request], None]) -> NoReturn:
    """Be the process that was asked for, from its start to its end."""
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        atexit._clear()  # only the server removes its temporary files
        end_with(connection)
        become(connection)
        _argv, environment, folder, mask = request
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        os.umask(mask)
        # It stays open for the life of the process, as an interpreter's own does.
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
        code = ended(lambda: run(request))
    finally:
        with contextlib.suppress(OSError):
            connection.sendall((code & 0xFF).to_bytes(1, "big"))
        os._exit(code & 0xFF)


def end_with(connection: socket.socket) -> None:
    """Have the kernel end this process when its client is killed: nobody else would."""
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([connection], [], [], 0)[0]:  # it has gone before that
        os._exit(137)


def become(connection: socket.socket) -> None:
    """Be the account that asked, as the kernel knows it."""
    _process, user, group = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.geteuid():
        os.initgroups(pwd.getpwuid(user).pw_name, group)
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)


def ended(run: Callable[[], None]) -> int:
    """Return the exit code with which an interpreter would end that runs this."""
    code: Any = 0
    try:
        run()
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    # The steps of an interpreter at its end, in the same order; no public function does this.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code or 0


def load(*names: str) -> None:
    """Import modules that may be there."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


# --- playbooks ------------------------------------------------------------------------------------------------------


def load_ansible() -> None:
    """Import ansible-core and what of the collection its processes import."""
    # To have them imported is all that is wanted.
    from ansible.cli import inventory, playbook  # noqa: F401
    from ansible.plugins import loader

    load(*PLUGINS.split())
    loader.init_plugin_loader()
    warnings.filterwarnings("ignore", "AnsibleCollectionFinder has already been configured")
    # Each run reads the names of these plugins and the documentation of their options, with the slow YAML parser in pure Python.
    load("ansible_collections.ansible.builtin")
    for kind in ("become", "callback", "connection", "inventory", "shell"):
        list(getattr(loader, f"{kind}_loader").all(class_only=True))
    for kind in ("action", "filter", "lookup", "module_utils", "plugin_utils"):
        with contextlib.suppress(ImportError):
            package = importlib.import_module(f"{COLLECTION}.{kind}")
            load(*(module_info.name for module_info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")))
    sys.executable = os.environ.get("WARM_PYTHON") or sys.executable  # the value of C(ansible_playbook_python)


def run_ansible(request: Request) -> None:
    """Be ansible-playbook, or another of Ansible's programs."""
    # This number is drawn at import and is part of the id of each task. Two runs need different numbers.
    vars(importlib.import_module("ansible.utils.vars"))["random_int"] = secrets.token_hex(4)
    sys.argv = request[0]
    importlib.import_module(f"ansible.cli.{Path(sys.argv[0]).name.removeprefix('ansible-')}").main()


# --- modules --------------------------------------------------------------------------------------------------------


class Payload:
    """Finds the modules below C(ansible) in the archive that was sent with a module, as if nothing had been imported before."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith("ansible."):
            return None
        place = f"{sys.path[0]}/{name.rpartition('.')[0].replace('.', '/')}"
        return importlib.machinery.PathFinder.find_spec(name, [place], target)


def keep_compiled(folder: Path) -> None:
    """Have the source in archives compiled once: each process would compile it again, and most archives have the same contents."""
    # Private, and without a public way; a Python that lacks it fails here and not silently.
    compiled = zipimport._compile_source  # type: ignore[attr-defined]

    def compile_source(path: str, source: bytes) -> types.CodeType:
        cached = folder / hashlib.sha256(path.rpartition(".zip")[2].encode() + source).hexdigest()
        try:
            code: types.CodeType = marshal.loads(cached.read_bytes())
        except OSError:
            code = compiled(path, source)
            fresh = cached.with_suffix(f".{os.getpid()}")
            fresh.write_bytes(marshal.dumps(code))
            fresh.replace(cached)
        return code

    zipimport._compile_source = compile_source  # type: ignore[attr-defined]


def run_module(_request: Request) -> None:
    """Be the interpreter that reads a script from its standard input, with the modules of Ansible that all scripts import."""
    sys.meta_path.insert(0, Payload)
    run_script(_request)


def run_script(_request: Request) -> None:
    """Be the interpreter that reads a script from its standard input."""
    sys.argv = [""]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    script = sys.stdin.buffer.read()
    exec(compile(script, "<stdin>", "exec"), main.__dict__)


if __name__ == "__main__":
    if sys.argv[1] == "playbooks":
        load_ansible()
        serve(sys.argv[2], run_ansible)
    elif sys.argv[1] == "client":
        sys.stdout.write(CLIENT.format(python=sys.executable, path=sys.argv[2]))
    elif sys.argv[1] == "host":
        load(*LIBRARY.split())
        serve(sys.argv[2], run_script, for_all=True)
    else:
        load(*LIBRARY.split(), "ansible.module_utils.basic", "ansible.module_utils._internal._ansiballz._loader")
        with tempfile.TemporaryDirectory(prefix="warm-") as folder:
            keep_compiled(Path(folder))
            serve(sys.argv[2], run_module)
