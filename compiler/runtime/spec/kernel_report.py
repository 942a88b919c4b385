"""How a kernel was built: what artifacts and builds tell of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunefarm.compiler.errors import with_count
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.numerics import Algorithm

TUNED = "tuned"
"""Source of a schedule that has a record."""
DEFAULT = "default"
"""Source of the schedule that every kernel has."""
NAIVE = "naive"
"""Source of the schedule where not even the default one fits: scalar loops, a defect that shows."""

_WIDE = frozenset(algorithm.value for algorithm in Algorithm)
_NODES_NAMED = 2  # of a kernel
_NODE_CHARACTERS = 100  # of a node's name, whose middle is left out where it has more


def node_names(sources: Sequence[str], others: int) -> str:
    """The ONNX nodes of one call and how many other calls there are: `conv1 + relu1 (and 2 more)`;
    "" where no node has a name."""
    names = [name for name in dict.fromkeys(sources) if name]
    if not names:
        return ""
    rest = len(names) - _NODES_NAMED
    text = " + ".join(map(_shortened, names[:_NODES_NAMED]))
    text += f" + {with_count(rest, 'more node')}" if rest > 0 else ""
    return f"{text} (and {others} more)" if others > 0 else text


def _shortened(name: str) -> str:
    half = _NODE_CHARACTERS // 2
    return name if len(name) <= _NODE_CHARACTERS else f"{name[:half]}…{name[1 - half :]}"


@frozen
class KernelReport:
    """How one distinct kernel was built.

    `schedule_source` is TUNED, DEFAULT or NAIVE (none fits; earlier: predicted),
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

    @property
    def nodes(self) -> str:
        """The ONNX nodes that the first call computes, and how many other calls there are."""
        return node_names(self._sources_of(0), len(self.sources) // self._width - 1)

    @property
    def is_narrow(self) -> bool:
        """Whether it multiplies numbers of narrower types than its sums have."""
        return self.numerics not in _WIDE

    @property
    def title(self) -> str:
        """What the kernel is called, for people: by its nodes, if these have names."""
        return self.nodes or self.name

    def nodes_of(self, call: int) -> str:
        """The ONNX nodes that one of its calls computes, in the order of the model."""
        return node_names(self._sources_of(call), 0)

    @property
    def _width(self) -> int:
        """The number of nodes of a call."""
        return max(1, len(self.operators))

    def _sources_of(self, call: int) -> tuple[str, ...]:
        return self.sources[call * self._width : (call + 1) * self._width]

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> KernelReport:
        """The inverse of `dataclasses.asdict`; `KeyError` or `TypeError` on other JSON."""
        names = {name: tuple(data[name]) for name in ("operators", "sources")}
        return KernelReport(**{**data, **names})
