# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How hosts differ from what was deployed on them, from the plan and from the lock file. Pure functions.

Three things are compared: what a host is now, its current generation (C(generations.py), what the last run that finished left there),
and the plan of this run, in which the lock file is. What of the last two does not agree is said without asking a host.
Findings name files, options and variables; values of them are not in it, since some are secret.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .._common.docker_run import DockerRun, read_docker_run
from .._common.findings import SEVERITIES, Finding
from .._common.plain_data import view
from .._host import deployed
from .._host.docker_facts import FINGERPRINT_LABEL
from .._host.host_state import HostState
from .._plan import picture
from .._plan.planned import PlannedService
from . import generations
from .fleet_status import short

SCHEMA = 1
UP = (*generations.RUNNING, "queued")
FILES = ("changed", "missing", "added", "attributes")
"""Kinds of differences between files and what was deployed."""
NO_ROWS = deployed.checksum(HostState())
MOST_NAMES = 4
"""Options, files and hosts that are named in one message."""
# What a plan says of the lock file that is no difference between the two: whether a name may be deployed at all.
NO_DRIFT = ("lock.moving",)
FACTS = {"kernel": "kernel", "driver": "driver", "dgx_os": "DGX OS"}
DEPLOY = "Run site.yml"
OWN = re.compile(
    r"/etc/systemd/system/spark-(?P<unit>[^/]+?)\.service(?:\.d/.*)?"
    r"|/etc/dgxspark/(?:env|services)/(?P<file>[^/]+)\.(?:env|json)"
    r"|/etc/dgxspark/(?:secrets|files)/(?P<folder>[^/]+)/.*"
)


@dataclass(frozen=True)
class Unit:
    """A unit as systemd has it; one whose start waits for its turn is C(queued)."""

    active: str | None = None
    enabled: bool | None = None
    masked: bool = False

    @property
    def up(self) -> bool:
        """Whether it runs, or is about to."""
        return self.active in UP


@dataclass(frozen=True)
class Container:
    """A container that runs. managed: whether its unit started it. fingerprint: of what it was started from."""

    image_id: str | None = None
    managed: bool = False
    fingerprint: str | None = None


@dataclass(frozen=True)
class Spark:
    """A host as it is now: deployed services, units and containers by name. stopped: why the guard of the memory stopped services. relays:
    whether it passes on what is for others of a ring. versions: of C(generations.facts_of)."""

    services: Sequence[str] = ()
    units: Mapping[str, Unit] = field(default_factory=dict)
    containers: Mapping[str, Container] = field(default_factory=dict)
    stopped: Mapping[str, str] = field(default_factory=dict)
    relays: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, spark: Mapping[str, Any]) -> Spark:
        """Return what C(spark) of M(dgxspark.vllm.spark_info) says."""
        units = {
            unit["name"]: Unit(
                "queued" if unit.get("queued") else str(unit.get("active_state")),
                unit.get("enabled"),
                unit.get("load_state") == "masked",
            )
            for unit in spark.get("units") or []
        }
        listed = [each for each in spark.get("containers") or [] if each.get("state") == "running"]
        return cls(
            services=spark.get("services") or [],
            units=units,
            containers={each["name"]: view(Container, each) for each in listed},
            stopped=(spark.get("guard") or {}).get("stopped") or {},
            relays=bool((spark.get("fabric") or {}).get("relay")),
            versions=generations.facts_of(spark),
        )


@dataclass(frozen=True)
class Model:
    """A planned model or vocabulary, as a host has it: a repository at a revision, or a path. wrong: what of it is not as it should be."""

    there: bool
    wrong: Sequence[str]
    repo: str | None = None
    revision: str | None = None
    path: str | None = None
    is_vocabulary: bool = False

    def of(self, service: PlannedService) -> bool:
        """Whether a service uses it."""
        if not self.repo:
            return service.model.path == self.path
        return any((part.repo, part.revision) == (self.repo, self.revision) for part in service.model.parts)


