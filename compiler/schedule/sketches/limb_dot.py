"""Sketches: products with packed weights, summed up in integers of data in digits.

units, digits of all data                                          in the workspace
for outer.., columns.o, rows.o: (parallel)
    registers = 0                                                  [row][vector], f32
    for chunk:
        sums = 0                                                   [row][digit][vector], i32
        for word: for field, row, digit, vector (unrolled):
            sums += dot of digits (broadcast), fields of weights
        registers += sums * scale
    for row, vector (unrolled): output = epilogue(registers)

Data has three digits, or one where the precision lets it be rounded to 8 bits.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt, prod
from statistics import geometric_mean

import numpy as np

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.limb_dot import (
    BYTES,
    DIGITS,
    ROUNDED,
    DigitForm,
    apply_limb_dot,
    digit_form,
)
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.kernels.weight_words import WORD
from tunefarm.compiler.schedule.nest_shape import (
    Counts,
    Loop,
    Nest,
    NestShape,
    Numbers,
    operands_of,
)
from tunefarm.compiler.schedule.sketches.parallel_choices import (
    CHUNKS,
    parallel_steps,
    pays_to_share,
    pieces_and_grains,
)
from tunefarm.compiler.schedule.sketches.roles import epilogue_is_plain
from tunefarm.compiler.schedule.sketches.row_parts import (
    RowParts,
    RowReduction,
    split_reduction,
    split_widths,
)
from tunefarm.compiler.schedule.sketches.tile_domains import COPY_CYCLES
from tunefarm.compiler.schedule.sketches.tile_forms import tile_forms
from tunefarm.compiler.schedule.sketches.tiled_reduction import may_unpack
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from tunefarm.compiler.schedule.steps.kernel_forms import DigitSums
from tunefarm.compiler.schedule.steps.loop_kinds import DotProduct, Prefetch, Unroll, Vectorize
from tunefarm.compiler.schedule.steps.new_stages import CacheWrite
from tunefarm.compiler.schedule.steps.packing import PackLayout
from tunefarm.compiler.schedule.steps.placement import ComputeAt
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Reorder, Tile
from tunefarm.compiler.schedule.vectors import vector_lanes
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.numerics import Algorithm

ROWS = (1, 2, 3, 4, 6)
ROUNDED_ROWS = (1, 2, 3, 4, 6, 8, 12)
VECTORS = (1, 2, 3, 4, 6)
PREFETCHES = (0, 512, 1024, 2048)  # words, and scales
SLOW_DOTS = 4  # of a vector of words: with 6 and 12 none is read sooner without prefetches (Zen 4)
ENOUGH_SUMS = 8  # of a tile: twice the latency of vpdpbusd, one of which starts in a cycle (Zen 4)
FIELD_OPERATIONS = 1.0  # to take a field of fewer than 8 bits out of its word (Emerald Rapids)
SUM_OPERATIONS, DIGIT_OPERATIONS = 6.0, 2.0  # to scale and add up a chunk's sums, and of each digit
FEW_ROWS = 8  # for more, weights are unpacked once for all rows: 8 take 0.92, 12 1.08 (Zen 3)


@frozen
class _Context:
    """What all candidates have in common."""

    kernel: FusedKernel  # with split-integer dot products
    form: DigitForm
    lanes: int
    threads: int
    target: Target

    @property
    def anchor(self) -> Stage:
        return self.form.product.stage

    @property
    def columns(self) -> int:
        return self.anchor.axes[-1].extent


def limb_dot_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketches, where the kernel is a product with packed weights of at least a vector.

    The one whose data is rounded comes first: it is the faster one where it is admitted.
    """
    found = [_sketch(kernel, target, threads, digits) for digits in (ROUNDED, DIGITS)]
    return [sketch for sketch in found if sketch is not None]


def _sketch(kernel: FusedKernel, target: Target, threads: int, digits: int) -> Sketch | None:
    form = digit_form(kernel, digits)
    lanes = vector_lanes(kernel, target)
    if form is None or not epilogue_is_plain(kernel) or kernel.anchor != form.product.stage.name:
        return None
    if form.product.stage.axes[-1].extent < lanes:
        return None
    weights = kernel.buffer(form.product.weight.buffer)
    rows = prod(axis.extent for axis in form.product.stage.axes[:-1])
    if not weights.constant or not pays_to_share(weights.type.bytes * rows, target):
        threads = 1
    context = _Context(apply_limb_dot(kernel, digits), form, lanes, threads, target)
    tiles = _tiles(context, target)
    tile = _best_tile(context, tiles)
    choices: list[tuple[Choice, ChoiceValue]] = [
        (Choice("tile", tiles), tile),
        (Choice("words", (1, 2, 4)), 4),
        (Choice("prefetch", PREFETCHES), _words_ahead(form, tile[0], target)),
    ]
    if threads > 1:
        choices.append((Choice("chunks", CHUNKS), 4))
    name = "rounded" if form.rounds else "digits"
    algorithm = Algorithm.ROUNDED_DATA if form.rounds else Algorithm.DIGITS
    sketch = Sketch.planned(name, choices, lambda values: _Candidates(context, values))
    return replace(sketch, algorithm=algorithm, leads=_leads(kernel, context, sketch))


