"""File -> ModelProto, with a readable error for everything that is not an ONNX model."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message
from onnx import GraphProto, NodeProto

from tunefarm.compiler.errors import ImportModelError, LimitError
from tunefarm.compiler.frontend.tensors import initializers
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.types.large_arrays import FREE_BYTES, LEAST_BYTES, mapped
from tunefarm.configs.file_kinds import WIRE_BYTES, WireField, kind_of, wire_fields
from tunefarm.configs.files import open_regular, read_regular

_MAX_VERSION = 2**31 - 1  # what onnx.defs can be asked for
_DEFAULT_DOMAINS = ("", "ai.onnx")
_GRAPH = (onnx.ModelProto.GRAPH_FIELD_NUMBER, WIRE_BYTES)
_INITIALIZER = (onnx.GraphProto.INITIALIZER_FIELD_NUMBER, WIRE_BYTES)
_RAW_DATA = (onnx.TensorProto.RAW_DATA_FIELD_NUMBER, WIRE_BYTES)
_HINT = "the file must be an ONNX model in its binary form (.onnx)"


def read_model(path: Path, allowance: ResourceBudget) -> onnx.ModelProto:
    """Read and parse an ONNX file. Raises ImportModelError when that is not possible, and says
    what the file is instead where it can be told.

    Of a large file, large initializers are external data that lies in the file itself.
    """
    try:
        size = path.stat().st_size if path.is_file() else 0
        allowance.check_bytes(f"{path}", size)
        data = read_regular(path) if size < FREE_BYTES else _without_weights(path)
    except ValueError as error:  # a null character
        raise ImportModelError(f"{str(path)!r} is not a file name") from error
    except LimitError as error:
        raise not_a_model(path) or error from None
    except FileNotFoundError as error:
        other = not_a_model(path)
        raise other or ImportModelError(f"there is no file {path}") from error
    except OSError as error:
        other = not_a_model(path) if path.is_dir() else None
        reason = f"{path} cannot be read: {error.strerror or error}"
        raise other or ImportModelError(reason) from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f"{path} is not an ONNX model, or is damaged or cut off"
        raise not_a_model(path) or ImportModelError(text, hint=_HINT) from error
    if not model.HasField("graph") and not model.opset_import:
        text = f"{path} is not an ONNX model: it has no graph"
        raise not_a_model(path) or ImportModelError(text, hint=_HINT)
    return model


def _without_weights(path: Path) -> bytes:
    """A model whose large initializers are external data in the same file, which is mapped.

    A parsed model has a copy of each, next to the file's own bytes. A damaged file comes back as it
    is. Raises `OSError` as `read_regular` does.
    """
    with open_regular(path) as file:
        data = memoryview(mapped(file))
    pieces: list[bytes | memoryview] = []
    try:
        for field in _fields(data, 0, len(data)):
            if (field.number, field.wire) != _GRAPH:
                pieces.append(data[field.begin : field.end])
                continue
            inner = _fields(data, field.start, field.end)
            graph = [_without_data(data, path.name, each) for each in inner]
            pieces += [_head(field, sum(map(len, graph))), *graph]
    except ValueError:
        return bytes(data)
    return b"".join(pieces)


def _without_data(data: memoryview, name: str, field: WireField) -> bytes | memoryview:
    """A field of a graph; a large initializer names the place of its data in the file `name`."""
    is_initializer = (field.number, field.wire) == _INITIALIZER
    if not is_initializer or field.end - field.start < LEAST_BYTES:
        return data[field.begin : field.end]
    raw, rest = WireField(*_RAW_DATA, 0, 0, 0), []
    for each in _fields(data, field.start, field.end):
        if (each.number, each.wire) == _RAW_DATA:
            raw = each  # the last one counts
        else:
            rest.append(data[each.begin : each.end])
    if raw.end - raw.start < LEAST_BYTES:
        return data[field.begin : field.end]
    tensor = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    place = {"location": name, "offset": raw.start, "length": raw.end - raw.start}
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))
    content: bytes = b"".join(rest) + tensor.SerializeToString()
    return _head(field, len(content)) + content


def _fields(data: memoryview, begin: int, end: int) -> list[WireField]:
    """All fields of a message. Raises `ValueError` where it is damaged."""
    found = list(wire_fields(data, begin, end))
    if (found[-1].end if found else begin) != end:
        raise ValueError("a message is damaged")
    return found


def _head(field: WireField, length: int) -> bytes:
    """What such a field begins with where its value has so many bytes."""
    return _varint(field.number << 3 | field.wire) + _varint(length)


def _varint(value: int) -> bytes:
    """A number in wire format."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


