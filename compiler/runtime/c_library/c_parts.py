"""The programs of a C library that chooses by size, each one object file that is a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tunefarm.compiler.runtime.c_library.c_choice import part_interface
from tunefarm.compiler.runtime.c_library.c_header import header_text
from tunefarm.compiler.runtime.c_library.c_implementation import implementation_text
from tunefarm.compiler.runtime.c_library.c_interface import CInterface
from tunefarm.compiler.runtime.c_library.c_programs import ConstantLayout
from tunefarm.compiler.runtime.c_library.c_sized_header import sized_header_text
from tunefarm.compiler.runtime.machine.run_tools import compile_c, localise, run_tool
from tunefarm.compiler.runtime.machine.toolchain import Toolchain
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec


def write_parts(
    interface: CInterface, programs: Sequence[ExecutableSpec], work: Path, tools: Toolchain
) -> list[str]:
    """Write the headers and the code of all programs into `work`; the object files' names.

    Nothing can be seen of a part but its functions. Kernels that parts share are there once: each
    is named after its code.
    """
    kernels = _write_kernels(programs, work, tools)
    layout = ConstantLayout.of(programs)
    files = list(kernels.values())
    for number, program in enumerate(programs):
        own = part_interface(interface, program, number)
        header = header_text if program.signature is None else sized_header_text
        (work / f"{own.name}.h").write_text(header(own, [program.target], ""), encoding="utf-8")
        compile_c(
            work, tools, own.name, implementation_text(own, [program], layout.of_program(number))
        )
        entry, file = f"{own.name}_entry.o", f"part{number}.o"
        (work / entry).write_bytes(program.entry)
        renamed = (
            f"--redefine-sym={part.symbol}={_kernel(digest)}"
            for part, digest in zip(program.objects, program.digests, strict=False)
        )
        renames = list(renamed)
        run_tool(work, tools.objcopy, *renames, entry)
        run_tool(work, tools.objcopy, *renames, f"{own.name}.o")
        run_tool(work, *tools.compiler, "-r", "-nostdlib", "-o", file, f"{own.name}.o", entry)
        localise(work, tools, file, own.functions)
        files.append(file)
    return files


def _write_kernels(
    programs: Sequence[ExecutableSpec], work: Path, tools: Toolchain
) -> dict[str, str]:
    """Write each distinct kernel of all programs; the object files' names by digest."""
    files: dict[str, str] = {}
    for program in programs:
        for part, digest in zip(program.objects, program.digests, strict=False):
            if digest in files:
                continue
            files[digest] = file = f"kernel{len(files)}.o"
            (work / file).write_bytes(part.code)
            renamed = f"--redefine-sym={part.symbol}={_kernel(digest)}"
            run_tool(work, tools.objcopy, renamed, file)
            localise(work, tools, file, [_kernel(digest)])
    return files


def _kernel(digest: str) -> str:
    return f"kernel_{digest[:32]}"
