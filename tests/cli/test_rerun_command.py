"""The command in the report asks for the very same run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner

from prunus.cli import prune
from prunus.cli import report as verb
from prunus.cli.images import EverydayData
from prunus.cli.options import DeviceOptions, command_line, settings_from, values_of
from prunus.run.settings import Settings
from prunus.zoo.models import create
from tests.report.runs import Page

KINDS = (prune.PruneOptions, EverydayData, DeviceOptions, Settings)
DEFAULTS = {"model": None, **values_of(prune.PruneOptions(), EverydayData("digits"), DeviceOptions(), Settings())}

ASKED: list[dict[str, Any]] = [
    {"model": "resnet8"},
    {"model": "resnet8", "target": 0.5, "rounds": 2, "epochs": 12, "lr": 0.02, "augment": False},
    {"model": "my.nets:make it", "weights": "a b/c.pt", "data": "folder:x'y", "max_drop": 0.5, "exact": True},
    {
        "model": "vgg16",
        "weights": "w.pt",
        "params": 400_000.0,
        "exclude": ("a*", "b"),
        "only": ("c",),
        "epochs": 3,
        "k": 3,
        "distill": True,
    },
    {
        "model": "lenet5",
        "weights": "w.pt",
        "metric": "gsd",
        "mean": "0.5",
        "workers": 2,
        "holdout": "test:0.5",
        "seed": 7,
        "device": "cpu",
    },
    {"model": "lenet5", "weights": "w.pt", "metric": "reader_energy", "alpha": 2.0, "streams": "coupled"},
]


def command(asked: dict[str, Any]) -> str:
    """As `prunus prune` writes it into config.json, from values that may have been read from there."""
    settings = [settings_from(kind, asked) for kind in KINDS]
    return command_line("prune", asked["model"], *settings, always=("data",))


@pytest.mark.parametrize("changes", ASKED, ids=lambda changes: changes["model"])
def test_typed_again_it_asks_for_the_same(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("a b/c.pt", "w.pt", "x'y/file"):  # what the commands name must exist
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    asked = {**DEFAULTS, **changes}
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(prune, "_prune", lambda asked, *_: heard.append(asked))
    program, name, *words = shlex.split(command(asked))
    assert (program, name) == ("prunus", "prune")
    app = typer.Typer()
    app.command("prune")(prune.command)
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert heard == [asked]
    assert command(json.loads(json.dumps(asked))) == command(asked)


def test_defaults_are_left_out() -> None:
    assert command({**DEFAULTS, "model": "resnet8"}) == "prunus prune resnet8 --data digits"
    params = {"params": 400_000.0, "max_drop": 0.5, "exclude": ("a*", "b")}
    words = "--data digits --max-drop 0.5 --params 400000 --exclude 'a*' --exclude b"
    assert command({**DEFAULTS, "model": "resnet8", **params}) == f"prunus prune resnet8 {words}"


def prunus(*words: str | Path) -> Any:
    app = typer.Typer()
    app.command("report")(verb.command)
    return CliRunner().invoke(app, [str(word) for word in words])


def test_pruning_ends_in_a_report(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(create("lenet5", num_classes=10).state_dict(), tmp_path / "lenet5.safetensors")
    app = typer.Typer()
    app.command("prune")(prune.command)
    words = ["lenet5", "--weights", str(tmp_path / "lenet5.safetensors"), "--data", "digits", "--ratio", "0.3"]
    result = CliRunner().invoke(app, [*words, "--metric", "l1", "--device", "cpu", "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    report = tmp_path / "run" / "report.html"
    assert f"report: {report} (open it in a browser)\n" in result.stdout
    text = Page(report.read_text(encoding="utf-8")).text
    assert text.startswith("lenet5 on digits, pruned: ") and "--ratio 0.3 --metric l1" in text
    again, out = prunus(tmp_path / "run"), tmp_path / "pages" / "one.html"
    assert (again.exit_code, again.stdout) == (0, f"written: {report}\n")
    assert prunus(tmp_path / "run", "--out", out).exit_code == 0 and out.read_bytes() == report.read_bytes()


def test_the_verb_says_what_is_wrong(tmp_path: Path) -> None:
    result = prunus(tmp_path)
    assert result.exit_code == 1
    assert "is not the folder of a run" in " ".join(result.output.split())
