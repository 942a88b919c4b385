"""Models as C: what the library computes, what it refuses, what it exports, and how it is made."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.runnable_targets import unlike_any
from tests.compiler.runtime.c_models import (
    MODELS,
    STRICT,
    TYPES,
    UNSIGNED,
    Library,
    cc,
    compile_example,
    compiled,
    odd_mlp,
    random_inputs,
    renamed,
    run,
    typed_model,
    without_inputs,
)
from tests.compiler.runtime.hand_kernels import COUNT, chain_spec
from tests.compiler.runtime.sized_graphs import part_graph, rows_graph
from tests.onnxruntime_session import assert_agrees
from tunefarm.compiler.errors import ExportError
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.c_library.c_interface import c_interface
from tunefarm.compiler.runtime.c_library.export_c import export_library, export_object
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.machine.cpu_features import X86_FEATURES
from tunefarm.compiler.runtime.spec.buffers import address_of
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.target import baseline_target, host_target
from tunefarm.compiler.types.signature import AxisSource
from tunefarm.compiler.types.tensor_type import Array

HERE = Path(__file__).parent
ON_X86 = platform.machine() == "x86_64"


FORMS = ("static", "dynamic", "several")
"""Libraries of a static model, of one with dynamic shapes, and of several programs for sizes."""


def built(form: str, folder: Path) -> tuple[list[ExecutableSpec], list[dict[str, Array]]]:
    """The programs of such a model, and inputs for some calls of it."""
    if form == "static":
        spec = compiled(odd_mlp(), folder, 2)
        return [spec], [random_inputs(spec)]
    rng = np.random.default_rng(3)
    lengths, parts = (1, 4, 7), ((1, 1), (4, 6), (7, 7))
    calls: list[dict[str, Array]] = [
        {"x": rng.standard_normal((2, n, 5)).astype(np.float32)} for n in lengths
    ]
    if form == "dynamic":
        return [compile_model(rows_graph()).spec], calls
    guarded = [(part_graph(*ends), SizeGuard("length", "x", 1, *ends)) for ends in parts]
    return [compile_model(graph, guards=[guard]).spec for graph, guard in guarded], calls


def load(specs: Sequence[ExecutableSpec], folder: Path, name: str) -> Library:
    """The model's shared library, called from this process."""
    path = export_library(specs[0], folder, name, others=specs[1:])[1]
    return Library(path, name, *specs)


def assert_same_bits(ours: dict[str, Array], expected: dict[str, Array]) -> None:
    assert list(ours) == list(expected)
    for name, array in expected.items():
        assert ours[name].tobytes() == array.tobytes(), name


def run_example(folder: Path, name: str, spec: ExecutableSpec) -> dict[str, Array]:
    """The outputs that the compiled example writes for the inputs that it reads."""
    interface = c_interface([spec], name)
    files = [f"{port.member}.bin" for port in (*interface.inputs, *interface.outputs)]
    for file, array in zip(files, random_inputs(spec).values(), strict=False):
        (folder / file).write_bytes(array.tobytes())
    run(folder, f"./{name}_example", *files)
    results = zip(files[len(spec.inputs) :], spec.outputs, strict=True)
    return {
        value: np.fromfile(folder / file, type.dtype.numpy).reshape(type.shape)
        for file, (value, type) in results
    }


# What it computes.


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", sorted(MODELS))
def test_compiled_example_computes_what_python_and_onnxruntime_do(
    model: str, threads: int, tmp_path: Path
) -> None:
    proto = MODELS[model]()
    spec = compiled(proto, tmp_path, threads)
    export_library(spec, tmp_path, "model")
    cc(
        tmp_path,
        *STRICT,
        "model_example.c",
        "-L.",
        "-lmodel",
        "-Wl,-rpath,$ORIGIN",
        "-omodel_example",
    )
    ours = run_example(tmp_path, "model", spec)
    inputs = random_inputs(spec)
    assert_same_bits(ours, Executable(spec).run(inputs))
    assert_agrees(lambda _: ours, proto, inputs, rtol=0, atol=0, of_largest=1e-4)


