"""What a server feels: a model's load, calls at the same time, processes next to each other.

    python -m tests.benchmarks.serving load ARTIFACT [--count 10]
    python -m tests.benchmarks.serving callers ARTIFACT [--seconds 3]
    python -m tests.benchmarks.serving processes ARTIFACT [--count 8]
    python -m tests.benchmarks.serving threads ARTIFACT [--count 10000]
    python -m tests.benchmarks.serving canary ARTIFACT [--count 20] [--seconds 600]

`load` starts processes that import the runtime, load the artifact from a warm file cache and run it
once: medians of wall and of CPU time. `callers` runs 1 to 8 threads that call `run`, and as many
that wait for `run_async`: the median and the 99th percentile of a call, and the throughput over
that of one caller. `processes` says what each of several that have run holds for itself
(Private_Clean and Private_Dirty in /proc/PID/smaps_rollup) and what of shared pages falls to it.
`threads` counts runs with 4 to 64 threads, more than there are cores, whose outputs have other bits
than the first: none, and it ends. `canary` counts the verdicts of `tune verify --against` on three
changes of a model: kernels that run twice, 3 to 4.5 % of the time; a weight that is wrong; and the
shortest kernel run twice. Without --seconds it measures as long as the command does by default.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

import numpy as np

from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.runtime.artefact import write_artefact
from tunefarm.compiler.runtime.artefact.seal import part_digests, seal_of
from tunefarm.compiler.runtime.entry.entry import entry_of
from tunefarm.compiler.runtime.execution.executable import Executable, load
from tunefarm.compiler.runtime.spec.buffers import aligned_empty
from tunefarm.compiler.runtime.spec.executable_spec import CallStep, ExecutableSpec
from tunefarm.tuner.confirm.drawn_inputs import drawn_inputs
from tunefarm.tuner.confirm.latency import COMPARISON
from tunefarm.tuner.verify.canary import (
    LIMIT_SECONDS,
    PRECISE,
    CanaryVerdict,
    compare_artifacts,
    latency_ratio,
)

CALLERS = (1, 2, 4, 8)
THREADS = (4, 8, 16, 32, 64)
SLOW_DOWN = 0.03
_LOAD = """
import json, sys, time
def now():
    return time.perf_counter(), time.process_time()
marks = [now()]
import numpy
marks.append(now())
from tunefarm import load
import tunefarm.compiler.runtime.execution.executable
marks.append(now())
model = load(sys.argv[1])
marks.append(now())
inputs = {name: numpy.ones(t.shape, t.dtype.numpy) for name, t in model.inputs.items()}
model.run(inputs)
marks.append(now())
model.run(inputs)
marks.append(now())
print(json.dumps(marks))
"""
_PARTS = ("import of numpy", "import of tunefarm", "load", "first run", "second run")
_SERVE = """
import sys, numpy
from tunefarm import load
model = load(sys.argv[1])
inputs = {name: numpy.ones(t.shape, t.dtype.numpy) for name, t in model.inputs.items()}
for _ in range(3):
    model.run(inputs)
