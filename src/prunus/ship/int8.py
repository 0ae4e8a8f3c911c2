"""Networks in 8-bit integers: onnxruntime's static quantisation, calibrated on images and checked by accuracy."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from prunus.errors import ModelError, RunError
from prunus.graph.traced import Example
from prunus.ship.export import check_input
from prunus.ship.fold import fold_batch_norm
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import Evaluation, evaluate, unpack_for
from prunus.tasks.quality import QualityText
from prunus.timing.engines import ENGINES, NUM_CALIBRATION, require
from prunus.timing.engines.onnxruntime import quantise
from prunus.timing.latency import Speedup, latency, repeated, speedup
from prunus.timing.onnx_export import PACKAGES, OnnxFile, export_onnx, one_by_one
from prunus.util.batches import Batches, check_batches
from prunus.util.files import atomic
from prunus.util.progress import PhaseProgress, phases, shown

logger = logging.getLogger(__name__)
MAX_DROP = 1.0  # points of accuracy
ROUNDING = 1e-6  # points: 0.79 - 0.78 is more than 0.01


@dataclass(frozen=True)
class Int8Export:
    """The file that was written, and the quality before and after on the same images.

    Attributes:
        path: The file.
        bytes: Its size.
        before: The quality of the network.
        after: The quality of the file.
        num_calibration: Images on which ranges were measured.
        speed: Engine -> how fast the file is there, relative to the same network in 32 bits; for one image, in
            processor time on one thread.
        quality: The name and unit of the quality.
    """

    path: Path
    bytes: int
    before: Evaluation
    after: Evaluation
    num_calibration: int
    speed: Mapping[str, Speedup]
    quality: QualityText

    @property
    def drop(self) -> float:
        """What was lost: points of accuracy, or the unit of another quality."""
        return self.quality.factor * (self.before.quality - self.after.quality)


def export_int8(
    model: nn.Module,
    example: Example,
    path: str | Path,
    calibration: Batches,
    holdout: Batches,
    *,
    max_drop: float = MAX_DROP,
    num_calibration: int = NUM_CALIBRATION,
    task: Task | str | None = None,
    progress: PhaseProgress | bool | None = None,
) -> Int8Export:
    """Write `model` as an ONNX file whose convolutions and linear layers compute in 8-bit integers.

    Weights have a scale for each output channel, and the file holds pairs of QuantizeLinear and DequantizeLinear, which
    onnxruntime and OpenVINO both fuse. The file is timed in the engines that read ONNX: a warning says where it is
    slower than the network in 32 bits.

    Args:
        model: The network.
        example: An input, for its shape.
        path: The file, which ends in .onnx.
        calibration: Any loader of images, with labels or without, from which the ranges of activations are measured;
            images that the network was trained on are right, in random order.
        holdout: Any loader of other images with labels, on which the quality of both networks is measured.
        max_drop: Points of accuracy that may be lost. ModelError if more are, and nothing is written.
        num_calibration: How many images of `calibration` are read: the first ones.
        task: What the network is for; classification by default.
        progress: Called with phase, steps done, steps in all and a note; False for silence.
    """
    require(PACKAGES, "int8 export")
    path = Path(path)
    if path.suffix != ".onnx":
        raise ModelError(f"int8 is a kind of ONNX file: give a name that ends in .onnx, not {path.name}")
    if max_drop < 0 or num_calibration < 1:
        raise ModelError(f"expected max_drop >= 0 and num_calibration >= 1, got {max_drop} and {num_calibration}")
    check_batches(calibration, "calibration")
    check_input(model, example)
    chosen = task_of(task)
    text = QualityText.of(chosen)
    with tempfile.TemporaryDirectory() as folder, atomic(path) as part, shown(progress, phases) as report:

        def of(phase: str) -> Callable[[int, int | None], None]:
            return lambda done, total: report(phase, done, total or 0, "")

        before = evaluate(model, holdout, task=chosen, progress=of(text.name))
        plain, made = Path(folder) / "plain.onnx", Path(folder) / "int8.onnx"
        report("export", 0, 1, "")
        export_onnx(fold_batch_norm(model, example), example, plain)
        report("export", 1, 1, "")
        seen = 0

        def images() -> Iterator[Any]:
            nonlocal seen
            loader = [calibration] if isinstance(calibration, Tensor) else calibration
            inputs = (unpack_for(chosen, batch, n, labelled=False)[0] for n, batch in enumerate(loader))
            for image in one_by_one(inputs, num_calibration):
                seen += 1
                of("calibration")(seen, num_calibration)
                yield image

        made.write_bytes(quantise(plain.read_bytes(), images()))
        after = evaluate(OnnxFile(made), holdout, task=chosen, progress=of(f"{text.name} of int8"))
        done = Int8Export(path, made.stat().st_size, before, after, seen, {}, text)
        if done.drop > max_drop + ROUNDING:
            change = f"{text.shown(before.quality)} to {text.shown(after.quality)}"
            raise ModelError(
                f"int8 loses {text.size(before.quality - after.quality)} of {text.name} ({change} on "
                f"{before.num_images} images), and at most {max_drop:g} are allowed; nothing was written. Calibrate on "
                "more images, or allow more with --max-drop"
            )
        speed = _timed(plain, made, example, of("timing"))
        part.write_bytes(made.read_bytes())
    for engine, gain in speed.items():
        if gain.high < 1:
            logger.warning("int8 is slower than 32 bits in %s on this machine: %s", engine, gain)
    return replace(done, speed=speed)


def _timed(plain: Path, made: Path, example: Example, report: Callable[[int, int | None], None]) -> dict[str, Speedup]:
    """Engine -> the speed of the second file relative to the first, in the engines that are installed."""
    speeds = {}
    engines = [engine for engine in ENGINES.values() if engine.open_onnx is not None and engine.is_ready]
    for number, engine in enumerate(engines):
        report(number, len(engines))
        once = partial(latency, engine=engine.name, batch_sizes=(1,), threads=1, cpu_time=True)
        try:
            slow, fast = once({"float": OnnxFile(plain), "int8": OnnxFile(made)}, repeated(example, 1))
        except (ModelError, RunError) as error:
            logger.info("int8 was not timed in %s: %s", engine.name, error)
            continue
        speeds[engine.name] = speedup(slow.seconds, fast.seconds)
    report(len(engines), len(engines))
    return speeds
