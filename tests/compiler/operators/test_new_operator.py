"""A new operator is two files: its definition, and its converter."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.processes import python
from tunefarm.tuner.packaging.build_backend import FACADE, link_sources

DEFINITION = """
from tunefarm.compiler.expr.nodes import add, mul
from tunefarm.compiler.operators.registry import REQUIRED, OperatorDefinition, Pattern, register
from tunefarm.compiler.operators.rules import check_dtype
from tunefarm.compiler.types.dtypes import FLOATS

def infer(attributes, types):
    check_dtype(types.present(0), FLOATS)
    attributes.integer("repeat")
    return types.present(0)

def expression(attributes, use):
    def body(indices):
        x = use.input(0)[indices]
        total = x
        for _ in range(attributes.integer("repeat")):
            total = add(mul(total, x), x)
        return total
    return use.pointwise("horner", body)

register(
    OperatorDefinition(
        "horner", Pattern.ELEMENTWISE, 1, infer, expression, {"repeat": REQUIRED}, cheap=True
    )
)
"""

CONVERTER = """
from tunefarm.compiler.frontend.converter import converter

@converter("MaxRoiPool", 1, 22)  # ONNX's own has no converter, and an attribute to give
def horner(node, graph):
    return graph.emit("horner", node.input(0), repeat=node.integers("pooled_shape")[0])
"""

RUN = """
import numpy as np
from onnx import TensorProto, helper

import tunefarm
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.optimise import optimise

assert tunefarm.__file__.startswith({root!r}), tunefarm.__file__
values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 5]) for name in "xy"]
nodes = [
    helper.make_node("MaxRoiPool", ["x", "x"], ["h"], pooled_shape=[2, 2]),
    helper.make_node("Relu", ["h"], ["y"]),
]
graph = helper.make_graph(nodes, "g", values[:1], values[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
imported = import_model_proto(model)
(call,) = extract_kernels(optimise(imported, 8)).calls
assert call.operators == ("horner", "relu"), call.operators
x = np.linspace(-2, 2, 15, dtype=np.float32).reshape(3, 5)
(y,) = tunefarm.compiler.build(imported).run({{"x": x}}).values()
np.testing.assert_allclose(y, np.maximum(((x * x + x) * x + x), 0), rtol=1e-5, atol=1e-6)
"""


def test_two_files_make_an_operator(tmp_path: Path, repository: Path) -> None:
    """Imported, fused, compiled and run, in a copy of the sources that has them."""
    for package in ("compiler", "configs"):
        ignored = shutil.ignore_patterns("*.pyc.*")  # of others who are writing them
        shutil.copytree(repository / package, tmp_path / package, ignore=ignored)
    (tmp_path / "tuner").mkdir()
    shutil.copy(repository / FACADE, tmp_path / FACADE)
    (tmp_path / "compiler/operators/horner.py").write_text(DEFINITION)
    (tmp_path / "compiler/frontend/operators/horner.py").write_text(CONVERTER)
    done = python(
        "-c", RUN.format(root=str(tmp_path)), cwd=tmp_path, PYTHONPATH=str(link_sources(tmp_path))
    )
    assert done.returncode == 0, done.stderr
