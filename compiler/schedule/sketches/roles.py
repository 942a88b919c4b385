"""Roles of an anchor's axes, by role: the vector, the register tile and the outer loops."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import index
from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Role
from tunefarm.compiler.types.frozen import frozen


@frozen
class Roles:
    """The axes of an anchor by their part in a register-tiled loop nest.

    The tile is `column` x `block` x `vector`: each step of the reduction loads one vector per block
    and one value per column and multiplies them all. `block` is "" where only the vector axis,
    split, gives several vectors. `row` is the outer axis next to the column ("" if there is none).
    `window` are those reduce axes that move along the plane. `phases` are what is left of rows and
    columns divided by a stride.
    """

    vector: str
    block: str
    column: str
    row: str
    outer: tuple[str, ...]
    reduce: tuple[str, ...]
    window: tuple[str, ...]
    phases: tuple[str, ...] = ()


def epilogue_is_plain(kernel: FusedKernel) -> bool:
    """The output reads the anchor element by element, under the anchor's axis names."""
    anchor, output = kernel.stage(kernel.anchor), kernel.output
    if output is anchor:
        return True
    if output.axes != anchor.axes or output.reduce_axes or kernel.stages[-2] is not anchor:
        return False
    own = tuple(index(axis.name) for axis in output.axes)
    return all(load.indices == own for load in loads(output.body) if load.buffer == anchor.name)


def roles_of(kernel: FusedKernel, turned: bool = False) -> Roles | None:
    """Roles for the anchor, or None where no axis makes a good vector.

    None too where it reads other reductions: a register tile has no place for them. The output has
    the anchor's axes, unless the tile is `turned` before it is stored.
    """
    if sum(bool(stage.reduce_axes) for stage in kernel.stages) > 1:
        return None
    anchor = kernel.stage(kernel.anchor)
    axes = (*anchor.axes, *anchor.reduce_axes)

    def named(*roles: Role) -> tuple[str, ...]:
        return tuple(axis.name for axis in axes if axis.role in roles)

    if not named(Role.LANE) or not (turned or epilogue_is_plain(kernel)):
        return None
    one = {role: "".join(named(role)) for role in (Role.LANE, Role.BLOCK, Role.COLUMN, Role.ROW)}
    return Roles(
        one[Role.LANE],
        one[Role.BLOCK],
        one[Role.COLUMN],
        one[Role.ROW],
        named(Role.BATCH),
        named(Role.REDUCE, Role.WINDOW),
        named(Role.WINDOW),
        named(Role.PHASE),
    )
