"""Models with run-time sizes for 64-bit Arm, run by an emulator at several sizes in one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.compiler.runtime.c_models import run
from tests.compiler.runtime.emulated import COMPILER, run_emulated
from tunefarm.compiler.runtime.c_library.c_interface import c_interface
from tunefarm.compiler.runtime.c_library.export_c import export_library
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.types.signature import SizedPort
from tunefarm.compiler.types.tensor_type import Array

_MAIN = """\
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char *room(size_t bytes)
{
    return aligned_alloc(64, bytes / 64 * 64 + 64);
}

static void take(void *memory, size_t bytes, FILE *file)
{
    if (bytes != 0 && fread(memory, 1, bytes, file) != bytes)
        exit(3);
}

int main(void)
{
    FILE *given = fopen("given.bin", "rb"), *found = fopen("found.bin", "wb");
    const size_t bytes = model_workspace_bytes(NULL);
    unsigned char *workspace = room(bytes);
    int64_t calls, size, poison;

    take(&calls, sizeof calls, given);
    while (calls--) {
        struct model_io io;
        take(&poison, sizeof poison, given);
        if (poison)
            memset(workspace, 0xff, bytes);
%s
        int code = model_run(&io, workspace);
        if (code != 0) {
            fprintf(stderr, "%%s\\n", model_error(code));
            return 1;
        }
%s
    }
    return fclose(found) != 0;
}
"""
_INPUT = """\
        take(&size, sizeof size, given);
        unsigned char *in{n} = room((size_t)size);
        take(in{n}, (size_t)size, given);
        io.{member} = (void *)in{n};
"""
_SHAPE = """\
        take(io.{member}_shape, sizeof io.{member}_shape, given);
"""
_OUTPUT = """\
        unsigned char *out{n} = room({bytes});
        io.{member} = (void *)out{n};
"""
_WRITTEN = """\
        fwrite(io.{member}_shape, 1, sizeof io.{member}_shape, found);
"""
_RESULT = """\
        fwrite(out{n}, 1, {bytes}, found);
"""


def sized_outputs(
    spec: ExecutableSpec, folder: Path, calls: Sequence[Mapping[str, Array]], poisoned: int
) -> list[list[Array]]:
    """The outputs of each call; before the first `poisoned` ones the workspace is NaN."""
    interface = c_interface([spec], "model")
    export_library(spec, folder, "model")
    before, after = [], []
    for n, port in enumerate(interface.inputs):
        before.append(_INPUT.format(n=n, member=port.member))
        before += [_SHAPE.format(member=port.member)] if port.declared.symbols else []
    for n, port in enumerate(interface.outputs):
        before.append(_OUTPUT.format(n=n, member=port.member, bytes=port.type.bytes))
        after += [_WRITTEN.format(member=port.member)] if port.declared.symbols else []
        after.append(_RESULT.format(n=n, bytes=port.type.bytes))
    (folder / "main.c").write_text(_MAIN % ("".join(before), "".join(after)))
    linked = ("-L.", "-lmodel", "-Wl,-rpath,$ORIGIN", "-o", "program")
    run(folder, COMPILER, "-std=c11", "-O1", "main.c", *linked)
    given = bytearray(np.int64(len(calls)).tobytes())
    for number, call in enumerate(calls):
        given += np.int64(number < poisoned).tobytes()
        for port in interface.inputs:
            sized = port.declared
            array = np.ascontiguousarray(call[port.name], sized.dtype.numpy)
            given += np.int64(array.nbytes).tobytes() + array.tobytes()
            given += np.array(array.shape, np.int64).tobytes() if sized.symbols else b""
    (folder / "given.bin").write_bytes(given)
    run_emulated(folder, "program")
    found, at, results = (folder / "found.bin").read_bytes(), 0, []
    for _ in calls:
        outputs = []
        for port in interface.outputs:
            sized = port.declared
            shape, at = _shape(found, at, sized, port.type.shape)
            count = int(np.prod(shape))
            outputs.append(np.frombuffer(found, sized.dtype.numpy, count, at).reshape(shape))
            at += port.type.bytes
        results.append(outputs)
    return results


def _shape(
    found: bytes, at: int, sized: SizedPort, bounds: tuple[int, ...]
) -> tuple[tuple[int, ...], int]:
    """An output's shape, and where its elements begin."""
    if not sized.symbols:
        return bounds, at
    rank = len(sized.shape)
    return tuple(map(int, np.frombuffer(found, np.int64, rank, at))), at + 8 * rank
