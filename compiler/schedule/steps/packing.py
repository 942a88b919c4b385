"""Steps that arrange what is read: constants when the model is built, others in the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import (
    affine,
    affine_range,
    simplify_division,
    simplify_divisions,
)
from tunefarm.compiler.expr.combiners import neutral_element
from tunefarm.compiler.expr.nodes import (
    Expr,
    Load,
    Select,
    add,
    all_of,
    binary,
    const,
    index,
    integer,
    mul,
    select,
)
from tunefarm.compiler.expr.walk import axes_of, loads, rewrite, substitute
from tunefarm.compiler.kernels.stage import Axis, Stage
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


@dataclass(frozen=True, slots=True)
class PackStage(Step):
    """Store the result of `stage`, which is not the output, in another layout.

    Each (axis, factor) of `splits` divides the axis of this number, a, into a.b of ceil(n / factor)
    points and a.l of `factor` points; `order` then permutes the axes there are.

    for i < 10: t[i] = f(i)            splits ((0, 4),), order (1, 0)
    for i < 10: y[i] = t[i]      ->    for a < 4: for b < 3: if b*4 + a < 10: t[a, b] = f(b*4 + a)
                                       for i < 10: y[i] = t[i % 4, i // 4]

    What lies beyond the extent is 0, or the neutral element of a reduction. A reduction whose
    operands are packed constants with as much padding needs no test: it is formed there as well,
    of these zeros, and nobody reads it.
    """

    stage: str
    splits: tuple[tuple[int, int], ...]
    order: tuple[int, ...]

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        stage = scheduled.untouched_stage(
            self.stage, "a stage is packed before other steps touch it"
        )
        if stage.name == scheduled.stages[-1].name:
            raise ScheduleError("the layout of the output is not ours to choose")
        self._check(stage)
        packed = self._packed(stage, scheduled)
        states = scheduled.with_stages(stage.name, packed).stages
        changed = (
            replace(state, stage=replace(state.stage, body=self._reading(state.stage, stage)))
            for state in states
        )
        return replace(scheduled, stages=tuple(changed))

    def check(self, scheduled: ScheduledKernel) -> None:
        for state in scheduled.stages:
            stage = state.stage
            untested = bool(stage.reduce_axes) and not isinstance(stage.body, Select)
            if stage.name == self.stage and untested and _overruns(stage, scheduled):
                raise ScheduleError(f"{self.stage} relies on a constant that is packed otherwise")

    def _check(self, stage: Stage) -> None:
        axes = [axis for axis, _ in self.splits]
        if len(set(axes)) != len(axes) or any(not 0 <= axis < len(stage.axes) for axis in axes):
            raise ScheduleError(f"{stage.name} has {len(stage.axes)} axes")
        if any(factor < 1 for _, factor in self.splits):
            raise ScheduleError("the factors must be at least 1")
        if sorted(self.order) != list(range(len(stage.axes) + len(axes))):
            raise ScheduleError(f"{self.order} is no permutation of the split axes")

    def _packed(self, stage: Stage, scheduled: ScheduledKernel) -> Stage:
        factors = dict(self.splits)
        axes: list[Axis] = []
        values: dict[str, Expr] = {}
        beyond: list[Expr] = []
        for number, axis in enumerate(stage.axes):
            factor = factors.get(number)
            if factor is None:
                axes.append(axis)
                continue
            blocks, within = f"{axis.name}.b", f"{axis.name}.l"
            axes += [Axis(blocks, -(-axis.extent // factor)), Axis(within, factor)]
            value = add(mul(index(blocks), integer(factor)), index(within))
            values[axis.name] = value
            if axis.extent % factor:
                beyond.append(binary("lt", value, integer(axis.extent)))
        made = {axis.name for axis in axes} - {axis.name for axis in stage.axes}
        if made & {axis.name for axis in (*stage.axes, *stage.reduce_axes)}:
            raise ScheduleError(f"{stage.name} was packed along these axes before")
        ranges = _ranges((*axes, *stage.reduce_axes))
        body = simplify_divisions(substitute(stage.body, values), ranges)
        packed = replace(stage, axes=tuple(axes[number] for number in self.order), body=body)
        reduced = bool(stage.reduce_axes)
        if not beyond or (reduced and not _overruns(packed, scheduled)):
            return packed
        neutral = neutral_element(stage.combiner, body.dtype) if reduced else const(0, body.dtype)
        return replace(packed, body=select(all_of(*beyond), body, neutral))

    def _reading(self, reader: Stage, stage: Stage) -> Expr:
        """The reader's body with its loads from `stage` in the new layout."""
        factors = dict(self.splits)
        ranges = _ranges((*reader.axes, *reader.reduce_axes))

        def moved(node: Expr) -> Expr:
            if not isinstance(node, Load) or node.buffer != stage.name:
                return node
            split: list[Expr] = []
            for number, item in enumerate(node.indices):
                factor = factors.get(number)
                if factor is None:
                    split.append(item)
                else:
                    parts = ("floordiv", "mod")
                    split += [simplify_division(op, item, factor, ranges) for op in parts]
            return replace(node, indices=tuple(split[number] for number in self.order))

        return rewrite(reader.body, moved)


def _ranges(axes: Iterable[Axis]) -> dict[str, tuple[int, int]]:
    return {axis.name: (0, axis.extent - 1) for axis in axes}


def _overruns(stage: Stage, scheduled: ScheduledKernel) -> bool:
    """Without a test, some load along a split axis may lie beyond what there is in memory."""
    split = {axis.name for axis in stage.axes if axis.name.endswith((".b", ".l"))}
    shapes = {state.name: state.stage.shape for state in scheduled.stages}
    shapes |= {buffer.name: buffer.shape for buffer in scheduled.kernel.inputs}
    ranges = _ranges((*stage.axes, *stage.reduce_axes))
    for load in loads(stage.body):
        layout = scheduled.layouts.get(load.buffer)
        factors = {} if layout is None else dict(layout.splits)
        for number, (item, extent) in enumerate(
            zip(load.indices, shapes[load.buffer], strict=True)
        ):
            factor = factors.get(number, 1)
            if not axes_of(item) & split:
                continue
            if affine_range(affine(item, ranges), ranges)[1] >= -(-extent // factor) * factor:
                return True
    return False
