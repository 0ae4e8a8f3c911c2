"""Retraining by Lightning: your LightningModule and your Trainer stay as they are.

    pip install lightning
    python examples/fit_lightning.py             # --small: fewer epochs, for the tests

Prunus prunes the network inside the LightningModule. `fit` wraps the pruned network in the same LightningModule,
trains it and returns it.

It printed, on one thread (times depend on the machine):

    Lightning, after 16 epochs: 100.0% held-out accuracy
    Lightning, after 8 epochs: 97.9% held-out accuracy
    1.34x as fast in onnxruntime at batch 1 (1.31 to 1.36), 98.89% -> 98.61% test accuracy
    Goal reached: 62.9% of the MACs removed, 60.0% asked.
                                    before    after
      ms in onnxruntime at batch 1  0.0958    0.0719    1.34x (1.31 to 1.36)
      ms in eager at batch 1        0.589     0.48      1.26x (1.08 to 1.45)
      ms in openvino at batch 1     0.208     0.185     1.17x (1.07 to 1.34)
      held-out accuracy             100.00%   97.92%    -2.08 points
      test accuracy                 98.89%    98.61%    -0.28 points
      MACs                          2.99 M    1.11 M    -62.9%
      weights                       74.51 K   29.58 K   -60.3%
      bytes on disk                 301.98 K  121.18 K  -59.9%
"""

import sys

import lightning
import torch
from torch.nn import functional as F

import prunus
from prunus.zoo import data, models

EPOCHS = 2 if "--small" in sys.argv else 8


class LitClassifier(lightning.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, _):
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def validation_step(self, batch, _):
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(1) == labels).float().mean(), batch_size=len(labels))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.003)


def fit(net, train, holdout, epochs=EPOCHS):
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LitClassifier(net), train, holdout)
    print(f"Lightning, after {epochs} epochs: {float(trainer.callback_metrics['accuracy']):.1%} held-out accuracy")
    return net


torch.manual_seed(0)
digits = data.load("digits", size=16)
train, holdout, test = (digits.loader(part, 64, shuffle=part == "train") for part in ("train", "holdout", "test"))
net = fit(models.create("resnet8", num_classes=10, in_channels=1), train, holdout, 2 * EPOCHS)

result = prunus.compress(net, train, holdout, test=test, target=0.6, rounds=1, fit=fit)
print(result)
