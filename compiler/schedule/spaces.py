"""Kernel + target -> schedule space, and the schedule that is used when nothing was measured."""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.short_functions import apply_short_functions, has_short_functions
from tunefarm.compiler.schedule.fixed_order import (
    SumOrders,
    check_order,
    common_target,
    family_view,
    keeping_order,
    rounding_alike,
    sum_orders,
)
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.sketches.attention import attention_sketches
from tunefarm.compiler.schedule.sketches.attention_tiles import attention_tile_sketches
from tunefarm.compiler.schedule.sketches.chain import chain_apart_sketches, chain_sketches
from tunefarm.compiler.schedule.sketches.limb_dot import limb_dot_sketches
from tunefarm.compiler.schedule.sketches.matrix_tiles import matrix_tile_sketches
from tunefarm.compiler.schedule.sketches.recurrent import recurrent_sketches
from tunefarm.compiler.schedule.sketches.row_wise import reduced_row_sketches, row_wise_sketches
from tunefarm.compiler.schedule.sketches.tiled_reduction import tiled_reduction_sketches
from tunefarm.compiler.schedule.sketches.transposed import transposed_sketches
from tunefarm.compiler.schedule.sketches.walks import scan_sketches, scatter_sketches
from tunefarm.compiler.schedule.sketches.window import window_sketches
from tunefarm.compiler.schedule.sketches.window_rows import window_rows_sketches
from tunefarm.compiler.schedule.sketches.winograd_conv import winograd_sketches
from tunefarm.compiler.schedule.space import ScheduleSpace, Sketch
from tunefarm.compiler.schedule.steps.kernel_forms import ShortFunctions
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import (
    DEFAULT_NUMERICS,
    DETERMINISTIC_NUMERICS,
    KEEP,
    STRICT_NUMERICS,
    Numerics,
)

RECURRING = (recurrent_sketches,)
ATTENDING = (attention_tile_sketches, attention_sketches)
CHAINED = (chain_sketches,)
CHAINED_APART = (chain_apart_sketches,)
SCANNING = (scan_sketches, scatter_sketches)
REDUCING = (
    window_rows_sketches,
    window_sketches,
    reduced_row_sketches,
    matrix_tile_sketches,
    tiled_reduction_sketches,
    limb_dot_sketches,
    winograd_sketches,
)
MOVING = (transposed_sketches, row_wise_sketches)
"""The families of sketches, the preferred first; those that move are for what nothing reduces, and
where a pattern of several contractions is known, no other sketch is worth a try."""


def schedule_space(
    kernel: FusedKernel,
    target: Target,
    threads: int = 1,
    numerics: Numerics | str = DEFAULT_NUMERICS,
) -> ScheduleSpace:
    """All schedules of `kernel` that are worth measuring on `target` with `threads` threads.

    Algorithms (Winograd, digits) that `numerics` does not admit are left out. A kernel that a
    sketch fails on has the naive schedule alone: others can still be tuned.
    """
    try:
        return _sketched(kernel, target, threads, Numerics.of(numerics))
    except ScheduleError:
        return ScheduleSpace([Sketch("naive", (), lambda _: naive_schedule(), ())])


def _sketched(
    kernel: FusedKernel, target: Target, threads: int, numerics: Numerics
) -> ScheduleSpace:
    if numerics.fixes_order:
        return _ordered(kernel, target, threads)
    return ScheduleSpace(_admitted(kernel, target, threads, numerics))


def _ordered(kernel: FusedKernel, target: Target, threads: int) -> ScheduleSpace:
    """The schedules that keep the kernel's sums in the fixed order.

    Where the sketches for this target have none, there is the one that the order is from.
    """
    order = fixed_order(kernel, target)
    sketches = _admitted(kernel, family_view(target), threads, DETERMINISTIC_NUMERICS)
    common = Sketch("common", (), lambda _: _common_schedule(kernel, target), ())
    return ScheduleSpace(keeping_order(sketches, kernel, order) or [common])


def fixed_order(kernel: FusedKernel, target: Target) -> SumOrders:
    """The order of the kernel's sums that is the same on all CPUs of the target's family."""
    return sum_orders(kernel, _common_schedule(kernel, target))


def _common_schedule(kernel: FusedKernel, target: Target) -> Schedule:
    """The default schedule on what all CPUs of the target's family are taken for."""
    sketches = _admitted(kernel, common_target(target), 1, DETERMINISTIC_NUMERICS)
    space = ScheduleSpace(sketches)
    return space.schedule(space.default())


def _admitted(
    kernel: FusedKernel, target: Target, threads: int, numerics: Numerics
) -> list[Sketch]:
    short = _computes_short(kernel, target, numerics)
    if short:
        kernel = apply_short_functions(kernel)
    known = RECURRING, ATTENDING, CHAINED, CHAINED_APART, SCANNING, REDUCING, MOVING
    for families in known:
        sketches = [sketch for family in families for sketch in family(kernel, target, threads)]
        admitted = [sketch for sketch in sketches if sketch.algorithm in numerics.algorithms]
        if admitted:
            break
    if short:
        admitted = [sketch.after(ShortFunctions()) for sketch in admitted]
    return sorted(admitted, key=lambda sketch: not sketch.leads)


def _computes_short(kernel: FusedKernel, target: Target, numerics: Numerics) -> bool:
    """Functions have shorter forms, which are faster on the target, and may round otherwise."""
    if not target.machine.vectors.short_functions or numerics.denormals == KEEP:
        return False
    exact = numerics.rounds_each or numerics.fixes_order
    return not exact and has_short_functions(kernel)


class SpaceCache:
    """Spaces for one target, number of threads and precision; that of a kernel is made once."""

    def __init__(
        self, target: Target, threads: int = 1, numerics: Numerics | str = DEFAULT_NUMERICS
    ) -> None:
        self.target, self.threads, self.numerics = target, threads, Numerics.of(numerics)
        self._known: dict[str, ScheduleSpace] = {}

    @property
    def code_target(self) -> Target:
        """What code is emitted for: of the target, what the precision admits."""
        return rounding_alike(self.target) if self.numerics.fixes_order else self.target

    def check(self, kernel: FusedKernel, schedule: Schedule) -> None:
        """Raises ScheduleError for a schedule of the kernel that the precision does not admit."""
        if self.numerics.fixes_order:
            check_order(kernel, schedule, fixed_order(kernel, self.target))

    def of(self, kernel: FusedKernel, key: str) -> ScheduleSpace:
        """The space of the kernel with this workload key.

        Raises ScheduleError where a sketch fails on it.
        """
        if key not in self._known:
            self._known[key] = _sketched(kernel, self.target, self.threads, self.numerics)
        return self._known[key]


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
    """The default with a tile of one vector and nothing unrolled: what tuning is compared with."""
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
