"""LLVM itself: target machine, the short list of passes, object code, assembly."""

from __future__ import annotations

import threading
from functools import cache
from typing import TypeAlias

import llvmlite.binding as llvm

from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.target import Target

_Made: TypeAlias = tuple[str, str, tuple[str, ...]]

_local = threading.local()

# What every 64-bit x86 CPU has: a target need not name it, and LLVM cannot do without.
_BASELINE = frozenset("64bit cmov cx8 fxsr mmx sse sse2 x87".split())

# What the names of 64-bit Arm CPUs may imply, and LLVM would then use for vectors of 16 bytes too.
_SCALABLE = ("sve", "sve2")


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def target_machine(target: Target) -> llvm.TargetMachine:
    """A target machine for `target`; one per thread and target, as LLVM wants it.

    Raises `LoweringError` for a target that LLVM would end the process for.
    """
    if lacking := target.lacking_feature:
        raise LoweringError(f"there is no code for {target.cpu}: {lacking}, which it lacks")
    _initialize()
    machines: dict[_Made, llvm.TargetMachine] = _local.__dict__.setdefault("machines", {})
    made = (target.triple, target.cpu, target.features)  # all that LLVM is asked for
    machine = machines.get(made)
    if machine is None:
        features = ",".join(feature_flags(target))
        machine = llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=features, opt=2, reloc="pic", codemodel="default"
        )
        machines[made] = machine
    return machine


def feature_flags(target: Target) -> list[str]:
    """What the target has, and what it lacks although its CPU's name may imply it.

    A hypervisor may mask features of the CPU that it names; only the features count.
    """
    flags = [f"+{feature}" for feature in target.features]
    if target.triple.split("-")[0] == llvm.get_process_triple().split("-")[0]:
        known = llvm.get_host_cpu_features()
        lacking = set(known) - set(target.features) - _BASELINE
        flags += [f"-{feature}" for feature in sorted(lacking)]
    elif target.triple.startswith("aarch64"):
        flags += [f"-{name}" for name in _SCALABLE if name not in target.features]
    return flags


def parse(text: str, target: Target) -> llvm.ModuleRef:
    """Text -> verified module."""
    _initialize()
    machine = target_machine(target)
    header = f'target triple = "{target.triple}"\ntarget datalayout = "{machine.target_data}"\n'
    try:
        module = llvm.parse_assembly(header + text)
        module.verify()
    except RuntimeError as error:
        raise LoweringError(f"LLVM refuses the generated code: {error}", program=text) from None
    return module


def optimise(module: llvm.ModuleRef, target: Target) -> None:
    """Registers for stack slots, and common subexpressions: all that the generated code needs."""
    builder = llvm.create_pass_builder(target_machine(target), llvm.PipelineTuningOptions())
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.run(module, builder)


def object_code(text: str, target: Target) -> bytes:
    """Text -> relocatable object code for `target`."""
    module = parse(text, target)
    optimise(module, target)
    return bytes(target_machine(target).emit_object(module))


def assembly(text: str, target: Target) -> str:
    """Text -> the assembly that `object_code` would hold."""
    module = parse(text, target)
    optimise(module, target)
    return str(target_machine(target).emit_assembly(module))
