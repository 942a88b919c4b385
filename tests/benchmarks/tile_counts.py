"""What matrix tiles read, counted on the lowered loops: no machine with tiles is needed.

    python -m tests.benchmarks.tile_counts [MODEL ...] [--numerics bf16] [--numerics qdq]
                                           [--target sapphirerapids] [--json]

Every kernel of the models (of the zoo) that the target's default schedule computes in matrix tiles
is lowered, and its loops are walked in order with two caches of lines of 64 bytes, the first and
the second level of the target, both fully associative and least recently used. All lines are cold
when a kernel begins.

    B / weights   bytes of the packed constant factor that come from beyond the second cache, over
                  its size: 1 is once
    loads         tile loads per product of two tiles; a block of 2x2 has 1
    filled        rows of the result over rows of 16 in the tiles that are stored
    L2 bytes      bytes a product takes from the second cache (or beyond) of both factors
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import prod

import onnx

from tunefarm.compiler.expr.nodes import Binary, Cast, Const, Expr, Index, Load, Select, Unary
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.kernels.count_work import kernel_flops
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    Dot,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Memory,
    Scope,
    Stmt,
    Store,
    TileDot,
    TileLoad,
    TileStore,
    Update,
    values_of,
    written,
)
from tunefarm.compiler.machine.amx_set_up import FULL_PALETTE
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target
from tunefarm.configs.settings import load_target
from tunefarm.tuner.commands.engines import quantized_by_onnxruntime

LINE = 64  # bytes
ALIGNMENT = 4096  # of every buffer
MODELS = ("resnet50", "resnet18", "mobilenet_v2", "encoder", "vit_tiny")
NUMERICS = ("bf16", "qdq")


class Caches:
    """Two levels of lines, least recently used; how many lines of each buffer missed which."""

    def __init__(self, lines: tuple[int, int]) -> None:
        self.lines = lines
        self.levels: tuple[OrderedDict[int, None], ...] = (OrderedDict(), OrderedDict())
        self.missed: tuple[dict[str, int], dict[str, int]] = ({}, {})

    def touch(self, buffer: str, first: int, size: int) -> None:
        """Read or write so many bytes from the address `first` on."""
        nearest = self.levels[0]
        for line in range(first // LINE, (first + size - 1) // LINE + 1):
            if line in nearest:
                nearest.move_to_end(line)
                continue
            for level, room, missed in zip(self.levels, self.lines, self.missed, strict=True):
                if line in level:
                    level.move_to_end(line)
                    break
                missed[buffer] = missed.get(buffer, 0) + 1
                level[line] = None
                if len(level) > room:
                    level.popitem(last=False)


@dataclass(slots=True)
class Counts:
    """What the loops do: tiles loaded, multiplied and stored, and the misses of the caches."""

    caches: Caches
    loads: int = 0
    products: int = 0
    stores: int = 0

    def tile(self, buffer: str, first: int, stride: int, rows: int, size: int) -> None:
        """Move a tile: `rows` rows of `size` bytes, `stride` bytes apart."""
        for row in range(rows):
            self.caches.touch(buffer, first + row * stride, size)


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel's counts; see the module."""

    model: str
    kernel: str
    times: int
    shape: str
    sketch: str
    gflop: float
    weights: float
    b_over_weights: float
    loads: float
    filled: float
    l2_bytes: float


