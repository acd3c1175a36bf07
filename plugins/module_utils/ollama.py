# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ollama as a fallback beside the engines: what C(spark_ollama) says, and the container, unit and endpoint that follow from it.

Ollama takes memory when it is asked for a model, and nothing bounds it as a whole. Its own settings do: how many models at
once, how many requests at once, how long a context, how large its entries. An engine that starts has it unload everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils import endpoints as fleet
from ansible_collections.dgxspark.vllm.plugins.module_utils import recipes, speech
from ansible_collections.dgxspark.vllm.plugins.module_utils.endpoints import Endpoint
from ansible_collections.dgxspark.vllm.plugins.module_utils.findings import Finding

KEYS: dict[str, tuple[type | tuple[type, ...], Any, str]] = {
    "models": (list, ["qwen3:8b"], "models that are pulled, as Ollama's library names them"),
    "image": (str, "ollama/ollama:0.33.3", "image of Ollama"),
    "port": (int, 11434, "TCP port of the host"),
    "listen": (
        str,
        "",
        "address of the host that it answers on; loopback, or the management address for a gateway elsewhere",
    ),
    "memory_gib": ((int, float), 8.0, "memory that the plan keeps for it; a pulled model that is larger is refused"),
    "device": (str, "gpu", "gpu or cpu"),
    "keep_alive": ((str, int), "5m", "how long a model stays loaded after its last request: 5m, 300, 0 or -1 for ever"),
    "num_parallel": (int, 1, "requests at once for each model; each has a context of its own in memory"),
    "max_loaded_models": (int, 1, "models in memory at once"),
    "context_length": (int, 8192, "context of a request that does not name one, in tokens"),
    "kv_cache_type": (str, "q8_0", "entries of the KV cache: f16, q8_0 (half of that) or q4_0 (a quarter)"),
    "flash_attention": (bool, True, "flash attention; a kv_cache_type other than f16 needs it"),
    "max_queue": (int, 64, "requests that may wait before others are answered with 503"),
    "gpu_overhead_gib": ((int, float), 8.0, "free memory that Ollama leaves alone when it places a model on the GPU"),
    "env": (dict, {}, "further environment of the server; no secrets"),
    "models_dir": (str, "/srv/ollama", "folder on the host that models are kept in"),
    "volumes": (list, [], "further mounts, as HOST_PATH:CONTAINER_PATH or with :ro"),
    "docker_args": (list, [], "further options of docker run"),
    "start_timeout": (int, 180, "seconds that a start may take; models are pulled after it"),
    "pull_timeout": (int, 7200, "seconds that the pull of one model may take"),
}  # fmt: skip
"""Keys of C(spark_ollama): type, default, meaning."""

