"""A model as a program gives it to a session -> a file in a folder of its own.

A program gives bytes, whose external data lies elsewhere or in memory, and other arrays for
initializers:

    bytes with "weights.bin" outside  -> FOLDER/model, FOLDER/weights.bin -> a link to the file
    bytes, {"weights.bin": b"…"}      -> FOLDER/model, FOLDER/weights.bin
    bytes, {"w": array}               -> FOLDER/model, with that array
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto, numpy_helper

from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.external_data import ExternalData
from tunefarm.compiler.frontend.read_model import write_model

_LOCATION = "location"  # the key of the name of a file of external data


@dataclass(frozen=True, slots=True)
class GivenData:
    """What comes with a model: the folder of its external data, files of it in memory, and arrays
    for initializers, `required` ones and those of other models too."""

    folder: Path
    files: Mapping[str, bytes] = field(default_factory=dict)
    shared: Mapping[str, object] = field(default_factory=dict)
    required: Mapping[str, object] = field(default_factory=dict)


def write_given(data: bytes, given: GivenData, target: Path) -> None:
    """Write a model to `target`, and what it reads next to it; what is no model as it is.

    Raises `ImportModelError` for external data that is missing, and for arrays that initializers of
    the model cannot be.
    """
    values = {**given.shared, **given.required}
    if not values and _LOCATION.encode() not in data:
        target.write_bytes(data)
        return
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, RecursionError):
        target.write_bytes(data)
        return
    found = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, value in values.items():
        if name in found:
            _replace(found[name], value)
        elif name in given.required:
            raise ImportModelError(f"the model has no initializer {name!r} to replace")
    _place(model, given, target.parent)
    write_model(model, str(target))


def _replace(tensor: TensorProto, value: Any) -> None:
    """Give an initializer another value, of its own type and shape."""
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    made = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), tensor.name)
    if (made.data_type, list(made.dims)) != (tensor.data_type, list(tensor.dims)):
        raise ImportModelError(
            f"the initializer {tensor.name!r} is {_type_text(tensor)}, and cannot be replaced by "
            f"{_type_text(made)}"
        )
    tensor.CopyFrom(made)


def _type_text(tensor: TensorProto) -> str:
    return f"{TensorProto.DataType.Name(tensor.data_type).lower()}{list(tensor.dims)}"


def _place(model: onnx.ModelProto, given: GivenData, folder: Path) -> None:
    """Put the files of external data where the model looks for them: bytes, or links."""
    for name, content in given.files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    for location, what in _external_files(model).items():
        if not given.files:
            found = ExternalData((given.folder,)).locate(location, what)
            place = folder / location
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(found.resolve())
        elif location not in given.files:
            raise ImportModelError(
                f"external data {location!r} of {what} is not among the files in memory",
                hint=f"those given: {', '.join(map(repr, given.files))}",
            )


def _external_files(model: onnx.ModelProto) -> dict[str, str]:
    """The files of external data by name, each with what is in it."""
    return {
        entry.value: f"initializer {tensor.name!r}"
        for tensor in _tensors(model)
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == _LOCATION
    }


def _tensors(message: Message) -> Iterator[TensorProto]:
    """All tensors within a message."""
    if isinstance(message, TensorProto):
        yield message
        return
    for kind, value in message.ListFields():
        if kind.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in [value] if isinstance(value, Message) else value:
                yield from _tensors(inner)
