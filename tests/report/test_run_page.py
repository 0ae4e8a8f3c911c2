"""The page: complete in itself, every name escaped, and its numbers and charts those of the run's files."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from PIL import Image
from safetensors.numpy import load_file, save_file

from prunus.errors import FileError
from prunus.plots.run_pictures import load_pictures
from prunus.report import run_page as sentences
from prunus.report.read import FinishedRun, read_run
from prunus.report.run_page import metric_text, render, run_files, what_was_asked, write_report
from prunus.run.final_timing import EngineSpeed
from prunus.run.summary import NetworkFigures, SpeedFigures, UnitFigures
from prunus.tasks.evaluate import Evaluation
from tests.report.runs import CLASSES, COMMAND_LINE, SIDE, Page, bar_charts, change_json, charts, make_run, read, titles
from tests.report.test_page import NASTY


def test_complete_in_itself(page: str) -> None:
    found = Page(page)
    assert not [attributes for _, attributes in found.tags if attributes.keys() & {"href", "srcset", "data"}]
    sources = [attributes["src"] or "" for _, attributes in found.tags if "src" in attributes]
    assert sources and all(re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]+", source) for source in sources)
    rest = re.sub(r'src="data:[^"]*"', "", page)
    assert not re.search(r"https?:|//\w|url\((?!#)|href=\"(?!#)|@import|fetch\(|XMLHttpRequest", rest)
    assert "default-src 'none'" in found.tags[[t for t, _ in found.tags].index("meta") + 2][1]["content"]  # type: ignore[operator]
    assert {tag for tag, _ in found.tags} >= {"h1", "h2", "svg", "table", "details", "script", "style"}


def test_every_chart_says_what_it_shows_and_shows_numbers_on_hover(page: str, compressed: Any) -> None:
    pictures = re.findall(r'<svg class="chart .*?</svg>', page, flags=re.DOTALL)
    assert len(pictures) == 4  # rounds, epochs, loss, learning rate
    assert all(re.search(r'role="img" aria-label="[^"]{20,}"', picture) and titles(picture) for picture in pictures)
    # Widths, speeds, two rounds of sensitivity, and scores of each unit that lost channels.
    others = re.findall(r'<div class="(?:bars|histogram)[^>]*role="img" aria-label="[^"]{20,}"', page)
    chosen = [read(compressed.folder / f"round-{number:02d}" / "round.json")["chosen"] for number in (1, 2)]
    assert len(others) == 4 + sum(map(len, chosen)) > 5
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids)) and set(re.findall(r'(?:href="|url\()#([^")]+)', page)) == set(ids) - {"downloads"}
    assert "nan" not in page.lower().replace("nano", "") and "inf%" not in page


def test_the_headline_has_the_numbers_of_the_summary(page: str, compressed: Any) -> None:
    summary = read(compressed.folder / "summary.json")
    text = Page(page).text
    for part in ("holdout", "test"):
        was, now = summary["before"][part]["quality"], summary["after"][part]["quality"]
        assert f"{100 * now:.2f}% before: {100 * was:.2f}%" in text
    was, now = summary["before"]["macs"], summary["after"]["macs"]
    left = f"{now / 1e6:.2f} M" if now >= 1e6 else f"{now / 1e3:.2f} K"
    assert f"MACs {left} before: {was / 1e6:.2f} M -{100 * (1 - now / was):.1f}%" in text
    was, now = summary["before"]["params"], summary["after"]["params"]
    assert f"Weights {now / 1e3:.2f} K before: {was / 1e3:.2f} K -{100 * (1 - now / was):.1f}%" in text
    images, held = (summary["before"][part]["num_images"] for part in ("test", "holdout"))
    assert f"Measured on: {images} test images, each worth {100 / images:.2g} points; {held} held-out images" in text
    assert summary["goal"]["text"] in text
    assert "What was removed:" in text


def test_widths_are_drawn_to_scale(page: str, compressed: Any) -> None:
    (rows,) = bar_charts(page, "widths")
    units = read(compressed.folder / "summary.json")["units"]
    widest = max(unit["width"] for unit in units.values())
    assert [row.name for row in rows] == list(units)
    for row, unit in zip(rows, units.values(), strict=True):
        shares = [64 * unit[key] / widest for key in ("width", "kept")]  # the longest takes 64%
        assert [bar[1] for bar in row.bars] == pytest.approx(shares, abs=0.01)
        assert [bar[2] for bar in row.bars] == ["lost", "kept"] and row.strong == (unit["kept"] < unit["width"])


def test_sensitivity_of_each_unit_with_the_chosen_ones_marked(page: str, compressed: Any) -> None:
    pictures = bar_charts(page, "sensitivity")
    assert len(pictures) == 2
    for number, rows in enumerate(pictures, start=1):
        folder = compressed.folder / f"round-{number:02d}"
        measured, chosen = read(folder / "sensitivity.json"), read(folder / "round.json")["chosen"]
        assert [row.name for row in rows] == list(measured["tried"])
        for row in rows:
            assert row.strong == (row.bars[0][2] == "kept") == (row.name in chosen)
            lost = re.search(r": ([-\d.e]+) points of accuracy lost", row.title)
            expected = 100 * (measured["base_accuracy"] - measured["tried"][row.name]["accuracy"])
            assert lost and float(lost[1]) == pytest.approx(expected, rel=0.05, abs=0.05)


def test_a_run_of_the_library_with_a_repair_and_without_test_images(tmp_path: Path, page: str) -> None:
    assert "Error of each layer" not in page  # it was not repaired
    make_run(tmp_path, split="ratio", repair="solve", epochs=0, rounds=1, num_repair_images=32, test=None)
    measured, outcome = (read(tmp_path / "round-01" / f"{name}.json") for name in ("sensitivity", "round"))
    repaired = write_report(tmp_path).read_text(encoding="utf-8")
    (rows,) = bar_charts(repaired, "sensitivity")
    assert {name: [row["channels"] for row in curve] for name, curve in measured["curves"].items()} == {
        name: [row["width"] // 2] for name, row in measured["tried"].items()
    }
    assert {row.name for row in rows if row.bars[0][2] == "kept"} == set(outcome["chosen"]) != set()
    assert {row.name for row in rows if row.bars[0][2] == "other"} == set(measured["tried"]) - set(outcome["chosen"])
    (rows,) = bar_charts(repaired, "errors")
    longest = max(max(pair) for pair in outcome["layer_errors"].values())
    assert rows and {row.name: [bar[1] for bar in row.bars] for row in rows} == {
        name: pytest.approx([max(64 * value / longest, 0.3) for value in pair], abs=0.02)
        for name, pair in outcome["layer_errors"].items()
    }
    text = Page(repaired).text
    assert "original = CifarResNet(...)" in text and ", original).eval()" in text
    assert "prunus.compress(model, train, holdout, target=0.4, " in text and ", split='ratio', " in text
    assert (
        "held-out images, each worth " in text
        and "points, which decisions used." in text
        and "Test accuracy" not in text
    )
    assert len(charts(repaired, "rounds")) == 1


def test_speeds_and_times_of_layers_are_drawn_relative_to_the_original(compressed: Any) -> None:
    run = read_run(compressed.folder)
    speeds = (
        EngineSpeed("onnxruntime", 1, 1, 0.006, 0.003, 2.0, 1.6, 2.5, "processor"),
        EngineSpeed("eager", 1, 1, 0.004, 0.008, 0.5, 0.4, 0.8, "processor"),
        EngineSpeed("eager", 8, 1, 0.03, 0.03, 1.0, 0.8, 1.25, "processor"),
    )
    layers = {"conv1": (0.002, 0.001), "(the rest)": (0.004, 0.004)}
    time = SpeedFigures("eager", 1, 2, "a machine", 1.2, 1.2, True, layers)
    page = render(replace(run, summary=replace(run.summary, speeds=speeds, time=time), undone=1))
    (rows,) = bar_charts(page, "speeds")
    assert [(row.name, row.text, row.strong) for row in rows] == [
        ("onnxruntime at batch 1", "2.00× (1.60 to 2.50)", True),
        ("eager at batch 1", "0.50× (0.40 to 0.80), slower", False),
        ("eager at batch 8", "not measurable (0.80 to 1.25)", False),
    ]
    # The longest bar is 1 / 0.5 = 2 times the original's time; its interval, up to 1 / 0.4, is cut off at 1.2 times
    # that, which takes 64%.
    shares = [[64 / 2.4 * x for x in (1, after)] for after in (1 / 2, 1 / 0.5, 1)]
    assert [[bar[1] for bar in row.bars[:2]] for row in rows] == [pytest.approx(share, abs=0.01) for share in shares]
    left, width, kind = rows[0].bars[2]
    assert kind == "spread" and [left, left + width] == pytest.approx([64 / 2.4 / 2.5, 64 / 2.4 / 1.6], abs=0.02)
    (rows,) = bar_charts(page, "times")
    assert [(row.name, row.text) for row in rows] == [("conv1", "1 ms, was 2 ms"), ("(the rest)", "4 ms")]
    assert [[bar[1] for bar in row.bars] for row in rows] == [[32, 16], [64, 64]]
    text = Page(page).text
    assert "Milliseconds in onnxruntime at batch 1 3 before: 6 2.00x (1.60 to 2.50)" in text
    assert text.count("processor time on one thread") == 1 and "for a batch of 1, on 2 threads" in text
    assert "Another round lost more accuracy than allowed" in text
    assert "engine" not in str(what_was_asked(run))  # a goal in MACs says nothing about engines


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


def test_what_was_asked_and_the_command_that_asks_again(page: str) -> None:
    """The settings that were changed, by group, and the command as it was saved."""
    text = Page(page).text
    asked = text[text.index("What was asked") : text.index("Accuracy and MACs in each round")]
    assert "Network resnet8, 8 layers with weights Data set folder:pictures Goal target 0.4" in asked
    assert re.search(r"Channels (streams select, metric gsd|metric gsd, streams select) Layers ", asked)
    assert re.search(r"Layers .*split algorithm1, .*alpha \d+\.\d+, .*rounds 2.* Repair repair none Retr", asked)
    assert "Retraining epochs 1" in asked
    again = text[text.index("Repeat this run") :]
    assert COMMAND_LINE in again and "rounds 2 changed" in again


def test_names_are_escaped(run: Path) -> None:
    unit, layer = next(iter(read(run / "round-01" / "round.json")["chosen"])), "layer2.0.conv1"
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
    assert any(NASTY in (attributes.get("aria-label") or "") for _, attributes in found.tags)


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


@pytest.mark.parametrize(
    ("metric", "options", "shown"),
    [
        ("gsd:ridge=0:tap=before_activation", {}, "gsd:ridge=0:tap=before_activation"),
        ("gsd", {"ridge": 0.5}, "gsd:ridge=0.5"),
        ("gsd:ridge=2", {"ridge": 0.5, "tap": "before_activation"}, "gsd:ridge=2:tap=before_activation"),
        ("gsd", {}, "gsd"),
        ("<own>", {}, "gsd"),  # a user-provided function has no options in its name
    ],
)
def test_scores_are_named_with_the_options_of_the_metric(
    compressed: Any, metric: str, options: dict[str, Any], shown: str
) -> None:
    run = read_run(compressed.folder)
    settings = replace(run.settings, metric=metric, metric_options=options)
    assert metric_text(replace(run, settings=settings)) == shown


# -- the channels on the page: the pixels that a reader sees are the bytes that the run kept


def strips(page: str) -> list[tuple[str, Any]]:
    """Alt text and RGBA pixels of every picture in a page."""
    found = []
    for tag, attributes in Page(page).tags:
        if tag == "img":
            data = base64.b64decode((attributes["src"] or "").removeprefix("data:image/png;base64,"))
            found.append((attributes["alt"] or "", np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))))
    return found


def cells(strip: Any, count: int) -> list[Any]:
    """The cells of a strip: what is between the see-through gaps."""
    solid = strip[0, :, 3] == 255
    edges = np.flatnonzero(np.diff(np.concatenate([[0], solid.astype(int), [0]])))
    assert len(edges) == 2 * count
    return [strip[:, a:b, :3] for a, b in zip(edges[::2], edges[1::2], strict=True)]


def test_pixels_on_the_page(page: str, compressed: Any) -> None:
    found = load_pictures(compressed.folder / "round-01" / "pictures.safetensors")
    assert found is not None
    shown = strips(page)
    assert len(shown) == sum(1 + len(unit.maps) for unit in found.units)
    viridis = 255 * np.array(colormaps["viridis"].colors)  # type: ignore[attr-defined]  # of each byte
    for unit in found.units:
        (alt, images), *rows = shown[: 1 + len(unit.maps)]
        shown = shown[1 + len(unit.maps) :]
        assert alt == "Input images: 0, 1, 2."
        for cell, image in zip(cells(images, 3), found.images, strict=True):
            step = len(cell) // len(image)
            assert np.array_equal(cell[::step, ::step], np.broadcast_to(image, (*image.shape[:2], 3)))
        for (alt, strip), maps, channel in zip(rows, unit.maps, unit.shown, strict=True):
            fate = "removed" if channel.removed else "kept"
            assert alt.startswith(f"Responses of channel {channel.channel} of {unit.unit} ({fate}) to images of 0, 1")
            for cell, each in zip(cells(strip, 3), maps, strict=True):
                step = len(cell) // len(each)
                assert np.abs(cell[::step, ::step] - viridis[each]).max() <= 1


def test_a_page_without_pictures_classes_and_rounds(run: Path, page: str) -> None:
    path = run / "round-01" / "pictures.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(FileError, match=r"round-01.pictures\.safetensors"):
        write_report(run)
    path.unlink()
    values = read(run / "classes.json")["after"]["values"]
    text = Page(page).text
    assert "Accuracy of each class" in text and f"{100 * values[0]:.1f}%" in text
    (run / "classes.json").unlink()
    change_json(run / "summary.json", lambda summary: summary.update(rounds=[]))  # all rounds were taken back
    less = write_report(run).read_text(encoding="utf-8")
    assert "<img" not in less and "Responses of removed" not in less and "<h2>Layers</h2>" in less
    assert "Accuracy of each class" not in Page(less).text
    assert not charts(less, "rounds") and len(bar_charts(less, "widths")) == 1


def test_files_to_save_have_the_figures_of_the_run(compressed: Any) -> None:
    files, summary = run_files(read_run(compressed.folder)), read(compressed.folder / "summary.json")
    assert list(files) == ["run.json", "layers.csv", "units.csv", "rounds.csv", "epochs.csv", "classes.csv"]
    whole = json.loads(files["run.json"])
    for key in ("rounds", "layers", "units", "versions", "quality", "after"):
        assert whole[key] == summary[key]
    rows = {name: list(csv.reader(io.StringIO(text))) for name, text in files.items() if name.endswith("csv")}
    head, *layers = rows["layers.csv"]
    assert head[:5] == ["layer", "inputs before", "inputs after", "outputs before", "outputs after"]
    assert [(row[0], [int(v) for v in row[5:7]]) for row in layers] == [
        (name, layer["macs"]) for name, layer in summary["layers"].items()
    ]
    wanted = [(r["number"], e["number"], e["lr"], e["loss"]) for r in summary["rounds"] for e in r["retraining"]]
    assert [(int(a), int(b), float(c), float(d)) for a, b, c, d, *_ in rows["epochs.csv"][1:]] == wanted and wanted
    values = read(compressed.folder / "classes.json")["after"]["values"]
    assert [float(row[3]) for row in rows["classes.csv"][1:]] == values


# -- sentences, against sentences written by hand


@pytest.fixture
def told(compressed: Any) -> FinishedRun:
    """A run with figures that can be worked out by hand."""
    units = {
        "a:out": UnitFigures("private", 16, 6),
        "b:in": UnitFigures("stream", 8, 8),
        "c:out": UnitFigures("private", 64, 9),
    }
    held, tested = Evaluation(0.96, 0.1, 50), Evaluation(0.95, 0.2, 200)
    was = NetworkFigures(held, tested, 1000, 400, 2000)
    held, tested = Evaluation(0.94, 0.1, 50), Evaluation(0.93, 0.2, 200)
    now = NetworkFigures(held, tested, 500, 100, 600)
    removed = {"macs": 0.5, "params": 0.75}
    return changed(
        read_run(compressed.folder),
        units=units,
        before=was,
        after=now,
        speeds=(timed(3.0, 2.5, 3.25),),
        removed=removed,
    )


def timed(ratio: float, low: float, high: float, engine: str = "onnxruntime") -> EngineSpeed:
    """A row of the final timing: 30 ms before."""
    return EngineSpeed(engine, 1, 1, 0.03, 0.03 / ratio, ratio, low, high, "processor")


def changed(run: FinishedRun, **summary: Any) -> FinishedRun:
    """The run with another summary."""
    return replace(run, summary=replace(run.summary, **summary))


def side(run: FinishedRun, name: str, **figures: Any) -> FinishedRun:
    """The run with other figures before or after."""
    return changed(run, **{name: replace(getattr(run.summary, name), **figures)})


QUALITY = "95.00% → 93.00% test accuracy."


@pytest.mark.parametrize(
    ("speeds", "verdict", "title"),
    [
        ((3.0, 2.5, 3.25), "3.00x as fast in onnxruntime at batch 1 (2.50 to 3.25), ", "3.00x as fast, "),
        ((0.65, 0.6, 0.7), "Slower in onnxruntime at batch 1: 0.65x (0.60 to 0.70), ", "slower (0.65x), "),
        ((1.02, 0.97, 1.08), "No measurable difference in onnxruntime at batch 1 (0.97 to 1.08), ", None),
        ((), "50.0% of the MACs removed, speed not measured, ", ""),
    ],
)
def test_the_verdict_is_about_speed(told: FinishedRun, speeds: Any, verdict: str, title: str | None) -> None:
    run = changed(told, speeds=(timed(*speeds), timed(3.0, 2.5, 3.25, "eager")) if speeds else ())
    assert sentences.verdict(run) == f"{verdict}{QUALITY}"
    if title is not None:
        assert sentences.title(run) == f"resnet8 on folder:pictures, pruned: {title}50.0% of the MACs removed"


def test_the_verdict_without_test_images_and_without_a_cut(told: FinishedRun) -> None:
    untested = side(told, "before", test=None)
    assert sentences.verdict(untested).endswith(", 96.00% → 94.00% held-out accuracy.")
    whole = changed(told, units={name: replace(u, kept=u.width) for name, u in told.summary.units.items()})
    assert sentences.verdict(whole).startswith("Nothing was removed: the network is as it was, 95.00% → ")
    assert sentences.title(whole) == "resnet8 on folder:pictures: nothing was removed"
    assert sentences.what_was_removed(whole) == "No channels were removed."


def test_what_was_removed(told: FinishedRun) -> None:
    assert sentences.what_was_removed(told) == (
        "65 of 88 channels in 2 rounds, from c:out (from 64 channels to 9) and a:out (from 16 channels to 6). "
        "1 of 3 units kept all channels."
    )
    many = {f"u{i}": UnitFigures("private", 10, 9 - i) for i in range(5)}
    assert sentences.what_was_removed(changed(told, units=many)) == (
        "15 of 50 channels in 2 rounds, most of them from u4 (from 10 channels to 5), u3 (from 10 channels to 6) and "
        "u2 (from 10 channels to 7); the others from 2 other units."
    )
