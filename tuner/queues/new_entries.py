"""Entries as they are added to a queue: checked as their jobs will check them, and estimated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tunefarm.compiler.kernels.count_work import kernel_flops
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.types.extents import Shapes
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.configs.settings import Settings
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner.building.size_values import programs_of
from tunefarm.tuner.calibration.options import CHOSEN
from tunefarm.tuner.from_settings import limits_of, targets_of
from tunefarm.tuner.queues.entry_options import EntryOptions
from tunefarm.tuner.search.make_tasks import distinct_kernels
from tunefarm.tuner.tune_model import check_job

TRIAL_SECONDS = 0.7  # of a kernel that takes no time: built, checked, and timed in short slices
RUNS = 32  # of a kernel in a trial
FLOPS = 2e10  # of an untuned kernel in a second


@dataclass(frozen=True, slots=True)
class NewEntry:
    """A job to be added: the arguments of `tune` without the database, and the queue's options."""

    model_name: str
    arguments: tuple[str, ...]
    options: EntryOptions


Kernels: TypeAlias = dict[str, float]
"""By workload key, the seconds that a trial may take."""


def check_model(
    model: str, settings: Settings, shapes: Shapes, known: dict[str, Kernels]
) -> Kernels:
    """The model's distinct kernels; those of a model that is `known` are not looked for again.

    Raises TunefarmError where `tune` would, for a model that cannot be read and for settings with
    which no job can be done. Where the precision is chosen later, the kernels are those without.
    """
    check_job(settings)
    compile = settings.compile
    asked = repr((model, shapes, compile.numerics, compile.target, compile.targets))
    if asked not in known:
        known[asked] = _kernels(model, settings, shapes)
    return known[asked]


def _kernels(model: str, settings: Settings, shapes: Shapes) -> Kernels:
    compile = settings.compile
    numerics = Numerics.of("default" if compile.numerics in CHOSEN else compile.numerics)
    limits = limits_of(settings)
    target = targets_of(settings)[0]
    found: Kernels = {}
    for program in programs_of(shapes):
        graph = import_model(model, program.shapes, limits)
        kernels = kernels_of(graph, target, limits=limits, numerics=numerics)
        for key, (kernel, _) in distinct_kernels(kernels).items():
            found[key] = round(TRIAL_SECONDS + RUNS * kernel_flops(kernel) / FLOPS, 3)
    return found


def new_entry(
    model_name: str,
    arguments: Sequence[str],
    settings: Settings,
    kernels: Kernels,
    weight: float | None,
) -> NewEntry:
    """An entry for a job with these settings, which has no more than their minutes."""
    compile = settings.compile
    options = EntryOptions(
        threads=compile.threads,
        targets=",".join(compile.targets),
        numerics=compile.numerics,
        weight=weight,
        minutes=settings.search.minutes,
        kernels=kernels,
    )
    return NewEntry(model_name, tuple(arguments), options)
