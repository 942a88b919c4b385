"""Shape computations: operators on integers some of which a run computes.

They are NumPy's on object arrays of `Dimension`s, as constants are evaluated by
`tunefarm.compiler.frontend.constant_evaluation`. What cannot be said so becomes nodes of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Final, TypeAlias

import numpy as np

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.data_sizes import counted_size
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Sizes, Value
from tunefarm.compiler.frontend.numbers import Numbers
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.size_tables import (
    Between,
    Real,
    UndecidedError,
    applied,
    real_of,
    whole_number,
)
from tunefarm.compiler.frontend.structured_values import Entity
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.sizes import (
    Dimension,
    Size,
    bounds_of,
    divide,
    greater,
    product_of,
    quotient,
    remainder,
    smaller,
)
from tunefarm.compiler.types.tensor_type import Array

Evaluation: TypeAlias = Callable[[OnnxNode, list[Sizes]], "Sizes | list[Sizes] | None"]
_Elementwise: TypeAlias = Callable[[OnnxNode, list[Sizes]], Sizes]
_INTEGERS = (DType.I64, DType.I32)
_MOST_ELEMENTS = 4096
_MOST_POWER = 4


@frozen
class KnownResults:
    """What is known of the outputs of a node that computes with sizes.

    `values` are the outputs; None where nodes compute them, of which the rest is known.
    """

    arrays: Sequence[Sizes]
    values: list[Value] | None

    def record_sizes(
        self, results: Sequence[Entity | None], node: OnnxNode, graph: GraphBuilder
    ) -> list[Entity | None]:
        """The outputs that a converter made of the node, of which the rest is remembered."""
        known = zip(results, self.arrays, strict=False)
        text = [_recorded(result, array, node, graph) for result, array in known]
        return [*text, *results[len(text) :]]


def _recorded(
    result: Entity | None, numbers: Sizes, node: OnnxNode, graph: GraphBuilder
) -> Entity | None:
    """An output that nodes compute, as sizes where all of them have bounds."""
    if not isinstance(result, Value) or result.shape != numbers.shape:
        return result
    if result.dtype not in _INTEGERS:
        graph.record_sizes(result, numbers)
        return result
    flat, sizes = graph.reshape(result, (numbers.size,)), np.empty(numbers.size, object)
    for place, number in enumerate(numbers.reshape(-1).tolist()):
        sizes[place] = number
        if isinstance(number, Between):
            element = Numbers(flat, graph).cast(DType.I64).part(place, 1)
            sizes[place] = counted_size(node, graph, element.value, number.high, number.low)
    return graph.integers_of(sizes.reshape(numbers.shape), result.dtype)


def evaluate_sizes(node: OnnxNode, graph: GraphBuilder) -> KnownResults | None:
    """A node's outputs where they are computed of sizes; None where nothing is known of them."""
    if node.domain or not any(_is_sized(value, graph) for value in node.inputs):
        return None
    evaluation = _EVALUATIONS.get(node.operator)
    given = node.inputs[:1] if node.operator == "CastLike" else node.inputs
    inputs = [value for value in given if value is not None]
    operands = [contents_of(value, graph) for value in inputs]
    arrays = [array for array in operands if array is not None]
    if evaluation is None or len(arrays) != len(operands):
        return None
    arrays = [
        _named(value, array, node, graph) for value, array in zip(inputs, arrays, strict=True)
    ]
    try:
        found = evaluation(node, arrays)
    except (ShapeError, UndecidedError):
        return None
    if found is None:
        return None
    dtype = _result_type(node)
    results = [
        np.asarray(array, object) for array in (found if isinstance(found, list) else [found])
    ]
    values = [_value(array, dtype, graph) for array in results]
    there = [value for value in values if value is not None]
    return KnownResults(results, there if len(there) == len(values) else None)


