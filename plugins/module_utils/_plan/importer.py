# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A launch of vLLM that somebody has already, turned into an entry of C(spark_services).

It is read in two steps. C(import_sources) reads each form (a docker command, a compose file, a systemd unit, recipes of
others) into one C(Draft): docker's options, the words behind the image, variables. C(import_launch) makes the service
from that, and says of everything else why it is not carried over. A secret is never part of what is returned.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from .._cluster import clustering
from .._common import plain_secrets, redaction, shell
from .._common.docker_run import read_options
from .._compat.compat import check_launch, check_written
from .._compat.rules_unit import Written
from .._content.snapshots import TOKENIZER_FILES
from .._vllm import image_catalogue, launch, seccomp
from . import import_engine, import_inline, recipes, service_keys
from .import_downloads import Download, holds
from .import_draft import OWN_IMAGE, Draft, Unreadable
from .import_engine import Engine, brief, quiet
from .import_sources import FORMS, read_source
from .service_files import CONTAINER_HF_HOME

__all__ = ["FORMS", "Unreadable", "import_launch"]

HIDDEN = "(hidden)"
KEYS = ".secrets"  # relative to the inventory folder, and not read by Ansible
# The order in which a person writes a service.
ORDER = (
    "name",
    "model",
    "image",
    "port",
    "served_model_name",
    "api_key_file",
    "secrets",
    "args",
    "env",
    "checks",
    "pip",
    "files",
    "shm_size",
    "docker_args",
)
HF_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HF_API_TOKEN")