@dataclass(frozen=True)
class Launch:
    """What a service was started with, as its receipt has it."""

    argv: Sequence[str] = ()
    env: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Compared:
    """A host beside its current generation: the answer of M(dgxspark.vllm.compare) without a document, empty where it could not be asked.

    files: paths by what is wrong with them. moved: models by service, each with C({repo, revision, was, is}). checksums: of the deployed parts.
    unrecorded: whether there is no generation, of which else C(number), C(came_from), C(restoring), C(facts), and units and ids of images by
    unit are.
    """

    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    units: Mapping[str, Unit] = field(default_factory=dict)
    moved: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    models: Sequence[Model] = ()
    receipts: Mapping[str, Launch] = field(default_factory=dict)
    unrecorded: bool = False
    number: int | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    came_from: int | None = None
    restoring: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    units_then: Mapping[str, Unit] = field(default_factory=dict)
    images_then: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def read(cls, compared: Mapping[str, Any]) -> Compared:
        """Return the answer of the module."""
        recorded = compared.get("recorded") or {}
        differences = compared.get("differences") or {}
        return cls(
            files={kind: differences.get(kind) or [] for kind in FILES},
            units={name: view(Unit, unit) for name, unit in (compared.get("units") or {}).items()},
            moved=differences.get("moved") or {},
            models=[view(Model, model) for model in differences.get("models") or []],
            receipts={name: view(Launch, each) for name, each in (compared.get("launches") or {}).items()},
            unrecorded=not recorded,
            **{name: recorded.get(name) for name in ("number", "restoring")},
            checksums=recorded.get("checksums") or {},
            came_from=recorded.get("from"),
            facts=recorded.get("facts") or {},
            units_then={name: view(Unit, unit) for name, unit in (recorded.get("units") or {}).items()},
            images_then={name: image.get("id") for name, image in (recorded.get("images") or {}).items()},
        )


@dataclass(frozen=True)
class Locked:
    """An image of the lock file: what is written of it, and the ids that are it."""

    name: str
    ids: Sequence[str]


@dataclass(frozen=True)
class Host:
    """Everything that is known of one host; parts that nobody could tell are empty.

    services, locked, addon_images, relay: of its plan, made with what it said; images of the lock file by reference, and whether it is to
    pass on what is for others of a ring. images: ids by reference, None where they are not known. checksums: of the parts of its planned document,
    empty where the plan could not be made with all that decides it. ranks: whether the plan of its clusters was made with all of their hosts.
    """

    services: Sequence[PlannedService]
    locked: Mapping[str, Locked] = field(default_factory=dict)
    addon_images: Mapping[str, str] = field(default_factory=dict)
    relay: bool = False
    now: Spark = field(default_factory=Spark)
    images: Mapping[str, str | None] | None = None
    then: Compared = field(default_factory=Compared)
    checksums: Mapping[str, str] = field(default_factory=dict)
    ranks: bool = True

    @classmethod
    def read(cls, planned: Mapping[str, Any], checksums: Mapping[str, str] | None = None, ranks: bool = True) -> Host:
        """Return a host by its part of the plan, which Ansible has passed on; C(heard) adds what it said."""
        return cls(
            services=[PlannedService.read(service) for service in planned.get("services") or []],
            locked={ref: view(Locked, each) for ref, each in (planned.get("images_locked") or {}).items()},
            addon_images=planned.get("addon_images") or {},
            relay=bool(((planned.get("cluster") or {}).get("fabric") or {}).get("relay")),
            checksums=checksums or {},
            ranks=ranks,
        )

    def heard(
        self,
        facts: Mapping[str, Any],
        images: Mapping[str, Any] | None = None,
        compared: Mapping[str, Any] | None = None,
    ) -> Host:
        """Return it with what it said.

        :param facts: C(spark) of M(dgxspark.vllm.spark_info)
        :param images: C(images) of M(dgxspark.vllm.spark_info), None where they are not known
        :param compared: of M(dgxspark.vllm.compare), None where it could not be asked
        :returns: the host
        """
        return replace(
            self,
            now=Spark.read(facts),
            images=None if images is None else {ref: (each or {}).get("id") for ref, each in images.items()},
            then=Compared() if compared is None else Compared.read(compared),
        )

    def container(self, service: PlannedService) -> Container | None:
        """Return the container of a service, None where it does not run."""
        return self.now.containers.get(service.container)


