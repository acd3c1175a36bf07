# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An inventory that serves wishes, with its own plan, and the report about it. Pure functions."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from .._common import tables
from .._common.findings import list_causes
from .picture import free_gib, names_text, natural
from .plan import plan_findings
from .wish_fleet import Figures, Fleet, Hosts, Layout, Maker, Piece, with_entries
from .wish_search import Placed, Search
from .wishes import Catalogue, Wish, already_served, read

OTHERS = "spark_addon_hosts"
"""The group of the proposed inventory for hosts that are no Sparks."""
_OWN_GROUPS = frozenset(("all", "sparks", "ungrouped", OTHERS))
HEADER = ("wish", "weight", "served by", "on", "tokens/s", "first token of 8k", "users x context", "GiB")
_STATES = {"on_demand": " (on demand)", "present": " (in the inventory)"}


def propose(
    entries: Any,
    hosts: Hosts,
    others: Hosts,
    groups: Mapping[str, Sequence[str]],
    recipes: Mapping[str, Mapping[str, Any]],
    make: Maker,
    written: Hosts | None = None,
) -> dict[str, Any]:
    """Propose an inventory that serves wishes.

    :param entries: of C(spark_wishes)
    :param hosts: Sparks, to C({vars, address})
    :param make: plans Sparks by C(hosts) and C(groups)
    :param written: the Sparks as the inventory has them, if C(hosts) has completed services
    :returns: C({wishes, inventory, free_gib, complete, errors, notes}): an answer to each wish, groups of Ansible, free memory by Spark,
        whether no placement of these candidates is better, errors in the plan of the proposed inventory, and the steps before its use
    :raises InputError: for malformed wishes
    :raises InventoryError: for an inventory that cannot be planned
    """
    wishes = read(entries, recipes)
    fleet = Fleet(hosts, groups, make)
    catalogue = Catalogue(recipes, fleet)
    present = already_served(wishes, fleet, catalogue)
    placed, reasons = _place([wish for wish in wishes if wish.name not in present], fleet, catalogue)
    layout, names = placed.layout, _names(placed, hosts, fleet)
    planned_groups, *versions = _with_pieces(layout, groups, fleet, names, hosts, written or hosts)
    plan, is_moving = _plan(make, versions, planned_groups)
    rows = []
    for wish in wishes:
        row: dict[str, Any] = {"name": wish.name, "importance": wish.importance, "asked": wish.tokens_per_second}
        if wish.name in present:
            piece, figures = present[wish.name]
            row |= {"state": "present", "service": piece.wish, "served_by": piece.offer.label}
            row |= _figures_row([piece.hosts], figures, layout, fleet)
        elif wish.name in placed.chosen:
            offer, on_demand = placed.chosen[wish.name]
            state = "on_demand" if on_demand else "proposed"
            row |= {"state": state, "service": names[wish.name], "served_by": offer.label}
            row |= _figures_row(*fleet.slowest(layout, wish.name), layout, fleet)
        else:
            row |= {"state": "unserved", "reason": reasons.get(wish.name) or _no_room(wish, placed, fleet, catalogue)}
        rows.append(row)
    return {
        "wishes": rows,
        "inventory": _inventory(versions[-1], others, planned_groups),
        "free_gib": {host: round(free_gib(plan["hosts"][host]), 1) for host in sorted(plan["hosts"], key=natural)},
        "complete": placed.complete,
        "errors": [error for error in errors(plan) if error not in errors(fleet.base)],
        "notes": [
            *(
                _second(wish, names[wish.name], fleet, catalogue)
                for wish in wishes
                if names.get(wish.name, wish.name) != wish.name
            ),
            *_notes(layout, fleet, is_moving),
        ],
    }


