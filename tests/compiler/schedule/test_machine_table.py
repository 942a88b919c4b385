"""Default schedules and estimates read the machine's table; results never depend on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.targets import target_named
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.plan.choices.estimate import estimate
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.space import Sketch
from tunefarm.compiler.schedule.spaces import default_schedule, fixed_order, schedule_space
from tunefarm.compiler.schedule.steps.kernel_forms import BlockAttention, ShortFunctions
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import (
    DEFAULT_NUMERICS as FLUSHING,
)
from tunefarm.compiler.types.numerics import (
    DETERMINISTIC_NUMERICS,
    STRICT_NUMERICS,
    Numerics,
)
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

AVX512 = target_named("x86-64-v4")


def with_numbers(section: str, of: Target = AVX512, **numbers: float | None) -> Target:
    """The target with a table that differs from the shipped one in these numbers of a section."""
    shipped = of.machine
    changed: Any = getattr(shipped, section).model_copy(update=numbers)
    return replace(of, table=shipped.model_copy(update={section: changed}))


def conv(channels: int, size: int) -> FusedKernel:
    attributes: dict[str, Attribute] = {"layout": "NCHWc", "pads": (1, 1, 1, 1)}
    data = f32(1, channels // 16, size, size, 16)
    weights = f32(channels, channels, 3, 3)
    return kernel_of([data, weights], [("conv", ["x0", "x1"], attributes)], ["x1"])


def matmul(rows: int, inner: int, columns: int) -> FusedKernel:
    nodes: list[Any] = [("matmul", ["x0", "x1"], {})]
    return kernel_of([f32(rows, inner), f32(inner, columns)], nodes, ["x1"])


def first(kernel: FusedKernel, threads: int = 1, target: Target = AVX512) -> Sketch:
    return schedule_space(kernel, target, threads).sketches[0]


def choices_of(sketch: Sketch) -> dict[str, Any]:
    return dict(zip((choice.name for choice in sketch.choices), sketch.default, strict=True))


def test_winograd_is_default_where_memory_brings_its_filters_in_time() -> None:
    kernel = conv(128, 28)
    assert first(kernel).name.startswith("winograd")
    assert first(kernel, target=with_numbers("memory", read=0.1)).name.startswith("tiled")
    assert first(kernel).name.startswith("winograd"), "tables of one process are apart"


def test_winograd_is_default_where_tiles_read_its_many_filters_fast() -> None:
    kernel = conv(512, 7)
    assert first(kernel).name.startswith("tiled")
    assert first(kernel, target=with_numbers("memory", interleaved=8.0)).name == "winograd2"


def test_winograd_is_no_default_where_threads_meet_longer_than_it_saves() -> None:
    kernel, slow = conv(64, 12), with_numbers("threads", hand_over=1e5)
    assert first(kernel, 2).name.startswith("winograd")
    assert first(kernel, 2, slow).name.startswith("tiled")


def test_threads_share_a_stream_that_outlasts_their_meeting() -> None:
    kernel = matmul(1, 64, 1024)
    assert "chunks" in choices_of(first(kernel, 2))
    assert "chunks" not in choices_of(first(kernel, 2, with_numbers("threads", hand_over=1e6)))


def test_packed_floats_are_asked_for_ahead_where_the_table_says_so() -> None:
    def distance(target: Target, inner: int = 1024) -> object:
        return choices_of(first(matmul(64, inner, 1024), target=target)).get("prefetch")

    assert distance(target_named("skylake-avx512")) == 1024
    assert distance(target_named("znver4")) == distance(AVX512) == 0
    assert distance(target_named("skylake-avx512"), 64) is None, "the second cache holds them"


def test_of_slow_caches_fewer_vectors_are_streamed_for_more_columns() -> None:
    def tile(section: str, read: float) -> tuple[int, int]:
        target = with_numbers(section, read=read)
        columns, vectors = choices_of(first(matmul(13, 512, 512), target=target))["tile"]
        return int(columns), int(vectors)

    assert tile("l2", 6.0) == (13, 1) and tile("l2", 48.0) == (13, 2)
    assert tile("l1", 16.0) == (6, 4), "fewest loads a product"


def recurrence(units: int, rows: int = 1) -> FusedKernel:
    """An LSTM's steps."""
    zeros, types = (0.0,) * 3, [f32(1, 40, rows, 4, units), f32(1, units, 4, units)]
    functions: dict[str, Attribute] = {"activations": ("tanh",) * 3, "alphas": zeros}
    functions |= {"kind": "LSTM", "betas": zeros}
    return kernel_of(types, [("recurrence", ["x0", "x1"], functions)], ["x1"])


