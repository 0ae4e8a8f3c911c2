"""A small vision transformer of timm, trained on scikit-learn's digits, loses a share of its MACs without training.

    python benchmarks/vit.py [--target 0.3] [--epochs 40] [--out FILE.json]

Beside it, torch-pruning removes the same share: the same ratio of every group, by the l2 norm, with `num_heads` given
to it. Accuracy is that of the test images, which decide nothing.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import prunus
from benchmarks import peers
from prunus.zoo import data
from tests import proof
from tests.networks import from_torchvision

SIZE, WIDTH, DEPTH, HEADS = 16, 64, 4, 4


def make() -> nn.Module:
    """patches of 4 x 4 pixels, and a class token"""
    from_torchvision.library()
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    return VisionTransformer(
        img_size=SIZE, patch_size=4, in_chans=1, num_classes=10, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS
    )


def train(model: nn.Module, digits: Any, epochs: int) -> nn.Module:
    """AdamW with one cycle of the rate, and images that move by a pixel."""
    steps = epochs * sum(1 for _ in digits.loader("train", 64))
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, steps)
    model.train()
    for _ in range(epochs):
        for images, labels in digits.loader("train", 64):
            across, down = torch.randint(-1, 2, (2,)).tolist()
            loss = nn.functional.cross_entropy(model(images.roll((across, down), (2, 3))), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, batches: Any) -> float:
    right = [(model(images).argmax(1) == labels) for images, labels in batches]
    return 100 * torch.cat(right).float().mean().item()


def by_torch_pruning(model: nn.Module, example: torch.Tensor, target: float) -> nn.Module | None:
    """The first of its ratios that removes as many MACs."""
    import torch_pruning as tp

    whole = proof.counted_macs(model, example)
    for percent in range(5, 80, 5):
        small = copy.deepcopy(model)
        heads = {block.attn.qkv: block.attn.num_heads for block in small.blocks}
        pruner = tp.pruner.BasePruner(
            small,
            example,
            importance=peers.importance("l2"),
            pruning_ratio=percent / 100,
            num_heads=heads,
            prune_num_heads=True,
            head_pruning_ratio=percent / 100,
            ignored_layers=[small.head],
        )
        pruner.step()
        for block in small.blocks:
            block.attn.num_heads = pruner.num_heads[block.attn.qkv]
            block.attn.head_dim = block.attn.qkv.out_features // (3 * block.attn.num_heads)
            block.attn.attn_dim = block.attn.qkv.out_features // 3
        if proof.counted_macs(small, example) <= (1 - target) * whole:
            return small
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=float, default=0.3, help="the share of MACs to remove")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    digits = data.load("digits", size=SIZE)
    model = train(make(), digits, options.epochs)
    test, example = list(digits.loader("test", 64)), torch.zeros(1, 1, SIZE, SIZE)
    found: dict[str, Any] = {"accuracy before": accuracy(model, test)}
    for name, repair in (("as cut", "none"), ("repaired", "solve")):
        result = prunus.compress(
            model,
            digits.loader("train", 64),
            digits.loader("holdout", 64),
            target=options.target,
            repair=repair,
            progress=False,
        )
        macs = [proof.counted_macs(each, example) for each in (result.model, model)]
        found[f"Prunus, {name}"] = {"accuracy": accuracy(result.model, test), "MACs removed": 1 - macs[0] / macs[1]}
        found[f"heads left, {name}"] = [block.attn.num_heads for block in result.model.blocks]
    theirs = by_torch_pruning(model, example, options.target)
    if theirs is not None:
        macs = [proof.counted_macs(each, example) for each in (theirs, model)]
        found["torch-pruning"] = {"accuracy": accuracy(theirs, test), "MACs removed": 1 - macs[0] / macs[1]}
    text = json.dumps(found, indent=1)
    sys.stdout.write(text + "\n")
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
