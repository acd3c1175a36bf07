# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse downloads of a launch: the repository of the hub behind each folder."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

_HOME = re.compile(r"^(?:~|\$\{?HOME\}?|/root|/home/[^/]+)(?=/|$)")
HERE = re.compile(r"^(?:\./|\$\{?PWD\}?/|\$\(pwd\)/)+")
"""The current folder at the beginning of a path."""
_HUB = re.compile(
    r"(?:https?://(?:[^/@]+@)?|git@|ssh://git@)(?:huggingface\.co|hf\.co)[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?"
)
_FILE_OF_HUB = re.compile(
    r"https?://(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)/(?:resolve|raw|blob)/([^/?#]+)/([^?#\s]+)"
)
_HUB_FOLDER = re.compile(r"(?:.*/)?models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})/*")
_SNAPSHOT = re.compile(r"snapshot_download\(([^)]*)\)")
_REPO = re.compile(r"[\w.-]+/[\w.-]+")
_WITH_VALUE = frozenset(
    ["--local-dir", "--revision", "--repo-type", "--include", "--exclude", "--cache-dir", "--token", "--max-workers"]
)


@dataclass(frozen=True)
class Download:
    """A download of a model, or of one of its files, into a folder.

    folder: as the command writes it, on the host or in the container of the command. file: its name in the repository, empty for all.
    """

    repo: str
    folder: str
    revision: str = ""
    file: str = ""


def read_download(words: Sequence[str], text: str = "") -> Download | None:
    """Return the download of a command from the hub into a folder, None for other commands and for downloads into the hub's cache."""
    names = [word.rpartition("/")[2] for word in words]
    for index, name in enumerate(names):
        if name in ("hf", "huggingface-cli") and names[index + 1 : index + 2] == ["download"]:
            return _of_cli(words[index + 2 :])
        if name == "git" and "clone" in names[index:]:
            return _of_clone(words[names.index("clone", index) + 1 :])
        if name in ("wget", "curl"):
            return _of_file(words[index + 1 :])
    program = next((text for text in (*words, text) if "snapshot_download(" in text), "")
    if not program:
        return None
    match = _SNAPSHOT.search(program)
    arguments = match.group(1) if match else ""
    named = dict(re.findall(r"(\w+)\s*=\s*[rf]?[\"']([^\"']+)[\"']", arguments))
    first = re.match(r"\s*[\"']([^\"']+)[\"']", arguments)
    repo = named.get("repo_id") or (first.group(1) if first else "")
    return _into_folder(repo, named.get("local_dir"), named.get("repo_type", "model"), named.get("revision", ""))


def path_below(folder: str, path: str) -> str | None:
    """Return the part of a path below a folder, empty for the folder itself, None for a path elsewhere."""
    top, inner = (posixpath.normpath(HERE.sub("", _HOME.sub("~", place))) for place in (folder, path))
    if inner == top:
        return ""
    return inner[len(top) :] if inner.startswith(f"{top}/") else None


def hub_snapshot(path: str) -> tuple[str, str]:
    """Return the repository and the commit of a folder in the hub's cache; empty texts for any other."""
    match = _HUB_FOLDER.fullmatch(path)
    return (f"{match.group(1)}/{match.group(2)}", match.group(3)) if match else ("", "")


def _of_cli(words: Sequence[str]) -> Download | None:
    values: dict[str, str] = {}
    repo = ""
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name in _WITH_VALUE and not equals:
            value = next(remaining, "")
        if name.startswith("-"):
            values[name] = value
        else:
            repo = repo or word
    return _into_folder(
        repo, values.get("--local-dir"), values.get("--repo-type", "model"), values.get("--revision", "")
    )


def _into_folder(repo: str, folder: str | None, kind: str, revision: str) -> Download | None:
    return Download(repo, folder, revision) if folder and _REPO.fullmatch(repo) and kind == "model" else None


def _of_clone(words: Sequence[str]) -> Download | None:
    arguments = [word for word in words if not word.startswith("-")]
    for index, word in enumerate(arguments):
        match = _HUB.fullmatch(word)
        if match:
            folder = arguments[index + 1] if len(arguments) > index + 1 else match.group(1).rpartition("/")[2]
            return Download(match.group(1), folder, _value_of(words, "-b", "--branch"))
    return None


def _of_file(words: Sequence[str]) -> Download | None:
    match = next((match for word in words if (match := _FILE_OF_HUB.fullmatch(word))), None)
    if match is None:
        return None
    repo, revision, file = match.groups()
    folder = _value_of(words, "-P", "--directory-prefix", "--output-dir")
    target = _value_of(words, "-O", "-o", "--output", "--output-document")
    path = posixpath.join(folder or ".", target or posixpath.basename(file))
    return Download(repo, path, "" if revision == "main" else revision, file)


def _value_of(words: Sequence[str], *options: str) -> str:
    """Return the word behind the first of some options, empty without one."""
    behind = dict(zip(words, words[1:]))
    return next((behind[option] for option in options if option in behind), "")
