"""Records the data set on which search strategies are compared: tests/data/recorded.npz.

    python -m tests.benchmarks.recording measure recording.db     half an hour on two cores
    python -m tests.benchmarks.recording pack recording.db        writes the file
    python -m tests.benchmarks.recording show                     what the file holds

`measure` times every schedule of the (thinned) space of each kernel, as a tuning job does, in
random order after the default; then all of them again, and the fastest once more at leisure. What
disturbs a measurement makes it longer: the pass with the lowest median counts. It can be
interrupted and goes on where it was. Run nothing beside it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.benchmarks.kernels import matmul_model, model_of
from tests.tuner.recorded import FILE, STATUSES, RecordedKernel, load, save, thinned
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.schedule.space import Candidate, ChoiceValue, ScheduleSpace
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import Settings
from tunefarm.db import queries
from tunefarm.db.records import TargetRecord, TaskKey, TrialRecord, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.measure.farm.runner import Runner
from tunefarm.measure.measurement import MeasureRequest, Status
from tunefarm.tuner.records.trials import is_censored, latency_of, task_key, trial_record
from tunefarm.tuner.search.measuring import runner_of, timing_options
from tunefarm.tuner.search.tasks import plan

AGAIN = 0.06  # share of the schedules, the fastest, that are measured a second time
AGAIN_SAMPLES = 21

DIRECT: Mapping[tuple[str, str], tuple[ChoiceValue, ...]] = {
    ("tiled", "loops"): ("block row column", "row block column", "rows4 block row column"),
    ("tiled", "reduce"): (("kh", "kw", "icb", "ici"), ("icb", "kh", "ici", "kw")),
    ("tiled", "unroll"): ((1, 1), (4, 1), (8, 1), (4, 3)),
    ("tiled", "prefetch"): (0,),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel, and the values of its choices that are kept where the space is large."""

    name: str
    model: onnx.ModelProto
    kernel: str  # part of the kernel's name
    domains: Mapping[tuple[str, str], tuple[ChoiceValue, ...]]


def conv_model(
    inputs: int, outputs: int, size: int, window: int = 3, stride: int = 1, group: int = 1
) -> onnx.ModelProto:
    conv = helper.make_node(
        "Conv",
        ["x", "w", "b"],
        ["c"],
        pads=[window // 2] * 4,
        strides=[stride, stride],
        group=group,
    )
    return model_of(
        [conv, helper.make_node("Relu", ["c"], ["y"])],
        [1, inputs, size, size],
        ("w", (outputs, inputs // group, window, window)),
        ("b", (outputs,)),
    )


def depthwise_model(channels: int, size: int) -> onnx.ModelProto:
    """A depthwise convolution between two 1x1 convolutions, which keep its data in blocks."""
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["before"]),
        helper.make_node("Conv", ["before", "w"], ["c"], pads=[1] * 4, group=channels),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "b"], ["y"]),
    ]
    shape = (channels, channels, 1, 1)
    weights = (("a", shape), ("w", (channels, 1, 3, 3)), ("b", shape))
    return model_of(nodes, [1, channels, size, size], *weights)


def product_model(left: Sequence[int], right: Sequence[int]) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "z"], ["y"])],
        "product",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, left),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, right),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def cases() -> list[Case]:
    softmax = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
    pointwise = {
        **DIRECT,
        ("tiled", "reduce"): (),
        ("tiled_merged", "unroll"): ((1, 1), (4, 1)),
    }
    return [
        Case("conv3x3 64x56", conv_model(64, 64, 56), "conv", DIRECT),
        Case("conv3x3 256x14", conv_model(256, 256, 14), "conv", DIRECT),
        Case("conv1x1 256-64x56", conv_model(256, 64, 56, window=1), "conv", pointwise),
        Case("conv3x3 64-128x56 stride 2", conv_model(64, 128, 56, stride=2), "conv", DIRECT),
        Case("depthwise 144x56", depthwise_model(144, 56), "conv_relu", {}),
        Case("matmul 256x1024x1024", matmul_model(256, 1024, 1024), "matmul", {}),
        Case(
            "batched matmul 12x197x64x197",
            product_model([1, 12, 197, 64], [1, 12, 64, 197]),
            "matmul",
            {},
        ),
        Case("softmax 6144x197", model_of([softmax], [6144, 197]), "softmax", {}),
    ]


