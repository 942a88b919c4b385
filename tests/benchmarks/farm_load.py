"""A farm under load: many nodes, drivers that share it, and a database of a million trials.

    python -m tests.benchmarks.farm_load nodes [--nodes 200] [--trials 4000] [--seconds 1.0]
    python -m tests.benchmarks.farm_load two                two drivers on one farm, really
    python -m tests.benchmarks.farm_load long               the same, one of them with long runs
    python -m tests.benchmarks.farm_load database [--trials 1000000] [--keep big.db]

`nodes` simulates the nodes: their runs sleep, some nodes join and some are lost on the way. `two`
and `long` start Ray nodes on this machine, and two processes that ask them for kernels that sleep.
`database` fills a database (or takes the one that is kept) and asks it what the commands do.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from tests.benchmarks import database as big
from tests.measure.fault_kernels import COMPILE_FAULT, make_request
from tests.tuner.setting import Setting
from tests.tuner.synthetic import matmul_kernel, small_space
from tunefarm.db import queries
from tunefarm.db.records import TaskKey
from tunefarm.db.store import Store
from tunefarm.measure.farm.dispatch import Dispatcher
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.pipeline_runner import PipelineRunner
from tunefarm.measure.farm.runner import RunnerOptions
from tunefarm.measure.farm.slots import SlotPlan
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.worker.build_candidate import BuildResult
from tunefarm.tuner.search.budget import Limits

PLAN = SlotPlan((0,), ((1,),))
WINDOW_SECONDS = 30.0
SHORT, LONG = 20_000, 400_000  # microseconds of a call


class SleepingNodes:
    """Builds at once; a timed run of any node takes about `seconds`. Says how busy the slots are.

    What runs on a node that is lost is never answered.
    """

    def __init__(
        self, nodes: int, seconds: float, answer: Callable[[MeasureRequest], MeasureResult]
    ) -> None:
        self.plans: Sequence[SlotPlan] = (PLAN,) * nodes
        self.busy_seconds = 0.0
        self.lost: set[int] = set()
        self._seconds = seconds
        self._answer = answer
        self._rng = random.Random(0)
        self._due: list[tuple[float, int, int, Future[MeasureResult], MeasureRequest]] = []
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
        seconds = self._seconds * self._rng.uniform(0.5, 1.5)
        with self._changed:
            self._number += 1
            due = time.monotonic() + seconds
            heappush(self._due, (due, self._number, node, future, request))
            self._changed.notify()
        self.busy_seconds += seconds
        return future

    def close(self) -> None:
        pass

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    left = self._due[0][0] - time.monotonic() if self._due else None
                    self._changed.wait(left)
                _, _, node, future, request = heappop(self._due)
            if node not in self.lost:
                future.set_result(self._answer(request))


class _Answering:
    """A runner with the table of answers that `Setting` fills."""

    def __init__(self, runner: PipelineRunner, answers: dict[tuple[str, str], float]) -> None:
        self._runner = runner
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def nodes(trials: int, count: int, seconds: float) -> None:
    """A session on so many nodes, of which a twentieth is lost and as many join on the way."""
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(Path(folder, "tuning.db"))
        synthetic = setting.runner
        backend = SleepingNodes(count, seconds, synthetic.answer)
        with PipelineRunner(backend, threads=1) as runner:
            setting.runner = _Answering(runner, synthetic.answers)  # type: ignore[assignment]
            sizes = [(trials // 6 + 16) * 2] * 4
            kernels = [matmul_kernel(7 + number, 13, 97) for number in range(len(sizes))]
            kinds = [(k, small_space(size), 1) for k, size in zip(kernels, sizes, strict=True)]
            setting.batch = 16
            ended = threading.Event()

            def churn() -> None:
                each = 0.5 * trials * seconds / count / max(1, count // 20)
                for number in range(count // 20):
                    if ended.wait(each):
                        return

                    def exchange(dispatcher: Dispatcher, number: int = number) -> None:
                        backend.lost.add(number)
                        dispatcher.lose_node(number)
                        dispatcher.add_node(PLAN)

                    runner.change(exchange)

            changing = threading.Thread(target=churn, daemon=True)
            changing.start()
            start, cpu = time.monotonic(), time.process_time()
            setting.run(Limits(trials=trials), *kinds)
            wall, cpu = time.monotonic() - start, time.process_time() - cpu
            ended.set()
            changing.join()
            overhead = setting.session.overhead if setting.session else None
        records = list(queries.iterate_trials(setting.store))
        done = len(records)
        twice = done - len({record.request_id for record in records})
        failed = sum(record.status != "ok" for record in records)
        setting.store.close()
    busy = backend.busy_seconds / (count * wall)
    lost = len(backend.lost)
    print(
        f"{count} nodes, runs of {seconds:g} s: {done} trials in {wall:.1f} s,"
        f" {done / wall:.0f} a second; slots busy {busy:.0%}; {1e3 * cpu / done:.2f} ms of the"
        f" driver's CPU time a trial; {lost} nodes lost and joined: {failed} failed, {twice} twice"
    )
    if overhead is not None:
        parts = {"propose": overhead.propose, "train": overhead.train, "record": overhead.record}
        told = ", ".join(f"{name} {1e3 * value / done:.2f}" for name, value in parts.items())
        print(f"of that, in ms a trial: {told}")


def two(slots: int, lengths: tuple[int, int]) -> None:
    """What each of two drivers gets done alone, and what both do at the same time."""
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_worker_niceness": "0"}
    made: Any = Cluster()
    for _ in range(slots):
        made.add_node(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False)
    made.wait_for_nodes()
    try:
        alone = [_together(made.address, [length])[0] for length in lengths]
        both = _together(made.address, list(lengths))
    finally:
        made.shutdown()
    for name, single, shared in zip("ab", alone, both, strict=True):
        (rate, time_share), (shared_rate, shared_time) = single, shared
        print(
            f"driver {name}: {rate:.2f} a second alone, {shared_rate:.2f} beside the other"
            f" ({shared_rate / rate:.0%}); slots' time {time_share:.2f} and {shared_time:.2f}"
        )


def _together(address: str, lengths: Sequence[int]) -> list[tuple[float, float]]:
    """Of drivers at work at once: answers a second, and slots in use on average."""
    command = [sys.executable, "-m", "tests.benchmarks.farm_load", "drive", "--address", address]
    drivers = [
        subprocess.Popen(
            [*command, "--length", str(length)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for length in lengths
    ]
    found = []
    for driver in drivers:
        assert driver.stdout is not None and driver.stdout.readline().strip() == "ready"
    for driver in drivers:
        assert driver.stdin is not None
        driver.stdin.write("go\n")
        driver.stdin.flush()
    for driver in drivers:
        out, _ = driver.communicate(timeout=300)
        rate, busy = map(float, out.split())
        found.append((rate, busy))
    return found


def drive(address: str, length: int) -> None:
    """One driver: keeps the farm busy, and counts what comes in a window of time."""
    options = RunnerOptions(address=address, compile=COMPILE_FAULT, overlap="never")
    number, counted, busy = 0, 0, 0.0
    with create_runner("ray", options) as runner:

        def keep_busy() -> list[MeasureResult]:
            nonlocal number
            while runner.pending < runner.capacity:
                runner.submit(make_request(f"sleep {length}", str(number)))
                number += 1
            return runner.results(timeout=0.5)

        ready = 0
        while ready < 8:
            ready += len(keep_busy())
        print("ready", flush=True)
        told = threading.Event()

        def listen() -> None:
            sys.stdin.readline()
            told.set()

        threading.Thread(target=listen, daemon=True).start()
        while not told.is_set():
            keep_busy()
        settled = time.monotonic() + 6.0  # until both have heard of each other
        while time.monotonic() < settled:
            keep_busy()
        start = time.monotonic()
        while time.monotonic() < start + WINDOW_SECONDS:
            for result in keep_busy():
                assert result.status is Status.OK, result
                counted += 1
                busy += result.check_seconds + result.run_seconds
        seconds = time.monotonic() - start
        after = time.monotonic() + 3.0  # the other one's window is not over yet
        while time.monotonic() < after:
            keep_busy()
    print(counted / seconds, busy / seconds)


def of_database(trials: int, keep: Path | None) -> None:
    """What commands ask of a large database, in seconds."""
    from tunefarm.tuner.commands.database_commands import job_lines
    from tunefarm.tuner.records.trials import record_to_apply

    with tempfile.TemporaryDirectory() as folder:
        path = keep or Path(folder, "big.db")
        if not path.exists():
            start = time.perf_counter()
            big.fill(path, trials)
            print(f"written: {trials / (time.perf_counter() - start):.0f} trials a second")
        print(f"{path.stat().st_size / 2**20:.0f} MiB")
        timed("open", lambda: Store.open(path, create=False, read_only=True).close())
        with Store.open(path, create=False) as store:
            keys = queries.tasks(store)
            last = queries.last_trial(store)
            asked: Mapping[str, Callable[[], object]] = {
                "tasks": lambda: queries.tasks(store),
                "jobs (tune status)": lambda: queries.jobs(store),
                "lines of jobs": lambda: list(job_lines(store)),
                "count_trials": lambda: queries.count_trials(store),
                "trials of one task (a job's start)": lambda: queries.trials(store, keys[0]),
                "best of 100 tasks (a build)": lambda: [record_to_apply(store, k) for k in keys],
                "news of the last 200 trials": lambda: queries.trials_of_others(
                    store, keys, job="", after=last - 200
                ),
                "start and end of a job": lambda: _job(store, keys),
                "summary (tune db list)": lambda: queries.summary(store),
                "fastest trial of a task": lambda: queries.fastest_trial(store, keys[1]),
            }
            for name, ask in asked.items():
                timed(name, ask)
        timed("page (tune report)", lambda: _page(path, Path(folder, "page.html")))


def _job(store: Store, keys: Sequence[TaskKey]) -> None:
    from tunefarm.db.records import JobTask

    job = store.start_job("model", "hash", {}, [JobTask(key, 1) for key in keys])
    store.finish_job(job.id, "finished")


def _page(path: Path, page: Path) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "tunefarm.tuner.commands.entry", "report"),
            *("--db", str(path), "--html", str(page)),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def timed(name: str, ask: Callable[[], object]) -> float:
    """Print how long something takes, in seconds."""
    start = time.perf_counter()
    ask()
    seconds = time.perf_counter() - start
    print(f"{name}: {seconds:.3f} s", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=["nodes", "two", "long", "database", "drive"])
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--address", default="")
    parser.add_argument("--length", type=int, default=SHORT)
    options = parser.parse_args()
    if options.what == "nodes":
        nodes(options.trials or 4000, options.nodes, options.seconds)
    elif options.what == "two":
        two(options.slots, (SHORT, SHORT))
    elif options.what == "long":
        two(options.slots, (SHORT, LONG))
    elif options.what == "drive":
        drive(options.address, options.length)
    else:
        of_database(options.trials or 1_000_000, options.keep)


if __name__ == "__main__":
    main()
