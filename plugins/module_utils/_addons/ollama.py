# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ollama as a fallback: C(spark_ollama), and its container, unit and endpoint.

Ollama takes memory when a request names a model, and has no limit for its memory as a whole. Its settings limit the number of models, of
requests, and the context length. An engine that starts makes it unload all models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .._cluster import endpoints as fleet
from .._cluster.endpoints import Endpoint
from .._common import plain_data, schema, validation
from .._common.findings import Finding
from .._common.on_demand_keys import KEYS as ENGINE_ON_DEMAND
from .._common.sizes import GIB
from .._host import host_paths
from .descriptions import DESCRIPTIONS, finding, options
from .servers import (
    ServerHost,
    check_container,
    container_findings,
    docker_run,
    endpoint_findings,
    environment,
    limits,
    local_url,
    published,
)

KEYS = options("spark_ollama")
ON_DEMAND = options("spark_ollama.on_demand")
DESCRIPTION = DESCRIPTIONS["ollama"]

NAME = "ollama"
MODEL = re.compile(r"(?:[\w.-]+/){0,3}[A-Za-z0-9][\w.-]*(?::[\w.-]+)?")
DURATION = re.compile(r"-?(?:\d{1,9}(?:\.\d{1,9})?(?:ms|s|m|h))+|-?\d{1,9}", re.ASCII)
BILLIONS = re.compile(r"(?:^|[-_])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?:$|[-_])", re.IGNORECASE)
GIB_PER_BILLION = 0.6
"""Weights of the library's usual quantisation (Q4_K_M): qwen3:8b, 8.2 billion parameters, is 5.2 GB."""
RUNNER_GIB = 1.0
"""Memory of a loaded model's runner in addition to weights and KV cache: CUDA context, compute buffers."""


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_ollama) of one host; returns its settings with every default, and messages about wrong values."""
    problems = validation.Problems(f"host {host}, spark_ollama")
    if not isinstance(value, Mapping):
        problems.add(f"must be a mapping, not {plain_data.kind(value)}. Write 'models: [qwen3:8b]' below it.")
        return {}, problems.messages
    values = {str(key).replace("-", "_"): item for key, item in value.items() if item is not None}
    settings = schema.filled(problems, values, KEYS)
    if settings["on_demand"] is not None:
        settings["keep_alive"] = _keep_alive_of(problems, values, settings["keep_alive"])
    settings["env"] = environment(problems, settings["env"])
    for name in settings["env"]:
        if name in environment_of(settings):
            problems.add(f"'env' sets {name}, which follows from the keys of spark_ollama. Set those instead.")
    check_container(problems, settings, "Take it out; Ollama needs no secret.")
    if settings["kv_cache_type"] != "f16" and not settings["flash_attention"]:
        problems.add(
            f"'kv_cache_type' is {settings['kv_cache_type']}, which needs flash_attention; without it Ollama takes f16, and twice "
            "the memory. Leave flash_attention on, or set kv_cache_type: f16."
        )
    if not DURATION.fullmatch(str(settings["keep_alive"])):
        problems.add(
            f"'keep_alive' is {settings['keep_alive']!r}; write 5m, 1h, a number of seconds, 0, or -1 for ever."
        )
    folder = settings["models_dir"]
    if not folder.startswith("/") or ".." in folder.split("/") or plain_data.CONTROL.search(folder):
        problems.add(f"'models_dir' is '{folder}'; it must be an absolute path.")
    elif host_paths.problem(folder):
        problems.add(f"'models_dir' is '{folder}': {host_paths.problem(folder)}.")
    else:
        validation.check_mount(problems, "models_dir", folder)
    _check_models(problems, settings["models"])
    return settings, problems.messages


def _keep_alive_of(problems: validation.Problems, values: Mapping[str, Any], default: Any) -> Any:
    """Return C(on_demand) as C(keep_alive), because Ollama itself loads and unloads its models.

    :param default: the result if C(on_demand) is wrong
    """
    on_demand = problems.mapping(values["on_demand"], "on_demand")
    engine_keys = set(ENGINE_ON_DEMAND) - set(ON_DEMAND)
    for key in sorted(set(on_demand) & engine_keys):
        problems.add(
            f"'on_demand.{key}' is for engines. Ollama loads its models itself when it is asked, so its requests are not delayed while an engine "
            "uses the memory; its memory_gib stays reserved next to every combination of engines. Remove it, or serve the model as a service."
        )
    right = {key: value for key, value in on_demand.items() if key not in engine_keys}
    minutes = schema.filled(problems, right, ON_DEMAND, "on_demand.")["idle_minutes"]
    if "keep_alive" in values:
        problems.add("'keep_alive' and 'on_demand' say the same in two ways. Take one of them out.")
    is_number = isinstance(minutes, (int, float)) and not isinstance(minutes, bool)
    return f"{max(round(minutes * 60), 1)}s" if is_number else default


def _check_models(problems: validation.Problems, models: Sequence[Any]) -> None:
    names = set()
    for model in models:
        if not isinstance(model, str) or not MODEL.fullmatch(model):
            problems.add(f"'models' names {model!r}; write NAME:TAG as Ollama's library does, for example qwen3:8b.")
        elif full_name(model) in names:
            problems.add(f"'models' names {model} twice.")
        else:
            names.add(full_name(model))


def full_name(model: str) -> str:
    """Return a model's name as Ollama lists it; a name without a tag has the tag C(latest)."""
    return model if ":" in model.rpartition("/")[2] else f"{model}:latest"


