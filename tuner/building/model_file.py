"""A model's file: what is in it, looked at by threads while others import what they need, and
whether it is still what a job has read.

A job keeps the stamp of its model with its settings: of the file and of each file of its external
data the size, time of change, inode and SHA-256. Contents are read again only where one of the
first three differs.

Imports little itself: a command begins with it before it reads its settings.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tunefarm.configs.errors import TunefarmError
from tunefarm.configs.files import open_regular

if TYPE_CHECKING:
    from tunefarm.db.records import JobRecord
    from tunefarm.db.store import Store
    from tunefarm.tuner.records.unapplied import Unapplied

_KEY_OF_NAME = re.compile(rb"location(?<=[\x00\x08]location)")
"""The key that every reference of an ONNX file to another file contains, behind the last byte of
its length, however that is written. What begins with a constant is found ten times as fast."""
_TAGS = b"\n\x08"
_REFERENCE = re.compile(_TAGS + rb"location\x12([\x00-\x7f]|[\x80-\xff][\x00-\x7f])")
"""The key of a tensor's external data in an ONNX file, and the length of the name behind it."""
_LONGEST_REFERENCE = 1 << 15  # bytes, of the key and the longest name with such a length
_CHUNK_BYTES = 4 << 20
_WHOLE_BYTES = 64 << 30
"""Of larger files, which may be sparse, some parts stand for the whole."""
_SAMPLES = 1024
_KEY = "model_file"  # in the settings of a job
_SHOWN_DIGITS = 12

Result = TypeVar("Result")


class Future(Generic[Result]):
    """A function that a thread of its own runs from now on, and what it returns or raises."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self) -> Result:
        """What the function has returned. Raises what it has raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._error = error


def begin_digest(path: str | PathLike[str]) -> Future[str | None]:
    """Begin `model_digest`, and look at this machine, which every build asks for."""

    def digest() -> str | None:
        found = model_digest(path)
        from tunefarm.compiler.target import host_target  # loading LLVM takes long

        host_target()
        return found

    return Future(digest)


def model_digest(path: str | PathLike[str]) -> str | None:
    """The SHA-256 of a model's file, and of its external data if it has any.

    None if a file cannot be read, or the model may name others than those that were found.
    """
    path = os.path.abspath(path)
    try:
        found = _scanned(path, *_state(path))
    except (OSError, ValueError):
        return None
    if found.may_miss:
        return None
    digest = hashlib.sha256(found.sha256.encode())
    for name in found.references:
        stamp = _stamp(path, name)
        if stamp is None or stamp.size > _WHOLE_BYTES:
            return None
        digest.update(f"{stamp.sha256} {name}".encode(errors="surrogateescape"))
    return digest.hexdigest() if found.references else found.sha256


def external_names(path: str | PathLike[str]) -> tuple[str, ...]:
    """The files that an ONNX file names for its tensors' data, without reading it as ONNX; none of
    a file that cannot be read, which its reader says better."""
    try:
        return _scanned(os.path.abspath(path), *_state(path)).references
    except (OSError, ValueError):
        return ()


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A file as it was: `name` is the model's for external data, "" for the model itself."""

    name: str
    size: int
    changed: int  # nanoseconds since the epoch
    inode: int
    sha256: str

    @property
    def state(self) -> tuple[int, int, int]:
        """What tells that a file is unchanged without reading it."""
        return self.size, self.changed, self.inode


