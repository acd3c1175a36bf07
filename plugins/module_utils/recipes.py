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

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils import catalogue, fast_path, launch

SERVICE_KEYS = {
    "name": "name of the service: the unit is spark-<name>.service, the container spark-<name>",
    "recipe": "name of a recipe",
    "variant": "variant of the recipe, or a list of them",
    "port": "TCP port that the engine listens on",
    "host": "address that the engine listens on",
    "served_model_name": "model name that clients send; the service's name when left out",
    "model": "what to serve where it differs from the recipe: repo, revision, path, extra",
    "image": "image reference, or a mapping of ref, vllm_version, entrypoint, args, env, files and pip",
    "args": "options of vllm serve, long names with dashes",
    "env": "environment of the engine; no secrets",
    "api_key_file": "file on the controller that holds the API key",
    "secrets": "further secrets: environment variable to file on the controller",
    "checks": "what is proved beyond a completion: tools, reasoning",
    "files": "files that the engine needs: a list of source (on the controller, or {model}/NAME) and path in the container",
    "pip": "Python packages that the image lacks, with their versions; installed at every start",
    "config": "config.json of the model where no recipe has it",
    "quant_config": "hf_quant_config.json of the model where it has one",
    "weights_gib": "measured size of the weights on one rank, in GiB, without a drafter's",
    "draft_weights_gib": "measured size of the drafter's or MTP layer's own weights on one rank, in GiB",
    "draft_config": "config.json of the drafter where it is a model with layers of its own (DFlash, EAGLE)",
    "overheads": "overheads of this engine where they differ from spark_overheads, see the module memory_budget",
    "memory_share": "weight by which services whose utilisation is worked out share what is left; 1 when left out",
    "state": "started, or stopped to keep it deployed and not running; started when left out",
    "exclusive": "name of a set of services of the host of which one runs at a time, see docs/verbs.md",
    "start_timeout": "seconds that a start may take before systemd gives up",
    "shm_size": "size of the container's private /dev/shm, as docker takes it",
    "docker_args": "further options of docker run, as a list",
    "ignore": "ids of rules that this service does not want to hear of",
}
"""Keys of one entry of C(spark_services) with their meaning."""

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
)
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
)
"""Keys of a variant: C(config) and C(model) replace the recipe's fields one by one, lists are replaced whole."""
MODEL_KEYS = ("repo", "revision", "path", "extra")
IMAGE_KEYS = ("ref", "vllm_version", "entrypoint", "args", "env", "files", "pip")
FILE_KEYS = ("source", "path")
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
CHECK_KEYS = ("tools", "reasoning")

# Keys that vllm serve has too but that belong to the service itself, so that plan, unit and probes agree on them.
OWNED_ARGS = {**launch.SERVICE_KEYS, "api-key": "api_key_file"}

SERVICE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
"""A DNS label of at most 40 characters: it becomes a unit, a container, a folder and a model name."""
RESERVED_NAMES = (
    "alertmanager",
    "clients",
    "collector",
    "exporters",
    "firewall",
    "fleet-monitor",
    "gateway",
    "gpu-exporter",
    "grafana",
    "hermes",
    "load-guard",
    "monitoring",
    "node-exporter",
    "ollama",
    "open-webui",
    "prometheus",
    "speech",
    "watchdog",
)
"""What stands around the engines has its unit, container or folder by these names (spark-gateway.service), on any host."""
REPO_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""ORG/NAME as Hugging Face takes it."""
REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,127}")
IMAGE_REF = re.compile(r"[a-z0-9][\w.:/-]*(?:@sha256:[0-9a-f]{64})?")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET_NAME = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIALS?)(?:_|$)", re.IGNORECASE)
REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?(?:==[\w.+!-]+)?")
CONTAINER_PATH = re.compile(r"/[\w.+@/-]+")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Problems:
    """Collects every problem of one place, so that all are told at once."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.messages: list[str] = []

    def add(self, message: str) -> None:
        """Keep one message, prefixed by the place that it is about."""
        self.messages.append(f"{self.where}: {message}")

    def unknown(self, keys: Iterable[str], known: Sequence[str], what: str = "key") -> None:
        """Complain about every key that is not known and name the nearest known one."""
        for key in keys:
            if key not in known:
                self.add(f"unknown {what} '{key}'{nearest(key, known)} Known: {', '.join(known)}.")

    def mapping(self, value: Any, key: str) -> dict[str, Any]:
        """Return C(value) as a dict, or complain and return an empty one."""
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return {str(k): v for k, v in value.items()}
        self.add(f"'{key}' must be a mapping, not {kind(value)}.")
        return {}

    def mappings(self, value: Any, key: str) -> list[dict[str, Any]]:
        """Return C(value) as a list of dicts, or complain and return an empty one."""
        if value is not None and not isinstance(value, list):
            self.add(f"'{key}' must be a list of mappings, not {kind(value)}.")
            return []
        return [self.mapping(entry, key) for entry in value or []]


