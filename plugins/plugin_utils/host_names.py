# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Detect keys among the hosts: Ansible reads every file in an inventory folder as a list of hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import redaction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import KEYS, Sources

MOST_BYTES = 8192
"""A file with one key is smaller."""

_RANDOM_FORMS = (
    re.compile(r"(?=.*\d)(?=.*[A-Fa-f])[0-9A-Fa-f]{32,}"),
    re.compile(r"(?=.*\d)(?=.*[a-z])(?=.*[A-Z])(?=.*[A-Za-z0-9]{12})[A-Za-z0-9+/_-]{24,}={0,2}"),
    re.compile(r"[a-z0-9]{32,}"),
)
_CHANGE = re.compile(r"\d(?=[A-Za-z])|[A-Za-z](?=\d)|[a-z](?=[A-Z])|[A-Z](?=[a-z])")
_ABOUT_SECRETS = re.compile(
    r"(?<![A-Za-z])(?:secrets?|tokens?|pass(?:w[a-z]*)?|credentials?|apikeys?|keys?|psk)(?![A-Za-z])", re.IGNORECASE
)


def looks_like_key(name: str) -> bool:
    """Tell whether a name has the form of a key: of a known issuer, or long and random, unlike names of machines."""
    if redaction.holds_secret(name) or _RANDOM_FORMS[0].fullmatch(name):
        return True
    # Random text changes between letters, digits and capitals far more often than joined words.
    is_long = any(form.fullmatch(name) for form in _RANDOM_FORMS[1:])
    return is_long and 4 * len(_CHANGE.findall(name)) >= len(name)


def check(groups: Mapping[str, Iterable[str]], sources: Sources) -> str:
    """Return the message about hosts that are keys, empty without any; it has no secrets."""
    names = {str(name) for group, hosts in groups.items() for name in (group, *hosts)}
    keys = {name for name in names if looks_like_key(name)}
    files: dict[str, str] = {}  # with the source that reads each
    for path in sources.files():
        words = _words(path)
        hosts = {word for word in words if word in names}
        source = next((folder for folder in sources.folders if path.startswith(f"{folder}/")), "")
        # YAML files with such a name hold no key.
        is_secret = not path.endswith((".yml", ".yaml")) and bool(_ABOUT_SECRETS.search(path[len(source) :]))
        if keys & hosts or (hosts and len(words) == 1 and is_secret):
            keys |= hosts
            files[path] = sources.reads(path) or str(Path(path).parent)
    if not keys:
        return ""
    are_keys = "is a key or password" if len(keys) == 1 else "are keys or passwords"
    sentences = [
        f"{len(keys)} of the inventory's hosts {are_keys} by the looks of it. "
        "Ansible reads each file of an inventory folder as a list of hosts."
    ]
    sentences += [
        f"Move '{path}' to '{Path(source, KEYS, Path(path).name)}', which Ansible does not read, and name it so in the inventory."
        for path, source in sorted(files.items())
    ]
    if not files:
        sentences.append(
            f"Move the file with it out of the inventory: into {KEYS} in the inventory folder, which Ansible does not read."
        )
    return " ".join(sentences)


def _words(path: str) -> Sequence[str]:
    """Return the first word of each line of a small file, which Ansible's INI reader takes for a host."""
    try:
        if Path(path).stat().st_size > MOST_BYTES:
            return ()
        with Path(path).open(encoding="utf-8", errors="replace") as stream:
            lines = stream.read(MOST_BYTES).splitlines()
    except OSError:
        return ()
    return [line.split()[0] for line in lines if line.strip()]
