"""Other engines that run ONNX models on CPUs: how they are made, and in what types they compute."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.structure import plain
from tunefarm.compiler.types.tensor_type import Array

Inputs: TypeAlias = Mapping[str, Array]
Run: TypeAlias = Callable[[Inputs], Mapping[str, Array]]

QUANTISED = "int8"
"""What models that are quantised in the file are computed in."""
_OF_QUANTISED = frozenset(
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul ConvInteger "
    "MatMulInteger".split()
)
QUANTIZED_FORMS = {"qdq": "QDQ", "qoperator": "QOperator"}
"""How onnxruntime writes them: floats between integers, or operators on integers."""
_CALIBRATION_SAMPLES = 4
_HINTS = {DType.BF16: "bf16", DType.F16: "f16"}


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine with a model: `numerics` is the type that it multiplies in."""

    name: str
    numerics: str
    run: Run


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of an engine: a model's file, the shapes of its inputs, threads.

    With a `storage` those that have arithmetic in that type run in it, too.
    """

    model: str
    shapes: Mapping[str, tuple[int, ...]]
    threads: int
    storage: DType | None = None


def is_quantised(model: str) -> bool:
    """Whether the file's network computes on integers that stand for real numbers."""
    from tunefarm.compiler.frontend.read_model import read_model

    proto = read_model(Path(model), ResourceBudget())
    return any(node.op_type in _OF_QUANTISED for node in proto.graph.node)


def onnxruntime(asked: Asked) -> list[Engine]:
    """onnxruntime, which computes in f32 what the model does. Raises SettingsError."""
    session = onnxruntime_session(asked.model, asked.threads)
    return [Engine("onnxruntime", DType.F32.value, session)]


def onnxruntime_session(
    model: str, threads: int, *, optimised: bool = True, exact: bool = False
) -> Run:
    """A run of onnxruntime; not `optimised` it computes every node as the standard says.

    Its products of u8 and i8 saturate at 16 bits on x86 without VNNI, unless they are `exact`,
    which takes longer; only what is optimised can be.

    Raises SettingsError if it is not installed.
    """
    try:
        import onnxruntime as ort
    except ImportError:
        raise _not_installed("onnxruntime") from None
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: plain(dict(zip(names, session.run(names, dict(inputs)), strict=True)))


def quantized_by_onnxruntime(model: bytes, form: str, seed: int = 0) -> bytes:
    """An ONNX file in int8, in one of `QUANTIZED_FORMS`: activations u8, weights i8 by channel.

    Ranges are those of random inputs. Raises SettingsError if onnxruntime is not installed.
    """
    try:
        import onnxruntime as ort
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    except ImportError:
        raise _not_installed("onnxruntime") from None
    rng = np.random.default_rng(seed)
    with TemporaryDirectory() as folder:
        prepared, output = Path(folder, "prepared.onnx"), Path(folder, "quantized.onnx")
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(prepared)  # without batch norms
        options.log_severity_level = 3
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        samples = [
            {
                port.name: rng.standard_normal(port.shape).astype(np.float32)
                if port.type == "tensor(float)"
                else rng.integers(0, 8, port.shape)
                for port in session.get_inputs()
            }
            for _ in range(_CALIBRATION_SAMPLES)
        ]
        logging.disable(logging.WARNING)  # it asks to be run by its own script
        try:
            quantize_static(
                prepared,
                output,
                _Samples(iter(samples)),
                quant_format=QuantFormat[QUANTIZED_FORMS[form]],
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
        finally:
            logging.disable(logging.NOTSET)
        return output.read_bytes()


@dataclass(frozen=True, slots=True)
class _Samples:
    """What onnxruntime calibrates with: it asks for one sample after the other."""

    left: Iterator[Mapping[str, Array]]

    def get_next(self) -> Mapping[str, Array] | None:
        """The next sample; None behind the last."""
        return next(self.left, None)


def openvino(asked: Asked) -> list[Engine]:
    """OpenVINO in f32, and in the storage that is asked for if this CPU computes in it.

    Raises SettingsError if it is not installed.
    """
    engines = [_openvino(asked, DType.F32.value)]
    hint = None if asked.storage is None else _HINTS.get(asked.storage)
    if hint is not None:
        found = _openvino(asked, hint)
        engines += [found] if found.numerics == hint else []
    return engines


def _openvino(asked: Asked, hint: str) -> Engine:
    try:
        import openvino as ov
    except ImportError:
        raise _not_installed("openvino") from None
    core = ov.Core()
    read = core.read_model(asked.model)
    read.reshape({name: list(shape) for name, shape in asked.shapes.items()})
    properties = {
        "INFERENCE_NUM_THREADS": asked.threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": hint,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = core.compile_model(read, "CPU", properties)
    request = compiled.create_infer_request()

    def run(inputs: Inputs) -> Mapping[str, Array]:
        results: Mapping[Any, Array] = request.infer(
            dict(inputs), share_inputs=True, share_outputs=True
        )
        return {output.get_any_name(): array for output, array in results.items()}

    # What it takes instead of a type that the CPU does not compute in.
    used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    return Engine("openvino", used, run)


def _not_installed(package: str) -> SettingsError:
    return SettingsError(f"{package} is not installed", hint=f"pip install {package}")


ENGINES: Mapping[str, Callable[[Asked], list[Engine]]] = {
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}
