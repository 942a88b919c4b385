"""Schedule spaces: numbering, neighbours, search moves, and that every point of one is legal."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.schedule.small_kernels import f32, kernel_from, kernel_of
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.llvm.emit_kernel import emit_kernel
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.space import Candidate, Choice, ScheduleSpace, Sketch
from tunefarm.compiler.schedule.spaces import default_schedule, schedule_space, untiled_schedule
from tunefarm.compiler.schedule.steps.kernel_forms import Winograd
from tunefarm.compiler.schedule.steps.tiles import Tile
from tunefarm.compiler.target import host_target

SOME = settings(max_examples=60, deadline=None, derandomize=True, database=None)
TARGET = replace(host_target(), vector_bytes=32, vector_registers=16)


def _abstract(name: str, *sizes: int) -> Sketch:
    """A sketch with choices of these many values; the schedule tells them."""
    choices = tuple(Choice(f"c{i}", tuple(range(size))) for i, size in enumerate(sizes))

    def build(assignment: object) -> Schedule:
        return Schedule((Tile(name, str(assignment), 1),))

    return Sketch(name, choices, build, tuple(size - 1 for size in sizes))


@st.composite
def spaces(draw: st.DrawFn) -> ScheduleSpace:
    sizes = draw(st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=3))
    return ScheduleSpace([_abstract(f"sketch{i}", *item) for i, item in enumerate(sizes)])


KERNELS: dict[str, FusedKernel] = {
    "conv": kernel_from(
        "[1,2,7,7,8] const [16,16,3,3] const [16]; conv x0 x1 x2 layout=NCHWc pads=(1,1,1,1); "
        "relu v0"
    ),
    "conv1x1_odd": kernel_from("[1,1,1,5,8] const [24,8,1,1]; conv x0 x1 layout=NCHWc"),
    "matmul": kernel_from("[13,19] const [19,40]; matmul x0 x1"),
    "matmul_odd": kernel_from("[2,7,13] [2,13,19]; matmul x0 x1"),
    "pool": kernel_from("[1,3,4,5]; max_pool x0 kernel=(2,3) pads=(0,1,0,1) shape=(3,5)"),
    "softmax": kernel_from("[97,193]; softmax x0 axis=1"),
    "layer_norm": kernel_from("[5,97] const [97] const [97]; layer_norm x0 x1 x2 axis=1"),
    "pad": kernel_from("[5,7]; pad x0 pads=(1,2,3,9) value=2.0"),
    "scalar": kernel_from("[] []; add x0 x1"),
}


@SOME
@given(spaces())
def test_candidates_are_numbered(space: ScheduleSpace) -> None:
    candidates = [space.candidate(number) for number in range(space.size)]
    assert len(set(candidates)) == space.size == sum(sketch.size for sketch in space.sketches)
    assert [space.number(candidate) for candidate in candidates] == list(range(space.size))
    for outside in (-1, space.size):
        with pytest.raises(IndexError):
            space.candidate(outside)


@SOME
@given(spaces())
def test_a_candidate_is_found_by_its_choices(space: ScheduleSpace) -> None:
    for number in range(space.size):
        candidate = space.candidate(number)
        choices = space.choices(candidate)
        assert space.find(candidate.sketch, choices) == candidate
        # Through the record in a database: JSON.
        assert space.find(candidate.sketch, json.loads(json.dumps(choices))) == candidate
        assert space.find("elsewhere", choices) is None
        assert space.find(candidate.sketch, {**choices, "extra": 1}) is None
        if choices:
            assert space.find(candidate.sketch, {**choices, "c0": 99}) is None


@SOME
@given(spaces(), st.randoms(use_true_random=False))
def test_samples_and_the_default_are_inside(space: ScheduleSpace, rng: random.Random) -> None:
    for candidate in (space.sample(rng), space.default()):
        assert 0 <= space.number(candidate) < space.size


def test_a_space_has_sketches_and_knows_their_names() -> None:
    with pytest.raises(ScheduleError, match="no sketch"):
        ScheduleSpace([])
    space = ScheduleSpace([_abstract("one", 2), _abstract("two", 3)])
    with pytest.raises(
        ScheduleError, match=r"no sketch 'three' in this space \(it has: one, two\)"
    ):
        space.schedule(Candidate("three", ()))
    with pytest.raises(ScheduleError, match="no sketch 'three'"):
        space.number(Candidate("three", ()))


def test_values_are_numbers_by_themselves_or_by_their_position() -> None:
    tuples = Choice("tile", ((4, 1), (2, 3)))
    orders = Choice("reduce", (("kh", "kw"), ("kw", "kh")))
    assert tuples.numbers((2, 3)) == (2, 3)
    assert orders.numbers(("kw", "kh")) == (1,)
    assert Choice("padding", ("inline", "copy")).numbers("copy") == (1,)
    assert Choice("rows", (1, 2, 7)).numbers(7) == (7,)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_the_default_is_in_the_space(name: str, threads: int) -> None:
    space = schedule_space(KERNELS[name], TARGET, threads)
    default = space.default()
    assert default.sketch == space.sketches[0].name
    assert space.candidate(space.number(default)) == default
    assert space.schedule(default) == default_schedule(KERNELS[name], TARGET, threads)
    for sketch in space.sketches:
        for choice, value in zip(sketch.choices, sketch.default, strict=True):
            assert value in choice.values
            assert len(set(choice.values)) == len(choice.values)


def _conv3x3(blocks: int, size: int) -> FusedKernel:
    channels = 8 * blocks
    return kernel_of(
        [f32(1, blocks, size, size, 8), f32(channels, channels, 3, 3)],
        [("conv", ["x0", "x1"], {"layout": "NCHWc", "pads": (1, 1, 1, 1)})],
        constants=["x1"],
    )


def test_winograd_is_the_default_where_it_pays_and_numerics_allow_it() -> None:
    deep, narrow = _conv3x3(16, 28), _conv3x3(1, 28)
    assert Winograd(4) in default_schedule(deep, TARGET).steps
    assert not any(isinstance(s, Winograd) for s in default_schedule(narrow, TARGET).steps)
    strict = schedule_space(deep, TARGET, numerics="strict")
    assert not any("winograd" in sketch.name for sketch in strict.sketches)
    plain = default_schedule(deep, TARGET, numerics="strict")
    assert not any(isinstance(step, Winograd) for step in plain.steps)
    assert not any(isinstance(step, Winograd) for step in untiled_schedule(deep, TARGET).steps)


def test_filters_too_large_for_the_caches_get_smaller_tiles() -> None:
    large = replace(TARGET, l2_bytes=512 * 1024)
    assert Winograd(2) in default_schedule(_conv3x3(64, 7), large).steps


def _conv1x1(blocks: int, size: int) -> FusedKernel:
    channels = 8 * blocks
    return kernel_of(
        [f32(1, blocks, size, size, 8), f32(channels, channels, 1, 1), f32(channels)],
        [("conv", ["x0", "x1", "x2"], {"layout": "NCHWc"}), ("relu", ["v0"], {})],
        constants=["x1", "x2"],
    )


def test_rows_and_columns_of_a_pointwise_convolution_are_one_axis_by_default() -> None:
    space = schedule_space(_conv1x1(8, 14), TARGET)
    assert [sketch.name for sketch in space.sketches] == ["tiled_merged", "tiled"]


def test_data_beyond_the_second_level_cache_is_walked_in_blocks_of_columns() -> None:
    small = replace(TARGET, l2_bytes=64 * 1024)
    kernel = _conv1x1(32, 14)  # 256 channels of 4 bytes: 64 columns fill the cache
    orders = {c.name: c for c in schedule_space(kernel, small).sketches[0].choices}["loops"]
    assert orders.values == ("columns24 block column", "block column", "column block")
    shared = {c.name: c for c in schedule_space(kernel, small, 2).sketches[0].choices}["loops"]
    plain = ("block column", "column block", "shared block column")
    assert shared.values == (*plain, "columns22 block column")
    plenty = replace(TARGET, l2_bytes=1 << 20)
    orders = {c.name: c for c in schedule_space(kernel, plenty).sketches[0].choices}["loops"]
    assert orders.values == ("block column", "column block")


@pytest.mark.parametrize("name", KERNELS)
def test_schedules_survive_json(name: str) -> None:
    space = schedule_space(KERNELS[name], TARGET, 2)
    rng = random.Random(name)
    for candidate in (space.default(), *(space.sample(rng) for _ in range(10))):
        schedule = space.schedule(candidate)
        assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


@pytest.mark.parametrize("name", KERNELS)
def test_spaces_are_the_same_each_time(name: str) -> None:
    first, second = (schedule_space(KERNELS[name], TARGET, 2) for _ in range(2))
    rng = random.Random(name)
    for number in [rng.randrange(first.size) for _ in range(10)]:
        candidate = first.candidate(number)
        assert second.candidate(number) == candidate
        assert second.choices(candidate) == first.choices(candidate)
        assert second.schedule(candidate) == first.schedule(candidate)


SMALL_SPACES = {
    "matmul_odd": 1,
    "pool": 2,
    "softmax": 2,
    "layer_norm": 2,
    "pad": 2,
    "scalar": 2,
}


LARGEST = "softmax"  # takes longer than all the others


@pytest.mark.parametrize(
    ("name", "every"),
    [
        *((name, 32 if name == LARGEST else 4) for name in SMALL_SPACES),
        *(pytest.param(name, 1, marks=pytest.mark.nightly) for name in SMALL_SPACES),
    ],
)
def test_every_candidate_of_a_small_space_is_legal(name: str, every: int) -> None:
    """Lowers, keeps the rules of loops, and gives code: a part of the space, all of it by night."""
    kernel, threads = KERNELS[name], SMALL_SPACES[name]
    space = schedule_space(kernel, TARGET, threads)
    schedules = {space.schedule(space.candidate(number)) for number in range(0, space.size, every)}
    for schedule in schedules:
        nest = lower(kernel, schedule)
        verify_loops(nest)
        emit_kernel(nest, TARGET, "kernel")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_a_sample_of_any_space_is_legal(name: str, threads: int) -> None:
    kernel = KERNELS[name]
    space = schedule_space(kernel, TARGET, threads)
    rng = random.Random(name)
    for _ in range(12):
        verify_loops(lower(kernel, space.schedule(space.sample(rng))))
