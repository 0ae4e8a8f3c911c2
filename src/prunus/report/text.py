"""The sentences of the report."""

from __future__ import annotations

from prunus.report.read import FinishedRun
from prunus.tasks.evaluate import Evaluation
from prunus.tasks.quality import ACCURACY, QualityWords

# Numbers formatted for people.


def big(number: float) -> str:
    """11944576 as 11.94 M."""
    for unit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " K")):
        if abs(number) >= unit:
            return f"{number / unit:.2f}{suffix}"
    return f"{number:g}"


def percent(fraction: float, digits: int = 1) -> str:
    """0.5015 as 50.2%."""
    return f"{100 * fraction:.{digits}f}%"


def points(change: float, quality: QualityWords = ACCURACY) -> str:
    """-0.0084 as −0.84 points; of a quality that is not in per cent, in its own unit."""
    if quality.unit == "%":
        return f"{_sign(100 * change)} points"
    return quality.change(change).replace("-", "−")


def change(was: float, now: float) -> str:
    """Relative change: 200 and 66 as −67.0%."""
    return f"{_sign(100 * (now / was - 1), 1)}%" if was else "–"


def _sign(number: float, digits: int = 2) -> str:
    words = f"{abs(number):.{digits}f}"
    return words if float(words) == 0 else f"{'+' if number > 0 else '−'}{words}"


