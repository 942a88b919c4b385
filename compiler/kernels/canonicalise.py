"""Brings the stages of a fusion group into the form that schedules know.

- Without a reduction, one output stage.
- A reduction with an accumulator is one of that type; what reads it converts what it gives.
- With reductions: pointwise stages before the last reduction (the anchor) are inlined into their
  readers, except padding ("pad", whose windows overlap) and expensive ones that would be evaluated
  more than once per element; everything after the anchor becomes one epilogue stage, with the
  anchor's axis names where it has the anchor's shape.
- In a chain so does what the reductions before the anchor give the next one: each has an epilogue
  of its own, which is stored.
- The stages of a recurrence stay as they are: its operator says what is kept of a step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tunefarm.compiler.expr.affine import simplify_division
from tunefarm.compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    binary,
    const,
    index,
)
from tunefarm.compiler.expr.parts import is_expensive
from tunefarm.compiler.expr.walk import loads, rewrite
from tunefarm.compiler.kernels.accumulate import apart
from tunefarm.compiler.kernels.count_work import iterations
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.recurrence import recurrence_of
from tunefarm.compiler.kernels.serialize import ExpressionTable, kernel_from_json, kernel_to_json
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import replace


def canonicalise(
    kernel: FusedKernel, stored: Collection[str] = ()
) -> tuple[FusedKernel, tuple[str, ...]]:
    """The kernel with pointwise stages inlined, what nothing reads dropped, inputs renamed in0….

    The anchor becomes the last reduction, or the only stage. Equal subexpressions become one node.
    Stages that are `stored`, what the parts of a chain give, are inlined nowhere. Also returns the
    old names of the inputs that are left, in order.
    """
    recurrent = recurrence_of(kernel) is not None
    stages = _accumulators_apart(kernel.stages)
    stages = _read(stages if recurrent else _inline(stages, stored))
    reductions = [stage.name for stage in stages if stage.reduce_axes]
    anchor = reductions[-1] if reductions else stages[-1].name
    if not recurrent:
        stages = _name_axes_like(stages, anchor)
        stages = tuple(
            _named_like_source(stage, stages) if stage.name in stored else stage for stage in stages
        )
    renamed, kept = _rename_inputs(replace(kernel, stages=stages, anchor=anchor))
    return kernel_from_json(kernel_to_json(renamed)), kept


def with_literals(kernel: FusedKernel, literals: Mapping[str, Const]) -> FusedKernel:
    """The kernel with every load of the given (one-element) inputs replaced by a literal."""

    def rule(node: Expr) -> Expr:
        if isinstance(node, Cast) and isinstance(node.operand, Const):
            stored = node.operand.dtype
            return const(node.operand.value, node.dtype) if stored is not stored.wide else node
        return literals.get(node.buffer, node) if isinstance(node, Load) else node

    stages = tuple(replace(stage, body=rewrite(stage.body, rule)) for stage in kernel.stages)
    return replace(kernel, stages=stages)


# --- what is inlined ----------------------------------------------------------------------------


def _accumulators_apart(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    parts: list[Stage] = []
    for stage in stages:
        wide = stage.accumulator is not None
        parts += apart(stage, f"{stage.name}.accumulated") if wide else (stage,)
    return tuple(parts)


def _inline(stages: tuple[Stage, ...], stored: Collection[str]) -> tuple[Stage, ...]:
    inlined = _inlined_names(stages, stored)
    bodies: dict[str, Stage] = {}
    kept: list[Stage] = []
    for stage in stages:
        body = _Inliner(stage, bodies).run()
        if stage.name in inlined:
            bodies[stage.name] = replace(stage, body=body)
        else:
            kept.append(replace(stage, body=body))
    return tuple(kept)


def _inlined_names(stages: tuple[Stage, ...], stored: Collection[str]) -> set[str]:
    """The pointwise stages to inline, decided from the last to the first: how often an inlined
    stage is evaluated depends on what became of its readers."""
    anchor = max((i for i, stage in enumerate(stages) if stage.reduce_axes), default=-1)
    evaluations = {stages[-1].name: iterations(stages[-1])}
    inlined: set[str] = set()
    # What nothing but a stored stage needs is one with it, unless that reduces.
    epilogues = {stage.name for stage in stages if stage.name in stored and not stage.reduce_axes}
    for position in range(len(stages) - 2, -1, -1):
        stage = stages[position]
        reads, readers = 0, set[str]()
        for reader in stages[position + 1 :]:
            count = sum(load.buffer == stage.name for load in loads(reader.body))
            reads += count * evaluations[reader.name]
            readers |= {reader.name} if count else set()
        keep = bool(stage.reduce_axes) or stage.name in stored
        if not keep and readers and readers <= epilogues:
            epilogues.add(stage.name)
        elif not keep and position < anchor:
            again = reads > iterations(stage)
            keep = _is_padding(stage) or (is_expensive(stage.body) and again)
        evaluations[stage.name] = iterations(stage) if keep else reads
        if not keep:
            inlined.add(stage.name)
    return inlined


def _is_padding(stage: Stage) -> bool:
    return stage.name == "pad" or stage.name.startswith("pad_")


class _Inliner:
    """Replaces loads of inlined stages in one stage by their bodies at the load's indices."""

    def __init__(self, stage: Stage, bodies: Mapping[str, Stage]) -> None:
        self.stage = stage
        self.bodies = bodies
        axes = (*stage.axes, *stage.reduce_axes)
        self.ranges = {axis.name: (0, axis.extent - 1) for axis in axes}
        self.table = ExpressionTable()
        self.instances: dict[tuple[str, tuple[int, ...]], Expr] = {}

    def run(self) -> Expr:
        return rewrite(self.stage.body, self._replace_load)

    def _replace_load(self, node: Expr) -> Expr:
        if not isinstance(node, Load) or node.buffer not in self.bodies:
            return self._fold(node)
        key = (node.buffer, tuple(self.table.add(position) for position in node.indices))
        if key not in self.instances:
            source = self.bodies[node.buffer]
            positions = {
                axis.name: position
                for axis, position in zip(source.axes, node.indices, strict=True)
            }
            self.instances[key] = rewrite(
                source.body,
                lambda inner: (
                    positions[inner.name] if isinstance(inner, Index) else self._fold(inner)
                ),
            )
        return self.instances[key]

    def _fold(self, node: Expr) -> Expr:
        """Index arithmetic with literals folded, and divisions simplified."""
        if not isinstance(node, Binary) or node.left.dtype is not DType.I64:
            return node
        divides = node.op in ("floordiv", "mod")
        if divides and isinstance(node.right, Const) and int(node.right.value) > 0:
            return simplify_division(node.op, node.left, int(node.right.value), self.ranges)
        return binary(node.op, node.left, node.right)


