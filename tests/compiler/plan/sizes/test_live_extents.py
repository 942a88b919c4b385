"""Kernels are limited to what their readers need, from the outputs' true sizes backwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import KernelCall, KernelProgram, ValidExtent
from tunefarm.compiler.kernels.verify_program import verify_program
from tunefarm.compiler.operators.registry import infer_type
from tunefarm.compiler.pipeline import compile_model, kernels_of
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.sizes.live_extents import _strongest, limit_kernels
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.signature import SIZES, AxisSource, ResultSource, Signature, SizedPort
from tunefarm.compiler.types.sizes import Dimension, Size, Symbol
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

BATCH, ROWS, FEATURES = 4, 64, 48
B, S = Symbol("batch", 1, BATCH), Symbol("rows", 1, ROWS)
BATCHES, LENGTH = (Symbol.of(s.name, s.low, s.high) for s in (B, S))
assert isinstance(BATCHES, Size) and isinstance(LENGTH, Size)
SHAPE: tuple[tuple[Dimension, int], ...] = ((BATCHES, BATCH), (LENGTH, ROWS), (FEATURES, FEATURES))

OF_ROWS = (FEATURES, ROWS, 1)
OF_BATCH = (FEATURES * ROWS, BATCH, 0)


class Model:
    """A graph over x[batch, rows, features] under construction."""

    def __init__(self) -> None:
        self.types = {
            "x": TensorType(DType.F32, (BATCH, ROWS, FEATURES)),
            "w": TensorType(DType.F32, (FEATURES, FEATURES)),
            SIZES: TensorType(DType.I64, (2,)),
        }
        self.nodes: list[Node] = []

    def apply(self, operator: str, *operands: str, **attributes: Attribute) -> str:
        name = f"v{len(self.nodes)}"
        node = Node(operator, operands, name, MappingProxyType(attributes), source=name)
        self.types[name] = infer_type(node, tuple(self.types[item] for item in operands))
        self.nodes.append(node)
        return name

    def graph(self, **outputs: Sequence[tuple[Dimension, int]]) -> Graph:
        """The graph with a signature; by output its true and padded extents."""
        ports = tuple(_port(name, axes) for name, axes in outputs.items())
        signature = Signature(
            (_port("x", SHAPE),),
            ports,
            (AxisSource(B, "x", 0), AxisSource(S, "x", 1)),
            (BATCHES, LENGTH),
        )
        rng = np.random.default_rng(0)
        weights = rng.standard_normal((FEATURES, FEATURES)).astype(np.float32)
        weights.flags.writeable = False
        return Graph(
            "model",
            ("x", SIZES),
            tuple(outputs),
            tuple(self.nodes),
            self.types,
            {"w": weights},
            signature,
        )

    def program(self, **outputs: Sequence[tuple[Dimension, int]]) -> KernelProgram:
        """The limited kernels of the graph."""
        graph = self.graph(**outputs)
        return limit_kernels(extract_kernels(graph), graph)


def _port(name: str, axes: Sequence[tuple[Dimension, int]]) -> SizedPort:
    return SizedPort(name, DType.F32, tuple(true for true, _ in axes), tuple((a,) for a in axes))


def limits(program: KernelProgram, name: str) -> set[tuple[int, int, int]]:
    """Stride, extent and number of a kernel's limits, by its output."""
    (call,) = (c for c in program.calls if isinstance(c, KernelCall) and c.output == name)
    return {(limit.stride, limit.extent, limit.number) for limit in call.kernel.limits}


def test_an_output_is_needed_up_to_its_true_sizes() -> None:
    model = Model()
    last = model.apply("matmul", "x", "w")
    program = model.program(**{last: SHAPE})
    assert limits(program, last) == {OF_ROWS, OF_BATCH}
    (call,) = program.calls
    assert isinstance(call, KernelCall) and call.inputs[-1] == SIZES


def test_a_size_that_leaves_nothing_out_is_no_limit() -> None:
    """There is one sentence at least."""
    model = Model()
    first = model.apply("slice", "x", starts=(0,) * 3, steps=(1,) * 3, shape=(1, ROWS, FEATURES))
    last = model.apply("matmul", first, "w")
    program = model.program(**{last: ((BATCHES, 1), *SHAPE[1:])})
    assert limits(program, last) == {OF_ROWS}


