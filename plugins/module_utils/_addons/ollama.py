# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ollama as a fallback beside the engines: what C(spark_ollama) says, and the container, unit and endpoint that follow from it.

Ollama takes memory when it is asked for a model, and nothing bounds it as a whole. Its own settings do: how many models at
once, how many requests at once, how long a context, how large its entries. An engine that starts has it unload everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._cluster import endpoints as fleet
from .._cluster.endpoints import Endpoint
from .._common import component_versions, plain_data, schema, validation
from .._common.findings import Finding
from .._common.schema import NUMBER, Key
from .._common.sizes import GIB
from .._host import host_paths
from . import speech

MOST = 10**7
"""Requests, models, tokens."""

KEYS: dict[str, Key] = {
    "models": Key(list, ["qwen3:8b"], "models to pull, by their names in Ollama's library"),
    "image": Key(str, component_versions.OLLAMA.ref, "image of Ollama"),
    "port": Key(int, 11434, "TCP port of the host", least=1, most=65535),
    "listen": Key(
        str,
        "",
        "address to listen on; loopback, or the management address for a gateway on another host",
    ),
    "memory_gib": Key(NUMBER, 8.0, "memory that the plan reserves; a pulled model that is larger is refused"),
    "device": Key(str, "gpu", "gpu or cpu", choices=("gpu", "cpu")),
    "keep_alive": Key((str, int), "5m", "how long a model stays loaded after its last request: 5m, 300, 0, or -1 for always"),
    "on_demand": Key(
        dict, None, "`{idle_minutes: 20}`, as engines have it: minutes without a request after which a model is unloaded; in place of keep_alive"
    ),
    "num_parallel": Key(int, 1, "concurrent requests per model; each needs memory for its own context", least=1, most=MOST),
    "max_loaded_models": Key(int, 1, "models in memory at once", least=1, most=MOST),
    "context_length": Key(int, 8192, "default context length of a request, in tokens", least=1, most=MOST),
    "kv_cache_type": Key(str, "q8_0", "data type of the KV cache: f16, q8_0 (half the memory) or q4_0 (a quarter)", choices=("f16", "q8_0", "q4_0")),
    "flash_attention": Key(bool, True, "flash attention; required by a kv_cache_type other than f16"),
    "max_queue": Key(int, 64, "queued requests, beyond which new ones are rejected (503)", least=1, most=MOST),
    "gpu_overhead_gib": Key(NUMBER, 8.0, "free memory that Ollama leaves unused when it places a model on the GPU", least=0, unit="GiB"),
    "env": Key(dict, {}, "additional environment variables of the server; no secrets"),
    "models_dir": Key(str, "/srv/ollama", "folder on the host for the models"),
    "volumes": Key(list, [], "additional mounts, HOST_PATH:CONTAINER_PATH, optionally with :ro"),
    "docker_args": Key(list, [], "further options of docker run"),
    "start_timeout": Key(int, 180, "seconds that a start may take; models are pulled after it", least=60, most=validation.LONGEST_START),
    "pull_timeout": Key(int, 7200, "seconds that the pull of one model may take", least=60, most=validation.LONGEST_START),
}  # fmt: skip
"""Keys of C(spark_ollama)."""

ON_DEMAND: dict[str, Key] = {
    "idle_minutes": Key(
        NUMBER, 20, "minutes without a request after which a model is unloaded", least=0.1, most=10080, unit="minutes"
    )
}
"""Keys of C(on_demand) of C(spark_ollama); the range is that of engines."""
OF_ENGINES = (
    *(
        "engine_port",
        "exclusive",
        "hold_minutes",
        "keep",
        "minimum_minutes",
        "priority",
        "retry_minutes",
        "while_loading",
    ),
)
"""Keys of C(on_demand) that an engine has and Ollama cannot have."""

