# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch recipes of others once from a git repository; cache them on the controller below C(.spark/recipes).

Only the YAML files of one commit are read, never checked out, and no link is followed; C(git.py) keeps git from running programs of the
repository. The cache of a source is one JSON file with their texts.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import Untrusted, printable, received
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import importer, recipe_references
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.recipe_references import NoRecipe, Source
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths, git
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import read_stored, write
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import TooLarge, load_yaml

FOLDER = "recipes"
SCHEMA = 1
MOST_BYTES = 256 * 1024
"""Of one file; the largest recipe of the four collections has some 60 KiB."""
MOST_FILES = 10_000
MOST_TOTAL = 256 * 1024**2
"""Bytes of all YAML files of a commit."""
SUFFIXES = (".yaml", ".yml")


class Unfetched(ValueError):
    """A source cannot be read; the message has the reason."""


class BrokenYaml(ValueError):
    """Invalid YAML; the message has the place, and no part of the text."""


def document_of(text: str) -> Any:
    """Return the mapping of a YAML text, None for another text."""
    try:
        return read_launch_yaml(text)
    except BrokenYaml:
        return None


def read_launch_yaml(text: str) -> Any:
    """Return the mapping of a YAML text, None for other YAML. Raises C(BrokenYaml) for invalid YAML."""
    if len(text) > importer.MOST_BYTES:
        raise BrokenYaml(f"it has more than {importer.MOST_BYTES // 1024} KiB")
    try:
        documents = [document for document in load_yaml(text, several=True) if document is not None]
        # Several manifests of Kubernetes become one of its kind List.
        are_manifests = len(documents) > 1 and all(isinstance(item, dict) and "kind" in item for item in documents)
        document = {"apiVersion": "v1", "kind": "List", "items": documents} if are_manifests else load_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BrokenYaml(f"{error.problem or 'cannot be read'}{where}") from None
    except TooLarge as error:
        raise BrokenYaml(str(error)) from None
    except (yaml.YAMLError, ValueError) as error:
        raise BrokenYaml("it has characters or values that YAML does not have") from error
    return plain_dates(document) if isinstance(document, dict) else None


