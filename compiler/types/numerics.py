"""Numerics: what a model's numbers are kept in, and what may compute them."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from enum import StrEnum

from compiler.errors import SettingsError
from compiler.types.dtypes import DType

_ROUNDINGS = 64.0
"""Roundings of the storage type that one term may come with. They leave room for vectorised exp and
tanh of a few ulp and for Winograd's transforms; a forgotten term of a sum of 4608 is many more."""


class Algorithm(StrEnum):
    """How a kernel's result is computed, where that decides how it is rounded."""

    DIRECT = "direct"
    WINOGRAD_2 = "winograd F(2x2)"
    WINOGRAD_4 = "winograd F(4x4)"
    ONLINE_SOFTMAX = "online softmax"

    @staticmethod
    def winograd(m: int) -> Algorithm:
        """Winograd's minimal filtering with tiles of m x m outputs; `ValueError` for other m."""
        return Algorithm(f"winograd F({m}x{m})")


@dataclass(frozen=True, slots=True)
class Numerics:
    """How exact a model's results are.

    `name` is its spelling in settings and in the keys of records. Tensors are kept in `storage` and
    sums in `accumulator`; None stands for the types that the model says. `algorithms` are those
    that kernels may be computed with.
    """

    name: str
    algorithms: frozenset[Algorithm]
    storage: DType | None = None
    accumulator: DType | None = None

    @staticmethod
    def of(name: Numerics | str) -> Numerics:
        """The numerics of this name. Raises SettingsError for another name."""
        if isinstance(name, Numerics):
            return name
        if name not in NUMERICS:
            near = difflib.get_close_matches(name, NUMERICS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else ""
            raise SettingsError(f"no numerics {name!r}; there are {', '.join(NUMERICS)}", hint=hint)
        return NUMERICS[name]

    def tolerance(self, output: DType, length: float) -> float:
        """The relative error that an output of a float type may have behind sums of `length` terms.

        Roundings of random sign pile up with the root of their number (Higham and Mary 2019).
        """
        epsilon = max(output.epsilon, self.storage.epsilon if self.storage else 0.0)
        return _ROUNDINGS * epsilon * math.sqrt(length)


DEFAULT_NUMERICS = Numerics("default", frozenset(Algorithm))
"""Whatever is fast, in the model's own types."""
STRICT_NUMERICS = Numerics("strict", frozenset((Algorithm.DIRECT,)))
"""Every sum term by term, as the model says."""

NUMERICS = {numerics.name: numerics for numerics in (DEFAULT_NUMERICS, STRICT_NUMERICS)}
"""By the name that settings and records have."""