def _named(value: Entity, numbers: Sizes, node: OnnxNode, graph: GraphBuilder) -> Sizes:
    """The numbers of an operand; integers of which bounds alone are known are sizes from now on."""
    is_bounded = any(isinstance(number, Between) for number in numbers.reshape(-1))
    if not (is_bounded and isinstance(value, Value) and value.dtype in _INTEGERS):
        return numbers
    sized = _recorded(value, numbers, node, graph)
    assert isinstance(sized, Value)
    assert sized.sizes is not None
    graph.record_sizes(value, sized.sizes)
    return sized.sizes


def _is_sized(value: Entity | None, graph: GraphBuilder) -> bool:
    return isinstance(value, Value) and (
        value.sizes is not None or graph.recorded_sizes(value) is not None
    )


def contents_of(value: Entity, graph: GraphBuilder) -> Sizes | None:
    """The numbers of a value that is constant or computed of sizes; None of other values."""
    if not isinstance(value, Value):
        return None
    if value.sizes is not None:
        return value.sizes
    array = value.array
    if array is None or value.padded is not None or array.size > _MOST_ELEMENTS:
        return graph.recorded_sizes(value)
    if array.dtype.kind in "iub":
        return np.array(array.tolist(), object).reshape(array.shape)
    found = np.empty(array.shape, object)
    found.reshape(-1)[:] = list(array.reshape(-1))  # scalars that round as the array does
    return found if array.dtype.kind == "f" else None


def _result_type(node: OnnxNode) -> DType:
    if node.operator == "Cast":
        return dtype_of(node.integer("to"), f"{node.label}: the result")
    if node.operator in _TYPED_BY:
        return node.input(_TYPED_BY[node.operator]).dtype
    return DType.BOOL if node.operator in _COMPARISONS else node.input(0).dtype


def _value(array: Sizes, dtype: DType, graph: GraphBuilder) -> Value | None:
    if dtype in _INTEGERS:
        is_bounded = any(isinstance(size, Between) for size in array.reshape(-1))
        return None if is_bounded else graph.integers_of(array, dtype)
    if dtype is not DType.BOOL or any(isinstance(flag, Size) for flag in array.reshape(-1)):
        return None
    return graph.constant(np.array(array.tolist(), np.bool_).reshape(array.shape))


# --- elements -----------------------------------------------------------------------------------


def _each(
    function: Callable[[Dimension, Dimension], Dimension], floats: np.ufunc | None = None
) -> _Elementwise:
    """A function of two integers, or of two floats, or of more one after the other."""

    def evaluate(node: OnnxNode, operands: list[Sizes]) -> Sizes:
        if not node.input(0).dtype.is_float:
            return reduce(partial(_mapped, function), operands)
        if floats is None:
            raise UndecidedError
        return _of_floats(floats)(node, operands)

    return evaluate


def _of_floats(function: np.ufunc) -> _Elementwise:
    """A function of one float, or of two, or of more one after the other."""
    apply = partial(_mapped, partial(applied, function))

    def evaluate(node: OnnxNode, operands: list[Sizes]) -> Sizes:
        return reduce(apply, operands) if function.nin == 2 else apply(*operands)

    return evaluate


def _mapped(function: Callable[..., object], *operands: Sizes) -> Sizes:
    """A function of all elements, which broadcast."""
    apply: Callable[..., object] = np.frompyfunc(function, len(operands), 1)
    return np.asarray(apply(*operands), object)


def _quotient(left: Dimension, right: Dimension) -> Dimension:
    if isinstance(left, int) and isinstance(right, int) and right:
        magnitude = abs(left) // abs(right)
        return magnitude if (left < 0) == (right < 0) else -magnitude
    if bounds_of(right)[1] < 0:
        return _quotient(left, -right) * -1
    exact = quotient(left, right)  # whatever a divisor of 0 would give
    if exact is not None:
        return exact
    if bounds_of(left)[0] >= 0:
        return divide(left, right)
    if bounds_of(right)[0] < 1:
        raise UndecidedError
    return divide(greater(left, 0), right) - divide(greater(-left, 0), right)  # towards 0


