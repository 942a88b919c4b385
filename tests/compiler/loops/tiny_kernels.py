"""Kernels small enough for the loop interpreter, and one per schedule step's docstring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.compiler.schedule.small_kernels import f32, kernel_from, kernel_of
from tunefarm.compiler.expr.nodes import (
    Expr,
    add,
    binary,
    cast,
    const,
    integer,
    select,
    sub,
    unary,
)
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.loops.constant_layout import ConstantLayout
from tunefarm.compiler.loops.interpret import interpret
from tunefarm.compiler.loops.ir import LoopNest
from tunefarm.compiler.loops.lower_kernel import lower_kernel
from tunefarm.compiler.schedule.apply_schedule import apply_schedule
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array, TensorType

LANES = 4


def f(value: float) -> Expr:
    return const(value, DType.F32)


def _vector(extent: int) -> FusedKernel:
    """y[i] = x[i] + 1."""
    builder = KernelBuilder()
    x = builder.input(f32(extent))
    builder.stage("y", [("i", extent)], lambda i: binary("add", x[i], f(1)))
    return builder.kernel("vector", "y")


def _plane(rows: int, columns: int, constant: bool = False) -> FusedKernel:
    """y[i, j] = x[i, j] + 1."""
    builder = KernelBuilder()
    x = builder.input(f32(rows, columns), constant)
    builder.stage("y", [("i", rows), ("j", columns)], lambda i, j: binary("add", x[i, j], f(1)))
    return builder.kernel("plane", "y")


def _doubled() -> FusedKernel:
    """y[i] = x[i // 2] * f[i % 2]."""
    builder = KernelBuilder()
    x, factors = builder.input(f32(4)), builder.input(f32(2))

    def body(i: Expr) -> Expr:
        two = integer(2)
        return binary("mul", x[binary("floordiv", i, two)], factors[binary("mod", i, two)])

    builder.stage("y", [("i", 8)], body)
    return builder.kernel("doubled", "y")


def _windows() -> FusedKernel:
    """y[i, j] = max over k, m of x[i + k, j * 2 + m]."""
    builder = KernelBuilder()
    x = builder.input(f32(5, 9))

    def body(i: Expr, j: Expr, k: Expr, m: Expr) -> Expr:
        return x[add(i, k), add(binary("mul", j, integer(2)), m)]

    axes = [("i", 3), ("j", 4)]
    builder.stage("y", axes, body, reduce=[("k", 3), ("m", 3)], combiner="max")
    return builder.kernel("windows", "y")


def _padded() -> FusedKernel:
    """pad[i] = select(0 < i, x[i - 1], 0); y[i] = pad[i] * 2."""
    builder = KernelBuilder()
    x = builder.input(f32(8))
    pad = builder.stage(
        "pad",
        [("i", 9)],
        lambda i: select(binary("lt", integer(0), i), x[sub(i, integer(1))], f(0)),
    )
    builder.stage("y", [("i", 9)], lambda i: binary("mul", pad[i], f(2)))
    return builder.kernel("padded", "y")


def _turned(rows: int, columns: int) -> FusedKernel:
    """y[i, j] = x[j, i] * 2 + b[j]."""
    builder = KernelBuilder()
    x, b = builder.input(f32(columns, rows)), builder.input(f32(columns))
    builder.stage(
        "y",
        [("i", rows), ("j", columns)],
        lambda i, j: binary("add", binary("mul", x[j, i], f(2)), b[j]),
    )
    return builder.kernel("turned", "y")


def _running_sum() -> FusedKernel:
    """y[i, j] = sum over r of select(r <= j, x[i, r], 0)."""
    builder = KernelBuilder()
    x = builder.input(f32(3, 13))
    builder.stage(
        "y",
        [("i", 3), ("j", 13)],
        lambda i, j, r: select(binary("le", r, j), x[i, r], f(0.0)),
        reduce=[("r", 13)],
        combiner="sum",
    )
    return builder.kernel("running_sum", "y")


def _row_sum(rows: int, columns: int) -> FusedKernel:
    """s[i] = sum over k of x[i, k]."""
    builder = KernelBuilder()
    x = builder.input(f32(rows, columns))
    builder.stage("s", [("i", rows)], lambda i, k: x[i, k], reduce=[("k", columns)], combiner="sum")
    return builder.kernel("row_sum", "s")


def _plane_sum(rows: int, columns: int) -> FusedKernel:
    """s[i] = sum over k, m of x[i, k, m]."""
    builder = KernelBuilder()
    x = builder.input(f32(2, rows, columns))
    reduce = [("k", rows), ("m", columns)]
    builder.stage("s", [("i", 2)], lambda i, k, m: x[i, k, m], reduce=reduce, combiner="sum")
    return builder.kernel("plane_sum", "s")


def _column_sum() -> FusedKernel:
    """s[i] = sum over k, m of x[k, i, m]."""
    builder = KernelBuilder()
    x = builder.input(f32(3, 2, 5))
    reduce = [("k", 3), ("m", 5)]
    builder.stage("s", [("i", 2)], lambda i, k, m: x[k, i, m], reduce=reduce, combiner="sum")
    return builder.kernel("column_sum", "s")


def _scaled() -> FusedKernel:
    """y[i, j] = x[i, j] * (s[i] + 1)."""
    builder = KernelBuilder()
    x, s = builder.input(f32(3, 5)), builder.input(f32(3))
    builder.stage(
        "y",
        [("i", 3), ("j", 5)],
        lambda i, j: binary("mul", x[i, j], binary("add", s[i], f(1))),
    )
    return builder.kernel("scaled", "y")


def _softmax_of_tanh() -> FusedKernel:
    """m[i] = max over j of x[i, j]; y[i, j] = exp(x[i, j] - m[i]) + exp(x[i, j]) tanh(x[i, j])."""
    builder = KernelBuilder()
    x = builder.input(f32(3, 5))
    m = builder.stage("m", [("i", 3)], lambda i, k: x[i, k], reduce=[("k", 5)], combiner="max")

    def value(i: Expr, j: Expr) -> Expr:
        other = binary("mul", unary("exp", x[i, j]), unary("tanh", x[i, j]))
        return binary("add", unary("exp", binary("sub", x[i, j], m[i])), other)

    builder.stage("y", [("i", 3), ("j", 5)], value)
    return builder.kernel("softmax_of_tanh", "y")


def _window() -> FusedKernel:
    """t[i] = x[i] + 1; y[i] = sum over k < 3 of t[i + k]."""
    builder = KernelBuilder()
    x = builder.input(f32(18))
    t = builder.stage("t", [("i", 18)], lambda i: binary("add", x[i], f(1)))
    builder.stage("y", [("i", 16)], lambda i, k: t[add(i, k)], reduce=[("k", 3)], combiner="sum")
    return builder.kernel("window", "y")


def _narrow_product(terms: int) -> FusedKernel:
    """y[i, j] = sum over k of i32(x[i, k]) * i32(w[k, j]), u8 by i8, with a constant w."""
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.U8, (2, terms)))
    w = builder.input(TensorType(DType.I8, (terms, 3)), constant=True)

    def body(i: Expr, j: Expr, k: Expr) -> Expr:
        return binary("mul", cast(DType.I32, x[i, k]), cast(DType.I32, w[k, j]))

    builder.stage("y", [("i", 2), ("j", 3)], body, reduce=[("k", terms)], combiner="sum")
    return builder.kernel("narrow_product", "y")


