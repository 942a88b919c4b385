"""The rules of a signature: each one that is broken is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.compiler.runtime.sized_graphs import counted_graph, rows_graph, symbol
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import (
    SIZES,
    AxisSource,
    Check,
    Equality,
    ResultSource,
    Signature,
    ValueSource,
)
from tunefarm.compiler.types.sizes import Symbol
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.compiler.types.verify_signature import signature_problem

BATCH, batch = symbol("batch", 1, 4)
OTHER, other = symbol("other", 1, 4)
HUGE, huge = symbol("huge", 1, 2**31)


def changed(**parts: object) -> Callable[[Signature], Signature]:
    return lambda signature: replace(signature, **parts)  # type: ignore[arg-type]


def source(number: int, made: object) -> Callable[[Signature], Signature]:
    def change(signature: Signature) -> Signature:
        sources = list(signature.sources)
        sources[number] = made  # type: ignore[call-overload]
        return replace(signature, sources=tuple(sources))

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (changed(inputs=()), "lacks the inputs x"),
        (lambda s: replace(s, outputs=s.outputs[::-1]), "has other outputs"),
        (lambda s: replace(s, outputs=(*s.outputs, s.inputs[0])), "has other outputs"),
        (lambda s: replace(s, inputs=(replace(s.inputs[0], dtype=DType.F64),)), "padded to f64"),
        (lambda s: replace(s, inputs=(replace(s.inputs[0], shape=(batch, 7)),)), "3 padded axes"),
        (
            lambda s: replace(s, inputs=(replace(s.inputs[0], shape=(batch, 7, 5)),)),
            "factors of axis 1 are not 7",
        ),
        (changed(sizes=(batch,)), "has 1 sizes, its input is i64"),
        (changed(sizes=()), "no sizes for its input"),
        (changed(sizes=(other,) * 8), "the size other depends on other"),
        (changed(sources=()), "depends on length"),
        (source(1, AxisSource(BATCH, "x", 0)), "has two sources"),
        (source(0, AxisSource(BATCH, "x", 1)), "batch cannot come from axis 1 of input 'x'"),
        (source(0, AxisSource(BATCH, "x", 3)), "batch cannot come from axis 3"),
        (source(0, AxisSource(BATCH, "y", 0)), "cannot come from axis 0 of input 'y'"),
        (source(0, ValueSource(BATCH, "x", 0)), "cannot come from element 0 of input 'x'"),
        (source(0, ResultSource(BATCH, "relu_0", 0)), "cannot come from element 0 of output"),
        (
            changed(
                checks=(Check("relu_0", "x", ""),),
            ),
            "condition on 'x' cannot be",
        ),
        (
            lambda s: replace(
                s,
                sources=(*s.sources, AxisSource(HUGE, "x", 0)),
                equalities=(Equality(huge * huge * huge, batch, ""),),
            ),
            "the symbol huge cannot come",
        ),
    ],
)
def test_broken_rule_is_named(change: Callable[[Signature], Signature], reason: str) -> None:
    graph = rows_graph()
    with pytest.raises(VerifyError, match=reason):
        verify_graph(replace(graph, dynamic=change(graph.signature)))


def test_padding_that_holds_too_little_is_refused() -> None:
    graph = rows_graph()
    (port,) = graph.signature.inputs
    wide, size = symbol("batch", 1, 5)
    bad = replace(port, shape=(size, *port.shape[1:]), padded=(((size, 4),), *port.padded[1:]))
    sources = (AxisSource(wide, "x", 0), *graph.signature.sources[1:])
    signature = replace(graph.signature, inputs=(bad,), sources=sources)
    with pytest.raises(VerifyError, match="axis 0 has batch, from 1 to 5, in 4"):
        verify_graph(replace(graph, dynamic=signature))


def test_what_a_run_computes_cannot_be_asked_for_before() -> None:
    graph: Graph = counted_graph()
    (found,) = graph.signature.symbols
    size = Symbol.of(found.name, found.low, found.high)
    late = replace(graph.signature, sizes=(size,) * 8)
    inputs = [(name, graph.types[name]) for name in graph.inputs]
    outputs = [(name, graph.types[name]) for name in graph.outputs]
    assert signature_problem(graph.signature, inputs, outputs) == ""
    assert "depends on found, which is not known then" in signature_problem(late, inputs, outputs)
    assert dict(inputs)[SIZES] == TensorType(DType.I64, (8,))