@dataclass(slots=True)
class _Walk:
    """Writes the loops as Python that touches what they touch."""

    memories: dict[str, Memory]
    addresses: dict[str, int] = field(default_factory=dict)
    tiles: dict[str, Memory] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    end: int = ALIGNMENT

    def place(self, memory: Memory) -> None:
        """Give a buffer addresses of its own."""
        self.memories[memory.name] = memory
        if memory.name not in self.addresses:
            self.addresses[memory.name] = self.end
            size = max(memory.type.bytes, 1)
            self.end += -(-size // ALIGNMENT) * ALIGNMENT + ALIGNMENT

    def body(self, statements: Body, depth: int) -> None:
        begin = len(self.lines)
        for statement in statements:
            self.statement(statement, depth)
        if len(self.lines) == begin:
            self.line(depth, "pass")

    def line(self, depth: int, text: str) -> None:
        self.lines.append(" " * depth + text)

    def statement(self, statement: Stmt, depth: int) -> None:
        match statement:
            case For(variable=variable, start=start, stop=stop, kind=kind, body=body):
                rounds = f"range({start}, {stop})"
                if kind is LoopKind.VECTORISED:  # the ends of a vector tell its lines
                    rounds = f"({start}, {stop - 1})" if stop - start > 1 else f"({start},)"
                self.line(depth, f"for {_name(variable)} in {rounds}:")
                self.body(body, depth + 1)
            case Let(variable=variable, value=value, body=body):
                self.line(depth, f"{_name(variable)} = {self.value(value)}")
                self.body(body, depth)
            case If(condition=condition, body=body):
                self.line(depth, f"if {self.value(condition)}:")
                self.body(body, depth + 1)
            case Allocate(memory=memory, scope=scope, body=body):
                if scope is Scope.TILE:
                    self.tiles[memory.name] = memory
                elif scope is not Scope.REGISTER:
                    self.place(memory)
                self.body(body, depth)
            case TileLoad(buffer=buffer, source=source, stride=stride):
                self.line(depth, "counts.loads += 1")
                self.tile(self.tiles[buffer], source.buffer, source.indices, stride, depth)
            case TileStore(buffer=buffer, indices=indices, source=source, stride=stride):
                self.line(depth, "counts.stores += 1")
                self.tile(self.tiles[source.buffer], buffer, indices, stride, depth)
            case TileDot():
                self.line(depth, "counts.products += 1")
            case _:
                for write in written(statement):
                    if isinstance(write, Store | Update | Dot):
                        for value in values_of(write):
                            self.reads(value, depth)
                    self.touch(write.buffer, write.indices, depth)

    def tile(
        self, tile: Memory, buffer: str, indices: tuple[Expr, ...], stride: int, depth: int
    ) -> None:
        rows, columns = tile.shape[-2:]
        size = self.memories[buffer].dtype.bytes
        self.line(
            depth,
            f"counts.tile({buffer!r}, {self.address(buffer, indices)}, {stride * size}, {rows}, "
            f"{columns * size})",
        )

    def touch(self, buffer: str, indices: tuple[Expr, ...], depth: int) -> None:
        if buffer in self.memories:
            size = self.memories[buffer].dtype.bytes
            self.line(depth, f"touch({buffer!r}, {self.address(buffer, indices)}, {size})")

    def address(self, buffer: str, indices: tuple[Expr, ...]) -> str:
        """Bytes."""
        memory, step, terms = self.memories[buffer], self.memories[buffer].dtype.bytes, list[str]()
        for item, extent in zip(reversed(indices), reversed(memory.shape), strict=True):
            terms.append(f"({self.value(item)}) * {step}")
            step *= extent
        return " + ".join([str(self.addresses[buffer]), *terms])

    def reads(self, value: Expr, depth: int) -> None:
        """Touch what a value is computed of; of a choice, the side that is taken."""
        match value:
            case Load(buffer=buffer, indices=indices):
                self.touch(buffer, indices, depth)
            case Unary(operand=operand) | Cast(operand=operand):
                self.reads(operand, depth)
            case Binary(left=left, right=right):
                self.reads(left, depth)
                self.reads(right, depth)
            case Select(condition=condition, then=then, otherwise=otherwise):
                opposite = Unary(condition.dtype, "not", condition)
                for test, side in ((condition, then), (opposite, otherwise)):
                    mark = len(self.lines)
                    self.reads(side, depth + 1)
                    if len(self.lines) > mark:
                        self.lines.insert(mark, " " * depth + f"if {self.value(test)}:")
            case _:
                return

    def value(self, expr: Expr) -> str:
        """An index, or a condition on indices."""
        match expr:
            case Const(value=value):
                return repr(value)
            case Index(name=name):
                return _name(name)
            case Binary(op=op, left=left, right=right):
                first, second = self.value(left), self.value(right)
                if op in ("min", "max"):
                    return f"{op}({first}, {second})"
                return f"({first} {_OPERATORS[op]} {second})"
            case Unary(op=op, operand=operand) if op in ("not", "neg"):
                return f"({'not' if op == 'not' else '-'} {self.value(operand)})"
            case Cast(operand=operand):
                return self.value(operand)
            case Select(condition=condition, then=then, otherwise=otherwise):
                test = self.value(condition)
                return f"({self.value(then)} if {test} else {self.value(otherwise)})"
        raise ValueError(f"{expr} is no index of a static kernel")


_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "floordiv": "//",
    "mod": "%",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "and": "and",
    "or": "or",
}


def _name(variable: str) -> str:
    """A loop's variable as one of Python."""
    return "v_" + "".join(c if c.isalnum() else f"_{ord(c)}_" for c in variable)


