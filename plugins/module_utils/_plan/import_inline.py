# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inline the scripts of a launch (ConfigMaps, compose configs, mounted files) into the command of the container."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence

from .import_engine import PREFIXES, SHELLS

DEEPEST = 4
"""Depth of nested scripts; deeper calls stay unchanged."""
_SHELL = rf"(?:(?:\S*/)?(?:{'|'.join(SHELLS)})\s+(?:-[a-z]+\s+)*|source\s+|\.\s+)?"


def inline_scripts(words: Sequence[str], scripts: Mapping[str, str], folder: str = "/") -> list[str]:
    """Return a command in which known scripts are replaced by their text.

    :returns: C(bash -c TEXT) for a command that runs a script, else the words with scripts replaced in the texts of shells
    """
    for index, word in enumerate(words):
        text = scripts.get(posixpath.normpath(posixpath.join(folder, word)))
        if text is not None:
            return ["bash", "-c", _with_arguments(_expand(text, scripts, 1), shlex.join(words[index + 1 :]))]
        if not (word.startswith("-") or word.rpartition("/")[2] in (*SHELLS, *PREFIXES)):
            break
    return [_expand(word, scripts, 0) if re.search(r"\s", word) or word in scripts else word for word in words]


def mounted_scripts(mounts: Sequence[tuple[str, str]], texts_by_path: Mapping[str, str]) -> dict[str, str]:
    """Return the scripts of a launch by their path in the container. texts_by_path: text of each script by its path relative to the launch."""
    texts = {}
    for source, target in mounts:
        place = re.sub(r"^(?:\./|\$\{?PWD\}?/|\$\(pwd\)/)+", "", source).rstrip("/")
        for path, text in texts_by_path.items():
            if source in (".", "./", "$PWD", "${PWD}", "$(pwd)"):
                texts[posixpath.join(target, path)] = text
            elif path == place or path.startswith(f"{place}/"):
                texts[target + path[len(place) :]] = text
    return texts


def script_path(words: Sequence[str]) -> str:
    """Return the path of the script or program of a command; empty without one."""
    for word in words:
        name = word.rpartition("/")[2]
        if word.startswith("-") or name in SHELLS or name in PREFIXES or re.fullmatch(r"python[\d.]*", name):
            continue
        if re.search(r"\s", word):  # the text of sh -c
            call = re.search(rf"(?:^|[;&|]\s*)(?:exec\s+)?{_SHELL}(/[\w./-]+\.\w+)", word)
            return call.group(1) if call else ""
        return word if "/" in word else ""
    return ""


def _with_arguments(text: str, arguments: str) -> str:
    return f"set -- {arguments}\n{text}" if arguments else text


def _expand(text: str, scripts: Mapping[str, str], depth: int) -> str:
    """Replace calls of known scripts in a text by the scripts."""
    if depth > DEEPEST:
        return text
    for path, content in scripts.items():
        call = rf"(?m)(^\s*|[;&|(]\s*|\b(?:then|do|else)\s+)(?:exec\s+)?{_SHELL}[\"']?{re.escape(path)}[\"']?(?=[\s;&|)]|$)([^\n;&|)]*)"

        def script(match: re.Match[str], content: str = content) -> str:
            return f"{match.group(1)}{{ {_with_arguments(_expand(content, scripts, depth + 1), match.group(2).strip())}\n}}"

        text = re.sub(call, script, text)
    return text
