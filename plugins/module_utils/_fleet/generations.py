# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generations: the numbered state documents of a host, and the decision which one to go back to. Decisions, without doing anything.

A C(Generation) is what was deployed: the state document, the images and models that it led to, and what was known of it. Receipts change with
every proof and are kept beside the document, and whether a unit was active at the time makes no other generation.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from .._common.docker_run import read_docker_run, read_unit
from .._common.foreign_text import parse_json
from .._host import deployed
from .._host.host_state import HostState, Unit

SCHEMA = 2
FOLDER = "/var/lib/dgxspark/generations"
RECEIPTS = "/var/lib/dgxspark/receipts"
TREES = ("/etc/dgxspark", "/usr/local/lib/dgxspark", "/usr/local/libexec/dgxspark")
"""Folders in which nothing but deployed files belongs."""
SECRETS = "/etc/dgxspark/secrets"
"""Keys are no part of a generation: what was rotated does not come back with it."""
SYSTEM = "/etc/systemd/system"
UNIT_PATTERN = "spark-*"
TAG = "dgxspark/generation"
"""Images of generations carry this name too, so that C(docker image prune) leaves them alone."""
KEEP = 5
RUNNING = ("active", "reloading", "activating", "refreshing")
# Lines of a unit whose programs are no part of what runs: a newer helper restarts no engine.
AROUND = ("ExecStartPre", "ExecStartPost", "ExecStop", "ExecStopPost", "ExecReload", "ExecCondition")


def checksum(value: Any) -> str:
    """Return a digest of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class Generation:
    """A numbered state of a host, as its file has it.

    state: the document, without contents. checksums: of its parts. units: C({enabled, active}) by name. images: C({ref, id}) by unit. models:
    C({repo, revision, commit}) or C({path}) by service. receipts: files. secrets: of key files owner, mode and a slow hash, C({mark, owner,
    group, mode}), by which it can be said that one changed; their contents are nowhere. plan: what the services are proved by. wanted: the
    mark of the plan that it came from. facts: kernel, driver and DGX OS as they were when it was proved last. others: files among those of
    the collection that nothing had deployed. held_secrets: it was read from a file with keys.
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
    held_secrets: bool = False

    @property
    def identity(self) -> str:
        """What two generations are equal by: document, what starts at boot, images and models."""
        enabled = {name: bool(unit["enabled"]) for name, unit in self.units.items()}
        images = {name: entry.get("id") for name, entry in self.images.items()}
        models = {
            name: [entry.get("repo"), entry.get("commit"), entry.get("path")] for name, entry in self.models.items()
        }
        return checksum([document_identity(self.state), enabled, images, models])


def document_identity(state: HostState) -> str:
    """Return what two documents are equal by: their rows, in any order."""
    rows = deployed.without_contents(state).to_dict()
    return checksum({kind: sorted(json.dumps(row, sort_keys=True) for row in listed) for kind, listed in rows.items()})


@dataclass(frozen=True)
class Current:
    """Which generation a host is, None without one, from which it was taken back, and to which it is being."""

    number: int | None = None
    came_from: int | None = None
    restoring: int | None = None

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Current:
        """Return what the file of a host says."""
        return cls(found.get("number"), found.get("from"), found.get("restoring"))

    def plain(self) -> dict[str, int | None]:
        """Return it as the file has it."""
        return {"number": self.number, "from": self.came_from, "restoring": self.restoring}


def facts_of(spark: Mapping[str, Any] | None) -> dict[str, str]:
    """Return what a generation keeps of C(spark) of M(dgxspark.vllm.spark_info): what updates of DGX OS change."""
    spark = spark or {}
    found = {
        "kernel": spark.get("kernel"),
        "driver": (spark.get("gpu") or {}).get("driver_version"),
        "dgx_os": (spark.get("dgx_os") or {}).get("version"),
    }
    return {name: str(value) for name, value in found.items() if value}


def load(text: str, stored: Callable[[str], str] = lambda _digest: "") -> Generation:
    """Parse the file of a generation.

    :param text: content of the file
    :param stored: returns the text of a file in the store by its checksum; it is asked for the units of a generation of schema 1
    :returns: the generation
    :raises ValueError: saying what is wrong with the file
    """
    found = parse_json(text, "the file of a generation")
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    if found.get("schema") not in (1, SCHEMA):
        raise ValueError(f"its schema is {found.get('schema')!r}, expected {SCHEMA}")
    if not isinstance(found.get("number"), int) or not isinstance(found.get("state"), dict):
        raise ValueError("it has no number or no state")
    own = _from_schema_1(found, stored) if found["schema"] == 1 else {"state": HostState.from_dict(found["state"])}
    kept: dict[str, Any] = {each.name: found[each.name] for each in fields(Generation) if found.get(each.name)}
    return Generation(**{"parent": None, "at": "", **kept, **own})


