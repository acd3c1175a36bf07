# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the threads of another Python process are, read from its memory: nothing has to be installed for it, here or there.

An image with vLLM has no py-spy as a rule, and a DGX Spark neither. The interpreter exports where it begins (_PyRuntime); from
there threads, frames and code objects are followed as the C headers of that version lay them out, which is the same on
x86_64 and aarch64. The process is neither stopped nor changed, so frames of one that moves may not fit together.

Root is needed for processes of others, and Linux with 64 bits. Python's standard library is all it needs.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_THREADS, MAX_FRAMES, MAX_TEXT, MAX_TABLE = 200, 100, 500, 1 << 16
NAMED = re.compile(r"(lib)?python3(\.\d+)?[a-z]*(\.so(\.[\d.]+)?)?\Z")


class Unreadable(Exception):
    """Why the stacks of a process cannot be had."""


@dataclass(frozen=True)
class Layout:
    """Offsets of one version of CPython, as C's offsetof() gives them; owner_c: marks a frame that is not Python's own."""

    interpreters: int
    interpreter_next: int
    threads: int
    thread_next: int
    native_id: int
    frame: int
    cframe: int | None  # where the thread's frame lies behind a further pointer
    code: int
    instruction: int
    previous: int
    owner: int
    owner_c: int | None
    filename: int
    qualname: int
    lines: int
    first_line: int
    instructions: int
    text: int


LAYOUTS = {
    (3, 11): Layout(40, 0, 16, 8, 160, 56, 8, 32, 56, 48, 69, None, 112, 128, 136, 72, 184, 48),
    (3, 12): Layout(40, 0, 72, 8, 144, 56, 0, 0, 56, 8, 70, 3, 112, 128, 136, 68, 192, 40),
}
"""Versions that do not say themselves where things are."""
LENGTH, BYTES = 16, 32  # of str and bytes, the same in all of them
COOKIE = b"xdebugpy"