def test_the_headers_own_command_compiles_the_example(tmp_path: Path) -> None:
    export_library(compiled(odd_mlp(), tmp_path), tmp_path, "odd mlp")
    (command,) = re.findall(r"^ +(cc .*) \*/$", (tmp_path / "odd_mlp.h").read_text(), re.MULTILINE)
    run(tmp_path, "sh", "-c", command)
    lines = run(tmp_path, "./odd_mlp_example").splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "class_ [64, 16]",
        "out_a [64, 16]",
        "out_a_2 []",
    ]
    assert len(lines[0].split(":")[1].split()) == 8


def test_an_object_file_is_linked_into_a_program(tmp_path: Path) -> None:
    spec = compiled(odd_mlp(), tmp_path, 2)
    export_library(spec, tmp_path / "library", "mlp")
    export_object(spec, tmp_path / "mlp.o", "mlp")
    (tmp_path / "mlp_example.c").write_bytes((tmp_path / "library/mlp_example.c").read_bytes())
    header = (tmp_path / "mlp.h").read_text()
    (command,) = re.findall(r"^ +(cc .*) \*/$", header, re.MULTILINE)
    command = command.replace("your_program.c", "mlp_example.c")
    run(tmp_path, "sh", "-c", command.replace("your_program", "mlp_example"))
    assert_same_bits(run_example(tmp_path, "mlp", spec), Executable(spec).run(random_inputs(spec)))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_library_of_several_programs_runs_the_first_that_the_cpu_can_run(
    threads: int, tmp_path: Path
) -> None:
    """Their kernels have the same names; what their constants have in common is there once."""
    onnx.save(odd_mlp(), tmp_path / "model.onnx")
    graph, host = import_onnx(tmp_path / "model.onnx"), host_target()
    targets = (host, baseline_target(host))
    here, portable = (compile_model(graph, target=t, threads=threads).spec for t in targets)
    newer = replace(here, target=unlike_any(host))
    inputs = random_inputs(here)
    for number, (programs, chosen) in enumerate(
        [((here, portable), here), ((newer, portable), portable), ((newer, here, portable), here)]
    ):
        first, *others = programs
        files = export_library(first, tmp_path / str(number), "mlp", others=others)
        ours = Library(files[1], "mlp", first).run(inputs)
        assert_same_bits(ours, Executable(chosen).run(inputs))
    export_object(first, tmp_path / "mlp.o", "mlp", others=others)
    symbols = run(tmp_path, "nm", "--defined-only", "--extern-only", "mlp.o").split()[2::3]
    assert sorted(symbols) == ["mlp_error", "mlp_run", "mlp_workspace_bytes"]
    assert f"CPUs {host.cpu}, {host.cpu}, x86-64 (" in files[0].read_text() or not ON_X86


@pytest.mark.skipif(not ON_X86, reason="the features are those of x86-64")
def test_a_library_that_no_program_of_runs_here_names_what_each_needs(tmp_path: Path) -> None:
    spec = compiled(renamed("x", "y"), tmp_path)
    lacking = [name for name in X86_FEATURES if name not in spec.target.features][-2:]
    programs = [replace(spec, target=replace(spec.target, features=(name,))) for name in lacking]
    export_library(programs[0], tmp_path, "negated", others=programs[1:])
    compile_example(tmp_path, "negated")
    cpu = spec.target.cpu
    with pytest.raises(AssertionError, match=f"{cpu}: {lacking[0]}; {cpu}: {lacking[1]}"):
        run(tmp_path, "./negated_example")


def test_programs_that_no_library_can_hold_are_refused(tmp_path: Path) -> None:
    spec = compiled(renamed("x", "y"), tmp_path)
    arm = replace(spec, target=replace(spec.target, triple="riscv64-unknown-linux-gnu"))
    with pytest.raises(ExportError, match=r"not for .* linux and riscv64 linux"):
        export_library(spec, tmp_path / "out", others=[arm])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", FORMS)
def test_buffers_may_start_anywhere(form: str, tmp_path: Path) -> None:
    specs, calls = built(form, tmp_path)
    library = load(specs, tmp_path, "anywhere")
    executable = Executable(specs[0], others=specs[1:])
    for inputs in calls:
        expected = executable.run(inputs)
        for offset in (0, 1, 4, 60):
            assert_same_bits(library.run(inputs, offset), expected)


