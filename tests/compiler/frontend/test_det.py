"""Det: determinants of matrices of any size, against LAPACK; and converters without a schema."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.compiler.frontend.onnx_models import model, node, outputs_of, tensor
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.types.tensor_type import Array


def determinants(data: Array) -> Any:
    nodes = [node("Det", "x")]
    dtype = helper.np_dtype_to_tensor_dtype(data.dtype)
    graph = import_model_proto(model(nodes, [tensor("x", data.shape, dtype)]))
    (found,) = outputs_of(graph, {"x": data})
    return found


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 8])
def test_determinants_of_a_batch(rows: int) -> None:
    data = np.random.default_rng(rows).standard_normal((2, 3, rows, rows), np.float32)
    np.testing.assert_allclose(determinants(data), np.linalg.det(data), rtol=2e-4, atol=1e-5)


def test_rows_change_places_for_the_largest_pivot() -> None:
    data = np.eye(4, dtype=np.float64)[[1, 0, 3, 2]] * [[1e-30], [1.0], [2.0], [3.0]]
    data = np.stack([data, data[[1, 0, 2, 3]], np.zeros((4, 4)), np.ones((4, 4))])
    np.testing.assert_allclose(determinants(data), [6e-30, -6e-30, 0.0, 0.0])


def test_a_matrix_that_is_not_square_is_refused() -> None:
    with pytest.raises(ImportModelError, match="no batch of square matrices"):
        determinants(np.zeros((2, 3, 4), np.float32))


def custom(opset: int) -> onnx.ModelProto:
    return model(
        [node("Twice", "x", domain="some.domain")],
        [tensor("x", (3,))],
        domains={"some.domain": opset},
    )


def test_a_converter_of_an_own_domain_needs_no_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter, "_CONVERTERS", {})

    @converter.converter("Twice", 2, domain="some.domain")
    def twice(node: OnnxNode, graph: GraphBuilder) -> Value:
        return graph.emit("add", node.input(0), node.input(0))

    for opset in (2, 7):
        (found,) = outputs_of(import_model_proto(custom(opset)), {"x": np.arange(3.0, dtype="f4")})
        np.testing.assert_array_equal(found, [0.0, 2.0, 4.0])
    with pytest.raises(ImportModelError, match="register_function"):
        import_model_proto(custom(1))  # older than the converter's first version
