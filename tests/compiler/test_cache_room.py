"""Attention over caches of fixed length: keys behind the tokens are neither read nor counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.compiler.decoders import Sizes, decoder
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.plan.optimise import optimise

SIZES = Sizes(layers=1)
ROOM = 64


def shapes_of(batch: int, tokens: int | str, room: int) -> dict[str, tuple[int | str, ...]]:
    shapes: dict[str, tuple[int | str, ...]] = {"input_ids": (batch, tokens)}
    shapes["position_ids"] = batch, tokens
    shapes["attention_mask"] = (batch, f"1..{room}")
    for kind in ("key", "value"):
        shapes[f"past_key_values.0.{kind}"] = (batch, SIZES.groups, room, SIZES.width)
    return shapes


def feed(batch: int, past: int, tokens: int, behind: float) -> dict[str, Any]:
    """A step at position `past`, with `behind` in the cache from there on; rows but the first have
    fewer tokens."""
    rng = np.random.default_rng(past)
    places = np.arange(past, past + tokens, dtype=np.int64)
    arrays: dict[str, Any] = {
        "input_ids": rng.integers(0, SIZES.words, (batch, tokens)),
        "position_ids": np.tile(places, (batch, 1)),
        "attention_mask": np.ones((batch, past + tokens), np.int64),
    }
    arrays["attention_mask"][1:, past // 2 : past] = 0
    for kind in ("key", "value"):
        cache = rng.standard_normal((batch, SIZES.groups, ROOM, SIZES.width), np.float32)
        cache[:, :, past:] = behind
        arrays[f"past_key_values.0.{kind}"] = cache
    return arrays


@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (3, 1), (1, 5)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_logits_are_those_of_the_tokens_alone(dynamic: bool, batch: int, tokens: int) -> None:
    """They are onnxruntime's, and what lies behind the tokens, NaN as well, is not read."""
    model = decoder("gqa", SIZES, ROOM)
    asked = f"1..{tokens}" if dynamic else tokens
    executable = compiler.build(import_model_proto(model, shapes_of(batch, asked, ROOM)))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for past in (1, 13, ROOM - tokens):
        given = feed(batch, past, tokens, 0.0)
        found = executable.run(given)["logits"]
        (wanted,) = session.run(["logits"], given)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        strange = executable.run(feed(batch, past, tokens, np.nan))["logits"]
        np.testing.assert_array_equal(strange, found)


@pytest.mark.parametrize("room", [512, 4096])
def test_a_step_attends_to_the_tokens_that_there_are(room: int) -> None:
    """The loops over keys end at a number that the run computes, whatever the room."""
    graph = optimise(import_model_proto(decoder("gqa", SIZES, room), shapes_of(1, 1, room)), 8)
    (node,) = (node for node in graph.nodes if node.operator == "attention")
    size = graph.types[node.inputs[-1]]
    assert node.attributes["filled"] == 0 and size.shape == (1,)
    assert node.inputs[-1] not in graph.constants
