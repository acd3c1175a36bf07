#!/usr/bin/env python3
"""Type the first commands of README and quick start, as somebody does who has nothing but a clone and a Python.

newcomer.py   prints every command and what it printed; 0 when each one succeeded

A home, a virtual environment and a copy of the clone are made in a temporary folder; packages come from the configured index. Commands that
contact hosts, which are not here, are only read by Ansible (C(--syntax-check)); what is typed in their place is printed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from common import ROOT, find_python, pip_settings, tool_env, tracked_files

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The oldest first: that is what the pages promise to do with."""
CONTACTS_HOSTS = re.compile(r"^ansible-playbook .*dgxspark\.vllm\.(?!plan\b)\w+")
README, QUICK_START = ("README.md", "Use it on your Sparks"), ("docs/quickstart.md", "Quick start")


def commands(page: str, heading: str) -> list[str]:
    """Return the commands of the console blocks below a heading of a page, a here-document as part of its command."""
    text = (ROOT / page).read_text(encoding="utf-8")
    _before, _heading, below = text.partition(f"# {heading}\n")
    section = re.split(r"^#{1,6} ", below, maxsplit=1, flags=re.MULTILINE)[0]
    found: list[str] = []
    end = ""
    for line in "\n".join(re.findall(r"^```console\n(.*?)^```", section, re.DOTALL | re.MULTILINE)).splitlines():
        if end:
            found[-1] += f"\n{line}"
            end = "" if line == end else end
        elif line.startswith("$ "):
            found.append(line[2:])
            end = here[1] if (here := re.search(r"<<'(\w+)'$", line)) else ""
    return found


def script() -> str:
    """Return all of them as one script for bash: README's, and what the quick start has beside them."""
    first = commands(*README)
    known = {without_comment(each) for each in first}
    lines = []
    for command in [*first, *(each for each in commands(*QUICK_START) if without_comment(each) not in known)]:
        typed = (
            re.sub(r"(\s+#.*)?$", " --syntax-check", command, count=1) if CONTACTS_HOSTS.search(command) else command
        )
        lines += [f"printf '%s\\n' {shlex.quote(f'$ {typed}')}", typed]
    return "\n".join(["set -eo pipefail", *lines, ""])


def without_comment(command: str) -> str:
    """Return a command of one line without the comment behind it."""
    return re.sub(r"\s+# .*$", "", command)


def main() -> int:
    """Type them."""
    python = find_python(*PYTHONS)
    if python is None:
        print(f"none of Python {', '.join(PYTHONS)} is here")
        return 1
    with tempfile.TemporaryDirectory(prefix="newcomer-") as temporary:
        home, clone, programs = (Path(temporary) / name for name in ("home", "clone", "bin"))
        for name in tracked_files():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name, follow_symlinks=False)
        programs.mkdir()
        (programs / "python3").symlink_to(python)
        settings = home / ".config" / "pip" / "pip.conf"
        settings.parent.mkdir(parents=True)
        settings.write_text(pip_settings(), encoding="utf-8")
        kept = {
            key: value
            for key, value in tool_env().items()
            if not key.startswith(("ANSIBLE_", "PYTHON", "PIP_", "VIRTUAL_ENV"))
        }
        path = os.pathsep.join([str(programs), "/usr/local/bin", "/usr/bin", "/bin"])
        done = subprocess.run(
            ["bash", "-c", script()],
            cwd=clone,
            env={**kept, "HOME": str(home), "PATH": path, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        print(done.stdout.replace(temporary, ""))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
