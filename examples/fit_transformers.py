"""A Hugging Face network, retrained by the Hugging Face Trainer.

    pip install transformers
    python examples/fit_transformers.py          # --small: fewer epochs, for the tests

Batches are the dicts that such networks take (pixel_values, labels). `save_pretrained` would lose the new widths,
because the config says the old ones: save with `prunus.save`, and load into a network made from the same config.

It printed, on one thread (times depend on the machine):

    1.09x as fast in onnxruntime at batch 1 (1.08 to 1.12), 99.24% -> 99.50% test accuracy
    Goal reached: 53.9% of the MACs removed, 50.0% asked.
                                    before    after
      ms in onnxruntime at batch 1  0.033     0.03      1.09x (1.08 to 1.12)
      ms in eager at batch 1        0.509     0.511     not measurable (0.93 to 1.07)
      ms in openvino at batch 1     0.0952    0.0938    not measurable (0.98 to 1.05)
      held-out accuracy             98.67%    97.00%    -1.67 points
      test accuracy                 99.24%    99.50%    +0.25 points
      MACs                          725.31 K  334.14 K  -53.9%
      weights                       20.05 K   5.97 K    -70.2%
      bytes on disk                 82.58 K   25.69 K   -68.9%
    accuracy of the loaded network on test images: 0.9949622166246851
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
    num_channels=1, embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=10
)
model = fit(ResNetForImageClassification(config), train, holdout, 2 * EPOCHS)

result = prunus.compress(model, train, holdout, test=test, target=0.5, rounds=1, fit=fit)
print(result)

prunus.save(result.model, result.plan, "small-resnet")
loaded = prunus.load("small-resnet", ResNetForImageClassification(config)).eval()
print("accuracy of the loaded network on test images:", prunus.evaluate(loaded, test).quality)
