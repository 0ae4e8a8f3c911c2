"""Charts of measurements: what they draw, from measurements made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from prunus.deciding.sensitivity import Sensitivity
from prunus.plots.charts import draw_sensitivity
from prunus.util.typed_json import from_data


def measured(measure: str, unit: str, base: float, values: dict[str, float], curves: bool = False) -> Sensitivity:
    """The value of each unit without 4 of its 16 channels; with curves, without 8 of them as well."""
    row = {"channels": 4, "width": 16, "accuracy": None, "loss": None, "saved": 1.0, "floss": 0.25, "num_images": 9}
    tried = {name: {**row, "unit": name, "value": value} for name, value in values.items()}
    lines = {name: [each, {**each, "channels": 8, "value": each["value"] - 0.1}] for name, each in tried.items()}
    record = {"split": "algorithm1", "measure": measure, "cost": "macs", "alpha": 2.0, "base_value": base, "unit": unit}
    record |= {"base_accuracy": None, "base_loss": None, "num_images": 9, "tried": tried}
    return from_data(Sensitivity, {**record, "curves": lines if curves else {}})


@pytest.mark.parametrize(
    ("measure", "unit", "curves", "shown"),
    [
        ("accuracy", "%", False, "held-out accuracy (%);a:out (-4);b:in (-4);not chosen;worth the same MACs"),
        ("loss", "", False, "held-out loss;unit (channels lost)"),
        ("R2", "", True, "held-out R2;channels removed from the unit (%);a:out"),
    ],
)
def test_sensitivity_says_what_it_shows(tmp_path: Path, measure: str, unit: str, curves: bool, shown: str) -> None:
    draw_sensitivity(measured(measure, unit, 0.9, {"a:out": 0.8, "b:in": 0.5}, curves), ["a:out"], tmp_path / "s.svg")
    text = (tmp_path / "s.svg").read_text()
    assert all(words in text for words in shown.split(";"))
