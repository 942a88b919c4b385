"""Reading an ONNX file in a disposable process: a model may come from anywhere.

Parsing, version conversion and shape inference run foreign C++ code on foreign bytes. A file that
crashes it, eats memory or never ends costs a child process and gives one clear error. The graph
comes back as JSON, its constants in a file that this process maps.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from compiler import errors
from compiler.errors import ImportModelError, TunefarmError
from compiler.graph.ir import Graph
from compiler.graph.serialize import graph_from_structure
from compiler.limits import Limits
from compiler.types.tensor_type import Array
from configs.remains import make_folder
from measure.machine import available_cores
from measure.sandbox.import_role import CONSTANTS
from measure.sandbox.messages import Message
from measure.sandbox.worker_process import (
    Role,
    WorkerEndError,
    WorkerProcess,
    WorkerStartError,
)
from measure.sandbox.worker_settings import WorkerSettings

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

IMPORT = Role("import", "measure.sandbox.import_role:ImportRole")
_GRACE_SECONDS = 5.0  # for the child to say itself that it takes too long


def import_model(
    path: str | os.PathLike[str],
    shapes: Shapes | None = None,
    limits: Limits | None = None,
    *,
    memory_bytes: int = 0,
) -> Graph:
    """`compiler.frontend.import_onnx` in a process with limits; raises as it does.

    And ImportModelError when the process crashes, takes longer than the `limits` allow (this
    machine's if None) or more than `memory_bytes` (0: three quarters of the machine's memory).
    """
    limits = limits or Limits()
    timeout = limits.seconds + _GRACE_SECONDS
    folder = str(make_folder("import"))
    settings = WorkerSettings(
        available_cores(), 1, target={}, scratch=folder, memory_bytes=memory_bytes
    )
    try:
        worker = WorkerProcess(settings, IMPORT)
        try:
            fields = {
                "path": os.fspath(path),
                "shapes": {name: list(shape) for name, shape in (shapes or {}).items()},
                "limits": asdict(limits),
                "cpu_seconds": 2 * timeout + 1,
            }
            reply = worker.request(Message(fields), timeout).fields
        finally:
            worker.close()
        return graph_of(reply, path, folder)
    except WorkerEndError as end:
        reason = end.text.splitlines()[0]
        raise ImportModelError(
            f"reading {os.fspath(path)} failed: {reason}",
            hint="the file may be damaged, or made to do this",
        ) from None
    except WorkerStartError as error:
        raise ImportModelError(f"cannot read {os.fspath(path)}: {error.message}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def graph_of(
    reply: Mapping[str, Any], path: str | os.PathLike[str], folder: str | os.PathLike[str]
) -> Graph:
    """The graph of an `ImportRole`'s reply about `path`, or the error that it tells of.

    `folder` is the role's scratch folder.
    """
    if reply["status"] != "ok":
        raise _error_of(reply, path)
    constants = _map_constants(Path(folder, CONSTANTS), reply["constants"])
    return graph_from_structure(reply["graph"], constants)


def _error_of(reply: Mapping[str, Any], path: str | os.PathLike[str]) -> TunefarmError:
    kind = getattr(errors, str(reply.get("kind", "")), None)
    if not (isinstance(kind, type) and issubclass(kind, TunefarmError)):
        return ImportModelError(f"reading {os.fspath(path)} failed: {reply['error']}")
    return kind(reply["error"], program=reply["program"], hint=reply["hint"])


def _map_constants(path: Path, table: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays that `measure.sandbox.import_role` wrote, read-only and without a copy."""
    memory: mmap.mmap | bytes = b""
    if path.stat().st_size:
        with path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays: dict[str, Array] = {}
    for name, (dtype, shape, offset) in table.items():
        count = int(np.prod(shape, dtype=np.int64))
        flat = (
            np.frombuffer(memory, np.dtype(dtype), count, offset) if count else np.empty(0, dtype)
        )
        flat.flags.writeable = False
        arrays[name] = flat.reshape(shape)
    return arrays
