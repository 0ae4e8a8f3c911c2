"""Bad input gets an error of prunus.errors that says what to do, and changes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus as sc
from prunus.errors import FileError, PlanError, PrunusError, TraceError
from tests import proof
from tests.nets import Chain, Grouped, PreActivation, Residual, conv, pooled

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Residual().eval()


@pytest.fixture
def graph(model: nn.Module) -> sc.ChannelGraph:
    return sc.trace(model, IMAGE)


# ------------------------------------------------------------------------------------------------ plans


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ([], ["conv1:out", "none", "6"]),
        ([0, 6], ["conv1:out", "6", "out of range"]),
        ([-1, 2], ["conv1:out", "-1", "out of range"]),
        ([1, 2, 2], ["conv1:out", "2", "twice"]),
        ([0.5, 1.0], ["conv1:out", "whole numbers"]),
        ([[0, 1]], ["conv1:out"]),
        ([True, False, True, False, False, False], ["conv1:out", "whole numbers"]),
        (["0", "1"], ["conv1:out", "whole numbers"]),
        (3, ["conv1:out"]),
        (None, ["conv1:out"]),
    ],
)
def test_kept_channels_that_cannot_be(graph: sc.ChannelGraph, kept: Any, words: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        sc.Plan.of(graph, {"conv1:out": kept})
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_unit_that_is_not_there(graph: sc.ChannelGraph) -> None:
    with pytest.raises(PlanError, match=r"conv9:out.*conv1:in"):
        sc.Plan.of(graph, {"conv9:out": [0]})


def test_a_frozen_unit_says_why(graph: sc.ChannelGraph) -> None:
    with pytest.raises(PlanError, match=r"fc.*output"):
        sc.Plan.of(graph, {"fc:out": [0]})


def test_a_broken_granule_says_which_channels_go_together() -> None:
    graph = sc.trace(Grouped().eval(), IMAGE)
    with pytest.raises(PlanError) as caught:
        sc.Plan.of(graph, {"a:out": [0, 1, 2, 3, 4, 6]})  # blocks 01 23 45 67 keep 2 2 1 1
    assert all(word in str(caught.value) for word in ("a:out", "4 blocks", "4, 5", "0, 1", "balance"))


def test_balance_mends_what_it_can() -> None:
    graph = sc.trace(Grouped().eval(), IMAGE)
    mended = graph.balance({"a:out": [0, 1, 2, 4, 6], "g:out": [0], "b:out": [1, 3]})
    assert mended["a:out"] == (0, 1, 2, 3, 4, 5, 6, 7)  # one block keeps two, so all do
    assert len(mended["g:out"]) == 4
    assert [sum(3 * b <= i < 3 * b + 3 for i in mended["g:out"]) for b in range(4)] == [1, 1, 1, 1]
    assert 0 in mended["g:out"]
    assert mended["b:out"] == (1, 3)
    sc.Plan.of(graph, mended)


def test_balance_refuses_what_it_cannot_mend() -> None:
    graph = sc.trace(Grouped().eval(), IMAGE)
    for keep in ({"nobody:out": [0]}, {"a:out": [0, 99]}, {"a:out": [-1]}):
        with pytest.raises(PlanError):
            graph.balance(keep)


def test_nothing_left_of_a_writer(graph: sc.ChannelGraph) -> None:
    """Each stream reader keeps something, so stem and conv2 always keep a filter; nobody may keep nothing."""
    plan = sc.Plan.of(graph, {"conv1:in": [0], "fc:in": [0]})
    assert graph.cost(plan).layers["stem"].params == 27  # one filter is left
    for name in ("conv1:in", "fc:in"):
        with pytest.raises(PlanError, match=name):
            sc.Plan.of(graph, {name: []})


class Wider(Residual):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.bn1 = conv(4, 7), conv(7, 4), nn.BatchNorm2d(7)


@pytest.mark.parametrize("act", [sc.prune, lambda g, p: sc.zeroed(g, p).__enter__(), lambda g, p: g.cost(p)])
def test_a_plan_of_another_network_says_what_differs(act: Callable[..., Any], model: nn.Module) -> None:
    other = sc.trace(Wider().eval(), IMAGE)
    plan = sc.Plan.of(other, {"conv1:out": [0, 6]})
    with pytest.raises(PlanError) as caught:
        act(sc.trace(model, IMAGE), plan)
    assert all(word in str(caught.value) for word in ("another network", "conv1", "6", "7"))


def test_a_plan_of_the_other_way_with_streams(model: nn.Module) -> None:
    coupled = sc.trace(model, IMAGE, streams="coupled")
    plan = sc.Plan.of(coupled, proof.random_keep(coupled, 0))
    with pytest.raises(PlanError):
        sc.prune(sc.trace(model, IMAGE), plan)


def test_plans_that_do_not_follow_each_other(graph: sc.ChannelGraph) -> None:
    first = sc.Plan.of(graph, {"conv1:out": [0, 1, 2]})
    with pytest.raises(PlanError, match=r"3.*conv1:out.*6"):
        first.then(sc.Plan.of(graph, {"conv1:out": [0]}))
    stranger = sc.trace(Chain().eval(), IMAGE)
    with pytest.raises(PlanError, match="a:out"):
        first.then(sc.Plan.of(stranger, {"a:out": [0]}))


# ------------------------------------------------------------------------------------------------ tracing


def test_wrong_example_shows_the_model_s_own_error(model: nn.Module) -> None:
    with pytest.raises(TraceError) as caught:
        sc.trace(model, torch.zeros(2, 5, 8, 8))
    message = str(caught.value)
    assert "Residual" in message and "(2, 5, 8, 8)" in message and "to have 3 channels" in message


def test_wrong_number_of_inputs(model: nn.Module) -> None:
    with pytest.raises(TraceError, match="Residual"):
        sc.trace(model, (IMAGE, IMAGE))
    with pytest.raises(TraceError, match="Residual"):
        sc.trace(model, {"picture": IMAGE})


def test_lazy_modules() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    with pytest.raises(TraceError, match=r"0.*(lazy|not initialised|uninitiali[sz]ed)"):
        sc.trace(model, IMAGE)


class Undecided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # no graph can know
            x = -x
        return pooled(self.conv(x))


def test_code_that_depends_on_values_is_named_by_its_line() -> None:
    with pytest.raises(TraceError) as caught:
        sc.trace(Undecided(), IMAGE)
    message = str(caught.value)
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "x.sum() > 0:  #" in text)
    assert "if x.sum() > 0" in message and str(line) in message and Path(__file__).name in message


def test_unknown_way_with_streams(model: nn.Module) -> None:
    with pytest.raises(PrunusError, match=r"select.*coupled"):
        sc.trace(model, IMAGE, streams="sometimes")  # type: ignore[arg-type]


def test_what_is_no_network() -> None:
    with pytest.raises(TraceError):
        sc.trace(F.relu, IMAGE)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ files


@pytest.fixture
def folder(tmp_path: Path, graph: sc.ChannelGraph) -> Path:
    plan = sc.Plan.of(graph, proof.random_keep(graph, 0))
    sc.save(sc.prune(graph, plan), plan, tmp_path / "small")
    return tmp_path / "small"


def cut(name: str, share: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return damage


def swapped(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def edited(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = json.loads((folder / "plan.json").read_text())
        change(data)
        (folder / "plan.json").write_text(json.dumps(data))

    return damage


def first_unit(data: dict[str, Any]) -> dict[str, Any]:
    return next(iter(data["units"].values()))  # type: ignore[no-any-return]


DAMAGES: dict[str, Callable[[Path], None]] = {
    "tensors cut in half": cut("model.safetensors", 0.5),
    "tensors cut by a little": cut("model.safetensors", 0.99),
    "tensors empty": cut("model.safetensors", 0.0),
    "tensors foreign": swapped("model.safetensors", b"PK\x03\x04 this is a pickle of some sort" * 20),
    "tensors gone": lambda folder: (folder / "model.safetensors").unlink(),
    "plan cut in half": cut("plan.json", 0.5),
    "plan empty": cut("plan.json", 0.0),
    "plan foreign": swapped("plan.json", b'{"name": "package", "version": "1.0.0"}'),
    "plan a list": swapped("plan.json", b"[1, 2, 3]"),
    "plan no text": swapped("plan.json", b"\xff\xfe\x00\x01" * 10),
    "plan gone": lambda folder: (folder / "plan.json").unlink(),
    "plan of a later version": edited(lambda data: data.update(version=99)),
    "plan without units": edited(lambda data: data.pop("units")),
    "plan with units that are a list": edited(lambda data: data.update(units=[1, 2])),
    "plan without an example": edited(lambda data: data.pop("example")),
    "plan with kept text": edited(lambda data: first_unit(data).update(keep="all")),
    "plan with a width of text": edited(lambda data: first_unit(data).update(width="many")),
    "plan with an impossible example": edited(
        lambda data: data.update(example={"shape": [-1, "x"], "dtype": "nothing"})
    ),
    "all gone": shutil.rmtree,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder(damage: str, folder: Path, model: nn.Module) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    DAMAGES[damage](folder)
    with pytest.raises((FileError, PlanError, TraceError)) as caught:
        sc.load(folder, model)
    assert str(folder) in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_tensors_of_another_network(folder: Path, model: nn.Module, tmp_path: Path) -> None:
    other = sc.trace(PreActivation().eval(), IMAGE)
    plan = sc.Plan.of(other, proof.random_keep(other, 0))
    sc.save(sc.prune(other, plan), plan, tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(FileError, match=r"bn3\.weight"):
        sc.load(folder, model)


def test_loading_into_another_network(folder: Path) -> None:
    with pytest.raises(PlanError, match="another network"):
        sc.load(folder, Wider().eval())


def test_saving_where_a_file_is(graph: sc.ChannelGraph, tmp_path: Path) -> None:
    plan = sc.Plan.of(graph, {})
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(FileError, match="taken"):
        sc.save(sc.prune(graph, plan), plan, tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_failed_save_leaves_the_old_files(
    folder: Path, graph: sc.ChannelGraph, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("prunus.graph.files.save_file", full)
    with pytest.raises(FileError, match="No space left"):
        sc.save(model, sc.Plan.of(graph, {}), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("text", ["", "null", "{}", '{"format": "prunus-plan"}', "no json", '"prunus-plan"', "[]"])
def test_plans_that_are_none(text: str) -> None:
    with pytest.raises(FileError):
        sc.Plan.from_json(text)


def test_indices_may_be_arrays_tensors_and_ranges(graph: sc.ChannelGraph) -> None:
    wanted = sc.Plan.of(graph, {"conv1:out": [1, 4]}).keep
    for kept in (np.array([4, 1]), (1, 4), range(1, 5, 3), torch.tensor([1, 4]), np.array([1, 4], dtype=np.uint8)):
        assert sc.Plan.of(graph, {"conv1:out": kept}).keep == wanted