def test_recurrences_read_as_few_weights_a_turn_as_come_ahead_from_the_second_cache() -> None:
    def tile(units: int, stride: int | None) -> tuple[Any, ...]:
        sketch = first(recurrence(units), target=with_numbers("l2", stride=stride))
        return tuple(choices_of(sketch)[name] for name in ("product", "unroll"))

    assert tile(128, 512) == ((1, 2), 1) and tile(128, None) == ((1, 4), 4)
    for units in (32, 512):  # nearer, and beyond
        assert tile(units, 512) == tile(units, None)


def test_rows_of_a_recurrence_share_what_comes_from_the_second_cache() -> None:
    target = with_numbers("l2", stride=512)
    assert choices_of(first(recurrence(64, 2), target=target))["product"] == (2, 2)


def test_recurrences_turn_back_where_the_second_cache_does_not_hold_their_weights() -> None:
    def order(units: int, target: Target) -> str:
        return str(choices_of(first(recurrence(units, 4), target=target))["order"])

    slow = with_numbers("l3", read=14.0)
    assert order(128, slow) == "forward" and order(512, slow) == "alternating"
    assert order(512, AVX512) == "forward", "the last cache is fast enough"
    assert order(512, target_named("skylake-avx512")) == "alternating"


def test_threads_share_units_of_a_recurrence_whose_weights_each_of_them_would_read() -> None:
    def shared(units: int, rows: int) -> str:
        return str(choices_of(first(recurrence(units, rows), 2))["shared"])

    assert shared(128, 4) == shared(256, 8) == "rows"
    assert shared(256, 4) == shared(512, 8) == "units"


def test_loops_keep_in_the_second_cache_what_comes_slowly_from_beyond() -> None:
    attributes: dict[str, Attribute] = {"layout": "NCHWc", "strides": (2, 2)}
    types = [f32(1, 16, 56, 56, 16), f32(512, 256, 1, 1)]
    kernel = kernel_of(types, [("conv", ["x0", "x1"], attributes)], ["x1"])
    assert choices_of(first(kernel))["loops"] == "row block column"
    fast = choices_of(first(kernel, target=with_numbers("l3", read=1e6)))
    assert fast["loops"] == "block row column"


def test_half_the_rate_of_multiply_adds_takes_a_product_twice_the_time() -> None:
    kernel = matmul(256, 256, 256)
    before = estimate(kernel, AVX512).seconds
    assert 1.7 < estimate(kernel, with_numbers("vectors", fma=1.0)).seconds / before < 2.1


def test_data_comes_at_the_rate_of_the_cache_that_holds_it() -> None:
    def seconds(count: int, target: Target = AVX512) -> float:
        return estimate(kernel_of([f32(count)], [("relu", ["x0"], {})]), target).seconds

    sizes = {"l2": 1 << 15, "l3": 1 << 19, "memory": 1 << 24}
    before = {section: seconds(count) for section, count in sizes.items()}
    for slow in sizes:
        target = with_numbers(slow, read=1.0)
        for section, count in sizes.items():
            assert (seconds(count, target) > 2 * before[section]) == (section == slow)