def kernel_of(case: Case) -> FusedKernel:
    calls = kernels_of(import_model_proto(case.model), host_target()).calls
    found = [c.kernel for c in calls if isinstance(c, KernelCall) and case.kernel in c.kernel.name]
    assert len(found) == 1, [kernel.name for kernel in found]
    return found[0]


class Recording:
    """Measures the schedules of one kernel into a database."""

    def __init__(self, case: Case, store: Store, settings: Settings) -> None:
        self.case, self.store, self.settings = case, store, settings
        self.target = host_target()
        self.kernel = kernel_of(case)
        numerics = settings.compile.numerics
        space = schedule_space(self.kernel, self.target, 1, numerics)
        self.space: ScheduleSpace = thinned(space, case.domains)
        call = next(
            c
            for c in kernels_of(import_model_proto(case.model), self.target).calls
            if isinstance(c, KernelCall) and c.kernel == self.kernel
        )
        self.key: TaskKey = task_key(call.key, self.target, 1, numerics)
        self.planned: dict[str, Candidate] = {}  # the first candidate of each schedule
        self.hashes: list[str] = []
        self.schedules: dict[str, list[Any]] = {}
        for number in range(self.space.size):
            planned = plan(self.space, self.space.candidate(number))
            self.hashes.append(planned.hash)
            self.schedules[planned.hash] = planned.schedule
            self.planned.setdefault(planned.hash, planned.candidate)

    def measure(self, runner: Runner) -> None:
        self.store.add([TargetRecord(self.target.key, self.target.to_json())])
        self.store.add(
            [WorkloadRecord(self.key.workload, self.kernel.name, kernel_to_json(self.kernel))]
        )
        order = list(self.planned)
        random.Random(0).shuffle(order)
        default = plan(self.space, self.space.default()).hash
        order.remove(default)
        self._run(runner, "first", [default], {})
        self._run(runner, "first", order, {})
        random.Random(1).shuffle(order)
        self._run(runner, "second", [default, *order], {"samples": 3, "min_samples": 3})
        passes = [self._records(name) for name in ("first", "second")]
        found = {hash: settled([records[hash] for records in passes]) for hash in order}
        fastest = sorted(order, key=lambda hash: latency_of(found[hash]))
        again = fastest[: int(AGAIN * len(fastest))]
        random.Random(2).shuffle(again)
        self._run(runner, "again", again, {"samples": AGAIN_SAMPLES, "max_seconds": 1.0})

    def _records(self, name: str) -> dict[str, TrialRecord]:
        records = queries.trials(self.store, self.key)
        return {r.schedule_hash: r for r in records if r.request_id.startswith(name)}

    def _run(
        self, runner: Runner, name: str, hashes: Sequence[str], options: dict[str, float]
    ) -> None:
        done = self._records(name)
        todo = iter([hash for hash in hashes if hash not in done])
        waiting: dict[str, str] = {}
        started, count = time.monotonic(), 0
        while True:
            while len(waiting) < runner.capacity and (hash := next(todo, "")):
                timing = timing_options(self.settings) | options
                request_id = f"{name}-{hash[:16]}"
                waiting[request_id] = hash
                runner.submit(
                    MeasureRequest(
                        request_id,
                        kernel_to_json(self.kernel),
                        self.key.workload,
                        self.schedules[hash],
                        1,
                        timing,
                    )
                )
            if not waiting:
                break
            results = runner.results(1.0)
            records = []
            for result in results:
                hash = waiting.pop(result.request_id)
                candidate = self.planned[hash]
                records.append(
                    trial_record(
                        self.key,
                        result,
                        sketch=candidate.sketch,
                        choices=self.space.choices(candidate),
                        schedule=self.schedules[hash],
                        job="",
                    )
                )
            self.store.add(replace(record, job=None) for record in records)
            count += len(results)
            if count and results and count % 100 < len(results):
                pace = count / (time.monotonic() - started)
                print(f"{self.case.name}: {name} {count} ({pace:.1f}/s)", file=sys.stderr)

    def packed(self) -> RecordedKernel:
        """The candidates' table."""
        passes = [self._records(name) for name in ("first", "second", "again")]
        missing = [hash for hash in self.planned if hash not in passes[0]]
        if missing:
            sys.exit(f"{self.case.name}: {len(missing)} schedules are not measured yet")
        numbers = {hash: i for i, hash in enumerate(self.planned)}
        rows = [settled([found[hash] for found in passes if hash in found]) for hash in self.hashes]
        return RecordedKernel(
            name=self.case.name,
            key=self.key.workload,
            kernel=self.kernel,
            target=self.target,
            space=self.space,
            schedules=np.array([numbers[hash] for hash in self.hashes], np.int32),
            statuses=np.array([STATUSES.index(row.status) for row in rows], np.uint8),
            latencies=np.array([latency_of(row) for row in rows], np.float64),
            censored=np.array([is_censored(row) for row in rows], np.bool_),
            anchors=np.array(
                [row.conditions.get("anchor_seconds") or np.nan for row in rows], np.float64
            ),
            machine=dict(rows[0].machine),
        )


