"""All cases of the operator map."""

from __future__ import annotations

from tests.benchmarks.operator_cases import (
    attentions,
    convolutions,
    elementwise,
    indexed,
    moving,
    pools,
    products,
    resizing,
    rows,
    sampled,
    trees,
)
from tests.benchmarks.operator_cases.case import OperatorCase

_FILES = (
    convolutions, pools, products, attentions, rows, elementwise, moving, resizing, indexed,
    sampled, trees
)  # fmt: skip


def all_cases() -> tuple[OperatorCase, ...]:
    """Every case; names are distinct."""
    return tuple(case for file in _FILES for case in file.cases())
