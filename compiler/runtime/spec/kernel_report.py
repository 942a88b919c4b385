"""How a kernel was built: what artifacts and builds tell of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TUNED = "tuned"
"""Source of a schedule that has a record."""
PREDICTED = "predicted"
"""Source of a schedule that was never measured for its kernel."""
DEFAULT = "default"
"""Source of the schedule that every kernel has."""
NAIVE = "naive"
"""Source of the schedule where not even the default one fits: scalar loops, a defect that shows."""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """How one distinct kernel was built.

    `schedule_source` is TUNED, PREDICTED (from a similar kernel), DEFAULT or NAIVE (none fits),
    `record_id` names the record it came from, `latency` is the measured time in seconds, if any,
    and `note` says why a chosen schedule was not used. `numerics` is "direct", or names the
    algorithm that changes rounding and the types that are multiplied if these are narrower than
    their sums. `flops` are the arithmetic operations of one call, see
    `tunefarm.compiler.kernels.count_work`. `sources` are the ONNX nodes of all occurrences.
    `not_vectorised` says why most of the work is done element by element, empty if it is not.
    """

    name: str
    key: str
    occurrences: int
    schedule_source: str
    record_id: str | None
    latency: float | None
    note: str
    numerics: str
    parallel: bool
    workspace_bytes: int
    flops: int
    operators: tuple[str, ...]
    sources: tuple[str, ...]
    not_vectorised: str = ""

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> KernelReport:
        """The inverse of `dataclasses.asdict`; `KeyError` or `TypeError` on other JSON."""
        names = {name: tuple(data[name]) for name in ("operators", "sources")}
        return KernelReport(**{**data, **names})
