"""Estimates: the seconds of a kernel under its default schedule, without running or building it.

    cycles = call + arithmetic + pointwise functions + constants + data that is moved

Arithmetic is what the default's sketch counts (`NestShape.cycles`): its vectors are those that are
iterated, so lanes that pad channels or are left over in a row cost what useful ones do; by kind of
kernel it is off by a factor, which is known. Data comes at the rate of the cache that holds what a
call reads and writes, constants from the cache that cores share, as in a model that has others in
between; rates are those of the machine's table.

The factors were fitted to the defaults of 576 kernels of ten models in blocks of 16 channels and in
rows, on one thread of a Zen 5 with AVX-512: half of them are within 9 %, as are half of 119 kernels
of six other models (see tests/benchmarks/estimates.py).
"""

from __future__ import annotations

from itertools import permutations

import numpy as np

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.functions import BINARY, UNARY
from tunefarm.compiler.expr.nodes import Binary, Expr, Load, Select, Unary
from tunefarm.compiler.expr.walk import axes_of, children, loads, postorder
from tunefarm.compiler.kernels.count_work import elements, iterations
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.schedule.cycles import OF_SHARED
from tunefarm.compiler.schedule.nest_shape import PAGE, NestShape
from tunefarm.compiler.schedule.sketches.even_shares import waiting
from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.schedule.vectors import vector_lanes
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS, Numerics

HERTZ = 3e9
"""A nominal core's: what matters is how estimates compare."""
CALL = 30.0  # cycles
SCALAR = 4.0  # cycles of an operation where no sketch makes vectors

LIGHT = 0.1  # cycles of a vector's sum, product, comparison in a register: besides its loads
COSTLY = {
    "sigmoid": 6.5,
    "exp": 4.3,
    "erf": 18.4,
    "tanh": 9.0,
    "rsqrt": 2.5,
    "reciprocal": 4.4,
    "sqrt": 4.4,
    "div": 4.4,
    "fmod": 9.0,
}
"""The same of functions; others that the table of functions calls expensive are like a tanh."""

PAGED = 2.4  # times the bytes, where rows are written to such planes


KINDS = {
    "product": 0.95,  # convolutions and products of matrices
    "window": 0.4,  # depthwise convolutions of blocks: counted by their loads
    "window of rows": 0.9,  # depthwise convolutions of rows
    "pool": 0.86,
    "mean": 0.1,
    "winograd": 1.43,
    "window_rows": 2.2,
    "small window": 2.75,
    "attention": 1.1,
    "attention_tiles": 1.0,
    "chain": 0.95,
    "row_wise": 0.37,
    "transposed": 1.1,
    "other": 1.0,
    "scalar": 1.0,
}
"""What arithmetic takes of the cycles that are counted, by kind of kernel under its default
schedule."""


@frozen
class Estimate:
    """Seconds of one call; what kind it is."""

    seconds: float
    kind: str


class Estimator:
    """Estimates for a target, number of threads and precision, which are those of the `spaces`.

    Each kernel is looked at once.
    """

    def __init__(self, spaces: SpaceCache) -> None:
        self.spaces = spaces
        self._known: dict[str, Estimate] = {}

    def __call__(self, kernel: FusedKernel, key: str = "") -> Estimate:
        """The estimate of a kernel, `key` being its workload key if the caller has it."""
        key = key or workload_key(kernel)
        if key not in self._known:
            self._known[key] = self._estimate(kernel, key)
        return self._known[key]

    def _estimate(self, kernel: FusedKernel, key: str) -> Estimate:
        try:
            space = self.spaces.of(kernel, key)
        except ScheduleError:
            return _scalar(kernel)
        return _of_default(kernel, space, self.spaces.target, self.spaces.threads)


def estimate(
    kernel: FusedKernel,
    target: Target,
    threads: int = 1,
    numerics: Numerics | str = DEFAULT_NUMERICS,
) -> Estimate:
    """What the kernel takes under its default schedule, in a model where its data is near."""
    return Estimator(SpaceCache(target, threads, numerics))(kernel)


def _of_default(
    kernel: FusedKernel, space: ScheduleSpace, target: Target, threads: int
) -> Estimate:
    candidate = space.default()
    shape = _shape(space, candidate)
    if shape is None:
        return _scalar(kernel)
    name = _kind(kernel, candidate.sketch)
    computed = float(shape.cycles.item()) * KINDS[name] + _pointwise(kernel, target, shape)
    near, far = _transfers(kernel, target)
    if name == "transposed":
        near, far = (cycles * _strewn(kernel) for cycles in (near, far))
    pieces = np.maximum(shape.pieces, 1.0)
    sharing = threads / float(waiting(pieces, threads).item())
    far /= min(sharing, target.machine.memory.streams)
    meeting = target.machine.threads.hand_over if sharing > 1.0 else 0.0
    cycles = CALL + (computed + near) / sharing + far + meeting
    return Estimate(cycles / HERTZ, name)