def copy_model(source: str, target: str) -> None:
    """Write the model in a file to another one, with external data inside if it is below 2 GiB.

    Raises `OSError` as writing does.
    """
    write_model(onnx.load(source), target)


def write_model(model: onnx.ModelProto, target: str) -> None:
    """Write a model to a file, and what is beyond 2 GiB to one next to it, `TARGET.data`."""
    try:
        onnx.save(model, target)
    except (EncodeError, ValueError):
        data = f"{Path(target).name}.data"
        onnx.save(model, target, save_as_external_data=True, location=data)


def not_a_model(path: str | os.PathLike[str]) -> ImportModelError | None:
    """The error that says what a file is instead of an ONNX model; None where that is not known,
    and for an ONNX model."""
    kind = kind_of(path)
    if kind is None or kind.is_model:
        return None
    text = f"{os.fspath(path)} is {kind.instead_of('an ONNX model')}"
    return ImportModelError(text, hint=kind.advice)


def read_opsets(model: onnx.ModelProto) -> dict[str, int]:
    """The opset version of each domain ("" for ai.onnx).

    Raises ImportModelError when the model declares none, or one newer than is known here.
    """
    if not model.HasField("graph"):
        raise ImportModelError("the model has no graph", hint="the file may be truncated")
    opsets = opset_versions(model.opset_import)
    if "" not in opsets:
        if any(node.domain in _DEFAULT_DOMAINS for node in model.graph.node):
            raise ImportModelError(
                "the model does not declare its opset", hint="the file may be truncated"
            )
        opsets[""] = onnx.defs.onnx_opset_version()
    known = onnx.defs.onnx_opset_version()
    if not 1 <= opsets[""] <= known:
        raise ImportModelError(
            f"the model uses opset {opsets['']}, and opsets 1 to {known} are known",
            hint="export it with an older opset, or install a newer onnx package",
        )
    return opsets


def opset_versions(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Opset imports as a mapping from domain to version; ai.onnx is the domain ""."""
    versions: dict[str, int] = {}
    for entry in imports:
        domain = canonical_domain(entry.domain)
        version = min(max(int(entry.version), 0), _MAX_VERSION)
        versions[domain] = max(versions.get(domain, 0), version)
    return versions


def canonical_domain(domain: str) -> str:
    """The domain with the alias of the default one resolved."""
    return "" if domain in _DEFAULT_DOMAINS else domain


def check_text(message: Message) -> None:
    """Raise ImportModelError when a name in a parsed model is not UTF-8 text.

    Protocol buffers give such names as bytes. Tensors' contents are not looked at.
    """
    if isinstance(message, onnx.TensorProto):
        entries = [entry.value for entry in message.external_data]
        _check_strings("name of a tensor", [message.name, *entries])
        return
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            _check_strings(field.name, [value] if isinstance(value, str | bytes) else value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in [value] if isinstance(value, Message) else value:
                check_text(inner)


def _check_strings(what: str, values: Iterable[str | bytes]) -> None:
    for value in values:
        if not isinstance(value, str):
            raise ImportModelError(
                f"the model has a {what} that is not UTF-8 text: {value[:40]!r}",
                hint="the file may be damaged",
            )


# The order of nodes: some files have them in another one than that of their reads.


def in_order(nodes: Sequence[NodeProto]) -> Sequence[NodeProto]:
    """The nodes, each behind those that it reads.

    Nodes that are in order stay where they are, and so do those that read each other in a circle:
    the importer says what is missing.
    """
    makers = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    reads = {
        number: {makers[name] for name in names_read(node) if makers.get(name, number) != number}
        for number, node in enumerate(nodes)
    }
    if all(max(own, default=-1) < number for number, own in reads.items()):
        return nodes
    with suppress(CycleError):
        return [nodes[number] for number in TopologicalSorter(reads).static_order()]
    return nodes


def names_read(node: NodeProto) -> Iterator[str]:
    """The names that a node reads, those of graphs inside it among them."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from _read_by_graph(graph)


def _read_by_graph(graph: GraphProto) -> Iterable[str]:
    own: Collection[str] = {
        *(info.name for info in graph.input),
        *initializers(graph),
        *(name for node in graph.node for name in node.output),
    }
    inside = (name for node in graph.node for name in names_read(node))
    outputs = (info.name for info in graph.output)
    return [name for name in (*inside, *outputs) if name not in own]
