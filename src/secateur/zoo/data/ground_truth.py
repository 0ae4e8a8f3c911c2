"""The labels of a flat ILSVRC-2012 validation folder, from any of the files that list them."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from secateur.errors import DataError
from secateur.zoo.data.images import checked_labels
from secateur.zoo.data.splits import IntArray

DEVKIT = "ILSVRC2012_devkit_t12/data"
SOLUTION = "LOC_val_solution.csv"  # Kaggle: ImageId,PredictionString with the wnid first
DEVKIT_TRUTH = "ILSVRC2012_validation_ground_truth.txt"  # the devkit: one ILSVRC2012_ID per line, see meta.mat
LISTS = ("val.txt", "val_map.txt", "ground_truth.txt", "imagenet_2012_validation_synset_labels.txt")
WNID = re.compile(r"n\d{8}")


def read_flat(path: Path, files: Sequence[str], known: tuple[str, ...] | None) -> tuple[tuple[str, ...], IntArray]:
    """Classes and labels of a flat validation folder; `known` are the classes if they are known already."""
    truth = _find(path)
    if truth.name == SOLUTION:
        answers = _read_solution(truth)
    elif truth.name == DEVKIT_TRUTH:
        answers = _in_order(_read_devkit(truth), files, truth)
    else:
        answers = _read_list(truth, files)
    chosen = [_answer(answers, file, truth) for file in files]
    if all(answer.isdigit() for answer in chosen):  # labels, not wnids: their names must come from elsewhere
        labels = np.array([int(answer) for answer in chosen], dtype=np.int64)
        names = known or tuple(str(number) for number in range(int(labels.max(initial=0)) + 1))
        return names, checked_labels(labels, len(names), truth)
    names = known or tuple(sorted(set(chosen)))
    numbers = {name: number for number, name in enumerate(names)}
    strangers = sorted(set(chosen) - set(numbers))
    if strangers:
        raise DataError(f"{truth}: lists classes that the training images do not have: {', '.join(strangers[:8])}")
    return names, np.array([numbers[answer] for answer in chosen], dtype=np.int64)


def _find(path: Path) -> Path:
    places = (path, path / "val", path / DEVKIT)
    for place in places:
        for name in (SOLUTION, *LISTS, DEVKIT_TRUTH):
            if (place / name).is_file():
                return place / name
    raise DataError(
        f"{path / 'val'}: a flat validation folder needs a file with its labels in {path}: "
        f"{SOLUTION}, {', '.join(LISTS)}, or {DEVKIT}/{DEVKIT_TRUTH} with its meta.mat"
    )


def _read_solution(truth: Path) -> dict[str, str]:
    with truth.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if len(row) == 2 and row[1].split()]
    return {image: prediction.split()[0] for image, prediction in rows if WNID.fullmatch(prediction.split()[0])}


def _read_list(truth: Path, files: Sequence[str]) -> dict[str, str]:
    """Lines of `file class`, or only `class` in the order of the file names; a class is a wnid or a number."""
    lines = [line.split() for line in truth.read_text(encoding="utf-8").splitlines() if line.strip()]
    if all(len(words) == 1 for words in lines):
        return _in_order([words[0] for words in lines], files, truth)
    wrong = next((number for number, words in enumerate(lines, 1) if len(words) != 2), None)
    if wrong is not None:
        raise DataError(f"{truth}: line {wrong} should be `file class`, got {' '.join(lines[wrong - 1])!r}")
    return {Path(words[0]).stem: words[1] for words in lines}


def _read_devkit(truth: Path) -> list[str]:
    """The devkit numbers the classes from 1 in its own order; meta.mat gives the wnid of each number."""
    from scipy.io import loadmat

    meta = truth.parent / "meta.mat"
    if not meta.is_file():
        raise DataError(f"{truth}: its numbers refer to meta.mat of the devkit, which should be in the same folder")
    try:
        synsets = loadmat(str(meta), squeeze_me=True)["synsets"]
        wnids = {int(number): str(wnid) for number, wnid in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)}
        return [wnids[int(line)] for line in truth.read_text(encoding="utf-8").split()]
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise DataError(f"{meta}: cannot give the classes of {truth} ({type(error).__name__}: {error})") from error


def _in_order(answers: Sequence[str], files: Sequence[str], truth: Path) -> dict[str, str]:
    if len(answers) != len(files):
        raise DataError(f"{truth}: has {len(answers)} lines for {len(files)} images; expected one for each")
    return {Path(file).stem: answer for file, answer in zip(files, answers, strict=True)}


def _answer(answers: dict[str, str], file: str, truth: Path) -> str:
    answer = answers.get(Path(file).stem)
    if answer is None:
        raise DataError(f"{truth}: has no label for the image {file}")
    return answer
