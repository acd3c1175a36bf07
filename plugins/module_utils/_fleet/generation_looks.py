# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host differs in from a generation, whether there is anything to apply, and what a rollback would need and do.

Reads alone, but for the sums of weights that were read on the way: those are kept, so that they are read once.
"""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import re
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from .._content import snapshots, vocabularies
from .._host import beneath, file_times, made
from . import generation_asks
from . import generations as engine
from .generation_host import Host, Refused

NFT = "/usr/sbin/nft"
COPIED_MODE = 0o644  # of files of M(dgxspark.vllm.model_folder)
MOST_NAMED = 3
# Of the role firewall: the table as it was written, and as the kernel had it after the last load.
FIREWALL = "/etc/dgxspark/firewall.nft"
EPHEMERAL = "/proc/sys/net/ipv4/ip_local_port_range"
FIREWALL_LOADED = "/var/lib/dgxspark/firewall"


def look(host: Host) -> dict[str, Any]:
    """Say what there is, and what going back would do."""
    same, current = host.same(), host.now()
    number, why = engine.target(host.manifests, host.current, same, host.params["generation"])
    manifest = host.manifests.get(number or 0)
    todo = host.steps_to(manifest) if manifest else engine.Steps()
    units = current.state.units if current else {}
    receipts = {}
    for path in host.receipts:
        receipt = host.read_json(path)
        receipts[str(receipt.get("service"))] = {
            "model": (receipt.get("deployed") or {}).get("model"),
            "benchmark": receipt.get("benchmark"),
        }
    return {
        "same": same,
        "restoring": host.current.restoring,
        "running": all(
            (host.state.units.get(name) or {}).get("active") == "active"
            for name, unit in units.items()
            if unit["enabled"]
        ),
        "safe": engine.restorable(host.manifests, host.current.number),
        "target": number,
        "problems": [why] if manifest is None else missing(host, manifest),
        "key_changes": other_keys(host, manifest) if manifest else [],
        "steps": engine.lines_of(todo),
        "touched": sorted({*todo.start, *todo.restart, *todo.stop}),
        "gateways": engine.gateways([current, manifest]),
        "clusters": engine.clusters([current, manifest]),
        "plan": manifest.plan if manifest else {},
        "receipts": receipts,
    }


def compare(host: Host) -> dict[str, Any]:
    """Say in what the host differs from its current generation; names and states, no contents."""
    if host.silent:
        raise Refused(f"what differs is not known: Docker does not say which images run: {host.silent}")
    current = host.now()
    state = current.state if current else engine.State()
    there, then = host.state.files, state.files
    written, attributes, added = engine.differences(there, then) if current else ([], [], [])
    keys = engine.secret_changes(host.secrets, current.secrets) if current else ([],) * 4
    recorded = None
    if current is not None:
        recorded = {
            **{key: getattr(current, key) for key in ("number", "at", "proven", "wanted", "facts")},
            "from": host.current.came_from,
            "restoring": host.current.restoring,
            "units": state.units,
            "images": state.images,
        }
    moved = {}
    for name, entry in state.models.items():
        now = host.model(entry["repo"], entry["revision"], None)["commit"] if entry.get("repo") else None
        if now != entry.get("commit"):
            moved[name] = {**{key: entry[key] for key in ("repo", "revision")}, "was": entry["commit"], "is": now}
    return {
        "recorded": recorded,
        "same": host.same(),
        "files": {
            "changed": sorted([*(path for path in written if path in there), *keys[0]]),
            "missing": sorted([*(path for path in written if path not in there), *keys[1]]),
            "added": sorted([*added, *keys[2]]),
            "attributes": sorted([*attributes, *keys[3]]),
        },
        "units": host.state.units,
        "moved": moved,
        "models": [whole(host, entry) for entry in host.params["models"]],
        "receipts": {
            name: host.read_json(f"{engine.RECEIPTS}/{name}.json").get("deployed") or {}
            for name in sorted(engine.service_names(there))
        },
    }


def up_to_date(host: Host) -> list[str]:
    """Return why a run that applies the plan could find something to do; empty when it could not."""
    params, parts = host.params, host.params["parts"]
    if parts is not None:
        host.leave_out(params["others"], models=not {"service", "models"} & set(parts))
    current = host.now()
    why = list(params["differs"])
    if host.silent:
        return [*why, f"Docker does not say which images run: {host.silent}"]
    if current is None:
        return [*why, "nothing was recorded yet"]
    number = current.number
    state = current.state
    if not current.proven or host.current.restoring is not None:
        why.append(f"generation {number} is not proven")
    if current.wanted != params["wanted"]:
        why += other_wishes(number, current.parts, parts)
    if (parts is None or "prove" in parts) and params["facts"] != current.facts:
        why.append("kernel, driver or DGX OS are others than at the last proof")
    if not host.same():
        why.append(f"files, units, images or models are not those of generation {number}")
    if any(engine.secret_changes(host.secrets, current.secrets)):
        why.append(f"key files are not those of generation {number}")
    if host.state.folders != state.folders:
        why.append(f"folders are not those of generation {number}")
    why += engine.lines_of(host.steps_to(current))
    why += [
        f"{name} is {seen['active']}"
        for name, seen in sorted(host.state.units.items())
        if seen["enabled"] and seen["active"] != "active"
    ]
    why += firewall(host) + generation_asks.lying(host)
    why += [f"{entry['path']} is not as it has to be" for entry in params["folders"] if not folder_is(host, entry)]
    why += [text for entry in params["models"] if entry.get("repo") for text in faults(host, entry)]
    why += [text for entry in params["models"] if entry.get("copied") for text in uncopied(host, entry)]
    why += [text for entry in params["models"] if entry.get("url") for text in vocabulary_faults(host, entry["path"])]
    for service in params["services"] or []:
        began = host.began.get(service["unit"])
        model = service.get("model") or {}
        for repo in filter(None, [model.get("repo"), *(more.get("repo") for more in model.get("extra") or [])]):
            stamp = snapshots.repair_stamp(host.at(snapshots.SUMS_DIR), repo)
            if began is not None and stamp.exists() and file_times.written_at(stamp, *host.clocks) > began:
                why.append(f"{service['unit']} runs with a file of {repo} that was damaged")
    lacking = {engine.tag_of(image) for image in engine.used(host.manifests.values())[1]} - host.tags()
    why += [f"the image {tag} of a generation has no name" for tag in sorted(lacking)]
    return why


def other_wishes(number: int, recorded: Mapping[str, str], parts: dict[str, str] | None) -> list[str]:
    """Say what is wanted otherwise than a generation, of which the whole is.

    number: of the generation. recorded: the sums of what single tags had put there. parts: those of the tags of this run, None without tags.
    """
    if parts is None:
        return [f"something else is wanted than generation {number}"]
    return [
        f"something else of {name} is wanted than generation {number}"
        for name, wanted in parts.items()
        if wanted and recorded.get(name) != wanted
    ]


def firewall(host: Host) -> list[str]:
    """Say whether the kernel's table is not what the role firewall loaded; somebody may have flushed it, or changed the ephemeral ports."""
    if FIREWALL not in host.state.files:
        return []
    rc, out, err = host.run([NFT, "--stateless", "list", "table", "inet", "dgxspark"])
    if rc:
        return [f"the table of the firewall cannot be seen: {(err or out).strip()}"]
    try:
        loaded = host.at(FIREWALL_LOADED).read_text(encoding="utf-8")
    except OSError:
        loaded = ""
    why = [] if out.strip() == loaded.strip() else ["the table of the firewall is not what was loaded"]
    return why + other_ports(host) if host.params["ephemeral"] else why


