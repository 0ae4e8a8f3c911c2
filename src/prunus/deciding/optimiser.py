"""The split of a cut with the smallest sum of errors: exact in chains, by moves elsewhere, within the true budget.

minimise over picks    sum of errors    subject to    cost <= room
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from prunus.deciding.costs import CostOf, PeakCost
from prunus.deciding.problem import Floats, Ints, Problem, problem_of, some_choices
from prunus.deciding.widths import Cutter, Kept, error_of

MOST_LABELS = 8_000  # of a chain per unit; beyond this the least promising are dropped, and it may not be exact
CHAIN_BISECTIONS, MOVE_BISECTIONS = 40, 24  # of the price
MOST_HUBS, HUB_CHOICES = 4, 8  # units with the most neighbours, and their choices, that the others are settled for
SWEEPS = 20  # of moves at most, at one price
MOST_MOVES = 400  # of single units and pairs at the end
MOST_PAIRED = 1500  # single moves that are tried in pairs
MOST_PAIRS = 50  # pairs whose true cost is computed
CORRECTIONS = 8  # of the room, where the problem's cost differs from the network's
PEAK_BISECTIONS = 8  # of the room for all sums of a `PeakCost` that are too large
AIM = 0.998  # of the budget, after a correction: the room may approach the right one from above
TINY = 1e-300

Weights = tuple[float, float]  # of the error and of the cost: (1, price)
CHEAPEST: Weights = (0.0, 1.0)  # the cost alone


def keep_within(cutter: Cutter, names: Sequence[str], cost: CostOf, left: float) -> Kept | None:
    """Kept channels of the smallest error whose cost is at most `left`; None if none were found.

    Units with many choices are searched in two stages: among choices that are evenly spread, then around the best.
    """
    if isinstance(cost, PeakCost):
        return _peaks_within(cutter, names, cost, left)
    coarse = some_choices(cutter, names)
    keep = _keep_within(cutter, problem_of(cutter, coarse, cost), cost, left)
    units = cutter.graph.units
    if keep is None or all(len(cutter.limits.choices(units[name])) == len(coarse[name]) for name in names):
        return keep
    removed = {name: units[name].width - len(kept) for name, kept in keep.items()}
    fine = problem_of(cutter, some_choices(cutter, names, around=removed), cost)
    return _keep_within(cutter, fine, cost, left) or keep


def least_cost(cutter: Cutter, names: Sequence[str], cost: CostOf) -> float:
    """The least cost that these units can be pruned to."""
    if isinstance(cost, PeakCost):  # it falls with every channel
        return min(cost({}), cost(_floors(cutter, names)))
    problem = problem_of(cutter, some_choices(cutter, names), cost)
    return min(cost({}), cost(_kept(cutter, problem, cheapest(problem))))


def _peaks_within(cutter: Cutter, names: Sequence[str], cost: PeakCost, left: float) -> Kept | None:
    """The largest of several sums within `left`, in two ways, of which that with the smaller error is taken.

    All sums that are too large are added up, and the room for this one sum is bisected until each of them fits: a unit
    that is part of several of them counts several times. Or they are lowered one after the other, the largest first.
    """
    if cost(_floors(cutter, names)) > left:
        return None
    ways = [_all_at_once(cutter, names, cost, left), _one_by_one(cutter, names, cost, left)]
    fitting = [keep for keep in ways if keep is not None and cost(keep) <= left]
    return min(fitting, key=lambda keep: error_of(keep, cutter.scores), default=None)


def _all_at_once(cutter: Cutter, names: Sequence[str], cost: PeakCost, left: float) -> Kept | None:
    large = np.flatnonzero(np.asarray(cost.sums({})) > left)

    def together(keep: Mapping[str, Sequence[int]]) -> float:
        return float(np.asarray(cost.sums(keep))[large].sum())

    fits, room = together(_floors(cutter, names)), left * len(large)
    best, step = None, (left * len(large) - fits) / 2
    for _ in range(PEAK_BISECTIONS):  # down until each of them fits, and up as far as it does
        keep = keep_within(cutter, names, together, room)
        fitting = keep is not None and cost(keep) <= left
        if fitting:
            best = keep
            if room >= left * len(large):
                break
        room, step = (room + step if fitting else room - step), step / 2
    return best


def _one_by_one(cutter: Cutter, names: Sequence[str], cost: PeakCost, left: float) -> Kept | None:
    """Sums only fall when channels go, so what one sum asks for does not undo another. Channels that are gone already
    have no error in the next turn."""
    keep: Kept = {}
    units = cutter.graph.units
    while cost(keep) > left:
        values = {name: np.array(cutter.scores.values[name], dtype=np.float64) for name in names}
        for name, kept in keep.items():
            gone = np.setdiff1d(np.arange(units[name].width), kept)
            values[name][gone] = -1.0
        known = replace(cutter.scores, values={**cutter.scores.values, **values})
        cut = keep_within(replace(cutter, scores=known), names, cost.largest(keep), left)
        if cut is None:
            return None
        before = dict(keep)
        for name, kept in cut.items():
            keep[name] = min(keep.get(name, kept), kept, key=len)
        if keep == before:  # the sum is not as it was predicted: channels of streams stay while one reader reads them
            return _floors(cutter, names)
    return keep


def _floors(cutter: Cutter, names: Sequence[str]) -> Kept:
    return {name: cutter.keep(name, cutter.limits.choices(cutter.graph.units[name])[-1]) for name in names}


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


def solve(problem: Problem, room: float) -> Ints | None:
    """Picks of the smallest error within a cost of `room`; None if there are none."""
    order = chain_order(problem)
    return _solve_by_moves(problem, room) if order is None else _solve_chain(problem, order, room)


def cheapest(problem: Problem) -> Ints:
    """Picks of the least cost, whatever their error."""
    order = chain_order(problem)
    if order is None:
        last = np.array([len(unit.counts) - 1 for unit in problem.units])
        return _settle(problem, last, CHEAPEST, range(len(last)))
    picks = problem.nothing
    picks[order] = _best(problem.ordered(order), CHEAPEST)
    return picks


# ------------------------------------------------------------------------------------------------------------- chains
# The exact solution where units are coupled in chains: dynamic programming over (unit, choice, cost so far).


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


def _ahead(chain: Problem, weights: Weights) -> list[Floats]:
    """[choices] per unit of a chain: the least weighted error and cost of all units after it."""
    weight, rate = weights
    ahead = [np.zeros_like(chain.alone[-1])]
    for i in range(len(chain.units) - 2, -1, -1):
        after = weight * chain.units[i + 1].errors + rate * chain.alone[i + 1] + ahead[0]
        link = chain.pairs.get((i, i + 1))
        here = np.full_like(chain.alone[i], after.min()) if link is None else (rate * link + after).min(axis=1)
        ahead.insert(0, here)
    return ahead


def _best(chain: Problem, weights: Weights) -> Ints:
    """The picks of the least weighted error and cost in a chain."""
    weight, rate = weights
    picks: list[int] = []
    for i, rest in enumerate(_ahead(chain, weights)):
        value = weight * chain.units[i].errors + rate * chain.alone[i] + rest
        link = chain.pairs.get((i - 1, i))
        picks.append(int((value if link is None else value + rate * link[picks[-1]]).argmin()))
    return np.array(picks, dtype=np.int64)


def _solve_chain(problem: Problem, order: list[int], room: float) -> Ints | None:
    """The picks of the smallest error within a cost of `room`; None if there are none.

    A bisection over the price of cost gives a feasible solution (Lagrange). Then partial solutions are extended unit by
    unit.
    """
    chain = problem.ordered(order)
    room += 1e-12 * abs(problem.start) - problem.start  # a little more, for the rounding of sums
    if chain.cost(_best(chain, CHEAPEST)) > room:
        return None
    price, picks = _price(chain, room)
    better = _extend(chain, price, room, chain.error(picks))
    solution = problem.nothing
    solution[order] = picks if better is None else better
    return solution


def _price(chain: Problem, room: float) -> tuple[float, Ints]:
    """The lowest price whose best picks are within the room, and the picks of the smallest error that were met."""
    picks = _best(chain, (1.0, 0.0))
    if chain.cost(picks) <= room:
        return 0.0, picks
    scale = max(TINY, max(float(unit.errors.max()) for unit in chain.units))
    span = max(TINY, sum(float(np.ptp(cost)) for cost in chain.alone), abs(room))
    low, high, best = 0.0, scale / span, _best(chain, CHEAPEST)
    for _ in range(200):
        picks = _best(chain, (1.0, high))
        if chain.cost(picks) <= room:
            break
        low, high = high, 4 * high
    else:
        return high, best
    best = min(best, picks, key=chain.error)
    for _ in range(CHAIN_BISECTIONS):
        middle = (low + high) / 2
        picks = _best(chain, (1.0, middle))
        if chain.cost(picks) <= room:
            high, best = middle, min(best, picks, key=chain.error)
        else:
            low = middle
    return high, best


def _extend(chain: Problem, price: float, room: float, known: float) -> Ints | None:
    """The best picks by dynamic programming; None if the labels found nothing better than what is known.

    A label is a partial solution. One is dropped if another with the same last choice costs no more and errs no more,
    or if even its bound exceeds the best solution known.
    """
    ahead, cheapest_ahead = _ahead(chain, (1.0, price)), _ahead(chain, CHEAPEST)
    limit = known * (1 + 1e-12) + TINY
    choices = np.flatnonzero(chain.alone[0] + cheapest_ahead[0] <= room)
    cost, error = chain.alone[0][choices], chain.units[0].errors[choices]
    parents: list[Ints] = []
    trail = [choices]
    for i in range(1, len(chain.units)):
        link = chain.pairs.get((i - 1, i))
        step = chain.alone[i][None, :] if link is None else chain.alone[i] + link[choices]
        new_cost, new_error = cost[:, None] + step, error[:, None] + chain.units[i].errors
        bound = new_error + price * (new_cost - room) + ahead[i]
        good = (bound <= limit) & (new_cost + cheapest_ahead[i] <= room) & (new_error <= limit)
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
    if not len(order):
        return order
    # Falls from choice to choice by more than errors differ, so that one running minimum serves all choices.
    level = error[order] - choices[order] * 2 * (TINY + float(np.ptp(error)))
    best = np.minimum.accumulate(level)
    front: Ints = order[np.concatenate([[True], level[1:] < best[:-1]])]
    if len(front) > MOST_LABELS:
        front = front[np.argsort(bound[front], kind="stable")[:MOST_LABELS]]
    return front


# -------------------------------------------------------------------------------------------------------------- moves
# A good solution where units are coupled in any way: Lagrange with moves of single units and pairs of units.


def _solve_by_moves(problem: Problem, room: float) -> Ints | None:
    """Picks of a small error within a cost of `room`; None if even the cheapest picks found exceed it.

    At a price p of cost, units take turns to minimise error + p x cost while the others stay. A bisection finds the
    lowest price that meets the room. There are several places to settle in, so it begins with no cut, with the cheapest
    picks, and with the best so far. A hub, which many units depend on (a stream whose readers and writers shrink
    together), hardly moves alone: it is held at several of its choices, and the others settle. From the best picks of
    all, single units and pairs of units move on as long as the error falls within the room.
    """
    best = floors = cheapest(problem)
    if problem.cost(floors) > room:
        return None
    every = list(range(len(problem.units)))
    price = max(TINY, problem.error(floors)) / max(TINY, problem.start - problem.cost(floors))

    def search(start: Ints, units: Sequence[int]) -> None:
        def fits(at: float) -> bool:
            nonlocal best
            picks = _settle(problem, start, (1.0, at), units)
            if problem.cost(picks) > room:
                return False
            best = min(best, picks, key=problem.error)
            return True

        low, high = 0.0, next((price * 2**n for n in range(60) if fits(price * 2**n)), 0.0)
        for _ in range(MOVE_BISECTIONS if high else 0):
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)

    search(problem.nothing, every)
    search(floors, every)
    search(best, every)
    hubs = sorted(every, key=lambda unit: -len(problem.neighbours[unit]))[:MOST_HUBS]
    for hub in hubs:
        errors = problem.units[hub].errors
        for choice in np.unique(np.linspace(0, len(errors) - 1, HUB_CHOICES).round().astype(int)).tolist():
            if errors[choice] < problem.error(best):
                start = best.copy()
                start[hub] = choice
                search(start, [unit for unit in every if unit != hub])
    return _improve(problem, best, room)


def _settle(problem: Problem, start: Ints, weights: Weights, units: Sequence[int]) -> Ints:
    """These units take turns to lower the weighted error and cost while the others stay, until none can."""
    picks = start.copy()
    for _ in range(SWEEPS):
        before = picks.copy()
        for unit in units:
            value = weights[0] * problem.units[unit].errors + weights[1] * problem.along(unit, picks)
            picks[unit] = int(value.argmin())
        if (picks == before).all():
            break
    return picks


def _improve(problem: Problem, picks: Ints, room: float) -> Ints:
    """Moves of one unit or of two that lower the error and stay within the room, the best first."""
    picks = picks.copy()
    for _ in range(MOST_MOVES):
        units, choices, costs, errors = [], [], [], []  # all moves of one unit: changes of cost and error
        for number, each in enumerate(problem.units):
            along, now = problem.along(number, picks), picks[number]
            units.append(np.full(len(along), number))
            choices.append(np.arange(len(along)))
            costs.append(along - along[now])
            errors.append(each.errors - each.errors[now])
        unit, choice, cost, error = (np.concatenate(part) for part in (units, choices, costs, errors))
        good = np.flatnonzero((error < -1e-15) & (cost <= room - problem.cost(picks)))
        if len(good):
            best = good[error[good].argmin()]
            picks[unit[best]] = choice[best]
        elif not _move_pair(problem, picks, room, unit, choice, cost, error):
            break
    return picks


def _move_pair(
    problem: Problem, picks: Ints, room: float, unit: Ints, choice: Ints, cost: Floats, error: Floats
) -> bool:
    """Make the move of two units that lowers the error most, within the room; False if there is none."""
    slack = room - problem.cost(picks)
    some = np.flatnonzero((error < 0) | (cost < 0))  # the others neither gain nor save
    if len(some) > MOST_PAIRED:  # those that change the error least
        some = some[np.argsort(np.minimum(np.abs(error[some]), 1.0), kind="stable")[:MOST_PAIRED]]
    unit, choice, cost, error = unit[some], choice[some], cost[some], error[some]
    gains, saves = np.flatnonzero(error < 0), np.flatnonzero(cost < 0)
    total = error[gains][:, None] + error[saves]
    good = (total < -1e-12 * max(TINY, problem.error(picks))) & (cost[gains][:, None] + cost[saves] <= slack)
    good &= unit[gains][:, None] != unit[saves]
    ranked = np.argsort(np.where(good, total, np.inf), axis=None)[: min(MOST_PAIRS, int(good.sum()))]
    for place in ranked.tolist():
        two = [gains[place // len(saves)], saves[place % len(saves)]]
        moved = picks.copy()
        moved[unit[two]] = choice[two]
        if problem.cost(moved) <= room:  # the two may depend on each other
            picks[:] = moved
            return True
    return False
