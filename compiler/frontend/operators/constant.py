"""Constants, shapes, fills and ranges: known at import, or of sizes that a run computes."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.frontend.converter import converter, dynamic_operand
from tunefarm.compiler.frontend.data_sizes import counted_size
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import with_axis
from tunefarm.compiler.frontend.operators.shape import sized_expand
from tunefarm.compiler.frontend.run_time_sizes import object_array
from tunefarm.compiler.frontend.settle import (
    bounded,
    declared,
    expect_constant,
    has_dynamic_sizes,
    require,
    require_rows,
    shape_text,
    sized,
)
from tunefarm.compiler.frontend.size_arithmetic import contents_of
from tunefarm.compiler.frontend.size_tables import Between, UndecidedError, applied, whole_number
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import (
    Dimension,
    bounds_of,
    divide,
    greater,
    product_of,
    static_shape,
)
from tunefarm.compiler.types.tensor_type import Array


@converter("Constant", 1, 9, 11, 12, 13, 19, 21, 23, 24, 25)
def constant(node: OnnxNode, graph: GraphBuilder) -> Value:
    if len(node.attributes) != 1:
        raise node.invalid(f"needs one attribute with the value, and has {len(node.attributes)}")
    name, value = next(iter(node.attributes.items()))
    if name in ("value", "sparse_value") and isinstance(value, np.ndarray):
        return graph.constant(value)
    if name in ("value_float", "value_floats"):
        return graph.constant(np.asarray(value, np.float32))
    if name in ("value_int", "value_ints"):
        return graph.constant(np.asarray(value, np.int64))
    if name in ("value_string", "value_strings"):
        return graph.constant(np.array(value, object))
    raise node.unsupported(f"the attribute {name}")


@converter("Shape", 1, 13, 15, 19, 21, 23, 24, 25)
def shape(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Version 15 can cut axes off; out-of-range ends are clamped."""
    value = node.input(0)
    start = node.integer("start", 0)
    end = node.integer("end", value.rank)
    sizes = value.true_shape[start if start >= -value.rank else 0 : end]
    numbers = static_shape(sizes)
    return graph.integers_of(object_array(sizes)) if numbers is None else graph.integers(numbers)


@converter("Size", 1, 13, 19, 21, 23, 24, 25)
def size(node: OnnxNode, graph: GraphBuilder) -> Value:
    size = product_of(node.input(0).true_shape)
    if isinstance(size, int):
        return graph.scalar(size, DType.I64)
    return graph.integers_of(object_array((size,)).reshape(()))


