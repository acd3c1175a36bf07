# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes of others by reference, C(SOURCE:NAME): find the file of a source, and have the importer make a recipe of it.

C(plugin_utils/recipe_sources.py) fetches the files. None of them is run.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._common import plain_data, schema
from .._common.schema import Key
from .._common.validation import SERVICE_NAME, Problems, nearest
from . import importer, recipes
from .import_draft import OWN_IMAGE, Unreadable, program_name
from .import_sources import detect

KEYS: dict[str, Key] = {
    "name": Key(str, None, "the part of `recipe` before the colon; lower-case letters, digits and dashes"),
    "path": Key(str, "", "git clone on the controller"),
    "url": Key(str, "", "address of a git repository, fetched once"),
    "commit": Key(str, "", "full commit, 40 digits; required for git"),
}
"""Keys of one entry of C(spark_recipe_sources)."""
FORMS = ("eugr", "sparkrun", "vllm_recipe", "nvidia")
MOST_NAMED = 8
"""Names of recipes in a message."""
SOLO = "solo"
"""The variant on one Spark of a recipe that spans several by its defaults."""
_OLLAMA = re.compile(r"[a-z0-9][a-z0-9._-]*:(?:latest|(?:[ae]?\d+(?:\.\d+)?[bm]|\d+x\d+b)(?:-[\w.-]+)?)")
_LOGIN = re.compile(r"https?://[^/]*@|\w+://[^/]*:[^/]*@")
_VALUES = {
    "url": (
        re.compile(r"(?:https?|ssh|git|file)://[^\s\x00-\x1f]+|\w[\w.-]*@\w[\w.-]*:[\w./~-]+"),
        "an address with https://, ssh://, git:// or file://.",
    ),
    "commit": (
        re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?"),
        "a whole commit, 40 hexadecimal digits: a branch or a tag moves.",
    ),
}
"""Forms of optional values, with the words for them."""
_SIZES = ("quant_config", "weights_gib", "draft_weights_gib", "draft_config", "memory", "memory_gib")
_COPIED = ("model", "args", "env", "checks", "config", *_SIZES, "files", "pip", "served_model_name", "shm_size")


class NoRecipe(ValueError):
    """There is no recipe for a reference; the message has the reason."""


@dataclass(frozen=True)
class Source:
    """A git repository with recipes, at a commit of which all digits are given."""

    name: str
    path: str
    url: str
    commit: str

    @property
    def origin(self) -> str:
        """The address or the path, for messages."""
        return self.url or self.path


def read_sources(entries: Any, where: str) -> tuple[dict[str, Source], list[str]]:
    """Check C(spark_recipe_sources). entries: as a person wrote them, paths resolved. Returns the valid sources by name, and the problems of the others."""
    problems = Problems(f"{where}: spark_recipe_sources")
    sources: dict[str, Source] = {}
    for index, entry in enumerate(problems.mappings(entries, "spark_recipe_sources")):
        entry_problems = Problems(f"{where}: spark_recipe_sources[{index}]")
        values = schema.filled(entry_problems, entry, KEYS)
        source = _source(entry_problems, {key: str(value) for key, value in values.items() if value is not None})
        if source and source.name in sources and sources[source.name] != source:
            entry_problems.add(f"the name '{source.name}' is used twice.")
        elif source and not entry_problems.messages:
            sources[source.name] = source
        problems.messages += entry_problems.messages
    return sources, problems.messages


def _source(problems: Problems, values: Mapping[str, str]) -> Source | None:
    """Return a source, None without a usable place; adds its problems."""
    name = values.get("name", "")
    path, url, commit = (values.get(key, "") for key in ("path", "url", "commit"))
    if not SERVICE_NAME.fullmatch(name):
        problems.add(f"'name' is {plain_data.shown(name)}; it must be lower-case letters, digits and inner dashes.")
    if bool(path) == bool(url):
        problems.add("needs either 'path' (a clone on the controller) or 'url'.")
        return None
    if _LOGIN.match(url):
        problems.add(
            "'url' contains a login, which messages would show: git's credential helper or ~/.netrc is the place for it."
        )
        return None
    for key, (form, expected) in _VALUES.items():
        value = values.get(key, "")
        if value and not form.fullmatch(value):
            problems.add(f"'{key}' is {plain_data.shown(value)}; it must be {expected}")
    if not commit:
        problems.add("lacks 'commit': the content of a repository changes. Name the commit that you have read.")
    return Source(name, path, url, commit)