def _power(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    """Of floats, and of integers by small numbers."""
    if node.input(0).dtype.is_float:
        return _of_floats(np.power)(node, operands)
    exponents = operands[1].reshape(-1).tolist()
    if not all(isinstance(n, int) and 0 <= n <= _MOST_POWER for n in exponents):
        raise UndecidedError
    return _mapped(lambda size, n: product_of([size] * n), *operands)


def _modulo(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    """With the sign of the divisor, which is positive; with `fmod` with that of the dividend."""
    data = operands[0].reshape(-1).tolist()
    if node.integer("fmod", 0) and any(bounds_of(size)[0] < 0 for size in data):
        raise UndecidedError
    return _each(remainder)(node, operands)


def _equal(left: Dimension, right: Dimension) -> Dimension:
    """1 or 0."""
    low, high = bounds_of(left - right)
    if low > 0 or high < 0:
        return 0
    return greater(1 - greater(left - right, right - left), 0)


def _less(left: Dimension, right: Dimension) -> Dimension:
    """1 or 0."""
    return smaller(greater(right - left, 0), 1)


_COMPARISONS: Final[dict[str, Callable[[Dimension, Dimension], Dimension]]] = {
    "Equal": _equal,
    "Less": _less,
    "Greater": lambda left, right: _less(right, left),
    "LessOrEqual": lambda left, right: 1 - _less(right, left),
    "GreaterOrEqual": lambda left, right: 1 - _less(left, right),
}


def _absolute(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    if node.input(0).dtype.is_float:
        return _of_floats(np.abs)(node, operands)
    return _mapped(lambda size: greater(size, -size), operands[0])


def _negative(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    if node.input(0).dtype.is_float:
        return _of_floats(np.negative)(node, operands)
    return -operands[0]


def _where(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    return _mapped(_chosen, *operands)


def _chosen(condition: Dimension, then: Dimension | Real, otherwise: Dimension | Real) -> object:
    """One of two sizes as a 1 or 0 says; bounds of a sum are wider than those of both."""
    if isinstance(condition, int):
        return then if condition else otherwise
    if not (isinstance(then, int | Size) and isinstance(otherwise, int | Size)):
        raise UndecidedError
    if _less(then, otherwise) == condition or _less(then, otherwise + 1) == condition:
        return smaller(then, otherwise)
    if _less(otherwise, then) == condition or _less(otherwise, then + 1) == condition:
        return greater(then, otherwise)
    (low, high), (least, most) = bounds_of(then), bounds_of(otherwise)
    either = otherwise + condition * (then - otherwise)
    return smaller(greater(either, min(low, least)), max(high, most))


def _clip(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    data, *bounds = operands
    if node.input(0).dtype.is_float or node.version < 11:
        raise UndecidedError
    for position, function in ((1, greater), (2, smaller)):
        if node.optional(position) is not None:
            data = _mapped(function, data, bounds.pop(0))
    return data


# --- shapes -------------------------------------------------------------------------------------


def _unchanged(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    return operands[0]


def _cast(node: OnnxNode, operands: list[Sizes]) -> Sizes | None:
    """Between integers, floats and bools."""
    before, after = node.input(0).dtype, _result_type(node)
    if before.is_float:
        if after in _INTEGERS:
            return _mapped(_size_of, operands[0])
        return operands[0] if after is before else None
    if after.is_float:
        return _mapped(lambda size: real_of(size, after), operands[0])
    if after is DType.BOOL:
        return _mapped(lambda size: 1 - _equal(size, 0), operands[0])
    return operands[0] if after in _INTEGERS else None


def _size_of(value: Real) -> Dimension | Between:
    number = whole_number(value)
    if isinstance(number, Between) and number.low < 0:
        raise UndecidedError
    return number


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


def _reduced(
    function: Callable[[Dimension, Dimension], Dimension], floats: np.ufunc | None = None
) -> Evaluation:
    """A function of all elements of a vector; of floats one that does not depend on their order."""

    def evaluate(node: OnnxNode, operands: list[Sizes]) -> Sizes:
        data, axes = operands[0], _axes(node)
        keep = bool(node.integer("keepdims", 1))
        combine: Callable[..., object] = function
        if node.input(0).dtype.is_float:
            if floats is None:
                raise UndecidedError
            combine = partial(applied, floats)
        if data.ndim > 1 or (axes is not None and len(axes) != 1):
            raise UndecidedError
        total = reduce(combine, data.reshape(-1).tolist())
        return np.array([total] if keep and data.ndim else total, object)

    return evaluate


def _scatter_nd(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    """Elements, or rows, in other places."""
    data, places, updates = operands
    if node.string("reduction", "none") != "none":
        raise UndecidedError
    result = data.copy()
    for place in np.ndindex(places.shape[:-1]):
        at = tuple(int(n) for n in places[place])
        if any(not -extent <= n < extent for n, extent in zip(at, data.shape, strict=False)):
            raise UndecidedError
        result[at] = updates[place]
    return result


def _transpose(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    order = tuple(reversed(range(operands[0].ndim)))
    return np.transpose(operands[0], node.integers("perm", order))


def _expand(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    shape = node.constant_integers(1, "the shape")
    return np.broadcast_to(operands[0], np.broadcast_shapes(operands[0].shape, shape))


def _one_hot(node: OnnxNode, operands: list[Sizes]) -> Sizes:
    """Repeats of one axis, as exporters spell them: the number at its place, and ones."""
    axis = node.axis(node.integer("axis", -1), operands[0].ndim + 1)
    (depth,) = node.constant_integers(1, "the depth")
    return np.asarray(one_hot_of(operands[0], depth, operands[2], axis), object)


def one_hot_of(places: Array | Sizes, depth: int, values: Array | Sizes, axis: int) -> Array:
    """The second of two values at these places of a new axis, the first at all others."""
    numbers = np.asarray(places, np.int64)
    there = np.where((numbers >= -depth) & (numbers < depth), numbers % depth, depth)
    hot = np.moveaxis(there[..., np.newaxis] == np.arange(depth), -1, axis)
    return np.asarray(np.where(hot, values[1], values[0]))


_TYPED_BY: Final = {"Where": 1, "CastLike": 1, "OneHot": 2}
"""Operators whose result is of another operand's type than the first one's."""

_EVALUATIONS: Final[dict[str, Evaluation]] = {
    "Identity": _unchanged,
    "Cast": _cast,
    "CastLike": _cast,
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
    "OneHot": _one_hot,
    "Abs": _absolute,
    "Clip": _clip,
    "ScatterND": _scatter_nd,
    "Neg": _negative,
    "Add": _each(lambda left, right: left + right, np.add),
    "Sub": _each(lambda left, right: left - right, np.subtract),
    "Mul": _each(lambda left, right: left * right, np.multiply),
    "Div": _each(_quotient, np.divide),
    "Mod": _modulo,
    "Min": _each(smaller, np.minimum),
    "Max": _each(greater, np.maximum),
    "Pow": _power,
    "Floor": _of_floats(np.floor),
    "Ceil": _of_floats(np.ceil),
    "Round": _of_floats(np.rint),
    "Sqrt": _of_floats(np.sqrt),
    "Reciprocal": _of_floats(np.reciprocal),
    "Not": lambda node, operands: 1 - operands[0],
    "And": _each(lambda left, right: left * right),
    "Or": _each(greater),
    "Xor": _each(lambda left, right: left + right - 2 * (left * right)),
    "ReduceProd": _reduced(lambda left, right: left * right),
    "ReduceSum": _reduced(lambda left, right: left + right),
    "ReduceMax": _reduced(greater, np.maximum),
    "ReduceMin": _reduced(smaller, np.minimum),
    **{name: _each(function) for name, function in _COMPARISONS.items()},
}
