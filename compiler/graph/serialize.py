"""JSON round trip of graphs, and the structural hash that forgets what values are called."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.serialize import number_from_json, number_to_json
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.large_arrays import release
from tunefarm.compiler.types.metadata import metadata_from_json, metadata_to_json
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.padded_shape import PaddedShape
from tunefarm.compiler.types.signature_json import (
    padded_from_json,
    padded_to_json,
    signature_from_json,
    signature_to_json,
)
from tunefarm.compiler.types.sizes import Dimension
from tunefarm.compiler.types.structure import NO_STRUCTURE, structure_from_json
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType, bytes_of

FORMAT = 1


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """The graph as JSON values, of constants their SHA-256."""
    constants = {name: {"sha256": _sha256(array)} for name, array in graph.constants.items()}
    return {**structure_to_json(graph), "constants": constants}


def structure_to_json(graph: Graph) -> dict[str, Any]:
    """Everything about the graph but its constants, as JSON values."""
    signature = graph.dynamic
    padded = {name: type.padded for name, type in graph.types.items() if type.padded is not None}
    return {
        **({} if signature is None else {"signature": signature_to_json(signature)}),
        **({"padded": padded_to_json(padded)} if padded else {}),
        **({"unread": padded_to_json(graph.unread)} if graph.unread else {}),
        **({"zeros": padded_to_json(graph.zeros)} if graph.zeros else {}),
        **_computed_sizes_to_json(graph.computed_sizes),
        **({} if graph.structure == NO_STRUCTURE else {"structure": asdict(graph.structure)}),
        **metadata_to_json(graph.metadata),
        "format": FORMAT,
        "name": graph.name,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "types": {name: _type_to_json(type) for name, type in graph.types.items()},
        "nodes": [
            {
                "operator": node.operator,
                "inputs": list(node.inputs),
                "output": node.output,
                "attributes": attributes_to_json(node.attributes),
                "source": node.source,
            }
            for node in graph.nodes
        ],
    }


def graph_from_structure(value: Any, constants: Mapping[str, Array]) -> Graph:
    """The graph that `structure_to_json` wrote, with its constants.

    Raises `TunefarmError` when the value is no such JSON.
    """
    found = value.get("format") if isinstance(value, Mapping) else type(value).__name__
    if found != FORMAT:
        raise TunefarmError(f"graph JSON of format {FORMAT} expected, found {found}")
    try:
        types = {name: _type_from_json(type) for name, type in value["types"].items()}
        for name, dims in _axes_from_json(value, "padded").items():
            types[name] = TensorType.of(types[name].dtype, dims)
        return Graph(
            str(value["name"]),
            tuple(value["inputs"]),
            tuple(value["outputs"]),
            tuple(
                Node(
                    str(node["operator"]),
                    tuple(node["inputs"]),
                    str(node["output"]),
                    attributes_from_json(node["attributes"]),
                    str(node["source"]),
                )
                for node in value["nodes"]
            ),
            types,
            dict(constants),
            signature_from_json(value["signature"]) if "signature" in value else None,
            unread=_axes_from_json(value, "unread"),
            zeros=_axes_from_json(value, "zeros"),
            computed_sizes=_computed_sizes_from_json(value),
            structure=structure_from_json(value.get("structure")),
            metadata=metadata_from_json(value),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TunefarmError(f"damaged graph JSON: {type(error).__name__}: {error}") from error


def _axes_from_json(value: Mapping[str, Any], name: str) -> dict[str, PaddedShape]:
    return padded_from_json(value[name], value["signature"]) if name in value else {}


def _computed_sizes_to_json(sizes: Mapping[str, Dimension]) -> dict[str, Any]:
    """The sizes that a graph computes, each as an axis that it is the size of."""
    axes: dict[str, PaddedShape] = {name: (((size, 1),),) for name, size in sizes.items()}
    return {"computed_sizes": padded_to_json(axes)} if axes else {}


def _computed_sizes_from_json(value: Mapping[str, Any]) -> dict[str, Dimension]:
    return {
        name: size for name, (((size, _),),) in _axes_from_json(value, "computed_sizes").items()
    }


def attributes_to_json(attributes: Mapping[str, Attribute]) -> dict[str, Any]:
    """Attributes sorted by name; floats are tagged, so that 1.0 stays a float everywhere."""
    return {name: _attribute_to_json(attributes[name]) for name in sorted(attributes)}


def attributes_from_json(value: Mapping[str, Any]) -> Mapping[str, Attribute]:
    """The inverse of `attributes_to_json`."""
    return MappingProxyType({name: _attribute_from_json(item) for name, item in value.items()})


def canonical_form(graph: Graph) -> dict[str, Any]:
    """The graph with its values numbered instead of named: equal exactly for equal structures.

    Values are numbered in the order in which a walk from the outputs needs them, so neither names,
    sources nor the order of independent nodes matter. Nodes that no output needs are left out.
    Constants count by type and contents, and so do a signature and a structure, with their names.
    """
    producers = {node.output: node for node in graph.nodes}
    numbers: dict[str, int] = {"": -1}
    for name in graph.inputs:
        numbers[name] = len(numbers) - 1
    rows: list[Any] = []
    work = list(reversed(graph.outputs))
    while work:
        name = work.pop()
        if name in numbers:
            continue
        node = producers.get(name)
        missing = [operand for operand in node.inputs if operand not in numbers] if node else []
        if missing:
            work += [name, *reversed(missing)]
            continue
        if node is None:
            row: list[Any] = ["constant", _sha256(graph.constants[name])]
        else:
            operands = [numbers[operand] for operand in node.inputs]
            row = [node.operator, operands, attributes_to_json(node.attributes)]
        rows.append([_type_to_json(graph.types[name]), row])
        numbers[name] = len(numbers) - 1
    sized = graph.dynamic
    known = {
        kind: {str(numbers[n]): dims for n, dims in axes.items() if n in numbers}
        for kind, axes in (("unread", graph.unread), ("zeros", graph.zeros))
    }
    return {
        **({} if sized is None else {"signature": signature_to_json(sized)}),
        **{kind: padded_to_json(axes) for kind, axes in known.items() if axes},
        **_computed_sizes_to_json({str(numbers[n]): s for n, s in graph.computed_sizes.items()}),
        **({} if graph.structure == NO_STRUCTURE else {"structure": asdict(graph.structure)}),
        "inputs": [_type_to_json(graph.types[name]) for name in graph.inputs],
        "values": rows,
        "outputs": [numbers[name] for name in graph.outputs],
    }


def structural_hash(graph: Graph) -> str:
    """SHA-256 (hex) of the canonical form: what the graph computes, whatever it is called."""
    text = json.dumps(canonical_form(graph), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def structurally_equal(left: Graph, right: Graph) -> bool:
    """Do both graphs have the same structure, types, attributes and constants?"""
    return canonical_form(left) == canonical_form(right)


def _type_to_json(type: TensorType) -> list[Any]:
    return [str(type.dtype), list(type.shape)]


def _type_from_json(value: Any) -> TensorType:
    dtype, shape = value
    return TensorType(DType(dtype), tuple(int(extent) for extent in shape))


def _attribute_to_json(value: Attribute) -> Any:
    if isinstance(value, tuple):
        return [_attribute_to_json(item) for item in value]
    if isinstance(value, float):
        return {"float": number_to_json(value)}
    return value


def _attribute_from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_attribute_from_json(item) for item in value)
    if isinstance(value, dict):
        return float(number_from_json(value["float"]))
    return value


def _sha256(array: Array) -> str:
    digest = hashlib.sha256(bytes_of(array)).hexdigest()
    release(array.nbytes)
    return digest
