"""What all candidates of a tiled reduction have in common, and how its loops are ordered."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tunefarm.compiler.expr.nodes import Load
from tunefarm.compiler.expr.walk import axes_of, loads
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.schedule.nest_shape import PAGE, Numbers, Operand, aliased_lines, operands_of
from tunefarm.compiler.schedule.sketches.ragged_sums import ragged_blocks
from tunefarm.compiler.schedule.sketches.roles import Roles
from tunefarm.compiler.schedule.sketches.tile_dots import float_products, joined_loads
from tunefarm.compiler.schedule.sketches.tile_forms import TileForm
from tunefarm.compiler.schedule.sketches.wide_forms import multiplies_pairs
from tunefarm.compiler.schedule.vectors import vector_lanes, vector_type
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

LOAD_COST = (
    2.0  # loads of a vector from anywhere, most of which cross a cache line; of 32 bytes too:
)
# with 1.5 depthwise windows of 14x14 took 1.13 times as long in AVX2 (Zen 4)


@frozen
class LoopOrder:
    """The loops over tiles, outermost first: "row", "block" and "column", spelled in this order.

    Round them may stand a loop over tiles of so many `rows`, "rows4 block row column", or over
    blocks of so many `columns`, "columns48 block column"; inside of the former one over so many
    `blocks`, "blocks6 rows4 block row column". Threads share all but the innermost, or
    all of them: "shared block column". A loop over blocks with a tail they share where its last
    tile is moved back, so that all are `even`: "even block row column".
    """

    names: tuple[str, ...]
    rows: int = 0
    columns: int = 0
    shared: bool = False
    even: bool = False
    blocks: int = 0

    def __str__(self) -> str:
        sizes = {"blocks": self.blocks, "rows": self.rows, "columns": self.columns}
        tiles = [f"{name}{size}" for name, size in sizes.items() if size]
        return " ".join((*["even"] * self.even, *["shared"] * self.shared, *tiles, *self.names))

    @staticmethod
    def parse(spelling: str) -> LoopOrder:
        """The inverse of `str`."""
        first, *rest = spelling.split()
        if first == "even":
            return replace(LoopOrder.parse(" ".join(rest)), even=True)
        if first == "shared":
            return LoopOrder(tuple(rest), shared=True)
        if first.startswith("blocks"):
            blocks = int(first.removeprefix("blocks"))
            return replace(LoopOrder.parse(" ".join(rest)), blocks=blocks)
        if first.startswith("rows"):
            return LoopOrder(tuple(rest), rows=int(first.removeprefix("rows")))
        if first.startswith("columns"):
            return LoopOrder(tuple(rest), columns=int(first.removeprefix("columns")))
        return LoopOrder((first, *rest))


@dataclass(frozen=True)
class TileContext:
    """What all candidates have in common; what is worked out is kept."""

    form: TileForm
    target: Target
    threads: int

    @property
    def kernel(self) -> FusedKernel:
        """As the form's steps leave it."""
        return self.form.kernel

    @property
    def roles(self) -> Roles:
        """The role of each axis of the contraction."""
        return self.form.roles

    @cached_property
    def prologue(self) -> tuple[str, ...]:
        """What is computed before the tiles, copies of operands among it."""
        kernel, held = self.kernel, self.form.held
        within = (kernel.anchor, held.stage if held is not None else "")
        return tuple(stage.name for stage in kernel.stages[:-1] if stage.name not in within)

    @cached_property
    def lanes(self) -> int:
        """Elements of a vector."""
        return vector_lanes(self.kernel, self.target)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of a vector."""
        return vector_type(self.kernel).bytes

    @cached_property
    def anchor(self) -> Stage:
        """The stage with the contraction."""
        return self.kernel.stage(self.kernel.anchor)

    @cached_property
    def extents(self) -> dict[str, int]:
        """Of the anchor's axes, reduce axes last: in dot products where these sum along one."""
        stage = self.anchor
        extents = {axis.name: axis.extent for axis in (*stage.axes, *stage.reduce_axes)}
        if (dot := self.form.dot) is not None:
            extents[dot.axis] = dot.steps(extents[dot.axis])
        return extents

    @property
    def terms(self) -> int:
        """Products that one step of the reduction adds to each element."""
        return 1 if self.form.dot is None else self.form.dot.terms

    @cached_property
    def product_registers(self) -> int:
        """Vector registers for products that another instruction adds to the sums, or for half of
        a word of factors that are widened, and what masks it."""
        if self.form.dot is None:
            return 0
        if self.anchor.dtype.is_float:
            return 2 * (float_products(self.target)[0] == "widened")
        return int(self.anchor.dtype is DType.I32 and multiplies_pairs(self.target))

    def extent(self, axis: str) -> int:
        """One point where there is no such axis, ""."""
        return self.extents[axis] if axis else 1

    @cached_property
    def has_dynamic_columns(self) -> bool:
        """Whether a size that only the run knows ends the rows of the output."""
        names = [axis.name for axis in self.kernel.output.axes]
        if self.roles.column not in names:
            return False
        position = names.index(self.roles.column)
        shape = self.kernel.output.shape
        after = math.prod(shape[position + 1 :])
        ends = ((limit.stride, limit.extent) for limit in self.kernel.limits)
        return (after, shape[position]) in ends

    @cached_property
    def ragged(self) -> bool:
        """The last vector is not full: plain data whose extent is no multiple of the lanes."""
        if self.form.turned:
            return self.channels % self.lanes != 0
        extent = self.extents[self.roles.vector]
        return not self.roles.block and extent > self.lanes and extent % self.lanes != 0

    @cached_property
    def broadcasts(self) -> bool:
        """Some operand is the same for all lanes and vectors: each loaded vector serves columns."""
        moving = {self.roles.vector, self.roles.block}
        return any(
            not any(axes_of(item) & moving for item in load.indices)
            for load in loads(self.anchor.body)
        )

    def loads_of_step(self, columns: Numbers, vectors: Numbers) -> Numbers:
        """Loads of a reduction step, those of vectors counted as often as they take."""
        moving = {self.roles.vector, self.roles.block}
        total = np.zeros_like(columns)
        for load in loads(self.anchor.body):
            axes = {name for item in load.indices for name in axes_of(item)}
            count = columns if self.roles.column in axes else np.ones_like(columns)
            if axes & moving:
                shifted = len(axes_of(load.indices[-1])) > 1 and not self._is_constant(load)
                count = count * vectors * (LOAD_COST if shifted else 1.0)
            total = total + count
        return total

    def _is_constant(self, load: Load) -> bool:
        return any(buffer.name == load.buffer and buffer.constant for buffer in self.kernel.inputs)

    def interleaves(self, columns: float, vectors: float) -> float:
        """Shuffles of a step that join the words of dot products of values from several places."""
        if (dot := self.form.dot) is None:
            return 0.0
        total = 0.0
        for load in joined_loads(self.kernel, dot, self.roles.vector, self.lanes):
            axes = {name for item in load.indices for name in axes_of(item)}
            count = columns * vectors if self.roles.column in axes else vectors
            total += count * (dot.terms - 1)
        return total

    def aliased(self, columns: Numbers, vectors: Numbers) -> Numbers:
        """Lines of the data read in a step that compete for one set of the first-level cache."""
        numbers = {name: number for number, name in enumerate(self.extents)}
        constants = {buffer.name for buffer in self.kernel.inputs if buffer.constant}
        most = np.ones_like(columns)
        for operand in self.operands[:-1]:
            if operand.name in constants or not self.roles.column:
                continue
            lines = aliased_lines(operand.stride(numbers[self.roles.column]), columns)
            if self.roles.block:
                stride = operand.stride(numbers[self.roles.block])
                lines = lines * aliased_lines(stride, vectors)
            most = np.maximum(most, lines)
        return most

    def bytes_of_columns(self, columns: int) -> float:
        """What the sums of so many columns read of the operands that move along them."""
        numbers = {name: number for number, name in enumerate(self.extents)}
        column, summed = numbers[self.roles.column], [numbers[axis] for axis in self.roles.reduce]
        points = np.ones((len(numbers), 1))
        for axis in self.roles.reduce:
            points[numbers[axis]] = self.extents[axis]
        points[column] = columns
        moves = ((item, item.moves_with(len(numbers))) for item in self.operands[:-1])
        read = [item for item, axes in moves if axes[column] and axes[summed].any()]
        return sum(float(item.footprint(points)[0]) for item in read)

    @cached_property
    def _jumps(self) -> list[int]:
        """Bytes between the terms of a sum that lie half a page or more apart, by operand."""
        (inner,) = self.roles.reduce[-1:]
        numbers = {name: number for number, name in enumerate(self.extents)}
        constants = {buffer.name for buffer in self.kernel.inputs if buffer.constant}
        strides = [
            operand.stride(numbers[inner])
            for operand in self.operands[:-1]
            if operand.name not in constants
            and operand.moves_with(len(numbers))[numbers[self.roles.vector]]
        ]
        return [stride for stride in strides if stride >= PAGE // 2]

    @property
    def jumps(self) -> bool:
        """Each vector is read once, by sums that go from page to page."""
        return not self.broadcasts and self.extent(self.roles.column) == 1 and bool(self._jumps)

    @cached_property
    def strewn(self) -> bool:
        """Terms of a sum lie so that they compete for few sets of the second-level cache, too."""
        ways = self.target.machine.l2.ways
        way = self.target.l2_bytes // ways
        terms = self.extents[self.roles.reduce[-1]]
        return any(terms > way // math.gcd(stride, way) * ways for stride in self._jumps)

    @cached_property
    def streamed(self) -> frozenset[str]:
        """Constants that do not fit the second-level cache."""
        large = self.target.l2_bytes
        return frozenset(
            buffer.name
            for buffer in self.kernel.inputs
            if buffer.constant and buffer.type.bytes > large
        )

    @cached_property
    def vectors(self) -> int:
        """How many vectors lie along block, or along the vector axis where that is split."""
        if self.roles.block:
            return self.extents[self.roles.block]
        return -(-self.extents[self.roles.vector] // self.lanes)

    @cached_property
    def channels(self) -> int:
        """Points of the output's axis that runs along the vectors of a tile that is turned."""
        axes = {axis.name: axis.extent for axis in self.kernel.output.axes}
        return axes[self.form.turned]

    @cached_property
    def reduction(self) -> int:
        """Steps of the reduction of an element."""
        ragged, extents = ragged_blocks(self.anchor), dict(self.extents)
        if ragged is not None:
            extents |= {ragged.block: 1, ragged.channel: ragged.terms}
        return math.prod(extents[axis] for axis in self.roles.reduce)

    @property
    def products(self) -> int:
        """Steps of the reductions of all elements."""
        summed = math.prod(self.extents[axis] for axis in self.roles.reduce)
        return math.prod(self.extents.values()) // summed * self.reduction

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """What anchor and output read and write, axes by their number in `extents`."""
        stages = list({stage.name: stage for stage in (self.anchor, self.kernel.output)}.values())
        numbers = {name: number for number, name in enumerate(self.extents)}
        operands = operands_of(self.kernel, stages, numbers)
        if (dot := self.form.dot) is not None:
            operands = tuple(item.stepped(numbers[dot.axis], dot.terms) for item in operands)
        if not self.form.turned:
            return operands
        *read, written = operands
        moving = ((numbers[self.roles.block], self.lanes), (numbers[self.roles.vector], 1))
        dimensions = tuple(
            moving if axis.name == self.form.turned else dimension
            for axis, dimension in zip(self.kernel.output.axes, written.dimensions, strict=True)
        )
        return (*read, replace(written, dimensions=dimensions))

    @cached_property
    def copied(self) -> int:
        """Bytes of the prologue's stages, which are written and read again unless inlined.

        Weights are unpacked inside of all outer loops.
        """
        stages = [self.kernel.stage(name) for name in self.prologue]
        size = sum(math.prod(stage.shape) * stage.dtype.bytes for stage in stages)
        times = [self.extents[axis] for axis in self.roles.outer] if self.form.unpacked else []
        return size * math.prod(times)
