"""`prunus export`: write a network to a file that runs without prunus."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from prunus.cli.console import Answer, Early, complain, friendly, say
from prunus.cli.images import DataOptions, UserData, task_on
from prunus.cli.network import NamedModel, Network, check_model_name, open_network, resolve
from prunus.cli.options import Classes, Without
from prunus.errors import DataError, ModelError
from prunus.ship import DEVICE_FORMATS, SUFFIXES, file_format
from prunus.tasks import task_of
from prunus.timing.engines import NUM_CALIBRATION
from prunus.util.files import refuse_overwriting
from prunus.util.options import option
from prunus.zoo.names import is_user_data


@dataclass(frozen=True)
class ExportOptions:
    fold_bn: bool = option(False, "Fold batch norms into the layers before them")
    opset: int | None = option(None, "ONNX opset")
    fixed_batch: int | None = option(None, "Fixed number of images at a time; any number by default", least=1)
    int8: bool = option(False, "ONNX in 8-bit integers, calibrated on training images of --data")
    max_drop: float = option(1.0, "With --int8: points of held-out accuracy that may be lost", least=0)
    num_calibration: int = option(NUM_CALIBRATION, "With --int8: number of images to calibrate on", least=1)
    num_images: int = option(100, "Number of images of --data to compare on; random ones without --data", least=1)


@friendly
def command(
    network: Annotated[
        str,
        typer.Argument(help="Folder of a pruned network, a model's NAME or NAME=WEIGHTS, or an .onnx file"),
        Early(check_model_name),
    ],
    out: Annotated[Path, typer.Argument(help=f"File to write: {SUFFIXES}")],
    file: ExportOptions,
    data: Annotated[DataOptions, Without("size", "workers")],
    classes: Classes = None,
) -> Answer:
    """Write a network as ONNX, as torch.export's .pt2, as safetensors, as plain PyTorch, or for a device.

    The file is read back and compared with PyTorch, on random images or on those of --data. A .py builds the narrow
    network from its own class, without prunus; its weights are in a .safetensors file beside it. For devices: .pte
    (ExecuTorch), .ncnn.param (with .ncnn.bin beside it), .mnn, .tflite (LiteRT) and .mlpackage (Core ML, which can
    only be checked by its structure here).

    Examples:

        prunus export runs/prune-resnet56-cifar10 small.onnx --fold-bn

        prunus export resnet56=resnet56.safetensors full.pt2

        prunus export runs/prune-resnet56-cifar10 small.py

        prunus export runs/prune-resnet56-cifar10 small.ncnn.param

        prunus export runs/prune-resnet56-cifar10 small.onnx --int8 --data cifar10
    """
    named = resolve(network)
    if file.int8:
        if out.suffix != ".onnx":
            raise ModelError(f"--int8 writes an ONNX file: give a name that ends in .onnx, not {out.name}")
        if file.opset is not None or file.fixed_batch is not None:
            raise ModelError("--int8 takes neither --opset nor --fixed-batch: the file takes any number of images")
        if data.data is None and "data" not in named.run_options:
            raise DataError("--int8 needs images to calibrate on and to check its accuracy on: give --data")
    kind = file_format(out, None)
    if kind == "py" and named.is_file:
        raise ModelError(f"{named.typed} comes from an .onnx file, so there is no class to write: export .onnx or .pt2")
    refuse_overwriting(out)
    if kind == "py":
        refuse_overwriting(out.with_suffix(".safetensors"))
    if kind in DEVICE_FORMATS and file.opset is not None:
        raise ModelError(f"--opset applies to .onnx only, not to {out.name}")
    from prunus.ship.export import export
    from prunus.timing.latency import repeated

    opened = open_network(named, classes)
    if file.int8:
        return _export_int8(opened, data.known_for(named), file, named, out)
    images = None
    if data.data is not None:
        if len(opened.shape) != 3 or is_user_data(data.data):
            raise DataError(f"{data.data}: a file is compared on images of a data set by name; leave out --data")
        known = replace(data.known_for(named), size=opened.shape[-1]).open(named, task=named.task(None))
        (images, *_) = next(iter(known.loader("test", file.num_images, limit=file.num_images)))
    done = export(
        opened.model,
        repeated(opened.example(), file.fixed_batch or 1),
        out,
        fold_bn=file.fold_bn,
        opset=file.opset,
        images=images,
        dynamic_batch=file.fixed_batch is None,
        original=named.name if kind == "py" else None,
        arguments=opened.arguments if kind == "py" else None,
    )
    opset = f" opset {done.opset}" if done.opset else ""
    if kind == "py":
        say(f"{done.path} and {done.path.with_suffix('.safetensors').name}: {done.bytes:,} bytes, run without prunus")
    else:
        say(f"{done.path}: {done.bytes:,} bytes, {done.format}{opset}")
    if kind == "ncnn":
        say(f"its weights are in {done.path.with_suffix('.bin').name} beside it")
    if kind == "mlpackage":
        say("Core ML runs on Apple's machines only: sizes and layers were checked, outputs were not compared")
    if done.num_images:
        compared = f"{done.num_images} {'images' if images is not None else 'random images'}"
        say(f"compared with PyTorch on {compared}: largest difference {done.error:.1e} of how much the outputs vary")
    if not named.has_weights:
        complain("note", "no weights were given, so the network is not trained")
    return Answer(vars(done))


def _export_int8(network: Network, data: DataOptions, file: ExportOptions, named: NamedModel, out: Path) -> Answer:
    from prunus.ship.int8 import export_int8

    images = data.open(named, task=named.task(None))
    task = task_on(images, task_of(named.task(None)), lambda: network.model)
    own = isinstance(images, UserData)  # in its own order; of a data set by name, a sample
    done = export_int8(
        network.model,
        network.example(),
        out,
        images.loader("train", 64) if own else images.loader("train", 64, limit=file.num_calibration),
        images.loader("holdout", 64),
        max_drop=file.max_drop,
        num_calibration=file.num_calibration,
        task=task,
    )
    say(f"{done.path}: {done.bytes:,} bytes, onnx in 8-bit integers")
    say(f"calibrated on {done.num_calibration} training images")
    before, after = (done.quality.shown(each.quality) for each in (done.before, done.after))
    what, count = done.quality.name, done.before.num_images
    say(f"{what} on {count} held-out images: {before} before, {after} in 8-bit integers,")
    say(f"a change of {done.quality.change(done.after.quality - done.before.quality)}")
    for engine, gain in done.speed.items():
        say(f"speed in {engine} for one image on one thread, relative to 32 bits: {gain}")
    return Answer(vars(done))
