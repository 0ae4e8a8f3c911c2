"""Progress callbacks of long work."""

from collections.abc import Callable

Progress = Callable[[int, int | None], None]  # steps done, steps in all (None where that is not known)
