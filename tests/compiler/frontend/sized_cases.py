"""Single operators on data of dynamic shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tests.compiler.frontend.onnx_models import INT64, model, node, tensor
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


def _single(operator: str, inputs: str, given: dict[str, Any]) -> tuple[Any, dict[str, Array]]:
    """One node on x, and those of `given` that are constants of it and no attributes."""
    constants = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    attributes = {name: value for name, value in given.items() if name not in constants}
    return [node(operator, f"x {inputs}", **attributes)], constants


ROWS = {"b": "1..3", "s": "2..7"}
ROW_SIZES = [{"b": 1, "s": 3}, {"b": 2, "s": 7}, {"b": 3, "s": 4}]


def on_rows(operator: str, inputs: str = "", **given: Any) -> Case:
    """An operator on x [batch, seq, 6], with constants and attributes."""
    nodes, constants = _single(operator, inputs, given)
    return Case(nodes, {"x": ("b", "s", 6)}, ROWS, ROW_SIZES, constants)


def on_image(operator: str, inputs: str = "", opset: int = 18, **given: Any) -> Case:
    """An operator on x [batch, 4, height, width], with constants and attributes."""
    nodes, constants = _single(operator, inputs, given)
    sizes = [{"b": 1, "h": 5, "w": 9}, {"b": 2, "h": 8, "w": 6}, {"b": 1, "h": 11, "w": 11}]
    bounds = {"b": "1..2", "h": "5..11", "w": "5..12"}
    return Case(nodes, {"x": ("b", 4, "h", "w")}, bounds, sizes, constants, opset=opset)


def on_shapes(*nodes: onnx.NodeProto, **constants: Array) -> Case:
    """Nodes on x [batch, seq, 6] and its shape."""
    first = node("Shape", "x", "shape")
    return Case([first, *nodes], {"x": ("b", "s", 6)}, ROWS, ROW_SIZES, dict(constants))


def with_second(
    nodes: list[onnx.NodeProto], second: tuple[int | str, ...], **constants: Array
) -> Case:
    """Nodes on x [batch, seq, 6] and another input z."""
    sizes = [{**size, "p": p} for size, p in zip(ROW_SIZES, (0, 5, 2), strict=True)]
    used = {d for d in second if isinstance(d, str)} | {"b", "s"}
    return Case(
        nodes,
        {"x": ("b", "s", 6), "z": second},
        {name: bound for name, bound in {**ROWS, "p": "0..5"}.items() if name in used},
        [{name: size[name] for name in used} for size in sizes],
        dict(constants),
    )


CASES: dict[str, Case] = {
    "reshape to another order of sizes": on_shapes(
        node("Gather", "shape [1,2,0]", "turned", axis=0), node("Reshape", "x turned")
    ),
    "reshape that takes rows apart": on_shapes(
        node("Gather", "shape [0,2]", "turned", axis=0),
        node("Concat", "turned [-1]", "wanted", axis=0),
        node("Reshape", "x wanted"),
    ),
    "part of all elements in a row": on_shapes(
        node("Reshape", "x [-1]", "rows"), node("Slice", "rows [5] [17]")
    ),
    "elements picked of all in a row": on_shapes(
        node("Reshape", "x [-1]", "rows"), node("Gather", "rows [7,0,-1,17]", axis=0)
    ),
    "all elements in a row, twice": on_shapes(
        node("Reshape", "x [-1]", "rows"), node("Concat", "rows rows", axis=0)
    ),
    "relu": on_rows("Relu"),
    "add_bias": on_rows("Add", "bias", bias=floats(6)),
    "mul_same": with_second([node("Mul", "x z")], ("b", "s", 6)),
    "where": with_second([node("Less", "x z", "c"), node("Where", "c x z")], ("b", 1, 6)),
    "matmul": on_rows("MatMul", "w", w=floats(6, 5)),
    "matmul_turned": with_second([node("MatMul", "x z")], ("b", 6, "s")),
    "matmul_inner": with_second([node("MatMul", "z x")], ("b", 4, "s")),
    "sum_rows": on_rows("ReduceSum", "[1]", keepdims=0),
    "sum_all": on_rows("ReduceSum"),
    "mean_rows": on_rows("ReduceMean", "[1]"),
    "mean_columns": on_rows("ReduceMean", "[2]"),
    "max_batch": on_rows("ReduceMax", "[0,1]"),
    "min_rows": on_rows("ReduceMin", "[1]"),
    "prod_rows": on_rows("ReduceProd", "[1]"),
    "log_sum_exp": on_rows("ReduceLogSumExp", "[1]"),
    "l2": on_rows("ReduceL2", "[1]"),
    "arg_max": on_rows("ArgMax", axis=1),
    "arg_min": on_rows("ArgMin", axis=1, keepdims=0),
    "softmax_rows": on_rows("Softmax", axis=1),
    "softmax_columns": on_rows("Softmax", axis=2),
    "log_softmax": on_rows("LogSoftmax", axis=1),
    "layer_norm": on_rows("LayerNormalization", "g", g=floats(6)),
    "lp_norm": on_rows("LpNormalization", axis=1),
    "mean_variance": on_rows("MeanVarianceNormalization", axes=[0, 1]),
    "cumsum": on_rows("CumSum", "1"),
    "cumsum_back": on_rows("CumSum", "1", reverse=1),
    "trilu": on_rows("Trilu", upper=0),
    "transpose": on_rows("Transpose", perm=[1, 2, 0]),
    "flatten": on_rows("Flatten", axis=2),
    "flatten_softmax": Case(
        [node("Flatten", "x", "f", axis=2), node("Softmax", "f", axis=0)],
        {"x": ("b", "s", 6)},
        {"b": "1..3", "s": "2..7"},
        [{"b": 2, "s": 7}, {"b": 3, "s": 2}],
    ),
    "unsqueeze": on_rows("Unsqueeze", "[1,3]"),
    "gather_constant": on_rows("Gather", "[1,0]", axis=1),
    "gather_last": on_rows("Gather", "[-1]", axis=1),
    "gather_last_scalar": on_rows("Gather", "-1", axis=1),
    "slice_from": on_rows("Slice", "[1] [99] [1]"),
    "slice_to": on_rows("Slice", "[0] [-1] [1]"),
    "slice_last": on_rows("Slice", "[-2] [99] [1]"),
    "slice_steps": on_rows("Slice", "[1] [99] [1] [2]"),
    "slice_backwards": on_rows("Slice", "[-1] [-99] [1] [-1]"),
    "split": Case(
        [node("Split", "x", "y v", axis=1, num_outputs=2)],
        {"x": ("b", "s", 6)},
        {"b": "1..3", "s": "2..7"},
        [{"b": 2, "s": 7}, {"b": 3, "s": 4}],
        outputs=("y", "v"),
    ),
    "concat_rows": with_second([node("Concat", "z x", axis=1)], ("b", "p", 6)),
    "concat_constant": on_shapes(
        node("Slice", "shape [0] [1]", "bs"),
        node("Concat", "bs [1,6]", "wide", axis=0),
        node("Expand", "first wide", "f"),
        node("Concat", "f x", axis=1),
        first=floats(1, 1, 6),
    ),
    "tile": on_rows("Tile", "[1,2,1]"),
    "pad": on_rows("Pad", "[0,2,0,0,1,1]"),
    "pad_reflect": on_rows("Pad", "[0,1,0,0,1,0]", mode="reflect"),
    "pad_edge": on_rows("Pad", "[0,1,0,0,3,0]", mode="edge"),
    "pad_edge_before": on_rows("Pad", "[0,2,0,0,0,0]", mode="edge"),
    "pad_columns_edge": on_image("Pad", "[0,0,0,2,0,0,3,0]", mode="edge"),
    "pad_columns_reflect": on_image("Pad", "[0,0,3,4,0,0,2,4]", mode="reflect"),
    "pad_columns_reflect_far": on_image("Pad", "[0,0,0,0,0,0,3,5]", mode="reflect"),
    "pad_columns_wrap": on_image("Pad", "[0,0,5,0,0,0,0,5]", opset=19, mode="wrap"),
    "positions": on_shapes(
        node("Gather", "shape 1", "s"),
        node("Range", "0 s 1", "r"),
        node("Gather", "table r", "p"),
        node("Add", "x p"),
        table=floats(9, 6),
    ),
    "fill_of_shape": on_shapes(node("ConstantOfShape", "shape", "c"), node("Add", "x c")),
    "reshape_merge": on_shapes(node("Reshape", "x [-1,6]")),
    "reshape_zero": on_shapes(node("Reshape", "x [0,0,2,-1]")),
    "reshape_all": on_shapes(node("Reshape", "x [-1]")),
    "size_as_data": on_shapes(
        node("Gather", "shape 1", "s"), node("Cast", "s", "f", to=1), node("Div", "x f")
    ),
    "shape_as_output": on_shapes(node("Mul", "shape [2]")),
    "conv": on_image("Conv", "w", w=floats(3, 4, 3, 3), pads=[1, 1, 1, 1]),
    "conv_stride": on_image("Conv", "w", w=floats(3, 4, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]),
    "conv_same": on_image("Conv", "w", w=floats(3, 4, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER"),
    "conv_same_one": on_image("Conv", "w", w=floats(3, 4, 3, 2), auto_pad="SAME_LOWER"),
    "conv_groups": on_image(
        "Conv", "w", w=floats(4, 1, 3, 3), group=4, dilations=[2, 1], pads=[2, 0, 2, 0]
    ),
    "conv_transpose": on_image(
        "ConvTranspose", "w", w=floats(4, 2, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    "max_pool": on_image("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "max_pool_ceil": on_image("MaxPool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "max_pool_ceil_across": on_image("MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "max_pool_within": on_image("MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
    "max_pool_before": on_image("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0]),
    "average_pool_within": on_image("AveragePool", kernel_shape=[3, 3], strides=[2, 1]),
    "average_pool_ceil": on_image("AveragePool", kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1),
    "lp_pool_ceil": on_image("LpPool", kernel_shape=[2, 2], strides=[2, 3], ceil_mode=1),
    "conv_within": on_image("Conv", "w", w=floats(3, 4, 2, 2), strides=[2, 2]),
    "conv_within_each": on_image("Conv", "w", w=floats(4, 1, 3, 3), group=4, strides=[2, 1]),
    "average_pool": on_image("AveragePool", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
    "average_pool_whole": on_image(
        "AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1
    ),
    "global_average": on_image("GlobalAveragePool"),
    "global_max": on_image("GlobalMaxPool"),
    "instance_norm": on_image("InstanceNormalization", "g e", g=floats(4), e=floats(4)),
    "group_norm": on_image(
        "GroupNormalization", "g e", g=floats(4), e=floats(4), num_groups=2, opset=21
    ),
    "batch_norm": on_image(
        "BatchNormalization", "a c m v", a=floats(4), c=floats(4), m=floats(4), v=np.abs(floats(4))
    ),
    "lrn": on_image("LRN", size=3),
    "depth_to_space": on_image("DepthToSpace", blocksize=2),
    "resize_nearest": on_image("Resize", "_ [1.0,1,2,2]", mode="nearest"),
    "resize_linear": on_image("Resize", "_ [1.0,1,2,1.5]", mode="linear"),
    "resize_corners": on_image(
        "Resize", "_ [1.0,1,2,2]", mode="linear", coordinate_transformation_mode="align_corners"
    ),
}
