"""What each kernel goes through by itself: schedule, loops, LLVM and object code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from tunefarm.compiler.errors import LoweringError, ScheduleError, TunefarmError, VerifyError
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelProgram
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.llvm.compile_kernel import CompiledKernel, emit_loops
from tunefarm.compiler.llvm.object_cache import ObjectCache
from tunefarm.compiler.llvm.scalar_work import scalar_work
from tunefarm.compiler.runtime.spec.kernel_report import DEFAULT, NAIVE
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import ChooseSchedule, Schedule, ScheduleChoice
from tunefarm.compiler.schedule.spaces import SpaceCache, naive_schedule
from tunefarm.compiler.stages import Stages
from tunefarm.compiler.types.frozen import frozen

KERNEL_STAGES = ("schedule", "loops", "llvm", "object_code")

_BEFORE_CODE = ("loops", "llvm")
"""What is skipped for a kernel whose object code a cache has, unless it is asked for."""

_DOES_NOT_FIT = (ScheduleError, LoweringError, VerifyError)
"""What compiling a kernel raises with a schedule that is not for it."""


@frozen
class ChosenSchedule:
    """A distinct kernel with the schedule to try first; `choice` is None for the default."""

    kernel: FusedKernel
    choice: ScheduleChoice | None

    def __str__(self) -> str:
        return f"{self.kernel.name}: {DEFAULT if self.choice is None else self.choice}"


@frozen
class KernelSchedule:
    """The schedule that a distinct kernel is built with, which is `used`.

    `chosen` is what had been chosen for it, None for the default one; where another one is used
    `note` says why.
    """

    kernel: FusedKernel
    chosen: ScheduleChoice | None
    used: ScheduleChoice
    note: str = ""

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.kernel.name}: {self.used}{note}"


def choose_schedules(
    program: KernelProgram,
    choose: ChooseSchedule | None,
    decided: Mapping[str, Schedule] | None = None,
) -> dict[str, ChosenSchedule]:
    """Ask for the schedule of each distinct kernel that is not `decided` as yet, by workload key.

    The result is by workload key, too.
    """
    kernels = {key: calls[0].kernel for key, calls in program.kernel_calls().items()}
    asked = {key: choose(kernel) for key, kernel in kernels.items()} if choose else {}
    own = {key: ScheduleChoice(schedule, DEFAULT) for key, schedule in (decided or {}).items()}
    return {
        key: ChosenSchedule(kernel, own.get(key) or asked.get(key))
        for key, kernel in kernels.items()
    }


@frozen
class KernelStages:
    """What each distinct kernel goes through by itself: schedule, loops, LLVM and object code.

    Where the chosen schedule does not fit the default one takes its place, and the naive one where
    that does not fit either; the note says so. Raises `LimitError` before a kernel for which there
    is no time any more.
    """

    stages: Stages
    spaces: SpaceCache
    allowance: ResourceBudget
    cache: ObjectCache | None = None

    def run(
        self, chosen: Mapping[str, ChosenSchedule]
    ) -> tuple[dict[str, KernelSchedule], dict[str, CompiledKernel]]:
        """Compile these kernels; what each is built with and its code, all by workload key.

        One thread lowers a kernel while another has LLVM compile those before it. More would only
        wait: the former hold the interpreter's lock, the latter one that llvmlite has for all LLVM.
        """
        with ThreadPoolExecutor(1) as llvm:

            def begin(key: str, schedule: Callable[[], KernelSchedule]) -> _Begun:
                first, compile = self.lower(key, f"kernel_{key}", schedule)
                return first, llvm.submit(compile)

            def finish(key: str, begun: _Begun) -> tuple[KernelSchedule, CompiledKernel]:
                schedule, code = begun
                try:
                    return schedule, self.stages.run("object_code", code.result, key)
                except _DOES_NOT_FIT as error:
                    following = partial(self._following, key, schedule, error)
                return finish(key, begin(key, following))

            begun = {
                key: begin(key, partial(self.first, key, item)) for key, item in chosen.items()
            }
            made = {key: finish(key, item) for key, item in begun.items()}
        schedules = {key: schedule for key, (schedule, _) in made.items()}
        return schedules, {key: code for key, (_, code) in made.items()}

    def lower(
        self, key: str, symbol: str, schedule: Callable[[], KernelSchedule]
    ) -> tuple[KernelSchedule, Callable[[], CompiledKernel]]:
        """Lower a kernel with this schedule, or the first one after it that fits.

        What is returned with the schedule compiles, in any thread; the function is named `symbol`.
        """
        chosen = self.stages.run("schedule", schedule, key)
        kernel, steps = chosen.kernel, chosen.used.schedule
        self.allowance.check_time(f"compiling kernel {kernel.name}")
        cache, target = self.cache, self.spaces.code_target
        try:
            self.spaces.check(kernel, steps)
        except ScheduleError as error:
            return self.lower(key, symbol, partial(self._following, key, chosen, error))
        fixed = self.spaces.numerics.fixes_order
        entry = None if cache is None else cache.entry(kernel, steps, target, symbol, fixed)
        known = None if entry is None else entry.find()
        if known is not None and not any(self.stages.wants(name, key) for name in _BEFORE_CODE):
            return chosen, lambda: known
        try:
            nest = self.stages.run("loops", lambda: lower(kernel, steps), key)
            emit = partial(emit_loops, nest, steps, target, symbol, fixed)
            emitted = self.stages.run("llvm", emit, key)
            why = scalar_work(nest, target)
        except _DOES_NOT_FIT as error:
            return self.lower(key, symbol, partial(self._following, key, chosen, error))

        def compile() -> CompiledKernel:
            if known is not None:
                return known
            self.allowance.check_time(f"compiling kernel {kernel.name}")
            compiled = replace(emitted.compile(target), not_vectorised=why)
            if entry is not None:
                entry.keep(compiled)
            return compiled

        return chosen, compile

    def first(self, key: str, item: ChosenSchedule) -> KernelSchedule:
        """The schedule to try first: the chosen one, or the default one."""
        if item.choice is None:
            return self._default(key, item.kernel, None, "")
        return KernelSchedule(item.kernel, item.choice, item.choice)

    def _following(self, key: str, item: KernelSchedule, error: TunefarmError) -> KernelSchedule:
        """The schedule to try after one that does not fit. Raises `error` if there is none."""
        used = item.used
        if used.source == NAIVE:
            raise error
        note = _note(item.note, used.source, used.record_id, error)
        if used.source == DEFAULT:
            return replace(item, used=_NAIVE, note=note)
        return self._default(key, item.kernel, item.chosen, note)

    def _default(
        self, key: str, kernel: FusedKernel, chosen: ScheduleChoice | None, note: str
    ) -> KernelSchedule:
        """The default schedule, or the naive one where a sketch fails on the kernel."""
        try:
            space = self.spaces.of(kernel, key)
            schedule = space.schedule(space.default())
        except _DOES_NOT_FIT as error:
            return KernelSchedule(kernel, chosen, _NAIVE, _note(note, DEFAULT, None, error))
        return KernelSchedule(kernel, chosen, ScheduleChoice(schedule, DEFAULT), note)


_Begun: TypeAlias = tuple[KernelSchedule, Future[CompiledKernel]]
_NAIVE = ScheduleChoice(naive_schedule(), NAIVE)


def _note(before: str, source: str, record_id: str | None, error: TunefarmError) -> str:
    """What to say of a kernel when the schedule of this source does not fit either."""
    record = f" of record {record_id}" if record_id else ""
    note = f"the {source} schedule{record} does not fit: {error}"
    return f"{before}; {note}" if before else note
