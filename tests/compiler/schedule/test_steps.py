"""Each schedule step: the loops before and after (golden files), its meaning, and its refusals.

The examples are those of the steps' docstrings.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.compiler.golden_files import check_golden
from tests.compiler.loops.tiny_kernels import STEP_KERNELS, assert_close, run_loops, tiny_kernels
from tests.compiler.schedule.small_kernels import inputs_for
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.limb_dot import with_rounded_data
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import apply_schedule, lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.kernel_forms import (
    BlockAttention,
    DigitSums,
    FlattenAxes,
    Im2col,
    MergeAxes,
    MergeReduceAxes,
    SplitAxis,
    UnpackWeights,
    WideFactors,
    Winograd,
)
from tunefarm.compiler.schedule.steps.loop_kinds import (
    Alternate,
    DotProduct,
    Parallelize,
    Prefetch,
    Unroll,
    Vectorize,
)
from tunefarm.compiler.schedule.steps.matrix_tiles import MatrixTiles
from tunefarm.compiler.schedule.steps.new_stages import (
    CacheRead,
    CacheWrite,
    CopyOperand,
    Hoist,
    SeparateWindow,
    SplitReduction,
)
from tunefarm.compiler.schedule.steps.packing import PackLayout, PackStage
from tunefarm.compiler.schedule.steps.placement import ComputeAlong, ComputeAt, Inline
from tunefarm.compiler.schedule.steps.step import STEPS, Step
from tunefarm.compiler.schedule.steps.tiles import Fuse, Partition, Reorder, Tile
from tunefarm.compiler.schedule.steps.walks import Scan, Scatter
from tunefarm.compiler.types.numerics import Algorithm

KERNELS: dict[str, FusedKernel] = {
    **{name: make() for name, make in STEP_KERNELS.items()},
    **tiny_kernels(),
}


@dataclass(frozen=True, slots=True)
class Example:
    """A step, applied to a kernel after `before`."""

    name: str
    kernel: str
    step: Step
    before: tuple[Step, ...] = ()


def packed_filter(m: int) -> tuple[PackLayout]:
    """The filter of "conv" as Winograd wants it, in no particular order of dimensions."""
    return (PackLayout("in1", (), (0, 1, 2, 3), winograd=m),)


TILED_LOOPS = ("i.i", "k.i.o", "j.i", "k.i.i")
TO_TILES = (
    PackLayout("in1", ((0, 4),), (0, 2, 1)),
    Tile("y", "i", 5),
    Tile("y", "j", 3),
    Tile("y", "k", 12),
    Tile("y", "k.i", 4),
    Reorder("y", ("k.o", "i.o", "j.o", *TILED_LOOPS)),
    Unroll("y", "i.o"),
    Unroll("y", "j.o"),
)
"""Up to the loops of "tile_product" that matrix tiles run over."""

EXAMPLES = [
    Example("inline", "padded", Inline("pad")),
    Example("merge_axes", "plane", MergeAxes("i", "j")),
    Example("flatten_axes", "turned", FlattenAxes("i", "j")),
    Example("im2col", "conv", Im2col("oh", "ow")),
    Example("im2col_of_strides", "conv_stride2", Im2col("oh", "ow")),
    Example("merge_reduce_axes", "plane_sum", MergeReduceAxes("s", "k", "m")),
    Example("split_axis", "doubled", SplitAxis("i", 2)),
    Example("separate_window", "windows", SeparateWindow("y", "j", "rows")),
    Example("hoist", "scaled", Hoist("y", "j", "t")),
    Example("cache_write", "row_sum19", CacheWrite("s", "result")),
    Example("cache_read", "turned", CacheRead("y", "in0", "rows", ("j", "i"))),
    Example("scan", "running_sum", Scan("y")),
    Example(
        "scan_vectorised",
        "running_sum",
        Vectorize("y", "j.i"),
        (Scan("y"), Tile("y", "j", 8)),
    ),
    Example("scatter", "scattered", Scatter("scatter")),
    Example(
        "scatter_lanes_in_turns",
        "scattered_sum",
        Vectorize("scatter", "i2"),
        (Scatter("scatter"), Reorder("scatter", ("i0", "i1", "u", "i2"))),
    ),
    Example("split_reduction", "row_sum19", SplitReduction("s", "k", 8)),
    Example("split_reduction_masked", "row_sum19", SplitReduction("s", "k", 8, masked=True)),
    Example("split_reduction_without_tail", "row_sum16", SplitReduction("s", "k", 8)),
    Example(
        "split_reduction_again",
        "row_sum16",
        SplitReduction("s", "k.l", 4),
        (SplitReduction("s", "k", 8),),
    ),
    Example("block_attention", "attention", BlockAttention(5, 2)),
    Example("block_attention_online", "attention", BlockAttention(3, 2, True)),
    Example("block_attention_terms", "narrow_attention", BlockAttention(6, 2, terms=2)),
    Example(
        "compute_along",
        "shared_part",
        ComputeAlong("t", "u", "j"),
        (ComputeAt("u", "z", "i"),),
    ),
    Example("tile_peel", "vector17", Tile("y", "i", 4)),
    Example("tile_shift", "vector17", Tile("y", "i", 4, "shift")),
    Example("tile_pad", "vector17", Tile("y", "i", 32, "pad")),
    Example("tile_mask", "vector17", Tile("y", "i", 4, "mask")),
    Example(
        "tile_mask_vectorised", "vector17", Vectorize("y", "i.i"), (Tile("y", "i", 4, "mask"),)
    ),
    Example(
        "compute_at_in_masked_tile",
        "window",
        ComputeAt("t", "y", "i.o"),
        (Tile("y", "i", 3, "mask"), Tile("t", "i", 2, "mask")),
    ),
    Example("fuse", "plane", Fuse("y", ("i", "j"), "f")),
    Example("reorder", "plane", Reorder("y", ("j", "i"))),
    Example("vectorize", "vector8", Vectorize("y", "i")),
    Example("unroll", "vector8", Unroll("y", "i")),
    Example("parallelize", "vector9", Parallelize("y", "i", 2)),
    Example("partition", "padded", Partition("y", "i"), (Inline("pad"),)),
    Example("partition_cuts", "padded", Partition("y", "i", 0, 0, (4, 1, 4, 12)), (Inline("pad"),)),
    Example("compute_at", "window", ComputeAt("t", "y", "i.o"), (Tile("y", "i", 4),)),
    Example(
        "compute_at_register",
        "row_sum19",
        ComputeAt("result", "s", "i", "register"),
        (CacheWrite("s", "result"),),
    ),
    Example("pack_layout", "filter", PackLayout("in0", ((0, 4),), (0, 2, 1))),
    Example("pack_stage", "window", PackStage("t", ((0, 4),), (1, 0))),
    Example("pack_stage_of_a_reduction", "grouped", PackStage("s", ((0, 5),), (0, 1))),
    Example(
        "pack_stage_without_a_test",
        "filter",
        PackStage("t", ((0, 4),), (1, 0)),
        (CacheWrite("y", "t"), PackLayout("in0", ((0, 4),), (0, 2, 1))),
    ),
    Example("copy_operand", "row_sum19", CopyOperand("s", "in0", "t")),
    Example("split_axis_of_groups", "grouped", SplitAxis("i", 4)),
    Example(
        "dot_product",
        "narrow_product",
        DotProduct("y", "k.i"),
        (
            PackLayout("in1", ((0, 4),), (0, 2, 1)),
            Tile("y", "k", 4),
            Reorder("y", ("i", "k.o", "j", "k.i")),
            Vectorize("y", "j"),
        ),
    ),
    Example(
        "dot_product_with_a_tail", "narrow_product10", DotProduct("y", "k.i"), (Tile("y", "k", 4),)
    ),
    Example(
        "matrix_tiles",
        "tile_product",
        MatrixTiles("y", *TILED_LOOPS),
        TO_TILES,
    ),
    Example(
        "matrix_tiles_in_groups",
        "tile_product",
        MatrixTiles("y", "i.i", "k.i.i.o", "j", "k.i.i.i", "k.i.o"),
        (
            PackLayout("in1", ((0, 4),), (0, 2, 1)),
            Tile("y", "i", 5),
            Tile("y", "k", 24),
            Tile("y", "k.i", 12),
            Tile("y", "k.i.i", 4),
            Reorder("y", ("k.o", "i.o", "i.i", "k.i.o", "k.i.i.o", "j", "k.i.i.i")),
            Unroll("y", "i.o"),
        ),
    ),
    Example("alternate", "turned", Alternate("y", "j", "i")),
    Example("prefetch", "vector8", Prefetch("in0", 64), (Vectorize("y", "i"),)),
    Example(
        "prefetch_copy",
        "turned",
        Prefetch("in0", 64, "rows"),
        (CacheRead("y", "in0", "rows", ("j", "i")), ComputeAt("rows", "y", "i")),
    ),
    Example("digit_sums", "packed_product", DigitSums()),
    Example("digit_sums_rounded", "packed_product", DigitSums(1)),
    Example("wide_factors", "narrow_product", WideFactors()),
    Example(
        "wide_factors_dotted",
        "narrow_product",
        DotProduct("y", "k.i"),
        (WideFactors(), Tile("y", "k", 2)),
    ),
    Example("digit_sums_dotted", "packed_product", DotProduct("parts", "byte"), (DigitSums(),)),
    Example("unpack_weights", "packed_product", UnpackWeights()),
    Example("unpack_weights_terms", "narrow_packed_product", UnpackWeights(2, 2)),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_before_and_after(example: Example, update_golden: bool) -> None:
    kernel = KERNELS[example.kernel]
    before, after = Schedule(example.before), Schedule((*example.before, example.step))
    printed = [format_loops(lower(kernel, schedule)) for schedule in (before, after)]
    text = f"{printed[0]}\n{example.step}\n\n{printed[1]}"
    check_golden(f"loops/{example.name}.txt", text, update_golden)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_step_keeps_the_kernels_meaning(example: Example) -> None:
    kernel = KERNELS[example.kernel]
    schedule = Schedule((*example.before, example.step))
    verify_loops(lower(kernel, schedule))
    inputs = inputs_for(kernel)
    rounds = schedule.algorithm is Algorithm.ROUNDED_DATA
    meant = with_rounded_data(kernel) if rounds else kernel
    if isinstance(example.step, BlockAttention | UnpackWeights) and example.step.terms > 1:
        meant = apply_schedule(kernel, schedule).kernel  # of rounded weights
    assert_close(run_loops(kernel, schedule, inputs), evaluate_kernel(meant, inputs))


@pytest.mark.parametrize("m", [2, 4])
def test_winograd_keeps_the_kernels_meaning(m: int) -> None:
    kernel = KERNELS["conv"]
    schedule = Schedule((Winograd(m), *packed_filter(m)))
    verify_loops(lower(kernel, schedule))
    inputs = inputs_for(kernel)
    assert_close(run_loops(kernel, schedule, inputs), evaluate_kernel(kernel, inputs))


def test_the_docstring_of_pack_layout() -> None:
    step = PackLayout("w", ((0, 8),), (0, 2, 3, 4, 1))
    assert step.layout.shape((64, 32, 3, 3)) == (8, 32, 3, 3, 8)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A step that does not fit, and the reason that the error gives."""

    kernel: str
    step: Step
    reason: str
    before: tuple[Step, ...] = ()


