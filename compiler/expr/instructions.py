"""What scalar functions are emitted with, and the ways of emitting that many of them share."""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import pack, unpack
from typing import Protocol, TypeAlias

from tunefarm.compiler.types.conversions import bits_of
from tunefarm.compiler.types.dtypes import WIDE_FLOATS, DType

_LITERAL = re.compile(r"(?:splat \(i\d+ )?(-?\d+)\)?")
_FLOAT_LITERAL = re.compile(r"(?:splat \((?:float|double) )?0x([0-9A-F]{16})\)?")

_TYPES: dict[DType, str] = {
    **{dtype: f"i{8 * dtype.bytes}" for dtype in DType if dtype is not DType.STRING},
    **{dtype: dtype.onnx_name for dtype in WIDE_FLOATS},
    DType.BOOL: "i1",
}
"""Narrow floats are integers until they are converted (`tunefarm.compiler.expr.narrow_floats`)."""
_AVX512_MASKS = {16: "i8", 32: "i8", 64: "i16"}
"""The types of AVX-512's masks for vectors of so many bytes."""

_TWO_VECTORS = 32
"""Elements of two vectors of f32 that `_JOINING` makes one of bf16 of."""
_JOINING = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"

_SUFFIXES = {DType.F32: "f32", DType.F64: "f64"}


def type_of(dtype: DType, width: int) -> str:
    """The LLVM type of a value: a scalar for width 0, else a vector."""
    name = _TYPES[dtype]
    return f"<{width} x {name}>" if width else name


def suffix_of(dtype: DType, width: int) -> str:
    """The mangled type in an intrinsic's name: v8f32, i64."""
    scalar = _SUFFIXES.get(dtype) or _TYPES[dtype]
    return f"v{width}{scalar}" if width else scalar


PREDICATES = {
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}
"""LLVM's predicates of floats (nothing but `ne` holds for NaN), signed and unsigned integers."""


def literal(value: float, dtype: DType, width: int = 0) -> str:
    """A literal with exactly this value (a float rounded to `dtype`), for every element."""
    if dtype.is_float and dtype.bits <= 16:
        text = str(bits_of(value, dtype))
    elif dtype.is_float:
        if dtype is DType.F32 and abs(value) < 3.5e38:
            value = float(unpack("<f", pack("<f", value))[0])
        text = f"0x{unpack('<Q', pack('<d', value))[0]:016X}"
    elif dtype is DType.BOOL:
        text = "true" if value else "false"
    elif dtype.bits < 8:
        text = str(int(value) % (1 << dtype.bits))
    else:
        text = str(int(value))
    return f"splat ({type_of(dtype, 0)} {text})" if width else text


class Writer(Protocol):
    """Where instructions go: the code of one function."""

    has_fma: bool
    has_avx512: bool
    converted: frozenset[DType]
    fixed_rounding: bool

    def emit(self, operation: str) -> str:
        """Append `%fresh = operation` and return the name."""
        ...

    def intrinsic(self, name: str, result: str, arguments: list[str], flags: str = "") -> str:
        """Call an intrinsic or library function; `arguments` are typed operands."""
        ...

    def rarely(self, condition: str, usual: str, rare: Callable[[], str], type: str) -> str:
        """`usual`, or what `rare` emits, in a branch of its own, where a scalar condition holds."""
        ...


