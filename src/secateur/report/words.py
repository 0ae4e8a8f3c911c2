"""Numbers as people read them, and the sentences of the report."""

from __future__ import annotations

from secateur.measuring.accuracy import Accuracy
from secateur.report.reading import Run


def big(number: float) -> str:
    """11944576 as 11.94 M."""
    for unit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " K")):
        if abs(number) >= unit:
            return f"{number / unit:.2f}{suffix}"
    return f"{number:g}"


def percent(fraction: float, digits: int = 1) -> str:
    """0.5015 as 50.2%."""
    return f"{100 * fraction:.{digits}f}%"


def points(change: float) -> str:
    """-0.0084 as −0.84 points."""
    return f"{_sign(100 * change)} points"


def change(was: float, now: float) -> str:
    """How much less (or more) of something there is now."""
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


def removed_fraction(run: Run, what: str = "macs") -> float:
    """Share of the MACs (or params, bytes) that is gone."""
    was, now = getattr(run.before, what), getattr(run.after, what)
    return 1 - now / was if was else 0.0


def judged(run: Run) -> tuple[str, Accuracy, Accuracy]:
    """The accuracy to report: on test images where there were some."""
    if run.before.test is not None and run.after.test is not None:
        return "test", run.before.test, run.after.test
    return "held-out", run.before.holdout, run.after.holdout


# -- the sentences at the top


def verdict(run: Run) -> str:
    """The whole run in one sentence, for someone who reads no further."""
    part, was, now = judged(run)
    gone = removed_fraction(run)
    if gone <= 0:
        return "Nothing was removed: the network is as it was."
    work = f"{percent(gone)} less work for each image and {percent(removed_fraction(run, 'bytes'))} fewer bytes"
    change_in_points = 100 * (now.top1 - was.top1)
    if round(change_in_points, 2) == 0:
        return f"{work}, at the same {part} accuracy of {percent(now.top1, 2)}."
    if change_in_points > 0:
        return f"{work}, with {part} accuracy {change_in_points:.2f} points higher, at {percent(now.top1, 2)}."
    return f"{work}, for {-change_in_points:.2f} points of {part} accuracy, now {percent(now.top1, 2)}."


def what_was_removed(run: Run) -> str:
    """How many channels went, and from where."""
    narrowed = sorted(
        ((unit.width - unit.kept, name, unit) for name, unit in run.units.items() if unit.kept < unit.width),
        key=lambda row: (-row[0], row[1]),
    )
    if not narrowed:
        return "Nothing: every channel is still there."
    most = [f"{name} (from {unit.width} channels to {unit.kept})" for _, name, unit in narrowed[:3]]
    rest = len(narrowed) - len(most)
    where = " and ".join(most) if len(most) < 3 else f"{most[0]}, {most[1]} and {most[2]}"
    more = f", the rest from {count(rest, 'more unit')}" if rest else ""
    whole = len(run.units) - len(narrowed)
    left = f" {whole} of {len(run.units)} units kept all their channels." if whole else ""
    lost, width = sum(row[0] for row in narrowed), sum(unit.width for unit in run.units.values())
    return (
        f"{lost:,} of {count(width, 'channel')}, in {count(len(run.rounds), 'round')}: most of them from "
        f"{where}{more}.{left}"
    )


def what_it_cost(run: Run) -> str:
    """The accuracy lost, also in images; the held-out one too, so that a kind test set hides nothing."""
    part, was, now = judged(run)
    mistakes = round((was.top1 - now.top1) * now.num_images)
    if mistakes == 0:
        head = f"Accuracy on the {part} images is {percent(now.top1, 2)}: as many mistakes as before"
    else:
        more = "more" if mistakes > 0 else "fewer"
        word = "mistake" if abs(mistakes) == 1 else "mistakes"
        head = (
            f"Accuracy on the {part} images went from {percent(was.top1, 2)} to {percent(now.top1, 2)} "
            f"({points(now.top1 - was.top1)}): {abs(mistakes):,} {more} {word}"
        )
    head += f" on {count(now.num_images, 'image')}"
    if part != "test":
        return f"{head}. Decisions looked at these images too."
    held = f"{percent(run.before.holdout.top1, 2)} to {percent(run.after.holdout.top1, 2)}"
    images = count(run.after.holdout.num_images, "held-out image")
    return f"{head} that no decision looked at. On the {images}, which decisions were made on: from {held}."


def what_was_gained(run: Run) -> str:
    """Work, size and speed."""
    was, now = run.before, run.after
    work = (
        f"An image takes {big(now.macs)} multiply-adds instead of {big(was.macs)} "
        f"({change(was.macs, now.macs)}), the network has {big(now.params)} weights instead of {big(was.params)} "
        f"({change(was.params, now.params)}), and its tensors take {big(now.bytes)}B instead of {big(was.bytes)}B."
    )
    said = [_faster(size, seconds, now.latency[size]) for size, seconds in was.latency.items()]
    return work + (f" On the machine of the run it is {' and '.join(said)}." if said else "")


def _faster(size: str, was: float, now: float) -> str:
    images = "one image" if size == "1" else f"{size} images at a time"
    ratio = was / now if now else 1.0
    times = f"({milliseconds(was)} before, {milliseconds(now)} now)"
    if abs(ratio - 1) < 0.02:
        return f"as fast as before on {images} {times}"
    if ratio < 1:
        return f"slower on {images} {times}"
    return f"{ratio:.2f} times as fast on {images} {times}"


def goal(run: Run) -> str:
    """What the run was to reach, and whether it did."""
    asked = run.settings
    drop = None if asked.max_drop is None else f"{100 * asked.max_drop:g} points of held-out accuracy"
    limit = f", losing at most {drop}" if drop else ""
    if asked.ratio is not None:
        return f"Remove {percent(asked.ratio, 0)} of the channels of every unit, in one go{limit}."
    if asked.target is not None:
        reached = _reached(run, "macs", (1 - asked.target) * run.before.macs)
        return f"Remove {percent(asked.target)} of the MACs{limit}. {reached}"
    for key, title in (("macs", "MACs"), ("params", "weights")):
        left = getattr(asked, key)
        if left is not None:
            whole = big(getattr(run.before, key))
            return f"Leave {big(left)} {title} of {whole}{limit}. {_reached(run, key, left)}"
    return f"Remove as much as can go{limit}."


def _reached(run: Run, key: str, left: float) -> str:
    whole, now = getattr(run.before, key), getattr(run.after, key)
    gone = percent(1 - now / whole) if whole else "–"
    # A run ends within half a per cent of the whole: single channels are not cut in two.
    return f"Reached: {gone} removed." if now <= left + 0.0051 * whole else f"Not reached: {gone} removed."
