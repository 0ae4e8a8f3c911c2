"""prunus's verbs as typed, within this process."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from prunus.cli import build


def prunus(*words: str | Path, columns: int = 80) -> Result:
    """Run a command line; what goes wrong unexpectedly is raised."""
    return CliRunner(env={"COLUMNS": str(columns), "TERM": "dumb"}).invoke(
        build(), [str(word) for word in words], catch_exceptions=False
    )


def lines(result: Result) -> list[str]:
    """What it printed, once it is sure that it went well."""
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()
