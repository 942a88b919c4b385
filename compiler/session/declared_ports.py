"""Inputs and outputs as an ONNX file declares them, for sessions of models with open sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunefarm.compiler.session.ports import NodeArg, type_text
from tunefarm.compiler.types.metadata import Metadata

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class DeclaredModel:
    """What a session tells of an ONNX file before anything is built.

    `inputs` are those that must be given; None in a shape is a dimension without a name. Of the
    inputs `unranked` not even the rank is declared.
    """

    name: str
    inputs: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]
    metadata: Metadata
    unranked: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether the size of an input is left to each run."""
        sizes = (size for port in self.inputs for size in port.shape)
        return bool(self.unranked) or any(not isinstance(size, int) for size in sizes)


def declared_model(path: str) -> DeclaredModel | None:
    """The ports of a file; None if inputs are sequences or optionals.

    Raises `ImportModelError` for a file that is no model, or where no model can be read.
    """
    try:
        from tunefarm.compiler.frontend.import_onnx import metadata_of
        from tunefarm.compiler.frontend.read_model import read_model
        from tunefarm.compiler.limits import Allowance
    except ModuleNotFoundError:
        return None  # the build says what is missing
    from pathlib import Path

    model = read_model(Path(path), Allowance())
    initialized = {tensor.name for tensor in model.graph.initializer}
    infos = [info for info in model.graph.input if info.name not in initialized]
    if any(info.type.WhichOneof("value") != "tensor_type" for info in infos):
        return None
    return DeclaredModel(
        model.graph.name or "model",
        tuple(map(_declared, infos)),
        tuple(map(_declared, model.graph.output)),
        metadata_of(model),
        frozenset(info.name for info in infos if not info.type.tensor_type.HasField("shape")),
    )


def _declared(info: onnx.ValueInfoProto) -> NodeArg:
    """The port as onnxruntime tells it: the shape of what has no known rank is empty."""
    from tunefarm.compiler.frontend.element_types import dtype_of

    tensor = info.type.tensor_type
    kind = info.type.WhichOneof("value") or "tensor_type"
    if kind != "tensor_type":
        return NodeArg(info.name, {"sequence_type": "seq"}.get(kind, "optional"), [])
    shape: list[int | str | None] = [
        dimension.dim_value if dimension.dim_value > 0 else dimension.dim_param or None
        for dimension in tensor.shape.dim
    ]
    return NodeArg(info.name, type_text(dtype_of(tensor.elem_type, info.name)), shape)
