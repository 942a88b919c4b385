"""The graph that a process has read for this one: JSON, and constants in a file that is mapped."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tunefarm.compiler import errors
from tunefarm.compiler.errors import ImportModelError, TunefarmError, warn_of_declared
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import graph_from_structure
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.measure.sandbox.import_role import CONSTANTS


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
    return kind(reply["error"], program=reply["program"], hint=reply["hint"])


def _map_constants(path: Path, table: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays that `tunefarm.measure.sandbox.import_role` wrote, read-only and without a
    copy."""
    memory: mmap.mmap | bytes = b""
    if path.stat().st_size:
        with path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays: dict[str, Array] = {}
    for name, (kind, shape, offset) in table.items():
        count, dtype = int(np.prod(shape, dtype=np.int64)), DType(kind).numpy
        flat = np.frombuffer(memory, dtype, count, offset) if count else np.empty(0, dtype)
        flat.flags.writeable = False
        arrays[name] = flat.reshape(shape)
    return arrays
