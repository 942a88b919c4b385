"""What a process does that reads ONNX files (see `child` and `import_model`), and how its parent
gets the graph: JSON, and constants in a file that is mapped.
"""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tunefarm.compiler import errors
from tunefarm.compiler.errors import (
    ComputedShapeError,
    DeclaredShapeWarning,
    ImportModelError,
    TunefarmError,
    warn_of_declared,
)
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import graph_from_structure, structure_to_json
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.large_arrays import mapped, release
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
                    "names": error.names if isinstance(error, ComputedShapeError) else (),
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
            release(array.nbytes)
    return table


def graph_of(
    reply: Mapping[str, Any], path: str | os.PathLike[str], folder: str | os.PathLike[str]
) -> Graph:
    """The graph of an `ImportRole`'s reply about `path`, or the error that it tells of.

    Warns of what the file declares wrongly, as the role was warned.
    `folder` is the role's scratch folder.
    """
    if reply["status"] != "ok":
        raise _error_of(reply, path)
    for text in reply["declared"]:
        warn_of_declared(text)
    constants = _map_constants(Path(folder, CONSTANTS), reply["constants"])
    return graph_from_structure(reply["graph"], constants)


def _error_of(reply: Mapping[str, Any], path: str | os.PathLike[str]) -> TunefarmError:
    kind = getattr(errors, str(reply.get("kind", "")), None)
    if not (isinstance(kind, type) and issubclass(kind, TunefarmError)):
        reason = str(reply["error"]).strip().splitlines()[-1]  # of a traceback the error
        return ImportModelError(f"reading {os.fspath(path)} failed: {reason}")
    error = kind(reply["error"], program=reply["program"], hint=reply["hint"])
    if isinstance(error, ComputedShapeError):
        error.names = tuple(reply["names"])
    return error


def _map_constants(path: Path, table: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays that `tunefarm.measure.sandbox.import_role` wrote, read-only and without a
    copy."""
    memory: bytes | mmap.mmap = b""
    if path.stat().st_size:
        with path.open("rb") as file:
            memory = mapped(file)
    arrays: dict[str, Array] = {}
    for name, (kind, shape, offset) in table.items():
        count, dtype = int(np.prod(shape, dtype=np.int64)), DType(kind).numpy
        flat = np.frombuffer(memory, dtype, count, offset) if count else np.empty(0, dtype)
        flat.flags.writeable = False
        arrays[name] = flat.reshape(shape)
    return arrays
