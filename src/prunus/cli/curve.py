"""`prunus curve`: quality over measured speed-up, a run for each point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from prunus.cli.console import Answer, Early, console, default_folder, friendly, resumable, say, table, typed_command
from prunus.cli.images import DataOptions
from prunus.cli.network import DEMO_MODEL, MODEL_HELP, check_model_name
from prunus.cli.options import BySet, DeviceOptions, Without
from prunus.cli.prune import PruneOptions, Request, demo_data, open_request
from prunus.run.settings import RARE, SPEEDUPS, Settings, check_settings, goals_of
from prunus.util.files import CURVE, refuse_others
from prunus.util.options import numbers, option

# The speed-ups are the goals, and each network is timed in the engine that is asked for.
NOT_OFFERED = ("target", "speedup", "macs", "params", "ratio", "max_drop", "timing")
LISTED = ",".join(f"{each:g}" for each in SPEEDUPS)


@dataclass(frozen=True)
class CurveOptions:
    speedups: str = option(LISTED, "How many times as fast, separated by commas", group="Goal", everyday=True)
    out: Path | None = option(None, "Folder; runs/curve-MODEL-DATA by default", group="Output", everyday=True)


@friendly
def command(
    model: Annotated[
        str | None, typer.Argument(help=f"{MODEL_HELP}. The demo's by default."), Early(check_model_name)
    ] = None,
    *,
    data: DataOptions,
    options: Annotated[PruneOptions, Without("paper")],
    curve: CurveOptions,
    settings: Annotated[Settings, Without(*NOT_OFFERED), BySet(*RARE)],
    device: DeviceOptions,
) -> Answer | None:
    """Prune a network for several speed-ups: a table and a picture of quality over measured speed-up.

    Each point is a run, in a folder of its own, that can be loaded. What does not depend on the goal is measured once.
    The same command again continues a curve that was interrupted.

    Exit code 3: a speed-up was not reached.

    Examples:

        prunus curve

        prunus curve resnet56 --data cifar10 --weights w.safetensors

        prunus curve resnet56=w.pt --data cifar10 --speedups 1.5,2 --engine eager
    """
    data = demo_data("curve", model, data)
    request, named = Request(model or DEMO_MODEL, data, options, settings, device).resolved()
    goals = goals_of(replace(request.settings, timing=False), list(numbers(curve.speedups.replace("x", ""))))
    check_settings(goals[0])  # before torch is imported
    out = curve.out or default_folder(f"curve-{named.label}-{request.data.name}")
    refuse_others(out, CURVE)
    from prunus.report.compare import compare
    from prunus.report.run_page import write_report
    from prunus.run.compress import checked
    from prunus.run.curve import PICTURE, TITLES, folder_name, run_goals
    from prunus.run.folder import RunFolder
    from prunus.util.processes import leave
    from prunus.util.progress import phases, shown
    from prunus.util.state import generators_kept

    network, images, parts, rank = open_request(request, named)
    example = parts.pop("example")
    loaded, first = checked(network, goals[0], **parts)
    typed = {goal.speedup: replace(request, settings=goal) for goal in goals}

    def folder_of(goal: Settings) -> RunFolder:
        path = out / folder_name(goal.speedup or 1.0)
        return RunFolder(path, writes=not rank, about=typed[goal.speedup].about(named, images))

    with resumable(typed_command()), generators_kept(), shown(None, phases) as show:
        goals = [replace(goal, task=first.task) for goal in goals]
        drawn = run_goals(network, example, goals, folder_of, loaded, show)
    leave()
    if rank:
        return None
    drawn.write(out)
    folders = [out / point.folder for point in drawn.points]
    for folder in folders:
        write_report(folder)
    page = compare(folders).write(out)
    say(drawn.title)
    console.print(table(TITLES, drawn.rows(), numbers=TITLES[:-1]))
    say(f"\nruns in {out}: {', '.join(folder.name for folder in folders)}")
    say(f"picture: {out / PICTURE}.png, page: {page} (open it in a browser)")
    record = {**drawn.to_dict(), "title": drawn.title, "reached": drawn.reached, "folder": out, "page": page}
    return Answer(record, drawn.reached)