NAME = "ollama"
KV_CACHE_TYPES = ("f16", "q8_0", "q4_0")
MODEL = re.compile(r"(?:[\w.-]+/){0,3}[A-Za-z0-9][\w.-]*(?::[\w.-]+)?")
DURATION = re.compile(r"-?(?:\d+(?:\.\d+)?(?:ms|s|m|h))+|-?\d+")
BILLIONS = re.compile(r"(?:^|[-_])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?:$|[-_])", re.IGNORECASE)
GIB_PER_BILLION = 0.6
"""Weights of the library's usual quantisation (Q4_K_M): qwen3:8b, 8.2 billion parameters, is 5.2 GB."""
RUNNER_GIB = 1.0
"""What the runner of a loaded model holds beside weights and KV cache: CUDA context, compute buffers."""
SETTINGS_FILE = "/etc/dgxspark/ollama.json"
"""Where units of engines read by which URL models are unloaded."""
ETC = "/etc/dgxspark/ollama"
CONTAINER_PORT = 11434
CONTAINER_MODELS = "/models"
GIB = 2**30


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_ollama) of one host; return it with every default filled in, and all that is wrong."""
    problems = recipes.Problems(f"host {host}, spark_ollama")
    if not isinstance(value, Mapping):
        problems.add(f"must be a mapping, not {recipes.kind(value)}. Write 'models: [qwen3:8b]' below it.")
        return {}, problems.messages
    own = {str(key).replace("-", "_"): item for key, item in value.items() if item is not None}
    problems.unknown(own, tuple(KEYS))
    own = speech.check_types(problems, own, KEYS)
    settings = {key: own.get(key, default) for key, (_types, default, _meaning) in KEYS.items()}
    settings["env"] = speech.environment(problems, settings["env"])
    for name in settings["env"]:
        if name in environment_of(settings):
            problems.add(f"'env' sets {name}, which follows from the keys of spark_ollama. Set those instead.")
    _check(problems, settings)
    return settings, problems.messages


def _check(problems: recipes.Problems, settings: Mapping[str, Any]) -> None:
    speech.check_image(problems, settings["image"])
    speech.check_port(problems, "port", settings["port"])
    speech.check_listen(problems, settings["listen"])
    speech.check_size(problems, "memory_gib", settings["memory_gib"])
    for key in ("start_timeout", "pull_timeout"):
        if settings[key] < 60:
            problems.add(f"'{key}' is {settings[key]}; it must be a whole number of seconds, 60 or more.")
    for key in ("volumes", "docker_args"):
        speech.check_texts(problems, key, settings[key])
    speech.check_volumes(problems, settings["volumes"])
    for key in ("num_parallel", "max_loaded_models", "context_length", "max_queue"):
        if settings[key] < 1:
            problems.add(f"'{key}' is {settings[key]}; it must be 1 or more.")
    if settings["gpu_overhead_gib"] < 0:
        problems.add(f"'gpu_overhead_gib' is {settings['gpu_overhead_gib']}; a size in GiB cannot be negative.")
    if settings["device"] not in ("cpu", "gpu"):
        problems.add(f"'device' is {settings['device']!r}; it must be gpu or cpu.")
    if settings["kv_cache_type"] not in KV_CACHE_TYPES:
        problems.add(
            f"'kv_cache_type' is {settings['kv_cache_type']!r}; it must be one of {', '.join(KV_CACHE_TYPES)}."
        )
    elif settings["kv_cache_type"] != "f16" and not settings["flash_attention"]:
        problems.add(
            f"'kv_cache_type' is {settings['kv_cache_type']}, which needs flash_attention; without it Ollama takes f16, and twice "
            "the memory. Leave flash_attention on, or set kv_cache_type: f16."
        )
    if not DURATION.fullmatch(str(settings["keep_alive"])):
        problems.add(
            f"'keep_alive' is {settings['keep_alive']!r}; write 5m, 1h, a number of seconds, 0, or -1 for ever."
        )
    folder = str(settings["models_dir"])
    if not folder.startswith("/") or ":" in folder or ".." in folder.split("/") or recipes.CONTROL.search(folder):
        problems.add(f"'models_dir' is '{folder}'; it must be an absolute path.")
    seen = set()
    for model in settings["models"]:
        if not isinstance(model, str) or not MODEL.fullmatch(model):
            problems.add(f"'models' names {model!r}; write NAME:TAG as Ollama's library does, for example qwen3:8b.")
        elif full_name(model) in seen:
            problems.add(f"'models' names {model} twice.")
        else:
            seen.add(full_name(model))


def full_name(model: str) -> str:
    """A model's name as Ollama lists it: the tag C(latest) is what a name without one means."""
    return model if ":" in model.rpartition("/")[2] else f"{model}:latest"


def environment_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return Ollama's own settings; docs/speech.md says what each of them bounds, and where that is written."""
    env = {
        "OLLAMA_HOST": f"0.0.0.0:{CONTAINER_PORT}",  # inside the container; the address outside is that of the published port
        "OLLAMA_MODELS": CONTAINER_MODELS,
        "OLLAMA_KEEP_ALIVE": str(settings["keep_alive"]),
        "OLLAMA_NUM_PARALLEL": str(settings["num_parallel"]),
        "OLLAMA_MAX_LOADED_MODELS": str(settings["max_loaded_models"]),
        "OLLAMA_MAX_QUEUE": str(settings["max_queue"]),
        "OLLAMA_CONTEXT_LENGTH": str(settings["context_length"]),
        "OLLAMA_KV_CACHE_TYPE": str(settings["kv_cache_type"]),
        "OLLAMA_FLASH_ATTENTION": "1" if settings["flash_attention"] else "0",
        "OLLAMA_NO_CLOUD": "1",  # what a fallback of this host is asked stays on it
    }
    if settings["device"] == "gpu":
        env["OLLAMA_GPU_OVERHEAD"] = str(round(float(settings["gpu_overhead_gib"]) * GIB))
        env["OLLAMA_IGPU_ENABLE"] = "1"  # GB10 shares its memory with the CPU, which newer versions pass over otherwise
    return env


def estimate_gib(model: str) -> float | None:
    """Estimate the weights of a model by the size in its name, None where it names none."""
    found = BILLIONS.search(full_name(model).rpartition("/")[2].replace(":", "-"))
    return int(found[1] or 1) * float(found[2]) * GIB_PER_BILLION if found else None


