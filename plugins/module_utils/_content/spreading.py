# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Spreading images and models from node to node: who has what, and who sends what to whom in which round.

Pure. A I(look) is C(distribution) of M(dgxspark.vllm.spark_info). A I(thing) is an image or a snapshot of a model.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .snapshots import TOKENIZER_FILES
from .spread_names import TOOLS, local_alias

MOST_TRIES = 3
"""How often a host tries to get one thing, each time from another source where there is one."""
LOAD_FACTOR = 2
"""The engine writes an image that is loaded to the disk as it comes, and again as layers."""
GB = 1e9


def name_at(look: Mapping[str, Any], ref: str) -> str:
    """Return the name by which a host has an image, or will have it when it came from another one."""
    found = look["images"].get(ref) or {}
    return str(found.get("name") or local_alias(ref) or ref)


def gigabytes(count: float) -> str:
    """Write bytes as disks and download pages count them."""
    return f"{count / GB:.2f} GB"


# --- who has what -----------------------------------------------------------------------------------------------------


def has_model(look: Mapping[str, Any], key: str) -> bool:
    """Tell whether a host has a snapshot, each pattern of its selected files included; of those of a tokenizer, any."""
    model = look["models"].get(key) or {}
    files = model.get("files") or []
    patterns = model.get("only") or []
    optional = TOKENIZER_FILES if set(TOKENIZER_FILES) <= set(patterns) else ()
    return (
        bool(model.get("complete") and files)
        and all(entry["size"] is not None for entry in files)
        and all(
            any(fnmatch.fnmatch(entry["path"], pattern) for entry in files)
            for pattern in patterns
            if pattern not in optional
        )
    )


def knows(model: Mapping[str, Any]) -> bool:
    """Tell whether every file was verified and has not changed since."""
    return all(entry["known"] == "yes" for entry in model["files"])


