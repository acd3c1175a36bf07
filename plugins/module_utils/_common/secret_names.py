# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell by a name whether its value is a secret. Hosts compile this file at each run, so it imports the standard library alone."""

from __future__ import annotations

import re
from functools import lru_cache

# Names are judged by their words: token is one, tokens and tokenizer are counts and programs.
_SECRET_WORDS = {
    "token", "secret", "secrets", "password", "passwords", "passwd", "pwd", "passphrase", "sshpass", "requirepass", "masterauth",
    "apikey", "apikeys", "credential", "credentials", "auth", "authorization", "cookie", "bearer", "psk", "jwt", "otp",
}  # fmt: skip
_SECRET_ENDS = ("password", "passwd", "passphrase", "secret", "apikey", "authtoken", "accesstoken", "hftoken")
_KEY_BEFORE = {
    "api", "access", "secret", "private", "master", "auth", "client", "ngc", "hf", "openai", "encryption", "signing", "account",
    "shared", "storage", "salt", "ssh", "service", "license", "session", "webhook", "deploy", "admin", "root", "jwt", "fernet",
    "preshared", "pre", "network", "wpa", "recovery", "backup", "join", "cluster", "activation",
}  # fmt: skip
NO_VALUE = {
    "file", "path", "dir", "folder", "url", "name", "names", "id", "ids", "type", "count", "limit", "mode", "env", "ms", "seconds",
    "rate", "latency", "size", "length", "usage", "time",
}  # fmt: skip
"""As the last word of a name they say that what follows is about a secret, and not the secret."""
_ABOUT_ONE = ("FILE", "PATH", "DIR", "PREFIX", "SUFFIX", "NAME", "TYPE", "MODE", "COUNT", "LENGTH", "SIZE", "THRESHOLD")
"""The same of variables; an ID of a key is kept back like the key."""
_TEXT_TOKENS = {
    "eos", "bos", "pad", "unk", "sep", "cls", "mask", "image", "video", "audio", "think", "start", "end", "stop", "special", "draft", "boi", "eoi",
}  # fmt: skip
"""Tokens of a text, as a model's config names them (eos_token)."""


def words_of(name: str) -> list[str]:
    """Return the words of a name, in lower case."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def is_secret_name(name: str) -> bool:
    """Tell by its words whether the value of a name is a secret: HF_TOKEN and apiKey are, max_tokens and api_key_file are not."""
    parts = words_of(name)
    if not parts or parts[-1] in NO_VALUE:
        return False
    if parts[-1] == "pass" or any(part in _SECRET_WORDS or part.endswith(_SECRET_ENDS) for part in parts):
        return True
    return any(part in ("key", "keys") and before in _KEY_BEFORE for before, part in zip(parts, parts[1:]))


def is_secret_variable(name: str) -> bool:
    """Tell whether a variable of an environment holds a secret: every KEY does, except for names of paths and the like."""
    parts = [part for part in name.upper().split("_") if part]
    if parts and parts[-1] in _ABOUT_ONE:
        return False
    return is_secret_name(name) or any(
        part in ("KEY", "KEYS", "TOKEN", "SECRET", "PAT") or part.startswith(("PASSW", "CRED")) for part in parts
    )


@lru_cache(maxsize=4096)
def is_secret_option(name: str) -> bool:
    """Tell whether an option of a program, or a key of its settings, holds a secret; the last words decide: token-budget does not."""
    parts = words_of(name)
    if not parts:
        return False
    last = "_".join(parts[-2:])
    if parts[-1] == "token" and parts[-2:-1] and parts[-2] in _TEXT_TOKENS:
        return False
    return is_secret_name(parts[-1]) or (parts[-1] in ("pass", "key") and is_secret_name(last))
