"""Recorded latencies that need no machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunefarm.db.records import LatencyPurpose, LatencyRecord
from tunefarm.tuner.records.model_latencies import (
    AppliedKernel,
    MeasuredModel,
    ModelStep,
    ModelTimes,
    Ratio,
)
from tunefarm.tuner.verify.drift import Situation

MACHINE = {
    "cpu": "made-up",
    "features": "f",
    "cores": 2,
    "kernel": "6.1",
    "governor": "",
    "fingerprint": "m",
}
HERE = Situation("target", "5", "22.1.0", MACHINE)


def kernel(name: str, source: str = "tuned", schedule: str = "s1") -> AppliedKernel:
    return AppliedKernel(name, 1, source, schedule, 1e-4, 1000)


def times(
    ratio: float = 0.5, error: float = 0.01, seconds: Mapping[str, float] | None = None
) -> ModelTimes:
    """A model whose time over the untuned one's is `ratio`, give or take `error` (95 %)."""
    seconds = {"a": 8e-4, "b": 1e-4, "c": 1e-4} if seconds is None else seconds
    return ModelTimes(
        tuned=1e-3,
        llvm="22.1.0",
        untuned=1e-3 / ratio,
        over_untuned=Ratio(ratio, ratio * (1 - error), ratio * (1 + error)),
        steps=tuple(ModelStep(name, name, value) for name, value in seconds.items()),
        kernels={name: kernel(name) for name in seconds},
    )


def measured(
    item: ModelTimes | None = None,
    purpose: LatencyPurpose = "job",
    created: float = 0.0,
    machine: Mapping[str, Any] = MACHINE,
    target: str = "target",
    compiler_version: str = "5",
) -> MeasuredModel:
    record = LatencyRecord(
        id=f"{purpose}-{created}",
        model_name="model.onnx",
        model_hash="hash",
        target=target,
        threads=1,
        numerics="default",
        compiler_version=compiler_version,
        purpose=purpose,
        machine=dict(machine),
        measured={},
        created=created,
    )
    return MeasuredModel(record, times() if item is None else item)
