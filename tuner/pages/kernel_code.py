"""The code that a kernel's applied schedule makes: its loop nest, and its assembly.

Both are made from the records alone, which takes up to a second for a kernel. So they are kept in
the cache of compiled code, and a page has them for the kernels that cost most, while there is time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from tunefarm.compiler.content_cache import NOT_WHAT_WAS_KEPT, ContentCache, cache_key
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.kernels.serialize import kernel_from_json
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.llvm.compile_kernel import emit_loops
from tunefarm.compiler.llvm.machine import assembly
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.stages import format_program
from tunefarm.compiler.target import Target
from tunefarm.db.records import TargetRecord
from tunefarm.tuner.pages.kernels import Kernel

SECONDS = 1.5
"""That a page takes for making code that is not in the cache."""
_CHARACTERS = 200_000
_UNREADABLE = (TunefarmError, *NOT_WHAT_WAS_KEPT, ArithmeticError, AssertionError, RuntimeError)
"""What making code of other people's records may raise."""


@dataclass(slots=True)
class CodeMaker:
    """Makes the code of kernels until `seconds` have passed (None: of all that are asked for)."""

    cache: ContentCache | None
    seconds: float | None = SECONDS
    _spent: float = field(default=0.0, init=False)

    def code_of(self, kernel: Kernel, target: TargetRecord | None) -> dict[str, str]:
        """`loops` and `assembly` as strings, or a `note` that says why there are none."""
        if kernel.applied is None:
            return {"note": "no schedule of it can be applied"}
        if target is None:
            return {"note": "its target is not in the database"}
        schedule, value = kernel.applied.schedule, kernel.records.workload.kernel
        key = cache_key("page", value, schedule, target.description)
        kept = None if self.cache is None else self.cache.find(key)
        if kept is not None and _is_code(kept[0]):
            return dict(kept[0])
        if self.seconds is not None and self._spent >= self.seconds:
            return {"note": "left out to save time: tune report --full has the code of all kernels"}
        begin = time.monotonic()
        try:
            code = _made(value, schedule, Target.from_json(_object(target.description)))
        except _UNREADABLE as error:
            code = {"note": f"this version of the compiler cannot make it: {_message(error)}"}
        self._spent += time.monotonic() - begin
        if self.cache is not None:
            self.cache.add(key, code)
        return code


def _made(value: Any, schedule: Any, target: Target) -> dict[str, str]:
    kernel = kernel_from_json(value)
    verify_kernel(kernel)
    steps = Schedule.from_json(schedule)
    nest = lower(kernel, steps)
    text = str(emit_loops(nest, steps, target, "kernel"))
    loops, code = format_program(nest), assembly(text, target)
    return {"loops": loops[:_CHARACTERS], "assembly": code[:_CHARACTERS]}


def _is_code(facts: Any) -> bool:
    return isinstance(facts, dict) and all(isinstance(text, str) for text in facts.values())


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("no JSON object")
    return value


def _message(error: Exception) -> str:
    return error.message if isinstance(error, TunefarmError) else type(error).__name__
