"""secateur prune: the main job, from a trained network and labelled images to a smaller network in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli.common import console, friendly, phases
from secateur.cli.demo import DEMO_DATA, DEMO_MODEL, demo_network
from secateur.cli.options import (
    Augment,
    Data,
    DataRoot,
    DecidingImages,
    Device,
    Exact,
    LearningRate,
    Mean,
    Size,
    Std,
    Streams,
    Weights,
    Workers,
)

if TYPE_CHECKING:
    from torch import nn

    from secateur.running.compress import Compressed
    from secateur.zoo.data import ImageData

GOALS = ("target", "macs", "params", "max_drop", "ratio")
DEMO = {"target": 0.5, "rounds": 2, "k": 4, "epochs": 24, "lr": 0.02, "augment": False, "distill": True}


@friendly
def command(
    model: Annotated[
        str | None, typer.Argument(help="Built-in name, torchvision:NAME, timm:NAME, package.module:factory.")
    ] = None,
    weights: Weights = None,
    data: Data = "digits",
    target: Annotated[float | None, typer.Option(help="Fraction of MACs to remove; 0.5 unless another goal.")] = None,
    macs: Annotated[str | None, typer.Option(help="MACs to be left, as in 63M.")] = None,
    params: Annotated[str | None, typer.Option(help="Weights to be left, as in 400K.")] = None,
    max_drop: Annotated[float | None, typer.Option(help="Points of held-out accuracy that may be lost.")] = None,
    ratio: Annotated[float | None, typer.Option(help="One shot: this share of every unit.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="What a channel is worth by; gsd is the paper's. See docs/metrics.md.")
    ] = None,
    images: Annotated[int | None, typer.Option(help="Score on so many images, drawn anew each round.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Reach the target in so many rounds.")] = None,
    alpha: Annotated[float, typer.Option(help="Pruning rate of Eqn. 3; the paper takes 2 to 4.")] = 3.0,
    k: Annotated[int | None, typer.Option(help="Units pruned a round; a third of them by default.")] = None,
    method: Annotated[str, typer.Option(help="flops (Algorithm 1), ratio (Li et al.), alike or errors.")] = "flops",
    measure: Annotated[str, typer.Option(help="Rank units by held-out accuracy or loss.")] = "accuracy",
    cost: Annotated[str, typer.Option(help="Equal macs, params or latency are compared.")] = "macs",
    exact: Exact = False,
    streams: Streams = "select",
    exclude: Annotated[list[str] | None, typer.Option(help="Leave units or layers of this pattern alone.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Prune units or layers of this pattern only.")] = None,
    round_to: Annotated[int, typer.Option(help="Leave widths that are multiples of this.")] = 1,
    repair: Annotated[str, typer.Option(help="Before retraining: none, bn or solve.")] = "none",
    repair_images: Annotated[
        int | None, typer.Option(help="Training images for it, without labels: 500, or 2000 (docs/repair.md).")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="With a repair: judge units cut or repaired.")] = None,
    preset: Annotated[str, typer.Option(help="Retraining schedule, as in `secateur train`.")] = "cosine",
    epochs: Annotated[int | None, typer.Option(help="Epochs a round; 0: no retraining.")] = None,
    last_epochs: Annotated[int | None, typer.Option(help="Epochs of the round that meets the goal.")] = None,
    lr: LearningRate = None,
    distill: Annotated[bool, typer.Option(help="Retrain towards the unpruned network's answers too.")] = False,
    augment: Augment = True,
    batch_size: Annotated[int, typer.Option(help="Images of a step.")] = 128,
    holdout: DecidingImages = "train:0.1",
    data_root: DataRoot = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    workers: Workers = 0,
    device: Device = None,
    seed: Annotated[int, typer.Option(help="Of samples, order and augmentation.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/prune-MODEL-DATA by default.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
) -> None:
    """Prune a trained network and retrain it, in rounds.

    Without arguments: trains a small residual network on scikit-learn's digits, and removes half of its MACs.

    Examples:

        secateur prune

        secateur prune resnet56 --weights w.safetensors --data cifar10 --epochs 3

        secateur prune resnet56 --weights w.safetensors --max-drop 0.5 --repair bn

        secateur prune resnet56 --weights w.safetensors --repair solve --epochs 0

        secateur prune --resume runs/prune-resnet56-cifar10
    """
    asked = {key: _text(value) for key, value in locals().items() if key not in ("out", "resume")}
    if resume is not None:
        asked, out = _asked_before(resume), resume
    elif asked["model"] is None:
        asked = _demo(asked)
    _prune(asked, out or Path("runs") / _plain(f"prune-{asked['model']}-{asked['data']}"))


def _demo(asked: dict[str, Any]) -> dict[str, Any]:
    """The built-in network and data, and settings that suit them where nothing else is asked for."""
    from secateur.errors import ModelError

    if asked["data"] != DEMO_DATA:
        raise ModelError(f"name the network to prune: secateur prune MODEL --weights FILE --data {asked['data']}")
    asked = {**asked, "model": DEMO_MODEL}
    if any(asked[goal] is not None for goal in GOALS):
        return asked
    return asked | {key: value for key, value in DEMO.items() if asked[key] is None or isinstance(value, bool)}


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def _asked_before(folder: Path) -> dict[str, Any]:
    from secateur.errors import RunError
    from secateur.running.folder import CONFIG, RunFolder

    asked = RunFolder(folder).read(CONFIG).get("command")
    if not isinstance(asked, dict):
        raise RunError(f"{folder / CONFIG} was not written by `secateur prune`; go on with secateur.compress instead")
    return asked


def _prune(asked: dict[str, Any], folder: Path) -> None:
    import torch

    from secateur.base.processes import best_device, leave, rank_and_world, usable
    from secateur.cli.opening import open_data
    from secateur.report.run_page import write_report
    from secateur.running.compress import compress

    rank, world = rank_and_world(asked["device"])
    images = open_data(
        asked["data"],
        asked["model"],
        root=Path(asked["data_root"]) if asked["data_root"] else None,
        mean=asked["mean"],
        std=asked["std"],
        size=asked["size"],
        holdout=asked["holdout"],
        seed=asked["seed"],
    )
    network = _network(asked, images, rank)
    device = usable(asked["device"]) if asked["device"] else best_device()
    if world == 1:
        network = network.to(device)
    loaders: dict[str, Any] = {"seed": asked["seed"], "workers": asked["workers"]}
    batch = max(1, asked["batch_size"] // world)
    share: dict[str, Any] = {"rank": rank, "world": world}
    with phases(rank == 0) as show:
        result = compress(
            network,
            images.loader("train", batch, augment=asked["augment"], shuffle=True, **share, **loaders),
            images.loader("holdout", 256, **loaders),
            score_on=images.loader("train", 256, **share, **loaders),
            test=images.loader("test", 256, **loaders) if images.count("test") else None,
            example=torch.zeros(1, *images.shape, device=next(network.parameters()).device),
            settings=_settings(asked),
            folder=folder,
            about={"command": asked},
            progress=show,
        )
    if rank == 0:
        say(result, folder, write_report(folder))
    leave()


def _settings(asked: dict[str, Any]) -> Any:
    from secateur.running.settings import Settings

    target = asked["target"] if any(asked[goal] is not None for goal in GOALS) else 0.5
    same = (
        "metric images rounds alpha k method measure cost exact streams round_to "
        "repair repair_images judge preset epochs last_epochs lr distill seed"
    )
    return Settings(
        target=target,
        macs=_number(asked["macs"], "--macs"),
        params=_number(asked["params"], "--params"),
        max_drop=None if asked["max_drop"] is None else asked["max_drop"] / 100,
        ratio=asked["ratio"],
        exclude=tuple(asked["exclude"] or ()),
        only=tuple(asked["only"] or ()),
        **{name: asked[name] for name in same.split()},
    )


def _number(text: str | None, option: str) -> float | None:
    """63M as 63e6."""
    from secateur.errors import DecideError

    if text is None:
        return None
    scale = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}.get(text[-1:].upper(), 1.0)
    try:
        return float(text[:-1] if scale > 1 else text) * scale
    except ValueError as error:
        raise DecideError(f"{option} takes a number such as 63M, 400K or 2.3G, not {text!r}") from error


def _network(asked: dict[str, Any], images: ImageData, rank: int) -> nn.Module:
    """The trained network: from a weight file, from its own factory, or (the demo) trained here once and kept."""
    from secateur.cli.opening import open_model
    from secateur.errors import ModelError

    name, weights = asked["model"], asked["weights"]
    own = ":" in name and not name.startswith(("torchvision:", "timm:"))
    if weights is not None or own:
        return open_model(name, images, Path(weights) if weights else None, seed=asked["seed"])
    if (name, asked["data"]) == (DEMO_MODEL, DEMO_DATA):
        return demo_network(images, asked["seed"], rank)
    raise ModelError(
        f"pruning starts from a trained network: pass --weights FILE with the weights of {name}. "
        f"To train one first: secateur train --model {name} --data {asked['data']}"
    )


# -- what is said at the end


def say(result: Compressed, folder: Path, report: Path) -> None:
    """The run's summary on the screen."""
    from secateur.cli.columns import columns

    before, after = result.summary["before"], result.summary["after"]
    rows = [["", "before", "after", ""]]
    for part in ("holdout", "test"):
        for key, title in (("top1", "accuracy"), ("top5", "top-5")):
            was, now = (before[part] or {}).get(key), (after[part] or {}).get(key)
            if was is not None and now is not None and (key == "top1" or was < 0.999):
                name = f"{'held-out' if part == 'holdout' else part} {title}"
                rows.append([name, f"{100 * was:.2f}%", f"{100 * now:.2f}%", f"{100 * (now - was):+.2f} points"])
    for key, title in (("macs", "MACs"), ("params", "weights"), ("bytes", "bytes on disk")):
        rows.append([title, _big(before[key]), _big(after[key]), f"-{100 * (1 - after[key] / before[key]):.1f}%"])
    for size, was in (before["latency"] or {}).items():
        now = after["latency"][size]
        rows.append([f"ms, batch {size}", f"{1e3 * was:.2f}", f"{1e3 * now:.2f}", f"{was / now:.2f}x"])
    console.print(columns(rows[0], rows[1:], numbers=("before", "after", "")), highlight=False)
    seconds = dict(result.summary["seconds"])
    whole = seconds.pop("this_call")
    spent = ", ".join(f"{phase} {taken:.0f} s" for phase, taken in seconds.items() if taken >= 0.5)
    rounds = f"{len(result.rounds)} round{'s' if len(result.rounds) != 1 else ''}"
    console.print(f"\n{rounds} in {whole:.0f} s" + (f": {spent}" if spent else ""))
    console.print(f"results in {folder}: model.safetensors, plan.json, summary.json", soft_wrap=True)
    console.print(f"report: {report} (open it in a browser)", soft_wrap=True, markup=False)
    console.print(f'load it with: secateur.load("{folder}", original_model)', soft_wrap=True, markup=False)


def _big(number: int) -> str:
    for unit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " K")):
        if number >= unit:
            return f"{number / unit:.2f}{suffix}"
    return str(number)
