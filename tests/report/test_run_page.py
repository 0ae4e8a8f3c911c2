"""The page: complete in itself, every name escaped, and its numbers and charts those of the run's files."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from prunus.decide.costs import COSTS
from prunus.decide.splits import SPLITS
from prunus.repair.repair import REPAIRS
from prunus.report.run_page import write_report
from prunus.score.metrics import METRICS
from tests.report.runs import CLASSES, COMMAND_LINE, SIDE, Page, charts, make_run, read


@pytest.fixture(scope="module")
def page(compressed: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "page.html"
    assert write_report(compressed.folder, out) == out
    return out.read_text(encoding="utf-8")


def test_it_goes_into_the_run_folder_and_is_the_same_each_time(run: Path) -> None:
    assert write_report(run) == run / "report.html"
    first = (run / "report.html").read_bytes()
    write_report(run)
    assert (run / "report.html").read_bytes() == first


def test_complete_in_itself(page: str) -> None:
    found = Page(page)
    assert not [attributes for _, attributes in found.tags if attributes.keys() & {"href", "srcset", "data"}]
    sources = [attributes["src"] or "" for _, attributes in found.tags if "src" in attributes]
    assert sources and all(re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]+", source) for source in sources)
    rest = re.sub(r'src="data:[^"]*"', "", page)
    assert not re.search(r"https?:|//\w|url\(|@import|fetch\(|XMLHttpRequest", rest)
    assert "default-src 'none'" in found.tags[[t for t, _ in found.tags].index("meta") + 2][1]["content"]  # type: ignore[operator]
    assert {tag for tag, _ in found.tags} >= {"h1", "h2", "svg", "table", "details", "script", "style"}


def test_every_chart_says_what_it_shows_and_shows_numbers_on_hover(page: str) -> None:
    pictures = re.findall(r"<svg .*?</svg>", page, flags=re.DOTALL)
    # Rounds, cuts and widths; two rounds of sensitivity; scores of each unit that lost channels in a round.
    assert len(pictures) > 5
    for picture in pictures:
        assert re.search(r'role="img"[^>]* aria-label="[^"]{20,}"', picture)
        assert "<title>" in picture
    assert "nan" not in page.lower().replace("nano", "") and "inf%" not in page


def test_the_headline_has_the_numbers_of_the_summary(page: str, compressed: Any) -> None:
    summary = read(compressed.folder / "summary.json")
    text = Page(page).text
    for part in ("holdout", "test"):
        was, now = summary["before"][part]["top1"], summary["after"][part]["top1"]
        assert f"{100 * now:.2f}% before: {100 * was:.2f}%" in text
    was, now = summary["before"]["macs"], summary["after"]["macs"]
    assert f"MACs per image {now / 1e6:.2f} M before: {was / 1e6:.2f} M −{100 * (1 - now / was):.1f}%" in text
    was, now = summary["before"]["params"], summary["after"]["params"]
    assert f"Weights {now / 1e3:.2f} K before: {was / 1e3:.2f} K −{100 * (1 - now / was):.1f}%" in text
    for found in summary["speedup"].values():
        clear = found["low"] > 1 or found["high"] < 1
        words = f"{found['ratio']:.2f}× ({found['low']:.2f} to {found['high']:.2f}) the speed"
        assert (words if clear else "no measurable difference") in text
    assert "What was removed:" in text and "What was lost:" in text and "What was gained:" in text


def test_widths_are_drawn_to_scale(page: str, compressed: Any) -> None:
    (picture,) = charts(page, "widths")
    bars = re.findall(r'<rect class="(\w+)"[^>]*? width="([\d.]+)%"[^>]*><title>([^<]+)</title>', picture)
    units = read(compressed.folder / "summary.json")["units"]
    widest = max(unit["width"] for unit in units.values())
    expected = {
        (kind, name): unit[key] / widest
        for name, unit in units.items()
        for kind, key in (("lost", "width"), ("kept", "kept"))
    }
    found = {(kind, title.split(": ")[0]): float(width) / 40 for kind, width, title in bars}  # the longest takes 40%
    assert found == pytest.approx(expected, abs=2e-4)


def test_sensitivity_of_each_unit_with_the_chosen_ones_marked(page: str, compressed: Any) -> None:
    pictures = charts(page, "sensitivity")
    assert len(pictures) == 2
    for number, picture in enumerate(pictures, start=1):
        folder = compressed.folder / f"round-{number:02d}"
        words, chosen = read(folder / "sensitivity.json"), read(folder / "round.json")["chosen"]
        bars = re.findall(r'<rect class="(\w+)"[^>]*><title>([^:]+:\w+): ([-\d.e]+) points of accuracy lost', picture)
        assert [name for _, name, _ in bars] == list(words["tried"])
        for kind, name, lost in bars:
            assert (kind == "kept") == (name in chosen)
            expected = 100 * (words["base_accuracy"] - words["tried"][name]["accuracy"])
            assert float(lost) == pytest.approx(expected, rel=0.05, abs=0.05)


def test_scores_count_every_channel_once_and_the_cut_parts_them(page: str, compressed: Any) -> None:
    pictures = charts(page, "scores")
    drawn = 0
    for number in (1, 2):
        folder = compressed.folder / f"round-{number:02d}"
        step = read(folder / "step-plan.json")["units"]
        scores = load_file(folder / "scores.safetensors")
        for unit, lost in read(folder / "round.json")["chosen"].items():
            picture = next(p for p in pictures if f"channels of {unit} in round {number};" in p)
            counts = re.findall(r'class="(cut|kept)"[^>]*><title>[^:]*: (\d+) (removed|kept)', picture)
            assert sum(int(n) for kind, n, _ in counts if kind == "cut") == lost
            assert sum(int(n) for kind, n, _ in counts if kind == "kept") == len(step[unit]["keep"])
            values = scores[f"gsd/{unit}"]
            kept = np.isin(np.arange(len(values)), step[unit]["keep"])
            middle = (values[~kept].max() + values[kept].min()) / 2
            cut = float(re.findall(r"<title>the cut: ([-\d.e]+)</title>", picture)[0])
            assert cut == pytest.approx(middle, rel=0.01, abs=1e-9)
            drawn += 1
    assert drawn == len(pictures) > 0


def test_rounds_are_drawn_where_they_belong(page: str, compressed: Any) -> None:
    (picture,) = charts(page, "rounds")
    summary = read(compressed.folder / "summary.json")
    points = re.findall(r'class="kept" cx="([\d.]+)%"[^>]*><title>held-out, [^:]+: ([\d.]+)%', picture)
    gone = [0.0, *(1 - r["macs"] / summary["before"]["macs"] for r in summary["rounds"])]
    accuracies = [summary["before"]["holdout"]["top1"], *(r["after"]["top1"] for r in summary["rounds"])]
    assert [float(value) for _, value in points] == pytest.approx([100 * a for a in accuracies], abs=0.006)
    places = [float(x) for x, _ in points]
    assert places == pytest.approx([16 + 77 * g / max(gone) for g in gone], abs=0.02)
    assert picture.count('class="test"') == 2 and 'class="goal"' in picture


def test_the_lowest_accuracy_allowed_is_drawn(run: Path) -> None:
    """max_drop is in points: 0.1 points below the accuracy before pruning."""
    config = read(run / "config.json")
    config["settings"]["max_drop"] = 0.1
    (run / "config.json").write_text(json.dumps(config))
    (picture,) = charts(write_report(run).read_text(), "rounds")
    lowest = 100 * read(run / "summary.json")["before"]["holdout"]["top1"] - 0.1
    assert f"lowest held-out accuracy allowed: {lowest:.2f}%" in picture


def test_epochs_are_drawn_one_after_the_other(page: str, compressed: Any, tmp_path: Path) -> None:
    (picture,) = charts(page, "epochs")
    points = re.findall(r'class="(\w+)" cx="([\d.]+)%"[^>]*><title>round (\d), (.*?): ([\d.]+)%<', picture)
    assert [(kind, int(number), what) for kind, _, number, what, _ in points] == [
        ("cut", 1, "before retraining"),
        ("kept", 1, "epoch 1"),
        ("cut", 2, "before retraining"),
        ("kept", 2, "epoch 1"),
    ]
    assert [float(x) for _, x, *_ in points] == pytest.approx([16, 16 + 77 / 2, 16 + 77 / 2, 93], abs=0.02)
    rounds = read(compressed.folder / "summary.json")["rounds"]
    figures = [100 * r[when]["top1"] for r in rounds for when in ("pruned", "after")]
    assert [float(value) for *_, value in points] == pytest.approx(figures, abs=0.006)
    make_run(tmp_path / "untrained", epochs=0)
    assert not charts(write_report(tmp_path / "untrained").read_text(), "epochs")


def test_the_table_has_every_layer(page: str, compressed: Any) -> None:
    layers = read(compressed.folder / "summary.json")["layers"]
    rows = re.findall(r'<tr data-place="(\d+)">(.*?)</tr>', page.partition('aria-label="Layers before and after"')[2])
    assert [int(place) for place, _ in rows] == list(range(len(layers)))
    for (_, row), (name, layer) in zip(rows, layers.items(), strict=True):
        assert f">{name}</td>" in row
        values = [float(v) for v in re.findall(r'data-value="([^"]+)"', row)][1:]
        gone = 1 - layer["macs"][1] / layer["macs"][0]
        macs, params = layer["macs"], layer["params"]
        assert values == pytest.approx([layer["inputs"][1], layer["outputs"][1], *macs, gone, *params])


NASTY = '<script>alert("x")</script>&\'<b>'


def test_what_was_asked_and_the_command_that_asks_again(page: str) -> None:
    """The settings that were changed by group, choices with their registry's line, and the command as it was saved."""
    text = Page(page).text
    asked = text[text.index("What was asked") : text.index("Accuracy and MACs in each round")]
    assert "Network resnet8, 8 layers with weights Data set folder:pictures Goal Remove 40.0% of the MACs. " in asked
    assert f"Channels metric gsd: {METRICS.help('gsd')} Layers" in asked
    layers = f"split algorithm1: {SPLITS.help('algorithm1')} cost macs: {COSTS.help('macs')}"
    assert re.search(rf"Layers {re.escape(layers)} alpha \d+\.\d+, rounds 2 Repair", asked)  # solved for two rounds
    assert f"Repair repair none: {REPAIRS.help('none')} Retraining epochs 1" in asked
    again = text[text.index("Repeat this run") :]
    assert COMMAND_LINE in again and "rounds 2 changed" in again


