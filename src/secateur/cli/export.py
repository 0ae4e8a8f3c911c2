"""`secateur export`: write a network to a file that runs without secateur."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateur.base.folder_contents import refuse_overwriting
from secateur.base.options import check, option
from secateur.cli import early_checks
from secateur.cli.common import complain, console, friendly
from secateur.cli.early_checks import Early
from secateur.cli.from_settings import options_from_settings
from secateur.cli.model_argument import resolve
from secateur.cli.options import Classes
from secateur.errors import DataError, ModelError
from secateur.shipping.file_formats import file_format

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ExportOptions:
    """The file that is written."""

    format: str | None = option(None, "onnx, pt2 or safetensors; by the file's suffix by default")
    fold_bn: bool = option(False, "Fold batch norms into the layers before them")
    opset: int | None = option(None, "ONNX opset")
    fixed_batch: int | None = option(None, "Fixed number of images at a time; any number by default", least=1)


@dataclass(frozen=True)
class ComparisonData:
    """Images on which the file is compared with PyTorch."""

    data: str | None = option(None, "Data set to compare on, instead of random images", group="Comparison")
    data_root: Path | None = option(None, "Folder that holds the data set", group="Comparison")
    mean: str | None = option(None, "Mean to subtract, as in 0.485,0.456,0.406", group="Comparison")
    std: str | None = option(None, "Standard deviation to divide by", group="Comparison")
    num_images: int = option(100, "Number of images of --data", group="Comparison", least=1)

    def images(self, size: int) -> Tensor | None:
        """Test images of this height and width; None without a data set."""
        from secateur.cli.opening import numbers
        from secateur.zoo.data import load

        check(self, DataError)
        if self.data is None:
            return None
        mean, std = numbers(self.mean, "--mean"), numbers(self.std, "--std")
        found = load(self.data, self.data_root, mean=mean, std=std, size=size)
        images: Tensor = next(iter(found.loader("test", self.num_images, limit=self.num_images)))[0]
        return images


@friendly
@options_from_settings
def command(
    network: Annotated[
        str,
        typer.Argument(help="Folder of a pruned network, or a model's NAME or NAME=WEIGHTS"),
        Early(early_checks.network),
    ],
    out: Annotated[Path, typer.Argument(help="File to write: .onnx, .pt2 or .safetensors")],
    file: ExportOptions,
    comparison: ComparisonData,
    model: Annotated[
        str | None, typer.Option(help="Original network of a folder, if the folder does not name it")
    ] = None,
    classes: Classes = None,
) -> None:
    """Write a network as ONNX, as torch.export's .pt2 or as safetensors. The file is read back and compared with
    PyTorch.

    Examples:

        secateur export runs/prune-resnet56-cifar10 small.onnx --fold-bn

        secateur export resnet56=resnet56.safetensors full.pt2
    """
    check(file, ModelError)
    file_format(out, file.format)
    refuse_overwriting(out)
    from secateur.cli.networks import open_network
    from secateur.shipping.export import export

    found = open_network(network, model=model, classes=classes)
    images = comparison.images(found.shape[-1])
    done = export(
        found.model,
        found.example().repeat(file.fixed_batch or 1, 1, 1, 1),
        out,
        file.format,  # type: ignore[arg-type]  # export checks it
        fold_bn=file.fold_bn,
        opset=file.opset,
        images=images,
        dynamic_batch=file.fixed_batch is None,
    )
    opset = f" opset {done.opset}" if done.opset else ""
    console.print(f"{done.path}: {done.bytes:,} bytes, {done.format}{opset}", soft_wrap=True)
    if done.num_images:
        compared = f"{done.num_images} {'images' if images is not None else 'random images'}"
        console.print(f"compared with PyTorch on {compared}: largest difference {done.error:.1e} of the largest output")
    if not resolve(network, model).has_weights:
        complain("note", "no weights were given, so the network is not trained")
