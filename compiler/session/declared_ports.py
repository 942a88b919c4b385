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

    `inputs` are those that must be given; None in a shape is a dimension without a name.
    """

    name: str
    inputs: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]
    metadata: Metadata

    @property
    def is_open(self) -> bool:
        """Whether the size of an input is left to each run."""
        return any(not isinstance(size, int) for port in self.inputs for size in port.shape)


def declared_model(path: str) -> DeclaredModel | None:
    """The ports of a file; None if there are others than tensors of known rank.

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
    inputs = [_declared(info) for info in infos]
    outputs = [_declared(info) for info in model.graph.output]
    known = [port for port in inputs if port is not None]
    if len(known) < len(inputs):
        return None
    shown = [port for port in outputs if port is not None]
    return DeclaredModel(
        model.graph.name or "model", tuple(known), tuple(shown), metadata_of(model)
    )


def _declared(info: onnx.ValueInfoProto) -> NodeArg | None:
    from tunefarm.compiler.frontend.element_types import dtype_of

    tensor = info.type.tensor_type
    if info.type.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return None
    shape: list[int | str | None] = [
        dimension.dim_value if dimension.dim_value > 0 else dimension.dim_param or None
        for dimension in tensor.shape.dim
    ]
    return NodeArg(info.name, type_text(dtype_of(tensor.elem_type, info.name)), shape)
