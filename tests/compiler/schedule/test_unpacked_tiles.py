"""Weights of a few bits, unpacked for matrix tiles: right for any shapes, rounded once."""

from __future__ import annotations

import random
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiler.decoders import Sizes, decoder
from tests.compiler.llvm.emulated_tiles import Count, emulated_tiles, tiled_host, tiles_emulated
from tests.compiler.loops.executed import executed
from tests.compiler.loops.tiny_kernels import run_nest
from tests.compiler.schedule.guarded_run import run_guarded
from tests.targets import target_named
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel, ValidExtent
from tunefarm.compiler.kernels.unpack_weights import UNPACKED, apply_unpack_weights
from tunefarm.compiler.llvm.compile_kernel import constant_layouts, emit_loops
from tunefarm.compiler.llvm.machine import assembly
from tunefarm.compiler.loops.ir import LoopNest, uses_tiles
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.operators.evaluate_node import node_kernel
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution import loaded_program
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.schedule.steps.loop_kinds import Prefetch
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.extents import Given
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType

TILES = target_named("sapphirerapids")
SKETCH = "matrix_tiles_unpacked"
DRAWN = settings(
    max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def product(
    rows: tuple[int, ...],
    inner: int,
    columns: int,
    bits: int = 4,
    block: int = 32,
    zero: bool = False,
    dtype: DType = DType.BF16,
    scale: DType = DType.F32,
) -> FusedKernel:
    """Narrow data times packed weights, summed in f32."""
    parameters = (inner // block, columns)
    types = [
        TensorType(dtype, (*rows, inner)),
        TensorType(DType.I32, (inner * bits // 32, columns)),
        TensorType(scale, parameters),
        *([TensorType(DType.I8, parameters)] if zero else []),
    ]
    names = tuple(f"in{number}" for number in range(len(types)))
    attributes: dict[str, Attribute] = {"bits": bits, "block": block}
    if dtype is not DType.F32:
        attributes["accumulator"] = "f32"
    node = Node("weight_product", names, "y", MappingProxyType(attributes))
    return node_kernel(node, tuple(types), (False, *(True,) * (len(types) - 1)))


@st.composite
def products(draw: st.DrawFn, most: int) -> FusedKernel:
    """Of all widths and blocks, with up to `most` rows and columns of a tile more or less."""
    bits = draw(st.sampled_from((2, 4, 8)))
    block = 32 // bits * draw(st.integers(1, 4))
    blocks = draw(st.sampled_from([n for n in (1, 2, 3, 7) if block * n >= 16]))
    rows = draw(st.sampled_from([n for n in (4, 16, 17, 31, 33, 64) if n <= most]))
    columns = draw(st.sampled_from([n for n in (16, 17, 32, 40, 48, 80) if n <= most]))
    stack = draw(st.sampled_from([(), (1,), (2,)]))
    zero, scale = draw(st.booleans()), draw(st.sampled_from((DType.F32, DType.F16)))
    return product((*stack, rows), block * blocks, columns, bits, block, zero, scale=scale)


def inputs_of(kernel: FusedKernel, seed: int) -> dict[str, Array]:
    rng, made = np.random.default_rng(seed), dict[str, Array]()
    for buffer in kernel.inputs:
        values: Any = rng.standard_normal(buffer.shape)
        if buffer.dtype is DType.I32:
            values = rng.integers(-(1 << 31), 1 << 31, buffer.shape)
        elif buffer.dtype is DType.I8:
            values = rng.integers(-8, 8, buffer.shape)
        elif buffer.constant:
            values = rng.uniform(0.25, 1.0, buffer.shape)
        made[buffer.name] = converted(values, buffer.dtype)
    return made


def scheduled(
    kernel: FusedKernel, target: Target, seed: int = 0, threads: int = 1
) -> tuple[Schedule, LoopNest] | None:
    """A schedule in tiles, the default one for the seed 0, and its loops; None where none is."""
    space = schedule_space(kernel, target, threads)
    if SKETCH not in [sketch.name for sketch in space.sketches]:
        return None
    sketch, rng = space.sketch(SKETCH), random.Random(seed)
    values = {
        choice.name: rng.choice(choice.values) if seed else default
        for choice, default in zip(sketch.choices, sketch.default, strict=True)
    }
    schedule = sketch.build(values)
    nest = lower(kernel, schedule)
    verify_loops(nest)
    assert uses_tiles(nest.body)
    return schedule, nest


def assert_close(found: Any, kernel: FusedKernel, inputs: dict[str, Array]) -> None:
    """As near to the product with rounded weights as sums in another order are; and to the exact
    one by the roundings of weights, half a unit of 8 bits each, which add up by the root of their
    number."""
    rounded = apply_unpack_weights(kernel, 16, 2)
    expected: Any = evaluate_kernel(rounded, inputs)
    inner = inputs["in0"].shape[-1]
    largest = float(np.abs(expected).max(initial=1.0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2.0**-21 * inner**0.5 * largest)
    exact: Any = evaluate_kernel(kernel, inputs)
    unpacked: Any = evaluate_kernel(_weights(rounded), inputs)
    weights = np.abs(unpacked.astype(np.float32)).max()
    np.testing.assert_allclose(found, exact, rtol=0, atol=2.0**-7 * inner**0.5 * weights)


def _weights(rounded: FusedKernel) -> FusedKernel:
    """The kernel that ends with the weights."""
    (stage,) = (stage for stage in rounded.stages if stage.name == UNPACKED)
    return replace(rounded, stages=(stage,), anchor=UNPACKED)


def test_drawn_products_are_right_in_tiles() -> None:
    found = []

    @settings(DRAWN, max_examples=12)
    @given(products(33), st.integers(0, 9), st.sampled_from([1, 2]))
    def check(kernel: FusedKernel, seed: int, threads: int) -> None:
        made = scheduled(kernel, TILES, seed, threads)
        found.append(made is not None)
        if made is None:
            return
        schedule, nest = made
        inputs = inputs_of(kernel, seed)
        output = run_nest(nest, dict(constant_layouts(schedule)), inputs)
        assert_close(output.reshape(kernel.output.shape), kernel, inputs)

    check()
    assert sum(found) >= 6


@tiles_emulated
def test_code_of_drawn_products_computes_what_they_mean() -> None:
    target, count = tiled_host(), Count()

    @DRAWN
    @given(products(80), st.integers(0, 9), st.sampled_from([1, 2]))
    def check(kernel: FusedKernel, seed: int, threads: int) -> None:
        made = scheduled(kernel, target, seed, threads)
        if made is None:
            return
        inputs = inputs_of(kernel, seed)
        with emulated_tiles() as emulated:
            outcome = run_guarded(kernel, made[0], inputs, target, threads)
        count.products += emulated.products
        assert not outcome.problem
        assert_close(outcome.output, kernel, inputs)

    check()
    assert count.products or host_target().matrix_tiles is not None


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_end_at_a_dynamic_size(threads: int) -> None:
    """Weights are unpacked once, and blocks of rows behind the size are not multiplied."""
    kernel = product((256,), 64, 64)
    sizes = Buffer("sizes", DType.I64, (1,))
    limit = ValidExtent(64, 256, sizes.name, 0)
    kernel = replace(kernel, inputs=(*kernel.inputs, sizes), limits=(limit,))
    made = scheduled(kernel, TILES, threads=threads)
    assert made is not None
    few, more, all_rows = (
        executed(made[1], {sizes.name: np.array([rows])}) for rows in (32, 64, 256)
    )
    assert (more - few) * 6 == all_rows - more > 0


def test_a_block_of_columns_is_unpacked_in_straight_code_without_scalars() -> None:
    """A load of the scale for all weights of a block; two vectors of f32 become one of bf16."""
    kernel = product((64,), 128, 64)
    made = scheduled(kernel, TILES)
    assert made is not None
    text = assembly(emit_loops(made[1], made[0], TILES, "kernel").text, TILES)
    assert text.count("\tvcvtne2ps2bf16\t") == 16
    assert "vcvtneps2bf16" not in text and "vinsertf64x4" not in text
    assert text.count("\tvpternlogd\t") == 32


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (product((64,), 128, 64, dtype=DType.F32), "wide data"),
        (product((64,), 128, 64, dtype=DType.F16), "a type that no tile multiplies"),
        (product((2,), 128, 64), "few rows"),
        (product((64,), 1 << 16, 64, block=1 << 16), "columns that fit no stack"),
    ],
)
def test_what_tiles_do_not_hold_is_unpacked_in_registers(kernel: FusedKernel, reason: str) -> None:
    assert scheduled(kernel, TILES) is None, reason


@pytest.mark.parametrize(("rows", "leads"), [(4, False), (64, True)])
def test_tiles_lead_where_they_take_fewer_cycles(rows: int, leads: bool) -> None:
    space = schedule_space(product((rows,), 896, 896), TILES)
    assert (space.default().sketch == SKETCH) == leads


@pytest.mark.parametrize("name", ["znver4", "znver5", "icelake-server", "x86-64-v3"])
def test_targets_without_tiles_have_no_such_sketch(name: str) -> None:
    target = target_named(name)
    assert scheduled(product((64,), 128, 64), target) is None


def types_of_data(target: Target, rows: Given, precision: str = "bf16") -> set[DType]:
    """Of products with packed weights, in a decoder with 4 bits over so many tokens."""
    sizes = Sizes(1, 2, 2, 64, 256, 256, 64, block=32)
    shapes: dict[str, tuple[Given, ...]] = {
        "batch_size": (1,),
        "sequence_length": (rows,),
        "past_sequence_length": (0,),
        "total_sequence_length": (rows,),
    }
    model = import_model_proto(decoder("gqa", sizes), shapes=shapes)
    compiled = compile_model(model, numerics=precision, target=target)
    found = set()
    for kernel in compiled.kernels.values():
        packed = [item for item in kernel.inputs if item.constant and item.dtype is DType.I32]
        if packed:
            found.add(kernel.inputs[0].dtype)
    return found


@pytest.mark.parametrize(
    ("name", "rows", "precision", "expected"),
    [
        ("sapphirerapids", 32, "bf16", DType.BF16),
        ("sapphirerapids", "2..32", "bf16", DType.BF16),
        ("sapphirerapids", 1, "bf16", DType.F32),
        ("sapphirerapids", 32, "default", DType.F32),
        ("znver4", 32, "bf16", DType.F32),
        ("x86-64-v3", 32, "bf16", DType.F32),
    ],
)
def test_data_is_narrow_where_tiles_multiply_it(
    name: str, rows: Given, precision: str, expected: DType
) -> None:
    target = target_named(name)
    assert types_of_data(target, rows, precision) == {expected}


@tiles_emulated
def test_a_decoder_of_dynamic_lengths_stays_near_f32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products and attention in tiles, whatever a longer prompt left behind."""
    # The emulator has what this CPU may lack.
    monkeypatch.setattr(loaded_program, "check_target", lambda _: None)
    sizes = Sizes(2, 2, 1, 64, 192, 256, 128, block=32)
    shapes: dict[str, tuple[Given, ...]] = {
        "batch_size": (1,),
        "sequence_length": ("2..48",),
        "past_sequence_length": ("0..16",),
        "total_sequence_length": ("1..64",),
    }
    model = decoder("gqa", sizes)
    exact, narrow = (
        Executable(
            compile_model(
                import_model_proto(model, shapes=shapes), numerics=name, target=tiled_host()
            ).spec
        )
        for name in ("default", "bf16")
    )
    past = np.zeros((1, sizes.groups, 0, sizes.width), np.float32)
    for tokens in (48, 5, 33, 16):
        feed: dict[str, Any] = {
            "input_ids": np.random.default_rng(1).integers(0, sizes.words, (1, tokens)),
            "attention_mask": np.ones((1, tokens), np.int64),
            "position_ids": np.arange(tokens, dtype=np.int64)[None],
        }
        for layer in range(sizes.layers):
            feed |= {f"past_key_values.{layer}.{kind}": past for kind in ("key", "value")}
        with emulated_tiles():
            expected, found = (each.run(feed)["logits"] for each in (exact, narrow))
        assert found.shape == (1, tokens, sizes.words)
        np.testing.assert_allclose(found, expected, rtol=0, atol=0.03 * np.abs(expected).max())


def test_words_are_asked_for_ahead() -> None:
    made = scheduled(product((64,), 896, 4864), TILES)
    assert made is not None
    assert Prefetch("in1", 1024) in made[0].steps
    assert UNPACKED not in [memory.name for memory in made[1].inputs]
