"""Shapes, sizes and counts that are computed: the declared shape of the result settles them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.data_sizes import counted_size
from tunefarm.compiler.frontend.dynamic_operands import dynamic_operand
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers, vector
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import compacted, positions, taken
from tunefarm.compiler.frontend.run_time_sizes import object_array
from tunefarm.compiler.frontend.settle import declared, expect_constant, fitting, require, sized
from tunefarm.compiler.frontend.size_arithmetic import contents_of
from tunefarm.compiler.frontend.size_tables import Between, UndecidedError, applied, whole_number
from tunefarm.compiler.operators.rules import broadcast_shapes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import Dimension, bounds_of, greater, static_shape


def _is_sized(sizes: Sequence[Dimension] | None) -> TypeGuard[Sequence[Dimension]]:
    """Whether a declared shape has dynamic sizes."""
    return sizes is not None and static_shape(sizes) is None


@dynamic_operand("Reshape", at=(1,), padded=True)
def reshape(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """Each entry is the extent, 0 where the data has it, too, or -1, that once."""
    sizes = node.declared_sizes()
    if _is_sized(sizes):
        return node.with_constants({1: sized(node, graph, 1, sizes, "the shape", inferred=True)})
    data, wanted = node.input(0), declared(node, 1, "the shape")
    if data.padded is not None:
        raise node.not_settled(1, "the shape")
    given = vector(node.input(1), graph)
    if given.shape != (len(wanted),):
        raise node.bad_shape(
            f"the shape has {given.shape[0]} entries, the declared result {wanted}"
        )
    if not wanted:
        return node.with_constants({1: graph.integers(())})
    left = given.equals(-1)
    right = given.equals(given.like(wanted)) | left
    if not node.integer("allowzero", 0):
        kept = [e == extent for e, extent in zip(wanted, data.shape, strict=False)]
        kept += [False] * (len(wanted) - len(kept))
        right = right | (given.equals(0) & Numbers(graph.constant(np.array(kept)), graph))
    right = right & (left.cast(DType.I64).sum(0) < 2)
    require(node, graph, 1, right, f"the shape must be {list(wanted)}")
    return node.with_constants({1: graph.integers(wanted)})


@dynamic_operand("Expand", at=(1,), padded=True)
def expand(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """Each entry is the result's extent, or 1 where the data has that."""
    data, given = node.input(0), vector(node.input(1), graph)
    count, sizes = given.shape[0], node.declared_sizes()
    if _is_sized(sizes):
        given_sizes: list[Dimension] = [*(1,) * (len(sizes) - data.rank), *data.true_shape]
        ones = [old == new for old, new in zip(given_sizes, sizes, strict=True)][-count:]
        shape = sized(node, graph, 1, sizes[-count:], "the shape", ones=ones)
        return node.with_constants({1: shape})
    if data.padded is not None:
        raise node.not_settled(1, "the shape")
    wanted = node.declared_shape()
    if wanted is None and 1 not in data.shape and count <= data.rank:
        wanted = data.shape
    if wanted is None:
        raise node.not_settled(1, "the shape")
    if len(wanted) != max(count, data.rank) or not _expands(data.shape, wanted):
        raise node.bad_shape(f"{data.type} does not expand to the declared {list(wanted)}")
    asked = wanted[len(wanted) - count :]
    there = (*(1,) * (len(wanted) - data.rank), *data.shape)[len(wanted) - count :]
    kept = np.array([old == new for old, new in zip(there, asked, strict=True)])
    right = given.equals(given.like(asked))
    right = right | (given.equals(1) & Numbers(graph.constant(kept), graph))
    require(node, graph, 1, right, f"the shape must be {list(asked)}")
    return node.with_constants({1: graph.integers(asked)})


