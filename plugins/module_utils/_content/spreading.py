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
"""How often a host tries to get one thing, each time from another source if possible."""
LOAD_FACTOR = 2
"""The engine writes an image that is loaded to the disk as it comes, and again as layers."""
GB = 1e9


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
    """Return whether every file was verified and has not changed since."""
    return all(entry["known"] == "yes" for entry in model["files"])


def sizes(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of a snapshot's files."""
    return {entry["path"]: entry["size"] for entry in model["files"]}


def most_common(values: Sequence[Any]) -> Any:
    """Return the most frequent value, or the first of several."""
    return Counter(values).most_common(1)[0][0] if values else None


def survey(looks: Mapping[str, Mapping[str, Any]], verify: str = "moved") -> dict[str, Any]:
    """Return the hosts that have and lack each thing, and the work to do before it can move.

    looks: by host, in the order of the play. verify: C(all) has every file read on every host; C(moved) files before their
    first transfer, and those that changed since they were verified.

    Returns C({things, fetch, verify, notes}). fetch: host to the keys that it downloads, because no host
    has them. verify: host to the keys whose files it reads first. Things in neither are ready to move.
    """
    result: dict[str, Any] = {"things": {}, "fetch": {}, "verify": {}, "notes": []}
    for kind in ("images", "models"):
        for key in dict.fromkeys(key for look in looks.values() for key in look[kind]):
            hosts = [host for host, look in looks.items() if key in look[kind]]
            thing = _image(looks, key, hosts, result) if kind == "images" else _model(looks, key, hosts, verify, result)
            result["things"][key] = thing
            if thing["lacking"] and not thing["holders"] and not any(key in keys for keys in result["verify"].values()):
                # Spread over hosts, so that several things arrive in parallel; hosts with a part of it first.
                entry = min(
                    thing["lacking"], key=lambda host: (len(result["fetch"].get(host, [])), -_part(looks[host], key))
                )
                result["fetch"].setdefault(entry, []).append(key)
    return result


def _part(look: Mapping[str, Any], key: str) -> int:
    """Return the bytes that a host has of an incomplete snapshot."""
    return sum(entry["size"] or 0 for entry in (look["models"].get(key) or {}).get("files") or [])


def _image(
    looks: Mapping[str, Mapping[str, Any]], key: str, hosts: Sequence[str], result: dict[str, Any]
) -> dict[str, Any]:
    have = {host: looks[host]["images"][key] for host in hosts if looks[host]["images"][key]}
    content = most_common([image["content"] for image in have.values()])
    holders = [host for host, image in have.items() if image["content"] == content]
    differing = [host for host in have if host not in holders]
    if differing:
        result["notes"].append(
            f"{key} is another image on {', '.join(differing)} than on {', '.join(holders)}; it was left as it is there. "
            "Name the image by its digest, or remove it where it is old"
        )
    image = have[holders[0]] if holders else None
    return {
        "kind": "image",
        "holders": holders,
        "lacking": [host for host in hosts if host not in have],
        "bytes": image["size"] if image else 0,
        "image": image,
        "ref": key,
        "alias": local_alias(key),
    }


def _model(
    looks: Mapping[str, Mapping[str, Any]], key: str, hosts: Sequence[str], verify: str, result: dict[str, Any]
) -> dict[str, Any]:
    have = {host: looks[host]["models"][key] for host in hosts if has_model(looks[host], key)}
    lacking = [host for host in hosts if host not in have]
    commit, have = _of_one_commit(key, have, result)
    verified = [host for host, model in have.items() if knows(model)]
    doubtful = _doubtful(have, verified, verify, len(lacking))
    for host in filter(doubtful.__contains__, have):
        result["verify"].setdefault(host, []).append(key)
    files = have[next(iter([*verified, *have]))]["files"] if have else []
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


def _of_one_commit(
    key: str, have: Mapping[str, Mapping[str, Any]], result: dict[str, Any]
) -> tuple[str | None, dict[str, Mapping[str, Any]]]:
    """Return the most frequent commit of a model, and the hosts that have it; add a note about the others."""
    commit = most_common([model["commit"] for model in have.values()])
    differing = [host for host in have if have[host]["commit"] != commit]
    if differing:
        result["notes"].append(
            f"{key} is another commit on {', '.join(differing)} than {commit} elsewhere; it was left as it is there. "
            "Set model.revision to a commit"
        )
    return commit, {host: model for host, model in have.items() if host not in differing}


def _doubtful(have: Mapping[str, Mapping[str, Any]], verified: Sequence[str], verify: str, lacking: int) -> set[str]:
    """Return the hosts that have to read their files of a model before they send them.

    :param have: hosts with the model
    :param verified: those whose files were all verified
    :param verify: as of C(survey)
    :param lacking: number of hosts without the model
    :returns: hosts
    """
    # Verified files have the right sizes; without any, hosts that differ are all read.
    right = sizes(have[verified[0]]) if verified else None
    doubtful = {
        host for host, model in have.items() if _is_changed(model) or (right is not None and sizes(model) != right)
    }
    if verify == "all" or (right is None and len({str(sorted(sizes(model).items())) for model in have.values()}) > 1):
        doubtful |= set(have)
    # A source is read before its files go out: as many as hosts wait, so that the first round is wide.
    spare = [host for host in have if host not in verified and host not in doubtful]
    missing = min(lacking, len(have)) - len([host for host in verified if host not in doubtful])
    return doubtful | set(spare[: max(missing, 0)])


def _is_changed(model: Mapping[str, Any]) -> bool:
    return any(entry["known"] == "changed" for entry in model["files"])


def verify_tasks(
    surveyed: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]], host: str
) -> list[dict[str, Any]]:
    """Return the files that a host has to read, as parts of a job.

    :param surveyed: of C(survey)
    :param looks: host to its report
    :param host: the reader
    :returns: parts of a job
    """
    tasks = []
    for key in surveyed["verify"].get(host, []):
        thing = surveyed["things"][key]
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


