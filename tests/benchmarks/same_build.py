"""One build against itself: how often a comparison claims a difference, and how wide it is.

    python -m tests.benchmarks.same_build again [MODEL ...] [--count 100] [--load]
    python -m tests.benchmarks.same_build jobs [MODEL ...] [--count 100] [--load]

MODEL is mlp, squeezenet1_1 or encoder, a small one of two layers and 256 features; all if none is
named. `--load` keeps the other cores busy meanwhile.

`again` compares each model with itself as a job compares the tuned with the untuned one, each time
in a fresh process: of so many intervals some exclude 1, which all should hold. Neighbouring
processes are compared as `tune verify` compares a job with itself: the ratio of their two ratios.
At most one interval in ten may exclude 1, and the median interval is at most 3 % wide (its upper
end over its lower one).

`jobs` runs `tune` with one trial, the first kernel's default schedule, so that every default stays,
and counts the jobs that print a ratio of the model, or have one in their JSON: none may.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from tunefarm.compiler import build, load
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.tuner.confirm.latency import COMPARISON, latency_of_meetings, meetings_of
from tunefarm.tuner.records.model_latencies import Ratio
from tunefarm.tuner.verify.drift import slowdown_of

SIZES = {
    "mlp": Size(),
    "squeezenet1_1": Size(),
    "encoder": Size(tokens=64, width=1 / 3, layers=2),
}
MOST_EXCLUDE = 0.1  # share of the intervals
WIDEST = 0.03
JOB = "from tunefarm.tuner.commands.entry import main; main()"
KEEPS = ("--trials", "1", "--runner", "local")
RATIO = re.compile(r"\d\.\d\dx")
BUSY = """
import os
import numpy as np
data, parent = np.ones(1 << 22, np.float32), os.getppid()
while os.getppid() == parent:
    data *= 1.0
    sum(range(100_000))
"""


@dataclass(frozen=True, slots=True)
class Once:
    """What a process found: the ratio with its interval, seconds of a run, and of all of them."""

    ratio: float
    low: float
    high: float
    run: float
    took: float

    @property
    def over(self) -> Ratio:
        return Ratio(self.ratio, self.low, self.high)


def compared(artefact: str, seed: int) -> Once:
    """The model of a file against itself, in this process."""
    begin = time.perf_counter()
    models = load(artefact), load(artefact)
    found = latency_of_meetings(meetings_of(models, replace(COMPARISON, seed=seed)))
    took = time.perf_counter() - begin
    return Once(found.ratio, found.low, found.high, found.untuned, took)


def again(model: Path, count: int) -> bool:
    """Print a row for the comparisons of a model with itself; whether both limits hold."""
    artefact = model.with_suffix(".tuned")
    build(str(model)).save(artefact)
    found = []
    for seed in range(count):
        command = [sys.executable, "-m", __spec__.name, "once", str(artefact), str(seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        found.append(Once(**json.loads(done.stdout)))
    alone = [once.over for once in found]
    pairs = zip(alone[::2], alone[1::2], strict=False)
    verified = [ratio for a, b in pairs if (ratio := slowdown_of(a, b)) is not None]
    excluded, width = _excluding(alone), median(r.high / r.low - 1.0 for r in alone)
    print(
        f"{model.stem:14} {1e6 * median(once.run for once in found):9.1f} "
        f"{median(once.took for once in found):7.2f} {excluded:6} of {len(alone):3} "
        f"{100 * width:7.2f} {_excluding(verified):7} of {len(verified):3} "
        f"{100 * median(r.high / r.low - 1.0 for r in verified):7.2f}",
        flush=True,
    )
    return excluded <= MOST_EXCLUDE * len(alone) and width <= WIDEST


def _excluding(ratios: list[Ratio]) -> int:
    """How many of the intervals exclude 1."""
    return sum(ratio.low > 1.0 or ratio.high < 1.0 for ratio in ratios)


def jobs(model: Path, count: int) -> bool:
    """Print a row for jobs that keep every default; whether none has a ratio of the model."""
    ratios = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            files = ["--model", str(model), "--db", f"{folder}/{number}.db"]
            command = [sys.executable, "-c", JOB, *files, *KEEPS, "--json", f"{folder}/job.json"]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            lines = [line for line in done.stdout.splitlines() if line.startswith("whole model:")]
            search = json.loads(Path(folder, "job.json").read_text())["search"]
            is_said = any(RATIO.search(line) or "unchanged" not in line for line in lines)
            ratios += is_said or not lines or search["speedup"] is not None
    print(f"{model.stem:14} {ratios:6} of {count:3} jobs print a ratio", flush=True)
    return ratios == 0


@contextmanager
def busy(cores: int) -> Iterator[None]:
    """Keep so many cores at work while the block runs: the first ones, models run on the last."""
    loads = [
        subprocess.Popen([sys.executable, "-c", BUSY], preexec_fn=_pinned(core))
        for core in sorted(os.sched_getaffinity(0))[:cores]
    ]
    try:
        yield
    finally:
        for load_process in loads:
            load_process.kill()
            load_process.wait()


def _pinned(core: int) -> Callable[[], None]:
    return lambda: os.sched_setaffinity(0, {core})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("again", "jobs", "once"))
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--load", action="store_true")
    asked = parser.parse_args()
    if asked.what == "once":  # a process of `again`
        artefact, seed = asked.models
        print(json.dumps(asdict(compared(artefact, int(seed)))))
        return
    names = asked.models or list(SIZES)
    if unknown := sorted(set(names) - set(SIZES)):
        parser.error(f"no such model: {', '.join(unknown)} (there are {', '.join(SIZES)})")
    if asked.what == "again":
        print("model            us/run seconds  exclude 1   width %  verify: exclude 1  width %")
    others = len(os.sched_getaffinity(0)) - 1
    with tempfile.TemporaryDirectory() as folder, busy(others if asked.load else 0):
        held = []
        for name in names:
            path = Path(folder, f"{name}.onnx")
            path.write_bytes(build_model(name, size=SIZES[name]).SerializeToString())
            held.append((again if asked.what == "again" else jobs)(path, asked.count))
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