def _expands(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    try:
        return broadcast_shapes(shape, wanted) == wanted
    except ShapeError:
        return False


@dynamic_operand("Tile", at=(1,), padded=True)
def tile(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Repeats that give the declared shape."""
    if node.version == 1:
        raise node.not_settled(1, "the number of tiles")
    data, sizes = node.input(0), node.declared_sizes()
    if _is_sized(sizes):
        return _tiled(node, graph, data, sizes)
    wanted = declared(node, 1, "the list of repeats")
    if data.padded is not None:
        raise node.not_settled(1, "the list of repeats")
    if len(wanted) != data.rank or any(e % old for e, old in zip(wanted, data.shape, strict=True)):
        raise node.bad_shape(f"{data.type} is not repeated to the declared {list(wanted)}")
    repeats = [extent // old for extent, old in zip(wanted, data.shape, strict=True)]
    return node.with_constants({1: expect_constant(node, graph, 1, repeats, "the list of repeats")})


def _tiled(node: OnnxNode, graph: GraphBuilder, data: Value, wanted: Sequence[Dimension]) -> Value:
    """The data again and again, as often as gives the declared shape."""
    repeats = vector(node.input(1), graph)
    if len(wanted) != data.rank or repeats.shape != (data.rank,):
        raise node.bad_shape(
            f"{data.type} is not repeated to the declared {list(map(str, wanted))}"
        )
    data = compacted(data, graph)
    there = data.true_shape
    shape = repeats * Numbers(graph.size_vector(there), graph)
    sized(node.with_constants({1: shape.value}), graph, 1, wanted, "the repeated shape")
    for axis, (old, new) in enumerate(zip(there, wanted, strict=True)):
        if old == new:
            continue
        most = bounds_of(new)[1]
        places = graph.emit("mod", positions(most, graph), graph.size(greater(old, 1)))
        data = taken(data, axis, places, ((new, most),), graph, there=True)
    return data


@dynamic_operand("ConstantOfShape", at=(0,))
def constant_of_shape(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """The declared shape, which a run checks."""
    sizes = node.declared_sizes()
    if _is_sized(sizes):
        return node.with_constants({0: sized(node, graph, 0, sizes, "the shape")})
    wanted = declared(node, 0, "the shape")
    return node.with_constants({0: expect_constant(node, graph, 0, wanted, "the shape")})


@dynamic_operand("OneHot", at=(1,), padded=True)
def one_hot(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """The depth that the declared shape has, or as much as the limits allow."""
    axis = node.axis(node.integer("axis", -1), node.input(0).rank + 1)
    wanted, depth = node.declared_sizes(), node.input(1)
    if wanted is None:
        given = vector(depth, graph)
        most = _require_rows(node, graph, 1, given, "the depth")
        size = counted_size(node, graph, given.value, most, low=1)
        sizes = object_array([size]).reshape(depth.shape)
        return node.with_constants({1: graph.integers_of(sizes)})
    extent = wanted[axis]
    if isinstance(extent, int):
        return node.with_constants({1: expect_constant(node, graph, 1, (extent,), "the depth")})
    return node.with_constants({1: sized(node, graph, 1, (extent,), "the depth")})


def _require_rows(
    node: OnnxNode, graph: GraphBuilder, position: int, count: Numbers, meaning: str
) -> int:
    """The most elements of an axis that only the data limits, which a run checks."""
    most = graph.allowance.limits.loop_rows
    right = (count >= 1) & (count.like(most) >= count)
    reason = f"{meaning} must give 1 to {most} elements (limits.loop_rows)"
    require(node, graph, position, right, reason)
    return most


@dynamic_operand("TopK", at=(1,))
def top_k(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """Where no shape is declared there may be as many results as elements, see the converter."""
    axis = node.axis(node.integer("axis", -1), node.input(0).rank)
    shape = node.declared_shape(0) or node.declared_shape(1)
    if shape is None:
        return node
    return node.with_constants({1: expect_constant(node, graph, 1, (shape[axis],), "the number k")})


@dynamic_operand("Split", at=(1,))
def split(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """One part may be what the others, whose shapes are declared, leave."""
    data = node.input(0)
    axis = node.axis(node.integer("axis", 0), data.rank)
    shapes = [node.declared_shape(part) for part in range(len(node.outputs))]
    sizes = [None if shape is None else shape[axis] for shape in shapes]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) - 1:
        raise node.not_settled(1, "the list of sizes")
    rest = data.shape[axis] - sum(known)
    wanted = [rest if size is None else size for size in sizes]
    return node.with_constants({1: expect_constant(node, graph, 1, wanted, "the list of sizes")})


@dynamic_operand("MaxUnpool", at=(2,))
def max_unpool(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """The declared shape, which a run checks."""
    wanted = declared(node, 2, "the output shape")
    return node.with_constants({2: expect_constant(node, graph, 2, wanted, "the output shape")})


@dynamic_operand("AffineGrid", at=(1,))
def affine_grid(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """The number of channels is of no importance."""
    batch, *image, _ = declared(node, 1, "the size")
    given = vector(node.input(1), graph)
    if given.shape != (len(image) + 2,):
        raise node.bad_shape(f"the size has {given.shape[0]} entries for {len(image)} dimensions")
    wanted = (batch, 1, *image)
    ignored = Numbers(graph.constant(np.arange(len(wanted)) == 1), graph)
    right = given.equals(given.like(wanted)) | ignored
    require(node, graph, 1, right, f"batch and image of the size must be {[batch, *image]}")
    return node.with_constants({1: graph.integers(wanted)})


@dynamic_operand("Col2Im", at=(1, 2))
def col2im(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Of blocks, all that fit the columns are candidates."""
    if node.is_computed(1):
        image = declared(node, 1, "the image's shape")[2:]
        node = node.with_constants({1: expect_constant(node, graph, 1, image, "the image's shape")})
    if not node.is_computed(2):
        return node
    channels = declared(node, 2, "the block's shape")[1]
    columns = node.input(0).shape[1]
    if channels < 1 or columns % channels:
        raise node.bad_shape(f"{columns} columns are no blocks of {channels} channels")
    blocks = list(_factors(columns // channels, node.input(2).type.size))
    return fitting(node, graph, 2, blocks, "the block's shape")


def _factors(product: int, count: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of so many."""
    if count == 1:
        yield (product,)
        return
    for first in range(1, product + 1):
        if product % first == 0:
            for rest in _factors(product // first, count - 1):
                yield (first, *rest)


@dynamic_operand("Range", at=(0, 1, 2))
def range_(node: OnnxNode, graph: GraphBuilder) -> Value:
    """start + i * delta, for as many i as the model declares, or as the limits allow."""
    operands = [node.input(position) for position in range(3)]
    if any(value.type.size != 1 for value in operands):
        raise node.bad_shape("start, limit and delta must be scalars")
    at = next(position for position in (1, 0, 2) if node.is_computed(position))
    meaning = f"the {('start', 'limit', 'delta')[at]}"
    dtype, sizes = operands[0].dtype, node.declared_sizes()
    start, limit, delta = (Numbers(graph.reshape(value, ()), graph) for value in operands)
    steps = _steps(start, limit, delta)
    if _is_sized(sizes):
        given = node.with_constants({at: steps.cast(DType.I64).value})
        sized(given, graph, at, sizes, "the number of elements")
        count = bounds_of(sizes[0])[1]
    elif (range_steps := _range_steps(node, graph)) is not None:
        sizes, count = (range_steps,), bounds_of(range_steps)[1]
    elif node.declared_shape() is None:
        count = _require_rows(node, graph, at, steps, meaning)
        sizes = (counted_size(node, graph, steps.cast(DType.I64).value, count, low=1),)
    else:
        (count,) = declared(node, at, meaning)
        require(node, graph, at, steps.equals(count), f"{meaning} must give {count} elements")
    graph.check_array((count,), dtype.bytes)
    if count == 0:
        return graph.constant(np.empty(0, dtype.numpy))
    places = Numbers(graph.constant(np.arange(count).astype(dtype.numpy)), graph)
    result = (places * delta + start).value
    return graph.with_dims(result, (((sizes[0], count),),)) if _is_sized(sizes) else result


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
        count = ((limit - start) / divisor).ceil().at_least(0)
    else:
        start, limit, delta = (number.cast(DType.I64) for number in (start, limit, delta))
        size = delta.absolute().at_least(1)
        distance = (delta < 0).choose(start - limit, limit - start).at_least(0)
        count = (distance + size - 1) / size
    return delta.equals(0).choose(count.like(-1), count)
