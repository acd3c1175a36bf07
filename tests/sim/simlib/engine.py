# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Docker engine of this machine: find it, get it going, call it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from .config import CACHE_DIR

DEBIAN_PACKAGES = {
    "docker": "docker.io",
    "dockerd": "docker.io",
    "debootstrap": "debootstrap",
    "ssh-keygen": "openssh-client",
}


class SimError(Exception):
    """Something that the person at the keyboard has to know; shown without a traceback."""


def say(text: str) -> None:
    print(text, flush=True)


def which(name: str) -> str | None:
    """Like shutil.which, but also looks where an ordinary user's PATH does not (sbin)."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")


def as_root() -> list[str]:
    """The prefix that makes a command run as root."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo"):
        return ["sudo"]
    raise SimError("this step needs root: run it as root, or install sudo")


def tail(path: Path, lines: int = 15) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"


class Docker:
    """A docker client that reaches the engine.

    The distribution's own /usr/bin/docker is preferred: another one earlier on PATH may be a bare client. Nothing
    here needs BuildKit.
    """

    def __init__(self, prefix: Sequence[str]) -> None:
        self.prefix = list(prefix)

    @classmethod
    def find(cls) -> Docker | None:
        """The client (with sudo where needed) to which an engine answers, or None."""
        for client in dict.fromkeys(["/usr/bin/docker", shutil.which("docker") or ""]):
            if not client or not os.access(client, os.X_OK):
                continue
            candidate = cls([client])
            if candidate.answers():
                return candidate
            if os.geteuid() != 0 and shutil.which("sudo"):
                candidate = cls(["sudo", "-n", client])
                if candidate.answers():
                    return candidate
        return None

    def answers(self) -> bool:
        done = subprocess.run([*self.prefix, "info"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        return done.returncode == 0

    def argv(self, *args: str) -> list[str]:
        return [*self.prefix, *args]

    def run(
        self, *args: str, check: bool = True, input_: bytes | None = None, stdin: IO[bytes] | int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one docker command; stdout and stderr are captured as text."""
        kwargs: dict[str, Any] = {"input": input_} if input_ is not None else {"stdin": stdin or subprocess.DEVNULL}
        done = subprocess.run(self.argv(*args), capture_output=True, check=False, **kwargs)
        result = subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )
        if check and result.returncode != 0:
            detail = (result.stderr or result.stdout).strip()[-2000:]
            raise SimError(f"docker {' '.join(args[:6])} ... failed ({result.returncode}):\n{detail}")
        return result

    def out(self, *args: str) -> str:
        return self.run(*args).stdout.strip()

    def lines(self, *args: str) -> list[str]:
        return [line for line in self.out(*args).splitlines() if line.strip()]

    def exists(self, kind: str, name: str) -> bool:
        return self.run(kind, "inspect", name, check=False).returncode == 0


def apt_install(packages: Sequence[str]) -> None:
    names = sorted(set(packages))
    say(f"installing {', '.join(names)} with apt-get")
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    log = CACHE_DIR / "apt.log"
    env = ["env", "DEBIAN_FRONTEND=noninteractive"]
    with log.open("ab") as stream:
        for args in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *names]):
            done = subprocess.run([*as_root(), *env, "apt-get", *args], stdout=stream, stderr=stream, check=False)
            if done.returncode != 0 and args[0] == "install":
                raise SimError(f"apt-get install {' '.join(names)} failed; log {log}:\n{tail(log)}")


def ensure_commands(*commands: str) -> None:
    """Install the packages of missing commands (Debian and Ubuntu); elsewhere name them."""
    missing = [name for name in commands if not which(name)]
    if not missing:
        return
    packages = [DEBIAN_PACKAGES[name] for name in missing]
    if not shutil.which("apt-get"):
        raise SimError(
            f"missing: {', '.join(missing)}. Install them (Debian's packages: {', '.join(sorted(set(packages)))})."
        )
    apt_install(packages)
    still = [name for name in commands if not which(name)]
    if still:
        raise SimError(f"still missing after apt-get install: {', '.join(still)}")


def ensure_engine() -> Docker:
    """A Docker engine that answers: the present one, or one installed and started here."""
    docker = Docker.find()
    if docker is None:
        if "DOCKER_HOST" in os.environ:
            raise SimError(
                f"no Docker engine answers at DOCKER_HOST={os.environ['DOCKER_HOST']}; unset it or start that engine"
            )
        if not shutil.which("apt-get"):
            raise SimError(
                "no Docker engine answers, and this is neither Debian nor Ubuntu: install and start Docker, then run this again"
            )
        packages = [name for name in ("docker", "dockerd") if not which(name)]
        if packages:
            ensure_commands(*packages)
        start_engine()
        docker = Docker.find()
        if docker is None:
            raise SimError("dockerd runs but does not answer this user: add yourself to group docker or use sudo")
    if "rootless" in docker.out("info", "--format", "{{.SecurityOptions}}"):
        raise SimError(
            "this Docker engine is rootless; a simulated Spark needs an ordinary one (systemd and an engine run inside)"
        )
    return docker


def start_engine() -> None:
    """Start dockerd: with systemd if that is PID 1, else in the background with its log in the cache."""
    if Path("/run/systemd/system").is_dir():
        say("starting docker.service")
        done = subprocess.run([*as_root(), "systemctl", "start", "docker"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SimError(f"systemctl start docker failed:\n{done.stderr.strip()}\nSee journalctl -u docker.")
        return wait_for_engine(Path("/dev/null"))
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    log = CACHE_DIR / "dockerd.log"
    say(f"starting dockerd in the background (log: {log})")
    dockerd = which("dockerd")
    assert dockerd is not None
    with log.open("ab") as stream:
        subprocess.Popen(
            [*as_root(), dockerd],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
            cwd="/",
        )
    return wait_for_engine(log)


def wait_for_engine(log: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if Docker.find() is not None:
            return
        time.sleep(0.3)
    raise SimError(f"no Docker engine answered within {seconds:.0f} s; log {log}:\n{tail(log)}")


def warn(text: str) -> None:
    print(f"sparksim: {text}", file=sys.stderr, flush=True)
