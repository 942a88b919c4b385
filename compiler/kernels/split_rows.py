"""Split an axis of a kernel where a limit begins anew: rows of sentences, [b*s] -> [b, s].

The inverse of merging axes: memory stays as it is, and what is read along the axis is another view.
So is what rows of a length that only the run knows are merged to: they have a pitch that has them
side by side.
"""

from __future__ import annotations

from functools import partial

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import (
    Binary,
    Const,
    Expr,
    Index,
    Load,
    Select,
    add,
    index,
    integer,
    mul,
)
from tunefarm.compiler.expr.parts import conjuncts
from tunefarm.compiler.expr.walk import axes_of, postorder, transform
from tunefarm.compiler.kernels.attention import attention_of
from tunefarm.compiler.kernels.kernel import FusedKernel, RowPitch, ValidExtent
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import replace


def split_rows(kernel: FusedKernel, *, keep_attention: bool = True) -> FusedKernel:
    """The kernel with each axis of its result in two where one of its limits begins anew.

    It stays as it is where something is read along such an axis and in another way too. What is an
    attention stays one, if it is to be kept: its columns, which may be pixels, are one axis.
    """
    for position, factor in _cuts(kernel):
        try:
            made = _split(kernel, position, factor)
        except ScheduleError:
            continue
        if not keep_attention or attention_of(kernel) is None or attention_of(made) is not None:
            return split_rows(made, keep_attention=keep_attention)
    return kernel


def split_folds(kernel: FusedKernel) -> FusedKernel:
    """The kernel with reduce axes in two where a size is about their rest: r % 80 < sizes[1].

    [c*h*w] -> [c*h, w] -> [c, h, w]: sums of groups of channels end with rows and columns then.
    """
    for stage in kernel.stages:
        for position, axis in enumerate(stage.reduce_axes):
            for factor in _rests(stage, axis):
                try:
                    made = _split(kernel, position, factor, stage.name)
                    return split_folds(replace(made, stages=tuple(map(_undivided, made.stages))))
                except ScheduleError:
                    continue
    return kernel


def merged_rows(kernel: FusedKernel) -> FusedKernel:
    """The kernel with rows and columns for an axis of the result that is read by these alone, with
    a pitch that has rows side by side: y[i // w, i % w]; as it is where there is no such axis."""
    stage, inner = kernel.output, 1
    for position, axis in reversed(list(enumerate(stage.axes))):
        place = index(axis.name)
        width = next((w for node in postorder(stage.body) if (w := _width(node, place))), None)
        if width is None:
            inner *= axis.extent
            continue
        size, most = width
        row, column = Axis(f"{axis.name}_q", axis.extent // most), Axis(f"{axis.name}_r", most)
        body = transform(stage.body, partial(_apart, place=place, row=row, column=column))
        if axis.name in axes_of(body):
            return kernel
        ends = [_end_at(inner, most, size)]
        if isinstance(body, Select):  # what is not there may be anything
            ends += [
                _end_at(inner * most, row.extent, condition.right)
                for condition in conjuncts(body.condition)
                if isinstance(condition, Binary)
                and (condition.op, condition.left) == ("lt", index(row.name))
                and isinstance(condition.right, Load)
            ]
            body = body.then
        period = inner * axis.extent
        kept = (x for x in kernel.limits if x.stride >= period or x.period <= inner)
        axes = (*stage.axes[:position], row, column, *stage.axes[position + 1 :])
        pitch = RowPitch(inner, most, row.extent, size.buffer, ends[0].number, 0)
        stages = (*kernel.stages[:-1], replace(stage, axes=axes, body=body))
        return replace(kernel, stages=stages, limits=(*ends, *kept), pitch=pitch)
    return kernel


def _end_at(stride: int, extent: int, size: Load) -> ValidExtent:
    (number,) = size.indices
    assert isinstance(number, Const)
    return ValidExtent(stride, extent, size.buffer, int(number.value))


def _width(node: Expr, place: Expr) -> tuple[Load, int] | None:
    """The size that a place is divided by, and its bound: max(min(size, most), 1)."""
    match node:
        case Binary(
            op="floordiv" | "mod",
            left=left,
            right=Binary(
                op="max", left=Binary(op="min", left=Load() as size, right=Const() as most)
            ),
        ) if left == place:
            return size, int(most.value)
    return None


def _apart(node: Expr, place: Expr, row: Axis, column: Axis) -> Expr | None:
    """Row and column of a place that is divided by a width."""
    if _width(node, place) is None:
        return None
    return index((row if isinstance(node, Binary) and node.op == "floordiv" else column).name)


def _undivided(stage: Stage) -> Stage:
    """The stage without divisions that its axes settle: (80 * q + r) % 80 is r."""
    ranges = {item.name: (0, item.extent - 1) for item in (*stage.axes, *stage.reduce_axes)}

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Binary) or node.op not in ("mod", "floordiv"):
            return None
        form = affine(node, ranges) if node.dtype is DType.I64 else None
        return None if form is None or form.divisions else form.to_expr()

    return replace(stage, body=transform(stage.body, visit))


