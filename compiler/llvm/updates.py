"""Updates of sums and other results: each reads what is there, combines and writes it."""

from __future__ import annotations

from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.expr.affine import Affine, Ranges, affine, decide
from tunefarm.compiler.expr.combiners import COMBINERS, neutral_element
from tunefarm.compiler.expr.instructions import literal, suffix_of
from tunefarm.compiler.expr.nodes import Binary, Const, Expr, Load, Select, all_of
from tunefarm.compiler.llvm import scalar_ops
from tunefarm.compiler.llvm.addresses import Addresses
from tunefarm.compiler.llvm.dot_products import DotEmitter
from tunefarm.compiler.llvm.expressions import ExpressionEmitter
from tunefarm.compiler.llvm.half_floats import widened_sum
from tunefarm.compiler.llvm.results import ResultEmitter
from tunefarm.compiler.llvm.shuffles import prefixes
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.loops.ir import Carry, Dot, For, LoopKind, Store, Update
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.frozen import frozen


class UpdateEmitter:
    """Emits statements that change a result, for the lane of the loop round them."""

    def __init__(
        self,
        writer: FunctionWriter,
        expressions: ExpressionEmitter,
        results: ResultEmitter,
        dots: DotEmitter,
        target: Target,
    ) -> None:
        self.writer = writer
        self.expressions = expressions
        self.results = results
        self.dots = dots
        self.target = target

    def emit(self, statement: Update | Dot | Carry) -> None:
        """One statement; `begin_statement` has told the expressions of the loop round it."""
        match statement:
            case Update():
                self._update(statement)
            case Dot():
                self._dot(statement)
            case Carry():
                self._carry(statement)

    def _update(self, statement: Update) -> None:
        expressions = self.expressions
        form = self.results.place_of(statement)
        if form is None:
            raise LoweringError("a vectorised reduction must be contiguous in its result")
        old = self.results.read(statement.buffer, form, self._width)
        guards, term = self._guarded(statement)
        product = self._product(statement.combiner, term)
        if product is None:
            value, old = expressions.common(expressions.vector(statement.value), old)
            constant = neutral_element(statement.combiner, old.dtype)
            neutral = literal(constant.value, old.dtype, old.width)
            keeps_zero = statement.combiner == "sum" and self.writer.fixed_rounding  # 0 + -0 is 0
            if neutral in (old.text, value.text) and not keeps_zero:  # first, or beyond the end
                combined = value if old.text == neutral else old
            else:
                operation = COMBINERS[statement.combiner].operation
                combined = scalar_ops.binary(self.writer, operation, old, value)
        elif (widened := self._widened(product, old)) is not None:
            combined = widened
        elif guards:
            condition = expressions.value(all_of(*guards))
            with expressions.under(condition, term):
                added = self._fused(product, old)
            added, old, condition = expressions.common(added, old, condition)
            name = self.writer.emit(f"select {condition.typed}, {added.typed}, {old.typed}")
            combined = Value(name, old.dtype, old.width)
        else:
            combined = self._fused(product, old)
        self.results.put(statement, form, combined)

    def _fused(self, product: tuple[Expr, Expr], old: Value) -> Value:
        """The sum with the product added, rounded once."""
        common = self.expressions.common
        left, right, old = common(*map(self.expressions.vector, product), old)
        operands = [left.typed, right.typed, old.typed]
        name = self.writer.intrinsic(
            f"llvm.fma.{suffix_of(old.dtype, old.width)}", old.type, operands
        )
        return Value(name, old.dtype, old.width)

    def _guarded(self, statement: Update) -> tuple[list[Expr], Expr]:
        """Of a sum in which products round once: when there is a term, which is 0 else, and it."""
        guards, value = [], statement.value
        while (
            self.writer.fixed_rounding
            and isinstance(value, Select)
            and isinstance(value.otherwise, Const)
            and value.otherwise.value == 0
        ):
            guards.append(value.condition)
            value = value.then
        return guards, value

    def _dot(self, statement: Dot) -> None:
        form = self.results.place_of(statement)
        if form is None:
            raise LoweringError("a vectorised dot product must be contiguous in its result")
        old = self.results.read(statement.buffer, form, self._width)
        self.results.put(statement, form, self.dots.sum(statement, old, self.expressions.lane))

    @property
    def _width(self) -> int:
        """Elements that the lanes of the loop round the statement hold; 0 for one alone."""
        lane = self.expressions.lane
        return 0 if lane is None else lane.width

    def _product(self, combiner: str, value: Expr) -> tuple[Expr, Expr] | None:
        """The factors of a sum's term, where the target multiplies and adds in one instruction."""
        fused = combiner == "sum" and self.target.has_fma
        if fused and value.dtype.is_float and isinstance(value, Binary) and value.op == "mul":
            return value.left, value.right
        return None

    def _widened(self, product: tuple[Expr, Expr], old: Value) -> Value | None:
        """A sum with a product of f16 added, where the target has an instruction for that."""
        if not self.target.widens_half_floats:
            return None
        return widened_sum(self.writer, self.expressions.vector, product, old)

    def _carry(self, statement: Carry) -> None:
        """The update, and what it gives; lanes that share one carried value are scanned."""
        update, lane = statement.update, self.expressions.lane
        operation = COMBINERS[update.combiner].operation
        place = self.results.addresses.of(update)
        if lane is None or place.coefficient(lane.variable) == 1:
            form = self.results.place_of(update)
            assert form is not None
            old = self.results.read(update.buffer, form, self._width)
            new = scalar_ops.binary(
                self.writer, operation, old, self.expressions.vector(update.value)
            )
            self.results.put(update, form, new)
            self.results.write(statement, old if statement.exclusive else new)
            return
        if place.coefficient(lane.variable) or self.expressions.active is not None:
            raise LoweringError("a scanned vector shares one carried value, and has all its lanes")
        value = self.expressions.vector(update.value)
        neutral = neutral_element(update.combiner, value.dtype)
        prefix, last = prefixes(self.writer, operation, value, neutral, statement.exclusive)
        old = self.results.read(update.buffer, place, 0)
        self.results.put(update, place, scalar_ops.binary(self.writer, operation, old, last))
        carried = self.expressions.widen(old, lane.width)
        self.results.write(statement, scalar_ops.binary(self.writer, operation, carried, prefix))


