"""Indices into an axis whose size is known at run time only: each must be of what is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import compiler
from compiler.errors import InputError
from compiler.frontend.import_onnx import import_model_proto
from compiler.runtime.executable import Executable
from tests.compiler.frontend.onnx_models import model, tensor
from tests.compiler.frontend.sized_cases import node

DATA = np.arange(6, dtype=np.float32).reshape(2, 3)  # two of at most four rows are there


def _built(operator: str, *shape: int | str) -> Executable:
    inputs = [tensor("x", ["n", 3]), tensor("i", shape, TensorProto.INT64)]
    proto = model([node(operator, "x i")], inputs, ["y"], opset=18)
    bounds = {name: ("1..4",) for name in ("n", *shape) if isinstance(name, str)}
    return compiler.build(import_model_proto(proto, bounds))


def _inputs(indices: Any) -> dict[str, Any]:
    return {"x": DATA, "i": np.array(indices, np.int64)}


@pytest.mark.parametrize("indices", [[2, 0], [0, -3], [-5, 1], [9, 9]])
def test_an_index_outside_of_what_is_there_is_refused(indices: list[int]) -> None:
    with pytest.raises(InputError, match=r"input 'i' is \[.*\]: Gather node 'y' has an index out"):
        _built("Gather", "k").run(_inputs(indices))


def test_negative_indices_count_from_the_end_of_what_is_there() -> None:
    rows = _built("Gather", "k").run(_inputs([-1, 0, -2]))["y"]
    np.testing.assert_array_equal(rows, DATA[[-1, 0, -2]])


def test_so_are_indices_of_elements() -> None:
    executable = _built("GatherElements", 2, 3)
    found = executable.run(_inputs([[-1, 0, 1], [0, -2, 1]]))["y"]
    np.testing.assert_array_equal(
        found, np.take_along_axis(DATA, np.array([[1, 0, 1], [0, 0, 1]]), 0)
    )
    with pytest.raises(InputError, match="GatherElements node 'y' has an index outside of axis 0"):
        executable.run(_inputs([[0, 0, 2], [0, 0, 0]]))
