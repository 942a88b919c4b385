"""Attention in onnxruntime's forms: what it computes there, and in one operator of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.compiler.frontend.contributed_models import Feeds, Values, assert_same, by_us, model_of
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.plan.optimise import optimise

BATCH, HEADS, WIDTH = 2, 3, 4
FEATURES = HEADS * WIDTH

Draw = Callable[[Any], Any]


class Source:
    """Arrays of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def floats(self, *shape: int) -> Values:
        return self.rng.standard_normal(shape).astype(np.float32)

    def bits(self, *shape: int) -> Values:
        return self.rng.integers(0, 2, shape).astype(np.int32)

    def mask(self, kind: str, queries: int, keys: int) -> Values | None:
        """A mask in one of the forms; none hides all keys of a row in a way that is not defined."""
        lengths = self.rng.integers(1, keys + 1, BATCH).astype(np.int32)
        match kind:
            case "lengths":
                return lengths
            case "ends and starts":
                return np.concatenate([lengths, self.rng.integers(0, lengths).astype(np.int32)])
            case "keys":
                return self.bits(BATCH, keys)
            case "queries and keys":
                return self.bits(BATCH, queries, keys)
            case _:
                return None


KINDS = ("", "lengths", "ends and starts", "keys", "queries and keys")


@settings(
    max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate]
)  # each example is a build: shrinking one takes minutes
@given(st.data())
def test_attention_gives_what_onnxruntime_gives(data: st.DataObject) -> None:
    source = Source(data.draw(st.integers(0, 99)))
    tokens, past = data.draw(st.sampled_from([1, 2, 5])), data.draw(st.sampled_from([0, 4]))
    keys = tokens + past
    width = data.draw(st.sampled_from([FEATURES, 7]))
    quantised = data.draw(st.booleans())
    mask = source.mask(data.draw(st.sampled_from(KINDS)), tokens, keys)
    attributes: dict[str, Any] = {
        "num_heads": HEADS,
        "unidirectional": data.draw(st.integers(0, 1)),
    }
    if data.draw(st.booleans()):
        attributes |= {"scale": 0.3, "mask_filter_value": -5.0}
    cache = source.floats(2, BATCH, HEADS, past, WIDTH) if past else None
    outputs = ("y", "cache") if past else ("y",)
    feeds: dict[str, Values | None]
    if quantised:
        feeds = {
            "x": source.rng.integers(0, 255, (BATCH, tokens, width)).astype(np.uint8),
            # Without VNNI onnxruntime saturates two products at 16 bits here: 2 * 255 * 64 fits.
            "w": source.rng.integers(-64, 64, (width, 3 * FEATURES)).astype(np.int8),
            "b": source.floats(3 * FEATURES),
            "xs": np.array(0.01, np.float32),
            "ws": np.array(0.02, np.float32),
            "m": mask,
            "xz": np.array(110, np.uint8),
            "wz": np.array(2, np.int8),
            "p": cache,
        }
        model = model_of("QAttention", feeds, outputs, **attributes)
    else:
        values = data.draw(st.sampled_from([FEATURES, 2 * HEADS])) if not past else FEATURES
        biased = data.draw(st.booleans())  # onnxruntime takes none beside a past
        attributes["qkv_hidden_sizes"] = [FEATURES, FEATURES, values]
        feeds = {
            "x": source.floats(BATCH, tokens, width),
            "w": source.floats(width, 2 * FEATURES + values),
            "b": source.floats(2 * FEATURES + values),
            "m": mask,
            "p": cache,
            "ab": None if past or not biased else source.floats(1, HEADS, tokens, keys),
        }
        model = model_of("Attention", feeds, outputs, **attributes)
    assert_same(model, feeds)


@settings(
    max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate]
)  # each example is a build: shrinking one takes minutes
@given(st.data())
def test_many_heads_give_what_onnxruntime_gives(data: st.DataObject) -> None:
    source = Source(data.draw(st.integers(0, 99)))
    tokens, past = data.draw(st.sampled_from([1, 2, 5])), data.draw(st.sampled_from([0, 4]))
    causal = data.draw(st.integers(0, 1))
    others = tokens if causal or past else data.draw(st.sampled_from([tokens, 6]))
    keys = others + past
    as_cache = not past and data.draw(st.booleans())
    attributes: dict[str, Any] = {"num_heads": HEADS, "unidirectional": causal}
    shape = (BATCH, HEADS, others, WIDTH) if as_cache else (BATCH, others, FEATURES)
    caches = {
        name: source.floats(BATCH, HEADS, past, WIDTH) if past else None for name in ("pk", "pv")
    }
    kinds = [kind for kind in KINDS if kind != "ends and starts"]
    feeds: dict[str, Values | None] = {
        "q": source.floats(BATCH, tokens, FEATURES),
        "k": source.floats(*shape),
        "v": source.floats(*shape),
        "b": source.floats(3 * FEATURES) if data.draw(st.booleans()) else None,
        "m": source.mask(data.draw(st.sampled_from(kinds)), tokens, keys),
        "ab": source.floats(BATCH, 1, tokens, keys) if data.draw(st.booleans()) else None,
        **caches,
    }
    outputs = ("y", "k2", "v2") if past or data.draw(st.booleans()) else ("y",)
    assert_same(model_of("MultiHeadAttention", feeds, outputs, **attributes), feeds)


