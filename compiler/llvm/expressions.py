"""Expressions -> LLVM values: scalars, or vectors along the vectorised loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from compiler.dtypes import DType
from compiler.kernels.expr import (
    COMPARE_OPS,
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Select,
    Unary,
)
from compiler.llvm import scalar_ops
from compiler.llvm.addresses import Addresses
from compiler.llvm.math import VECTOR_FUNCTIONS, float_literal, vector_function
from compiler.llvm.registers import Registers
from compiler.llvm.writer import FunctionWriter, Value, suffix_of, type_of
from compiler.loops.affine import Affine, affine, decide
from compiler.loops.rewrite import axes_of

CACHE_LINE = 64  # bytes that one prefetch brings; a power of two divides or repeats it elsewhere


@dataclass(frozen=True, slots=True)
class Lane:
    """The vectorised loop that surrounds a statement: its variable and the number of elements."""

    variable: str
    width: int


def literal(value: int | float | bool, dtype: DType) -> str:
    """An LLVM literal."""
    if dtype.is_float:
        return float_literal(float(value), dtype)
    if dtype is DType.BOOL:
        return "true" if value else "false"
    return str(int(value))


class ExpressionEmitter:
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
        has_fma: bool,
        prefetches: Mapping[str, int],
    ) -> None:
        self.writer = writer
        self.registers = registers
        self.addresses = addresses
        self.has_fma = has_fma
        self.prefetches = prefetches  # elements ahead, by buffer
        self.lane: Lane | None = None
        self.mask: Value | None = None
        # The lanes that the statement is for, if not all; the first one always is.
        self.active: Value | None = None
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

    def widen(self, value: Value, width: int) -> Value:
        """A splat of a scalar; vectors stay."""
        if value.width or not width:
            return value
        if not value.text.startswith("%"):
            return Value(f"splat ({value.typed})", value.dtype, width)
        key = ("splat", value.text, width)
        known = self.writer.lookup_value(key)
        if known is not None:
            return known
        type_name = type_of(value.dtype, width)
        first = self.writer.emit(f"insertelement {type_name} poison, {value.typed}, i64 0")
        lanes = f"<{width} x i32> zeroinitializer"
        splat = self.writer.emit(f"shufflevector {type_name} {first}, {type_name} poison, {lanes}")
        result = Value(splat, value.dtype, width)
        self.addresses.remember(key, result)
        return result

    def common(self, *values: Value) -> tuple[Value, ...]:
        """All scalars, or all vectors of one width."""
        width = max(value.width for value in values)
        return tuple(self.widen(value, width) for value in values)

    def depends_on_lane(self, expr: Expr) -> bool:
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
            return self._load_scalar(node, form)
        stride = form.coefficient(self.lane.variable)
        if any(self.depends_on_lane(atom) for atom, _ in form.terms if not isinstance(atom, str)):
            return self._per_lane(node)
        if stride == 0:
            if self.mask is not None and self.mask.width:
                return self._load_any_lane(node, form)
            return self._load_scalar(node, form)
        if stride != 1 or node.dtype is DType.BOOL:
            return self._per_lane(node)
        return self._load_contiguous(node, form, self.lane)

    def _load_scalar(self, node: Load, form: Affine) -> Value:
        held = self.registers.get(node.buffer, form, 0)
        if held is not None:
            return held
        key = (node.buffer, form.constant, form.terms)
        keeps = self.mask is None and all(isinstance(atom, str) for atom, _ in form.terms)
        if keeps and (known := self.addresses.recall(node.buffer, key)) is not None:
            return known
        if self.mask is None:
            pointer = self.addresses.pointer(node.buffer, form)
        else:
            pointer = self.addresses.guarded_pointer(node.buffer, form, self.mask)
        result = self._load_at(pointer, node.dtype)
        if keeps:
            self.addresses.keep(node.buffer, key, result)
            self.registers.keep(node.buffer, form, result)
        return result

    def _load_at(self, pointer: str, dtype: DType) -> Value:
        if dtype is DType.BOOL:
            byte = self.writer.emit(f"load i8, ptr {pointer}, align 1")
            return Value(self.writer.emit(f"icmp ne i8 {byte}, 0"), dtype, 0)
        name = self.writer.emit(f"load {type_of(dtype, 0)}, ptr {pointer}, align {dtype.bytes}")
        return Value(name, dtype, 0)

    def _load_contiguous(self, node: Load, form: Affine, lane: Lane) -> Value:
        start = self.addresses.ranges[lane.variable][0]
        rest = tuple(term for term in form.terms if term[0] != lane.variable)
        first = Affine(form.constant + start, rest)
        held = self.registers.get(node.buffer, first, lane.width)
        if held is not None:
            return held
        key = (node.buffer, form.constant, form.terms, lane.width)
        keeps = self.mask is None and all(isinstance(atom, str) for atom, _ in form.terms)
        if keeps and (known := self.addresses.recall(node.buffer, key)) is not None:
            return known
        pointer = self.addresses.pointer(node.buffer, first)
        type_name = type_of(node.dtype, lane.width)
        mask = self._lanes_of(node)
        if mask is None:
            name = self.writer.emit(f"load {type_name}, ptr {pointer}, align {node.dtype.bytes}")
            result = Value(name, node.dtype, lane.width)
            if node.buffer in self.prefetches:
                self._prefetch(node, pointer, form.constant)
            if keeps:
                self.addresses.keep(node.buffer, key, result)
                self.registers.keep(node.buffer, first, result)
            return result
        return self.masked_load(pointer, self.widen(mask, lane.width), node.dtype)

    def masked_load(self, pointer: str, mask: Value, dtype: DType) -> Value:
        """A vector of the elements whose mask is set, 0 for the others."""
        type_name = type_of(dtype, mask.width)
        name = self.writer.intrinsic(
            f"llvm.masked.load.{suffix_of(dtype, mask.width)}.p0",
            type_name,
            [f"ptr align {dtype.bytes} {pointer}", mask.typed, f"{type_name} zeroinitializer"],
        )
        return Value(name, dtype, mask.width)

    def _lanes_of(self, node: Load) -> Value | None:
        """The mask for a vector load: what a select and a masked tile leave of the lanes."""
        active = self.active
        if active is not None and self.lane is not None:
            shape = self.addresses.storages[node.buffer].memory.shape
            whole = Index(DType.I64, self.lane.variable) == node.indices[-1]
            if whole and shape[-1] >= self.lane.width:
                active = None  # a row of a padded buffer: all of its elements exist
        return self._both(self.mask, active)

    def _both(self, mask: Value | None, other: Value | None) -> Value | None:
        if mask is None or other is None:
            return other if mask is None else mask
        return scalar_ops.binary(self.writer, "and", *self.common(mask, other))

    def _prefetch(self, node: Load, pointer: str, offset: int) -> None:
        """Ask for what lies ahead of a vector, once for each cache line."""
        if offset * node.dtype.bytes % CACHE_LINE:
            return
        ahead = self.prefetches[node.buffer] * node.dtype.bytes
        # Not "inbounds": what lies ahead of the last vector is nobody's.
        target = self.writer.emit(f"getelementptr i8, ptr {pointer}, i64 {ahead}")
        self.writer.call("llvm.prefetch.p0", [f"ptr {target}", "i32 0", "i32 3", "i32 1"])

    def _load_any_lane(self, node: Load, form: Affine) -> Value:
        """A load whose address is the same for all lanes, needed if any lane's mask is set."""
        assert self.mask is not None
        mask = self.mask
        any_set = self.writer.intrinsic(
            f"llvm.vector.reduce.or.v{mask.width}i1", "i1", [mask.typed]
        )
        self.mask = Value(any_set, DType.BOOL, 0)
        try:
            return self._load_scalar(node, form)
        finally:
            self.mask = mask

    def _per_lane(self, node: Expr) -> Value:
        """Evaluate the node once per lane as a scalar and collect the results."""
        assert self.lane is not None
        lane, outer, memo = self.lane, self.mask, self._memo
        mask = self._both(outer, self.active)
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
        x = self.value(node.operand)
        if x.dtype is DType.F32 and node.op in VECTOR_FUNCTIONS:
            return vector_function(self.writer, node.op, x, self.has_fma)
        return scalar_ops.unary(self.writer, node.op, x)

    def _binary(self, node: Binary) -> Value:
        if node.left.dtype is DType.I64 and node.op not in COMPARE_OPS:
            form = affine(node, self.addresses.ranges)
            if form.is_constant:
                return Value(str(form.constant), DType.I64, 0)
        left, right = self.common(self.value(node.left), self.value(node.right))
        return scalar_ops.binary(self.writer, node.op, left, right)

    def _cast(self, node: Cast) -> Value:
        return scalar_ops.cast(self.writer, self.value(node.operand), node.dtype)

    def _select(self, node: Select) -> Value:
        verdict = decide(node.condition, self.addresses.ranges)
        if verdict is not None:
            return self.value(node.then if verdict else node.otherwise)
        condition = self.value(node.condition)
        then = self._under(condition, node.then)
        otherwise = node.otherwise
        if isinstance(otherwise, Const):
            other = self.value(otherwise)
        else:
            one = Value("true", DType.BOOL, 0)
            flipped = scalar_ops.binary(self.writer, "xor", *self.common(condition, one))
            other = self._under(flipped, otherwise)
        if not condition.width and not then.width and not other.width:
            width_values: tuple[Value, ...] = (then, other)
        else:
            width = max(condition.width, then.width, other.width)
            width_values = (self.widen(then, width), self.widen(other, width))
            condition = self.widen(condition, width)
        then, other = width_values
        name = self.writer.emit(f"select {condition.typed}, {then.typed}, {other.typed}")
        return Value(name, node.dtype, then.width)

    def _under(self, condition: Value, expr: Expr) -> Value:
        """The value of `expr` where `condition` holds; its loads are guarded by it."""
        if isinstance(expr, Const):
            return self.value(expr)
        outer = self.mask
        if outer is not None:
            condition = scalar_ops.binary(self.writer, "and", *self.common(outer, condition))
        self.mask = condition
        memo, self._memo = self._memo, {}
        try:
            return self.value(expr)
        finally:
            self.mask, self._memo = outer, memo
