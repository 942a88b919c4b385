"""Cores of a node that several drivers use: one at a time has a core, and all have equal time.

    with node_locks(node, driver).held(cores): build, or time

What a driver holds are locks of files, which the kernel takes back when a process ends: nothing is
left by one that was killed. Whoever has had more of a core than another driver that waits for it
lets that one go first, so that short candidates are not kept waiting by long ones. On a node that
alternates, `turn` keeps builds and timed runs of different drivers apart.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from tunefarm.compiler.errors import MeasureError

Turn: TypeAlias = Literal["build", "time"]

QUANTUM_SECONDS = 0.5
"""A driver goes before another one that waits unless it has had so much more of the core."""
RETURN_SECONDS = 0.05
"""A driver that has let go of the core so recently is about to ask for it again."""
IDLE_SECONDS = 2.0
"""What a driver had no use for, for so long, it is not owed."""
_FORGET_SECONDS = 60.0
_YIELD_SECONDS = 0.004
_OLD_SECONDS = 7 * 86400.0


@dataclass(slots=True)
class Account:
    """What a driver has had of a core, in seconds; when it was last there; who waits for it."""

    used: float = 0.0
    seen: float = 0.0
    waiting: list[int] = field(default_factory=list)  # process ids


class Accounts:
    """The accounts of all drivers of a core. `alive` tells whether a process is there."""

    def __init__(
        self, of: dict[str, Account] | None = None, alive: Callable[[int], bool] | None = None
    ) -> None:
        self.of = {} if of is None else of
        self._alive = alive or _is_alive

    def arrive(self, driver: str, process: int, now: float) -> None:
        """A process of the driver waits for the core."""
        self.of = {n: a for n, a in self.of.items() if now - a.seen < _FORGET_SECONDS}
        account = self.of.get(driver)
        if account is None or now - account.seen > IDLE_SECONDS:
            account = self.of.setdefault(driver, Account())
            others = [a.used for n, a in self.of.items() if n != driver and self._is_here(a, now)]
            account.used = max([account.used, *([min(others)] if others else [])])
        account.seen = now
        account.waiting.append(process)

    def may_go(self, driver: str, now: float) -> bool:
        """Whether the driver may have the core rather than one that waits for it, or soon will."""
        used = self.of[driver].used
        return not any(
            used - account.used > QUANTUM_SECONDS and self._is_here(account, now)
            for name, account in self.of.items()
            if name != driver
        )

    def leave(self, driver: str, process: int, now: float, used: float) -> None:
        """A process of the driver waits no more, and has had the core for so many seconds."""
        account = self.of.setdefault(driver, Account())
        account.used += used
        account.seen = now
        if process in account.waiting:
            account.waiting.remove(process)

    def _is_here(self, account: Account, now: float) -> bool:
        account.waiting = [process for process in account.waiting if self._alive(process)]
        return bool(account.waiting) or now - account.seen < RETURN_SECONDS


class CoreLocks:
    """The locks of a node's cores, as one driver uses them."""

    def __init__(self, folder: Path, driver: str) -> None:
        """`folder` is the same for all drivers of a node; it is made where it is missing."""
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.parent.lstat().st_uid != os.geteuid():
            raise MeasureError(f"{folder.parent} belongs to another user")
        self._folder = folder
        self._driver = driver

    @contextmanager
    def held(self, cores: Sequence[int], turn: Turn | None = None) -> Iterator[None]:
        """Hold the cores within the block, as soon as it is this driver's turn.

        With a `turn`, only while nobody holds any core for the other one.
        """
        ordered = sorted(cores)
        table = self._folder / f"core-{ordered[0]}.json"
        process, begin = os.getpid(), None
        with self._accounts(table) as accounts:
            accounts.arrive(self._driver, process, time.monotonic())
        try:
            with ExitStack() as stack:
                while not self._take(stack, ordered, table):
                    stack.close()
                    time.sleep(_YIELD_SECONDS)
                if turn is not None:
                    self._take_turn(stack, turn)
                begin = time.monotonic()
                yield
        finally:
            now = time.monotonic()
            with self._accounts(table) as accounts:
                used = 0.0 if begin is None else now - begin
                accounts.leave(self._driver, process, now, used)

    def _take(self, stack: ExitStack, cores: Sequence[int], table: Path) -> bool:
        for core in cores:  # all in the same order: nobody waits for one who waits for it
            self._lock(stack, f"core-{core}", fcntl.LOCK_EX)
        with self._accounts(table) as accounts:
            return accounts.may_go(self._driver, time.monotonic())

    def _take_turn(self, stack: ExitStack, turn: Turn) -> None:
        """Hold a share of the turn, which is had while nobody has one of the other."""
        other = "build" if turn == "time" else "time"
        while True:
            with ExitStack() as mutex:
                self._lock(mutex, "turns", fcntl.LOCK_EX)
                if self._is_free(f"turn-{other}"):
                    self._lock(stack, f"turn-{turn}", fcntl.LOCK_SH)
                    return
            with ExitStack() as wait:
                self._lock(wait, f"turn-{other}", fcntl.LOCK_EX)  # until the last one lets go

    def _is_free(self, name: str) -> bool:
        with (self._folder / name).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def _lock(self, stack: ExitStack, name: str, kind: int) -> None:
        file = stack.enter_context((self._folder / name).open("a"))
        fcntl.flock(file, kind)

    @contextmanager
    def _accounts(self, table: Path) -> Iterator[Accounts]:
        """The accounts of a core, which are written again after the block."""
        with ExitStack() as mutex:
            self._lock(mutex, f"{table.name}.lock", fcntl.LOCK_EX)
            accounts = Accounts(_read(table))
            yield accounts
            new = table.with_suffix(".new")
            new.write_text(json.dumps({n: asdict(a) for n, a in accounts.of.items()}))
            new.replace(table)


def node_locks(node: str, driver: str) -> CoreLocks:
    """The locks of this machine's cores, for the drivers of the farm's node of this id."""
    root = Path(tempfile.gettempdir(), f"tunefarm-cores-{os.geteuid()}")
    if not (root / node).exists():
        _remove_old(root)
    return CoreLocks(root / node, driver)


def _remove_old(root: Path) -> None:
    """Remove the folders of nodes that nobody has used for long."""
    with suppress(OSError):
        for folder in root.iterdir():
            if time.time() - folder.stat().st_mtime > _OLD_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _read(table: Path) -> dict[str, Account]:
    try:
        found = json.loads(table.read_text())
        return {name: Account(**values) for name, values in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # nobody was there, or what was is damaged: all begin anew


def _is_alive(process: int) -> bool:
    return Path("/proc", str(process)).exists()
