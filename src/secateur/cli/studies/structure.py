"""`secateur study structure`: weights and MACs by layer or block, original and pruned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli import early_checks
from secateur.cli.common import console, friendly, typed_command
from secateur.cli.early_checks import Early, choice
from secateur.cli.from_settings import options_from_settings
from secateur.cli.options import Classes, Streams
from secateur.cli.studies.common import StudyOutput, print_results

if TYPE_CHECKING:
    from secateur.channels.graph import ChannelGraph
    from secateur.channels.plan import Plan


@friendly
@options_from_settings
def command(
    network: Annotated[
        str,
        typer.Argument(help="Folder of a pruned network, or a model's name with --widths"),
        Early(early_checks.network),
    ],
    output: StudyOutput,
    by: Annotated[str, typer.Option(help="One row per layer or per block"), choice("by", "layer", "block")] = "layer",
    widths: Annotated[
        str | None, typer.Option(help="Channels to keep: 11,39,... in the order of the units, or UNIT=11,UNIT=39")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The original network, if the folder does not record it")] = None,
    classes: Classes = None,
    streams: Streams = "select",
) -> None:
    """Show the cost of each part of a network before and after pruning, as in the paper's supplement.

    With a folder, --streams is what the network was pruned with.

    Examples:

        secateur study structure runs/prune-resnet56-cifar10 --by block

        secateur study structure lenet5 --widths 4,9,60,40
    """
    from secateur.channels.graph import trace
    from secateur.cli.columns import columns
    from secateur.cli.networks import open_network
    from secateur.errors import PlanError
    from secateur.studies.folder import Provenance, StudyFolder
    from secateur.studies.structure_study.picture import write_structure
    from secateur.studies.structure_study.structure import COLUMNS, structure

    opened = open_network(network, model=model, classes=classes)
    plan = opened.plan
    if (plan is None) == (widths is None):
        raise PlanError("give either the folder of a pruned network, or a network's name and --widths")
    whole = opened.model if opened.original is None else opened.original
    graph = trace(whole, opened.example(), streams if plan is None else plan.streams)  # type: ignore[arg-type]
    if plan is None:
        plan = _plan_of_text(graph, str(widths))
    rows = structure(graph, plan, by)  # type: ignore[arg-type]
    cells = [[_cell(key, value) for key, value in row.items()] for row in rows]
    titles = list(COLUMNS.values())
    console.print(columns(titles, cells, set(titles) - {"part"}), soft_wrap=True)
    total = rows[-1]
    console.print(f"\n{total['params_pruned']:,} weights and {total['macs_pruned']:,} MACs remain", soft_wrap=True)
    asked = {"network": network, "by": by, "widths": widths, "model": model, "classes": classes, "streams": streams}
    folder = output.folder("structure", opened.name, by)
    place = StudyFolder(folder, "structure", asked, Provenance(command=typed_command()))
    print_results(write_structure(rows, f"{opened.name}: cost of each {by}", place))


def _cell(key: str, value: Any) -> str:
    from secateur.studies.table_study.formats import short

    return short(value) if key in ("params", "params_pruned", "macs", "macs_pruned") else str(value)


def _plan_of_text(graph: ChannelGraph, text: str) -> Plan:
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
        raise PlanError(f"--widths must be 11,39,... or UNIT=11,UNIT=39; got {text!r}") from error
