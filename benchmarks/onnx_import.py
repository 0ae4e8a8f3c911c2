"""Which networks survive the way through an .onnx file: exported, imported, traced and pruned.

    python benchmarks/onnx_import.py results.json              # all networks; about ten minutes
    python benchmarks/onnx_import.py results.json timm:dla34   # some
    python benchmarks/onnx_import.py results.json model.onnx   # a file, for images of 160 x 160 if it takes any size
    python benchmarks/onnx_import.py results.json --quick      # all, by torch's older exporter only

Each network has random weights. It is written by one of torch's exporters, imported (which compares it with
onnxruntime for one image and for three), traced, and pruned by a random plan (which compares it with the zeroed
network). `share` is the share of the MACs in layers that can lose channels, and `share_of_source` that of the network
in PyTorch.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import prunus
from prunus.timing.onnx_export import export_onnx
from prunus.zoo.onnx_file import read_onnx
from tests import proof, zoo_nets

TORCHVISION = """alexnet vgg11_bn resnet18 resnet50 resnext50_32x4d densenet121 googlenet inception_v3 squeezenet1_0
mobilenet_v2 mobilenet_v3_small efficientnet_b0 mnasnet1_0 regnet_y_400mf shufflenet_v2_x1_0 convnext_tiny"""
TIMM = """resnet26d dla34 ghostnet_100 hrnet_w18_small dpn68 densenet121 efficientnet_lite0 mobilenetv3_small_100
regnetx_002 repvgg_a0 res2net50_26w_4s selecsls42b skresnet18 vovnet39a cspresnet50 mobilenetv4_conv_small"""
OTHERS = ["ultralytics:yolov8n", "own:resnet56", "own:unet"]


def survey(name: str, exporter: str) -> dict[str, Any]:
    """What becomes of one network."""
    model, example = _network(name)
    result: dict[str, Any] = {"exporter": exporter}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        _export(model, example, path, exporter)
        start = time.perf_counter()
        network = prunus.from_onnx(path)
        result |= {"equal": True, "seconds": round(time.perf_counter() - start, 2)}
    graph = prunus.trace(network, example)
    result |= {"units": len(graph.units), "share": _share(graph)}
    plan = prunus.Plan.of(graph, proof.random_keep(graph, 0))
    prunus.prune(graph, plan)  # raises if the pruned network is not equal to the zeroed one
    result |= {"exact": True, "macs_left": round(graph.cost(plan).macs / graph.macs, 3)}
    source = prunus.trace(model, example)
    return result | {"units_of_source": len(source.units), "share_of_source": _share(source)}


def survey_file(path: Path) -> dict[str, Any]:
    """What becomes of a file."""
    image = read_onnx(path).image
    network = prunus.from_onnx(path, [side or 160 for side in image.sizes[2:]])
    graph = prunus.trace(network, torch.randn(1, image.sizes[1], *(side or 160 for side in image.sizes[2:])))
    plan = prunus.Plan.of(graph, proof.random_keep(graph, 0))
    prunus.prune(graph, plan)
    left = round(graph.cost(plan).macs / graph.macs, 3)
    return {"equal": True, "units": len(graph.units), "share": _share(graph), "exact": True, "macs_left": left}


def _share(graph: prunus.ChannelGraph) -> float:
    return round(sum(graph.layers[name].macs for name in graph.prunable) / graph.macs, 4)


def _network(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    library, _, short = name.partition(":")
    if library == "own":
        from prunus.zoo.models import create
        from tests.tasks.nets import UNet

        made = UNet() if short == "unet" else create(short)
        example = torch.randn(1, 1 if short == "unet" else 3, 32, 32)
        return zoo_nets.randomise(made, example), example
    if library in ("torchvision", "timm"):
        zoo_nets.import_libraries([name])
        if library == "timm":
            import timm

            made, side = timm.create_model(short, num_classes=100), 96
        else:
            models, side = (
                zoo_nets.torchvision_models(),
                {"inception_v3": 299, "alexnet": 224, "vgg11_bn": 224}.get(short, 96),
            )
            quiet = {"init_weights": False} if short in ("googlenet", "inception_v3") else {}
            made = models.get_model(short, num_classes=100, **quiet)
        example = torch.randn(1, 3, side, side)
        return zoo_nets.randomise(made, torch.cat([example, -example])), example
    made = zoo_nets.create(name)
    example = torch.randn(1, 3, 128, 128)
    return zoo_nets.randomise(made.float(), example), example


def _export(model: torch.nn.Module, example: torch.Tensor, path: Path, exporter: str) -> None:
    if exporter == "new":
        export_onnx(model, example, path)
        return
    axes = {"dynamic_axes": {"input": {0: "batch"}}} if exporter == "old" else {}
    kind = {"input_names": ["input"], "opset_version": 17, "dynamo": False, **axes}
    torch.onnx.export(model, (example,), path, **kind)


def main(out: Path, names: list[str]) -> None:
    """Examine networks, each with torch's older exporter, for any and for one image, and some with the newer."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    everything = [f"torchvision:{name}" for name in TORCHVISION.split()] + [f"timm:{name}" for name in TIMM.split()]
    results = json.loads(out.read_text()) if out.exists() else {}
    exporters = ("old",) if "--quick" in names else ("old", "one image", "new")
    for name in [name for name in names if name != "--quick"] or [*OTHERS, *everything]:
        for exporter in exporters if not name.endswith(".onnx") else ("file",):
            try:
                done = survey_file(Path(name)) if exporter == "file" else survey(name, exporter)
            except Exception as error:  # noqa: BLE001  (exporters raise anything)
                frame = traceback.extract_tb(error.__traceback__)[-1]
                done = {"exporter": exporter, "error": f"{type(error).__name__}: {error}"[:300], "at": frame.name}
            results[f"{Path(name).name if exporter == 'file' else name} ({exporter})"] = done
            print(name, json.dumps(done), flush=True)
            out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
