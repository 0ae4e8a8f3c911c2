"""Retraining by Lightning: your LightningModule and your Trainer stay as they are.

    pip install lightning
    python examples/fit_lightning.py             # --small: fewer epochs, for the tests

Prunus prunes the network inside the LightningModule. `fit` wraps the pruned network in the same LightningModule,
trains it and returns it.

It printed (and the time of a batch, which depends on the machine):

    Lightning, after 16 epochs: 97.2% held-out accuracy
    Lightning, after 8 epochs: 97.2% held-out accuracy
    Compressed CifarResNet in 1 round(s)
                         before    after
      held-out accuracy  97.22%    97.22%    +0.00 points
      held-out top-5     99.31%    99.31%    +0.00 points
      test accuracy      98.61%    97.21%    -1.39 points
      MACs               747.14 K  296.99 K  -60.2%
      weights            74.51 K   20.73 K   -72.2%
      bytes on disk      301.98 K  85.86 K   -71.6%
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
digits = data.load("digits")
train, holdout, test = (digits.loader(part, 64, shuffle=part == "train") for part in ("train", "holdout", "test"))
net = fit(models.create("resnet8", num_classes=10, in_channels=1), train, holdout, 2 * EPOCHS)

result = prunus.compress(net, train, holdout, test=test, target=0.6, rounds=1, fit=fit)
print(result)
