"""The heartbeat of a job: its lease is renewed for as long as its process is there, and what other
processes ask of it is heard.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tunefarm.configs.errors import DatabaseError, DatabaseUnavailableError, LeaseTakenError
from tunefarm.db.requests import asked
from tunefarm.db.store import Store
from tunefarm.db.work import renew_lease
from tunefarm.tuner.interrupt import signals_held

SECONDS = 10.0
LISTEN_SECONDS = 1.0  # between two looks at what is asked of the job


@contextmanager
def heartbeat(
    store: Store, job: str, stop: Callable[[str], bool], seconds: float = SECONDS
) -> Iterator[None]:
    """Within it the job's lease is renewed every so many seconds, whatever else goes on.

    When another process asks the job to stop, `stop` is called, from a thread of its own, with who
    that was, until it has told the job. What cannot be read or written is so the next time: whoever
    waits for it does so in the job itself. A database in memory is this process's own, and has one
    connection: it needs none.
    """
    if store.name == ":memory:":
        yield
        return
    ended = threading.Event()

    def beat() -> None:
        listens, renewed = True, time.monotonic()
        while not ended.wait(min(seconds, LISTEN_SECONDS)):
            try:
                if time.monotonic() - renewed >= seconds:
                    renew_lease(store, job)
                    renewed = time.monotonic()
                request = asked(store, job) if listens else None
            except LeaseTakenError as error:
                listens = listens and not stop(error.message)
                continue
            except DatabaseUnavailableError as error:
                with suppress(DatabaseError):
                    store.go_on_elsewhere(error)
                continue
            except DatabaseError:
                continue
            if request is not None and not ended.is_set():
                listens = not stop(request[1])

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    with signals_held():
        thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