# --- free space -------------------------------------------------------------------------------------------------------


def to_come(look: Mapping[str, Any], thing: Mapping[str, Any], key: str) -> int:
    """Return the further bytes that a thing needs on a host's disk.

    :param look: report of the host
    :param thing: the thing
    :param key: of the thing
    :returns: bytes
    """
    if thing["kind"] == "image":
        return LOAD_FACTOR * int(thing["bytes"])
    model = look["models"].get(key) or {}
    present = {entry["store"]: entry["size"] for entry in model.get("files") or [] if entry["size"] is not None}
    staged = model.get("staged") or {}
    total = 0
    for entry in {entry["store"]: entry for entry in thing["files"]}.values():
        store, size = entry["store"], entry["size"]
        bytes_here = present.get(store, staged.get(store, 0))
        total += size if present.get(store) not in (None, size) else max(size - bytes_here, 0)
    return total


def room(surveyed: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]], reserve: float) -> dict[str, str]:
    """Return the hosts without enough disk space for the transfers, with the figures.

    :param surveyed: of C(survey)
    :param looks: host to its report
    :param reserve: bytes that stay free
    :returns: host to a sentence
    """
    refused: dict[str, str] = {}
    for host, look in looks.items():
        needs: dict[str, list[tuple[str, int]]] = {}
        disks: dict[str, Mapping[str, Any]] = {}
        for key, thing in surveyed["things"].items():
            if host not in thing["lacking"]:
                continue
            disk = look["disks"][f"{thing['kind']}s"]
            disks.setdefault(disk["device"], disk)
            needs.setdefault(disk["device"], []).append((key, to_come(look, thing, key)))
        for device, parts in needs.items():
            needed, disk = sum(count for _key, count in parts), disks[device]
            if disk["free"] - needed < reserve:
                named = ", ".join(f"{gigabytes(count)} for {key}" for key, count in parts)
                refused[host] = (
                    f"{host}: {disk['path']} has {gigabytes(disk['free'])} free; {gigabytes(needed)} are to come ({named}) "
                    f"and {gigabytes(reserve)} stay free (spread_reserve_gb). Nothing was moved. "
                    f"Make {gigabytes(needed + reserve - disk['free'])} of room there"
                )
    return refused


