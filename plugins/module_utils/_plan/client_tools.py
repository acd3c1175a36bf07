# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find engines that would refuse the tools of clients behind a gateway.

Without C(--enable-auto-tool-choice) and C(--tool-call-parser) vLLM answers every request with C(tool_choice: auto) by HTTP 400
(vllm/entrypoints/openai/chat_completion/serving.py); the model list still answers, so no probe notices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .._addons.clients import HERMES_MODEL
from .._common.findings import Finding
from .planned import PlannedService

TOOL_PARSERS = {
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "DeepseekV41ForCausalLM": "deepseek_v41",
    "DiffusionGemmaForBlockDiffusion": "gemma4",
    "Ernie4_5_MoeForCausalLM": "ernie45",
    "Gemma4ForConditionalGeneration": "gemma4",
    "Gemma4UnifiedForConditionalGeneration": "gemma4",
    "Glm4MoeForCausalLM": "glm45",
    "Glm4MoeLiteForCausalLM": "glm47",
    "Glm5NextForConditionalGeneration": "glm47",
    "GptOssForCausalLM": "openai",
    "KimiK25ForConditionalGeneration": "kimi_k2",
    "LagunaForCausalLM": "poolside_v1",
    "Llama4ForConditionalGeneration": "llama4_pythonic",
    "MiMoV2ForCausalLM": "mimo",
    "MiniMaxM3SparseForConditionalGeneration": "minimax_m3",
    "Mistral3ForConditionalGeneration": "mistral",
    "NemotronHForCausalLM": "qwen3_coder",
    "NemotronH_Nano_Omni_Reasoning_V3": "qwen3_coder",
    "Qwen3ForCausalLM": "hermes",
    "Qwen3MoeForCausalLM": "hermes",
    "Qwen3NextForCausalLM": "hermes",
    "Qwen3VLMoeForConditionalGeneration": "hermes",
    "Qwen3_5ForConditionalGeneration": "qwen3_coder",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_coder",
    "Qwen4ExpForConditionalGeneration": "qwen3_xml",
    "Step3p7ForConditionalGeneration": "step3p5",
}
"""Tool parser by architecture, from the recipes of this collection and the model cards, November 2026."""
AGENTS = (
    *("hermes", "openclaw", "opencode", "cline", "claude-code", "codex", "goose", "openhands", "roo-code", "crush"),
    *("qwen-code", "continue", "aider-agent", "zed", "cursor"),
)
"""Names of gateway clients for agents, which send tools with every request."""


class _Client(NamedTuple):
    """A client with tools. host: of the finding. models: its names at the gateway. otherwise: a fix in the client's settings."""

    host: str
    label: str
    service: str
    gateway: str
    models: Sequence[str]
    otherwise: str = ""


def findings(
    outcome: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Mapping[str, Any]],
    engines: Mapping[str, PlannedService],
    architectures: Mapping[str, str],
) -> dict[str, list[Finding]]:
    """Find engines that refuse the tools of clients. outcome: of C(addons.plan). settings: of add-on services by host. engines: by key."""
    errors: dict[str, list[Finding]] = {}
    for client in _clients(outcome, settings):
        gateway = outcome[client.gateway]["gateway"]
        behind = [
            str(entry["model_info"]["id"]).removeprefix(f"{entry['model_name']}@")
            for entry in gateway["config"]["model_list"]
            if entry["model_name"] in client.models
        ]
        for key in dict.fromkeys(behind):
            args = engines[key].args if key in engines else {}
            is_pooling = args.get("runner") == "pooling" or args.get("convert")
            missing = [name for name in ("enable-auto-tool-choice", "tool-call-parser") if not args.get(name)]
            if key not in engines or is_pooling or not missing:
                continue
            parser = TOOL_PARSERS.get(architectures.get(key, ""), "")
            options = {
                "enable-auto-tool-choice": "enable-auto-tool-choice: true (--enable-auto-tool-choice)",
                "tool-call-parser": f"tool-call-parser: {parser} (--tool-call-parser {parser})"
                if parser
                else "tool-call-parser: X (--tool-call-parser X, the parser that the model's card names)",
            }
            errors.setdefault(client.host, []).append(
                Finding(
                    "clients.tools",
                    "error",
                    f"{client.label} sends tools with its requests, and {key} runs without {' and '.join(f'--{name}' for name in missing)}: "
                    "it would answer each of them with HTTP 400.",
                    f"Add to args of {engines[key].name}: {', '.join(options[name] for name in missing)}.{client.otherwise}",
                    service=client.service,
                )
            )
    return errors


def _clients(outcome: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Mapping[str, Any]]) -> Iterator[_Client]:
    """Yield the clients with tools of all hosts."""
    yield from _deployed_clients(outcome, settings)
    planned_clients = [addons["clients"] or {} for addons in outcome.values()]
    deployed = {name.replace("_", "-") for clients in planned_clients for name in clients if clients[name]}
    for host, addons in outcome.items():
        if addons["gateway"]:
            yield from _gateway_clients(host, addons["gateway"]["settings"], deployed)


def _deployed_clients(
    outcome: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Mapping[str, Any]]
) -> Iterator[_Client]:
    """Yield the clients with tools that this collection deploys."""
    gateways = [host for host, addons in outcome.items() if addons["gateway"]]
    for host, addons in sorted(outcome.items()):
        for name, planned in (addons["clients"] or {}).items():
            client_settings = settings[host]["clients"].get(name) or {}
            gateway = client_settings.get("gateway") or (gateways[0] if len(gateways) == 1 else "")
            if not planned or gateway not in gateways:
                continue
            if name == "hermes":
                yield _Client(host, "spark_clients.hermes", "hermes", gateway, [planned["model"]])
            elif client_settings.get("tools"):
                models = [model for model in planned["models"] if model != HERMES_MODEL]
                otherwise = " Or set tools: false of spark_clients.open_webui, and no chat offers any."
                yield _Client(host, "spark_clients.open_webui", "open-webui", gateway, models, otherwise)


def _gateway_clients(host: str, settings: Mapping[str, Any], deployed: Collection[str]) -> Iterator[_Client]:
    """Yield the clients of a gateway with the key of an agent, without the deployed ones. settings: of the gateway."""
    for key in settings["keys"]:
        name = str(key["name"])
        is_agent = any(name == agent or name.startswith(f"{agent}-") for agent in AGENTS)
        if key["role"] == "client" and is_agent and name not in deployed:
            models = settings["names"] if key.get("aliases") is None else key["aliases"]
            yield _Client(host, f"client {name} of spark_gateway", "gateway", host, models)
