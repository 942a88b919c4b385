"""Prompts of decoders: keys behind a token are left out, whatever says that they are not seen."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.compiler.decoders import Sizes, decoder
from tests.compiler.frontend.onnx_models import model, tensor
from tests.onnxruntime_session import assert_agrees
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.plan.optimise import optimise
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array

SIZES = Sizes(layers=1, heads=4, groups=2, width=16, hidden=32, words=31, positions=128)
BOUNDS: dict[str, tuple[str | int, ...]] = {
    "sequence_length": ("1|2..64",),
    "past_sequence_length": ("0..40",),
    "total_sequence_length": ("1..104",),
}


def _feeds(
    proto: onnx.ModelProto, batch: int, tokens: int, past: int, hidden: int
) -> dict[str, Array]:
    """A step of so many tokens; the first `hidden` keys of the last row are padding."""
    rng = np.random.default_rng(tokens)
    feeds: dict[str, Array] = {}
    for port in proto.graph.input:
        name = port.name
        if name == "input_ids":
            feeds[name] = rng.integers(0, SIZES.words, (batch, tokens))
        elif name == "attention_mask":
            feeds[name] = np.ones((batch, past + tokens), np.int64)
            feeds[name][-1, :hidden] = 0
        elif name == "position_ids":
            feeds[name] = np.broadcast_to(np.arange(past, past + tokens), (batch, tokens)).copy()
        else:
            shape = (batch, SIZES.groups, past, SIZES.width)
            feeds[name] = rng.standard_normal(shape).astype(np.float32)
    return feeds


def _attention(
    proto: onnx.ModelProto, bounds: dict[str, tuple[str | int, ...]]
) -> tuple[Node, int]:
    """The one attention of a model, and how many bounds of keys it has."""
    graph = optimise(import_model_proto(proto, bounds), 1)
    (node,) = (node for node in graph.nodes if node.operator == "attention")
    return node, graph.types[node.inputs[-1]].size if node.attributes.get("causal") else 0


@pytest.mark.parametrize(
    ("form", "batch"), [("gqa", 1), ("gqa", 2), ("rotary", 1), ("concat", 2), ("torch", 2)]
)
def test_prompts_and_their_parts_are_those_of_onnxruntime(form: str, batch: int) -> None:
    proto = decoder(form, SIZES)
    bounds: dict[str, tuple[str | int, ...]] = {"batch_size": (batch,), **BOUNDS}
    _, count = _attention(proto, {**bounds, "sequence_length": ("2..64",)})
    assert count == 1
    executable = compiler.build(import_model_proto(proto, bounds))
    masks = form in ("concat", "torch")
    cached = ((33, 40), (2, 17)) if masks or batch == 1 else ()
    for tokens, past in ((1, 0), (2, 0), (17, 0), (64, 0), *cached):
        for hidden in (0, tokens // 2) if masks else (0,):
            feeds = _feeds(proto, batch, tokens, past, hidden)
            assert_agrees(executable.run, proto, feeds, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("window", "fixed"), [(-1, False), (5, False), (40, False), (5, True)])
def test_windows_of_group_query_attention(window: int, fixed: bool) -> None:
    batch, tokens, past, width = 1, 37, 40, 16
    names = ["q", "k", "v", "past_key", "past_value", "last", "total"]
    grouped = helper.make_node(
        "GroupQueryAttention",
        names,
        ["y", "key", "value"],
        domain="com.microsoft",
        num_heads=4,
        kv_num_heads=2,
        local_window_size=window,
    )
    counted = [
        helper.make_node("Shape", ["mask"], ["length"]),
        helper.make_node("Cast", ["length"], ["total"], to=TensorProto.INT32),
    ]
    ports = [
        tensor("q", [batch, "s", 4 * width]),
        tensor("k", [batch, "s", 2 * width]),
        tensor("v", [batch, "s", 2 * width]),
        tensor("past_key", [batch, 2, "p", width]),
        tensor("past_value", [batch, 2, "p", width]),
        tensor("last", [batch], TensorProto.INT32),
        tensor("mask", ["t"]),
    ]
    proto = model([*counted, grouped], ports, ["y", "key", "value"], {}, opset=18)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    sizes: dict[str, tuple[str | int, ...]] = {"s": (tokens,), "p": (past,), "t": (tokens + past,)}
    dynamic: dict[str, tuple[str | int, ...]] = {"s": ("2..64",), "p": ("0..40",), "t": ("2..104",)}
    bounds = sizes if fixed else dynamic
    executable = compiler.build(import_model_proto(proto, bounds))
    node, count = _attention(proto, bounds)
    assert count == (1 if window < 0 else 2)
    assert len(node.inputs) == 5  # query, key, value, sizes and bounds: no mask
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.standard_normal((batch, *shape)).astype(np.float32)
        for name, shape in (
            ("q", (tokens, 4 * width)),
            ("k", (tokens, 2 * width)),
            ("v", (tokens, 2 * width)),
            ("past_key", (2, past, width)),
            ("past_value", (2, past, width)),
        )
    }
    feeds["last"] = np.full(batch, past + tokens - 1, np.int32)
    feeds["mask"] = np.ones(past + tokens, np.float32)
    assert_agrees(executable.run, proto, feeds, rtol=1e-3, atol=1e-4)
