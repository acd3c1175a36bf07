# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the differences between a host, its current generation, and its plan with the lock file. Pure functions.

Messages name files, options and variables, and no values: some are secret.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .._common.docker_run import DockerRun, read_docker_run
from .._common.findings import SEVERITIES, Finding
from .._common.reader import from_dict
from .._common.tables import some_of
from .._host import deployed
from .._host.docker_facts import FINGERPRINT_LABEL
from .._host.host_state import HostState
from .._plan import picture
from .._plan.planned import PlannedService
from . import generations
from .fleet_status import short
from .generations import brief

SCHEMA = 1
NO_ROWS = deployed.checksum(HostState())
MOST_NAMES = 4
"""Options, files and hosts in one message."""
# A rule about the lock file itself, not about a difference between plan and lock file.
NO_DRIFT = ("lock.moving",)
VERSIONS = {"kernel": "kernel", "driver": "driver", "dgx_os": "DGX OS"}
DEPLOY = "Run site.yml"
FILES_OF_SERVICES = re.compile(
    r"/etc/systemd/system/spark-(?P<unit>[^/]+?)\.service(?:\.d/.*)?"
    r"|/etc/dgxspark/(?:env|services)/(?P<file>[^/]+)\.(?:env|json)"
    r"|/etc/dgxspark/(?:secrets|files)/(?P<folder>[^/]+)/.*"
)
FILE_TEXTS = {
    "changed": ("was changed after it was deployed.", "site.yml writes it again and restarts its units"),
    "missing": ("is missing.", "site.yml writes it again"),
    "added": ("is new since the deployment.", "Remove it; site.yml does not"),
    "attributes": ("has another owner or mode than was deployed.", "site.yml sets them"),
}
"""Message and fix by kind of difference."""


UP = (*generations.RUNNING, "queued")


class Host:
    """Everything that is known of one host.

    units, containers: by name; only running containers. deployed: names of services. locked: images of the lock file by reference, with their
    name there and the ids that count as this image. recorded: the current generation, empty without one.
    """

    def __init__(
        self,
        plan: Mapping[str, Any],
        checksums: Mapping[str, str],
        has_ranks: bool,
        spark: Mapping[str, Any],
        images: Mapping[str, Any] | None = None,
        compared: Mapping[str, Any] | None = None,
    ) -> None:
        """Set its part of the plan, C(spark) and C(images) of M(dgxspark.vllm.spark_info), and the answer of M(dgxspark.vllm.compare) without a document.

        checksums: of the parts of its planned document, empty if the plan lacks answers of hosts. has_ranks: the plan of its clusters has the answers of
        all ranks. images, compared: None for unknown ones.
        """
        self.plan, self.checksums, self.has_ranks = plan, checksums, has_ranks
        self.spark, self.images, self.compared = spark, images, compared or {}
        self.services = [from_dict(PlannedService, service) for service in plan.get("services") or []]
        self.units: dict[str, Mapping[str, Any]] = {unit["name"]: unit for unit in spark.get("units") or []}
        boxes: Sequence[Mapping[str, Any]] = spark.get("containers") or []
        self.containers = {box["name"]: box for box in boxes if box.get("state") == "running"}
        self.deployed: set[str] = set(spark.get("services") or ())
        self.locked: Mapping[str, Any] = plan.get("images_locked") or {}
        self.recorded: Mapping[str, Any] = self.compared.get("recorded") or {}


def _state(unit: Mapping[str, Any] | None) -> str:
    """Return the state of a unit, C(queued) if its start waits for another one."""
    return "gone" if unit is None else "queued" if unit.get("queued") else str(unit.get("active_state"))


def _finding(rule: str, severity: str, message: str, fix: str, service: str = "") -> Finding:
    return Finding(f"drift.{rule}", severity, message, fix, service, basis="measured")


# --- checks of one host


