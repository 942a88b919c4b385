from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.loops.ir import LoopKind, Scope
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.loops.stage_state import Attachment
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class ComputeAt(Step):
    """Compute the part of `stage` that one iteration of `consumer`'s loop `axis` needs, there.

    for i: t[i] = f(i)                         for i.o: for i.i: t'[i.i] = f(i.o*4 + i.i)
    for i.o: for i.i: y[...] = t[...]     ->            for i.i: y[...] = t'[i.i]

    `scope` is where t' lives: "register", "stack", or "workspace", where a loop inside of this one
    runs in parallel.
    """

    stage: str
    consumer: str
    axis: str
    scope: str = "stack"

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state, consumer = scheduled.stage(self.stage), scheduled.stage(self.consumer)
        consumer.position(self.axis)
        if scheduled.position(self.stage) >= scheduled.position(self.consumer):
            raise ScheduleError(f"{self.stage} does not come before {self.consumer}")
        if self.scope not in (Scope.REGISTER, Scope.STACK, Scope.WORKSPACE):
            raise ScheduleError(f"unknown scope {self.scope!r} (register, stack or workspace)")
        attachment = Attachment(self.consumer, self.axis)
        return scheduled.with_state(
            replace(state, attachment=attachment, scope=Scope(self.scope), kept=False)
        )

    def check(self, scheduled: ScheduledKernel) -> None:
        if scheduled.stage(self.stage).attachment != Attachment(self.consumer, self.axis):
            return
        consumer = scheduled.stage(self.consumer)
        for loop in consumer.order[: consumer.position(self.axis) + 1]:
            if consumer.kinds.get(loop) is LoopKind.VECTORISED:
                raise ScheduleError(f"the lanes of Vectorize({self.consumer!r}, {loop!r}) share it")
