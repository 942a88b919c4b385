"""Work that releases the interpreter lock (hashing, copying, writing), done by two threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 2


def in_threads(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """`work` of every item, in their order; each is taken up by the next thread that is free.

    Raises the first error, after what is under way has ended; nothing more is begun then.
    """
    waiting = enumerate(items)
    results: dict[int, R] = {}
    errors: list[Exception] = []
    lock = threading.Lock()

    def work_on() -> None:
        try:
            while not errors:
                with lock:
                    taken = next(waiting, None)
                if taken is None:
                    return
                results[taken[0]] = work(taken[1])
        except Exception as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    helpers = [threading.Thread(target=work_on) for _ in range(_THREADS - 1)]
    for helper in helpers:
        helper.start()
    work_on()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
    return [results[number] for number in sorted(results)]
