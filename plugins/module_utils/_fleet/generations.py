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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
SUMMARY_FIELDS = ("number", "parent", "at", "proven", "reason", "wanted", "checksums")
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
    """Parse the file of a generation. Raises ValueError for a malformed file."""
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


# --- rollbacks and reports


def ancestors(generations: Mapping[int, Generation], number: int | None) -> list[int]:
    """Return a generation and its kept ancestors, nearest first."""
    numbers: list[int] = []
    while number is not None and number in generations and number not in numbers:
        numbers.append(number)
        number = generations[number].parent
    if number is not None and number not in generations:
        # Its parent was removed; older numbers are the best guess.
        numbers += sorted((older for older in generations if older < number and older not in numbers), reverse=True)
    return numbers


def restorable(generations: Mapping[int, Generation], number: int | None) -> int | None:
    """Return the nearest proven generation, beginning with the given one."""
    return next((ancestor for ancestor in ancestors(generations, number) if generations[ancestor].proven), None)


def target(
    generations: Mapping[int, Generation], current: Current, is_unchanged: bool, requested: int = 0
) -> tuple[int | None, str]:
    """Return the generation to go back to, or the reason without one.

    A changed host goes back to its current generation if that is proven. A host that was rolled back stays there: the same
    command twice goes back once.

    :param requested: number of a generation, 0 for the last proven one
    """
    kept_numbers = _numbers_text(generations)
    if requested:
        if requested in generations:
            return requested, ""
        return None, f"generation {requested} is not kept on this host (kept: {kept_numbers}); name one of these"
    if not generations:
        return None, "this host has no generation yet; site.yml or rollout.yml records the first one"
    if current.restoring in generations:
        return current.restoring, ""
    if is_unchanged and current.came_from is not None:
        return current.number, ""
    start = current.number
    if is_unchanged:
        start = generations[start].parent if start is not None and start in generations else None
    number = restorable(generations, start)
    if number is not None:
        return number, ""
    proven = _numbers_text(number for number in generations if generations[number].proven)
    return None, (
        f"no proven generation before the present one is kept (kept: {kept_numbers}; proven: {proven}); "
        "name one by -e generation=N, or deploy with site.yml"
    )


def _numbers_text(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers)) or "none"


def kept(generations: Mapping[int, Generation], current: int | None, keep: int) -> set[int]:
    """Return the generations to keep: the newest, the current one, and the target of a rollback from there."""
    numbers = set(sorted(generations, reverse=True)[: max(keep, 1)])
    if current is not None and current in generations:
        before = restorable(generations, generations[current].parent)
        numbers |= {current} if before is None else {current, before}
    return numbers


def _planned_services(generations: Iterable[Generation | None]) -> Iterator[Mapping[str, Any]]:
    for generation in generations:
        yield from (generation.plan.get("services") or []) if generation else []


def gateways(generations: Iterable[Generation | None]) -> list[dict[str, str]]:
    """Return the backends of gateways for the services of generations: C([{name, unit, host, backend}])."""
    backends: dict[tuple[str, str], dict[str, str]] = {}
    for service in _planned_services(generations):
        gateway = service.get("gateway")
        if gateway:
            place = {key: gateway[key] for key in ("host", "backend")}
            backends[place["host"], place["backend"]] = {"name": service["name"], "unit": service["unit"], **place}
    return [backends[key] for key in sorted(backends)]


def clusters(generations: Iterable[Generation | None]) -> dict[str, list[str]]:
    """Return the hosts of each cluster that generations have a rank of."""
    spans = [service["cluster"] for service in _planned_services(generations) if service.get("cluster")]
    return united((span["name"], span["hosts"]) for span in spans)


def united(clusters_hosts: Iterable[tuple[str, Iterable[str]]]) -> dict[str, list[str]]:
    """Return all hosts of each cluster, in their order."""
    hosts: dict[str, dict[str, None]] = {}
    for name, members in clusters_hosts:
        hosts.setdefault(name, {}).update(dict.fromkeys(members))
    return {name: list(members) for name, members in hosts.items()}


def summary(generation: Generation) -> dict[str, Any]:
    """Return a generation for reports: image and model of each service."""
    planned = {service.get("name"): service for service in generation.plan.get("services") or []}
    services = {}
    for name in sorted(service_names(file.path for file in generation.state.files)):
        model = generation.models.get(name) or {}
        image = generation.images.get(f"spark-{name}.service") or {}
        services[name] = {
            # The plan has the readable name; the unit may have only a digest.
            "image": ((planned.get(name) or {}).get("image") or {}).get("ref") or image.get("ref"),
            "image_id": image.get("id"),
            "model": model.get("repo") or model.get("path"),
            "commit": model.get("commit"),
        }
    return {**{name: getattr(generation, name) for name in SUMMARY_FIELDS}, "services": services}
