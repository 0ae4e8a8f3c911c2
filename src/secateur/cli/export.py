"""`secateur export`: a network as a file that runs without secateur."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.common import complaints, console, friendly
from secateur.cli.options import Classes, DataRoot, Mean, Std


@friendly
def command(
    network: Annotated[str, typer.Argument(help="Folder of a pruned network, or a model's NAME or NAME=WEIGHTS.")],
    out: Annotated[Path, typer.Argument(help="File to write: .onnx, .pt2 or .safetensors.")],
    format: Annotated[str | None, typer.Option(help="onnx, pt2 or safetensors; by the suffix if not given.")] = None,
    fold_bn: Annotated[
        bool, typer.Option("--fold-bn", help="Make batch norms part of the layers before them.")
    ] = False,
    opset: Annotated[int | None, typer.Option(help="ONNX operator set.")] = None,
    fixed_batch: Annotated[
        int | None, typer.Option(min=1, help="Only so many images at a time, instead of any.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The original network, if the folder does not say.")] = None,
    classes: Classes = None,
    data: Annotated[str | None, typer.Option(help="Compare on images of this data set, not on noise.")] = None,
    data_root: DataRoot = None,
    mean: Mean = None,
    std: Std = None,
    images: Annotated[int, typer.Option(min=1, help="So many images of --data.")] = 100,
) -> None:
    """Write a network as ONNX, torch.export's .pt2 or safetensors; it is read back and compared with PyTorch.

    Examples:

        secateur export runs/prune-resnet56-cifar10 small.onnx --fold-bn

        secateur export resnet56=resnet56.safetensors full.pt2
    """
    from secateur.cli.networks import open_network
    from secateur.cli.opening import numbers
    from secateur.shipping.export import export

    found = open_network(network, model=model, classes=classes)
    real = None
    if data is not None:
        from secateur.zoo.data import load

        pictures = load(data, data_root, mean=numbers(mean, "--mean"), std=numbers(std, "--std"), size=found.shape[-1])
        real = next(iter(pictures.loader("test", images, limit=images)))[0]
    done = export(
        found.model,
        found.example().repeat(fixed_batch or 1, 1, 1, 1),
        out,
        format,  # type: ignore[arg-type]  # export names the choices
        fold_bn=fold_bn,
        opset=opset,
        images=real,
        dynamic_batch=fixed_batch is None,
    )
    words = f"{done.path}: {done.bytes:,} bytes, {done.format}{f' opset {done.opset}' if done.opset else ''}"
    console.print(words, soft_wrap=True)
    if done.num_images:
        what = "images" if real is not None else "images of noise"
        console.print(
            f"compared with PyTorch on {done.num_images} {what}: off by {done.error:.1e} of the largest output"
        )
    if found.plan is None and "=" not in network:
        complaints.print("[yellow]note:[/] no weights were given, so this is the network before any training")
