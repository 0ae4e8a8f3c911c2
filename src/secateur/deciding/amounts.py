"""How many channels each unit loses so that all units save the same cost: FLOSS and n_l, Eqns. 2 and 3 of the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from secateur.channels.units import Unit
from secateur.deciding.budget import Cutter
from secateur.deciding.costs import CostOf
from secateur.deciding.widths import WidthLimits
from secateur.errors import DecideError


@dataclass(frozen=True)
class Amount:
    """The number of channels that one unit would lose."""

    unit: str
    channels: int  # n_l, in whole granules
    floss: float  # cost saved by one channel (Eqn. 2)
    stopped: bool  # the floor keeps it from saving as much as the others


def amounts(cutter: Cutter, names: Sequence[str], *, alpha: float, cost: CostOf) -> dict[str, Amount]:
    """FLOSS_l = C(M) - C(M without one channel of l);  n_l = round(alpha * FLOSS_max / FLOSS_l), whole granules.

    If a unit loses g channels at a time (a granule, or a multiple of round_to), FLOSS_l is what the first g save,
    divided by g. Measured time falls in steps, and the first g may save nothing: if removing half of the channels saves
    more per channel, that counts. Units that would go below their floor stop there, and are marked.
    """
    if not 0 < alpha < math.inf:
        raise DecideError(f"alpha must be above 0 (the paper uses 2 to 4), got {alpha}")
    whole = cost({})
    floss = {}
    for name in names:
        unit, limits = cutter.graph.units[name], cutter.limits
        first = next((n for n in limits.choices(unit) if n > 0), unit.granule)
        tried = {first, limits.nearest(unit, unit.width / 2, least=first) or first}
        saved = [(whole - cost({name: cutter.keep(name, n)})) / n for n in tried]
        floss[name] = max(0.0, *saved)
    most = max(floss.values())
    if most <= 0:
        raise DecideError("no unit saves anything when it loses a channel")
    able = [cutter.graph.units[name] for name in names if floss[name] > 0]
    return {unit.name: _amount(unit, floss[unit.name], alpha * most, cutter.limits) for unit in able}


def _amount(unit: Unit, floss: float, aim: float, limits: WidthLimits) -> Amount:
    exact = aim / floss
    # Multiples of round_to are coarse. A unit whose amount rounds to 0 loses one step, or it could never be pruned.
    channels = limits.nearest(unit, exact, least=int(limits.round_to > 1))
    half_a_step = math.lcm(unit.granule, limits.round_to) / 2
    return Amount(unit.name, channels, floss, exact > channels + half_a_step)
