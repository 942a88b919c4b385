"""What a value means that comes from integers: (integer - zero point) * scale, or without scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array

NARROW = (DType.U8, DType.I8, DType.U16, DType.I16)
_FLIPPED = {DType.U8: DType.I8, DType.I8: DType.U8}

# What moves elements, or picks the largest: the same of integers and of what they stand for.
MOVEMENTS = frozenset(
    "reshape transpose slice expand tile gather squeeze max_pool to_blocked from_blocked".split()
)


@frozen
class Operand:
    """The integers `name`, whose zero point and scale are values, "" where there is none."""

    name: str
    zero: str = ""
    scale: str = ""


def dequantised(rewriter: Rewriter, name: str) -> Operand | None:
    """The integers behind an f32 value; None unless it is the result of a `dequantize`."""
    node = rewriter.producers.get(name)
    if node is None or node.operator != "dequantize" or complete_attributes(node)["block"]:
        return None
    if rewriter.types[name].dtype is not DType.F32:
        return None
    data, scale, *zero = node.inputs
    return Operand(data, zero[0] if zero else "", scale)


def widened(rewriter: Rewriter, name: str) -> Operand | None:
    """The narrow integers behind an i32 value that is their cast, or that minus a zero point."""
    node = rewriter.producers.get(name)
    if name in rewriter.constants:
        return Operand(name)
    if node is None:
        return None
    if node.operator == "cast":
        return Operand(node.inputs[0]) if _dtype(rewriter, node.inputs[0]) in NARROW else None
    if node.operator == "fill":
        inner = widened(rewriter, node.inputs[0])
        return None if inner is None else filled(rewriter, inner, node)
    if node.operator != "sub":
        return None
    left = rewriter.producers.get(node.inputs[0])
    if left is None or left.operator != "cast" or _dtype(rewriter, left.inputs[0]) not in NARROW:
        return None
    if rewriter.types[left.inputs[0]].shape != rewriter.types[name].shape:
        return None
    return Operand(left.inputs[0], node.inputs[1])


def filled(rewriter: Rewriter, operand: Operand, node: Node) -> Operand | None:
    """The integers with their zero point where a `fill` has zeros of what they stand for.

    None for a fill with another number, and for zero points that differ from place to place.
    """
    if complete_attributes(node)["value"] != "zero" or len(node.inputs) > 2:
        return None
    inputs = [operand.name, node.inputs[1]]
    if operand.zero:
        if rewriter.types[operand.zero].size != 1:
            return None
        inputs.append(_narrow_zero(rewriter, operand, node))
    made = rewriter.emit("fill", tuple(inputs), node.attributes, like=node)
    return replace(operand, name=made)


def _narrow_zero(rewriter: Rewriter, operand: Operand, like: Node) -> str:
    """The zero point in the type of the integers, which sums may have widened."""
    dtype, cast = rewriter.types[operand.name].dtype, rewriter.producers.get(operand.zero)
    if cast is not None and cast.operator == "cast" and _dtype(rewriter, cast.inputs[0]) is dtype:
        return cast.inputs[0]
    return rewriter.emit("cast", (operand.zero,), {"to": str(dtype)}, like=like)


def _dtype(rewriter: Rewriter, name: str) -> DType:
    return rewriter.types[name].dtype


def varies_only_along(shape: Sequence[int], axes: Sequence[int], rank: int) -> bool:
    """Does a parameter of this shape broadcast to data of `rank`, alike but along these axes?"""
    aligned = (1,) * (rank - len(shape)) + tuple(shape)
    return all(extent == 1 or axis in axes for axis, extent in enumerate(aligned))


def constant_integer(rewriter: Rewriter, name: str) -> int | None:
    """The only element of a constant, 0 for ""; None for other values."""
    if not name:
        return 0
    array = rewriter.constants.get(name)
    return int(array.reshape(-1)[0].item()) if array is not None and array.size == 1 else None


def narrowest(array: Array) -> Array | None:
    """Integers in i8, or else in i16; None where they do not fit."""
    for dtype in (np.int8, np.int16):
        limits = np.iinfo(dtype)
        if limits.min <= array.min() and array.max() <= limits.max:
            return array.astype(dtype)
    return None


class Signs:
    """Gives 8-bit values the sign that a target multiplies: u8 q + 128 for i8 q, or the reverse."""

    def __init__(self, rewriter: Rewriter, wanted: DType) -> None:
        self.rewriter = rewriter
        self.wanted = wanted
        self._flipped: dict[str, str] = {}

    def of(self, operand: Operand, like: Node) -> Operand:
        """The operand with integers of the wanted sign, if they have 8 bits."""
        rewriter = self.rewriter
        dtype = rewriter.types[operand.name].dtype
        if dtype is self.wanted or dtype not in _FLIPPED:
            return operand
        name = self._flip(operand.name, like) or self._with_other_sign(operand.name, like)
        return Operand(name, self.moved(operand.zero, dtype, like), operand.scale)

    def where_free(self, operand: Operand, like: Node) -> Operand:
        """The same where no value has to be computed for it; else the operand as it is."""
        rewriter = self.rewriter
        dtype = rewriter.types[operand.name].dtype
        if dtype is self.wanted or dtype not in _FLIPPED:
            return operand
        name = self._flip(operand.name, like)
        if name is None:
            return operand
        return Operand(name, self.moved(operand.zero, dtype, like), operand.scale)

    def _flip(self, name: str, like: Node) -> str | None:
        """The value with the other sign as a quantisation gives it; None where there is none."""
        rewriter = self.rewriter
        if name in self._flipped:
            return self._flipped[name]
        node = rewriter.producers.get(name)
        if node is None:
            return None
        dtype = rewriter.types[name].dtype
        if node.operator == "quantize":
            zero = node.inputs[2] if len(node.inputs) > 2 else ""
            if zero and zero not in rewriter.constants:
                return None
            moved = self.moved(zero, dtype, like)
            attributes = {**node.attributes, "to": str(_FLIPPED[dtype])}
            inputs = (*node.inputs[:2], moved)
            flipped = rewriter.emit("quantize", inputs, attributes, like=node)
        elif node.operator == "lookup":
            table = rewriter.constants[node.inputs[1]].view(np.uint8) ^ np.uint8(128)
            other = rewriter.constant(table.view(_FLIPPED[dtype].numpy), node.inputs[1])
            flipped = rewriter.emit("lookup", (node.inputs[0], other), like=node)
        elif node.operator in MOVEMENTS:
            inner = self._flip(node.inputs[0], like)
            if inner is None:
                return None
            inputs = (inner, *node.inputs[1:])
            flipped = rewriter.emit(node.operator, inputs, node.attributes, like=node)
        else:
            return None
        self._flipped[name] = flipped
        return flipped

    def _with_other_sign(self, name: str, like: Node) -> str:
        """The value plus or minus 128: with the highest bit turned."""
        rewriter = self.rewriter
        other = _FLIPPED[rewriter.types[name].dtype]
        bits = rewriter.emit("cast", (name,), {"to": "u8"}, like=like)
        half = rewriter.constant(np.array(128, np.uint8), f"{name}_half")
        turned = rewriter.emit("bitwise_xor", (bits, half), like=like)
        self._flipped[name] = rewriter.emit("cast", (turned,), {"to": str(other)}, like=like)
        return self._flipped[name]

    def moved(self, zero: str, dtype: DType, like: Node) -> str:
        """A zero point of integers of `dtype` for those with the other sign, in their type.

        One that is computed as i32, as products have it, stays in that.
        """
        rewriter = self.rewriter
        shift = 128 if dtype is DType.I8 else -128
        other = _FLIPPED[dtype].numpy
        if not zero:
            return rewriter.constant(np.array(shift, other), "zero_point")
        array = rewriter.constants.get(zero)
        if array is not None:
            moved = array.astype(np.int32) + shift
            kept = moved if array.dtype == np.int32 else moved.astype(other)
            return rewriter.constant(kept, zero)
        wide = zero
        if rewriter.types[zero].dtype is not DType.I32:
            wide = rewriter.emit("cast", (zero,), {"to": "i32"}, like=like)
        offset = rewriter.constant(np.array(shift, np.int32), f"{zero}_shift")
        return rewriter.emit("add", (wide, offset), like=like)
