"""Bad input gets an error of prunus.errors that says what to do, and changes nothing."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus as pr
from prunus.errors import FileError, PlanError, PrunusError, TraceError
from tests import proof
from tests.graph.checks import IMAGE, scripted, unchanged
from tests.nets import Grouped, Residual, conv, pooled

FLOAT = IMAGE.float()
FOLDER = "somewhere"


def residual() -> Residual:
    torch.manual_seed(0)
    return Residual().eval()


class Wider(Residual):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.bn1 = conv(4, 7), conv(7, 4), nn.BatchNorm2d(7)


class Undecided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # no graph can know
            x = -x
        return pooled(self.conv(x))


@pytest.fixture(scope="module")
def graph() -> pr.ChannelGraph:
    return pr.trace(residual(), FLOAT)


@pytest.fixture(scope="module")
def grouped() -> pr.ChannelGraph:
    return pr.trace(Grouped().eval(), FLOAT)


# -- plans

KEPT: list[tuple[Any, str]] = [
    ([0, 6], "'conv1:out' has channels 0 to 5; 6 is out of range"),
    ([-1, 2], "-1 is out of range"),
    ([1, 2, 2], "channel 2 is kept twice"),
    ([0.5, 1.0], "'conv1:out'.*whole numbers"),
    ([[0, 1]], "'conv1:out'.*whole numbers"),
    ([True, False, True, False, False, False], "whole numbers"),
    (["0", "1"], "whole numbers"),
    (3, "conv1:out"),
    (None, "conv1:out"),
]


@pytest.mark.parametrize(("kept", "complaint"), KEPT)
def test_kept_channels_that_cannot_be(graph: pr.ChannelGraph, kept: Any, complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        pr.Plan.of(graph, {"conv1:out": kept})


UNITS: list[tuple[Callable[[pr.ChannelGraph, pr.ChannelGraph], Any], str]] = [
    (lambda graph, grouped: pr.Plan.of(graph, {"conv9:out": [0]}), r"no unit is called 'conv9:out'.*conv1:in"),
    (lambda graph, grouped: pr.Plan.of(graph, {"fc:out": [0]}), "fc is frozen: it is an output"),
    (lambda graph, grouped: pr.Plan.of(graph, {"conv1:in": []}), "conv1:in"),
    (lambda graph, grouped: pr.Plan.of(graph, {"fc:in": []}), "fc:in"),
    # Blocks 01 23 45 67 keep 2 2 1 1.
    (
        lambda graph, grouped: pr.Plan.of(grouped, {"a:out": [0, 1, 2, 3, 4, 6]}),
        r"'a:out' has 4 blocks.*1 of channels 4, 5 are kept, but 2 of channels 0, 1\..*balance",
    ),
    (lambda graph, grouped: grouped.balance({"nobody:out": [0]}), "nobody:out"),
    (lambda graph, grouped: grouped.balance({"a:out": [0, 99]}), "99 is out of range"),
    (lambda graph, grouped: grouped.balance({"a:out": [-1]}), "-1 is out of range"),
    (
        lambda graph, grouped: pr.Plan.of(graph, {"conv1:out": [0, 1, 2]}).then(pr.Plan.of(graph, {"conv1:out": [0]})),
        r"leaves 3 channels in 'conv1:out'.* with 6",
    ),
    (
        lambda graph, grouped: pr.Plan.of(graph, {}).then(pr.Plan.of(grouped, {"a:out": [0, 2, 4, 6]})),
        "unit 'a:out' that the first plan does not have",
    ),
]


@pytest.mark.parametrize(("act", "complaint"), UNITS)
def test_units_that_cannot_be(
    graph: pr.ChannelGraph, grouped: pr.ChannelGraph, act: Callable[..., Any], complaint: str
) -> None:
    with pytest.raises(PlanError, match=complaint):
        act(graph, grouped)


def test_one_filter_of_a_writer_is_enough(graph: pr.ChannelGraph) -> None:
    """Each stream reader keeps something, so stem and conv2 always keep a filter."""
    assert graph.cost(pr.Plan.of(graph, {"conv1:in": [0], "fc:in": [0]})).layers["stem"].params == 27


@pytest.mark.parametrize("act", [pr.prune, lambda g, p: pr.zeroed(g, p).__enter__(), lambda g, p: g.cost(p)])
def test_a_plan_of_another_network_says_what_differs(act: Callable[..., Any], graph: pr.ChannelGraph) -> None:
    other = pr.trace(Wider().eval(), FLOAT)
    with pytest.raises(PlanError, match="another network: unit 'conv1:out' has 7 channels in the plan and 6 here"):
        act(graph, pr.Plan.of(other, {"conv1:out": [0, 6]}))
    coupled = pr.trace(residual(), FLOAT, streams="coupled")
    with pytest.raises(PlanError, match="made with streams='coupled'"):
        act(graph, pr.Plan.of(coupled, proof.random_keep(coupled, 0)))


@pytest.mark.parametrize("text", ["", "null", "{}", '{"format": "prunus-plan"}', "no json", '"prunus-plan"', "[]"])
def test_plans_that_are_none(text: str) -> None:
    with pytest.raises(FileError):
        pr.Plan.from_json(text)


# -- networks and examples


def quietly(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def plain() -> nn.Module:
    return nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 2)).eval()


TRACES: list[tuple[Callable[[], Any], Any, str]] = [
    (residual, torch.zeros(2, 5, 8, 8), r"Residual does not run on .*\(2, 5, 8, 8\).*to have 3 channels"),
    (residual, (FLOAT, FLOAT), "the example does not fit Residual.forward"),
    (residual, {"picture": FLOAT}, "the example does not fit Residual.forward"),
    (residual, torch.zeros(0, 3, 8, 8), "the example is empty: its shape is"),
    (residual, (torch.zeros(1, 3, 0, 8),), "the example is empty: its shape is"),
    (lambda: nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU()), FLOAT, "0.weight is not initialised yet.*lazy"),
    (lambda: Residual, FLOAT, r"got the class Residual; pass an instance, as in Residual\(\)"),
    (lambda: F.relu, FLOAT, "expected a torch.nn.Module, got function"),
    (lambda: FLOAT, residual(), "got Tensor; check the order"),
    (lambda: scripted(plain()), FLOAT, "TorchScript modules cannot be pruned; pass the"),
    (lambda: quietly(lambda: torch.jit.trace(plain(), FLOAT)), FLOAT, "TorchScript"),
    (lambda: nn.DataParallel(plain()), FLOAT, r"trace model\.module"),
    (lambda: quietly(lambda: torch.compile(plain())), FLOAT, r"trace model\._orig_mod"),
    (lambda: torch.export.export(plain(), (FLOAT,)), FLOAT, "exported"),
    (lambda: torch.export.export(plain(), (FLOAT,)).module(), FLOAT, "exported"),
]


@pytest.mark.parametrize(("build", "example", "complaint"), TRACES)
def test_networks_that_cannot_be_traced(build: Callable[[], Any], example: Any, complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        pr.trace(build(), example)


def test_code_that_depends_on_values_is_named_by_its_line() -> None:
    with pytest.raises(TraceError) as caught:
        pr.trace(Undecided(), FLOAT)
    message = str(caught.value)
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "x.sum() > 0:  #" in text)
    assert "if x.sum() > 0" in message and str(line) in message and Path(__file__).name in message


def test_unknown_way_with_streams() -> None:
    with pytest.raises(PrunusError, match=r"select.*coupled"):
        pr.trace(residual(), FLOAT, streams="sometimes")  # type: ignore[arg-type]


# -- arguments in the wrong order or of the wrong kind


@pytest.mark.parametrize(
    ("act", "error", "complaint"),
    [
        (
            lambda graph, plan: pr.save(plan, graph.model, FOLDER),
            PlanError,
            "got Plan and Residual",
        ),
        (
            lambda graph, plan: pr.save(pr.prune(graph, plan), plan, 3),
            FileError,
            "path of a folder, got int",
        ),
        (lambda graph, plan: pr.load(graph.model, FOLDER), FileError, r"load\(folder, model\).*got Residual"),
        (lambda graph, plan: pr.load(FOLDER, Residual), TraceError, "got the class Residual"),
        (lambda graph, plan: pr.prune(plan, graph), PlanError, r"prune\(graph, plan\).*got Plan"),
        (lambda graph, plan: graph.cost(FLOAT), PlanError, "expected a plan, got Tensor"),
        (lambda graph, plan: pr.Plan.of(graph, [1]), PlanError, "expected a dict of unit -> kept channels, got list"),
        (
            lambda graph, plan: pr.register_rule(nn.ReLU(), pr.rules.add),
            TraceError,
            "pass the class ReLU, not",
        ),
        (lambda graph, plan: pr.register_rule(nn.ReLU, "add"), TraceError, r"expected register_rule\(target, rule\)"),
    ],
)
def test_arguments(act: Callable[..., Any], error: type[Exception], complaint: str, graph: pr.ChannelGraph) -> None:
    with pytest.raises(error, match=complaint):
        act(graph, pr.Plan.of(graph, {"conv1:out": [0, 1]}))


# -- files


@pytest.fixture
def folder(tmp_path: Path, graph: pr.ChannelGraph) -> Path:
    plan = pr.Plan.of(graph, proof.random_keep(graph, 0))
    pr.save(pr.prune(graph, plan), plan, tmp_path / "small")
    return tmp_path / "small"


def cut(name: str, share: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return damage


def swapped(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def edited(change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change the data of a plan; the second argument is its first unit."""

    def damage(folder: Path) -> None:
        data = json.loads((folder / "plan.json").read_text())
        change(data, next(iter(data["units"].values())))
        (folder / "plan.json").write_text(json.dumps(data))

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "tensors cut in half": (cut("model.safetensors", 0.5), "not a complete safetensors file"),
    "tensors cut by a little": (cut("model.safetensors", 0.99), "not a complete safetensors file"),
    "tensors empty": (cut("model.safetensors", 0.0), "not a complete safetensors file"),
    "tensors foreign": (swapped("model.safetensors", b"PK\x03\x04 a pickle of some sort" * 20), "not a complete"),
    "tensors gone": (lambda folder: (folder / "model.safetensors").unlink(), "does not exist"),
    "plan cut in half": (cut("plan.json", 0.5), "the JSON is broken or cut off"),
    "plan empty": (cut("plan.json", 0.0), "the JSON is broken or cut off"),
    "plan foreign": (swapped("plan.json", b'{"name": "package", "version": "1.0.0"}'), "not a plan"),
    "plan a list": (swapped("plan.json", b"[1, 2, 3]"), "not a plan"),
    "plan no text": (swapped("plan.json", b"\xff\xfe\x00\x01" * 10), "cannot read the plan"),
    "plan gone": (lambda folder: (folder / "plan.json").unlink(), "cannot read the plan"),
    "plan of a later version": (edited(lambda data, unit: data.update(version=99)), "version 99"),
    "plan without units": (edited(lambda data, unit: data.pop("units")), "'units'"),
    "plan with units that are a list": (edited(lambda data, unit: data.update(units=[1])), "not a complete plan"),
    "plan without an example": (edited(lambda data, unit: data.pop("example")), "'example'"),
    "plan with kept text": (edited(lambda data, unit: unit.update(keep="all")), "whole numbers"),
    "plan with a width of text": (edited(lambda data, unit: unit.update(width="many")), "whole number above 0"),
    "plan with a width that is no whole number": (edited(lambda data, unit: unit.update(width=1e9)), "whole number"),
    "plan with another width": (edited(lambda data, unit: unit.update(width=10**9)), "has 1000000000 channels"),
    "plan with other streams": (edited(lambda data, unit: data.update(streams="zzz")), "\"coupled\", not 'zzz'"),
    "plan with an impossible example": (
        edited(lambda data, unit: data.update(example={"shape": [-1, "x"], "dtype": "float32"})),
        "cannot be built",
    ),
    "plan with an unknown type": (
        edited(lambda data, unit: data["example"].update(dtype="banana")),
        "'banana' is no type of torch's tensors",
    ),
    "all gone": (shutil.rmtree, "cannot read the plan"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder(damage: str, folder: Path) -> None:
    model = residual()
    act, complaint = DAMAGES[damage]
    act(folder)
    with unchanged(model), pytest.raises((FileError, PlanError), match=complaint) as caught:
        pr.load(folder, model)
    assert isinstance(caught.value, PlanError) or str(folder) in str(caught.value)


def test_files_that_do_not_belong_together(folder: Path, graph: pr.ChannelGraph, tmp_path: Path) -> None:
    plan = pr.Plan.of(graph, proof.random_keep(graph, 1))
    pr.save(pr.prune(graph, plan), plan, tmp_path / "other")
    kept = (folder / "model.safetensors").read_bytes()
    shutil.copy(tmp_path / "other" / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(FileError, match="was saved with a plan that keeps other channels"):
        pr.load(folder, residual())
    (folder / "model.safetensors").write_bytes(kept)
    with pytest.raises(PlanError, match="another network"):
        pr.load(folder, Wider().eval())
    with pytest.raises(PlanError, match="the graph of this model, not of another"):
        pr.load(folder, residual(), graph=graph)


def test_tensors_of_another_network(folder: Path) -> None:
    """Written by another program, so that only names and shapes tell."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["bn9.weight"], tensors["fc.bias"] = tensors.pop("bn2.weight"), torch.zeros(7)
    save_file(tensors, folder / "model.safetensors")
    complaint = r"missing: bn2\.weight; extra: bn9\.weight; of another shape: fc\.bias \(7,\) instead of \(5,\)"
    with pytest.raises(FileError, match=complaint):
        pr.load(folder, residual())


def test_saving_where_a_file_is(graph: pr.ChannelGraph, tmp_path: Path) -> None:
    plan = pr.Plan.of(graph, {})
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(FileError, match="taken"):
        pr.save(pr.prune(graph, plan), plan, tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_failed_save_leaves_the_old_files(
    folder: Path, graph: pr.ChannelGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("prunus.graph.files.save_file", full)
    with pytest.raises(FileError, match="No space left"):
        pr.save(graph.model, pr.Plan.of(graph, {}), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
