"""The pool of threads that runs parallel loops on Linux, as generated code.

It has the signature of `GOMP_parallel(fn, data, threads, flags)` and differs from an OpenMP runtime
in one way: a team is whoever comes. The caller opens a job, works on it until no chunk is left, and
then waits only for threads that have joined. On a shared machine, where another process may hold a
core, a loop costs at most its serial time; OpenMP waits until each thread has had its turn.

    caller: open; wake sleepers; work; close; wait while any thread is active
    thread: see a new job (spin, then sleep); join while it is open; work; leave

A thread computes with floats as the caller of its job does: denormal numbers are flushed by all of
a team, or by none. A second caller at the same time (or a loop inside of a loop) runs its job
alone. Futexes are described in futex(2).

The kernel may wake a thread on the core that its caller keeps busy, although another one is idle,
and leave it there for tens of milliseconds. So a caller that wakes sleepers takes its own core from
those they may run on (sched_setaffinity(2)), and each takes it back as soon as it runs.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import sys
import threading

from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.machine.amx_set_up import FULL_PALETTE, TILED, set_up_ir
from tunefarm.compiler.machine.float_state import float_state_ir
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode

SYMBOLS = ("pool_parallel", "pool_worker", "pool_stop")
SPINS = 6000  # pauses before a thread sleeps: longer than the serial kernels between two loops
# Pauses (a power of two) between offers of the core: the caller and its helper may share one.
YIELD_EVERY = 128
_OPEN = 1 << 30  # in the state: the job takes more threads; below it: how many are active
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
_AFFINITY_NUMBERS = {  # of the system calls gettid, getcpu, sched_getaffinity, sched_setaffinity
    "x86_64": (186, 309, 204, 203),
    "aarch64": (178, 168, 123, 122),
}
_PLACED = 64  # so many threads are kept off their caller's core; the element behind is the others'
_PAUSES = {"x86_64": "@llvm.x86.sse2.pause()", "aarch64": "@llvm.aarch64.hint(i32 1)"}
_WAIT, _WAKE = 128, 129  # private to the process

# Each in a cache line of its own.
_MODULE = """
@busy = internal global [16 x i32] zeroinitializer, align 64
@generation = internal global [16 x i32] zeroinitializer, align 64
@state = internal global [16 x i32] zeroinitializer, align 64
@sleepers = internal global [16 x i32] zeroinitializer, align 64
@job = internal global {job} zeroinitializer, align 64
@stop = internal global i32 0, align 64
@members = internal global i32 0, align 64
@ids = internal global [{all} x i32] zeroinitializer
@asleep = internal global [{all} x i32] zeroinitializer
@kept_off = internal global [{all} x i32] zeroinitializer
declare i64 @llvm.vector.reduce.or.v16i64(<16 x i64>)
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()

define internal i1 @pool_allow(i64 %id, i32 %core, i1 %may) nounwind {{
entry:
  %mask = alloca <16 x i64>, align 64
  store <16 x i64> zeroinitializer, ptr %mask
  %known = icmp ult i32 %core, 1024
  br i1 %known, label %ask, label %no
ask:
  %bytes = call i64 (i64, ...) @syscall(i64 {getaffinity}, i64 %id, i64 128, ptr %mask)
  %told = icmp sgt i64 %bytes, 0
  br i1 %told, label %change, label %no
change:
  %word = lshr i32 %core, 6
  %place = and i32 %core, 63
  %wide = zext i32 %place to i64
  %bit = shl i64 1, %wide
  %element = getelementptr i64, ptr %mask, i32 %word
  %old = load i64, ptr %element
  %with = or i64 %old, %bit
  %others = xor i64 %bit, -1
  %without = and i64 %old, %others
  %new = select i1 %may, i64 %with, i64 %without
  store i64 %new, ptr %element
  %all = load <16 x i64>, ptr %mask
  %any = call i64 @llvm.vector.reduce.or.v16i64(<16 x i64> %all)
  %some = icmp ne i64 %any, 0
  %changed = icmp ne i64 %new, %old
  %wanted = and i1 %some, %changed
  br i1 %wanted, label %set, label %no
set:
  %failed = call i64 (i64, ...) @syscall(i64 {setaffinity}, i64 %id, i64 128, ptr %mask)
  %done = icmp eq i64 %failed, 0
  ret i1 %done
no:
  ret i1 false
}}