def check(host: Host) -> list[Finding]:
    """Return the differences of a host with all answers, worst first."""
    findings = [finding for find in CHECKS for finding in find(host)]
    parts = changed_parts(host.checksums, host.recorded.get("checksums") or {})
    # A more specific finding about the plan makes this one redundant.
    if parts and not any(finding.rule in PLAN_RULES for finding in findings):
        changed = some_of(parts, MOST_NAMES)
        text = f"the plan differs from the deployment ({changed}): inventory, recipe, a key or this collection has changed since."
        findings.append(_finding("plan", "info", text, f"{DEPLOY}; --check --diff shows the changes."))
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def changed_parts(planned: Mapping[str, str], recorded: Mapping[str, str]) -> list[str]:
    """Return the parts whose planned document differs from the deployed one; none if one of them is unknown."""
    if not planned or not recorded:
        return []
    parts = sorted({*planned, *recorded})
    return [part for part in parts if planned.get(part, NO_ROWS) != recorded.get(part, NO_ROWS)]


PLAN_RULES = ("drift.not_deployed", "drift.unplanned", "drift.launch", "drift.image_planned", "drift.image_moved")


def check_services(host: Host) -> Iterator[Finding]:
    """Compare the state of planned services, now and after a boot."""
    for service in host.services:
        if service.name not in host.deployed:
            text = "it is planned, but was never deployed on this host."
            yield _finding("not_deployed", "warning", text, f"{DEPLOY}.", service.name)
            continue
        unit = host.units.get(service.unit)
        yield from _check_state(host, service, unit)
        if unit:
            yield from _check_boot(service, unit)
    for name in sorted(host.deployed - {service.name for service in host.services}):
        active = _state(host.units.get(f"spark-{name}.service"))
        text = f"it is deployed on this host, but not in the inventory any more; its unit is {active}."
        yield _finding("unplanned", "warning", text, f"{DEPLOY}, which removes it.", name)


def _check_state(host: Host, service: PlannedService, unit: Mapping[str, Any] | None) -> Iterator[Finding]:
    name, active = service.name, _state(unit)
    is_up = active in UP
    may_rest = service.state == "on_demand" and active in ("inactive", "deactivating")
    if service.container in host.containers and not is_up and active not in ("deactivating", "maintenance"):
        text = f"its container {service.container} runs, and its unit is {active}: it was started by hand."
        fix = f"docker rm --force {service.container}, then systemctl start {service.unit}, or site.yml."
        yield _finding("by_hand", "error", text, fix, name)
    elif service.state == "stopped":
        if is_up:
            text = f"it should be stopped, but {service.unit} is {active}."
            fix = (
                "Run stop.yml, or site.yml, which stops it; remove state: stopped from the inventory if it should run."
            )
            yield _finding("running", "error", text, fix, name)
    elif unit is None:
        text = f"{service.unit} is gone."
        yield _finding("stopped", "error", text, f"{DEPLOY}, which writes and starts it.", name)
    elif not is_up and not may_rest:
        why = ((host.spark.get("guard") or {}).get("stopped") or {}).get(name)
        if why is not None:
            text = f"it should run, but the memory guard stopped it: {why or 'it does not say why'}."
            fix = "Free the memory, then run start.yml; journalctl -u spark-agent -p warning says who took it."
        else:
            text = f"it should run, but {service.unit} {'has failed' if active == 'failed' else f'is {active}'}."
            fix = "Run start.yml; state: stopped in the inventory says that it is meant."
        yield _finding("stopped", "error", text, fix, name)


def _check_boot(service: PlannedService, unit: Mapping[str, Any]) -> Iterator[Finding]:
    starts_at_boot, is_masked = service.state not in ("stopped", "on_demand"), unit.get("load_state") == "masked"
    if starts_at_boot and unit.get("enabled") is False:
        text = f"{service.unit} is {'masked' if is_masked else 'not enabled'}: it will not start at the next boot."
        fix = f"systemctl unmask {service.unit}, then site.yml." if is_masked else f"{DEPLOY}."
        yield _finding("boot", "warning", text, fix, service.name)
    elif not starts_at_boot and unit.get("enabled"):
        expected = "should be started by requests alone" if service.state == "on_demand" else "should be stopped"
        text = f"{service.unit} is enabled: it will start at the next boot, but {expected}."
        yield _finding("boot", "warning", text, f"{DEPLOY}.", service.name)


