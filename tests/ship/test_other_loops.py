"""Networks of other libraries, pruned, repaired, saved, loaded, exported, and trained on in the library's own way.

`make zoo` runs this, with the libraries that it needs. Nothing is downloaded: weights are random and images are drawn.
"""

from __future__ import annotations

import csv
import importlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import prunus as pr
from prunus.util.batches import call
from tests.networks import from_torchvision

pytestmark = pytest.mark.zoo
RATIO = 0.5  # of the channels of every unit


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    from_torchvision.library()  # several libraries import torchvision, whose wheel may not fit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries' own, about themselves
        yield


def outputs(model: nn.Module, inputs: Any) -> list[Tensor]:
    with torch.no_grad():
        return [leaf for leaf in tree_leaves(call(model.eval(), inputs)) if isinstance(leaf, Tensor)]


def assert_same(mine: list[Tensor], others: list[Tensor]) -> None:
    assert len(mine) == len(others) > 0
    for a, b in zip(mine, others, strict=True):
        assert torch.allclose(a.float(), b.float(), atol=1e-4 * float(b.float().abs().max()) + 1e-6)


def smaller(make: Callable[[], nn.Module], example: Any, folder: Path, repair: Any = "bn") -> nn.Module:
    """The network with half of the channels, repaired, saved and loaded into a new one; all outputs are compared.

    Streams are coupled: libraries that build layers anew, as YOLO does to fold batch norms, would lose a selection.
    """
    model = make().eval()
    graph = pr.trace(model, example, streams="coupled")
    plan = pr.uniform(graph, pr.score(graph, None, "l1"), RATIO, units=list(graph.units))
    assert graph.cost(plan).macs < 0.65 * graph.macs
    small = pr.repair(graph, plan, [(example,)], how=repair).eval()
    pr.save(small, plan, folder)
    loaded = pr.load(folder, make()).eval()
    assert_same(outputs(loaded, example), outputs(small, example))
    parameters = [sum(p.numel() for p in each.parameters()) for each in (model, loaded)]
    assert parameters[1] < 0.75 * parameters[0]
    return loaded


