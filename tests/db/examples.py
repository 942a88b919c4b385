"""Records for the tests of stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import func, select

from tunefarm.db import schema
from tunefarm.db.records import (
    BuildRecord,
    LatencyRecord,
    PlanRecord,
    TargetRecord,
    TaskKey,
    TrialRecord,
    WorkloadRecord,
)
from tunefarm.db.store import Store

KEY = TaskKey("89abcdef01234567", "x86-64-v3/8", 1, "default", "1")
WORKLOAD = WorkloadRecord(KEY.workload, "conv_relu", {"stages": [["conv", 1.5, None]]})
TARGET = TargetRecord(KEY.target, {"cpu": "x86-64-v3", "lanes": 8})


def populate(store: Store) -> None:
    """Add what trials of KEY refer to."""
    store.add([WORKLOAD])
    store.add([TARGET])


def trial(number: int, latency: float | None = 1.0, **changes: Any) -> TrialRecord:
    """An ok trial of KEY; another `number` is another schedule and another request."""
    record = TrialRecord(
        key=KEY,
        request_id=f"request-{number}",
        sketch="direct",
        choices={"tile": [number, 4], "order": "nhwc"},
        schedule=[["Tile", "oc", number], ["Vectorize", "oci"]],
        status="ok",
        latency=latency,
        samples=(1.0, 1.25, 0.75),
        build_seconds=0.5,
        check_seconds=0.25,
        run_seconds=0.125,
        machine={"cpu": "Example 3000", "cores": 2},
        conditions={"load": 0.5},
        created=1000.0 + number,
    )
    return replace(record, **changes)


def paired(number: int, against: int, **changes: Any) -> TrialRecord:
    """An ok trial that was measured against that of another number, and took half the time."""
    pair = {"ratio": 0.5, "low": 0.45, "high": 0.55, "reference_samples": (2.0, 2.5, 1.5)}
    record = trial(number, 0.5, reference=trial(against).schedule_hash, **pair)
    return replace(record, **changes)


def failed(number: int, status: str = "crashed", error: str = "signal 11") -> TrialRecord:
    """A trial that ended without a latency."""
    return trial(number, None, samples=(), status=status, error=error)


def build(number: int) -> BuildRecord:
    """A build of a model for KEY's target; another `number` is another build."""
    return BuildRecord(
        id=f"build-{number}",
        model_name="resnet18",
        model_hash="abc",
        target=TARGET.key,
        threads=1,
        numerics="default",
        compiler_version="1",
        artefact_sha256=f"{number:064x}",
        tuned_share=0.75,
        report={"kernels": [{"name": "conv", "share": 0.75}]},
        created=2000.0 + number,
    )


def plan(number: int, **changes: Any) -> PlanRecord:
    """A plan of a model for KEY's target; another `number` is another plan."""
    record = PlanRecord(
        id=f"plan-{number}",
        model_name="resnet18",
        model_hash="abc",
        target=TARGET.key,
        threads=1,
        numerics="auto",
        compiler_version="1",
        plan={"points": [{"error": 0.01, "number": number}]},
        created=3000.0 + number,
    )
    return replace(record, **changes)


def latency(number: int, **changes: Any) -> LatencyRecord:
    """A latency of a model on KEY's target; another `number` is another one."""
    record = LatencyRecord(
        id=f"latency-{number}",
        model_name="resnet18",
        model_hash="abc",
        target=TARGET.key,
        threads=1,
        numerics="default",
        compiler_version="1",
        purpose="job",
        machine={"cpu": "test", "cores": 2},
        measured={"before": 0.002, "after": 0.001 * number},
        created=4000.0 + number,
    )
    return replace(record, **changes)


def count_claims(store: Store) -> int:
    """How many candidates are claimed."""
    with store.reading() as session:
        return session.scalar(select(func.count()).select_from(schema.Claim)) or 0
