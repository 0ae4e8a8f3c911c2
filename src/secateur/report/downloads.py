"""Buttons that save the figures of a page as files. The figures are in the page: no network is needed."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from secateur.report.finished_run import FinishedRun
from secateur.report.html import paragraph, section


def downloads(files: Mapping[str, str]) -> str:
    """A section with one button for each file: name -> content."""
    buttons = [
        f'<button type="button" class="download" data-file="{escape(name)}">{escape(name)}</button>' for name in files
    ]
    inside = json.dumps(dict(files)).replace("<", "\\u003c")  # nothing in it can end the script
    kept = f'<script type="application/json" id="downloads">{inside}</script>'
    words = "The figures of this page, to save as files:"
    return section("Data", paragraph(words), f'<p class="downloads">{" ".join(buttons)}</p>{kept}')


def run_files(run: FinishedRun) -> dict[str, str]:
    """The figures of a run: all as JSON, and each table as CSV."""
    files = {"run.json": as_json(_figures(run)), "layers.csv": _layers(run), "units.csv": _units(run)}
    files |= {"rounds.csv": _rounds(run), "epochs.csv": _epochs(run)}
    if run.classes is not None:
        found = run.classes
        rows = zip(found.names, found.sizes, found.before.values, found.after.values, strict=False)
        files["classes.csv"] = as_csv(("class", found.of, f"{found.quality} before", f"{found.quality} after"), rows)
    return files


def as_json(value: Any) -> str:
    """JSON text, in which numbers that are not finite are null."""
    return f"{json.dumps(_finite(value), indent=1, default=str)}\n"


def as_csv(headings: Sequence[str], rows: Any) -> str:
    """CSV text; None is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return out.getvalue()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _figures(run: FinishedRun) -> dict[str, Any]:
    sides = {}
    for name, side in (("before", run.before), ("after", run.after)):
        words = {**vars(side), "holdout": vars(side.holdout), "test": None if side.test is None else vars(side.test)}
        sides[name] = words
    return {
        "model": run.model,
        "command_line": run.command_line,
        "quality": vars(run.quality),
        **sides,
        "speedup": {size: vars(found) for size, found in run.speedup.items()},
        "notes": run.notes,
        "rounds": [_round(run, done.outcome.to_dict()) for done in run.rounds],
        "units": {name: vars(unit) for name, unit in run.units.items()},
        "layers": {name: vars(layer) for name, layer in run.layers.items()},
        "seconds": run.seconds,
        "versions": run.versions,
    }


def _round(run: FinishedRun, words: dict[str, Any]) -> dict[str, Any]:
    """A round, in which the quality over training batches has its own name."""
    epochs = [{run.quality.name if key == "accuracy" else key: v for key, v in e.items()} for e in words["retraining"]]
    return {**words, "retraining": epochs}


def _layers(run: FinishedRun) -> str:
    kinds = ("inputs", "outputs", "macs", "params")
    headings = ["layer", *(f"{kind} {when}" for kind in kinds for when in ("before", "after"))]
    rows = [[name, *(n for kind in kinds for n in getattr(layer, kind))] for name, layer in run.layers.items()]
    return as_csv(headings, rows)


def _units(run: FinishedRun) -> str:
    rows = [(name, unit.kind, unit.width, unit.kept) for name, unit in run.units.items()]
    return as_csv(("unit", "kind", "width", "kept"), rows)


def _rounds(run: FinishedRun) -> str:
    name = run.quality.name
    headings = ("round", "macs", "weights", f"{name} before", f"{name} pruned", f"{name} after", "channels removed")
    outcomes = [done.outcome for done in run.rounds]
    rows = [
        (o.number, o.macs, o.params, o.before.top1, o.pruned.top1, o.after.top1, sum(o.chosen.values()))
        for o in outcomes
    ]
    return as_csv(headings, rows)


def _epochs(run: FinishedRun) -> str:
    headings = ("round", "epoch", "learning rate", "training loss", "held-out loss", f"held-out {run.quality.name}")
    rows = []
    for done in run.rounds:
        for e in done.outcome.retraining:
            held = (None, None) if e.holdout is None else (e.holdout.loss, e.holdout.top1)
            rows.append((done.outcome.number, e.number, e.lr, e.loss, *held))
    return as_csv(headings, rows)
