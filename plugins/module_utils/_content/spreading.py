# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planning the distribution of images and models: which host has what, and from which hosts it can take what it lacks.

Pure. A I(look) is C(distribution) of M(dgxspark.vllm.spark_info). A I(thing) is an image or a snapshot of a model.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .snapshots import TOKENIZER_FILES
from .spread_names import TOOLS, local_alias

MOST_SOURCES = 8
"""Sources that a host asks for one thing; each question is a connection of SSH."""
LOAD_FACTOR = 2
"""Docker writes an image that it loads to the disk twice: as an archive, and as layers. The received files are a third copy."""
GB = 1e9

Looks = Mapping[str, Mapping[str, Any]]
"""Reports of hosts, in the order of the play."""


def name_at(look: Mapping[str, Any], ref: str) -> str:
    """Return the name of an image on a host, now or after a transfer."""
    image = look["images"].get(ref) or {}
    return str(image.get("name") or local_alias(ref) or ref)


def gigabytes(count: float) -> str:
    """Return bytes as text, in units of disks and download pages."""
    return f"{count / GB:.2f} GB"


# --- survey -----------------------------------------------------------------------------------------------------------


def has_model(look: Mapping[str, Any], key: str) -> bool:
    """Return whether a host has a snapshot, with each pattern of its selected files; of a tokenizer's patterns, any."""
    model = look["models"].get(key) or {}
    files, patterns = model.get("files") or [], model.get("only") or []
    if not model.get("complete") or not files or any(entry["size"] is None for entry in files):
        return False
    optional = TOKENIZER_FILES if set(TOKENIZER_FILES) <= set(patterns) else ()
    required = [pattern for pattern in patterns if pattern not in optional]
    return all(any(fnmatch.fnmatch(entry["path"], pattern) for entry in files) for pattern in required)


def is_changed(model: Mapping[str, Any]) -> bool:
    """Return whether a file has changed since it was verified."""
    return any(entry["known"] == "changed" for entry in model["files"])


def most_common(values: Sequence[Any]) -> Any:
    """Return the most frequent value, the first one of several, or None."""
    return Counter(values).most_common(1)[0][0] if values else None


def survey(looks: Looks, verify: str = "moved", doubted: Mapping[str, Collection[str]] | None = None) -> dict[str, Any]:
    """Return the hosts that have and lack each thing, and the work to do before it can move.

    :param verify: C(all) has every file read on every host; C(moved) files before their first transfer, and changed ones
    :param doubted: host to the models that arrived from it with wrong digests, which it has to verify
    :returns: C({things, fetch, verify, notes}). fetch: host to the keys that it downloads, because no host has them. verify: host to
        the keys whose files it reads first. All other things are ready to move
    """
    result: dict[str, Any] = {"things": {}, "fetch": {}, "verify": {}, "notes": []}
    for kind in ("images", "models"):
        for key in dict.fromkeys(key for look in looks.values() for key in look[kind]):
            hosts = [host for host, look in looks.items() if key in look[kind]]
            if kind == "images":
                thing = _survey_image(looks, key, hosts, result["notes"])
            else:
                suspects = {host for host, keys in (doubted or {}).items() if key in keys}
                thing = _survey_model(looks, key, hosts, verify, suspects, result)
            result["things"][key] = thing
            is_verifying = any(key in keys for keys in result["verify"].values())
            if thing["lacking"] and not thing["holders"] and not is_verifying:
                # Spread over hosts, so that several things arrive in parallel; hosts with a part of it first.
                host = min(
                    thing["lacking"],
                    key=lambda host: (len(result["fetch"].get(host, [])), -_present_bytes(looks[host], key)),
                )
                result["fetch"].setdefault(host, []).append(key)
    return result


def _present_bytes(look: Mapping[str, Any], key: str) -> int:
    """Return the bytes that a host has of an incomplete snapshot."""
    return sum(entry["size"] or 0 for entry in (look["models"].get(key) or {}).get("files") or [])


