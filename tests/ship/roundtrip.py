"""A network is pruned, repaired and saved; a new process loads it, exports it and runs it in
onnxruntime. Run by the test beside it and by benchmarks/guards.py.

    python -m tests.ship.roundtrip FOLDER NAME...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import prunus as pr
from prunus.zoo.models import config, create

BORDER = 1e-4  # of the largest output: between classes nearer than that, the rounding of float32 may decide
WIDEST = 4096  # a solve squares the inputs of a layer: VGG's 25,088 would take gigabytes


def network(name: str) -> tuple[nn.Module, Tensor]:
    """A fresh network whose norms have seen images, and those images."""
    torch.manual_seed(0)
    model, shape = create(name), config(name).shape
    images = torch.randn(64 if shape[-1] <= 32 else 4, *shape)
    with torch.no_grad():
        model.train()(images)
    return model.eval(), images


def there(name: str, folder: Path, ratio: float = 0.3) -> dict[str, Any]:
    """Prune, repair and save; the outputs on images go into the folder too."""
    model, images = network(name)
    graph = pr.trace(model, images[:1])
    plan = pr.uniform(graph, pr.score(graph, [], metric="l2"), ratio)
    how = "solve" if max(layer.inputs for layer in graph.layers.values()) <= WIDEST else "bn"
    small = pr.repair(graph, plan, images, how=how).eval()  # type: ignore[arg-type]
    pr.save(small, plan, folder / name)
    torch.manual_seed(1)
    others = torch.randn_like(images)
    with torch.no_grad():
        save_file({"images": others, "outputs": small(others)}, folder / name / "answers.safetensors")
    return {"repair": how, "macs": graph.cost(plan).macs / graph.macs, "parameters": len(list(small.parameters()))}


@torch.no_grad()
def back(name: str, folder: Path) -> dict[str, Any]:
    """Load what `there` saved, export it, and compare the outputs of PyTorch and onnxruntime with the saved ones."""
    answers = load_file(folder / name / "answers.safetensors")
    images, said = answers["images"], answers["outputs"]
    small = pr.load(folder / name, create(name)).eval()
    pr.export(small, images[:1], folder / f"{name}.onnx")
    session = onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
    outputs = {
        "loaded": small(images),
        "onnx": torch.from_numpy(session.run(None, {session.get_inputs()[0].name: images.numpy()})[0]),
    }
    first, second = said.topk(2).values.T
    clear = first - second > BORDER * said.abs().max()
    return {
        "images": len(images),
        "same predictions": all(torch.equal(o.argmax(1)[clear], said.argmax(1)[clear]) for o in outputs.values()),
        **{where: float((found - said).abs().max() / said.abs().max()) for where, found in outputs.items()},
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: back(name, Path(sys.argv[1])) for name in sys.argv[2:]}))
