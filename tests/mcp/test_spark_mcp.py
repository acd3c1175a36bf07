"""The MCP server with the client of the official SDK, which starts it as its users do."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

mcp: Any = importlib.import_module("mcp")  # of the environment of this test alone
ROOT = Path(__file__).parents[2]
SERVER = ROOT / "extensions" / "mcp" / "spark_mcp.py"
PROGRAM = os.environ.get("ANSIBLE_PLAYBOOK", str(ROOT / ".venv/bin/ansible-playbook"))
SPARK = "spark-1: {ansible_host: 192.0.2.1, spark_services: [{name: a, recipe: qwen3-4b-instruct-2507, port: 8001}]}"


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    folder = tmp_path / "sparks"
    folder.mkdir()
    (folder / "hosts.yml").write_text(f"sparks: {{hosts: {{{SPARK}}}}}\n")
    return folder


def ask(
    inventory: Path, *calls: tuple[str, dict[str, Any]], options: tuple[str, ...] = ()
) -> tuple[list[Any], list[Any]]:
    """Start the server, call tools; return its tools and the results."""

    async def talk() -> tuple[list[Any], list[Any]]:
        words = [str(SERVER), str(inventory), "--ansible-playbook", PROGRAM, *options]
        environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections")}
        async with mcp.Client(mcp.StdioServerParameters(command=sys.executable, args=words, env=environment)) as client:
            tools = (await client.list_tools()).tools
            return tools, [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(talk())


def test_reading_is_all_that_it_offers_without_the_switch(inventory: Path) -> None:
    tools, (planned, stop) = ask(inventory, ("plan", {}), ("stop", {"services": "all"}))
    assert {tool.name for tool in tools} == {"plan", "status", "doctor", "drift", "explain"}
    assert all(tool.annotations.read_only_hint for tool in tools)
    outcome = planned.structured_content
    assert (outcome["verb"], outcome["outcome"], outcome["exit_code"]) == ("plan", "done", 0)
    assert outcome["plan"]["services"][0]["name"] == "a" and outcome["findings"]
    assert stop.is_error


def test_changes_need_the_switch_and_a_wrong_service_is_named(inventory: Path) -> None:
    tools, (result,) = ask(inventory, ("stop", {"services": "nothing"}), options=("--allow-changes",))
    assert {"start", "stop", "restart"} <= {tool.name for tool in tools}
    assert not [tool.name for tool in tools if tool.name == "stop" and tool.annotations.read_only_hint]
    outcome = result.structured_content
    assert outcome["exit_code"] == 2 and "nothing" in outcome["errors"][0]["message"], outcome


@pytest.mark.parametrize(
    "names", ["{{ lookup('pipe', 'id') }}", "a b", "-e x=1", "@/etc/passwd", "a;b", "a\nb", "-vvvv", "a,-b"]
)
def test_nothing_but_names_reaches_ansible(inventory: Path, tmp_path: Path, names: str) -> None:
    program, ran = tmp_path / "program", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    calls = [("explain", {"services": names}), ("status", {"hosts": names})]
    _tools, results = ask(inventory, *calls, options=("--ansible-playbook", str(program)))
    assert all(result.is_error for result in results) and not ran.exists()


def test_a_run_without_an_outcome_is_a_failure_with_its_words(inventory: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho 'no such collection'\nexit 1\n")
    program.chmod(0o755)
    _tools, (result,) = ask(inventory, ("status", {}), options=("--ansible-playbook", str(program)))
    assert (
        result.structured_content["outcome"] == "failed"
        and "no such collection" in result.structured_content["errors"][0]
    )


def test_a_pin_is_an_argument_of_start_and_stop(inventory: Path, tmp_path: Path) -> None:
    program, log = tmp_path / "program", tmp_path / "log"
    program.write_text(f'#!/bin/sh\necho "$*" >> {log}\nexit 1\n')
    program.chmod(0o755)
    calls = [("start", {"services": "a"}), ("stop", {"services": "a", "pin": False}), ("restart", {"services": "a"})]
    tools, _results = ask(inventory, *calls, options=("--allow-changes", "--ansible-playbook", str(program)))
    assert {tool.name for tool in tools if "pin" in tool.input_schema["properties"]} == {"start", "stop"}
    assert [json.dumps({"spark_pin": False}) in line for line in log.read_text().splitlines()] == [False, True, False]


@pytest.fixture(params=[signal.SIG_DFL, signal.SIG_IGN], ids=["foreground", "background"])
def interrupts(request: pytest.FixtureRequest) -> Iterator[None]:
    """A shell starts programs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("listens", [True, False])
def test_the_next_run_begins_when_an_interrupted_one_has_ended(
    inventory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    monkeypatch.syspath_prepend(str(SERVER.parent))
    spark_mcp = importlib.import_module("spark_mcp")
    # Long enough for a slow machine to start a shell, and to end one that listens; one that does not is killed.
    monkeypatch.setattr(spark_mcp, "DEADLINE_SECONDS", 4)
    monkeypatch.setattr(spark_mcp, "END_SECONDS", 60 if listens else 1)
    program, log = tmp_path / "program", tmp_path / "log"
    trap = f"sleep 1; echo ended >> {log}; exit 1" if listens else ""
    # Its child keeps the pipe open.
    program.write_text(f"#!/bin/sh\ntrap '{trap}' INT\necho began >> {log}\nsleep 15 &\nwait\n")
    program.chmod(0o755)
    runner = spark_mcp.Runner(str(inventory), str(program))

    async def twice() -> list[Any]:
        return await asyncio.gather(runner.run("status"), runner.run("status"), return_exceptions=True)

    errors = asyncio.run(twice())
    assert all(isinstance(error, asyncio.TimeoutError) for error in errors)
    assert log.read_text().split() == (["began", "ended"] if listens else ["began"]) * 2
