"""How well a pair measures: real kernels against themselves, and again and again.

    python -m tests.benchmarks.farm aa [--pairs 200] [--load]       a schedule against itself
    python -m tests.benchmarks.farm again [--pairs 100] [--load]    two pairs of different schedules

Two convolutions of ResNet-18 under the search's conditions: its timing options, a local runner,
and with --load a core that builds without end beside the one that times. Run nothing else.

`aa` shows where the ratios of equal schedules lie, and whether as many are within 1 and 1.96 of
their claimed deviations as should be (68 % and 95 %). `again` measures two pairs in turn, so that
both are loaded anew each time, and shows by how much their results differ beyond what they claim:
`tunefarm.tuner.search.pairwise_estimates.BETWEEN_RUNS`.
"""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.schedule.spaces import default_schedule, schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import Settings
from tunefarm.measure.compare import LogRatio, pair_of
from tunefarm.measure.cpus import usable_cpus
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.runner import Runner, RunnerOptions
from tunefarm.measure.farm.slots import plan_slots
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.sandbox.by_name import module_command
from tunefarm.tuner.search.make_tasks import distinct_kernels
from tunefarm.tuner.search.measuring import timing_options

NEAR = 0.2  # log-ratio to the default within which a rival of `again` lies
MOST_DRAWS = 200  # schedules that are tried to find two that do

Schedule = list[Any]


@dataclass(slots=True)
class Subject:
    """A kernel whose schedules are measured in pairs against its default one."""

    name: str
    kernel: FusedKernel
    default: Schedule
    number: int = 0

    @staticmethod
    def of_resnet18() -> list[Subject]:
        """Two of its convolutions, the first of each window: 3x3 and 1x1."""
        program = kernels_of(import_model_proto(build_model("resnet18")), host_target())
        found: dict[tuple[int, ...], Subject] = {}
        for kernel, _ in distinct_kernels(program).values():
            for buffer in kernel.inputs:
                window = buffer.shape[2:]
                if buffer.constant and window in ((3, 3), (1, 1)) and window not in found:
                    outputs, inputs = buffer.shape[:2]
                    name = f"{window[0]}x{window[1]} convolution {inputs} to {outputs}"
                    default = default_schedule(kernel, host_target()).to_json()
                    found[window] = Subject(name, kernel, default)
        return list(found.values())

    def request(self, schedule: Schedule, **options: int) -> MeasureRequest:
        """Measure a schedule as a search does."""
        self.number += 1
        return MeasureRequest(
            f"{self.name}-{self.number}",
            kernel_to_json(self.kernel),
            workload_key(self.kernel),
            schedule,
            1,
            {**timing_options(Settings()), **options},
            (self.default,),
            self.number,
        )


def equal_pairs(pairs: int, load: bool) -> None:
    """Measure default schedules against themselves."""
    with _runner(load) as runner:
        for subject in Subject.of_resnet18():
            _measured(runner, [subject.request(subject.default)] * 2)  # its reference is computed
            requests = [subject.request(subject.default, give_up=1) for _ in range(pairs)]
            start = time.monotonic()
            results = _measured(runner, requests)
            rate = pairs / (time.monotonic() - start)
            print(f"{subject.name}: {_spread(_pairs_of(results))}")
            print(f"    {_losses(results)}; {rate:.1f} requests a second")


def repeated_pairs(pairs: int, load: bool) -> None:
    """Measure two rivals of the default schedule in turn, and see how much each result moves."""
    with _runner(load) as runner:
        for subject in Subject.of_resnet18():
            rivals = _near(runner, subject)
            requests = [subject.request(rival) for _ in range(pairs) for rival in rivals]
            results = _measured(runner, requests)
            for number in range(len(rivals)):
                found = _pairs_of(results[number :: len(rivals)])
                print(f"{subject.name}, rival {number + 1}: {_between(found)}")


