"""What the tiled reduction makes of its operands: padding decided inline, constants packed."""

from __future__ import annotations

from collections.abc import Collection

from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import Binary, Const, Select
from tunefarm.compiler.expr.walk import axes_of, loads, postorder
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.schedule.sketches.tile_dots import DotAxis
from tunefarm.compiler.schedule.steps.packing import PackLayout


def can_inline(kernel: FusedKernel, prologue: Collection[str], vector: str) -> bool:
    """Padding can be decided per element unless it differs between the lanes of a vector."""
    for load in loads(kernel.stage(kernel.anchor).body):
        if load.buffer in prologue:
            stage = kernel.stage(load.buffer)
            if stage.reduce_axes:
                return False
            varying = {
                axis.name
                for axis, item in zip(stage.axes, load.indices, strict=True)
                if vector in axes_of(item)
            }
            guarded = guarded_axes(stage)
            if varying & guarded:
                return False
    return True


def is_padded_with_terms(kernel: FusedKernel, prologue: Collection[str]) -> bool:
    """Some padding is another number than 0, so that its terms of a sum cannot be left out."""
    for stage in kernel.stages:
        if stage.name not in prologue:
            continue
        for node in postorder(stage.body):
            if (
                isinstance(node, Select)
                and isinstance(node.otherwise, Const)
                and node.otherwise.value
            ):
                return True
    return False


def guarded_axes(stage: Stage) -> set[str]:
    """The axes that the conditions of a stage's choices depend on."""
    result: set[str] = set()
    for node in postorder(stage.body):
        if isinstance(node, Select):
            result |= axes_of(node.condition)
    return result


def packed_along(
    kernel: FusedKernel,
    vector: str,
    lanes: int,
    window_inside: bool = False,
    dot: DotAxis | None = None,
) -> list[PackLayout]:
    """The constants that the anchor reads along the axis `vector`, in whole vectors.

    Of a filter the positions of the window come outside of the channels, or else inside. The terms
    of dot products lie side by side, within the lanes.
    """
    steps: list[PackLayout] = []
    seen: set[str] = set()
    constants = {buffer.name: buffer for buffer in kernel.inputs if buffer.constant}
    for load in loads(kernel.stage(kernel.anchor).body):
        buffer = constants.get(load.buffer)
        if buffer is None or buffer.name in seen:
            continue
        seen.add(buffer.name)
        splits: list[tuple[int, int]] = []
        for axis, factor in ((vector, lanes), (dot.axis, dot.terms) if dot else ("", 0)):
            holding = [d for d, item in enumerate(load.indices) if axis in axes_of(item)]
            if len(holding) == 1 and affine(load.indices[holding[0]], {}).coefficient(axis) == 1:
                splits.append((holding[0], factor))
        if not splits or (dot is None and splits[0][1] != lanes):
            continue
        steps.append(_packed(buffer.name, len(buffer.shape), splits, window_inside))
    return steps


def unpacks(kernel: FusedKernel) -> bool:
    """Whether the anchor reads several numbers out of each word of an operand."""
    body = kernel.stage(kernel.anchor).body
    return any(isinstance(node, Binary) and node.op == "shl" for node in postorder(body))


def _packed(
    buffer: str, rank: int, splits: list[tuple[int, int]], window_inside: bool
) -> PackLayout:
    """The inner parts of split dimensions last, in this order; the first one's outer part first.

    Dimensions after the split: d -> its blocks, the next -> within a block.
    """
    split = [dimension for dimension, _ in splits]
    places = {d: d + sum(other < d for other in split) for d in range(rank)}
    first = split[0]
    others = [places[d] for d in range(rank) if d != first]
    others = [*others[1:], *others[:1]] if rank > 2 and not window_inside else others
    inner = [places[d] + 1 for d in split]
    return PackLayout(buffer, tuple(sorted(splits)), (places[first], *others, *inner))