def _survey_image(looks: Looks, key: str, hosts: Sequence[str], notes: list[str]) -> dict[str, Any]:
    """Return the hosts that have and lack an image; add a note about hosts with a different one."""
    images = {host: image for host in hosts if (image := looks[host]["images"][key])}
    content = most_common([image["content"] for image in images.values()])
    holders = [host for host, image in images.items() if image["content"] == content]
    differing = [host for host in images if host not in holders]
    if differing:
        notes.append(
            f"{key} is another image on {', '.join(differing)} than on {', '.join(holders)}; it was not changed there. Name the image by its "
            "digest, or remove the old one"
        )
    image = images[holders[0]] if holders else None
    return {
        "kind": "image",
        "holders": holders,
        "lacking": [host for host in hosts if host not in images],
        "bytes": image["size"] if image else 0,
        "image": image,
        "ref": key,
        "alias": local_alias(key),
    }


def _survey_model(
    looks: Looks, key: str, hosts: Sequence[str], verify: str, suspects: Collection[str], result: dict[str, Any]
) -> dict[str, Any]:
    """Return the hosts that have and lack a model; add the hosts that verify it, and notes, to the result of the survey."""
    present = {host: looks[host]["models"][key] for host in hosts if has_model(looks[host], key)}
    lacking = [host for host in hosts if host not in present]
    commit, models = _of_common_commit(key, present, result["notes"])
    verified = [host for host, model in models.items() if all(entry["known"] == "yes" for entry in model["files"])]
    doubtful = _doubtful(models, verified, verify, suspects, len(lacking))
    for host in filter(doubtful.__contains__, models):
        result["verify"].setdefault(host, []).append(key)
    files = models[[*verified, *models][0]]["files"] if models else []
    about = looks[hosts[0]]["models"][key]
    return {
        "kind": "model",
        "holders": [host for host in verified if host not in doubtful],
        "lacking": lacking,
        "bytes": sum({entry["store"]: entry["size"] for entry in files}.values()),
        "commit": commit,
        "repo": about["repo"],
        "revision": about["revision"],
        "folder": about["folder"],
        "files": files,
        "verified": bool(verified),
    }


def _of_common_commit(key: str, present: Looks, notes: list[str]) -> tuple[str | None, dict[str, Mapping[str, Any]]]:
    """Return the most frequent commit of a model, and the models that have it; add a note about the other hosts."""
    commit = most_common([model["commit"] for model in present.values()])
    models = {host: model for host, model in present.items() if model["commit"] == commit}
    if len(models) < len(present):
        differing = ", ".join(host for host in present if host not in models)
        notes.append(
            f"{key} is another commit on {differing} than {commit} elsewhere; it was not changed there. Set model.revision to a commit"
        )
    return commit, models


def _doubtful(models: Looks, verified: Sequence[str], verify: str, suspects: Collection[str], lacking: int) -> set[str]:
    """Return the hosts that have to read their files of a model before they send them.

    :param suspects: hosts from which it arrived with wrong digests
    """
    sizes = {host: {entry["path"]: entry["size"] for entry in model["files"]} for host, model in models.items()}
    # Verified files have the right sizes; without any, hosts that differ are all read.
    expected = sizes[verified[0]] if verified else next(iter(sizes.values()), {})
    differing = {host for host in models if sizes[host] != expected}
    if verify == "all" or (differing and not verified):
        return set(models)
    doubtful = differing | {host for host, model in models.items() if host in suspects or is_changed(model)}
    # As many sources as receivers, so that the distribution starts wide.
    unverified = [host for host in models if host not in {*verified, *doubtful}]
    ready = set(verified) - doubtful
    return doubtful | set(unverified[: max(min(lacking, len(models)) - len(ready), 0)])


