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

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .._common import plain_data, plain_secrets, schema
from .._common.validation import ENV_NAME, RESERVED_NAMES, SERVICE_NAME, Problems, nearest
from .._content import built_image
from .._proof import fast_path
from .._vllm import catalogue, launch
from . import kv_tiers, lora, on_demand, service_keys
from .planned import File
from .service import ServiceSpec

CONTROL, kind = plain_data.CONTROL, plain_data.kind
MEMORY_KEYS = ("weights_gib", "kv_gib", "other_gib")
# Keys that vllm serve has too but that belong to the service itself, so that plan, unit and probes agree on them.
OWNED_ARGS = {**launch.SERVICE_KEYS, "api-key": "api_key_file"}
KERNELS = {
    "attention_backend": ("attention_backends", fast_path.attention),
    "moe_backend": ("moe_backends", fast_path.kernel),
    "linear_kernel": ("linear_backends", fast_path.kernel),
}
"""Keys of C(expect) with kernels: the table of their names in any version of vLLM, and the normal form of a name."""
SECRETS_FIX = "Put it into a file and name that under 'secrets' of the service: {NAME: FILE}."


def normalise_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options by their long names with dashes, so that layers with different spellings merge."""
    return {launch.long_name(str(name)): value for name, value in args.items()}


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merged layers, later ones win, without null values."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer)
    return {key: value for key, value in merged.items() if value is not None}


def validate_recipe(recipe: Any, origin: str, reference: bool = False) -> list[str]:
    """Return the problems of a recipe, as messages. reference: a recipe of others, C(SOURCE:NAME), may leave keys to the service."""
    problems = Problems(f"recipe {origin}")
    if not isinstance(recipe, Mapping):
        return [f"recipe {origin}: must be a mapping, not {kind(recipe)}."]
    if strange := plain_data.unfit(recipe, f"recipe {origin}", service_keys.ENDLESS):
        return strange
    right = schema.read(problems, recipe, service_keys.REFERENCE if reference else service_keys.RECIPE)
    _check_model(problems, right.get("model") or {})
    _check_body(problems, right)
    for variant, content in right.get("variants", {}).items():
        variant_problems = Problems(f"recipe {origin}, variant {variant}")
        if not SERVICE_NAME.fullmatch(variant):
            variant_problems.add("its name must be lower-case letters, digits and inner dashes.")
        mapping = variant_problems.mapping(content, "variant")
        body = schema.read(variant_problems, mapping, service_keys.VARIANT, nulls=True)
        if body.get("model"):
            _check_model(variant_problems, _model_of(right, body))
        _check_body(variant_problems, body)
        problems.messages += variant_problems.messages
    return problems.messages


def anchor_files(recipe: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return a recipe with absolute paths in C(files); written ones are relative to its folder."""

    def anchored(body: Mapping[str, Any]) -> dict[str, Any]:
        copy = dict(body)
        if copy.get("files"):
            copy["files"] = [
                entry
                if entry["source"].startswith((service_keys.MODEL_FOLDER, "/"))
                else {**entry, "source": f"{folder}/{entry['source']}"}
                for entry in copy["files"]
            ]
        if copy.get("images"):
            copy["images"] = [anchored(image) for image in copy["images"]]
        return copy

    variants = {name: anchored(body or {}) for name, body in (recipe.get("variants") or {}).items()}
    return {**anchored(recipe), "variants": variants}


def _check_body(problems: Problems, body: Mapping[str, Any]) -> None:
    """Check the common parts of a recipe and its variants, beyond its keys."""
    for layer in (body, *(body.get("images") or ())):
        _check_args(problems, layer.get("args") or {})
        _environment(problems, layer.get("env") or {})
        _check_built(problems, layer)
    _stated(problems, body)
    for entry in body.get("expect") or ():
        for key, (table, normal) in KERNELS.items():
            names = {normal(name) for name in catalogue.names(table)}
            for name in map(str, _listed(entry.get(key))):
                if normal(name) not in names:
                    problems.add(f"expect names {key} '{name}', which no vLLM has{nearest(normal(name), names)}")
        if "min_acceptance" in entry and not entry.get("draft"):
            problems.add("expect.min_acceptance needs 'draft', the method of speculative-config that it is about.")


