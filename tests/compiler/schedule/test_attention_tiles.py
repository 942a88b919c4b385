"""Attention of narrow operands in matrix tiles: right for any numbers of queries and keys."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiler.llvm.emulated_tiles import Count, emulated_tiles, tiled_host, tiles_emulated
from tests.compiler.loops.executed import executed, tile_products
from tests.compiler.schedule.guarded_run import run_guarded
from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.targets import target_named
from tunefarm.compiler.kernels.attention import attention_of, block_attention
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel, ValidExtent
from tunefarm.compiler.llvm.compile_kernel import emit_loops
from tunefarm.compiler.llvm.machine import assembly
from tunefarm.compiler.loops.interpret import interpret
from tunefarm.compiler.loops.ir import uses_tiles
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.schedule.steps.kernel_forms import BlockAttention
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType

TILES = target_named("sapphirerapids")
SKETCH = "attention_tiles"
ROUNDING = 2.0**-8  # of numbers that become bf16; neighbours lie up to twice as far apart
DRAWN = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def attention(
    query: Sequence[int],
    key: Sequence[int],
    value: Sequence[int],
    others: Sequence[TensorType] = (),
    attributes: Mapping[str, Attribute] = MappingProxyType({}),
    cast: bool = False,
    dtype: DType = DType.BF16,
) -> FusedKernel:
    """The kernel; its result is cast to the operands' type if asked for."""
    operands = [TensorType(dtype, tuple(shape)) for shape in (query, key, value)]
    names = [f"x{number}" for number in range(3 + len(others))]
    wide = {} if dtype is DType.F32 else {"accumulator": "f32"}
    nodes: list[Any] = [("attention", names, {**wide, **attributes})]
    if cast:
        nodes.append(("cast", ["v0"], {"to": str(dtype)}))
    return kernel_of([*operands, *others], nodes)


@st.composite
def attentions(draw: st.DrawFn, most: int) -> FusedKernel:
    """Stacks, heads that share keys, orders of axes, masks, sinks; up to `most` of a kind, and as
    few more as an interpreter takes where that is little."""
    sizes = [size for size in (16, 17, 31, 32, 33, 40, 64, 77, 130, 197) if size <= most]
    queries, keys = draw(st.sampled_from(sizes)), draw(st.sampled_from(sizes))
    features = draw(st.sampled_from([n for n in (8, 16, 24, 40, 64, 80) if n <= max(most, 40)]))
    columns = draw(st.sampled_from([n for n in (16, 32, 48, 64, 80) if n <= max(most, 32)]))
    batch = draw(st.sampled_from([(), (2,), (1, 2)] if most < 20 else [(), (3,), (2, 2)]))
    shared = draw(st.sampled_from([batch, (*batch[:-1], *(1 for _ in batch[-1:]))]))
    shapes = {
        "query": (*batch, queries, features),
        "key": (*shared, keys, features),
        "value": (*shared, keys, columns),
    }
    attributes: dict[str, Attribute] = {"scale": draw(st.sampled_from([1.0, 0.2]))}
    operands = []
    for name, shape in shapes.items():
        perm = (*draw(st.permutations(range(len(shape) - 1))), len(shape) - 1)
        if name == "key" and draw(st.booleans()):
            perm = (*range(len(batch)), len(batch) + 1, len(batch))  # features, then positions
        attributes[f"{name}_perm"] = perm
        operands.append([shape[perm.index(axis)] for axis in range(len(shape))])
    attributes["perm"] = (*draw(st.permutations(range(len(batch) + 1))), len(batch) + 1)
    others = []
    for _ in range(draw(st.integers(0, 2))):
        scores = (*batch, queries, keys)
        shape = tuple(extent if draw(st.booleans()) else 1 for extent in scores)
        others.append(TensorType(draw(st.sampled_from([DType.F32, DType.BOOL])), shape))
    if draw(st.booleans()):
        attributes["zeroed"] = True
    if draw(st.booleans()):
        attributes["sink"] = True
        others.append(f32(*batch, queries, 1))
    if draw(st.booleans()):
        attributes |= {"filled": 0, "since": draw(st.sampled_from([-1, 1]))}
        others.append(TensorType(DType.I64, (2,)))
    if draw(st.booleans()):
        attributes["causal"] = True
        others.append(TensorType(DType.I64, (draw(st.sampled_from([1, 2])),)))
    query, key, value = operands
    return attention(query, key, value, others, attributes, draw(st.booleans()))


