"""Weights of interpolation at positions that are computed at run time."""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.frontend.numbers import Numbers
from tunefarm.compiler.frontend.resize_taps import Interpolation


def weighted_taps(
    places: Numbers, last: Numbers, stretch: Numbers, reach: int, how: Interpolation
) -> tuple[Numbers, Numbers]:
    """The elements that each of the places, a vector of f64, is made of, and their weights.

    Both are [2 * reach, places]. `last` is the last element that there is, and `stretch` what
    distances are multiplied by.
    """
    offsets = places.like(np.arange(1 - reach, reach + 1)).reshape(2 * reach, 1)
    indices = places.floor() + offsets
    weights = _kernel((indices - places) * stretch, how)
    if how.exclude_outside:
        inside = (indices >= 0) & (last >= indices)
        weights = inside.choose(weights, 0)
    total = weights.sum(0)
    weights = weights / total.equals(0).choose(total.like(1), total)
    # An element without weight may be infinite, and 0 times that is no number: take a near one.
    near = (places + 0.5).floor()
    indices = weights.equals(0).choose(near, indices).at_least(0).at_most(last)
    return indices, weights


def _kernel(x: Numbers, how: Interpolation) -> Numbers:
    """The interpolation kernel, as `tunefarm.compiler.frontend.resize_taps` has it."""
    d = x.absolute()
    if how.mode == "linear":
        return (d.like(1) - d).at_least(0)
    a = how.cubic
    near = ((d * (a + 2)) - (a + 3)) * d * d + 1
    far = ((d * a - 5 * a) * d + 8 * a) * d - 4 * a
    return (d.like(1) >= d).choose(near, (d < 2).choose(far, 0))
