# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes and services: what a person writes, checked and merged into one description of a launch.

A recipe is a tested way to serve a model; a service is one entry of C(spark_services). Later layers win:
recipe < recipe image < recipe variants < C(spark_defaults) < service. JSON values are replaced whole, null removes.

C({model}) in args and in C(files) stands for the folder of the model's snapshot: files that a checkpoint ships, as a
parser or a drafter, are named without knowing its commit.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .._common import plain_data, plain_secrets
from .._common.validation import ENV_NAME, IMAGE_REF, LONGEST_START, RESERVED_NAMES, SERVICE_NAME, Problems, nearest
from .._common.variables import SERVICE
from .._content import built_image
from .._proof import fast_path
from .._vllm import catalogue, launch, versions
from . import lora, on_demand
from .planned import File
from .service import ServiceSpec

CONTROL, kind = plain_data.CONTROL, plain_data.kind


DEFAULTS_KEYS = (
    "args",
    "env",
    "image",
    "host",
    "api_key_file",
    "secrets",
    "checks",
    "start_timeout",
    "shm_size",
    "docker_args",
    "ignore",
)
"""Keys of C(spark_defaults): those of a service that can sensibly hold for all of a host."""

RECIPE_KEYS = (
    "name",
    "summary",
    "model",
    "images",
    "args",
    "env",
    "checks",
    "variants",
    "config",
    "quant_config",
    "weights_gib",
    "draft_weights_gib",
    "draft_config",
    "files",
    "pip",
    "ignore",
    "nodes",
    "expect",
    "source",
    "served_model_name",
    "start_timeout",
    "shm_size",
    "memory",
    "memory_gib",
    "least_vllm",
    "jobs",
)
REFERENCE_KEYS = ("left_out", "no_image")
"""Keys of a recipe by reference: what of it is not taken over, and why it has no image."""
VARIANT_KEYS = (
    "summary",
    "model",
    "images",
    "args",
    "env",
    "checks",
    "files",
    "pip",
    "ignore",
    "config",
    "quant_config",
    "weights_gib",
    "draft_weights_gib",
    "draft_config",
    "expect",
    "source",
    "nodes",
    "memory",
    "memory_gib",
    "least_vllm",
    "jobs",
)
"""Keys of a variant: C(config) and C(model) replace the recipe's fields one by one, lists are replaced whole."""
MODEL_KEYS = ("repo", "revision", "path", "extra")
EXTRA_MODEL_KEYS = ("repo", "revision", "only")
ENDLESS = ("config", "quant_config", "draft_config")
"""Files of a model, which may hold numbers without end (time_step_limit of Mamba)."""
IMAGE_KEYS = ("ref", "vllm_version", "entrypoint", "args", "env", "files", "pip", "dockerfile")
FILE_KEYS = ("source", "path")
MEMORY_KEYS = ("weights_gib", "kv_gib", "other_gib")
EXPECT_KEYS = (
    "what",
    "tokens_per_second",
    "gib",
    "source",
    "sparks",
    "streams",
    *fast_path.EXPECTED,
    "draft",
    "required",
)
"""Keys of C(expect): figures for people, kernels and acceptance for C(fast_path.compare), C(required) for its severity."""
MODEL_FOLDER = "{model}"
"""Stands for the folder of the model's snapshot, on the host and in the container."""
JOBS = ("chat", "code", "agents", "vision", "long", "users", "embed", "rerank")
"""What C(jobs) of a recipe may name: who picks a model looks for one of them."""
CHECK_KEYS = ("tools", "reasoning", "max_tokens", "temperature")
"""Keys of C(checks): which further stages the proof has, most tokens of an answer there, and its sampling temperature."""
MOST_CHECK_TOKENS = 131072

# Keys that vllm serve has too but that belong to the service itself, so that plan, unit and probes agree on them.
OWNED_ARGS = {**launch.SERVICE_KEYS, "api-key": "api_key_file"}

