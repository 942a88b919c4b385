"""Which trials of a database may go: what is applied stays, and what a search can learn from.

Of each task stay every trial that a verdict refers to, the one that a build applies, the fastest,
some of the slower ones from fast to slow, and some failures. The rest only says once more what
these say; a search may measure it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from db import queries
from db.records import TaskKey, TrialRecord
from db.store import Store
from tuner.records.trials import latency_of, record_to_apply

FAILURES = 8  # one in so many of the trials kept may be a failure


@dataclass(frozen=True, slots=True)
class PrunedTask:
    """What goes of one task: `dropped` are the numbers of trials."""

    key: TaskKey
    workload_name: str
    trials: int
    dropped: tuple[int, ...]


def plan_pruning(store: Store, keep: int) -> list[PrunedTask]:
    """What would go if about `keep` trials of each task were kept."""
    referred = queries.trials_of_bests(store)
    result = []
    for task in queries.summary(store):
        if task.trials <= keep:
            continue
        records = queries.trials(store, task.key)
        kept = referred | _worth_keeping(records, keep)
        applied = record_to_apply(store, task.key)
        if applied is not None:
            kept |= _numbers([applied[0]])
        dropped = tuple(sorted(_numbers(records) - kept))
        if dropped:
            result.append(PrunedTask(task.key, task.workload_name, task.trials, dropped))
    return result


def prune(store: Store, tasks: Sequence[PrunedTask]) -> int:
    """Delete the dropped trials of these tasks and give their space back; how many went."""
    count = store.delete_trials(number for task in tasks for number in task.dropped)
    store.compact()
    return count


def _worth_keeping(records: Sequence[TrialRecord], keep: int) -> set[int]:
    """The fastest half as many, others evenly from fast to slow, and failures, the newest."""
    succeeded = sorted((r for r in records if r.is_ok), key=latency_of)
    failed = [record for record in records if not record.is_ok]
    kept_failures = failed[len(failed) - min(len(failed), keep // FAILURES) :]
    room = max(1, keep - len(kept_failures))
    fastest, rest = succeeded[: -(-room // 2)], succeeded[-(-room // 2) :]
    others = min(room // 2, len(rest))
    spread = [rest[i * len(rest) // others] for i in range(others)]
    return _numbers([*fastest, *spread, *kept_failures])


def _numbers(records: Sequence[TrialRecord]) -> set[int]:
    return {record.number for record in records if record.number is not None}
