"""Probabilities of classes from those of each pair of them, as libsvm computes them.

The second method of Wu, Lin and Weng, "Probability estimates for multi-class classification by
pairwise coupling" (2004), section 4: with Q[t][t] = sum of r[j][t]^2 and Q[t][j] = -r[j][t] r[t][j]
it looks for the p that minimises p' Q p, a class after the other, until Q p is even enough.
Where it stops can be seen in the results, also of two classes: so it stops where libsvm does.
"""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.loop_body import begin_state
from tunefarm.compiler.operators.loop import RESULT
from tunefarm.compiler.types.dims import whole
from tunefarm.compiler.types.dtypes import DType

_LEAST = 1e-7
_STEPS = 100


def coupled(pairs: Value, classes: int, graph: GraphBuilder) -> Value:
    """Probabilities [rows, classes] of `pairs`, [rows, pairs]: of the first of both classes."""
    table = _table(graph.emit("clip", pairs, min=_LEAST, max=1 - _LEAST), classes, graph)
    even = np.full((pairs.shape[0], classes), 1 / classes)
    initial = graph.constant(even, pairs.dtype)
    initial = graph.padded.begins(initial, (pairs.dims[0], whole(classes)))
    number, most = graph.fresh_number(), max(_STEPS, classes)
    before = begin_state(graph, initial, number, 0)
    following, going = _step(before, table, classes, graph)
    ones = graph.cast(going, DType.I64)
    some = graph.emit("reduce_max", ones, axes=(0, 1), keepdims=False)
    again = graph.emit("greater", some, graph.scalar(0, DType.I64))
    bounds = {"loop": number, "states": 1, "most": most, "number": 0}
    last = graph.append(RESULT, (None, None, again, initial, following), dict(bounds))
    return graph.with_dims(last, initial.dims)


def _table(first: Value, classes: int, graph: GraphBuilder) -> Value:
    """Q, [rows, classes, classes]."""
    one = graph.scalar(1.0, first.dtype)
    second = graph.emit("sub", one, first)
    names = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    across, own, other = (np.zeros((len(names), classes, classes)) for _ in range(3))
    for pair, (i, j) in enumerate(names):
        across[pair, i, j] = across[pair, j, i] = -1
        own[pair, j, j] = other[pair, i, i] = 1
    terms = []
    factors = ((first, second, across), (first, first, own), (second, second, other))
    for left, right, places in factors:
        product = graph.emit("mul", left, right)
        flat = graph.constant(places.reshape(len(names), -1), first.dtype)
        terms.append(graph.emit("matmul", product, flat))
    return graph.reshape(graph.fold("add", terms), (first.shape[0], classes, classes))


def _step(before: Value, table: Value, classes: int, graph: GraphBuilder) -> tuple[Value, Value]:
    """The probabilities after a step, where rows go on, and whether they do, [rows, 1]."""
    rows, dtype = before.shape[0], before.dtype
    one, two = graph.scalar(1.0, dtype), graph.scalar(2.0, dtype)
    chances = before
    wide = graph.reshape(chances, (rows, 1, classes))
    products = graph.emit("mul", table, wide)
    steep = graph.emit("reduce_sum", products, axes=(2,), keepdims=False)  # Q p
    parts = graph.emit("mul", chances, steep)
    level = graph.emit("reduce_sum", parts, axes=(1,), keepdims=True)  # p' Q p
    uneven = graph.emit("abs", graph.emit("sub", steep, level))
    error = graph.emit("reduce_max", uneven, axes=(1,), keepdims=True)
    going = graph.emit("greater_equal", error, graph.scalar(0.005 / classes, dtype))
    for number in range(classes):
        row = graph.pick(table, 1, number)
        own, slope = (graph.part(value, 1, number, 1) for value in (row, steep))
        step = graph.emit("div", graph.emit("sub", level, slope), own)
        whole_step = graph.emit("add", step, one)
        gain = graph.emit("add", graph.emit("mul", step, own), graph.emit("mul", slope, two))
        level = graph.emit("add", level, graph.emit("mul", step, gain))
        level = graph.emit("div", graph.emit("div", level, whole_step), whole_step)
        steep = _moved(steep, step, row, whole_step, graph)
        chosen = graph.constant(np.eye(classes)[number], dtype)
        chances = _moved(chances, step, chosen, whole_step, graph)
    return graph.emit("where", going, chances, before), going


def _moved(value: Value, step: Value, along: Value, by: Value, graph: GraphBuilder) -> Value:
    """(value + step * along) / by."""
    return graph.emit("div", graph.emit("add", value, graph.emit("mul", step, along)), by)
