"""What a measuring process does with a request: see `measure.sandbox.child`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from measure.sandbox.messages import Message
from measure.sandbox.turn import Turn
from measure.sandbox.worker_settings import WorkerSettings
from measure.worker.build_candidate import unpack_candidates
from measure.worker.run_candidate import CandidateRunner
from measure.worker.timer import TimingOptions


class MeasureRole:
    """Checks and times candidates: the only place where foreign code runs."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._runner = CandidateRunner(
            Path(settings.scratch), settings.threads, settings.cores, Turn(settings.turn)
        )

    def answer(self, message: Message) -> Message:
        fields = message.fields
        outcome = self._runner.run(
            fields["kernel"],
            fields["workload_key"],
            unpack_candidates(message.blob),
            TimingOptions.of(fields["options"]),
            fields["seed"],
            fields["placements"],
        )
        return Message({**asdict(outcome.result), "retire": outcome.retire})
