"""Error messages for models that cannot be recorded: the line of the user's code, and what to do about it."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from typing import Any

from torch import fx, nn
from torch.utils._pytree import tree_map

from secateur.channels.traced import Example

_OWN_CODE = Path(__file__).parent.as_posix()


def explain(model: nn.Module, error: BaseException, example: Example) -> str:
    """Name the line at which recording failed, and say what to do about it."""
    where = _line_of(error) or f"the forward of {type(model).__name__}"
    said = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
    if isinstance(error, fx.proxy.TraceError):
        return (
            f"torch.fx cannot follow {where} ({said}). The path through the network must not depend on the values of "
            "tensors. Rewrite that line, or move it into a module of its own and give that class a rule with "
            "secateur.register_rule(Class, secateur.rules.unknown): its channels are then kept."
        )
    return (
        f"{type(model).__name__} does not run on the example of shape {_shapes(example)}: {type(error).__name__}: "
        f"{said} (at {where}). Pass an example that the model accepts, on the model's device. If the model itself runs "
        "on it, torch.fx cannot follow that line: move it into a module of its own and give that class a rule with "
        "secateur.register_rule(Class, secateur.rules.unknown)."
    )


def _line_of(error: BaseException) -> str | None:
    """The last line of the user's code in the traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    if not frames:
        return None
    last = frames[-1]
    text = (last.line or linecache.getline(last.filename, last.lineno or 0)).strip()
    return f"{last.filename}:{last.lineno} in {last.name}: `{text}`"


def _is_machinery(filename: str) -> bool:
    path = filename.replace("\\", "/")
    return "/torch/" in path or path.startswith(_OWN_CODE)


def _shapes(example: Example) -> Any:
    example = example if isinstance(example, tuple | list | dict) else (example,)
    return tree_map(lambda v: tuple(v.shape) if hasattr(v, "shape") else v, example)
