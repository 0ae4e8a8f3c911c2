"""The pictures that a run keeps, against maps that plain forward hooks see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from prunus.errors import FileError
from prunus.plots.run_pictures import load_pictures
from prunus.run.compress import compress
from prunus.run.report_files import class_names
from prunus.score.scores import load_scores
from prunus.tasks.evaluate import Evaluation, evaluate
from tests.plots.test_feature_maps import entering
from tests.run.toys import HOLDOUT, TRAIN, run, trained

READERS = {"conv1:in": "conv1", "conv1:out": "conv2", "wide:in": "wide", "wide:out": "fc"}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(tmp_path_factory.mktemp("pictures") / "run")


def test_bytes_are_the_maps(done: Any) -> None:
    folder: Path = done.folder / "round-01"
    found = load_pictures(folder / "pictures.safetensors")
    assert found is not None and found.units
    images, labels = HOLDOUT[0]
    # The first image of each class that is met, in the order of the classes.
    first = [labels.tolist().index(label) for label in sorted(dict.fromkeys(labels.tolist()))]
    assert found.labels == tuple(str(int(labels[i])) for i in first)
    colours = images[first]
    low, high = colours.amin((1, 2, 3), keepdim=True), colours.amax((1, 2, 3), keepdim=True)
    expected = (255 * (colours - low) / (high - low)).permute(0, 2, 3, 1).numpy()
    assert np.abs(found.images - expected).max() <= 0.51
    scores = next(iter(load_scores(folder).values()))
    lost = done.rounds[0].chosen
    for unit in found.units:
        maps = entering(trained(), READERS[unit.unit], images[first])
        maps = maps.reshape(len(first), -1, 4, 4) if unit.unit == "wide:out" else maps
        values = scores.values[unit.unit]
        channels = [shown.channel for shown in unit.shown]
        weak = [shown.channel for shown in unit.shown if shown.removed]
        assert (
            len(weak) == min(2, lost[unit.unit]) and channels[: len(weak)] == np.argsort(values)[: len(weak)].tolist()
        )
        assert channels[len(weak) :] == np.argsort(values)[-2:].tolist()
        assert [shown.score for shown in unit.shown] == pytest.approx(values[channels].tolist())
        mine = maps[:, channels].numpy()  # [N, channels, height, width]
        assert (unit.low, unit.high) == pytest.approx((mine.min(), mine.max()), abs=1e-5)
        levels = 255 * (mine - mine.min()) / (mine.max() - mine.min())
        assert np.abs(unit.maps - levels.transpose(1, 0, 2, 3)).max() <= 0.51
        means = [shown.means for shown in unit.shown]
        assert np.allclose(means, mine.mean((2, 3)).T, atol=1e-5)


def test_small_and_only_in_the_first_round(done: Any) -> None:
    assert (done.folder / "round-01" / "pictures.safetensors").stat().st_size < 200_000
    assert not (done.folder / "round-02" / "pictures.safetensors").exists()


def test_batches_that_only_the_users_function_can_read(tmp_path: Path) -> None:
    odd = [(images, labels, "and more") for images, labels in HOLDOUT]

    def own(model: nn.Module, batches: Any) -> Evaluation:
        return evaluate(model, [(images, labels) for images, labels, _ in batches])

    settings: dict[str, Any] = {"ratio": 0.3, "epochs": 0, "metric": "l1"}
    result = compress(trained(), TRAIN, odd, evaluate=own, folder=tmp_path / "run", **settings)
    assert result.rounds[0].chosen and not (tmp_path / "run" / "round-01" / "pictures.safetensors").exists()


class Named(list[Any]):
    """A loader that knows what its classes are called."""

    classes = ("north", "east", "south", "west")


def test_classes_go_by_their_names(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"ratio": 0.3, "epochs": 0, "metric": "l1"}
    compress(trained(), TRAIN, Named(HOLDOUT), folder=tmp_path / "run", **settings)
    found = load_pictures(tmp_path / "run" / "round-01" / "pictures.safetensors")
    assert found is not None and found.labels == Named.classes
    few = Named([(images, labels + 4) for images, labels in HOLDOUT])  # more labels than names: the numbers it is
    assert class_names(few, 8) is None and class_names(few, 4) == list(Named.classes)


def test_a_broken_file_is_named(done: Any, tmp_path: Path) -> None:
    assert load_pictures(tmp_path / "none.safetensors") is None
    content = (done.folder / "round-01" / "pictures.safetensors").read_bytes()
    (tmp_path / "broken.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(FileError, match=r"broken\.safetensors"):
        load_pictures(tmp_path / "broken.safetensors")
    (tmp_path / "other.safetensors").write_bytes(content.replace(b"prunus-pictures", b"prunus-pastries"))
    with pytest.raises(FileError, match="prunus-pictures"):
        load_pictures(tmp_path / "other.safetensors")
