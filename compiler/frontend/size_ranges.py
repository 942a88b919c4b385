"""The range of sizes that a model is built for once runs of it have shown several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from tunefarm.compiler.frontend.symbol_names import computed_labels, expression_size, usual_bounds
from tunefarm.compiler.types.extents import Bounds, Given, Label, Shapes, shapes_of


def range_of(
    inputs: Mapping[str, Sequence[int | str | None]], runs: Sequence[Mapping[Label, int]]
) -> tuple[Shapes, Bounds]:
    """Shapes of a build for sizes like those of `runs`, in their order, and what they bound.

    One dimension that is 1 in some runs has a program of its own for them. A dimension whose name
    is a sum of others, as `past + 1`, follows from them unless a run contradicts that.
    """
    names = {label: label for label in runs[0] if isinstance(label, str)}
    apart = {
        label
        for run in runs
        for label, text in names.items()
        if expression_size(text, {name: run[name] for name in names}) not in (None, run[label])
    }
    computed = computed_labels(runs[0].keys()) - apart
    seen = {
        label: list(dict.fromkeys(run[label] for run in runs))
        for label in runs[0]
        if label not in computed
    }
    bounds = {label: _bounds_of(label, sizes) for label, sizes in seen.items()}
    given: dict[Label, Given] = dict(bounds)
    single = [label for label, sizes in seen.items() if min(sizes) == 1 < len(sizes)]
    if single:  # of one dimension: each doubles the time of the build
        widest = max(single, key=lambda label: bounds[label][1])
        given[widest] = f"1|2..{bounds[widest][1]}"
    return shapes_of(inputs, given, computed), bounds


def _bounds_of(label: Label, seen: Sequence[int]) -> tuple[int, int]:
    """Bounds for sizes like these: a single one stays as it is; those that count up will go on to
    what is usual for a dimension of the name."""
    if len(seen) == 1:
        return seen[0], seen[0]
    low, high = min(seen), max(seen)
    _, usual = usual_bounds(label if isinstance(label, str) else "") or (0, 0)
    counts_up = any(after == before + 1 for before, after in pairwise(seen))
    return max(min(1, low), low // 2), max(2 * high, usual if counts_up else 0)