def plain_dates(value: Any) -> Any:
    """Return a YAML document with dates as texts."""
    if isinstance(value, dict):
        return {str(key): plain_dates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_dates(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


@dataclass
class Content:
    """The files of a source. files: texts by path. skipped: unread files, with the reason."""

    files: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


class RecipeSources:
    """The sources of an inventory, each read at its first use."""

    def __init__(self, sources: Mapping[str, Source], folder: Path | None, keep: bool) -> None:
        """Read nothing yet. keep: fetch and write."""
        self.sources = sources
        self.folder = folder
        self.keep = keep
        self._contents: dict[str, Content | str] = {}  # a text: why the source cannot be read

    def recipes(
        self, references: Iterable[str], known_recipes: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Return a recipe for each reference; C({refused: reason}) without one. known_recipes: of this collection, for their configs."""
        recipes: dict[str, dict[str, Any]] = {}
        for reference in references:
            try:
                recipes[reference] = self._recipe(reference, known_recipes)
            except (NoRecipe, Unfetched) as error:
                recipes[reference] = {"refused": printable(str(error))}
        return recipes

    def every(self, known_recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return every recipe of every source by its reference, as C(recipes) does."""
        recipes: dict[str, dict[str, Any]] = {}
        for name, source in self.sources.items():
            try:
                content = self._content(source)
            except Unfetched as error:
                recipes[f"{name}:"] = {"refused": printable(str(error))}
                continue
            for path in sorted(content.files):
                with contextlib.suppress(BrokenYaml):
                    if not path.startswith(".") and recipe_references.is_recipe(read_launch_yaml(content.files[path])):
                        recipes.update(self.recipes([f"{name}:{recipe_references.identity(path)}"], known_recipes))
        return recipes

    def _recipe(self, reference: str, known_recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        source_name, name = recipe_references.split(reference) or ("", "")
        source = self.sources.get(source_name)
        if source is None:
            if recipe_references.is_ollama_name(reference):
                raise NoRecipe(
                    f"this is a name of Ollama, not a recipe of vLLM; docs/models.md lists the recipes, and Ollama itself serves it with "
                    f"spark_ollama: {{models: ['{reference}']}}"
                )
            names = ", ".join(sorted(self.sources)) or "none"
            raise NoRecipe(f"there is no source '{source_name}' in spark_recipe_sources; it has {names}")
        content = self._content(source)
        path = recipe_references.find(name, content.files, content.skipped)
        text = content.files[path]
        try:
            document = received(read_launch_yaml(text))  # a YAML text can spell any character
        except (BrokenYaml, Untrusted) as error:
            raise NoRecipe(f"{path} is no YAML: {error}") from error
        return recipe_references.as_recipe(reference, source, path, text, document, known_recipes)

    def _content(self, source: Source) -> Content:
        """Return the content of a source; raises Unfetched if it cannot be read."""
        if source.name not in self._contents:
            try:
                self._contents[source.name] = self._cached(source) or self._fetched(source)
            except (Unfetched, OSError) as error:
                hint = " Without a way there, give a clone of it by 'path'." if source.url else ""
                self._contents[source.name] = (
                    f"the source {source.name} ({source.origin}) cannot be read: {str(error).rstrip('.')}.{hint}"
                )
        content = self._contents[source.name]
        if isinstance(content, str):
            raise Unfetched(content)
        return content

    def _place(self, source: Source) -> Path | None:
        return self.folder / f"{source.name}-{source.commit}.json" if self.folder else None

    def _cached(self, source: Source) -> Content | None:
        """Return the content that an earlier run has cached."""
        body = read_stored(self._place(source), SCHEMA)
        try:
            return Content(*({str(path): str(text) for path, text in body[name].items()} for name in ("files", "left")))
        except (KeyError, AttributeError):
            return None  # missing or incomplete: it is fetched again

    def _fetched(self, source: Source) -> Content:
        if source.url and not self.keep:
            raise Unfetched("it is not fetched yet, and a check fetches nothing; a run without --check does")
        content, place = read_repository(source), self._place(source)
        if place is not None and self.keep:
            body = {"schema": SCHEMA, "origin": source.origin, "commit": source.commit}
            body.update(files=content.files, left=content.skipped)
            write(place, json.dumps(body, indent=1, sort_keys=True) + "\n")
        return content


def of_hosts(
    hosts: Mapping[str, Mapping[str, Any]], task_vars: Mapping[str, Any], keep: bool, messages: list[str]
) -> RecipeSources:
    """Return the sources of hosts. messages: receives problems."""
    sources: dict[str, Source] = {}
    for name, host in hosts.items():
        entries = host["vars"].get("spark_recipe_sources")
        if not isinstance(entries, list):  # the engine complains about anything else
            continue
        host_sources, problems = recipe_references.read_sources(entries, f"host {name}")
        reported = {message.partition(": ")[2] for message in messages}
        messages += [problem for problem in problems if problem.partition(": ")[2] not in reported]
        for source in host_sources.values():
            if sources.setdefault(source.name, source) != source:
                messages.append(
                    f"host {name}: the source '{source.name}' of spark_recipe_sources is another one on a host before. "
                    "Set it on the group of all Sparks, or give one of them another name."
                )
    return RecipeSources(sources, controller_paths.state_folder(task_vars, FOLDER), keep)


# --- git ----------------------------------------------------------------------------------------------------------


def _why_skipped(path: str, mode: str, size: int) -> str:
    """Return why a file of a commit is not read, empty if it is. mode: of git. size: in bytes."""
    if not mode.startswith("100"):
        return "it is a symbolic link" if mode == "120000" else "it is no file"
    if size > MOST_BYTES:
        return f"it has {size // 1024} KiB, more than {MOST_BYTES // 1024}"
    return "its name has characters that steer a terminal" if path != printable(path) or "\n" in path else ""


def read_repository(source: Source) -> Content:
    """Read the YAML files of a commit. Raises Unfetched without the repository or the commit."""
    content = Content()
    try:
        with git.fetched_commit(source.path or source.url, source.commit) as commit:
            blobs: dict[str, str] = {}
            total = 0
            for path, mode, blob, size in commit.files():
                why = _why_skipped(path, mode, size)
                if path.endswith(SUFFIXES) and why:
                    content.skipped[printable(path)] = why
                elif path.endswith(SUFFIXES) and len(blobs) < MOST_FILES:
                    blobs[path] = blob
                    total += size
            if total > MOST_TOTAL:
                raise Unfetched(f"its YAML files have {total // 1024**2} MiB, more than {MOST_TOTAL // 1024**2}")
            for path, data in zip(blobs, commit.read(list(blobs.values()))):
                try:
                    content.files[path] = printable(data.decode("utf-8").replace("\r\n", "\n"))
                except UnicodeDecodeError:
                    content.skipped[printable(path)] = "it is no text in UTF-8"
    except git.GitError as error:
        raise Unfetched(str(error)) from error
    return content


def named(
    sources: RecipeSources, hosts: Mapping[str, Mapping[str, Any]], known_recipes: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the recipes that services of hosts name by reference."""
    references = recipe_references.references_of([host["vars"] for host in hosts.values()])
    yield from sources.recipes(references, known_recipes).items()
