"""Phases: axes whose remainder decides what is summed, as the stride of a transposed convolution.

y[w] = sum over k of x[w // 2 - k] * f[w % 2 + 2 * k]
->
y[w_q, w_r] = sum over k of x[w_q - k] * f[w_r + 2 * k]
"""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import linear
from tunefarm.compiler.expr.nodes import Binary, Const
from tunefarm.compiler.expr.walk import axes_of, loads, postorder
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.roles import with_roles
from tunefarm.compiler.kernels.split_axis import split_axis
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.schedule.steps.kernel_forms import SplitAxis

MAX_COPIES = 4  # of a loop nest's code
MAX_LONE_PHASES = 4  # so many are told apart in code where their taps follow no simple rule


def split_phases(kernel: FusedKernel, lanes: int) -> tuple[FusedKernel, tuple[SplitAxis, ...]]:
    """The kernel with its phases as axes, and their roles; as it is where it has none.

    The factors of each term then depend on the quotient of such an axis, or on its phase, or the
    phase is a mere offset.
    """
    anchor = kernel.stage(kernel.anchor)
    steps = []
    for axis in anchor.axes[2:]:
        if (period := _period(anchor, axis.name)) > 1:
            steps.append(SplitAxis(axis.name, period))
    split = kernel
    try:
        for step in steps:
            split = split_axis(split, step.axis, step.factor)
    except ScheduleError:
        return kernel, ()
    if not steps or not all(_is_apart(split.stage(split.anchor), step.axis) for step in steps):
        return kernel, ()
    return with_roles(split, lanes), tuple(steps)


def _period(anchor: Stage, axis: str) -> int:
    """What the axis is divided by, 1 where it is not."""
    divisors = {
        int(node.right.value)
        for node in postorder(anchor.body)
        if isinstance(node, Binary)
        and node.op in ("floordiv", "mod")
        and isinstance(node.right, Const)
        and axis in axes_of(node.left)
    }
    return max(divisors, default=1)


def _is_apart(anchor: Stage, axis: str) -> bool:
    """Some factor depends on the phase and not on the quotient."""
    found = [axes_of(load) for load in loads(anchor.body)]
    return any(f"{axis}_r" in axes and f"{axis}_q" not in axes for axes in found)


def phase_cuts(kernel: FusedKernel, phases: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Where along each phase a quotient or remainder turns over: between, indices are affine.

    The code is repeated for all pieces: where they were too many, that of the last axes only.
    """
    cuts: dict[str, tuple[int, ...]] = {}
    copies = 1
    for phase in reversed(phases):
        found = _turns(kernel, phase)
        cuts[phase] = found if copies * (len(found) + 1) <= MAX_COPIES else ()
        copies *= len(cuts[phase]) + 1
    return cuts


def _turns(kernel: FusedKernel, phase: str) -> tuple[int, ...]:
    anchor = kernel.stage(kernel.anchor)
    extent = next(axis.extent for axis in anchor.axes if axis.name == phase)
    cuts: set[int] = set()
    for node in postorder(anchor.body):
        divides = isinstance(node, Binary) and node.op in ("floordiv", "mod")
        if not divides or not isinstance(node, Binary) or phase not in axes_of(node):
            continue
        form = linear(node.left)
        if form.terms == ((phase, 1),) and node.right == Const(node.dtype, extent):
            cuts.add(-form.constant % extent)
        elif extent <= MAX_LONE_PHASES:
            cuts.update(range(extent))
    return tuple(sorted(cuts - {0}))