def environment_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that follow from the settings."""
    texts = {**DESCRIPTION["environment"], **(DESCRIPTION["gpu_environment"] if settings["device"] == "gpu" else {})}
    values = {**settings, "gpu_overhead_bytes": round(float(settings["gpu_overhead_gib"]) * GIB)}
    return {name: text.format(**values) for name, text in texts.items()}


def estimate_gib(model: str) -> float | None:
    """Return the size of a model's weights by the parameters in its name, C(None) without such a number."""
    size = BILLIONS.search(full_name(model).rpartition("/")[2].replace(":", "-"))
    return int(size[1] or 1) * float(size[2]) * GIB_PER_BILLION if size else None


def plan(
    host: ServerHost, settings: Mapping[str, Any], endpoints: Sequence[Endpoint]
) -> tuple[dict[str, Any], list[Endpoint], list[Finding]]:
    """Plan Ollama on one host.

    :returns: the variables of the role ollama without their prefix, its endpoint, and findings
    """
    listen = host.choose_listen(NAME, NAME, settings["listen"], has_key=False)
    memory_gib = float(settings["memory_gib"])
    gpu = [str(arg) for arg in host.gpu_args] if settings["device"] == "gpu" else []
    outcome = {
        "state": "present",
        "image": settings["image"],
        "url": local_url(listen, settings["port"]),
        "models": [full_name(model) for model in settings["models"]],
        "memory_gib": memory_gib,
        "models_dir": settings["models_dir"],
        "env": {**environment_of(settings), **settings["env"]},
        "argv": docker_run(
            NAME,
            settings,
            published(listen, settings["port"], DESCRIPTION["container_port"]),
            "/etc/dgxspark/ollama/ollama.env",
            [*gpu, "--volume", f"{settings['models_dir']}:{DESCRIPTION['container_models']}"],
        ),
        "start_timeout": settings["start_timeout"],
        "pull_timeout": settings["pull_timeout"],
        "limits": limits(settings["start_timeout"]),
    }
    endpoint = fleet.make(
        host.name,
        host.address,
        NAME,
        "ollama",
        settings["port"],
        listen,
        models=list(settings["models"]),
        max_model_len=settings["context_length"],
        memory_gib=memory_gib,
    )
    findings = endpoint_findings("ollama", endpoint, endpoints, host, can_have_key=False)
    findings += container_findings("ollama", NAME, settings)
    return outcome, [endpoint], [*findings, *_findings(settings)]


def _findings(settings: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about the memory, the unloading and the download of models."""
    findings = []
    sizes = {model: size for model in settings["models"] if (size := estimate_gib(model))}
    loaded = sorted(sizes.values(), reverse=True)[: settings["max_loaded_models"]]
    needed_gib = sum(loaded) + RUNNER_GIB * len(loaded)
    if needed_gib > settings["memory_gib"]:
        values = {
            **{key: settings[key] for key in ("max_loaded_models", "memory_gib")},
            "needed_gib": needed_gib,
            "memory_fix": needed_gib + 1,
            "sizes": ", ".join(f"{model} {size:.1f}" for model, size in sizes.items()),
        }
        findings.append(finding("ollama.memory", NAME, **values))
    if str(settings["keep_alive"]).startswith("-"):
        findings.append(finding("ollama.keep_alive", NAME, keep_alive=settings["keep_alive"]))
    models = settings["models"]
    if models:
        values = {"models": ", ".join(models), "pronoun": "it" if len(models) == 1 else "them"}
        findings.append(finding("ollama.download", NAME, models_dir=settings["models_dir"], **values))
    return findings