def _words_ahead(form: DigitForm, rows: int, target: Target) -> int:
    """How far ahead of its reads the stream of words is asked for.

    What hardware follows by itself is still asked for where digits take long: then it costs no
    time, and the first-level cache has the words.
    """
    ahead = target.machine.memory.ahead
    if ahead is None or rows * form.digits * form.in_byte > SLOW_DOTS:
        return 1024
    return min(PREFETCHES, key=lambda words: abs(words * WORD.bytes - ahead))


def _adds_bytes(form: DigitForm, target: Target) -> bool:
    """Whether an instruction adds products of the weights' fields and digits."""
    short = form.product.bits < DType.U8.bits  # as signed factors they are the same
    types = (DType.U8, DType.I8) if short else (DType.U8,)
    return any(target.dot_products(left, DType.I8, DType.I32) for left in types)


def _leads(kernel: FusedKernel, context: _Context, sketch: Sketch) -> bool:
    """Few enough instructions sum up digits to be fewer than unpack weights to floats."""
    form, target = context.form, context.target
    rows = _rows(form)
    if _adds_bytes(form, target):
        a_row, unpacked = _cycles_of_a_row(form, sketch), _Unpacked.of(form, context.lanes, target)
        ratios = (each * a_row / unpacked.cycles(each) for each in _counts(kernel, rows))
        if form.rounds or geometric_mean(ratios) <= 1.0:
            return True
        return not any(
            may_unpack(each, context.lanes) for each in tile_forms(kernel, context.lanes)
        )
    return form.rounds or rows <= _few_rows(form, target)


def few_rows(kernel: FusedKernel, sketch: Sketch, target: Target) -> FewRows:
    """Up to how many rows the split-integer dot products of a sketch of the kernel are faster than
    products with weights that are unpacked once for all rows."""
    form = digit_form(kernel)
    assert form is not None
    unpacked = _Unpacked.of(form, vector_lanes(kernel, target), target)
    most = _few_rows(form, target)
    if _adds_bytes(form, target):
        more = _cycles_of_a_row(form, sketch) - unpacked.a_row
        most = int(unpacked.once / more) if more * _rows(form) > unpacked.once else _rows(form)
    return FewRows(most, unpacked.once)


@frozen
class FewRows:
    """Up to `most` rows split-integer dot products are the faster form: they do without the
    `unpacking` of weights, in cycles, and take longer for each row."""

    most: int
    unpacking: float

    def gain(self, rows: int) -> float:
        """Cycles that they take less for so many rows: nothing for one more than `most`."""
        return self.unpacking * (1 - rows / (self.most + 1))


def _few_rows(form: DigitForm, target: Target) -> int:
    """Up to so many rows digits are the faster form where no instruction adds products of bytes."""
    if "avx2" not in target.features:
        return 0
    return FEW_ROWS if form.product.bits < DType.U8.bits else 1


def _rows(form: DigitForm) -> int:
    return prod(axis.extent for axis in form.product.stage.axes[:-1])


def _cycles_of_a_row(form: DigitForm, sketch: Sketch) -> float:
    """Of the default schedule's split-integer dot products."""
    shape, _ = sketch.shape_of([(value,) for value in sketch.default])
    return shape.cycles.item() / _rows(form)


def _counts(kernel: FusedKernel, rows: int) -> tuple[int, ...]:
    """Numbers of rows that stand for those of a run: one, some and all where they are dynamic."""
    is_dynamic = any(map(kernel.limited_at, range(len(kernel.output.shape) - 1)))
    return (1, isqrt(rows), rows) if is_dynamic else (rows,)


