"""Convolutions and matrix products of integers instead of the floats they stand for.

With x = (q - z) s and w = V t, V being integers without a zero point,

    sum of x w + bias = (sum of q V - z sum of V + bias / (s t)) s t,

where sum of q V + (bias / (s t) - z sum of V) is one convolution of narrow integers with an i32
bias, padded with z; s t is multiplied with its sums afterwards. Sums of i32, as ConvInteger and
MatMulInteger have them, are the same without s t. A zero point that a run computes is subtracted
behind the sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.graph.quantised.operands import (
    NARROW,
    Operand,
    Signs,
    constant_integer,
    dequantised,
    narrowest,
    varies_only_along,
    widened,
)
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array, Attribute

_Integers = npt.NDArray[np.int64]

LEAST_CHANNELS = 8
"""Of a result, from which on the sums of windows cost little next to the products."""

_BIAS_SCALE = 2.0**-20
"""How far a bias' scale may be from that of the sums, which writers of models round differently."""


@frozen
class Contractions:
    """Rewrites convolutions and products; each method returns the result, or None to decline."""

    rewriter: Rewriter
    signs: Signs

    # --- convolutions ---------------------------------------------------------------------------

    def conv(self, node: Node) -> str | None:
        """A convolution of constant integer weights, of f32 or of i32."""
        rewriter, attributes = self.rewriter, complete_attributes(node)
        operands = self._operands(node)
        if operands is None or attributes["accumulator"] or attributes["layout"] != "NCHW":
            return None
        data, weight = operands
        filters = self._centred_weight(weight, 0)
        known = all(_is_scalar(rewriter, name) for name in (data.zero, data.scale))
        if filters is None or not known:
            return None
        data = self.signs.of(data, node)
        zero = constant_integer(rewriter, data.zero)
        is_float = rewriter.types[node.output].dtype is DType.F32
        scale = self._product_of_scales(data, weight, filters.ndim - 1, node) if is_float else ""
        bias = self._bias(node, scale, filters.shape[0])
        sums = filters.astype(np.int64).sum(axis=tuple(range(1, filters.ndim)))
        if bias is None or (is_float and not _fits(filters, bias.integers, rewriter, data)):
            return None
        source, given = data.name, {**node.attributes, "accumulator": "i32"}
        if any(attributes.integers("pads")):
            if zero is None:
                source, given = self._padded(data, given, node)
            elif zero:
                border: dict[str, Attribute] = {"pads": attributes["pads"], "value": zero}
                source = rewriter.emit("border", (data.name,), border, like=node)
                given["pads"] = ()
        offset = bias.integers - (zero or 0) * sums
        moved = None
        if self._sums_windows(filters, source, attributes):
            moved = _as_bytes(filters)
        stored = filters if moved is None else moved[0]
        names = [source, rewriter.constant(stored, f"{weight.name}_i8")]
        if offset.any():
            names.append(rewriter.constant(_wrapped(offset), f"{node.output}_offset"))
        total = rewriter.emit("conv", tuple(names), given, like=node)
        spatial = (1,) * (filters.ndim - 2)
        if moved is not None:
            counted = self._window_sums(source, given, filters.shape[2:], node)
            apart = rewriter.constant(moved[1].reshape(-1, *spatial), f"{weight.name}_centres")
            product = rewriter.emit("mul", (counted, apart), like=node)
            total = rewriter.emit("sub", (total, product), like=node)
        if zero is None:
            total = self._without_zero(total, data.zero, sums.reshape(-1, *spatial), node)
        if not is_float:
            return total
        result = self._scaled(total, scale, node)
        if not bias.added:
            return result
        spread = self._shaped(bias.added, (filters.shape[0], *spatial), node)
        return rewriter.emit("add", (result, spread), like=node)

    def _sums_windows(self, filters: Array, source: str, attributes: Attributes) -> bool:
        """Weights too wide for a byte are bytes whose centre, times a window's sum, is subtracted.

        That is one more channel of the result, and dot products of bytes for all others.
        """
        is_wide = filters.dtype == np.int16 and filters.shape[0] >= LEAST_CHANNELS
        has_bytes = self.rewriter.types[source].dtype.bytes == 1
        return is_wide and has_bytes and attributes.integer("groups") == 1

    def _window_sums(
        self, source: str, given: Mapping[str, Attribute], window: tuple[int, ...], node: Node
    ) -> str:
        """The sums of the data under each position of the window, [N, 1, spatial...] of i32."""
        rewriter = self.rewriter
        wide = self._cast(source, DType.I32, node)
        folded: dict[str, Attribute] = {"axes": (1,), "keepdims": True}
        total = rewriter.emit("reduce_sum", (wide,), folded, like=node)
        ones = rewriter.constant(np.ones((1, 1, *window), np.int32), "window")
        attributes = {name: value for name, value in given.items() if name != "accumulator"}
        return rewriter.emit("conv", (total, ones), attributes, like=node)

    def _bias(self, node: Node, scale: str, channels: int) -> _Bias | None:
        """The bias in units of the sums, or as an f32 value; None for integers of the run."""
        rewriter = self.rewriter
        none = np.zeros(channels, np.int64)
        name = node.inputs[2] if len(node.inputs) > 2 else ""
        if not name:
            return _Bias(none)
        array = rewriter.constants.get(name)
        if rewriter.types[name].dtype is DType.I32:
            return None if array is None else _Bias(array.astype(np.int64))
        integers = dequantised(rewriter, name)
        units = rewriter.constants.get(scale)
        if integers is None or units is None:
            return _Bias(none, name)
        quanta, step = (rewriter.constants.get(item) for item in (integers.name, integers.scale))
        if quanta is None or step is None or constant_integer(rewriter, integers.zero) != 0:
            return _Bias(none, name)
        if not np.allclose(step.reshape(-1), units.reshape(-1), rtol=_BIAS_SCALE, atol=0):
            return _Bias(none, name)
        return _Bias(quanta.astype(np.int64))

    def _padded(
        self, data: Operand, given: Mapping[str, Attribute], node: Node
    ) -> tuple[str, dict[str, Attribute]]:
        """The data with a zero point around it that a run computes."""
        rewriter, pads = self.rewriter, complete_attributes(node).integers("pads")
        rank, type = len(pads) // 2, rewriter.types[data.name]
        around = (0, 0, *pads[:rank], 0, 0, *pads[rank:])
        value = self._shaped(self._cast(data.zero, type.dtype, node), (), node)
        padded = rewriter.emit("pad", (data.name, value), {"pads": around}, like=node)
        return padded, {**given, "pads": (0,) * len(pads)}

    # --- matrix products ------------------------------------------------------------------------

    def matmul(self, node: Node) -> str | None:
        """A product of integer matrices, of f32 or of i32."""
        rewriter, attributes = self.rewriter, complete_attributes(node)
        operands = self._operands(node)
        if operands is None or attributes["accumulator"]:
            return None
        left, right = operands
        inner = [-2 if attributes.flag("transpose_a") else -1]
        inner += [-1 if attributes.flag("transpose_b") else -2]
        for operand, axis in ((left, inner[0]), (right, inner[1])):
            rank = len(rewriter.types[operand.name].shape)
            along = [rank - 3 - axis]  # the other axis of the matrix: -2 for -1
            for name in filter(None, (operand.zero, operand.scale)):
                if not varies_only_along(rewriter.types[name].shape, along, rank):
                    return None
        if left.name in rewriter.constants:
            return None
        is_float = rewriter.types[node.output].dtype is DType.F32
        extent = rewriter.types[left.name].shape[inner[0]]
        left = self.signs.of(left, node)
        right = self._right(right, node)
        largest = [_largest(rewriter.types[item.name].dtype) for item in (left, right)]
        if is_float and 4 * largest[0] * largest[1] * extent >= 2**31:
            return None
        given = {**node.attributes, "accumulator": "i32"}
        total = rewriter.emit("matmul", (left.name, right.name), given, like=node)
        columns = rows = ""
        if left.zero:
            columns = self._sums(right.name, inner[1], attributes.flag("transpose_b"), node)
            centre = self._lines(left.zero, attributes.flag("transpose_a"), node)
            product = rewriter.emit(
                "mul", (self._cast(centre, DType.I32, node), columns), like=node
            )
            total = rewriter.emit("sub", (total, product), like=node)
        if right.zero:
            rows = self._sums(left.name, inner[0], attributes.flag("transpose_a"), node)
            if left.zero:
                centre = self._lines(left.zero, attributes.flag("transpose_a"), node)
                whole = rewriter.constant(np.array(extent, np.int32), "extent")
                wide = self._cast(centre, DType.I32, node)
                taken = rewriter.emit("mul", (wide, whole), like=node)
                rows = rewriter.emit("sub", (rows, taken), like=node)
            centre = self._lines(right.zero, attributes.flag("transpose_b"), node)
            product = rewriter.emit("mul", (self._cast(centre, DType.I32, node), rows), like=node)
            total = rewriter.emit("sub", (total, product), like=node)
        if not is_float:
            return total
        left_scale = self._lines(left.scale, attributes.flag("transpose_a"), node)
        right_scale = self._lines(right.scale, attributes.flag("transpose_b"), node)
        return self._scaled(total, self._times(left_scale, right_scale, node), node)

    def _right(self, right: Operand, node: Node) -> Operand:
        """The right operand as i8 where it fits."""
        rewriter = self.rewriter
        array = rewriter.constants.get(right.name)
        if array is None:
            return Signs(rewriter, DType.I8).of(right, node)
        zero = rewriter.constants.get(right.zero) if right.zero else np.zeros((), np.int32)
        if zero is not None:
            centred = narrowest(array.astype(np.int32) - zero.astype(np.int32))
            if centred is not None and centred.dtype == np.int8:
                name = rewriter.constant(centred, f"{right.name}_i8")
                return replace(right, name=name, zero="")
        if array.dtype != np.uint8:
            return right
        moved = rewriter.constant((array.astype(np.int16) - 128).astype(np.int8), right.name)
        return replace(right, name=moved, zero=self.signs.moved(right.zero, DType.U8, node))

    def _sums(self, name: str, axis: int, transposed: bool, node: Node) -> str:
        """The sums of an operand's rows, or columns, as i32 that broadcasts to the product."""
        rewriter, shape = self.rewriter, self.rewriter.types[name].shape
        array = rewriter.constants.get(name)
        if array is not None:
            sums = array.astype(np.int64).sum(axis=axis, keepdims=True)
            total = rewriter.constant(_wrapped(sums), f"{name}_sums")
        else:
            wide = self._cast(name, DType.I32, node)
            attributes: dict[str, Attribute] = {"axes": (axis % len(shape),), "keepdims": True}
            total = rewriter.emit("reduce_sum", (wide,), attributes, like=node)
        return self._lines(total, transposed, node)

    def _lines(self, name: str, transposed: bool, node: Node) -> str:
        """A parameter of a matrix' rows or columns in the place that these have in the product."""
        shape = self.rewriter.types[name].shape if name else ()
        if not transposed or len(shape) < 2:
            return name
        return self._shaped(name, (*shape[:-2], shape[-1], shape[-2]), node)

    # --- both -----------------------------------------------------------------------------------

    def _operands(self, node: Node) -> tuple[Operand, Operand] | None:
        """The two operands, if both are integers of at most 16 bits, or constants of i32."""
        rewriter = self.rewriter
        read = {DType.F32: dequantised, DType.I32: widened}.get(rewriter.types[node.output].dtype)
        if read is None:
            return None
        left, right = (read(rewriter, name) for name in node.inputs[:2])
        if left is None or right is None or rewriter.types[left.name].dtype not in NARROW:
            return None
        if rewriter.types[right.name].dtype in NARROW:
            return left, right
        array = rewriter.constants.get(right.name)
        narrow = None if array is None else narrowest(array)
        if narrow is None:
            return None
        return left, replace(right, name=rewriter.constant(narrow, right.name))

    def _centred_weight(self, weight: Operand, axis: int) -> Array | None:
        """Constant weights less their zero points, which differ along `axis` only, and narrow."""
        rewriter = self.rewriter
        array = rewriter.constants.get(weight.name)
        if array is None:
            return None
        for name in filter(None, (weight.zero, weight.scale)):
            parameter = rewriter.constants.get(name)
            if parameter is None or not varies_only_along(parameter.shape, [axis], array.ndim):
                return None
        zero = rewriter.constants[weight.zero] if weight.zero else np.zeros((), np.int32)
        return narrowest(array.astype(np.int32) - zero.astype(np.int32))

    def _product_of_scales(self, data: Operand, weight: Operand, rank: int, node: Node) -> str:
        """The scale of the sums, which broadcasts to [channels, ...] of `rank` axes."""
        scale = self.rewriter.constants[weight.scale]
        if scale.size > 1:
            channels = self.rewriter.constant(scale.reshape(-1, *(1,) * (rank - 1)), weight.scale)
        else:
            channels = self._shaped(weight.scale, (), node)
        return self._times(self._shaped(data.scale, (), node), channels, node)

    def _times(self, left: str, right: str, node: Node) -> str:
        rewriter = self.rewriter
        a, b = rewriter.constants.get(left), rewriter.constants.get(right)
        if a is None or b is None:
            return rewriter.emit("mul", (left, right), like=node)
        return rewriter.constant(np.multiply(a, b), f"{node.output}_scale")

    def _without_zero(self, total: str, zero: str, sums: _Integers, node: Node) -> str:
        rewriter = self.rewriter
        weights = rewriter.constant(_wrapped(sums), f"{node.output}_sums")
        wide = self._shaped(self._cast(zero, DType.I32, node), (), node)
        product = rewriter.emit("mul", (wide, weights), like=node)
        return rewriter.emit("sub", (total, product), like=node)

    def _scaled(self, total: str, scale: str, node: Node) -> str:
        return self.rewriter.emit("mul", (self._cast(total, DType.F32, node), scale), like=node)

    def _cast(self, name: str, dtype: DType, node: Node) -> str:
        rewriter = self.rewriter
        if rewriter.types[name].dtype is dtype:
            return name
        array = rewriter.constants.get(name)
        if array is not None:
            return rewriter.constant(array.astype(dtype.numpy), name)
        return rewriter.emit("cast", (name,), {"to": str(dtype)}, like=node)

    def _shaped(self, name: str, shape: tuple[int, ...], node: Node) -> str:
        rewriter = self.rewriter
        if rewriter.types[name].shape == shape:
            return name
        array = rewriter.constants.get(name)
        if array is not None:
            return rewriter.constant(array.reshape(shape), name)
        return rewriter.emit("reshape", (name,), {"shape": shape}, like=node)


