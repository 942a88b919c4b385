"""Step: read an operand by way of a copy, whose place and layout are ours to choose."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import Expr, Load, index
from tunefarm.compiler.expr.walk import rewrite
from tunefarm.compiler.kernels.kernel import Buffer
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class CopyOperand(Step):
    """Copy `buffer`, an input or a stage, to a stage `result`, which `stage` then reads.

    for i: for k: y[i] += x[k, i]     ->     for d0: for d1: t[d0, d1] = x[d0, d1]
                                            for i: for k: y[i] += t[k, i]

    The copy has the axes d0, d1… Usually a `PackStage` or a `ComputeAt` follows, so that what is
    read many times is read in the best order, or held in registers.
    """

    stage: str
    buffer: str
    result: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        stage = scheduled.untouched_stage(
            self.stage, "an operand is copied before other steps touch the stage that reads it"
        )
        made = {state.name: state.stage for state in scheduled.stages}
        source = made.get(self.buffer) or scheduled.input(self.buffer)
        if isinstance(source, Buffer) and source.constant:
            raise ScheduleError(f"{self.buffer} is a constant: PackLayout arranges it for nothing")
        axes = tuple(Axis(f"d{number}", extent) for number, extent in enumerate(source.shape))
        element = Load(source.dtype, self.buffer, tuple(index(axis.name) for axis in axes))

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
