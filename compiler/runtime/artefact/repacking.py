"""Repacking: constants that an artifact for several CPUs holds once, in one of their packings, or
as filters that one of them transforms for Winograd's algorithm."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from tunefarm.compiler.runtime.artefact.manifest import Repacking
from tunefarm.compiler.runtime.spec.buffers import aligned_empty
from tunefarm.compiler.types.packing import NewArray, Packing
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.compiler.types.winograd_filter import FILTER_DTYPE, pack_transformed

WORTH_REPACKING_BYTES = 4096
"""Of a constant: what is smaller takes less room in the file than pages are large."""
ITEM_SIZES = (1, 2, 4, 8)
"""Bytes of the numbers that are moved as integers."""


def numbers_of(array: Array, packing: Packing) -> tuple[str, Packing]:
    """The SHA-256 of a constant's numbers in their own order, whatever its packing is, and the
    packing without rows of zeros at its end, which graphs add for whole vectors of a target."""
    numbers = _unpacked(array, array.itemsize, packing)
    shape = list(packing.shape)
    for axis, factor in packing.splits:
        while shape[axis] % factor != 1 % factor and not numbers.take(shape[axis] - 1, axis).any():
            shape[axis] -= 1
    whole = np.ascontiguousarray(numbers[tuple(map(slice, shape))])
    digest = hashlib.sha256(whole.reshape(-1).view(np.uint8).data).hexdigest()
    return digest, replace(packing, shape=tuple(shape))


def repacked(source: Array, repacking: Repacking, empty: NewArray = aligned_empty) -> Array:
    """The bytes of a part that is made of `source`, read-only, in an array that `empty` makes."""
    before, after, m = repacking.before, repacking.after, repacking.winograd
    if m:
        filters = before.unpack(source.reshape(-1).view(FILTER_DTYPE))
        result = pack_transformed(filters, m, after, FILTER_DTYPE, empty)
    else:
        numbers = _unpacked(source, repacking.itemsize, before)
        result = after.pack(numbers.reshape(after.shape), empty)
    result.flags.writeable = False
    return result.reshape(-1).view(np.uint8)


def _unpacked(array: Array, itemsize: int, packing: Packing) -> Array:
    """A constant's numbers, as integers of so many bytes."""
    return packing.unpack(array.reshape(-1).view(f"u{itemsize}"))
