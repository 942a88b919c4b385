"""Packed constants: one piece of memory, in which each begins at a cache line."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.compiler.frontend.onnx_models import model, tensor
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.runtime.spec.buffers import address_of
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT, aligned


def test_constants_lie_behind_each_other_so_that_large_pages_hold_them() -> None:
    rng = np.random.default_rng(0)
    weights = {
        f"w{number}": rng.standard_normal((rows, columns)).astype(np.float32)
        for number, (rows, columns) in enumerate(((7, 33), (33, 65), (65, 5)))
    }
    nodes = [
        helper.make_node("MatMul", [before, weight], [after])
        for before, weight, after in (("x", "w0", "a"), ("a", "w1", "b"), ("b", "w2", "y"))
    ]
    graph = import_model_proto(model(nodes, [tensor("x", [3, 7])], constants=weights))
    executable = compiler.build(graph)
    constants = executable.spec.constants
    assert len(constants) == 3
    places = sorted((address_of(array), aligned(array.nbytes)) for array in constants)
    assert all(start % ALIGNMENT == 0 for start, _ in places)
    assert [start + size for start, size in places[:-1]] == [start for start, _ in places[1:]]
    x = rng.standard_normal((3, 7)).astype(np.float32)
    expected = x @ weights["w0"] @ weights["w1"] @ weights["w2"]
    np.testing.assert_allclose(executable.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-4)