REFUSALS = [
    Refusal("row_sum19", Inline("s"), "a reduction cannot be inlined"),
    Refusal("plane", Inline("y"), "the output stage cannot be inlined"),
    Refusal("plane", MergeAxes("j", "i"), "j and i are not adjacent axes of y"),
    Refusal(
        "plane",
        MergeAxes("i", "j"),
        "axes are merged before all other steps",
        (Tile("y", "i", 2),),
    ),
    Refusal("add_broadcast", MergeAxes("i1", "i2"), "relu reads in1 not along i1_i2"),
    Refusal(
        "windows",
        SeparateWindow("y", "j", "rows"),
        "windows are separated before other steps touch the stage",
        (Tile("y", "i", 2),),
    ),
    Refusal("window", SeparateWindow("y", "i", "rows"), "the windows of y have no part across i"),
    Refusal("windows", SeparateWindow("y", "n", "rows"), "y does not move along n in one way"),
    Refusal("plane", FlattenAxes("j", "i"), "j and i are not adjacent axes of y"),
    Refusal("window", FlattenAxes("i", "k"), "window computes more than one thing, or sums"),
    Refusal(
        "plane",
        FlattenAxes("i", "j"),
        "axes are flattened before all other steps",
        (Tile("y", "i", 2),),
    ),
    Refusal("plane", Im2col("i", "j"), "y reads no vectors of terms of in0"),
    Refusal(
        "conv",
        Im2col("oh", "ow"),
        "windows are gathered before all other steps",
        (Tile("relu", "oh", 2),),
    ),
    Refusal("plane", SplitAxis("j", 2), "2 does not divide j of extent 5"),
    Refusal("plane", SplitAxis("k", 2), "k is no axis of y"),
    Refusal(
        "plane",
        SplitAxis("i", 2),
        "axes are split before all other steps",
        (Tile("y", "j", 2),),
    ),
    Refusal(
        "row_sum19",
        CacheWrite("s", "result"),
        "the cache must be made before other steps touch the stage",
        (Tile("s", "i", 2),),
    ),
    Refusal("row_sum19", CacheWrite("s", "in0"), "there is a stage or an input 'in0' already"),
    Refusal("row_sum19", CacheWrite("s", "s"), "there is a stage or an input 's' already"),
    Refusal(
        "turned",
        CacheRead("y", "in0", "rows", ("j", "i")),
        "the cache must be made before other steps touch the stage",
        (Tile("y", "i", 2),),
    ),
    Refusal(
        "turned", CacheRead("y", "in0", "rows", ("j",)), "('j',) is no permutation of the axes of y"
    ),
    Refusal(
        "turned",
        CacheRead("y", "in2", "rows", ("j", "i")),
        "no part of y can read in2 on its own",
    ),
    Refusal(
        "row_sum19",
        CacheRead("s", "in0", "rows", ("i",)),
        "s reads in0 along a reduce axis",
    ),
    Refusal(
        "running_maximum",
        CacheRead("y", "in0", "rows", ("i",)),
        "y reads in0 along a reduce axis",
    ),
    Refusal(
        "plane_sum",
        MergeReduceAxes("s", "m", "k"),
        "m and k are not adjacent reduce axes of s",
    ),
    Refusal("column_sum", MergeReduceAxes("s", "k", "m"), "s reads in0 not along k_m"),
    Refusal("scaled", Hoist("y", "k", "t"), "k is no axis of y"),
    Refusal("scaled", Hoist("y", "i", "t"), "no part of y is computed without i"),
    Refusal(
        "scaled",
        Hoist("y", "j", "t"),
        "parts are hoisted before other steps touch the stage",
        (Tile("y", "i", 2),),
    ),
    Refusal("row_sum19", Scan("s"), "s is no running reduction"),
    Refusal(
        "running_sum",
        Scan("y"),
        "a running reduction must be walked before other steps touch the stage",
        (Unroll("y", "i"),),
    ),
    Refusal("running_sum", Scatter("y"), "y is no scatter"),
    Refusal(
        "scattered",
        Scatter("scatter"),
        "a scatter must be walked before other steps touch the kernel",
        (Unroll("scatter", "i0"),),
    ),
    Refusal("row_sum19", SplitReduction("s", "i", 8), "i is no reduce axis of s"),
    Refusal("row_sum19", SplitReduction("s", "k", 0), "there must be at least 1 lane"),
    Refusal("row_sum19", SplitReduction("s", "k", 32), "extent 19 is below 32 lanes"),
    Refusal(
        "row_sum19",
        SplitReduction("s", "k", 8),
        "a reduction must be split before other steps touch the stage",
        (Unroll("s", "i"),),
    ),
    Refusal("vector8", Tile("y", "z", 4), "stage y has no loop 'z' (it has: i)"),
    Refusal("vector8", Tile("t", "i", 4), "kernel vector has no stage 't'"),
    Refusal(
        "plane",
        Tile("y", "f", 4),
        "a fused loop cannot be tiled: tile its parts, then fuse",
        (Fuse("y", ("i", "j"), "f"),),
    ),
    Refusal("vector8", Tile("y", "i", 0), "the factor must be at least 1"),
    Refusal("vector8", Tile("y", "i", 4, "wrap"), "unknown tail 'wrap' (peel, shift, mask or pad)"),
    *(
        Refusal(
            "row_sum19",
            Tile("s", "k", 4, tail),
            "a reduce axis can only be peeled: its tiles are summed up",
        )
        for tail in ("shift", "mask")
    ),
    Refusal("plane", Fuse("y", ("j", "i"), "f"), "loops ('j', 'i') are not adjacent in ('i', 'j')"),
    Refusal("plane", Fuse("y", (), "f"), "there must be loops to fuse"),
    Refusal("plane", Fuse("y", ("i", "j"), "j"), "stage y has or had a loop called j"),
    Refusal(
        "plane",
        Tile("y", "i.o", 2),
        "stage y has or had a loop called i.o.o or i.o.i",
        (Fuse("y", ("j",), "i.o.i"), Tile("y", "i", 2)),
    ),
    Refusal("row_sum19", Fuse("s", ("i", "k"), "f"), "reduce axes cannot be fused"),
    Refusal("plane", Reorder("y", ("i",)), "('i',) is no permutation of the loops ('i', 'j')"),
    Refusal(
        "row_sum19", Vectorize("s", "k"), "a reduce axis cannot be vectorised (see SplitReduction)"
    ),
    Refusal(
        "plane", Vectorize("y", "j"), "the stage is vectorised already", (Vectorize("y", "i"),)
    ),
    Refusal("plane", Unroll("y", "k"), "stage y has no loop 'k' (it has: i, j)"),
    Refusal(
        "plane",
        Parallelize("y", "j"),
        "only the outermost loop over an output axis runs in parallel",
    ),
    Refusal(
        "row_sum19",
        Parallelize("s", "k"),
        "only the outermost loop over an output axis runs in parallel",
        (Reorder("s", ("k", "i")),),
    ),
    Refusal("plane", Parallelize("y", "i", 0), "each thread must get at least 1 chunk"),
    Refusal(
        "plane",
        Partition("y", "i", -1),
        "the number of iterations that stand alone cannot be negative",
    ),
    Refusal("plane", Partition("y", "k"), "stage y has no loop 'k' (it has: i, j)"),
    Refusal("padded", ComputeAt("y", "pad", "i"), "y does not come before pad"),
    Refusal("padded", ComputeAt("pad", "y", "j"), "stage y has no loop 'j' (it has: i)"),
    Refusal(
        "window",
        ComputeAt("t", "y", "i", "tile"),
        "unknown scope 'tile' (register, stack or workspace)",
    ),
    Refusal(
        "window",
        ComputeAt("t", "y", "i"),
        "the lanes of Vectorize('y', 'i') share it",
        (Vectorize("y", "i"),),
    ),
    Refusal("filter", PackLayout("in1", (), (0, 1)), "the kernel has no input 'in1'"),
    Refusal(
        "plane",
        PackLayout("in0", (), (1, 0)),
        "in0 is no constant: its layout is not ours to choose",
    ),
    Refusal("filter", PackLayout("in0", ((2, 4),), (0, 1, 2)), "in0 has 2 dimensions"),
    Refusal(
        "filter",
        PackLayout("in0", ((0, 4),), (0, 1)),
        "(0, 1) is no permutation of the split dimensions",
    ),
    Refusal("filter", PackLayout("in0", ((0, 0),), (0, 1, 2)), "the factors must be at least 1"),
    Refusal(
        "filter",
        PackLayout("in0", (), (0, 1), 2),
        "winograd=2 does not fit: there is no Winograd step",
    ),
    Refusal(
        "conv",
        PackLayout("in1", (), (0, 1, 2, 3)),
        "winograd=0 does not fit: there is Winograd(m=2)",
        (Winograd(2), *packed_filter(2)),
    ),
    Refusal(
        "conv",
        *packed_filter(4),
        "winograd=4 does not fit: there is Winograd(m=2)",
        (Winograd(2), *packed_filter(2)),
    ),
    Refusal(
        "weights",
        PackLayout("in0", (), (0,)),
        "axes of in0 are merged: it cannot be packed",
        (MergeAxes("i", "j"),),
    ),
    Refusal("window", PackStage("y", (), (0,)), "the layout of the output is not ours to choose"),
    Refusal("window", PackStage("t", ((1, 4),), (0, 1)), "t has 1 axes"),
    Refusal("window", PackStage("t", ((0, 0),), (0, 1)), "the factors must be at least 1"),
    Refusal(
        "window",
        PackStage("t", ((0, 4),), (0,)),
        "(0,) is no permutation of the split axes",
    ),
    Refusal(
        "window",
        PackStage("t", ((0, 4),), (0, 1)),
        "a stage is packed before other steps touch it",
        (Tile("t", "i", 2),),
    ),
    Refusal(
        "row_sum19",
        CopyOperand("s", "in0", "t"),
        "an operand is copied before other steps touch the stage that reads it",
        (Tile("s", "i", 2),),
    ),
    Refusal(
        "filter",
        CopyOperand("y", "in0", "t"),
        "in0 is a constant: PackLayout arranges it for nothing",
    ),
    Refusal("window", CopyOperand("y", "in0", "copy"), "y does not read in0"),
    Refusal("narrow_product", DotProduct("y", "j"), "j is not the innermost reduce axis of y"),
    Refusal(
        "row_sum16", DotProduct("s", "k"), "the terms of s are no products of narrower factors"
    ),
    Refusal("windows", DotProduct("y", "m"), "y is no sum in the type of its terms"),
    Refusal(
        "narrow_product",
        DotProduct("y", "k"),
        "k is a loop of another kind already",
        (Unroll("y", "k"),),
    ),
    Refusal(
        "tile_product",
        MatrixTiles("y", *TILED_LOOPS),
        "i.i, k.i.o, j.i, k.i.i are not the innermost loops of y",
    ),
    Refusal(
        "tile_product",
        MatrixTiles("y", "k.i.o", "i.i", "j.i", "k.i.i"),
        "rows and lanes are axes of the result, steps and terms of the sum",
        (*TO_TILES[:5], Reorder("y", ("k.o", "i.o", "j.o", "k.i.o", "i.i", "j.i", "k.i.i"))),
    ),
    Refusal(
        "tile_product",
        MatrixTiles("y", *TILED_LOOPS),
        "the loop i.o over tiles is not unrolled",
        TO_TILES[:-2],
    ),
    Refusal(
        "tile_product",
        MatrixTiles("y", "i", "k.o", "j", "k.i"),
        "no loop of the sum encloses those that tiles run over",
        (Tile("y", "k", 4), Reorder("y", ("i", "k.o", "j", "k.i"))),
    ),
    Refusal("tile_product", Alternate("y", "k", "i"), "k is no part of one output axis"),
    Refusal("tile_product", Alternate("y", "j", "k"), "k is no whole output axis"),
    Refusal("tile_product", Alternate("y", "i", "j"), "the loop i is not inside of j"),
    Refusal(
        "tile_product", Alternate("y", "j", "i"), "the loop j is not serial", (Unroll("y", "j"),)
    ),
    Refusal("vector8", Prefetch("in1", 64), "the kernel has no input 'in1'"),
    Refusal("vector8", Prefetch("in0", 0), "the prefetch distance must be at least 1 element"),
    Refusal("vector8", Prefetch("in0", 64, "x"), "kernel vector has no stage 'x'"),
    Refusal(
        "turned",
        Prefetch("in0", 64, "y"),
        "y is no copy of in0",
        (CacheRead("y", "in0", "rows", ("j", "i")),),
    ),
    Refusal(
        "turned",
        Prefetch("in0", 64, "rows"),
        "rows is not computed in a loop of another stage",
        (CacheRead("y", "in0", "rows", ("j", "i")),),
    ),
    Refusal(
        "matmul",
        WideFactors(),
        "factors are made wide of products of bytes, one of each a constant",
    ),
    Refusal(
        "narrow_product",
        WideFactors(),
        "factors are made wide before all other steps",
        (Tile("y", "i", 2),),
    ),
    Refusal("matmul", DigitSums(), "split-integer dot products need a product with packed weights"),
    Refusal(
        "packed_product",
        DigitSums(),
        "the algorithm is chosen before all other steps",
        (Tile("product", "n", 2),),
    ),
    Refusal(
        "matmul",
        UnpackWeights(),
        "weights are unpacked of a product that has them packed in words",
    ),
    Refusal(
        "packed_product",
        UnpackWeights(),
        "weights are unpacked before all other steps",
        (Tile("product", "n", 2),),
    ),
    Refusal(
        "packed_product",
        UnpackWeights(2, 2),
        "products of 2 terms need data of a narrow type",
    ),
    Refusal(
        "narrow_packed_product",
        UnpackWeights(2, 3),
        "products of 3 terms in 2 lanes do not fit words of 8 weights",
    ),
    Refusal("matmul", Winograd(2), "Winograd needs a blocked 3x3 convolution of stride 1"),
    Refusal("conv", Winograd(3), "no Winograd transform F(3, 3)"),
    Refusal("conv", Winograd(2), "the filter needs PackLayout('in1', ..., winograd=2)"),
    Refusal("matmul", BlockAttention(4, 2), "matmul_add_relu is no attention of f32 operands"),
    Refusal("attention", BlockAttention(6, 2), "no blocks of 6 keys in groups of 2"),
    Refusal(
        "attention",
        BlockAttention(4, 2, terms=2),
        "products of 2 terms need operands of one narrow type",
    ),
    Refusal(
        "narrow_attention",
        BlockAttention(5, 2, terms=2),
        "5 keys or 4 features are no whole steps",
    ),
    Refusal(
        "shared_part",
        ComputeAlong("t", "u", "j"),
        "u is not computed in a loop of another stage",
    ),
    Refusal("shared_part", ComputeAlong("u", "t", "j"), "u does not come before t"),
    Refusal("shared_part", ComputeAlong("t", "z", "i"), "z lacks an axis of t"),
    Refusal(
        "conv",
        Winograd(2),
        "the algorithm is chosen before all other steps",
        (Tile("relu", "ow", 2),),
    ),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda item: type(item.step).__name__)
