"""FusedKernel: what one kernel computes, as a small DAG of tensor expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import Expr, Load, cast, index
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.open_axes import OpenAxes
from tunefarm.compiler.types.tensor_type import Array, TensorType


@frozen
class RowPitch:
    """How far apart the rows of planes lie in memory, where how many columns there are is dynamic.

    A tensor whose shape has planes of `rows` x `extent` columns of `column` elements each lies at
    its bounds, but for the rows of one plane: these are min(`extent`, size + `margin`) columns
    apart, rounded up to a `multiple`, where the size is the element `number` of `sizes`, an input
    of i64. So short rows are neighbours in memory, and planes stay where they are. What is behind
    the pitch of a row does not exist: its place is the next row's.
    """

    column: int
    extent: int
    rows: int
    sizes: str
    number: int
    margin: int
    multiple: int = 1

    @property
    def row(self) -> int:
        """Elements from one row to the next at the bounds."""
        return self.column * self.extent

    @property
    def plane(self) -> int:
        """Elements of a plane at the bounds."""
        return self.row * self.rows

    def columns(self, sizes: Mapping[str, Array]) -> int:
        """How many columns apart rows are for these sizes, by input."""
        columns = -(-(int(sizes[self.sizes][self.number]) + self.margin) // self.multiple)
        return max(1, min(self.extent, columns * self.multiple))

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether each axis of a shape is one within rows, of rows, or of planes."""
        stride, ends = 1, {1}
        for extent in reversed(shape):
            stride *= extent
            ends.add(stride)
        return {self.row, self.plane} <= ends


@frozen
class DensePitch:
    """How far apart the elements of an array lie that is dense at the sizes of the run.

    There are as many of an axis as the element of `sizes` says whose number stands in `numbers`,
    all `extents` of it where that is None. What is behind those does not exist, and nothing reads
    it: the memory may end there.
    """

    extents: tuple[int, ...]
    sizes: str
    numbers: tuple[int | None, ...]

    def there(self, sizes: Mapping[str, Array]) -> tuple[int, ...]:
        """The true shape for these sizes, by input."""
        return tuple(
            extent if number is None else int(sizes[self.sizes][number])
            for extent, number in zip(self.extents, self.numbers, strict=True)
        )

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether these are the axes of a shape."""
        return tuple(shape) == self.extents


Pitch: TypeAlias = RowPitch | DensePitch


@frozen
class Buffer:
    """An input of a kernel; `constant` says that its contents are known when the model is built."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    constant: bool = False
    pitch: Pitch | None = None

    @property
    def type(self) -> TensorType:
        """Element type and shape as one."""
        return TensorType(self.dtype, self.shape)


@dataclass(frozen=True, slots=True, order=True)
class ValidExtent:
    """Of a result only those elements matter whose `place // stride % extent` is below a size.

    `place` is an element's number in row-major order, the size element `number` of `sizes`, an
    input of i64 (between kernels the value that this is), and `offset`. Other elements may have any
    value.
    """

    stride: int
    extent: int
    sizes: str
    number: int
    offset: int = 0

    @property
    def period(self) -> int:
        """Elements after which the pattern comes again."""
        return self.stride * self.extent