def test_an_output_is_needed_up_to_a_size_that_the_graph_computes() -> None:
    model = Model()
    count = model.apply("slice", SIZES, starts=(1,), steps=(1,), shape=(1,))
    last = model.apply("matmul", "x", "w")
    chosen = Symbol("chosen", 0, ROWS)
    rows = Symbol.of(chosen.name, chosen.low, chosen.high)
    axes = ((BATCHES, BATCH), (rows, ROWS), (FEATURES, FEATURES))
    graph = model.graph(**{count: ((1, 1),), last: axes})
    sources = (*graph.signature.sources, ResultSource(chosen, count, 0))
    signature = replace(graph.signature, outputs=graph.signature.outputs[1:], sources=sources)
    program = limit_kernels(extract_kernels(graph), replace(graph, dynamic=signature))
    assert limits(program, last) == {(FEATURES, ROWS, 0), OF_BATCH}
    call = program.calls[-1]
    assert isinstance(call, KernelCall) and count in call.inputs[-2:]


def test_windows_that_reach_into_pads_read_only_what_is_there() -> None:
    model = Model()
    first = model.apply("softmax", "x", axis=2)
    filters = model.apply("reshape", "w", shape=(12, ROWS, 3))
    last = model.apply("conv", first, filters, pads=(1, 1))
    axes = ((BATCHES, BATCH), (12, 12), (FEATURES, FEATURES))
    program = model.program(**{last: axes})
    assert limits(program, last) == {(12 * FEATURES, BATCH, 0)}
    assert limits(program, first) == {OF_BATCH}


def test_sums_of_rows_in_a_row_end_where_each_sentence_does() -> None:
    model = Model()
    first = model.apply("softmax", "x", axis=2)
    rows = model.apply("reshape", first, shape=(BATCH * ROWS, FEATURES))
    total = model.apply("add", model.apply("matmul", rows, "w"), rows)
    last = model.apply("reshape", total, shape=(BATCH, ROWS, FEATURES))
    program = model.program(**{last: SHAPE})
    assert limits(program, first) == {OF_ROWS, OF_BATCH}


