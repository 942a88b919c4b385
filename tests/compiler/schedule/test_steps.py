"""Each schedule step: the loops before and after (golden files), its meaning, and its refusals.

The examples are those of the steps' docstrings.
"""

from __future__ import annotations

import ast
from typing import Any

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
    UnpackWeights,
    Winograd,
)
from tunefarm.compiler.schedule.steps.loop_kinds import (
    Parallelize,
    Vectorize,
)
from tunefarm.compiler.schedule.steps.packing import PackLayout
from tunefarm.compiler.schedule.steps.placement import ComputeAt, Inline
from tunefarm.compiler.schedule.steps.step import STEPS, Step
from tunefarm.compiler.schedule.steps.tiles import Fuse, Reorder, Tile
from tunefarm.compiler.schedule.steps.walks import Scan, Scatter
from tunefarm.compiler.types.numerics import Algorithm

KERNELS: dict[str, FusedKernel] = {
    **{name: make() for name, make in STEP_KERNELS.items()},
    **tiny_kernels(),
}


def steps_of(text: str) -> tuple[Step, ...]:
    """The steps of a text: `Tile y i 4; Reorder y ('j','i.o','i.i')`."""
    named = (line.split() for line in text.split("; "))
    return tuple(STEPS[name](*map(_argument, arguments)) for name, *arguments in named)


