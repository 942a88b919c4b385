"""Which trials of a database may go: what is applied stays, and what a search can learn from.

Schedules go with all their trials, or stay with them: of one that was measured again the luckiest
trial alone would say too much. Of each task stay what a verdict refers to, what a build applies,
the fastest, some of the slower ones from fast to slow, some failures, and what all of these were
measured against. The rest only says once more what these say; a search may measure it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tunefarm.db import queries
from tunefarm.db.records import TaskKey, TrialRecord
from tunefarm.db.store import Store
from tunefarm.tuner.records.estimates import grouped, is_dangerous, joint, scales
from tunefarm.tuner.records.trials import record_to_apply

_Groups: TypeAlias = Mapping[str, Sequence[TrialRecord]]  # by schedule hash

FAILURES = 8  # one in so many of the trials kept may be a failure


@dataclass(frozen=True, slots=True)
class PrunedTask:
    """What goes of one task: `dropped` are the numbers of trials.

    `references` is how many stay only because others were measured against their schedules.
    """

    key: TaskKey
    workload_name: str
    trials: int
    dropped: tuple[int, ...]
    references: int


def plan_pruning(store: Store, keep: int) -> list[PrunedTask]:
    """What would go if about `keep` trials of each task were kept."""
    referred = queries.trials_of_bests(store)
    result = []
    for task in queries.summary(store):
        if task.trials <= keep:
            continue
        records = queries.trials(store, task.key)
        groups = grouped(records)
        applied = record_to_apply(store, task.key)
        hashes = _worth_keeping(groups, keep)
        hashes |= set() if applied is None else {applied[0].schedule_hash}
        kept = referred | _numbers(record for hash in hashes for record in groups[hash])
        needed = _references(groups, [record for record in records if record.number in kept])
        kept_too = _numbers(record for hash in needed - hashes for record in groups[hash]) - kept
        dropped = tuple(sorted(_numbers(records) - kept - kept_too))
        if dropped:
            name = task.workload_name
            result.append(PrunedTask(task.key, name, task.trials, dropped, len(kept_too)))
    return result


def prune(store: Store, tasks: Sequence[PrunedTask]) -> int:
    """Delete the dropped trials of these tasks and give their space back; how many went."""
    count = store.delete_trials(number for task in tasks for number in task.dropped)
    store.compact()
    return count


def _worth_keeping(groups: _Groups, keep: int) -> set[str]:
    """Schedules with about `keep` trials: the fastest half as many, others evenly from fast to
    slow, and failures, the newest. What was only too noisy says nothing."""
    latencies: dict[str, float] = {}
    failed: list[str] = []
    for hash, group in groups.items():
        known = None if is_dangerous(group) else joint(group)
        if known is not None:
            latencies[hash] = known.latency
        elif not all(record.is_lost_to_noise for record in group):
            failed.append(hash)
    succeeded = sorted(latencies, key=lambda hash: latencies[hash])
    failures = _first(groups, failed[::-1], keep // FAILURES)
    room = max(1, keep - _count(groups, failures))
    fastest = _first(groups, succeeded, -(-room // 2))
    rest = succeeded[len(fastest) :]
    others = min(len(rest), room // 2 * len(rest) // max(1, _count(groups, rest)))
    spread = [rest[i * len(rest) // others] for i in range(others)]
    return {*fastest, *spread, *failures}


def _first(groups: _Groups, hashes: Iterable[str], most: int) -> list[str]:
    """The first of these schedules, until they have so many trials together."""
    found: list[str] = []
    for hash in hashes:
        if most <= 0:
            break
        most -= len(groups[hash])
        found.append(hash)
    return found


def _count(groups: _Groups, hashes: Collection[str]) -> int:
    return sum(len(groups[hash]) for hash in hashes)


def _references(groups: _Groups, records: Sequence[TrialRecord]) -> set[str]:
    """The schedules that these were measured against, and what those were measured against."""
    found: set[str] = set()
    ahead = scales(records)
    while ahead:
        found |= ahead
        ahead = scales(record for hash in ahead for record in groups.get(hash, ())) - found
    return found & groups.keys()


def _numbers(records: Iterable[TrialRecord]) -> set[int]:
    return {record.number for record in records if record.number is not None}