class Instructions:
    """LLVM's instructions on operands of one type, which are scalars or (`width`) vectors.

    Operands and results are strings: names of values, or literals. A condition is the result of a
    comparison, an operand of the instructions `of(DType.BOOL)`.
    """

    __slots__ = ("_type", "_width", "_writer", "dtype")

    def __init__(self, writer: Writer, dtype: DType, width: int) -> None:
        self.dtype = dtype
        self._writer = writer
        self._width = width
        self._type = type_of(dtype, width)

    @property
    def is_vector(self) -> bool:
        """Whether values are vectors; else they are scalars."""
        return self._width > 0

    @property
    def has_fma(self) -> bool:
        """Whether the target multiplies and adds in one instruction."""
        return self._writer.has_fma

    @property
    def has_avx512(self) -> bool:
        """Whether these are of f32, and the target has AVX-512's instructions for that width."""
        bytes = self.dtype.bytes * (self._width or 1)
        fits = self.dtype is DType.F32 and (not self._width or bytes in _AVX512_MASKS)
        return fits and self._writer.has_avx512

    @property
    def fixed_rounding(self) -> bool:
        """Whether a zero's sign is as IEEE 754 says where an instruction may leave it open."""
        return self._writer.fixed_rounding

    @property
    def converts_natively(self) -> bool:
        """Whether the target has instructions that convert these from f32, and to it."""
        return self.dtype in self._writer.converted

    def of(self, dtype: DType) -> Instructions:
        """Instructions on as many elements of another type."""
        return Instructions(self._writer, dtype, self._width)

    def constant(self, value: float) -> str:
        """A literal, for every element."""
        return literal(value, self.dtype, self._width)

    def literal(self, operand: str) -> int | None:
        """The value of an integer literal, None for anything else."""
        found = _LITERAL.fullmatch(operand)
        return int(found[1]) if found else None

    def number(self, operand: str) -> float | None:
        """The value of a float literal, None for anything else."""
        found = _FLOAT_LITERAL.fullmatch(operand)
        return float(unpack("<d", pack("<Q", int(found[1], 16)))[0]) if found else None

    def is_computed(self, operand: str) -> bool:
        """Whether an operand is no literal."""
        return operand.startswith("%")

    def emit(self, name: str, *operands: str) -> str:
        """An instruction whose result has the operands' type: "fadd", "xor"."""
        return self._writer.emit(f"{name} {self._type} {', '.join(operands)}")

    def compare(self, relation: str, left: str, right: str) -> str:
        """The condition that a relation (a key of PREDICATES) or LLVM's predicate ("ule") holds."""
        floats, signed, unsigned = PREDICATES.get(relation, (relation,) * 3)
        if self.dtype.is_float:
            return self._writer.emit(f"fcmp {floats} {self._type} {left}, {right}")
        predicate = signed if self.dtype.is_signed else unsigned
        return self._writer.emit(f"icmp {predicate} {self._type} {left}, {right}")

    def select(self, condition: str, then: str, otherwise: str) -> str:
        """`then` where the condition holds."""
        truth, type = type_of(DType.BOOL, self._width), self._type
        return self._writer.emit(f"select {truth} {condition}, {type} {then}, {type} {otherwise}")

    def convert(self, name: str, operand: str, to: DType) -> str:
        """A conversion ("fptosi", "bitcast") to elements of another type."""
        return self._writer.emit(f"{name} {self._type} {operand} to {type_of(to, self._width)}")

    def convert_as(self, format: str, name: str, operand: str, to: DType) -> str:
        """A conversion from or to what LLVM calls "half" or "bfloat", and is an integer here."""
        narrow = f"<{self._width} x {format}>" if self._width else format
        if name == "fpext":
            number = self._writer.emit(f"bitcast {self._type} {operand} to {narrow}")
            return self._writer.emit(f"fpext {narrow} {number} to {type_of(to, self._width)}")
        if to is DType.BF16 and self._width == _TWO_VECTORS and self._writer.has_avx512:
            number = self._joined(operand, narrow)
        else:
            number = self._writer.emit(f"fptrunc {self._type} {operand} to {narrow}")
        return self._writer.emit(f"bitcast {narrow} {number} to {type_of(to, self._width)}")

    def _joined(self, operand: str, narrow: str) -> str:
        """Two vectors of f32 as one of bf16: LLVM converts each, and joins the halves."""
        half = self._width // 2
        vectors = []
        for first in (half, 0):
            mask = ", ".join(f"i32 {lane}" for lane in range(first, first + half))
            both = f"{self._type} {operand}, {self._type} poison"
            name = self._writer.emit(f"shufflevector {both}, <{half} x i32> <{mask}>")
            vectors.append(f"{type_of(self.dtype, half)} {name}")
        return self._writer.intrinsic(_JOINING, narrow, vectors)

    def call(self, name: str, *operands: str, flags: str = "") -> str:
        """An intrinsic ("llvm.sqrt") whose result has the operands' type."""
        typed = [f"{self._type} {operand}" for operand in operands]
        mangled = f"{name}.{suffix_of(self.dtype, self._width)}"
        return self._writer.intrinsic(mangled, self._type, typed, flags)

    def fma(self, a: str, b: str, c: str) -> str:
        """a b + c, rounded once where the target can."""
        if self.has_fma:
            return self.call("llvm.fma", a, b, c)
        return self.emit("fadd", self.emit("fmul", a, b), c)

    def avx512(self, name: str, *operands: str, immediate: int | None = None) -> str:
        """An AVX-512 instruction on f32 ("scalef"), if the target `has_avx512`.

        A scalar goes through the first element of a vector, so that it is rounded as vectors are.
        """
        if not self._width:
            wide = Instructions(self._writer, self.dtype, 4)
            vectors = [wide.first_element(operand) for operand in operands]
            result = wide.avx512(name, *vectors, immediate=immediate)
            return self._writer.emit(f"extractelement {wide._type} {result}, i64 0")
        bytes = self.dtype.bytes * self._width
        typed = [f"{self._type} {operand}" for operand in operands]
        if immediate is not None:
            typed.append(f"i32 {immediate}")
        typed += [f"{self._type} zeroinitializer", f"{_AVX512_MASKS[bytes]} -1"]
        if bytes == 64:
            typed.append("i32 4")  # rounding as elsewhere
        mangled = f"llvm.x86.avx512.mask.{name}.ps.{8 * bytes}"
        return self._writer.intrinsic(mangled, self._type, typed)

    def first_element(self, operand: str) -> str:
        """A vector whose first element is this scalar; the others are 1."""
        scalar = type_of(self.dtype, 0)
        ones = self.constant(1)
        return self._writer.emit(f"insertelement {self._type} {ones}, {scalar} {operand}, i64 0")

    def rarely(self, condition: str, usual: str, rare: Callable[[], str]) -> str:
        """`usual`, but what `rare` emits for elements of which the condition holds.

        A branch leaves that out where it holds for none.
        """

        def emit() -> str:
            return self.select(condition, rare(), usual)

        if not self._width:
            return self._writer.rarely(condition, usual, rare, self._type)
        truths = type_of(DType.BOOL, self._width)
        reduction = f"llvm.vector.reduce.or.v{self._width}i1"
        any_holds = self._writer.intrinsic(reduction, "i1", [f"{truths} {condition}"])
        return self._writer.rarely(any_holds, usual, emit, self._type)

    def libm(self, name: str, *operands: str) -> str:
        """The C library's function of f64 operands, or its f32 variant, once per element."""
        writer, scalar = self._writer, type_of(self.dtype, 0)
        name = f"{name}f" if self.dtype is DType.F32 else name
        if not self._width:
            return writer.intrinsic(name, scalar, [f"{scalar} {operand}" for operand in operands])
        result = "poison"
        for i in range(self._width):
            elements = [
                f"{scalar} {writer.emit(f'extractelement {self._type} {operand}, i64 {i}')}"
                for operand in operands
            ]
            element = writer.intrinsic(name, scalar, elements)
            result = writer.emit(
                f"insertelement {self._type} {result}, {scalar} {element}, i64 {i}"
            )
        return result


Emit: TypeAlias = Callable[..., str]
"""Emits a function: (instructions, operand, …) -> result."""


def instruction(name: str) -> Emit:
    """One instruction."""
    return lambda m, *operands: m.emit(name, *operands)


def intrinsic(name: str) -> Emit:
    """One intrinsic."""
    return lambda m, *operands: m.call(name, *operands)


def libm(name: str) -> Emit:
    """A call of the C library."""
    return lambda m, *operands: m.libm(name, *operands)


def by_kind(floats: Emit, integers: Emit) -> Emit:
    """One way for floats, another for integers."""
    return lambda m, *operands: (floats if m.dtype.is_float else integers)(m, *operands)


def in_f32(f32: Emit, otherwise: Emit) -> Emit:
    """One way for f32, another for all other types."""
    return lambda m, *operands: (f32 if m.dtype is DType.F32 else otherwise)(m, *operands)