def sidecars(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the memory that Ollama may hold, for the plan to keep before engines are sized; idle, it holds none."""
    return [{"name": NAME, "memory_gib": float(settings["memory_gib"])}]


def plan(
    host: str,
    settings: Mapping[str, Any],
    endpoints: Sequence[Endpoint],
    address: str = "",
    gateway: str = "",
    gpu_args: Sequence[Any] = ("--gpus", "all"),
    listening: Sequence[Mapping[str, Any]] = (),
    present: Sequence[str] | None = None,
) -> tuple[dict[str, Any], list[Endpoint], list[Finding]]:
    """Plan Ollama on one host; the arguments are those of C(speech.plan).

    present: models that the host is known to have, None where that is not known.
    Returns the variables of the role ollama without their prefix, the endpoint that comes to the fleet, and findings.
    """
    listen = speech.choose_listen(host, settings["listen"], address, gateway, keyed=False)
    url = f"http://{fleet.bracketed(speech.probe_address(listen))}:{settings['port']}"
    outcome = {
        "state": "present",
        "image": settings["image"],
        "url": url,
        "models": [full_name(model) for model in settings["models"]],
        "memory_gib": float(settings["memory_gib"]),
        "models_dir": settings["models_dir"],
        "env": {**environment_of(settings), **settings["env"]},
        "argv": _argv(settings, listen, gpu_args),
        "start_timeout": settings["start_timeout"],
        "pull_timeout": settings["pull_timeout"],
        "limits": speech.limits(settings["start_timeout"]),
    }
    endpoint = fleet.make(
        host,
        address,
        NAME,
        "ollama",
        settings["port"],
        listen,
        models=list(settings["models"]),
        max_model_len=settings["context_length"],
        memory_gib=float(settings["memory_gib"]),
    )
    findings = speech.check_endpoint("ollama", endpoint, endpoints, listening, gateway, can_be_keyed=False)
    findings += speech.moving_tag("ollama", NAME, settings["image"])
    return outcome, [endpoint], [*findings, *_findings(settings, present)]


def _argv(settings: Mapping[str, Any], listen: str, gpu_args: Sequence[Any]) -> list[str]:
    argv = speech.run_argv(NAME, listen, settings["port"], CONTAINER_PORT, f"{ETC}/ollama.env")
    if settings["device"] == "gpu":
        argv += [str(arg) for arg in gpu_args]
    argv += ["--volume", f"{settings['models_dir']}:{CONTAINER_MODELS}"]
    for volume in settings["volumes"]:
        argv += ["--volume", str(volume)]
    return [*argv, *(str(arg) for arg in settings["docker_args"]), settings["image"]]


def _findings(settings: Mapping[str, Any], present: Sequence[str] | None) -> list[Finding]:
    findings = []
    sizes = {model: estimate_gib(model) for model in settings["models"]}
    known = sorted((size for size in sizes.values() if size), reverse=True)[: settings["max_loaded_models"]]
    wanted = sum(known) + RUNNER_GIB * len(known)
    if wanted > settings["memory_gib"]:
        largest = ", ".join(f"{model} {size:.1f}" for model, size in sizes.items() if size)
        findings.append(
            Finding(
                rule="ollama.memory",
                severity="warning",
                service=NAME,
                message=f"up to {settings['max_loaded_models']} of its models are loaded at once, about {wanted:.1f} GiB without "
                f"their context ({largest} GiB by the sizes in their names, at 4 bits), but {settings['memory_gib']:g} GiB are kept.",
                fix=f"Set memory_gib: {wanted + 1:.0f} or more, fewer max_loaded_models, or smaller models.",
                source="https://ollama.com/library",
            )
        )
    if str(settings["keep_alive"]).startswith("-"):
        findings.append(
            Finding(
                rule="ollama.keep_alive",
                severity="warning",
                service=NAME,
                message=f"keep_alive {settings['keep_alive']} holds a model for ever; an engine that starts unloads it all the same.",
                fix="Set keep_alive: 5m, and the memory is free again when the fallback is not used.",
            )
        )
    missing = [model for model in settings["models"] if present is None or full_name(model) not in present]
    if missing:
        findings.append(
            Finding(
                rule="ollama.download",
                severity="info",
                service=NAME,
                message=f"{', '.join(missing)}: pulled from Ollama's library over the internet, unless the host has "
                f"{'it' if len(missing) == 1 else 'them'} in {settings['models_dir']}.",
                fix="On a host without internet, copy that folder from one that has the models.",
                basis="inventory" if present is None else "measured",
            )
        )
    return findings
