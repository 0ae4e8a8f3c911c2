"""Subclasses whose forward is the text of the original forward with some expressions replaced.

Pruned networks need them where code assumes that a number of channels never changes. Copies, files, `torch.save` and
exports work as with the original class, whose name, module and documentation they have.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import nn

_MARK = "prunus_rewritten"


def forward_of(kind: type[nn.Module]) -> Any:
    """The method as it is written: that of TorchScript modules cannot be asked for at the class."""
    return next((vars(base)["forward"] for base in kind.__mro__ if "forward" in vars(base)), None)


def names_in_forward(kind: type[nn.Module]) -> frozenset[str]:
    """The names of functions and attributes in the code of forward."""
    return frozenset(getattr(getattr(forward_of(kind), "__code__", None), "co_names", ()))


def code_of(function: Any) -> ast.Module | None:
    """The text of a function, parsed; None if it cannot be read."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None


def subclass_runs_code(kind: type[Any]) -> bool:
    """Whether a subclass of it would run the user's code, which may enter it in a list of classes."""
    return any("__init_subclass__" in vars(base) for base in kind.__mro__[:-1])


def rewritten(
    kind: Any, edit: Callable[[ast.FunctionDef], bool], again: tuple[Any, ...], **members: Any
) -> type[nn.Module] | None:
    """A subclass with another forward; None if the code cannot be read, or `edit` changes nothing.

    Args:
        kind: the class.
        edit: changes the definition of forward, and says whether it did.
        again: function and arguments that give an empty module of the subclass, to copy and unpickle its modules.
        members: further members of the subclass.
    """
    forward = forward_of(kind)
    if not isinstance(forward, FunctionType) or forward.__code__.co_freevars or hasattr(forward, "__wrapped__"):
        return None
    if hasattr(kind, _MARK):  # its text is no longer that of the file
        return None
    if subclass_runs_code(kind):
        return None
    tree = code_of(forward)
    function = None if tree is None else tree.body[0]
    if tree is None or not isinstance(function, ast.FunctionDef):
        return None
    if function.decorator_list or function.args.args[:1] == []:
        return None
    private = (n for n in ast.walk(function) if isinstance(n, ast.Attribute) and n.attr.startswith("__"))
    if function.args.args[0].arg != "self" or any(not n.attr.endswith("__") for n in private):
        return None
    if not edit(function):
        return None
    for node in ast.walk(function):  # evaluated where the class is, and not needed again
        if isinstance(node, ast.arg):
            node.annotation = None
    function.returns = None
    function.args.defaults = [ast.Constant(None) for _ in function.args.defaults]
    function.args.kw_defaults = [each and ast.Constant(None) for each in function.args.kw_defaults]
    ast.increment_lineno(tree, forward.__code__.co_firstlineno - 1)
    found: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(tree), forward.__code__.co_filename, "exec"), forward.__globals__, found)
    new = found[function.name]
    new.__defaults__, new.__kwdefaults__ = forward.__defaults__, forward.__kwdefaults__

    def reduce(self: nn.Module, protocol: Any) -> Any:
        return again[0], again[1:], self.__dict__

    body = {"forward": new, "__reduce_ex__": reduce, _MARK: True, **members}
    body |= {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), body)
