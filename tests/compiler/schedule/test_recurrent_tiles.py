"""Register tiles of recurrences that are chosen without measuring."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.targets import target_named
from tunefarm.compiler.kernels.kernel import ValidExtent
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute, TensorType


@pytest.mark.parametrize("dynamic", [False, True])
def test_dynamic_batch_of_weights_widened_to_16_bits_has_tiles_of_one_row(dynamic: bool) -> None:
    """Of two rows only one may be there: it would widen as many weights for half of the sums."""
    units = 128
    attributes: dict[str, Attribute] = {
        "kind": "LSTM",
        "activations": ("sigmoid", "tanh", "tanh"),
        "alphas": (0.0,) * 3,
        "betas": (0.0,) * 3,
        "states": "i16",
    }
    inputs = [
        f32(1, 20, 2, 4, units),
        TensorType(DType.I8, (1, units, 4, units)),
        f32(1, 4, units),
        TensorType(DType.I64, (1,)),
        TensorType(DType.I32, (1, 4, units)),
    ]
    operands = ["x0", "x1", *[""] * 7, "x2", "x3", "x4"]
    kernel = kernel_of(inputs, [("recurrence", operands, attributes)], ["x1", "x2", "x4"])
    if dynamic:
        (sizes,) = (buffer.name for buffer in kernel.inputs if buffer.dtype is DType.I64)
        kernel = replace(kernel, limits=(ValidExtent(units, 2, sizes, 0),))
    space = schedule_space(kernel, target_named("x86-64-v3"))
    tile = space.choices(space.default())["product"]
    assert tile == ((1, 2) if dynamic else (2, 1))
