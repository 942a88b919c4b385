"""A kernel's time against the minimum that its machine's arithmetic and memory need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunefarm.compiler.content_cache import NOT_WHAT_WAS_KEPT
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.kernels.count_work import kernel_bytes, kernel_flops
from tunefarm.compiler.kernels.serialize import kernel_from_json
from tunefarm.compiler.with_count import with_count
from tunefarm.tuner.pages.contents import Contents
from tunefarm.tuner.pages.kernels import Kernel
from tunefarm.tuner.records.model_latencies import MachineRoof
from tunefarm.tuner.reports.report import format_seconds, format_share

_UNREADABLE = (TunefarmError, *NOT_WHAT_WAS_KEPT, ArithmeticError, AssertionError, RuntimeError)


@dataclass(frozen=True, slots=True)
class Work:
    """What one call of a kernel computes and moves, and how long it takes."""

    flops: int
    bytes: int
    seconds: float

    @property
    def intensity(self) -> float:
        """Operations per byte of operands and result."""
        return self.flops / self.bytes


def rooflines(contents: Contents, kernels: Sequence[Kernel]) -> dict[str, dict[str, Any]]:
    """What is shown of each kernel, by its place; those without figures are left out.

    The roof is what the newest job or benchmark for the same target and threads has measured.
    """
    roofs: dict[tuple[str, int], tuple[MachineRoof, str]] = {}
    for record, times in contents.models:
        if times.roof is not None:
            machine = str(record.machine.get("cpu", "-"))
            roofs.setdefault((record.target, record.threads), (times.roof, machine))
    works = {kernel.anchor: work for kernel in kernels if (work := _work(kernel)) is not None}
    points = {
        kernel.anchor: (kernel, works[kernel.anchor])
        for kernel in kernels
        if kernel.anchor in works
    }
    return {
        anchor: _roofline(kernel, work, *roofs[group], points)
        for anchor, (kernel, work) in points.items()
        if (group := (kernel.key.target, kernel.key.threads)) in roofs
    }


def _work(kernel: Kernel) -> Work | None:
    """None for what this version cannot rebuild, and what has no time or no arithmetic."""
    if not 0 < kernel.seconds < math.inf:
        return None
    try:
        built = kernel_from_json(kernel.records.workload.kernel)
        work = Work(kernel_flops(built), kernel_bytes(built), kernel.seconds)
    except _UNREADABLE:
        return None
    return work if work.flops > 0 and work.bytes > 0 else None


def _roofline(
    kernel: Kernel,
    work: Work,
    roof: MachineRoof,
    machine: str,
    points: Mapping[str, tuple[Kernel, Work]],
) -> dict[str, Any]:
    computing, moving = work.flops / roof.flops, work.bytes / roof.bytes
    least = max(computing, moving)
    bound = "arithmetic" if computing >= moving else "memory"
    bars = [
        ["one call takes", work.seconds, format_seconds(work.seconds)],
        ["its arithmetic alone", computing, _least(computing, work, f"{work.flops:,} operations")],
        ["its memory alone", moving, _least(moving, work, f"{work.bytes:,} bytes")],
    ]
    others = [
        (other.intensity, other.flops / other.seconds / 1e9, item.name)
        for anchor, (item, other) in points.items()
        if item.key.target == kernel.key.target and anchor != kernel.anchor
    ]
    ends = [point[0] for point in others] + [work.intensity]
    knee = roof.flops / roof.bytes
    low, high = min(*ends, knee) / 2, max(*ends, knee) * 2
    return {
        "bars": bars,
        "most": max(work.seconds, least),
        "note": (
            f"{format_share(min(1.0, least / work.seconds))} of what {bound} allows on {machine}: "
            f"{roof.flops / 1e9:.4g} GFLOP/s in f32 and {roof.bytes / 1e9:.3g} GB/s from memory, "
            f"measured with {with_count(kernel.key.threads, 'thread')}. What is in a cache already "
            "moves faster, and narrow types compute faster."
        ),
        "plot": {
            "line": {
                "x": [low, knee, high],
                "y": [low * roof.bytes / 1e9, roof.flops / 1e9, roof.flops / 1e9],
            },
            "others": _columns(others),
            "own": _columns([(work.intensity, work.flops / work.seconds / 1e9, kernel.name)]),
        },
    }


def _least(seconds: float, work: Work, what: str) -> str:
    return f"{format_seconds(seconds)} at least, {format_share(seconds / work.seconds)} ({what})"


def _columns(points: Sequence[tuple[float, float, str]]) -> dict[str, list[Any]]:
    x, y, text = zip(*points, strict=True) if points else ((), (), ())
    return {"x": list(x), "y": list(y), "text": list(text)}
