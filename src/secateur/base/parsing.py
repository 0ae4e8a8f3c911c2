"""Values from the text of a command line option: lists separated by commas."""

from __future__ import annotations

from secateur.errors import SecateurError


def names(text: str) -> tuple[str, ...]:
    """'gsd, l1' -> ('gsd', 'l1')."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def numbers(text: str) -> tuple[float, ...]:
    """'0.1,0.2' -> (0.1, 0.2)."""
    try:
        return tuple(float(word) for word in text.replace(",", " ").split())
    except ValueError as error:
        raise SecateurError(f"expected numbers separated by commas, such as 0.1,0.2; got {text!r}") from error
