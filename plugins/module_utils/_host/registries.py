# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts of Docker at registries: what C(spark_registries) may hold, and which entries of Docker's settings are ours.

A note says who was logged in where, with a mark of the password: a salted digest, so that another password is noticed, an
entry that a person made since is left alone, and the note gives nothing away.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from .._common import schema, validation
from .._common.schema import Key

KEYS: dict[str, Key] = {
    "registry": Key(str, None, "name as in image references: nvcr.io, docker.io, registry.lan:5000"),
    "user": Key(str, "$oauthtoken", "account; $oauthtoken for NGC keys"),
    "password_file": Key(str, None, "file on the controller with only the password or key"),
}
"""Keys of an entry of C(spark_registries)."""
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?\Z")
USER = re.compile(r"[^\s:\x00-\x1f\x7f-]{1,1}[^\s:\x00-\x1f\x7f]{0,254}\Z")
# As Docker's client keeps the account of Docker Hub.
STORED_AS = {"docker.io": "https://index.docker.io/v1/"}
ROUNDS = 100_000


def read(where: str, value: Any) -> tuple[list[dict[str, str]], list[str]]:
    """Return the entries of C(spark_registries), and messages about wrong ones. where: begins the messages."""
    problems = validation.Problems(where)
    entries: list[dict[str, str]] = []
    for number, body in enumerate(problems.mappings(value, "spark_registries")):
        entry = schema.filled(problems, body, KEYS, f"spark_registries[{number}]")
        for name in ("registry", "password_file"):
            if not entry[name]:
                problems.add(f"spark_registries[{number}] has no '{name}'.")
        if entry["registry"] and not NAME.match(str(entry["registry"])):
            problems.add(
                f"spark_registries[{number}].registry is '{entry['registry']}'; write nvcr.io or registry.lan:5000."
            )
        if not USER.match(str(entry["user"])):
            problems.add(f"spark_registries[{number}].user is '{entry['user']}'; it is one word without a colon.")
        entries.append(entry)
    names = [entry["registry"] for entry in entries if entry["registry"]]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add(f"'spark_registries' names {name} twice; Docker keeps one account a registry.")
    return entries, problems.messages


def stored_as(registry: str) -> str:
    """Return the name under which Docker's client keeps the account of a registry."""
    return STORED_AS.get(registry, registry)


def mark(user: str, password: str, salt: str) -> str:
    """Return a digest that identifies an account without revealing its password. salt: random, different in each note."""
    return hashlib.pbkdf2_hmac("sha256", f"{user}:{password}".encode(), salt.encode(), ROUNDS).hex()


def stored_account(config: Mapping[str, Any], registry: str) -> tuple[str, str] | None:
    """Return user and password of Docker's account at a registry, empty in a credential store; None without one. config: of config.json."""
    auths = config.get("auths")
    entry = auths.get(stored_as(registry)) if isinstance(auths, Mapping) else None
    if not isinstance(entry, Mapping):
        return None
    try:
        user, _colon, password = base64.b64decode(str(entry.get("auth") or ""), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return user, password.rstrip("\0")


def is_noted(config: Mapping[str, Any], note: Mapping[str, Any], registry: str) -> bool:
    """Tell whether Docker's account at a registry, or one in a credential store, is the recorded one. note: C({user, salt, mark})."""
    account = stored_account(config, registry)
    if account is None or account == ("", ""):
        return account is not None
    return mark(*account, str(note.get("salt"))) == note.get("mark")
