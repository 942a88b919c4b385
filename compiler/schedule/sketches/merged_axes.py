"""Merge axes wherever a kernel allows it, and the steps that do so: fewer loops, longer rows."""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.flatten_axes import divisions, flatten_axes
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.merge_axes import merge_axes, merge_reduce_axes
from tunefarm.compiler.schedule.sketches.borders import borders, period
from tunefarm.compiler.schedule.steps.kernel_forms import FlattenAxes, MergeAxes, MergeReduceAxes
from tunefarm.compiler.schedule.steps.step import Step

LONG_ROW = 4  # vectors that are worth a loop of their own
MOST_POSITIONS = 256  # after which a pattern of divided positions repeats


def merge_all(
    kernel: FusedKernel, row: int | None = None
) -> tuple[FusedKernel, tuple[MergeAxes, ...]]:
    """Merge as many adjacent output axes as the kernel allows, from the right.

    But for axes that end at run time outside of `row` points, if that is given: rounds of which
    there may be few are no loop for threads to share, unless those are of another one too.
    """
    merges: list[MergeAxes] = []
    position = len(kernel.output.axes) - 2
    while position >= 0:
        axes = kernel.output.axes
        long = row is not None and axes[position + 1].extent >= row
        if long and kernel.limited_at(position):
            position -= 1
            continue
        step = MergeAxes(axes[position].name, axes[position + 1].name)
        try:
            kernel = merge_axes(kernel, step.first, step.second)
            merges.append(step)
        except ScheduleError:
            pass
        position -= 1
    return kernel, tuple(merges)


def merge_reductions(kernel: FusedKernel) -> tuple[FusedKernel, tuple[Step, ...]]:
    """Merge adjacent reduce axes wherever they are walked together."""
    merges: list[Step] = []
    for name in [stage.name for stage in kernel.stages]:
        position = len(kernel.stage(name).reduce_axes) - 2
        while position >= 0:
            first, second = kernel.stage(name).reduce_axes[position : position + 2]
            try:
                kernel = merge_reduce_axes(kernel, name, first.name, second.name)
                merges.append(MergeReduceAxes(name, first.name, second.name))
            except ScheduleError:
                pass
            position -= 1
    return kernel, tuple(merges)


def flatten_short_rows(
    kernel: FusedKernel, lanes: int, threads: int
) -> tuple[FusedKernel, tuple[FlattenAxes, ...]]:
    """Flatten the last axes of a kernel of one stage where that divides no position.

    And where the last one is no longer than a vector: then vectors hold several rows, and what is
    read lies in patterns. Elements whose places are read from memory stay in their rows, and what
    threads share is no row that is cut.
    """
    steps: list[FlattenAxes] = []
    while len(kernel.stages) == 1 and not kernel.output.reduce_axes and len(kernel.output.axes) > 1:
        first, second = kernel.output.axes[-2:]
        end = len(kernel.output.axes) - 1
        shared = threads > 1 and second.extent >= LONG_ROW * lanes
        if kernel.limited_within(end) or (shared and kernel.limited_at(end - 1)):
            break
        try:
            flat = flatten_axes(kernel, first.name, second.name)
        except ScheduleError:
            break  # rows lie apart
        is_short = second.extent <= lanes and not _is_looked_up(kernel)
        if divisions(flat) > divisions(kernel) and not is_short:
            break
        body, last = flat.output.body, flat.output.axes[-1]
        is_shared = threads > 1 and len(flat.output.axes) == 1
        if period(body, last) > MOST_POSITIONS or (is_shared and borders(body, last, True)):
            break
        kernel = flat
        steps.append(FlattenAxes(first.name, second.name))
    return kernel, tuple(steps)


def flatten_single_rows(kernel: FusedKernel) -> tuple[FusedKernel, tuple[FlattenAxes, ...]]:
    """Flatten axes of extent 1 of a kernel of one stage, and what may be walked as one without."""
    steps: list[FlattenAxes] = []
    outer = next((i for i, axis in enumerate(kernel.output.axes) if axis.extent > 1), 0)
    single = any(axis.extent == 1 for axis in kernel.output.axes[outer:])
    if not single or len(kernel.stages) > 1 or kernel.output.reduce_axes:
        return kernel, ()
    for position in range(len(kernel.output.axes) - 2, outer - 1, -1):
        first, second = kernel.output.axes[position : position + 2]
        if kernel.limited_within(position + 1):
            continue
        try:
            flat = flatten_axes(kernel, first.name, second.name)
        except ScheduleError:
            continue
        if divisions(flat) <= divisions(kernel):
            kernel = flat
            steps.append(FlattenAxes(first.name, second.name))
    return kernel, tuple(steps)


def _is_looked_up(kernel: FusedKernel) -> bool:
    """Some position is read from memory."""
    return any(loads(item) for load in loads(kernel.output.body) for item in load.indices)
