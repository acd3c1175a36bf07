# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes of others by reference, C(SOURCE:NAME): which file of a source is meant, and the recipe that the importer makes of it.

Where the files come from is the controller's affair (C(plugin_utils/recipe_sources.py)); nothing of them is run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._common import plain_data, schema
from .._common.schema import Key
from .._common.validation import SERVICE_NAME, Problems, nearest
from . import importer, recipes
from .import_draft import OWN_IMAGE, Unreadable
from .import_sources import detect

KEYS: dict[str, Key] = {
    "name": Key(
        str, None, "what services call it: the part of `recipe` before the colon; lower-case letters, digits and dashes"
    ),
    "path": Key(str, "", "git clone or archive (`.tar.gz`, `.tar`, `.zip`, ...) on the controller"),
    "url": Key(str, "", "address of a git repository or of an archive, fetched once"),
    "commit": Key(str, "", "commit that is read, all 40 digits of it; needed with `url` and for a clone"),
    "checksum": Key(str, "", "SHA-256 of an archive, `sha256:...`; needed where the archive does not name its commit"),
}
"""Keys of one entry of C(spark_recipe_sources)."""
FORMS = ("eugr", "sparkrun", "vllm_recipe", "nvidia")
MOST_NAMED = 8
"""Names of recipes in a message."""
SOLO = "solo"
"""The variant on one Spark of a recipe that spans several by its defaults."""
_OLLAMA = re.compile(r"[a-z0-9][a-z0-9._-]*:(?:latest|(?:[ae]?\d+(?:\.\d+)?[bm]|\d+x\d+b)(?:-[\w.-]+)?)")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_CHECKSUM = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_URL = re.compile(r"(?:https?|ssh|git|file)://[^\s\x00-\x1f]+|\w[\w.-]*@\w[\w.-]*:[\w./~-]+")
_LOGIN = re.compile(r"https?://[^/]*@|\w+://[^/]*:[^/]*@")
_ARCHIVE = re.compile(r"\.(?:tar(?:\.(?:gz|bz2|xz))?|tgz|zip)$")
_SIZES = ("quant_config", "weights_gib", "draft_weights_gib", "draft_config", "memory", "memory_gib")
_TAKEN = ("model", "args", "env", "checks", "config", *_SIZES, "files", "pip")
_LAYERED = ("args", "env")


class NoRecipe(ValueError):
    """A reference that leads to no recipe; the message says why, and what there is."""


@dataclass(frozen=True)
class Source:
    """Where recipes come from. commit and checksum: hexadecimal digits, empty where they are not given."""

    name: str
    path: str
    url: str
    commit: str
    checksum: str

    @property
    def origin(self) -> str:
        """The place, as messages name it."""
        return self.url or self.path

    @property
    def archive(self) -> bool:
        """Whether it is an archive by its name, else a git repository."""
        return bool(_ARCHIVE.search(self.origin.partition("?")[0]))

    @property
    def pin(self) -> str:
        """What its content is pinned by."""
        return self.commit or self.checksum


def read_sources(given: Any, where: str) -> tuple[dict[str, Source], list[str]]:
    """Check C(spark_recipe_sources).

    :param given: as a person wrote it, paths resolved
    :param where: the host, for messages
    :returns: the sources that are right, by name, and what is wrong with the others
    """
    problems = Problems(f"{where}: spark_recipe_sources")
    found: dict[str, Source] = {}
    for index, entry in enumerate(problems.mappings(given, "spark_recipe_sources")):
        own = Problems(f"{where}: spark_recipe_sources[{index}]")
        right = {key: str(value) for key, value in schema.filled(own, entry, KEYS).items() if value is not None}
        source = _source(own, right)
        if source and source.name in found and found[source.name] != source:
            own.add(f"the name '{source.name}' is used twice.")
        elif source and not own.messages:
            found[source.name] = source
        problems.messages += own.messages
    return found, problems.messages


