"""Paths, environments of tools and commands for the other scripts."""

from __future__ import annotations

import ast
import configparser
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
BIN = ROOT / ".venv" / "bin"
SPARKSIM = ROOT / "tests" / "sim" / "sparksim"
PINNED = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==\S+(?: \\)?$", re.MULTILINE)
"""Packages of a list of requirements; packages for some platforms only (with a marker) are left out."""


def tool_env(**extra: str) -> dict[str, str]:
    """Return the caller's environment with our tools first on PATH and a UTF-8 locale, which Ansible requires."""
    # A user's own Ansible or Molecule settings would make the same command mean something else on two machines.
    # Hundreds of short programs run; each would compile Ansible anew where the caller wants no bytecode in his trees.
    dropped = ("ANSIBLE_", "MOLECULE_", "VIRTUAL_ENV", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    env["PYTHONPYCACHEPREFIX"] = str(CACHE / "pycache")
    env["PATH"] = f"{BIN}{os.pathsep}{env['PATH']}"
    env["LC_ALL"] = "C.UTF-8"
    # As pip does, uv trusts the authorities that this machine trusts: an index may stand behind a company's own.
    env.setdefault("UV_SYSTEM_CERTS", "1")
    env["PYTHONPATH"] = str(ROOT / "collections")
    env.update(extra)
    return env


def environment(name: str, listed: Path) -> Path:
    """Return the Python of a cached environment with exactly the packages of a list; a missing or partial one is created.

    The lists are for Python 3.11 and 3.12. Checks that run at the same time wait for the first one, instead of removing its environment.
    """
    place = CACHE / f"{name}-{hashlib.sha256(listed.read_bytes()).hexdigest()[:12]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists() or missing_packages(place, listed):
            for old in CACHE.glob(f"{name}-????????????"):
                shutil.rmtree(old)
            create_environment(place, listed)
    return place / "bin" / "python"


def create_environment(place: Path, listed: Path) -> None:
    """Create a virtual environment with the packages of a list, and mark it as complete; raises RuntimeError if one is missing afterwards."""
    uv, python = str(BIN / "uv"), str(place / "bin" / "python")
    subprocess.run([uv, "venv", "--quiet", "--python", "3.11", str(place)], check=True)
    # The list is complete; further dependencies of its packages are left out on purpose.
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--python", python, "-r", str(listed)]
    subprocess.run(install, check=True, env=tool_env())
    if missing := missing_packages(place, listed):
        raise RuntimeError(f"{place} lacks {', '.join(missing)} of {listed}")
    (place / "complete").touch()


def missing_packages(place: Path, listed: Path) -> list[str]:
    """Return the packages of a list that an environment does not have, or whose programs are gone."""
    folders = place.glob("lib/python*/site-packages/*.dist-info")
    installed = {package_name(folder.stem.rpartition("-")[0]): folder for folder in folders}
    scripts = {program.name.lower() for program in (place / "bin").glob("*")}
    missing = []
    for name in PINNED.findall(listed.read_text(encoding="utf-8")):
        folder = installed.get(package_name(name))
        entries = configparser.RawConfigParser(delimiters=("=",))
        entries.read([folder / "entry_points.txt"] if folder else [], encoding="utf-8")
        programs = entries["console_scripts"] if entries.has_section("console_scripts") else ()
        if folder is None or not all(program in scripts for program in programs):
            missing.append(name)
    return missing


def package_name(name: str) -> str:
    """Return the normalised name of a Python package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def git(*words: str, root: Path = ROOT) -> str:
    """Run git in a tree of ours and return what it prints; no hook and no program of its configuration runs.

    Variables with which a hook of git, such as pre-commit, names another repository are removed.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    argv = ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", *words]
    return subprocess.run(argv, cwd=root, env=env, text=True, capture_output=True, check=True).stdout


def tracked_files(*paths: str, root: Path = ROOT) -> list[str]:
    """Return the files below the paths that git tracks or would track, if they exist on disk."""
    listing = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths, root=root)
    return sorted({name for name in listing.split("\0") if name and (root / name).exists()})


def find_python(*minors: str) -> str | None:
    """Path of the first of these Pythons that can make virtual environments."""
    done = subprocess.run([ROOT / "scripts" / "find-python", *minors], text=True, capture_output=True, check=False)
    return done.stdout.strip() or None


def pip_settings() -> str:
    """Return pip's configuration from all files and variables as one pip.conf."""
    argv = [str(BIN / "python"), "-m", "pip", "config", "list"]
    listing = subprocess.run(argv, text=True, capture_output=True, env=tool_env(), check=True)
    settings: dict[str, dict[str, str]] = {"global": {"quiet": "2"}}
    lines = [line.partition("=") for line in listing.stdout.splitlines()]
    for name, _, value in sorted(lines, key=lambda line: line[0].startswith(":env:")):  # variables win over files
        section, _, key = name.rpartition(".")
        values = str(ast.literal_eval(value)).split("\n")
        settings.setdefault("global" if section == ":env:" else section, {})[key] = "\n    ".join(values)
    lines_of = {name: [f"{key} = {value}\n" for key, value in pairs.items()] for name, pairs in settings.items()}
    return "".join(f"[{section}]\n{''.join(pairs)}" for section, pairs in lines_of.items())


def heading(text: str) -> None:
    """Print a line that stands out between the output of tools."""
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}== {text} {'=' * max(3, 96 - len(text))}{plain}", flush=True)


def run(*argv: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> int:
    """Run a command with its output on the screen; returns its exit code."""
    return subprocess.run([str(part) for part in argv], cwd=cwd, env=env or tool_env(), check=False).returncode


def write_generated(texts: Mapping[Path, str]) -> int:
    """Write generated files, or only compare them with the option C(--check); returns the exit code."""
    stale = [path for path, text in texts.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    check, program = "--check" in sys.argv[1:], f"scripts/{Path(sys.argv[0]).name}"
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)}: not what {program} writes; run it and commit the result.")
        else:
            path.write_text(texts[path], encoding="utf-8")
    return 1 if check and stale else 0


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def with_tables(text: str, mark: str, table: Callable[[re.Match[str]], str], count: int | None = None) -> str:
    """Return a page with new tables below its marks; SystemExit for another number of marks than C(count).

    :param mark: regular expression of a line
    :param table: returns the table of a mark
    """

    def written(match: re.Match[str]) -> str:
        below = text[match.end() :]
        return f"{match['mark']}\n\n{table(match)}\n" + ("\n" if below and not below.startswith("\n") else "")

    new, marks = re.subn(rf"(?m)^(?P<mark>{mark})\n\n?(?:\|.*\n)*", written, text)
    if count not in (None, marks):
        raise SystemExit(f"{marks} lines are {mark}, expected {count}")
    return new


def heading_anchor(title: str) -> str:
    """Return the part of an address that leads to a heading, as the usual Markdown renderers make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def recipes_by_name() -> dict[str, Any]:
    """Return the recipes of the collection."""
    paths = sorted((ROOT / "playbooks" / "recipes").glob("*.yml"))
    recipes = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths]
    return {recipe["name"]: recipe for recipe in recipes}


def duration(seconds: float) -> str:
    """Seconds as a person reads them: ``4.2 s``, ``3 min 07 s``."""
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60):02d} s"


class Stopwatch:
    """Measures from its creation."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the creation."""
        return time.monotonic() - self._start

    def __str__(self) -> str:
        return duration(self.seconds)