def _from_schema_1(found: Mapping[str, Any], stored: Callable[[str], str]) -> dict[str, Any]:
    """Return the document, units, images and models of a generation of schema 1, which lists what lay on the disk.

    Of a release whose generations held keys, only the names of the keys are taken over.
    """
    body = {name: found["state"].get(name) or {} for name in ("files", "folders", "units", "images", "models")}
    secrets, held = found.get("secrets"), False
    if not isinstance(secrets, dict):
        secrets = {path: {"mark": None} for path in body["files"] if is_secret(path)}
        held = bool(secrets)
    # Without links: nothing of this collection makes any there.
    body["files"] = {
        path: entry for path, entry in body["files"].items() if path not in secrets and entry.get("sha256")
    }
    state = deployed.from_schema_1({"state": body, "secrets": secrets})
    services = service_names(body["files"])
    units = []
    texts = {path.rpartition("/")[2]: entry["sha256"] for path, entry in body["files"].items() if f"{SYSTEM}/" in path}
    for unit in state.units:
        text = stored(texts.get(unit.name, ""))
        concerned = tuple(sorted(path for path in body["files"] if concerns(unit.name, text, path)))
        units.append(replace(unit, state=_old_state(body["units"][unit.name], unit, services), restart_on=concerned))
    shown = {name: body[name] for name in ("units", "images", "models")}
    return {"state": replace(state, units=tuple(units)), "secrets": secrets, "held_secrets": held, **shown}


def _old_state(entry: Mapping[str, Any], unit: Unit, services: set[str]) -> str:
    """Return the state that a unit of a generation of schema 1 was to have."""
    if entry.get("active") in RUNNING or entry.get("enabled"):
        return "started"
    # One of a set of which one runs would keep the memory that the others need.
    return "stopped" if re.sub(r"^spark-|\.service$", "", unit.name) in services else "triggered"


def sha256_of(content: bytes) -> str:
    """Return the checksum of a content."""
    return hashlib.sha256(content).hexdigest()


def is_secret(path: str) -> bool:
    """Tell whether a file holds a key."""
    return path.startswith(f"{SECRETS}/")


def secret_mark(path: str, content: bytes) -> str:
    """Return what tells one content of a key file from another; slow, so that a short key cannot be guessed by it."""
    return hashlib.pbkdf2_hmac("sha256", content, path.encode(), 10_000, 16).hex()


