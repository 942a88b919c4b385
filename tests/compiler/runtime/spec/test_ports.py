"""What everything that runs a model imports first."""

from __future__ import annotations

import numpy as np

from tests.processes import python


def test_a_numpy_that_is_too_old_is_named_with_what_to_do() -> None:
    """NumPy 1 has no numpy.lib.array_utils."""
    program = (
        "import sys, numpy, tunefarm\n"
        "sys.modules['numpy.lib.array_utils'] = None\n"
        "tunefarm.InferenceSession\n"
    )
    found = python("-c", program)
    assert found.returncode == 1
    expected = f"tunefarm needs NumPy 2.4 or later, and {np.__version__} is installed (pip install"
    assert expected in found.stderr