def _check_relay(host: Host) -> Iterator[Finding]:
    """Find a relay that is no longer planned."""
    planned = ((host.plan.get("cluster") or {}).get("fabric") or {}).get("relay")
    if (host.spark.get("fabric") or {}).get("relay") and not planned:
        text = "it relays traffic for other hosts of a ring (dgxspark-fabric-relay.service), although the inventory does not ask for it any more."
        yield _finding("relay", "warning", text, f"{DEPLOY} --tags fabric, which removes it.")


def check_addons(host: Host) -> Iterator[Finding]:
    """Compare the units of add-on services with the recorded state; the plan has no units of them. Find a relay that is no longer planned."""
    services = {service.unit for service in host.services}
    services |= {f"spark-{name}.service" for name in host.deployed}
    units = host.compared.get("units") or {}
    for unit, recorded in sorted((host.recorded.get("units") or {}).items()):
        now = units.get(unit)
        if unit in services or not recorded["enabled"] or now is None:  # a removed unit is a missing file
            continue
        if recorded["active"] == "active" and now["active"] not in generations.RUNNING:
            text = f"{unit} ran when it was recorded, but is now {now['active']}."
            yield _finding("stopped", "error", text, f"systemctl start {unit}, or site.yml.")
        if not now["enabled"]:
            text = f"{unit} is not enabled any more: it will not start at the next boot."
            yield _finding("boot", "warning", text, f"{DEPLOY}.")
    yield from _check_relay(host)


def check_images(host: Host) -> Iterator[Finding]:
    """Compare the images of running containers with the planned, the locked and the recorded one."""
    for service in host.services:
        running = host.containers.get(service.container, {}).get("image_id")
        if running:
            yield from _check_image(host, service, running)


def _check_image(host: Host, service: PlannedService, running: str) -> Iterator[Finding]:
    ref = service.image.ref
    recorded = ((host.recorded.get("images") or {}).get(service.unit) or {}).get("id")
    name, locked = re.sub(r"(@sha256:[0-9a-f]{12})[0-9a-f]+", r"\1", ref), host.locked.get(ref)
    # An image that was built on the host has another id than the planned one.
    is_derived = bool(service.ray_image or service.built_image)
    planned = None if is_derived else service.image.id
    if running in ([recorded] if is_derived else [planned, *(locked["ids"] if locked else ())]):
        return
    if recorded and running != recorded:
        text = f"it runs image {brief(running)}, and {brief(recorded)} was deployed"
        text += f"; {brief(planned)} is planned ({name})." if planned not in (None, recorded) else f" ({name})."
        fix = f"{DEPLOY} where its unit was changed, too; else systemctl restart {service.unit}."
        yield _finding("image", "error", text, fix, service.name)
    elif is_derived or host.images is None:
        return
    elif planned is None:
        text = f"{name} is planned, but not on this host; it runs image {brief(running)}."
        yield _finding("image_planned", "warning", text, f"{DEPLOY}, which brings it.", service.name)
    elif locked:
        text = f"it runs image {brief(running)}, but the lock file has {brief(planned)} ({locked['name']})."
        yield _finding("image_planned", "warning", text, f"{DEPLOY}, which serves the locked one.", service.name)
    else:
        text = f"it runs image {brief(running)}, and {name} is {brief(planned)} on this host now."
        fix = f"{DEPLOY}, which restarts it with that image; a lock file (lock.yml) keeps the running one."
        yield _finding("image_moved", "warning", text, fix, service.name)


def check_addon_images(host: Host) -> Iterator[Finding]:
    """Compare the images of add-on services with the lock file."""
    refs = {image["name"]: ref for ref, image in host.locked.items()}
    for name, locked_name in (host.plan.get("addon_images") or {}).items():
        running = host.containers.get(f"spark-{name}", {}).get("image_id")
        if not running or locked_name not in refs:
            continue
        ref = refs[locked_name]
        ids = host.locked[ref]["ids"]
        if running not in (*ids, ((host.images or {}).get(ref) or {}).get("id")):
            text = f"it runs image {brief(running)}, but the lock file has {brief(ids[0])} ({locked_name})."
            yield _finding("image_planned", "warning", text, f"{DEPLOY}, which runs the locked one.", name)


