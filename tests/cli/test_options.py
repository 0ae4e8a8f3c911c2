"""Options made from dataclasses of settings: help, groups, types, parsing, defaults, modes; devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Literal

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from prunus.cli.options import (
    BySet,
    DeviceOptions,
    OnlyWith,
    Without,
    options_from_settings,
    refuse_other_modes,
    typed_options,
)
from prunus.errors import PrunusError, RunError
from prunus.util.options import option


def doubled(text: str) -> int:
    return 2 * int(text)


@dataclass(frozen=True)
class Oven:
    heat: int = option(180, "Degrees.", group="Goal", everyday=True)
    trays: tuple[str, ...] = option((), "Trays to use.", group="Layers")
    mode: Literal["fan", "grill"] | None = option(None, "Fan or grill.", group="Channels")
    minutes: int | None = option(None, "Twice this number.", group="Goal", parse=doubled)
    fan: bool = option(False, "Blow.", group="Goal")
    secret: int = option(7, "Only Python can give this one.", hidden=True)
    unlisted: int = 8


@dataclass(frozen=True)
class Plate:
    size: int = option(MISSING, "Centimetres.", group="Output")
    extras: list[str] = option(["salt"], "Extras.", group="Own group", hidden=True)


def invoke(verb: Callable[..., None], words: tuple[str, ...]) -> Result:
    app = typer.Typer()
    app.command()(options_from_settings(verb))
    return CliRunner(env={"COLUMNS": "80", "TERM": "dumb"}).invoke(app, list(words))


def run(*words: str) -> tuple[Result, dict[str, Any]]:
    heard: dict[str, Any] = {}

    def verb(
        plate: Plate,
        oven: Oven,
        name: Annotated[str, typer.Argument(help="What to bake.")],
        note: Annotated[str, typer.Option(help="A remark.")] = "none",
    ) -> None:
        """Bake something."""
        heard.update(plate=plate, oven=oven, name=name, note=note)

    return invoke(verb, words), heard


def test_defaults_and_values() -> None:
    result, heard = run("bread", "--size", "3")
    assert result.exit_code == 0, result.output
    oven = Oven(180, (), None, None, False, 7, 8)
    assert heard == {"plate": Plate(3, ["salt"]), "oven": oven, "name": "bread", "note": "none"}
    typed = "--size 3 --heat 200 --trays a --trays b --mode grill --minutes 21 --fan --note hot"
    result, heard = run("bread", *typed.split())
    assert result.exit_code == 0, result.output
    assert heard["oven"] == Oven(200, ("a", "b"), "grill", 42, True) and heard["note"] == "hot"


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["bread"], "Missing option '--size'"),
        (["bread", "--size", "big"], "Invalid value for '--size'"),
        (["bread", "--size", "3", "--secret", "1"], "No such option: --secret"),
        (["bread", "--size", "3", "--unlisted", "1"], "No such option: --unlisted"),
        (["bread", "--size", "3", "--extras", "x"], "No such option: --extras"),
        (["--size", "3"], "Missing argument"),
    ],
)
def test_mistakes_are_usage_errors(words: list[str], complaint: str) -> None:
    result, heard = run(*words)
    assert result.exit_code == 2 and complaint.lower() in result.stderr.lower() and not heard


def test_help_has_titled_groups_in_their_order() -> None:
    """Everyday options first; then Goal, Channels, Layers and Output, whatever the order of fields and classes."""
    shown = run("--help")[0].stdout.splitlines()
    titles = [line.strip("╭╮─ ") for line in shown if line.startswith("╭")]
    assert titles == ["Arguments", "Options", "Everyday options", "Goal", "Channels", "Layers", "Output"]

    def panel_of(words: str) -> str:
        row = next(i for i, line in enumerate(shown) if words in line)
        return titles[sum(line.startswith("╭") for line in shown[:row]) - 1]

    expected = {
        "--heat": "Everyday options",
        "--minutes": "Goal",
        "--fan": "Goal",
        "--mode": "Channels",
        "--trays": "Layers",
        "--size": "Output",
        "--note": "Options",
        "Twice this number.": "Goal",
        "[default: 180]": "Everyday options",
    }
    assert {words: panel_of(words) for words in expected} == expected
    assert "secret" not in "".join(shown) and "Only Python" not in "".join(shown)


@dataclass(frozen=True)
class Bread:
    flour: int = option(500, "Grams.", group="Goal")
    minutes: int = option(40, "Of both.", group="Goal")


@dataclass(frozen=True)
class Cake:
    eggs: int = option(3, "How many.", group="Goal")
    minutes: int = option(40, "Of both.", group="Goal")
    sugar: int = option(100, "Grams; Python alone has it.")


def bake(*words: str) -> tuple[Result, list[Any]]:
    heard: list[Any] = []

    def verb(
        bread: Annotated[Bread, OnlyWith("bread")],
        cake: Annotated[Cake, OnlyWith("cake"), Without("sugar")],
        context: typer.Context,
        mode: Annotated[str | None, typer.Option()] = None,
    ) -> None:
        """Bake one of two things."""
        refuse_other_modes(context, mode)
        heard.extend((bread, cake))

    return invoke(verb, words), heard


def test_options_of_modes() -> None:
    """An option that two classes have is one option, of both modes; one that is not offered has its default."""
    shown = bake("--help")[0].stdout
    for title in ("With --bread ─", "With --cake ─", "With --bread or --cake ─"):
        assert title in shown
    assert "--sugar" not in shown and shown.count("--minutes") == 1
    assert bake("--mode", "cake", "--eggs", "4", "--minutes", "30")[1] == [Bread(500, 30), Cake(4, 30, 100)]
    for words, complaint in (
        (["--mode", "cake", "--flour", "1"], "--flour belongs to --bread: give that too, or leave --flour out"),
        (["--minutes", "1"], "--minutes belongs to --bread or --cake"),
    ):
        error = bake(*words)[0].exception
        assert isinstance(error, PrunusError) and complaint in str(error)
    assert not bake("--mode", "bread")[0].exception


@dataclass(frozen=True)
class Pizza:
    heat: float = option(250.0, "Degrees.")
    stone: bool = option(True, "On a stone.")
    slices: int | None = option(None, "Number of slices.")
    size: int = option(30, "Centimetres.")


def test_settings_without_an_option() -> None:
    """--set NAME=VALUE gives them, each with its type, and they count as typed."""
    heard: list[Any] = []

    def verb(pizza: Annotated[Pizza, BySet("heat", "stone", "slices")], context: typer.Context) -> None:
        heard.extend((pizza, sorted(typed_options(context))))

    shown = invoke(verb, ("--help",)).stdout
    assert "--heat" not in shown and "--set" in shown
    invoke(verb, ("--set", "heat=300", "--set", "stone=False", "--size", "26"))
    assert heard == [Pizza(300.0, False, None, 26), ["heat", "size", "stone"]] and type(heard[0].heat) is float
    for change, complaint in {
        "size=3": "has an option, --size",
        "heat": "heat is not NAME=VALUE. heat: Degrees.",
        "heta=3": "did you mean heat",
    }.items():
        refused = invoke(verb, ("--set", change))
        assert refused.exit_code == 2 and complaint in " ".join(refused.stderr.replace("│", " ").split())
    assert "slices must be a whole number" in str(invoke(verb, ("--set", "slices=many")).exception)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DeviceOptions("cpu").pick() == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert DeviceOptions("cpu").pick() == torch.device("cpu")
    assert DeviceOptions("meta").pick() == torch.device("meta:1")  # each process of torchrun has a device of its own
    assert DeviceOptions("meta:0").pick() == torch.device("meta:0")
    with pytest.raises(RunError, match="'abacus' cannot be used"):
        DeviceOptions("abacus").pick()
