"""Conversions between element types in NumPy: what a cast of tensor expressions means."""

from __future__ import annotations

from typing import Any

import numpy as np

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array


def converted(values: Array, dtype: DType) -> Array:
    """The values in an element type, rounded to the nearest one, ties to even.

    What a float type has no number for becomes its infinity, or NaN where it has none (f4e2m1: its
    largest number). Floats become integers by truncation, and anything becomes a bool by != 0.
    """
    if values.dtype == dtype.numpy:
        return values
    if values.dtype.type.__module__ == "ml_dtypes":  # of its types few are converted to another
        small = DType.from_numpy(values.dtype).is_integer
        values = values.astype(np.int8 if small else np.float32)
    if dtype is DType.BF16 and values.dtype == np.float64:
        values = _rounded_to_odd(values)  # the package ml_dtypes would round twice
    with np.errstate(all="ignore"):
        return values.astype(dtype.numpy, copy=False)


def _rounded_to_odd(values: Array) -> Array:
    """f64 as f32 with the last bit set where anything was lost: then a second rounding is exact.

    Boldo and Melquiond, Emulation of FMA and correctly rounded sums (2008).
    """
    with np.errstate(all="ignore"):
        nearest = values.astype(np.float32)
    bits = np.array(nearest).view(np.int32)
    back = nearest.astype(np.float64)
    bits = bits - (np.abs(back) > np.abs(values))
    lost = (back != values) & ~np.isnan(back)
    odd: Any = np.where(lost, bits | 1, bits).astype(np.int32)
    return np.asarray(odd.view(np.float32)).reshape(np.shape(values))


def bits_of(value: float, dtype: DType) -> int:
    """The bits of a number, rounded to a type of 16 bits or fewer, as an unsigned integer."""
    one = converted(np.array([value], np.float64 if dtype.is_float else np.int64), dtype)
    return int(one.view(f"u{dtype.bytes}")[0])
