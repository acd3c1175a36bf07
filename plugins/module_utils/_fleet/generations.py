# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generations: the numbered state documents of a host, with the images, models and receipts of each deployment. No I/O.

Receipts change with every proof and have separate files. Whether a unit was active makes no new generation.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from .._common.docker_run import read_docker_run, read_unit
from .._common.foreign_text import parse_json
from .._host import deployed, known_bad
from .._host.host_state import HostState

SCHEMA = 2
FOLDER = "/var/lib/dgxspark/generations"
RECEIPTS = "/var/lib/dgxspark/receipts"
TREES = ("/etc/dgxspark", "/usr/local/lib/dgxspark", "/usr/local/libexec/dgxspark")
"""Folders that hold nothing but deployed files."""
SECRETS = "/etc/dgxspark/secrets"
"""Generations hold no keys: a rollback does not bring back a rotated key."""
UNIT_PATTERN = "spark-*"
TAG = "dgxspark/generation"
"""Images of generations carry this name too; C(docker image prune) removes only images without a name."""
KEEP = 5
RUNNING = ("active", "reloading", "activating", "refreshing")


def checksum(value: Any) -> str:
    """Return a digest of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class Generation:
    """A numbered state of a host.

    state: the document, without contents. checksums: of its parts. units: C({enabled, active}) by name. images: C({ref, id}) by unit. models:
    C({repo, revision, commit}) or C({path}) by service. receipts: files. secrets: of each key file C({mark, owner, group, mode}); the mark, a
    slow hash, shows that a key changed. plan: settings for a proof. wanted: checksum of the deployed plan. facts: kernel, driver and DGX OS at the last proof.
    others: files in the folders of the collection that nothing had deployed.
    """

    number: int
    parent: int | None
    at: str
    state: HostState
    checksums: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)
    receipts: Mapping[str, Any] = field(default_factory=dict)
    proven: bool = False
    plan: Mapping[str, Any] = field(default_factory=dict)
    wanted: str = ""
    reason: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Any] = field(default_factory=dict)
    others: Sequence[str] = ()

    @property
    def identity(self) -> str:
        """A checksum of document, units enabled at boot, images and models. Equal generations have the same one."""
        enabled = {name: bool(unit["enabled"]) for name, unit in self.units.items()}
        images = {name: image.get("id") for name, image in self.images.items()}
        models = {
            name: [model.get("repo"), model.get("commit"), model.get("path")] for name, model in self.models.items()
        }
        return checksum([document_identity(self.state), enabled, images, models])


def document_identity(state: HostState) -> str:
    """Return a checksum of the rows of a document in any order."""
    tables = deployed.without_contents(state).to_dict()
    return checksum({kind: sorted(json.dumps(row, sort_keys=True) for row in rows) for kind, rows in tables.items()})


@dataclass(frozen=True)
class Current:
    """The generation of a host, None without one; the generation that a rollback left, and the target of an unfinished rollback."""

    number: int | None = None
    came_from: int | None = None
    restoring: int | None = None

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Current:
        """Return the content of the host's file."""
        return cls(content.get("number"), content.get("from"), content.get("restoring"))

    def to_dict(self) -> dict[str, int | None]:
        """Return the content of the host's file."""
        return {"number": self.number, "from": self.came_from, "restoring": self.restoring}


def facts_of(spark: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the facts that updates of DGX OS change. spark: of M(dgxspark.vllm.spark_info)."""
    return {name: version for name, version in known_bad.of_running(spark or {}).items() if version}


def load(text: str) -> Generation:
    """Parse the file of a generation.

    :raises ValueError: for a malformed file
    """
    content = parse_json(text, "the file of a generation")
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    if content.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {content.get('schema')!r}, expected {SCHEMA}")
    if not isinstance(content.get("number"), int) or not isinstance(content.get("state"), dict):
        raise ValueError("it has no number or no state")
    values: dict[str, Any] = {"parent": None, "at": ""}
    values.update({option.name: content[option.name] for option in fields(Generation) if content.get(option.name)})
    values["state"] = HostState.from_dict(content["state"])
    return Generation(**values)


def dump(generation: Generation) -> str:
    """Return the content of the file of a generation."""
    tables = deployed.without_contents(generation.state).to_dict()
    content = {"schema": SCHEMA, **asdict(replace(generation, state=HostState()))}
    content["state"] = {kind: rows for kind, rows in tables.items() if rows}
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def brief(digest: Any) -> str:
    """Return the beginning of an id, a digest or a commit."""
    return str(digest).rpartition(":")[2][:12]


def sha256_of(content: bytes) -> str:
    """Return the checksum of a content."""
    return hashlib.sha256(content).hexdigest()


def secret_mark(path: str, content: bytes) -> str:
    """Return a hash of a key file, slow enough to keep a short key from being guessed."""
    return hashlib.pbkdf2_hmac("sha256", content, path.encode(), 10_000, 16).hex()


def secret_changes(now: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the key files that are C(changed), C(missing) and C(new), and those with only another owner or mode, C(attributes)."""
    both = sorted(set(now) & set(recorded))
    changed = [path for path in both if recorded[path]["mark"] != now[path]["mark"]]
    attributes = [path for path in both if path not in changed and recorded[path] != now[path]]
    missing, new = sorted(set(recorded) - set(now)), sorted(set(now) - set(recorded))
    return {"changed": changed, "missing": missing, "new": new, "attributes": attributes}


def used(generations: Iterable[Generation]) -> tuple[set[str], set[str]]:
    """Return the checksums of the files and the ids of the images of generations."""
    checksums: set[str] = set()
    images: set[str] = set()
    for generation in generations:
        checksums |= {file.digest for file in generation.state.files if file.digest and not file.secret}
        checksums |= {receipt["sha256"] for receipt in generation.receipts.values() if receipt.get("sha256")}
        images |= {image["id"] for image in generation.images.values() if image.get("id")}
    return checksums, images


def tag_of(image_id: str) -> str:
    """Return the collection's name of an image."""
    return f"{TAG}:{image_id.rpartition(':')[2][:24]}"


def image_of(unit_text: str) -> str | None:
    """Return the image that the main process of a unit runs, None for a unit without a container."""
    try:
        run = read_unit(unit_text).run
    except ValueError:
        return None
    return run.image if run and run.image else None


def images_of_rank(settings: Mapping[str, Any]) -> list[str]:
    """Return the images of the containers that the supervisor of a rank runs, by its settings."""
    parts = (settings.get("rank") or {}).get("parts") or []
    runs = [read_docker_run([str(word) for word in part.get("argv") or []]) for part in parts]
    return [run.image for run in runs if run and run.image]


def service_names(paths: Iterable[str]) -> set[str]:
    """Return the services whose settings are among some files."""
    matches = (re.search(r"/etc/dgxspark/services/([^/]+)\.json$", path) for path in paths)
    return {match[1] for match in matches if match}
