# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where wishes are served: a search over offers and Sparks, exhaustive if it is small enough. Pure functions.

Placements are compared by the importance of the served wishes, then of those that are served without waiting for memory, then by the
size of the models. Sparks that are alike and have the same services are tried once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .picture import natural
from .spanning import ALIKE
from .wish_fleet import Fleet, Layout, Offer, Piece
from .wishes import Wish

WORK = 20_000
"""Looks at a Spark that a search may take."""
PLAN_WORK = 50
"""Looks that planning a new combination counts for."""
BESIDE = 0.9
"""The least share of its memory alone that an engine takes beside others."""
Option = tuple[Offer, bool]
"""An offer, and whether it starts with its first request."""
Score = tuple[int, int, int]


@dataclass(frozen=True)
class Placed:
    """Proposed engines. chosen: option by wish. score: the higher the better. complete: no other placement is better."""

    layout: Layout
    chosen: Mapping[str, Option] = field(default_factory=dict)
    score: Score = (0, 0, 0)
    complete: bool = True


class Search:
    """Places wishes on a fleet. wishes: without those that are served already, the most important first. offers: by wish."""

    def __init__(self, fleet: Fleet, wishes: Sequence[Wish], offers: Mapping[str, Sequence[Offer]]) -> None:
        """Place nothing yet."""
        self.fleet, self.offers = fleet, offers
        self.wishes = [wish for wish in wishes if offers.get(wish.name)]
        self.by_name = {wish.name: wish for wish in wishes}
        self.work = 0
        self.memory = sum(self._free(fleet.empty, name) for name in fleet.names)
        self.least = {
            name: min((BESIDE * self.fleet.gib(offer) * offer.sparks for offer in listed), default=0.0)
            for name, listed in offers.items()
        }
        self.alike = {name: str([fleet.vars[name].get(key) for key in ALIKE]) for name in fleet.names}

    def best(self) -> Placed:
        """Return the best placement that was found."""
        best, complete = Placed(self.fleet.empty, score=(-1, 0, 0)), False
        for smallest_first in (False, True):
            if not complete:
                self.work = 0
                best, complete = self._descend(0, Placed(self.fleet.empty), best, smallest_first)
        if not complete:
            best = self._improved(best)
        return replace(self._spread(best), complete=complete)

    def _bound(self, number: int, score: Score, layout: Layout) -> Score:
        """Return a score that no placement of the wishes from C(number) on exceeds: by the memory that is left of all Sparks."""
        weight = sum(wish.importance for wish in self.wishes[number:])
        permanent: float = weight
        if not any(self.fleet.busy.values()):
            pieces = (piece for piece in layout.every() if not piece.on_demand)
            left = self.memory - BESIDE * sum(self.fleet.gib(piece.offer) * piece.offer.ranks for piece in pieces)
            permanent = 0.0
            for wish in sorted(self.wishes[number:], key=lambda wish: self.least[wish.name] / wish.importance):
                share = min(1.0, max(0.0, left) / self.least[wish.name]) if self.least[wish.name] else 1.0
                permanent, left = permanent + share * wish.importance, left - self.least[wish.name]
        return score[0] + weight, score[1] + int(permanent), score[2]

    def _descend(self, number: int, placed: Placed, best: Placed, smallest_first: bool) -> tuple[Placed, bool]:
        """Place the wishes from C(number) on; return the better of the result and C(best), and whether nothing was left out."""
        if number == len(self.wishes):
            return (placed if placed.score > best.score else best), True
        wish, ended = self.wishes[number], True
        for option in self._options(wish, smallest_first):
            gained = self._gain(placed.score, wish, option)
            if self._bound(number + 1, gained, placed.layout) <= best.score:
                continue
            for layout in self.placings(placed.layout, wish, option):
                further = Placed(layout, {**placed.chosen, wish.name: option}, gained)
                if self._bound(number + 1, gained, layout) > best.score:
                    best, whole = self._descend(number + 1, further, best, smallest_first)
                    ended = ended and whole
                if best.score[0] >= 0 and self.work > WORK:
                    return best, False
        if self._bound(number + 1, placed.score, placed.layout) > best.score:
            best, whole = self._descend(number + 1, placed, best, smallest_first)
            ended = ended and whole
        return best, ended

    def _options(self, wish: Wish, smallest_first: bool) -> list[Option]:
        offers = list(self.offers[wish.name])
        if smallest_first:
            offers.sort(key=lambda offer: (offer.sparks, self.fleet.gib(offer)))
        options: list[Option] = [(offer, False) for offer in offers]
        return options + [(offer, True) for offer in offers if wish.on_demand and offer.replicas == 1]

    def _gain(self, score: Score, wish: Wish, option: Option) -> Score:
        offer, on_demand = option
        rank = list(self.offers[wish.name]).index(offer)
        return score[0] + wish.importance, score[1] + (0 if on_demand else wish.importance), score[2] - rank

    # Sites ----------------------------------------------------------------------------------------------------------

    def placings(self, layout: Layout, wish: Wish, option: Option) -> Iterator[Layout]:
        """Yield the layouts with a wish on different Sparks, the fullest that have room first.

        :param layout: of the wishes before
        :param wish: to place
        :param option: how to serve it
        """
        offer, on_demand = option
        if offer.replicas == 1:
            yield from self._with_engine(layout, wish, offer, on_demand, ())
            return
        taken: tuple[str, ...] = ()
        for _replica in range(offer.replicas):
            found = next(self._with_engine(layout, wish, offer, on_demand, taken), None)
            if found is None:
                return
            layout = found
            taken = tuple(host for piece in layout.every() if piece.wish == wish.name for host in piece.hosts)
        yield layout

    def _with_engine(
        self, layout: Layout, wish: Wish, offer: Offer, on_demand: bool, taken: Sequence[str]
    ) -> Iterator[Layout]:
        """Yield the layouts with one more engine. taken: hosts of other replicas."""
        for hosts, cluster in self._sites(layout, offer, on_demand, taken):
            further = layout.with_piece(Piece(wish.name, offer, hosts, on_demand), cluster)
            if self._fits(further, hosts[0]):
                yield further

    def _fits(self, layout: Layout, host: str) -> bool:
        """Tell whether a host and its cluster carry all their pieces, and each serves its wish."""
        before = self.fleet.looks
        verdict = self.fleet.verdict(layout, host)
        self.work += 1 + PLAN_WORK * (self.fleet.looks - before)
        if verdict.why:
            return False
        pieces = layout.on(layout.hosts_with(host))
        return not any(
            self.by_name[piece.wish].missed(figures, piece.offer.users)
            for piece, figures in zip(pieces, verdict.figures)
        )

    def _free(self, layout: Layout, host: str) -> float:
        self.work += 1
        return self.fleet.verdict(layout, host).free.get(host, 0.0)

    def _sites(
        self, layout: Layout, offer: Offer, on_demand: bool, taken: Sequence[str]
    ) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield hosts for an engine, with the name of the cluster if it is a new one; alike ones once."""
        names = [name for name in self.fleet.names if name not in taken]
        representative: dict[object, str] = {}
        for name in names:
            representative.setdefault(self._state(layout, name), name)
        free = {name: self._free(layout, name) for name in representative.values()}
        free_of = {name: free[representative[self._state(layout, name)]] for name in names}
        # Services of the inventory may take less beside others, so that only Sparks without them are measured.
        least = BESIDE * self.fleet.gib(offer)
        if on_demand:  # which takes the memory of the others of its set
            sets = {name: [piece for piece in layout.on((name,)) if piece.on_demand] for name in free}
            free = {
                name: gib + max((self.fleet.gib(piece.offer) for piece in sets[name]), default=0.0)
                for name, gib in free.items()
            }
            free_of = {name: free[representative[self._state(layout, name)]] for name in names}
        roomy = [name for name in names if self.fleet.busy[name] or free_of[name] >= least]
        if offer.ranks == 1:
            for name in sorted(set(roomy) & set(free), key=lambda name: (free[name], natural(name))):
                yield (name,), ""
            return
        seen = set()
        for hosts, cluster in self._spans(layout, offer.ranks, roomy, free_of):
            state = (bool(cluster), tuple(self._state(layout, name) for name in hosts))
            if state not in seen:
                seen.add(state)
                yield hosts, cluster

    @staticmethod
    def _spans_of(hosts: Sequence[str], ranks: int) -> Iterator[tuple[str, ...]]:
        """Yield neighbours of a cluster, which every cabling joins."""
        for first in range(len(hosts) - ranks + 1):
            yield tuple(hosts[first : first + ranks])

    def _spans(
        self, layout: Layout, ranks: int, roomy: Sequence[str], free: Mapping[str, float]
    ) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield hosts of clusters, then hosts that would be a new one: the fullest with room, and the emptiest."""
        for name in sorted(layout.clusters, key=natural):
            for span in self._spans_of(layout.clusters[name], ranks):
                if set(span) <= set(roomy):
                    yield span, ""
        groups: dict[str, list[str]] = {}
        for name in roomy:
            if name not in layout.cluster_of:
                groups.setdefault(self.alike[name], []).append(name)
        number = 1
        while f"cluster_{number}" in layout.clusters:
            number += 1
        for members in groups.values():
            if len(members) >= ranks:
                by_free = sorted(members, key=lambda name: (free[name], natural(name)))
                for chosen in (by_free[:ranks], by_free[-ranks:]):
                    yield tuple(sorted(chosen, key=natural)), f"cluster_{number}"

    def _state(self, layout: Layout, host: str) -> object:
        """Return what decides whether a host is another case than a second one."""
        hosts = layout.hosts_with(host)
        if hosts == (host,):
            return self.fleet.class_of[host], tuple(piece.key for piece in layout.pieces.get(host, ()))
        cluster = layout.cluster_of[host]
        if cluster in self.fleet.fixed:
            return cluster, hosts.index(host), len(layout.on(hosts))
        pieces = tuple((piece.key, tuple(map(hosts.index, piece.hosts))) for piece in layout.on(hosts))
        return hosts.index(host), tuple(self.fleet.class_of[name] for name in hosts), pieces

    # After the search -----------------------------------------------------------------------------------------------

    def _improved(self, placed: Placed) -> Placed:
        """Return a placement in which single wishes are served that were not, or by a larger model, one after the other."""
        self.work = 0
        for wish in self.wishes:
            if self.work > WORK:
                break
            bare = placed.layout.without(wish.name, self.fleet.fixed)
            chosen = {name: option for name, option in placed.chosen.items() if name != wish.name}
            score = placed.score
            if wish.name in placed.chosen:
                old = self._gain((0, 0, 0), wish, placed.chosen[wish.name])
                score = (score[0] - old[0], score[1] - old[1], score[2] - old[2])
            for option in self._options(wish, False):
                gained = self._gain(score, wish, option)
                layout = next(self.placings(bare, wish, option), None) if gained > placed.score else None
                if layout:
                    placed = Placed(layout, {**chosen, wish.name: option}, gained, False)
                    break
        return placed

    def _spread(self, placed: Placed) -> Placed:
        """Move engines to unused Sparks that would be too slow while the other services of their Spark are busy too."""
        layout = placed.layout
        for wish in self.wishes:
            offer, on_demand = placed.chosen.get(wish.name, (None, True))
            if offer is None or offer.sparks > 1 or on_demand:
                continue
            ((host,),), figures = self.fleet.slowest(layout, wish.name)
            if (figures.rate or 0.0) / self.fleet.permanent(layout, host) >= wish.tokens_per_second:
                continue
            for name in self.fleet.names:
                if self.fleet.busy[name] or name in layout.cluster_of or layout.pieces.get(name):
                    continue
                moved = layout.without(wish.name, self.fleet.fixed).with_piece(Piece(wish.name, offer, (name,)))
                if self._fits(moved, name) and self._fits(moved, host):
                    layout = moved
                    break
        return replace(placed, layout=layout)
