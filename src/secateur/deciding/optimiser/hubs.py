"""Units that many others depend on, such as a stream whose readers and writers shrink together.

Without them the others often form chains. So hubs try their choices in turn, and for each choice the others are solved
exactly.
"""

from __future__ import annotations

import numpy as np

from secateur.deciding.optimiser.chains import chain_order, solve_chain
from secateur.deciding.optimiser.problem import Ints, Problem

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