def verify_tasks(surveyed: Mapping[str, Any], looks: Looks, host: str) -> list[dict[str, Any]]:
    """Return the files that a host has to read, as tasks of a job."""
    tasks = []
    for key in surveyed["verify"].get(host, []):
        thing = surveyed["things"][key]
        whole = {entry["store"]: entry for entry in thing["files"]} if thing["verified"] else {}
        files = [
            {
                **{name: entry[name] for name in ("path", "store", "size")},
                "sha256": (whole.get(entry["store"]) or entry)["sha256"],
                "whole_size": (whole.get(entry["store"]) or {}).get("size"),
            }
            for entry in looks[host]["models"][key]["files"]
        ]
        total = sum(entry["size"] or 0 for entry in files)
        tasks.append({"kind": "verify", "key": key, "folder": thing["folder"], "files": files, "bytes": total})
    return tasks


# --- free space -------------------------------------------------------------------------------------------------------


def needed_bytes(look: Mapping[str, Any], thing: Mapping[str, Any], key: str) -> dict[str, int]:
    """Return the bytes that a thing still needs on a host's disks, by key of the report's C(disks)."""
    if thing["kind"] == "image":
        return {"images": LOAD_FACTOR * int(thing["bytes"]), "saved": int(thing["bytes"])}
    model = look["models"].get(key) or {}
    present = {entry["store"]: entry["size"] for entry in model.get("files") or [] if entry["size"] is not None}
    staged = model.get("staged") or {}
    total = 0
    for store, size in {entry["store"]: entry["size"] for entry in thing["files"]}.items():
        is_damaged = present.get(store) not in (None, size)
        total += size if is_damaged else max(size - present.get(store, staged.get(store, 0)), 0)
    return {"models": total}


def without_room(surveyed: Mapping[str, Any], looks: Looks, reserve: float) -> dict[str, str]:
    """Return the hosts without enough disk space for the transfers, with the figures.

    :param reserve: bytes that stay free
    """
    messages: dict[str, str] = {}
    for host, look in looks.items():
        needs: dict[str, Counter[str]] = {}
        disks: dict[str, Mapping[str, Any]] = {}
        for key, thing in surveyed["things"].items():
            for name, count in needed_bytes(look, thing, key).items() if host in thing["lacking"] else []:
                disk = disks.setdefault(look["disks"][name]["device"], look["disks"][name])
                needs.setdefault(disk["device"], Counter())[key] += count
        for device, parts in needs.items():
            needed, disk = sum(parts.values()), disks[device]
            if disk["free"] - needed < reserve:
                named = ", ".join(f"{gigabytes(count)} for {key}" for key, count in parts.items())
                messages[host] = (
                    f"{host}: {disk['path']} has {gigabytes(disk['free'])} free; {gigabytes(needed)} are to come ({named}) "
                    f"and {gigabytes(reserve)} stay free (spread_reserve_gb). Nothing was moved. "
                    f"Make {gigabytes(needed + reserve - disk['free'])} of room there"
                )
    return messages


def unable(surveyed: Mapping[str, Any], looks: Looks) -> dict[str, str]:
    """Return the participating hosts without a needed program or an address, each with the fix."""
    messages: dict[str, str] = {}
    for host in participants(surveyed["things"]):
        look = looks[host]
        if look["tools_missing"]:
            packages = " ".join(sorted({TOOLS[tool] for tool in look["tools_missing"]}))
            messages[host] = f"{host} lacks {', '.join(look['tools_missing'])}: apt-get install {packages}"
        elif not look["address"]:
            messages[host] = f"{host} has no default route, so its address is not known; set spread_address for it"
    return messages


def remove_sources(surveyed: Mapping[str, Any], unable_hosts: Mapping[str, str]) -> dict[str, str]:
    """Remove hosts that cannot send from the sources; return the hosts that have no source left, with the reason.

    unable_hosts: host to the reason.
    """
    messages: dict[str, str] = {}
    for key, thing in surveyed["things"].items():
        removed = [host for host in thing["holders"] if host in unable_hosts]
        thing["holders"] = [host for host in thing["holders"] if host not in unable_hosts]
        if removed and not thing["holders"]:
            reason = f"{key} is on {', '.join(removed)} alone, and {unable_hosts[removed[0]]}"
            messages.update({host: f"{host}: {reason}" for host in thing["lacking"]})
    return messages


