"""Commands of pages, typed as a reader types them: with only the pages' words, on simulated Sparks in place of real ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
LEFT_OUT = "..."
"""A line of a page in place of further lines that the command prints."""


@dataclass(frozen=True)
class Typed:
    """A command of a page."""

    text: str
    """As it is typed, a here-document as part of it."""
    shown: tuple[str, ...] = ()
    """What the page shows of what it prints."""
    code: int = 0
    """The exit code that the page shows by C(echo $?) behind it."""

    @property
    def plain(self) -> str:
        """The command without the comment behind it."""
        first, newline, following = self.text.partition("\n")
        return re.sub(r"\s+# .*$", "", first) + newline + following

    def missing(self, printed: str) -> list[str]:
        """The lines that the page shows and the command did not print; their numbers may be others.

        :param printed: what the command printed
        """
        shown_lines = {figureless(line) for line in printed.splitlines()}
        return [
            line for line in self.shown if line.strip() not in ("", LEFT_OUT) and figureless(line) not in shown_lines
        ]

    def problem(self, code: int, printed: str, home: str = "~") -> str:
        """Return the differences from the page, in words; empty without any.

        :param code: the exit code of the command
        :param printed: what it printed
        :param home: the folder that the page calls C(~)
        """
        if code != self.code:
            return f"$ {self.text}\nexit code {code}, where the page has {self.code}\n{printed}"
        if missing := self.missing(printed.replace(home, "~")):
            return f"$ {self.text}\nprinted nothing like {missing}\n{printed}"
        return ""


def figureless(line: str) -> str:
    """Return a line with its words alone: a figure is another one each time, and a column as wide as its figures."""
    return re.sub(r"[\s=─-]+", " ", NUMBER.sub("0", line)).strip()


def commands(page: str, heading: str = "") -> list[Typed]:
    """Return the commands of the console blocks of a page.

    :param page: its path in the repository
    :param heading: of the section that they are taken from, without those below it; the whole page when left out
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    if heading:
        _before, _heading, text = text.partition(f"# {heading}\n")
        lines, fenced = [], False
        for line in text.splitlines(keepends=True):
            fenced ^= line.startswith("```")
            if not fenced and re.match("#{1,6} ", line):
                break
            lines.append(line)
        text = "".join(lines)
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [command for block in blocks for command in read(block)]


def read(block: str) -> list[Typed]:
    """Return the commands of one console block, each with the lines below it."""
    typed: list[Typed] = []
    end, coded = "", False
    for line in block.splitlines():
        if end:
            typed[-1] = Typed(f"{typed[-1].text}\n{line}")
            end = "" if line == end else end
        elif coded:
            typed[-1] = replace(typed[-1], code=int(line))
            coded = False
        elif line == "$ echo $?":
            coded = True
        elif line.startswith("$ "):
            typed.append(Typed(line[2:]))
            end = heredoc[1] if (heredoc := re.search(r"<<'(\w+)'$", line)) else ""
        else:
            typed[-1] = replace(typed[-1], shown=(*typed[-1].shown, line))
    return typed


