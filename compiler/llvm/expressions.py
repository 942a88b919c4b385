"""Expressions -> LLVM values: scalars, or vectors along the vectorised loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tunefarm.compiler.expr.affine import (
    Affine,
    Atom,
    Ranges,
    affine,
    affine_range,
    decide,
    expr_range,
)
from tunefarm.compiler.expr.instructions import literal, type_of
from tunefarm.compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Select,
    Unary,
    index,
)
from tunefarm.compiler.expr.parts import Quantised, float_bounds, quantised_parts
from tunefarm.compiler.expr.walk import axes_of, loads
from tunefarm.compiler.llvm import scalar_ops
from tunefarm.compiler.llvm.addresses import Addresses
from tunefarm.compiler.llvm.byte_tables import ENTRIES, ByteTables, WordTables
from tunefarm.compiler.llvm.half_floats import HalfEmitter
from tunefarm.compiler.llvm.loads import Lane, LoadEmitter
from tunefarm.compiler.llvm.registers import Registers
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.types.dtypes import DType


class ExpressionEmitter(LoadEmitter):
    """Emits expressions at the writer's current point.

    `lane` is None for scalar code. Under a `mask` (the condition of a select whose other side may
    be out of range) loads are guarded. One instance per function; `begin_statement` forgets the
    values of the statement before.
    """

    def __init__(
        self,
        writer: FunctionWriter,
        addresses: Addresses,
        registers: Registers,
        prefetches: Mapping[str, int],
        has_gather: bool,
        tables: ByteTables,
        rounding: frozenset[int] = frozenset(),
        has_half_floats: bool = False,
    ) -> None:
        super().__init__(writer, addresses, registers, prefetches)
        self.tables = tables
        self.words = WordTables(writer)
        self.rounding = rounding  # widths of vectors whose conversions to integers round
        self.has_gather = has_gather
        self.halves = HalfEmitter(writer, self.value, self.common) if has_half_floats else None
        # By identity, with the expression itself so that no identity is used again.
        self._memo: dict[int, tuple[Expr, Value]] = {}
        self._axes: dict[int, tuple[Expr, frozenset[str]]] = {}
        self._rules: dict[type[Expr], Callable[[Any], Value]] = {
            Const: self._const,
            Index: self._index,
            Load: self._load,
            Unary: self._unary,
            Binary: self._binary,
            Select: self._select,
            Cast: self._cast,
        }

    def begin_statement(self, lane: Lane | None) -> None:
        """Forget what belongs to the last statement; `lane` is the vector loop around the new
        one."""
        self.lane = lane
        self.mask = None
        self._memo.clear()

    def value(self, expr: Expr) -> Value:
        """The value of `expr`; a scalar where it does not depend on the lane."""
        known = self._memo.get(id(expr))
        if known is not None:
            return known[1]
        value = self._rules[type(expr)](expr)
        if self.mask is None:
            self._memo[id(expr)] = expr, value
        return value

    def vector(self, expr: Expr) -> Value:
        """The value of `expr`, widened to the lane's width if there is a lane."""
        value = self.value(expr)
        return value if self.lane is None else self.widen(value, self.lane.width)

    def vector_at(self, expr: Expr, variable: str, value: int) -> Value:
        """The value of `expr`, as wide as the lane, where a variable that is no loop's has this."""
        memo, self._memo = self._memo, {}
        try:
            with self.addresses.fixed(variable, value):
                return self.vector(expr)
        finally:
            self._memo = memo

    def depends_on_lane(self, expr: Expr) -> bool:
        """Whether the lanes of a vector may have different values of it."""
        if self.lane is None:
            return False
        known = self._axes.get(id(expr))
        if known is None:
            known = self._axes[id(expr)] = expr, frozenset(axes_of(expr))
        return self.lane.variable in known[1]

    # Leaves --------------------------------------------------------------------------------------

    def _const(self, node: Const) -> Value:
        return Value(literal(node.value, node.dtype), node.dtype, 0)

    def _index(self, node: Index) -> Value:
        if self.lane is not None and node.name == self.lane.variable:
            start = self.addresses.ranges[node.name][0]
            lanes = ", ".join(f"i64 {start + i}" for i in range(self.lane.width))
            return Value(f"<{lanes}>", DType.I64, self.lane.width)
        return Value(self.addresses.variable(node.name), DType.I64, 0)

    def _load(self, node: Load) -> Value:
        form = self.addresses.of(node)
        if self.lane is None:
            return self.load_scalar(node, form)
        stride = form.coefficient(self.lane.variable)
        is_simple = self.split(form, self.lane.variable).is_simple
        if not is_simple and any(
            self.depends_on_lane(atom) for atom, _ in form.terms if not isinstance(atom, str)
        ):
            found = self._looked_up(node) or self.load_columns(node, form)
            found = found or self.load_pattern(node, form)
            return found or self._load_scattered(node, form)
        if stride == 0:
            if self.mask is not None and self.mask.width:
                return self.load_any_lane(node, form)
            return self.load_scalar(node, form)
        if stride == 1:
            return self.load_contiguous(node, form, self.lane)
        rearranged = self.load_column(node, form, stride) or self.load_pattern(node, form)
        return rearranged or self._load_scattered(node, form)

    def _looked_up(self, node: Load) -> Value | None:
        """A load from a table by the bytes of a vector, if the target has instructions for it."""
        assert self.lane is not None
        memory, first = self.addresses.storages[node.buffer].memory, node.indices[0]
        is_table = memory.shape == (ENTRIES,) and node.dtype in (DType.U8, DType.I8)
        if not is_table or not isinstance(first, Cast) or first.operand.dtype is not DType.U8:
            return None
        bits = first.operand.operand if isinstance(first.operand, Cast) else first.operand
        if not self.tables.serves(self.lane.width, isinstance(bits, Load)):
            return None
        pointer = self.addresses.pointer(node.buffer, Affine(0, ()))
        return self.tables.looked_up(pointer, self.vector(first.operand), node.dtype)

    def _load_scattered(self, node: Load, form: Affine) -> Value:
        """Elements anywhere: by the positions of all lanes at once, if the target can."""
        assert self.lane is not None
        loose = [
            (atom, c)
            for atom, c in form.terms
            if not isinstance(atom, str) and self.depends_on_lane(atom)
        ]
        if not loose or not self.has_gather or not self.can_gather(node):
            return self._per_lane(node)
        lane = self.lane
        stride = form.coefficient(lane.variable)
        outer = tuple(t for t in form.terms if t not in loose and t[0] != lane.variable)
        positions = self.vector(index(lane.variable))
        total = self._times(positions, stride) if stride else None
        for atom, coefficient in loose:
            term = self._times(self.vector(atom), coefficient)
            total = term if total is None else scalar_ops.binary(self.writer, "add", total, term)
        assert total is not None
        pointer = self.addresses.pointer(node.buffer, Affine(form.constant, outer))
        words = self._table_words(node, form, loose)
        if words and self.words.serves(node.dtype, lane.width, words):
            picks = scalar_ops.cast(self.writer, self.widen(total, lane.width), DType.I32)
            return self.words.looked_up(pointer, words, picks, node.dtype)
        return self.gather(node, pointer, total)

    def _table_words(self, node: Load, form: Affine, loose: Sequence[tuple[Atom, int]]) -> int:
        """How many elements from the pointer on the lanes may read; 0 if memory may end before.

        Where a mask leaves lanes out, other rows than that of the first lane may not be there.
        """
        assert self.lane is not None
        memory, ranges = self.addresses.storages[node.buffer].memory, self.addresses.ranges
        spans = [_scaled(_clamped_range(atom, ranges), factor) for atom, factor in loose]
        lane = (self.lane.variable, form.coefficient(self.lane.variable))
        spans.append(affine_range(Affine(0, (lane,)), ranges))
        rest = tuple(term for term in form.terms if term not in loose and term != lane)
        low, high = (sum(ends) for ends in zip(*spans, strict=True))
        begin, end = affine_range(Affine(form.constant, rest), ranges)
        is_inside = memory.pitch is None and begin >= 0 and end + high < memory.type.size
        if self.mask is not None or self.active is not None:
            is_inside &= len(memory.shape) > 1 and high < memory.shape[-1]
        return high + 1 if low >= 0 and is_inside else 0

    def _times(self, value: Value, factor: int) -> Value:
        if factor == 1:
            return value
        other = Value(literal(factor, DType.I64, value.width), DType.I64, value.width)
        return scalar_ops.binary(self.writer, "mul", value, other)

    def _per_lane(self, node: Expr) -> Value:
        """Evaluate the node once per lane as a scalar and collect the results."""
        assert self.lane is not None
        lane, outer, memo = self.lane, self.mask, self._memo
        mask = self.both(outer, self.active)
        start = self.addresses.ranges[lane.variable][0]
        type_name = type_of(node.dtype, lane.width)
        result = "poison"
        for i in range(lane.width):
            self.lane, self._memo = None, {}
            if mask is not None and mask.width:
                bit = self.writer.emit(f"extractelement {mask.typed}, i64 {i}")
                self.mask = Value(bit, DType.BOOL, 0)
            with self.addresses.fixed(lane.variable, start + i):
                element = self.value(node)
            result = self.writer.emit(
                f"insertelement {type_name} {result}, {element.typed}, i64 {i}"
            )
        self.lane, self.mask, self._memo = lane, outer, memo
        return Value(result, node.dtype, lane.width)

    # Operations ----------------------------------------------------------------------------------

    def _unary(self, node: Unary) -> Value:
        return scalar_ops.unary(self.writer, node.op, self.value(node.operand))

    def _binary(self, node: Binary) -> Value:
        if node.dtype is DType.I64:
            form = affine(node, self.addresses.ranges)
            if form.is_constant:
                return Value(str(form.constant), DType.I64, 0)
            if node.op in ("floordiv", "mod") and isinstance(node.right, Const):
                return self._constant_lanes(form) or self._divided(node)
        left, right = self.common(self.value(node.left), self.value(node.right))
        return scalar_ops.binary(self.writer, node.op, left, right)

    def _constant_lanes(self, form: Affine) -> Value | None:
        """An index of which only the lane decides: numbers known now, (16 i + lane) mod 2."""
        expr, lane = form.to_expr(), self.lane
        if lane is None or axes_of(expr) != {lane.variable} or loads(expr):
            return None
        start = self.addresses.ranges[lane.variable][0]
        places = range(start, start + lane.width)
        numbers = [affine(expr, {lane.variable: (at, at)}).constant for at in places]
        text = ", ".join(f"i64 {number}" for number in numbers)
        return Value(f"<{text}>", DType.I64, lane.width)

    def _divided(self, node: Binary) -> Value:
        """An index divided by a literal: in 32 bits, without signs, where both fit into those.

        Vectors of 64-bit integers have no division on any CPU, and no product's upper half.
        """
        left, right = self.common(self.value(node.left), self.value(node.right))
        bounds = [expr_range(side, self.addresses.ranges) for side in (node.left, node.right)]
        if not left.width or any(low < 0 or high >= 1 << 31 for low, high in bounds):
            return scalar_ops.binary(self.writer, node.op, left, right)
        narrow = (scalar_ops.cast(self.writer, side, DType.U32) for side in (left, right))
        return scalar_ops.cast(
            self.writer, scalar_ops.binary(self.writer, node.op, *narrow), DType.I64
        )

    def _cast(self, node: Cast) -> Value:
        parts = quantised_parts(node.operand) if node.dtype in (DType.U8, DType.I8) else None
        if parts is not None and self.lane is not None and self.lane.width in self.rounding:
            value = self.value(parts.value)
            if value.width == self.lane.width:
                return self._quantised(parts, value, node.dtype)
        if self.halves is not None and node.dtype is DType.F16 and node.operand.dtype is DType.F32:
            half = self.halves.rounded(node.operand)
            if half is not None:
                return half
        value = self.value(node.operand)
        if node.operand.dtype.is_float and node.dtype.is_integer and value.width:
            low, high = float_bounds(node.operand)
            if low >= -scalar_ops.SMALL and high <= scalar_ops.SMALL:
                return scalar_ops.cast_small(self.writer, value, node.dtype)
        return scalar_ops.cast(self.writer, value, node.dtype)

    def _quantised(self, parts: Quantised, value: Value, to: DType) -> Value:
        """Clipped, then rounded by the conversion: what is clipped at integers stays so.

        Clipped again as integers, it is narrowed by instructions that saturate, where those are
        what the target has.
        """
        width, offset = value.width, parts.offset
        for op, bound in (("max", parts.low - offset), ("min", parts.high - offset)):
            limit = Value(literal(bound, DType.F32, width), DType.F32, width)
            value = scalar_ops.binary(self.writer, op, value, limit)
        result = scalar_ops.rounded(self.writer, value)

        def apply(op: str, number: int) -> Value:
            other = Value(literal(number, DType.I32, width), DType.I32, width)
            return scalar_ops.binary(self.writer, op, result, other)

        if offset:
            result = apply("add", offset)
        if not self.writer.has_avx512:
            result = apply("max", to.limits[0])
            result = apply("min", to.limits[1])
        return scalar_ops.cast(self.writer, result, to)

    def _select(self, node: Select) -> Value:
        verdict = decide(node.condition, self.addresses.ranges)
        if verdict is not None:
            return self.value(node.then if verdict else node.otherwise)
        condition = self.value(node.condition)
        then = self._under(condition, node.then)
        if isinstance(node.otherwise, Const):
            other = self.value(node.otherwise)
        else:
            one = Value("true", DType.BOOL, 0)
            flipped = scalar_ops.binary(self.writer, "xor", *self.common(condition, one))
            other = self._under(flipped, node.otherwise)
        then, other, condition = self.common(then, other, condition)
        name = self.writer.emit(f"select {condition.typed}, {then.typed}, {other.typed}")
        return Value(name, node.dtype, then.width)

    def _is_safe(self, expr: Expr) -> bool:
        """Whether all loads of `expr` are within their buffers wherever the loops are."""
        return all(map(self.addresses.is_inside, loads(expr)))

    def _under(self, condition: Value, expr: Expr) -> Value:
        """The value of `expr` where `condition` holds; its loads are guarded by it if need be."""
        with self.under(condition, expr):
            return self.value(expr)

    @contextmanager
    def under(self, condition: Value, expr: Expr) -> Iterator[None]:
        """Within, `condition` holds, and guards the loads of `expr` if need be."""
        if isinstance(expr, Const) or self._is_safe(expr):
            yield
            return
        outer = self.mask
        if outer is not None:
            condition = scalar_ops.binary(self.writer, "and", *self.common(outer, condition))
        self.mask = condition
        memo, self._memo = self._memo, {}
        try:
            yield
        finally:
            self.mask, self._memo = outer, memo


def _clamped_range(atom: Atom, ranges: Ranges) -> tuple[int, int]:
    """Smallest and largest value of what is no variable, also of a clamped narrow integer."""
    match atom:
        case Cast(
            operand=Binary(
                op="max",
                left=Binary(op="min", right=Const(value=most)),
                right=Const(value=least),
                dtype=DType.I32,
            )
        ):
            return int(least), max(int(least), int(most))
    assert not isinstance(atom, str)
    return expr_range(atom, ranges)


def _scaled(span: tuple[int, int], factor: int) -> tuple[int, int]:
    low, high = sorted(factor * end for end in span)
    return low, high
