"""What a -1 in a shape stands for, where sizes are dynamic."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.types.sizes import (
    Dimension,
    Function,
    Size,
    bounds_of,
    common_factor,
    divide,
    product_of,
    quotient,
    remainder,
)


def left_of_reshape(data: Value, shape: list[Dimension], graph: GraphBuilder) -> Dimension | None:
    """What a shape with one -1 leaves of the data's sizes; None where that is not known.

    Sizes of the shape that are the data's own under other names become those.
    """
    left = quotient(product_of(data.true_shape), product_of(n for n in shape if n != -1))
    if left is None:
        left = _quotient_by_axes(data.true_shape, shape)
    for found in (_of_multiples, _with_equal_axes, _with_whole_blocks, _divided):
        if left is None:
            left = found(data, shape, graph)
    return left


def _quotient_by_axes(given: Sequence[Dimension], shape: Sequence[Dimension]) -> Dimension | None:
    """What is left of the given sizes without those that the shape has, too."""
    rest, divisors = list(given), [size for size in shape if size != -1]
    for size in shape:
        if size in rest:
            rest.remove(size)
            divisors.remove(size)
    return quotient(product_of(rest), product_of(divisors))


def _of_multiples(data: Value, shape: Sequence[Dimension], graph: GraphBuilder) -> Dimension | None:
    """What is left where the shape has sizes of the data divided by numbers: h // 2 by 2 rows of h.

    That they are multiples is checked at run time.
    """
    whole, multiples = list(data.true_shape), list[tuple[Dimension, int]]()
    terms = (term for size in shape if isinstance(size, Size) for term, _ in size.open_terms)
    for atom in (atom for term in terms for atom in term if isinstance(atom, Function)):
        size, by = atom.operands
        if atom.name == "//" and size in whole and isinstance(by, int):
            whole[whole.index(size)] = divide(size, by) * by
            multiples.append((size, by))
    left = quotient(product_of(whole), product_of(size for size in shape if size != -1))
    if left is not None:
        for size, by in multiples:
            graph.run_time.require_equal(remainder(size, by), 0, f"node {graph.source!r}")
    return left


def _with_equal_axes(data: Value, shape: list[Dimension], graph: GraphBuilder) -> Dimension | None:
    """What is left where the first sizes are the data's own under other names.

    Exporters name the batch of each input apart: such sizes are equal wherever a model runs at all,
    which is checked at run time. `shape` gets the data's sizes for them.
    """
    pairs = []
    for axis, (given, wanted) in enumerate(zip(data.true_shape, shape, strict=False)):
        if isinstance(given, int) or isinstance(wanted, int):
            break
        if given != wanted:
            pairs.append((axis, given, wanted))
    equal = dict(enumerate(shape)) | {axis: given for axis, given, _ in pairs}
    left = _quotient_by_axes(data.true_shape, list(equal.values()))
    if left is not None:
        for axis, given, wanted in pairs:
            graph.run_time.require_equal(given, wanted, f"node {graph.source!r}")
            shape[axis] = given
    return left


def _with_whole_blocks(
    data: Value, shape: list[Dimension], graph: GraphBuilder
) -> Dimension | None:
    """What is left where sizes are put together again of blocks into which they were divided.

    Blocks of windows of an image are h // 7 by 7 rows: all h of them wherever a model runs at all,
    which is checked at run time. `shape` gets the blocks' sizes for them.
    """
    given, blocks = list(data.true_shape), dict[int, Dimension]()
    for axis, wanted in enumerate(shape):
        if wanted == -1:
            break
        product: Dimension = 1
        for used, size in enumerate(given, start=1):
            product = product * size
            if product == wanted or _are_blocks(product, wanted):
                blocks[axis] = product
                del given[:used]
                break
    found = [blocks.get(axis, wanted) for axis, wanted in enumerate(shape)]
    left = _quotient_by_axes(data.true_shape, found)
    if left is not None:
        for axis, product in blocks.items():
            graph.run_time.require_equal(product, shape[axis], f"node {graph.source!r}")
            shape[axis] = product
    return left


def _are_blocks(product: Dimension, wanted: Dimension) -> bool:
    """Whether a size is another one less what is over when it is divided by a number."""
    if not (isinstance(product, Size) and isinstance(wanted, Size)):
        return False
    by = common_factor(product)
    return by > 1 and divide(wanted, by) * by == product


def _divided(data: Value, shape: Sequence[Dimension], graph: GraphBuilder) -> Dimension | None:
    """What is left of one size that is split by numbers, the others as they are: beams of each
    sentence, blocks of an image's rows.

    That it is a multiple is checked at run time.
    """
    given, wanted = list(data.true_shape), list(shape)
    for end in (0, -1):
        while given and wanted and given[end] == wanted[end]:
            del given[end], wanted[end]
    size, count = product_of(given), product_of(n for n in wanted if n != -1)
    if given.count(1) < len(given) - 1 or -1 not in wanted or not isinstance(count, int):
        return None
    if bounds_of(size)[1] < count:
        return None
    graph.run_time.require_equal(remainder(size, count), 0, f"node {graph.source!r}")
    return divide(size, count)
