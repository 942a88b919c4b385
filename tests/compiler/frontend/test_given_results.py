"""Bounds that a user gives to sizes that only results have: runs keep to them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.compiler.frontend.onnx_models import model, tensor
from tests.compiler.frontend.sized_cases import node
from tunefarm import compiler
from tunefarm.compiler.errors import InputError, ShapeError
from tunefarm.compiler.frontend.import_onnx import import_model_proto


def _nonzero() -> onnx.ModelProto:
    proto = model([node("NonZero", "x")], [tensor("x", ["n"])], ["y"], opset=18)
    proto.graph.output[0].CopyFrom(tensor("y", [1, "k"], TensorProto.INT64))
    return proto


def test_a_computed_size_out_of_the_bounds_that_were_given_is_refused() -> None:
    executable = compiler.build(import_model_proto(_nonzero(), {"n": ("1..6",), "k": ("1..2",)}))
    found = executable.run({"x": np.array([0, 1, 0, 5, 0], np.float32)})
    np.testing.assert_array_equal(found["y"], [[1, 3]])
    for values in ([1, 1, 1], [0]):
        with pytest.raises(InputError, match=r"axis 1 of output 'y' is out of .* k=1\.\.2"):
            executable.run({"x": np.array(values, np.float32)})


def test_bounds_that_a_size_always_keeps_cost_nothing() -> None:
    graph = import_model_proto(_nonzero(), {"n": ("1..6",), "k": ("0..6",)})
    assert graph.signature is not None
    assert not graph.signature.checks


def test_bounds_that_a_size_never_keeps_are_refused_at_import() -> None:
    with pytest.raises(ShapeError, match=r"--shape k=7\.\.9: axis 1 of output 'y' has 0 to 6"):
        import_model_proto(_nonzero(), {"n": ("1..6",), "k": ("7..9",)})
