"""Cases of reductions, softmax and normalisations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from tests.compiler.operators.cases import (
    FLOATS,
    NUMBERS,
    Case,
    Values,
    array,
    case,
    reference,
    runtime,
)

REDUCTIONS: dict[str, Callable[..., Values]] = {
    "reduce_sum": np.sum,
    "reduce_mean": np.mean,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
}
SHAPES = (
    ((7, 1, 13), (0,)),
    ((7, 1, 13), (1, 2)),
    ((7, 1, 13), (0, 1, 2)),
    ((13,), (0,)),
    ((), ()),
)


def _reduced(
    function: Callable[..., Values], x: Values, axes: tuple[int, ...], keep: bool
) -> Callable[[], Values]:
    def run() -> Values:
        wide = x.astype("float64") if x.dtype.kind == "f" else x
        value = function(wide, axis=axes, keepdims=keep) if axes else wide
        if x.dtype.kind != "f" and function is np.mean and axes:
            value = np.trunc(value)
        return np.asarray(value).astype(x.dtype)

    return run


def _reductions() -> Iterator[Case]:
    for operator, function in REDUCTIONS.items():
        for dtype in NUMBERS:
            shapes = SHAPES if dtype in ("float32", "int32") else SHAPES[:1]
            for shape, axes in shapes:
                small = operator == "reduce_mean" and dtype in ("int8", "uint8")
                x = array(1, shape, dtype) // 9 if small else array(1, shape, dtype)
                for keep in (True, False):
                    id = f"{dtype}-{shape}-{axes}-{keep}"
                    expected = _reduced(function, x, axes, keep)
                    yield case(id, operator, [x], expected, axes=axes, keepdims=keep)
    flags = array(2, (7, 3), "bool")
    for operator, name in (("reduce_max", "ReduceMax"), ("reduce_min", "ReduceMin")):
        expected = reference(name, flags, np.array([1]))
        yield case("bool", operator, [flags], expected, axes=(1,))


def _positions() -> Iterator[Case]:
    for operator, name in (("arg_max", "ArgMax"), ("arg_min", "ArgMin")):
        for dtype in NUMBERS:
            x = array(3, (7, 13, 2), dtype).round()
            for axis in (0, 1, 2):
                for last in (0, 1):
                    flags = {"keepdims": (axis + last) % 2, "select_last_index": last}
                    expected = reference(name, x, axis=axis, **flags)
                    id = f"{dtype}-{axis}-{last}"
                    yield case(id, operator, [x], expected, axis=axis, **flags)
    infinite = np.full((3,), -np.inf, "float32")
    yield case("infinite", "arg_max", [infinite], reference("ArgMax", infinite, axis=0))
    undefined = np.array([1, np.nan, 3, np.nan], "float32")
    yield case("nan", "arg_max", [undefined], reference("ArgMax", undefined, axis=0))


def _sums() -> Iterator[Case]:
    for dtype in NUMBERS:
        x = array(4, (3, 7), dtype)
        for axis in (0, 1):
            for exclusive in (0, 1):
                for reverse in (0, 1):
                    flags = {"exclusive": exclusive, "reverse": reverse}
                    expected = reference("CumSum", x, np.array(axis), **flags)
                    id = f"{dtype}-{axis}-{exclusive}{reverse}"
                    yield case(id, "cumsum", [x], expected, axis=axis, **flags)


def _products() -> Iterator[Case]:
    x = array(4, (3, 7)) + np.float32(1)

    def expected(axis: int, exclusive: bool, reverse: bool) -> Callable[[], Values]:
        def run() -> Values:
            data = np.flip(x, axis) if reverse else x
            if exclusive:
                data = np.insert(data, 0, 1, axis).take(range(x.shape[axis]), axis)
            found = np.cumprod(data.astype("float64"), axis).astype("float32")
            return np.flip(found, axis) if reverse else found

        return run

    for axis in (0, 1):
        for exclusive in (False, True):
            for reverse in (False, True):
                flags = {"exclusive": exclusive, "reverse": reverse}
                values = expected(axis, exclusive, reverse)
                yield case(
                    f"{axis}-{exclusive}-{reverse}", "cumprod", [x], values, axis=axis, **flags
                )


def _softmaxes() -> Iterator[Case]:
    for dtype in FLOATS:
        for shape in ((13,), (7, 1, 5), (2, 3, 97)):
            x = array(5, shape, dtype) * 30
            for axis in range(len(shape)):
                id = f"{dtype}-{shape}-{axis}"
                for operator, name in (("softmax", "Softmax"), ("log_softmax", "LogSoftmax")):
                    tight = 2e-6 if dtype == "float32" else 1e-12
                    expected = runtime(name, x, axis=axis)
                    yield case(id, operator, [x], expected, tight, axis=axis)


def _layer_norms() -> Iterator[Case]:
    x = array(6, (2, 7, 13)) + np.float32(100)
    for axis in range(3):
        scale, bias = array(7, x.shape[axis:]), array(8, x.shape[axis:])
        for parts in ((scale, bias), (scale,)):
            expected = runtime("LayerNormalization", x, *parts, axis=axis, epsilon=1e-3)
            yield case(
                f"{axis}-{len(parts)}",
                "layer_norm",
                [x, *parts],
                expected,
                1e-4,
                axis=axis,
                epsilon=1e-3,
            )
    wide = array(6, (3, 5), "float64")
    scale = array(7, (1, 5), "float64")
    yield case("float64", "layer_norm", [wide, scale], _layer_norm(wide, scale), axis=1)


def _layer_norm(x: Values, scale: Values) -> Callable[[], Values]:
    centred = x - x.mean(axis=1, keepdims=True)
    return lambda: centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * scale


def _plane_norms() -> Iterator[Case]:
    """A scale for each channel of images, plain and blocked."""
    x = array(6, (2, 16, 5, 3)) + np.float32(10)
    scale, bias = array(7, (16,)), array(8, (16,))
    expected = runtime("InstanceNormalization", x, scale, bias, epsilon=1e-3)
    parts = [scale.reshape(16, 1, 1), bias.reshape(16, 1, 1)]
    flags: dict[str, Any] = {"axis": 2, "epsilon": 1e-3}
    yield case("planes", "layer_norm", [x, *parts], expected, 1e-4, **flags)

    def blocked(values: Values) -> Values:
        return np.ascontiguousarray(values.reshape(2, 2, 8, 5, 3).transpose(0, 1, 3, 4, 2))

    yield case(
        "blocked planes",
        "layer_norm",
        [blocked(x), *parts],
        lambda: blocked(np.asarray(expected())),
        1e-4,
        layout="NCHWc",
        **flags,
    )


def _other_norms() -> Iterator[Case]:
    x = array(6, (2, 7, 13)) + np.float32(3)
    wide = x.astype("float64")
    for axis in range(3):
        axes = tuple(range(axis, 3))
        scale = array(7, x.shape[axis:])
        root = np.sqrt((wide**2).mean(axis=axes, keepdims=True) + 1e-3)
        for parts in ((), (scale,)):
            expected = (wide / root * (parts[0] if parts else 1)).astype("float32")
            id = f"{axis}-{len(parts)}"
            flags: dict[str, Any] = {"axis": axis, "epsilon": 1e-3}
            yield case(id, "rms_norm", [x, *parts], partial(np.asarray, expected), 1e-5, **flags)
        for p in (1, 2):
            zeroed = x * (np.arange(7) != 3).astype("float32")[None, :, None]
            norms = runtime("LpNormalization", zeroed, axis=axis, p=p)
            yield case(f"{axis}-{p}", "lp_norm", [zeroed], norms, 1e-5, axis=axis, p=p)
    for axes in ((0,), (1,), (0, 2), (0, 1, 2)):
        centred = wide - wide.mean(axis=axes, keepdims=True)
        root = np.sqrt((centred**2).mean(axis=axes, keepdims=True)) + 1e-9
        expected = (centred / root).astype("float32")
        yield case(
            f"{axes}", "mean_variance_norm", [x], partial(np.asarray, expected), 1e-4, axes=axes
        )


def _channel_norms() -> Iterator[Case]:
    for shape in ((2, 7), (2, 7, 13), (1, 7, 3, 3)):
        for dtype in FLOATS:
            x = array(9, shape, dtype)
            scale, bias, mean = (array(seed, (7,), dtype) for seed in (1, 2, 3))
            variance = array(4, (7,), dtype, 0.5)
            inputs = [x, scale, bias, mean, variance]
            expected = reference("BatchNormalization", *inputs, epsilon=1e-3, opset=15)
            id = f"{dtype}-{shape}"
            yield case(id, "batch_norm", inputs, expected, 2e-6, epsilon=1e-3)
    x = array(10, (2, 7, 5, 3))
    for size in (1, 3, 5):
        flags: dict[str, Any] = {"alpha": 0.02, "beta": 0.6, "bias": 2.0}
        expected = runtime("LRN", x, size=size, **flags)
        yield case(f"{size}", "lrn", [x], expected, 1e-5, size=size, **flags)
    # Channels c-1 to c+2: the longer half of an even window lies after the channel.
    padded = np.pad(x, ((0, 0), (1, 2), (0, 0), (0, 0)))
    squares = np.square([padded[:, tap : tap + 7] for tap in range(4)]).sum(axis=0)
    yield case("even", "lrn", [x], lambda: x / (1 + 1e-4 / 4 * squares) ** 0.75, 1e-5, size=4)


def _attention(
    q: Values, k: Values, v: Values, scale: float, mask: Values, perm: tuple[int, ...]
) -> Callable[[], Values]:
    scores = scale * q.astype("float64") @ k.astype("float64").swapaxes(-1, -2)
    scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result = (weights / weights.sum(axis=-1, keepdims=True) @ v).astype(q.dtype)
    return lambda: np.ascontiguousarray(result.transpose(perm))


def _attentions() -> Iterator[Case]:
    heads = (0, 2, 1, 3)  # [batch, position, head, feature]: heads before positions
    for dtype in FLOATS:
        q, k, v = (
            array(seed, shape, dtype, -1)
            for seed, shape in ((1, (2, 3, 5, 4)), (2, (2, 1, 7, 4)), (3, (2, 3, 7, 6)))
        )
        chosen = array(4, (5, 7), "bool") | np.eye(5, 7, dtype=np.bool_)
        for mask in (array(5, (3, 1, 7), dtype), chosen):
            expected = _attention(q, k, v, 0.5, mask, (0, 1, 2, 3))
            tight = 2e-6 if dtype == "float32" else 1e-12
            id = f"{dtype}-{mask.dtype}"
            yield case(id, "attention", [q, k, v, mask], expected, tight, scale=0.5)
        lying = [np.ascontiguousarray(x.transpose(heads)) for x in (q, k, v)]
        perms = {"query_perm": heads, "key_perm": heads, "value_perm": heads, "perm": heads}
        turned = _attention(q, k, v, 1.0, np.zeros((), dtype), heads)
        yield case(f"{dtype}-turned", "attention", lying, turned, tight, **perms)


def _pairs() -> Iterator[Case]:
    """Counts over pairs, row by row."""

    def equal_before(row: Values, i: int) -> int:
        return int((row[:i] == row[i]).sum())

    counts: dict[str, Callable[[Values, int], int]] = {
        "rank_ascending": lambda row, i: int((row < row[i]).sum()) + equal_before(row, i),
        "rank_descending": lambda row, i: int((row > row[i]).sum()) + equal_before(row, i),
        "count_less": lambda row, i: int((row < row[i]).sum()),
        "count_equal_before": equal_before,
    }
    for name, count in counts.items():
        for dtype in ("float32", "int8", "uint64", "bool"):
            x = array(3, (2, 37), dtype)
            x[:, 20:] = x[:, :17]

            def ranks(x: Values = x, count: Callable[..., int] = count) -> Values:
                return np.array([[count(row, i) for i in range(37)] for row in x])

            yield case(dtype, name, [x], ranks)


def reduction_cases() -> list[Case]:
    """All cases of this file."""
    return [
        *_reductions(),
        *_positions(),
        *_sums(),
        *_products(),
        *_softmaxes(),
        *_attentions(),
        *_layer_norms(),
        *_plane_norms(),
        *_other_norms(),
        *_channel_norms(),
        *_pairs(),
    ]
