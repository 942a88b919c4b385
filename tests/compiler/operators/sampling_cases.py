"""Cases of the operators that read at places that are computed: taps, frames, caches, maxima."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tests.compiler.operators.cases import Case, Values, array, case, reference
from tunefarm.compiler.types.tensor_type import Attribute

_TAPS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}


def _mirrored(place: float, extent: int, align: bool) -> float:
    low, high = (0.0, extent - 1.0) if align else (-0.5, extent - 0.5)
    if low == high:
        return low
    while not low <= place <= high:
        place = 2 * low - place if place < low else 2 * high - place
    return place


def _weight(distance: float, mode: str) -> float:
    d, a = abs(distance), -0.75
    if mode != "cubic":
        return max(1 - d, 0.0)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return float(a * (d**3 - 5 * d**2 + 8 * d - 4))


def _axis(
    place: float, extent: int, mode: str, padding: str, align: bool
) -> list[tuple[int | None, float]]:
    """The taps along one axis, each with its weight; None outside."""
    far = not -1 <= place <= extent
    low, high = (0.0, extent - 1.0) if align else (-0.5, extent - 0.5)
    if mode == "nearest":
        place = float(np.rint(place))
    if padding == "edge" or (padding == "border" and mode != "cubic" and not low <= place <= high):
        place = min(max(place, 0.0), extent - 1.0)
    elif padding == "reflection":
        place = _mirrored(place, extent, align)
    base = math.floor(place)
    found: list[tuple[int | None, float]] = []
    for step in _TAPS[mode]:
        at = base + step
        weight = _weight(place - at, mode)
        if padding == "reflection":
            at = int(_mirrored(at, extent, align))
        outside = (padding == "zeros" and not 0 <= at < extent) or (padding == "edge" and far)
        found.append((None if outside else min(max(at, 0), extent - 1), weight))
    return found


def _tables(
    places: Values, extents: Sequence[int], mode: str, padding: str, align: bool, rows: int
) -> tuple[Values, Values]:
    """Positions and weights, by scalar code."""
    batch, count, rank = places.shape
    taps = len(_TAPS[mode]) ** rank
    positions = np.empty((batch, taps, count), np.int32)
    weights = np.empty((batch, taps, count), np.float32)
    for n, p in np.ndindex(batch, count):
        axes = [
            _axis(float(places[n, p, a]), extents[a], mode, padding, align) for a in range(rank)
        ]
        for tap, chosen in enumerate(itertools.product(*axes)):
            ats = [at for at, _ in chosen if at is not None]
            inside = len(ats) == rank
            flat = int(np.ravel_multi_index(ats, tuple(extents))) if inside else -1
            positions[n, tap, p] = flat + n * rows if inside else -1
            weights[n, tap, p] = math.prod(weight for _, weight in chosen)
    return positions, weights


def _sampling() -> Iterator[Case]:
    rng = np.random.default_rng(0)
    drawn: list[tuple[tuple[int, ...], str, str, bool]] = [
        ((5,), "cubic", "zeros", False),
        ((4, 7), "linear", "zeros", True),
        ((4, 7), "linear", "border", False),
        ((1, 3), "linear", "reflection", True),
        ((3, 5), "cubic", "reflection", False),
        ((3, 5), "cubic", "border", True),
        ((5, 4), "nearest", "reflection", False),
        ((5, 4), "nearest", "zeros", False),
        ((6, 4), "linear", "edge", False),
        ((3, 2, 4), "linear", "reflection", False),
    ]
    for extents, mode, padding, align in drawn:
        places = rng.uniform(-2.9, np.add(extents, 1.9), (2, 13, len(extents))).astype(np.float32)
        rows = math.prod(extents)
        given: dict[str, Attribute] = {
            "extents": extents,
            "mode": mode,
            "padding": padding,
            "align": align,
        }
        name = f"{mode}-{padding}-{align}-{extents}"

        def table(which: int, given: tuple[Values, Values]) -> Callable[[], Values]:
            return lambda: given[which]

        tables = _tables(places, extents, mode, padding, align, rows)
        yield case(name, "sample_positions", [places], table(0, tables), None, rows=rows, **given)
        if mode != "nearest":
            yield case(name, "sample_weights", [places], table(1, tables), 1e-4, **given)


def _summed() -> Iterator[Case]:
    rng = np.random.default_rng(1)
    positions = rng.integers(-1, 22, (2, 5, 7)).astype(np.int32)
    weights = rng.uniform(-1, 1, (2, 5, 7)).astype(np.float32)
    rows, planes = array(1, (22, 3)), array(2, (2, 3, 22))

    def of_rows() -> Values:
        taken = np.where(positions[..., None] < 0, 0, rows[positions] * weights[..., None])
        return np.asarray(taken.sum(axis=1))

    def of_planes() -> Values:
        taken = np.stack([planes[n][:, positions[n]] * weights[n] for n in range(2)])
        return np.asarray(np.where(positions[:, None] < 0, 0, taken).max(axis=2))

    yield case("", "sample_rows", [rows, positions, weights], of_rows, count=5, guarded=True)
    whole = np.arange(22).astype(np.int32).reshape(1, 1, 22)
    ints = array(3, (22, 3), "int64")
    yield case("unweighted", "sample_rows", [ints, whole], lambda: ints[None], guarded=False)
    yield case(
        "",
        "sample_planes",
        [planes, positions, weights],
        of_planes,
        count=5,
        guarded=True,
        combine="max",
    )


def _bits() -> Iterator[Case]:
    every = np.arange(2**16, dtype=np.uint16)
    halves = every.view(np.float16)
    kept = halves[~np.isnan(halves)]
    pairs: list[tuple[Values, str, str]] = [
        (array(1, (7, 3)), "i32", "int32"),
        (array(1, (7, 3)), "u32", "uint32"),
        (array(1, (7, 3), "float64"), "i64", "int64"),
        (array(1, (7, 3)).view(np.int32), "f32", "float32"),
        (array(1, (7, 3), "float64").view(np.uint64), "f64", "float64"),
        (kept, "u16", "uint16"),
        (kept.view(np.int16), "f16", "float16"),
        (array(1, (5,), "int8"), "u8", "uint8"),
        (array(1, (5,), "bool"), "i8", "int8"),
    ]
    for data, to, name in pairs:
        yield case(f"{data.dtype}-{to}", "bit_cast", [data], _viewed(data, name), to=to)


def _viewed(data: Values, name: str) -> Callable[[], Values]:
    return lambda: data.view(name)


def _moved() -> Iterator[Case]:
    signal = array(1, (2, 23, 3))
    expected = np.stack([signal[:, start : start + 7] for start in range(0, 16, 4)], axis=1)
    yield case("", "frames", [signal], lambda: expected, axis=1, count=4, length=7, step=4)
    cache, update = array(1, (3, 2, 7, 5)), array(2, (3, 2, 4, 5))
    for circular, starts in ((False, (0, 3, 2)), (True, (6, 3, 5))):
        places = np.array(starts, np.int64)
        wanted = reference(
            "TensorScatter",
            cache,
            update,
            places,
            opset=24,
            mode="circular" if circular else "linear",
        )
        given = [cache, update, places]
        yield case(f"{circular}", "cache_update", given, wanted, axis=2, circular=circular)
    merged = np.concatenate([update, cache[:, :, 4:]], axis=2)
    yield case("start", "cache_update", [cache, update], lambda: merged, axis=2)


def _maxima() -> Iterator[Case]:
    data = np.floor(array(4, (2, 3, 7, 6)))
    for pads in ((0, 0, 0, 0), (1, 0, 1, 1)):
        for columns_first in (False, True):
            yield _maximum(data, pads, columns_first)


def _maximum(data: Values, pads: tuple[int, ...], columns_first: bool) -> Case:
    """Windows of 3x2 in steps of 2x1."""
    top, left, bottom, right = pads
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=-np.inf)
    order = (0, 1, 3, 2) if columns_first else (0, 1, 2, 3)
    turned = np.arange(data.size).reshape([data.shape[axis] for axis in order])
    numbers = np.pad(
        turned.transpose(order), ((0, 0), (0, 0), (top, bottom), (left, right))
    )  # each order is its own inverse
    shape = (*data.shape[:2], (padded.shape[2] - 3) // 2 + 1, padded.shape[3] - 1)
    largest, first = np.empty(shape, np.float32), np.empty(shape, np.int64)
    for n, c, y, x in np.ndindex(*shape):
        window = padded[n, c, 2 * y : 2 * y + 3, x : x + 2]
        largest[n, c, y, x] = window.max()
        own = numbers[n, c, 2 * y : 2 * y + 3, x : x + 2]
        first[n, c, y, x] = own[window == window.max()].min()
    return case(
        f"{pads}-{columns_first}",
        "max_places",
        [data, largest],
        lambda: first,
        kernel=(3, 2),
        strides=(2, 1),
        pads=pads,
        shape=shape[2:],
        columns_first=columns_first,
    )


def _steps() -> Iterator[Case]:
    rng = np.random.default_rng(3)
    data = rng.standard_normal((13, 3)).astype(np.float32)
    data[::4, 1] = np.nan
    features = rng.integers(0, 3, 9).astype(np.int32)
    thresholds = rng.standard_normal(9).astype(np.float32)
    children = rng.integers(0, 9, 18).astype(np.int32)
    nan_first = rng.integers(0, 2, 9).astype(bool)
    nodes = rng.integers(0, 9, (4, 13)).astype(np.int32)
    values = data[np.arange(13), features[nodes]]
    at_most, missing = values <= thresholds[nodes], np.isnan(values)
    tables = [features, thresholds, children]
    plain = children[2 * nodes + 1 - at_most]
    special = children[2 * nodes + 1 - (at_most | (missing & nan_first[nodes]))]
    yield case("", "tree_step", [nodes, data, *tables], lambda: plain)
    yield case("nan", "tree_step", [nodes, data, *tables, nan_first], lambda: special)
    turned = np.ascontiguousarray(nodes.T)
    by_rows = [turned, data, *tables]
    yield case("by_rows", "tree_step", by_rows, lambda: plain.T, by_rows=True)
    yield case("by_rows-nan", "tree_step", [*by_rows, nan_first], lambda: special.T, by_rows=True)


def _tree_leaves() -> Iterator[Case]:
    rng = np.random.default_rng(4)
    trees, nodes, rows = 5, 7, 13
    data = rng.standard_normal((3, rows)).astype(np.float32)
    data[1, ::4] = np.nan
    features = rng.integers(0, 3, (trees, nodes)).astype(np.int32)
    thresholds = rng.standard_normal((trees, nodes)).astype(np.float32)
    kept = np.array([0, 1, 12, 30, 31])  # the only leaf that all nodes of a tree may leave
    masks = np.where(rng.random((2, trees, nodes)) < 0.2, 0, -1)
    masks[:, :, 0] &= 1 << kept
    first, second = masks.astype(np.uint32).astype(np.int32)
    leaves = rng.integers(0, 99, trees * 33).astype(np.int32)
    nan_first = rng.integers(0, 2, (trees, nodes)).astype(bool)
    values = data[features]  # [trees, nodes, rows]
    at_most, missing = values <= thresholds[..., None], np.isnan(values)

    def found(goes_first: Values) -> Values:
        bits = np.where(goes_first, first[..., None], second[..., None])
        is_left = np.bitwise_and.reduce(bits, axis=1) != 0
        slots = np.where(is_left, 1 + kept[:, None], 0)
        return leaves[33 * np.arange(trees)[:, None] + slots]

    plain, special = found(at_most), found(at_most | (missing & nan_first[..., None]))
    tables = [features, thresholds, first, second]
    yield case("", "tree_leaves", [data, *tables, leaves], lambda: plain)
    yield case("nan", "tree_leaves", [data, *tables, leaves, nan_first], lambda: special)
    rows_first, *turned, missing_first = (
        np.ascontiguousarray(table.T) for table in (data, *tables, nan_first)
    )
    by_rows = [rows_first, *turned, leaves]
    yield case("by_rows", "tree_leaves", by_rows, lambda: plain.T, by_rows=True)
    with_nans = [*by_rows, missing_first]
    yield case("by_rows-nan", "tree_leaves", with_nans, lambda: special.T, by_rows=True)


def sampling_cases() -> list[Case]:
    """All of them."""
    return [*_steps(), *_tree_leaves(), *_sampling(), *_summed(), *_bits(), *_moved(), *_maxima()]
