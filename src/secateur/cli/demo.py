"""The network of the demo, which verbs use when the user names none: trained once on scikit-learn's digits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from secateur.cli.common import console

if TYPE_CHECKING:
    from torch import nn

    from secateur.zoo.data import ImageData

DEMO_MODEL, DEMO_DATA, DEMO_EPOCHS = "resnet8", "digits", 30


def demo_network(images: ImageData, seed: int = 0, rank: int = 0) -> nn.Module:
    """The network of the demo: loaded if it was trained before, otherwise trained and saved."""
    from safetensors.torch import save

    from secateur.base.atomic_files import write_atomically
    from secateur.cli.opening import open_model
    from secateur.training.fit import fit

    saved = Path("runs") / f"base-{DEMO_MODEL}-{DEMO_DATA}" / "model.safetensors"
    if saved.exists():
        return open_model(DEMO_MODEL, images, saved, seed=seed)
    network = open_model(DEMO_MODEL, images, seed=seed)
    fitted = fit(
        network,
        images.loader("train", 64, shuffle=True, seed=seed),
        images.loader("holdout", 256),
        preset="cosine",
        epochs=DEMO_EPOCHS,
        seed=seed,
        checkpoint_dir=saved.parent,
    )
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in fitted.model.state_dict().items()}
    if rank == 0:
        write_atomically(saved, save(tensors))
        console.print(f"trained {DEMO_MODEL} on {DEMO_DATA}, saved in {saved}")
    return fitted.model