def _rests(stage: Stage, axis: Axis) -> list[int]:
    """What an axis is divided by before its rest is compared with a size."""
    found: set[int] = set()
    for node in postorder(stage.body):
        match node:
            case Binary(op="lt", left=Binary(op="mod", left=place, right=Const(value=size))):
                inner = 1
                match place:
                    case Binary(op="floordiv", left=divided, right=Const(value=by)):
                        place, inner = divided, int(by)
                if place == index(axis.name):
                    found |= {inner, int(size) * inner}
    return [f for f in sorted(found) if 1 < f < axis.extent and axis.extent % f == 0]


def _cuts(kernel: FusedKernel) -> list[tuple[int, int]]:
    """Axes of the result, and after how many of their points a limit begins anew."""
    found = []
    step = 1
    for position in reversed(range(len(kernel.output.axes))):
        extent = kernel.output.axes[position].extent
        for limit in kernel.limits:
            factor, rest = divmod(limit.period, step)
            if not rest and 1 < factor < extent and extent % factor == 0:
                found.append((position, factor))
        step *= extent
    return found


def _split(kernel: FusedKernel, position: int, factor: int, reduction: str = "") -> FusedKernel:
    """The kernel with an axis of its result, or a reduce axis of the stage `reduction`, in two."""
    shapes = {buffer.name: buffer.shape for buffer in kernel.inputs}
    shapes |= {stage.name: stage.shape for stage in kernel.stages}
    pending = {} if reduction else {kernel.output.name: position}
    stages: list[Stage] = []
    for stage in reversed(kernel.stages):
        place, folds = pending.get(stage.name), stage.name == reduction
        if folds and place is not None:
            raise ScheduleError(f"{stage.name} is read along an axis that it folds")
        place = position if folds else place
        if place is not None:
            axes = stage.reduce_axes if folds else stage.axes
            axis = axes[place]
            body = _split_body(stage.body, axis, factor, shapes, pending)
            names = {item.name for item in (*stage.axes, *stage.reduce_axes)}
            if not names.isdisjoint((f"{axis.name}_q", f"{axis.name}_r")):
                raise ScheduleError(f"{stage.name} has an axis {axis.name}_q already")
            pair = (Axis(f"{axis.name}_q", axis.extent // factor), Axis(f"{axis.name}_r", factor))
            axes = (*axes[:place], *pair, *axes[place + 1 :])
            stage = replace(stage, body=body)
            stage = replace(stage, reduce_axes=axes) if folds else replace(stage, axes=axes)
        stages.append(stage)
    stages.reverse()
    _check_readers(stages, shapes, pending)
    if any(buffer.constant for buffer in kernel.inputs if buffer.name in pending):
        raise ScheduleError("constants keep their shapes: they are packed as a whole")
    inputs = tuple(
        replace(buffer, shape=_split_shape(buffer.shape, pending[buffer.name], factor))
        if buffer.name in pending
        else buffer
        for buffer in kernel.inputs
    )
    return replace(kernel, inputs=inputs, stages=tuple(stages))


def _split_body(
    body: Expr,
    axis: Axis,
    factor: int,
    shapes: dict[str, tuple[int, ...]],
    pending: dict[str, int],
) -> Expr:
    """The body over quotient and rest of the axis; notes the dimensions that it splits."""
    whole, extent = index(axis.name), axis.extent
    quotient, rest = index(f"{axis.name}_q"), index(f"{axis.name}_r")

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, Index):
            return add(mul(quotient, integer(factor)), rest) if node == whole else None
        if not isinstance(node, Load) or whole not in node.indices:
            return None
        at = node.indices.index(whole)
        if shapes[node.buffer][at] != extent or pending.setdefault(node.buffer, at) != at:
            raise ScheduleError(f"{node.buffer} is read along {axis.name} in several ways")
        items = (transform(item, visit) for item in node.indices)
        before = [item for number, item in enumerate(items) if number != at]
        return Load(node.dtype, node.buffer, (*before[:at], quotient, rest, *before[at:]))

    return transform(body, visit)


def _split_shape(shape: tuple[int, ...], position: int, factor: int) -> tuple[int, ...]:
    return (*shape[:position], shape[position] // factor, factor, *shape[position + 1 :])


def _check_readers(
    stages: list[Stage], shapes: dict[str, tuple[int, ...]], pending: dict[str, int]
) -> None:
    """Every load of what is split has one more index than before."""

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.buffer not in pending:
            return None
        if len(node.indices) == len(shapes[node.buffer]):
            raise ScheduleError(f"{node.buffer} is also read in another way")
        return None

    for stage in stages:
        transform(stage.body, visit)
