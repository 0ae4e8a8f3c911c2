"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the names and places of their files, and their classes."""

from __future__ import annotations

from pathlib import Path

from secateur.errors import DataError
from secateur.zoo.data import stored_images
from secateur.zoo.data.cifar_files import SHAPE, Layout, decode_binary, decode_python, read_layout
from secateur.zoo.data.images import ImageSet, MemoryImages

_FIVE = tuple(f"data_batch_{number}" for number in range(1, 6))
LAYOUTS = {
    "cifar10": (
        Layout("cifar-10-batches-py", _FIVE, "test_batch", 10, decode_python, label_key=b"labels"),
        Layout(
            "cifar-10-batches-bin",
            tuple(f"{name}.bin" for name in _FIVE),
            "test_batch.bin",
            10,
            decode_binary,
            label_bytes=1,
        ),
    ),
    "cifar100": (
        Layout("cifar-100-python", ("train",), "test", 100, decode_python, label_key=b"fine_labels"),
        Layout("cifar-100-binary", ("train.bin",), "test.bin", 100, decode_binary, label_bytes=2),
    ),
}
_FINE = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel "
    "can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur "
    "dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion "
    "lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree "
    "pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea "
    "seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank "
    "telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
CLASSES = {
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "cifar100": tuple(_FINE.split()),
}
MEAN = {"cifar10": (0.4914, 0.4822, 0.4465), "cifar100": (0.5071, 0.4865, 0.4409)}
STD = {"cifar10": (0.2470, 0.2435, 0.2616), "cifar100": (0.2673, 0.2564, 0.2762)}


def locate(name: str, roots: tuple[Path, ...]) -> Path | None:
    """The file (as `secateur data get` writes it) or folder (as the official archives unpack) that holds the set."""
    for place in (place for root in roots for place in (root, root / name)):
        stored = place / stored_images.filename(name)
        if stored.is_file():
            return stored
        for layout in LAYOUTS[name]:
            for folder in (place / layout.folder, place):
                if (folder / layout.test).is_file():
                    return folder
    return None


def read(name: str, found: Path) -> ImageSet:
    """Read the data set that `locate` found."""
    if found.is_file():
        train, test = stored_images.read(found, name, len(CLASSES[name]))
    else:
        train, test = _read_folder(name, found)
    return ImageSet(name, CLASSES[name], train, test, SHAPE, MEAN[name], STD[name], mirror=True)


def _read_folder(name: str, folder: Path) -> tuple[MemoryImages, MemoryImages]:
    layout = next(layout for layout in LAYOUTS[name] if (folder / layout.test).is_file())
    missing = [file for file in layout.files if not (folder / file).is_file()]
    if missing:
        raise DataError(
            f"{folder}: expected the files of {name}: {', '.join(layout.files)}; missing: {', '.join(missing)}"
        )
    return read_layout(layout, {file: (folder / file).read_bytes() for file in layout.files}, str(folder))
