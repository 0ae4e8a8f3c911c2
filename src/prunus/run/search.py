"""The first round where several networks are tried: residual streams treated in both ways, and smaller and smaller cuts
until one loses no more than max_drop.

What does not depend on the goal is measured once (`Measurements`); a point is a plan, its repair and its held-out
quality. Points go to search.json as they come. An interrupted search reads them there, makes the same decisions and
ends with the same network.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

from prunus.deciding.goal import Budget
from prunus.deciding.splits import lowest_cost, removes_blocks
from prunus.deciding.widths import candidates
from prunus.errors import DecideError
from prunus.graph.files import PLAN_FILE
from prunus.graph.plan import Plan
from prunus.graph.units import Streams
from prunus.run.context import RunContext
from prunus.run.folder import SEARCH, SPEED, RunFolder
from prunus.run.round import Candidate, Measurements, PhaseClock, make_candidate
from prunus.run.settings import within
from prunus.run.speed_check import ALIGNED, SpeedChecks, is_checked, known_checks, measured_speedup
from prunus.scoring.scores import save_scores
from prunus.tasks.evaluate import Evaluation
from prunus.timing.latency import Speedup

logger = logging.getLogger(__name__)

BOTH: tuple[Streams, Streams] = ("select", "coupled")
MOST_POINTS = 8  # cuts that a search tries, besides the goal itself
NEAR = 1.04  # the search ends when the cuts that are allowed and that are not are as near as this
ALIGNED_SHARES = (1.0, 0.85, 0.7)  # of the best cut, as powers of it: aligned widths lose more
BOUND = 1.64  # standard errors: one-sided, 95%


@dataclass(frozen=True)
class Point:
    """One cut that was tried. Drops are in the unit of max_drop: points for a quality in per cent."""

    streams: Streams
    cut: float  # asked: how many times as little as the original's cost; of a cost in time, the speed-up by the table
    asked: bool  # it is the goal itself, not a smaller cut
    predicted: float = 1.0  # what the plan comes to, in the same way
    quality: Evaluation | None = None  # held-out, after the repair; None: this cut is out of reach
    drop: float | None = None
    error: float | None = None  # standard error of the drop; None if the quality is not a mean over images
    measured: Speedup | None = None  # of a network that was timed
    step: int | None = None  # widths are multiples of this; None: as the settings say

    @property
    def bound(self) -> float | None:
        """The drop is lower than this with 95% confidence, where it is known."""
        return None if self.error is None or self.drop is None else self.drop + BOUND * self.error


@dataclass(frozen=True)
class Search:
    """search.json: what was tried, and the place of the point that was chosen.

    The best of several points is partly luck: its drop on other images is likely a little larger, see `Point.bound`.
    """

    points: tuple[Point, ...]
    max_drop: float | None = None
    chosen: int | None = None
    done: bool = False  # done without a choice: every cut that was tried loses more than max_drop

    @property
    def result(self) -> Point | None:
        return None if self.chosen is None else self.points[self.chosen]

    def allows(self, point: Point) -> bool:
        return point.drop is not None and within(point.drop, self.max_drop)

    def nearly_allows(self, point: Point) -> bool:
        """Whether a point loses more than max_drop by less than the standard error of its drop."""
        return point.error is not None and self.allows(replace(point, drop=(point.drop or 0.0) - point.error))


def search_of(folder: RunFolder) -> Search | None:
    """What the first round of a run has tried; None if it has tried one network only."""
    name = folder.in_round(1, SEARCH)
    return folder.record(name, Search) if folder.has(name) else None


def choose(context: RunContext) -> tuple[RunContext, Candidate | None]:
    """The run with the streams that were chosen, and the network of its first round.

    None instead of a network: every cut loses more than max_drop, or the first round is finished already.
    """
    known = search_of(context.folder)
    ways = BOTH if context.settings.streams is None else (context.settings.streams,)
    if known is not None and known.done and (known.result is None or context.folder.finished_rounds()):
        return context.with_streams(ways[0] if known.result is None else known.result.streams), None
    tries = Tries(context, ways, known)
    if not tries.search.done:
        best = tries.goal() if context.settings.given != ["max_drop"] else None
        if best is None or not tries.search.allows(tries.search.points[best]):
            best = tries.bisect()
            if best is not None and is_checked(context):
                best = tries.aligned(best)
        tries.settle(best)
    if tries.search.result is None:
        return context.with_streams(ways[0]), None
    return tries.contexts[tries.search.result.streams], tries.chosen()


class Tries:
    """The points of a search, in their order. `search` is what search.json holds; `known`, what an earlier process
    has written there."""

    def __init__(self, context: RunContext, ways: tuple[Streams, ...], known: Search | None) -> None:
        self.context, self.folder, self.ways = context, context.folder, ways
        self.contexts: dict[str, RunContext] = {streams: context.with_streams(streams) for streams in ways}
        clock = PhaseClock()
        self.measured: dict[str, Measurements] = {}
        for streams, each in self.contexts.items():
            trial, first = (streams if len(ways) > 1 else ""), next(iter(self.measured.values()), None)
            self.measured[streams] = Measurements(each, 1, each.graph, clock, trial, first)
        self.known = () if known is None else known.points
        self.search = known if known is not None and known.done else Search((), context.settings.max_drop)
        self.candidates: dict[int, Candidate] = {}  # the networks that may still be the result

    # -- points

    def budget(self, streams: Streams, cut: float | None) -> Budget:
        """The budget of a cut; without one, that of the goal."""
        context = self.contexts[streams]
        if cut is None:
            now = context.budget.of(context.graph)({})
            return context.budget.aim(now, context.settings.rounds or 1)
        return replace(context.budget, left=context.budget.whole / cut)

    def add(self, streams: Streams, cut: float | None, step: int | None = None) -> int:
        """Add the point of a cut, or of the goal itself. What is known already is not made again."""
        points = self.search.points
        place, asked = len(points), cut is None
        if place < len(self.known):
            point = self.known[place]
        else:
            point = Point(streams, cut or self.top, asked, step=step)
            try:
                candidate = self.candidates[place] = self.make(streams, cut, step)
                context, factor = self.contexts[streams], self.context.quality.factor
                drop, error = context.base().drop_to(candidate.quality)
                point = replace(
                    point,
                    predicted=context.budget.whole / context.budget.of(context.graph)(candidate.plan.keep),
                    quality=candidate.quality.evaluation,
                    drop=factor * drop,
                    error=None if error is None else factor * error,
                    measured=None if candidate.check is None else candidate.check.latest,
                )
            except DecideError as reason:
                if len(self.ways) == 1 and asked:
                    raise
                logger.info("%s streams: %s", streams, reason)
        self.search = replace(self.search, points=(*points, point))
        self.folder.write(self.folder.in_round(1, SEARCH), self.search)
        return place

    def make(self, streams: Streams, cut: float | None, step: int | None = None) -> Candidate:
        """The network of a cut. The goal itself is timed where it is a latency target; of smaller cuts the table
        decides."""
        budget = self.budget(streams, cut)
        ratio = None if cut is None or self.context.settings.ratio is None else 1 - 1 / cut
        return make_candidate(self.measured[streams], budget, ratio=ratio, timed=cut is None, step=step)

    @property
    def top(self) -> float:
        """The cut that the goal asks for; without a goal, the largest one that can be had."""
        settings, budget = self.context.settings, self.context.budget
        if settings.ratio is not None:
            return 1 / (1 - settings.ratio)
        if budget.left is not None:
            return budget.whole / budget.left
        lowest = []
        for context in self.contexts.values():
            graph, cost = context.graph, context.budget.of(context.graph)
            names = candidates(graph, settings.exclude, settings.only)
            lowest.append(lowest_cost(graph, names, cost, settings.round_to, blocks=removes_blocks(settings)))
        return budget.whole / min(lowest)

    # -- decisions

    def goal(self) -> int:
        """The place of the point that meets the goal: the better one, if streams are treated in both ways."""
        places = [self.add(streams, None) for streams in self.ways]
        able = [place for place in places if self.search.points[place].quality is not None]
        if not able:
            self.make(self.ways[0], None)  # raises what was out of reach
        best = able[0]
        for place in able[1:]:
            if self.is_better(place, best):
                best = place
        self.forget_all_but(best)
        return best

    def is_better(self, new: int, old: int) -> bool:
        """Whether a network is better than another one: as fast as asked where the other is not; or else of higher
        quality by more than a standard error; or else faster beyond the intervals of the measurements."""
        now, before = self.search.points[new].measured, self.search.points[old].measured
        asked = self.context.settings.speedup or 0.0
        if now is not None and before is not None and (now.ratio >= asked) != (before.ratio >= asked):
            return now.ratio >= asked
        drop, error = self.network(old).quality.drop_to(self.network(new).quality)
        if drop and (error is None or abs(drop) >= error):
            return drop < 0
        return now is not None and before is not None and now.low > before.high

    def bisect(self) -> int | None:
        """The place of the largest cut that loses no more than max_drop; None if there is none.

        Where streams are treated in both ways, a cut is allowed if one of them allows it. The way that was allowed last
        comes first. Drops of similar cuts differ by chance: where one is too large by less than a standard error, a
        larger cut is tried before larger ones are given up.
        """
        low, high, best, ways = 1.0, self.top, None, list(self.ways)
        doubtful: float | None = None  # a cut that may lose too much by chance
        for _ in range(MOST_POINTS):
            if high / low < NEAR:
                break
            cut = math.sqrt((doubtful or low) * high)
            near = False
            for streams in ways:
                place = self.add(streams, cut)
                point = self.search.points[place]
                if self.search.allows(point):
                    low, best, doubtful = max(cut, min(point.predicted, high)), place, None
                    ways.sort(key=lambda each, last=streams: each != last)  # type: ignore[misc]
                    self.forget_all_but(best)
                    break
                near = near or self.search.nearly_allows(point)
                self.candidates.pop(place, None)
            else:
                if near and doubtful is None:
                    doubtful = cut
                else:
                    high, doubtful = doubtful or cut, None
        return best

    def aligned(self, best: int) -> int:
        """The place of a network of aligned widths, if it is allowed and measurably faster than the best cut, or at
        least as fast and of no lower quality.

        Layers of aligned widths stay in the layout of fast kernels, which times of single layers do not show.
        """
        point = self.search.points[best]
        step = math.lcm(self.contexts[point.streams].settings.round_to or 1, ALIGNED)
        for share in ALIGNED_SHARES:
            place = self.add(point.streams, point.cut**share, step)
            if self.search.allows(self.search.points[place]):
                new, old = self.timed(place), self.timed(best)
                no_worse = (self.search.points[place].drop or 0.0) <= (self.search.points[best].drop or 0.0)
                return place if new.low > old.ratio or (new.ratio >= old.ratio and no_worse) else best
            self.candidates.pop(place, None)
        return best

    def timed(self, place: int) -> Speedup:
        point = self.search.points[place]
        if point.measured is not None:
            return point.measured
        candidate = self.network(place)
        self.context.say(f"{candidate.measured.label}: speed", 0, 1)
        measured = measured_speedup(candidate.measured.context, candidate.model)
        points = list(self.search.points)
        points[place] = replace(point, measured=measured)
        self.search = replace(self.search, points=tuple(points))
        self.folder.write(self.folder.in_round(1, SEARCH), self.search)
        return measured

    def network(self, place: int) -> Candidate:
        """The network of a point: made now, if an earlier process has evaluated it."""
        if place not in self.candidates:
            point = self.search.points[place]
            self.candidates[place] = self.make(point.streams, None if point.asked else point.cut, point.step)
        return self.candidates[place]

    def forget_all_but(self, place: int) -> None:
        self.candidates = {each: network for each, network in self.candidates.items() if each == place}

    # -- the result

    def settle(self, best: int | None) -> None:
        """Write what a round has in its folder, and then the choice."""
        self.search = replace(self.search, chosen=best, done=True)
        if best is None:
            logger.warning(
                "every cut that was tried loses more than %g %s: the network stays as it is",
                *(self.search.max_drop, self.context.quality.difference_unit),
            )
        else:
            candidate, folder = self.network(best), self.folder
            measured = candidate.measured
            if folder.writes and measured.trial:
                save_scores({measured.scores.metric: measured.scores}, folder.round(1))
            checks = known_checks(folder, measured.place) if self.search.points[best].asked else ()
            if checks:
                folder.write(folder.in_round(1, SPEED), SpeedChecks(checks))
            folder.write_text(folder.in_round(1, f"step-{PLAN_FILE}"), candidate.plan.to_json())
        self.folder.write(self.folder.in_round(1, SEARCH), self.search)
        self.folder.wait_for_writer()

    def chosen(self) -> Candidate:
        """The network that was chosen, as one of a round that tries nothing else."""
        result = self.search.result
        assert result is not None and self.search.chosen is not None
        measured = replace(self.measured[result.streams], trial="", other=None)
        candidate = self.candidates.get(self.search.chosen)
        if candidate is not None:
            return replace(candidate, measured=measured)
        plan = Plan.load(self.folder.round(1) / f"step-{PLAN_FILE}")
        return make_candidate(measured, self.budget(result.streams, None), plan=plan)