# --- arithmetic ---------------------------------------------------------------------------------


def _shape(space: ScheduleSpace, candidate: Candidate) -> NestShape | None:
    sketch = space.sketch(candidate.sketch)
    if sketch.shape is None:
        return None
    names = (choice.name for choice in sketch.choices)
    at = (np.array([position]) for position in candidate.positions)
    return sketch.shape(dict(zip(names, at, strict=True)))


def _kind(kernel: FusedKernel, sketch: str) -> str:
    anchor = kernel.stage(kernel.anchor)
    if sketch.startswith("winograd"):
        return "winograd"
    if sketch == "window":
        return "small window"
    if sketch in KINDS:
        return sketch
    if not sketch.startswith(("tiled", "channels", "matrix_tiles")):
        return "other"
    if anchor.combiner != "sum":
        return "pool"
    if sum(1 for _ in loads(anchor.body)) < 2:
        return "mean"
    if len(anchor.reduce_axes) == 2 and not _is_product(anchor):
        return "window of rows" if sketch == "tiled_rows" else "window"
    return "product"


def _is_product(anchor: Stage) -> bool:
    """Neither operand moves with all that the other moves with: each serves several results."""
    kept = {axis.name for axis in anchor.axes if axis.extent > 1}
    moving = [
        {name for item in load.indices for name in axes_of(item)} & kept
        for load in loads(anchor.body)
    ]
    return not any(one <= other for one, other in permutations(moving, 2))


def _pointwise(kernel: FusedKernel, target: Target, shape: NestShape) -> float:
    """Cycles of the functions of all stages, in vectors as wide as the loops have them."""
    lanes = vector_lanes(kernel, target) * float(shape.lanes.item())
    return sum(
        iterations(stage) / lanes * _costs(stage.body, LIGHT if not stage.reduce_axes else 0.0)
        for stage in kernel.stages
    )


def _costs(body: Expr, light: float) -> float:
    """Cycles of a vector of the expression, of a select those of the dearer side.

    What an index or condition needs is free.
    """
    costs: dict[int, float] = {}
    for node in postorder(body):
        below = [costs[id(operand)] for operand in children(node)]
        match node:
            case Load():
                cost = 0.0
            case Select():
                cost = max(below[1:])
            case Unary(op=op) | Binary(op=op) if node.dtype not in (DType.I64, DType.BOOL):
                row = UNARY[op] if isinstance(node, Unary) else BINARY[op]
                cost = sum(below) + COSTLY.get(op, COSTLY["tanh"] if row.expensive else light)
            case _:
                cost = sum(below)
        costs[id(node)] = cost
    return costs[id(body)]


def _scalar(kernel: FusedKernel) -> Estimate:
    """Of a kernel without vectors: one operation after the other."""
    cycles = CALL + sum(
        iterations(stage) * SCALAR * (1 + sum(1 for _ in loads(stage.body)))
        for stage in kernel.stages
    )
    return Estimate(cycles / HERTZ, "scalar")


# --- data ---------------------------------------------------------------------------------------


def _transfers(kernel: FusedKernel, target: Target) -> tuple[float, float]:
    """Cycles in which data is moved from and to caches, and those from and to memory."""
    touched: dict[str, int] = {}
    for stage in kernel.stages:
        for load in loads(stage.body):
            touched[load.buffer] = touched.get(load.buffer, 0) + iterations(stage)
    constant = data = 0
    for buffer in kernel.inputs:
        read = min(buffer.type.bytes, touched.get(buffer.name, 0) * buffer.dtype.bytes)
        constant += read if buffer.constant else 0
        data += 0 if buffer.constant else read
    data += elements(kernel.output) * kernel.output.dtype.bytes
    machine = target.machine
    cycles = constant / machine.l3.read  # other kernels have driven them out of nearer caches
    if data <= target.l2_bytes:
        return cycles + data / machine.l2.read, 0.0
    if data <= OF_SHARED * target.l3_bytes:
        return cycles + data / machine.l3.read, 0.0
    return cycles, data / machine.memory.read


def _strewn(kernel: FusedKernel) -> float:
    """How much longer it takes to write rows from blocks, where planes share sets of caches."""
    shape, source = kernel.output.shape, kernel.inputs[0].shape
    if len(shape) != 4 or len(source) != 5:
        return 1.0
    plane = shape[2] * shape[3] * kernel.output.dtype.bytes
    return PAGED if plane % PAGE == 0 else 1.0
