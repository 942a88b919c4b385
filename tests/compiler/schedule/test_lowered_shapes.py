"""The shape of every sketch's candidates against the loops that their schedules are lowered to."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.compiler.schedule.drawn_chains import chained_call, drawn_chain, drawn_products
from tests.compiler.schedule.narrow_kernels import narrowed
from tests.compiler.schedule.small_kernels import kernel_from
from tests.targets import target_named
from tunefarm.compiler.expr.nodes import Expr, Load, Select, integer
from tunefarm.compiler.expr.walk import rewrite
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel
from tunefarm.compiler.loops.ir import (
    Allocate,
    Dot,
    For,
    If,
    Let,
    LoopKind,
    Scope,
    Stmt,
    Store,
    TileDot,
    TileLoad,
    TileStore,
    TileZero,
    Update,
)
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.nest_shape import NestShape
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.sketches import (
    chain_context,
    matrix_tiles,
    parallel_choices,
    tiled_reduction,
)
from tunefarm.compiler.schedule.space import Candidate, Sketch
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.schedule.steps.tiles import Fuse
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType

TARGET = Target(
    "x86_64-unknown-linux-gnu", "x86-64-v3", ("avx2", "fma"), 32, 16, 32768, 524288, 33554432, 2
)
LITTLE_CACHE = replace(TARGET, l2_bytes=16 * 1024)
CANDIDATES = 10
TERMS = 4  # bytes that a step of a matrix tile sums

CONV = "layout=NCHWc pads=(1,1,1,1)"


def recurrence(kind: str, functions: int) -> str:
    names, values = repr(("tanh",) * functions), repr((0.0,) * functions)
    return f"kind={kind} activations={names} alphas={values} betas={values}".replace(", ", ",")


CASES = {
    "3x3": f"[1,2,9,11,8] const [40,16,3,3] const [40]; conv x0 x1 x2 {CONV}; relu v0",
    "3x3 without padding": "[1,2,9,11,8] const [24,16,3,3]; conv x0 x1 layout=NCHWc",
    "3x3 of a batch": f"[2,2,16,12,8] const [24,16,3,3]; conv x0 x1 {CONV}",
    "3x3 of even rows": f"[3,1,7,7,8] const [16,8,3,3]; conv x0 x1 {CONV}",
    "strided": f"[1,2,15,15,8] const [32,16,3,3]; conv x0 x1 {CONV} strides=(2,2)",
    "depthwise": f"[1,3,17,13,8] const [24,1,3,3]; conv x0 x1 {CONV} groups=24",
    "phases": "[1,2,7,11,8] const [16,24,4,4] const [24]; "
    f"conv_transpose x0 x1 x2 {CONV} strides=(2,2) shape=(14,22)",
    "phases without padding": "[2,2,7,11,8] const [16,16,2,2]; "
    "conv_transpose x0 x1 layout=NCHWc strides=(2,2) shape=(14,22); relu v0",
    "plain 3x3": "[1,5,9,21] const [6,5,3,3]; conv x0 x1 pads=(1,1,1,1)",
    "plain strided": "[2,3,9,43] const [6,3,3,3]; conv x0 x1 pads=(1,1,1,1) strides=(2,2)",
    "plain channels": "[1,5,9,21] const [40,5,3,3] const [40]; "
    "conv x0 x1 x2 pads=(1,1,1,1); relu v0",
    "plain groups": "[2,12,9,13] const [60,4,3,3]; conv x0 x1 groups=3 strides=(1,2)",
    "plain depthwise": "[2,12,9,43] const [12,1,3,3]; "
    "conv x0 x1 groups=12 pads=(1,1,1,1) strides=(2,2)",
    "1x1": "[1,8,9,11,8] const [40,64,1,1] const [40]; conv x0 x1 x2 layout=NCHWc; relu v0",
    "product": "[97,64] [64,43]; matmul x0 x1",
    "products": "[2,7,19] [2,19,48]; matmul x0 x1",
    "product with a turned operand": "[2,17,19] [2,43,19]; matmul x0 x1 transpose_b=True",
    "narrow product": "[13,19] [19,5]; matmul x0 x1",
    "vector": "[1,640] const [640,44]; matmul x0 x1",
    "pool": "[1,3,13,37]; max_pool x0 kernel=(3,3) strides=(2,2) shape=(6,18)",
    "padded pool": "[2,3,12,40]; max_pool x0 kernel=(3,3) pads=(1,1,1,1) shape=(12,40)",
    "pool of a plane": "[1,1,9,37]; max_pool x0 kernel=(2,2) pads=(1,1,1,1) shape=(10,38)",
    "blocked pool": "[1,3,13,13,8]; "
    "max_pool x0 kernel=(3,3) pads=(1,1,1,1) shape=(13,13) layout=NCHWc",
    "softmax": "[97,193]; softmax x0 axis=1",
    "softmax across": "[5,30,43]; softmax x0 axis=1",
    "long softmax": "[6,40000]; softmax x0 axis=1",
    "layer norm": "[5,97] const [97] const [97]; layer_norm x0 x1 x2 axis=1",
    "sums": "[31,7,130]; reduce_sum x0 axes=(2,) keepdims=False",
    "sums across": "[31,7,130]; reduce_sum x0 axes=(1,) keepdims=False; relu v0",
    "pad": "[5,7]; pad x0 pads=(1,2,3,9) value=2.0",
    "concat of columns": "[9,20] [9,13]; concat x0 x1 axis=1",
    "concat of rows": "[9,33] [11,33]; concat x0 x1 axis=0",
    "add": "[7,13,21] [21]; add x0 x1",
    "few": "[3] [3]; add x0 x1",
    "transpose": "[50,70]; transpose x0 perm=(1,0)",
    "attention": "[2,3,37,19] [2,3,150,19] [2,3,150,48] [37,150]; attention x0 x1 x2 x3 scale=0.3",
    "attention of few columns": "[3,5,8] [3,97,8] [3,97,6]; attention x0 x1 x2",
    "attention of odd columns": "[3,50,24] [3,128,24] [3,128,43]; attention x0 x1 x2",
    "recurrence": f"[2,6,13,4,24] const [2,24,4,24]; recurrence x0 x1 {recurrence('LSTM', 3)}",
    "recurrence of rounded states": "[2,6,3,4,24] const i8[2,24,4,24] const [2,4,24] "
    f"const i32[2,4,24]; recurrence x0 x1 _ _ _ _ _ _ _ x2 _ x3 {recurrence('LSTM', 3)}",
    "recurrence of odd units": "[1,3,5,3,43] const [1,43,2,43] const [1,43,43]; "
    f"recurrence x0 x1 x2 {recurrence('GRU', 2)}",
    "recurrence of few units": "[1,3,2,1,5] const [1,5,1,5]; "
    f"recurrence x0 x1 {recurrence('RNN', 1)}",
    "transposes": "[3,41,30]; transpose x0 perm=(0,2,1)",
}
LITTLE = ("1x1", "product", "padded pool", "long softmax")
KERNELS = {
    name: (kernel_from(text), LITTLE_CACHE if name in LITTLE else TARGET)
    for name, text in CASES.items()
}
TILES, VECTORS = (target_named(name) for name in ("sapphirerapids", "neoverse-v1"))
NARROW = "bf16[2,3,61,40] bf16[2,1,77,40] bf16[2,3,77,80]"
for name, text, target in (
    ("blocks in tiles", f"i32[2,2,5,23,16] const i32[80,32,3,3]; conv x0 x1 {CONV}", TILES),
    ("product in tiles", "i32[61,192] const i32[192,75]; matmul x0 x1", TILES),
    ("long product in tiles", "i32[1700,1024] const i32[1024,75]; matmul x0 x1", TILES),
    ("blocks in vectors", f"i32[2,2,5,23,4] const i32[20,8,3,3]; conv x0 x1 {CONV}", VECTORS),
    ("product in vectors", "i32[29,40] const i32[40,23]; matmul x0 x1", VECTORS),
):
    KERNELS[name] = (narrowed(kernel_from(text), DType.U8, DType.I8), target)
ATTENTION = "accumulator=f32 scale=0.3"
for name, text in (
    ("attention in tiles", f"; attention x0 x1 x2 {ATTENTION}"),
    ("masked attention in tiles", f" [61,77]; attention x0 x1 x2 x3 {ATTENTION}"),
):
    KERNELS[name] = (kernel_from(NARROW + text), TILES)
for form in (("dw", "pw"), ("pw", "dw", "pw"), ("pw", "max")):
    drawn = chained_call(*drawn_chain(random.Random(0), 8, form))
    KERNELS[f"chain of {' '.join(form)}"] = (drawn.kernel, TARGET)
KERNELS["chain of products"] = (chained_call(*drawn_products(random.Random(0))).kernel, TARGET)
WINOGRAD_AXES = {
    **dict.fromkeys(("x", "y"), "window"),
    **dict.fromkeys(("n", "oh", "t"), "tile"),
    **dict.fromkeys(("icb", "ici"), "input"),
    "ocb": "output",
    "oci": "lanes",
}


ATTENTION_AXES = {"nb": "n"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """A statement that computes a vector, with the loops round it."""

    names: Mapping[str, str]  # what the shape calls an axis, where it says otherwise
    loops: tuple[For, ...] = ()  # outermost first
    inside: tuple[
        Stmt, ...
    ] = ()  # loops that stay loops, and allocations: what it shares a body in

    def axis_of(self, loop: For) -> str:
        """The axis that a loop is a part of: `oh` of `oh.o.i`."""
        axis = loop.variable.split(".")[0]
        return self.names.get(axis, axis)

    @property
    def turning(self) -> list[For]:
        """The loops that are neither unrolled nor vectorised."""
        return [s for s in self.loops if s.kind in (LoopKind.SERIAL, LoopKind.PARALLEL)]

    @property
    def body(self) -> dict[str, int]:
        """Points by axis in the unrolled body, where there are several."""
        points: dict[str, int] = {}
        for loop in self.loops:
            if loop.kind in (LoopKind.UNROLLED, LoopKind.VECTORISED):
                axis = self.axis_of(loop)
                points[axis] = points.get(axis, 1) * turns_of(loop)
        return {axis: count for axis, count in points.items() if axis != "lanes"}

    @property
    def points(self) -> int:
        return math.prod(self.body.values())

    @property
    def held(self) -> int:
        """Points of a product of matrix tiles, if there are any: rows, lanes and steps of the sum,
        or terms where the shape counts keys."""
        tiles = [s.memory for s in self.inside if isinstance(s, Allocate) and s.scope is Scope.TILE]
        if not tiles:
            return 1
        sums, left, _ = tiles
        terms = 1 if self.names else TERMS // left.dtype.bytes
        return math.prod(sums.shape[-2:]) * left.shape[-1] // terms

    @property
    def operations(self) -> int:
        """Vector operations in the body."""
        return math.prod(turns_of(s) for s in self.loops if s.kind is LoopKind.UNROLLED)

    @property
    def rounds(self) -> int:
        return math.prod(map(turns_of, self.turning))


def turns_of(loop: For) -> int:
    return loop.stop - loop.start


def leaves(body: tuple[Stmt, ...], kind: type[Stmt], buffer: str, outside: Leaf) -> Iterator[Leaf]:
    """The statements of this kind that write the buffer."""
    for statement in body:
        if isinstance(statement, Store | Update | Dot | TileZero | TileLoad | TileDot | TileStore):
            if type(statement) is kind and statement.buffer == buffer:
                yield outside
            continue
        inside = outside
        if isinstance(statement, For):
            kept = () if statement.kind is LoopKind.UNROLLED else (statement,)
            kept = () if statement.kind is LoopKind.VECTORISED else kept
            inside = replace(
                outside, loops=(*outside.loops, statement), inside=(*outside.inside, *kept)
            )
        elif isinstance(statement, Allocate):
            inside = replace(outside, inside=(*outside.inside, statement))
        assert isinstance(statement, For | Let | If | Allocate)
        yield from leaves(statement.body, kind, buffer, inside)


def undecided(kernel: FusedKernel) -> FusedKernel:
    """The kernel with padding that depends on an input: lowering cannot leave any of it out."""
    flag = Buffer("flag", DType.BOOL, (1,))
    condition = Load(DType.BOOL, flag.name, (integer(0),))

    def rule(node: Expr) -> Expr:
        return replace(node, condition=condition) if isinstance(node, Select) else node

    stages = tuple(
        replace(stage, body=rewrite(stage.body, rule)) if stage.name == "pad" else stage
        for stage in kernel.stages
    )
    return (
        kernel
        if stages == kernel.stages
        else replace(kernel, inputs=(*kernel.inputs, flag), stages=stages)
    )


def shape_of(sketch: Sketch, candidate: Candidate) -> NestShape:
    assert sketch.shape is not None
    names = [choice.name for choice in sketch.choices]
    positions = {n: np.array([p]) for n, p in zip(names, candidate.positions, strict=True)}
    return sketch.shape(positions)


def check(kernel: FusedKernel, sketch: Sketch, schedule: Schedule, shape: NestShape) -> None:
    """Loops, their order and turns, the body's extents, and what is executed, are the shape's."""
    output, anchor = kernel.output.name, kernel.anchor
    kind: type[Stmt] = Update
    names: Mapping[str, str] = {}
    if sketch.name.startswith("winograd"):
        buffer, names = "products.sum", WINOGRAD_AXES
    elif sketch.name == "online_attention":
        buffer, names = "block.weighted.sum", ATTENTION_AXES
    elif sketch.name == "attention":
        buffer, names = anchor, ATTENTION_AXES
    elif sketch.name == "attention_tiles":
        buffer, kind, names = f"{anchor}.sums", TileDot, ATTENTION_AXES
    elif sketch.name == "recurrent":
        buffer, kind = anchor, Dot if kernel.stage(anchor).dtype.is_integer else Update
    elif sketch.name.startswith("matrix_tiles"):
        buffer, kind = f"{output}.sum.sums" if anchor == output else f"{anchor}.sums", TileDot
    elif sketch.name.startswith(("tiled", "channels", "window", "chain")):
        buffer = f"{output}.sum" if anchor == output else anchor
    else:
        buffer, kind = output, Store
    found = list(leaves(lower(kernel, schedule).body, kind, buffer, Leaf(names)))
    assert sum(leaf.rounds * leaf.operations for leaf in found) == shape.operations.item()

    main = max(found, key=lambda leaf: leaf.rounds * leaf.points)
    # A reduction's tile is one body, what whole steps or vectors leave over included.
    body = [main] if kind is Store else [leaf for leaf in found if leaf.inside == main.inside]
    assert sum(leaf.operations for leaf in body) == shape.body.item()
    levels = list(reversed(shape.nest.levels))
    own = {_root(loop.axis) for level in levels for loop in level.loops}
    if kind is not Store:
        stage = kernel.stage(anchor)
        own |= {axis.name for axis in (*stage.axes, *stage.reduce_axes)}
    inside: dict[str, int] = {}
    for name, points in zip(shape.nest.axes, shape.nest.inside[:, 0], strict=True):
        axis = _root(name)
        if points > 1 and (names or axis in own):
            inside[axis] = inside.get(axis, 1) * int(points)
    assert sum(leaf.points * leaf.held for leaf in body) == math.prod(inside.values())
    if kind is not TileDot:
        assert main.body.keys() == inside.keys()
        assert all(inside[axis] - points < points for axis, points in main.body.items())

    fuses = [step for step in schedule.steps if isinstance(step, Fuse) and step.stage == output]
    expected: list[tuple[str, int]] = []
    for level in levels:
        loop = level.loops[0 if level.which is None else level.which.item()]
        axis = "parallel" if fuses and loop.name in fuses[0].axes else _root(loop.axis)
        expected.append((axis, int(np.asarray(loop.turns).item())))
    actual = ((main.axis_of(loop), turns_of(loop)) for loop in main.turning)
    assert _merged(actual) == _merged(expected)
    shared = [turns_of(loop) for loop in main.turning if loop.kind is LoopKind.PARALLEL]
    assert shared == [shape.pieces.item()] or (not shared and shape.pieces.item() == 1)


def _root(axis: str) -> str:
    """The axis that this one was split off."""
    return axis.split(".")[0]


def _merged(loops: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Loops of more than one turn, with those over the same axis next to each other as one."""
    result: list[tuple[str, int]] = []
    for axis, turns in loops:
        if result and result[-1][0] == axis:
            result[-1] = (axis, result[-1][1] * turns)
        elif turns > 1:
            result.append((axis, turns))
    return result


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_shapes_are_the_loops_that_schedules_are_lowered_to(
    name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled_reduction, "PARALLEL_WORK", 1)
    monkeypatch.setattr(chain_context, "PARALLEL_WORK", 1)
    monkeypatch.setattr(matrix_tiles, "PARALLEL_WORK", 1)
    monkeypatch.setattr(parallel_choices, "PARALLEL_ELEMENTS", 1)
    kernel, target = undecided(KERNELS[name][0]), KERNELS[name][1]
    space = schedule_space(kernel, target, threads)
    rng = random.Random(name)
    led = [sketch for sketch in space.sketches if sketch.leads]
    # Beside those in tiles other sums are dot products.
    for sketch in space.sketches if target.product_tiles is None else led:
        for _ in range(min(CANDIDATES, sketch.size)):
            positions = tuple(rng.randrange(len(choice.values)) for choice in sketch.choices)
            candidate = Candidate(sketch.name, positions)
            schedule, shape = space.schedule(candidate), shape_of(sketch, candidate)
            check(kernel, sketch, schedule, shape)


def test_every_sketch_is_compared() -> None:
    sketches = {
        sketch.name
        for kernel, target in KERNELS.values()
        for sketch in schedule_space(kernel, target, 2).sketches
    }
    families = {name.rstrip("0123456789") for name in sketches}
    tiled = {"tiled", "tiled_merged", "tiled_phases", "tiled_rows", "tiled_panels", "channels"}
    attention = {"attention", "online_attention", "attention_tiles"}
    windows = {"window", "window_rows"}
    others = {"winograd", "row_wise", "transposed", "recurrent"}
    others |= {"matrix_tiles", "matrix_tiles_grouped", "matrix_tiles_im2col", "chain"}
    assert families == {*tiled, *windows, *attention, *others}
