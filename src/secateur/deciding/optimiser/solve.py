"""The solution of a problem: exact in chains, by moves elsewhere, and within the budget of the network's true cost."""

from __future__ import annotations

from collections.abc import Sequence

from secateur.deciding.budget import Cutter, Kept
from secateur.deciding.costs import CostOf
from secateur.deciding.optimiser.building import problem_of, some_choices
from secateur.deciding.optimiser.chains import chain_order, cheapest_in_chain, solve_chain
from secateur.deciding.optimiser.hubs import find_hubs, search_hubs
from secateur.deciding.optimiser.moves import cheapest_by_moves, solve_by_moves
from secateur.deciding.optimiser.problem import Ints, Problem

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
