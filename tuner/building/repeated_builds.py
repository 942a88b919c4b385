"""Builds that are repeated: what was made from the same bytes is found without looking at them.

A build is a function of the model's file, the database's file, the settings that matter, and the
programs that read them. Where all of these are what they were, neither is a record looked up nor
a library imported that could.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from compiler.content_cache import NOT_WHAT_WAS_KEPT, ContentCache, cache_key
from configs.settings import Settings, cache_folder
from db.file_state import file_digest, records_stamp
from tuner.building.build_key import compile_parts, model_parts
from tuner.building.build_report import BuildReport, require_share
from tuner.building.emitted import Emitted, emitted_artefact
from tuner.building.kept_artefacts import KeptArtefact, place_artefact
from tuner.building.model_digest import ModelDigest
from tuner.targets import target_of

_UNTUNED = "untuned"


@dataclass(frozen=True, slots=True)
class _Known:
    """A build that was made; `not_listed` as of `RepeatedBuilds.remember`."""

    report: BuildReport
    kept: KeptArtefact
    model_hash: str
    not_listed: str


class RepeatedBuilds:
    """One build, and what the cache knows of it."""

    def __init__(
        self, cache: ContentCache, database: str | None, inputs: tuple[object, ...]
    ) -> None:
        """`database` is the file that is built from; None for an untuned build."""
        self._cache = cache
        self._database = database
        self._inputs = inputs
        self._stamp: object = None

    @staticmethod
    def of(
        model: str,
        digest: ModelDigest,
        settings: Settings,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        untuned: bool,
        fallback: bool,
    ) -> RepeatedBuilds | None:
        """The build of a model with this digest; None if it has none, or nothing is kept."""
        folder = cache_folder(settings)
        known = None if folder is None else digest.result()
        if folder is None or known is None:
            return None
        inputs = (
            model_parts(model, known, shapes),
            compile_parts(settings, target_of(settings)),
            fallback,
        )
        database = None if untuned else settings.database.url
        return RepeatedBuilds(ContentCache(folder), database, inputs)

    def place(self, output: str, require_tuned: float) -> tuple[Emitted, str] | None:
        """Put what was built before to `output`; None if nothing was.

        The text is why the build is not listed in its database, "" if it is. Raises TunefarmError
        if the file cannot be written or too little of it is tuned.
        """
        digest = self._records_digest()
        known = None if digest is None else self._find(digest)
        if known is not None and not (known.not_listed and self._can_list()):
            report, kept = known.report, known.kept
            require_share(report, require_tuned)
            if place_artefact(self._cache, kept, Path(output)):
                emitted = emitted_artefact(output, report, known.model_hash, kept.digest, kept)
                return emitted, known.not_listed
        self._stamp = self._records_stamp()
        return None

    def remember(self, emitted: Emitted, not_listed: str) -> None:
        """Keep what was built since `place`, unless the records have changed meanwhile.

        The build itself may have been listed; `not_listed` says why not, else it is "".
        """
        if emitted.kept is None or (not_listed and self._can_list()):
            return
        digest = self._records_digest()
        same = self._stamp is not None and self._records_stamp() == self._stamp
        if digest is None or not same or self._records_digest() != digest:
            return
        facts = {
            "report": emitted.report.to_json(),
            "model_hash": emitted.model_hash,
            "kept": emitted.kept.to_json(),
            "not_listed": not_listed,
        }
        self._cache.add(self._key(digest), facts)

    def _find(self, records: str) -> _Known | None:
        found = self._cache.find(self._key(records))
        if found is None:
            return None
        facts = found[0]
        try:
            return _Known(
                BuildReport.from_json(facts["report"]),
                KeptArtefact.from_json(facts["kept"]),
                str(facts["model_hash"]),
                str(facts["not_listed"]),
            )
        except NOT_WHAT_WAS_KEPT:
            return None

    def _can_list(self) -> bool:
        """Whether the database can be written, so that what failed once need not fail again."""
        return self._database is not None and os.access(self._database, os.W_OK)

    def _records_digest(self) -> str | None:
        return _UNTUNED if self._database is None else file_digest(self._database)

    def _records_stamp(self) -> object:
        return _UNTUNED if self._database is None else records_stamp(self._database)

    def _key(self, records: str) -> str:
        return cache_key("build", records, *self._inputs)
