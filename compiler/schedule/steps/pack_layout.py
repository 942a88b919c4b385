from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.loops.constant_layout import ConstantLayout
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class PackLayout(Step):
    """Store a constant input in another layout, packed when the model is built.

    Each (axis, factor) of `splits` divides a dimension into (ceil(n / factor), factor), padded with
    zeros; `order` then permutes the resulting dimensions.

    With `winograd` m, a 3x3 filter [OC, IC, 3, 3] is first transformed to [m+2, m+2, OC, IC].

    w[64, 32, 3, 3]     splits ((0, 8),), order (0, 2, 3, 4, 1)     ->     w[8, 32, 3, 3, 8]
    """

    buffer: str
    splits: tuple[tuple[int, int], ...]
    order: tuple[int, ...]
    winograd: int = 0

    @property
    def layout(self) -> ConstantLayout:
        """The layout of the packed constant."""
        return ConstantLayout(self.splits, self.order, self.winograd)

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        buffer = scheduled.input(self.buffer)
        if not buffer.constant:
            raise ScheduleError(f"{self.buffer} is no constant: its layout is not ours to choose")
        made = scheduled.reshaped.get(self.buffer)
        if made == 0:
            raise ScheduleError(f"axes of {self.buffer} are merged: it cannot be packed")
        if self.winograd != (made or 0):
            algorithm = f"Winograd(m={made})" if made else "no Winograd step"
            raise ScheduleError(f"winograd={self.winograd} does not fit: there is {algorithm}")
        if any(factor < 1 for _, factor in self.splits):
            raise ScheduleError("the factors must be at least 1")
        axes = [axis for axis, _ in self.splits]
        if len(set(axes)) != len(axes) or any(not 0 <= axis < len(buffer.shape) for axis in axes):
            raise ScheduleError(f"{self.buffer} has {len(buffer.shape)} dimensions")
        if sorted(self.order) != list(range(len(buffer.shape) + len(axes))):
            raise ScheduleError(f"{self.order} is no permutation of the split dimensions")
        return replace(scheduled, layouts={**scheduled.layouts, self.buffer: self.layout})