def _source(problems: Problems, given: Mapping[str, str]) -> Source | None:
    """Check one source; what is wrong is complained about."""
    name = given.get("name", "")
    path, url, commit, checksum = (given.get(key, "") for key in ("path", "url", "commit", "checksum"))
    if not SERVICE_NAME.fullmatch(name):
        problems.add(f"'name' is {plain_data.shown(name)}; it must be lower-case letters, digits and inner dashes.")
    if bool(path) == bool(url):
        problems.add("needs either 'path' (a clone or an archive on the controller) or 'url'.")
        return None
    if _LOGIN.match(url):
        problems.add(
            "'url' holds a login, which messages would show: git's credential helper or ~/.netrc is the place for it."
        )
        return None
    if url and not _URL.fullmatch(url):
        problems.add(
            f"'url' is {plain_data.shown(url)}; it must be an address with https://, ssh://, git:// or file://."
        )
    if commit and not _COMMIT.fullmatch(commit):
        problems.add(
            f"'commit' is {plain_data.shown(commit)}; it must be a whole commit, 40 hexadecimal digits: a branch or a tag moves."
        )
    sum_of = _CHECKSUM.fullmatch(checksum)
    if checksum and not sum_of:
        problems.add(f"'checksum' is {plain_data.shown(checksum)}; it must be sha256: and 64 hexadecimal digits.")
    source = Source(name, path, url, commit, sum_of.group(1) if sum_of else "")
    if url and not commit:
        problems.add("'url' without 'commit': what is behind an address changes. Name the commit that you have read.")
    elif not source.archive and not commit:
        problems.add("a clone without 'commit': its files change. Name the commit that you have read.")
    elif source.archive and not commit and not checksum:
        problems.add("an archive without 'commit' and 'checksum': name one of them.")
    if checksum and not source.archive:
        problems.add("'checksum' is for archives; the commit is the sum of a git repository.")
    return source


def split(reference: Any) -> tuple[str, str] | None:
    """Return the source and the name of a reference, C(None) for the name of a recipe of this collection."""
    if not isinstance(reference, str) or ":" not in reference:
        return None
    source, _colon, name = reference.partition(":")
    return source, name


def is_ollama_name(text: str) -> bool:
    """Whether a text is a name of Ollama's library with its tag: C(llama3:70b), C(qwen3:8b-q4_K_M), C(phi4:latest)."""
    return bool(_OLLAMA.fullmatch(text))


def identity(path: str) -> str:
    """Return what a file is called: its path without the top folder of recipes and without its extension."""
    stem = re.sub(r"\.ya?ml$", "", path)
    stem = re.sub(r"^(?:recipes|models)/", "", stem)
    return re.sub(r"/recipe$", "", stem)


def find(name: str, paths: Collection[str], left: Mapping[str, str]) -> str:
    """Find the file that a name means: by its path, its last part, or any run of its parts.

    :param name: the part of a reference behind the colon
    :param paths: of the source's YAML files
    :param left: files that were not read, with the reason
    :returns: the path
    :raises NoRecipe: where there is none, or more than one
    """
    if any(part in ("..", ".", "") for part in name.split("/")):
        raise NoRecipe(f"'{name}' is no name of a recipe: a path without '..' and empty parts is")
    known = {path: identity(path).lower() for path in paths if not path.startswith(".")}
    wanted = identity(name).lower()
    exact = [path for path, each in known.items() if each == wanted or path == name]
    last = [path for path, each in known.items() if each.rpartition("/")[2] == wanted]
    within = [path for path, each in known.items() if f"/{wanted}/" in f"/{each}/"]
    for found in (exact, last, within):
        # Where a recipe is there for several machines, that for this one is meant.
        here = [path for path in found if "/dgx-spark" in f"/{path}"] or found
        if len(here) == 1:
            return here[0]
        if here:
            names = ", ".join(sorted(identity(path) for path in here)[:MOST_NAMED])
            raise NoRecipe(f"'{name}' is the name of {len(here)} recipes: {names}. Write more of the path")
    for path, reason in left.items():
        if wanted in (identity(path).lower(), identity(path).rpartition("/")[2].lower()):
            raise NoRecipe(f"{path} is not read: {reason}")
    ends = {each.rpartition("/")[2] for each in known.values()} | set(known.values())
    raise NoRecipe(f"there is no recipe '{name}'{nearest(wanted, ends)}".rstrip("."))