def resolve_service(
    service: Any,
    where: str,
    recipes: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Any] | None = None,
    present: Collection[str] = (),
) -> tuple[ServiceSpec | None, list[str]]:
    """Return a service with merged layers, or None, and its problems.

    :param service: the entry of C(spark_services) as written
    :param defaults: C(spark_defaults) of the host
    """
    problems = Problems(where)
    if not isinstance(service, Mapping):
        problems.add(f"must be a mapping with at least name, recipe and port, not {kind(service)}.")
        return None, problems.messages
    written = underscored(service)
    if isinstance(written.get("name"), str) and SERVICE_NAME.fullmatch(written["name"]):
        problems.where = f"{where} ({written['name']})"
    content, base = schema.read(problems, written, service_keys.SERVICE, nulls=True), underscored(defaults or {})

    recipe: Mapping[str, Any] = {}
    if content.get("recipe") is not None:
        recipe = named_recipe(problems, content["recipe"], recipes)
    elif not written.get("model"):
        problems.add(
            "'recipe' is missing. Name one of docs/models.md (recipe: NAME), or a model on Hugging Face (model: ORG/NAME)."
        )
        return None, problems.messages
    if written.get("recipe") is None or recipe:
        _check_sources(problems, written, base, recipe)
    return _assemble(problems, content, base, recipe, present), problems.messages


