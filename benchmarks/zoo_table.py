"""The zoo's results in words: a line per network while it runs, a Markdown table at the end."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Row = dict[str, Any]
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
        return f"{row['name']:36} {status(row).upper()} {reason(row)[:140]}  | {peer(row)}"
    select = row["modes"]["select"]
    return (
        f"{row['name']:36} error {worst(row):.1e}  changed {select['changed']:.1e}  {checks(row):6}  "
        f"layers {layers(row):9}  macs -{removed(row)}  {seconds(row):.2f} s  | {peer(row)}"
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


def peer(row: Row) -> str:
    """torch-pruning's verdict on a network."""
    found = row["peer"]
    cut = f" ({found['groups']}; {found['layers']})" if found.get("groups") else ""
    return f"{found['verdict']}{cut}"


def as_markdown(rows: list[Row], commit: str = "") -> str:
    parts = [HEAD, f"Run on commit {commit}, with {versions()}.\n" if commit else ""]
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
            lines.append(as_line([name, f"{status(row)}: {reason(row)[:200]}", *[""] * 6, peer(row)]))
            continue
        units = " / ".join(str(mode["units"]) for mode in row["modes"].values())
        frozen = sum(row["modes"]["select"]["frozen"].values())
        cells = [name, f"{worst(row):.0e}", layers(row), removed(row), units, checks(row), f"{seconds(row):.2f}"]
        lines.append(as_line([*cells, frozen, peer(row)]))
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
