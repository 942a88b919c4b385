"""Sessions of onnxruntime that are right on every CPU, for tests that compare with them."""

from __future__ import annotations

from pathlib import Path

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
