"""Networks of many libraries, each pruned everywhere at once and checked: `make zoo` writes the table docs/zoo.md.

    python benchmarks/zoo.py [--only NAME ...] [--shard 1/2] [--write docs/zoo.md] [--fresh]
    python benchmarks/zoo.py --onnx FILE.json [--only NAME or model.onnx ...]        # about ten minutes

Each network gets random weights and statistics (tests/zoo_nets.py), loses 25% to 50% of every unit at once, with
streams selected and with streams coupled, and is compared in float64 with itself zeroed. torch-pruning gets the same
task (peers.py). Each network runs in processes of its own, which a crash or the clock may end. Results are kept in
build/zoo, one file each, so an interrupted run goes on where it was and shards can share the work.

With --onnx: which networks survive the way through an .onnx file? Each is written by torch's older exporter, for any
number of images ("old") and for one ("one image"), and by the newer one ("new"); imported, which compares it with
onnxruntime for one image and for three; traced; and pruned by a random plan, which compares it with the zeroed network.
`share` is the share of the MACs in layers that can lose channels, and `share_of_source` that of the network in PyTorch.
A file takes images of 160 x 160 if it takes any size.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import importlib
import inspect
import json
import logging
import multiprocessing
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import prunus
from benchmarks import ROOT, Results, Row, commit, peers
from prunus.errors import PrunusError
from prunus.timing.onnx_export import export_onnx
from prunus.util.files import write_atomically
from prunus.zoo import models
from prunus.zoo.onnx.file import read_onnx
from tests import proof, zoo_nets
from tests.exporting import onnx_error

OUR_SECONDS, PEER_SECONDS = 600, 40  # what a network may take, in CPU time

# One network: pruned at once, exact, counted right, and alive afterwards

# The largest relative error that counts as exact; in float32 rounding is larger, and more so in a deep network.
EXACT = {torch.float64: 1e-12, torch.float32: 1e-4}
LARGE = 10_000_000  # parameters; larger networks are loaded from files with streams selected only, to save time
MODES = ("select", "coupled")
ONNX_NAMES = (
    "torchvision:resnet50 torchvision:vgg11_bn torchvision:densenet121 torchvision:efficientnet_b0 "
    "torchvision:mobilenet_v3_large torchvision:shufflenet_v2_x1_0 torchvision:squeezenet1_1 "
    "torchvision:regnet_y_400mf torchvision:convnext_tiny torchvision:googlenet timm:resnetv2_50 timm:ghostnet_100 "
    "timm:res2net50_26w_4s"
)
ONNX = ONNX_NAMES.split()


def examine(name: str) -> dict[str, Any]:
    """Figures for both ways of handling streams, or why the network is refused."""
    model, image = zoo_nets.prepared(name)
    row: dict[str, Any] = {"exact": EXACT[zoo_nets.entry(name).dtype], "modes": {}}
    try:
        for mode in MODES:
            row["modes"][mode] = examine_mode(model, image, mode)
    except PrunusError as error:
        return {"refused": " ".join(f"{type(error).__name__}: {error}".split())}
    if name in ONNX:
        graph = prunus.trace(model, image)
        small = prunus.prune(graph, prunus.Plan.of(graph, proof.random_keep(graph, seed=3)))
        row["onnx"] = onnx_error(small, image[:1], dynamo=True)
    return row


def examine_mode(model: nn.Module, image: proof.Example, mode: str) -> dict[str, Any]:
    start = time.perf_counter()
    graph = prunus.trace(model, image, streams=mode)
    traced = time.perf_counter()
    keep = proof.random_keep(graph, seed=1)
    plan = prunus.Plan.of(graph, keep)
    planned = time.perf_counter()
    small = prunus.prune(graph, plan)
    pruned = time.perf_counter()
    whole = proof.outputs(model, image)
    with prunus.zeroed(graph, plan):
        zeroed = proof.outputs(model, image)
    with proof.masked(graph.model, graph, keep):
        masked = proof.outputs(graph.model, image)  # of nn.MultiheadAttention the graph has a twin, written out
    prunable, layers = coverage(graph.model, graph)
    return {
        "error": max(proof.relative_error(proof.outputs(small, image), zeroed), proof.relative_error(zeroed, masked)),
        "changed": proof.relative_error(zeroed, whole),
        "macs_right": macs_right(graph, {}, graph.model, image) and macs_right(graph, plan, small, image),
        "removed": 1 - graph.cost(plan).macs / graph.macs,
        "units": len(graph.units),
        "prunable": prunable,
        "layers": layers,
        "frozen": dict(Counter(kind_of_reason(reason) for reason in graph.frozen.values())),
        "trace_seconds": traced - start,
        "prune_seconds": pruned - planned,
        **afterlife(model, small, plan, image),
    }


def macs_right(graph: prunus.ChannelGraph, plan: Any, model: nn.Module, image: proof.Example) -> bool:
    """Whether MACs under a plan are half of PyTorch's flops: all of them, or those of layers alone, because other code
    of a network may call the operations that products call."""
    costs, batch = graph.cost(plan), proof.batch_of(image)
    layers = sum(cost.macs for name, cost in costs.layers.items() if graph.layers[name].kind != "product")
    whole = costs.macs * batch == proof.counted_macs(model, image)
    return whole or layers * batch == proof.counted_macs(model, image, in_layers=graph.layers)


def afterlife(model: nn.Module, small: nn.Module, plan: prunus.Plan, image: proof.Example) -> dict[str, bool | None]:
    """A pruned network is copied, saved, loaded into a fresh one, and trained for a step."""
    want = proof.outputs(small, image)
    copied = copy.deepcopy(small)
    same_copy = all(torch.equal(a, b) for a, b in zip(proof.outputs(copied, image), want, strict=True))
    large = sum(parameter.numel() for parameter in model.parameters()) > LARGE
    loads = None if large and plan.streams == "coupled" else loads_again(model, small, plan, image)
    wanted = proof.train_step(copy.deepcopy(model), image) & set(dict(small.named_parameters()))
    return {"copies": same_copy, "loads": loads, "trains": proof.train_step(copied, image) == wanted}


def loads_again(model: nn.Module, small: nn.Module, plan: prunus.Plan, image: proof.Example) -> bool:
    """Whether the files of a pruned network give the same network again."""
    fresh = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in fresh.state_dict().values():
            tensor.zero_()
    with tempfile.TemporaryDirectory() as folder:
        prunus.save(small, plan, folder)
        loaded = prunus.load(folder, fresh)
    outputs = zip(proof.outputs(loaded, image), proof.outputs(small, image), strict=True)
    return proof.same_state(loaded, small) and all(torch.equal(one, other) for one, other in outputs)


def coverage(model: nn.Module, graph: prunus.ChannelGraph) -> tuple[int, int]:
    """Layers (depthwise aside) whose inputs or outputs a unit lets shrink, and all that the network has."""
    wide = [unit for unit in graph.units.values() if unit.width > unit.granule]
    touched = {end.module for unit in wide for end in (*unit.readers, *unit.writers)}
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (nn.modules.conv._ConvNd, nn.Linear)) and not peers.is_depthwise(module)
    ]
    return sum(name in touched for name in layers), len(layers)


def kind_of_reason(reason: str) -> str:
    """A reason without the names of the layers it speaks of, so that like reasons add up."""
    return re.sub(r"\d+", "#", re.sub(r"\b\w+(\.\w+)+", "…", reason))


# Results in words: a line per network while it runs, a Markdown table at the end

FLAGS = ("macs_right", "copies", "loads", "trains")
OURS = ("exact", "wrong", "crashed", "refused", "nothing")
THEIRS = ("exact", "wrong", "crashed", "nothing")
PACKAGES = (
    "torch torchvision timm segmentation-models-pytorch monai pytorchcv transformers kornia ultralytics torch-pruning"
)

HEAD = """# The zoo