define internal void @pool_keep_off() nounwind {{
entry:
  %core_at = alloca i32
  store i32 -1, ptr %core_at
  %asked = call i64 (i64, ...) @syscall(i64 {getcpu}, ptr %core_at, ptr null, ptr null)
  %core = load i32, ptr %core_at
  %mark = add i32 %core, 1
  %joined = load atomic i32, ptr @members acquire, align 4
  br label %each
each:
  %i = phi i32 [ 0, %entry ], [ %next, %after ]
  %more = icmp ult i32 %i, %joined
  %placed = icmp ult i32 %i, {placed}
  %one = and i1 %more, %placed
  br i1 %one, label %look, label %leave
look:
  %next = add i32 %i, 1
  %asleep_at = getelementptr [{all} x i32], ptr @asleep, i32 0, i32 %i
  %asleep = load atomic i32, ptr %asleep_at acquire, align 4
  %sleeps = icmp ne i32 %asleep, 0
  br i1 %sleeps, label %move, label %after
move:
  %id_at = getelementptr [{all} x i32], ptr @ids, i32 0, i32 %i
  %id = load i32, ptr %id_at
  %wide = zext i32 %id to i64
  %moved = call i1 @pool_allow(i64 %wide, i32 %core, i1 false)
  br i1 %moved, label %note, label %after
note:
  %kept_at = getelementptr [{all} x i32], ptr @kept_off, i32 0, i32 %i
  store atomic i32 %mark, ptr %kept_at release, align 4
  br label %after
after:
  br label %each
leave:
  ret void
}}

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
  store ptr %data, ptr getelementptr ({job}, ptr @job, i32 0, i32 1)
  store i32 %helpers, ptr getelementptr ({job}, ptr @job, i32 0, i32 2)
  store i32 %flags, ptr getelementptr ({job}, ptr @job, i32 0, i32 3)
  %floats = call i64 @pool_floats.get()
  store i64 %floats, ptr getelementptr ({job}, ptr @job, i32 0, i32 4)
  store atomic i32 {open}, ptr @state seq_cst, align 4
  %before = atomicrmw add ptr @generation, i32 1 seq_cst
  %asleep = load atomic i32, ptr @sleepers seq_cst, align 4
  %any = icmp sgt i32 %asleep, 0
  br i1 %any, label %wake, label %work
wake:
  call void @pool_keep_off()
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
  %number = atomicrmw add ptr @members, i32 1 seq_cst
  %placed = icmp ult i32 %number, {placed}
  %own = select i1 %placed, i32 %number, i32 {placed}
  %id_at = getelementptr [{all} x i32], ptr @ids, i32 0, i32 %own
  %asleep_at = getelementptr [{all} x i32], ptr @asleep, i32 0, i32 %own
  %kept_at = getelementptr [{all} x i32], ptr @kept_off, i32 0, i32 %own
  %id = call i64 (i64, ...) @syscall(i64 {gettid})
  %short = trunc i64 %id to i32
  store i32 %short, ptr %id_at
  br label %outer
outer:
  %last = phi i32 [ %first, %entry ], [ %now, %join ], [ %now, %full ], [ %now, %{done} ]
  br label %spin
