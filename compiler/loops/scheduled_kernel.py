"""A kernel whose stages carry their loops: what schedule steps rewrite and lowering starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import Expr, Load, index
from tunefarm.compiler.expr.walk import transform
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel
from tunefarm.compiler.kernels.recurrence import recurrence_of
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.loops.constant_layout import ConstantLayout
from tunefarm.compiler.loops.ir import Ahead
from tunefarm.compiler.loops.stage_state import Attachment, StageState
from tunefarm.compiler.types.frozen import frozen, replace


@frozen
class ScheduledKernel:
    """A kernel's stages in the order in which they are computed, with their loops."""

    kernel: FusedKernel
    stages: tuple[StageState, ...]
    layouts: Mapping[str, ConstantLayout] = field(default_factory=dict)  # by input
    prefetches: Mapping[str, int] = field(default_factory=dict)  # elements ahead, by input
    copies: Mapping[str, Ahead] = field(default_factory=dict)  # by stage, over its axes
    reshaped: Mapping[str, int] = field(default_factory=dict)
    """Inputs of another shape than the caller's: Winograd's m, or 0 where axes are merged."""

    @staticmethod
    def of(kernel: FusedKernel) -> ScheduledKernel:
        """The naive state: every stage a serial loop nest, inside of the steps of a recurrence."""
        states = tuple(StageState.of(stage) for stage in kernel.stages)
        recurrence = recurrence_of(kernel)
        if recurrence is not None:
            states = tuple(
                state.walked(kernel.output.name, recurrence.axis)
                if state.name in recurrence.stages
                else state
                for state in states
            )
        return ScheduledKernel(kernel, states)

    def stage(self, name: str) -> StageState:
        """A stage by name; `ScheduleError` if there is none."""
        return self.stages[self.position(name)]

    def position(self, name: str) -> int:
        """Where a stage is in the order; `ScheduleError` if it is not there."""
        for position, state in enumerate(self.stages):
            if state.stage.name == name:
                return position
        raise ScheduleError(f"kernel {self.kernel.name} has no stage {name!r}")

    def input(self, name: str) -> Buffer:
        """An input by name; `ScheduleError` if there is none."""
        for buffer in self.kernel.inputs:
            if buffer.name == name:
                return buffer
        raise ScheduleError(f"the kernel has no input {name!r}")

    def require_untouched(self, otherwise: str) -> None:
        """`ScheduleError` with the reason `otherwise` if a stage or a layout is not naive."""
        if self.layouts or self.stages != ScheduledKernel.of(self.kernel).stages:
            raise ScheduleError(otherwise)

    def is_inside(self, stage: StageState, consumer: StageState, axis: str) -> bool:
        """The stage is computed in this loop of the consumer, itself or inside of another stage."""
        attachment = stage.attachment
        while attachment is not None and attachment.consumer != consumer.name:
            attachment = self.stage(attachment.consumer).attachment
        return attachment is not None and consumer.order.index(
            attachment.axis
        ) >= consumer.order.index(axis)

    def rewritten(self, kernel: FusedKernel, winograd: int = 0) -> ScheduledKernel:
        """Another form of the kernel, in naive loops."""
        inputs = zip(self.kernel.inputs, kernel.inputs, strict=True)
        changed = {new.name: winograd for old, new in inputs if old.shape != new.shape}
        naive = ScheduledKernel.of(kernel)
        return replace(
            self, kernel=kernel, stages=naive.stages, reshaped={**self.reshaped, **changed}
        )

    def untouched_stage(self, name: str, otherwise: str) -> Stage:
        """A stage that no step was applied to; `ScheduleError` with the reason `otherwise`."""
        state = self.stage(name)
        if state != _naive(state.stage, state.attachment):
            raise ScheduleError(otherwise)
        return state.stage

    def with_state(self, state: StageState) -> ScheduledKernel:
        """`state` instead of the stage of its name."""
        return self._spliced(state.name, (state,))

    def with_stages(self, name: str, *stages: Stage) -> ScheduledKernel:
        """Naive stages that replace the stage `name`; `ScheduleError` for a name twice.

        They are inside of the steps of a recurrence where the stage is.
        """
        taken = {state.name for state in self.stages if state.name != name}
        taken |= {buffer.name for buffer in self.kernel.inputs}
        for stage in stages:
            if stage.name in taken:
                raise ScheduleError(f"there is a stage or an input {stage.name!r} already")
            taken.add(stage.name)
        attachment = self.stage(name).attachment
        return self._spliced(name, tuple(_naive(stage, attachment) for stage in stages))

    def with_part(
        self, stage: Stage, part: Expr, result: str, axes: tuple[Axis, ...]
    ) -> ScheduledKernel:
        """A stage `result` over `axes` that computes `part` of `stage`, which then reads it."""
        made = Load(part.dtype, result, tuple(index(axis.name) for axis in axes))
        body = transform(stage.body, lambda node: made if node == part else None)
        return self.with_stages(
            stage.name, Stage(result, axes, (), "", part), replace(stage, body=body)
        )

    def _spliced(self, name: str, states: tuple[StageState, ...]) -> ScheduledKernel:
        position = self.position(name)
        stages = (*self.stages[:position], *states, *self.stages[position + 1 :])
        # What nearly every step ends with; `replace` takes several times as long.
        kept = self.layouts, self.prefetches, self.copies, self.reshaped
        return ScheduledKernel(self.kernel, stages, *kept)


def _naive(stage: Stage, attachment: Attachment | None) -> StageState:
    """The stage in a serial loop nest, with an attachment inside of the steps of a recurrence."""
    state = StageState.of(stage)
    return state if attachment is None else state.walked(attachment.consumer, attachment.axis)
