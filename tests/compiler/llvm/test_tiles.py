"""Matrix tiles as AMX instructions: which, in what order, and set up by whom."""

from __future__ import annotations

import re

import pytest

from tests.compiler.loops.tile_nests import product_nest
from tests.targets import target_named
from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.llvm.emit_kernel import emit_kernel
from tunefarm.compiler.llvm.machine import assembly, object_code
from tunefarm.compiler.llvm.peak_loop import repeat_call_object
from tunefarm.compiler.loops.ir import LoopKind, LoopNest
from tunefarm.compiler.machine.amx_set_up import FULL_PALETTE
from tunefarm.compiler.runtime.entry.entry import entry_ir
from tunefarm.compiler.runtime.machine.thread_pool import pool_ir
from tunefarm.compiler.types.dtypes import DType

BYTES = (DType.U8, DType.I8, DType.I32)
TILES = target_named("sapphirerapids")


def tile_lines(nest: LoopNest) -> list[str]:
    """The instructions about tiles of the kernel that the nest is, with their tiles."""
    text = assembly(emit_kernel(nest, TILES, "kernel")[0], TILES)
    found = re.findall(r"^\t((?:tile|tdp|ldtile)\w*)\t?(.*)$", text, re.MULTILINE)
    return [" ".join([name, *re.findall(r"%tmm\d", rest)]) for name, rest in found]


def test_a_block_of_tiles_is_loaded_once_and_multiplied_in_every_pair() -> None:
    nest = product_nest(16, 16, 16, (2, 2), (2, 3, 2), BYTES)
    assert tile_lines(nest) == [
        *(f"tilezero %tmm{tile}" for tile in range(4)),
        "tileloaddt1 %tmm4",
        "tileloaddt1 %tmm6",
        "tdpbusd %tmm6 %tmm4 %tmm0",
        "tileloaddt1 %tmm7",
        "tdpbusd %tmm7 %tmm4 %tmm1",
        "tileloaddt1 %tmm5",
        "tdpbusd %tmm6 %tmm5 %tmm2",
        "tdpbusd %tmm7 %tmm5 %tmm3",
        *(f"tilestored %tmm{tile}" for tile in range(4)),
    ]


@pytest.mark.parametrize(
    ("left", "right", "instruction"),
    [
        (DType.U8, DType.I8, "tdpbusd"),
        (DType.I8, DType.U8, "tdpbsud"),
        (DType.I8, DType.I8, "tdpbssd"),
        (DType.U8, DType.U8, "tdpbuud"),
        (DType.BF16, DType.BF16, "tdpbf16ps"),
    ],
)
def test_types_choose_the_instruction(left: DType, right: DType, instruction: str) -> None:
    total = DType.F32 if left.is_float else DType.I32
    lines = tile_lines(product_nest(16, 16, 16, (1, 1), (1, 2, 1), (left, right, total)))
    assert [line.split()[0] for line in lines if line.startswith("tdp")] == [instruction]


def test_types_without_an_instruction_are_refused() -> None:
    nest = product_nest(16, 16, 16, (1, 1), (1, 1, 1), (DType.I16, DType.I16, DType.I32))
    with pytest.raises(LoweringError, match="no instruction multiplies tiles of i16 and i16"):
        emit_kernel(nest, TILES, "kernel")


def test_a_target_without_tiles_gets_none() -> None:
    nest = product_nest(16, 16, 16, (1, 1), (1, 1, 1), BYTES)
    with pytest.raises(LoweringError, match="the target has no matrix tiles"):
        emit_kernel(nest, target_named("x86-64-v4"), "kernel")


@pytest.mark.parametrize("kind", [LoopKind.SERIAL, LoopKind.PARALLEL])
def test_smaller_tiles_are_set_up_by_the_kernel_and_full_ones_again_at_its_end(
    kind: LoopKind,
) -> None:
    lines = tile_lines(product_nest(7, 16, 16, (2, 2), (2, 3, 2), BYTES, kind))
    if kind is LoopKind.PARALLEL:  # the threads' function; the kernel's own has no tile
        assert lines.count("ldtilecfg") == 2
    assert lines[0] == lines[-1] == "ldtilecfg"
    assert "ldtilecfg" not in tile_lines(product_nest(16, 16, 16, (2, 2), (2, 3, 2), BYTES, kind))


def test_own_tiles_have_the_rows_and_bytes_that_are_used() -> None:
    text = emit_kernel(product_nest(7, 3, 5, (1, 2), (1, 2, 1), BYTES), TILES, "kernel")[0]
    (escaped,) = re.findall(r'kernel\.own_tiles = .* c"(.*)"', text)
    configuration = bytes.fromhex(escaped.replace("\\", ""))
    sizes = [int.from_bytes(configuration[16 + 2 * t : 18 + 2 * t], "little") for t in range(8)]
    # Two tiles of sums, one of the left and two of the right factors.
    assert sizes == [20, 20, 12, 20, 20, 0, 0, 0]
    assert list(configuration[48:56]) == [7, 7, 7, 3, 3, 0, 0, 0]


def test_threads_of_a_team_are_told_of_tiles() -> None:
    nest = product_nest(16, 16, 16, (1, 1), (2, 1, 1), BYTES, LoopKind.PARALLEL)
    text = emit_kernel(nest, TILES, "kernel")[0]
    assert re.findall(r"call void %\w+\(ptr @kernel.parallel0, .*(i32 \d+)\)", text) == ["i32 256"]


def test_runs_timed_calls_and_threads_set_tiles_up() -> None:
    """Each where it begins and ends, whatever happens in between."""
    run = assembly(entry_ir([], tiles=FULL_PALETTE), TILES)
    assert re.findall(r"ldtilecfg|tilerelease|call\w*\t.*tiles\.(?:begin|end)", run)
    assert "tile" not in entry_ir([])
    pool = assembly(pool_ir("x86_64"), target_named("x86-64-v2"))
    assert pool.count("ldtilecfg") == pool.count("tilerelease") == 1
    assert "tile" not in pool_ir("aarch64")
    assert repeat_call_object(TILES) != repeat_call_object(target_named("x86-64-v4"))
    assert object_code(pool_ir("x86_64"), target_named("x86-64-v2"))
