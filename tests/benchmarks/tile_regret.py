"""How good default schedules in matrix tiles are on recorded trials: no machine with tiles needed.

    python -m tests.benchmarks.tile_regret EXPORT.jsonl[.gz] ... [--json]

The exports are of tuning databases (`tune db export`) of CPUs with AMX. Each trial is the ratio of
a candidate's time to that of a reference, both measured in pairs. The same reference was up to
three times as slow in some trials as in others, on a shared host, and candidates are another order
then; so trials are compared within a group: one kernel, one reference, and one state of the
machine. In the state "fast" the reference took at most 1.25 times its least time, in "slow" more
than 1.6 times; groups of a reference that was always alike are "steady".

    regret   of a group: the time of the candidate that today's cost prefers over that of the best
    half     kernels by the parity of their key: constants may be fitted to "even", "odd" is held
    either   kernels of which candidates were tried in both states "fast" and "slow": their regret
             in the worse state, of today's default and of the best choice that there is, as nobody
             knows the state when a model is built. In "slow", as next to a busy hyperthread, a
             block takes the longer the more tiles it holds: 3.1 times the time with 8, 1.7 with 5
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from tunefarm.compiler.kernels.serialize import kernel_from_json
from tunefarm.compiler.schedule.space import ScheduleSpace
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target
from tunefarm.db.records import hash_json

FAST, SLOW = 1.25, 1.6  # times the least time of a reference
FEWEST = 4  # candidates of a group

Trial = Mapping[str, Any]
Choices = tuple[str, str]  # sketch and choices, as JSON


@dataclass(frozen=True, slots=True)
class Group:
    """Regret within one group; see the module."""

    export: str
    workload: str
    state: str
    candidates: int
    regret: float
    preferred: str
    best: str
    regrets: Mapping[str, float]

    @property
    def half(self) -> str:
        """Which half of the kernels it is of."""
        return ("even", "odd")[int(self.workload[:8], 16) % 2]


def costs(space: ScheduleSpace) -> dict[Choices, float]:
    """Cycles of every candidate in matrix tiles."""
    found: dict[Choices, float] = {}
    for sketch in space.sketches:
        if not sketch.name.startswith("matrix_tiles") or sketch.shape is None:
            continue
        counts = [len(choice.values) for choice in sketch.choices]
        every = np.indices(counts).reshape(len(counts), -1)
        names = [choice.name for choice in sketch.choices]
        cycles = sketch.shape(dict(zip(names, every, strict=True))).cycles
        for candidate, cost in zip(every.T.tolist(), cycles.tolist(), strict=True):
            values = {c.name: c.values[i] for c, i in zip(sketch.choices, candidate, strict=True)}
            found[sketch.name, json.dumps(values, sort_keys=True)] = cost
    return found


def choices_of(trial: Trial) -> Choices:
    """A trial's candidate, as `costs` names it."""
    return trial["sketch"], json.dumps(trial["choices"], sort_keys=True)


def groups_of(path: Path) -> Iterator[Group]:
    """The groups of an export's kernels in matrix tiles."""
    workloads: dict[str, Any] = {}
    trials: dict[str, list[Trial]] = defaultdict(list)
    target: Target | None = None
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            record = json.loads(line)
            kind = record.get("kind")
            if kind == "target":
                target = Target.from_json(record["description"])
            elif kind == "workload":
                workloads[record["key"]] = record["kernel"]
            elif kind == "trial" and record["status"] == "ok":
                trials[record["key"]["workload"]].append(record)
    if target is None:
        raise SystemExit(f"{path} names no target")
    for key, own in trials.items():
        if any(trial["sketch"].startswith("matrix_tiles") for trial in own):
            cost = costs(schedule_space(kernel_from_json(workloads[key]), target))
            yield from _groups(path.name, key, own, cost)


def _groups(
    export: str, key: str, trials: Sequence[Trial], cost: Mapping[Choices, float]
) -> Iterator[Group]:
    known = {hash_json(trial["schedule"]): choices_of(trial) for trial in trials}
    by_reference: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial["ratio"] and trial["reference_samples"]:
            by_reference[trial["reference"]].append(trial)
    for reference, own in by_reference.items():
        taken = [median(trial["reference_samples"]) for trial in own]
        least = min(taken)
        steady = max(taken) < SLOW * least
        ratios: dict[str, dict[Choices, list[float]]] = defaultdict(lambda: defaultdict(list))
        for trial, seconds in zip(own, taken, strict=True):
            fast, slow = seconds <= FAST * least, seconds > SLOW * least
            state = "steady" if steady else "fast" if fast else "slow" if slow else ""
            ratios[state][choices_of(trial)].append(trial["ratio"])
        for state, found in ratios.items():
            if state and reference in known:
                found.setdefault(known[reference], [1.0])
            times = {name: median(values) for name, values in found.items() if name in cost}
            if state and len(times) >= FEWEST:
                preferred, best = (
                    min(times, key=cost.__getitem__),
                    min(times, key=times.__getitem__),
                )
                regret = times[preferred] / times[best]
                ordered = sorted(times, key=cost.__getitem__)
                regrets = {" ".join(name): times[name] / times[best] for name in ordered}
                yield Group(
                    export,
                    key,
                    state,
                    len(times),
                    regret,
                    " ".join(preferred),
                    " ".join(best),
                    regrets,
                )


def in_either(groups: Sequence[Group]) -> list[tuple[float, float]]:
    """By kernel: the regret in the worse state of today's default, and of the best choice."""
    found: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: {"fast": {}, "slow": {}})
    for group in groups:
        if group.state != "steady":
            found[group.workload][group.state].update(group.regrets)
    worse = [
        [max(regret, slow[name]) for name, regret in fast.items() if name in slow]
        for fast, slow in (states.values() for states in found.values())
    ]
    return [(regrets[0], min(regrets)) for regrets in worse if len(regrets) > 1]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("exports", nargs="+", type=Path, metavar="EXPORT")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    groups = [group for path in options.exports for group in groups_of(path)]
    if options.json:
        print(json.dumps([{**asdict(group), "half": group.half} for group in groups], indent=1))
        return 0
    for group in sorted(groups, key=lambda group: (group.state, -group.regret)):
        print(
            f"{group.export[:14]:14s} {group.workload[:8]} {group.half:4s} {group.state:6s} "
            f"{group.candidates:2d} {group.regret:6.3f} {group.preferred} / {group.best}"
        )
    for state in ("fast", "steady", "slow"):
        for half in ("even", "odd"):
            own = [g.regret for g in groups if g.state == state and g.half == half]
            if own:
                print(f"{state:6s} {half:4s} {len(own):3d} groups: mean {fmean(own):.3f}", end=" ")
                print(f"median {median(own):.3f} worst {max(own):.3f}")
    if worse := in_either(groups):
        for name, found in zip(("default", "best"), zip(*worse, strict=True), strict=True):
            print(f"either {name} {len(found)} kernels: mean {fmean(found):.3f}", end=" ")
            print(f"worst {max(found):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
