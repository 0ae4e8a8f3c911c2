"""One round: score, sensitivity, decide, prune, repair, retrain. What a step finds is in the folder before the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from torch import distributed as dist
from torch import nn

from secateur.channels.files import PLAN_FILE, atomic
from secateur.channels.graph import ChannelGraph, trace
from secateur.channels.plan import Plan
from secateur.channels.surgery import prune
from secateur.deciding.amounts import Room, amounts, candidates, cost_by
from secateur.deciding.budget import uniform
from secateur.deciding.decide import decide
from secateur.deciding.sensitivity import Sensitivity, Tried, check_k, sensitivity
from secateur.measuring.accuracy import Accuracy
from secateur.measuring.batches import Batches, unpack
from secateur.running.folder import ROUND, SENSITIVITY, RunFolder
from secateur.running.settings import Goal, Settings
from secateur.scoring.score import score
from secateur.scoring.scores import Scores, load_scores, save_scores
from secateur.training.fit import fit
from secateur.training.presets import preset_of

Phase = Callable[[str, int, int, str], None]  # phase, done, of, note


@dataclass(frozen=True)
class Outcome:
    """What a round did. Accuracies are held-out ones."""

    number: int
    macs: int
    params: int
    before: Accuracy  # as the round found the network
    pruned: Accuracy  # cut (and repaired), not retrained
    after: Accuracy  # retrained
    chosen: dict[str, int]  # unit -> channels lost in this round
    seconds: dict[str, float]  # phase -> seconds
    last: bool = False  # nothing more can be removed

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, words: dict[str, Any]) -> Outcome:
        """Read back what `to_dict` gave."""
        accuracies = {name: Accuracy(**words[name]) for name in ("before", "pruned", "after")}
        return cls(**{**words, **accuracies})


@dataclass(frozen=True)
class Tools:
    """Data and functions that a run works with."""

    train: Batches
    score_on: Batches
    holdout: Batches
    metric: Any
    fit: Callable[[nn.Module, Batches, Batches], nn.Module] | None
    evaluate: Callable[[nn.Module, Batches], Accuracy]
    progress: Phase | None

    def say(self, phase: str, done: int, total: int, note: str = "") -> None:
        """Tell whoever listens how far a phase is."""
        if self.progress is not None:
            self.progress(phase, done, total, note)


def run_round(
    run: RunFolder,
    number: int,
    original: nn.Module,
    current: nn.Module,
    so_far: Plan,
    original_graph: ChannelGraph,
    goal: Goal,
    before: Accuracy,
    settings: Settings,
    tools: Tools,
) -> tuple[Outcome, nn.Module, Plan]:
    """One round from the network `current`, which `so_far` leads to; everything that is in the folder is not redone."""
    clock = _Clock()
    folder = run.round(number)
    graph = trace(current, original_graph.example, settings.streams)
    scores = clock("score", lambda: _score(run, number, graph, settings, tools))
    plan, chosen, last = _decide(run, number, graph, scores, goal, original_graph, settings, tools, clock)
    composed = so_far.then(plan)
    pruned = clock("prune", lambda: prune(graph, plan))
    if settings.repair != "none":
        pruned = clock("repair", lambda: _repair(graph, plan, settings, tools))
    cut = tools.evaluate(pruned, tools.holdout)
    trained = clock("retrain", lambda: _retrain(run, number, pruned, original, settings, tools))
    run.save_model(trained, composed, number)
    wait_for_writer()
    # Read back, so that a resumed run and an unbroken one go on from the very same bits.
    trained, composed = run.load_model(original, number)
    after = tools.evaluate(trained, tools.holdout)
    cost = original_graph.cost(composed)
    outcome = Outcome(number, cost.macs, cost.params, before, cut, after, chosen, clock.seconds, last)
    run.write(f"{folder.name}/{ROUND}", outcome.to_dict())
    wait_for_writer()
    run.forget(folder / "checkpoint")
    return outcome, trained, composed


def wait_for_writer() -> None:
    """Processes that only read wait until the first one has written."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


class _Clock:
    """Seconds of each phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, phase: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        self.seconds[phase] = round(time.perf_counter() - start, 3)
        return result


def _score(run: RunFolder, number: int, graph: ChannelGraph, settings: Settings, tools: Tools) -> Scores:
    folder = run.round(number)
    if (folder / "scores.json").exists():
        return next(iter(load_scores(folder).values()))
    metric = tools.metric if tools.metric is not None else settings.metric
    found: Scores = score(
        graph,
        tools.score_on,
        metric=metric,
        images=settings.images,
        seed=settings.seed + number,
        progress=lambda done, total: tools.say(f"round {number}: score", done, total or done),
        **settings.metric_options,
    )
    if run.writes:
        folder.mkdir(parents=True, exist_ok=True)
        save_scores({found.metric: found}, folder)
    return found


def _decide(
    run: RunFolder,
    number: int,
    graph: ChannelGraph,
    scores: Scores,
    goal: Goal,
    original: ChannelGraph,
    settings: Settings,
    tools: Tools,
    clock: _Clock,
) -> tuple[Plan, dict[str, int], bool]:
    """The round's plan in the numbering of the network it starts from; whether it is the last that can be made."""
    last = False
    if settings.ratio is not None:
        names = candidates(graph, settings.exclude, settings.only)
        plan = uniform(graph, scores, settings.ratio, units=names)
    else:
        aim = _aim(number, graph, goal, original, settings)
        found = clock("sensitivity", lambda: _sensitivity(run, number, graph, scores, aim, goal, settings, tools))
        plan = clock("decide", lambda: _within(graph, scores, found, aim, goal, settings))
        last = not any(plan.removed().values())
    if run.writes:
        run.round(number).mkdir(parents=True, exist_ok=True)
        with atomic(run.round(number) / f"step-{PLAN_FILE}") as path:
            path.write_text(plan.to_json(), encoding="utf-8")
    return plan, {name: count for name, count in plan.removed().items() if count}, last


