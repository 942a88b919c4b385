"""Where a model has the buffers of its kernels: the placements that candidates are timed at."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.runtime.spec.executable_spec import (
    ALIGNMENT,
    CallStep,
    ExecutableSpec,
    Location,
    Place,
    aligned,
)
from tunefarm.measure.placement import Placement, buffer_sizes


def model_placements(
    spec: ExecutableSpec, kernels: Mapping[str, FusedKernel]
) -> dict[str, tuple[Placement, ...]]:
    """Where the planned arena has the buffers of each kernel, by workload key.

    A placement for each call of a kernel that differs from the earlier ones. Inputs and outputs of
    the model are their callers': they are taken to lie after the arena, at cache lines. So is what
    lies within a value, at the line that it begins in.
    """
    ends = list(
        accumulate(
            (aligned(type.bytes) for _, type in (*spec.inputs, *spec.outputs)),
            initial=aligned(spec.arena_bytes),
        )
    )

    def offset(location: Location) -> int:
        match location.place:
            case Place.ARENA:
                return location.number
            case Place.INPUT:
                return ends[location.number] + location.offset
            case Place.OUTPUT:
                return ends[len(spec.inputs) + location.number] + location.offset
            case Place.CONSTANT:  # one that the kernel does not know as such
                return ends[-1]

    reports = {part.symbol: report for part, report in zip(spec.objects, spec.kernels, strict=True)}
    found: dict[str, dict[Placement, None]] = {key: {} for key in kernels}
    for step in spec.steps:
        if not isinstance(step, CallStep) or reports[step.symbol].key not in kernels:
            continue
        report = reports[step.symbol]
        kernel = kernels[report.key]
        *inputs, output = step.buffers
        offsets = [
            _line(offset(location))
            for buffer, location in zip(kernel.inputs, inputs, strict=True)
            if not buffer.constant
        ]
        offsets.append(_line(offset(output)))
        if step.workspace is not None:
            offsets.append(step.workspace)
        found[report.key][Placement.near(offsets, buffer_sizes(kernel))] = None
    return {key: tuple(placements) for key, placements in found.items()}


def _line(offset: int) -> int:
    """Where the cache line of a byte begins."""
    return offset // ALIGNMENT * ALIGNMENT
