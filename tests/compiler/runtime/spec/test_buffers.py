"""Where arrays lie."""

from __future__ import annotations

import numpy as np
import pytest

from tunefarm.compiler.runtime.spec.buffers import address_of, aligned_pieces
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT

HUGE_PAGE = 2 << 20


@pytest.mark.parametrize("sizes", [[], [1], [100, 1 << 20, 65], [3 << 20, 5 << 20]])
def test_pieces_lie_one_behind_the_other_and_large_ones_begin_at_a_huge_page(
    sizes: list[int],
) -> None:
    arrays = [
        make((size,), np.dtype(np.uint8))
        for make, size in zip(aligned_pieces(sizes), sizes, strict=True)
    ]
    for array in arrays:
        array[:] = 1
    starts = [address_of(array) for array in arrays]
    assert all(start % ALIGNMENT == 0 for start in starts)
    gaps = [b - a - size for a, b, size in zip(starts, starts[1:], sizes, strict=False)]
    assert all(0 <= gap < ALIGNMENT for gap in gaps)
    if sum(sizes) >= 1 << 20:
        assert starts[0] % HUGE_PAGE == 0