def named_recipe(problems: Problems, name: str, recipes: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return a recipe by its name, empty for an unknown or refused one."""
    recipe = recipes.get(name)
    if recipe is None:
        problems.add(f"unknown recipe '{name}'{nearest(name, recipes)} Known: {', '.join(sorted(recipes))}.")
    elif recipe.get("refused"):
        problems.add(f"recipe '{name}': {recipe['refused']}.")
    else:
        return recipe
    return {}


def _check_sources(
    problems: Problems, written: Mapping[str, Any], base: Mapping[str, Any], recipe: Mapping[str, Any]
) -> None:
    """Report a service without an image, or without a config that can be read."""
    if not (written.get("image") or base.get("image") or recipe.get("images")):
        why = recipe.get("no_image")
        problems.add(
            f"'image' is missing: {why}. Build it, or name an image that can serve the model."
            if why
            else "'image' is missing: name a recipe of the model (docs/models.md lists them), or an image whose vLLM can serve it, "
            "image: {ref: NAME:TAG, vllm_version: X.Y.Z}."
        )
    # The config of a repository on the hub is read by a host that has the model.
    model = written.get("model") or recipe.get("model")
    if not (written.get("config") or recipe.get("config") or (isinstance(model, Mapping) and model.get("repo"))):
        problems.add("'config' is missing: without the model's config.json nothing can be planned.")


def claim(service: Any) -> tuple[str | None, int | None]:
    """Return the name and the port that an entry of C(spark_services) claims on its host, None if malformed."""
    entry = underscored(service) if isinstance(service, Mapping) else {}
    name, port = entry.get("name"), entry.get("port")
    if not isinstance(name, str):
        return None, None
    return name, port if plain_data.is_port(port) else None


def underscored(layer: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a layer with the keys of the schema: C(served-model-name) is C(served_model_name)."""
    return {str(key).replace("-", "_"): value for key, value in layer.items()}


def _assemble(
    problems: Problems,
    service: dict[str, Any],
    base: Mapping[str, Any],
    recipe: Mapping[str, Any],
    present: Collection[str],
) -> ServiceSpec | None:
    """Return the merged service, or None. base: C(spark_defaults). present: images that the host has."""
    if (name := service.get("name")) in RESERVED_NAMES:
        problems.add(
            f"'name' is '{name}', which is a unit of this collection already (spark-{name}.service). Take another one."
        )
    variants = _variants(problems, service.get("variant"), recipe)
    images = _images(problems, service, base, [recipe, *variants])
    # All entries can serve; a present image needs no download.
    image = next((entry for entry in images if entry.get("ref") in present), images[0] if images else {})
    layers = [recipe, image, *variants, base, service]
    merged: dict[str, Any] = _launch(problems, layers)
    model = _model_of(recipe, *variants, service)
    if model or not service.get("recipe"):  # an unknown recipe was reported above
        _check_model(problems, model)
    merged["secrets"] = _secrets(problems, service, base)
    merged.update(_serving(service, base, recipe))
    model = _with_adapters(problems, service, merged, model)
    docker_args = _texts([base, service], "docker_args")
    for text in plain_secrets.sentences("docker_args", plain_secrets.in_words(docker_args), SECRETS_FIX):
        problems.add(text)
    merged.update(_memory(problems, service, recipe, variants))
    merged.update(_configs(service, recipe, variants))
    merged.update(on_demand.read(problems, service))
    merged["kv_tiers"] = kv_tiers.read(problems, service.get("kv_tiers"), merged["args"])
    if problems.messages:
        return None
    return ServiceSpec(
        name=service["name"],
        recipe=service.get("recipe"),
        variant=[str(variant) for variant in _listed(service.get("variant"))],
        port=service["port"],
        model=model,
        image=image,
        alternatives=[entry["ref"] for entry in images],
        files=_files(layers),
        pip=_texts(layers, "pip"),
        nodes=_last([recipe, *variants], "nodes", 1),
        least_vllm=_last([recipe, *variants], "least_vllm", ""),
        overheads=service.get("overheads") or {},
        expect=_expected(recipe, variants),
        docker_args=docker_args,
        left_out=[str(text) for text in recipe.get("left_out") or []],
        ignore=sorted(set(_texts(layers, "ignore"))),
        hosts=_texts([service], "hosts"),
        **merged,
    )


def _files(layers: Sequence[Mapping[str, Any]]) -> list[File]:
    """Return the files of all layers."""
    return [File(entry["source"], entry["path"]) for layer in layers for entry in layer.get("files") or []]


def _expected(recipe: Mapping[str, Any], variants: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of C(expect) that a start is measured by; figures for people stay in the recipe."""
    entries = [entry for layer in (recipe, *variants) for entry in layer.get("expect") or []]
    return [dict(entry) for entry in entries if any(key in entry for key in fast_path.EXPECTED)]


def published_rates(recipe: Mapping[str, Any], variants: Sequence[str] = ()) -> list[Mapping[str, Any]]:
    """Return the entries of C(expect) with a rate of this launch; the entries of a variant replace the recipe's."""
    entries = recipe.get("expect") or []
    for name in variants:
        entries = ((recipe.get("variants") or {}).get(name) or {}).get("expect") or []
    return [entry for entry in entries if entry.get("tokens_per_second") and not entry.get("other_launch")]


def _with_adapters(
    problems: Problems, service: Mapping[str, Any], merged: dict[str, Any], model: dict[str, Any]
) -> dict[str, Any]:
    """Add LoRA adapters and their check to C(merged); return the model with their repositories."""
    merged["lora"] = lora.read(problems, service.get("lora"), merged["args"], merged["served_model_name"])
    if not merged["lora"]:
        return model
    adapters = merged["lora"]["adapters"]
    entries = [{key: entry[key] for key in ("repo", "revision") if key in entry} for entry in adapters]
    model = {**model, "extra": [*(model.get("extra") or []), *entries]}
    _check_model(problems, model)
    merged["checks"] = {**merged["checks"], "adapters": [entry.get("name") for entry in adapters]}
    return model


def _launch(problems: Problems, layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return C({args, env, checks}), merged from all layers."""
    layers_of = {key: [layer.get(key) or {} for layer in layers] for key in ("args", "env", "checks")}
    for args in layers_of["args"]:
        _check_args(problems, args)
        spellings: dict[str, str] = {}
        for name in map(str, args):
            first = spellings.setdefault(launch.long_name(name), name)
            if first != name:
                problems.add(f"'args' sets one option twice, as {first} and {name}. Keep one of them.")
    return {
        "args": merge(*map(normalise_args, layers_of["args"])),
        "env": _environment(problems, merge(*layers_of["env"])),
        "checks": merge({"tools": False, "reasoning": False}, *layers_of["checks"]),
    }


def _secrets(problems: Problems, service: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, str]:
    """Return the secrets of a service with its API key: environment variable to file on the controller."""
    secrets = {**(base.get("secrets") or {}), **(service.get("secrets") or {})}
    key_file = service.get("api_key_file", base.get("api_key_file"))
    if key_file not in (None, ""):
        secrets["VLLM_API_KEY"] = key_file
    for variable, file in secrets.items():
        if not ENV_NAME.fullmatch(variable):
            problems.add(f"'secrets' names {plain_data.shown(variable)}, which is no environment variable.")
        if not plain_data.is_line(file):
            key = "api_key_file" if variable == "VLLM_API_KEY" else f"secrets.{variable}"
            problems.add(f"'{key}' is {plain_data.shown(file)}; it must be the path of one file on the controller.")
    return {str(variable): str(file) for variable, file in sorted(secrets.items())}


def _serving(service: Mapping[str, Any], base: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return C({served_model_name, host, start_timeout, shm_size, state, exclusive})."""
    shm_size = _last([recipe, base, service], "shm_size", None)
    return {
        "served_model_name": service.get("served_model_name") or recipe.get("served_model_name") or service.get("name"),
        "host": service.get("host", base.get("host")),
        "start_timeout": _last([recipe, base, service], "start_timeout", 3000),
        "shm_size": None if shm_size is None else str(shm_size),
        "state": service.get("state") or "started",
        "exclusive": service.get("exclusive") or "",
    }


def _memory(
    problems: Problems, service: Mapping[str, Any], recipe: Mapping[str, Any], variants: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return C({weights_gib, draft_weights_gib, memory, memory_gib, memory_share})."""
    layers = (recipe, *variants, service)
    # Both keys state the whole engine, so the last layer with either replaces the sizes of earlier ones.
    place = max((at for at, layer in enumerate(layers) if layer.keys() & {"memory", "memory_gib"}), default=0)
    stated = _stated(problems, layers[place])
    sizes: dict[str, Any] = {"weights_gib": None, "draft_weights_gib": None}
    for layer in layers[place if any(stated.values()) else 0 :]:
        sizes.update({key: layer[key] for key in sizes if key in layer})
    _check_alone(problems, stated, sizes, service.get("overheads"))
    return {**sizes, **stated, "memory_share": _last([service], "memory_share", 1)}


def _check_alone(problems: Problems, stated: Mapping[str, Any], sizes: Mapping[str, Any], overheads: Any) -> None:
    """Refuse keys that have no effect next to stated memory of the whole engine."""
    memory = stated["memory"]
    replacement = "'memory': write it as weights_gib of 'memory', drafter included"
    if not memory:
        replacement = "'memory_gib': write it as 'memory' with its parts in place of 'memory_gib'"
    for key in (key for key, size in sizes.items() if size is not None and any(stated.values())):
        problems.add(f"'{key}' has no effect with {replacement}.")
    if (memory or {}).get("other_gib") is not None and isinstance(overheads, Mapping) and "inside_gib" in overheads:
        problems.add("'overheads' has inside_gib, which has no effect with memory.other_gib: remove one of them.")


def _stated(problems: Problems, layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return C({memory, memory_gib}), the stated memory of the engine; None for each missing key."""
    memory, total = problems.mapping(layer.get("memory"), "memory") or None, layer.get("memory_gib")
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
    service: Mapping[str, Any], recipe: Mapping[str, Any], variants: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the configurations that the plan uses: C({config, quant_config, draft_config}).

    The service's own config.json replaces the recipe's, whose variants replace single fields.
    """
    configs = {"config": service.get("config") or merge(*(layer.get("config") or {} for layer in (recipe, *variants)))}
    for key in ("quant_config", "draft_config"):
        configs[key] = (
            next((layer[key] for layer in (service, *reversed(variants), recipe) if key in layer), None) or None
        )
    return configs


def _last(layers: Sequence[Mapping[str, Any]], key: str, default: Any) -> Any:
    """Return the value of the last layer that has one."""
    return next((layer[key] for layer in reversed(layers) if layer.get(key) is not None), default)


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def _texts(layers: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """Return the entries of a key in all layers, numbers as texts."""
    return [str(item) for layer in layers for item in layer.get(key) or []]


def _variants(problems: Problems, names: Any, recipe: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    variants: Mapping[str, Any] = recipe.get("variants") or {}
    chosen = []
    for variant in _listed(names):
        if isinstance(variant, str) and variant in variants:
            chosen.append(variants[variant])
        else:
            problems.add(
                f"unknown variant {plain_data.shown(variant)} of recipe {recipe.get('name', '(none)')}"
                f"{nearest(str(variant), variants)} Known: {', '.join(sorted(variants)) or 'none'}."
            )
    return chosen


def _images(
    problems: Problems, service: Mapping[str, Any], base: Mapping[str, Any], layers: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the images that can serve, best first; a pinned image gets the recipe's adjustments for it.

    layers: the recipe and its variants; the last that lists images decides.
    """
    listed: list[list[dict[str, Any]]] = [layer.get("images") or [] for layer in layers]
    offered: list[dict[str, Any]] = next((images for images in reversed(listed) if images), [])
    value = service.get("image") or base.get("image")
    if value is None:
        return offered
    image = {"ref": value} if isinstance(value, str) else value
    _check_built(problems, image)
    entries = [entry for images in (offered, *listed) for entry in images]
    adjusted = next((entry for entry in entries if entry.get("ref") == image.get("ref")), {})
    return [{**adjusted, **image}]


def _model_of(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merged model of the layers; a layer that names it by repo or path removes the other key."""
    model: dict[str, Any] = {}
    for layer in layers:
        content = layer.get("model") or {}
        for key, other in (("repo", "path"), ("path", "repo")):
            if content.get(key) and other not in content:
                model.pop(other, None)
        model = merge(model, content)
    return model


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
            problems.add(f"args.{name} contains a control character or a line break.")
        elif long_name not in OWNED_ARGS:
            fix = "Take it out; what the engine reads from its environment can stand under 'secrets', as a file."
            if variable := launch.SECRET_VARIABLES.get(long_name):
                fix = f"Put it into a file and name that under 'secrets': {{{variable}: FILE}}."
            places = [place for place, _secret in plain_secrets.in_settings({long_name: value})]
            for text in plain_secrets.sentences("args", places, fix):
                problems.add(text)


def _check_model(problems: Problems, model: Mapping[str, Any]) -> None:
    if bool(model.get("repo")) == bool(model.get("path")) and not problems.named("'model."):
        problems.add("'model' needs either 'repo' (Hugging Face) or 'path' (a folder on the controller).")


def _check_built(problems: Problems, image: Mapping[str, Any]) -> None:
    if image.get("ref") and image.get("dockerfile") is not None:
        for text in built_image.problems(image["ref"], image["dockerfile"]):
            problems.add(text)