print("ready", flush=True)
sys.stdin.read()
"""


def measure_load(path: str, count: int) -> None:
    """Print the medians of what a process does until it has results."""
    walls: list[list[float]] = []
    cores: list[list[float]] = []
    for _ in range(count):
        done = subprocess.run(
            [sys.executable, "-c", _LOAD, path], capture_output=True, text=True, check=True
        )
        marks = json.loads(done.stdout)
        walls.append([b[0] - a[0] for a, b in pairwise(marks)])
        cores.append([b[1] - a[1] for a, b in pairwise(marks)])
    for number, part in enumerate(_PARTS):
        wall, core = (1e3 * median(row[number] for row in rows) for rows in (walls, cores))
        print(f"{part:20} {wall:7.1f} ms, CPU {core:7.1f} ms")
    first = 1e3 * median(sum(row[2:4]) for row in walls)
    print(f"load and first run   {first:7.1f} ms")


def measure_callers(path: str, seconds: float) -> None:
    """Print percentiles and throughput of callers at the same time."""
    model = load(path)
    inputs = {name: np.ones(t.shape, t.dtype.numpy) for name, t in model.inputs.items()}
    model.run(inputs)
    ways: dict[str, Callable[[], object]] = {
        "run": lambda: model.run(inputs),
        "run_async": lambda: model.run_async(inputs).result(),
    }
    for way, call in ways.items():
        alone = 0.0
        for callers in CALLERS:
            begin = time.perf_counter()
            times = _times(call, callers, seconds)
            rate = len(times) / (time.perf_counter() - begin)
            alone = alone or rate
            middle, late = np.percentile(times, [50, 99])
            print(
                f"{way:9} {callers} callers: p50 {1e3 * middle:7.2f} ms, p99 {1e3 * late:7.2f} ms "
                f"({late / middle:4.1f}), throughput {rate / alone:.2f}"
            )
    print(f"kept arenas: {model.idle_frames} of {model.arena_bytes} bytes")


def _times(call: Callable[[], object], callers: int, seconds: float) -> list[float]:
    """Seconds of each call that several threads make, one after the other, for so long."""
    times: list[float] = []
    end = time.perf_counter() + seconds

    def work() -> None:
        while (start := time.perf_counter()) < end:
            call()
            times.append(time.perf_counter() - start)

    threads = [threading.Thread(target=work) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def measure_processes(path: str, count: int) -> None:
    """Print the memory of processes that have run the model."""
    command = [sys.executable, "-c", _SERVE, path]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        own = [_memory(process.pid) for process in processes]
    finally:
        for process in processes:
            process.communicate()
    for name in ("own", "proportional"):
        print(f"{name:13} {median(memory[name] for memory in own) / 2**20:7.1f} MiB each")


def _memory(process: int) -> dict[str, int]:
    """Bytes that are a process's own, and with its part of what it shares."""
    kilobytes: dict[str, int] = {}
    with open(f"/proc/{process}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if value.endswith("kB\n"):
                kilobytes[name] = int(value.split()[0])
    private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    return {"own": 1024 * private, "proportional": 1024 * kilobytes["Pss"]}


def measure_threads(path: str, count: int) -> None:
    """Print how many of the runs with each number of threads have other bits than one thread's."""
    first: list[bytes] = []
    for threads in (1, *THREADS):
        model = load(path, threads)
        inputs = drawn_inputs(model)
        begin, others = time.perf_counter(), 0
        for _ in range(count // len(THREADS)):
            outputs = [np.asarray(array).tobytes() for array in model.run(inputs).values()]
            first = first or outputs
            others += outputs != first
        seconds = time.perf_counter() - begin
        print(f"{threads:2} threads: {others} of {count // len(THREADS)} differ, {seconds:.1f} s")


def measure_canary(path: str, count: int, seconds: float) -> None:
    """Print the verdicts on planted changes, and on none that matters, and how many are right."""
    old = load(path)
    spec = old.spec
    profile = old.profile(drawn_inputs(old), 5)
    seconds_of = [step.seconds for step in profile.steps]
    weights = [number for number, array in enumerate(spec.constants) if array.dtype == np.float32]
    largest = max(weights, key=lambda number: spec.constants[number].size)
    shortest = min(_repeatable(spec), key=seconds_of.__getitem__)
    changes = {
        "wrong": (_sealed(_with_constant(spec, largest)), CanaryVerdict.WRONG),
        "unchanged": (_with_repeated(spec, {shortest}), CanaryVerdict.PASSED),
        "slower": (_slower(old, seconds_of, seconds), CanaryVerdict.SLOWER),
    }
    right = Counter[str]()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for what, (changed, _) in changes.items():
            write_artefact.save(changed, f"{folder}/{what}.tuned")
        for number in range(1, count + 1):
            for what, (_, verdict) in changes.items():
                found = compare_artifacts(path, f"{folder}/{what}.tuned", None, seconds)
                right[what] += found.verdict is verdict
                shown = "" if found.time is None else f", time {found.time.ratio:.4f}"
                print(
                    f"{what:9} {found.verdict.name}{shown}: {right[what]} of {number}", flush=True
                )
    print(f"{(time.perf_counter() - begin) / count / len(changes):.0f} s each")


def _slower(old: Executable, seconds_of: Sequence[float], seconds: float) -> ExecutableSpec:
    """The model with calls that run twice: its time is 3 to 4.5 % longer, as measured of the whole,
    since the second one of two calls is faster than a profile says."""
    options = replace(COMPARISON, max_seconds=seconds, precise=PRECISE)
    share = 2.0 * SLOW_DOWN
    while True:
        changed = _with_repeated(old.spec, _steps_of(old.spec, seconds_of, share))
        found = latency_ratio(old, Executable(changed), drawn_inputs(old), options)
        print(f"slower by {found.ratio - 1.0:.1%}", flush=True)
        if 1.0 + SLOW_DOWN <= found.ratio <= 1.0 + 1.5 * SLOW_DOWN:
            return changed
        share *= 1.25 * SLOW_DOWN / max(found.ratio - 1.0, SLOW_DOWN / 2.0)


def _with_repeated(spec: ExecutableSpec, again: Collection[int]) -> ExecutableSpec:
    """The same with calls that run twice, and an entry for that."""
    steps = [step for n, step in enumerate(spec.steps) for _ in range(1 + (n in again))]
    return _sealed(replace(spec, steps=tuple(steps)))


def _steps_of(spec: ExecutableSpec, seconds: Sequence[float], share: float) -> set[int]:
    """Calls that together take about such a share of the time, and may run twice."""
    left, chosen = share * sum(seconds), set[int]()
    for number in sorted(_repeatable(spec), key=lambda number: -seconds[number]):
        if seconds[number] <= left:
            chosen.add(number)
            left -= seconds[number]
    return chosen


def _repeatable(spec: ExecutableSpec) -> list[int]:
    """Calls that compute the same twice: they write to none of what they read."""
    return [
        number
        for number, step in enumerate(spec.steps)
        if isinstance(step, CallStep) and step.buffers[-1] not in step.buffers[:-1]
    ]


def _with_constant(spec: ExecutableSpec, number: int) -> ExecutableSpec:
    """The same with a constant that is 10 % larger."""
    wrong = aligned_empty(spec.constants[number].shape, spec.constants[number].dtype)
    np.multiply(spec.constants[number], 1.1, out=wrong)
    constants = (*spec.constants[:number], wrong, *spec.constants[number + 1 :])
    return replace(spec, constants=constants, digests=part_digests(spec.objects, constants))


def _sealed(spec: ExecutableSpec) -> ExecutableSpec:
    """The same with an entry that was made for it."""
    return replace(spec, entry=object_code(entry_of(spec, seal_of(spec)), spec.target))


def main() -> None:
    """Run what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("load", "callers", "processes", "threads", "canary"))
    parser.add_argument("artifact")
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--seconds", type=float)
    asked = parser.parse_args()
    if asked.what == "load":
        measure_load(asked.artifact, asked.count)
    elif asked.what == "callers":
        measure_callers(asked.artifact, asked.seconds or 3.0)
    elif asked.what == "threads":
        measure_threads(asked.artifact, asked.count)
    elif asked.what == "canary":
        measure_canary(asked.artifact, asked.count, asked.seconds or LIMIT_SECONDS)
    else:
        measure_processes(asked.artifact, asked.count)


if __name__ == "__main__":
    main()