def split(reference: Any) -> tuple[str, str] | None:
    """Return the source and the name of a reference, C(None) for the name of a recipe of this collection."""
    if not isinstance(reference, str) or ":" not in reference:
        return None
    source, _colon, name = reference.partition(":")
    return source, name


def is_ollama_name(text: str) -> bool:
    """Return whether a text is a name of Ollama's library with its tag: C(llama3:70b), C(qwen3:8b-q4_K_M), C(phi4:latest)."""
    return bool(_OLLAMA.fullmatch(text))


def identity(path: str) -> str:
    """Return the name of a file: its path without the top folder of recipes and without its extension."""
    stem = re.sub(r"\.ya?ml$", "", path)
    stem = re.sub(r"^(?:recipes|models)/", "", stem)
    return re.sub(r"/recipe$", "", stem)


def find(name: str, paths: Collection[str], skipped: Mapping[str, str]) -> str:
    """Find a file by its path, the last part of its path, or any run of parts. Raises NoRecipe without such a file, or with several."""
    if any(part in ("..", ".", "") for part in name.split("/")):
        raise NoRecipe(f"'{name}' is no name of a recipe: a path without '..' and empty parts is")
    names = {path: identity(path).lower() for path in paths if not path.startswith(".")}
    sought = identity(name).lower()
    for matches in _matches(name, sought, names):
        # Of a recipe for several machines, take the one for this machine.
        candidates = [path for path in matches if "/dgx-spark" in f"/{path}"] or matches
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            listed = ", ".join(sorted(map(identity, candidates))[:MOST_NAMED])
            raise NoRecipe(f"'{name}' is the name of {len(candidates)} recipes: {listed}. Write more of the path")
    for path, reason in skipped.items():
        if sought in (identity(path).lower(), program_name(identity(path).lower())):
            raise NoRecipe(f"{path} is not read: {reason}")
    all_names = {*names.values(), *map(program_name, names.values())}
    raise NoRecipe(f"there is no recipe '{name}'{nearest(sought, all_names)}".rstrip("."))


def _matches(name: str, sought: str, names: Mapping[str, str]) -> list[list[str]]:
    """Return the files with a name, the closest matches first. names: lower-case name of each file by its path."""
    return [
        [path for path, stem in names.items() if stem == sought or path == name],
        [path for path, stem in names.items() if program_name(stem) == sought],
        [path for path, stem in names.items() if f"/{sought}/" in f"/{stem}/"],
    ]


def is_recipe(document: Any) -> bool:
    """Return whether a YAML document is a recipe in one of C(FORMS)."""
    if not isinstance(document, Mapping):
        return False
    try:
        form = detect("", document)
    except Unreadable:
        return False
    return form in FORMS and (form != "nvidia" or isinstance(document.get("serve"), Mapping))


