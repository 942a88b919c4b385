"""Packed candidates: the same points, numbers and moves as the space they come from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.synthetic import small_space, tile_space
from tunefarm.compiler.schedule.space import ScheduleSpace
from tunefarm.tuner.model.packed_space import PackedSpace, distances

SPACES = [tile_space(), small_space(), small_space(7)]


@given(space=st.sampled_from(SPACES), seed=st.integers(0, 1000))
def test_rows_and_numbers_are_those_of_the_space(space: ScheduleSpace, seed: int) -> None:
    packed = PackedSpace(space)
    rows = packed.sample(20, np.random.default_rng(seed))
    candidates = [packed.unpack(row) for row in rows]
    assert packed.numbers(rows).tolist() == [space.number(c) for c in candidates]
    np.testing.assert_array_equal(packed.rows(packed.numbers(rows)), rows)
    np.testing.assert_array_equal(packed.pack(candidates), rows)


def test_every_number_has_its_row() -> None:
    packed = PackedSpace(tile_space())
    numbers = np.arange(packed.size)
    np.testing.assert_array_equal(packed.numbers(packed.rows(numbers)), numbers)


def test_samples_reach_every_sketch_and_value() -> None:
    packed = PackedSpace(tile_space())
    rows = packed.sample(4000, np.random.default_rng(0))
    for sketch, sizes in enumerate(packed.sizes):
        here = rows[rows[:, 0] == sketch, 1:]
        for column, size in enumerate(sizes):
            assert set(here[:, column].tolist()) == set(range(size))


@given(space=st.sampled_from(SPACES[:1] + SPACES[2:]), seed=st.integers(0, 1000))
def test_a_mutation_moves_exactly_one_choice(space: ScheduleSpace, seed: int) -> None:
    packed, rng = PackedSpace(space), np.random.default_rng(seed)
    rows = packed.sample(50, rng)
    mutants = packed.mutate(rows, rng)
    assert (mutants[:, 0] == rows[:, 0]).all()
    assert ((mutants != rows).sum(axis=1) == 1).all()
    assert (mutants[:, 1:] >= 0).all()
    assert (mutants[:, 1:] < packed.sizes[mutants[:, 0]]).all()


def test_mutations_are_mostly_to_adjacent_values() -> None:
    packed, rng = PackedSpace(small_space(100)), np.random.default_rng(0)
    rows = np.full((3000, 2), 50)
    rows[:, 0] = 0
    steps = np.abs(packed.mutate(rows, rng)[:, 1] - 50)
    assert 0.6 < (steps == 1).mean() < 0.75
    assert steps.max() > 30


def test_a_space_of_one_point_mutates_to_itself() -> None:
    packed, rng = PackedSpace(small_space()), np.random.default_rng(0)
    assert packed.mutate(packed.sample(3, rng), rng).tolist() == [[0, 0]] * 3


def test_children_take_each_choice_from_either_parent() -> None:
    packed, rng = PackedSpace(tile_space()), np.random.default_rng(0)
    mothers, fathers = packed.sample(200, rng), packed.sample(200, rng)
    children = packed.crossover(mothers, fathers, rng)
    assert ((children == mothers) | (children == fathers)).all()
    others = mothers[:, 0] != fathers[:, 0]
    assert others.any()
    np.testing.assert_array_equal(children[others], mothers[others])
    assert ((children != mothers).any(axis=1) & (children != fathers).any(axis=1)).any()


def test_neighbours_differ_in_one_choice_and_are_all_there() -> None:
    packed = PackedSpace(tile_space())
    row = packed.pack([tile_space().default()])[0]
    near = packed.neighbours(row)
    assert (distances(near, row) == 1).all()
    assert len(np.unique(packed.numbers(near))) == len(near) == (packed.sizes[row[0]] - 1).sum()
    assert PackedSpace(small_space()).neighbours(np.array([0, 0])).shape == (0, 2)


@pytest.mark.parametrize("space", SPACES)
def test_other_sketches_are_far(space: ScheduleSpace) -> None:
    packed = PackedSpace(space)
    rows = packed.sample(30, np.random.default_rng(0))
    far = distances(rows, rows[0])
    assert ((far > 1) | (rows[:, 0] == rows[0, 0])).all()
