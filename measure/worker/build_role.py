"""What a builder does with a request: see `tunefarm.measure.sandbox.child`."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

from tunefarm.compiler.kernels.serialize import kernel_from_json
from tunefarm.compiler.target import Target
from tunefarm.measure.measurement import MeasureRequest, Status
from tunefarm.measure.sandbox.by_name import by_name
from tunefarm.measure.sandbox.messages import InFlight, Message
from tunefarm.measure.sandbox.worker_settings import WorkerSettings
from tunefarm.measure.worker.build_candidate import (
    COMPILE,
    BuiltCandidate,
    Compile,
    build_candidate,
    unpack_candidates,
)
from tunefarm.measure.worker.reference import ensure_reference

_KEPT = 256  # built schedules: references come again, whatever is built between


class BuildRole:
    """Compiles candidates, and computes the reference of each kernel that it has not seen."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._scratch = Path(settings.scratch)
        self._compile: Compile = by_name(settings.compile or COMPILE)
        self._target = Target.from_json(settings.target)
        self._in_flight = InFlight(settings.in_flight)
        self._kept: OrderedDict[tuple[str, str, str], BuiltCandidate] = OrderedDict()

    def answer(self, message: Message) -> Message:
        """Build the candidate of a request."""
        fields = message.fields["request"]
        tuples = {name: tuple(fields[name]) for name in ("rivals", "placements", "sizes")}
        request = MeasureRequest(**{**fields, **tuples})
        result = build_candidate(request, self._target, self._compile_once, self._in_flight)
        if result.status is Status.OK:
            kernel = kernel_from_json(request.kernel)
            rounds = any(item.rounds_data for item in unpack_candidates(result.candidates))
            key = request.workload_key
            ensure_reference(kernel, key, self._scratch, request.sizes, rounded=rounds)
        reply = {
            "status": str(result.status),
            "error": result.error,
            "build_seconds": result.build_seconds,
            "culprit": result.culprit,
        }
        return Message(reply, result.candidates)

    def _compile_once(self, request: MeasureRequest, target: Target) -> BuiltCandidate:
        """Compile a schedule, unless it is among the latest that were."""
        schedule = json.dumps(request.schedule, sort_keys=True)
        key = request.workload_key, request.numerics, schedule
        found = self._kept.pop(key, None)
        if found is None:
            found = self._compile(request, target)
        self._kept[key] = found
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return found
