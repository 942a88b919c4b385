"""Matrix products and determinants: MatMul, Gemm, Einsum, Det."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.data_sizes import positions
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import as_whole, in_one_piece, with_axis
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import is_unpadded, size_of
from tunefarm.compiler.types.sizes import static_shape


def matmul_value(node: OnnxNode, left: Value, right: Value, graph: GraphBuilder) -> Value:
    """NumPy's matmul; a vector is a row on the left and a column on the right."""
    if left.rank == 0 or right.rank == 0:
        raise node.bad_shape(f"{left.type} times {right.type}: a scalar is no matrix")
    a = graph.reshape(left, (1, *left.shape)) if left.rank == 1 else left
    b = graph.reshape(right, (*right.shape, 1)) if right.rank == 1 else right
    product = graph.emit("matmul", a, b)
    shape = list(product.shape)
    if right.rank == 1:
        del shape[-1]
    if left.rank == 1:
        del shape[-1 if right.rank == 1 else -2]
    return graph.reshape(product, tuple(shape))


@converter("MatMul", 1, 9, 13)
def matmul(node: OnnxNode, graph: GraphBuilder) -> Value:
    return matmul_value(node, node.input(0), node.input(1), graph)


@converter("Gemm", 1, 6, 7, 9, 11, 13)
def gemm(node: OnnxNode, graph: GraphBuilder) -> Value:
    """alpha A' B' + beta C; until opset 6 broadcasting C had to be asked for, which is implied."""
    return of_joined_rows(node, graph, lambda left: gemm_value(node, left, graph))


def of_joined_rows(node: OnnxNode, graph: GraphBuilder, product: Callable[[Value], Value]) -> Value:
    """What `product` makes of a Gemm's left operand.

    Between two reshapes, as onnxruntime writes products of more axes, it is made of the operand
    with all its axes: what follows is fused with it then.
    """
    left, bias = node.input(0), node.optional(2)
    if left.rank != 2:
        raise node.bad_shape(f"{left.type} is no matrix")
    result, whole, source = product(left), graph.viewed(left), graph.source
    is_row = bias is None or bias.rank < 2 or bias.shape[0] == 1
    if not graph.by_onnxruntime or whole is None or node.integer("transA", 0) or not is_row:
        return result

    def of_all_axes(shape: tuple[int, ...]) -> Value | None:
        rows = shape[:-1]
        fits = len(rows) > 1 and whole.shape[: len(rows)] == rows
        if not fits or shape[-1] != result.shape[1]:
            return None
        reader, graph.source = graph.source, source
        made = product(graph.reshape(whole, (*rows, left.shape[1])))
        graph.source = reader
        return made

    graph.on_reshape(result, of_all_axes)
    return result


def gemm_value(node: OnnxNode, left: Value, graph: GraphBuilder) -> Value:
    """The node's product with this left operand, which may have more axes than a matrix."""
    right, bias = node.input(1), node.optional(2)
    if right.rank != 2:
        raise node.bad_shape(f"{left.type} and {right.type} are not two matrices")
    alpha, beta = node.floating("alpha", 1.0), node.floating("beta", 1.0)
    by_floats = not left.dtype.is_float and (alpha != 1 or beta != 1)
    if alpha != 1 and right.array is not None and not by_floats:
        right = graph.constant(np.multiply(right.array, alpha), right.dtype)
        alpha = 1.0
    product = graph.emit(
        "matmul",
        left,
        right,
        transpose_a=bool(node.integer("transA", 0)),
        transpose_b=bool(node.integer("transB", 0)),
    )
    if by_floats:  # scaled as f64, and what is behind the point goes
        product = graph.cast(product, DType.F64)
        bias = None if bias is None else graph.cast(bias, DType.F64)
    if alpha != 1:
        product = graph.emit("mul", product, graph.scalar(alpha, product.dtype))
    total = product
    if bias is not None and beta != 0:
        if beta != 1:
            bias = graph.emit("mul", bias, graph.scalar(beta, bias.dtype))
        total = graph.emit("add", product, bias)
        if total.shape != product.shape:
            raise node.bad_shape(f"C of {bias.type} does not broadcast to {product.type}")
    return graph.cast(total, left.dtype) if by_floats else total


