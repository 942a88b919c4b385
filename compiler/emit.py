"""A built model's code as text: one LLVM module, or one assembly file, of all that it runs.

Of models that were compiled with `keep_llvm`.
"""

from __future__ import annotations

import re

from tunefarm.compiler.llvm.machine import assembly, feature_flags, parse, target_machine
from tunefarm.compiler.pipeline import Compiled
from tunefarm.compiler.runtime.c_library.c_interface import in_comment
from tunefarm.compiler.runtime.entry.entry import entry_of
from tunefarm.compiler.runtime.spec.executable_spec import ENTRY_SYMBOL, ExecutableSpec


def llvm_text(compiled: Compiled) -> str:
    """One LLVM module with the entry function and all kernels, as the pipeline compiles them."""
    spec = compiled.spec
    machine = target_machine(spec.target)
    text = _module_text(compiled)
    parse(text, spec.target)  # raises unless it is a module
    # With the CPU in each function any compiler makes the same code, whatever its options are.
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


def assembly_text(compiled: Compiled) -> str:
    """The assembly of the entry function and all kernels, for the assembler of GNU or LLVM."""
    spec = compiled.spec
    text = assembly(_module_text(compiled), spec.target)
    # The one kind of comment that the assemblers of all processors know.
    comment = "\n".join(f"/* {line} */" for line in _introduction(spec) if line)
    return f"{comment}\n{text}"


def _module_text(compiled: Compiled) -> str:
    """The kernels' functions and the entry's, each thing declared once."""
    texts = [compiled.llvm[key] for key in compiled.schedules]
    declarations: dict[str, None] = {}
    functions: list[str] = []
    for line in "\n".join([*texts, entry_of(compiled.spec)]).splitlines():
        if not line.startswith("declare "):
            functions.append(line)
        elif "@kernel_" not in line:  # the kernels are in this module
            declarations[line] = None
    return "\n".join([*declarations, *functions]) + "\n"


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
