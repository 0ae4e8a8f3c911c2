"""Scores as values and as files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from prunus.errors import FileError, ScoreError
from prunus.scoring.scores import Scores, load_scores, rank_correlation, save_scores

A = Scores("gsd", {"x:out": np.array([3.0, 1.0, 2.0]), "y:out": np.array([0.5, 0.5, -1.0, 4.0])}, 30, {"ridge": 0.05})
B = Scores("l1", {"x:out": np.array([1.0, 2.0, 3.0]), "y:out": np.array([1.0, 2.0, 2.0, 9.0])})


def test_order_is_from_weak_to_strong_and_ties_by_number() -> None:
    assert A.order("x:out").tolist() == [1, 2, 0]
    assert A.order("y:out").tolist() == [2, 0, 1, 3]


def test_some_units_only() -> None:
    assert list(A.of_units(["y:out"]).values) == ["y:out"]
    with pytest.raises(ScoreError, match="no unit 'z'; they have x:out, y:out"):
        A.of_units(["z"])


def test_rank_correlation_is_spearmans_mean_over_units() -> None:
    """By hand. x: ranks 3 1 2 and 1 2 3, 1 - 6 (4 + 1 + 1) / 24. y: ranks 2.5 2.5 1 4 and 1 2.5 2.5 4, 2.25 / 4.5."""
    assert rank_correlation(A.of_units(["x:out"]), B) == pytest.approx(-0.5)
    assert rank_correlation(A.of_units(["y:out"]), B) == pytest.approx(0.5)
    assert rank_correlation(A, B) == pytest.approx(0.0) and rank_correlation(A, A) == pytest.approx(1.0)
    flat = Scores("flat", {"x:out": np.ones(3), "y:out": np.array([1.0, 2.0, 3.0, 4.0])})
    assert rank_correlation(A, flat) == pytest.approx(rank_correlation(A.of_units(["y:out"]), flat))
    assert np.isnan(rank_correlation(flat.of_units(["x:out"]), A))


def test_a_short_table_is_shown() -> None:
    title, header, first, second = repr(A).splitlines()
    assert title == "Scores by gsd: 2 units, 30 images; higher means keep"
    assert header.split() == ["unit", "channels", "lowest", "median", "highest"]
    assert first.split() == ["x:out", "3", "1", "2", "3"] and second.split() == ["y:out", "4", "-1", "0.5", "4"]
    many = Scores("l1", {f"layer{i}:out": np.arange(200.0) for i in range(50)})
    assert len(repr(many).splitlines()) < 20 and " more" in repr(many)


def test_files_there_and_back(tmp_path: Path) -> None:
    save_scores({"gsd": A, "l1": B}, tmp_path / "deep" / "folder")
    found = load_scores(tmp_path / "deep" / "folder")
    assert list(found) == ["gsd", "l1"]
    assert found["gsd"].options == {"ridge": 0.05} and found["gsd"].num_images == 30
    for name, scores in (("gsd", A), ("l1", B)):
        assert found[name].values.keys() == scores.values.keys()
        for unit in scores.values:
            np.testing.assert_array_equal(found[name].values[unit], scores.values[unit])
    assert sorted(p.name for p in (tmp_path / "deep" / "folder").iterdir()) == ["scores.json", "scores.safetensors"]


def test_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"scores\.json is missing"):
        load_scores(tmp_path)
    save_scores({"gsd": A}, tmp_path)
    about = json.loads((tmp_path / "scores.json").read_text())
    (tmp_path / "scores.json").write_text(json.dumps({**about, "metrics": {}}))
    with pytest.raises(FileError, match=r"has scores by 'gsd', which scores\.json does not name"):
        load_scores(tmp_path)
    (tmp_path / "scores.json").write_text(json.dumps({**about, "format": "other"}))
    with pytest.raises(FileError, match="not a prunus-scores file"):
        load_scores(tmp_path)
    (tmp_path / "scores.json").write_text(json.dumps(about))
    whole = (tmp_path / "scores.safetensors").read_bytes()
    (tmp_path / "scores.safetensors").write_bytes(whole[:-9])
    with pytest.raises(FileError, match="cannot read scores from"):
        load_scores(tmp_path)
