from __future__ import annotations

from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.runtime.sized_graphs import counted_graph, rows_graph
from tunefarm.compiler.graph.printer import format_graph, format_node

GOLDEN = """\
graph test
  input x0: f32[2, 3]
  constant c0: f32[3]
  add_0: f32[2, 3] = add(x0, c0)
  transpose_1: f32[3, 2] = transpose(add_0, perm=(1, 0))
  output transpose_1
"""


def test_graph_prints_one_typed_node_per_line() -> None:
    maker = GraphMaker()
    x = maker.input(2, 3)
    total = maker.node("add", x, maker.weights(3))
    graph = maker.graph(maker.node("transpose", total, perm=(1, 0)))
    assert format_graph(graph) == GOLDEN


def test_node_names_its_source_and_absent_inputs() -> None:
    maker = GraphMaker()
    x = maker.input(1, 2, 5, 5)
    maker.node("conv", x, maker.weights(4, 2, 3, 3), "")
    assert format_node(maker.nodes[0]) == "conv_0 = conv(x0, c0, -)  (from onnx_conv_0)"


def test_ports_print_as_callers_see_them() -> None:
    text = format_graph(rows_graph())
    assert "  input x: f32[batch:1..4, length:0..7, 5] in f32[4, 7, 5]\n" in text
    assert "  input %sizes: i64[8] = [length, 1," in text
    assert text.endswith("  output reduce_sum_2: f32[batch:1..4, 5] in f32[4, 5]\n")
    assert "  output add_3: found at 0\n" in format_graph(counted_graph())
