from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm.compiler.errors import ShapeError, VerifyError
from tunefarm.compiler.graph import infer_types
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType


def test_missing_types_are_inferred() -> None:
    maker = GraphMaker()
    x = maker.input(2, 3)
    graph = maker.graph(maker.node("transpose", maker.node("exp", x), perm=(1, 0)))
    bare = replace(graph, types={"x0": graph.types["x0"]})
    assert infer_types.run(bare).types == graph.types
    assert infer_types.run(graph) == graph


def test_a_wrong_declared_type_is_refused() -> None:
    maker = GraphMaker()
    graph = maker.graph(maker.node("exp", maker.input(2, 3)))
    wrong = replace(graph, types={**graph.types, "exp_0": TensorType(DType.F64, (2, 3))})
    with pytest.raises(VerifyError, match=r"declared f64\[2, 3\], but it is f32\[2, 3\]"):
        infer_types.run(wrong)


def test_inputs_that_do_not_fit_are_refused() -> None:
    maker = GraphMaker()
    graph = maker.graph(maker.node("add", maker.input(2, 3), maker.input(3)))
    wrong = replace(graph, types={**graph.types, "x1": TensorType(DType.F32, (4,))})
    with pytest.raises(ShapeError, match="do not broadcast"):
        infer_types.run(wrong)
