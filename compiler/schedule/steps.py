"""Schedule steps: small frozen rewrites of a kernel's loop nest, replayable from a log.

Each step names a stage and its axes. `compiler.schedule.apply_schedule` applies them; the
docstrings show the loop nest before -> after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from compiler.errors import ScheduleError
from compiler.types.numerics import Algorithm


@dataclass(frozen=True, slots=True)
class Step:
    """Base of schedule steps."""


@dataclass(frozen=True, slots=True)
class Inline(Step):
    """Compute `stage` (no reduction) where it is used instead of storing it.

    for i: pad[i] = select(0 < i, x[i-1], 0)         for i: y[i] = select(0 < i, x[i-1], 0) * 2
    for i: y[i] = pad[i] * 2                     ->
    """

    stage: str


@dataclass(frozen=True, slots=True)
class MergeAxes(Step):
    """Make one axis `first_second` of two adjacent output axes that are only walked together.

    for i < 4: for j < 5: y[i, j] = x[i, j] + 1     ->     for i_j < 20: y[i_j] = x[i_j] + 1

    Comes before all other steps.
    """

    first: str
    second: str


@dataclass(frozen=True, slots=True)
class MergeReduceAxes(Step):
    """Make one axis `first_second` of two adjacent reduce axes of `stage`, as `MergeAxes` does.

    for k < 4: for l < 5: s += x[k, l]     ->     for k_l < 20: s += x[k_l]

    Comes before all other steps but `MergeAxes`.
    """

    stage: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Winograd(Step):
    """Compute a 3x3 convolution by Winograd's minimal filtering in tiles of `m` x `m` outputs.

    conv[oh, ow] += pad[oh + kh, ow + kw] * w[kh, kw]
    ->
    data.rows, data.both: B^T d B of each tile of pad
    products[x, y, t] += data.both[x, y, t] * transformed w[x, y]
    output.rows, conv: A^T products A

    Comes before all other steps. The filter is transformed when the model is built. Rounding
    differs from the direct form.
    """

    m: int


@dataclass(frozen=True, slots=True)
class CacheWrite(Step):
    """Split the output stage in two: `result` accumulates, `stage` copies it out.

    for i: for k: y[i] += a[i, k]      ->      for i: for k: result[i] += a[i, k]
                                               for i: y[i] = result[i]

    `result` has the axes of `stage`; usually a `ComputeAt` in registers follows.
    """

    stage: str
    result: str


@dataclass(frozen=True, slots=True)
class CacheRead(Step):
    """Give the part of `stage` that reads `buffer` a stage `result` with `axes` in this order.

    for i: for j: y[i, j] = x[j, i] * 2 + b[j]     ->     for j: for i: t[j, i] = x[j, i] * 2
                                                         for i: for j: y[i, j] = t[j, i] + b[j]

    The part is the largest expression that loads from nothing else. Where x is contiguous along an
    axis that is not the last of y, `result` can be computed in vectors along it.
    """

    stage: str
    buffer: str
    result: str
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hoist(Step):
    """Give the first part of `stage` that is computed without `axis` a stage `result` of its own.

    for i: for j: y[i, j] = x[i, j] * (1 / s[i])     ->     for i: t[i] = 1 / s[i]
                                                           for i: for j: y[i, j] = x[i, j] * t[i]

    `result` has the other axes that the part mentions; usually a `ComputeAt` follows.
    """

    stage: str
    axis: str
    result: str


@dataclass(frozen=True, slots=True)
class SplitReduction(Step):
    """Reduce in `lanes` independent partial results, then combine them: the vector form of a sum.

    for i: for k < 19: s[i] += x[i, k]
    ->
    for i: for k.o < 2: for k.l < 8: s.lanes[i, k.l] += x[i, k.o*8 + k.l]
    for i: for k.l < 8: s.sum[i] += s.lanes[i, k.l]
    for i: for k.t < 3: s.tail[i] += x[i, 16 + k.t]
    for i: s[i] = s.sum[i] + s.tail[i]

    Without a tail `s` itself combines the lanes. Needs extent >= lanes. Where there is a stage
    `s.lanes` already, the partial results are called `s.lanes_1`, and so on.
    """

    stage: str
    axis: str
    lanes: int


@dataclass(frozen=True, slots=True)
class Tile(Step):
    """Split `axis` into `axis.o` and `axis.i` of extent `factor`.

    for i < 17: y[i]     ->     for i.o < 4: for i.i < 4: y[i.o*4 + i.i]     tail "peel"
                                for i.i < 1: y[16 + i.i]

                         ->     for i.o < 5: let s = min(i.o*4, 13)          tail "shift"
                                  for i.i < 4: y[s + i.i]

                         ->     for i.o < 5: for i.i < 4:                    tail "mask"
                                  if i.o*4 + i.i < 17: y[i.o*4 + i.i]

    "peel" repeats the inner nest for the rest; "shift" moves the last tile back so that it
    overlaps its neighbour; "mask" keeps it whole and leaves out what is beyond the extent: in a
    vector, by the mask of its loads and stores. A reduce axis can only be peeled. A factor above
    the extent is cut to it.
    """

    stage: str
    axis: str
    factor: int
    tail: str = "peel"


@dataclass(frozen=True, slots=True)
class Fuse(Step):
    """Make one axis `name` of adjacent axes, to give a parallel loop more iterations.

    for i < 4: for j < 5: y[i, j]     ->     for f < 20: y[f // 5, f % 5]
    """

    stage: str
    axes: tuple[str, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Reorder(Step):
    """Put the loops of `stage` in this order, outermost first; all its axes are named.

    for i: for j: y[i, j]     ->     for j: for i: y[i, j]
    """

    stage: str
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Vectorize(Step):
    """Make `axis` the elements of a vector register.

    for i < 8: y[i] = x[i] + 1     ->     y[0:8] = x[0:8] + 1
    """

    stage: str
    axis: str


@dataclass(frozen=True, slots=True)
class Unroll(Step):
    """Repeat the body once per value of `axis`, so that its indices become constants.

    for i < 2: y[i] = x[i]     ->     y[0] = x[0]; y[1] = x[1]

    With `edges` false, it stays a loop in tails and in iterations that `Partition` sets apart: they
    run rarely, and their code costs as much to generate as the rest.
    """

    stage: str
    axis: str
    edges: bool = True


@dataclass(frozen=True, slots=True)
class Parallelize(Step):
    """Run `axis`, the outermost loop, on all threads in `chunks` pieces per thread.

    for i: y[i]     ->     parallel for i: y[i]
    """

    stage: str
    axis: str
    chunks: int = 1


@dataclass(frozen=True, slots=True)
class Partition(Step):
    """Split the loop's range so that `first` and `last` iterations stand alone, and at `cuts`.

    for i < 9: body     ->     body(0); for 1 <= i < 8: body(i); body(8)
    for i < 9: body     ->     for i < 4: body(i); for 4 <= i < 9: body(i)     (0, 0, cuts (4,))

    Guards of padding are then decided at compile time in the middle part.
    """

    stage: str
    axis: str
    first: int = 1
    last: int = 1
    cuts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ComputeAt(Step):
    """Compute the part of `stage` that one iteration of `consumer`'s loop `axis` needs, there.

    for i: t[i] = f(i)                         for i.o: for i.i: t'[i.i] = f(i.o*4 + i.i)
    for i.o: for i.i: y[...] = t[...]     ->            for i.i: y[...] = t'[i.i]

    `scope` is where t' lives: "register", or "stack".
    """

    stage: str
    consumer: str
    axis: str
    scope: str = "stack"


@dataclass(frozen=True, slots=True)
class PackLayout(Step):
    """Store a constant input in another layout, packed when the model is built.

    Each (axis, factor) of `splits` divides a dimension into (ceil(n / factor), factor), padded with
    zeros; `order` then permutes the resulting dimensions.

    With `winograd` m, a 3x3 filter [OC, IC, 3, 3] is first transformed to [m+2, m+2, OC, IC].

    w[64, 32, 3, 3]     splits ((0, 8),), order (0, 2, 3, 4, 1)     ->     w[8, 32, 3, 3, 8]
    """

    buffer: str
    splits: tuple[tuple[int, int], ...]
    order: tuple[int, ...]
    winograd: int = 0


@dataclass(frozen=True, slots=True)
class Prefetch(Step):
    """Ask for the vectors of an input `distance` elements ahead of where they are read.

    for k: c += w[k] * x[k]     ->     for k: prefetch w[k + distance]; c += w[k] * x[k]

    Worth a try where an input streams through an unrolled body from an outer cache.
    """

    buffer: str
    distance: int


STEPS: dict[str, type[Step]] = {
    kind.__name__: kind
    for kind in (
        MergeAxes,
        MergeReduceAxes,
        Winograd,
        Inline,
        CacheWrite,
        CacheRead,
        Hoist,
        SplitReduction,
        Tile,
        Fuse,
        Reorder,
        Vectorize,
        Unroll,
        Parallelize,
        Partition,
        ComputeAt,
        PackLayout,
        Prefetch,
    )
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """A tuple of steps, applied in order."""

    steps: tuple[Step, ...]

    @property
    def algorithm(self) -> Algorithm:
        """How the kernel's anchor is computed."""
        sizes = [step.m for step in self.steps if isinstance(step, Winograd)]
        return Algorithm.winograd(sizes[0]) if sizes else Algorithm.DIRECT

    def to_json(self) -> list[Any]:
        """The steps as `[kind, argument, ...]` lists of JSON values.

        Trailing arguments that have their default value are left out, so that a schedule's JSON
        stays the same when a step gets a new optional argument.
        """
        return [[type(step).__name__, *_arguments(step)] for step in self.steps]

    @staticmethod
    def from_json(data: Sequence[Any]) -> Schedule:
        """The inverse of `to_json`; `ScheduleError` for a step that this version does not know."""
        steps = []
        for entry in data:
            if not isinstance(entry, list | tuple) or not entry or entry[0] not in STEPS:
                raise ScheduleError(f"unknown schedule step {entry!r}")
            kind = STEPS[entry[0]]
            arguments = [_tuples(argument) for argument in entry[1:]]
            if len(arguments) > len(fields(kind)):
                raise ScheduleError(f"schedule step {entry[0]} has too many arguments: {entry!r}")
            try:
                steps.append(kind(*arguments))
            except TypeError as error:
                raise ScheduleError(f"schedule step {entry!r}: {error}") from None
        return Schedule(tuple(steps))

    def __str__(self) -> str:
        return "\n".join(str(step) for step in self.steps)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _arguments(step: Step) -> list[Any]:
    """A step's arguments, without the trailing ones that have their default value."""
    arguments = [(getattr(step, field.name), field.default) for field in fields(step)]
    while arguments and arguments[-1][0] == arguments[-1][1]:
        arguments.pop()
    return [value for value, _ in arguments]
