"""Stage: a tensor filled by one expression, over named axes."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from tunefarm.compiler.expr.nodes import Expr, Load
from tunefarm.compiler.expr.walk import substitute, transform
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen


class Role(StrEnum):
    """What an axis is to the others of its stage (see `tunefarm.compiler.kernels.roles`)."""

    BATCH = "batch"
    ROW = "row"  # of a plane, or the axis next to the column
    COLUMN = "column"  # each vector that is loaded serves several of them
    BLOCK = "block"  # of channels, in blocked data
    PHASE = "phase"  # of a row or column, right inside of it: each has its own weights
    LANE = "lane"  # adjacent points that fill vectors: exactly one where there are blocks
    WINDOW = "window"  # reduced; moves along the plane
    REDUCE = "reduce"  # reduced otherwise


@frozen
class Axis:
    """A named iteration axis 0 <= name < extent; equal to others whatever is known of its role."""

    name: str
    extent: int
    role: Role | None = field(default=None, compare=False)


@frozen
class Stage:
    """`name[axes] = combiner over reduce_axes of body`; with no reduce_axes just `body`.

    Axis names are unique within a kernel's stage. `combiner` is "" exactly if `reduce_axes` is ().
    Sums and products are formed in the type `accumulator`, wider than the body's (None: in that),
    and stored in the body's, see `tunefarm.compiler.kernels.accumulate`.
    """

    name: str
    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    combiner: str
    body: Expr
    accumulator: DType | None = None

    @property
    def dtype(self) -> DType:
        """The element type of the results."""
        return self.body.dtype

    @property
    def accumulates(self) -> DType:
        """The type that terms are joined in."""
        return self.accumulator or self.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the spatial axes."""
        return tuple(axis.extent for axis in self.axes)


def inline(body: Expr, stage: Stage) -> Expr:
    """`body` with what `stage` computes instead of loads from it."""

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.buffer != stage.name:
            return None
        indices = [inline(item, stage) for item in node.indices]
        axes = [axis.name for axis in stage.axes]
        return substitute(stage.body, dict(zip(axes, indices, strict=True)))

    return transform(body, visit)
