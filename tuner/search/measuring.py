"""How a job measures, from its settings: the runner, the options of a request, the cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from tunefarm.compiler.target import Target
from tunefarm.configs.settings import Settings
from tunefarm.measure.cpus import usable_cpus
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.runner import Runner, RunnerOptions, ServesTargets
from tunefarm.measure.farm.slots import plan_slots
from tunefarm.measure.machine import on_cores
from tunefarm.measure.worker.timer import FEWEST, MORE_ROUNDS, TimingOptions
from tunefarm.tuner.from_settings import targets_of

TIMING_SHARE = 0.5  # of what a run may take; the rest is for its check


def runner_of(settings: Settings, target: Target, notify: Callable[[str], None]) -> Runner:
    """The runner that the settings name; `tell` gets what it found out about the machine."""
    return create_runner(settings.measure.runner, runner_options(settings, target, notify))


def runner_options(
    settings: Settings, target: Target, notify: Callable[[str], None] | None = None
) -> RunnerOptions:
    """How the settings have a runner measure."""
    measure = settings.measure
    return RunnerOptions(
        threads=settings.compile.threads,
        targets=targets_of(settings) if settings.compile.targets else (target,),
        slots=measure.slots,
        builders=measure.builders,
        address=measure.address or "local",
        token_file=measure.token_file,
        overlap=measure.overlap,
        notify=notify,
    )


def capacities_of(runner: Runner) -> Callable[[], Mapping[str, int]] | None:
    """What tells how much a runner can do for each target, by its key, as nodes come and go; None
    where it makes no difference."""
    return (lambda: runner.capacities) if isinstance(runner, ServesTargets) else None


def timing_options(settings: Settings) -> dict[str, float | int]:
    """The options of a request, from the settings.

    Slow kernels lose rounds, but there is time for all rounds of two fast ones on a noisy machine.
    """
    measure = settings.measure
    rounds = MORE_ROUNDS * measure.samples
    wanted = max(TimingOptions().max_seconds, 2 * rounds * measure.min_sample_seconds)
    return {
        "samples": measure.samples,
        "min_samples": FEWEST,
        "min_sample_seconds": measure.min_sample_seconds,
        "max_seconds": min(wanted, TIMING_SHARE * measure.run_timeout),
        "unstable_limit": measure.unstable_above,
        "build_timeout": measure.build_timeout,
        "run_timeout": measure.run_timeout,
    }


def off_the_slots(settings: Settings) -> AbstractContextManager[None]:
    """Keep this thread, which proposes and trains, off the cores that time candidates."""
    if settings.measure.address is not None:  # they are other machines'
        return nullcontext()
    plan = plan_slots(usable_cpus(), settings.compile.threads, slots=settings.measure.slots)
    return nullcontext() if plan.alternates else on_cores(plan.spare)
