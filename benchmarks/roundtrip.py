"""Every network of the registry: prune, repair, save; in a new process load, export to ONNX, run in onnxruntime.

    python benchmarks/roundtrip.py [NAME...] [--write docs/results/roundtrip.json]

30% of every unit goes (L2 norm), readers are solved again on noise ("bn" where a layer is too wide for that); the new
process starts from the saved folder and a fresh network. Its predictions, and onnxruntime's, must be those made before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from prunus.util.files import write_atomically
from prunus.zoo.models import names
from tests.ship.roundtrip import there

ROOT = Path(__file__).resolve().parent.parent


def round_trip(name: str) -> dict[str, Any]:
    """What was lost on the way there and back."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        row = there(name, Path(folder))
        command = [sys.executable, "-m", "tests.ship.roundtrip", folder, name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            return row | {"same predictions": False, "error": said}
        row |= json.loads(done.stdout.splitlines()[-1])[name]
    return row | {"seconds": round(time.perf_counter() - started, 1)}


def main() -> int:
    """All rows; 1 where a prediction changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help="all of the registry if none is named")
    parser.add_argument("--write", type=Path, help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for name in args.networks or names():
        rows[name] = row = round_trip(name)
        if "error" in row:
            print(f"{name:16} FAILED: {row['error']}", flush=True)
            continue
        print(
            f"{name:16} {row['macs']:.0%} of the MACs left, {row['repair']:5}  loaded off by {row['loaded']:.1e}, "
            f"onnxruntime by {row['onnx']:.1e} of the largest output, {row['images']} images, predictions "
            f"{'the same' if row['same predictions'] else 'DIFFER'}, {row['seconds']:.0f} s",
            flush=True,
        )
    if args.write:
        write_atomically(args.write, json.dumps(rows, indent=1).encode())
    return 0 if all(row["same predictions"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
