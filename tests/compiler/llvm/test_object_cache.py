"""Code from the cache is the code that would be made; what is damaged or old is never used."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.compiler.kernels.matmul import matmul_kernel
from tests.measure.fault_kernels import make_kernel
from tunefarm.compiler import content_cache
from tunefarm.compiler.content_cache import ContentCache
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.llvm import CompiledKernel, compile_kernel
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.llvm.object_cache import ObjectCache
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import Target, baseline_target, host_target

HOST = host_target()
KERNEL = matmul_kernel(6, 8, 5)
SCHEDULE = default_schedule(KERNEL, HOST)
PLAIN = Schedule(())

_FILL = """
import hashlib, sys
from pathlib import Path
from tunefarm.compiler.content_cache import ContentCache
from tunefarm.compiler.llvm.object_cache import ObjectCache
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import host_target
from tests.compiler.llvm.test_object_cache import compile_through
from tests.compiler.kernels.matmul import matmul_kernel

folder, *sizes = sys.argv[1:]
cache = ObjectCache(ContentCache(Path(folder)))
sys.stdin.readline()
digest = hashlib.sha256()
for size in map(int, sizes):
    kernel = matmul_kernel(size, 8, 5)
    schedule = default_schedule(kernel, host_target())
    digest.update(compile_through(cache, kernel, schedule).object_code)
print(cache.hits, cache.misses, digest.hexdigest())
"""
"""Compiles kernels of the sizes given through a cache, after a line of input."""


class Filler:
    """A process that compiles kernels of these sizes through the cache in `folder`."""

    def __init__(self, repository: Path, folder: Path, *sizes: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _FILL, str(folder), *map(str, sizes)],
            cwd=repository,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def finish(self) -> tuple[int, int, str]:
        """Hits, misses, and the hash of all code."""
        printed, _ = self._process.communicate(timeout=300)
        assert self._process.returncode == 0
        hits, misses, digest = printed.split()
        return int(hits), int(misses), digest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache folder that is not there yet."""
    return tmp_path / "caches" / "tunefarm"


def compile_through(
    cache: ObjectCache,
    kernel: FusedKernel = KERNEL,
    schedule: Schedule = SCHEDULE,
    target: Target = HOST,
    symbol: str = "kernel",
) -> CompiledKernel:
    """What the pipeline does with a kernel."""
    entry = cache.entry(kernel, schedule, target, symbol)
    found = entry.find()
    if found is None:
        found = compile_kernel(kernel, schedule, target, symbol)
        entry.keep(found)
    return found


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def function(name: str) -> str:
    return f"define void @{name}() {{\n  ret void\n}}\n"


def test_every_fact_of_a_kernel_is_kept(folder: Path) -> None:
    kernel = matmul_kernel(64, 64, 64)
    schedule = default_schedule(kernel, HOST, 2)
    expected = compile_kernel(kernel, schedule, HOST, "kernel")
    assert expected.parallel and expected.constant_layouts
    for _ in range(2):
        cache = ObjectCache(ContentCache(folder))
        assert compile_through(cache, kernel, schedule) == expected
    assert cache.hits == 1


def test_two_processes_may_fill_it_at_once(repository: Path, folder: Path) -> None:
    sizes = range(2, 8)
    fillers = [Filler(repository, folder, *sizes) for _ in range(2)]
    for filler in fillers:
        filler.start()
    first, second = (filler.finish() for filler in fillers)
    assert first[2] == second[2]
    assert [path.suffix for path in entries(folder)] == [".entry"] * len(sizes)
    cache = ObjectCache(ContentCache(folder))
    for size in sizes:
        kernel = matmul_kernel(size, 8, 5)
        compile_through(cache, kernel, default_schedule(kernel, HOST))
    assert (cache.hits, cache.misses) == (len(sizes), 0)


def test_whatever_code_depends_on_is_part_of_the_key(folder: Path) -> None:
    cache = ObjectCache(ContentCache(folder))
    compile_through(cache)
    other = replace(HOST, l2_bytes=HOST.l2_bytes + 1)
    for kernel, schedule, target, symbol in (
        (KERNEL, PLAIN, HOST, "kernel"),
        (KERNEL, SCHEDULE, baseline_target(HOST), "kernel"),
        (KERNEL, SCHEDULE, other, "kernel"),
        (KERNEL, SCHEDULE, HOST, "other"),
        (matmul_kernel(6, 8, 6), SCHEDULE, HOST, "kernel"),
        (make_kernel(), PLAIN, HOST, "kernel"),
    ):
        made = compile_through(cache, kernel, schedule, target, symbol)
        assert made == compile_kernel(kernel, schedule, target, symbol)
    assert (cache.hits, cache.misses) == (0, 7)


