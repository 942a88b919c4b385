"""The cores of a machine, one user at a time: whoever times or builds on a core holds its lock.

    with CoreLocks(driver).held(cores, "time"): time

That holds among all jobs of a machine, whatever runner or command they are of, whichever user
started them, and in all containers that see one folder. Locks are those of files, which the kernel
takes back when a process ends: nothing is left by one that was killed. They are of physical cores,
so that two threads of one core are never used at once. Whoever has had more of a core than another
driver that waits for it lets that one go first, so that short candidates are not kept waiting by
long ones. On a node that alternates, a `turn` keeps builds and timed runs of different drivers
apart.

The files are never removed, and anyone may write them: what they say is only shown and weighed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import pwd
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from tunefarm.compiler.errors import CoresBusyError, MeasureError
from tunefarm.measure.cpus import physical_cores

CoreUse: TypeAlias = Literal["build", "time"]

FOLDERS = ("/run/tunefarm", "/dev/shm", "/run/lock", "/tmp")
"""Where the files are: in the first that this user may write to. The first is there where somebody
has made it, for containers that are to share their machine's cores."""
QUANTUM_SECONDS = 0.5
"""A driver goes before another one that waits unless it has had so much more of the core."""
RETURN_SECONDS = 0.05
"""A driver that has let go of the core so recently is about to ask for it again."""
IDLE_SECONDS = 2.0
"""What a driver had no use for, for so long, it is not owed."""
TOLD_SECONDS = 5.0
"""A wait is reported once it has taken this long, and again when it has taken twice as long."""
PATIENCE_SECONDS = 60.0
"""A wait takes as long, or more where there is time left."""
_FORGET_SECONDS = 60.0
_SILENT_SECONDS = 3.0  # a process of another container that waits says so more often
_REFRESH_SECONDS = 1.0
_YIELD_SECONDS = 0.004
_YIELD_LATER_SECONDS = 0.02  # once it has waited for `_REFRESH_SECONDS`
_ACCOUNTS_SECONDS = 2.0
_MOST_BYTES = 1 << 16  # of a file that others may write
_MODE = 0o666
_OPEN_TRIES = 200  # while another process makes the file

_mine = threading.local()  # the physical cores that this thread holds, and until when it waits


@dataclass(slots=True)
class Account:
    """What a driver has had of a core, in seconds; when it was last there; which of its processes
    wait for it, as `_this_process` names them, and since when."""

    used: float = 0.0
    seen: float = 0.0
    waiting: list[str] = field(default_factory=list)
    since: float = 0.0