@pytest.mark.parametrize("kind", ["", "keys", "queries and keys"])
def test_scores_may_be_an_output(kind: str) -> None:
    source, past = Source(2), 4
    cache = (BATCH, HEADS, past, WIDTH)
    feeds = {
        **{name: source.floats(BATCH, 5, FEATURES) for name in "qkv"},
        "b": None,
        "m": source.mask(kind, 5, 5 + past),
        "ab": source.floats(BATCH, 1, 5, 5 + past),
        **{name: source.floats(*cache) for name in ("pk", "pv")},
    }
    outputs = ("y", "k2", "v2", "qk")
    for causal in (0, 1):
        model = model_of(
            "MultiHeadAttention", feeds, outputs, num_heads=HEADS, unidirectional=causal
        )
        model.graph.output[3].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        assert_same(model, feeds)


def test_packed_operands_are_those_that_are_given_apart() -> None:
    """onnxruntime refuses them on CPUs."""
    source = Source(0)
    bias = source.floats(3 * FEATURES)
    packed = source.floats(BATCH, 5, HEADS, 3, WIDTH)
    parts = [np.ascontiguousarray(packed[:, :, :, at]).reshape(BATCH, 5, -1) for at in range(3)]
    apart = {**dict(zip("qkv", parts, strict=True)), "b": bias}
    whole = {"q": packed, "k": None, "v": None, "b": bias}
    half = {"q": parts[0], "kv": np.ascontiguousarray(packed[:, :, :, 1:]), "v": None, "b": bias}
    expected = by_us(model_of("MultiHeadAttention", apart, num_heads=HEADS), apart)[0]
    for feeds in (whole, half):
        found = by_us(model_of("MultiHeadAttention", feeds, num_heads=HEADS), feeds)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_token_of_a_decoder_attends_to_keys_of_an_encoder() -> None:
    source = Source(0)
    feeds = {
        "q": source.floats(BATCH, 1, FEATURES),
        "k": source.floats(BATCH, HEADS, 4, WIDTH),
        "v": source.floats(BATCH, HEADS, 4, WIDTH),
    }
    assert_same(model_of("DecoderMaskedMultiHeadAttention", feeds, num_heads=HEADS), feeds)


@pytest.mark.parametrize("kind", ["", "keys", "queries and keys"])
@pytest.mark.parametrize("causal", [0, 1])
def test_becomes_the_one_operator(kind: str, causal: int) -> None:
    source = Source(0)
    feeds = {
        "x": source.floats(BATCH, 16, FEATURES),
        "w": source.floats(FEATURES, 3 * FEATURES),
        "b": source.floats(3 * FEATURES),
        "m": source.mask(kind, 16, 16),
    }
    model = model_of("Attention", feeds, num_heads=HEADS, unidirectional=causal)
    operators = [node.operator for node in optimise(import_model_proto(model), 16).nodes]
    assert operators.count("attention") == 1
    assert "softmax" not in operators


@pytest.mark.parametrize(
    ("changed", "attributes", "reason"),
    [
        ({}, {"do_rotary": 1}, "do_rotary"),
        ({}, {"past_present_share_buffer": 1}, "past_present_share_buffer = 1"),
        ({"m": np.zeros((2, 1, 9, 9), np.int32)}, {}, r"a mask of the form i32\[2, 1, 9, 9\]"),
        ({"m": np.zeros((2, 7), np.int32)}, {}, "is not one of 5 keys"),
        ({}, {"qkv_hidden_sizes": [12, 12, 13]}, "36 features are not those of 3 heads"),
        ({"x": np.zeros((5, 12), np.float32)}, {}, r"is not \[batch, tokens, features\]"),
    ],
)
def test_what_is_not_known_is_refused(
    changed: Feeds, attributes: dict[str, Any], reason: str
) -> None:
    source = Source(0)
    feeds = {
        "x": source.floats(BATCH, 5, FEATURES),
        "w": source.floats(FEATURES, 3 * FEATURES),
        "b": source.floats(3 * FEATURES),
        **changed,
    }
    with pytest.raises(ImportModelError, match=reason):
        import_model_proto(model_of("Attention", feeds, num_heads=HEADS, **attributes))