def counts_of(nest: LoopNest, target: Target) -> Counts:
    """Walk the loops of a static kernel, tile by tile."""
    walk = _Walk({})
    for memory in (*nest.inputs, nest.output):
        walk.place(memory)
    walk.line(0, "def walk(counts, touch):")
    walk.body(nest.body, 1)
    made: dict[str, Callable[..., None]] = {}
    exec(compile("\n".join(walk.lines), nest.name, "exec"), made)
    caches = Caches((target.l1_bytes // LINE, target.l2_bytes // LINE))
    counts = Counts(caches)
    made["walk"](counts, caches.touch)
    return counts


def shares_of(kernel: FusedKernel, schedule: Schedule, target: Target) -> dict[str, float]:
    """What is counted of a kernel in matrix tiles, by its name in `Row`."""
    nest = lower(kernel, schedule)
    counts = counts_of(nest, target)
    sizes = {memory.name: memory.type.bytes for memory in nest.inputs}
    constant = {buffer.name for buffer in kernel.inputs if buffer.constant}
    tiled = _tiled_buffers(nest.body)
    (factor,) = tiled & constant
    near, beyond = counts.caches.missed
    anchor = kernel.stage(kernel.anchor)
    lanes = anchor.axes[-1].extent
    rows = prod(anchor.shape) // lanes * -(-lanes // FULL_PALETTE.rows)
    return {
        "weights": sizes[factor],
        "b_over_weights": beyond.get(factor, 0) * LINE / sizes[factor],
        "loads": counts.loads / counts.products,
        "filled": rows / (counts.stores * FULL_PALETTE.rows),
        "l2_bytes": sum(near.get(name, 0) for name in tiled) * LINE / counts.products,
    }


def _tiled_buffers(body: Body) -> set[str]:
    found = set[str]()
    for statement in body:
        if isinstance(statement, For | Let | If | Allocate):
            found |= _tiled_buffers(statement.body)
        elif isinstance(statement, TileLoad):
            found.add(statement.source.buffer)
    return found


def calls_of(model: str, numerics: str, target: Target) -> Iterator[tuple[FusedKernel, int]]:
    """The distinct kernels of a model of the zoo, and how often each is called."""
    proto = build_model(model)
    if numerics == "qdq":
        proto = onnx.ModelProto.FromString(
            quantized_by_onnxruntime(proto.SerializeToString(), "qdq")
        )
    precision = "default" if numerics == "qdq" else numerics
    program = kernels_of(import_model_proto(proto), target, numerics=precision)
    kernels: dict[str, tuple[FusedKernel, int]] = {}
    for call in program.calls:
        if isinstance(call, KernelCall):
            times = kernels.get(call.key, (call.kernel, 0))[1]
            kernels[call.key] = call.kernel, times + 1
    yield from kernels.values()


def row_of(model: str, kernel: FusedKernel, times: int, target: Target) -> Row | None:
    """The counts of the kernel's default schedule; None where it has no matrix tiles, or, as
    attention, no constant factor."""
    space = schedule_space(kernel, target)
    candidate = space.default()
    schedule = space.schedule(candidate)
    if not schedule.uses_tiles or not any(buffer.constant for buffer in kernel.inputs):
        return None
    anchor = kernel.stage(kernel.anchor)
    reduced = "x".join(str(axis.extent) for axis in anchor.reduce_axes)
    shape = f"{'x'.join(map(str, anchor.shape))} of {reduced}"
    values = ", ".join(str(value) for value in space.choices(candidate).values())
    sketch = f"{candidate.sketch.removeprefix('matrix_tiles')} {values}".strip()
    work = kernel_flops(kernel) * times / 1e9
    return Row(
        model, kernel.name, times, shape, sketch, work, **shares_of(kernel, schedule, target)
    )


def print_rows(rows: Sequence[Row]) -> None:
    """One model's kernels, those with the most work first, and what they are beyond the bars."""
    print(
        f"{'kernel':24s} {'anchor':34s} {'sketch':44s} GFLOP  weights  B/w  loads filled L2 bytes"
    )
    for row in sorted(rows, key=lambda row: -row.gflop):
        print(
            f"{row.kernel[:22]:22s}x{row.times} {row.shape:34s} {row.sketch:44s} {row.gflop:5.2f} "
            f"{row.weights / 1024:7.0f}K {row.b_over_weights:5.2f} {row.loads:5.2f} "
            f"{row.filled:6.2f} {row.l2_bytes:7.0f}"
        )
    total = sum(row.gflop for row in rows)
    for name, bar, worst in (
        ("b_over_weights", 1.1, max),
        ("loads", 1.0, max),
        ("filled", 0.75, min),
    ):
        values = [getattr(row, name) for row in rows]
        kept = sum(
            row.gflop
            for row in rows
            if (getattr(row, name) <= bar if worst is max else getattr(row, name) >= bar)
        )
        print(
            f"  {name}: bar {bar}, worst {worst(values):.2f}, {kept / total:.1%} of the work kept"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", help="names of the zoo", metavar="MODEL")
    parser.add_argument("--numerics", action="append", choices=NUMERICS)
    parser.add_argument("--target", default="sapphirerapids")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    target = Target.from_json(load_target(options.target).model_dump())
    found: list[Row] = []
    for model in options.models or MODELS:
        for numerics in options.numerics or NUMERICS:
            made = (
                row_of(f"{model} {numerics}", kernel, times, target)
                for kernel, times in calls_of(model, numerics, target)
            )
            rows = [row for row in made if row is not None]
            found += rows
            if not options.json and rows:
                print(f"\n{model} {numerics}")
                print_rows(rows)
    if options.json:
        print(json.dumps([asdict(row) for row in found], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