@converter("Einsum", 12, 28)
def einsum(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Operands are joined pairwise from the left; an index goes when no later term needs it."""
    operands = list(node.present_inputs())
    terms, result = _einsum_terms(node, operands)
    labelled = [
        _diagonals(node, term, value, graph) for term, value in zip(terms, operands, strict=True)
    ]
    term, value = labelled[0]
    for position, (next_term, next_value) in enumerate(labelled[1:], start=1):
        needed = set(result).union(*(later for later, _ in labelled[position + 1 :]))
        term, value = _join(node, (term, value), (next_term, next_value), needed, graph)
    summed = tuple(axis for axis, label in enumerate(term) if label not in result)
    if summed:
        value = graph.emit("reduce_sum", value, axes=summed, keepdims=False)
        term = [label for label in term if label in result]
    perm = tuple(term.index(label) for label in result)
    return graph.transpose(value, perm)


def _einsum_terms(node: OnnxNode, operands: Sequence[Value]) -> tuple[list[list[str]], list[str]]:
    """Labels of each operand's axes and of the result's; an ellipsis becomes "0", "1", …"""
    equation = node.string("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    texts = left.split(",")
    if len(texts) != len(operands):
        raise node.invalid(f"the equation {equation!r} is not one of {len(operands)} operands")
    for text in [*texts, right]:
        letters = text.replace("...", "", 1)
        if not all(letter.isascii() and letter.isalpha() for letter in letters):
            raise node.invalid(f"the equation {equation!r} has the malformed term {text!r}")
    widths = [
        value.rank - len(text.replace("...", "")) if "..." in text else 0
        for text, value in zip(texts, operands, strict=True)
    ]
    if any(width < 0 for width in widths):
        raise node.bad_shape(f"the equation {equation!r} has more indices than an operand axes")
    widest = max(widths)
    terms = [
        _labels(text, [str(n) for n in range(widest - width, widest)])
        for text, width in zip(texts, widths, strict=True)
    ]
    for term, value in zip(terms, operands, strict=True):
        if len(term) != value.rank:
            raise node.bad_shape(f"the equation {equation!r} does not fit {value.type}")
    named = [label for term in terms for label in term if label.isalpha()]
    if arrow:
        result = _labels(right, [str(n) for n in range(widest)])
    else:
        result = [str(n) for n in range(widest)]
        result += sorted(label for label in set(named) if named.count(label) == 1)
    known = {label for term in terms for label in term}
    if len(set(result)) != len(result) or not set(result) <= known:
        raise node.invalid(f"the equation {equation!r} has a malformed result")
    return terms, result


def _labels(text: str, ellipsis: list[str]) -> list[str]:
    before, dots, after = text.partition("...")
    return [*before, *(ellipsis if dots else []), *after]


def _diagonals(
    node: OnnxNode, term: list[str], value: Value, graph: GraphBuilder
) -> tuple[list[str], Value]:
    """Merge axes of one operand that share a label into their diagonal."""
    term = list(term)
    for label in list(dict.fromkeys(term)):
        while term.count(label) > 1:
            first = term.index(label)
            second = term.index(label, first + 1)
            value = in_one_piece(in_one_piece(value, first, graph), second, graph)
            true = size_of(value.dims[first]), size_of(value.dims[second])
            if true[0] != true[1] and static_shape(true) is not None:
                raise node.bad_shape(f"the index {label} has two sizes in {value.type}")
            graph.run_time.require_equal(*true, f"node {graph.source!r}")
            rows, columns = value.shape[first], value.shape[second]
            n, size = min((rows, true[0]), (columns, true[1]), key=lambda found: found[0])
            rest = [axis for axis in range(value.rank) if axis not in (first, second)]
            value = graph.emit("transpose", value, perm=(*rest, first, second))
            value = as_whole(as_whole(value, value.rank - 2, graph), value.rank - 1, graph)
            outer = value.shape[:-2]
            flat = graph.reshape(value, (*outer, rows * columns))
            steps = (1,) * len(outer) + (columns + 1,)
            value = graph.emit(
                "slice", flat, starts=(0,) * flat.rank, steps=steps, shape=(*outer, n)
            )
            value = with_axis(value, value.rank - 1, ((size, n),), graph)
            term = [term[axis] for axis in rest] + [label]
    return term, value


def _join(
    node: OnnxNode,
    left: tuple[list[str], Value],
    right: tuple[list[str], Value],
    needed: set[str],
    graph: GraphBuilder,
) -> tuple[list[str], Value]:
    """Multiply two labelled tensors and sum over common indices that nobody needs: a matmul."""
    (a_term, a), (b_term, b) = left, right
    common = [label for label in a_term if label in b_term]
    for label in common:
        extents = {a.shape[a_term.index(label)], b.shape[b_term.index(label)]} - {1}
        if len(extents) > 1:
            raise node.bad_shape(f"the index {label} has the sizes {sorted(extents)}")
    summed = [
        label
        for label in common
        if label not in needed and a.shape[a_term.index(label)] == b.shape[b_term.index(label)]
    ]
    batch = [label for label in common if label not in summed]
    a_free = [label for label in a_term if label not in common]
    b_free = [label for label in b_term if label not in common]
    a = _arranged(a, a_term, [batch, a_free, summed], graph)
    b = _arranged(b, b_term, [batch, summed, b_free], graph)
    product = graph.emit("matmul", a, b)
    a_extents = _extents(left, a_free)
    b_extents = _extents(right, b_free)
    shape = (*product.shape[: len(batch)], *a_extents, *b_extents)
    return [*batch, *a_free, *b_free], graph.reshape(product, shape)


def _extents(labelled: tuple[list[str], Value], labels: Sequence[str]) -> list[int]:
    term, value = labelled
    return [value.shape[term.index(label)] for label in labels]


def _arranged(
    value: Value, term: list[str], groups: Sequence[Sequence[str]], graph: GraphBuilder
) -> Value:
    """Axes in the order of the groups; the first group stays, each other one becomes one axis."""
    value = graph.transpose(value, tuple(term.index(label) for group in groups for label in group))
    count = len(groups[0])
    shape = list(value.shape[:count])
    for group in groups[1:]:
        shape.append(math.prod(value.shape[count : count + len(group)]))
        count += len(group)
    return graph.reshape(value, tuple(shape))


# --- Det: Gaussian elimination with row pivoting, of a batch of matrices at once -----------------


@converter("Det", 11, 22)
def det(node: OnnxNode, graph: GraphBuilder) -> Value:
    data = node.input(0)
    if data.rank < 2 or data.shape[-1] != data.shape[-2]:
        raise node.bad_shape(f"{data.type} is no batch of square matrices")
    if not all(map(is_unpadded, data.dims[-2:])):
        raise graph.refusal(f"a determinant of {size_of(data.dims[-1])} rows", [data])
    wide = DType.F64 if data.dtype is DType.F64 else DType.F32
    rows = graph.cast(data, wide)
    rank, product = data.rank, None
    for _ in range(data.shape[-1]):
        pivot, rows = _eliminated(graph, rows)
        product = pivot if product is None else graph.emit("mul", product, pivot)
    if product is None:  # matrices without rows
        one = np.ones(data.shape[:-2], wide.numpy)
        return graph.cast(graph.constant(one), data.dtype)
    squeezed = graph.pick(graph.pick(product, rank - 1, 0), rank - 2, 0)
    return graph.cast(squeezed, data.dtype)


def _eliminated(graph: GraphBuilder, rows: Value) -> tuple[Value, Value]:
    """The pivot of the first column, [..., 1, 1], with the sign of the rows' exchange, and the
    matrices without its row and column."""
    rank, count = rows.rank, rows.shape[-1]
    row_axis, column_axis = rank - 2, rank - 1

    if count == 1:
        return rows, rows
    column = graph.part(rows, column_axis, 0, 1)
    size = graph.emit("abs", column)
    place = graph.emit("arg_max", size, axis=row_axis, keepdims=True)
    wide_place = graph.emit("expand", place, shape=(*rows.shape[:-2], 1, count))
    chosen = graph.emit("gather_elements", rows, wide_place, axis=row_axis)
    pivot = graph.part(chosen, column_axis, 0, 1)
    rows_below = graph.reshape(positions(count, graph), (count, 1))
    takes_first = graph.emit("equal", graph.part(rows_below, 0, 1, count - 1), place)
    first = graph.part(rows, row_axis, 0, 1)
    others = graph.part(rows, row_axis, 1, count - 1)
    others = graph.emit("where", takes_first, first, others)
    zero, one = graph.scalar(0, rows.dtype), graph.scalar(1, rows.dtype)
    divisor = graph.emit("where", graph.emit("equal", pivot, zero), one, pivot)
    factors = graph.emit("div", graph.part(others, column_axis, 0, 1), divisor)
    rest = graph.emit(
        "sub",
        graph.part(others, column_axis, 1, count - 1),
        graph.emit("mul", factors, graph.part(chosen, column_axis, 1, count - 1)),
    )
    stays = graph.emit("equal", place, graph.scalar(0, DType.I64))
    signed = graph.emit("where", stays, pivot, graph.emit("neg", pivot))
    return signed, rest
