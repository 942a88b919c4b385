"""Models for the export to C, and the compiler that its tests call."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.frontend.onnx_models import node
from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.c_library.c_interface import c_interface
from tunefarm.compiler.runtime.spec.buffers import address_of, aligned_empty
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.types.tensor_type import Array

STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O2")
TYPES = ("FLOAT", "DOUBLE", "INT8", "INT16", "INT32", "INT64")
UNSIGNED = ("UINT8", "UINT16", "UINT32", "UINT64", "BOOL")


def odd_mlp() -> onnx.ModelProto:
    """Two inputs and three outputs, none of which is named as C would have it.

    Large enough for parallel loops: 64 x 256 by 256 x 256.
    """
    nodes = [
        node("MatMul", "input.1 w", "p"),
        node("MatMul", "1 u", "q"),
        node("Add", "p q", "s"),
        node("Relu", "s", "r"),
        node("MatMul", "r v", "class"),
        node("Tanh", "class", "out/a"),
        node("ReduceMax", "class", "out.a", keepdims=0),
    ]
    rng = np.random.default_rng(5)

    def tensor(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((0.05 * rng.standard_normal(shape)).astype(np.float32), name)

    def value(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        nodes,
        "odd mlp",
        [value("input.1", 64, 256), value("1", 64, 256)],
        [value("class", 64, 16), value("out/a", 64, 16), value("out.a")],
        [tensor("w", 256, 256), tensor("u", 256, 256), tensor("v", 256, 16)],
    )
    return _model(graph)


def typed_model(names: Sequence[str]) -> onnx.ModelProto:
    """An input and an output of each of the element types, three elements each, reversed."""
    nodes, inputs, outputs = [], [], []
    for name in names:
        element = getattr(TensorProto, name)
        nodes.append(node("Gather", f"in_{name} order", f"out_{name}"))
        inputs.append(helper.make_tensor_value_info(f"in_{name}", element, [3]))
        outputs.append(helper.make_tensor_value_info(f"out_{name}", element, [3]))
    order = numpy_helper.from_array(np.array([2, 1, 0]), "order")
    return _model(helper.make_graph(nodes, "typed", inputs, outputs, [order]))


def renamed(input: str, output: str) -> onnx.ModelProto:
    """The negation of three numbers, with names to be chosen."""
    graph = helper.make_graph(
        [helper.make_node("Neg", [input], [output])],
        "renamed",
        [helper.make_tensor_value_info(input, TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, [3])],
    )
    return _model(graph)


def without_inputs() -> onnx.ModelProto:
    """A model that gives three constants."""
    constant = numpy_helper.from_array(np.arange(3, dtype=np.float32), "c")
    graph = helper.make_graph(
        [node("Identity", "c")],
        "constant",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
        [constant],
    )
    return _model(graph)


MODELS = {"conv": tiny_model, "mlp": odd_mlp}


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def compiled(model: onnx.ModelProto, folder: Path, threads: int = 1) -> ExecutableSpec:
    """The model as the pipeline compiles it, once for all tests; its file lies in the folder."""
    onnx.save(model, folder / "model.onnx")
    return _spec(model.SerializeToString(deterministic=True), threads)


@cache
def _spec(model: bytes, threads: int) -> ExecutableSpec:
    return compile_model(import_model_proto(onnx.load_from_string(model)), threads=threads).spec


def random_inputs(spec: ExecutableSpec) -> dict[str, Array]:
    """Seeded inputs."""
    rng = np.random.default_rng(11)
    return {
        name: (4 * rng.standard_normal(type.shape)).astype(type.dtype.numpy)
        for name, type in spec.inputs
    }


def compile_example(folder: Path, name: str, *flags: str) -> None:
    """Compile the example of the library `name` in `folder`, as strictly as can be."""
    linked = ("-L.", f"-l{name}", "-Wl,-rpath,$ORIGIN", "-o", f"{name}_example")
    cc(folder, *STRICT, *flags, f"{name}_example.c", *linked)


def cc(folder: Path, *arguments: str) -> None:
    """Run the C compiler in `folder`; the test fails with what it printed."""
    run(folder, "cc", *arguments)


def run(folder: Path, *command: str, **environment: str) -> str:
    """What a command prints; the test fails if the command does, or is not there."""
    if "/" not in command[0] and shutil.which(command[0]) is None:
        pytest.fail(f"these tests need {command[0]}: install gcc, libc6-dev and binutils")
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stderr[:2000]}"
    return done.stdout


class Library:
    """A shared library called through its struct; every buffer is as large as the header says."""

    def __init__(self, path: Path, name: str, *programs: ExecutableSpec) -> None:
        """Of these programs, or of one."""
        self._library, self._name = ctypes.CDLL(str(path)), name
        interface = c_interface(programs, name)
        self.inputs, self.outputs = interface.inputs, interface.outputs
        self.workspace_bytes: int = self._call("workspace_bytes", ctypes.c_size_t, None)
        self.workspace = aligned_empty((self.workspace_bytes,), np.dtype(np.uint8))
        self.bytes = 0  # of the workspace that the last call needed

    def _call(self, what: str, result: type, *arguments: object) -> Any:
        function = getattr(self._library, f"{self._name}_{what}")
        function.restype = result
        return function(*arguments)

    def call(self, pointers: Sequence[int | None] | None, workspace: int | None) -> int:
        """The code of a run; pointers are those of the struct in order, at the maximum shapes."""
        io = None
        if pointers is not None:
            ports = (*self.inputs, *self.outputs)
            arrays = dict(zip((port.name for port in ports), pointers, strict=True))
            shapes = {port.name: port.declared.greatest.shape for port in self.inputs}
            io = ctypes.byref(self._struct(arrays, shapes))
        return int(self._call("run", ctypes.c_int, io, ctypes.c_void_p(workspace)))

    def error(self, code: int) -> str:
        return bytes(self._call("error", ctypes.c_char_p, code)).decode()

    def run(self, inputs: Mapping[str, Array], offset: int = 0) -> dict[str, Array]:
        """The outputs at the shapes that were written; `ValueError` with an error's text.

        Buffers start `offset` bytes behind a multiple of the alignment.
        """
        self.workspace[...] = 0xFF
        poisoned = {p.name: np.full(p.type.bytes + 1, 0xA5, np.uint8) for p in self.outputs}
        memory = {name: _at_offset(array, offset) for name, array in {**inputs, **poisoned}.items()}
        addresses = {name: address_of(array) + offset for name, array in memory.items()}
        io = self._struct(addresses, {name: array.shape for name, array in inputs.items()})
        self.bytes = self._call("workspace_bytes", ctypes.c_size_t, ctypes.byref(io))
        workspace = ctypes.c_void_p(address_of(self.workspace))
        if code := self._call("run", ctypes.c_int, ctypes.byref(io), workspace):
            raise ValueError(self.error(code))
        results = {}
        for port in self.outputs:
            shape = tuple(getattr(io, f"{port.member}_shape", port.type.shape))
            shape = shape[: getattr(io, f"{port.member}_rank", len(shape))]
            size = int(np.prod(shape)) * port.type.dtype.bytes
            found = memory[port.name][offset:]
            assert (found[size:] == 0xA5).all(), "bytes behind an output were written"
            result = np.frombuffer(found[:size].tobytes(), port.type.dtype.numpy)
            results[port.name] = result.reshape(shape)
        return results

    def _struct(
        self, addresses: Mapping[str, int | None], shapes: Mapping[str, tuple[int, ...]]
    ) -> ctypes.Structure:
        fields: list[tuple[str, type]] = []
        for port in (*self.inputs, *self.outputs):
            fields.append((port.member, ctypes.c_void_p))
            if port.declared.is_dynamic:
                extents = ctypes.c_int64 * max(1, port.declared.rank)
                fields.append((f"{port.member}_shape", extents))
            if port.declared.others:
                fields.append((f"{port.member}_rank", ctypes.c_int64))
        io: ctypes.Structure = type("IO", (ctypes.Structure,), {"_fields_": fields})()
        for port in (*self.inputs, *self.outputs):
            setattr(io, port.member, addresses[port.name])
            if port.name in shapes and port.declared.is_dynamic:
                extents = ctypes.c_int64 * max(1, port.declared.rank)
                setattr(io, f"{port.member}_shape", extents(*shapes[port.name]))
        return io


def _at_offset(array: Array, offset: int) -> npt.NDArray[np.uint8]:
    """Aligned bytes with the contents of `array` from `offset` on."""
    contents = array.tobytes()
    size = offset + len(contents)
    memory = aligned_empty((size,), np.dtype(np.uint8)).view(np.uint8)
    memory[offset:] = np.frombuffer(contents, np.uint8)
    return memory
