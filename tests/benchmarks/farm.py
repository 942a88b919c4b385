"""The measuring farm: overhead of the driver, nodes that add up, workers that come back, A/A.

    python -m tests.benchmarks.farm driver         256 simulated slots, jobs of 200 ms, no Ray
    python -m tests.benchmarks.farm cluster        four simulated Ray nodes against one
    python -m tests.benchmarks.farm revival        seconds until a killed worker answers again
    python -m tests.benchmarks.farm equal          identical kernels as finalists: who wins?
    python -m tests.benchmarks.farm slower         the same with one that is 5 % slower
    python -m tests.benchmarks.farm aa             a schedule measured against itself
    python -m tests.benchmarks.farm again          the same pairs of schedules, again and again
    python -m tests.benchmarks.farm rates tuning.db    trials a second and busy share of jobs

`equal`, `slower`, `aa` and `again` take --pairs N, and --load for a busy other core.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.pairs import equal_pairs, repeated_pairs
from tests.measure.fault_kernels import COMPILE_FAULT, make_request
from tests.tuner.setting import TILES, Setting
from tests.tuner.synthetic import tile_space
from tunefarm.db import queries
from tunefarm.db.store import Store
from tunefarm.measure.farm.local_runner import LocalRunner
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.pipeline_runner import PipelineRunner
from tunefarm.measure.farm.runner import RunnerOptions
from tunefarm.measure.farm.slots import SlotPlan
from tunefarm.measure.machine import available_cores
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.worker.build_candidate import BuildResult
from tunefarm.tuner.confirm.finalists import Race, RaceOptions
from tunefarm.tuner.confirm.verdict import judge
from tunefarm.tuner.search.budget import Limits
from tunefarm.tuner.search.pairwise_estimates import Estimate

SPIN = 400_000  # additions of the kernels that are compared: some 0.5 ms
SLOT_SECONDS = 0.2


class SleepingBackend:
    """Builds at once; a timed run takes `SLOT_SECONDS`, whatever it is."""

    def __init__(self, slots: int, answer: Callable[[MeasureRequest], MeasureResult]) -> None:
        cores = tuple((1000 + index,) for index in range(slots))
        self.plans: Sequence[SlotPlan] = (SlotPlan(tuple(range(64)), cores),)
        self._answer = answer
        self._due: list[tuple[float, int, Future[MeasureResult], MeasureRequest]] = []
        self._changed = threading.Condition()
        self._number = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def build(self, node: int, index: int, request: MeasureRequest) -> Future[BuildResult]:
        future: Future[BuildResult] = Future()
        future.set_result(BuildResult(Status.OK))
        return future

    def measure(
        self, node: int, index: int, request: MeasureRequest, build: BuildResult
    ) -> Future[MeasureResult]:
        future: Future[MeasureResult] = Future()
        with self._changed:
            self._number += 1
            heappush(self._due, (time.monotonic() + SLOT_SECONDS, self._number, future, request))
            self._changed.notify()
        return future

    def close(self) -> None:
        pass

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    left = self._due[0][0] - time.monotonic() if self._due else None
                    self._changed.wait(left)
                _, _, future, request = heappop(self._due)
            future.set_result(self._answer(request))


def driver(trials: int, slots: int) -> None:
    """Wall time per trial of a session that measures nothing but keeps 256 slots asleep."""
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(Path(folder, "tuning.db"))
        synthetic = setting.runner
        with PipelineRunner(SleepingBackend(slots, synthetic.answer), threads=1) as runner:
            setting.runner = _Answering(runner, synthetic.answers)  # type: ignore[assignment]
            kinds = (TILES[0], tile_space(), 1)
            start, cpu = time.monotonic(), time.process_time()
            setting.run(Limits(trials=trials), kinds)
            wall, cpu = time.monotonic() - start, time.process_time() - cpu
        count = sum(queries.count_trials(setting.store).values())
        setting.store.close()
    print(
        f"{slots} slots: {count} trials, {count / wall:.0f} a second; per trial"
        f" {1e3 * wall / count:.2f} ms of wall time, {1e3 * cpu / count:.2f} ms of CPU time"
    )


class _Answering:
    """A runner with the table of answers that `Setting` fills."""

    def __init__(self, runner: PipelineRunner, answers: dict[tuple[str, str], float]) -> None:
        self._runner = runner
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def cluster(trials: int) -> None:
    """Trials a second of sleeping kernels on four nodes over those on one."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_worker_niceness": "0"}
    rates = []
    for nodes in (1, 4):
        made: Any = Cluster()
        for _ in range(nodes):
            made.add_node(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False)
        made.wait_for_nodes()
        with create_runner(
            "ray", RunnerOptions(address=made.address, compile=COMPILE_FAULT)
        ) as runner:
            _sleep_through(runner, 4 * nodes)
            start = time.monotonic()
            _sleep_through(runner, trials * nodes)
            rates.append(trials * nodes / (time.monotonic() - start))
        ray.shutdown()
        made.shutdown()
    print(f"1 node {rates[0]:.2f}, 4 nodes {rates[1]:.2f} a second: {rates[1] / rates[0]:.2f}x")


