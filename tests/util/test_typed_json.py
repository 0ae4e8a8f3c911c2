"""Dataclasses through JSON and back: the same values, and errors that name the place."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prunus.errors import FileError
from prunus.util.typed_json import from_data, read_record, to_data, versioned_object, write_record


@dataclass(frozen=True)
class Branch:
    length: float
    leaves: tuple[int, ...] = ()
    kind: Literal["long", "short"] = "long"


@dataclass(frozen=True)
class Tree:
    name: str
    branches: dict[str, Branch]
    trunk: Branch | None = None
    rings: dict[int, list[float]] = field(default_factory=dict)
    where: tuple[float, str] = (0.0, "here")
    old: bool = False
    count: int | str = 0
    notes: Any = None
    twice: int = field(default=0, init=False)


branches = st.builds(
    Branch, st.floats(allow_nan=False), st.tuples(st.integers()) | st.just(()), st.sampled_from(["long", "short"])
)
trees = st.builds(
    Tree,
    st.text(),
    st.dictionaries(st.text(), branches),
    st.none() | branches,
    st.dictionaries(st.integers(), st.lists(st.floats(allow_nan=False))),
    st.tuples(st.floats(allow_nan=False), st.text()),
    st.booleans(),
    st.integers() | st.text(),
    st.none() | st.lists(st.integers()),
)


@settings(max_examples=20, deadline=None)
@given(trees)
def test_what_is_written_is_read(tree: Tree) -> None:
    assert from_data(Tree, json.loads(json.dumps(to_data(tree)))) == tree


def test_arrays_paths_and_sets_become_plain() -> None:
    data = to_data({"a": np.array([[1, 2]]), "b": Path("x/y"), 3: frozenset({1}), "d": np.float32(0.5)})
    assert data == {"a": [[1, 2]], "b": "x/y", "3": [1], "d": 0.5}
    branch = from_data(Branch, {"length": 2})  # a whole number is a number, and defaults are filled in
    assert branch == Branch(2.0) and type(branch.length) is float


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "name: expected text, got 3"),
        ({"name": None}, "name: expected text, got None"),
        ({"old": 1}, "old: expected true or false, got 1"),
        ({"branches": []}, r"branches: expected an object, got \[\]"),
        ({"branches": {"a": {"length": "x"}}}, "branches.a.length: expected a number, got 'x'"),
        ({"branches": {"a": {"length": True}}}, "branches.a.length: expected a number, got True"),
        ({"branches": {"a": {"length": 1, "leaves": [1, 2.5]}}}, r"branches.a.leaves\[1\]: expected a whole number"),
        ({"branches": {"a": {"length": 1, "kind": "old"}}}, "branches.a.kind: expected one of 'long', 'short', got"),
        ({"branches": {"a": {}}}, "branches.a: 'length' is missing"),
        ({"trunk": {"length": 1, "colour": 2}}, "trunk: unknown entry 'colour'"),
        ({"where": [1.0]}, "where: expected 2 values, got 1"),
        ({"count": 1.5}, "count: expected a whole number, got 1.5"),
        ({"rings": {"1": 2}}, "rings.1: expected a list, got 2"),
        ({"fruit": 2}, "Tree: unknown entry 'fruit'"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FileError, match=message):
        from_data(Tree, {"name": "plum", "branches": {}, **change})


def test_files_have_a_format_and_a_version(tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    tree = Tree("plum", {"a": Branch(1.5, (1, 2))})
    write_record(path, tree, "tree", 2)
    written = json.loads(path.read_text())
    assert (written["format"], written["version"], written["name"]) == ("tree", 2, "plum")
    assert read_record(path, Tree, "tree", 2) == tree
    with pytest.raises(FileError, match=f'{path}: not a shrub file: expected JSON with "format": "shrub"'):
        read_record(path, Tree, "shrub", 2)
    with pytest.raises(FileError, match=f"{path}: the tree file has version 2; this prunus reads version 3"):
        read_record(path, Tree, "tree", 3)
    path.write_text(json.dumps({**written, "old": "very"}))
    with pytest.raises(FileError, match=f"{path}: old: expected true or false, got 'very'"):
        read_record(path, Tree, "tree", 2)
    path.unlink()
    with pytest.raises(FileError, match=f"{path} is missing"):
        read_record(path, Tree, "tree", 2)


def test_an_object_from_text() -> None:
    assert versioned_object('{"format": "tree", "version": 1, "a": 2}', "tree", "tree", 1) == {"a": 2}
    with pytest.raises(FileError, match=r"not a tree: the JSON is broken or cut off"):
        versioned_object('{"format": "tr', "tree", "tree", 1)
    with pytest.raises(FileError, match=r"not a tree: expected JSON"):
        versioned_object("[1]", "tree", "tree", 1)
