"""Runs among published rows: the run's own figures, its place, and each format."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import prunus as pr
from prunus.errors import FileError, RunError
from prunus.studies.table_study import COLUMNS, table
from tests.cli.command_line import lines, prunus


def as_if(run: Path, folder: Path, model: str, data: str, **after: Any) -> Path:
    """A copy of a run that says it was made from another network and data."""
    shutil.copytree(run, folder)
    config, summary = (json.loads((folder / name).read_text()) for name in ("config.json", "summary.json"))
    config["command"] |= {"model": model, "data": data}
    summary["before"] |= {"macs": 1000, "params": 200}
    summary["after"] |= {"macs": 489, "params": 150} | after
    summary["before"]["test"] |= {"quality": 0.9, "details": {"top5": 0.99}}
    if summary["after"]["test"] is not None:
        summary["after"]["test"] |= {"quality": 0.8875, "details": {"top5": 0.995}, "num_images": 5000}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_a_run_stands_at_its_place_by_macs_removed(lenet_run: Path, tmp_path: Path) -> None:
    folder = as_if(lenet_run, tmp_path / "mine", "resnet56", "cifar10")
    found = pr.studies.table([folder])
    assert [row["method"] for row in found.rows] == [
        *("L1", "GAL", "NISP", "G-SD-A", "DCP", "mine", "FPGM", "TAS", "KSE", "G-SD-B")  # 49.6, 49.8, 51.1, 52.6 ...
    ]
    mine = found.rows[5]
    assert mine == {
        "network": "ResNet-56",
        "data": "cifar10",
        "method": "mine",
        "by": "prunus, gsd",
        "base_top1": 90.0,
        "top1": 88.75,
        "top1_drop": 1.25,
        "base_top5": 99.0,
        "top5": 99.5,
        "top5_drop": -0.5,
        "macs": 489,
        "macs_removed": 51.1,
        "params": 150,
        "params_removed": 25.0,
        "source": "this run",
    }
    assert {row["source"] for row in found.rows if row is not mine} == {"as published"}
    assert any("mine: accuracy on 5,000 test images" in note for note in found.notes)


@pytest.mark.parametrize("typed", ["resnet56=w.safetensors", "runs/train-resnet56-cifar10"])
def test_a_network_from_a_file_or_a_folder_goes_by_its_name(lenet_run: Path, tmp_path: Path, typed: str) -> None:
    folder = as_if(lenet_run, tmp_path / "mine", typed, "cifar10")
    config = json.loads((folder / "config.json").read_text())
    config["start"] = {"network": "resnet56", "earlier": []}
    (folder / "config.json").write_text(json.dumps(config))
    rows = pr.studies.table([folder]).rows
    assert len(rows) == 10 and {row["network"] for row in rows} == {"ResNet-56"}
    config["start"]["earlier"] = ["first"]  # it was pruned before, so its shares are not of the whole network
    (folder / "config.json").write_text(json.dumps(config))
    assert [row["network"] for row in pr.studies.table([folder]).rows] == [typed]


def test_where_the_paper_has_no_rows_the_run_stands_alone(lenet_run: Path) -> None:
    found = table([lenet_run])
    summary = json.loads((lenet_run / "summary.json").read_text())
    assert [row["method"] for row in found.rows] == ["run"]
    (row,) = found.rows
    assert row["top1"] == round(100 * summary["after"]["test"]["quality"], 2)
    assert row["macs"] == summary["after"]["macs"] < summary["before"]["macs"]
    assert "The paper has no rows for lenet5 on digits." in found.notes


def test_without_test_images_the_note_says_so(lenet_run: Path, tmp_path: Path) -> None:
    folder = as_if(lenet_run, tmp_path / "mine", "vgg16", "cifar10", test=None)
    found = table([folder])
    held = json.loads((lenet_run / "summary.json").read_text())["after"]["holdout"]
    assert next(row for row in found.rows if row["method"] == "mine")["top1"] == round(100 * held["quality"], 2)
    assert any("held-out images that decisions used" in note for note in found.notes)
    assert any(note.startswith("Table 1, VGG-16, L1") for note in found.notes)  # this group's oddity is told


def test_all_published_rows_and_some_of_them() -> None:
    assert len(table().rows) == 40
    assert len(table(data="cifar100").rows) == 6
    assert [row["method"] for row in table(model="vgg19").rows] == ["SLIM", "G-SD"]
    with pytest.raises(RunError, match=r"no rows for lenet5 on any data; it has vgg16 on cifar10"):
        table(model="lenet5")


def test_folders_that_cannot_be_used(lenet_run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no finished run: summary.json is missing"):
        table([tmp_path])
    nameless = shutil.copytree(lenet_run, tmp_path / "nameless")
    config = json.loads((nameless / "config.json").read_text())
    (nameless / "config.json").write_text(json.dumps({**config, "command": None}))
    with pytest.raises(RunError, match="pass --model and --data"):
        table([nameless])
    assert len(table([nameless], model="vgg19", data="cifar100").rows) == 3
    (nameless / "summary.json").write_text('{"before": 1}')
    with pytest.raises(FileError, match=r"summary.json has unexpected content"):
        table([nameless], model="vgg19", data="cifar100")


def test_formats(lenet_run: Path, tmp_path: Path) -> None:
    folder = as_if(lenet_run, tmp_path / "mine", "preresnet164", "cifar100")
    told = json.loads(prunus("study", "table", folder, "--json").stdout)
    assert told["rows"] == list(table([folder]).rows) and told["notes"] == list(table([folder]).notes)
    text = lines(prunus("study", "table", folder))
    assert text[0].startswith("ResNet-164 on cifar100") and max(map(len, text[:7])) <= 80
    assert " ".join(text[4].split()).startswith("mine this run, gsd 90.00")
    assert " ".join(text[6].split()) == "G-SD the paper 76.95 77.40 -0.45 92.00 M 63.2 660.00 K 61.8"


def test_a_folder(lenet_run: Path, tmp_path: Path) -> None:
    folder = as_if(lenet_run, tmp_path / "mine", "resnet56", "cifar10")
    lines(prunus("study", "table", folder, "--out", tmp_path / "study"))
    study = pr.studies.read_study(tmp_path / "study")
    assert study["study"] == "table" and study["rows"] == list(table([folder]).rows)
    with (tmp_path / "study" / "table.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [row["method"] for row in read] == [row["method"] for row in study["rows"]]
    assert read[1]["top5"] == "" and list(read[0]) == list(COLUMNS)
