"""Fourier transforms along a computed axis, and of frames at computed steps."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.frontend.dynamic_operands import dynamic_operand
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers, integers, vector
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.settle import (
    chosen,
    converted,
    declared,
    expect_constant,
    listed_shapes,
    require,
    selected,
)
from tunefarm.compiler.types.sizes import Dimension, divide


@dynamic_operand("DFT", at=(1, 2), padded=True)
def dft(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Axes whose transforms have the declared shape, or the length that the shape says."""
    data = node.input(0)
    inverse, onesided = bool(node.integer("inverse", 0)), bool(node.integer("onesided", 0))
    if node.is_computed(1):
        wanted = declared(node, 1, "the length")
        if node.is_computed(2) or (onesided and not inverse):  # of two lengths, or of several axes
            raise node.not_settled(1, "the length")
        axis = node.integer("axis", 1) if node.version < 20 else -2
        if node.optional(2) is not None:
            axis = node.constant_integer(2, "the axis")
        length = wanted[node.axis(axis, data.rank)]
        return node.with_constants({1: expect_constant(node, graph, 1, (length,), "the length")})
    given = None if node.optional(1) is None else node.constant_integer(1, "the length")

    def size(old: Dimension) -> Dimension:
        if inverse and onesided:
            return given or 2 * (old - 1)
        length = given or old
        return divide(length, 2) + 1 if onesided else length

    shape = data.true_shape
    choices: dict[tuple[int, ...], Sequence[Dimension]] = {
        (axis,): (*shape[:axis], size(old), *shape[axis + 1 : -1], 1 if inverse and onesided else 2)
        for axis, old in enumerate(shape[:-1])
    }
    return chosen(node, graph, listed_shapes(node, choices), data.rank, position=2)


@dynamic_operand("STFT", at=(1, 3))
def stft(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Frames read at computed places; their length is one that gives the declared bins."""
    signal, window = node.input(0), node.optional(2)
    at = 1 if node.is_computed(1) else 3
    wanted = declared(node, at, "the step of the frames" if at == 1 else "the length of the frames")
    if len(wanted) != 4 or signal.rank not in (2, 3):
        raise node.bad_shape(f"the frames of {signal.type} are none of {list(wanted)}")
    _, count, bins, _ = wanted
    if not node.is_computed(3) and node.optional(3) is not None:
        lengths = [node.constant_integer(3, "the length of the frames")]
    elif window is not None:
        lengths = [window.shape[0]]
    elif node.optional(3) is None:
        lengths = [signal.shape[1]]
    else:
        lengths = [2 * bins - 2, 2 * bins - 1] if node.integer("onesided", 1) else [bins]
    lengths = [length for length in lengths if 1 <= length <= signal.shape[1]]
    if not lengths:
        raise node.bad_shape(f"no frames of {signal.type} have {bins} bins")
    step = vector(node.input(1), graph)
    given = vector(node.input(3), graph) if node.is_computed(3) else step.like([lengths[0]])
    here = [given.equals(length) for length in lengths]
    right = here[0]
    for other in here[1:]:
        right = right | other
    length_of = " or ".join(map(str, lengths))
    if node.is_computed(3):
        require(node, graph, 3, right, f"the length of the frames must be {length_of}")
    room = step.like([signal.shape[1]]) - given
    fits = (step >= 1) & (room.at_least(0) / step.at_least(1) + 1).equals(count)
    require(node, graph, 1, fits, f"the step must give {count} frames")
    values = [_of_frames(node, graph, step, count, length) for length in lengths]
    return selected(node, here, values)


def _of_frames(
    node: OnnxNode, graph: GraphBuilder, step: Numbers, count: int, length: int
) -> Value:
    """The transforms of frames that are laid one behind the other."""
    signal = node.input(0)
    first = integers(range(count), graph) * step.at_most(signal.shape[1])
    places = first.reshape(count, 1) + integers(range(length), graph)
    inside = places.reshape(count * length).at_least(0).at_most(signal.shape[1] - 1)
    frames = graph.emit("gather", signal, inside.value, axis=1)
    constants = {0: frames, 1: graph.integers((length,)), 3: graph.integers((length,))}
    return converted(node.with_constants(constants), graph)
