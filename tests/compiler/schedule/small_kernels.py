"""Small kernels of every family, and how to run one under a schedule: for generated-code tests."""

from __future__ import annotations

import ast
import ctypes
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

import numpy as np

from tests.compiler.schedule.tile_session import tile_session
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.llvm import compile_kernel
from tunefarm.compiler.operators.registry import infer_type
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType


def kernel_from(text: str) -> FusedKernel:
    """The fused kernel of a text: types of x0, x1, ..., then nodes whose results are v0, v1, ...

    `[13,19] const i8[19,40]; matmul x0 x1 accumulator=i32; relu v0`.
    """
    types, *lines = text.split("; ")
    found = re.findall(r"(const )?(\w*)\[([\d,]*)\]", types)
    shapes = [tuple(map(int, filter(None, shape.split(",")))) for _, _, shape in found]
    inputs = [TensorType(DType(d or "f32"), s) for (_, d, _), s in zip(found, shapes, strict=True)]
    constants = [f"x{number}" for number, (kind, _, _) in enumerate(found) if kind]
    return kernel_of(inputs, [_node(line.split()) for line in lines], constants)


def _node(words: Sequence[str]) -> tuple[str, list[str], dict[str, Attribute]]:
    operands = ["" if word == "_" else word for word in words[1:] if "=" not in word]
    pairs = (word.split("=") for word in words if "=" in word)
    return words[0], operands, {name: _attribute(value) for name, value in pairs}


def _attribute(text: str) -> Attribute:
    try:
        return cast("Attribute", ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def kernel_of(
    inputs: Sequence[TensorType],
    nodes: Sequence[tuple[str, Sequence[str], Mapping[str, Attribute]]],
    constants: Sequence[str] = (),
) -> FusedKernel:
    """The fused kernel of a chain of nodes over inputs x0, x1, ...; node i's result is v{i}."""
    calls = extract_kernels(graph_of(inputs, nodes, constants)).calls
    kernels = [call.kernel for call in calls if isinstance(call, KernelCall)]
    assert len(kernels) == 1, [kernel.name for kernel in kernels]
    return kernels[0]


def graph_of(
    inputs: Sequence[TensorType],
    nodes: Sequence[tuple[str, Sequence[str], Mapping[str, Attribute]]],
    constants: Sequence[str] = (),
) -> Graph:
    """The graph of a chain of nodes over inputs x0, x1, ...; node i's result is v{i}."""
    types = {f"x{i}": type for i, type in enumerate(inputs)}
    made = []
    for i, (operator, operands, attributes) in enumerate(nodes):
        node = Node(operator, tuple(operands), f"v{i}", MappingProxyType(dict(attributes)))
        types[f"v{i}"] = infer_type(node, tuple(types.get(name) for name in operands))
        made.append(node)
    rng = np.random.default_rng(0)
    values = {name: sample(types[name], rng) for name in constants}
    for value in values.values():
        value.flags.writeable = False
    return Graph(
        "test",
        tuple(name for name in types if name.startswith("x") and name not in constants),
        (made[-1].output,),
        tuple(made),
        types,
        values,
    )


def sample(type: TensorType, rng: np.random.Generator) -> Array:
    """Small values of a type."""
    if type.dtype.is_float:
        return rng.standard_normal(type.shape).astype(type.dtype.numpy)
    return rng.integers(0, 2 if type.dtype is DType.BOOL else 7, type.shape).astype(
        type.dtype.numpy
    )


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def inputs_for(kernel: FusedKernel, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {buffer.name: sample(buffer.type, rng) for buffer in kernel.inputs}


def run_kernel(
    kernel: FusedKernel,
    schedule: Schedule,
    inputs: Mapping[str, Array],
    target: Target | None = None,
) -> Array:
    """Compile and call a kernel serially; the result starts as NaN or a pattern."""
    compiled = compile_kernel(kernel, schedule, target or host_target())
    layouts = dict(compiled.constant_layouts)
    arrays = [
        layouts[buffer.name].pack(inputs[buffer.name])
        if buffer.name in layouts
        else np.ascontiguousarray(inputs[buffer.name])
        for buffer in kernel.inputs
    ]
    output = np.empty(kernel.output.shape, kernel.output.dtype.numpy)
    output[...] = np.nan if kernel.output.dtype.is_float else 1
    handle = LoadedCode([compiled.object_code], [compiled.symbol])
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
        handle.address(compiled.symbol)
    )
    pointers = (ctypes.c_void_p * (len(arrays) + 1))(
        *(array.ctypes.data for array in arrays), output.ctypes.data
    )
    workspace = np.empty(compiled.workspace_bytes + 64, np.uint8)
    runtime = (ctypes.c_int64 * 2)(0, 1)
    with tile_session(target or host_target()):
        function(ctypes.addressof(pointers), workspace.ctypes.data, ctypes.addressof(runtime))
    return output