@frozen
class _Unpacked:
    """Cycles of a product with weights that are unpacked to floats once for all rows."""

    once: float
    a_row: float

    @staticmethod
    def of(form: DigitForm, lanes: int, target: Target) -> _Unpacked:
        columns = form.product.stage.axes[-1].extent
        vectors = form.product.inner * -(-columns // lanes)
        return _Unpacked(vectors * COPY_CYCLES, vectors / target.machine.vectors.fma)

    def cycles(self, rows: int) -> float:
        return self.once + rows * self.a_row


def _tiles(context: _Context, target: Target) -> tuple[tuple[int, int], ...]:
    """(rows, vectors) of tiles whose sums leave registers for a digit and for fields.

    With one digit the sums in floats have registers too, and so have the parts of products that no
    single instruction adds.
    """
    form = context.form
    rows, vectors = context.anchor.axes[-2].extent, -(-context.columns // context.lanes)
    sums, others = form.digits, 2
    if form.rounds:
        sums, others = 2, 2 if _adds_bytes(form, target) else 5
    found = tuple(
        (m, n)
        for n in VECTORS
        for m in (ROUNDED_ROWS if form.rounds else ROWS)
        if m <= rows and n <= vectors and sums * m * n + n + others <= target.vector_registers
    )
    return found or ((1, 1),)


def _best_tile(context: _Context, tiles: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """The most sums of those that divide the columns.

    Of those alike, the most vectors. With one digit few sums are enough to hide how long an
    instruction takes, and the more rows share an unpacked field the better.
    """
    vectors = -(-context.columns // context.lanes)

    def worth(tile: tuple[int, int]) -> tuple[int, int, int]:
        m, n = tile
        if context.form.rounds:
            return vectors % n == 0, min(m * n, ENOUGH_SUMS), -abs(m - ENOUGH_SUMS)
        return vectors % n == 0, m * n, n

    return max(tiles, key=worth)


class _Candidates:
    """What is decided for n candidates."""

    def __init__(self, context: _Context, values: Values) -> None:
        self.context, self.values = context, values
        self.rows, self.vectors = values.pairs("tile")
        *outer, row, column = context.anchor.axes
        self.outer = [Loop(axis.name, axis.name, axis.extent) for axis in outer]
        self.columns = Loop(
            f"{column.name}.o", column.name, context.columns, self.vectors * context.lanes
        )
        self.row_tiles = Loop(f"{row.name}.o", row.name, row.extent, self.rows)
        self.parallel = [self.columns] if context.threads > 1 else []

    def steps(self) -> list[Step]:
        context, values = self.context, self.values
        output, anchor = context.kernel.output.name, context.anchor.name
        *outer, row, column = (axis.name for axis in context.anchor.axes)
        lanes, vectors = context.lanes, self.vectors.item()
        total = f"{anchor}.sum" if output == anchor else anchor
        steps: list[Step] = [DigitSums(context.form.digits), *self._packed(), *self._digits()]
        if output == anchor:
            steps.append(CacheWrite(output, total))
        steps += [
            Tile(output, column, vectors * lanes),
            Tile(output, f"{column}.i", lanes),
            Tile(output, row, self.rows.item()),
            Reorder(
                output,
                (
                    f"{column}.o",
                    *outer,
                    f"{row}.o",
                    f"{row}.i",
                    f"{column}.i.o",
                    f"{column}.i.i",
                ),
            ),
            Unroll(output, f"{row}.i"),
            Unroll(output, f"{column}.i.o"),
            Vectorize(output, f"{column}.i.i"),
            *parallel_steps(output, self.parallel, values.integers("chunks").item()),
            ComputeAt(total, output, f"{row}.o", "register"),
            Tile(total, column, lanes),
            Reorder(total, (*outer, "chunk", row, f"{column}.o", f"{column}.i")),
            Unroll(total, row),
            Unroll(total, f"{column}.o"),
            Vectorize(total, f"{column}.i"),
            ComputeAt("parts", total, "chunk", "register"),
        ]
        return [*steps, *self._sums(outer, row, column)]

    def _sums(self, outer: list[str], row: str, column: str) -> list[Step]:
        """The loops of the limb products over a chunk."""
        words, spatial = self.values.integers("words").item(), (*outer, "chunk")
        inner = ("field", row, "digit", f"{column}.o", f"{column}.i", "byte")
        return [
            Tile("parts", column, self.context.lanes),
            Tile("parts", "word", words),
            Reorder("parts", (*spatial, "word.o", "word.i", *inner)),
            Unroll("parts", "word.i"),
            *(Unroll("parts", axis) for axis in inner[:-2]),
            Vectorize("parts", inner[-2]),
            DotProduct("parts", "byte"),
        ]

    def _packed(self) -> list[Step]:
        """Weights, scales and zero points of a tile's columns side by side, streamed in order."""
        context, product = self.context, self.context.form.product
        width = context.lanes * self.vectors.item()
        if context.columns % width:
            width = context.lanes
        names = [product.weight.buffer, product.scale.buffer]
        names += [] if product.zero_point is None else [product.zero_point.buffer]
        constant = [name for name in names if context.kernel.buffer(name).constant]
        steps: list[Step] = [PackLayout(name, ((1, width),), (1, 0, 2)) for name in constant]
        ahead = self.values.integers("prefetch").item()
        # A stream of its own, a fifth of the bytes with blocks of 32: 0.92 to 0.95 of the time.
        streams = names[: 2 if product.block < product.inner else 1]
        if ahead:
            steps += [Prefetch(name, ahead) for name in streams if name in constant]
        return steps

    def _digits(self) -> list[Step]:
        """Units and digits, in vectors along the terms of a chunk."""
        context, lanes = self.context, self.context.lanes
        kernel, chunk = context.kernel, context.form.chunk
        parts = RowParts()
        for name in ("exponents", "low") if context.form.rounds else ("exponents", "low", "high"):
            stage = kernel.stage(name)
            axes = tuple(axis.name for axis in stage.axes)
            widths = split_widths(min(lanes, chunk), 1)
            reduction = RowReduction(name, "term", chunk, axes, ())
            split_reduction(parts, reduction, lanes, widths, False)
        steps: list[Step] = [*parts.made, *parts.loops]
        for part in reversed(parts.names):
            total = part.split(".")[0]
            if part != total:
                steps.append(ComputeAt(part, total, "chunk", "stack"))
        if context.form.rounds and context.form.chunks >= lanes:
            for name in ("reverse", "unit"):
                axes = tuple(axis.name for axis in kernel.stage(name).axes[:-1])
                steps += [
                    Tile(name, "chunk", lanes),
                    Reorder(name, (*axes, "chunk.o", "chunk.i")),
                    Vectorize(name, "chunk.i"),
                ]
        for name in ("digits",) if context.form.rounds else ("units", "digits"):
            axes = tuple(axis.name for axis in kernel.stage(name).axes[:-1])
            steps += [
                Tile(name, "term", lanes),
                Reorder(name, (*axes, "term.o", "term.i")),
                Unroll(name, "term.o"),
                Vectorize(name, "term.i"),
            ]
        return steps

    def _cycles(self, operations: Numbers, rows: Counts) -> Numbers:
        """Of so many dot products in tiles of these rows, shape [n]."""
        form, machine = self.context.form, self.context.target.machine.vectors
        fields = FIELD_OPERATIONS * (form.product.bits < DType.U8.bits) / (rows * form.digits)
        chunks = operations / (form.digits * form.chunk // BYTES)
        sums = chunks * (SUM_OPERATIONS + DIGIT_OPERATIONS * form.digits)
        return np.asarray(operations * (1 + fields) / machine.dot + sums / machine.fma, np.float64)

    def shape(self) -> NestShape:
        context, form, values = self.context, self.context.form, self.values
        anchor, lanes = context.kernel.stage("parts"), context.lanes
        *outer, row, column = context.anchor.axes
        names = [axis.name for axis in (*anchor.axes, *anchor.reduce_axes)]
        nest = Nest(names, values.count)
        words = np.minimum(values.integers("words"), form.chunk // form.in_word)
        rows = np.minimum(self.rows, row.extent)
        inside = {
            column.name: self.vectors * lanes,
            row.name: rows,
            "digit": np.int64(form.digits),
            "word": words,
            "field": np.int64(form.in_byte),
            "byte": np.int64(BYTES),
        }
        for name, extent in inside.items():
            nest.inside[names.index(name)] = extent
        nest.loop(Loop("word.o", "word", form.chunk // form.in_word, words))
        nest.loop(Loop("chunk", "chunk", form.chunks))
        nest.loop(self.row_tiles)
        for loop in reversed(self.outer):
            nest.loop(loop)
        nest.loop(self.columns)
        which = np.zeros(values.count, np.int64)
        pieces, grains = pieces_and_grains(values, [self.parallel], which, context.threads)
        step = np.asarray(rows * self.vectors * form.digits, np.float64)
        whole = prod(axis.extent for axis in outer) * row.extent
        dots = form.product.inner // BYTES * form.digits
        operations = np.full_like(step, float(whole * dots * -(-context.columns // lanes)))
        numbers = {name: number for number, name in enumerate(names)}
        return NestShape(
            operands=operands_of(context.kernel, [anchor, context.anchor], numbers),
            nest=nest,
            operations=operations,
            body=np.asarray(step * words * form.in_byte, np.float64),
            accumulators=step,
            registers=np.asarray(step + self.vectors + 2, np.float64),
            loads=np.asarray(rows * form.digits + self.vectors, np.float64),
            step=step,
            cycles=self._cycles(operations, rows),
            flops=2.0 * BYTES * lanes * operations,
            full=np.ones_like(step),
            lanes=np.full_like(step, context.columns / (-(-context.columns // lanes) * lanes)),
            aliased=np.ones_like(step),
            temporary=np.full_like(step, 9.0 * whole * form.product.inner),
            pieces=pieces,
            grains=grains,
        )
