"""The entry function: one call per step, with every buffer's pointer from its place."""

from __future__ import annotations

from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.runtime.entry.entry import entry_ir
from tunefarm.compiler.runtime.spec.executable_spec import CallStep, CopyStep, Location, Place
from tunefarm.compiler.target import host_target

CALL = CallStep(
    "kernel_1",
    (Location(Place.INPUT, 0), Location(Place.CONSTANT, 3), Location(Place.ARENA, 128)),
    workspace=256,
)
COPY = CopyStep(Location(Place.ARENA, 128), Location(Place.OUTPUT, 1), 48)


def test_call_and_copy_become_one_flat_function() -> None:
    assert entry_ir([CALL, COPY]) == (
        "declare void @kernel_1(ptr, ptr, ptr)\n"
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n"
        "define void @tunefarm_run"
        "(ptr %inputs, ptr %outputs, ptr %constants, ptr %arena, ptr %runtime) {\n"
        "  %buffers = alloca [3 x ptr], align 16\n"
        "  %v0 = getelementptr ptr, ptr %inputs, i64 0\n"
        "  %v1 = load ptr, ptr %v0\n"
        "  %v2 = getelementptr ptr, ptr %buffers, i64 0\n"
        "  store ptr %v1, ptr %v2\n"
        "  %v3 = getelementptr ptr, ptr %constants, i64 3\n"
        "  %v4 = load ptr, ptr %v3\n"
        "  %v5 = getelementptr ptr, ptr %buffers, i64 1\n"
        "  store ptr %v4, ptr %v5\n"
        "  %v6 = getelementptr i8, ptr %arena, i64 128\n"
        "  %v7 = getelementptr ptr, ptr %buffers, i64 2\n"
        "  store ptr %v6, ptr %v7\n"
        "  %v8 = getelementptr i8, ptr %arena, i64 256\n"
        "  call void @kernel_1(ptr %buffers, ptr %v8, ptr %runtime)\n"
        "  %v9 = getelementptr i8, ptr %arena, i64 128\n"
        "  %v10 = getelementptr ptr, ptr %outputs, i64 1\n"
        "  %v11 = load ptr, ptr %v10\n"
        "  call void @llvm.memcpy.p0.p0.i64(ptr %v11, ptr %v9, i64 48, i1 false)\n"
        "  ret void\n"
        "}\n"
    )


def test_kernel_called_twice_is_declared_once() -> None:
    text = entry_ir([CALL, CALL])
    assert text.count("declare void @kernel_1(") == 1
    assert text.count("call void @kernel_1(") == 2


def test_call_without_workspace_passes_null() -> None:
    text = entry_ir([CallStep("k", (Location(Place.OUTPUT, 0),), None)])
    assert "call void @k(ptr %buffers, ptr null, ptr %runtime)" in text


def test_entry_is_code_that_llvm_accepts() -> None:
    assert object_code(entry_ir([CALL, COPY]), host_target())


def test_seal_stands_in_the_code_beside_the_function() -> None:
    seal = bytes(range(32))
    code = object_code(entry_ir([CALL, COPY], seal), host_target())
    assert code.count(seal) == 1
    assert seal not in object_code(entry_ir([CALL, COPY]), host_target())


def test_steps_print_as_assignments() -> None:
    assert str(CALL) == "arena+128 = kernel_1(input[0], constant[3]) workspace arena+256"
    assert str(COPY) == "output[1] = copy(arena+128, 48 bytes)"
