"""Entries as they are added to a queue: checked as their jobs will check them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class NewEntry:
    """A job to be added: the arguments of `tune` without the database, and the queue's options."""

    model_name: str
    arguments: tuple[str, ...]
    options: EntryOptions


def check_model(model: str, settings: Settings, shapes: Shapes, known: dict[str, int]) -> int:
    """How many distinct kernels the model has; of one that is `known` they are not counted again.

    Raises TunefarmError where `tune` would, for a model that cannot be read and for settings with
    which no job can be done. Where the precision is chosen later, the kernels are those without.
    """
    check_job(settings)
    compile = settings.compile
    asked = repr((model, shapes, compile.numerics, compile.target, compile.targets))
    if asked not in known:
        known[asked] = _kernel_count(model, settings, shapes)
    return known[asked]


def _kernel_count(model: str, settings: Settings, shapes: Shapes) -> int:
    compile = settings.compile
    numerics = Numerics.of("default" if compile.numerics in CHOSEN else compile.numerics)
    limits = limits_of(settings)
    target = targets_of(settings)[0]
    found: set[str] = set()
    for program in programs_of(shapes):
        graph = import_model(model, program.shapes, limits)
        kernels = kernels_of(graph, target, limits=limits, numerics=numerics)
        found |= distinct_kernels(kernels).keys()
    return len(found)


def new_entry(
    model_name: str,
    arguments: Sequence[str],
    settings: Settings,
    kernel_count: int,
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
        kernel_count=kernel_count,
    )
    return NewEntry(model_name, tuple(arguments), options)