def _packed_product(dtype: DType = DType.F32) -> FusedKernel:
    """Two rows of 16 terms times weights of 4 bits in blocks of 8, with zero points."""
    shapes = [TensorType(dtype, (2, 16)), TensorType(DType.I32, (2, 3))]
    shapes += [TensorType(DType.F32, (2, 3)), TensorType(DType.I8, (2, 3))]
    names = [f"x{number}" for number in range(4)]
    attributes = {"bits": 4, "block": 8} | ({} if dtype is DType.F32 else {"accumulator": "f32"})
    return kernel_of(shapes, [("weight_product", names, attributes)], names[1:])


def _tile_product() -> FusedKernel:
    """y[i, j] = sum over k of i32(x[i, k]) * i32(w[k, j]), u8 by i8, with a constant w."""
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.U8, (5, 24)))
    w = builder.input(TensorType(DType.I8, (24, 6)), constant=True)

    def body(i: Expr, j: Expr, k: Expr) -> Expr:
        return binary("mul", cast(DType.I32, x[i, k]), cast(DType.I32, w[k, j]))

    builder.stage("y", [("i", 5), ("j", 6)], body, reduce=[("k", 24)], combiner="sum")
    return builder.kernel("tile_product", "y")


def _filter() -> FusedKernel:
    """y[o] = sum over c of w[o, c], with a constant w."""
    builder = KernelBuilder()
    w = builder.input(f32(6, 5), constant=True)
    builder.stage("y", [("o", 6)], lambda o, c: w[o, c], reduce=[("c", 5)], combiner="sum")
    return builder.kernel("filter", "y")


