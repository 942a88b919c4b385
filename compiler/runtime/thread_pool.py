"""The pool of threads that runs parallel loops on Linux, as generated code.

It has the signature of `GOMP_parallel(fn, data, threads, flags)` and differs from an OpenMP runtime
in one way: a team is whoever comes. The caller opens a job, works on it until no chunk is left, and
then waits only for threads that have joined. On a shared machine, where another process may hold a
core, a loop costs at most its serial time; OpenMP waits until each thread has had its turn.

    caller: open; wake sleepers; work; close; wait while any thread is active
    thread: see a new job (spin, then sleep); join while it is open; work; leave

A second caller at the same time (or a loop inside of a loop) runs its job alone. Futexes are
described in futex(2).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import sys
import threading

from compiler.errors import ArtefactError
from compiler.runtime.loaded_code import LoadedCode
from compiler.tile_set_up import FULL_PALETTE, TILED, set_up_ir

SPINS = 6000  # pauses before a thread sleeps: longer than the serial kernels between two loops
# Pauses (a power of two) between offers of the core: the caller and its helper may share one.
YIELD_EVERY = 128
_OPEN = 1 << 30  # in the state: the job takes more threads; below it: how many are active
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
_PAUSES = {"x86_64": "@llvm.x86.sse2.pause()", "aarch64": "@llvm.aarch64.hint(i32 1)"}
_WAIT, _WAKE = 128, 129  # private to the process

# Each in a cache line of its own.
_MODULE = """
@busy = internal global [16 x i32] zeroinitializer, align 64
@generation = internal global [16 x i32] zeroinitializer, align 64
@state = internal global [16 x i32] zeroinitializer, align 64
@sleepers = internal global [16 x i32] zeroinitializer, align 64
@job = internal global {{ ptr, ptr, i32, i32 }} zeroinitializer, align 64
@stop = internal global i32 0, align 64
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()

define void @pool_parallel(ptr %fn, ptr %data, i32 %threads, i32 %flags) nounwind {{
entry:
  %taken = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic
  %free = extractvalue {{ i32, i1 }} %taken, 1
  br i1 %free, label %open, label %alone
alone:
  call void %fn(ptr %data)
  ret void
open:
  %helpers = sub i32 %threads, 1
  store ptr %fn, ptr @job
  store ptr %data, ptr getelementptr ({{ ptr, ptr, i32, i32 }}, ptr @job, i32 0, i32 1)
  store i32 %helpers, ptr getelementptr ({{ ptr, ptr, i32, i32 }}, ptr @job, i32 0, i32 2)
  store i32 %flags, ptr getelementptr ({{ ptr, ptr, i32, i32 }}, ptr @job, i32 0, i32 3)
  store atomic i32 {open}, ptr @state seq_cst, align 4
  %before = atomicrmw add ptr @generation, i32 1 seq_cst
  %asleep = load atomic i32, ptr @sleepers seq_cst, align 4
  %any = icmp sgt i32 %asleep, 0
  br i1 %any, label %wake, label %work
wake:
  %woken = call i64 (i64, ...) @syscall(i64 {futex}, ptr @generation, i32 {wake}, i32 %helpers)
  br label %work
work:
  call void %fn(ptr %data)
  %closed = atomicrmw and ptr @state, i32 {active_bits} seq_cst
  br label %wait
wait:
  %count = phi i32 [ 0, %work ], [ %next, %pause ], [ %next, %yield ]
  %active = load atomic i32, ptr @state acquire, align 4
  %done = icmp eq i32 %active, 0
  %next = add i32 %count, 1
  %turn = and i32 %next, {yield_mask}
  %polite = icmp eq i32 %turn, 0
  br i1 %done, label %leave, label %linger
linger:
  br i1 %polite, label %yield, label %pause
pause:
  call void {pause}
  br label %wait
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
leave:
  store atomic i32 0, ptr @busy release, align 4
  ret void
}}

