"""What a process must not leave behind: temporary folders, and processes that it started.

The owner of a folder holds a lock of a file in it for as long as it lives, so that what a killed
process left is found and removed by the next one, in whichever container of the machine either of
them is. Folders of other machines, and those from before a reboot, are left to who cleans the disk:
whether their owner lives cannot be seen by every file system's locks.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_PREFIX = "tunefarm-"
_NUMBER_CHARACTERS = 4  # of a folder's number, with the dash
_SHORT = ("/tmp", "/dev/shm")
_LOCK = ".owner"
"""In a folder: locked by its owner, with the boot of the owner's machine in it."""
_UNLOCKABLE = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
_numbers = itertools.count()
_ends: dict[int, tuple[int, Callable[[], object]]] = {}
_lock = threading.RLock()  # a signal's handler may leave while its thread holds it
_mine: dict[Path, tuple[int, int | None]] = {}  # folders: the process, and the lock that it holds
_left: set[int] = set()  # the processes that have left: what their threads still do is undone


def make_folder(kind: str, *, most_characters: int | None = None) -> Path:
    """A new, empty folder of this process; first removes those whose owner is gone.

    It is in `temporary_root`. Raises OSError, also in a thread of a process that has left.
    """
    remove_folders_of_the_dead()
    _let_go()
    stem = f"{_PREFIX}{kind}-{os.getpid():x}"
    root = temporary_root(most_characters, len(stem) + _NUMBER_CHARACTERS)
    while True:
        folder = Path(root, f"{stem}-{next(_numbers)}")
        with suppress(FileExistsError), _lock:
            if os.getpid() in _left:
                raise OSError(errno.ECANCELED, "this process is about to end")
            folder.mkdir(mode=0o700)
            try:
                _mine[folder] = os.getpid(), _hold(folder)
            except OSError:
                folder.rmdir()
                raise
            return folder


@contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """A new folder as of `make_folder`, which is removed when the block ends."""
    folder = make_folder(kind)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
    for folder in _folders():
        if folder not in _mine and (lock := _take_over(folder)) is not None:
            _remove(folder)
            os.close(lock)


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
    for folder, (process, _) in list(_mine.items()):
        if process == os.getpid():
            _remove(folder)
    _let_go()
    remove_folders_of_the_dead()


def _folders() -> list[Path]:
    """The temporary folders of this user."""
    found = []
    for root in dict.fromkeys((tempfile.gettempdir(), *_SHORT)):
        for folder in Path(root).glob(f"{_PREFIX}*-*-*"):
            with suppress(OSError):
                if folder.lstat().st_uid == os.geteuid():
                    found.append(folder)
    return found


def _remove(folder: Path) -> None:
    """Remove a folder, and what says whose it was last: this process may be killed, too."""
    with suppress(OSError):
        for path in list(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LOCK:
                path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _let_go() -> None:
    """Give up the locks of folders that have been removed."""
    for folder, (_, lock) in list(_mine.items()):
        if not folder.exists() and _mine.pop(folder, None) is not None and lock is not None:
            os.close(lock)


def _hold(folder: Path) -> int | None:
    """Lock a new folder for as long as this process lives; None where that cannot be.

    Under its name the lock is held from the first: nobody takes it for one that was left.
    """
    new = folder / f"{_LOCK}.new"
    lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(lock, _boot().encode())
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(folder / _LOCK)
    except OSError as error:
        os.close(lock)
        new.unlink(missing_ok=True)
        if error.errno not in _UNLOCKABLE:
            raise
        return None
    return lock


def _take_over(folder: Path) -> int | None:
    """The lock of a folder whose owner is gone; None if it lives, or may live."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with suppress(OSError):
        if os.read(lock, 100).decode(errors="replace") == _boot():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
    os.close(lock)
    return None


@cache
def _boot() -> str:
    """What tells one boot of a machine from another."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
