"""What a kernel should answer: inputs and reference results, computed once and kept as .npy files.

The files live in a scratch directory that the runner owns; worker processes map them into memory.
"""

from __future__ import annotations

import fcntl
import math
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.expr.combiners import COMBINERS
from tunefarm.compiler.expr.functions import BINARY, UNARY, Function
from tunefarm.compiler.expr.nodes import Binary, Cast, Expr, Load, Unary
from tunefarm.compiler.expr.walk import Operands, children, postorder
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel
from tunefarm.compiler.kernels.kernel_sizes import as_stored, size_vectors
from tunefarm.compiler.kernels.limb_dot import with_rounded_data
from tunefarm.compiler.kernels.recurrence import Recurrence, recurrence_of
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import is_narrow
from tunefarm.compiler.types.tensor_type import Array

# How often a kernel's result is rounded on its way, from which follows how far it may be off.

_ROUNDED_STATE = 8 / 255
"""Of the largest result, that two right computations may differ by where a recurrence rounds its
states to one of 256 at each step: 4/255 was seen in 170 steps of 256 units. An f32 that lies on
the border of two of them goes either way, and into all later steps."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """What rounds a kernel's result before it is stored.

    `length` is how many roundings of its sums can pile up in one element, see
    `tunefarm.compiler.types.numerics.sum_tolerance`. `inner` adds up the spacings (at 1) of the
    narrow types that values are rounded to on their way: where two right computations differ in the
    last place of a sum, the values rounded to such a type may be neighbours there.
    """

    length: float
    inner: float = 0.0


def rounding_of(kernel: FusedKernel) -> Rounding:
    """What rounds the kernel's result.

    Errors grow with the root of their number, so that a rounding of an accumulator which is finer
    than the output counts as the square of its part of one. What rounds a narrow output at last is
    no part of it.
    """
    output = _computed_in(kernel.output.dtype)
    sums = [s for s in kernel.stages if s.combiner and COMBINERS[s.combiner].rounds]
    recurrence = recurrence_of(kernel)
    steps = 1 if recurrence is None else recurrence.extent  # each rounds what the last one gave
    length = max(1, steps * sum(_roundings(stage, output) for stage in sums))
    inner = sum(_inner(kernel, stage) for stage in kernel.stages)
    return Rounding(length, inner + _ROUNDED_STATE * _rounds_states(kernel, recurrence))


def _rounds_states(kernel: FusedKernel, recurrence: Recurrence | None) -> bool:
    """Whether a state is rounded to an integer on its way to the next step."""
    walked = () if recurrence is None else recurrence.stages
    return any(
        isinstance(node, Unary) and node.op == "round"
        for name in walked
        for node in postorder(kernel.stage(name).body)
    )


def _computed_in(dtype: DType) -> DType:
    return DType.F32 if is_narrow(dtype) else dtype


def _roundings(stage: Stage, output: DType) -> float:
    terms = math.prod(axis.extent for axis in stage.reduce_axes)
    if not (stage.accumulates.is_float and output.is_float):
        return terms
    return terms * min(1.0, _computed_in(stage.accumulates).epsilon / output.epsilon) ** 2


def _inner(kernel: FusedKernel, stage: Stage) -> float:
    """The spacings of all that a stage rounds to narrow types, but for the kernel's output."""
    rounded = [node.dtype for node in postorder(stage.body) if isinstance(node, Cast)]
    if stage.accumulates is not stage.dtype:
        rounded.append(stage.dtype)
    total = sum(dtype.epsilon for dtype in rounded if is_narrow(dtype))
    is_stored = isinstance(stage.body, Cast) or stage.accumulates is not stage.dtype
    if total and stage.name == kernel.output.name and is_stored:
        total -= stage.dtype.epsilon
    return total


SEEDS = (0, 1)


@dataclass(frozen=True, slots=True)
class ReferenceCase:
    """One seed's inputs by name (logical layout) and the expected output.

    `stored` are the inputs with their rows as far apart as the kernel reads them. `rounded` is what
    is expected of a candidate that rounds data to 8 bits, if one was asked for.
    """

    inputs: Mapping[str, Array]
    stored: Mapping[str, Array]
    expected: Array
    rounded: Array | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """The cases that a kernel is checked with, and what rounds its results."""

    cases: tuple[ReferenceCase, ...]
    rounding: Rounding