def _found(rule: str, severity: str, message: str, fix: str, service: str = "") -> Finding:
    return Finding(f"drift.{rule}", severity, message, fix, service, basis="measured")


def brief(mark: Any) -> str:
    """The beginning of an id, a digest or a commit."""
    return str(mark).rpartition(":")[2][:12]


def brief_ref(ref: str) -> str:
    """A reference of an image with the beginning of its digest."""
    return re.sub(r"(@sha256:[0-9a-f]{12})[0-9a-f]+", r"\1", ref)


def named(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Write names; of many the first, and how many follow."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


# --- the checks ---------------------------------------------------------------------------------------------------------


def check(host: Host) -> list[Finding]:
    """Compare one host that answered; the worst first, each kind in the order of the checks."""
    findings: list[Finding] = []
    for one in CHECKS:
        findings += one(host)
    parts = changed_parts(host.checksums, host.then.checksums)
    # Where something above says already what the plan wants otherwise, this would say it twice.
    if parts and not any(finding.rule in PLAN_RULES for finding in findings):
        text = f"the plan differs from what was deployed ({named(parts)}): inventory, recipe, a key or this collection has changed since."
        findings.append(_found("plan", "info", text, f"{DEPLOY}; with --check --diff it says what would change."))
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def changed_parts(planned: Mapping[str, str], recorded: Mapping[str, str]) -> list[str]:
    """Return the parts whose planned document differs from the deployed one, none where one of the two is not known."""
    if not planned or not recorded:
        return []
    parts = sorted({*planned, *recorded})
    return [part for part in parts if planned.get(part, NO_ROWS) != recorded.get(part, NO_ROWS)]


PLAN_RULES = ("drift.not_deployed", "drift.unplanned", "drift.launch", "drift.image_planned", "drift.image_moved")


def check_services(host: Host) -> list[Finding]:
    """Planned services: deployed, run or stopped as planned, now and after a boot."""
    findings = []
    for service in host.services:
        name, unit = service.name, host.now.units.get(service.unit)
        if name not in host.now.services:
            text = "it is planned, but was never deployed on this host."
            findings.append(_found("not_deployed", "warning", text, f"{DEPLOY}.", name))
            continue
        starts, either = service.state != "stopped", service.state == "on_demand"
        active, up = (unit.active, unit.up) if unit else ("gone", False)
        if host.container(service) and not up and active not in ("deactivating", "maintenance"):
            text = f"its container {service.container} runs, and its unit is {active}: it was started by hand."
            fix = f"docker rm --force {service.container}, then systemctl start {service.unit}, or site.yml."
            findings.append(_found("by_hand", "error", text, fix, name))
        elif starts and unit is None:
            text = f"{service.unit} is gone."
            findings.append(_found("stopped", "error", text, f"{DEPLOY}, which writes and starts it.", name))
        elif starts and not up and not (either and active in ("inactive", "deactivating")):
            what = "has failed" if active == "failed" else f"is {active}"
            text = f"it should run, but {service.unit} {what}."
            fix = "Run start.yml; state: stopped in the inventory says that it is meant."
            why = host.now.stopped.get(name)
            if why is not None:
                text = f"it should run, but the guard of the memory stopped it: {why or 'it does not say why'}."
                fix = "Free the memory, then run start.yml; journalctl -u spark-agent -p warning says who took it."
            findings.append(_found("stopped", "error", text, fix, name))
        elif up and not starts:
            text = f"it should be stopped, but {service.unit} is {active}."
            fix = "Run stop.yml, or site.yml, which stops it; take state: stopped out of the inventory where it is to run."
            findings.append(_found("running", "error", text, fix, name))
        if unit and starts and not either and unit.enabled is False:
            what = "masked" if unit.masked else "not enabled"
            text = f"{service.unit} is {what}: it will not start at the next boot."
            fix = f"systemctl unmask {service.unit}, then site.yml." if unit.masked else f"{DEPLOY}."
            findings.append(_found("boot", "warning", text, fix, name))
        elif unit and (either or not starts) and unit.enabled:
            wanted = "should be started by requests alone" if either else "should be stopped"
            text = f"{service.unit} is enabled: it will start at the next boot, but {wanted}."
            findings.append(_found("boot", "warning", text, f"{DEPLOY}.", name))
    for name in sorted(set(host.now.services) - {service.name for service in host.services}):
        active = host.now.units.get(f"spark-{name}.service", Unit("gone")).active
        text = f"it is deployed on this host, but not in the inventory any more; its unit is {active}."
        findings.append(_found("unplanned", "warning", text, f"{DEPLOY}, which removes it.", name))
    return findings


def check_addons(host: Host) -> list[Finding]:
    """Units of add-on services: as they were recorded. What they are to be the plan says in roles, not by unit."""
    services = {service.unit for service in host.services}
    services |= {f"spark-{name}.service" for name in host.now.services}
    findings = []
    for unit, then in sorted(host.then.units_then.items()):
        seen = host.then.units.get(unit)
        if unit in services or not then.enabled or seen is None:  # one that is gone is a file that is gone
            continue
        if then.active == "active" and seen.active not in generations.RUNNING:
            text = f"{unit} ran when it was recorded, but is now {seen.active}."
            findings.append(_found("stopped", "error", text, f"systemctl start {unit}, or site.yml."))
        if not seen.enabled:
            text = f"{unit} is not enabled any more: it will not start at the next boot."
            findings.append(_found("boot", "warning", text, f"{DEPLOY}."))
    return findings


def check_relay(host: Host) -> list[Finding]:
    """The unit that passes on what is for other hosts of a ring, against what the inventory asks for."""
    if host.relay or not host.now.relays:
        return []
    text = "it passes on what is for other hosts of a ring (dgxspark-fabric-relay.service), and the inventory asks for no relay any more."
    return [_found("relay", "warning", text, f"{DEPLOY} --tags fabric, which removes it.")]


def check_images(host: Host) -> list[Finding]:
    """Images that run: the planned, the locked and the recorded one."""
    findings = []
    for service in host.services:
        container, ref = host.container(service), service.image.ref
        runs, name, locked = container.image_id if container else None, brief_ref(ref), host.locked.get(ref)
        if not runs:
            continue
        was = host.then.images_then.get(service.unit)
        # The image that runs was built on the host: no name of the plan stands for it.
        derived = bool(service.ray_image or service.built_image)
        wanted = None if derived else service.image.id
        good = [was] if derived else [wanted, *(locked.ids if locked else ())]
        if runs in good:
            continue
        if was and runs != was:
            text = f"it runs image {brief(runs)}, and {brief(was)} was deployed"
            text += f"; {brief(wanted)} is planned ({name})." if wanted not in (None, was) else f" ({name})."
            fix = f"{DEPLOY} where its unit was changed, too; else systemctl restart {service.unit}."
            findings.append(_found("image", "error", text, fix, service.name))
        elif derived or host.images is None:
            continue
        elif wanted is None:
            text = f"{name} is planned, but not on this host; it runs image {brief(runs)}."
            findings.append(_found("image_planned", "warning", text, f"{DEPLOY}, which brings it.", service.name))
        elif locked:
            text = f"it runs image {brief(runs)}, but the lock file has {brief(wanted)} ({locked.name})."
            fix = f"{DEPLOY}, which serves the locked one."
            findings.append(_found("image_planned", "warning", text, fix, service.name))
        else:
            text = f"it runs image {brief(runs)}, and {name} is {brief(wanted)} on this host now."
            fix = f"{DEPLOY}, which restarts it with that one; a lock file (lock.yml) keeps what runs."
            findings.append(_found("image_moved", "warning", text, fix, service.name))
    return findings


def check_addon_images(host: Host) -> list[Finding]:
    """Images of add-on services, against the lock file."""
    findings = []
    by_name = {entry.name: (ref, entry.ids) for ref, entry in host.locked.items()}
    for name, written in host.addon_images.items():
        runs = host.now.containers.get(f"spark-{name}", Container()).image_id
        if not runs or written not in by_name:
            continue
        ref, ids = by_name[written]
        if runs not in (*ids, (host.images or {}).get(ref)):
            text = f"it runs image {brief(runs)}, but the lock file has {brief(ids[0])} ({written})."
            findings.append(_found("image_planned", "warning", text, f"{DEPLOY}, which runs the locked one.", name))
    return findings


def check_models(host: Host) -> list[Finding]:
    """Models and vocabularies: there, whole by the lock file or by their own index, and the commit that was deployed."""
    findings = []
    for model in host.then.models:
        users = [service.name for service in host.services if model.of(service)]
        what = f"{model.repo}@{brief_revision(model.revision)}" if model.repo else str(model.path)
        what = f"{'vocabulary' if model.is_vocabulary else 'model'} {what}"
        if not model.there:
            text, fix = f"the {what} is not on this host.", f"{DEPLOY} --tags models, which brings it."
            findings.append(_found("model_gone", "error", text, fix, ", ".join(users)))
        elif model.wrong:
            text = f"the {what} is not whole: {named(model.wrong)}."
            fix = f"{DEPLOY} --tags models, which fetches these again; -e spark_verify=all reads every byte."
            findings.append(_found("model_files", "error", text, fix, ", ".join(users)))
    for name, entry in sorted(host.then.moved.items()):
        text = (
            f"{entry['repo']}@{entry['revision']} is commit {brief(entry['is'])} on this host now; "
            f"{brief(entry['was'])} was deployed."
        )
        fix = "Its next start takes the newer one. Run site.yml to prove that, or rollback.yml; a lock file (lock.yml) keeps one."
        findings.append(_found("model_moved", "warning", text, fix, name.partition("/")[0]))
    return findings


def brief_revision(revision: Any) -> str:
    """A commit by its beginning; names of branches and tags as they are."""
    return str(revision)[:12] if re.fullmatch(r"[0-9a-f]{40}", str(revision)) else str(revision)


def check_launches(host: Host) -> list[Finding]:
    """What engines were started from, against the plan: the mark that their containers carry."""
    findings = []
    for service in host.services:
        container = host.container(service)
        if not container or (service.cluster and not host.ranks):
            continue
        if not container.managed:
            text = f"its container {service.container} was not started by its unit."
            fix = f"docker rm --force {service.container}, then systemctl restart {service.unit}, or site.yml."
            if host.now.units.get(service.unit, Unit()).up:  # else it is said already
                findings.append(_found("by_hand", "error", text, fix, service.name))
            continue
        if container.fingerprint == service.fingerprint:
            continue
        changed = launch_differences(service, host.then.receipts.get(service.name, Launch()))
        if service.cluster:
            # What the fabric gives a rank is settled by listening on the cables, which only a deployment does.
            changed = [each for each in changed if not each.startswith("env ")]
        if changed == ["image"] or (service.cluster and not changed):  # check_images says which
            continue
        text = "the planned launch differs from the running one"
        text += f": {named(changed, 8)}." if changed else "; its last receipt says no more."
        fix = f"{DEPLOY}, which restarts it."
        findings.append(_found("launch", "warning", text, fix, service.name))
    return findings


def launch_differences(service: PlannedService, launch: Launch) -> list[str]:
    """Name the options and variables by which a planned launch differs from the one of a receipt; no values."""
    if not launch.argv:
        return []
    now = read_docker_run([str(word) for word in service.argv]) or DockerRun()
    then = read_docker_run([str(word) for word in launch.argv]) or DockerRun()
    found = [] if now.image == then.image else ["image"]
    found += _changed_names(_options(now.command), _options(then.command), str)
    found += _changed_names(_docker_options(now), _docker_options(then), lambda name: f"docker run {name}")
    found += _changed_names(service.env, launch.env or {}, lambda name: f"env {name}")
    return list(dict.fromkeys(found))


def _changed_names(now: Mapping[str, Any], then: Mapping[str, Any], write: Callable[[str], str]) -> list[str]:
    return [write(name) for name in sorted({*now, *then}) if now.get(name) != then.get(name)]


def _options(words: Sequence[str]) -> dict[str, list[str]]:
    """Put the words behind an option under its name; those before the first one are the command."""
    found: dict[str, list[str]] = {}
    name = "command"
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.partition("=")
            found.setdefault(name, []).extend([value] if equals else [])
        else:
            found.setdefault(name, []).append(word)
    return found


def _docker_options(run: DockerRun) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in run.options:
        if name != "--label" or not str(value).startswith(f"{FINGERPRINT_LABEL}="):
            found.setdefault(name, []).append(str(value))
    return found


def check_files(host: Host) -> list[Finding]:
    """Files of this collection on the host: as the last run that finished left them. They are named, their content is not."""
    names = {service.name for service in host.services} | set(host.now.services)
    words = {
        "changed": ("was changed after it was deployed.", "site.yml writes it again and restarts its units"),
        "missing": ("is missing.", "site.yml writes it again"),
        "added": ("was not there when it was deployed.", "Remove it, since site.yml leaves it as it is"),
        "attributes": ("has another owner or mode than was deployed.", "site.yml sets them"),
    }
    findings = []
    for kind, (text, fix) in words.items():
        for path in host.then.files.get(kind) or []:
            says = f"{fix}; what is wanted of it belongs into the inventory."
            findings.append(_found(f"file_{kind}", "warning", f"{path} {text}", says, owner(path, names)))
    return findings


def owner(path: str, names: set[str]) -> str:
    """Return the service that a file belongs to, empty when it is none's."""
    found = OWN.fullmatch(path)
    name = next((part for part in found.groups() if part), "") if found else ""
    return name if name in names else ""


def check_host(host: Host) -> list[Finding]:
    """The host itself: its generation, and what updates change."""
    findings = []
    then = host.then
    if then.unrecorded and host.now.services:
        text = "no state of this host was recorded, so changes by hand and by updates cannot be detected."
        findings.append(_found("unrecorded", "info", text, f"{DEPLOY}, which records one."))
    if then.restoring is not None:
        text = f"a rollback to generation {then.restoring} was interrupted."
        findings.append(_found("restoring", "error", text, "Run rollback.yml again, which finishes it."))
    elif then.came_from is not None and then.came_from != then.number:
        text = (
            f"it was rolled back from generation {then.came_from} to {then.number}; the plan may be of the newer one."
        )
        findings.append(_found("taken_back", "info", text, f"{DEPLOY} once the cause is mended."))
    for name, word in FACTS.items():
        now, was = host.now.versions.get(name), then.facts.get(name)
        if was and now and was != now:
            text = f"{word} {now}; it was {was} at the last proof of this state."
            findings.append(_found(name, "info", text, f"{DEPLOY}, which proves it with this one."))
    return findings


CHECKS: tuple[Callable[[Host], list[Finding]], ...] = (
    check_services,
    check_addons,
    check_relay,
    check_images,
    check_addon_images,
    check_models,
    check_launches,
    check_files,
    check_host,
)


def check_lock(findings: Sequence[Mapping[str, Any]], services: Sequence[PlannedService]) -> list[dict[str, Any]]:
    """Return what the plan of a host says about the lock file, in words that are the same on all hosts."""
    keys = {service.name: str(service.lock.get("key") or "") for service in services}
    told = []
    for finding in findings:
        if not finding["rule"].startswith("lock.") or finding["rule"] in NO_DRIFT:
            continue
        name = str(finding.get("service") or "")
        key = keys.get(name) or f"/{name}"
        message = str(finding["message"]).replace(key, name)
        fix = str(finding.get("fix") or "").replace(f" --limit {key.partition('/')[0]}", "")
        told.append({**finding, "message": message, "fix": fix})
    return told


# --- hosts that could not be compared -------------------------------------------------------------------------------------


def unreachable(why: str) -> Finding:
    """The finding about a host that did not answer."""
    return _found("unreachable", "error", f"the host is unreachable: {why}.", "Try ssh; nothing is known of it.")


def not_asked(what: str, why: str) -> Finding:
    """The finding about a part that a host could not be asked for."""
    text = f"{what} could not be read: {short(why)}"
    return _found("not_asked", "error", text, "Correct that and run drift.yml again; its differences are not known.")


# --- the fleet ----------------------------------------------------------------------------------------------------------


def report(
    findings: Sequence[Mapping[str, Any]], hosts: Mapping[str, Mapping[str, Any]], services: int, at: str, fail_on: str
) -> dict[str, Any]:
    """Judge a fleet: C({schema, at, well, reason, counts, hosts, findings}), findings the worst first.

    findings: of all hosts, each with C(host). hosts: each with C({reached, why, generation, proven, recorded_at}).
    fail_on: the mildest severity that is a reason; C(never) judges as C(warning) does, the caller does not fail by it.
    """
    least = "warning" if fail_on == "never" else fail_on
    ordered = sorted(
        findings, key=lambda each: (SEVERITIES.index(each["severity"]), picture.natural(str(each["host"])))
    )
    # What plan and lock file do not agree about is no difference of a host.
    drifted = {str(finding["host"]) for finding in ordered if not finding["rule"].startswith("lock.")}
    listed = {}
    for name in sorted(hosts, key=picture.natural):
        body = hosts[name]
        state = "drifted" if name in drifted else "same"
        listed[name] = {"state": state if body["reached"] else "unreachable", **body}
    silent = [name for name, body in listed.items() if not body["reached"]]
    counted = Counter(str(finding["severity"]) for finding in ordered)
    bad = [
        finding
        for finding in ordered
        if SEVERITIES.index(finding["severity"]) <= SEVERITIES.index(least) and finding["host"] not in silent
    ]
    parts = []
    if silent:
        parts.append(f"{len(silent)} of {len(listed)} hosts did not answer: {picture.names_text(silent)}")
    if bad:
        where = list(dict.fromkeys(str(finding["host"]) for finding in bad))
        rules = list(dict.fromkeys(str(finding["rule"]) for finding in bad))
        parts.append(
            f"{_plural(len(bad), 'difference')} on {len(where)} of {_plural(len(listed), 'host')} "
            f"({picture.names_text(where)}): {named(rules, 6)}"
        )
    counts = {
        "hosts": len(listed),
        "silent": len(silent),
        "drifted": sum(body["state"] == "drifted" for body in listed.values()),
        "services": services,
        **{severity: counted[severity] for severity in SEVERITIES},
    }
    return {
        "schema": SCHEMA,
        "at": at,
        "well": not parts,
        "reason": "; ".join(parts),
        "counts": counts,
        "hosts": listed,
        "findings": [dict(finding) for finding in ordered],
    }


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'s'[: count != 1]}"


