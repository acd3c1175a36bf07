# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An MCP server over standard input and output: the playbooks of this collection as tools; docs/automation.md has its setup."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcp.server import MCPServer

INSTRUCTIONS = """Operates NVIDIA DGX Sparks that serve models with vLLM. Read verbs change nothing. Every answer is the outcome of
a run: `outcome`, `exit_code`, `errors`, `findings` (each with its `fix`), `reports`. A silent host is unreachable, not stopped.
Ask the owner before start, stop or restart."""
NAMES = re.compile(r"\w[\w.-]*(?:,\w[\w.-]*)*")
"""Names of services or hosts, separated by commas. Anything else, such as a template, never reaches Ansible."""
DEADLINE_SECONDS = 3600
"""Of a run; a start may load weights for half an hour."""
END_SECONDS = 30
"""Time that an interrupted run has to end its tasks."""


class Runner:
    """Runs playbooks one at a time: two runs on a fleet wait for each other anyway."""

    def __init__(self, inventory: str, program: str) -> None:
        self.inventory, self.program, self.lock = inventory, program, asyncio.Lock()

    async def run(self, verb: str, services: str = "", hosts: str = "", pin: bool = True) -> dict[str, Any]:
        """Return the outcome of a playbook.

        :param verb: name of the playbook
        :param services: names, separated by commas; empty for the playbook's default
        :param hosts: names to which the run is limited, separated by commas; empty for all
        :param pin: whether start and stop keep services on demand up or down until the next boot
        """
        for names in filter(None, (services, hosts)):
            if not NAMES.fullmatch(names):
                raise ValueError(f"{names!r} is no list of names; write them as NAME,NAME")
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder, "result.json")
            words = ["-i", self.inventory, f"dgxspark.vllm.{verb}", "-e", json.dumps({"spark_result": str(result)})]
            words += ["-e", json.dumps({"services": services})] if services else []
            words += [] if pin else ["-e", json.dumps({"spark_pin": False})]
            words += ["--limit", hosts] if hosts else []
            async with self.lock:
                output = await self._output(words)
            # A run that ends before its callback starts has no outcome, only a message.
            return json.loads(result.read_text()) if result.exists() else {"outcome": "failed", "errors": [output]}

    async def _output(self, words: list[str]) -> str:
        callbacks = os.environ.get("ANSIBLE_CALLBACKS_ENABLED", "").split(",")
        environment = {
            **os.environ,
            "ANSIBLE_CALLBACKS_ENABLED": ",".join(filter(None, [*callbacks, "dgxspark.vllm.progress"])),
            "DGXSPARK_PROGRESS_STYLE": "none",
            "ANSIBLE_NOCOLOR": "1",
        }
        process = await asyncio.create_subprocess_exec(
            self.program,
            *words,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            # A client that was started in the background ignores SIGINT, and its children would too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            output, _errors = await asyncio.wait_for(process.communicate(), DEADLINE_SECONDS)
        finally:
            if process.returncode is None:
                await asyncio.shield(self._interrupt(process))
        return output.decode(errors="replace")[-2000:]

    @staticmethod
    async def _interrupt(process: asyncio.subprocess.Process) -> None:
        """End a run as Ctrl-C would, and wait for its end, so that the next run begins behind it."""
        for number in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), END_SECONDS)
                return


def server(runner: Runner, allows_changes: bool) -> MCPServer:
    """Return the server. allows_changes: also offer the verbs that start and stop services."""
    app = MCPServer("dgxspark.vllm", instructions=INSTRUCTIONS)

    def offer(verb: str, description: str, takes: str, reads: bool) -> None:
        async def with_pin(services: str = "", hosts: str = "", pin: bool = True) -> dict[str, Any]:
            return await runner.run(verb, services, hosts, pin)

        async def with_services(services: str = "", hosts: str = "") -> dict[str, Any]:
            return await runner.run(verb, services, hosts)

        async def of_hosts(hosts: str = "") -> dict[str, Any]:
            return await runner.run(verb, hosts=hosts)

        function: Callable[..., Any] = {"pin": with_pin, "services": with_services, "hosts": of_hosts}[takes]
        app.tool(name=verb, description=description, annotations={"readOnlyHint": reads})(function)  # type: ignore[arg-type]  # a dict of hints

    for verb, description, takes in READS:
        offer(verb, description, takes, True)
    for verb, description, takes in CHANGES if allows_changes else ():
        offer(verb, description, takes, False)
    return app


READS = (
    (
        "plan",
        "Plan the inventory: does everything fit and can it run, how fast, and what is wrong. Contacts no host.",
        "hosts",
    ),
    ("status", "Whether services and hosts are healthy now. Unreachable is not stopped.", "hosts"),
    ("doctor", "Run all checks on the hosts; each finding has its fix.", "hosts"),
    ("drift", "Differences between hosts and their last deployment.", "hosts"),
    ("explain", "The cause in the logs of services (names, separated by commas), and its fix.", "services"),
)
CHANGES = (
    (
        "start",
        "Start services, and prove that they answer. Services on demand stay up until the next boot; with pin=false idleness stops them.",
        "pin",
    ),
    (
        "stop",
        "Stop services after their running requests; 'all' stops every service. Services on demand stay down until the next boot; "
        "with pin=false requests start them.",
        "pin",
    ),
    ("restart", "Stop services, then start and prove them.", "services"),
)
"""Verbs with descriptions and arguments: hosts, services too, or pin too."""


def main() -> None:
    """Serve until the client closes standard input."""
    parser = argparse.ArgumentParser(description="MCP server of dgxspark.vllm over standard input and output.")
    parser.add_argument("inventory", help="inventory of the Sparks, as after ansible-playbook -i")
    parser.add_argument("--allow-changes", action="store_true", help="also offer start, stop and restart")
    parser.add_argument("--ansible-playbook", default="ansible-playbook", help="the program, if it is not in PATH")
    options = parser.parse_args()
    server(Runner(options.inventory, options.ansible_playbook), options.allow_changes).run("stdio")


if __name__ == "__main__":
    main()
