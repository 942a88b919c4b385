"""A case: a node, its inputs, and what another implementation says its output is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.compiler.frontend.onnx_models import model, untyped
from tests.onnxruntime_session import exact_session
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute

Values: TypeAlias = npt.NDArray[Any]

FLOATS = ("float32", "float64")
SIGNED_INTEGERS = ("int8", "int16", "int32", "int64")
UNSIGNED_INTEGERS = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED_INTEGERS + UNSIGNED_INTEGERS
NUMBERS = FLOATS + INTEGERS
ALL = (*NUMBERS, "bool")


@dataclass(frozen=True, slots=True)
class Case:
    """`expected()` computes the output by other means than the compiler's expressions."""

    id: str
    node: Node
    inputs: tuple[Values | None, ...]
    expected: Callable[[], Values]
    relative: float | None = None  # tolerance; None: a few units in the last place of the type


def case(
    id: str,
    operator: str,
    inputs: Sequence[Values | None],
    expected: Callable[[], Values],
    relative: float | None = None,
    **attributes: Attribute,
) -> Case:
    """A case of `operator` over these inputs."""
    names = tuple("" if array is None else f"x{i}" for i, array in enumerate(inputs))
    node = Node(operator, names, "y", attributes)
    return Case(f"{operator}-{id}" if id else operator, node, tuple(inputs), expected, relative)


def array(seed: int, shape: Sequence[int], dtype: str = "float32", low: float = -4) -> Values:
    """Repeatable values of a dtype: floats between `low` and 4, small integers, coin flips."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in FLOATS:
        return rng.uniform(low, 4, shape).astype(dtype)
    smallest = 0 if dtype in UNSIGNED_INTEGERS else max(int(low), -9)
    return rng.integers(smallest, 10, shape).astype(dtype)


def _model(
    operator: str, inputs: Sequence[Values | None], opset: int, attributes: dict[str, Any]
) -> onnx.ModelProto:
    names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
    node = helper.make_node(operator, names, ["y"], **attributes)
    proto = model([node], _feed(inputs), [untyped("y")], opset=opset)
    return onnx.shape_inference.infer_shapes(proto)


def _feed(inputs: Sequence[Values | None]) -> dict[str, Values]:
    return {f"x{i}": value for i, value in enumerate(inputs) if value is not None}


def reference(
    operator: str, *inputs: Values | None, opset: int = 22, **attributes: Any
) -> Callable[[], Values]:
    """The ONNX reference evaluator's output of one operator."""

    def run() -> Values:
        model = _model(operator, inputs, opset, attributes)
        with np.errstate(all="ignore"):
            outputs: Any = ReferenceEvaluator(model).run(None, _feed(inputs))
        return np.asarray(outputs[0])

    return run


def runtime(
    operator: str, *inputs: Values | None, opset: int = 20, **attributes: Any
) -> Callable[[], Values]:
    """onnxruntime's output of one operator."""

    def run() -> Values:
        model = _model(operator, inputs, opset, attributes)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = exact_session(model, options)
        return np.asarray(session.run(None, _feed(inputs))[0])

    return run
