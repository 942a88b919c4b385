"""The state that schedule steps rewrite: per stage its axes, their relations and their order."""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.kernels.stage import Axis, Stage
from compiler.loops.ir import LoopKind, Scope
from compiler.schedule.steps import Partition


@dataclass(frozen=True, slots=True)
class Split:
    """`parent = outer * factor + inner`; the tail is "peel", "shift" or "mask" (see `Tile`)."""

    parent: str
    outer: str
    inner: str
    factor: int
    tail: str

    @property
    def whole(self) -> bool:
        """All tiles have the full extent: the last one is shifted back or masked."""
        return self.tail != "peel"


@dataclass(frozen=True, slots=True)
class Fusion:
    """`fused` enumerates the product of `parts`, the last one fastest."""

    parts: tuple[str, ...]
    fused: str


@dataclass(frozen=True, slots=True)
class Attachment:
    """Where a producer is computed: inside loop `axis` of `consumer`."""

    consumer: str
    axis: str


@dataclass(slots=True)
class StageState:
    """One stage while steps are applied to it."""

    stage: Stage
    order: list[str] = field(default_factory=list)  # loops, outermost first
    splits: dict[str, Split] = field(default_factory=dict)  # by parent
    splits_by_outer: dict[str, Split] = field(default_factory=dict)
    fusions: dict[str, Fusion] = field(default_factory=dict)  # by fused axis
    kinds: dict[str, LoopKind] = field(default_factory=dict)
    partitions: dict[str, Partition] = field(default_factory=dict)  # by loop
    unrolled_inside: set[str] = field(default_factory=set)  # unrolled, but not at the edges
    chunks: int = 1
    attachment: Attachment | None = None
    scope: Scope = Scope.WORKSPACE
    reduce: set[str] = field(default_factory=set)  # all axes that come from a reduce axis

    @staticmethod
    def of(stage: Stage) -> StageState:
        """The naive state: every axis a serial loop, reduce axes innermost."""
        names = [axis.name for axis in (*stage.axes, *stage.reduce_axes)]
        return StageState(stage, names, reduce={axis.name for axis in stage.reduce_axes})

    @property
    def name(self) -> str:
        return self.stage.name

    def axis(self, name: str) -> Axis:
        """A root axis by name."""
        for axis in (*self.stage.axes, *self.stage.reduce_axes):
            if axis.name == name:
                return axis
        raise KeyError(name)

    def root_of(self, loop: str) -> Axis | None:
        """The axis that a loop is a part of; None for a fused loop."""
        parents = {split.inner: split.parent for split in self.splits.values()}
        parents |= {split.outer: split.parent for split in self.splits.values()}
        while loop in parents:
            loop = parents[loop]
        return next((axis for axis in self.stage.axes if axis.name == loop), None)

    def vector_roots(self) -> set[str]:
        """The axes of the stage that run through a vector."""
        vectorised = [axis for axis, kind in self.kinds.items() if kind is LoopKind.VECTORISED]
        roots = [self.root_of(axis) for axis in vectorised]
        return {root.name for root in roots if root is not None}

    @property
    def is_untouched(self) -> bool:
        return not (self.splits or self.fusions or self.kinds or self.attachment)