def check_models(host: Host) -> Iterator[Finding]:
    """Find missing, damaged and moved models and vocabularies."""
    differences = host.compared.get("differences") or {}
    for model in differences.get("models") or []:
        users = ", ".join(service.name for service in host.services if _uses(service, model))
        revision = re.sub(r"\A([0-9a-f]{12})[0-9a-f]{28}\Z", r"\1", str(model.get("revision")))
        name = f"{model['repo']}@{revision}" if model.get("repo") else str(model.get("path"))
        title = f"{'vocabulary' if model.get('is_vocabulary') else 'model'} {name}"
        if not model["there"]:
            text, fix = f"the {title} is not on this host.", f"{DEPLOY} --tags models, which brings it."
            yield _finding("model_gone", "error", text, fix, users)
        elif model["wrong"]:
            text = f"the {title} is incomplete: {some_of(model['wrong'], MOST_NAMES)}."
            fix = f"{DEPLOY} --tags models, which fetches these again; -e spark_verify=all reads every byte."
            yield _finding("model_files", "error", text, fix, users)
    for service, moved in sorted((differences.get("moved") or {}).items()):
        now, before = brief(moved["is"]), brief(moved["was"])
        text = f"{moved['repo']}@{moved['revision']} is commit {now} on this host now; {before} was deployed."
        fix = "Its next start uses the newer one. Run site.yml to prove it, or rollback.yml; a lock file (lock.yml) keeps one."
        yield _finding("model_moved", "warning", text, fix, service.partition("/")[0])


def _uses(service: PlannedService, model: Mapping[str, Any]) -> bool:
    """Tell whether a service uses a model. model: a repository at a revision, or a path."""
    if not model.get("repo"):
        return bool(service.model.path == model.get("path"))
    return any((part.repo, part.revision) == (model["repo"], model["revision"]) for part in service.model.parts)


def _launch_changes(host: Host, service: PlannedService) -> list[str]:
    """Return the names of planned options that differ from the running launch."""
    changed = launch_differences(service, (host.compared.get("launches") or {}).get(service.name) or {})
    # Only a deployment listens on the cables and knows the fabric variables of a rank.
    return [name for name in changed if not (service.cluster and name.startswith("env "))]


def check_launches(host: Host) -> Iterator[Finding]:
    """Compare the launches of engines with the plan by the fingerprint of their containers."""
    for service in host.services:
        container = host.containers.get(service.container)
        if not container or (service.cluster and not host.has_ranks):
            continue
        if not container.get("managed"):
            # Of a stopped unit, check_services reports it.
            if _state(host.units.get(service.unit)) in UP:
                text = f"its container {service.container} was not started by its unit."
                fix = f"docker rm --force {service.container}, then systemctl restart {service.unit}, or site.yml."
                yield _finding("by_hand", "error", text, fix, service.name)
        elif container.get("fingerprint") != service.fingerprint:
            changed = _launch_changes(host, service)
            if changed == ["image"] or (service.cluster and not changed):  # check_images reports the image
                continue
            text = "the planned launch differs from the running one"
            text += f": {some_of(changed, 8)}." if changed else "; its last receipt has no details."
            yield _finding("launch", "warning", text, f"{DEPLOY}, which restarts it.", service.name)


def launch_differences(service: PlannedService, launch: Mapping[str, Any]) -> list[str]:
    """Return the names of changed options and variables between a planned launch and the one of a receipt."""
    if not launch.get("argv"):
        return []
    now, before = (
        read_docker_run([str(word) for word in argv]) or DockerRun() for argv in (service.argv, launch["argv"])
    )
    names = [] if now.image == before.image else ["image"]
    names += _changed_names(_options(now.command), _options(before.command))
    names += [f"docker run {name}" for name in _changed_names(_docker_options(now), _docker_options(before))]
    names += [f"env {name}" for name in _changed_names(service.env, launch.get("env") or {})]
    return list(dict.fromkeys(names))