@frozen
class FusedKernel:
    """Inputs and stages in topological order; the last stage is the only output.

    Every stage's result is a tensor named after the stage, indexed by its axes. `name` is for
    people ("conv2d_add_relu") and no part of the workload key. `anchor` names the stage that
    decides the loop structure (the contraction or reduction; the last stage for an elementwise
    kernel). Stages before the anchor are its prologue, those after it its epilogue. Elements of
    the output that do not keep within the `limits` are padding, which need not be computed.

    `sizes` are the run-time sizes of its model that the kernel is tuned for, where these are not
    the largest (`tunefarm.compiler.kernels.kernel_sizes`); what is computed does not depend on
    them. A result that lies over an input, with rows of it written anew, may stay as it is behind
    those rows where the kernel `leaves_rest`. `pitch` is that of the output's rows.
    """

    name: str
    inputs: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    anchor: str
    limits: tuple[ValidExtent, ...] = ()
    sizes: tuple[int, ...] = ()
    leaves_rest: bool = False
    pitch: RowPitch | None = None

    @property
    def pitches(self) -> dict[str, Pitch]:
        """The pitches of inputs and of the output, by name."""
        found: dict[str, Pitch | None] = {buffer.name: buffer.pitch for buffer in self.inputs}
        found[self.output.name] = self.pitch
        return {name: pitch for name, pitch in found.items() if pitch is not None}

    def checked_rows(self) -> FusedKernel:
        """The kernel itself; `ScheduleError` where an axis has rows and columns, see `pitches`."""
        shapes = {buffer.name: buffer.shape for buffer in self.inputs}
        shapes[self.output.name] = self.output.shape
        for name, pitch in self.pitches.items():
            if not pitch.fits(shapes[name]):
                raise ScheduleError(f"rows of {name} are apart in memory, and no part of an axis")
        return self

    @property
    def output(self) -> Stage:
        """The last stage, whose values the kernel writes."""
        return self.stages[-1]

    def limited_at(self, position: int) -> bool:
        """A limit ends the output's axis at this position."""
        after = math.prod(self.output.shape[position + 1 :])
        whole = after * self.output.shape[position]
        return any(after <= limit.stride and limit.period <= whole for limit in self.limits)

    def limited_within(self, position: int) -> bool:
        """A limit ends the output's axis at this position, and again for each point outside."""
        return math.prod(self.output.shape[:position]) > 1 and self.limited_at(position)

    def stage(self, name: str) -> Stage:
        """The stage of this name. Raises KeyError."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def buffer(self, name: str) -> Buffer:
        """The input of this name. Raises KeyError."""
        for buffer in self.inputs:
            if buffer.name == name:
                return buffer
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A handle on an input or stage, used while a kernel is built: `tensor[i, j]` is a load.

    Elements are `stored` in a narrower type than `dtype`, which they are converted to, if that is
    not None. `exact` is the tensor before it was rounded to what is stored, if it was.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    stored: DType | None = None
    exact: Tensor | None = None

    def __getitem__(self, indices: Expr | tuple[Expr, ...]) -> Expr:
        if not isinstance(indices, tuple):
            indices = (indices,)
        if len(indices) != len(self.shape):
            raise TypeError(f"{self.name} has {len(self.shape)} axes, indexed with {len(indices)}")
        return cast(self.dtype, Load(self.stored or self.dtype, self.name, indices))

    def widened(self) -> Tensor:
        """With elements of the type that they are computed with."""
        if self.dtype is self.dtype.wide:
            return self
        return Tensor(self.name, self.dtype.wide, self.shape, self.dtype)


class KernelBuilder:
    """Collects inputs and stages while the operators of a fusion group are turned into expressions.

    Names are given in order of creation ("in0", "in1"; "conv2d", "conv2d_1"), so that equal groups
    give equal kernels whatever the model calls its values. An operator that has its result stay
    what it was, see `FusedKernel`, sets `leaves_rest`.
    """

    def __init__(self) -> None:
        self.inputs: list[Buffer] = []
        self.stages: list[Stage] = []
        self.leaves_rest = False
        self._used: dict[str, int] = {}

    def input(self, type: TensorType, constant: bool = False) -> Tensor:
        """Declare the next input."""
        name = f"in{len(self.inputs)}"
        self.inputs.append(Buffer(name, type.dtype, type.shape, constant))
        return Tensor(name, type.dtype, type.shape)

    def stage(
        self,
        hint: str,
        axes: Sequence[tuple[str, int]],
        body: Callable[..., Expr],
        *,
        reduce: Sequence[tuple[str, int]] = (),
        combiner: str = "",
        accumulator: DType | None = None,
    ) -> Tensor:
        """Add the stage `hint[axes] = combiner over reduce of body(*axes, *reduce)`.

        `body` is called with one index expression per axis, then one per reduce axis. Terms are
        joined in the type `accumulator`, None for the body's.
        """
        name = self._next_name(hint)
        self._used[hint] = self._used.get(hint, 0) + 1
        names = [axis for axis, _ in axes] + [axis for axis, _ in reduce]
        if len(set(names)) != len(names):
            raise ValueError(f"stage {name}: axis names repeat: {names}")
        expression = body(*(index(axis) for axis in names))
        stage = Stage(
            name,
            tuple(Axis(axis, extent) for axis, extent in axes),
            tuple(Axis(axis, extent) for axis, extent in reduce),
            combiner,
            expression,
            None if accumulator is expression.dtype else accumulator,
        )
        self.stages.append(stage)
        return Tensor(name, stage.dtype, stage.shape)

    def later(self, hint: str, dtype: DType, shape: tuple[int, ...]) -> Tensor:
        """The next stage of this hint, for stages before it that read back what it was."""
        return Tensor(self._next_name(hint), dtype, shape)

    def kernel(self, name: str, anchor: str, limits: tuple[ValidExtent, ...] = ()) -> FusedKernel:
        """The kernel of what was collected."""
        return FusedKernel(name, tuple(self.inputs), tuple(self.stages), anchor, limits)

    def _next_name(self, hint: str) -> str:
        count = self._used.get(hint, 0)
        return hint if count == 0 else f"{hint}_{count}"


@frozen
class Guard:
    """A call runs only where the bool `value` of the program is `taken`."""

    value: str
    taken: bool

    def __str__(self) -> str:
        return self.value if self.taken else f"not {self.value}"


@frozen
class KernelCall:
    """One kernel of a program: `outputs = kernel(inputs)`, values by their graph names."""

    kernel: FusedKernel
    key: str  # workload key
    inputs: tuple[str, ...]
    output: str
    sources: tuple[str, ...]  # names of the ONNX nodes it came from
    operators: tuple[str, ...]  # graph operators in the group, in order
    guards: tuple[Guard, ...] = ()  # all must hold; the second is known where the first holds


@frozen
class ViewCall:
    """`output` is `input`'s memory, from byte `offset` on, under another shape: no code runs."""

    input: str
    output: str
    offset: int = 0


