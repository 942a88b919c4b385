"""What a process must not leave behind: temporary folders, and processes that it started.

A folder is named after its owner, so that what a killed process left is found and removed by the
next one: `tunefarm-KIND-NAMESPACE-PROCESS-STARTED-NUMBER`.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PREFIX = "tunefarm-"
_NUMBER_CHARACTERS = 4  # of a folder's number, with the dash
_SHORT = ("/tmp", "/dev/shm")
_numbers = itertools.count()
_ends: dict[int, tuple[int, Callable[[], object]]] = {}
_lock = threading.RLock()  # a signal's handler may leave while its thread holds it
_left: set[int] = set()  # the processes that have left: what their threads still do is undone


def make_folder(kind: str, *, most_characters: int | None = None) -> Path:
    """A new, empty folder of this process; first removes those whose owner is gone.

    It is in `temporary_root`. Raises OSError, also in a thread of a process that has left.
    """
    remove_folders_of_the_dead()
    stem = f"{_PREFIX}{kind}-{_owner(os.getpid())}"
    root = temporary_root(most_characters, len(stem) + _NUMBER_CHARACTERS)
    while True:
        folder = Path(root, f"{stem}-{next(_numbers)}")
        with suppress(FileExistsError), _lock:
            if os.getpid() in _left:
                raise OSError(errno.ECANCELED, "this process is about to end")
            folder.mkdir(mode=0o700)
            return folder


def temporary_root(most_characters: int | None, below: int) -> str:
    """The folder for temporary files, or another one that may be written to, if a path of `below`
    characters in it would have more than `most_characters`.

    Sockets have names of 107 characters at most. Raises OSError where no folder is short enough.
    """
    usual = tempfile.gettempdir()
    if most_characters is None or len(usual) + 1 + below <= most_characters:
        return usual
    for root in _SHORT:
        if os.access(root, os.W_OK | os.X_OK) and len(root) + 1 + below <= most_characters:
            return root
    text = (
        "this path is too long for the names of sockets, and nobody may write to "
        f"{' or '.join(_SHORT)}: name a folder with a short path in TMPDIR"
    )
    raise OSError(errno.ENAMETOOLONG, text, usual)


def remove_folders_of_the_dead() -> None:
    """Remove the temporary folders of processes of this user that are gone."""
    for folder, process, owner in _folders():
        if _owner(process) != owner:
            shutil.rmtree(folder, ignore_errors=True)


def on_leaving(end: Callable[[], object]) -> Callable[[], None]:
    """Have `leave` call `end`, which does not raise; what forgets it again, for when it is done.

    It is called at once in a thread of a process that has left.
    """
    number = next(_numbers)
    with _lock:
        _ends[number] = os.getpid(), end
        if os.getpid() in _left:
            end()

    def forget() -> None:
        _ends.pop(number, None)

    return forget


def leave() -> None:
    """End what this process has started and not ended, and remove its temporary folders.

    And, as `make_folder` does, those of processes that are gone.
    """
    with _lock:
        _left.add(os.getpid())
    while _ends:
        _, (process, end) = _ends.popitem()
        if process == os.getpid():
            end()
    mine = _owner(os.getpid())
    for folder, process, owner in _folders():
        if owner == mine or _owner(process) != owner:
            shutil.rmtree(folder, ignore_errors=True)


def _folders() -> list[tuple[Path, int, str]]:
    """The temporary folders of this user and of this process namespace: process and owner."""
    found = []
    for root in dict.fromkeys((tempfile.gettempdir(), *_SHORT)):
        for folder in Path(root).glob(f"{_PREFIX}*-*-*-*-*"):
            *_, namespace, process, started, _number = folder.name.split("-")
            with suppress(OSError, ValueError):
                number = int(process, 16)
                if namespace == _namespace() and folder.lstat().st_uid == os.geteuid():
                    found.append((folder, number, f"{namespace}-{process}-{started}"))
    return found


def _owner(process: int) -> str:
    """The process in few characters; ids are used again, but not with the same start time."""
    started = "gone"
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        started = f"{int(fields[19]) & 0xFFFFFF:x}"
    return f"{_namespace()}-{process:x}-{started}"


def _namespace() -> str:
    """Process ids mean nothing outside of their namespace, whose folders may be the same."""
    try:
        return f"{os.stat('/proc/self/ns/pid').st_ino & 0xFFFF:x}"
    except OSError:
        return "0"