def _changed_names(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    return [name for name in sorted({*now, *before}) if now.get(name) != before.get(name)]


def _options(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each option; words before the first one belong to C(command)."""
    options: dict[str, list[str]] = {}
    name = "command"
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.partition("=")
            options.setdefault(name, []).extend([value] if equals else [])
        else:
            options.setdefault(name, []).append(word)
    return options


def _docker_options(run: DockerRun) -> dict[str, list[str]]:
    options: dict[str, list[str]] = {}
    for name, value in run.options:
        if name != "--label" or not str(value).startswith(f"{FINGERPRINT_LABEL}="):
            options.setdefault(name, []).append(str(value))
    return options


def check_files(host: Host) -> Iterator[Finding]:
    """Find files of the collection that differ from the deployed document."""
    services = {service.name for service in host.services} | host.deployed
    for kind, (text, fix) in FILE_TEXTS.items():
        for path in (host.compared.get("differences") or {}).get(kind) or []:
            advice = f"{fix}; put its wanted settings into the inventory."
            match = FILES_OF_SERVICES.fullmatch(path)
            name = next((part for part in match.groups() if part), "") if match else ""
            yield _finding(f"file_{kind}", "warning", f"{path} {text}", advice, name if name in services else "")


def check_host(host: Host) -> Iterator[Finding]:
    """Report an interrupted or finished rollback, and versions that changed after the last proof."""
    recorded, came_from = host.recorded, host.recorded.get("from")
    if host.compared and not recorded and host.deployed:
        text = "no state of this host was recorded, so changes by hand and by updates cannot be detected."
        yield _finding("unrecorded", "info", text, f"{DEPLOY}, which records one.")
    if recorded.get("restoring") is not None:
        text = f"a rollback to generation {recorded['restoring']} was interrupted."
        yield _finding("restoring", "error", text, "Run rollback.yml again, which finishes it.")
    elif came_from is not None and came_from != recorded["number"]:
        text = (
            f"it was rolled back from generation {came_from} to {recorded['number']}; the plan may be of the newer one."
        )
        yield _finding("taken_back", "info", text, f"{DEPLOY} once the cause is fixed.")
    versions = generations.facts_of(host.spark)
    for name, title in VERSIONS.items():
        now, before = versions.get(name), (recorded.get("facts") or {}).get(name)
        if now and before and now != before:
            text = f"{title} {now}; it was {before} at the last proof of this state."
            yield _finding(name, "info", text, f"{DEPLOY}, which proves it with this one.")


CHECKS: tuple[Callable[[Host], Iterator[Finding]], ...] = (
    check_services,
    check_addons,
    check_images,
    check_addon_images,
    check_models,
    check_launches,
    check_files,
    check_host,
)


def check_lock(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the findings about the lock file in the plan of a host, in words without its name."""
    keys = {service["name"]: str(service["lock"].get("key") or "") for service in plan.get("services") or []}
    differences = []
    for finding in plan.get("findings") or []:
        if not finding["rule"].startswith("lock.") or finding["rule"] in NO_DRIFT:
            continue
        name = str(finding.get("service") or "")
        key = keys.get(name) or f"/{name}"
        message = str(finding["message"]).replace(key, name)
        fix = str(finding.get("fix") or "").replace(f" --limit {key.partition('/')[0]}", "")
        differences.append({**finding, "message": message, "fix": fix})
    return differences


# --- hosts without answers


def unreachable(why: str) -> Finding:
    """Return the finding about a host without an answer."""
    return _finding("unreachable", "error", f"the host is unreachable: {why}.", "Try ssh; its state is unknown.")


def not_asked(title: str, why: str) -> Finding:
    """Return the finding about an unknown part of a host."""
    text = f"{title} could not be read: {short(why)}"
    return _finding("not_asked", "error", text, "Correct that and run drift.yml again; the differences are unknown.")


# --- the fleet


def _host_state(host: Mapping[str, Any], is_drifted: bool) -> str:
    """Return the state of a host in the report."""
    return "unreachable" if not host["reached"] else "drifted" if is_drifted else "same"


def report(
    findings: Sequence[Mapping[str, Any]], hosts: Mapping[str, Mapping[str, Any]], services: int, at: str, fail_on: str
) -> dict[str, Any]:
    """Return the report of a fleet: C({schema, at, healthy, reason, counts, hosts, findings}), with the worst findings first.

    :param hosts: each with C({reached, why, generation, proven, recorded_at})
    :param fail_on: the mildest severity of a reason; C(never) counts like C(warning), its caller does not fail
    """
    ordered = sorted(findings, key=lambda finding: (_rank(finding), picture.natural(str(finding["host"]))))
    # A disagreement between plan and lock file is no difference of a host.
    drifted = {str(finding["host"]) for finding in ordered if not finding["rule"].startswith("lock.")}
    states = {}
    for name in sorted(hosts, key=picture.natural):
        states[name] = {"state": _host_state(hosts[name], name in drifted), **hosts[name]}
    silent = [name for name, body in states.items() if not body["reached"]]
    least = SEVERITIES.index("warning" if fail_on == "never" else fail_on)
    bad = [finding for finding in ordered if _rank(finding) <= least and finding["host"] not in silent]
    severities = Counter(str(finding["severity"]) for finding in ordered)
    reason = "; ".join(_reasons(silent, bad, len(states)))
    return {
        "schema": SCHEMA,
        "at": at,
        "healthy": not reason,
        "reason": reason,
        "counts": {
            "hosts": len(states),
            "silent": len(silent),
            "drifted": sum(body["state"] == "drifted" for body in states.values()),
            "services": services,
            **{severity: severities[severity] for severity in SEVERITIES},
        },
        "hosts": states,
        "findings": [dict(finding) for finding in ordered],
    }


def _rank(finding: Mapping[str, Any]) -> int:
    return SEVERITIES.index(finding["severity"])


def _reasons(silent: Sequence[str], bad: Sequence[Mapping[str, Any]], count: int) -> Iterator[str]:
    if silent:
        yield f"{len(silent)} of {count} hosts did not answer: {picture.names_text(silent)}"
    if bad:
        hosts = list(dict.fromkeys(str(finding["host"]) for finding in bad))
        rules = list(dict.fromkeys(str(finding["rule"]) for finding in bad))
        yield (
            f"{_plural(len(bad), 'difference')} on {len(hosts)} of {_plural(count, 'host')} "
            f"({picture.names_text(hosts)}): {some_of(rules, 6)}"
        )


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'s'[: count != 1]}"


def head(report: Mapping[str, Any]) -> str:
    """Return the report in one line."""
    counts = report["counts"]
    silent = f" ({counts['silent']} silent)" if counts["silent"] else ""
    fleet = f"{_plural(counts['hosts'], 'host')}{silent}, {_plural(counts['services'], 'service')}"
    if not report["findings"]:
        return f"{fleet}: nothing has drifted."
    parts = [_plural(counts[severity], severity) for severity in SEVERITIES[:2] if counts[severity]]
    parts += [f"{counts['info']} to know"] if counts["info"] else []
    return f"{fleet}: {', '.join(parts)}."


def text(report: Mapping[str, Any], show: str = "groups", color: bool = False) -> str:
    """Return the report for people. show: C(groups), equal findings of hosts together, or C(lines), one for each host."""
    if not report["findings"]:
        return head(report)
    if show == "groups":
        return "\n".join([picture.findings_text(report["findings"], color), "", head(report)])
    lines = []
    for finding in report["findings"]:
        place = "/".join(part for part in (finding["host"], finding.get("service")) if part)
        severity = picture.paint(f"{finding['severity'].upper():8}", finding["severity"], color)
        lines.append(f"{severity}{place}: {finding['message']} [{finding['rule']}]")
    return "\n".join([*lines, "", head(report)])
