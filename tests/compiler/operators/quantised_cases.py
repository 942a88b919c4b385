"""Cases of quantisation, and of products of narrow integers in wider sums."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from tests.compiler.operators.cases import Case, Values, case, reference
from tunefarm.compiler.graph.weight_products import packed

_SCALES: tuple[tuple[str, tuple[int, ...], int], ...] = (
    ("scalar", (), 0),
    ("channels", (3, 1, 1), 0),
    ("blocks", (2, 2, 5, 7), 2),
)


def quantised_cases() -> list[Case]:
    """A case per form of the parameters, and per pair of signs."""
    return [*_quantisations(), *_lookups(), *_convolutions(), *_products(), *_weight_products()]


def _integers(seed: int, shape: tuple[int, ...], dtype: str) -> Values:
    limits = np.iinfo(dtype)
    drawn = np.random.default_rng(seed).integers(limits.min, limits.max, shape, endpoint=True)
    return drawn.astype(dtype)


def _quantisations() -> Iterator[Case]:
    shape = (2, 3, 5, 7)
    rng = np.random.default_rng(0)
    x = rng.uniform(-300, 300, shape).astype(np.float32)
    for name, form, block in _SCALES:
        given = {"axis": 1, "block": block} if block else {}
        of_onnx = {"axis": 1, "block_size": block} if block else {"axis": 1}
        scale = rng.uniform(0.5, 2, form).astype(np.float32)
        flat = scale if block else scale.reshape(-1) if form else scale
        for dtype in ("uint8", "int8", "int16"):
            short = dtype.replace("uint", "u").replace("int", "i")
            zero = _integers(1, form, dtype) // 4
            zero_flat = zero.reshape(flat.shape)
            expected = reference("QuantizeLinear", x, flat, zero_flat, opset=21, **of_onnx)
            inputs = [x, scale, zero]
            yield case(f"{name}-{dtype}", "quantize", inputs, expected, to=short, **given)
            q = _integers(2, shape, dtype)
            expected = reference("DequantizeLinear", q, flat, zero_flat, opset=21, **of_onnx)
            inputs = [q, scale, zero]
            yield case(f"{name}-{dtype}", "dequantize", inputs, expected, to="f32", **given)
    q = _integers(9, shape, "uint8")
    widths = ((0, 0), (0, 0), (1, 0), (2, 3))
    bordered = partial(np.pad, q, widths, constant_values=9)
    yield case("", "border", [q], bordered, pads=(1, 2, 0, 3), value=9)
    expected = reference(
        "QuantizeLinear", x, np.ones((), np.float32), np.array(-5, np.int8), opset=21
    )
    yield case("i8", "saturate", [x, np.array(-5, np.float32)], expected, to="i8")
    zeros = np.linspace(-9, 9, x.shape[-1], dtype=np.float32)
    shifted = np.clip(np.rint(x) + zeros, -128, 127).astype(np.int8)
    yield case("i8-each", "saturate", [x, zeros], lambda: shifted, to="i8")


def _lookups() -> Iterator[Case]:
    for data, to in (("uint8", "uint8"), ("int8", "uint8"), ("uint8", "int8")):
        x, table = _integers(10, (2, 3, 5, 7), data), _integers(11, (256,), to)
        yield case(f"{data}-{to}", "lookup", [x, table], partial(_entries, x, table))


def _entries(x: Values, table: Values) -> Values:
    return np.asarray(table[x.view(np.uint8)])


def _convolutions() -> Iterator[Case]:
    for data, weight in (("uint8", "int8"), ("int8", "int8"), ("int8", "uint8")):
        x, w = _integers(3, (1, 3, 7, 5), data), _integers(4, (4, 3, 3, 2), weight)
        offset = np.array(7, data)
        yield case(
            f"{data}-{weight}",
            "conv",
            [x, w],
            partial(_padded_convolution, x, w, offset),
            pads=(1, 0, 2, 1),
            strides=(2, 1),
            accumulator="i32",
            pad_value=7,
        )


def _padded_convolution(x: Values, w: Values, padding: Values) -> Values:
    """Strides of 2 and 1, and `padding` around the data."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 2), (0, 1)), constant_values=padding)
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))[:, :, ::2]
    sums = np.einsum("ncyxhw,ochw->noyx", windows.astype(np.int32), w.astype(np.int32))
    return np.asarray(sums)


def _product(a: Values, b: Values) -> Values:
    return np.asarray(np.matmul(a.astype(np.int32), b.astype(np.int32)))


def _products() -> Iterator[Case]:
    for left, right in (("uint8", "int8"), ("int16", "int8"), ("uint8", "uint8")):
        a, b = _integers(5, (2, 3, 7), left), _integers(6, (7, 5), right)
        yield case(
            f"{left}-{right}",
            "matmul",
            [a, b],
            partial(_product, a, b),
            accumulator="i32",
        )
    x, w = _integers(7, (1, 2, 3, 4), "uint8"), _integers(8, (2, 3, 2, 2), "int8")
    yield case(
        "narrow",
        "conv_transpose",
        [x, w],
        lambda: _spread(x.astype(np.int32), w.astype(np.int32)),
        strides=(2, 2),
        shape=(6, 8),
        accumulator="i32",
    )


def _spread(x: Values, w: Values) -> Values:
    """A transposed convolution whose windows lie side by side."""
    result: Values = np.einsum("nihw,iokl->nohkwl", x, w)
    batch, outputs, rows, taps, columns, others = result.shape
    return result.reshape(batch, outputs, rows * taps, columns * others)


def _weight_products() -> Iterator[Case]:
    rng = np.random.default_rng(7)
    for bits, block in ((2, 16), (4, 8), (8, 12)):
        numbers = rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), (48, 5)).astype(np.int8)
        x = rng.standard_normal((2, 3, 48)).astype(np.float32)
        scale = rng.uniform(0.5, 2, (48 // block, 5)).astype(np.float32)
        zero = rng.integers(-2, 2, scale.shape).astype(np.int8)
        for name, given in (("", [scale]), ("-zero", [scale, zero])):
            yield case(
                f"{bits}{name}",
                "weight_product",
                [x, packed(numbers, bits), *given],
                partial(_dequantised_product, x, numbers, scale, zero if name else None),
                bits=bits,
                block=block,
            )


def _dequantised_product(x: Values, numbers: Values, scale: Values, zero: Values | None) -> Values:
    times = numbers.shape[0] // scale.shape[0]
    centred = numbers.astype(np.float64)
    if zero is not None:
        centred -= np.repeat(zero, times, 0)
    return np.asarray((x @ (centred * np.repeat(scale, times, 0))).astype(np.float32))