def trained(model: nn.Module, loss: Callable[[nn.Module], Tensor], rate: float = 1e-3, steps: int = 6) -> None:
    """A few steps on one batch: every parameter gets a gradient, and the loss falls."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), rate)
    losses = []
    for _ in range(steps):
        value = loss(model)
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        assert [name for name, p in model.named_parameters() if p.grad is None] == []
        optimizer.step()
        losses.append(float(value.detach()))
    assert losses[-1] < losses[0]


def drawn(count: int, side: int, channels: int = 3) -> tuple[Tensor, Tensor]:
    """Noise with a bright square, and which pixels the square has."""
    draw = torch.Generator().manual_seed(0)
    images = 0.3 * torch.randn(count, channels, side, side, generator=draw)
    masks = torch.zeros(count, side, side, dtype=torch.long)
    for n in range(count):
        i, j = torch.randint(0, side // 2, (2,), generator=draw).tolist()
        images[n, :, i : i + side // 2, j : j + side // 2] += 2.0
        masks[n, i : i + side // 2, j : j + side // 2] = 1
    return images, masks


def test_yolo_in_the_trainer_of_ultralytics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    monkeypatch.chdir(tmp_path)
    tasks = importlib.import_module("ultralytics.nn.tasks")
    train = importlib.import_module("ultralytics.models.yolo.detect.train")

    def make() -> nn.Module:
        torch.manual_seed(0)
        return tasks.DetectionModel("yolov8n.yaml", nc=2, verbose=False)  # type: ignore[no-any-return]

    images, _ = drawn(8, 64)
    small = smaller(make, images, tmp_path / "small", repair="solve")
    before = {name: p.detach().clone() for name, p in small.named_parameters()}
    written = pr.export(small, images[:1], tmp_path / "small.onnx", dynamic_batch=False)  # it looks at the batch's size
    assert written.error < 1e-3

    class Trainer(train.DetectionTrainer):  # type: ignore[misc, name-defined]
        def get_model(self, *_: Any, **__: Any) -> nn.Module:
            return small

        def validate(self) -> tuple[dict[str, float], float]:  # needs torchvision's compiled nms
            return {}, 0.0

        def final_eval(self) -> None:
            return

    overrides = {
        "model": "yolov8n.yaml",
        "data": str(squares_for_yolo(tmp_path / "squares")),
        "epochs": 2,
        "imgsz": 64,
        "batch": 4,
        "device": "cpu",
        "workers": 0,
        "amp": False,
        "plots": False,
        "val": False,
        "warmup_epochs": 0,
        "optimizer": "SGD",
        "lr0": 0.01,
        "project": str(tmp_path / "runs"),
        "verbose": False,
    }
    trainer = Trainer(overrides=overrides)
    trainer.train()
    after = dict(trainer.model.named_parameters())
    still = [name for name, p in before.items() if torch.equal(p, after[name].detach().float())]
    # Boxes are trained only on levels that an object is given to (a few here); the weights of `dfl` are fixed.
    assert [name for name in still if not name.startswith(("model.22.cv2.", "model.22.dfl."))] == []
    with trainer.csv.open() as file:
        rows = list(csv.DictReader(file, skipinitialspace=True))
    losses = [sum(float(row[f"train/{part}_loss"]) for part in ("box", "cls", "dfl")) for row in rows]
    assert len(losses) == 2 and losses[1] < losses[0]
    state = small.state_dict()
    torch.save(state, tmp_path / "trained.pt")
    again = pr.load(tmp_path / "small", make())
    again.load_state_dict(torch.load(tmp_path / "trained.pt", weights_only=True))
    assert_same(outputs(again, images), outputs(small, images))


def squares_for_yolo(folder: Path) -> Path:
    """Drawn images with a bright square as an object of class 0, in the layout of ultralytics; its YAML file."""
    images, masks = drawn(8, 64)
    for kind in ("images", "labels"):
        (folder / kind / "train").mkdir(parents=True)
    for n, (image, mask) in enumerate(zip(images, masks, strict=True)):
        pixels = ((image.clamp(-1, 3) + 1) / 4 * 255).byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(folder / "images" / "train" / f"{n}.png")
        rows, columns = mask.nonzero().T.float()
        box = [(columns.mean() + 0.5) / 64, (rows.mean() + 0.5) / 64, 0.5, 0.5]
        line = " ".join(f"{float(value):.4f}" for value in box)
        (folder / "labels" / "train" / f"{n}.txt").write_text(f"0 {line}\n")
    (folder / "data.yaml").write_text(
        f"path: {folder}\ntrain: images/train\nval: images/train\nnames: [square, none]\n"
    )
    return folder / "data.yaml"


def test_ssdlite_of_torchvision_with_its_own_loss(tmp_path: Path) -> None:
    ssd = importlib.import_module("torchvision.models.detection")

    def whole() -> Any:
        torch.manual_seed(0)
        return ssd.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)

    images, masks = drawn(2, 320)
    small = smaller(lambda: from_torchvision.OneStage(whole()), images, tmp_path / "small")
    detector = whole()  # anchors, matching and losses are torchvision's; backbone and head are the small ones
    detector.backbone, detector.head = small.backbone, small.head
    boxes = [torch.stack([m.nonzero().amin(0).flip(0), m.nonzero().amax(0).flip(0)]).flatten().float() for m in masks]
    targets = [{"boxes": box[None], "labels": torch.tensor([1])} for box in boxes]
    pictures = [image.sigmoid() for image in images]
    trained(detector, lambda model: sum(model(pictures, targets).values()), steps=4)  # type: ignore[arg-type, return-value]


def test_a_unet_of_segmentation_models(tmp_path: Path) -> None:
    smp = importlib.import_module("segmentation_models_pytorch")

    def make() -> nn.Module:
        torch.manual_seed(0)
        return smp.Unet("resnet18", encoder_weights=None, classes=2)  # type: ignore[no-any-return]

    images, masks = drawn(4, 64)
    small = smaller(make, images, tmp_path / "small", repair="solve")
    dice = smp.losses.DiceLoss("multiclass")
    trained(small, lambda model: dice(model(images), masks) + F.cross_entropy(model(images), masks))
    assert pr.export(small.eval(), images[:1], tmp_path / "small.onnx").error < 1e-3


def test_a_unet_of_monai(tmp_path: Path) -> None:
    nets, losses = importlib.import_module("monai.networks.nets"), importlib.import_module("monai.losses")

    def make() -> nn.Module:
        torch.manual_seed(0)
        how = {"channels": (8, 16, 32), "strides": (2, 2), "num_res_units": 2, "norm": "batch"}
        return nets.UNet(spatial_dims=3, in_channels=1, out_channels=2, **how)  # type: ignore[no-any-return]

    flat, masks = drawn(4, 16, channels=1)
    volumes, labels = flat[:, :, None].repeat(1, 1, 16, 1, 1), masks[:, None, None].repeat(1, 1, 16, 1, 1)
    small = smaller(make, volumes, tmp_path / "small", repair="solve")
    loss = losses.DiceCELoss(to_onehot_y=True, softmax=True)
    trained(small, lambda model: loss(model(volumes), labels), rate=1e-2)
    assert pr.export(small.eval(), volumes[:1], tmp_path / "small.onnx").error < 1e-3


def test_convnext_of_hugging_face_in_its_trainer(tmp_path: Path) -> None:
    transformers = importlib.import_module("transformers")

    def make() -> nn.Module:
        torch.manual_seed(0)
        how = {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 2, 1], "num_labels": 2, "image_size": 32}
        config = transformers.ConvNextConfig(**how)
        return transformers.ConvNextForImageClassification(config)  # type: ignore[no-any-return]

    images, _ = drawn(16, 32)
    images[8:] -= 1.0
    labels = torch.arange(16) // 8
    small = smaller(make, {"pixel_values": images}, tmp_path / "small")
    items = [{"pixel_values": image, "labels": label} for image, label in zip(images, labels, strict=True)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=8,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model=small, args=arguments, train_dataset=items)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 8 and losses[-1] < losses[0]
    again = pr.load(tmp_path / "small", make())
    again.load_state_dict(small.state_dict())
    assert_same(outputs(again, {"pixel_values": images}), outputs(small, {"pixel_values": images}))
