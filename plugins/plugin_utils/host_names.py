# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of hosts that are none: keys and rows of lists that Ansible took for hosts, because their files lie in an inventory folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import KEYS, Sources

LISTS = ".lists"
"""Below the inventory folder: lists of hosts that an inventory plugin reads."""
MOST_BYTES = 8192
"""A file with one key is smaller."""
MOST_SHOWN = 3

# A key has a long run of letters and digits; words behind such a beginning have none (hf_mirrors_eu, xai-research-sparks).
_PREFIX = re.compile(
    r"(hf_|nvapi-|gsk_|r8_|npm_|dop_v1_|gh[pousr]_|github_pat_|glpat-|xox[abeposr]-|tvly-|xai-|pplx-|tskey-|AIza|AKIA|ASIA|ya29\.|eyJ)"
    r"(?=[A-Za-z0-9_.=-]*?(?:(?=[A-Za-z]*\d)[A-Za-z0-9]{12,}|[A-Za-z]{20,}))[A-Za-z0-9_.=-]{12,}"
)
_LONG_RUN = re.compile(r"[A-Za-z0-9]{16,}")
_MIXED_RUN = re.compile(r"(?=[A-Za-z]*\d+[A-Za-z])[A-Za-z0-9]{12,}")
_AWS = re.compile(r"(?:AKIA|ASIA)[0-9A-Z]{16}")
_BOT = re.compile(r"\d{8,10}:[A-Za-z0-9_-]{34,}")  # of Telegram
_HEX = re.compile(r"(?=.*\d)(?=.*[A-Fa-f])[0-9A-Fa-f]{32,}")
_BASE64 = re.compile(r"(?=.*\d)(?=.*[a-z])(?=.*[A-Z])(?=.*[A-Za-z0-9]{12})[A-Za-z0-9+/_-]{24,}={0,2}")
_CHANGES = re.compile(r"\d(?=[a-z])|[a-z](?=\d)")
_ANY_CHANGE = re.compile(r"\d(?=[A-Za-z])|[A-Za-z](?=\d)|[a-z](?=[A-Z])|[A-Z](?=[a-z])")
_ABOUT_SECRETS = re.compile(
    r"(?<![A-Za-z])(?:secrets?|tokens?|pass(?:w[a-z]*)?|credentials?|apikeys?|keys?|psk)(?![A-Za-z])", re.IGNORECASE
)


def looks_like_key(name: str) -> bool:
    """Tell whether a name is a key by its form: of a known issuer, or long and random. Names of machines are neither."""
    if _PREFIX.fullmatch(name) or _AWS.fullmatch(name) or _BOT.fullmatch(name) or _HEX.fullmatch(name):
        return True
    # Words that are written together change between capitals and others now and then, random signs all the time.
    if _BASE64.fullmatch(name) and 3 * len(_ANY_CHANGE.findall(name)) >= len(name):
        return True
    if name.startswith("sk-"):
        return bool(_LONG_RUN.search(name, 3) or _MIXED_RUN.search(name, 3))
    return len(name) >= 32 and name.isalnum() and name.islower() and len(_CHANGES.findall(name)) >= 8


def masked(name: str) -> str:
    """Return a name by which its owner knows it, and nobody else uses it."""
    known = _PREFIX.fullmatch(name)
    prefix = known[1] if known else "sk-" if name.startswith("sk-") else ""
    return f"{prefix}... ({len(name)} characters)"


def check(groups: Mapping[str, Iterable[str]], sources: Sources) -> str:
    """Return why a run has to stop: what in the inventory is no host; empty when all are. Nothing secret is in it.

    groups: names of all hosts by group, as Ansible has them. sources: where they come from.
    """
    names = {str(name) for group, hosts in groups.items() for name in (group, *hosts)}
    keys = {name for name in names if looks_like_key(name)}
    files: dict[str, str] = {}
    lists = []
    for path in sources.files():
        words = _words(path)
        taken = [word for word in words if word in names]
        if path.endswith(".csv"):
            if taken:
                lists.append(path)
        elif taken and (keys & set(taken) or (len(words) == 1 and _about_secrets(path, sources))):
            keys |= set(taken)
            files[path] = sources.reads(path) or str(Path(path).parent)
    if not keys and not lists:
        return ""
    said = []
    if keys:
        shown = sorted(masked(name) for name in keys)
        more = f" and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
        said.append(
            f"{len(keys)} of the inventory's hosts {'is a key or password' if len(keys) == 1 else 'are keys or passwords'} by the looks "
            f"of it: {', '.join(shown[:MOST_SHOWN])}{more}. Ansible reads each file of an inventory folder as a list of hosts."
        )
    said += [
        f"Move '{path}' to '{Path(source, KEYS, Path(path).name)}', which Ansible does not read, and name it so in the inventory."
        for path, source in sorted(files.items())
    ]
    if keys and not files:
        said.append(
            f"Move the file with it out of the inventory: into {KEYS} in the inventory folder, which Ansible does not read."
        )
    said += [
        f"The lines of '{path}' were taken for hosts. Move it to "
        f"'{Path(path).parent / LISTS / Path(path).name}', which Ansible does not read."
        for path in sorted(lists)
    ]
    return " ".join(said)


def _words(path: str) -> Sequence[str]:
    """Return the first word of each line of a small file, as Ansible's reader of INI takes it for a host."""
    try:
        if Path(path).stat().st_size > MOST_BYTES and not path.endswith(".csv"):
            return ()
        with Path(path).open(encoding="utf-8", errors="replace") as stream:
            lines = stream.read(MOST_BYTES).splitlines()
    except OSError:
        return ()
    return [line.split()[0] for line in lines if line.strip()]


def _about_secrets(path: str, sources: Sources) -> bool:
    """Whether a file has the name, or lies in a folder with the name, of one with secrets; what is written as YAML is none."""
    if path.endswith((".yml", ".yaml")):
        return False
    source = next((folder for folder in sources.folders if path.startswith(f"{folder}/")), "")
    return bool(_ABOUT_SECRETS.search(path[len(source) :]))
