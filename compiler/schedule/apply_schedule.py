"""Apply the steps of a schedule to a kernel's stages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from compiler.errors import ScheduleError
from compiler.expr.combiners import COMBINERS
from compiler.expr.nodes import Expr, Load, add, binary, index, integer, mul
from compiler.expr.parts import parts_that_read, parts_without
from compiler.expr.walk import axes_of, substitute, transform
from compiler.kernels.inline import inline
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.merge_axes import merge_axes, merge_reduce_axes
from compiler.kernels.stage import Axis, Stage
from compiler.kernels.winograd import apply_winograd
from compiler.loops.ir import LoopKind, Scope
from compiler.loops.stage_state import Attachment, Fusion, Split, StageState
from compiler.schedule.steps import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    Hoist,
    Inline,
    MergeAxes,
    MergeReduceAxes,
    PackLayout,
    Parallelize,
    Partition,
    Prefetch,
    Reorder,
    Schedule,
    SplitReduction,
    Step,
    Tile,
    Unroll,
    Vectorize,
    Winograd,
)


@dataclass(slots=True)
class ScheduledKernel:
    """A kernel whose stages carry their loops: what lowering starts from."""

    kernel: FusedKernel
    stages: list[StageState]
    layouts: dict[str, PackLayout] = field(default_factory=dict)
    prefetches: dict[str, int] = field(default_factory=dict)  # elements ahead, by input

    def splits(self) -> Iterator[Split]:
        for state in self.stages:
            yield from state.splits.values()

    def stage(self, name: str) -> StageState:
        for state in self.stages:
            if state.name == name:
                return state
        raise ScheduleError(f"kernel {self.kernel.name} has no stage {name!r}")


def apply_schedule(kernel: FusedKernel, schedule: Schedule) -> ScheduledKernel:
    """Apply every step in order; `ScheduleError` names the first that does not fit."""
    scheduled = ScheduledKernel(kernel, [StageState.of(stage) for stage in kernel.stages])
    for step in schedule.steps:
        try:
            _RULES[type(step)](scheduled, step)
        except ScheduleError as error:
            raise ScheduleError(
                f"{step}: {error.message}", program=str(schedule), hint=error.hint
            ) from None
    return scheduled


def _merge_axes(scheduled: ScheduledKernel, step: MergeAxes | MergeReduceAxes) -> None:
    if scheduled.layouts or not all(state.is_untouched for state in scheduled.stages):
        raise ScheduleError("axes are merged before all other steps")
    if isinstance(step, MergeAxes):
        scheduled.kernel = merge_axes(scheduled.kernel, step.first, step.second)
    else:
        scheduled.kernel = merge_reduce_axes(scheduled.kernel, step.stage, step.first, step.second)
    scheduled.stages = [StageState.of(stage) for stage in scheduled.kernel.stages]


def _winograd(scheduled: ScheduledKernel, step: Winograd) -> None:
    if scheduled.layouts or not all(state.is_untouched for state in scheduled.stages):
        raise ScheduleError("the algorithm is chosen before all other steps")
    scheduled.kernel = apply_winograd(scheduled.kernel, step.m)
    scheduled.stages = [StageState.of(stage) for stage in scheduled.kernel.stages]


def _inline(scheduled: ScheduledKernel, step: Inline) -> None:
    state = scheduled.stage(step.stage)
    if state.stage.reduce_axes:
        raise ScheduleError("a reduction cannot be inlined")
    if state is scheduled.stages[-1]:
        raise ScheduleError("the output stage cannot be inlined")
    scheduled.stages.remove(state)
    for other in scheduled.stages:
        other.stage = replace(other.stage, body=inline(other.stage.body, state.stage))


def _cache_write(scheduled: ScheduledKernel, step: CacheWrite) -> None:
    state = scheduled.stage(step.stage)
    if not state.is_untouched:
        raise ScheduleError("the cache must be made before other steps touch the stage")
    stage = state.stage
    names = tuple(index(axis.name) for axis in stage.axes)
    copy = Stage(stage.name, stage.axes, (), "", Load(stage.dtype, step.result, names))
    position = scheduled.stages.index(state)
    scheduled.stages[position : position + 1] = [
        StageState.of(replace(stage, name=step.result)),
        StageState.of(copy),
    ]


def _cache_read(scheduled: ScheduledKernel, step: CacheRead) -> None:
    state = scheduled.stage(step.stage)
    if not state.is_untouched:
        raise ScheduleError("the cache must be made before other steps touch the stage")
    stage = state.stage
    if sorted(step.axes) != sorted(axis.name for axis in stage.axes):
        raise ScheduleError(f"{step.axes} is no permutation of the axes of {stage.name}")
    parts = set(parts_that_read(stage.body, step.buffer))
    if not parts:
        raise ScheduleError(f"no part of {stage.name} can read {step.buffer} on its own")
    if len(parts) > 1:
        raise ScheduleError(f"{stage.name} reads {step.buffer} in several ways")
    (part,) = parts
    if axes_of(part) & {axis.name for axis in stage.reduce_axes}:
        raise ScheduleError(f"{stage.name} reads {step.buffer} along a reduce axis")
    axes = tuple(state.axis(name) for name in step.axes)
    cached = Load(part.dtype, step.result, tuple(index(name) for name in step.axes))
    body = transform(stage.body, lambda node: cached if node == part else None)
    position = scheduled.stages.index(state)
    scheduled.stages[position : position + 1] = [
        StageState.of(Stage(step.result, axes, (), "", part)),
        StageState.of(replace(stage, body=body)),
    ]


def _hoist(scheduled: ScheduledKernel, step: Hoist) -> None:
    state = scheduled.stage(step.stage)
    if not state.is_untouched:
        raise ScheduleError("parts are hoisted before other steps touch the stage")
    stage = state.stage
    reduce = {axis.name for axis in stage.reduce_axes}
    if step.axis not in reduce | {axis.name for axis in stage.axes}:
        raise ScheduleError(f"{step.axis} is no axis of {stage.name}")
    parts = parts_without(stage.body, {step.axis, *reduce})
    if not parts:
        raise ScheduleError(f"no part of {stage.name} is computed without {step.axis}")
    part, mentioned = parts[0], axes_of(parts[0])
    axes = tuple(axis for axis in stage.axes if axis.name in mentioned)
    hoisted = Load(part.dtype, step.result, tuple(index(axis.name) for axis in axes))
    body = transform(stage.body, lambda node: hoisted if node == part else None)
    position = scheduled.stages.index(state)
    scheduled.stages[position : position + 1] = [
        StageState.of(Stage(step.result, axes, (), "", part)),
        StageState.of(replace(stage, body=body)),
    ]


def _split_reduction(scheduled: ScheduledKernel, step: SplitReduction) -> None:
    state = scheduled.stage(step.stage)
    if not state.is_untouched:
        raise ScheduleError("a reduction must be split before other steps touch the stage")
    stage = state.stage
    others = tuple(axis for axis in stage.reduce_axes if axis.name != step.axis)
    if len(others) == len(stage.reduce_axes):
        raise ScheduleError(f"{step.axis} is no reduce axis of {stage.name}")
    extent, lanes = state.axis(step.axis).extent, step.lanes
    blocks, rest = divmod(extent, lanes)
    if blocks == 0:
        raise ScheduleError(f"extent {extent} is below {lanes} lanes")
    axis, spatial = step.axis, tuple(index(item.name) for item in stage.axes)
    outer, lane, tail = f"{axis}.o", f"{axis}.l", f"{axis}.t"

    def at(value: Expr) -> Expr:
        return substitute(stage.body, {axis: value})

    taken = {other.name for other in scheduled.stages}
    names = (f"{stage.name}.lanes{f'_{count}' if count else ''}" for count in itertools.count())
    partial = Stage(
        next(name for name in names if name not in taken),
        (*stage.axes, Axis(lane, lanes)),
        (*others, Axis(outer, blocks)),
        stage.combiner,
        at(add(mul(index(outer), integer(lanes)), index(lane))),
    )
    total = Stage(
        stage.name if rest == 0 else f"{stage.name}.sum",
        stage.axes,
        (Axis(lane, lanes),),
        stage.combiner,
        Load(stage.dtype, partial.name, (*spatial, index(lane))),
    )
    made = [partial, total]
    if rest:
        leftover = Stage(
            f"{stage.name}.tail",
            stage.axes,
            (*others, Axis(tail, rest)),
            stage.combiner,
            at(add(integer(blocks * lanes), index(tail))),
        )
        combined = binary(
            COMBINERS[stage.combiner].operation,
            Load(stage.dtype, total.name, spatial),
            Load(stage.dtype, leftover.name, spatial),
        )
        made += [leftover, Stage(stage.name, stage.axes, (), "", combined)]
    position = scheduled.stages.index(state)
    scheduled.stages[position : position + 1] = [StageState.of(item) for item in made]


def _position(state: StageState, axis: str) -> int:
    if axis not in state.order:
        known = ", ".join(state.order)
        raise ScheduleError(f"stage {state.name} has no loop {axis!r} (it has: {known})")
    return state.order.index(axis)


def _tile(scheduled: ScheduledKernel, step: Tile) -> None:
    state = scheduled.stage(step.stage)
    position = _position(state, step.axis)
    if step.factor < 1:
        raise ScheduleError("the factor must be at least 1")
    if step.tail not in ("peel", "shift", "mask"):
        raise ScheduleError(f"unknown tail {step.tail!r} (peel, shift or mask)")
    if step.tail != "peel" and step.axis in state.reduce:
        raise ScheduleError("a reduce axis can only be peeled: its tiles are summed up")
    outer, inner = f"{step.axis}.o", f"{step.axis}.i"
    split = Split(step.axis, outer, inner, step.factor, step.tail)
    state.splits[step.axis] = state.splits_by_outer[outer] = split
    state.order[position : position + 1] = [outer, inner]
    if step.axis in state.reduce:
        state.reduce |= {outer, inner}


def _fuse(scheduled: ScheduledKernel, step: Fuse) -> None:
    state = scheduled.stage(step.stage)
    position = _position(state, step.axes[0])
    if state.order[position : position + len(step.axes)] != list(step.axes):
        raise ScheduleError(f"loops {step.axes} are not adjacent in {state.order}")
    if any(axis in state.reduce for axis in step.axes):
        raise ScheduleError("reduce axes cannot be fused")
    state.order[position : position + len(step.axes)] = [step.name]
    state.fusions[step.name] = Fusion(step.axes, step.name)


def _reorder(scheduled: ScheduledKernel, step: Reorder) -> None:
    state = scheduled.stage(step.stage)
    if sorted(step.axes) != sorted(state.order):
        raise ScheduleError(f"{step.axes} is no permutation of the loops {tuple(state.order)}")
    state.order = list(step.axes)


def _kind(kind: LoopKind) -> Callable[[ScheduledKernel, Vectorize | Unroll], None]:
    def rule(scheduled: ScheduledKernel, step: Vectorize | Unroll) -> None:
        state = scheduled.stage(step.stage)
        _position(state, step.axis)
        if kind is LoopKind.VECTORISED:
            if step.axis in state.reduce:
                raise ScheduleError("a reduce axis cannot be vectorised (see SplitReduction)")
            if LoopKind.VECTORISED in state.kinds.values():
                raise ScheduleError("the stage is vectorised already")
        state.kinds[step.axis] = kind
        if isinstance(step, Unroll) and not step.edges:
            state.unrolled_inside.add(step.axis)

    return rule


def _parallelize(scheduled: ScheduledKernel, step: Parallelize) -> None:
    state = scheduled.stage(step.stage)
    if _position(state, step.axis) != 0 or step.axis in state.reduce:
        raise ScheduleError("only the outermost loop over an output axis runs in parallel")
    state.kinds[step.axis] = LoopKind.PARALLEL
    state.chunks = step.chunks


def _partition(scheduled: ScheduledKernel, step: Partition) -> None:
    state = scheduled.stage(step.stage)
    _position(state, step.axis)
    state.partitions[step.axis] = step


def _compute_at(scheduled: ScheduledKernel, step: ComputeAt) -> None:
    state, consumer = scheduled.stage(step.stage), scheduled.stage(step.consumer)
    _position(consumer, step.axis)
    if scheduled.stages.index(state) >= scheduled.stages.index(consumer):
        raise ScheduleError(f"{step.stage} does not come before {step.consumer}")
    state.attachment = Attachment(step.consumer, step.axis)
    state.scope = Scope(step.scope)


def _pack_layout(scheduled: ScheduledKernel, step: PackLayout) -> None:
    names = [buffer.name for buffer in scheduled.kernel.inputs]
    if step.buffer not in names:
        raise ScheduleError(f"the kernel has no input {step.buffer!r}")
    buffer = scheduled.kernel.buffer(step.buffer)
    if not buffer.constant:
        raise ScheduleError(f"{step.buffer} is no constant: its layout is not ours to choose")
    axes = [axis for axis, _ in step.splits]
    if len(set(axes)) != len(axes) or any(not 0 <= axis < len(buffer.shape) for axis in axes):
        raise ScheduleError(f"{step.buffer} has {len(buffer.shape)} dimensions")
    if sorted(step.order) != list(range(len(buffer.shape) + len(axes))):
        raise ScheduleError(f"{step.order} is no permutation of the split dimensions")
    scheduled.layouts[step.buffer] = step


def _prefetch(scheduled: ScheduledKernel, step: Prefetch) -> None:
    names = [buffer.name for buffer in scheduled.kernel.inputs]
    if step.buffer not in names:
        raise ScheduleError(f"the kernel has no input {step.buffer!r}")
    if step.distance < 1:
        raise ScheduleError("the prefetch distance must be at least 1 element")
    scheduled.prefetches[step.buffer] = step.distance


_RULES: dict[type[Step], Callable[[ScheduledKernel, Any], None]] = {
    MergeAxes: _merge_axes,
    MergeReduceAxes: _merge_axes,
    Winograd: _winograd,
    Inline: _inline,
    CacheWrite: _cache_write,
    CacheRead: _cache_read,
    Hoist: _hoist,
    SplitReduction: _split_reduction,
    Tile: _tile,
    Fuse: _fuse,
    Reorder: _reorder,
    Vectorize: _kind(LoopKind.VECTORISED),
    Unroll: _kind(LoopKind.UNROLLED),
    Parallelize: _parallelize,
    Partition: _partition,
    ComputeAt: _compute_at,
    PackLayout: _pack_layout,
    Prefetch: _prefetch,
}
