"""Pictures of channels: projections against numpy and scipy, maps against plain hooks, files as promised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
import typer
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

import secateur as sc
from secateur import studies
from secateur.cli import show
from secateur.errors import DataError, ScoreError
from secateur.pictures.image_choice import images_of, spread_classes
from secateur.pictures.projections import discriminant_axes, nearest_to_own_class, principal_axes
from secateur.pictures.unit_choice import find_unit
from secateur.zoo.models import create
from tests.pictures.test_feature_maps import entering
from tests.running.toys import HOLDOUT, TRAIN, trained

EXAMPLE = torch.zeros(1, 3, 6, 6)


def blobs(images: int, pixels: int, classes: int = 4) -> tuple[Any, Any]:
    """Classes around means of their own, with pixels that depend on each other, one of which never varies."""
    draw = np.random.default_rng(5)
    labels = np.arange(images) % classes
    mixing = draw.normal(size=(pixels, pixels))
    x = (draw.normal(size=(images, pixels)) + 1.5 * draw.normal(size=(classes, pixels))[labels]) @ mixing
    x[:, 3] = 7.0
    return x, labels


def same_up_to_sign(a: Any, b: Any) -> None:
    signs = np.sign((a * b).sum(0))
    assert a == pytest.approx(b * signs, rel=1e-6, abs=1e-8 * np.abs(b).max())


def test_principal_components_are_those_of_the_covariance() -> None:
    x, _ = blobs(200, 9)
    values, vectors = np.linalg.eigh(np.cov(x.T))
    axes = principal_axes(x)
    same_up_to_sign(axes.directions, vectors[:, np.argsort(-values)[:2]])
    assert axes(x).var(0, ddof=1) == pytest.approx(np.sort(values)[::-1][:2])
    assert (axes.directions[np.abs(axes.directions).argmax(0), [0, 1]] > 0).all()  # always facing the same way


def fisher(x: Any, labels: Any) -> Any:
    """x on the two directions with the largest w^T S_B w / w^T S_W w, by scipy's generalised eigenvectors."""
    means = np.stack([x[labels == c].mean(0) for c in range(4)])[labels]
    within, between = np.cov((x - means).T), np.cov(means.T)
    _, vectors = scipy.linalg.eigh(between, within)
    return (x - x.mean(0)) @ vectors[:, [-1, -2]]


def test_discriminants_maximise_the_ratio_of_scatters() -> None:
    x, labels = blobs(200, 9)
    found = discriminant_axes(x, labels)(x)
    expected = fisher(np.delete(x, 3, 1), labels)  # without the pixel that never varies, which has no scatter
    same_up_to_sign(found / found.std(0), expected / expected.std(0))
    inside = found - np.stack([found[labels == c].mean(0) for c in range(4)])[labels]
    assert np.corrcoef(inside.T) == pytest.approx(np.eye(2), abs=1e-9)
    assert inside[:, 0].std() == pytest.approx(inside[:, 1].std())  # in units of the spread within classes


def test_more_pixels_than_images_are_reduced_first() -> None:
    x, labels = blobs(60, 100)
    left, spread, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    components = (60 - 4) // 4
    expected = fisher(left[:, :components] * spread[:components], labels)
    found = discriminant_axes(x, labels)(x)
    same_up_to_sign(found / found.std(0), expected / expected.std(0))


def test_maps_that_never_vary_stay_in_one_point() -> None:
    x, labels = np.full((20, 9), 2.0), np.arange(20) % 4
    for axes in (principal_axes(x), discriminant_axes(x, labels)):
        assert not axes(x).any()


def test_nearest_to_the_own_class() -> None:
    fitted, labels = np.array([[0.0, 0], [0, 2], [10, 0], [10, 2]]), np.array([3, 3, 8, 8])
    drawn = np.array([[1.0, 1], [9, 1], [4, 1], [6, 9]])
    assert nearest_to_own_class(fitted, labels, drawn, np.array([3, 8, 8, 8])) == 0.75


def test_which_unit_is_meant() -> None:
    graph = sc.trace(trained(), EXAMPLE)
    assert find_unit(graph, "conv1:out") == find_unit(graph, "conv1") == "conv1:out"
    assert find_unit(graph, "conv2") == "conv1:out"  # conv2 writes to the stream: what it reads
    assert find_unit(graph) == "wide:out"  # the second private one
    assert find_unit(sc.trace(create("lenet5"), torch.zeros(1, 1, 32, 32))) == "conv2:out"
    with pytest.raises(ScoreError, match="'wide_out': did you mean wide:out"):
        find_unit(graph, "wide_out")


def test_images_of_classes() -> None:
    assert spread_classes(10, 3) == [0, 4, 9] and spread_classes(2, 9) == [0, 1]
    batches = [(torch.full((2, 1, 1, 1), float(i)), torch.tensor([i % 3, 9])) for i in range(7)]
    images, labels = images_of(batches, [2, 1], 2)
    assert labels.tolist() == [2, 2, 1, 1] and images.flatten().tolist() == [2, 5, 1, 4]
    with pytest.raises(DataError, match="no image of class 5"):
        images_of(batches, [5], 1)


@pytest.fixture(scope="module")
def gsd() -> Any:
    return sc.score(sc.trace(trained(), EXAMPLE), TRAIN, metric="gsd").values