def test_a_batch_of_heads_ends_where_the_batch_does() -> None:
    model = Model()
    first = model.apply("softmax", "x", axis=2)
    heads = model.apply("reshape", first, shape=(BATCH * 8, ROWS // 8, FEATURES))
    turned = model.apply("transpose", heads, perm=(0, 2, 1))
    last = model.apply("reshape", turned, shape=(BATCH, 8, FEATURES, ROWS // 8))
    inside = tuple((extent, extent) for extent in (8, FEATURES, ROWS // 8))
    program = model.program(**{last: ((BATCHES, BATCH), *inside)})
    assert limits(program, turned) == {OF_BATCH}
    assert limits(program, first) == {OF_BATCH}


def test_a_producer_is_needed_where_its_readers_read_it() -> None:
    model = Model()
    first = model.apply("matmul", "x", "w")
    turned = model.apply("transpose", first, perm=(2, 0, 1))
    last = model.apply("softmax", turned, axis=0)
    axes = ((FEATURES, FEATURES), (BATCHES, BATCH), (LENGTH, ROWS))
    program = model.program(**{last: axes})
    assert limits(program, last) == {(1, ROWS, 1), (ROWS, BATCH, 0)}
    assert limits(program, first) == {OF_ROWS, OF_BATCH}


def test_rows_of_several_batches_as_one_axis_stay_apart() -> None:
    model = Model()
    first = model.apply("matmul", "x", "w")
    rows = model.apply("reshape", first, shape=(BATCH * ROWS, FEATURES))
    second = model.apply("matmul", rows, "w")
    last = model.apply("reshape", second, shape=(BATCH, ROWS, FEATURES))
    program = model.program(**{last: SHAPE})
    verify_program(program)
    made = next(c for c in program.calls if isinstance(c, KernelCall) and c.output != first)
    assert limits(program, made.output) == limits(program, first) == {OF_ROWS, OF_BATCH}
    assert made.kernel.output.shape == (BATCH, ROWS, FEATURES)


def test_rows_of_several_batches_are_computed_up_to_their_true_sizes() -> None:
    model = Model()
    rows = model.apply("reshape", "x", shape=(BATCH * ROWS, FEATURES))
    first = model.apply("matmul", rows, "w")
    other = model.apply("relu", first)
    second = model.apply("matmul", other, "w")
    last = model.apply("reshape", model.apply("add", second, first), shape=(BATCH, ROWS, FEATURES))
    graph = model.graph(**{last: SHAPE})
    executable = Executable(compile_model(graph).spec)
    rng = np.random.default_rng(1)
    weights = graph.constants["w"].astype(np.float64)
    for batch, length in ((1, 1), (3, 17), (BATCH, ROWS)):
        x = rng.standard_normal((batch, length, FEATURES)).astype(np.float32)
        products = x @ weights
        want = np.maximum(products, 0) @ weights + products
        np.testing.assert_allclose(executable.run({"x": x})[last], want, atol=1e-3)


def test_what_is_filled_is_not_needed_where_it_is() -> None:
    model = Model()
    first = model.apply("matmul", "x", "w")
    filled = model.apply("fill", first, SIZES, axis=1, number=1, value="zero")
    last = model.apply("reduce_sum", filled, axes=(1,), keepdims=0)
    pooled = ((BATCHES, BATCH), (FEATURES, FEATURES))
    program = model.program(**{first: SHAPE, last: pooled})
    assert limits(program, last) == {(FEATURES, BATCH, 0)}
    assert limits(program, first) == {OF_ROWS, OF_BATCH}


def test_a_row_that_is_always_there_takes_no_limit_away() -> None:
    model = Model()
    first = model.apply("matmul", "x", "w")
    token = model.apply(
        "slice", first, starts=(0, 0, 0), steps=(1, 1, 1), shape=(BATCH, 1, FEATURES)
    )
    small = ((BATCHES, BATCH), (1, 1), (FEATURES, FEATURES))
    program = model.program(**{first: SHAPE, token: small})
    assert limits(program, first) == {OF_ROWS, OF_BATCH}


def test_a_reader_of_everything_takes_limits_away() -> None:
    model = Model()
    first = model.apply("matmul", "x", "w")
    total = model.apply("reduce_sum", first, axes=(1,), keepdims=0)
    program = model.program(**{first: SHAPE, total: ((BATCHES, BATCH), (FEATURES, FEATURES))})
    assert limits(program, first) == {OF_BATCH}


def test_padding_that_nobody_reads_needs_no_reader_to_say_so() -> None:
    model = Model()
    first = model.apply("matmul", "x", "w")
    last = model.apply("reduce_sum", model.apply("transpose", first, perm=(0, 2, 1)), axes=(2,))
    graph = replace(
        model.graph(**{last: ((BATCH, BATCH), (FEATURES, FEATURES), (1, 1))}),
        unread={first: tuple((axis,) for axis in SHAPE)},
    )
    program = limit_kernels(extract_kernels(graph), graph)
    assert limits(program, first) == {OF_ROWS, OF_BATCH}


def test_a_graph_of_fixed_sizes_has_no_limits() -> None:
    model = Model()
    last = model.apply("matmul", "x", "w")
    graph = Graph(
        "model",
        ("x", "w"),
        (last,),
        tuple(model.nodes),
        {name: type for name, type in model.types.items() if name != SIZES},
        {},
    )
    (call,) = kernels_of(graph).calls
    assert isinstance(call, KernelCall) and not call.kernel.limits


def test_all_keys_of_a_window_are_needed_where_some_of_its_rows_are() -> None:
    model = Model()
    windows = (BATCH, ROWS // 4, 4, FEATURES)
    queries = model.apply("reshape", "x", shape=windows)
    first = model.apply("softmax", "x", axis=2)
    own = model.apply("reshape", first, shape=windows)
    keys = model.apply("concat", own, own, own, axis=2)
    rows = model.apply("attention", queries, keys, keys)
    last = model.apply("reshape", rows, shape=(BATCH, ROWS, FEATURES))
    program = model.program(**{last: SHAPE})
    assert limits(program, keys) == {(3 * OF_BATCH[0], BATCH, 0)}
    assert limits(program, first) == {OF_BATCH}


def test_a_limit_by_a_multiple_of_a_size_is_one_by_that_size() -> None:
    """Elements and groups of three of them, with sizes of their own that say the same."""
    sizes: dict[tuple[str, int], Dimension] = {("s", 0): LENGTH * 3, ("s", 1): LENGTH}
    elements, groups = ValidExtent(1, 3 * ROWS, "s", 0), ValidExtent(3, ROWS, "s", 1)
    assert _strongest({elements, groups}, sizes) == {elements}
    assert _strongest({elements, replace(groups, offset=-1)}, sizes) == {
        elements,
        replace(groups, offset=-1),
    }
