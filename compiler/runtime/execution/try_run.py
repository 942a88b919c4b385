"""Runs in a process of their own, which may crash: C functions that a model calls are not ours."""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
from collections.abc import Callable, Mapping

import numpy as np

from tunefarm.compiler.errors import FunctionError, TunefarmError
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.tensor_type import Array


def require_surviving_run(executable: Executable, inputs: Mapping[str, object]) -> None:
    """Run in another process first, where a C function is called that may crash.

    What else goes wrong there is left to the run that follows in this process. Raises
    `FunctionError`, naming the function and its node, if the other process was ended by a signal.
    """
    called = [link for link in executable.spec.functions if link.symbol]
    if not called or not hasattr(os, "fork"):
        return
    shared = mmap.mmap(-1, max(1, executable.arena_bytes))
    arena: Array = np.frombuffer(shared, np.uint8)
    frame = executable.new_frame(arena)
    number = _signal_that_ends(lambda: executable.run_in(frame, inputs))
    if number is None:
        return
    call = executable.call_under_way(frame, inputs)
    if call:
        raise FunctionError(
            f"{call}, crashed with signal {number.name} in a run of {executable.spec.name}",
            hint="tunefarm.try_function tries it by itself",
        )
    names = ", ".join(f"{link.name} ({link.symbol} in C)" for link in called)
    which = "function" if len(called) == 1 else "one of the functions"
    raise FunctionError(
        f"{which} {names} crashed with signal {number.name} in a run of {executable.spec.name}",
        hint="tunefarm.try_function tries each by itself",
    )


def _signal_that_ends(run: Callable[[], object]) -> signal.Signals | None:
    """The signal by which a process that only does this ends; None if it ends by itself."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # the parent tells of it in one line
        for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV):
            signal.signal(number, signal.SIG_DFL)
        try:
            run()
        except (TunefarmError, KeyboardInterrupt):
            pass  # the parent meets it too
        finally:
            os._exit(0)
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return signal.Signals(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
