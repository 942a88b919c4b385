"""References that stay loaded from request to request: checked, and timed before."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from tunefarm.measure.worker.bound_call import BoundCall
from tunefarm.measure.worker.build_candidate import BuiltCandidate

_MOST_KEPT = 64
_MOST_OF_WORKLOAD = 3  # their constants stay packed
_MOST_BYTES = 128 * 1024 * 1024  # that they hold besides their workloads

Key: TypeAlias = tuple[str, BuiltCandidate]  # workload key, and the very object code


class KeptCalls:
    """Loaded candidates by workload and object code; the latest stay."""

    def __init__(self) -> None:
        self._calls: OrderedDict[Key, BoundCall] = OrderedDict()

    def find(self, key: Key) -> BoundCall | None:
        """The loaded candidate, if it is kept."""
        if key in self._calls:
            self._calls.move_to_end(key)
        return self._calls.get(key)

    def keep(self, key: Key, call: BoundCall) -> None:
        """Keep it, and let go of others, the longest unused first, until there is room."""
        before = self._calls.pop(key, None)
        if before is not None and before is not call:
            before.close()
        self._calls[key] = call
        of_workload = [other for other in self._calls if other[0] == key[0]]
        for other in of_workload[:-_MOST_OF_WORKLOAD]:
            self.drop(other)
        while len(self._calls) > 1 and (
            len(self._calls) > _MOST_KEPT
            or sum(kept.nbytes for kept in self._calls.values()) > _MOST_BYTES
        ):
            self._calls.popitem(last=False)[1].close()

    def of_workload(self, workload_key: str) -> list[BoundCall]:
        """What is kept of a workload."""
        return [call for (kept, _), call in self._calls.items() if kept == workload_key]

    def drop(self, key: Key) -> None:
        """Keep this one no longer."""
        call = self._calls.pop(key, None)
        if call is not None:
            call.close()

    def drop_workload(self, workload_key: str) -> None:
        """Keep none of a workload whose memory goes."""
        for key in [key for key in self._calls if key[0] == workload_key]:
            self.drop(key)
