"""Winograd's filters: what a 3x3 filter becomes in F(m, 3), computed to the same bits everywhere.

A build computes it, and the loading of an artifact for several CPUs, of which only one wants it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tunefarm.compiler.types.packing import NewArray, Packing
from tunefarm.compiler.types.tensor_type import Array

FILTERS = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}
"""G of F(m, 3) by m: [m+2, 3]."""
FILTER_DTYPE = np.dtype(np.float32)
"""Of filters that loading an artifact transforms."""
_COLUMNS_AT_ONCE = 1 << 12
"""Of a filter transform: the 36 * 4096 numbers of 8 bytes that it makes stay in the cache."""


def transformed_shape(shape: tuple[int, ...], m: int) -> tuple[int, ...]:
    """[m+2, m+2, OC, IC], what filters [OC, IC, 3, 3] become."""
    return (m + 2, m + 2, *shape[:2])


def pack_transformed(
    filters: Array,
    m: int,
    packing: Packing,
    dtype: np.dtype[np.generic],
    empty: NewArray = np.empty,
) -> Array:
    """Filters [OC, IC, 3, 3] transformed, as `packing` of the transformed shape has them.

    `empty` makes the array that is returned.
    """
    taps = filters.transpose(2, 3, 0, 1)
    if packing.order[:2] == (0, 1):  # packing first gives the same, and moves less
        packed = replace(packing, shape=taps.shape).pack(taps)
        result = empty((m + 2, m + 2, *packed.shape[2:]), dtype)
        transform_taps(packed, m, result)
        return result
    transformed = np.empty(packing.shape, dtype)
    transform_taps(taps, m, transformed)
    return packing.pack(transformed, empty)


def transform_taps(taps: Array, m: int, result: Array) -> None:
    """G g G^T of filters [3, 3, ...], computed in f64, into `result` [m+2, m+2, ...].

    Every number is the same sum in the same order, wherever it lies and on any CPU: no product of
    matrices of a library is. So packings of one filter are permutations of each other.
    """
    g = np.array(FILTERS[m], np.float64)
    edge, taps_in_row = g.shape
    columns = np.ascontiguousarray(taps).reshape(taps_in_row**2, -1)
    flat = result.reshape(edge**2, -1)
    for start in range(0, columns.shape[1], _COLUMNS_AT_ONCE):
        part = slice(start, start + _COLUMNS_AT_ONCE)
        chunk = columns[:, part].astype(np.float64).reshape(taps_in_row, taps_in_row, -1)
        rows = _combined(g, chunk)
        both = _combined(g, rows.transpose(1, 0, 2))
        flat[:, part] = both.transpose(1, 0, 2).reshape(edge**2, -1)


def _combined(g: Array, terms: Array) -> Array:
    """g times the terms, as sums from zero on, so that none is a negative zero."""
    result = np.zeros((len(g), *terms.shape[1:]))
    product = np.empty(terms.shape[1:])
    for total, row in zip(result, g, strict=True):
        for factor, term in zip(row, terms, strict=True):
            if factor:
                np.multiply(term, factor, out=product)
                np.add(total, product, out=total)
    return result
