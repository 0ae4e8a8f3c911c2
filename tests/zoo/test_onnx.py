"""Networks from .onnx files. `from_onnx` itself compares each with onnxruntime, for one image and for three."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

import prunus as pr
from prunus.timing.onnx_export import exported, open_session, run_session
from prunus.zoo.models import create
from prunus.zoo.onnx.file import difference
from prunus.zoo.onnx.operations import OPERATIONS
from tests import nets, proof
from tests.zoo.onnx_cases import CASES, IN_SHAPES, INT, Case, X, file_of, weights, write


def in_onnxruntime(path: Path, x: Tensor) -> list[Tensor]:
    return [torch.from_numpy(np.asarray(value)) for value in run_session(open_session(path, 1), x)]


def flat(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_operation_computes_what_onnxruntime_computes(case: Case, tmp_path: Path) -> None:
    batch: Any = "N"
    if case.kind == "GridSample":  # whose grid is for one image
        batch = 1
    elif case.kind == "Resize" and len(case.constants) == 3:  # whose sizes count the images
        batch = 2
    path = file_of(case, tmp_path / "model.onnx", batch)
    model = pr.from_onnx(path)
    x = torch.randn(2 if batch == "N" else batch, *X[1:], generator=torch.Generator().manual_seed(5))
    for got, want in zip(flat(model(x)), in_onnxruntime(path, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_the_cases_name_every_operation_of_the_table() -> None:
    tested = {case.kind for case in CASES} | {kind for case in CASES for kind, _ in case.before}
    assert set(OPERATIONS) - tested - IN_SHAPES == set()


def shapes_file(path: Path, opset: int, batch: Any = "N") -> Path:
    """Convolution, a reshape to sizes that are computed from the shape of the map, and a linear layer: the form of
    `x.view(x.size(0), -1)` in the files of older exporters."""
    axes = {"axes": [0]} if opset < 13 else {}
    more = [] if opset < 13 else ["zero"]
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Shape", ["b"], ["s"]),
        helper.make_node("Constant", [], ["first"], value=helper.make_tensor("v", TensorProto.INT64, [], [0])),
        helper.make_node("Gather", ["s", "first"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", *more], ["n1"], **axes),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["b", "target"], ["c"]),
        helper.make_node("Gemm", ["c", "fc.weight", "fc.bias"], ["y"], transB=1),
    ]
    constants = {"conv.weight": weights(8, 6, 3, 3), "conv.bias": weights(8), "fc.bias": weights(10)}
    constants |= {"fc.weight": weights(10, 8 * 64), "rest": INT(-1)} | ({} if opset < 13 else {"zero": INT(0)})
    return write(path, nodes, constants, ["y"], opset, batch=batch)


@pytest.mark.parametrize("batch", ["N", 1, 4])
@pytest.mark.parametrize("opset", [11, 13, 17, 22])
def test_opsets_computed_shapes_and_any_number_of_images(opset: int, batch: Any, tmp_path: Path) -> None:
    path = shapes_file(tmp_path / "model.onnx", opset, batch)
    model = pr.from_onnx(path)
    state = {n: tuple(t.shape) for n, t in model.state_dict().items()}
    assert state == {"conv.weight": (8, 6, 3, 3), "conv.bias": (8,), "fc.weight": (10, 512), "fc.bias": (10,)}
    x = torch.randn(4, *X[1:])
    want = in_onnxruntime(path, x)[0] if batch != 1 else torch.cat([in_onnxruntime(path, row[None])[0] for row in x])
    torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-4)
    graph = pr.trace(model, torch.zeros(1, *X[1:]))
    assert {name: unit.width for name, unit in graph.units.items()} == {"conv:out": 8}
    small = pr.prune(graph, pr.Plan.of(graph, {"conv:out": (0, 3, 5)}))
    assert small.fc.in_features == 3 * 64


def test_ranges_and_filled_tensors_for_any_number_of_images(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["ones"], value=helper.make_tensor("v", 1, [1], [1.0])),
        helper.make_node("Add", ["x", "ones"], ["a"]),
        helper.make_node("Range", ["zero", "eight", "one"], ["r"]),
        helper.make_node("Mul", ["a", "r"], ["b"]),
        helper.make_node("Size", ["r"], ["count"]),
        helper.make_node("Cast", ["count"], ["countf"], to=1),
        helper.make_node("Div", ["b", "countf"], ["y"]),
    ]
    constants = {"zero": np.float32(0), "eight": np.float32(8), "one": np.float32(1)}
    model = pr.from_onnx(write(tmp_path / "model.onnx", nodes, constants, ["y"], 17))
    x = torch.randn(5, *X[1:])
    torch.testing.assert_close(model(x), (x + 1) * torch.arange(8.0) / 8)


NETWORKS = [nets.Chain, nets.Residual, nets.SqueezeExcite, nets.Dense, nets.Depthwise, nets.Flattened, nets.Shuffle]
NETWORKS += [nets.Glu, nets.Halves, nets.PaddedShortcut, nets.Transposed]


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("one_image", [False, True])
def test_a_file_is_as_prunable_as_its_source(kind: type[nn.Module], one_image: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    source, side = kind().eval(), 8 if kind is nets.Flattened else 16
    example = torch.randn(1, 3, side, side)
    axes = {} if one_image else {"dynamic_axes": {"input": {0: "n"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter warns about itself
        torch.onnx.export(
            source, (example,), tmp_path / "m.onnx", dynamo=False, input_names=["input"], opset_version=17, **axes
        )
    model = pr.from_onnx(tmp_path / "m.onnx")
    graph, wanted = pr.trace(model, example), pr.trace(source, example)
    assert sorted(u.width for u in graph.units.values()) == sorted(u.width for u in wanted.units.values())
    assert (graph.macs, graph.params) == (wanted.macs, wanted.params)
    keep = proof.random_keep(graph, 1)
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    x = torch.randn(3, 3, side, side)
    with proof.masked(model, graph, keep):
        want = model(x)
    torch.testing.assert_close(small.eval()(x), want, rtol=1e-4, atol=1e-4)


def test_our_own_export_comes_back_and_a_pruned_one_can_be_pruned_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = create("resnet8").eval()
    example = torch.zeros(1, 3, 32, 32)
    (tmp_path / "whole.onnx").write_bytes(exported(source, example))
    model = pr.from_onnx(tmp_path / "whole.onnx")
    assert set(model.state_dict()) <= {*source.state_dict(), *(f"{n}.bias" for n, _ in source.named_modules())}
    graph = pr.trace(model, example)
    plan = pr.Plan.of(graph, proof.random_keep(graph, 0))
    small = pr.prune(graph, plan)
    pr.save(small, plan, tmp_path / "run")
    again = pr.load(tmp_path / "run", pr.from_onnx(tmp_path / "whole.onnx")).eval()
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(again(x), small.eval()(x))
    pr.export(small, example, tmp_path / "small.onnx")
    back = pr.from_onnx(tmp_path / "small.onnx")
    torch.testing.assert_close(back(x), small(x), rtol=1e-4, atol=1e-4)
    assert pr.trace(back, example).macs == graph.cost(plan).macs


def test_the_bias_of_a_product_joins_its_layer(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="/head/fc/MatMul"),
        helper.make_node("Add", ["head.fc.bias", "a"], ["y"]),
    ]
    model = pr.from_onnx(write(tmp_path / "m.onnx", nodes, {"w": weights(8, 5), "head.fc.bias": weights(5)}, ["y"], 17))
    assert {n: tuple(t.shape) for n, t in model.state_dict().items()} == {
        "head.fc.weight": (5, 8),
        "head.fc.bias": (5,),
    }


def test_shared_weights_stay_shared(tmp_path: Path) -> None:
    nodes = [helper.make_node("Conv", ["x" if i == 0 else f"a{i}", "w"], [f"a{i + 1}"]) for i in range(2)]
    model = pr.from_onnx(write(tmp_path / "m.onnx", nodes, {"w": weights(6, 6, 1, 1)}, ["a2"], 17))
    assert [tuple(p.shape) for p in model.parameters()] == [(6, 6, 1, 1)]


# -- files that are refused


def refused(path: Path, match: str, error: type[Exception] = pr.ModelError, **how: Any) -> None:
    with pytest.raises(error, match=match):
        pr.from_onnx(path, **how)


def test_files_that_are_no_networks(tmp_path: Path) -> None:
    refused(tmp_path / "none.onnx", "does not exist", pr.FileError)
    refused(tmp_path, "is a folder", pr.FileError)
    path = tmp_path / "m.onnx"
    for content in (b"", b"PK\x03\x04 something else", b"\x89PNG\r\n" + bytes(100)):
        path.write_bytes(content)
        refused(path, "is not (an|a complete) .onnx file", pr.FileError)
    whole = shapes_file(path, 17).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, "is not a complete .onnx file", pr.FileError)


def test_files_that_cannot_be_imported(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    zero = {"scale": np.float32(0.1), "zero": np.uint8(0)}
    quantised = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])]
    refused(write(path, quantised, zero, ["y"], 17), "is quantised .*QuantizeLinear.*--int8")
    write(path, [helper.make_node("NonZero", ["x"], ["y"])], {}, ["y"], 17)
    refused(path, "no translation for NonZero")
    write(path, [helper.make_node("Relu", ["x"], ["y"])], {}, ["y"], 10)
    refused(path, "has opset 10, and 11 or later")
    half = write(path, [helper.make_node("Relu", ["x"], ["y"])], {}, ["y"], 17, kind=10)
    refused(half, "half precision")
    fused = onnx.load(shapes_file(path, 17))
    fused.graph.node[0].domain = "com.microsoft"
    fused.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    path.write_bytes(fused.SerializeToString())
    refused(path, "not ONNX's own: com.microsoft.Conv")
    write(path, [helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2], name="pool")], {}, ["y", "i"], 17)
    refused(path, "MaxPool pool: the positions of its maxima are read")


def test_the_size_of_the_images(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, {}, ["y"], 17, sizes=(3, "h", "w"))
    refused(path, r"takes images of any size, \[N, 3, \?, \?\]: give their height and width")
    assert pr.from_onnx(path, 12)(torch.ones(2, 3, 12, 12)).shape == (2, 3, 12, 12)
    assert pr.from_onnx(path, (12, 8))(torch.ones(2, 3, 12, 8)).shape == (2, 3, 12, 8)
    write(path, nodes, {}, ["y"], 17)
    refused(path, r"takes images \[N, 6, 8, 8\], not of 12 x 12", size=12)


def test_an_import_that_computes_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATIONS, "Relu", lambda op: op.call(torch.tanh, op.x))
    refused(shapes_file(tmp_path / "m.onnx", 17), "computes something else than onnxruntime for 1 image")


def test_a_file_that_needs_its_number_of_images_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "c"], ["y"], name="each")]
    path = write(tmp_path / "m.onnx", nodes, {"c": weights(2, 6, 8, 8)}, ["y"], 17, batch=2)
    refused(path, "Add each.* The file is for 2 images at a time")


def test_an_error_of_a_call_is_not_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = pr.from_onnx(shapes_file(tmp_path / "m.onnx", 17))
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 6, 9, 9))
    assert capfd.readouterr().err == ""


def test_differences_in_words() -> None:
    one = torch.arange(100.0)
    assert difference(one, one + 1e-5) is None
    tiny = 1e-6 * one / 100  # a sigmoid near 0, which engines compute to some 1e-7
    assert difference(tiny, tiny + 4e-7) is None and difference(tiny, tiny + 1e-5)
    assert "of how much the values vary" in str(difference(one, one + 1))
    assert "shape [2] instead of [100]" in str(difference(one[:2], one))
    assert "not a number" in str(difference(one, one / 0))
    assert "50.0% of the values differ" in str(difference(torch.tensor([1, 2]), torch.tensor([1, 3])))


def test_networks_take_training_steps(tmp_path: Path) -> None:
    model = pr.from_onnx(shapes_file(tmp_path / "m.onnx", 17)).train()
    loss = nn.functional.cross_entropy(model(torch.randn(4, *X[1:])), torch.tensor([1, 2, 3, 4]))
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.parameters())