class Process:
    """The memory of a process."""

    def __init__(self, pid: int) -> None:
        self.base = Path(f"/proc/{pid}")
        try:
            self.memory = os.open(self.base / "mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unreadable(f"the memory of process {pid} cannot be read: {error.strerror}") from None

    def close(self) -> None:
        os.close(self.memory)

    def read(self, address: int, size: int) -> bytes:
        try:
            found = os.pread(self.memory, size, address)
        except (OSError, OverflowError, ValueError):
            found = b""
        if len(found) != size:
            raise Unreadable(f"nothing can be read at address {address:#x}")
        return found

    def pointer(self, address: int) -> int:
        return int(struct.unpack("<Q", self.read(address, 8))[0])

    def text(self, address: int, layout: Layout) -> str:
        """A str; names of files and functions are ASCII, and what is not is shown so."""
        size = min(self.pointer(address + LENGTH), MAX_TEXT)
        raw = self.read(address + layout.text, size)
        return "".join(chr(byte) if 32 <= byte < 127 else "?" for byte in raw)


# --- where the interpreter is -------------------------------------------------------------------------------------


def symbols(path: Path, wanted: tuple[str, ...]) -> tuple[dict[str, int], int]:
    """Addresses that a program or library gives some of its names, and the address that it means to be loaded at."""
    with path.open("rb") as stream:
        head = stream.read(64)
        if head[:6] != b"\x7fELF\x02\x01":
            raise Unreadable(f"{path} is no 64 bit program")
        programs, sections = struct.unpack_from("<QQ", head, 32)
        program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", head, 54)

        def table(offset: int, size: int, count: int) -> list[bytes]:
            stream.seek(offset)
            raw = stream.read(size * count)
            return [raw[place : place + size] for place in range(0, len(raw) - size + 1, size)]

        loads = [
            struct.unpack_from("<Q", entry, 16)[0]
            for entry in table(programs, program_size, program_count)
            if struct.unpack_from("<I", entry)[0] == 1
        ]
        found: dict[str, int] = {}
        all_sections = table(sections, section_size, section_count)
        for section in all_sections:
            (kind,) = struct.unpack_from("<I", section, 4)
            if kind not in (2, 11) or len(found) == len(wanted):  # what linkers see, and what debuggers see
                continue
            offset, size = struct.unpack_from("<QQ", section, 24)
            (linked,) = struct.unpack_from("<I", section, 40)
            names_at, names_size = struct.unpack_from("<QQ", all_sections[linked], 24)
            stream.seek(names_at)
            names = stream.read(names_size)
            places = {names.find(b"\0" + name.encode() + b"\0") + 1: name for name in wanted}
            places.pop(0, None)
            stream.seek(offset)
            for name, _info, _other, where, value, _size in struct.iter_unpack("<IBBHQQ", stream.read(size // 24 * 24)):
                if name in places and where:
                    found[places[name]] = value
    return found, min(loads, default=0) & ~0xFFF


def runtime(process: Process) -> tuple[int, tuple[int, int]]:
    """The address of the interpreter's state, and its version."""
    starts: dict[str, int] = {}
    for line in (process.base / "maps").read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split(None, 5)
        if len(words) == 6 and words[5].startswith("/"):
            starts.setdefault(words[5], int(words[0].partition("-")[0], 16))
    program = str((process.base / "exe").readlink())
    for name, start in starts.items():
        if name != program and not NAMED.match(name.rpartition("/")[2]):
            continue
        try:  # as its own file system has it
            found, meant = symbols(Path(f"{process.base}/root{name}"), ("_PyRuntime", "Py_Version"))
        except (OSError, IndexError, struct.error, Unreadable):
            continue
        if "_PyRuntime" in found:
            version = (3, 10)  # the last that did not say
            if "Py_Version" in found:
                (number,) = struct.unpack("<Q", process.read(start - meant + found["Py_Version"], 8))
                version = (number >> 24, number >> 16 & 0xFF)
            return start - meant + found["_PyRuntime"], version
    raise Unreadable("no Python with its symbols is mapped there")


def layout_of(process: Process, address: int, version: tuple[int, int]) -> Layout:
    """Where things are in this version."""
    if version in LAYOUTS:
        return LAYOUTS[version]
    if version == (3, 13) and process.read(address, 8) == COOKIE:
        values = struct.unpack("<45Q", process.read(address + 8, 45 * 8))
        state, interpreter, thread, frame, code = values[2:], values[5:], values[18:], values[27:], values[33:]
        return Layout(
            interpreters=state[2],
            interpreter_next=interpreter[2],
            threads=interpreter[3],
            thread_next=thread[2],
            native_id=thread[6],
            frame=thread[4],
            cframe=None,
            previous=frame[1],
            code=frame[2],
            instruction=frame[3],
            owner=frame[5],
            owner_c=3,
            filename=code[1],
            qualname=code[3],
            lines=code[4],
            first_line=code[5],
            instructions=code[9],
            text=40,
        )
    known = ", ".join(f"{major}.{minor}" for major, minor in [*LAYOUTS, (3, 13)])
    raise Unreadable(f"it runs Python {version[0]}.{version[1]}; known are {known}")


# --- what its threads do ------------------------------------------------------------------------------------------


def line_of(table: bytes, first: int, wanted: int) -> int | None:
    """The line of an instruction by a code object's table of locations (Objects/locations.md of CPython)."""
    place, line, address = 0, first, 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = table[place]
            place += 1
            value |= (byte & 63) << shift
            shift += 6
            if not byte & 64:
                return value

    while place < len(table):
        start = table[place]
        place += 1
        kind, units = start >> 3 & 15, (start & 7) + 1
        known = True
        if kind == 15:
            known = False
        elif kind in (13, 14):
            value = number()
            line += -(value >> 1) if value & 1 else value >> 1
            for _column in range(3 if kind == 14 else 0):
                number()
        elif kind >= 10:
            line += kind - 10
            place += 2
        else:
            place += 1
        address += 2 * units
        if wanted < address:
            return line if known else None
    return None


def frames(process: Process, thread: int, layout: Layout) -> Iterator[str]:
    """The frames of a thread, innermost first."""
    frame = process.pointer(thread + layout.frame)
    if layout.cframe is not None and frame:
        frame = process.pointer(frame + layout.cframe)
    for _count in range(MAX_FRAMES):
        if not frame:
            return
        owner = process.read(frame + layout.owner, 1)[0]
        if owner != layout.owner_c:
            code = process.pointer(frame + layout.code)
            name = process.text(process.pointer(code + layout.qualname), layout)
            file = process.text(process.pointer(code + layout.filename), layout)
            (first,) = struct.unpack("<i", process.read(code + layout.first_line, 4))
            table = process.pointer(code + layout.lines)
            raw = process.read(table + BYTES, min(process.pointer(table + LENGTH), MAX_TABLE))
            at = process.pointer(frame + layout.instruction) - code - layout.instructions
            try:
                line = line_of(raw, first, at)
            except IndexError:
                line = None
            yield f"{name} ({file}:{line or first})"
        frame = process.pointer(frame + layout.previous)
    yield "(further frames are left out)"


def chain(process: Process, first: int, step: int) -> Iterator[int]:
    for _count in range(MAX_THREADS):
        if not first:
            return
        yield first
        first = process.pointer(first + step)


def threads_of(process: Process) -> dict[str, str]:
    """What to call the threads, by the numbers that they know themselves by, which are those of their container."""
    found = {}
    for task in (process.base / "task").iterdir():
        with contextlib.suppress(OSError):
            values = dict(line.split(":", 1) for line in (task / "status").read_text(errors="replace").splitlines())
            inner = values.get("NSpid", task.name).split()[-1]
            found[inner] = f"thread {task.name} {values.get('Name', '').strip()}, {values.get('State', '').strip()}"
    return found


def dump(pid: int) -> str:
    """The stacks of all Python threads of a process; raises Unreadable where there is nothing to be had."""
    process = Process(pid)
    try:
        address, version = runtime(process)
        layout = layout_of(process, address, version)
        lines, names = [f"Python {version[0]}.{version[1]}"], threads_of(process)
        for interpreter in chain(process, process.pointer(address + layout.interpreters), layout.interpreter_next):
            for thread in chain(process, process.pointer(interpreter + layout.threads), layout.thread_next):
                lines.append(names.get(str(process.pointer(thread + layout.native_id)), "thread of no known number"))
                try:
                    lines += [f"    {frame}" for frame in frames(process, thread, layout)]
                except Unreadable as error:  # it moved meanwhile
                    lines.append(f"    ({error})")
        return "\n".join(lines) + "\n"
    except OSError as error:
        raise Unreadable(f"process {pid} cannot be read: {error.strerror}") from None
    finally:
        process.close()