@frozen
class _Bias:
    """A bias: integers to be summed with the products, or the f32 value `added` behind them."""

    integers: _Integers
    added: str = ""


def _is_scalar(rewriter: Rewriter, name: str) -> bool:
    return not name or rewriter.types[name].size == 1


def _largest(dtype: DType) -> int:
    """The largest magnitude of an integer type."""
    limits = np.iinfo(dtype.numpy)
    return max(int(limits.max), -int(limits.min))


def _fits(filters: Array, bias: _Integers, rewriter: Rewriter, data: Operand) -> bool:
    """No sum of these weights with data less its zero point leaves i32."""
    weights = np.abs(filters.astype(np.int64)).reshape(filters.shape[0], -1).sum(axis=1)
    widest = 2 * _largest(rewriter.types[data.name].dtype)
    return bool((weights * widest + np.abs(bias)).max() < 2**31)


def _as_bytes(filters: Array) -> tuple[Array, Array] | None:
    """Weights of 16 bits as i8, and by channel how much these exceed them; None if none can."""
    rows = filters.reshape(filters.shape[0], -1).astype(np.int32)
    least, most = rows.min(axis=1), rows.max(axis=1)
    if (most - least).max() > 255:
        return None
    centres = np.clip(0, -128 - least, 127 - most).astype(np.int32)
    return (rows + centres[:, None]).astype(np.int8).reshape(filters.shape), centres


def _wrapped(integers: _Integers) -> Array:
    """As i32, modulo 2^32, as their sums are."""
    return integers.astype(np.uint64).astype(np.uint32).view(np.int32)
