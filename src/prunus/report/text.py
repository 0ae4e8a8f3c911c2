"""The sentences of a run's report."""

from __future__ import annotations

from prunus.report.read import FinishedRun
from prunus.run.summary import first_line, removes_anything
from prunus.tasks.quality import ACCURACY, QualityText
from prunus.util.text import big_number, count, milliseconds, percent, relative_change, signed


def points(change: float, quality: QualityText = ACCURACY) -> str:
    """-0.0084 as −0.84 points; of a quality that is not in per cent, in its own unit."""
    if quality.unit == "%":
        return f"{signed(100 * change)} points"
    return quality.change(change).replace("-", "−")


def title(run: FinishedRun) -> str:
    """The name of the network, and what the run came to in a few words: speed first."""
    summary, command = run.summary, run.command
    name = f"{command.get('model')} on {command.get('data')}" if command else summary.model
    if not removes_anything(summary):
        return f"{name}: nothing was removed"
    parts = [summary.speeds[0].verdict] if summary.speeds else []
    parts.append(f"{percent(summary.removed['macs'])} of the MACs removed")
    return f"{name}, pruned: {', '.join(parts)}"


def verdict(run: FinishedRun) -> str:
    """The result in one sentence, the one that `prunus prune` prints first."""
    text = first_line(run.summary).replace("->", "→")
    return f"{text[:1].upper()}{text[1:]}."


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
    was_held, is_held = quality.shown(first.quality), quality.shown(last.quality)
    held = f"is still {is_held}" if was_held == is_held else f"changed from {was_held} to {is_held}"
    return (
        f"{head} on {images} that were not used for any decision. On the {count(last.num_images, 'held-out image')}, "
        f"which decisions used, it {held}."
    )


def what_was_gained(run: FinishedRun) -> str:
    """Speed in the engine that was asked for, MACs and size."""
    was, now = run.summary.before, run.summary.after
    work = (
        f"One image needs {big_number(now.macs)} multiply-adds instead of {big_number(was.macs)} "
        f"({relative_change(was.macs, now.macs)}), the network has {big_number(now.params)} weights instead of "
        f"{big_number(was.params)} ({relative_change(was.params, now.params)}), and its tensors take "
        f"{big_number(now.bytes)}B instead of {big_number(was.bytes)}B."
    )
    if not run.summary.speeds:
        return work
    speed = run.summary.speeds[0]
    times = f"a batch takes {milliseconds(speed.after)} instead of {milliseconds(speed.before)}"
    return f"On the machine of the run: {speed}; {times}. {work}"


def goal(run: FinishedRun) -> str:
    """What was asked for."""
    settings, before, quality = run.settings, run.summary.before, run.summary.quality
    where = limit = ""
    if settings.engine:
        where = f" in {settings.engine} at batch {settings.batch}, on {count(settings.threads, 'thread')}"
    if settings.max_drop is not None:
        drop = f"{settings.max_drop:g} {quality.difference_unit}".rstrip()
        limit = f" and lose at most {drop} of held-out {quality.name}"
    if settings.ratio is not None:
        return f"Remove {percent(settings.ratio, 0)} of the channels of every unit in one round{limit}."
    if settings.target is not None:
        return f"Remove {percent(settings.target)} of the MACs{limit}."
    if settings.speedup is not None:
        return f"Make it {settings.speedup:g} times as fast{where}{limit}."
    for key, title in (("macs", "MACs"), ("params", "weights")):
        left = getattr(settings, key)
        if left is not None:
            return f"Keep {big_number(left)} of {big_number(getattr(before, key))} {title}{limit}."
    return f"{f'Make it as fast as possible{where}' if settings.for_time else 'Remove as much as possible'}{limit}."
