"""What each kernel goes through by itself, and what takes the place of what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tunefarm.compiler import kernel_stages
from tunefarm.compiler.content_cache import ContentCache
from tunefarm.compiler.errors import LimitError
from tunefarm.compiler.kernel_stages import KERNEL_STAGES, ChosenSchedule, KernelStages
from tunefarm.compiler.limits import Limits, ResourceBudget
from tunefarm.compiler.llvm.object_cache import ObjectCache
from tunefarm.compiler.loops.ir import LoopNest
from tunefarm.compiler.schedule.schedule import Schedule, ScheduleChoice
from tunefarm.compiler.schedule.spaces import SpaceCache, default_schedule
from tunefarm.compiler.schedule.steps.loop_kinds import Vectorize
from tunefarm.compiler.stages import Stages
from tunefarm.compiler.target import host_target

KERNEL = kernel_of([f32(6, 32)], [("relu", ["x0"], {})])
MISFIT = ScheduleChoice(Schedule((Vectorize("nothing", "i"),)), "tuned", "r1")


def stages(
    cache: ObjectCache | None = None, keep: tuple[str, ...] = (), seconds: float = 60.0
) -> KernelStages:
    allowance = ResourceBudget(Limits(seconds=seconds))
    return KernelStages(
        Stages(KERNEL_STAGES, keep=keep), SpaceCache(host_target()), allowance, cache
    )


def test_a_chosen_schedule_is_used_as_it_is() -> None:
    choice = ScheduleChoice(default_schedule(KERNEL, host_target()), "tuned", "r1")
    schedules, compiled = stages().run({"k": ChosenSchedule(KERNEL, choice)})
    assert (schedules["k"].used, schedules["k"].note) == (choice, "")
    assert compiled["k"].symbol == "kernel_k"


def test_a_misfit_gives_way_to_the_default_and_the_note_says_of_which_record() -> None:
    found = stages().run({"k": ChosenSchedule(KERNEL, MISFIT)})[0]["k"]
    assert found.chosen == MISFIT and found.used.source == "default"
    assert found.note.startswith("the tuned schedule of record r1 does not fit: ")


def test_one_misfit_leaves_other_kernels_alone() -> None:
    other = kernel_of([f32(5, 16)], [("tanh", ["x0"], {})])
    chosen = {"k": ChosenSchedule(KERNEL, MISFIT), "o": ChosenSchedule(other, None)}
    schedules, compiled = stages().run(chosen)
    assert list(compiled) == ["k", "o"] and schedules["o"].note == ""


def test_code_that_a_cache_has_is_not_lowered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, chosen = ObjectCache(ContentCache(tmp_path)), {"k": ChosenSchedule(KERNEL, None)}
    first = stages(cache).run(chosen)

    def lower(*_: object) -> LoopNest:
        raise AssertionError("its code is known")

    monkeypatch.setattr(kernel_stages, "lower", lower)
    assert stages(cache).run(chosen) == first


def test_a_program_that_is_asked_for_is_made_though_the_code_is_known(tmp_path: Path) -> None:
    cache, chosen = ObjectCache(ContentCache(tmp_path)), {"k": ChosenSchedule(KERNEL, None)}
    stages(cache).run(chosen)
    asked = stages(cache, keep=("loops",))
    asked.run(chosen)
    assert isinstance(asked.stages.kept["loops"]["k"], LoopNest)


def test_no_kernel_is_begun_when_the_time_is_over() -> None:
    with pytest.raises(LimitError, match="compiling kernel"):
        stages(seconds=-1.0).run({"k": ChosenSchedule(KERNEL, None)})
