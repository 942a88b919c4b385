"""What the tiled reduction makes of its operands: padding decided inline, constants packed."""

from __future__ import annotations

from compiler.expr.affine import affine
from compiler.expr.nodes import Select
from compiler.expr.walk import axes_of, loads, postorder
from compiler.kernels.stage import Stage
from compiler.schedule.sketches.tile_domains import TileContext
from compiler.schedule.steps.pack_layout import PackLayout


def can_inline(context: TileContext) -> bool:
    """Padding can be decided per element unless it differs between the lanes of a vector."""
    vector = context.roles.vector
    for load in loads(context.anchor.body):
        if load.buffer in context.prologue:
            stage = context.kernel.stage(load.buffer)
            if stage.reduce_axes:
                return False
            varying = {
                axis.name
                for axis, item in zip(stage.axes, load.indices, strict=True)
                if vector in axes_of(item)
            }
            guarded = _guarded_axes(stage)
            if varying & guarded:
                return False
    return True


def _guarded_axes(stage: Stage) -> set[str]:
    result: set[str] = set()
    for node in postorder(stage.body):
        if isinstance(node, Select):
            result |= axes_of(node.condition)
    return result


def pack_constants(context: TileContext) -> list[PackLayout]:
    """Constants that the vector axis runs through: whole vectors, in the order they are read."""
    steps: list[PackLayout] = []
    seen: set[str] = set()
    constants = {buffer.name: buffer for buffer in context.kernel.inputs if buffer.constant}
    for load in loads(context.anchor.body):
        buffer = constants.get(load.buffer)
        if buffer is None or buffer.name in seen:
            continue
        seen.add(buffer.name)
        holding = [
            dimension
            for dimension, item in enumerate(load.indices)
            if context.roles.vector in axes_of(item)
        ]
        if len(holding) != 1:
            continue
        dimension = holding[0]
        rank = len(buffer.shape)
        if affine(load.indices[dimension], {}).coefficient(context.roles.vector) != 1:
            continue
        # Dimensions after the split: `dimension` -> blocks, `dimension` + 1 -> lanes.
        others = [d if d < dimension else d + 1 for d in range(rank) if d != dimension]
        # Window positions outside, channels inside: [blocks][kh][kw][channel][lanes].
        others = [*others[1:], *others[:1]] if rank > 2 else others
        steps.append(
            PackLayout(
                buffer.name,
                ((dimension, context.lanes),),
                (dimension, *others, dimension + 1),
            )
        )
    return steps
