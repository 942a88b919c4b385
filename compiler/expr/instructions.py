"""What scalar functions are emitted with, and the ways of emitting that many of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from compiler.types.dtypes import DType


class Instructions(Protocol):
    """LLVM's instructions on operands of one type, which may be vectors; a backend writes them.

    Operands and results are texts: names of values, or literals. A condition is the result of a
    comparison, an operand of the instructions `of(DType.BOOL)`.
    """

    @property
    def dtype(self) -> DType:
        """The element type of the operands."""
        ...

    @property
    def has_fma(self) -> bool:
        """Whether the target multiplies and adds in one instruction."""
        ...

    def of(self, dtype: DType) -> Instructions:
        """Instructions on as many elements of another type."""
        ...

    def constant(self, value: float) -> str:
        """A literal, for every element."""
        ...

    def literal(self, operand: str) -> int | None:
        """The value of an integer literal, None for anything else."""
        ...

    def is_computed(self, operand: str) -> bool:
        """Whether an operand is no literal."""
        ...

    def emit(self, name: str, *operands: str) -> str:
        """An instruction whose result has the operands' type: "fadd", "xor"."""
        ...

    def compare(self, predicate: str, left: str, right: str) -> str:
        """The condition that `predicate` ("olt", "sgt") holds."""
        ...

    def select(self, condition: str, then: str, otherwise: str) -> str:
        """`then` where the condition holds."""
        ...

    def convert(self, name: str, operand: str, to: DType) -> str:
        """A conversion ("fptosi", "bitcast") to elements of another type."""
        ...

    def call(self, name: str, *operands: str, flags: str = "") -> str:
        """An intrinsic ("llvm.sqrt") whose result has the operands' type."""
        ...

    def libm(self, name: str, *operands: str) -> str:
        """The C library's function of f64 operands, or its f32 variant, once per element."""
        ...


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


def ordered(m: Instructions, relation: str, left: str, right: str) -> str:
    """The condition `left` lt, le, gt or ge `right`; nothing is so for NaN."""
    kind = "o" if m.dtype.is_float else "s" if m.dtype.is_signed else "u"
    return m.compare(f"{kind}{relation}", left, right)


def order(relation: str) -> Emit:
    """A comparison by size."""
    return lambda m, left, right: ordered(m, relation, left, right)


def equality(floats: str, integers: str) -> Emit:
    """A comparison with a predicate for floats and another for the rest."""
    return lambda m, left, right: m.compare(floats if m.dtype.is_float else integers, left, right)