@converter("ConstantOfShape", 9, 20, 21, 23, 24, 25)
def constant_of_shape(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Small results are constants (they may be shapes), large ones an `expand`."""
    value = node.attributes.get("value")
    fill: Array = np.zeros((), np.float32)
    if isinstance(value, np.ndarray):
        if value.size != 1:
            raise node.invalid("the value must have one element")
        fill = value.reshape(())
    if node.input(0).sizes is not None:
        return _sized_fill(node, graph.constant(fill), graph)
    wanted = node.constant_integers(0, "the shape")
    if any(extent < 0 for extent in wanted):
        raise node.bad_shape(f"the shape {list(wanted)} has a negative dimension")
    if math.prod(wanted) <= 4096:
        return graph.constant(np.full(wanted, fill))
    return graph.emit("expand", graph.constant(fill), shape=wanted)


def _sized_fill(node: OnnxNode, fill: Value, graph: GraphBuilder) -> Value:
    """A value in each place of a dynamic shape."""
    shape = node.sizes(0, "the shape")
    if any(bounds_of(size)[1] < 0 for size in shape):
        raise node.bad_shape(f"the shape {shape_text(shape)} has a negative dimension")
    return sized_expand(fill, shape, node, graph)


@dynamic_operand("ConstantOfShape", at=(0,))
def computed_fill(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """The declared shape, which a run checks."""
    sizes = node.declared_sizes()
    if has_dynamic_sizes(sizes):
        return node.with_constants({0: sized(node, graph, 0, sizes, "the shape")})
    wanted = node.declared_shape()
    if wanted is None:
        return bounded(node, graph, 0, "the shape", low=0)
    return node.with_constants({0: expect_constant(node, graph, 0, wanted, "the shape")})


@converter("Range", 11, 27)
def range_(node: OnnxNode, graph: GraphBuilder) -> Value:
    dynamic = _sized_range(node, graph)
    if dynamic is not None:
        return dynamic
    arrays = [
        node.constant(position, f"the {name}")
        for position, name in enumerate(("start", "limit", "delta"))
    ]
    if any(array.size != 1 for array in arrays):
        raise node.bad_shape("start, limit and delta must be scalars")
    start, limit, delta = (array.reshape(-1)[0].item() for array in arrays)
    if delta == 0 or not all(map(math.isfinite, (start, limit, delta))):
        raise node.invalid(f"there is no range from {start} to {limit} in steps of {delta}")
    count = max(math.ceil((limit - start) / delta), 0)
    graph.check_array((count,), 8)
    steps = np.arange(count, dtype=arrays[0].dtype)
    return graph.constant((start + steps * delta).astype(arrays[0].dtype))


def _sized_range(node: OnnxNode, graph: GraphBuilder) -> Value | None:
    """Integers from a start to a limit that a run computes; None where all are constant."""
    values = [node.input(position) for position in range(3)]
    if all(value.sizes is None for value in values):
        return None
    start, limit, delta = (_scalar(node, position) for position in range(3))
    least, greatest = bounds_of(delta)
    if least <= 0 <= greatest:
        raise node.unsupported(f"a step of {delta}, which may be 0,")
    length, apart = (limit - start, delta) if least > 0 else (start - limit, -delta)
    count = greater(length if apart == 1 else -divide(-length, apart), 0)
    most = bounds_of(count)[1]
    if most == 0:
        raise node.bad_shape("the range has no elements")
    graph.check_array((most,), 8)
    dtype = values[0].dtype
    if isinstance(delta, int):
        steps = graph.constant(delta * np.arange(most, dtype=np.int64), dtype)
    else:
        numbers = graph.constant(np.arange(most, dtype=np.int64), dtype)
        steps = graph.emit("mul", numbers, graph.size(delta, dtype))
    result = graph.emit("add", steps, graph.size(start, dtype))
    return with_axis(result, 0, ((count, most),), graph)


def _scalar(node: OnnxNode, position: int) -> Dimension:
    found = node.sizes(position, "a bound of the range")
    if len(found) != 1:
        raise node.bad_shape("start, limit and delta must be scalars")
    return found[0]


@dynamic_operand("Range", at=(0, 1, 2))
def computed_range(node: OnnxNode, graph: GraphBuilder) -> Value:
    """start + i * delta, for as many i as the model declares, or as the limits allow."""
    operands = [node.input(position) for position in range(3)]
    if any(value.type.size != 1 for value in operands):
        raise node.bad_shape("start, limit and delta must be scalars")
    at = next(position for position in (1, 0, 2) if node.is_computed(position))
    meaning = f"the {('start', 'limit', 'delta')[at]}"
    dtype, sizes = operands[0].dtype, node.declared_sizes()
    start, limit, delta = (Numbers(graph.reshape(value, ()), graph) for value in operands)
    steps = _steps(start, limit, delta)
    if has_dynamic_sizes(sizes):
        given = node.with_constants({at: steps.cast(DType.I64).value})
        sized(given, graph, at, sizes, "the number of elements")
        count = bounds_of(sizes[0])[1]
    elif (range_steps := _range_steps(node, graph)) is not None:
        sizes, count = (range_steps,), bounds_of(range_steps)[1]
    elif node.declared_shape() is None:
        count = require_rows(node, graph, at, steps, meaning)
        sizes = (counted_size(node, graph, steps.cast(DType.I64).value, count, low=1),)
    else:
        (count,) = declared(node, at, meaning)
        require(node, graph, at, steps.equals(count), f"{meaning} must give {count} elements")
    graph.check_array((count,), dtype.bytes)
    if count == 0:
        return graph.constant(np.empty(0, dtype.numpy))
    places = Numbers(graph.constant(np.arange(count).astype(dtype.numpy)), graph)
    result = (places * delta + start).value
    return graph.with_dims(result, (((sizes[0], count),),)) if has_dynamic_sizes(sizes) else result


def _range_steps(node: OnnxNode, graph: GraphBuilder) -> Dimension | None:
    """The number of elements where floats are computed of a size; None where they are not."""
    text = [contents_of(node.input(position), graph) for position in range(3)]
    if not node.input(0).dtype.is_float or any(numbers is None for numbers in text):
        return None
    bounds = [numbers.reshape(-1)[0] for numbers in text if numbers is not None]
    try:
        number = whole_number(applied(_number_of_steps, *bounds))
    except UndecidedError:
        return None
    return None if isinstance(number, Between) else number


def _number_of_steps(
    start: npt.NDArray[np.float64], limit: npt.NDArray[np.float64], delta: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    return np.maximum(np.ceil((limit - start) / delta), 0)


def _steps(start: Numbers, limit: Numbers, delta: Numbers) -> Numbers:
    """How many elements the range has, -1 where it is none: a scalar."""
    if start.dtype.is_float:
        start, limit, delta = (number.cast(DType.F64) for number in (start, limit, delta))
        divisor = delta.equals(0).choose(delta.like(1), delta)
        count = ((limit - start) / divisor).apply("ceil").at_least(0)
    else:
        start, limit, delta = (number.cast(DType.I64) for number in (start, limit, delta))
        size = delta.apply("abs").at_least(1)
        distance = (delta < 0).choose(start - limit, limit - start).at_least(0)
        count = (distance + size - 1) / size
    return delta.equals(0).choose(count.like(-1), count)


@converter("EyeLike", 9, 22)
def eye_like(node: OnnxNode, graph: GraphBuilder) -> Value:
    like = graph.padded.dense(node.input(0))
    if like.rank != 2:
        raise node.bad_shape(f"the input must be a matrix, not {like.type}")
    dtype = like.dtype
    if node.has("dtype"):
        dtype = dtype_of(node.integer("dtype"), f"{node.label}: the result")
    graph.check_array(like.shape, dtype.bytes)
    rows, columns = like.shape
    k = max(min(node.integer("k", 0), columns), -rows)
    eye = graph.constant(np.eye(rows, columns, k, dtype=dtype.numpy))
    return graph.padded.begins(eye, like.dims)