def ensure_reference(
    kernel: FusedKernel,
    key: str,
    scratch: Path,
    sizes: Sequence[int] = (),
    *,
    rounded: bool = False,
) -> Reference:
    """The reference of the kernel with this workload key, computed unless `scratch` has it.

    Of a model with run-time sizes at these `sizes`, see `make_inputs`. `rounded`: with what is
    expected of candidates that round data to 8 bits.

    Two processes may ask at once: one computes, the other waits. A directory appears under its
    final name only when it is complete.
    """
    if not key.isalnum():
        raise MeasureError(f"workload key {key!r} is no file name")
    name = "-".join((key, *map(str, sizes)))
    folder = scratch / name
    _ensure(folder, lambda part: _compute(kernel, key, part, sizes))
    reference = _open(kernel, folder)
    if not rounded:
        return reference
    expected = scratch / f"{name}-rounded"
    _ensure(expected, lambda part: _compute_rounded(kernel, reference, part))
    cases = tuple(
        replace(case, rounded=_load(expected / _expected_file(seed), kernel.output.dtype))
        for seed, case in zip(SEEDS, reference.cases, strict=True)
    )
    return replace(reference, cases=cases)


def _ensure(folder: Path, compute: Callable[[Path], None]) -> None:
    """Have `compute` fill the folder, unless it is there."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f"{folder.name}.lock"):
        if not folder.is_dir():
            part = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
            compute(part)
            part.rename(folder)


def _compute_rounded(kernel: FusedKernel, reference: Reference, part: Path) -> None:
    from tunefarm.compiler.kernels.evaluate import evaluate_kernel

    rounding = with_rounded_data(kernel)
    for seed, case in zip(SEEDS, reference.cases, strict=True):
        with np.errstate(all="ignore"):
            expected = evaluate_kernel(rounding, case.inputs, accumulate_double=True)
        _save(part / _expected_file(seed), expected)


def _compute(kernel: FusedKernel, key: str, part: Path, sizes: Sequence[int]) -> None:
    from tunefarm.compiler.kernels.evaluate import evaluate_kernel

    for seed in SEEDS:
        inputs = make_inputs(kernel, seed, key, sizes)
        for buffer in kernel.inputs:
            path = part / _input_file(buffer.constant, seed, buffer.name)
            if not path.exists():
                _save(path, inputs[buffer.name])
        with np.errstate(all="ignore"):
            expected = evaluate_kernel(kernel, inputs, accumulate_double=True)
        output = kernel.output
        if expected.shape != output.shape or expected.dtype != output.dtype.numpy:
            raise MeasureError(
                f"the reference of {kernel.name} has type {expected.dtype}{list(expected.shape)},"
                f" not {output.dtype}{list(output.shape)}"
            )
        _save(part / _expected_file(seed), expected)


def _open(kernel: FusedKernel, folder: Path) -> Reference:
    opened: dict[str, Array] = {}

    def load(name: str, dtype: DType) -> Array:
        if name not in opened:
            opened[name] = _load(folder / name, dtype)
        return opened[name]

    cases = []
    for seed in SEEDS:
        inputs = {
            b.name: load(_input_file(b.constant, seed, b.name), b.dtype) for b in kernel.inputs
        }
        stored = {b.name: as_stored(inputs[b.name], b.pitch, inputs) for b in kernel.inputs}
        expected = load(_expected_file(seed), kernel.output.dtype)
        cases.append(ReferenceCase(inputs, stored, expected))
    return Reference(tuple(cases), rounding_of(kernel))


def _save(path: Path, array: Array) -> None:
    """Write an array; elements that NumPy has no name for in files as integers of their size."""
    plain = array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array
    np.save(path, np.ascontiguousarray(plain))


def _load(path: Path, dtype: DType) -> Array:
    """An array that `_save` wrote, mapped into memory."""
    array: Array = np.load(path, mmap_mode="r").view(dtype.numpy)
    return array


def _expected_file(seed: int) -> str:
    return f"expected-{seed}.npy"


def _input_file(constant: bool, seed: int, name: str) -> str:
    return f"constant-{name}.npy" if constant else f"input-{name}-{seed}.npy"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock on `path`; the kernel releases it if this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


_NEGLIGIBLE_SUM = 4


@dataclass(slots=True)
class _Uses:
    """What the expressions demand of one input."""

    addressed: list[int] = field(default_factory=list)  # extents of the axes that it addresses
    floats: tuple[float, float] | None = None
    integers: tuple[int, int] | None = None
    summed: int = 1  # length of the longest sum that multiplies it with something
    narrow: bool = False  # that sum is in a wider type: where products saturate it has to show


def make_inputs(
    kernel: FusedKernel, seed: int, key: str = "", sizes: Sequence[int] = ()
) -> dict[str, Array]:
    """The kernel's inputs in logical layout, by name: random, and within what its expressions
    accept.

    How an input is used decides its range. An integer that addresses another tensor stays inside
    it; a divisor keeps away from zero; the operand of a logarithm or a square root is positive. All
    other floats are uniform in [-1, 1), constants of a long sum scaled down by the root of its
    length so that activations behind it see values round zero instead of their saturated ends.

    Of a model with run-time sizes it is measured at `sizes`, by default the largest.

    The same kernel, seed and key give the same bytes everywhere. Constants do not depend on the
    seed: a wrong kernel shows with other activations just as well, and large weights are packed
    only once.
    """
    uses = _find_uses(kernel)
    salt = zlib.crc32(key.encode())
    result: dict[str, Array] = {}
    for number, buffer in enumerate(kernel.inputs):
        rng = np.random.default_rng([salt, number, 0 if buffer.constant else 1 + seed])
        result[buffer.name] = _draw(buffer, uses[buffer.name], rng)
    return result | size_vectors(kernel, sizes)


def _draw(buffer: Buffer, uses: _Uses, rng: np.random.Generator) -> Array:
    dtype, shape = buffer.dtype, buffer.shape
    if dtype is DType.BOOL:
        return rng.integers(0, 2, size=shape, dtype=np.uint8).astype(np.bool_)
    if not dtype.is_float:
        low, high = _integer_range(dtype, uses)
        drawn = np.int64 if dtype.bits < 8 else dtype.numpy
        return converted(rng.integers(low, high, size=shape, dtype=drawn), dtype)
    low_end, high_end = uses.floats or (-1.0, 1.0)
    if uses.floats is None and buffer.constant and uses.summed > _NEGLIGIBLE_SUM:
        high_end = math.sqrt(3.0 / uses.summed)
        low_end = -high_end
    if dtype is DType.F64:
        return rng.random(shape) * (high_end - low_end) + low_end
    values = rng.random(shape, dtype=np.float32)
    values *= np.float32(high_end - low_end)
    values += np.float32(low_end)
    return converted(values, dtype)


def _integer_range(dtype: DType, uses: _Uses) -> tuple[int, int]:
    if uses.addressed:
        return 0, max(1, min(uses.addressed))
    if uses.integers is not None:
        return uses.integers
    low, high = (-8, 8) if dtype.is_signed else (0, 16)
    least, greatest = dtype.limits
    if uses.narrow:
        return least, greatest + 1
    return max(low, least), min(high, greatest + 1)


def _find_uses(kernel: FusedKernel) -> dict[str, _Uses]:
    uses = {buffer.name: _Uses() for buffer in kernel.inputs}
    stages = {stage.name: stage for stage in kernel.stages}
    shapes = {buffer.name: buffer.shape for buffer in kernel.inputs}
    shapes |= {stage.name: stage.shape for stage in kernel.stages}
    for stage in kernel.stages:
        length = math.prod(axis.extent for axis in stage.reduce_axes)
        for node in postorder(stage.body):
            match node:
                case Load():
                    for index, extent in zip(node.indices, shapes[node.buffer], strict=True):
                        for name in _inputs_of(index, stages):
                            uses[name].addressed.append(extent)
                case Unary():
                    _note_domains(UNARY[node.op], node, stages, uses)
                case Binary():
                    _note_domains(BINARY[node.op], node, stages, uses)
                    if node.op == "mul" and stage.combiner == "sum":
                        _note_product(node, length, uses)
    return uses


def _note_domains(
    function: Function, node: Expr, stages: dict[str, Stage], uses: dict[str, _Uses]
) -> None:
    for operand, domain in zip(children(node), function.domains, strict=False):
        if domain is not None:
            for name in _inputs_of(operand, stages):
                uses[name].floats = domain.floats or uses[name].floats
                uses[name].integers = domain.integers or uses[name].integers


def _note_product(node: Binary, length: int, uses: dict[str, _Uses]) -> None:
    for factor in (node.left, node.right):
        operand = factor
        while isinstance(operand, Cast):
            operand = operand.operand
        if isinstance(operand, Load) and operand.buffer in uses:
            used = uses[operand.buffer]
            used.summed = max(used.summed, length)
            used.narrow |= operand.dtype.is_integer and factor.dtype.bytes > operand.dtype.bytes


def _inputs_of(expr: Expr, stages: dict[str, Stage]) -> set[str]:
    """Inputs whose sign or size decides that of `expr`: not those behind a square or an exp."""
    found: set[str] = set()
    work = [expr]
    while work:
        for node in postorder(work.pop(), _deciding):
            if isinstance(node, Load) and node.buffer not in found:
                found.add(node.buffer)
                if node.buffer in stages:
                    work.append(stages[node.buffer].body)
    return found - stages.keys()


def _deciding(node: Expr) -> Operands:
    match node:
        case Load():
            return ()
        case Unary() if UNARY[node.op].positive:
            return ()
        case Binary() if BINARY[node.op].positive:
            return ()
        case Binary() if node.op == "mul" and node.left == node.right:
            return ()
        case _:
            return children(node)
