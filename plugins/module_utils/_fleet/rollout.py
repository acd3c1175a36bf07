# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rolling a change out over a fleet: who is first, how many at once, when it stops, who goes back. Pure functions.

Hosts of a cluster are one unit here: they change together, and go back together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._common import tables
from .._common.validation import nearest
from .._proof import bench_compare

# --- order --------------------------------------------------------------------------------------------------------------


def units(hosts: Sequence[str], clusters: Mapping[str, Sequence[str]]) -> list[tuple[str, list[str]]]:
    """Return the hosts in their order, those of a cluster together: name of the host or cluster, and its hosts."""
    of = {host: name for name, members in clusters.items() for host in members}
    found: dict[str, list[str]] = {}
    for host in hosts:
        found.setdefault(of.get(host, host), []).append(host)
    return list(found.items())


def size_of(batch: Any, hosts: int) -> int:
    """Return how many hosts a batch may have. Raises ValueError for what is neither a number nor a share."""
    text = str(batch).strip()
    number = text[:-1].strip() if text.endswith("%") else text
    if not number.isdecimal() or int(number) < 1 or (text.endswith("%") and int(number) > 100):
        raise ValueError(f"'{batch}' is no size of a batch; give a number of hosts, or a share such as 25%")
    return max(1, hosts * int(number) // 100) if text.endswith("%") else int(number)


def names_of(value: Any) -> list[str]:
    """Return the names that a person gave, as a list or as a text with commas."""
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value]
    return [part.strip() for part in str(value or "").split(",") if part.strip()]


def order(
    hosts: Sequence[str],
    clusters: Mapping[str, Sequence[str]],
    canary: Any = "",
    batch: Any = 1,
    done: Sequence[str] = (),
    silent: Sequence[str] = (),
) -> dict[str, Any]:
    """Return who comes when: C({batches, hosts, serial, canary, done, left_out}).

    hosts: those of the run, in the order of the inventory. canary: hosts or clusters that come first, each a batch of its own; the
    first one that has something to do when empty, nobody when it is V(none). batch: how many hosts at once, a number or a share of all that
    have something to do; a cluster that is larger is a batch by itself. done: hosts that run what is wanted. silent: hosts that
    could not be reached; with them their clusters are left out. Raises ValueError saying what is wrong with the request.
    """
    groups = units(hosts, clusters)
    known = dict(groups)
    left_out = [name for name, members in groups if set(members) & set(silent)]
    finished = [name for name, members in groups if name not in left_out and set(members) <= set(done)]
    todo = [name for name, _members in groups if name not in left_out and name not in finished]
    of = {host: name for name, members in groups for host in members}
    first: list[str] = []
    asked = names_of(canary)
    if not asked:
        # Also when others have it already: theirs may have been another change.
        first = todo[:1]
    elif asked != ["none"]:
        unknown = [name for name in asked if name not in known and name not in of]
        if unknown:
            raise ValueError(
                f"spark_rollout_canary names '{unknown[0]}', which is no host or cluster of this run"
                f"{nearest(unknown[0], [*known, *of])}"
            )
        chosen = list(dict.fromkeys(of.get(name, name) for name in asked))
        first = [name for name in chosen if name in todo]
    batches = [list(known[name]) for name in first]
    rest = [name for name in todo if name not in first]
    size = size_of(batch, sum(len(known[name]) for name in todo))
    filling: list[str] = []
    for name in rest:
        if filling and len(filling) + len(known[name]) > size:
            batches.append(filling)
            filling = []
        filling = [*filling, *known[name]]
    if filling:
        batches.append(filling)
    return {
        "batches": batches,
        "hosts": [host for each in batches for host in each],
        "serial": [len(each) for each in batches],
        "canary": first,
        "done": [host for name in finished for host in known[name]],
        "left_out": [host for name in left_out for host in known[name]],
    }


def order_text(found: Mapping[str, Any]) -> str:
    """Write the order for people."""
    lines = []
    canaries = len(found["canary"])
    for number, batch in enumerate(found["batches"], start=1):
        lines.append(f"{number}. {', '.join(batch)}{' (canary)' if number <= canaries else ''}")
    if found["done"]:
        lines.append(f"already there: {', '.join(found['done'])}")
    if found["left_out"]:
        lines.append(f"left out, not all of it can be reached: {', '.join(found['left_out'])}")
    return "\n".join(lines) or "no host has anything to do"


def runs_it(look: Mapping[str, Any] | None, mark_wanted: str) -> bool:
    """Tell whether a host runs what is wanted, by what it said of its generation: proved, unchanged since, and up."""
    if not look:
        return False
    current = look.get("current") or {}
    return bool(
        current.get("proven")
        and current.get("wanted") == mark_wanted
        and look.get("same")
        and look.get("running")
        and look.get("restoring") is None
    )


# --- the gate -----------------------------------------------------------------------------------------------------------