def _aim(number: int, graph: ChannelGraph, goal: Goal, original: ChannelGraph, settings: Settings) -> float | None:
    """Cost to be left after this round: with a number of rounds an even share of the way, else the goal itself."""
    if goal.left is None:
        return None
    whole = float(original.macs if goal.cost == "macs" else original.params)
    if settings.rounds is None or number >= settings.rounds:
        return goal.left
    return whole - (whole - goal.left) * number / settings.rounds


def _sensitivity(
    run: RunFolder,
    number: int,
    graph: ChannelGraph,
    scores: Scores,
    aim: float | None,
    goal: Goal,
    settings: Settings,
    tools: Tools,
) -> Sensitivity:
    name = f"{run.round(number).name}/{SENSITIVITY}"
    if run.has(name):
        return _read_sensitivity(run.read(name))
    found = sensitivity(
        graph,
        scores,
        tools.holdout,
        settings.method,
        alpha=_alpha(graph, scores, aim, goal, settings),
        k=settings.k,
        measure=settings.measure,
        cost=settings.cost,
        exact=settings.exact,
        exclude=settings.exclude,
        only=settings.only,
        round_to=settings.round_to,
        seed=settings.seed,
        progress=lambda done, total: tools.say(f"round {number}: sensitivity", done, total),
    )
    run.write(name, found.to_dict())
    return found


def _alpha(graph: ChannelGraph, scores: Scores, aim: float | None, goal: Goal, settings: Settings) -> float:
    """alpha as asked; with a number of rounds, solved from k * alpha * FLOSS_max = cost to go in this round."""
    if aim is None or settings.rounds is None:
        return settings.alpha
    names = candidates(graph, settings.exclude, settings.only)
    cost = cost_by(graph, goal.cost)
    found = amounts(graph, scores, names, alpha=1.0, cost=cost, room=Room(settings.round_to))
    k = check_k(settings.k, len(found))
    to_go = cost({}) - aim
    return max(0.5, to_go / (k * max(a.floss for a in found.values())))


def _within(
    graph: ChannelGraph, scores: Scores, found: Sensitivity, aim: float | None, goal: Goal, settings: Settings
) -> Plan:
    """Algorithm 1's plan; trimmed where it would overshoot, and stretched to the aim where rounds are counted."""
    if found.method == "flops":
        plan = decide(graph, scores, found, settings.k, round_to=settings.round_to)
        if aim is None:
            return plan
        cost = graph.cost(plan)
        left = cost.macs if goal.cost == "macs" else cost.params
        if settings.rounds is None and left > aim:
            return plan
    now = float(graph.macs if goal.cost == "macs" else graph.params)
    target = 1 - aim / now if aim is not None else 0.1
    return decide(graph, scores, found, settings.k, target, cost=goal.cost, round_to=settings.round_to)


def _read_sensitivity(words: dict[str, Any]) -> Sensitivity:
    tried = {name: Tried(**row) for name, row in words["tried"].items()}
    curves = {name: tuple(Tried(**row) for row in rows) for name, rows in words["curves"].items()}
    return Sensitivity(**{**words, "tried": tried, "curves": curves})


def _repair(graph: ChannelGraph, plan: Plan, settings: Settings, tools: Tools) -> nn.Module:
    from secateur.training.repair import repair

    images, count = [], 0
    for number, batch in enumerate(islice(iter(tools.score_on), settings.repair_images)):
        images.append(unpack(batch, number)[0])
        count += len(images[-1])
        if count >= settings.repair_images:
            break
    return repair(graph, plan, images, how=settings.repair, seed=settings.seed)  # type: ignore[arg-type]


def _retrain(
    run: RunFolder, number: int, pruned: nn.Module, original: nn.Module, settings: Settings, tools: Tools
) -> nn.Module:
    if tools.fit is not None:
        return tools.fit(pruned, tools.train, tools.holdout)
    if settings.epochs == 0:
        return pruned
    phase = f"round {number}: retrain"
    fitted = fit(
        pruned,
        tools.train,
        tools.holdout,
        preset=preset_of(settings.preset, epochs=settings.epochs, lr=settings.lr),
        teacher=original if settings.distill else None,
        seed=settings.seed + number,
        checkpoint_dir=run.round(number) / "checkpoint",
        evaluate=tools.evaluate,
        progress=lambda news: tools.say(
            phase,
            (news.epoch - 1) * news.steps + news.step,
            news.epochs * news.steps,
            f"loss {news.loss:.3f}, accuracy {100 * news.accuracy:.1f}%, {news.images_per_second:.0f} images/s",
        ),
    )
    return fitted.model
