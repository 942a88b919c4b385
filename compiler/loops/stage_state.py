"""A stage with its loops: the axes, how they are split and fused, their order and their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import Expr
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.loops.ir import LoopKind, Scope
from tunefarm.compiler.types.frozen import frozen, replace


@frozen
class Split:
    """`parent = outer * factor + inner`; tails are those of `Tile`."""

    parent: str
    outer: str
    inner: str
    factor: int
    tail: str

    def tile(self, extent: int) -> int:
        """Points of a tile of so many: no more than there are, unless it is padded."""
        return self.factor if self.tail == "pad" else min(self.factor, extent)

    @property
    def masked(self) -> bool:
        """What a tile has beyond the extent is left out where it is computed."""
        return self.tail in ("mask", "pad")

    @property
    def whole(self) -> bool:
        """All tiles have the full extent: the last one is shifted back or masked."""
        return self.tail != "peel"


@frozen
class RangeCuts:
    """Where a loop's range is cut: `first` and `last` iterations stand alone; cuts between them."""

    first: int
    last: int
    inside: tuple[int, ...]


@frozen
class ScannedAxis:
    """The axis that a stage is walked along, in order (from its end in `reverse`), and what for.

    Each element is what `combiner` makes of those up to it, itself left out if `exclusive`.
    """

    axis: str
    combiner: str
    exclusive: bool
    reverse: bool


@frozen
class DottedAxis:
    """The innermost axis, which a dot product sums over; `widened` as in `Dot`."""

    axis: str
    widened: bool


@frozen
class ScatteredAxis:
    """The axis along which a stage, filled with `seed`, is updated at `position`, in order.

    The stage's body is what an update gives, its reduce axis goes over the updates, and its
    combiner, if there is one, joins them with what is there.
    """

    axis: str
    seed: Expr
    position: Expr


class TiledAxes(NamedTuple):
    """The innermost loops, which matrix tiles run over: see the step `MatrixTiles`."""

    rows: str
    groups: str  # "" where steps are not grouped
    steps: str
    lanes: str
    terms: str

    @property
    def loops(self) -> tuple[str, ...]:
        """Those that there are, outermost first."""
        return tuple(filter(None, self))


@frozen
class Attachment:
    """Where a producer is computed: inside loop `axis` of `consumer`."""

    consumer: str
    axis: str


@frozen
class StageState:
    """A stage and the loops over its axes; schedule steps make new ones."""

    stage: Stage
    order: tuple[str, ...]  # loops, outermost first
    reduce: frozenset[str]  # all axes that come from a reduce axis
    splits: Mapping[str, Split] = field(default_factory=dict)  # by parent
    splits_by_outer: Mapping[str, Split] = field(default_factory=dict)
    fusions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By fused axis the parts whose product it enumerates, the last one fastest."""
    kinds: Mapping[str, LoopKind] = field(default_factory=dict)
    cuts: Mapping[str, RangeCuts] = field(default_factory=dict)  # by loop
    alternating: Mapping[str, str] = field(default_factory=dict)
    """By loop the one that it alternates with: see the step `Alternate`."""
    unrolled_inside: frozenset[str] = frozenset()  # unrolled, but not at the edges
    chunks: int = 1
    attachment: Attachment | None = None
    kept: bool = False
    """Its memory lives as long as that of the stage that it is attached to."""
    in_output: bool = False
    """Its elements lie where those of the output will: see the step `StoreInOutput`."""
    scope: Scope = Scope.WORKSPACE
    scanned: ScannedAxis | None = None
    dotted: DottedAxis | None = None
    tiled: TiledAxes | None = None
    scattered: ScatteredAxis | None = None

    @staticmethod
    def of(stage: Stage) -> StageState:
        """The naive state: every axis a serial loop, reduce axes innermost."""
        reduce = tuple(axis.name for axis in stage.reduce_axes)
        order = (*(axis.name for axis in stage.axes), *reduce)
        return StageState(stage, order, frozenset(reduce))

    def walked(self, output: str, axis: str) -> StageState:
        """The state as one of a recurrence: inside of the output's loop over its steps."""
        if self.name != output:
            return replace(self, attachment=Attachment(output, axis), scope=Scope.STACK)
        return replace(self, order=(axis, *(loop for loop in self.order if loop != axis)))

    @property
    def name(self) -> str:
        """The name of the stage."""
        return self.stage.name

    def position(self, loop: str) -> int:
        """Where a loop is in the order; `ScheduleError` if it is not there."""
        if loop not in self.order:
            known = ", ".join(self.order)
            raise ScheduleError(f"stage {self.name} has no loop {loop!r} (it has: {known})")
        return self.order.index(loop)

    def order_with(self, old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
        """The loops with `new`, of new names, instead of the adjacent `old`."""
        begin = self.position(old[0])
        end = begin + len(old)
        if self.order[begin:end] != old:
            raise ScheduleError(f"loops {old} are not adjacent in {self.order}")
        known = {axis.name for axis in (*self.stage.axes, *self.stage.reduce_axes)}
        known.update(self.fusions, *((s.outer, s.inner) for s in self.splits.values()))
        if not known.isdisjoint(new):
            raise ScheduleError(f"stage {self.name} has or had a loop called {' or '.join(new)}")
        return (*self.order[:begin], *new, *self.order[end:])

    def is_parallel(self, loop: str) -> bool:
        """The loop, or the fused one that it is a part of, runs in parallel."""
        fused = (axis for axis, parts in self.fusions.items() if loop in parts)
        return any(self.kinds.get(name) is LoopKind.PARALLEL for name in (loop, *fused))

    def root_of(self, loop: str) -> Axis | None:
        """The output axis that a loop is a part of; None for a fused loop."""
        parents = {split.inner: split.parent for split in self.splits.values()}
        parents |= {split.outer: split.parent for split in self.splits.values()}
        while loop in parents:
            loop = parents[loop]
        return next((axis for axis in self.stage.axes if axis.name == loop), None)

    def is_part(self, loop: str, axis: str) -> bool:
        """The loop goes over a part of this output axis."""
        root = self.root_of(loop)
        return root is not None and root.name == axis

    def vector_roots(self) -> set[str]:
        """The axes of the stage that run through a vector."""
        vectorised = [axis for axis, kind in self.kinds.items() if kind is LoopKind.VECTORISED]
        roots = [self.root_of(axis) for axis in vectorised]
        return {root.name for root in roots if root is not None}