def _sleep_through(runner: Any, count: int) -> None:
    for number in range(count):
        runner.submit(make_request("sleep 100000", str(number)))
    done = 0
    while done < count:
        results = runner.results(timeout=60)
        assert all(result.status is Status.OK for result in results), results
        done += len(results)


def revival(times: int) -> None:
    """Seconds from the death of the measuring process to the next result."""
    seconds = []
    with create_runner("local", RunnerOptions(compile=COMPILE_FAULT)) as runner:
        assert isinstance(runner, LocalRunner)
        for number in range(times):
            runner.submit(make_request("none", str(number)))
            runner.results(timeout=60)
            os.kill(runner.backend.worker_pids()[-1], signal.SIGKILL)
            start = time.monotonic()
            runner.submit(make_request("none", f"{number} again"))
            (result,) = runner.results(timeout=60)
            assert result.status is Status.OK
            seconds.append(time.monotonic() - start)
    print(f"{times} kills: back after {median(seconds):.2f} s, {max(seconds):.2f} s at most")


def meet(pairs: int, slower: float, load: bool) -> int:
    """Let kernels race as finalists do, a rival against the same one, `slower`, as incumbent.

    Returns how often the rival won.
    """
    wins: Counter[int] = Counter()
    ratios, processes = [], 0
    with ExitStack() as stack:
        if load:
            stack.callback(_start_load(min(available_cores())).kill)
        runner = stack.enter_context(create_runner("local", RunnerOptions(compile=COMPILE_FAULT)))
        for number in range(pairs):
            race = Race([Estimate(0.0, 0.02)] * 2, starters=2, default=0)
            while race.next():
                request = make_request(
                    f"spin {round(SPIN * (1 + slower))}",
                    f"{number}-{len(race.meetings)}",
                    {
                        "samples": RaceOptions().rounds,
                        "min_sample_seconds": 0.0025,
                        "fresh_process": 1,
                    },
                )
                rival = [["fault", f"spin {SPIN}"]]
                seed = 100 * number + len(race.meetings)
                runner.submit(replace(request, rivals=(rival,), seed=seed))
                (result,) = runner.results(timeout=60)
                assert result.status is Status.OK, result.error
                race.add({0: result.samples, 1: result.rivals[0]})
            verdict = judge(race.meetings)
            assert verdict is not None
            wins[verdict.winner] += 1
            processes += len(race.meetings)
            ratios.append(verdict.against_default[1].ratio)
    ordered = sorted(ratios)
    low, high = ordered[len(ratios) // 20], ordered[-1 - len(ratios) // 20]
    print(
        f"{pairs} races, {processes} processes: the rival won {wins[1]} times; time over the"
        f" incumbent's"
        f" {median(ratios):.4f}, 90 % within {low:.4f} to {high:.4f}"
    )
    return wins[1]


def _start_load(core: int) -> subprocess.Popen[bytes]:
    code = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: sum(range(100000))"
    return subprocess.Popen([sys.executable, "-c", code])


def rates(path: str) -> None:
    """Per job: trials a second, as the median over windows of ten seconds, and the busy share."""
    with Store.open(path, create=False, read_only=True) as store:
        by_job: dict[str, list[Any]] = {}
        for trial in queries.iterate_trials(store):
            if trial.job is not None and not trial.conditions.get("confirmed"):
                by_job.setdefault(trial.job, []).append(trial)
    for job, trials in by_job.items():
        start, end = trials[0].created, trials[-1].created
        windows = Counter(int((trial.created - start) / 10) for trial in trials)
        whole = [windows[i] / 10 for i in range(int((end - start) / 10))]
        busy = sum(t.check_seconds + t.run_seconds for t in trials) / max(end - start, 1e-9)
        rate = median(whole) if whole else len(trials) / max(end - start, 1e-9)
        print(f"{job[:8]}: {len(trials)} trials, {rate:.1f} a second, slot busy {busy:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "what",
        choices=["driver", "cluster", "revival", "equal", "slower", "aa", "again", "rates"],
    )
    parser.add_argument("database", nargs="?", default="tuning.db")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--slots", type=int, default=256)
    options = parser.parse_args()
    if options.what == "driver":
        driver(options.trials, options.slots)
    elif options.what == "cluster":
        cluster(50)
    elif options.what == "revival":
        revival(20)
    elif options.what == "aa":
        equal_pairs(options.pairs, options.load)
    elif options.what == "again":
        repeated_pairs(options.pairs, options.load)
    elif options.what == "rates":
        rates(options.database)
    else:
        meet(options.pairs, 0.05 if options.what == "slower" else 0.0, options.load)


if __name__ == "__main__":
    main()