def as_recipe(
    reference: str,
    source: Source,
    path: str,
    text: str,
    document: Any,
    known_recipes: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Make a recipe of a file of a source.

    :returns: as the files of C(playbooks/recipes) have it, with C(left_out) and, without an image, C(no_image)
    :raises NoRecipe: if it cannot be served, with the reason
    """
    if not is_recipe(document):
        raise NoRecipe(f"{path} is no recipe of eugr, sparkrun, vLLM or NVIDIA")
    base = _body(path, text, document, known_recipes, {})
    variants: dict[str, Any] = {}
    for name, options in _choices(document, base["nodes"]).items():
        with contextlib.suppress(NoRecipe):
            body = _body(path, text, document, known_recipes, options)
            if name != SOLO or body["nodes"] == 1:
                variants[name] = _difference(base, body)
    title = document.get("description") or document.get("title") or (document.get("meta") or {}).get("title")
    recipe = {
        **base,
        "name": reference,
        "summary": " ".join(str(title or f"{base['model'].get('repo')} of {source.name}").split()),
        "source": [f"{source.origin}, {source.commit[:12]}, {path}"],
        "variants": variants,
    }
    if messages := recipes.validate_recipe(recipe, reference, reference=True):
        raise NoRecipe(" ".join(messages))
    return recipe


def _choices(document: Mapping[str, Any], nodes: int) -> dict[str, dict[str, Any]]:
    """Return the further variants of a recipe, with the options of the importer for each. nodes: of the recipe itself."""
    variants = document.get("variants")
    if isinstance(variants, Mapping):
        return {str(name): {"variant": str(name)} for name in variants if SERVICE_NAME.fullmatch(str(name))}
    sizes = [key for key in ("tensor_parallel", "pipeline_parallel") if key in (document.get("defaults") or {})]
    only_several = document.get("cluster_only") or (document.get("min_nodes") or 1) != 1
    return {SOLO: {"variables": dict.fromkeys(sizes, "1")}} if nodes > 1 and sizes and not only_several else {}


def _body(
    path: str, text: str, document: Any, known_recipes: Mapping[str, Mapping[str, Any]], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the import of a file, by the keys of a recipe."""
    try:
        launch = importer.import_launch(text, document, known_recipes=known_recipes, **options)
    except ValueError as error:
        raise NoRecipe(f"{path}: {error}") from error
    service = launch["service"]
    if not service["model"].get("repo"):
        raise NoRecipe(f"{path}: its model is a folder of its author's machine ({service['model'].get('path')})")
    body = {"args": {}, **{key: service[key] for key in _COPIED if service.get(key)}, "nodes": launch["nodes"]}
    image = service.get("image")
    ref = image.get("ref") if isinstance(image, Mapping) else image
    if not ref:
        body.update(images=[], no_image="the recipe names none")
    elif "/" not in ref:
        reason = f"the recipe builds {ref} on the machine itself, by scripts that are never run here"
        body.update(images=[], no_image=reason)
    else:
        body["images"] = [dict(image) if isinstance(image, Mapping) else {"ref": image}]
    body["left_out"] = _left_out(service, launch["left_out"])
    return body


def _left_out(service: Mapping[str, Any], entries: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the parts that the engine does not get here; the owner may grant options of docker and keys."""
    texts = [
        f"{entry['item']} ({entry['reason']})"
        for entry in entries
        if OWN_IMAGE in entry["reason"] or entry["item"] in ("limitation", "executor_config")
    ]
    if service.get("docker_args"):
        options = " ".join(service["docker_args"])
        texts.append(f"{options} (options of docker: put those that are needed into docker_args)")
    return texts + [f"{name} (a secret: name its file under 'secrets')" for name in service.get("secrets", {})]


def _difference(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variant that turns one recipe into another: the different values, and null for removed ones."""
    variant: dict[str, Any] = {"nodes": other["nodes"]}
    for key in ("args", "env"):
        if changed := _changes(base.get(key) or {}, other.get(key) or {}):
            variant[key] = changed
    if other["model"] != base["model"]:
        variant["model"] = {**dict.fromkeys(base["model"]), **other["model"]}
        # Nothing of the first model's config holds for another model.
        variant["config"] = {**dict.fromkeys(base.get("config") or {}), **(other.get("config") or {})}
        variant.update({key: other.get(key) for key in _SIZES if key in base or key in other})
    if other["images"] and other["images"] != base["images"]:
        variant["images"] = other["images"]
    return variant


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of C(after) that differ, and null for removed ones."""
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    return {**changed, **dict.fromkeys(name for name in before if name not in after)}


def references_of(hosts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return every reference that services of hosts and clusters name, each once. hosts: variables of each, as a person wrote them."""
    references: dict[str, None] = {}
    for variables in hosts:
        cluster = variables.get("spark_cluster")
        lists = [variables.get("spark_services"), cluster.get("services") if isinstance(cluster, Mapping) else None]
        for service in [service for services in lists if isinstance(services, list) for service in services]:
            reference = service.get("recipe") if isinstance(service, Mapping) else None
            if split(reference):
                references[str(reference)] = None
    return list(references)
