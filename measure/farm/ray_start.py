"""Starting or joining Ray with a deadline, and what Ray does to the process that does it, undone.

The one place that reaches into Ray's private parts (`ray._private`, `ray._raylet`).

Ray leaves its daemons in the group that a terminal or `timeout` signals as a whole, listens on
every interface, and puts the folder that the driver runs in first on its workers' import path. It
has no settings for this, so what it looks up is replaced while it starts. What another version of
Ray does not look up has no effect.

Where it cannot start, Ray waits for minutes and hears no signal. So it starts in a thread of its
own, in which it cannot replace the handler of SIGTERM either, and the caller waits no longer than
`START_SECONDS`. The thread stays: the kernel ends Ray's daemons with the thread that began them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from typing import Any

import ray
from ray import _raylet
from ray._private import ray_constants, state, utils
from ray.job_config import JobConfig

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.farm.authentication import environment
from tunefarm.measure.sandbox.reaper import TAG_VARIABLE, cpu_seconds, run_processes

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOPBACK_ALONE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's own switch for systems on which it must not listen elsewhere; false for those alone."""


START_SECONDS = 28.0
_BUSY_START_SECONDS = 120.0
"""While its processes compute, as they do for longer on a machine that others load."""
_IDLE_SHARE = 0.02  # of a core's time: what waits for nothing uses less
_WAIT_SECONDS = 0.1  # after which the caller looks whether it was interrupted


class OwnPath(JobConfig):
    """A job whose workers find modules where they are installed, not where the driver runs."""

    def _serialize(self) -> Any:
        self._py_driver_sys_path = []
        return super()._serialize()


class _StartClock:
    """When a start is given up: what hangs uses no time of a core, what is slow does."""

    def __init__(self, tag: str) -> None:
        """`tag` is the mark of the processes that Ray starts."""
        self._tag = tag
        self._began = self._asked = time.monotonic()
        self._used = 0.0

    def check(self) -> None:
        """Raise MeasureError when it is late."""
        now = time.monotonic()
        if now - self._asked < START_SECONDS / 4:
            return
        used = cpu_seconds(run_processes(self._tag)) if self._tag else 0.0
        idle = used - self._used < _IDLE_SHARE * (now - self._asked)
        self._asked, self._used = now, used
        waited = now - self._began
        if waited > _BUSY_START_SECONDS or (idle and waited >= 0.99 * START_SECONDS):
            raise MeasureError(f"no answer within {waited:.0f} s")


class StartedRay:
    """Ray as this process started or joined it."""

    def __init__(
        self, address: str, variables: Mapping[str, str], *, alone: bool, **options: Any
    ) -> None:
        """Call `ray.init`; `alone`: it listens on the loopback interface only.

        `variables` are in the environment meanwhile. Raises MeasureError when Ray has not started
        in time, whatever `ray.init` raises, and what a handler of a signal raises.
        """
        self._ended = threading.Event()
        outcome: Future[None] = Future()

        def start() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # they are for the caller
            try:
                with environment(variables), ray_among_us(alone=alone):
                    read_authentication_again()
                    ray.init(address=address, job_config=OwnPath(), **options)
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                outcome.set_exception(error)
            else:
                outcome.set_result(None)
                self._ended.wait()

        threading.Thread(target=start, name="tunefarm-ray", daemon=True).start()
        clock = _StartClock(variables.get(TAG_VARIABLE, ""))
        try:
            while not wait([outcome], _WAIT_SECONDS).done:
                clock.check()
            outcome.result()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Let the thread end, and with it the daemons that it began."""
        self._ended.set()


@contextmanager
def ray_among_us(*, alone: bool) -> Iterator[None]:
    """Ray is started within the block. `alone`: it listens on the loopback interface only."""
    with ExitStack() as stack:
        stack.enter_context(replaced(utils, "set_kill_on_parent_death_linux", _begin_daemon))
        if alone:
            stack.enter_context(replaced(ray_constants, "ENABLE_RAY_CLUSTER", lambda _: False))
            os.environ[LOOPBACK_ALONE] = "0"
            stack.callback(os.environ.pop, LOOPBACK_ALONE)
        yield


def head_client(address: str) -> Any:
    """A client of the head node of the cluster at an address; it needs no worker's connection."""
    raylet: Any = _raylet
    return raylet.GcsClient(address=address)


def draining_nodes() -> set[str]:
    """The ids of the nodes that were told to end, and have not yet."""
    table: Any = state.state
    try:
        return set(table.get_draining_nodes())
    except AttributeError:  # another version of Ray
        return set()


def read_authentication_again() -> None:
    """Have this process see the environment of now: Ray read it when it was imported."""
    raylet: Any = _raylet
    raylet.Config.initialize("")  # before the token is dropped, as Ray itself does it
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def _begin_daemon(former: Any) -> Any:
    """What a daemon of Ray's does before it becomes one: its signals are its own again."""

    def begin() -> None:
        former()
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGHUP))

    return begin


@contextmanager
def replaced(place: Any, name: str, replace: Any) -> Iterator[None]:
    """Within it a name of a module of Ray's, if there is one, is what `replace` makes of it."""
    if not hasattr(place, name):
        yield
        return
    former = getattr(place, name)
    setattr(place, name, replace(former))
    try:
        yield
    finally:
        setattr(place, name, former)
