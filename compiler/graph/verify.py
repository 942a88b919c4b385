"""The rules of a Graph, checked before and after every pass."""

from __future__ import annotations

from tunefarm.compiler.errors import TunefarmError, VerifyError
from tunefarm.compiler.graph.infer_types import node_type, same_types
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.loop_regions import region_problem
from tunefarm.compiler.graph.printer import format_graph, format_node
from tunefarm.compiler.operators.registry import MEMORY, operator
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.padded_shape import extent_of
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.compiler.types.verify_signature import signature_problem


def verify_graph(graph: Graph, verified: Graph | None = None) -> None:
    """Check names, order, types and constants; `VerifyError` with the printed graph.

    Every value has one definition before its first use, every node's result has the type that its
    operator infers, constants are read-only, contiguous arrays of their declared type, nodes read
    and make tensors with elements (inputs, and constants and views of them that are outputs, may
    have none), the graph has at least one output, a signature is one of its inputs and outputs,
    axes whose padding is unread are those of their values, and loops lie within each other. Types
    of nodes that the graph shares with a `verified` one, with the same types all round them, are
    not inferred again, and constants and types that it shares with that are not looked at again.
    """
    problem = (
        _values_problem(graph, verified)
        or _nodes_problem(graph, verified)
        or _outputs_problem(graph)
        or _signature_problem(graph)
        or _padding_problem(graph, verified)
        or region_problem(graph)
    )
    if problem:
        raise VerifyError(f"graph {graph.name}: {problem}", program=format_graph(graph))


def _values_problem(graph: Graph, verified: Graph | None) -> str:
    known_types = verified.types if verified else {}
    known_constants = verified.constants if verified else {}
    if len(set(graph.inputs)) != len(graph.inputs):
        return "two inputs have the same name"
    for name in graph.inputs:
        if name in graph.constants:
            return f"{name} is both an input and a constant"
        if name not in graph.types:
            return f"input {name} has no type"
    for name, array in graph.constants.items():
        declared = graph.types.get(name)
        if declared is None:
            return f"constant {name} has no type"
        if known_constants.get(name) is array and known_types.get(name) is declared:
            continue
        if array.shape != declared.shape or array.dtype != declared.dtype.numpy:
            return f"constant {name} is {array.dtype}{list(array.shape)}, declared {declared}"
        if not array.flags.c_contiguous:
            return f"constant {name} is not C-contiguous"
        if array.flags.writeable:
            return f"constant {name} is writeable"
    for name, type in graph.types.items():
        if known_types.get(name) is not type and min(type.shape, default=0) < 0:
            return f"{name} has an extent below 0: {type}"
    return ""


def _nodes_problem(graph: Graph, verified: Graph | None) -> str:
    known = {id(node) for node in verified.nodes} if verified else set()
    defined = {*graph.inputs, *graph.constants}
    for node in graph.nodes:
        for name in node.inputs:
            if name and name not in defined:
                return f"{name} is used before it is defined, in {format_node(node)}"
        if not node.output or node.output in defined:
            return f"{node.output!r} is defined twice, in {format_node(node)}"
        defined.add(node.output)
        if verified and id(node) in known and same_types(node, graph.types, verified.types):
            continue
        problem = _type_problem(graph, node)
        if problem:
            return f"{problem}, in {format_node(node)}"
    return ""


def _type_problem(graph: Graph, node: Node) -> str:
    declared = graph.types.get(node.output)
    if declared is None:
        return f"{node.output} has no type"
    try:
        inferred = node_type(node, graph.types)
    except TunefarmError as error:
        return str(error)
    if inferred != declared:
        return f"declared {declared}, but it is {inferred}"
    if operator(node.operator).pattern in MEMORY:
        return ""
    types = [graph.types[name] for name in (*node.inputs, node.output) if name]
    return "" if all(type.size for type in types) else "a tensor has no elements"


def _outputs_problem(graph: Graph) -> str:
    if not graph.outputs:
        return "it has no output"
    defined = {*graph.inputs, *graph.constants, *(node.output for node in graph.nodes)}
    for name in graph.outputs:
        if name not in defined:
            return f"output {name} is not defined"
    for name in graph.computed_sizes:
        type = graph.types.get(name)
        if name not in graph.outputs or type != TensorType(DType.I64, (1,)):
            return f"the size {graph.computed_sizes[name]} cannot be in {name!r}, {type}"
    unknown = set(graph.types) - defined
    if unknown:
        return f"types of values that do not exist: {', '.join(sorted(unknown))}"
    return ""


def _padding_problem(graph: Graph, verified: Graph | None) -> str:
    for name, dims in (*graph.unread.items(), *graph.zeros.items()):
        type = graph.types.get(name)
        if verified and verified.types.get(name) is type is not None:
            before = (verified.unread.get(name), verified.zeros.get(name))
            if dims in before:
                continue
        if type is None or tuple(map(extent_of, dims)) != type.shape:
            return f"{name} is {type}, its axes are {dims}"
    return ""


def _signature_problem(graph: Graph) -> str:
    if graph.is_fixed:
        return ""
    inputs, outputs = ([(n, graph.types[n]) for n in p] for p in (graph.inputs, graph.outputs))
    return signature_problem(graph.signature, inputs, outputs)
