"""Cases of the operators that move elements: views, shape changes, gathers and layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from tests.compiler.operators.cases import ALL, Case, Values, array, case, reference, runtime
from tunefarm.compiler.operators.gather import REDUCTIONS


def _ints(*values: int) -> Values:
    return np.array(values, "int64")


def _shapes() -> Iterator[Case]:
    for dtype in ALL:
        x = array(1, (2, 7, 3), dtype)
        yield case(
            dtype, "transpose", [x], reference("Transpose", x, perm=[2, 0, 1]), perm=(2, 0, 1)
        )
        parts = [array(seed, (2, extent, 3), dtype) for seed, extent in enumerate((1, 7, 13))]
        yield case(dtype, "concat", parts, reference("Concat", *parts, axis=1), axis=1)
    x = array(1, (2, 1, 13))
    for perm in ((0, 1, 2), (1, 2, 0)):
        expected = reference("Transpose", x, perm=list(perm))
        yield case(f"{perm}", "transpose", [x], expected, perm=perm)
    many = [array(seed, (1 + seed % 3, 2)) for seed in range(40)]
    yield case("forty", "concat", many, reference("Concat", *many, axis=0), axis=0)
    yield case("one", "concat", [x], lambda: x, axis=2)
    for shape in ((26,), (13, 2), (1, 26, 1)):
        yield case(f"{shape}", "reshape", [x], reference("Reshape", x, _ints(*shape)), shape=shape)
    pieces: tuple[tuple[int, tuple[int, ...]], ...] = ((0, (26,)), (7, (3, 2)), (25, ()))
    for offset, part in pieces:
        yield case(
            f"{offset}-{part}",
            "part",
            [x],
            lambda start=offset, shape=part: (  # type: ignore[misc]
                x.reshape(-1)[start : start + math.prod(shape)].reshape(shape)
            ),
            offset=offset,
            shape=part,
        )
    yield case("join", "join", [x, x], lambda: np.stack([x, x]), shape=(2, *x.shape))
    yield case("copy", "copy", [x], lambda: x)
    for taken in (True, False):
        sides = [array(seed, (2, 7, 3), "float16") for seed in (3, 4)]
        operands = [np.array(taken), *sides]
        yield case(f"{taken}", "choose", operands, lambda side=sides[not taken]: side)  # type: ignore[misc]
    scalar = array(1, (1, 1))
    yield case("scalar", "reshape", [scalar], lambda: scalar.reshape(()), shape=())


def _slices() -> Iterator[Case]:
    x = array(2, (7, 13))
    windows: tuple[tuple[tuple[int, int], tuple[int, int], tuple[int, int]], ...] = (
        ((1, 2), (5, 13), (1, 1)),
        ((0, 0), (7, 13), (3, 5)),
        ((6, 12), (-8, 3), (-1, -2)),
        ((3, 12), (4, 13), (1, 1)),
    )
    for starts, ends, steps in windows:
        expected = reference("Slice", x, _ints(*starts), _ints(*ends), _ints(0, 1), _ints(*steps))
        shape = expected().shape
        yield case(
            f"{starts}-{steps}", "slice", [x], expected, starts=starts, steps=steps, shape=shape
        )


def _repeats() -> Iterator[Case]:
    x = array(3, (1, 7, 1))
    for shape in ((2, 7, 3), (1, 1, 13), (5, 1, 1, 1), (7, 1)):
        yield case(f"{shape}", "expand", [x], reference("Expand", x, _ints(*shape)), shape=shape)
    for repeats in ((1, 1, 1), (2, 3, 4), (1, 2, 1)):
        expected = reference("Tile", x, _ints(*repeats))
        yield case(f"{repeats}", "tile", [x], expected, repeats=repeats)
    square = array(4, (2, 7, 5))
    for upper in (0, 1):
        for k in (-6, -1, 0, 2, 9):
            expected = reference("Trilu", square, np.array(k), upper=upper)
            yield case(f"{upper}-{k}", "trilu", [square], expected, upper=bool(upper), k=k)


def _pads() -> Iterator[Case]:
    x = array(5, (3, 7))
    for mode in ("constant", "reflect", "edge", "wrap"):
        for pads in ((1, 2, 0, 3), (0, 0, 0, 0), (2, 6, 2, 6), (0, 4, 1, 0)):
            expected = reference("Pad", x, _ints(*pads), mode=mode)
            yield case(f"{mode}-{pads}", "pad", [x], expected, pads=pads, mode=mode)
    for pads in ((-1, 2, 0, -3), (0, -2, -1, 0)):
        expected = runtime("Pad", x, _ints(*pads))
        yield case(f"crop-{pads}", "pad", [x], expected, pads=pads)
    for dtype in ALL:
        y, value = array(6, (2, 3), dtype), np.array(1, dtype)
        expected = reference("Pad", y, _ints(0, 1, 2, 0), value)
        yield case(f"tensor-{dtype}", "pad", [y, value], expected, pads=(0, 1, 2, 0))
        yield case(f"value-{dtype}", "pad", [y, None], expected, pads=(0, 1, 2, 0), value=1)
    row = array(7, (1, 3))
    for mode in ("reflect", "edge", "wrap"):
        expected = _numpy_pad(row, mode)
        yield case(f"{mode}-single", "pad", [row], expected, pads=(2, 7, 1, 8), mode=mode)


def _numpy_pad(x: Values, mode: Any) -> Callable[[], Values]:
    return lambda: np.pad(x, ((2, 1), (7, 8)), mode=mode)


def _gathers() -> Iterator[Case]:
    x = array(8, (5, 7, 3))
    for type in ("int32", "int64"):
        for axis in range(3):
            extent = x.shape[axis]
            picks = np.random.default_rng(axis).integers(-extent, extent, (2, 4)).astype(type)
            expected = reference("Gather", x, picks, axis=axis)
            yield case(f"{type}-{axis}", "gather", [x, picks], expected, axis=axis)
            shape = [2 if other == axis else 3 for other in range(3)]
            elements = np.random.default_rng(axis).integers(-extent, extent, shape).astype(type)
            expected = runtime("GatherElements", x, elements, axis=axis)
            id = f"{type}-{axis}"
            yield case(id, "gather_elements", [x, elements], expected, axis=axis)
    single = np.array(-1)
    yield case("scalar", "gather", [x, single], reference("Gather", x, single, axis=1), axis=1)
    for dtype in ALL:
        y = array(9, (4, 2), dtype)
        rows = _ints(3, -4, 0)
        yield case(dtype, "gather", [y, rows], reference("Gather", y, rows))
    nd: tuple[tuple[tuple[int, ...], int], ...] = (
        ((2, 1), 0),
        ((3, 2), 0),
        ((2, 2, 3), 0),
        ((5, 2), 1),
        ((5, 7, 1), 2),
    )
    for picked, batch in nd:
        picks = np.random.default_rng(3).integers(-3, 3, picked)
        expected = runtime("GatherND", x, picks, batch_dims=batch)
        yield case(f"{picked}-{batch}", "gather_nd", [x, picks], expected, batch_dims=batch)
    outside = _ints(7, -9)
    yield case("outside", "gather", [x, outside], lambda: x[:, [6, 0]], axis=1)


def _resamplings() -> Iterator[Case]:
    x = array(12, (3, 7, 5))
    for axis in range(3):
        for step, divisor, offset in ((1, 2, 0), (1, 3, -1), (2, 1, 1), (3, 5, -4)):
            size = 2 * x.shape[axis] + 1
            positions = (np.arange(size) * step + offset) // divisor
            expected = x.take(np.clip(positions, 0, x.shape[axis] - 1), axis)
            yield case(
                f"{axis}-{step}/{divisor}",
                "resample",
                [x],
                partial(np.asarray, expected),
                axis=axis,
                size=size,
                step=step,
                divisor=divisor,
                offsets=(offset,),
            )
        yield from _weighted(x, axis)


def _weighted(x: Values, axis: int) -> Iterator[Case]:
    extent, size, taps = x.shape[axis], 9, 3
    rng = np.random.default_rng(axis)
    weights = rng.uniform(0, 1, (taps, size)).astype(x.dtype)
    column = (taps, size, *(1,) * (x.ndim - axis - 1))
    for tabled in (False, True):
        if tabled:
            positions = rng.integers(-2, extent + 2, (taps, size))
        else:
            positions = (np.arange(size) + np.array([[-1], [0], [2]])) // 2
        picked = [x.take(np.clip(row, 0, extent - 1), axis) for row in positions]
        expected = sum(part * w for part, w in zip(picked, weights.reshape(column), strict=True))
        tables = [positions.astype(np.int32)] if tabled else []
        yield case(
            f"{axis}-weighted-{tabled}",
            "resample",
            [x, *tables, weights],
            partial(np.asarray, expected),
            axis=axis,
            size=size,
            divisor=2,
            offsets=(-1, 0, 2),
            tabled=tabled,
            weighted=True,
        )


def _scatters() -> Iterator[Case]:
    random = np.random.default_rng(0)
    places = random.permuted(np.indices((3, 5, 2))[1], axis=1)[:, :4] - 5 * (np.arange(2) > 0)
    rows = random.permutation(np.indices((2, 3)).reshape(2, 6).T)[:4]
    for reduction in REDUCTIONS:
        for dtype in ("float32", "float64", "int32", "uint8"):
            data, updates = array(20, (3, 5, 2), dtype), array(21, (3, 4, 2), dtype)
            operands = [data, places, updates]
            expected = reference("ScatterElements", *operands, axis=1, reduction=reduction)
            id = f"{dtype}-{reduction}"
            yield case(id, "scatter_elements", operands, expected, reduction=reduction)
            table, updates = array(22, (6, 5), dtype), array(23, (4, 5), dtype)
            whole = reference(
                "ScatterND", table.reshape(2, 3, 5), rows, updates, reduction=reduction
            )
            operands, expected = [table, rows, updates], _flat_rows(whole)
            yield case(id, "scatter_rows", operands, expected, reduction=reduction, named=(2, 3))
    yield from _scatters_of_some_updates()


def _scatters_of_some_updates() -> Iterator[Case]:
    """Places that all columns share, and, with sizes, less updates than there is room for."""
    data, updates = array(24, (2, 5, 3)), array(25, (2, 4, 3))
    picks, sizes = np.array([[1, -1, 0, 3]]).reshape(1, 4, 1), np.array([7, 3])
    table, rows = data[0], picks.reshape(4, 1)
    for reduction in REDUCTIONS:
        wide = np.broadcast_to(picks, updates.shape)
        operands, kept = [data, picks, updates], [data, wide, updates]
        expected = reference("ScatterElements", *kept, axis=1, reduction=reduction)
        id = f"shared-{reduction}"
        yield case(id, "scatter_elements", operands, expected, reduction=reduction)
        first = [data, wide[:, :3], updates[:, :3]]
        expected = reference("ScatterElements", *first, axis=1, reduction=reduction)
        ended: dict[str, Any] = {"reduction": reduction, "number": 1}
        operands = [data, picks, updates, sizes]
        yield case(f"ended-{reduction}", "scatter_elements", operands, expected, **ended)
        expected = reference("ScatterND", table, rows[:3], updates[0, :3], reduction=reduction)
        operands = [table, rows, updates[0], sizes]
        yield case(f"ended-{reduction}", "scatter_rows", operands, expected, **ended, named=(5,))


def _flat_rows(expected: Callable[[], Values]) -> Callable[[], Values]:
    return lambda: expected().reshape(6, 5)


def _one_hots() -> Iterator[Case]:
    for dtype in ("int64", "int32", "float32", "uint8"):
        picks = array(10, (2, 7), dtype)
        values = np.array([-1, 5], "float32")
        for axis in range(3):
            expected = runtime("OneHot", picks.astype("int64"), _ints(6), values, axis=axis)
            yield case(f"{dtype}-{axis}", "one_hot", [picks, values], expected, depth=6, axis=axis)


def _in_blocks(x: Values, lane: float = 0.0) -> Values:
    """[N, C, H, W] in blocks of 8 channels, with a number in the lanes that pad them."""
    images, channels, *plane = x.shape
    padded = np.full((images, -(-channels // 8) * 8, *plane), lane, x.dtype)
    padded[:, :channels] = x
    return np.ascontiguousarray(padded.reshape(images, -1, 8, *plane).transpose(0, 1, 3, 4, 2))


def _blocks() -> Iterator[Case]:
    for channels in (1, 7, 8, 13):
        x = array(11, (2, channels, 3, 5))
        blocked = _in_blocks(x)
        yield case(f"{channels}", "to_blocked", [x], _constant(blocked), block=8)
        yield case(f"{channels}", "from_blocked", [blocked], _constant(x), channels=channels)
    for counts in ((8, 16), (12, 12), (4, 20, 3), (1, 1, 1), (13, 8, 8, 2), (24, 9)):
        parts = [array(seed, (2, count, 3, 5)) for seed, count in enumerate(counts)]
        joined = _constant(_in_blocks(np.concatenate(parts, axis=1)))
        blocked_parts = [_in_blocks(part, 7.0) for part in parts]
        yield case(f"blocks-{counts}", "concat", blocked_parts, joined, axis=1, channels=counts)


def _rotaries() -> Iterator[Case]:
    for features, width in ((6, 6), (34, 34), (34, 20), (7, 2)):
        x = array(12, (2, 3, 5, features))
        cosine, sine = (array(seed, (2, 5, width // 2)) for seed in (13, 14))
        for interleaved in (False, True):
            expected = reference(
                "RotaryEmbedding",
                *(x, cosine, sine),
                opset=23,
                interleaved=int(interleaved),
                rotary_embedding_dim=width,
            )
            attributes: dict[str, Any] = {"width": width, "interleaved": interleaved}
            tables = [table[:, None] for table in (cosine, sine)]
            name = f"{width}-{interleaved}"
            yield case(f"{name}-pairs", "rotary", [x, *tables], expected, 1e-5, **attributes)
            wide = [
                np.repeat(table, 2, -1) if interleaved else np.concatenate([table, table], -1)
                for table in tables
            ]
            yield case(f"{name}-features", "rotary", [x, *wide], expected, 1e-5, **attributes)


def _depth_and_space() -> Iterator[Case]:
    """`split` is the same as a transpose, which the tests of the pass that splits compare."""
    for block, channels in ((1, 3), (2, 5), (3, 1)):
        deep = array(15, (2, channels * block * block, 4, 5))
        wide = array(16, (2, channels, 4 * block, 5 * block))
        for mode, order in (("DCR", "yxc"), ("CRD", "cyx")):
            given: dict[str, Any] = {"block": block, "order": order}
            name = f"{mode}-{block}"
            expected = runtime("DepthToSpace", deep, blocksize=block, mode=mode)
            yield case(name, "depth_to_space", [deep], expected, **given)
            parts = (block, block, channels) if mode == "DCR" else (channels, block, block)
            perm = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
            back = deep.reshape(2, *parts, 4, 5).transpose(perm).reshape(wide.shape)
            yield case(name, "space_to_depth", [back], _constant(deep), **given)
        phases = [wide[:, :, y::block, x::block] for x in range(block) for y in range(block)]
        focused = np.concatenate(phases, axis=1)
        given = {"block": block, "order": "xyc"}
        yield case(f"focus-{block}", "space_to_depth", [wide], _constant(focused), **given)
        yield case(f"focus-{block}", "depth_to_space", [focused], _constant(wide), **given)
    for shape in ((2, 6), (1, 6, 5), (2, 6, 3, 4)):
        x = array(17, shape)
        shuffled = x.reshape(shape[0], 3, 2, -1).swapaxes(1, 2).reshape(shape)
        yield case(f"{shape}", "channel_shuffle", [x], _constant(shuffled.copy()), groups=3)


def _constant(value: Values) -> Callable[[], Values]:
    return lambda: value


def _filled() -> Iterator[Case]:
    for dtype in ALL:
        x = array(3, (2, 6, 5), dtype)
        rows = np.arange(6)[None, :, None]
        for value, number in (("zero", 0), ("one", 1)):
            expected = _constant(np.where(rows < 4, x, np.array(number, dtype)))
            yield case(
                f"{dtype}-{value}",
                "fill",
                [x, _ints(9, 4)],
                expected,
                axis=1,
                number=1,
                value=value,
            )
    x = array(3, (2, 6, 5))
    for value, end in (("lowest", -math.inf), ("highest", math.inf)):
        expected = _constant(np.where(np.arange(5) < 3, x, np.float32(end)))
        yield case(value, "fill", [x, _ints(3)], expected, axis=2, number=0, value=value)
    inner = _constant(np.where((np.arange(6) % 3 < 2)[:, None], x, np.float32(0)))
    yield case("inner", "fill", [x, _ints(2)], inner, axis=1, number=0, extent=3)
    outer = _constant(np.where((np.arange(6) // 3 < 1)[:, None], x, np.float32(0)))
    yield case("outer", "fill", [x, _ints(1)], outer, axis=1, number=0, inner=3)


def _shifts() -> Iterator[Case]:
    for dtype in ALL:
        x, value = array(3, (2, 7, 5), dtype), np.array(1, dtype)
        for start, step, end in ((2, 1, 7), (-3, 1, 7), (1, 2, 6), (6, -2, 7), (-9, 1, 7)):
            for given in (None, value):
                shifted = np.full((2, 9, 5), 0 if given is None else given, dtype)
                places = start + step * np.arange(9)
                there = (places >= 0) & (places < end)
                shifted[:, there] = x[:, places[there]]
                name = f"{dtype}-{start}-{step}-{given}"
                numbers = {"start": 1, "end": 2, "extent": 9, "step": step}
                operands = [x, _ints(99, start, end), given]
                yield case(name, "shift", operands, _constant(shifted), axis=1, **numbers)
        parts = [array(seed, (2, extent, 3), dtype) for seed, extent in enumerate((11, 1, 6))]
        for sizes in ((4, 1, 6), (0, 1, 2), (3, 0, 5), (2, 0, 0)):
            joined = np.zeros((2, 11, 3), dtype)
            taken = [part[:, :size] for part, size in zip(parts, sizes, strict=True)]
            joined[:, : sum(sizes)] = np.concatenate(taken, axis=1)
            beyond = sum(sizes) + np.arange(6 - sizes[2])
            joined[:, beyond] = parts[2][:, sizes[2] :]  # what is there of the last part
            operands = [_ints(sizes[0], sizes[0] + sizes[1]), *parts]
            name, ends = f"{dtype}-{sizes}", (0, 1)
            expected = _constant(joined)
            yield case(name, "ragged_concat", operands, expected, axis=1, ends=ends)


def _merged_rows() -> Iterator[Case]:
    for dtype in ALL:
        x = array(3, (2, 5, 7, 3), dtype)
        for rows, columns in ((5, 7), (5, 4), (2, 7), (3, 1), (0, 2), (2, 0)):
            places = np.arange(35)
            row, column = np.divmod(places, max(1, columns))
            there = (row < min(rows, 5))[None, :, None]
            merged = np.where(there, x[:, np.minimum(row, 4), column], np.array(0, dtype))
            name, numbers = f"{dtype}-{rows}x{columns}", {"rows": 1, "columns": 2}
            operands, expected = [x, _ints(9, rows, columns)], _constant(merged)
            yield case(name, "merge_rows", operands, expected, axis=1, **numbers)


def movement_cases() -> list[Case]:
    """All cases of this file."""
    return [
        *_shapes(),
        *_slices(),
        *_repeats(),
        *_pads(),
        *_gathers(),
        *_resamplings(),
        *_scatters(),
        *_one_hots(),
        *_blocks(),
        *_rotaries(),
        *_depth_and_space(),
        *_filled(),
        *_shifts(),
        *_merged_rows(),
    ]