# --- Loops that copy adjacent elements, which one call of memmove does ---------------------------
#
# Beyond what first-level caches hold, the C library copies with instructions of the CPU's own that
# do not read what they overwrite: a third of the traffic.


LEAST_BYTES = 32 * 1024  # below, a call costs more than it saves


@frozen
class Copy:
    """Adjacent elements of one buffer that go to another, from the forms' values on."""

    source: str
    target: str
    read: Affine
    written: Affine
    bytes: int


def copy_of(loop: For, addresses: Addresses) -> Copy | None:
    """What the serial loop copies as a whole; None where it does anything else, or too little."""
    loops = [loop]
    while len(loops[-1].body) == 1 and isinstance(loops[-1].body[0], For):
        loops.append(loops[-1].body[0])
    (statement, *others) = loops[-1].body
    if others or not isinstance(statement, Store) or not all(i.is_whole for i in loops):
        return None
    memory = addresses.storages[statement.buffer].memory
    count = 1
    for inner in loops:
        count *= inner.stop - inner.start
    if count * memory.dtype.bytes < LEAST_BYTES:
        return None
    ranges = {**addresses.ranges, **{i.variable: (i.start, i.stop - 1) for i in loops}}
    load = _chosen(statement.value, ranges)
    if not isinstance(load, Load) or any(i.kind is LoopKind.PARALLEL for i in loops):
        return None
    written = _start(statement.buffer, statement.indices, loops, addresses, ranges)
    read = _start(load.buffer, load.indices, loops, addresses, ranges)
    if written is None or read is None:
        return None
    return Copy(load.buffer, statement.buffer, read, written, count * memory.dtype.bytes)


def emit_copy(writer: FunctionWriter, addresses: Addresses, copy: Copy) -> None:
    """The call; buffers may be one, as where a kernel works in place."""
    addresses.written(copy.target)
    to = addresses.pointer(copy.target, copy.written)
    source = addresses.pointer(copy.source, copy.read)
    operands = [f"ptr {to}", f"ptr {source}", f"i64 {copy.bytes}", "i1 false"]
    writer.call("llvm.memmove.p0.p0.i64", operands)


def _chosen(value: Expr, ranges: Ranges) -> Expr:
    """The side that selects by position take everywhere in the loops."""
    while isinstance(value, Select):
        verdict = decide(value.condition, ranges)
        if verdict is None:
            return value
        value = value.then if verdict else value.otherwise
    return value


def _start(
    buffer: str,
    indices: tuple[Expr, ...],
    loops: list[For],
    addresses: Addresses,
    ranges: Ranges,
) -> Affine | None:
    """Where the loops begin in a buffer whose elements they walk one after the other."""
    form, stride = Affine(0, ()), 1
    shape = addresses.storages[buffer].memory.shape
    if addresses.storages[buffer].memory.pitch is not None:
        return None
    for extent, item in zip(reversed(shape), reversed(indices), strict=True):
        form = form.plus(affine(item, ranges), stride)
        stride *= extent
    if form.divisions:
        return None
    step = 1
    for loop in reversed(loops):
        if loop.stop - loop.start == 1:
            continue
        if form.coefficient(loop.variable) != step:
            return None
        form = form.plus(Affine(-loop.start, ((loop.variable, 1),)), -step)
        step *= loop.stop - loop.start
    return form