spin:
  %count = phi i32 [ 0, %outer ], [ %next, %pause ], [ %next, %yield ], [ 0, %sleep ], [ 0, %back ]
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
  store atomic i32 1, ptr %asleep_at release, align 4
  %more = atomicrmw add ptr @sleepers, i32 1 seq_cst
  %slept = call i64 (i64, ...) @syscall(
    i64 {futex}, ptr @generation, i32 {wait}, i32 %last, ptr null)
  %fewer = atomicrmw sub ptr @sleepers, i32 1 seq_cst
  store atomic i32 0, ptr %asleep_at release, align 4
  %kept = atomicrmw xchg ptr %kept_at, i32 0 acq_rel
  %kept_off = icmp ne i32 %kept, 0
  br i1 %kept_off, label %back, label %spin
back:
  %core = sub i32 %kept, 1
  %allowed = call i1 @pool_allow(i64 0, i32 %core, i1 true)
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
  %limit = load i32, ptr getelementptr ({job}, ptr @job, i32 0, i32 2)
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
  %data = load ptr, ptr getelementptr ({job}, ptr @job, i32 0, i32 1)
  %floats = load i64, ptr getelementptr ({job}, ptr @job, i32 0, i32 4)
  call void @pool_floats.set(i64 %floats)
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


_JOB = "{ ptr, ptr, i32, i32, i64 }"  # function, data, helpers, flags, the caller's state of floats

# What a thread does for a job; on x86-64 with matrix tiles where the job's flags ask for them. The
# caller has set its own up for the whole run.
_CALL = "  call void %fn(ptr %data)"
_TILED_CALL = f"""\
  %flags = load i32, ptr getelementptr ({_JOB}, ptr @job, i32 0, i32 3)
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
    gettid, getcpu, getaffinity, setaffinity = _AFFINITY_NUMBERS[machine]
    tiles = set_up_ir(FULL_PALETTE, "pool_tiles") if has_tiles else ""
    floats = float_state_ir(machine, "pool_floats")
    return (
        floats
        + tiles
        + _MODULE.format(
            job=_JOB,
            call=_TILED_CALL if has_tiles else _CALL,
            done="ran" if has_tiles else "run",
            open=_OPEN,
            active_bits=_OPEN - 1,
            futex=_FUTEX_NUMBERS[machine],
            gettid=gettid,
            getcpu=getcpu,
            getaffinity=getaffinity,
            setaffinity=setaffinity,
            placed=_PLACED,
            all=_PLACED + 1,
            wait=_WAIT,
            wake=_WAKE,
            pause=_PAUSES[machine],
            spins=SPINS,
            yield_mask=YIELD_EVERY - 1,
        )
    )


def with_pool(entry: str, triple: str) -> str:
    """LLVM IR of an entry function with that of the pool, for machines that it is made for.

    A process that loads it need not make the pool. The functions are weak: where there are several,
    in a C library, all callers have the same ones.
    """
    if not is_supported_on(triple):
        return entry
    pool = pool_ir(triple.split("-")[0])
    for symbol in SYMBOLS:
        pool = pool.replace(f"define void @{symbol}(", f"define weak void @{symbol}(")
    declared = {line for line in entry.splitlines() if line.startswith("declare ")}
    lines = [line for line in pool.splitlines() if line not in declared]
    return "\n".join([entry, *lines, ""])


class ThreadPool:
    """Threads that wait for parallel loops; `parallel` is the address kernels call."""

    def __init__(self, code: LoadedCode | None = None) -> None:
        """`code` has the pool's functions; without it they are compiled."""
        self._code = code or LoadedCode([], SYMBOLS, pool_ir(platform.machine()))
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


def is_supported_on(triple: str) -> bool:
    """Whether machines of an LLVM triple have what the pool is made of."""
    return "linux" in triple and triple.split("-")[0] in _FUTEX_NUMBERS


def thread_pool(threads: int, code: LoadedCode | None = None) -> ThreadPool | None:
    """The process's pool with room for `threads`; None where the system lacks what it needs.

    All models of the process share it. `code` is a model's code that has the functions of the pool,
    see `with_pool`: the first one's are used.

    The pool lives until the process exits. A child process after a fork makes its own.
    """
    global _pool
    if not is_supported():
        return None
    with _lock:
        if _pool is None:
            try:
                _pool = ThreadPool(code)
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
