# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking secrets out of texts that are to leave a host. Pure functions.

Two nets, one behind the other: the values that the host is known to keep secret, in every spelling they may have, and everything
that looks like a secret by its form or by the name before it. Where the two are in doubt, the text loses.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus

MARK = "<redacted>"
SHORTEST = 4
"""A value that is shorter is in too many words to be taken out everywhere."""

DEEPEST = 8

# Names are judged by their words: token is one, tokens and tokenizer are counts and programs.
_SECRET_WORDS = {
    "token", "secret", "secrets", "password", "passwd", "pwd", "passphrase", "apikey", "credential", "credentials", "auth",
    "authorization", "cookie", "bearer",
}  # fmt: skip
_KEY_BEFORE = {
    "api",
    "access",
    "secret",
    "private",
    "master",
    "auth",
    "client",
    "ngc",
    "hf",
    "openai",
    "encryption",
    "signing",
}
_NO_VALUE = {
    "file",
    "path",
    "dir",
    "folder",
    "url",
    "name",
    "names",
    "id",
    "ids",
    "type",
    "count",
    "limit",
    "mode",
    "env",
}
"""As the last word of a name they say that what follows is about a secret, and not the secret."""
_HARMLESS = re.compile(r"(?:-?[\d.]+|true|false|null|none|yes|no|on|off|\{|\[|\(|<redacted>.*)", re.IGNORECASE)

# From its beginning, which may follow an escaped end of a line, and of bounded length: a log may have a megabyte without a blank.
_NAME = r"(?:(?<![\w.\-\\])|(?<=\\[nrt]))-{0,2}[A-Za-z_][A-Za-z0-9_.\-]{0,80}"
# "name": "value"   name = value   name: 'value'   NAME=value
_PAIR = re.compile(
    rf"(?P<name>{_NAME})(?P<between>\\?[\"']?\s*[=:]\s*)"
    r"(?P<value>\\?\"(?:[^\"\\]|\\(?!\").)*\\?\"|'[^']*'|(?:Bearer |Basic |Token )?[^\s,;\"'&)}\]]+)",
)
# --name value   "--name", "value"   --name=value is a pair
_OPTION = re.compile(rf"(?P<name>{_NAME})(?P<between>\s+|[\"']\s*,\s*[\"'])(?P<value>[^\s\"',]+)")
_FORMS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"(?i)(?<=\bbearer )[A-Za-z0-9._~+/=-]{4,}"),
    re.compile(r"(?i)(?<=\bbasic )[A-Za-z0-9+/]{8,}={0,2}"),
    re.compile(r"\bhf_[A-Za-z0-9]{8,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{6,}"),
    re.compile(r"\bnvapi-[A-Za-z0-9_-]{8,}"),
    re.compile(r"\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_[A-Za-z0-9_]{20,}|\bglpat-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bxox[abposr]-[A-Za-z0-9-]{8,}"),
    re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    re.compile(r"\b\d{8,10}:[A-Za-z0-9_-]{35}\b"),  # a bot of Telegram
    re.compile(r"(?<=://)[^/\s:@\"']*:[^/\s@\"']+(?=@)"),
)


