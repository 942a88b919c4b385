"""Step: read an input by way of a copy, whose layout is ours to choose."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.errors import ScheduleError
from compiler.expr.nodes import Expr, Load, index
from compiler.expr.walk import rewrite
from compiler.kernels.stage import Axis, Stage
from compiler.loops.scheduled_kernel import ScheduledKernel
from compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class CopyInput(Step):
    """Copy the input `buffer` to a stage `result`, with axes d0, d1…, which `stage` then reads.

    for i: for k: y[i] += x[k, i]     ->     for d0: for d1: t[d0, d1] = x[d0, d1]
                                            for i: for k: y[i] += t[k, i]

    Usually a `PackStage` follows, so that what is read many times is read in the best order.
    """

    stage: str
    buffer: str
    result: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        stage = scheduled.untouched_stage(
            self.stage, "an input is copied before other steps touch the stage that reads it"
        )
        buffer = scheduled.input(self.buffer)
        if buffer.constant:
            raise ScheduleError(f"{self.buffer} is a constant: PackLayout arranges it for nothing")
        axes = tuple(Axis(f"d{number}", extent) for number, extent in enumerate(buffer.shape))
        element = Load(buffer.dtype, buffer.name, tuple(index(axis.name) for axis in axes))

        def copied(node: Expr) -> Expr:
            if not isinstance(node, Load) or node.buffer != self.buffer:
                return node
            return replace(node, buffer=self.result)

        body = rewrite(stage.body, copied)
        if body is stage.body:
            raise ScheduleError(f"{self.stage} does not read {self.buffer}")
        return scheduled.with_stages(
            stage.name, Stage(self.result, axes, (), "", element), replace(stage, body=body)
        )