@dataclass(frozen=True, slots=True)
class ModelStamp:
    """A model's file and its external data as a job has read them; `path` is absolute."""

    path: str
    files: tuple[FileStamp, ...]

    @staticmethod
    def of(path: str | PathLike[str]) -> ModelStamp | None:
        """The stamp of what is there now; None if the model cannot be read."""
        path = os.path.abspath(path)
        try:
            names = ("", *_scanned(path, *_state(path)).references)
            stamps = (_stamp(path, name) for name in names)
            files = tuple(stamp for stamp in stamps if stamp is not None)
        except (OSError, ValueError):
            return None
        return ModelStamp(path, files) if files and not files[0].name else None

    @staticmethod
    def of_job(job: JobRecord) -> ModelStamp | None:
        """The stamp of a job's model; None of a job of an older version."""
        found = job.settings.get(_KEY) if isinstance(job.settings, Mapping) else None
        try:
            files = tuple(FileStamp(**file) for file in found["files"])  # type: ignore[index]
            return ModelStamp(str(found["path"]), files)  # type: ignore[index]
        except (KeyError, TypeError):
            return None

    def kept_in(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of a job, as JSON values, with the stamp among them."""
        return {**settings, _KEY: asdict(self)}

    def difference(self) -> str:
        """How the files are others now: their hashes then and now; "" if they are the same."""
        for file in self.files:
            now = _digest_unless(self.path, file)
            if now == file.sha256:
                continue
            what = f"{file.name}: " if file.name else ""
            if not now:
                return f"{what}it is gone"
            then = file.sha256[:_SHOWN_DIGITS]
            return f"{what}SHA-256 {then}… then, {now[:_SHOWN_DIGITS]}… now"
        return ""

    def is_touched(self) -> bool:
        """Whether a file was written or replaced since, be it by the same contents."""
        try:
            return any(_state(_located(self.path, file.name)) != file.state for file in self.files)
        except (OSError, TunefarmError):
            return True


def _stamp(model: str, name: str) -> FileStamp | None:
    """The stamp of a file of a model; None if it is not there, as where no tensor needs it."""
    try:
        path = _located(model, name)
        size, changed, inode = _state(path)
        return FileStamp(name, size, changed, inode, _scanned(path, size, changed, inode).sha256)
    except (OSError, ValueError, TunefarmError):
        return None


def _digest_unless(model: str, file: FileStamp) -> str:
    """The hash of a model's file now, read where it may have changed; "" if it is gone."""
    try:
        path = _located(model, file.name)
        state = _state(path)
        return file.sha256 if state == file.state else _scanned(path, *state).sha256
    except (OSError, ValueError, TunefarmError):
        return ""


def _located(model: str, name: str) -> str:
    if not name:
        return model
    from tunefarm.compiler.frontend.external_data import ExternalData

    return os.path.abspath(ExternalData.of(model).locate(name, "the model"))


def _state(path: str | PathLike[str]) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns, found.st_ino


@dataclass(frozen=True, slots=True)
class _Contents:
    """What reading a file once has told; with `may_miss` it may refer to more files."""

    sha256: str
    references: tuple[str, ...]
    may_miss: bool


@lru_cache(maxsize=64)
def _scanned(path: str, size: int, changed: int, inode: int) -> _Contents:
    """The contents of a file in this state. Raises OSError.

    They are read, not mapped: a file that is written anew while it is mapped ends the process.
    """
    digest = hashlib.sha256()
    keys: set[int] = set()  # places in the file
    references: dict[int, str] = {}
    rest, start = b"", 0
    for chunk in _chunks(path, size):
        digest.update(chunk)
        data = rest + chunk
        if found := [start + match.start() for match in _KEY_OF_NAME.finditer(data)]:
            keys.update(found)
            references.update((start + place, name) for place, name in _references(data))
        rest = data[-_LONGEST_REFERENCE:]
        start += len(data) - len(rest)
    if size > _WHOLE_BYTES:
        digest.update(str(size).encode())
    names = tuple(dict.fromkeys(references.values()))
    return _Contents(digest.hexdigest(), names, bool(keys - references.keys()))


def _chunks(path: str, size: int) -> Iterator[bytes]:
    """A file's bytes, piece by piece; of a very large one evenly spaced pieces."""
    with open_regular(path) as file:
        if size > _WHOLE_BYTES:
            for sample in range(_SAMPLES):
                file.seek(sample * (size - _CHUNK_BYTES) // (_SAMPLES - 1))
                yield file.read(_CHUNK_BYTES)
            return
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _references(content: bytes) -> Iterator[tuple[int, str]]:
    """Where keys of references begin, and the names behind them."""
    for found in _REFERENCE.finditer(content):
        low, *high = found[1]
        length = (low & 0x7F) + (high[0] << 7 if high else 0)
        name = content[found.end() : found.end() + length]
        if len(name) == length and b"\0" not in name:
            yield found.start() + len(_TAGS), os.fsdecode(name)


def newest_job(store: Store, model: str | PathLike[str]) -> tuple[JobRecord, ModelStamp] | None:
    """The job that read the file at this path last, and what it was then; None if none did."""
    from tunefarm.db import queries

    path = os.path.abspath(model)
    for job in queries.jobs(store, os.path.basename(path)):
        stamp = ModelStamp.of_job(job)
        if stamp is not None and stamp.path == path:
            return job, stamp
    return None


def other_file(store: Store | None, model: str | PathLike[str]) -> tuple[Unapplied, ...]:
    """That a job has tuned another file than the one that is built, if so: one reason or none."""
    found = None if store is None else newest_job(store, model)
    if found is None or not (difference := found[1].difference()):
        return ()
    from tunefarm.tuner.records.unapplied import Unapplied

    reason = f"{os.fspath(model)} is not the file that job {found[0].id[:8]} read ({difference})"
    advice = "kernels of both run its records, tune tunes the others"
    return (Unapplied(("model",), 0, 0, reason, advice),)
