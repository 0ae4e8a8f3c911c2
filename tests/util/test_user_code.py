"""User-provided functions: imported from the current folder, called, and their errors said with the user's line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from prunus.errors import DataError
from prunus.util.user_code import call_user_function, cannot_take, failure, import_user_function, is_function_name

CODE = """
def make(size=2):
    return [0] * size

def late():
    import helper_of_user
    return helper_of_user.VALUE

def fails():
    import torch
    return torch.zeros(2) @ torch.zeros(3)
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code_of_user.py").write_text(CODE)
    (tmp_path / "helper_of_user.py").write_text("VALUE = 5")
    (tmp_path / "broken_of_user.py").write_text("raise OSError('no disk')")
    monkeypatch.chdir(tmp_path)
    for name in ("code_of_user", "helper_of_user", "broken_of_user"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_functions_are_found_in_the_current_folder_and_the_path_is_restored() -> None:
    before = list(sys.path)
    assert import_user_function("code_of_user:make", DataError)(3) == [0, 0, 0]
    assert call_user_function("code_of_user:make", DataError, size=1) == [0]
    assert call_user_function("code_of_user:late", DataError) == 5  # imports more while it runs
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("code_of_user:nothing", "the module code_of_user has no callable 'nothing'"),
        ("code_of_user.py:make", r"leave out \.py"),
        ("no_such_package:net", "no module named 'no_such_package'; install it or put it into the current folder"),
        ("broken_of_user:net", "importing broken_of_user failed with OSError: no disk"),
        ("code_of_user:fails", r"'code_of_user:fails' failed with RuntimeError: .* \(\S+code_of_user\.py:11\)"),
    ],
)
def test_errors_say_what_and_where(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        call_user_function(name, DataError)


def test_what_is_asked_of_names_functions_and_errors() -> None:
    assert failure(ValueError("a\nTraceback of TorchScript\n  line\nboom")) == "ValueError: boom"
    assert cannot_take(lambda a, b=1: a, 1, b=2) is None
    assert "missing a required argument" in str(cannot_take(lambda a: a))
    assert cannot_take(torch.add, 1) is None  # written in C: it does not say
    assert is_function_name("a.b:c") and not any(map(is_function_name, ("a.b", "a:", ":b", "a/b:c", "a:b.c")))
