"""The sentences of a run's report."""

from __future__ import annotations

from prunus.report.read import FinishedRun
from prunus.tasks.quality import ACCURACY, QualityText
from prunus.util.text import big_number, count, milliseconds, percent, relative_change, signed


def points(change: float, quality: QualityText = ACCURACY) -> str:
    """-0.0084 as −0.84 points; of a quality that is not in per cent, in its own unit."""
    if quality.unit == "%":
        return f"{signed(100 * change)} points"
    return quality.change(change).replace("-", "−")


def verdict(run: FinishedRun) -> str:
    """The result in one sentence."""
    was, now, quality = run.summary.before, run.summary.after, run.summary.quality
    if now.macs >= was.macs:
        return "Nothing was removed: the network is unchanged."
    work = f"{percent(1 - now.macs / was.macs)} fewer MACs and {percent(1 - now.bytes / was.bytes)} fewer bytes"
    part, first, last = run.reported()
    gained, reached = last.quality - first.quality, quality.shown(last.quality)
    if float(quality.number(abs(gained))) == 0:
        return f"{work} at the same {part} {quality.name}, {reached}."
    way = "higher" if gained > 0 else "lower"
    return f"{work}; the {part} {quality.name} is {quality.size(gained)} {way}, {reached}."


def what_was_removed(run: FinishedRun) -> str:
    """The number of removed channels, and the units that lost most of them."""
    units = run.summary.units
    narrowed = sorted((-(u.width - u.kept), name) for name, u in units.items() if u.kept < u.width)
    if not narrowed:
        return "No channels were removed."
    most = [f"{name} (from {units[name].width} channels to {units[name].kept})" for _, name in narrowed[:3]]
    rest = len(narrowed) - len(most)
    where = " and ".join(most) if len(most) < 3 else f"{most[0]}, {most[1]} and {most[2]}"
    more = f"; the others from {count(rest, 'other unit')}" if rest else ""
    whole = len(units) - len(narrowed)
    left = f" {whole} of {len(units)} units kept all channels." if whole else ""
    lost, width = -sum(row[0] for row in narrowed), sum(unit.width for unit in units.values())
    return (
        f"{lost:,} of {count(width, 'channel')} in {count(len(run.rounds), 'round')}, "
        f"{'most of them ' if rest else ''}from {where}{more}.{left}"
    )


def what_was_lost(run: FinishedRun) -> str:
    """The change in quality, on test and on held-out images; of accuracy, also in number of mistakes."""
    quality = run.summary.quality
    part, was, now = run.reported()
    before, after = quality.shown(was.quality), quality.shown(now.quality)
    gained, images = points(now.quality - was.quality, quality), count(now.num_images, "image")
    head = f"The {part} {quality.name} changed from {before} to {after} ({gained})"
    mistakes = round((was.quality - now.quality) * now.num_images)
    if quality == ACCURACY and mistakes == 0:
        head = f"The {part} accuracy is still {after}: the same number of mistakes"
    elif quality == ACCURACY:
        head += f": {abs(mistakes):,} {'more' if mistakes > 0 else 'fewer'} mistake{'s' * (abs(mistakes) != 1)}"
    if part != "test":
        return f"{head} on {images}. These images were also used for decisions."
    first, last = run.summary.before.holdout, run.summary.after.holdout
    return (
        f"{head} on {images} that were not used for any decision. On the {count(last.num_images, 'held-out image')}, "
        f"which decisions used, it changed from {quality.shown(first.quality)} to {quality.shown(last.quality)}."
    )


def what_was_gained(run: FinishedRun) -> str:
    """MACs, size and speed. A ratio of times is given only if the turns of both networks can tell them apart."""
    was, now = run.summary.before, run.summary.after
    work = (
        f"One image needs {big_number(now.macs)} multiply-adds instead of {big_number(was.macs)} "
        f"({relative_change(was.macs, now.macs)}), the network has {big_number(now.params)} weights instead of "
        f"{big_number(was.params)} ({relative_change(was.params, now.params)}), and its tensors take "
        f"{big_number(now.bytes)}B instead of {big_number(was.bytes)}B."
    )
    faster = []
    for size in was.latency:
        images = "one image" if size == "1" else f"batches of {size} images"
        times = f"{milliseconds(was.latency[size])} before, {milliseconds(now.latency[size])} after"
        ratio = run.summary.speedup.get(size)
        if ratio is None or not ratio.measurable:
            faster.append(f"there is no measurable difference in speed on {images} ({times})")
        else:
            interval = f"95% interval {ratio.low:.2f} to {ratio.high:.2f}"
            faster.append(f"it is {ratio.ratio:.2f} times as fast on {images} ({interval}; {times})")
    return work + (f" On this run's machine {' and '.join(faster)}." if faster else "")


def goal(run: FinishedRun) -> str:
    """The goal of the run, and whether it was reached."""
    asked, before, quality = run.settings, run.summary.before, run.summary.quality
    limit = ""
    if asked.max_drop is not None:
        drop = f"{asked.max_drop:g} {quality.difference_unit}".rstrip()
        limit = f" and lose at most {drop} of held-out {quality.name}"
    if asked.ratio is not None:
        return f"Remove {percent(asked.ratio, 0)} of the channels of every unit in one round{limit}."
    if asked.target is not None:
        reached = _reached(run, "macs", (1 - asked.target) * before.macs)
        return f"Remove {percent(asked.target)} of the MACs{limit}. {reached}"
    if asked.speedup is not None:
        return f"Make it {asked.speedup:g} times as fast{limit}. {_speed(run)}"
    for key, title in (("macs", "MACs"), ("params", "weights")):
        left = getattr(asked, key)
        if left is not None:
            whole = big_number(getattr(before, key))
            return f"Keep {big_number(left)} of {whole} {title}{limit}. {_reached(run, key, left)}"
    return f"Remove as many channels as possible{limit}."


def _speed(run: FinishedRun) -> str:
    """Whether a latency target was reached: predicted and measured."""
    time = run.summary.time
    if time is None:
        return ""
    where = f"in {time.engine} on batches of {time.batch}, on {count(time.threads, 'thread')}"
    predicted = f"{time.predicted:.2f} times as fast predicted from the times of layers"
    if time.measured is None:
        return f"{predicted}, {where}; not measured, because these times are of another machine."
    interval = f"95% interval {time.measured.low:.2f} to {time.measured.high:.2f}"
    reached = "Reached" if time.measured.ratio >= time.asked else "Not reached"
    return f"{reached} {where}: {time.measured.ratio:.2f} times as fast measured ({interval}), {predicted}."


def _reached(run: FinishedRun, key: str, left: float) -> str:
    whole, now = getattr(run.summary.before, key), getattr(run.summary.after, key)
    gone = percent(1 - now / whole) if whole else "–"
    # A run ends within 0.5% of the goal, because only whole channels can be removed.
    return f"Reached: {gone} removed." if now <= left + 0.0051 * whole else f"Not reached: {gone} removed."
