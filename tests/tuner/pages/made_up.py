"""A database as a night leaves it, made of records alone: nothing is measured."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from tests.tuner.fleet import record_kernel
from tests.tuner.synthetic import matmul_kernel
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import host_target
from tunefarm.db.records import (
    CONFIRMED,
    BestRecord,
    JobTask,
    LatencyRecord,
    TaskKey,
    TrialRecord,
    hash_json,
)
from tunefarm.db.store import Store
from tunefarm.tuner.records.model_latencies import (
    AppliedKernel,
    EngineTime,
    MachineRoof,
    ModelStep,
    ModelTimes,
    Ratio,
)

MACHINE = {"cpu": "made-up", "fingerprint": "f1", "cores": 2}
_SLICES = 14
_ERRORS = (
    "LoweringError: 64 vector registers are needed, there are 32",
    "LoweringError: 48 vector registers are needed, there are 32",
    "signal 11 in the candidate's code",
)


def fill(store: Store, kernels: int, trials: int, *, name: str = "net.onnx", seed: int = 0) -> str:
    """A finished job with so many kernels and trials of each; its id."""
    draw = random.Random(seed)
    target = host_target()
    made: list[tuple[TaskKey, list[object]]] = []
    for number in range(kernels):
        kernel = matmul_kernel(8 + number, 16, 32)
        key = record_kernel(store, kernel, target, version="1")
        made.append((key, default_schedule(kernel, target).to_json()))
    tasks = [JobTask(key, 1 + number % 3) for number, (key, _) in enumerate(made)]
    job = store.start_job(name, f"hash-{name}", {"search": {"seed": seed}}, tasks).id
    for key, schedule in made:
        _fill_task(store, key, schedule, trials, job, draw)
    keys = [key for key, _ in made]
    latency = _latency(keys, name, job, draw)
    store.add([latency])
    counts = {"trials": kernels * trials, "failures": kernels * trials // 10, "scattered": 7}
    store.finish_job(job, "finished", counts)
    return job


def _fill_task(
    store: Store,
    key: TaskKey,
    default: list[object],
    trials: int,
    job: str,
    draw: random.Random,
) -> None:
    scale = math.exp(draw.uniform(math.log(2e-6), math.log(2e-3)))
    default_hash = hash_json(default)
    slices = tuple(scale * draw.lognormvariate(0, 0.03) for _ in range(_SLICES))
    first = TrialRecord(
        key,
        "first",
        "tiled",
        {"tile": [4, 2]},
        [["Inline", "default"]],
        "ok",
        latency=scale,
        samples=slices,
        machine=MACHINE,
        job=job,
    )
    first = replace(first, schedule=default)
    records = [first]
    for number in range(1, trials - 6):
        records.append(_trial(key, number, scale, default_hash, trials, job, draw))
    settled = replace(_pair(first, 0.55, scale, default_hash, draw), schedule=[["Inline", "last"]])
    finalists = [
        replace(
            settled if turn % 2 else _pair(first, 0.6, scale, default_hash, draw),
            request_id=f"final-{turn}",
            conditions={CONFIRMED: job, "load": 0.5},
            schedule=[["Inline", "rival"]] if turn % 2 == 0 else default,
        )
        for turn in range(6)
    ]
    store.add([*records, *finalists])
    rival, chosen = finalists[0].schedule_hash, finalists[1]
    met = (rival, chosen.schedule_hash)
    names = chosen.schedule_hash, chosen.request_id
    store.add([BestRecord(key, *names, scale, 0.55, 0.53, 0.57, met, job)])


def _trial(
    key: TaskKey,
    number: int,
    scale: float,
    reference: str,
    trials: int,
    job: str,
    draw: random.Random,
) -> TrialRecord:
    """One of a search: better ones come later; one in ten fails, one in twenty is too noisy."""
    choices = {"tile": [draw.randrange(1, 9), draw.randrange(1, 9)], "unroll": number % 4}
    kept = TrialRecord(
        key,
        f"request-{number}",
        draw.choice(("tiled", "direct")),
        choices,
        [["Inline", f"choice {number}"], ["Inline", str(choices)]],
        "ok",
        machine=MACHINE,
        job=job,
        run_seconds=0.2,
    )
    fate = draw.random()
    if fate < 0.1:
        return replace(kept, status="build_error", error=draw.choice(_ERRORS))
    ratio = 0.55 + draw.expovariate(1.0) * (1.2 - number / trials)
    found = _pair(kept, ratio, scale, reference, draw)
    if fate < 0.15:
        found = replace(found, status="scattered", error="its ratios to a quiet reference spread")
    return found


def _pair(
    trial: TrialRecord, ratio: float, scale: float, reference: str, draw: random.Random
) -> TrialRecord:
    drift = scale * draw.lognormvariate(0, 0.1)
    other = tuple(float(f"{drift * draw.lognormvariate(0, 0.02):.5g}") for _ in range(_SLICES))
    own = tuple(float(f"{ratio * time * draw.lognormvariate(0, 0.02):.5g}") for time in other)
    conditions = {
        "steal_seconds": round(draw.random() / 100, 4),
        "queued_seconds": round(draw.random() / 1000, 6),
        "load": 1.5,
        "anchor_drift": round(draw.gauss(0, 0.02), 5),
        "spread": 0.03,
    }
    return replace(
        trial,
        latency=ratio * scale,
        samples=own,
        reference_samples=other,
        reference=reference,
        ratio=ratio,
        low=0.97 * ratio,
        high=1.03 * ratio,
        conditions=conditions,
    )


def _latency(keys: Sequence[TaskKey], name: str, job: str, draw: random.Random) -> LatencyRecord:
    workloads = [key.workload for key in keys]
    times = ModelTimes(
        tuned=2.1e-3,
        llvm="20.1.8",
        spread=0.01,
        untuned=4.2e-3,
        over_untuned=Ratio(0.5, 0.48, 0.52),
        claimed=1.9e-3,
        confirmed=2.0e-3,
        steps=tuple(ModelStep("conv_relu", key, 1e-4) for key in workloads),
        kernels={
            key: AppliedKernel("matmul", 1, "tuned", "0" * 16, 1e-3, 8192) for key in workloads
        },
        engines=(
            EngineTime("tunefarm", "default", 2.1e-3, Ratio(1.0, 1.0, 1.0)),
            EngineTime("onnxruntime", "f32", 3.3e-3, Ratio(1.57, 1.5, 1.64), "", 1e-6, 1.0),
        ),
        roof=MachineRoof(1e11, 2e10),
    )
    key = keys[0]
    return LatencyRecord(
        id=f"{name}-{draw.random()}",
        model_name=name,
        model_hash=f"hash-{name}",
        target=key.target,
        threads=key.threads,
        numerics=key.numerics,
        compiler_version=key.compiler_version,
        purpose="job",
        machine=MACHINE,
        measured=times.to_json(),
        created=1.8e9,
        job=job,
    )