def _running_maximum() -> FusedKernel:
    """y[i] = max over k of select(k <= i, x[k], -inf)."""
    builder = KernelBuilder()
    x = builder.input(f32(9))
    builder.stage(
        "y",
        [("i", 9)],
        lambda i, k: select(binary("le", k, i), x[k], f(float("-inf"))),
        reduce=[("k", 9)],
        combiner="max",
    )
    return builder.kernel("running_maximum", "y")


def _grouped() -> FusedKernel:
    """s[i] = sum over k of x[i // 4, k]; y[i] = s[i] + 1."""
    builder = KernelBuilder()
    x = builder.input(f32(3, 5))
    s = builder.stage(
        "s",
        [("i", 12)],
        lambda i, k: x[binary("floordiv", i, integer(4)), k],
        reduce=[("k", 5)],
        combiner="sum",
    )
    builder.stage("y", [("i", 12)], lambda i: binary("add", s[i], f(1)))
    return builder.kernel("grouped", "s")


def _shared_part() -> FusedKernel:
    """t[i, j] = x[i, j] + 1; u[i, j] = sum over k of t w[k]; z[i] = sum over j of t u."""
    builder = KernelBuilder()
    x, w = builder.input(f32(3, 4)), builder.input(f32(5))
    plane = [("i", 3), ("j", 4)]
    t = builder.stage("t", plane, lambda i, j: binary("add", x[i, j], f(1)))
    u = builder.stage(
        "u",
        plane,
        lambda i, j, k: binary("mul", t[i, j], w[k]),
        reduce=[("k", 5)],
        combiner="sum",
    )
    builder.stage(
        "z",
        plane[:1],
        lambda i, j: binary("mul", t[i, j], u[i, j]),
        reduce=plane[1:],
        combiner="sum",
    )
    return builder.kernel("shared_part", "z")


def _shares() -> FusedKernel:
    """e[i, j] = exp(x[i, j]); s[i] = sum over j of e; y = e / s."""
    builder = KernelBuilder()
    x, plane = builder.input(f32(3, 13)), [("i", 3), ("j", 13)]
    e = builder.stage("e", plane, lambda i, j: unary("exp", x[i, j]))
    s = builder.stage("s", plane[:1], lambda i, j: e[i, j], reduce=plane[1:], combiner="sum")
    builder.stage("y", plane, lambda i, j: binary("div", e[i, j], s[i]))
    return builder.kernel("shares", "y")


def _scattered(reduction: str) -> FusedKernel:
    """x, updated at positions that two columns read, two of seven beyond its rows."""
    data, updates = f32(2, 5, 2), f32(2, 4, 2)
    operands = [data, TensorType(DType.I64, updates.shape), updates]
    node = ("scatter_elements", ["x0", "x1", "x2"], {"reduction": reduction})
    return kernel_of(operands, [node])


STEP_KERNELS: Mapping[str, Callable[[], FusedKernel]] = {
    "vector8": lambda: _vector(8),
    "vector9": lambda: _vector(9),
    "vector17": lambda: _vector(17),
    "plane": lambda: _plane(4, 5),
    "weights": lambda: _plane(4, 5, constant=True),
    "turned": lambda: _turned(3, 5),
    "doubled": _doubled,
    "windows": _windows,
    "padded": _padded,
    "row_sum19": lambda: _row_sum(3, 19),
    "running_sum": _running_sum,
    "row_sum16": lambda: _row_sum(3, 16),
    "plane_sum": lambda: _plane_sum(4, 5),
    "column_sum": _column_sum,
    "scaled": _scaled,
    "softmax_of_tanh": _softmax_of_tanh,
    "window": _window,
    "filter": _filter,
    "narrow_product": lambda: _narrow_product(8),
    "narrow_product10": lambda: _narrow_product(10),
    "packed_product": _packed_product,
    "narrow_packed_product": lambda: _packed_product(DType.BF16),
    "tile_product": _tile_product,
    "running_maximum": _running_maximum,
    "grouped": _grouped,
    "shared_part": _shared_part,
    "shares": _shares,
    "scattered": lambda: _scattered("none"),
    "scattered_sum": lambda: _scattered("add"),
}


def _conv(**attributes: int | tuple[int, ...] | str) -> FusedKernel:
    return kernel_of(
        [f32(1, 1, 3, 4, LANES), f32(3 * LANES, LANES, 3, 3), f32(3 * LANES)],
        [
            ("conv", ["x0", "x1", "x2"], {"layout": "NCHWc", **attributes}),
            ("relu", ["v0"], {}),
        ],
        constants=["x1", "x2"],
    )


