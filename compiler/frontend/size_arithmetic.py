"""Shape computations: operators on integers some of which are known at run time only.

They are NumPy's on object arrays of `Dimension`s, as constants are evaluated by
`compiler.frontend.constant_evaluation`. What cannot be said so becomes nodes of the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Final, TypeAlias

import numpy as np

from compiler.errors import ShapeError
from compiler.frontend.element_types import dtype_of
from compiler.frontend.graph_builder import GraphBuilder, Sizes, Value
from compiler.frontend.onnx_node import OnnxNode
from compiler.frontend.structured_values import Entity
from compiler.types.dtypes import DType
from compiler.types.sizes import Dimension, bounds_of, divide, greater, remainder, smaller

Evaluation: TypeAlias = Callable[[OnnxNode, list[Sizes]], "Sizes | list[Sizes] | None"]
_INTEGERS = (DType.I64, DType.I32)


def evaluate_sizes(node: OnnxNode, graph: GraphBuilder) -> list[Value] | None:
    """A node's outputs where they are computed of sizes; None where that takes nodes."""
    if not any(isinstance(value, Value) and value.sizes is not None for value in node.inputs):
        return None
    evaluation = _EVALUATIONS.get(node.operator)
    operands = [contents_of(value) for value in node.inputs if value is not None]
    arrays = [array for array in operands if array is not None]
    if evaluation is None or node.domain or len(arrays) != len(operands):
        return None
    try:
        found = evaluation(node, arrays)
    except (ShapeError, _UndecidedError):
        return None
    if found is None:
        return None
    dtype = _result_type(node)
    results = found if isinstance(found, list) else [found]
    return [_value(array, dtype, graph) for array in results]


class _UndecidedError(Exception):
    """The result depends on what is known at run time only."""


def contents_of(value: Entity) -> Sizes | None:
    """The integers of a value that is constant or computed of sizes; None of other values."""
    if not isinstance(value, Value):
        return None
    if value.sizes is not None:
        return value.sizes
    if value.array is None or value.padded is not None or value.array.dtype.kind not in "iub":
        return None
    return np.array(value.array.tolist(), object).reshape(value.array.shape)


def _result_type(node: OnnxNode) -> DType:
    if node.operator == "Cast":
        return dtype_of(node.integer("to"), f"{node.label}: the result")
    if node.operator == "Where":
        return node.input(1).dtype
    return DType.BOOL if node.operator in _COMPARISONS else node.input(0).dtype


def _value(array: Sizes, dtype: DType, graph: GraphBuilder) -> Value:
    array = np.asarray(array, object)
    if dtype in _INTEGERS:
        return graph.integers_of(array, dtype)
    return graph.constant(np.array(array.tolist(), dtype.numpy).reshape(array.shape))


# --- elements -----------------------------------------------------------------------------------


def _each(function: Callable[[Dimension, Dimension], Dimension | bool]) -> Evaluation:
    def evaluate(node: OnnxNode, operands: list[Sizes]) -> Sizes:
        apply = np.frompyfunc(function, 2, 1)
        return np.asarray(reduce(apply, operands), object)

    return evaluate


def _quotient(left: Dimension, right: Dimension) -> Dimension:
    if isinstance(left, int) and isinstance(right, int) and right:
        magnitude = abs(left) // abs(right)
        return magnitude if (left < 0) == (right < 0) else -magnitude
    if bounds_of(left)[0] >= 0:
        return divide(left, right)
    if bounds_of(right)[0] < 1:
        raise _UndecidedError
    return divide(greater(left, 0), right) - divide(greater(-left, 0), right)  # towards 0


def _modulo(node: OnnxNode, operands: list[Sizes]) -> Sizes | list[Sizes] | None:
    """With the sign of the divisor, which is positive; with `fmod` with that of the dividend."""
    if node.integer("fmod", 0) and any(bounds_of(s)[0] < 0 for s in operands[0].reshape(-1)):
        return None
    return _each(remainder)(node, operands)


def _difference(left: Dimension, right: Dimension) -> tuple[int, int]:
    return bounds_of(left - right)


def _equal(left: Dimension, right: Dimension) -> bool:
    low, high = _difference(left, right)
    if low <= 0 <= high and low != high:
        raise _UndecidedError
    return low == high == 0


def _less(left: Dimension, right: Dimension) -> bool:
    low, high = _difference(left, right)
    if low < 0 <= high:
        raise _UndecidedError
    return high < 0


