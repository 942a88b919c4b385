"""Estimates compare kernels as measurements do: more work, other lanes and more bytes cost more."""

from __future__ import annotations

import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.targets import target_named
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.plan.choices.estimate import CALL, HERTZ, Estimator, estimate
from tunefarm.compiler.schedule.space import ScheduleSpace, Sketch
from tunefarm.compiler.schedule.spaces import SpaceCache, naive_schedule, schedule_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import STRICT_NUMERICS
from tunefarm.compiler.types.tensor_type import Attribute

AVX2, AVX512 = (target_named(name) for name in ("x86-64-v3", "x86-64-v4"))
BLOCK = 16


def conv(
    inputs: int, outputs: int, size: int, taps: int = 1, stride: int = 1, groups: int = 1
) -> FusedKernel:
    """A convolution of blocks, its channels padded to whole ones, as in a graph."""
    channels = [-(-each // BLOCK) * BLOCK for each in (inputs, outputs)]
    attributes: dict[str, Attribute] = {
        "layout": "NCHWc",
        "pads": (taps // 2,) * 4,
        "strides": (stride, stride),
        "groups": groups if groups == 1 else channels[0],
    }
    of_weights = (channels[1], 1 if groups > 1 else channels[0], taps, taps)
    data = f32(1, channels[0] // BLOCK, size, size, BLOCK)
    return kernel_of([data, f32(*of_weights)], [("conv", ["x0", "x1"], attributes)], ["x1"])


def pointwise(operator: str, *shape: int) -> FusedKernel:
    return kernel_of([f32(*shape)], [(operator, ["x0"], {})])


def to_blocked(channels: int, height: int, width: int) -> FusedKernel:
    nodes = [("to_blocked", ["x0"], {"block": BLOCK})]
    return kernel_of([f32(1, channels, height, width)], nodes)


def from_blocked(channels: int, height: int, width: int) -> FusedKernel:
    data = f32(1, -(-channels // BLOCK), height, width, BLOCK)
    return kernel_of([data], [("from_blocked", ["x0"], {"channels": channels})])


def seconds(kernel: FusedKernel, target: Target = AVX512) -> float:
    return estimate(kernel, target).seconds


def work(kernel: FusedKernel, target: Target = AVX512) -> float:
    """Seconds without those of the call."""
    return seconds(kernel, target) - CALL / HERTZ


@pytest.mark.parametrize("taps", [1, 3])
def test_more_of_anything_takes_longer(taps: int) -> None:
    least = seconds(conv(32, 32, 14, taps))
    assert seconds(conv(64, 32, 14, taps)) > 1.5 * least
    assert seconds(conv(32, 64, 14, taps)) > 1.5 * least
    assert seconds(conv(32, 32, 28, taps)) > 2 * least


@pytest.mark.parametrize("target", [AVX2, AVX512])
def test_a_product_is_near_the_peak_of_its_target(target: Target) -> None:
    found = estimate(
        kernel_of([f32(256, 256), f32(256, 256)], [("matmul", ["x0", "x1"], {})], ["x1"]), target
    )
    peak = 256**3 / (target.vector_bytes / 4) / 2 / HERTZ
    assert found.kind == "product" and 0.9 * peak < found.seconds < 1.5 * peak


def test_lanes_that_pad_channels_cost_what_channels_cost() -> None:
    assert seconds(conv(24, 40, 28)) == seconds(conv(32, 48, 28))
    assert seconds(conv(24, 40, 28)) > seconds(conv(16, 32, 28))


def test_rows_that_end_in_part_of_a_vector_cost_whole_ones() -> None:
    """Functions of 7x7 planes in rows take vectors of which seven lanes are of use."""

    def of(width: int) -> FusedKernel:
        each: dict[str, Attribute] = {"pads": (1, 1, 1, 1), "groups": 64}
        nodes = [("conv", ["x0", "x1"], each), ("sigmoid", ["v0"], {})]
        return kernel_of([f32(1, 64, 14, width), f32(64, 1, 3, 3)], nodes, ["x1"])

    assert estimate(of(17), AVX512).kind == "window of rows"
    assert work(of(17)) > 1.5 * work(of(16))


@pytest.mark.parametrize(("height", "width"), [(28, 28), (56, 56)])
def test_conversions_cost_their_bytes(height: int, width: int) -> None:
    once, twice = (work(to_blocked(channels, height, width)) for channels in (16, 32))
    assert 1.9 * once < twice < 2.1 * once
    assert estimate(to_blocked(16, height, width), AVX512).kind == "transposed"


def test_data_beyond_a_cache_costs_more_a_byte() -> None:
    sizes = [1 << power for power in (14, 20, 24)]
    a_byte = [work(pointwise("relu", size)) / size for size in sizes]
    assert a_byte[0] < a_byte[1] < a_byte[2]


def test_rows_of_planes_of_pages_are_written_slowly() -> None:
    whole = work(from_blocked(32, 30, 30))
    assert work(from_blocked(24, 30, 30)) < whole
    assert work(from_blocked(32, 32, 32)) > 1.5 * whole
    assert work(to_blocked(32, 32, 32)) < 1.5 * whole


def test_functions_of_many_instructions_count() -> None:
    assert work(pointwise("sigmoid", 1 << 14)) > 2 * work(pointwise("relu", 1 << 14))
    assert work(pointwise("erf", 1 << 14)) > 1.5 * work(pointwise("sigmoid", 1 << 14))


def test_of_sides_that_exclude_each_other_the_dearer_counts() -> None:
    nodes = [
        ("sigmoid", ["x0"], {}),
        ("erf", ["x1"], {}),
        ("concat", ["v0", "v1"], {"axis": 1}),
    ]
    both = work(kernel_of([f32(64, 512), f32(64, 512)], nodes))
    assert both < 1.2 * work(pointwise("erf", 64, 1024))


def test_winograd_is_estimated_as_the_faster_algorithm_that_it_is() -> None:
    kernel = conv(64, 64, 56, 3)
    found, direct = estimate(kernel, AVX512), estimate(kernel, AVX512, numerics=STRICT_NUMERICS)
    assert (found.kind, direct.kind) == ("winograd", "product")
    assert 1.5 < direct.seconds / found.seconds < 3


def test_winograd_gains_as_much_where_register_tiles_go_on_in_another_row() -> None:
    kernel = conv(64, 64, 20, 3)
    assert schedule_space(kernel, AVX512).sketches[0].default[0] == 5, "rows of tiles"
    found, direct = estimate(kernel, AVX512), estimate(kernel, AVX512, numerics=STRICT_NUMERICS)
    assert 1.5 < direct.seconds / found.seconds < 3


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        (conv(32, 32, 28, groups=2, taps=3), "window"),
        (conv(32, 32, 28), "product"),
        (conv(32, 32, 28, stride=2), "product"),
        (conv(32, 64, 1), "product"),
        (pointwise("relu", 1 << 12), "row_wise"),
    ],
)
def test_kinds_are_told_apart(kernel: FusedKernel, kind: str) -> None:
    assert estimate(kernel, AVX512).kind == kind


def test_more_threads_share_what_is_large() -> None:
    large = conv(256, 256, 56)
    assert estimate(large, AVX512, threads=2).seconds < 0.7 * seconds(large)
    small = pointwise("relu", 64)
    assert estimate(small, AVX512, threads=2).seconds >= seconds(small)


def test_the_thread_with_most_pieces_is_waited_for() -> None:
    rows = kernel_of([f32(3, 1 << 15)], [("softmax", ["x0"], {"axis": 1})])
    alone, two, three, four = (estimate(rows, AVX512, threads=n).seconds for n in (1, 2, 3, 4))
    assert three == four < 0.4 * alone
    assert two > 2 / 3 * alone


def test_a_kernel_without_vectors_is_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = conv(32, 32, 14)
    fast = estimate(kernel, AVX512)
    naive = Sketch("naive", (), lambda _: naive_schedule(), ())
    monkeypatch.setattr(SpaceCache, "of", lambda *_: ScheduleSpace([naive]))
    slow = estimate(kernel, AVX512)
    assert slow.kind == "scalar" and slow.seconds > 20 * fast.seconds


def test_each_kernel_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator, kernel = Estimator(SpaceCache(AVX512)), conv(32, 32, 14)
    first = estimator(kernel)
    assert first == estimate(kernel, AVX512)
    monkeypatch.setattr(SpaceCache, "of", None)
    assert estimator(conv(32, 32, 14)) is first
