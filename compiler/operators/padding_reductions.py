"""Padding rules of reductions, running sums, softmax and normalisations."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.operators.padding import PaddedUse, PaddingRule, padding_rule
from tunefarm.compiler.types.dims import ONE, Axis, Dims

_FILLS = {
    "reduce_sum": "zero",
    "reduce_prod": "one",
    "reduce_max": "lowest",
    "reduce_min": "highest",
    "arg_max": "lowest",
    "arg_min": "highest",
}


def _reduced(dims: Dims, axes: Sequence[int], keep: bool) -> Dims:
    kept: list[Axis] = []
    for number, axis in enumerate(dims):
        if number not in axes:
            kept.append(axis)
        elif keep:
            kept.append(ONE)
    return tuple(kept)


def _fold(fill: str) -> PaddingRule:
    def rule(use: PaddedUse) -> Dims:
        axes = use.attributes.integers("axes")
        for axis in axes:
            use.fill(0, axis, fill)
        return _reduced(use.operand(0), axes, use.attributes.flag("keepdims"))

    return rule


def _extreme(fill: str) -> PaddingRule:
    def rule(use: PaddedUse) -> Dims:
        axis = use.attributes.integer("axis")
        use.fill(0, axis, fill)
        return _reduced(use.operand(0), (axis,), use.attributes.flag("keepdims"))

    return rule


for _name, _value in _FILLS.items():
    _rule = _extreme(_value) if _name.startswith("arg") else _fold(_value)
    padding_rule(_name)(_rule)


@padding_rule("reduce_mean")
def _mean(use: PaddedUse) -> Dims:
    """Over whole axes only: see the importer's form for others."""
    axes = use.attributes.integers("axes")
    for axis in axes:
        use.require_whole(0, axis, "the axis of a mean")
    return _reduced(use.operand(0), axes, use.attributes.flag("keepdims"))


def _running(fill: str) -> PaddingRule:
    def rule(use: PaddedUse) -> Dims:
        """What comes before an element is there, but for padding between; what comes behind need
        not be."""
        axis = use.attributes.integer("axis")
        if use.attributes.flag("reverse") or len(use.operand(0)[axis]) > 1:
            use.fill(0, axis, fill)
        return use.operand(0)

    return rule


padding_rule("cumsum")(_running("zero"))
padding_rule("cumprod")(_running("one"))


@padding_rule("softmax")
def _softmax(use: PaddedUse) -> Dims:
    axis = use.attributes.integer("axis")
    use.fill(0, axis, "lowest")
    use.known[axis] = "zero"  # exp(-inf)
    return use.operand(0)


@padding_rule("log_softmax")
def _log_softmax(use: PaddedUse) -> Dims:
    use.fill(0, use.attributes.integer("axis"), "lowest")
    return use.operand(0)


@padding_rule("lp_norm")
def _lp_norm(use: PaddedUse) -> Dims:
    use.fill(0, use.attributes.integer("axis"), "zero")
    return use.operand(0)


@padding_rule("rank_ascending", "rank_descending")
def _ranks(use: PaddedUse) -> Dims:
    """Who asks says which elements of a row are there."""
    return use.operand(0)


@padding_rule("layer_norm", "rms_norm")
def _rows(use: PaddedUse) -> Dims:
    """Rows are whole, and scales and biases broadcast to them."""
    data = use.operand(0)
    for axis in range(use.attributes.integer("axis"), len(data)):
        use.require_whole(0, axis, "a row that is normalised")
    return use.broadcast(*use.present())


@padding_rule("mean_variance_norm")
def _mean_variance_norm(use: PaddedUse) -> Dims:
    for axis in use.attributes.integers("axes"):
        use.require_whole(0, axis, "an axis that is normalised")
    return use.operand(0)


@padding_rule("batch_norm")
def _batch_norm(use: PaddedUse) -> Dims:
    data = use.operand(0)
    channels = use.same((0, 1), *((position, 0) for position in use.present()[1:]))
    return data[0], channels, *data[2:]


@padding_rule("lrn")
def _lrn(use: PaddedUse) -> Dims:
    use.fill(0, 1, "zero")
    return use.operand(0)
