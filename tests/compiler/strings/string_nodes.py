"""One operator of strings, as onnxruntime runs it and as a step of a prefix does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.onnxruntime_session import exact_session
from tunefarm.compiler.strings.operators import OPERATORS, RUNS

_NUMBERS = {
    ("TfIdfVectorizer", 0): TensorProto.FLOAT,
    ("StringSplit", 1): TensorProto.INT64,
    ("RegexFullMatch", 0): TensorProto.BOOL,
}
LOCALE = "C.utf8"
"""Where onnxruntime changes the case of all letters, as it does by default; machines without
en_US.UTF-8 have this one."""


def string_model(
    operator: str, arrays: Sequence[Any], attributes: dict[str, Any], results: int = 1
) -> onnx.ModelProto:
    """A model of one node, whose inputs have any shape."""
    domain = next(domain for domain, name in OPERATORS if name == operator)
    inputs = [f"x{number}" for number in range(len(arrays))]
    outputs = [f"y{number}" for number in range(results)]
    lists = {name: value for name, value in attributes.items() if isinstance(value, list)}
    node = helper.make_node(operator, inputs, outputs, domain=domain)
    for name, value in attributes.items():
        kind = onnx.AttributeProto.STRINGS if lists.get(name) == [] else None
        node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    graph = helper.make_graph(
        [node],
        operator,
        [helper.make_tensor_value_info(name, TensorProto.STRING, None) for name in inputs],
        [
            helper.make_tensor_value_info(
                name, _NUMBERS.get((operator, number), TensorProto.STRING), None
            )
            for number, name in enumerate(outputs)
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def theirs(operator: str, *arrays: Any, results: int = 1, **attributes: Any) -> list[Any]:
    """What onnxruntime gives."""
    model = string_model(operator, arrays, attributes, results)
    feeds = {f"x{number}": array for number, array in enumerate(arrays)}
    return list(exact_session(model).run(None, feeds))


def ours(operator: str, *arrays: Any, **attributes: Any) -> list[Any]:
    """What a step gives, whose types are as they were inferred."""
    known = next(item for (_, name), item in OPERATORS.items() if name == operator)
    plain = {n: tuple(v) if isinstance(v, list) else v for n, v in attributes.items()}
    types = known.infer(plain, [array.shape for array in arrays])
    results = RUNS[operator](plain)(*arrays)
    for (dtype, shape), result in zip(types, results, strict=True):
        assert result.dtype == (object if str(dtype) == "string" else dtype.numpy)
        assert len(shape) == result.ndim
        assert all(size in (None, own) for size, own in zip(shape, result.shape, strict=True))
    return list(results)


def check(operator: str, *arrays: Any, results: int = 1, **attributes: Any) -> None:
    """Both give the same."""
    found = ours(operator, *arrays, **attributes)
    expected = theirs(operator, *arrays, results=results, **attributes)
    for own, other in zip(found, expected, strict=True):
        assert own.shape == other.shape
        if other.dtype.kind == "f":
            np.testing.assert_allclose(own, other, rtol=1e-6)
        else:
            assert own.tolist() == other.tolist()


def strings(*items: Any) -> Any:
    """An array of objects."""
    return np.array(items, object)