def other_ports(host: Host) -> list[str]:
    """Say whether the ephemeral ports of the kernel are others than those that the table closes."""
    try:
        ports = "-".join(host.at(EPHEMERAL).read_text(encoding="utf-8").split())
        closed = host.at(FIREWALL).read_text(encoding="utf-8")
    except OSError as error:
        return [f"which ephemeral ports are closed cannot be seen: {error}"]
    there = re.search(rf"(?<![\d-]){re.escape(ports)}(?![\d-])", closed)
    return [] if there else [f"the table of the firewall is not for the ephemeral ports {ports}"]


def vocabulary_fault(file: Path) -> str:
    """Return C(is gone) or C(is damaged) for a vocabulary, empty if nothing is wrong with it."""
    if not file.is_file():
        return "is gone"
    is_whole = hashlib.sha256(file.read_bytes()).hexdigest().startswith(vocabularies.sum_in_name(file.name))
    return "" if is_whole else "is damaged"


def vocabulary_faults(host: Host, path: str) -> list[str]:
    """Say what the role models would mend of a vocabulary, which engines need from elsewhere than the hub."""
    fault = vocabulary_fault(host.at(path))
    return [f"the vocabulary {path} {fault}"] if fault else []


def folder_is(host: Host, entry: dict[str, Any]) -> bool:
    """Whether a folder is there, and, where it is ours, with its owner and mode."""
    path = host.at(entry["path"])
    if not path.is_dir():
        return False
    if not made.is_own(entry["path"]):
        return True
    seen = host.owner(path)
    wanted = {"owner": "root", "group": "root", "mode": "0755", **entry}
    return all(seen[key] == str(wanted[key]) for key in seen)


