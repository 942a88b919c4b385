"""Our build and other engines, bound to arrays beforehand."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime
import openvino

from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.buffers import aligned_empty
from tunefarm.compiler.types.tensor_type import Array

Arrays: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Bound:
    """One run of a model by an engine: reads arrays given before, and writes `outputs`.

    `primitives` are the kinds of code that it says to run, of an engine that does.
    """

    engine: str
    run: Callable[[], object]
    outputs: Arrays
    primitives: frozenset[str] = frozenset()


def aligned(arrays: Arrays) -> dict[str, Array]:
    """Copies that start at cache lines."""
    copies = {name: aligned_empty(array.shape, array.dtype) for name, array in arrays.items()}
    for name, array in arrays.items():
        np.copyto(copies[name], array)
    return copies


def ours(executable: Executable, inputs: Arrays) -> Bound:
    """A build of ours."""
    outputs = {
        name: aligned_empty(type.shape, type.dtype.numpy)
        for name, type in executable.outputs_at().items()
    }
    return Bound("ours", executable.bind(dict(inputs), outputs).run, outputs)


def onnxruntime_engine(
    model: onnx.ModelProto, inputs: Arrays, outputs: Arrays | None, threads: int
) -> Bound:
    """onnxruntime; the outputs are like those given, or allocated by a first run if None."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    if outputs is None:
        names = [output.name for output in session.get_outputs()]
        outputs = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    results = aligned(outputs)
    binding = session.io_binding()
    for arrays, bind in ((inputs, binding.bind_input), (results, binding.bind_output)):
        for name, array in arrays.items():
            bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    return Bound("onnxruntime", lambda: session.run_with_iobinding(binding), results)


def openvino_engine(model: onnx.ModelProto, inputs: Arrays, outputs: Arrays, threads: int) -> Bound:
    """OpenVINO, in full precision; the outputs are like those given."""
    core = openvino.Core()
    properties: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", properties)
    request = compiled.create_infer_request()
    results = aligned(outputs)
    for ports, arrays in ((compiled.inputs, inputs), (compiled.outputs, results)):
        for port, array in zip(ports, arrays.values(), strict=True):
            request.set_tensor(port, openvino.Tensor(array, shared_memory=True))
    nodes = compiled.get_runtime_model().get_ops()
    kinds = frozenset(str(node.get_rt_info()["primitiveType"].value) for node in nodes)
    return Bound("openvino", lambda: request.infer(share_outputs=True), results, kinds)


def hold_to_avx2() -> None:
    """Have OpenVINO generate code without AVX-512; before it runs anything, once and for all.

    Some of it does not ask: `runs_avx512` tells. onnxruntime has no such switch.
    """
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"


class CrashProbe:
    """Tries models on OpenVINO in a process of its own: held to AVX2 it crashes on some."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def survives(
        self, model: onnx.ModelProto, inputs: Arrays, outputs: Arrays, threads: int
    ) -> bool:
        """Whether a run of the model leaves the process alive."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, mp_context=context)
        proto = model.SerializeToString()
        try:
            self._pool.submit(_try, proto, dict(inputs), dict(outputs), threads).result()
        except BrokenProcessPool:
            self._pool = None
            return False
        return True


def _try(proto: bytes, inputs: Arrays, outputs: Arrays, threads: int) -> None:
    with suppress(Exception):  # what it refuses is found out again
        openvino_engine(onnx.load_from_string(proto), inputs, outputs, threads).run()


def runs_avx512(bound: Bound) -> bool:
    """Whether an engine that was held to AVX2 runs wider vectors all the same, or may do so."""
    unasked = ("avx512", "mlas")  # what decides for itself
    return not bound.primitives or any(
        kind in primitive for primitive in bound.primitives for kind in unasked
    )
