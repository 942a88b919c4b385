"""Runs functions of elements in generated code, vectors and scalars, over samples of all floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tests.compiler.schedule.guarded_run import run_guarded, targets
from tunefarm.compiler.expr.nodes import Expr
from tunefarm.compiler.kernels.kernel import KernelBuilder
from tunefarm.compiler.schedule.spaces import default_schedule, naive_schedule
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import STRICT_NUMERICS
from tunefarm.compiler.types.tensor_type import TensorType

Values: TypeAlias = npt.NDArray[Any]

SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1e-45, -1e-45, 1.2e-38, 3.4e38)


def machines() -> dict[str, Target]:
    """Targets of several vector widths, and this CPU without AVX-512, which has its own code."""
    host = host_target()
    features = tuple(name for name in host.features if not name.startswith("avx512"))
    shorter = replace(host, features=features, vector_bytes=min(host.vector_bytes, 32))
    return {**targets(), "shorter": shorter}


def run_pointwise(
    arrays: Sequence[Values], body: Callable[..., Expr], target: str = "host"
) -> Values:
    """`body(element, …)` of one-dimensional arrays; vectors and scalar code must agree."""
    builder = KernelBuilder()
    extent = len(arrays[0])
    inputs = [
        builder.input(TensorType(DType.from_numpy(array.dtype), array.shape)) for array in arrays
    ]
    builder.stage("out", [("i0", extent)], lambda i: body(*(tensor[i] for tensor in inputs)))
    kernel = builder.kernel("out", "out")
    values = {f"in{i}": array for i, array in enumerate(arrays)}
    machine = machines()[target]
    vector = run_guarded(
        kernel, default_schedule(kernel, machine, 1, STRICT_NUMERICS), values, machine
    ).output
    scalar = run_guarded(kernel, naive_schedule(), values, machine).output
    np.testing.assert_array_equal(_known_to_numpy(vector), _known_to_numpy(scalar))
    return vector


def _known_to_numpy(values: Values) -> Values:
    """Numbers of other packages' types as f32: NumPy does not know their NaN."""
    foreign = values.dtype.type.__module__ != "numpy"
    return values.astype(np.float32) if foreign else values


def float32_samples() -> Values:
    """Every 8191st bit pattern, which covers all exponents; dense where the functions bend."""
    patterns = np.arange(0, 1 << 32, 8191, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = [(-12, 12, 300_001), (-105, 95, 100_001), (0.5, 2, 100_001), (-1, 1, 100_001)]
    lines: list[Values] = [np.linspace(low, high, count) for low, high, count in dense]
    lines.append(np.arange(-3000, 3000) * (np.pi / 4))
    return np.concatenate([np.array(SPECIAL, np.float32), patterns, *map(np.float32, lines)])


def pairs(values: Values) -> tuple[Values, Values]:
    left, right = np.meshgrid(values, values, indexing="ij")
    return left.reshape(-1), right.reshape(-1)
