"""The OpenMP runtime: found, loaded, or honestly absent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compiler.runtime import threads


@pytest.fixture
def no_openmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
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
    monkeypatch.setattr("sys.path", [str(packages)])
    assert str(library) in list(threads._candidates())


def test_one_thread_needs_no_openmp(no_openmp: None, recwarn: pytest.WarningsRecorder) -> None:
    runtime, openmp = threads.make_runtime(1)
    assert (runtime.threads, runtime.parallel, openmp) == (1, None, None)
    assert not recwarn


def test_without_openmp_threads_fall_back_to_one_with_one_warning(no_openmp: None) -> None:
    with pytest.warns(RuntimeWarning, match="no OpenMP runtime found") as caught:
        first, openmp = threads.make_runtime(4)
        second, _ = threads.make_runtime(4)
    assert (first.threads, second.threads, openmp) == (1, 1, None)
    assert len(caught) == 1


def test_threads_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        threads.make_runtime(0)
