"""Who runs parallel loops: the pool, else an OpenMP runtime, else honestly nobody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tunefarm.compiler.runtime.machine import threads
from tunefarm.compiler.runtime.machine.thread_pool import is_supported


@pytest.fixture
def no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "thread_pool", lambda *_: None)


@pytest.fixture
def no_openmp(no_pool: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threads, "find_openmp", lambda: None)
    threads._warn_serial.cache_clear()
    yield
    threads._warn_serial.cache_clear()


def test_a_library_that_does_not_exist_is_passed_over() -> None:
    assert threads.load_openmp("libno_such_openmp.so.1") is None


def test_a_library_without_gomp_parallel_is_passed_over() -> None:
    assert threads.load_openmp("libc.so.6") is None


def test_bundled_runtimes_of_installed_packages_are_candidates(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path_factory.mktemp("python") / "site-packages"
    library = packages / "xgboost.libs" / "libgomp-e985bcbb.so.1.0.0"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.syspath_prepend(str(packages))
    assert str(library) in list(threads._candidates())


@pytest.mark.skipif(not is_supported(), reason="the pool is made of Linux futexes")
def test_the_pool_comes_first() -> None:
    runtime, provider = threads.make_runtime(2)
    assert (runtime.threads, provider) == (2, "pool")
    assert runtime.parallel


def test_openmp_serves_where_there_is_no_pool(no_pool: None) -> None:
    openmp = threads.find_openmp()
    if openmp is None:
        pytest.skip("no OpenMP runtime on this machine")
    runtime, provider = threads.make_runtime(2)
    assert (runtime.threads, runtime.parallel, provider) == (2, openmp.parallel, openmp.path)


def test_one_thread_needs_nobody(no_openmp: None, recwarn: pytest.WarningsRecorder) -> None:
    runtime, provider = threads.make_runtime(1)
    assert (runtime.threads, runtime.parallel, provider) == (1, None, "")
    assert not recwarn


def test_without_both_threads_fall_back_to_one_with_one_warning(no_openmp: None) -> None:
    with pytest.warns(RuntimeWarning, match="no OpenMP runtime found") as caught:
        first, provider = threads.make_runtime(4)
        second, _ = threads.make_runtime(4)
    assert (first.threads, second.threads, provider) == (1, 1, "")
    assert len(caught) == 1


def test_threads_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        threads.make_runtime(0)