def nearest(word: str, known: Iterable[str]) -> str:
    """End a complaint about an unknown word: C(; did you mean 'x'?) where a known one is near, else a full stop."""
    names = sorted(known)
    longer = [name for name in names if word and name.startswith(word)]
    match = longer or difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"; did you mean '{match[0]}'?" if match else "."


def kind(value: Any) -> str:
    """Name a value's type as a person who writes YAML knows it."""
    names = {dict: "a mapping", list: "a list", str: "a text", bool: "a boolean", int: "a number", float: "a number"}
    return "nothing" if value is None else next((n for t, n in names.items() if isinstance(value, t)), "that")


def normalise_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Give every option its long name with dashes, so that layers that spell it differently meet."""
    return {launch.long_name(str(name)): value for name, value in args.items()}


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge flat layers, later ones win, then drop what is null."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer)
    return {key: value for key, value in merged.items() if value is not None}


def validate_recipe(recipe: Any, origin: str) -> list[str]:
    """Return what is wrong with a recipe as read from C(origin); an empty list if nothing is."""
    problems = Problems(f"recipe {origin}")
    if not isinstance(recipe, Mapping):
        return [f"recipe {origin}: must be a mapping, not {kind(recipe)}."]
    problems.unknown(recipe, RECIPE_KEYS)
    for key in ("name", "summary", "model", "images", "args", "config", "source"):
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


def _check_body(problems: Problems, body: Mapping[str, Any]) -> None:
    """Check what a recipe and its variants have in common."""
    for image in problems.mappings(body.get("images"), "images"):
        _check_image(problems, image)
        _check_args(problems, problems.mapping(image.get("args"), "images.args"))
        _environment(problems, problems.mapping(image.get("env"), "images.env"))
    _check_args(problems, problems.mapping(body.get("args"), "args"))
    _environment(problems, problems.mapping(body.get("env"), "env"))
    problems.unknown(problems.mapping(body.get("checks"), "checks"), CHECK_KEYS, "check")
    _files(problems, body)
    _pip(problems, body)
    _sizes(problems, body)
    _texts(problems, body, "source")
    _texts(problems, body, "ignore")
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
        for name in _texts(problems, {key: _listed(entry.get(key))}, key):
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
) -> tuple[dict[str, Any], list[str]]:
    """Check one service and merge its layers.

    service: the entry of C(spark_services) as written. where: host and position, for messages.
    recipes: name to recipe. defaults: C(spark_defaults) of the host. present: images that the host has.
    Returns the merged description and all problems; the description is only meaningful without problems.
    """
    problems = Problems(where)
    if not isinstance(service, Mapping):
        problems.add(f"must be a mapping with at least name, recipe and port, not {kind(service)}.")
        return {}, problems.messages
    own = {str(key).replace("-", "_"): value for key, value in service.items()}
    if isinstance(own.get("name"), str):
        problems.where = f"{where} ({own['name']})" if SERVICE_NAME.fullmatch(own["name"]) else where
    problems.unknown(own, tuple(SERVICE_KEYS))
    base = {str(key).replace("-", "_"): value for key, value in (defaults or {}).items()}

    recipe: Mapping[str, Any] = {}
    if own.get("recipe") is not None:
        found = recipes.get(str(own["recipe"]))
        if found is None:
            problems.add(
                f"unknown recipe '{own['recipe']}'{nearest(str(own['recipe']), recipes)} "
                f"Known: {', '.join(sorted(recipes))}."
            )
        recipe = found or {}
    elif not own.get("model"):
        problems.add("'recipe' is missing (or 'model', 'image' and 'config' of a model without a recipe).")
    if own.get("recipe") is None or recipe:
        if not (own.get("image") or base.get("image") or recipe.get("images")):
            problems.add("'image' is missing.")
        if not (own.get("config") or recipe.get("config")):
            problems.add("'config' is missing: without the model's config.json nothing can be planned.")
    resolved = _assemble(problems, own, base, recipe, present)
    return resolved, problems.messages


def _assemble(
    problems: Problems,
    own: dict[str, Any],
    base: Mapping[str, Any],
    recipe: Mapping[str, Any],
    present: Collection[str],
) -> dict[str, Any]:
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

    variants = _variants(problems, own.get("variant"), recipe)
    images = _images(problems, own, base, [recipe, *variants])
    # Later entries are other ways to serve the same: what the host has needs no download.
    image = next((known for known in images if known.get("ref") in present), images[0] if images else {})
    layers = [recipe, image, *variants, base, own]
    args_layers, env_layers, checks_layers = [], [], []
    for layer in layers:
        args = problems.mapping(layer.get("args"), "args")
        _check_args(problems, args)
        args_layers.append(normalise_args(args))
        env_layers.append(problems.mapping(layer.get("env"), "env"))
        checks_layers.append(problems.mapping(layer.get("checks"), "checks"))
    env = _environment(problems, merge(*env_layers))
    checks = merge({"tools": False, "reasoning": False}, *checks_layers)
    problems.unknown(checks, CHECK_KEYS, "check")

    model = _model_of(problems, recipe, *variants, own)
    if model or not own.get("recipe"):  # a recipe that was not found has been complained about
        _check_model(problems, model)

    secrets = {**problems.mapping(base.get("secrets"), "secrets"), **problems.mapping(own.get("secrets"), "secrets")}
    key_file = own.get("api_key_file", base.get("api_key_file"))
    if key_file:
        secrets["VLLM_API_KEY"] = key_file
    for variable in secrets:
        if not ENV_NAME.fullmatch(variable):
            problems.add(f"'secrets' names '{variable}', which is no environment variable.")

    served = own.get("served_model_name") or recipe.get("served_model_name") or name
    if not isinstance(served, str) or CONTROL.search(served) or not served.strip():
        problems.add(f"'served_model_name' is {served!r}; it must be one line of text.")
    host = own.get("host", base.get("host"))
    if host is not None and (not isinstance(host, str) or not re.fullmatch(r"[0-9A-Za-z.:-]+", host)):
        problems.add(f"'host' is {host!r}; it must be an address or a host name.")
    timeout = _first(own, base, recipe, "start_timeout", 3000)
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 60:
        problems.add(f"'start_timeout' is {timeout!r}; it must be a whole number of seconds, 60 or more.")
    shm = _first(own, base, recipe, "shm_size", None)
    if shm is not None and not re.fullmatch(r"\d+[bkmgBKMG]?", str(shm)):
        problems.add(f"'shm_size' is {shm!r}; write it as docker takes it, for example 8g.")
    docker_args = [*_texts(problems, base, "docker_args"), *_texts(problems, own, "docker_args")]
    sizes = {"weights_gib": None, "draft_weights_gib": None}
    for layer in (recipe, *variants, own):
        sizes.update({key: layer[key] for key in sizes if key in layer})
    _sizes(problems, sizes)
    nodes = next((layer["nodes"] for layer in reversed([recipe, *variants]) if layer.get("nodes")), 1)
    share = own.get("memory_share", 1)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < float("inf"):
        problems.add(f"'memory_share' is {share!r}; it must be a number, 0 or more.")
    state = own.get("state", "started")
    if state not in ("started", "stopped"):
        problems.add(f"'state' is {state!r}; it must be started or stopped.")
    exclusive = own.get("exclusive")
    if exclusive is not None and (not isinstance(exclusive, str) or not SERVICE_NAME.fullmatch(exclusive)):
        problems.add(
            f"'exclusive' is {exclusive!r}; it must be the name of a set: lower-case letters, digits and inner dashes."
        )

    return {
        "name": name,
        "recipe": own.get("recipe"),
        "variant": [str(v) for v in _listed(own.get("variant"))],
        "port": port,
        "host": host,
        "served_model_name": served,
        "model": model,
        "image": image,
        "args": merge(*args_layers),
        "env": env,
        "secrets": {str(k): str(v) for k, v in sorted(secrets.items())},
        "checks": {key: bool(value) for key, value in checks.items()},
        "files": [entry for layer in layers for entry in _files(problems, layer)],
        "pip": [package for layer in layers for package in _pip(problems, layer)],
        "alternatives": [known["ref"] for known in images],
        "nodes": nodes,
        "config": _config(problems, own, recipe, variants),
        "quant_config": next(
            (layer["quant_config"] for layer in (own, *reversed(variants), recipe) if "quant_config" in layer), None
        ),
        **sizes,
        "draft_config": problems.mapping(
            next(
                (layer["draft_config"] for layer in (own, *reversed(variants), recipe) if "draft_config" in layer), None
            ),
            "draft_config",
        )
        or None,
        # What is measured after a start; the figures for people stay in the recipe.
        "expect": [
            dict(entry)
            for layer in (recipe, *variants)
            for entry in problems.mappings(layer.get("expect"), "expect")
            if any(key in entry for key in fast_path.EXPECTED)
        ],
        "memory_share": share,
        "state": state,
        "exclusive": exclusive or "",
        "overheads": problems.mapping(own.get("overheads"), "overheads"),
        "start_timeout": timeout,
        "shm_size": None if shm is None else str(shm),
        "docker_args": docker_args,
        "ignore": sorted({rule for layer in layers for rule in _texts(problems, layer, "ignore")}),
    }


def _first(own: Mapping[str, Any], base: Mapping[str, Any], recipe: Mapping[str, Any], key: str, default: Any) -> Any:
    return next((layer[key] for layer in (own, base, recipe) if layer.get(key) is not None), default)


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def _texts(problems: Problems, layer: Mapping[str, Any], key: str) -> list[str]:
    value = layer.get(key) or []
    if not isinstance(value, list) or any(not isinstance(item, (str, int, float)) for item in value):
        problems.add(f"'{key}' must be a list of texts, not {kind(value)}.")
        return []
    if any(CONTROL.search(str(item)) for item in value):
        problems.add(f"'{key}' holds a control character or a line break.")
    return [str(item) for item in value]


def _variants(problems: Problems, wanted: Any, recipe: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    known: Mapping[str, Any] = recipe.get("variants") or {}
    chosen = []
    for variant in _listed(wanted):
        if variant not in known:
            problems.add(
                f"unknown variant '{variant}' of recipe {recipe.get('name', '(none)')}"
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
    _check_image(problems, image)
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
    packages = _texts(problems, layer, "pip")
    for package in packages:
        if not REQUIREMENT.fullmatch(package):
            problems.add(f"'pip' names {package!r}; write NAME, NAME[EXTRA] or NAME==VERSION.")
    return packages


def _sizes(problems: Problems, layer: Mapping[str, Any]) -> None:
    for key in ("weights_gib", "draft_weights_gib"):
        size = layer.get(key)
        if size is not None and (isinstance(size, bool) or not isinstance(size, (int, float)) or size <= 0):
            problems.add(f"'{key}' is {size!r}; it must be a size in GiB above 0.")


def _environment(problems: Problems, env: Mapping[str, Any]) -> dict[str, str]:
    result = {}
    for name, value in sorted(env.items()):
        if not ENV_NAME.fullmatch(name):
            problems.add(f"'env' names '{name}', which is no environment variable.")
        elif SECRET_NAME.search(name):
            problems.add(
                f"'env' sets {name}, which looks like a secret: everybody who may run docker inspect would see "
                f"it. Put it into a file and name that under 'secrets'."
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


def _check_model(problems: Problems, model: Mapping[str, Any]) -> None:
    problems.unknown(model, MODEL_KEYS, "key of model:")
    repo, path = model.get("repo"), model.get("path")
    if bool(repo) == bool(path):
        problems.add("'model' needs either 'repo' (Hugging Face) or 'path' (a folder on the controller).")
    if repo and (not isinstance(repo, str) or not REPO_NAME.fullmatch(repo)):
        problems.add(f"model.repo is {repo!r}; it must look like ORG/NAME.")
    if path and (not isinstance(path, str) or CONTROL.search(path)):
        problems.add(f"model.path is {path!r}; it must be a folder on the controller.")
    extra = model.get("extra") or []
    for entry in [model, *(extra if isinstance(extra, list) else [])]:
        if not isinstance(entry, Mapping):
            problems.add(f"model.extra must be a list of mappings of repo and revision, not of {kind(entry)}.")
            continue
        revision = entry.get("revision")
        if revision is not None and (not isinstance(revision, str) or not REVISION.fullmatch(revision)):
            problems.add(f"model revision is {revision!r}; it must be a commit, tag or branch.")
        if entry is not model and not REPO_NAME.fullmatch(str(entry.get("repo"))):
            problems.add(f"model.extra names {entry.get('repo')!r}; it must look like ORG/NAME.")


def _check_image(problems: Problems, image: Mapping[str, Any]) -> None:
    problems.unknown(image, IMAGE_KEYS, "key of image:")
    ref = image.get("ref")
    if not isinstance(ref, str) or not IMAGE_REF.fullmatch(ref):
        problems.add(f"image is {ref!r}; it must be a reference like nvcr.io/nvidia/vllm:26.04-py3.")
    if image.get("entrypoint") not in (None, "serve", "passthrough"):
        problems.add(f"image.entrypoint is {image['entrypoint']!r}; it must be serve or passthrough.")