def sizes(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the files of a snapshot measure."""
    return {entry["path"]: entry["size"] for entry in model["files"]}


def most_common(values: Sequence[Any]) -> Any:
    """Return the value that most have, the first of them where there are several."""
    return Counter(values).most_common(1)[0][0] if values else None


def survey(looks: Mapping[str, Mapping[str, Any]], verify: str = "moved") -> dict[str, Any]:
    """Say of every thing who has it, who lacks it, and what has to be done before it can move.

    looks: by host, in the order of the play. verify: C(all) has every file read on every host; C(moved) the files that
    are to be sent for the first time, and those that changed since they were verified.

    Returns C({things, fetch, verify, notes}). fetch: host to the keys that it is to bring into the site, because nobody
    has them. verify: host to the keys whose files it is to read first. Things that need neither are ready to move.
    """
    found: dict[str, Any] = {"things": {}, "fetch": {}, "verify": {}, "notes": []}
    for kind in ("images", "models"):
        for key in dict.fromkeys(key for look in looks.values() for key in look[kind]):
            wanted = [host for host, look in looks.items() if key in look[kind]]
            thing = _image(looks, key, wanted, found) if kind == "images" else _model(looks, key, wanted, verify, found)
            found["things"][key] = thing
            if thing["lacking"] and not thing["holders"] and not any(key in keys for keys in found["verify"].values()):
                # Spread over hosts, so that several things come in at once; whoever has a part of it comes first.
                entry = min(
                    thing["lacking"], key=lambda host: (len(found["fetch"].get(host, [])), -_part(looks[host], key))
                )
                found["fetch"].setdefault(entry, []).append(key)
    return found


def _part(look: Mapping[str, Any], key: str) -> int:
    """Return how many bytes of a snapshot that is not whole a host has."""
    return sum(entry["size"] or 0 for entry in (look["models"].get(key) or {}).get("files") or [])


def _image(
    looks: Mapping[str, Mapping[str, Any]], key: str, wanted: Sequence[str], found: dict[str, Any]
) -> dict[str, Any]:
    have = {host: looks[host]["images"][key] for host in wanted if looks[host]["images"][key]}
    content = most_common([image["content"] for image in have.values()])
    holders = [host for host, image in have.items() if image["content"] == content]
    others = [host for host in have if host not in holders]
    if others:
        found["notes"].append(
            f"{key} is another image on {', '.join(others)} than on {', '.join(holders)}; it was left as it is there. "
            "Name the image by its digest, or remove it where it is old"
        )
    image = have[holders[0]] if holders else None
    return {
        "kind": "image",
        "holders": holders,
        "lacking": [host for host in wanted if host not in have],
        "bytes": image["size"] if image else 0,
        "image": image,
        "ref": key,
        "alias": local_alias(key),
    }


def _model(
    looks: Mapping[str, Mapping[str, Any]], key: str, wanted: Sequence[str], verify: str, found: dict[str, Any]
) -> dict[str, Any]:
    have = {host: looks[host]["models"][key] for host in wanted if has_model(looks[host], key)}
    lacking = [host for host in wanted if host not in have]
    commit = most_common([model["commit"] for model in have.values()])
    others = [host for host, model in have.items() if model["commit"] != commit]
    if others:
        found["notes"].append(
            f"{key} is another commit on {', '.join(others)} than {commit} elsewhere; it was left as it is there. "
            "Set model.revision to a commit"
        )
    have = {host: model for host, model in have.items() if host not in others}
    verified = [host for host, model in have.items() if knows(model)]
    # Those that were read and are right say how large a file is; without any, hosts that differ are all read.
    right = sizes(have[verified[0]]) if verified else None
    told_apart = [host for host, model in have.items() if right is not None and sizes(model) != right]
    doubtful = {host for host, model in have.items() if any(entry["known"] == "changed" for entry in model["files"])}
    doubtful |= set(told_apart)
    if verify == "all" or (right is None and len({str(sorted(sizes(model).items())) for model in have.values()}) > 1):
        doubtful |= set(have)
    # A source is read before its files go out. As many as there are hosts that wait, so that the first round is wide.
    spare = [host for host in have if host not in verified and host not in doubtful]
    missing = min(len(lacking), len(have)) - len([host for host in verified if host not in doubtful])
    doubtful |= set(spare[: max(missing, 0)])
    for host in have:
        if host in doubtful:
            found["verify"].setdefault(host, []).append(key)
    first = verified[0] if verified else (next(iter(have), None))
    reference = have[first] if first is not None else None
    about = next(iter(looks[host]["models"][key] for host in wanted))
    return {
        "kind": "model",
        "holders": [host for host in verified if host not in doubtful],
        "lacking": lacking,
        "bytes": sum({entry["store"]: entry["size"] for entry in reference["files"]}.values()) if reference else 0,
        "commit": commit,
        "repo": about["repo"],
        "revision": about["revision"],
        "folder": about["folder"],
        "files": reference["files"] if reference else [],
        "verified": bool(verified),
    }


def verify_tasks(found: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]], host: str) -> list[dict[str, Any]]:
    """Return what a host is to read, as parts of a job.

    :param found: of C(survey)
    :param looks: host to what it has
    :param host: that is to read
    :returns: parts of a job
    """
    tasks = []
    for key in found["verify"].get(host, []):
        thing = found["things"][key]
        right = {entry["store"]: entry for entry in thing["files"]} if thing["verified"] else {}
        files = [
            {
                **{name: entry[name] for name in ("path", "store", "size", "sha256")},
                "sha256": (right.get(entry["store"]) or entry)["sha256"],
                "whole_size": (right.get(entry["store"]) or {}).get("size"),
            }
            for entry in looks[host]["models"][key]["files"]
        ]
        total = sum(entry["size"] or 0 for entry in files)
        tasks.append({"kind": "verify", "key": key, "folder": thing["folder"], "files": files, "bytes": total})
    return tasks


# --- room -------------------------------------------------------------------------------------------------------------


def to_come(look: Mapping[str, Any], thing: Mapping[str, Any], key: str) -> int:
    """Return how many bytes a thing takes on a host's disk beside what has come already.

    :param look: what the host has
    :param thing: that is to come
    :param key: of the thing
    :returns: bytes
    """
    if thing["kind"] == "image":
        return LOAD_FACTOR * int(thing["bytes"])
    own = look["models"].get(key) or {}
    there = {entry["store"]: entry["size"] for entry in own.get("files") or [] if entry["size"] is not None}
    staged = own.get("staged") or {}
    total = 0
    for entry in {entry["store"]: entry for entry in thing["files"]}.values():
        store, size = entry["store"], entry["size"]
        total += size if there.get(store) not in (None, size) else max(size - there.get(store, staged.get(store, 0)), 0)
    return total


def room(found: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]], reserve: float) -> dict[str, str]:
    """Return the hosts on which there is no room for what is to come, with the figures.

    :param found: of C(survey)
    :param looks: host to what it has
    :param reserve: bytes that stay free
    :returns: host to a sentence
    """
    refused: dict[str, str] = {}
    for host, look in looks.items():
        needs: dict[str, list[tuple[str, int]]] = {}
        disks: dict[str, Mapping[str, Any]] = {}
        for key, thing in found["things"].items():
            if host not in thing["lacking"]:
                continue
            disk = look["disks"][f"{thing['kind']}s"]
            disks.setdefault(disk["device"], disk)
            needs.setdefault(disk["device"], []).append((key, to_come(look, thing, key)))
        for device, parts in needs.items():
            wanted, disk = sum(count for _key, count in parts), disks[device]
            if disk["free"] - wanted < reserve:
                named = ", ".join(f"{gigabytes(count)} for {key}" for key, count in parts)
                refused[host] = (
                    f"{host}: {disk['path']} has {gigabytes(disk['free'])} free; {gigabytes(wanted)} are to come ({named}) "
                    f"and {gigabytes(reserve)} stay free (spread_reserve_gb). Nothing was moved. "
                    f"Make {gigabytes(wanted + reserve - disk['free'])} of room there"
                )
    return refused


def unable(found: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the hosts that take part and lack a program or an address for it, with what to do about it."""
    refused: dict[str, str] = {}
    for host in taking_part(found["things"]):
        look = looks[host]
        if look["tools_missing"]:
            packages = " ".join(sorted({TOOLS[tool] for tool in look["tools_missing"]}))
            refused[host] = f"{host} lacks {', '.join(look['tools_missing'])}: apt-get install {packages}"
        elif not look["address"]:
            refused[host] = f"{host} has no default route, so its address is not known; set spread_address for it"
    return refused


def silence(found: Mapping[str, Any], why: Mapping[str, str]) -> dict[str, str]:
    """Take hosts that cannot send out of the sources; returns the hosts that have nobody left to take from.

    why: by host what it lacks.
    """
    refused: dict[str, str] = {}
    for key, thing in found["things"].items():
        mute = [host for host in thing["holders"] if host in why]
        thing["holders"] = [host for host in thing["holders"] if host not in why]
        if mute and not thing["holders"]:
            refused.update(
                {host: f"{host}: {key} is on {', '.join(mute)} alone, and {why[mute[0]]}" for host in thing["lacking"]}
            )
    return refused


def leave_out(found: Mapping[str, Any], refused: Collection[str]) -> None:
    """Take hosts that cannot get anything out of those that wait."""
    for thing in found["things"].values():
        thing["lacking"] = [host for host in thing["lacking"] if host not in refused]


def taking_part(things: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the hosts between which something moves."""
    moving = [thing for thing in things.values() if thing["lacking"]]
    return list(dict.fromkeys(host for thing in moving for host in [*thing["holders"], *thing["lacking"]]))


# --- who can reach whom -----------------------------------------------------------------------------------------------


def links(own: Mapping[str, Any], source: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the addresses by which a host takes from a source, the fastest first.

    Hosts share a fabric by its name, and by a network that both have an interface in: the same subnet is in use on many
    pairs that have no cable in common.
    """
    found = []
    if own["fabric"] and own["fabric"] == source["fabric"]:
        theirs = {entry["network"]: entry["address"] for entry in source["interfaces"]}
        for entry in own["interfaces"]:
            if entry["network"] in theirs:
                found.append({"kind": "fabric", "own": entry["address"], "source": theirs[entry["network"]]})
    if own["address"] and source["address"]:
        found.append({"kind": "lan", "own": own["address"], "source": source["address"]})
    return found


def by_fabric(looks: Mapping[str, Mapping[str, Any]], own: str, source: str) -> bool:
    """Tell whether two hosts share a fabric.

    :param looks: host to what it has
    :param own: one host
    :param source: the other
    :returns: whether they do
    """
    return any(link["kind"] == "fabric" for link in links(looks[own], looks[source]))


def islands(looks: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> dict[str, int]:
    """Return the island of each host: hosts that a fabric joins, in a ring by way of others that are to have the thing too.

    :param looks: host to what it has
    :param hosts: those that have a thing or wait for it
    :returns: host to the number of its island
    """
    found: dict[str, int] = {}
    for number, first in enumerate(hosts):
        ahead = [] if first in found else [first]
        while ahead:
            host = ahead.pop()
            if host not in found:
                found[host] = number
                ahead += [other for other in hosts if other not in found and by_fabric(looks, other, host)]
    return found


def addresses(look: Mapping[str, Any]) -> list[str]:
    """Return the addresses on which a source listens."""
    return list(dict.fromkeys(address for address in [look["address"], *fabric_addresses(look)] if address))


def fabric_addresses(look: Mapping[str, Any]) -> list[str]:
    """Return those of a source on a fabric that it shares with others."""
    return [entry["address"] for entry in look["interfaces"] if look["fabric"]]


# --- rounds -----------------------------------------------------------------------------------------------------------


def begin(things: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state before the first round."""
    return {
        "number": 0,
        "holders": {key: list(thing["holders"]) for key, thing in things.items()},
        "lacking": {key: list(thing["lacking"]) for key, thing in things.items()},
        "failed": [],
        "sent": [],
        "planned": [],
        "given_up": {},
        "doubted": [],
        "damaged": [],
    }


def fold(
    state: Mapping[str, Any],
    results: Mapping[str, Mapping[str, Any]],
    reads: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the state after a round.

    One that is damaged sends no more of that, and gets it from another.

    :param state: before the round
    :param results: host to key to what the worker said of it; hosts that said nothing failed
    :param reads: the same of sources that were to read again what came wrong from them
    :returns: the state after it
    """
    after: dict[str, Any] = {
        **state,
        "holders": {key: list(hosts) for key, hosts in state["holders"].items()},
        "lacking": {key: list(hosts) for key, hosts in state["lacking"].items()},
        "failed": list(state["failed"]),
        "sent": list(state["sent"]),
        "given_up": dict(state["given_up"]),
        "planned": [],
        "doubted": [],
        "damaged": list(state["damaged"]),
    }
    for doubt in state["doubted"]:
        host, key = doubt["host"], doubt["key"]
        said = (reads or {}).get(host, {}).get(key) or {}
        if host in after["holders"][key] and (not said.get("ok") or said.get("damaged")):
            after["holders"][key].remove(host)
            after["lacking"][key].append(host)
            after["damaged"].append({**doubt, "files": said.get("damaged") or []})
    for send in state["planned"]:
        host, key = send["host"], send["key"]
        said = results.get(host, {}).get(key) or {"ok": False, "why": "the host did not answer any more"}
        if said["ok"]:
            after["holders"][key].append(host)
            after["lacking"][key].remove(host)
            after["sent"].append(
                {**send, **{name: said.get(name) for name in ("bytes", "seconds", "link", "encrypted")}}
            )
            continue
        after["failed"].append({**send, "why": said["why"]})
        doubt = {"host": send["source"], "key": key}
        if said.get("wrong") and doubt not in after["doubted"]:
            after["doubted"].append(doubt)
        tries = [failed for failed in after["failed"] if failed["host"] == host and failed["key"] == key]
        if len(tries) >= MOST_TRIES:
            after["given_up"][host] = f"{host} did not get {key}: {tries[-1]['why']}"
    return after


def next_round(
    state: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]], alive: Collection[str]
) -> dict[str, Any]:
    """Say who sends what to whom now; a round with nothing planned was the last one.

    Every source sends a thing to one host at a time. Islands (hosts that a fabric joins, see C(islands)) that have nothing yet come
    first, over the LAN: so each thing crosses the LAN as seldom as can be, and goes on inside the islands by
    their fabric.

    :param state: after the last round
    :param looks: host to what it has
    :param alive: hosts that still answer
    :returns: the state with the round planned
    """
    planned: list[dict[str, Any]] = []
    load: Counter[str] = Counter()
    for key, lacking in state["lacking"].items():
        waiting = [host for host in lacking if host in alive and host not in state["given_up"]]
        doubted = [doubt["host"] for doubt in state["doubted"] if doubt["key"] == key]
        holders = [host for host in state["holders"][key] if host in alive and host not in doubted]
        planned += _match(key, holders, waiting, state, looks, load)
    given_up = dict(state["given_up"])
    if not planned and not any(doubt["host"] in alive for doubt in state["doubted"]):
        for key, lacking in state["lacking"].items():
            for host in lacking:
                if host in alive and host not in given_up:
                    last = [failed for failed in state["failed"] if failed["host"] == host and failed["key"] == key]
                    why = last[-1]["why"] if last else "no host that has it, whole, is left"
                    given_up[host] = f"{host} did not get {key}: {why}"
    return {**state, "number": state["number"] + bool(planned), "planned": planned, "given_up": given_up}


def _match(
    key: str,
    holders: Sequence[str],
    waiting: Sequence[str],
    state: Mapping[str, Any],
    looks: Mapping[str, Mapping[str, Any]],
    load: Counter[str],
) -> list[dict[str, Any]]:
    sends = Counter(send["source"] for send in state["sent"] if send["key"] == key)
    tried = {(failed["source"], failed["host"]) for failed in state["failed"] if failed["key"] == key}
    rank = {host: index for index, host in enumerate(holders)}
    free = sorted(holders, key=lambda host: (sends[host], load[host], rank[host]))
    left = list(waiting)
    found: list[dict[str, Any]] = []
    island = islands(looks, [*holders, *waiting])

    def neighbours(host: str) -> list[str]:
        return [other for other in left if by_fabric(looks, other, host) and (host, other) not in tried]

    def give(source: str, host: str) -> None:
        kind = links(looks[host], looks[source])[0]["kind"]
        found.append({"key": key, "source": source, "host": host, "kind": kind, "round": state["number"] + 1})
        left.remove(host)
        free.remove(source)
        load[source] += 1

    # Islands without a holder, the largest first; sources that nobody waits for on their own fabric go first.
    while free:
        served = {island[host] for host in (*holders, *(send["host"] for send in found))}
        bare = [host for host in left if island[host] not in served]
        width = {host: sum(by_fabric(looks, other, host) for other in left if other != host) for host in bare}
        pairs = [
            (source, host)
            for host in sorted(bare, key=lambda host: -width[host])
            for source in sorted(free, key=lambda source: bool(neighbours(source)))
            if (source, host) not in tried and links(looks[host], looks[source])
        ]
        if not pairs:
            break
        give(*pairs[0])
    for source in list(free):
        near = neighbours(source)
        if near:
            give(source, near[0])
    # Whoever could not be reached by the fabric of its island is tried over the LAN. The last resort is who failed before.
    for host in list(left):
        known = [source for source in holders if (source, host) in tried]
        others = [source for source in free if source not in known and links(looks[host], looks[source])]
        if known and (others or all(source in known for source in holders)):
            again = others or [source for source in free if links(looks[host], looks[source])]
            if again:
                give(again[0], host)
    return found


def get_tasks(state: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]], host: str) -> list[dict[str, Any]]:
    """Return what a host takes in this round; the transfer adds what there is to know of the thing itself.

    :param state: with the round planned
    :param looks: host to what it has
    :param host: that takes
    :returns: parts of a job
    """
    return [
        {
            "key": send["key"],
            "source": send["source"],
            "name": name_at(looks[send["source"]], send["key"]),
            "links": links(looks[host], looks[send["source"]]),
        }
        for send in state["planned"]
        if send["host"] == host
    ]


