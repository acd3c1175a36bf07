# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where wishes are served: a search over offers and Sparks, exhaustive if it is small enough. Pure functions.

Placements are compared by the importance of the served wishes, then of those that are served without waiting for memory, then by the
size of the models. Sparks that are alike and have the same services are tried once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .picture import natural
from .spanning import ALIKE
from .wish_fleet import Fleet, Layout, Offer, Piece
from .wishes import Wish

WORK, SMALL = 12_000, 8
"""Looks at a Spark that a pass of a search may take, once it has placed what it can: half of it with more Sparks than C(SMALL)."""
MOST_SITES = 8
"""Different Sparks that are tried for an engine if there are more than C(SMALL)."""
PLAN_WORK = 50
"""Looks that planning a new combination counts for."""
MOST_WAITING = 4
"""Proposed services of one set on demand: the planner judges each combination of its members."""
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
    """Places wishes, the most important first, on a fleet. offers: by wish, the preferred one first."""

    def __init__(self, fleet: Fleet, wishes: Sequence[Wish], offers: Mapping[str, Sequence[Offer]]) -> None:
        """Place nothing yet."""
        self.fleet, self.offers, self.work = fleet, offers, 0
        self.is_small = len(fleet.names) <= SMALL
        self.limit = WORK if self.is_small else WORK // 2
        self.wishes = [wish for wish in wishes if offers.get(wish.name)]
        self.by_name = {wish.name: wish for wish in wishes}
        self.memory = sum(fleet.free(fleet.empty, name) for name in fleet.names)
        needs = [
            (min(BESIDE * fleet.gib(offer) * offer.sparks for offer in offers[wish.name]), wish.importance)
            for wish in self.wishes
        ]
        self.later = [sorted(needs[number:], key=lambda need: need[0] / need[1]) for number in range(len(needs) + 1)]

    def best(self, earlier: Placed | None = None) -> Placed:
        """Return the best placement that was found. earlier: with fewer offers; of many Sparks it is only improved."""
        if earlier and not self.is_small:
            return self._spread(replace(self._improved(earlier), complete=False))
        best, complete = Placed(self.fleet.empty, score=(-1, 0, 0)), False
        for smallest_first in (False, True):
            if not complete and (self.is_small or len(best.chosen) < len(self.wishes)):
                self.work = 0
                best, complete = self._descend(0, Placed(self.fleet.empty), best, smallest_first)
                # Of many Sparks not all are tried.
                complete = complete and (self.is_small or best.score == self._bound(0, (0, 0, 0), self.fleet.empty))
        best = best if complete else self._improved(best)
        return replace(self._spread(best), complete=complete)

    def _descend(self, number: int, placed: Placed, best: Placed, smallest_first: bool) -> tuple[Placed, bool]:
        """Place the wishes from C(number) on; return the better of the result and C(best), and whether nothing was memory out."""
        if number == len(self.wishes):
            return (placed if placed.score > best.score else best), True
        wish, ended = self.wishes[number], True
        for option in self._options(wish, smallest_first):
            score = self._gain(placed.score, wish, option)
            if self._bound(number + 1, score, placed.layout) <= best.score:
                continue
            for layout in self._placings(placed.layout, wish, option):
                if self._bound(number + 1, score, layout) > best.score:
                    further = Placed(layout, {**placed.chosen, wish.name: option}, score)
                    best, is_whole = self._descend(number + 1, further, best, smallest_first)
                    ended = ended and is_whole
                if best.score[0] >= 0 and self.work > self.limit:
                    return best, False
        if self._bound(number + 1, placed.score, placed.layout) > best.score:
            best, is_whole = self._descend(number + 1, placed, best, smallest_first)
            ended = ended and is_whole
        return best, ended

    def _bound(self, number: int, score: Score, layout: Layout) -> Score:
        """Return a score that no placement of the wishes from C(number) on exceeds: by the memory that is memory of all Sparks."""
        weight = sum(importance for _least, importance in self.later[number])
        pieces = [piece for listed in layout.pieces.values() for piece in listed if not piece.on_demand]
        memory = self.memory - BESIDE * sum(self.fleet.gib(piece.offer) * piece.offer.ranks for piece in pieces)
        permanent = 0.0
        for least, importance in self.later[number]:
            permanent += min(1.0, max(0.0, memory) / max(least, 1e-9)) * importance
            memory -= least
        return score[0] + weight, score[1] + int(permanent + 1e-9), score[2]

    def _options(self, wish: Wish, smallest_first: bool) -> list[Option]:
        offers = list(self.offers[wish.name])
        if smallest_first:
            offers.sort(key=lambda offer: (offer.sparks, self.fleet.gib(offer)))
        waiting = [(offer, True) for offer in offers if wish.on_demand and offer.replicas == 1]
        return [*((offer, False) for offer in offers), *waiting]

    def _gain(self, score: Score, wish: Wish, option: Option) -> Score:
        rank = list(self.offers[wish.name]).index(option[0])
        return score[0] + wish.importance, score[1] + (0 if option[1] else wish.importance), score[2] - rank

    def _placings(self, layout: Layout, wish: Wish, option: Option, replica: int = 1) -> Iterator[Layout]:
        """Yield the layouts with a wish, the fullest Sparks that have room first; of replicas, on different ones, the first layout alone."""
        offer, on_demand = option
        excluded = {host for piece in layout.of(wish.name) for host in piece.hosts}
        for hosts, cluster in self._sites(layout, offer, on_demand, excluded):
            further = layout.with_piece(Piece(wish.name, offer, hosts, on_demand), cluster)
            if self._fits(further, hosts[0]):
                if replica < offer.replicas:
                    yield from self._placings(further, wish, option, replica + 1)
                else:
                    yield further
                if offer.replicas > 1:
                    return

    def _fits(self, layout: Layout, host: str) -> bool:
        """Tell whether a host and its cluster carry all their pieces, and each serves its wish."""
        before = self.fleet.looks
        verdict = self.fleet.verdict(layout, host)
        self.work += 1 + PLAN_WORK * (self.fleet.looks - before)
        pairs = zip(layout.on(host), verdict.figures)
        return not verdict.why and not any(
            self.by_name[piece.wish].missed(figures, piece.offer.users) for piece, figures in pairs
        )

    def _sites(
        self, layout: Layout, offer: Offer, on_demand: bool, excluded: set[str]
    ) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield hosts for an engine, with the name of the cluster if it is a new one; alike ones once."""
        names = [name for name in self.fleet.names if name not in excluded]
        states = {name: self._state(layout, name) for name in names}
        free: dict[object, float] = {}
        for name, state in states.items():
            if state not in free:
                free[state] = self._free(layout, name, on_demand)
        least = BESIDE * self.fleet.gib(offer)
        roomy = [name for name in names if free[states[name]] >= least]
        roomy.sort(key=lambda name: (free[states[name]], natural(name)))
        seen: set[object] = set()
        sites = self._spans(layout, offer.ranks, roomy) if offer.ranks > 1 else (((name,), "") for name in roomy)
        for hosts, cluster in sites:
            state = (bool(cluster), tuple(states[name] for name in hosts))
            if state not in seen and (self.is_small or len(seen) < MOST_SITES):
                seen.add(state)
                yield hosts, cluster

    def _free(self, layout: Layout, host: str, on_demand: bool) -> float:
        """Return the GiB of a host that an engine may take, below 0 if its set has as many members as may be judged."""
        self.work += 1
        # On demand it takes the memory of the others of its set.
        waiting = [self.fleet.gib(piece.offer) for piece in layout.on(host) if on_demand and piece.on_demand]
        free = self.fleet.free(layout, host) + max(waiting, default=0.0)
        return free if len(waiting) < MOST_WAITING else -1.0

    def _spans(self, layout: Layout, ranks: int, roomy: Sequence[str]) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield neighbours of clusters, which every cabling joins, then hosts for a new cluster: the fullest with room, and the emptiest."""
        for name in sorted(layout.clusters, key=natural):
            hosts = layout.clusters[name]
            for first in range(len(hosts) - ranks + 1):
                if set(hosts[first : first + ranks]) <= set(roomy):
                    yield hosts[first : first + ranks], ""
        groups: dict[str, list[str]] = {}
        for name in roomy:
            if name not in layout.cluster_of:
                groups.setdefault(str([self.fleet.vars[name].get(key) for key in ALIKE]), []).append(name)
        numbered = (f"cluster_{number}" for number in range(1, len(layout.clusters) + 2))
        fresh = next(name for name in numbered if name not in layout.clusters)
        for members in groups.values():
            for chosen in (members[:ranks], members[-ranks:]) if len(members) >= ranks else ():
                yield tuple(sorted(chosen, key=natural)), fresh

    def _state(self, layout: Layout, host: str) -> object:
        """Return a key that alike hosts with the same pieces share."""
        hosts, cluster = layout.hosts_with(host), layout.cluster_of.get(host, "")
        pieces = tuple((piece.key, tuple(map(hosts.index, piece.hosts))) for piece in layout.on(host))
        return (
            cluster if cluster in self.fleet.fixed else bool(cluster),
            hosts.index(host),
            tuple(map(self.fleet.class_of.get, hosts)),
            pieces,
        )

    def _improved(self, placed: Placed) -> Placed:
        """Return a placement in which single wishes are served that were not, or by a larger model, one after the other."""
        self.work = 0
        for wish in sorted(self.wishes, key=lambda wish: wish.name in placed.chosen):  # those without a place first
            chosen = {name: option for name, option in placed.chosen.items() if name != wish.name}
            bare = placed.layout.without(wish.name, self.fleet.fixed)
            for option in self._options(wish, False) if self.work <= self.limit else ():
                score = (0, 0, 0)
                for name, earlier in {**chosen, wish.name: option}.items():
                    score = self._gain(score, self.by_name[name], earlier)
                layout = next(self._placings(bare, wish, option), None) if score > placed.score else None
                if layout:
                    placed = Placed(layout, {**chosen, wish.name: option}, score, False)
                    break
        return placed

    def _spread(self, placed: Placed) -> Placed:
        """Move engines so that fewer wishes are too slow while the other services of their Spark are busy too."""
        for wish in self.wishes:
            placed = next(self._less_slow(placed, wish), placed) if self._is_slow(placed, wish) else placed
        return placed

    def _is_slow(self, placed: Placed, wish: Wish) -> bool:
        """Tell whether a wish gets less than it asks for while the other services of its Spark are busy too."""
        offer, on_demand = placed.chosen.get(wish.name, (None, True))
        if offer is None or offer.sparks > 1 or on_demand:
            return False
        ((host,),), figures = self.fleet.slowest(placed.layout, wish.name)
        return (figures.rate or 0.0) / self.fleet.permanent(placed.layout, host) < wish.tokens_per_second

    def _slow_weight(self, placed: Placed, names: Iterable[str]) -> int:
        wishes = (self.by_name[name] for name in names)
        return sum(wish.importance for wish in wishes if self._is_slow(placed, wish))

    def _less_slow(self, placed: Placed, wish: Wish) -> Iterator[Placed]:
        """Yield placements with the wish, or another one of its Spark, on another Spark, so that less weight is too slow; unused ones first."""
        layout, ((host,),) = placed.layout, [piece.hosts for piece in placed.layout.of(wish.name)]
        movable = [piece for piece in layout.pieces[host] if piece.offer.sparks == 1 and not piece.on_demand]
        for piece in sorted(movable, key=lambda piece: piece.wish != wish.name):
            bare = layout.without(piece.wish, self.fleet.fixed)
            sites = [name for (name,), _cluster in self._sites(bare, piece.offer, False, {host})]
            sites.sort(key=lambda name: (self.fleet.busy[name] or bool(bare.on(name)), -self.fleet.free(bare, name)))
            for name in sites:
                moved = replace(placed, layout=bare.with_piece(replace(piece, hosts=(name,))))
                fits = self._fits(moved.layout, name) and self._fits(moved.layout, host)
                beside = {piece.wish, *(other.wish for place in (host, name) for other in layout.on(place))}
                if fits and self._slow_weight(moved, beside) < self._slow_weight(placed, beside):
                    yield moved
