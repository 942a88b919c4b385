"""Forms of sums of products of bytes whose factors are made numbers of 16 bits once.

For targets that multiply pairs of these, but have no dot products of bytes: there two instructions
a factor are saved wherever it is multiplied, and a copy of the data is written and read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from tunefarm.compiler.expr.walk import axes_of, loads
from tunefarm.compiler.kernels.accumulate import narrow_types
from tunefarm.compiler.kernels.roles import with_roles
from tunefarm.compiler.kernels.wide_factors import apply_wide_factors, has_wide_factors
from tunefarm.compiler.schedule.sketches.roles import roles_of
from tunefarm.compiler.schedule.sketches.tile_dots import dot_axis
from tunefarm.compiler.schedule.sketches.tile_forms import TileForm
from tunefarm.compiler.schedule.steps.kernel_forms import MergeAxes, WideFactors
from tunefarm.compiler.schedule.vectors import vector_lanes
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType

_BYTES = (DType.U8, DType.I8)
LEAST_WORK = 1 << 16  # multiplications, which take a few times as long as a loop begins and ends
LEAST_USES = 32  # of each element of the data: from there on converting it apart pays


def wide_forms(forms: Sequence[TileForm], target: Target) -> list[TileForm]:
    """Those of the forms that may gain, with factors of 16 bits."""
    made = [_wide(form, target) for form in forms if _may_gain(form, target)]
    return [form for form in made if form is not None]


def _may_gain(form: TileForm, target: Target) -> bool:
    """Each element is multiplied often, in dot products that are made of pairs."""
    anchor = form.kernel.stage(form.kernel.anchor)
    if form.dot is None or form.dot.terms != 4 or len(narrow_types(anchor)) != 2:
        return False
    if not multiplies_pairs(target):
        return False
    if not all(isinstance(step, MergeAxes) for step in form.steps):
        return False
    if not has_wide_factors(form.kernel):
        return False
    constants = {buffer.name for buffer in form.kernel.inputs if buffer.constant}
    along = {load.buffer for load in loads(anchor.body) if form.roles.vector in axes_of(load)}
    if not along <= constants:  # what is broadcast is converted word by word
        return False
    size = max(math.prod(buffer.shape) for buffer in form.kernel.inputs if not buffer.constant)
    work = math.prod(axis.extent for axis in (*anchor.axes, *anchor.reduce_axes))
    return work >= max(LEAST_WORK, LEAST_USES * size)


def multiplies_pairs(target: Target) -> bool:
    """The target has dot products of numbers of 16 bits, and none of bytes of whatever signs."""
    if any(target.dot_products(*signs, DType.I32) for signs in product(_BYTES, _BYTES)):
        return False
    return bool(target.dot_products(DType.I16, DType.I16, DType.I32))


def _wide(form: TileForm, target: Target) -> TileForm | None:
    made = apply_wide_factors(form.kernel)
    lanes = vector_lanes(made, target)
    kernel = made if form.roles.phases else with_roles(made, lanes)
    roles = roles_of(kernel)
    if roles is None:
        return None
    dot = dot_axis(kernel, roles.vector, lanes)
    if dot is None or form.dot is None or dot.axis != form.dot.axis:
        return None
    steps = (*form.steps, WideFactors())
    name = f"{form.name}_wide"
    return replace(form, name=name, kernel=kernel, steps=steps, roles=roles, dot=dot, converts=True)
