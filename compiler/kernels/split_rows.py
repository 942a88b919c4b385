"""Split an axis of a kernel where a limit begins anew: rows of sentences, [b*s] -> [b, s].

The inverse of merging axes: memory stays as it is, and what is read along the axis is another view.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.errors import ScheduleError
from compiler.expr.nodes import Expr, Index, Load, add, index, integer, mul
from compiler.expr.walk import transform
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.stage import Axis, Stage


def split_rows(kernel: FusedKernel) -> FusedKernel:
    """The kernel with each axis of its result in two where one of its limits begins anew.

    It stays as it is where something is read along such an axis and in another way too.
    """
    for position, factor in _cuts(kernel):
        try:
            return split_rows(_split(kernel, position, factor))
        except ScheduleError:
            continue
    return kernel


def _cuts(kernel: FusedKernel) -> list[tuple[int, int]]:
    """Axes of the result, and after how many of their points a limit begins anew."""
    found = []
    step = 1
    for position in reversed(range(len(kernel.output.axes))):
        extent = kernel.output.axes[position].extent
        for limit in kernel.limits:
            factor, rest = divmod(limit.stride * limit.extent, step)
            if not rest and 1 < factor < extent and extent % factor == 0:
                found.append((position, factor))
        step *= extent
    return found


def _split(kernel: FusedKernel, position: int, factor: int) -> FusedKernel:
    shapes = {buffer.name: buffer.shape for buffer in kernel.inputs}
    shapes |= {stage.name: stage.shape for stage in kernel.stages}
    pending = {kernel.output.name: position}
    stages: list[Stage] = []
    for stage in reversed(kernel.stages):
        place = pending.get(stage.name)
        axis = None if place is None else stage.axes[place]
        body = _split_body(stage.body, axis, factor, shapes, pending)
        if place is not None and axis is not None:
            names = {item.name for item in (*stage.axes, *stage.reduce_axes)}
            if not names.isdisjoint((f"{axis.name}_q", f"{axis.name}_r")):
                raise ScheduleError(f"{stage.name} has an axis {axis.name}_q already")
            pair = (Axis(f"{axis.name}_q", axis.extent // factor), Axis(f"{axis.name}_r", factor))
            axes = (*stage.axes[:place], *pair, *stage.axes[place + 1 :])
            stage = replace(stage, axes=axes, body=body)
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
    axis: Axis | None,
    factor: int,
    shapes: dict[str, tuple[int, ...]],
    pending: dict[str, int],
) -> Expr:
    """The body over quotient and rest of the axis; notes the dimensions that it splits."""
    if axis is None:
        return body
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