def faults(host: Host, asked: dict[str, Any]) -> list[str]:
    """Say what the role models would mend of a model."""
    hf_home, what = host.at(host.params["hf_home"]), f"{asked['repo']}@{asked['revision']}"
    found = snapshots.look(hf_home, asked["repo"], asked["revision"], list(asked.get("only") or []))
    sums = snapshots.Sums(host.at(snapshots.SUMS_DIR), asked["repo"])
    wrong = snapshots.faults(found, asked, sums, str(host.params["settings"].get("verify") or "changed"))
    if not host.check:
        try:
            sums.save()
        except OSError as error:  # they are read again the next time
            host.warn(f"sums of {asked['repo']} could not be kept: {error}")
    why = [f"{what}: {each['file']} {each['why']}" for each in wrong]
    if found["path"] and asked.get("files"):
        strays = snapshots.unlisted(Path(found["path"]), asked["files"], list(asked.get("only") or []))
        why += [f"{what}: {name} is not in the lock file" for name in strays]
    if not found["complete"]:
        why.append(f"{what} is not whole")
    elif asked.get("link"):
        link = hf_home / asked["link"]
        if not link.is_symlink() or link.resolve() != Path(found["path"]).resolve():
            why.append(f"{link} does not lead to {what}")
    return why


def uncopied(host: Host, asked: dict[str, Any]) -> list[str]:
    """Say which files of a model from the controller are not what was copied; M(dgxspark.vllm.model_folder) knows them by size and time too."""
    if host.params["settings"].get("verify") == "all":
        return [f"{asked['path']} is to be read as a whole, and compared with the controller's"]
    hf_home, path = Path(host.params["hf_home"]), Path(asked["path"])
    if hf_home not in path.parents:
        return [f"{path} does not lie below {hf_home}"]
    within = path.relative_to(hf_home)
    ours = set(made.made_of(made.local_name(path.name)).get(str(hf_home)) or [])
    wrong = []
    for name, wanted in asked["copied"].items():
        inside = f"{within}/{name}"
        try:
            now = beneath.info(host.at(str(hf_home)), inside)
        except OSError:  # a link among them
            now = None
        same = (
            now is not None
            and stat.S_ISREG(now.st_mode)
            and (now.st_size, int(now.st_mtime)) == (wanted["size"], wanted["mtime"])
        )
        # Modes of what was brought are mended, of what was there not.
        if now is None or not same or (inside in ours and stat.S_IMODE(now.st_mode) != COPIED_MODE):
            wrong.append(name)
    more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
    return [f"{path}: {', '.join(wrong[:MOST_NAMED])}{more} not as on the controller"] if wrong else []


def whole(host: Host, asked: dict[str, Any]) -> dict[str, Any]:
    """Say whether a planned model is there as it should be, by the names and sizes of its files."""
    if asked.get("url"):
        fault = vocabulary_fault(host.at(asked["path"]))
        wrong = ["its checksum is another"] if fault == "is damaged" else []
        vocabulary = {"there": fault != "is gone", "wrong": wrong, "is_vocabulary": True}
        return {"repo": None, "path": asked["path"], "revision": None, "commit": None, **vocabulary}
    if not asked.get("repo"):
        place = host.at(asked["path"])
        there = place.is_file() or (place.is_dir() and any(place.iterdir()))
        return {"repo": None, "path": asked["path"], "revision": None, "commit": None, "there": there, "wrong": []}
    hf_home, only = host.at(host.params["hf_home"]), list(asked.get("only") or [])
    found: dict[str, Any] = {"path": None, "missing": [], "commit": None}
    # As the role models finds it: a bundle brings the locked commit without a name for it.
    for revision in (asked.get("revision") or "main", asked.get("locked")):
        if revision and not found["path"]:
            found = snapshots.look(hf_home, asked["repo"], revision, only)
    wrong = [f"{name} is missing" for name in found["missing"]]
    if found["path"] and asked.get("files"):
        sums = snapshots.Sums(host.at(snapshots.SUMS_DIR), asked["repo"])
        listed = snapshots.check(Path(found["path"]), asked["files"], sums, "size")
        wrong = list(dict.fromkeys([*wrong, *(f"{each['file']} {each['why']}" for each in listed)]))
        strays = snapshots.unlisted(Path(found["path"]), asked["files"], only)
        wrong += [f"{name} is not in the lock file" for name in strays]
    return {
        "repo": asked["repo"],
        "path": None,
        "revision": asked.get("revision") or "main",
        "commit": found["commit"],
        "there": bool(found["path"]),
        "wrong": wrong,
    }


