"""Code for 64-bit Arm, linked by a cross compiler and run by an emulator in user mode."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compiler.runtime.c_models import run
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.llvm.compile_kernel import compile_kernel
from tunefarm.compiler.runtime.c_library.c_interface import c_interface
from tunefarm.compiler.runtime.c_library.export_c import export_library
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.tensor_type import Array, TensorType

EMULATOR, COMPILER = "qemu-aarch64", "aarch64-linux-gnu-gcc"
_ROOT = "/usr/aarch64-linux-gnu"  # where the cross compiler's libraries are
_INSTALL = "qemu-user, gcc-aarch64-linux-gnu and libc6-dev-arm64-cross"

emulated = pytest.mark.skipif(
    shutil.which(EMULATOR) is None or shutil.which(COMPILER) is None,
    reason=f"code for 64-bit Arm is not run: Debian's {_INSTALL} are not installed",
)


def run_emulated(folder: Path, program: str, *arguments: str, cpu: str = "max") -> str:
    """What a program for 64-bit Arm prints."""
    return run(folder, EMULATOR, "-cpu", cpu, "-L", _ROOT, f"./{program}", *arguments)


def cross_compiled(spec: ExecutableSpec, folder: Path, name: str) -> None:
    """The C library of a model for 64-bit Arm in `folder`, and its example, linked."""
    export_library(spec, folder, name)
    linked = ("-L.", f"-l{name}", "-Wl,-rpath,$ORIGIN", "-o", f"{name}_example")
    run(folder, COMPILER, "-std=c11", "-O1", f"{name}_example.c", *linked)


def example_outputs(
    spec: ExecutableSpec, folder: Path, name: str, inputs: Mapping[str, Array], cpu: str = "max"
) -> dict[str, Array]:
    """What the model's example writes for these inputs."""
    interface = c_interface([spec], name)
    files = [f"{port.member}.bin" for port in (*interface.inputs, *interface.outputs)]
    for file, (value, _) in zip(files, spec.inputs, strict=False):
        (folder / file).write_bytes(inputs[value].tobytes())
    run_emulated(folder, f"{name}_example", *files, cpu=cpu)
    written = zip(files[len(spec.inputs) :], spec.outputs, strict=True)
    return {
        value: np.fromfile(folder / file, type.dtype.numpy).reshape(type.shape)
        for file, (value, type) in written
    }


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel, how it is computed and what from."""

    kernel: FusedKernel
    schedule: Schedule
    inputs: Mapping[str, Array]

    def check(self, found: Any) -> None:
        """The output is what the kernel means, to the bit where it is no float."""
        expected: Any = evaluate_kernel(self.kernel, self.inputs)
        if self.kernel.output.dtype.is_float:
            message = f"{self.kernel.name}: {self.schedule}"
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=message)
        else:
            np.testing.assert_array_equal(found, expected, err_msg=str(self.schedule))


_MAIN = """\
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct runtime { void *parallel; int32_t threads, reserved; };
struct kernel {
    void (*run)(void *const *, void *, const struct runtime *);
    size_t count, bytes[8], workspace;
};
%s
static const struct kernel kernels[] = {
%s};

/* Memory in front of a page that nobody may touch. */
static unsigned char *guarded(size_t bytes)
{
    size_t page = 65536, room = (bytes + 63) / 64 * 64, size = (room + page - 1) / page * page;
    unsigned char *place = mmap(NULL, size + page, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED || mprotect(place + size, page, PROT_NONE) != 0)
        abort();
    memset(place, 0xff, size);
    return place + size - room;
}

int main(void)
{
    const struct runtime alone = {NULL, 1, 0};

    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        const struct kernel *kernel = &kernels[i];
        void *buffers[8];
        size_t last = kernel->count - 1;

        for (size_t b = 0; b < kernel->count; b++)
            buffers[b] = guarded(kernel->bytes[b]);
        for (size_t b = 0; b < last; b++)
            if (fread(buffers[b], 1, kernel->bytes[b], stdin) != kernel->bytes[b])
                return 1;
        kernel->run(buffers, guarded(kernel->workspace), &alone);
        if (fwrite(buffers[last], 1, kernel->bytes[last], stdout) != kernel->bytes[last])
            return 2;
    }
    return 0;
}
"""


def kernel_outputs(cases: Sequence[Case], target: Target, folder: Path) -> list[Array]:
    """The outputs of kernels that were compiled for `target`, all run by one program."""
    declared, rows, files, given = [], [], [], bytearray()
    for number, case in enumerate(cases):
        compiled = compile_kernel(case.kernel, case.schedule, target, f"kernel{number}")
        layouts = dict(compiled.constant_layouts)
        sizes = []
        for buffer in case.kernel.inputs:
            array = case.inputs[buffer.name]
            packed = layouts[buffer.name].pack(array) if buffer.name in layouts else array
            given += packed.tobytes()
            sizes.append(packed.nbytes)
        sizes.append(_output(case).bytes)
        (folder / f"kernel{number}.o").write_bytes(compiled.object_code)
        files.append(f"kernel{number}.o")
        declared.append(f"void kernel{number}(void *const *, void *, const struct runtime *);")
        listed = ", ".join(map(str, sizes))
        rows.append(
            f"    {{kernel{number}, {len(sizes)}, {{{listed}}}, {compiled.workspace_bytes}}},\n"
        )
    (folder / "main.c").write_text(_MAIN % ("\n".join(declared), "".join(rows)))
    run(folder, COMPILER, "-std=gnu11", "-O1", "-o", "kernels", "main.c", *files, "-lm")
    (folder / "given.bin").write_bytes(given)
    command = f"{EMULATOR} -cpu max -L {_ROOT} ./kernels < given.bin > found.bin"
    run(folder, "sh", "-c", command)
    found, outputs, at = (folder / "found.bin").read_bytes(), [], 0
    for case in cases:
        type = _output(case)
        outputs.append(np.frombuffer(found, type.dtype.numpy, type.size, at).reshape(type.shape))
        at += type.bytes
    return outputs


def _output(case: Case) -> TensorType:
    return TensorType(case.kernel.output.dtype, case.kernel.output.shape)
