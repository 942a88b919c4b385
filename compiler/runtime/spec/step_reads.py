"""Which steps of a model read what which others wrote: the graph of its kernels, from its plan.

An executable knows no names of values, only where they lie. Memory is used again and again: what
lies at a place was written by the last step before that wrote there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tunefarm.compiler.runtime.spec.executable_spec import (
    AgainStep,
    CallStep,
    CopyStep,
    ExecutableSpec,
    FunctionStep,
    Location,
    LoopStep,
    Place,
    RowStep,
    RunStep,
)
from tunefarm.compiler.types.open_axes import places_of
from tunefarm.compiler.types.tensor_type import TensorType

_WORD = 8
"""Bytes of the numbers and flags that loops read and write, at most."""


class _Span(NamedTuple):
    """So many bytes from a place on."""

    place: Location
    bytes: int


def step_reads(spec: ExecutableSpec) -> tuple[tuple[int, ...], ...]:
    """For each step the numbers of the earlier ones whose results it reads, in ascending order.

    What a round of a loop reads of the round before it is left out. Of files from before the types
    of operands were kept only what is read from its very beginning is known.
    """
    types = {
        part.symbol: operands for part, operands in zip(spec.objects, spec.operands, strict=False)
    }
    writers = _Writers()
    found = []
    for number, step in enumerate(spec.steps):
        reads, writes = _accesses(step, types)
        found.append(tuple(sorted({writer for span in reads for writer in writers.of(span)})))
        for span in writes:
            writers.write(span, number)
    return tuple(found)


def _accesses(
    step: RunStep, types: Mapping[str, Sequence[TensorType]]
) -> tuple[list[_Span], list[_Span]]:
    """What a step reads, and what it writes."""
    match step:
        case CallStep():
            known = types.get(step.symbol, ())
            sizes = [type.bytes for type in known] or [1] * len(step.buffers)
            spans = [_Span(*item) for item in zip(step.buffers, sizes, strict=True)]
            return [*spans[:-1], *_flags(guard.place for guard in step.guards)], spans[-1:]
        case FunctionStep():
            present = [
                (_Span(place, type.bytes), number < len(step.buffers) - step.outputs)
                for number, (place, type) in enumerate(zip(step.buffers, step.types, strict=True))
                if place is not None and type is not None
            ]
            inputs = [span for span, is_input in present if is_input]
            guards = _flags(guard.place for guard in step.guards)
            inputs += [] if step.sizes is None else [_sizes_span(step, step.sizes)]
            return [*inputs, *guards], [span for span, is_input in present if not is_input]
        case CopyStep():
            return [_Span(step.source, step.bytes)], [_Span(step.destination, step.bytes)]
        case LoopStep():
            asked = _flags([step.limit, step.first, *(guard.place for guard in step.guards)])
            reads, writes = _copies(step.initial)
            return [*asked, *reads], [*writes, *_flags([step.index])]
        case AgainStep():
            reads, writes = _copies([*step.rows, *step.following])
            return [*_flags([step.again]), *reads], [*writes, *_flags([step.count, step.going])]


def _sizes_span(step: FunctionStep, vector: Location) -> _Span:
    """The sizes that a function's call reads."""
    places = frozenset[int]().union(*(places_of(axes) for axes in step.axes if axes is not None))
    return _Span(vector, _WORD * (max(places, default=0) + 1))


def _flags(places: Iterable[Location | None]) -> list[_Span]:
    return [_Span(place, _WORD) for place in places if place is not None]


def _copies(copies: Iterable[CopyStep | RowStep]) -> tuple[list[_Span], list[_Span]]:
    copies = list(copies)
    return (
        [_Span(copy.source, copy.bytes) for copy in copies],
        [_Span(copy.destination, copy.bytes) for copy in copies],
    )


@dataclass(slots=True)
class _Writers:
    """Who wrote last to which bytes of the arena and of the outputs: spans that do not overlap."""

    spans: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)  # by memory

    def of(self, span: _Span) -> Iterator[int]:
        """The steps that wrote something of a span."""
        memory, begin, end = _bounds(span)
        for first, last, writer in self.spans.get(memory, ()):
            if first < end and begin < last:
                yield writer

    def write(self, span: _Span, writer: int) -> None:
        """A step writes all of a span."""
        memory, begin, end = _bounds(span)
        kept = []
        for first, last, other in self.spans.get(memory, ()):
            if last <= begin or end <= first:
                kept.append((first, last, other))
            else:
                around = ((first, min(last, begin)), (max(first, end), last))
                kept += [(a, b, other) for a, b in around if a < b]
        self.spans[memory] = [*kept, (begin, end, writer)]


_ARENA, _NOT_WRITTEN = -1, -2


def _bounds(span: _Span) -> tuple[int, int, int]:
    """The memory (an output's number, or the arena), the first byte and the one behind the last."""
    place = span.place
    if place.place is Place.ARENA:
        return _ARENA, place.number, place.number + span.bytes
    memory = place.number if place.place is Place.OUTPUT else _NOT_WRITTEN
    return memory, place.offset, place.offset + span.bytes
