"""Attention over caches of fixed length: keys behind the tokens are neither read nor counted."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.compiler.decoders import Sizes, decoder
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.plan.optimise import optimise
from tunefarm.compiler.runtime.execution.executable import Executable

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


steps = pytest.mark.parametrize(("batch", "tokens"), [(1, "1"), (3, "1"), (1, "5"), (1, "1..5")])


@cache
def built(batch: int, tokens: str) -> Executable:
    """The decoder with room for so many tokens in a step."""
    model = decoder("gqa", SIZES, ROOM)
    return compiler.build(import_model_proto(model, shapes_of(batch, tokens, ROOM)))


@steps
def test_logits_are_those_of_the_tokens_alone(batch: int, tokens: str) -> None:
    """They are onnxruntime's, and what lies behind the tokens, NaN as well, is not read."""
    executable, count = built(batch, tokens), int(tokens[-1])
    session = onnxruntime.InferenceSession(decoder("gqa", SIZES, ROOM).SerializeToString())
    for past in (1, 13, ROOM - count):
        given = feed(batch, past, count, 0.0)
        found = executable.run(given)["logits"]
        (wanted,) = session.run(["logits"], given)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        strange = executable.run(feed(batch, past, count, np.nan))["logits"]
        np.testing.assert_array_equal(strange, found)


VARIANTS: dict[str, dict[str, float]] = {
    "window": {"local_window_size": 9},
    "softcap": {"softcap": 3.0},
    "sink": {"smooth_softmax": 1},
    "all": {"local_window_size": 9, "softcap": 3.0, "smooth_softmax": 1},
}


def variant(name: str, room: int | None) -> onnx.ModelProto:
    """The decoder with more attributes of its attention."""
    model = decoder("gqa", SIZES, room)
    (node,) = (node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    node.attribute.extend(helper.make_attribute(*item) for item in VARIANTS[name].items())
    return model


@pytest.mark.parametrize(
    ("name", "batch", "tokens"), [("all", 3, "1"), *((name, 1, "1..5") for name in VARIANTS)]
)
def test_windows_soft_caps_and_sinks(name: str, batch: int, tokens: str) -> None:
    """They are parts of the one attention, which reads no key outside of a window."""
    graph = import_model_proto(model := variant(name, ROOM), shapes_of(batch, tokens, ROOM))
    (node,) = (node for node in optimise(graph, 8).nodes if node.operator == "attention")
    assert ("since" in node.attributes) == ("local_window_size" in VARIANTS[name])
    assert ("softcap" in node.attributes) == ("softcap" in VARIANTS[name])
    assert ("sink" in node.attributes) == ("smooth_softmax" in VARIANTS[name])
    executable = compiler.build(graph)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    count = int(tokens[-1])
    for past in (1, 13, ROOM - count):
        given = feed(batch, past, count, 0.0)
        (wanted,) = session.run(["logits"], given)
        np.testing.assert_allclose(executable.run(given)["logits"], wanted, rtol=1e-4, atol=1e-5)
        if "since" in node.attributes and batch == 1:
            for kind in ("key", "value"):
                given[f"past_key_values.0.{kind}"][:, :, : max(past - 8, 0)] = np.nan
            found = executable.run(given)["logits"]
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["window", "all"])
def test_they_are_right_in_caches_that_grow(name: str) -> None:
    shapes = shapes_of(1, "1..5", ROOM) | {"attention_mask": (1, f"1..{ROOM + 5}")}
    for kind in ("key", "value"):
        shapes[f"past_key_values.0.{kind}"] = 1, SIZES.groups, f"0..{ROOM}", SIZES.width
    executable = compiler.build(import_model_proto(model := variant(name, None), shapes))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for past, tokens in ((1, 5), (13, 1), (40, 3)):
        given = feed(1, past, tokens, 0.0)
        for kind in ("key", "value"):
            before = given[f"past_key_values.0.{kind}"][:, :, :past]
            given[f"past_key_values.0.{kind}"] = np.ascontiguousarray(before)
        found, wanted = executable.run(given), session.run(None, given)
        for output, array in zip(session.get_outputs(), wanted, strict=True):
            np.testing.assert_allclose(found[output.name], array, rtol=1e-4, atol=1e-5)


@steps
def test_a_step_in_place_writes_its_tokens_alone(batch: int, tokens: str) -> None:
    executable, count = built(batch, tokens), int(tokens[-1])
    for past in (0, 13, ROOM - count):
        given = feed(batch, past, count, 7.0)
        expected = executable.run(given)
        before = {name: array.copy() for name, array in given.items()}
        found = executable.run(given, in_place=True)
        np.testing.assert_array_equal(found["logits"], expected["logits"])
        for present, name in executable.in_place.items():
            assert found[present] is given[name]
            lengths = before["attention_mask"].sum(axis=1)
            for row, end in enumerate(lengths):
                new = slice(end - count, end)
                np.testing.assert_array_equal(
                    found[present][row, :, :end], expected[present][row, :, :end]
                )
                assert not expected[present][row, :, end:].any()
                before[name][row, :, new] = expected[present][row, :, new]
            np.testing.assert_array_equal(found[present], before[name])


@pytest.mark.parametrize("room", [512, 4096])
def test_a_step_attends_to_the_tokens_that_there_are(room: int) -> None:
    """The loops over keys end at a number that the run computes, whatever the room."""
    graph = optimise(import_model_proto(decoder("gqa", SIZES, room), shapes_of(1, 1, room)), 8)
    (node,) = (node for node in graph.nodes if node.operator == "attention")
    size = graph.types[node.inputs[-1]]
    assert node.attributes["filled"] == 0 and size.shape == (1,)
    assert node.inputs[-1] not in graph.constants
