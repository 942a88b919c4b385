"""Sums of narrow products are exact on every target, whatever the shapes and the schedule."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiler.schedule.guarded_run import run_guarded, targets
from tests.compiler.schedule.narrow_kernels import narrowed, values_for
from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.targets import target_named
from tunefarm.compiler.expr.nodes import Binary, Const, Expr, Load, Select, const
from tunefarm.compiler.expr.walk import rewrite
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.llvm.compile_kernel import emit_loops
from tunefarm.compiler.llvm.machine import assembly
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.sketches import wide_forms
from tunefarm.compiler.schedule.spaces import default_schedule, schedule_space
from tunefarm.compiler.schedule.steps.loop_kinds import Prefetch
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import STRICT_NUMERICS, Algorithm
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

BYTES = st.sampled_from([DType.U8, DType.I8])
EXTENTS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 24, 33, 64])
DRAWN = settings(
    max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def i32(*shape: int) -> TensorType:
    return TensorType(DType.I32, shape)


def without(target: Target, *parts: str) -> Target:
    """The target with registers of 32 bytes and without features whose names have these parts."""
    kept = tuple(name for name in target.features if not any(part in name for part in parts))
    return replace(target, vector_bytes=32, vector_registers=16, features=kept)


def all_targets() -> dict[str, Target]:
    host = host_target()
    made = targets()
    if "avx2" in host.features:
        made["avx2"] = without(host, "512", "vnni", "amx")
    if "avxvnni" in host.features:
        made["avxvnni"] = without(host, "512", "amx")
    return made


TARGETS = all_targets()


def product(
    m: int, k: int, n: int, *, batch: tuple[int, ...] = (), constant: bool = True, turned: bool
) -> FusedKernel:
    right = i32(*(() if constant else batch), *((n, k) if turned else (k, n)))
    node = ("matmul", ["x0", "x1"], {"transpose_b": turned})
    return kernel_of([i32(*batch, m, k), right], [node], ["x1"] if constant else [])


@st.composite
def products(draw: st.DrawFn, lanes: int) -> FusedKernel:
    batch = draw(st.sampled_from([(), (), (2,)]))
    m, k, n = draw(EXTENTS), draw(EXTENTS), draw(EXTENTS)
    constant, turned = draw(st.booleans()), draw(st.booleans())
    return product(m, k, n, batch=batch, constant=constant, turned=turned)


@st.composite
def convolutions(draw: st.DrawFn, lanes: int) -> FusedKernel:
    kind = draw(st.sampled_from(["blocked", "first", "depthwise", "plain", "groups"]))
    window = draw(st.sampled_from([1, 2, 3, 5, 7])), draw(st.sampled_from([1, 3, 3, 4, 5, 7]))
    stride, dilation = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 1, 2]))
    pads = tuple(draw(st.integers(0, 3)) for _ in range(4))
    height, width = (max(draw(st.integers(1, 12)), (taps - 1) * dilation + 1) for taps in window)
    attributes: dict[str, int | str | tuple[int, ...]] = {
        "pads": pads,
        "strides": (stride, stride),
        "dilations": (dilation, dilation),
    }
    blocks = draw(st.sampled_from([1, 2, 3]))
    data: tuple[int, ...]
    weight: tuple[int, ...]
    if kind == "plain" or kind == "groups":
        groups = 1 if kind == "plain" else draw(st.sampled_from([2, 3]))
        inputs, outputs = draw(st.sampled_from([1, 2, 3, 5, 8])), draw(st.sampled_from([1, 4, 9]))
        data, weight = (1, groups * inputs, height, width), (groups * outputs, inputs, *window)
        attributes["groups"] = groups
    elif kind == "first":
        inputs = draw(st.integers(1, 5))
        data, weight = (1, inputs, height, width), (blocks * lanes, inputs, *window)
        attributes |= {"layout": "NCHW->NCHWc", "block": lanes}
    else:
        inputs = draw(st.sampled_from([1, 2])) if kind == "blocked" else blocks
        data = (1, inputs, height, width, lanes)
        weight = (blocks * lanes, inputs * lanes if kind == "blocked" else 1, *window)
        attributes |= {"layout": "NCHWc"}
        if kind == "depthwise":
            attributes["groups"] = blocks * lanes
    return kernel_of([i32(*data), i32(*weight)], [("conv", ["x0", "x1"], attributes)], ["x1"])


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("drawn", [products, convolutions], ids=["products", "convolutions"])
def test_sums_are_exact_under_any_schedule(
    drawn: object, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide_forms, "LEAST_WORK", 1)
    monkeypatch.setattr(wide_forms, "LEAST_USES", 1)

    @DRAWN
    @given(st.data())
    def check(data: st.DataObject) -> None:
        kernel = data.draw(drawn(target.lanes(DType.F32)))  # type: ignore[operator]
        pad = data.draw(st.sampled_from([0, 0, 7]))
        made = narrowed(kernel, data.draw(BYTES), data.draw(BYTES), pad, data.draw(st.booleans()))
        threads, seed = data.draw(st.sampled_from([1, 1, 2])), data.draw(st.integers(0, 1 << 16))
        space = schedule_space(made, target, threads)
        candidate = space.default() if seed % 3 == 0 else space.sample(random.Random(seed))
        schedule = space.schedule(candidate)
        verify_loops(lower(made, schedule))
        inputs = values_for(made, seed)
        outcome = run_guarded(made, schedule, inputs, target, threads)
        assert not outcome.problem
        np.testing.assert_array_equal(outcome.output, evaluate_kernel(made, inputs), strict=True)

    check()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_no_products_of_the_largest_signed_bytes_saturate(target: Target) -> None:
    made = narrowed(product(3, 26, 40, turned=False), DType.I8, DType.I8)
    rng = np.random.default_rng(0)
    for ends in ((-128,), (-128, 127), (-128, -127, 0, 127)):
        inputs = {
            buffer.name: rng.choice(np.array(ends, np.int8), buffer.shape) for buffer in made.inputs
        }
        expected = evaluate_kernel(made, inputs)
        space = schedule_space(made, target, 1)
        for seed in range(6):
            schedule = space.schedule(space.sample(random.Random(seed)))
            outcome = run_guarded(made, schedule, inputs, target, 1)
            assert not outcome.problem
            np.testing.assert_array_equal(outcome.output, expected, strict=True)


def floating(kernel: FusedKernel) -> FusedKernel:
    """A kernel of i32 as one of f32."""

    def changed(node: Expr) -> Expr:
        if isinstance(node, Load):
            return replace(node, dtype=DType.F32)
        if isinstance(node, Const) and node.dtype is DType.I32:
            return const(node.value, DType.F32)
        if isinstance(node, Binary | Select) and node.dtype is DType.I32:
            return replace(node, dtype=DType.F32)
        return node

    stages = tuple(replace(stage, body=rewrite(stage.body, changed)) for stage in kernel.stages)
    inputs = tuple(replace(buffer, dtype=DType.F32) for buffer in kernel.inputs)
    return replace(kernel, inputs=inputs, stages=stages)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_sums_of_bf16_are_those_of_f32_but_for_the_order(target: Target) -> None:
    @DRAWN
    @given(st.data())
    def check(data: st.DataObject) -> None:
        lanes = target.lanes(DType.F32)
        kernel = floating(data.draw(st.one_of(products(lanes), convolutions(lanes))))
        made, seed = narrowed(kernel, DType.BF16, DType.BF16), data.draw(st.integers(0, 1 << 16))
        space = schedule_space(made, target, numerics=STRICT_NUMERICS)
        schedule = space.schedule(space.sample(random.Random(seed)))
        rng = np.random.default_rng(seed)
        # Whole numbers: every order of the sum gives the same, so that nothing may differ.
        inputs = {
            buffer.name: rng.integers(-8, 9, buffer.shape).astype(buffer.dtype.numpy)
            for buffer in made.inputs
        }
        outcome = run_guarded(made, schedule, inputs, target)
        assert not outcome.problem
        np.testing.assert_array_equal(outcome.output, evaluate_kernel(made, inputs), strict=True)

    check()


def arm(*features: str) -> Target:
    host = host_target()
    return replace(
        host,
        triple="aarch64-unknown-linux-gnu",
        cpu="generic",
        features=("neon", *features),
        vector_bytes=16,
        vector_registers=32,
    )


def x86(*features: str, cpu: str = "x86-64-v4", vector_bytes: int = 64) -> Target:
    v3 = ("avx", "avx2", "f16c", "fma", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3", "xsave")
    v4 = ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl") if vector_bytes == 64 else ()
    return replace(
        host_target(),
        triple="x86_64-unknown-linux-gnu",
        cpu=cpu,
        features=tuple(sorted((*v3, *v4, *features))),
        vector_bytes=vector_bytes,
        vector_registers=32 if vector_bytes == 64 else 16,
    )


U8_I8, I8_I8 = (DType.U8, DType.I8), (DType.I8, DType.I8)
BF16 = (DType.BF16, DType.BF16)
EXPECTED = [
    (x86("avx512vnni"), U8_I8, "vpdpbusd"),
    (x86("avx512vnni"), I8_I8, "vpdpbusd"),
    (x86("avxvnni", cpu="x86-64-v3", vector_bytes=32), U8_I8, "vpdpbusd"),
    (x86("avxvnniint8", cpu="x86-64-v3", vector_bytes=32), I8_I8, "vpdpbssd"),
    (x86(cpu="x86-64-v3", vector_bytes=32), U8_I8, "vpmaddwd"),
    (x86(), U8_I8, "vpmaddwd"),
    (x86("avx512bf16", cpu="znver4"), BF16, "vdpbf16ps"),
    (x86("avx512bf16", cpu="cooperlake"), BF16, "vfmadd"),
    (arm("dotprod"), U8_I8, "sdot"),
    (arm("dotprod"), I8_I8, "sdot"),
    (arm("dotprod", "i8mm"), U8_I8, "usdot"),
    (arm(), U8_I8, "smull"),
    (arm("bf16"), BF16, "bfmmla"),
]


@pytest.mark.parametrize(("target", "types", "instruction"), EXPECTED)
def test_the_instruction_of_the_target_sums_them(
    target: Target, types: tuple[DType, DType], instruction: str
) -> None:
    lanes = target.lanes(DType.F32)
    kernel = kernel_of(
        [i32(1, 1, 4, 10, lanes), i32(lanes, lanes, 3, 3)],
        [("conv", ["x0", "x1"], {"layout": "NCHWc"})],
        ["x1"],
    )
    made = narrowed(floating(kernel) if types is BF16 else kernel, *types)
    schedule = default_schedule(made, target)
    text = assembly(emit_loops(lower(made, schedule), schedule, target, "kernel").text, target)
    found = re.findall(rf"\b{instruction}\w*\s", text)
    assert len(found) >= 8
    assert not re.search("maddubs", text)


@pytest.mark.parametrize(("pad", "choices"), [(0, {"inline", "copy"}), (7, {"copy"})])
def test_padding_whose_terms_count_is_copied(pad: int, choices: set[str]) -> None:
    kernel = kernel_of(
        [i32(1, 1, 7, 9, 16), i32(16, 16, 3, 3)],
        [("conv", ["x0", "x1"], {"layout": "NCHWc", "pads": (1, 1, 1, 1)})],
        ["x1"],
    )
    space = schedule_space(narrowed(kernel, *U8_I8, pad), x86("avx512vnni"))
    (padding,) = (c for sketch in space.sketches for c in sketch.choices if c.name == "padding")
    assert set(padding.values) == choices


@pytest.mark.parametrize(("rows", "ahead"), [(1, 0), (64, 1)])
def test_constants_that_tiles_share_are_asked_for_a_tile_ahead(rows: int, ahead: int) -> None:
    target = x86("avx512vnni")
    made = narrowed(product(rows, 40, 64, turned=False), *U8_I8)
    space = schedule_space(made, target)
    candidate = space.default()
    schedule = space.schedule(candidate)
    text = emit_loops(lower(made, schedule), schedule, target, "kernel").text
    found = [step for step in schedule.steps if isinstance(step, Prefetch)]
    assert len(found) == ahead
    assert ("call void @llvm.prefetch" in text) == bool(ahead)
    for step in found:
        vectors, rest = divmod(step.distance, 40 * 16)
        assert vectors in (1, 2, 3, 4)
        assert rest == 0


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_each_line_of_packed_weights_is_asked_for_once(bits: int) -> None:
    """A barrier has the words of a line loaded again for each field of them."""
    inner, columns, block, tile = 256, 64, 32, 16
    words = i32(inner * bits // 32, columns)
    attributes: dict[str, Attribute] = {"bits": bits, "block": block}
    data = [f32(1, inner), words, f32(inner // block, columns)]
    kernel = kernel_of(data, [("weight_product", ["x0", "x1", "x2"], attributes)], ["x1", "x2"])
    target = target_named("znver3")
    schedule = default_schedule(kernel, target)
    assert schedule.algorithm is Algorithm.DIGITS
    text = emit_loops(lower(kernel, schedule), schedule, target, "kernel").text
    unrolled = min(4, block * bits // 32)  # words of a column
    lines = unrolled * tile * 4 // 64
    assert text.count("call void @llvm.prefetch") == lines + 1  # and one of scales


def test_bytes_are_made_16_bits_once_where_pairs_of_these_are_multiplied() -> None:
    made = narrowed(product(64, 40, 64, turned=False), *U8_I8)
    for target, wide in ((x86(cpu="x86-64-v3", vector_bytes=32), True), (x86("avx512vnni"), False)):
        space = schedule_space(made, target)
        assert space.sketches[0].name.endswith("_wide") == wide
        names = [type(step).__name__ for step in space.schedule(space.default()).steps]
        assert ("WideFactors" in names) == wide
