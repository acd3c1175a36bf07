# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of the simulator."""

from __future__ import annotations

import argparse
import errno
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from . import cables, nodes
from .build import build
from .config import CACHE_DIR, IMAGE_PREFIX, LABEL, SETS
from .engine import Docker, SimError, ensure_engine, say, warn


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Builds and boots wait for each other, also in other checkouts: they share the engine and the names in it.

    The lock is an abstract socket: every user can take it, and it goes with the process.
    """
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
        waiting = False
        while True:
            try:
                lock.bind("\0dgxspark-sim")
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            if not waiting:
                say("waiting for another sparksim on this machine")
                waiting = True
            time.sleep(0.2)
        yield


def require_engine() -> Docker:
    docker = Docker.find()
    if docker is None:
        raise SimError("no Docker engine answers: nothing runs (sparksim engine-ensure starts one)")
    return docker


def command_build(args: argparse.Namespace) -> None:
    started = time.monotonic()
    plan, store = build(ensure_engine(), args.real_engine, args.gateway, args.require_real_engine)
    say(f"built: {plan.node}, store {store} ({time.monotonic() - started:.0f} s)")


def command_up(args: argparse.Namespace) -> None:
    started = time.monotonic()
    docker = ensure_engine()
    plan, store = build(docker, args.real_engine, args.gateway)
    up = nodes.up(docker, plan, store, args.set, args.nodes)
    say(f"ready after {time.monotonic() - started:.1f} s: {nodes.ssh_hint(up)}")


def command_down(args: argparse.Namespace) -> None:
    docker = Docker.find()
    if docker is None:
        say("no Docker engine answers: nothing runs")
        return
    nodes.down(docker, list(SETS) if args.all else [args.set])


def command_cable(args: argparse.Namespace) -> None:
    nodes.lay(require_engine(), args.set, [cables.parse(text) for text in args.cables])


def command_status(args: argparse.Namespace) -> None:
    nodes.status(require_engine())


def command_engine_ensure(args: argparse.Namespace) -> None:
    docker = ensure_engine()
    version = docker.out("version", "--format", "{{.Server.Version}}")
    say(f"Docker engine {version} answers to: {' '.join(docker.prefix)}")


def command_purge(args: argparse.Namespace) -> None:
    docker = require_engine()
    nodes.down(docker, list(SETS))
    for volume in docker.lines("volume", "ls", "--quiet", "--filter", f"label={LABEL}"):
        docker.run("volume", "rm", "--force", volume)
    for image in docker.lines("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "--filter", f"label={LABEL}"):
        if image.startswith(IMAGE_PREFIX):
            docker.run("rmi", image, check=False)
    say("images and the image store removed")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="sparksim", description="Simulated DGX Sparks: containers with a real systemd, sshd and Docker engine."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    for name, run, text in (
        ("build", command_build, "build the node image and the engine images"),
        ("up", command_up, "boot the nodes of a set, building what is missing"),
    ):
        sub = add(name, run, text)
        sub.add_argument(
            "--no-real-engine", dest="real_engine", action="store_false", help="do not build the real vLLM (CPU)"
        )
        sub.add_argument(
            "--no-gateway", dest="gateway", action="store_false", help="do not build the image of the gateway (LiteLLM)"
        )
        if name == "build":
            sub.add_argument(
                "--require-real-engine", action="store_true", help="fail where the real vLLM (CPU) cannot be had"
            )
        if name == "up":
            sub.add_argument("--set", choices=sorted(SETS), default="demo", help="default: %(default)s")
            sub.add_argument(
                "--nodes", type=int, choices=range(1, 11), default=2, metavar="N", help="1 to 10, default: %(default)s"
            )
    sub = add("down", command_down, "remove the nodes of a set with their volumes and networks; images stay")
    sub.add_argument("--set", choices=sorted(SETS), default="demo", help="default: %(default)s")
    sub.add_argument("--all", action="store_true", help="all sets")
    sub = add("cable", command_cable, "have a set cabled as said, in no other way; what is cabled so already stays")
    sub.add_argument("--set", choices=sorted(SETS), default="ring", help="default: %(default)s")
    sub.add_argument(
        "cables",
        nargs="*",
        metavar="NODE.PORT-NODE.PORT",
        help="1.0-2.1 joins port 0 of the first node with port 1 of the second; none: no cables",
    )
    add("status", command_status, "show sets, nodes and the containers inside them")
    add("engine-ensure", command_engine_ensure, "get a Docker engine going if none answers")
    add("purge", command_purge, "remove everything made here, images and the image store too")
    return top


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    try:
        if args.command == "status":
            args.run(args)
        else:
            with one_at_a_time():
                args.run(args)
    except SimError as error:
        warn(str(error))
        return 1
    except subprocess.CalledProcessError as error:
        warn(f"{' '.join(map(str, error.cmd[:6]))} failed ({error.returncode})")
        return 1
    except KeyboardInterrupt:
        warn("interrupted")
        return 130
    return 0