def test_code_of_fixed_rounding_is_kept_apart_if_it_is_asked_for(folder: Path) -> None:
    cache = ObjectCache(ContentCache(folder))
    plain, free, fixed = (
        cache.entry(KERNEL, SCHEDULE, HOST, "kernel", *given) for given in ((), (False,), (True,))
    )
    assert plain.key == free.key != fixed.key


def test_another_compiler_uses_none_of_the_entries(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_through(ObjectCache(ContentCache(folder)))
    monkeypatch.setattr(content_cache, "compiler_digest", lambda: "another")
    cache = ObjectCache(ContentCache(folder))
    compile_through(cache)
    assert (cache.hits, cache.misses) == (0, 1)


def test_a_changed_source_file_is_another_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llvm").mkdir()
    source = tmp_path / "llvm" / "machine.py"
    source.write_text("opt = 2\n")
    monkeypatch.setattr(content_cache, "__file__", str(tmp_path / "content_cache.py"))
    digest = content_cache.compiler_digest.__wrapped__
    before = digest()
    assert digest() == before
    source.write_text("opt = 3\n")
    changed = digest()
    source.rename(tmp_path / "machine.py")
    assert len({before, changed, digest()}) == 3


def test_text_is_compiled_once(folder: Path) -> None:
    for _ in range(2):
        cache = ObjectCache(ContentCache(folder))
        assert cache.object_code(function("f"), HOST) == object_code(function("f"), HOST)
    assert (cache.hits, cache.misses) == (1, 0)
    cache.object_code(function("g"), HOST)
    cache.object_code(function("f"), baseline_target(HOST))
    assert cache.misses == 2


def damaged_contents(content: bytes) -> Iterator[bytes]:
    """Cut short, longer, and with a bit flipped in the digest, the facts and the code."""
    for length in (0, 1, 31, 32, 33, len(content) - 1):
        yield content[:length]
    yield content + b"\0"
    for place in (0, 31, 32, 40, len(content) // 2, len(content) - 1):
        yield content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


def test_a_damaged_entry_is_made_anew_and_never_used(folder: Path) -> None:
    expected = compile_through(ObjectCache(ContentCache(folder)))
    (path,) = entries(folder)
    content = path.read_bytes()
    for damaged in damaged_contents(content):
        path.write_bytes(damaged)
        cache = ObjectCache(ContentCache(folder))
        assert compile_through(cache) == expected
        assert (cache.hits, cache.misses) == (0, 1)
        assert path.read_bytes() == content


def test_an_entry_under_the_name_of_another_is_not_used(folder: Path) -> None:
    cache = ContentCache(folder)
    cache.add("a" * 64, {}, b"code")
    cache.path("b" * 64).parent.mkdir()
    cache.path("b" * 64).write_bytes(cache.path("a" * 64).read_bytes())
    assert cache.find("a" * 64) == ({}, b"code")
    assert cache.find("b" * 64) is None


@pytest.mark.parametrize(
    "facts",
    [
        {},
        [],
        None,
        {"workspace_bytes": 0},
        {"workspace_bytes": "0", "parallel": False},
        {"workspace_bytes": -1, "parallel": False},
        {"workspace_bytes": 0, "parallel": 1},
        {"workspace_bytes": 0, "parallel": False, "more": 0},
    ],
)
def test_an_entry_with_other_facts_counts_as_missing(folder: Path, facts: object) -> None:
    expected = compile_through(ObjectCache(ContentCache(folder)))
    (path,) = entries(folder)
    key = path.parent.name + path.name.removesuffix(".entry")
    ContentCache(folder).add(key, facts, expected.object_code)
    cache = ObjectCache(ContentCache(folder))
    assert compile_through(cache) == expected
    assert (cache.hits, cache.misses) == (0, 1)


def test_an_entry_that_others_may_have_written_is_not_used(folder: Path) -> None:
    compile_through(ObjectCache(ContentCache(folder)))
    (path,) = entries(folder)
    kept = path.with_name("kept")

    def replace_by_link() -> None:
        path.rename(kept)
        path.symlink_to(kept)

    changes: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (lambda: path.chmod(0o666), lambda: path.chmod(0o600)),
        (lambda: path.parent.chmod(0o777), lambda: path.parent.chmod(0o700)),
        (lambda: folder.chmod(0o777), lambda: folder.chmod(0o700)),
        (replace_by_link, lambda: kept.replace(path)),
    ]
    for change, undo in changes:
        change()
        found = ContentCache(folder).find(path.parent.name + path.name.removesuffix(".entry"))
        undo()
        assert found is None
    cache = ObjectCache(ContentCache(folder))
    compile_through(cache)
    assert (cache.hits, cache.misses) == (1, 0)


def test_nothing_is_kept_where_others_may_write(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    cache = ObjectCache(ContentCache(folder))
    for _ in range(2):
        compile_through(cache)
    assert (cache.hits, cache.misses) == (0, 2)
    assert entries(folder) == []


def test_a_folder_in_the_place_of_an_entry_is_no_error(folder: Path) -> None:
    expected = compile_through(ObjectCache(ContentCache(folder)))
    (path,) = entries(folder)
    path.unlink()
    path.mkdir()
    assert compile_through(ObjectCache(ContentCache(folder))) == expected
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(unwritable_folder: Path) -> None:
    for folder in (unwritable_folder, unwritable_folder / "below"):
        cache = ObjectCache(ContentCache(folder))
        for _ in range(2):
            assert compile_through(cache) == compile_kernel(KERNEL, SCHEDULE, HOST, "kernel")
        cache.cache.trim()
        assert (cache.hits, cache.misses) == (0, 2)
    assert entries(unwritable_folder) == []


def test_entries_that_may_only_be_read_are_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_through(ObjectCache(ContentCache(folder)))

    def refuse(path: Path) -> None:
        raise PermissionError(f"{path} belongs to another user")

    monkeypatch.setattr(os, "utime", refuse)
    cache = ObjectCache(ContentCache(folder))
    compile_through(cache)
    assert (cache.hits, cache.misses) == (1, 0)


def test_a_file_in_the_place_of_the_folder_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    cache = ObjectCache(ContentCache(tmp_path / "file"))
    compile_through(cache)
    cache.cache.trim()
    assert (tmp_path / "file").read_text() == "mine"


def test_threads_share_a_cache(folder: Path) -> None:
    cache = ObjectCache(ContentCache(folder))
    expected = compile_kernel(KERNEL, SCHEDULE, HOST, "kernel")
    found: list[CompiledKernel] = []
    threads = [
        threading.Thread(target=lambda: found.append(compile_through(cache))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
    assert len(entries(folder)) == 1


def aged_cache(folder: Path, count: int) -> tuple[list[str], list[Path], int]:
    """Entries of equal size, the first one oldest: their texts, their files, the bytes of one."""
    cache = ObjectCache(ContentCache(folder))
    texts, paths = [], []
    for number in range(count):
        known = set(entries(folder))
        texts.append(function(f"f{number}"))
        cache.object_code(texts[-1], HOST)
        (path,) = set(entries(folder)) - known
        os.utime(path, (1000.0 + number, 1000.0 + number))
        paths.append(path)
    (size,) = {path.stat().st_size for path in paths}
    return texts, paths, size


def test_trimming_removes_what_was_unused_longest(folder: Path) -> None:
    _, paths, size = aged_cache(folder, 6)
    ContentCache(folder, most_bytes=4 * size + 1).trim()
    assert entries(folder) == sorted(paths[2:])


def test_what_was_used_stays(folder: Path) -> None:
    texts, paths, size = aged_cache(folder, 4)
    cache = ObjectCache(ContentCache(folder, most_bytes=2 * size))
    cache.object_code(texts[0], HOST)
    assert cache.hits == 1
    cache.cache.trim()
    assert entries(folder) == sorted([paths[0], paths[3]])


def test_what_a_killed_process_left_behind_goes_in_its_turn(folder: Path) -> None:
    _, paths, size = aged_cache(folder, 3)
    unfinished = paths[0].with_name("half.entry.new")
    unfinished.write_bytes(bytes(size))
    os.utime(unfinished, (1000.5, 1000.5))
    ContentCache(folder, most_bytes=3 * size).trim()
    assert entries(folder) == sorted([unfinished, *paths[1:]])
    ContentCache(folder, most_bytes=2 * size).trim()
    assert entries(folder) == sorted(paths[1:])


def test_trimming_leaves_a_small_cache_alone(folder: Path) -> None:
    _, paths, size = aged_cache(folder, 3)
    ContentCache(folder, most_bytes=3 * size).trim()
    assert entries(folder) == sorted(paths)


def test_trimming_leaves_files_of_others_alone(folder: Path) -> None:
    aged_cache(folder, 2)
    note = folder / "README"
    note.write_text("mine")
    ContentCache(folder, most_bytes=1).trim()
    assert entries(folder) == [note]