def unable(surveyed: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the participating hosts without a needed program or an address, each with the fix."""
    refused: dict[str, str] = {}
    for host in taking_part(surveyed["things"]):
        look = looks[host]
        if look["tools_missing"]:
            packages = " ".join(sorted({TOOLS[tool] for tool in look["tools_missing"]}))
            refused[host] = f"{host} lacks {', '.join(look['tools_missing'])}: apt-get install {packages}"
        elif not look["address"]:
            refused[host] = f"{host} has no default route, so its address is not known; set spread_address for it"
    return refused


def silence(surveyed: Mapping[str, Any], why: Mapping[str, str]) -> dict[str, str]:
    """Remove hosts that cannot send from the sources; return the hosts that have no source left.

    why: host to the reason.
    """
    refused: dict[str, str] = {}
    for key, thing in surveyed["things"].items():
        mute = [host for host in thing["holders"] if host in why]
        thing["holders"] = [host for host in thing["holders"] if host not in why]
        if mute and not thing["holders"]:
            refused.update(
                {host: f"{host}: {key} is on {', '.join(mute)} alone, and {why[mute[0]]}" for host in thing["lacking"]}
            )
    return refused


def leave_out(surveyed: Mapping[str, Any], refused: Collection[str]) -> None:
    """Remove hosts that cannot receive anything from the waiting ones."""
    for thing in surveyed["things"].values():
        thing["lacking"] = [host for host in thing["lacking"] if host not in refused]


def taking_part(things: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the hosts between which something moves."""
    moving = [thing for thing in things.values() if thing["lacking"]]
    return list(dict.fromkeys(host for thing in moving for host in [*thing["holders"], *thing["lacking"]]))


# --- links ------------------------------------------------------------------------------------------------------------


def links(host: Mapping[str, Any], source: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the addresses over which a host receives from a source, the fastest first.

    Hosts share a fabric by its name, and by a network that both have an interface in: the same subnet is in use on many
    pairs that have no cable in common.
    """
    result = []
    if host["fabric"] and host["fabric"] == source["fabric"]:
        theirs = {entry["network"]: entry["address"] for entry in source["interfaces"]}
        for entry in host["interfaces"]:
            if entry["network"] in theirs:
                result.append({"kind": "fabric", "own": entry["address"], "source": theirs[entry["network"]]})
    if host["address"] and source["address"]:
        result.append({"kind": "lan", "own": host["address"], "source": source["address"]})
    return result


def by_fabric(looks: Mapping[str, Mapping[str, Any]], host: str, source: str) -> bool:
    """Return whether two hosts share a fabric.

    :param looks: host to its report
    :param host: one host
    :param source: the other
    :returns: whether they do
    """
    return any(link["kind"] == "fabric" for link in links(looks[host], looks[source]))


def islands(looks: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> dict[str, int]:
    """Return the island of each host: hosts that a fabric joins, in a ring through others that need the thing too.

    :param looks: host to its report
    :param hosts: hosts that have the thing or wait for it
    :returns: host to the number of its island
    """
    numbers: dict[str, int] = {}
    for number, first in enumerate(hosts):
        ahead = [] if first in numbers else [first]
        while ahead:
            host = ahead.pop()
            if host not in numbers:
                numbers[host] = number
                ahead += [other for other in hosts if other not in numbers and by_fabric(looks, other, host)]
    return numbers


def addresses(look: Mapping[str, Any]) -> list[str]:
    """Return the addresses on which a source listens."""
    return list(dict.fromkeys(address for address in [look["address"], *fabric_addresses(look)] if address))


def fabric_addresses(look: Mapping[str, Any]) -> list[str]:
    """Return the addresses of a source on a shared fabric."""
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

    A host with damaged files sends no more of that thing, and gets it from another.

    :param state: before the round
    :param results: host to key to the worker's result; hosts without one failed
    :param reads: likewise for sources that had to read files again which arrived damaged
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
        result = (reads or {}).get(host, {}).get(key) or {}
        if host in after["holders"][key] and (not result.get("ok") or result.get("damaged")):
            after["holders"][key].remove(host)
            after["lacking"][key].append(host)
            after["damaged"].append({**doubt, "files": result.get("damaged") or []})
    for send in state["planned"]:
        result = results.get(send["host"], {}).get(send["key"]) or {
            "ok": False,
            "why": "the host did not answer any more",
        }
        _fold_send(after, send, result)
    return after


def _fold_send(after: dict[str, Any], send: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Add the result of one planned transfer to a state."""
    host, key = send["host"], send["key"]
    if result["ok"]:
        after["holders"][key].append(host)
        after["lacking"][key].remove(host)
        figures = {name: result.get(name) for name in ("bytes", "seconds", "link", "encrypted")}
        after["sent"].append({**send, **figures})
        return
    after["failed"].append({**send, "why": result["why"]})
    doubt = {"host": send["source"], "key": key}
    if result.get("wrong") and doubt not in after["doubted"]:
        after["doubted"].append(doubt)
    tries = _failures(after, host, key)
    if len(tries) >= MOST_TRIES:
        after["given_up"][host] = f"{host} did not get {key}: {tries[-1]['why']}"


def _failures(state: Mapping[str, Any], host: str, key: str) -> list[dict[str, Any]]:
    """Return the failed transfers of a thing to a host."""
    return [failed for failed in state["failed"] if failed["host"] == host and failed["key"] == key]


def next_round(
    state: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]], alive: Collection[str]
) -> dict[str, Any]:
    """Return the state with the next round planned; a round without transfers was the last one.

    Every source sends a thing to one host at a time. Islands (hosts that a fabric joins, see C(islands)) without a holder come
    first, over the LAN: so each thing crosses the LAN as seldom as possible, and spreads inside the islands by
    their fabric.

    :param state: after the last round
    :param looks: host to its report
    :param alive: hosts that still answer
    :returns: the state with the round planned
    """
    planned: list[dict[str, Any]] = []
    load: Counter[str] = Counter()
    for key, lacking in state["lacking"].items():
        waiting = [host for host in lacking if host in alive and host not in state["given_up"]]
        doubted = [doubt["host"] for doubt in state["doubted"] if doubt["key"] == key]
        holders = [host for host in state["holders"][key] if host in alive and host not in doubted]
        planned += _Matching(key, holders, waiting, state, looks, load).sends()
    given_up = dict(state["given_up"])
    if not planned and not any(doubt["host"] in alive for doubt in state["doubted"]):
        _give_up_waiting(state, alive, given_up)
    return {**state, "number": state["number"] + bool(planned), "planned": planned, "given_up": given_up}


