"""Small valid models to begin from: one per kind of thing that a file can contain."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.frontend.onnx_models import BOOL, integers, model, tensor

_MOST_BYTES = 20_000  # of a base: larger ones only make attempts slow
_KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")

node = helper.make_node


@cache
def bases() -> dict[str, onnx.ModelProto]:
    """The models by name: ours, then those that onnx tests its own backends with."""
    return {**own_bases(), **dict(_onnx_cases())}


@cache
def own_bases() -> dict[str, onnx.ModelProto]:
    """Ours alone: they are there at once."""
    return dict(_own())


def _own() -> Iterator[tuple[str, onnx.ModelProto]]:
    random = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32)

    yield (
        "convolution",
        model(
            [
                node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
                node("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"]),
                node("Relu", ["n"], ["r"]),
                node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
            ],
            [tensor("x", [1, 3, 6, 6])],
            constants={"w": weights(4, 3, 3, 3), "b": weights(4), "v": np.ones(4, np.float32)},
        ),
    )
    yield (
        "attention",
        model(
            [
                node("MatMul", ["x", "w"], ["q"]),
                node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
                node("MatMul", ["q", "t"], ["s"]),
                node("Softmax", ["s"], ["p"], axis=-1),
                node("MatMul", ["p", "x"], ["y"]),
            ],
            [tensor("x", [1, 5, 8])],
            constants={"w": weights(8, 8)},
        ),
    )
    yield (
        "shapes",
        model(
            [
                node("Shape", ["x"], ["s"]),
                node("Gather", ["s", "zero"], ["n"]),
                node("Unsqueeze", ["n", "zero"], ["m"]),
                node("Concat", ["m", "rest"], ["wanted"], axis=0),
                node("Reshape", ["x", "wanted"], ["r"]),
                node("Expand", ["r", "wider"], ["e"]),
                node("Tile", ["e", "twice"], ["t"]),
                node("Pad", ["t", "pads"], ["p"]),
                node("Slice", ["p", "zero", "two"], ["y"]),
            ],
            [tensor("x", [2, 6])],
            constants={
                "zero": integers(0),
                "two": integers(2),
                "rest": integers(-1),
                "wider": integers(3, 1, 1),
                "twice": integers(1, 2, 1),
                "pads": integers(0, 1, 0, 0, 1, 0),
            },
        ),
    )
    yield (
        "quantised",
        model(
            [
                node("QuantizeLinear", ["x", "s", "z"], ["q"]),
                node("DequantizeLinear", ["q", "s", "z"], ["d"]),
                node("DequantizeLinear", ["w", "s", "z"], ["v"]),
                node("MatMul", ["d", "v"], ["y"]),
            ],
            [tensor("x", [2, 4])],
            constants={
                "s": np.array(0.1, np.float32),
                "z": np.array(3, np.uint8),
                "w": np.arange(16, dtype=np.uint8).reshape(4, 4),
            },
        ),
    )
    yield (
        "recurrent",
        model(
            [node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=3)],
            [tensor("x", [3, 1, 2])],
            constants={"w": weights(1, 12, 2), "r": weights(1, 12, 3), "b": weights(1, 24)},
        ),
    )
    yield "loop", _loop()
    yield "branch", _branch()
    yield "functions", _functions()
    yield (
        "resize",
        model(
            [node("Resize", ["x", "", "scales"], ["y"], mode="linear")],
            [tensor("x", [1, 2, 4, 4])],
            constants={"scales": np.array([1, 1, 2, 1.5], np.float32)},
        ),
    )
    yield (
        "einsum",
        model(
            [node("Einsum", ["x", "w"], ["y"], equation="bij,jk->bik")],
            [tensor("x", [2, 3, 4])],
            constants={"w": weights(4, 5)},
        ),
    )
    yield (
        "scatter",
        model(
            [node("ScatterND", ["x", "i", "u"], ["s"]), node("TopK", ["s", "k"], ["y", "where"])],
            [tensor("x", [6])],
            constants={"i": integers(1, 4).reshape(2, 1), "u": weights(2), "k": integers(3)},
        ),
    )
    yield "external", _external()


def _loop() -> onnx.ModelProto:
    body = helper.make_graph(
        [node("Add", ["a", "a"], ["r"]), node("Identity", ["going"], ["on"])],
        "body",
        [tensor("i", [], TensorProto.INT64), tensor("going", [], BOOL), tensor("a", [2])],
        [tensor("on", [], BOOL), tensor("r", [2])],
    )
    return model(
        [node("Loop", ["three", "true", "x"], ["y"], body=body)],
        [tensor("x", [2])],
        constants={"three": integers(3).reshape(()), "true": np.array(True)},
    )


def _branch() -> onnx.ModelProto:
    def branch(operator: str) -> onnx.GraphProto:
        return helper.make_graph([node(operator, ["x"], ["r"])], operator, [], [tensor("r", [2])])

    return model(
        [node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))],
        [tensor("x", [2])],
        constants={"c": np.array(True)},
    )


def _functions() -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    inner = helper.make_function(
        "local", "Inner", ["a"], ["r"], [node("Relu", ["a"], ["r"])], opsets
    )
    body = [node("Inner", ["a"], ["m"], domain="local"), node("Mul", ["m", "b"], ["r"])]
    outer = helper.make_function("local", "Outer", ["a", "b"], ["r"], body, opsets)
    return model(
        [node("Outer", ["x", "x"], ["y"], domain="local")],
        [tensor("x", [4])],
        functions=[inner, outer],
        domains={"local": 1},
    )


def _external() -> onnx.ModelProto:
    """A model with its weights in the file DATA beside it."""
    made = model(
        [node("Gemm", ["x", "w", "b"], ["y"])],
        [tensor("x", [2, 4])],
        constants={"w": np.ones((4, 4), np.float32), "b": np.ones(4, np.float32)},
    )
    offset = 0
    for weight in made.graph.initializer:
        size = len(weight.raw_data)
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", DATA), ("offset", str(offset)), ("length", str(size))):
            weight.external_data.add(key=key, value=value)
        offset += size
    return made


DATA = "weights.bin"
DATA_BYTES = np.ones(20, np.float32).tobytes()


def _onnx_cases() -> Iterator[tuple[str, onnx.ModelProto]]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx computes what its cases expect
        cases = [case for kind in _KINDS for case in load_model_tests(kind=kind)]
    for case in cases:
        made = case.model
        if made is None:
            made = onnx.load(Path(str(case.model_dir)) / "model.onnx")
        if made.ByteSize() > _MOST_BYTES:
            continue
        yield f"{case.kind}/{case.name}", made
        settled = _with_constants(made, case.data_sets)
        if settled is not None:
            yield f"{case.kind}/{case.name} with constants", settled


def _with_constants(made: onnx.ModelProto, data_sets: Any) -> onnx.ModelProto | None:
    """The model with all inputs but the first as initializers; None if that is not possible."""
    arrays = data_sets[0][0] if data_sets else ()
    if len(arrays) < 2 or not all(isinstance(array, np.ndarray) for array in arrays):
        return None
    if any(array.dtype.kind not in "biuf" or array.nbytes > _MOST_BYTES for array in arrays):
        return None
    settled = onnx.ModelProto()
    settled.CopyFrom(made)
    given = [info.name for info in settled.graph.input]
    for name, array in list(zip(given, arrays, strict=False))[1:]:
        settled.graph.initializer.append(numpy_helper.from_array(array, name))
    del settled.graph.input[1:]
    return settled
