"""A bound run gives what `run` gives, of what is in its arrays at that moment."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.compiler.runtime.hand_kernels import COUNT, chain_spec
from tunefarm.compiler.errors import InputError
from tunefarm.compiler.runtime.execution.executable import Executable

WEIGHT = np.linspace(-1, 1, COUNT, dtype=np.float32)


def test_inputs_are_read_as_they_are_in_each_run() -> None:
    executable = Executable(chain_spec(WEIGHT))
    x = np.ones(COUNT, np.float32)
    bound = executable.bind({"x": x})
    for value in (1.0, 2.0, -3.0):
        x[:] = value
        bound.run()
        np.testing.assert_array_equal(bound.outputs["y"], executable.run({"x": x})["y"])


def test_given_outputs_are_written_and_each_bound_run_has_its_own_memory() -> None:
    executable = Executable(chain_spec(WEIGHT))
    inputs = [np.full(COUNT, value, np.float32) for value in (0.5, 1.5)]
    outputs = [np.zeros(COUNT, np.float32) for _ in inputs]
    runs = [executable.bind({"x": x}, {"y": y}) for x, y in zip(inputs, outputs, strict=True)]
    for bound in runs:
        bound.run()
    for x, y in zip(inputs, outputs, strict=True):
        np.testing.assert_array_equal(y, executable.run({"x": x})["y"])


def test_a_bound_run_keeps_alive_what_it_needs() -> None:
    executable = Executable(chain_spec(WEIGHT))
    expected = executable.run({"x": np.ones(COUNT, np.float32)})["y"]
    bound = executable.bind({"x": np.ones(COUNT, np.float32)})
    del executable
    gc.collect()
    bound.run()
    np.testing.assert_array_equal(bound.outputs["y"], expected)


def test_an_input_that_would_be_copied_is_refused() -> None:
    executable = Executable(chain_spec(WEIGHT))
    with pytest.raises(InputError, match="cannot be read in place"):
        executable.bind({"x": np.ones(2 * COUNT, np.float32)[::2]})
    with pytest.raises(InputError, match="the model was built for"):
        executable.bind({"x": np.ones(COUNT + 1, np.float32)})
