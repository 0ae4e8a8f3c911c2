"""A good solution where units are coupled in any way: Lagrange with moves of single units, stars and pairs of units."""

from __future__ import annotations

import numpy as np

from secateur.deciding.optimiser.problem import Floats, Ints, Problem

BISECTIONS = 24
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
    for _ in range(BISECTIONS):
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
