"""Every torchvision and timm convnet pruned at once, and checked: `make zoo` writes the table docs/zoo.md.

    python benchmarks/zoo.py [--only NAME ...] [--extra] [--write docs/zoo.md] [--fresh]

Each network gets random weights and statistics (tests/zoo_nets.py), loses 25% to 50% of every unit at once, with
streams selected and with streams coupled, and is compared in float64 with itself zeroed. Networks run in processes of
their own; results are kept in build/zoo.json, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import secateur as sc  # noqa: E402
from benchmarks.zoo_table import as_markdown, line  # noqa: E402
from tests import proof, zoo_nets  # noqa: E402
from tests.exporting import onnx_error  # noqa: E402

MODES = ("select", "coupled")
TIMEOUT = 900.0  # seconds a network may take
ONNX_NAMES = (
    "torchvision:resnet50 torchvision:vgg11_bn torchvision:densenet121 torchvision:efficientnet_b0 "
    "torchvision:mobilenet_v3_large torchvision:shufflenet_v2_x1_0 torchvision:squeezenet1_1 "
    "torchvision:regnet_y_400mf torchvision:convnext_tiny torchvision:googlenet timm:resnetv2_50 timm:ghostnet_100 "
    "timm:res2net50_26w_4s"
)
ONNX = ONNX_NAMES.split()


def examine(name: str) -> dict[str, Any]:
    """All that the table says of one network."""
    image = zoo_nets.example(name)
    model = zoo_nets.randomise(zoo_nets.create(name).double(), image)
    row: dict[str, Any] = {"name": name, "modes": {}}
    for mode in MODES:
        row["modes"][mode] = examine_mode(model, image, mode)
    if name in ONNX:
        graph = sc.trace(model, image)
        small = sc.prune(graph, sc.Plan.of(graph, proof.random_keep(graph, seed=3)))
        row["onnx"] = onnx_error(small, image[:1], dynamo=True)
    return row


def examine_mode(model: nn.Module, image: Tensor, mode: str) -> dict[str, Any]:
    start = time.perf_counter()
    graph = sc.trace(model, image, streams=mode)
    traced = time.perf_counter()
    keep = proof.random_keep(graph, seed=1)
    plan = sc.Plan.of(graph, keep)
    planned = time.perf_counter()
    small = sc.prune(graph, plan)
    pruned = time.perf_counter()
    whole = proof.outputs(model, image)
    with sc.zeroed(graph, plan):
        zeroed = proof.outputs(model, image)
    with proof.masked(model, graph, keep):
        masked = proof.outputs(model, image)
    batch = proof.batch_of(image)
    prunable, layers = coverage(model, graph)
    return {
        "error": max(proof.relative_error(proof.outputs(small, image), zeroed), proof.relative_error(zeroed, masked)),
        "changed": proof.relative_error(zeroed, whole),
        "macs_right": graph.macs * batch == proof.counted_macs(model, image)
        and graph.cost(plan).macs * batch == proof.counted_macs(small, image),
        "removed": 1 - graph.cost(plan).macs / graph.macs,
        "units": len(graph.units),
        "prunable": prunable,
        "layers": layers,
        "frozen": dict(Counter(kind_of_reason(reason) for reason in graph.frozen.values())),
        "trace_seconds": traced - start,
        "prune_seconds": pruned - planned,
        **afterlife(model, small, plan, image),
    }


def afterlife(model: nn.Module, small: nn.Module, plan: sc.Plan, image: Tensor) -> dict[str, bool]:
    """A pruned network is copied, saved, loaded into a fresh one, and trained for a step."""
    want = proof.outputs(small, image)
    copied = copy.deepcopy(small)
    same_copy = all(torch.equal(a, b) for a, b in zip(proof.outputs(copied, image), want, strict=True))
    fresh = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in fresh.state_dict().values():
            tensor.zero_()
    with tempfile.TemporaryDirectory() as folder:
        sc.save(small, plan, folder)
        loaded = sc.load(folder, fresh)
    del fresh
    same_load = proof.same_state(loaded, small) and all(
        torch.equal(a, b) for a, b in zip(proof.outputs(loaded, image), want, strict=True)
    )
    del loaded
    wanted = proof.train_step(copy.deepcopy(model), image) & set(dict(small.named_parameters()))
    return {"copies": same_copy, "loads": same_load, "trains": proof.train_step(copied, image) == wanted}


def coverage(model: nn.Module, graph: sc.ChannelGraph) -> tuple[int, int]:
    """Layers (depthwise aside) whose inputs or outputs a unit lets shrink, and all that the network has."""
    wide = [unit for unit in graph.units.values() if unit.width > unit.granule]
    touched = {end.module for unit in wide for end in (*unit.readers, *unit.writers)}
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (nn.modules.conv._ConvNd, nn.Linear)) and not is_depthwise(module)
    ]
    return sum(name in touched for name in layers), len(layers)


def is_depthwise(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.conv._ConvNd) and module.groups == module.in_channels > 1


def kind_of_reason(reason: str) -> str:
    """A reason without the names of the layers it speaks of, so that like reasons add up."""
    return re.sub(r"\d+", "#", re.sub(r"\b\w+(\.\w+)+", "…", reason))


def in_process(name: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            pipe.send(examine(name))
        except BaseException as error:  # noqa: BLE001  (whatever it is, it belongs in the table)
            pipe.send({"name": name, "failed": f"{type(error).__name__}: {error}", "where": traceback.format_exc()})


def guarded(name: str) -> dict[str, Any]:
    """`examine` in a process of its own, which a crash or the clock may end."""
    context = multiprocessing.get_context("fork")  # torch, torchvision and timm are imported once, here
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=in_process, args=(name, sender))
    process.start()
    sender.close()
    try:
        row: dict[str, Any] = (
            receiver.recv() if receiver.poll(TIMEOUT) else {"name": name, "failed": f"no answer in {TIMEOUT:.0f} s"}
        )
    except EOFError:
        row = {"name": name, "failed": "the process died"}
    process.kill()
    process.join()
    return row


def code_hash() -> str:
    """Results are of this code; another one starts over."""
    files = sorted((ROOT / "src" / "secateur" / "channels").rglob("*.py"))
    files += [Path(__file__), ROOT / "tests" / "proof.py", ROOT / "tests" / "zoo_nets.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def commit() -> str:
    """The commit that is checked out, or nothing outside a git checkout."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip()