def test_separation_shows_the_maps_and_their_projections(gsd: Any) -> None:
    model = trained()
    found = studies.separation(
        sc.trace(model, EXAMPLE), TRAIN, HOLDOUT, [0, 1, 2, 3], layer="conv1", each=2, points=20, num_images=None
    )
    images, labels = (torch.cat(parts) for parts in zip(*HOLDOUT, strict=True))
    places = [torch.nonzero(labels == c)[:20, 0] for c in range(4)]
    maps = entering(model, "conv2", images)  # [N, 24, 6, 6]
    values = gsd["conv1:out"]
    loud = [c for c in np.argsort(values) if maps[torch.cat([p[:2] for p in places]), c].unique().numel() > 1]
    assert (found.weak.channel, found.strong.channel) == (loud[0], loud[-1])
    assert found.silent == tuple(sorted(set(range(24)) - set(loud)))
    for seen in (found.weak, found.strong):
        assert seen.score == pytest.approx(values[seen.channel])
        for c in range(4):
            assert np.array_equal(seen.maps[c], maps[places[c][:2], seen.channel].numpy())
        flat = maps[torch.cat(places), seen.channel].flatten(1).double().numpy()
        _, _, rows = np.linalg.svd(flat[::2] - flat[::2].mean(0))  # half to fit, half to draw
        expected = (flat[1::2] - flat[::2].mean(0)) @ rows[:2].T
        same_up_to_sign(seen.projections["PCA"].points, expected)
        assert set(seen.projections) == {"PCA", "LDA"}
    assert np.array_equal(found.labels, np.repeat(np.arange(4), 10))
    given = studies.separation(
        sc.trace(model, EXAMPLE), TRAIN, HOLDOUT, [0, 1], layer="conv1", weak=7, strong=7, each=1, points=4
    )
    assert given.weak.channel == given.strong.channel == 7
    assert set(given.weak.projections) == {"PCA"}  # two classes have one discriminant only
    with pytest.raises(ScoreError, match="0 to 23, but not 24"):
        studies.separation(sc.trace(model, EXAMPLE), TRAIN, HOLDOUT, [0, 1], layer="conv1", weak=24)


def test_averages_are_over_the_strongest(gsd: Any) -> None:
    model = trained()
    graph = sc.trace(model, EXAMPLE)
    found = studies.channels_shown(graph, TRAIN, HOLDOUT, [3, 1], layer="conv1", top=5, skip=1, num_images=None)
    images, labels = (torch.cat(parts) for parts in zip(*HOLDOUT, strict=True))
    second = [int(torch.nonzero(labels == c)[1, 0]) for c in (3, 1)]
    maps = entering(model, "conv2", images[second]).numpy()  # [2, 24, 6, 6]
    norms = model.conv1.weight.detach().abs().sum((1, 2, 3)).numpy()  # type: ignore[union-attr,operator]
    by_hand = {"l1": norms, "gsd": gsd["conv1:out"]}
    assert list(found.averages) == ["l1", "bn_scale", "fpgm", "di", "gsd"]
    for metric, values in by_hand.items():
        best = np.argsort(values)[::-1][:5]
        assert found.strongest[metric] == tuple(best)
        assert found.averages[metric] == pytest.approx(maps[:, best].mean(1), abs=1e-5)
        assert found.scores[metric] == pytest.approx(tuple(values), rel=1e-5)
    loud = [c for c in np.argsort(by_hand["gsd"]) if np.ptp(maps[:, c]) > 0]
    assert (found.weak, found.strong) == (loud[0], loud[-1])
    assert np.array_equal(found.weak_maps, maps[:, loud[0]]) and np.array_equal(found.strong_maps, maps[:, loud[-1]])
    assert found.notes == (  # no norm comes between conv1 and conv2 there
        "These channels pass through no batch norm of their own: the filters' L2 norm is used instead.",
    )
    assert len(graph.units) == 4  # the view on one unit is not the caller's graph


def secateur(*words: str | Path) -> Any:
    app = typer.Typer()
    app.add_typer(show.app, name="show")
    return CliRunner().invoke(app, ["show", *map(str, words)])


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "lenet5.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(create("lenet5").state_dict(), path)
    return path


@pytest.mark.parametrize(
    ("verb", "words", "text"),
    [
        ("separation", "--points 12 --each 2", "LDA 1"),
        ("channels", "--rows 3 --metrics l1,gsd --top 4", "by L1 norm"),
    ],
)
def test_the_verbs(verb: str, words: str, text: str, weights: Path, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        options = f"--num-images 100 --device cpu {words}".split()
        done = secateur(verb, "lenet5", "--weights", weights, *options, "--out", tmp_path / folder)
        assert done.exit_code == 0, done.output
        assert f"written: {tmp_path / folder / verb}.png" in done.output and "conv2:out" in done.output
    with Image.open(tmp_path / "one" / f"{verb}.png") as picture:
        assert picture.size[0] == 1400  # 7 inches, both columns of a paper, at 200 dots an inch
    drawing = (tmp_path / "one" / f"{verb}.svg").read_text(encoding="utf-8")
    assert text in drawing and "G-SD" in drawing  # text stays text
    assert json.loads((tmp_path / "one" / f"{verb}.json").read_text())["unit"] == "conv2:out"
    for ending in ("png", "svg", "json"):
        assert (tmp_path / "one" / f"{verb}.{ending}").read_bytes() == (
            tmp_path / "two" / f"{verb}.{ending}"
        ).read_bytes()


def test_without_arguments_the_demos_network(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = Path("runs/base-resnet8-digits/model.safetensors")
    kept.parent.mkdir(parents=True)
    save_file(create("resnet8", num_classes=10, in_channels=1).state_dict(), kept)
    done = secateur("channels", "--num-images", "40", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "layer2.0.conv1:out: by gsd, channel" in done.output
    assert Path("runs/show-resnet8-digits/channels.png").exists()


def test_what_is_wrong_is_said(weights: Path) -> None:
    done = secateur("channels", "lenet5", "--weights", weights, "--layer", "conv9")
    assert done.exit_code == 1 and "did you mean conv" in done.output
    assert secateur("channels", "lenet5", "--part", "tests").exit_code == 1
