"""`secateur study structure`: weights and MACs by layer or block, original and pruned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli.common import console, friendly
from secateur.cli.options import Classes

if TYPE_CHECKING:
    from secateur.channels.graph import ChannelGraph
    from secateur.channels.plan import Plan


@friendly
def command(
    network: Annotated[str, typer.Argument(help="Folder of a pruned network, or a model's name with --widths.")],
    by: Annotated[str, typer.Option(help="layer or block.")] = "layer",
    widths: Annotated[
        str | None, typer.Option(help="Channels left: 11,39,... in the order of the units, or UNIT=11,UNIT=39.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The original network, if a folder does not say.")] = None,
    classes: Classes = None,
    streams: Annotated[str, typer.Option(help="Additions, with --widths: select or coupled.")] = "select",
    out: Annotated[Path | None, typer.Option(help="Study folder; runs/study-structure-NETWORK by default.")] = None,
) -> None:
    """Show what each part of a network costs before and after pruning, as the paper's supplement does.

    Examples:

        secateur study structure runs/prune-resnet56-cifar10 --by block

        secateur study structure lenet5 --widths 4,9,60,40
    """
    from secateur.channels.graph import trace
    from secateur.cli.columns import columns
    from secateur.cli.networks import open_network
    from secateur.cli.studies.common import say_where, study_folder, typed
    from secateur.errors import PlanError
    from secateur.studies.folder import StudyFolder
    from secateur.studies.structure_study.structure import COLUMNS, structure, write_structure

    opened = open_network(network, model=model, classes=classes)
    plan = opened.plan
    if (plan is None) == (widths is None):
        raise PlanError("give the folder of a pruned network, or a network's name and --widths; not both, not neither")
    whole = opened.model if opened.original is None else opened.original
    graph = trace(whole, opened.example(), streams if plan is None else plan.streams)  # type: ignore[arg-type]
    if plan is None:
        plan = _planned(graph, str(widths))
    rows = structure(graph, plan, by)  # type: ignore[arg-type]
    cells = [[_cell(key, value) for key, value in row.items()] for row in rows]
    console.print(
        columns(list(COLUMNS.values()), cells, set(COLUMNS.values()) - {"part"}), markup=False, soft_wrap=True
    )
    total = rows[-1]
    console.print(f"\n{total['params_pruned']:,} weights and {total['macs_pruned']:,} MACs are left", soft_wrap=True)
    asked = {"network": network, "by": by, "widths": widths, "model": model, "classes": classes, "streams": streams}
    title = f"{opened.name}: what each {by} costs"
    folder = study_folder(out, "structure", opened.name, by)
    say_where(write_structure(rows, title, StudyFolder(folder, "structure", asked, typed())))


def _cell(key: str, value: Any) -> str:
    from secateur.studies.table_study.table import short

    return short(value) if key in ("params", "params_pruned", "macs", "macs_pruned") else str(value)


def _planned(graph: ChannelGraph, text: str) -> Plan:
    """The plan of --widths."""
    from secateur.errors import PlanError
    from secateur.studies.structure_study.structure import plan_of_widths

    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        if all("=" in word for word in words):
            pairs = (word.rpartition("=") for word in words)
            return plan_of_widths(graph, {unit: int(width) for unit, _, width in pairs})
        return plan_of_widths(graph, [int(word) for word in words])
    except ValueError as error:
        raise PlanError(f"--widths should be 11,39,... or UNIT=11,UNIT=39; got {text!r}") from error
