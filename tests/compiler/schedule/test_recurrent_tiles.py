"""Register tiles of recurrences that are chosen without measuring."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.schedule.guarded_run import run_guarded, targets
from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.targets import target_named
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel, ValidExtent
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.schedule.steps.new_stages import CacheWrite
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


def float_layer(kind: str, activations: tuple[str, ...], rows: int, units: int) -> FusedKernel:
    """A layer of 20 steps whose projected inputs are given."""
    gates = 4 if kind == "LSTM" else 1
    none = (0.0,) * len(activations)
    attributes: dict[str, Attribute] = {
        "kind": kind,
        "activations": activations,
        "alphas": none,
        "betas": none,
    }
    inputs = [f32(1, 20, rows, gates, units), f32(1, units, gates, units)]
    return kernel_of(inputs, [("recurrence", ["x0", "x1"], attributes)], ["x1"])


def float_lstm(rows: int, units: int) -> FusedKernel:
    return float_layer("LSTM", ("sigmoid", "tanh", "tanh"), rows, units)


def with_dynamic_batch(kernel: FusedKernel, rows: int, units: int) -> FusedKernel:
    """The layer for at most so many rows."""
    inputs = (*kernel.inputs, Buffer("sizes", DType.I64, (1,)))
    return replace(kernel, inputs=inputs, limits=(ValidExtent(units, rows, "sizes", 0),))


@pytest.mark.parametrize(
    ("target", "rows", "units", "tile"),
    [
        ("znver3", 4, 256, (4, 1)),  # of 1 MiB in a step: all rows share what is read of it
        ("znver3", 2, 256, (2, 1)),  # registers hold the sums of all gates
        ("znver3", 4, 128, (2, 1)),  # of 256 KiB, which the second-level cache holds
        ("skylake-avx512", 4, 512, (4, 1)),  # 32 registers hold all gates of 4 rows
    ],
)
def test_rows_share_weights_from_the_last_cache_in_tiles_of_some_of_the_gates(
    target: str, rows: int, units: int, tile: tuple[int, int]
) -> None:
    kernel = float_lstm(rows, units)
    space = schedule_space(kernel, target_named(target))
    assert space.choices(space.default())["product"] == tile
    loops = format_loops(lower(kernel, space.schedule(space.default())))
    assert ("product.sum" in loops) == (target == "znver3" and tile == (4, 1))


def test_a_dynamic_batch_that_may_have_one_row_sums_up_all_gates_at_once() -> None:
    """Sums of two gates of one row would wait for each other."""
    dynamic = with_dynamic_batch(float_lstm(4, 256), 4, 256)
    space = schedule_space(dynamic, target_named("znver3"))
    loops = format_loops(lower(dynamic, space.schedule(space.default())))
    assert "product.sum" not in loops


@pytest.mark.parametrize(("dynamic", "tile"), [(False, (8, 1)), (True, (2, 4))])
def test_a_dynamic_batch_of_one_gate_has_several_sums_of_each_row(
    dynamic: bool, tile: tuple[int, int]
) -> None:
    """Tiles of all rows have one sum of each: one row would wait for an addition at each step."""
    kernel = float_layer("RNN", ("tanh",), 8, 512)
    kernel = with_dynamic_batch(kernel, 8, 512) if dynamic else kernel
    space = schedule_space(kernel, target_named("znver3"))
    assert space.choices(space.default())["product"] == tile


@pytest.mark.parametrize(("rows", "tile"), [(4, (4, 1)), (5, (3, 2)), (7, (4, 3)), (3, (2, 4))])
def test_tiles_of_some_of_the_gates_compute_what_the_layer_is(
    rows: int, tile: tuple[int, int]
) -> None:
    kernel, target = float_lstm(rows, 64), targets()["narrow"]
    (sketch,) = schedule_space(kernel, target).sketches
    values = dict(zip([choice.name for choice in sketch.choices], sketch.default, strict=True))
    schedule = sketch.build({**values, "product": tile})
    assert any(isinstance(step, CacheWrite) for step in schedule.steps)
    rng = np.random.default_rng(0)
    drawn = {b.name: rng.uniform(-0.2, 0.2, b.shape) for b in kernel.inputs}
    inputs = {name: values.astype(np.float32) for name, values in drawn.items()}
    got = run_guarded(kernel, schedule, inputs, target).output
    error = got.astype(np.float64) - evaluate_kernel(kernel, inputs).astype(np.float64)
    assert float(np.abs(error).max()) < 2e-5
