"""Where a user's files are: the database, the compile cache, the folder for temporary files."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from tunefarm.configs.errors import DatabaseError
from tunefarm.tuner.doctor.findings import Finding, Question, ok, problem, settings_of, warning
from tunefarm.tuner.reports.report import format_bytes

_MOUNTS = Path("/proc/mounts")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "afs", "ceph", "lustre")
"""File systems on which SQLite's locks may not hold (https://www.sqlite.org/faq.html#q5)."""
_LOCKED_SECONDS = 3.0
_READ_WHOLE = 64 << 20
"""Bytes of a database file that is read as a whole; that takes seconds."""
_LITTLE_SPACE, _TOO_LITTLE = 1 << 30, 64 << 20


def check_temporary(question: Question) -> list[Finding]:
    """Whether temporary files can be made, and how much space there is for them."""
    name, advice = "temporary files", "set TMPDIR to a folder with free space"
    try:
        folder = tempfile.gettempdir()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"tunefarm")
            file.flush()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return [problem(name, f"none can be made: {error.strerror or error}", advice)]
    text = f"{folder}, {format_bytes(free)} free"
    grade = problem if free < _TOO_LITTLE else warning if free < _LITTLE_SPACE else None
    facts = {"folder": folder, "free": free}
    return [ok(name, text, **facts) if grade is None else grade(name, text, advice, **facts)]


def check_cache(question: Question) -> list[Finding]:
    """Whether compiled kernels are kept, where, how much space they take and have."""
    from tunefarm.configs.settings import cache_folder, cache_problem

    name, settings = "compile cache", settings_of(question)
    if reason := cache_problem(settings):
        return [warning(name, reason, "until then every build compiles everything")]
    folder = cache_folder(settings)
    if folder is None:
        return [ok(name, "none: cache.enabled is false, or this user has no home")]
    if not folder.exists():
        return [ok(name, f"{folder}, which the first build makes", folder=str(folder))]
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    free, used = shutil.disk_usage(folder).free, sum(sizes)
    owner = "yours" if folder.stat().st_uid == os.geteuid() else "root's"
    text = f"{folder}, {owner}: {format_bytes(used)} in {len(sizes)} files, "
    text += f"{format_bytes(free)} free"
    facts = {"folder": str(folder), "bytes": used, "free": free}
    if not may_write(folder):
        advice = "what is built is not kept: name a folder of your own in cache.folder"
        return [warning(name, f"{text}; it cannot be written", advice, **facts)]
    if free < _LITTLE_SPACE:
        advice = "free some space, or name another folder in cache.folder"
        return [warning(name, text, advice, **facts)]
    return [ok(name, text, **facts)]


def check_database(question: Question) -> list[Finding]:
    """Whether the database can be read and written, is sound, and of this version's schema."""
    from tunefarm.db import schema
    from tunefarm.db.backend import backend_of
    from tunefarm.db.check import schema_of

    name, location = "database", settings_of(question).database.url
    location = question.db or location
    try:
        shown = backend_of(location).name
        path = None if "://" in location else Path(location)
        if path is not None and not path.exists():
            return [_missing(path, asked=question.db is not None)]
        revision = schema_of(location)
    except DatabaseError as error:
        return [problem(name, error.message, error.hint or "see tune db check")]
    again = shlex.join(["--db", location]) if "://" not in location else "--db URL"
    if revision is None:
        return [ok(name, f"{shown} is empty: the first job makes its tables")]
    if revision < schema.REVISION:
        text = f"{shown} has schema {revision}, this version's is {schema.REVISION}"
        return [warning(name, text, f"tune db upgrade {again} (a backup is made first)")]
    if revision > schema.REVISION:
        text = f"{shown} has schema {revision}, newer than this version's {schema.REVISION}"
        return [problem(name, text, "upgrade tunefarm")]
    size = None if path is None else path.stat().st_size
    found = _content(location, shown, size, again)
    return found if path is None else [*found, *_of_the_file(path)]


def _missing(path: Path, *, asked: bool) -> Finding:
    """Of a database file that is not there."""
    if asked:
        return problem("database", f"there is no {path}", "tune MODEL --db DB makes one")
    if not may_write(path.absolute().parent):
        text = f"{path} is not there, and cannot be made in {path.absolute().parent}"
        return problem("database", text, "go to your own folder, or name one with --db")
    return ok("database", f"{path} is not there yet: the first job makes it")


def _content(location: str, shown: str, size: int | None, again: str) -> list[Finding]:
    """What is in the database, and whether it is sound."""
    from tunefarm.db import queries
    from tunefarm.db.check import check
    from tunefarm.db.store import Store

    whole = size is None or size <= _READ_WHOLE
    try:
        with Store.open(location, create=False, read_only=True) as store:
            problems = check(store) if whole and size is not None else []
            jobs = Counter(job.state for job in queries.jobs(store))
            tasks, last = len(queries.tasks(store)), queries.last_trial(store)
    except DatabaseError as error:
        return [problem("database", error.message, error.hint or f"tune db check {again}")]
    if problems:
        text = f"{shown} is damaged: {problems[0]}"
        advice = "restore a backup, or save what is intact: tune db salvage"
        return [problem("database", text, advice, problems=problems)]
    description = ", ".join(f"{count} {state}" for state, count in sorted(jobs.items())) or "none"
    text = f"{shown}: {'' if size is None else format_bytes(size) + ', '}"
    text += f"{tasks} kernels, newest trial {last}; jobs: {description}"
    text += "; every row is intact" if whole and size is not None else "; not read as a whole"
    facts = {"bytes": size, "kernels": tasks, "jobs": dict(jobs)}
    if jobs["lost"]:
        advice = "the same tune command goes on from what a lost job recorded"
        return [warning("database", text, advice, **facts)]
    return [ok("database", text, **facts)]


def _of_the_file(path: Path) -> list[Finding]:
    """What its folder and file system do to a database file."""
    from tunefarm.db.check import is_locked

    found, folder = [], path.absolute().parent
    if not (may_write(path) and may_write(folder)):
        text = f"{path} can only be read: builds work, and nothing is recorded"
        found.append(warning("database", text, "for tuning, a copy that you may write"))
    elif is_locked(path, _LOCKED_SECONDS):
        text = f"another process keeps {path} from being written"
        found.append(
            warning("database", text, "a job waits for it; tune db list shows whose it is")
        )
    size, free = path.stat().st_size, shutil.disk_usage(folder).free
    if free < max(2 * size, _TOO_LITTLE):
        text = f"{format_bytes(free)} are free for {path} of {format_bytes(size)}"
        advice = "free some space: a job waits when the disk is full, an upgrade needs a copy"
        found.append(warning("database", text, advice, free=free))
    kind = file_system(path, _MOUNTS)
    if kind in _REMOTE:
        text = f"{path} is on a file system of kind {kind}, where locks may not hold"
        found.append(warning("database", text, "use a local disk, or PostgreSQL for many machines"))
    return found


def may_write(path: Path) -> bool:
    """Whether this process may write to a file or folder."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def file_system(path: Path, mounts: Path) -> str:
    """The kind of file system that a path is on; "" if that is not told."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    real = Path(os.path.realpath(path))
    kind, longest = "", -1
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        place = fields[1].replace("\\040", " ")
        if real.is_relative_to(place) and len(place) > longest:
            kind, longest = fields[2], len(place)
    return kind
