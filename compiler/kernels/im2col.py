"""Gather what windows read, so that a plane's positions are rows of one matrix: im2col."""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import Expr, Load, binary, index, integer
from tunefarm.compiler.expr.walk import axes_of, loads, substitute, transform
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel
from tunefarm.compiler.kernels.merge_axes import merge_axes
from tunefarm.compiler.kernels.stage import Axis, Stage

SUFFIX = ".im2col"


def im2col(kernel: FusedKernel, first: str, second: str) -> FusedKernel:
    """The kernel with the result's adjacent axes `first` and `second` as one, named after both.

    What the anchor reads along them comes from a stage that holds it once for each term of the sum
    and each position of the plane, in this order: terms that move along the plane, other terms,
    positions, and the term that is contiguous. `ScheduleError` where the anchor reads several
    operands along the plane, or the plane's axes cannot be merged in the rest of the kernel.

    y[c, h, w] += x[k, h + i, w] * f[c, k, i]
    ->
    g[i, h_w, k] = x[k, h_w // W + i, h_w % W]
    y[c, h_w] += g[i, h_w, k] * f[c, k, i]
    """
    anchor = kernel.stage(kernel.anchor)
    extents = {axis.name: axis for axis in anchor.axes}
    if first not in extents or second not in extents:
        raise ScheduleError(f"{first} and {second} are no axes of {anchor.name}")
    read = _read_along(anchor, {first, second})
    gathered = Stage(f"{read.buffer}{SUFFIX}", _axes(anchor, read, first, second), (), "", read)
    taken = {buffer.name for buffer in kernel.inputs} | {stage.name for stage in kernel.stages}
    if gathered.name in taken:
        raise ScheduleError(f"{read.buffer} was gathered before")
    places = tuple(index(axis.name) for axis in gathered.axes)
    copied = Load(read.dtype, gathered.name, places)
    body = transform(anchor.body, lambda node: copied if node == read else None)
    stages = [replace(anchor, body=body) if stage is anchor else stage for stage in kernel.stages]
    # Of a buffer the two axes are merged as they lie in memory; the stage then fills it.
    buffer = Buffer(gathered.name, gathered.dtype, gathered.shape)
    apart = replace(kernel, inputs=(*kernel.inputs, buffer), stages=tuple(stages))
    merged = merge_axes(apart, first, second)
    filled = _over_both(gathered, first, second)
    position = merged.stages.index(merged.stage(kernel.anchor))
    return replace(
        merged,
        inputs=merged.inputs[:-1],
        stages=(*merged.stages[:position], filled, *merged.stages[position:]),
    )


def _read_along(anchor: Stage, plane: set[str]) -> Load:
    """The only load of the anchor that moves along the plane."""
    found = {load for load in loads(anchor.body) if any(axes_of(i) & plane for i in load.indices)}
    if len(found) != 1:
        raise ScheduleError(f"{anchor.name} reads {len(found)} operands along its plane")
    (load,) = found
    return load


def _axes(anchor: Stage, read: Load, first: str, second: str) -> tuple[Axis, ...]:
    """Those of the gathered stage, outermost first."""
    plane = {first, second}
    last = read.indices[-1]
    used = {name for item in read.indices for name in axes_of(item)}
    moving = {name for item in read.indices if axes_of(item) & plane for name in axes_of(item)}
    inner = [axis for axis in anchor.reduce_axes if last == index(axis.name)]
    elsewhere = {name for item in read.indices[:-1] for name in axes_of(item)}
    if not inner or inner[0].name in elsewhere or not plane <= used:
        raise ScheduleError(f"{anchor.name} reads no vectors of terms of {read.buffer}")
    terms = [axis for axis in anchor.reduce_axes if axis.name in used and axis is not inner[0]]
    outer = [axis for axis in anchor.axes if axis.name in used - plane]
    windows = [axis for axis in terms if axis.name in moving]
    others = [axis for axis in terms if axis.name not in moving]
    both = [axis for axis in anchor.axes if axis.name in plane]
    return tuple(Axis(a.name, a.extent) for a in (*outer, *windows, *others, *both, inner[0]))


def _over_both(stage: Stage, first: str, second: str) -> Stage:
    """The stage over the merged axis, whose quotient and rest are the two."""
    axes, both = list[Axis](), f"{first}_{second}"
    extents = {axis.name: axis.extent for axis in stage.axes}
    for axis in stage.axes:
        if axis.name == first:
            axes.append(Axis(both, extents[first] * extents[second]))
        elif axis.name != second:
            axes.append(axis)
    width = integer(extents[second])
    values: dict[str, Expr] = {
        first: binary("floordiv", index(both), width),
        second: binary("mod", index(both), width),
    }
    return replace(stage, axes=tuple(axes), body=substitute(stage.body, values))
