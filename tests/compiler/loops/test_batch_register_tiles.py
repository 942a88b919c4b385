"""Few rows of several batches are computed in one tile; all that is needed is right, whatever the
sizes are."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.schedule.guarded_run import run_guarded
from tests.targets import target_named
from tunefarm.compiler.expr.nodes import Expr, add, mul
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder, ValidExtent
from tunefarm.compiler.loops.interpret import interpret
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.schedule.steps.loop_kinds import Unroll
from tunefarm.compiler.schedule.steps.new_stages import CacheWrite
from tunefarm.compiler.schedule.steps.placement import ComputeAt
from tunefarm.compiler.schedule.steps.tiles import Reorder, Tile
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

ROWS, COLUMNS, TERMS, SIZES = 17, 8, 4, "in1"
FEW = 2  # of the tile's eight rows, for four batches
JOINED = ".few"  # in the name of what keeps a joined tile's sums
Case: TypeAlias = tuple[FusedKernel, list[tuple[int, int, int]]]
"""A kernel, and sizes to run it at: batches, rows, columns."""

TARGETS = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "host")


def product(
    batches: int,
    rows: int = ROWS,
    columns: int = COLUMNS,
    terms: int = TERMS,
    *,
    of_batch: bool = False,
    of_row: bool = False,
    moved: bool = False,
    open_columns: bool = False,
    blocked: bool = False,
) -> FusedKernel:
    """y[b, i, j] = the sum of x[b, i, k] * w[k, j], of which rows and batches end at sizes.

    Weights may differ by batch or by row, rows of x may begin one later with each batch, terms may
    lie outside of rows as blocks of channels do, and columns may end at a size too.
    """
    builder = KernelBuilder()
    data = (rows + batches, terms) if moved else (batches, rows, terms)
    data = (batches, terms, rows) if blocked else data
    x = builder.input(TensorType(DType.F32, data))
    builder.input(TensorType(DType.I64, (3,)))
    own = ((batches,) if of_batch else ()) + ((rows,) if of_row else ())
    w = builder.input(TensorType(DType.F32, (*own, terms, columns)), constant=not own)

    def term(b: Expr, i: Expr, j: Expr, k: Expr) -> Expr:
        places = ((b,) if of_batch else ()) + ((i,) if of_row else ())
        place = (b, k, i) if blocked else (add(b, i), k) if moved else (b, i, k)
        return mul(x[place], w[(*places, k, j)])

    axes = [("b", batches), ("i", rows), ("j", columns)]
    builder.stage("sum", axes, term, reduce=[("k", terms)], combiner="sum")
    limits = [ValidExtent(columns, rows, SIZES, 1), ValidExtent(columns * rows, batches, SIZES, 0)]
    limits += [ValidExtent(1, columns, SIZES, 2)] if open_columns else []
    return FusedKernel("y", tuple(builder.inputs), tuple(builder.stages), "sum", tuple(limits))


def schedule(*, columns: bool = False, between: bool = False) -> Schedule:
    """Tiles of eight rows, or of eight columns; with blocks of columns between batches and rows."""
    axis, other = ("j", "i") if columns else ("i", "j")
    order: tuple[str, ...] = ("b", "j.o", "i", "j.i") if columns else ("b", "i.o", "i.i", "j")
    order = ("b", "j.o", "i.o", "i.i", "j.i") if between else order
    return Schedule(
        (
            CacheWrite("sum", "acc"),
            Tile("sum", axis, 8),
            *((Tile("sum", "j", COLUMNS // 2),) if between else ()),
            Reorder("sum", order),
            Unroll("sum", f"{axis}.i"),
            *((Unroll("sum", other),) if columns else ()),
            ComputeAt("acc", "sum", f"{axis}.o", "register"),
            Reorder("acc", ("b", "k", "i", "j")),
            *(Unroll("acc", name) for name in ("i", "j") if columns or name == axis),
        )
    )


def drawn(kernel: FusedKernel, seed: int) -> dict[str, Any]:
    """Values of its inputs but for the sizes."""
    rng = np.random.default_rng(seed)
    return {
        buffer.name: rng.standard_normal(buffer.shape).astype(np.float32)
        for buffer in kernel.inputs
        if buffer.dtype is DType.F32
    }


def check(found: Any, inputs: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    """What is within the sizes is right."""
    part = tuple(slice(size) for size in sizes)
    expected = (inputs["in0"] @ inputs["in2"])[part]
    np.testing.assert_allclose(found[part], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "batches"), [(1, 4), (2, 3), (2, 6), (3, 4), (17, 6), (2, 1)])
@pytest.mark.parametrize("most", [4, 6])
@pytest.mark.parametrize("between", [False, True])
def test_all_that_is_needed_is_right(most: int, rows: int, batches: int, between: bool) -> None:
    batches = min(batches, most)
    kernel = product(most)
    nest = lower(kernel, schedule(between=between))
    verify_loops(nest)
    inputs = drawn(kernel, rows)
    result: Any = interpret(nest, {**inputs, SIZES: np.array([batches, rows, COLUMNS])})
    check(result, inputs, (batches, rows, COLUMNS))


def test_the_tile_has_the_rows_of_several_batches_and_one_end() -> None:
    text = format_loops(lower(product(4), schedule()))
    assert f"if 2 < {SIZES}[0] and not({FEW} < {SIZES}[1]):" in text
    assert "acc: f32[4, 1, 8, 8]" in text
    assert "for b.o in 0..1:" in text
    assert text.count("= acc.few[") == 1
    assert f"for i.i in 0..min({FEW}, {SIZES}[1]):" in text


def test_pixels_whose_channels_lie_outside_of_them_are_not_joined() -> None:
    assert JOINED in format_loops(lower(product(4), schedule()))
    assert JOINED not in format_loops(lower(product(4, blocked=True), schedule()))


def test_tiles_of_fewer_batches_than_there_are_when_they_run_are_left_out() -> None:
    text = format_loops(lower(product(4), schedule()))
    assert f"if 2 < {SIZES}[0]:" not in text
    assert "unrolled for b.i in 0..2:" not in text


def test_the_last_tile_of_other_numbers_of_batches_begins_earlier() -> None:
    assert "b.s = min(b.o * 4, 2)" in format_loops(lower(product(6), schedule()))


def test_blocks_of_columns_are_outside_of_tiles_of_batches() -> None:
    text = format_loops(lower(product(4), schedule(between=True)))
    joined, apart = text.split("for b in ")
    assert 0 < joined.index("for j.o in ") < joined.index("for b.o in ")
    assert apart.index("for j.o in ") < apart.index("for i.o in ")


def test_products_by_what_each_batch_has_of_its_own_stay_apart() -> None:
    assert JOINED not in format_loops(lower(product(4, of_batch=True), schedule()))


def test_products_by_what_each_row_has_of_its_own_stay_apart() -> None:
    assert JOINED not in format_loops(lower(product(4, of_row=True), schedule()))


def test_batches_whose_rows_overlap_stay_apart() -> None:
    assert JOINED not in format_loops(lower(product(4, moved=True), schedule()))


def test_columns_are_no_rows() -> None:
    kernel = product(4, rows=1, columns=24, open_columns=True)
    assert JOINED not in format_loops(lower(kernel, schedule(columns=True)))


def test_tiles_of_rows_are_no_batches() -> None:
    """Of columns in vectors of two widths the wider ones are an unrolled loop, as rows are."""
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, (23, 19)))
    builder.input(TensorType(DType.I64, (2,)))
    w = builder.input(TensorType(DType.F32, (19, 21)))

    def term(i: Expr, j: Expr, k: Expr) -> Expr:
        return mul(x[i, k], w[k, j])

    builder.stage("y", [("i", 23), ("j", 21)], term, reduce=[("k", 19)], combiner="sum")
    limits = (ValidExtent(1, 21, SIZES, 1), ValidExtent(21, 23, SIZES, 0))
    kernel = builder.kernel("y", "y", limits)
    nest = lower(kernel, default_schedule(kernel, target("x86-64-v3"), 1))
    assert JOINED not in format_loops(nest)


def target(name: str) -> Target:
    """The target of this name, or this machine."""
    return host_target() if name == "host" else target_named(name)


@pytest.mark.parametrize("name", TARGETS)
def test_default_schedules_of_products_with_open_batches_are_joined(name: str) -> None:
    kernel = product(4, 64, 64, 32)
    assert JOINED in format_loops(lower(kernel, default_schedule(kernel, target(name), 1)))


def _small(most: int) -> st.SearchStrategy[int]:
    return st.integers(1, most)


@st.composite
def products(draw: st.DrawFn) -> Case:
    """A kernel, and sizes to run it at: many with few rows and several batches."""
    batches, rows, columns = draw(_small(9)), draw(_small(40)), draw(_small(40))
    is_open = draw(st.booleans())
    kernel = product(batches, rows, columns, draw(_small(20)), open_columns=is_open)
    few = st.one_of(_small(min(4, rows)), _small(rows))
    width = _small(columns) if is_open else st.just(columns)
    sizes = st.tuples(_small(batches), few, width)
    return kernel, draw(st.lists(sizes, min_size=2, max_size=5))


def compare(name: str, case: Case) -> None:
    """A kernel built for a target, if this machine can run that, at each of the sizes."""
    kernel, sizes = case
    inputs = drawn(kernel, 0)
    chosen = target(name)
    if not set(chosen.features) <= set(host_target().features):
        pytest.skip("this machine is no such one")
    steps = default_schedule(kernel, chosen, 1)
    for size in sizes:
        given_sizes = {SIZES: np.array(size, np.int64)}
        outcome = run_guarded(kernel, steps, {**inputs, **given_sizes}, chosen)
        assert not outcome.problem
        check(outcome.output, inputs, size)


@pytest.mark.parametrize("name", TARGETS)
@given(case=products())
@settings(max_examples=4, deadline=None)
def test_drawn_products_are_right_at_drawn_sizes(name: str, case: Case) -> None:
    compare(name, case)


@pytest.mark.nightly
@pytest.mark.parametrize("name", TARGETS)
@given(case=products())
@settings(max_examples=400, deadline=None)
def test_many_drawn_products_are_right_at_drawn_sizes(name: str, case: Case) -> None:
    compare(name, case)
