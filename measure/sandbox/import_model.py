"""Reading an ONNX file in a disposable process: a model may come from anywhere.

Parsing, version conversion and shape inference run foreign C++ code on foreign bytes. A file that
crashes it, eats memory or never ends costs a child process and gives one clear error. The graph
comes back as JSON, its constants in a file that this process maps.
"""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from tunefarm.compiler.limits import Limits
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.extents import Shapes, shapes_from_json, shapes_to_json
from tunefarm.compiler.types.large_arrays import mapped, release
from tunefarm.compiler.types.tensor_type import Array, bytes_of
from tunefarm.configs.temporary_folders import temporary_folder
from tunefarm.measure.machine import available_cores
from tunefarm.measure.measurement import Status
from tunefarm.measure.sandbox.messages import Message
from tunefarm.measure.sandbox.worker_process import (
    Role,
    WorkerEndError,
    WorkerProcess,
    WorkerStartError,
)
from tunefarm.measure.sandbox.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from tunefarm.compiler.graph.ir import Graph


IMPORT = Role("import", "tunefarm.measure.sandbox.import_model:ImportRole")
_GRACE_SECONDS = 5.0  # for the child to say itself that it takes too long


def import_model(
    path: str | os.PathLike[str],
    shapes: Shapes | None = None,
    limits: Limits | None = None,
    *,
    memory_bytes: int = 0,
) -> Graph:
    """`tunefarm.compiler.frontend.import_onnx` in a process with limits; raises as it does.

    And ImportModelError when the process crashes, takes longer than the `limits` allow (this
    machine's if None) or more than `memory_bytes` (0: three quarters of the machine's memory).
    """
    limits = limits or Limits()
    timeout = limits.seconds + _GRACE_SECONDS
    with temporary_folder("import") as folder:
        settings = WorkerSettings(
            available_cores(), 1, target={}, scratch=str(folder), memory_bytes=memory_bytes
        )
        try:
            worker = WorkerProcess(settings, IMPORT)
            try:
                fields = {
                    "path": os.fspath(path),
                    "shapes": shapes_to_json(shapes or {}),
                    "limits": asdict(limits),
                    "cpu_seconds": 2 * timeout + 1,
                }
                reply = worker.request(Message(fields), timeout).fields
            finally:
                worker.close()
            return graph_of(reply, path, str(folder))
        except WorkerEndError as end:
            reason = end.text.splitlines()[0]
            by_the_file = end.status is not Status.INFRASTRUCTURE
            hint = "the file may be damaged, or made to do this" if by_the_file else ""
            raise ImportModelError(
                f"reading {os.fspath(path)} failed: {reason}", hint=hint
            ) from None
        except WorkerStartError as error:
            raise ImportModelError(f"cannot read {os.fspath(path)}: {error.message}") from error


# What a process does that reads ONNX files (see `child` and `import_model`), and how its parent
# gets the graph: JSON, and constants in a file that is mapped.


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
    """The arrays that `tunefarm.measure.sandbox.import_model` wrote, read-only and without a
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
