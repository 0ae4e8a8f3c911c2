"""The zoo's results in words: a line per network while it runs, a Markdown table at the end."""

from __future__ import annotations

from collections import Counter
from typing import Any

Row = dict[str, Any]
FLAGS = ("macs_right", "copies", "loads", "trains")

HEAD = """# The zoo

Written by `make zoo`, with one thread. Every network has random weights and statistics, and 25% to 50% of every unit
is removed at once. *error*: the largest relative difference between the outputs of the pruned and the zeroed network,
in float64, for the worse of the two ways of handling streams (selected / coupled). *layers*: convolutions (without
depthwise ones) and linear layers that can shrink, out of all layers of the network, including auxiliary heads that
are not called. *checks*: MACs by formula equal half of PyTorch's own flop count before and after; the pruned network
can be deep-copied, saved and loaded with equal results, and trained for a step. *seconds*: trace + prune. *frozen*:
layers that cannot be pruned, each with a reason.

"""


def line(row: Row) -> str:
    """One network on one line of the terminal."""
    if "failed" in row:
        return f"{row['name']:36} FAILED {row['failed'][:140]}"
    select = row["modes"]["select"]
    return (
        f"{row['name']:36} error {worst(row):.1e}  changed {select['changed']:.1e}  {checks(row):6}  "
        f"layers {layers(row):9}  macs -{removed(row)}  {seconds(row):.2f} s"
    )


def as_markdown(rows: list[Row], commit: str = "") -> str:
    parts = [HEAD, f"Run on commit {commit}.\n" if commit else ""]
    for library in ("torchvision", "timm"):
        mine = [row for row in rows if row["name"].startswith(library + ":")]
        if mine:
            parts.append(f"\n## {library}\n\n{summary(mine)}\n\n{table(mine)}\n")
    return "".join(parts) + f"\n## Why channels stay\n\n{reasons(rows)}\n"


def summary(rows: list[Row]) -> str:
    done = [row for row in rows if "failed" not in row]
    exact = sum(worst(row) <= 1e-12 for row in done)
    clean = sum(checks(row) == "all" for row in done)
    prunable = {mode: sum(row["modes"][mode]["prunable"] for row in done) for mode in ("select", "coupled")}
    whole = sum(row["modes"]["select"]["layers"] for row in done)
    text = f"{exact} of {len(rows)} exact to 1e-12, {clean} pass every check, {len(rows) - len(done)} fail. "
    text += f"Layers prunable: {prunable['select']:,} of {whole:,} (streams coupled: {prunable['coupled']:,})."
    exported = [row["onnx"] for row in done if "onnx" in row]
    if exported:
        text += (
            f" {len(exported)} exported to ONNX; onnxruntime differs by {max(exported):.0e} at most, relative, float32."
        )
    return text


def table(rows: list[Row]) -> str:
    lines = [
        "| network | error | layers | MACs removed | units | checks | seconds | frozen |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        name = row["name"].split(":")[1]
        if "failed" in row:
            lines.append(f"| {name} | {row['failed'][:100]} | | | | | | |")
            continue
        units = " / ".join(str(mode["units"]) for mode in row["modes"].values())
        frozen = sum(row["modes"]["select"]["frozen"].values())
        lines.append(
            f"| {name} | {worst(row):.0e} | {layers(row)} | {removed(row)} | {units} | {checks(row)} | "
            f"{seconds(row):.2f} | {frozen} |"
        )
    return "\n".join(lines)


def reasons(rows: list[Row]) -> str:
    """Reasons of all networks together, the most frequent first."""
    counted: Counter[str] = Counter()
    networks: Counter[str] = Counter()
    for row in rows:
        for reason, count in row.get("modes", {}).get("select", {}).get("frozen", {}).items():
            counted[reason] += count
            networks[reason] += 1
    lines = ["| reason | layers | networks |", "|---|---|---|"]
    lines += [
        f"| {reason.replace('|', '/')} | {count} | {networks[reason]} |" for reason, count in counted.most_common(40)
    ]
    return "\n".join(lines)


def worst(row: Row) -> float:
    return float(max(mode["error"] for mode in row["modes"].values()))


def checks(row: Row) -> str:
    """`all`, or the ones that fail."""
    failing = [f"{flag} ({way})" for way, mode in row["modes"].items() for flag in FLAGS if not mode[flag]]
    return "not " + ", ".join(failing) if failing else "all"


def layers(row: Row) -> str:
    select = row["modes"]["select"]
    return f"{select['prunable']}/{select['layers']}"


def removed(row: Row) -> str:
    return " / ".join(f"{100 * mode['removed']:.0f}%" for mode in row["modes"].values())


def seconds(row: Row) -> float:
    select = row["modes"]["select"]
    return float(select["trace_seconds"] + select["prune_seconds"])