def tiny_kernels() -> dict[str, FusedKernel]:
    """One kernel of each family."""
    index_type = TensorType(DType.I64, (5,))
    return {
        "conv": _conv(pads=(1, 1, 1, 1)),
        "conv_stride2": _conv(pads=(1, 1, 0, 0), strides=(2, 2)),
        "conv1x1": kernel_of(
            [f32(1, 2, 3, 3, LANES), f32(2 * LANES, 2 * LANES, 1, 1)],
            [("conv", ["x0", "x1"], {"layout": "NCHWc"})],
            constants=["x1"],
        ),
        "depthwise": kernel_of(
            [f32(1, 2, 3, 4, LANES), f32(2 * LANES, 1, 3, 3)],
            [("conv", ["x0", "x1"], {"layout": "NCHWc", "groups": 8, "pads": (1, 1, 1, 1)})],
            constants=["x1"],
        ),
        "conv_plain": kernel_from("[1,2,3,7] [3,2,3,3]; conv x0 x1 pads=(1,1,1,1)"),
        "matmul": kernel_from("[5,13] const [13,7] const [7]; matmul x0 x1; add v0 x2; relu v1"),
        "matmul_integers": kernel_from("i32[2,3,8] i32[2,8,9]; matmul x0 x1"),
        "max_pool": kernel_of(
            [f32(1, 2, 7, 6, LANES)],
            [
                (
                    "max_pool",
                    ["x0"],
                    {
                        "kernel": (3, 3),
                        "strides": (2, 2),
                        "pads": (1, 1, 1, 1),
                        "shape": (4, 3),
                        "layout": "NCHWc",
                    },
                )
            ],
        ),
        "softmax": kernel_from("[2,3,11]; softmax x0 axis=2"),
        "softmax_middle": kernel_from("[2,3,9]; softmax x0 axis=1"),
        "layer_norm": kernel_from("[2,13] const [13] const [13]; layer_norm x0 x1 x2 axis=1"),
        "attention": kernel_from("[2,3,4] [2,5,4] [2,5,6] [3,5]; attention x0 x1 x2 x3 scale=0.5"),
        "narrow_attention": kernel_of(
            [TensorType(DType.BF16, shape) for shape in ((2, 3, 4), (2, 5, 4), (2, 5, 6))],
            [("attention", ["x0", "x1", "x2"], {"accumulator": "f32"})],
        ),
        "mean": kernel_from("[3,13]; reduce_mean x0 axes=(1,)"),
        "arg_max": kernel_from("[3,13]; arg_max x0 axis=1"),
        "add_broadcast": kernel_from("[2,7,5] [7,1]; add x0 x1; relu v0"),
        "transpose": kernel_from("[5,3,7]; transpose x0 perm=(2,0,1)"),
        "concat": kernel_from("[2,3] [2,4]; concat x0 x1 axis=1"),
        "pad": kernel_from("[5,7]; pad x0 pads=(1,2,3,4)"),
        "gather": kernel_of([f32(7, 3), index_type], [("gather", ["x0", "x1"], {"axis": 0})]),
        "to_blocked": kernel_of([f32(1, 6, 3, 2)], [("to_blocked", ["x0"], {"block": LANES})]),
        "less": kernel_from("[3,5] [5]; less x0 x1"),
        "scalar": kernel_from("[] []; add x0 x1"),
    }


def run_loops(kernel: FusedKernel, schedule: Schedule, inputs: Mapping[str, Array]) -> Array:
    """What the loops of `kernel` under `schedule` compute, by the interpreter."""
    scheduled = apply_schedule(kernel, schedule)
    found = run_nest(lower_kernel(scheduled), scheduled.layouts, inputs)
    return found.reshape(kernel.output.shape)


def run_nest(
    nest: LoopNest, layouts: Mapping[str, ConstantLayout], inputs: Mapping[str, Array]
) -> Array:
    """What loops compute, by the interpreter.

    Packed constants and merged axes give buffers another shape, never other memory.
    """
    shapes = {memory.name: memory.shape for memory in nest.inputs}
    packed = {
        name: layouts[name].pack(array) if name in layouts else array
        for name, array in inputs.items()
    }
    return interpret(nest, {name: array.reshape(shapes[name]) for name, array in packed.items()})


def assert_close(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    """Equal but for the order of a short sum."""
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5, strict=True)
    else:
        np.testing.assert_array_equal(actual, expected, strict=True)