def _give_up_waiting(state: Mapping[str, Any], alive: Collection[str], given_up: dict[str, str]) -> None:
    """Add the hosts that still wait to C(given_up), with the reason."""
    for key, lacking in state["lacking"].items():
        for host in lacking:
            if host in alive and host not in given_up:
                failures = _failures(state, host, key)
                why = failures[-1]["why"] if failures else "no host that has it, whole, is left"
                given_up[host] = f"{host} did not get {key}: {why}"


class _Matching:
    """Pairs the sources and receivers of one thing for a round."""

    def __init__(
        self,
        key: str,
        holders: Sequence[str],
        waiting: Sequence[str],
        state: Mapping[str, Any],
        looks: Mapping[str, Mapping[str, Any]],
        load: Counter[str],
    ) -> None:
        self.key, self.holders, self.looks, self.load = key, holders, looks, load
        self.round = state["number"] + 1
        self.tried = {(failed["source"], failed["host"]) for failed in state["failed"] if failed["key"] == key}
        sends = Counter(send["source"] for send in state["sent"] if send["key"] == key)
        rank = {host: index for index, host in enumerate(holders)}
        self.free = sorted(holders, key=lambda host: (sends[host], load[host], rank[host]))
        self.waiting = list(waiting)
        self.island = islands(looks, [*holders, *waiting])
        self.planned: list[dict[str, Any]] = []

    def sends(self) -> list[dict[str, Any]]:
        """Return the transfers of the round."""
        while self.free and self._serve_island():
            pass
        for source in list(self.free):
            near = self._neighbours(source)
            if near:
                self._send(source, near[0])
        self._retry()
        return self.planned

    def _neighbours(self, host: str) -> list[str]:
        return [
            other for other in self.waiting if by_fabric(self.looks, other, host) and (host, other) not in self.tried
        ]

    def _send(self, source: str, host: str) -> None:
        kind = links(self.looks[host], self.looks[source])[0]["kind"]
        self.planned.append({"key": self.key, "source": source, "host": host, "kind": kind, "round": self.round})
        self.waiting.remove(host)
        self.free.remove(source)
        self.load[source] += 1

    def _serve_island(self) -> bool:
        """Plan a transfer to the largest island without a holder; sources without waiting neighbours go first."""
        served = {self.island[host] for host in (*self.holders, *(send["host"] for send in self.planned))}
        bare = [host for host in self.waiting if self.island[host] not in served]
        width = {
            host: sum(by_fabric(self.looks, other, host) for other in self.waiting if other != host) for host in bare
        }
        for host in sorted(bare, key=lambda host: -width[host]):
            for source in sorted(self.free, key=lambda source: bool(self._neighbours(source))):
                if (source, host) not in self.tried and links(self.looks[host], self.looks[source]):
                    self._send(source, host)
                    return True
        return False

    def _retry(self) -> None:
        """Try hosts that the fabric of their island does not reach over the LAN; sources that failed before come last."""
        for host in list(self.waiting):
            failed = [source for source in self.holders if (source, host) in self.tried]
            reachable = [source for source in self.free if links(self.looks[host], self.looks[source])]
            untried = [source for source in reachable if source not in failed]
            if failed and reachable and (untried or len(failed) == len(self.holders)):
                self._send((untried or reachable)[0], host)