Written by `make zoo`, with one thread. Every network has random weights and statistics, and 25% to 50% of every unit
is removed at once.

- *error*: the largest relative difference between the outputs of the pruned and the zeroed network, in float64, for the
  worse of the two ways of handling streams (selected / coupled). Up to 1e-12 is exact. Networks whose own code makes
  float32 tensors (raft_small) run in float32, and up to 1e-4 is exact.
- *layers*: convolutions (without depthwise ones) and linear layers that can shrink, out of all layers of the network,
  including auxiliary heads that are not called.
- *checks*: MACs by formula equal half of PyTorch's own flop count before and after; the pruned network can be
  deep-copied, saved and loaded with equal results (with streams coupled: up to 10 million parameters), and trained for
  a step.
- *seconds*: trace + prune, with their proofs. *frozen*: layers that cannot be pruned, each with a reason.
- *torch-pruning* prunes the same networks with the same weights: its default pruner, without any help but the list of
  the layers that write the outputs, takes 25% to 50% of every group at random. It is exact if the result computes what
  the network computes with those channels set to zero, up to 1e-9; in brackets the groups that it cut, and the layers.
  No answer in 40 s counts as crashed.
- Left out: what torchvision's detectors do with boxes (RoIAlign, nms), and regnet_y_128gf, which is too large for
  small machines. Detectors are traced as backbone, feature pyramid and heads.

