"""Code for another CPU is refused in one line that says what is missing."""

from __future__ import annotations

import platform
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tests.processes import python
from tests.targets import target_named
from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.machine.check_target import check_target
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType

TILES = target_named("sapphirerapids")
PLAIN = TILES.without_matrix_tiles()


def test_code_runs_where_all_its_features_are() -> None:
    check_target(TILES, TILES, "")
    check_target(PLAIN, TILES, "")
    check_target(PLAIN, PLAIN, "the kernel does not permit them")


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        ("", ""),
        ("the kernel does not permit them", " (matrix tiles: the kernel does not permit them)"),
    ],
)
def test_tiles_that_are_not_there_are_named_with_the_reason(refusal: str, reason: str) -> None:
    with pytest.raises(ArtefactError) as refused:
        check_target(TILES, PLAIN, refusal)
    lacking = f"lacks: amx-bf16, amx-int8, amx-tile{reason}"
    assert refused.value.message.endswith(lacking) and "\n" not in str(refused.value)
    assert "--fallback" in refused.value.hint


def test_tiles_are_not_spoken_of_where_something_else_is_missing() -> None:
    others = tuple(name for name in PLAIN.features if name != "avx512bw")
    older = replace(PLAIN, features=others)
    with pytest.raises(ArtefactError) as refused:
        check_target(PLAIN, older, "the kernel does not permit them")
    assert refused.value.message.endswith("lacks: avx512bw")


@pytest.mark.parametrize(("precision", "needed"), [("default", PLAIN), ("bf16", TILES)])
def test_only_code_for_narrow_numbers_needs_tiles(precision: str, needed: Target) -> None:
    model = import_model_proto(build_model("mlp"))
    program = compile_model(model, target=TILES, numerics=precision).spec
    assert (program.target, program.needed_target) == (TILES, needed)


def test_attention_of_narrow_numbers_needs_tiles() -> None:
    maker = GraphMaker()
    query, key, value = (maker.input(1, 2, 32, 32, dtype=DType.BF16) for _ in range(3))
    scores = maker.node("matmul", query, key, transpose_b=True)
    graph = maker.graph(maker.node("matmul", maker.node("softmax", scores, axis=3), value))
    program = compile_model(graph, target=TILES).spec
    assert [kernel.numerics for kernel in program.kernels] == ["bf16"]
    assert program.needed_target == TILES


@pytest.mark.parametrize("name", ["xsaves", "shstk", "pku", "aes", "invpcid"])
def test_what_no_code_uses_may_be_hidden(name: str) -> None:
    """A hypervisor shows features for systems that Linux switches off, or the other way round."""
    check_target(replace(PLAIN, features=(*PLAIN.features, name)), PLAIN)


_DENIED = """
import ctypes, struct, sys
from dataclasses import replace

# A filter of system calls: arch_prctl(0x1023, ...) is not permitted, anything else is.
def step(code, jump_true, jump_false, number):
    return struct.pack("<HBBI", code, jump_true, jump_false, number)

program = b"".join([
    step(0x20, 0, 0, 0), step(0x15, 0, 3, 158), step(0x20, 0, 0, 16), step(0x15, 0, 1, 0x1023),
    step(0x06, 0, 0, 0x00050001), step(0x06, 0, 0, 0x7FFF0000),
])
held = ctypes.create_string_buffer(program)
described = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(held))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, described, 0, 0) == 0

import llvmlite.binding as llvm
from tunefarm.compiler.machine import amx_state
from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.runtime.machine.check_target import check_target
from tunefarm.compiler.target import host_target

class CpuWithTiles(amx_state.HostMachine):
    def cpuid(self, leaf, subleaf):
        if (leaf, subleaf) == (0x1D, 1):
            return 0, 8 << 16 | 64, 16, 0
        return (1 << 32) - 1, 0, (1 << 32) - 1, (1 << 32) - 1

    def xcr0(self):
        return 0x600E7

amx_state.HostMachine = CpuWithTiles
known = llvm.get_host_cpu_features()
tiles = ("amx-bf16", "amx-int8", "amx-tile")
llvm.get_host_cpu_features = lambda: {**known, **dict.fromkeys(tiles, True)}
host = host_target()
assert host.matrix_tiles is None
try:
    check_target(replace(host, features=tuple(sorted((*host.features, *tiles)))))
except ArtefactError as error:
    print(error)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="matrix tiles are asked for on Linux on x86-64",
)
def test_a_kernel_that_denies_tiles_is_named_in_one_line(repository: Path) -> None:
    """The system call itself is denied, to a process whose CPU tells of tiles."""
    done = python("-c", _DENIED, cwd=repository)
    (line,) = done.stdout.splitlines()
    lacking = "lacks: amx-bf16, amx-int8, amx-tile (matrix tiles: the kernel does not permit them"
    assert lacking in line and "Operation not permitted" in line and "--fallback" in line
    assert done.returncode == 0, done.stderr