def test_a_step_that_does_not_fit_is_refused(refusal: Refusal) -> None:
    schedule = Schedule((*refusal.before, refusal.step))
    lower(KERNELS[refusal.kernel], Schedule(refusal.before))
    with pytest.raises(ScheduleError) as caught:
        lower(KERNELS[refusal.kernel], schedule)
    assert caught.value.message == f"{refusal.step}: {refusal.reason}"
    assert caught.value.program == str(schedule)


def test_every_step_has_an_example_and_a_refusal() -> None:
    shown = {type(example.step) for example in EXAMPLES} | {Winograd}
    assert shown == set(STEPS.values())
    assert {type(refusal.step) for refusal in REFUSALS} == set(STEPS.values())


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((Reorder("y", ("j", "i")), Parallelize("y", "j")), "loop j is walked in order"),
        ((Tile("y", "j", 4), Reorder("y", ("i", "j.i", "j.o"))), r"j\.o is inside of j\.i"),
        ((Tile("y", "j", 4, "shift"),), "tiles of the scanned axis j can only be peeled"),
        ((Vectorize("y", "i"),), "the scanned axis j is inside of the vector i"),
        ((Fuse("y", ("i", "j"), "f"),), "f fuses the scanned axis j with others"),
    ],
)
def test_an_axis_that_is_not_walked_in_order_cannot_be_scanned(
    steps: tuple[Step, ...], reason: str
) -> None:
    with pytest.raises(ScheduleError, match=reason):
        lower(KERNELS["running_sum"], Schedule((Scan("y"), *steps)))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (
            (Reorder("scatter", ("i1", "i0", "i2", "u")), Parallelize("scatter", "i1")),
            "loop i1 is walked in order",
        ),
        ((Fuse("scatter", ("i0", "i1"), "f"),), "f fuses loops over updates, or where they go"),
        ((Tile("scatter", "i2", 2, "shift"),), "the tiles of a scatter can only be peeled"),
    ],
)
def test_updates_of_one_place_are_neither_shared_nor_repeated(
    steps: tuple[Step, ...], reason: str
) -> None:
    with pytest.raises(ScheduleError, match=reason):
        lower(KERNELS["scattered_sum"], Schedule((Scatter("scatter"), *steps)))


