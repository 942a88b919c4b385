"""What a measuring process does with a request: see `tunefarm.measure.sandbox.child`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from tunefarm.compiler.target import Target
from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.measure.sandbox.messages import InFlight, Message
from tunefarm.measure.sandbox.node_kind import kind_of, this_node
from tunefarm.measure.sandbox.worker_settings import WorkerSettings
from tunefarm.measure.worker.build_candidate import unpack_candidates
from tunefarm.measure.worker.run_candidate import CandidateRunner
from tunefarm.measure.worker.timer import TimingOptions


class MeasureRole:
    """Checks and times candidates: the only place where foreign code runs."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._target = Target.from_json(settings.target).key if settings.target else ""
        self._problem = other_kind(settings)
        self._runner = CandidateRunner(
            Path(settings.scratch), settings.threads, settings.cores, InFlight(settings.in_flight)
        )

    def answer(self, message: Message) -> Message:
        """Check and time the candidates of a request."""
        fields = message.fields
        if problem := self._problem or self._not_for(fields.get("target", "")):
            return Message(asdict(MeasureResult("", Status.INFRASTRUCTURE, error=problem)))
        outcome = self._runner.run(
            fields["kernel"],
            fields["workload_key"],
            unpack_candidates(message.blob),
            TimingOptions.of(fields["options"]),
            fields["seed"],
            fields["placements"],
            tuple(fields["sizes"]),
        )
        return Message({**asdict(outcome.result), "retire": outcome.retire})

    def _not_for(self, target: str) -> str:
        """Why a candidate that was built for a target is not timed here; "" if it is."""
        if target in ("", self._target):
            return ""
        return f"a candidate for {target} came to a node that measures for {self._target}"


def other_kind(settings: WorkerSettings) -> str:
    """Why this machine may not measure for its target, whatever it was taken for; "" if it may."""
    if not settings.kinds:
        return ""
    node = this_node(settings.probe)
    kind = kind_of(node, [Target.from_json(target) for target in settings.kinds])
    if kind is not None and kind.to_json() == dict(settings.target):
        return ""
    stands = "none of the targets" if kind is None else kind.key
    cpu = settings.target.get("cpu")
    return f"this {node.cpu} is not a node for {cpu}: its CPU stands for {stands}"