"""


def line(row: Row) -> str:
    """One network on one line of the terminal."""
    if "modes" not in row:
        return f"{row['name']:36} {status(row).upper()} {reason(row)[:140]}  | {peer_verdict(row)}"
    select = row["modes"]["select"]
    return (
        f"{row['name']:36} error {worst(row):.1e}  changed {select['changed']:.1e}  {checks(row):6}  "
        f"layers {layers(row):9}  macs -{removed(row)}  {seconds(row):.2f} s  | {peer_verdict(row)}"
    )


def status(row: Row) -> str:
    """What became of a network: exact, wrong, crashed, refused, or nothing to prune."""
    if "failed" in row:
        return "crashed"
    if "refused" in row:
        return "refused"
    if not all(mode["units"] for mode in row["modes"].values()):
        return "nothing"
    return "exact" if worst(row) <= row["exact"] else "wrong"


def is_right(row: Row) -> bool:
    """Exact both ways, counted right, and alive afterwards; or refused with a reason."""
    return status(row) == "refused" or ("modes" in row and worst(row) <= row["exact"] and checks(row) == "all")


def reason(row: Row) -> str:
    return str(row.get("failed", row.get("refused", ""))).replace("|", "/")


def peer_verdict(row: Row) -> str:
    """torch-pruning's verdict on a network, and what it cut."""
    verdict = row["peer"]
    cut = f" ({verdict['groups']}; {verdict['layers']})" if verdict.get("groups") else ""
    return f"{verdict['verdict']}{cut}"


def as_markdown(rows: list[Row]) -> str:
    """The page docs/zoo.md."""
    parts = [HEAD, f"Run on commit {commit()}, with {versions()}.\n" if commit() else ""]
    libraries = list(dict.fromkeys(library(row) for row in rows))
    parts.append(f"\n## Summary\n\n{summary(rows, libraries)}\n{exported(rows)}{norms(rows)}")
    parts += [f"\n## {name}\n\n{table([row for row in rows if library(row) == name])}\n" for name in libraries]
    return "".join(parts) + f"\n## Why channels stay\n\n{reasons(rows)}\n"


def library(row: Row) -> str:
    return str(row["name"].split(":")[0])


def versions() -> str:
    found = []
    for package in PACKAGES.split():
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def summary(rows: list[Row], libraries: list[str]) -> str:
    """A line for each library and one for all."""
    heads = ["library", "networks", *OURS, "checks", "layers (select)", "(coupled)"]
    heads += [f"torch-pruning {verdict}" for verdict in THEIRS] + ["its layers"]
    lines = [as_line(heads), "|" + "---|" * len(heads)]
    lines += [summary_line(name, [row for row in rows if library(row) == name]) for name in libraries]
    lines.append(summary_line("**all**", rows))
    return "\n".join(lines)


def summary_line(title: str, rows: list[Row]) -> str:
    ours, theirs = Counter(status(row) for row in rows), Counter(row["peer"]["verdict"] for row in rows)
    done = [row for row in rows if "modes" in row]
    clean = sum(checks(row) == "all" for row in done)
    whole = sum(row["modes"]["select"]["layers"] for row in done)
    shares = [sum(row["modes"][mode]["prunable"] for row in done) for mode in ("select", "coupled")]
    right = sum(row["peer"].get("layers", 0) for row in done if row["peer"]["verdict"] == "exact")
    cells = [title, len(rows), *(ours[one] for one in OURS), clean, f"{shares[0]:,} of {whole:,}", f"{shares[1]:,}"]
    return as_line([*cells, *(theirs[one] for one in THEIRS), f"{right:,} (where exact)"])