def get_tasks(state: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]], host: str) -> list[dict[str, Any]]:
    """Return the things that a host takes in this round; the transfer adds their details.

    :param state: with the round planned
    :param looks: host to its report
    :param host: the receiver
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
    """Return the things that a source has to read again in this round, because they arrived damaged."""
    return [{"kind": "verify", "key": doubt["key"]} for doubt in state["doubted"] if doubt["host"] == host]


def estimate(state: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the transfers of all rounds if nothing fails."""
    current = dict(state)
    while True:
        current = next_round(current, looks, looks)
        if not current["planned"]:
            return list(current["sent"])
        results: dict[str, dict[str, Any]] = {}
        for send in current["planned"]:
            results.setdefault(send["host"], {})[send["key"]] = {"ok": True, "why": ""}
        current = fold(current, results)


# --- reports ----------------------------------------------------------------------------------------------------------


def plan_lines(surveyed: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the planned steps as lines."""
    lines = [
        f"{key}: {host} brings it into the site; {len(set(surveyed['things'][key]['lacking']) - {host})} more take it from there"
        for host, keys in surveyed["fetch"].items()
        for key in keys
    ]
    lines += [
        f"{key}: {', '.join(hosts)} {'reads the files and compares' if len(hosts) == 1 else 'read the files and compare'} "
        "them with their digests"
        for key in surveyed["things"]
        for hosts in [[host for host, keys in surveyed["verify"].items() if key in keys]]
        if hosts
    ]
    for send in estimate(begin(surveyed["things"]), looks):
        thing = surveyed["things"][send["key"]]
        count = gigabytes(thing["bytes"])
        lines.append(
            f"round {send['round']}: {send['source']} to {send['host']} ({send['kind']}): {send['key']}, {count}"
        )
    return lines


def report_lines(state: Mapping[str, Any]) -> list[str]:
    """Return the finished transfers as lines, with their speed."""
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