def test_names_are_escaped(run: Path) -> None:
    unit, layer = "layer1.0.conv1:out", "layer2.0.conv1"
    for path in run.rglob("*.json"):
        text = path.read_text().replace(json.dumps(unit), json.dumps(NASTY + ":out"))
        text = text.replace(json.dumps(layer), json.dumps(NASTY)).replace("folder:pictures", json.dumps(NASTY)[1:-1])
        path.write_text(text.replace('"CifarResNet"', json.dumps(NASTY)))
    for path in run.rglob("scores.safetensors"):
        save_file({key.replace(unit, NASTY + ":out"): value for key, value in load_file(path).items()}, path)
    moved = Path(shutil.move(run, run.with_name("a <i>run & more")))
    page = write_report(moved).read_text()
    assert "<script>alert" not in page and "<i>run" not in page and "</b>&" not in page
    found = Page(page)
    assert [tag for tag, _ in found.tags].count("script") == 2  # the figures to save, and the behaviour
    assert NASTY in found.text
    assert any(attributes.get("aria-label", "").find(NASTY) >= 0 for _, attributes in found.tags if attributes)  # type: ignore[union-attr]


def test_the_three_lines_load_the_network(page: str, compressed: Any) -> None:
    code = Page(page).text
    lines = re.search(r"import prunus from .*?\)\)", code)
    assert lines is not None
    program = lines[0].replace(" from ", "\nfrom ", 1).replace(" small =", "\nsmall =")
    assert program.count("\n") == 2
    found: dict[str, Any] = {}
    exec(program, found)
    images = torch.randn(2, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        answer = found["small"].eval()(images)
        assert torch.equal(answer, compressed.model.eval()(images)) and answer.shape == (2, CLASSES)


def test_a_run_of_the_library_without_test_images_or_rounds_to_show(tmp_path: Path) -> None:
    make_run(tmp_path / "one", target=None, rounds=None, ratio=0.3, epochs=0, test=None, metric="l1")
    page = write_report(tmp_path / "one").read_text()
    text = Page(page).text
    assert "original = CifarResNet(...)" in text and ", original).eval()" in text
    call = "prunus.compress(model, train, holdout, ratio=0.3, split='uniform', metric='l1', repair='none', epochs=0"
    assert call in text
    assert "These images were also used for decisions." in text and "Test accuracy" not in text
    assert len(charts(page, "rounds")) == 1 and not charts(page, "sensitivity") and not charts(page, "cuts")


@pytest.mark.parametrize(
    ("metric", "options", "shown"),
    [
        ("gsd:ridge=0:tap=before_activation", {}, "gsd:ridge=0:tap=before_activation"),
        ("gsd", {"ridge": 0.5}, "gsd:ridge=0.5"),
        ("gsd:ridge=2", {"ridge": 0.5, "tap": "before_activation"}, "gsd:ridge=2:tap=before_activation"),
        ("gsd", {}, "gsd"),
        ("<own>", {}, "gsd"),  # a function of the user's own has no options in its name
    ],
)
def test_scores_are_named_with_the_options_of_the_metric(
    run: Path, metric: str, options: dict[str, Any], shown: str
) -> None:
    config = read(run / "config.json")
    config["settings"] |= {"metric": metric, "metric_options": options}
    (run / "config.json").write_text(json.dumps(config))
    assert f"Each channel has a score ({shown}); higher is better." in Page(write_report(run).read_text()).text


def test_a_round_that_was_taken_back(run: Path) -> None:
    summary = read(run / "summary.json")
    (run / "summary.json").write_text(json.dumps({**summary, "rounds": summary["rounds"][:1]}))
    assert "Another round lost more accuracy than allowed" in write_report(run).read_text()
    (run / "summary.json").write_text(json.dumps({**summary, "rounds": []}))
    page = write_report(run).read_text()
    assert not charts(page, "rounds") and len(charts(page, "widths")) == 1


def test_bars_where_units_were_tried_at_a_ratio(tmp_path: Path) -> None:
    make_run(tmp_path / "li", split="ratio", rounds=1, epochs=0)
    folder = tmp_path / "li"
    (picture,) = charts(write_report(folder).read_text(), "sensitivity")
    words, chosen = read(folder / "round-01" / "sensitivity.json"), read(folder / "round-01" / "round.json")["chosen"]
    assert {name: [row["channels"] for row in curve] for name, curve in words["curves"].items()} == {
        name: [row["width"] // 2] for name, row in words["tried"].items()
    }
    assert picture.count('class="kept"') == len(chosen) > 0
    assert picture.count('class="other"') == len(words["tried"]) - len(chosen)
