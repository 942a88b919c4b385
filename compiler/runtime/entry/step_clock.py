"""A clock inside the entry function, which counts how long each step of a run takes.

    void tunefarm_run_clocked(inputs, outputs, constants, arena, runtime)
    i64 tunefarm_clock()
    i64 tunefarm_ticks[steps + 1]

The first runs the model as its entry does, and adds the ticks of each step to the step's count:
those from the end of the step before it to its own end, so that all counts together are the whole
call. The last count is that of the entry itself: setting up, and copying the rows of dynamic inputs
and outputs. In a loop the head of each round counts to the step that begins the loop. The clock is
the time stamp counter on x86-64 (Intel's manual, volume 3, 18.17) and the virtual counter on 64-bit
Arm; how many ticks a second has is found by reading it next to another clock.
"""

from __future__ import annotations

CLOCKED_ENTRY_SYMBOL = "tunefarm_run_clocked"
CLOCK_SYMBOL = "tunefarm_clock"
TICKS_SYMBOL = "tunefarm_ticks"
_READ = "call i64 @llvm.readcyclecounter()"
_READ_ARM = 'call i64 @llvm.read_volatile_register.i64(metadata !{!"cntvct_el0"})'
_CLOCK = """\
@{ticks} = global [{counts} x i64] zeroinitializer
@step_clock.last = internal global i64 0
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.read_volatile_register.i64(metadata)
define i64 @{clock}() {{
  %now = {read}
  ret i64 %now
}}
define internal void @step_clock.tick(i64 %step) noinline nounwind {{
  %now = {read}
  %last = load i64, ptr @step_clock.last
  %spent = sub i64 %now, %last
  %place = getelementptr i64, ptr @{ticks}, i64 %step
  %before = load i64, ptr %place
  %sum = add i64 %before, %spent
  store i64 %sum, ptr %place
  store i64 %now, ptr @step_clock.last
  ret void
}}
define void @{clocked}(ptr %inputs, ptr %outputs, ptr %constants, ptr %arena, ptr %runtime) {{
  %now = {read}
  store i64 %now, ptr @step_clock.last
  call void @{entry}(ptr %inputs, ptr %outputs, ptr %constants, ptr %arena, ptr %runtime)
  {behind}
  ret void
}}
"""


def tick_ir(step: int) -> str:
    """The instruction that ends a step: its ticks are counted up to here."""
    return f"call void @step_clock.tick(i64 {step})"


def clock_ir(triple: str, steps: int, entry: str) -> str:
    """LLVM IR of the clock for CPUs of an LLVM triple, and of the function that calls the `entry`
    of so many steps."""
    return _CLOCK.format(
        ticks=TICKS_SYMBOL,
        counts=steps + 1,
        read=_READ_ARM if triple.startswith("aarch64") else _READ,
        clock=CLOCK_SYMBOL,
        clocked=CLOCKED_ENTRY_SYMBOL,
        entry=entry,
        behind=tick_ir(steps),
    )