def inputs_of(kernel: FusedKernel, seed: int) -> dict[str, Array]:
    """Normal numbers; every seventh element of a mask hides a key, and every query sees a key."""
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    ends = _ends(kernel, rng)
    for position, buffer in enumerate(kernel.inputs):
        values: Any = rng.standard_normal(buffer.shape)
        if buffer.dtype is DType.I64:
            values = ends.pop(0)[: buffer.shape[0]]
        elif position >= 3:
            values = np.where(rng.random(buffer.shape) < 1 / 7, -np.inf, values)
        made[buffer.name] = (values > -1 if buffer.dtype is DType.BOOL else values).astype(
            buffer.dtype.numpy
        )
    return made


def _ends(kernel: FusedKernel, rng: np.random.Generator) -> list[Any]:
    """The sizes of keys, their end and begin, and the bounds of the keys that a query sees."""
    parts = attention_of(kernel)
    assert parts is not None
    queries, end, begin, found = parts.queries.extent, parts.keys.extent, 0, list[Any]()
    if parts.exists is not None:
        end = int(rng.integers(1, end + 1))
        begin = int(rng.integers(0, end))
        found.append(np.array([end, begin]))
    if parts.seen:
        last = end - queries - int(rng.integers(0, 9))
        found.append(np.array([begin + int(rng.integers(1, 9)), last]))
    return found


def scheduled(
    kernel: FusedKernel, target: Target, seed: int, threads: int = 1
) -> tuple[Schedule, FusedKernel]:
    """A schedule in tiles, the default one for the seed 0, and the kernel that it is to compute."""
    space = schedule_space(kernel, target, threads)
    assert space.default().sketch == SKETCH
    candidate, rng = space.default(), random.Random(seed)
    while seed and not (candidate := space.sample(rng)).sketch.startswith(SKETCH):
        pass
    schedule = space.schedule(candidate)
    (step,) = (step for step in schedule.steps if isinstance(step, BlockAttention))
    return schedule, block_attention(kernel, step.keys, step.lanes, step.online, step.terms)


def assert_close(found: Any, rounded: FusedKernel, kernel: FusedKernel, inputs: Any) -> None:
    """As near to the kernel with rounded weights as sums in another order, and weights on the edge
    of rounding, are; and to the kernel without by their rounding."""
    found = np.asarray(found, np.float32)
    values = np.abs(np.asarray(inputs["in2"], np.float32)).max(initial=1)
    for expected, tolerance in (
        (evaluate_kernel(rounded, inputs), ROUNDING / 4),
        (evaluate_kernel(kernel, inputs), ROUNDING),
    ):
        wide = np.asarray(expected, np.float32)
        edge = 2 * ROUNDING if kernel.output.dtype is DType.BF16 else 0.0
        limit = tolerance * values + edge * np.abs(wide)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wide))
        assert (np.nan_to_num(np.abs(found - wide)) <= np.nan_to_num(limit)).all()


def test_drawn_attention_is_right_in_tiles() -> None:
    @settings(DRAWN, max_examples=6)
    @given(attentions(17), st.integers(0, 99), st.sampled_from([1, 2]))
    def check(kernel: FusedKernel, seed: int, threads: int) -> None:
        schedule, rounded = scheduled(kernel, TILES, seed, threads)
        nest = lower(kernel, schedule)
        verify_loops(nest)
        assert uses_tiles(nest.body)
        inputs = inputs_of(kernel, seed)
        with np.errstate(invalid="ignore"):
            assert_close(interpret(nest, inputs), rounded, kernel, inputs)

    check()


@tiles_emulated
def test_code_of_drawn_attention_computes_what_it_means() -> None:
    target, count = tiled_host(), Count()

    @DRAWN
    @given(attentions(200), st.integers(0, 99), st.sampled_from([1, 2]))
    def check(kernel: FusedKernel, seed: int, threads: int) -> None:
        schedule, rounded = scheduled(kernel, target, seed, threads)
        inputs = inputs_of(kernel, seed)
        with emulated_tiles() as emulated, np.errstate(invalid="ignore"):
            outcome = run_guarded(kernel, schedule, inputs, target, threads)
        count.products += emulated.products
        assert not outcome.problem
        with np.errstate(invalid="ignore"):
            assert_close(outcome.output, rounded, kernel, inputs)

    check()
    assert count.products or host_target().matrix_tiles is not None


