"""A built model's code as text: one LLVM module, or one assembly file, of all that it runs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from compiler.kernels.kernel import FusedKernel, KernelCall, KernelProgram
from compiler.llvm.emit_kernel import emit_kernel
from compiler.llvm.machine import assembly, feature_flags, parse, target_machine
from compiler.runtime.c_interface import in_comment
from compiler.runtime.entry import entry_ir
from compiler.runtime.executable_spec import ENTRY_SYMBOL, ExecutableSpec
from compiler.runtime.kernel_report import DEFAULT, NAIVE, KernelReport
from compiler.schedule.apply_schedule import lower
from compiler.schedule.choice import ScheduleChoice
from compiler.schedule.schedule import Schedule
from compiler.schedule.spaces import default_schedule, naive_schedule
from compiler.types.numerics import DEFAULT_NUMERICS, Numerics


def schedules_of(
    program: KernelProgram,
    spec: ExecutableSpec,
    chosen: Mapping[str, ScheduleChoice],
    numerics: Numerics | str = DEFAULT_NUMERICS,
) -> dict[str, Schedule]:
    """The schedule that each distinct kernel of `spec` was built with, by workload key.

    `program` has the kernels of the same model, `chosen` the schedules that had been chosen.
    """
    kernels = _kernels(program)

    def schedule(report: KernelReport) -> Schedule:
        if report.schedule_source == NAIVE:
            return naive_schedule()
        if report.schedule_source == DEFAULT:
            return default_schedule(kernels[report.key], spec.target, spec.threads, numerics)
        return chosen[report.key].schedule

    return {report.key: schedule(report) for report in spec.kernels}


def llvm_text(
    program: KernelProgram, spec: ExecutableSpec, schedules: Mapping[str, Schedule]
) -> str:
    """One LLVM module with the entry function and all kernels, as the pipeline compiles them."""
    machine = target_machine(spec.target)
    text = _module_text(program, spec, schedules)
    parse(text, spec.target)  # raises unless it is a module
    # With the CPU in each function any compiler makes the same code, whatever it is told.
    text = re.sub(r"^(define .*)\{$", r"\1#0 {", text, flags=re.MULTILINE)
    cpu, features = spec.target.cpu, ",".join(feature_flags(spec.target))
    return "\n".join(
        [
            *(f"; {line}".rstrip() for line in _introduction(spec)),
            "; llc -O2 --relocation-model=pic -filetype=obj (LLVM 15 or later) compiles it",
            f'target triple = "{spec.target.triple}"',
            f'target datalayout = "{machine.target_data}"',
            text,
            f'attributes #0 = {{ "target-cpu"="{cpu}" "target-features"="{features}" }}',
        ]
    )


def assembly_text(
    program: KernelProgram, spec: ExecutableSpec, schedules: Mapping[str, Schedule]
) -> str:
    """The assembly of the entry function and all kernels, for the assembler of GNU or LLVM."""
    text = assembly(_module_text(program, spec, schedules), spec.target)
    # The one kind of comment that the assemblers of all processors know.
    comment = "\n".join(f"/* {line} */" for line in _introduction(spec) if line)
    return f"{comment}\n{text}"


def _module_text(
    program: KernelProgram, spec: ExecutableSpec, schedules: Mapping[str, Schedule]
) -> str:
    """The kernels' functions and the entry's, each thing declared once."""
    texts = [
        emit_kernel(lower(kernel, schedules[key]), spec.target, f"kernel_{key}")[0]
        for key, kernel in _kernels(program).items()
    ]
    declarations: dict[str, None] = {}
    functions: list[str] = []
    for line in "\n".join([*texts, entry_ir(spec.steps)]).splitlines():
        if not line.startswith("declare "):
            functions.append(line)
        elif "@kernel_" not in line:  # the kernels are in this module
            declarations[line] = None
    return "\n".join([*declarations, *functions]) + "\n"


def _kernels(program: KernelProgram) -> dict[str, FusedKernel]:
    """The distinct kernels by workload key, in order of first use."""
    return {call.key: call.kernel for call in program.calls if isinstance(call, KernelCall)}


def _introduction(spec: ExecutableSpec) -> list[str]:
    """What a caller of the entry function has to know, as lines of comment."""
    return [
        f"{in_comment(spec.name)} for {spec.target.cpu} ({spec.target.triple})",
        f"void {ENTRY_SYMBOL}(inputs, outputs, constants, arena, runtime)",
        "inputs, outputs, constants: arrays of pointers to buffers, each aligned to 64 bytes",
        f"arena: {spec.arena_bytes} bytes, aligned to 64",
        "runtime: { void (*parallel)(void (*fn)(void *), void *data, int threads, int flags),",
        "           int threads, int reserved }; parallel is null to run on one thread",
        *(f"inputs[{i}]: {in_comment(n)}, {t}" for i, (n, t) in enumerate(spec.inputs)),
        *(f"outputs[{i}]: {in_comment(n)}, {t}" for i, (n, t) in enumerate(spec.outputs)),
        *(f"constants[{i}]: {a.dtype}{list(a.shape)}" for i, a in enumerate(spec.constants)),
    ]
