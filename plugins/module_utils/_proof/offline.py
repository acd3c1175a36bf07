# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The throughput of a model without server, scheduler of requests and HTTP: C(vllm bench throughput) with a service's launch.

The program loads the model into the memory of the service, so the service is stopped before. Its container has the options of
the service's container, with another name and program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import benchmark

_SERVER = (
    "headless api-server-count config grpc lora-modules chat-template chat-template-content-format trust-request-chat-template "
    "trust-request-mm-kwargs default-chat-template-kwargs reasoning-effort-map response-role return-tokens-as-token-ids "
    "enable-auto-tool-choice exclude-tools-when-tool-choice-none tool-call-parser tool-parser-plugin tool-strict-level tool-server "
    "max-log-len enable-prompt-tokens-details enable-per-request-metrics enable-server-load-tracking enable-force-include-usage "
    "sse-keep-alive-interval enable-tokenizer-info-endpoint enable-log-outputs enable-log-deltas cohere-is-reasoning-model "
    "cohere-format anthropic-disabled-thinking-effort log-error-stack tokens-only enable-scale-out fingerprint-mode "
    "fingerprint-value host port grpc-port data-parallel-supervisor-port dp-supervisor-probe-interval-s "
    "dp-supervisor-probe-timeout-s dp-supervisor-probe-failure-threshold uds uvicorn-log-level disable-uvicorn-access-log "
    "disable-access-log-for-endpoints allow-credentials allowed-origins allowed-methods allowed-headers api-key ssl-keyfile "
    "ssl-certfile ssl-ca-certs enable-ssl-refresh ssl-cert-reqs ssl-ciphers root-path middleware enable-request-id-headers "
    "disable-fastapi-docs h11-max-incomplete-event-size h11-max-header-count enable-offline-docs enable-flash-late-interaction "
    # Dropped by newer versions, or read by the engine only to serve them.
    "disable-frontend-multiprocessing enable-reasoning reasoning-parser reasoning-parser-plugin served-model-name"
)
SERVER_OPTIONS = frozenset(_SERVER.split())
"""Options of C(vllm serve) that only the server has: vLLM 0.33.0 declares them before its engine's; with older ones."""
_WITH_VALUE = ("--name", "--label", "--entrypoint")


def refusal(service: Mapping[str, Any]) -> str:
    """Return why a planned service cannot be measured without its server, empty when it can."""
    if service.get("cluster"):
        return "it spans hosts: the program starts one process, and no ranks"
    if service.get("pip"):
        return "its container installs packages at its start, which the program would run without"
    return ""


def engine_args(service: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a planned service that are its engine's, by name."""
    model = service["model"]
    args = {name: value for name, value in service["args"].items() if name not in SERVER_OPTIONS}
    if model.get("revision") and model.get("repo"):
        args.setdefault("revision", model["revision"])
    return args


def command(
    service: Mapping[str, Any], rendered: Sequence[str], settings: Mapping[str, Any], seconds: int
) -> list[str]:
    """Return the C(docker run) that measures a service's model. rendered: C(engine_args). settings: C(spark_bench) with every default."""
    argv = list(service["argv"])
    docker_words = [argv[0].rpartition("/")[2]]  # found in PATH, like the module's other calls
    words = iter(argv[1 : argv.index(service["image"]["run"])])
    for word in words:
        if word in _WITH_VALUE:
            next(words)
        else:
            docker_words.append(word)
    added = ["--name", f"{service['container']}-bench", "--label", "dgxspark.managed=true"]
    lengths = ["--input-len", str(min(settings["prompt_tokens"])), "--output-len", str(settings["output_tokens"])]
    program = [str(seconds), "--model", service["model"]["argument"], *rendered, *lengths]
    program += ["--num-prompts", str(settings["rate_requests"])]
    image = [service["image"]["run"]]
    # NVIDIA's own entrypoint stays: it lets a newer CUDA run on an older driver.
    shell = ["--entrypoint", "/bin/sh", *image] if service["entrypoint"] == "serve" else [*image, "/bin/sh"]
    return [*docker_words, *added, *shell, "-c", benchmark.THROUGHPUT_SCRIPT, "bench", *program]


def row(result: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a result of C(vllm bench throughput). Raises ValueError if figures are missing or make no sense."""
    try:
        seconds, requests = float(result["elapsed_time"]), int(result["num_requests"])
        total = float(result["tokens_per_second"])
    except (ValueError, TypeError, KeyError):
        raise ValueError("vllm bench throughput left no result that can be read") from None
    if not (0 < seconds < 1e9 and 0 < requests < 1e9 and 0 < total < 1e12):
        raise ValueError("vllm bench throughput left invalid figures")
    return {
        "requests": requests,
        "prompt_tokens": min(settings["prompt_tokens"]),
        "output_tokens": settings["output_tokens"],
        "seconds": benchmark.significant(seconds),
        "requests_per_second": benchmark.significant(requests / seconds),
        "tokens_per_second": benchmark.significant(total),
        "output_tokens_per_second": benchmark.significant(requests * settings["output_tokens"] / seconds),
    }