def is_recipe(document: Any) -> bool:
    """Whether a document of YAML is a recipe in one of the forms that are read."""
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
    known: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Make a recipe of a file of a source.

    :param reference: by which services name it
    :param source: that it is from
    :param path: of the file in it
    :param text: of the file
    :param document: the text as YAML
    :param known: recipes of this collection, for the config of a model that has none here
    :returns: as the files of C(playbooks/recipes) have it, with C(left_out) and, where it has no image, C(no_image)
    :raises NoRecipe: where it cannot be served, with the reason
    """
    if not is_recipe(document):
        raise NoRecipe(f"{path} is no recipe of eugr, sparkrun, vLLM or NVIDIA")
    base = _body(path, text, document, known, {})
    variants: dict[str, Any] = {}
    for name, options in _choices(document, base).items():
        try:
            other = _body(path, text, document, known, options)
        except NoRecipe:
            continue
        if name != SOLO or other["nodes"] == 1:
            variants[name] = _difference(base, other)
    about = document.get("description") or document.get("title") or (document.get("meta") or {}).get("title")
    recipe = {
        **base,
        "name": reference,
        "summary": " ".join(str(about or f"{base['model'].get('repo')} of {source.name}").split()),
        "source": [f"{source.origin}, {source.pin[:12]}, {path}"],
        "variants": variants,
    }
    wrong = recipes.validate_recipe(recipe, reference, reference=True)
    if wrong:
        raise NoRecipe(" ".join(wrong))
    return recipe


def _choices(document: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the variants that a recipe has beside the one that is taken, with what the importer is given for each."""
    named = document.get("variants")
    if isinstance(named, Mapping):
        return {str(name): {"variant": str(name)} for name in named if SERVICE_NAME.fullmatch(str(name))}
    sizes = [key for key in ("tensor_parallel", "pipeline_parallel") if key in (document.get("defaults") or {})]
    only_several = document.get("cluster_only") or (document.get("min_nodes") or 1) != 1
    if base["nodes"] > 1 and sizes and not only_several:
        return {SOLO: {"variables": dict.fromkeys(sizes, "1")}}
    return {}


def _body(
    path: str, text: str, document: Any, known: Mapping[str, Mapping[str, Any]], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the importer makes of a file, by the keys of a recipe."""
    try:
        found = importer.import_launch(text, document, known_recipes=known, **options)
    except ValueError as error:
        raise NoRecipe(f"{path}: {error}") from error
    service = found["service"]
    if not service["model"].get("repo"):
        raise NoRecipe(f"{path}: its model is a folder of its author's machine ({service['model'].get('path')})")
    body = {key: service[key] for key in _TAKEN if service.get(key)}
    body.setdefault("args", {})
    body["nodes"] = found["nodes"]
    body["served_model_name"] = service["served_model_name"]
    if service.get("shm_size"):
        body["shm_size"] = service["shm_size"]
    body.update(_image(service.get("image")))
    body["left_out"] = _left_out(found)
    return body


def _image(given: Any) -> dict[str, Any]:
    image = given if isinstance(given, Mapping) else {"ref": given}
    if not image.get("ref"):
        return {"images": [], "no_image": "the recipe names none"}
    if "/" not in image["ref"]:
        return {
            "images": [],
            "no_image": f"the recipe builds {image['ref']} on the machine itself, by scripts that are never run here",
        }
    return {"images": [dict(image)]}


def _left_out(found: Mapping[str, Any]) -> list[str]:
    """Return what the engine would have and does not get here; options of docker and keys are for the owner to grant."""
    service = found["service"]
    told = [f"{entry['item']} ({entry['reason']})" for entry in found["left_out"] if _matters(entry)]
    if service.get("docker_args"):
        told.append(
            f"{' '.join(service['docker_args'])} (options of docker: put those that are needed into docker_args)"
        )
    return told + [f"{name} (a secret: name its file under 'secrets')" for name in service.get("secrets", {})]


def _matters(entry: Mapping[str, str]) -> bool:
    return OWN_IMAGE in entry["reason"] or entry["item"] in ("limitation", "executor_config")


def _difference(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variant that makes one recipe out of another: what differs, and null for what goes."""
    variant: dict[str, Any] = {"nodes": other["nodes"]}
    for key in _LAYERED:
        mine, theirs = base.get(key) or {}, other.get(key) or {}
        changed = {name: value for name, value in theirs.items() if mine.get(name) != value}
        gone: dict[str, Any] = {name: None for name in mine if name not in theirs}
        if changed or gone:
            variant[key] = {**changed, **gone}
    if other["model"] != base["model"]:
        gone = {name: None for name in base["model"] if name not in other["model"]}
        variant["model"] = {**other["model"], **gone}
        # Of another model nothing of the first one's config holds.
        variant["config"] = {**dict.fromkeys(base.get("config") or {}), **(other.get("config") or {})}
        variant.update({key: other.get(key) for key in _SIZES if key in base or key in other})
    if other["images"] and other["images"] != base["images"]:
        variant["images"] = other["images"]
    return variant


def references_of(hosts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return every reference that services of hosts and clusters name, each once.

    :param hosts: variables of each, as a person wrote them
    """
    found: list[str] = []
    for variables in hosts:
        cluster = variables.get("spark_cluster")
        lists = [variables.get("spark_services"), cluster.get("services") if isinstance(cluster, Mapping) else None]
        for entry in [entry for each in lists if isinstance(each, list) for entry in each]:
            reference = entry.get("recipe") if isinstance(entry, Mapping) else None
            if split(reference) and reference not in found:
                found.append(str(reference))
    return found
