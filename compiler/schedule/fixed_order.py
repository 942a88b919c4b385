"""Sums of floats in one order, whatever the schedule, the number of threads and the CPU.

A float sum rounds each time a term joins it, so its bits depend on the order of its terms. Under
the precision `deterministic` a kernel has one order: that of its default schedule on the common
target of a family of CPUs. Schedules that keep to it stay in the kernel's space, and a build
refuses all others.

A family is x86-64 with FMA, or 64-bit Arm. Its schedules count in vectors of 16 floats, of which
narrower registers take several for one: partial sums are as many everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tunefarm.compiler.errors import ScheduleError, SettingsError
from tunefarm.compiler.expr.combiners import COMBINERS
from tunefarm.compiler.expr.nodes import Binary
from tunefarm.compiler.expr.parts import split_guards
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.loops.ir import LoopKind
from tunefarm.compiler.loops.stage_state import StageState
from tunefarm.compiler.schedule.apply_schedule import apply_schedule
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.space import ChoiceValue, Sketch
from tunefarm.compiler.schedule.steps.kernel_forms import MergeReduceAxes
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import Algorithm

VECTOR_BYTES = 64  # of the vectors that schedules count in: 16 floats

_OWN_ROUNDING = ("amx-bf16", "amx-fp16", "avx512bf16", "avx512fp16", "bf16", "fp16fml", "fullfp16")
"""Features whose instructions round 16-bit floats in ways of their own."""

_MOVES_NO_TERM = frozenset(("tile", "loops", "unroll", "chunks", "prefetch", "ahead", "rows_ahead"))
"""Choices that tile, unroll and share loops over the elements of a result, or prefetch."""


@dataclass(frozen=True, slots=True, order=True)
class SumOrder:
    """In which order each element of a stage receives its terms.

    `axes` are those of the reduction with their extents, outermost first; an axis whose tiles have
    another axis between them stands as its loops. The terms of a sum are added with one rounding
    each if it `is_product`. `form` is of what joins several terms at once, "" for one by one.
    """

    axes: tuple[tuple[str, int], ...]
    combiner: str
    is_product: bool
    form: str


SumOrders: TypeAlias = tuple[SumOrder, ...]
"""Of all stages of a scheduled kernel whose result depends on the order of its terms, sorted."""


def family_view(target: Target) -> Target:
    """The target as schedules in the fixed order see it: its registers as vectors of 16 floats.

    Raises SettingsError for a target of no family: x86-64 without FMA.
    """
    if not target.has_fma:
        raise SettingsError(
            f"{target.cpu} has no FMA, and its sums round otherwise than those of CPUs that have",
            hint="deterministic builds are for x86-64 with FMA (x86-64-v3 and later) and 64-bit "
            "Arm",
        )
    registers = target.vector_registers * target.vector_bytes // VECTOR_BYTES
    alike = rounding_alike(target)
    return replace(alike, vector_bytes=VECTOR_BYTES, vector_registers=registers, table=None)


def rounding_alike(target: Target) -> Target:
    """The target without the instructions that round as no other CPU of its family need do."""
    features = tuple(name for name in target.features if name not in _OWN_ROUNDING)
    return replace(target, features=features)


def common_target(target: Target) -> Target:
    """What all CPUs of the target's family are taken for where something is decided for all."""
    view = family_view(target)
    is_arm = target.triple.startswith("aarch64")
    features = ("neon",) if is_arm else ("avx", "avx2", "f16c", "fma")
    return replace(
        view,
        cpu="generic" if is_arm else "x86-64-v3",
        features=features,
        vector_registers=8,
        l1_bytes=32 * 1024,
        l2_bytes=512 * 1024,
        l3_bytes=8 * 1024 * 1024,
        cores=1,
    )


def sum_orders(kernel: FusedKernel, schedule: Schedule) -> SumOrders:
    """The orders that a schedule gives the kernel's sums; `ScheduleError` if it does not fit."""
    merged = {
        f"{step.first}_{step.second}": (step.first, step.second)
        for step in schedule.steps
        if isinstance(step, MergeReduceAxes)
    }
    extents = {axis.name: axis.extent for stage in kernel.stages for axis in stage.reduce_axes}
    states = apply_schedule(kernel, schedule).stages
    orders = [_order(state, merged, extents) for state in states if _rounds(state)]
    if orders and schedule.algorithm is not Algorithm.DIRECT:
        orders.append(SumOrder((), "", False, schedule.algorithm))
    return tuple(sorted(orders))


def check_order(kernel: FusedKernel, schedule: Schedule, order: SumOrders) -> None:
    """Raises ScheduleError where the schedule moves terms of the kernel's sums."""
    found = sum_orders(kernel, schedule)
    if found != order:
        other = next((item for item in found if item not in order), None)
        what = "its partial sums are not those" if other is None else f"{_text(other)} is not part"
        raise ScheduleError(f"{what} of the fixed order of a deterministic build")


