"""Where resizing reads along an axis, and by what weights: the formulas of ONNX's Resize."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.frontend.value import Value
from tunefarm.compiler.types.sizes import Dimension

_MAX_DIVISOR = 16  # of positions: beyond it a table is as fast,
_WHOLE_ROW = 256  # but for rows so short that all of their positions are known when compiling

MAX_TAPS = 128  # elements that one of the result is made of
TIE = 1e-6
"""How far from the middle of two elements a position still counts as there, for its rounding: 17.5
of 21 elements out of 18 is 14.500001 in float32. It is onnxruntime's number."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SizedAxis:
    """True sizes of an axis before and behind, and the scale; None: that of the sizes.

    A scale that depends on sizes is a scalar of f32.
    """

    given: Dimension
    wanted: Dimension
    scale: float | Value | None


@dataclass(frozen=True, slots=True)
class Axis:
    """How one axis is resized: `scale` is output by input, `roi` a relative crop.

    Extents are those of the padded axis where sizes are dynamic.
    """

    axis: int
    extent: int
    size: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)
    sizes: SizedAxis | None = None


@dataclass(frozen=True, slots=True)
class Interpolation:
    """The attributes of a resize."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    antialias: bool
    exclude_outside: bool
    extrapolation: float


def positions_along(axis: Axis, mode: str) -> Floats:
    """The input coordinate of each output position, by the formulas of ONNX's Resize.

    Scales are float32, and so is this arithmetic: in a wider one 3 / 0.6f would fall short of 5.
    """
    return _coordinates(axis, mode, np.arange(axis.size, dtype=np.float32)).astype(np.float64)


def _coordinates(axis: Axis, mode: str, y: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    n, length = axis.extent, axis.scale * axis.extent
    match mode:
        case "align_corners":
            return y * 0 if length == 1 else y * (n - 1) / (length - 1)
        case "asymmetric":
            return y / axis.scale
        case "tf_half_pixel_for_nn":
            return (y + 0.5) / axis.scale
        case "tf_crop_and_resize":
            start, end = axis.roi
            if length == 1:
                return y * 0 + 0.5 * (start + end) * (n - 1)
            return start * (n - 1) + y * (end - start) * (n - 1) / (length - 1)
        case "pytorch_half_pixel" if axis.size == 1:
            return y * 0
        case "half_pixel_symmetric":
            offset = n / 2 * (1 - axis.size / length)
            return offset + (y + 0.5) / axis.scale - 0.5
    return (y + 0.5) / axis.scale - 0.5


def taps_of(
    axis: Axis, positions: Floats, how: Interpolation
) -> tuple[list[Integers], list[Floats] | None]:
    """For each tap the input positions and the weights; one tap without weights is `nearest`."""
    if how.mode == "nearest":
        return [_clamped(_nearest(positions, how.nearest), axis.extent)], None
    kernel, _ = _kernel(how)
    scale = _sampling(axis, how)
    reach = _reach(axis, how)
    base = np.floor(positions).astype(np.int64)
    offsets = range(1 - reach, reach + 1)
    indices = [base + offset for offset in offsets]
    weights = [kernel((index - positions) * scale) for index in indices]
    if how.exclude_outside:
        inside = [(index >= 0) & (index < axis.extent) for index in indices]
        weights = [np.where(keep, w, 0.0) for keep, w in zip(inside, weights, strict=True)]
    total = np.sum(weights, axis=0)
    total = np.where(total == 0, 1.0, total)
    clamped = [_clamped(index, axis.extent) for index in indices]
    return _met(np.stack(clamped, axis=1), np.stack(weights, axis=1) / total[:, np.newaxis])


def _met(indices: Integers, weights: Floats) -> tuple[list[Integers], list[Floats] | None]:
    """Make one of the taps of an output position that read the same element, and drop idle ones.

    So a constant stays exactly that, and what has no weight cannot make 0 times infinity. Arrays
    are [positions, taps]. A position of fewer taps than others shares one's weight among several,
    which sums up to the same bits again: w/4 + w/4 + w/2.
    """
    positions = []
    for row, column in zip(indices.tolist(), weights.tolist(), strict=True):
        met: dict[int, float] = {}
        for index, weight in zip(row, column, strict=True):
            met[index] = met.get(index, 0.0) + weight
        taps = {index: weight for index, weight in met.items() if weight}
        if len(met) == 1 and taps:
            taps = {row[0]: 1.0}
        positions.append(taps or {row[0]: 0.0})
    most = max(map(len, positions))
    if most == 1 and all(weight == 1 for taps in positions for weight in taps.values()):
        return [np.array([index for taps in positions for index in taps])], None
    rows = zip(positions, indices.tolist(), strict=True)
    merged = np.array([_shared(taps, row, most) for taps, row in rows])
    return (
        [merged[:, tap, 0].astype(np.int64) for tap in range(most)],
        [merged[:, tap, 1] for tap in range(most)],
    )


def _shared(taps: dict[int, float], row: list[int], count: int) -> list[tuple[int, float]]:
    """`count` taps with these weights, in place where the row has as many: a division knows it."""
    if count == len(row):
        held = [
            index if index in taps else min(taps, key=lambda to: abs(to - index)) for index in row
        ]
    else:
        first = next(iter(taps))
        held = [first] * (count - len(taps)) + list(taps)
    result: list[tuple[int, float]] = []
    left = dict(taps)
    for position, index in reversed(list(enumerate(held))):
        share = left[index] / 2 if index in held[:position] else left[index]
        left[index] -= share
        result.append((index, share))
    return result[::-1]


def tap_count(axis: Axis, how: Interpolation) -> int:
    """How many input positions an output position is made of, weights of 0 included."""
    return 1 if how.mode == "nearest" else 2 * _reach(axis, how)


def _reach(axis: Axis, how: Interpolation) -> int:
    """How many input positions the interpolation kernel reaches to each side."""
    _, radius = _kernel(how)
    return math.ceil(radius / _sampling(axis, how))


def _sampling(axis: Axis, how: Interpolation) -> float:
    """By how much the interpolation kernel is stretched."""
    return min(axis.scale, 1.0) if how.antialias else 1.0


def _clamped(indices: Integers, extent: int) -> Integers:
    return np.clip(indices, 0, extent - 1)


def _nearest(positions: Floats, mode: str) -> Integers:
    below = np.floor(positions)
    match mode:
        case "round_prefer_floor":
            rounded = below + (positions - below > 0.5 + TIE)
        case "round_prefer_ceil":
            rounded = below + (positions - below >= 0.5 - TIE)
        case "floor":
            rounded = np.floor(positions)
        case _:
            rounded = np.ceil(positions)
    return rounded.astype(np.int64)


def _kernel(how: Interpolation) -> tuple[Callable[[Floats], Floats], int]:
    """The interpolation kernel and its radius.

    Cubic convolution as in Keys, Cubic Convolution Interpolation for Digital Image Processing,
    with the free parameter `cubic`.
    """
    if how.mode == "linear":
        return (lambda x: np.maximum(1 - np.abs(x), 0.0)), 1
    a = how.cubic

    def cubic(x: Floats) -> Floats:
        d = np.abs(x)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    return cubic, 2


@dataclass(frozen=True, slots=True)
class Division:
    """Tap t of position i reads the element (i * step + offsets[t]) // divisor, or the nearest."""

    step: int
    divisor: int
    offsets: tuple[int, ...]


