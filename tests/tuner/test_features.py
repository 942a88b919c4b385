"""Features of candidates: the values that the names promise."""

from __future__ import annotations

import random

import numpy as np

from compiler.schedule.space import Candidate
from tests.tuner.synthetic import TARGET, matmul_kernel, small_space, tile_space
from tuner.features import FeatureExtractor, FeatureLayout, features, kernel_bytes, kernel_flops


def test_columns_hold_the_named_values_of_a_worked_example() -> None:
    space, kernel = tile_space(), matmul_kernel(32, 48, 64)
    candidate = space.find(
        "direct", {"tile": (6, 2), "chunk": 64, "unroll": 4, "order": "kmn", "grain": 16}
    )
    assert candidate is not None
    names = FeatureLayout.of([space]).names
    row = dict(zip(names, features(space, kernel, TARGET, [candidate])[0].tolist(), strict=True))
    assert row["sketch"] == 0
    assert (row["tile[0]"], row["tile[1]"], row["tile[*]"]) == (6, 2, 12)
    assert (row["chunk[0]"], row["unroll[0]"], row["grain[0]"]) == (64, 4, 16)
    assert row["order[0]"] == 2  # third in its domain
    assert row["kernel.flops"] == 2 * 32 * 48 * 64
    assert row["kernel.bytes"] == 4 * (32 * 64 + 64 * 48 + 32 * 48)
    assert row["kernel.reduction"] == 64
    assert row["kernel.output"] == 32 * 48
    assert (row["kernel.extent[0]"], row["kernel.extent[1]"], row["kernel.extent[2]"]) == (
        48,
        32,
        1,
    )
    assert (row["kernel.reduce[0]"], row["kernel.reduce[1]"]) == (64, 1)
    assert (row["kernel.stages"], row["kernel.prologue"], row["kernel.inputs"]) == (1, 0, 2)
    assert (row["target.lanes"], row["target.vector_registers"]) == (16, 32)


def test_choices_of_another_sketch_are_missing_values() -> None:
    space = tile_space()
    packed = space.find("packed", {"tile": (1, 1), "chunk": 8, "unroll": 1})
    assert packed is not None
    names = FeatureLayout.of([space]).names
    row = features(space, matmul_kernel(), TARGET, [packed])[0]
    missing = {name for name, value in zip(names, row, strict=True) if np.isnan(value)}
    assert missing == {"grain[0]", "order[0]"}


def test_rows_do_not_depend_on_the_other_candidates() -> None:
    space, kernel = tile_space(), matmul_kernel()
    rng = random.Random(1)
    candidates = [space.sample(rng) for _ in range(40)]
    together = features(space, kernel, TARGET, candidates)
    alone = [features(space, kernel, TARGET, [candidate])[0] for candidate in candidates]
    np.testing.assert_array_equal(together, np.stack(alone))


def test_spaces_of_one_layout_share_columns_by_choice_name() -> None:
    wide, narrow = tile_space(), small_space(3)
    layout = FeatureLayout.of([wide, narrow])
    kernel = matmul_kernel()
    first = FeatureExtractor(wide, kernel, TARGET, layout)([wide.default()])
    second = FeatureExtractor(narrow, kernel, TARGET, layout)([Candidate("only", (2,))])
    assert first.shape == second.shape == (1, len(layout.names))
    column = layout.names.index("tile[0]")
    assert (first[0, column], second[0, column]) == (4, 3)
    assert first[0, 0] != second[0, 0]


def test_layout_does_not_depend_on_the_order_of_spaces() -> None:
    assert FeatureLayout.of([tile_space(), small_space()]) == FeatureLayout.of(
        [small_space(), tile_space()]
    )


def test_no_candidates_give_no_rows() -> None:
    assert features(tile_space(), matmul_kernel(), TARGET, []).shape[0] == 0


def test_flops_and_bytes_count_every_extent() -> None:
    kernel = matmul_kernel(1, 7, 13)
    assert kernel_flops(kernel) == 2 * 7 * 13
    assert kernel_bytes(kernel) == 4 * (13 + 13 * 7 + 7)
