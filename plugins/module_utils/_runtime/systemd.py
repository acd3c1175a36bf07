# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a program tells the service manager that runs it."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable

from .._common.foreign_text import printable

FIRST_FD = 3
"""SD_LISTEN_FDS_START."""


def journal_line(text: str, level: int) -> str:
    """Return a line for the journal with its priority (3 error, 4 warning, 6 information), which only the journal is told."""
    line = " ".join(printable(text).split())
    return f"<{level}>{line}" if os.environ.get("JOURNAL_STREAM") else line


def journal(program: str, errors: bool = False) -> Callable[..., None]:
    """Return C(say(text, level)), which writes a program's line to the journal. errors: use standard error, since standard output is the result."""

    def say(text: str, level: int = 6) -> None:
        stream = sys.stderr if errors else sys.stdout
        stream.write(journal_line(f"{program}: {text}", level) + "\n")
        stream.flush()

    return say


def handed_over() -> list[tuple[str, socket.socket]]:
    """Return the sockets that the service manager hands over, each with its name, as sd_listen_fds_with_names(3) does; programs started get none."""
    pid, count, names = (os.environ.pop(f"LISTEN_{key}", "") for key in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    sockets = []
    for number, name in zip(range(FIRST_FD, FIRST_FD + int(count)), names.split(":")):
        os.set_inheritable(number, False)
        sock = socket.socket(fileno=number)
        sock.setblocking(False)
        sockets.append((name, sock))
    return sockets


def notify(state: str, wait: bool = True) -> None:
    """Send C(READY=1), C(STATUS=...) and their like, as sd_notify(3) does; nothing without systemd. wait: else a busy systemd loses it."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stream:
        stream.sendto(state.encode("utf-8", "replace"), 0 if wait else socket.MSG_DONTWAIT, address)
