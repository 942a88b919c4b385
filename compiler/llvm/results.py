"""Where statements read and write their results: registers where known, else memory."""

from __future__ import annotations

from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.expr.affine import Affine, expr_range
from tunefarm.compiler.expr.instructions import suffix_of, type_of
from tunefarm.compiler.llvm.addresses import Addresses
from tunefarm.compiler.llvm.expressions import ExpressionEmitter
from tunefarm.compiler.llvm.loads import Lane
from tunefarm.compiler.llvm.registers import Registers
from tunefarm.compiler.llvm.shuffles import first_lanes, reversed_lanes, shuffle
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.loops.ir import Carry, Dot, Store, Update
from tunefarm.compiler.types.dtypes import DType

ASIDE_ALIGNMENT = 64  # of the place for elements that nothing reads


class ResultEmitter:
    """Emits reads and writes of results, by the lane and the mask of the statement at hand.

    `one_active`: the mask is known to leave nothing but the first lane.
    """

    def __init__(
        self,
        writer: FunctionWriter,
        addresses: Addresses,
        registers: Registers,
        expressions: ExpressionEmitter,
    ) -> None:
        self.writer = writer
        self.addresses = addresses
        self.registers = registers
        self.expressions = expressions
        self.one_active = False

    def place_of(self, statement: Store | Update | Dot | Carry) -> Affine | None:
        """Where an access to the result begins; None: one address per lane."""
        form, lane = self.addresses.of(statement), self.expressions.lane
        if lane is None:
            return form
        if form.coefficient(lane.variable) != 1:
            return None
        start = self.addresses.ranges[lane.variable][0]
        rest = tuple(term for term in form.terms if term[0] != lane.variable)
        return Affine(form.constant + start, rest)

    def write(self, statement: Store | Carry, value: Value) -> None:
        """Emit a statement that writes a value."""
        form = self.place_of(statement)
        if form is not None:
            self.put(statement, form, value)
            return
        lane, active = self.expressions.lane, self.expressions.active
        assert lane is not None
        if self._write_reversed(statement, value, lane):
            return
        if active is not None and self.registers.holds(statement.buffer):
            raise LoweringError("a masked tile must be contiguous in a local buffer")
        start = self.addresses.ranges[lane.variable][0]
        for i in range(lane.width):
            element = self.writer.emit(f"extractelement {value.typed}, i64 {i}")
            with self.addresses.fixed(lane.variable, start + i):
                form = self.addresses.of(statement)
                scalar = Value(element, value.dtype, 0)
                if active is None:
                    self.put(statement, form, scalar)
                else:
                    self._put_aside(statement, form, scalar, f"{active.typed}, i64 {i}")

    def _put_aside(self, statement: Store | Carry, form: Affine, value: Value, active: str) -> None:
        """Store an element if its lane is active, else where nothing reads it: no branch."""
        self.addresses.written(statement.buffer)
        writer, stored = self.writer, value
        if value.dtype is DType.BOOL:
            stored = Value(writer.emit(f"zext {value.typed} to i8"), DType.U8, 0)
        aside = writer.emit_entry(f"alloca {stored.type}, align {ASIDE_ALIGNMENT}")
        bit = writer.emit(f"extractelement {active}")
        pointer = self.addresses.pointer(statement.buffer, form)
        target = writer.emit(f"select i1 {bit}, ptr {pointer}, ptr {aside}")
        writer.line(f"store {stored.typed}, ptr {target}, align {stored.dtype.bytes}")

    def _write_reversed(self, statement: Store | Carry, value: Value, lane: Lane) -> bool:
        """Store a vector whose lanes lie in falling order, if they do."""
        form = self.addresses.of(statement)
        if form.coefficient(lane.variable) != -1 or self.expressions.active is not None:
            return False
        last = self.addresses.ranges[lane.variable][0] + lane.width - 1
        rest = tuple(term for term in form.terms if term[0] != lane.variable)
        if any(not isinstance(atom, str) for atom, _ in rest):
            return False
        lowest = Affine(form.constant - last, rest)
        self.put(statement, lowest, reversed_lanes(self.writer, value))
        return True

    def read(self, buffer: str, form: Affine, width: int) -> Value:
        """The value at a place of a buffer, from a register if one holds it."""
        held = self.registers.get(buffer, form, width)
        if held is not None:
            return held
        pointer = self.addresses.pointer(buffer, form)
        dtype = self.addresses.storages[buffer].memory.dtype
        stored = DType.U8 if dtype is DType.BOOL else dtype
        active = self.expressions.active
        if active is not None and width:
            value = self.expressions.masked_load(pointer, active, stored)
        else:
            type_name = type_of(stored, width)
            loaded = self.writer.emit(f"load {type_name}, ptr {pointer}, align {stored.bytes}")
            value = Value(loaded, stored, width)
        if dtype is not DType.BOOL:
            return value
        zero = "zeroinitializer" if width else "0"
        return Value(self.writer.emit(f"icmp ne {value.typed}, {zero}"), dtype, width)

    def put(self, statement: Store | Update | Dot | Carry, form: Affine, value: Value) -> None:
        """Put a value at the place that the statement names."""
        buffer = statement.buffer
        self.addresses.written(buffer)
        active = self.expressions.active
        if value.width and active is not None:
            if not self._exists(statement):
                self.registers.release(buffer)  # what it would bring to memory is whole vectors
            elif self.registers.holds(buffer):
                active = None  # the rest of a padded row, which nothing reads
        if not self.registers.set(buffer, form, value):
            self.to_memory(buffer, form, value, active)

    def _exists(self, statement: Store | Update | Dot | Carry) -> bool:
        """All lanes, those that are left out too, lie in the row that they are written to."""
        shape = self.addresses.storages[statement.buffer].memory.shape
        reaches = (expr_range(item, self.addresses.ranges)[1] for item in statement.indices)
        return all(reach < extent for reach, extent in zip(reaches, shape, strict=True))

    def to_memory(
        self, buffer: str, form: Affine, value: Value, active: Value | None = None
    ) -> None:
        """Store a value at a place in memory, in the buffer's storage type."""
        pointer = self.addresses.pointer(buffer, form)
        dtype = self.addresses.storages[buffer].memory.dtype
        if dtype is DType.BOOL:
            byte_type = type_of(DType.U8, value.width)
            widened = self.writer.emit(f"zext {value.typed} to {byte_type}")
            stored = Value(widened, DType.U8, value.width)
        else:
            stored = value
        if active is None and self.expressions.is_part(buffer, dtype, value.width):
            active = first_lanes(value.width)
            every = [i if i < value.width else None for i in range(active.width)]
            stored = shuffle(self.writer, stored, stored, every)
        if active is not None and self.one_active and dtype.bytes < DType.I32.bytes:
            # LLVM would store the one element of a masked vector as wide as before its truncation.
            element = self.writer.emit(f"extractelement {stored.typed}, i64 0")
            stored, active = Value(element, stored.dtype, 0), None
        if active is None or not value.width:
            self.writer.line(f"store {stored.typed}, ptr {pointer}, align {dtype.bytes}")
            return
        name = f"llvm.masked.store.{suffix_of(stored.dtype, stored.width)}.p0"
        operands = [stored.typed, f"ptr align {dtype.bytes} {pointer}", active.typed]
        self.writer.call(name, operands)
