"""What a process does that reads ONNX files: see `child` and `import_model`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunefarm.compiler.errors import DeclaredShapeWarning, TunefarmError
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array, bytes_of
from tunefarm.measure.sandbox.messages import Message
from tunefarm.measure.sandbox.worker_settings import WorkerSettings

CONSTANTS = "constants"
"""The file in the scratch folder where the constants are left."""
_ALIGNMENT = 64


class ImportRole:
    """Reads ONNX files."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._scratch = Path(settings.scratch)

    def answer(self, message: Message) -> Message:
        """Import the file; its constants go to the scratch folder."""
        from tunefarm.compiler.frontend.import_onnx import import_onnx
        from tunefarm.compiler.graph.serialize import structure_to_json
        from tunefarm.compiler.limits import Limits
        from tunefarm.compiler.types.extents import shapes_from_json

        fields = message.fields
        shapes = shapes_from_json(fields["shapes"])
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                graph = import_onnx(fields["path"], shapes, limits=Limits(**fields["limits"]))
        except TunefarmError as error:
            return Message(
                {
                    "status": "refused",
                    "kind": type(error).__name__,
                    "error": error.message,
                    "program": error.program,
                    "hint": error.hint,
                }
            )
        table = _write_constants(self._scratch / CONSTANTS, graph.constants)
        structure = structure_to_json(graph)
        declared = [str(w.message) for w in caught if w.category is DeclaredShapeWarning]
        return Message(
            {
                "status": "ok",
                "error": "",
                "graph": structure,
                "constants": table,
                "declared": declared,
            }
        )


def _write_constants(path: Path, constants: Mapping[str, Array]) -> dict[str, Any]:
    """Write the arrays one after the other; their types, shapes and offsets by name."""
    table: dict[str, Any] = {}
    with path.open("wb") as file:
        for name, array in constants.items():
            file.write(bytes(-file.tell() % _ALIGNMENT))
            dtype = DType.from_numpy(array.dtype)
            table[name] = [dtype.value, list(array.shape), file.tell()]
            file.write(bytes_of(array))
    return table
