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
from dataclasses import dataclass, field
from typing import Any

from .._common.docker_run import DockerRun, read_docker_run
from .._common.findings import SEVERITIES, Finding
from .._host.docker_facts import FINGERPRINT_LABEL
from .._plan import picture
from . import generations
from .fleet_status import short

SCHEMA = 1
UP = (*generations.RUNNING, "queued")
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
class Host:
    """Everything that is known of one host; parts that nobody could tell are empty.

    planned: its plan, made with what it said. facts: C(spark) of spark_info. images: of image_info. compared: the answer of the
    module generation to C(action=compare), None where it could not be asked. wanted: the mark of what it is to be, empty where the
    plan could not be made with all that decides it. ranks: whether the plan of its clusters was made with all of their hosts.
    """

    planned: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Any] | None = None
    compared: Mapping[str, Any] | None = None
    wanted: str = ""
    ranks: bool = True

    @property
    def services(self) -> Sequence[Mapping[str, Any]]:
        """The planned services."""
        found: Sequence[Mapping[str, Any]] = self.planned.get("services") or []
        return found

    @property
    def recorded(self) -> Mapping[str, Any]:
        """What the current generation says beside its files; empty without one."""
        return (self.compared or {}).get("recorded") or {}

    @property
    def containers(self) -> dict[str, Mapping[str, Any]]:
        """Those that run, by name."""
        listed = self.facts.get("containers") or []
        return {container["name"]: container for container in listed if container.get("state") == "running"}

    @property
    def units(self) -> dict[str, dict[str, Any]]:
        """Units of services as systemd has them: C({active, enabled, masked}); a start that waits for its turn counts as one."""
        return {
            unit["name"]: {
                "active": "queued" if unit.get("queued") else str(unit.get("active_state")),
                "enabled": unit.get("enabled"),
                "masked": unit.get("load_state") == "masked",
            }
            for unit in self.facts.get("units") or []
        }

    def is_here(self, service: Mapping[str, Any]) -> bool:
        """Whether a planned service was deployed on this host at all."""
        return service["name"] in (self.facts.get("services") or [])


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
    newer = host.wanted and host.recorded.get("wanted") not in ("", None, host.wanted)
    # Where something above says already what the plan wants otherwise, this would say it twice.
    if newer and not any(finding.rule in PLAN_RULES for finding in findings):
        text = "the plan differs from what was deployed: inventory, recipe, a key or this collection has changed since."
        findings.append(_found("plan", "info", text, f"{DEPLOY}; with --check --diff it says what would change."))
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


PLAN_RULES = ("drift.not_deployed", "drift.unplanned", "drift.launch", "drift.image_planned", "drift.image_moved")


def check_services(host: Host) -> list[Finding]:
    """Planned services: deployed, run or stopped as planned, now and after a boot."""
    findings = []
    units, containers = host.units, host.containers
    stopped_by_guard = (host.facts.get("guard") or {}).get("stopped") or {}
    for service in host.services:
        name, unit = service["name"], units.get(service["unit"])
        if not host.is_here(service):
            text = "it is planned, but was never deployed on this host."
            findings.append(_found("not_deployed", "warning", text, f"{DEPLOY}.", name))
            continue
        state = service.get("state", "started")
        starts, either = state != "stopped", state == "on_demand"
        active = unit["active"] if unit else "gone"
        up = active in UP
        container = containers.get(service["container"])
        if container and not up and active not in ("deactivating", "maintenance"):
            text = f"its container {service['container']} runs, and its unit is {active}: it was started by hand."
            fix = f"docker rm --force {service['container']}, then systemctl start {service['unit']}, or site.yml."
            findings.append(_found("by_hand", "error", text, fix, name))
        elif starts and unit is None:
            text = f"{service['unit']} is gone."
            findings.append(_found("stopped", "error", text, f"{DEPLOY}, which writes and starts it.", name))
        elif starts and not up and not (either and active in ("inactive", "deactivating")):
            what = "has failed" if active == "failed" else f"is {active}"
            text = f"it should run, but {service['unit']} {what}."
            fix = "Run start.yml; state: stopped in the inventory says that it is meant."
            why = stopped_by_guard.get(name)
            if why is not None:
                text = f"it should run, but the guard of the memory stopped it: {why or 'it does not say why'}."
                fix = "Free the memory, then run start.yml; journalctl -u spark-guard -p warning says who took it."
            findings.append(_found("stopped", "error", text, fix, name))
        elif up and not starts:
            text = f"it should be stopped, but {service['unit']} is {active}."
            fix = "Run stop.yml, or site.yml, which stops it; take state: stopped out of the inventory where it is to run."
            findings.append(_found("running", "error", text, fix, name))
        if unit and starts and not either and unit["enabled"] is False:
            what = "masked" if unit["masked"] else "not enabled"
            text = f"{service['unit']} is {what}: it will not start at the next boot."
            fix = f"systemctl unmask {service['unit']}, then site.yml." if unit["masked"] else f"{DEPLOY}."
            findings.append(_found("boot", "warning", text, fix, name))
        elif unit and (either or not starts) and unit["enabled"]:
            wanted = "should be started by requests alone" if either else "should be stopped"
            text = f"{service['unit']} is enabled: it will start at the next boot, but {wanted}."
            findings.append(_found("boot", "warning", text, f"{DEPLOY}.", name))
    planned = {service["name"] for service in host.services}
    for name in sorted(set(host.facts.get("services") or []) - planned):
        active = (units.get(f"spark-{name}.service") or {}).get("active", "gone")
        text = f"it is deployed on this host, but not in the inventory any more; its unit is {active}."
        findings.append(_found("unplanned", "warning", text, f"{DEPLOY}, which removes it.", name))
    return findings


