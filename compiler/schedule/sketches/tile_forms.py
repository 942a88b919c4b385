"""Forms of a kernel that a register tile can serve: axes merged or split, operands rearranged.

- `tiled`: vectors along the last axis. An operand in which that axis is strided is copied first: by
  phases of the stride, [..., i] -> [..., i % s, i // s], or turned, so that the axis comes last.
- `tiled_phases`: phases of a stride that sum different terms, one after another.
- `channels`: vectors along an axis that only a packed constant depends on, as the output channels
  of a convolution: all other operands are read element by element, whatever their strides. The
  register tile is turned before it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import Binary, Const, Load, index
from tunefarm.compiler.expr.walk import axes_of, loads, postorder
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.merge_axes import merge_axes
from tunefarm.compiler.kernels.roles import with_roles
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.sketches.phases import split_phases
from tunefarm.compiler.schedule.sketches.roles import Roles, epilogue_is_plain, roles_of
from tunefarm.compiler.schedule.sketches.tile_dots import DotAxis, dot_axis
from tunefarm.compiler.schedule.sketches.tile_operands import packed_along
from tunefarm.compiler.schedule.steps.kernel_forms import MergeAxes, SplitAxis
from tunefarm.compiler.schedule.steps.new_stages import CacheWrite, CopyOperand
from tunefarm.compiler.schedule.steps.packing import PackStage
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.types.frozen import frozen

MAX_PHASES = 4  # a vector of elements further apart is no few loads and shuffles
MAX_HELD = 11  # rows of a window whose input is held in registers
FEW_COLUMNS = 4  # for which turning an operand costs more than its sums along rows
PANEL_COLUMNS = 32  # so many uses of each element pay for a copy
FULL_LANES = 0.6  # of the vectors along channels, at least so much is of use


@frozen
class HeldRows:
    """The stage that holds rows of `source` which windows above each other share.

    They are those of a point `along`, a reduce axis. Windows are `stride` apart, their rows, the
    points of the reduce axis `across`, `dilation`.
    """

    source: str
    stage: str
    along: str
    across: str
    stride: int
    dilation: int


@frozen
class TileForm:
    """A form of a kernel: `steps` lead to `kernel`, whose anchor's axes have `roles`.

    `copies` are the stages that hold operands in another layout. Where the tile is turned before it
    is stored, `turned` is the output's axis that runs along its vectors, else "". Rows of windows
    above each other may be `held` in registers. Terms of narrow factors are summed by `dot`
    products. What is computed before the anchor `converts` an operand, once for all its uses; the
    stage `unpacked` holds the weights of a tile as floats, else it is "".
    """

    name: str
    kernel: FusedKernel
    steps: tuple[Step, ...]
    roles: Roles
    copies: tuple[str, ...] = ()
    turned: str = ""
    held: HeldRows | None = None
    dot: DotAxis | None = None
    converts: bool = False
    unpacked: str = ""


def tile_forms(kernel: FusedKernel, lanes: int) -> list[TileForm]:
    """The forms of this kernel for vectors of so many lanes; none where no axis makes a vector."""
    return [_with_dots(form, lanes) for form in _forms(kernel, lanes)]


def _with_dots(form: TileForm, lanes: int) -> TileForm:
    """The form with dot products where it has a use for them."""
    if form.dot is not None or form.turned or form.held is not None:
        return form
    return replace(form, dot=dot_axis(form.kernel, form.roles.vector, lanes))


def _forms(kernel: FusedKernel, lanes: int) -> list[TileForm]:
    if not kernel.stage(kernel.anchor).reduce_axes or not epilogue_is_plain(kernel):
        return []
    if any(stage.reduce_axes for stage in kernel.stages if stage.name != kernel.anchor):
        return []  # what is neither inlined nor copied
    phased, splits = split_phases(kernel, lanes)
    roles = roles_of(phased if splits else with_roles(kernel, lanes))
    if splits:
        return [] if roles is None else [TileForm("tiled_phases", phased, splits, roles)]
    if roles is not None and _is_blocked(kernel, roles, lanes):
        return _of_blocks(kernel, roles, lanes)
    plain, steps = _split_groups(kernel)
    plain, merges = _merged(plain)
    steps = (*steps, *merges)
    return [*_along_last_axis(plain, steps, lanes), *_along_channels(plain, steps, lanes)]


def prepared(kernel: FusedKernel, steps: tuple[Step, ...], anchor: str = "") -> FusedKernel:
    """The kernel after these steps; `anchor` where the anchor is another stage by then."""
    scheduled = ScheduledKernel.of(kernel)
    for step in steps:
        scheduled = step.apply(scheduled)
    stages = tuple(state.stage for state in scheduled.stages)
    inputs = scheduled.kernel.inputs
    return replace(kernel, inputs=inputs, stages=stages, anchor=anchor or kernel.anchor)


# --- blocked data -------------------------------------------------------------------------------


def _is_blocked(kernel: FusedKernel, roles: Roles, lanes: int) -> bool:
    """The last axis is a block of channels, as wide as a vector; no plane that is just so wide."""
    anchor = kernel.stage(kernel.anchor)
    last = anchor.axes[-1]
    behind = last.extent == lanes and len(anchor.axes) >= 4
    return bool(roles.block) and behind and not _is_windowed(anchor, last.name)


def _is_windowed(anchor: Stage, axis: str) -> bool:
    """Whether windows move along the axis: operands are read where it and a reduce axis say."""
    reduced = {item.name for item in anchor.reduce_axes}
    return any(
        axis in (names := axes_of(item)) and names & reduced
        for load in loads(anchor.body)
        for item in load.indices
    )


def _of_blocks(kernel: FusedKernel, roles: Roles, lanes: int) -> list[TileForm]:
    """Groups of several blocks are an axis: all blocks of a group share the data that they read."""
    plain, steps = _split_groups(kernel)
    if steps:
        plain = with_roles(plain, lanes)
        grouped = roles_of(plain)
        if grouped is not None and _is_blocked(plain, grouped, lanes):
            kernel, roles = plain, grouped
        else:
            steps = ()
    merged = _merged_plane(kernel, steps, roles, lanes)
    return [*merged, TileForm("tiled", kernel, steps, roles)]


def _merged_plane(
    kernel: FusedKernel, steps: tuple[Step, ...], roles: Roles, lanes: int
) -> Iterator[TileForm]:
    """Row and column as one axis, where the kernel never tells them apart (1x1 convolution)."""
    if not roles.row or len(kernel.stages) > 2:
        return
    try:
        plane = merge_axes(kernel, roles.row, roles.column)
        merged = with_roles(plane, lanes)
    except ScheduleError:
        return
    found = roles_of(merged)
    if found is not None and _keeps_constants(kernel, plane):
        steps = (*steps, MergeAxes(roles.row, roles.column))
        yield TileForm("tiled_merged", merged, steps, found)


# --- plain data ---------------------------------------------------------------------------------


def _split_groups(kernel: FusedKernel) -> tuple[FusedKernel, tuple[Step, ...]]:
    """The groups of channels as an axis of their own, which operands know by a division."""
    anchor = kernel.stage(kernel.anchor)
    own = {axis.name: axis.extent for axis in anchor.axes}
    for load in loads(anchor.body):
        for item in load.indices:
            for node in postorder(item):
                if not isinstance(node, Binary) or node.op != "floordiv":
                    continue
                axes, divisor = axes_of(node.left), node.right
                if len(axes) != 1 or not isinstance(divisor, Const) or not axes <= own.keys():
                    continue
                step = SplitAxis(axes.pop(), int(divisor.value))
                try:
                    return _without_roles(prepared(kernel, (step,))), (step,)
                except ScheduleError:
                    continue
    return kernel, ()


def _without_roles(kernel: FusedKernel) -> FusedKernel:
    """What the axis of a group is to the others is yet to be found: it is no phase."""
    stages = tuple(
        replace(stage, axes=tuple(replace(axis, role=None) for axis in stage.axes))
        for stage in kernel.stages
    )
    return replace(kernel, stages=stages)


def _merged(kernel: FusedKernel) -> tuple[FusedKernel, tuple[Step, ...]]:
    """Adjacent output axes merged from the right, but none of a constant, which is packed."""
    merges: list[Step] = []
    for position in reversed(range(len(kernel.output.axes) - 1)):
        first, second = kernel.output.axes[position : position + 2]
        try:
            merged = merge_axes(kernel, first.name, second.name)
        except ScheduleError:
            continue
        if _keeps_constants(kernel, merged):
            kernel = merged
            merges.append(MergeAxes(first.name, second.name))
    return kernel, tuple(merges)


def _keeps_constants(kernel: FusedKernel, merged: FusedKernel) -> bool:
    """Whether no axes of a constant were merged, which is packed by those that it had."""
    constants = {buffer.name: buffer.shape for buffer in kernel.inputs if buffer.constant}
    return all(constants.get(item.name, item.shape) == item.shape for item in merged.inputs)


def _along_last_axis(
    kernel: FusedKernel, steps: tuple[Step, ...], lanes: int
) -> Iterator[TileForm]:
    """Vectors along the last axis, unless rows of both operands make better ones."""
    arranged = _arranged(kernel, lanes)
    if arranged is None:
        return
    copying, copies = arranged
    if _has_rows(kernel) and _is_narrow(kernel, bool(copies), lanes):
        return
    copied = with_roles(prepared(kernel, copying), lanes)
    roles = roles_of(copied)
    if roles is not None:
        form = TileForm("tiled", copied, (*steps, *copying), roles, copies)
        yield from _with_held_rows(form)
        yield form
        if not copies:
            yield from _with_panels(form, lanes)


def _with_panels(form: TileForm, lanes: int) -> Iterator[TileForm]:
    """A product whose computed operand is copied to panels, a vector wide, that it reads in order.

    Rows of an operand may lie a page apart, or in as many pages as the sum has terms.
    """
    kernel, roles = form.kernel, form.roles
    anchor = kernel.stage(kernel.anchor)
    variable = {buffer.name for buffer in kernel.inputs if not buffer.constant}
    moving = [load for load in loads(anchor.body) if roles.vector in axes_of(load)]
    columns = {axis.name: axis.extent for axis in anchor.axes}.get(roles.column, 1)
    if len(moving) != 1 or len(anchor.reduce_axes) != 1 or columns < PANEL_COLUMNS:
        return
    (load,) = moving
    own = index(roles.vector)
    whole = len(load.indices) > 1 and load.indices[-1] == own
    if load.buffer not in variable or not whole or roles.column in axes_of(load):
        return
    rank, name = len(load.indices), f"{load.buffer}.copy"
    splits: tuple[tuple[int, int], ...] = ((rank - 1, lanes),)
    order = (*range(rank - 2), rank - 1, rank - 2, rank)
    dot = dot_axis(kernel, roles.vector, lanes)
    if dot is not None and load.indices[-2] == index(dot.axis):
        splits = ((rank - 2, dot.terms), *splits)
        order = (*range(rank - 2), rank, rank - 2, rank + 1, rank - 1)
    packing = PackStage(name, splits, order)
    made = (CopyOperand(anchor.name, load.buffer, name), packing)
    packed = with_roles(prepared(kernel, made), lanes)
    found = roles_of(packed)
    if found is not None:
        steps = (*form.steps, *made)
        yield TileForm("tiled_panels", packed, steps, found, (name,), dot=dot)


def _has_rows(kernel: FusedKernel) -> bool:
    """All operands are contiguous along one reduce axis: a sum of their products has vectors."""
    anchor = kernel.stage(kernel.anchor)
    read = [load for load in loads(anchor.body) if load.indices]
    return len(read) > 1 and any(
        all(
            load.indices[-1] == index(axis.name)
            and not any(axis.name in axes_of(item) for item in load.indices[:-1])
            for load in read
        )
        for axis in anchor.reduce_axes
    )


def _is_narrow(kernel: FusedKernel, copies: bool, lanes: int) -> bool:
    """Vectors along the last axis are mostly empty, or made anew for too few columns."""
    anchor = kernel.stage(kernel.anchor)
    *others, last = (axis.extent for axis in anchor.axes)
    return 4 * last <= lanes or (copies and others[-1:] <= [FEW_COLUMNS])


def _with_held_rows(form: TileForm) -> Iterator[TileForm]:
    """Depthwise, where each row that is read serves several windows above each other."""
    kernel, roles = form.kernel, form.roles
    anchor = kernel.stage(kernel.anchor)
    reduced = {axis.name: axis.extent for axis in anchor.reduce_axes}
    moving = [load for load in loads(anchor.body) if roles.vector in axes_of(load)]
    if len(moving) != 1 or roles.block or not roles.column:
        return
    (load,) = moving
    if any(map(loads, load.indices)):
        return  # padding that only a run knows: what a tile reads is a region of unknown place
    places = [affine(item, {}) for item in load.indices if roles.column in axes_of(item)]
    taps = [(a, c) for place in places for a, c in place.terms if isinstance(a, str)]
    across = [(axis, c) for axis, c in taps if 1 < reduced.get(axis, 0) <= MAX_HELD]
    stride = places[0].coefficient(roles.column) if places else 0
    if len(places) != 1 or len(taps) != 2 or len(across) != 1 or len(reduced) != 2 or stride < 1:
        return
    ((axis, dilation),) = across
    if stride > 2 * dilation:
        return
    (along,) = reduced.keys() - {axis}
    held = HeldRows(load.buffer, f"{load.buffer}.held", along, axis, stride, dilation)
    step = CopyOperand(anchor.name, load.buffer, held.stage)
    made = prepared(kernel, (step,))
    yield replace(form, name="tiled_rows", kernel=made, steps=(*form.steps, step), held=held)


def _arranged(kernel: FusedKernel, lanes: int) -> tuple[tuple[Step, ...], tuple[str, ...]] | None:
    """Steps that bring the last axis into vectors in all operands, and the stages they make."""
    anchor = kernel.stage(kernel.anchor)
    if not anchor.axes:
        return None
    if len(loads(anchor.body)) < 2:
        return (), ()  # each element is read once: a copy saves nothing
    vector = anchor.axes[-1].name
    shapes = {stage.name: stage.shape for stage in kernel.stages}
    variable = {buffer.name: buffer.shape for buffer in kernel.inputs if not buffer.constant}
    steps: list[Step] = []
    copies: dict[str, PackStage] = {}
    for load in loads(anchor.body):
        if load.buffer not in variable and load.buffer not in shapes:
            continue
        packing = _packing(load, vector, lanes)
        if packing is None:
            continue
        splits, order = packing
        name = f"{load.buffer}.copy" if load.buffer in variable else load.buffer
        step = PackStage(name, splits, order)
        if copies.setdefault(name, step) != step:
            return None
        if name in shapes and kernel.stage(name).reduce_axes:
            return None
        if step not in steps:
            made = [CopyOperand(anchor.name, load.buffer, name)] if load.buffer in variable else []
            steps += [*made, step]
    return tuple(steps), tuple(copies)


def _packing(
    load: Load, vector: str, lanes: int
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]] | None:
    """Splits and order that make neighbours along `vector` adjacent; None where that is so, or
    cannot be."""
    holding = [number for number, item in enumerate(load.indices) if vector in axes_of(item)]
    if len(holding) != 1:
        return None
    (number,) = holding
    rank = len(load.indices)
    stride = affine(load.indices[number], {}).coefficient(vector)
    last = number == rank - 1
    if last and 1 < stride <= MAX_PHASES:
        return ((number, stride),), (*range(number), number + 1, number)
    if not last and load.indices[number].dtype and stride == 1:
        others = [n if n < number else n + 1 for n in range(rank) if n != number]
        before = [n for n in others if n < number]
        behind = [n for n in others if n > number]
        return ((number, lanes),), (*before, number, *behind, number + 1)
    return None


def _along_channels(kernel: FusedKernel, steps: tuple[Step, ...], lanes: int) -> Iterator[TileForm]:
    """Vectors along an axis that a constant alone depends on."""
    anchor = kernel.stage(kernel.anchor)
    channel = _channel(kernel, lanes)
    if channel is None:
        return
    made: tuple[Step, ...] = ()
    name = anchor.name
    if anchor is kernel.output:
        name = f"{anchor.name}.sum"
        made = (CacheWrite(anchor.name, name),)
    position = anchor.axes.index(channel)
    dot = dot_axis(kernel, channel.name, lanes)
    packed = packed_along(kernel, channel.name, lanes, window_inside=True, dot=dot)
    rank = len(anchor.axes)
    order = [n if n < position else n + 1 for n in range(rank) if n != position]
    order.insert(position, position)
    packing = PackStage(name, ((position, lanes),), (*order, position + 1))
    made = (*made, *packed, packing)
    turned = with_roles(prepared(kernel, made, name), lanes)
    roles = roles_of(turned, turned=True)
    if roles is not None and roles.block == f"{channel.name}.b":
        yield TileForm("channels", turned, (*steps, *made), roles, turned=channel.name, dot=dot)


def _begins_vectors(load: Load, axis: str, lanes: int) -> bool:
    """Whatever else indexes the dimension that the axis runs along, it begins with a vector."""
    forms = [affine(item, {}) for item in load.indices if axis in axes_of(item)]
    others = [c for form in forms for atom, c in form.terms if atom != axis]
    return len(forms) == 1 and not any(c % lanes for c in others)


def _channel(kernel: FusedKernel, lanes: int) -> Axis | None:
    """The axis: it fills vectors, and the last axis, which is another one, has no constant."""
    anchor = kernel.stage(kernel.anchor)
    constants = {buffer.name for buffer in kernel.inputs if buffer.constant}
    read = loads(anchor.body)
    for axis in reversed(anchor.axes[:-1]):
        using = [load for load in read if any(axis.name in axes_of(i) for i in load.indices)]
        vectors = -(-axis.extent // lanes)
        if (
            len(using) == 1
            and _begins_vectors(using[0], axis.name, lanes)
            and using[0].buffer in constants
            and len(read) > 1
            and len(anchor.axes) >= 3
            and axis.extent >= FULL_LANES * vectors * lanes
        ):
            return axis
    return None
