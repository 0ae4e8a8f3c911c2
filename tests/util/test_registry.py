"""Registries: entries are read from the source, and unknown names get near matches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prunus.errors import ScoreError
from prunus.util.registry import Entry, Registry, guessed, nearest


@dataclass(frozen=True, kw_only=True)
class Shape(Entry):
    corners: int


def shape(help: str, corners: int) -> Callable[[Any], Any]:
    def declare(function: Any) -> Any:
        function.entry = Shape(name=function.__name__, help=help, corners=corners)
        return function

    return declare


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[Shape]:
    package = tmp_path / "shapes_for_tests"
    package.mkdir()
    (package / "__init__.py").write_text("")
    head = "from tests.util.test_registry import Shape\n"
    (package / "quadrangles.py").write_text(
        f'{head}SQUARE = Shape(name="square", help="Four equal sides", corners=4)\n'
        'OBLONG = Shape(name="oblong", help="Two long sides", corners=4)\n'
    )
    (package / "triangle.py").write_text(f'{head}ONE = Shape(name="triangle", help="Three sides", corners=3)\n')
    (package / "by_decorator.py").write_text(
        "from tests.util.test_registry import shape\n"
        '@shape("Five sides", 5)\ndef pentagon(): ...\n'
        "@print\ndef hexagon(): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("shapes_for_tests")]:
        monkeypatch.delitem(sys.modules, name)
    return Registry("shape", "shapes_for_tests", ScoreError)


def test_entries_are_those_that_the_modules_declare(shapes: Registry[Shape]) -> None:
    assert list(shapes) == ["oblong", "pentagon", "square", "triangle"]
    texts = ["Two long sides", "Five sides", "Four equal sides", "Three sides"]
    assert [shapes.help(name) for name in shapes] == texts
    assert "shapes_for_tests.quadrangles" not in sys.modules  # listing imports nothing
    assert shapes["square"] == Shape(name="square", help="Four equal sides", corners=4)
    assert shapes["pentagon"] == Shape(name="pentagon", help="Five sides", corners=5)
    assert list(Registry("shape", "shapes_for_tests.triangle", ScoreError)) == ["triangle"]  # one module
    assert repr(shapes) == "Registry(shape: oblong, pentagon, square, triangle)"


def test_unknown_names_get_the_nearest(shapes: Registry[Shape]) -> None:
    with pytest.raises(
        ScoreError, match=r"no shape called 'squar': did you mean square\? Available: oblong, pentagon,"
    ):
        shapes.find("squar")
    with pytest.raises(KeyError):
        shapes["squar"]
    known = ["fig1-lenet5-mnist", "fig2-vgg16-cifar10", "fig2-resnet38-cifar100", "cosine"]
    assert nearest("fig2", known) == ["fig2-vgg16-cifar10", "fig2-resnet38-cifar100"]
    assert nearest("cosin", known) == ["cosine"] and nearest("f", known) == nearest("zebra", known) == []
    assert guessed("cosin", known) == " (did you mean cosine?)" and guessed("zebra", known) == ""


def test_users_can_register_more(shapes: Registry[Shape]) -> None:
    shapes.register(Shape(name="kite", help="Two pairs of sides", corners=4))
    assert list(shapes) == ["kite", "oblong", "pentagon", "square", "triangle"]
    assert shapes.help("kite") == "Two pairs of sides" and shapes.find("kite").corners == 4
    with pytest.raises(ScoreError, match="'square' is taken"):
        shapes.register(Shape(name="square", corners=4))
    with pytest.raises(ScoreError, match="it has none"):
        shapes.register(Shape(corners=4))
