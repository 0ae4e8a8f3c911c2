"""A YOLO pruned on the command line, then trained, validated, asked and exported by ultralytics. Run by `make zoo`."""

from __future__ import annotations

import importlib
import re
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prunus as pr
from prunus.errors import FileError, ModelError
from prunus.zoo.models import create
from prunus.zoo.weights import load_weights, read_tensors
from tests.cli.command_line import prunus
from tests.networks import from_torchvision
from tests.tasks.scenes import write_yolo

pytestmark = pytest.mark.zoo
SIDE = 64
HOW: dict[str, Any] = {"imgsz": SIDE, "device": "cpu", "workers": 0, "plots": False, "verbose": False}


@pytest.fixture(autouse=True)
def _quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from_torchvision.library()  # ultralytics imports torchvision, whose wheel may not fit
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ultralytics' own, about itself
        yield


def outputs(model: Any, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(images)[0]  # type: ignore[no-any-return]


def widths(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def test_from_a_checkpoint_to_an_exported_file(tmp_path: Path) -> None:
    ultralytics = importlib.import_module("ultralytics")
    write_yolo(tmp_path / "scenes", {"train": 12, "val": 6})
    data = {"data": str(tmp_path / "scenes" / "data.yaml"), "project": str(tmp_path / "out"), **HOW}
    trained = ultralytics.YOLO("yolov8n.yaml")
    trained.train(epochs=1, batch=6, amp=False, val=False, **data)
    best = Path(trained.trainer.best if trained.trainer.best.exists() else trained.trainer.last)
    # A pickle of a whole network: its tensors are read, without its class.
    original = create("yolo:yolov8n.yaml", num_classes=2)
    load_weights(original, best)
    images = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    want = outputs(ultralytics.YOLO(best).model.float(), images)
    assert torch.allclose(outputs(original, images), want, atol=1e-4)

    folder = tmp_path / "run"
    command = ["prune", "yolo:yolov8n.yaml", "--weights", best, "--data", "folder:scenes/data.yaml", "--size", SIDE]
    goal = ["--target", 0.4, "--holdout", "train:0.34", "--no-timing", "--out", folder]
    done = prunus(*map(str, [*command, *goal]))
    assert done.exit_code in (0, 3), done.output
    assert "AP50-95" in done.output
    small = pr.ultralytics.network(folder)
    assert sum(p.numel() for p in small.parameters()) < 0.85 * sum(p.numel() for p in original.parameters())
    assert small.names == {0: "square", 1: "bar"} and small.stride.tolist() == [8, 16, 32]  # type: ignore[union-attr, operator]

    yolo = pr.ultralytics.yolo(folder)
    found = outputs(yolo.model, images)
    fused = outputs(pr.ultralytics.yolo(folder).model.fuse(verbose=False), images)
    assert torch.allclose(fused, found, atol=1e-3 * float(found.abs().max()))
    measured = yolo.val(**data)
    assert 0 <= measured.box.map <= 1
    assert len(yolo.predict(str(tmp_path / "scenes" / "images" / "val"), save=False, **HOW)) == 6
    before = {name: p.detach().clone() for name, p in yolo.model.named_parameters()}
    yolo.train(epochs=1, batch=6, amp=False, optimizer="SGD", lr0=0.01, warmup_epochs=0, **data)
    assert widths(yolo.trainer.model) == {name: tuple(p.shape) for name, p in before.items()}
    moved = [name for name, p in yolo.trainer.model.named_parameters() if not torch.equal(p.detach(), before[name])]
    assert len(moved) > 0.8 * len(before)
    # What ultralytics saved is the pruned network, and so is what it exports.
    again = ultralytics.YOLO(yolo.trainer.last)
    assert widths(again.model) == widths(yolo.trainer.model)
    file = Path(again.export(format="onnx", simplify=False, imgsz=SIDE))
    session = importlib.import_module("onnxruntime").InferenceSession(file)
    got = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: images[:1].numpy()})[0])
    wanted = outputs(again.model.float(), images[:1])
    assert torch.allclose(got, wanted, atol=1e-3 * float(wanted.abs().max()))
    # The same by the trainer alone, and trained weights are read back into the pruned network.
    other = ultralytics.YOLO("yolov8n.yaml")
    other.train(trainer=pr.ultralytics.trainer(folder), epochs=1, batch=6, amp=False, val=False, **data)
    assert widths(other.trainer.model) == widths(small)
    assert set(read_tensors(other.trainer.last)) == set(small.state_dict())


def test_what_cannot_be_handed_over(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected the configuration of a detector"):
        create("yolo:best.pt")
    with pytest.raises(ModelError, match="no such configuration"):
        create("yolo:yolo77n.yaml")
    with pytest.raises(ModelError, match="ends in Segment"):
        create("yolo:yolov8n-seg.yaml")
    with pytest.raises(ModelError, match="expected a network of ultralytics, got Linear"):
        pr.ultralytics.yolo(nn.Linear(2, 2))
    with pytest.raises(FileError, match="holds no finished run"):
        pr.ultralytics.yolo(tmp_path)
    model, images = create("yolo:yolov8n.yaml", num_classes=2), torch.rand(1, 3, SIDE, SIDE)
    graph = pr.trace(model, images, streams="select")
    selecting = pr.prune(graph, pr.uniform(graph, pr.score(graph, None, "l1"), 0.5, units=list(graph.units)))
    with pytest.raises(ModelError, match="--streams coupled"):
        pr.ultralytics.network(selecting)


def test_the_tutorial(tmp_path: Path) -> None:
    """Every line of the page, at a small size: commands as they are typed, and the Python."""
    page = (Path(__file__).parents[2] / "docs" / "tutorials" / "yolo.md").read_text(encoding="utf-8")
    for before, after in {"640": str(SIDE), "epochs=30": "epochs=1, batch=6, workers=0, plots=False"}.items():
        assert before in page
        page = page.replace(before, after)
    write_yolo(tmp_path, {"train": 12, "val": 8})
    torch.manual_seed(0)
    torch.save({"model": create("yolo:yolov8n.yaml", num_classes=2)}, tmp_path / "best.pt")
    commands = re.findall(r"^    prunus (.*)$", page, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["evaluate", "prune"]
    for command in commands:
        command = command.replace("--speedup 1.4", "--target 0.3 --no-timing")  # timing its layers takes minutes
        done = prunus(*shlex.split(command))
        assert done.exit_code in (0, 3) and "AP50" in done.output, done.output
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    known: dict[str, Any] = {}
    exec(compile(code.replace("target=0.3", "target=0.3, timing=False"), "yolo.md", "exec"), known)
    assert widths(known["yolo"].model) == widths(known["result"].model)
