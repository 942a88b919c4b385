"""One node of onnxruntime's own operators as a model, and what onnxruntime makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper

from tests.compiler.frontend.onnx_models import model
from tests.onnxruntime_session import exact_session
from tunefarm.compiler import build
from tunefarm.compiler.frontend.import_onnx import import_model_proto

Values = npt.NDArray[Any]
Feeds = Mapping[str, Values | None]


def model_of(
    operator: str,
    feeds: Feeds,
    outputs: Sequence[str] = ("y",),
    constants: Sequence[str] = (),
    *,
    domain: str = "com.microsoft",
    opset: int = 17,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node; an input that is None is absent, `constants` are initializers."""
    names = [name if value is not None else "" for name, value in feeds.items()]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(operator, names, outputs, "it", domain=domain, **attributes)
    given = {name: value for name, value in feeds.items() if value is not None}
    return model(
        [node],
        {name: value for name, value in given.items() if name not in constants},
        [helper.make_value_info(name, onnx.TypeProto()) for name in outputs if name],
        {name: given[name] for name in constants},
        opset=opset,
        domains={"com.microsoft": 1},
    )


def by_onnxruntime(model: onnx.ModelProto, feeds: Feeds) -> list[Values]:
    """The outputs as onnxruntime computes them, without optimising, and in one thread: some
    kernels round by the range of what a thread has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = exact_session(model, options)
    names = {item.name for item in session.get_inputs()}
    given = {name: value for name, value in feeds.items() if name in names}
    return [np.asarray(value) for value in session.run(None, given)]


def by_us(model: onnx.ModelProto, feeds: Feeds) -> list[Values]:
    """The outputs of the compiled model."""
    executable = build(import_model_proto(model))
    names = executable.inputs
    given = {name: value for name, value in feeds.items() if name in names}
    return list(executable.run(given).values())


def assert_same(
    model: onnx.ModelProto, feeds: Feeds, rtol: float = 2e-4, atol: float = 2e-5
) -> None:
    """We compute what onnxruntime computes, in the same types."""
    found, expected = by_us(model, feeds), by_onnxruntime(model, feeds)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)
