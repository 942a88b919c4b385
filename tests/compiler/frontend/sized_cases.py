"""Single operators on data of dynamic shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.compiler.frontend.onnx_models import INT64, integers, model, tensor
from tunefarm.compiler.types.extents import Given
from tunefarm.compiler.types.tensor_type import Array

Inputs = Callable[[dict[str, int]], dict[str, Array]]


@dataclass(frozen=True)
class Case:
    """Nodes on inputs of symbolic shapes; `sizes` are what symbols are in each call."""

    nodes: list[onnx.NodeProto]
    inputs: dict[str, tuple[int | str, ...]]
    bounds: dict[str, str]
    sizes: list[dict[str, int]]
    constants: dict[str, Array] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)
    integers: tuple[str, ...] = ()  # inputs that are indices, 0 to 2
    opset: int = 18

    @property
    def proto(self) -> onnx.ModelProto:
        inputs = [
            tensor(name, list(shape), INT64 if name in self.integers else onnx.TensorProto.FLOAT)
            for name, shape in self.inputs.items()
        ]
        proto = model(self.nodes, inputs, self.outputs, self.constants, opset=self.opset)
        for output in proto.graph.output:
            output.type.Clear()
        return proto

    @property
    def shapes(self) -> dict[str, tuple[Given, ...]]:
        return {name: (bounds,) for name, bounds in self.bounds.items()}

    def calls(self) -> list[dict[str, Array]]:
        return [self._call(sizes, seed) for seed, sizes in enumerate(self.sizes)]

    def _call(self, sizes: dict[str, int], seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        result: dict[str, Array] = {}
        for name, declared in self.inputs.items():
            shape = [sizes[d] if isinstance(d, str) else d for d in declared]
            if name in self.integers:
                result[name] = rng.integers(0, 3, shape)
            else:
                result[name] = rng.standard_normal(shape).astype(np.float32)
        return result


def floats(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def on_rows(
    operator: str, *more: str, constants: dict[str, Array] | None = None, **attributes: Any
) -> Case:
    """An operator on x [batch, seq, 6]."""
    single = helper.make_node(operator, ["x", *more], ["y"], **attributes)
    sizes = [{"b": 1, "s": 3}, {"b": 2, "s": 7}, {"b": 3, "s": 4}]
    return Case([single], {"x": ("b", "s", 6)}, {"b": "1..3", "s": "2..7"}, sizes, constants or {})


def on_image(
    operator: str, *more: str, constants: dict[str, Array] | None = None, **attributes: Any
) -> Case:
    """An operator on x [batch, 4, height, width]."""
    opset = attributes.pop("opset", 18)
    single = helper.make_node(operator, ["x", *more], ["y"], **attributes)
    sizes = [{"b": 1, "h": 5, "w": 9}, {"b": 2, "h": 8, "w": 6}, {"b": 1, "h": 11, "w": 11}]
    bounds = {"b": "1..2", "h": "5..11", "w": "5..12"}
    return Case([single], {"x": ("b", 4, "h", "w")}, bounds, sizes, constants or {}, opset=opset)


def on_shapes(nodes: list[onnx.NodeProto], **constants: Array) -> Case:
    """Nodes on x [batch, seq, 6] and its shape."""
    sizes = [{"b": 1, "s": 3}, {"b": 2, "s": 7}, {"b": 3, "s": 4}]
    shape = helper.make_node("Shape", ["x"], ["shape"])
    return Case(
        [shape, *nodes], {"x": ("b", "s", 6)}, {"b": "1..3", "s": "2..7"}, sizes, dict(constants)
    )


def node(operator: str, inputs: str, output: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), output.split(), **attributes)


def with_second(
    nodes: list[onnx.NodeProto], second: tuple[int | str, ...], **constants: Array
) -> Case:
    """Nodes on x [batch, seq, 6] and another input z."""
    sizes = [{"b": 1, "s": 3, "p": 0}, {"b": 2, "s": 7, "p": 5}, {"b": 3, "s": 4, "p": 2}]
    bounds = {"b": "1..3", "s": "2..7", "p": "0..5"}
    used = {d for d in second if isinstance(d, str)} | {"b", "s"}
    return Case(
        nodes,
        {"x": ("b", "s", 6), "z": second},
        {name: bounds[name] for name in used},
        [{name: size[name] for name in used} for size in sizes],
        dict(constants),
    )


CASES: dict[str, Case] = {
    "reshape to another order of sizes": on_shapes(
        [
            node("Gather", "shape order", "turned", axis=0),
            node("Reshape", "x turned"),
        ],
        order=integers(1, 2, 0),
    ),
    "reshape that takes rows apart": on_shapes(
        [
            node("Gather", "shape order", "turned", axis=0),
            node("Concat", "turned rest", "wanted", axis=0),
            node("Reshape", "x wanted"),
        ],
        order=integers(0, 2),
        rest=integers(-1),
    ),
    "part of all elements in a row": on_shapes(
        [
            node("Reshape", "x flat", "rows"),
            node("Slice", "rows first last"),
        ],
        flat=integers(-1),
        first=integers(5),
        last=integers(17),
    ),
    "elements picked of all in a row": on_shapes(
        [
            node("Reshape", "x flat", "rows"),
            node("Gather", "rows picks", axis=0),
        ],
        flat=integers(-1),
        picks=integers(7, 0, -1, 17),
    ),
    "all elements in a row, twice": on_shapes(
        [
            node("Reshape", "x flat", "rows"),
            node("Concat", "rows rows", axis=0),
        ],
        flat=integers(-1),
    ),
    "relu": on_rows("Relu"),
    "add_bias": on_rows("Add", "bias", constants={"bias": floats(6)}),
    "mul_same": with_second([node("Mul", "x z")], ("b", "s", 6)),
    "where": with_second([node("Less", "x z", "c"), node("Where", "c x z")], ("b", 1, 6)),
    "matmul": on_rows("MatMul", "w", constants={"w": floats(6, 5)}),
    "matmul_turned": with_second([node("MatMul", "x z")], ("b", 6, "s")),
    "matmul_inner": with_second([node("MatMul", "z x")], ("b", 4, "s")),
    "sum_rows": on_rows("ReduceSum", "axes", constants={"axes": integers(1)}, keepdims=0),
    "sum_all": on_rows("ReduceSum"),
    "mean_rows": on_rows("ReduceMean", "axes", constants={"axes": integers(1)}),
    "mean_columns": on_rows("ReduceMean", "axes", constants={"axes": integers(2)}),
    "max_batch": on_rows("ReduceMax", "axes", constants={"axes": integers(0, 1)}),
    "min_rows": on_rows("ReduceMin", "axes", constants={"axes": integers(1)}),
    "prod_rows": on_rows("ReduceProd", "axes", constants={"axes": integers(1)}),
    "log_sum_exp": on_rows("ReduceLogSumExp", "axes", constants={"axes": integers(1)}),
    "l2": on_rows("ReduceL2", "axes", constants={"axes": integers(1)}),
    "arg_max": on_rows("ArgMax", axis=1),
    "arg_min": on_rows("ArgMin", axis=1, keepdims=0),
    "softmax_rows": on_rows("Softmax", axis=1),
    "softmax_columns": on_rows("Softmax", axis=2),
    "log_softmax": on_rows("LogSoftmax", axis=1),
    "layer_norm": on_rows("LayerNormalization", "g", constants={"g": floats(6)}),
    "lp_norm": on_rows("LpNormalization", axis=1),
    "mean_variance": on_rows("MeanVarianceNormalization", axes=[0, 1]),
    "cumsum": on_rows("CumSum", "axis", constants={"axis": np.array(1)}),
    "cumsum_back": on_rows("CumSum", "axis", constants={"axis": np.array(1)}, reverse=1),
    "trilu": on_rows("Trilu", upper=0),
    "transpose": on_rows("Transpose", perm=[1, 2, 0]),
    "flatten": on_rows("Flatten", axis=2),
    "flatten_softmax": Case(
        [node("Flatten", "x", "f", axis=2), node("Softmax", "f", axis=0)],
        {"x": ("b", "s", 6)},
        {"b": "1..3", "s": "2..7"},
        [{"b": 2, "s": 7}, {"b": 3, "s": 2}],
    ),
    "unsqueeze": on_rows("Unsqueeze", "axes", constants={"axes": integers(1, 3)}),
    "gather_constant": on_rows("Gather", "i", constants={"i": integers(1, 0)}, axis=1),
    "gather_last": on_rows("Gather", "i", constants={"i": integers(-1)}, axis=1),
    "gather_last_scalar": on_rows("Gather", "i", constants={"i": np.array(-1)}, axis=1),
    "slice_from": on_rows(
        "Slice", "a", "e", "at", constants={"a": integers(1), "e": integers(99), "at": integers(1)}
    ),
    "slice_to": on_rows(
        "Slice", "a", "e", "at", constants={"a": integers(0), "e": integers(-1), "at": integers(1)}
    ),
    "slice_last": on_rows(
        "Slice", "a", "e", "at", constants={"a": integers(-2), "e": integers(99), "at": integers(1)}
    ),
    "slice_steps": on_rows(
        "Slice",
        "a",
        "e",
        "at",
        "st",
        constants={"a": integers(1), "e": integers(99), "at": integers(1), "st": integers(2)},
    ),
    "slice_backwards": on_rows(
        "Slice",
        "a",
        "e",
        "at",
        "st",
        constants={"a": integers(-1), "e": integers(-99), "at": integers(1), "st": integers(-1)},
    ),
    "split": Case(
        [node("Split", "x", "y v", axis=1, num_outputs=2)],
        {"x": ("b", "s", 6)},
        {"b": "1..3", "s": "2..7"},
        [{"b": 2, "s": 7}, {"b": 3, "s": 4}],
        outputs=("y", "v"),
    ),
    "concat_rows": with_second([node("Concat", "z x", axis=1)], ("b", "p", 6)),
    "concat_constant": on_shapes(
        [
            node("Slice", "shape zero one", "bs"),
            node("Concat", "bs rest", "wide", axis=0),
            node("Expand", "first wide", "f"),
            node("Concat", "f x", axis=1),
        ],
        zero=integers(0),
        one=integers(1),
        rest=integers(1, 6),
        first=floats(1, 1, 6),
    ),
    "tile": on_rows("Tile", "r", constants={"r": integers(1, 2, 1)}),
    "pad": on_rows("Pad", "p", constants={"p": integers(0, 2, 0, 0, 1, 1)}),
    "pad_reflect": on_rows("Pad", "p", constants={"p": integers(0, 1, 0, 0, 1, 0)}, mode="reflect"),
    "pad_edge": on_rows("Pad", "p", constants={"p": integers(0, 1, 0, 0, 3, 0)}, mode="edge"),
    "positions": on_shapes(
        [
            node("Gather", "shape one", "s"),
            node("Range", "zero s step", "r"),
            node("Gather", "table r", "p"),
            node("Add", "x p"),
        ],
        zero=np.array(0),
        one=np.array(1),
        step=np.array(1),
        table=floats(9, 6),
    ),
    "fill_of_shape": on_shapes(
        [node("ConstantOfShape", "shape", "c"), node("Add", "x c")],
    ),
    "reshape_merge": on_shapes([node("Reshape", "x to")], to=integers(-1, 6)),
    "reshape_zero": on_shapes([node("Reshape", "x to")], to=integers(0, 0, 2, -1)),
    "reshape_all": on_shapes([node("Reshape", "x to")], to=integers(-1)),
    "size_as_data": on_shapes(
        [
            node("Gather", "shape one", "s"),
            node("Cast", "s", "f", to=1),
            node("Div", "x f"),
        ],
        one=np.array(1),
    ),
    "shape_as_output": on_shapes([node("Mul", "shape two")], two=integers(2)),
    "conv": on_image("Conv", "w", constants={"w": floats(3, 4, 3, 3)}, pads=[1, 1, 1, 1]),
    "conv_stride": on_image(
        "Conv", "w", constants={"w": floats(3, 4, 3, 3)}, strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    "conv_same": on_image(
        "Conv", "w", constants={"w": floats(3, 4, 3, 3)}, strides=[2, 2], auto_pad="SAME_UPPER"
    ),
    "conv_same_one": on_image(
        "Conv", "w", constants={"w": floats(3, 4, 3, 2)}, auto_pad="SAME_LOWER"
    ),
    "conv_groups": on_image(
        "Conv",
        "w",
        constants={"w": floats(4, 1, 3, 3)},
        group=4,
        dilations=[2, 1],
        pads=[2, 0, 2, 0],
    ),
    "conv_transpose": on_image(
        "ConvTranspose", "w", constants={"w": floats(4, 2, 3, 3)}, strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    "max_pool": on_image("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "max_pool_ceil": on_image("MaxPool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "average_pool": on_image("AveragePool", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
    "average_pool_whole": on_image(
        "AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1
    ),
    "global_average": on_image("GlobalAveragePool"),
    "global_max": on_image("GlobalMaxPool"),
    "instance_norm": on_image(
        "InstanceNormalization", "g", "e", constants={"g": floats(4), "e": floats(4)}
    ),
    "group_norm": on_image(
        "GroupNormalization",
        "g",
        "e",
        constants={"g": floats(4), "e": floats(4)},
        num_groups=2,
        opset=21,
    ),
    "batch_norm": on_image(
        "BatchNormalization",
        "a",
        "c",
        "m",
        "v",
        constants={"a": floats(4), "c": floats(4), "m": floats(4), "v": np.abs(floats(4))},
    ),
    "lrn": on_image("LRN", size=3),
    "depth_to_space": on_image("DepthToSpace", blocksize=2),
    "resize_nearest": on_image(
        "Resize", "", "sc", constants={"sc": np.array([1, 1, 2, 2], np.float32)}, mode="nearest"
    ),
    "resize_linear": on_image(
        "Resize", "", "sc", constants={"sc": np.array([1, 1, 2, 1.5], np.float32)}, mode="linear"
    ),
    "resize_corners": on_image(
        "Resize",
        "",
        "sc",
        constants={"sc": np.array([1, 1, 2, 2], np.float32)},
        mode="linear",
        coordinate_transformation_mode="align_corners",
    ),
}
