"""Retraining by Lightning: your LightningModule and your Trainer stay as they are.

    pip install lightning
    python examples/fit_lightning.py             # --small: fewer epochs, for the tests

Prunus prunes the network inside the LightningModule. `fit` wraps the pruned network in the same LightningModule,
trains it and returns it.

It printed, on one thread (times depend on the machine):

    Lightning, after 16 epochs: 97.2% held-out accuracy
    Lightning, after 8 epochs: 96.5% held-out accuracy
    1.13x as fast in onnxruntime at batch 1 (1.12 to 1.15), 98.61% -> 96.66% test accuracy
    Goal reached: 60.4% of the MACs removed, 60.0% asked.
                                    before    after
      ms in onnxruntime at batch 1  0.0449    0.0395    1.13x (1.12 to 1.15)
      ms in eager at batch 1        0.404     0.335     1.17x (1.10 to 1.28)
      ms in openvino at batch 1     0.102     0.101     not measurable (0.98 to 1.04)
      held-out accuracy             97.22%    96.53%    -0.69 points
      held-out top-5                99.31%    100.00%   +0.69 points
      test accuracy                 98.61%    96.66%    -1.95 points
      MACs                          747.14 K  295.55 K  -60.4%
      weights                       74.51 K   20.37 K   -72.7%
      bytes on disk                 301.98 K  84.32 K   -72.1%
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
