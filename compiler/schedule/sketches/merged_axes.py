"""Merge axes wherever a kernel allows it, and the steps that do so: fewer loops, longer rows."""

from __future__ import annotations

from compiler.errors import ScheduleError
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.merge_axes import merge_axes, merge_reduce_axes
from compiler.schedule.steps.merge_axes import MergeAxes
from compiler.schedule.steps.merge_reduce_axes import MergeReduceAxes
from compiler.schedule.steps.step import Step


def merge_all(kernel: FusedKernel) -> tuple[FusedKernel, tuple[MergeAxes, ...]]:
    """Merge as many adjacent output axes as the kernel allows, from the right."""
    merges: list[MergeAxes] = []
    position = len(kernel.output.axes) - 2
    while position >= 0:
        axes = kernel.output.axes
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
