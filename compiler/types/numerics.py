"""Precision: what a model's numbers are kept in, and what may compute them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.types.dtypes import WIDE_FLOATS, DType
from tunefarm.compiler.types.frozen import frozen

Denormals: TypeAlias = Literal["flush", "keep"]
"""What becomes of floats too small to be normal, which CPUs are slow at.

Flushed, they count as zeros of their sign wherever something is computed from them, and results
that would be denormal are such zeros. What only moves elements, or takes their bits, keeps them."""
FP16: Final = "fp16"
"""What users type for the precision that records call f16."""
FLUSH: Final = "flush"
KEEP: Final = "keep"

_ROUNDINGS = 64.0
"""Roundings of the sums' type that one term may come with. They leave room for vectorised exp and
tanh of a few ulp and for Winograd's transforms; a forgotten term of a sum of 4608 is many more."""


class Algorithm(StrEnum):
    """How a kernel's result is computed, where that decides how it is rounded."""

    DIRECT = "direct"
    WINOGRAD_2 = "winograd F(2x2)"
    WINOGRAD_4 = "winograd F(4x4)"
    ONLINE_SOFTMAX = "online softmax"
    DIGITS = "split-integer dot products"
    ROUNDED_DATA = "int8 activations"

    @staticmethod
    def winograd(m: int) -> Algorithm:
        """Winograd's minimal filtering with tiles of m x m outputs; `ValueError` for other m."""
        return Algorithm(f"winograd F({m}x{m})")


@frozen
class Numerics:
    """How exact a model's results are.

    `name` is its spelling in settings and in the keys of records. `algorithms` are those that
    kernels may be computed with. The factors of contractions in f32, and what lies between these,
    are kept in `storage`, and their products summed in f32; None stands for the types that the
    model says. `contractions` has what differs from that: the storage of single contractions by
    their source, the name of the model's node. F32 keeps one as it is. Integers are for passes that
    quantise. `denormals` says what becomes of floats too small to be normal; what is searched and
    recorded does not depend on it.
    """

    name: str
    algorithms: frozenset[Algorithm]
    storage: DType | None = None
    contractions: tuple[tuple[str, DType], ...] = ()
    denormals: Denormals = FLUSH

    @staticmethod
    def of(name: Numerics | str) -> Numerics:
        """The precision of this name; fp16 is f16. Raises SettingsError for another name."""
        if isinstance(name, Numerics):
            return name
        if name == FP16:
            return F16_NUMERICS
        if name not in NUMERICS:
            known = [FP16 if each == F16_NUMERICS.name else each for each in NUMERICS]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else ""
            raise SettingsError(f"unknown precision {name!r}; known: {', '.join(known)}", hint=hint)
        return NUMERICS[name]

    def planned(self, contractions: Mapping[str, DType]) -> Numerics:
        """This precision with the storage of single contractions, by source.

        Raises `ValueError` where more than one narrow float type would be left in the model.
        """
        planned = replace(self, contractions=tuple(sorted(contractions.items())))
        if len(planned._narrow_storages()) > 1:
            raise ValueError("all matmuls and convs of a model have the same narrow float type")
        return planned

    @property
    def rounds_each(self) -> bool:
        """Whether results in 16-bit floats are rounded wherever an operator gives one: ONNX's rule.

        Else an operator takes what another one of its kernel computed in f32: that is more exact.
        What reads a result from memory, a conversion of the model's, and a model's output are
        rounded either way.
        """
        return self.name == STRICT_NUMERICS.name

    @property
    def narrow(self) -> DType | None:
        """The float type narrower than f32 that contractions are kept in; None: there is none."""
        return next(iter(self._narrow_storages()), None)

    @property
    def fixes_order(self) -> bool:
        """Whether sums of floats have one order, whatever the schedule, the threads and the CPU.

        The order is `tunefarm.compiler.schedule.fixed_order`'s.
        """
        return self.name == DETERMINISTIC_NUMERICS.name

    def storage_of(self, source: str) -> DType | None:
        """What the factors of the contraction with this source are kept in; None: as they are."""
        return dict(self.contractions).get(source, self.storage)

    def is_planned(self, source: str) -> bool:
        """Whether the contraction with this source has a storage of its own."""
        return source in dict(self.contractions)

    def _narrow_storages(self) -> set[DType]:
        stored = (self.storage, *(storage for _, storage in self.contractions))
        return {storage for storage in stored if storage is not None and is_narrow(storage)}


def one_precision(
    precision: Numerics | str | None, numerics: Numerics | str | None
) -> Numerics | str | None:
    """The keyword `precision`, or `numerics`, its former name; None where neither is given.

    Raises SettingsError where both are.
    """
    if precision is not None and numerics is not None:
        raise SettingsError(
            "precision= and numerics= are the same keyword", hint="give precision= alone"
        )
    return numerics if precision is None else precision


def denormals_of(name: str) -> Denormals:
    """Whether they are flushed or kept, by name; `ValueError` for another."""
    if name == FLUSH:
        return FLUSH
    if name == KEEP:
        return KEEP
    raise ValueError(f"denormals are flushed or kept, not {name!r}")


def is_narrow(dtype: DType) -> bool:
    """Whether it is a float type that is computed with in f32."""
    return dtype.is_float and dtype not in WIDE_FLOATS


def sum_tolerance(dtype: DType, length: float) -> float:
    """The relative error that a result of a float type may have behind sums of `length` terms.

    Roundings of random sign pile up with the root of their number (Higham and Mary 2019). What is
    stored in a narrow type is summed in f32.
    """
    return _ROUNDINGS * (DType.F32 if is_narrow(dtype) else dtype).epsilon * math.sqrt(length)


_EXACT: Final = frozenset(Algorithm) - {Algorithm.ROUNDED_DATA}
"""Algorithms whose results are as exact as sums of floats."""

DEFAULT_NUMERICS = Numerics("default", _EXACT)
"""Whatever is fast, in the model's own types."""
STRICT_NUMERICS = Numerics("strict", frozenset((Algorithm.DIRECT,)))
"""Every sum term by term, as the model says."""
DETERMINISTIC_NUMERICS = Numerics("deterministic", _EXACT)
"""The model's own types; the same bits for any schedule, thread count and CPU of a family."""
INT8_ACTIVATIONS = Numerics("int8-activations", frozenset(Algorithm))
"""The model's own types, but data that quantised weights are multiplied with is rounded to 8 bits,
symmetrically by the largest number of each block of a row."""
BF16_NUMERICS = Numerics("bf16", _EXACT, DType.BF16)
F16_NUMERICS = Numerics("f16", _EXACT, DType.F16)

NUMERICS = {
    numerics.name: numerics
    for numerics in (
        DEFAULT_NUMERICS,
        STRICT_NUMERICS,
        DETERMINISTIC_NUMERICS,
        INT8_ACTIVATIONS,
        BF16_NUMERICS,
        F16_NUMERICS,
    )
}
"""By the name that settings and records have."""
