"""Recurrences: kernels whose output is read back, as it was one step earlier along an axis.

p[t, j] = sum over k of select(t == 0, 0, h[t - 1, k]) * r[k, j]
h[t, j] = tanh(x[t, j] + p[t, j])                                       the output, walked along t

What depends on the output's earlier elements is computed step by step with it. This is the one
place that knows the form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tunefarm.compiler.expr.affine import Affine, affine
from tunefarm.compiler.expr.nodes import Load, add, index, integer
from tunefarm.compiler.expr.walk import loads, substitute
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.types.frozen import frozen


@frozen
class Recurrence:
    """What is walked along the output's axis `axis`, in order.

    `stages` are those computed step by step, the output last. Along the axes `apart`, elements
    never read one another's: parts of such an axis may be walked one after the other, or at once.
    """

    axis: str
    extent: int
    stages: tuple[str, ...]
    apart: frozenset[str]

    def step(self, stage: Stage, position: int) -> Stage:
        """One of the stages at this position of the axis alone."""
        axes = tuple(
            replace(axis, extent=1) if axis.name == self.axis else axis for axis in stage.axes
        )
        now = add(index(self.axis), integer(position))
        return replace(stage, axes=axes, body=substitute(stage.body, {self.axis: now}))


def recurrence_of(kernel: FusedKernel) -> Recurrence | None:
    """How the kernel's output is read back, None if it is not.

    `ValueError` with the reason where no order of steps gives every stage what it reads.
    """
    return recurrence_among(kernel.stages)


def recurrence_among(stages: tuple[Stage, ...]) -> Recurrence | None:
    """`recurrence_of` the stages of a kernel, in their order."""
    output = stages[-1]
    read = {stage.name: loads(stage.body) for stage in stages}
    if not any(load.buffer == output.name for found in read.values() for load in found):
        return None
    walked: dict[str, Stage] = {output.name: output}
    for stage in stages:
        if any(load.buffer in walked for load in read[stage.name]):
            walked[stage.name] = stage
    for load in _among(walked, read):
        if len(load.indices) != len(walked[load.buffer].axes):
            raise ValueError(f"{load.buffer} is read back with {len(load.indices)} indices")
    back = [load for name in walked for load in read[name] if load.buffer == output.name]
    axis = _step_axis(output, back)
    for stage in walked.values():
        if axis not in stage.axes:
            raise ValueError(f"{stage.name} is read back from, but has no axis {axis.name}")
    now = Affine(0, ((axis.name, 1),))
    for load in _among(walked, read):
        position = [item.name for item in walked[load.buffer].axes].index(axis.name)
        if load.buffer != output.name and affine(load.indices[position], {}) != now:
            raise ValueError(f"{load.buffer} is not read at the step {axis.name} that is computed")
    order = tuple(stage.name for stage in stages if stage.name in walked)
    return Recurrence(axis.name, axis.extent, order, _apart(axis, walked, read))


def _among(walked: Mapping[str, Stage], read: Mapping[str, list[Load]]) -> Iterator[Load]:
    """What the stages read of one another."""
    for name in walked:
        yield from (load for load in read[name] if load.buffer in walked)


def _step_axis(output: Stage, back: list[Load]) -> Axis:
    """The axis along which every load of the output is one step behind."""
    for position, axis in enumerate(output.axes):
        before = Affine(-1, ((axis.name, 1),))
        if all(affine(load.indices[position], {}) == before for load in back):
            return axis
    raise ValueError(f"{output.name} is read back, but not one step behind along an axis")


def _apart(
    axis: Axis, walked: Mapping[str, Stage], read: Mapping[str, list[Load]]
) -> frozenset[str]:
    """The axes of the output at whose positions all stages read nothing but the same position."""
    first, *others = walked.values()
    shared = [item for item in first.axes if all(item in stage.axes for stage in others)]
    mixed: set[str] = set()
    for load in _among(walked, read):
        for item, position in zip(walked[load.buffer].axes, load.indices, strict=True):
            if position != index(item.name):
                mixed.add(item.name)
    return frozenset(item.name for item in shared) - mixed - {axis.name}
