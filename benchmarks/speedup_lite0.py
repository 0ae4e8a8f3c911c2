"""EfficientNet-Lite0 with its ImageNet weights, pruned for measured time without any training.

    python benchmarks/speedup_lite0.py table --data PHOTOGRAPHS --out speedup-lite0.json
    python benchmarks/speedup_lite0.py make --data PHOTOGRAPHS --out speedup-lite0.json --speedup 1.2 --speedup 1.4

onnxruntime, batch 1, one thread, processor time. `table` times the layers, on a quiet machine. Packages and images are
those of benchmarks/training_free.py: 400 photographs for errors and repair, the accuracy on 600 others.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import prunus as sc
from benchmarks.on_cifar10 import table_so_far, write
from benchmarks.training_free import answers, measured, opened_lite
from prunus.timing.layer_timing import latency_table

HOW = {"engine": "onnxruntime", "batch": 1, "threads": 1}


def main() -> None:
    """Fill the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("table", "make"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--speedup", type=float, action="append", default=[])
    args = parser.parse_args()
    model, train, test = opened_lite("lite0", args.data)
    example = train[0][0][:1]
    found = table_so_far(args.out, {"network": "lite0", "rows": {}})
    if args.step == "table":
        started = time.perf_counter()
        table = latency_table(sc.trace(model, example), **HOW)  # type: ignore[arg-type]
        found["table"] = {"measured_with": str(table.measured_with), "seconds": time.perf_counter() - started}
        write(found, args.out)
        return
    before, labels = answers(model, test)
    found["before"] = {"accuracy": round(100 * float((before == labels).float().mean()), 2), "images": len(labels)}
    for asked in args.speedup:
        if f"{asked}x" in found["rows"]:
            continue
        done = sc.compress(model, train, train[:2], example=example, epochs=0, speedup=asked, **HOW)  # type: ignore[arg-type]
        time_of = {key: value for key, value in done.summary["time"].items() if key != "layers"}
        macs = round(done.summary["after"]["macs"] / done.summary["before"]["macs"], 4)
        found["rows"][f"{asked}x"] = {**measured(done.model, test, before), "macs": macs, "time": time_of}
        print(asked, found["rows"][f"{asked}x"], flush=True)
        write(found, args.out)


if __name__ == "__main__":
    main()
