"""Records as studies of Optuna: what optuna-dashboard and Optuna's own analyses read.

A study holds one task (a kernel for a target, with threads and precision): its choices are the
parameters, the latency in seconds is the value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalChoiceType,
    CategoricalDistribution,
    IntDistribution,
)
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from tunefarm.compiler.with_count import with_count
from tunefarm.configs.errors import DatabaseError
from tunefarm.configs.files import replacing
from tunefarm.db import queries
from tunefarm.db.records import TaskKey, TrialRecord
from tunefarm.db.sqlite_file import ScratchConnection
from tunefarm.db.store import Store

Values: TypeAlias = Mapping[str, CategoricalChoiceType]
SKETCH = "sketch"
"""The parameter that names a trial's sketch."""
_MOST_CHOICES = 64  # of a parameter without an order; others become attributes
_ERROR_CHARACTERS = 500  # of a trial's error: all attributes are read at once


def export_studies(store: Store, path: Path) -> tuple[int, int]:
    """Write all trials as studies to a new SQLite file; how many studies and trials there are.

    Raises DatabaseError if there is such a file already, or it cannot be written.
    """
    if not path.absolute().parent.is_dir():
        raise DatabaseError(f"cannot write {path}: there is no folder {path.parent}")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with replacing(path, new=True) as unfinished:
            connection = {"connect_args": {"factory": ScratchConnection}}
            storage = RDBStorage(f"sqlite:///{unfinished}", engine_kwargs=connection)
            try:
                return _write(store, storage)
            finally:
                storage.remove_session()
                storage.engine.dispose()
    except FileExistsError as error:
        raise DatabaseError(f"{path} exists already", hint="give a new file") from error
    except OSError as error:
        raise DatabaseError(f"cannot write {path}: {error.strerror or error}") from error


def _write(store: Store, storage: RDBStorage) -> tuple[int, int]:
    names = {key: record.name for key, record in queries.workloads(store).items()}
    keys = queries.tasks(store)
    total = 0
    for key in keys:
        records = queries.trials(store, key)
        study = optuna.create_study(
            storage=storage, study_name=_study_name(key, names[key.workload]), direction="minimize"
        )
        for name in TaskKey.__slots__:
            study.set_user_attr(name, getattr(key, name))
        study.add_trials(_trials(records))
        total += len(records)
    return len(keys), total


def _study_name(key: TaskKey, kernel: str) -> str:
    """Unique: it has all that tells tasks apart."""
    where = f"{key.target}, {with_count(key.threads, 'thread')}, {key.numerics}"
    return f"{kernel} {key.workload} on {where}, compiler {key.compiler_version}"


def _trials(records: Sequence[TrialRecord]) -> list[FrozenTrial]:
    values = _alike([_values(record) for record in records])
    distributions = _distributions(values)
    return [
        _trial(number, record, own, distributions)
        for number, (record, own) in enumerate(zip(records, values, strict=True))
    ]


def _values(record: TrialRecord) -> Values:
    """The choices and the sketch: of lists of numbers each number, else what is no single value as
    JSON text."""
    plain: dict[str, CategoricalChoiceType] = {SKETCH: record.sketch}
    for name, value in record.choices.items():
        if isinstance(value, list) and value and all(type(item) is int for item in value):
            plain |= {f"{name}[{place}]": item for place, item in enumerate(value)}
        elif isinstance(value, bool | int | float | str):
            plain[name] = value
        else:
            plain[name] = json.dumps(value)
    return plain


def _alike(trials: Sequence[Values]) -> list[Values]:
    """The trials with values of one type for each parameter: JSON text where there are several."""
    kinds: dict[str, set[type]] = {}
    for trial in trials:
        for name, value in trial.items():
            kinds.setdefault(name, set()).add(type(value))
    return [
        {name: v if len(kinds[name]) == 1 else json.dumps(v) for name, v in trial.items()}
        for trial in trials
    ]


def _distributions(trials: Iterable[Values]) -> dict[str, BaseDistribution]:
    """What each parameter was drawn from, as far as the trials show: a study has one of each."""
    seen: dict[str, set[CategoricalChoiceType]] = {}
    for trial in trials:
        for name, value in trial.items():
            seen.setdefault(name, set()).add(value)
    found = {name: _distribution(values) for name, values in seen.items()}
    return {name: one for name, one in found.items() if _is_short(one)}


def _is_short(distribution: BaseDistribution) -> bool:
    """Whether a study can have it as a parameter: each trial repeats all its choices."""
    if not isinstance(distribution, CategoricalDistribution):
        return True
    return len(distribution.choices) <= _MOST_CHOICES


def _distribution(values: Collection[CategoricalChoiceType]) -> BaseDistribution:
    numbers = [value for value in values if type(value) is int]
    if len(numbers) == len(values):
        return IntDistribution(min(numbers), max(numbers))
    return CategoricalDistribution(sorted(values, key=repr))


def _trial(
    number: int,
    record: TrialRecord,
    values: Values,
    distributions: Mapping[str, BaseDistribution],
) -> FrozenTrial:
    """The trial: complete, failed, or pruned where noise left too little to say."""
    state = TrialState.PRUNED if record.is_lost_to_noise else TrialState.FAIL
    if record.is_ok:
        state = TrialState.COMPLETE
    seconds = record.build_seconds + record.check_seconds + record.run_seconds
    attributes = {
        "record": record.number,
        "status": record.status,
        "job": record.job,
        "schedule": record.schedule_hash,
        "ratio to its reference": record.ratio,
        "error": record.error[:_ERROR_CHARACTERS],
        **{name: value for name, value in values.items() if name not in distributions},
    }
    return FrozenTrial(
        number=number,
        trial_id=-1,  # the storage gives it one
        state=state,
        value=record.latency if state is TrialState.COMPLETE else None,
        datetime_start=_moment(record.created - seconds),
        datetime_complete=_moment(record.created),
        params={name: value for name, value in values.items() if name in distributions},
        distributions={name: distributions[name] for name in values if name in distributions},
        user_attrs={name: value for name, value in attributes.items() if value not in (None, "")},
        system_attrs={},
        intermediate_values={},
    )


def _moment(seconds: float) -> datetime:
    """A moment of the calendar, in the local time, as Optuna has them."""
    try:
        return datetime.fromtimestamp(seconds if math.isfinite(seconds) else 0.0)
    except (OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(0)