@dataclass
class Terminal:
    """A terminal: each command has the folder and the variables that the one before it left. Commands and output are kept in a log."""

    folder: Path
    variables: dict[str, str]
    state: Path
    """A folder for what is known between two commands."""
    log: Path
    hidden: tuple[str, ...] = field(default=())
    """Paths of this machine that the log has nothing of."""

    def type(self, command: str, timeout: float = 1200) -> tuple[int, str]:
        """Type a command; returns its exit code and what it printed.

        :param command: for bash, of one line or with a here-document
        :param timeout: seconds
        """
        self.state.mkdir(parents=True, exist_ok=True)
        variables, folder = self.state / "variables", self.state / "folder"
        after = 'code=$?; env -0 > "$0/variables"; pwd > "$0/folder"; exit $code'
        done = subprocess.run(
            ["bash", "-c", f"trap '{after}' EXIT\nset -o pipefail\n{command}\n", str(self.state)],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        self.folder = Path(folder.read_text(encoding="utf-8").rstrip("\n"))
        pairs = (pair.partition("=") for pair in variables.read_text(encoding="utf-8").split("\0") if pair)
        self.variables = {name: value for name, _, value in pairs if name not in ("_", "SHLVL")}
        self.note(f"$ {command}\n{done.stdout}")
        return done.returncode, done.stdout

    def note(self, text: str) -> None:
        """Add lines to the log."""
        for path in self.hidden:
            text = text.replace(path, "")
        with self.log.open("a", encoding="utf-8") as stream:
            stream.write(text.rstrip() + "\n\n")


# --- simulated Sparks ---------------------------------------------------------------------------------------------------


def simulated(subnet: str, hosts: Mapping[str, str], **more: Any) -> str:
    """Return the variables of simulated Sparks, as a file for C(-e @FILE): their addresses, and their substitutes for a GPU.

    :param subnet: the first two numbers of their addresses
    :param hosts: last number of the address of each
    :param more: further variables
    """
    shared = yaml.safe_load((ROOT / "molecule" / "inventory.yml").read_text(encoding="utf-8"))["sparks"]["vars"]
    names = ("spark_sysroot", "spark_gpu_args", "spark_ulimits", "spark_shm_size", "spark_docker_args", "spark_learn")
    addresses = {name: f"{subnet}.0.{number}" for name, number in hosts.items()}
    where = f"{{{{ {json.dumps(addresses)}[inventory_hostname] | default(inventory_hostname) }}}}"
    address = {"ansible_host": where} if hosts else {}
    return yaml.safe_dump({**{name: shared[name] for name in names}, **address, **more})


def reached(terminal: Terminal) -> None:
    """Have a terminal's ssh know the simulated Sparks: their key and account."""
    cache = ROOT / ".cache" / "sim"
    terminal.variables |= {
        "ANSIBLE_PRIVATE_KEY_FILE": str(cache / "id_ed25519"),
        "ANSIBLE_REMOTE_USER": "spark",
        "ANSIBLE_SSH_COMMON_ARGS": f"-o UserKnownHostsFile={cache}/known_hosts -o IdentitiesOnly=yes",
        "ANSIBLE_NOCOLOR": "1",
    }
    if connections := os.environ.get("SPARKSIM_SSH"):
        terminal.variables["ANSIBLE_SSH_CONTROL_PATH_DIR"] = connections


def named(programs: Path, addresses: Mapping[str, str]) -> None:
    """Have ssh know simulated Sparks by the names that a page has for them.

    :param programs: a folder of the terminal's PATH, in which C(ssh) is made
    :param addresses: of each name
    """
    cache = ROOT / ".cache" / "sim"
    entries = "".join(f"Host {name}\n  HostName {address}\n" for name, address in addresses.items())
    settings = programs / "ssh_config"
    settings.write_text(
        f"{entries}Host *\n  User spark\n  IdentityFile {cache}/id_ed25519\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {cache}/known_hosts\n",
        encoding="utf-8",
    )
    program = programs / "ssh"
    program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F "{settings}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)


@contextmanager
def hub(address: str, port: int, models: Mapping[str, Path], pid_file: Path) -> Iterator[None]:
    """A hub of a few models on the nodes' network.

    :param address: of this machine there
    :param port: of the hub
    :param models: a folder for each name
    :param pid_file: is there while it runs, for who cleans up behind a test that was killed
    """
    program = [str(ROOT / "tests/sim/fakehub/fakehub"), f"--host={address}", f"--port={port}"]
    argv = [*program, *(f"--model={name}={folder}" for name, folder in models.items())]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        pid_file.write_text(f"{process.pid}\n", encoding="utf-8")
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(
                        f"http://{address}:{port}/api/models/{next(iter(models))}", timeout=5
                    ).close()
                    break
                except OSError:
                    assert process.poll() is None and time.monotonic() < deadline, "the hub does not answer"
                    time.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait(30)
            pid_file.unlink()
