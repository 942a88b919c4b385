"""Which files a command reads and which it writes, and that it does not write what it reads.

Every command says both in one call of `check_files`, before its work starts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tunefarm.configs.errors import SettingsError, system_errors_as
from tunefarm.configs.file_kinds import kind_of
from tunefarm.tuner.building.model_file import external_names

DEFAULT_DATABASE = "tuning.db"
STDOUT = "-"
ARTEFACT_START = b"TUNEFARM"
"""What `runtime.artefact.artefact` begins its files with; a build that finds its artifact in the
cache imports neither that nor NumPy."""
_SQLITE = b"SQLite format 3\0"
_BESIDE = ("-journal", "-wal", "-shm")
"""What SQLite adds to a database's name for files that belong to it."""


def check_files(
    *,
    writes: Iterable[str | None] = (),
    reads: Iterable[str | os.PathLike[str] | None] = (),
    databases: Iterable[str | None] = (),
    model: str | None = None,
) -> None:
    """Refuse inputs that are no files, and outputs that cannot be or that the command needs.

    writes: files, "-" for stdout, None for nothing.
    reads: other files that the command reads.
    databases: files or URLs, read or written by the command; None is the default one.
    model: an ONNX file; the files with its external data are read too.

    An output must be none of what is read, by whatever name, no second output, and no database.
    Raises SettingsError.
    """
    if model is not None:
        _check_model(model)
    inputs = [os.fspath(path) for path in (*reads, model) if path is not None]
    for path in inputs:
        _check_input(path)
    outputs = [path for path in writes if path is not None and path != STDOUT]
    if not outputs:
        return
    for path in outputs:
        check_output(path)
    for database in databases:
        file = database_file(database)
        if file is not None:
            inputs += [file, *(f"{file}{end}" for end in _BESIDE)]
    if model is not None and any(map(_is_foreign, outputs)):
        inputs += external_data(model)
    for number, path in enumerate(outputs):
        if any(_same_file(path, name) for name in inputs):
            raise SettingsError(f"{path} is an input, it would be overwritten")
        if any(_same_file(path, other) for other in outputs[:number]):
            raise SettingsError(f"{path} is written twice", hint="give each output its own file")
        if _belongs_to_a_database(path):
            raise SettingsError(f"{path} belongs to a database, it would be overwritten")


def _check_model(model: str) -> None:
    """Refuse what is told from a model by a look; whoever reads the rest says what it is."""
    if not model:
        raise SettingsError("the model's name is empty", hint="give an ONNX file")
    if os.path.isdir(model) and (kind := kind_of(model)) is not None:
        raise SettingsError(f"{model!r} is no model but a folder", hint=kind.advice)


def _check_input(path: str) -> None:
    """Refuse a pipe or a device, which would be waited for; whoever reads it says what else."""
    try:
        kind = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise SettingsError(f"cannot read {path}: it is not a regular file")


def check_output(path: str) -> None:
    """Refuse a path at which no file can be written. Raises SettingsError."""
    if not path or "\0" in path:
        raise SettingsError(f"{path!r} is not a file name")
    target = Path(path)
    with system_errors_as(SettingsError, f"write {path}"), suppress(FileNotFoundError):
        target.lstat()
    if target.is_symlink():
        target = Path(os.path.realpath(target))
        if target.is_symlink():
            raise SettingsError(f"cannot write {path}: its links lead in a circle")
    if target.is_dir():
        raise SettingsError(f"cannot write {path}: it is a folder")
    if target.exists() and not target.is_file():
        raise SettingsError(f"cannot write {path}: it is not a regular file")
    if not target.parent.is_dir():
        raise SettingsError(f"cannot write {path}: there is no folder {target.parent}")
    writable = target if target.exists() else target.parent
    if not os.access(writable, os.W_OK) or not os.access(target.parent, os.W_OK):
        raise SettingsError(f"cannot write {path}: permission denied")


def database_file(path_or_url: str | None) -> str | None:
    """The file of a database; None for one that is in no file."""
    if path_or_url is None:
        return DEFAULT_DATABASE
    if "://" not in path_or_url:
        return path_or_url
    if not path_or_url.startswith("sqlite"):
        return None
    from tunefarm.db.backend import backend_of

    name = backend_of(path_or_url).name
    return None if name == ":memory:" else name


def external_data(model: str) -> list[str]:
    """The files that an ONNX file names for its tensors' data, without reading it as ONNX."""
    folders = [Path(model).parent]
    if os.path.islink(model):
        folders.append(Path(os.path.realpath(model)).parent)
    names = external_names(model)
    return [str(folder / name) for folder in folders for name in names]


def _is_foreign(path: str) -> bool:
    """Whether there is a file already that is no artefact, which external data never is."""
    return os.path.exists(path) and _start(path, len(ARTEFACT_START)) != ARTEFACT_START


def _belongs_to_a_database(path: str) -> bool:
    names = [path, *(path.removesuffix(end) for end in _BESIDE if path.endswith(end))]
    return any(_start(name, len(_SQLITE)) == _SQLITE for name in names)


def _start(path: str, count: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(count)
    except OSError:
        return b""


def _same_file(path: str, other: str) -> bool:
    """Whether two names are of one file, also of one that is not there yet."""
    try:
        if os.path.samefile(path, other):
            return True
    except (OSError, ValueError):
        pass
    try:
        return os.path.realpath(path) == os.path.realpath(other)
    except (OSError, ValueError):
        return False


EMIT = {
    "artifact": "artefact",
    "c": "c-header+shared-library",
    "object": "object",
    "llvm": "llvm",
    "asm": "asm",
    "graph": "graph",
}
"""The forms as they are typed, and as `building.request` names them: importing that takes time."""


def form_of(emit: str) -> str:
    """The form of this name, present or former. Raises SettingsError for another one."""
    if emit in EMIT.values():
        return emit
    if emit not in EMIT:
        from tunefarm.configs.layers import suggestion

        raise SettingsError(
            f"--emit {emit}: there is no such form", hint=suggestion(emit, list(EMIT))
        )
    return EMIT[emit]
