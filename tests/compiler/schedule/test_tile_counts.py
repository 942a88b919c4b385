"""What default schedules in matrix tiles read, counted on their loops by `tile_counts`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.benchmarks.tile_counts import LINE, Caches, counts_of, shares_of
from tests.compiler.loops.tile_nests import product_nest
from tests.compiler.schedule.narrow_kernels import narrowed
from tests.compiler.schedule.test_matrix_tiles import TILES, convolution, product
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.types.dtypes import DType

MOST_WEIGHTS, MOST_LOADS, LEAST_FILLED = 1.1, 1.0, 0.75
EVENLY_PARTED = {"3x3, 12x20": 0.6}
"""Where tiles of fewer rows cost less than a copy of the data: 20 columns are two tiles of 10."""
CONVOLUTIONS = {
    "3x3, 7x7": ((32, 32), 3, (7, 7), 1, 1),
    "3x3, 14x14 to 7x7": ((32, 32), 3, (14, 14), 2, 1),
    "3x3, 14x14": ((16, 16), 3, (14, 14), 1, 1),
    "3x3, 28x28 to 14x14": ((16, 16), 3, (28, 28), 2, 1),
    "3x3, 9x9": ((8, 16), 3, (9, 9), 1, 1),
    "3x3, 12x20": ((8, 8), 3, (12, 20), 1, 1),
    "1x1, 7x7": ((128, 32), 1, (7, 7), 1, 0),
    "1x1, 14x14 to 7x7": ((64, 128), 1, (14, 14), 2, 0),
    "1x1, 14x14": ((64, 16), 1, (14, 14), 1, 0),
    "1x1, 28x28": ((8, 32), 1, (28, 28), 1, 0),
}
PRODUCTS = {"wide": (128, 768, 3072), "deep": (128, 3072, 768), "odd": (197, 192, 768)}
TYPES = {"bf16": (DType.BF16, DType.BF16), "bytes": (DType.U8, DType.I8)}


def kernel_named(name: str, types: str) -> FusedKernel:
    left, right = TYPES[types]
    total = DType.F32 if left.is_float else DType.I32
    if name in PRODUCTS:
        return narrowed(product(*PRODUCTS[name], total=total), left, right)
    blocks, window, size, stride, pad = CONVOLUTIONS[name]
    return narrowed(convolution(blocks, window, size, stride, pad, total), left, right)


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("name", [*CONVOLUTIONS, *PRODUCTS])
def test_default_schedules_read_weights_once_and_fill_their_tiles(name: str, types: str) -> None:
    kernel = kernel_named(name, types)
    space = schedule_space(kernel, TILES)
    shares = shares_of(kernel, space.schedule(space.default()), TILES)
    assert shares["b_over_weights"] <= MOST_WEIGHTS
    assert shares["loads"] <= MOST_LOADS
    assert shares["filled"] >= EVENLY_PARTED.get(name, LEAST_FILLED)


def test_both_factors_larger_than_the_cache_are_read_by_panels() -> None:
    """Weights once for each panel of rows, of which there are as few as fit; the rows once."""
    kernel = narrowed(product(256, 1024, 256, total=DType.F32), DType.BF16, DType.BF16)
    target = replace(TILES, l2_bytes=TILES.l2_bytes // 4)
    space = schedule_space(kernel, target)
    assert space.choices(space.default())["loops"] == "stacked panels"
    shares = shares_of(kernel, space.schedule(space.default()), target)
    assert shares["b_over_weights"] == 2.0


def test_lines_that_were_used_longest_ago_make_room() -> None:
    caches = Caches((1, 2))
    for line in (0, 1, 0, 2, 1, 0):
        caches.touch("x", line * LINE, 1)
    # The last two had left the second level: line 1 when 2 came, 0 when 1 came back.
    assert caches.missed == ({"x": 6}, {"x": 5})
    caches.touch("y", LINE - 1, 2)
    assert caches.missed[0] == {"x": 6, "y": 1}


def test_tiles_are_counted_where_loops_run() -> None:
    nest = product_nest(16, 16, 16, (2, 2), (2, 3, 2), (DType.U8, DType.I8, DType.I32))
    counts = counts_of(nest, TILES)
    blocks = 2 * 2
    assert (counts.products, counts.loads) == (blocks * 3 * 4, blocks * 3 * 4)
    assert counts.stores == blocks * 4
    sizes = {memory.name: memory.type.bytes for memory in (*nest.inputs, nest.output)}
    beyond = {name: lines * LINE for name, lines in counts.caches.missed[1].items()}
    assert beyond == sizes
