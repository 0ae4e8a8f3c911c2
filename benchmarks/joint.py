"""How well the sum of units' errors predicts what a joint cut does: random plans near the optimum, each repaired.

    python benchmarks/joint.py --network resnet20 --weights FILE --data DIR --goal macs=0.5,macs=0.65 \
        --num-plans 10 --num-images 500 --work FOLDER --out FILE.json

The first plan is that of the smallest sum of errors; the others are optimal for errors that were multiplied, unit by
unit, by random factors exp(s z), s between 0 and --spread. All plans meet the same budget, of MACs or of time by the
same table (--goal speedup=2). A row has the predicted sum and what was measured after the full repair on --num-images
training images: the mean square change of the outputs relative to their variance, and the accuracy, on held-out images.
--power P weighs the errors of a unit by (its place among the calls)^P, which is a correction by depth. Scores are kept
in --work.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import Tensor, nn

import prunus
from benchmarks import Results
from benchmarks.cifar import opened
from prunus.deciding.costs import cost_function, table_cost
from prunus.deciding.goal import Budget
from prunus.deciding.settings import SplitSettings
from prunus.deciding.splits import SplitInputs, least_error
from prunus.run.speed_check import plan_error
from prunus.scoring.scores import Scores
from prunus.timing.layer_timing import latency_table


@torch.no_grad()
def outputs_of(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The network's outputs for all images."""
    return torch.cat([model.eval()(images) for images, _ in batches])


def depth_of(graph: prunus.ChannelGraph) -> dict[str, float]:
    """Unit -> the place of its first reader among the calls of the network, between 0 and 1."""
    order = {name: place for place, name in enumerate(graph.layers)}
    return {
        name: (1 + min(order[reader.module] for reader in unit.readers)) / len(order)
        for name, unit in graph.units.items()
    }


def main() -> None:
    """Measure what is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet20")
    parser.add_argument("--weights")
    parser.add_argument("--data", required=True)
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--goal", default="macs=0.5,macs=0.65")
    parser.add_argument("--num-plans", type=int, default=10)
    parser.add_argument("--round-to", type=int, default=1)
    parser.add_argument("--spread", type=float, default=1.0)
    parser.add_argument("--num-images", type=int, default=2000, help="of the repair")
    parser.add_argument("--num-scored", type=int, default=500, help="images for errors")
    parser.add_argument("--num-held-out", type=int, default=2000)
    parser.add_argument("--power", type=float, default=0.0)
    parser.add_argument("--no-blocks", dest="blocks", action="store_false")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(namespace=argparse.Namespace(num_train=None))
    torch.set_num_threads(1)
    images = opened(args)
    graph = prunus.trace(images.model, images.example)
    held_out = list(images.holdout)
    labels, wanted = torch.cat([y for _, y in held_out]), outputs_of(images.model, held_out)

    def some(count: int) -> Tensor:
        taken: list[Tensor] = []
        for batch, _ in images.plain:
            taken.append(batch)
            if sum(map(len, taken)) >= count:
                break
        return torch.cat(taken)[:count]

    known = args.work / f"scores-{args.network}-{args.num_scored}.npz"
    if known.exists():
        scores = Scores("rebuilt", dict(np.load(known)))
    else:
        scores = prunus.score(graph, prunus.repair_each(graph, some(args.num_scored)), metric="rebuilt")
        args.work.mkdir(parents=True, exist_ok=True)
        np.savez(known, **scores.values)
    depth, results = depth_of(graph), Results(args.out, "sum of units' errors and measured change after the repair")
    for goal in args.goal.split(","):
        kind, value = goal.split("=")
        cost = cost_function(graph, "macs")
        if kind == "speedup":
            cost = table_cost(graph, latency_table(graph, engine=args.engine, batch=args.batch, threads=1))
        left = cost({}) * (1 - float(value) if kind == "macs" else 1 / float(value))
        settings = SplitSettings(split="least_error", blocks=args.blocks, round_to=args.round_to)
        inputs = SplitInputs(graph, scores, Budget(cost, left, cost({})), settings)
        for number in range(args.num_plans):
            key = {
                name: getattr(args, name) for name in ("network", "engine", "batch", "num_images", "blocks", "power")
            }
            key |= {"goal": goal, "spread": args.spread, "plan": number}
            if results.find(key) is not None:
                continue
            draw = np.random.default_rng(number)
            spread = args.spread * number / max(1, args.num_plans - 1)
            factors = {name: depth[name] ** args.power * np.exp(spread * draw.normal()) for name in scores.values}
            weighed = replace(scores, values={name: values * factors[name] for name, values in scores.values.items()})
            plan = least_error(replace(inputs, scores=weighed))
            small = prunus.repair(graph, plan, some(args.num_images))
            got = outputs_of(small, held_out)
            each = {
                name: round(
                    float(
                        np.max(np.asarray(scores.values[name])[np.setdiff1d(np.arange(graph.units[name].width), kept)])
                    ),
                    6,
                )
                for name, kept in plan.keep.items()
                if name in scores.values and len(kept) < graph.units[name].width
            }
            row = {
                **key,
                "sum": round(plan_error(inputs, plan), 5),
                "change": round(float((got - wanted).square().mean() / (wanted - wanted.mean(0)).square().mean()), 5),
                "accuracy": round(100 * float((got.argmax(1) == labels).float().mean()), 2),
                "macs_removed": round(1 - graph.cost(plan).macs / graph.macs, 4),
                "errors": each,
            }
            results.add(row)
            print({name: value for name, value in row.items() if name != "errors"}, flush=True)


if __name__ == "__main__":
    main()
