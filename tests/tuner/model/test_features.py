"""Features of candidates: the values that the names promise."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from tests.tuner.synthetic import TARGET, features, matmul_kernel, small_space, tile_space
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.tuner.model.features import (
    NEST_FEATURES,
    FeatureExtractor,
    FeatureLayout,
)


def test_columns_hold_the_named_values_of_a_worked_example() -> None:
    space, kernel = tile_space(), matmul_kernel(32, 48, 64)
    candidate = space.find(
        "direct", {"tile": (6, 2), "chunk": 64, "unroll": 4, "order": "kmn", "grain": 16}
    )
    assert candidate is not None
    names = FeatureLayout.of([space]).names
    row = dict(zip(names, features(space, kernel, TARGET, [candidate])[0].tolist(), strict=True))
    assert row["sketch"] == 0
    assert (row["tile[0]"], row["tile[1]"]) == (6, 2)
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


def test_the_loops_of_a_worked_example_have_the_values_that_the_names_promise() -> None:
    """A product of 32 x 64 and 64 x 48 in tiles of 8 rows by 3 vectors of 16, 4 steps unrolled.

    Its data are 8 KiB, 12 KiB and 6 KiB: 26 KiB in all, in a first-level cache of 32 KiB.
    """
    kernel = matmul_kernel(32, 48, 64)
    space = schedule_space(kernel, TARGET)
    choices = {
        "tile": (8, 3),
        "loops": "block column",
        "reduce": ("k",),
        "unroll": (4, 1),
        "rest": "peel",
    }
    row = row_of(space, kernel, choices)
    flops, moved = 2 * 32 * 48 * 64, 26 * 1024
    cycles = 4 * 64 * (8 * 3 / 2 + 0.3)  # 4 tiles, 64 steps of 24 multiply-adds, 2 a cycle
    wanted = {
        "nest.flops": math.log2(flops),
        "nest.work": 1,
        "nest.registers": (24 + 3 + 1) / 32,
        "nest.accumulators": 24,
        "nest.reuse": 24 / (8 + 3),
        "nest.body": math.log2(4 * 24),
        "nest.full": 1,
        "nest.lanes": 1,
        "nest.cycles": math.log2(cycles / (flops / 64)),
        "nest.estimate": math.log2(cycles / (flops / 64)),
        "nest.aliased": 1,
        "nest.temporary": 0,
        "parallel.pieces": 0,
        "parallel.grain": math.log2(flops),
        "parallel.balance": 1,
    }
    for cache, size in (("l1", 32768), ("l2", 1 << 20), ("l3", 32 << 20)):
        wanted[f"{cache}.fill"] = wanted[f"{cache}.spill"] = math.log2(moved / size)
        wanted[f"{cache}.streamed"] = 0
        wanted[f"{cache}.intensity"] = math.log2(flops / moved)
    assert set(wanted) == set(NEST_FEATURES)
    for name, value in wanted.items():
        assert row[name] == pytest.approx(value, abs=1e-5), name


def test_what_exceeds_a_cache_is_streamed_again() -> None:
    """512 x 256 and 256 x 1024: of the first-level cache's 32 KiB one tile takes its part.

    Tiles are 8 rows by 3 vectors of 16, "block column": for each block of 48 columns of the result
    all rows are walked. The weights of a block, 256 x 48 x 4 bytes = 48 KiB, do not fit next to the
    rows of a tile, so both come again for each tile; the second-level cache holds the data.
    """
    kernel = matmul_kernel(512, 1024, 256)
    space = schedule_space(kernel, TARGET)
    choices = {
        "tile": (8, 3),
        "loops": "block column",
        "reduce": ("k",),
        "unroll": (4, 1),
        "rest": "peel",
        "prefetch": 0,
        "tail": "peel",
    }
    names = {choice.name for choice in space.sketches[0].choices}
    row = row_of(space, kernel, {k: v for k, v in choices.items() if k in names})
    moved = 4 * (512 * 256 + 256 * 1024 + 512 * 1024)
    tiles = (512 / 8) * (1024 / 48)
    data, weights, result = 4 * 8 * 256, 4 * 256 * 48, 4 * 8 * 48
    streamed = tiles * (data + weights + result)
    assert row["l1.streamed"] == pytest.approx(math.log2(streamed / moved), abs=1e-5)
    assert row["l1.spill"] == pytest.approx(math.log2((data + weights + result) / 32768), abs=1e-5)
    assert row["l1.fill"] < 0 < row["l1.spill"]
    block = 4 * 512 * 256 + weights + 4 * 512 * 48  # all rows, for one block of weights
    assert row["l2.fill"] == pytest.approx(math.log2(block / (1 << 20)), abs=1e-5)
    again = 1024 / 48 * (weights + 4 * 512 * 48) + 4 * 512 * 256  # the data stay where they are
    assert row["l2.streamed"] == pytest.approx(math.log2(again / moved), abs=1e-5)
    assert row["l3.streamed"] == 0


def test_threads_share_what_the_features_say() -> None:
    """22 blocks of 3 vectors for 2 threads, in 2 chunks each: 6 + 6 blocks for the busiest."""
    kernel = matmul_kernel(512, 1024, 256)
    space = schedule_space(kernel, TARGET, 2)
    sketch = space.sketches[0]
    choices = dict(zip((c.name for c in sketch.choices), sketch.default, strict=True))
    row = row_of(space, kernel, choices | {"tile": (8, 3), "loops": "block column", "chunks": 2}, 2)
    assert row["parallel.pieces"] == pytest.approx(math.log2(22))
    assert row["parallel.balance"] == pytest.approx(22 / (2 * 12))
    assert row["parallel.grain"] == pytest.approx(row["nest.flops"] - 2, abs=1e-5)  # 4 chunks


def row_of(
    space: ScheduleSpace, kernel: FusedKernel, choices: dict[str, Any], threads: int = 1
) -> dict[str, float]:
    candidate = space.find(space.sketches[0].name, choices)
    assert candidate is not None, choices
    layout = FeatureLayout.of([space])
    extract = FeatureExtractor(space, kernel, TARGET, layout, threads)
    return dict(zip(layout.names, extract([candidate])[0].tolist(), strict=True))


def test_a_layout_without_a_choice_leaves_it_out() -> None:
    wide, narrow = tile_space(), small_space(3)
    layout = FeatureLayout.of([narrow])
    row = FeatureExtractor(wide, matmul_kernel(), TARGET, layout)([wide.default()])[0]
    known = dict(zip(layout.names, row.tolist(), strict=True))
    assert known["tile[0]"] == 4
    assert math.isnan(known["sketch"])


def test_choices_of_another_sketch_are_missing_values() -> None:
    space = tile_space()
    packed = space.find("packed", {"tile": (1, 1), "chunk": 8, "unroll": 1})
    assert packed is not None
    names = FeatureLayout.of([space]).names
    row = features(space, matmul_kernel(), TARGET, [packed])[0]
    missing = {name for name, value in zip(names, row, strict=True) if np.isnan(value)}
    assert missing == {"grain[0]", "order[0]", *NEST_FEATURES}


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