class Accounts:
    """The accounts of all drivers of a core. `alive` tells whether a process is there; None: that
    cannot be seen from here."""

    def __init__(
        self,
        of: dict[str, Account] | None = None,
        alive: Callable[[str], bool | None] | None = None,
    ) -> None:
        self.of = {} if of is None else of
        self._alive = alive or _is_alive

    def arrive(self, driver: str, process: str, now: float) -> None:
        """A process of the driver waits for the core."""
        # abs: after a reboot the clock is behind what was written before it
        self.of = {n: a for n, a in self.of.items() if abs(now - a.seen) < _FORGET_SECONDS}
        account = self.of.get(driver)
        if account is None or now - account.seen > IDLE_SECONDS:
            account = self.of.setdefault(driver, Account())
            others = [a.used for n, a in self.of.items() if n != driver and self._is_here(a, now)]
            account.used = max([account.used, *([min(others)] if others else [])])
        account.seen = now
        account.since = account.since if account.waiting else now
        account.waiting.append(process)

    def stay(self, driver: str, now: float) -> None:
        """A process of the driver still waits."""
        self.of.setdefault(driver, Account()).seen = now

    def may_go(self, driver: str, now: float) -> bool:
        """Whether the driver may have the core rather than one that waits for it, or soon will."""
        used = self.of.get(driver, Account()).used
        return not any(
            used - account.used > QUANTUM_SECONDS and self._is_here(account, now)
            for name, account in self.of.items()
            if name != driver
        )

    def leave(self, driver: str, process: str, now: float, used: float) -> None:
        """A process of the driver waits no more, and has had the core for so many seconds."""
        account = self.of.setdefault(driver, Account())
        account.used += used
        account.seen = now
        if process in account.waiting:
            account.waiting.remove(process)

    def _is_here(self, account: Account, now: float) -> bool:
        fresh = abs(now - account.seen) < _SILENT_SECONDS
        alive = {process: self._alive(process) for process in account.waiting}
        account.waiting = [
            process
            for process, is_there in alive.items()
            if is_there or (is_there is None and fresh)
        ]
        return bool(account.waiting) or abs(now - account.seen) < RETURN_SECONDS


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a core: a `process` as `_this_process` names it, of the `user` of this id, for a
    `turn`, `since` a moment of the monotonic clock."""

    process: str
    user: int
    turn: str
    since: float

    def __str__(self) -> str:
        space, _, number = self.process.partition(":")
        where = "" if space == _namespace() else " in another container"
        doing = "builds" if self.turn == "build" else "times"
        return f"process {number} of {_user_name(self.user)}{where} {doing} there"


class CoreLocks:
    """The locks of this machine's cores, as one driver uses them."""

    def __init__(
        self,
        driver: str,
        folder: Path | None = None,
        *,
        stop: Callable[[], bool] = lambda: False,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        """`folder` is the same for all drivers of a machine (None: see `FOLDERS`). Who waits is
        given up once `stop` says so; `tell` gets whom it waits for, if that takes long."""
        self._folder = lock_folder() if folder is None else folder
        self._driver = driver
        self._stop = stop
        self._notify = notify

    @contextmanager
    def held(
        self, cores: Sequence[int], turn: CoreUse = "time", *, alone: bool = False
    ) -> Iterator[None]:
        """Hold the cores within the block, as soon as it is this driver's turn.

        `alone`: only while nobody holds any core for the other turn. What this thread holds already
        it need not wait for. Raises MeasureError when it is to stop.
        """
        held: set[int] = _mine.__dict__.setdefault("cores", set())
        ordered = [core for core in physical_cores(cores) if core not in held]
        if not ordered:
            yield
            return
        table, process = f"core-{ordered[0]}", _this_process()
        begin: float | None = None
        with self._accounts(table) as accounts:
            accounts.arrive(self._driver, process, time.monotonic())
        try:
            with ExitStack() as stack:
                waiting = _Waiting(self, table)
                while not self._take(stack, ordered, table, turn, waiting):
                    stack.close()
                    waiting.pause(ordered[0])
                if alone:
                    self._take_turn(stack, turn, waiting)
                begin = time.monotonic()
                held.update(ordered)
                stack.callback(held.difference_update, ordered)
                yield
        finally:
            now = time.monotonic()
            with self._accounts(table) as accounts:
                used = 0.0 if begin is None else now - begin
                accounts.leave(self._driver, process, now, used)

    def waits(self, cores: Sequence[int]) -> dict[str, float]:
        """For whom this driver's processes wait on some cores, in words, and for how many seconds.

        None where nobody has the core: it is about to be had."""
        found = {}
        for core in physical_cores(cores):
            with self._accounts(f"core-{core}") as accounts:
                account = accounts.of.get(self._driver)
            if account is not None and account.waiting and (holder := self._holder(core)):
                found[f"core {core}: {holder}"] = time.monotonic() - account.since
        return found

    def _take(
        self, stack: ExitStack, cores: Sequence[int], table: str, turn: CoreUse, waiting: _Waiting
    ) -> bool:
        for core in cores:  # all in the same order: nobody waits for one who waits for it
            file = self._lock(stack, f"core-{core}", waiting, core)
            self._note(stack, file, turn)
        with self._accounts(table) as accounts:
            return accounts.may_go(self._driver, time.monotonic())

    def _take_turn(self, stack: ExitStack, turn: CoreUse, waiting: _Waiting) -> None:
        """Hold a share of the turn, which is had while nobody has one of the other.

        Whoever waits for that is the next: meanwhile nobody begins a share of either."""
        other = "build" if turn == "time" else "time"
        with ExitStack() as gate:
            self._lock(gate, "turns", waiting)
            while True:
                with ExitStack() as probe:
                    is_free = self._try_lock(probe, f"turn-{other}", fcntl.LOCK_EX) is not None
                    if is_free and self._try_lock(stack, f"turn-{turn}", fcntl.LOCK_SH) is not None:
                        return
                waiting.pause()

    def _lock(self, stack: ExitStack, name: str, waiting: _Waiting, core: int | None = None) -> int:
        """Lock a file for this process alone; its descriptor, which the stack closes."""
        while (file := self._try_lock(stack, name, fcntl.LOCK_EX)) is None:
            waiting.pause(core)
        return file

    def _try_lock(self, stack: ExitStack, name: str, kind: int) -> int | None:
        file = self._open(name)
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            is_named = os.path.samestat(os.fstat(file), os.lstat(self._path(name)))
        except (BlockingIOError, FileNotFoundError):
            is_named = False
        if not is_named:  # it is another's, or was removed by who cleans the folder
            os.close(file)
            return None
        stack.callback(os.close, file)
        return file

    def _open(self, name: str) -> int:
        """A file of the folder, made where it is missing. Never one that is a link to another."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        path = self._path(name)
        for _ in range(_OPEN_TRIES):
            try:
                file = os.open(path, flags)
            except FileNotFoundError:
                self._make(path, flags)
                continue
            except PermissionError:  # who makes it is about to let all write it
                time.sleep(_YIELD_SECONDS)
                continue
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                    raise
                raise self._refusal(path, "it is no plain file") from error
            found = os.fstat(file)
            if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
                return file
            os.close(file)
            raise self._refusal(path, "it is no plain file with one name")
        raise self._refusal(path, "this user may not write it")

    def _make(self, path: Path, flags: int) -> None:
        """Make a file that all users may lock. (Not with O_CREAT on one that may be there: Linux
        refuses that for another user's file in a folder that all may write to.)"""
        with suppress(FileExistsError):
            file = os.open(path, flags | os.O_CREAT | os.O_EXCL, _MODE)
            try:
                os.fchmod(file, _MODE)  # whatever the umask says
            finally:
                os.close(file)

    def _refusal(self, path: Path, reason: str) -> MeasureError:
        hint = "remove it: it keeps jobs from timing on one core at once"
        return MeasureError(f"{path} cannot be locked: {reason}", hint=hint)

    def _path(self, name: str) -> Path:
        return self._folder / f"tunefarm-{name}"

    def _note(self, stack: ExitStack, file: int, turn: CoreUse) -> None:
        """Write who has the core into its file, for those who wait."""
        note = Holder(_this_process(), os.geteuid(), turn, time.monotonic())
        _write(file, json.dumps(asdict(note)))
        stack.callback(os.ftruncate, file, 0)

    def _holder(self, core: int) -> Holder | None:
        """Who has a core, or had it last when it was killed."""
        file = self._open(f"core-{core}")
        try:
            values = json.loads(os.pread(file, _MOST_BYTES, 0))
            return Holder(
                str(values["process"]),
                int(values["user"]),
                str(values["turn"]),
                float(values["since"]),
            )
        except (ValueError, TypeError, KeyError):
            return None  # nobody
        finally:
            os.close(file)

    @contextmanager
    def _accounts(self, core: str) -> Iterator[Accounts]:
        """The accounts of a core, which are written again after the block. Each has them for a
        moment; of one that was stopped just then nobody knows, and all go on as if alone."""
        end = time.monotonic() + _ACCOUNTS_SECONDS
        with ExitStack() as mutex:
            while (file := self._try_lock(mutex, f"{core}-accounts", fcntl.LOCK_EX)) is None:
                if time.monotonic() > end:
                    yield Accounts()
                    return
                time.sleep(_YIELD_SECONDS)
            accounts = Accounts(_read(file))
            yield accounts
            _write(file, json.dumps({n: asdict(a) for n, a in accounts.of.items()}))


@contextmanager
def patient_until(moment: float) -> Iterator[None]:
    """Until that moment of the monotonic clock this thread waits for cores, if need be, and for
    `PATIENCE_SECONDS` at least; then CoresBusyError is raised."""
    former, _mine.until = _until(), moment
    try:
        yield
    finally:
        _mine.until = former


def _until() -> float:
    until: float = _mine.__dict__.get("until", math.inf)
    return until


class _Waiting:
    """A wait of one driver: how long it has taken, and what is reported of it."""

    def __init__(self, locks: CoreLocks, table: str) -> None:
        self._locks = locks
        self._table = table
        self._begin = self._seen = time.monotonic()
        self._next = TOLD_SECONDS

    def pause(self, core: int | None = None) -> None:
        """Wait for a moment. Raises MeasureError if it is to stop, CoresBusyError if that takes too
        long."""
        locks = self._locks
        if locks._stop():
            raise MeasureError("it was stopped while it waited for a core")
        now = time.monotonic()
        if core is not None and now > max(_until(), self._begin + PATIENCE_SECONDS):
            whom = locks._holder(core) or "another job goes first"
            raise CoresBusyError(f"core {core} was not free: {whom}")
        if now - self._seen > _REFRESH_SECONDS:
            self._seen = now
            with locks._accounts(self._table) as accounts:
                accounts.stay(locks._driver, now)
        waited = now - self._begin
        if locks._notify is not None and core is not None and waited >= self._next:
            self._next = 2 * waited
            holder = locks._holder(core)
            locks._notify(wait_text(f"core {core}: {holder or 'another job goes first'}", waited))
        time.sleep(_YIELD_SECONDS if waited < _REFRESH_SECONDS else _YIELD_LATER_SECONDS)


def wait_text(whom: str, seconds: float) -> str:
    """How long somebody has waited, and for whom."""
    return f"waiting for {seconds:.0f} s for {whom}"


def lock_folder() -> Path:
    """Where the locks of this machine are; the same for all its users as a rule.

    Raises MeasureError where this user may write nowhere.
    """
    for folder in (*FOLDERS, tempfile.gettempdir()):
        if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            return Path(folder)
    raise MeasureError("no folder for locks may be written", hint="make /dev/shm or /tmp writable")


def _write(file: int, text: str) -> None:
    """Replace what a file says. On a full disk it says nothing: who waits then is not told of."""
    os.ftruncate(file, 0)
    with suppress(OSError):
        os.pwrite(file, text.encode(), 0)


def _read(file: int) -> dict[str, Account]:
    try:
        found = json.loads(os.pread(file, _MOST_BYTES, 0))
        return {str(name): _account(values) for name, values in found.items()}
    except (ValueError, TypeError, AttributeError, KeyError):
        return {}  # nobody was there, or what was is damaged: all begin anew


def _account(values: dict[str, object]) -> Account:
    waiting = values["waiting"]
    if not isinstance(waiting, list):
        raise TypeError
    numbers = (float(str(values[name])) for name in ("used", "seen", "since"))
    used, seen, since = numbers
    return Account(used, seen, [str(process) for process in waiting], since)


def _this_process() -> str:
    return f"{_namespace()}:{os.getpid()}"


def _namespace() -> str:
    """Process ids mean nothing outside of their namespace."""
    try:
        return f"{os.stat('/proc/self/ns/pid').st_ino:x}"
    except OSError:
        return "0"


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except (KeyError, OverflowError):
        return f"user {user}"


def _is_alive(process: str) -> bool | None:
    """Whether a process is there; None if it is of another namespace."""
    space, _, number = process.partition(":")
    if space != _namespace():
        return None
    return number.isdecimal() and Path("/proc", number).exists()