def read_tasks(state: Mapping[str, Any], host: str) -> list[dict[str, Any]]:
    """Return what a source is to read in this round, because it came wrong from there."""
    return [{"kind": "verify", "key": doubt["key"]} for doubt in state["doubted"] if doubt["host"] == host]


def estimate(state: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return all rounds as they go when nothing fails."""
    current = dict(state)
    while True:
        current = next_round(current, looks, looks)
        if not current["planned"]:
            return list(current["sent"])
        results: dict[str, dict[str, Any]] = {}
        for send in current["planned"]:
            results.setdefault(send["host"], {})[send["key"]] = {"ok": True, "why": ""}
        current = fold(current, results)


# --- for a person -----------------------------------------------------------------------------------------------------


def plan_lines(found: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say what is about to be done."""
    lines = [
        f"{key}: {host} brings it into the site; {len(set(found['things'][key]['lacking']) - {host})} more take it from there"
        for host, keys in found["fetch"].items()
        for key in keys
    ]
    lines += [
        f"{key}: {', '.join(hosts)} {'reads the files and compares' if len(hosts) == 1 else 'read the files and compare'} "
        "them with their digests"
        for key in found["things"]
        for hosts in [[host for host, keys in found["verify"].items() if key in keys]]
        if hosts
    ]
    for send in estimate(begin(found["things"]), looks):
        thing = found["things"][send["key"]]
        count = gigabytes(thing["bytes"])
        lines.append(
            f"round {send['round']}: {send['source']} to {send['host']} ({send['kind']}): {send['key']}, {count}"
        )
    return lines


def report_lines(state: Mapping[str, Any]) -> list[str]:
    """Say what was done, and how fast."""
    lines = []
    for send in state["sent"]:
        rate = (send["bytes"] or 0) / send["seconds"] if send["seconds"] else 0
        lines.append(
            f"round {send['round']}: {send['source']} to {send['host']} ({send['link'] or send['kind']}): {send['key']}, "
            f"{gigabytes(send['bytes'] or 0)} in {send['seconds'] or 0:.1f} s, {rate / 1e6:.0f} MB/s"
        )
    lines += [f"not: {failed['source']} to {failed['host']}: {failed['why']}" for failed in state["failed"]]
    lines += [
        f"{damaged['host']}: {damaged['key']} is damaged there without a trace ({', '.join(damaged['files']) or 'it cannot be read'}); "
        "that was taken out of use"
        for damaged in state["damaged"]
    ]
    return lines
