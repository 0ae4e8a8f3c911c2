"""Checkpoints: resumed runs end bit for bit where unbroken ones end, and bad files are named."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from prunus.errors import FileError, RunError
from prunus.tasks.evaluate import Evaluation
from prunus.train.checkpoint import NAME, Epoch, digest
from prunus.train.fit import fit
from prunus.train.settings import Preset
from tests.proof import same_state
from tests.train.toys import batches, network, shuffled

SETTINGS = Preset("short", epochs=4, lr=0.1, batch_size=8)


class Stop(Exception):
    """Raised from inside a run."""


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(108, 108), nn.Linear(108, 108)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x.flatten(1)))[:, :4]  # type: ignore[no-any-return]


def tied() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Tied()


def nudged() -> nn.Module:
    other = network(0.4)
    with torch.no_grad():
        other[5].bias[0] += 1e-6
    return other


def run(folder: Path | None, stop_after: int = 0, make: Any = None, train: Any = None, **options: Any) -> Any:
    def stop(epoch: Epoch) -> None:
        if epoch.number == stop_after:
            raise Stop

    model = network(dropout=0.4) if make is None else make()
    arguments = {"preset": SETTINGS, "checkpoint_dir": folder, "on_epoch": stop, **options}
    return fit(model, train or batches(5), batches(2, seed=3), **arguments)


MANY = {"train": shuffled(), "teacher": network(), "views": 2, "ema": 0.9, "keep_best": True}


@pytest.mark.parametrize(
    "options, stop_after",
    [
        ({}, 3),
        (MANY, 1),
        (MANY, 3),
        ({"make": tied, "lr": 0.01}, 3),
        ({"sparsity": 0.05, "sparsity_by": "proximal"}, 1),
        ({"soft_prune": 0.5, "sparsity": 0.05}, 1),
    ],
)
def test_a_broken_run_ends_as_an_unbroken_one(tmp_path: Path, options: dict[str, Any], stop_after: int) -> None:
    whole = run(None, **options)
    with pytest.raises(Stop):
        run(tmp_path, stop_after, **options)
    if options:
        with pytest.raises(RunError, match="belongs to another run"):
            run(tmp_path)
    epochs: list[int] = []
    resumed = run(tmp_path, **options, on_epoch=lambda epoch: epochs.append(epoch.number))
    assert epochs == list(range(stop_after + 1, 5))
    assert same_state(resumed.model, whole.model) and resumed.kept == whole.kept
    assert [e.loss for e in resumed.history] == [e.loss for e in whole.history]
    assert [e.holdout for e in resumed.history] == [e.holdout for e in whole.history]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [1, 2, 3, 4]


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    tensors = load_file(tmp_path / NAME)  # weights and momentum, and no pickle
    names = [name for name, _ in first.model.named_parameters()]
    assert {f"momentum.{name}" for name in names} == {name for name in tensors if name.startswith("momentum.")}
    assert all(torch.equal(tensors[f"model.{name}"], tensor) for name, tensor in first.model.state_dict().items())
    assert float(tensors["momentum.5.weight"].abs().sum()) > 0
    (tmp_path / "metrics.jsonl").unlink()  # as if killed after the last checkpoint
    again = run(tmp_path, stop_after=4)  # no epoch is left in which to stop
    assert same_state(first.model, again.model) and again.history == first.history
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    before = (tmp_path / NAME).read_bytes()
    changes: list[tuple[dict[str, Any], str]] = [
        ({"seed": 9}, "seed was 0 and is now 9"),
        ({"lr": 0.2}, "lr was 0.1 and is now 0.2"),
        ({"teacher": network()}, "teacher was None and is now"),
        ({"channels_last": False}, "channels_last was True and is now False"),
        ({"about": {"augment": True}}, "augment was None and is now True"),
        ({"first_epoch": 3}, "first_epoch was 0 and is now 3"),
        ({"make": nudged}, "initial weights was"),
    ]
    for change, message in changes:
        with pytest.raises(RunError, match=f"belongs to another run.*{message}"):
            run(tmp_path, **change)
    assert (tmp_path / NAME).read_bytes() == before
    left, right = network(), network()
    right[1].running_mean[0] = 1e-7  # type: ignore[union-attr, operator, index]
    assert digest(left) == digest(network()) != digest(right) and digest(None) is None


def test_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    run(tmp_path)
    whole = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(whole[:-100])
    with pytest.raises(FileError, match=rf"{NAME} is damaged.*delete it"):
        run(tmp_path)
    save_file({"x": torch.zeros(2)}, tmp_path / NAME)
    with pytest.raises(FileError, match="is not a training checkpoint"):
        run(tmp_path)


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stop):
        run(tmp_path, stop_after=2)
    before = (tmp_path / NAME).read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(FileError, match="cannot be written: No space left on"):
        patch.setattr(os, "fsync", full)
        run(tmp_path)
    assert (tmp_path / NAME).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME, "metrics.jsonl"]
    assert same_state(run(tmp_path).model, run(None).model)


class Scripted:
    """An evaluation that gives each state of the network, in the order they come, the next figure."""

    def __init__(self, *figures: float) -> None:
        self.figures, self.seen = figures, list[str]()

    def __call__(self, model: nn.Module, _loader: Any) -> Evaluation:
        found = digest(model)
        assert found is not None
        if found not in self.seen:
            self.seen.append(found)
        return Evaluation(self.figures[self.seen.index(found)], 0.0, 16)


@pytest.mark.parametrize(
    ("figures", "best"),
    [((0.5, 0.6, 0.9, 0.7, 0.8), 2), ((0.9, 0.1, 0.2, 0.3, 0.8), 0), ((0.5, 0.5, 0.5, 0.4, 0.3), 2)],
)
def test_the_best_epoch_is_returned_also_after_an_interruption(
    figures: tuple[float, ...], best: int, tmp_path: Path
) -> None:
    script = Scripted(*figures)
    options: dict[str, Any] = {"keep_best": True, "evaluate": script}
    whole = run(None, **options)
    assert whole.kept == best and digest(whole.model) == script.seen[best]
    assert [epoch.holdout.quality for epoch in whole.history] == list(figures[1:])
    with pytest.raises(Stop):
        run(tmp_path, 3, **options)
    for _ in range(2):
        resumed = run(tmp_path, **options)
        assert resumed.kept == best and digest(resumed.model) == digest(whole.model)
    assert len(script.seen) == 5  # no state of the network that the unbroken run did not have