def is_secret_name(name: str) -> bool:
    """Tell by its words whether the value of a name is a secret: HF_TOKEN and apiKey are, max_tokens and api_key_file are not."""
    parts = [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    if not parts or parts[-1] in _NO_VALUE:
        return False
    if any(part in _SECRET_WORDS for part in parts):
        return True
    return any(part == "key" and before in _KEY_BEFORE for before, part in zip(parts, parts[1:]))


def is_secret_variable(name: str) -> bool:
    """The same for a variable of an environment, where anything with KEY is one, except what says where it lies."""
    parts = [part for part in name.upper().split("_") if part]
    if parts and parts[-1] in ("FILE", "PATH", "DIR"):
        return False
    return is_secret_name(name) or any(
        part in ("KEY", "KEYS", "TOKEN", "SECRET", "PAT") or part.startswith(("PASSW", "CRED")) for part in parts
    )


def spellings(value: str) -> set[str]:
    """Return a value as it may stand in a text: plain, in JSON, in a URL, in base64; of several lines each by itself, too."""
    found: set[str] = set()
    for part in {value, value.strip(), *value.split("\n")}:
        plain = part.strip()
        if len(plain) < SHORTEST or plain.startswith("-----"):
            continue
        raw = plain.encode()
        escaped = {json.dumps(plain, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
        # A log of JSON in JSON has it escaped twice.
        twice = {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for text in escaped for ascii_only in (True, False)}
        found |= {plain, repr(plain)[1:-1], quote(plain, safe=""), quote_plus(plain)} | escaped | twice
        # Of base64 only the part that does not depend on what stands before and after it in the same word.
        for shift in range(3):
            coded = base64.b64encode(b"\0" * shift + raw).decode()
            first = -(-shift * 8 // 6)
            stable = coded[first : (shift + len(raw)) * 8 // 6]
            if len(stable) >= 8:
                found |= {stable, stable.replace("+", "-").replace("/", "_")}
    return found


class Redactor:
    """Takes secrets out of texts; counts how many it took."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {spelling for secret in secrets for spelling in spellings(secret)}
        # The longest first: one value may be a part of another.
        ordered = sorted(known, key=lambda text: (-len(text), text))
        self._known = re.compile("|".join(re.escape(text) for text in ordered)) if ordered else None
        self.taken = 0

    def clean(self, text: str) -> str:
        """Return a text without what is, or looks like, a secret."""
        if self._known:
            text = self._known.sub(self._mark, text)
        for form in _FORMS:
            text = form.sub(self._mark, text)
        text = _OPTION.sub(self._option, text)
        return _PAIR.sub(self._pair, text)

    def _mark(self, _found: re.Match[str]) -> str:
        self.taken += 1
        return MARK

    def _pair(self, found: re.Match[str], depth: int = 0) -> str:
        value = found["value"]
        quoted = re.match(r"\\?[\"']", value)
        inner = value[quoted.end() : -quoted.end()] if quoted and len(value) >= 2 * quoted.end() else value
        edge = quoted[0] if quoted and inner is not value else ""
        if not is_secret_name(found["name"]):
            # A text may have pairs of its own, as a log in JSON has. What is nested without end is no text.
            if ":" in inner or "=" in inner:
                deeper = depth + 1
                inner = _PAIR.sub(lambda one: self._pair(one, deeper), inner) if depth < DEEPEST else self._mark(found)
            return f"{found['name']}{found['between']}{edge}{inner}{edge}"
        if not inner or _HARMLESS.fullmatch(inner) or inner.startswith("/"):
            return found[0]
        self.taken += 1
        return f"{found['name']}{found['between']}{edge}{MARK}{edge}"

    def _option(self, found: re.Match[str]) -> str:
        value = found["value"]
        plain = not found["name"].startswith("-")
        if plain or not is_secret_name(found["name"]) or _HARMLESS.fullmatch(value) or value.startswith(("-", "/")):
            return found[0]
        self.taken += 1
        return f"{found['name']}{found['between']}{MARK}"


def clean_environment(variables: Iterable[str]) -> list[str]:
    """Return NAME=VALUE lines with the values of secrets taken out."""
    found = []
    for line in variables:
        name, equals, value = line.partition("=")
        found.append(f"{name}={MARK}" if equals and value and is_secret_variable(name.strip()) else line)
    return found


def secrets_of_environment(variables: Iterable[str]) -> list[str]:
    """Return the values that C(clean_environment) would take out, so that they are taken out elsewhere too."""
    pairs = (line.partition("=") for line in variables)
    found = (value.strip().strip("\"'") for name, equals, value in pairs if equals and is_secret_variable(name.strip()))
    return [value for value in found if value and not _HARMLESS.fullmatch(value) and not value.startswith("/")]


def clean_inspect(text: str) -> str:
    """Return the JSON of C(docker inspect) without the secrets of its environments; empty when it is none."""
    try:
        items = json.loads(text)
    except ValueError:
        return ""
    for item in items if isinstance(items, list) else []:
        config = item.get("Config") if isinstance(item, Mapping) else None
        if isinstance(config, dict) and isinstance(config.get("Env"), list):
            config["Env"] = clean_environment(str(line) for line in config["Env"])
    return json.dumps(items, indent=1, sort_keys=True)