def _near(runner: Runner, subject: Subject) -> list[Schedule]:
    """Two schedules about as fast as the default."""
    space = schedule_space(subject.kernel, host_target())
    rng = random.Random(0)
    found: list[Schedule] = []
    for _ in range(MOST_DRAWS):
        schedule = space.schedule(space.sample(rng)).to_json()
        if schedule == subject.default or schedule in found:
            continue
        (result,) = _measured(runner, [subject.request(schedule, give_up=1)])
        pair = pair_of(result)
        if result.status is Status.OK and pair is not None and abs(pair.mean) < NEAR:
            found.append(schedule)
            if len(found) == 2:
                return found
    sys.exit(f"{subject.name}: of {MOST_DRAWS} schedules {len(found)} are near the default")


def _measured(runner: Runner, requests: Sequence[MeasureRequest]) -> list[MeasureResult]:
    """The results in the order of the requests."""
    found: dict[int, MeasureResult] = {}
    numbers: dict[str, list[int]] = {}
    waiting = list(enumerate(requests))[::-1]
    while len(found) < len(requests):
        while waiting and runner.pending < runner.capacity:
            number, request = waiting.pop()
            numbers.setdefault(request.request_id, []).append(number)
            runner.submit(request)
        for result in runner.results(timeout=60):
            found[numbers[result.request_id].pop(0)] = result
    return [found[number] for number in range(len(requests))]


def _pairs_of(results: Sequence[MeasureResult]) -> list[LogRatio]:
    pairs = [pair_of(result) for result in results if result.status is Status.OK]
    return [pair for pair in pairs if pair is not None]


def _spread(pairs: Sequence[LogRatio]) -> str:
    means = np.array([pair.mean for pair in pairs])
    claimed = np.array([pair.deviation for pair in pairs])
    low, high = np.exp(np.quantile(means, [0.05, 0.95]))
    within = np.mean(np.abs(np.expm1(means)) <= 0.03)
    one, two = (np.mean(np.abs(means) <= factor * claimed) for factor in (1.0, 1.96))
    return (
        f"median ratio {np.exp(np.median(means)):.4f}, 90 % of {len(pairs)} within {low:.4f} to"
        f" {high:.4f}, {within:.0%} within 3 %; {one:.0%} within 1 deviation, {two:.0%} within 1.96"
        f" ({np.median(claimed):.2%} in the median)"
    )


def _losses(results: Sequence[MeasureResult]) -> str:
    lost = sum(result.status is not Status.OK for result in results)
    given_up = sum(result.censored for result in results)
    rounds = median(len(result.samples) for result in results)
    checks = median(result.check_seconds for result in results)
    runs = median(result.run_seconds for result in results)
    return (
        f"{lost} lost, {given_up} given up, {rounds:.0f} rounds,"
        f" {1e3 * checks:.1f} ms of checks, {1e3 * runs:.1f} ms of timing"
    )


def _between(pairs: Sequence[LogRatio]) -> str:
    """How much runs of one pair differ, from neighbour to neighbour and altogether."""
    means = np.array([pair.mean for pair in pairs])
    claimed = math.sqrt(float(np.mean([pair.deviation**2 for pair in pairs])))
    whole = 1.4826 * float(np.median(np.abs(means - np.median(means))))
    steps = [abs(after - before) for before, after in pairwise(means)]
    step = 1.4826 * median(steps) / math.sqrt(2.0)
    beyond = math.sqrt(max(0.0, whole**2 - claimed**2))
    return (
        f"ratio {math.exp(float(np.median(means))):.4f}, {len(pairs)} runs differ by {whole:.2%}"
        f" ({step:.2%} from one to the next), claimed {claimed:.2%}: {beyond:.2%} beyond that"
    )


@contextmanager
def _runner(load: bool) -> Iterator[Runner]:
    """A local runner; with `load` beside a core that builds without end."""
    with ExitStack() as stack:
        runner = stack.enter_context(create_runner("local", RunnerOptions()))
        if load:
            for core in plan_slots(usable_cpus(), 1).spare:
                stack.callback(_start_load(core).kill)
        yield runner


def _start_load(core: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        module_command("tunefarm.measure.farm.build_load", str(os.getpid()), str(core)),
        stdout=subprocess.DEVNULL,
    )