def as_line(cells: list[Any]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def exported(rows: list[Row]) -> str:
    errors = [row["onnx"] for row in rows if "onnx" in row]
    if not errors:
        return ""
    return f"\n{len(errors)} exported to ONNX; onnxruntime differs by {max(errors):.0e} at most, relative, float32.\n"


def norms(rows: list[Row]) -> str:
    """How many of torch-pruning's wrong networks contain norms that see fewer channels once they are pruned."""
    wrong = [row["peer"] for row in rows if row["peer"]["verdict"] == "wrong"]
    among = sum(peer["norms"] for peer in wrong)
    return (
        f"\n{among} of the {len(wrong)} networks that torch-pruning gets wrong contain norms over channels (LayerNorm, "
        "GroupNorm): it cuts them, so that they normalise other values. Here they keep their channels.\n"
    )


def table(rows: list[Row]) -> str:
    heads = ["network", "error", "layers", "MACs removed", "units", "checks", "seconds", "frozen", "torch-pruning"]
    lines = [as_line(heads), "|" + "---|" * len(heads)]
    for row in rows:
        name = row["name"].split(":")[1]
        if "modes" not in row:
            lines.append(as_line([name, f"{status(row)}: {reason(row)[:200]}", *[""] * 6, peer_verdict(row)]))
            continue
        units = " / ".join(str(mode["units"]) for mode in row["modes"].values())
        frozen = sum(row["modes"]["select"]["frozen"].values())
        cells = [name, f"{worst(row):.0e}", layers(row), removed(row), units, checks(row), f"{seconds(row):.2f}"]
        lines.append(as_line([*cells, frozen, peer_verdict(row)]))
    return "\n".join(lines)


def reasons(rows: list[Row]) -> str:
    """Reasons of all networks together, the most frequent first."""
    counted: Counter[str] = Counter()
    networks: Counter[str] = Counter()
    for row in rows:
        for why, count in row.get("modes", {}).get("select", {}).get("frozen", {}).items():
            counted[why] += count
            networks[why] += 1
    lines = ["| reason | layers | networks |", "|---|---|---|"]
    lines += [as_line([why.replace("|", "/"), count, networks[why]]) for why, count in counted.most_common(40)]
    return "\n".join(lines)


def worst(row: Row) -> float:
    return float(max(mode["error"] for mode in row["modes"].values()))


def checks(row: Row) -> str:
    """`all`, or the ones that fail."""
    failing = [f"{flag} ({way})" for way, mode in row["modes"].items() for flag in FLAGS if mode[flag] is False]
    return "not " + ", ".join(failing) if failing else "all"


def layers(row: Row) -> str:
    select = row["modes"]["select"]
    return f"{select['prunable']}/{select['layers']}"


def removed(row: Row) -> str:
    return " / ".join(f"{100 * mode['removed']:.0f}%" for mode in row["modes"].values())


def seconds(row: Row) -> float:
    select = row["modes"]["select"]
    return float(select["trace_seconds"] + select["prune_seconds"])


# Each network in processes of its own, and kept results


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


def stamps(library: str) -> tuple[str, str]:
    """Hashes of the code that our results and torch-pruning's depend on; other code starts over."""
    tests, source = ROOT / "tests", ROOT / "src" / "prunus"
    networks = [tests / "networks" / "__init__.py", tests / "networks" / f"from_{library}.py", tests / "zoo_nets.py"]
    ours = [*networks, tests / "proof.py", *sorted((source / "graph").rglob("*.py"))]
    mine = (examine, examine_mode, macs_right, afterlife, loads_again, coverage, kind_of_reason)
    theirs = (peers.examine, peers.cut_everything, peers.layers_at_the_end, peers.masked)
    return digest(ours, mine), digest(networks, theirs)


def digest(files: list[Path], functions: tuple[Callable[..., Any], ...]) -> str:
    """A hash of these files and of the text of these functions."""
    parts = [file.read_bytes() for file in files] + [inspect.getsource(each).encode() for each in functions]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def kept(path: Path, stamp: str, make: Callable[[], Row]) -> Row:
    """The result in this file if it is of the same code; else a new one, which is put there."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    if stored.get("code") != stamp:
        stored = {"code": stamp, "row": make()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(stored, indent=1).encode())
    return stored["row"]  # type: ignore[no-any-return]


def row_of(name: str, results: Path, ours: str, theirs: str) -> Row:
    """Our result and torch-pruning's, which counts as crashed without an answer in time."""

    def peer() -> Row:
        row = guarded(peers.examine, name, PEER_SECONDS)
        return {"verdict": "crashed", "why": row["failed"]} if "failed" in row else row

    file = re.sub(r"\W+", "-", name) + ".json"
    own = kept(results / file, ours, lambda: guarded(examine, name, OUR_SECONDS))
    return {"name": name, **own, "peer": kept(results / "peer" / file, theirs, peer)}


# The way through an .onnx file

EXPORTED = """ultralytics:yolov8n prunus:resnet56 unet torchvision:alexnet torchvision:vgg11_bn torchvision:resnet18
torchvision:resnet50 torchvision:resnext50_32x4d torchvision:densenet121 torchvision:googlenet torchvision:inception_v3
torchvision:squeezenet1_0 torchvision:mobilenet_v2 torchvision:mobilenet_v3_small torchvision:efficientnet_b0
torchvision:mnasnet1_0 torchvision:regnet_y_400mf torchvision:shufflenet_v2_x1_0 torchvision:convnext_tiny
timm:resnet26d timm:dla34 timm:ghostnet_100 timm:hrnet_w18_small timm:dpn68 timm:densenet121 timm:efficientnet_lite0
timm:mobilenetv3_small_100 timm:regnetx_002 timm:repvgg_a0 timm:res2net50_26w_4s timm:selecsls42b timm:skresnet18
timm:vovnet39a timm:cspresnet50 timm:mobilenetv4_conv_small"""
SIDES = {"inception_v3": 299, "alexnet": 224, "vgg11_bn": 224, "yolov8n": 128, "resnet56": 32, "unet": 32}


def through_onnx(names: list[str], out: Path) -> None:
    """A row for each network and exporter, and for each file."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    results = Results(out, "networks with random weights through .onnx files: imported, compared, pruned")
    for name in names or EXPORTED.split():
        for exporter in ("file",) if name.endswith(".onnx") else ("old", "one image", "new"):
            key: Row = {"network": Path(name).name, "exporter": exporter}
            if results.find(key) is None:
                try:
                    row = {**key, **(survived(Path(name)) if exporter == "file" else round_trip(name, exporter))}
                except Exception as error:  # noqa: BLE001  (exporters raise anything)
                    place = traceback.extract_tb(error.__traceback__)[-1].name
                    row = {**key, "error": f"{type(error).__name__}: {error}"[:300], "at": place}
                results.add(row)
                print(row, flush=True)


def round_trip(name: str, exporter: str) -> Row:
    """A network of a library, or of our own, exported and imported."""
    from tests.tasks.nets import UNet

    library, _, short = name.rpartition(":")
    from_library = library in ("torchvision", "timm")
    zoo_nets.import_libraries([name] if from_library else [])
    quiet = {"init_weights": False} if short in ("googlenet", "inception_v3") else {}
    made = {
        "": UNet,
        "prunus": lambda: models.create(short),
        "timm": lambda: importlib.import_module("timm").create_model(short, num_classes=100),
        "torchvision": lambda: zoo_nets.torchvision_models().get_model(short, num_classes=100, **quiet),
        "ultralytics": lambda: zoo_nets.create(name).float(),
    }[library]()
    side = SIDES.get(short, 96)
    example = torch.randn(1, 1 if short == "unet" else 3, side, side)
    model = zoo_nets.randomise(made, torch.cat([example, -example]) if from_library else example)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        if exporter == "new":
            export_onnx(model, example, path)
        else:
            axes = {"dynamic_axes": {"input": {0: "batch"}}} if exporter == "old" else {}
            options = {"input_names": ["input"], "opset_version": 17, "dynamo": False, **axes}
            torch.onnx.export(model, (example,), path, **options)
        row = survived(path, example)
    source = prunus.trace(model, example)
    return {**row, "units_of_source": len(source.units), "share_of_source": prunable_share(source)}


def survived(path: Path, example: torch.Tensor | None = None) -> Row:
    """What becomes of a file; `prunus` raises if it computes something else than onnxruntime, or pruned than zeroed."""
    sizes = []
    if example is None:
        image = read_onnx(path).image
        sizes = [side or 160 for side in image.sizes[2:]]
        example = torch.randn(1, image.sizes[1], *sizes)
    start = time.perf_counter()
    network = prunus.from_onnx(path, sizes) if sizes else prunus.from_onnx(path)
    row: Row = {"equal": True, "seconds": round(time.perf_counter() - start, 2)}
    graph = prunus.trace(network, example)
    plan = prunus.Plan.of(graph, proof.random_keep(graph, 0))
    prunus.prune(graph, plan)
    left = round(graph.cost(plan).macs / graph.macs, 3)
    return {**row, "units": len(graph.units), "share": prunable_share(graph), "exact": True, "macs_left": left}


def prunable_share(graph: prunus.ChannelGraph) -> float:
    """The share of the MACs in layers that can lose channels."""
    return round(sum(graph.layers[name].macs for name in graph.prunable) / graph.macs, 4)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these networks, e.g. timm:dla34")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="every N-th network, from the I-th on")
    parser.add_argument("--write", type=Path, help="write the table to this Markdown file")
    parser.add_argument("--fresh", action="store_true", help="forget kept results")
    parser.add_argument("--onnx", type=Path, help="JSON file for rows of networks that go through .onnx files")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "zoo", help="folder where results are kept")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    torch.set_num_threads(1)
    if options.onnx:
        through_onnx(options.only, options.onnx)
        return 0
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
    text = as_markdown(rows)
    print(text[text.index("\n## ") :])
    if options.write:
        write_atomically(options.write, text.encode())
    return 0 if all(is_right(row) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
