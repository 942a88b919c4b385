from __future__ import annotations

import numpy as np
import pytest

from tunefarm.compiler.expr.combiners import COMBINERS, neutral_element
from tunefarm.compiler.types.dtypes import DType


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name, row in COMBINERS.items() for dtype in sorted(row.operands)],
)
def test_the_neutral_element_leaves_every_term_as_it_is(name: str, dtype: DType) -> None:
    terms = np.array([0, 1, 1, 7], dtype.numpy)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        terms = np.array([limits.min, 0, 1, limits.max], dtype.numpy)
    elif dtype.is_float:
        terms = np.array([-np.inf, -2.5, 0, np.inf], dtype.numpy)
    neutral = np.array(neutral_element(name, dtype).value, dtype.numpy)
    joined = COMBINERS[name].array(terms, neutral)
    assert joined.dtype == dtype.numpy
    np.testing.assert_array_equal(joined, terms)
