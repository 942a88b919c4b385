"""How many trials the clock of a shared host costs a search: on recorded kernels, simulated cores.

After each trial it is asked on which schedule the finalists would settle if they met now (their
meeting is exact enough to take the true fastest of those who would be nominated). Counted are the
trials until that is within 5 % of the best for the first time, and until it is so for good: from
then on the search may end whenever it likes. Repeated trials count, and those lost to noise.

Three ways are compared: pairs on the noisy clock, pairs on a still one, and what earlier versions
did (`tests.benchmarks.former_search`) on the noisy clock. And, at the end of all searches, what
they expected of their nominees against what those are worth.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import TypeAlias

import numpy as np

from tests.benchmarks.former_search import FormerSearch
from tests.benchmarks.replayed_search import ReplayedSearch
from tests.measure.wandering_clock import STILL, make_clock
from tests.tuner.recorded import RecordedKernel
from tunefarm.db.store import Store
from tunefarm.tuner.search.budget import Limits

WITHIN = 1.05  # of the best
TRIALS = 64  # of a search
STILL_LIMIT, FORMER_LIMIT = 1.3, 0.5  # of the trials of the other ways
HONEST = (0.97, 1.03)  # claimed over true
LOST_LIMIT = 0.02
MEMORY = Path("/dev/shm")  # where a commit does not wait for a disk


@dataclass(frozen=True, slots=True)
class Course:
    """The course of one search: after each trial, whether what would be confirmed is good enough.

    `claimed` are the seconds expected of its nominee in the end, `true` those it takes.
    """

    good: tuple[bool, ...]
    lost: int
    claimed: float = math.nan
    true: float = math.nan

    @property
    def first(self) -> int:
        """Trials until it was good enough for the first time; all and one more if it never was."""
        return (*self.good, True).index(True) + 1

    @property
    def for_good(self) -> int:
        """Trials until it was good enough and stayed so."""
        return len(self.good) - (False, *self.good)[::-1].index(False) + 1


def paired(item: RecordedKernel, kind: str, seed: int, trials: int = TRIALS) -> Course:
    """A search with pairs on a clock of this kind."""
    good: list[bool] = []

    def watch() -> None:
        if search.runner.trials > len(good):
            good.append(search.confirmed <= WITHIN * item.best)

    clock = make_clock(kind, seed)
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
        Store.open(Path(folder) / "noisy.db") as store,
    ):
        search = ReplayedSearch(item, store, seed=seed, clock=clock, capacity=1)
        search.run(Limits(trials=trials), watch)
        return Course(tuple(good), search.runner.lost, search.claimed, search.true)


def former(item: RecordedKernel, kind: str, seed: int, trials: int = TRIALS) -> Course:
    """A search of earlier versions on a clock of this kind."""
    search = FormerSearch(item, make_clock(kind, seed), seed)
    good: list[bool] = []
    while search.trials < trials and search.step():
        good.append(search.confirmed <= WITHIN * item.best)
    return Course(tuple(good), search.lost, search.best, search.nominee)


WAYS: tuple[tuple[str, Callable[[RecordedKernel, str, int], Course]], ...] = (
    ("pairs", paired),
    ("still clock", lambda item, _, seed: paired(item, STILL, seed)),
    ("former", former),
)


Courses: TypeAlias = dict[tuple[str, str, str], list[Course]]
"""By kernel, clock and way: the course of each seed."""


def noisy(kernels: Sequence[RecordedKernel], seeds: int, kinds: Sequence[str]) -> None:
    """Print the trials of the three ways for each kernel and clock, and what became of claims."""
    print(f"trials for the first time / for good, medians of {seeds} seeds")
    print(f"{'':30s}{'':>10s}" + "".join(f"{name:>16s}" for name, _ in WAYS))
    courses: Courses = {}
    for item in kernels:
        for kind in kinds:
            begin, cells = time.monotonic(), ""
            for name, way in WAYS:
                key = (item.name, clock_of(name, kind), name)
                if key not in courses:
                    courses[key] = [way(item, kind, seed) for seed in range(seeds)]
                found = courses[key]
                first, good = (c.first for c in found), (c.for_good for c in found)
                cells += f"{median(first):8.1f}{median(good):8.1f}"
            seconds = time.monotonic() - begin
            print(f"{item.name:30s}{kind:>10s}{cells}   ({seconds:.0f} s)", flush=True)
    names = [item.name for item in kernels]
    for kind in kinds:
        summarise([kind], courses, names)
    if len(kinds) > 1:
        summarise(kinds, courses, names)


def summarise(kinds: Sequence[str], courses: Courses, names: Sequence[str]) -> None:
    """Print the ratios of some clocks, of sums over them and the kernels, and what was claimed."""
    title = kinds[0] if len(kinds) == 1 else "all"
    here = {
        way: [courses[name, clock_of(way, kind), way] for kind in kinds for name in names]
        for way, _ in WAYS
    }
    for middle, of in (("medians", median), ("means", mean)):
        for what, count in (("first", _first), ("for good", _for_good)):
            noise, still, before = (
                sum(of([count(course) for course in found]) for found in here[way])
                for way, _ in WAYS
            )
            print(
                f"{title:>10s}, {middle:7s} of trials {what:8s}: {noise:6.1f}, still clock "
                f"{still:6.1f}, former {before:6.1f}: {noise / still:.2f} (at most {STILL_LIMIT}) "
                f"and {noise / before:.2f} (at most {FORMER_LIMIT})"
            )
    for way in ("pairs", "former"):
        found = np.array([[(c.claimed, c.true) for c in seeds] for seeds in here[way]])
        claimed, true = np.moveaxis(found.reshape(len(kinds), len(names), -1, 2).sum(axis=1), 2, 0)
        low, usual, high = np.quantile(claimed / true, (0.0, 0.5, 1.0))
        lost = sum(course.lost for seeds in here[way] for course in seeds)
        trials = sum(len(course.good) for seeds in here[way] for course in seeds)
        print(
            f"{title:>10s}, {way}: claimed over true {usual:.3f}, from {low:.3f} to {high:.3f} "
            f"(within {HONEST[0]} to {HONEST[1]}), {lost / trials:.1%} of the trials lost to noise "
            f"(at most {LOST_LIMIT:.0%})",
            flush=True,
        )


def clock_of(way: str, kind: str) -> str:
    """The clock that a way is tried on."""
    return STILL if way == "still clock" else kind


def _first(course: Course) -> int:
    return course.first


def _for_good(course: Course) -> int:
    return course.for_good
