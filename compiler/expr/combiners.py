"""Combiners of reductions: what joins two terms, and what changes none; one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from compiler.expr.nodes import Const, const
from compiler.types.dtypes import DType


@dataclass(frozen=True, slots=True)
class Combiner:
    """How a reduction joins its terms, in any order."""

    operation: str  # the binary function of two terms
    array: np.ufunc  # the same on NumPy arrays; its `reduce` joins along axes
    neutral: Callable[[DType], int | float]  # the value that leaves any term as it is
    rounds: bool = False  # sums and products of floats depend on the order of their terms


def _lowest(dtype: DType) -> int | float:
    if dtype.is_integer:
        return int(np.iinfo(dtype.numpy).min)
    return float("-inf") if dtype.is_float else 0


def _highest(dtype: DType) -> int | float:
    if dtype.is_integer:
        return int(np.iinfo(dtype.numpy).max)
    return float("inf") if dtype.is_float else 1


COMBINERS: Mapping[str, Combiner] = {
    "sum": Combiner("add", np.add, lambda dtype: 0, rounds=True),
    "prod": Combiner("mul", np.multiply, lambda dtype: 1, rounds=True),
    "max": Combiner("max", np.maximum, _lowest),
    "min": Combiner("min", np.minimum, _highest),
    "and": Combiner("and", np.bitwise_and, lambda dtype: 1),
    "or": Combiner("or", np.bitwise_or, lambda dtype: 0),
}


def neutral_element(combiner: str, dtype: DType) -> Const:
    """What leaves any term of type `dtype` as it is; `and` and `or` combine bools only."""
    return const(COMBINERS[combiner].neutral(dtype), dtype)
