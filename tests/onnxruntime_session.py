"""Sessions of onnxruntime that are right on every CPU, for tests that compare with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

_EXACT_PRODUCTS = "session.x64quantprecision"
"""onnxruntime's fast products of u8 and s8 saturate at 16 bits where the CPU has AVX2 or AVX-512
and no VNNI; with this entry they are exact there too."""


def exact_session(
    model: onnx.ModelProto | str | Path, options: onnxruntime.SessionOptions | None = None
) -> onnxruntime.InferenceSession:
    """A session of a model or of a file, on the CPU, whose 8-bit products do not saturate."""
    options = options or onnxruntime.SessionOptions()
    options.add_session_config_entry(_EXACT_PRODUCTS, "1")
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def one_thread() -> onnxruntime.SessionOptions:
    """Options of a session that prints no warnings and writes in order."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return options


def assert_agrees(
    run: Callable[[dict[str, Any]], Mapping[str, Any]],
    model: onnx.ModelProto | str | Path,
    *calls: Mapping[str, Any],
    rtol: float = 1e-4,
    atol: float = 1e-5,
    of_largest: float = 0.0,
    options: onnxruntime.SessionOptions | None = None,
) -> None:
    """`run` gives what onnxruntime gives for the inputs of each call, with types and shapes, within
    tolerances: of each number, and of the largest of an output."""
    session = exact_session(model, options)
    names = [output.name for output in session.get_outputs()]
    for number, inputs in enumerate(calls):
        found = run(dict(inputs))
        for name, wanted in zip(names, session.run(names, dict(inputs)), strict=True):
            own, where = np.asarray(found[name]), f"{name} of call {number}"
            assert (own.dtype, own.shape) == (wanted.dtype, wanted.shape), where
            margin = of_largest * np.abs(wanted).max(initial=0) if of_largest else 0
            np.testing.assert_allclose(own, wanted, rtol, atol + float(margin), err_msg=where)
