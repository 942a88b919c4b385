"""Calls of functions that are not ours in the entry function, as LLVM IR.

The tensors of a function are described next to the entry, as data. The pointers to functions
and contexts come behind those of the constants; a function that fails has its step's number and its
code written into the report, at the end of the arena, and ends the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunefarm.compiler.foreign_functions import ELEMENT_TYPES
from tunefarm.compiler.runtime.entry.entry_open_functions import SIZES_TABLE, copies_ir
from tunefarm.compiler.runtime.spec.executable_spec import (
    REPORT_BYTES,
    ExecutableSpec,
    FunctionStep,
    extents_bytes,
)

TEXT_OFFSET = 8
"""Of the report's text; its first two 32-bit numbers are the failed step + 1, and the code.

During a call the second one is the step + 1: who finds it there knows which call did not end.
"""


@dataclass(frozen=True, slots=True)
class FunctionSlots:
    """Where in the table of constants the functions begin, and where in the arena the report is.

    Before the report are the `extents` of calls on dynamic shapes.
    """

    functions: int
    report: int
    extents: int


def function_slots(spec: ExecutableSpec) -> FunctionSlots:
    """Those of an executable."""
    report = spec.arena_bytes - REPORT_BYTES
    return FunctionSlots(len(spec.constants), report, report - extents_bytes(spec.steps))


def facts_ir(number: int, step: FunctionStep) -> str:
    """What call `number` tells its function: element types, ranks, sizes and attributes.

    Each run gives the dynamic sizes.
    """
    numbers = [0 if type is None else ELEMENT_TYPES[type.dtype] for type in step.types]
    ranks = [0 if type is None else len(type.shape) for type in step.types]
    extents = [extent for type in step.types if type is not None for extent in type.shape]
    begins = [sum(ranks[:position]) for position in range(len(ranks))]
    sizes, name = max(1, len(extents)), f"@function_{number}"
    pointers = ", ".join(
        f"ptr getelementptr (i64, ptr {name}_extents, i64 {begin})" for begin in begins
    )
    text = step.arguments.encode() + b"\0"
    extents_ir = (
        f"{name}_extents = private constant [{sizes} x i64] [{_integers('i64', extents or [0])}]\n"
        f"{name}_sizes = private constant [{len(begins)} x ptr] [{pointers}]\n"
    )
    return (
        f"{name}_types = private constant [{len(numbers)} x i32] [{_integers('i32', numbers)}]\n"
        f"{name}_ranks = private constant [{len(ranks)} x i32] [{_integers('i32', ranks)}]\n"
        f"{copies_ir(number, step) if step.axes else extents_ir}"
        f'{name}_arguments = private constant [{len(text)} x i8] c"{_bytes(text)}"\n'
    )


def call_ir(number: int, step: FunctionStep, slots: FunctionSlots, index: int) -> str:
    """Call `number` of a function, step `index`, once its pointers are in `%buffers`."""
    inputs = len(step.buffers) - step.outputs
    function, name = slots.functions + 2 * step.function, f"@function_{number}"
    sizes = SIZES_TABLE if step.axes else f"{name}_sizes"
    v = f"%f{number}"
    return f"""\
  {v}.slot = getelementptr ptr, ptr %constants, i64 {function}
  {v}.pointer = load ptr, ptr {v}.slot
  {v}.context_slot = getelementptr ptr, ptr %constants, i64 {function + 1}
  {v}.context = load ptr, ptr {v}.context_slot
  {v}.text = getelementptr i8, ptr %report, i64 {TEXT_OFFSET}
  store i8 0, ptr {v}.text
  {v}.at = getelementptr i8, ptr %report, i64 4
  store i32 {index + 1}, ptr {v}.at
  {v}.code = call i32 {v}.pointer(i32 {inputs}, i32 {step.outputs}, ptr %buffers, \
ptr {name}_types, ptr {name}_ranks, ptr {sizes}, ptr {name}_arguments, \
ptr {v}.context, ptr {v}.text, i64 {REPORT_BYTES - TEXT_OFFSET})
  {v}.fails = icmp ne i32 {v}.code, 0
  br i1 {v}.fails, label %failed.{number}, label %after.{number}
failed.{number}:
  store i32 {index + 1}, ptr %report
  store i32 {v}.code, ptr {v}.at
  ret void
after.{number}:
  store i32 0, ptr {v}.at"""


def report_ir(slots: FunctionSlots) -> str:
    """Find the report and say in it that nothing has failed."""
    return f"""\
  %report = getelementptr i8, ptr %arena, i64 {slots.report}
  store i32 0, ptr %report"""


def _integers(type: str, numbers: Sequence[int]) -> str:
    return ", ".join(f"{type} {number}" for number in numbers)


def _bytes(text: bytes) -> str:
    return "".join(f"\\{byte:02x}" for byte in text)
