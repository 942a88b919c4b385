"""How operands are copied before a register tile reads them: padding, phases, turned blocks.

In vectors along the copy's last axis. Where an input is contiguous along another axis, as in a
turned copy, square blocks go through registers.
"""

from __future__ import annotations

from itertools import takewhile
from math import prod

from tunefarm.compiler.expr.affine import affine, affine_range
from tunefarm.compiler.expr.nodes import Binary, Cast, Const, index
from tunefarm.compiler.expr.parts import parts_that_read
from tunefarm.compiler.expr.walk import axes_of, loads, postorder
from tunefarm.compiler.kernels.im2col import SUFFIX
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.schedule.sketches.borders import borders
from tunefarm.compiler.schedule.sketches.parallel_choices import PARALLEL_ELEMENTS
from tunefarm.compiler.schedule.sketches.tile_context import TileContext
from tunefarm.compiler.schedule.sketches.tile_forms import MAX_PHASES
from tunefarm.compiler.schedule.sketches.tile_operands import guarded_axes
from tunefarm.compiler.schedule.steps.loop_kinds import Parallelize, Unroll, Vectorize
from tunefarm.compiler.schedule.steps.new_stages import CacheRead
from tunefarm.compiler.schedule.steps.placement import STACK_BYTES, ComputeAt
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Fuse, Partition, Reorder, Tile

CHUNKS_OF_COPY = 2  # per thread
VECTORS_OF_COPY = 4  # that are converted side by side


def copying_steps(kernel: FusedKernel, stage: Stage, lanes: int, threads: int = 1) -> list[Step]:
    """The steps that compute the stage, which holds an operand, in vectors.

    Several `threads` share the work if there is enough of it.
    """
    if stage.reduce_axes or not stage.axes:
        return []
    turned = _contiguous(kernel, stage)
    last = stage.axes[-1]
    plane = _plane(stage) if stage.name.endswith(SUFFIX) else None
    if plane is not None:
        return [*_gathering(stage, *plane), *_shared(stage, threads, plane[0].name)]
    if turned in ("", last.name):
        return [*_in_rows(stage, lanes), *_shared(stage, threads, last.name)]
    shared = _shared(stage, threads, turned)
    return [*_in_blocks(kernel, stage, turned, lanes), *shared]


def _shared(stage: Stage, threads: int, last: str) -> list[Step]:
    """Run the outermost loops in parallel, up to one that stands apart or is split.

    Those are axes whose positions decide about padding, phases, the one written last and `last`.
    """
    if threads == 1 or prod(stage.shape) < PARALLEL_ELEMENTS:
        return []
    apart = {*guarded_axes(stage), last, stage.axes[-1].name}
    apart |= {axis.name for axis in stage.axes if axis.name.endswith(".l")}
    if _side_by_side(stage, apart):
        apart.add(stage.axes[-2].name)
    loops = list(takewhile(lambda axis: axis.name not in apart, stage.axes))
    turns = prod(axis.extent for axis in loops)
    if turns < threads:
        return []
    name = loops[0].name if len(loops) == 1 else f"{stage.name}.parallel"
    fused = [Fuse(stage.name, tuple(axis.name for axis in loops), name)] if len(loops) > 1 else []
    return [*fused, Parallelize(stage.name, name, CHUNKS_OF_COPY)]


def _contiguous(kernel: FusedKernel, stage: Stage) -> str:
    """The axis along which the input that the stage copies lies in memory, "" if there is none."""
    inputs = {buffer.name for buffer in kernel.inputs}
    read = [load for load in loads(stage.body) if load.buffer in inputs and load.indices]
    if len(read) != 1 or len(parts_that_read(stage.body, read[0].buffer)) != 1:
        return ""
    form = affine(read[0].indices[-1], {})
    if 1 <= form.coefficient(stage.axes[-1].name) <= MAX_PHASES:
        return stage.axes[-1].name
    axes = [axis.name for axis in stage.axes if form.coefficient(axis.name) == 1]
    elsewhere = {name for item in read[0].indices[:-1] for name in axes_of(item)}
    return axes[-1] if axes and axes[-1] not in elsewhere else ""


def _plane(stage: Stage) -> tuple[Axis, int] | None:
    """The axis of a gathered stage that goes over a plane, and how wide that is.

    None where it is known without a division, as of a plane of one row.
    """
    for node in postorder(stage.body):
        if isinstance(node, Binary) and node.op == "floordiv" and isinstance(node.right, Const):
            for axis in stage.axes[:-1]:
                if node.left == index(axis.name) and axis.extent % int(node.right.value) == 0:
                    return axis, int(node.right.value)
    return None