def test_functions_are_short_where_the_table_says_so_and_rounding_is_free() -> None:
    zen3 = target_named("znver3")
    softmax, tanh, power = (
        kernel_of([f32(64, 100)], [(name, ["x0"], attributes)])
        for name, attributes in (("softmax", {"axis": 1}), ("tanh", {}), ("exp", {}))
    )

    def is_short(kernel: FusedKernel, target: Target, numerics: Numerics = FLUSHING) -> bool:
        steps = default_schedule(kernel, target, 1, numerics).steps
        return steps[:1] == (ShortFunctions(),)

    assert is_short(softmax, zen3) and is_short(tanh, zen3)
    assert not is_short(power, zen3), "its operand may be positive"
    assert not is_short(softmax, target_named("x86-64-v3")), "measured on no such CPU"
    for exact in STRICT_NUMERICS, DETERMINISTIC_NUMERICS, replace(FLUSHING, denormals="keep"):
        assert not is_short(tanh, zen3, exact)


def test_attention_is_computed_in_blocks_of_keys_with_short_functions_too() -> None:
    factors = [f32(1, 2, 64, 32)] * 3
    attention = kernel_of(factors, [("attention", ["x0", "x1", "x2"], {})])
    steps = default_schedule(attention, target_named("znver3")).steps
    assert steps[0] == ShortFunctions() and isinstance(steps[1], BlockAttention)


def test_schedules_of_all_families_apply_to_kernels_with_short_functions() -> None:
    zen3 = target_named("znver3")
    attributes: dict[str, Attribute] = {"layout": "NCHWc", "pads": (1, 1, 1, 1)}
    blocks = [f32(1, 8, 28, 28, 8), f32(64, 64, 3, 3)]
    product: list[Any] = [("matmul", ["x0", "x1"], {}), ("tanh", ["v0"], {})]
    convolution: list[Any] = [("conv", ["x0", "x1"], attributes), ("tanh", ["v0"], {})]
    total: list[Any] = [("tanh", ["x0"], {}), ("reduce_sum", ["v0"], {"axes": (1,)})]
    kernels = [
        recurrence(64),
        kernel_of([f32(64, 64), f32(64, 64)], product, ["x1"]),
        kernel_of(blocks, convolution, ["x1"]),
        kernel_of([f32(64, 100)], total),
    ]
    for kernel in kernels:
        for sketch in schedule_space(kernel, zen3).sketches:
            chosen = zip((choice.name for choice in sketch.choices), sketch.default, strict=True)
            schedule = sketch.build(dict(chosen))
            assert schedule.steps[0] == ShortFunctions()
            lower(kernel, schedule)


def test_the_order_of_sums_that_all_cpus_share_does_not_depend_on_a_table() -> None:
    kernels = (conv(64, 14), matmul(6, 640, 256))
    before = [fixed_order(kernel, AVX512) for kernel in kernels]
    schedules = [default_schedule(kernel, AVX512) for kernel in kernels]
    other = with_numbers("vectors", fma=0.1, fma_latency=100.0)
    assert [default_schedule(kernel, other) for kernel in kernels] != schedules
    assert [fixed_order(kernel, other) for kernel in kernels] == before


def test_a_stream_that_hardware_follows_is_asked_for_where_digits_take_long() -> None:
    def words_ahead(bits: int, rows: int, ahead: int | None) -> object:
        words = TensorType(DType.I32, (1024 * bits // 32, 64))
        attributes: dict[str, Attribute] = {"bits": bits, "block": 128}
        nodes: list[Any] = [("weight_product", ["x0", "x1", "x2"], attributes)]
        kernel = kernel_of([f32(rows, 1024), words, f32(8, 64)], nodes, ["x1", "x2"])
        target = with_numbers("memory", target_named("icelake-server"), ahead=ahead)
        return choices_of(first(kernel, target=target))["prefetch"]

    assert words_ahead(8, 1, 0) == 0 and words_ahead(8, 1, 4096) == words_ahead(8, 1, None) == 1024
    assert words_ahead(4, 1, 0) == words_ahead(8, 6, 0) == 1024
