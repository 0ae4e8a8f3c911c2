"""Values out of range on the command line: each verb refuses them before it does anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import prunus

LENET = ["lenet5", "--data", "digits"]


@pytest.mark.parametrize("verb", ["prune", "train", "score", "evaluate", "sensitivity"])
@pytest.mark.parametrize(
    "option, value", [("--batch-size", "0"), ("--seed", "-1"), ("--workers", "-1"), ("--size", "0")]
)
def test_every_verb_refuses_them(tmp_path: Path, verb: str, option: str, value: str) -> None:
    if (verb, option) == ("sensitivity", "--batch-size"):
        return  # it has none
    result = prunus(verb, *LENET, option, value, *([] if verb == "evaluate" else ["--out", tmp_path / "out"]))
    assert result.exit_code != 0 and not (tmp_path / "out").exists()
    said = " ".join(result.stderr.split())
    assert option in said or option[2:].replace("-", "_") in said, said
    # Options that belong to one verb alone are checked by typer, which words it in its own way.
    assert any(words in said for words in (f"at least {int(value) + 1}", "not in the range", "greater than")), said


def test_the_settings_are_looked_at_before_the_data(tmp_path: Path) -> None:
    """A folder without images would be the next complaint."""
    result = prunus("prune", "lenet5", "--data", f"folder:{tmp_path}", "--target", "2")
    assert result.exit_code == 1 and "target must be above 0 and below 1, got 2.0" in result.stderr
