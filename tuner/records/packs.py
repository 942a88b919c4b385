"""Packs: the records and plans of some models for some targets, in one file that can be verified.

    {"format": "tunefarm-pack", "version": 1, "models": […], "targets": […], "sha256": …, "hmac": …}
    an export of the records (`tunefarm.db.export`), compressed by gzip

The first line has the SHA-256 of the rest, and if the pack was signed with a key, its own
HMAC-SHA256. Of each kernel a pack has what a build applies, what that was measured against,
and some of the other trials, from fast to slow: what cost models learn from before they search.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import io
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunefarm.configs.errors import DatabaseError, SettingsError, system_errors_as
from tunefarm.configs.files import read_regular, replacing
from tunefarm.configs.temporary_folders import temporary_folder
from tunefarm.db import model_queries, queries
from tunefarm.db.additions import bringing
from tunefarm.db.export import (
    Added,
    RecordsFile,
    add_records,
    check_source,
    records_of,
    write_records,
)
from tunefarm.db.records import JobRecord, Record, TaskKey, TrialRecord, canonical_json
from tunefarm.db.store import Store
from tunefarm.tuner.records.trials import record_to_apply
from tunefarm.tuner.records.unapplied import name_of

FORMAT, VERSION = "tunefarm-pack", 1
LEARNING_TRIALS = 48
"""Of a kernel, for cost models."""
SUFFIXES = (".pack", ".jsonl", ".jsonl.gz", ".db")
"""The files of a folder that are added."""
_FEWEST_KEY_BYTES = 16
_LONGEST_HEADER = 1 << 20  # bytes
_SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class Packed:
    """What was written to a pack."""

    models: tuple[str, ...]
    targets: tuple[str, ...]
    kernels: int
    trials: int
    plans: int
    signed: bool

    def __str__(self) -> str:
        return (
            f"{self.trials} trials of {self.kernels} kernels and {self.plans} plans of "
            f"{', '.join(self.models)} for {', '.join(self.targets)}"
            f"{', signed' if self.signed else ''}"
        )


def read_key(path: str | None) -> bytes | None:
    """The key that packs are signed with, from a file; None without one.

    Raises SettingsError for a file that cannot be read or is too short for a key.
    """
    if path is None:
        return None
    with system_errors_as(SettingsError, f"read {path}"):
        key = read_regular(Path(path)).strip()
    if len(key) < _FEWEST_KEY_BYTES:
        raise SettingsError(
            f"{path} is too short for a key: it has {len(key)} bytes",
            hint="openssl rand -hex 32 makes one",
        )
    return key


def write_pack(
    store: Store,
    path: Path,
    models: Sequence[str],
    targets: Sequence[str] = (),
    key: bytes | None = None,
) -> Packed:
    """Write what the store has of these models (all if none) for these targets (all if none).

    Models are named as jobs name them, or by their files. Raises DatabaseError for a model or
    target that nothing is recorded of, and a file that exists or cannot be written.
    """
    jobs = _jobs_of(store, models)
    tasks = _tasks_of(store, jobs, targets)
    hashes = {job.model_hash for job in jobs}
    plans = [
        plan
        for plan in reversed(model_queries.plans(store))
        if plan.model_hash in hashes and _is_wanted(plan.target, targets)
    ]
    keys = sorted({task.target for task in tasks} | {plan.target for plan in plans})
    body = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=body, mode="wb", mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as file,
    ):
        trials = write_records(_records(store, tasks, keys, plans), file)
    names = tuple(dict.fromkeys(job.model_name for job in jobs))
    header = {
        "format": FORMAT,
        "version": VERSION,
        "models": list(names),
        "targets": keys,
        "sha256": hashlib.sha256(body.getvalue()).hexdigest(),
    }
    header["hmac"] = None if key is None else _signature(header, key)
    try:
        with replacing(path, new=True) as unfinished, unfinished.open("xb") as out:
            out.write(json.dumps(header).encode() + b"\n" + body.getvalue())
    except FileExistsError as error:
        raise DatabaseError(f"{path} exists already", hint="nothing was changed") from error
    except OSError as error:
        raise DatabaseError(f"cannot write {path}: {error.strerror or error}") from error
    return Packed(names, tuple(keys), len(tasks), trials, len(plans), key is not None)


def _jobs_of(store: Store, models: Sequence[str]) -> list[JobRecord]:
    """The jobs of models by their names or files; all of them if none is named."""
    jobs = queries.jobs(store)
    known = {job.model_name for job in jobs}
    for model in models:
        if not known & _names(model):
            named = ", ".join(sorted(known)) or "none"
            raise DatabaseError(
                f"{store.name} has no job of {model}", hint=f"it has jobs of these models: {named}"
            )
    wanted = set[str]().union(*map(_names, models)) if models else known
    found = [job for job in jobs if job.model_name in wanted]
    if not found:
        raise DatabaseError(f"{store.name} has no job whose records could be packed")
    return found


def _names(model: str) -> set[str]:
    base = os.path.basename(model)
    return {model, base, os.path.splitext(base)[0], f"{base}.onnx"}


def _is_wanted(target: str, targets: Sequence[str]) -> bool:
    return not targets or target in targets or name_of(target) in targets


def _tasks_of(store: Store, jobs: Sequence[JobRecord], targets: Sequence[str]) -> list[TaskKey]:
    """The tasks of these jobs that have records for these targets."""
    recorded = set(queries.tasks(store, only_ok=True))
    tasks = dict.fromkeys(task.key for job in jobs for task in job.tasks)
    found = [key for key in tasks if key in recorded and _is_wanted(key.target, targets)]
    if not found:
        where = f" for {', '.join(targets)}" if targets else ""
        there = ", ".join(sorted({key.target for key in recorded})) or "none"
        raise DatabaseError(
            f"{store.name} has no record of these models{where}",
            hint=f"it has records for these targets: {there}",
        )
    return found


def _records(
    store: Store, tasks: Sequence[TaskKey], targets: Collection[str], plans: Sequence[Record]
) -> Iterator[Record]:
    """What a pack holds, each record behind those that it refers to; no job goes with them."""
    described = queries.targets(store)
    yield from (described[key] for key in targets)
    yield from queries.workloads(store, list({key.workload for key in tasks})).values()
    bests = []
    for key in tasks:
        yield from (replace(trial, job=None, number=None) for trial in _trials(store, key))
        settled = queries.best(store, key)
        if settled is not None:
            bests.append(replace(settled[0], job=None))
    yield from bests
    yield from plans


def _trials(store: Store, key: TaskKey) -> list[TrialRecord]:
    """The trials of a task that go into a pack, in their order."""
    applied = record_to_apply(store, key)
    hash = "" if applied is None else applied[0].schedule_hash
    found = queries.some_trials(
        store, key, fastest=LEARNING_TRIALS // 2, newest=LEARNING_TRIALS // 2, schedule_hash=hash
    )
    numbers = {trial.number for trial in found}
    references = [trial.reference for trial in found if trial.reference is not None]
    more = queries.trials_of_schedules(store, key, sorted(set(references)))
    found += [trial for trial in more if trial.number not in numbers]
    settled = queries.best(store, key)
    if settled is not None and settled[1].number not in {trial.number for trial in found}:
        found.append(settled[1])
    return sorted(found, key=lambda trial: trial.number or 0)


def _signature(header: Mapping[str, Any], key: bytes) -> str:
    signed = {name: value for name, value in header.items() if name != "hmac"}
    return hmac.new(key, canonical_json(signed).encode(), hashlib.sha256).hexdigest()


@contextmanager
def _opened(path: Path, key: bytes | None) -> Iterator[RecordsFile]:
    """The records of a pack, all of which were checked. Raises DatabaseError for one that is not
    what was written, or not signed with the key."""
    with system_errors_as(DatabaseError, f"read {path}"):
        content = read_regular(path)
    line, newline, body = content.partition(b"\n")
    try:
        header = json.loads(line) if newline and len(line) < _LONGEST_HEADER else None
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DatabaseError(f"{path} is not a pack", hint="tune db pack writes one")
    if header.get("version") != VERSION:
        raise DatabaseError(
            f"{path}: version {header.get('version')!r} of packs is not supported",
            hint="a newer tunefarm has written it: update this one",
        )
    if header.get("sha256") != hashlib.sha256(body).hexdigest():
        raise DatabaseError(
            f"{path}: the pack is not what was written: its SHA-256 is not right",
            hint="copy it again; nothing of it was added",
        )
    if key is not None:
        given = header.get("hmac")
        if not isinstance(given, str):
            raise DatabaseError(f"{path}: the pack is not signed", hint="nothing of it was added")
        if not hmac.compare_digest(given, _signature(header, key)):
            raise DatabaseError(
                f"{path}: the pack was not signed with this key", hint="nothing of it was added"
            )
    with temporary_folder("pack") as folder:
        inner = Path(folder, "records.jsonl.gz")
        inner.write_bytes(body)
        try:
            records = RecordsFile(inner)
        except DatabaseError as error:
            raise DatabaseError(f"{path}: {error.message}", hint=error.hint) from error
        with records:
            yield records


def is_signed(path: Path) -> bool:
    """Whether a file is a pack with a signature."""
    try:
        header = json.loads(read_regular(path).partition(b"\n")[0])
    except (OSError, ValueError):
        return False
    return isinstance(header, dict) and isinstance(header.get("hmac"), str)


def files_to_add(path: Path) -> list[Path]:
    """The file, or those of a folder that hold records, by their names.

    Raises DatabaseError for a folder without any.
    """
    if not path.is_dir():
        return [path]
    found = sorted(item for item in path.iterdir() if item.name.endswith(SUFFIXES))
    if not found:
        raise DatabaseError(
            f"{path} has no file of records", hint=f"their names end in {', '.join(SUFFIXES)}"
        )
    return found


def add_files(
    store: Store, source: Path, *, key: bytes | None = None, added: Added | None = None
) -> Added:
    """Add packs, exports and databases: a file, or those of a folder, as one addition.

    All of them are checked before anything is added. With a `key` only packs that were signed with
    it are. Raises DatabaseError.
    """
    added = Added() if added is None else added
    with ExitStack() as stack:
        sources = [_source(stack, store, path, key) for path in files_to_add(source)]
        with bringing(store, "pack", str(source)) as addition:
            for each in sources:
                records = records_of(each) if isinstance(each, Store) else each.records()
                add_records(store, records, addition, added)
    return added


def _source(stack: ExitStack, store: Store, path: Path, key: bytes | None) -> Store | RecordsFile:
    """A file of records that is open, and was checked."""
    with system_errors_as(DatabaseError, f"read {path}"), path.open("rb") as file:
        begin = file.read(len(_SQLITE))
    is_pack = path.name.endswith(".pack") or begin.startswith(b'{"format": "tunefarm-pack')
    if key is not None and not is_pack:
        raise DatabaseError(f"{path} is not a pack: only packs are signed")
    if is_pack:
        return stack.enter_context(_opened(path, key))
    if begin != _SQLITE:
        return stack.enter_context(RecordsFile(path))
    other = stack.enter_context(Store.open(path, create=False, read_only=True))
    check_source(store, other)
    return other