def _gathering(stage: Stage, axis: Axis, width: int) -> list[Step]:
    """A loop over quotients and one over rests, in which no position is divided any more."""
    name = stage.name
    groups = [other.name for other in stage.axes[:-1] if other.name.endswith(".l")]
    return [
        Tile(name, axis.name, width),
        Vectorize(name, stage.axes[-1].name),
        *(Unroll(name, group) for group in groups),
    ]


def _in_rows(stage: Stage, lanes: int) -> list[Step]:
    last = stage.axes[-1]
    guarded = guarded_axes(stage)
    name = stage.name
    steps: list[Step] = []
    if last.extent > lanes:
        steps = [Tile(name, last.name, lanes, "shift"), Vectorize(name, f"{last.name}.i")]
        if last.name in guarded:
            steps.append(Partition(name, f"{last.name}.o"))
    else:
        steps = [Vectorize(name, last.name), *_side_by_side(stage, guarded)]
    phases = [axis for axis in stage.axes[:-1] if axis.name.endswith(".l")]
    if last.name in guarded:  # for each phase of its own it is known which lanes are padding
        steps += [Unroll(name, axis.name) for axis in phases if axis.extent <= MAX_PHASES]
    for axis in stage.axes[:-1]:
        cuts = borders(stage.body, axis) if axis.name in guarded else ()
        if cuts:
            steps.append(Partition(name, axis.name, 0, 0, cuts))
    return steps


def _side_by_side(stage: Stage, guarded: set[str]) -> list[Step]:
    """Several vectors of conversions at once, which take little more than the loop round them."""
    if not isinstance(stage.body, Cast) or len(stage.axes) < 2:
        return []
    next_to_last = stage.axes[-2]
    if next_to_last.name in guarded or next_to_last.extent < VECTORS_OF_COPY:
        return []
    name = next_to_last.name
    return [Tile(stage.name, name, VECTORS_OF_COPY), Unroll(stage.name, f"{name}.i")]


def _in_blocks(kernel: FusedKernel, stage: Stage, read: str, lanes: int) -> list[Step]:
    name, rows = stage.name, f"{stage.name}.rows"
    inputs = {buffer.name for buffer in kernel.inputs}
    (buffer,) = (load.buffer for load in loads(stage.body) if load.buffer in inputs)
    extents = {axis.name: axis.extent for axis in stage.axes}
    written = stage.axes[-1].name
    rest = tuple(axis.name for axis in stage.axes[:-1] if axis.name != read)
    steps: list[Step] = [CacheRead(name, buffer, rows, (*rest, written, read))]
    block = min(lanes, extents[read])
    steps.append(Tile(name, read, block, "shift"))
    outer: tuple[str, ...] = ()
    inner = written
    if extents[written] > lanes:
        steps.append(Tile(name, written, lanes, "shift"))
        outer, inner = (f"{written}.o",), f"{written}.i"
    guarded = guarded_axes(stage)
    steps += [Partition(name, axis, 0, 1) for axis in rest if axis in guarded]
    return [
        *steps,
        Reorder(name, (*rest, *outer, f"{read}.o", f"{read}.i", inner)),
        Unroll(name, f"{read}.i"),
        Vectorize(name, inner),
        ComputeAt(rows, name, f"{read}.o", "register"),
        Unroll(rows, written),
        Vectorize(rows, read),
    ]


def attached_axis(context: TileContext) -> str:
    """The innermost outer axis each point of which reads a part of its own of all copies.

    "" where those parts are too large to stay in the caches, or too few for the threads.
    """
    copies = [context.kernel.stage(name) for name in context.prologue]
    if not copies or any(stage.reduce_axes for stage in copies):
        return ""
    deepest, points = "", 1
    size = sum(prod(stage.shape) * stage.dtype.bytes for stage in copies)
    for axis in context.roles.outer:
        extent = context.extents[axis]
        if not all(_is_parted(context, stage, axis) for stage in copies):
            break
        deepest, points, size = axis, points * extent, size // extent
    shared = context.threads == 1 or points >= 2 * context.threads
    return deepest if shared and size <= STACK_BYTES else ""


def _is_parted(context: TileContext, stage: Stage, axis: str) -> bool:
    """No two points of the axis read the same of the stage."""
    ranges = {name: (0, extent - 1) for name, extent in context.extents.items()}
    held = context.form.held
    read = held.stage if held is not None and held.source == stage.name else stage.name
    for load in loads(context.anchor.body):
        if load.buffer != read:
            continue
        forms = [affine(item, {}) for item in load.indices if axis in axes_of(item)]
        if not forms:
            return False
        for form in forms:
            step = form.coefficient(axis)
            low, high = affine_range(form, {**ranges, axis: (0, 0)})
            if step < 1 or high - low >= step:
                return False
    return True