def _plan(
    make: Maker, versions: Sequence[Hosts], groups: Mapping[str, Sequence[str]]
) -> tuple[Mapping[str, Any], bool]:
    """Return the plan of the first version, and whether it needs C(spark_allow_moving), which all versions get then."""
    plan = make(versions[0], groups)
    is_moving = ("lock.moving", "error") in ((row["rule"], row["severity"]) for row in plan_findings(plan))
    if not is_moving:
        return plan, False
    for version in versions:
        for host in version.values():
            host["vars"]["spark_allow_moving"] = True
    return make(versions[0], groups), True


def errors(plan: Mapping[str, Any]) -> list[str]:
    """Return the errors of a plan in words."""
    return [f"{error['host']}: {error['rule']}: {error['message']}" for error in list_causes(plan_findings(plan))]


def _place(wishes: Sequence[Wish], fleet: Fleet, catalogue: Catalogue) -> tuple[Placed, dict[str, str]]:
    """Return a placement, and why a wish cannot be served on free Sparks either, by wish."""
    offers, reasons = {}, {}
    for wish in wishes:
        listed = catalogue.offers(wish) if fleet.names else ([], "every Spark of the inventory has errors already")
        offers[wish.name], reasons[wish.name] = listed
    placed = Search(fleet, wishes, offers).best()
    further = {
        wish.name: catalogue.offers(wish, offers[wish.name][0].sparks + 1)[0]
        for wish in wishes
        if offers[wish.name] and wish.name not in placed.chosen
    }
    if any(further.values()):  # over more Sparks a model takes less of each
        offers = {name: [*listed, *further.get(name, ())] for name, listed in offers.items()}
        placed = max(placed, Search(fleet, wishes, offers).best(placed), key=lambda placed: placed.score)
    return placed, reasons


def _second(wish: Wish, name: str, fleet: Fleet, catalogue: Catalogue) -> str:
    """Return why a service is proposed although the inventory has one with the name of the wish. name: of the proposed one."""
    launches = {(recipe, variant) for recipe, variant, _nodes in catalogue.fitting(wish)}
    why = "it serves another wish, is stopped, or is on a Spark with errors"
    for piece, figures in fleet.existing.values():
        if piece.wish == wish.name:
            is_able = (piece.offer.recipe, piece.offer.variant) in launches
            why = wish.missed(figures, wish.users) or why if is_able else "its recipe lacks what the wish asks for"
    return f"{name}: the service {wish.name} of the inventory stays, and does not serve the wish: {why}."


def _figures_row(hosts: Sequence[Sequence[str]], figures: Figures, layout: Layout, fleet: Fleet) -> dict[str, Any]:
    """Return the figures of engines on their hosts as plain data."""
    speed = figures.speed
    streams = speed["all_streams"]
    busy = max(fleet.permanent(layout, host) for engine in hosts for host in engine)
    return {
        "hosts": [list(engine) for engine in hosts],
        "tokens_per_second": {key: round(value / speed["streams"], 2) for key, value in streams.items()}
        if streams
        else None,
        # Engines of one Spark take turns.
        "tokens_per_second_together": round(figures.rate / busy, 2) if figures.rate else None,
        "first_token_8k_seconds": speed["first_token_8k"],
        "first_token_full_seconds": speed["first_token_full"],
        "context": figures.context,
        "users": figures.requests * len(hosts),
        "gib": round(figures.gib, 1),
        "unknown": figures.unknown,
    }


def _no_room(wish: Wish, placed: Placed, fleet: Fleet, catalogue: Catalogue) -> str:
    """Return why a wish that free Sparks could serve has no place."""
    offers, _why = catalogue.offers(wish)
    offer = min(offers, key=lambda offer: (offer.sparks, fleet.gib(offer)))
    needs = f"{offer.label} needs {fleet.gib(offer):.1f} GiB on {offer.sparks} Spark{'s'[: offer.sparks != 1]}"
    if Search(fleet, [wish], {wish.name: offers}).best().chosen:
        return f"{needs}, which other wishes take ({names_text(list(placed.chosen))}). Raise its importance, or add a Spark"
    free = {host: fleet.free(fleet.empty, host) for host in fleet.names}
    emptiest = max(free, key=lambda host: free[host])
    why = f"{emptiest} has the most free memory, {free[emptiest]:.1f} GiB"
    if offer.ranks == 1:
        verdict = fleet.verdict(fleet.empty.with_piece(Piece(wish.name, offer, (emptiest,))), emptiest)
        why = f"{emptiest}: {verdict.why or wish.missed(verdict.figures[-1], offer.users)}".rstrip(".")
    return f"{needs}, and the services of the inventory leave no place. {why}. Take a service out, or add a Spark"


