"""Which metric picks the channels that can go? The paper's Figs. 2 and 4.

The same share of every unit is removed by each metric, and what is left of the accuracy is measured: as cut, and
(where asked for) repaired or retrained. Nothing is decided here, so all figures are of the test images.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from secateur.base.batches import Batches, device_of, unpack
from secateur.channels.graph import ChannelGraph, Streams, trace
from secateur.channels.plan import Plan
from secateur.deciding.amounts import candidates
from secateur.deciding.uniform import uniform
from secateur.errors import DecideError
from secateur.measuring.accuracy import Accuracy
from secateur.repairing.repair import repair
from secateur.running.compress import first_image
from secateur.running.settings import Repair
from secateur.scoring.sampling import sampled
from secateur.scoring.score import OwnMetric
from secateur.scoring.scores import Scores, load_scores, save_scores
from secateur.studies.contenders import Contender, Sampling, contenders, scored
from secateur.studies.effectiveness_study.table import COLUMNS, MEASURED, averaged, draw, sentences
from secateur.studies.fast_evaluate import accuracy_of, held, pruned_or_same
from secateur.studies.folder import CONFIG, Row, StudyFolder
from secateur.studies.work_sharing import on_its_own, wait_until
from secateur.training.checkpoint import digest
from secateur.training.fit import fit
from secateur.training.presets import preset_of

Units = Literal["inner", "all"]
Phase = Callable[[str, int, int, str], None]  # phase, done, of, note
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5)


@dataclass(frozen=True)
class Settings:
    """How channels are scored, cut and (where asked for) mended. Ratios are fractions removed."""

    metrics: Sequence[str | OwnMetric] = ("all",)
    ratios: Sequence[float] = RATIOS
    seeds: Sequence[int] = (0,)
    units: Units = "inner"  # of residual blocks; "all": also what each block reads of the stream
    streams: Streams = "select"
    images: int | None = None  # to score on; None: all
    map_images: int = 2000  # to score on by di and mmd
    repair: Repair = "none"
    repair_images: int = 500
    epochs: int = 0  # of retraining
    preset: str = "effectiveness"
    lr: float | None = None

    def check(self) -> None:
        """Refuse at once what would only be noticed after a long time."""
        known = {"units": ("inner", "all"), "repair": ("none", "bn", "solve"), "streams": ("select", "coupled")}
        for name, words in known.items():
            if getattr(self, name) not in words:
                raise DecideError(f"{name} must be one of {', '.join(words)}; got {getattr(self, name)!r}")
        if not self.ratios or not all(0 <= ratio < 1 for ratio in self.ratios):
            raise DecideError(f"ratios are fractions removed, from 0 to below 1; got {list(self.ratios)}")
        if not self.seeds or min(self.seeds) < 0 or self.epochs < 0:
            raise DecideError(f"seeds and epochs should not be negative: {list(self.seeds)}, {self.epochs}")
        if self.epochs:
            preset_of(self.preset, epochs=self.epochs, lr=self.lr)


def effectiveness(
    models: nn.Module | Mapping[str, nn.Module],
    train: Batches,
    test: Batches,
    folder: str | Path,
    *,
    settings: Settings | None = None,
    retrain_on: Batches | Callable[[int], Batches] | None = None,
    example: Any = None,
    about: Mapping[str, Any] | None = None,
    command: str | None = None,
    progress: Phase | None = None,
    **changes: Any,
) -> list[Row]:
    """Compare metrics by what uniform pruning leaves of the accuracy; the table, one row a network, metric and ratio.

        rows = secateur.studies.effectiveness(model, train, test, "runs/metrics", ratios=(0.1, 0.3), images=5000)

    models: one network, or several by name; they are not changed. train: to score on. test: to measure on.
    retrain_on: to retrain on, if not `train`: batches, or a function of the seed that gives them.
    settings, changes: a `Settings`, or its fields by name (metrics=, ratios=, seeds=, units=, repair=, epochs=, ...).
    folder: table, picture and all rows so far. The same call goes on with what is missing, and so does one with other
        ratios or seeds; under torchrun the rows are shared among the processes.
    about: what the folder should say besides (data set, normalisation): the same study has the same.
    """
    try:
        chosen = replace(settings or Settings(), **changes)
    except TypeError as error:
        raise DecideError(f"{error}; the settings are {', '.join(Settings.__dataclass_fields__)}") from error
    chosen.check()
    named = dict(models) if isinstance(models, Mapping) else {type(models).__name__: models}
    who = contenders(chosen.metrics)
    words = {**asdict(chosen), "metrics": [one.name for one in who]}
    asked = {**(about or {}), **words, "networks": {name: digest(model) for name, model in named.items()}}
    place = StudyFolder(folder, "effectiveness", asked, command, only_names_rows=("ratios", "seeds"))
    with on_its_own() as (rank, world):
        if rank == 0:
            place.start()
        wait_until((place.path / CONFIG).exists)
        example = example if example is not None else first_image(train, device_of(next(iter(named.values()))))
        graphs = {name: trace(model, example, chosen.streams) for name, model in named.items()}
        study = _Study(place, chosen, who, graphs, train, retrain_on or train, held(test), progress)
        study.run(rank, world)
        single = [row for row in map(study.kept, study.pieces()) if row is not None]
        rows = averaged(single)
        if rank == 0:
            pictures = [draw(rows, place.path)]
            title = "Which metric picks the channels that can go?"
            place.finish(title, rows, pictures, sentences(rows, single), columns=COLUMNS)
    return rows


@dataclass(frozen=True)
class Piece:
    """One row: a network, a metric, a ratio and a seed."""

    network: str
    contender: Contender
    ratio: float
    seed: int

    @property
    def key(self) -> str:
        """Its name in the folder."""
        return f"{self.network},{self.contender.name},{self.ratio:g},{self.seed}"


@dataclass
class _Study:
    """The study while it runs."""

    place: StudyFolder
    settings: Settings
    contenders: Sequence[Contender]
    graphs: Mapping[str, ChannelGraph]
    train: Batches
    retrain_on: Batches | Callable[[int], Batches]
    test: Batches
    progress: Phase | None
    measured: dict[str, Row] = field(default_factory=dict)  # what is known of a plan that came up before
    scores: dict[Path, dict[str, Scores]] = field(default_factory=dict)
    samples: dict[int, list[Any]] = field(default_factory=dict)  # seed -> images to repair on

    def pieces(self) -> list[Piece]:
        """All rows; ratio 0, the network as it is, among them."""
        ratios = sorted({0.0, *self.settings.ratios})
        every = (
            (n, s, c, r) for n in self.graphs for s in self.settings.seeds for c in self.contenders for r in ratios
        )
        return [Piece(network, contender, ratio, seed) for network, seed, contender, ratio in every]

    def kept(self, piece: Piece) -> Row | None:
        """The piece's row, if it is finished."""
        return self.place.row(piece.key)

    def run(self, rank: int, world: int) -> None:
        """Compute this process's share of what is missing, and wait for the others'."""
        pieces = self.pieces()
        for piece in pieces:
            row = self.kept(piece)
            if row is not None:
                self.measured[self._same(piece, row["plan"])] = row
        # Whose a pass or a row is depends on its place among all of them, not among those that are missing by now: a
        # process that comes late would count otherwise, and some rows would be nobody's.
        for path in list(dict.fromkeys(map(self._scores_path, pieces)))[rank::world]:
            waiting = [piece for piece in pieces if self._scores_path(piece) == path and self.kept(piece) is None]
            if waiting and not (path / "scores.json").exists():
                self._score(waiting)
        mine = [piece for piece in pieces[rank::world] if self.kept(piece) is None]
        for number, piece in enumerate(mine):
            self.place.keep(piece.key, self._row(piece, number, len(mine)))
        wait_until(lambda: all(self.kept(piece) is not None for piece in pieces))

    def _score(self, pieces: Sequence[Piece]) -> None:
        """One pass, for all metrics that share it."""
        first = pieces[0]
        group = [one for one in self.contenders if one.shares == first.contender.shares]
        how = Sampling(self.settings.images, self.settings.map_images, first.seed)
        phase = f"score {first.network}, {first.contender.shares}"
        found = scored(
            self.graphs[first.network],
            self.train,
            group,
            how,
            lambda done, total: self._say(phase, done, total or done),
        )
        save_scores(found, self._scores_path(first))

    def _scores_path(self, piece: Piece) -> Path:
        shares = piece.contender.shares
        drawn = self.settings.images is not None or shares == "weights" or shares.startswith("maps")
        seed = piece.seed if drawn else self.settings.seeds[0]  # a pass over all images is the same for all seeds
        name = "".join(c if c.isalnum() or c in "-_.=" else "-" for c in f"{piece.network}-{shares}-{seed}")
        return self.place.path / "scores" / name

    def _scores_of(self, piece: Piece) -> Scores:
        path = self._scores_path(piece)
        if path not in self.scores:
            wait_until((path / "scores.json").exists)
            self.scores[path] = load_scores(path)
        return self.scores[path][piece.contender.name]

    def _row(self, piece: Piece, number: int, total: int) -> Row:
        started = time.perf_counter()
        graph, scores = self.graphs[piece.network], self._scores_of(piece)
        plan = uniform(graph, scores, piece.ratio, units=units_of(graph, self.settings.units))
        cost, name = graph.cost(plan), _digest(plan)
        same = self._same(piece, name)
        if same not in self.measured:
            self.measured[same] = self._measure(piece, plan, number, total)
        found = self.measured[same]
        return {
            "network": piece.network,
            "metric": piece.contender.name,
            "ratio": piece.ratio,
            "seed": piece.seed,
            "images": scores.images,
            "macs_removed": round(1 - cost.macs / graph.macs, 6),
            "params_removed": round(1 - cost.params / graph.params, 6),
            **{key: found[key] for key in MEASURED if key in found},
            "plan": name,
            "seconds": round(time.perf_counter() - started, 2),
        }

    def _measure(self, piece: Piece, plan: Plan, number: int, total: int) -> Row:
        """Accuracy as cut, repaired and retrained, as far as asked for."""
        graph, settings = self.graphs[piece.network], self.settings
        note = f"row {number + 1} of {total}: {piece.network}, {piece.contender.name}, {piece.ratio:.0%} removed"

        def measured(model: nn.Module) -> Accuracy:
            return accuracy_of(
                model,
                graph,
                self.test,
                lambda done, of: (
                    self._say("evaluate", number * (of or 1) + done, total * (of or 1), note) if of else None
                ),
            )

        model = pruned_or_same(graph, plan)
        cut = measured(model)
        row: Row = {
            "accuracy": round(100 * cut.top1, 4),
            "top5": None if cut.top5 is None else round(100 * cut.top5, 4),
            "loss": round(cut.loss, 6),
            "test_images": cut.num_images,
        }
        if settings.repair != "none":
            model = repair(graph, plan, self._sample(piece.seed), how=settings.repair, seed=piece.seed)
            row["repaired"] = round(100 * measured(model).top1, 4)
        if settings.epochs:
            row["retrained"] = round(100 * measured(self._retrained(piece, model)).top1, 4)
        return row

    def _retrained(self, piece: Piece, model: nn.Module) -> nn.Module:
        checkpoint = self.place.path / "checkpoints" / _digest(piece.key)
        batches = self.retrain_on(piece.seed) if callable(self.retrain_on) else self.retrain_on
        phase = f"retrain {piece.key}"
        fitted = fit(
            model,
            batches,
            preset=preset_of(self.settings.preset, epochs=self.settings.epochs, lr=self.settings.lr),
            device=device_of(model),
            seed=piece.seed,
            checkpoint_dir=checkpoint,
            progress=lambda news: self._say(phase, (news.epoch - 1) * news.steps + news.step, news.epochs * news.steps),
        )
        shutil.rmtree(checkpoint, ignore_errors=True)
        return fitted.model

    def _sample(self, seed: int) -> list[Any]:
        if seed not in self.samples:
            some = sampled(self.train, self.settings.repair_images, seed)
            self.samples[seed] = [unpack(batch, number)[0] for number, batch in enumerate(some)]
        return self.samples[seed]

    def _same(self, piece: Piece, plan: str) -> str:
        """What rows with equal measurements share; repair and retraining depend on the seed, and a cut does not."""
        depends = self.settings.repair != "none" or self.settings.epochs > 0
        return f"{piece.network},{plan},{piece.seed if depends else ''}"

    def _say(self, phase: str, done: int, total: int, note: str = "") -> None:
        if self.progress is not None:
            self.progress(phase, done, total, note)


def units_of(graph: ChannelGraph, which: Units) -> list[str]:
    """The units that lose channels: the inner (private) ones, or all that pruning may take."""
    found = [name for name in candidates(graph) if which == "all" or graph.units[name].kind == "private"]
    if not found:
        raise DecideError("the network has no inner units: all of its channels go through additions; take units='all'")
    return found


def _digest(what: Plan | str) -> str:
    text = what if isinstance(what, str) else json.dumps(sorted((name, list(kept)) for name, kept in what.keep.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