RECIPE_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
REPO_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""ORG/NAME as Hugging Face takes it."""
REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,127}", re.ASCII)
REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?(?:==[\w.+!-]+)?", re.ASCII)
HASHED = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?==[\w.+!-]+(?: --hash=sha256:[0-9a-f]{64})+", re.ASCII)
DOCKER_SIZE = re.compile(r"[1-9][0-9]{0,14}[bkmgBKMG]?")
CONTAINER_PATH = re.compile(r"/[\w.+@/-]+")


SECRETS_FIX = "Put it into a file and name that under 'secrets' of the service: {NAME: FILE}."


def normalise_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Give every option its long name with dashes, so that layers that spell it differently meet."""
    return {launch.long_name(str(name)): value for name, value in args.items()}


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge flat layers, later ones win, then drop what is null."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer)
    return {key: value for key, value in merged.items() if value is not None}


def validate_recipe(recipe: Any, origin: str, reference: bool = False) -> list[str]:
    """Return what is wrong with a recipe as read from C(origin); an empty list if nothing is.

    reference: it is one of others, C(SOURCE:NAME), which may lack what the service says then.
    """
    problems = Problems(f"recipe {origin}")
    if not isinstance(recipe, Mapping):
        return [f"recipe {origin}: must be a mapping, not {kind(recipe)}."]
    if strange := plain_data.unfit(recipe, f"recipe {origin}", ENDLESS):
        return strange
    if (
        not reference
        and recipe.get("name")
        and not (isinstance(recipe["name"], str) and RECIPE_NAME.fullmatch(recipe["name"]))
    ):
        problems.add(f"'name' is {plain_data.shown(recipe['name'])}; it must be letters, digits, dots and dashes.")
    problems.unknown(recipe, (*RECIPE_KEYS, *(REFERENCE_KEYS if reference else ())))
    for key in ("model",) if reference else ("name", "summary", "model", "images", "args", "config", "source"):
        if not recipe.get(key):
            problems.add(f"'{key}' is missing.")
    _check_model(problems, problems.mapping(recipe.get("model"), "model"))
    _check_body(problems, recipe)
    for variant, given in problems.mapping(recipe.get("variants"), "variants").items():
        body = problems.mapping(given, f"variants.{variant}")
        own = Problems(f"recipe {origin}, variant {variant}")
        if not SERVICE_NAME.fullmatch(variant):
            own.add("its name must be lower-case letters, digits and inner dashes.")
        own.unknown(body, VARIANT_KEYS)
        if body.get("model"):
            _check_model(own, _model_of(own, recipe, body))
        _check_body(own, body)
        problems.messages += own.messages
    return problems.messages