def check_addons(host: Host) -> list[Finding]:
    """Units of add-on services: as they were recorded. What they are to be the plan says in roles, not by unit."""
    services = {service["unit"] for service in host.services}
    services |= {f"spark-{name}.service" for name in host.facts.get("services") or []}
    now = (host.compared or {}).get("units") or {}
    findings = []
    for unit, then in sorted((host.recorded.get("units") or {}).items()):
        seen = now.get(unit)
        if unit in services or not then.get("enabled") or seen is None:  # one that is gone is a file that is gone
            continue
        if then.get("active") == "active" and seen.get("active") not in generations.RUNNING:
            text = f"{unit} ran when it was recorded, but is now {seen.get('active')}."
            findings.append(_found("stopped", "error", text, f"systemctl start {unit}, or site.yml."))
        if not seen.get("enabled"):
            text = f"{unit} is not enabled any more: it will not start at the next boot."
            findings.append(_found("boot", "warning", text, f"{DEPLOY}."))
    return findings


def check_relay(host: Host) -> list[Finding]:
    """The unit that passes on what is for other hosts of a ring, against what the inventory asks for."""
    wanted = bool(((host.planned.get("cluster") or {}).get("fabric") or {}).get("relay"))
    if wanted or not (host.facts.get("fabric") or {}).get("relay"):
        return []
    text = "it passes on what is for other hosts of a ring (dgxspark-fabric-relay.service), and the inventory asks for no relay any more."
    return [_found("relay", "warning", text, f"{DEPLOY} --tags fabric, which removes it.")]


def check_images(host: Host) -> list[Finding]:
    """Images that run: the planned, the locked and the recorded one."""
    findings = []
    locked = host.planned.get("images_locked") or {}
    for service in host.services:
        container = host.containers.get(service["container"]) or {}
        runs, ref = container.get("image_id"), service["image"]["ref"]
        name = brief_ref(ref)
        if not runs:
            continue
        was = ((host.recorded.get("images") or {}).get(service["unit"]) or {}).get("id")
        # The image that runs was built on the host: no name of the plan stands for it.
        derived = bool(service.get("ray_image") or service.get("built_image"))
        wanted = None if derived else service["image"].get("id")
        good = [was] if derived else [wanted, *(locked.get(ref) or {}).get("ids", [])]
        if runs in good:
            continue
        if was and runs != was:
            text = f"it runs image {brief(runs)}, and {brief(was)} was deployed"
            text += f"; {brief(wanted)} is planned ({name})." if wanted not in (None, was) else f" ({name})."
            fix = f"{DEPLOY} where its unit was changed, too; else systemctl restart {service['unit']}."
            findings.append(_found("image", "error", text, fix, service["name"]))
        elif derived or host.images is None:
            continue
        elif wanted is None:
            text = f"{name} is planned, but not on this host; it runs image {brief(runs)}."
            findings.append(_found("image_planned", "warning", text, f"{DEPLOY}, which brings it.", service["name"]))
        elif ref in locked:
            text = f"it runs image {brief(runs)}, but the lock file has {brief(wanted)} ({locked[ref]['name']})."
            fix = f"{DEPLOY}, which serves the locked one."
            findings.append(_found("image_planned", "warning", text, fix, service["name"]))
        else:
            text = f"it runs image {brief(runs)}, and {name} is {brief(wanted)} on this host now."
            fix = f"{DEPLOY}, which restarts it with that one; a lock file (lock.yml) keeps what runs."
            findings.append(_found("image_moved", "warning", text, fix, service["name"]))
    return findings


def check_addon_images(host: Host) -> list[Finding]:
    """Images of add-on services, against the lock file."""
    findings = []
    by_name = {entry["name"]: (ref, entry["ids"]) for ref, entry in (host.planned.get("images_locked") or {}).items()}
    for name, written in (host.planned.get("addon_images") or {}).items():
        runs = (host.containers.get(f"spark-{name}") or {}).get("image_id")
        if not runs or written not in by_name:
            continue
        ref, ids = by_name[written]
        if runs not in (*ids, ((host.images or {}).get(ref) or {}).get("id")):
            text = f"it runs image {brief(runs)}, but the lock file has {brief(ids[0])} ({written})."
            findings.append(_found("image_planned", "warning", text, f"{DEPLOY}, which runs the locked one.", name))
    return findings


