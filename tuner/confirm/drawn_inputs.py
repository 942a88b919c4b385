"""Random arguments for a built model: of its types, or at chosen sizes where those are open."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import numpy as np

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.chosen_sizes import choose_sizes, put_sizes
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.signature import ResultSource, Signature
from tunefarm.compiler.types.tensor_type import Array, TensorType


def seeded_inputs(types: Mapping[str, TensorType], seed: int = 0) -> dict[str, Array]:
    """Random inputs: normal floats, integers 0 and 1 (valid as indices), random bools."""
    rng = np.random.default_rng(seed)
    inputs: dict[str, Array] = {}
    for name, type in types.items():
        if type.dtype.is_float:
            drawn: Array = rng.standard_normal(type.shape)
        else:
            drawn = rng.integers(0, 2, type.shape)
        inputs[name] = converted(drawn, type.dtype)
    return inputs


def drawn_inputs(
    executable: Executable, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """`seeded_inputs` where symbols have these sizes, the others one in the middle of their bounds.

    Elements that say sizes do so. Raises `InputError` for sizes that do not fit.
    """
    inputs = seeded_inputs(executable.inputs_at(sizes), seed)
    put_sizes(executable.signature, executable.chosen_sizes(sizes or {}), inputs)
    return inputs


def drawn_sizes(signature: Signature, seed: int) -> dict[str, int]:
    """Sizes within the bounds, each order of magnitude as likely as another.

    Raises `InputError` where no sizes fit that are looked at.
    """
    rng, drawn = np.random.default_rng(seed), dict[str, int]()
    for source in signature.sources:
        low, high = max(source.symbol.low, 1), source.symbol.high
        if not isinstance(source, ResultSource):
            drawn[source.symbol.name] = round(low * (high / low) ** rng.random())
    for count in range(len(drawn), 0, -1):  # what must be equal leaves fewer to be drawn
        try:
            return choose_sizes(signature, dict(islice(drawn.items(), count)))
        except InputError:
            continue
    return choose_sizes(signature, {})