def _read(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The last stage and what it depends on: a product with 0 reads nothing any more."""
    kept = [stages[-1]]
    read = {load.buffer for load in loads(stages[-1].body)}
    for stage in reversed(stages[:-1]):
        if stage.name in read:
            kept.append(stage)
            read.update(load.buffer for load in loads(stage.body))
    return tuple(reversed(kept))


# --- names --------------------------------------------------------------------------------------


def _name_axes_like(stages: tuple[Stage, ...], anchor: str) -> tuple[Stage, ...]:
    """The epilogue's axes get the anchor's names, so that schedules can speak of both."""
    *before, last = stages
    model = next(stage for stage in stages if stage.name == anchor)
    if last.name == anchor or last.shape != model.shape:
        return stages
    return (*before, _with_axes_of(last, model))


def _named_like_source(stage: Stage, stages: tuple[Stage, ...]) -> Stage:
    """A stored stage with the axis names of the reduction that it reads."""
    read = {load.buffer for load in loads(stage.body)}
    models = [item for item in stages if item.reduce_axes and item.name in read]
    if stage.reduce_axes or len(models) != 1 or models[0].shape != stage.shape:
        return stage
    return _with_axes_of(stage, models[0])


def _with_axes_of(stage: Stage, model: Stage) -> Stage:
    names = {old.name: new.name for old, new in zip(stage.axes, model.axes, strict=True)}

    def rule(node: Expr) -> Expr:
        return index(names[node.name]) if isinstance(node, Index) else node

    axes = tuple(Axis(names[axis.name], axis.extent) for axis in stage.axes)
    return replace(stage, axes=axes, body=rewrite(stage.body, rule))


def _rename_inputs(kernel: FusedKernel) -> tuple[FusedKernel, tuple[str, ...]]:
    used = {load.buffer for stage in kernel.stages for load in loads(stage.body)}
    kept = [buffer for buffer in kernel.inputs if buffer.name in used]
    names = {buffer.name: f"in{position}" for position, buffer in enumerate(kept)}

    def rule(node: Expr) -> Expr:
        if isinstance(node, Load) and node.buffer in names:
            return replace(node, buffer=names[node.buffer])
        return node

    renamed = replace(
        kernel,
        inputs=tuple(replace(buffer, name=names[buffer.name]) for buffer in kept),
        stages=tuple(replace(stage, body=rewrite(stage.body, rule)) for stage in kernel.stages),
    )
    return renamed, tuple(names)
