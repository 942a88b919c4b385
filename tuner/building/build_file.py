"""The whole of `tune build`, by the shortest way there is: found, put together, or compiled."""

from __future__ import annotations

from collections.abc import Mapping

from configs.settings import Settings
from tuner.building.build_report import check_share
from tuner.building.emitted import Emitted
from tuner.building.forms import ARTEFACT
from tuner.building.model_digest import ModelDigest
from tuner.building.open_records import open_records
from tuner.building.repeated_builds import RepeatedBuilds


def build_file(
    form: str,
    model: str,
    output: str,
    settings: Settings,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    untuned: bool = False,
    require_tuned: float = 0.0,
    fallback: bool = False,
    digest: ModelDigest | None = None,
) -> tuple[Emitted, str]:
    """Build `model` to `output`, see `emit_model`, and list it in the database it is from.

    Returns what was built, and why it could not be listed or "". `untuned` builds take no database;
    `digest` may have been begun before. Raises TunefarmError.
    """
    check_share(require_tuned)
    digest = digest or ModelDigest(model)
    known: RepeatedBuilds | None = None
    if form == ARTEFACT:
        known = RepeatedBuilds.of(
            model, digest, settings, shapes, untuned=untuned, fallback=fallback
        )
    placed = None if known is None else known.place(output, require_tuned)
    if placed is not None:
        return placed
    from tuner.building.model_reading import begin_reading

    reading = begin_reading(form, model, settings, shapes, fallback=fallback, digest=digest)
    from tuner.building.emit_model import emit_model

    url = settings.database.url
    with open_records(url, untuned=untuned) as store:
        emitted = emit_model(
            form,
            model,
            output,
            store,
            settings,
            shapes,
            require_tuned=require_tuned,
            fallback=fallback,
            reading=reading,
        )
    not_listed = ""
    if emitted.digest and not untuned:
        from tuner.building.build_records import record_build

        not_listed = record_build(settings, model, emitted)
    if known is not None:
        known.remember(emitted, not_listed)
    return emitted, not_listed