define void @pool_worker() nounwind {{
entry:
  %current = load atomic i32, ptr @generation acquire, align 4
  %first = sub i32 %current, 1
  br label %outer
outer:
  %last = phi i32 [ %first, %entry ], [ %now, %join ], [ %now, %full ], [ %now, %{done} ]
  br label %spin
spin:
  %count = phi i32 [ 0, %outer ], [ %next, %pause ], [ %next, %yield ], [ 0, %sleep ]
  %now = load atomic i32, ptr @generation acquire, align 4
  %new = icmp ne i32 %now, %last
  br i1 %new, label %check, label %idle
idle:
  %next = add i32 %count, 1
  %long = icmp ugt i32 %count, {spins}
  br i1 %long, label %sleep, label %linger
linger:
  %turn = and i32 %next, {yield_mask}
  %polite = icmp eq i32 %turn, 0
  br i1 %polite, label %yield, label %pause
pause:
  call void {pause}
  br label %spin
yield:
  %yielded = call i32 @sched_yield()
  br label %spin
sleep:
  %more = atomicrmw add ptr @sleepers, i32 1 seq_cst
  %slept = call i64 (i64, ...) @syscall(
    i64 {futex}, ptr @generation, i32 {wait}, i32 %last, ptr null)
  %fewer = atomicrmw sub ptr @sleepers, i32 1 seq_cst
  br label %spin
check:
  %stopping = load atomic i32, ptr @stop acquire, align 4
  %stopped = icmp ne i32 %stopping, 0
  br i1 %stopped, label %leave, label %join
join:
  %state = load atomic i32, ptr @state acquire, align 4
  %opened = icmp uge i32 %state, {open}
  br i1 %opened, label %room, label %outer
room:
  %limit = load i32, ptr getelementptr ({{ ptr, ptr, i32, i32 }}, ptr @job, i32 0, i32 2)
  %others = and i32 %state, {active_bits}
  %fits = icmp slt i32 %others, %limit
  br i1 %fits, label %enter, label %full
full:
  br label %outer
enter:
  %one_more = add i32 %state, 1
  %entered = cmpxchg ptr @state, i32 %state, i32 %one_more acq_rel monotonic
  %in = extractvalue {{ i32, i1 }} %entered, 1
  br i1 %in, label %run, label %join
run:
  %fn = load ptr, ptr @job
  %data = load ptr, ptr getelementptr ({{ ptr, ptr, i32, i32 }}, ptr @job, i32 0, i32 1)
{call}
  %left = atomicrmw sub ptr @state, i32 1 acq_rel
  br label %outer
leave:
  ret void
}}

define void @pool_stop() nounwind {{
entry:
  store atomic i32 1, ptr @stop seq_cst, align 4
  %before = atomicrmw add ptr @generation, i32 1 seq_cst
  %woken = call i64 (i64, ...) @syscall(i64 {futex}, ptr @generation, i32 {wake}, i32 2147483647)
  ret void
}}
"""


# What a thread does for a job; on x86-64 with matrix tiles where the job's flags ask for them. The
# caller has set its own up for the whole run.
_CALL = "  call void %fn(ptr %data)"
_TILED_CALL = f"""\
  %flags = load i32, ptr getelementptr ({{ ptr, ptr, i32, i32 }}, ptr @job, i32 0, i32 3)
  %asked = and i32 %flags, {TILED}
  %tiled = icmp ne i32 %asked, 0
  br i1 %tiled, label %tiles, label %plain
plain:
  call void %fn(ptr %data)
  br label %ran
tiles:
  call void @pool_tiles.begin()
  call void %fn(ptr %data)
  call void @pool_tiles.end()
  br label %ran
ran:"""


def pool_ir(machine: str) -> str:
    """LLVM IR of `pool_parallel`, `pool_worker` and `pool_stop` for Linux on such a processor."""
    has_tiles = machine == "x86_64"
    tiles = set_up_ir(FULL_PALETTE, "pool_tiles") if has_tiles else ""
    return tiles + _MODULE.format(
        call=_TILED_CALL if has_tiles else _CALL,
        done="ran" if has_tiles else "run",
        open=_OPEN,
        active_bits=_OPEN - 1,
        futex=_FUTEX_NUMBERS[machine],
        wait=_WAIT,
        wake=_WAKE,
        pause=_PAUSES[machine],
        spins=SPINS,
        yield_mask=YIELD_EVERY - 1,
    )


class ThreadPool:
    """Threads that wait for parallel loops; `parallel` is the address kernels call."""

    def __init__(self) -> None:
        symbols = ["pool_parallel", "pool_worker", "pool_stop"]
        self._code = LoadedCode([], symbols, pool_ir(platform.machine()))
        self.parallel = self._code.address("pool_parallel")
        procedure = ctypes.CFUNCTYPE(None)
        self._work = procedure(self._code.address("pool_worker"))
        self._stop = procedure(self._code.address("pool_stop"))
        self._threads: list[threading.Thread] = []

    def grow(self, threads: int) -> None:
        """Have threads enough for loops on `threads` of them, the caller included."""
        while len(self._threads) < threads - 1:
            number = len(self._threads) + 1
            thread = threading.Thread(target=self._work, name=f"kernels-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End the threads; loops that follow run on their caller alone."""
        self._stop()
        for thread in self._threads:
            thread.join()
        self._threads.clear()


_lock = threading.Lock()
_pool: ThreadPool | None = None


def is_supported() -> bool:
    """Whether this system has what the pool is made of."""
    return sys.platform == "linux" and platform.machine() in _FUTEX_NUMBERS


def thread_pool(threads: int) -> ThreadPool | None:
    """The process's pool with room for `threads`; None where the system lacks what it needs.

    The pool lives until the process exits. A child process after a fork makes its own.
    """
    global _pool
    if not is_supported():
        return None
    with _lock:
        if _pool is None:
            try:
                _pool = ThreadPool()
            except ArtefactError:
                return None
            atexit.register(_pool.stop)
        _pool.grow(threads)
        return _pool


def _forget() -> None:
    """After a fork: the threads stayed behind."""
    global _lock, _pool
    if _pool is not None:
        atexit.unregister(_pool.stop)
    _lock, _pool = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
