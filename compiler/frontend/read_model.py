"""File -> ModelProto, with a readable error for everything that is not an ONNX model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.limits import Allowance
from tunefarm.configs.regular_file import read_regular

_MAX_VERSION = 2**31 - 1  # what onnx.defs can be asked for
_DEFAULT_DOMAINS = ("", "ai.onnx")
_HINT = "the file must be an ONNX model in its binary form (.onnx)"


def read_model(path: Path, allowance: Allowance) -> onnx.ModelProto:
    """Read and parse an ONNX file. Raises ImportModelError when that is not possible."""
    try:
        size = path.stat().st_size if path.is_file() else 0
        allowance.check_bytes(f"{path}", size)
        data = read_regular(path)
    except FileNotFoundError as error:
        raise ImportModelError(f"there is no file {path}") from error
    except IsADirectoryError as error:
        raise ImportModelError(f"{path} is a folder, not an ONNX file") from error
    except ValueError as error:  # a null character
        raise ImportModelError(f"{str(path)!r} is not a file name") from error
    except OSError as error:
        raise ImportModelError(f"{path} cannot be read: {error.strerror or error}") from error
    if not data:
        raise ImportModelError(f"{path} is empty", hint=_HINT)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ImportModelError(
            f"{path} is not an ONNX model, or is truncated", hint=_HINT
        ) from error
    if not model.HasField("graph") and not model.opset_import:
        raise ImportModelError(f"{path} is not an ONNX model: it has no graph", hint=_HINT)
    return model


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
                "the model does not say which opset it uses", hint="the file may be truncated"
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