# The inventory ------------------------------------------------------------------------------------------------------------


def _names(placed: Placed, hosts: Hosts, fleet: Fleet) -> dict[str, str]:
    """Return the name of the proposed service of each wish, which no service of the inventory has."""
    used_names = {service["name"] for host in hosts for service in fleet.base["hosts"][host]["services"]}
    names: dict[str, str] = {}
    for wish in placed.chosen:
        numbered = (f"{wish[:36]}-{number}" for number in range(2, len(used_names) + 3))
        names[wish] = wish if wish not in used_names else next(name for name in numbered if name not in used_names)
        used_names.add(names[wish])
    return names


def _with_pieces(
    layout: Layout, groups: Mapping[str, Sequence[str]], fleet: Fleet, names: Mapping[str, str], *versions: Hosts
) -> tuple[Any, ...]:
    """Return groups, and hosts with the proposed services for each version of the hosts."""
    ports = dict(zip(names, fleet.ports))
    planned: list[dict[str, dict[str, Any]]] = []
    for hosts in versions:
        planned.append({})
        for name, host in hosts.items():
            cluster = layout.cluster_of.get(name, "")
            single, spans = (
                [
                    piece.entry(names[piece.wish], ports[piece.wish], layout.clusters.get(cluster, ()))
                    for piece in layout.pieces.get(place, ())
                ]
                for place in (name, cluster)
            )
            planned[-1][name] = {**host, "vars": with_entries(host["vars"], single, cluster, spans)}
    new = {name: list(members) for name, members in layout.clusters.items() if name not in fleet.fixed}
    return {**groups, **new}, *planned


_SEPARATE = ("spark_services", "spark_cluster")
"""Variables that no group shares."""


