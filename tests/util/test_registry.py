"""Registries: entries are files, help comes from docstrings, unknown names get near matches."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from prunus.errors import ScoreError
from prunus.util.registry import Entry, Registry, guessed, nearest


@dataclass(frozen=True, kw_only=True)
class Shape(Entry):
    corners: int


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[Shape]:
    package = tmp_path / "shapes_for_tests"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_shared.py").write_text("")
    body = "from tests.util.test_registry import Shape\nENTRY = Shape(corners={})\n"
    (package / "square.py").write_text('"""Four equal sides.\n\nMore words."""\n' + body.format(4))
    (package / "triangle.py").write_text('"""Three sides."""\n' + body.format(3))
    monkeypatch.syspath_prepend(str(tmp_path))
    return Registry("shape", "shapes_for_tests", ScoreError)


def test_entries_are_the_files_of_the_package(shapes: Registry[Shape]) -> None:
    assert list(shapes) == ["square", "triangle"]
    assert [shapes.help(name) for name in shapes] == ["Four equal sides", "Three sides"]
    assert "shapes_for_tests.square" not in sys.modules  # listing imports nothing
    assert shapes["square"] == Shape(name="square", help="Four equal sides", corners=4)


def test_unknown_names_get_the_nearest(shapes: Registry[Shape]) -> None:
    with pytest.raises(ScoreError, match=r"no shape called 'squar': did you mean square\? Available: square, triangle"):
        shapes.find("squar")
    with pytest.raises(KeyError):
        shapes["squar"]


def test_names_that_begin_alike_are_near() -> None:
    known = ["fig1-lenet5-mnist", "fig2-vgg16-cifar10", "fig2-resnet38-cifar100", "cosine"]
    assert nearest("fig2", known) == ["fig2-vgg16-cifar10", "fig2-resnet38-cifar100"]
    assert nearest("cosin", known) == ["cosine"] and nearest("f", known) == nearest("zebra", known) == []
    assert guessed("cosin", known) == " (did you mean cosine?)" and guessed("zebra", known) == ""


def test_users_can_register_their_own(shapes: Registry[Shape]) -> None:
    shapes.register(Shape(name="kite", help="Two pairs of sides", corners=4))
    assert list(shapes) == ["kite", "square", "triangle"]
    assert shapes.help("kite") == "Two pairs of sides"
    with pytest.raises(ScoreError, match="'square' is taken"):
        shapes.register(Shape(name="square", corners=4))
