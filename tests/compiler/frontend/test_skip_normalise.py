"""Normalisations of onnxruntime's own, with all their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.compiler.frontend.contributed_models import Values, assert_same, by_us, model_of
from tests.compiler.frontend.test_fused import X, floats
from tunefarm.compiler.errors import UnsupportedOperatorError
from tunefarm.compiler.frontend.import_onnx import import_model_proto

_G, _B = floats(8), floats(8)
_IDS = np.random.default_rng(0).integers(0, 11, (2, 5)).astype(np.int32)
_KINDS = (_IDS % 2).astype(np.int32)
_MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], np.int32)
_TABLES = {"w": floats(11, 8), "p": floats(9, 8), "s": floats(2, 8), "g": _G, "b": _B}
_EMBED = {"ids": _IDS, "kinds": _KINDS, **_TABLES}
_ALL = ("y", "", "", "z")

CASES: dict[str, tuple[str, dict[str, Values | None], Sequence[str], dict[str, Any]]] = {
    "skip": (
        "SkipLayerNormalization",
        {"x": X, "s": floats(2, 3, 8), "g": _G, "b": _B, "c": floats(8)},
        _ALL,
        {"epsilon": 1e-5},
    ),
    "skip of every row": (
        "SkipLayerNormalization",
        {"x": X, "s": floats(3, 8), "g": _G, "b": None, "c": floats(8)},
        ("y",),
        {},
    ),
    "skip of one row": (
        "SkipLayerNormalization",
        {"x": X, "s": floats(1, 3, 8), "g": _G},
        _ALL,
        {},
    ),
    "root of squares": (
        "SkipSimplifiedLayerNormalization",
        {"x": X, "s": floats(2, 3, 8), "g": _G, "c": floats(8)},
        _ALL,
        {},
    ),
    "plain": ("SimplifiedLayerNormalization", {"x": X, "g": _G}, ("y", "v"), {"domain": ""}),
    "early": (
        "LayerNormalization",
        {"x": X, "g": _G, "b": _B},
        ("y",),
        {"domain": "", "opset": 11},
    ),
    "gated": (
        "GatedRMSNorm",
        {"x": X, "g": _G, "z": floats(2, 3, 8)},
        ("y",),
        {"activation": "silu"},
    ),
    "embedding": ("EmbedLayerNormalization", {**_EMBED, "m": _MASK}, ("y", "count"), {}),
    "embedding at positions": (
        "EmbedLayerNormalization",
        {**_EMBED, "m": None, "at": np.array([[1, 2, 3, 4, 5]], np.int32)},
        ("y", "count", "z"),
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_operator_gives_what_onnxruntime_gives(case: str) -> None:
    operator, feeds, outputs, attributes = CASES[case]
    assert_same(model_of(operator, feeds, outputs, **attributes), feeds)


def test_what_onnx_has_since_opset_17_stays_its_own() -> None:
    """The definition of today is checked: it has element types for scale and bias apart."""
    feeds = {"x": X, "g": _G, "b": _B}
    assert_same(model_of("LayerNormalization", feeds, ("y", "m", "v"), domain=""), feeds)


@pytest.mark.parametrize("last", [0, 1])
def test_groups_of_channels_with_what_is_added_before(last: int) -> None:
    data, skip, bias, gamma, beta = (
        floats(2, 6, 3, 5),
        floats(2, 6),
        floats(6),
        floats(6),
        floats(6),
    )
    total = data + bias[:, None, None] + skip[..., None, None]
    grouped = total.reshape(2, 3, -1)
    centred = grouped - grouped.mean(-1, keepdims=True)
    normal = (centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-5)).reshape(total.shape)
    normal = normal * gamma[:, None, None] + beta[:, None, None]
    expected = [normal / (1 + np.exp(-normal)), total]
    if last:
        data, *expected = (np.moveaxis(item, 1, -1).copy() for item in (data, *expected))
        feeds = {"x": data, "g": gamma, "b": beta, "s": skip, "c": bias}
    else:
        skip = skip[..., None, None]
        feeds = {"x": data + bias[:, None, None], "g": gamma, "b": beta, "s": skip}
    given: dict[str, Any] = {"groups": 3, "activation": 1, "channels_last": last}
    found = by_us(model_of("SkipGroupNorm", feeds, ("y", "z"), **given), feeds)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_mean_that_there_is_not_is_refused() -> None:
    feeds = {"x": X, "s": X, "g": _G}
    model = model_of("SkipSimplifiedLayerNormalization", feeds, ("y", "m"))
    with pytest.raises(UnsupportedOperatorError, match="a mean or deviation as output"):
        import_model_proto(model)
