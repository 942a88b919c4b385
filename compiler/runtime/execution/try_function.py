"""Calls of registered functions and runs of models in a process of their own, which may crash."""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tunefarm.compiler.errors import FunctionError, SettingsError, TunefarmError
from tunefarm.compiler.foreign_functions import find_function, nearest_function
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.execution.function_table import FunctionTable
from tunefarm.compiler.runtime.spec.executable_spec import (
    REPORT_BYTES,
    FunctionLink,
    FunctionStep,
    Location,
    Place,
    aligned,
)
from tunefarm.compiler.runtime.spec.ports import AnyArray
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType

_GUARD_BYTES = 4096
_UNTOUCHED = 0xA5
_POLL_SECONDS = 0.002


def try_function(
    name: str,
    inputs: Sequence[AnyArray | None],
    attributes: Mapping[str, Attribute] | None = None,
    seconds: float = 60.0,
) -> tuple[AnyArray, ...]:
    """What a registered function makes of these inputs, in a process that is let go afterwards.

    Nothing is called while a model is built, and a function that crashes in a run ends the process:
    this is how to try one. Raises `FunctionError`, naming the function, when it fails, crashes,
    writes behind an output or takes longer than `seconds`; `SettingsError` for an unknown name.
    """
    registered = find_function(name)
    if registered is None:
        raise SettingsError(f"no function {name} is registered", hint=nearest_function(name))
    operands = [None if x is None else _type_of(x) for x in inputs]
    results = list(registered.types(operands, attributes or {}))
    types = (*operands, *results)
    ends = np.cumsum([0 if t is None else aligned(t.bytes) + _GUARD_BYTES for t in types])
    offsets = [0, *map(int, ends)]
    step = FunctionStep(
        0,
        tuple(
            None if type is None else Location(Place.ARENA, at)
            for type, at in zip(types, offsets, strict=False)
        ),
        types,
        len(results),
        json.dumps(dict(attributes or {})),
        "a trial",
    )
    link = FunctionLink(name, registered.version, registered.symbol, registered.context.hex())
    table = FunctionTable("a trial", (link,), (step,))
    memory: Array = np.frombuffer(mmap.mmap(-1, offsets[-1] + REPORT_BYTES), np.uint8)
    memory[: offsets[-1]] = _UNTOUCHED
    for array, at in zip(inputs, offsets, strict=False):
        if array is not None:
            memory[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    failure = _in_child(table, step, memory, offsets, seconds)
    if failure:
        raise FunctionError(f"function {name} {failure}")
    return tuple(
        _content(name, memory, type, at, number)
        for number, (type, at) in enumerate(zip(results, offsets[len(inputs) :], strict=False))
    )


def _type_of(array: AnyArray) -> TensorType:
    return TensorType(DType.from_numpy(array.dtype), array.shape)


def _in_child(
    table: FunctionTable,
    step: FunctionStep,
    memory: Array,
    offsets: Sequence[int],
    seconds: float,
) -> str:
    """Make the call in a child that shares the memory; what went wrong, or nothing."""
    start = memory.ctypes.data
    call = table.call(
        step, [0 if b is None else start + at for b, at in zip(step.buffers, offsets, strict=False)]
    )
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # the parent tells of it in one line
        text = b""
        try:
            call()
        except TunefarmError as error:
            text = error.message.encode()[: REPORT_BYTES - 1]
        except BaseException as error:  # noqa: BLE001  # the parent tells of it
            text = repr(error).encode()[: REPORT_BYTES - 1]
        memory[offsets[-1] : offsets[-1] + len(text)] = np.frombuffer(text, np.uint8)
        os._exit(1 if text else 0)
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"did not end within {seconds:g} seconds"
        time.sleep(_POLL_SECONDS)
    if os.WIFSIGNALED(status):
        return f"crashed with signal {signal.Signals(os.WTERMSIG(status)).name}"
    text = memory[offsets[-1] :].tobytes().split(b"\0")[0]
    code = os.waitstatus_to_exitcode(status)
    if not code:
        return ""
    said = text.decode("utf-8", "replace").partition(" failed in node 'a trial': ")[2]
    return f"failed: {said or text.decode('utf-8', 'replace')}" if text else f"ended with {code}"


def _content(name: str, memory: Array, type: TensorType, at: int, number: int) -> AnyArray:
    """A result, once the bytes behind it have been found as they were."""
    if (memory[at + type.bytes : at + aligned(type.bytes) + _GUARD_BYTES] != _UNTOUCHED).any():
        raise FunctionError(f"function {name} wrote behind the end of its result {number}, {type}")
    return memory[at : at + type.bytes].view(type.dtype.numpy).reshape(type.shape).copy()


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
