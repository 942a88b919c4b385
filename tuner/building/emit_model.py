"""What `tune build` writes: an artefact, or one of the forms of `tuner.building.emit_forms`.

An artefact that was built before takes no compiler: that is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from compiler.content_cache import ContentCache
from compiler.kernels.kernel import FusedKernel
from compiler.runtime.artefact import digest_of, save
from configs.settings import Settings, cache_folder
from db.store import Store
from tuner.building.apply_best import Records
from tuner.building.build_cache import KnownModel
from tuner.building.build_report import check_share, require_share
from tuner.building.emitted import Emitted, emitted_artefact
from tuner.building.forms import ARTEFACT
from tuner.building.kept_artefacts import keep_artefact, place_artefact
from tuner.building.model_reading import ModelReading, begin_reading
from tuner.building.weigh_kernels import build_report


def emit_model(
    form: str,
    model: str | PathLike[str],
    output: str,
    store: Store | None,
    settings: Settings,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    require_tuned: float = 0.0,
    fallback: bool = False,
    reading: ModelReading | None = None,
) -> Emitted:
    """Build `model` as `compile_from` does, and write it to `output` as `form`.

    `form` is one of FORMS; in C the model has the name of its file. With `fallback` an artefact
    gets a second variant for CPUs that cannot run the first. `reading` has been begun before, see
    `begin_reading`. Raises TunefarmError.
    """
    check_share(require_tuned)
    reading = reading or begin_reading(form, model, settings, shapes, fallback=fallback)
    if form != ARTEFACT:
        return _other_form(form, Path(model).stem, output, store, settings, reading, require_tuned)
    known, kernels = reading.look_up()
    if known is not None and kernels is not None:
        emitted = _placed(known, kernels, store, settings, output, require_tuned)
        if emitted is not None:
            return emitted
    from compiler.graph.serialize import structural_hash
    from tuner.building.build_model import compile_from

    graph = reading.graph()
    model_hash = structural_hash(graph)
    built = compile_from(graph, store, settings, require_tuned=require_tuned)
    portable = None
    if fallback:
        portable = compile_from(graph, store, settings, fallback=True).spec
    save(built.spec, output, portable)
    report, reports = built.report, built.spec.kernels
    distinct, chosen = built.kernels, built.chosen
    del built, portable  # whose constants leave room for the copy
    digest, folder = digest_of(output), cache_folder(settings)
    kept = None if folder is None else keep_artefact(ContentCache(folder), Path(output), digest)
    if known is not None and kept is not None:
        known.remember(distinct, chosen, reports, model_hash, kept)
    return emitted_artefact(output, report, model_hash, digest, kept)


def _other_form(
    form: str,
    name: str,
    output: str,
    store: Store | None,
    settings: Settings,
    reading: ModelReading,
    require_tuned: float,
) -> Emitted:
    from tuner.building.build_model import compile_from
    from tuner.building.emit_forms import write_form

    graph = reading.graph()
    built = compile_from(graph, store, settings, require_tuned=require_tuned)
    files, command = write_form(form, name, output, graph, built, settings)
    return Emitted(form, output, files, built.report, command)


def _placed(
    known: KnownModel,
    kernels: Mapping[str, FusedKernel],
    store: Store | None,
    settings: Settings,
    output: str,
    require_tuned: float,
) -> Emitted | None:
    """Put an artefact that was built before to `output`; None if there is none."""
    records = Records(store, settings, None)
    found = known.artefact(kernels, records.choose)
    if found is None:
        return None
    reports, kept = found
    report = build_report(reports, kernels, records.notes(reports))
    require_share(report, require_tuned)
    if not place_artefact(known.cache, kept, Path(output)):
        return None
    return emitted_artefact(output, report, known.model_hash, kept.digest, kept)