@frozen
class JoinCall:
    """`output` is the memory that holds the inputs, one behind the other: no code runs.

    Each input is a kernel's result, or a join's, as a whole; or all of them lie one behind the
    other because a later join asks for that.
    """

    inputs: tuple[str, ...]
    output: str


@frozen
class FunctionCall:
    """`outputs = name(inputs)`, code that is not ours; "" is an input that is absent.

    The function was bound to `operands` (None where absent) and gives values of the types
    `results`; `arguments` are the node's attributes as a JSON object. `symbol` and `context` are
    those of a C function, "" of Python.

    Where sizes are open `axes` has for each operand and result what is there of it (None: all, or
    absent), and the last of `inputs` and `operands` is the vector of sizes, which the function does
    not see; else there are no `axes`.
    """

    name: str
    version: str
    symbol: str
    context: str
    arguments: str
    inputs: tuple[str, ...]
    operands: tuple[TensorType | None, ...]
    outputs: tuple[str, ...]
    results: tuple[TensorType, ...]
    source: str
    guards: tuple[Guard, ...] = ()  # as of a kernel's call
    axes: tuple[OpenAxes | None, ...] = ()

    @property
    def output(self) -> str:
        """The first result."""
        return self.outputs[0]

    @property
    def called(self) -> tuple[TensorType | None, ...]:
        """The types of what the function takes and gives."""
        return (*(self.operands[:-1] if self.axes else self.operands), *self.results)

    @property
    def present(self) -> tuple[str, ...]:
        """The inputs that there are."""
        return tuple(name for name in self.inputs if name)


@frozen
class LoopBegin:
    """What follows, up to the `LoopEnd` of the same number, runs again and again.

    The `initial` values become the `states` before the first step; `index` is the number of the
    step ("" if nothing reads it). There are `limit` steps at most (an i64 scalar), none unless the
    bool `first` is true, and never more than `most`. An operand that is absent is "".
    """

    loop: int
    limit: str
    first: str
    initial: tuple[str, ...]
    states: tuple[str, ...]
    index: str
    most: int
    source: str
    guards: tuple[Guard, ...] = ()  # as of a kernel's call

    @property
    def inputs(self) -> tuple[str, ...]:
        """Limit, first condition and initial values; absent ones are ""."""
        return (self.limit, self.first, *self.initial)

    @property
    def output(self) -> str:
        """The first of what it defines; "" of a loop without states whose index nobody reads."""
        return next(iter(written_by(self)), "")


@frozen
class LoopEnd:
    """The end of a step: `following` become the states, and `collected` rows of their results.

    There is no next step unless the bool `again` ("" if absent) is true. `results` are the last
    states, the collected rows, how many steps ran, and whether the loop would go on but for `most`;
    "" for what nothing reads. Of rows whose number is in `backward` the last step makes the first.
    """

    loop: int
    again: str
    following: tuple[str, ...]
    collected: tuple[str, ...]
    results: tuple[str, ...]
    backward: tuple[int, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Next condition, next states, and what is collected; absent ones are ""."""
        return (self.again, *self.following, *self.collected)

    @property
    def final(self) -> tuple[str, ...]:
        """The last states."""
        return self.results[: len(self.following)]

    @property
    def rows(self) -> tuple[str, ...]:
        """What was collected."""
        return self.results[len(self.following) : -2]

    @property
    def output(self) -> str:
        """The first result."""
        return written_by(self)[0]


Call: TypeAlias = KernelCall | ViewCall | JoinCall | FunctionCall | LoopBegin | LoopEnd


def reads_of(call: Call) -> tuple[str, ...]:
    """The values that a call reads."""
    match call:
        case ViewCall():
            return (call.input,)
        case FunctionCall():
            return call.present
        case LoopBegin() | LoopEnd():
            return tuple(name for name in call.inputs if name)
        case _:
            return call.inputs


def written_by(call: Call) -> tuple[str, ...]:
    """The values that a call defines."""
    match call:
        case FunctionCall():
            return call.outputs
        case LoopBegin():
            return tuple(name for name in (*call.states, call.index) if name)
        case LoopEnd():
            return tuple(name for name in call.results if name)
        case _:
            return (call.output,)


@frozen
class KernelProgram:
    """A model after fusion: kernel and function calls, views and joins in execution order."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    calls: tuple[Call, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Array]

    def kernel_calls(self) -> dict[str, list[KernelCall]]:
        """The calls of each distinct kernel by workload key, in order of first use."""
        found: dict[str, list[KernelCall]] = {}
        for call in self.calls:
            if isinstance(call, KernelCall):
                found.setdefault(call.key, []).append(call)
        return found
