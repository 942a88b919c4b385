"""Sums of narrow products in matrix tiles: exact for all shapes, in the instructions of AMX."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiler.llvm.emulated_tiles import Count, emulated_tiles, tiled_host, tiles_emulated
from tests.compiler.loops.executed import executed, tile_products
from tests.compiler.loops.tiny_kernels import run_nest
from tests.compiler.runtime.c_models import random_inputs
from tests.compiler.schedule.drawn_graphs import Case
from tests.compiler.schedule.drawn_limits import limits
from tests.compiler.schedule.guarded_run import run_guarded
from tests.compiler.schedule.narrow_kernels import narrowed, values_for
from tests.compiler.schedule.small_kernels import kernel_of
from tests.targets import target_named
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel, ValidExtent
from tunefarm.compiler.llvm.compile_kernel import constant_layouts, emit_loops
from tunefarm.compiler.llvm.machine import assembly
from tunefarm.compiler.loops.ir import LoopNest, uses_tiles
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import default_schedule, schedule_space
from tunefarm.compiler.target import host_target, host_tile_refusal
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array, TensorType

TILES = target_named("sapphirerapids")
PAIRS = [
    (DType.U8, DType.I8),
    (DType.I8, DType.I8),
    (DType.U8, DType.U8),
    (DType.I8, DType.U8),
    (DType.BF16, DType.BF16),
]
DRAWN = settings(
    max_examples=24, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def product(
    m: int, k: int, n: int, turned: bool = False, constant: bool = True, total: DType = DType.I32
) -> FusedKernel:
    left, right = TensorType(total, (m, k)), TensorType(total, (n, k) if turned else (k, n))
    node = ("matmul", ["x0", "x1"], {"transpose_b": turned})
    return kernel_of([left, right], [node], ["x1"] if constant else [])


def convolution(
    blocks: tuple[int, int],
    window: int,
    size: tuple[int, int],
    stride: int,
    pad: int,
    total: DType = DType.I32,
    dilation: int = 1,
    batch: int = 1,
) -> FusedKernel:
    inputs, outputs = blocks
    attributes: dict[str, str | tuple[int, ...]] = {
        "pads": (pad,) * 4,
        "strides": (stride, stride),
        "dilations": (dilation, dilation),
        "layout": "NCHWc",
    }
    data = TensorType(total, (batch, inputs, *size, 16))
    weight = TensorType(total, (16 * outputs, 16 * inputs, window, window))
    return kernel_of([data, weight], [("conv", ["x0", "x1"], attributes)], ["x1"])


def interleaved_convolution(
    blocks: int,
    window: tuple[int, int],
    size: tuple[int, int],
    strides: tuple[int, int],
    total: DType = DType.I32,
    batch: int = 1,
) -> FusedKernel:
    """Of one channel, as whose rows those of all channels are: windows overlap within a row."""
    attributes: dict[str, str | int | tuple[int, ...]] = {
        "strides": strides,
        "layout": "NCHW->NCHWc",
        "block": 16,
    }
    data = TensorType(total, (batch, 1, *size))
    weight = TensorType(total, (16 * blocks, 1, *window))
    return kernel_of([data, weight], [("conv", ["x0", "x1"], attributes)], ["x1"])


@st.composite
def kernels(draw: st.DrawFn, total: DType) -> FusedKernel:
    """Products and convolutions, most of which tiles can hold."""
    if draw(st.booleans()):
        m = draw(st.sampled_from([4, 5, 7, 13, 16, 17, 31, 33]))
        k, n = (
            draw(st.sampled_from([32, 64, 96, 68, 132])),
            draw(st.sampled_from([5, 16, 30, 48, 80])),
        )
        return product(m, k, n, draw(st.booleans()), total=total)
    if draw(st.integers(0, 3)) == 0:
        wide, apart = draw(st.sampled_from([16, 24, 28, 48])), draw(st.sampled_from([4, 6, 8]))
        columns = draw(st.sampled_from([4, 7, 17, 35]))
        plane = draw(st.sampled_from([3, 6])), (columns - 1) * apart + wide
        batch, strides = draw(st.sampled_from([1, 2])), (draw(st.sampled_from([1, 2])), apart)
        many = draw(st.sampled_from([1, 2, 3]))
        return interleaved_convolution(many, (3, wide), plane, strides, total, batch)
    window, stride = draw(st.sampled_from([1, 1, 3])), draw(st.sampled_from([1, 1, 2]))
    blocks = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2)]))
    size = draw(st.sampled_from([3, 5, 7])), draw(st.sampled_from([7, 10, 17, 19]))
    pad, batch = draw(st.sampled_from([0, 1])), draw(st.sampled_from([1, 1, 2]))
    dilation = draw(st.sampled_from([1, 1, 2])) if size[0] + 2 * pad >= 5 else 1
    return convolution(blocks, window, size, stride, pad, total, dilation, batch)


def tiled(kernel: FusedKernel, seed: int = 0, threads: int = 1) -> tuple[Schedule, LoopNest] | None:
    """A schedule with matrix tiles, the default for the seed 0, and its loops; None if none is."""
    space = schedule_space(kernel, TILES, threads)
    if not space.sketches[0].name.startswith("matrix_tiles"):
        return None
    candidate = space.default()
    rng = random.Random(seed)
    while seed and not (candidate := space.sample(rng)).sketch.startswith("matrix_tiles"):
        pass
    schedule = space.schedule(candidate)
    nest = lower(kernel, schedule)
    verify_loops(nest)
    assert uses_tiles(nest.body)
    return schedule, nest


def computed(kernel: FusedKernel, made: tuple[Schedule, LoopNest], inputs: Any) -> Array:
    schedule, nest = made
    found = run_nest(nest, dict(constant_layouts(schedule)), inputs)
    return found.reshape(kernel.output.shape)


def test_drawn_kernels_are_exact_in_tiles() -> None:
    found = []

    @DRAWN
    @given(st.data())
    def check(data: st.DataObject) -> None:
        left, right = data.draw(st.sampled_from(PAIRS))
        total = DType.F32 if left.is_float else DType.I32
        requantised = total is DType.I32 and data.draw(st.booleans())
        kernel = narrowed(data.draw(kernels(total)), left, right, 0, requantised)
        seed, threads = data.draw(st.integers(0, 99)), data.draw(st.sampled_from([1, 2]))
        made = tiled(kernel, seed, threads)
        found.append(made is not None)
        if made is None:
            return
        inputs = values_for(kernel, seed)
        expected: Any = evaluate_kernel(kernel, inputs)
        found_values: Any = computed(kernel, made, inputs)
        if left.is_float:
            np.testing.assert_allclose(found_values, expected, rtol=1e-5)
        else:
            np.testing.assert_array_equal(found_values, expected, strict=True)
        schedule, nest = made
        text = emit_loops(nest, schedule, TILES, "kernel")
        assert re.search(r"\ttdpb(?:[us]{2}d|f16ps)\t", assembly(text.text, TILES))

    check()
    assert sum(found) >= 10


def test_choices_of_older_records_mean_what_they_meant() -> None:
    """As in records of compiler version 8, but for the stage that no epilogue makes needed, and for
    the copy of the data, which lies on the stack since version 11."""
    total = DType.F32
    kernel = narrowed(convolution((4, 4), 3, (56, 56), 1, 1, total), DType.BF16, DType.BF16)
    space = schedule_space(kernel, TILES)
    candidate = space.find("matrix_tiles_grouped", {"tile": (2, 2), "loops": "blocks"})
    assert candidate is not None
    assert json.loads(json.dumps(space.schedule(candidate).to_json())) == [
        ["PackStage", "pad", [[1, 2]], [0, 1, 3, 4, 2, 5]],
        ["PackLayout", "in1", [[0, 16], [1, 2]], [0, 4, 5, 2, 1, 3]],
        ["CacheWrite", "conv", "conv.sum"],
        ["Tile", "conv", "ocb", 2, "shift"],
        ["Tile", "conv", "ow", 32, "shift"],
        ["Reorder", "conv", ["n", "oh", "ocb.o", "ow.o", "ow.i", "ocb.i", "oci"]],
        ["Unroll", "conv", "ocb.i"],
        ["Vectorize", "conv", "oci"],
        ["Vectorize", "pad", "ici"],
        ["Partition", "pad", "ih", 0, 0, [1, 57]],
        ["Partition", "pad", "iw", 0, 0, [1, 57]],
        ["ComputeAt", "pad", "conv", "n"],
        ["ComputeAt", "conv.sum", "conv", "ow.o"],
        ["Tile", "conv.sum", "ow", 16],
        ["Tile", "conv.sum", "icb", 2],
        ["Tile", "conv.sum", "ici", 16],
        ["Tile", "conv.sum", "ici.i", 2],
        [
            "Reorder",
            "conv.sum",
            "n oh icb.o kh kw ici.o ow.o ocb ow.i icb.i ici.i.o oci ici.i.i".split(),
        ],
        ["Unroll", "conv.sum", "ow.o"],
        ["Unroll", "conv.sum", "ocb"],
        ["MatrixTiles", "conv.sum", "ow.i", "ici.i.o", "oci", "ici.i.i", "icb.i"],
    ]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "kernel",
    [
        product(61, 192, 75),
        convolution((4, 3), 1, (7, 9), 1, 0),
        convolution((4, 2), 3, (5, 9), 1, 1),
    ],
)
def test_panels_of_rows_are_exact(kernel: FusedKernel, threads: int) -> None:
    """Where the second cache holds less than the rows, they come in panels, in a loop outside."""
    narrow = narrowed(kernel, DType.U8, DType.I8)
    target = replace(TILES, l2_bytes=4 << 10)
    found = 0
    for sketch in schedule_space(narrow, target, threads).sketches:
        domains = {choice.name: choice.values for choice in sketch.choices}
        if "stacked panels" not in domains.get("loops", ()):
            continue
        for tile in domains["tile"]:
            values = dict(zip(domains, sketch.default, strict=True))
            schedule = sketch.build(values | {"tile": tile, "loops": "stacked panels"})
            nest = lower(narrow, schedule)
            verify_loops(nest)
            inputs = values_for(narrow)
            expected: Any = evaluate_kernel(narrow, inputs)
            actual: Any = computed(narrow, (schedule, nest), inputs)
            np.testing.assert_array_equal(actual, expected)
            found += 1
    assert found


def test_limited_kernels_are_exact_where_needed() -> None:
    """Loops over rows of a plane and of matrices end where dynamic sizes do, in every order."""
    found = []

    @DRAWN
    @given(st.data())
    def check(data: st.DataObject) -> None:
        kernel = narrowed(data.draw(kernels(DType.I32)), DType.U8, DType.I8)
        inputs = dict(values_for(kernel))
        whole: Any = evaluate_kernel(kernel, inputs)
        kernel, inputs, needed = data.draw(limits(Case(kernel, inputs, whole)))
        made = tiled(kernel, data.draw(st.integers(0, 99)), data.draw(st.sampled_from([1, 2])))
        found.append(made is not None)
        if made is not None:
            values = np.where(needed, computed(kernel, made, inputs), whole)
            np.testing.assert_array_equal(values, whole)

    check()
    assert sum(found) >= 10


@pytest.mark.parametrize("threads", [1, 2])
def test_tiles_behind_a_dynamic_size_are_not_multiplied(threads: int) -> None:
    """Of 33 rows no more than of 64 are computed, and of 512 eight times as many."""
    kernel = narrowed(product(512, 256, 64), DType.U8, DType.I8)
    sizes = Buffer("sizes", DType.I64, (1,))
    limit = ValidExtent(64, 512, sizes.name, 0)
    kernel = replace(kernel, inputs=(*kernel.inputs, sizes), limits=(limit,))
    made = tiled(kernel, threads=threads)
    assert made is not None
    products = [
        executed(tile_products(made[1]), {sizes.name: np.array([rows])}) for rows in (33, 64, 512)
    ]
    assert 0 < products[0] <= products[1] == products[2] // 8


def test_tiles_of_rows_that_are_not_there_are_not_computed() -> None:
    rows, tile = 64, 16
    kernel = narrowed(product(rows, 64, 32, total=DType.F32), DType.BF16, DType.BF16)
    name = f"in{len(kernel.inputs)}"
    limited = replace(
        kernel,
        inputs=(*kernel.inputs, Buffer(name, DType.I64, (1,))),
        limits=(ValidExtent(32, rows, name, 0),),
    )
    made = tiled(limited)
    assert made is not None
    for size in (0, 1, 16, 17, 32, 33, 64):
        result: Any = computed(limited, made, {**values_for(kernel), name: np.array([size])})
        is_written = ~np.isnan(result)
        assert is_written[:size].all()
        assert not is_written[-(-size // tile) * tile :].any()


@pytest.mark.parametrize("left", [DType.BF16, DType.U8])
def test_a_loop_over_tiles_has_little_but_loads_and_products(left: DType) -> None:
    """Each tile is loaded once for two products; what else there is moves pointers and counts."""
    total, right = (DType.F32, left) if left.is_float else (DType.I32, DType.I8)
    kernel = narrowed(product(512, 2048, 512, total=total), left, right)
    schedule = default_schedule(kernel, TILES)
    text = assembly(emit_loops(lower(kernel, schedule), schedule, TILES, "kernel").text, TILES)
    (loop,) = re.findall(r"\n(\.LBB\w+):\n((?:\t.*\n)*?)\tjl\t\1\n", text)[:1]
    found = [line.split()[0] for line in loop[1].splitlines() if not line.startswith("\t#")]
    products = [name for name in found if name.startswith("tdp")]
    loads = [name for name in found if name.startswith("tileload")]
    assert (len(products), len(loads)) == (4, 4)
    assert len(found) <= 8 + 7 and not any("store" in name or "mov" in name for name in found)


def test_weights_beyond_the_second_cache_are_read_once_for_all_rows() -> None:
    """A block of them stays in that cache while rows pass, which nearly fit next to it."""
    kernel = narrowed(product(256, 3072, 768, total=DType.F32), DType.BF16, DType.BF16)
    space = schedule_space(kernel, TILES)
    assert space.choices(space.default()) == {"tile": (2, 2), "loops": "blocks"}


@pytest.mark.parametrize("window", [1, 3])
def test_weights_beyond_the_second_cache_may_be_prefetched(window: int) -> None:
    """Of each tile of weights 16 lines, and none of the data."""
    size, blocks = ((7, 7), (32, 32)) if window == 3 else ((8, 8), (128, 64))
    kernel = narrowed(
        convolution(blocks, window, size, 1, window // 2, DType.F32), DType.BF16, DType.BF16
    )
    space = schedule_space(kernel, TILES)
    name = space.sketches[0].name
    texts = {}
    for loops in ("stacked blocks", "prefetched blocks"):
        candidate = space.find(name, {"tile": (2, 2), "loops": loops})
        assert candidate is not None
        schedule = space.schedule(candidate)
        nest = lower(kernel, schedule)
        verify_loops(nest)
        texts[loops] = assembly(emit_loops(nest, schedule, TILES, "kernel").text, TILES)
    assert "prefetch" not in texts["stacked blocks"]
    assert texts["prefetched blocks"].count("\tprefetcht1\t") == 2 * 16
    small = narrowed(convolution((4, 4), 3, (7, 7), 1, 1, DType.F32), DType.BF16, DType.BF16)
    for sketch in schedule_space(small, TILES).sketches:
        domains = {choice.name: choice.values for choice in sketch.choices}
        assert "prefetched blocks" not in domains.get("loops", ())


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (product(3, 64, 32), "few rows"),
        (product(32, 61, 32), "a sum that is no multiple of a step"),
        (product(32, 64, 32, constant=False), "lanes that nobody has packed"),
    ],
)
def test_what_tiles_do_not_hold_goes_in_vectors(kernel: FusedKernel, reason: str) -> None:
    assert tiled(narrowed(kernel, DType.U8, DType.I8)) is None, reason


def test_targets_without_tiles_have_no_such_sketch() -> None:
    kernel = narrowed(product(32, 64, 32), DType.U8, DType.I8)
    target = target_named("znver4")
    assert "matrix_tiles" not in {s.name for s in schedule_space(kernel, target).sketches}


@tiles_emulated
def test_code_of_drawn_kernels_computes_what_they_mean() -> None:
    target, found = tiled_host(), Count()

    @DRAWN
    @given(st.data())
    def check(data: st.DataObject) -> None:
        left, right = data.draw(st.sampled_from(PAIRS))
        total = DType.F32 if left.is_float else DType.I32
        kernel = narrowed(data.draw(kernels(total)), left, right)
        threads, seed = data.draw(st.sampled_from([1, 2])), data.draw(st.integers(0, 99))
        space = schedule_space(kernel, target, threads)
        candidate = space.default() if seed % 2 else space.sample(random.Random(seed))
        inputs = values_for(kernel, seed)
        with emulated_tiles() as count:
            outcome = run_guarded(kernel, space.schedule(candidate), inputs, target, threads)
        found.products += count.products
        assert not outcome.problem
        output: Any = outcome.output
        expected: Any = evaluate_kernel(kernel, inputs)
        np.testing.assert_allclose(output, expected, rtol=1e-5 if left.is_float else 0)

    check()
    assert found.products or host_target().matrix_tiles is not None


@tiles_emulated
@pytest.mark.parametrize("threads", [1, 2])
def test_models_in_tiles_are_those_in_vectors(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles are set up by the run and by the threads of its pool, kernel after kernel."""
    graph = import_model_proto(build_model("resnet18", size=Size(image=32, width=0.5, classes=10)))
    target = tiled_host()
    plain = replace(target, features=host_target().features)
    monkeypatch.setattr(
        "tunefarm.compiler.runtime.execution.loaded_program.check_target", lambda target: None
    )
    specs = [
        compile_model(graph, target=made, threads=threads, numerics="bf16").spec
        for made in (target, plain)
    ]
    inputs = random_inputs(specs[0])
    with emulated_tiles() as count:
        (found,) = Executable(specs[0]).run(inputs).values()
        again = Executable(specs[0]).profile(inputs, repeat=1).outputs
    (expected,) = Executable(specs[1]).run(inputs).values()
    assert count.products or host_target().matrix_tiles is not None
    for output in (found, *again.values()):
        assert np.abs(output - expected).max() <= 0.02 * np.abs(expected).max()


def test_tiles_run_where_the_cpu_has_them() -> None:
    target = host_target()
    if target.matrix_tiles is None:
        pytest.skip(f"no run: {host_tile_refusal() or 'this CPU has no matrix tiles'}")
    for left, total in ((DType.U8, DType.I32), (DType.BF16, DType.F32)):
        kernel = narrowed(
            product(70, 256, 96, total=total), left, DType.I8 if left is DType.U8 else left
        )
        assert schedule_space(kernel, target).sketches[0].name == "matrix_tiles"
        inputs = values_for(kernel)
        outcome = run_guarded(kernel, default_schedule(kernel, target), inputs, target)
        output: Any = outcome.output
        expected: Any = evaluate_kernel(kernel, inputs)
        np.testing.assert_allclose(output, expected, rtol=1e-5)
