"""Few rows of several batches are computed in one tile; all that is needed is right, whatever the
sizes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler.expr.nodes import Expr, mul
from compiler.kernels.kernel import FusedKernel, KernelBuilder, Limit
from compiler.loops.interpret import interpret
from compiler.loops.printer import format_loops
from compiler.loops.verify import verify_loops
from compiler.schedule.apply_schedule import lower
from compiler.schedule.schedule import Schedule
from compiler.schedule.steps.cache_write import CacheWrite
from compiler.schedule.steps.compute_at import ComputeAt
from compiler.schedule.steps.reorder import Reorder
from compiler.schedule.steps.tile import Tile
from compiler.schedule.steps.unroll import Unroll
from compiler.types.dtypes import DType
from compiler.types.tensor_type import TensorType

ROWS, COLUMNS, TERMS, SIZES = 17, 8, 4, "in1"
FEW = 2  # of the tile's eight rows, for four batches


def product(batches: int, weights_of_batch: bool = False) -> FusedKernel:
    """y[b, i, j] = the sum of x[b, i, k] * w[k, j], of which rows and batches end at sizes."""
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (batches, ROWS, TERMS)))
    builder.input(TensorType(DType.I64, (2,)))
    own = (batches,) if weights_of_batch else ()
    weights = builder.input(TensorType(DType.F32, (*own, TERMS, COLUMNS)))

    def term(b: Expr, i: Expr, j: Expr, k: Expr) -> Expr:
        return mul(data[(b, i, k)], weights[(b, k, j) if weights_of_batch else (k, j)])

    axes = [("b", batches), ("i", ROWS), ("j", COLUMNS)]
    builder.stage("y", axes, term, reduce=[("k", TERMS)], combiner="sum")
    limits = (Limit(COLUMNS, ROWS, SIZES, 1), Limit(COLUMNS * ROWS, batches, SIZES, 0))
    return FusedKernel("y", tuple(builder.inputs), tuple(builder.stages), "y", limits)


SCHEDULE = Schedule(
    (
        CacheWrite("y", "y.sum"),
        Tile("y", "i", 8),
        Reorder("y", ("b", "i.o", "i.i", "j")),
        Unroll("y", "i.i"),
        ComputeAt("y.sum", "y", "i.o", "register"),
        Reorder("y.sum", ("b", "k", "i", "j")),
        Unroll("y.sum", "i"),
    )
)


@pytest.mark.parametrize(("rows", "batches"), [(1, 4), (2, 3), (2, 6), (3, 4), (17, 6), (2, 1)])
@pytest.mark.parametrize("most", [4, 6])
def test_all_that_is_needed_is_right(most: int, rows: int, batches: int) -> None:
    batches = min(batches, most)
    kernel = product(most)
    nest = lower(kernel, SCHEDULE)
    verify_loops(nest)
    rng = np.random.default_rng(rows)
    data = rng.standard_normal((most, ROWS, TERMS)).astype(np.float32)
    weights = rng.standard_normal((TERMS, COLUMNS)).astype(np.float32)
    sizes = np.array([batches, rows])
    result: Any = interpret(nest, {"in0": data, SIZES: sizes, "in2": weights})
    np.testing.assert_allclose(
        result[:batches, :rows], (data @ weights)[:batches, :rows], rtol=1e-4, atol=1e-5
    )


def test_the_tile_has_the_rows_of_several_batches() -> None:
    text = format_loops(lower(product(4), SCHEDULE))
    assert f"if 2 < {SIZES}[0] and not({FEW} < {SIZES}[1]):" in text
    assert "y.sum: f32[4, 1, 8, 8]" in text
    assert "for b.o in 0..1:" in text


def test_the_last_tile_of_other_numbers_of_batches_begins_earlier() -> None:
    assert "b.s = min(b.o * 4, 2)" in format_loops(lower(product(6), SCHEDULE))


def test_products_by_what_each_batch_has_of_its_own_stay_apart() -> None:
    assert "b.o" not in format_loops(lower(product(4, weights_of_batch=True), SCHEDULE))