def anchor_files(recipe: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return a recipe whose C(files) are named from the root; as written they are relative to its own folder."""

    def anchored(body: Mapping[str, Any]) -> dict[str, Any]:
        copy = dict(body)
        if copy.get("files"):
            copy["files"] = [
                entry
                if entry["source"].startswith((MODEL_FOLDER, "/"))
                else {**entry, "source": f"{folder}/{entry['source']}"}
                for entry in copy["files"]
            ]
        if copy.get("images"):
            copy["images"] = [anchored(image) for image in copy["images"]]
        return copy

    variants = {name: anchored(body or {}) for name, body in (recipe.get("variants") or {}).items()}
    return {**anchored(recipe), "variants": variants}


def _checks(problems: Problems, given: Any) -> dict[str, Any]:
    """Check C(checks) of one layer; what is wrong is left out."""
    checks = problems.mapping(given, "checks")
    problems.unknown(checks, CHECK_KEYS, "check")
    good: dict[str, Any] = {}
    for key, value in checks.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is None:
            good[key] = None  # takes out what the recipe says
        elif key in ("tools", "reasoning"):
            if isinstance(value, bool):
                good[key] = value
            else:
                problems.add(f"checks.{key} is {value!r}; it must be true or false.")
        elif key == "max_tokens":
            if isinstance(value, int) and number and 1 <= value <= MOST_CHECK_TOKENS:
                good[key] = value
            else:
                problems.add(f"checks.max_tokens is {value!r}; it must be a whole number of 1 to {MOST_CHECK_TOKENS}.")
        elif key == "temperature":
            if number and 0 <= value <= 2:
                good[key] = float(value)
            else:
                problems.add(f"checks.temperature is {value!r}; it must be a number of 0 to 2.")
    return good


def _check_body(problems: Problems, body: Mapping[str, Any]) -> None:
    """Check what a recipe and its variants have in common."""
    for image in problems.mappings(body.get("images"), "images"):
        _check_image(problems, image)
        _files(problems, image)
        _pip(problems, image)
        _check_args(problems, problems.mapping(image.get("args"), "images.args"))
        _environment(problems, problems.mapping(image.get("env"), "images.env"))
    _check_args(problems, problems.mapping(body.get("args"), "args"))
    _environment(problems, problems.mapping(body.get("env"), "env"))
    _checks(problems, body.get("checks"))
    for key in ENDLESS:
        problems.mapping(body.get(key), key)
    _files(problems, body)
    _pip(problems, body)
    _sizes(problems, body)
    _stated(problems, body)
    texts(problems, body, "source")
    texts(problems, body, "ignore")
    for job in texts(problems, body, "jobs"):
        if job not in JOBS:
            problems.add(f"'jobs' names {job!r}{nearest(job, JOBS)} Known: {', '.join(JOBS)}.")
    least = body.get("least_vllm")
    if least is not None and (not isinstance(least, str) or versions.parse_version(least) is None):
        problems.add(
            f"'least_vllm' is {plain_data.shown(least)}; it must be a version of vLLM in quotes, like \"0.28.0\"."
        )
    for entry in problems.mappings(body.get("expect"), "expect"):
        problems.unknown(entry, EXPECT_KEYS, "key of expect:")
        if not entry.get("what") or not entry.get("source"):
            problems.add("every entry of 'expect' needs 'what' was measured and its 'source'.")
        _check_expected_kernels(problems, entry)
    nodes = body.get("nodes", 1)
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        problems.add(f"'nodes' is {nodes!r}; it must be a whole number of Sparks, 1 or more.")


def _check_expected_kernels(problems: Problems, entry: Mapping[str, Any]) -> None:
    """Check what an entry of C(expect) says of kernels: names that vLLM has, in some version."""
    known = {
        "attention_backend": ("attention_backends", fast_path.attention),
        "moe_backend": ("moe_backends", fast_path.kernel),
        "linear_kernel": ("linear_backends", fast_path.kernel),
    }
    for key, (table, normal) in known.items():
        names = {normal(name) for name in catalogue.names(table)}
        for name in texts(problems, {key: _listed(entry.get(key))}, key):
            if normal(name) not in names:
                problems.add(f"expect names {key} '{name}', which no vLLM has{nearest(normal(name), names)}")
    share = entry.get("min_acceptance")
    if share is not None and (isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1):
        problems.add(
            f"expect.min_acceptance is {share!r}; it must be a share of the drafted tokens above 0, at most 1."
        )
    if share is not None and not (isinstance(entry.get("draft"), str) and entry["draft"]):
        problems.add("expect.min_acceptance needs 'draft', the method of speculative-config that it is about.")
    if not isinstance(entry.get("required", False), bool):
        problems.add(f"expect.required is {entry['required']!r}; it must be true or false.")


def resolve_service(
    service: Any,
    where: str,
    recipes: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Any] | None = None,
    present: Collection[str] = (),
) -> tuple[ServiceSpec | None, list[str]]:
    """Check one service and merge its layers.

    service: the entry of C(spark_services) as written. where: host and position, for messages.
    recipes: name to recipe. defaults: C(spark_defaults) of the host. present: images that the host has.
    Returns the service, None where something is wrong with it, and all that is.
    """
    problems = Problems(where)
    if not isinstance(service, Mapping):
        problems.add(f"must be a mapping with at least name, recipe and port, not {kind(service)}.")
        return None, problems.messages
    own = _underscored(service)
    if isinstance(own.get("name"), str):
        problems.where = f"{where} ({own['name']})" if SERVICE_NAME.fullmatch(own["name"]) else where
    problems.unknown(own, tuple(SERVICE))
    base = _underscored(defaults or {})

    recipe: Mapping[str, Any] = {}
    if own.get("recipe") is not None:
        found = recipes.get(str(own["recipe"]))
        if found is None:
            problems.add(
                f"unknown recipe '{own['recipe']}'{nearest(str(own['recipe']), recipes)} "
                f"Known: {', '.join(sorted(recipes))}."
            )
        elif found.get("refused"):
            problems.add(f"recipe '{own['recipe']}': {found['refused']}.")
            found = None
        recipe = found or {}
    elif not own.get("model"):
        problems.add("'recipe' is missing (or 'model', 'image' and 'config' of a model without a recipe).")
    if own.get("recipe") is None or recipe:
        if not (own.get("image") or base.get("image") or recipe.get("images")):
            why = recipe.get("no_image")
            problems.add(
                f"'image' is missing: {why}. Build it, or name one that can serve the model."
                if why
                else "'image' is missing."
            )
        # Of a repository on the hub, a host reads it once the model is there.
        model = _first(own, base, recipe, "model", {})
        if not (own.get("config") or recipe.get("config") or (isinstance(model, Mapping) and model.get("repo"))):
            problems.add("'config' is missing: without the model's config.json nothing can be planned.")
    return _assemble(problems, own, base, recipe, present), problems.messages


def claim(service: Any) -> tuple[str | None, int | None]:
    """Return the name and the port that an entry of C(spark_services) takes on its host, as far as they are ones; it may be malformed."""
    own = _underscored(service) if isinstance(service, Mapping) else {}
    name, port = own.get("name"), own.get("port")
    if not isinstance(name, str):
        return None, None
    return name, port if plain_data.is_port(port) else None


def _underscored(layer: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key).replace("-", "_"): value for key, value in layer.items()}


def _assemble(
    problems: Problems,
    own: dict[str, Any],
    base: Mapping[str, Any],
    recipe: Mapping[str, Any],
    present: Collection[str],
) -> ServiceSpec | None:
    """Merge the layers of a service. own: as it is written. base: C(spark_defaults). present: images that the host has."""
    _check_name(problems, own)
    variants = _variants(problems, own.get("variant"), recipe)
    images = _images(problems, own, base, [recipe, *variants])
    # Later entries are other ways to serve the same: what the host has needs no download.
    image = next((known for known in images if known.get("ref") in present), images[0] if images else {})
    layers = [recipe, image, *variants, base, own]
    merged: dict[str, Any] = _launch(problems, layers)
    model = _model_of(problems, recipe, *variants, own)
    if model or not own.get("recipe"):  # a recipe that was not found has been complained about
        _check_model(problems, model)
    merged["secrets"] = _secrets(problems, own, base)
    merged.update(_serving(problems, own, base, recipe))
    model = _with_adapters(problems, own, merged, model)
    docker_args = [*texts(problems, base, "docker_args"), *texts(problems, own, "docker_args")]
    for text in plain_secrets.sentences("docker_args", plain_secrets.in_words(docker_args), SECRETS_FIX):
        problems.add(text)
    merged.update(_memory(problems, own, recipe, variants))
    files = [entry for layer in layers for entry in _files(problems, layer)]
    packages = [package for layer in layers for package in _pip(problems, layer)]
    ignored = sorted({rule for layer in layers for rule in texts(problems, layer, "ignore")})
    merged.update(_configs(problems, own, recipe, variants))
    merged["overheads"] = problems.mapping(own.get("overheads"), "overheads")
    merged.update(_state(problems, own))
    merged["hosts"] = texts(problems, own, "hosts")
    if problems.messages:
        return None
    return ServiceSpec(
        name=own["name"],
        recipe=own.get("recipe"),
        variant=[str(variant) for variant in _listed(own.get("variant"))],
        port=own["port"],
        model=model,
        image=image,
        alternatives=[known["ref"] for known in images],
        files=[File(entry["source"], entry["path"]) for entry in files],
        pip=packages,
        nodes=next((layer["nodes"] for layer in reversed([recipe, *variants]) if layer.get("nodes")), 1),
        least_vllm=next(
            (layer["least_vllm"] for layer in reversed([recipe, *variants]) if layer.get("least_vllm")), ""
        ),
        # What is measured after a start; the figures for people stay in the recipe.
        expect=[
            dict(entry)
            for layer in (recipe, *variants)
            for entry in problems.mappings(layer.get("expect"), "expect")
            if any(key in entry for key in fast_path.EXPECTED)
        ],
        docker_args=docker_args,
        left_out=[str(text) for text in recipe.get("left_out") or []],
        ignore=ignored,
        **merged,
    )


def _with_adapters(
    problems: Problems, own: Mapping[str, Any], merged: dict[str, Any], model: dict[str, Any]
) -> dict[str, Any]:
    """Put LoRA adapters and their check into what is merged; return the model with their repositories beside it."""
    merged["lora"] = lora.read(problems, own.get("lora"), merged["args"], merged["served_model_name"])
    if not merged["lora"]:
        return model
    adapters = merged["lora"]["adapters"]
    entries = [{key: entry[key] for key in ("repo", "revision") if key in entry} for entry in adapters]
    model = {**model, "extra": [*(model.get("extra") or []), *entries]}
    _check_model(problems, model)
    merged["checks"] = {**merged["checks"], "adapters": [entry.get("name") for entry in adapters]}
    return model


def _check_name(problems: Problems, own: Mapping[str, Any]) -> None:
    """Check the name and the port of a service."""
    name = own.get("name")
    if not isinstance(name, str) or not SERVICE_NAME.fullmatch(name):
        problems.add(
            f"'name' is {name!r}; it must be lower-case letters, digits and inner dashes, at most 40 "
            "characters, because it names the unit and the container."
        )
    elif name in RESERVED_NAMES:
        problems.add(
            f"'name' is '{name}', which is a unit of this collection already (spark-{name}.service). Take another one."
        )
    port = own.get("port")
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        problems.add(f"'port' is {port!r}; it must be a whole number from 1 to 65535.")


def _launch(problems: Problems, layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return C({args, env, checks}), merged from all layers."""
    args_layers, env_layers, checks_layers = [], [], []
    for layer in layers:
        args = problems.mapping(layer.get("args"), "args")
        _check_args(problems, args)
        args_layers.append(normalise_args(args))
        env_layers.append(problems.mapping(layer.get("env"), "env"))
        checks_layers.append(_checks(problems, layer.get("checks")))
    return {
        "args": merge(*args_layers),
        "env": _environment(problems, merge(*env_layers)),
        "checks": merge({"tools": False, "reasoning": False}, *checks_layers),
    }


def _secrets(problems: Problems, own: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, str]:
    """Return the secrets of a service, environment variable to file on the controller, its API key among them."""
    secrets = {**problems.mapping(base.get("secrets"), "secrets"), **problems.mapping(own.get("secrets"), "secrets")}
    key_file = own.get("api_key_file", base.get("api_key_file"))
    if key_file not in (None, ""):
        secrets["VLLM_API_KEY"] = key_file
    for variable, file in secrets.items():
        if not ENV_NAME.fullmatch(variable):
            problems.add(f"'secrets' names {plain_data.shown(variable)}, which is no environment variable.")
        if not plain_data.is_line(file):
            key = "api_key_file" if variable == "VLLM_API_KEY" else f"secrets.{variable}"
            problems.add(f"'{key}' is {plain_data.shown(file)}; it must be the path of one file on the controller.")
    return {str(variable): str(file) for variable, file in sorted(secrets.items())}


def _serving(
    problems: Problems, own: Mapping[str, Any], base: Mapping[str, Any], recipe: Mapping[str, Any]
) -> dict[str, Any]:
    """Return C({served_model_name, host, start_timeout, shm_size})."""
    served = own.get("served_model_name") or recipe.get("served_model_name") or own.get("name")
    if not isinstance(served, str) or CONTROL.search(served) or not served.strip():
        problems.add(f"'served_model_name' is {served!r}; it must be one line of text.")
    host = own.get("host", base.get("host"))
    if host is not None and not plain_data.is_address(host):
        problems.add(f"'host' is {host!r}; it must be an address or a host name.")
    timeout = _first(own, base, recipe, "start_timeout", 3000)
    if not plain_data.is_whole(timeout, 60, LONGEST_START):
        problems.add(f"'start_timeout' is {timeout!r}; it must be a whole number of seconds, 60 to {LONGEST_START}.")
    shm = _first(own, base, recipe, "shm_size", None)
    if shm is not None and (isinstance(shm, bool) or not DOCKER_SIZE.fullmatch(str(shm))):
        problems.add(f"'shm_size' is {shm!r}; write it as docker takes it, for example 8g.")
    return {
        "served_model_name": served,
        "host": host,
        "start_timeout": timeout,
        "shm_size": None if shm is None else str(shm),
    }


def _memory(
    problems: Problems, own: Mapping[str, Any], recipe: Mapping[str, Any], variants: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return C({weights_gib, draft_weights_gib, memory, memory_gib, memory_share})."""
    layers = (recipe, *variants, own)
    # Both say what the whole engine takes, so the last layer that has either says it alone, and sizes of earlier ones do not count.
    place = max((at for at, layer in enumerate(layers) if layer.keys() & {"memory", "memory_gib"}), default=0)
    stated = _stated(problems, layers[place])
    sizes: dict[str, Any] = {"weights_gib": None, "draft_weights_gib": None}
    for layer in layers[place if any(stated.values()) else 0 :]:
        sizes.update({key: layer[key] for key in sizes if key in layer})
    _sizes(problems, sizes)
    share = own.get("memory_share", 1)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < float("inf"):
        problems.add(f"'memory_share' is {share!r}; it must be a number, 0 or more.")
    _alone(problems, stated, sizes, own)
    return {**sizes, **stated, "memory_share": share}


def _alone(problems: Problems, stated: Mapping[str, Any], sizes: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse what would not count beside a statement of what the whole engine takes."""
    memory, overheads = stated["memory"], own.get("overheads")
    for key in (key for key, size in sizes.items() if size is not None and any(stated.values())):
        where = (
            "weights_gib of 'memory', drafter included"
            if memory
            else "'memory' with its parts in place of 'memory_gib'"
        )
        problems.add(f"'{key}' does not count beside '{'memory' if memory else 'memory_gib'}': write it as {where}.")
    if (memory or {}).get("other_gib") is not None and isinstance(overheads, Mapping) and "inside_gib" in overheads:
        problems.add("'overheads' has inside_gib, which does not count beside memory.other_gib: leave one of them out.")


def _stated(problems: Problems, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return C({memory, memory_gib}), what a person says that the engine takes; None where nothing is said."""
    memory, total = problems.mapping(own.get("memory"), "memory") or None, own.get("memory_gib")
    if total is not None and (not plain_data.is_number(total, 0) or total == 0):
        problems.add(f"'memory_gib' is {total!r}; it must be a size in GiB above 0.")
    for key, size in (memory or {}).items():
        if key in MEMORY_KEYS and not plain_data.is_number(size, 0):
            problems.add(f"memory.{key} is {size!r}; it must be a size in GiB, 0 or more.")
    if memory is not None:
        problems.unknown([str(key) for key in memory], MEMORY_KEYS, "key of memory:")
        if "weights_gib" not in memory:
            problems.add("'memory' needs 'weights_gib'; where only the sum is known, set memory_gib instead.")
        if total is not None:
            problems.add("'memory' and 'memory_gib' say the same; leave one of them out.")
    return {"memory": memory, "memory_gib": total}


def _configs(
    problems: Problems, own: Mapping[str, Any], recipe: Mapping[str, Any], variants: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the files of a model that are planned with: C({config, quant_config, draft_config})."""
    found: dict[str, Any] = {"config": _config(problems, own, recipe, variants)}
    for key in ("quant_config", "draft_config"):
        value = next((layer[key] for layer in (own, *reversed(variants), recipe) if key in layer), None)
        found[key] = problems.mapping(value, key) or None
    return found


def _state(problems: Problems, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return C({state, exclusive}), and C(on_demand) where requests start it."""
    state = own.get("state", "started")
    if state not in ("started", "stopped"):
        problems.add(f"'state' is {state!r}; it must be started or stopped.")
    exclusive = own.get("exclusive")
    if exclusive is not None and (not isinstance(exclusive, str) or not SERVICE_NAME.fullmatch(exclusive)):
        problems.add(
            f"'exclusive' is {exclusive!r}; it must be the name of a set: lower-case letters, digits and inner dashes."
        )
    return {"state": state, "exclusive": exclusive or "", **on_demand.read(problems, own)}


def _first(own: Mapping[str, Any], base: Mapping[str, Any], recipe: Mapping[str, Any], key: str, default: Any) -> Any:
    return next((layer[key] for layer in (own, base, recipe) if layer.get(key) is not None), default)


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def texts(problems: Problems, layer: Mapping[str, Any], key: str) -> list[str]:
    """Return a list of texts and numbers as texts; complain about anything else."""
    value = layer.get(key) or []
    if not isinstance(value, list) or any(
        isinstance(item, bool) or not isinstance(item, (str, int, float)) for item in value
    ):
        problems.add(f"'{key}' must be a list of texts, not {kind(value)}.")
        return []
    if any(CONTROL.search(str(item)) for item in value):
        problems.add(f"'{key}' holds a control character or a line break.")
    return [str(item) for item in value]


def _variants(problems: Problems, wanted: Any, recipe: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    known: Mapping[str, Any] = recipe.get("variants") or {}
    chosen = []
    for variant in _listed(wanted):
        if not isinstance(variant, str) or variant not in known:
            problems.add(
                f"unknown variant {plain_data.shown(variant)} of recipe {recipe.get('name', '(none)')}"
                f"{nearest(str(variant), known)} Known: {', '.join(sorted(known)) or 'none'}."
            )
        else:
            chosen.append(known[variant])
    return chosen


def _images(
    problems: Problems, own: Mapping[str, Any], base: Mapping[str, Any], layers: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the images that may serve, best first; one that is pinned and known brings the recipe's adjustments for it.

    layers: the recipe and its variants; the last that lists images decides.
    """
    listed = [problems.mappings(layer.get("images"), "images") for layer in layers]
    known: list[dict[str, Any]] = next((images for images in reversed(listed) if images), [])
    value = own.get("image") or base.get("image")
    if value is None:
        return known
    image = {"ref": value} if isinstance(value, str) else problems.mapping(value, "image")
    if not _check_image(problems, image):
        return []
    every = [entry for images in (known, *listed) for entry in images]
    recipes_own = next((entry for entry in every if entry.get("ref") == image.get("ref")), {})
    return [{**recipes_own, **image}]


def _model_of(problems: Problems, *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge what the layers say about the model; a layer that names it by repo or path takes the other away."""
    model: dict[str, Any] = {}
    for layer in layers:
        given = problems.mapping(layer.get("model"), "model")
        for one, other in (("repo", "path"), ("path", "repo")):
            if given.get(one) and other not in given:
                model.pop(other, None)
        model = merge(model, given)
    return model


def _config(
    problems: Problems, own: Mapping[str, Any], recipe: Mapping[str, Any], variants: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the config.json to plan with: the service's whole, else the recipe's with the fields of its variants."""
    if own.get("config"):
        return problems.mapping(own["config"], "config")
    return merge(*(problems.mapping(layer.get("config"), "config") for layer in (recipe, *variants)))


def _files(problems: Problems, layer: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a layer's files, checked."""
    found = []
    for entry in problems.mappings(layer.get("files"), "files"):
        problems.unknown(entry, FILE_KEYS, "key of files:")
        source, path = entry.get("source"), entry.get("path")
        if not isinstance(source, str) or not source or CONTROL.search(source) or ".." in source.split("/"):
            problems.add(
                f"files: the source is {source!r}; it must be a file on the controller, or {MODEL_FOLDER}/NAME for one "
                "that the checkpoint ships."
            )
        elif source.startswith(MODEL_FOLDER) and not CONTAINER_PATH.fullmatch(source[len(MODEL_FOLDER) :]):
            problems.add(f"files: the source is {source!r}; write {MODEL_FOLDER}/NAME.")
        elif not isinstance(path, str) or not CONTAINER_PATH.fullmatch(path) or ".." in path.split("/"):
            problems.add(f"files: the path is {path!r}; it must be an absolute path in the container.")
        else:
            found.append({key: str(value) for key, value in entry.items()})
    return found


def _pip(problems: Problems, layer: Mapping[str, Any]) -> list[str]:
    """Return a layer's Python packages, checked: they become arguments of pip, so nothing else may pass."""
    packages = texts(problems, layer, "pip")
    for package in packages:
        if not REQUIREMENT.fullmatch(package) and not HASHED.fullmatch(package):
            problems.add(
                f"'pip' names {package!r}; write NAME==VERSION --hash=sha256:SUM, with a sum for each file of it that may be installed, or "
                "NAME, NAME[EXTRA] or NAME==VERSION."
            )
    return packages


def _sizes(problems: Problems, layer: Mapping[str, Any]) -> None:
    for key in ("weights_gib", "draft_weights_gib"):
        size = layer.get(key)
        if size is not None and (not plain_data.is_number(size, 0) or size == 0):
            problems.add(f"'{key}' is {size!r}; it must be a size in GiB above 0.")


def _environment(problems: Problems, env: Mapping[str, Any]) -> dict[str, str]:
    result = {}
    secrets = set(plain_secrets.in_environment(env))
    for name, value in sorted(env.items()):
        if not ENV_NAME.fullmatch(name):
            problems.add(f"'env' names '{name}', which is no environment variable.")
        elif name in secrets:
            problems.add(
                f"'env' sets {name}, which looks like a secret: everybody who may run docker inspect would see "
                f"it. Put it into a file and name that under 'secrets': {{{name}: FILE}}."
            )
        elif isinstance(value, (dict, list)):
            problems.add(f"'env' sets {name} to {kind(value)}; it must be a text or a number.")
        else:
            text = ("1" if value else "0") if isinstance(value, bool) else str(value)
            if CONTROL.search(text):
                problems.add(f"'env' sets {name} to a text with a line break or control character.")
            result[name] = text
    return result


def _check_args(problems: Problems, args: Mapping[str, Any]) -> None:
    for name, value in args.items():
        long_name = launch.long_name(name)
        if long_name in OWNED_ARGS:
            problems.add(
                f"'{name}' may not stand inside args: it is the key '{OWNED_ARGS[long_name]}' of the service, "
                "so that unit, probes and plan agree on it."
            )
        if isinstance(value, str) and CONTROL.search(value):
            problems.add(f"args.{name} holds a control character or a line break.")
        elif long_name not in OWNED_ARGS:
            variable = plain_secrets.OPTION_VARIABLES.get(long_name)
            fix = (
                f"Put it into a file and name that under 'secrets': {{{variable}: FILE}}."
                if variable
                else "Take it out; what the engine reads from its environment can stand under 'secrets', as a file."
            )
            places = [place for place, _secret in plain_secrets.in_settings({long_name: value})]
            for text in plain_secrets.sentences("args", places, fix):
                problems.add(text)


def _check_model(problems: Problems, model: Mapping[str, Any]) -> None:
    problems.unknown(model, MODEL_KEYS, "key of model:")
    repo, path = model.get("repo"), model.get("path")
    if bool(repo) == bool(path):
        problems.add("'model' needs either 'repo' (Hugging Face) or 'path' (a folder on the controller).")
    if repo and (not isinstance(repo, str) or not REPO_NAME.fullmatch(repo)):
        problems.add(f"model.repo is {repo!r}; it must look like ORG/NAME.")
    if path and (not isinstance(path, str) or CONTROL.search(path)):
        problems.add(f"model.path is {path!r}; it must be a folder on the controller.")
    extra = problems.mappings(model.get("extra"), "model.extra")
    for entry in [model, *extra]:
        revision = entry.get("revision")
        if revision is not None and (not isinstance(revision, str) or not REVISION.fullmatch(revision)):
            problems.add(f"model revision is {revision!r}; it must be a commit, tag or branch.")
    for entry in extra:
        problems.unknown(entry, EXTRA_MODEL_KEYS, "key of model.extra:")
        if not REPO_NAME.fullmatch(str(entry.get("repo"))):
            problems.add(f"model.extra names {entry.get('repo')!r}; it must look like ORG/NAME.")
        only = entry.get("only")
        if only is not None and not (isinstance(only, list) and all(plain_data.is_line(pattern) for pattern in only)):
            problems.add(f"model.extra.only is {plain_data.shown(only)}; it must be a list of patterns of file names.")


def _check_image(problems: Problems, image: Mapping[str, Any]) -> bool:
    """Check an image; tell whether it has a name by which it can be looked up."""
    problems.unknown(image, IMAGE_KEYS, "key of image:")
    ref, version = image.get("ref"), image.get("vllm_version")
    named = isinstance(ref, str) and IMAGE_REF.fullmatch(ref) is not None
    if not named:
        problems.add(f"image is {plain_data.shown(ref)}; it must be a reference like nvcr.io/nvidia/vllm:26.04-py3.")
    if image.get("entrypoint") not in (None, "serve", "passthrough"):
        problems.add(f"image.entrypoint is {image['entrypoint']!r}; it must be serve or passthrough.")
    if version is not None and (not isinstance(version, str) or versions.parse_version(version) is None):
        problems.add(
            f'image.vllm_version is {plain_data.shown(version)}; it must be a version of vLLM in quotes, like "0.19.0".'
        )
    if named and image.get("dockerfile") is not None:
        for text in built_image.problems(str(ref), image["dockerfile"]):
            problems.add(text)
    return named