def keeping_order(
    sketches: Iterable[Sketch], kernel: FusedKernel, order: SumOrders
) -> list[Sketch]:
    """The sketches that can keep to the order, with the values of their choices that do."""
    kept = (_keeping(sketch, kernel, order) for sketch in sketches)
    return [sketch for sketch in kept if sketch is not None]


def _keeping(sketch: Sketch, kernel: FusedKernel, order: SumOrders) -> Sketch | None:
    chosen = dict(zip((choice.name for choice in sketch.choices), sketch.default, strict=True))

    def keeps(**changed: ChoiceValue) -> bool:
        try:
            return sum_orders(kernel, sketch.build({**chosen, **changed})) == order
        except ScheduleError:
            return False

    moving = [choice for choice in sketch.choices if choice.name not in _MOVES_NO_TERM]
    if not keeps():
        repairs = ((c.name, value) for c in moving for value in c.values)
        repair = next((item for item in repairs if keeps(**{item[0]: item[1]})), None)
        if repair is None:
            return None
        chosen |= [repair]
    narrowed = [
        replace(choice, values=tuple(v for v in choice.values if keeps(**{choice.name: v})))
        if choice in moving
        else choice
        for choice in sketch.choices
    ]
    return replace(sketch.narrowed(narrowed), default=tuple(chosen.values()))


def _rounds(state: StageState) -> bool:
    """Whether the order of its terms shows in the stage's result."""
    combiner = state.scanned.combiner if state.scanned else state.stage.combiner
    joins = bool(combiner) and COMBINERS[combiner].rounds
    return joins and state.stage.accumulates.is_float


def _order(
    state: StageState, merged: Mapping[str, tuple[str, str]], extents: Mapping[str, int]
) -> SumOrder:
    stage = state.stage
    if state.scanned is not None:
        return SumOrder((), state.scanned.combiner, False, _scan_form(state))
    _, body = split_guards(stage.body, stage.combiner)
    is_product = stage.combiner == "sum" and isinstance(body, Binary) and body.op == "mul"
    forms = {"dot": state.dotted, "tiles": state.tiled, "scatter": state.scattered}
    form = " ".join(name for name, found in forms.items() if found is not None)
    axes = _walked(state, merged, extents)
    return SumOrder(axes, stage.combiner, is_product, form)


def _scan_form(state: StageState) -> str:
    """Of a running sum: the elements of a vector are first joined among themselves."""
    assert state.scanned is not None
    vectors = [loop for loop, kind in state.kinds.items() if kind is LoopKind.VECTORISED]
    along = [loop for loop in vectors if state.is_part(loop, state.scanned.axis)]
    widths = [split.factor for split in state.splits.values() if split.inner in along]
    return f"scan in vectors of {widths}" if along else "scan"


def _walked(
    state: StageState, merged: Mapping[str, tuple[str, str]], extents: Mapping[str, int]
) -> tuple[tuple[str, int], ...]:
    """The reduce axes in the order in which they are walked, with their extents.

    Tiles of an axis that are walked one after the other are the axis, in ascending order. So is one
    of the loops of a tiling where the other has a single round.
    """
    sizes = {axis.name: axis.extent for axis in state.stage.reduce_axes}
    parents: dict[tuple[str, ...], str] = {}
    for parent, split in state.splits.items():  # a loop is split after what it is a part of
        if parent in sizes:
            sizes[split.inner] = split.tile(sizes[parent])
            sizes[split.outer] = -(-sizes[parent] // sizes[split.inner])
            parents[split.outer, split.inner] = parent
            parents |= {(one,): parent for one in (split.outer, split.inner)}
    loops = [loop for loop in state.order if loop in state.reduce and sizes[loop] > 1]
    joined = True
    while joined:
        joined = False
        for at in range(len(loops)):
            for count in (2, 1):
                part = tuple(loops[at : at + count])
                parent = parents.get(part, "")
                if parent and math.prod(sizes[loop] for loop in part) >= sizes[parent]:
                    loops[at : at + count] = [parent]
                    joined = True
    names = [name for loop in loops for name in _parts(loop, merged)]
    found = ((name, sizes.get(name) or extents[name]) for name in names)
    return tuple((name, size) for name, size in found if size > 1)


def _parts(axis: str, merged: Mapping[str, tuple[str, str]]) -> list[str]:
    """The axes that were merged to one."""
    if axis not in merged:
        return [axis]
    return [part for name in merged[axis] for part in _parts(name, merged)]


def _text(order: SumOrder) -> str:
    axes = ", ".join(name for name, _ in order.axes) or order.form
    return f"{order.combiner} over {axes}"
