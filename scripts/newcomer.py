#!/usr/bin/env python3
"""Type the first commands of README and quick start, and what the tutorials plan, in an empty home that has only Python, uv and git.

newcomer.py [LOG]   prints every command with its output, and keeps them in a file; 0 when each one ended and printed as its page says

Home and virtual environment are made in a temporary folder; packages come from the configured index. A git repository of the tracked files
replaces the one at GitHub. Commands that contact hosts are only checked by Ansible (C(--syntax-check)), and skipped in the tutorials; the
replaced commands are printed. The scenarios `quickstart` and `tutorials` also type them in such a home, with simulated Sparks.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from common import BIN, ROOT, find_python, git, pip_settings, tool_env, tracked_files

sys.path.insert(0, str(ROOT / "molecule"))

from tutorial import Terminal, Typed, commands

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The oldest first: that is what the pages promise to do with."""
CONTACTS_HOSTS = re.compile(r"^ansible-playbook .*dgxspark\.vllm\.(?!plan\b)\w+")
README, QUICK_START = ("README.md", "On your Sparks"), "docs/quickstart.md"
TUTORIALS = "docs/tutorials.md"
AUTHOR = ("-c", "user.name=test", "-c", "user.email=test@localhost")
REPOSITORY = "https://github.com/dgxspark/ansible-vllm"


def installing() -> list[Typed]:
    """Return the quick start's commands that install Ansible and the collection."""
    return commands(QUICK_START, "Install")


def script() -> list[Typed]:
    """Return the quick start's commands, README's commands, and the commands of the tutorials that need no host."""
    typed = [*installing(), *commands(*README)]
    lines = {command.plain for command in typed}
    typed += [command for command in commands(QUICK_START) if command.plain not in lines]
    read = [
        Typed(f"{command.plain} --syntax-check") if CONTACTS_HOSTS.search(command.text) else command
        for command in typed
    ]
    return [*read, *(command for command in commands(TUTORIALS) if not contacts_hosts(command))]


def contacts_hosts(command: Typed) -> bool:
    """Tell whether a command of a page is one for hosts."""
    return command.text.startswith("ssh ") or bool(CONTACTS_HOSTS.search(command.text))


def terminal(place: Path, log: Path) -> Terminal:
    """Return a terminal in an empty home, with Python, uv and git. log: where all that is typed and printed goes."""
    python = find_python(*PYTHONS)
    if python is None:
        raise SystemExit(f"none of Python {', '.join(PYTHONS)} is here")
    home, clone, programs = (place / name for name in ("home", "clone", "bin"))
    for name in tracked_files():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clone / name, follow_symlinks=False)
    git("init", "--quiet", root=clone)
    git("add", "--force", "--all", root=clone)
    git(*AUTHOR, "commit", "--quiet", "--message", "copy", root=clone)
    programs.mkdir()
    (programs / "python3").symlink_to(python)
    for name in ("uv", "uvx"):
        (programs / name).symlink_to(BIN / name)
    settings = home / ".config" / "pip" / "pip.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(pip_settings(), encoding="utf-8")
    (home / ".gitconfig").write_text(f'[url "file://{clone}"]\n  insteadOf = {REPOSITORY}\n', encoding="utf-8")
    kept_variables = {
        key: value
        for key, value in tool_env().items()
        if not key.startswith(("ANSIBLE_", "PYTHON", "PIP_", "VIRTUAL_ENV"))
    }
    path = os.pathsep.join([str(programs), "/usr/local/bin", "/usr/bin", "/bin"])
    variables = {**kept_variables, "HOME": str(home), "PATH": path, "LC_ALL": "C.UTF-8"}
    return Terminal(home, variables, place / "state", log, hidden=(str(place),))


def installed(place: Path, log: Path) -> Terminal:
    """Return such a terminal with simulated Sparks, after typing the commands that install the collection."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    log.unlink(missing_ok=True)
    typed = terminal(place, log)
    typed.note("# Two simulated Sparks: times, sizes and speeds are none of a Spark.")
    for command in installing():
        code, output = typed.type(command.text)
        assert code == 0, output
    return typed


def main(argv: list[str]) -> int:
    """Type them until one fails."""
    with tempfile.TemporaryDirectory(prefix="newcomer-") as temporary:
        log = Path(argv[0]).resolve() if argv else Path(temporary) / "log.txt"
        log.unlink(missing_ok=True)
        typed = terminal(Path(temporary), log)
        home = typed.variables["HOME"]
        problems = (command.problem(*typed.type(command.text), home) for command in script())
        problem = next(filter(None, problems), "")
        print(log.read_text(encoding="utf-8"))
        print(problem, end="")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
