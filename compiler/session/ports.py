"""Inputs and outputs as sessions of onnxruntime tell them: names, types and shapes as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.sizes import Dimension
from tunefarm.compiler.types.structure import StructuredPort


@frozen
class NodeArg:
    """An input or output: its name, its type (`tensor(float)`), and its shape.

    The shape has numbers, and the names or sums (`past + 1`) of dynamic dimensions, or None for one
    without a name; that of a list or an optional is empty, and of an output whose rank depends on
    the sizes of inputs.
    """

    name: str
    type: str
    shape: list[int | str | None]

    def __str__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


def inputs_of(executable: Executable) -> list[NodeArg]:
    """The inputs in the model's order; lists and optionals where their first tensor is, and the
    strings of a prefix instead of what it makes of them.

    Those whose value a build has fixed come last: callers may go on to give them.
    """
    spec, signature = executable.spec, executable.signature
    texts = spec.structure.texts
    plain = [_node_arg(p.name, p.dtype, p.shape, texts) for p in signature.inputs]
    prefix = spec.structure.prefix
    plain = [port for port in plain if port.name not in prefix.results]
    fixed = [_node_arg(p.name, p.dtype, p.shape, texts) for p in spec.structure.fixed]
    found = _gathered([*plain, *fixed], spec.structure.inputs)
    for port in prefix.ports:
        text = NodeArg(port.name, type_text(DType.STRING), list(port.shape or ()))
        found.insert(port.position, text)
    return found


def outputs_of(executable: Executable) -> list[NodeArg]:
    """The same of the outputs; lists without tensors and optionals without content come last."""
    spec, signature = executable.spec, executable.signature
    texts = spec.structure.texts
    plain = [
        _node_arg(p.name, p.dtype, () if p.others else p.shape, texts) for p in signature.outputs
    ]
    return _gathered(plain, spec.structure.outputs)


def _node_arg(name: str, dtype: DType, shape: Sequence[Dimension], texts: Sequence[str]) -> NodeArg:
    extents: list[int | str | None] = [e if isinstance(e, int) else str(e) for e in shape]
    return NodeArg(name, type_text(DType.STRING if name in texts else dtype), extents)


def type_text(dtype: DType) -> str:
    """The type of a tensor: `tensor(float)`."""
    return f"tensor({dtype.onnx_name})"


def _gathered(plain: Sequence[NodeArg], structured: Sequence[StructuredPort]) -> list[NodeArg]:
    """Ports in order, with each structured one where its first tensor is, or last."""
    owners = {member: port for port in structured for member in port.members or ()}
    types = {arg.name: arg.type for arg in plain}
    found: dict[str, NodeArg] = {}
    for arg in plain:
        port = owners.get(arg.name)
        known = arg if port is None else _structured(port, types)
        found.setdefault(known.name, known)
    for port in structured:
        found.setdefault(port.name, _structured(port, types))
    return list(found.values())


def _structured(port: StructuredPort, types: Mapping[str, str]) -> NodeArg:
    """A list or an optional; of one without tensors nobody keeps the element type."""
    element = types[port.members[0]] if port.members else "tensor(float)"
    if port.labels:
        key = "int64" if isinstance(port.labels[0], int) else "string"
        return NodeArg(port.name, f"seq(map({key},{element}))", [])
    return NodeArg(port.name, f"seq({element})" if port.listed else f"optional({element})", [])
