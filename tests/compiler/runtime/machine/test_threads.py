"""Who runs parallel loops: the pool, else honestly nobody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tunefarm.compiler.runtime.machine import threads
from tunefarm.compiler.runtime.machine.thread_pool import is_supported


@pytest.fixture
def no_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threads, "thread_pool", lambda *_: None)
    threads._warn_serial.cache_clear()
    yield
    threads._warn_serial.cache_clear()


@pytest.mark.skipif(not is_supported(), reason="the pool is made of Linux futexes")
def test_the_pool_runs_loops() -> None:
    runtime, provider = threads.make_runtime(2)
    assert (runtime.threads, provider) == (2, "pool")
    assert runtime.parallel


def test_one_thread_needs_nobody(no_pool: None, recwarn: pytest.WarningsRecorder) -> None:
    runtime, provider = threads.make_runtime(1)
    assert (runtime.threads, runtime.parallel, provider) == (1, None, "")
    assert not recwarn


def test_without_it_threads_fall_back_to_one_with_one_warning(no_pool: None) -> None:
    with pytest.warns(RuntimeWarning, match="models run on one thread") as caught:
        first, provider = threads.make_runtime(4)
        second, _ = threads.make_runtime(4)
    assert (first.threads, second.threads, provider) == (1, 1, "")
    assert len(caught) == 1


def test_threads_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        threads.make_runtime(0)
