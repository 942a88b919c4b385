"""Features of candidates: the values that the names promise."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.tuner.synthetic import TARGET, features, matmul_kernel, small_space, tile_space
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.tuner.model.features import (
    ESTIMATE,
    FEATURES,
    LOOP_FEATURES,
    NEST_FEATURES,
    SCORE,
    FeatureExtractor,
    FeatureMatrix,
)


def test_columns_hold_the_named_values_of_a_worked_example() -> None:
    space, kernel = tile_space(), matmul_kernel(32, 48, 64)
    candidate = space.find(
        "direct", {"tile": (6, 2), "chunk": 64, "unroll": 4, "order": "kmn", "grain": 16}
    )
    assert candidate is not None
    row = dict(zip(FEATURES, features(space, kernel, TARGET, [candidate])[0].tolist(), strict=True))
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
    extract = FeatureExtractor(space, kernel, TARGET, threads)
    return dict(zip(FEATURES, extract([candidate])[0].tolist(), strict=True))


def test_loops_are_named_from_the_innermost_whatever_their_axes_are_called() -> None:
    """The product of 512 x 256 and 256 x 1024 in tiles of 8 rows by 3 vectors, 4 steps unrolled."""
    kernel = matmul_kernel(512, 1024, 256)
    space = schedule_space(kernel, TARGET)
    sketch = space.sketches[0]
    choices = dict(zip((c.name for c in sketch.choices), sketch.default, strict=True))
    choices |= {"tile": (8, 3), "loops": "block column", "unroll": (4, 1), "rest": "peel"}
    row = row_of(space, kernel, choices)
    assert (row["body.rows"], row["body.columns"]) == pytest.approx((math.log2(48), 3))
    assert row["body.reduce"] == 2
    steps, rows, blocks = (row[f"loop.trips[{i}]"] for i in range(3))
    assert (steps, rows) == (math.log2(256 / 4), math.log2(512 / 8))
    assert blocks == pytest.approx(math.log2(1024 / 48))
    assert [row[f"loop.reduces[{i}]"] for i in range(3)] == [1, 0, 0]
    assert row["loop.stride[1]"] == pytest.approx(math.log2(1 + 4 * 1024))  # of the output
    assert row["loop.trips[3]"] == 0
    assert row["body.overlapped"] == 1  # the last block of columns
    even = row_of(space, kernel, choices | {"tile": (8, 2)})
    assert even["body.overlapped"] == 0
    uneven = choices | {"tile": (6, 2)}
    ends = [row_of(space, kernel, uneven | {"rest": end}) for end in ("peel", "shift")]
    assert [end["body.overlapped"] for end in ends] == [0, 1]


def test_what_no_loop_shows_has_columns_of_its_own() -> None:
    """Prefetching is a choice that leaves all loops as they are."""
    kernel = matmul_kernel(256, 1024, 1024)
    space = schedule_space(kernel, TARGET)
    sketch = space.sketches[0]
    choices = dict(zip((c.name for c in sketch.choices), sketch.default, strict=True))
    (domain,) = (choice.values for choice in sketch.choices if choice.name == "prefetch")
    rows = [row_of(space, kernel, choices | {"prefetch": value}) for value in domain]
    assert len({row["body.ahead"] for row in rows}) == len(domain) > 1
    assert len({row["nest.estimate"] for row in rows}) == 1


def test_sketches_without_a_shape_have_missing_values() -> None:
    row = features(small_space(3), matmul_kernel(), TARGET, [Candidate("only", (2,))])[0]
    missing = {name for name, value in zip(FEATURES, row, strict=True) if np.isnan(value)}
    assert missing == {*NEST_FEATURES, *LOOP_FEATURES}
    assert row[SCORE] == 0


def test_neither_choices_nor_sketches_are_columns() -> None:
    """So that a model that was trained on some spaces reads those of any other."""
    words = {name.split("[")[0].split(".")[0] for name in FEATURES}
    expected = {"score", "nest", "l1", "l2", "l3", "parallel", "loop", "body", "kernel", "target"}
    assert words == expected
    wide = features(tile_space(), matmul_kernel(), TARGET, [tile_space().default()])
    assert wide.shape == (1, len(FEATURES))


def test_a_correction_is_added_to_the_score_and_to_nothing_else() -> None:
    class Half:
        def of(self, features: FeatureMatrix) -> npt.NDArray[np.float32]:
            return np.full(len(features), 0.5, np.float32)

    kernel = matmul_kernel()
    space = schedule_space(kernel, TARGET)
    (before,) = FeatureExtractor(space, kernel, TARGET)([space.default()])
    (after,) = FeatureExtractor(space, kernel, TARGET, correction=Half())([space.default()])
    assert before[SCORE] == -before[ESTIMATE]
    assert after[SCORE] == before[SCORE] + np.float32(0.5)
    np.testing.assert_array_equal(before[1:], after[1:])


def test_the_target_is_described_by_what_it_has() -> None:
    row = features(tile_space(), matmul_kernel(), TARGET, [tile_space().default()])[0]
    known = dict(zip(FEATURES, row.tolist(), strict=True))
    assert known["target.l2_bytes"] == TARGET.l2_bytes
    assert (known["target.has_avx512"], known["target.int8_terms"]) == (0, 0)
    other = replace(
        TARGET, features=("avx512bf16", "avx512dq", "avx512f", "avx512vl", "avx512vnni")
    )
    row = features(tile_space(), matmul_kernel(), other, [tile_space().default()])[0]
    known = dict(zip(FEATURES, row.tolist(), strict=True))
    assert (known["target.has_avx512"], known["target.int8_terms"]) == (1, 4)
    assert (known["target.bf16_terms"], known["target.matrix_tiles"]) == (2, 0)


def test_rows_do_not_depend_on_the_other_candidates() -> None:
    space, kernel = tile_space(), matmul_kernel()
    rng = random.Random(1)
    candidates = [space.sample(rng) for _ in range(40)]
    together = features(space, kernel, TARGET, candidates)
    alone = [features(space, kernel, TARGET, [candidate])[0] for candidate in candidates]
    np.testing.assert_array_equal(together, np.stack(alone))


def test_no_candidates_give_no_rows() -> None:
    assert features(tile_space(), matmul_kernel(), TARGET, []).shape[0] == 0
