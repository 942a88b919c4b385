"""Combiners of reductions: what joins two terms, and what changes none; one row each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tunefarm.compiler.expr.nodes import Const, const
from tunefarm.compiler.types.dtypes import BOOLS, INTEGERS, DType
from tunefarm.compiler.types.dtypes import WIDE_NUMBERS as NUMBERS
from tunefarm.compiler.types.frozen import frozen


@frozen
class Combiner:
    """How a reduction joins its terms, in any order."""

    operands: frozenset[DType]  # the element types that it combines
    operation: str  # the binary function of two terms
    array: np.ufunc  # the same on NumPy arrays; its `reduce` joins along axes
    neutral: Callable[[DType], int | float]  # the value that leaves any term as it is
    rounds: bool = False  # sums and products of floats depend on the order of their terms


def _lowest(dtype: DType) -> int | float:
    return -math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def _highest(dtype: DType) -> int | float:
    return math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).max)


def _all_bits(dtype: DType) -> int:
    return -1 if dtype.is_signed else int(_highest(dtype)) if dtype.is_integer else 1


COMBINERS: Mapping[str, Combiner] = {
    "sum": Combiner(NUMBERS, "add", np.add, lambda dtype: 0, rounds=True),
    "prod": Combiner(NUMBERS, "mul", np.multiply, lambda dtype: 1, rounds=True),
    "max": Combiner(NUMBERS, "max", np.maximum, _lowest),
    "min": Combiner(NUMBERS, "min", np.minimum, _highest),
    "and": Combiner(INTEGERS | BOOLS, "and", np.bitwise_and, _all_bits),
    "or": Combiner(INTEGERS | BOOLS, "or", np.bitwise_or, lambda dtype: 0),
}


def neutral_element(combiner: str, dtype: DType) -> Const:
    """What leaves any term of type `dtype`, one that is combined so, as it is."""
    return const(COMBINERS[combiner].neutral(dtype), dtype)
