"""Models for the export to C, and the compiler that its tests call."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.pipeline import compile_model
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
        helper.make_node("MatMul", ["input.1", "w"], ["p"]),
        helper.make_node("MatMul", ["1", "u"], ["q"]),
        helper.make_node("Add", ["p", "q"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["class"]),
        helper.make_node("Tanh", ["class"], ["out/a"]),
        helper.make_node("ReduceMax", ["class"], ["out.a"], keepdims=0),
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
        nodes.append(helper.make_node("Gather", [f"in_{name}", "order"], [f"out_{name}"]))
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
        [helper.make_node("Identity", ["c"], ["y"])],
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
    """The model as the pipeline compiles it."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    return compile_model(import_onnx(path), threads=threads).spec


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
    """A shared library called through its three functions."""

    def __init__(self, path: Path, name: str, spec: ExecutableSpec) -> None:
        library = ctypes.CDLL(str(path))
        self.spec = spec
        self._run = getattr(library, f"{name}_run")
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._error = getattr(library, f"{name}_error")
        self._error.restype = ctypes.c_char_p
        size = getattr(library, f"{name}_workspace_bytes")
        size.restype = ctypes.c_size_t
        self.workspace_bytes: int = size()
        self.workspace = aligned_empty((self.workspace_bytes,), np.dtype(np.uint8))

    def call(self, pointers: Sequence[int | None] | None, workspace: int | None) -> int:
        """The function itself; pointers are the members of the struct, in order."""
        if pointers is None:
            return int(self._run(None, workspace))
        struct = (ctypes.c_void_p * len(pointers))(*pointers)
        return int(self._run(ctypes.addressof(struct), workspace))

    def error(self, code: int) -> str:
        return bytes(self._error(code)).decode()

    def run(self, inputs: Mapping[str, Array], offset: int = 0) -> dict[str, Array]:
        """Run on buffers that start `offset` bytes behind a multiple of the alignment."""
        given = [_at_offset(inputs[name], offset) for name, _ in self.spec.inputs]
        empty = [np.zeros(type.shape, type.dtype.numpy) for _, type in self.spec.outputs]
        results = [_at_offset(array, offset) for array in empty]
        pointers = [address_of(memory) + offset for memory in (*given, *results)]
        code = self.call(pointers, address_of(self.workspace))
        assert code == 0, self.error(code)
        return {
            name: np.frombuffer(memory[offset:].tobytes(), type.dtype.numpy).reshape(type.shape)
            for (name, type), memory in zip(self.spec.outputs, results, strict=True)
        }


def _at_offset(array: Array, offset: int) -> npt.NDArray[np.uint8]:
    """Aligned bytes with the contents of `array` from `offset` on."""
    contents = array.tobytes()
    size = offset + len(contents)
    memory = aligned_empty((size,), np.dtype(np.uint8)).view(np.uint8)
    memory[offset:] = np.frombuffer(contents, np.uint8)
    return memory
