"""A network of timm on a folder of images: FOLDER/CLASS/IMAGE.png.

    python examples/timm_image_folder.py                        # makes a folder of scikit-learn's digits
    python examples/timm_image_folder.py FOLDER --model resnet18 --size 224 --weights own.safetensors

The same on the command line, once the network has been trained:

    prunus prune timm:resnet18 --weights own.safetensors --data folder:FOLDER --target 0.4

--small: a smaller network and fewer images, for the tests.
"""

import argparse
from pathlib import Path

import timm
import torch
from PIL import Image
from sklearn.datasets import load_digits

import prunus
from prunus.zoo import data, models

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", nargs="?", type=Path)
parser.add_argument("--model", default="test_resnet")  # timm's smallest ResNet
parser.add_argument("--size", type=int, default=32)
parser.add_argument("--weights", type=Path, help="of a trained network; it is trained here without them")
parser.add_argument("--small", action="store_true")
options = parser.parse_args()


def folder_of_digits(count):
    """A folder with `count` digits as colour images of 32 x 32 pixels."""
    folder, digits = Path("digits-folder"), load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images[:count], digits.target[:count], strict=True)):
        path = folder / f"digit-{label}" / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15.9).astype("uint8")).resize((32, 32)).convert("RGB").save(path)
    return folder


torch.manual_seed(0)
folder = options.folder or folder_of_digits(400 if options.small else 1797)
images = data.load(f"folder:{folder}", size=options.size)  # a tenth is held out to decide, a fifth is for the test
train, holdout, test = (
    images.loader(part, 32, shuffle=part == "train", augment=False) for part in ("train", "holdout", "test")
)
model = timm.create_model(options.model, num_classes=len(images.classes))
if options.weights:
    models.load_weights(model, options.weights)
else:
    model = prunus.fit(model, train, holdout, epochs=4 if options.small else 12, lr=0.05).model

graph = prunus.trace(model, torch.zeros(1, 3, options.size, options.size))
print(graph)  # what can be pruned; graph.frozen says what cannot, and why

result = prunus.compress(model, train, holdout, test=test, target=0.4)
print(result)
prunus.save(result.model, result.plan, "small-timm")