def test_a_tile_cannot_be_cut_again_where_it_has_a_rest() -> None:
    steps = (Tile("y", "i", 4), Tile("y", "i.o", 2))
    with pytest.raises(ScheduleError, match=r"i\.o is tiled again: 4 does not divide 17"):
        lower(KERNELS["vector17"], Schedule(steps))


def test_a_tile_is_not_shifted_where_elements_would_be_summed_twice() -> None:
    tile = Tile("y", "i", 5, "shift")
    kernel = KERNELS["window"]
    lower(kernel, Schedule((tile, Reorder("y", ("i.o", "k", "i.i")))))
    for step in (Reorder("y", ("k", "i.o", "i.i")), Parallelize("y", "i.o")):
        with pytest.raises(ScheduleError, match=r"loop i\.o of y is shifted where two"):
            lower(kernel, Schedule((tile, step)))
    whole = Tile("y", "i", 4, "shift")
    lower(kernel, Schedule((whole, Reorder("y", ("k", "i.o", "i.i")))))


@pytest.mark.parametrize(
    "steps",
    [
        (ComputeAt("t", "y", "i"), Tile("y", "i", 4)),
        (ComputeAt("t", "y", "i"), Fuse("y", ("i",), "f")),
        (ComputeAt("t", "y", "i"), Vectorize("y", "i")),
        (ComputeAt("t", "y", "i"), Inline("t")),
    ],
    ids=str,
)
def test_what_later_steps_take_from_a_stage_that_is_computed_inside(
    steps: tuple[Step, ...],
) -> None:
    with pytest.raises(ScheduleError) as caught:
        lower(KERNELS["window"], Schedule(steps))
    assert caught.value.message.startswith(f"{steps[0]}: ")


def test_the_output_cannot_be_computed_inside_another_stage() -> None:
    with pytest.raises(ScheduleError, match="y does not come before"):
        lower(KERNELS["window"], Schedule((ComputeAt("y", "t", "i"),)))
