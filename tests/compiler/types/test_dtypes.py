"""Element types: what they hold of each other, as NumPy has it."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

from compiler.types.dtypes import DType


@pytest.mark.parametrize(("one", "other"), list(itertools.product(DType, repeat=2)))
def test_type_holds_what_numpy_casts_safely_within_a_kind(one: DType, other: DType) -> None:
    alike = (one.is_float, one.is_integer) == (other.is_float, other.is_integer)
    assert one.holds(other) == (alike and np.can_cast(other.numpy, one.numpy, "safe"))


@pytest.mark.parametrize("dtype", DType)
def test_bytes_are_those_of_the_numpy_type(dtype: DType) -> None:
    assert dtype.bytes == dtype.numpy.itemsize
    assert DType.from_numpy(dtype.numpy) is dtype


def test_targets_and_numerics_do_without_numpy() -> None:
    program = "import sys, compiler.target, compiler.types.numerics; print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"
