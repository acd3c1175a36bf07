# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a rollout over a fleet: canaries, batches, the gate, and rollbacks. Pure functions.

Hosts of a cluster change together and are rolled back together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from .._common import tables
from .._common.validation import nearest
from .._host import host_update
from .._plan.verbs import names_of
from .._proof import bench_compare
from . import generations

Clusters = Mapping[str, Sequence[str]]
"""Hosts of clusters by name."""


def size_of(batch: Any, hosts: int) -> int:
    """Return the number of hosts in a batch. Raises ValueError if it is neither a number nor a share."""
    text = str(batch).strip()
    number = text[:-1].strip() if text.endswith("%") else text
    if not number.isdecimal() or int(number) < 1 or (text.endswith("%") and int(number) > 100):
        raise ValueError(f"'{batch}' is no size of a batch; give a number of hosts, or a share such as 25%")
    return max(1, hosts * int(number) // 100) if text.endswith("%") else int(number)


def order(
    hosts: Sequence[str],
    clusters: Clusters,
    canary: Any = "",
    batch: Any = 1,
    done: Sequence[str] = (),
    silent: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the order of a rollout: C({batches, hosts, serial, canary, done, left_out}).

    :param canary: hosts or clusters that come first, each as a batch; empty for the first one with changes, V(none) for no canary
    :param batch: number of parallel hosts, or a share of all hosts with changes; a larger cluster is a batch by itself
    :param silent: unreachable hosts; their clusters are left out too
    :raises ValueError: for a wrong request
    """
    grouped = host_update.grouped(hosts, clusters)
    left_out = [name for name, members in grouped.items() if not set(members).isdisjoint(silent)]
    finished = [name for name, members in grouped.items() if name not in left_out and set(members) <= set(done)]
    todo = [name for name in grouped if name not in (*left_out, *finished)]
    canaries = _canaries(names_of(canary), grouped, todo)
    size = size_of(batch, sum(len(grouped[name]) for name in todo))
    batches = [grouped[name] for name in canaries]
    batches += host_update.filled([grouped[name] for name in todo if name not in canaries], size)
    return {
        "batches": batches,
        "hosts": list(chain(*batches)),
        "serial": [len(members) for members in batches],
        "canary": canaries,
        "done": list(chain(*(grouped[name] for name in finished))),
        "left_out": list(chain(*(grouped[name] for name in left_out))),
    }


def _canaries(requested: Sequence[str], grouped: Clusters, todo: Sequence[str]) -> list[str]:
    """Return the names of the canaries with changes. requested: names of hosts and clusters."""
    if not requested:
        # Even if other hosts are done: that may have been an earlier change.
        return list(todo[:1])
    if list(requested) == ["none"]:
        return []
    group_of = {host: name for name, members in grouped.items() for host in members}
    for name in requested:
        if name not in grouped and name not in group_of:
            raise ValueError(
                f"spark_rollout_canary names '{name}', which is no host or cluster of this run"
                f"{nearest(name, [*grouped, *group_of])}"
            )
    return [name for name in dict.fromkeys(group_of.get(name, name) for name in requested) if name in todo]


def order_text(order: Mapping[str, Any]) -> str:
    """Return the order for people."""
    lines = []
    for number, batch in enumerate(order["batches"], start=1):
        lines.append(f"{number}. {', '.join(batch)}{' (canary)' if number <= len(order['canary']) else ''}")
    if order["done"]:
        lines.append(f"already there: {', '.join(order['done'])}")
    if order["left_out"]:
        lines.append(f"left out, not all of it can be reached: {', '.join(order['left_out'])}")
    return "\n".join(lines) or "no host has anything to do"


def is_up_to_date(look: Mapping[str, Any] | None, wanted: str) -> bool:
    """Tell whether a host runs the planned generation: proven, unchanged and up.

    :param look: answer of M(dgxspark.vllm.generation), None without one
    """
    current = (look or {}).get("current") or {}
    if not look or not current.get("proven") or current.get("wanted") != wanted:
        return False
    return bool(look.get("same") and look.get("running") and look.get("restoring") is None)


# --- the gate


def _differences(
    benchmark: Mapping[str, Any], result: Mapping[str, Any], model: Mapping[str, Any], new_model: Mapping[str, Any]
) -> list[str]:
    """Return why two benchmarks are incomparable, apart from the changes of a rollout."""
    deployed = tuple(f"{words} " for words in bench_compare.DEPLOYED.values())
    measured, of_host = bench_compare.differences(benchmark, result)
    reasons = [text for text in measured if not text.startswith(deployed)] + of_host
    if model.get("repo") != new_model.get("repo"):
        reasons.append("another model")
    if benchmark.get("disturbed") or result.get("disturbed"):
        reasons.append("others were served meanwhile")
    return reasons


def slower(
    results: Sequence[Mapping[str, Any]], before: Mapping[str, Any], models: Mapping[str, Any], percent: float
) -> tuple[list[str], list[str]]:
    """Compare benchmarks with those before the change; return the failures, and notes about incomparable figures.

    Image, arguments and vLLM may differ: a rollout changes them. Model, workload and the host's clock rate must be equal.

    :param before: C({model, benchmark}) of the receipts, by service
    """
    failures, notes = [], []
    for result in results:
        name, place = str(result["service"]), result["where"]
        old = before.get(name) or {}
        benchmark = old.get("benchmark") or {}
        rate_before, rate = (
            bench_compare.middle(bench_compare.headline(figures), "decode_tokens_per_second")
            for figures in (benchmark, result)
        )
        if not rate_before or rate is None:
            notes.append(f"{place}: {'no figure' if rate_before else 'there is no measurement from before'}")
            continue
        reasons = _differences(benchmark, result, old.get("model") or {}, models.get(name) or {})
        if reasons:
            notes.append(f"{place}: {rate:g} tokens/s, {rate_before:g} before; not comparable: {'; '.join(reasons)}")
        elif rate < rate_before * (1 - percent / 100):
            failures.append(
                f"{place} decodes {rate:g} tokens/s, it was {rate_before:g} before the change ({1 - rate / rate_before:.0%} lower, "
                f"{percent:g} % are allowed)"
            )
    return failures, notes


def judge(
    batch: Sequence[str],
    clusters: Clusters,
    done: Sequence[str],
    reasons: Mapping[str, str],
    present: Sequence[str],
    allowed_percent: float,
) -> dict[str, Any]:
    """Return the verdict on a batch: C({reasons: {host: why}, back, stop}).

    If too many hosts failed, the whole batch is rolled back and the rollout stops; otherwise only the failed hosts with their clusters
    are rolled back.

    :param allowed_percent: of failed hosts
    """
    failed = {}
    for host in batch:
        if host not in present:
            failed[host] = "it could not be reached any more"
        elif host not in done:
            failed[host] = reasons.get(host) or "it stopped before the end"
    stop = 100 * len(failed) / max(len(batch), 1) > allowed_percent
    back = set(batch) if stop else set(failed)
    for members in clusters.values():
        if not back.isdisjoint(members):
            back |= set(members) & set(batch)
    return {"reasons": failed, "back": [host for host in batch if host in back and host in present], "stop": stop}


# --- rollbacks of clusters


def clusters_of(looks: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the clusters with ranks on hosts, now or after a rollback."""
    return generations.united(cluster for look in looks.values() for cluster in (look.get("clusters") or {}).items())


def mixtures(looks: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> list[str]:
    """Return messages about clusters that a rollback would leave with ranks of different deployments.

    :param looks: answers of M(dgxspark.vllm.generation) by host
    """
    messages: list[str] = []
    for name, members in sorted(clusters_of(looks).items()):
        missing = [host for host in members if host not in hosts]
        if missing:
            messages.append(
                f"cluster {name}: {', '.join(missing)} cannot be reached or is not part of this run; ranks change together. "
                f"Include it, or leave the cluster out by --limit '!{name}'."
            )
            continue
        targets = ", ".join(f"{host} to {looks[host].get('target')}" for host in members)
        for service, fingerprints in sorted(_fingerprints(looks, members).items()):
            if len(set(fingerprints.values())) > 1 or set(fingerprints) != set(members):
                messages.append(
                    f"cluster {name}, service {service}: its ranks would be of different deployments ({targets}). Name the generations that "
                    'belong together: -e \'{"generation": {"HOST": N, ...}}\'.'
                )
    return messages


def _fingerprints(looks: Mapping[str, Mapping[str, Any]], members: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the fingerprint of each rank in the target generations, by service and host."""
    fingerprints: dict[str, dict[str, Any]] = {}
    for host in members:
        for service in (looks[host].get("plan") or {}).get("services") or []:
            if service.get("cluster"):
                rank = (service.get("settings") or {}).get("rank") or {}
                fingerprints.setdefault(service["name"], {})[host] = rank.get("fingerprint")
    return fingerprints


# --- summary

SERVICE_FIELDS = ("image", "image_id", "model", "commit")


def rows(
    hosts: Sequence[str], states: Mapping[str, Mapping[str, Any] | None], notes: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return a row for each service: C({host, service, image, image_id, model, commit, generation, proven, same, note})."""
    rows_of_services = []
    for host in hosts:
        state = states.get(host)
        current = (state or {}).get("current") or {}
        row = {
            "host": host,
            "generation": current.get("number"),
            "proven": current.get("proven") if current else None,
            # False if the host has changed since its generation.
            "same": (state or {}).get("same"),
            "note": notes.get(host, "" if state else "not reached"),
        }
        # A host without services has one row.
        for name, service in (current.get("services") or {None: {}}).items():
            rows_of_services.append({**row, "service": name, **{key: service.get(key) for key in SERVICE_FIELDS}})
    return rows_of_services


HEADER = ["host", "service", "image", "image id", "model", "generation", "proven", ""]
MOST_IMAGE = 60


def summary_text(listed: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table."""
    return tables.table(HEADER, [_cells(row) for row in listed]) if listed else "no hosts"


def _cells(row: Mapping[str, Any]) -> list[str]:
    image, model = str(row["image"] or "-"), str(row["model"] or "-")
    return [
        row["host"],
        row["service"] or "-",
        image if len(image) < MOST_IMAGE else f"{image[: MOST_IMAGE - 4]}...",
        generations.brief(row["image_id"] or "-"),
        f"{model}@{row['commit'][:12]}" if row["model"] and row["commit"] else model,
        "-" if row["generation"] is None else f"{row['generation']}{'' if row['same'] else ' + changes'}",
        {True: "yes", False: "no", None: "-"}[row["proven"]],
        row["note"],
    ]
