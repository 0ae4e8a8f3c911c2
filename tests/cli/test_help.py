"""What `--help` and the documents promise: examples can be parsed, and those on digits run; names in them exist."""

from __future__ import annotations

import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command

import prunus as pr
from prunus.cli import build
from prunus.cli import network as demo
from prunus.cli.reproduce import check
from tests.cli.command_line import lines, prunus
from tests.processes import python


def verbs(command: typer.core.TyperGroup, *path: str) -> Iterator[tuple[tuple[str, ...], typer.core.TyperCommand]]:
    for name, inner in command.commands.items():
        if isinstance(inner, typer.core.TyperGroup):
            yield from verbs(inner, *path, name)
        else:
            assert isinstance(inner, typer.core.TyperCommand)
            yield (*path, name), inner


WHOLE = get_command(build())
assert isinstance(WHOLE, typer.core.TyperGroup)
VERBS = dict(verbs(WHOLE))


def test_there_are_seventeen_verbs_and_prune_has_ten_everyday_options() -> None:
    assert len(VERBS) <= 17 and ("study", "timing") in VERBS
    options = [option for option in VERBS["prune",].params if option.name != "model"]
    assert len(options) <= 46
    everyday = [option.name for option in options if option.rich_help_panel == "Everyday options"]  # type: ignore[attr-defined]
    first = ["data", "weights", "speedup", "max_drop", "target", "engine", "repair", "epochs", "out", "resume"]
    assert everyday == [option.name for option in options[:10]] == first


def test_the_version_is_that_of_the_project() -> None:
    written = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["version"]
    assert lines(prunus("--version")) == [f"prunus {written}"]
    assert pr.__version__ == written


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_examples_are_there_and_could_be_typed(verb: tuple[str, ...]) -> None:
    command = VERBS[verb]
    start = " ".join(["prunus", *verb])
    told = inspect.cleandoc(command.help or "").splitlines()
    examples = [line.strip() for line in told if line.strip().startswith(start)]
    assert examples, f"{start} --help has no example"
    for example in examples:
        check(shlex.split(example)[1:])  # the real parser, which would exit with code 2
    shown = lines(prunus(*verb, "--help"))
    assert max(map(len, shown)) <= 80
    assert set(examples) <= {line.strip() for line in shown}  # each whole, on one line: it can be copied


def test_help_needs_neither_torch_nor_numpy() -> None:
    """Importing them takes seconds, and nobody wants to wait for `--help`."""
    listed = "[name for name in ('torch', 'numpy') if name in sys.modules]"
    assert python("-c", f"import sys; from prunus.cli import build; build(); print({listed})") == "[]\n"


# -- documents

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"^ {4,}(?:torchrun --nproc-per-node 2 -m )?(prunus [a-z].*)$", re.MULTILINE)


def commands(path: Path) -> list[str]:
    """Command lines in indented blocks, continued lines joined and comments left out."""
    text = re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8"))
    return [found.partition("  #")[0].strip() for found in COMMAND.findall(text)]


def test_commands_are_found_and_a_wrong_option_would_be() -> None:
    assert sum(len(commands(path)) for path in DOCUMENTS) >= 50
    for wrong in (["study", "timing", "vgg16", "--clok", "cpu"], ["train", "--data", "digits"], ["prune", "a", "b"]):
        with pytest.raises(Exception, match=r"(?i)no such option|missing|unexpected extra"):
            check(wrong)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_can_be_parsed(path: Path) -> None:
    for command in commands(path):
        words = shlex.split(command)
        if words[1] != "VERB" and "NAME" not in words[1:3]:
            check(words[1:])  # the real parser, which raises for what cannot be typed


# -- examples that need nothing but the built-in digits

SHORTER = {  # the rest is as written
    "train": ["--epochs", "1", "--num-images", "64"],
    "prune": ["--num-images", "64", "--set", "num_repair_images=64", "--no-timing"],
}
# In this order: a report needs the run of `prunus prune`, an evaluation needs the weights of `prunus train`.
RUNNABLE = [
    "prunus train lenet5 --data digits",
    "prunus evaluate lenet5 --data digits --weights runs/train-lenet5-digits/model.safetensors",
    "prunus train resnet8 --data digits",
    "prunus prune",
    "prunus report runs/prune-resnet8-digits",
    "prunus report runs/prune-resnet8-digits --out report.html",
    "prunus report runs/prune-resnet8-digits --out somewhere/else.html",
    "prunus prune runs/prune-resnet8-digits --target 0.3",
    "prunus report runs/prune-resnet8-digits runs/prune-resnet8-digits-2",
    "prunus study structure lenet5 --widths 4,9,60,40",
    "prunus train resnet8 --data digits --size 16 --no-augment --epochs 20 --out resnet8-digits",
    "prunus show separation resnet8-digits --data digits --size 16 --layer layer2.0.conv1",
    "prunus reproduce",
]

MEASUREMENT = "prunus study effectiveness resnet8="  # it takes minutes, and is parsed by test_documents.py alone


def examples() -> set[str]:
    told = {line.strip() for command in VERBS.values() for line in inspect.cleandoc(command.help or "").splitlines()}
    return told | {command for path in DOCUMENTS for command in commands(path)}


def test_all_examples_on_digits_are_run() -> None:
    assert set(RUNNABLE) <= examples()
    on_digits = {example for example in examples() if example.startswith("prunus") and "digits" in example}
    assert {example for example in on_digits if not example.startswith(MEASUREMENT)} <= set(RUNNABLE)


def test_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "DEMO_EPOCHS", 1)
    for example in RUNNABLE:
        words = shlex.split(example)[1:]
        result = prunus(*words, *SHORTER.get(words[0], []))
        assert result.exit_code in (0, 3), result.output  # 3: not as fast as asked, on a machine with other work
    assert Path("runs/comparison/compare.html").exists() and Path("runs/comparison/compare.json").exists()
    assert Path("report.html").exists() and Path("somewhere/else.html").exists()
