"""What Ray does to the process that starts it, undone: its signals, its addresses, its group.

The one place that reaches into Ray's private parts (`ray._private`, `ray._raylet`).

Ray replaces the handler of SIGTERM by one that prints stacks, leaves its daemons in the group that
a terminal or `timeout` signals as a whole, and listens on every interface. It has no settings for
this, so what it looks up is replaced while it starts. What another version of Ray does not look up
has no effect.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ray import _raylet
from ray._private import ray_constants, state, utils

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOPBACK_ALONE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's own switch for systems on which it must not listen elsewhere; false for those alone."""


@contextmanager
def ray_among_us(*, alone: bool) -> Iterator[None]:
    """Ray is started within the block. `alone`: it listens on the loopback interface only."""
    with ExitStack() as stack:
        stack.enter_context(_signals_kept())
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


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Signals that come meanwhile are handled at the end of the block, by those who did before."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


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