def test_narrow_operands_are_right_in_vectors() -> None:
    """All other sketches widen what they read, and round no weights."""

    @settings(DRAWN, max_examples=8)
    @given(attentions(40), st.integers(0, 99))
    def check(kernel: FusedKernel, seed: int) -> None:
        target = host_target()
        space = schedule_space(kernel, replace(target, features=_without_tiles(target)))
        names = {sketch.name for sketch in space.sketches}
        assert names in ({"attention"}, {"attention", "online_attention"})
        schedule, inputs = (
            space.schedule(space.sample(random.Random(seed))),
            inputs_of(kernel, seed),
        )
        outcome = run_guarded(kernel, schedule, inputs, target)
        assert not outcome.problem
        with np.errstate(invalid="ignore"):
            assert_close(outcome.output, kernel, kernel, inputs)

    check()


def _without_tiles(target: Target) -> tuple[str, ...]:
    return tuple(name for name in target.features if not name.startswith("amx"))


def test_keys_are_transposed_in_registers() -> None:
    """Pairs of features go through shuffles of whole rows, none through a scalar register."""
    kernel = attention((2, 64, 64), (2, 100, 64), (2, 100, 64))
    schedule, _ = scheduled(kernel, TILES, 0)
    text = assembly(emit_loops(lower(kernel, schedule), schedule, TILES, "kernel").text, TILES)
    assert text.count("\tvpunpckldq\t") >= 16
    assert not re.search(r"\t(?:vpinsrw|vpextrw|vmovw|movzwl)\t", text)


def products_of(kernel: FusedKernel, **sizes: int) -> int:
    """Products of tiles of a run with these sizes, by the names of their inputs."""
    schedule, _ = scheduled(kernel, TILES, 0)
    nest = tile_products(lower(kernel, schedule))
    return executed(nest, {name: np.array([size]) for name, size in sizes.items()})


def test_no_keys_behind_their_end_are_multiplied() -> None:
    """In both products, in steps of a tile, and so no rows of queries."""
    end = TensorType(DType.I64, (1,))
    kernel = attention((2, 256, 64), (2, 256, 64), (2, 256, 64), [end], {"filled": 0})
    few, many = products_of(kernel, in3=33), products_of(kernel, in3=256)
    assert many * 33 < few * 256 <= many * 64
    limit = ValidExtent(64, 256, "rows", 0)
    rows = Buffer("rows", DType.I64, (1,))
    kernel = replace(kernel, inputs=(*kernel.inputs, rows), limits=(limit,))
    assert products_of(kernel, in3=33, rows=64) * 4 == few


def test_keys_behind_a_diagonal_are_not_multiplied() -> None:
    """Of as many queries as keys little more than half."""
    bound = TensorType(DType.I64, (1,))
    kernel = attention((2, 256, 64), (2, 256, 64), (2, 256, 64), [bound], {"causal": True})
    half, whole = products_of(kernel, in3=1), products_of(kernel, in3=256)
    assert 0.5 < half / whole < 0.6


@pytest.mark.parametrize("keys", [32, 48, 77])
def test_blocks_for_tiles_keep_the_meaning(keys: int) -> None:
    """Of several blocks, too, and whether keys fill the last one or not."""
    kernel = attention(
        (2, 3, 20, 8), (2, 1, 77, 8), (2, 3, 77, 16), [f32(3, 20, 77)], {"scale": 0.5}
    )
    inputs = inputs_of(kernel, 0)
    assert_close(
        evaluate_kernel(block_attention(kernel, keys + keys % 2, 16, False, 2), inputs),
        block_attention(kernel, 78, 16, False, 2),
        kernel,
        inputs,
    )


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (attention((2, 8, 64), (2, 64, 64), (2, 64, 64)), "few queries"),
        (attention((2, 64, 64), (2, 8, 64), (2, 8, 64)), "few keys"),
        (attention((2, 64, 64), (2, 9000, 64), (2, 9000, 64)), "scores that fit no stack"),
        (attention((2, 64, 20), (2, 64, 20), (2, 64, 64)), "steps that fill no tile"),
        (attention((2, 64, 64), (2, 64, 64), (2, 64, 24)), "columns that are no whole tiles"),
        (attention((2, 64, 64), (2, 64, 64), (2, 64, 64), dtype=DType.F32), "wide operands"),
    ],
)
def test_what_tiles_do_not_hold_goes_in_vectors(kernel: FusedKernel, reason: str) -> None:
    assert attention_of(kernel) is not None
    assert SKETCH not in {sketch.name for sketch in schedule_space(kernel, TILES).sketches}, reason


def test_targets_without_tiles_have_no_such_sketch() -> None:
    kernel = attention((2, 64, 64), (2, 64, 64), (2, 64, 64))
    target = target_named("znver4")
    names = [sketch.name for sketch in schedule_space(kernel, target).sketches]
    assert SKETCH not in names
    assert "attention" in names
