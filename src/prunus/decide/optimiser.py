"""The solution of a problem: exact in chains, by moves elsewhere, and within the budget of the network's true cost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prunus.decide.amounts import Cutter, Kept
from prunus.decide.costs import CostOf
from prunus.decide.problem import Floats, Ints, Problem, problem_of, some_choices

# The exact solution where units are coupled in chains: dynamic programming over (unit, choice, cost so far).

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


# Units that many others depend on, such as a stream whose readers and writers shrink together.

MOST_HUBS = 8
MOST_CHOICES = 12  # of a hub that are tried in one turn, evenly spread and around its pick
TURNS = 2


def find_hubs(problem: Problem) -> list[int] | None:
    """Few units without which the others form chains, those with the most neighbours first; None if there are none."""
    hubs: dict[int, int] = {}
    if problem.wide:
        return None
    while len(hubs) < min(MOST_HUBS, len(problem.units) - 1):
        around = [
            -1 if unit in hubs else len([other for other in others if other not in hubs])
            for unit, others in enumerate(problem.neighbours)
        ]
        hubs[int(np.argmax(around))] = 0
        if chain_order(problem.fixed(hubs)) is not None:
            return list(hubs)
    return None


def search_hubs(problem: Problem, hubs: list[int], picks: Ints, room: float) -> Ints:
    """Better picks, if hubs with other choices allow them; the given picks are within the room."""
    for _ in range(TURNS):
        before = problem.error(picks)
        for hub in hubs:
            for choice in _tried(len(problem.units[hub].counts), int(picks[hub])):
                fixed = {unit: int(picks[unit]) for unit in hubs} | {hub: choice}
                found = _solve_others(problem, fixed, room, problem.error(picks))
                picks = picks if found is None else found
        if problem.error(picks) >= before:
            break
    return picks


def _tried(choices: int, now: int) -> list[int]:
    """Choices to try: all, or an even spread and those around the present one."""
    spread = np.linspace(0, choices - 1, min(choices, MOST_CHOICES)).round().astype(int)
    return sorted({*spread.tolist(), *range(max(0, now - 2), min(choices, now + 3))})


def _solve_others(problem: Problem, fixed: dict[int, int], room: float, below: float) -> Ints | None:
    """Picks with these hubs whose error is below that; None if there are none."""
    own = sum(float(problem.units[unit].errors[pick]) for unit, pick in fixed.items())
    rest = problem.fixed(fixed)
    order = chain_order(rest)
    if own >= below or order is None:
        return None
    found = solve_chain(rest, order, room, below - own)
    if found is None or own + rest.error(found) >= below:
        return None
    picks = problem.nothing
    picks[[unit for unit in range(len(problem.units)) if unit not in fixed]] = found
    for unit, pick in fixed.items():
        picks[unit] = pick
    return picks


# A good solution where units are coupled in any way: Lagrange with moves of single units, stars and pairs of units.

BISECTIONS_MOVES = 24
SWEEPS = 20  # at most, at one price
MOST_MOVES = 400  # of single units and pairs at the end
MOST_PAIRED = 1500  # single moves that are tried in pairs


def solve_by_moves(problem: Problem, room: float) -> Ints | None:
    """Picks of a small error within a cost of `room`; None if even the cheapest picks found exceed it.

    At a price p of cost, units take turns to minimise error + p x cost while the others stay; a unit that others depend
    on moves together with them (a star). A bisection finds the lowest price that meets the room. From the best picks
    that it met, single units and pairs of units move on as long as the error falls within the room.
    """
    floors = cheapest_by_moves(problem)
    if problem.cost(floors) > room:
        return None
    best = [floors]

    def fits(price: float, start: Ints) -> Ints | None:
        picks = _settle(problem, start, price)
        if problem.cost(picks) > room:
            return None
        best[0] = min(best[0], picks, key=problem.error)
        return picks

    whole = max(1e-300, problem.error(floors))
    low, high = 0.0, whole / max(1e-300, problem.start - problem.cost(floors))
    for _ in range(60):
        if fits(high, problem.nothing) is not None:
            break
        low, high = high, 2 * high
    for _ in range(BISECTIONS_MOVES):
        middle = (low + high) / 2
        met = fits(middle, problem.nothing) is not None
        met = fits(middle, best[0]) is not None or met  # there may be several places to settle in
        low, high = (low, middle) if met else (middle, high)
    return _improve(problem, best[0], room)


def cheapest_by_moves(problem: Problem) -> Ints:
    """Picks of a small cost, whatever their error."""
    return _settle(problem, np.array([len(unit.counts) - 1 for unit in problem.units], dtype=np.int64), None)


def _settle(problem: Problem, start: Ints, price: float | None) -> Ints:
    """Moves until no unit and no star lowers error + price x cost. None: the cost alone."""
    picks = start.copy()
    for _ in range(SWEEPS):
        before = picks.copy()
        for unit in range(len(problem.units)):
            if len(problem.neighbours[unit]) > 1 and not problem.wide_of[unit]:
                _move_star(problem, unit, picks, price)
            else:
                picks[unit] = int(_value(problem, unit, picks, price).argmin())
        if (picks == before).all():
            break
    return picks


def _value(problem: Problem, unit: int, picks: Ints, price: float | None) -> Floats:
    cost = problem.along(unit, picks)
    return cost if price is None else problem.units[unit].errors + price * cost


def _move_star(problem: Problem, unit: int, picks: Ints, price: float | None) -> None:
    """Move a unit to the choice that is best if its neighbours then move as well, and move those that gain by it."""
    rate = 1.0 if price is None else price
    value = rate * problem.own[unit] + (0.0 if price is None else problem.units[unit].errors)
    answers = {}
    for other in problem.neighbours[unit]:
        apart = _value(problem, other, picks, price) - rate * problem.table(other, unit)[:, picks[unit]]
        joint = apart[None, :] + rate * problem.table(unit, other)
        answers[other] = joint.argmin(axis=1)
        value = value + joint.min(axis=1)
    chosen = int(value.argmin())
    moved = picks.copy()
    moved[unit] = chosen
    for other, answer in answers.items():
        moved[other] = int(answer[chosen])
    if _objective(problem, moved, price) < _objective(problem, picks, price):  # neighbours may depend on each other
        picks[:] = moved
    picks[unit] = int(_value(problem, unit, picks, price).argmin())


def _objective(problem: Problem, picks: Ints, price: float | None) -> float:
    cost = problem.cost(picks)
    return cost if price is None else problem.error(picks) + price * cost


def _improve(problem: Problem, picks: Ints, room: float) -> Ints:
    """Moves of one unit or of two that lower the error and stay within the room, the best first."""
    picks = picks.copy()
    for _ in range(MOST_MOVES):
        unit, choice, cost, error = _single_moves(problem, picks)
        slack = room - problem.cost(picks)
        move = _best_single(unit, choice, cost, error, slack) or _best_pair(problem, picks, room)
        if not move:
            break
        for number, pick in move:
            picks[number] = pick
    return picks


Move = list[tuple[int, int]]


def _single_moves(problem: Problem, picks: Ints) -> tuple[Ints, Ints, Floats, Floats]:
    """All moves of one unit: unit, choice, and the changes of cost and error."""
    units, choices, costs, errors = [], [], [], []
    for number, unit in enumerate(problem.units):
        cost, now = problem.along(number, picks), picks[number]
        units.append(np.full(len(cost), number))
        choices.append(np.arange(len(cost)))
        costs.append(cost - cost[now])
        errors.append(unit.errors - unit.errors[now])
    return np.concatenate(units), np.concatenate(choices), np.concatenate(costs), np.concatenate(errors)


def _best_single(unit: Ints, choice: Ints, cost: Floats, error: Floats, slack: float) -> Move:
    good = np.flatnonzero((error < -1e-15) & (cost <= slack))
    if not len(good):
        return []
    best = good[error[good].argmin()]
    return [(int(unit[best]), int(choice[best]))]


def _best_pair(problem: Problem, picks: Ints, room: float) -> Move:
    """The move of two units that lowers the error most, within the room."""
    unit, choice, cost, error = _single_moves(problem, picks)
    slack = room - problem.cost(picks)
    some = np.flatnonzero((error < 0) | (cost < 0))  # the others neither gain nor save
    if len(some) > MOST_PAIRED:  # those that gain or save most for what they cost
        some = some[np.argsort(np.minimum(np.abs(error[some]), 1.0), kind="stable")[:MOST_PAIRED]]
    unit, choice, cost, error = unit[some], choice[some], cost[some], error[some]
    gains, saves = np.flatnonzero(error < 0), np.flatnonzero(cost < 0)
    total = error[gains][:, None] + error[saves]
    good = (total < -1e-12 * max(1e-300, problem.error(picks))) & (cost[gains][:, None] + cost[saves] <= slack)
    good &= unit[gains][:, None] != unit[saves]
    ranked = np.argsort(np.where(good, total, np.inf), axis=None)[: min(50, int(good.sum()))]
    for place in ranked.tolist():
        one, two = gains[place // len(saves)], saves[place % len(saves)]
        move = [(int(unit[i]), int(choice[i])) for i in (one, two)]
        moved = picks.copy()
        for number, pick in move:
            moved[number] = pick
        if problem.cost(moved) <= room:  # the two may depend on each other
            return move
    return []


CORRECTIONS = 8  # of the room, where the problem's cost differs from the network's
AIM = 0.998  # of the budget, after a correction: the room may approach the right one from above


def solve(problem: Problem, room: float) -> Ints | None:
    """Picks of the smallest error within a cost of `room`; None if there are none."""
    order = chain_order(problem)
    if order is not None:
        return solve_chain(problem, order, room)
    picks, hubs = solve_by_moves(problem, room), find_hubs(problem)
    return picks if picks is None or hubs is None else search_hubs(problem, hubs, picks, room)


def cheapest(problem: Problem) -> Ints:
    """Picks of the least cost, whatever their error."""
    order = chain_order(problem)
    return cheapest_by_moves(problem) if order is None else cheapest_in_chain(problem, order)


def least_cost(cutter: Cutter, names: Sequence[str], cost: CostOf) -> float:
    """The least cost that these units can be pruned to."""
    problem = problem_of(cutter, some_choices(cutter, names), cost)
    return min(cost({}), cost(_kept(cutter, problem, cheapest(problem))))


def keep_within(cutter: Cutter, names: Sequence[str], cost: CostOf, left: float) -> Kept | None:
    """Kept channels of the smallest error whose cost is at most `left`; None if none were found.

    Units with many choices are searched in two stages: among choices that are evenly spread, then around the best.
    """
    coarse = some_choices(cutter, names)
    keep = _keep_within(cutter, problem_of(cutter, coarse, cost), cost, left)
    widths = {name: cutter.graph.units[name].width for name in names}
    if keep is None or all(len(cutter.limits.choices(cutter.graph.units[n])) == len(coarse[n]) for n in names):
        return keep
    removed = {name: widths[name] - len(kept) for name, kept in keep.items()}
    fine = problem_of(cutter, some_choices(cutter, names, around=removed), cost)
    return _keep_within(cutter, fine, cost, left) or keep


def _keep_within(cutter: Cutter, problem: Problem, cost: CostOf, left: float) -> Kept | None:
    """The problem's cost can differ from the network's: layers that write a stream lose outputs that no reader selects,
    and a cost that is only known as a whole is not a sum. The room is corrected by the difference."""
    room, best, least = left, None, float("inf")
    for _ in range(CORRECTIONS):
        picks = solve(problem, room)
        if picks is None:
            break
        keep = _kept(cutter, problem, picks)
        true, error = cost(keep), problem.error(picks)
        if true <= left and error < least:
            best, least = keep, error
        room, before = (left if true <= left else AIM * left) - (true - problem.cost(picks)), room
        if abs(room - before) <= 1e-6 * abs(left):
            break
    if best is None:
        keep = _kept(cutter, problem, cheapest(problem))
        best = keep if cost(keep) <= left else None
    return best


def _kept(cutter: Cutter, problem: Problem, picks: Ints) -> Kept:
    removed = {unit.name: int(unit.counts[pick]) for unit, pick in zip(problem.units, picks, strict=True)}
    return {name: cutter.keep(name, count) for name, count in removed.items() if count}