def kept_results(path: Path, stamp: str) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    stored = json.loads(path.read_text())
    return stored["rows"] if stored["code"] == stamp else {}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these networks, e.g. timm:dla34")
    parser.add_argument("--extra", action="store_true", help="other networks of torchvision and timm too")
    parser.add_argument("--write", type=Path, help="write the table to this Markdown file")
    parser.add_argument("--fresh", action="store_true", help="forget kept results")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "zoo.json", help="where results are kept")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    torch.set_num_threads(1)
    zoo_nets.import_libraries()  # once, before the forks
    names = options.only or zoo_nets.zoo_names() + (zoo_nets.EXTRA if options.extra else [])
    stamp = code_hash()
    rows = {} if options.fresh else kept_results(options.results, stamp)
    for name in names:
        if name not in rows:
            rows[name] = guarded(name)
            write(options.results, json.dumps({"code": stamp, "rows": rows}, indent=1))
        print(line(rows[name]), flush=True)
    chosen = [rows[name] for name in names]
    text = as_markdown(chosen, commit())
    print(text[text.index("\n## ") :] if "\n## " in text else text)
    if options.write:
        write(options.write, text)
    return 0 if all(is_right(row) for row in chosen) else 1


def is_right(row: dict[str, Any]) -> bool:
    """Exact both ways, counted right, and alive afterwards."""
    return "failed" not in row and all(
        mode["error"] <= 1e-12 and all(mode[key] for key in ("macs_right", "copies", "loads", "trains"))
        for mode in row["modes"].values()
    )


if __name__ == "__main__":
    sys.exit(main())