def _argument(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text


class Example:
    """The last step of some, applied to a kernel after those before it."""

    def __init__(self, name: str, kernel: str, steps: str) -> None:
        self.name, self.kernel = name, kernel
        *self.before, self.step = steps_of(steps)


def packed_filter(m: int) -> tuple[PackLayout]:
    """The filter of "conv" as Winograd wants it, in no particular order of dimensions."""
    return (PackLayout("in1", (), (0, 1, 2, 3), winograd=m),)


TILED_LOOPS = ("i.i", "k.i.o", "j.i", "k.i.i")
TO_TILES = (
    "PackLayout in1 ((0,4),) (0,2,1); Tile y i 5; Tile y j 3; Tile y k 12; Tile y k.i 4; Reorder "
    "y ('k.o','i.o','j.o','i.i','k.i.o','j.i','k.i.i'); Unroll y i.o; Unroll y j.o"
)
"""Up to the loops of "tile_product" that matrix tiles run over."""

EXAMPLES = [
    Example(name, *schedule.split(": "))
    for name, schedule in {
        "inline": "padded: Inline pad",
        "merge_axes": "plane: MergeAxes i j",
        "flatten_axes": "turned: FlattenAxes i j",
        "im2col": "conv: Im2col oh ow",
        "im2col_of_strides": "conv_stride2: Im2col oh ow",
        "merge_reduce_axes": "plane_sum: MergeReduceAxes s k m",
        "split_axis": "doubled: SplitAxis i 2",
        "separate_window": "windows: SeparateWindow y j rows",
        "hoist": "scaled: Hoist y j t",
        "cache_write": "row_sum19: CacheWrite s result",
        "cache_read": "turned: CacheRead y in0 rows ('j','i')",
        "scan": "running_sum: Scan y",
        "scan_vectorised": "running_sum: Scan y; Tile y j 8; Vectorize y j.i",
        "scatter": "scattered: Scatter scatter",
        "scatter_lanes_in_turns": "scattered_sum: Scatter scatter; Reorder scatter "
        "('i0','i1','u','i2'); Vectorize scatter i2",
        "split_reduction": "row_sum19: SplitReduction s k 8",
        "split_reduction_masked": "row_sum19: SplitReduction s k 8 True",
        "split_reduction_without_tail": "row_sum16: SplitReduction s k 8",
        "split_reduction_again": "row_sum16: SplitReduction s k 8; SplitReduction s k.l 4",
        "block_attention": "attention: BlockAttention 5 2",
        "block_attention_online": "attention: BlockAttention 3 2 True",
        "block_attention_terms": "narrow_attention: BlockAttention 6 2 False 2",
        "compute_along": "shared_part: ComputeAt u z i; ComputeAlong t u j",
        "store_in_output": "shares: StoreInOutput e",
        "store_in_output_of_rows": "shares: Tile y j 4 pad; ComputeAt s y i; ComputeAt e y i; "
        "StoreInOutput e",
        "tile_peel": "vector17: Tile y i 4",
        "tile_shift": "vector17: Tile y i 4 shift",
        "tile_pad": "vector17: Tile y i 32 pad",
        "tile_mask": "vector17: Tile y i 4 mask",
        "tile_mask_vectorised": "vector17: Tile y i 4 mask; Vectorize y i.i",
        "compute_at_in_masked_tile": "window: Tile y i 3 mask; Tile t i 2 mask; ComputeAt t y i.o",
        "fuse": "plane: Fuse y ('i','j') f",
        "reorder": "plane: Reorder y ('j','i')",
        "vectorize": "vector8: Vectorize y i",
        "unroll": "vector8: Unroll y i",
        "parallelize": "vector9: Parallelize y i 2",
        "partition": "padded: Inline pad; Partition y i",
        "partition_cuts": "padded: Inline pad; Partition y i 0 0 (4,1,4,12)",
        "compute_at": "window: Tile y i 4; ComputeAt t y i.o",
        "compute_at_register": "row_sum19: CacheWrite s result; ComputeAt result s i register",
        "pack_layout": "filter: PackLayout in0 ((0,4),) (0,2,1)",
        "pack_stage": "window: PackStage t ((0,4),) (1,0)",
        "pack_stage_of_a_reduction": "grouped: PackStage s ((0,5),) (0,1)",
        "pack_stage_without_a_test": "filter: CacheWrite y t; PackLayout in0 ((0,4),) (0,2,1); "
        "PackStage t ((0,4),) (1,0)",
        "copy_operand": "row_sum19: CopyOperand s in0 t",
        "split_axis_of_groups": "grouped: SplitAxis i 4",
        "dot_product": "narrow_product: PackLayout in1 ((0,4),) (0,2,1); Tile y k 4; Reorder y "
        "('i','k.o','j','k.i'); Vectorize y j; DotProduct y k.i",
        "dot_product_with_a_tail": "narrow_product10: Tile y k 4; DotProduct y k.i",
        "matrix_tiles": f"tile_product: {TO_TILES}; MatrixTiles y i.i k.i.o j.i k.i.i",
        "matrix_tiles_in_groups": "tile_product: PackLayout in1 ((0,4),) (0,2,1); Tile y i 5; "
        "Tile y k 24; Tile y k.i 12; Tile y k.i.i 4; Reorder y "
        "('k.o','i.o','i.i','k.i.o','k.i.i.o','j','k.i.i.i'); Unroll y "
        "i.o; MatrixTiles y i.i k.i.i.o j k.i.i.i k.i.o",
        "alternate": "turned: Alternate y j i",
        "prefetch": "vector8: Vectorize y i; Prefetch in0 64",
        "prefetch_copy": "turned: CacheRead y in0 rows ('j','i'); ComputeAt rows y i; Prefetch "
        "in0 64 rows",
        "short_functions": "softmax_of_tanh: ShortFunctions",
        "digit_sums": "packed_product: DigitSums",
        "digit_sums_rounded": "packed_product: DigitSums 1",
        "wide_factors": "narrow_product: WideFactors",
        "wide_factors_dotted": "narrow_product: WideFactors; Tile y k 2; DotProduct y k.i",
        "digit_sums_dotted": "packed_product: DigitSums; DotProduct parts byte",
        "unpack_weights": "packed_product: UnpackWeights",
        "unpack_weights_terms": "narrow_packed_product: UnpackWeights 2 2",
    }.items()
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_before_and_after(example: Example, update_golden: bool) -> None:
    kernel = KERNELS[example.kernel]
    before, after = Schedule(tuple(example.before)), Schedule((*example.before, example.step))
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


class Refusal:
    """A step that does not fit behind others, and the reason that the error gives."""

    def __init__(self, kernel: str, steps: str, reason: str) -> None:
        self.kernel, self.reason = kernel, reason
        *self.before, self.step = steps_of(steps)


REFUSALS = [
    Refusal(kernel, *refused.split(": ", 1))
    for kernel, refusals in {
        "row_sum19": (
            "Inline s: a reduction cannot be inlined",
            "Tile s i 2; CacheWrite s result: the cache must be made before other steps touch "
            "the stage",
            "CacheWrite s in0: there is a stage or an input 'in0' already",
            "CacheWrite s s: there is a stage or an input 's' already",
            "CacheRead s in0 rows ('i',): s reads in0 along a reduce axis",
            "Scan s: s is no running reduction",
            "SplitReduction s i 8: i is no reduce axis of s",
            "SplitReduction s k 0: there must be at least 1 lane",
            "SplitReduction s k 32: extent 19 is below 32 lanes",
            "Unroll s i; SplitReduction s k 8: a reduction must be split before other steps "
            "touch the stage",
            "Tile s k 4 shift: a reduce axis can only be peeled: its tiles are summed up",
            "Tile s k 4 mask: a reduce axis can only be peeled: its tiles are summed up",
            "Fuse s ('i','k') f: reduce axes cannot be fused",
            "Vectorize s k: a reduce axis cannot be vectorised (see SplitReduction)",
            "Reorder s ('k','i'); Parallelize s k: only the outermost loop over an output axis "
            "runs in parallel",
            "Tile s i 2; CopyOperand s in0 t: an operand is copied before other steps touch the "
            "stage that reads it",
        ),
        "plane": (
            "Inline y: the output stage cannot be inlined",
            "MergeAxes j i: j and i are not adjacent axes of y",
            "Tile y i 2; MergeAxes i j: axes are merged before all other steps",
            "FlattenAxes j i: j and i are not adjacent axes of y",
            "Tile y i 2; FlattenAxes i j: axes are flattened before all other steps",
            "Im2col i j: y reads no vectors of terms of in0",
            "SplitAxis j 2: 2 does not divide j of extent 5",
            "SplitAxis k 2: k is no axis of y",
            "Tile y j 2; SplitAxis i 2: axes are split before all other steps",
            "Fuse y ('i','j') f; Tile y f 4: a fused loop cannot be tiled: tile its parts, then "
            "fuse",
            "Fuse y ('j','i') f: loops ('j', 'i') are not adjacent in ('i', 'j')",
            "Fuse y () f: there must be loops to fuse",
            "Fuse y ('i','j') j: stage y has or had a loop called j",
            "Fuse y ('j',) i.o.i; Tile y i 2; Tile y i.o 2: stage y has or had a loop called "
            "i.o.o or i.o.i",
            "Reorder y ('i',): ('i',) is no permutation of the loops ('i', 'j')",
            "Vectorize y i; Vectorize y j: the stage is vectorised already",
            "Unroll y k: stage y has no loop 'k' (it has: i, j)",
            "Parallelize y j: only the outermost loop over an output axis runs in parallel",
            "Parallelize y i 0: each thread must get at least 1 chunk",
            "Partition y i -1: the number of iterations that stand alone cannot be negative",
            "Partition y k: stage y has no loop 'k' (it has: i, j)",
            "PackLayout in0 () (1,0): in0 is no constant: its layout is not ours to choose",
        ),
        "add_broadcast": ("MergeAxes i1 i2: relu reads in1 not along i1_i2",),
        "windows": (
            "Tile y i 2; SeparateWindow y j rows: windows are separated before other steps touch "
            "the stage",
            "SeparateWindow y n rows: y does not move along n in one way",
            "DotProduct y m: y is no sum in the type of its terms",
        ),
        "window": (
            "SeparateWindow y i rows: the windows of y have no part across i",
            "FlattenAxes i k: window computes more than one thing, or sums",
            "ComputeAt t y i tile: unknown scope 'tile' (register, stack or workspace)",
            "Vectorize y i; ComputeAt t y i: the lanes of Vectorize('y', 'i') share it",
            "PackStage y () (0,): the layout of the output is not ours to choose",
            "PackStage t ((1,4),) (0,1): t has 1 axes",
            "PackStage t ((0,0),) (0,1): the factors must be at least 1",
            "PackStage t ((0,4),) (0,): (0,) is no permutation of the split axes",
            "Tile t i 2; PackStage t ((0,4),) (0,1): a stage is packed before other steps touch it",
            "CopyOperand y in0 copy: y does not read in0",
        ),
        "conv": (
            "Tile relu oh 2; Im2col oh ow: windows are gathered before all other steps",
            "Winograd 2; PackLayout in1 () (0,1,2,3) 2; PackLayout in1 () (0,1,2,3): winograd=0 "
            "does not fit: there is Winograd(m=2)",
            "Winograd 2; PackLayout in1 () (0,1,2,3) 2; PackLayout in1 () (0,1,2,3) 4: "
            "winograd=4 does not fit: there is Winograd(m=2)",
            "Winograd 3: no Winograd transform F(3, 3)",
            "Winograd 2: the filter needs PackLayout('in1', ..., winograd=2)",
            "Tile relu ow 2; Winograd 2: the algorithm is chosen before all other steps",
        ),
        "turned": (
            "Tile y i 2; CacheRead y in0 rows ('j','i'): the cache must be made before other "
            "steps touch the stage",
            "CacheRead y in0 rows ('j',): ('j',) is no permutation of the axes of y",
            "CacheRead y in2 rows ('j','i'): no part of y can read in2 on its own",
            "CacheRead y in0 rows ('j','i'); Prefetch in0 64 y: y is no copy of in0",
            "CacheRead y in0 rows ('j','i'); Prefetch in0 64 rows: rows is not computed in a "
            "loop of another stage",
        ),
        "running_maximum": ("CacheRead y in0 rows ('i',): y reads in0 along a reduce axis",),
        "plane_sum": ("MergeReduceAxes s m k: m and k are not adjacent reduce axes of s",),
        "column_sum": ("MergeReduceAxes s k m: s reads in0 not along k_m",),
        "scaled": (
            "Hoist y k t: k is no axis of y",
            "Hoist y i t: no part of y is computed without i",
            "Tile y i 2; Hoist y j t: parts are hoisted before other steps touch the stage",
        ),
        "running_sum": (
            "Unroll y i; Scan y: a running reduction must be walked before other steps touch the "
            "stage",
            "Scatter y: y is no scatter",
        ),
        "scattered": (
            "Unroll scatter i0; Scatter scatter: a scatter must be walked before other steps "
            "touch the kernel",
        ),
        "vector8": (
            "Tile y z 4: stage y has no loop 'z' (it has: i)",
            "Tile t i 4: kernel vector has no stage 't'",
            "Tile y i 0: the factor must be at least 1",
            "Tile y i 4 wrap: unknown tail 'wrap' (peel, shift, mask or pad)",
            "Prefetch in1 64: the kernel has no input 'in1'",
            "Prefetch in0 0: the prefetch distance must be at least 1 element",
            "Prefetch in0 64 x: kernel vector has no stage 'x'",
            "ShortFunctions: no function of the kernel has a shorter form",
        ),
        "padded": (
            "ComputeAt y pad i: y does not come before pad",
            "ComputeAt pad y j: stage y has no loop 'j' (it has: i)",
        ),
        "filter": (
            "PackLayout in1 () (0,1): the kernel has no input 'in1'",
            "PackLayout in0 ((2,4),) (0,1,2): in0 has 2 dimensions",
            "PackLayout in0 ((0,4),) (0,1): (0, 1) is no permutation of the split dimensions",
            "PackLayout in0 ((0,0),) (0,1,2): the factors must be at least 1",
            "PackLayout in0 () (0,1) 2: winograd=2 does not fit: there is no Winograd step",
            "CopyOperand y in0 t: in0 is a constant: PackLayout arranges it for nothing",
        ),
        "weights": (
            "MergeAxes i j; PackLayout in0 () (0,): axes of in0 are merged: it cannot be packed",
        ),
        "narrow_product": (
            "DotProduct y j: j is not the innermost reduce axis of y",
            "Unroll y k; DotProduct y k: k is a loop of another kind already",
            "Tile y i 2; WideFactors: factors are made wide before all other steps",
        ),
        "softmax_of_tanh": (
            "Vectorize y j; ShortFunctions: functions are made short before all other steps",
        ),
        "row_sum16": ("DotProduct s k: the terms of s are no products of narrower factors",),
        "tile_product": (
            "MatrixTiles y i.i k.i.o j.i k.i.i: i.i, k.i.o, j.i, k.i.i are not the innermost "
            "loops of y",
            "PackLayout in1 ((0,4),) (0,2,1); Tile y i 5; Tile y j 3; Tile y k 12; Tile y k.i 4; "
            "Reorder y ('k.o','i.o','j.o','k.i.o','i.i','j.i','k.i.i'); MatrixTiles y k.i.o i.i "
            "j.i k.i.i: rows and lanes are axes of the result, steps and terms of the sum",
            "PackLayout in1 ((0,4),) (0,2,1); Tile y i 5; Tile y j 3; Tile y k 12; Tile y k.i 4; "
            "Reorder y ('k.o','i.o','j.o','i.i','k.i.o','j.i','k.i.i'); MatrixTiles y i.i k.i.o "
            "j.i k.i.i: the loop i.o over tiles is not unrolled",
            "Tile y k 4; Reorder y ('i','k.o','j','k.i'); MatrixTiles y i k.o j k.i: no loop of "
            "the sum encloses those that tiles run over",
            "Alternate y k i: k is no part of one output axis",
            "Alternate y j k: k is no whole output axis",
            "Alternate y i j: the loop i is not inside of j",
            "Unroll y j; Alternate y j i: the loop j is not serial",
        ),
        "matmul": (
            "WideFactors: factors are made wide of products of bytes, one of each a constant",
            "DigitSums: split-integer dot products need a product with packed weights",
            "UnpackWeights: weights are unpacked of a product that has them packed in words",
            "Winograd 2: Winograd needs a blocked 3x3 convolution of stride 1",
            "BlockAttention 4 2: matmul_add_relu is no attention of f32 operands",
        ),
        "packed_product": (
            "Tile product n 2; DigitSums: the algorithm is chosen before all other steps",
            "Tile product n 2; UnpackWeights: weights are unpacked before all other steps",
            "UnpackWeights 2 2: products of 2 terms need data of a narrow type",
        ),
        "narrow_packed_product": (
            "UnpackWeights 2 3: products of 3 terms in 2 lanes do not fit words of 8 weights",
        ),
        "attention": (
            "BlockAttention 6 2: no blocks of 6 keys in groups of 2",
            "BlockAttention 4 2 False 2: products of 2 terms need operands of one narrow type",
        ),
        "narrow_attention": (
            "BlockAttention 5 2 False 2: 5 keys or 4 features are no whole steps",
        ),
        "shared_part": (
            "ComputeAlong t u j: u is not computed in a loop of another stage",
            "ComputeAlong u t j: u does not come before t",
            "ComputeAlong t z i: z lacks an axis of t",
            "StoreInOutput t: the output has other elements, or reads more of t",
        ),
        "shares": (
            "ComputeAt s y i; StoreInOutput e: s is computed in other loops of the output",
            "Tile y j 4 shift; StoreInOutput e: shifted tiles of the output read what they have "
            "written",
        ),
    }.items()
    for refused in refusals
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda item: type(item.step).__name__)
def test_a_step_that_does_not_fit_is_refused(refusal: Refusal) -> None:
    schedule = Schedule((*refusal.before, refusal.step))
    lower(KERNELS[refusal.kernel], Schedule(tuple(refusal.before)))
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
