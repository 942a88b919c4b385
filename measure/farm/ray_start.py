"""What Ray does to the process that joins it, undone: its signals, its addresses, its folders.

The one place that reaches into Ray's private parts (`ray._private`, `ray._raylet`).

Ray replaces the handler of SIGTERM by one that prints stacks, has workers import from the folder
of the driver and of its script before what is installed, and listens on every interface. It has no
settings for this, so what it looks up is replaced while it starts. What another version of Ray does
not look up has no effect.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import ray
from ray import _raylet
from ray._private import ray_constants
from ray._private import state as ray_state
from ray.job_config import JobConfig

from tunefarm.measure.farm.farm_records import environment

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOPBACK_ALONE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's own switch for systems on which it must not listen elsewhere; false for those alone."""


def connect(address: str, variables: Mapping[str, str], *, alone: bool) -> None:
    """Make this process a driver of the cluster at an address, with these environment variables.

    `alone`: it listens on the loopback interface only. Raises what Ray does, which may wait for
    minutes or end the process: `tunefarm.measure.farm.ray_launch` finds out first.
    """
    with ExitStack() as stack:
        stack.enter_context(environment(variables))
        stack.enter_context(_signals_kept())
        if alone:
            stack.enter_context(replaced(ray_constants, "ENABLE_RAY_CLUSTER", lambda _: False))
            stack.enter_context(environment({LOOPBACK_ALONE: "0"}))
        read_authentication_again()
        ray.init(
            address=address,
            logging_level=logging.ERROR,
            log_to_driver=False,
            job_config=NoFolders(),
        )


class NoFolders(JobConfig):
    """Of a job whose workers import what is installed for them.

    Ray adds the folders of the driver and of its script to a list that is put first on a worker's
    path: what lies there would be measured, and would hide the libraries of its name.
    """

    @property
    def _py_driver_sys_path(self) -> list[str]:
        return []

    @_py_driver_sys_path.setter
    def _py_driver_sys_path(self, folders: list[str]) -> None:
        pass


def head_client(address: str) -> Any:
    """A client of the head node of the cluster at an address; it needs no worker's connection."""
    raylet: Any = _raylet
    return raylet.GcsClient(address=address)


def draining_nodes() -> set[str]:
    """The ids of the nodes that were told to end, and have not yet."""
    table: Any = ray_state.state
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