def remove_receivers(surveyed: Mapping[str, Any], hosts: Collection[str]) -> None:
    """Remove hosts that cannot receive anything."""
    for thing in surveyed["things"].values():
        thing["lacking"] = [host for host in thing["lacking"] if host not in hosts]


def participants(things: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the hosts between which something moves."""
    moving = [thing for thing in things.values() if thing["lacking"]]
    return list(dict.fromkeys(host for thing in moving for host in [*thing["holders"], *thing["lacking"]]))


# --- links ------------------------------------------------------------------------------------------------------------


def links(host: Mapping[str, Any], source: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the addresses over which a host receives from a source, the fastest first.

    Hosts share a fabric if it has the same name, and if both have an interface in the same network: many pairs without a common
    cable use the same subnet.
    """
    result = []
    if host["fabric"] and host["fabric"] == source["fabric"]:
        addresses_there = {entry["network"]: entry["address"] for entry in source["interfaces"]}
        for entry in host["interfaces"]:
            if entry["network"] in addresses_there:
                address = addresses_there[entry["network"]]
                result.append({"kind": "fabric", "own": entry["address"], "source": address})
    if host["address"] and source["address"]:
        result.append({"kind": "lan", "own": host["address"], "source": source["address"]})
    return result


def share_fabric(looks: Looks, host: str, other: str) -> bool:
    """Return whether two hosts share a fabric."""
    return any(link["kind"] == "fabric" for link in links(looks[host], looks[other]))


def islands(looks: Looks, hosts: Sequence[str]) -> dict[str, int]:
    """Return the number of the island of each host: hosts that a fabric joins, in a ring also through others that need the thing."""
    numbers: dict[str, int] = {}
    for number, first in enumerate(hosts):
        waiting = [] if first in numbers else [first]
        while waiting:
            host = waiting.pop()
            if host not in numbers:
                numbers[host] = number
                waiting += [other for other in hosts if other not in numbers and share_fabric(looks, other, host)]
    return numbers


def addresses(look: Mapping[str, Any]) -> list[str]:
    """Return the addresses on which a source listens."""
    return list(dict.fromkeys(address for address in [look["address"], *fabric_addresses(look)] if address))


def fabric_addresses(look: Mapping[str, Any]) -> list[str]:
    """Return the addresses of a source on a shared fabric."""
    return [entry["address"] for entry in look["interfaces"] if look["fabric"]]


# --- pulling ----------------------------------------------------------------------------------------------------------


def pull_order(looks: Looks, holders: Sequence[str], lacking: Sequence[str]) -> list[str]:
    """Return the hosts of a thing in the order in which they can have it.

    First the holders; then one host of each island without a holder, which takes it over the LAN; then hosts with a neighbour before
    them, over the fabric. A host waits only for hosts before it, so no two hosts wait for each other.
    """
    order, waiting = list(holders), list(lacking)
    island = islands(looks, [*holders, *lacking])
    reached = {island[host] for host in holders}
    for host in sorted(lacking, key=lambda host: -sum(share_fabric(looks, host, other) for other in lacking)):
        if island[host] not in reached:
            reached.add(island[host])
            order.append(host)
            waiting.remove(host)
    while waiting:  # nearest hosts first, so that a ring is filled both ways round
        near = [host for host in waiting if any(share_fabric(looks, host, other) for other in order)]
        order += near
        waiting = [host for host in waiting if host not in near]
    return order


def sources_of(looks: Looks, order: Sequence[str], host: str) -> list[str]:
    """Return the hosts from which a host can take a thing, the best first.

    A source serves one host at a time over each network. The first choices form a binomial tree, so that the number of sources doubles
    with each copy.

    :returns: hosts before it in the order, those on its fabric first
    """
    before = [other for other in order[: order.index(host)] if links(looks[host], looks[other])]
    near = [other for other in before if share_fabric(looks, host, other)]
    far = [other for other in before if other not in near]
    sources = [*_parent_first(near), *_parent_first(far)]
    # The first host of the order has the thing from the start.
    return sources if len(sources) <= MOST_SOURCES else list(dict.fromkeys([*sources[: MOST_SOURCES - 1], before[0]]))


def _parent_first(hosts: Sequence[str]) -> list[str]:
    """Return hosts beginning with the parent that a binomial tree has for the next host."""
    first = len(hosts) - (1 << len(hosts).bit_length() - 1) if hosts else 0
    return [*hosts[first:], *hosts[:first]]


def pull_tasks(things: Mapping[str, Mapping[str, Any]], looks: Looks) -> dict[str, list[dict[str, Any]]]:
    """Return the things that each host takes, with their sources, in the same order on all hosts."""
    tasks: dict[str, list[dict[str, Any]]] = {host: [] for host in looks}
    for key, thing in things.items():
        lacking = [host for host in thing["lacking"] if host in looks]
        order = pull_order(looks, [host for host in thing["holders"] if host in looks], lacking)
        for host in lacking:
            sources = [
                {"name": name, "links": links(looks[host], looks[name])} for name in sources_of(looks, order, host)
            ]
            tasks[host].append({"key": key, "sources": sources})
    return tasks


# --- reports ----------------------------------------------------------------------------------------------------------


def plan_lines(surveyed: Mapping[str, Any], looks: Looks) -> list[str]:
    """Return the planned steps as lines."""
    things = surveyed["things"]
    lines = [
        f"{key}: {host} brings it into the site; {len(set(things[key]['lacking']) - {host})} more take it from there"
        for host, keys in surveyed["fetch"].items()
        for key in keys
    ]
    for key in things:
        hosts = [host for host, keys in surveyed["verify"].items() if key in keys]
        if hosts:
            verb = "reads the files and compares" if len(hosts) == 1 else "read the files and compare"
            lines.append(f"{key}: {', '.join(hosts)} {verb} them with their digests")
    ready = {key: thing for key, thing in things.items() if thing["holders"]}
    for host, tasks in pull_tasks(ready, looks).items():
        for task in tasks:
            for source in task["sources"][:1]:
                count = gigabytes(things[task["key"]]["bytes"])
                lines.append(f"{source['name']} to {host} ({source['links'][0]['kind']}): {task['key']}, {count}")
    return lines


def result_lines(host: str, results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what a host took, and its failed attempts, as lines."""
    lines = [
        f"not: {failure['source']} to {host}: {failure['why']}"
        for result in results.values()
        for failure in result.get("failed") or []
    ]
    for key, result in results.items():
        if result["ok"] and result.get("source"):
            count, seconds = result.get("bytes") or 0, result.get("seconds") or 0
            rate = count / seconds / 1e6 if seconds else 0
            lines.append(
                f"{result['source']} to {host} ({result['link']}): {key}, {gigabytes(count)} in {seconds:.1f} s, {rate:.0f} MB/s"
            )
        elif result["ok"] and result.get("damaged"):
            files = ", ".join(result["damaged"])
            lines.append(f"{host}: {key} is damaged there ({files}); these files were taken out of use")
    return lines


def doubted_sources(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, list[str]]:
    """Return the things that arrived with wrong digests, by the host that sent them. results: of the worker, by receiver and key."""
    doubted: dict[str, list[str]] = {}
    for items in results.values():
        for key, result in items.items():
            for failure in result.get("failed") or []:
                if failure.get("wrong") and key not in doubted.setdefault(failure["source"], []):
                    doubted[failure["source"]].append(key)
    return doubted
