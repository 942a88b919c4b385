"""Cases of convolutions, pools and matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.compiler.operators.cases import FLOATS, Case, Values, array, case, runtime

# data, weight, strides, pads, dilations, groups
CONVOLUTIONS: tuple[
    tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, ...], ...], int], ...
] = (
    ((1, 3, 7, 13), (4, 3, 3, 3), ((1, 1), (1, 1, 1, 1), (1, 1)), 1),
    ((2, 3, 13, 7), (5, 3, 1, 1), ((1, 1), (0, 0, 0, 0), (1, 1)), 1),
    ((1, 3, 13, 13), (4, 3, 7, 5), ((2, 3), (3, 2, 3, 1), (1, 1)), 1),
    ((1, 2, 13, 13), (3, 2, 3, 3), ((1, 2), (0, 4, 2, 0), (2, 3)), 1),
    ((1, 6, 7, 7), (4, 3, 3, 3), ((1, 1), (1, 1, 1, 1), (1, 1)), 2),
    ((1, 6, 7, 7), (6, 1, 3, 3), ((2, 2), (1, 1, 1, 1), (1, 1)), 6),
    ((1, 3, 7, 7), (6, 1, 3, 3), ((1, 1), (0, 0, 0, 0), (1, 1)), 3),
    ((1, 1, 1, 1), (1, 1, 1, 1), ((1, 1), (0, 0, 0, 0), (1, 1)), 1),
    ((1, 1, 7, 7), (13, 1, 7, 7), ((1, 1), (0, 0, 0, 0), (1, 1)), 1),
    ((2, 3, 13), (4, 3, 3), ((2,), (1, 2), (1,)), 1),
    ((1, 4, 13), (4, 1, 3), ((1,), (1, 1), (2,)), 4),
    ((1, 2, 5, 7, 6), (3, 2, 3, 3, 2), ((1, 2, 1), (1, 1, 0, 1, 0, 1), (1, 1, 2)), 1),
)

# data, weight, strides, pads, output padding, dilations, groups
TRANSPOSED: tuple[
    tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, ...], ...], int], ...
] = (
    ((1, 3, 5, 7), (3, 4, 3, 3), ((1, 1), (0, 0, 0, 0), (0, 0), (1, 1)), 1),
    ((1, 3, 5, 7), (3, 4, 3, 3), ((1, 1), (1, 2, 1, 0), (0, 0), (1, 2)), 1),
    ((2, 3, 5, 7), (3, 4, 3, 2), ((2, 3), (1, 0, 0, 1), (1, 2), (1, 1)), 1),
    ((1, 4, 5, 4), (4, 3, 3, 3), ((2, 2), (1, 1, 1, 1), (0, 0), (2, 2)), 2),
    ((1, 4, 5, 5), (4, 1, 2, 2), ((2, 2), (0, 0, 0, 0), (0, 0), (1, 1)), 4),
    ((1, 1, 1, 1), (1, 1, 1, 1), ((1, 1), (0, 0, 0, 0), (0, 0), (1, 1)), 1),
    ((1, 2, 7), (2, 3, 5), ((3,), (1, 1), (2,), (1,)), 1),
    ((1, 2, 3, 4, 3), (2, 2, 2, 3, 2), ((2, 1, 2), (0, 1, 0, 1, 0, 0), (0, 0, 1), (1, 1, 1)), 1),
)


def _convolutions() -> Iterator[Case]:
    for number, (shape, weight_shape, (strides, pads, dilations), groups) in enumerate(
        CONVOLUTIONS
    ):
        x, w, bias = array(1, shape), array(2, weight_shape), array(3, weight_shape[:1])
        for inputs in ([x, w], [x, w, bias]):
            expected = runtime(
                "Conv", *inputs, strides=strides, pads=pads, dilations=dilations, group=groups
            )
            yield case(
                f"{number}-{len(inputs)}",
                "conv",
                inputs,
                expected,
                2e-5,
                strides=strides,
                pads=pads,
                dilations=dilations,
                groups=groups,
            )
    x64, w64 = array(1, (1, 2, 7, 7), "float64"), array(2, (3, 2, 3, 3), "float64")
    narrow = runtime("Conv", x64.astype("f4"), w64.astype("f4"))
    yield case("float64", "conv", [x64, w64], lambda: narrow().astype("f8"), 2e-5)
    xi, wi = array(1, (1, 2, 7, 7), "int32"), array(2, (3, 2, 3, 3), "int32")
    exact = runtime("Conv", xi.astype("f4"), wi.astype("f4"))
    yield case("int32", "conv", [xi, wi], lambda: exact().astype("i4"))


def _blocked(x: Values, block: int) -> Values:
    batch, channels, height, width = x.shape
    blocks = -(-channels // block)
    padded = np.zeros((batch, blocks * block, height, width), x.dtype)
    padded[:, :channels] = x
    split = padded.reshape(batch, blocks, block, height, width)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2))


def _whole(w: Values, block: int, axes: Sequence[int]) -> Values:
    """The weight or bias with zeros up to whole blocks along `axes`."""
    pads = [(0, -w.shape[axis] % block if axis in axes else 0) for axis in range(w.ndim)]
    return np.pad(w, pads)


def _blocked_convolutions() -> Iterator[Case]:
    forms = (
        ("NCHWc", (1, 5, 7, 7), (6, 5, 3, 3), 1),
        ("NCHWc", (2, 8, 7, 5), (4, 8, 1, 1), 1),
        ("NCHWc", (1, 8, 7, 7), (16, 4, 3, 3), 2),
        ("NCHWc", (1, 7, 7, 7), (7, 1, 3, 3), 7),
        ("NCHW->NCHWc", (1, 3, 13, 13), (7, 3, 3, 3), 1),
    )
    block, strides, pads = 4, (2, 1), (1, 0, 1, 2)
    for number, (layout, shape, weight_shape, groups) in enumerate(forms):
        x, w, bias = array(4, shape), array(5, weight_shape), array(6, weight_shape[:1])
        plain = runtime("Conv", x, w, bias, strides=strides, pads=pads, group=groups)
        data = _blocked(x, block) if layout == "NCHWc" else x
        inner = (0, 1) if layout == "NCHWc" and groups == 1 else (0,)
        inputs = [data, _whole(w, block, inner), _whole(bias, block, (0,))]
        yield case(
            f"{layout}-{number}",
            "conv",
            inputs,
            _then_blocked(plain, block),
            2e-5,
            strides=strides,
            pads=pads,
            groups=groups,
            layout=layout,
            block=block,
        )


def _then_blocked(plain: Callable[[], Values], block: int) -> Callable[[], Values]:
    return lambda: _blocked(plain(), block)


def _transposed() -> Iterator[Case]:
    for number, (shape, weight_shape, geometry, groups) in enumerate(TRANSPOSED):
        strides, pads, extra, dilations = geometry
        x, w = array(7, shape), array(8, weight_shape)
        bias = array(9, (weight_shape[1] * groups,))
        expected = runtime(
            "ConvTranspose",
            x,
            w,
            bias,
            strides=strides,
            pads=pads,
            output_padding=extra,
            dilations=dilations,
            group=groups,
        )
        yield case(
            f"{number}",
            "conv_transpose",
            [x, w, bias],
            expected,
            2e-5,
            strides=strides,
            pads=pads,
            dilations=dilations,
            groups=groups,
            shape=expected().shape[2:],
        )


# data, kernel, strides, pads, dilations, ceil mode
POOLS: tuple[tuple[tuple[int, ...], tuple[tuple[int, ...], ...], bool], ...] = (
    ((1, 3, 7, 13), ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)), False),
    ((2, 3, 13, 7), ((2, 3), (1, 2), (0, 1, 1, 0), (1, 1)), False),
    ((1, 2, 13, 13), ((3, 2), (2, 3), (0, 0, 0, 0), (1, 1)), True),
    ((1, 2, 13, 12), ((3, 4), (3, 3), (1, 2, 1, 2), (1, 1)), True),
    ((1, 2, 13, 13), ((3, 3), (1, 2), (2, 1, 1, 2), (2, 1)), False),
    ((1, 1, 1, 1), ((1, 1), (1, 1), (0, 0, 0, 0), (1, 1)), False),
    ((1, 2, 13), ((3,), (2,), (1, 1), (1,)), False),
    ((1, 2, 4, 5, 6), ((2, 3, 2), (2, 1, 2), (0, 1, 0, 1, 1, 0), (1, 1, 1)), False),
)


def _pools() -> Iterator[Case]:
    for number, (shape, (kernel, strides, pads, dilations), ceil) in enumerate(POOLS):
        x = array(10, shape)
        geometry: dict[str, Any] = {"strides": strides, "pads": pads, "dilations": dilations}
        expected = runtime("MaxPool", x, kernel_shape=kernel, ceil_mode=int(ceil), **geometry)
        outputs = expected().shape[2:]
        yield case(f"{number}", "max_pool", [x], expected, kernel=kernel, shape=outputs, **geometry)
        size = np.abs(x)
        sums = runtime("LpPool", size, kernel_shape=kernel, ceil_mode=int(ceil), p=1, **geometry)
        yield case(
            f"{number}", "sum_pool", [size], sums, 1e-5, kernel=kernel, shape=outputs, **geometry
        )
        for include in (0, 1):
            expected = runtime(
                "AveragePool",
                x,
                kernel_shape=kernel,
                ceil_mode=int(ceil),
                count_include_pad=include,
                **geometry,
            )
            yield case(
                f"{number}-{include}",
                "average_pool",
                [x],
                expected,
                1e-5,
                kernel=kernel,
                shape=outputs,
                count_include_pad=bool(include),
                **geometry,
            )


def _typed_pools() -> Iterator[Case]:
    geometry: dict[str, Any] = {"strides": (2, 2), "pads": (1, 1, 1, 1)}
    for dtype in ("int8", "uint8", "float64"):
        x = array(11, (1, 2, 7, 7), dtype)
        expected = runtime("MaxPool", x, kernel_shape=(3, 3), **geometry)
        yield case(dtype, "max_pool", [x], expected, kernel=(3, 3), shape=(4, 4), **geometry)
    x = array(12, (1, 5, 7, 7))
    data = _blocked(x, 4)
    for operator, name in (("max_pool", "MaxPool"), ("average_pool", "AveragePool")):
        padded = np.pad(x, ((0, 0), (0, 3), (0, 0), (0, 0)))
        plain = runtime(name, padded, kernel_shape=(3, 3), **geometry)
        yield case(
            "blocked",
            operator,
            [data],
            _then_blocked(plain, 4),
            1e-5,
            kernel=(3, 3),
            shape=(4, 4),
            layout="NCHWc",
            **geometry,
        )


def _products() -> Iterator[Case]:
    shapes = (
        ((7, 13), (13, 5)),
        ((1, 1), (1, 1)),
        ((1, 97), (97, 1)),
        ((3, 7, 13), (3, 13, 2)),
        ((3, 7, 13), (13, 2)),
        ((7, 13), (3, 13, 2)),
        ((2, 1, 7, 5), (1, 3, 5, 4)),
    )
    for left, right in shapes:
        for dtype in (*FLOATS, "int32", "uint64", "int8"):
            a, b = array(13, left, dtype), array(14, right, dtype)
            for flip_a, flip_b in ((False, False), (True, False), (False, True), (True, True)):
                inputs = [
                    np.ascontiguousarray(x.swapaxes(-1, -2)) if flip else x
                    for x, flip in ((a, flip_a), (b, flip_b))
                ]
                yield case(
                    f"{dtype}-{left}-{right}-{flip_a}-{flip_b}",
                    "matmul",
                    inputs,
                    _product(a, b),
                    1e-5 if dtype == "float32" else None,
                    transpose_a=flip_a,
                    transpose_b=flip_b,
                )


def _product(a: Values, b: Values) -> Callable[[], Values]:
    return lambda: np.matmul(a, b)


def window_cases() -> list[Case]:
    """All cases of this file."""
    return [
        *_convolutions(),
        *_blocked_convolutions(),
        *_transposed(),
        *_pools(),
        *_typed_pools(),
        *_products(),
    ]