def _inventory(hosts: Hosts, others: Hosts, groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return groups of an inventory: C(sparks), and below it clusters and groups of the inventory that have Sparks only.

    Variables that all hosts of a group share are on the group.
    """
    names = sorted(hosts, key=natural)
    shared = _shared(hosts, names, ())
    clusters = {body["name"]: body for name in names if (body := hosts[name]["vars"].get("spark_cluster"))}
    children: dict[str, dict[str, Any]] = {}
    on_groups = {name: {*shared, "spark_cluster"} for name in names}
    for group, members in sorted(groups.items()):
        if group in _OWN_GROUPS or not members or not set(members) <= hosts.keys():
            continue
        variables = _shared(hosts, members, shared) if len(members) > 1 else {}
        for name in members:
            on_groups[name] |= variables.keys()
        variables |= {"spark_cluster": clusters[group]} if group in clusters else {}
        children[group] = {"hosts": {host: {} for host in members}, **_filled("vars", variables)}
    sparks = {"hosts": {name: _host(name, hosts[name], on_groups[name]) for name in names}}
    sparks |= {**_filled("vars", shared), **_filled("children", children)}
    further = {name: _host(name, others[name], set()) for name in sorted(others, key=natural)}
    return {"sparks": sparks, **({OTHERS: {"hosts": further}} if further else {})}


def _shared(hosts: Hosts, names: Sequence[str], excluded: Container[str]) -> dict[str, Any]:
    return {
        key: value
        for key, value in hosts[names[0]]["vars"].items()
        if key not in _SEPARATE and key not in excluded and all(hosts[name]["vars"].get(key) == value for name in names)
    }


def _filled(key: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value} if value else {}


def _host(name: str, host: Mapping[str, Any], shared: set[str]) -> dict[str, Any]:
    address = {"ansible_host": host["address"]} if host.get("address") not in (None, "", name) else {}
    return {**address, **{key: value for key, value in host["vars"].items() if key not in shared}}


def _notes(layout: Layout, fleet: Fleet, is_moving: bool) -> list[str]:
    notes = [
        f"{names_text(hosts)} become a cluster, {name}: join them by QSFP cables, docs/fabric.md says how."
        for name, hosts in sorted(layout.clusters.items())
        if name not in fleet.fixed
    ]
    notes += [
        f"{host} gets nothing, its plan has an error already: {why}" for host, why in sorted(fleet.left_out.items())
    ]
    if is_moving:
        notes.append("spark_allow_moving is set, since nothing is pinned yet. Run dgxspark.vllm.lock, then remove it.")
    return notes


# The report ---------------------------------------------------------------------------------------------------------------


def text(proposal: Mapping[str, Any], written: str) -> str:
    """Return the report for a terminal. written: path of the inventory, empty if it was not written."""
    rows = proposal["wishes"]
    served = [row for row in rows if row["state"] != "unserved"]
    slower = [row["name"] for row in served if (row["tokens_per_second_together"] or row["asked"]) < row["asked"]]
    lines = [_served_text(rows, served, slower), ""]
    lines += [tables.table(HEADER, list(map(_cells, served))), ""] if served else []
    lines += [f"- {row['name']} is not served: {row['reason']}." for row in rows if row not in served]
    lines += [note for row in served if (note := _beside_others(row, row["name"] in slower))]
    lines += [f"- {note}" for note in proposal["notes"]]
    lines += [f"- error in the plan of the proposal: {error}" for error in proposal["errors"]]
    lines.append(_free_text(proposal["free_gib"]))
    complete = "All placements were compared." if proposal["complete"] else "Not all placements were compared."
    return "\n".join([*lines, complete, *([f"Written to {written}, an inventory to copy."] if written else [])])


def _served_text(rows: Sequence[Mapping[str, Any]], served: Sequence[Mapping[str, Any]], slower: Sequence[str]) -> str:
    """Return how many wishes are served. slower: names of those that get less than they ask for while all services are busy."""
    weights = [sum(row["importance"] for row in group) for group in (served, rows)]
    alone = f" ({names_text(slower)} while other services of the Spark are idle)" if slower else ""
    return f"Wishes: {len(served)} of {len(rows)} are served{alone}, {weights[0]} of {weights[1]} by weight."


def _free_text(free_gib: Mapping[str, float]) -> str:
    """Return the free memory of hosts, those with the same together."""
    hosts_by_size: dict[str, list[str]] = {}
    for host, gib in free_gib.items():
        hosts_by_size.setdefault(f"{gib:.1f}", []).append(host)
    return f"Free memory: {'; '.join(f'{names_text(hosts)} {size} GiB' for size, hosts in hosts_by_size.items())}."


def _beside_others(row: Mapping[str, Any], is_slower: bool) -> str:
    """Return a line on a wish that is slower while the other services of its Spark are busy. is_slower: than it asks for."""
    rate, together = row["tokens_per_second"], row["tokens_per_second_together"]
    if not rate or together >= rate["typical"] * 0.99:
        return ""
    less = f", less than the {row['asked']:g} asked for," if is_slower else ""
    return (
        f"- {row['name']}: {rate['typical']:.3g} tokens/s for each user with all of them at once; {together:.3g}{less} "
        "while all other services of its Spark are busy too."
    )


def _cells(row: Mapping[str, Any]) -> list[str]:
    rate, first = row["tokens_per_second"], row["first_token_8k_seconds"]
    return [
        row["name"],
        str(row["importance"]),
        row["served_by"] + _STATES.get(row["state"], ""),
        names_text([host for engine in row["hosts"] for host in engine]),
        f"{rate['typical']:.3g}" if rate else "-",
        f"{first['typical']:.3g} s" if first else "-",
        f"{row['users']} x {row['context']}",
        f"{row['gib']:.1f}",
    ]
