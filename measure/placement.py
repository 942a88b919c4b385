"""Where a kernel's buffers lie: relative to each other, as in the planned arena of its model.

How fast a kernel is depends on it: rows of two buffers may fall into the same cache sets, loads may
look like earlier stores. So what is timed lies as it will in production, and all that is compared
lies alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT, aligned
from tunefarm.compiler.types.tensor_type import TensorType

PERIOD = 128 * 1024
"""Bytes after which addresses meet the same sets of every private cache (2,048 of 64 bytes)."""


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes from `begin` to `end`, relative to the base of an arena."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Byte offsets of a kernel's buffers from one base, which is a multiple of 4096.

    Of the inputs that are no constants, in the order of the kernel ABI, of the output, and of the
    workspace where one is planned.
    """

    offsets: tuple[int, ...]

    @staticmethod
    def of_json(value: object) -> Placement:
        """The inverse of `to_json`. Raises MeasureError for anything but a list of integers."""
        if not isinstance(value, list | tuple) or any(type(offset) is not int for offset in value):
            raise MeasureError("a placement is no list of byte offsets")
        return Placement(tuple(value))

    def to_json(self) -> list[int]:
        """The offsets as a list."""
        return list(self.offsets)

    @staticmethod
    def packed(sizes: Sequence[int]) -> Placement:
        """Buffers of so many bytes one after the other, each at the next cache line."""
        return Placement.near([0] * len(sizes), sizes, period=ALIGNMENT)

    @staticmethod
    def near(offsets: Sequence[int], sizes: Sequence[int], *, period: int = PERIOD) -> Placement:
        """These offsets with what lies between the buffers left out, but for less than `period`.

        Each offset keeps its remainder modulo `period`. Buffers that share bytes, as two views of
        one value do, are placed apart. An offset more than `sizes` is the workspace's, which comes
        last: how large it is depends on the schedule.
        """
        placed = [0] * len(sizes)
        free = 0
        for number in sorted(range(len(sizes)), key=lambda number: (offsets[number], number)):
            placed[number] = free + (offsets[number] - free) % period
            free = placed[number] + aligned(sizes[number])
        placed += [free + (offset - free) % period for offset in offsets[len(sizes) :]]
        return Placement(tuple(placed))

    def spans(self, sizes: Sequence[int], workspace_bytes: int) -> tuple[Span, ...]:
        """Where buffers of `sizes` bytes lie (inputs, output), and last the workspace.

        A workspace that was not planned, or is larger than the room left for it, comes after all
        else. Raises MeasureError for offsets that do not fit these buffers.
        """
        if len(self.offsets) not in (len(sizes), len(sizes) + 1):
            raise MeasureError(
                f"a placement of {len(self.offsets)} buffers does not fit a kernel with "
                f"{len(sizes)} and a workspace"
            )
        spans = [Span(at, at + size) for at, size in zip(self.offsets, sizes, strict=False)]
        end = aligned(max((span.end for span in spans), default=0))
        workspace = Span(end, end + workspace_bytes)
        if len(self.offsets) > len(sizes) and workspace_bytes:
            planned = Span(self.offsets[-1], self.offsets[-1] + workspace_bytes)
            if not any(_overlap(planned, span) for span in spans):
                workspace = planned
        spans.append(workspace)
        _verify(spans)
        return tuple(spans)


def buffer_sizes(kernel: FusedKernel) -> tuple[int, ...]:
    """Bytes of the buffers that a placement has: inputs that are no constants, then the output."""
    inputs = (buffer.type.bytes for buffer in kernel.inputs if not buffer.constant)
    output = kernel.output
    return (*inputs, TensorType(output.dtype, output.shape).bytes)


def placements_of(values: Sequence[object], count: int) -> list[Placement | None]:
    """The placement of each of `count` schedules of a request: none, one for all, or one for each.

    Raises MeasureError for another number of them.
    """
    if len(values) not in (0, 1, count):
        raise MeasureError(f"{len(values)} placements do not fit a request of {count} schedules")
    if not values:
        return [None] * count
    found = [Placement.of_json(value) for value in values]
    return [*found] if len(found) == count else [*found] * count


def _verify(spans: Sequence[Span]) -> None:
    """Raise MeasureError for buffers that are not aligned, overlap, or lie far apart."""
    for span in spans:
        if span.begin < 0 or span.begin % ALIGNMENT:
            raise MeasureError(f"a placement has a buffer at {span.begin}: no multiple of 64")
    filled = sorted((s for s in spans if s.end > s.begin), key=lambda span: span.begin)
    for below, above in pairwise(filled):
        if _overlap(below, above):
            raise MeasureError(
                f"a placement has buffers that overlap: one at {below.begin} up to {below.end}, "
                f"one at {above.begin}"
            )
    end = max(span.end for span in spans)
    most = sum(aligned(span.end - span.begin) + PERIOD for span in spans)
    if end > most:
        raise MeasureError(f"a placement needs {end} bytes, more than {most}: too far apart")


def _overlap(one: Span, other: Span) -> bool:
    return one.begin < other.end and other.begin < one.end