@pytest.mark.parametrize("form", FORMS)
def test_example_reads_and_writes_files(form: str, tmp_path: Path) -> None:
    specs, calls = built(form, tmp_path)
    export_library(specs[0], tmp_path, "model", others=specs[1:])
    compile_example(tmp_path, "model")
    interface = c_interface(specs, "model")
    files = [f"{port.member}.bin" for port in (*interface.inputs, *interface.outputs)]
    sources = [s for s in interface.signature.sources if isinstance(s, AxisSource)]
    for inputs in calls:
        sizes = [str(inputs[source.input].shape[source.axis]) for source in sources]
        for file, array in zip(files, inputs.values(), strict=False):
            (tmp_path / file).write_bytes(array.tobytes())
        run(tmp_path, "./model_example", *sizes, *files)
        expected = Executable(specs[0], others=specs[1:]).run(inputs)
        for file, array in zip(files[len(inputs) :], expected.values(), strict=True):
            assert (tmp_path / file).read_bytes() == array.tobytes()


@pytest.mark.parametrize("names", [TYPES, UNSIGNED], ids=["signed", "unsigned"])
def test_every_element_type_goes_through(names: Sequence[str], tmp_path: Path) -> None:
    spec = compiled(typed_model(names), tmp_path)
    export_library(spec, tmp_path, "typed")
    cc(
        tmp_path,
        *STRICT,
        "typed_example.c",
        "-L.",
        "-ltyped",
        "-Wl,-rpath,$ORIGIN",
        "-otyped_example",
    )
    outputs = run_example(tmp_path, "typed", spec)
    for name, array in random_inputs(spec).items():
        np.testing.assert_array_equal(outputs[name.replace("in_", "out_")], array[::-1])
    assert "in_" not in run(tmp_path, "./typed_example")  # its pattern, printed for outputs only


def test_a_model_without_inputs_has_an_example(tmp_path: Path) -> None:
    spec = compiled(without_inputs(), tmp_path)
    export_library(spec, tmp_path, "constant")
    compile_example(tmp_path, "constant")
    assert run(tmp_path, "./constant_example") == "y [3]: 0 1 2\n"


# Threads.


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_that_run_at_once_get_the_same_results(threads: int, tmp_path: Path) -> None:
    spec = compiled(odd_mlp(), tmp_path, threads)
    export_library(spec, tmp_path, "mlp")
    ports = (*spec.inputs, *spec.outputs)
    sizes = ",".join(str(type.bytes) for _, type in ports)
    defined = [f'-DHEADER="{tmp_path}/mlp.h"', "-DMODEL=mlp", f"-DSIZES={sizes}"]
    counts = [f"-DINPUTS={len(spec.inputs)}", f"-DOUTPUTS={len(spec.outputs)}"]
    linked = ["-L.", "-lmlp", "-Wl,-rpath,$ORIGIN", "-pthread", "-omlp_example"]
    cc(tmp_path, *STRICT, *defined, *counts, str(HERE / "threads.c"), *linked)
    (tmp_path / "mlp_example").rename(tmp_path / "threads")
    (tmp_path / "mlp_example").write_text('#!/bin/sh\nexec ./threads 20 "$@"\n')
    (tmp_path / "mlp_example").chmod(0o755)
    assert_same_bits(run_example(tmp_path, "mlp", spec), Executable(spec).run(random_inputs(spec)))


@pytest.mark.parametrize("flags", [[], ["-fopenmp"]], ids=["without", "with"])
def test_a_library_for_two_threads_needs_no_openmp_and_gets_on_with_it(
    flags: list[str], tmp_path: Path
) -> None:
    spec = compiled(odd_mlp(), tmp_path, 2)
    assert any(kernel.parallel for kernel in spec.kernels)
    export_library(spec, tmp_path, "mlp")
    compile_example(tmp_path, "mlp", *flags)
    assert_same_bits(run_example(tmp_path, "mlp", spec), Executable(spec).run(random_inputs(spec)))