def check_models(host: Host) -> list[Finding]:
    """Models: there, whole by the lock file or by their own index, and the commit that was deployed."""
    findings = []
    for entry in (host.compared or {}).get("models") or []:
        users = [service["name"] for service in host.services if _uses(service, entry)]
        what = f"{entry['repo']}@{brief_revision(entry['revision'])}" if entry.get("repo") else str(entry.get("path"))
        if not entry["there"]:
            text, fix = f"the model {what} is not on this host.", f"{DEPLOY} --tags models, which brings it."
            findings.append(_found("model_gone", "error", text, fix, ", ".join(users)))
        elif entry["wrong"]:
            text = f"the model {what} is not whole: {named(entry['wrong'])}."
            fix = f"{DEPLOY} --tags models, which fetches these again; -e spark_verify=all reads every byte."
            findings.append(_found("model_files", "error", text, fix, ", ".join(users)))
    for name, entry in sorted(((host.compared or {}).get("moved") or {}).items()):
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


def _uses(service: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    model = service["model"]
    if not entry.get("repo"):
        return bool(model.get("path") == entry.get("path"))
    wanted = [(model.get("repo"), model.get("revision"))]
    wanted += [(extra["repo"], extra.get("revision")) for extra in model.get("extra") or []]
    return (entry["repo"], entry["revision"]) in wanted


def check_launches(host: Host) -> list[Finding]:
    """What engines were started from, against the plan: the mark that their containers carry."""
    findings = []
    for service in host.services:
        container = host.containers.get(service["container"])
        if not container or (service.get("cluster") and not host.ranks):
            continue
        if not container.get("managed"):
            text = f"its container {service['container']} was not started by its unit."
            fix = f"docker rm --force {service['container']}, then systemctl restart {service['unit']}, or site.yml."
            if host.units.get(service["unit"], {}).get("active") in UP:  # else it is said already
                findings.append(_found("by_hand", "error", text, fix, service["name"]))
            continue
        if container.get("fingerprint") == service.get("fingerprint"):
            continue
        changed = launch_differences(service, ((host.compared or {}).get("receipts") or {}).get(service["name"]) or {})
        if service.get("cluster"):
            # What the fabric gives a rank is settled by listening on the cables, which only a deployment does.
            changed = [each for each in changed if not each.startswith("env ")]
        if changed == ["image"] or (service.get("cluster") and not changed):  # check_images says which
            continue
        text = "the planned launch differs from the running one"
        text += f": {named(changed, 8)}." if changed else "; its last receipt says no more."
        fix = f"{DEPLOY}, which restarts it."
        findings.append(_found("launch", "warning", text, fix, service["name"]))
    return findings


def launch_differences(service: Mapping[str, Any], deployed: Mapping[str, Any]) -> list[str]:
    """Name the options and variables by which a planned launch differs from the one of a receipt; no values."""
    if not deployed.get("argv"):
        return []
    now = read_docker_run([str(word) for word in service.get("argv") or []]) or DockerRun()
    then = read_docker_run([str(word) for word in deployed["argv"]]) or DockerRun()
    found = [] if now.image == then.image else ["image"]
    found += _changed_names(_options(now.command), _options(then.command), str)
    found += _changed_names(_docker_options(now), _docker_options(then), lambda name: f"docker run {name}")
    found += _changed_names(service.get("env") or {}, deployed.get("env") or {}, lambda name: f"env {name}")
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
    files = (host.compared or {}).get("files") or {}
    names = {service["name"] for service in host.services} | set(host.facts.get("services") or [])
    words = {
        "changed": ("was changed after it was deployed.", "site.yml writes it again and restarts its units"),
        "missing": ("is missing.", "site.yml writes it again"),
        "added": ("was not there when it was deployed.", "Remove it, since site.yml leaves it as it is"),
        "attributes": ("has another owner or mode than was deployed.", "site.yml sets them"),
    }
    findings = []
    for kind, (text, fix) in words.items():
        for path in files.get(kind) or []:
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
    recorded = host.recorded
    if host.compared is not None and not recorded and host.facts.get("services"):
        text = "no state of this host was recorded, so changes by hand and by updates cannot be detected."
        findings.append(_found("unrecorded", "info", text, f"{DEPLOY}, which records one."))
    if recorded.get("restoring") is not None:
        text = f"a rollback to generation {recorded['restoring']} was interrupted."
        findings.append(_found("restoring", "error", text, "Run rollback.yml again, which finishes it."))
    elif recorded.get("from") is not None and recorded["from"] != recorded.get("number"):
        text = f"it was rolled back from generation {recorded['from']} to {recorded['number']}; the plan may be of the newer one."
        findings.append(_found("taken_back", "info", text, f"{DEPLOY} once the cause is mended."))
    now, then = generations.facts_of(host.facts), recorded.get("facts") or {}
    for name, word in FACTS.items():
        if then.get(name) and now.get(name) and then[name] != now[name]:
            text = f"{word} {now[name]}; it was {then[name]} at the last proof of this state."
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


def check_lock(findings: Sequence[Mapping[str, Any]], services: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what the plan of a host says about the lock file, in words that are the same on all hosts."""
    keys = {service["name"]: str((service.get("lock") or {}).get("key") or "") for service in services}
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
