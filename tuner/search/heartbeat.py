"""The heartbeat of a job: its lease is renewed for as long as its process is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from configs.errors import DatabaseError
from db.store import Store
from db.work import renew_lease
from tuner.interrupt import signals_held

SECONDS = 10.0


@contextmanager
def heartbeat(store: Store, job: str, seconds: float = SECONDS) -> Iterator[None]:
    """Within it the job's lease is renewed every so many seconds, whatever else goes on.

    What cannot be written is written the next time: whoever waits for it does so in the job itself.
    A database in memory is this process's own, and has one connection: it needs none.
    """
    if store.name == ":memory:":
        yield
        return
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(seconds):
            try:
                renew_lease(store, job)
            except DatabaseError:
                continue

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    with signals_held():
        thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
