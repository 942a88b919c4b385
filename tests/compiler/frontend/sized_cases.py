"""Single operators on data of dynamic shapes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tests.compiler.frontend.onnx_models import INT64, model, tensor
from tunefarm.compiler.types.extents import Given
from tunefarm.compiler.types.tensor_type import Array

Inputs = Callable[[dict[str, int]], dict[str, Array]]


@dataclass(frozen=True)
class Case:
    """Nodes on inputs of symbolic shapes; `sizes` are what symbols are in each call."""

    nodes: str
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


def case(
    inputs: str,
    nodes: str,
    sizes: str,
    *,
    outputs: tuple[str, ...] = ("y",),
    opset: int = 18,
    **constants: Any,
) -> Case:
    """A case as text: inputs `x[b,s,6] int i[b]`, nodes, and of each symbol the bounds and what it
    is in each call, or in all of them: `b 1..3: 2, s 2..7: 3 7`."""
    found = re.findall(r"(int )?(\w+)\[([^]]*)\]", inputs)
    symbols = [re.split(r"[ :]+", each) for each in sizes.split(", ")]
    calls = max(len(values) for _, _, *values in symbols)
    return Case(
        nodes,
        {
            name: tuple(int(d) if d.isdigit() else d for d in shape.split(",") if d)
            for _, name, shape in found
        },
        {symbol: bounds for symbol, bounds, *_ in symbols},
        [
            {name: int(values[i % len(values)]) for name, _, *values in symbols}
            for i in range(calls)
        ],
        constants,
        outputs,
        tuple(name for kind, name, _ in found if kind),
        opset,
    )


def floats(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


ROW_SIZES = "b 1..3: 1 2 3, s 2..7: 3 7 4"


def on_rows(nodes: str, **constants: Any) -> Case:
    """Nodes on x [batch, seq, 6]."""
    return case("x[b,s,6]", nodes, ROW_SIZES, **constants)


def on_image(nodes: str, opset: int = 18, **constants: Any) -> Case:
    """Nodes on x [batch, 4, height, width]."""
    sizes = "b 1..2: 1 2 1, h 5..11: 5 8 11, w 5..12: 9 6 11"
    return case("x[b,4,h,w]", nodes, sizes, opset=opset, **constants)


def on_shapes(nodes: str, outputs: tuple[str, ...] = ("y",), **constants: Any) -> Case:
    """Nodes on x [batch, seq, 6] and its shape."""
    return case("x[b,s,6]", f"shape = Shape x; {nodes}", ROW_SIZES, outputs=outputs, **constants)


def with_second(nodes: str, second: str, **constants: Any) -> Case:
    """Nodes on x [batch, seq, 6] and another input z, maybe of p rows."""
    sizes = ROW_SIZES + ", p 0..5: 0 5 2" * ("p" in second)
    return case(f"x[b,s,6] z[{second}]", nodes, sizes, **constants)


CASES: dict[str, Case] = {
    "reshape to another order of sizes": on_shapes(
        "turned = Gather shape [1,2,0] axis=0; Reshape x turned"
    ),
    "reshape that takes rows apart": on_shapes(
        "turned = Gather shape [0,2] axis=0; wanted = Concat turned [-1] axis=0; Reshape x wanted"
    ),
    "part of all elements in a row": on_shapes("rows = Reshape x [-1]; Slice rows [5] [17]"),
    "elements picked of all in a row": on_shapes(
        "rows = Reshape x [-1]; Gather rows [7,0,-1,17] axis=0"
    ),
    "all elements in a row, twice": on_shapes("rows = Reshape x [-1]; Concat rows rows axis=0"),
    "relu": on_rows("Relu x"),
    "add_bias": on_rows("Add x bias", bias=floats(6)),
    "mul_same": with_second("Mul x z", "b,s,6"),
    "where": with_second("c = Less x z; Where c x z", "b,1,6"),
    "matmul": on_rows("MatMul x w", w=floats(6, 5)),
    "matmul_turned": with_second("MatMul x z", "b,6,s"),
    "matmul_inner": with_second("MatMul z x", "b,4,s"),
    "sum_rows": on_rows("ReduceSum x [1] keepdims=0"),
    "sum_all": on_rows("ReduceSum x"),
    "mean_rows": on_rows("ReduceMean x [1]"),
    "mean_columns": on_rows("ReduceMean x [2]"),
    "max_batch": on_rows("ReduceMax x [0,1]"),
    "min_rows": on_rows("ReduceMin x [1]"),
    "prod_rows": on_rows("ReduceProd x [1]"),
    "log_sum_exp": on_rows("ReduceLogSumExp x [1]"),
    "l2": on_rows("ReduceL2 x [1]"),
    "arg_max": on_rows("ArgMax x axis=1"),
    "arg_min": on_rows("ArgMin x axis=1 keepdims=0"),
    "softmax_rows": on_rows("Softmax x axis=1"),
    "softmax_columns": on_rows("Softmax x axis=2"),
    "log_softmax": on_rows("LogSoftmax x axis=1"),
    "layer_norm": on_rows("LayerNormalization x g", g=floats(6)),
    "lp_norm": on_rows("LpNormalization x axis=1"),
    "mean_variance": on_rows("MeanVarianceNormalization x axes=[0,1]"),
    "cumsum": on_rows("CumSum x 1"),
    "cumsum_back": on_rows("CumSum x 1 reverse=1"),
    "trilu": on_rows("Trilu x upper=0"),
    "transpose": on_rows("Transpose x perm=[1,2,0]"),
    "flatten": on_rows("Flatten x axis=2"),
    "flatten_softmax": case(
        "x[b,s,6]", "f = Flatten x axis=2; Softmax f axis=0", "b 1..3: 2 3, s 2..7: 7 2"
    ),
    "unsqueeze": on_rows("Unsqueeze x [1,3]"),
    "gather_constant": on_rows("Gather x [1,0] axis=1"),
    "gather_last": on_rows("Gather x [-1] axis=1"),
    "gather_last_scalar": on_rows("Gather x -1 axis=1"),
    "slice_from": on_rows("Slice x [1] [99] [1]"),
    "slice_to": on_rows("Slice x [0] [-1] [1]"),
    "slice_last": on_rows("Slice x [-2] [99] [1]"),
    "slice_steps": on_rows("Slice x [1] [99] [1] [2]"),
    "slice_backwards": on_rows("Slice x [-1] [-99] [1] [-1]"),
    "split": case(
        "x[b,s,6]",
        "y v = Split x axis=1 num_outputs=2",
        "b 1..3: 2 3, s 2..7: 7 4",
        outputs=("y", "v"),
    ),
    "concat_rows": with_second("Concat z x axis=1", "b,p,6"),
    "concat_constant": on_shapes(
        "bs = Slice shape [0] [1]; wide = Concat bs [1,6] axis=0; f = Expand first wide; "
        "Concat f x axis=1",
        first=floats(1, 1, 6),
    ),
    "tile": on_rows("Tile x [1,2,1]"),
    "pad": on_rows("Pad x [0,2,0,0,1,1]"),
    "pad_reflect": on_rows("Pad x [0,1,0,0,1,0] mode=reflect"),
    "pad_edge": on_rows("Pad x [0,1,0,0,3,0] mode=edge"),
    "pad_edge_before": on_rows("Pad x [0,2,0,0,0,0] mode=edge"),
    "pad_columns_edge": on_image("Pad x [0,0,0,2,0,0,3,0] mode=edge"),
    "pad_columns_reflect": on_image("Pad x [0,0,3,4,0,0,2,4] mode=reflect"),
    "pad_columns_reflect_far": on_image("Pad x [0,0,0,0,0,0,3,5] mode=reflect"),
    "pad_columns_wrap": on_image("Pad x [0,0,5,0,0,0,0,5] mode=wrap", opset=19),
    "positions": on_shapes(
        "s = Gather shape 1; r = Range 0 s 1; p = Gather table r; Add x p", table=floats(9, 6)
    ),
    "fill_of_shape": on_shapes("c = ConstantOfShape shape; Add x c"),
    "reshape_merge": on_shapes("Reshape x [-1,6]"),
    "reshape_zero": on_shapes("Reshape x [0,0,2,-1]"),
    "reshape_all": on_shapes("Reshape x [-1]"),
    "size_as_data": on_shapes("s = Gather shape 1; f = Cast s to=1; Div x f"),
    "shape_as_output": on_shapes("Mul shape [2]"),
    "conv": on_image("Conv x w pads=[1,1,1,1]", w=floats(3, 4, 3, 3)),
    "conv_stride": on_image("Conv x w strides=[2,2] pads=[1,1,1,1]", w=floats(3, 4, 3, 3)),
    "conv_same": on_image("Conv x w strides=[2,2] auto_pad=SAME_UPPER", w=floats(3, 4, 3, 3)),
    "conv_same_one": on_image("Conv x w auto_pad=SAME_LOWER", w=floats(3, 4, 3, 2)),
    "conv_groups": on_image(
        "Conv x w group=4 dilations=[2,1] pads=[2,0,2,0]", w=floats(4, 1, 3, 3)
    ),
    "conv_transpose": on_image(
        "ConvTranspose x w strides=[2,2] pads=[1,1,1,1]", w=floats(4, 2, 3, 3)
    ),
    "max_pool": on_image("MaxPool x kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1]"),
    "max_pool_ceil": on_image("MaxPool x kernel_shape=[2,2] strides=[2,2] ceil_mode=1"),
    "max_pool_ceil_across": on_image("MaxPool x kernel_shape=[3,3] strides=[2,2] ceil_mode=1"),
    "max_pool_within": on_image("MaxPool x kernel_shape=[2,2] strides=[2,2]"),
    "max_pool_before": on_image("MaxPool x kernel_shape=[3,3] strides=[2,2] pads=[1,1,0,0]"),
    "average_pool_within": on_image("AveragePool x kernel_shape=[3,3] strides=[2,1]"),
    "average_pool_ceil": on_image("AveragePool x kernel_shape=[2,3] strides=[2,2] ceil_mode=1"),
    "lp_pool_ceil": on_image("LpPool x kernel_shape=[2,2] strides=[2,3] ceil_mode=1"),
    "conv_within": on_image("Conv x w strides=[2,2]", w=floats(3, 4, 2, 2)),
    "conv_within_each": on_image("Conv x w group=4 strides=[2,1]", w=floats(4, 1, 3, 3)),
    "average_pool": on_image("AveragePool x kernel_shape=[3,2] strides=[2,1] pads=[1,0,1,1]"),
    "average_pool_whole": on_image(
        "AveragePool x kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1] count_include_pad=1"
    ),
    "global_average": on_image("GlobalAveragePool x"),
    "global_max": on_image("GlobalMaxPool x"),
    "instance_norm": on_image("InstanceNormalization x g e", g=floats(4), e=floats(4)),
    "group_norm": on_image(
        "GroupNormalization x g e num_groups=2", g=floats(4), e=floats(4), opset=21
    ),
    "batch_norm": on_image(
        "BatchNormalization x a c m v", a=floats(4), c=floats(4), m=floats(4), v=np.abs(floats(4))
    ),
    "lrn": on_image("LRN x size=3"),
    "depth_to_space": on_image("DepthToSpace x blocksize=2"),
    "resize_nearest": on_image("Resize x _ [1.0,1,2,2] mode=nearest"),
    "resize_linear": on_image("Resize x _ [1.0,1,2,1.5] mode=linear"),
    "resize_corners": on_image(
        "Resize x _ [1.0,1,2,2] mode=linear coordinate_transformation_mode=align_corners"
    ),
}
