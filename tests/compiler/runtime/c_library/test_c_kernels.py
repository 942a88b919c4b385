"""Kernels that a C library exports give through its header what they give in Python."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.runtime.c_models import STRICT, cc, compiled, odd_mlp, run
from tests.compiler.runtime.execution.test_kernel_functions import layers
from tests.targets import target_named
from tunefarm.compiler.errors import ExportError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.c_library.c_interface import identifier
from tunefarm.compiler.runtime.c_library.export_c import export_library, export_object
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.buffers import address_of, aligned_empty
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType

RNG = np.random.default_rng(8)

# Runs the kernels of a model one after the other on what is read from FILE.in, and says what it
# refuses; all sizes are those of the table.
PROGRAM = """\
#include "net.h"
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    const struct net_kernel *kernel;
    for (size_t k = 0; (kernel = net_kernel_at(k)) != NULL; k++) {
        const void *inputs[8];
        char file[200];
        void *output = aligned_alloc(NET_ALIGNMENT, kernel->output_bytes / 64 * 64 + 64);
        char *workspace = aligned_alloc(NET_ALIGNMENT, kernel->workspace_bytes / 64 * 64 + 128);
        snprintf(file, sizeof file, "%s.in", kernel->name);
        FILE *from = fopen(file, "rb");
        for (size_t i = 0; i < kernel->inputs; i++) {
            void *data = malloc(kernel->input_bytes[i]);
            if (fread(data, 1, kernel->input_bytes[i], from) != kernel->input_bytes[i])
                return 2;
            inputs[i] = data;
        }
        fclose(from);
        if (kernel->run(NULL, output, workspace) != NET_ERROR_NULL
            || kernel->run(inputs, NULL, workspace) != NET_ERROR_NULL
            || kernel->run(inputs, output, workspace + 1) != NET_ERROR_WORKSPACE)
            return 3;
        if (kernel->workspace_bytes > 0 && kernel->run(inputs, output, NULL) != NET_ERROR_NULL)
            return 4;
        if (kernel->run(inputs, output, workspace) != NET_OK)
            return 5;
        snprintf(file, sizeof file, "%s.out", kernel->name);
        FILE *to = fopen(file, "wb");
        fwrite(output, 1, kernel->output_bytes, to);
        fclose(to);
    }
    return net_kernel_at(NET_KERNELS) != NULL;
}
"""


def sized_spec() -> ExecutableSpec:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        "g (float[N, 12] x) => (float[N, 12] y) { y = Softmax <axis = -1> (x) }"
    )
    return compile_model(import_model_proto(proto, {"N": ("1..9",)})).spec


@pytest.mark.parametrize(("model", "form"), [("layers", "library"), ("mlp", "object")])
def test_kernels_through_the_header_give_what_python_does(
    model: str, form: str, tmp_path: Path
) -> None:
    # Two threads: the larger model has parallel loops.
    spec = (
        compiled(odd_mlp(), tmp_path, threads=2)
        if model == "mlp"
        else compile_model(layers(3)).spec
    )
    functions = Executable(spec).functions
    expected = {}
    for name, function in functions.items():
        inputs = [RNG.standard_normal(t.shape).astype(t.dtype.numpy) for t in function.inputs]
        (tmp_path / f"{name}.in").write_bytes(b"".join(array.tobytes() for array in inputs))
        expected[name] = function(*inputs)
    (tmp_path / "main.c").write_text(PROGRAM)
    if form == "library":
        export_library(spec, tmp_path, "net", kernels=True)
        linked = ["-L.", "-lnet", "-Wl,-rpath,$ORIGIN"]
    else:
        export_object(spec, tmp_path / "net.o", "net", kernels=True)
        linked = ["net.o", "-pthread", "-lm"]
    cc(tmp_path, *STRICT, "main.c", *linked, "-o", "main")
    run(tmp_path, "./main")
    for name, result in expected.items():
        assert (tmp_path / f"{name}.out").read_bytes() == result.tobytes(), name


def test_each_kernel_has_a_name_and_its_sizes_in_the_header_of_open_sizes(tmp_path: Path) -> None:
    spec = sized_spec()
    header, library, _ = export_library(spec, tmp_path, "net", kernels=True)
    ((name, function),) = Executable(spec).functions.items()
    text = header.read_text()
    assert "inputs[0]: f32[9, 12], 432 bytes" in text and "inputs[1]: i64[1], 8 bytes" in text
    (tmp_path / "all.c").write_text('#include "net.h"\nint main(void) { return 0; }\n')
    cc(tmp_path, *STRICT, "-fsyntax-only", "all.c")
    cc(tmp_path, "-x", "c++", "-Wall", "-Werror", "-pedantic", "-fsyntax-only", "all.c")
    symbol = f"net_kernel_{identifier(name, 'kernel')}"
    loaded = ctypes.CDLL(str(library))
    x, rows = RNG.standard_normal((9, 12)).astype(np.float32), np.array([5])
    output = np.zeros((9, 12), np.float32)
    bytes_of = getattr(loaded, f"{symbol}_workspace_bytes")
    bytes_of.restype = ctypes.c_size_t
    workspace = aligned_empty((max(1, bytes_of()),), DType.U8.numpy)
    inputs = (ctypes.c_void_p * 2)(address_of(x), address_of(rows))
    places = (ctypes.c_void_p(address_of(output)), ctypes.c_void_p(address_of(workspace)))
    assert getattr(loaded, symbol)(inputs, *places) == 0
    np.testing.assert_array_equal(output[:5], function(x, rows)[:5])


SIZED_PROGRAM = """\
#include "net.h"
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    static float x[9 * 12], y[9 * 12];
    const int64_t rows[] = {5};
    const void *inputs[] = {x, rows};
    if (NET_PROGRAM0_KERNELS != 1 || NET_PROGRAM1_KERNELS != 1)
        return 2;
    const struct net_program0_kernel *one = net_program0_kernel_at(0);
    const struct net_program1_kernel *more = net_program1_kernel_at(0);
    void *workspace = aligned_alloc(NET_ALIGNMENT, 1 << 16);
    if (one->inputs != 1 || one->run(inputs, y, workspace) != NET_OK)
        return 3;
    printf("1 %g\\n", y[0]);
    if (more->inputs != 2 || more->run(inputs, y, workspace) != NET_OK)
        return 4;
    printf("5 %g\\n", y[4 * 12]);
    return 0;
}
"""


def test_programs_for_sizes_have_kernels_by_names_of_their_own(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        "g (float[N, 12] x) => (float[N, 12] y) { y = Softmax <axis = -1> (x) }"
    )
    specs = []
    for low, high in ((1, 1), (2, 9)):
        graph = import_model_proto(proto, {"N": (f"{low}..{high}" if high > low else low,)})
        guards = [SizeGuard("N", "x", 0, low, high)]
        specs.append(compile_model(graph, threads=2, guards=guards).spec)
    (tmp_path / "main.c").write_text(SIZED_PROGRAM)
    header, *_ = export_library(specs[0], tmp_path, "net", others=specs[1:], kernels=True)
    assert 'The kernels of the program for "N=2..9".' in header.read_text()
    export_object(specs[0], tmp_path / "net.o", "net", others=specs[1:], kernels=True)
    for linked in (["-L.", "-lnet", "-Wl,-rpath,$ORIGIN"], ["net.o", "-lm", "-pthread"]):
        cc(tmp_path, *STRICT, "main.c", *linked, "-o", "main")
        assert run(tmp_path, "./main") == "1 0.0833333\n5 0.0833333\n"


def test_tiles_are_set_up_around_kernels(tmp_path: Path) -> None:
    target = target_named("sapphirerapids")
    spec = compile_model(layers(1, DType.BF16), target=target).spec
    assert target.matrix_tiles is not None
    _, library, _ = export_library(spec, tmp_path, "net", kernels=True)
    code = run(tmp_path, "objdump", "-d", str(library))
    for kernel in spec.kernels:
        (body,) = re.findall(rf"<net_kernel_\w+_{kernel.key[:8]}>:\n(.*?)\n\n", code, re.DOTALL)
        assert re.search(r"ldtilecfg.*call.*tilerelease", body, re.DOTALL)


def test_what_has_no_kernels_to_export_is_refused(tmp_path: Path) -> None:
    spec = compile_model(layers(1)).spec
    other = replace(spec, target=host_target())
    with pytest.raises(ExportError, match="kernels are exported for one target"):
        export_library(spec, tmp_path / "two", "net", others=[other], kernels=True)
    with pytest.raises(ExportError, match="kept no types"):
        export_object(replace(spec, operands=()), tmp_path / "net.o", "net", kernels=True)
    with pytest.raises(ExportError, match="no kernels to export"):
        export_object(
            replace(spec, kernels=(), operands=()), tmp_path / "net.o", "net", kernels=True
        )
    assert list(tmp_path.iterdir()) == []