def divided_positions(axis: Axis, indices: Integers) -> Division | None:
    """The division that gives all `indices`, [taps, positions]; None where a table has to."""
    corners = (axis.size - 1) / (axis.extent - 1) if min(axis.size, axis.extent) > 1 else 1.0
    for scale in dict.fromkeys((axis.size / axis.extent, axis.scale, corners)):
        most = axis.size if axis.size <= _WHOLE_ROW else _MAX_DIVISOR
        ratio = Fraction(1 / scale).limit_denominator(max(most, 1))
        if abs(ratio * axis.size - axis.size / scale) > 1:
            continue
        step, divisor = ratio.numerator, ratio.denominator
        offsets = [_offset(row, step, divisor, axis.extent) for row in indices]
        found = tuple(offset for offset in offsets if offset is not None)
        if step and len(found) == len(offsets):
            return Division(step, divisor, found)
    return None


def _offset(row: Integers, step: int, divisor: int, extent: int) -> int | None:
    """The number o with clamp((i * step + o) // divisor) == row[i] for all i, the smallest one."""
    moved = np.arange(len(row)) * step
    least, most = row * divisor - moved, (row + 1) * divisor - 1 - moved
    above, below = row > 0, row < extent - 1
    if not above.any():
        return int(most.min()) if below.any() else 0
    low = int(least[above].max())
    return None if below.any() and low > most[below].min() else low
