"""The exact solution where units are coupled in chains: dynamic programming over (unit, choice, cost so far)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from secateur.deciding.optimiser.problem import Floats, Ints, Problem

MOST_LABELS = 8_000  # per unit; beyond this the least promising are dropped, and the solution may not be exact
BISECTIONS = 40


def chain_order(problem: Problem) -> list[int] | None:
    """The units in an order in which each is coupled with the one before it at most; None if there is none."""
    neighbours = problem.neighbours
    if problem.wide or any(len(set(around)) > 2 for around in neighbours):
        return None
    order: list[int] = []
    met: set[int] = set()
    for end in sorted(range(len(neighbours)), key=lambda unit: len(neighbours[unit])):  # ends of chains come first
        if end in met:
            continue
        if len(neighbours[end]) == 2:  # all ends have been used: this is a ring
            return None
        unit: int | None = end
        while unit is not None:
            order.append(unit)
            met.add(unit)
            unit = next((other for other in neighbours[unit] if other not in met), None)
    return order


def solve_chain(problem: Problem, order: list[int], room: float, below: float = np.inf) -> Ints | None:
    """The picks of the smallest error within a cost of `room`; None if there are none with an error below `below`.

    A bisection over the price of cost gives a feasible solution and a lower bound of all (Lagrange). Then partial
    solutions are extended unit by unit. One is dropped if another with the same last choice costs no more and errs no
    more, or if even its bound exceeds the best solution known.
    """
    chain = _Chain.of(problem, order)
    room += 1e-12 * abs(problem.start) - problem.start  # a little more, for the rounding of sums
    if chain.cost(chain.best(None)) > room:
        return None
    price, picks = _price(chain, room)
    if chain.bound(price, room) >= below:
        return None
    better = _extend(chain, price, room, chain.error(picks))
    found = problem.nothing
    found[order] = picks if better is None else better
    return found


def cheapest_in_chain(problem: Problem, order: list[int]) -> Ints:
    """The picks of the least cost."""
    found = problem.nothing
    found[order] = _Chain.of(problem, order).best(None)
    return found


@dataclass(frozen=True, eq=False)
class _Chain:
    """Errors, costs and tables in the order of the chain."""

    errors: list[Floats]
    own: list[Floats]
    links: list[Floats | None]  # [choices, choices of the next unit]; None: not coupled

    @classmethod
    def of(cls, problem: Problem, order: list[int]) -> _Chain:
        links = [
            problem.table(unit, after) if after in problem.neighbours[unit] else None
            for unit, after in itertools.pairwise(order)
        ]
        return cls([problem.units[u].errors for u in order], [problem.own[u] for u in order], links)

    def ahead(self, price: float | None) -> list[Floats]:
        """[choices] per unit: the least error + price x cost of all units after it. None: the least cost alone."""
        weight, rate = (0.0, 1.0) if price is None else (1.0, price)
        found = [np.zeros_like(self.own[-1])]
        for i in range(len(self.own) - 2, -1, -1):
            after = weight * self.errors[i + 1] + rate * self.own[i + 1] + found[0]
            link = self.links[i]
            here = np.full_like(self.own[i], after.min()) if link is None else (rate * link + after).min(axis=1)
            found.insert(0, here)
        return found

    def best(self, price: float | None) -> Ints:
        """The picks of the least error + price x cost."""
        weight, rate = (0.0, 1.0) if price is None else (1.0, price)
        picks: list[int] = []
        for i, rest in enumerate(self.ahead(price)):
            value = weight * self.errors[i] + rate * self.own[i] + rest
            link = self.links[i - 1] if i else None
            picks.append(int((value if link is None else value + rate * link[picks[-1]]).argmin()))
        return np.array(picks, dtype=np.int64)

    def bound(self, price: float, room: float) -> float:
        """No picks within the room have a smaller error than this."""
        return float((self.errors[0] + price * self.own[0] + self.ahead(price)[0]).min()) - price * room

    def cost(self, picks: Ints) -> float:
        total = sum(float(own[pick]) for own, pick in zip(self.own, picks, strict=True))
        pairs = zip(self.links, picks, picks[1:], strict=False)
        return total + sum(float(link[a, b]) for link, a, b in pairs if link is not None)

    def error(self, picks: Ints) -> float:
        return float(sum(errors[pick] for errors, pick in zip(self.errors, picks, strict=True)))


def _price(chain: _Chain, room: float) -> tuple[float, Ints]:
    """The lowest price whose best picks are within the room, and the picks of the smallest error that were met."""
    scale = max(1e-300, max(float(errors.max()) for errors in chain.errors))
    span = max(1e-300, sum(float(np.ptp(own)) for own in chain.own), abs(room))
    low, high, best = 0.0, scale / span, chain.best(None)
    picks = chain.best(0.0)
    if chain.cost(picks) <= room:
        return 0.0, picks
    for _ in range(200):
        picks = chain.best(high)
        if chain.cost(picks) <= room:
            break
        low, high = high, 4 * high
    else:
        return high, best
    best = min(best, picks, key=chain.error)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        picks = chain.best(middle)
        if chain.cost(picks) <= room:
            high, best = middle, min(best, picks, key=chain.error)
        else:
            low = middle
    return high, best


def _extend(chain: _Chain, price: float, room: float, known: float) -> Ints | None:
    """The best picks by dynamic programming; None if the labels found nothing better than what is known."""
    ahead, cheapest = chain.ahead(price), chain.ahead(None)
    limit = known * (1 + 1e-12) + 1e-300
    choices = np.flatnonzero(chain.own[0] + cheapest[0] <= room)
    cost, error = chain.own[0][choices], chain.errors[0][choices]
    parents: list[Ints] = []
    trail = [choices]
    for i in range(len(chain.own)):
        if i:
            link = chain.links[i - 1]
            step = chain.own[i][None, :] if link is None else chain.own[i] + link[choices]
            new_cost, new_error = cost[:, None] + step, error[:, None] + chain.errors[i]
            bound = new_error + price * (new_cost - room) + ahead[i]
            good = (bound <= limit) & (new_cost + cheapest[i] <= room) & (new_error <= limit)
            parent, choices = np.nonzero(good)
            kept = _front(choices, new_cost[good], new_error[good], bound[good])
            parents.append(parent[kept])
            choices, cost, error = choices[kept], new_cost[good][kept], new_error[good][kept]
            trail.append(choices)
        if not len(choices):
            return None
    last = int(np.lexsort((cost, error))[0])
    picks = [int(trail[-1][last])]
    for parent, before in zip(reversed(parents), reversed(trail[:-1]), strict=True):
        last = int(parent[last])
        picks.insert(0, int(before[last]))
    return np.array(picks, dtype=np.int64)


def _front(choices: Ints, cost: Floats, error: Floats, bound: Floats) -> Ints:
    """Labels that no other label of the same choice beats in both cost and error."""
    order = np.lexsort((error, cost, choices))
    # Falls from choice to choice by more than errors differ, so that one running minimum serves all choices.
    level = error[order] - choices[order] * 2 * (1e-300 + float(np.ptp(error)) if len(error) else 0.0)
    best = np.minimum.accumulate(level)
    found = order[np.concatenate([[True], level[1:] < best[:-1]])] if len(order) else order
    if len(found) > MOST_LABELS:
        found = found[np.argsort(bound[found], kind="stable")[:MOST_LABELS]]
    return found