_COMPARISONS: Final = {
    "Equal": _equal,
    "Less": _less,
    "Greater": lambda left, right: _less(right, left),
    "LessOrEqual": lambda left, right: not _less(right, left),
    "GreaterOrEqual": lambda left, right: not _less(left, right),
}


def _absolute(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    return np.asarray(np.frompyfunc(lambda size: greater(size, -size), 1, 1)(operands[0]), object)


def _where(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    condition, then, otherwise = operands
    if not all(isinstance(item, bool) for item in condition.reshape(-1).tolist()):
        raise _UndecidedError
    return np.where(condition.astype(np.bool_), then, otherwise)


# --- shapes -------------------------------------------------------------------------------------


def _unchanged(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    return operands[0]


def _cast(node: OnnxNode, operands: list[Sizes]) -> Sizes | None:
    if dtype_of(node.integer("to"), f"{node.label}: the result") not in _INTEGERS:
        return None
    return operands[0]


def _axes(node: OnnxNode) -> tuple[int, ...] | None:
    return node.given_integers("axes", 1, "the list of axes")


def _squeeze(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    axes = _axes(node)
    return np.squeeze(operands[0], axis=axes)


def _unsqueeze(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    axes = _axes(node) or ()
    return np.expand_dims(operands[0], axes)


def _reshape(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    shape = node.given_integers("shape", 1, "the shape") or ()
    kept = (operands[0].shape[a] if extent == 0 else extent for a, extent in enumerate(shape))
    return operands[0].reshape(tuple(kept))


def _concat(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    return np.concatenate(operands, node.integer("axis", 1))


def _gather(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    picks = operands[1].astype(np.int64)
    return np.asarray(np.take(operands[0], picks, node.integer("axis", 0)), object)


def _slice(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    starts, ends, axes, steps = (
        node.given_integers(name, position, f"the list of {name}")
        for position, name in enumerate(("starts", "ends", "axes", "steps"), start=1)
    )
    starts, ends = starts or (), ends or ()
    steps = (1,) * len(starts) if steps is None else steps
    picked = [slice(None)] * operands[0].ndim
    axes = tuple(range(len(starts))) if axes is None else axes
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        backwards = step < 0 and end < -operands[0].shape[axis]
        picked[axis] = slice(start, None if backwards else end, step)
    return operands[0][tuple(picked)]


def _split(node: OnnxNode, operands: list[Sizes]) -> list[Sizes]:
    axis, parts = node.integer("axis", 0), len(node.outputs)
    sizes = node.given_integers("split", 1, "the sizes of the parts")
    if sizes is None:
        part = -(-operands[0].shape[axis] // parts)
        sizes = (part,) * (parts - 1)
    else:
        sizes = sizes[:-1]
    return list(np.split(operands[0], np.cumsum(sizes), axis))


def _reduced(function: Callable[[Dimension, Dimension], Dimension]) -> Evaluation:
    def evaluate(node: OnnxNode, operands: list[Sizes]) -> Sizes:
        data, axes = operands[0], _axes(node)
        keep = bool(node.integer("keepdims", 1))
        if data.ndim > 1 or (axes is not None and len(axes) != 1):
            raise _UndecidedError
        total = reduce(function, data.reshape(-1).tolist())
        return np.array([total] if keep and data.ndim else total, object)

    return evaluate


def _transpose(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    order = tuple(reversed(range(operands[0].ndim)))
    return np.transpose(operands[0], node.integers("perm", order))


def _expand(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    shape = node.constant_integers(1, "the shape")
    return np.broadcast_to(operands[0], np.broadcast_shapes(operands[0].shape, shape))


_EVALUATIONS: Final[dict[str, Evaluation]] = {
    "Identity": _unchanged,
    "Cast": _cast,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Flatten": lambda node, operands: operands[0].reshape(1, -1),
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
    "Expand": _expand,
    "Transpose": _transpose,
    "Where": _where,
    "Abs": _absolute,
    "Neg": lambda node, operands: -operands[0],
    "Add": _each(lambda left, right: left + right),
    "Sub": _each(lambda left, right: left - right),
    "Mul": _each(lambda left, right: left * right),
    "Div": _each(_quotient),
    "Mod": _modulo,
    "Min": _each(smaller),
    "Max": _each(greater),
    "ReduceProd": _reduced(lambda left, right: left * right),
    "ReduceSum": _reduced(lambda left, right: left + right),
    "ReduceMax": _reduced(greater),
    "ReduceMin": _reduced(smaller),
    **{name: _each(function) for name, function in _COMPARISONS.items()},
}
