"""Sums over blocks of channels of which the last one is not full: its steps are code of their own.

for icb < 3: for ici < 16: if icb * 16 + ici < 40: s += ..
->
for icb < 2: for ici < 16: s += ..
for ici < 8: s += ..                    icb is 2
"""

from __future__ import annotations

from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import Binary, Const
from tunefarm.compiler.expr.parts import split_guards
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.schedule.steps.tiles import Partition
from tunefarm.compiler.types.frozen import frozen


@frozen
class RaggedBlocks:
    """The reduce axes `block` and `channel`, of fewer terms together than points."""

    block: str
    channel: str
    terms: int


def ragged_blocks(stage: Stage) -> RaggedBlocks | None:
    """The axes of a sum over blocks of which the last one has fewer terms; None where none are."""
    extents = {axis.name: axis.extent for axis in stage.reduce_axes}
    for guard in split_guards(stage.body, stage.combiner)[0]:
        match guard:
            case Binary(op="lt", left=left, right=Const(value=terms)):
                steps = {str(atom): step for atom, step in affine(left, {}).terms}
                if len(steps) == 2 and steps.keys() <= extents.keys():
                    channel, block = sorted(steps, key=steps.__getitem__)
                    return RaggedBlocks(block, channel, int(terms))
    return None


def apart(stage: Stage, name: str) -> list[Partition]:
    """The steps that part the last block from the others, in the stage of this name."""
    ragged = ragged_blocks(stage)
    if ragged is None:
        return []
    extents = {axis.name: axis.extent for axis in stage.reduce_axes}
    return [Partition(name, ragged.block, 0, 0, (extents[ragged.block] - 1,))]
