"""`make bench`: the ratios of every benchmark that is here, in one table; fails if a bound is not kept.

    python benchmarks/run.py [graph] [training] [scoring] ...

A benchmark is a module of this folder whose main() returns rows (see ratios.py).
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from benchmarks.ratios import Row, say  # noqa: E402

ORDER = ("graph", "training", "scoring", "deciding", "shipping")


def present(wanted: list[str]) -> list[str]:
    """The benchmarks asked for, or all that exist."""
    unknown = [name for name in wanted if not (FOLDER / f"{name}.py").exists()]
    if unknown:
        raise SystemExit(f"no benchmark is called {unknown[0]}; there are {', '.join(present([]))}")
    return wanted or [name for name in ORDER if (FOLDER / f"{name}.py").exists()]


def main() -> int:
    rows: list[Row] = []
    for name in present(sys.argv[1:]):
        start = time.perf_counter()
        rows += importlib.import_module(f"benchmarks.{name}").main()
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    say(rows)
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
