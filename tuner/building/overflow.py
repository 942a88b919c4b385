"""Numbers that f16 does not hold, found by a run: what the note of a build says of them."""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import Compiled
from tunefarm.compiler.plan.apply_precisions import prepare
from tunefarm.compiler.plan.precision.contractions import contractions
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.chosen_sizes import choose_sizes, put_sizes
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.numerics import F16_NUMERICS
from tunefarm.compiler.types.precision import Precision
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.configs.settings import Settings
from tunefarm.tuner.building.compile import compile_with
from tunefarm.tuner.calibration.collect import with_outputs

_NAMED = 4
"""Contractions that a note names."""


def overflow_note(graph: Graph, built: Compiled, settings: Settings) -> str:
    """Which contractions read numbers beyond f16's largest one, or "".

    The built model is run once with seeded inputs; where its outputs are not finite, a build in f32
    tells why. Models of another precision, or for other machines, are not run.
    """
    host = host_target()
    if settings.compile.numerics != F16_NUMERICS.name or built.spec.target.key != host.key:
        return ""
    executable = Executable(built.spec.of_tensors())
    inputs = {name: _drawn(type) for name, type in executable.inputs_at().items()}
    if graph.signature is not None:
        put_sizes(graph.signature, choose_sizes(graph.signature, {}), inputs)
    if _are_finite(executable.run(inputs)):
        return ""
    prepared = prepare(graph)
    found = [
        item
        for item in contractions(prepared)
        if item.has(Precision.F16) and item.data not in prepared.inputs
    ]
    plain = settings.compile.model_copy(update={"numerics": "default"})
    in_f32 = settings.model_copy(update={"compile": plain})
    inner = with_outputs(prepared, dict.fromkeys(item.data for item in found))
    values = Executable(compile_with(inner, None, in_f32, host).spec).run(inputs)
    largest = float(np.finfo(np.float16).max)
    names = [item.label for item in found if np.abs(values[item.data]).max() > largest]
    if not names:
        return ""
    some = ", ".join(names[:_NAMED]) + ", ..." * (len(names) > _NAMED)
    return f"outputs are not finite: f16 ends at {largest:g}, bf16 does not: operands of {some}"


def _drawn(type: TensorType) -> Array:
    """Normal floats; of other types 0 and 1."""
    rng = np.random.default_rng(0)
    is_float = type.dtype.is_float
    drawn: Array = rng.standard_normal(type.shape) if is_float else rng.integers(0, 2, type.shape)
    return converted(drawn, type.dtype)


def _are_finite(outputs: dict[str, Array]) -> bool:
    floats = (array for array in outputs.values() if array.dtype.kind == "f")
    return all(bool(np.isfinite(array).all()) for array in floats)
