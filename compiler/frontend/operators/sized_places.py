"""Numbers of elements in dynamic shapes: places of maxima."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.frontend.data_sizes import all_there
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.padded_forms import padded_form
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.dims import is_unpadded, true_shape
from tunefarm.compiler.types.sizes import Dimension


def renumbered(
    numbers: Value, before: Sequence[Dimension], after: Sequence[Dimension], graph: GraphBuilder
) -> Value:
    """Row-major numbers of elements of one shape as those of the same elements in another."""
    if list(before[1:]) == list(after[1:]):
        return numbers
    result, step, rest = None, graph.size(1, numbers.dtype), numbers
    for old, new in zip(reversed(before[1:]), reversed(after[1:]), strict=True):
        extent = graph.size(old, numbers.dtype)
        place = graph.emit("mod", rest, extent)
        rest = graph.emit("div", graph.emit("sub", rest, place), extent)
        term = graph.emit("mul", place, step)
        result = term if result is None else graph.emit("add", result, term)
        step = graph.emit("mul", step, graph.size(new, numbers.dtype))
    term = graph.emit("mul", rest, step)
    return term if result is None else graph.emit("add", result, term)


@padded_form("max_places")
def _max_places(
    graph: GraphBuilder, operands: Sequence[Value | None], attributes: Attributes
) -> Value | None:
    """Places among all elements of the padded data, as those among the elements that are there."""
    data, largest = operands[:2]
    assert data is not None
    assert largest is not None
    dims = largest.dims
    for axis in range(2, data.rank):
        if not is_unpadded(data.dims[axis]):
            data = graph.padded.filled(data, axis, "lowest")
    found = graph.append(
        "max_places", (all_there(data, graph), all_there(largest, graph)), dict(attributes)
    )
    order = list(range(data.rank))
    if attributes.flag("columns_first"):
        order = [0, 1, *reversed(order[2:])]
    extents, sizes = data.shape, true_shape(data.dims)
    before, after = [extents[axis] for axis in order], [sizes[axis] for axis in order]
    return graph.with_dims(renumbered(found, before, after, graph), dims)