THREADS_SCRIPT = """
import os, sys
from pathlib import Path
from tests.compiler.runtime.c_models import compiled, odd_mlp, random_inputs
from tests.compiler.runtime.c_library.test_export_c import assert_same_bits, load
folder, threads = Path(sys.argv[1]), int(sys.argv[2])
spec = compiled(odd_mlp(), folder, threads)
library, inputs = load([spec], folder, "mlp"), random_inputs(spec)
tasks = lambda: len(os.listdir("/proc/self/task"))
before = tasks()
first = library.run(inputs)
print(tasks() - before)
for _ in range(20):
    assert_same_bits(library.run(inputs), first)
print(tasks() - before, flush=True)
child = os.fork()
if child == 0:
    assert_same_bits(library.run(inputs), first)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_run_starts_its_threads_once_and_a_child_process_does_without(
    threads: int, tmp_path: Path
) -> None:
    arguments = [sys.executable, "-c", THREADS_SCRIPT, str(tmp_path), str(threads)]
    printed = run(tmp_path, *arguments)
    assert list(map(int, printed.split())) == [threads - 1, threads - 1, 7]


# What it refuses.


@pytest.mark.parametrize("form", FORMS)
def test_null_pointers_and_a_misaligned_workspace_are_errors(form: str, tmp_path: Path) -> None:
    library = load(built(form, tmp_path)[0], tmp_path, "refusing")
    workspace = address_of(library.workspace)
    count = len(library.inputs) + len(library.outputs)
    pointers = [workspace] * count  # never read: every call is refused
    assert library.call(None, workspace) == 1
    assert library.call(pointers, None) == 1
    for member in range(count):
        assert library.call([*pointers[:member], None, *pointers[member + 1 :]], workspace) == 1
    for offset in (1, 8, 32):
        assert library.call(pointers, workspace + offset) == 2
    assert "null" in library.error(1) and "aligned" in library.error(2)
    assert library.error(0) == "no error"
    assert library.error(4) == library.error(-1) == "unknown error code"


# What the files hold.


@pytest.mark.parametrize("form", FORMS)
def test_the_header_compiles_as_cpp(form: str, tmp_path: Path) -> None:
    specs, _ = built(form, tmp_path)
    export_library(specs[0], tmp_path, "mlp", others=specs[1:])
    (tmp_path / "user.cpp").write_text(
        '#include "mlp.h"\nint main() { mlp_io io = mlp_io(); return mlp_run(&io, nullptr); }\n'
    )
    flags = ["-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    cc(tmp_path, "-x", "c++", "-fsyntax-only", *flags, "user.cpp")


@pytest.mark.parametrize("form", FORMS)
def test_the_functions_of_the_header_alone_are_seen(form: str, tmp_path: Path) -> None:
    (spec, *others), _ = built(form, tmp_path)
    path = export_library(spec, tmp_path, "mlp", others=others)[1]
    export_object(spec, tmp_path / "mlp.o", "mlp", others=others)
    expected = ["mlp_error", "mlp_run", "mlp_workspace_bytes"]
    if form != "static":
        expected.insert(2, "mlp_sizes")
    for file, flag in ((path.name, "-D"), ("mlp.o", "-g")):
        defined = run(tmp_path, "nm", flag, "--defined-only", file)
        assert sorted(line.split()[-1] for line in defined.splitlines()) == expected


def test_a_library_needs_the_c_library_alone_and_allocates_nothing(tmp_path: Path) -> None:
    path = export_library(compiled(odd_mlp(), tmp_path), tmp_path, "mlp")[1]
    dynamic = run(tmp_path, "readelf", "-d", "-W", "-l", path.name)
    needed = set(re.findall(r"NEEDED.*\[(\w+)\.so", dynamic))
    assert needed <= {"libc", "libm"}
    assert re.search(r"GNU_STACK.* RW +0x", dynamic)  # not executable
    assert "alloc" not in run(tmp_path, "nm", "-D", "--undefined-only", path.name)


def test_constants_are_aligned_and_read_only(tmp_path: Path) -> None:
    path = export_library(compiled(odd_mlp(), tmp_path), tmp_path, "mlp")[1]
    symbols = run(tmp_path, "nm", path.name)
    (address, kind), *_ = re.findall(r"^(\w+) (\w) tunefarm_constants$", symbols, re.MULTILINE)
    assert kind == "r" and int(address, 16) % 64 == 0


@pytest.mark.parametrize("linked", ["shared", "static"])
def test_two_models_with_the_same_kernel_are_linked_into_one_program(
    linked: str, tmp_path: Path
) -> None:
    spec = compiled(renamed("x", "y"), tmp_path)
    flags = []
    for name in ("first", "second"):
        if linked == "shared":
            export_library(spec, tmp_path, name)
            flags += ["-L.", f"-l{name}", "-Wl,-rpath,$ORIGIN"]
        else:
            export_object(spec, tmp_path / f"{name}.o", name)
            flags += [f"{name}.o"]
    cc(tmp_path, *STRICT, "-I.", str(HERE / "two_models.c"), *flags, "-lm")
    assert run(tmp_path, "./a.out") == "-1 -2 -3, 1 2 3\n"


def write_all(folder: Path) -> None:
    """Every file of a library and of an object."""
    spec = compiled(odd_mlp(), folder, 2)
    export_library(spec, folder, "mlp")
    export_object(spec, folder / "static.o", "mlp")


def test_the_same_model_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "quite another name"]
    for folder in folders:
        folder.mkdir()
    write_all(folders[0])
    script = f"from {__name__} import *; write_all(Path({str(folders[1])!r}))"
    run(folders[1], sys.executable, "-c", script)
    files = sorted(path.name for path in folders[0].iterdir())
    emitted = ["libmlp.so", "mlp.h", "mlp_example.c", "static.h", "static.o"]
    assert sorted([*emitted, "model.onnx"]) == files
    for file in emitted:
        assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes(), file
        assert str(tmp_path).encode() not in (folders[0] / file).read_bytes()


# How it is made.


@pytest.mark.parametrize("missing", ["cc", "objcopy"])
def test_a_missing_tool_is_one_error_that_says_what_to_install(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = compiled(renamed("x", "y"), tmp_path)
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in {"cc", "objcopy"} - {missing}:
        (tools / tool).symlink_to("/bin/false")
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(ExportError, match=rf"no {missing} on PATH.*\(install a C compiler"):
        export_object(spec, tmp_path / "x.o")
    assert not (tmp_path / "x.o").exists()


def test_a_failing_compiler_is_one_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = compiled(renamed("x", "y"), tmp_path)
    (tmp_path / "cc").write_text("#!/bin/sh\necho 'model.c: error: of its own' >&2\nexit 3\n")
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ExportError, match=r"cc failed with code 3: model\.c: error: of its own"):
        export_library(spec, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(ExportError, match=r"cc failed with code 3"):
        export_library(spec, tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_target_without_a_compiler_is_refused_and_nothing_written(tmp_path: Path) -> None:
    spec = compiled(renamed("x", "y"), tmp_path)
    foreign = replace(spec, target=replace(spec.target, triple="sparcv9-unknown-linux-gnu"))
    with pytest.raises(ExportError, match=r"no cross compiler on PATH that links for sparcv9"):
        export_library(foreign, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_where_the_folder_goes_is_refused(tmp_path: Path) -> None:
    spec = compiled(renamed("x", "y"), tmp_path)
    with pytest.raises(ExportError, match="is a file, a folder is wanted"):
        export_library(spec, tmp_path / "model.onnx")
    with pytest.raises(ExportError, match="is a file, a folder is wanted"):
        export_library(spec, tmp_path / "model.onnx" / "below")
    assert onnx.load(tmp_path / "model.onnx").graph.name == "renamed"


def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, unwritable_folder: Path
) -> None:
    spec = chain_spec(np.zeros(COUNT, np.float32))
    with pytest.raises(ExportError, match=r"(?i)permission denied"):
        export_library(spec, unwritable_folder / "out")
    with pytest.raises(ExportError, match=r"cannot write.*Permission denied"):
        export_object(spec, unwritable_folder / "x.o")


def test_an_object_named_like_its_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="where the header goes"):
        export_object(compiled(renamed("x", "y"), tmp_path), tmp_path / "model.h")


def test_old_files_are_replaced(tmp_path: Path) -> None:
    spec = compiled(renamed("x", "y"), tmp_path)
    (tmp_path / "n.h").write_text("old")
    (tmp_path / "notes").write_text("kept")
    files = export_library(spec, tmp_path, "n")
    assert [file.name for file in files] == ["n.h", "libn.so", "n_example.c"]
    assert "struct n_io" in files[0].read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "libn.so",
        "model.onnx",
        "n.h",
        "n_example.c",
        "notes",
    ]
