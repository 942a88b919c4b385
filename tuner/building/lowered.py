"""The model that is compiled at the precision of a build: as imported, or with a recorded plan.

`int8` calibrates if the request names data, and records what came of it; without data the newest
record of the model is taken. Contractions whose rounding would leave too much noise in the outputs
stay wider. `auto` takes what a search has chosen for the model, or another point
of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tunefarm.compiler.content_cache import ContentCache
from tunefarm.compiler.errors import DatabaseError, SettingsError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.llvm.object_cache import ObjectCache
from tunefarm.compiler.pipeline import Compiled, compile_model
from tunefarm.compiler.plan.apply_precisions import apply_precisions, prepare
from tunefarm.compiler.plan.precision.contractions import contractions
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.schedule.schedule import ChooseSchedule
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.chosen_sizes import choose_sizes, put_sizes
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import F16_NUMERICS, Numerics
from tunefarm.compiler.types.precision import Precision
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.configs.settings import Settings, cache_folder
from tunefarm.tuner.building.record import keep_plan
from tunefarm.tuner.calibration.choice import RELATIVE_ERROR, ChoicePoint, PrecisionChoice
from tunefarm.tuner.calibration.collect import calibrate, too_sensitive, with_outputs
from tunefarm.tuner.calibration.data import SampleForm, read_samples
from tunefarm.tuner.calibration.options import AUTO, CHOSEN, INT8, PrecisionOptions
from tunefarm.tuner.from_settings import limits_of, numerics_of

if TYPE_CHECKING:
    from tunefarm.db.store import Store


def compile_with(
    graph: Graph,
    choose: ChooseSchedule | None,
    settings: Settings,
    target: Target,
    *,
    fallback: bool = False,
    dump_after: str | None = None,
    dump_kernels: Collection[str] | None = None,
    keep_llvm: bool = False,
    numerics: Numerics | None = None,
    guards: Sequence[SizeGuard] = (),
    to_write: bool = False,
) -> Compiled:
    """Compile a model with the schedules that `choose` gives (None: default schedules).

    `numerics` is that of the settings if None; denormal numbers are as they say. The rest
    is as in `compile_model`; where something is dumped all code is made anew.
    """
    folder = cache_folder(settings) if dump_after is None else None
    cache = None if folder is None else ContentCache(folder)
    objects = None if cache is None else ObjectCache(cache)
    compiled = compile_model(
        graph,
        choose,
        target=target,
        threads=settings.compile.threads,
        dump_after=dump_after,
        dump_kernels=dump_kernels,
        numerics=numerics_of(settings, numerics),
        cache=objects,
        limits=limits_of(settings),
        fallback=fallback,
        keep_llvm=keep_llvm,
        guards=guards,
        to_write=to_write,
    )
    if cache is not None and objects is not None and objects.misses:
        cache.trim()
    return compiled


_NAMED = 4
"""Contractions that a note names."""


@dataclass(frozen=True, slots=True)
class LoweredModel:
    """A graph and the precision to compile it with, which may name its contractions one by one.

    `chosen` is what was newly chosen for the model, to be recorded, and `note` says what of it may
    surprise.
    """

    graph: Graph
    numerics: Numerics
    chosen: PrecisionChoice | None = None
    note: str = ""


def lower_model(
    graph: Graph,
    settings: Settings,
    options: PrecisionOptions,
    target: Target,
    store: Store | None,
) -> LoweredModel:
    """The imported model at the settings' precision.

    Raises SettingsError where these need data, or a record, that is not there, and for a model
    without contractions.
    """
    numerics = settings.compile.numerics
    if numerics not in CHOSEN:
        return LoweredModel(graph, numerics_of(settings))
    chosen = None
    if numerics == INT8 and options.calibration is not None:
        choice = chosen = calibrated(graph, settings, options, target)
    else:
        choice = recorded_choice(graph, settings, target, store)
    number = options.point
    if number is None and numerics == AUTO and options.max_error is not None:
        number = choice.within(options.max_error)
    lowered, planned = apply_precisions(prepare(graph), choice.plan(number))
    note = "" if chosen is None else wider_note(graph, chosen)
    named = numerics_of(settings, replace(planned, name=numerics))
    return LoweredModel(lowered, named, chosen, note)


def calibrated(
    graph: Graph, settings: Settings, options: PrecisionOptions, target: Target
) -> PrecisionChoice:
    """Contractions that can be in int8 are, with ranges of the calibration data.

    Those that would leave too much noise in the outputs (`too_sensitive`) stay in bf16, or in f32
    where the target does not multiply that. It is run on this machine, whatever is built for.

    Raises SettingsError for data that does not fit and for a model without contractions.
    """
    prepared = prepare(graph)
    assert options.calibration is not None
    plain = settings.compile.model_copy(update={"numerics": "default"})
    with_f32 = settings.model_copy(update={"compile": plain})

    def compile(graph: Graph) -> Executable:
        return Executable(compile_with(graph, None, with_f32, host_target()).spec)

    samples = read_samples(options.calibration, SampleForm(prepared.signature, options.several))
    calibration = calibrate(prepared, samples, options.method(), compile)
    able = (item.identity for item in contractions(prepared) if item.quantisable)
    precisions = dict.fromkeys(able, Precision.INT8)
    is_fast = target.dot_products(DType.BF16, DType.BF16, DType.F32)
    for item in too_sensitive(prepared, calibration, samples, compile):
        wider = is_fast and item.has(Precision.BF16)
        precisions[item.identity] = Precision.BF16 if wider else Precision.F32
    point = ChoicePoint(precisions, ratio=1.0, error=0.0)
    return PrecisionChoice(RELATIVE_ERROR, 0.0, 0, (point,), calibration=calibration)


def wider_note(graph: Graph, choice: PrecisionChoice) -> str:
    """Which contractions 8 bits are too few for; "" if there are none."""
    precisions = choice.points[choice.chosen].precisions
    labels = [
        item.label
        for item in contractions(prepare(graph))
        if precisions.get(item.identity, Precision.INT8) is not Precision.INT8
    ]
    if not labels:
        return ""
    some = ", ".join(labels[:_NAMED]) + ", ..." * (len(labels) > _NAMED)
    return f"{len(labels)} of {len(precisions)} contractions are too sensitive for int8: {some}"


def recorded_choice(
    graph: Graph, settings: Settings, target: Target, store: Store | None
) -> PrecisionChoice:
    """What was last chosen for the model under these settings. Raises SettingsError if nothing."""
    from tunefarm.tuner.records.applicable_records import applicable_plan

    compile = settings.compile
    needs = {
        INT8: "--precision int8 needs --calibration inputs.npz, or a database that has its ranges",
        AUTO: "nothing was chosen for this model yet",
    }
    hints = {
        INT8: "",
        AUTO: "tune MODEL --precision auto --max-error 0.01 --calibration inputs.npz",
    }
    found = None
    if store is not None:
        standing = applicable_plan(
            store, structural_hash(graph), target, compile.threads, compile.numerics
        )
        found = standing.applies or standing.nominee  # it is asked for by its name
    if found is None:
        raise SettingsError(needs[compile.numerics], hint=hints[compile.numerics])
    return PrecisionChoice.from_json(found.plan)


def keep_choice(
    choice: PrecisionChoice, name: str, graph: Graph, settings: Settings, target: Target
) -> str:
    """Record what a build has chosen in the settings' database; why that failed, or "".

    A build server may have the records for reading only: that is no reason to fail.
    """
    from tunefarm.db.store import Store

    try:
        with Store.open(settings.database.url, create=False, leave_damaged=True) as store:
            record_choice(store, choice, name, graph, settings, target)
    except DatabaseError as error:
        return f"the calibration is not recorded: {error.message}"
    return ""


def record_choice(
    store: Store,
    choice: PrecisionChoice,
    name: str,
    graph: Graph,
    settings: Settings,
    target: Target,
) -> None:
    """Keep what was chosen for an imported model. Raises DatabaseError."""
    kind, model_hash = settings.compile.numerics, structural_hash(graph)
    keep_plan(store, kind, choice.to_json(), name, model_hash, settings, target)


# Numbers that f16 does not hold, found by a run: what the note of a build says of them.

"""Contractions that a note names."""


def overflow_note(graph: Graph, built: Compiled, settings: Settings) -> str:
    """Which contractions read numbers beyond f16's largest one, or "".

    The built model is run once with seeded inputs; where its outputs are not finite, a build in f32
    tells why. Models of another precision, or for other machines, are not run.
    """
    host = host_target()
    if settings.compile.numerics != F16_NUMERICS.name or built.spec.target.key != host.key:
        return ""
    executable = Executable(built.spec.of_tensors())
    inputs = {name: _drawn(type) for name, type in executable.inputs_at().items()}
    put_sizes(graph.signature, choose_sizes(graph.signature, {}), inputs)
    if _are_finite(executable.run(inputs)):
        return ""
    prepared = prepare(graph)
    found = [
        item
        for item in contractions(prepared)
        if item.has(Precision.F16) and item.data not in prepared.inputs
    ]
    plain = settings.compile.model_copy(update={"numerics": "default"})
    in_f32 = settings.model_copy(update={"compile": plain})
    inner = with_outputs(prepared, dict.fromkeys(item.data for item in found))
    values = Executable(compile_with(inner, None, in_f32, host).spec).run(inputs)
    largest = float(np.finfo(np.float16).max)
    names = [item.label for item in found if np.abs(values[item.data]).max() > largest]
    if not names:
        return ""
    some = ", ".join(names[:_NAMED]) + ", ..." * (len(names) > _NAMED)
    return f"outputs are not finite: f16 ends at {largest:g}, bf16 does not: operands of {some}"


def _drawn(type: TensorType) -> Array:
    """Normal floats; of other types 0 and 1."""
    rng = np.random.default_rng(0)
    is_float = type.dtype.is_float
    drawn: Array = rng.standard_normal(type.shape) if is_float else rng.integers(0, 2, type.shape)
    return converted(drawn, type.dtype)


def _are_finite(outputs: dict[str, Array]) -> bool:
    floats = (array for array in outputs.values() if array.dtype.kind == "f")
    return all(bool(np.isfinite(array).all()) for array in floats)
