"""Sums over blocks of channels of which the last one is not full: its steps are code of their own.

for icb < 3: for ici < 16: if icb * 16 + ici < 40: s += ..
->
for icb < 2: for ici < 16: s += ..
for ici < 8: s += ..                    icb is 2
"""

from __future__ import annotations

from compiler.expr.affine import affine
from compiler.expr.nodes import Binary, Const
from compiler.expr.parts import split_guards
from compiler.kernels.stage import Stage
from compiler.schedule.steps.partition import Partition


def ragged_blocks(stage: Stage) -> str:
    """The reduce axis whose last point has fewer terms than the others, "" where there is none."""
    extents = {axis.name: axis.extent for axis in stage.reduce_axes}
    for guard in split_guards(stage.body, stage.combiner)[0]:
        match guard:
            case Binary(op="lt", left=left, right=Const()):
                terms = {str(atom): step for atom, step in affine(left, {}).terms}
                if len(terms) > 1 and terms.keys() <= extents.keys():
                    return max(terms, key=terms.__getitem__)
    return ""


def apart(stage: Stage, name: str) -> list[Partition]:
    """The steps that part the last block from the others, in the stage of this name."""
    axis = ragged_blocks(stage)
    extents = {item.name: item.extent for item in stage.reduce_axes}
    return [Partition(name, axis, 0, 0, (extents[axis] - 1,))] if axis else []
