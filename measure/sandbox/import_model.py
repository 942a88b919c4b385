"""Reading an ONNX file in a disposable process: a model may come from anywhere.

Parsing, version conversion and shape inference run foreign C++ code on foreign bytes. A file that
crashes it, eats memory or never ends costs a child process and gives one clear error. The graph
comes back as JSON, its constants in a file that this process maps (`import_role`).
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.limits import Limits
from tunefarm.compiler.types.extents import Shapes, shapes_to_json
from tunefarm.configs.temporary_folders import make_folder
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


IMPORT = Role("import", "tunefarm.measure.sandbox.import_role:ImportRole")
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
    folder = str(make_folder("import"))
    settings = WorkerSettings(
        available_cores(), 1, target={}, scratch=folder, memory_bytes=memory_bytes
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
        from tunefarm.measure.sandbox.import_role import (
            graph_of,  # imports NumPy, and the process began
        )

        return graph_of(reply, path, folder)
    except WorkerEndError as end:
        reason = end.text.splitlines()[0]
        by_the_file = end.status is not Status.INFRASTRUCTURE
        hint = "the file may be damaged, or made to do this" if by_the_file else ""
        raise ImportModelError(f"reading {os.fspath(path)} failed: {reason}", hint=hint) from None
    except WorkerStartError as error:
        raise ImportModelError(f"cannot read {os.fspath(path)}: {error.message}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
