"""onnxruntime's own operators on a dynamic number of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.compiler.frontend.onnx_models import model, tensor
from tests.compiler.frontend.sized_cases import floats
from tests.onnxruntime_session import assert_agrees, exact_session
from tunefarm import compiler
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.types.tensor_type import Array

BOUNDS = {"b": ("1..2",), "s": ("1..6",), "p": ("1..4",)}
SIZES = ((1, 1, 4), (2, 6, 1), (2, 3, 2))
INT32 = TensorProto.INT32


def _proto(
    operator: str,
    shapes: dict[str, list[int | str]],
    inputs: str,
    constants: dict[str, Array] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    names = ["" if name == "-" else name for name in inputs.split()]
    single = helper.make_node(operator, names, ["y"], domain="com.microsoft", **attributes)
    types = {"mask": INT32, "ids": INT32, "at": TensorProto.INT64, "past": TensorProto.FLOAT}
    ports = [
        tensor(name, shape, types.get(name, TensorProto.FLOAT)) for name, shape in shapes.items()
    ]
    proto = model([single], ports, constants=constants or {}, opset=18)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def _check(proto: onnx.ModelProto, calls: list[dict[str, Array]]) -> None:
    named = {
        axis.dim_param
        for port in proto.graph.input
        for axis in port.type.tensor_type.shape.dim
        if axis.dim_param
    }
    executable = compiler.build(import_model_proto(proto, {name: BOUNDS[name] for name in named}))
    assert_agrees(executable.run, proto, *calls, rtol=1e-3, atol=1e-4)


WEIGHTS = {"w": floats(8, 24), "c": floats(24)}


def test_attention_sees_tokens_before_its_own() -> None:
    shapes: dict[str, list[int | str]] = {"x": ["b", "s", 8], "past": [2, "b", 2, "p", 4]}
    proto = _proto("Attention", shapes, "x w c - past", WEIGHTS, num_heads=2, unidirectional=1)
    proto.graph.node[0].output.append("present")
    proto.graph.output.append(helper.make_tensor_value_info("present", 1, None))
    calls = [{"x": floats(b, s, 8), "past": floats(2, b, 2, p, 4)} for b, s, p in SIZES]
    _check(proto, calls)


def test_attention_to_as_many_keys_as_a_mask_says() -> None:
    shapes: dict[str, list[int | str]] = {"x": ["b", "s", 8], "mask": ["b"]}
    proto = _proto("Attention", shapes, "x w c mask", WEIGHTS, num_heads=2)
    calls = [
        {"x": floats(b, s, 8), "mask": np.arange(s, s - b, -1, dtype=np.int32)} for b, s, _ in SIZES
    ]
    _check(proto, calls)


def test_embeddings_of_as_many_places_as_there_are_tokens() -> None:
    constants = {"we": floats(9, 8), "pe": floats(6, 8), "g": floats(8), "be": floats(8)}
    shapes: dict[str, list[int | str]] = {"ids": ["b", "s"]}
    proto = _proto("EmbedLayerNormalization", shapes, "ids - we pe - g be", constants)
    proto.graph.node[0].output.append("count")
    calls: list[dict[str, Array]] = [
        {"ids": (np.arange(b * s, dtype=np.int32) % 9).reshape(b, s)} for b, s, _ in SIZES
    ]
    _check(proto, calls)


def test_rotary_embedding_from_one_place_on() -> None:
    constants = {"c": floats(10, 2), "sn": floats(10, 2)}
    shapes: dict[str, list[int | str]] = {"x": ["b", 2, "s", 4], "at": [1]}
    proto = _proto("RotaryEmbedding", shapes, "x at c sn", constants)
    _check(proto, [{"x": floats(b, 2, s, 4), "at": np.array([p])} for b, s, p in SIZES])


GROUPED: dict[str, list[int | str]] = {
    "q": ["b", "s", 64],
    "k": ["b", "s", 16],
    "v": ["b", "s", 16],
    "pk": ["b", 1, "c", 16],
    "pv": ["b", 1, "c", 16],
    "mask": ["b"],
    "total": ["t"],
}


def _grouped_call(batch: int, tokens: int, before: int, room: int) -> dict[str, Array]:
    """Tokens behind others, in a cache with room for so many."""
    shapes = {"b": batch, "s": tokens, "c": room, "t": before + tokens}
    call = {
        name: floats(*(size if isinstance(size, int) else shapes[size] for size in shape))
        for name, shape in GROUPED.items()
    }
    call["mask"] = np.full(batch, before + tokens - 1, np.int32)
    return call


@pytest.mark.parametrize(
    "attributes",
    [
        {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1, "local_window_size": 3},
        {"smooth_softmax": 1},
        {"softcap": 5.0},
    ],
)
def test_group_query_attention_of_any_number_of_tokens_and_keys(attributes: dict[str, Any]) -> None:
    """Caches grow by the new tokens, or have room for them; prompts have none before them."""
    tables = "c sn" if "do_rotary" in attributes else ""
    inputs = f"q k v pk pv mask n {tables}"
    constants = {"c": floats(40, 8), "sn": floats(40, 8)} if tables else {}
    proto = _proto(
        "GroupQueryAttention", GROUPED, inputs, constants, num_heads=4, kv_num_heads=1, **attributes
    )
    shape = helper.make_node("Shape", ["total"], ["long"])
    proto.graph.node.insert(0, helper.make_node("Cast", ["long"], ["n"], to=INT32))
    proto.graph.node.insert(0, shape)
    proto.graph.node[-1].output.extend(["keys", "values"])
    for name in ("keys", "values"):
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    bounds = {"b": ("1..2",), "s": ("1..6",), "c": ("0..20",), "t": ("1..20",)}
    executable = compiler.build(import_model_proto(proto, bounds))
    session = exact_session(proto)
    for sizes in ((2, 6, 0, 0), (2, 1, 19, 19), (1, 3, 5, 5), (2, 1, 4, 20), (1, 1, 0, 0)):
        call = _grouped_call(*sizes)
        found, expected = executable.run(call), session.run(None, call)
        np.testing.assert_allclose(found["y"], expected[0], rtol=1e-3, atol=1e-4)
        used = sizes[1] + sizes[2]
        for name, theirs in zip(("keys", "values"), expected[1:], strict=True):
            assert found[name].shape == theirs.shape
            np.testing.assert_allclose(
                found[name][:, :, :used], theirs[:, :, :used], rtol=1e-4, atol=1e-5
            )


def test_group_query_attention_names_sizes_of_which_it_sees_all() -> None:
    shapes: dict[str, list[int | str]] = {
        "q": ["b", "s", 16],
        "k": ["b", "s", 8],
        "v": ["b", "s", 8],
        "mask": ["b"],
        "ids": [],
    }
    proto = _proto(
        "GroupQueryAttention", shapes, "q k v - - mask ids", num_heads=2, kv_num_heads=1, causal=0
    )
    with pytest.raises(ShapeError, match=r"causal = 0 with tokens .*s:1\.\.6"):
        import_model_proto(proto, {"b": ("1..2",), "s": ("1..6",)})
