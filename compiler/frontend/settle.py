"""What converters of nodes with computed operands share: conditions, and choices among axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

import numpy as np

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.chosen_values import chosen as one_of
from tunefarm.compiler.frontend.converter import find_converter
from tunefarm.compiler.frontend.data_sizes import counted_size
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers, integers, vector
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.run_time_sizes import object_array
from tunefarm.compiler.frontend.size_arithmetic import contents_of
from tunefarm.compiler.frontend.size_tables import Between
from tunefarm.compiler.types.signature import ValueSource
from tunefarm.compiler.types.sizes import Dimension, Size, bounds_of, static_shape

_MAX_CODE = 2**62
_MAX_CHOICES = 64


def require(
    node: OnnxNode, graph: GraphBuilder, position: int, right: Numbers, reason: str
) -> None:
    """Refuse runs in which the operand at a position does not hold what is `right`, of bools.

    `reason` says what it must hold: "the list of axes must be [1]".
    """
    operand = graph.origin(node.input(position))
    graph.require((~right).value, operand, f"{reason} for {node.label}, as the model was built")


def require_rows(
    node: OnnxNode,
    graph: GraphBuilder,
    position: int,
    count: Numbers,
    meaning: str,
    low: int = 1,
    most: int | None = None,
) -> int:
    """The most elements of an axis that only the data limits, which a run checks.

    They are `limits.loop_rows` where nothing says how many.
    """
    setting = " (limits.loop_rows)" if most is None else ""
    high = graph.allowance.limits.loop_rows if most is None else most
    right = (count >= low) & (count.like(high) >= count)
    reason = f"{meaning} must give {low} to {high} elements{setting}"
    require(node, graph, position, right, reason)
    return high


def expect_constant(
    node: OnnxNode, graph: GraphBuilder, position: int, wanted: Sequence[int], meaning: str
) -> Value:
    """The constant that the operand at a position has to be, which every run checks."""
    value = node.input(position)
    if value.type.size != len(wanted):
        raise node.bad_shape(
            f"{meaning} has {value.type.size} elements, and the model declares a result for "
            f"{list(wanted)}"
        )
    given = vector(value, graph)
    require(
        node,
        graph,
        position,
        given.equals(given.like(wanted)),
        f"{meaning} must be {_text(wanted)}",
    )
    return graph.constant(np.asarray(wanted, value.dtype.numpy).reshape(value.shape))


def sized(
    node: OnnxNode,
    graph: GraphBuilder,
    position: int,
    wanted: Sequence[Dimension],
    meaning: str,
    *,
    inferred: bool = False,
    ones: Sequence[bool] = (),
) -> Value:
    """The operand at a position as dynamic sizes.

    A symbol that nothing else says is read from its element; the other elements are checked, of
    which one may be -1 if that stands for an `inferred` size. Those with `ones` may be 1 instead.
    """
    value = node.input(position)
    if value.type.size != len(wanted):
        raise node.bad_shape(f"{meaning} has {value.type.size} elements for {shape_text(wanted)}")
    given = vector(value, graph)
    others: list[Dimension] = []
    for number, size in enumerate(wanted):
        symbol = size.symbol if isinstance(size, Size) else None
        element = given.part(number, 1)
        if symbol is None or any(symbol == source.symbol for source in graph.run_time.sources):
            others.append(size)
            continue
        others.append(-1)
        if graph.is_input(value):
            graph.run_time.declare(ValueSource(symbol, value.name, number))
            continue
        within = element.at_least(symbol.low).at_most(symbol.high)  # in branches not taken, too
        graph.computed_symbol(symbol, within.reshape().value)
        inside = (element >= symbol.low) & (given.like([symbol.high]) >= element)
        bounds = f"{symbol.low} to {symbol.high}"
        what = meaning if len(wanted) == 1 else f"element {number} of {meaning}"
        require(node, graph, position, inside, f"{what} ({symbol.name}) must be {bounds}")
    free = Numbers(graph.constant(np.array([size == -1 for size in others])), graph)
    right = given.equals(Numbers(graph.size_vector(others), graph)) | free
    if any(ones):
        right = right | (given.equals(1) & Numbers(graph.constant(np.array(ones)), graph))
    if inferred:
        left = given.equals(-1)
        right = (right | left) & (left.cast(given.dtype).sum(0) < 2)
    require(node, graph, position, right, f"{meaning} must be {shape_text(wanted)}")
    return graph.integers_of(object_array(wanted).reshape(value.shape), value.dtype)


def bounded(
    node: OnnxNode,
    graph: GraphBuilder,
    position: int,
    meaning: str,
    there: Sequence[Dimension] = (),
    low: int = 1,
    kept: Mapping[int, Dimension] | None = None,
    most: Sequence[int] | None = None,
) -> OnnxNode:
    """The node with sizes for a list that no shape declares.

    What is computed is `low` to `most`, by default `limits.loop_rows`, or what is `there` and not
    1, or 1 in its place, or what it is `kept` at by its position; runs check all. Raises
    ComputedShapeError where lists have no bounds.
    """
    value = node.input(position)
    elements = _elements(value, graph)
    if most is None and not graph.bounds_lists and None in elements:
        raise node.not_settled(position, meaning)
    given, sizes = vector(value, graph), object_array([0] * len(elements))
    for number, size in enumerate(elements):
        count, what = given.part(number, 1), f"element {number} of {meaning}"
        if isinstance(size, Between):
            sizes[number] = counted_size(node, graph, count.value, size.high, size.low)
        elif size is not None:
            sizes[number] = size
        elif kept and number in kept:
            sizes[number] = kept[number]
            right = count.equals(Numbers(graph.size(kept[number]), graph))
            require(node, graph, position, right, f"{what} must be {kept[number]}")
        elif there and there[number] != 1:
            sizes[number] = there[number]
            right = count.equals(1) | count.equals(Numbers(graph.size(there[number]), graph))
            require(node, graph, position, right, f"{what} must be {there[number]}")
        else:
            limit = None if most is None else most[number]
            high = require_rows(node, graph, position, count, what, low, limit)
            within = count.at_least(low).at_most(high)  # in branches that are not taken, too
            sizes[number] = counted_size(node, graph, within.value, high, low)
    return node.with_constants({position: graph.integers_of(sizes.reshape(value.shape))})


def _elements(value: Value, graph: GraphBuilder) -> list[Dimension | Between | None]:
    """The elements of a list, None for what is neither constant nor a size nor has bounds."""
    contents, parts = contents_of(value, graph), graph.joined(value)
    if contents is not None:
        return list(contents.reshape(-1).tolist())
    if not parts:
        return [None] * value.type.size
    return [one for part in parts for one in _elements(part, graph)]


def shape_text(sizes: Sequence[Dimension]) -> str:
    """A shape as messages name it."""
    return f"[{', '.join(map(str, sizes))}]"


def has_dynamic_sizes(sizes: Sequence[Dimension] | None) -> TypeGuard[Sequence[Dimension]]:
    """Whether a declared shape has dynamic sizes."""
    return sizes is not None and static_shape(sizes) is None


def declared(node: OnnxNode, position: int, meaning: str, output: int = 0) -> tuple[int, ...]:
    """The declared shape of an output; without one the operand at a position is refused."""
    shape = node.declared_shape(output)
    if shape is None:
        raise node.not_settled(position, meaning)
    return shape


def chosen(
    node: OnnxNode,
    graph: GraphBuilder,
    choices: Mapping[tuple[int, ...], Sequence[Dimension]],
    rank: int,
    *,
    position: int = 1,
    views: bool = False,
) -> OnnxNode | Value:
    """The node with one of several lists of axes as an input, for tensors of a rank.

    `choices` has the shape of the result for each list that the model allows. One choice settles
    the node; else each is computed, and the right one taken. Of `views`, which move no element, one
    for each shape is enough.
    """
    given = vector(node.input(position), graph)
    base = given.shape[0] + 1
    if not choices or len(choices) > _MAX_CHOICES or base**rank > _MAX_CODE:
        raise node.not_settled(position, "the list of axes")
    code = axes_code(given, rank)
    found: dict[object, tuple[tuple[int, ...], Numbers]] = {}
    right: Numbers | None = None
    for axes, shape in choices.items():
        here = code.equals(_code(axes, base))
        right = here if right is None else right | here
        alike = tuple(shape) if views else axes
        first, before = found.get(alike, (axes, here))
        found[alike] = first, before if first == axes else before | here
    assert right is not None
    listed = " or ".join(str(list(axes)) for axes in choices)
    require(node, graph, position, right, f"the list of axes must be {listed}")
    nodes = [
        node.with_constants({position: _like_operand(axes, node.input(position), graph)})
        for axes, _ in found.values()
    ]
    if len(nodes) == 1:
        return nodes[0]
    conditions = [condition for _, condition in found.values()]
    pairs = zip(nodes, conditions, strict=True)
    values = [_where_taken(one, condition, graph) for one, condition in pairs]
    return selected(node, conditions, values)


def _like_operand(axes: Sequence[int], operand: Value, graph: GraphBuilder) -> Value:
    """A list of axes as a constant, a scalar where the operand is one."""
    array = np.asarray(axes, np.int64)
    return graph.constant(array.reshape(()) if operand.rank == 0 else array)


def _where_taken(node: OnnxNode, condition: Numbers, graph: GraphBuilder) -> Value:
    """What a node gives, which asks something of sizes only in runs that take it."""
    first, equalities = graph.check_count, graph.run_time.equality_count
    value = converted(node, graph)
    graph.check_equalities(graph.run_time.take_equalities(equalities))
    graph.only_where(condition.value, True, first)
    return value


def listed_shapes(
    node: OnnxNode, choices: Mapping[tuple[int, ...], Sequence[Dimension]]
) -> dict[tuple[int, ...], Sequence[Dimension]]:
    """Of lists of axes those that give the declared shape; all where none is declared."""
    wanted = node.declared_sizes()
    if wanted is None:
        return dict(choices)
    return {axes: shape for axes, shape in choices.items() if _may_be(shape, wanted)}


def _may_be(shape: Sequence[Dimension], wanted: Sequence[Dimension]) -> bool:
    """Whether a shape is another one, or may be at some sizes."""
    return len(shape) == len(wanted) and all(
        bounds_of(size - other)[0] <= 0 <= bounds_of(size - other)[1]
        for size, other in zip(shape, wanted, strict=True)
    )


def axes_code(axes: Numbers, rank: int) -> Numbers:
    """A number that tells which axes of a tensor a list names, in whatever order.

    Negative ones count from the end; what is no axis or there twice gives a number of no list.
    """
    count = axes.shape[0]
    normal = (axes < 0).choose(axes + rank, axes)
    places = integers(range(rank), axes.graph).reshape(1, rank)
    named = normal.reshape(count, 1).equals(places).cast(axes.dtype).sum(0)
    return (named * named.like([(count + 1) ** axis for axis in range(rank)])).sum(0)


def _code(axes: Sequence[int], base: int) -> int:
    return sum(base**axis for axis in axes)


def selected(node: OnnxNode, conditions: Sequence[Numbers], values: Sequence[Value]) -> Value:
    """The value whose condition holds, the last one where none does.

    Values of several shapes are padded to the largest, and the size is chosen, too.
    """
    result = values[-1]
    for condition, value in zip(conditions[-2::-1], values[-2::-1], strict=True):
        graph = condition.graph
        if value.dims == result.dims:
            result = graph.emit("where", condition.value, value, result)
            continue
        sides = [graph.padded.dense(side) for side in (value, result)]
        either = one_of(node, graph, condition.reshape().value, *sides)
        assert isinstance(either, Value)
        result = either
    return result


def converted(node: OnnxNode, graph: GraphBuilder) -> Value:
    """What the converter of constant operands makes of a node with one result."""
    convert = find_converter(node.domain, node.operator, node.version)
    if convert is None:
        raise node.unsupported("an operand that is computed at run time")
    result = convert(node, graph)
    if not isinstance(result, Value):
        raise node.invalid("has several results")
    return result


def fitting(
    node: OnnxNode,
    graph: GraphBuilder,
    position: int,
    choices: Sequence[tuple[int, ...]],
    meaning: str,
) -> Value:
    """Of several contents of an operand those that the node can be converted with, one selected."""
    given = vector(node.input(position), graph)
    found: list[tuple[Numbers, Value, tuple[int, ...]]] = []
    for choice in choices[:_MAX_CHOICES]:
        constant = graph.constant(np.asarray(choice, node.input(position).dtype.numpy))
        try:
            value = converted(node.with_constants({position: constant}), graph)
        except ShapeError:
            continue
        same = given.equals(given.like(choice)).cast(given.dtype).sum(0).equals(len(choice))
        found.append((same, value, choice))
    if not found:
        raise node.not_settled(position, meaning)
    right = found[0][0]
    for same, _, _ in found[1:]:
        right = right | same
    listed = " or ".join(_text(choice) for _, _, choice in found)
    require(node, graph, position, right, f"{meaning} must be {listed}")
    return selected(node, [same for same, _, _ in found], [value for _, value, _ in found])


def _text(values: Sequence[int]) -> str:
    return str(list(values)) if len(values) != 1 else str(values[0])
