# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients that send tools, on engines that would refuse them: client_tools."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import client_tools
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES, load_recipes

KNOWN = load_recipes([RECIPES])[0]
OFF: dict[str, Any] = {"enable-auto-tool-choice": None, "tool-call-parser": None}


def made(
    spark_clients: dict[str, Any], args: dict[str, Any], recipe: str = "qwen3-4b-instruct-2507", **front: Any
) -> list[dict[str, Any]]:
    """Plan one engine behind a gateway with clients; return the findings on tools."""
    hosts = {
        "h": {
            "vars": {
                "spark_services": [{"name": "m", "recipe": recipe, "port": 8001, "args": args}],
                "spark_gateway": {"aliases": {"chat": "h/m"}, **front},
                "spark_clients": spark_clients,
            },
            "address": "192.0.2.11",
        }
    }
    findings = engine.plan_findings(engine.make_plan(hosts, KNOWN))
    return [finding for finding in findings if finding["rule"] == "clients.tools"]


HERMES = {"hermes": {"model": "chat"}}
PAGE = {"open_webui": {"listen": "127.0.0.1"}}


@pytest.mark.parametrize(("clients", "label"), [(HERMES, "spark_clients.hermes"), (PAGE, "spark_clients.open_webui")])
def test_an_engine_without_tool_options_is_an_error(clients: dict[str, Any], label: str) -> None:
    (finding,) = made(clients, OFF)
    assert finding["severity"] == "error" and finding["message"].startswith(label)
    assert "h/m runs without --enable-auto-tool-choice and --tool-call-parser" in finding["message"]
    assert "--enable-auto-tool-choice" in finding["fix"] and "--tool-call-parser hermes" in finding["fix"]
    assert ("tools: false" in finding["fix"]) == (clients is PAGE)


@pytest.mark.parametrize(
    ("recipe", "parser"), [("gpt-oss-20b", "openai"), ("qwen3.5-9b", "qwen3_coder"), ("gemma-4-26b-a4b", "gemma4")]
)
def test_the_parser_is_that_of_the_architecture(recipe: str, parser: str) -> None:
    (finding,) = made(HERMES, OFF, recipe)
    assert f"--tool-call-parser {parser})" in finding["fix"]


def test_one_missing_option_is_named_alone() -> None:
    (finding,) = made(HERMES, {"enable-auto-tool-choice": None})
    assert "--tool-call-parser" not in finding["message"] + finding["fix"]


@pytest.mark.parametrize(
    ("clients", "args", "recipe"),
    [
        (HERMES, {}, "qwen3-4b-instruct-2507"),
        ({"open_webui": {"listen": "127.0.0.1", "tools": False}}, OFF, "qwen3-4b-instruct-2507"),
        (PAGE, {}, "qwen3-embedding-0.6b"),
        ({}, OFF, "qwen3-4b-instruct-2507"),
    ],
)
def test_an_engine_that_takes_tools_or_is_offered_none_is_not_named(
    clients: dict[str, Any], args: dict[str, Any], recipe: str
) -> None:
    assert made(clients, args, recipe) == []


def test_agents_among_the_clients_of_the_gateway_are_known_by_name() -> None:
    keys = [{"name": "opencode", "key_file": "/k/a"}, {"name": "notebook", "key_file": "/k/b"}]
    (finding,) = made({}, OFF, master_key_file="/k/m", clients=keys)
    assert finding["message"].startswith("client opencode of spark_gateway sends tools")


def test_the_recipes_agree_with_the_table() -> None:
    """A recipe may name another parser for a checkpoint that writes calls differently; the table has every architecture with tools."""
    served: dict[str, set[str]] = {}
    for recipe in KNOWN.values():
        parser = recipe["args"].get("tool-call-parser")
        if parser:
            served.setdefault(recipe["config"]["architectures"][0], set()).add(parser)
    assert served.keys() <= client_tools.TOOL_PARSERS.keys()
    assert all(client_tools.TOOL_PARSERS[name] in parsers for name, parsers in served.items())
