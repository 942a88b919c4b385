"""Loops end at run-time sizes: as few rounds as matter, whatever the loops are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.targets import target_named
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.expr.nodes import Expr, Load, binary, const, integer, mul, select, sub, unary
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder, ValidExtent
from tunefarm.compiler.llvm.compile_kernel import emit_loops
from tunefarm.compiler.loops.interpret import interpret
from tunefarm.compiler.loops.ir import Body, For, LoopKind, LoopNest, Memory, Store
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.operators.gather import REDUCTIONS
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import default_schedule, naive_schedule
from tunefarm.compiler.schedule.steps.kernel_forms import MergeAxes
from tunefarm.compiler.schedule.steps.loop_kinds import Parallelize, Unroll, Vectorize
from tunefarm.compiler.schedule.steps.placement import ComputeAt
from tunefarm.compiler.schedule.steps.tiles import Fuse, Reorder, Tile
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType

BATCH, ROWS, COLUMNS = 3, 29, 5
TERMS = 4  # of sums in register tiles
SIZES = "in1"


def limited(hint: str, body: Callable[..., Expr]) -> FusedKernel:
    """y[b, i, j] of x[b, i, j], of which rows and batch end at sizes."""
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (BATCH, ROWS, COLUMNS)))
    sizes = builder.input(TensorType(DType.I64, (2,)))
    axes = [("b", BATCH), ("i", ROWS), ("j", COLUMNS)]
    builder.stage(hint, axes, lambda *indices: body(data, sizes, *indices))
    limits = (ValidExtent(COLUMNS, ROWS, SIZES, 1), ValidExtent(COLUMNS * ROWS, BATCH, SIZES, 0))
    return builder.kernel(hint, hint, limits)


def pointwise() -> FusedKernel:
    return limited("exp", lambda data, sizes, *indices: unary("exp", data[indices]))


def written(nest: LoopNest, inputs: dict[str, Any]) -> Any:
    """Which elements of the result the nest writes."""
    laid = {memory.name: inputs[memory.name].reshape(memory.shape) for memory in nest.inputs}
    return ~np.isnan(interpret(nest, laid)).reshape(BATCH, ROWS, COLUMNS)


def inputs_of(kernel: FusedKernel, batch: int, rows: int) -> dict[str, Any]:
    shape = kernel.inputs[0].shape
    return {"in0": np.ones(shape, np.float32), SIZES: np.array([batch, rows])}


def needed(batch: int, rows: int) -> Any:
    mask = np.zeros((BATCH, ROWS, COLUMNS), np.bool_)
    mask[:batch, :rows] = True
    return mask


SCHEDULES = {
    "naive": (),
    "tiled": (Tile("exp", "i", 4),),
    "shifted": (Tile("exp", "i", 4, "shift"),),
    "masked": (Tile("exp", "i", 4, "mask"),),
    "fused": (Fuse("exp", ("b", "i"), "p"), Parallelize("exp", "p")),
    "fused tiles": (
        Tile("exp", "i", 4, "shift"),
        Fuse("exp", ("b", "i.o"), "p"),
        Parallelize("exp", "p"),
    ),
    "merged": (MergeAxes("i", "j"), Tile("exp", "i_j", 8)),
    "masked columns": (Tile("exp", "j", 4, "mask"),),
    "masked rows and columns": (Tile("exp", "i", 4, "mask"), Tile("exp", "j", 4, "mask")),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (2, 17), (3, 29), (1, 28), (0, 4), (2, 0)])
def test_all_that_is_needed_is_written(name: str, batch: int, rows: int) -> None:
    kernel = pointwise()
    nest = lower(kernel, Schedule(SCHEDULES[name]))
    verify_loops(nest)
    done = written(nest, inputs_of(kernel, batch, rows))
    mask = needed(batch, rows)
    assert done[mask].all()


@pytest.mark.parametrize("name", ["naive", "fused", "masked columns"])
def test_loops_of_single_steps_write_nothing_else(name: str) -> None:
    kernel = pointwise()
    nest = lower(kernel, Schedule(SCHEDULES[name]))
    done = written(nest, inputs_of(kernel, 2, 17))
    np.testing.assert_array_equal(done, needed(2, 17))


@pytest.mark.parametrize("name", ["tiled", "shifted", "masked", "masked rows and columns"])
def test_no_tile_beyond_the_size_is_begun(name: str) -> None:
    kernel = pointwise()
    nest = lower(kernel, Schedule(SCHEDULES[name]))
    done = written(nest, inputs_of(kernel, 2, 17))
    assert not done[2:].any()
    assert not done[:, 20:].any()


def test_merging_axes_across_a_limit_is_refused() -> None:
    with pytest.raises(Exception, match="i ends at run time"):
        lower(pointwise(), Schedule((MergeAxes("b", "i"),)))


def test_a_kernel_without_sizes_stays_as_it_is() -> None:
    kernel = replace(pointwise(), limits=())
    assert "min(" not in format_loops(lower(kernel, naive_schedule()))


def test_a_sum_ends_where_its_terms_are_filled() -> None:
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (ROWS,)))
    sizes = builder.input(TensorType(DType.I64, (2,)))

    def term(k: Expr) -> Expr:
        inside = binary("lt", k, sizes[(integer(1),)])
        return select(inside, data[(k,)], const(0, DType.F32))

    builder.stage("sum", [("i", 1)], lambda i, k: term(k), reduce=[("k", ROWS)], combiner="sum")
    kernel = builder.kernel("sum", "sum")
    nest = lower(kernel, naive_schedule())
    assert "for k in 0..min(29, in1[1])" in format_loops(nest)
    assert "select" not in format_loops(nest)
    values = np.arange(ROWS, dtype=np.float32)
    values[17:] = np.nan
    result: Any = interpret(nest, {"in0": values, SIZES: np.array([0, 17])})
    np.testing.assert_array_equal(result, [sum(range(17))])


def test_what_is_0_behind_an_exponential_ends_sums_of_it() -> None:
    """exp(select(k < n, x, -inf) - c) is 0 from n on, and its buffer is not filled there."""
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (ROWS,)))
    sizes = builder.input(TensorType(DType.I64, (2,)))

    def weight(k: Expr) -> Expr:
        inside = binary("lt", k, sizes[(integer(1),)])
        masked = select(inside, data[(k,)], const(-np.inf, DType.F32))
        return unary("exp", sub(masked, const(1, DType.F32)))

    weights = builder.stage("weights", [("k", ROWS)], weight)
    builder.stage(
        "sum",
        [("i", 1)],
        lambda i, k: mul(weights[(k,)], weights[(k,)]),
        reduce=[("k", ROWS)],
        combiner="sum",
    )
    kernel = builder.kernel("sum", "sum")
    nest = lower(kernel, naive_schedule())
    assert format_loops(nest).count("for k in 0..min(29, in1[1])") == 2
    values = np.full(ROWS, np.nan, np.float32)
    values[:3] = 1
    result: Any = interpret(nest, {"in0": values, SIZES: np.array([0, 3])})
    np.testing.assert_allclose(result, [3])


def test_what_a_peeled_round_reads_ends_with_the_others() -> None:
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (ROWS,)))
    assert builder.input(TensorType(DType.I64, (2,))).name == SIZES
    grown = builder.stage("exp", [("i", ROWS)], lambda i: unary("exp", data[(i,)]))
    builder.stage("neg", [("i", ROWS)], lambda i: unary("neg", grown[(i,)]))
    stages, limits = tuple(builder.stages), (ValidExtent(1, ROWS, SIZES, 1),)
    kernel = FusedKernel("neg", tuple(builder.inputs), stages, "neg", limits)
    nest = lower(kernel, Schedule((Tile("neg", "i", 4), Unroll("neg", "i.i"))))
    assert "for i in 0..min(29, in1[1])" in format_loops(nest)
    values = np.linspace(0, 1, ROWS, dtype=np.float32)
    for rows in (1, 4, 5, 28, ROWS):
        result: Any = interpret(nest, {"in0": values, SIZES: np.array([0, rows])})
        np.testing.assert_allclose(result[:rows], -np.exp(values)[:rows], rtol=1e-6)


def tiles(tile: int, dynamic: bool = True) -> tuple[FusedKernel, Schedule]:
    """GELUs of products in register tiles of so many rows."""
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (ROWS, TERMS)))
    sizes = builder.input(TensorType(DType.I64, (2,)))
    weights = builder.input(TensorType(DType.F32, (TERMS, 8)))
    product = builder.stage(
        "sum",
        [("i", ROWS), ("j", 8)],
        lambda i, j, k: mul(data[(i, k)], weights[(k, j)]),
        reduce=[("k", TERMS)],
        combiner="sum",
    )
    builder.stage(
        "y",
        [("i", ROWS), ("j", 8)],
        lambda i, j: mul(product[(i, j)], unary("erf", product[(i, j)])),
    )
    assert sizes.name == SIZES
    limits = (ValidExtent(8, ROWS, SIZES, 1),) if dynamic else ()
    kernel = builder.kernel("y", "y", limits)
    steps = (
        Tile("y", "i", tile),
        Reorder("y", ("i.o", "i.i", "j")),
        Unroll("y", "i.i"),
        Vectorize("y", "j"),
        ComputeAt("sum", "y", "i.o", "register"),
        Tile("sum", "k", TERMS // 2),
        Reorder("sum", ("k.o", "k.i", "i", "j")),
        Unroll("sum", "k.i"),
        Unroll("sum", "i"),
        Vectorize("sum", "j"),
    )
    return kernel, Schedule(steps)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("behind", [1, 20])
def test_scatters_end_with_the_updates(reduction: str, behind: int) -> None:
    indices = TensorType(DType.I64, (2, ROWS, 1))
    operands = [f32(2, 5, behind), indices, f32(2, ROWS, behind), TensorType(DType.I64, (2,))]
    attributes: dict[str, Attribute] = {"reduction": reduction, "number": 1}
    kernel = kernel_of(operands, [("scatter_elements", ["x0", "x1", "x2", "x3"], attributes)])
    target = target_named("x86-64-v3")
    nest = lower(kernel, default_schedule(kernel, target, 1))
    verify_loops(nest)
    assert f"for u in 0..min({ROWS}, in3[1])" in format_loops(nest)
    rng = np.random.default_rng(0)
    inputs: dict[str, Array] = {
        "in0": rng.standard_normal((2, 5, behind)).astype(np.float32),
        "in1": rng.integers(-5, 5, (2, ROWS, 1)),
        "in2": rng.standard_normal((2, ROWS, behind)).astype(np.float32),
    }
    for count in (0, 1, 7, ROWS):
        inputs["in3"] = np.array([0, count])
        result: Any = interpret(nest, inputs)
        expected: Any = evaluate_kernel(kernel, inputs)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tile", [7, 13, 20])
def test_tiles_of_fewer_rows_compute_the_same(tile: int) -> None:
    kernel, schedule = tiles(tile)
    nest = lower(kernel, schedule)
    verify_loops(nest)
    rng = np.random.default_rng(0)
    inputs = {
        "in0": rng.standard_normal((ROWS, TERMS)).astype(np.float32),
        "in2": rng.standard_normal((TERMS, 8)).astype(np.float32),
    }
    sums = inputs["in0"] @ inputs["in2"]
    expected = sums * np.vectorize(math.erf)(sums)
    for rows in range(1, ROWS + 1):
        result: Any = interpret(nest, {**inputs, SIZES: np.array([0, rows])})
        written = (~np.isnan(result)).all(axis=1).sum()
        assert rows <= written <= rows + 2, rows
        np.testing.assert_allclose(result[:rows], expected[:rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tile", [7, 13, 20])
def test_tiles_of_fewer_rows_take_less_code_than_the_whole_one(tile: int) -> None:
    target = target_named("x86-64-v3")
    lines = [
        emit_loops(lower(kernel, schedule), schedule, target, "kernel").text.count("\n")
        for kernel, schedule in (tiles(tile), tiles(tile, dynamic=False))
    ]
    assert lines[0] < 2 * lines[1]


@pytest.mark.parametrize("name", ["x86-64-v3", "armv8-neon"])
@pytest.mark.parametrize("threads", [1, 2])
def test_other_targets_have_code_for_limits(name: str, threads: int) -> None:
    target = target_named(name)
    for kernel in (pointwise(), tiles(7)[0]):
        schedule = default_schedule(kernel, target, threads)
        nest = lower(kernel, schedule)
        assert "in1[1]" in format_loops(nest)
        assert emit_loops(nest, schedule, target, "kernel").compile(target).object_code


def _nest(kind: LoopKind, limit: Expr) -> LoopNest:
    memory = Memory("y", DType.F32, (8,))
    index = Load(DType.I64, "n", (integer(0),))
    body: Body = (Store("y", (binary("min", index, integer(7)),), const(0, DType.F32)),)
    loop = For("i", 0, 8, kind, body, limit=limit)
    return LoopNest("nest", (Memory("n", DType.I64, (1,)),), memory, (loop,))


def test_a_vectorised_loop_with_a_limit_is_refused() -> None:
    size = Load(DType.I64, "n", (integer(0),))
    with pytest.raises(VerifyError, match="the vector for loop i has a limit"):
        verify_loops(_nest(LoopKind.VECTORISED, size))


def test_a_limit_of_another_type_is_refused() -> None:
    with pytest.raises(VerifyError, match="the limit of loop i has the type f32"):
        verify_loops(_nest(LoopKind.SERIAL, const(3, DType.F32)))


def test_a_limit_that_reads_an_unknown_buffer_is_refused() -> None:
    with pytest.raises(VerifyError, match="m"):
        verify_loops(_nest(LoopKind.SERIAL, Load(DType.I64, "m", (integer(0),))))