def settled(records: Sequence[TrialRecord]) -> TrialRecord:
    """Of one schedule's records that with the lowest median; unstable ones count as they are."""
    stable = [
        replace(record, status=Status.OK.value, latency=median(record.samples))
        if record.status == Status.UNSTABLE and record.samples
        else record
        for record in records
    ]
    return min(stable, key=latency_of)


def show(kernels: Sequence[RecordedKernel]) -> None:
    for item in kernels:
        ok = np.isfinite(item.latencies)
        near = (item.latencies <= 1.05 * item.best).mean()
        distinct = len(set(item.schedules.tolist()))
        default = item.latency(item.space.default())
        print(
            f"{item.name:32s} {item.space.size:5d} candidates, {distinct:5d} schedules, "
            f"{(~ok).sum():3d} failed, {item.censored.sum():5d} given up early, best "
            f"{1e6 * item.best:8.1f} us, median {np.median(item.latencies[ok]) / item.best:5.2f}x, "
            f"default {default / item.best:5.3f}x, within 5 %: {100 * near:5.2f} %"
        )
    machine = kernels[0].machine
    anchors = [median(item.anchors[np.isfinite(item.anchors)].tolist()) for item in kernels]
    print(f"machine: {machine}; anchor {min(anchors):.3e} to {max(anchors):.3e} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("measure", "pack", "show"))
    parser.add_argument("database", nargs="?", default="recording.db")
    parser.add_argument("--output", type=Path, default=FILE)
    parser.add_argument("--match", default="", help="only kernels whose name holds this")
    arguments = parser.parse_args()
    if arguments.what == "show":
        show(load())
        return
    settings = Settings()
    with Store.open(arguments.database) as store:
        chosen = [case for case in cases() if arguments.match in case.name]
        recordings = [Recording(case, store, settings) for case in chosen]
        for item in recordings:
            print(f"{item.case.name}: {item.space.size}, {len(item.planned)} distinct", flush=True)
        if arguments.what == "measure":
            with runner_of(settings, host_target(), print) as runner:
                for item in recordings:
                    item.measure(runner)
            return
        packed = [item.packed() for item in recordings]
        about = {
            "made": datetime.now(UTC).date().isoformat(),
            "numerics": settings.compile.numerics,
            "llvmlite": version("llvmlite"),
        }
        arguments.output.parent.mkdir(exist_ok=True)
        save(arguments.output, packed, about)
        print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
