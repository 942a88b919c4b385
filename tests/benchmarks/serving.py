"""What a server feels: a model's load, calls at the same time, processes next to each other.

    python -m tests.benchmarks.serving load ARTIFACT [--count 10]
    python -m tests.benchmarks.serving callers ARTIFACT [--seconds 3]
    python -m tests.benchmarks.serving processes ARTIFACT [--count 8]

`load` starts processes that import the runtime, load the artifact from a warm file cache and run it
once: medians of wall and of CPU time. `callers` runs 1 to 8 threads that call `run`, and as many
that wait for `run_async`: the median and the 99th percentile of a call, and the throughput over
that of one caller. `processes` says what each of several that have run holds for itself
(Private_Clean and Private_Dirty in /proc/PID/smaps_rollup) and what of shared pages falls to it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import numpy as np

from tunefarm import load

CALLERS = (1, 2, 4, 8)
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


def main() -> None:
    """Run what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("load", "callers", "processes"))
    parser.add_argument("artifact")
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0)
    asked = parser.parse_args()
    if asked.what == "load":
        measure_load(asked.artifact, asked.count)
    elif asked.what == "callers":
        measure_callers(asked.artifact, asked.seconds)
    else:
        measure_processes(asked.artifact, asked.count)


if __name__ == "__main__":
    main()
