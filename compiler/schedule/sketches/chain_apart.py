"""Sketch: the parts of a chain one after the other, each as it would be in a kernel of its own.

for ..: expanded = register tile          in the workspace, all of it
for ..: filtered = register tile

What is left where parts have no common blocks of rows: layouts whose tiles hold rows of several
blocks of channels. A plan may chain what it likes; nothing is gained so, but little is lost.
"""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.chain import chain_parts
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.roles import with_roles
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.sketches.roles import roles_of
from tunefarm.compiler.schedule.sketches.tile_context import TileContext
from tunefarm.compiler.schedule.sketches.tile_domains import tiles_of
from tunefarm.compiler.schedule.sketches.tile_forms import TileForm
from tunefarm.compiler.schedule.sketches.tiled_reduction import (
    tiled_reduction_sketches,
    tiled_sketch,
)
from tunefarm.compiler.schedule.space import Sketch
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.vectors import vector_lanes
from tunefarm.compiler.target import Target


def chain_apart_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch, if the kernel is a chain; it leaves nothing open."""
    steps: list[Step] = []
    for part in chain_parts(kernel):
        steps += _steps_of(kernel, part, steps, target)
    if not steps:
        return []
    return [Sketch("chain_apart", (), lambda _: Schedule(tuple(steps)), ())]


def _steps_of(
    kernel: FusedKernel, part: FusedKernel, before: list[Step], target: Target
) -> list[Step]:
    """The first default of a part whose steps do not need the whole kernel to be the part."""
    for sketch in (*tiled_reduction_sketches(part, target, 1), *_as_it_is(part, target)):
        defaults = zip((choice.name for choice in sketch.choices), sketch.default, strict=True)
        steps = list(sketch.build(dict(defaults)).steps)
        try:
            scheduled = ScheduledKernel.of(kernel)
            for step in (*before, *steps):
                scheduled = step.apply(scheduled)
        except ScheduleError:
            continue
        return steps
    return []


def _as_it_is(part: FusedKernel, target: Target) -> list[Sketch]:
    """The sketch of the part's own axes, of which none is merged or split."""
    known = with_roles(part, vector_lanes(part, target))
    roles = roles_of(known)
    if roles is None:
        return []
    context = TileContext(TileForm("tiled", known, (), roles), target, 1)
    return [tiled_sketch(context)] if tiles_of(context) else []
