"""The settings that a worker process gets when it is started."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tunefarm.compiler.function_modules import loaded_modules
from tunefarm.compiler.machine.control_groups import memory_bytes

_MEMORY_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker process runs; JSON-safe, it travels on the command line.

    `cores` are those it is pinned to, `target` is `Target.to_json()`, `compile` is the path of the
    build step ("": the compiler's own), `memory_bytes` the limit of its address space (0: three
    quarters of the machine's memory), `file_bytes` the limit of any file that it writes, `niceness`
    the most that it may have: the driver's. `in_flight` is the descriptor of the file in which it
    notes what it is at (-1: nowhere). `kinds` are the targets of a job whose nodes differ, as JSON,
    `probe` tells what this machine is in tests (see `tunefarm.measure.sandbox.node_kind`). `driver`
    is the name of the runner among all that use the machine's cores, and `alternates` says that
    nothing is timed on this machine while anything is built. `functions` are the modules that
    register custom operators, those that this process loaded.
    """

    cores: tuple[int, ...]
    threads: int
    target: Mapping[str, Any]
    scratch: str
    compile: str = ""
    memory_bytes: int = 0
    file_bytes: int = 8 << 30
    niceness: int = field(default_factory=lambda: os.getpriority(os.PRIO_PROCESS, 0))
    start_timeout: float = 60.0
    in_flight: int = -1
    kinds: tuple[Mapping[str, Any], ...] = ()
    probe: str = ""
    driver: str = field(default_factory=lambda: uuid.uuid4().hex)
    alternates: bool = False
    functions: tuple[str, ...] = field(default_factory=loaded_modules)

    @property
    def address_space(self) -> int:
        """Bytes that the process may map."""
        return self.memory_bytes or int(memory_bytes() * _MEMORY_SHARE)

    def to_json(self) -> str:
        """The settings as JSON text."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> WorkerSettings:
        """The inverse of `to_json`."""
        data = json.loads(text)
        tuples = {name: tuple(data[name]) for name in ("cores", "kinds", "functions")}
        return WorkerSettings(**{**data, **tuples})
