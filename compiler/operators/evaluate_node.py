"""The value of one node in NumPy, through its own tensor expression."""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.float_arithmetic import computes_with_floats
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.operators.registry import (
    MEMORY,
    add_expression,
    complete_attributes,
    infer_type,
    operator,
)
from tunefarm.compiler.types.denormals import flushed
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.numerics import KEEP, Denormals
from tunefarm.compiler.types.tensor_type import Array, TensorType


def node_kernel(
    node: Node, types: tuple[TensorType | None, ...], constant: tuple[bool, ...] = ()
) -> FusedKernel:
    """The kernel of one node alone; `constant` marks the inputs known when the model is built.

    Absent inputs are no buffers. The anchor is the last stage that reduces, if there is one.
    Raises `ShapeError` for illegal types and `ValueError` for a view or join, which has no kernel.
    """
    result = infer_type(node, types)
    builder = KernelBuilder()
    marks = constant or (False,) * len(types)
    tensors = tuple(
        None if type is None else builder.input(type, mark)
        for type, mark in zip(types, marks, strict=True)
    )
    output = add_expression(builder, node, tensors, result)
    if not builder.stages or builder.stages[-1].name != output.name:
        raise ValueError(f"{node.operator} did not end with the stage of its result")
    reducing = [stage.name for stage in builder.stages if stage.reduce_axes]
    anchor = reducing[-1] if reducing else output.name
    return builder.kernel(node.operator, anchor)


def evaluate_as_run(node: Node, inputs: tuple[Array | None, ...], denormals: Denormals) -> Array:
    """The same as `evaluate_node`, with the denormal numbers that a run would have."""
    result = evaluate_node(node, inputs)
    if denormals == KEEP or operator(node.operator).pattern in MEMORY:
        return result
    operands = tuple(None if array is None else flushed(array) for array in inputs)
    if all(one is other for one, other in zip(operands, inputs, strict=True)):
        settled = flushed(result)
    else:
        settled = flushed(evaluate_node(node, operands))
    types = tuple(None if array is None else _type_of(array) for array in inputs)
    if settled is result or not computes_with_floats(node_kernel(node, types)):
        return result
    return settled


def evaluate_node(node: Node, inputs: tuple[Array | None, ...]) -> Array:
    """The node's output for these inputs (None where one is absent), as a C-contiguous array.

    Raises `ShapeError` for inputs of illegal types.
    """
    types = tuple(None if array is None else _type_of(array) for array in inputs)
    if operator(node.operator).pattern in MEMORY:
        type = infer_type(node, types)
        elements = np.concatenate([array.reshape(-1) for array in inputs if array is not None])
        offset = complete_attributes(node).get("offset", 0)
        assert isinstance(offset, int)
        return elements[offset : offset + type.size].reshape(type.shape).copy()
    kernel = node_kernel(node, types)
    present = [array for array in inputs if array is not None]
    buffers = {buffer.name: array for buffer, array in zip(kernel.inputs, present, strict=True)}
    return evaluate_kernel(kernel, buffers)


def _type_of(array: Array) -> TensorType:
    return TensorType(DType.from_numpy(array.dtype), array.shape)