def milliseconds(seconds: float) -> str:
    """0.0297 as 29.7 ms."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def duration(seconds: float) -> str:
    """75 as 1 min 15 s."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds >= 0.05 else "under 0.1 s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def count(number: int, thing: str) -> str:
    """1 round, 2 rounds."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def removed_fraction(run: FinishedRun, what: str = "macs") -> float:
    """Fraction of the MACs (or params, bytes) that was removed."""
    was, now = getattr(run.before, what), getattr(run.after, what)
    return 1 - now / was if was else 0.0


def reported_accuracy(run: FinishedRun) -> tuple[str, Evaluation, Evaluation]:
    """The accuracy, or other quality, to report: (name, before, after), on the test images if there are any."""
    if run.before.test is not None and run.after.test is not None:
        return "test", run.before.test, run.after.test
    return "held-out", run.before.holdout, run.after.holdout


# -- the sentences at the top


def verdict(run: FinishedRun) -> str:
    """The result in one sentence."""
    part, was, now = reported_accuracy(run)
    gone = removed_fraction(run)
    if gone <= 0:
        return "Nothing was removed: the network is unchanged."
    work = f"{percent(gone)} fewer MACs and {percent(removed_fraction(run, 'bytes'))} fewer bytes"
    what, gained, reached = f"{part} {run.quality.name}", now.quality - was.quality, run.quality.shown(now.quality)
    if float(run.quality.number(abs(gained))) == 0:
        return f"{work} at the same {what}, {reached}."
    return f"{work}; the {what} is {run.quality.size(gained)} {'higher' if gained > 0 else 'lower'}, {reached}."


def what_was_removed(run: FinishedRun) -> str:
    """The number of removed channels, and the units that lost most of them."""
    narrowed = sorted(
        ((unit.width - unit.kept, name, unit) for name, unit in run.units.items() if unit.kept < unit.width),
        key=lambda row: (-row[0], row[1]),
    )
    if not narrowed:
        return "No channels were removed."
    most = [f"{name} (from {unit.width} channels to {unit.kept})" for _, name, unit in narrowed[:3]]
    rest = len(narrowed) - len(most)
    where = " and ".join(most) if len(most) < 3 else f"{most[0]}, {most[1]} and {most[2]}"
    more = f"; the others from {count(rest, 'other unit')}" if rest else ""
    whole = len(run.units) - len(narrowed)
    left = f" {whole} of {len(run.units)} units kept all channels." if whole else ""
    lost, width = sum(row[0] for row in narrowed), sum(unit.width for unit in run.units.values())
    return (
        f"{lost:,} of {count(width, 'channel')} in {count(len(run.rounds), 'round')}, "
        f"{'most of them ' if rest else ''}from {where}{more}.{left}"
    )


def what_it_cost(run: FinishedRun) -> str:
    """The change in quality, on test and on held-out images; of accuracy, also in number of mistakes."""
    part, was, now = reported_accuracy(run)
    head = f"{_changed(run, part, was, now)} on {count(now.num_images, 'image')}"
    if part != "test":
        return f"{head}. These images were also used for decisions."
    held = f"from {run.quality.shown(run.before.holdout.quality)} to {run.quality.shown(run.after.holdout.quality)}"
    images = count(run.after.holdout.num_images, "held-out image")
    return f"{head} that were not used for any decision. On the {images}, which decisions used, it changed {held}."


def _changed(run: FinishedRun, part: str, was: Evaluation, now: Evaluation) -> str:
    words = run.quality
    change = (
        f"from {words.shown(was.quality)} to {words.shown(now.quality)} ({points(now.quality - was.quality, words)})"
    )
    if words != ACCURACY:
        return f"The {part} {words.name} changed {change}"
    mistakes = round((was.quality - now.quality) * now.num_images)
    if mistakes == 0:
        return f"The {part} accuracy is still {words.shown(now.quality)}: the same number of mistakes"
    more = "more" if mistakes > 0 else "fewer"
    word = "mistake" if abs(mistakes) == 1 else "mistakes"
    return f"The {part} accuracy changed {change}: {abs(mistakes):,} {more} {word}"


def what_was_gained(run: FinishedRun) -> str:
    """MACs, size and speed."""
    was, now = run.before, run.after
    work = (
        f"One image needs {big(now.macs)} multiply-adds instead of {big(was.macs)} "
        f"({change(was.macs, now.macs)}), the network has {big(now.params)} weights instead of {big(was.params)} "
        f"({change(was.params, now.params)}), and its tensors take {big(now.bytes)}B instead of {big(was.bytes)}B."
    )
    said = [_faster(run, size) for size in was.latency]
    return work + (f" On this run's machine {' and '.join(said)}." if said else "")


def _faster(run: FinishedRun, size: str) -> str:
    """The speed at a batch size. A ratio is given only if the turns of both networks can tell them apart."""
    images = "one image" if size == "1" else f"batches of {size} images"
    times = f"{milliseconds(run.before.latency[size])} before, {milliseconds(run.after.latency[size])} after"
    found = run.speedup.get(size)
    if found is None or not found.measurable:
        return f"there is no measurable difference in speed on {images} ({times})"
    interval = f"95% interval {found.low:.2f} to {found.high:.2f}"
    return f"it is {found.ratio:.2f} times as fast on {images} ({interval}; {times})"


def goal(run: FinishedRun) -> str:
    """The goal of the run, and whether it was reached."""
    asked = run.settings
    drop = None if asked.max_drop is None else f"{asked.max_drop:g} {run.quality.difference_unit}"
    drop = drop and f"{drop.rstrip()} of held-out {run.quality.name}"
    limit = f" and lose at most {drop}" if drop else ""
    if asked.ratio is not None:
        return f"Remove {percent(asked.ratio, 0)} of the channels of every unit in one round{limit}."
    if asked.target is not None:
        reached = _reached(run, "macs", (1 - asked.target) * run.before.macs)
        return f"Remove {percent(asked.target)} of the MACs{limit}. {reached}"
    if asked.speedup is not None:
        return f"Make it {asked.speedup:g} times as fast{limit}. {_speed(run)}"
    for key, title in (("macs", "MACs"), ("params", "weights")):
        left = getattr(asked, key)
        if left is not None:
            whole = big(getattr(run.before, key))
            return f"Keep {big(left)} of {whole} {title}{limit}. {_reached(run, key, left)}"
    return f"Remove as many channels as possible{limit}."


def _speed(run: FinishedRun) -> str:
    """Whether a goal in time was reached: predicted and measured."""
    if run.time is None:
        return ""
    where = f"in {run.time.engine} on batches of {run.time.batch}, on {count(run.time.threads, 'thread')}"
    predicted = f"{run.time.predicted:.2f} times as fast predicted from the times of layers"
    found = run.time.measured
    if found is None:
        return f"{predicted}, {where}; not measured, because these times are of another machine."
    interval = f"95% interval {found.low:.2f} to {found.high:.2f}"
    verdict = "Reached" if found.ratio >= run.time.asked else "Not reached"
    return f"{verdict} {where}: {found.ratio:.2f} times as fast measured ({interval}), {predicted}."


def _reached(run: FinishedRun, key: str, left: float) -> str:
    whole, now = getattr(run.before, key), getattr(run.after, key)
    gone = percent(1 - now / whole) if whole else "–"
    # A run ends within 0.5% of the goal, because only whole channels can be removed.
    return f"Reached: {gone} removed." if now <= left + 0.0051 * whole else f"Not reached: {gone} removed."
