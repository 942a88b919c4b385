"""Contractions of narrow factors, made of those of their accumulators' type, and their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tunefarm.compiler.expr.nodes import (
    Const,
    Expr,
    Load,
    Select,
    binary,
    cast,
    const,
    index,
    mul,
    select,
    unary,
)
from tunefarm.compiler.expr.walk import loads, rewrite
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array


def narrowed(
    kernel: FusedKernel, left: DType, right: DType, pad: int = 0, requantised: bool = False
) -> FusedKernel:
    """The sum of products whose factors are converted from these types, padded with `pad`.

    The anchor is the output, or is `requantised` to u8.
    """
    anchor = kernel.stage(kernel.anchor)
    first, second = (load.buffer for load in loads(anchor.body))
    types = {first: left, second: right}
    stages = [_padded(stage, left, types, pad) for stage in kernel.stages[:-1]]
    types |= {stage.name: left for stage in stages}

    def converted(node: Expr) -> Expr:
        return cast(node.dtype, _as(types[node.buffer], node)) if isinstance(node, Load) else node

    stages.append(replace(anchor, body=rewrite(anchor.body, converted)))
    inputs = tuple(replace(buffer, dtype=types[buffer.name]) for buffer in kernel.inputs)
    if requantised:
        scale = Buffer("scale", DType.F32, (1,), constant=True)
        inputs, stages = (*inputs, scale), [*stages, _requantised(anchor)]
    return replace(kernel, inputs=inputs, stages=tuple(stages))


def _as(dtype: DType, load: Load) -> Load:
    return replace(load, dtype=dtype)


def _padded(stage: Stage, dtype: DType, types: dict[str, DType], pad: int) -> Stage:
    (load,) = loads(stage.body)
    types[load.buffer] = dtype

    def changed(node: Expr) -> Expr:
        if isinstance(node, Load):
            return _as(dtype, node)
        if isinstance(node, Select):
            assert isinstance(node.otherwise, Const)
            return select(node.condition, node.then, const(pad, dtype))
        return node

    return replace(stage, body=rewrite(stage.body, changed))


def _requantised(anchor: Stage) -> Stage:
    """u8(clip(round(f32(sum) * scale) + 3))."""
    total = Load(anchor.dtype, anchor.name, tuple(index(axis.name) for axis in anchor.axes))
    scale = Load(DType.F32, "scale", (const(0, DType.I64),))
    rounded = unary("round", mul(cast(DType.F32, total), scale))
    value = binary("add", rounded, const(3.0, DType.F32))
    value = binary("max", value, const(0.0, DType.F32))
    value = binary("min", value, const(255.0, DType.F32))
    return Stage("quantised", anchor.axes, (), "", cast(DType.U8, value))


def values_for(kernel: FusedKernel, seed: int = 0) -> Mapping[str, Array]:
    """Values of all of each integer type, and small ones of floats."""
    rng = np.random.default_rng(seed)
    values = {}
    for buffer in kernel.inputs:
        if buffer.dtype.is_float:
            values[buffer.name] = rng.uniform(0, 1e-3, buffer.shape).astype(buffer.dtype.numpy)
            continue
        limits = np.iinfo(buffer.dtype.numpy)
        drawn = rng.integers(limits.min, limits.max, buffer.shape, endpoint=True)
        values[buffer.name] = drawn.astype(buffer.dtype.numpy)
    return values
