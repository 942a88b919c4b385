"""Kernel + target -> schedule space, and the schedule that is used when nothing was measured."""

from __future__ import annotations

from compiler.errors import ScheduleError
from compiler.kernels.kernel import FusedKernel
from compiler.schedule.schedule import Schedule
from compiler.schedule.sketches.row_wise import reduces_rows, row_wise_sketches
from compiler.schedule.sketches.tiled_reduction import tiled_reduction_sketches
from compiler.schedule.sketches.transposed import transposed_sketches
from compiler.schedule.sketches.window import window_sketches
from compiler.schedule.sketches.winograd_conv import winograd_pays, winograd_sketches
from compiler.schedule.space import ScheduleSpace, Sketch
from compiler.target import Target
from compiler.types.numerics import DEFAULT_NUMERICS, STRICT_NUMERICS, Numerics


def schedule_space(
    kernel: FusedKernel,
    target: Target,
    threads: int = 1,
    numerics: Numerics | str = DEFAULT_NUMERICS,
) -> ScheduleSpace:
    """All schedules of `kernel` that are worth measuring on `target` with `threads` threads.

    Algorithms (Winograd) that `numerics` does not admit are left out.
    A kernel that a sketch fails on has the naive schedule alone: others can be tuned beside it.
    """
    try:
        return _sketched(kernel, target, threads, Numerics.of(numerics))
    except ScheduleError:
        return ScheduleSpace([Sketch("naive", (), lambda _: naive_schedule(), ())])


def _sketched(
    kernel: FusedKernel, target: Target, threads: int, numerics: Numerics
) -> ScheduleSpace:
    sketches = window_sketches(kernel, target, threads)
    if reduces_rows(kernel):
        sketches += row_wise_sketches(kernel, target, threads)
    sketches += tiled_reduction_sketches(kernel, target, threads)
    if sketches:
        fast = winograd_sketches(kernel, target, threads, numerics)
        if fast and winograd_pays(kernel, target):
            return ScheduleSpace([*fast, *sketches])
        return ScheduleSpace([*sketches, *fast])
    sketches = transposed_sketches(kernel, target, threads)
    return ScheduleSpace([*sketches, *row_wise_sketches(kernel, target, threads)])


def default_schedule(
    kernel: FusedKernel,
    target: Target,
    threads: int = 1,
    numerics: Numerics | str = DEFAULT_NUMERICS,
) -> Schedule:
    """The analytic pick: the first sketch with the choices that its rules prefer.

    Raises ScheduleError where a sketch fails on the kernel.
    """
    space = _sketched(kernel, target, threads, Numerics.of(numerics))
    return space.schedule(space.default())


def untiled_schedule(kernel: FusedKernel, target: Target, threads: int = 1) -> Schedule:
    """One vector at a time, without register tile or unrolling: what tuning is compared with."""
    sketch = schedule_space(kernel, target, threads, STRICT_NUMERICS).sketches[0]
    choices = dict(zip((choice.name for choice in sketch.choices), sketch.default, strict=True))
    if "tile" in choices:
        choices |= {"tile": (1, 1), "unroll": (1, 1)}
    else:
        choices |= {"unroll": 1}
    return sketch.build(choices)


def naive_schedule() -> Schedule:
    """No step at all: every stage a serial scalar loop nest, the meaning of the kernel."""
    return Schedule(())