_SYSTEMD = import_engine.SYSTEMD
_OWN = "the unit of this collection sets it itself"
_LATER = "not needed by an engine on one Spark"
# Options of docker run that have no place in a service, and why.
DROPPED = {
    "--detach": _SYSTEMD,
    "--restart": f"{_SYSTEMD}: Restart= with a bounded number of starts",
    "--rm": _OWN,
    "--interactive": _OWN,
    "--tty": _OWN,
    "--quiet": _OWN,
    "--pull": "the role images brings images once",
    "--platform": "the image's own architecture is compared with the host's",
    "--gpus": "spark_gpu_args gives every engine the GPU",
    "--runtime": "spark_gpu_args gives every engine the GPU",
    "--ipc": "engines have a private /dev/shm here, --ipc host leaves segments behind on the host; see shm_size",
    "--log-driver": _OWN,
    "--log-opt": _OWN,
    "--label": _OWN,
    "--stop-timeout": _OWN,
    "--stop-signal": _OWN,
    "--privileged": f"{_LATER}; put --privileged into docker_args if yours does need it",
    "--cap-add": f"{_LATER}; put it into docker_args if yours does need it",
    "--cap-drop": "engines have no capability here, but for what RDMA needs",
    "--security-opt": f"{_LATER}; put it into docker_args if yours does need it",
    "--device": f"{_LATER}; put it into docker_args if yours does need it",
    "--user": "engines run as the image's user here, and weights belong to the role models",
    "--publish-all": "engines use the host's network here",
    "--expose": "engines use the host's network here",
    "--link": "engines use the host's network here",
    "--cidfile": _OWN,
}
# Options of docker run that mean the same in docker_args.
KEPT = {
    "--add-host",
    "--cpus",
    "--cpuset-cpus",
    "--dns",
    "--group-add",
    "--hostname",
    "--init",
    "--memory",
    "--memory-swap",
    "--oom-score-adj",
    "--pids-limit",
    "--read-only",
    "--sysctl",
    "--tmpfs",
    "--workdir",
}
# What the role or the plan gives every engine; see spark_ulimits and plan.
OWN_ULIMITS = ("core=0", "core=0:0", "memlock=-1", "memlock=-1:-1", "stack=67108864", "stack=67108864:67108864")
OWN_ENV = {
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "TRANSFORMERS_CACHE",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "VLLM_NO_USAGE_STATS",
    "DO_NOT_TRACK",
    "VLLM_CACHE_ROOT",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE",
    "HF_ASSETS_CACHE",
    "HF_MODULES_CACHE",
    "HF_XET_CACHE",
    "XDG_CACHE_HOME",
    "TORCH_EXTENSIONS_DIR",
    "CUDA_CACHE_PATH",
    "B12X_CUTE_COMPILE_CACHE_DIR",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
}
# Where a machine has its programs and libraries; an image has others.
MACHINE_ENV = (
    *("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("HOME", "USER", "UID", "GID", "HOST_UID", "HOST_GID", "DOCKER_HOST", "COMPOSE_FILE", "COMPOSE_PROFILES"),
)
# What differs between the hosts of a cluster, and what only hands that on.
CLUSTER_ENV = {
    *clustering.INTERFACES,
    *(
        "UCX_NET_DEVICES",
        "MN_IF_NAME",
        "VLLM_HOST_IP",
        "HOST_IP",
        "HEAD_IP",
        "WORKER_IP",
        "HEAD_NODE_IP",
        "NCCL_IB_GID_INDEX",
    ),
    *("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "NODE_IP", "RANK", "WORLD_SIZE", "NNODES", "HEADLESS"),
    *("RAY_ADDRESS", "RAY_CLUSTER_SIZE", "RAY_HEAD_IP", "RAY_NODE_IP_ADDRESS", "RAY_OVERRIDE_NODE_IP_ADDRESS"),
}
# As many as a switch is known to have joined.
MOST_SPARKS = 8
# What the plan gives every container, as far as the rules look at it.
OWN_DOCKER_ARGS = ("--network", "host", "--shm-size", "8g")
CLUSTER_OPTIONS = (("--device", "/dev/infiniband"), ("--cap-add", "IPC_LOCK"), ("--privileged", "None"))
CLUSTER_DOCKER_ARGS = ("--device", "/dev/infiniband", "--ulimit", "memlock=-1", "--cap-add", "IPC_LOCK")
# Options of pip install that change nothing about what is installed.
QUIET_PIP = (
    "-q",
    "--quiet",
    "-U",
    "--upgrade",
    "--no-cache-dir",
    "--root-user-action=ignore",
    "--system",
    "--no-input",
)
CACHES = re.compile(
    r"/root/\.(?:cache/(?:vllm|flashinfer|triton|torch\S*|tilelang)|triton|tilelang|nv|flashinfer)(?:/.*)?"
)

MOST_BYTES = 256 * 1024
"""Characters of a launch; the largest of 44 published ones has 21 KiB."""
MOST_WORDS = 500
"""Of its command; the largest has 187. Each that vLLM does not know is compared with all options that it has."""


def import_launch(
    text: str,
    document: Any = None,
    *,
    form: str = "auto",
    name: str | None = None,
    port: int | None = None,
    image: str | None = None,
    variables: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    scripts: Mapping[str, str] | None = None,
    select: str | None = None,
    variant: str | None = None,
    features: Sequence[str] | None = None,
    known_recipes: Mapping[str, Mapping[str, Any]] | None = None,
    config: Mapping[str, Any] | None = None,
    catalogue: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Turn a launch into a service.

    :param text: as it was given
    :param document: the text as YAML, where it is YAML
    :param form: one of C(FORMS), or C(auto)
    :param name: of the service, else that of the launch
    :param port: of the service, else that of the launch
    :param image: in the place of the launch's
    :param variables: what C($NAME) and C({placeholder}) stand for
    :param files: content of env files by the path that names them
    :param scripts: content of the scripts beside the launch by their relative path
    :param select: which of several containers, by the name of the container, its workload or its service
    :param variant: of a vLLM recipe; without it one that fits
    :param features: of a vLLM recipe
    :param known_recipes: recipes of this collection, for the config of a model that has none here
    :param config: of the model, as its config.json has it
    :param catalogue: further image entries
    :returns: C({form, service, nodes, spark_cluster, host_vars, left_out, missing, findings, changes, compatible, before}).
        nodes: Sparks that it spans. spark_cluster: of those, C(None) for one. before: what the rules say of the unit or the
        docker command as it was
    :raises Unreadable: where there is no launch of vLLM in the text
    """
    options = {"select": select, "variant": variant, "features": features}
    with shell.bounded():
        try:
            if len(text) > MOST_BYTES:
                raise Unreadable(f"it has more than {MOST_BYTES // 1024} KiB, which no launch has")
            draft = read_source(
                text,
                document,
                form,
                variables=dict(variables or {}),
                files=dict(files or {}),
                scripts=dict(scripts or {}),
                **options,
            )
            if (words := len(draft.run.command) + 2 * len(draft.run.options)) > MOST_WORDS:
                raise Unreadable(f"its command has {words} words; one of a launch has {MOST_WORDS} at most")
        except Unreadable as error:
            raise Unreadable(str(_hide(str(error), set()))) from None
        made = _Import(draft, catalogue)
        service = made.service(name, port, image)
        _add_config(service, made, config, known_recipes or {})
        found: dict[str, Any] = _hide(
            {**_result(draft, made, service), **_lint(service, made.nodes, catalogue)}, made.secrets
        )
    return found


def _result(draft: Draft, made: _Import, service: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "form": draft.form,
        "service": service,
        "host_vars": made.host_vars,
        "left_out": made.left_out,
        "nodes": made.nodes,
        "spark_cluster": made.spark_cluster(service),
        "before": _judge_before(draft),
        "missing": recipes.resolve_service(service, "service", {}, {})[1],
    }


def _judge_before(draft: Draft) -> list[dict[str, Any]]:
    """Say what is wrong with the unit or the docker command as somebody wrote it."""
    if draft.form not in ("docker", "systemd"):
        return []
    run = draft.run
    if draft.unit is not None:  # its own words: variables of a unit stay variables
        with contextlib.suppress(ValueError):
            run = draft.unit.run or run
    return check_written(Written(draft.unit, run if run.image else None, draft.text))


def _lint(service: Mapping[str, Any], nodes: int, catalogue: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if not service.get("image"):
        return {"findings": [], "compatible": False, "changes": []}
    image = service["image"] if isinstance(service["image"], Mapping) else {"ref": service["image"]}
    model, args, docker_args = service["model"], dict(service["args"]), list(OWN_DOCKER_ARGS)
    if nodes > 1:  # as the head of its spark_cluster runs it
        version = (image_catalogue.lookup(image["ref"], catalogue) or {}).get("vllm_version")
        cluster = clustering.Cluster(str(service["name"]), ["head"], "auto", [])
        executor = clustering.choose_executor(cluster, version, {}, None)[0]
        args = clustering.spanning_args(args, executor, 0, nodes, "head")
        docker_args += CLUSTER_DOCKER_ARGS
    given = service.get("docker_args", [])
    if not seccomp.chosen(read_options(given)[0]) and seccomp.needed_for(args, service.get("env") or {}):
        docker_args += ["--security-opt", "seccomp=io_uring.json"]  # as the plan gives it
    judged = check_launch(
        {
            "image": image["ref"],
            "entrypoint": image.get("entrypoint"),
            "model": {
                "repo": model.get("repo") or model.get("path"),
                "config": service.get("config"),
                "quant_config": service.get("quant_config"),
            },
            "args": args,
            "env": service.get("env"),
            "docker_args": [*docker_args, *given, *_file_mounts(service)],
            "packages": service.get("pip"),
            "catalogue": list(catalogue),
            "nodes": nodes,
        }
    )
    changes = (judged.get("fixed") or {}).get("changes") or []
    return {"findings": judged["findings"], "compatible": judged["compatible"], "changes": changes}


def _file_mounts(service: Mapping[str, Any]) -> list[str]:
    return [word for each in service.get("files", []) for word in ("--volume", f"{each['source']}:{each['path']}:ro")]


def _add_config(
    service: dict[str, Any],
    made: _Import,
    config: Mapping[str, Any] | None,
    known_recipes: Mapping[str, Mapping[str, Any]],
) -> None:
    """Give the service the config.json that it cannot be planned without, from the recipe that serves its model.

    :param service: that is changed
    :param made: the import, which names the recipe
    :param config: given by the caller, which counts before any recipe's
    :param known_recipes: recipes of this collection by name
    """
    if config:
        service["config"] = dict(config)
        return
    ways = [
        (name, variant, recipe, body or {})
        for name, recipe in sorted(known_recipes.items())
        for variant, body in (("", {}), *(recipe.get("variants") or {}).items())
    ]
    serving = [
        way for way in ways if _same_model(service["model"], {**way[2].get("model", {}), **way[3].get("model", {})})
    ]
    if not serving:
        return
    name, variant, recipe, body = min(serving, key=lambda way: _distance(service, made.nodes, way[2], way[3]))
    service["config"] = recipes.merge(recipe.get("config") or {}, body.get("config") or {})
    drafts = _drafter_of(service["args"]) == _drafter_of(_args_of(recipe, body))
    # What a variant states for its image as a whole takes the place of sizes.
    stated = next((key for key in ("memory", "memory_gib") if body.get(key) is not None), "")
    sizes = [stated] if stated else ["weights_gib", *(["draft_weights_gib"] if drafts else [])]
    for key in ("quant_config", *sizes, *(["draft_config"] if drafts else [])):
        value = body.get(key, recipe.get(key))
        if value is not None:
            service[key] = value
    whole = f"'recipe: {name}'" + (f" with 'variant: {variant}'" if variant else "")
    made.leave(
        f"recipe {name}" + (f", variant {variant}" if variant else ""),
        f"serves the same model and gave its config; {whole} instead of model, image, args and config takes all of it",
    )


def _same_model(model: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a recipe serves a model: its repository, or one of the name that a folder has."""
    repo = str(other.get("repo") or "")
    if model.get("repo"):
        return bool(model["repo"] == repo)
    return bool(repo) and PurePosixPath(str(model.get("path"))).name.lower() == repo.rpartition("/")[2].lower()


def _args_of(recipe: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Any]:
    layers = (recipes.normalise_args(layer.get("args") or {}) for layer in (recipe, variant))
    return recipes.merge(*layers)


def _drafter_of(args: Mapping[str, Any]) -> tuple[str, str]:
    """Return method and model of speculative decoding, empty where there is none."""
    spec = args.get("speculative-config")
    return (str(spec.get("method") or ""), str(spec.get("model") or "")) if isinstance(spec, Mapping) else ("", "")


def _distance(
    service: Mapping[str, Any], nodes: int, recipe: Mapping[str, Any], variant: Mapping[str, Any]
) -> tuple[int, int]:
    """Return how far a way to serve a model is from a launch: Sparks and drafter first, then the options that decide kernels."""
    args, own = _args_of(recipe, variant), service["args"]
    apart = 16 * (nodes != (variant.get("nodes") or recipe.get("nodes") or 1))
    method, drafter = _drafter_of(own)
    apart += 8 * (method != _drafter_of(args)[0]) + 4 * (drafter != _drafter_of(args)[1])
    image = service.get("image")
    ref = image.get("ref") if isinstance(image, Mapping) else image
    images = [entry.get("ref") for layer in (variant, recipe) for entry in layer.get("images") or []]
    apart += 2 * (bool(variant.get("images")) and ref not in images)
    for option in ("kv-cache-dtype", "moe-backend", "attention-backend", "quantization", "reasoning-parser", "runner"):
        apart += own.get(option) != args.get(option)
    length = own.get("max-model-len") or 0
    apart += (
        isinstance(length, int) and isinstance(args.get("max-model-len"), int) and length > 2 * args["max-model-len"]
    )
    return apart, len(variant.get("args") or {})


def _hide(value: Any, secrets: set[str]) -> Any:
    """Take every secret out of a result, wherever it got to."""
    if isinstance(value, Mapping):
        return {_hide(key, secrets): _hide(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hide(item, secrets) for item in value]
    if not isinstance(value, str):
        return value
    for secret in secrets:
        value = value.replace(secret, HIDDEN)
    return redaction.clean_forms(value, HIDDEN)


class _Import:
    """Makes one service; keeps what is left out and what is secret on the way."""

    def __init__(self, draft: Draft, catalogue: Sequence[Mapping[str, Any]]) -> None:
        self.draft = draft
        self.catalogue = catalogue
        self.left_out: list[dict[str, str]] = list(draft.left_out)
        self.host_vars: dict[str, str] = {}
        self.secrets: set[str] = set()
        self.rewritten: dict[str, str] = {}  # path in the old container -> path in ours
        self.packages: list[str] = []
        self.files: list[dict[str, str]] = []
        self.outer: dict[str, str | None] = {}
        self.nodes = 1
        self.cpus = ""
        self.bare = False  # the image's entrypoint is vllm, without serve
        # Recipes are started by programs of their own, which clear the entrypoint.
        self.by_docker = bool(draft.run.image) and draft.form in ("docker", "compose", "kubernetes", "systemd")
        for name, value in draft.variables.items():
            if _is_secret(name, value):
                self.conceal(value)

    def leave(self, item: str, reason: str) -> None:
        """Say once that something is not carried over."""
        entry = {"item": item, "reason": reason}
        if entry not in self.left_out:
            self.left_out.append(entry)

    def conceal(self, value: str | None) -> None:
        """Keep a secret from being returned; what is too short to be one would only garble other texts."""
        if value and len(value) >= 6 and not value.startswith("${"):
            self.secrets.add(value)

    def conceal_all(self, value: Any) -> None:
        """Keep every text of a value from being returned."""
        for text in _texts(value):
            self.conceal(text)

    # --- the service ----------------------------------------------------------------------------------------------

    def service(self, name: str | None, port: int | None, image: str | None) -> dict[str, Any]:
        """Put the service together."""
        chosen = image or self._settled_image()
        known = image_catalogue.lookup(chosen, self.catalogue) if chosen else None
        self.outer = self._environment()
        words, inner = self._engine_words(known)
        env = {**self.outer, **inner}
        if not self.draft.run.command and not self.draft.run.image:
            raise Unreadable("there is neither an image nor a vllm serve command in it")
        parsed = launch.parse(words, (known or {}).get("vllm_version"))
        model = self._check_parsed(parsed, words, known)
        args = self._settled(self._spanned(parsed.args, words))
        own_port, reachable = self._port(args.pop("port", None))
        unit = _service_name(name or self.draft.name or model)
        result: dict[str, Any] = {"name": unit, "port": port or own_port}
        served = args.pop("served-model-name", None)
        names = served if isinstance(served, list) else [served or model]
        result["served_model_name"] = str(names[0])
        for other in names[1:]:
            self.leave(f"--served-model-name {other}", "a service has one name; a gateway can give it more")
        if args.pop("download-dir", None):
            self.leave("--download-dir", "weights are kept in spark_hf_home, where they are fetched before the start")
        keys = self._secrets(env, args, unit)
        self._listening(args.pop("host", None), reachable, keys)
        if self._downloaded(model):
            self.rewritten[model] = service_keys.MODEL_FOLDER
        docker_args = [*self._docker_options(result), *self._mounts(env, model)]
        if self.bare:
            docker_args += ["--entrypoint", ""]
        if self.cpus and "--cpuset-cpus" not in docker_args:
            docker_args += ["--cpuset-cpus", self.cpus]
        self._drafter(model, args)
        result["model"] = self._model(model, args)
        self._files_of_model(args, result["model"])
        if chosen:
            result["image"] = self._image(chosen, known)
        result["args"] = {key: self._moved(value) for key, value in sorted(args.items())}
        result["checks"] = _checks(args)
        self._own_files(args)
        for key, value in result["args"].items():
            if value != args[key] and service_keys.MODEL_FOLDER not in str(value):
                self.leave(
                    f"--{key}", "names a file of the container; it is expected at its new place below spark_hf_home"
                )
        result["env"] = {key: self._moved(value) for key, value in sorted(self._plain(env).items())}
        result.update(keys)
        result.update(docker_args=docker_args, pip=self.packages, files=self.files)
        return {key: result[key] for key in ORDER if result.get(key) or key == "args"}

    def _check_parsed(self, parsed: launch.Parsed, words: Sequence[str], known: Mapping[str, Any] | None) -> str:
        """Return the model of a command; names options that cannot be carried over.

        :param parsed: the command
        :param words: of it
        :param known: the image in the catalogue
        :raises Unreadable: without a model
        """
        image = self.draft.run.image
        if parsed.model is None:
            if self.by_docker and known is None and "vllm" not in image:
                raise Unreadable(
                    f"the container runs {image or 'an image without a name'}, which does not look like vLLM"
                )
            why = "" if words else ": its image starts vllm serve, and nothing is given to it"
            if self.draft.run.command and not words:
                why = "; the script is given it by whoever calls it ($@): write the command as it is called"
            if parsed.args.get("config"):
                why = (
                    f": its options are in {parsed.args['config']} (--config), which is not read; write them as options"
                )
            raise Unreadable(f"no model is named on the command line of vllm serve{why}")
        waits = shell.unknown_names(parsed.model)
        if waits:
            raise Unreadable(f"the model waits for {', '.join(waits)}: say what that is (variables)")
        for problem in parsed.problems:
            owned = problem.option.lstrip("-") in clustering.OWNED_ARGS
            waits = shell.unknown_names(problem.option)
            if waits:
                self.leave(problem.option, f"waits for {', '.join(waits)}: say what that is (variables)")
                continue
            if problem.kind not in ("unknown", "bad_choice", "model_option") and not owned:
                self.leave(problem.option, f"{problem.detail}. {problem.fix}".strip())
        return parsed.model

    def spark_cluster(self, service: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the cluster of a launch that spans several Sparks."""
        return {"name": service["name"].replace("-", "_"), "services": [service]} if self.nodes > 1 else None

    def _spanned(self, given: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
        """Work out how many Sparks a launch spans; returns its options without those that a cluster sets itself."""
        args = {key: value for key, value in given.items() if key not in clustering.OWNED_ARGS}
        sizes = [args.get(f"{axis}-parallel-size") for axis in ("tensor", "pipeline")]
        world = 1
        for size in sizes:
            world *= size if isinstance(size, int) and size > 0 else 1
        said = given.get("nnodes")
        copies = self._replicas(given, world)
        if copies > 1:
            self.nodes = copies * world
        elif isinstance(said, int) and said > 1:
            self.nodes = said
        elif any(isinstance(size, int) for size in sizes):
            self.nodes = world
        else:
            self.nodes = self.draft.nodes or 1
        for key in [key for key in given if key.startswith("data-parallel")]:
            if copies == 1:
                self.leave(f"--{key}", "replicas are services of their own: serve the model on each Spark by itself")
            elif key != clustering.REPLICAS and key not in clustering.OWNED_ARGS:
                self.leave(f"--{key}", "the head gives each replica its requests, and nothing else balances them")
            else:
                continue
            args.pop(key, None)
        for key in clustering.OWNED_ARGS:
            if key in given and self.nodes == 1 and not key.startswith("data-parallel"):
                self.leave(f"--{key}", "one Spark has one GPU: an engine on it has no ranks")
        if self.nodes > 1:
            self.leave(
                "several Sparks",
                f"the launch spans {self.nodes}: it becomes a spark_cluster of {self.nodes} hosts, which gives each its rank, "
                "address, port and network interfaces",
            )
        elif self.draft.nodes > 1 and world == 1:
            self.leave("several Sparks", f"the launch is for {self.draft.nodes}, its options are for one")
        return args

    def _replicas(self, given: Mapping[str, Any], world: int) -> int:
        """Return how many replicas a launch spreads over Sparks as one engine, 1 where they are better services of their own.

        That is what shares experts out, or says by its options that its replicas are on several hosts. world: GPUs of each.
        """
        copies = clustering.replicas_of(given)
        backends = (given.get("distributed-executor-backend"), given.get("data-parallel-backend"))
        apart = given.get("data-parallel-size-local") == 1 or any(
            given.get(key) is not None
            for key in ("data-parallel-address", "data-parallel-rpc-port", "data-parallel-start-rank", "nnodes")
        )
        over_hosts = apart or self.draft.nodes > 1 or bool(given.get("enable-expert-parallel"))
        return copies if over_hosts and "ray" not in backends and copies * world <= MOST_SPARKS else 1

    def _settled_image(self) -> str:
        """Return the image of the launch, nothing where it waits for a value."""
        image = self.draft.run.image
        waits = shell.unknown_names(image)
        if image and not waits and not re.fullmatch(r"[A-Za-z0-9]\S*", image):
            raise Unreadable(f"{brief([image])!r} stands where the image belongs")
        if waits:
            self.leave("image", f"waits for {', '.join(waits)}: say what that is (variables), or name an image")
        return "" if waits else image

    def _image(self, ref: str, known: Mapping[str, Any] | None) -> Any:
        """Name the image; what it does with its arguments is learned from the command where nobody knows it."""
        run = self.draft.run
        if self.bare:
            return {"ref": ref, "entrypoint": "passthrough"}
        if (known or {}).get("entrypoint") or run.values("--entrypoint") or not run.command or not self.by_docker:
            return ref
        typed = run.command[0].rpartition("/")[2]
        if typed in ("vllm", "bash", "sh", "python3"):
            return {"ref": ref, "entrypoint": "passthrough"}
        return {"ref": ref, "entrypoint": "serve"}

    def _docker_options(self, result: dict[str, Any]) -> list[str]:
        kept: list[str] = []
        for option, value in self.draft.run.options:
            written = f"{option} {value}" if value is not None else option
            if option in ("--env", "--volume", "--mount", "--publish", "--name", "--entrypoint", "--env-file"):
                continue
            if option == "--shm-size" and value:
                result["shm_size"] = re.sub(r"(?i)(\d)\s*([bkmg])i?b?$", r"\1\2", value).lower()
            elif option == "--network" and value == "host":
                continue  # as here
            elif option == "--ulimit" and value in OWN_ULIMITS:
                self.leave(written, "every engine has it")
            elif option == "--network":
                self.leave(
                    written, "engines use the host's network here; others on that one reach it by the host's address"
                )
            elif option == "--device" and "nvidia.com/gpu" in str(value):
                self.leave(written, DROPPED["--gpus"])
            elif self.nodes > 1 and (option, str(value).partition(":")[0]) in CLUSTER_OPTIONS:
                self.leave(written, "a spark_cluster gives its ranks the devices and rights that RDMA needs")
            elif option in DROPPED or option.startswith("--health"):
                self.leave(written, DROPPED.get(option, "the unit is active when the model has answered"))
            elif option in KEPT or option == "--ulimit":
                kept += [option] if value is None else [option, value]
            else:
                self.leave(written, "nothing here is known of this option; put it into docker_args if it is needed")
        return kept

    # --- environment and secrets ----------------------------------------------------------------------------------

    def _environment(self) -> dict[str, str | None]:
        """Return the variables of the container: env files first, then what was given, as docker does."""
        found: dict[str, str | None] = {}
        for path in self.draft.run.values("--env-file"):
            content = self.draft.files.get(path)
            if content is None:
                self.leave(f"--env-file {path}", "cannot be read here; add what it sets to env and secrets")
                continue
            for line in content.splitlines():
                name, equals, text = line.strip().partition("=")
                if not equals or name.startswith("#"):
                    continue
                if self.draft.form == "compose":  # which reads it as a shell would; docker takes all of it
                    name, text = name.removeprefix("export "), shell.expand(text.strip("\"'"), {})
                found[name.strip()] = text
        for name, given in self.draft.run.env.items():
            known = self.draft.variables.get(name) if given is None else given
            if known is not None or _is_secret(name, ""):
                found[name] = known
            else:
                self.leave(f"--env {name}", "is taken from the caller's environment, which is not known here")
        return found

    def _secrets(self, env: dict[str, str | None], args: dict[str, Any], name: str) -> dict[str, Any]:
        """Turn every secret into a file on the controller and take it out of C(env) and C(args)."""
        for option, variable in (("api-key", "VLLM_API_KEY"), ("hf-token", "HF_TOKEN")):
            value = args.pop(option, None)
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str):
                    self.conceal(text)
                    env.setdefault(variable, text)
        for option in [name for name in args if redaction.is_secret_option(name)]:
            self.conceal_all(args.pop(option))
            self.leave(f"--{option}", "a secret: nothing here keeps one for an option")
        for place, text in list(plain_secrets.in_settings(args)):
            self.conceal(text)
            self.leave(
                f"--{re.split(r'[.[]', place)[0]}", "holds a secret, which is hidden here; args are no place for it"
            )
        folder = KEYS
        keys: dict[str, Any] = {}
        api_key = env.get("VLLM_API_KEY")
        for variable in sorted(name for name, value in env.items() if _is_secret(name, value or "")):
            value = env.pop(variable)
            if value == "":
                self.leave(variable, "is empty in the launch: there is no secret to keep")
                continue
            self.conceal(value)
            if variable in HF_TOKENS:
                self.host_vars["spark_hf_token_file"] = f"{folder}/hf_token"
                self.leave(
                    variable, "engines run offline here; put it into a file and name that as spark_hf_token_file"
                )
            elif variable == "VLLM_API_KEY":
                keys["api_key_file"] = f"{folder}/{name}_api_key"
                self.leave(variable, "a secret: put it into the file that api_key_file names")
            elif api_key and value == api_key:
                self.leave(variable, "held the API key, which comes from api_key_file now")
            else:
                keys.setdefault("secrets", {})[variable] = f"{folder}/{name}_{variable.lower()}"
                self.leave(variable, "a secret: put it into the file that 'secrets' names")
        return keys

    def _plain(self, env: Mapping[str, str | None]) -> dict[str, str]:
        """Return the variables that are the service's own."""
        found = {}
        for name, value in env.items():
            waits = shell.unknown_names(value or "") or re.findall(r"<[^<>]+>", value or "")
            inside = next((path for path in self.draft.dropped if holds(path, value or "") is not None), None)
            if not self.draft.run.image and name in MACHINE_ENV:
                self.leave(name, "is of the machine that it was typed on; the image has its own")
            elif self.nodes > 1 and name in CLUSTER_ENV:
                self.leave(name, "a spark_cluster finds the addresses and interfaces of each host itself")
            elif name in OWN_ENV:
                self.leave(name, "weights, caches, the GPU and offline use are the same for every engine here")
            elif inside is not None:
                self.leave(name, f"points into {inside}, whose volume is not carried over")
            elif waits:
                self.leave(name, f"waits for {', '.join(waits)}: say what that is (variables)")
            elif value is not None:
                found[name] = value
        return found

    # --- the command ----------------------------------------------------------------------------------------------

    def _engine_words(self, known: Mapping[str, Any] | None) -> tuple[list[str], dict[str, str | None]]:
        """Return what vllm serve is given, and the variables set in front of it."""
        run = self.draft.run
        words = list(run.command)
        entrypoint = next(iter(reversed(run.values("--entrypoint"))), None)
        if entrypoint:
            words = [*entrypoint.split(), *words]
        engine = import_engine.find(words, {key: value for key, value in self.outer.items() if value is not None})
        whole = engine is not None and self.by_docker and (self.draft.typed or entrypoint is not None)
        if whole and not (known or {}).get("entrypoint"):
            self.bare = True  # what it did there, whatever entrypoint the image has
        elif entrypoint is not None:
            self.leave(f"--entrypoint {entrypoint or repr('')}", "the image's own entrypoint is used")
        started = import_engine.by_variables(run.image, self.outer) if engine is None and not words else None
        if started:
            engine, taken = started
            self.bare = True
            self.outer = {name: value for name, value in self.outer.items() if name not in taken}
            self.leave(
                "the image's own start script",
                "its variables are read as options of vllm serve, which is typed whole here; what else the script does is not known",
            )
        if engine is None and words[:1] == ["serve"] and not (known or {}).get("entrypoint") and self.by_docker:
            engine = Engine(words=words[1:])
            self.bare = True
            self.leave("serve", "the image runs vllm itself; 'vllm serve' is typed whole here, without its entrypoint")
        serves = (known or {}).get("entrypoint") == "serve" and entrypoint is None and self.by_docker
        serves = serves and not self.draft.typed
        if engine is not None and serves and words and words[0].rpartition("/")[2] == "vllm":
            self.leave(
                "vllm serve", "is the entrypoint of this image; typed again, its second word is taken for the model"
            )
        if engine is None:
            self._check_serves(words, entrypoint, known)
            engine = Engine(words=words)
        found = engine.words
        while found[:2] == ["vllm", "serve"]:
            self.leave("vllm serve", "stands there twice")
            found = found[2:]
        return found, self._around(engine)

    def _check_serves(self, words: Sequence[str], entrypoint: str | None, known: Mapping[str, Any] | None) -> None:
        """Refuse a container whose command is no C(vllm serve) and cannot be options of one.

        :param words: the command, entrypoint first
        :param entrypoint: that the launch sets
        :param known: the image in the catalogue
        :raises Unreadable: with what it runs
        """
        if not self.by_docker and not words:
            return
        image = self.draft.run.image or "the image"
        program = (import_engine.program(words) or brief(words[:1])) if entrypoint else import_engine.program(words)
        serves = (known or {}).get("entrypoint") == "serve"
        mounted = any(words[:1] == [target] for _source, target in self.draft.run.mounts)
        alone = len(words) == 1 and words[0].startswith("/") and not mounted
        bare = bool(words) and "/" not in words[0] and not words[0].startswith(("-", "$", "{", "<"))
        if not program and not serves and self.by_docker and (alone or bare):
            program = brief(words[:1])
        path = import_inline.script_path(words)
        if program and (path or alone):
            shown = program if path in program or not path else f"{program} {path}"
            raise Unreadable(
                f"the container runs {shown}, not vllm serve; what that starts is not in this text: give the script itself, or the "
                "command that it ends with (docker top shows it)"
            )
        if program:
            raise Unreadable(f"the container runs {program}, not vllm serve")
        if not words and not serves:
            ours = {*OWN_ENV, *MACHINE_ENV, *CLUSTER_ENV, *HF_TOKENS}
            names = [name for name in self.outer if name not in ours and not name.startswith(("NCCL_", "NVIDIA_"))]
            if "vllm" not in image and not any("VLLM" in name or "MODEL" in name for name in names):
                raise Unreadable(f"the container runs {image}, which does not look like vLLM")
            shown = f" ({', '.join(names[:8])})" if names else ""
            raise Unreadable(
                f"{image} is started by variables of its own{shown}: the vllm serve command that its start script makes of them is "
                "not known here; give that command (docker top shows it)"
            )

    def _around(self, engine: Engine) -> dict[str, str | None]:
        """Say what becomes of what stood around the engine; returns the variables that were set there."""
        self.cpus = engine.cpus
        for item, reason in engine.left_out:
            self.leave(item, reason)
        for words in engine.beside:
            packages = _pip_packages(words)
            if self.draft.note_download(words):
                continue
            if packages:
                self.packages += packages
            elif not quiet(words):
                self.leave(
                    brief(words),
                    f"ran before the engine by {engine.program}; put what it does into {OWN_IMAGE}",
                )
        for name in engine.unset:
            self.outer.pop(name, None)
        inner: dict[str, str | None] = {}
        for name, value in engine.env.items():
            if name in MACHINE_ENV:
                self.leave(f"{name}={value}", "the image's own is kept")
            else:
                inner[name] = value
        return inner

    def _settled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options without those that wait for a value that is not known here."""
        args = {}
        for name, value in given.items():
            waits = sorted({unknown for text in _texts(value) for unknown in shell.unknown_names(text)})
            if waits and name in ("api-key", "hf-token"):
                args[name] = value
            elif waits:
                self.leave(f"--{name}", f"waits for {', '.join(waits)}: say what that is (variables)")
            else:
                args[name] = value
        return args

    # --- addresses ------------------------------------------------------------------------------------------------

    def _port(self, typed: Any) -> tuple[int, bool]:
        """Return the port that clients used, and whether it was open to the network."""
        inside = typed if isinstance(typed, int) else 8000
        run = self.draft.run
        if "host" in run.values("--network") or not run.image:
            return inside, True
        answer: tuple[int, bool] | None = None
        for spec in run.values("--publish"):
            match = re.fullmatch(r"(?:(\[[^]]*\]|\d+(?:\.\d+){3}|localhost):)?(?:(\d+):)?(\d+)(?:/\w+)?", spec)
            if match and int(match.group(3)) == inside and answer is None:
                outside = not (match.group(1) or "").startswith(("127.", "localhost", "[::1]"))
                answer = int(match.group(2) or match.group(3)), outside
            else:
                self.leave(f"--publish {spec}", "engines use the host's network here; this is no port of the engine")
        return answer or (inside, False)

    def _listening(self, host: Any, reachable: bool, keys: Mapping[str, Any]) -> None:
        if host not in (None, "0.0.0.0", "::"):
            reachable = False
        if reachable and "api_key_file" not in keys:
            self.leave(
                "open port",
                "it was reachable from the network without a key; engines listen on loopback here: set api_key_file, and name "
                "who may come by spark_allow_from",
            )
        if host is not None:
            self.leave(f"--host {host}", "where an engine listens follows from its key, see 'host' and spark_listen")

    # --- files ----------------------------------------------------------------------------------------------------

    def _mounts(self, env: Mapping[str, str | None], model: str) -> list[str]:
        """Sort the mounts: weights and caches are the roles' own, a model's folder is the service's model."""
        home = env.get("HF_HOME") or CONTAINER_HF_HOME
        kept: list[str] = []
        run = self.draft.run
        written = [(option, value) for option in ("--volume", "--mount") for value in run.values(option)]
        for (source, target), (option, value) in zip(run.mounts, written):
            spec = f"{option} {value}"
            if target in (home, f"{home}/hub"):
                self.rewritten[home] = CONTAINER_HF_HOME
                self.leave(
                    spec,
                    "weights are kept in spark_hf_home; name that folder there to keep what it holds",
                )
                if source.startswith("/") and target == home:
                    self.host_vars["spark_hf_home"] = source
            elif CACHES.fullmatch(target):
                self.leave(spec, "compile caches are kept in spark_cache_dir")
            elif model in self.rewritten and holds(target, model) is not None:
                self.leave(spec, "held the model, which the role models fetches")
            elif model == target:
                self.rewritten[target] = f"{CONTAINER_HF_HOME}/local/{PurePosixPath(source).name}"
            elif self._outside(model) != model and source.startswith(f"{self._outside(model)}/"):
                name = source[len(self._outside(model)) :]
                self.files.append({"source": f"{service_keys.MODEL_FOLDER}{name}", "path": target})
            elif source.startswith(("/proc/", "/sys/")):
                self.leave(
                    spec, "engines change nothing on their host here; its role and the unit's gate prepare memory"
                )
            elif source.startswith(("~", ".")) or shell.unknown_names(source):
                self.leave(spec, "a unit knows no home and no current folder: add it with an absolute path")
                self.draft.dropped.append(target)
            elif source:
                kept += [option, value]
            else:
                self.leave(spec, "an anonymous volume is lost with its container")
                self.draft.dropped.append(target)
        return kept

    def _drafter(self, model: str, args: dict[str, Any]) -> None:
        """Name the drafter as it is fetched here; a checkpoint that is its own drafter needs no name."""
        spec = args.get("speculative-config")
        drafter = spec.get("model") if isinstance(spec, Mapping) else None
        if not isinstance(spec, Mapping) or not isinstance(drafter, str):
            return
        repo, _revision = self._of_hub(drafter)
        if drafter == model:
            args["speculative-config"] = {key: value for key, value in spec.items() if key != "model"}
            self.leave(f"drafter {drafter}", "is the model itself, which vLLM takes by itself")
        elif repo:
            args["speculative-config"] = {**spec, "model": repo}

    def _model(self, typed: str, args: dict[str, Any]) -> dict[str, Any]:
        """Return the model, with what else must be fetched for an engine that runs offline."""
        repo, snapshot = self._of_hub(typed)
        if repo:
            kind = "the folder of a download" if self._downloaded(typed) else "a snapshot of the hub's cache"
            self.leave(typed, f"is {kind}: its repository and revision are named instead")
            typed = repo
            if snapshot:
                args.setdefault("revision", snapshot)
        revision = args.pop("revision", None)
        spec = args.get("speculative-config")
        drafter, tokenizer = spec.get("model") if isinstance(spec, Mapping) else None, args.get("tokenizer")
        extra: dict[str, dict[str, Any]] = {}
        # Of a repository that is there for its tokenizer alone the weights are not fetched.
        for other, more in ((drafter, {}), (tokenizer, {"only": list(TOKENIZER_FILES)})):
            if isinstance(other, str) and service_keys.REPO_NAME.fullmatch(other) and other != typed:
                extra.setdefault(other, {"repo": other, **more})
        beside = {"extra": list(extra.values())} if extra else {}
        if isinstance(drafter, str) and drafter.startswith(("/", "~")):
            self.leave(
                f"drafter {drafter}",
                "is a folder of the old container: name its repository in speculative-config and below model.extra",
            )
        if typed.startswith(("/", "~", ".")):
            self.leave(
                typed, "model.path is a folder on the controller, copied from there: name it as the controller sees it"
            )
            path = self._outside(typed)
            waits = shell.unknown_names(path)
            if waits:
                raise Unreadable(f"the model's folder waits for {', '.join(waits)}: say what that is (variables)")
            return {"path": path, **beside}
        return {"repo": typed, **({"revision": str(revision)} if revision else {}), **beside}

    def _of_hub(self, path: str) -> tuple[str, str]:
        """Return repository and commit of a folder in the hub's cache, or of one that the launch fetches; nothing for others."""
        download = self._downloaded(path)
        return (download.repo, download.revision) if download else _of_hub(path)

    def _downloaded(self, path: str, file: bool = False) -> Download | None:
        """Return the download that made a folder, or a file, of the container; None where the launch has none."""
        for download in self.draft.downloads:
            places = (path, self._outside(path))
            if bool(download.file) == file and any(holds(download.folder, place) == "" for place in places):
                return download
        return None

    def _files_of_model(self, args: dict[str, Any], model: Mapping[str, Any]) -> None:
        """Name files that the launch fetched from the model's own repository by the folder of the model."""
        for name, value in args.items():
            download = self._downloaded(value, True) if isinstance(value, str) and value.startswith("/") else None
            if download and download.repo == model.get("repo"):
                args[name] = f"{service_keys.MODEL_FOLDER}/{download.file}"
                self.leave(f"--{name} {value}", "is a file of the model's repository, which is fetched whole")

    def _own_files(self, args: Mapping[str, Any]) -> None:
        """Name the files that options ask for and no mount brings: they were made in the old container."""
        brought = [target for _source, target in self.draft.run.mounts]
        for option in _FILE_OPTIONS:
            value = args.get(option)
            if (
                isinstance(value, str)
                and _FILE.fullmatch(value)
                and not any(value == target or value.startswith(f"{target}/") for target in brought)
            ):
                self.leave(
                    f"--{option} {value}",
                    "is a file of the old container: put it on the controller, and name it under 'files' with an absolute path, which the option then has",
                )

    def _outside(self, path: str) -> str:
        """Return the host's path of a path in the container."""
        for source, target in self.draft.run.mounts:
            if path == target or path.startswith(f"{target}/"):
                return source + path[len(target) :]
        return path

    def _moved(self, value: Any) -> Any:
        """Return a value with the paths of the old container as they are in ours."""
        if isinstance(value, Mapping):
            return {key: self._moved(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._moved(item) for item in value]
        if isinstance(value, str):
            for old, new in self.rewritten.items():
                if value == old or value.startswith(f"{old}/"):
                    return new + value[len(old) :]
        return value


def _checks(args: Mapping[str, Any]) -> dict[str, bool]:
    """Return what the proof is to ask of a launch that names parsers: tool calls, and reasoning apart from the answer."""
    tools = bool(args.get("enable-auto-tool-choice") and args.get("tool-call-parser"))
    return {name: True for name, wanted in (("tools", tools), ("reasoning", args.get("reasoning-parser"))) if wanted}


_SNAPSHOT = re.compile(r"(?:.*/)?models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})/*")


def _of_hub(path: str) -> tuple[str, str]:
    """Return the repository and the commit of a folder in the hub's cache; nothing for any other."""
    match = _SNAPSHOT.fullmatch(path)
    return (f"{match.group(1)}/{match.group(2)}", match.group(3)) if match else ("", "")


_FILE_OPTIONS = ("chat-template", "tool-parser-plugin", "reasoning-parser-plugin")
_FILE = re.compile(r"[\w./~-]+\.(?:jinja2?|py|txt)")


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def _pip_packages(words: Sequence[str]) -> list[str]:
    """Return what a C(pip install) installs, where that is nothing but packages by name."""
    text = " ".join(words)
    match = re.match(r"(?:\S*python3? -m )?(?:uv )?\S*pip3? install ", text)
    if not match:
        return []
    rest = text[match.end() :].split()
    packages = [word for word in rest if word not in QUIET_PIP]
    return packages if all(service_keys.REQUIREMENT.fullmatch(word) for word in packages) else []


def _is_secret(name: str, value: str) -> bool:
    """Whether a variable of a launch is a secret, also where its value is not known yet or waits for another variable."""
    unknown = not value or "$" in value
    named = redaction.is_secret_variable(name) and (unknown or redaction.could_be_secret(value, name))
    return named or redaction.holds_secret(value)


def _service_name(text: str) -> str:
    """Make a name that a unit and a container can have."""
    leaf = text.rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9]+", "-", leaf).strip("-")[:40].strip("-") or "imported"