def head(found: Mapping[str, Any]) -> str:
    """Say in one line how the fleet is."""
    counts = found["counts"]
    silent = f" ({counts['silent']} silent)" if counts["silent"] else ""
    whole = f"{_plural(counts['hosts'], 'host')}{silent}, {_plural(counts['services'], 'service')}"
    if not found["findings"]:
        return f"{whole}: nothing has drifted."
    parts = [_plural(counts[severity], severity) for severity in SEVERITIES[:2] if counts[severity]]
    parts += [f"{counts['info']} to know"] if counts["info"] else []
    return f"{whole}: {', '.join(parts)}."


def text(found: Mapping[str, Any], show: str = "groups", color: bool = False) -> str:
    """Return what a person sees. show: C(groups), what hosts have in common once, or C(lines), a line for each host."""
    if not found["findings"]:
        return head(found)
    if show == "lines":
        lines = []
        for finding in found["findings"]:
            where = "/".join(part for part in (finding["host"], finding.get("service")) if part)
            severity = picture.paint(f"{finding['severity'].upper():8}", finding["severity"], color)
            lines.append(f"{severity}{where}: {finding['message']} [{finding['rule']}]")
        return "\n".join([*lines, "", head(found)])
    return "\n".join([picture.findings_text(found["findings"], color), "", head(found)])