def secret_changes(
    now: Mapping[str, Any], then: Mapping[str, Any]
) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return the key files that have changed, are gone, have come, and have another owner or mode alone.

    One whose mark was not kept is not known to have changed.
    """
    both = sorted(set(now) & set(then))
    changed = [path for path in both if then[path].get("mark") and then[path]["mark"] != now[path]["mark"]]
    attributes = [path for path in both if path not in changed and then[path].get("mark") and then[path] != now[path]]
    return changed, sorted(set(then) - set(now)), sorted(set(now) - set(then)), attributes


def dump(manifest: Generation) -> str:
    """Return the text of its file."""
    rows = {kind: listed for kind, listed in deployed.without_contents(manifest.state).to_dict().items() if listed}
    found = {"schema": SCHEMA, **asdict(replace(manifest, state=HostState())), "state": rows}
    found.pop("held_secrets")
    return json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


# --- which one ---------------------------------------------------------------------------------------------------------


def ancestors(manifests: Mapping[int, Generation], number: int | None) -> list[int]:
    """Return a generation and those it came from, as far as they are kept; nearest first."""
    found: list[int] = []
    while number is not None and number in manifests and number not in found:
        found.append(number)
        number = manifests[number].parent
    if number is not None and number not in manifests:
        # What it came from is not kept any more: those before that by number are what is left.
        found += sorted((each for each in manifests if each < number and each not in found), reverse=True)
    return found


def restorable(manifests: Mapping[int, Generation], number: int | None) -> int | None:
    """Return the nearest proven generation, the one asked about first."""
    return next((each for each in ancestors(manifests, number) if manifests[each].proven), None)


def target(manifests: Mapping[int, Generation], current: Current, same: bool, asked: int = 0) -> tuple[int | None, str]:
    """Return the generation to go back to, and why there is none.

    same: whether the host still is what that generation says. What is on a host and was
    never recorded comes after the current generation, so that one is the one before it. A host that was taken back stays where
    it is unless a number says otherwise: the same command twice goes back once.
    """
    kept = ", ".join(str(each) for each in sorted(manifests)) or "none"
    if asked:
        if asked in manifests:
            return asked, ""
        return None, f"generation {asked} is not kept on this host (kept: {kept}); name one of these"
    if not manifests:
        return None, "this host has no generation yet; site.yml or rollout.yml records the first one"
    number = current.number
    if current.restoring in manifests:
        return current.restoring, ""
    if not same:
        found = restorable(manifests, number)
    elif current.came_from is not None:
        return number, ""
    else:
        found = restorable(manifests, manifests[number].parent) if number is not None and number in manifests else None
    if found is None:
        return None, (
            f"no proven generation before the present one is kept (kept: {kept}; "
            f"proven: {', '.join(str(each) for each in sorted(manifests) if manifests[each].proven) or 'none'}); "
            "name one by -e generation=N, or deploy with site.yml"
        )
    return found, ""


def kept(manifests: Mapping[int, Generation], current: int | None, keep: int) -> set[int]:
    """Return the generations that stay: the newest, the current one, and the one to go back to from there."""
    found = set(sorted(manifests, reverse=True)[: max(keep, 1)])
    if current in manifests:
        found.add(int(current or 0))
        before = restorable(manifests, manifests[int(current or 0)].parent)
        if before is not None:
            found.add(before)
    return found


def used(manifests: Iterable[Generation]) -> tuple[set[str], set[str]]:
    """Return the sums of the files and the ids of the images that generations name."""
    sums: set[str] = set()
    images: set[str] = set()
    for manifest in manifests:
        sums |= {file.digest for file in manifest.state.files if file.digest and not file.secret}
        sums |= {entry["sha256"] for entry in manifest.receipts.values() if entry.get("sha256")}
        images |= {entry["id"] for entry in manifest.images.values() if entry.get("id")}
    return sums, images


def tag_of(image_id: str) -> str:
    """Return our own name of an image."""
    return f"{TAG}:{image_id.rpartition(':')[2][:24]}"


# --- what a unit runs -----------------------------------------------------------------------------------------------------


def image_of(text: str) -> str | None:
    """Return the image that the main process of a unit runs, None when it runs no container."""
    try:
        run = read_unit(text).run
    except ValueError:
        return None
    return run.image if run and run.image else None


def images_of_rank(settings: Mapping[str, Any]) -> list[str]:
    """Return the images of a rank, whose containers its supervisor runs by its settings."""
    found = []
    for part in (settings.get("rank") or {}).get("parts") or []:
        run = read_docker_run([str(word) for word in part.get("argv") or []])
        if run and run.image:
            found.append(run.image)
    return found


def concerns(unit: str, text: str, path: str) -> bool:
    """Tell whether a unit has to be restarted for a file: its own definition, or what its main process is told to read."""
    folder = f"{SYSTEM}/{unit}"
    if path == folder or path.startswith(f"{folder}.d/"):
        return True
    own = re.fullmatch(r"spark-(.+)\.service", unit)
    if own:
        name = own[1]
        if path == f"/etc/dgxspark/env/{name}.env" or path.startswith(
            (f"/etc/dgxspark/secrets/{name}/", f"/etc/dgxspark/files/{name}/")
        ):
            return True
        # A supervisor reads what it runs from there; the helper of other units reads it at each start alone.
        if path == f"/etc/dgxspark/services/{name}.json":
            return "spark_rank.py" in text
    lines = [
        line
        for line in re.sub(r"\\\n", " ", text).splitlines()
        if not line.strip().startswith(tuple(f"{key}=" for key in AROUND)) and not line.strip().startswith("#")
    ]
    named = re.findall(r"/(?:etc|usr/local/lib|usr/local/libexec)/dgxspark/[^\s\"',:=]+", "\n".join(lines))
    return any(path == each or path.startswith(each.rstrip("/") + "/") for each in named)


# --- services, gateways and clusters of generations --------------------------------------------------------------------


def service_names(files: Iterable[str]) -> set[str]:
    """Return the services that have settings among these files."""
    found = (re.search(r"/etc/dgxspark/services/([^/]+)\.json$", path) for path in files)
    return {match[1] for match in found if match}


def gateways(manifests: Iterable[Generation | None]) -> list[dict[str, str]]:
    """Return by what names gateways know the services of generations: C([{name, unit, host, backend}])."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for manifest in manifests:
        for service in (manifest.plan.get("services") or []) if manifest else []:
            known = service.get("gateway")
            if known:
                found[known["host"], known["backend"]] = {
                    "name": service["name"],
                    "unit": service["unit"],
                    "host": known["host"],
                    "backend": known["backend"],
                }
    return [found[key] for key in sorted(found)]


def clusters(manifests: Iterable[Generation | None]) -> dict[str, list[str]]:
    """Return the hosts of each cluster that generations have a part of."""
    found: dict[str, list[str]] = {}
    for manifest in manifests:
        for service in (manifest.plan.get("services") or []) if manifest else []:
            cluster = service.get("cluster")
            if cluster:
                known = found.setdefault(cluster["name"], [])
                known += [host for host in cluster["hosts"] if host not in known]
    return found


def summary(manifest: Generation) -> dict[str, Any]:
    """Return what people want to know of a generation: which service runs what."""
    services = {}
    named = {service.get("name"): service for service in manifest.plan.get("services") or []}
    for name in sorted(service_names(file.path for file in manifest.state.files)):
        model = manifest.models.get(name) or {}
        image = manifest.images.get(f"spark-{name}.service") or {}
        planned = named.get(name) or {}
        services[name] = {
            # The name that people know, where the unit has the digest alone.
            "image": (planned.get("image") or {}).get("ref") or image.get("ref"),
            "image_id": image.get("id"),
            "model": model.get("repo") or model.get("path"),
            "commit": model.get("commit"),
        }
    return {
        **{
            key: getattr(manifest, key) for key in ("number", "parent", "at", "proven", "reason", "wanted", "checksums")
        },
        "services": services,
    }