def slower(
    results: Sequence[Mapping[str, Any]], before: Mapping[str, Any], models: Mapping[str, Any], percent: float
) -> tuple[list[str], list[str]]:
    """Compare measurements with those from before the change; returns what fails the gate, and what could not be compared.

    results: of M(dgxspark.vllm.service_bench). before: by service C({model, benchmark}) of the receipt. models: the model of each service
    now. Image, arguments and vLLM may differ, that is what a rollout is about; model, workload and the host's clock may not.
    """
    failed, notes = [], []
    deployed = tuple(f"{words} " for words in bench_compare.DEPLOYED.values())
    for new in results:
        name = str(new["service"])
        old = before.get(name) or {}
        section = old.get("benchmark") or {}
        then = bench_compare.middle(bench_compare.headline(section), "decode_tokens_per_second")
        now = bench_compare.middle(bench_compare.headline(new), "decode_tokens_per_second")
        if not then or now is None:
            notes.append(
                f"{new['where']}: there is no measurement from before" if not then else f"{new['where']}: no figure"
            )
            continue
        measured, host = bench_compare.differences(section, new)
        differs = [text for text in measured if not text.startswith(deployed)] + host
        if (old.get("model") or {}).get("repo") != (models.get(name) or {}).get("repo"):
            differs.append("another model")
        if new.get("disturbed") or section.get("disturbed"):
            differs.append("others were served meanwhile")
        if differs:
            notes.append(f"{new['where']}: {now:g} tokens/s, {then:g} before; not comparable: {'; '.join(differs)}")
        elif now < then * (1 - percent / 100):
            failed.append(
                f"{new['where']} decodes {now:g} tokens/s, it was {then:g} before the change ({1 - now / then:.0%} lower, "
                f"{percent:g} % are allowed)"
            )
    return failed, notes


def judge(
    batch: Sequence[str],
    clusters: Mapping[str, Sequence[str]],
    done: Sequence[str],
    reasons: Mapping[str, str],
    present: Sequence[str],
    allowed_percent: float,
) -> dict[str, Any]:
    """Say what becomes of a batch: C({reasons: {host: why}, back, stop}).

    batch: all of its hosts. done: those that came through the gate. present: those that can be reached. When more than
    C(allowed_percent) failed the whole batch goes back and the rollout stops; else those that failed do, with their clusters.
    """
    failed = {
        host: (reasons.get(host) or "it stopped before the end")
        if host in present
        else "it could not be reached any more"
        for host in batch
        if host not in done or host not in present
    }
    stop = 100 * len(failed) / max(len(batch), 1) > allowed_percent
    back = set(batch) if stop else set(failed)
    for members in clusters.values():
        if back & set(members):
            back |= set(members) & set(batch)
    return {"reasons": failed, "back": [host for host in batch if host in back and host in present], "stop": stop}


# --- going back together --------------------------------------------------------------------------------------------------


def clusters_of(looks: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the clusters that hosts are or go back to a part of."""
    found: dict[str, list[str]] = {}
    for look in looks.values():
        for name, members in (look.get("clusters") or {}).items():
            known = found.setdefault(name, [])
            known += [host for host in members if host not in known]
    return found


def mixtures(looks: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> list[str]:
    """Say which clusters would not come back whole: a host is not part of the run, or its generation is of another deployment."""
    messages = []
    plans = {host: look.get("plan") or {} for host, look in looks.items()}
    for name, members in sorted(clusters_of(looks).items()):
        missing = [host for host in members if host not in hosts]
        if missing:
            messages.append(
                f"cluster {name}: {', '.join(missing)} cannot be reached or is not part of this run; ranks change together. "
                f"Include it, or leave the cluster out by --limit '!{name}'."
            )
            continue
        marks: dict[str, dict[str, Any]] = {}
        for host in members:
            for service in plans[host].get("services") or []:
                if service.get("cluster"):
                    rank = (service.get("settings") or {}).get("rank") or {}
                    marks.setdefault(service["name"], {})[host] = rank.get("fingerprint")
        for service_name, own in sorted(marks.items()):
            if len(set(own.values())) > 1 or set(own) != set(members):
                numbers = ", ".join(f"{host} to {looks[host].get('target')}" for host in members)
                messages.append(
                    f"cluster {name}, service {service_name}: its ranks would be of different deployments ({numbers}). Name the generations that "
                    'belong together: -e \'{"generation": {"HOST": N, ...}}\'.'
                )
    return messages


# --- who runs what --------------------------------------------------------------------------------------------------------


def rows(
    hosts: Sequence[str], states: Mapping[str, Mapping[str, Any] | None], notes: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return a row a service: C({host, service, image, model, commit, generation, proven, same, note})."""
    found = []
    for host in hosts:
        state = states.get(host)
        current = (state or {}).get("current") or {}
        base = {
            "host": host,
            "generation": current.get("number"),
            "proven": current.get("proven") if current else None,
            # What is there is not what was recorded last.
            "same": (state or {}).get("same"),
            "note": notes.get(host, "" if state else "not reached"),
        }
        services = current.get("services") or {}
        for name, service in services.items():
            found.append(
                {**base, "service": name, **{key: service.get(key) for key in ("image", "image_id", "model", "commit")}}
            )
        if not services:
            found.append({**base, "service": None, "image": None, "image_id": None, "model": None, "commit": None})
    return found


def summary_text(listed: Sequence[Mapping[str, Any]]) -> str:
    """Write who runs what as a table."""
    cells = []
    for row in listed:
        commit = row["commit"]
        model = "-" if not row["model"] else f"{row['model']}@{commit[:12]}" if commit else str(row["model"])
        proven = {True: "yes", False: "no", None: "-"}[row["proven"]]
        image = str(row["image"] or "-")
        cells.append(
            [
                row["host"],
                row["service"] or "-",
                image if len(image) < 60 else f"{image[:56]}...",
                str(row["image_id"] or "-").removeprefix("sha256:")[:12],
                model,
                "-" if row["generation"] is None else f"{row['generation']}{'' if row['same'] else ' + changes'}",
                proven,
                row["note"],
            ]
        )
    header = ["host", "service", "image", "image id", "model", "generation", "proven", ""]
    return tables.table(header, cells) if cells else "no hosts"