NAME = "ollama"
MODEL = re.compile(r"(?:[\w.-]+/){0,3}[A-Za-z0-9][\w.-]*(?::[\w.-]+)?")
DURATION = re.compile(r"-?(?:\d{1,9}(?:\.\d{1,9})?(?:ms|s|m|h))+|-?\d{1,9}", re.ASCII)
BILLIONS = re.compile(r"(?:^|[-_])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?:$|[-_])", re.IGNORECASE)
GIB_PER_BILLION = 0.6
"""Weights of the library's usual quantisation (Q4_K_M): qwen3:8b, 8.2 billion parameters, is 5.2 GB."""
RUNNER_GIB = 1.0
"""What the runner of a loaded model holds beside weights and KV cache: CUDA context, compute buffers."""
ETC = "/etc/dgxspark/ollama"
CONTAINER_PORT = 11434
CONTAINER_MODELS = "/models"


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_ollama) of one host; return it with every default filled in, and all that is wrong."""
    problems = validation.Problems(f"host {host}, spark_ollama")
    if not isinstance(value, Mapping):
        problems.add(f"must be a mapping, not {plain_data.kind(value)}. Write 'models: [qwen3:8b]' below it.")
        return {}, problems.messages
    own = {str(key).replace("-", "_"): item for key, item in value.items() if item is not None}
    settings = schema.filled(problems, own, KEYS)
    if settings["on_demand"] is not None:
        settings["keep_alive"] = _idle(problems, own, settings["keep_alive"])
    settings["env"] = speech.environment(problems, settings["env"])
    for name in settings["env"]:
        if name in environment_of(settings):
            problems.add(f"'env' sets {name}, which follows from the keys of spark_ollama. Set those instead.")
    _check(problems, settings)
    return settings, problems.messages


def _idle(problems: validation.Problems, own: Mapping[str, Any], otherwise: Any) -> Any:
    """Return what C(on_demand) is as C(keep_alive): Ollama loads and unloads its models itself.

    :param problems: takes the complaints
    :param own: C(spark_ollama) as it is written
    :param otherwise: the keep_alive where C(on_demand) cannot be read
    """
    given = problems.mapping(own["on_demand"], "on_demand")
    for key in sorted(set(given) & set(OF_ENGINES)):
        problems.add(
            f"'on_demand.{key}' is for engines. Ollama loads its models itself when it is asked, so nothing holds its requests back while an "
            "engine has the memory; its memory_gib is kept beside every combination of engines. Take it out, or serve the model as a service."
        )
    left = {key: value for key, value in given.items() if key not in OF_ENGINES}
    minutes = schema.filled(problems, left, ON_DEMAND, "on_demand.")["idle_minutes"]
    if "keep_alive" in own:
        problems.add("'keep_alive' and 'on_demand' say the same in two ways. Take one of them out.")
    number = isinstance(minutes, (int, float)) and not isinstance(minutes, bool)
    return f"{max(round(minutes * 60), 1)}s" if number else otherwise


def _check(problems: validation.Problems, settings: Mapping[str, Any]) -> None:
    speech.check_image(problems, settings["image"])
    speech.check_listen(problems, settings["listen"])
    speech.check_size(problems, "memory_gib", settings["memory_gib"])
    for key in ("volumes", "docker_args"):
        speech.check_texts(problems, key, settings[key])
        speech.check_secrets(problems, key, settings[key], "Take it out; Ollama needs no secret.")
    speech.check_volumes(problems, settings["volumes"])
    _check_server(problems, settings)
    _check_models_dir(problems, str(settings["models_dir"]))
    _check_models(problems, settings["models"])


def _check_server(problems: validation.Problems, settings: Mapping[str, Any]) -> None:
    """Check the settings that become variables of the server."""
    if settings["kv_cache_type"] != "f16" and not settings["flash_attention"]:
        problems.add(
            f"'kv_cache_type' is {settings['kv_cache_type']}, which needs flash_attention; without it Ollama takes f16, and twice "
            "the memory. Leave flash_attention on, or set kv_cache_type: f16."
        )
    if not DURATION.fullmatch(str(settings["keep_alive"])):
        problems.add(
            f"'keep_alive' is {settings['keep_alive']!r}; write 5m, 1h, a number of seconds, 0, or -1 for ever."
        )


def _check_models_dir(problems: validation.Problems, folder: str) -> None:
    if not folder.startswith("/") or ".." in folder.split("/") or plain_data.CONTROL.search(folder):
        problems.add(f"'models_dir' is '{folder}'; it must be an absolute path.")
    elif host_paths.problem(folder):
        problems.add(f"'models_dir' is '{folder}': {host_paths.problem(folder)}.")
    else:
        validation.check_mount(problems, "models_dir", folder)


def _check_models(problems: validation.Problems, models: Sequence[Any]) -> None:
    seen = set()
    for model in models:
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
    callers: Callable[[str, str], Mapping[str, str]] | None = None,
    admitted: bool = False,
    exposed_to: str = "every host that reaches that address",
    present: Sequence[str] | None = None,
) -> tuple[dict[str, Any], list[Endpoint], list[Finding]]:
    """Plan Ollama on one host; where not said otherwise, the arguments are those of C(speech.plan).

    :param host: name of the host
    :param settings: of C(read)
    :param endpoints: see there
    :param address: see there
    :param gateway: see there
    :param gpu_args: see there
    :param listening: see there
    :param callers: see there
    :param admitted: see there
    :param exposed_to: see there
    :param present: models that the host is known to have, None where that is not known
    :returns: the variables of the role ollama, the endpoint that comes to the fleet, and findings
    """
    listen = speech.choose_listen(
        settings["listen"], address, (callers or speech.by_gateway(host, gateway))(NAME, NAME), False, admitted
    )
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
    findings = speech.check_endpoint("ollama", endpoint, endpoints, listening, gateway, False, exposed_to)
    findings += speech.moving_tag("ollama", NAME, settings["image"])
    findings += speech.own_options(NAME, settings)
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
