"""A Hugging Face network, retrained by the Hugging Face Trainer.

    pip install transformers
    python examples/fit_transformers.py          # --small: fewer epochs, for the tests

Batches are the dicts that such networks take (pixel_values, labels). `save_pretrained` would lose the new widths,
because the config says the old ones: save with `prunus.save`, and load into a network made from the same config.

It printed, below the lines of the Trainer, on one thread (times depend on the machine):

    1.38x as fast in onnxruntime at batch 1 (1.37 to 1.40), 99.24% -> 98.99% test accuracy
    Goal reached: 50.0% of the MACs removed, 50.0% asked.
                                    before    after
      ms in onnxruntime at batch 1  0.0645    0.0471    1.38x (1.37 to 1.40)
      ms in eager at batch 1        0.686     0.681     not measurable (0.99 to 1.13)
      ms in openvino at batch 1     0.131     0.115     1.13x (1.12 to 1.16)
      held-out accuracy             99.00%    98.33%    -0.67 points
      test accuracy                 99.24%    98.99%    -0.25 points
      MACs                          2.50 M    1.25 M    -50.0%
      weights                       77.98 K   27.49 K   -64.8%
      bytes on disk                 316.63 K  113.75 K  -64.1%
    accuracy of the loaded network on test images: 0.9899244332493703
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, default_collate
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments

import prunus

EPOCHS = 3 if "--small" in sys.argv else 10

digits = load_digits()
pixels = torch.nn.functional.interpolate(torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, 32)
rows = [{"pixel_values": image, "labels": label} for image, label in zip(pixels, digits.target.tolist(), strict=True)]
rows = [rows[i] for i in torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
parts = rows[:1100], rows[1100:1400], rows[1400:]
train, holdout, test = (DataLoader(part, 64, collate_fn=default_collate) for part in parts)


def fit(model, train, holdout, epochs=EPOCHS):
    arguments = TrainingArguments(
        output_dir="trainer",
        num_train_epochs=epochs,
        per_device_train_batch_size=64,
        learning_rate=0.005,
        lr_scheduler_type="cosine",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=train.dataset).train()
    return model


torch.manual_seed(0)
config = ResNetConfig(
    num_channels=1, embedding_size=32, hidden_sizes=[32, 64], depths=[1, 1], layer_type="basic", num_labels=10
)
model = fit(ResNetForImageClassification(config), train, holdout, 2 * EPOCHS)

result = prunus.compress(model, train, holdout, test=test, target=0.5, rounds=1, fit=fit)
print(result)

prunus.save(result.model, result.plan, "small-resnet")
loaded = prunus.load("small-resnet", ResNetForImageClassification(config)).eval()
print("accuracy of the loaded network on test images:", prunus.evaluate(loaded, test).quality)
