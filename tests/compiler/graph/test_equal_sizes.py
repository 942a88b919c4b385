"""Of sizes that must be equal, one ends all axes that end at either."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunefarm import compiler
from tunefarm.compiler.errors import InputError
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.graph import equal_sizes
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.pipeline import kernels_of

SHAPES = {"x": ("1", "4", "2..40", "2..40")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plane of half the size, which a resize brings back to the size of another branch."""
    rng = np.random.default_rng(0)
    taps = (rng.standard_normal((4, 4, 3, 3)) / 6).astype(np.float32)
    last = (rng.standard_normal((4, 8, 3, 3)) / 8).astype(np.float32)
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "taps"], ["a"], pads=[1, 1, 1, 1]),
        node("Conv", ["a", "taps"], ["half"], pads=[1, 1, 1, 1]),
        node("Conv", ["half", "taps"], ["b"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Resize", ["b", "", "scales"], ["c"], mode="nearest"),
        node("Concat", ["a", "c"], ["d"], axis=1),
        node("Conv", ["d", "last"], ["y"], pads=[1, 1, 1, 1]),
    ]
    constants = {"taps": taps, "last": last, "scales": np.array([1, 1, 2, 2], np.float32)}
    graph = helper.make_graph(
        nodes,
        "halves",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, "p", "q"])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    path = tmp_path_factory.mktemp("halves") / "halves.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def filled(graph: Graph) -> set[object]:
    return {node.attributes["number"] for node in graph.nodes if node.operator == "fill"}


def test_fills_name_the_first_of_equal_sizes(model: Path) -> None:
    graph = import_onnx(model, SHAPES)
    assert graph.signature.equalities
    sizes, found = graph.signature.sizes, equal_sizes.run(graph)
    for item in graph.signature.equalities:
        first, later = sorted(map(sizes.index, (item.left, item.right)))
        assert {first, later} & filled(graph)
        assert later not in filled(found) and first in filled(found)
    assert equal_sizes.run(found) == found


def test_kernels_are_limited_by_one_of_equal_sizes(model: Path) -> None:
    graph = import_onnx(model, SHAPES)
    later = equal_sizes.first_numbers(graph.signature)
    for call in kernels_of(model, shapes=SHAPES).calls:
        limits = call.kernel.limits if isinstance(call, KernelCall) else ()
        axes = [(limit.stride, limit.extent) for limit in limits]
        assert len(axes) == len(set(axes))
        assert later.keys().isdisjoint(limit.number for limit in limits)


def test_a_static_graph_stays_the_same_one(model: Path) -> None:
    graph = import_onnx(model, {"x": ("1", "4", "8", "8")})
    assert equal_sizes.run(graph) is graph


def test_results_are_right_where_sizes_are_equal_and_others_are_refused(model: Path) -> None:
    executable = compiler.build(model, shapes=SHAPES)
    session = onnxruntime.InferenceSession(str(model))
    rng = np.random.default_rng(1)
    for height, width in ((2, 2), (10, 40), (40, 10), (40, 40), (18, 22)):
        x = rng.standard_normal((1, 4, height, width)).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_allclose(executable.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError):
        executable.run({"x": np.zeros((1, 4, 9, 10), np.float32)})
