"""Small .onnx files for tests: one for each operation of the importer's table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DRAW = np.random.default_rng(0)
X = (2, 6, 8, 8)  # shape of the input; the first size is that of the file's example


def weights(*shape: int) -> np.ndarray:
    return DRAW.normal(size=shape).astype(np.float32)


class Case(NamedTuple):
    """An operation on `x` [N, 6, 8, 8] and on constants, which stand in the place of the other inputs."""

    kind: str
    constants: tuple[Any, ...] = ()
    attributes: dict[str, Any] = {}  # noqa: RUF012
    opset: int = 17
    before: tuple[tuple[str, dict[str, Any]], ...] = ()  # operations on x in front of it
    first: bool = True  # whether x is the first input, or the last
    after: tuple[tuple[str, dict[str, Any]], ...] = ()
    outputs: int = 1

    def __str__(self) -> str:
        return f"{self.kind}-{self.opset}-{'-'.join(f'{k}={v}' for k, v in self.attributes.items() if k != 'value')}"


INT = lambda *values: np.array(values, dtype=np.int64)
POSITIVE = (("Abs", {}),)
COMPARED = (("Cast", {"to": TensorProto.FLOAT}),)
HALF = np.array(0.5, np.float32)
PAIR = (("Cast", {"to": TensorProto.BOOL}),)

CASES = [
    Case("Conv", (weights(4, 6, 3, 3),), {"pads": [1, 1, 1, 1]}),
    Case("Conv", (weights(4, 3, 3, 3), weights(4)), {"group": 2, "strides": [2, 1], "pads": [0, 1, 2, 1]}),
    Case("Conv", (weights(6, 1, 3, 3), weights(6)), {"group": 6, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    Case("Conv", (weights(6, 6, 2, 2),), {"auto_pad": "SAME_LOWER"}),
    Case("ConvTranspose", (weights(6, 4, 3, 3), weights(4)), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case("ConvTranspose", (weights(6, 2, 4, 4),), {"strides": [2, 2], "group": 2, "pads": [0, 1, 2, 1]}),
    Case("ConvTranspose", (weights(6, 4, 3, 3),), {"strides": [2, 2], "output_shape": [16, 16]}),
    Case("Gemm", (weights(384, 5), weights(5)), {"alpha": 0.5, "beta": 2.0}, before=(("Flatten", {}),)),
    Case("Gemm", (weights(5, 384),), {"transB": 1}, before=(("Flatten", {}),)),
    Case("MatMul", (weights(8, 5),)),
    Case("BatchNormalization", (weights(6), weights(6), weights(6), np.abs(weights(6))), {"epsilon": 1e-3}),
    Case("InstanceNormalization", (weights(6), weights(6))),
    Case("LayerNormalization", (weights(8), weights(8)), {"axis": -1}),
    Case("GroupNormalization", (weights(6), weights(6)), {"num_groups": 3}, 21),
    Case("LRN", (), {"size": 3, "alpha": 0.2, "beta": 0.6, "bias": 1.5}),
    Case("PRelu", (weights(6, 1, 1),)),
    Case("PRelu", (weights(1),)),
    Case("MaxPool", (), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case("MaxPool", (), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [0, 0, 1, 1], "ceil_mode": 1}),
    Case("AveragePool", (), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case("AveragePool", (), {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]}),
    Case("AveragePool", (), {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1], "count_include_pad": 1}),
    Case("GlobalAveragePool"),
    Case("GlobalMaxPool"),
    *(Case(kind) for kind in ("Relu", "Selu", "Softplus", "Softsign", "Sigmoid", "Tanh", "HardSwish")),
    *(Case(kind) for kind in ("Exp", "Abs", "Neg", "Floor", "Ceil", "Round", "Sign", "Erf", "Sin", "Cos", "Identity")),
    *(Case(kind, before=POSITIVE) for kind in ("Sqrt", "Log", "Reciprocal")),
    Case("Dropout"),
    Case("LeakyRelu", (), {"alpha": 0.2}),
    Case("Elu", (), {"alpha": 0.7}),
    Case("Celu", (), {"alpha": 0.7}),
    Case("ThresholdedRelu", (), {"alpha": 0.3}),
    Case("HardSigmoid", (), {"alpha": 0.3, "beta": 0.4}),
    Case("HardSigmoid", (), {"alpha": 1 / 6, "beta": 0.5}),
    Case("Mish", opset=18),
    Case("Gelu", opset=20),
    Case("Gelu", (), {"approximate": "tanh"}, 20),
    Case("Clip", (np.float32(-0.5), np.float32(0.5))),
    Case("Softmax", (), {"axis": 1}),
    Case("Softmax", (), {"axis": 1}, 11),
    Case("LogSoftmax"),
    Case("Add", (weights(6, 1, 1),)),
    Case("Sub", (HALF,), first=False),
    Case("Mul", (weights(1, 6, 1, 1),)),
    Case("Div", (HALF,), before=POSITIVE),
    Case("Pow", (np.float32(2),)),
    Case("Mod", (HALF,), {"fmod": 1}),
    *(Case(kind, (weights(6, 1, 1), weights(8))) for kind in ("Sum", "Mean", "Max", "Min")),
    *(Case(kind, (HALF,), after=COMPARED) for kind in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
    Case("Not", before=PAIR, after=COMPARED),
    Case("And", (np.array([True]),), before=PAIR, after=COMPARED),
    Case("Or", (np.array([False]),), before=PAIR, after=COMPARED),
    Case("Where", (np.array([True, False] * 4), weights(8)), first=False),
    Case("Cast", (), {"to": TensorProto.INT32}),
    Case("CastLike", (np.array(1),)),
    *(
        Case(kind, (INT(2, 3),), {"keepdims": keep}, 18)
        for kind in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare")
        for keep in (0, 1)
    ),
    *(Case(kind, (), {"axes": [2, 3]}) for kind in ("ReduceMean", "ReduceLogSumExp", "ReduceProd")),
    Case("ReduceSum", (INT(1),)),
    Case("ReduceSum", (), {"axes": [-1]}, 11),
    Case("ArgMax", (), {"axis": 1}),
    Case("ArgMin", (), {"axis": -1, "keepdims": 0}),
    Case("TopK", (INT(3),), {"axis": 1}, outputs=2),
    Case("CumSum", (np.array(2),)),
    Case("LpNormalization", (), {"axis": 1, "p": 2}),
    Case("Reshape", (INT(0, 2, -1, 8),)),
    Case("Reshape", (INT(-1, 384),)),
    Case("Flatten", (), {"axis": 1}),
    Case("Squeeze", (INT(2, 3),), before=(("GlobalAveragePool", {}),)),
    Case("Squeeze", (), {"axes": [3]}, 11, before=(("GlobalAveragePool", {}),)),
    Case("Unsqueeze", (INT(1, -1),)),
    Case("Transpose", (), {"perm": [0, 2, 3, 1]}),
    Case("Concat", (), {"axis": 1}),
    Case("Split", (), {"axis": 1}, 13, outputs=2),
    Case("Split", (INT(1, 2, 3),), {"axis": 1}, outputs=3),
    Case("Split", (), {"axis": 2, "num_outputs": 3}, 18, outputs=3),
    Case("Slice", (INT(3), INT(6), INT(1))),
    Case("Slice", (INT(0, 1), INT(2**62, -1), INT(2, 3), INT(2, 3))),
    Case("Slice", (INT(-1), INT(-(2**62)), INT(3), INT(-1))),
    Case("Gather", (np.array(1),), {"axis": 1}),
    Case("Gather", (np.array([[0, -1], [2, 3]]),), {"axis": 1}),
    Case("Expand", (INT(1, 6, 8, 8),), before=(("GlobalAveragePool", {}),)),
    Case("Tile", (INT(1, 2, 1, 3),)),
    Case("Pad", (INT(0, 1, 0, 2, 0, 0, 1, 1), np.float32(0.5))),
    Case("Pad", (INT(1, 2, 0, 1), np.float32(0), INT(2, 3)), {}, 18),
    Case("Pad", (INT(0, 0, 1, 2, 0, 0, 1, 0),), {"mode": "reflect"}),
    Case("Pad", (INT(0, 0, 1, 2, 0, 0, 1, 0),), {"mode": "edge"}),
    Case("Resize", ("", np.array([1, 1, 2, 2], np.float32)), {"mode": "nearest"}),
    Case(
        "Resize",
        ("", np.array([1, 1, 2, 2], np.float32)),
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    Case("Resize", ("", np.array([1, 1, 0.5, 0.75], np.float32)), {"mode": "nearest"}),
    Case("Resize", ("", np.array([1, 1, 1.5, 1.5], np.float32)), {"mode": "nearest", "nearest_mode": "ceil"}),
    Case("Resize", ("", np.array([1, 1, 2, 2], np.float32)), {"mode": "linear"}),
    Case("Resize", ("", np.array([1, 1, 0.5, 0.5], np.float32)), {"mode": "linear"}),
    Case(
        "Resize",
        ("", np.zeros(0, np.float32), INT(2, 6, 12, 5)),
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    Case("Resize", ("", np.array([1, 1, 2, 2], np.float32)), {"mode": "cubic"}, 13),
    Case("GridSample", (np.tanh(weights(1, 5, 4, 2)),), {"align_corners": 1}, 16),
    Case("DepthToSpace", (), {"blocksize": 2}, before=(("Grow", {}),)),
    Case("DepthToSpace", (), {"blocksize": 2, "mode": "CRD"}, before=(("Grow", {}),)),
    Case("SpaceToDepth", (), {"blocksize": 2}),
    Case("Trilu", (np.array(1),), {"upper": 0}),
    Case("Einsum", (weights(6, 6),), {"equation": "nchw,cd->ndhw"}),
]
# Operations that compute shapes and constants; the files of `shapes` in test_onnx.py have them.
IN_SHAPES = {"Shape", "Size", "Range", "ConstantOfShape", "Constant"}


def write(path: Path, nodes: list[Any], constants: dict[str, Any], outputs: list[str], opset: int, **how: Any) -> Path:
    """A file with the input `x`; `batch` and `sizes` say its shape."""
    shape = [how.get("batch", "N"), *how.get("sizes", X[1:])]
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", how.get("kind", TensorProto.FLOAT), shape)],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path.parent.mkdir(exist_ok=True, parents=True)
    model = onnx.shape_inference.infer_shapes(model)
    for value in model.graph.output:
        if not value.type.tensor_type.HasField("shape"):  # what the inference does not know
            value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, [None] * 4))
    path.write_bytes(model.SerializeToString())
    return path


def file_of(case: Case, path: Path, batch: Any = "N") -> Path:
    """The file of a case."""
    nodes, constants, name = [], {}, "x"
    for place, (kind, given) in enumerate(case.before):
        made = f"before_{place}"
        if kind == "Grow":
            constants["times"] = INT(1, 4, 1, 1)
            nodes.append(helper.make_node("Tile", [name, "times"], [made]))
        else:
            nodes.append(helper.make_node(kind, [name], [made], name=f"{kind}_before", **given))
        name = made
    inputs = []
    for place, value in enumerate(case.constants):
        if isinstance(value, str):
            inputs.append("")
            continue
        constants[f"c{place}"] = value
        inputs.append(f"c{place}")
    inputs = [name, *inputs] if case.first else [*inputs, name]
    if case.kind == "Where":
        inputs = ["c0", "x", "c1"]
    if case.kind == "Concat":
        inputs = [name, name]
    names = [f"y{place}" for place in range(case.outputs)]
    nodes.append(helper.make_node(case.kind, inputs, names, name=f"{case.kind}_1", **case.attributes))
    for kind, given in case.after:
        nodes.append(helper.make_node(kind, names[:1], ["z"], **given))
        names = ["z"]
    return write(path, nodes, constants, names, case.opset, batch=batch)
