"""Merge adjacent axes that a kernel only ever walks together: [h, w] -> [h*w]."""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import Expr, Index, Load, index
from tunefarm.compiler.expr.walk import axes_of, transform
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.types.frozen import replace


def merge_axes(kernel: FusedKernel, first: str, second: str) -> FusedKernel:
    """Merge the output stage's adjacent axes `first` and `second` into one, named after both.

    Every tensor that is indexed with them is indexed `[..., first, second, ...]` over exactly those
    extents; producers merge the same dimensions. `ScheduleError` where that is not so.

    y[i, j] = x[i, j] + b[0]     ->     y[i_j] = x[i_j] + b[0]
    """
    output = kernel.output
    names = [axis.name for axis in output.axes]
    if first not in names or names.index(first) + 1 != _position(names, second):
        raise ScheduleError(f"{first} and {second} are not adjacent axes of {output.name}")
    if kernel.limited_within(names.index(second)):
        raise ScheduleError(f"{second} ends at run time, before the next of {first} begins")
    return _merge(kernel, "", {output.name: names.index(first)})


def merge_reduce_axes(kernel: FusedKernel, name: str, first: str, second: str) -> FusedKernel:
    """Merge adjacent reduce axes of the stage `name` likewise.

    s[i] += x[i, k, l]     ->     s[i] += x[i, k_l]
    """
    stage = next((stage for stage in kernel.stages if stage.name == name), None)
    names = [] if stage is None else [axis.name for axis in stage.reduce_axes]
    if first not in names or names.index(first) + 1 != _position(names, second):
        raise ScheduleError(f"{first} and {second} are not adjacent reduce axes of {name}")
    return _merge(kernel, name, {}, names.index(first))


def _merge(
    kernel: FusedKernel, reduction: str, pending: dict[str, int], position: int = 0
) -> FusedKernel:
    """Merge two dimensions of the `pending` tensors, or reduce axes of the stage `reduction`.

    From there on, the dimensions of what is read with them.
    """
    shapes = {buffer.name: buffer.shape for buffer in kernel.inputs}
    shapes |= {stage.name: stage.shape for stage in kernel.stages}
    stages: list[Stage] = []
    for stage in reversed(kernel.stages):
        dimension = pending.get(stage.name)
        if stage.name == reduction:
            axes = _merge_pair(stage.reduce_axes, position)
            body = _merge_body(stage, stage.reduce_axes[position : position + 2], shapes, pending)
            stages.append(replace(stage, reduce_axes=axes, body=body))
        elif dimension is not None:
            axes = _merge_pair(stage.axes, dimension)
            body = _merge_body(stage, stage.axes[dimension : dimension + 2], shapes, pending)
            stages.append(replace(stage, axes=axes, body=body))
        else:
            stages.append(stage)
    stages.reverse()
    _check_other_users(stages, kernel, pending)
    inputs = tuple(
        replace(buffer, shape=_merge_shape(buffer.shape, pending[buffer.name]))
        if buffer.name in pending
        else buffer
        for buffer in kernel.inputs
    )
    return replace(kernel, inputs=inputs, stages=tuple(stages)).checked_rows()


def _position(names: list[str], name: str) -> int:
    return names.index(name) if name in names else -1


def _merge_shape(shape: tuple[int, ...], dimension: int) -> tuple[int, ...]:
    return (
        *shape[:dimension],
        shape[dimension] * shape[dimension + 1],
        *shape[dimension + 2 :],
    )


def _merge_pair(axes: tuple[Axis, ...], position: int) -> tuple[Axis, ...]:
    first, second = axes[position : position + 2]
    both = Axis(f"{first.name}_{second.name}", first.extent * second.extent, second.role)
    return (*axes[:position], both, *axes[position + 2 :])


def _merge_body(
    stage: Stage,
    pair: tuple[Axis, ...],
    shapes: dict[str, tuple[int, ...]],
    pending: dict[str, int],
) -> Expr:
    """The body over the merged axis; notes the dimensions that it merges of what it reads."""
    first, second = pair
    name = f"{first.name}_{second.name}"
    ranges = {axis.name: (0, axis.extent - 1) for axis in (*stage.axes, *stage.reduce_axes)}
    # Extents of one stay axes here, so that the pattern below is found.
    ranges.pop(first.name, None)
    ranges.pop(second.name, None)

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, Index) and node.name in (first.name, second.name):
            raise ScheduleError(f"{stage.name} uses the value of {node.name}")
        if not isinstance(node, Load):
            return None
        plain = [affine(item, ranges).to_expr() for item in node.indices]
        used = [{first.name, second.name} & axes_of(item) for item in plain]
        if not any(used):
            return None
        where = next(i for i, names in enumerate(used) if names)
        shape = shapes[node.buffer]
        fits = (
            where + 1 < len(plain)
            and plain[where] == index(first.name)
            and plain[where + 1] == index(second.name)
            and not any(used[where + 2 :])
            and shape[where : where + 2] == (first.extent, second.extent)
            and pending.setdefault(node.buffer, where) == where
        )
        if not fits:
            raise ScheduleError(f"{stage.name} reads {node.buffer} not along {name}")
        # The other indices stay as they are: later steps compare them with axes by name.
        kept = node.indices
        return Load(node.dtype, node.buffer, (*kept[:where], index(name), *kept[where + 2 :]))

    return transform(stage.body, visit)


def _check_other_users(stages: list[Stage], kernel: FusedKernel, pending: dict[str, int]) -> None:
    """Every load of a merged tensor has the merged number of indices."""
    ranks = {buffer.name: len(buffer.shape) for buffer in kernel.inputs}
    ranks |= {stage.name: len(stage.axes) for stage in kernel.stages}

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.buffer not in pending:
            return None
        if len(node.indices) != ranks[node.buffer] - 1:
            raise ScheduleError(f"{node.buffer} is also read in another way")
        return None

    for stage in stages:
        transform(stage.body, visit)
