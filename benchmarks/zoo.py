"""Networks of many libraries, each pruned everywhere at once and checked: `make zoo` writes the table docs/zoo.md.

    python benchmarks/zoo.py [--only NAME ...] [--shard 1/2] [--write docs/zoo.md] [--fresh]

Each network gets random weights and statistics (tests/zoo_nets.py), loses 25% to 50% of every unit at once, with
streams selected and with streams coupled, and is compared in float64 with itself zeroed (zoo_ours.py). torch-pruning
gets the same task (zoo_peer.py). Each network runs in processes of its own, which a crash or the clock may end. Results
are kept in build/zoo, one file each, so an interrupted run goes on where it was and shards can share the work.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import re
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks import zoo_ours, zoo_peer  # noqa: E402
from benchmarks.zoo_table import as_markdown, is_right, line  # noqa: E402
from tests import zoo_nets  # noqa: E402

Row = dict[str, Any]
OUR_SECONDS, PEER_SECONDS = 600, 40  # what a network may take, in CPU time


def in_process(act: Callable[[str], Row], name: str, seconds: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            pipe.send({**act(name), "cpu_seconds": time.process_time()})
        except BaseException as error:  # noqa: BLE001  (whatever it is, it belongs in the table)
            pipe.send({"failed": f"{type(error).__name__}: {error}", "where": traceback.format_exc()})


def guarded(act: Callable[[str], Row], name: str, seconds: int) -> Row:
    """`act(name)` in a process of its own."""
    context = multiprocessing.get_context("fork")  # the libraries are imported once, here
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=in_process, args=(act, name, seconds, sender))
    process.start()
    sender.close()
    try:
        row: Row = receiver.recv()
        process.kill()
        process.join()
    except EOFError:
        process.join()
        row = {"failed": f"no answer in {seconds} s" if process.exitcode == -signal.SIGXCPU else "the process died"}
    return row


def peer(name: str) -> Row:
    """torch-pruning's row; without an answer in time it counts as crashed."""
    row = guarded(zoo_peer.examine, name, PEER_SECONDS)
    return {"verdict": "crashed", "why": row["failed"]} if "failed" in row else row


def stamps(library: str) -> tuple[str, str]:
    """Hashes of the code that our results and torch-pruning's depend on; other code starts over."""
    tests, source = ROOT / "tests", ROOT / "src" / "prunus"
    networks = [tests / "networks" / "__init__.py", tests / "networks" / f"from_{library}.py", tests / "zoo_nets.py"]
    ours = [*networks, tests / "proof.py", Path(zoo_ours.__file__)]
    ours += [file for room in ("base", "channels") for file in sorted((source / room).rglob("*.py"))]
    return digest(ours), digest([*networks, Path(zoo_peer.__file__)])


def digest(files: list[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def kept(path: Path, stamp: str, make: Callable[[], Row]) -> Row:
    """The result in this file if it is of the same code; else a new one, which is put there."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    if stored.get("code") != stamp:
        stored = {"code": stamp, "row": make()}
        write(path, json.dumps(stored, indent=1))
    return stored["row"]  # type: ignore[no-any-return]


def row_of(name: str, results: Path, ours: str, theirs: str) -> Row:
    file = re.sub(r"\W+", "-", name) + ".json"
    found = kept(results / file, ours, lambda: guarded(zoo_ours.examine, name, OUR_SECONDS))
    return {"name": name, **found, "peer": kept(results / "peer" / file, theirs, lambda: peer(name))}


def commit() -> str:
    """The commit that is checked out, or nothing outside a git checkout."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these networks, e.g. timm:dla34")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="every N-th network, from the I-th on")
    parser.add_argument("--write", type=Path, help="write the table to this Markdown file")
    parser.add_argument("--fresh", action="store_true", help="forget kept results")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "zoo", help="folder where results are kept")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    torch.set_num_threads(1)
    first, step = map(int, options.shard.split("/"))
    names = (options.only or zoo_nets.zoo_names())[first - 1 :: step]
    zoo_nets.import_libraries(names)  # once, before the forks
    if options.fresh:
        for file in options.results.rglob("*.json"):
            file.unlink()
    rows, code = [], {library: stamps(library) for library in zoo_nets.LIBRARIES}
    for name in names:
        rows.append(row_of(name, options.results, *code[name.split(":")[0]]))
        print(line(rows[-1]), flush=True)
    text = as_markdown(rows, commit())
    print(text[text.index("\n## ") :])
    if options.write:
        write(options.write, text)
    return 0 if all(is_right(row) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
