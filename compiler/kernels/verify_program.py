"""The rules of a KernelProgram: what the memory plan and the entry function rely on."""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.kernels.kernel import (
    Call,
    FunctionCall,
    FusedKernel,
    JoinCall,
    KernelCall,
    KernelProgram,
    LoopBegin,
    LoopEnd,
    ViewCall,
    reads_of,
    written_by,
)
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

_CONDITION = TensorType(DType.BOOL, ())


def verify_program(program: KernelProgram, verified: KernelProgram | None = None) -> None:
    """Raise `VerifyError` at the first broken rule.

    Values are defined before they are read and only once, or by two kernels of which one runs.
    Calls fit their kernels' buffers, views keep the element type and lie within what they are views
    of, which is no constant if they are less than the whole, joins are as large as their inputs
    together, equal keys mean equal kernels, every kernel is valid, functions are called with what
    they were bound to, loops lie within each other and keep the types of their states. Kernels that
    the program shares with a `verified` one are not looked at again.
    """
    before_it = verified.kernel_calls().values() if verified else ()
    sound = {id(calls[0].kernel) for calls in before_it}
    known = {*program.inputs, *program.constants}
    kernels: dict[str, FusedKernel] = {}
    before: Call | None = None
    for call in program.calls:
        again = before is not None and _is_other_way(before, call)
        problem = _call_problem(program, call, known - {call.output} if again else known)
        before = call
        if problem:
            raise VerifyError(f"program {program.name}: {call.output}: {problem}")
        known.update(written_by(call))
        if isinstance(call, KernelCall) and call.key not in kernels:
            if id(call.kernel) not in sound:
                verify_kernel(call.kernel)
            kernels[call.key] = call.kernel
    problem = _loops_problem(program)
    if problem:
        raise VerifyError(f"program {program.name}: {problem}")
    for name in program.outputs:
        if name not in known:
            raise VerifyError(f"program {program.name}: output {name} is never computed")


def _is_other_way(first: Call, second: Call) -> bool:
    """Whether two calls compute one value, the second where the first one does not run."""
    if not isinstance(first, KernelCall) or not isinstance(second, KernelCall):
        return False
    if first.output != second.output or first.inputs != second.inputs or not first.guards:
        return False
    last = first.guards[-1]
    return second.guards == (*first.guards[:-1], replace(last, taken=not last.taken))


def _call_problem(program: KernelProgram, call: Call, known: set[str]) -> str:
    """Why a call is wrong, or nothing."""
    inputs = reads_of(call)
    guards = call.guards if isinstance(call, KernelCall | FunctionCall | LoopBegin) else ()
    for guard in guards:
        if guard.value in program.constants or program.types[guard.value] != _CONDITION:
            return f"has the guard {guard}, which is no bool that is computed"
    for name in (*inputs, *(guard.value for guard in guards)):
        if name not in known:
            return f"reads {name}, which is not computed before"
    if known.intersection(written_by(call)):
        return "is computed twice"
    if isinstance(call, FunctionCall):
        return _function_problem(program, call)
    if isinstance(call, LoopBegin | LoopEnd):
        return ""  # see `_loops_problem`
    result = program.types[call.output]
    if isinstance(call, ViewCall):
        source = program.types[call.input]
        fits = 0 <= call.offset <= source.bytes - result.bytes
        is_whole = source.bytes == result.bytes or call.input not in program.constants
        if source.dtype is not result.dtype or not fits or not is_whole:
            return f"is a view of {call.input}: {source} as {result} from byte {call.offset} on"
        return ""
    if isinstance(call, JoinCall):
        parts = [program.types[name] for name in inputs]
        same = all(part.dtype is result.dtype for part in parts)
        if not same or sum(part.size for part in parts) != result.size:
            return f"joins {', '.join(map(str, parts))} to {result}"
        return ""
    kernel = call.kernel
    if len(inputs) != len(kernel.inputs):
        return f"kernel {kernel.name} takes {len(kernel.inputs)} inputs, not {len(inputs)}"
    for name, buffer in zip(inputs, kernel.inputs, strict=True):
        if program.types[name] != buffer.type:
            return f"{name} is {program.types[name]}, kernel {kernel.name} takes {buffer.type}"
    made = TensorType(kernel.output.dtype, kernel.output.shape)
    return "" if made == result else f"kernel {kernel.name} makes {made}, not {result}"


def _function_problem(program: KernelProgram, call: FunctionCall) -> str:
    """Why a function's call is wrong, or nothing."""
    given = [program.types[name] if name else None for name in call.inputs]
    if given != list(call.operands):
        return f"function {call.name} is bound to other types than {list(map(str, given))}"
    made = tuple(program.types[name] for name in call.outputs)
    if made != call.results or len(set(call.outputs)) != len(call.outputs):
        return f"function {call.name} does not make {', '.join(map(str, made))}"
    return ""


def _loops_problem(program: KernelProgram) -> str:
    """Why the loops are wrong, or nothing."""
    types = program.types
    open_loops: list[LoopBegin] = []
    for call in program.calls:
        if isinstance(call, LoopBegin):
            open_loops.append(call)
            if call.limit and types[call.limit] != TensorType(DType.I64, ()):
                return f"loop {call.loop} has the limit {call.limit}, which is no integer"
        if not isinstance(call, LoopEnd):
            continue
        if not open_loops or open_loops[-1].loop != call.loop:
            return f"loop {call.loop} ends where it has not begun"
        begin = open_loops.pop()
        for condition in (begin.first, call.again):
            if condition and types[condition] != _CONDITION:
                return f"loop {call.loop} goes on where {condition} is true, which is no bool"
        for values in (begin.initial, begin.states, call.following):
            if [types[name] for name in values] != [types[name] for name in begin.states]:
                return f"loop {call.loop} has states of other types than {', '.join(values)}"
        if len(call.results) != len(call.following) + len(call.collected) + 2:
            return f"loop {call.loop} gives {len(call.results)} results"
        for value, row in zip(call.collected, call.rows, strict=True):
            if row and types[row].bytes != begin.most * types[value].bytes:
                return f"loop {call.loop} has no {begin.most} rows of {value} in {row}"
    return f"loop {open_loops[-1].loop} has no end" if open_loops else ""