def missing(host: Host, manifest: engine.Generation) -> list[str]:
    """Say what a generation needs that is not there: images, weights, kept files, accounts."""
    state = manifest.state
    problems = missing_images(host, state.images)
    for name, entry in sorted(state.models.items()):
        lost = lost_weights(host, entry)
        if lost:
            problems.append(f"{name}: {lost}; fetch it again (site.yml --tags models with that revision) and run again")
    problems += missing_vocabularies(host, state.files)
    for path, entry in [*state.files.items(), *manifest.receipts.items()]:
        if entry.get("sha256") and host.kept(entry) is None:
            problems.append(
                f"{path}: what generation {manifest.number} kept of it is gone or damaged "
                f"({host.folder}/store/{entry['sha256']}); name another generation"
            )
    problems += [
        f"{path}: this key is not on the host any more, and generations keep none; put it there (root, mode 0600), or name a "
        "generation that does without"
        for path in engine.secret_changes(host.secrets, manifest.secrets)[1]
    ]
    if os.geteuid() == 0:
        for path, entry in [*state.files.items(), *state.folders.items()]:
            if "owner" in entry and not (
                account(pwd.getpwnam, entry["owner"]) and account(grp.getgrnam, entry["group"])
            ):
                problems.append(
                    f"{path}: no account {entry['owner']}:{entry['group']} on this host; run site.yml --tags host"
                )
    return sorted(set(problems))


def missing_vocabularies(host: Host, files: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say which vocabularies that the units of a generation mount are not there, or damaged."""
    problems = []
    for path, entry in files.items():
        unit = host.kept(dict(entry)) if path.endswith(".service") and entry.get("sha256") else None
        for vocabulary in vocabularies.mounted_by((unit or b"").decode(errors="replace")):
            fault = vocabulary_fault(host.at(vocabulary))
            if fault:
                what = f"{PurePosixPath(path).stem}: its vocabulary {vocabulary} {fault}"
                problems.append(f"{what}; fetch it again (site.yml --tags models) and run again")
    return problems


def missing_images(host: Host, images: dict[str, Any]) -> list[str]:
    """Say which images of a generation are not there; that Docker does not say is a problem of its own."""
    there = host.inspect(
        sorted(
            {entry["ref"] for entry in images.values()} | {entry["id"] for entry in images.values() if entry.get("id")}
        )
    )
    if host.silent:
        return [
            f"which images are on this host is not known: Docker does not say: {host.silent}. See systemctl status docker, and run again"
        ]
    problems = []
    for unit, entry in sorted(images.items()):
        by_tag = "@" not in entry["ref"] and not entry["ref"].startswith("sha256:")
        if entry["ref"] in there and (there[entry["ref"]] == entry.get("id") or not by_tag):
            continue
        if entry.get("id") in there and by_tag:
            continue  # the name leads elsewhere by now; it is set back
        problems.append(
            f"{unit}: its image {entry['ref']} ({str(entry.get('id'))[:19]}) is not on this host any more; "
            f"bring it (docker pull {entry['ref']}, or docker load) and run again"
        )
    return problems


def other_keys(host: Host, manifest: engine.Generation) -> list[str]:
    """Say which key files are others than at the time of a generation."""
    changed, _gone, come, _attributes = engine.secret_changes(host.secrets, manifest.secrets)
    number = manifest.number
    return [f"{path} changed since generation {number}; it stays as it is now" for path in changed] + [
        f"{path} is newer than generation {number}; it stays" for path in come
    ]


def lost_weights(host: Host, entry: dict[str, Any]) -> str:
    """Say what is missing of a model, empty when it is whole."""
    if entry.get("path"):
        path = host.at(entry["path"])
        there = path.is_file() or (path.is_dir() and any(path.iterdir()))
        return "" if there else f"its weights {entry['path']} are gone"
    snapshot = host.model_folder(entry["repo"]) / "snapshots" / str(entry["commit"])
    of = f"its weights {entry['repo']}@{str(entry['commit'])[:12]}"
    if not snapshot.is_dir():
        return f"{of} are gone"
    listed, broken = snapshots.listing(snapshot)
    if broken or not listed:
        return f"{of} are not whole ({', '.join(sorted(broken)[:3]) or 'empty'})"
    return ""


def account(find: Any, name: str) -> bool:
    """Tell whether there is such an account; a number stands for itself."""
    if name.isdigit():
        return True
    try:
        find(name)
    except KeyError:
        return False
    return True
