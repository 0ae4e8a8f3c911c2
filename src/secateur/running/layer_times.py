"""The times of layers that a run needs: from its folder, from a file, or measured here by the first process."""

from __future__ import annotations

from dataclasses import replace

from secateur.base.distributed import from_first
from secateur.channels.graph import ChannelGraph
from secateur.errors import DecideError
from secateur.measuring.latency_table import LatencyTable, open_table
from secateur.measuring.layer_timing.measure import latency_table
from secateur.running.folder import TABLE, RunFolder
from secateur.running.settings import Settings


def times_for(settings: Settings, graph: ChannelGraph, folder: RunFolder) -> LatencyTable | None:
    """The latency table of a run; None if it needs none.

    A run that was interrupted reads the table that it began with, so that it makes the same plan.
    """
    if not settings.needs_times:
        return None

    def find() -> str:
        if folder.has(TABLE):
            return open_table(folder.path / TABLE, graph).to_json()
        if settings.latency_table is not None:
            return open_table(settings.latency_table, graph).to_json()
        return latency_table(graph, settings.engine, settings.batch, settings.threads).to_json()

    return LatencyTable.from_json(from_first(find))


def with_table_settings(settings: Settings, table: LatencyTable | None) -> Settings:
    """Settings with engine, batch and threads as the table has them."""
    if table is None:
        return settings
    found = table.measured_with
    if settings.latency_table is not None and settings.engine not in ("eager", found.engine):
        raise DecideError(
            f"the latency table {settings.latency_table} is of the engine {found.engine}, not {settings.engine}: leave "
            "engine, batch and threads out, the table has them"
        )
    return replace(settings, engine=found.engine, batch=found.batch, threads=found.threads)
